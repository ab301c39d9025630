//! MT: the multi-threaded architecture (Flash, section 3.2).
//!
//! A pool of threads, each a loop with one connection: when the disk has to be waited for, its client alone waits. The
//! threads share one set of caches, in shards behind locks (`locked`), and take connections from the same listeners.

use std::io;

use super::inline::Inline;
use crate::counters::Snapshot;
use crate::event_loop::{self, Start};

/// Runs one thread of the pool; returns how things stood at its end.
///
/// # Errors
/// What the kernel refused that no loop can do without.
pub fn run(start: Start) -> io::Result<Snapshot> {
    let inline = Inline::of_one(&start.generation);
    event_loop::run(start, inline)
}
