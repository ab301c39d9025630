//! The memory in which all loops publish: a header that describes the layout, and a slot of words for each loop.
//!
//! Each word is written by one loop only, atomically, and is a sum since the start or a current value; the reader adds
//! the slots up. So nothing is locked, a reader costs the loops nothing, and a process that is killed in the middle of
//! an update leaves valid words. Two related words may be one request apart. The next owner of a slot continues the
//! sums of the previous one; only current values are reset.
//!
//! When there are more processes than slots, as for a moment after several reloads, the processes without a slot share
//! the last one, which is updated atomically by several writers. If loops are threads, that slot has the figures of the
//! process, such as those of caches that threads share.
//!
//! The header names all figures, classes and phases in their order, as text, so that a reader need not know
//! them. The layout is in docs/metrics-file.md.

use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use amped_core::record::Handler;
use amped_sys::words::Words;
use amped_units::Time;

use crate::counters::{FIGURES, Kind, Snapshot, Unit};
use crate::say;

/// The first bytes of the file.
const MAGIC: [u8; 8] = *b"AMPEDMET";

/// The version of the layout.
const VERSION: u64 = 1;

/// The offset of the names, bytes.
const NAMES_AT: usize = 128;

/// The header and the slots are whole pages, so that no two writers share one.
const PAGE_WORDS: usize = 512;

/// Classes by the size of a response's body, as in the papers: their names, and their upper limits.
pub const SIZES: [(&str, u64); 5] =
    [("<1K", 1 << 10), ("<10K", 10 << 10), ("<100K", 100 << 10), ("<1M", 1 << 20), ("more", u64::MAX)];

/// A file; generated for the request by an application or the server; or an error of the server.
pub const KINDS: [&str; 3] = ["static", "dynamic", "error"];

/// Classes: each size of each kind.
pub const CLASSES: usize = SIZES.len() * KINDS.len();

/// A part of the time that a request takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Its first bytes had arrived, and the loop was busy otherwise.
    Waiting,
    /// Until its head was parsed, including the receive call and the time between pieces of it.
    Parsing,
    /// Until the response was ready: caches, disk, helpers.
    Processing,
    /// Until the last byte of the response was passed to the kernel.
    Sending,
    /// Until its line was passed to the log.
    Logging,
}

/// The names of the phases, by the numbers of [`Phase`].
pub const PHASES: [&str; 5] = ["waiting", "parsing", "processing", "sending", "logging"];

/// Buckets of a histogram: the first ends at 2^[`FIRST_BUCKET_BITS`] ns, each other at twice
/// the one before it; the last has no limit.
pub const BUCKETS: usize = 24;

/// 1.024 us; the last bucket but one then ends at 4.3 s.
pub(super) const FIRST_BUCKET_BITS: u32 = 10;

/// In a slot: the owner's process ID, 0 if it is free.
const OWNER: usize = 0;
/// In a slot: how many owners it has had; 0: readers may skip it.
const OWNERS: usize = 1;
/// In a slot: the figures.
const FIGURES_AT: usize = 8;
/// In a slot: the classes.
const CLASSES_AT: usize = FIGURES_AT + FIGURES.len();
/// In a class: responses whose last byte was passed to the kernel.
const REPLIES: usize = 0;
/// In a class: bytes of bodies, including those of aborted responses.
const BODY_BYTES: usize = 1;
/// In a class: responses that were timed.
const TIMED: usize = 2;
/// In a class: the phases, each with elapsed time, CPU time, and a histogram of elapsed time.
const PHASES_AT: usize = 3;
const PHASE_WORDS: usize = 2 + BUCKETS;
const CLASS_WORDS: usize = PHASES_AT + PHASES.len() * PHASE_WORDS;
const SLOT_WORDS: usize = (RESPONSES_AT + RESPONSES).next_multiple_of(PAGE_WORDS);

/// The handlers of responses, by the numbers of [`Handler`].
pub const HANDLERS: [&str; 4] = ["file", "app", "own", "error"];

/// Classes of statuses: 2xx to 5xx.
pub(super) const STATUSES: usize = 4;

