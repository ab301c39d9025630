//! The transport between a connection's socket and its protocol: TCP, unchanged.
//!
//! `turn` receives through it, and `send` sends. Nothing else reads or writes a client's socket, so a transport that
//! transforms the bytes changes only this file. Bytes of files have functions of their own: only a transport that does
//! not transform them can send them without a copy.

use std::io::{self, IoSlice};
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use amped_sys::file;
use amped_sys::mapping::Mapping;
use amped_sys::socket;

/// The transport of one connection.
#[derive(Debug)]
pub struct Transport {
    socket: OwnedFd,
}

impl Transport {
    /// Wraps an accepted nonblocking TCP socket.
    pub fn new(socket: OwnedFd) -> Transport {
        Transport { socket }
    }

    /// Receives once. `Ok(0)`: the client has closed its side.
    ///
    /// # Errors
    /// As recv(2); [`io::ErrorKind::WouldBlock`] if there is no data.
    pub fn receive(&self, buffer: &mut [u8]) -> io::Result<usize> {
        socket::receive(&self.socket, buffer)
    }

    /// Sends these pieces in one call; returns the number of bytes accepted. `more`: more follows at once, so
    /// the last packet may wait until it is full.
    ///
    /// # Errors
    /// As sendmsg(2); [`io::ErrorKind::WouldBlock`] if the socket's buffer is full.
    pub fn send(&self, pieces: &[IoSlice<'_>], more: bool) -> io::Result<usize> {
        match pieces {
            [one] => socket::send(&self.socket, one, more),
            several => socket::send_vectored(&self.socket, several, more),
        }
    }

    /// Sends a range of a file without a copy; waits for the disk if the range is not in
    /// memory. `Ok(0)`: the file ends before it.
    ///
    /// # Errors
    /// As sendfile(2).
    pub fn send_file(&self, file: impl AsFd, range: Range<u64>) -> io::Result<usize> {
        file::send_file(&self.socket, file, &mut range.start.clone(), (range.end - range.start) as usize)
    }

    /// Sends these pieces, followed by a range of a mapped file, in one call.
    ///
    /// # Errors
    /// As sendmsg(2); EFAULT if the file no longer has that range.
    pub fn send_mapped(
        &self,
        before: &[IoSlice<'_>],
        mapping: &Mapping,
        range: Range<usize>,
        more: bool,
    ) -> io::Result<usize> {
        mapping.send(&self.socket, before, range, more)
    }

    /// Closes the sending direction.
    ///
    /// # Errors
    /// As shutdown(2).
    pub fn half_close(&self) -> io::Result<()> {
        socket::half_close(&self.socket)
    }

    /// Returns the number of bytes sent but not yet acknowledged by the client.
    pub fn unacknowledged(&self) -> u64 {
        socket::unacknowledged(&self.socket)
    }

    /// Makes closing reset the connection, so that the client sees that its response is incomplete.
    pub fn reset_on_close(&self) {
        socket::reset_on_close(&self.socket);
    }
}

impl AsFd for Transport {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
