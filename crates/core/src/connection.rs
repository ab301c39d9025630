//! A client's connection, whichever version of HTTP it speaks.
//!
//! The first bytes decide: HTTP/2 begins with a preface (RFC 9113, 3.4). With TLS, ALPN has decided before.

use alloc::boxed::Box;
use alloc::vec::Vec;

use amped_http::h2::frame::PREFACE;
use amped_units::Time;

use crate::event::{Action, Event, Lane, Ticket};
use crate::file::FileHandle;
use crate::http1;
use crate::http2::{Drawn, Session};
use crate::limits::Limits;
use crate::shared_state::SharedState;

/// A connection.
#[derive(Debug)]
pub enum Conn {
    /// HTTP/1, or not decided yet.
    Http1(http1::Conn),
    /// HTTP/2.
    Http2(Box<Session>),
}

impl Conn {
    /// A connection that was accepted at `now`. `secure`: its transport is encrypted (TLS).
    pub fn new(now: Time, secure: bool) -> Conn {
        Conn::Http1(http1::Conn::new(now, secure))
    }

    /// The client has chosen HTTP/2 in the TLS handshake (ALPN).
    pub fn speak_http2<F>(&mut self, now: Time, limits: &Limits, actions: &mut Vec<Action<F>>) {
        if let Conn::Http1(conn) = self {
            let secure = conn.is_secure();
            *self = Conn::Http2(Box::new(Session::new(now, secure, limits, actions)));
        }
    }

    /// Handles an event that occurred at `now`, and appends the resulting actions to `actions`.
    pub fn handle<F: FileHandle>(
        &mut self,
        now: Time,
        event: Event<'_, F>,
        shared: &mut SharedState<F>,
        actions: &mut Vec<Action<F>>,
    ) {
        match self {
            Conn::Http1(conn) => match event {
                Event::Bytes(bytes) if shared.http2 && bytes.first().is_some_and(|byte| PREFACE.contains(byte)) => {
                    self.take_first_bytes(now, bytes, shared, actions);
                }
                event => conn.handle(now, event, shared, actions),
            },
            Conn::Http2(session) => session.handle(now, event, shared, actions),
        }
    }

    /// Takes bytes that may belong to the preface of HTTP/2.
    fn take_first_bytes<F: FileHandle>(
        &mut self,
        now: Time,
        bytes: &[u8],
        shared: &mut SharedState<F>,
        actions: &mut Vec<Action<F>>,
    ) {
        let Conn::Http1(conn) = self else { return };
        let before = match conn.beginning() {
            Some(before) if !conn.is_secure() && PREFACE.starts_with(before) => before,
            _ => return conn.handle(now, Event::Bytes(bytes), shared, actions),
        };
        let count = bytes.len().min(PREFACE.len() - before.len());
        let rest = &PREFACE[before.len()..];
        match bytes[..count] == rest[..count] {
            true if count == rest.len() => {
                self.speak_http2(now, &shared.limits, actions);
                if let Conn::Http2(session) = self {
                    session.handle(now, Event::Bytes(PREFACE), shared, actions);
                    session.handle(now, Event::Bytes(&bytes[count..]), shared, actions);
                }
            }
            true => conn.keep_beginning(bytes),
            false => conn.handle(now, Event::Bytes(bytes), shared, actions),
        }
    }

    /// When [`Event::Deadline`] is due; [`Time::NEVER`] while the server must act, not the client.
    pub fn next_due(&self, limits: &Limits) -> Time {
        match self {
            Conn::Http1(conn) => conn.next_due(limits),
            Conn::Http2(session) => session.next_due(limits),
        }
    }

    /// Whether its client has received too little of what was sent, also of what the transport has taken.
    pub fn is_slow(&self, now: Time) -> bool {
        match self {
            Conn::Http1(conn) => conn.is_slow(now),
            Conn::Http2(session) => session.is_slow(now),
        }
    }

