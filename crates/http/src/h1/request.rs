//! Stop 4 of 10: parses the head of a request.
//!
//! Before it, `core/http1` (stop 3) has buffered the bytes; after it, `core/exchange` (stop 5) answers the request.
//!
//! httparse splits the head into tokens; this layer is strict. If two servers read a message differently, an attacker
//! can smuggle a request past one of them, so an ambiguous message is rejected. The text is borrowed; a request that
//! has to wait becomes an [`OwnedRequest`].
//!
//! Deviations from what RFC 9112 lets a server tolerate, all on the strict side: a bare LF does not end a line (2.2
//! says MAY), two Content-Length fields are rejected even if they agree (RFC 9110, 8.6 says MAY), and so is
//! Content-Length with Transfer-Encoding (6.3).

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::mem::MaybeUninit;

use crate::forwarded::Client;
use crate::method::Method;
use crate::status::Status;
use crate::text::trim_ows;
use crate::uri::{self, Target, TargetOf};

/// Hard limit of header fields; the configured limit may be lower.
pub const FIELDS_MAX: usize = 256;

/// Limits of a request head.
#[derive(Clone, Copy, Debug)]
pub struct HeadLimits {
    /// Bytes of the request line, including its line end.
    pub request_line: usize,
    /// Bytes of the whole head.
    pub head: usize,
    /// Number of header fields, at most [`FIELDS_MAX`].
    pub fields: usize,
    /// Whether the connection is encrypted (TLS), so that its targets may be https URLs.
    pub secure: bool,
}

impl HeadLimits {
    /// No limits except those of the representation, for a head that does not come from a client.
    pub const fn unlimited(secure: bool) -> Self {
        Self { request_line: usize::MAX, head: usize::MAX, fields: FIELDS_MAX, secure }
    }
}

/// The HTTP version: of HTTP/1, the minor version decides whether a connection persists by default.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// HTTP/1.0
    Http10,
    /// HTTP/1.1
    Http11,
    /// HTTP/2
    Http2,
}

impl Version {
    /// The version as a request line, CGI and the access log write it.
    pub const fn name(self) -> &'static str {
        match self {
            Version::Http10 => "HTTP/1.0",
            Version::Http11 => "HTTP/1.1",
            Version::Http2 => "HTTP/2.0",
        }
    }
}

/// How the end of a request body is found (RFC 9112, 6.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    /// No body.
    None,
    /// After this many bytes, at least one.
    Length(u64),
    /// After the last chunk; in HTTP/2 at the end of the stream, after an unknown number of bytes.
    Chunked,
}

/// The expectation of a client before it sends the body (RFC 9110, 10.1.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expectation {
    /// Nothing.
    None,
    /// `100-continue`.
    Continue,
    /// An undefined expectation.
    Unknown,
}

/// The values of a field that may occur on several lines, which together form one list (RFC 9110, 5.3).
#[derive(Clone, Debug)]
pub struct LinesOf<T> {
    first: Option<T>,
    /// Empty, and so not allocated, for nearly every request.
    more: Vec<T>,
}

/// The field lines of a head, borrowed from it.
pub type Lines<'a> = LinesOf<&'a [u8]>;

impl<T> Default for LinesOf<T> {
    fn default() -> LinesOf<T> {
        LinesOf { first: None, more: Vec::new() }
    }
}

impl<T> LinesOf<T> {
    fn map<U>(&self, part: &impl Fn(&T) -> U) -> LinesOf<U> {
        LinesOf { first: self.first.as_ref().map(part), more: self.more.iter().map(part).collect() }
    }
}

impl<'a> Lines<'a> {
    fn push(&mut self, value: &'a [u8]) {
        match self.first {
            None => self.first = Some(value),
            Some(_) => self.more.push(value),
        }
    }

    /// Whether the field is present.
    pub fn is_present(&self) -> bool {
        self.first.is_some()
    }

    /// The lines in order.
    pub fn iter(&self) -> impl Iterator<Item = &'a [u8]> + '_ {
        self.first.into_iter().chain(self.more.iter().copied())
    }

    /// The first line, for fields in which further lines are ignored.
    pub fn first(&self) -> Option<&'a [u8]> {
        self.first
    }
}

