//! The result of a run ([`Outcome`]), with its verdict.

use std::array;
use std::collections::BTreeMap;

use amped_measure::host::Machine;
use amped_measure::others::Others;
use amped_measure::{Validity, Verdict};
use amped_units::Time;
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use crate::drive::parked::Parked;
use crate::handshake::{Handshakes, SessionCounts};
use crate::schedule::Shape;
use crate::tally::{Class, Clocks, Distribution, Fault, STATUS_MIN, STATUSES, Spread, Tally, Used};
use crate::window::{self, Course, Second, Window};

/// The load that was requested.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Loop {
    /// Connections start at scheduled times, whatever the server does.
    Open {
        /// The arrival process, as typed.
        arrivals: String,
        /// Requested connections per second.
        rate: f64,
        /// Seed of the schedule.
        seed: u64,
        /// Burstiness of the schedule, measured.
        shape: Shape,
    },
    /// Each client waits for its reply before its next request. The server sets the pace, and requests that would have
    /// arrived during a stall do not see it.
    Closed {
        /// Number of clients.
        clients: usize,
        /// Pause of a client between a reply and its next request, in milliseconds.
        think_ms: f64,
    },
}

impl Default for Loop {
    fn default() -> Loop {
        Loop::Closed { clients: 0, think_ms: 0.0 }
    }
}

/// The results of one class of requests.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ClassOutcome {
    /// Its name.
    pub class: String,
    /// Correct replies.
    pub ok: u64,
    /// Failed requests.
    pub failed: u64,
    /// Last byte of correct replies, since the scheduled time, with two digits; `None` with more than 256 classes.
    pub latency: Option<Spread>,
    /// The histogram behind `latency`.
    #[serde(skip)]
    pub(crate) times: Option<Histogram<u64>>,
}

/// The result of a run.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Outcome {
    /// The load that was requested.
    pub load: Loop,
    /// Start time, in seconds since 1970 (UTC).
    pub began_s: f64,
    /// Planned connections; 0 in a closed loop, which has no plan.
    pub planned: u64,
    /// Connections started.
    pub started: u64,
    /// Connections established.
    pub established: u64,
    /// Correct replies.
    pub ok: u64,
    /// Failures by kind, without kinds that did not occur.
    pub failures: Vec<(Fault, u64)>,
    /// Requests that were not sent, because their connection failed or the server closed it after an earlier one, and
    /// those that the server reported as unprocessed.
    pub unsent: u64,
    /// Connections that received unsolicited bytes.
    pub stray: u64,
    /// Complete replies by status class: 1xx, 2xx, ..., 5xx.
    pub statuses: [u64; 5],
    /// Complete replies by status.
    pub status_codes: BTreeMap<u16, u64>,
    /// Why the first failed TLS handshake failed, and what to do.
    pub tls: Option<String>,
    /// Concurrent streams of a connection that the server allowed, if fewer than requested.
    pub streams: Option<u64>,
    /// Results by class of requests, if there are several.
    pub classes: Vec<ClassOutcome>,
    /// The length of the window in seconds, as in `window`.
    pub seconds: f64,
    /// Connections started per second, as in `window`.
    pub offered_rate: f64,
    /// Correct replies per second, as `completed_rate` in `window`.
    pub rate: f64,
    /// Offered and completed load within the measured window, and the backlog.
    pub window: Window,
    /// Bytes received, including heads.
    pub received_bytes: u64,
    /// Last byte of correct replies, since the scheduled time.
    pub latency: Spread,
    /// First byte, since the scheduled time.
    pub first_byte: Spread,
    /// Connection established, since the scheduled time.
    pub connected: Spread,
    /// TLS handshake complete, since the scheduled time; empty if the URL is not https.
    pub secured: Spread,
    /// SYN sent, since the scheduled time: the lateness of the generator.
    pub lateness: Spread,
    /// The TLS handshakes: full and resumed, with the time of each from the established connection on.
    #[serde(default)]
    pub handshakes: Handshakes,
    /// The same five clocks by quantile.
    pub distribution: Distribution,
    /// Resources used by the threads that open connections.
    pub establisher: Used,
    /// Resources used by the threads that handle connections.
    pub handler: Used,
    /// Whether the threads that open connections ran with real-time priority (SCHED_FIFO).
    pub real_time: bool,
    /// CPU time that a hypervisor stole from this machine meanwhile,
    /// all cores together, in seconds. It makes connections start late.
    pub stolen_s: f64,
    /// CPU time of other processes on the machine meanwhile; `None` if it was not measured.
    pub others: Option<Others>,
    /// Whether a signal ended the run early.
    pub interrupted: bool,
    /// Figures per second.
    pub series: Vec<Second>,
    /// The parked connections beside the run, if any.
    pub parked: Vec<Parked>,
    /// The machine of the generator.
    pub machine: Machine,
    /// The verdict on the figures.
    pub verdict: Verdict,
    /// The data from which the window's backlog was computed.
    #[serde(skip)]
    pub(crate) course: Course,
}

