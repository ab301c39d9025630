//! What an event loop is told by other threads.
//!
//! The main thread, helpers, application threads, the password verifier and the watching thread put messages into the loop's
//! mailbox; the loop takes them all when epoll wakes it (`event_loop`).

use std::os::fd::OwnedFd;
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex};

use amped_core::cache::{Caches, Change};
use amped_core::event::AnswerKind;
use amped_core::site::Sites;
use amped_units::Time;

use crate::app::cgi::Started;
use crate::app::single_flight::Settled;
use crate::app::spool;
use crate::config_snapshot::ConfigSnapshot;
use crate::counters::Snapshot;
use crate::helper::Done;
use crate::passwords::verifier::Verified;

/// What a loop is told.
#[expect(clippy::large_enum_variant, reason = "the large one is the usual one")]
#[derive(Debug)]
pub enum Message {
    /// A helper has done something.
    Done(Done),
    /// The verdict on a password.
    Verified(Verified),
    /// A process has been started for a request, or not.
    Started(Box<Started>),
    /// An errand for a stored body has been done.
    Spooled(Box<spool::Done>),
    /// A page for which a request waits is kept now, or is not going to be.
    PageSettled(Settled),
    /// Another configuration comes into force.
    Renew(Arc<ConfigSnapshot>),
    /// Listen on these from now on, and on no others.
    Listen(Vec<OwnedFd>),
    /// Stop: finish what is under way, at the latest at this moment.
    Stop(Time),
    /// Others take this loop's place: the same, but nobody who is about to ask is turned away.
    Retire(Time),
    /// Forget a name and look it up anew. Workers that share their caches share the order too: the first takes it.
    Preload(Arc<Mutex<Option<Preload>>>),
    /// Forget what names mean.
    Forget(Arc<Forget>),
    /// Say how things stand.
    Report(Sender<Snapshot>),
}

impl From<Verified> for Message {
    fn from(verified: Verified) -> Message {
        Message::Verified(verified)
    }
}

impl From<Box<Started>> for Message {
    fn from(started: Box<Started>) -> Message {
        Message::Started(started)
    }
}

impl From<Box<spool::Done>> for Message {
    fn from(done: Box<spool::Done>) -> Message {
        Message::Spooled(done)
    }
}

impl From<Settled> for Message {
    fn from(settled: Settled) -> Message {
        Message::PageSettled(settled)
    }
}

/// What is to be forgotten.
#[derive(Debug)]
pub enum Forget {
    /// What these changes touch.
    Changes(Vec<Change>),
    /// Everything.
    All,
}

impl Forget {
    /// Has these caches forget it.
    pub fn carry_out<F>(&self, now: Time, caches: &mut Caches<F>, sites: &Sites) {
        match self {
            Forget::Changes(changes) => caches.forget(now, changes, sites),
            Forget::All => caches.flush(now),
        }
    }
}

/// A name that is to be looked up anew.
pub struct Preload {
    /// The site's number.
    pub site: u16,
    /// The clean path.
    pub path: Arc<[u8]>,
    /// Whom to tell what was found.
    pub tell: Box<dyn FnOnce(AnswerKind) + Send>,
}

impl std::fmt::Debug for Preload {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Preload").field("site", &self.site).field("path", &self.path).finish_non_exhaustive()
    }
}
