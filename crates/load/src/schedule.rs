//! The instants of the requests, computed before the run; nothing during the run changes them.
//!
//! Instants are absolute, from the start of the run, and derived from a seed: the same seed
//! gives the same schedule, and one late request does not shift the next. All processes but the
//! constant one are Poisson processes whose rate is a step function ([`poisson_over`]): one step
//! (Poisson), two alternating steps (bursty), or a long-range dependent series (self-similar).
//!
//! [`Schedule::shape`] measures the result, since a short or slow
//! run of a self-similar process cannot show its burstiness.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use amped_measure::Failure;
use amped_measure::stats::Random;
use rustfft::FftPlanner;
use rustfft::num_complex::Complex;
use serde::{Deserialize, Serialize};

use crate::slice::Slice;
use crate::workload::Requests;

/// An arrival process.
#[derive(Clone, Debug, PartialEq)]
pub enum Arrivals {
    /// Equal gaps.
    Constant,
    /// Independent arrivals: exponential gaps.
    Poisson,
    /// The rate is `ratio` times its mean for `share` of each period, and lower for the rest, which keeps the mean
    /// (Banga and Druschel, section 5.4).
    Bursty {
        /// Peak rate over mean rate.
        ratio: f64,
        /// Fraction of the time at the peak; `ratio * share <= 1`.
        share: f64,
        /// Time from the start of one burst to the next.
        period: Duration,
    },
    /// Bursty at all time scales: the rate is fractional Gaussian noise in steps of 100 ms, by the method of Davies and
    /// Harte (Biometrika 74, 1987).
    SelfSimilar {
        /// The Hurst parameter, from 0.5 (no memory) to 1.
        hurst: f64,
    },
    /// No schedule, but the paper's own S-Client (Banga and Druschel, section 4.2): `rate` times the connect timeout T
    /// descriptors, each of which opens its next connection as soon as one is established, or T has passed. `rate` is
    /// the minimum that they request; accepted connections add to it.
    Descriptors,
    /// Read from this file: one instant per line, in seconds from the start, not decreasing; `#` begins a comment.
    File(PathBuf),
}

/// Step length of a self-similar rate.
const STEP: Duration = Duration::from_millis(100);

/// The error for a run of length 0.
pub const NO_LENGTH: &str = "--duration must not be zero; write, for example, 30s";

/// Maximum number of arrivals in a schedule, at 8 bytes each.
pub const ARRIVALS_MAX: f64 = 5e7;

impl FromStr for Arrivals {
    type Err = String;

    fn from_str(text: &str) -> Result<Arrivals, String> {
        const FORMS: &str =
            "write constant, poisson, bursty:RATIO,PERCENT%[,PERIOD], self-similar:HURST, descriptors or file:NAME";
        let (name, rest) = text.split_once(':').unwrap_or((text, ""));
        let mut parts = rest.split(',').map(str::trim);
        let number = |part: Option<&str>, what: &str| -> Result<f64, String> {
            let number = part.unwrap_or_default().trim_end_matches('%').parse::<f64>();
            number.ok().filter(|number| number.is_finite()).ok_or_else(|| format!("{what} is missing; {FORMS}"))
        };
        let arrivals = match name {
            "constant" if rest.is_empty() => Arrivals::Constant,
            "poisson" if rest.is_empty() => Arrivals::Poisson,
            "descriptors" if rest.is_empty() => Arrivals::Descriptors,
            "bursty" => {
                let (ratio, percent) = (number(parts.next(), "the ratio")?, number(parts.next(), "the percentage")?);
                let period = parts.next().map_or(Ok(Duration::from_secs(10)), duration)?;
                let share = percent / 100.0;
                if !(ratio >= 1.0 && share > 0.0 && ratio * share <= 1.0) {
                    return Err(format!(
                        "bursts of {ratio} times the mean rate for {percent} % of the time are impossible: the ratio must be 1 \
                         or more, and ratio times percentage at most 100"
                    ));
                }
                if period < Duration::from_millis(10) {
                    return Err("the period of bursts must be at least 10ms".to_owned());
                }
                Arrivals::Bursty { ratio, share, period }
            }
            "self-similar" => {
                let hurst = number(parts.next(), "the Hurst parameter")?;
                if !(0.5..1.0).contains(&hurst) {
                    return Err(format!("the Hurst parameter must be at least 0.5 and below 1, not {hurst}"));
                }
                Arrivals::SelfSimilar { hurst }
            }
            "file" if !rest.is_empty() => return Ok(Arrivals::File(rest.into())),
            _ => return Err(FORMS.to_owned()),
        };
        match parts.next() {
            Some(extra) if !extra.is_empty() => Err(format!("unexpected {extra:?}; {FORMS}")),
            _ => Ok(arrivals),
        }
    }
}

