//! The data of a request for the access log; the log decides the format of a line.
//!
//! Records are pooled (see [`Records`]), so that logging a request that is served from the caches allocates nothing.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;
use core::net::IpAddr;
use core::ops::Range;
use core::time::Duration;

use amped_http::h1::request::{Request, Version};
use amped_http::status::Status;
use amped_units::Time;

use crate::pacer::Bandwidth;

/// The work that a response required.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Outcome {
    /// No file lookup: an error, a redirect of our own, OPTIONS.
    #[default]
    None,
    /// Served from the caches.
    Hit,
    /// Served from an expired entry of the caches, while a helper revalidated it.
    Stale,
    /// The file system responded without blocking.
    Probe,
    /// A helper waited for the disk.
    Helper,
    /// An application responded.
    App,
    /// A cached response of an application.
    Page,
}

/// The part of the server that made a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Handler {
    /// A file, including 304.
    #[default]
    File,
    /// An application, including its cached responses.
    App,
    /// The server itself: a listing, a redirect, a fixed response, OPTIONS.
    Own,
    /// An error of the server, with any error page.
    Error,
}

impl Outcome {
    /// Its name in the log.
    pub fn as_str(self) -> &'static str {
        match self {
            Outcome::None => "none",
            Outcome::Hit | Outcome::Page => "hit",
            Outcome::Stale => "stale",
            Outcome::Probe => "probe",
            Outcome::Helper => "helper",
            Outcome::App => "app",
        }
    }
}

/// Ends a request that counts as one of its client's.
pub trait EndRequest: fmt::Debug + Send + Sync {
    /// A request has ended that was counted under this key, in this place.
    fn end(&self, key: u128, place: usize);
}

/// A request that counts as one of its client's until this is dropped. Not boxed, so that counting allocates nothing.
#[derive(Debug)]
pub struct RequestPermit {
    counts: Arc<dyn EndRequest>,
    key: u128,
    place: usize,
}

impl RequestPermit {
    /// A request that was counted under this key, in this place.
    pub fn new(counts: Arc<dyn EndRequest>, key: u128, place: usize) -> RequestPermit {
        RequestPermit { counts, key, place }
    }
}

impl Drop for RequestPermit {
    fn drop(&mut self) {
        self.counts.end(self.key, self.place);
    }
}

/// One request and its response.
#[derive(Debug, Default)]
pub struct Record {
    /// All texts, concatenated; each field below is a range of it.
    text: Vec<u8>,
    method: Range<usize>,
    target: Range<usize>,
    host: Range<usize>,
    referer: Option<Range<usize>>,
    user_agent: Option<Range<usize>>,
    user: Option<Range<usize>>,
    backend: Option<Range<usize>>,
    request_id: Option<Range<usize>>,
    version: Option<Version>,
    /// Status of the response; 0 until it is known.
    pub status: u16,
    /// The work that it required.
    pub outcome: Outcome,
    /// When the first byte of the request arrived.
    pub began: Time,
    /// Bytes of the response head, which the log subtracts from the bytes sent.
    pub head_bytes: usize,
    /// Bytes of the response body to be sent: 0 for HEAD and 304.
    pub body_bytes: u64,
    /// The part of the server that made the response.
    pub handler: Handler,
    /// The address of the client, if the configuration needs it; otherwise, and for a request that could not be parsed,
    /// the client is the peer of the connection.
    pub client: Option<IpAddr>,
    /// Whether a proxy, the peer of the connection, has named the client.
    pub proxied: bool,
    /// Whether the client sent it over TLS, to this server or to a proxy that it trusts.
    pub secure: bool,
    /// The time that an application took to begin its response.
    pub upstream_time: Option<Duration>,
    /// Whether the access log omits it.
    pub is_unlogged: bool,
    /// The number of the site; 0 for a request that could not be parsed.
    pub site: u16,
    /// The request counts as one of its client's until the response is sent.
    pub permit: Option<RequestPermit>,
    /// The bandwidth of the response, if it is limited.
    pub bandwidth: Option<Bandwidth>,
}

impl Record {
    fn put(&mut self, text: &[u8]) -> Range<usize> {
        let start = self.text.len();
        self.text.extend_from_slice(text);
        start..self.text.len()
    }

