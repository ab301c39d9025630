//! poll(2): waits for a few descriptors, in threads without an event loop.

use std::io;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};

/// The condition that a descriptor is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Until {
    /// It is readable.
    Readable,
    /// It is writable.
    Writable,
}

/// Waits until one of these is readable, has ended or has failed, at most for
/// `timeout`. Returns for each whether it is.
///
/// # Errors
/// When memory is short.
pub fn wait_readable(descriptors: &[BorrowedFd<'_>], timeout: Duration) -> io::Result<Vec<bool>> {
    let descriptors: Vec<_> = descriptors.iter().map(|&descriptor| (descriptor, Until::Readable)).collect();
    wait(&descriptors, timeout)
}

/// Waits until one of these meets its condition, has ended or has failed, at most for
/// `timeout`. Returns for each whether it is.
///
/// # Errors
/// When memory is short.
pub fn wait(descriptors: &[(BorrowedFd<'_>, Until)], timeout: Duration) -> io::Result<Vec<bool>> {
    let polled = descriptors.iter().map(|&(descriptor, until)| {
        let flags = match until {
            Until::Readable => PollFlags::IN,
            Until::Writable => PollFlags::OUT,
        };
        PollFd::from_borrowed_fd(descriptor, flags)
    });
    let mut polled: Vec<_> = polled.collect();
    // A timeout that does not fit into a `timespec` means forever.
    let timeout = Timespec::try_from(timeout).ok();
    match rustix::event::poll(&mut polled, timeout.as_ref()) {
        Ok(_) => Ok(polled.iter().map(|one| !one.revents().is_empty()).collect()),
        // After an interruption the caller checks again.
        Err(rustix::io::Errno::INTR) => Ok(vec![false; descriptors.len()]),
        Err(error) => Err(error.into()),
    }
}

/// Descriptors and times to wait for.
#[derive(Debug, Default)]
pub struct Awaited<'a> {
    descriptors: Vec<(BorrowedFd<'a>, Until)>,
    due: Option<Instant>,
}

impl<'a> Awaited<'a> {
    /// Waits until this is readable.
    pub fn readable(&mut self, descriptor: BorrowedFd<'a>) {
        self.descriptors.push((descriptor, Until::Readable));
    }

    /// Waits until this is writable.
    pub fn writable(&mut self, descriptor: BorrowedFd<'a>) {
        self.descriptors.push((descriptor, Until::Writable));
    }

    /// Waits until this time.
    pub fn until(&mut self, due: Instant) {
        self.due = Some(self.due.map_or(due, |known| known.min(due)));
    }

    /// Waits for any of them, at most for `patience`.
    pub fn wait(self, patience: Duration) {
        let left = self.due.map_or(Duration::MAX, |due| due.saturating_duration_since(Instant::now()));
        // The resolution of poll(2) is a millisecond at best; a caller that wakes too early waits again.
        if wait(&self.descriptors, patience.min(left)).is_err() {
            // Out of memory, temporarily or permanently.
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    #[test]
    fn wait_reports_ready_descriptors() {
        let (a, b) = UnixStream::pair().expect("a pair");
        let both = [a.as_fd(), b.as_fd()];
        assert_eq!(wait_readable(&both, Duration::from_millis(1)).expect("waits"), [false, false]);
        (&a).write_all(b"x").expect("written");
        assert_eq!(wait_readable(&both, Duration::MAX).expect("waits"), [false, true]);
        let all = [(a.as_fd(), Until::Readable), (a.as_fd(), Until::Writable), (b.as_fd(), Until::Readable)];
        assert_eq!(wait(&all, Duration::MAX).expect("waits"), [false, true, true]);
    }
}