/// A parsed request head. `T` refers to a part of it.
#[derive(Clone, Debug)]
pub struct RequestOf<T> {
    /// `None` for a method that this implementation does not know.
    pub method: Option<Method>,
    /// The method as sent, for the log.
    pub method_text: T,
    /// The target as sent, for the log.
    pub target_text: T,
    /// The parsed target.
    pub target: TargetOf<T>,
    /// The version of the request.
    pub version: Version,
    /// Whether the client sent it over an encrypted connection (TLS), to this server or to a proxy that it trusts.
    pub secure: bool,
    /// The client, if the caller has determined it.
    pub client: Option<Client>,
    /// The requested host without its port: the target's if it has one, else Host's (RFC 9112, 3.2.2); may be empty.
    pub host: T,
    /// Whether the client keeps the connection open after the response (RFC 9112, 9.3).
    pub keep_alive: bool,
    /// How the body ends.
    pub framing: Framing,
    /// The expectation of the client.
    pub expectation: Expectation,
    /// RFC 9110, 14.2.
    pub range: Option<T>,
    /// RFC 9110, 13.1.5.
    pub if_range: Option<T>,
    /// RFC 9110, 13.1.1.
    pub if_match: LinesOf<T>,
    /// RFC 9110, 13.1.2.
    pub if_none_match: LinesOf<T>,
    /// RFC 9110, 13.1.3.
    pub if_modified_since: Option<T>,
    /// RFC 9110, 13.1.4.
    pub if_unmodified_since: Option<T>,
    /// RFC 9110, 12.5.3.
    pub accept_encoding: LinesOf<T>,
    /// RFC 9110, 12.5.1.
    pub accept: LinesOf<T>,
    /// RFC 9110, 12.5.4.
    pub accept_language: LinesOf<T>,
    /// RFC 9110, 12.5.2.
    pub accept_charset: LinesOf<T>,
    /// RFC 6454, 7.
    pub origin: Option<T>,
    /// Whether this is a CORS preflight (Fetch, 3.2.2): `Access-Control-Request-Method` is present.
    pub is_preflight: bool,
    /// RFC 9110, 11.6.2.
    pub authorization: Option<T>,
    /// RFC 9110, 10.1.3.
    pub referer: Option<T>,
    /// RFC 9110, 10.1.5.
    pub user_agent: Option<T>,
    /// The bytes of its head, for [`fields`].
    pub head: T,
}

/// A request borrowed from the bytes it was parsed from.
pub type Request<'a> = RequestOf<&'a [u8]>;

impl<T> RequestOf<T> {
    fn map<U>(&self, part: &impl Fn(&T) -> U) -> RequestOf<U> {
        RequestOf {
            method: self.method,
            method_text: part(&self.method_text),
            target_text: part(&self.target_text),
            target: self.target.map(part),
            version: self.version,
            secure: self.secure,
            client: self.client,
            host: part(&self.host),
            keep_alive: self.keep_alive,
            framing: self.framing,
            expectation: self.expectation,
            range: self.range.as_ref().map(part),
            if_range: self.if_range.as_ref().map(part),
            if_match: self.if_match.map(part),
            if_none_match: self.if_none_match.map(part),
            if_modified_since: self.if_modified_since.as_ref().map(part),
            if_unmodified_since: self.if_unmodified_since.as_ref().map(part),
            accept_encoding: self.accept_encoding.map(part),
            accept: self.accept.map(part),
            accept_language: self.accept_language.map(part),
            accept_charset: self.accept_charset.map(part),
            origin: self.origin.as_ref().map(part),
            is_preflight: self.is_preflight,
            authorization: self.authorization.as_ref().map(part),
            referer: self.referer.as_ref().map(part),
            user_agent: self.user_agent.as_ref().map(part),
            head: part(&self.head),
        }
    }
}

impl Request<'_> {
    /// Whether it asks for a tunnel to what its path names (RFC 8441, 4), so that any 2xx status would open one.
    pub fn is_extended_connect(&self) -> bool {
        self.method == Some(Method::Connect) && matches!(self.target, Target::Origin { .. })
    }
}

/// Offset and length of a part of a head. [`HeadLimits`] are far below 4 GiB.
#[derive(Clone, Copy, Debug)]
struct Span {
    start: u32,
    length: u32,
}

impl Span {
    /// Locates `part` in `head`; an arbitrary empty span if `part` is empty or not from `head`.
    fn of(part: &[u8], head: &[u8]) -> Span {
        let start = part.as_ptr().addr().wrapping_sub(head.as_ptr().addr());
        match (u32::try_from(start), u32::try_from(part.len())) {
            (Ok(at), Ok(length)) if start.checked_add(part.len()).is_some_and(|end| end <= head.len()) => {
                Span { start: at, length }
            }
            _ => Span { start: 0, length: 0 },
        }
    }

    fn in_head(self, head: &[u8]) -> &[u8] {
        let (start, length) = (self.start as usize, self.length as usize);
        head.get(start..start + length).unwrap_or_default()
    }
}

/// A request that outlives the receive buffer: a copy of its head and
/// the spans of its parts, so that it need not be parsed again.
#[derive(Debug)]
pub struct OwnedRequest {
    head: Box<[u8]>,
    parts: RequestOf<Span>,
}

impl OwnedRequest {
    /// Copies a request; `head` is the bytes it was parsed from.
    pub fn new(request: &Request<'_>, head: &[u8]) -> OwnedRequest {
        OwnedRequest { head: head.into(), parts: request.map(&|part| Span::of(part, head)) }
    }

    /// The request.
    pub fn request(&self) -> Request<'_> {
        self.parts.map(&|span| span.in_head(&self.head))
    }

    /// The bytes of its head.
    pub fn head(&self) -> &[u8] {
        &self.head
    }
}

