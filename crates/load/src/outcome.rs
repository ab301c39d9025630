//! What came of a run: counts and histograms while it goes on ([`Tally`]), one for each thread and nobody else's; what a
//! second came to ([`Interval`]); and the result ([`Outcome`]) with what it is worth.
//!
//! Clocks of a request are counted from its planned instant, so that the generator's own lateness and the time in the
//! server's queues are in them. Nothing is corrected afterwards. Latencies are those of right replies; everything else is a
//! failure with a kind, and stands in the same line.

use std::collections::BTreeMap;
use std::time::Duration;
use std::{array, mem};

use amped_measure::host::Machine;
use amped_measure::others::Others;
use amped_measure::{Verdict, Worth};
use amped_units::Time;
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use crate::drive::parked::Parked;
use crate::schedule::Shape;
use crate::window::{self, Course, Window};

/// How a connection or a request came to nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Fault {
    /// Not connected when its time was over, and given up.
    Abandoned,
    /// Nobody listens, or nobody may.
    Refused,
    /// No TLS came about, mostly since the certificate is not trusted; or what came later is none.
    Tls,
    /// The server broke the connection off.
    Reset,
    /// Not answered in time.
    TimedOut,
    /// The server ended the connection before the first byte of the reply.
    Closed,
    /// The server ended the connection within the reply.
    Short,
    /// What came is not HTTP.
    Malformed,
    /// Another status than was expected, 400 or more where nothing was.
    Status,
    /// A body of another length than was expected.
    Length,
    /// A body with other bytes than were expected.
    Content,
    /// This machine had no port, descriptor, memory or way for the connection.
    Local,
    /// The generator was so late that the time to connect was over before it began.
    Unsent,
}

impl Fault {
    /// All kinds.
    pub const ALL: [Fault; 13] = [
        Fault::Abandoned,
        Fault::Refused,
        Fault::Tls,
        Fault::Reset,
        Fault::TimedOut,
        Fault::Closed,
        Fault::Short,
        Fault::Malformed,
        Fault::Status,
        Fault::Length,
        Fault::Content,
        Fault::Local,
        Fault::Unsent,
    ];

    /// As it is printed.
    pub fn name(self) -> &'static str {
        match self {
            Fault::Abandoned => "abandoned",
            Fault::Refused => "refused",
            Fault::Tls => "tls",
            Fault::Reset => "reset",
            Fault::TimedOut => "timed-out",
            Fault::Closed => "closed",
            Fault::Short => "short",
            Fault::Malformed => "malformed",
            Fault::Status => "status",
            Fault::Length => "length",
            Fault::Content => "content",
            Fault::Local => "local",
            Fault::Unsent => "unsent",
        }
    }
}

/// The longest time that is told apart from longer ones.
const LONGEST: Duration = Duration::from_secs(3600);

/// A histogram of nanoseconds, with three digits from half a microsecond to an hour.
fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(512, LONGEST.as_nanos() as u64, 3).expect("bounds that fit each other")
}

/// The clocks of a request, a histogram each: nanoseconds since its planned instant.
#[derive(Clone, Debug)]
pub struct Clocks {
    /// Last byte of right replies.
    pub latency: Histogram<u64>,
    /// Their first byte.
    pub first_byte: Histogram<u64>,
    /// TLS handshake over, where there is one.
    pub secured: Histogram<u64>,
    /// Connection established.
    pub connected: Histogram<u64>,
    /// SYN sent: how late the generator was.
    pub lateness: Histogram<u64>,
}

impl Clocks {
    /// Empty ones.
    pub fn new() -> Clocks {
        Clocks {
            latency: histogram(),
            first_byte: histogram(),
            secured: histogram(),
            connected: histogram(),
            lateness: histogram(),
        }
    }

    /// All of them by the names that they have in a result.
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

    /// Takes others in.
    pub fn add(&mut self, others: &Clocks) {
        for (mine, (_, theirs)) in self.each_mut().into_iter().zip(others.each()) {
            mine.add(theirs).expect("all have the same bounds");
        }
    }

    /// Empties them. What is empty is not touched, so that a clock that a thread does not have takes no memory.
    pub(crate) fn clear(&mut self) {
        self.each_mut().into_iter().filter(|clock| !clock.is_empty()).for_each(Histogram::reset);
    }
}

