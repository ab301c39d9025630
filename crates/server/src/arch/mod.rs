//! The architectures: who waits for the network, and who for the disk.
//!
//! Each is a file with a `run` of the same form; all else they share. One `match` chooses, and one table ([`Form`]) says
//! what goes with what.

pub mod amped;
pub mod mp;
pub mod mt;
pub mod sped;

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use clap::ValueEnum;
use serde::Deserialize;

use crate::access_log::Writer;
use crate::clock::Clock;
use crate::counters::Snapshot;
use crate::mailbox::Mailbox;
use crate::metrics::Seat;
use crate::worker::Generation;

/// Who waits for the network, and who for the disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Architecture {
    /// One loop for the network, helpers for the disk
    #[default]
    Amped,
    /// One loop for both: all wait when one waits for the disk
    Sped,
    /// A thread for each connection, out of a pool
    Mt,
    /// A process for each connection, out of a pool
    Mp,
}

/// What an architecture is made of, and so what may be asked of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Form {
    /// Workers, unless the operator says how many: loops, or the threads or processes of a pool.
    pub workers: usize,
    /// What a worker is called.
    pub worker: &'static str,
    /// The workers are a pool: each has one connection at a time, and all take them from the same listeners.
    pub pool: bool,
    /// Workers are processes, under a parent that replaces those that die.
    pub processes: bool,
    /// Each worker has helpers who wait for the disk in its place.
    pub helpers: bool,
    /// All workers share one set of caches, as threads can.
    pub shared_caches: bool,
}

/// The table of what goes with what.
pub fn form(architecture: Architecture) -> Form {
    let base = Form { workers: 1, worker: "loop", pool: false, processes: false, helpers: false, shared_caches: false };
    let pool = Form { workers: 64, pool: true, ..base };
    match architecture {
        Architecture::Amped => Form { helpers: true, ..base },
        Architecture::Sped => base,
        Architecture::Mt => Form { worker: "thread", shared_caches: true, ..pool },
        Architecture::Mp => Form { worker: "process", processes: true, ..pool },
    }
}

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
