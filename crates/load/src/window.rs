//! The measured window of a run: the offered and completed load within it, and the backlog at the end.
//!
//! The window is the time in which the schedule opens connections, or closed-loop clients send requests; the drain is
//! the time from its end to the end of the last connection. A reply during the drain is correct and has a latency, but
//! does not count as completed: 8,000 replies that take a server 20 s are 400/s, even if they were requested within 10
//! s. [`Window`] is the only definition of these figures; everything that reports a throughput reads it.
//!
//! The backlog is the number of open connections. It is sampled over the window ([`Course`]) to distinguish a server
//! that falls behind from one that is slow or has received a burst: see [`Course::grows`].

use std::time::Duration;

use amped_units::Time;
use serde::{Deserialize, Serialize};

/// The figures of one second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Second {
    /// Start, in seconds from the start of the run.
    pub at_s: f64,
    /// Length in seconds: the last second of a window or of a run may be shorter.
    pub length_s: f64,
    /// Connections started.
    pub started: u64,
    /// Connections ended.
    pub ended: u64,
    /// Connections still open at the end.
    pub backlog: u64,
    /// Correct replies.
    pub ok: u64,
    /// Failures.
    pub failed: u64,
    /// Bytes received, including heads.
    pub received_bytes: u64,
    /// The median latency of the correct replies, in milliseconds.
    pub p50_ms: f64,
    /// The 90th percentile.
    pub p90_ms: f64,
    /// The 99th percentile.
    pub p99_ms: f64,
    /// The maximum.
    pub max_ms: f64,
    /// The 99th percentile of the generator's lateness, in milliseconds.
    pub lateness_p99_ms: f64,
}

impl Second {
    /// This count as a rate, corrected for a second that was cut.
    pub fn rate(&self, count: u64) -> f64 {
        count as f64 / self.length_s.max(1e-9)
    }
}

/// The figures of the measured window, and of the drain after it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Window {
    /// Its length in seconds.
    pub seconds: f64,
    /// Connections started within it.
    pub offered: u64,
    /// Connections started within it, per second.
    pub offered_rate: f64,
    /// Correct replies whose last byte arrived within it.
    pub completed: u64,
    /// Correct replies within it, per second: the throughput of the run.
    pub completed_rate: f64,
    /// Requests per connection; `None` in a closed loop.
    pub requests_per_connection: Option<u64>,
    /// Completed replies per offered request, from 0 to 1; `None` in a closed loop, which has no offered load.
    pub completed_share: Option<f64>,
    /// Connections and requests that failed within it.
    pub failed: u64,
    /// Bytes received within it, including heads.
    pub received_bytes: u64,
    /// Connections still open at the end.
    pub backlog: u64,
    /// Growth rate of the backlog over the window, in connections per second: from the mean of its first third to that
    /// of its last. `None` in a closed loop, whose backlog is bounded by the number of clients.
    pub backlog_growth_rate: Option<f64>,
    /// Time from the end of the window to the end of the last connection, in seconds; 0 if all ended before.
    pub drain_s: f64,
    /// Correct replies during the drain.
    pub drain_completed: u64,
    /// Connections and requests that failed during the drain.
    pub drain_failed: u64,
    /// Whether the server kept pace with the load.
    pub pace: Pace,
}

/// Whether a server kept pace with an open loop.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Pace {
    /// No pace to keep: a closed loop.
    #[default]
    None,
    /// The backlog did not grow over the window, and at most 1 % of the requests were not served.
    Kept,
    /// The backlog grew over the window.
    FellBehind,
    /// The backlog did not grow, but more than 1 % were not served: their connection was refused, was not established in
    /// time or ended early, or they were answered incorrectly.
    Failed,
}

/// Maximum share of requests that are not served in a run whose server kept pace.
pub const UNSERVED_MAX: f64 = 0.01;