impl Default for Clocks {
    fn default() -> Clocks {
        Clocks::new()
    }
}

/// What one thread counts. Recording allocates nothing.
#[derive(Debug)]
pub struct Tally {
    /// Connections whose SYN went out.
    pub started: u64,
    /// Connections that were established.
    pub established: u64,
    /// Connections that had begun and are over.
    pub ended: u64,
    /// Requests that connections which ended early did not come to ask.
    pub unasked: u64,
    /// Connections on which bytes came that answer nothing.
    pub stray: u64,
    /// Bytes received, heads and all.
    pub received: u64,
    ok: u64,
    faults: [u64; Fault::ALL.len()],
    /// Whole replies by status, from [`STATUS_MIN`]; all that no server should send in the last place.
    statuses: Box<[u64]>,
    classes: Vec<Class>,
    /// Why the first connection without TLS has none.
    tls: Option<String>,
    /// Since the last cut.
    clocks: Clocks,
    /// Connections begun and ended, right replies, failures and bytes at the last cut.
    before: [u64; 5],
    /// The backlog through the window.
    course: Course,
    /// When the last connection ended.
    last_end: Time,
}

/// The lowest status, and how many there are (RFC 9110, 15).
const STATUS_MIN: u16 = 100;
const STATUSES: usize = 500;

#[derive(Clone, Debug, Default)]
struct Class {
    ok: u64,
    failed: u64,
    /// Last bytes, since the planned instant; `None`: there are too many classes, or one alone, whose times are all times.
    last: Option<Histogram<u64>>,
}

/// Classes whose times are told apart: each takes 27 KiB a thread.
const CLASSES_TIMED: usize = 256;

/// As [`histogram`], with two digits.
pub(crate) fn coarse() -> Histogram<u64> {
    Histogram::new_with_bounds(512, LONGEST.as_nanos() as u64, 2).expect("bounds that fit each other")
}

impl Tally {
    /// An empty one, for so many classes of requests, of a run whose window begins at `start`.
    pub fn over(classes: usize, start: Time, window: Duration) -> Tally {
        Tally { course: Course::new(start, window), ..Tally::new(classes) }
    }

    /// An empty one, for so many classes of requests, of no window.
    pub fn new(classes: usize) -> Tally {
        let timed = (2..=CLASSES_TIMED).contains(&classes);
        let class = || Class { last: timed.then(coarse), ..Class::default() };
        Tally {
            started: 0,
            established: 0,
            ended: 0,
            unasked: 0,
            stray: 0,
            received: 0,
            ok: 0,
            faults: [0; Fault::ALL.len()],
            statuses: vec![0; STATUSES + 1].into_boxed_slice(),
            classes: (0..classes.max(1)).map(|_| class()).collect(),
            tls: None,
            clocks: Clocks::new(),
            before: [0; 5],
            course: Course::default(),
            last_end: Time::START,
        }
    }

    /// A SYN went out.
    pub fn sent(&mut self, planned: Time, now: Time) {
        self.started += 1;
        self.course.begun(now);
        record(&mut self.clocks.lateness, planned, now);
    }

    /// A connection was established.
    pub fn connected(&mut self, planned: Time, now: Time) {
        self.established += 1;
        record(&mut self.clocks.connected, planned, now);
    }

    /// A connection that had begun is over; `established`: the server had it.
    pub fn ended(&mut self, planned: Time, now: Time, established: bool) {
        self.ended += 1;
        self.last_end = self.last_end.max(now);
        self.course.ended(now);
        if established {
            self.course.stayed(planned, now);
        }
    }

    /// The TLS handshake of a connection is over.
    pub fn secured(&mut self, planned: Time, now: Time) {
        record(&mut self.clocks.secured, planned, now);
    }

    /// There is no TLS on a connection; of the first the reason is kept.
    pub fn explain_tls(&mut self, why: impl FnOnce() -> String) {
        self.tls.get_or_insert_with(why);
    }

    /// A right reply was read to its end.
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

    /// A connection came to nothing before a request could be asked on it.
    pub fn fail_connection(&mut self, fault: Fault) {
        self.faults[fault as usize] += 1;
    }

