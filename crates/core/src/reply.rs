//! Stop 9 of 10: builds the response: status, head, body.
//!
//! Before it, `decide` (stop 7) has found the resource, in a cache or on the disk (stop 8). After it, `server/send`
//! (stop 10) sends the response. This module looks nothing up: the same input always gives the same response.

use alloc::boxed::Box;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ops::Range;

use amped_http::cgi::ScriptHead;
use amped_http::date;
use amped_http::etag;
use amped_http::h1::request::{self, Request};
use amped_http::h1::response::{Connection, Head};
use amped_http::method::Method;
use amped_http::negotiate::{Accepted, Coding};
use amped_http::range::{self, Ranges};
use amped_http::status::Status;
use amped_http::text::list;
use amped_http::uri;
use amped_units::Time;

use crate::cache::backend::CacheBackend;
use crate::cache::head::{HeadCache, HeadKey, HeadKind};
use crate::cache::page::AppPage;
use crate::compress::{SIZE_MAX, SIZE_MIN};
use crate::cors::{CorsOrigin, CorsRule};
use crate::file::{Content, FileVersion, NotUnpacked, ObjectHead, Stored, digest};
use crate::headers;
use crate::limits::Limits;
use crate::listing::{self, ListForm, Listing};
use crate::record::{Handler, Outcome, Record};
use crate::resource::{Representation, Resource};
use crate::routes::FixedResponse;
use crate::site::Site;
use crate::variants::{Negotiated, VariantFile, Variants};
use crate::vary::Vary;

/// A response except for the parts that depend on the protocol.
#[derive(Debug)]
pub struct Response<F> {
    /// Its head.
    pub head: ReplyHead,
    /// Its Strict-Transport-Security field, if it has one.
    pub hsts: Option<Arc<str>>,
    /// The body; empty for HEAD.
    pub body: Body<F>,
    /// Its record for the access log.
    pub record: Box<Record>,
}

/// A response, ready to be sent.
#[derive(Debug)]
pub struct Reply<F> {
    /// Its head.
    pub head: ReplyHead,
    /// Its Connection field.
    pub connection: Connection,
    /// Its Strict-Transport-Security field, if it has one.
    pub hsts: Option<Arc<str>>,
    /// The body; empty for HEAD.
    pub body: Body<F>,
    /// Its record for the access log, written once the response is sent or aborted.
    pub record: Box<Record>,
}

/// A head, cached or made for one response.
#[derive(Debug)]
pub enum ReplyHead {
    /// Shared with other responses.
    Ready(Arc<Head>),
    /// Made for this response.
    Owned(Box<Head>),
}

impl ReplyHead {
    /// The head itself.
    pub fn get(&self) -> &Head {
        match self {
            ReplyHead::Ready(head) => head,
            ReplyHead::Owned(head) => head,
        }
    }
}

/// The body of a response.
#[derive(Debug)]
pub enum Body<F> {
    /// No body.
    Empty,
    /// A file, or a part of it.
    Content(Arc<Content<F>>, Range<u64>),
    /// A generated text.
    Text(Vec<u8>),
    /// A generated text, shared with other responses.
    Shared(Arc<Vec<u8>>),
    /// The output of an application as it arrives, until it is complete.
    Open,
    /// Parts of a file, each after its own header text (multipart/byteranges), and a final text.
    Parts(Arc<Content<F>>, Vec<(Vec<u8>, Range<u64>)>, Vec<u8>),
}

impl<F> Body<F> {
    /// Whether sending it may take long or block on the disk, so that later responses on the connection should wait.
    pub fn is_heavy(&self) -> bool {
        match self {
            Body::Empty => false,
            Body::Content(content, _) | Body::Parts(content, ..) => match &content.store {
                Stored::File(_) => true,
                Stored::Memory(bytes) => bytes.len() > 65_536,
            },
            Body::Text(text) => text.len() > 65_536,
            Body::Shared(text) => text.len() > 65_536,
            Body::Open => true,
        }
    }

    /// Its length in bytes; 0 if unknown.
    pub fn len(&self) -> u64 {
        let length = |range: &Range<u64>| range.end - range.start;
        match self {
            Body::Empty | Body::Open => 0,
            Body::Content(_, range) => length(range),
            Body::Text(text) => text.len() as u64,
            Body::Shared(text) => text.len() as u64,
            Body::Parts(_, parts, last) => {
                parts.iter().map(|(text, range)| text.len() as u64 + length(range)).sum::<u64>() + last.len() as u64
            }
        }
    }

    /// Whether its length is 0.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Records the body length and the handler. The status must be set already.
    pub fn note_in(&self, record: &mut Record) {
        record.body_bytes = self.len();
        record.handler = match (self, record.outcome) {
            (_, Outcome::App | Outcome::Page) => Handler::App,
            _ if record.status >= 400 => Handler::Error,
            (Body::Content(..) | Body::Parts(..), _) => Handler::File,
            // HEAD, 304 or an empty file; without a file lookup, our own response to HEAD.
            (Body::Empty, outcome) if outcome != Outcome::None => Handler::File,
            _ => Handler::Own,
        };
    }
}

/// The time of day in seconds, and its text for the Date field.
#[derive(Clone, Copy, Debug)]
pub struct WallClock {
    /// Seconds since 1970.
    pub seconds: i64,
    /// The same as an HTTP date.
    pub date: [u8; date::LEN],
}

impl WallClock {
    /// The clock at this second.
    pub fn at(seconds: i64) -> WallClock {
        WallClock { seconds, date: date::format(seconds) }
    }
}

/// The representation of a file to send.
#[derive(Debug)]
pub enum Chosen<'a> {
    /// This representation.
    One(&'a Representation),
    /// The decompressed form, which is not known yet.
    Unpacked,
    /// The decompressed form, which is not available.
    NotUnpacked(NotUnpacked),
}

/// Chooses the representation (RFC 9110, 12.5.3).
pub fn choose<'a>(request: &Request<'_>, resource: &'a Resource) -> Chosen<'a> {
    let first = &resource.representations[0];
    let leaves_it_open = resource.representations.len() == 1 || !request.accept_encoding.is_present();
    if leaves_it_open && resource.lone.is_none() {
        return Chosen::One(first);
    }
    let coding = accepted(request).choose(resource.representations.iter().map(|one| one.coding));
    match (resource.representations.iter().find(|one| one.coding == coding), &resource.lone) {
        (Some(one), _) => Chosen::One(one),
        (None, None) => Chosen::One(first),
        (None, Some(lone)) => lone.not_unpacked.map_or(Chosen::Unpacked, Chosen::NotUnpacked),
    }
}

/// The codings that a request accepts.
pub(crate) fn accepted(request: &Request<'_>) -> Accepted {
    request.accept_encoding.iter().fold(Accepted::NOTHING_SAID, Accepted::and)
}

/// The coding in which to send this representation, the chosen one, if it is compressed on the fly; `None`: send it as it is.
pub fn compression(
    request: &Request<'_>,
    site: &Site,
    resource: &Resource,
    representation: &Representation,
) -> Option<Coding> {
    let Representation { coding: Coding::Identity, version, .. } = representation else { return None };
    let may_be_compressed = resource.is_compressible
        && resource.lone.is_none()
        && !version.is_changing
        && (SIZE_MIN..=SIZE_MAX).contains(&version.size);
    if !may_be_compressed || !request.accept_encoding.is_present() || has_copy(request, representation) {
        return None;
    }
    let coding = accepted(request).choose(site.compress.iter().copied());
    (coding != Coding::Identity).then_some(coding)
}