impl fmt::Display for Arrivals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Arrivals::Constant => f.write_str("constant"),
            Arrivals::Poisson => f.write_str("poisson"),
            Arrivals::Descriptors => f.write_str("descriptors"),
            Arrivals::Bursty { ratio, share, period } => {
                write!(f, "bursty:{ratio},{}%,{}ms", share * 100.0, period.as_millis())
            }
            Arrivals::SelfSimilar { hurst } => write!(f, "self-similar:{hurst}"),
            Arrivals::File(path) => write!(f, "file:{}", path.display()),
        }
    }
}

/// Parses a duration: `500ms`, `30s`, `2m`.
///
/// # Errors
/// A text that says what to write.
pub fn duration(text: &str) -> Result<Duration, String> {
    amped_units::parse_duration(text).map_err(|error| format!("{text:?} is {error}"))
}

/// Parses the duration of a flag, where a bare number is in seconds, as in wrk, oha and hey. Not for conditions such as
/// `p99>20`, which other tools read in milliseconds.
///
/// # Errors
/// A text that says what to write.
pub fn seconds(text: &str) -> Result<Duration, String> {
    let is_bare = text.bytes().any(|byte| byte.is_ascii_digit())
        && text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    let with_unit = if is_bare { format!("{text}s") } else { text.to_owned() };
    amped_units::parse_duration(&with_unit).map_err(|error| format!("{text:?} is {error}"))
}

/// Parses the rate of a flag: a number per second, with `k` for thousands and `m` for millions.
///
/// # Errors
/// A text that says what to write.
pub fn rate(text: &str) -> Result<f64, String> {
    let trimmed = text.trim();
    let (number, scale) = match trimmed.char_indices().next_back() {
        Some((at, 'k' | 'K')) => (&trimmed[..at], 1e3),
        Some((at, 'm' | 'M')) => (&trimmed[..at], 1e6),
        _ => (trimmed, 1.0),
    };
    let wrong = |_| format!("invalid rate {text:?}: write a number per second, such as 500, 10k or 1.5m");
    number.parse::<f64>().map(|number| number * scale).map_err(wrong)
}

/// Instants in nanoseconds from the start of the run, in ascending order.
#[derive(Clone, Debug, PartialEq)]
pub struct Schedule {
    at_ns: Vec<u64>,
    duration_ns: u64,
    /// Connections per second that descriptors request; the instants are then those of a constant rate, and are not
    /// used.
    descriptors_rate: Option<f64>,
    /// The slice of the plan that these arrivals are.
    slice: Slice,
}

impl Schedule {
    /// The first `count` arrivals of such a schedule, whatever its length.
    ///
    /// # Errors
    /// Those of [`new`](Schedule::new).
    pub fn of_count(arrivals: &Arrivals, rate: f64, count: u64, seed: u64) -> Result<Schedule, Failure> {
        /// Bounds the search if a recorded series is too short or arrivals are too rare.
        const LONGEST_S: f64 = 1e6;
        if rate.is_nan() || rate <= 0.0 || count == 0 {
            return Schedule::new(arrivals, rate, Duration::from_secs(1), seed);
        }
        // More than the mean, as arrivals are random; the loop doubles it for bursts.
        let mut seconds = (count as f64 / rate * 1.1 + 8.0 * (count as f64).sqrt() / rate).clamp(1e-3, LONGEST_S);
        loop {
            let mut schedule = Schedule::new(arrivals, rate, Duration::from_secs_f64(seconds), seed)?;
            if schedule.at_ns.len() as u64 >= count || seconds >= LONGEST_S || matches!(arrivals, Arrivals::File(_)) {
                schedule.truncate(count);
                return Ok(schedule);
            }
            seconds = (seconds * 2.0).min(LONGEST_S);
        }
    }