/// Sites whose responses are counted separately; those of all others are counted together.
pub(super) const SITES_MAX: usize = 32;

/// In a slot: responses by site, handler and class of status.
const RESPONSES_AT: usize = CLASSES_AT + CLASSES * CLASS_WORDS;

/// Their number.
pub(super) const RESPONSES: usize = (SITES_MAX + 1) * HANDLERS.len() * STATUSES;

/// Interval at which the figures of the process are published, by the first thread that notices.
const PROCESS_STEP: Duration = Duration::from_millis(100);

/// Returns the number of a class.
fn class_of(body_bytes: u64, handler: Handler) -> usize {
    let size = SIZES.iter().position(|(_, end)| body_bytes < *end).unwrap_or(SIZES.len() - 1);
    let kind = match handler {
        Handler::File => 0,
        Handler::App | Handler::Own => 1,
        Handler::Error => 2,
    };
    size * KINDS.len() + kind
}

/// Returns the bucket of a time.
fn bucket_of(ns: u64) -> usize {
    ((u64::BITS - (ns >> FIRST_BUCKET_BITS).leading_zeros()) as usize).min(BUCKETS - 1)
}

/// One process's view of the memory.
#[derive(Debug)]
pub struct StatsSegment {
    words: Words,
    head_words: usize,
    /// Including the last one, which is shared.
    slots: usize,
    /// When the figures of the process were last published, and their values.
    process: Mutex<(Time, Snapshot)>,
    /// Whether the truncation of the file was reported.
    cut_said: AtomicBool,
}

impl StatsSegment {
    /// Creates memory for this many loops; with a path it is a file of that name. `later`: another process uses the name, until
    /// [`take_name`](StatsSegment::take_name). Must be called before the fork.
    ///
    /// # Errors
    /// A message with a remedy.
    pub fn new(path: Option<&Path>, loops: usize, later: bool) -> Result<StatsSegment, String> {
        let names = names();
        let head_words = (NAMES_AT + names.len()).div_ceil(8).next_multiple_of(PAGE_WORDS);
        let slots = loops + 1;
        let count = head_words + slots * SLOT_WORDS;
        let head = |words: &[AtomicU64]| write_head(words, &names, head_words, slots);
        let words = match path {
            None => {
                let words =
                    Words::new(count).map_err(|error| format!("cannot allocate memory for the metrics: {error}"))?;
                head(words.all());
                words
            }
            Some(path) => {
                let is_ours = |begin: &[u8]| begin.starts_with(&MAGIC);
                let words = match later {
                    true => Words::publish_later(path, count, is_ours, head),
                    false => Words::publish(path, count, is_ours, head),
                };
                words.map_err(|error| cannot_publish(path, &error))?
            }
        };
        Ok(StatsSegment { words, head_words, slots, process: Mutex::default(), cut_said: AtomicBool::new(false) })
    }

    /// Gives the file its name, which another process has used so far.
    ///
    /// # Errors
    /// A message with a remedy.
    pub fn take_name(path: &Path) -> Result<(), String> {
        Words::name_draft(path).map_err(|error| cannot_publish(path, &error))
    }

    /// Removes the file of a process that has ended before it took the name.
    pub fn remove_draft(path: &Path, process: u32) {
        Words::remove_draft(path, process);
    }

    /// Returns the slot of the loop of this number, among threads.
    pub fn slot(self: &Arc<StatsSegment>, number: usize) -> StatsSlot {
        debug_assert!(number + 1 < self.slots, "loop {number} of {}", self.slots - 1);
        StatsSlot { segment: Arc::clone(self), slot: number, alone: true, scope: Scope::Loop }
    }

