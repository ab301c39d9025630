//! Counters of a run: counts and histograms of one thread ([`Tally`]), the
//! totals of a second ([`Interval`]), and the kinds of failures ([`Fault`]).
//!
//! The clocks of a request start at its scheduled time, so that they include the generator's own lateness and the time
//! in the server's queues. No figure is corrected afterwards. Latencies are those of correct replies; everything else
//! is a failure of some kind, reported beside them.

use std::time::Duration;
use std::{array, mem};

use amped_units::Time;
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};
use strum::{IntoStaticStr, VariantArray};

use crate::window::{Course, Second};

/// How a connection or a request failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, VariantArray, IntoStaticStr)]
#[serde(rename_all = "kebab-case")]
#[strum(serialize_all = "kebab-case")]
pub enum Fault {
    /// Not connected before the connect timeout.
    Abandoned,
    /// Connection refused: nothing listens, or access is denied.
    Refused,
    /// The TLS handshake failed, mostly for an untrusted certificate; or a later record was invalid.
    Tls,
    /// The server reset the connection.
    Reset,
    /// Not answered in time.
    TimedOut,
    /// The server ended the connection before the first byte of the reply.
    Closed,
    /// The server ended the connection within the reply.
    Short,
    /// The reply was not HTTP.
    Malformed,
    /// Unexpected status; without an expectation, 400 or more.
    Status,
    /// A body of unexpected length.
    Length,
    /// A body with unexpected content.
    Content,
    /// This machine had no port, descriptor, memory or route for the connection.
    Local,
    /// Not begun: the generator was so late that the connect timeout had passed.
    Unsent,
    /// The server reset the stream of the request (RST_STREAM), other than to refuse it.
    StreamReset,
    /// The server refused the stream, or did not process it before it closed the connection (REFUSED_STREAM, GOAWAY).
    StreamRefused,
}

impl Fault {
    /// All kinds.
    pub const ALL: &[Fault] = Fault::VARIANTS;

    /// Its name, as in JSON.
    pub fn name(self) -> &'static str {
        self.into()
    }
}

/// The counters of one thread. Recording does not allocate.
#[derive(Debug, Default)]
pub struct Tally {
    /// Connections whose SYN was sent.
    pub started: u64,
    /// Connections that were established.
    pub established: u64,
    /// Connections that started and ended.
    pub ended: u64,
    /// Requests that were not sent, because their connection failed or ended early, or that the server did not process.
    pub unsent: u64,
    /// Connections that received unsolicited bytes.
    pub stray: u64,
    /// Bytes received, including heads.
    pub received: u64,
    ok: u64,
    faults: [u64; Fault::ALL.len()],
    /// Complete replies by status, from [`STATUS_MIN`]; the last element counts all invalid statuses.
    pub(crate) statuses: Box<[u64]>,
    pub(crate) classes: Vec<Class>,
    /// Why the first failed TLS handshake failed.
    pub(crate) tls: Option<String>,
    /// Fewest concurrent streams that the server allowed, if fewer than requested.
    pub(crate) streams: Option<u64>,
    /// The TLS handshakes.
    pub(crate) handshakes: HandshakeTimes,
    /// The clocks since the last [`cut`](Tally::cut).
    clocks: Clocks,
    /// Connections started and ended, correct replies, failures and bytes at the last [`cut`](Tally::cut).
    before: [u64; 5],
    /// The backlog over the window.
    pub(crate) course: Course,
    /// When the last connection ended.
    pub(crate) last_end: Time,
}

/// The lowest status, and the number of statuses (RFC 9110, 15).
pub(crate) const STATUS_MIN: u16 = 100;
pub(crate) const STATUSES: usize = 500;

#[derive(Clone, Debug, Default)]
pub(crate) struct Class {
    pub(crate) ok: u64,
    pub(crate) failed: u64,
    /// Last bytes, since the scheduled time; `None` with too many classes,
    /// or with a single one, whose latencies are those of the run.
    pub(crate) last: Option<Histogram<u64>>,
}

