//! A loop's own side of the metrics: counts, times one request of many, and publishes.
//!
//! What belongs to a reply, and the bytes, go to the segment at once; so do requests, before their replies are sent, so that a
//! process that is killed has counted whatever was answered. The other figures of a [`Snapshot`] are counted in the loop's own
//! memory in any case; they go to the segment when something has happened, 50 ms later at the latest, and a loop that has
//! nothing to do wakes once for that.
//!
//! **Which requests are timed** is drawn by chance, one of [`EVERY`] on average: a fixed step would fall in with a client that
//! repeats itself. Only one that comes while nothing else is under way on its connection is drawn; of requests sent ahead that
//! is the first, whose times then hold the others' too.
//!
//! **CPU time** costs a system call, 250 to 450 ns, so it is asked for only where it may differ from what passed: at the
//! beginning and at the end of a turn, and at the end of a phase that took longer than [`LONG`]. What the thread used between
//! two such readings is shared out among the phases between them, in proportion to what passed in each: all of it to each,
//! unless the thread was switched.
//!
//! The kernel also counts switches in a word of memory that a thread may read, by an event of perf, and then the call is
//! needed after a switch alone. But the event makes each wait of the thread 400 ns dearer, and there are more of these than of
//! requests that are timed.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use amped_core::record::Record;
use amped_sys::clock;
use amped_units::Time;

use super::segment::{PHASES, Phase, Scope, StatsSlot};
use crate::clock::Clock;
use crate::counters::{FIGURES, LoopCounts, Snapshot};

/// Of so many requests one is timed, on average.
pub(super) const EVERY: u32 = 64;

/// Whoever waits in a phase, for a disk, seldom waits for less: a phase that takes longer is asked for its own CPU time.
const LONG: Duration = Duration::from_micros(20);

/// Figures are published so long after something has happened.
const STEP: Duration = Duration::from_millis(50);

/// The memory of connections, all of which have to be looked at, is asked for so often.
const MEMORY_STEP: Duration = Duration::from_secs(1);

/// The numbers of two figures that do not wait.
const REQUESTS: usize = 0;
const SENT_BYTES: usize = 1;

/// One loop's.
pub struct Meter {
    /// `None`: nobody is to be told.
    slot: Option<StatsSlot>,
    /// Bytes given to sockets.
    pub sent_bytes: u64,
    /// The loop itself.
    pub loops: LoopCounts,
    /// What the segment has of this loop.
    published: [u64; FIGURES.len()],
    /// When something happened last.
    changed: Time,
    /// When to publish; [`Time::NEVER`]: all is said.
    due: Time,
    /// The memory of connections when it was last looked at, and when that was.
    connection_bytes: u64,
    memory_at: Time,
    /// Requests until the next that is timed, that one included.
    left: u32,
    random: u64,
    /// What the clock showed when the loops' own showed nothing.
    origin_ns: u64,
}

impl Meter {
    /// For a loop with this place, or one of whom nobody is to know. To be made by the loop's own thread.
    pub fn new(slot: Option<StatsSlot>, clock: Clock) -> Meter {
        let slot = slot.filter(|_| cfg!(feature = "metrics"));
        // One right behind the other: they are the same clock.
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

    /// Whether anybody is to know.
    pub fn is_on(&self) -> bool {
        cfg!(feature = "metrics") && self.slot.is_some()
    }

    /// A request may be about to come, of which epoll told at `ready`: whether it is timed, and the beginning of that.
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

    /// The distance to the next request that is timed: from 1 to 2 * [`EVERY`] - 1, each as likely.
    fn draw(&mut self) -> u32 {
        // xorshift64 (Marsaglia 2003), of which the upper half is used.
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        1 + ((self.random >> 32) as u32) % (2 * EVERY - 1)
    }

    /// Bytes were given to a socket.
    pub fn sent(&mut self, bytes: u64) {
        self.sent_bytes += bytes;
        if self.is_on() {
            self.tell(SENT_BYTES, self.sent_bytes);
        }
    }

    /// So many requests have been read.
    pub fn heard(&mut self, requests: u64) {
        if self.is_on() {
            self.tell(REQUESTS, requests);
        }
    }

    /// A reply is out, or broken off, and its line is with the log; with it, what it took if that was timed.
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

    /// Something has happened.
    pub fn note_change(&mut self, now: Time) {
        if self.is_on() {
            self.changed = now;
            self.due = self.due.min(now + STEP);
        }
    }

    /// When [`publish`](Meter::publish) has something to do.
    pub fn next_due(&self) -> Time {
        self.due
    }

    /// Whether figures are about the loop's whole process.
    pub fn scope(&self) -> Option<Scope> {
        self.slot.as_ref().map(StatsSlot::scope)
    }

    /// Whether the memory of connections is to be looked at.
    pub fn wants_memory(&self, now: Time, at_the_end: bool) -> bool {
        at_the_end || now >= self.memory_at + MEMORY_STEP
    }

    /// Publishes the figures of the loop, with the memory of connections if it was wanted, and those of the process, if its
    /// loops are threads.
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
            self.tell(number, *figure);
        }
        slot.look_after_file();
        if slot.scope() == Scope::Loop
            && let Err(due) = slot.segment().publish_process(now, self.changed, of_process)
        {
            self.due = self.due.min(due);
        }
    }

    /// What the segment has of a figure becomes this.
    fn tell(&mut self, number: usize, figure: u64) {
        let known = std::mem::replace(&mut self.published[number], figure);
        if let Some(slot) = &self.slot
            && known != figure
        {
            slot.add_to_figure(number, FIGURES[number].growth(known, figure));
        }
    }
}

