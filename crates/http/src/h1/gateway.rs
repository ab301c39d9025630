//! HTTP/1.1 between a gateway and a server behind it, the backend (RFC 9110, 7.6): requests as they are forwarded, and
//! responses as they are passed on.
//!
//! Before it, `request` has validated the head of a request; [`Forward`] removes what belongs to the client's
//! connection and what a client must not claim, and writes the rest. [`ReplyReader`] reads the response: `reply` parses
//! its head, `body` finds its end. The head comes out as that of a CGI script ([`crate::cgi`]), so that everything
//! after it treats all applications alike.
//!
//! Sans-I/O, as `body`: bytes go in as they arrive, in pieces of any size, and content is borrowed, not copied.
//!
//! Stricter than a client needs to be: a response whose end two recipients might see at different places is an error,
//! because the rest of it could pass for the response to another client's request.

use alloc::borrow::Cow;
use alloc::boxed::Box;
use alloc::string::ToString;
use alloc::vec::Vec;
use core::mem;
use core::net::IpAddr;

use super::body::BodyReader;
use super::references::{LocationPrefix, Mount, References};
use super::reply::{self, ReplyBody};
use super::request::{Framing, Request, Version};
use super::request_fields::{ClientConnection, RequestField};
use crate::cgi::is_plain_name;
use crate::forwarded::push_node;
use crate::interim::Interim;
use crate::status::Status;
use crate::text::{list, push_decimal};

/// The head of a request as it is forwarded, except for the client's address and the framing of the body, which are
/// known later.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Forward {
    /// Request line, Host unless it is missing, and fields.
    head: Vec<u8>,
    /// The method.
    method: Box<[u8]>,
    /// The host and port that the client requested; empty if none.
    host: Box<[u8]>,
    has_host: bool,
    secure: bool,
    /// The client, then the proxies between it and the peer of the connection; empty if that is the client.
    proxied: Vec<IpAddr>,
    /// Whether the client asks to continue with the WebSocket protocol.
    pub upgrade: bool,
    /// Whether it does so without a key of its own, as in HTTP/2 (RFC 8441, 5): then the gateway makes the handshake.
    pub needs_handshake: bool,
    /// The handshake, if the gateway makes it.
    pub handshake: Option<Handshake>,
    /// Fields that the operator sets, except for what depends on the client's connection.
    set: Vec<RequestField>,
    /// How Location is mapped; `None`: it is not.
    references: Option<References>,
    /// The framing of the body.
    pub framing: Framing,
}

/// The gateway's part of the handshake of a WebSocket connection (RFC 6455, 4.1).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Handshake {
    /// Sec-WebSocket-Key.
    pub key: Box<str>,
    /// The Sec-WebSocket-Accept that answers it.
    pub accept: Box<str>,
}

/// What the rule adds to a request.
#[derive(Clone, Copy, Debug, Default)]
pub struct Additions<'a> {
    /// The Host to send instead of the client's.
    pub host: Option<&'a str>,
    /// The user that the server has authenticated, if any. Authorization is removed then.
    pub user: Option<&'a [u8]>,
    /// The client, then the proxies between it and the peer of the connection; empty if that is the client.
    pub proxied: &'a [IpAddr],
    /// Further fields.
    pub fields: &'a [(&'a str, &'a [u8])],
    /// Fields that the operator sets, in place of the client's and of further ones.
    pub set: &'a [RequestField],
    /// The path of the target, if it is not the client's.
    pub mount: Option<&'a Mount>,
    /// Prefixes of Location in the response, and their replacements.
    pub location: &'a [LocationPrefix],
    /// Whether Location in the response is that of the backend.
    pub keeps_location: bool,
}

const PREFIX: &str = "X-Forwarded-Prefix";

/// Fields that are removed from requests: those of the connection (RFC 9110, 7.6.1), those that frame the body, those
/// that the gateway sets, and two by which clients deceive applications: `Proxy` becomes the proxy for outgoing requests
/// in programs that speak CGI inside, and `X-Real-IP` is another name of the client's address.
const REMOVED: &[&str] = &[
    "connection",
    "content-length",
    "expect",
    "forwarded",
    "host",
    "http2-settings",
    "keep-alive",
    "proxy",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "x-real-ip",
];

/// All fields of this family are the gateway's.
const FORWARDED: &str = "x-forwarded-";

fn is(name: &[u8], known: &str) -> bool {
    name.eq_ignore_ascii_case(known.as_bytes())
}

fn is_removed(name: &[u8]) -> bool {
    let begins = name.get(..FORWARDED.len()).is_some_and(|start| is(start, FORWARDED));
    begins || !is_plain_name(name) || REMOVED.iter().any(|removed| is(name, removed))
}

/// Whether a request asks to continue with the WebSocket protocol (RFC 9110, 7.8; RFC 6455, 4.1; RFC 8441, 5).
///
/// No other protocol is forwarded: with `h2c`, for instance, a client could then send requests to which none of the
/// server's rules apply.
pub fn wants_websocket<'a>(request: &Request<'_>, fields: impl Iterator<Item = (&'a [u8], &'a [u8])>) -> bool {
    let (mut is_named, mut protocols) = (false, (0, false));
    for (name, value) in fields {
        if is(name, "connection") {
            is_named |= list(value).any(|option| is(option, "upgrade"));
        } else if is(name, "upgrade") {
            protocols.0 += list(value).count();
            protocols.1 |= is(value, WEBSOCKET);
        }
    }
    let may_ask = match request.version {
        // 7.8: Upgrade is ignored in HTTP/1.0.
        Version::Http10 => false,
        Version::Http11 => true,
        Version::Http2 => request.is_extended_connect(),
    };
    is_named && protocols == (1, true) && may_ask && request.framing == Framing::None
}

const WEBSOCKET: &str = "websocket";
const KEY: &str = "Sec-WebSocket-Key";
const ACCEPT: &str = "Sec-WebSocket-Accept";