/// Maximum number of classes with latencies of their own: each takes 27 KiB per thread.
const CLASSES_TIMED: usize = 256;

impl Tally {
    /// An empty tally for this number of request classes, in a run whose window begins at `start`.
    pub fn over(classes: usize, start: Time, window: Duration) -> Tally {
        Tally { course: Course::new(start, window), ..Tally::new(classes) }
    }

    /// An empty tally for this number of request classes, without a window.
    pub fn new(classes: usize) -> Tally {
        let timed = (2..=CLASSES_TIMED).contains(&classes);
        let class = || Class { last: timed.then(coarse), ..Class::default() };
        Tally {
            statuses: vec![0; STATUSES + 1].into_boxed_slice(),
            classes: (0..classes.max(1)).map(|_| class()).collect(),
            ..Tally::default()
        }
    }

    /// Counts a SYN that was sent.
    pub fn sent(&mut self, planned: Time, now: Time) {
        self.started += 1;
        self.course.begun(now);
        record(&mut self.clocks.lateness, planned, now);
    }

    /// Counts an established connection.
    pub fn connected(&mut self, planned: Time, now: Time) {
        self.established += 1;
        record(&mut self.clocks.connected, planned, now);
    }

    /// Counts the end of a connection; `established`: the server had accepted it.
    pub fn ended(&mut self, planned: Time, now: Time, established: bool) {
        self.ended += 1;
        self.last_end = self.last_end.max(now);
        self.course.ended(now);
        if established {
            self.course.stayed(planned, now);
        }
    }

    /// Counts a TLS handshake that was completed now.
    pub fn secured(&mut self, planned: Time, handshake: Handshake, now: Time) {
        record(&mut self.clocks.secured, planned, now);
        self.handshakes.count(handshake, now);
    }

    /// Records why a TLS handshake failed; keeps the first reason.
    pub fn explain_tls(&mut self, why: impl FnOnce() -> String) {
        self.tls.get_or_insert_with(why);
    }

    /// Records that the server allows at most this many concurrent streams, if that is fewer than requested.
    pub fn limit_streams(&mut self, streams: Option<u64>) {
        self.streams = self.streams.into_iter().chain(streams).min();
    }

    /// Counts a correct reply.
    pub fn reply(&mut self, class: u16, planned: Time, first: Time, last: Time) {
        self.ok += 1;
        self.course.completed(last);
        record(&mut self.clocks.first_byte, planned, first);
        record(&mut self.clocks.latency, planned, last);
        if let Some(class) = self.classes.get_mut(usize::from(class)) {
            class.ok += 1;
            if let Some(times) = &mut class.last {
                record(times, planned, last);
            }
        }
    }

    /// Counts a connection that failed before its first request, and was to carry `owed` requests: one of them failed,
    /// and the others were not sent.
    pub fn fail_connection(&mut self, fault: Fault, owed: u64) {
        self.faults[fault as usize] += 1;
        self.unsent = self.unsent.saturating_add(owed.saturating_sub(1));
    }

    /// Counts a failed request.
    pub fn fail(&mut self, fault: Fault, class: u16) {
        self.faults[fault as usize] += 1;
        if let Some(class) = self.classes.get_mut(usize::from(class)) {
            class.failed += 1;
        }
    }

    /// Counts the status of a complete reply.
    pub fn count_status(&mut self, status: u16) {
        let place = usize::from(status.wrapping_sub(STATUS_MIN)).min(STATUSES);
        self.statuses[place] += 1;
    }

    /// Correct replies so far.
    pub fn ok(&self) -> u64 {
        self.ok
    }

    /// Failures of this kind so far.
    pub fn failed(&self, fault: Fault) -> u64 {
        self.faults[fault as usize]
    }

    /// Failures so far.
    pub fn all_failed(&self) -> u64 {
        self.faults.iter().sum()
    }