    /// A request came to nothing.
    pub fn fail(&mut self, fault: Fault, class: u16) {
        self.faults[fault as usize] += 1;
        if let Some(class) = self.classes.get_mut(usize::from(class)) {
            class.failed += 1;
        }
    }

    /// A whole reply had this status.
    pub fn count_status(&mut self, status: u16) {
        let place = usize::from(status.wrapping_sub(STATUS_MIN)).min(STATUSES);
        self.statuses[place] += 1;
    }

    /// Right replies so far.
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

    /// Ends the second under way: what there was since the last cut. `empty` clocks take the place of its own.
    pub fn cut(&mut self, empty: Clocks) -> Part {
        let now = [self.started, self.ended, self.ok, self.all_failed(), self.received];
        let before = mem::replace(&mut self.before, now);
        let [started, ended, ok, failed, received_bytes] = array::from_fn(|at| now[at] - before[at]);
        Part { started, ended, ok, failed, received_bytes, clocks: mem::replace(&mut self.clocks, empty) }
    }

    /// Takes another thread's counts in, of the whole run. What the clocks say goes with the parts.
    pub fn merge(&mut self, other: Tally) {
        for (mine, theirs) in [
            (&mut self.started, other.started),
            (&mut self.established, other.established),
            (&mut self.ended, other.ended),
            (&mut self.unasked, other.unasked),
            (&mut self.stray, other.stray),
            (&mut self.received, other.received),
            (&mut self.ok, other.ok),
        ] {
            *mine += theirs;
        }
        self.tls = self.tls.take().or(other.tls);
        self.faults.iter_mut().zip(other.faults).for_each(|(mine, theirs)| *mine += theirs);
        self.statuses.iter_mut().zip(other.statuses).for_each(|(mine, theirs)| *mine += theirs);
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

/// What one thread counted in a second.
#[derive(Debug, Default)]
pub struct Part {
    /// Connections begun.
    pub started: u64,
    /// Connections ended.
    pub ended: u64,
    /// Right replies.
    pub ok: u64,
    /// Failures.
    pub failed: u64,
    /// Bytes received, heads and all.
    pub received_bytes: u64,
    /// The clocks of what happened in it.
    pub clocks: Clocks,
}

impl Part {
    /// Takes another thread's in, of the same second.
    pub fn add(&mut self, other: &Part) {
        // What another machine says may be any number.
        self.started = self.started.saturating_add(other.started);
        self.ended = self.ended.saturating_add(other.ended);
        self.ok = self.ok.saturating_add(other.ok);
        self.failed = self.failed.saturating_add(other.failed);
        self.received_bytes = self.received_bytes.saturating_add(other.received_bytes);
        self.clocks.add(&other.clocks);
    }
}

fn record(histogram: &mut Histogram<u64>, planned: Time, at: Time) {
    histogram.saturating_record(at.as_nanos().saturating_sub(planned.as_nanos()));
}

fn ms(nanos: u64) -> f64 {
    (nanos as f64 / 1e3).round() / 1e3
}

/// A second of a run, as all its threads counted it together.
#[derive(Debug)]
pub struct Interval {
    /// When the run began, in seconds since 1970 (UTC).
    pub began_s: f64,
    /// Its figures.
    pub second: Second,
    /// The clocks of what happened in it.
    pub clocks: Clocks,
}

/// The figures of a second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Second {
    /// When it began, in seconds from the start of the run.
    pub at_s: f64,
    /// How long it was, in seconds: the last one of a window is cut short at its end, and the last one of a run.
    pub length_s: f64,
    /// Connections begun.
    pub started: u64,
    /// Connections ended.
    #[serde(default)]
    pub ended: u64,
    /// Connections that had begun and were not over when it was.
    #[serde(default)]
    pub backlog: u64,
    /// Right replies.
    pub ok: u64,
    /// Failures.
    pub failed: u64,
    /// Bytes received, heads and all.
    #[serde(default)]
    pub received_bytes: u64,
    /// The median latency of the right replies, in milliseconds.
    pub p50_ms: f64,
    /// The 90th percentile.
    pub p90_ms: f64,
    /// The 99th percentile.
    pub p99_ms: f64,
    /// The longest.
    pub max_ms: f64,
    /// The 99th percentile of the generator's lateness, in milliseconds.
    pub lateness_p99_ms: f64,
}

impl Second {
    /// Of what was counted from `at` on, for `length`, after so many had begun and not ended.
    pub(crate) fn of(part: &Part, at: Duration, length: Duration, backlog: u64) -> Second {
        let Clocks { latency, lateness, .. } = &part.clocks;
        Second {
            at_s: at.as_secs_f64(),
            length_s: length.as_secs_f64(),
            started: part.started,
            ended: part.ended,
            backlog: backlog.saturating_add(part.started).saturating_sub(part.ended),
            ok: part.ok,
            failed: part.failed,
            received_bytes: part.received_bytes,
            p50_ms: ms(latency.value_at_quantile(0.5)),
            p90_ms: ms(latency.value_at_quantile(0.9)),
            p99_ms: ms(latency.value_at_quantile(0.99)),
            max_ms: ms(latency.max()),
            lateness_p99_ms: ms(lateness.value_at_quantile(0.99)),
        }
    }