/// Returns a request by which a backend shows whether it works.
pub fn health_request(target: &str, host: &str) -> Vec<u8> {
    let head =
        alloc::format!("GET {target} HTTP/1.1\r\nHost: {host}\r\nUser-Agent: amped\r\nConnection: close\r\n\r\n");
    head.into_bytes()
}

impl Additions<'_> {
    /// Whether the operator sets the field with this name.
    fn sets(&self, name: &[u8]) -> bool {
        self.set.iter().any(|field| is(name, field.name()))
    }
}

impl Forward {
    /// Builds the head of a request for this target, with these fields of it.
    pub fn new<'a, I: Iterator<Item = (&'a [u8], &'a [u8])>>(
        request: &Request<'_>,
        target: &[u8],
        fields: impl Fn() -> I,
        additions: Additions<'_>,
    ) -> Forward {
        let named: Vec<&[u8]> =
            fields().filter(|(name, _)| is(name, "connection")).flat_map(|(_, value)| list(value)).collect();
        let host = fields().find(|(name, _)| is(name, "host")).map_or(&b""[..], |(_, value)| value);
        let sent_host = additions.host.map_or(host, str::as_bytes);
        let needs_handshake = request.is_extended_connect();
        let method = if needs_handshake { &b"GET"[..] } else { request.method_text };
        let mut head = Vec::with_capacity(512);
        [method, b" ", target, b" HTTP/1.1\r\n"].iter().for_each(|part| head.extend_from_slice(part));
        if !sent_host.is_empty() {
            push_field(&mut head, b"Host", sent_host);
        }
        for (name, value) in fields() {
            // The server has verified the credentials and does not pass them on (as RFC 3875, 4.1.18 for scripts).
            let is_removed = is_removed(name)
                || additions.sets(name)
                || named.iter().any(|option| option.eq_ignore_ascii_case(name))
                || needs_handshake && is(name, KEY)
                || additions.user.is_some() && is(name, "authorization");
            if !is_removed {
                push_field(&mut head, name, value);
            }
        }
        if let Some(user) = additions.user.filter(|_| !additions.sets(b"X-Forwarded-User")) {
            push_field(&mut head, b"X-Forwarded-User", user);
        }
        for (name, value) in additions.fields.iter().filter(|(name, _)| !additions.sets(name.as_bytes())) {
            push_field(&mut head, name.as_bytes(), value);
        }
        let prefixes = additions.location.iter().map(|prefix| prefix.fill(request, &fields)).collect();
        Forward {
            head,
            method: method.into(),
            host: host.into(),
            has_host: !sent_host.is_empty(),
            secure: request.secure,
            proxied: additions.proxied.to_vec(),
            upgrade: wants_websocket(request, fields()),
            needs_handshake,
            handshake: None,
            set: additions.set.iter().map(|field| field.fill(request, &fields, additions.user)).collect(),
            references: References::new(additions.mount, sent_host, host, prefixes)
                .filter(|_| !additions.keeps_location),
            framing: request.framing,
        }
    }

    /// Whether the response has no body (RFC 9110, 9.3.2).
    pub fn is_head(&self) -> bool {
        *self.method == *b"HEAD"
    }

    /// Whether the request may be sent twice, if the first one may have been lost (RFC 9110, 9.2.2).
    pub fn is_idempotent(&self) -> bool {
        matches!(&*self.method, b"GET" | b"HEAD" | b"OPTIONS" | b"PUT" | b"DELETE")
    }

    /// The last value of a field; empty without one. For choosing a backend.
    pub fn field(&self, name: &str) -> &[u8] {
        let fields = super::request::fields(&self.head).filter(|(found, _)| is(found, name));
        fields.last().map_or(&[], |(_, value)| value)
    }

    /// Appends the whole head. `authority`: the Host of a request without one; `keep`: the backend may leave the
    /// connection open.
    pub fn write(&self, out: &mut Vec<u8>, connection: &ClientConnection<'_>, authority: &str, keep: bool) {
        out.reserve(self.head.len() + ADDED_SIZE);
        out.extend_from_slice(&self.head);
        if !self.has_host {
            push_field(out, b"Host", authority.as_bytes());
        }
        let proxied = self.proxied.iter().map(|node| Cow::Owned(node.to_string()));
        let nodes: Vec<Cow<'_, str>> = proxied.chain(connection.peer.map(Cow::Borrowed)).collect();
        match &nodes[..] {
            [] => {}
            [client] => push_field(out, b"X-Forwarded-For", client.as_bytes()),
            all => push_field(out, b"X-Forwarded-For", all.join(", ").as_bytes()),
        }
        let scheme = if self.secure { b"https".as_slice() } else { b"http" };
        push_field(out, b"X-Forwarded-Proto", scheme);
        if !self.host.is_empty() {
            push_field(out, b"X-Forwarded-Host", &self.host);
        }
        let prefix = self.references.as_ref().map(|references| &references.mount);
        let is_set = self.set.iter().any(|field| is_name(field.name(), PREFIX));
        let prefix = prefix.filter(|mount| mount.path.is_empty() && !mount.prefix.is_empty() && !is_set);
        if let Some(Mount { prefix, .. }) = prefix {
            push_field(out, PREFIX.as_bytes(), prefix.as_bytes());
        }
        self.push_forwarded(out, &nodes, scheme);
        for field in &self.set {
            let value = field.value(nodes.first().map(|client| &**client), connection);
            if !value.is_empty() {
                push_field(out, field.name().as_bytes(), &value);
            }
        }
        match self.framing {
            Framing::Length(length) => push_length(out, length),
            Framing::Chunked => push_field(out, b"Transfer-Encoding", b"chunked"),
            // RFC 9110, 8.6: where the method expects a body, its absence is stated.
            Framing::None if matches!(&*self.method, b"POST" | b"PUT" | b"PATCH") => push_length(out, 0),
            Framing::None => {}
        }
        if self.upgrade {
            push_field(out, b"Connection", b"Upgrade");
            push_field(out, b"Upgrade", WEBSOCKET.as_bytes());
            self.handshake.iter().for_each(|handshake| push_field(out, KEY.as_bytes(), handshake.key.as_bytes()));
        } else if !keep {
            push_field(out, b"Connection", b"close");
        }
        out.extend_from_slice(b"\r\n");
    }

    /// RFC 7239, 4: the client first, with what it requested; then the proxies that it passed.
    fn push_forwarded(&self, out: &mut Vec<u8>, nodes: &[Cow<'_, str>], scheme: &[u8]) {
        out.extend_from_slice(b"Forwarded: for=");
        push_node(out, nodes.first().map_or("unknown", |client| client));
        if !self.host.is_empty() {
            // A valid host contains neither a quote nor a backslash.
            [b";host=\"", &self.host[..], b"\""].iter().for_each(|part| out.extend_from_slice(part));
        }
        [b";proto=", scheme].iter().for_each(|part| out.extend_from_slice(part));
        for node in nodes.iter().skip(1) {
            out.extend_from_slice(b", for=");
            push_node(out, node);
        }
        out.extend_from_slice(b"\r\n");
    }
}

