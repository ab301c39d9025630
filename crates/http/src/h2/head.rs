//! The head of a request in HTTP/2, written as HTTP/1 would write it.
//!
//! Before it, [`super::hpack`] has decoded the fields; after it, `core/exchange` (stop 5) answers the request, as one
//! of HTTP/1: the environment of applications, stored requests, local redirects and the log work from these bytes.
//! What HTTP/2 forbids is rejected before anything is written. So the flat form is unambiguous: no name or value can
//! contain a line end, and no field of a connection survives that a server behind this one could act on (RFC 9113, 10.3).

use alloc::vec::Vec;

use super::CONNECTION_FIELDS;
use super::fields::FieldList;
use crate::h1::request::{self, BadHead, Framing, HeadLimits, Request, Version};
use crate::status::Status;
use crate::text::byte_set;
use crate::uri;

/// Why a request is malformed: an error of the stream, PROTOCOL_ERROR (RFC 9113, 8.1.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed {
    /// The reason, for the author of the client.
    pub why: &'static str,
}

const fn malformed(why: &'static str) -> Malformed {
    Malformed { why }
}

/// A request head in the form of HTTP/1: `GET /path HTTP/2.0`, `host: a`, the other fields, and an empty line.
///
/// It is reused: [`Self::fill`] replaces the head and keeps the memory.
#[derive(Clone, Debug, Default)]
pub struct FlatHead {
    bytes: Vec<u8>,
    fields: Vec<Span>,
    method_length: usize,
    target_length: usize,
    end_stream: bool,
    content_length: bool,
    is_extended_connect: bool,
}

/// Where a field is in the flat form.
#[derive(Clone, Copy, Debug)]
struct Span {
    start: u32,
    name: u32,
    end: u32,
}

/// The pseudo-fields of a request (RFC 9113, 8.3.1).
#[derive(Default)]
struct Pseudo<'a> {
    method: Option<&'a [u8]>,
    scheme: Option<&'a [u8]>,
    authority: Option<&'a [u8]>,
    path: Option<&'a [u8]>,
    /// RFC 8441, 4.
    protocol: Option<&'a [u8]>,
}

impl FlatHead {
    /// An empty head, without allocated memory.
    pub fn new() -> FlatHead {
        FlatHead::default()
    }

    /// Checks the fields of a request (RFC 9113, 8.2 and 8.3), and writes its flat form. `end_stream`: the head is the
    /// whole request.
    ///
    /// # Errors
    /// [`Malformed`]: an error of the stream. Then the head is empty.
    pub fn fill(&mut self, fields: &FieldList, end_stream: bool) -> Result<(), Malformed> {
        self.bytes.clear();
        self.fields.clear();
        (self.end_stream, self.content_length, self.is_extended_connect) = (end_stream, false, false);
        let filled = self.write(fields);
        if filled.is_err() {
            self.bytes.clear();
            self.fields.clear();
        }
        filled
    }

    fn write(&mut self, list: &FieldList) -> Result<(), Malformed> {
        let mut fields = list.iter();
        let (pseudo, first) = Pseudo::take(&mut fields)?;
        self.write_request_line(&pseudo)?;
        if let Some(authority) = pseudo.authority {
            self.push_field(b"host", authority);
        }
        if let Some(protocol) = pseudo.protocol {
            // As HTTP/1.1 asks for another protocol (RFC 9110, 7.8). A client cannot send these fields itself.
            self.is_extended_connect = true;
            self.push_field(b"connection", b"upgrade");
            self.push_field(b"upgrade", protocol);
        }
        let mut has_cookie = false;
        let mut next = first;
        while let Some((name, value)) = next {
            check_field(name, value)?;
            match name {
                b"host" if pseudo.authority.is_some() => {
                    if !pseudo.authority.is_some_and(|authority| are_same_host(authority, value, pseudo.scheme)) {
                        return Err(malformed(":authority and Host differ"));
                    }
                }
                b"cookie" if has_cookie => {}
                b"cookie" => {
                    has_cookie = true;
                    self.push_cookie(list);
                }
                b"content-length" => {
                    self.check_content_length(value)?;
                    self.push_field(name, value);
                }
                _ => self.push_field(name, value),
            }
            next = fields.next();
        }
        self.bytes.extend_from_slice(b"\r\n");
        Ok(())
    }

