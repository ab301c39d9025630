//! Stop 7 of 8: which status, which head, which bytes.
//!
//! Before it, `plan` and the caches have found what the name means. After it, `server/send` sends. Nothing here looks
//! anything up: all that a reply is made of has been found already, and the same input makes the same reply.

use alloc::boxed::Box;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ops::Range;

use amped_http::date;
use amped_http::etag;
use amped_http::h1::request::Request;
use amped_http::h1::response::{Connection, Head};
use amped_http::method::Method;
use amped_http::negotiate::{Accepted, Coding};
use amped_http::range::{self, Ranges};
use amped_http::status::Status;
use amped_http::uri;

use crate::cache::head::{HeadCache, HeadKey, HeadKind};
use crate::cache::path::{Representation, Resource};
use crate::file::{Content, Stored};
use crate::limits::Limits;
use crate::record::Record;
use crate::site::Site;

/// A reply, ready to be sent.
#[derive(Debug)]
pub struct Reply<F> {
    /// Its head.
    pub head: ReplyHead,
    /// What the head says of the connection's future.
    pub connection: Connection,
    /// What follows the head; empty for HEAD.
    pub body: Body<F>,
    /// What the log is told once the reply is out, or given up.
    pub record: Box<Record>,
}

/// A head, from the cache or made for this reply.
#[derive(Debug)]
pub enum ReplyHead {
    /// Shared with other replies.
    Ready(Arc<Head>),
    /// This reply's own.
    Made(Box<Head>),
}

impl ReplyHead {
    /// The head itself.
    pub fn get(&self) -> &Head {
        match self {
            ReplyHead::Ready(head) => head,
            ReplyHead::Made(head) => head,
        }
    }
}

/// What follows a head.
#[derive(Debug)]
pub enum Body<F> {
    /// Nothing.
    Empty,
    /// Part of a file, or all of it.
    Content(Arc<Content<F>>, Range<u64>),
    /// Text of our own.
    Text(Vec<u8>),
    /// Text that others may be sending too.
    Shared(Arc<Vec<u8>>),
    /// Parts of a file, each behind a text of its own (multipart/byteranges), and a last text.
    Parts(Arc<Content<F>>, Vec<(Vec<u8>, Range<u64>)>, Vec<u8>),
}

impl<F> Body<F> {
    /// Whether sending it may take long or ask the disk, so that what follows it on the connection should wait.
    pub fn is_heavy(&self) -> bool {
        match self {
            Body::Empty => false,
            Body::Content(content, _) | Body::Parts(content, ..) => matches!(content.store, Stored::File(_)),
            Body::Text(text) => text.len() > 65_536,
            Body::Shared(text) => text.len() > 65_536,
        }
    }

