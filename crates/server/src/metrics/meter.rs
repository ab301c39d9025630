//! A loop's side of the metrics: counts requests, times a sample of them, and publishes the figures.
//!
//! Responses and bytes are published at once; so are requests, before their responses are sent, so that a killed
//! process has counted every answered request. The other figures of a [`Snapshot`] are counted in the loop's own
//! memory, and published at most 50 ms after an event; an idle loop wakes once for that.
//!
//! **Timed requests** are sampled at random, one of [`EVERY`] on average: a fixed interval could coincide with the
//! period of a client. Only a request that arrives while its connection is idle is sampled; of pipelined requests that
//! is the first, whose times then include those of the others.
//!
//! **CPU time** costs a system call, 250 to 450 ns, so it is read only where it may differ from elapsed time: at
//! the start and end of a turn, and at the end of a phase that took longer than [`LONG`]. The CPU time between
//! two readings is divided among the phases between them, in proportion to their elapsed time: all of it is
//! assigned, unless the thread was switched out.
//!
//! The kernel also counts context switches in a word of memory that a thread may read, through a perf event; the system
//! call would then be needed only after a switch. But the event makes each wait of the thread 400 ns more expensive,
//! and there are more waits than timed requests.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use amped_core::record::Record;
use amped_sys::clock;
use amped_units::Time;

use super::segment::{PHASES, Phase, Scope, StatsSlot};
use crate::clock::Clock;
use crate::counters::{FIGURES, LoopCounts, Snapshot};

/// One request in this many is timed, on average.
pub(super) const EVERY: u32 = 64;

/// A wait in a phase, for instance for a disk, rarely takes less: CPU time is read after a phase that takes longer.
const LONG: Duration = Duration::from_micros(20);

/// Delay between an event and the publication of figures.
const STEP: Duration = Duration::from_millis(50);

/// Interval at which the memory of connections, all of which must be visited, is measured.
const MEMORY_STEP: Duration = Duration::from_secs(1);

/// The indices of the two figures that are published immediately.
const REQUESTS: usize = 0;
const SENT_BYTES: usize = 1;

/// The metrics of one loop.
pub struct Meter {
    /// `None`: nothing is published.
    slot: Option<StatsSlot>,
    /// Bytes passed to sockets.
    pub sent_bytes: u64,
    /// Event loop statistics.
    pub loops: LoopCounts,
    /// The figures as last published.
    published: [u64; FIGURES.len()],
    /// The time of the last event.
    changed: Time,
    /// When to publish; [`Time::NEVER`]: everything is published.
    due: Time,
    /// The memory of connections as last measured, and when that was.
    connection_bytes: u64,
    memory_at: Time,
    /// Requests until the next timed one, inclusive.
    left: u32,
    random: u64,
    /// The reading of the monotonic clock at the loops' time zero.
    origin_ns: u64,
}

impl Meter {
    /// Creates the meter of a loop that publishes to this slot, or not at all. Must be called by the loop's own thread.
    pub fn new(slot: Option<StatsSlot>, clock: Clock) -> Meter {
        let slot = slot.filter(|_| cfg!(feature = "metrics"));
        // Read in immediate succession: they are the same clock.
        let (origin_ns, now) = (clock::monotonic_ns(), clock.now());
        let origin_ns = origin_ns.saturating_sub(now.as_nanos());
        if let Some(slot) = &slot {
            slot.occupy();
        }
        Meter {
            slot,
            sent_bytes: 0,
            loops: LoopCounts::default(),
            published: [0; FIGURES.len()],
            changed: now,
            due: Time::NEVER,
            connection_bytes: 0,
            memory_at: Time::START,
            left: 1,
            random: RandomState::new().hash_one(0) | 1,
            origin_ns,
        }
    }

    /// Returns whether figures are published.
    pub fn is_on(&self) -> bool {
        cfg!(feature = "metrics") && self.slot.is_some()
    }

