//! poll(2): waiting for a few descriptors, by whoever has no loop.

use std::io;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};

/// What a descriptor is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Until {
    /// That it can be read.
    Readable,
    /// That it can be written to.
    Writable,
}

/// Waits until one of these can be read, has ended or has failed, no longer than `timeout`. Says of each whether it is.
///
/// # Errors
/// When memory is short.
pub fn wait_readable(descriptors: &[BorrowedFd<'_>], timeout: Duration) -> io::Result<Vec<bool>> {
    let descriptors: Vec<_> = descriptors.iter().map(|&descriptor| (descriptor, Until::Readable)).collect();
    wait(&descriptors, timeout)
}

/// Waits until one of these is as it is waited for, has ended or has failed, no longer than `timeout`. Says
/// of each whether it is.
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
    // What cannot be said in a `timespec` is for ever.
    let timeout = Timespec::try_from(timeout).ok();
    match rustix::event::poll(&mut polled, timeout.as_ref()) {
        Ok(_) => Ok(polled.iter().map(|one| !one.revents().is_empty()).collect()),
        // Whoever was interrupted looks again.
        Err(rustix::io::Errno::INTR) => Ok(vec![false; descriptors.len()]),
        Err(error) => Err(error.into()),
    }
}

/// Descriptors, and moments at which somebody has something to do.
#[derive(Debug, Default)]
pub struct Awaited<'a> {
    descriptors: Vec<(BorrowedFd<'a>, Until)>,
    due: Option<Instant>,
}

impl<'a> Awaited<'a> {
    /// That this can be read.
    pub fn readable(&mut self, descriptor: BorrowedFd<'a>) {
        self.descriptors.push((descriptor, Until::Readable));
    }

    /// That this can be written to.
    pub fn writable(&mut self, descriptor: BorrowedFd<'a>) {
        self.descriptors.push((descriptor, Until::Writable));
    }

    /// This moment.
    pub fn until(&mut self, due: Instant) {
        self.due = Some(self.due.map_or(due, |known| known.min(due)));
    }

    /// Waits for any of it, and no longer than `patience`.
    pub fn wait(self, patience: Duration) {
        let left = self.due.map_or(Duration::MAX, |due| due.saturating_duration_since(Instant::now()));
        // poll(2) tells in milliseconds at best, and whoever is told too early waits again.
        if wait(&self.descriptors, patience.min(left)).is_err() {
            // Out of memory: not for long, or for good.
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