    /// Its length in bytes.
    pub fn len(&self) -> u64 {
        let length = |range: &Range<u64>| range.end - range.start;
        match self {
            Body::Empty => 0,
            Body::Content(_, range) => length(range),
            Body::Text(text) => text.len() as u64,
            Body::Shared(text) => text.len() as u64,
            Body::Parts(_, parts, last) => {
                parts.iter().map(|(text, range)| text.len() as u64 + length(range)).sum::<u64>() + last.len() as u64
            }
        }
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The seconds since 1970, and their text for Date.
#[derive(Clone, Copy, Debug)]
pub struct Wall {
    /// Seconds since 1970.
    pub seconds: i64,
    /// The same as an HTTP date.
    pub date: [u8; date::LEN],
}

impl Wall {
    /// The clock at this second.
    pub fn at(seconds: i64) -> Wall {
        Wall { seconds, date: date::format(seconds) }
    }
}

/// The representation to send (RFC 9110, 12.5.3).
pub fn choose<'a>(request: &Request<'_>, resource: &'a Resource) -> &'a Representation {
    let plain = &resource.representations[0];
    if !resource.varies() || !request.accept_encoding.is_present() {
        return plain;
    }
    let accepted = request.accept_encoding.iter().fold(Accepted::NOTHING_SAID, Accepted::and);
    let coding = accepted.choose(resource.representations.iter().map(|one| one.coding));
    resource.representations.iter().find(|one| one.coding == coding).unwrap_or(plain)
}

/// What the conditions of a request come to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Send all of it.
    Whole,
    /// Send these parts, at least one.
    Partial(Vec<Range<u64>>),
    /// The client has it.
    NotModified,
    /// A condition does not hold.
    PreconditionFailed,
    /// No range asked for lies inside.
    Unsatisfiable,
}

/// Weighs conditions and ranges in the order of RFC 9110, 13.2.2.
pub fn judge(request: &Request<'_>, representation: &Representation, limits: &Limits, now_seconds: i64) -> Verdict {
    let tag = representation.etag.as_bytes();
    let modified = representation.version.modified_seconds();
    let parse = |text: &[u8]| date::parse(text, now_seconds);

    // Steps 1 and 2. RFC 9110, 13.1.1: strong comparison; 13.1.4: ignored when If-Match is there or the date is none.
    if request.if_match.is_present() {
        if !request.if_match.iter().any(|line| etag::list_matches_strong(line, tag)) {
            return Verdict::PreconditionFailed;
        }
    } else if let Some(limit) = request.if_unmodified_since.and_then(parse)
        && modified > limit
    {
        return Verdict::PreconditionFailed;
    }
    // Steps 3 and 4. RFC 9110, 13.1.2: weak comparison; 13.1.3: ignored when If-None-Match is there.
    if request.if_none_match.is_present() {
        if request.if_none_match.iter().any(|line| etag::list_matches_weak(line, tag)) {
            return Verdict::NotModified;
        }
    } else if let Some(since) = request.if_modified_since.and_then(parse)
        && modified <= since
    {
        return Verdict::NotModified;
    }
    // Step 5. RFC 9110, 14.2: a Range is for GET alone.
    let Some(field) = request.range.filter(|_| request.method == Some(Method::Get)) else {
        return Verdict::Whole;
    };
    if let Some(condition) = request.if_range {
        // RFC 9110, 13.1.5: a tag is compared strongly; a date must be the very one, and strong in the sense of 8.8.2.2:
        // the file was not changed within the second that the date stands for.
        let holds = match etag::EntityTag::parse(condition) {
            Some(asked) => etag::EntityTag::parse(tag).is_some_and(|ours| ours.matches_strong(&asked)),
            None => parse(condition) == Some(modified) && now_seconds > modified,
        };
        if !holds {
            return Verdict::Whole;
        }
    }
    match range::parse(field, representation.version.size, limits.ranges) {
        Ranges::Whole => Verdict::Whole,
        Ranges::Unsatisfiable => Verdict::Unsatisfiable,
        Ranges::Partial(ranges) => Verdict::Partial(ranges),
    }
}

/// Whether a reply with this verdict needs the content.
pub fn needs_content(verdict: &Verdict, request: &Request<'_>) -> bool {
    matches!(verdict, Verdict::Whole | Verdict::Partial(_)) && request.method != Some(Method::Head)
}

/// Head and body for a file.
pub fn file<F>(
    site: &Site,
    request: &Request<'_>,
    resource: &Resource,
    representation: &Representation,
    verdict: Verdict,
    content: Option<Arc<Content<F>>>,
    heads: &mut HeadCache,
) -> (ReplyHead, Body<F>) {
    let size = representation.version.size;
    let mut ready = |kind: HeadKind| {
        let key = HeadKey {
            site: site.number,
            name: Arc::clone(&resource.name),
            version: representation.version,
            coding: representation.coding,
            varies: resource.varies(),
            kind,
        };
        let hint = &representation.head_hints[kind as usize];
        ReplyHead::Ready(heads.get_or_make(hint, key, || match kind {
            HeadKind::Whole => whole_head(site, resource, representation),
            HeadKind::NotModified => not_modified_head(site, resource, representation),
        }))
    };
    match verdict {
        Verdict::NotModified => (ready(HeadKind::NotModified), Body::Empty),
        Verdict::Whole => {
            let body = match content {
                Some(content) if size > 0 => Body::Content(content, 0..size),
                _ => Body::Empty,
            };
            (ready(HeadKind::Whole), body)
        }
        Verdict::Partial(ranges) => partial(site, resource, representation, ranges, content),
        Verdict::PreconditionFailed => error(
            site,
            request,
            &resource.name,
            Status::PRECONDITION_FAILED,
            "a condition of the request does not hold",
        ),
        Verdict::Unsatisfiable => {
            let mut text = Vec::new();
            range::unsatisfied_content_range(size, &mut text);
            let why = "no range asked for lies inside the file";
            let status = Status::RANGE_NOT_SATISFIABLE;
            error_with(site, request, &resource.name, status, why, |head| {
                // RFC 9110, 15.5.17.
                head.field("Content-Range", &text);
            })
        }
    }
}

/// 200.
fn whole_head(site: &Site, resource: &Resource, representation: &Representation) -> Head {
    let mut head = Head::new(Status::OK);
    head.field("Content-Type", &resource.media_type).number("Content-Length", representation.version.size);
    describe(&mut head, resource, representation);
    validators(&mut head, representation);
    head.field("Accept-Ranges", "bytes");
    cache_control(&mut head, site, &resource.name);
    custom(&mut head, site, &resource.name);
    head
}

/// 304. RFC 9110, 15.4.5: what a 200 would have said of Cache-Control, Content-Location, Date, ETag, Expires and Vary.
fn not_modified_head(site: &Site, resource: &Resource, representation: &Representation) -> Head {
    let mut head = Head::new(Status::NOT_MODIFIED);
    vary(&mut head, resource);
    validators(&mut head, representation);
    cache_control(&mut head, site, &resource.name);
    custom(&mut head, site, &resource.name);
    head
}

/// 206, of one part or of several.
fn partial<F>(
    site: &Site,
    resource: &Resource,
    representation: &Representation,
    ranges: Vec<Range<u64>>,
    content: Option<Arc<Content<F>>>,
) -> (ReplyHead, Body<F>) {
    let size = representation.version.size;
    let mut head = Head::new(Status::PARTIAL_CONTENT);
    let mut text = Vec::new();
    let body = match (<[_; 1]>::try_from(ranges), content) {
        (Ok([one]), content) => {
            range::content_range(&one, size, &mut text);
            head.field("Content-Type", &resource.media_type).field("Content-Range", &text);
            head.number("Content-Length", one.end - one.start);
            content.map_or(Body::Empty, |content| Body::Content(content, one))
        }
        (Err(ranges), Some(content)) => {
            let boundary = boundary(representation, &ranges);
            let mut parts = Vec::with_capacity(ranges.len());
            for range in ranges {
                // RFC 9110, 14.6: each part says its type and its range.
                let mut text =
                    alloc::format!("\r\n--{boundary}\r\nContent-Type: {}\r\nContent-Range: ", resource.media_type)
                        .into_bytes();
                range::content_range(&range, size, &mut text);
                text.extend_from_slice(b"\r\n\r\n");
                parts.push((text, range));
            }
            let body = Body::Parts(content, parts, alloc::format!("\r\n--{boundary}--\r\n").into_bytes());
            head.field("Content-Type", alloc::format!("multipart/byteranges; boundary={boundary}"));
            head.number("Content-Length", body.len());
            body
        }
        (Err(_), None) => Body::Empty,
    };
    describe(&mut head, resource, representation);
    validators(&mut head, representation);
    cache_control(&mut head, site, &resource.name);
    custom(&mut head, site, &resource.name);
    (ReplyHead::Made(Box::new(head)), body)
}

/// A boundary that hardly stands in the file: 96 bits that follow from the file's state and the ranges. Whoever could put
/// it into a file on purpose would have to know the state that writing it makes.
fn boundary(representation: &Representation, ranges: &[Range<u64>]) -> String {
    let seed = representation
        .etag
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
    let mixed = ranges
        .iter()
        .fold(seed, |hash, range| (hash ^ range.start).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29));
    alloc::format!("amped{seed:016x}{:08x}", mixed >> 32)
}