    /// Starts timing a request that may be about to arrive, which epoll reported at `ready`, if it is sampled.
    pub fn begin(&mut self, ready: Time) -> Option<Box<Timing>> {
        if !self.is_on() {
            return None;
        }
        self.left -= 1;
        if self.left > 0 {
            return None;
        }
        self.left = self.draw();
        let mut timing = Box::new(Timing {
            phase: Phase::Parsing,
            cpu_ns: cpu_ns(),
            ns: clock::monotonic_ns(),
            head_ns: None,
            phases: [(0, 0); PHASES.len()],
            unshared: [0; PHASES.len()],
        });
        timing.phases[Phase::Waiting as usize].0 = timing.ns.saturating_sub(self.origin_ns + ready.as_nanos());
        Some(timing)
    }

    /// Draws the distance to the next timed request: uniform between 1 and 2 * [`EVERY`] - 1.
    fn draw(&mut self) -> u32 {
        // xorshift64 (Marsaglia 2003), of which the upper half is used.
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        1 + ((self.random >> 32) as u32) % (2 * EVERY - 1)
    }

    /// Counts bytes passed to a socket.
    pub fn sent(&mut self, bytes: u64) {
        self.sent_bytes += bytes;
        if self.is_on() {
            self.publish_figure(SENT_BYTES, self.sent_bytes);
        }
    }

    /// Counts parsed requests.
    pub fn heard(&mut self, requests: u64) {
        if self.is_on() {
            self.publish_figure(REQUESTS, requests);
        }
    }

    /// Counts a response that was sent or aborted, after its line was logged; with its times if it was sampled.
    pub fn count(&mut self, record: &Record, sent_bytes: u64, is_whole: bool, timing: Option<Box<Timing>>) {
        if !self.is_on() {
            return;
        }
        let timing = timing.filter(|_| is_whole).map(|mut timing| {
            timing.rest();
            timing.phases
        });
        let Some(slot) = &self.slot else { return };
        slot.count(record.body_bytes, sent_bytes, record.handler, is_whole);
        if is_whole {
            slot.respond(record.site, record.handler, record.status);
        }
        if let Some(phases) = timing {
            slot.time(record.body_bytes, record.handler, &phases);
        }
    }

    /// Notes an event.
    pub fn note_change(&mut self, now: Time) {
        if self.is_on() {
            self.changed = now;
            self.due = self.due.min(now + STEP);
        }
    }

    /// Returns when [`publish`](Meter::publish) has something to do.
    pub fn next_due(&self) -> Time {
        self.due
    }

    /// Returns whether the figures describe the loop's whole process.
    pub fn scope(&self) -> Option<Scope> {
        self.slot.as_ref().map(StatsSlot::scope)
    }

    /// Returns whether the memory of connections should be measured.
    pub fn wants_memory(&self, now: Time, at_the_end: bool) -> bool {
        at_the_end || now >= self.memory_at + MEMORY_STEP
    }

    /// Publishes the figures of the loop, with the memory of connections if it was measured, and those
    /// of the process if its loops are threads.
    pub fn publish(
        &mut self,
        now: Time,
        mut figures: Snapshot,
        connection_bytes: Option<u64>,
        of_process: impl FnOnce() -> Snapshot,
    ) {
        let Some(slot) = self.slot.clone() else { return };
        self.due = Time::NEVER;
        match connection_bytes {
            Some(_) => self.memory_at = now,
            None if self.memory_at <= self.changed => self.due = self.memory_at + MEMORY_STEP,
            None => {}
        }
        figures.connection_bytes = connection_bytes.unwrap_or(self.connection_bytes);
        self.connection_bytes = figures.connection_bytes;
        for (number, figure) in figures.fields().into_iter().enumerate() {
            self.publish_figure(number, *figure);
        }
        slot.look_after_file();
        if slot.scope() == Scope::Loop
            && let Err(due) = slot.segment().publish_process(now, self.changed, of_process)
        {
            self.due = self.due.min(due);
        }
    }

    /// Publishes the new value of a figure.
    fn publish_figure(&mut self, number: usize, figure: u64) {
        let known = std::mem::replace(&mut self.published[number], figure);
        if let Some(slot) = &self.slot
            && known != figure
        {
            slot.add_to_figure(number, FIGURES[number].growth(known, figure));
        }
    }
}