    /// A schedule with a mean rate of `rate` arrivals per second over `duration`. A recorded series is only cut at
    /// `duration`, and `rate` is ignored.
    ///
    /// # Errors
    /// For a rate of 0, for too many arrivals, and for a file without a valid series.
    pub fn new(arrivals: &Arrivals, rate: f64, duration: Duration, seed: u64) -> Result<Schedule, Failure> {
        let seconds = duration.as_secs_f64();
        if seconds <= 0.0 {
            return Err(Failure::usage(NO_LENGTH));
        }
        if let Arrivals::File(path) = arrivals {
            let text = std::fs::read_to_string(path).map_err(Failure::io(format_args!("read {}", path.display())))?;
            let name = path.display();
            let at = recorded(&text).map_err(|why| Failure::failed(format!("{name}: {why}")))?;
            let at: Vec<Duration> = at.into_iter().take_while(|at| *at < duration).collect();
            let found = Schedule::at(&at).ok_or_else(|| Failure::failed(format!("{name}: the file has no instants")));
            return found.map(|found| Schedule { duration_ns: found.duration_ns.min(nanos(duration)), ..found });
        }
        if !(rate > 0.0 && rate.is_finite()) {
            return Err(Failure::usage(format!("--rate must be above 0, not {rate}")));
        }
        if rate * seconds > ARRIVALS_MAX {
            return Err(Failure::usage(format!(
                "{rate} per second for {seconds} s are {:.3e} arrivals; the maximum is {ARRIVALS_MAX:.0e}; shorten \
                 --duration or lower --rate",
                rate * seconds
            )));
        }
        let mut random = Random(seed);
        let at_ns = match arrivals {
            Arrivals::Constant | Arrivals::Descriptors => {
                (0..(rate * seconds).round() as u64).map(|n| (n as f64 * 1e9 / rate).round() as u64).collect()
            }
            Arrivals::Poisson => poisson_over(std::iter::once((rate, seconds)), &mut random),
            Arrivals::Bursty { ratio, share, period } => {
                let period = period.as_secs_f64();
                let low = if *share < 1.0 { rate * (1.0 - ratio * share) / (1.0 - share) } else { rate };
                let phases = [(rate * ratio, period * share), (low, period * (1.0 - share))];
                let mut left = seconds;
                let cut = phases.into_iter().cycle().map_while(|(rate, length)| {
                    let length = length.min(left);
                    left -= length;
                    (length > 0.0 || left > 0.0).then_some((rate, length))
                });
                poisson_over(cut, &mut random)
            }
            Arrivals::SelfSimilar { hurst } => {
                /// The standard deviation of the rate in one step, relative to its mean; negative rates become 0.
                const DEVIATION: f64 = 0.3;
                let steps = (seconds / STEP.as_secs_f64()).ceil() as usize;
                let noise = fractional_noise(*hurst, steps, &mut random);
                let mut rates: Vec<f64> = noise.into_iter().map(|noise| (1.0 + DEVIATION * noise).max(0.0)).collect();
                let mean = rates.iter().sum::<f64>() / steps as f64;
                rates.iter_mut().for_each(|step| *step *= rate / mean.max(f64::MIN_POSITIVE));
                let mut left = seconds;
                let steps = rates.into_iter().map(|rate| {
                    let length = STEP.as_secs_f64().min(left);
                    left -= length;
                    (rate, length)
                });
                poisson_over(steps, &mut random)
            }
            Arrivals::File(_) => Vec::new(),
        };
        let descriptors_rate = (*arrivals == Arrivals::Descriptors).then_some(rate);
        Ok(Schedule { at_ns, duration_ns: nanos(duration), descriptors_rate, slice: Slice::default() })
    }

