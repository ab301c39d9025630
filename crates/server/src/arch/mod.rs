//! The architectures: who waits for the network, and who for the disk.
//!
//! Each is a file with a `run` of the same form; all else they share. One `match` chooses, and one table
//! ([`form`](crate::config::settings::form())) says what goes with what.

pub mod amped;
mod inline;
pub mod mp;
pub mod mt;
pub mod sped;

use std::io;

use crate::config::settings::Architecture;
use crate::counters::Snapshot;
use crate::event_loop::Start;

/// Runs one loop until it is told to stop; returns how things stood at its end.
///
/// # Errors
/// What the kernel refused that no loop can do without.
pub fn run(architecture: Architecture, start: Start) -> io::Result<Snapshot> {
    match architecture {
        Architecture::Amped => amped::run(start),
        Architecture::Sped => sped::run(start),
        Architecture::Mt => mt::run(start),
        Architecture::Mp => mp::run(start),
    }
}
