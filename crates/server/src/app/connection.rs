//! A connection to an application: its socket, and the TLS session on it if the application uses TLS.
//!
//! A client's handshake takes up to a few hundred microseconds of processor time, most of it to verify the server's
//! certificates and to agree on keys. In a loop that must not block, a thread does this: the session is moved to it with
//! the bytes that have arrived, and returns through the loop's mailbox ([`Step`]). Everything before and after that takes
//! less than 0.1 ms and stays in the loop. A resumed session verifies nothing, but it is not known to be one before.
//!
//! rustls buffers what it has decrypted or encrypted. Bytes are accepted only when all earlier ones were taken by the
//! socket, so at most one call's bytes wait in it.

use std::io::{self, IoSlice, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Weak};

use amped_core::event::Ticket;
use amped_sys::epoll::Interest;
use amped_sys::socket;
use rustls::{ClientConnection, Error};

use super::threads::Task;
use crate::backend_tls::{BackendTls, explain};
use crate::token::Token;

/// A connection to an application.
#[derive(Debug)]
pub struct BackendConnection {
    socket: OwnedFd,
    session: Session,
    /// The events that the loop waits for; `None`: it does not.
    pub(super) watched: Option<Interest>,
    /// The last receive has left nothing, and there was no event since: epoll will report what arrives.
    is_drained: bool,
}

#[derive(Debug)]
enum Session {
    /// Bytes are sent unchanged.
    None,
    /// The handshake is not complete.
    Handshake(Box<ClientConnection>, Option<Verification>),
    /// A thread has it; dropping this cancels what it does.
    Away(Arc<()>),
    Tls(Box<ClientConnection>),
    /// It has failed, with an error that is not reported yet: nothing can be sent or received.
    Failed(Option<io::Error>),
}

/// How the steps of a handshake that take time are done by a thread.
#[derive(Clone, Debug)]
pub(super) struct Verification {
    /// The queue of the thread.
    pub(super) queue: Sender<Box<Step>>,
    /// The client's connection and the ticket of its request, which get the session back.
    pub(super) token: Token,
    /// See `token`.
    pub(super) ticket: Ticket,
}

/// A step of a handshake, done by a thread.
#[derive(Debug)]
pub struct Step {
    session: Box<ClientConnection>,
    verification: Verification,
    result: Result<(), Error>,
    /// Expires when the connection is given up.
    connection: Weak<()>,
}

impl Step {
    /// Returns the client's connection, and the ticket of its request.
    pub fn owner(&self) -> (Token, Ticket) {
        (self.verification.token, self.verification.ticket)
    }
}

impl Task for Box<Step> {
    type Message = Box<Step>;

    fn perform(mut self) -> Option<Box<Step>> {
        if self.connection.strong_count() == 0 {
            return None;
        }
        self.result = self.session.process_new_packets().map(drop);
        Some(self)
    }
}

impl BackendConnection {
    /// Wraps a nonblocking socket.
    pub(super) fn new(socket: OwnedFd) -> BackendConnection {
        BackendConnection { socket, session: Session::None, watched: None, is_drained: false }
    }

    /// Begins a TLS session, if the application uses TLS. Without a `verification` the caller waits for all of it.
    ///
    /// # Errors
    /// The configuration cannot be used.
    pub(super) fn begin_tls(&mut self, tls: &BackendTls, verification: Option<Verification>) -> io::Result<()> {
        let session = tls.session().map_err(|error| describe(&error))?;
        self.session = Session::Handshake(Box::new(session), verification);
        Ok(())
    }

    /// Puts a session back after a step. Returns whether it was this connection's.
    pub(super) fn take_back(&mut self, step: Step) -> bool {
        let Step { session, verification, result, connection } = step;
        let is_own =
            matches!(&self.session, Session::Away(away) if std::ptr::eq(Arc::as_ptr(away), connection.as_ptr()));
        if is_own {
            self.session = Session::Handshake(session, Some(verification));
            if let Err(error) = result {
                self.session = Session::Failed(Some(self.fail(&error)));
            }
        }
        is_own
    }

    /// Sends as many of these bytes as there is room for.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] if there is no room, or the handshake is not complete; otherwise the connection is
    /// dead.
    pub(super) fn send(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if matches!(self.session, Session::None) {
            return socket::send(&self.socket, bytes, false);
        }
        self.flush()?;
        let Session::Tls(session) = &mut self.session else { return Err(io::ErrorKind::WouldBlock.into()) };
        let count = session.writer().write(bytes)?;
        // Some may have been sent before an error, which the next call returns.
        let _ = self.flush();
        Ok(count)
    }

    /// Sends what was accepted before, and continues the handshake.
    ///
    /// # Errors
    /// Those of [`send`](BackendConnection::send).
    pub(super) fn flush(&mut self) -> io::Result<()> {
        loop {
            let BackendConnection { socket, session, .. } = self;
            let (tls, is_complete) = match session {
                Session::None => return Ok(()),
                Session::Away(_) => return Err(io::ErrorKind::WouldBlock.into()),
                Session::Failed(error) => return Err(error.take().unwrap_or(io::ErrorKind::NotConnected.into())),
                Session::Handshake(tls, _) => (tls, false),
                Session::Tls(tls) => (tls, true),
            };
            while tls.wants_write() {
                tls.write_tls(&mut Wire(socket))?;
            }
            if is_complete {
                return Ok(());
            }
            self.shake_hands()?;
        }
    }

