//! The text form of links: `50ms`, `50ms±10ms normal`, `10mbit`, `trace:lte.txt`, `gilbert:1%,25%`, `codel`.
//!
//! The command line and files use the same syntax, and only this module parses it. A value may name a file; the caller
//! passes a function that reads it, so that this module does no I/O.

use std::time::Duration;

use amped_units::{BitsPerSecond, Bytes, parse_duration};
use serde::Deserialize;

use crate::link::{Bandwidth, BandwidthTrace, Jitter, Latency, LatencyTrace, LinkSettings, Shape};
use crate::loss::{GilbertElliott, Loss};
use crate::queue::{CoDel, Discipline, Limit, QueueSettings};

/// Reads the file of this name as text, or returns the error.
pub type ReadFile<'a> = &'a dyn Fn(&str) -> Result<String, String>;

/// The values of a link as text; absent ones are those of a link that changes nothing.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LinkTexts {
    /// See [`latency`].
    pub latency: Option<String>,
    /// See [`bandwidth`].
    pub bandwidth: Option<String>,
    /// See [`loss`].
    pub loss: Option<String>,
    /// See [`queue`].
    pub queue: Option<String>,
}

impl LinkTexts {
    /// Overrides the values of `link`. A bandwidth without a queue sets the default queue for it.
    ///
    /// # Errors
    /// The name of the invalid value, and what to write instead.
    pub fn apply(&self, link: &mut LinkSettings, files: ReadFile<'_>) -> Result<(), String> {
        let named = |name: &'static str| move |error: String| format!("{name}: {error}");
        if let Some(text) = &self.latency {
            link.latency = latency(text, files).map_err(named("latency"))?;
        }
        if let Some(text) = &self.bandwidth {
            link.bandwidth = bandwidth(text, files).map_err(named("bandwidth"))?;
            link.queue = default_queue(&link.bandwidth);
        }
        if let Some(text) = &self.loss {
            link.loss = loss(text, files).map_err(named("loss"))?;
        }
        if let Some(text) = &self.queue {
            link.queue = queue(text, &link.bandwidth).map_err(named("queue"))?;
        }
        Ok(())
    }
}

/// A link that changes nothing.
pub fn plain_link() -> LinkSettings {
    let bandwidth = Bandwidth::Unlimited;
    let queue = default_queue(&bandwidth);
    LinkSettings { latency: Latency::Fixed(Duration::ZERO), bandwidth, queue, loss: Loss::None, framing_bytes: 0 }
}

/// The default queue of a link: droptail, with room for 100 ms at the bandwidth, and for at
/// least 20 packets of 1500 bytes. A buffer should hold about one round trip (Villamizar
/// and Song 1994), and 100 ms is that of the Internet at large (RFC 8289, 4.3).
pub fn default_queue(bandwidth: &Bandwidth) -> QueueSettings {
    let limit = match bandwidth.mean() {
        None => Limit::Unlimited,
        Some(rate) => Limit::Bytes(Bytes(((rate / 8.0 * 0.1) as u64).max(20 * 1500))),
    };
    QueueSettings { limit, discipline: Discipline::DropTail }
}

