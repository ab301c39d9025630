//! How things stand: what SIGUSR2 asks for, and what is said at the end, as it was when the server was told to stop.

use std::fmt;
use std::ops::AddAssign;

use amped_core::cache::Figures;
use amped_core::cache::hostname::HostnameCounts;
use amped_core::cache::policy::StoreCounts;
use amped_core::desk::Counts;

use crate::access_log::Writer;
use crate::helper::HelperCounts;
use crate::mapped::MappedCounts;
use crate::residency::ModelCounts;
use crate::watch::{Notes, WatchCounts};

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

impl Snapshot {
    /// Every count, always in the same order.
    fn fields(&mut self) -> Vec<&mut u64> {
        let Snapshot {
            counts,
            accepted,
            connections,
            connection_bytes,
            broken,
            caches,
            helpers,
            cold_windows,
            mapped,
            model,
            watch,
            lost_lines,
            hostnames,
        } = self;
        let WatchCounts { directories, events, overflows } = watch;
        let Counts { requests, bad_requests, hits, stale_hits, disk_questions, shed } = counts;
        let Figures {
            uris,
            uri_entries,
            paths,
            path_entries,
            heads,
            head_bytes,
            bodies,
            body_bytes,
            files,
            open_files,
        } = caches;
        let HelperCounts { threads, processes, peak, waiting, died } = helpers;
        let MappedCounts { chunks, bytes, hits: mapped_hits, misses: mapped_misses, unmapped } = mapped;
        let ModelCounts { estimate, believed, faults } = model;
        let mut fields = vec![requests, bad_requests, hits, stale_hits, disk_questions, shed];
        fields.extend([accepted, connections, connection_bytes, broken, cold_windows, lost_lines]);
        fields.extend([uri_entries, path_entries, head_bytes, body_bytes, open_files]);
        fields.extend([threads, processes, peak, waiting, died]);
        fields.extend([chunks, bytes, mapped_hits, mapped_misses, unmapped, estimate, believed, faults]);
        fields.extend([directories, events, overflows]);
        for StoreCounts { hits, misses, insertions, evictions, refusals } in [uris, paths, heads, bodies, files] {
            fields.extend([hits, misses, insertions, evictions, refusals]);
        }
        let HostnameCounts { hits, misses, lookups, failed, timed_out, refused, entries } = hostnames;
        fields.extend([hits, misses, lookups, failed, timed_out, refused, entries]);
        fields
    }

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
    pub fn after_the_end(self) -> Snapshot {
        let caches =
            Figures { uri_entries: 0, path_entries: 0, head_bytes: 0, body_bytes: 0, open_files: 0, ..self.caches };
        let hostnames = HostnameCounts { entries: 0, ..self.hostnames };
        let mapped = MappedCounts { chunks: 0, bytes: 0, ..self.mapped };
        let model = ModelCounts { estimate: 0, believed: 0, ..self.model };
        let watch = WatchCounts { directories: 0, ..self.watch };
        let helpers = HelperCounts::default();
        Snapshot { connections: 0, connection_bytes: 0, helpers, caches, mapped, model, watch, hostnames, ..self }
    }

    /// With what the log has to say.
    #[must_use]
    pub fn with_log(self, log: Option<&Writer>) -> Snapshot {
        let (lost_lines, hostnames) = log.map(|log| (log.lost_lines(), log.hostnames())).unwrap_or_default();
        Snapshot { lost_lines, hostnames, ..self }
    }

    /// With what those who watch have to say.
    #[must_use]
    pub fn with_watch(self, notes: Option<&Notes>) -> Snapshot {
        Snapshot { watch: notes.map(Notes::counts).unwrap_or_default(), ..self }
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
            "helpers: threads={} processes={} peak={} waiting={} died={} cold_windows={}",
            helpers.threads, helpers.processes, helpers.peak, helpers.waiting, helpers.died, self.cold_windows
        )?;
        writeln!(
            f,
            "mapped: chunks={} bytes={} hits={} misses={} unmapped={}",
            mapped.chunks, mapped.bytes, mapped.hits, mapped.misses, mapped.unmapped
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