    /// Publishes the figures of a process whose loops are threads, unless that was done a moment ago. If the last
    /// publication is older than the event at `changed`, returns when to try again.
    ///
    /// # Errors
    /// The time to try again.
    pub(super) fn publish_process(
        &self,
        now: Time,
        changed: Time,
        figures: impl FnOnce() -> Snapshot,
    ) -> Result<(), Time> {
        let mut process = self.process.lock().unwrap_or_else(PoisonError::into_inner);
        let (at, known) = &mut *process;
        if *at > changed {
            return Ok(());
        }
        if now < *at + PROCESS_STEP && *at != Time::START {
            return Err(*at + PROCESS_STEP);
        }
        *at = now;
        let mut figures = figures();
        let slot = self.slot_words(self.slots - 1);
        slot[OWNERS].store(1, Relaxed);
        let words = slot[FIGURES_AT..].iter().zip(FIGURES);
        for ((word, figure), (known, now)) in words.zip(known.fields().into_iter().zip(figures.fields())) {
            word.store(word.load(Relaxed).wrapping_add(figure.growth(*known, *now)), Relaxed);
        }
        *known = figures;
        Ok(())
    }

    /// Returns the sum of all slots.
    pub fn sum(&self) -> Sum {
        let mut sum = Sum::default();
        for slot in 0..self.slots {
            let words = self.slot_words(slot);
            let add = |to: &mut u64, at: usize| *to = to.wrapping_add(words[at].load(Relaxed));
            sum.figures.iter_mut().enumerate().for_each(|(number, figure)| add(figure, FIGURES_AT + number));
            sum.responses.iter_mut().enumerate().for_each(|(number, count)| add(count, RESPONSES_AT + number));
            for (number, class) in sum.classes.iter_mut().enumerate() {
                let at = CLASSES_AT + number * CLASS_WORDS;
                add(&mut class.replies, at + REPLIES);
                add(&mut class.body_bytes, at + BODY_BYTES);
                add(&mut class.timed, at + TIMED);
                for (number, phase) in class.phases.iter_mut().enumerate() {
                    let at = at + PHASES_AT + number * PHASE_WORDS;
                    add(&mut phase.elapsed_ns, at);
                    add(&mut phase.cpu_ns, at + 1);
                    phase.buckets.iter_mut().enumerate().for_each(|(number, bucket)| add(bucket, at + 2 + number));
                }
            }
        }
        sum
    }

    fn slot_words(&self, number: usize) -> &[AtomicU64] {
        let begin = self.head_words + number * SLOT_WORDS;
        &self.words.all()[begin..begin + SLOT_WORDS]
    }
}

/// Writes the layout, for a reader that has only [`MAGIC`] and [`VERSION`].
fn write_head(words: &[AtomicU64], names: &str, head_words: usize, slots: usize) {
    let began = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let numbers = [
        u64::from_ne_bytes(MAGIC),
        VERSION,
        (head_words * 8) as u64,
        (SLOT_WORDS * 8) as u64,
        slots as u64,
        std::process::id().into(),
        u64::try_from(began.as_nanos()).unwrap_or(u64::MAX),
        FIGURES.len() as u64,
        CLASSES as u64,
        PHASES.len() as u64,
        BUCKETS as u64,
        FIRST_BUCKET_BITS.into(),
        (FIGURES_AT * 8) as u64,
        names.len() as u64,
    ];
    words.iter().zip(numbers).for_each(|(word, number)| word.store(number, Relaxed));
    for (word, bytes) in words[NAMES_AT / 8..].iter().zip(names.as_bytes().chunks(8)) {
        let mut whole = [0; 8];
        whole[..bytes.len()].copy_from_slice(bytes);
        word.store(u64::from_ne_bytes(whole), Relaxed);
    }
}

/// Returns one line for each figure, class and phase, in their order.
fn names() -> String {
    let mut names = String::new();
    for figure in FIGURES {
        let kind = match figure.kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
        };
        let unit = match figure.unit {
            Unit::Things => "things",
            Unit::Bytes => "bytes",
            Unit::Nanoseconds => "nanoseconds",
        };
        names += &format!("figure {} {kind} {unit} {}\n", figure.name, figure.labels);
    }
    for (size, end) in SIZES {
        KINDS.iter().for_each(|kind| names += &format!("class {size} {kind} {end}\n"));
    }
    PHASES.iter().for_each(|phase| names += &format!("phase {phase}\n"));
    names
}