    /// So many in it, as a rate: a second that was cut short is not a low one.
    pub fn rate(&self, count: u64) -> f64 {
        count as f64 / self.length_s.max(1e-9)
    }
}

/// A distribution of times, in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Spread {
    /// How many times there are.
    pub count: u64,
    /// Their mean.
    pub mean_ms: f64,
    /// The median, and so on.
    pub p50_ms: f64,
    /// 90 % are no longer.
    pub p90_ms: f64,
    /// 95 % are no longer.
    #[serde(default)]
    pub p95_ms: f64,
    /// 99 % are no longer.
    pub p99_ms: f64,
    /// 99.9 % are no longer.
    pub p999_ms: f64,
    /// The longest.
    pub max_ms: f64,
}

impl Spread {
    /// Of a histogram of nanoseconds.
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

/// How the times of a run are distributed: at each quantile the time that so many do not exceed. The grid has ten steps to a
/// power of ten of what exceeds them (0.9, 0.99, ...), as far as there are requests to tell.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Distribution {
    /// The quantiles, from 0 to below 1.
    pub quantiles: Vec<f64>,
    /// Last byte of right replies, in milliseconds; and so on, as in [`Clocks`].
    pub latency_ms: Vec<f64>,
    /// See there.
    pub first_byte_ms: Vec<f64>,
    /// See there.
    pub secured_ms: Vec<f64>,
    /// See there.
    pub connected_ms: Vec<f64>,
    /// See there.
    pub lateness_ms: Vec<f64>,
}

impl Distribution {
    pub(crate) fn of(clocks: &Clocks) -> Distribution {
        const STEPS: f64 = 10.0;
        let most = clocks.each().into_iter().map(|(_, clock)| clock.len()).max().unwrap_or(0);
        let steps = (0..).map(|step| 10f64.powf(-f64::from(step) / STEPS));
        let exceeding: Vec<f64> = steps.take_while(|part| part * most as f64 >= 1.0).collect();
        let [latency_ms, first_byte_ms, secured_ms, connected_ms, lateness_ms] = clocks.each().map(|(_, clock)| {
            // Of fewer requests less is known.
            let known = exceeding.iter().take_while(|part| *part * clock.len() as f64 >= 1.0);
            known.map(|part| ms(clock.value_at_quantile(1.0 - part))).collect()
        });
        let quantiles = exceeding.iter().map(|part| 1.0 - part).collect();
        Distribution { quantiles, latency_ms, first_byte_ms, secured_ms, connected_ms, lateness_ms }
    }
}

/// What a thread of the generator has used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Used {
    /// CPU time in seconds, waiting with open eyes included.
    pub cpu_s: f64,
    /// Of it, looking at the clock for the next instant, in seconds.
    pub spun_s: f64,
    /// Time in which it could have run and another had its core (proc/PID/schedstat), in seconds.
    pub queued_s: f64,
    /// From its start to its end, in seconds.
    pub elapsed_s: f64,
}

/// What was asked of the generator.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Loop {
    /// Connections begin when they are planned, whatever the server does.
    Open {
        /// The process, as it is typed.
        arrivals: String,
        /// Connections a second, asked for.
        rate: f64,
        /// What the schedule is made of.
        seed: u64,
        /// How bursty it came out.
        shape: Shape,
    },
    /// Each client waits for its reply before it asks again: the server sets the pace, and its stalls are not seen by the
    /// requests that would have come.
    Closed {
        /// How many there are.
        clients: usize,
        /// What each waits between a reply and its next request, in milliseconds.
        think_ms: f64,
    },
}