fn describe(head: &mut Head, resource: &Resource, representation: &Representation) {
    if representation.coding != Coding::Identity {
        head.field("Content-Encoding", representation.coding.token());
    }
    vary(head, resource);
}

/// RFC 9110, 12.5.5: on every reply that could have been another one, in whichever coding this one is.
fn vary(head: &mut Head, resource: &Resource) {
    if resource.varies() {
        head.field("Vary", "Accept-Encoding");
    }
}

fn validators(head: &mut Head, representation: &Representation) {
    head.field("Last-Modified", date::format(representation.version.modified_seconds()));
    head.field("ETag", &*representation.etag);
}

/// The last rule that matches and says something.
fn cache_control(head: &mut Head, site: &Site, path: &[u8]) {
    let mut matching = site.rules.iter().rev().filter(|rule| rule.pattern.matches(path));
    if let Some(value) = matching.find_map(|rule| rule.cache_control.as_deref()) {
        head.field("Cache-Control", value);
    }
}

/// All rules that match, in order; a later one's value replaces an earlier one's.
fn custom(head: &mut Head, site: &Site, path: &[u8]) {
    let mut fields: Vec<(&str, &str)> = Vec::new();
    for (name, value) in site.rules.iter().filter(|rule| rule.pattern.matches(path)).flat_map(|rule| &rule.set) {
        match fields.iter_mut().find(|(known, _)| known.eq_ignore_ascii_case(name)) {
            Some(field) => field.1 = value,
            None => fields.push((name, value)),
        }
    }
    for (name, value) in fields {
        head.field(name, value);
    }
}

/// An error with a page that says in a sentence what is wrong.
pub fn error<F>(site: &Site, request: &Request<'_>, path: &[u8], status: Status, why: &str) -> (ReplyHead, Body<F>) {
    error_with(site, request, path, status, why, |_| {})
}

