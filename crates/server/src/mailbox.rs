//! A loop's mailbox: how other threads reach it while it waits in epoll.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, PoisonError};

use amped_core::auth::Verdict;
use amped_core::cache::{Caches, Change};
use amped_core::event::{Brief, Ticket};
use amped_core::site::Sites;
use amped_sys::eventfd::EventFd;
use amped_units::Time;

use crate::app::cgi::Started;
use crate::app::spool;
use crate::config_snapshot::Generation;
use crate::counters::Snapshot;
use crate::helper::Done;
use crate::token::Token;

/// What a loop is told.
#[expect(clippy::large_enum_variant, reason = "the large one is the usual one")]
#[derive(Debug)]
pub enum Message {
    /// A helper has done something.
    Done(Done),
    /// The verdict on a password; `None`: the client was seen to have left.
    Verified(Token, Ticket, Option<Verdict>),
    /// A process has been started for a request, or not.
    Started(Box<Started>),
    /// An errand for a stored body has been done.
    Spooled(Box<spool::Done>),
    /// A page for which this request waits is kept now, or is not going to be.
    PageSettled(Token, Ticket),
    /// Another configuration comes into force.
    Renew(Arc<Generation>),
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
    pub tell: Box<dyn FnOnce(Brief) + Send>,
}

impl std::fmt::Debug for Preload {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Preload").field("site", &self.site).field("path", &self.path).finish_non_exhaustive()
    }
}

/// Messages, and a bell that rings in epoll when there are any.
#[derive(Debug)]
pub struct Mailbox {
    messages: Mutex<Vec<Message>>,
    bell: EventFd,
}

impl Mailbox {
    /// An empty one.
    ///
    /// # Errors
    /// When the process is out of descriptors.
    pub fn new() -> io::Result<Mailbox> {
        Ok(Mailbox { messages: Mutex::default(), bell: EventFd::new()? })
    }

    /// Puts a message in, and rings if it is the first: one ring brings the loop, which takes them all.
    pub fn put(&self, message: Message) {
        let mut messages = self.messages.lock().unwrap_or_else(PoisonError::into_inner);
        messages.push(message);
        if messages.len() == 1 {
            self.bell.ring();
        }
    }

    /// Takes all messages out, into an empty vector that is given back filled.
    pub fn take(&self, into: &mut Vec<Message>) {
        let mut messages = self.messages.lock().unwrap_or_else(PoisonError::into_inner);
        // Under the lock, so that no ring is lost between taking and silencing.
        self.bell.silence();
        std::mem::swap(&mut *messages, into);
    }
}

impl AsFd for Mailbox {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }
}