/// What came of one class of requests.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ClassOutcome {
    /// Its name.
    pub class: String,
    /// Right replies.
    pub ok: u64,
    /// Requests that came to nothing.
    pub failed: u64,
    /// Last byte of right replies, since the planned instant, with two digits; `None` where there are more than 256 classes.
    pub latency: Option<Spread>,
    /// What that was made of.
    #[serde(skip)]
    pub(crate) times: Option<Histogram<u64>>,
}

/// The result of a run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Outcome {
    /// What was asked.
    pub asked: Loop,
    /// When it began, in seconds since 1970 (UTC).
    pub began_s: f64,
    /// Connections that were to begin; 0 in a closed loop, which has no plan.
    pub planned: u64,
    /// Connections that did begin.
    pub started: u64,
    /// Connections that were established.
    pub established: u64,
    /// Right replies.
    pub ok: u64,
    /// Failures by their kind, those that there were.
    pub failures: Vec<(Fault, u64)>,
    /// Requests that were not asked since the server had closed their connection after an earlier one.
    pub unasked: u64,
    /// Connections on which bytes came that answer nothing.
    pub stray: u64,
    /// Whole replies by hundreds: 1xx, 2xx, ..., 5xx.
    pub statuses: [u64; 5],
    /// Whole replies by status.
    pub status_codes: BTreeMap<u16, u64>,
    /// Why the first connection without TLS has none, and the way out.
    pub tls: Option<String>,
    /// Each class of requests, where there are several.
    pub classes: Vec<ClassOutcome>,
    /// The length of the window in seconds, as in `window`.
    pub seconds: f64,
    /// Connections begun a second, as in `window`.
    pub offered_rate: f64,
    /// Right replies a second, as `completed_rate` in `window`.
    pub rate: f64,
    /// What was offered and completed within the measured window, and what was left behind.
    pub window: Window,
    /// Bytes received, heads and all.
    pub received_bytes: u64,
    /// Last byte of right replies, since the planned instant.
    pub latency: Spread,
    /// First byte, since the planned instant.
    pub first_byte: Spread,
    /// Connection established, since the planned instant.
    pub connected: Spread,
    /// TLS handshake over, since the planned instant; no times where the URL is not https.
    pub secured: Spread,
    /// SYN sent, since the planned instant: how late the generator was.
    pub lateness: Spread,
    /// All of these, from quantile to quantile.
    pub distribution: Distribution,
    /// What the threads used that begin connections, and those that handle them.
    pub establisher: Used,
    /// See there.
    pub handler: Used,
    /// Whether threads that begin connections ran before others (SCHED_FIFO).
    pub real_time: bool,
    /// CPU time that a hypervisor took from this machine meanwhile, all cores together, in seconds: who was about to begin a
    /// connection then began it late.
    pub stolen_s: f64,
    /// What others used of the machine meanwhile; `None` where nobody looked.
    #[serde(default)]
    pub others: Option<Others>,
    /// Ended before its time, by a signal.
    pub interrupted: bool,
    /// Second by second.
    pub series: Vec<Second>,
    /// What became of the connections that were parked beside it, where there were any.
    pub parked: Vec<Parked>,
    /// The machine of the generator.
    pub machine: Machine,
    /// What the figures are worth.
    pub verdict: Verdict,
    /// What the backlog of the window was worked out of.
    #[serde(skip)]
    pub(crate) course: Course,
}

/// What `Outcome` is made of besides a tally.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) asked: Loop,
    pub(crate) began_s: f64,
    pub(crate) planned: u64,
    /// When it began, by the clock of the tally.
    pub(crate) start: Time,
    /// The length of the window.
    pub(crate) seconds: f64,
    /// Requests of a connection.
    pub(crate) requests: u64,
    pub(crate) establisher: Used,
    pub(crate) handler: Used,
    /// Threads of each kind.
    pub(crate) lanes: usize,
    pub(crate) real_time: bool,
    pub(crate) stolen_s: f64,
    pub(crate) interrupted: bool,
    pub(crate) series: Vec<Second>,
    pub(crate) clocks: Clocks,
    pub(crate) machine: Machine,
    /// The names of the classes.
    pub(crate) classes: Vec<String>,
}

