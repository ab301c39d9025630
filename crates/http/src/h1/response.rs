//! The head of a response, serialised with a gap for the date.
//!
//! A head is written once and sent many times: only Date, and the fields that depend on the
//! connection, change from one response to the next, so these are filled in when it is sent.
//! [`Head`] therefore ends before its empty line and records the position of its date.

use alloc::vec::Vec;
use core::fmt;

use once_cell::race::OnceBox;

use crate::date;
use crate::h2::response::ReadyBlock;
use crate::status::Status;

/// The default Server field (RFC 9110, 10.2.4). It names no version, which would mainly help attackers.
const SERVER: &str = "amped";

/// The field by which a site requires https (RFC 6797). It is sent on encrypted connections only (7.2).
pub const HSTS: &str = "Strict-Transport-Security";

/// The bytes between the server's name and the date.
const BEFORE_DATE: &[u8] = b"\r\nDate: ";

/// A response head up to, but not including, its empty line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Head {
    /// The bytes; those of the date are overwritten when the head is sent.
    bytes: Vec<u8>,
    /// Offset of the server's name; it ends where `BEFORE_DATE` begins.
    server_at: usize,
    /// Offset of the [`date::LEN`] bytes of the date.
    date_at: usize,
    /// The date is set and must not be overwritten.
    is_dated: bool,
    status: Status,
    h2_block: Block,
}

impl Head {
    /// A head with the status line, Server and Date.
    pub fn new(status: Status) -> Head {
        Head::with_reason(status, status.reason().as_bytes())
    }

    /// As [`Head::new`], with another reason phrase, which must not contain a line end.
    pub fn with_reason(status: Status, reason: &[u8]) -> Head {
        let mut bytes = Vec::with_capacity(320);
        bytes.extend_from_slice(b"HTTP/1.1 ");
        crate::text::push_decimal(&mut bytes, u64::from(status.0));
        bytes.push(b' ');
        bytes.extend_from_slice(reason);
        bytes.extend_from_slice(b"\r\nServer: ");
        let server_at = bytes.len();
        bytes.extend_from_slice(SERVER.as_bytes());
        bytes.extend_from_slice(BEFORE_DATE);
        let date_at = bytes.len();
        bytes.resize(date_at + date::LEN, b' ');
        bytes.extend_from_slice(b"\r\n");
        Head { bytes, server_at, date_at, is_dated: false, status, h2_block: Block::default() }
    }

    /// Sets the Server field. The value must not contain a line end.
    pub fn server(&mut self, name: &str) -> &mut Head {
        self.h2_block.forget();
        let end = self.date_at - BEFORE_DATE.len();
        self.bytes.splice(self.server_at..end, name.bytes());
        self.date_at = self.server_at + name.len() + BEFORE_DATE.len();
        self
    }

    /// Sets a fixed date, for a response that was generated then (RFC 9110, 6.6.1).
    pub fn date(&mut self, date: &[u8; date::LEN]) -> &mut Head {
        self.h2_block.forget();
        self.bytes[self.date_at..self.date_at + date::LEN].copy_from_slice(date);
        self.is_dated = true;
        self
    }

    /// Appends a field. The value must not contain a line end:
    /// ours come from the checked configuration or our own text.
    pub fn field(&mut self, name: &str, value: impl AsRef<[u8]>) -> &mut Head {
        let value = value.as_ref();
        self.h2_block.forget();
        debug_assert!(!value.iter().any(|&b| b == b'\r' || b == b'\n'), "line end in {name}");
        self.bytes.extend_from_slice(name.as_bytes());
        self.bytes.extend_from_slice(b": ");
        self.bytes.extend_from_slice(value);
        self.bytes.extend_from_slice(b"\r\n");
        self
    }

    /// Appends a field with a numeric value.
    pub fn number(&mut self, name: &str, value: u64) -> &mut Head {
        self.h2_block.forget();
        self.bytes.extend_from_slice(name.as_bytes());
        self.bytes.extend_from_slice(b": ");
        crate::text::push_decimal(&mut self.bytes, value);
        self.bytes.extend_from_slice(b"\r\n");
        self
    }