/// The inputs of `Outcome` besides a tally.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) load: Loop,
    pub(crate) began_s: f64,
    pub(crate) planned: u64,
    /// Start time, by the clock of the tally.
    pub(crate) start: Time,
    /// The length of the window.
    pub(crate) seconds: f64,
    /// Requests per connection.
    pub(crate) requests: u64,
    pub(crate) establisher: Used,
    pub(crate) handler: Used,
    /// Threads of each kind.
    pub(crate) lanes: usize,
    pub(crate) real_time: bool,
    pub(crate) stolen_s: f64,
    pub(crate) interrupted: bool,
    pub(crate) sessions: SessionCounts,
    pub(crate) series: Vec<Second>,
    pub(crate) clocks: Clocks,
    pub(crate) machine: Machine,
    /// The names of the classes.
    pub(crate) classes: Vec<String>,
}

impl Outcome {
    pub(crate) fn new(tally: &Tally, ran: Ran) -> Outcome {
        let Ran { load, began_s, planned, start, seconds, requests, establisher, handler, lanes, .. } = ran;
        let Ran { real_time, stolen_s, interrupted, sessions, series, clocks, machine, classes, .. } = ran;
        let mut course = tally.course.clone();
        if interrupted {
            course.cut(seconds);
        }
        let ended_s = (tally.last_end - start).as_secs_f64();
        let failures = Fault::ALL.iter().map(|fault| (*fault, tally.failed(*fault))).filter(|(_, n)| *n > 0);
        let of_class = |(name, class): (String, &Class)| ClassOutcome {
            class: name,
            ok: class.ok,
            failed: class.failed,
            latency: class.last.as_ref().map(Spread::of),
            times: class.last.clone(),
        };
        let counted = if tally.classes.len() > 1 { &tally.classes[..] } else { &[] };
        let mut outcome = Outcome {
            load,
            began_s,
            planned,
            started: tally.started,
            established: tally.established,
            ok: tally.ok(),
            failures: failures.collect(),
            unsent: tally.unsent,
            stray: tally.stray,
            statuses: array::from_fn(|at| tally.statuses[at * 100..(at + 1) * 100].iter().sum()),
            status_codes: (STATUS_MIN..)
                .zip(&tally.statuses[..STATUSES])
                .filter(|(_, n)| **n > 0)
                .map(|(s, n)| (s, *n))
                .collect(),
            tls: tally.tls.clone(),
            streams: tally.streams,
            classes: classes.into_iter().zip(counted).map(of_class).collect(),
            received_bytes: tally.received,
            latency: Spread::of(&clocks.latency),
            first_byte: Spread::of(&clocks.first_byte),
            connected: Spread::of(&clocks.connected),
            secured: Spread::of(&clocks.secured),
            lateness: Spread::of(&clocks.lateness),
            handshakes: Handshakes::of(&tally.handshakes, sessions),
            distribution: Distribution::of(&clocks),
            establisher,
            handler,
            real_time,
            stolen_s,
            interrupted,
            series,
            machine,
            ..Outcome::default()
        };
        outcome.verdict = outcome.judge(lanes);
        outcome.set_window(seconds, ended_s, requests, course);
        outcome
    }

    /// Computes the window from the series, and copies its rates to the fields of the run.
    pub(crate) fn set_window(&mut self, seconds: f64, ended_s: f64, requests: u64, course: Course) {
        let requests = matches!(self.load, Loop::Open { .. }).then_some(requests);
        let ran = window::Ran { seconds, ended_s, requests, unserved_share: self.unserved_share(), course: &course };
        self.window = Window::of(&self.series, ran);
        (self.seconds, self.offered_rate, self.rate) =
            (self.window.seconds, self.window.offered_rate, self.window.completed_rate);
        self.course = course;
    }

