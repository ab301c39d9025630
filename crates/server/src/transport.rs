//! The transport between a connection's socket and its protocol: TCP, or TLS over it ([`tls`]).
//!
//! `turn` receives through it, and `send` sends. Nothing else reads or writes a client's socket, so a transport that
//! transforms the bytes changes only these files. Bytes of files have functions of their own: only a transport that does
//! not transform them can send them without a copy.
//!
//! TLS may accept bytes that the socket does not take. They count as sent once [`flush`](Transport::flush) succeeds,
//! which comes before anything else is sent.

pub mod tls;

use std::io::{self, IoSlice};
use std::mem;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Weak};
use std::time::Duration;

use amped_sys::file;
use amped_sys::mapping::Mapping;
use amped_sys::socket::{self, Acknowledged};
use amped_units::Time;

pub use self::tls::Received;
use self::tls::{Buffers, HTTP2, Tls};
use crate::counters::{HandshakeFailure, Negotiated};

/// The transport of one connection.
pub struct Transport {
    socket: OwnedFd,
    session: Session,
    /// When the TLS handshake in progress began; [`Time::NEVER`]: there is none.
    handshake_since: Time,
}

enum Session {
    /// Bytes are sent unchanged.
    None,
    Tls(Box<Tls>),
    /// Another thread does the handshake; dropping this cancels it.
    Away {
        _connection: Arc<()>,
    },
}

impl Transport {
    /// Wraps an accepted nonblocking TCP socket, with a TLS session if the connection uses TLS.
    pub fn new(socket: OwnedFd, tls: Option<Box<Tls>>, now: Time) -> Transport {
        let handshake_since = if tls.is_some() { now } else { Time::NEVER };
        Transport { socket, session: tls.map_or(Session::None, Session::Tls), handshake_since }
    }

    /// Returns whether bytes are encrypted.
    pub fn is_tls(&self) -> bool {
        !matches!(self.session, Session::None)
    }

    /// Returns whether another thread has the session: nothing can be received or sent.
    pub fn is_away(&self) -> bool {
        matches!(self.session, Session::Away { .. })
    }

    /// Returns the parameters of the TLS session, once the handshake is complete.
    pub fn negotiated(&self) -> Option<&Negotiated> {
        if let Session::Tls(tls) = &self.session { tls.negotiated() } else { None }
    }

    /// Returns whether the client has chosen HTTP/2 in the TLS handshake.
    pub fn has_chosen_http2(&self) -> bool {
        matches!(&self.session, Session::Tls(tls) if tls.has_chosen(HTTP2))
    }

    /// Returns the parameters of a TLS session whose handshake has just been completed, and how long that took; only once.
    pub fn take_completed(&mut self, now: Time) -> Option<(&Negotiated, Duration)> {
        if self.handshake_since == Time::NEVER {
            return None;
        }
        let Session::Tls(tls) = &mut self.session else { return None };
        let negotiated = tls.complete()?;
        let since = mem::replace(&mut self.handshake_since, Time::NEVER);
        Some((negotiated, now.since(since)))
    }

    /// Returns whether the client only looks at the certificate, and the protocol has none that could follow.
    pub fn is_for_validation(&self) -> bool {
        matches!(&self.session, Session::Tls(tls) if tls.is_for_validation())
    }

    /// Returns why the TLS handshake of a connection that is being closed was not completed, if it was not.
    pub fn handshake_failure(&self, now: impl FnOnce() -> Time, timeout: Duration) -> Option<HandshakeFailure> {
        if self.handshake_since == Time::NEVER {
            return None;
        }
        let failure = match &self.session {
            Session::None => Some(HandshakeFailure::Plain),
            Session::Tls(tls) => tls.failure(),
            Session::Away { .. } => None,
        };
        let is_late = || now() >= self.handshake_since + timeout;
        failure.or_else(|| Some(if is_late() { HandshakeFailure::Timeout } else { HandshakeFailure::Closed }))
    }

    /// Takes the session out, for another thread; also returns a reference that expires with this connection.
    pub fn hand_over(&mut self) -> Option<(Box<Tls>, Weak<()>)> {
        let away = Arc::new(());
        let connection = Arc::downgrade(&away);
        match mem::replace(&mut self.session, Session::Away { _connection: away }) {
            Session::Tls(session) => Some((session, connection)),
            other => {
                self.session = other;
                None
            }
        }
    }

    /// Puts the session back, and sends its answer as far as the socket takes it. Returns whether the connection can
    /// continue.
    pub fn take_back(&mut self, mut session: Box<Tls>) -> bool {
        let sent = session.flush(&self.socket);
        let has_failed = session.failure().is_some();
        self.session = Session::Tls(session);
        !has_failed && sent.err().is_none_or(|error| tls::is_transient(&error))
    }