/// The inputs of a window besides its seconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ran<'a> {
    /// Its length in seconds.
    pub(crate) seconds: f64,
    /// Time from the start of the run to the end of the last connection, in seconds.
    pub(crate) ended_s: f64,
    /// Requests per connection; `None` in a closed loop.
    pub(crate) requests: Option<u64>,
    /// Requests that were not served, as a share of all.
    pub(crate) unserved_share: f64,
    /// The backlog over the window.
    pub(crate) course: &'a Course,
}

impl Window {
    /// Computes the window from the seconds of a run, one of which ends with the window.
    pub(crate) fn of(series: &[Second], ran: Ran<'_>) -> Window {
        let Ran { seconds, ended_s, requests, unserved_share, course } = ran;
        let sum = |is_within: bool, of: fn(&Second) -> u64| {
            // Seconds are cut at the end of the window; half a
            // microsecond allows for the rounding of a sum of fractions.
            let chosen = series.iter().filter(move |second| (second.at_s < seconds - 5e-7) == is_within);
            // Numbers from another machine may be arbitrary.
            chosen.map(of).fold(0, u64::saturating_add)
        };
        let per_second = |count: u64| (count as f64 / seconds.max(1e-9) * 100.0).round() / 100.0;
        let (offered, over) = (sum(true, |second| second.started), sum(true, |second| second.ended));
        let (completed, failed) = (sum(true, |second| second.ok), sum(true, |second| second.failed));
        Window {
            seconds,
            offered,
            offered_rate: per_second(offered),
            completed,
            completed_rate: per_second(completed),
            requests_per_connection: requests,
            completed_share: requests
                .map(|requests| completed as f64 / (offered.max(1) as f64 * requests.max(1) as f64)),
            failed,
            received_bytes: sum(true, |second| second.received_bytes),
            backlog: offered.saturating_sub(over),
            backlog_growth_rate: requests.map(|_| course.growth_rate()),
            drain_s: (ended_s - seconds).max(0.0),
            drain_completed: sum(false, |second| second.ok),
            drain_failed: sum(false, |second| second.failed),
            pace: match requests {
                None => Pace::None,
                Some(requests) if course.grows(requests) => Pace::FellBehind,
                Some(_) if unserved_share > UNSERVED_MAX => Pace::Failed,
                Some(_) => Pace::Kept,
            },
        }
    }

    /// This count within the window, per second.
    pub fn rate(&self, count: u64) -> f64 {
        count as f64 / self.seconds.max(1e-9)
    }

    /// Received data, in 10^6 bytes per second.
    pub fn received_mb_per_s(&self) -> f64 {
        self.rate(self.received_bytes) / 1e6
    }
}

/// Number of bins of a window.
const BINS: usize = 100;

/// The course of a run over its window, in bins of equal length: when
/// connections started and ended, and how long established ones stayed open.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Course {
    #[serde(skip)]
    start: Time,
    /// The length of a bin, in nanoseconds.
    bin_ns: u64,
    bins: Vec<Bin>,
}

/// A bin of a window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
struct Bin {
    /// Connections that started within the bin.
    begun: u64,
    /// Connections that ended within it.
    ended: u64,
    /// Correct replies that were completed within it.
    completed: u64,
    /// Connections that were planned within it, were established, and have ended.
    stayed: u64,
    /// Their times from the scheduled start to the end: the sum, in seconds, and the sum of squares.
    stay_s: f64,
    stay_s2: f64,
}

impl Course {
    /// An empty course of a window that begins at `start`.
    pub(crate) fn new(start: Time, window: Duration) -> Course {
        let bin_ns = u64::try_from(window.as_nanos()).unwrap_or(u64::MAX).div_ceil(BINS as u64).max(1);
        Course { start, bin_ns, bins: vec![Bin::default(); BINS] }
    }

    fn bin(&mut self, at: Time) -> Option<&mut Bin> {
        let from_start = at.as_nanos().checked_sub(self.start.as_nanos())?;
        self.bins.get_mut(usize::try_from(from_start / self.bin_ns.max(1)).ok()?)
    }

    /// Counts a connection that began.
    pub(crate) fn begun(&mut self, now: Time) {
        self.bin(now).into_iter().for_each(|bin| bin.begun += 1);
    }