    fn write_request_line(&mut self, pseudo: &Pseudo<'_>) -> Result<(), Malformed> {
        let (method, target) = pseudo.check()?;
        (self.method_length, self.target_length) = (method.len(), target.len());
        for part in [method, b" ", target, b" ", Version::Http2.name().as_bytes(), b"\r\n"] {
            self.bytes.extend_from_slice(part);
        }
        Ok(())
    }

    fn push_field(&mut self, name: &[u8], value: &[u8]) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(name);
        self.bytes.extend_from_slice(b": ");
        self.bytes.extend_from_slice(value);
        self.end_field(start, name.len());
    }

    /// RFC 9113, 8.2.3: a client may split a cookie; what follows HTTP/2 expects one.
    fn push_cookie(&mut self, list: &FieldList) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(b"cookie: ");
        let crumbs = list.iter().filter_map(|(name, value)| (name == b"cookie").then_some(value));
        for (at, crumb) in crumbs.enumerate() {
            self.bytes.extend_from_slice(if at == 0 { b"" } else { b"; " });
            self.bytes.extend_from_slice(crumb);
        }
        self.end_field(start, b"cookie".len());
    }

    fn end_field(&mut self, start: usize, name: usize) {
        // A field list is far below 4 GiB.
        self.fields.push(Span { start: start as u32, name: name as u32, end: self.bytes.len() as u32 });
        self.bytes.extend_from_slice(b"\r\n");
    }

    fn check_content_length(&mut self, value: &[u8]) -> Result<(), Malformed> {
        if self.content_length || value.is_empty() || !value.iter().all(u8::is_ascii_digit) {
            return Err(malformed("content-length is not one number"));
        }
        if self.is_extended_connect {
            return Err(malformed("content-length of a tunnel"));
        }
        self.content_length = true;
        // RFC 9113, 8.1.1: it must equal the bytes of all DATA frames, of which there are none.
        match self.end_stream && value.iter().any(|&digit| digit != b'0') {
            true => Err(malformed("content-length without content")),
            false => Ok(()),
        }
    }

    /// The request. Its framing is `None` without content, `Length` with a content-length above 0,
    /// and `Chunked` with content of unknown length. An extended CONNECT has none: DATA frames belong to its tunnel.
    ///
    /// # Errors
    /// [`BadHead`] if the request is well-formed for HTTP/2, but refused with a status, as in HTTP/1.
    pub fn request<'a>(&'a self, limits: &HeadLimits) -> Result<Request<'a>, BadHead> {
        let line_end = self.method_length + self.target_length + b"  HTTP/2.0\r\n".len();
        if line_end > limits.request_line {
            return Err(BadHead { status: Status::URI_TOO_LONG, why: "request line too long" });
        }
        if self.bytes.len() > limits.head {
            return Err(BadHead { status: Status::HEAD_TOO_LARGE, why: "request header fields too long" });
        }
        let (method, rest) = self.bytes.split_at_checked(self.method_length).unwrap_or_default();
        let target = rest.get(1..=self.target_length).unwrap_or_default();
        let fields = self.fields.iter().map(|span| {
            let (name, value) = self.bytes[span.start as usize..span.end as usize].split_at(span.name as usize);
            (name, &value[b": ".len()..])
        });
        let mut request = request::settle(method, target, Version::Http2, fields, limits)?;
        if !self.end_stream && !self.content_length && !self.is_extended_connect {
            request.framing = Framing::Chunked;
        }
        request.head = &self.bytes;
        Ok(request)
    }

    /// The flat form; empty before the first request and after a malformed one.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Allocated bytes.
    pub fn heap_bytes(&self) -> usize {
        self.bytes.capacity() + self.fields.capacity() * size_of::<Span>()
    }
}