    /// Receives once.
    ///
    /// # Errors
    /// Those of recv(2); [`io::ErrorKind::WouldBlock`] if there is no data. With TLS also if the handshake fails, or a
    /// record is invalid: then the connection must be closed.
    pub fn receive(&mut self, buffer: &mut [u8], buffers: &mut Buffers) -> io::Result<Received> {
        let tls = match &mut self.session {
            Session::None => {
                let count = socket::receive(&self.socket, buffer)?;
                return Ok(Received::Bytes {
                    count,
                    is_drained: 0 < count && count < buffer.len(),
                    is_end: count == 0,
                });
            }
            Session::Tls(tls) => tls,
            Session::Away { .. } => return Err(io::ErrorKind::NotConnected.into()),
        };
        let received = tls.receive(&self.socket, buffer, buffers)?;
        if matches!(received, Received::NotTls { .. }) {
            self.session = Session::None;
        }
        Ok(received)
    }

    /// Receives bytes that precede everything else on the connection, TLS too, without taking them.
    ///
    /// # Errors
    /// Those of recv(2); [`io::ErrorKind::WouldBlock`] if there is no data.
    pub fn peek(&self, buffer: &mut [u8]) -> io::Result<usize> {
        socket::peek(&self.socket, buffer)
    }

    /// Takes bytes that [`peek`](Transport::peek) has received, at most as many as the buffer has.
    ///
    /// # Errors
    /// Those of recv(2).
    pub fn take_peeked(&self, buffer: &mut [u8]) -> io::Result<usize> {
        socket::receive(&self.socket, buffer)
    }

    /// Sends bytes that were accepted earlier and not taken by the socket.
    ///
    /// # Errors
    /// Those of sendmsg(2); [`io::ErrorKind::WouldBlock`] if the socket's buffer is full.
    pub fn flush(&mut self) -> io::Result<()> {
        match &mut self.session {
            Session::Tls(tls) => tls.flush(&self.socket),
            Session::None | Session::Away { .. } => Ok(()),
        }
    }

    /// Returns whether [`flush`](Transport::flush) has something to do.
    pub fn has_unsent(&self) -> bool {
        matches!(&self.session, Session::Tls(tls) if tls.has_unsent())
    }

    /// Sends these pieces in one call; returns the number of bytes accepted. `more`: more follows at once, so
    /// the last packet may wait until it is full. With TLS nothing may be [unsent](Transport::has_unsent).
    ///
    /// # Errors
    /// Those of sendmsg(2); [`io::ErrorKind::WouldBlock`] if the socket's buffer is full.
    pub fn send(&mut self, pieces: &[IoSlice<'_>], more: bool, buffers: &mut Buffers) -> io::Result<usize> {
        match (&mut self.session, pieces) {
            (Session::None, [one]) => socket::send(&self.socket, one, more),
            (Session::None, several) => socket::send_vectored(&self.socket, several, more),
            (Session::Tls(tls), _) => tls.send(&self.socket, pieces, more, buffers),
            (Session::Away { .. }, _) => Err(io::ErrorKind::NotConnected.into()),
        }
    }

    /// Sends a range of a file without a copy, and so without TLS; waits for the disk if the range is not in
    /// memory. `Ok(0)`: the file ends before it.
    ///
    /// # Errors
    /// Those of sendfile(2).
    pub fn send_file(&self, file: impl AsFd, range: Range<u64>) -> io::Result<usize> {
        file::send_file(&self.socket, file, &mut range.start.clone(), (range.end - range.start) as usize)
    }

    /// Sends these pieces, followed by a range of a mapped file, in one call, without TLS.
    ///
    /// # Errors
    /// Those of sendmsg(2); EFAULT if the file no longer has that range.
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
    /// Those of shutdown(2).
    pub fn half_close(&mut self) -> io::Result<()> {
        self.close();
        socket::half_close(&self.socket)
    }

    /// Announces the end of the stream, if the transport has a way to: TCP does it when the socket closes.
    pub fn close(&mut self) {
        if let Session::Tls(tls) = &mut self.session {
            tls.close(&self.socket);
        }
    }

    /// Returns the memory that it uses in addition to its own size, bytes.
    pub fn heap_bytes(&self) -> usize {
        if let Session::Tls(tls) = &self.session { tls.heap_bytes() } else { 0 }
    }

    /// Returns what the client has acknowledged of what was sent.
    pub fn acknowledged(&self) -> Acknowledged {
        socket::acknowledged(&self.socket)
    }

    /// Limits the bytes that the socket takes ahead of those that it has sent.
    pub fn limit_unsent(&self, bytes: u32) {
        // Without it, what is sent next only overtakes less.
        let _ = socket::limit_unsent(&self.socket, bytes);
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
