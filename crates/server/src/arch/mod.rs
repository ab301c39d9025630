//! The architectures: who waits for the network, and who for the disk.
//!
//! Each is a file with a `run` of the same form; all else they share. One `match` chooses.

pub mod amped;

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use crate::access_log::Writer;
use crate::config::Architecture;
use crate::counters::Snapshot;
use crate::mailbox::Mailbox;
use crate::worker::{Clock, Generation};

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
}

/// Runs one loop until it is told to stop; returns how things stood at its end.
///
/// # Errors
/// What the kernel refused that no loop can do without.
pub fn run(architecture: Architecture, start: Start) -> io::Result<Snapshot> {
    match architecture {
        Architecture::Amped => amped::run(start),
    }
}