fn cannot_publish(path: &Path, error: &io::Error) -> String {
    let shown = path.display();
    let why = match error.kind() {
        io::ErrorKind::AddrInUse => "a running server uses it: stop that server, or name another file".to_owned(),
        io::ErrorKind::AlreadyExists => "a file that is not a metrics file exists there: name another file".to_owned(),
        io::ErrorKind::Unsupported => {
            "it would be on a disk, and the loops would have to wait while the kernel writes it \
                                       out: name a file in /run or /dev/shm"
                .to_owned()
        }
        io::ErrorKind::NotFound => "its directory does not exist: create it, or name another".to_owned(),
        _ => error.to_string(),
    };
    format!("cannot create the metrics file {shown}: {why}")
}

/// The scope of a loop's figures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// The loop; the figures of the process are published by any of its loops.
    Loop,
    /// The loop and its process, which has no other.
    Process,
}

/// A loop's slot of the segment.
#[derive(Clone, Debug)]
pub struct StatsSlot {
    segment: Arc<StatsSegment>,
    slot: usize,
    /// The only writer of the slot.
    alone: bool,
    scope: Scope,
}

impl StatsSlot {
    /// Returns what its figures describe.
    pub fn scope(&self) -> Scope {
        self.scope
    }

    /// Returns the segment.
    pub fn segment(&self) -> &StatsSegment {
        &self.segment
    }

    /// Reports once that the file was truncated; among processes, the one with the first slot does.
    pub(super) fn look_after_file(&self) {
        let StatsSegment { words, cut_said, .. } = &*self.segment;
        if (self.slot == 0 || self.scope == Scope::Loop) && words.is_cut() && !cut_said.swap(true, Relaxed) {
            say!("another program truncated the metrics file; restart the server to create it again");
        }
    }

    /// Assigns the slot to this process.
    pub(super) fn occupy(&self) {
        let slot = self.segment.slot_words(self.slot);
        slot[OWNER].store(std::process::id().into(), Relaxed);
        slot[OWNERS].fetch_add(1, Relaxed);
    }

    /// Adds to a figure, by its number. A decrease is added as its complement to 2^64.
    pub(super) fn add_to_figure(&self, number: usize, more: u64) {
        self.add(self.words(), FIGURES_AT + number, more);
    }

    /// Counts a response, or the part of it that was sent before it was aborted.
    pub(super) fn count(&self, body_bytes: u64, sent_bytes: u64, handler: Handler, is_whole: bool) {
        let (words, at) = (self.words(), CLASSES_AT + class_of(body_bytes, handler) * CLASS_WORDS);
        self.add(words, at + REPLIES, is_whole.into());
        self.add(words, at + BODY_BYTES, sent_bytes);
    }

    /// Counts a response by its site, its handler and its status.
    pub(super) fn respond(&self, site: u16, handler: Handler, status: u16) {
        let class = usize::from(status / 100).clamp(2, 5) - 2;
        let number = (usize::from(site).min(SITES_MAX) * HANDLERS.len() + handler as usize) * STATUSES + class;
        self.add(self.words(), RESPONSES_AT + number, 1);
    }

    /// Adds the times of a response: elapsed and CPU time of each phase, in nanoseconds.
    pub(super) fn time(&self, body_bytes: u64, handler: Handler, phases: &[(u64, u64); PHASES.len()]) {
        let (words, at) = (self.words(), CLASSES_AT + class_of(body_bytes, handler) * CLASS_WORDS);
        self.add(words, at + TIMED, 1);
        for (number, (elapsed_ns, cpu_ns)) in phases.iter().enumerate() {
            let at = at + PHASES_AT + number * PHASE_WORDS;
            self.add(words, at, *elapsed_ns);
            self.add(words, at + 1, *cpu_ns);
            self.add(words, at + 2 + bucket_of(*elapsed_ns), 1);
        }
    }

    fn words(&self) -> &[AtomicU64] {
        self.segment.slot_words(self.slot)
    }

    fn add(&self, words: &[AtomicU64], at: usize, more: u64) {
        let word = &words[at];
        if self.alone {
            // A load and a store. One locked instruction would cost ten times as much.
            word.store(word.load(Relaxed).wrapping_add(more), Relaxed);
        } else {
            word.fetch_add(more, Relaxed);
        }
    }
}