/// A request that is timed.
#[derive(Debug)]
pub struct Timing {
    phase: Phase,
    /// Up to here all that passed is counted.
    ns: u64,
    /// The thread's CPU time when it was asked for last.
    cpu_ns: u64,
    /// When its head had been read, if that was after `ns`.
    head_ns: Option<u64>,
    /// Elapsed and CPU time of each phase.
    phases: [(u64, u64); PHASES.len()],
    /// What has passed in each since CPU time was asked for last.
    unshared: [u64; PHASES.len()],
}

impl Timing {
    /// The phase that it is in.
    pub fn phase(&self) -> Phase {
        self.phase
    }

    /// Its head had been read when the clock showed this, in this turn: the next reading parts what was before from what was
    /// behind it.
    pub fn note_head(&mut self, head_ns: u64) {
        self.head_ns = Some(head_ns);
    }

    /// The connection has its turn again: what passed was no work of this loop for it.
    pub fn resume(&mut self) {
        self.cpu_ns = cpu_ns();
        let now = clock::monotonic_ns();
        self.phases[self.phase as usize].0 += now.saturating_sub(self.ns);
        self.ns = now;
    }

    /// The turn is over.
    pub fn rest(&mut self) {
        self.read();
        self.share();
    }

    /// A phase is over.
    pub fn pass(&mut self, next: Phase) {
        self.read();
        if Duration::from_nanos(self.unshared.iter().sum()) > LONG {
            self.share();
        }
        self.phase = next;
    }

    /// Counts what has passed.
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

    /// Shares out what the thread has used.
    fn share(&mut self) {
        let now = cpu_ns();
        let elapsed: u64 = self.unshared.iter().sum();
        // The call itself lies within, so a little more than what passed is nothing else.
        let used = now.saturating_sub(self.cpu_ns).min(elapsed);
        for ((_, cpu_ns), part) in self.phases.iter_mut().zip(&mut self.unshared) {
            *cpu_ns += (u128::from(used) * u128::from(*part) / u128::from(elapsed.max(1))) as u64;
            *part = 0;
        }
        self.cpu_ns = now;
    }
}

/// CPU time of this thread.
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
        let segment = Arc::new(StatsSegment::new(None, 1).expect("memory"));
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
        // The deviation of the sum of a thousand distances is 1.8 %.
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
        // A helper is at it.
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
        // They are parts of one stretch, in which nothing is left out but the last lines of this test.
        let sum: u64 = class.phases.iter().map(|phase| phase.elapsed_ns).sum();
        assert!(sum <= whole && sum > whole / 2, "{sum} of {whole}");
        for (phase, least) in [(parsing, 3), (processing, 26), (sending, 2)] {
            assert!(phase.elapsed_ns >= least * 1_000_000 && phase.cpu_ns <= phase.elapsed_ns, "{phase:?}");
        }
        assert!(processing.cpu_ns <= processing.elapsed_ns - 20_000_000, "sleep is no work: {processing:?}");
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
        assert_eq!(meter.next_due(), Time::NEVER, "all is said");
        // Less than before, and the memory of connections has its time.
        meter.note_change(at(2500));
        publish(&mut meter, at(2550), 4);
        assert_eq!(["connections", "connection"].map(figure), [4, 700]);
        assert_eq!(meter.next_due(), at(3050));
        publish(&mut meter, at(3050), 4);
        assert_eq!((figure("connection"), meter.next_due()), (400, Time::NEVER));
        meter.sent(9);
        meter.heard(3);
        assert_eq!(["sent", "requests"].map(figure), [9, 3], "these do not wait");
    }
}
