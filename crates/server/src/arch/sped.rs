//! SPED: the single-process event-driven architecture (Flash, section 3.3).
//!
//! The loop does the disk's work itself, at once. As long as everything is in memory nothing is faster; when something is
//! not, all connections wait with the one that asked.

use std::io;

use super::inline::{Inline, Sharing};
use crate::counters::Snapshot;
use crate::event_loop::{self, Start};

/// Runs a loop of this architecture; returns how things stood at its end.
///
/// # Errors
/// What the kernel refused that no loop can do without.
pub fn run(start: Start) -> io::Result<Snapshot> {
    let inline = Inline::new(&start.generation, Alone);
    event_loop::run(start, inline)
}

/// Loops that share nothing.
struct Alone;

impl Sharing for Alone {
    const SLEEPS: bool = false;
}