/// Whether the client has this representation, all of it or a part, and asks whether it is current, or for the rest. It may have
/// received the file before that was compressed.
fn has_copy(request: &Request<'_>, representation: &Representation) -> bool {
    let tag = representation.etag.as_bytes();
    request.if_none_match.iter().any(|line| etag::list_matches_weak(line, tag))
        || request.if_match.iter().any(|line| etag::list_matches_strong(line, tag))
        || request.if_range == Some(tag)
}

/// The result of the conditions of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Send the whole representation.
    Whole,
    /// Send these ranges, at least one.
    Partial(Vec<Range<u64>>),
    /// 304: the client's copy is current.
    NotModified,
    /// 412: a condition failed.
    PreconditionFailed,
    /// 416: no range overlaps the representation.
    Unsatisfiable,
}

/// Evaluates conditions and ranges in the order of RFC 9110, 13.2.2.
pub fn judge(
    request: &Request<'_>,
    resource: &Resource,
    representation: &Representation,
    limits: &Limits,
    now_seconds: i64,
) -> Verdict {
    let tag = representation.etag.as_bytes();
    let modified = representation.version.modified_seconds();
    let parse = |text: &[u8]| date::parse(text, now_seconds);

    if let Some(verdict) = conditions(request, tag, Some(modified), now_seconds) {
        return verdict;
    }
    // Step 5. RFC 9110, 14.2: Range applies to GET only.
    let Some(field) = request.range.filter(|_| request.method == Some(Method::Get)) else {
        return Verdict::Whole;
    };
    if let Some(condition) = request.if_range {
        // RFC 9110, 13.1.5: a tag is compared strongly; a date must match exactly, and be strong by 8.8.2.2: the file
        // was not changed within the second of the date. Nor does a date tell a file from its compressed form.
        let holds = match etag::EntityTag::parse(condition) {
            Some(requested) => etag::EntityTag::parse(tag).is_some_and(|ours| ours.matches_strong(&requested)),
            None => !resource.is_compressible && parse(condition) == Some(modified) && now_seconds > modified,
        };
        if !holds {
            return Verdict::Whole;
        }
    }
    match range::parse(field, representation.version.size, limits.max_ranges) {
        Ranges::Whole => Verdict::Whole,
        Ranges::Unsatisfiable => Verdict::Unsatisfiable,
        Ranges::Partial(ranges) => Verdict::Partial(ranges),
    }
}

/// Evaluates the first four steps for this tag, with its quotes, and this modification time; without the time,
/// conditions on dates are ignored (RFC 9110, 13.1.3 and 13.1.4). `None` if all conditions hold.
fn conditions(request: &Request<'_>, tag: &[u8], modified: Option<i64>, now_seconds: i64) -> Option<Verdict> {
    let parse = |text: &[u8]| date::parse(text, now_seconds);
    // Steps 1 and 2. RFC 9110, 13.1.1: strong comparison; 13.1.4:
    // ignored if If-Match is present or the date is invalid.
    if request.if_match.is_present() {
        if !request.if_match.iter().any(|line| etag::list_matches_strong(line, tag)) {
            return Some(Verdict::PreconditionFailed);
        }
    } else if let (Some(limit), Some(modified)) = (request.if_unmodified_since.and_then(parse), modified)
        && modified > limit
    {
        return Some(Verdict::PreconditionFailed);
    }
    // Steps 3 and 4. RFC 9110, 13.1.2: weak comparison; 13.1.3: ignored if If-None-Match is present.
    if request.if_none_match.is_present() {
        if request.if_none_match.iter().any(|line| etag::list_matches_weak(line, tag)) {
            return Some(Verdict::NotModified);
        }
    } else if let (Some(since), Some(modified)) = (request.if_modified_since.and_then(parse), modified)
        && modified <= since
    {
        return Some(Verdict::NotModified);
    }
    None
}

/// Whether a response with this verdict needs the content.
pub fn needs_content(verdict: &Verdict, request: &Request<'_>) -> bool {
    matches!(verdict, Verdict::Whole | Verdict::Partial(_)) && request.method != Some(Method::Head)
}

/// Builds head and body for a file.
pub fn file<F>(
    site: &Site,
    request: &Request<'_>,
    resource: &Resource,
    representation: &Representation,
    verdict: Verdict,
    content: Option<Arc<Content<F>>>,
    heads: &mut CacheBackend<HeadCache>,
) -> (ReplyHead, Body<F>) {
    let size = representation.version.size;
    let cors_origin = site.cors_origin(&resource.name, request);
    let mut ready = |kind: HeadKind| {
        let key = HeadKey {
            site: site.number,
            name: Arc::clone(&resource.name),
            version: representation.version,
            coding: representation.coding,
            vary: resource.vary,
            cors_origin,
            is_chosen: resource.is_chosen,
            kind,
        };
        let hint = &representation.head_hints[kind as usize];
        let make = || match kind {
            HeadKind::Whole => whole_head(site, request, resource, representation, cors_origin),
            HeadKind::NotModified => not_modified_head(site, request, resource, representation, cors_origin),
        };
        match site.has_conditional_head(&resource.name) {
            true => ReplyHead::Owned(Box::new(make())),
            false => ReplyHead::Ready(heads.get_or_make(hint, key, make)),
        }
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
        Verdict::Partial(ranges) => partial(site, request, resource, representation, ranges, content, cors_origin),
        Verdict::PreconditionFailed => error(site, request, &resource.name, Status::PRECONDITION_FAILED, FAILED),
        Verdict::Unsatisfiable => {
            let mut text = Vec::new();
            range::unsatisfied_content_range(size, &mut text);
            let why = "the requested range is outside the file";
            let status = Status::RANGE_NOT_SATISFIABLE;
            error_with(site, request, &resource.name, status, why, |head| {
                // RFC 9110, 15.5.17.
                head.field("Content-Range", &text);
            })
        }
    }
}

/// 200.
fn whole_head(
    site: &Site,
    request: &Request<'_>,
    resource: &Resource,
    representation: &Representation,
    cors_origin: CorsOrigin,
) -> Head {
    let mut head = Head::new(Status::OK);
    head.field("Content-Type", &resource.media_type).number("Content-Length", representation.version.size);
    describe(&mut head, site, resource, representation);
    validators(&mut head, representation);
    head.field("Accept-Ranges", "bytes");
    file_fields(&mut head, site, request, (&resource.name, Some(&resource.media_type)), resource.object());
    custom(&mut head, site, request, (&resource.name, Some(&resource.media_type)), cors_origin);
    head
}

/// 304. RFC 9110, 15.4.5: with the Cache-Control, Content-Location, Date, ETag, Expires and Vary of a 200.
fn not_modified_head(
    site: &Site,
    request: &Request<'_>,
    resource: &Resource,
    representation: &Representation,
    cors_origin: CorsOrigin,
) -> Head {
    let mut head = Head::new(Status::NOT_MODIFIED);
    vary(&mut head, site, &resource.name, resource.vary);
    content_location(&mut head, resource);
    validators(&mut head, representation);
    file_fields(&mut head, site, request, (&resource.name, Some(&resource.media_type)), resource.object());
    custom(&mut head, site, request, (&resource.name, Some(&resource.media_type)), cors_origin);
    head
}

