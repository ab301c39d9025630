//! How things stand: what SIGUSR2 asks for, what is said at the end, as it was when the server was told to stop, and what is
//! published (`metrics`). All of it is one table, [`FIGURES`].

use std::fmt;
use std::ops::AddAssign;
use std::time::Duration;

use amped_core::cache::Figures;
use amped_core::cache::hostname::HostnameCounts;
use amped_core::event::{Delay, Work};
use amped_core::shared_state::Counts;

/// One loop's state, or the sum of several.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// Requests.
    pub counts: Counts,
    /// Connections accepted since the start.
    pub accepted: u64,
    /// Connections open now.
    pub connections: u64,
    /// Bytes of our own memory that these connections hold, their slots included.
    pub connection_bytes: u64,
    /// Connections that were closed in the middle of a reply: the file changed, or the client went away or took nothing.
    pub broken: u64,
    /// The caches.
    pub caches: Figures,
    /// The helpers.
    pub helpers: HelperCounts,
    /// Windows of files that were not in memory when they were to be sent.
    pub cold_windows: u64,
    /// Names that could not be answered for without waiting.
    pub probes: ProbeCounts,
    /// What helpers were waited for.
    pub waits: WaitCounts,
    /// Bytes given to sockets, heads and bodies.
    pub sent_bytes: u64,
    /// Bytes of bodies for applications, or of their responses, that were written to files.
    pub spooled_bytes: u64,
    /// The loop itself.
    pub loops: LoopCounts,
    /// Mapped windows, of the whole process.
    pub mapped: MappedCounts,
    /// The model of the page cache, of the whole process.
    pub model: ModelCounts,
    /// What is heard of changes.
    pub watch: WatchCounts,
    /// Lines that the log could not keep.
    pub lost_lines: u64,
    /// The names of clients in the log.
    pub hostnames: HostnameCounts,
}

/// Questions that the loop could not have answered without waiting.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProbeCounts {
    /// Because of the disk: a name, or the first bytes of its file.
    pub names: u64,
    /// Because the file was being written to.
    pub changes: u64,
}

impl ProbeCounts {
    /// One more. A listing is no miss: nobody tries to make one without waiting.
    pub fn add(&mut self, work: &Work, why: Delay) {
        match (work, why) {
            (Work::List(_), _) => {}
            (Work::Name(_), Delay::Disk) => self.names += 1,
            (Work::Name(_), Delay::Change) => self.changes += 1,
        }
    }
}

/// What helpers were waited for, by cause.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WaitCounts {
    /// To look up and open what a name means, and to read its first bytes.
    pub names: Waited,
    /// To list a folder.
    pub lists: Waited,
    /// To verify a password.
    pub passwords: Waited,
    /// To bring a window of a file into memory.
    pub windows: Waited,
    /// Until a file that was being written to held still.
    pub changes: Waited,
}

/// Waits of a kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Waited {
    /// How many.
    pub tasks: u64,
    /// From the question to its answer, in nanoseconds, all together: the helpers' queue included.
    pub ns: u64,
}

impl Waited {
    /// One more.
    pub fn add(&mut self, time: Duration) {
        self.tasks += 1;
        self.ns += u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    }
}

/// How the helpers stand.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HelperCounts {
    /// Those that are threads.
    pub threads: u64,
    /// Those that are processes.
    pub processes: u64,
    /// Most at once.
    pub peak: u64,
    /// Tasks that wait for one.
    pub waiting: u64,
    /// Processes that have ended without being told to.
    pub died: u64,
}

/// Mapped windows of files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MappedCounts {
    /// Windows that are mapped now: the chunks of Flash.
    pub chunks: u64,
    /// Bytes of them, as their budget counts them.
    pub bytes: u64,
    /// Windows that were found mapped.
    pub hits: u64,
    /// Windows that had to be mapped.
    pub misses: u64,
    /// Windows that were unmapped.
    pub unmapped: u64,
}

/// How the model of the page cache stands; all zero where there is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ModelCounts {
    /// Bytes that the page cache is thought to hold at most.
    pub estimate: u64,
    /// Bytes of files that are thought to be in it.
    pub believed: u64,
    /// How often the model was wrong to the cost of a wait.
    pub faults: u64,
}