/// The times of a sampled request.
#[derive(Debug)]
pub struct Timing {
    phase: Phase,
    /// Elapsed time is counted up to here.
    ns: u64,
    /// The thread's CPU time as last read.
    cpu_ns: u64,
    /// When its head was parsed, if that was after `ns`.
    head_ns: Option<u64>,
    /// Elapsed and CPU time of each phase.
    phases: [(u64, u64); PHASES.len()],
    /// Elapsed time of each since CPU time was last read.
    unshared: [u64; PHASES.len()],
}

impl Timing {
    /// Returns the current phase.
    pub fn phase(&self) -> Phase {
        self.phase
    }

    /// Notes when the head was parsed, in this turn: the next reading separates the time before from the time after.
    pub fn note_head(&mut self, head_ns: u64) {
        self.head_ns = Some(head_ns);
    }

    /// Starts another turn of the connection: the time since the last one was not spent on it by this loop.
    pub fn resume(&mut self) {
        self.cpu_ns = cpu_ns();
        let now = clock::monotonic_ns();
        self.phases[self.phase as usize].0 += now.saturating_sub(self.ns);
        self.ns = now;
    }

    /// Ends the turn.
    pub fn rest(&mut self) {
        self.read();
        self.share();
    }

    /// Ends a phase.
    pub fn pass(&mut self, next: Phase) {
        self.read();
        if Duration::from_nanos(self.unshared.iter().sum()) > LONG {
            self.share();
        }
        self.phase = next;
    }

    /// Counts the elapsed time.
    fn read(&mut self) {
        let now = clock::monotonic_ns();
        if let Some(head_ns) = self.head_ns.take() {
            self.pass_until(head_ns.min(now));
            self.phase = Phase::Processing;
        }
        self.pass_until(now);
    }

    fn pass_until(&mut self, now: u64) {
        let elapsed = now.saturating_sub(self.ns);
        self.phases[self.phase as usize].0 += elapsed;
        self.unshared[self.phase as usize] += elapsed;
        self.ns += elapsed;
    }

    /// Divides the thread's CPU time among the phases.
    fn share(&mut self) {
        let now = cpu_ns();
        let elapsed: u64 = self.unshared.iter().sum();
        // The measurement includes the system call itself, so slightly more than the elapsed time still counts as all of it.
        let used = now.saturating_sub(self.cpu_ns).min(elapsed);
        for ((_, cpu_ns), part) in self.phases.iter_mut().zip(&mut self.unshared) {
            *cpu_ns += (u128::from(used) * u128::from(*part) / u128::from(elapsed.max(1))) as u64;
            *part = 0;
        }
        self.cpu_ns = now;
    }
}

