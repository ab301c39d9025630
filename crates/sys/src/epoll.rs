//! epoll(7), edge-triggered: who has something to read or room to write.

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

/// What one wait brought.
pub struct Events {
    events: Vec<epoll::Event>,
}

/// What happened on one descriptor.
#[derive(Clone, Copy, Debug)]
pub struct Ready {
    /// The number it was added with.
    pub token: u64,
    /// There is something to read, or an end, or an error that reading will tell.
    pub readable: bool,
    /// The peer has closed its side, or the connection is broken: reading comes to an end after what is there.
    pub ended: bool,
    /// There is room to write, or an error that writing will tell.
    pub writable: bool,
}

/// For what, and how, a descriptor is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interest {
    /// A connection: both directions, told once for each change (`EPOLLET`), so that no call is needed to re-arm.
    Connection,
    /// A connection on which everything has been written: what comes, told once for each change.
    Incoming,
    /// A listener or an eventfd: told as long as there is something.
    Readable,
    /// A socket with something left to write: told as long as there is something to read or room to write.
    Both,
    /// A listener that many sets wait for: one of them, or a few, is told (`EPOLLEXCLUSIVE`).
    OneOfMany,
}

impl Epoll {
    /// An empty set.
    ///
    /// # Errors
    /// When the process is out of descriptors.
    pub fn new() -> io::Result<Epoll> {
        Ok(Epoll { fd: epoll::create(epoll::CreateFlags::CLOEXEC)? })
    }

    /// Waits for `fd` too; its events carry `token`.
    ///
    /// # Errors
    /// When the kernel is out of memory or of watches (`fs.epoll.max_user_watches`).
    pub fn add(&self, fd: impl AsFd, token: u64, interest: Interest) -> io::Result<()> {
        Ok(epoll::add(&self.fd, fd, epoll::EventData::new_u64(token), flags(interest))?)
    }

    /// Waits for `fd` in another way from now on; not for [`Interest::OneOfMany`].
    ///
    /// # Errors
    /// When it is not in the set.
    pub fn change(&self, fd: impl AsFd, token: u64, interest: Interest) -> io::Result<()> {
        Ok(epoll::modify(&self.fd, fd, epoll::EventData::new_u64(token), flags(interest))?)
    }

    /// Waits for `fd` no longer. Closing the last descriptor of a file does the same.
    ///
    /// # Errors
    /// When it is not in the set.
    pub fn remove(&self, fd: impl AsFd) -> io::Result<()> {
        Ok(epoll::delete(&self.fd, fd)?)
    }

    /// Waits until something happens or `timeout` has passed; `None` waits for ever. Time-outs are exact to the
    /// nanosecond (`epoll_pwait2`), as `epoll_wait` would add up to a millisecond to each.
    ///
    /// # Errors
    /// None that a correct program sees; an interrupting signal ends the wait without events.
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

/// A set can be waited for in another set: it is readable when something has happened in it.
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
    /// Room for the events of one wait.
    pub fn with_capacity(events_max: usize) -> Events {
        Events { events: Vec::with_capacity(events_max.max(1)) }
    }

    /// What happened.
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

    /// How many.
    pub fn len(&self) -> usize {
        self.events.len()
    }

    /// Whether nothing happened.
    pub fn is_empty(&self) -> bool {
        self.events.is_empty()
    }
}