/// The access log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogCounts {
    /// Lines that the log could not keep.
    pub lost_lines: u64,
    /// The names of clients in the log.
    pub hostnames: HostnameCounts,
}

/// How watching stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WatchCounts {
    /// Folders that are watched, and files that are by themselves.
    pub directories: u64,
    /// Events heard.
    pub events: u64,
    /// Times that events were lost.
    pub overflows: u64,
}

/// A loop's turns: from the moment it has heard of something until it waits again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LoopCounts {
    /// How many.
    pub turns: u64,
    /// Their time.
    pub busy_ns: u64,
    /// Those that took [`STALL`] or more: whoever else there was has waited so long.
    pub stalls: u64,
    /// The time of these.
    pub stalled_ns: u64,
}

/// A loop that takes so long for a turn has been held up. With as many events as there can be a turn takes 5 ms.
pub const STALL: Duration = Duration::from_millis(10);

impl LoopCounts {
    /// A turn more.
    pub fn add(&mut self, time: Duration) {
        let ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.turns += 1;
        self.busy_ns += ns;
        if time >= STALL {
            self.stalls += 1;
            self.stalled_ns += ns;
        }
    }
}

/// A figure of a [`Snapshot`], as it is published: its name, and what it means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Figure {
    /// The name of its family, as in OpenMetrics but for what comes before and behind it there. Those of a family follow one
    /// another, and differ by their labels.
    pub name: &'static str,
    /// What tells it from others of the family, as in OpenMetrics; empty for a family of one.
    pub labels: &'static str,
    /// Whether it can go back.
    pub kind: Kind,
    /// What it is counted in.
    pub unit: Unit,
    /// What it means, for people.
    pub help: &'static str,
}

impl Figure {
    /// What is to be added to the sum of all, modulo 2^64, when what was `known` is `now`. A counter that is less than it was
    /// has begun anew, as those of caches do that were given other budgets: then all of it is new.
    pub fn growth(&self, known: u64, now: u64) -> u64 {
        let has_begun_anew = self.kind == Kind::Counter && now < known;
        now.wrapping_sub(if has_begun_anew { 0 } else { known })
    }
}

/// Whether a figure can go back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// What has happened since the start.
    Counter,
    /// What there is now. Of a process that has died there is nothing.
    Gauge,
}

/// What a figure is counted in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Things.
    Things,
    /// Bytes.
    Bytes,
    /// Nanoseconds.
    Nanoseconds,
}

/// Makes [`FIGURES`], and the places where they are, of one table, so that both have the same order.
macro_rules! figures {
    ($($($part:ident).+: $kind:ident $unit:ident $name:literal $labels:literal $help:literal,)*) => {
        /// Every figure, in the order in which a snapshot crosses to another process and is published.
        pub const FIGURES: &[Figure] = &[$(Figure {
            name: $name, labels: $labels, kind: Kind::$kind, unit: Unit::$unit, help: $help,
        },)*];

        impl Snapshot {
            /// Every figure, in the order of [`FIGURES`].
            pub fn fields(&mut self) -> [&mut u64; FIGURES.len()] {
                [$(&mut self.$($part).+,)*]
            }
        }
    };
}

// All fields are words, and none can be lent twice: with as many words as figures, none is missing.
const _: () = assert!(size_of::<Snapshot>() == FIGURES.len() * size_of::<u64>());

