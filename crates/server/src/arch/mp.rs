//! MP: the multi-process architecture (Flash, section 3.1).
//!
//! A pool of processes, each a loop with one connection and caches of its own: nothing is locked, because nothing is
//! shared but the listeners; and each knows only what it has served itself, unless they are given a cache in common
//! (`shared_cache`). A parent replaces those that die (`processes`).

use std::io;

use super::inline::Inline;
use crate::counters::Snapshot;
use crate::event_loop::{self, Start};

/// Runs in one process of the pool; returns how things stood at its end.
///
/// # Errors
/// What the kernel refused that no loop can do without.
pub fn run(start: Start) -> io::Result<Snapshot> {
    let inline = Inline::of_one(&start.generation);
    event_loop::run(start, inline)
}
