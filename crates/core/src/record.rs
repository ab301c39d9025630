//! What the access log is told of a request; how a line looks is the log's business.
//!
//! Records are lent out and come back (see [`Records`]), so that a request that is answered from the caches allocates
//! nothing for its line either.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::ops::Range;

use amped_http::h1::request::{Request, Version};
use amped_http::status::Status;
use amped_units::Time;

/// How much work an answer was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Outcome {
    /// No file was asked for: an error, a redirect of our own, OPTIONS.
    #[default]
    None,
    /// All of it was in the caches.
    Hit,
    /// It was in the caches, past its time, while a helper was asking again.
    Stale,
    /// The file system was asked and answered without blocking.
    Probe,
    /// A helper had to wait for the disk.
    Helper,
    /// An application has answered.
    App,
    /// It had answered before, and that was kept.
    Page,
}

/// Who made a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Handler {
    /// A file, or that the client has it.
    #[default]
    File,
    /// An application, also a response of its own that was kept.
    App,
    /// The server itself: a listing, a redirect, a fixed response, OPTIONS.
    Own,
    /// An error of the server's, with whatever page.
    Error,
}

impl Outcome {
    /// The word for it in the log.
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

/// One request and its reply.
#[derive(Debug, Default)]
pub struct Record {
    /// All texts behind one another; each field below is a range of it.
    text: Vec<u8>,
    method: Range<usize>,
    target: Range<usize>,
    host: Range<usize>,
    referer: Option<Range<usize>>,
    user_agent: Option<Range<usize>>,
    user: Option<Range<usize>>,
    version: Option<Version>,
    /// Status of the reply; 0 until there is one.
    pub status: u16,
    /// How much work it was.
    pub outcome: Outcome,
    /// When the first byte of the request was seen.
    pub began: Time,
    /// Bytes of the reply's head, so that the log can tell those of its body.
    pub head_bytes: usize,
    /// Bytes of its body as it is to be sent: none for HEAD and 304.
    pub body_bytes: u64,
    /// Who made the reply.
    pub handler: Handler,
    /// The number of the site that it is of; the first for a request that could not be read.
    pub site: u16,
}

impl Record {
    fn put(&mut self, text: &[u8]) -> Range<usize> {
        let start = self.text.len();
        self.text.extend_from_slice(text);
        start..self.text.len()
    }

    /// Notes a request.
    pub fn note(&mut self, request: &Request<'_>, began: Time) {
        self.clear();
        self.method = self.put(request.method_text);
        self.target = self.put(request.target_text);
        self.host = self.put(request.host);
        self.referer = request.referer.map(|text| self.put(text));
        self.user_agent = request.user_agent.map(|text| self.put(text));
        self.version = Some(request.version);
        self.began = began;
    }

    /// Notes who says that the request is his.
    pub fn note_user(&mut self, name: &[u8]) {
        self.user = Some(self.put(name));
    }

    /// Notes a request that could not be read: its first line stands for all of it.
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

    /// The method; empty for an unreadable request.
    pub fn method(&self) -> &[u8] {
        &self.text[self.method.clone()]
    }

    /// The target as it was written; the first line of an unreadable request.
    pub fn target(&self) -> &[u8] {
        &self.text[self.target.clone()]
    }

    /// The host asked for.
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

    /// The name that was given where a password is wanted: in a 401, what was claimed.
    pub fn user(&self) -> Option<&[u8]> {
        self.user.clone().map(|range| &self.text[range])
    }

    /// `HTTP/1.1` or `HTTP/1.0`; empty for an unreadable request.
    pub fn version(&self) -> &'static str {
        match self.version {
            Some(Version::Http11) => "HTTP/1.1",
            Some(Version::Http10) => "HTTP/1.0",
            None => "",
        }
    }

    /// Sets the status.
    pub fn set(&mut self, status: Status, outcome: Outcome) {
        self.status = status.0;
        self.outcome = outcome;
    }
}

/// Records to be used again.
#[derive(Default)]
pub struct Records {
    // Boxed, since that is how they travel: a reply moves a pointer, not 200 bytes.
    #[expect(clippy::vec_box, reason = "the boxes themselves are what is used again")]
    spare: Vec<Box<Record>>,
}

/// More than a turn's worth of pipelined replies; what lies beyond was a burst and is let go.
const SPARE_MAX: usize = 256;

/// A record whose text has grown beyond this is not kept: one long URL must not weigh for ever.
const TEXT_MAX: usize = 4096;

impl Records {
    /// An empty record.
    pub fn take(&mut self) -> Box<Record> {
        self.spare.pop().unwrap_or_default()
    }

    /// Gives one back.
    pub fn give_back(&mut self, record: Box<Record>) {
        if self.spare.len() < SPARE_MAX && record.text.capacity() <= TEXT_MAX {
            self.spare.push(record);
        }
    }
}