figures! {
    counts.requests: Counter Things "requests" "" "Requests whose head was read.",
    sent_bytes: Counter Bytes "sent" "" "Bytes given to sockets, heads and bodies.",
    spooled_bytes: Counter Bytes "spooled" "" "Bodies of applications' requests and responses that were written to files.",
    counts.bad_requests: Counter Things "bad_requests" "" "Requests that could not be read, or not in time.",
    counts.hits: Counter Things "request_hits" "" "Requests for which the caches were enough.",
    counts.stale_hits: Counter Things "request_stale_hits" "" "Requests answered from an entry past its time.",
    counts.disk_questions: Counter Things "disk_questions" "" "Questions to the disk side.",
    counts.shed: Counter Things "requests_shed" "" "Requests refused with 503 since the disk had too much to do.",
    counts.page_collapsed: Counter Things "pages_shared" "" "Requests that waited for a page that was being made for another.",
    accepted: Counter Things "connections_accepted" "" "Connections accepted.",
    broken: Counter Things "connections_broken" "" "Connections that were closed in the middle of a reply.",
    connections: Gauge Things "connections" "" "Connections that are open.",
    connection_bytes: Gauge Bytes "connection" "" "Memory that connections hold, as it was up to a second ago.",
    loops.turns: Counter Things "loop_turns" "" "Times that a loop had something to do.",
    loops.busy_ns: Counter Nanoseconds "loop_busy" "" "Time in which a loop had something to do.",
    loops.stalls: Counter Things "loop_stalls" "" "Turns that took 10 ms or more.",
    loops.stalled_ns: Counter Nanoseconds "loop_stalled" "" "Time of these turns.",
    probes.names: Counter Things "probe_misses" "of=\"name\"" "What the disk would have to be waited for.",
    cold_windows: Counter Things "probe_misses" "of=\"window\"" "What the disk would have to be waited for.",
    probes.changes: Counter Things "probe_misses" "of=\"change\"" "What the disk would have to be waited for.",
    waits.names.tasks: Counter Things "helper_tasks" "cause=\"name\"" "What helpers have done.",
    waits.lists.tasks: Counter Things "helper_tasks" "cause=\"list\"" "What helpers have done.",
    waits.windows.tasks: Counter Things "helper_tasks" "cause=\"window\"" "What helpers have done.",
    waits.passwords.tasks: Counter Things "helper_tasks" "cause=\"password\"" "What helpers have done.",
    waits.changes.tasks: Counter Things "helper_tasks" "cause=\"change\"" "What helpers have done.",
    waits.names.ns: Counter Nanoseconds "helper_wait" "cause=\"name\"" "From the question to its answer, queue included.",
    waits.lists.ns: Counter Nanoseconds "helper_wait" "cause=\"list\"" "From the question to its answer, queue included.",
    waits.windows.ns: Counter Nanoseconds "helper_wait" "cause=\"window\"" "From the question to its answer, queue included.",
    waits.passwords.ns: Counter Nanoseconds "helper_wait" "cause=\"password\"" "From the question to its answer, queue included.",
    waits.changes.ns: Counter Nanoseconds "helper_wait" "cause=\"change\"" "From the question to its answer, queue included.",
    helpers.waiting: Gauge Things "helper_queue" "" "Tasks that wait for a helper.",
    helpers.threads: Gauge Things "helpers" "as=\"threads\"" "Helpers.",
    helpers.processes: Gauge Things "helpers" "as=\"processes\"" "Helpers.",
    helpers.peak: Gauge Things "helpers_peak" "" "Most helpers at once.",
    helpers.died: Counter Things "helpers_died" "" "Helpers that ended without being told to.",
    caches.uris.hits: Counter Things "cache_hits" "cache=\"uri\"" "Lookups that found their entry.",
    caches.negotiations.hits: Counter Things "cache_hits" "cache=\"choice\"" "Lookups that found their entry.",
    caches.paths.hits: Counter Things "cache_hits" "cache=\"path\"" "Lookups that found their entry.",
    caches.heads.hits: Counter Things "cache_hits" "cache=\"head\"" "Lookups that found their entry.",
    caches.bodies.hits: Counter Things "cache_hits" "cache=\"body\"" "Lookups that found their entry.",
    caches.files.hits: Counter Things "cache_hits" "cache=\"file\"" "Lookups that found their entry.",
    counts.page_hits: Counter Things "cache_hits" "cache=\"page\"" "Lookups that found their entry.",
    mapped.hits: Counter Things "cache_hits" "cache=\"mapped\"" "Lookups that found their entry.",
    hostnames.hits: Counter Things "cache_hits" "cache=\"hostname\"" "Lookups that found their entry.",
    caches.uris.misses: Counter Things "cache_misses" "cache=\"uri\"" "Lookups that did not.",
    caches.negotiations.misses: Counter Things "cache_misses" "cache=\"choice\"" "Lookups that did not.",
    caches.paths.misses: Counter Things "cache_misses" "cache=\"path\"" "Lookups that did not.",
    caches.heads.misses: Counter Things "cache_misses" "cache=\"head\"" "Lookups that did not.",
    caches.bodies.misses: Counter Things "cache_misses" "cache=\"body\"" "Lookups that did not.",
    caches.files.misses: Counter Things "cache_misses" "cache=\"file\"" "Lookups that did not.",
    counts.page_misses: Counter Things "cache_misses" "cache=\"page\"" "Lookups that did not.",
    mapped.misses: Counter Things "cache_misses" "cache=\"mapped\"" "Lookups that did not.",
    hostnames.misses: Counter Things "cache_misses" "cache=\"hostname\"" "Lookups that did not.",
    caches.uris.insertions: Counter Things "cache_insertions" "cache=\"uri\"" "Entries put in.",
    caches.negotiations.insertions: Counter Things "cache_insertions" "cache=\"choice\"" "Entries put in.",
    caches.paths.insertions: Counter Things "cache_insertions" "cache=\"path\"" "Entries put in.",
    caches.heads.insertions: Counter Things "cache_insertions" "cache=\"head\"" "Entries put in.",
    caches.bodies.insertions: Counter Things "cache_insertions" "cache=\"body\"" "Entries put in.",
    caches.files.insertions: Counter Things "cache_insertions" "cache=\"file\"" "Entries put in.",
    caches.uris.evictions: Counter Things "cache_evictions" "cache=\"uri\"" "Entries that made room.",
    caches.negotiations.evictions: Counter Things "cache_evictions" "cache=\"choice\"" "Entries that made room.",
    caches.paths.evictions: Counter Things "cache_evictions" "cache=\"path\"" "Entries that made room.",
    caches.heads.evictions: Counter Things "cache_evictions" "cache=\"head\"" "Entries that made room.",
    caches.bodies.evictions: Counter Things "cache_evictions" "cache=\"body\"" "Entries that made room.",
    caches.files.evictions: Counter Things "cache_evictions" "cache=\"file\"" "Entries that made room.",
    mapped.unmapped: Counter Things "cache_evictions" "cache=\"mapped\"" "Entries that made room.",
    caches.uris.refusals: Counter Things "cache_refusals" "cache=\"uri\"" "Entries that were not put in.",
    caches.negotiations.refusals: Counter Things "cache_refusals" "cache=\"choice\"" "Entries that were not put in.",
    caches.paths.refusals: Counter Things "cache_refusals" "cache=\"path\"" "Entries that were not put in.",
    caches.heads.refusals: Counter Things "cache_refusals" "cache=\"head\"" "Entries that were not put in.",
    caches.bodies.refusals: Counter Things "cache_refusals" "cache=\"body\"" "Entries that were not put in.",
    caches.files.refusals: Counter Things "cache_refusals" "cache=\"file\"" "Entries that were not put in.",
    caches.uri_entries: Gauge Things "cache_entries" "cache=\"uri\"" "Entries that are held.",
    caches.negotiation_entries: Gauge Things "cache_entries" "cache=\"choice\"" "Entries that are held.",
    caches.path_entries: Gauge Things "cache_entries" "cache=\"path\"" "Entries that are held.",
    caches.open_files: Gauge Things "cache_entries" "cache=\"file\"" "Entries that are held.",
    mapped.chunks: Gauge Things "cache_entries" "cache=\"mapped\"" "Entries that are held.",
    hostnames.entries: Gauge Things "cache_entries" "cache=\"hostname\"" "Entries that are held.",
    caches.head_bytes: Gauge Bytes "cache_held" "cache=\"head\"" "Bytes that are held.",
    caches.body_bytes: Gauge Bytes "cache_held" "cache=\"body\"" "Bytes that are held.",
    mapped.bytes: Gauge Bytes "cache_held" "cache=\"mapped\"" "Bytes that are held.",
    model.estimate: Gauge Bytes "page_cache_estimate" "" "What the page cache is thought to hold at most.",
    model.believed: Gauge Bytes "page_cache_believed" "" "What is thought to be in it.",
    model.faults: Counter Things "page_cache_faults" "" "Times that this was wrong to the cost of a wait.",
    watch.directories: Gauge Things "watched_folders" "" "Folders that are watched.",
    watch.events: Counter Things "watch_events" "" "Events heard of them.",
    watch.overflows: Counter Things "watch_overflows" "" "Times that events were lost.",
    lost_lines: Counter Things "log_lines_lost" "" "Lines that the log could not keep.",
    hostnames.lookups: Counter Things "hostname_lookups" "" "Lookups of names of clients.",
    hostnames.failed: Counter Things "hostname_failures" "" "Lookups that brought no name.",
    hostnames.timed_out: Counter Things "hostname_timeouts" "" "Lines that could not wait for their name any longer.",
    hostnames.refused: Counter Things "hostname_refusals" "" "Lines whose address could not be asked about.",
}