    /// Adds the results of the parked connections. If some were not open
    /// at the start, the run was not the requested one, and a check fails.
    pub fn park(&mut self, parked: Vec<Parked>) {
        for one in parked.iter().filter(|one| one.open_at_start < one.target) {
            self.verdict.broken.push(format!(
                "only {} of {} parked connections ({}) were open when the run began; does the server allow as many?",
                one.open_at_start, one.target, one.mode
            ));
        }
        self.parked = parked;
    }

    /// Adds the CPU time of other processes; above the share `max`, the run counts as disturbed.
    pub fn shared_with(&mut self, others: Others, max: f64) {
        if others.share > max {
            let text = format!(
                "{others}; the limit is {:.0} %, and they may have affected the results; stop these processes and \
                 measure again, or allow more with --others-max",
                max * 100.0
            );
            self.verdict.weaken(Validity::Disturbed, text);
        }
        self.others = Some(others);
    }

    /// All failures.
    pub fn failed(&self) -> u64 {
        self.failures.iter().map(|(_, count)| count).sum()
    }

    /// Planned requests that were not served: failures, and requests that were not sent. Together with the correct
    /// replies, these are all requests of the schedule; a connection that carried none counts with all that it was to
    /// carry. A closed loop has no plan: if a server ends a connection as it may (RFC 9112, 9.6; RFC 9113, 6.8), the
    /// client goes on with another.
    pub fn unserved(&self) -> u64 {
        // Numbers from another machine may be arbitrary, so the sum saturates.
        self.failed().saturating_add(if self.planned > 0 { self.unsent } else { 0 })
    }

    /// Requests that were not served, as a share of all, from 0 to 1.
    pub fn unserved_share(&self) -> f64 {
        self.unserved() as f64 / self.ok.saturating_add(self.unserved()).max(1) as f64
    }

    /// Failures of this kind.
    pub fn failed_by(&self, fault: Fault) -> u64 {
        self.failures.iter().find(|(kind, _)| *kind == fault).map_or(0, |(_, count)| *count)
    }

    /// Start time as an HTTP date (RFC 9110, 5.6.7).
    pub fn began(&self) -> String {
        crate::date(self.began_s)
    }

    /// The maximum lateness of 99 % of the connections in an open loop,
    /// in milliseconds: 5 % of the mean gap, at least a millisecond.
    pub fn allowed_lateness_ms(&self) -> Option<f64> {
        match self.load {
            Loop::Open { rate, .. } => Some((50.0 / rate.max(1e-9)).max(1.0)),
            Loop::Closed { .. } => None,
        }
    }

    /// The generator's CPU time per correct reply, in microseconds, without the time spent polling the clock.
    pub fn cpu_us(&self) -> f64 {
        let spent = self.establisher.cpu_s + self.handler.cpu_s - self.establisher.spun_s - self.handler.spun_s;
        spent * 1e6 / self.ok.max(1) as f64
    }