    /// The values of the fields with this name, which is case-insensitive.
    pub fn values<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a [u8]> {
        self.bytes[self.date_at..].split(|&byte| byte == b'\n').filter_map(move |line| {
            let (found, rest) = line.split_at_checked(name.len())?;
            let value = rest.strip_prefix(b": ").filter(|_| found.eq_ignore_ascii_case(name.as_bytes()))?;
            Some(value.strip_suffix(b"\r").unwrap_or(value))
        })
    }

    /// Whether the field `name` is present with a value that starts with `start`.
    pub fn field_starts_with(&self, name: &str, start: &[u8]) -> bool {
        self.values(name).any(|value| value.starts_with(start))
    }

    /// Removes a field if present; its name is case-insensitive. Server and Date stay.
    pub fn remove(&mut self, name: &str) -> &mut Head {
        self.h2_block.forget();
        let mut at = self.date_at + date::LEN + 2;
        while at < self.bytes.len() {
            let end = memchr::memchr(b'\n', &self.bytes[at..]).map_or(self.bytes.len(), |length| at + length + 1);
            let is_it = self.bytes[at..end].split(|&byte| byte == b':').next();
            if is_it.is_some_and(|found| found.eq_ignore_ascii_case(name.as_bytes())) {
                self.bytes.drain(at..end);
            } else {
                at = end;
            }
        }
        self
    }

    /// The status code.
    pub fn status(&self) -> Status {
        self.status
    }

    /// Size in bytes.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Bytes that it takes in a cache: as many again for its HTTP/2 form, which is made later and hardly ever longer.
    pub fn weight(&self) -> usize {
        self.bytes.len() * 2
    }

    /// Always false: a head has a status line.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// The head as a header block of HTTP/2; it is made once, and then shared by all who share the head.
    pub fn h2_block(&self) -> &ReadyBlock {
        self.h2_block.0.get_or_init(|| {
            let server = &self.bytes[self.server_at..self.date_at - BEFORE_DATE.len()];
            let date = &self.bytes[self.date_at..self.date_at + date::LEN];
            let fields = super::request::fields(&self.bytes[self.date_at..]);
            ReadyBlock::new(self.status, server, self.is_dated.then_some(date), fields).into()
        })
    }

    /// Appends the head to `out`, with the date, the fields of the connection and the empty
    /// line. Its length is padded to a multiple of `alignment`, at least 1, with
    /// spaces after the last value (RFC 9112, 5.1: they are not part of the value).
    pub fn write(
        &self,
        out: &mut Vec<u8>,
        date: &[u8; date::LEN],
        connection: Connection,
        hsts: Option<&str>,
        alignment: usize,
    ) {
        let start = out.len();
        out.extend_from_slice(&self.bytes);
        if !self.is_dated {
            out[start + self.date_at..start + self.date_at + date::LEN].copy_from_slice(date);
        }
        if let Some(hsts) = hsts {
            [HSTS, ": ", hsts, "\r\n"].iter().for_each(|part| out.extend_from_slice(part.as_bytes()));
        }
        out.extend_from_slice(connection.line());
        let lacks = (out.len() + 2 - start).wrapping_neg() % alignment;
        if lacks > 0 {
            out.truncate(out.len() - 2);
            out.resize(out.len() + lacks, b' ');
            out.extend_from_slice(b"\r\n");
        }
        out.extend_from_slice(b"\r\n");
    }
}

/// The HTTP/2 form of a head, once it was asked for. It follows from the head, so that heads are equal with and without
/// it, and a clone makes its own.
#[derive(Default)]
struct Block(OnceBox<ReadyBlock>);

impl Block {
    /// The head changes.
    fn forget(&mut self) {
        self.0 = OnceBox::new();
    }
}

impl Clone for Block {
    fn clone(&self) -> Block {
        Block::default()
    }
}

impl PartialEq for Block {
    fn eq(&self, _: &Block) -> bool {
        true
    }
}

impl Eq for Block {}

impl fmt::Debug for Block {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.get().fmt(f)
    }
}

/// The Connection field of a head (RFC 9112, 9.3 and 9.6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Connection {
    /// No field: the connection persists, the default in HTTP/1.1.
    Persists,
    /// It persists for a client of HTTP/1.0.
    KeepAlive,
    /// It closes after this response.
    Close,
}