impl Snapshot {
    /// As bytes, for another process of the same program.
    pub fn to_bytes(mut self) -> Vec<u8> {
        self.fields().into_iter().flat_map(|field| field.to_le_bytes()).collect()
    }

    /// Back from these bytes; what is missing is 0.
    pub fn from_bytes(bytes: &[u8]) -> Snapshot {
        let mut snapshot = Snapshot::default();
        for (field, bytes) in snapshot.fields().into_iter().zip(bytes.as_chunks().0) {
            *field = u64::from_le_bytes(*bytes);
        }
        snapshot
    }

    /// What stays of a worker that has ended: what it has done, not what it had.
    #[must_use]
    pub fn after_the_end(mut self) -> Snapshot {
        for (field, figure) in self.fields().into_iter().zip(FIGURES) {
            if figure.kind == Kind::Gauge {
                *field = 0;
            }
        }
        self
    }

    /// With the counts of the access log; `None`: there is no log.
    #[must_use]
    pub fn with_log(self, log: Option<LogCounts>) -> Snapshot {
        let LogCounts { lost_lines, hostnames } = log.unwrap_or_default();
        Snapshot { lost_lines, hostnames, ..self }
    }

    /// With the counts of watched folders; `None`: none are watched.
    #[must_use]
    pub fn with_watch(self, watch: Option<WatchCounts>) -> Snapshot {
        Snapshot { watch: watch.unwrap_or_default(), ..self }
    }
}