    /// Counts a correct reply.
    pub(crate) fn completed(&mut self, now: Time) {
        self.bin(now).into_iter().for_each(|bin| bin.completed += 1);
    }

    /// Counts the end of an established connection.
    pub(crate) fn stayed(&mut self, planned: Time, now: Time) {
        let stay_s = (now - planned).as_secs_f64();
        if let Some(bin) = self.bin(planned) {
            (bin.stayed, bin.stay_s, bin.stay_s2) =
                (bin.stayed + 1, bin.stay_s + stay_s, bin.stay_s2 + stay_s * stay_s);
        }
    }

    /// Counts the end of a connection, established or not.
    pub(crate) fn ended(&mut self, now: Time) {
        self.bin(now).into_iter().for_each(|bin| bin.ended += 1);
    }

    /// Adds another course of the same window.
    pub(crate) fn add(&mut self, other: &Course) {
        if self.bins.is_empty() {
            return self.clone_from(other);
        }
        for (mine, theirs) in self.bins.iter_mut().zip(&other.bins) {
            mine.begun = mine.begun.saturating_add(theirs.begun);
            mine.ended = mine.ended.saturating_add(theirs.ended);
            mine.completed = mine.completed.saturating_add(theirs.completed);
            mine.stayed = mine.stayed.saturating_add(theirs.stayed);
            mine.stay_s += theirs.stay_s;
            mine.stay_s2 += theirs.stay_s2;
        }
    }

    /// Drops everything after an interrupt; `seconds` is where the window ended.
    pub(crate) fn cut(&mut self, seconds: f64) {
        self.bins.truncate((seconds * 1e9 / self.bin_ns.max(1) as f64).round() as usize);
    }

    /// The backlog at the end of each bin.
    fn levels(&self) -> Vec<f64> {
        let mut level = 0.0;
        let next = |bin: &Bin| {
            level += bin.begun as f64 - bin.ended as f64;
            level
        };
        self.bins.iter().map(next).collect()
    }

    /// Growth rate in connections per second, from the mean of the first third to that of the last.
    fn growth_rate(&self) -> f64 {
        let levels = self.levels();
        let third = levels.len() / 3;
        if third == 0 {
            return 0.0;
        }
        let apart_s = (levels.len() - third) as f64 * self.bin_ns as f64 / 1e9;
        let rate = (mean(&levels[levels.len() - third..]) - mean(&levels[..third])) / apart_s.max(1e-9);
        (rate * 100.0).round() / 100.0
    }

    /// Whether the backlog grew over the window because the server completes less than is offered, with `requests`
    /// requests per connection. Three conditions must hold:
    ///
    /// - In the second half the backlog was never low. A server below its capacity works off a burst, or a random excess of
    ///   arrivals: its backlog comes down again and again.
    /// - At the pace of that half, in which it was never idle, it would have completed less than was offered in the whole
    ///   window. That excludes a burst in the middle that it is still working off.
    /// - Connections planned in the last third stayed open longer than those of the first. That distinguishes a queue from
    ///   a server that takes a second for each request, whose backlog rises for a second and then stays.
    ///
    /// Each difference must exceed chance: half a standard deviation of the number of arrivals of a Poisson process,
    /// and at least 1 % of them. The tests show how many arrivals that takes.
    pub(crate) fn grows(&self, requests: u64) -> bool {
        /// With fewer bins there is little to compare.
        const BINS_MIN: usize = 12;
        /// In connections.
        const LEAST: f64 = 3.0;
        let (levels, n) = (self.levels(), self.bins.len());
        if n < BINS_MIN {
            return false;
        }
        let arrivals: f64 = self.bins.iter().map(|bin| bin.begun as f64).sum();
        let chance = LEAST.max(0.5 * arrivals.sqrt()).max(0.01 * arrivals);
        let lowest = levels[n / 2..].iter().copied().fold(f64::INFINITY, f64::min);
        let second_half = &self.bins[n / 2..];
        let completed: f64 = second_half.iter().map(|bin| bin.completed as f64).sum();
        let capacity = completed / requests.max(1) as f64 / second_half.len() as f64 * n as f64;
        if lowest < chance || arrivals - capacity < chance {
            return false;
        }
        let (first, last) = (Stay::of(&self.bins[..n / 3]), Stay::of(&self.bins[n - n / 3..]));
        match (first.count > 0.0, last.count > 0.0) {
            (true, true) => {
                let longer_s = last.mean_s - first.mean_s;
                let error_s = (first.variance / first.count + last.variance / last.count).sqrt();
                let entered_rate = (first.count + last.count) / (2 * (n / 3)) as f64 / (self.bin_ns as f64 / 1e9);
                longer_s > 3.0 * error_s && longer_s * entered_rate >= chance
            }
            // No connection of the last third has ended.
            (true, false) => true,
            (false, _) => false,
        }
    }
}