    /// Checks whether the results describe the server: the schedule was kept, and the generator did not saturate.
    fn judge(&self, lanes: usize) -> Verdict {
        /// Share of a core above which a thread is saturated.
        const BUSY: f64 = 0.95;
        /// A thread that waited for a core for a quarter of its time cannot time the arrival of bytes.
        const QUEUED: f64 = 0.25;
        let mut verdict = Verdict::valid();
        let open = matches!(self.load, Loop::Open { .. });
        if let Some(bound) = self.allowed_lateness_ms()
            && self.lateness.p99_ms > bound
        {
            let late = self.lateness.p99_ms;
            let stolen = match self.stolen_s {
                0.0 => String::new(),
                stolen => format!("; meanwhile the hypervisor stole {:.0} ms of CPU time", stolen * 1e3),
            };
            let text =
                format!("1 % of connections started {late} ms late or later; the limit is {bound:.1} ms{stolen}");
            verdict.weaken(Validity::ClientBound, text);
        }
        for (fault, what) in
            [(Fault::Local, "had no free port, descriptor or route"), (Fault::Unsent, "were too late to start")]
        {
            if self.failed_by(fault) > 0 {
                verdict.weaken(Validity::ClientBound, format!("{} connections {what}", self.failed_by(fault)));
            }
        }
        for (used, who) in [(self.establisher, "starts connections"), (self.handler, "handles connections")] {
            let elapsed = used.elapsed_s.max(1e-9);
            let (busy, queued) = ((used.cpu_s - used.spun_s) / elapsed, used.queued_s / elapsed);
            let lanes = if lanes > 1 { format!(" (mean of {lanes})") } else { String::new() };
            if busy > BUSY {
                let validity = if open { Validity::ClientBound } else { Validity::AtLeast };
                verdict.weaken(
                    validity,
                    format!("the thread that {who}{lanes} was busy {:.0} % of the time", busy * 100.0),
                );
            }
            if queued > QUEUED {
                let validity = if open { Validity::ClientBound } else { Validity::AtLeast };
                let text =
                    format!("the thread that {who}{lanes} waited for a core {:.0} % of the time", queued * 100.0);
                verdict.weaken(validity, text);
            }
        }
        verdict
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use std::time::Duration;

    /// A run of 100 arrivals at this rate, `ok` of them answered.
    pub(crate) fn outcome(rate: f64, ok: u64, kept: bool) -> Outcome {
        let mut tally = Tally::new(1);
        let late = Duration::from_secs(if kept { 0 } else { 1000 });
        (0..100).for_each(|_| tally.sent(Time::START, Time::START + late));
        (0..ok).for_each(|_| tally.reply(0, Time::START, Time::from_millis(1), Time::from_millis(2)));
        (ok..100).for_each(|_| tally.fail_connection(Fault::Abandoned, 1));
        finished(tally, ran(rate))
    }

    fn finished(mut tally: Tally, ran: Ran) -> Outcome {
        let part = tally.cut(Clocks::default());
        let series = vec![part.second(Duration::ZERO, Duration::from_secs(1), 0)];
        Outcome::new(&tally, Ran { clocks: part.clocks, series, ..ran })
    }

    pub(crate) fn ran(rate: f64) -> Ran {
        let shape = Shape { dispersion: Vec::new(), hurst: None };
        Ran {
            load: Loop::Open { arrivals: "constant".to_owned(), rate, seed: 1, shape },
            began_s: 0.0,
            planned: 100,
            start: Time::START,
            seconds: 2.0,
            requests: 1,
            establisher: Used { elapsed_s: 2.0, ..Used::default() },
            handler: Used { elapsed_s: 2.0, ..Used::default() },
            lanes: 1,
            real_time: false,
            stolen_s: 0.0,
            interrupted: false,
            sessions: SessionCounts::default(),
            series: Vec::new(),
            clocks: Clocks::default(),
            machine: Machine::default(),
            classes: vec!["a".to_owned(), "b".to_owned()],
        }
    }

    #[test]
    fn latency_is_measured_from_planned_time() {
        let mut tally = Tally::new(1);
        for late_ms in 1..=100 {
            let planned = Time::from_millis(1000);
            tally.sent(planned, planned + Duration::from_micros(100));
            tally.reply(
                0,
                planned,
                planned + Duration::from_millis(late_ms / 2),
                planned + Duration::from_millis(late_ms),
            );
        }
        tally.fail(Fault::Reset, 0);
        let outcome = finished(tally, ran(100.0));
        let close =
            |found: f64, expected: f64| assert!((found / expected - 1.0).abs() < 0.01, "{found} not {expected}");
        close(outcome.latency.p50_ms, 50.0);
        close(outcome.latency.p99_ms, 99.0);
        close(outcome.latency.max_ms, 100.0);
        close(outcome.first_byte.max_ms, 50.0);
        close(outcome.lateness.p50_ms, 0.1);
        assert_eq!((outcome.ok, outcome.failed(), outcome.rate), (100, 1, 50.0));
        assert_eq!(outcome.verdict, Verdict::valid());
        // A hundred requests resolve the 99th percentile: one request exceeds it.
        let found = outcome.distribution;
        assert_eq!((found.quantiles.len(), found.latency_ms.len(), found.lateness_ms.len()), (21, 21, 21));
        assert_eq!((found.quantiles[0], found.connected_ms.len()), (0.0, 0));
        let at = |quantile: f64| found.quantiles.iter().position(|known| (known - quantile).abs() < 1e-9).unwrap();
        close(found.latency_ms[at(0.9)], 90.0);
        close(found.latency_ms[at(0.99)], 99.0);
    }

    #[test]
    fn each_second_is_summed_separately() {
        let mut tally = Tally::new(1);
        let count = |tally: &mut Tally, replies: u64| {
            tally.sent(Time::START, Time::from_millis(1));
            (0..replies).for_each(|_| tally.reply(0, Time::START, Time::from_millis(1), Time::from_millis(2)));
            tally.fail(Fault::Reset, 0);
        };
        count(&mut tally, 5);
        tally.cut(Clocks::default());
        count(&mut tally, 3);
        let mut part = tally.cut(Clocks::default());
        assert_eq!((part.started, part.ok, part.failed, part.clocks.latency.len()), (1, 3, 1, 3));
        let mut elsewhere = Tally::new(1);
        elsewhere.sent(Time::START, Time::from_millis(40));
        part.add(&elsewhere.cut(Clocks::default()));
        let second = part.second(Duration::from_secs(1), Duration::from_millis(500), 0);
        assert_eq!((second.at_s, second.started, second.ok, second.failed), (1.0, 2, 3, 1));
        assert_eq!((second.rate(second.ok), second.p50_ms.round(), second.lateness_p99_ms.round()), (6.0, 2.0, 40.0));
        assert_eq!((tally.ok(), tally.all_failed()), (8, 2), "cut series lose nothing");
    }

    #[test]
    fn threads_are_summed() {
        let mut all = Tally::new(2);
        for class in [0, 1, 1] {
            let mut tally = Tally::new(2);
            tally.reply(class, Time::START, Time::from_millis(1), Time::from_millis(2 + 100 * u64::from(class)));
            tally.fail(Fault::Abandoned, class);
            all.merge(tally);
        }
        let outcome = Outcome::new(&all, ran(100.0));
        assert_eq!((outcome.ok, outcome.failed_by(Fault::Abandoned)), (3, 3));
        for (found, (name, count, ms)) in outcome.classes.iter().zip([("a", 1, 2.0), ("b", 2, 102.0)]) {
            assert_eq!((&found.class[..], found.ok, found.failed), (name, count, count));
            let p50_ms = found.latency.as_ref().unwrap().p50_ms;
            assert!((p50_ms / ms - 1.0).abs() < 0.01, "{name}: {p50_ms} ms, not {ms}");
        }
        assert_eq!(outcome.classes.len(), 2);
    }

    #[test]
    fn client_limits_are_reported() {
        let check = |rate: f64, late: Duration, change: fn(&mut Tally, &mut Ran), validity: Validity, says: &str| {
            let (mut tally, mut ran) = (Tally::new(1), ran(rate));
            (0..100).for_each(|_| tally.sent(Time::START, Time::START + late));
            change(&mut tally, &mut ran);
            let verdict = finished(tally, ran).verdict;
            assert!(verdict.validity == validity && verdict.to_string().contains(says), "{verdict}");
        };
        let ms = Duration::from_millis;
        check(1000.0, Duration::from_micros(900), |_, _| {}, Validity::Valid, "valid");
        check(1000.0, ms(2), |_, _| {}, Validity::ClientBound, "the limit is 1.0 ms");
        check(
            1000.0,
            ms(2),
            |_, ran| ran.stolen_s = 0.03,
            Validity::ClientBound,
            "the hypervisor stole 30 ms of CPU time",
        );
        // 5 % of a gap of 100 ms.
        check(10.0, ms(4), |_, _| {}, Validity::Valid, "valid");
        check(10.0, ms(6), |_, _| {}, Validity::ClientBound, "the limit is 5.0 ms");
        check(1.0, ms(1), |tally, _| tally.fail_connection(Fault::Local, 1), Validity::ClientBound, "no free port");
        check(1.0, ms(1), |tally, _| tally.fail_connection(Fault::Unsent, 1), Validity::ClientBound, "too late");
        check(
            1.0,
            ms(1),
            |_, ran| ran.handler.cpu_s = 1.96,
            Validity::ClientBound,
            "handles connections was busy 98 %",
        );
        check(1.0, ms(1), |_, ran| ran.establisher.queued_s = 0.6, Validity::ClientBound, "waited for a core 30 %");
        let closed = |_: &mut Tally, ran: &mut Ran| {
            ran.load = Loop::Closed { clients: 1, think_ms: 0.0 };
            ran.handler.cpu_s = 1.96;
        };
        check(1.0, ms(500), closed, Validity::AtLeast, "busy 98 %");
    }
}