/// Name and value.
type Field<'a> = (&'a [u8], &'a [u8]);

impl<'a> Pseudo<'a> {
    /// Takes the pseudo-fields from the front; also returns the first field after them.
    fn take(fields: &mut impl Iterator<Item = Field<'a>>) -> Result<(Pseudo<'a>, Option<Field<'a>>), Malformed> {
        let mut pseudo = Pseudo::default();
        for (name, value) in fields {
            let place = match name {
                b":method" => &mut pseudo.method,
                b":scheme" => &mut pseudo.scheme,
                b":authority" => &mut pseudo.authority,
                b":path" => &mut pseudo.path,
                b":protocol" => &mut pseudo.protocol,
                [b':', ..] => return Err(malformed("unknown pseudo-field")),
                _ => return Ok((pseudo, Some((name, value)))),
            };
            if place.replace(value).is_some() {
                return Err(malformed("pseudo-field sent twice"));
            }
        }
        Ok((pseudo, None))
    }

    /// Checks that the pseudo-fields are complete (RFC 9113, 8.3.1, 8.5; RFC 8441, 4), and returns the method and the
    /// target of a request line.
    fn check(&self) -> Result<(&'a [u8], &'a [u8]), Malformed> {
        let method = self.method.filter(|method| !method.is_empty()).ok_or(malformed("no :method"))?;
        if !method.iter().all(|&byte| IS_TOKEN[usize::from(byte)]) {
            return Err(malformed(":method is not a token"));
        }
        if let Some(authority) = self.authority {
            check_value(authority)?;
        }
        if let Some(protocol) = self.protocol {
            // RFC 8441, 4: with it, CONNECT has the other pseudo-fields too.
            let is_token = !protocol.is_empty() && protocol.iter().all(|&byte| IS_TOKEN[usize::from(byte)]);
            if method != b"CONNECT" || self.authority.is_none() || !is_token {
                return Err(malformed(":protocol without CONNECT or :authority, or not a token"));
            }
        } else if method == b"CONNECT" {
            return match (self.scheme, self.path, self.authority) {
                (None, None, Some(authority)) if is_target(authority) => Ok((method, authority)),
                _ => Err(malformed("CONNECT must have :authority and neither :scheme nor :path")),
            };
        }
        if self.scheme.is_none_or(<[u8]>::is_empty) {
            return Err(malformed("no :scheme"));
        }
        let path = self.path.ok_or(malformed("no :path"))?;
        // RFC 9113, 8.3.1: the asterisk is for OPTIONS, which the request checks.
        match path {
            b"*" if self.protocol.is_some() => Err(malformed("invalid :path")),
            [b'/', ..] | b"*" if is_target(path) => Ok((method, path)),
            _ => Err(malformed("invalid :path")),
        }
    }
}

/// Characters of a token (RFC 9110, 5.6.2).
static IS_TOKEN: [bool; 256] =
    byte_set(b"!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ");

/// Characters of a field name, which is in lower case (RFC 9113, 8.2.1).
static IS_NAME: [bool; 256] = byte_set(b"!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyz");

/// Whether a request line can contain it: no space, no control character, and UTF-8, as in HTTP/1.
fn is_target(text: &[u8]) -> bool {
    let is_printable = text.iter().fold(true, |good, &byte| good & (byte > b' ') & (byte != 0x7f));
    !text.is_empty() && is_printable && (text.is_ascii() || core::str::from_utf8(text).is_ok())
}