impl AddAssign<&Snapshot> for Snapshot {
    fn add_assign(&mut self, other: &Snapshot) {
        for (field, other) in self.fields().into_iter().zip(other.clone().fields()) {
            *field += *other;
        }
    }
}

impl fmt::Display for Snapshot {
    /// A line a subject, each `name: key=value ...`, for people and for `grep`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Snapshot { counts, caches, helpers, mapped, model, .. } = self;
        writeln!(
            f,
            "requests: total={} bad={} hits={} stale_hits={} disk_questions={} shed={}",
            counts.requests, counts.bad_requests, counts.hits, counts.stale_hits, counts.disk_questions, counts.shed
        )?;
        writeln!(
            f,
            "connections: accepted={} open={} bytes={} broken={}",
            self.accepted, self.connections, self.connection_bytes, self.broken
        )?;
        for (name, store, unit, amount) in [
            ("uri cache", &caches.uris, "entries", caches.uri_entries),
            ("choice cache", &caches.negotiations, "entries", caches.negotiation_entries),
            ("path cache", &caches.paths, "entries", caches.path_entries),
            ("head cache", &caches.heads, "bytes", caches.head_bytes),
            ("content cache, bodies", &caches.bodies, "bytes", caches.body_bytes),
            ("content cache, files", &caches.files, "descriptors", caches.open_files),
        ] {
            writeln!(
                f,
                "{name}: hits={} misses={} insertions={} evictions={} refusals={} {unit}={amount}",
                store.hits, store.misses, store.insertions, store.evictions, store.refusals
            )?;
        }
        writeln!(
            f,
            "made pages: hits={} misses={} shared={}",
            counts.page_hits, counts.page_misses, counts.page_collapsed
        )?;
        writeln!(
            f,
            "helpers: threads={} processes={} peak={} waiting={} died={} cold_windows={}",
            helpers.threads, helpers.processes, helpers.peak, helpers.waiting, helpers.died, self.cold_windows
        )?;
        writeln!(
            f,
            "mapped: chunks={} bytes={} hits={} misses={} unmapped={}",
            mapped.chunks, mapped.bytes, mapped.hits, mapped.misses, mapped.unmapped
        )?;
        let WaitCounts { names, lists, passwords, windows, changes } = self.waits;
        write!(f, "waits:")?;
        for (cause, Waited { tasks, ns }) in
            [("names", names), ("lists", lists), ("passwords", passwords), ("windows", windows), ("changes", changes)]
        {
            write!(f, " {cause}={tasks} {cause}_us={}", ns / 1000)?;
        }
        writeln!(f, " cold_names={} changing={}", self.probes.names, self.probes.changes)?;
        let LoopCounts { turns, busy_ns, stalls, stalled_ns } = self.loops;
        writeln!(
            f,
            "turns: total={turns} busy_us={} stalls={stalls} stalled_us={} sent_bytes={} spooled_bytes={}",
            busy_ns / 1000,
            stalled_ns / 1000,
            self.sent_bytes,
            self.spooled_bytes
        )?;
        if model.estimate > 0 {
            writeln!(f, "clock: estimate={} believed={} faults={}", model.estimate, model.believed, model.faults)?;
        }
        let HostnameCounts { hits, misses, lookups, failed, timed_out, refused, entries } = &self.hostnames;
        writeln!(
            f,
            "dns: hits={hits} misses={misses} lookups={lookups} failed={failed} timed_out={timed_out} \
             refused={refused} entries={entries}"
        )?;
        let WatchCounts { directories, events, overflows } = self.watch;
        writeln!(f, "watch: directories={directories} events={events} overflows={overflows}")?;
        writeln!(f, "log: lost_lines={}", self.lost_lines)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn report_contains_spooled_bytes() {
        let snapshot = Snapshot { sent_bytes: 5, spooled_bytes: 7, ..Snapshot::default() };
        assert!(snapshot.to_string().contains(" sent_bytes=5 spooled_bytes=7\n"), "{snapshot}");
    }