    /// Ends the current second and returns its counts. `empty` clocks replace its own.
    pub fn cut(&mut self, empty: Clocks) -> Part {
        let now = [self.started, self.ended, self.ok, self.all_failed(), self.received];
        let before = mem::replace(&mut self.before, now);
        let [started, ended, ok, failed, received_bytes] = array::from_fn(|at| now[at] - before[at]);
        Part { started, ended, ok, failed, received_bytes, clocks: mem::replace(&mut self.clocks, empty) }
    }

    /// Adds another thread's counts of the whole run. The clocks are merged with the parts.
    pub fn merge(&mut self, other: Tally) {
        for (mine, theirs) in [
            (&mut self.started, other.started),
            (&mut self.established, other.established),
            (&mut self.ended, other.ended),
            (&mut self.unsent, other.unsent),
            (&mut self.stray, other.stray),
            (&mut self.received, other.received),
            (&mut self.ok, other.ok),
        ] {
            *mine = mine.saturating_add(theirs);
        }
        self.tls = self.tls.take().or(other.tls);
        self.limit_streams(other.streams);
        self.faults.iter_mut().zip(other.faults).for_each(|(mine, theirs)| *mine += theirs);
        self.statuses.iter_mut().zip(other.statuses).for_each(|(mine, theirs)| *mine += theirs);
        self.handshakes.add(&other.handshakes);
        self.course.add(&other.course);
        self.last_end = self.last_end.max(other.last_end);
        for (mine, theirs) in self.classes.iter_mut().zip(other.classes) {
            mine.ok += theirs.ok;
            mine.failed += theirs.failed;
            if let (Some(mine), Some(theirs)) = (&mut mine.last, theirs.last) {
                mine.add(theirs).expect("all have the same bounds");
            }
        }
    }
}

/// A completed TLS handshake, as the client saw it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Handshake {
    /// When its connection was established.
    pub began: Time,
    /// Whether it was to resume an earlier session.
    pub wanted: bool,
    /// Whether it resumed one.
    pub resumed: bool,
}

/// The times of TLS handshakes in nanoseconds, from the established connection to the arrival of the last bytes.
#[derive(Clone, Debug)]
pub(crate) struct HandshakeTimes {
    /// Full handshakes.
    pub(crate) full: Histogram<u64>,
    /// Handshakes that resumed an earlier session.
    pub(crate) resumed: Histogram<u64>,
    /// Handshakes that were to resume one, `wanted >= resumed.len()`.
    pub(crate) wanted: u64,
}

impl HandshakeTimes {
    fn count(&mut self, handshake: Handshake, now: Time) {
        let Handshake { began, wanted, resumed } = handshake;
        record(if resumed { &mut self.resumed } else { &mut self.full }, began, now);
        self.wanted += u64::from(wanted);
    }

    /// Adds the handshakes of another thread.
    fn add(&mut self, other: &HandshakeTimes) {
        for (mine, theirs) in [(&mut self.full, &other.full), (&mut self.resumed, &other.resumed)] {
            mine.add(theirs).expect("all have the same bounds");
        }
        self.wanted += other.wanted;
    }

    /// The times of both kinds.
    pub(crate) fn all(&self) -> Histogram<u64> {
        let mut all = self.full.clone();
        all.add(&self.resumed).expect("all have the same bounds");
        all
    }
}

impl Default for HandshakeTimes {
    fn default() -> HandshakeTimes {
        HandshakeTimes { full: histogram(), resumed: histogram(), wanted: 0 }
    }
}

/// The counts of one thread in one second.
#[derive(Debug, Default)]
pub struct Part {
    /// Connections started.
    pub started: u64,
    /// Connections ended.
    pub ended: u64,
    /// Correct replies.
    pub ok: u64,
    /// Failures.
    pub failed: u64,
    /// Bytes received, including heads.
    pub received_bytes: u64,
    /// The clocks of the events within it.
    pub clocks: Clocks,
}