/// Typical size of the fields that are added to a head, bytes.
const ADDED_SIZE: usize = 256;

fn push_field(out: &mut Vec<u8>, name: &[u8], value: &[u8]) {
    out.extend_from_slice(name);
    out.extend_from_slice(b": ");
    out.extend_from_slice(value);
    out.extend_from_slice(b"\r\n");
}

fn push_length(out: &mut Vec<u8>, length: u64) {
    out.extend_from_slice(b"Content-Length: ");
    push_decimal(out, length);
    out.extend_from_slice(b"\r\n");
}

/// Reads the response to one request.
#[derive(Clone, Debug)]
pub struct ReplyReader {
    state: State,
    to_head: bool,
    upgrade: bool,
    /// The Sec-WebSocket-Accept that a switch of protocols must have, if the gateway has sent the key.
    accept: Option<Box<str>>,
    references: Option<References>,
    status: Option<Status>,
    keep_alive: bool,
    /// Interim responses that are still passed on, and their bytes.
    interim_left: usize,
    interim_bytes_left: usize,
}

/// Maximum interim responses of a request that are passed on, and their bytes. Further ones are dropped: a client may do
/// without them, and each extends the time that the backend has for its response.
const INTERIM_MAX: usize = 8;
const INTERIM_BYTES_MAX: usize = 16 * 1024;

#[derive(Clone, Debug)]
enum State {
    /// The head, as received so far.
    Head(Vec<u8>),
    /// The body, by its framing.
    Body(BodyReader),
    /// The body, until the connection closes.
    UntilClose,
    /// The connection carries another protocol.
    Switched,
}

/// One parsed piece of the input.
#[derive(Debug, PartialEq, Eq)]
pub struct Piece<'a> {
    /// Bytes consumed.
    pub used: usize,
    /// Their content.
    pub said: Said<'a>,
}

/// Content of a response.
#[derive(Debug, PartialEq, Eq)]
pub enum Said<'a> {
    /// Nothing yet.
    Nothing,
    /// The head, as that of a script. It is longer than that of the response by what a mapped Location has more.
    Head(Vec<u8>),
    /// The backend has switched to the protocol that the client asked for: its head without Connection and Upgrade.
    Switched(Vec<u8>),
    /// A response that precedes the final one, other than 100, which is for the gateway.
    Interim(Interim),
    /// Part of the body, or of the other protocol; the end of the consumed bytes.
    Data(&'a [u8]),
}

/// Why a response is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadResponse(pub &'static str);

impl ReplyReader {
    /// A reader of the response to this request.
    pub fn new(request: &Forward) -> ReplyReader {
        let state = State::Head(Vec::new());
        let accept = request.handshake.as_ref().map(|handshake| handshake.accept.clone());
        ReplyReader {
            state,
            to_head: request.is_head(),
            upgrade: request.upgrade,
            accept,
            references: request.references.clone(),
            status: None,
            keep_alive: false,
            interim_left: INTERIM_MAX,
            interim_bytes_left: INTERIM_BYTES_MAX,
        }
    }

    /// Whether the final head has arrived.
    pub fn has_head(&self) -> bool {
        !matches!(self.state, State::Head(_))
    }

    /// The status of the response, when its final head has arrived.
    pub fn status(&self) -> Option<Status> {
        self.status
    }

    /// Whether the response is complete by its framing. Bytes after that belong to no response.
    pub fn is_done(&self) -> bool {
        matches!(&self.state, State::Body(body) if body.is_done())
    }

    /// Whether the response is complete if the connection has been closed now.
    pub fn is_whole_at_close(&self) -> bool {
        self.is_done() || matches!(self.state, State::UntilClose | State::Switched)
    }

    /// Whether the connection carries another protocol now.
    pub fn has_switched(&self) -> bool {
        matches!(self.state, State::Switched)
    }

    /// Whether the backend accepts another request on the connection after this response.
    pub fn keeps_connection(&self) -> bool {
        self.keep_alive && self.is_done()
    }