/// `50ms`, `50ms±10ms [uniform|normal|pareto] [reorder]` (also `+-`), or `trace:FILE`.
///
/// # Errors
/// When the text is invalid; the error says what to write instead.
pub fn latency(text: &str, files: ReadFile<'_>) -> Result<Latency, String> {
    if let Some(file) = text.strip_prefix("trace:") {
        return latency_trace(&files(file)?).map_err(|error| format!("{file}: {error}"));
    }
    let duration = |text: &str| {
        let duration = parse_duration(text).map_err(|error| format!("{text:?} is {error}"))?;
        // Signals to Mars take at most 22 minutes.
        if duration > LATENCY_MAX {
            return Err(format!("{text:?} is too long; the maximum latency is one hour"));
        }
        Ok(duration)
    };
    let Some((mean, rest)) = text.split_once('±').or_else(|| text.split_once("+-")) else {
        return Ok(Latency::Fixed(duration(text)?));
    };
    let mut words = rest.split_whitespace();
    let spread = duration(words.next().unwrap_or_default())?;
    let mut jitter = Jitter { mean: duration(mean)?, spread, shape: Shape::Uniform, keeps_order: true };
    for word in words {
        match word {
            "uniform" => jitter.shape = Shape::Uniform,
            "normal" => jitter.shape = Shape::Normal,
            "pareto" => jitter.shape = Shape::Pareto,
            "reorder" => jitter.keeps_order = false,
            _ => {
                return Err(format!(
                    "{word:?} is unknown; after the spread come uniform, normal or pareto, and reorder for packets \
                     that overtake one another"
                ));
            }
        }
    }
    Ok(Latency::Jitter(jitter))
}

const LATENCY_MAX: Duration = Duration::from_secs(3600);

/// Parses a latency trace: each line has a time and the latency from then on, both in milliseconds, possibly
/// fractional; the first time is 0, and the last line has only a time, at which the trace repeats.
fn latency_trace(text: &str) -> Result<Latency, String> {
    let mut steps: Vec<(Duration, Duration)> = Vec::new();
    let mut period = None;
    for (number, line) in lines(text) {
        let wrong = |what: &str| format!("line {number}: {what}");
        let mut figures = line.split_whitespace().map(|figure| {
            let ms = figure.parse().ok().filter(|ms: &f64| (0.0..1e12).contains(ms));
            ms.map(|ms| Duration::from_secs_f64(ms / 1e3))
                .ok_or_else(|| wrong(&format!("invalid time {figure:?}, in ms")))
        });
        if period.is_some() {
            return Err(wrong("only the last line may have a single time"));
        }
        let at = figures.next().expect("the line is not empty")?;
        let is_next = steps.last().map_or(at.is_zero(), |(last, _)| *last < at);
        if !is_next {
            return Err(wrong("times must begin at 0 and ascend"));
        }
        match figures.next() {
            Some(latency) => steps.push((at, latency?)),
            None => period = Some(at),
        }
    }
    match (steps.is_empty(), period) {
        (false, Some(period)) => Ok(Latency::Trace(LatencyTrace { steps: steps.into(), period })),
        (true, _) => Err("it has no latency; write `0 50` and `1000` for a constant 50 ms".to_owned()),
        (false, None) => Err("its last line must have only a time, at which the trace repeats".to_owned()),
    }
}

/// `10mbit`, `unlimited`, or `trace:FILE` in the format of mahimahi.
///
/// # Errors
/// When the text is invalid; the error says what to write instead.
pub fn bandwidth(text: &str, files: ReadFile<'_>) -> Result<Bandwidth, String> {
    if let Some(file) = text.strip_prefix("trace:") {
        return bandwidth_trace(&files(file)?).map_err(|error| format!("{file}: {error}"));
    }
    if text == "unlimited" {
        return Ok(Bandwidth::Unlimited);
    }
    let rate: BitsPerSecond = text.parse().map_err(|error| format!("{text:?} is {error}"))?;
    if rate.0 == 0 {
        return Err("a rate of 0 never sends; for a dead path set the loss to 100%".to_owned());
    }
    Ok(Bandwidth::Fixed(rate))
}

fn bandwidth_trace(text: &str) -> Result<Bandwidth, String> {
    let mut opportunities: Vec<u64> = Vec::new();
    for (number, line) in lines(text) {
        let ms = line.trim().parse().map_err(|_| format!("line {number}: {line:?} is not a whole number of ms"))?;
        if opportunities.last().is_some_and(|last| *last > ms) {
            return Err(format!("line {number}: times must ascend"));
        }
        opportunities.push(ms);
    }
    match opportunities.last() {
        None => Err("it is empty; a trace has one time per line, in ms".to_owned()),
        Some(0) => Err("its last time is 0, so it has no length".to_owned()),
        Some(_) => Ok(Bandwidth::Trace(BandwidthTrace { opportunities_ms: opportunities.into() })),
    }
}