    /// Whether to read from the client now.
    pub fn wants_bytes(&self) -> bool {
        match self {
            Conn::Http1(conn) => conn.wants_bytes(),
            Conn::Http2(session) => session.wants_bytes(),
        }
    }

    /// Whether no request is in progress, so that it could be closed without loss.
    pub fn is_idle(&self) -> bool {
        match self {
            Conn::Http1(conn) => conn.is_idle(),
            Conn::Http2(session) => session.is_idle(),
        }
    }

    /// Whether it may be closed to make room for another: it is idle, and a new connection has had time for its first
    /// request.
    pub fn may_give_way(&self, now: Time) -> bool {
        match self {
            Conn::Http1(conn) => conn.may_give_way(now),
            Conn::Http2(session) => session.may_give_way(now),
        }
    }

    /// Whether it still needs the result with this ticket.
    pub fn waits_for(&self, ticket: Ticket) -> bool {
        match self {
            Conn::Http1(conn) => conn.waits_for(ticket),
            Conn::Http2(session) => session.waits_for(ticket),
        }
    }

    /// Whether it accepts output of the application request with this ticket now.
    pub fn wants_output(&self, ticket: Ticket) -> bool {
        match self {
            Conn::Http1(conn) => conn.wants_output(),
            Conn::Http2(session) => session.wants_output(ticket),
        }
    }

    /// Bytes of output of the application request with this ticket that its client permits now: those of its stream's window.
    pub fn output_window(&self, ticket: Ticket) -> usize {
        match self {
            Conn::Http1(_) => usize::MAX,
            Conn::Http2(session) => session.output_window(ticket),
        }
    }

    /// Whether it passes bytes on in both directions, after an upgrade.
    pub fn is_tunnel(&self) -> bool {
        match self {
            Conn::Http1(conn) => conn.is_tunnel(),
            Conn::Http2(_) => false,
        }
    }

    /// Heap memory in bytes, in addition to the struct itself.
    pub fn heap_bytes(&self) -> usize {
        match self {
            Conn::Http1(conn) => conn.heap_bytes(),
            Conn::Http2(session) => session.heap_bytes(),
        }
    }

    /// The lane that sends next, and the most bytes of body in its next frame. `None` in HTTP/1, whose responses are sent
    /// in the order of their requests.
    pub fn next_lane(&self) -> Option<(Lane, usize)> {
        match self {
            Conn::Http1(_) => None,
            Conn::Http2(session) => session.next_lane(),
        }
    }

    /// The sender has drawn this from a lane, and will send it.
    pub fn drew<F>(&mut self, now: Time, lane: Lane, drawn: Drawn, actions: &mut Vec<Action<F>>) {
        if let Conn::Http2(session) = self {
            session.drew(now, lane, drawn, actions);
        }
    }

    /// All control frames so far were passed to the transport.
    pub fn control_sent(&mut self) {
        if let Conn::Http2(session) = self {
            session.control_sent();
        }
    }

    /// Whether the next header block must begin with the size of the dynamic table (RFC 7541, 4.2).
    pub fn owes_table_update(&self) -> bool {
        matches!(self, Conn::Http2(session) if session.owes_table_update())
    }

    /// The sender has written that size.
    pub fn table_update_sent(&mut self) {
        if let Conn::Http2(session) = self {
            session.table_update_sent();
        }
    }

    /// The next bytes of a lane are in memory now, as far as possible.
    pub fn warmed(&mut self, now: Time, lane: Lane) {
        if let Conn::Http2(session) = self {
            session.warmed(now, lane);
        }
    }

    /// Streams of HTTP/2 that are open.
    pub fn streams(&self) -> usize {
        match self {
            Conn::Http1(_) => 0,
            Conn::Http2(session) => session.streams(),
        }
    }
}

/// Guards the size of a connection: thousands of them are idle.
const _: () = assert!(size_of::<Conn>() <= 112);