/// 206, with one part or several.
fn partial<F>(
    site: &Site,
    request: &Request<'_>,
    resource: &Resource,
    representation: &Representation,
    ranges: Vec<Range<u64>>,
    content: Option<Arc<Content<F>>>,
    cors_origin: CorsOrigin,
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
                // RFC 9110, 14.6: each part has its type and its range.
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
    describe(&mut head, site, resource, representation);
    validators(&mut head, representation);
    file_fields(&mut head, site, request, (&resource.name, Some(&resource.media_type)), resource.object());
    custom(&mut head, site, request, (&resource.name, Some(&resource.media_type)), cors_origin);
    (ReplyHead::Owned(Box::new(head)), body)
}

/// A boundary that is unlikely to occur in the file: 128 bits derived from the file's state and the ranges. To place it
/// in a file on purpose, one would have to predict the state that the write produces.
fn boundary(representation: &Representation, ranges: &[Range<u64>]) -> String {
    let FileVersion { device, inode, size, mtime_ns, ctime_ns, .. } = representation.version;
    let state = digest(&[device, inode, size, mtime_ns as u64, ctime_ns as u64]);
    let words: Vec<u64> = ranges.iter().flat_map(|range| [range.start, range.end]).collect();
    alloc::format!("amped{state:016x}{:016x}", digest(&words))
}

fn describe(head: &mut Head, site: &Site, resource: &Resource, representation: &Representation) {
    if representation.coding != Coding::Identity {
        head.field("Content-Encoding", representation.coding.token());
    } else if let Some(encoding) = resource.object().and_then(|object| object.encoding.as_deref()) {
        head.field("Content-Encoding", encoding);
    }
    if let Some(language) = &resource.language {
        head.field("Content-Language", language.as_bytes());
    }
    vary(head, site, &resource.name, resource.vary);
    content_location(head, resource);
}

/// RFC 9110, 12.5.5: on every response of a negotiated resource, whichever representation it has.
fn vary(head: &mut Head, site: &Site, path: &[u8], vary: Vary) {
    let vary = vary.and(site.cors(path).map_or(Vary::NOTHING, CorsRule::vary));
    if vary != Vary::NOTHING {
        head.field("Vary", vary.value());
    }
}

/// RFC 9110, 8.7: the name of this variant alone; its coding is negotiated separately.
fn content_location(head: &mut Head, resource: &Resource) {
    if resource.is_chosen {
        let mut location = Vec::with_capacity(resource.name.len());
        uri::encode_path(&resource.name, &mut location);
        head.field("Content-Location", &location);
    }
}

fn validators(head: &mut Head, representation: &Representation) {
    head.field("Last-Modified", date::format(representation.version.modified_seconds()));
    head.field("ETag", &*representation.etag);
}

/// Adds the fields that rules set on files. A protected resource is private unless a rule says otherwise: RFC 9111, 3.5
/// forbids shared caches to store it, but not every cache complies. See also [`restricted`], which concerns the request.
/// Otherwise an object has the Cache-Control of its store.
///
/// `media_type`: that of the file, if the head has none or another one.
fn file_fields(
    head: &mut Head,
    site: &Site,
    request: &Request<'_>,
    (path, media_type): (&[u8], Option<&str>),
    object: Option<&ObjectHead>,
) {
    if headers::add_to_file(head, &site.rules, path, request, media_type) {
        return;
    }
    if site.is_protected(path) {
        head.field(CACHE_CONTROL, "private");
    } else if let Some(value) = object.and_then(|object| object.cache_control.as_deref()) {
        head.field(CACHE_CONTROL, value);
    }
}

/// RFC 9110, 11.6.1 and RFC 7617, 2.1: adds the challenge of a 401.
fn challenge(head: &mut Head, site: &Site, request: &Request<'_>, path: &[u8], status: Status) {
    if status == Status::UNAUTHORIZED
        && let Some(guard) = site.guards_of(path, request).next()
    {
        head.field("WWW-Authenticate", alloc::format!("Basic realm=\"{}\", charset=\"UTF-8\"", guard.realm));
    }
}

/// Builds the head of an application's response. `framing`: how the body ends; the application's own Content-Length is
/// used for a body of that length, and for HEAD and 304, which have no body.
pub fn script(
    site: &Site,
    request: &Request<'_>,
    path: &[u8],
    status: Status,
    script_head: &ScriptHead<'_>,
    framing: ScriptFraming,
) -> Head {
    let mut head = match script_head.reason {
        b"" => Head::new(status),
        reason => Head::with_reason(status, reason),
    };
    for (name, value) in &script_head.fields {
        head.field(name, value);
    }
    match (framing, script_head.length) {
        (ScriptFraming::Length(length), _) | (ScriptFraming::None, Some(length)) if status != Status::NO_CONTENT => {
            head.number("Content-Length", length);
        }
        (ScriptFraming::Chunked, _) => {
            head.field("Transfer-Encoding", "chunked");
        }
        _ => {}
    }
    let is_set = |name: &str| script_head.fields.iter().any(|(set, _)| set.eq_ignore_ascii_case(name));
    add_to_script(&mut head, site, request, path, is_set);
    head
}

/// The head of a response that switches to the protocol of WebSocket (RFC 6455, 4.2.2), with the fields of `head`. In
/// HTTP/2 it opens a tunnel on the stream of the request, and has no fields of a connection (RFC 8441, 5).
pub fn switched(request: &Request<'_>, head: &[u8]) -> Head {
    let is_stream = request.is_extended_connect();
    let mut switched = Head::new(if is_stream { Status::OK } else { Status::SWITCHING_PROTOCOLS });
    for (name, value) in request::fields(head) {
        // The server's own are there.
        if let Ok(name) = core::str::from_utf8(name)
            && !["date", "server"].iter().any(|own| name.eq_ignore_ascii_case(own))
        {
            switched.field(name, value);
        }
    }
    switched.field("Connection", "Upgrade").field("Upgrade", "websocket");
    switched
}

/// Adds the site's fields to an application's response, except those that it has set.
fn add_to_script(head: &mut Head, site: &Site, request: &Request<'_>, path: &[u8], is_set: impl Fn(&str) -> bool) {
    if !is_set(CACHE_CONTROL) && site.is_protected(path) {
        head.field(CACHE_CONTROL, "private");
    }
    // If the application controls cross-origin access itself, its headers are kept.
    if let Some(rule) = site.cors(path).filter(|_| !is_set("Access-Control-Allow-Origin")) {
        vary(head, site, path, Vary::NOTHING);
        rule.allow(head, site.cors_origin(path, request));
    }
    vary_by_conditions(head, site);
    headers::add(head, &site.rules, path, request, None, is_set);
}

/// Builds the response from an application's cached page, or a
/// 304 if the client's copy is current (RFC 9111, 4 and 4.3.2).
pub fn kept<F>(
    site: &Site,
    request: &Request<'_>,
    path: &[u8],
    page: &AppPage,
    (now, now_seconds): (Time, i64),
) -> (ReplyHead, Body<F>) {
    let field = |name: &str| {
        let mut fields = page.fields.iter().filter(|(known, _)| known.eq_ignore_ascii_case(name));
        fields.next().map(|(_, value)| &**value)
    };
    let tag = field("ETag").and_then(etag::EntityTag::parse).map_or(&b""[..], |tag| tag.opaque);
    let modified = field("Last-Modified").and_then(|text| date::parse(text, now_seconds));
    // RFC 9110, 13.2.1: conditions apply only if the response without them would be a success.
    let is_known = page.status == Status::OK && conditions(request, tag, modified, now_seconds).is_some();
    let mut head = Head::new(if is_known { Status::NOT_MODIFIED } else { page.status });
    head.date(&page.date);
    let goes_along = |name: &str| !is_known || OF_NOT_MODIFIED.iter().any(|known| known.eq_ignore_ascii_case(name));
    for (name, value) in page.fields.iter().filter(|(name, _)| goes_along(name)) {
        head.field(name, &**value);
    }
    // RFC 9111, 5.1.
    head.number("Age", page.age(now).as_secs());
    if !is_known && page.status != Status::NO_CONTENT {
        head.number("Content-Length", page.body.len() as u64);
    }
    add_to_script(&mut head, site, request, path, |name| field(name).is_some());
    let has_body = !is_known && request.method != Some(Method::Head) && !page.body.is_empty();
    (ReplyHead::Owned(Box::new(head)), if has_body { Body::Shared(Arc::clone(&page.body)) } else { Body::Empty })
}

