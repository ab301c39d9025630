//! eventfd(2): how another thread wakes a loop that waits in epoll.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{EventfdFlags, eventfd};

/// A bell that rings in epoll.
#[derive(Debug)]
pub struct EventFd {
    fd: OwnedFd,
}

impl EventFd {
    /// A silent bell.
    ///
    /// # Errors
    /// When the process is out of descriptors.
    pub fn new() -> io::Result<EventFd> {
        Ok(EventFd { fd: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)? })
    }

    /// Rings. A bell that rings already goes on ringing, so there is no error to report.
    pub fn ring(&self) {
        let _ = rustix::io::write(&self.fd, &1u64.to_ne_bytes());
    }

    /// Makes it silent.
    pub fn silence(&self) {
        let mut count = [0; 8];
        let _ = rustix::io::read(&self.fd, &mut count);
    }
}

impl AsFd for EventFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