    /// Returns whether bytes that were accepted wait for the socket.
    pub(super) fn has_unsent(&self) -> bool {
        matches!(&self.session, Session::Tls(tls) if tls.wants_write())
    }

    /// Receives bytes. `Ok(0)`: the application has closed its side.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] if there are none; otherwise the connection is dead. With TLS also if the end was not
    /// announced, and so may be forged.
    pub(super) fn receive(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self.session {
            Session::None => {
                let received = socket::receive(&self.socket, buffer);
                self.is_drained = matches!(received, Ok(count) if count < buffer.len());
                return received;
            }
            // A response may have arrived even if nothing can be sent any more.
            Session::Tls(_) => {}
            Session::Handshake(..) | Session::Away(_) | Session::Failed(_) => self.flush()?,
        }
        loop {
            let Session::Tls(tls) = &mut self.session else { return Err(io::ErrorKind::WouldBlock.into()) };
            match tls.reader().read(buffer) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                result => return result,
            }
            tls.read_tls(&mut Wire(&self.socket))?;
            if let Err(error) = tls.process_new_packets() {
                return Err(self.fail(&error));
            }
        }
    }

    /// Handles an event: something may have arrived.
    pub(super) fn note_event(&mut self) {
        self.is_drained = false;
    }

    /// Returns whether nothing is left to receive, and epoll will report what arrives; with TLS this is unknown.
    pub(super) fn is_drained(&self) -> bool {
        self.is_drained
    }

    /// Receives a part of the handshake, and processes it, or hands it over.
    fn shake_hands(&mut self) -> io::Result<()> {
        let Session::Handshake(mut session, verification) = std::mem::replace(&mut self.session, Session::Failed(None))
        else {
            return Ok(());
        };
        if !session.is_handshaking() {
            self.session = Session::Tls(session);
            return Ok(());
        }
        match read_flight(&mut session, &self.socket) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                self.session = Session::Handshake(session, verification);
                return Err(error);
            }
            Err(error) => return Err(error),
        }
        let Some(verification) = verification else {
            let result = session.process_new_packets().map(drop);
            self.session = Session::Handshake(session, None);
            return result.map_err(|error| self.fail(&error));
        };
        let away = Arc::new(());
        let (connection, queue) = (Arc::downgrade(&away), verification.queue.clone());
        self.session = Session::Away(away);
        // The thread lasts as long as the loop.
        let sent = queue.send(Box::new(Step { session, verification, result: Ok(()), connection }));
        Err(sent.map_or(io::ErrorKind::NotConnected, |()| io::ErrorKind::WouldBlock).into())
    }

    /// Ends the session because of this error, and informs the application.
    fn fail(&mut self, error: &Error) -> io::Error {
        if let Session::Handshake(mut tls, _) | Session::Tls(mut tls) =
            std::mem::replace(&mut self.session, Session::Failed(None))
        {
            let _ = tls.write_tls(&mut Wire(&self.socket));
        }
        describe(error)
    }

    /// Closes the sending direction.
    pub(super) fn half_close(&mut self) {
        self.close_session();
        // A connection that has failed is noticed by reading from it.
        let _ = socket::half_close(&self.socket);
    }

    /// Returns whether it is silent, as an idle connection must be. Data on it means its end, or is not for this server.
    pub(super) fn is_silent(&mut self) -> bool {
        matches!(self.receive(&mut [0]), Err(error) if error.kind() == io::ErrorKind::WouldBlock)
    }

    /// Announces that nothing follows (RFC 8446, 6.1), if the socket takes it at once.
    fn close_session(&mut self) {
        if let Session::Tls(tls) = &mut self.session {
            tls.send_close_notify();
            let _ = tls.write_tls(&mut Wire(&self.socket));
        }
    }
}

impl Drop for BackendConnection {
    fn drop(&mut self) {
        self.close_session();
    }
}

impl AsFd for BackendConnection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Maximum bytes of a handshake processed at once; a chain of certificates is shorter.
const FLIGHT: usize = 16 * 1024;

/// Receives what has arrived of a handshake.
fn read_flight(session: &mut ClientConnection, socket: &OwnedFd) -> io::Result<()> {
    let mut total = 0;
    while total < FLIGHT {
        match session.read_tls(&mut Wire(socket)) {
            // What came before the end may explain it.
            Ok(0) if total > 0 => return Ok(()),
            Ok(0) => {
                let text = "the connection ended during the TLS handshake";
                return Err(io::Error::new(io::ErrorKind::UnexpectedEof, text));
            }
            Ok(count) => total += count,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock && total > 0 => return Ok(()),
            // rustls has to process what it has buffered first.
            Err(error) if error.kind() == io::ErrorKind::Other && total > 0 => return Ok(()),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn describe(error: &Error) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, explain(error))
}

/// The socket, as rustls reads and writes it.
struct Wire<'a>(&'a OwnedFd);

impl Read for Wire<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        socket::receive(self.0, buffer)
    }
}

impl Write for Wire<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        socket::send(self.0, bytes, false)
    }

    fn write_vectored(&mut self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        socket::send_vectored(self.0, pieces, false)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