/// Checks a field that is not a pseudo-field (RFC 9113, 8.2.1 and 8.2.2).
fn check_field(name: &[u8], value: &[u8]) -> Result<(), Malformed> {
    if name.starts_with(b":") {
        return Err(malformed("pseudo-field after another field"));
    }
    if name.is_empty() || !name.iter().all(|&byte| IS_NAME[usize::from(byte)]) {
        return Err(malformed("invalid field name"));
    }
    check_value(value)?;
    match name {
        b"te" if !value.eq_ignore_ascii_case(b"trailers") => Err(malformed("TE other than trailers")),
        _ if CONNECTION_FIELDS.contains(&name) => Err(malformed("field of a connection")),
        _ => Ok(()),
    }
}

/// RFC 9113, 8.2.1, and RFC 9110, 5.5: control characters are as invalid as line ends.
fn check_value(value: &[u8]) -> Result<(), Malformed> {
    // Scan all bytes without an early exit, so that the compiler can vectorise the loop.
    let bad = value.iter().fold(false, |bad, &byte| bad | (byte < b' ' && byte != b'\t') | (byte == 0x7f));
    if bad {
        return Err(malformed("invalid character in a field value"));
    }
    match value {
        [b' ' | b'\t', ..] | [.., b' ' | b'\t'] => Err(malformed("field value begins or ends with a space")),
        _ => Ok(()),
    }
}

/// Whether Host names the same host as `:authority` (RFC 9113, 8.3.1), in any case, with or without the default port.
fn are_same_host(authority: &[u8], host: &[u8], scheme: Option<&[u8]>) -> bool {
    if authority == host {
        return true;
    }
    let default = if scheme == Some(b"https") { 443 } else { 80 };
    match (uri::host_of(authority), uri::host_of(host)) {
        (Some(one), Some(two)) => one.is(two.name) && one.port.unwrap_or(default) == two.port.unwrap_or(default),
        _ => false,
    }
}