/// Why a head is rejected. The connection cannot be reused: the start of the next request is unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadHead {
    /// The status of the response.
    pub status: Status,
    /// The reason, for the author of the client.
    pub why: &'static str,
}

const fn bad(why: &'static str) -> BadHead {
    BadHead { status: Status::BAD_REQUEST, why }
}

/// Parses one head at the start of `bytes`.
///
/// `Ok(None)` needs more bytes. `Ok(Some)` is the request and the length of its head. The caller must have skipped
/// empty lines before it, see [`blank_lines`].
///
/// # Errors
/// [`BadHead`] as soon as no further byte can repair the head.
pub fn parse<'a>(bytes: &'a [u8], limits: &HeadLimits) -> Result<Option<(Request<'a>, usize)>, BadHead> {
    let Some(end) = find_end(bytes, limits)? else {
        return Ok(None);
    };
    let head = &bytes[..end];

    let mut headers = [const { MaybeUninit::uninit() }; FIELDS_MAX];
    let mut parsed = httparse::Request::new(&mut []);
    match parsed.parse_with_uninit_headers(head, &mut headers) {
        Ok(httparse::Status::Complete(_)) => {}
        Ok(httparse::Status::Partial) => return Err(bad("incomplete request head")),
        Err(httparse::Error::Version) if has_later_minor(head) => {
            return Ok(Some((parse_as_1_1(head, Version::Http11, limits)?, end)));
        }
        Err(error) => return Err(explain(error, head)),
    }
    let (Some(method_text), Some(target_text), Some(minor)) = (parsed.method, parsed.path, parsed.version) else {
        return Err(bad("incomplete request line"));
    };
    let version = if minor == 0 { Version::Http10 } else { Version::Http11 };
    let request = settle(method_text.as_bytes(), target_text.as_bytes(), version, pairs(parsed.headers), limits)?;
    Ok(Some((Request { head, ..request }, end)))
}

/// Whether the request line ends with a version of HTTP/1 later than 1.1.
fn has_later_minor(head: &[u8]) -> bool {
    let line = head.split(|&b| b == b'\r').next().unwrap_or(head);
    matches!(line, [.., b' ', b'H', b'T', b'T', b'P', b'/', b'1', b'.', b'2'..=b'9'])
}

/// Parses a whole head of any version that the server has written itself: one that it has parsed before, or made of such
/// a one. HTTP/2 has this form in the server only, see `h2::head`.
///
/// # Errors
/// [`BadHead`], as [`parse`].
pub fn parse_own<'a>(head: &'a [u8], limits: &HeadLimits) -> Result<Request<'a>, BadHead> {
    if memchr::memchr(b'\r', head).is_some_and(|end| head[..end].ends_with(b" HTTP/2.0")) {
        return parse_as_1_1(head, Version::Http2, limits);
    }
    match parse(head, limits)? {
        Some((request, length)) if length == head.len() => Ok(request),
        _ => Err(bad("not exactly one request head")),
    }
}

/// Parses a head whose version httparse rejects: it gets the line with version 1.1, and the fields separately.
/// RFC 9110, 6.2: a message of a later minor version is processed as the highest known one.
fn parse_as_1_1<'a>(head: &'a [u8], version: Version, limits: &HeadLimits) -> Result<Request<'a>, BadHead> {
    let line_end = memchr::memchr(b'\r', head).map_or(head.len(), |end| end + 2).min(head.len());
    let mut line = head[..line_end].to_vec();
    if let Some(number) = line_end.checked_sub(b"1.1\r\n".len()).and_then(|at| line.get_mut(at..at + 3)) {
        number.copy_from_slice(b"1.1");
    }
    line.extend_from_slice(b"\r\n");
    let mut parsed = httparse::Request::new(&mut []);
    match parsed.parse(&line) {
        Ok(httparse::Status::Complete(_)) => {}
        Ok(httparse::Status::Partial) => return Err(bad("incomplete request line")),
        Err(error) => return Err(explain(error, &line)),
    }
    let (method_length, target_length) = (parsed.method.map_or(0, str::len), parsed.path.map_or(0, str::len));
    let target_text = &head[method_length + 1..method_length + 1 + target_length];
    let mut headers = [httparse::EMPTY_HEADER; FIELDS_MAX];
    match httparse::parse_headers(&head[line_end..], &mut headers) {
        Ok(httparse::Status::Complete((length, fields))) if line_end + length == head.len() => {
            let request = settle(&head[..method_length], target_text, version, pairs(fields), limits)?;
            Ok(Request { head, ..request })
        }
        Ok(_) => Err(bad("not exactly one request head")),
        Err(error) => Err(explain(error, head)),
    }
}

fn pairs<'a>(fields: &[httparse::Header<'a>]) -> impl ExactSizeIterator<Item = (&'a [u8], &'a [u8])> {
    fields.iter().map(|field| (field.name.as_bytes(), field.value))
}