/// `1%`, `0.01`, `gilbert:TO_BAD,TO_GOOD[,LOST_IN_BAD[,LOST_IN_GOOD]]`, `pattern:...x`, or `trace:FILE`.
///
/// # Errors
/// When the text is invalid; the error says what to write instead.
pub fn loss(text: &str, files: ReadFile<'_>) -> Result<Loss, String> {
    if let Some(file) = text.strip_prefix("trace:") {
        return pattern(&files(file)?).map_err(|error| format!("{file}: {error}"));
    }
    if let Some(text) = text.strip_prefix("pattern:") {
        return pattern(text);
    }
    if let Some(list) = text.strip_prefix("gilbert:") {
        let figures: Vec<f64> = list.split(',').map(share).collect::<Result<_, _>>()?;
        let (&[to_bad, to_good], more @ ([] | [_] | [_, _])) = figures.split_first_chunk::<2>().ok_or_else(gilbert)?
        else {
            return Err(gilbert());
        };
        let lost_in_bad = more.first().copied().unwrap_or(1.0);
        let lost_in_good = more.get(1).copied().unwrap_or(0.0);
        return Ok(Loss::GilbertElliott(GilbertElliott { to_bad, to_good, lost_in_bad, lost_in_good }));
    }
    Ok(match share(text)? {
        0.0 => Loss::None,
        probability => Loss::Bernoulli(probability),
    })
}

fn gilbert() -> String {
    "write gilbert:TO_BAD,TO_GOOD[,LOST_IN_BAD[,LOST_IN_GOOD]], for example gilbert:0.5%,25%".to_owned()
}

/// Parses a share: `1%` or `0.01`.
fn share(text: &str) -> Result<f64, String> {
    let (number, scale) = text.trim().strip_suffix('%').map_or((text.trim(), 1.0), |number| (number, 100.0));
    let share = number.parse::<f64>().ok().map(|number| number / scale).filter(|share| (0.0..=1.0).contains(share));
    share.ok_or_else(|| format!("invalid share of packets {text:?}; write, for example, 1%, 0.5% or 0.01"))
}

/// Parses a pattern, one character per packet: `x` or `1` is lost, `.` or `0` is not; white space is ignored.
fn pattern(text: &str) -> Result<Loss, String> {
    let packets = text.chars().filter(|c| !c.is_whitespace()).map(|c| match c {
        'x' | '1' => Ok(true),
        '.' | '0' => Ok(false),
        other => Err(format!("{other:?} is unknown; a lost packet is x or 1, any other . or 0")),
    });
    let packets: Vec<bool> = packets.collect::<Result<_, _>>()?;
    if packets.is_empty() {
        return Err("it has no packets; write x for a lost packet and a dot for any other".to_owned());
    }
    Ok(Loss::Pattern(packets.into()))
}

