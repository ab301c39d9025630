//! One client connection as a state machine: bytes come in, bytes
//! to send come out, and events are counted in a [`Tally`].
//!
//! Pure: time is an argument, and `drive` owns the sockets. Each request ends as exactly one reply or one failure.
//! `http1.rs` sends requests in groups, the next group after the last reply; `http2.rs` sends each on a stream of its
//! own, and the next one as soon as a stream is free.

mod http1;
mod http2;

use amped_http::h1::request::Version;
use amped_units::Time;

use crate::tally::{Fault, Tally};
use crate::workload::{ContentCheck, Request, Requests, Statuses};
use http1::Http1;
use http2::Http2;

/// The properties that all connections of a run share.
#[derive(Clone, Debug)]
pub struct Plan {
    requests: Requests,
    version: Version,
    /// `https`, not `http`.
    secure: bool,
    authority: Box<str>,
    /// More header fields, each with its line end.
    fields: Box<str>,
    /// The method of requests that are not HEAD.
    method: Box<str>,
    body: Box<[u8]>,
    /// The parts of requests that are the same in all of them.
    parts: Parts,
    /// Statuses that are correct for requests without an expectation of their own.
    statuses: Statuses,
    /// Requests per connection.
    per_connection: u64,
    /// Requests that a connection sends before their replies: pipelined, or on streams.
    at_once: u64,
}

/// What surrounds the target of a request on the wire.
#[derive(Clone, Debug)]
enum Parts {
    Http1(http1::Parts),
    Http2(http2::Parts),
}

impl Plan {
    /// A plan of `per_connection` requests per connection for the host `authority`. `fields` are more header fields, each
    /// with its line end. `at_once` requests are pipelined in HTTP/1, and on concurrent streams in HTTP/2.
    pub fn new(
        requests: Requests,
        version: Version,
        authority: &str,
        fields: &str,
        per_connection: u64,
        at_once: u64,
    ) -> Plan {
        let plan = Plan {
            requests,
            version,
            secure: false,
            authority: authority.into(),
            fields: fields.into(),
            method: "GET".into(),
            body: [].into(),
            parts: Parts::Http1(http1::Parts::default()),
            statuses: Statuses::default(),
            per_connection: per_connection.max(1),
            at_once: at_once.max(1),
        };
        plan.prepared()
    }

    fn prepared(self) -> Plan {
        let parts = match self.version {
            Version::Http10 | Version::Http11 => Parts::Http1(http1::Parts::of(&self)),
            Version::Http2 => Parts::Http2(http2::Parts::of(&self)),
        };
        Plan { parts, ..self }
    }

    /// The same with another method, and a body for each request. Adds `Content-Length` if there is a body, and for
    /// methods that usually have one (RFC 9110, 8.6).
    pub fn with_method(self, method: &str, body: &[u8]) -> Plan {
        Plan { method: method.into(), body: body.into(), ..self }.prepared()
    }

    /// The same over TLS, whose requests of HTTP/2 have another scheme.
    pub fn over_tls(self, secure: bool) -> Plan {
        Plan { secure, ..self }.prepared()
    }

    /// The same with these statuses as correct ones.
    pub fn with_statuses(self, statuses: Statuses) -> Plan {
        Plan { statuses, ..self }
    }

    /// The length of the body, if requests state it.
    fn content_length(&self) -> Option<usize> {
        let is_stated = !self.body.is_empty() || ["POST", "PUT", "PATCH"].contains(&&*self.method);
        is_stated.then_some(self.body.len())
    }

    /// Whether a request's reply has no body (RFC 9110, 9.3.2).
    fn is_head(&self, request: &Request) -> bool {
        request.head || &*self.method == "HEAD"
    }

    /// The requests.
    pub fn requests(&self) -> &Requests {
        &self.requests
    }

    /// Requests per connection.
    pub fn per_connection(&self) -> u64 {
        self.per_connection
    }
}

/// The next step of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Wait for bytes from the server.
    Bytes,
    /// Send more requests.
    Ask,
    /// Close the connection.
    Close,
}

/// An established connection.
#[derive(Debug)]
pub struct Connection(Protocol);

#[derive(Debug)]
enum Protocol {
    Http1(Http1),
    Http2(Box<Http2>),
}

impl Connection {
    /// A connection whose first request was planned for `planned`.
    pub fn new(planned: Time, plan: &Plan) -> Connection {
        Connection(match plan.version {
            Version::Http10 | Version::Http11 => Protocol::Http1(Http1::new(planned)),
            Version::Http2 => Protocol::Http2(Box::new(Http2::new(planned, plan))),
        })
    }