/// Returns the CPU time of this thread.
fn cpu_ns() -> u64 {
    u64::try_from(clock::cpu_time().as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
#[cfg(feature = "metrics")]
mod tests {
    use super::super::StatsSegment;
    use super::*;
    use amped_core::record::Handler;
    use std::sync::Arc;
    use std::time::Instant;

    fn meter() -> (Arc<StatsSegment>, Meter) {
        let segment = Arc::new(StatsSegment::new(None, 1, false).expect("memory"));
        let meter = Meter::new(Some(segment.slot(0)), Clock::start());
        (segment, meter)
    }

    fn record_of(body_bytes: u64, is_made: bool) -> Record {
        let mut record = Record::default();
        (record.body_bytes, record.handler) = (body_bytes, if is_made { Handler::Own } else { Handler::File });
        record
    }

    #[test]
    fn hot_figures_have_fixed_positions() {
        assert_eq!((FIGURES[REQUESTS].name, FIGURES[SENT_BYTES].name), ("requests", "sent"));
    }

    #[test]
    fn one_request_in_64_is_sampled_at_random() {
        let (_, mut meter) = meter();
        let drawn: Vec<bool> = (0..64_000).map(|_| meter.begin(Time::START).is_some()).collect();
        let timed = drawn.iter().filter(|timed| **timed).count();
        // The standard deviation of the sum of a thousand distances is 1.8 %.
        assert!((900..1100).contains(&timed), "{timed}");
        for step in 1..400 {
            let best = (0..step).map(|first| drawn.iter().skip(first).step_by(step).filter(|timed| **timed).count());
            let (best, expected) = (best.max().expect("one"), timed as f64 / step as f64);
            assert!((best as f64) < 3.0 * expected + 20.0, "a step of {step} meets {best} of {timed}");
        }
        let mut off = Meter::new(None, Clock::start());
        assert!((0..100).all(|_| off.begin(Time::START).is_none()));
    }

    #[test]
    fn phase_times_include_waits_and_cpu_time_does_not() {
        let (segment, mut meter) = meter();
        let millis = |n: u64| Duration::from_millis(n);
        let work = |time| {
            let until = Instant::now() + time;
            while Instant::now() < until {}
        };
        let begun = clock::monotonic_ns();
        let mut timing = meter.begin(Time::from_nanos(begun - meter.origin_ns)).expect("the first");
        work(millis(3));
        timing.note_head(clock::monotonic_ns());
        work(millis(6));
        timing.rest();
        assert_eq!(timing.phase(), Phase::Processing);
        // Simulates a helper's work.
        std::thread::sleep(millis(20));
        timing.resume();
        timing.pass(Phase::Sending);
        work(millis(2));
        timing.pass(Phase::Logging);
        meter.count(&record_of(5000, false), 5000, true, Some(timing));
        let whole = clock::monotonic_ns() - begun;

        let class = segment.sum().classes[3];
        assert_eq!((class.replies, class.body_bytes, class.timed), (1, 5000, 1));
        let [waiting, parsing, processing, sending, logging] = class.phases;
        // Together they cover the interval without gaps, except for the last lines of this test.
        let sum: u64 = class.phases.iter().map(|phase| phase.elapsed_ns).sum();
        assert!(sum <= whole && sum > whole / 2, "{sum} of {whole}");
        for (phase, least) in [(parsing, 3), (processing, 26), (sending, 2)] {
            assert!(phase.elapsed_ns >= least * 1_000_000 && phase.cpu_ns <= phase.elapsed_ns, "{phase:?}");
        }
        assert!(processing.cpu_ns <= processing.elapsed_ns - 20_000_000, "sleep uses no CPU time: {processing:?}");
        assert!(parsing.cpu_ns > 0 && processing.cpu_ns > 0 && sending.cpu_ns > 0);
        assert!(waiting.cpu_ns == 0 && logging.elapsed_ns < processing.elapsed_ns);
        assert!(class.phases.iter().all(|phase| phase.buckets.iter().sum::<u64>() == 1));
    }

    #[test]
    fn aborted_response_counts_only_its_bytes() {
        let (segment, mut meter) = meter();
        let timing = meter.begin(Time::START);
        meter.count(&record_of(5000, true), 17, false, timing);
        let class = segment.sum().classes[4];
        assert_eq!((class.replies, class.body_bytes, class.timed), (0, 17, 0));
    }

    #[test]
    fn changed_figures_are_published_once() {
        let (segment, mut meter) = meter();
        let at = Time::from_millis;
        let publish = |meter: &mut Meter, now, connections| {
            let figures = Snapshot { connections, ..Snapshot::default() };
            let memory = meter.wants_memory(now, false).then_some(100 * connections);
            meter.publish(now, figures, memory, || Snapshot { lost_lines: 2, ..Snapshot::default() });
        };
        let figure = |name: &str| {
            segment.sum().figures[FIGURES.iter().position(|figure| figure.name == name).expect("a figure")]
        };
        assert_eq!(meter.next_due(), Time::NEVER);
        meter.note_change(at(2000));
        meter.note_change(at(2010));
        assert_eq!(meter.next_due(), at(2050));
        publish(&mut meter, at(2050), 7);
        assert_eq!(["connections", "connection", "log_lines_lost"].map(figure), [7, 700, 2]);
        assert_eq!(meter.next_due(), Time::NEVER, "everything is published");
        // A lower value; and the memory of connections is due.
        meter.note_change(at(2500));
        publish(&mut meter, at(2550), 4);
        assert_eq!(["connections", "connection"].map(figure), [4, 700]);
        assert_eq!(meter.next_due(), at(3050));
        publish(&mut meter, at(3050), 4);
        assert_eq!((figure("connection"), meter.next_due()), (400, Time::NEVER));
        meter.sent(9);
        meter.heard(3);
        assert_eq!(["sent", "requests"].map(figure), [9, 3], "these are published at once");
    }
}