const HTTPS: &[u8] = b"https://";

/// Builds a request from its parts.
pub(crate) fn settle<'a>(
    method_text: &'a [u8],
    target_text: &'a [u8],
    version: Version,
    fields: impl ExactSizeIterator<Item = (&'a [u8], &'a [u8])>,
    limits: &HeadLimits,
) -> Result<Request<'a>, BadHead> {
    if fields.len() > limits.fields {
        return Err(BadHead { status: Status::HEAD_TOO_LARGE, why: "too many header fields" });
    }
    let method = Method::from_token(method_text);
    let is_https = target_text.len() > HTTPS.len() && target_text[..HTTPS.len()].eq_ignore_ascii_case(HTTPS);
    if is_https && !limits.secure {
        // RFC 9110, 7.4 and 15.5.20: only a connection with TLS has authority over an https URI.
        let why = "https URL on a connection without TLS";
        return Err(BadHead { status: Status::MISDIRECTED_REQUEST, why });
    }
    // RFC 8441, 4: in HTTP/2, the target of CONNECT may be a path, which no authority begins with.
    let is_extended = version == Version::Http2 && target_text.starts_with(b"/");
    let target = Target::parse(target_text, method == Some(Method::Connect) && !is_extended)
        .ok_or(bad("the request target must be a path or an http URL"))?;
    // RFC 9112, 3.2.4: the asterisk form is valid for OPTIONS only.
    if matches!(target, Target::Asterisk) && method != Some(Method::Options) {
        return Err(bad("the target * requires the method OPTIONS"));
    }

    let mut request = Request {
        method,
        method_text,
        target_text,
        target,
        version,
        secure: limits.secure,
        client: None,
        host: b"",
        keep_alive: version != Version::Http10,
        framing: Framing::None,
        expectation: Expectation::None,
        range: None,
        if_range: None,
        if_match: Lines::default(),
        if_none_match: Lines::default(),
        if_modified_since: None,
        if_unmodified_since: None,
        accept_encoding: Lines::default(),
        accept: Lines::default(),
        accept_language: Lines::default(),
        accept_charset: Lines::default(),
        origin: None,
        is_preflight: false,
        authorization: None,
        referer: None,
        user_agent: None,
        head: b"",
    };
    let mut seen = Seen::default();
    for (name, value) in fields {
        take_field(&mut request, &mut seen, name, value)?;
    }
    settle_host(&mut request, &seen)?;
    settle_framing(&mut request, &seen)?;
    settle_connection(&mut request, &seen);
    Ok(request)
}

/// Iterates over all fields of a head that [`parse`] has accepted, in order, with their values trimmed.
pub fn fields(head: &[u8]) -> impl Iterator<Item = (&[u8], &[u8])> {
    let lines = head.split(|&byte| byte == b'\n').skip(1);
    lines.filter_map(|line| {
        let colon = memchr::memchr(b':', line)?;
        let value = line[colon + 1..].strip_suffix(b"\r").unwrap_or(&line[colon + 1..]);
        Some((&line[..colon], trim_ows(value)))
    })
}

/// The length of the empty lines at the start of `bytes`, which some clients send after a body (RFC 9112, 2.2).
pub fn blank_lines(bytes: &[u8]) -> usize {
    bytes.chunks_exact(2).take_while(|pair| pair == b"\r\n").count() * 2
}

