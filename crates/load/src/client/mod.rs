//! One client connection as a state machine: bytes come in, bytes
//! to send come out, and events are counted in a [`Tally`].
//!
//! Pure: time is an argument, and `drive` owns the sockets. Each request ends as exactly one reply or one failure, or is
//! counted as not sent when the connection is over ([`Connection::count_unsent`]).
//! `http1.rs` sends requests in groups, the next group after the last reply; `http2.rs` sends each on a stream of its
//! own, and the next one as soon as a stream is free.

mod http1;
mod http2;
mod plan;
mod template;

use amped_http::h1::request::Version;
use amped_units::Time;

use crate::tally::{Fault, Tally};
use http1::Http1;
use http2::Http2;
pub use plan::{Next, Plan};

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
        Connection(match plan.texts.version {
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

    /// Counts the requests without a reply or a failure when the connection is over: those of the `owed` ones that it
    /// did not send, and those that the server reported as unprocessed.
    pub fn count_unsent(&self, owed: u64, tally: &mut Tally) {
        let unprocessed = match &self.0 {
            Protocol::Http1(_) => 0,
            Protocol::Http2(http2) => http2.unprocessed(),
        };
        let unsent = owed.saturating_sub(self.sent()).saturating_add(unprocessed);
        tally.unsent = tally.unsent.saturating_add(unsent);
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
