//! The architectures, which differ in where they wait for the network and for the disk.
//!
//! Each is a file with a `run` function of the same signature; everything else is shared. One `match` selects the
//! architecture, and one table ([`form`](crate::config::settings::form())) defines its properties.

pub mod amped;
mod inline;
pub mod mp;
pub mod mt;
pub mod sped;

use std::io;

use crate::config::settings::Architecture;
use crate::counters::Snapshot;
use crate::event_loop::Start;

/// Runs one loop until it is stopped; returns its final statistics.
///
/// # Errors
/// A system call failed without which a loop cannot run.
pub fn run(architecture: Architecture, start: Start) -> io::Result<Snapshot> {
    match architecture {
        Architecture::Amped => amped::run(start),
        Architecture::Sped => sped::run(start),
        Architecture::Mt => mt::run(start),
        Architecture::Mp => mp::run(start),
    }
}