/// Checks the trailers of a request, which are read and dropped (RFC 9113, 8.1).
///
/// # Errors
/// [`Malformed`]: an error of the stream.
pub fn check_trailers(fields: &FieldList) -> Result<(), Malformed> {
    fields.iter().try_for_each(|(name, value)| check_field(name, value))
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::String;
    use proptest::prelude::*;

    const LIMITS: HeadLimits = HeadLimits { request_line: 100, head: 400, fields: 10, secure: true };

    fn list(fields: &[(&str, &str)]) -> FieldList {
        let mut list = FieldList::new(usize::MAX, usize::MAX);
        fields.iter().for_each(|(name, value)| list.push(name.as_bytes(), value.as_bytes()));
        list
    }

    const GET: [(&str, &str); 4] = [(":method", "GET"), (":scheme", "https"), (":authority", "a"), (":path", "/x?y")];

    fn get_with(fields: &[(&str, &str)]) -> FieldList {
        list(&[&GET[..], fields].concat())
    }

    fn connect(fields: &[(&str, &str)]) -> FieldList {
        list(&[&[(":method", "CONNECT"), (":scheme", "https")][..], fields].concat())
    }

    fn flat(list: &FieldList) -> Result<String, &'static str> {
        let mut head = FlatHead::new();
        head.fill(list, true).map_err(|malformed| malformed.why)?;
        Ok(String::from_utf8_lossy(head.bytes()).replace("\r\n", "|"))
    }

    #[test]
    fn requests_are_written_as_in_http_1() {
        #[track_caller]
        fn check(fields: &[(&str, &str)], expected: &str) {
            assert_eq!(flat(&list(fields)).as_deref(), Ok(expected));
        }
        check(&GET, "GET /x?y HTTP/2.0|host: a||");
        let any_order =
            [(":path", "/"), (":authority", "a:81"), (":method", "B"), (":scheme", "http"), ("accept", "b")];
        check(&any_order, "B / HTTP/2.0|host: a:81|accept: b||");
        let with_host = [(":method", "OPTIONS"), (":scheme", "http"), (":path", "*"), ("x", ""), ("host", "b")];
        check(&with_host, "OPTIONS * HTTP/2.0|x: |host: b||");
        check(&[(":method", "CONNECT"), (":authority", "a:1")], "CONNECT a:1 HTTP/2.0|host: a:1||");
        let extended = [(":protocol", "websocket"), (":path", "/x?y"), (":authority", "a"), ("origin", "b")];
        let flat_form = "CONNECT /x?y HTTP/2.0|host: a|connection: upgrade|upgrade: websocket|origin: b||";
        assert_eq!(flat(&connect(&extended)).as_deref(), Ok(flat_form));
        let both = [&GET[..], &[("host", "A:443"), ("te", "Trailers")]].concat();
        check(&both, "GET /x?y HTTP/2.0|host: a|te: Trailers||");
        let cookies = [&GET[..], &[("cookie", "a=1"), ("b", "c"), ("cookie", "d=2"), ("cookie", "e=3")]].concat();
        check(&cookies, "GET /x?y HTTP/2.0|host: a|cookie: a=1; d=2; e=3|b: c||");
        let unicode = [(":method", "GET"), (":scheme", "x"), (":authority", "a"), (":path", "/ü"), ("x", "ü\t\u{80}")];
        check(&unicode, "GET /ü HTTP/2.0|host: a|x: ü\t\u{80}||");
    }

    #[test]
    fn malformed_requests_are_rejected() {
        #[track_caller]
        fn check(list: &FieldList, why: &str) {
            assert_eq!(flat(list), Err(why));
        }
        let without = |name: &str| list(&GET.iter().copied().filter(|(found, _)| *found != name).collect::<Vec<_>>());
        check(&without(":method"), "no :method");
        check(&without(":scheme"), "no :scheme");
        check(&without(":path"), "no :path");
        check(&list(&[]), "no :method");
        for name in [":method", ":scheme", ":authority", ":path"] {
            check(&list(&[&[(name, "a")][..], &GET[..]].concat()), "pseudo-field sent twice");
            check(&get_with(&[("a", "b"), (name, "/")]), "pseudo-field after another field");
        }
        for name in [":status", ":", ":Method"] {
            check(&list(&[&[(name, "200")][..], &GET[..]].concat()), "unknown pseudo-field");
        }
        let with = |name: &str, value: &str| {
            let changed = |&(found, old): &(&'static str, &'static str)| {
                (found, if found == name { String::from(value) } else { String::from(old) })
            };
            let fields: Vec<_> = GET.iter().map(changed).collect();
            list(&fields.iter().map(|(name, value)| (*name, value.as_str())).collect::<Vec<_>>())
        };
        for path in ["", "x", "http://a/", "/a b", "/a\r\nX: y", "/a\tb", "/\u{7f}", "**"] {
            check(&with(":path", path), "invalid :path");
        }
        for method in ["G T", "GET\r\n", "G(T", "é"] {
            check(&with(":method", method), ":method is not a token");
        }
        check(&with(":method", ""), "no :method");
        check(&with(":scheme", ""), "no :scheme");
        check(&with(":authority", "a\r\nx: y"), "invalid character in a field value");
        check(&with(":method", "CONNECT"), "CONNECT must have :authority and neither :scheme nor :path");
        check(&list(&[(":method", "CONNECT")]), "CONNECT must have :authority and neither :scheme nor :path");
        check(
            &list(&[(":method", "CONNECT"), (":authority", "a b:1")]),
            "CONNECT must have :authority and neither :scheme nor :path",
        );
        for name in ["", "A", "a b", "a:", "a\r", "a\0", "ä", "\u{7f}", "a("] {
            check(&get_with(&[(name, "b")]), "invalid field name");
        }
        for value in ["a\rb", "a\nb", "a\0b", "\u{1}", "\u{7f}"] {
            check(&get_with(&[("x", value)]), "invalid character in a field value");
            check(&get_with(&[("cookie", "a=b"), ("cookie", value)]), "invalid character in a field value");
        }
        for value in [" a", "a ", "\ta", "a\t", " "] {
            check(&get_with(&[("x", value)]), "field value begins or ends with a space");
        }
        for name in ["connection", "keep-alive", "proxy-connection", "transfer-encoding", "upgrade"] {
            check(&get_with(&[(name, "close")]), "field of a connection");
        }
        check(&get_with(&[("te", "gzip")]), "TE other than trailers");
        check(&get_with(&[("te", "trailers, gzip")]), "TE other than trailers");
        for host in ["b", "a:80", "a, a", "", "a@a"] {
            check(&get_with(&[("host", host)]), ":authority and Host differ");
        }
        for length in ["", "-1", "+1", "1,1", "0x1", "1 1"] {
            check(&get_with(&[("content-length", length)]), "content-length is not one number");
        }
        check(&get_with(&[("content-length", "0"), ("content-length", "0")]), "content-length is not one number");
        check(&get_with(&[("content-length", "1")]), "content-length without content");
        let bad_protocol = ":protocol without CONNECT or :authority, or not a token";
        check(&list(&[&[(":protocol", "websocket")][..], &GET[..]].concat()), bad_protocol);
        for protocol in ["", "a b", "a\r\nb: c", "websocket, h2c"] {
            check(&connect(&[(":protocol", protocol), (":authority", "a"), (":path", "/")]), bad_protocol);
        }
        let websocket = (":protocol", "websocket");
        check(&connect(&[websocket, (":path", "/")]), bad_protocol);
        check(&connect(&[websocket, (":authority", "a")]), "no :path");
        check(&connect(&[websocket, (":authority", "a"), (":path", "*")]), "invalid :path");
        check(&connect(&[websocket, websocket, (":authority", "a"), (":path", "/")]), "pseudo-field sent twice");
        let with_length = [websocket, (":authority", "a"), (":path", "/"), ("content-length", "0")];
        check(&connect(&with_length), "content-length of a tunnel");
        check(&list(&[(":method", "CONNECT"), websocket, (":authority", "a"), (":path", "/")]), "no :scheme");
    }

    #[test]
    fn malformed_request_leaves_nothing_of_it_or_of_the_one_before() {
        let mut head = FlatHead::new();
        head.fill(&get_with(&[]), true).expect("valid");
        assert!(head.fill(&get_with(&[("a", "b"), ("x", "\n")]), true).is_err());
        assert_eq!(head.bytes(), b"");
    }

    #[test]
    fn content_length_and_end_of_stream_determine_framing() {
        #[track_caller]
        fn check(fields: &[(&str, &str)], end_stream: bool, expected: Framing) {
            let mut head = FlatHead::new();
            head.fill(&get_with(fields), end_stream).expect("valid");
            assert_eq!(head.request(&LIMITS).expect("good").framing, expected);
        }
        check(&[], true, Framing::None);
        check(&[], false, Framing::Chunked);
        check(&[("content-length", "007")], false, Framing::Length(7));
        check(&[("content-length", "0")], false, Framing::None);
        check(&[("content-length", "00")], true, Framing::None);
        let mut head = FlatHead::new();
        head.fill(&connect(&[(":protocol", "x"), (":path", "/a"), (":authority", "a")]), false).expect("valid");
        let request = head.request(&LIMITS).expect("good");
        assert!(request.framing == Framing::None && request.is_extended_connect());
    }

    #[test]
    fn refused_requests_have_status_of_http_1() {
        #[track_caller]
        fn check(list: &FieldList, expected: u16) {
            let mut head = FlatHead::new();
            head.fill(list, false).expect("well-formed");
            let status = head.request(&LIMITS).map_or_else(|bad| bad.status.0, |_| 200);
            assert_eq!(status, expected, "{}", head.bytes().escape_ascii());
        }
        let with_path =
            |path: &str| list(&[(":method", "GET"), (":scheme", "http"), (":authority", "a"), (":path", path)]);
        // The line end included, as in HTTP/1.
        check(&with_path(&String::from("/").repeat(100 - 15)), 200);
        check(&with_path(&String::from("/").repeat(101 - 15)), 414);
        check(&get_with(&[("x", &String::from("y").repeat(400))]), 431);
        check(&get_with(&[("x", "y"); 9]), 200);
        check(&get_with(&[("x", "y"); 10]), 431);
        check(&get_with(&[("content-length", "99999999999999999999")]), 413);
        check(&get_with(&[("authorization", "a"), ("authorization", "b")]), 400);
        check(&with_path("*"), 400);
        check(&with_path("/a#b"), 400);
        check(&list(&[(":method", "GET"), (":scheme", "http"), (":path", "/")]), 400);
        check(&list(&[(":method", "GET"), (":scheme", "http"), (":authority", "u@a"), (":path", "/")]), 400);
        check(&list(&[(":method", "CONNECT"), (":authority", "a")]), 400);
        check(&list(&[(":method", "CONNECT"), (":authority", "a:1")]), 200);
        check(&list(&[(":method", "GET"), (":scheme", "http"), (":path", "/"), ("host", "a"), ("host", "a")]), 400);
    }

    #[test]
    fn request_equals_that_of_http_1() {
        let fields =
            [("accept", "b"), ("expect", "100-continue"), ("range", "bytes=0-"), ("if-match", "*"), ("cookie", "c")];
        let mut head = FlatHead::new();
        head.fill(&get_with(&fields), true).expect("valid");
        let request = head.request(&LIMITS).expect("good");
        let own = request::parse_own(head.bytes(), &LIMITS).expect("good");
        assert_eq!(alloc::format!("{request:?}"), alloc::format!("{own:?}"));
        assert!(!request.is_extended_connect());
        let as_1_1 = String::from_utf8_lossy(head.bytes()).replace("HTTP/2.0", "HTTP/1.1");
        let (known, _) = request::parse(as_1_1.as_bytes(), &LIMITS).expect("good").expect("whole");
        let (request, known) = (Request { head: b"", ..request }, Request { head: b"", ..known });
        assert_eq!(alloc::format!("{request:?}").replace("Http2", "Http11"), alloc::format!("{known:?}"));
    }

    #[test]
    fn trailers_have_no_pseudo_fields() {
        #[track_caller]
        fn check(fields: &[(&str, &str)], expected: Result<(), &'static str>) {
            assert_eq!(check_trailers(&list(fields)).map_err(|malformed| malformed.why), expected);
        }
        check(&[("x-checksum", "1")], Ok(()));
        check(&[("x", "1"), (":path", "/")], Err("pseudo-field after another field"));
        check(&[("X", "1")], Err("invalid field name"));
        check(&[("connection", "close")], Err("field of a connection"));
    }

    proptest! {
        #[test]
        fn accepted_heads_are_heads_of_http_1(
            fields in prop::collection::vec(("[a-c:]|host|cookie|te", "[ -~]{0,3}|[\\x00-\\xff]{0,3}|a"), 0..4),
            path in "/[ -~]{0,2}|[\\x00-\\xff]{0,3}",
        ) {
            let others: Vec<_> = fields.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
            let pseudo = [(":method", "GET"), (":path", &path), (":scheme", "http"), (":authority", "a")];
            let fields = [&pseudo[..], &others].concat();
            let mut head = FlatHead::new();
            if head.fill(&list(&fields), true).is_ok() && let Ok(request) = head.request(&LIMITS) {
                let mut as_1_1 = head.bytes().to_vec();
                let version_at = 4 + path.len() + 1;
                as_1_1[version_at..version_at + 8].copy_from_slice(b"HTTP/1.1");
                let parsed = request::parse(&as_1_1, &LIMITS).expect("good");
                let (known, length) = parsed.expect("whole");
                prop_assert_eq!(length, as_1_1.len());
                prop_assert_eq!(known.target_text, request.target_text);
                prop_assert_eq!(known.host, request.host);
            }
        }
    }
}