    #[test]
    fn snapshot_round_trips_and_drops_gauges_at_exit() {
        let mut snapshot = Snapshot::default();
        (1..).zip(snapshot.fields()).for_each(|(number, field)| *field = number);
        assert_eq!(Snapshot::from_bytes(&snapshot.clone().to_bytes()), snapshot);
        assert_eq!(Snapshot::from_bytes(&[]), Snapshot::default());
        for ((number, field), figure) in (1..).zip(snapshot.after_the_end().fields()).zip(FIGURES) {
            assert_eq!(*field, if figure.kind == Kind::Gauge { 0 } else { number }, "{figure:?}");
        }
    }

    #[test]
    fn counters_never_decrease() {
        let [counter, gauge] = [Kind::Counter, Kind::Gauge].map(|kind| Figure { kind, ..FIGURES[0] });
        let check = |figure: Figure, known: u64, now: u64, expected: i64| {
            assert_eq!(figure.growth(known, now), expected as u64, "{known} {now}");
        };
        check(counter, 5, 7, 2);
        check(counter, 7, 7, 0);
        check(counter, 7, 3, 3);
        check(gauge, 5, 7, 2);
        check(gauge, 7, 3, -4);
    }

    #[test]
    fn figures_of_one_family_are_adjacent_and_consistent() {
        let mut families: Vec<&Figure> = Vec::new();
        for figure in FIGURES {
            match families.last() {
                Some(last) if last.name == figure.name => {
                    assert_eq!(
                        (last.kind, last.unit, last.help),
                        (figure.kind, figure.unit, figure.help),
                        "{figure:?}"
                    );
                    assert!(last.labels != figure.labels && !figure.labels.is_empty(), "{figure:?}");
                }
                _ => {
                    assert!(families.iter().all(|known| known.name != figure.name), "{figure:?} stands apart");
                    families.push(figure);
                }
            }
            assert!(figure.name.bytes().all(|b| b.is_ascii_lowercase() || b == b'_'), "{figure:?}");
            assert!(figure.help.ends_with('.'), "{figure:?}");
        }
    }

    #[test]
    fn turn_of_ten_milliseconds_counts_as_stall() {
        let mut loops = LoopCounts::default();
        [9_999, 10_000, 30_000].into_iter().for_each(|us| loops.add(Duration::from_micros(us)));
        let expected = LoopCounts { turns: 3, busy_ns: 49_999_000, stalls: 2, stalled_ns: 40_000_000 };
        assert_eq!(loops, expected);
    }
}