impl Connection {
    const fn line(self) -> &'static [u8] {
        match self {
            Connection::Persists => b"",
            Connection::KeepAlive => b"Connection: keep-alive\r\n",
            Connection::Close => b"Connection: close\r\n",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn removed_fields_are_not_written() {
        let mut head = Head::new(Status::OK);
        head.field("Content-Type", "a/b").field("X-A", "1").field("x-a", "2").field("X-AB", "3");
        assert!(head.field_starts_with("content-type", b"a/") && !head.field_starts_with("X-A", b"3"));
        head.remove("X-a").remove("Date").remove("none").remove("content-type");
        let mut out = Vec::new();
        head.write(&mut out, &[b'd'; date::LEN], Connection::Persists, None, 1);
        let expected = b"HTTP/1.1 200 OK\r\nServer: amped\r\nDate: ddddddddddddddddddddddddddddd\r\nX-AB: 3\r\n\r\n";
        assert_eq!(out, expected);
    }

    #[test]
    fn date_is_set_when_header_is_sent() {
        let mut head = Head::new(Status::OK);
        head.number("Content-Length", 5).field("ETag", "\"x\"");
        let mut out = b"before ".to_vec();
        head.write(&mut out, b"Sun, 06 Nov 1994 08:49:37 GMT", Connection::Close, None, 1);
        let expected = b"before HTTP/1.1 200 OK\r\nServer: amped\r\nDate: Sun, 06 Nov 1994 08:49:37 GMT\r\n\
            Content-Length: 5\r\nETag: \"x\"\r\nConnection: close\r\n\r\n";
        assert_eq!(out.escape_ascii().to_string(), expected.escape_ascii().to_string());
    }

    #[test]
    fn explicit_date_is_kept() {
        let mut head = Head::new(Status::OK);
        head.date(b"Sun, 06 Nov 1994 08:49:37 GMT").server("longer than before").field("X", "y");
        let mut out = Vec::new();
        head.write(&mut out, b"Mon, 07 Nov 1994 08:49:37 GMT", Connection::Persists, None, 1);
        let expected =
            b"HTTP/1.1 200 OK\r\nServer: longer than before\r\nDate: Sun, 06 Nov 1994 08:49:37 GMT\r\nX: y\r\n\r\n";
        assert_eq!(out.escape_ascii().to_string(), expected.escape_ascii().to_string());
    }

    #[test]
    fn header_length_is_unlimited() {
        for length in 0..100 {
            let mut head = Head::new(Status::OK);
            head.field("ETag", "x".repeat(length));
            for connection in [Connection::Close, Connection::Persists] {
                let (mut plain, mut aligned) = (Vec::new(), b"before".to_vec());
                head.write(&mut plain, b"Sun, 06 Nov 1994 08:49:37 GMT", connection, None, 1);
                head.write(&mut aligned, b"Sun, 06 Nov 1994 08:49:37 GMT", connection, None, 32);
                let aligned = &aligned[b"before".len()..];
                assert!(aligned.len().is_multiple_of(32) && aligned.len() < plain.len() + 32);
                let without = core::str::from_utf8(aligned).unwrap().replacen(" \r\n\r\n", "\r\n\r\n", 1);
                assert_eq!(without.trim_end().trim_end(), core::str::from_utf8(&plain).unwrap().trim_end());
            }
        }
    }

    #[test]
    fn server_name_may_be_replaced() {
        for name in ["a longer name", "x", ""] {
            let mut head = Head::new(Status::OK);
            head.field("ETag", "\"x\"").server("first").server(name);
            let mut out = Vec::new();
            head.write(&mut out, b"Sun, 06 Nov 1994 08:49:37 GMT", Connection::Persists, None, 1);
            let expected = alloc::format!(
                "HTTP/1.1 200 OK\r\nServer: {name}\r\nDate: Sun, 06 Nov 1994 08:49:37 GMT\r\nETag: \"x\"\r\n\r\n"
            );
            assert_eq!(out.escape_ascii().to_string(), expected.as_bytes().escape_ascii().to_string());
        }
    }

    use alloc::string::ToString;
}