/// A limit (`100` packets, `64KiB`, `unlimited`), or `codel[:TARGET,INTERVAL]`, optionally followed by a space and a limit.
///
/// # Errors
/// When the text is invalid; the error says what to write instead.
pub fn queue(text: &str, bandwidth: &Bandwidth) -> Result<QueueSettings, String> {
    let help = || {
        format!(
            "invalid queue {text:?}; write a limit (100 for packets, 64KiB for bytes, unlimited), codel or \
             codel:5ms,100ms, and optionally a limit: codel 1000"
        )
    };
    let (discipline, limit) = match text.split_once(' ') {
        Some((discipline, limit)) => (discipline, Some(limit.trim())),
        None if text.starts_with(|c: char| c.is_ascii_digit()) || text == "unlimited" => ("droptail", Some(text)),
        None => (text, None),
    };
    let (name, figures) = discipline.split_once(':').unwrap_or((discipline, ""));
    let figures: Vec<&str> = figures.split(',').filter(|figure| !figure.is_empty()).collect();
    let duration = |text: &str| parse_duration(text).map_err(|_| help());
    let bytes = |text: &str| text.parse::<Bytes>().map_err(|_| help());
    let discipline = match (name, figures.as_slice()) {
        ("droptail", []) => Discipline::DropTail,
        ("codel", []) => Discipline::CoDel(CoDel::default()),
        ("codel", [target, interval]) => {
            let codel = CoDel { target: duration(target)?, interval: duration(interval)? };
            if codel.target.is_zero() || codel.target >= codel.interval {
                return Err(format!("{text:?}: CoDel's target must be above 0 and below its interval (RFC 8289, 4.3)"));
            }
            Discipline::CoDel(codel)
        }
        _ => return Err(help()),
    };
    let limit = match limit {
        None => match discipline {
            // CoDel bounds the time in the queue, so the limit only stops floods.
            Discipline::CoDel(_) => Limit::Packets(10_000),
            Discipline::DropTail => default_queue(bandwidth).limit,
        },
        Some("unlimited") => Limit::Unlimited,
        Some(number) => match number.parse() {
            Ok(packets) => Limit::Packets(packets),
            Err(_) => Limit::Bytes(bytes(number)?),
        },
    };
    Ok(QueueSettings { limit, discipline })
}