/// How long connections stayed.
struct Stay {
    count: f64,
    mean_s: f64,
    variance: f64,
}

impl Stay {
    fn of(bins: &[Bin]) -> Stay {
        let sum = |of: fn(&Bin) -> f64| bins.iter().map(of).sum::<f64>();
        let count = sum(|bin| bin.stayed as f64);
        let mean_s = sum(|bin| bin.stay_s) / count.max(1.0);
        Stay { count, mean_s, variance: (sum(|bin| bin.stay_s2) / count.max(1.0) - mean_s * mean_s).max(0.0) }
    }
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule::{Arrivals, Schedule};
    use std::cmp::Reverse;
    use std::collections::BinaryHeap;

    const S: f64 = 1e9;

    /// A server in simulated time.
    trait Server {
        /// Answers a connection planned for `at_ns`: when it ends, whether
        /// it was established, and `false` if the reply is a failure.
        fn answer(&mut self, at_ns: u64) -> (u64, bool, bool);
    }

    /// One connection at a time, in order of arrival, with a fixed service time. A
    /// connection that would wait longer than `patience_ns` fails then, and is served
    /// nevertheless, by a server that does not notice that its client has disconnected.
    struct Fifo {
        service_ns: u64,
        free_ns: u64,
        patience_ns: u64,
    }

    impl Fifo {
        fn of(capacity: f64) -> Fifo {
            Fifo { service_ns: (S / capacity) as u64, free_ns: 0, patience_ns: u64::MAX }
        }
    }

    impl Server for Fifo {
        fn answer(&mut self, at_ns: u64) -> (u64, bool, bool) {
            self.free_ns = self.free_ns.max(at_ns) + self.service_ns;
            let given_up_ns = at_ns.saturating_add(self.patience_ns);
            (self.free_ns.min(given_up_ns), true, self.free_ns <= given_up_ns)
        }
    }

    /// The same with a bounded queue; further connections are not established, and time out after half a second.
    struct Bounded {
        server: Fifo,
        room: usize,
        waiting: BinaryHeap<Reverse<u64>>,
    }

    impl Server for Bounded {
        fn answer(&mut self, at_ns: u64) -> (u64, bool, bool) {
            while self.waiting.peek().is_some_and(|Reverse(end)| *end <= at_ns) {
                self.waiting.pop();
            }
            if self.waiting.len() >= self.room {
                return (at_ns + 500_000_000, false, false);
            }
            let served = self.server.answer(at_ns);
            self.waiting.push(Reverse(self.server.free_ns));
            served
        }
    }

    /// All connections at once, each with a delay that is a function of its number.
    struct Delay<F>(u64, F);

    impl<F: Fn(u64) -> f64> Server for Delay<F> {
        fn answer(&mut self, at_ns: u64) -> (u64, bool, bool) {
            self.0 += 1;
            (at_ns + (self.1(self.0) * S) as u64, true, true)
        }
    }

