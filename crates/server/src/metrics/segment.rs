//! The memory in which all loops publish: a head that says what is where, and a slot of words for each loop.
//!
//! Each word is written by one loop alone, whole, and is a sum since the start or an amount of now; who reads adds the slots
//! up. So nothing is locked, a reader costs the loops nothing, and a process that is killed in the midst of it leaves words
//! that are all true. Two words that belong together may be one request apart. A slot is taken over by whoever comes next,
//! who goes on counting where the last one ended; only amounts of now are taken back.
//!
//! When there are more processes than slots, as for a moment after several reloads, the last slot is shared by those who
//! have none, and is added to in a way that takes several writers. Where loops are threads that slot has what is known of
//! the process and of no loop, such as the caches that threads share.
//!
//! The head names all figures, classes and phases in their order, as text, so that a reader need not know them. The layout is
//! in docs/metrics-file.md.

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

/// What the file begins with.
const MAGIC: [u8; 8] = *b"AMPEDMET";

/// The form of the rest.
const VERSION: u64 = 1;

/// Where the names begin, in bytes.
const NAMES_AT: usize = 128;

/// Heads and slots are whole pages, so that no two writers share one.
const PAGE_WORDS: usize = 512;

/// Classes by the bytes of a reply's body, as the papers have them: what they are called, and where they end.
pub const SIZES: [(&str, u64); 5] =
    [("<1K", 1 << 10), ("<10K", 10 << 10), ("<100K", 100 << 10), ("<1M", 1 << 20), ("more", u64::MAX)];

/// About a file, made for the request by an application or the server, or an error of the server's.
pub const KINDS: [&str; 3] = ["static", "dynamic", "error"];

/// Classes: each size, of each kind.
pub const CLASSES: usize = SIZES.len() * KINDS.len();

/// A part of the time that a request takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Its first bytes were there, and the loop was at something else.
    Waiting,
    /// Until its head was read and understood: the call that received it, and time between pieces of it, included.
    Parsing,
    /// Until there was a reply: caches, disk, helpers.
    Processing,
    /// Until the last byte of the reply was given to the kernel.
    Sending,
    /// Until its line was with the log.
    Logging,
}

/// What the phases are called, by the numbers of [`Phase`].
pub const PHASES: [&str; 5] = ["waiting", "parsing", "processing", "sending", "logging"];

/// Buckets of a histogram: the first ends at 2^[`FIRST_BUCKET_BITS`] ns, each other at twice the one before it, the last
/// nowhere.
pub const BUCKETS: usize = 24;

/// 1.024 us, of which the last but one makes 4.3 s.
pub(super) const FIRST_BUCKET_BITS: u32 = 10;

/// In a slot: who has it, 0 if nobody.
const OWNER: usize = 0;
/// In a slot: how many have had it; 0 for one that may be passed over.
const OWNERS: usize = 1;
/// In a slot: the figures.
const FIGURES_AT: usize = 8;
/// In a slot: the classes.
const CLASSES_AT: usize = FIGURES_AT + FIGURES.len();
/// In a class: replies whose last byte was given to the kernel.
const REPLIES: usize = 0;
/// In a class: bytes of bodies, those of replies that were broken off too.
const BODY_BYTES: usize = 1;
/// In a class: replies that were timed.
const TIMED: usize = 2;
/// In a class: the phases, each with elapsed time, CPU time, and a histogram of elapsed time.
const PHASES_AT: usize = 3;
const PHASE_WORDS: usize = 2 + BUCKETS;
const CLASS_WORDS: usize = PHASES_AT + PHASES.len() * PHASE_WORDS;
const SLOT_WORDS: usize = (RESPONSES_AT + RESPONSES).next_multiple_of(PAGE_WORDS);

/// Who makes responses, by the numbers of [`Handler`].
pub const HANDLERS: [&str; 4] = ["file", "app", "own", "error"];

/// Classes of statuses: 2xx to 5xx.
pub(super) const STATUSES: usize = 4;

/// Sites whose responses are counted by themselves; those of all others are counted together.
pub(super) const SITES_MAX: usize = 32;

/// In a slot: responses by site, handler and class of status.
const RESPONSES_AT: usize = CLASSES_AT + CLASSES * CLASS_WORDS;

/// Their number.
pub(super) const RESPONSES: usize = (SITES_MAX + 1) * HANDLERS.len() * STATUSES;

/// How often what is known of the whole process is published, by whichever thread comes first.
const PROCESS_STEP: Duration = Duration::from_millis(100);

