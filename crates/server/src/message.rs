//! Messages to an event loop from other threads.
//!
//! The main thread, helpers, application threads, the password verifier and the watcher thread put messages into the
//! loop's mailbox; the loop takes them all when epoll wakes it (`event_loop`).

use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex};

use amped_core::cache::{Caches, Change};
use amped_core::event::PreloadResult;
use amped_core::site::Sites;
use amped_units::Time;

use crate::app::cgi::Started;
use crate::app::compressor::Encoded;
use crate::app::connection::Step;
use crate::app::single_flight::Settled;
use crate::app::spool;
use crate::compress::CompressDone;
use crate::config_snapshot::ConfigSnapshot;
use crate::counters::Snapshot;
use crate::handshakes::Handshake;
use crate::helper::Done;
use crate::listen::Listener;
use crate::passwords::verifier::Verified;

/// A message to a loop.
#[expect(clippy::large_enum_variant, reason = "the large variant is the common one")]
#[derive(Debug)]
pub enum Message {
    /// A helper has completed a task.
    Done(Done),
    /// A password was verified.
    Verified(Verified),
    /// The hello of a TLS client was answered.
    Handshake(Handshake),
    /// A file was compressed, or not.
    Compressed(Box<CompressDone>),
    /// A process was started for a request, or could not be.
    Started(Box<Started>),
    /// A step of a TLS handshake with a backend is done.
    BackendStep(Box<Step>),
    /// A spool task was completed.
    Spooled(Box<spool::Done>),
    /// A piece of an application's response was compressed.
    Encoded(Box<Encoded>),
    /// A page that a request waits for is cached now, or will not be.
    PageSettled(Settled),
    /// Apply another configuration.
    Renew(Arc<ConfigSnapshot>),
    /// Listen on these sockets from now on, and on no others.
    Listen(Vec<Listener>),
    /// Stop: finish requests in progress until this time at the latest.
    Stop(Time),
    /// The same, when other loops take over: a request that is in transit is still served.
    Retire(Time),
    /// The same, when another process takes over: idle connections wait for their next request.
    Drain(Time),
    /// Drop a name and look it up again. Workers that share caches also share the message: the first one takes it.
    Preload(Arc<Mutex<Option<Preload>>>),
    /// Drop cached names.
    Invalidate(Arc<Invalidation>),
    /// Report the statistics.
    Report(Sender<Snapshot>),
}

impl From<Verified> for Message {
    fn from(verified: Verified) -> Message {
        Message::Verified(verified)
    }
}

impl From<Handshake> for Message {
    fn from(handshake: Handshake) -> Message {
        Message::Handshake(handshake)
    }
}

impl From<CompressDone> for Message {
    fn from(done: CompressDone) -> Message {
        Message::Compressed(Box::new(done))
    }
}

impl From<Box<Started>> for Message {
    fn from(started: Box<Started>) -> Message {
        Message::Started(started)
    }
}

impl From<Box<Step>> for Message {
    fn from(step: Box<Step>) -> Message {
        Message::BackendStep(step)
    }
}

impl From<Box<spool::Done>> for Message {
    fn from(done: Box<spool::Done>) -> Message {
        Message::Spooled(done)
    }
}

impl From<Box<Encoded>> for Message {
    fn from(done: Box<Encoded>) -> Message {
        Message::Encoded(done)
    }
}

impl From<Settled> for Message {
    fn from(settled: Settled) -> Message {
        Message::PageSettled(settled)
    }
}

/// Which names to drop.
#[derive(Debug)]
pub enum Invalidation {
    /// Those affected by these changes.
    Changes(Vec<Change>),
    /// All.
    All,
}

impl Invalidation {
    /// Drops the names from these caches.
    pub fn carry_out<F>(&self, now: Time, caches: &mut Caches<F>, sites: &Sites) {
        match self {
            Invalidation::Changes(changes) => caches.invalidate(now, changes, sites),
            Invalidation::All => caches.flush(now),
        }
    }
}

/// A name to look up again.
pub struct Preload {
    /// The site's number.
    pub site: u16,
    /// The clean path.
    pub path: Arc<[u8]>,
    /// Receives the result.
    pub report: Box<dyn FnOnce(PreloadResult) + Send>,
}

impl std::fmt::Debug for Preload {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Preload").field("site", &self.site).field("path", &self.path).finish_non_exhaustive()
    }
}