/// The slots of processes that come and go.
#[derive(Debug)]
pub struct StatsSlots {
    segment: Arc<StatsSegment>,
    free: Vec<usize>,
}

impl StatsSlots {
    /// All slots of this segment.
    pub fn of(segment: Arc<StatsSegment>) -> StatsSlots {
        let free = (0..segment.slots - 1).rev().collect();
        StatsSlots { segment, free }
    }

    /// Returns a slot for a process.
    pub fn take(&mut self) -> StatsSlot {
        let (slot, alone) = self.free.pop().map_or((self.segment.slots - 1, false), |slot| (slot, true));
        StatsSlot { segment: Arc::clone(&self.segment), slot, alone, scope: Scope::Process }
    }

    /// Releases the slot of a process that has ended, for whatever reason. Its
    /// counters stay; its current values are removed.
    pub fn give_back(&mut self, slot: &StatsSlot) {
        if !slot.alone {
            return;
        }
        let words = self.segment.slot_words(slot.slot);
        words[OWNER].store(0, Relaxed);
        for (word, figure) in words[FIGURES_AT..].iter().zip(FIGURES) {
            if figure.kind == Kind::Gauge {
                word.store(0, Relaxed);
            }
        }
        self.free.push(slot.slot);
    }
}

/// The sum of all slots.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sum {
    /// The figures, in the order of [`FIGURES`].
    pub figures: [u64; FIGURES.len()],
    /// The classes: each size as static, then as dynamic, then as an error.
    pub classes: [ClassSum; CLASSES],
    /// Responses: for each site, and for the others together, each handler's 2xx to 5xx.
    pub responses: [u64; RESPONSES],
}

impl Default for Sum {
    fn default() -> Sum {
        Sum { figures: [0; FIGURES.len()], classes: Default::default(), responses: [0; RESPONSES] }
    }
}

/// The requests of a class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClassSum {
    /// Responses whose last byte was passed to the kernel.
    pub replies: u64,
    /// Bytes of bodies, including those of aborted responses.
    pub body_bytes: u64,
    /// Responses that were timed.
    pub timed: u64,
    /// Their phases, by the numbers of [`Phase`].
    pub phases: [PhaseSum; PHASES.len()],
}

/// A phase of the timed requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PhaseSum {
    /// Elapsed time, nanoseconds.
    pub elapsed_ns: u64,
    /// CPU time of the loop, nanoseconds.
    pub cpu_ns: u64,
    /// The histogram of elapsed time.
    pub buckets: [u64; BUCKETS],
}

const _: () = assert!(Phase::Logging as usize + 1 == PHASES.len());

#[cfg(test)]
mod tests {
    use super::*;

    fn segment(loops: usize) -> Arc<StatsSegment> {
        Arc::new(StatsSegment::new(None, loops, false).expect("memory"))
    }

    #[test]
    fn size_classes_end_at_their_bounds() {
        let check = |bytes: u64, is_made: bool, expected: &str| {
            let class = class_of(bytes, if is_made { Handler::Own } else { Handler::File });
            assert_eq!(format!("{} {}", SIZES[class / 3].0, KINDS[class % 3]), expected, "{bytes}");
        };
        check(0, false, "<1K static");
        check(1023, true, "<1K dynamic");
        check(1024, false, "<10K static");
        check(10 * 1024, false, "<100K static");
        check((100 << 10) - 1, false, "<100K static");
        check(100 << 10, true, "<1M dynamic");
        check(1 << 20, false, "more static");
        check(u64::MAX, false, "more static");
    }

    #[test]
    fn buckets_end_at_powers_of_two() {
        let check = |ns: u64, expected: usize| assert_eq!(bucket_of(ns), expected, "{ns}");
        check(0, 0);
        check(1023, 0);
        check(1024, 1);
        check(2047, 1);
        check(2048, 2);
        check((1 << 32) - 1, 22);
        check(1 << 32, 23);
        check(u64::MAX, 23);
    }

