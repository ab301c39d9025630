//! eventfd(2): wakes a loop that waits in epoll from another thread.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{EventfdFlags, eventfd};

/// A flag that is readable in epoll while it is set.
#[derive(Debug)]
pub struct EventFd {
    fd: OwnedFd,
}

impl EventFd {
    /// Creates a cleared flag.
    ///
    /// # Errors
    /// When the process is out of descriptors.
    pub fn new() -> io::Result<EventFd> {
        Ok(EventFd { fd: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)? })
    }

    /// Sets the flag. Setting it twice has no effect, so there is no error to report.
    pub fn ring(&self) {
        let _ = rustix::io::write(&self.fd, &1u64.to_ne_bytes());
    }

    /// Clears the flag.
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