/// The number of a class.
fn class_of(body_bytes: u64, handler: Handler) -> usize {
    let size = SIZES.iter().position(|(_, end)| body_bytes < *end).unwrap_or(SIZES.len() - 1);
    let kind = match handler {
        Handler::File => 0,
        Handler::App | Handler::Own => 1,
        Handler::Error => 2,
    };
    size * KINDS.len() + kind
}

/// The bucket of a time.
fn bucket_of(ns: u64) -> usize {
    ((u64::BITS - (ns >> FIRST_BUCKET_BITS).leading_zeros()) as usize).min(BUCKETS - 1)
}

/// The memory, as one process sees it.
#[derive(Debug)]
pub struct StatsSegment {
    words: Words,
    head_words: usize,
    /// With the last one, which is for all.
    slots: usize,
    /// When what is known of the whole process was last published, and what that was.
    process: Mutex<(Time, Snapshot)>,
    /// That the file was cut short has been said.
    cut_said: AtomicBool,
}

impl StatsSegment {
    /// Memory for so many loops at once; with a path it has that name. To be made before the fork.
    ///
    /// # Errors
    /// In words, with the way out.
    pub fn new(path: Option<&Path>, loops: usize) -> Result<StatsSegment, String> {
        let names = names();
        let head_words = (NAMES_AT + names.len()).div_ceil(8).next_multiple_of(PAGE_WORDS);
        let slots = loops + 1;
        let count = head_words + slots * SLOT_WORDS;
        let head = |words: &[AtomicU64]| write_head(words, &names, head_words, slots);
        let words = match path {
            None => {
                let words =
                    Words::new(count).map_err(|error| format!("cannot make memory for the metrics: {error}"))?;
                head(words.all());
                words
            }
            Some(path) => Words::publish(path, count, |begin| begin.starts_with(&MAGIC), head)
                .map_err(|error| cannot_publish(path, &error))?,
        };
        Ok(StatsSegment { words, head_words, slots, process: Mutex::default(), cut_said: AtomicBool::new(false) })
    }

    /// The place of the loop of this number, among threads.
    pub fn slot(self: &Arc<StatsSegment>, number: usize) -> StatsSlot {
        debug_assert!(number + 1 < self.slots, "loop {number} of {}", self.slots - 1);
        StatsSlot { segment: Arc::clone(self), slot: number, alone: true, scope: Scope::Loop }
    }

    /// Publishes what is known of a process whose loops are threads, unless that was done a moment ago. Whoever says that
    /// something has changed since `changed` is told when to try again, if that has not been seen.
    ///
    /// # Errors
    /// That moment.
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

    /// All slots together.
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

/// What is where, for a reader that knows no more than [`MAGIC`] and [`VERSION`].
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

/// A line for each figure, class and phase, in their order.
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
        io::ErrorKind::AddrInUse => "another server that runs has it: stop that, or name another file".to_owned(),
        io::ErrorKind::AlreadyExists => "something else is there, and is left alone: name another file".to_owned(),
        io::ErrorKind::Unsupported => {
            "it would lie on a disk, which the loops would have to wait for when the kernel writes it \
                                       out: name a file in /run or /dev/shm"
                .to_owned()
        }
        io::ErrorKind::NotFound => "its folder is not there: make it, or name another".to_owned(),
        _ => error.to_string(),
    };
    format!("cannot make the metrics file {shown}: {why}")
}

/// What the figures of a loop are about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// The loop; what is known of the process is published by whichever comes first.
    Loop,
    /// The loop and its process, which has no other.
    Process,
}

/// A loop's place on the segment.
#[derive(Clone, Debug)]
pub struct StatsSlot {
    segment: Arc<StatsSegment>,
    slot: usize,
    /// Nobody else writes there.
    alone: bool,
    scope: Scope,
}

impl StatsSlot {
    /// What its figures are about.
    pub fn scope(&self) -> Scope {
        self.scope
    }

    /// The segment.
    pub fn segment(&self) -> &StatsSegment {
        &self.segment
    }

    /// Says once that the file is gone, if it is; among processes, the one at the first place does.
    pub(super) fn look_after_file(&self) {
        let StatsSegment { words, cut_said, .. } = &*self.segment;
        if (self.slot == 0 || self.scope == Scope::Loop) && words.is_cut() && !cut_said.swap(true, Relaxed) {
            say!("the metrics file was cut short by another program; restart the server to have it written again");
        }
    }

    /// Assigns the slot to this process.
    pub(super) fn occupy(&self) {
        let slot = self.segment.slot_words(self.slot);
        slot[OWNER].store(std::process::id().into(), Relaxed);
        slot[OWNERS].fetch_add(1, Relaxed);
    }

    /// Adds to a figure, by its number. What has become less is added as what is missing to 2^64.
    pub(super) fn add_to_figure(&self, number: usize, more: u64) {
        self.add(self.words(), FIGURES_AT + number, more);
    }

