//! The architectures: who waits for the network, and who for the disk.
//!
//! Each is a file with a `run` of the same form; all else they share. One `match` chooses, and one table
//! ([`form`](crate::config::settings::form())) says what goes with what.

pub mod amped;
pub mod mp;
pub mod mt;
pub mod sped;

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use crate::access_log::Writer;
use crate::clock::Clock;
use crate::config::settings::Architecture;
use crate::counters::Snapshot;
use crate::mailbox::Mailbox;
use crate::metrics::Seat;
use crate::worker::Generation;

/// What one loop starts with.
pub struct Start {
    /// The configuration in force.
    pub generation: Arc<Generation>,
    /// Its own listeners, one for each address.
    pub listeners: Vec<OwnedFd>,
    /// How it is reached.
    pub mailbox: Arc<Mailbox>,
    /// The thread that writes the log.
    pub log: Option<Arc<Writer>>,
    /// The time, the same for all loops.
    pub clock: Clock,
    /// Where its helpers come from, if these are processes (`helper::nursery`).
    pub nursery: Option<OwnedFd>,
    /// Where it publishes what it counts, if anybody is to know.
    pub seat: Option<Seat>,
}

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
