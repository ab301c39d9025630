//! What all requests of a run have in common on the wire, prepared once: the bytes around the target.

use amped_http::h1::request::Version;
use amped_http::h2::hpack;

/// The parts of a request that do not depend on its target.
#[derive(Clone, Debug)]
pub(super) struct RequestTexts {
    pub(super) version: Version,
    /// `https`, not `http`.
    pub(super) secure: bool,
    pub(super) authority: Box<str>,
    /// More header fields, each with its line end.
    pub(super) fields: Box<str>,
    /// The method of requests that are not HEAD.
    pub(super) method: Box<str>,
    pub(super) body: Box<[u8]>,
}

/// The bytes around the target of a request.
#[derive(Clone, Debug)]
pub(super) enum Template {
    /// What follows the target, including the body: of a request, and of a connection's last request.
    Http1([Box<[u8]>; 2]),
    /// The header block.
    Http2 {
        /// The pseudo-fields before `:path`: of a request, and of a HEAD request.
        before: [Box<[u8]>; 2],
        /// The fields after it.
        after: Box<[u8]>,
    },
}

impl Template {
    pub(super) fn of(texts: &RequestTexts) -> Template {
        match texts.version {
            Version::Http10 => texts.http1("HTTP/1.0", ["Connection: keep-alive\r\n", ""]),
            Version::Http11 => texts.http1("HTTP/1.1", ["", "Connection: close\r\n"]),
            Version::Http2 => texts.http2(),
        }
    }
}

impl RequestTexts {
    /// `connection`: the field of a request that is not the last one, and of the last one.
    fn http1(&self, version: &str, connection: [&str; 2]) -> Template {
        let RequestTexts { authority, fields, .. } = self;
        let length = self.content_length().map_or(String::new(), |length| format!("Content-Length: {length}\r\n"));
        Template::Http1(connection.map(|connection| {
            let head = format!(" {version}\r\nHost: {authority}\r\n{connection}{fields}{length}\r\n");
            [head.as_bytes(), &self.body].concat().into_boxed_slice()
        }))
    }

    fn http2(&self) -> Template {
        let before = [&*self.method, "HEAD"].map(|method| {
            let mut block = Vec::new();
            let scheme: &[u8] = if self.secure { b"https" } else { b"http" };
            hpack::write_field(&mut block, b":method", method.as_bytes());
            hpack::write_field(&mut block, b":scheme", scheme);
            hpack::write_field(&mut block, b":authority", self.authority.as_bytes());
            block.into_boxed_slice()
        });
        let mut after = Vec::new();
        for (name, value) in self.fields.lines().filter_map(|line| line.split_once(':')) {
            hpack::write_field(&mut after, name.as_bytes(), value.trim().as_bytes());
        }
        if let Some(length) = self.content_length() {
            hpack::write_field(&mut after, b"content-length", length.to_string().as_bytes());
        }
        Template::Http2 { before, after: after.into_boxed_slice() }
    }

    /// The length of the body, if requests state it (RFC 9110, 8.6).
    fn content_length(&self) -> Option<usize> {
        let is_stated = !self.body.is_empty() || ["POST", "PUT", "PATCH"].contains(&&*self.method);
        is_stated.then_some(self.body.len())
    }
}