    /// Runs an open loop against the server, counted as the drive counts it.
    fn play(schedule: &Schedule, server: &mut dyn Server) -> Window {
        let window = schedule.duration();
        let mut course = Course::new(Time::START, window);
        let places: Vec<(Duration, Duration)> =
            (0..1000).map(|number| crate::drive::second_at(number, window)).collect();
        let mut series: Vec<Second> = places
            .iter()
            .map(|(at, length)| Second { at_s: at.as_secs_f64(), length_s: length.as_secs_f64(), ..Second::default() })
            .collect();
        let place = |ns: u64| places.partition_point(|(at, _)| at.as_nanos() as u64 <= ns) - 1;
        let mut last = 0;
        for at_ns in schedule.at_ns() {
            let (end_ns, established, ok) = server.answer(*at_ns);
            let (planned, end) = (Time::from_nanos(*at_ns), Time::from_nanos(end_ns));
            course.begun(planned);
            course.ended(end);
            if established {
                course.stayed(planned, end);
            }
            if ok {
                course.completed(end);
            }
            series[place(*at_ns)].started += 1;
            let second = &mut series[place(end_ns)];
            second.ended += 1;
            (second.ok, second.failed) = (second.ok + u64::from(ok), second.failed + u64::from(!ok));
            last = last.max(end_ns);
        }
        let failed: u64 = series.iter().map(|second| second.failed).sum();
        let unserved_share = failed as f64 / schedule.at_ns().len() as f64;
        let (seconds, ended_s) = (window.as_secs_f64(), last as f64 / S);
        let ran = Ran { seconds, ended_s, requests: Some(1), unserved_share, course: &course };
        Window::of(&series, ran)
    }

    fn schedule(arrivals: &str, rate: f64, seconds: f64, seed: u64) -> Schedule {
        Schedule::new(&arrivals.parse::<Arrivals>().unwrap(), rate, Duration::from_secs_f64(seconds), seed).unwrap()
    }

    /// 400/s by a fixed service time of 2.5 ms, with requests at constant gaps: the arithmetic is exact.
    #[test]
    fn planted_capacity_is_exact_in_window_and_drain() {
        let loads = [(200.0, 10.0), (360.0, 10.0), (440.0, 10.0), (800.0, 10.0), (800.0, 2.5), (6400.0, 10.0)];
        for (rate, seconds) in loads {
            let found = play(&schedule("constant", rate, seconds, 1), &mut Fifo::of(400.0));
            let planned = (rate * seconds) as u64;
            // The last reply of an overloaded server comes at the very end, which is outside the window.
            let completed = if rate < 400.0 { planned } else { (400.0 * seconds) as u64 - 1 };
            assert_eq!((found.offered, found.completed), (planned, completed), "{found:?}");
            assert_eq!(found.completed_rate, completed as f64 / seconds, "{found:?}");
            assert_eq!((found.backlog, found.drain_completed), (planned - completed, planned - completed), "{found:?}");
            let drain_s = (planned - completed) as f64 / 400.0;
            assert!((found.drain_s - drain_s).abs() < 0.005, "{found:?}, not {drain_s} s");
            let pace = if rate < 400.0 { Pace::Kept } else { Pace::FellBehind };
            assert_eq!(found.pace, pace, "{rate}: {found:?}");
            if rate > 400.0 {
                let growth = found.backlog_growth_rate.unwrap();
                assert!((growth / (rate - 400.0) - 1.0).abs() < 0.02, "{found:?}");
            }
        }
    }

    /// The verdict on a server of 400/s depends on the load within the window, not on its shape: of a run in the middle
    /// of a burst that load may be twice the mean.
    #[test]
    fn overload_depends_on_load_and_not_on_arrival_process() {
        let arrivals = ["poisson", "constant", "bursty:6,5%,200ms", "bursty:2,25%,1s", "self-similar:0.8"];
        for arrivals in arrivals {
            let (mut below, mut wrongly, mut above, mut missed) = (0, 0, 0, 0);
            let runs =
                [(200.0, 2.0), (360.0, 1.0), (360.0, 2.0), (360.0, 10.0), (440.0, 2.0), (440.0, 10.0), (800.0, 2.0)];
            for ((rate, seconds), seed) in runs.into_iter().flat_map(|run| (0..10).map(move |seed| (run, seed))) {
                let schedule = schedule(arrivals, rate, seconds, seed);
                let fell_behind = play(&schedule, &mut Fifo::of(400.0)).pace == Pace::FellBehind;
                match schedule.rate() / 400.0 {
                    ..0.95 => (below, wrongly) = (below + 1, wrongly + usize::from(fell_behind)),
                    1.08.. => (above, missed) = (above + 1, missed + usize::from(!fell_behind)),
                    _ => {}
                }
            }
            assert!(below >= 20 && above >= 20, "{arrivals}: {below} below, {above} above");
            assert!(wrongly == 0 && missed * 10 <= above, "{arrivals}: {wrongly} of {below}, {missed} of {above}");
        }
    }

