//! A mailbox: how other threads reach an event loop while it waits in epoll.
//!
//! Files below `message` do not know all that a loop is told. They are given the mailbox as [`Post`] of what they tell it.

use std::fmt::Debug;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Mutex, PoisonError};

use amped_sys::eventfd::EventFd;

/// Messages, and a bell that rings in epoll when there are any.
#[derive(Debug)]
pub struct Mailbox<M> {
    messages: Mutex<Vec<M>>,
    bell: EventFd,
}

impl<M> Mailbox<M> {
    /// An empty one.
    ///
    /// # Errors
    /// When the process is out of descriptors.
    pub fn new() -> io::Result<Mailbox<M>> {
        Ok(Mailbox { messages: Mutex::default(), bell: EventFd::new()? })
    }

    /// Puts a message in, and rings if it is the first: one ring brings the loop, which takes them all.
    pub fn put(&self, message: M) {
        let mut messages = self.messages.lock().unwrap_or_else(PoisonError::into_inner);
        messages.push(message);
        if messages.len() == 1 {
            self.bell.ring();
        }
    }

    /// Takes all messages out, into an empty vector that is given back filled.
    pub fn take(&self, into: &mut Vec<M>) {
        let mut messages = self.messages.lock().unwrap_or_else(PoisonError::into_inner);
        // Under the lock, so that no ring is lost between taking and silencing.
        self.bell.silence();
        std::mem::swap(&mut *messages, into);
    }
}

impl<M> AsFd for Mailbox<M> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }
}

/// Where messages of this type can be put, whatever else is put there.
pub trait Post<T>: Debug + Send + Sync {
    /// Puts a message in.
    fn post(&self, message: T);
}

impl<T, M: From<T> + Debug + Send> Post<T> for Mailbox<M> {
    fn post(&self, message: T) {
        self.put(message.into());
    }
}