    /// Counts a reply, or what went out of one that was broken off.
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

    /// Adds what a reply took: elapsed and CPU time of each phase, in nanoseconds.
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
            // Two plain moves. One instruction that locks the word would cost ten times as much.
            word.store(word.load(Relaxed).wrapping_add(more), Relaxed);
        } else {
            word.fetch_add(more, Relaxed);
        }
    }
}

/// Places for processes that come and go.
#[derive(Debug)]
pub struct StatsSlots {
    segment: Arc<StatsSegment>,
    free: Vec<usize>,
}

impl StatsSlots {
    /// All of this segment.
    pub fn of(segment: Arc<StatsSegment>) -> StatsSlots {
        let free = (0..segment.slots - 1).rev().collect();
        StatsSlots { segment, free }
    }

    /// A place for a process.
    pub fn take(&mut self) -> StatsSlot {
        let (slot, alone) = self.free.pop().map_or((self.segment.slots - 1, false), |slot| (slot, true));
        StatsSlot { segment: Arc::clone(&self.segment), slot, alone, scope: Scope::Process }
    }

    /// A process has ended, however it did. What it has counted stays; what it had is gone.
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

/// All slots together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sum {
    /// The figures, in the order of [`FIGURES`].
    pub figures: [u64; FIGURES.len()],
    /// The classes: each size as static, then as dynamic, then as an error.
    pub classes: [ClassSum; CLASSES],
    /// Responses: of each site, and of the sites beyond, each handler's 2xx to 5xx.
    pub responses: [u64; RESPONSES],
}

impl Default for Sum {
    fn default() -> Sum {
        Sum { figures: [0; FIGURES.len()], classes: Default::default(), responses: [0; RESPONSES] }
    }
}

/// What has become of the requests of a class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClassSum {
    /// Replies whose last byte was given to the kernel.
    pub replies: u64,
    /// Bytes of bodies, those of replies that were broken off too.
    pub body_bytes: u64,
    /// Replies that were timed.
    pub timed: u64,
    /// Their phases, by the numbers of [`Phase`].
    pub phases: [PhaseSum; PHASES.len()],
}

/// A phase of the requests that were timed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PhaseSum {
    /// Elapsed time, in nanoseconds.
    pub elapsed_ns: u64,
    /// CPU time of the loop, in nanoseconds.
    pub cpu_ns: u64,
    /// How many took how long, elapsed.
    pub buckets: [u64; BUCKETS],
}

const _: () = assert!(Phase::Logging as usize + 1 == PHASES.len());

#[cfg(test)]
mod tests {
    use super::*;

    fn segment(loops: usize) -> Arc<StatsSegment> {
        Arc::new(StatsSegment::new(None, loops).expect("memory"))
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
            assert_eq!(sum.responses[RESPONSES - 2], 4, "4xx of the last handler, of the sites beyond");
            (sum.figures[0], sum.figures[connections], sum.classes[3])
        };
        let (requests, open, class) = sum(&slots);
        assert_eq!((requests, open, class.replies, class.body_bytes, class.timed), (40, 8, 4, 20_000, 4));
        assert_eq!((class.phases[1].elapsed_ns, class.phases[1].cpu_ns, class.phases[1].buckets[1]), (8000, 8, 4));
        slots.give_back(&first);
        slots.give_back(&fourth);
        assert_eq!(sum(&slots), (40, 6, class), "what it has done stays, what it had is gone");
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
        assert_eq!(segment.publish_process(at(106), at(30), unasked), Ok(()), "that was seen at 105");
        let lost = FIGURES.iter().position(|figure| figure.name == "log_lines_lost").expect("a counter");
        assert_eq!(segment.sum().figures[lost], 9, "a counter that begins anew goes on");
    }

    #[test]
    fn invalid_file_is_reported_with_hint() {
        let folder = tempfile::tempdir_in("/dev/shm").expect("a folder in memory");
        let check = |path: &Path, says: &str| {
            let text = StatsSegment::new(Some(path), 1).expect_err("refused");
            assert!(text.contains(says) && text.contains(&*path.to_string_lossy()), "{text}");
        };
        let path = folder.path().join("metrics");
        let segment = StatsSegment::new(Some(&path), 1).expect("made");
        check(&path, "another server that runs has it");
        drop(segment);
        std::fs::write(&path, "a letter").expect("written");
        check(&path, "something else is there");
        check(&folder.path().join("none/metrics"), "its folder is not there");
        let disk = tempfile::tempdir_in(".").expect("a folder on a disk");
        check(&disk.path().join("metrics"), "/dev/shm");
    }
}