/// Returns the length of the head including its empty line, or `None` until the empty line has arrived.
///
/// Line ends are checked on the way, so that a client that ends lines
/// with a bare LF gets an error at once instead of a timeout.
fn find_end(bytes: &[u8], limits: &HeadLimits) -> Result<Option<usize>, BadHead> {
    // RFC 9110, 5.6.2: a method is a token. This rejects a TLS client on a plain port at its first byte.
    if bytes.first().is_some_and(|&b| !(b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~\r".contains(&b))) {
        return Err(bad("the request does not start with a method"));
    }
    let too_long_line = match memchr::memchr(b' ', &bytes[..bytes.len().min(limits.request_line)]) {
        Some(_) => BadHead { status: Status::URI_TOO_LONG, why: "request line too long" },
        // RFC 9112, 3: SHOULD, for a method longer than any implemented one.
        None => BadHead { status: Status::NOT_IMPLEMENTED, why: "unknown method" },
    };
    let too_many_fields = BadHead { status: Status::HEAD_TOO_LARGE, why: "too many header fields" };
    let too_long_head = BadHead { status: Status::HEAD_TOO_LARGE, why: "request header fields too long" };
    let mut line_start = 0;
    for (line, newline) in memchr::memchr_iter(b'\n', bytes).enumerate() {
        // Check lengths first, so that the verdict does not depend on how the bytes are split into reads.
        if line_start == 0 && newline + 1 > limits.request_line {
            return Err(too_long_line);
        }
        if newline + 1 > limits.head {
            return Err(too_long_head);
        }
        if newline == 0 || bytes[newline - 1] != b'\r' {
            return Err(bad("line ends with LF instead of CR LF"));
        }
        if newline == line_start + 1 && line_start > 0 {
            return Ok(Some(newline + 1));
        }
        // Check before the end has arrived: a head sent byte by byte is
        // scanned again with each byte, and 8000 lines took 680 ms in all.
        if line > limits.fields {
            return Err(too_many_fields);
        }
        line_start = newline + 1;
    }
    if line_start == 0 && bytes.len() >= limits.request_line {
        return Err(too_long_line);
    }
    if bytes.len() >= limits.head {
        return Err(too_long_head);
    }
    Ok(None)
}

fn explain(error: httparse::Error, head: &[u8]) -> BadHead {
    match error {
        httparse::Error::TooManyHeaders => BadHead { status: Status::HEAD_TOO_LARGE, why: "too many header fields" },
        httparse::Error::Version => {
            let line = head.split(|&b| b == b'\r').next().unwrap_or(head);
            let version = line.rsplit(|&b| b == b' ').next().unwrap_or(line);
            // RFC 9112, 2.3: HTTP-version = "HTTP/" DIGIT "." DIGIT. Another version of this form is an unsupported
            // major version (RFC 9110, 15.6.6); anything else is not a version.
            match version {
                b"HTTP/1.0" | b"HTTP/1.1" => bad("the request line has more than three parts"),
                [b'H', b'T', b'T', b'P', b'/', major, b'.', minor]
                    if major.is_ascii_digit() && minor.is_ascii_digit() =>
                {
                    BadHead { status: Status::VERSION_NOT_SUPPORTED, why: "unsupported HTTP version; use HTTP/1.1" }
                }
                _ => bad("the request line must end with an HTTP version"),
            }
        }
        httparse::Error::HeaderName => bad("malformed header name, or a header line that begins with a space"),
        httparse::Error::HeaderValue => bad("invalid character in a header value"),
        httparse::Error::NewLine => bad("line does not end with CR LF"),
        httparse::Error::Token | httparse::Error::Status => bad("malformed request line"),
    }
}

/// Fields that are evaluated together once all lines are read.
#[derive(Default)]
struct Seen<'a> {
    host: Option<&'a [u8]>,
    host_doubled: bool,
    content_length: Option<&'a [u8]>,
    content_length_doubled: bool,
    transfer_encoding: Lines<'a>,
    close: bool,
    keep_alive: bool,
}

fn take_field<'a>(request: &mut Request<'a>, seen: &mut Seen<'a>, name: &[u8], value: &'a [u8]) -> Result<(), BadHead> {
    // Compare lengths first: one comparison of a few bytes for a known field, none for most unknown ones.
    let is = |known: &str| name.eq_ignore_ascii_case(known.as_bytes());
    match name.len() {
        4 if is("Host") => {
            seen.host_doubled |= seen.host.is_some();
            seen.host = Some(value);
        }
        5 if is("Range") => set_once(&mut request.range, value),
        6 if is("Accept") => request.accept.push(value),
        6 if is("Origin") => set_once(&mut request.origin, value),
        29 if is("Access-Control-Request-Method") => request.is_preflight = true,
        6 if is("Expect") => {
            // RFC 9110, 5.6.1: empty list members are ignored.
            for member in value.split(|&byte| byte == b',').map(trim_ows).filter(|member| !member.is_empty()) {
                request.expectation = match member.eq_ignore_ascii_case(b"100-continue") {
                    true if request.expectation != Expectation::Unknown => Expectation::Continue,
                    _ => Expectation::Unknown,
                };
            }
        }
        7 if is("Referer") => set_once(&mut request.referer, value),
        8 if is("If-Match") => request.if_match.push(value),
        8 if is("If-Range") => set_once(&mut request.if_range, value),
        10 if is("Connection") => {
            for token in value.split(|&b| b == b',').map(trim_ows) {
                seen.close |= token.eq_ignore_ascii_case(b"close");
                seen.keep_alive |= token.eq_ignore_ascii_case(b"keep-alive");
            }
        }
        10 if is("User-Agent") => set_once(&mut request.user_agent, value),
        13 if is("Authorization") => set_only(&mut request.authorization, value)?,
        13 if is("If-None-Match") => request.if_none_match.push(value),
        14 if is("Content-Length") => {
            seen.content_length_doubled |= seen.content_length.is_some();
            seen.content_length = Some(value);
        }
        14 if is("Accept-Charset") => request.accept_charset.push(value),
        15 if is("Accept-Encoding") => request.accept_encoding.push(value),
        15 if is("Accept-Language") => request.accept_language.push(value),
        17 if is("If-Modified-Since") => set_once(&mut request.if_modified_since, value),
        17 if is("Transfer-Encoding") => seen.transfer_encoding.push(value),
        19 if is("If-Unmodified-Since") => set_once(&mut request.if_unmodified_since, value),
        _ => {}
    }
    Ok(())
}