    /// A schedule of these instants, sorted; `None` if there are none. It lasts one mean gap beyond the last instant
    /// (one second if there is no gap), so that all arrivals lie before its end.
    pub fn at(instants: &[Duration]) -> Option<Schedule> {
        let mut at_ns: Vec<u64> = instants.iter().map(|at| nanos(*at)).collect();
        at_ns.sort_unstable();
        let (first, last) = (*at_ns.first()?, *at_ns.last()?);
        let gap_ns = match (last - first) / (at_ns.len() as u64 - 1).max(1) {
            0 => 1_000_000_000,
            gap_ns => gap_ns,
        };
        let duration_ns = last.saturating_add(gap_ns);
        Some(Schedule { at_ns, duration_ns, descriptors_rate: None, slice: Slice::default() })
    }

    /// The schedule of requests with instants of their own: that of the first
    /// request on each connection. `None` if one of these has no instant.
    pub fn of_requests(requests: &Requests, per_connection: u64) -> Option<Schedule> {
        let first = requests.instants().iter().step_by(usize::try_from(per_connection.max(1)).unwrap_or(usize::MAX));
        Schedule::at(&first.copied().collect::<Vec<_>>())
    }

    /// Keeps the first `count` arrivals; the schedule then ends when the next one would have come.
    pub fn truncate(&mut self, count: u64) {
        if let Ok(count) = usize::try_from(count)
            && let Some(next) = self.at_ns.get(count)
        {
            self.duration_ns = (*next).max(1);
            self.at_ns.truncate(count);
        }
    }

    /// Keeps the arrivals before this instant, and ends there.
    pub fn end_at(&mut self, end: Duration) {
        let end_ns = nanos(end).max(1);
        self.at_ns.truncate(self.at_ns.partition_point(|at| *at < end_ns));
        self.duration_ns = self.duration_ns.min(end_ns);
    }

    /// One generator's slice of the schedule: every N-th arrival, with its number in the whole, over the same duration.
    pub fn slice(self, slice: Slice) -> Schedule {
        let own = (0..slice.share(self.at_ns.len() as u64)).map(|n| self.at_ns[slice.number(n) as usize]);
        let descriptors_rate = self.descriptors_rate.map(|rate| rate / slice.count() as f64);
        Schedule { at_ns: own.collect(), duration_ns: self.duration_ns, descriptors_rate, slice }
    }

    /// The number of descriptors that request the rate with this connect timeout; `None` if there is a schedule.
    pub fn descriptors(&self, connect_timeout: Duration) -> Option<usize> {
        self.descriptors_rate.map(|rate| ((rate * connect_timeout.as_secs_f64()).ceil() as usize).max(1))
    }

    /// The number in the plan of the `n`-th connection.
    pub fn number(&self, n: u64) -> u64 {
        self.slice.number(n)
    }

    /// The arrivals: their numbers in the plan, and their instants in nanoseconds from the start.
    pub fn arrivals(&self) -> impl Iterator<Item = (u64, u64)> {
        self.at_ns.iter().enumerate().map(|(n, at)| (self.number(n as u64), *at))
    }

    /// The instants in nanoseconds from the start.
    pub fn at_ns(&self) -> &[u64] {
        &self.at_ns
    }

    /// The duration: the requested one, or up to the last instant.
    pub fn duration(&self) -> Duration {
        Duration::from_nanos(self.duration_ns)
    }

    /// Mean arrivals per second.
    pub fn rate(&self) -> f64 {
        self.at_ns.len() as f64 / self.duration().as_secs_f64()
    }

    /// The maximum number of arrivals in any window of this length: the number of sockets that may be open at once.
    pub fn most_within(&self, window: Duration) -> usize {
        let (window, mut first, mut most) = (nanos(window), 0, 0);
        for (last, at) in self.at_ns.iter().enumerate() {
            while at - self.at_ns[first] > window {
                first += 1;
            }
            most = most.max(last - first + 1);
        }
        most
    }