    /// Consumes bytes up to the end of the head, of the next run of data, of the response, or of `bytes`.
    ///
    /// # Errors
    /// [`BadResponse`] if the response is malformed, or its end is ambiguous.
    pub fn next<'a>(&mut self, bytes: &'a [u8]) -> Result<Piece<'a>, BadResponse> {
        match &mut self.state {
            State::Head(known) if known.is_empty() => match self.read_head(bytes)? {
                Some(piece) => Ok(piece),
                None => {
                    self.state = State::Head(bytes.to_vec());
                    Ok(Piece { used: bytes.len(), said: Said::Nothing })
                }
            },
            State::Head(known) => {
                let before = known.len();
                let mut known = mem::take(known);
                known.extend_from_slice(bytes);
                match self.read_head(&known)? {
                    // No prefix was a head, so its end is among the new bytes.
                    Some(Piece { used, said }) => Ok(Piece { used: used.saturating_sub(before), said }),
                    None => {
                        self.state = State::Head(known);
                        Ok(Piece { used: bytes.len(), said: Said::Nothing })
                    }
                }
            }
            State::Body(body) => {
                let piece = body.next(bytes).map_err(|_| BadResponse("malformed chunked body"))?;
                let said = if piece.data.is_empty() { Said::Nothing } else { Said::Data(piece.data) };
                Ok(Piece { used: piece.used, said })
            }
            State::UntilClose | State::Switched => Ok(Piece { used: bytes.len(), said: Said::Data(bytes) }),
        }
    }

    /// Reads a head at the start of `bytes`, and enters the state after it.
    fn read_head(&mut self, bytes: &[u8]) -> Result<Option<Piece<'static>>, BadResponse> {
        let (mut fields, mut length) = (Vec::new(), None);
        let parsed = reply::parse_with(bytes, self.to_head, |name, value| {
            if is_name(name, "content-length") {
                length = Some(value);
            } else {
                fields.push((name, value));
            }
        });
        let Some((head, used)) = parsed.map_err(|_| BadResponse("malformed response head"))? else {
            return Ok(None);
        };
        if head.is_ambiguous {
            return Err(BadResponse("ambiguous framing of the response body"));
        }
        let line = bytes.split(|&byte| byte == b'\n').next().unwrap_or_default();
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        let said = match head.status {
            101 if self.upgrade && switches(&fields) => {
                if let Some(accept) = &self.accept {
                    let mut found = fields.iter().filter(|(name, _)| is_name(name, ACCEPT));
                    if found.next().map(|(_, value)| *value) != Some(accept.as_bytes()) || found.next().is_some() {
                        return Err(BadResponse("the handshake of the WebSocket connection has failed"));
                    }
                    // It answers the gateway, not the client.
                    fields.retain(|(name, _)| !is_name(name, ACCEPT));
                }
                self.state = State::Switched;
                Said::Switched(script_head(&[line], &fields, None))
            }
            101 => return Err(BadResponse("the response switches to a protocol that was not requested")),
            // RFC 9110, 15.2: 100 is for this server, which sends the body in any case; others are for the client.
            100..200 => {
                self.state = State::Head(Vec::new());
                match head.status {
                    100 => Said::Nothing,
                    status => self.interim(Status(status), &fields).map_or(Said::Nothing, Said::Interim),
                }
            }
            200..600 => {
                (self.status, self.keep_alive) = (Some(Status(head.status)), head.keep_alive);
                self.state = match head.body {
                    ReplyBody::Framed(framing) => State::Body(BodyReader::new(framing)),
                    ReplyBody::UntilClose => State::UntilClose,
                };
                let location = self.references.as_ref().and_then(|references| {
                    let (_, value) = fields.iter().find(|(name, _)| is_name(name, "location"))?;
                    references.location(value)
                });
                if let Some(location) = &location {
                    let all = fields.iter_mut().filter(|(name, _)| is_name(name, "location"));
                    all.for_each(|(_, value)| *value = location);
                }
                // `reply` has checked that the line begins with `HTTP/1.x `.
                let status = line.get("HTTP/1.1 ".len()..).unwrap_or_default();
                Said::Head(script_head(&[b"Status:", status], &fields, length))
            }
            _ => return Err(BadResponse("the status of the response is not a number from 100 to 599")),
        };
        Ok(Some(Piece { used, said }))
    }
}

impl ReplyReader {
    /// An interim response with these fields; `None` if there were too many.
    fn interim(&mut self, status: Status, fields: &[(&str, &[u8])]) -> Option<Interim> {
        let named = named_fields(fields);
        // The final response has the server's own of these two.
        let is_removed =
            |name: &str| is_connection_field(name, &named) || is_name(name, "date") || is_name(name, "server");
        let kept = fields.iter().filter(|(name, _)| !is_removed(name));
        let interim = Interim::new(status, kept.map(|(name, value)| (name.as_bytes(), *value)));
        self.interim_left = self.interim_left.checked_sub(1)?;
        self.interim_bytes_left = self.interim_bytes_left.checked_sub(interim.head().len())?;
        Some(interim)
    }
}

fn is_name(name: &str, known: &str) -> bool {
    name.eq_ignore_ascii_case(known)
}

/// Whether a response with these fields switches to the WebSocket protocol alone.
fn switches(fields: &[(&str, &[u8])]) -> bool {
    let mut protocols = fields.iter().filter(|(name, _)| is_name(name, "upgrade"));
    matches!((protocols.next(), protocols.next()), (Some((_, value)), None) if is(value, WEBSOCKET))
}

/// Fields that are removed from responses: those of the connection, and `Status`, which in a script's head is not a field.
const REMOVED_FROM_RESPONSE: &[&str] =
    &["connection", "keep-alive", "proxy-connection", "status", "te", "trailer", "transfer-encoding", "upgrade"];

/// The fields that Connection names.
fn named_fields<'a>(fields: &[(&str, &'a [u8])]) -> Vec<&'a [u8]> {
    let connection = fields.iter().filter(|(name, _)| is_name(name, "connection"));
    connection.flat_map(|(_, value)| list(value)).collect()
}

fn is_connection_field(name: &str, named: &[&[u8]]) -> bool {
    REMOVED_FROM_RESPONSE.iter().any(|removed| is_name(name, removed)) || named.iter().any(|named| is(named, name))
}