impl Outcome {
    pub(crate) fn new(tally: &Tally, ran: Ran) -> Outcome {
        let Ran { asked, began_s, planned, start, seconds, requests, establisher, handler, lanes, .. } = ran;
        let Ran { real_time, stolen_s, interrupted, series, clocks, machine, classes, .. } = ran;
        let mut course = tally.course.clone();
        if interrupted {
            course.cut(seconds);
        }
        let ended_s = (tally.last_end - start).as_secs_f64();
        let failures = Fault::ALL.into_iter().map(|fault| (fault, tally.failed(fault))).filter(|(_, n)| *n > 0);
        let of_class = |(name, class): (String, &Class)| ClassOutcome {
            class: name,
            ok: class.ok,
            failed: class.failed,
            latency: class.last.as_ref().map(Spread::of),
            times: class.last.clone(),
        };
        let counted = if tally.classes.len() > 1 { &tally.classes[..] } else { &[] };
        let mut outcome = Outcome {
            asked,
            began_s,
            planned,
            started: tally.started,
            established: tally.established,
            ok: tally.ok(),
            failures: failures.collect(),
            unasked: tally.unasked,
            stray: tally.stray,
            statuses: array::from_fn(|at| tally.statuses[at * 100..(at + 1) * 100].iter().sum()),
            status_codes: (STATUS_MIN..)
                .zip(&tally.statuses[..STATUSES])
                .filter(|(_, n)| **n > 0)
                .map(|(s, n)| (s, *n))
                .collect(),
            tls: tally.tls.clone(),
            classes: classes.into_iter().zip(counted).map(of_class).collect(),
            seconds: 0.0,
            offered_rate: 0.0,
            rate: 0.0,
            window: Window::default(),
            course: Course::default(),
            received_bytes: tally.received,
            latency: Spread::of(&clocks.latency),
            first_byte: Spread::of(&clocks.first_byte),
            connected: Spread::of(&clocks.connected),
            secured: Spread::of(&clocks.secured),
            lateness: Spread::of(&clocks.lateness),
            distribution: Distribution::of(&clocks),
            establisher,
            handler,
            real_time,
            stolen_s,
            others: None,
            interrupted,
            series,
            parked: Vec::new(),
            machine,
            verdict: Verdict::valid(),
        };
        outcome.verdict = outcome.judge(lanes);
        outcome.set_window(seconds, ended_s, requests, course);
        outcome
    }

    /// Works the window out of the series, and copies its rates to where they stood before there was a window.
    pub(crate) fn set_window(&mut self, seconds: f64, ended_s: f64, requests: u64, course: Course) {
        let requests = matches!(self.asked, Loop::Open { .. }).then_some(requests);
        let ran = window::Ran { seconds, ended_s, requests, course: &course };
        self.window = Window::of(&self.series, ran);
        (self.seconds, self.offered_rate, self.rate) =
            (self.window.seconds, self.window.offered_rate, self.window.completed_rate);
        self.course = course;
    }

    /// Takes what became of the connections that were parked beside it. Where not all of them were, this was another run than
    /// the one that was asked for.
    pub fn park(&mut self, parked: Vec<Parked>) {
        for one in parked.iter().filter(|one| one.open_at_start < one.asked) {
            self.verdict.broken.push(format!(
                "of {} parked connections ({}) {} were open when the run began; does the server bear as many?",
                one.asked, one.habit, one.open_at_start
            ));
        }
        self.parked = parked;
    }

    /// Takes what others used of the machine meanwhile, of which they may use so much.
    pub fn shared_with(&mut self, others: Others, max: f64) {
        if others.share > max {
            let text = format!(
                "{others}, and {:.0} % may be: the figures may be theirs; stop these processes and measure again, or allow \
                 more with --others-max",
                max * 100.0
            );
            self.verdict.weaken(Worth::Disturbed, text);
        }
        self.others = Some(others);
    }

    /// Failures in all.
    pub fn failed(&self) -> u64 {
        self.failures.iter().map(|(_, count)| count).sum()
    }

    /// Failures of this kind.
    pub fn failed_by(&self, fault: Fault) -> u64 {
        self.failures.iter().find(|(kind, _)| *kind == fault).map_or(0, |(_, count)| *count)
    }

