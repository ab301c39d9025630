//! A mailbox: how other threads reach an event loop while it waits in epoll.
//!
//! Files below `message` do not know all messages of a loop. They get the mailbox
//! as a [`Post`] of their own message type.

use std::fmt::Debug;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Mutex, PoisonError};

use amped_sys::eventfd::EventFd;

/// A queue of messages, and an eventfd that is readable when there are any.
#[derive(Debug)]
pub struct Mailbox<M> {
    messages: Mutex<Vec<M>>,
    bell: EventFd,
}

impl<M> Mailbox<M> {
    /// Creates an empty mailbox.
    ///
    /// # Errors
    /// When the process is out of descriptors.
    pub fn new() -> io::Result<Mailbox<M>> {
        Ok(Mailbox { messages: Mutex::default(), bell: EventFd::new()? })
    }

    /// Adds a message. Only the first one signals the eventfd: the loop takes all of them when it wakes.
    pub fn put(&self, message: M) {
        let mut messages = self.messages.lock().unwrap_or_else(PoisonError::into_inner);
        messages.push(message);
        if messages.len() == 1 {
            self.bell.ring();
        }
    }

    /// Takes all messages, in exchange for an empty vector.
    pub fn take(&self, into: &mut Vec<M>) {
        let mut messages = self.messages.lock().unwrap_or_else(PoisonError::into_inner);
        // Under the lock, so that no signal is lost between taking the messages and resetting the eventfd.
        self.bell.silence();
        std::mem::swap(&mut *messages, into);
    }
}

impl<M> AsFd for Mailbox<M> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }
}

/// A queue that accepts messages of this type, possibly among others.
pub trait Post<T>: Debug + Send + Sync {
    /// Adds a message.
    fn post(&self, message: T);
}

impl<T, M: From<T> + Debug + Send> Post<T> for Mailbox<M> {
    fn post(&self, message: T) {
        self.put(message.into());
    }
}