    /// A slow server has a backlog from the first second on, but does not fall behind.
    #[test]
    fn constant_delay_is_not_overload() {
        for seed in 0..20 {
            let check = |rate: f64, seconds: f64, server: &mut dyn Server| {
                let found = play(&schedule("poisson", rate, seconds, seed), server);
                assert_eq!(found.pace, Pace::Kept, "{found:?}");
                found
            };
            let found = check(50.0, 2.0, &mut Delay(0, |_| 1.0));
            assert!(found.completed < found.offered && found.backlog > 20, "{found:?}");
            check(1000.0, 4.0, &mut Delay(0, |_| 1.0));
            check(50.0, 2.0, &mut Delay(0, |number| if number % 4 == 0 { 4.0 } else { 1.0 }));
            // No reply comes within the window.
            check(50.0, 2.0, &mut Delay(0, |_| 3.0));
        }
    }

    /// Some requests may wait for something slow while the rest is answered at once.
    #[test]
    fn short_queue_is_detected_among_fast_requests() {
        struct Mixed(u64, Fifo);
        impl Server for Mixed {
            fn answer(&mut self, at_ns: u64) -> (u64, bool, bool) {
                self.0 += 1;
                if self.0.is_multiple_of(10) { self.1.answer(at_ns) } else { (at_ns + 1_000_000, true, true) }
            }
        }
        let run =
            |slow_capacity| play(&schedule("poisson", 1000.0, 5.0, 1), &mut Mixed(0, Fifo::of(slow_capacity))).pace;
        assert_eq!((run(120.0), run(70.0)), (Pace::Kept, Pace::FellBehind));
    }

    /// An overloaded server queues everything, queues up to the
    /// clients' patience or its own limit, or refuses the rest.
    #[test]
    fn shedding_is_distinguished_from_queueing() {
        let bounded = |room| Bounded { server: Fifo::of(400.0), room, waiting: BinaryHeap::new() };
        for rate in [440.0, 800.0, 6400.0] {
            let of = |server: &mut dyn Server| play(&schedule("poisson", rate, 10.0, 3), server);
            let short = of(&mut bounded(32));
            assert!(short.pace == Pace::Failed && short.failed > 100, "{short:?}");
            assert!((short.completed_rate / 400.0 - 1.0).abs() < 0.02, "{short:?}");
            // Room for ten seconds' work.
            let long = of(&mut bounded(4000));
            assert_eq!(long.pace, Pace::FellBehind, "{long:?}");
            let patient = of(&mut Fifo { patience_ns: 2_000_000_000, ..Fifo::of(400.0) });
            // At sixteen times the capacity no reply is correct after
            // an eighth of a second, and then nothing gets worse.
            let expected = if rate == 6400.0 { Pace::Failed } else { Pace::FellBehind };
            assert_eq!(patient.pace, expected, "{patient:?}");
        }
    }

    #[test]
    fn random_series_do_not_panic() {
        let mut course = Course::new(Time::from_millis(7), Duration::from_nanos(3));
        course.begun(Time::START);
        course.stayed(Time::from_millis(7), Time::from_millis(7));
        let none = Course::default();
        for course in [&course, &none] {
            let found =
                Window::of(&[], Ran { seconds: 0.0, ended_s: 0.0, requests: Some(0), unserved_share: 0.0, course });
            assert_eq!((found.offered, found.completed_rate, found.pace), (0, 0.0, Pace::Kept));
        }
    }
}