/// The fields of a 304 about the client's copy (RFC 9110, 15.4.5), and its modification time.
const OF_NOT_MODIFIED: [&str; 6] = ["Cache-Control", "Content-Location", "ETag", "Expires", "Last-Modified", "Vary"];

/// The framing of an application's response (RFC 9112, 6.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScriptFraming {
    /// No body.
    None,
    /// A body of this length.
    Length(u64),
    /// Chunked.
    Chunked,
    /// The body ends when the connection closes.
    UntilClose,
}

/// Adds the fields that the rules of the site set on every response. `media_type`: that of the file, if the head has none or another one.
fn custom(
    head: &mut Head,
    site: &Site,
    request: &Request<'_>,
    (path, media_type): (&[u8], Option<&str>),
    cors_origin: CorsOrigin,
) {
    if let Some(rule) = site.cors(path) {
        rule.allow(head, cors_origin);
    }
    vary_by_conditions(head, site);
    headers::add(head, &site.rules, path, request, media_type, |_| false);
}

/// RFC 9110, 12.5.5: names the fields on which conditions of the site's rules depend, on every response, since a rule that does
/// not apply matters too.
fn vary_by_conditions(head: &mut Head, site: &Site) {
    if !site.conditional_fields.is_empty() {
        head.field("Vary", &*site.conditional_fields);
    }
}

/// Builds an error with a page that gives the reason.
pub fn error<F>(site: &Site, request: &Request<'_>, path: &[u8], status: Status, why: &str) -> (ReplyHead, Body<F>) {
    error_with(site, request, path, status, why, |_| {})
}

/// Builds the response to a request that an application has not authorised, with its status and these fields.
pub(crate) fn denial<'d, F>(
    site: &Site,
    request: &Request<'_>,
    path: &[u8],
    status: Status,
    fields: impl Iterator<Item = (&'d str, &'d [u8])>,
) -> (ReplyHead, Body<F>) {
    let (mut head, page) = generated(status, error_page(status, "not authorised"));
    fields.for_each(|(name, value)| _ = head.field(name, value));
    // RFC 9111, 4.2.2: some redirects would be cached for as long as a cache likes.
    head.field("Cache-Control", "no-store");
    vary(&mut head, site, path, Vary::NOTHING);
    custom(&mut head, site, request, (path, None), site.cors_origin(path, request));
    (ReplyHead::Owned(Box::new(head)), unless_head(request, Body::Text(page)))
}

fn error_with<F>(
    site: &Site,
    request: &Request<'_>,
    path: &[u8],
    status: Status,
    why: &str,
    more: impl FnOnce(&mut Head),
) -> (ReplyHead, Body<F>) {
    let (mut head, page) = generated(status, error_page(status, why));
    more(&mut head);
    challenge(&mut head, site, request, path, status);
    vary(&mut head, site, path, Vary::NOTHING);
    custom(&mut head, site, request, (path, None), site.cors_origin(path, request));
    (ReplyHead::Owned(Box::new(head)), unless_head(request, Body::Text(page)))
}

/// Errors with the default page to which no rule of a site adds fields, cached after their first use: assembling head
/// and page took a dozen allocations. Their number is small, because the reasons are constants of the program.
#[derive(Debug, Default)]
pub(crate) struct ReadyErrors(Vec<ReadyError>);

#[derive(Debug)]
struct ReadyError {
    status: Status,
    why: &'static str,
    head: Arc<Head>,
    page: Arc<Vec<u8>>,
}

impl ReadyErrors {
    /// The same as [`error`], if no rule matches.
    pub(crate) fn error<F>(
        &mut self,
        request: &Request<'_>,
        status: Status,
        why: &'static str,
    ) -> (ReplyHead, Body<F>) {
        let known = self.0.iter().position(|known| known.status == status && known.why == why);
        let at = known.unwrap_or_else(|| {
            let (head, page) = generated(status, error_page(status, why));
            self.0.push(ReadyError { status, why, head: Arc::new(head), page: Arc::new(page) });
            self.0.len() - 1
        });
        let ReadyError { head, page, .. } = &self.0[at];
        (ReplyHead::Ready(Arc::clone(head)), unless_head(request, Body::Shared(Arc::clone(page))))
    }
}

/// Builds an error without a parsed request. `head_only`: it began with HEAD.
pub fn bad_head<F>(status: Status, why: &str, head_only: bool) -> (ReplyHead, Body<F>) {
    let (head, page) = generated(status, error_page(status, why));
    (ReplyHead::Owned(Box::new(head)), if head_only { Body::Empty } else { Body::Text(page) })
}

/// Builds an error with the site's own page.
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
    challenge(&mut head, site, request, path, status);
    vary(&mut head, site, path, Vary::NOTHING);
    custom(&mut head, site, request, (path, None), site.cors_origin(path, request));
    let body = match request.method {
        Some(Method::Head) => Body::Empty,
        _ if size == 0 => Body::Empty,
        _ => Body::Content(content, 0..size),
    };
    (ReplyHead::Owned(Box::new(head)), body)
}

/// Adds its head to a generated HTML page.
fn generated(status: Status, page: Vec<u8>) -> (Head, Vec<u8>) {
    (error_head(status, page.len() as u64, "text/html; charset=utf-8"), page)
}

/// The body of the response; none to a HEAD (RFC 9110, 9.3.2).
fn unless_head<F>(request: &Request<'_>, body: Body<F>) -> Body<F> {
    if request.method == Some(Method::Head) { Body::Empty } else { body }
}

