//! One client connection as a state machine: bytes come in, bytes
//! to send come out, and events are counted in a [`Tally`].
//!
//! Pure: time is an argument, and `drive` owns the sockets. Each request ends as exactly one reply or one failure.
//!
//! [`Tally`]: crate::tally::Tally

mod http1;

use amped_http::h1::request::Version;

use crate::tally::Fault;
use crate::workload::{ContentCheck, Request, Requests, Statuses};

pub use http1::Connection;

/// The properties that all connections of a run share.
#[derive(Clone, Debug)]
pub struct Plan {
    requests: Requests,
    /// The method of requests that are not HEAD, with the following space.
    method: Box<[u8]>,
    /// The bytes after the target of a request, and after that of a connection's last request; including the body.
    rest: [Box<[u8]>; 2],
    /// Statuses that are correct for requests without an expectation of their own.
    statuses: Statuses,
    /// Requests per connection.
    per_connection: u64,
    /// Requests sent together.
    pipeline: u64,
}

impl Plan {
    /// A plan of `per_connection` requests per connection, in groups of `pipeline`, for the host `authority`. `fields`
    /// are more header fields, each with its line end.
    pub fn new(
        requests: Requests,
        version: Version,
        authority: &str,
        fields: &str,
        per_connection: u64,
        pipeline: u64,
    ) -> Plan {
        let (per_connection, pipeline) = (per_connection.max(1), pipeline.max(1));
        let rest = [false, true].map(|last| {
            let (number, connection) = match (version, last) {
                (Version::Http11, true) => (1, "Connection: close\r\n"),
                (Version::Http11, false) => (1, ""),
                (Version::Http10, true) => (0, ""),
                (Version::Http10, false) => (0, "Connection: keep-alive\r\n"),
            };
            let rest = format!(" HTTP/1.{number}\r\nHost: {authority}\r\n{connection}{fields}\r\n");
            rest.into_bytes().into_boxed_slice()
        });
        Plan { requests, method: (*b"GET ").into(), rest, statuses: Statuses::default(), per_connection, pipeline }
    }

    /// The same with another method, and a body for each request. Adds `Content-Length` if there is a body, and for
    /// methods that usually have one (RFC 9110, 8.6).
    pub fn with_method(self, method: &str, body: &[u8]) -> Plan {
        let is_announced = !body.is_empty() || ["POST", "PUT", "PATCH"].contains(&method);
        let length = if is_announced { format!("Content-Length: {}\r\n", body.len()) } else { String::new() };
        let rest = self.rest.map(|rest| {
            let (fields, end) = rest.split_at(rest.len() - b"\r\n".len());
            [fields, length.as_bytes(), end, body].concat().into_boxed_slice()
        });
        Plan { method: format!("{method} ").into_bytes().into_boxed_slice(), rest, ..self }
    }

    /// The same with these statuses as correct ones.
    pub fn with_statuses(self, statuses: Statuses) -> Plan {
        Plan { statuses, ..self }
    }

    /// Whether a request's reply has no body (RFC 9110, 9.3.2).
    fn is_head(&self, request: &Request) -> bool {
        request.head || &*self.method == b"HEAD "
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
    /// Send the next group of requests.
    Ask,
    /// Close the connection.
    Close,
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