fn error_with<F>(
    site: &Site,
    request: &Request<'_>,
    path: &[u8],
    status: Status,
    why: &str,
    more: impl FnOnce(&mut Head),
) -> (ReplyHead, Body<F>) {
    let page = error_page(status, why);
    let mut head = error_head(status, page.len() as u64, "text/html; charset=utf-8");
    more(&mut head);
    custom(&mut head, site, path);
    let body = if request.method == Some(Method::Head) { Body::Empty } else { Body::Text(page) };
    (ReplyHead::Made(Box::new(head)), body)
}

/// An error before there is a request to speak of. `head_only`: at least it began as HEAD.
pub fn bad_head<F>(status: Status, why: &str, head_only: bool) -> (ReplyHead, Body<F>) {
    let page = error_page(status, why);
    let head = error_head(status, page.len() as u64, "text/html; charset=utf-8");
    (ReplyHead::Made(Box::new(head)), if head_only { Body::Empty } else { Body::Text(page) })
}

/// An error with a page of the site's own.
pub fn error_from_page<F>(
    site: &Site,
    request: &Request<'_>,
    path: &[u8],
    status: Status,
    resource: &Resource,
    content: Arc<Content<F>>,
) -> (ReplyHead, Body<F>) {
    let size = content.version.size;
    let mut head = error_head(status, size, &resource.media_type);
    custom(&mut head, site, path);
    let body = match request.method {
        Some(Method::Head) => Body::Empty,
        _ if size == 0 => Body::Empty,
        _ => Body::Content(content, 0..size),
    };
    (ReplyHead::Made(Box::new(head)), body)
}

fn error_head(status: Status, length: u64, media_type: &str) -> Head {
    let mut head = Head::new(status);
    head.field("Content-Type", media_type).number("Content-Length", length);
    match status {
        // RFC 9110, 15.5.6.
        Status::METHOD_NOT_ALLOWED => {
            head.field("Allow", ALLOW);
        }
        // RFC 9110, 10.2.3.
        Status::SERVICE_UNAVAILABLE => {
            head.field("Retry-After", "1");
        }
        _ => {}
    }
    head
}

const ALLOW: &str = "GET, HEAD, OPTIONS";

/// RFC 9110, 9.3.7.
pub fn options<F>(site: &Site) -> (ReplyHead, Body<F>) {
    let mut head = Head::new(Status::NO_CONTENT);
    head.field("Allow", ALLOW);
    custom(&mut head, site, b"/");
    (ReplyHead::Made(Box::new(head)), Body::Empty)
}

/// The way to a directory is with a slash, so that its pages' relative links hold. The query goes along.
pub fn add_slash<F>(site: &Site, request: &Request<'_>, path: &[u8], query: Option<&[u8]>) -> (ReplyHead, Body<F>) {
    let mut location = Vec::with_capacity(path.len() + 1);
    // The path is clean: one slash at its start, so that no browser reads `//host` and goes elsewhere.
    uri::encode_path(path, &mut location);
    location.push(b'/');
    if let Some(query) = query {
        location.push(b'?');
        location.extend_from_slice(query);
    }
    error_with(site, request, path, Status::MOVED_PERMANENTLY, "the directory's address ends with a slash", |head| {
        // RFC 9110, 10.2.2: relative to the target.
        head.field("Location", &location);
    })
}

/// A directory's listing, HTML or JSON as the client prefers.
pub fn listing<F>(
    site: &Site,
    request: &Request<'_>,
    path: &[u8],
    media_type: &str,
    page: Arc<Vec<u8>>,
) -> (ReplyHead, Body<F>) {
    let mut head = Head::new(Status::OK);
    head.field("Content-Type", media_type).number("Content-Length", page.len() as u64);
    head.field("Vary", "Accept");
    cache_control(&mut head, site, path);
    custom(&mut head, site, path);
    let body = if request.method == Some(Method::Head) { Body::Empty } else { Body::Shared(page) };
    (ReplyHead::Made(Box::new(head)), body)
}

/// A page of ours: readable by day and by night, and small.
fn error_page(status: Status, why: &str) -> Vec<u8> {
    let title = alloc::format!("{} {}", status.0, status.reason());
    let page = alloc::format!(
        "<!doctype html>\n<html lang=\"en\"><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width\">\
         <meta name=\"color-scheme\" content=\"light dark\"><title>{title}</title>\n\
         <style>body{{font:1rem/1.5 system-ui,sans-serif;max-width:40rem;margin:4rem auto;padding:0 1rem}}</style>\n\
         <h1>{title}</h1>\n<p>{}.</p>\n</html>\n",
        capital(why)
    );
    page.into_bytes()
}

fn capital(text: &str) -> String {
    let mut chars = text.chars();
    chars.next().map_or(String::new(), |first| [first.to_uppercase().collect::<String>(), chars.collect()].concat())
}
