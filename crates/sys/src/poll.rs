//! poll(2): waiting for a few descriptors, by whoever has no loop.

use std::io;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};

/// Waits until one of these can be read, has ended or has failed, no longer than `timeout`. Says of each whether it is.
///
/// # Errors
/// When memory is short.
pub fn wait_readable(descriptors: &[BorrowedFd<'_>], timeout: Duration) -> io::Result<Vec<bool>> {
    let mut polled: Vec<_> =
        descriptors.iter().map(|&descriptor| PollFd::from_borrowed_fd(descriptor, PollFlags::IN)).collect();
    // What cannot be said in a `timespec` is for ever.
    let timeout = Timespec::try_from(timeout).ok();
    match rustix::event::poll(&mut polled, timeout.as_ref()) {
        Ok(_) => Ok(polled.iter().map(|one| !one.revents().is_empty()).collect()),
        // Whoever was interrupted looks again.
        Err(rustix::io::Errno::INTR) => Ok(vec![false; descriptors.len()]),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    #[test]
    fn says_which_can_be_read() {
        let (a, b) = UnixStream::pair().expect("a pair");
        let both = [a.as_fd(), b.as_fd()];
        assert_eq!(wait_readable(&both, Duration::from_millis(1)).expect("waits"), [false, false]);
        (&a).write_all(b"x").expect("written");
        assert_eq!(wait_readable(&both, Duration::MAX).expect("waits"), [false, true]);
    }
}