fn lines(text: &str) -> impl Iterator<Item = (usize, &str)> {
    text.lines().enumerate().map(|(index, line)| (index + 1, line)).filter(|(_, line)| !line.trim().is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn no_files(name: &str) -> Result<String, String> {
        Err(format!("no file {name}"))
    }

    fn file(text: &'static str) -> impl Fn(&str) -> Result<String, String> {
        move |_| Ok(text.to_owned())
    }

    fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    #[test]
    fn valid_latencies_parse_and_invalid_ones_fail() {
        let check = |text: &str, expected: Latency| assert_eq!(latency(text, &no_files), Ok(expected), "{text}");
        let jitter = Jitter { mean: ms(50), spread: ms(10), shape: Shape::Uniform, keeps_order: true };
        check("50ms", Latency::Fixed(ms(50)));
        check("0", Latency::Fixed(Duration::ZERO));
        check("50ms±10ms", Latency::Jitter(jitter.clone()));
        check("50ms +-10ms normal", Latency::Jitter(Jitter { shape: Shape::Normal, ..jitter.clone() }));
        let overtaking = Jitter { shape: Shape::Pareto, keeps_order: false, ..jitter };
        check("50ms ± 10ms pareto reorder", Latency::Jitter(overtaking));
        for (bad, says) in
            [("50", "50ms"), ("50ms±", "50ms"), ("50ms±5ms gauss", "normal"), ("trace:x", "no file x"), ("2h", "hour")]
        {
            let error = latency(bad, &no_files).expect_err(bad);
            assert!(error.contains(says), "{bad}: {error}");
        }
        let trace = LatencyTrace { steps: [(ms(0), ms(20)), (ms(100), ms(30))].into(), period: ms(250) };
        assert_eq!(latency("trace:x", &file("0 20\n100 30\n\n250\n")), Ok(Latency::Trace(trace)));
        for bad in ["", "0 20", "5 20\n10", "0 20\n0 30\n10", "0 x\n1", "10\n0 20", "0 -1\n5", "0 inf\n5"] {
            latency_trace(bad).expect_err(bad);
        }
    }

    #[test]
    fn valid_bandwidths_parse_and_invalid_ones_fail() {
        assert_eq!(bandwidth("10mbit", &no_files), Ok(Bandwidth::Fixed(BitsPerSecond(10_000_000))));
        assert_eq!(bandwidth("unlimited", &no_files), Ok(Bandwidth::Unlimited));
        bandwidth("0bit", &no_files).expect_err("nothing leaves");
        bandwidth("10", &no_files).expect_err("no unit");
        let trace = BandwidthTrace { opportunities_ms: [0, 1, 1, 5].into() };
        assert_eq!(bandwidth("trace:x", &file("0\n1\n1\n5\n")), Ok(Bandwidth::Trace(trace)));
        for bad in ["", "0", "5\n4", "1.5", "-1"] {
            bandwidth_trace(bad).expect_err(bad);
        }
    }

    #[test]
    fn valid_losses_parse_and_invalid_ones_fail() {
        let check = |text: &str, expected: Loss| assert_eq!(loss(text, &no_files), Ok(expected), "{text}");
        check("1%", Loss::Bernoulli(0.01));
        check("0.25", Loss::Bernoulli(0.25));
        check("0", Loss::None);
        let wire = GilbertElliott { to_bad: 0.005, to_good: 0.25, lost_in_bad: 1.0, lost_in_good: 0.0 };
        check("gilbert:0.5%,25%", Loss::GilbertElliott(wire));
        let wire = GilbertElliott { lost_in_bad: 0.8, lost_in_good: 0.001, ..wire };
        check("gilbert:0.5%,25%,80%,0.1%", Loss::GilbertElliott(wire));
        check("pattern:..x", Loss::Pattern([false, false, true].into()));
        assert_eq!(loss("trace:x", &file("0 1\n0\n")), Ok(Loss::Pattern([false, true, false].into())));
        for bad in ["", "101%", "-1%", "x", "NaN", "gilbert:1%", "gilbert:1,1,1,1,1", "pattern:", "pattern:a"] {
            loss(bad, &no_files).expect_err(bad);
        }
    }

    #[test]
    fn valid_queues_parse_and_invalid_ones_fail() {
        let slow = Bandwidth::Fixed(BitsPerSecond(56_000));
        let check = |text: &str, limit: Limit, discipline: Discipline| {
            assert_eq!(queue(text, &slow), Ok(QueueSettings { limit, discipline }), "{text}");
        };
        let codel = CoDel { target: ms(10), interval: ms(200) };
        check("100", Limit::Packets(100), Discipline::DropTail);
        check("64KiB", Limit::Bytes(Bytes::kib(64)), Discipline::DropTail);
        check("unlimited", Limit::Unlimited, Discipline::DropTail);
        check("droptail", Limit::Bytes(Bytes(30_000)), Discipline::DropTail);
        check("codel", Limit::Packets(10_000), Discipline::CoDel(CoDel::default()));
        check("codel:10ms,200ms 50", Limit::Packets(50), Discipline::CoDel(codel));
        for bad in ["", "many", "codel:5ms", "red:30KB,90KB", "100 100 100", "codel:x,y"] {
            queue(bad, &slow).expect_err(bad);
        }
    }

    #[test]
    fn default_queue_depends_on_bandwidth() {
        let mut link = plain_link();
        let texts = LinkTexts { bandwidth: Some("100mbit".to_owned()), ..LinkTexts::default() };
        texts.apply(&mut link, &no_files).expect("right");
        assert_eq!(link.queue.limit, Limit::Bytes(Bytes(1_250_000)));
        let texts = LinkTexts { loss: Some("all".to_owned()), ..LinkTexts::default() };
        let error = texts.apply(&mut link, &no_files).expect_err("wrong");
        assert!(error.starts_with("loss: "), "{error}");
    }

    proptest! {
        #[test]
        fn random_text_does_not_panic(text in "\\PC{0,40}", start in "(trace:|gilbert:|pattern:|codel:|)") {
            let text = format!("{start}{text}");
            let files = |_: &str| Ok(text.clone());
            let _ = latency(&text, &files);
            let _ = loss(&text, &files);
            if let Ok(bandwidth) = bandwidth(&text, &files) {
                let _ = queue(&text, &bandwidth);
            }
            let _ = queue(&text, &Bandwidth::Unlimited);
        }
    }
}