    #[test]
    fn slot_sums_survive_their_owners() {
        let mut slots = StatsSlots::of(segment(2));
        let (first, second, third, fourth) = (slots.take(), slots.take(), slots.take(), slots.take());
        assert_eq!([&first, &second, &third, &fourth].map(|slot| slot.alone), [true, true, false, false]);
        let connections = FIGURES.iter().position(|figure| figure.name == "connections").expect("a gauge");
        for slot in [&first, &second, &third, &fourth] {
            slot.occupy();
            slot.add_to_figure(0, 10);
            slot.add_to_figure(connections, 3);
            slot.add_to_figure(connections, 1u64.wrapping_neg());
            slot.count(5000, 5000, Handler::File, true);
            slot.respond(40_000, Handler::Error, 404);
            slot.time(5000, Handler::File, &[(1, 1), (2000, 2), (3, 3), (4, 4), (5, 5)]);
        }
        let sum = |slots: &StatsSlots| {
            let sum = slots.segment.sum();
            assert_eq!(sum.responses[RESPONSES - 2], 4, "4xx of the last handler, of the other sites");
            (sum.figures[0], sum.figures[connections], sum.classes[3])
        };
        let (requests, open, class) = sum(&slots);
        assert_eq!((requests, open, class.replies, class.body_bytes, class.timed), (40, 8, 4, 20_000, 4));
        assert_eq!((class.phases[1].elapsed_ns, class.phases[1].cpu_ns, class.phases[1].buckets[1]), (8000, 8, 4));
        slots.give_back(&first);
        slots.give_back(&fourth);
        assert_eq!(sum(&slots), (40, 6, class), "counters stay, gauges are removed");
        let next = slots.take();
        assert_eq!((next.slot, next.alone), (first.slot, true));
        next.add_to_figure(0, 1);
        assert_eq!(sum(&slots).0, 41);
    }

    #[test]
    fn shared_slot_is_exact_with_concurrent_writers() {
        let mut slots = StatsSlots::of(segment(0));
        let slot = slots.take();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                let slot = slot.clone();
                scope.spawn(move || (0..10_000).for_each(|_| slot.add_to_figure(0, 1)));
            }
        });
        assert_eq!(slots.segment.sum().figures[0], 40_000);
    }

    #[test]
    fn process_figures_are_published_periodically_for_all_loops() {
        let segment = segment(1);
        let at = Time::from_millis;
        let figures = || Snapshot { lost_lines: 7, ..Snapshot::default() };
        let fewer = || Snapshot { lost_lines: 2, ..Snapshot::default() };
        let unasked = || -> Snapshot { panic!("not now") };
        assert_eq!(segment.publish_process(at(5), at(5), figures), Ok(()));
        assert_eq!(segment.publish_process(at(50), at(20), unasked), Err(at(105)));
        assert_eq!(segment.publish_process(at(105), at(20), fewer), Ok(()));
        assert_eq!(segment.publish_process(at(106), at(30), unasked), Ok(()), "the value 105 was read earlier");
        let lost = FIGURES.iter().position(|figure| figure.name == "log_lines_lost").expect("a counter");
        assert_eq!(segment.sum().figures[lost], 9, "a counter that was reset continues");
    }

    #[test]
    fn invalid_file_is_reported_with_hint() {
        let folder = tempfile::tempdir_in("/dev/shm").expect("a directory in memory");
        let check = |path: &Path, says: &str| {
            let text = StatsSegment::new(Some(path), 1, false).expect_err("refused");
            assert!(text.contains(says) && text.contains(&*path.to_string_lossy()), "{text}");
        };
        let path = folder.path().join("metrics");
        let segment = StatsSegment::new(Some(&path), 1, false).expect("made");
        check(&path, "a running server uses it");
        drop(segment);
        std::fs::write(&path, "a letter").expect("written");
        check(&path, "a file that is not a metrics file");
        check(&folder.path().join("none/metrics"), "its directory does not exist");
        let disk = tempfile::tempdir_in(".").expect("a directory on a disk");
        check(&disk.path().join("metrics"), "/dev/shm");
    }
}
