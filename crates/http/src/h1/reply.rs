//! The head of a response as a client reads it (RFC 9112, 4 and 6.3):
//! its status, how its body ends, and whether the connection persists.
//!
//! `response` writes heads, this module reads them. As strict as the parser of requests: a client that measures must
//! not accept as complete a response that another client would read differently.

use core::mem::MaybeUninit;

use super::request::{Framing, Version};
use crate::text;

/// Maximum header fields of a head.
pub const FIELDS_MAX: usize = 128;

/// Maximum bytes of a head.
pub const HEAD_MAX: usize = 64 * 1024;

/// The parts of a response head that a client needs to read the body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplyHead {
    /// The status code.
    pub status: u16,
    /// The version of the server.
    pub version: Version,
    /// How the body ends.
    pub body: ReplyBody,
    /// Whether the server promises another reply on this connection (RFC 9112, 9.3).
    pub keep_alive: bool,
    /// Whether another recipient might see another end of the body, or need a coding other than chunked to read it: the
    /// head has both lengths and chunks, a transfer coding other than chunked alone, or one in HTTP/1.0 (RFC 9112,
    /// 6.1 and 6.3). A client may read such a response; a gateway must not pass it on.
    pub is_ambiguous: bool,
}

/// How the body of a response ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplyBody {
    /// By its own framing.
    Framed(Framing),
    /// When the connection closes.
    UntilClose,
}

impl ReplyHead {
    /// Whether a final response to the same request follows (RFC 9110, 15.2).
    pub fn is_interim(&self) -> bool {
        self.status < 200
    }
}

/// The head is malformed; the bytes after it cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadReply;

/// Parses one head at the start of `bytes`: `None` needs more bytes, `Some` is the head and its length. `to_head`: the
/// request was a HEAD, so the response has no body, whatever its head says.
///
/// # Errors
/// [`BadReply`] as soon as no further byte can repair the head.
pub fn parse(bytes: &[u8], to_head: bool) -> Result<Option<(ReplyHead, usize)>, BadReply> {
    parse_with(bytes, to_head, |_, _| {})
}

/// As [`parse`]; passes each field of a complete and valid head to `each`, in order, with the value trimmed.
///
/// # Errors
/// Those of [`parse`].
pub fn parse_with<'a>(
    bytes: &'a [u8],
    to_head: bool,
    mut each: impl FnMut(&'a str, &'a [u8]),
) -> Result<Option<(ReplyHead, usize)>, BadReply> {
    let mut fields = [const { MaybeUninit::uninit() }; FIELDS_MAX];
    let mut parsed = httparse::Response::new(&mut []);
    let config = httparse::ParserConfig::default();
    let length = match config.parse_response_with_uninit_headers(&mut parsed, bytes, &mut fields) {
        Ok(httparse::Status::Complete(length)) => length,
        Ok(httparse::Status::Partial) if bytes.len() < HEAD_MAX => return Ok(None),
        Ok(httparse::Status::Partial) | Err(_) => return Err(BadReply),
    };
    let (Some(status), Some(minor)) = (parsed.code, parsed.version) else { return Err(BadReply) };
    let version = if minor == 0 { Version::Http10 } else { Version::Http11 };
    let (mut keep_alive, mut says_close) = (false, false);
    let (mut content_length, mut chunked, mut codings) = (None, false, 0_usize);
    for field in &*parsed.headers {
        // Compare lengths first: most fields are distinguished by length alone.
        match field.name.len() {
            10 if field.name.eq_ignore_ascii_case("connection") => {
                for option in text::list(field.value) {
                    says_close |= option.eq_ignore_ascii_case(b"close");
                    keep_alive |= option.eq_ignore_ascii_case(b"keep-alive");
                }
            }
            14 if field.name.eq_ignore_ascii_case("content-length") => {
                let value = decimal(text::trim_ows(field.value))?;
                // RFC 9112, 6.3: differing values make the message invalid.
                if content_length.replace(value).is_some_and(|before| before != value) {
                    return Err(BadReply);
                }
            }
            17 if field.name.eq_ignore_ascii_case("transfer-encoding") => {
                for coding in text::list(field.value) {
                    // Only the last coding frames the body, and nothing may follow it.
                    if chunked {
                        return Err(BadReply);
                    }
                    chunked = coding.eq_ignore_ascii_case(b"chunked");
                    codings += 1;
                }
            }
            _ => {}
        }
    }
    let coded = codings > 0;
    let is_ambiguous = coded && (content_length.is_some() || !chunked || codings > 1 || version == Version::Http10);
    // RFC 9112, 6.3, in its order: no body, chunked, until close, a length, until close.
    let body = match (status, chunked, coded, content_length) {
        _ if to_head => ReplyBody::Framed(Framing::None),
        (100..=199 | 204 | 304, ..) => ReplyBody::Framed(Framing::None),
        (_, true, _, _) => ReplyBody::Framed(Framing::Chunked),
        (_, false, true, _) => ReplyBody::UntilClose,
        (_, _, _, Some(0)) => ReplyBody::Framed(Framing::None),
        (_, _, _, Some(length)) => ReplyBody::Framed(Framing::Length(length)),
        (_, _, _, None) => ReplyBody::UntilClose,
    };
    let keep_alive = !says_close && (keep_alive || version == Version::Http11) && body != ReplyBody::UntilClose;
    parsed.headers.iter().for_each(|field| each(field.name, text::trim_ows(field.value)));
    Ok(Some((ReplyHead { status, version, body, keep_alive, is_ambiguous }, length)))
}