/// Sets a field that is not a list; of duplicates the first line counts, as in most servers.
fn set_once<'a>(field: &mut Option<&'a [u8]>, value: &'a [u8]) {
    if field.is_none() {
        *field = Some(value);
    }
}

/// Sets Authorization, which must be unique: servers differ in which
/// of two counts, and requests pass through several servers.
fn set_only<'a>(field: &mut Option<&'a [u8]>, value: &'a [u8]) -> Result<(), BadHead> {
    match field.replace(value) {
        None => Ok(()),
        Some(_) => Err(bad("more than one Authorization field")),
    }
}

/// RFC 9112, 3.2: exactly one valid Host in HTTP/1.1; RFC 9112, 3.2.2: the host of an absolute target takes precedence.
fn settle_host<'a>(request: &mut Request<'a>, seen: &Seen<'a>) -> Result<(), BadHead> {
    if seen.host_doubled {
        return Err(bad("more than one Host field"));
    }
    if seen.host.is_none() {
        match request.version {
            Version::Http10 => {}
            Version::Http11 => return Err(bad("HTTP/1.1 requires a Host field")),
            Version::Http2 => return Err(bad("HTTP/2 requires :authority or a Host field")),
        }
    }
    if let Some(value) = seen.host {
        request.host = uri::host_of(value).ok_or(bad("invalid host name in the Host field"))?.name;
    }
    match request.target {
        Target::Absolute { authority, .. } | Target::Authority(authority) => {
            request.host = uri::host_of(authority).ok_or(bad("invalid host name in the request target"))?.name;
        }
        Target::Origin { .. } | Target::Asterisk => {}
    }
    Ok(())
}

/// RFC 9112, 6.1 to 6.3.
fn settle_framing<'a>(request: &mut Request<'a>, seen: &Seen<'a>) -> Result<(), BadHead> {
    if seen.transfer_encoding.is_present() {
        if seen.content_length.is_some() {
            return Err(bad("both Content-Length and Transfer-Encoding"));
        }
        // RFC 9112, 6.1: HTTP/1.0 has no transfer codings, so the framing of such a message cannot be trusted.
        if request.version == Version::Http10 {
            return Err(bad("Transfer-Encoding in HTTP/1.0"));
        }
        let mut codings = seen.transfer_encoding.iter().flat_map(|line| line.split(|&b| b == b',')).map(trim_ows);
        let chunked = |coding: &[u8]| coding.eq_ignore_ascii_case(b"chunked");
        return match (codings.next(), codings.last()) {
            (Some(only), None) if chunked(only) => {
                request.framing = Framing::Chunked;
                Ok(())
            }
            (Some(first), Some(last)) if chunked(last) && !chunked(first) => {
                Err(BadHead { status: Status::NOT_IMPLEMENTED, why: "unsupported transfer coding; use chunked" })
            }
            _ => Err(bad("Transfer-Encoding must end with a single chunked")),
        };
    }
    if seen.content_length_doubled {
        return Err(bad("more than one Content-Length field"));
    }
    if let Some(value) = seen.content_length {
        // RFC 9110, 8.6: Content-Length = 1*DIGIT: no sign and no list.
        if value.is_empty() || !value.iter().all(u8::is_ascii_digit) {
            return Err(bad("Content-Length is not a number"));
        }
        let digits = core::str::from_utf8(value).map_err(|_| bad("Content-Length is not a number"))?;
        let length = digits
            .parse::<u64>()
            .map_err(|_| BadHead { status: Status::CONTENT_TOO_LARGE, why: "Content-Length is too large" })?;
        request.framing = if length == 0 { Framing::None } else { Framing::Length(length) };
    }
    Ok(())
}