/// Writes a head that begins with this line, which consists of parts.
fn script_head(line: &[&[u8]], fields: &[(&str, &[u8])], length: Option<&[u8]>) -> Vec<u8> {
    let fields_size: usize = fields.iter().map(|(name, value)| name.len() + value.len() + 2).sum();
    let line_size: usize = line.iter().map(|part| part.len()).sum();
    let mut head = Vec::with_capacity(line_size + fields_size + "Content-Length:".len() + 24);
    line.iter().chain([&&b"\n"[..]]).for_each(|part| head.extend_from_slice(part));
    let mut push = |name: &str, value: &[u8]| {
        [name.as_bytes(), b":", value, b"\n"].iter().for_each(|part| head.extend_from_slice(part));
    };
    let named = named_fields(fields);
    for (name, value) in fields {
        if !is_connection_field(name, &named) {
            push(name, value);
        }
    }
    if let Some(length) = length {
        push("Content-Length", length);
    }
    head.push(b'\n');
    head
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cgi;
    use crate::h1::request::{self, HeadLimits};
    use alloc::format;
    use alloc::string::String;
    use alloc::vec;
    use proptest::prelude::*;

    fn forward(head: &str, additions: Additions<'_>) -> Forward {
        let head = head.replace('\n', "\r\n");
        let (request, _) =
            request::parse(head.as_bytes(), &HeadLimits::unlimited(false)).expect("good").expect("whole");
        Forward::new(&request, request.target_text, || request::fields(head.as_bytes()), additions)
    }

    fn written(forward: &Forward, client: Option<&str>, keep: bool) -> String {
        let mut out = Vec::new();
        let connection = ClientConnection { peer: client, ..ClientConnection::default() };
        forward.write(&mut out, &connection, "127.0.0.1:3000", keep);
        String::from_utf8(out).expect("ASCII").replace("\r\n", "\n")
    }

    #[test]
    fn request_is_forwarded_without_fields_of_connection() {
        let head = "GET /a?b HTTP/1.1\nHost: h:81\nConnection: keep-alive, X-Own\nX-Own: 1\nKeep-Alive: 5\nTE: trailers\n\
            Upgrade: h2c\nHTTP2-Settings: x\nProxy: p\nProxy-Connection: close\nExpect: 100-continue\nX-Forwarded-For: 9.9.9.9\n\
            x-forwarded-anything: z\nForwarded: for=9.9.9.9\nX-Real-IP: 9.9.9.9\nX_Forwarded_For: 9\nAccept: a\nAccept: b\n\
            Authorization: Basic YTpi\n\n";
        let expected = "GET /a?b HTTP/1.1\nHost: h:81\nAccept: a\nAccept: b\nAuthorization: Basic YTpi\n\
            X-Forwarded-For: 192.0.2.1\nX-Forwarded-Proto: http\nX-Forwarded-Host: h:81\n\
            Forwarded: for=192.0.2.1;host=\"h:81\";proto=http\n\n";
        assert_eq!(written(&forward(head, Additions::default()), Some("192.0.2.1"), true), expected);
        let of_rule = Additions {
            host: Some("app.internal"),
            user: Some(b"ann"),
            proxied: &[],
            fields: &[("If-None-Match", b"x")],
            ..Additions::default()
        };
        let expected = "GET /a?b HTTP/1.1\nHost: app.internal\nAccept: a\nAccept: b\nX-Forwarded-User: ann\nIf-None-Match: x\n\
            X-Forwarded-For: 2001:db8::1\nX-Forwarded-Proto: http\nX-Forwarded-Host: h:81\n\
            Forwarded: for=\"[2001:db8::1]\";host=\"h:81\";proto=http\nConnection: close\n\n";
        assert_eq!(written(&forward(head, of_rule), Some("2001:db8::1"), false), expected);
        let expected =
            "GET / HTTP/1.1\nHost: 127.0.0.1:3000\nX-Forwarded-Proto: http\nForwarded: for=unknown;proto=http\n\n";
        assert_eq!(written(&forward("GET / HTTP/1.0\n\n", Additions::default()), None, true), expected);
    }

    #[test]
    fn fields_of_the_operator_replace_those_of_client_and_server() {
        let set = |name: &str, value: &str| RequestField::new(name, value).expect("valid");
        let set = [
            set("X-Real-IP", "$remote_addr"),
            set("Cookie", ""),
            set("x-forwarded-user", "$http_x_user"),
            set("X-Forwarded-Ssl", "on"),
        ];
        let additions = Additions { user: Some(b"ann"), set: &set, ..Additions::default() };
        let head = "GET / HTTP/1.1\nHost: h\nCOOKIE: a\nX-Real-IP: 9.9.9.9\nX-User: bob\nX-Forwarded-Ssl: off\n\n";
        let expected = "GET / HTTP/1.1\nHost: h\nX-User: bob\nX-Forwarded-For: 192.0.2.1\nX-Forwarded-Proto: http\n\
            X-Forwarded-Host: h\nForwarded: for=192.0.2.1;host=\"h\";proto=http\nX-Real-IP: 192.0.2.1\n\
            x-forwarded-user: bob\nX-Forwarded-Ssl: on\n\n";
        assert_eq!(written(&forward(head, additions), Some("192.0.2.1"), true), expected);
    }

    #[test]
    fn location_is_mapped_to_the_path_of_clients() {
        let check = |prefix: &str, path: &str, host: Option<&str>, location: &str, expected: &str| {
            let mount = Mount { prefix: prefix.into(), path: path.into() };
            let additions = Additions { host, mount: Some(&mount), ..Additions::default() };
            let request = forward("GET / HTTP/1.1\nHost: h\n\n", additions);
            let response = format!("HTTP/1.1 302 Found\r\nLocation: {location}\r\nContent-Length: 0\r\n\r\n");
            let (head, ..) = read(&request, response.as_bytes(), 7).expect("valid");
            assert!(head.contains(&format!("Location:{expected}\n")), "{location}: {head}");
        };
        for (location, expected) in [
            ("/x?y", "/a/x?y"),
            ("/", "/a/"),
            ("http://h/x", "http://h/a/x"),
            ("HTTPS://H", "HTTPS://H/a"),
            ("http://other/x", "http://other/x"),
            ("//h/x", "//h/x"),
            ("x", "x"),
            ("?x", "?x"),
            // It knows the prefix.
            ("/a/x", "/a/x"),
            ("/a", "/a"),
            ("http://h/a/x", "http://h/a/x"),
            ("/ab", "/a/ab"),
        ] {
            check("/a", "", None, location, expected);
        }
        for (location, expected) in [
            ("/b/c/x", "/x"),
            ("/b/c", "/"),
            ("/b/c?x", "/?x"),
            ("/b/cd", "/b/cd"),
            // It would lead to another host.
            ("/b/c//other/x", "/b/c//other/x"),
            ("/b/c/\\other/x", "/b/c/\\other/x"),
            ("/b/c/\t/other/x", "/b/c/\t/other/x"),
        ] {
            check("", "/b/c", None, location, expected);
        }
        check("/a", "", Some("app"), "http://app/x", "/a/x");
        check("/a", "", Some("app"), "http://app/a/x", "/a/x");
        check("", "", Some("app"), "http://app/\\other", "http://app/\\other");
        check("/a", "", Some("app"), "http://h/x", "http://h/x");
        let request = forward("GET / HTTP/1.1\nHost: h\n\n", Additions { host: Some("app"), ..Additions::default() });
        let (head, ..) = read(&request, b"HTTP/1.1 302 Found\r\nLocation: http://app/x\r\n\r\n", 100).expect("valid");
        assert!(head.contains("Location:/x\n"), "{head}");
    }

    #[test]
    fn prefix_of_location_is_replaced() {
        let check = |pairs: &[(&str, &str)], location: &str, expected: &str| {
            let prefixes: Vec<_> =
                pairs.iter().map(|(from, to)| LocationPrefix::new(from, to).expect("valid")).collect();
            let mount = Mount { prefix: "/a".into(), path: "".into() };
            let additions =
                Additions { host: Some("app"), mount: Some(&mount), location: &prefixes, ..Additions::default() };
            let head = b"GET / HTTP/1.1\r\nHost: Example.org:81\r\n\r\n";
            let (mut request, _) = request::parse(head, &HeadLimits::unlimited(true)).expect("good").expect("whole");
            request.secure = true;
            let request = Forward::new(&request, b"/", || request::fields(head), additions);
            let response = format!("HTTP/1.1 302 Found\r\nLocation: {location}\r\nContent-Length: 0\r\n\r\n");
            let (head, ..) = read(&request, response.as_bytes(), 7).expect("valid");
            assert!(head.contains(&format!("Location:{expected}\n")), "{location}: {head}");
        };
        let scheme = [("http://", "$scheme://")];
        check(&scheme, "http://h/x", "https://h/x");
        check(&scheme, "https://h/x", "https://h/x");
        // In place of the mapping that is made otherwise.
        check(&scheme, "/x", "/x");
        let all =
            [("http://", "$scheme://"), ("http://app:3000/", "/"), ("http://app:3000/x/", "$scheme://${http_host}/y/")];
        check(&all, "http://app:3000/b?c", "/b?c");
        check(&all, "http://app:3000/x/b", "https://Example.org:81/y/b");
        check(&all, "http://app:3001/", "https://app:3001/");
        check(&[("http://h", "http://$host")], "http://h/", "http://example.org/");
        // It would lead to another host.
        for odd in ["http://app:3000//other", "http://app:3000/\\other", "http://app:3000/\t/other"] {
            check(&[("http://app:3000/", "/")], odd, odd);
        }
    }

    #[test]
    fn prefix_of_location_for_one_client_is_an_error() {
        for to in [
            "",
            "x",
            "//host/",
            "/a b",
            "/\\host",
            "ftp://h/",
            "/$remote_user",
            "/$http_cookie",
            "/$nothing",
            "https://h\r\n",
        ] {
            LocationPrefix::new("/", to).expect_err(to);
        }
    }

    #[test]
    fn stripped_prefix_is_sent_in_x_forwarded_prefix() {
        let check = |prefix: &str, path: &str, expected: bool| {
            let mount = Mount { prefix: prefix.into(), path: path.into() };
            let request =
                forward("GET / HTTP/1.1\nHost: h\n\n", Additions { mount: Some(&mount), ..Additions::default() });
            let found = written(&request, None, true).contains(&format!("\nX-Forwarded-Prefix: {prefix}\n"));
            assert_eq!(found, expected, "{prefix} {path}");
        };
        check("/a", "", true);
        check("/a", "/b", false);
        check("", "/b", false);
        let (mount, set) =
            (Mount { prefix: "/a".into(), path: "".into() }, [RequestField::new(PREFIX, "/own").expect("valid")]);
        let additions = Additions { mount: Some(&mount), set: &set, ..Additions::default() };
        let found = written(&forward("GET / HTTP/1.1\nHost: h\n\n", additions), None, true);
        assert_eq!(found.matches("X-Forwarded-Prefix: ").count(), 1, "{found}");
        assert!(found.contains("X-Forwarded-Prefix: /own\n"), "{found}");
    }

    #[test]
    fn chain_of_proxies_begins_with_client() {
        let check = |proxied: &[&str], peer: Option<&str>, addresses: &str, forwarded: &str| {
            let proxied: Vec<IpAddr> = proxied.iter().map(|address| address.parse().expect("valid")).collect();
            let additions = Additions { proxied: &proxied, ..Additions::default() };
            let found =
                written(&forward("GET / HTTP/1.1\nHost: h\nX-Forwarded-For: 9.9.9.9\n\n", additions), peer, true);
            let fields = format!(
                "X-Forwarded-For: {addresses}\nX-Forwarded-Proto: http\nX-Forwarded-Host: h\nForwarded: {forwarded}\n"
            );
            assert!(found.contains(&fields) && !found.contains("9.9.9.9"), "{found}");
        };
        check(&[], Some("10.0.0.1"), "10.0.0.1", "for=10.0.0.1;host=\"h\";proto=http");
        check(
            &["2001:db8::1", "10.0.0.1"],
            Some("fd00::1"),
            "2001:db8::1, 10.0.0.1, fd00::1",
            "for=\"[2001:db8::1]\";host=\"h\";proto=http, for=10.0.0.1, for=\"[fd00::1]\"",
        );
    }

    #[test]
    fn body_is_framed_anew() {
        let check = |line: &str, fields: &str, expected: &str| {
            let head = forward(&alloc::format!("{line} / HTTP/1.1\nHost: h\n{fields}\n"), Additions::default());
            let found = written(&head, None, true);
            let found: Vec<&str> = found.lines().skip(5).filter(|line| !line.is_empty()).collect();
            assert_eq!(found.join("\n"), expected, "{line} {fields}");
        };
        check("GET", "", "");
        check("POST", "Content-Length: 5\n", "Content-Length: 5");
        check("POST", "Transfer-Encoding: chunked\n", "Transfer-Encoding: chunked");
        check("POST", "", "Content-Length: 0");
        check("DELETE", "", "");
    }

    #[test]
    fn only_websocket_upgrades_are_forwarded() {
        let check = |fields: &str, version: &str, expected: bool| {
            let head = forward(&alloc::format!("GET / {version}\nHost: h\n{fields}\n"), Additions::default());
            assert_eq!(head.upgrade, expected, "{fields}");
            let found = written(&head, None, true).contains("Connection: Upgrade\nUpgrade: websocket\n");
            assert_eq!(found, expected, "{fields}");
        };
        check("Connection: Upgrade\nUpgrade: websocket\n", "HTTP/1.1", true);
        check("Connection: keep-alive, upgrade\nUpgrade: WebSocket\n", "HTTP/1.1", true);
        check("Connection: Upgrade\nUpgrade: websocket\n", "HTTP/1.0", false);
        check("Upgrade: websocket\n", "HTTP/1.1", false);
        check("Connection: Upgrade\nUpgrade: h2c\n", "HTTP/1.1", false);
        check("Connection: Upgrade\nUpgrade: websocket, h2c\n", "HTTP/1.1", false);
        check("Connection: Upgrade\nUpgrade: websocket\nUpgrade: h2c\n", "HTTP/1.1", false);
        check("Connection: Upgrade\nUpgrade: websocket\nContent-Length: 1\n", "HTTP/1.1", false);
    }

    /// Head, data, whether complete, whether complete if closed, whether the connection may be used again, bytes left.
    type Read = (String, Vec<u8>, bool, bool, bool, usize);

    fn read(request: &Forward, bytes: &[u8], piece: usize) -> Result<Read, BadResponse> {
        let mut reader = ReplyReader::new(request);
        let (mut head, mut data, mut at) = (String::new(), Vec::new(), 0);
        while at < bytes.len() && !reader.is_done() {
            let found = reader.next(&bytes[at..bytes.len().min(at + piece)])?;
            at += found.used;
            match found.said {
                Said::Nothing => {}
                Said::Head(text) | Said::Switched(text) => head = String::from_utf8(text).expect("ASCII"),
                Said::Interim(_) => {}
                Said::Data(bytes) => data.extend_from_slice(bytes),
            }
        }
        let (whole, at_close) = (reader.is_done(), reader.is_whole_at_close());
        Ok((head, data, whole, at_close, reader.keeps_connection(), bytes.len() - at))
    }

    const GET: &str = "GET / HTTP/1.1\nHost: h\n\n";

    #[test]
    fn responses_may_be_split_anywhere() {
        for piece in [1, 2, 3, 7, 1000] {
            let check = |request: &str, text: &str, expected: (&str, &[u8], bool, bool, bool, usize)| {
                let text = text.replace('\n', "\r\n");
                let (head, data, whole, at_close, keeps, left) = expected;
                let expected = (String::from(head), data.to_vec(), whole, at_close, keeps, left);
                let found = read(&forward(request, Additions::default()), text.as_bytes(), piece);
                assert_eq!(found, Ok(expected), "{text:?} by {piece}");
            };
            let ok = "Status:200 OK\n";
            let head = &*[ok, "A:b\nContent-Length:3\n\n"].concat();
            check(GET, "HTTP/1.1 200 OK\nContent-Length: 3\nA: b\n\nabc", (head, b"abc", true, true, true, 0));
            check(GET, "HTTP/1.1 200 OK\nContent-Length: 3\nA: b\n\nabcHTTP", (head, b"abc", true, true, true, 4));
            check(GET, "HTTP/1.1 200 OK\nContent-Length: 3\nA: b\n\nab", (head, b"ab", false, false, false, 0));
            check(
                "HEAD / HTTP/1.1\nHost: h\n\n",
                "HTTP/1.1 200 OK\nA: b\nContent-Length: 3\n\n",
                (head, b"", true, true, true, 0),
            );
            let head = "Status:200 OK\n\n";
            let chunked = "HTTP/1.1 200 OK\nTransfer-Encoding: chunked\n\n3\nabc\n0\nT: x\n\n";
            check(GET, chunked, (head, b"abc", true, true, true, 0));
            let closing = "HTTP/1.1 200 OK\nTransfer-Encoding: chunked\nConnection: close, x-a\nX-A: b\n\n0\n\n";
            check(GET, closing, (head, b"", true, true, false, 0));
            let cut = "HTTP/1.1 200 OK\nTransfer-Encoding: chunked\n\n3\nabc\n";
            check(GET, cut, (head, b"abc", false, false, false, 0));
            check(GET, "HTTP/1.1 200 OK\n\nabc", (head, b"abc", false, true, false, 0));
            check(GET, "HTTP/1.0 200 OK\nStatus: 500\n\nabc", (head, b"abc", false, true, false, 0));
            check(
                GET,
                "HTTP/1.1 100 Continue\n\nHTTP/1.1 103 Early Hints\nLink: x\n\nHTTP/1.1 204 None\n\n",
                ("Status:204 None\n\n", b"", true, true, true, 0),
            );
            check(GET, "HTTP/1.1 304\nETag: x\n\n", ("Status:304\nETag:x\n\n", b"", true, true, true, 0));
            let upgrade = "GET / HTTP/1.1\nHost: h\nConnection: Upgrade\nUpgrade: websocket\n\n";
            let switched = "HTTP/1.1 101 Switching\nUpgrade: websocket\nConnection: Upgrade\nA: b\n\nabc";
            check(upgrade, switched, ("HTTP/1.1 101 Switching\nA:b\n\n", b"abc", false, true, false, 0));
            check(
                upgrade,
                "HTTP/1.1 200 OK\nContent-Length: 0\n\n",
                ("Status:200 OK\nContent-Length:0\n\n", b"", true, true, true, 0),
            );
        }
    }

    #[test]
    fn interim_responses_are_passed_on_without_fields_of_connection_up_to_a_limit() {
        let passed = |text: &str| {
            let (text, mut passed, mut at) = (text.replace('\n', "\r\n"), Vec::new(), 0);
            let mut reader = ReplyReader::new(&forward(GET, Additions::default()));
            while at < text.len() {
                let piece = reader.next(&text.as_bytes()[at..]).expect("good");
                at += piece.used;
                if let Said::Interim(interim) = piece.said {
                    passed.push(String::from_utf8(interim.head().to_vec()).expect("ASCII").replace("\r\n", "|"));
                }
            }
            assert!(reader.is_done());
            passed
        };
        const FINAL: &str = "HTTP/1.1 204 None\n\n";
        let hints = "HTTP/1.1 103 Hints\nLink: <a>\nServer: x\nConnection: x-a\nX-A: b\nContent-Length: 0\nX-B: c\n\n";
        let others = "HTTP/1.1 100 Continue\n\nHTTP/1.1 102 Processing\n\n";
        let expected = ["HTTP/1.1 102 |", "HTTP/1.1 103 Early Hints|Link: <a>|X-B: c||"]
            .map(|head| head.replace("102 |", "102 ||"));
        assert_eq!(passed(&[others, hints, FINAL].concat()), expected);
        assert_eq!(passed(&[&*hints.repeat(100), FINAL].concat()).len(), INTERIM_MAX);
        let long = alloc::format!("HTTP/1.1 103 H\nLink: {}\n\n", "x".repeat(7000));
        assert_eq!(passed(&[&*long.repeat(3), FINAL].concat()).len(), 2);
    }

    #[test]
    fn heads_are_those_of_scripts() {
        let text = "HTTP/1.1 404 Not There\r\nContent-Type: a/b\r\nSet-Cookie: c\r\nContent-Length: 5\r\n\r\n";
        let (head, ..) = read(&forward(GET, Additions::default()), text.as_bytes(), 9).expect("good");
        let (head, length) = cgi::parse(head.as_bytes()).expect("good").expect("whole");
        assert_eq!((head.answer(), head.reason), (cgi::Answer::Reply(Status(404)), &b"Not There"[..]));
        assert_eq!((head.length, head.fields.len()), (Some(5), 2));
        assert!(length < text.len());
    }

    #[test]
    fn invalid_and_ambiguous_responses_are_rejected() {
        let request = forward(GET, Additions::default());
        for bad in [
            "HTTP/2.0 200 OK\n\n",
            "ICY 200 OK\n\n",
            "HTTP/1.1 99 OK\n\n",
            "HTTP/1.1 600 OK\n\n",
            "HTTP/1.1 200 OK\nA b: c\n\n",
            "HTTP/1.1 200 OK\nA: b\n c\n\n",
            "HTTP/1.1 200 OK\nContent-Length: 5, 5\n\n",
            "HTTP/1.1 200 OK\nContent-Length: 5\nContent-Length: 6\n\n",
            "HTTP/1.1 200 OK\nContent-Length: +5\n\n",
            "HTTP/1.1 200 OK\nContent-Length: 5\nTransfer-Encoding: chunked\n\n",
            "HTTP/1.1 200 OK\nTransfer-Encoding: gzip, chunked\n\n",
            "HTTP/1.1 200 OK\nTransfer-Encoding: chunked, chunked\n\n",
            "HTTP/1.0 200 OK\nTransfer-Encoding: chunked\n\n",
            "HTTP/1.1 200 OK\nTransfer-Encoding: chunked\n\n3\nabcd\n",
            "HTTP/1.1 101 Switching\nUpgrade: websocket\n\n",
        ] {
            let bad = bad.replace('\n', "\r\n");
            for piece in [1, 1000] {
                assert!(read(&request, bad.as_bytes(), piece).is_err(), "{bad:?}");
            }
        }
        let upgrade =
            forward("GET / HTTP/1.1\nHost: h\nConnection: Upgrade\nUpgrade: websocket\n\n", Additions::default());
        assert!(read(&upgrade, b"HTTP/1.1 101 Switching\r\nUpgrade: h2c\r\n\r\n", 1000).is_err());
        assert!(read(&request, &vec![b'H'; reply::HEAD_MAX], 1000).is_err());
    }

    proptest! {
        #[test]
        fn random_bytes_do_not_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300), cut in 0usize..60) {
            let head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nabcde\r\n";
            let mut mixed = head[..cut.min(head.len())].to_vec();
            mixed.extend_from_slice(&bytes);
            let request = forward(GET, Additions::default());
            prop_assert_eq!(read(&request, &mixed, 1000), read(&request, &mixed, 7));
        }
    }
}