fn error_head(status: Status, length: u64, media_type: &str) -> Head {
    let mut head = Head::new(status);
    head.field("Content-Type", media_type).number("Content-Length", length);
    match status {
        // RFC 9110, 15.5.6.
        Status::METHOD_NOT_ALLOWED => {
            head.field("Allow", ALLOW);
        }
        // RFC 6585, 4: after this time, the failures counted for the address have expired (`server/passwords/ledger`).
        Status::TOO_MANY_REQUESTS => {
            head.field("Retry-After", "60");
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
pub fn options<F>(site: &Site, request: &Request<'_>, path: &[u8]) -> (ReplyHead, Body<F>) {
    let mut head = Head::new(Status::NO_CONTENT);
    head.field("Allow", ALLOW);
    vary(&mut head, site, path, Vary::NOTHING);
    let cors_origin = site.cors_origin(path, request);
    custom(&mut head, site, request, (path, None), cors_origin);
    if let Some(rule) = site.preflight(path, request).filter(|rule| rule.allows(cors_origin)) {
        rule.preflight(&mut head);
    }
    (ReplyHead::Owned(Box::new(head)), Body::Empty)
}

/// Redirects to the name of a directory with its final slash, so that relative links resolve. The query is preserved.
pub fn add_slash<F>(site: &Site, request: &Request<'_>, path: &[u8], query: Option<&[u8]>) -> (ReplyHead, Body<F>) {
    let mut location = Vec::with_capacity(path.len() + 1);
    // The path is clean: it starts with one slash, so no browser reads `//host` and leaves the site.
    uri::encode_path(path, &mut location);
    location.push(b'/');
    if let Some(query) = query {
        location.push(b'?');
        location.extend_from_slice(query);
    }
    let why = "the URL of a directory ends with a slash";
    redirect(site, request, path, Status::MOVED_PERMANENTLY, why, &location)
}

/// Builds a redirect. RFC 9110, 10.2.2: the location may be relative to the target.
pub fn redirect<F>(
    site: &Site,
    request: &Request<'_>,
    path: &[u8],
    status: Status,
    why: &str,
    location: &[u8],
) -> (ReplyHead, Body<F>) {
    error_with(site, request, path, status, why, |head| {
        head.field("Location", location);
    })
}

/// Builds the redirect of a request without TLS to https; 403 if there is no https URL. It has no fields of the site,
/// because a response without TLS must not have Strict-Transport-Security (RFC 6797, 7.2).
pub(crate) fn to_https<F>(request: &Request<'_>, location: Option<&[u8]>) -> (ReplyHead, Body<F>) {
    let status = if location.is_some() { Status::PERMANENT_REDIRECT } else { Status::FORBIDDEN };
    let (mut head, page) = generated(status, error_page(status, "this site requires https"));
    if let Some(location) = location {
        head.field("Location", location);
    }
    (ReplyHead::Owned(Box::new(head)), unless_head(request, Body::Text(page)))
}

/// Replaces the time after which a refused client may try again, seconds (RFC 9110, 10.2.3).
pub(crate) fn retry_after(head: &ReplyHead, seconds: u64) -> ReplyHead {
    let mut head = head.get().clone();
    head.remove("Retry-After").number("Retry-After", seconds);
    ReplyHead::Owned(Box::new(head))
}

/// Sets a field, in the place of one that an application has set.
pub(crate) fn with_field(head: &ReplyHead, name: &str, value: &[u8]) -> ReplyHead {
    let mut head = head.get().clone();
    head.remove(name).field(name, value);
    ReplyHead::Owned(Box::new(head))
}

/// The head of a response that only some clients get, at whatever path: private, unless a rule or an application says otherwise.
pub(crate) fn restricted(head: ReplyHead) -> ReplyHead {
    match head.get().field_starts_with(CACHE_CONTROL, b"") {
        true => head,
        false => with_field(&head, CACHE_CONTROL, b"private"),
    }
}

/// Adds fields of an application's response that has admitted the request. A response with a copied cookie is for this client alone,
/// whatever else its Cache-Control says.
pub(crate) fn with_admission(head: &ReplyHead, fields: &[(Box<str>, Box<[u8]>)]) -> ReplyHead {
    let mut head = head.get().clone();
    for (name, value) in fields {
        head.field(name, value);
    }
    if fields.iter().any(|(name, _)| name.eq_ignore_ascii_case("Set-Cookie")) {
        let is_stored =
            !head.values(CACHE_CONTROL).flat_map(list).any(|directive| directive.eq_ignore_ascii_case(b"no-store"));
        let value: &[u8] = if is_stored { b"private, no-cache" } else { b"no-store" };
        head.remove(CACHE_CONTROL).field(CACHE_CONTROL, value);
    }
    ReplyHead::Owned(Box::new(head))
}

const CACHE_CONTROL: &str = "Cache-Control";

/// Adds the fields of an application's response to the head of a file sent on its behalf, except those that rules remove.
pub(crate) fn beside_file(
    site: &Site,
    request: &Request<'_>,
    path: &[u8],
    head: &ReplyHead,
    fields: &[(Box<str>, Box<[u8]>)],
) -> ReplyHead {
    let file_head = head.get();
    let (mut head, status) = (file_head.clone(), file_head.status());
    let is_of_body =
        |name: &str| name.eq_ignore_ascii_case("Content-Type") || name.eq_ignore_ascii_case("Content-Disposition");
    // A 304 has no fields about the body, and several ranges have another media type (RFC 9110, 14.6).
    let is_several = head.field_starts_with("Content-Type", b"multipart/byteranges");
    let goes_along = |name: &str| match status {
        Status::NOT_MODIFIED => !is_of_body(name),
        _ => !(is_several && name.eq_ignore_ascii_case("Content-Type")),
    };
    let is_removed = |name: &str| headers::is_removed(&site.rules, path, request, file_head, name);
    let fields: Vec<_> = fields.iter().filter(|(name, _)| goes_along(name) && !is_removed(name)).collect();
    let media_type = fields.iter().find(|(name, _)| name.eq_ignore_ascii_case("Content-Type"));
    if let Some(media_type) = media_type.and_then(|(_, value)| core::str::from_utf8(value).ok())
        && matches!(status, Status::OK | Status::PARTIAL_CONTENT)
    {
        headers::change_type(&mut head, &site.rules, path, request, media_type);
    }
    for (name, _) in &fields {
        head.remove(name);
    }
    for (name, value) in fields {
        head.field(name, value);
    }
    ReplyHead::Owned(Box::new(head))
}

/// Builds the fixed response of a route.
pub fn fixed<F>(site: &Site, request: &Request<'_>, path: &[u8], response: &FixedResponse) -> (ReplyHead, Body<F>) {
    let FixedResponse { status, body, fields } = response;
    let mut head = Head::new(*status);
    for (name, value) in fields {
        head.field(name, &**value);
    }
    // RFC 9110, 8.6: neither has a Content-Length.
    if !matches!(*status, Status::NO_CONTENT | Status::NOT_MODIFIED) {
        head.number("Content-Length", body.len() as u64);
    }
    add_to_script(&mut head, site, request, path, |name| fields.iter().any(|(set, _)| set.eq_ignore_ascii_case(name)));
    let has_body = request.method != Some(Method::Head) && !body.is_empty();
    (ReplyHead::Owned(Box::new(head)), if has_body { Body::Shared(Arc::clone(body)) } else { Body::Empty })
}

/// The reason of a 412.
const FAILED: &str = "a precondition of the request failed";

/// Builds the response with a directory listing, HTML or JSON as the client prefers; 304 if its copy is current. Ranges
/// are not supported for generated pages.
pub fn listing<F>(
    site: &Site,
    request: &Request<'_>,
    path: &[u8],
    form: ListForm,
    listing: Listing,
    now_seconds: i64,
) -> (ReplyHead, Body<F>) {
    let (tag, modified) = (listing.etag(), listing.changed_ns.div_euclid(1_000_000_000));
    let page = listing.page;
    let mut head = match conditions(request, tag.as_bytes(), Some(modified), now_seconds) {
        Some(Verdict::PreconditionFailed) => {
            return error(site, request, path, Status::PRECONDITION_FAILED, FAILED);
        }
        // RFC 9110, 15.4.5.
        Some(_) => Head::new(Status::NOT_MODIFIED),
        None => Head::new(Status::OK),
    };
    let is_whole = head.status() == Status::OK;
    if is_whole {
        head.field("Content-Type", form.media_type()).number("Content-Length", page.len() as u64);
    }
    vary(&mut head, site, path, Vary::ACCEPT);
    head.field("Last-Modified", date::format(modified)).field("ETag", &tag);
    let named = (path, Some(form.media_type()));
    file_fields(&mut head, site, request, named, None);
    custom(&mut head, site, request, named, site.cors_origin(path, request));
    let has_body = is_whole && request.method != Some(Method::Head);
    (ReplyHead::Owned(Box::new(head)), if has_body { Body::Shared(page) } else { Body::Empty })
}

/// Builds the list of all variants of a document, for the client to
/// choose from (RFC 9110, 15.4.1) or because it accepts none (15.5.7).
pub fn variants<F>(
    site: &Site,
    request: &Request<'_>,
    path: &[u8],
    variants: &Variants,
    negotiated: Negotiated,
) -> (ReplyHead, Body<F>) {
    let (status, why) = match negotiated {
        Negotiated::Refused => (Status::NOT_ACCEPTABLE, "None of these variants is acceptable to the request"),
        Negotiated::List | Negotiated::Variant(_) => (Status::MULTIPLE_CHOICES, "These variants match equally well"),
    };
    let mut list = String::new();
    for VariantFile { resource, .. } in &variants.list {
        let mut link = Vec::new();
        uri::encode_path(&resource.name, &mut link);
        let link = listing::escape_html(&String::from_utf8_lossy(&link));
        let name = resource.name.rsplit(|&byte| byte == b'/').next().unwrap_or_default();
        let name = listing::escape_html(&String::from_utf8_lossy(name));
        let kind = listing::escape_html(&resource.media_type);
        let (attribute, language) = match resource.language.as_deref() {
            Some(tag) => (alloc::format!(" hreflang=\"{tag}\""), alloc::format!(", {tag}")),
            None => Default::default(),
        };
        list += &alloc::format!("<li><a href=\"{link}\"{attribute}>{name}</a> ({kind}{language})\n");
    }
    let (mut head, page) = generated(status, page_of(status, &alloc::format!("<p>{why}:</p>\n<ul>\n{list}</ul>")));
    vary(&mut head, site, path, variants.vary);
    custom(&mut head, site, request, (path, None), site.cors_origin(path, request));
    (ReplyHead::Owned(Box::new(head)), unless_head(request, Body::Text(page)))
}

/// The default error page: small, with light and dark colours.
fn error_page(status: Status, why: &str) -> Vec<u8> {
    page_of(status, &alloc::format!("<p>{}.</p>", capital(why)))
}

fn page_of(status: Status, text: &str) -> Vec<u8> {
    let title = alloc::format!("{} {}", status.0, status.reason());
    let page = alloc::format!(
        "<!doctype html>\n<html lang=\"en\"><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width\">\
         <meta name=\"color-scheme\" content=\"light dark\"><title>{title}</title>\n\
         <style>body{{font:1rem/1.5 system-ui,sans-serif;max-width:40rem;margin:4rem auto;padding:0 1rem}}</style>\n\
         <h1>{title}</h1>\n{text}\n</html>\n"
    );
    page.into_bytes()
}

fn capital(text: &str) -> String {
    let mut chars = text.chars();
    chars.next().map_or(String::new(), |first| [first.to_uppercase().collect::<String>(), chars.collect()].concat())
}

#[cfg(test)]
#[expect(clippy::single_range_in_vec_init, reason = "one part of a file is what is meant")]
mod tests {
    use super::*;
    use crate::cache::policy::Hint;
    use crate::condition::any_request;
    use crate::file::FileVersion;
    use crate::glob::Glob;
    use crate::headers::HeaderRule;
    use crate::resource::PrecompressedOnly;
    use alloc::collections::BTreeMap;
    use alloc::{format, vec};
    use amped_http::h1::request::{self, HeadLimits};

    /// Sun, 06 Nov 1994 08:49:37 GMT.
    const MODIFIED: i64 = 784_111_777;

    const LIMITS: HeadLimits = HeadLimits { request_line: 1000, head: 4000, fields: 50, secure: false };

    fn site(rules: Vec<HeaderRule>) -> Site {
        Site { rules, ..Site::default() }
    }

    fn representation(size: u64, coding: Coding) -> Representation {
        let mtime_ns = MODIFIED * 1_000_000_000 + 5;
        let version = FileVersion {
            device: 1,
            inode: 2,
            size,
            mtime_ns,
            ctime_ns: mtime_ns + 7,
            is_changing: false,
            is_unpacked: false,
        };
        let etag = "\"tag\"".into();
        Representation { coding, version, etag, content_hint: Hint::default(), head_hints: Default::default() }
    }

    fn resource(representations: Vec<Representation>) -> Resource {
        let vary = Vary::NOTHING.and_if(Vary::ENCODING, representations.len() > 1);
        let (name, media_type) = ((*b"/docs/a.txt").into(), "text/plain".into());
        let (site, language, is_chosen, is_compressible, lone) = (0, None, false, false, None);
        let objects = Box::default();
        Resource { site, name, media_type, language, vary, is_chosen, representations, is_compressible, lone, objects }
    }

    /// The head as sent, and the body's length.
    fn shown((head, body): (ReplyHead, Body<()>)) -> (String, u64) {
        let mut bytes = Vec::new();
        head.get().write(&mut bytes, &date::format(MODIFIED), Connection::Persists, None, 1);
        (String::from_utf8(bytes).expect("ASCII"), body.len())
    }

    #[test]
    fn prepared_error_equals_generated_error() {
        let mut ready = ReadyErrors::default();
        for method in ["GET", "HEAD"] {
            let text = format!("{method} /x HTTP/1.1\r\nHost: a\r\n\r\n");
            let (request, _) = request::parse(text.as_bytes(), &LIMITS).expect("good").expect("whole");
            for (status, why) in [
                (Status::NOT_FOUND, "the requested path does not exist"),
                (Status::FORBIDDEN, "permission denied"),
                (Status::SERVICE_UNAVAILABLE, "timed out reading from disk"),
                (Status::SERVICE_UNAVAILABLE, "too many requests are waiting"),
            ] {
                // The first use, and a cached one.
                for _ in 0..2 {
                    let (head, body) = ready.error::<()>(&request, status, why);
                    let (made, page) = error::<()>(&site(Vec::new()), &request, b"/x", status, why);
                    match (&body, &page) {
                        (Body::Shared(body), Body::Text(page)) => assert_eq!(**body, *page),
                        (body, page) => assert!(body.is_empty() && page.is_empty() && method == "HEAD"),
                    }
                    assert_eq!(shown((head, body)), shown((made, page)));
                }
            }
        }
        assert_eq!(ready.0.len(), 4, "each is cached once");
    }

    /// Every combination, against an independent implementation of RFC 9110, 13.2.2.
    #[test]
    fn conditions_follow_rfc_order() {
        let before = "Sun, 06 Nov 1994 08:49:36 GMT";
        let same = "Sunday, 06-Nov-94 08:49:37 GMT";
        let after = "Sun Nov  6 08:49:38 1994";
        // Each choice: the field lines, and whether the condition holds; None if it is absent or invalid.
        let if_match = [
            ("", None),
            ("If-Match: *\r\n", Some(true)),
            ("If-Match: \"tag\"\r\n", Some(true)),
            ("If-Match: \"a\", \"b\"\r\nIf-Match: \"c\",\"tag\"\r\n", Some(true)),
            ("If-Match: W/\"tag\"\r\n", Some(false)),
            ("If-Match: \"other\"\r\n", Some(false)),
            ("If-Match: tag\r\n", Some(false)),
        ];
        let if_unmodified = [
            (String::new(), None),
            (format!("If-Unmodified-Since: {before}\r\n"), Some(false)),
            (format!("If-Unmodified-Since: {same}\r\n"), Some(true)),
            (format!("If-Unmodified-Since: {after}\r\n"), Some(true)),
            (String::from("If-Unmodified-Since: yesterday\r\n"), None),
        ];
        let if_none_match = [
            ("", None),
            ("If-None-Match: *\r\n", Some(false)),
            ("If-None-Match: W/\"tag\"\r\n", Some(false)),
            ("If-None-Match: \"a\"\r\nIf-None-Match: \"tag\"\r\n", Some(false)),
            ("If-None-Match: \"other\"\r\n", Some(true)),
        ];
        let if_modified = [
            (String::new(), None),
            (format!("If-Modified-Since: {before}\r\n"), Some(true)),
            (format!("If-Modified-Since: {same}\r\n"), Some(false)),
            (format!("If-Modified-Since: {after}\r\n"), Some(false)),
            (String::from("If-Modified-Since: yesterday\r\n"), None),
        ];
        let ranges = [
            ("", Verdict::Whole),
            ("Range: bytes=2-4\r\n", Verdict::Partial(vec![2..5])),
            ("Range: bytes=10-\r\n", Verdict::Unsatisfiable),
            ("Range: bytes=4-2\r\n", Verdict::Whole),
            ("Range: lines=2-4\r\n", Verdict::Whole),
        ];
        let if_range = [
            (String::new(), true),
            (String::from("If-Range: \"tag\"\r\n"), true),
            (String::from("If-Range: W/\"tag\"\r\n"), false),
            (String::from("If-Range: \"other\"\r\n"), false),
            (format!("If-Range: {same}\r\n"), true),
            (format!("If-Range: {after}\r\n"), false),
            (format!("If-Range: {before}\r\n"), false),
            (String::from("If-Range: yesterday\r\n"), false),
        ];
        let resource = resource(vec![representation(10, Coding::Identity)]);
        let mut count = 0;
        for method in ["GET", "HEAD"] {
            for (line_1, holds_1) in &if_match {
                for (line_2, holds_2) in &if_unmodified {
                    for (line_3, holds_3) in &if_none_match {
                        for (line_4, holds_4) in &if_modified {
                            for (range, parts) in &ranges {
                                for (condition, current) in &if_range {
                                    let expected = match (holds_1, holds_2, holds_3, holds_4) {
                                        (Some(false), ..) | (None, Some(false), ..) => Verdict::PreconditionFailed,
                                        (_, _, Some(false), _) | (_, _, None, Some(false)) => Verdict::NotModified,
                                        _ if method == "GET" && *current => parts.clone(),
                                        _ => Verdict::Whole,
                                    };
                                    let fields = [line_1, &**line_2, line_3, line_4, range, condition].concat();
                                    let text = format!("{method} / HTTP/1.1\r\nHost: a\r\n{fields}\r\n");
                                    let parsed = request::parse(text.as_bytes(), &LIMITS).expect("good");
                                    let (request, _) = parsed.expect("whole");
                                    let representation = &resource.representations[0];
                                    let (limits, now) = (Limits::default(), MODIFIED + 60);
                                    let verdict = judge(&request, &resource, representation, &limits, now);
                                    assert_eq!(verdict, expected, "{text}");
                                    count += 1;
                                }
                            }
                        }
                    }
                }
            }
        }
        assert_eq!(count, 2 * 7 * 5 * 5 * 5 * 5 * 8);
    }

    #[test]
    fn last_modified_is_weak_within_its_second() {
        let text = b"GET / HTTP/1.1\r\nHost: a\r\nRange: bytes=0-0\r\nIf-Range: Sun, 06 Nov 1994 08:49:37 GMT\r\n\r\n";
        let (request, _) = request::parse(text, &LIMITS).expect("good").expect("whole");
        let check = |is_compressible, now_seconds, expected| {
            let resource = Resource { is_compressible, ..resource(vec![representation(10, Coding::Identity)]) };
            let verdict = judge(&request, &resource, &resource.representations[0], &Limits::default(), now_seconds);
            assert_eq!(verdict, expected, "at {now_seconds}");
        };
        check(false, MODIFIED - 1, Verdict::Whole);
        check(false, MODIFIED, Verdict::Whole);
        check(false, MODIFIED + 1, Verdict::Partial(vec![0..1]));
        // The client may have the beginning of the compressed form, which has the same date.
        check(true, MODIFIED + 1, Verdict::Whole);
    }

    #[test]
    fn content_length_matches_body() {
        let text = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n";
        let (request, _) = request::parse(text, &LIMITS).expect("good").expect("whole");
        let check = |size: u64, verdict: Verdict, status: &str, fields: &[&str]| {
            let resource = resource(vec![representation(size, Coding::Identity)]);
            let representation = &resource.representations[0];
            let content = Content { version: representation.version, store: Stored::File(()) };
            let mut heads = CacheBackend::Own(HeadCache::of(1 << 20));
            let content = Some(Arc::new(content));
            let reply = file(&site(vec![]), &request, &resource, representation, verdict.clone(), content, &mut heads);
            let (head, length) = shown(reply);
            assert!(head.starts_with(&format!("HTTP/1.1 {status} ")), "{head}");
            let announced = head.split("\r\n").find_map(|line| line.strip_prefix("Content-Length: "));
            let expected = (verdict != Verdict::NotModified).then(|| format!("{length}"));
            assert_eq!(announced, expected.as_deref(), "{verdict:?}");
            for field in fields {
                assert!(head.contains(field), "{head} lacks {field}");
            }
        };
        check(0, Verdict::Whole, "200", &["Accept-Ranges: bytes"]);
        check(10, Verdict::Whole, "200", &["Last-Modified: Sun, 06 Nov 1994 08:49:37 GMT", "ETag: \"tag\""]);
        check(10, Verdict::NotModified, "304", &["ETag: \"tag\""]);
        check(10, Verdict::PreconditionFailed, "412", &[]);
        check(10, Verdict::Unsatisfiable, "416", &["Content-Range: bytes */10"]);
        check(10, Verdict::Partial(vec![3..10]), "206", &["Content-Range: bytes 3-9/10", "Content-Type: text/plain"]);
        check(1 << 40, Verdict::Partial(vec![0..1, 5..1 << 39]), "206", &["multipart/byteranges; boundary=amped"]);
        check(100, Verdict::Partial((0..16).map(|n| n * 3..n * 3 + 1).collect()), "206", &["ETag: \"tag\""]);
    }

    #[test]
    fn later_rule_overrides_earlier_value() {
        let of = |pattern: &str| HeaderRule { pattern: Glob::new(pattern), ..HeaderRule::default() };
        let rule = |pattern: &str, cache_control: Option<&str>, set: &[(&str, &str)]| HeaderRule {
            cache_control: cache_control.map(Into::into),
            set: set.iter().map(|&(name, value)| (name.into(), value.into())).collect(),
            ..of(pattern)
        };
        let site = site(vec![
            rule("**", Some("max-age=1"), &[("X-A", "1"), ("X-B", "1")]),
            rule("/docs/**", Some("max-age=2"), &[("x-a", "2")]),
            rule("*.txt", None, &[("X-C", "3")]),
            rule("/other/**", Some("max-age=4"), &[("X-A", "4"), ("X-D", "4")]),
        ]);
        let text = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n";
        let (request, _) = request::parse(text, &LIMITS).expect("good").expect("whole");
        let resource = resource(vec![representation(10, Coding::Identity), representation(5, Coding::Gzip)]);
        let mut none = CacheBackend::Own(HeadCache::of(0));
        for (verdict, caches) in [
            (Verdict::Whole, true),
            (Verdict::Partial(vec![0..1]), true),
            (Verdict::NotModified, true),
            (Verdict::PreconditionFailed, false),
            (Verdict::Unsatisfiable, false),
        ] {
            let plain = &resource.representations[0];
            let reply = file::<()>(&site, &request, &resource, plain, verdict.clone(), None, &mut none);
            let (head, _) = shown(reply);
            let lines: Vec<&str> = head.split("\r\n").filter(|line| line.starts_with(['x', 'X'])).collect();
            assert_eq!(lines, ["X-A: 2", "X-B: 1", "X-C: 3"], "{verdict:?}");
            let cache_control = head.split("\r\n").find(|line| line.starts_with("Cache-Control"));
            assert_eq!(cache_control, caches.then_some("Cache-Control: max-age=2"), "{verdict:?}");
            assert_eq!(head.contains("\r\nVary: Accept-Encoding\r\n"), caches, "{verdict:?}");
        }
    }

    #[test]
    fn rules_remove_set_and_append_in_order() {
        let map = |fields: &[(&str, &str)]| -> BTreeMap<Box<str>, Box<str>> {
            fields.iter().map(|&(name, value)| (name.into(), value.into())).collect()
        };
        let rule = |remove: &[&str], set: &[(&str, &str)], append: &[(&str, &str)], errors| HeaderRule {
            remove: remove.iter().map(|&name| name.into()).collect(),
            set: map(set),
            append: map(append),
            errors,
            ..HeaderRule::default()
        };
        let check = |rules: &[HeaderRule], status: Status, expected: &[&str]| {
            let of_app = [("X-App", "1"), ("x-app", "2"), ("X-Kept", "3")];
            let mut head = Head::new(status);
            for (name, value) in of_app {
                head.field(name, value);
            }
            headers::add(&mut head, rules, b"/a", &any_request(), None, |name| {
                of_app.iter().any(|(app, _)| app.eq_ignore_ascii_case(name))
            });
            let (head, _) = shown((ReplyHead::Owned(Box::new(head)), Body::Empty));
            let lines: Vec<&str> = head.split("\r\n").filter(|line| line.starts_with(['x', 'X'])).collect();
            assert_eq!(lines, expected);
        };
        let app = ["X-App: 1", "x-app: 2", "X-Kept: 3"];
        check(&[rule(&[], &[("X-App", "4"), ("X-A", "5")], &[], true)], Status::OK, &[&app[..], &["X-A: 5"]].concat());
        check(&[rule(&["X-APP"], &[], &[], true)], Status::OK, &["X-Kept: 3"]);
        check(&[rule(&["X-App"], &[("X-App", "4")], &[], true)], Status::OK, &["X-Kept: 3", "X-App: 4"]);
        check(&[rule(&[], &[], &[("X-App", "4")], true)], Status::OK, &[&app[..], &["X-App: 4"]].concat());
        let more = [
            rule(&[], &[("X-A", "1"), ("X-B", "1")], &[("X-A", "2")], true),
            rule(&["x-b"], &[("x-a", "3")], &[("X-A", "4")], true),
        ];
        check(&more, Status::OK, &[&app[..], &["X-A: 3", "X-A: 4"]].concat());
        let some = [rule(&["X-Kept"], &[("X-A", "1")], &[("X-B", "1")], false), rule(&["X-App"], &[], &[], true)];
        check(&some, Status::NOT_FOUND, &["X-Kept: 3"]);
        check(&some, Status::NOT_MODIFIED, &["X-A: 1", "X-B: 1"]);
    }

    #[test]
    fn coding_follows_accept_encoding() {
        let resource = resource(vec![
            representation(10, Coding::Identity),
            representation(5, Coding::Brotli),
            representation(6, Coding::Gzip),
        ]);
        let check = |fields: &str, expected: Coding| {
            let text = format!("GET / HTTP/1.1\r\nHost: a\r\n{fields}\r\n");
            let (request, _) = request::parse(text.as_bytes(), &LIMITS).expect("good").expect("whole");
            let Chosen::One(chosen) = choose(&request, &resource) else { panic!("{fields}") };
            assert_eq!(chosen.coding, expected, "{fields}");
        };
        check("", Coding::Identity);
        check("Accept-Encoding: gzip, br\r\n", Coding::Brotli);
        check("Accept-Encoding: gzip\r\nAccept-Encoding: br;q=0.1\r\n", Coding::Gzip);
        check("Accept-Encoding: zstd\r\n", Coding::Identity);
        check("Accept-Encoding: \r\n", Coding::Identity);
        check("Accept-Encoding: identity;q=0, *;q=0\r\n", Coding::Identity);
    }

    #[test]
    fn lone_sibling_is_sent_if_its_coding_is_accepted() {
        let check = |representations: Vec<Representation>, not_unpacked, fields: &str, expected: &str| {
            let text = format!("GET / HTTP/1.1\r\nHost: a\r\n{fields}\r\n");
            let (request, _) = request::parse(text.as_bytes(), &LIMITS).expect("good").expect("whole");
            let lone = Some(PrecompressedOnly { name: b"/a.gz"[..].into(), not_unpacked });
            let resource = Resource { vary: Vary::ENCODING, lone, ..resource(representations) };
            let shown = match choose(&request, &resource) {
                Chosen::One(one) => String::from(one.coding.token()),
                Chosen::Unpacked => String::from("unpack"),
                Chosen::NotUnpacked(why) => format!("{why:?}"),
            };
            assert_eq!(shown, expected, "{fields}");
        };
        let packed = || vec![representation(6, Coding::Gzip)];
        let both = || vec![representation(6, Coding::Gzip), representation(10, Coding::Identity)];
        let takes = ["gzip", "x-gzip, br", "*", "gzip;q=0.1", "identity;q=0, *;q=0.1"];
        let takes_not = ["", "br", "identity", "gzip;q=0", "gzip;q=0.1, identity;q=0.2", "identity;q=0", "*;q=0"];
        for (field, is_taken) in takes.map(|one| (one, true)).into_iter().chain(takes_not.map(|one| (one, false))) {
            let field = format!("Accept-Encoding: {field}\r\n");
            let or = |other| if is_taken { "gzip" } else { other };
            check(packed(), None, &field, or("unpack"));
            check(both(), None, &field, or("identity"));
            check(packed(), Some(NotUnpacked::TooLarge), &field, or("TooLarge"));
        }
        check(packed(), None, "", "unpack");
        check(both(), None, "", "identity");
        check(packed(), Some(NotUnpacked::Damaged), "", "Damaged");
    }

    #[test]
    fn redirect_stays_on_its_host() {
        let check = |path: &str, query: Option<&str>, expected: &str| {
            let text = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n";
            let (request, _) = request::parse(text, &LIMITS).expect("good").expect("whole");
            let reply = add_slash(&site(vec![]), &request, path.as_bytes(), query.map(str::as_bytes));
            let (head, _) = shown(reply);
            assert!(head.contains(&format!("\r\nLocation: {expected}\r\n")), "{head}");
        };
        check("/a b", None, "/a%20b/");
        check("/a", Some("b=c"), "/a/?b=c");
        check("/a", Some(""), "/a/?");
        check("/\\evil.example", None, "/%5Cevil.example/");
        check("/\r\nX: y", None, "/%0D%0AX:%20y/");
    }
}