    /// Records a request.
    pub fn note(&mut self, request: &Request<'_>, began: Time) {
        self.clear();
        self.method = self.put(request.method_text);
        self.target = self.put(request.target_text);
        self.host = self.put(request.host);
        self.referer = request.referer.map(|text| self.put(text));
        self.user_agent = request.user_agent.map(|text| self.put(text));
        self.version = Some(request.version);
        self.secure = request.secure;
        self.client = request.client.map(|client| client.address);
        self.proxied = request.client.is_some_and(|client| client.named.is_some());
        self.began = began;
    }

    /// Records the user name that the request claims.
    pub fn note_user(&mut self, name: &[u8]) {
        self.user = Some(self.put(name));
    }

    /// Records the backend that responded.
    pub fn note_backend(&mut self, name: &str) {
        self.backend = Some(self.put(name.as_bytes()));
    }

    /// Records the ID of the request.
    pub fn note_request_id(&mut self, id: &[u8]) {
        self.request_id = Some(self.put(id));
    }

    /// Records a request that could not be parsed; only its first line is recorded.
    pub fn note_unreadable(&mut self, bytes: &[u8], began: Time) {
        self.clear();
        let end = bytes.iter().position(|&b| b == b'\r' || b == b'\n').unwrap_or(bytes.len());
        self.target = self.put(&bytes[..end.min(1000)]);
        self.began = began;
    }

    fn clear(&mut self) {
        *self = Record { text: core::mem::take(&mut self.text), ..Record::default() };
        self.text.clear();
    }

    /// The method; empty for an unparsable request.
    pub fn method(&self) -> &[u8] {
        &self.text[self.method.clone()]
    }

    /// The target as sent; the first line of an unparsable request.
    pub fn target(&self) -> &[u8] {
        &self.text[self.target.clone()]
    }

    /// The requested host.
    pub fn host(&self) -> &[u8] {
        &self.text[self.host.clone()]
    }

    /// The Referer field.
    pub fn referer(&self) -> Option<&[u8]> {
        self.referer.clone().map(|range| &self.text[range])
    }

    /// The User-Agent field.
    pub fn user_agent(&self) -> Option<&[u8]> {
        self.user_agent.clone().map(|range| &self.text[range])
    }

    /// The user name, on a path that requires authentication; in a 401, the claimed one.
    pub fn user(&self) -> Option<&[u8]> {
        self.user.clone().map(|range| &self.text[range])
    }

    /// The backend that responded, if the request was forwarded.
    pub fn backend(&self) -> Option<&[u8]> {
        self.backend.clone().map(|range| &self.text[range])
    }

    /// The ID of the request, if it has one.
    pub fn request_id(&self) -> Option<&[u8]> {
        self.request_id.clone().map(|range| &self.text[range])
    }

    /// `HTTP/1.1`, `HTTP/1.0` or `HTTP/2.0`; empty for an unparsable request.
    pub fn version(&self) -> &'static str {
        self.version.map_or("", Version::name)
    }

    /// Sets status and outcome.
    pub fn set(&mut self, status: Status, outcome: Outcome) {
        self.status = status.0;
        self.outcome = outcome;
    }
}

/// A pool of records.
#[derive(Default)]
pub struct Records {
    // Boxed, because records are passed on boxed: a response moves a pointer instead of 200 bytes.
    #[expect(clippy::vec_box, reason = "the boxes themselves are reused")]
    spare: Vec<Box<Record>>,
}

/// More than a turn's worth of pipelined responses; records beyond it came from a burst and are freed.
const SPARE_MAX: usize = 256;

/// Records with a larger text buffer are not reused, so that one long URL does not hold memory forever.
const TEXT_MAX: usize = 4096;

impl Records {
    /// Takes an empty record.
    pub fn take(&mut self) -> Box<Record> {
        self.spare.pop().unwrap_or_default()
    }

    /// Returns a record to the pool.
    pub fn give_back(&mut self, mut record: Box<Record>) {
        record.permit = None;
        if self.spare.len() < SPARE_MAX && record.text.capacity() <= TEXT_MAX {
            self.spare.push(record);
        }
    }
}