    /// Measures the burstiness.
    pub fn shape(&self) -> Shape {
        let dispersion = [10, 100, 1000, 10_000].into_iter().filter_map(|window_ms| {
            let counts = self.counts(window_ms * 1_000_000);
            let (mean, variance) = moments(&counts)?;
            (counts.len() >= 20 && mean > 0.0).then(|| Dispersion { window_ms, index: variance / mean })
        });
        Shape { dispersion: dispersion.collect(), hurst: self.hurst() }
    }

    /// The Hurst parameter by the variance-time plot (Leland, Taqqu, Willinger, Wilson, 1994): the variance of the mean
    /// of m counts falls as m^(2H - 2). `None` if the run is too short.
    fn hurst(&self) -> Option<f64> {
        // Windows with fewer than a hundred arrivals show only Poisson noise.
        let base = (100e9 / self.rate()).max(STEP.as_nanos() as f64) as u64;
        let mut counts = self.counts(base);
        let (mut scale, mut points) = (1.0f64, Vec::new());
        while counts.len() >= 24 {
            let (_, variance) = moments(&counts)?;
            if variance <= 0.0 {
                return None;
            }
            points.push((scale.ln(), (variance / scale.powi(2)).ln()));
            counts = counts.chunks_exact(2).map(|pair| pair[0] + pair[1]).collect();
            scale *= 2.0;
        }
        if points.len() < 3 {
            return None;
        }
        let n = points.len() as f64;
        let (x, y) = points.iter().fold((0.0, 0.0), |(x, y), point| (x + point.0 / n, y + point.1 / n));
        let (xy, xx) = points
            .iter()
            .fold((0.0, 0.0), |(xy, xx), point| (xy + (point.0 - x) * (point.1 - y), xx + (point.0 - x).powi(2)));
        Some(1.0 + xy / xx / 2.0)
    }

    /// Arrivals in each whole window of this length.
    fn counts(&self, window_ns: u64) -> Vec<f64> {
        let mut counts = vec![0.0; (self.duration_ns / window_ns) as usize];
        for at in &self.at_ns {
            if let Some(count) = counts.get_mut((at / window_ns) as usize) {
                *count += 1.0;
            }
        }
        counts
    }
}

/// Measured burstiness of a schedule.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Shape {
    /// The index of dispersion at several window lengths that occur at least 20 times.
    pub dispersion: Vec<Dispersion>,
    /// The Hurst parameter: 0.5 without memory; absent if the run is too short.
    pub hurst: Option<f64>,
}

/// Variance over mean of the arrivals in a window: 0 for constant gaps, 1 for Poisson, more for bursts.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Dispersion {
    /// Length of the windows, in milliseconds.
    pub window_ms: u64,
    /// Variance over mean.
    pub index: f64,
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

fn moments(values: &[f64]) -> Option<(f64, f64)> {
    let n = values.len() as f64;
    let mean = values.iter().sum::<f64>() / n;
    let variance = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / (n - 1.0);
    (values.len() > 1).then_some((mean, variance))
}

/// An exponential number with mean 1.
fn exponential(random: &mut Random) -> f64 {
    -(1.0 - random.fraction()).ln()
}

/// Two independent normal numbers (Box and Muller).
fn normal_pair(random: &mut Random) -> Complex<f64> {
    let (length, angle) = ((2.0 * exponential(random)).sqrt(), std::f64::consts::TAU * random.fraction());
    Complex::new(length * angle.cos(), length * angle.sin())
}

/// A Poisson process whose rate is a step function, given as (rate per second, seconds). Exact: exponential gaps in
/// operational time, the integral of the rate, are mapped back to clock time.
fn poisson_over(steps: impl Iterator<Item = (f64, f64)>, random: &mut Random) -> Vec<u64> {
    let (mut at_ns, mut start, mut left) = (Vec::new(), 0.0, exponential(random));
    for (rate, seconds) in steps {
        let (mut at, end) = (0.0, rate * seconds);
        while at + left < end {
            at += left;
            at_ns.push(((start + at / rate) * 1e9) as u64);
            left = exponential(random);
        }
        left -= end - at;
        start += seconds;
    }
    at_ns
}

