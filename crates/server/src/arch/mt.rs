//! MT: the multi-threaded architecture (Flash, section 3.2).
//!
//! A pool of threads, each a loop with one connection: while it waits for the disk, only its client waits. The threads
//! share one set of caches, in shards behind locks (`locked`), and accept connections from the same listeners.
//! Concurrent requests to list a directory share one listing (`listings`).

use std::io;

use amped_core::event::{Answer, Work};
use amped_core::shared_state::SharedState;
use amped_units::Time;

use super::inline::{Inline, Sharing, perform};
use crate::counters::Snapshot;
use crate::disk::Disk;
use crate::event_loop::{self, Start};
use crate::open_file::OpenFile;

/// Runs one thread of the pool; returns its final statistics.
///
/// # Errors
/// A system call failed without which a loop cannot run.
pub fn run(start: Start) -> io::Result<Snapshot> {
    let inline = Inline::new(&start.generation, Threads);
    event_loop::run(start, inline)
}

/// Threads that share a disk side.
struct Threads;

impl Sharing for Threads {
    const SLEEPS: bool = true;

    fn answer(
        &self,
        disk: &Disk,
        now: Time,
        work: &Work,
        shared: &mut SharedState<OpenFile>,
    ) -> Option<Answer<OpenFile>> {
        let Work::List(list) = work else { return None };
        // Other threads of the pool may work on the same listing.
        let (found, was_shared) = disk.listings.once(list, || perform(disk, work));
        shared.counts.page_collapsed += u64::from(was_shared);
        Some(disk.learn(now, work, found, shared))
    }
}