    /// When it began, as a date of HTTP (RFC 9110, 5.6.7).
    pub fn began(&self) -> String {
        crate::date(self.began_s)
    }

    /// How late 99 % of the connections of an open loop may begin, in milliseconds: 5 % of the mean gap, a millisecond at
    /// least.
    pub fn allowed_lateness_ms(&self) -> Option<f64> {
        match self.asked {
            Loop::Open { rate, .. } => Some((50.0 / rate.max(1e-9)).max(1.0)),
            Loop::Closed { .. } => None,
        }
    }

    /// CPU time of the generator for a right reply, in microseconds, without what it spent looking at the clock.
    pub fn cpu_us(&self) -> f64 {
        let spent = self.establisher.cpu_s + self.handler.cpu_s - self.establisher.spun_s - self.handler.spun_s;
        spent * 1e6 / self.ok.max(1) as f64
    }

    /// Whether the figures are the server's: the schedule was kept, and nothing of ours ran out.
    fn judge(&self, lanes: usize) -> Verdict {
        /// Of a core: a thread that has nothing left.
        const BUSY: f64 = 0.95;
        /// A thread that waited for a core a quarter of its time cannot say when bytes came.
        const QUEUED: f64 = 0.25;
        let mut verdict = Verdict::valid();
        let open = matches!(self.asked, Loop::Open { .. });
        if let Some(bound) = self.allowed_lateness_ms()
            && self.lateness.p99_ms > bound
        {
            let late = self.lateness.p99_ms;
            let stolen = match self.stolen_s {
                0.0 => String::new(),
                stolen => format!("; meanwhile the hypervisor took {:.0} ms of CPU time away", stolen * 1e3),
            };
            let text =
                format!("1 % of connections began {late} ms late or later, and {bound:.1} ms are allowed{stolen}");
            verdict.weaken(Worth::ClientBound, text);
        }
        for (fault, what) in
            [(Fault::Local, "found no port, descriptor or way"), (Fault::Unsent, "came too late to begin")]
        {
            if self.failed_by(fault) > 0 {
                verdict.weaken(Worth::ClientBound, format!("{} connections {what}", self.failed_by(fault)));
            }
        }
        for (used, who) in [(self.establisher, "begins connections"), (self.handler, "handles connections")] {
            let elapsed = used.elapsed_s.max(1e-9);
            let (busy, queued) = ((used.cpu_s - used.spun_s) / elapsed, used.queued_s / elapsed);
            let lanes = if lanes > 1 { format!(" (mean of {lanes})") } else { String::new() };
            if busy > BUSY {
                let worth = if open { Worth::ClientBound } else { Worth::AtLeast };
                verdict
                    .weaken(worth, format!("the thread that {who}{lanes} was busy {:.0} % of the time", busy * 100.0));
            }
            if queued > QUEUED {
                let worth = if open { Worth::ClientBound } else { Worth::AtLeast };
                let text =
                    format!("the thread that {who}{lanes} waited for a core {:.0} % of the time", queued * 100.0);
                verdict.weaken(worth, text);
            }
        }
        verdict
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A run of 100 arrivals at this rate, so many of which were answered.
    pub(crate) fn outcome(rate: f64, ok: u64, kept: bool) -> Outcome {
        let mut tally = Tally::new(1);
        let late = Duration::from_secs(if kept { 0 } else { 1000 });
        (0..100).for_each(|_| tally.sent(Time::START, Time::START + late));
        (0..ok).for_each(|_| tally.reply(0, Time::START, Time::from_millis(1), Time::from_millis(2)));
        (ok..100).for_each(|_| tally.fail_connection(Fault::Abandoned));
        finished(tally, ran(rate))
    }

    fn finished(mut tally: Tally, ran: Ran) -> Outcome {
        let part = tally.cut(Clocks::new());
        let series = vec![Second::of(&part, Duration::ZERO, Duration::from_secs(1), 0)];
        Outcome::new(&tally, Ran { clocks: part.clocks, series, ..ran })
    }

    pub(crate) fn ran(rate: f64) -> Ran {
        let shape = Shape { dispersion: Vec::new(), hurst: None };
        Ran {
            asked: Loop::Open { arrivals: "constant".to_owned(), rate, seed: 1, shape },
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
            series: Vec::new(),
            clocks: Clocks::new(),
            machine: Machine::default(),
            classes: vec!["a".to_owned(), "b".to_owned()],
        }
    }

    #[test]
    fn clocks_run_from_the_planned_instant() {
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
        // A hundred requests tell two powers of ten: 0.99 is exceeded by one of them.
        let found = outcome.distribution;
        assert_eq!((found.quantiles.len(), found.latency_ms.len(), found.lateness_ms.len()), (21, 21, 21));
        assert_eq!((found.quantiles[0], found.connected_ms.len()), (0.0, 0));
        let at = |quantile: f64| found.quantiles.iter().position(|known| (known - quantile).abs() < 1e-9).unwrap();
        close(found.latency_ms[at(0.9)], 90.0);
        close(found.latency_ms[at(0.99)], 99.0);
    }

    #[test]
    fn what_a_second_came_to() {
        let mut tally = Tally::new(1);
        let count = |tally: &mut Tally, replies: u64| {
            tally.sent(Time::START, Time::from_millis(1));
            (0..replies).for_each(|_| tally.reply(0, Time::START, Time::from_millis(1), Time::from_millis(2)));
            tally.fail(Fault::Reset, 0);
        };
        count(&mut tally, 5);
        tally.cut(Clocks::new());
        count(&mut tally, 3);
        let mut part = tally.cut(Clocks::new());
        assert_eq!((part.started, part.ok, part.failed, part.clocks.latency.len()), (1, 3, 1, 3));
        let mut elsewhere = Tally::new(1);
        elsewhere.sent(Time::START, Time::from_millis(40));
        part.add(&elsewhere.cut(Clocks::new()));
        let second = Second::of(&part, Duration::from_secs(1), Duration::from_millis(500), 0);
        assert_eq!((second.at_s, second.started, second.ok, second.failed), (1.0, 2, 3, 1));
        assert_eq!((second.rate(second.ok), second.p50_ms.round(), second.lateness_p99_ms.round()), (6.0, 2.0, 40.0));
        assert_eq!((tally.ok(), tally.all_failed()), (8, 2), "a cut takes nothing away");
    }

    #[test]
    fn threads_are_added_up() {
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
    fn what_is_the_clients_own_is_said() {
        let check = |rate: f64, late: Duration, change: fn(&mut Tally, &mut Ran), worth: Worth, says: &str| {
            let (mut tally, mut ran) = (Tally::new(1), ran(rate));
            (0..100).for_each(|_| tally.sent(Time::START, Time::START + late));
            change(&mut tally, &mut ran);
            let verdict = finished(tally, ran).verdict;
            assert!(verdict.worth == worth && verdict.to_string().contains(says), "{verdict}");
        };
        let ms = Duration::from_millis;
        check(1000.0, Duration::from_micros(900), |_, _| {}, Worth::Valid, "valid");
        check(1000.0, ms(2), |_, _| {}, Worth::ClientBound, "and 1.0 ms are allowed");
        check(
            1000.0,
            ms(2),
            |_, ran| ran.stolen_s = 0.03,
            Worth::ClientBound,
            "the hypervisor took 30 ms of CPU time away",
        );
        // 5 % of a gap of 100 ms.
        check(10.0, ms(4), |_, _| {}, Worth::Valid, "valid");
        check(10.0, ms(6), |_, _| {}, Worth::ClientBound, "5.0 ms are allowed");
        check(1.0, ms(1), |tally, _| tally.fail_connection(Fault::Local), Worth::ClientBound, "no port");
        check(1.0, ms(1), |tally, _| tally.fail_connection(Fault::Unsent), Worth::ClientBound, "too late");
        check(1.0, ms(1), |_, ran| ran.handler.cpu_s = 1.96, Worth::ClientBound, "handles connections was busy 98 %");
        check(1.0, ms(1), |_, ran| ran.establisher.queued_s = 0.6, Worth::ClientBound, "waited for a core 30 %");
        let closed = |_: &mut Tally, ran: &mut Ran| {
            ran.asked = Loop::Closed { clients: 1, think_ms: 0.0 };
            ran.handler.cpu_s = 1.96;
        };
        check(1.0, ms(500), closed, Worth::AtLeast, "busy 98 %");
    }
}
