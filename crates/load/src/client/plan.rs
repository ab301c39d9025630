//! What the connections of a run share: the plan of their requests, and the check of their replies.

use amped_http::h1::request::Version;

use super::template::{RequestTexts, Template};
use crate::tally::Fault;
use crate::workload::{ContentCheck, Request, Requests, Statuses};

/// The properties that all connections of a run share.
#[derive(Clone, Debug)]
pub struct Plan {
    pub(super) requests: Requests,
    pub(super) texts: RequestTexts,
    pub(super) template: Template,
    /// Statuses that are correct for requests without an expectation of their own.
    pub(super) statuses: Statuses,
    /// Requests per connection.
    pub(super) per_connection: u64,
    /// Requests that a connection sends before their replies: pipelined, or on streams.
    pub(super) at_once: u64,
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
        let texts = RequestTexts {
            version,
            secure: false,
            authority: authority.into(),
            fields: fields.into(),
            method: "GET".into(),
            body: [].into(),
        };
        Plan {
            requests,
            template: Template::of(&texts),
            texts,
            statuses: Statuses::default(),
            per_connection: per_connection.max(1),
            at_once: at_once.max(1),
        }
    }

    fn with_texts(self, texts: RequestTexts) -> Plan {
        Plan { template: Template::of(&texts), texts, ..self }
    }

    /// The same with another method, and a body for each request. Adds `Content-Length` if there is a body, and for
    /// methods that usually have one (RFC 9110, 8.6).
    pub fn with_method(self, method: &str, body: &[u8]) -> Plan {
        let texts = RequestTexts { method: method.into(), body: body.into(), ..self.texts.clone() };
        self.with_texts(texts)
    }

    /// The same over TLS, whose requests of HTTP/2 have another scheme.
    pub fn over_tls(self, secure: bool) -> Plan {
        let texts = RequestTexts { secure, ..self.texts.clone() };
        self.with_texts(texts)
    }

    /// The same with these statuses as correct ones.
    pub fn with_statuses(self, statuses: Statuses) -> Plan {
        Plan { statuses, ..self }
    }

    /// Whether a request's reply has no body (RFC 9110, 9.3.2).
    pub(super) fn is_head(&self, request: &Request) -> bool {
        request.head || &*self.texts.method == "HEAD"
    }

    /// The requests.
    pub fn requests(&self) -> &Requests {
        &self.requests
    }

    /// Requests per connection.
    pub fn per_connection(&self) -> u64 {
        self.per_connection
    }

    /// Requests that connection `number` of a schedule is to carry: fewer at the end of a list.
    pub fn requests_of(&self, number: u64) -> u64 {
        let first = number.saturating_mul(self.per_connection);
        let left = self.requests.len().map_or(u64::MAX, |all| all.saturating_sub(first));
        self.per_connection.min(left)
    }

    /// Requests that a connection of a closed loop is to carry. That is one if it may carry any number, or if another
    /// connection takes over the rest of a list.
    pub fn requests_of_client(&self) -> u64 {
        if self.per_connection == u64::MAX || self.requests.len().is_some() { 1 } else { self.per_connection }
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

/// The way in which a reply differs from what the request expects.
pub(super) fn mismatch(request: &Request, whole: &Whole, statuses: &Statuses) -> Option<Fault> {
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
pub(super) struct Whole {
    pub(super) status: u16,
    /// Bytes of the body, without framing.
    pub(super) length: u64,
    /// The checksum of the body; that of an empty body if no content is expected.
    pub(super) content: ContentCheck,
    pub(super) keep_alive: bool,
}
