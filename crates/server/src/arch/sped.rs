//! SPED: the single-process event-driven architecture (Flash, section 3.3).
//!
//! The loop does disk work itself, at once. While everything is in memory nothing is faster; otherwise all
//! connections wait for the lookup of one.

use std::io;

use super::inline::{Inline, Sharing};
use crate::counters::Snapshot;
use crate::event_loop::{self, Start};

/// Runs a loop of this architecture; returns its final statistics.
///
/// # Errors
/// A system call failed without which a loop cannot run.
pub fn run(start: Start) -> io::Result<Snapshot> {
    let inline = Inline::new(&start.generation, Alone);
    event_loop::run(start, inline)
}

/// Loops that share nothing.
struct Alone;

impl Sharing for Alone {
    const SLEEPS: bool = false;
}