/// RFC 9112, 9.3.
fn settle_connection(request: &mut Request<'_>, seen: &Seen<'_>) {
    request.keep_alive = !seen.close && (request.version != Version::Http10 || seen.keep_alive);
    // RFC 9110, 10.1.1: an expectation in HTTP/1.0 is ignored.
    if request.version == Version::Http10 {
        request.expectation = Expectation::None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::format;
    use alloc::string::String;

    const LIMITS: HeadLimits = HeadLimits { request_line: 200, head: 1000, fields: 10, secure: false };

    fn status(text: &str) -> u16 {
        let bytes = &text.as_bytes()[blank_lines(text.as_bytes())..];
        match parse(bytes, &LIMITS) {
            Ok(Some((_, used))) => {
                assert_eq!(used, bytes.len(), "{text:?}");
                200
            }
            Ok(None) => 0,
            Err(bad) => bad.status.0,
        }
    }

    #[test]
    fn iterator_yields_all_fields() {
        let head = b"GET / HTTP/1.1\r\nHost: a\r\nX:\r\nY:  b:c \r\n\r\n";
        let found: Vec<(&[u8], &[u8])> = fields(head).collect();
        assert_eq!(found, [(&b"Host"[..], &b"a"[..]), (b"X", b""), (b"Y", b"b:c")]);
    }

    #[test]
    fn valid_headers_parse_and_invalid_ones_fail() {
        let check = |text: &str, expected: u16| assert_eq!(status(text), expected, "{text:?}");
        check("GET / HTTP/1.1\r\nHost: a\r\n\r\n", 200);
        check("\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n", 200);
        check("GET / HTTP/1.0\r\n\r\n", 200);
        check("GET http://a.example/x HTTP/1.1\r\nHost: b\r\n\r\n", 200);
        check("OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n", 200);
        check("GET / HTTP/1.1\r\nHost:\r\n\r\n", 200);
        check("BREW / HTTP/1.1\r\nHost: a\r\n\r\n", 200);
        // Incomplete.
        check("", 0);
        check("\r", 0);
        check("GET / HTTP/1.1\r\nHost: a\r\n", 0);
        check("GET / HTTP/1.1\r\nHost: a\r\n\r", 0);
        // RFC 9112, 3.2: Host.
        check("GET / HTTP/1.1\r\n\r\n", 400);
        check("GET / HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n", 400);
        check("GET / HTTP/1.0\r\nHost: a\r\nHost: b\r\n\r\n", 400);
        check("GET / HTTP/1.1\r\nHost: a b\r\n\r\n", 400);
        check("GET / HTTP/1.1\r\nHost: user@a\r\n\r\n", 400);
        // Request line.
        check("GET * HTTP/1.1\r\nHost: a\r\n\r\n", 400);
        check("GET x HTTP/1.1\r\nHost: a\r\n\r\n", 400);
        check("GET ftp://a/ HTTP/1.1\r\nHost: a\r\n\r\n", 400);
        check("GET  / HTTP/1.1\r\nHost: a\r\n\r\n", 400);
        check("GET /a b HTTP/1.1\r\nHost: a\r\n\r\n", 400);
        check("GET /\r\nHost: a\r\n\r\n", 400);
        check("GET / HTTP/2.0\r\nHost: a\r\n\r\n", 505);
        check("GET / HTTP/1.7\r\nHost: a\r\n\r\n", 200);
        check("GET /x HTTP/1.7\r\n\r\n", 400);
        check("GET /a b HTTP/1.7\r\nHost: a\r\n\r\n", 400);
        check("GET / HTTP/1.7\r\nHost : a\r\n\r\n", 400);
        check("GET / http/1.1\r\nHost: a\r\n\r\n", 400);
        check("GET / HTTP/1.10\r\nHost: a\r\n\r\n", 400);
        check("G(T / HTTP/1.1\r\nHost: a\r\n\r\n", 400);
        check("\u{16}\u{3}\u{1}", 400);
        // RFC 9112, 5.1 and 5.2: spaces and folding. 2.2: line ends.
        check("GET / HTTP/1.1\r\nHost : a\r\n\r\n", 400);
        check("GET / HTTP/1.1\r\n Host: a\r\n\r\n", 400);
        check("GET / HTTP/1.1\r\nHost: a\r\nX: 1\r\n 2\r\n\r\n", 400);
        check("GET / HTTP/1.1\r\nHost: a\r\nX: 1\r2\r\n\r\n", 400);
        check("GET / HTTP/1.1\r\nHost: a\r\nX: \0\r\n\r\n", 400);
        check("GET / HTTP/1.1\nHost: a\n\n", 400);
        check("GET / HTTP/1.1\r\nHost: a\n", 400);
        check("GET / HTTP/1.1\r\nHost: a\r\nNo colon\r\n\r\n", 400);
        check("GET / HTTP/1.1\r\nHost: a\r\n: x\r\n\r\n", 400);
        // Framing.
        let framed = |fields: &str| format!("GET / HTTP/1.1\r\nHost: a\r\n{fields}\r\n\r\n");
        check(&framed("Content-Length: 5"), 200);
        check(&framed("Content-Length: 5\r\nContent-Length: 5"), 400);
        check(&framed("Content-Length: 5\r\nContent-Length: 6"), 400);
        for odd in ["", "+5", "-5", "5,5", "0x5", "5 5", "five", "５"] {
            check(&framed(&format!("Content-Length: {odd}")), 400);
        }
        check(&framed("Content-Length: 99999999999999999999999"), 413);
        check(&framed("Transfer-Encoding: chunked"), 200);
        check(&framed("Transfer-Encoding: Chunked"), 200);
        check(&framed("Transfer-Encoding: chunked\r\nContent-Length: 5"), 400);
        check(&framed("Transfer-Encoding: chunked, chunked"), 400);
        check(&framed("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked"), 400);
        check(&framed("Transfer-Encoding: gzip, chunked"), 501);
        check(&framed("Transfer-Encoding: gzip"), 400);
        check(&framed("Transfer-Encoding: xchunked"), 400);
        check(&framed("Transfer-Encoding: chunked, identity"), 400);
        check("GET / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n", 400);
    }

    #[test]
    fn owned_request_equals_parsed_request() {
        let fields = "Host: a:80\r\nAccept: b\r\nAccept: c,d\r\nAccept-Encoding:\r\nIf-None-Match: \"e\"\r\nRange: f\r\n\
            Authorization: g h\r\nReferer: i\r\nUser-Agent: j\r\nOrigin: null\r\nIf-Modified-Since: k\r\n";
        let lines = [
            "GET /a/%20b?c=d HTTP/1.1\r\n",
            "POST http://l:81/m?n HTTP/1.1\r\nContent-Length: 7\r\n",
            "OPTIONS * HTTP/1.0\r\n",
            "CONNECT o:443 HTTP/1.1\r\nExpect: 100-continue\r\n",
            "BREW / HTTP/1.7\r\n",
        ];
        let limits = HeadLimits { fields: 20, ..LIMITS };
        for line in lines {
            let head = format!("{line}{fields}\r\n").into_bytes();
            let (request, length) = parse(&head, &limits).unwrap().unwrap();
            let owned = OwnedRequest::new(&request, &head[..length]);
            assert_eq!(format!("{:?}", owned.request()), format!("{request:?}"));
            assert_eq!(owned.head(), &head[..length]);
        }
    }

    #[test]
    fn later_minor_version_is_treated_as_1_1() {
        let text = |version| format!("HEAD /x?y HTTP/{version}\r\nHost: a\r\nContent-Length: 5\r\nRange: z\r\n\r\n");
        let (known, later) = (text("1.1"), text("1.9"));
        let [known, later] = [&known, &later].map(|text| {
            let (request, length) = parse(text.as_bytes(), &LIMITS).ok().flatten().expect("good");
            (Request { head: b"", ..request }, length)
        });
        assert_eq!(format!("{known:?}"), format!("{later:?}"));
    }

    #[test]
    fn limits_apply_to_incomplete_header() {
        let long_line = format!("GET /{} HTTP/1.1\r\n", "a".repeat(300));
        assert_eq!(status(&long_line), 414);
        assert_eq!(status(&long_line[..200]), 414);
        assert_eq!(status(&long_line[..199]), 0);
        let long_head = format!("GET / HTTP/1.1\r\nHost: a\r\nX: {}\r\n\r\n", "a".repeat(1000));
        assert_eq!(status(&long_head), 431);
        assert_eq!(status(&long_head[..1000]), 431);
        let fields = |n: usize| {
            let mut text = String::from("GET / HTTP/1.1\r\nHost: a\r\n");
            (1..n).for_each(|i| text += &format!("X{i}: y\r\n"));
            text + "\r\n"
        };
        assert_eq!(status(&fields(10)), 200);
        assert_eq!(status(&fields(11)), 431);
    }

    #[test]
    fn every_prefix_of_valid_header_is_incomplete() {
        let text = b"GET /a?b=c HTTP/1.1\r\nHost: example.org:80\r\nConnection: close\r\n\r\n";
        for length in 0..text.len() {
            assert!(matches!(parse(&text[..length], &LIMITS), Ok(None)), "at {length}");
        }
        let (request, used) = parse(text, &LIMITS).ok().flatten().expect("complete");
        assert_eq!((used, request.host, request.keep_alive), (text.len(), &b"example.org"[..], false));
    }

    #[test]
    fn persistence_follows_version_and_connection() {
        let check = |version: &str, connection: &str, expected: bool| {
            let text = format!("GET / HTTP/{version}\r\nHost: a\r\n{connection}\r\n");
            let (request, _) = parse(text.as_bytes(), &LIMITS).ok().flatten().expect("complete");
            assert_eq!(request.keep_alive, expected, "{text:?}");
        };
        check("1.1", "", true);
        check("1.1", "Connection: keep-alive, Close\r\n", false);
        check("1.0", "", false);
        check("1.0", "Connection: Keep-Alive\r\n", true);
        check("1.0", "Connection: keep-alive\r\nConnection: close\r\n", false);
    }

    #[test]
    fn repeated_list_fields_are_joined() {
        let text = b"GET / HTTP/1.1\r\nHost: a\r\nIf-None-Match: \"a\"\r\nif-none-match: \"b\"\r\n\r\n";
        let (request, _) = parse(text, &LIMITS).ok().flatten().expect("complete");
        assert_eq!(request.if_none_match.iter().collect::<Vec<_>>(), [b"\"a\"", b"\"b\""]);
    }

    #[test]
    fn too_many_fields_are_rejected_before_header_ends() {
        let check = |fields: usize, expected: Option<Status>| {
            let head = format!("GET / HTTP/1.1\r\n{}", "A: b\r\n".repeat(fields));
            assert_eq!(parse(head.as_bytes(), &LIMITS).err().map(|bad| bad.status), expected, "{fields} fields");
        };
        check(10, None);
        check(11, Some(Status::HEAD_TOO_LARGE));
    }
}