fn decimal(text: &[u8]) -> Result<u64, BadReply> {
    if text.is_empty() || text.len() > 18 {
        return Err(BadReply);
    }
    text.iter().try_fold(0, |value, digit| match digit {
        b'0'..=b'9' => Ok(value * 10 + u64::from(digit - b'0')),
        _ => Err(BadReply),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::format;
    use proptest::prelude::*;

    #[test]
    fn response_headers_are_parsed() {
        let check = |head: &str, status: u16, body: ReplyBody, keep_alive: bool| {
            let head = head.replace('\n', "\r\n");
            let (found, length) = parse(head.as_bytes(), false).expect("well formed").expect("whole");
            assert_eq!((found.status, found.body, found.keep_alive), (status, body, keep_alive), "{head:?}");
            assert_eq!(length, head.len());
            for end in 0..length {
                assert_eq!(parse(&head.as_bytes()[..end], false), Ok(None), "{head:?} to {end}");
            }
        };
        use ReplyBody::{Framed, UntilClose};
        check("HTTP/1.1 200 OK\nContent-Length: 5\n\n", 200, Framed(Framing::Length(5)), true);
        check("HTTP/1.1 200\ncontent-length: 0\n\n", 200, Framed(Framing::None), true);
        check("HTTP/1.1 200 OK\nContent-Length: 5\nConnection: x, Close\n\n", 200, Framed(Framing::Length(5)), false);
        check("HTTP/1.0 200 OK\nContent-Length: 5\n\n", 200, Framed(Framing::Length(5)), false);
        let kept = "HTTP/1.0 200 OK\nContent-Length: 5\nConnection: Keep-Alive\n\n";
        check(kept, 200, Framed(Framing::Length(5)), true);
        check(
            "HTTP/1.1 200 OK\nTransfer-Encoding: chunked\nContent-Length: 5\n\n",
            200,
            Framed(Framing::Chunked),
            true,
        );
        check("HTTP/1.1 200 OK\nTransfer-Encoding: gzip, chunked\n\n", 200, Framed(Framing::Chunked), true);
        check("HTTP/1.1 200 OK\nTransfer-Encoding: gzip\n\n", 200, UntilClose, false);
        check("HTTP/1.1 200 OK\n\n", 200, UntilClose, false);
        check("HTTP/1.1 304 Not Modified\nContent-Length: 5\n\n", 304, Framed(Framing::None), true);
        check("HTTP/1.1 100 Continue\n\n", 100, Framed(Framing::None), true);
        check("HTTP/1.1 200 OK\nContent-Length: 5\nContent-Length: 5\n\n", 200, Framed(Framing::Length(5)), true);
    }

    #[test]
    fn ambiguous_framing_is_reported() {
        let check = |head: &str, expected: bool| {
            let head = head.replace('\n', "\r\n");
            let (found, _) = parse(head.as_bytes(), false).expect("well formed").expect("whole");
            assert_eq!(found.is_ambiguous, expected, "{head:?}");
        };
        check("HTTP/1.1 200 OK\nTransfer-Encoding: Chunked\n\n", false);
        check("HTTP/1.1 200 OK\nContent-Length: 5\nContent-Length: 5\n\n", false);
        check("HTTP/1.1 200 OK\n\n", false);
        check("HTTP/1.1 200 OK\nTransfer-Encoding: chunked\nContent-Length: 5\n\n", true);
        check("HTTP/1.1 200 OK\nContent-Length: 0\nTransfer-Encoding: chunked\n\n", true);
        check("HTTP/1.1 200 OK\nTransfer-Encoding: gzip\nTransfer-Encoding: chunked\n\n", true);
        check("HTTP/1.1 200 OK\nTransfer-Encoding: identity\n\n", true);
        check("HTTP/1.0 200 OK\nTransfer-Encoding: chunked\n\n", true);
    }

    #[test]
    fn head_response_has_no_body() {
        for fields in ["Content-Length: 5\r\n", "Transfer-Encoding: chunked\r\n", "", "Content-Length: 0\r\n"] {
            let head = format!("HTTP/1.1 200 OK\r\n{fields}\r\n");
            let (found, length) = parse(head.as_bytes(), true).expect("well formed").expect("whole");
            let expected = (ReplyBody::Framed(Framing::None), true, head.len());
            assert_eq!((found.body, found.keep_alive, length), expected, "{fields:?}");
        }
    }

    #[test]
    fn malformed_header_is_rejected() {
        for bad in [
            "FTP/1.1 200 OK\r\n\r\n",
            "HTTP/1.1 2x0 OK\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: 1234567890123456789\r\n\r\n",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked, gzip\r\n\r\n",
        ] {
            assert_eq!(parse(bad.as_bytes(), false), Err(BadReply), "{bad:?}");
        }
        assert_eq!(parse(&[b'x'; HEAD_MAX], false), Err(BadReply));
    }

    proptest! {
        #[test]
        fn random_bytes_do_not_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300), cut in 0usize..60) {
            let head = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n";
            let mut mixed = head[..cut.min(head.len())].to_vec();
            mixed.extend_from_slice(&bytes);
            if let Ok(Some((_, length))) = parse(&mixed, false) {
                prop_assert!(length <= mixed.len());
            }
        }
    }
}
