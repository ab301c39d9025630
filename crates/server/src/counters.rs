//! How things stand: what SIGUSR2 asks for, and what is said at the end, as it was when the server was told to stop.

use std::fmt;
use std::ops::AddAssign;

use amped_core::cache::policy::StoreCounts;
use amped_core::desk::Counts;

use crate::helper::HelperCounts;

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
    /// The path cache.
    pub paths: StoreCounts,
    /// Names in it.
    pub path_entries: u64,
    /// The head cache.
    pub heads: StoreCounts,
    /// Bytes in it.
    pub head_bytes: u64,
    /// The content cache: bodies in memory.
    pub bodies: StoreCounts,
    /// Bytes in it.
    pub body_bytes: u64,
    /// The content cache: descriptors.
    pub files: StoreCounts,
    /// Descriptors in it.
    pub open_files: u64,
    /// The helpers.
    pub helpers: HelperCounts,
    /// Windows of files that were not in memory when they were to be sent.
    pub cold_windows: u64,
}

impl AddAssign<&Snapshot> for Snapshot {
    fn add_assign(&mut self, other: &Snapshot) {
        let add = |a: &mut StoreCounts, b: &StoreCounts| {
            a.hits += b.hits;
            a.misses += b.misses;
            a.insertions += b.insertions;
            a.evictions += b.evictions;
            a.refusals += b.refusals;
        };
        self.counts.requests += other.counts.requests;
        self.counts.bad_requests += other.counts.bad_requests;
        self.counts.hits += other.counts.hits;
        self.counts.stale_hits += other.counts.stale_hits;
        self.counts.disk_questions += other.counts.disk_questions;
        self.counts.shed += other.counts.shed;
        self.accepted += other.accepted;
        self.connections += other.connections;
        self.connection_bytes += other.connection_bytes;
        self.broken += other.broken;
        add(&mut self.paths, &other.paths);
        self.path_entries += other.path_entries;
        add(&mut self.heads, &other.heads);
        self.head_bytes += other.head_bytes;
        add(&mut self.bodies, &other.bodies);
        self.body_bytes += other.body_bytes;
        add(&mut self.files, &other.files);
        self.open_files += other.open_files;
        self.helpers.threads += other.helpers.threads;
        self.helpers.peak += other.helpers.peak;
        self.helpers.waiting += other.helpers.waiting;
        self.cold_windows += other.cold_windows;
    }
}

impl fmt::Display for Snapshot {
    /// A line a subject, each `name: key=value ...`, for people and for `grep`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Snapshot { counts, helpers, .. } = self;
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
            ("path cache", &self.paths, "entries", self.path_entries),
            ("head cache", &self.heads, "bytes", self.head_bytes),
            ("content cache, bodies", &self.bodies, "bytes", self.body_bytes),
            ("content cache, files", &self.files, "descriptors", self.open_files),
        ] {
            writeln!(
                f,
                "{name}: hits={} misses={} insertions={} evictions={} refusals={} {unit}={amount}",
                store.hits, store.misses, store.insertions, store.evictions, store.refusals
            )?;
        }
        write!(
            f,
            "helpers: threads={} peak={} waiting={} cold_windows={}",
            helpers.threads, helpers.peak, helpers.waiting, self.cold_windows
        )
    }
}