/// `count` values of fractional Gaussian noise with mean 0 and variance 1. The autocovariance is embedded in a
/// circulant matrix; its eigenvalues, none negative, are its Fourier transform (Davies and Harte).
fn fractional_noise(hurst: f64, count: usize, random: &mut Random) -> Vec<f64> {
    let half = count.max(2).next_power_of_two();
    let power = |k: f64| k.abs().powf(2.0 * hurst);
    let covariance = |k: f64| 0.5 * (power(k + 1.0) - 2.0 * power(k) + power(k - 1.0));
    let row = (0..2 * half).map(|k| covariance(k.min(2 * half - k) as f64));
    let mut values: Vec<Complex<f64>> = row.map(|value| Complex::new(value, 0.0)).collect();
    let transform = FftPlanner::new().plan_fft_forward(values.len());
    transform.process(&mut values);
    let scale = 1.0 / (2 * half) as f64;
    for value in &mut values {
        *value = normal_pair(random) * (value.re.max(0.0) * scale).sqrt();
    }
    transform.process(&mut values);
    values.truncate(count);
    values.into_iter().map(|value| value.re).collect()
}

/// Parses a recorded series.
fn recorded(text: &str) -> Result<Vec<Duration>, String> {
    let mut at: Vec<Duration> = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let line = line.split('#').next().unwrap_or_default().trim();
        if line.is_empty() {
            continue;
        }
        let wrong = |why: &str| format!("line {}: {line:?} {why}", number + 1);
        let seconds: f64 = line.parse().map_err(|_| wrong("is not a number of seconds"))?;
        let instant = Duration::try_from_secs_f64(seconds).map_err(|_| wrong("is before the start"))?;
        if at.last().is_some_and(|last| *last > instant) {
            return Err(wrong("is earlier than the line before it; instants must not decrease"));
        }
        at.push(instant);
    }
    Ok(at)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn schedule(arrivals: &str, rate: f64, seconds: u64, seed: u64) -> Schedule {
        Schedule::new(&arrivals.parse().unwrap(), rate, Duration::from_secs(seconds), seed).unwrap()
    }

    #[test]
    fn flags_match_other_load_generators() {
        for (text, expected) in
            [("500", 500.0), ("10k", 10_000.0), ("1.5K", 1500.0), ("1m", 1e6), ("0.5M", 5e5), (" 7 ", 7.0)]
        {
            assert_eq!(rate(text), Ok(expected), "{text}");
        }
        for bad in ["", "k", "10q", "1kk", "ten"] {
            assert!(rate(bad).unwrap_err().contains("such as 500, 10k"), "{bad}");
        }
        for (text, ms) in [("10", 10_000), ("0.25", 250), ("30s", 30_000), ("2m", 120_000), ("0", 0)] {
            assert_eq!(seconds(text), Ok(Duration::from_millis(ms)), "{text}");
        }
        for bad in ["", ".", "1.2.3", "-1", "1 fortnight"] {
            assert!(seconds(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn schedule_has_given_count_for_all_arrivals() {
        for arrivals in ["constant", "poisson", "bursty:6,5%", "self-similar:0.8"] {
            let arrivals: Arrivals = arrivals.parse().unwrap();
            for count in [1, 7, 1000] {
                let schedule = Schedule::of_count(&arrivals, 500.0, count, 3).unwrap();
                assert_eq!(schedule.at_ns().len() as u64, count, "{arrivals}");
                assert!(schedule.duration() < Duration::from_secs(60), "{arrivals}: {:?}", schedule.duration());
            }
        }
        assert!(Schedule::of_count(&Arrivals::Constant, 0.0, 5, 1).is_err());
    }

    #[test]
    fn arrivals_are_parsed() {
        let check = |text: &str, expected: &str| {
            let found = text.parse::<Arrivals>().map_or_else(|why| format!("! {why}"), |arrivals| arrivals.to_string());
            assert!(found.starts_with(expected), "{text:?}: {found}");
        };
        check("constant", "constant");
        check("poisson", "poisson");
        check("bursty:6,5%", "bursty:6,5%,10000ms");
        check("bursty:4,10,500ms", "bursty:4,10%,500ms");
        check("self-similar:0.8", "self-similar:0.8");
        check("file:/a,b:c", "file:/a,b:c");
        for bad in ["", "poison", "poisson:3", "bursty:6", "bursty:30,5%", "bursty:0.5,5%", "bursty:2,5%,1us", "file:"]
        {
            check(bad, "!");
        }
        for bad in ["self-similar:1", "self-similar:0.4", "self-similar:0.8,x", "self-similar:NaN", "bursty:6,5%,1s,2"]
        {
            check(bad, "!");
        }
        let times = ["500ms", "30s", "1.5m", "20us"].map(|text| duration(text).unwrap().as_secs_f64());
        assert_eq!(times, [0.5, 30.0, 90.0, 2e-5]);
        for bad in ["", "s", "30", "-1s", "1x", "1.2.3", "inf", "1e3s", "99999999999h"] {
            assert!(duration(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn impossible_schedule_is_rejected() {
        let check = |rate: f64, seconds: u64, says: &str| {
            let refused = Schedule::new(&Arrivals::Constant, rate, Duration::from_secs(seconds), 1).unwrap_err();
            assert!(refused.exit_status() == 2 && refused.to_string().contains(says), "{refused}");
        };
        check(0.0, 1, "above 0");
        check(f64::NAN, 1, "above 0");
        check(1e9, 30, "lower --rate");
        check(1.0, 0, "--duration");
    }

    #[test]
    fn seed_determines_schedule() {
        for arrivals in ["constant", "poisson", "bursty:6,5%,1s", "self-similar:0.8"] {
            let first = schedule(arrivals, 1000.0, 20, 7);
            assert_eq!(first, schedule(arrivals, 1000.0, 20, 7), "{arrivals}");
            assert_eq!(first == schedule(arrivals, 1000.0, 20, 8), arrivals == "constant", "{arrivals}");
            assert!(first.at_ns().is_sorted() && first.at_ns().iter().all(|at| *at < 20_000_000_000), "{arrivals}");
            // 20,000 expected; the standard deviation of a Poisson process is 141.
            assert!((first.rate() - 1000.0).abs() < 40.0, "{arrivals}: {}", first.rate());
        }
    }

    #[test]
    fn constant_gaps_do_not_drift() {
        let found = schedule("constant", 3.0, 100, 1);
        assert_eq!((found.at_ns().len(), found.at_ns()[299]), (300, 99_666_666_667));
        assert_eq!(found.most_within(Duration::from_secs(1)), 4);
        assert!(schedule("constant", 1000.0, 20, 1).shape().dispersion.iter().all(|found| found.index < 0.01));
    }

    /// Chi-square of counts against equal expectations.
    fn chi_square(counts: &[f64]) -> f64 {
        let expected = counts.iter().sum::<f64>() / counts.len() as f64;
        counts.iter().map(|count| (count - expected).powi(2) / expected).sum()
    }

    #[test]
    fn poisson_gaps_are_exponential_and_independent() {
        let found = schedule("poisson", 1000.0, 50, 3);
        let gaps: Vec<f64> = found.at_ns().windows(2).map(|pair| (pair[1] - pair[0]) as f64 / 1e6).collect();
        // 20 classes of equal probability: 19 degrees of freedom; the 99.9 % quantile is 43.8.
        let class = |gap: &f64| ((1.0 - (-gap).exp()) * 20.0) as usize;
        let mut counts = [0.0; 20];
        gaps.iter().for_each(|gap| counts[class(gap).min(19)] += 1.0);
        assert!(chi_square(&counts) < 43.8, "{counts:?}");
        // Pairs of neighbours in a grid of 5 by 5: 24 degrees of freedom, 51.2.
        let mut board = [0.0; 25];
        gaps.chunks_exact(2).for_each(|pair| board[class(&pair[0]) / 4 * 5 + class(&pair[1]) / 4] += 1.0);
        assert!(chi_square(&board) < 51.2, "{board:?}");
        for Dispersion { window_ms, index } in found.shape().dispersion {
            assert!((0.6..1.5).contains(&index), "{window_ms} ms: {index}");
        }
    }

    #[test]
    fn bursts_have_given_ratio_and_share() {
        let found = schedule("bursty:6,5%,1s", 1000.0, 100, 5);
        let in_burst = found.at_ns().iter().filter(|at| **at % 1_000_000_000 < 50_000_000).count() as f64;
        // 6 times the mean for 5 % of the time are 30 % of 100,000 arrivals: 30,000 with a deviation of 173.
        assert!((29_000.0..31_000.0).contains(&in_burst), "{in_burst}");
        let at_100_ms = found.shape().dispersion[1];
        assert!(at_100_ms.window_ms == 100 && at_100_ms.index > 20.0, "{at_100_ms:?}");
    }

    #[test]
    fn hurst_parameter_matches_request() {
        let check = |arrivals: &str, low: f64, high: f64| {
            // The estimate of one run scatters, the mean of eight less.
            let found =
                (1..=8).map(|seed| schedule(arrivals, 2000.0, 400, seed).shape().hurst.unwrap()).sum::<f64>() / 8.0;
            assert!((low..high).contains(&found), "{arrivals}: {found}");
        };
        check("poisson", 0.45, 0.55);
        check("self-similar:0.6", 0.54, 0.66);
        check("self-similar:0.8", 0.72, 0.86);
        check("self-similar:0.9", 0.78, 0.95);
        assert_eq!(schedule("poisson", 1000.0, 1, 1).shape().hurst, None, "too short");
    }

    #[test]
    fn fractional_noise_has_theoretical_covariance() {
        let noise = fractional_noise(0.8, 1 << 16, &mut Random(11));
        let lag = |k: usize| noise.iter().zip(&noise[k..]).map(|(a, b)| a * b).sum::<f64>() / (noise.len() - k) as f64;
        // H (2H - 1) k^(2H - 2) for large k; exactly (2^1.6 - 2) / 2 for k = 1.
        for (k, expected) in [(0, 1.0), (1, 0.5157), (10, 0.48 * 10f64.powf(-0.4))] {
            assert!((lag(k) - expected).abs() < 0.06, "lag {k}: {} and not {expected}", lag(k));
        }
    }

    #[test]
    fn recorded_series_is_parsed() {
        let check = |text: &str, expected: Result<usize, &str>| match (recorded(text), expected) {
            (Ok(found), Ok(count)) => assert_eq!(found.len(), count, "{text:?}"),
            (Err(found), Err(says)) => assert!(found.contains(says), "{text:?}: {found}"),
            (found, _) => panic!("{text:?}: {found:?}"),
        };
        check("", Ok(0));
        check("# from a trace\n0\n0.5 # then\n\n1.25\n", Ok(3));
        check("0\nx\n", Err("line 2"));
        check("1\n0.5\n", Err("line 2"));
        check("-1\n", Err("line 1"));
        assert_eq!(Schedule::at(&[]), None);
    }

    #[test]
    fn requests_keep_recorded_times() {
        use crate::workload::{Order, Request};
        let of = |at: &[u64], per_connection: u64| {
            let requests = Requests::new(vec![Request::default()], Order::Listed(vec![0; 4]));
            let requests = requests.with_instants(at.iter().copied().map(Duration::from_nanos).collect());
            Schedule::of_requests(&requests, per_connection).map(|schedule| schedule.at_ns().to_vec())
        };
        assert_eq!(of(&[0, 5, 5, 9], 1), Some(vec![0, 5, 5, 9]));
        assert_eq!(of(&[0, 5, 5, 9], 3), Some(vec![0, 9]));
        assert_eq!(of(&[], 1), None);
        let mut first = schedule("constant", 10.0, 1, 1);
        first.truncate(20);
        assert_eq!(first.at_ns().len(), 10);
        first.truncate(3);
        assert_eq!((first.at_ns().len(), first.duration()), (3, Duration::from_millis(300)));
    }
}