impl Part {
    /// Adds another thread's counts of the same second.
    pub fn add(&mut self, other: &Part) {
        // Numbers from another machine may be arbitrary.
        self.started = self.started.saturating_add(other.started);
        self.ended = self.ended.saturating_add(other.ended);
        self.ok = self.ok.saturating_add(other.ok);
        self.failed = self.failed.saturating_add(other.failed);
        self.received_bytes = self.received_bytes.saturating_add(other.received_bytes);
        self.clocks.add(&other.clocks);
    }

    /// The figures of a second that began at `at` and lasted `length`, after which `backlog` connections were open.
    pub(crate) fn second(&self, at: Duration, length: Duration, backlog: u64) -> Second {
        let Clocks { latency, lateness, .. } = &self.clocks;
        Second {
            at_s: at.as_secs_f64(),
            length_s: length.as_secs_f64(),
            started: self.started,
            ended: self.ended,
            backlog: backlog.saturating_add(self.started).saturating_sub(self.ended),
            ok: self.ok,
            failed: self.failed,
            received_bytes: self.received_bytes,
            p50_ms: ms(latency.value_at_quantile(0.5)),
            p90_ms: ms(latency.value_at_quantile(0.9)),
            p99_ms: ms(latency.value_at_quantile(0.99)),
            max_ms: ms(latency.max()),
            lateness_p99_ms: ms(lateness.value_at_quantile(0.99)),
        }
    }
}

/// The clocks of a request, as one histogram each: nanoseconds since its scheduled time.
#[derive(Clone, Debug)]
pub struct Clocks {
    /// Last byte of correct replies.
    pub latency: Histogram<u64>,
    /// Their first byte.
    pub first_byte: Histogram<u64>,
    /// TLS handshake complete, if the connection has TLS.
    pub secured: Histogram<u64>,
    /// Connection established.
    pub connected: Histogram<u64>,
    /// SYN sent: the lateness of the generator.
    pub lateness: Histogram<u64>,
}

impl Clocks {
    /// All clocks, by their names in a result.
    pub fn each(&self) -> [(&'static str, &Histogram<u64>); 5] {
        let Clocks { latency, first_byte, secured, connected, lateness } = self;
        [
            ("latency", latency),
            ("first_byte", first_byte),
            ("secured", secured),
            ("connected", connected),
            ("lateness", lateness),
        ]
    }

    pub(crate) fn each_mut(&mut self) -> [&mut Histogram<u64>; 5] {
        let Clocks { latency, first_byte, secured, connected, lateness } = self;
        [latency, first_byte, secured, connected, lateness]
    }

    /// Adds other clocks.
    pub fn add(&mut self, others: &Clocks) {
        for (mine, (_, theirs)) in self.each_mut().into_iter().zip(others.each()) {
            mine.add(theirs).expect("all have the same bounds");
        }
    }

    /// Clears the clocks. Empty ones are not touched, so that a clock that a thread does not use takes no memory.
    pub(crate) fn clear(&mut self) {
        self.each_mut().into_iter().filter(|clock| !clock.is_empty()).for_each(Histogram::reset);
    }
}

impl Default for Clocks {
    fn default() -> Clocks {
        let [latency, first_byte, secured, connected, lateness] = array::from_fn(|_| histogram());
        Clocks { latency, first_byte, secured, connected, lateness }
    }
}

/// The longest time that is resolved.
const LONGEST: Duration = Duration::from_secs(3600);

/// A histogram of nanoseconds, with three digits, from half a microsecond to an hour.
fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(512, LONGEST.as_nanos() as u64, 3).expect("bounds that fit each other")
}

/// As [`histogram`], with two digits.
pub(crate) fn coarse() -> Histogram<u64> {
    Histogram::new_with_bounds(512, LONGEST.as_nanos() as u64, 2).expect("bounds that fit each other")
}

/// A histogram as pairs of the highest value of a bucket, in nanoseconds, and its count.
pub(crate) type Counts = Vec<(u64, u64)>;

pub(crate) fn counts(histogram: &Histogram<u64>) -> Counts {
    histogram.iter_recorded().map(|step| (step.value_iterated_to(), step.count_since_last_iteration())).collect()
}

