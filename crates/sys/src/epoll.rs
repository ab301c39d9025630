//! epoll(7), edge-triggered: which descriptors are readable or writable.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};

/// A set of descriptors to wait for.
#[derive(Debug)]
pub struct Epoll {
    fd: OwnedFd,
}

/// The events of one wait.
pub struct Events {
    events: Vec<epoll::Event>,
}

/// An event on one descriptor.
#[derive(Clone, Copy, Debug)]
pub struct Ready {
    /// The number it was added with.
    pub token: u64,
    /// It is readable, has ended, or has an error that reading will return.
    pub readable: bool,
    /// The peer has closed its side, or the connection is broken: reading ends after the available data.
    pub ended: bool,
    /// It is writable, or has an error that writing will return.
    pub writable: bool,
}

/// Which events of a descriptor are reported, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interest {
    /// A connection: both directions, reported once for each change (`EPOLLET`), so that no call is needed to re-arm.
    Connection,
    /// A connection on which everything has been written: incoming data, reported once for each change.
    Incoming,
    /// A listener or an eventfd: reported as long as it is readable.
    Readable,
    /// A socket with data left to write: reported as long as it is readable or writable.
    Both,
    /// A listener that many sets wait for: one of them, or a few, get the event (`EPOLLEXCLUSIVE`).
    OneOfMany,
}

impl Epoll {
    /// Creates an empty set.
    ///
    /// # Errors
    /// When the process is out of descriptors.
    pub fn new() -> io::Result<Epoll> {
        Ok(Epoll { fd: epoll::create(epoll::CreateFlags::CLOEXEC)? })
    }

    /// Adds `fd`; its events carry `token`.
    ///
    /// # Errors
    /// When the kernel is out of memory or of watches (`fs.epoll.max_user_watches`).
    pub fn add(&self, fd: impl AsFd, token: u64, interest: Interest) -> io::Result<()> {
        Ok(epoll::add(&self.fd, fd, epoll::EventData::new_u64(token), flags(interest))?)
    }

    /// Changes how `fd` is waited for; not for [`Interest::OneOfMany`].
    ///
    /// # Errors
    /// When it is not in the set.
    pub fn change(&self, fd: impl AsFd, token: u64, interest: Interest) -> io::Result<()> {
        Ok(epoll::modify(&self.fd, fd, epoll::EventData::new_u64(token), flags(interest))?)
    }

    /// Removes `fd`. Closing the last descriptor of a file does the same.
    ///
    /// # Errors
    /// When it is not in the set.
    pub fn remove(&self, fd: impl AsFd) -> io::Result<()> {
        Ok(epoll::delete(&self.fd, fd)?)
    }

    /// Waits until an event occurs or `timeout` expires; `None` waits forever. Timeouts are exact to the nanosecond
    /// (`epoll_pwait2`); `epoll_wait` would add up to a millisecond to each.
    ///
    /// # Errors
    /// None in a correct program; an interrupting signal ends the wait without events.
    pub fn wait(&self, events: &mut Events, timeout: Option<Duration>) -> io::Result<()> {
        let timeout = timeout.map(|timeout| Timespec {
            tv_sec: timeout.as_secs().min(i64::MAX as u64) as i64,
            tv_nsec: timeout.subsec_nanos().into(),
        });
        events.events.clear();
        match epoll::wait(&self.fd, spare_capacity(&mut events.events), timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

/// A set can be waited for in another set: it is readable when it has events.
impl AsFd for Epoll {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

fn flags(interest: Interest) -> epoll::EventFlags {
    use epoll::EventFlags as Flags;
    match interest {
        Interest::Connection => Flags::IN | Flags::OUT | Flags::RDHUP | Flags::ET,
        Interest::Incoming => Flags::IN | Flags::RDHUP | Flags::ET,
        Interest::Readable => Flags::IN,
        Interest::Both => Flags::IN | Flags::OUT,
        Interest::OneOfMany => Flags::IN | Flags::EXCLUSIVE,
    }
}

impl Events {
    /// Allocates room for the events of one wait.
    pub fn with_capacity(events_max: usize) -> Events {
        Events { events: Vec::with_capacity(events_max.max(1)) }
    }

    /// Drops the events.
    pub fn clear(&mut self) {
        self.events.clear();
    }

    /// Returns the events.
    pub fn iter(&self) -> impl Iterator<Item = Ready> + '_ {
        use epoll::EventFlags as Flags;
        self.events.iter().map(|event| {
            let flags = event.flags;
            Ready {
                token: event.data.u64(),
                readable: flags.intersects(Flags::IN | Flags::RDHUP | Flags::HUP | Flags::ERR),
                ended: flags.intersects(Flags::RDHUP | Flags::HUP | Flags::ERR),
                writable: flags.intersects(Flags::OUT | Flags::HUP | Flags::ERR),
            }
        })
    }

    /// Returns the number of events.
    pub fn len(&self) -> usize {
        self.events.len()
    }

    /// Returns whether further events may wait in the kernel for room.
    pub fn is_full(&self) -> bool {
        self.events.len() == self.events.capacity()
    }

    /// Returns whether there are no events.
    pub fn is_empty(&self) -> bool {
        self.events.is_empty()
    }
}