    /// When the oldest outstanding request was due: its scheduled time, or the end of the reply that made room for it.
    /// Without one, the instant of the last requests.
    pub fn planned(&self) -> Time {
        match &self.0 {
            Protocol::Http1(http1) => http1.planned(),
            Protocol::Http2(http2) => http2.planned(),
        }
    }

    /// Whether no request is outstanding.
    pub fn is_idle(&self) -> bool {
        match &self.0 {
            Protocol::Http1(http1) => http1.is_idle(),
            Protocol::Http2(http2) => http2.is_idle(),
        }
    }

    /// Prepares the next requests, the first of which has number `base` in the run, and which were planned for `planned`:
    /// appends their bytes to `out`, and returns their number; 0 if no requests are left, or there is no room for more.
    pub fn ask(&mut self, planned: Time, base: u64, plan: &Plan, out: &mut Vec<u8>) -> u64 {
        match &mut self.0 {
            Protocol::Http1(http1) => http1.ask(planned, base, plan, out),
            Protocol::Http2(http2) => http2.ask(planned, base, plan, out),
        }
    }

    /// The maximum number of requests that can be sent now.
    pub fn room(&self, plan: &Plan) -> u64 {
        match &self.0 {
            Protocol::Http1(http1) => http1.room(plan),
            Protocol::Http2(http2) => http2.room(plan),
        }
    }

    /// Requests sent so far.
    pub fn sent(&self) -> u64 {
        match &self.0 {
            Protocol::Http1(http1) => http1.sent(),
            Protocol::Http2(http2) => http2.sent(),
        }
    }

    /// Handles bytes from the server. [`Self::take_output`] must follow.
    pub fn handle_bytes(&mut self, now: Time, bytes: &[u8], plan: &Plan, tally: &mut Tally) -> Next {
        match &mut self.0 {
            Protocol::Http1(http1) => http1.handle_bytes(now, bytes, plan, tally),
            Protocol::Http2(http2) => http2.handle_bytes(now, bytes, plan, tally),
        }
    }

    /// Appends what the protocol has to send besides requests: acknowledgements, windows, and bodies that waited for one.
    pub fn take_output(&mut self, out: &mut Vec<u8>) {
        match &mut self.0 {
            Protocol::Http1(_) => {}
            Protocol::Http2(http2) => http2.take_output(out),
        }
    }

    /// Handles the end of the stream. The connection is over.
    pub fn handle_end(&mut self, now: Time, plan: &Plan, tally: &mut Tally) {
        match &mut self.0 {
            Protocol::Http1(http1) => http1.handle_end(now, plan, tally),
            Protocol::Http2(http2) => http2.handle_end(plan, tally),
        }
    }

    /// Handles an end without a TLS close alert: an attacker may have caused it, so a body that only the end delimits
    /// is incomplete (RFC 9112, 9.8). The connection is over.
    pub fn handle_cut(&mut self, plan: &Plan, tally: &mut Tally) -> Next {
        match &mut self.0 {
            Protocol::Http1(http1) => http1.handle_cut(plan, tally),
            Protocol::Http2(http2) => {
                http2.handle_end(plan, tally);
                Next::Close
            }
        }
    }

    /// Fails all outstanding requests for this reason. The connection is over.
    pub fn handle_fault(&mut self, fault: Fault, plan: &Plan, tally: &mut Tally) -> Next {
        match &mut self.0 {
            Protocol::Http1(http1) => http1.handle_fault(fault, plan, tally),
            Protocol::Http2(http2) => http2.handle_fault(fault, plan, tally),
        }
    }

    /// Fails the requests that were due at `late` or before: all of them, or in HTTP/2 their streams only, if the server
    /// has sent anything since. [`Self::take_output`] must follow.
    pub fn handle_late(&mut self, late: Time, plan: &Plan, tally: &mut Tally) -> Next {
        match &mut self.0 {
            Protocol::Http1(http1) => http1.handle_fault(Fault::TimedOut, plan, tally),
            Protocol::Http2(http2) => http2.handle_late(late, plan, tally),
        }
    }
}

/// The way in which a reply differs from what the request expects.
fn mismatch(request: &Request, whole: &Whole, statuses: &Statuses) -> Option<Fault> {
    let Some(expect) = request.expect else {
        return (!statuses.contains(whole.status)).then_some(Fault::Status);
    };
    if expect.status.is_some_and(|status| status != whole.status) {
        return Some(Fault::Status);
    }
    if expect.length.is_some_and(|length| length != whole.length) {
        return Some(Fault::Length);
    }
    expect.content.filter(|content| *content != whole.content).map(|_| Fault::Content)
}

/// A complete reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Whole {
    status: u16,
    /// Bytes of the body, without framing.
    length: u64,
    /// The checksum of the body; that of an empty body if no content is expected.
    content: ContentCheck,
    keep_alive: bool,
}