/// Adds counts to a histogram.
pub(crate) fn restore(histogram: &mut Histogram<u64>, counts: &Counts) {
    counts.iter().for_each(|(value, count)| histogram.saturating_record_n(*value, *count));
}

fn record(histogram: &mut Histogram<u64>, planned: Time, at: Time) {
    histogram.saturating_record(at.as_nanos().saturating_sub(planned.as_nanos()));
}

fn ms(nanos: u64) -> f64 {
    (nanos as f64 / 1e3).round() / 1e3
}

/// A second of a run, over all threads.
#[derive(Debug)]
pub struct Interval {
    /// Start time of the run, in seconds since 1970 (UTC).
    pub began_s: f64,
    /// Its figures.
    pub second: Second,
    /// The clocks of the events within it.
    pub clocks: Clocks,
}

/// A distribution of times, in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Spread {
    /// Number of samples.
    pub count: u64,
    /// Their mean.
    pub mean_ms: f64,
    /// The median.
    pub p50_ms: f64,
    /// The 90th percentile.
    pub p90_ms: f64,
    /// The 95th percentile.
    pub p95_ms: f64,
    /// The 99th percentile.
    pub p99_ms: f64,
    /// The 99.9th percentile.
    pub p999_ms: f64,
    /// The maximum.
    pub max_ms: f64,
}

impl Spread {
    /// Summarises a histogram of nanoseconds.
    pub fn of(histogram: &Histogram<u64>) -> Spread {
        let at = |quantile| ms(histogram.value_at_quantile(quantile));
        Spread {
            count: histogram.len(),
            mean_ms: ms(histogram.mean() as u64),
            p50_ms: at(0.5),
            p90_ms: at(0.9),
            p95_ms: at(0.95),
            p99_ms: at(0.99),
            p999_ms: at(0.999),
            max_ms: ms(histogram.max()),
        }
    }
}

/// The distribution of the clocks of a run, as the time at each quantile. The grid has ten steps per power of ten of
/// the exceeding share (0.9, 0.99, ...), as far as the number of requests resolves it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Distribution {
    /// The quantiles, from 0 to below 1.
    pub quantiles: Vec<f64>,
    /// Last byte of correct replies, in milliseconds, at each quantile; the others likewise, as in [`Clocks`].
    pub latency_ms: Vec<f64>,
    /// First byte.
    pub first_byte_ms: Vec<f64>,
    /// TLS handshake complete.
    pub secured_ms: Vec<f64>,
    /// Connection established.
    pub connected_ms: Vec<f64>,
    /// SYN sent.
    pub lateness_ms: Vec<f64>,
}

impl Distribution {
    pub(crate) fn of(clocks: &Clocks) -> Distribution {
        const STEPS: f64 = 10.0;
        let most = clocks.each().into_iter().map(|(_, clock)| clock.len()).max().unwrap_or(0);
        let steps = (0..).map(|step| 10f64.powf(-f64::from(step) / STEPS));
        let exceeding: Vec<f64> = steps.take_while(|part| part * most as f64 >= 1.0).collect();
        let [latency_ms, first_byte_ms, secured_ms, connected_ms, lateness_ms] = clocks.each().map(|(_, clock)| {
            // Fewer requests resolve fewer quantiles.
            let known = exceeding.iter().take_while(|part| *part * clock.len() as f64 >= 1.0);
            known.map(|part| ms(clock.value_at_quantile(1.0 - part))).collect()
        });
        let quantiles = exceeding.iter().map(|part| 1.0 - part).collect();
        Distribution { quantiles, latency_ms, first_byte_ms, secured_ms, connected_ms, lateness_ms }
    }
}

/// Resources that a thread of the generator used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Used {
    /// CPU time in seconds, including busy waiting.
    pub cpu_s: f64,
    /// The part of it spent polling the clock for the next instant, in seconds.
    pub spun_s: f64,
    /// Time in which it was runnable but another thread had its core (proc/PID/schedstat), in seconds.
    pub queued_s: f64,
    /// From its start to its end, in seconds.
    pub elapsed_s: f64,
}
