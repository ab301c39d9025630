//! Compression of responses of applications, if their rule asks for it: which are compressed, and what becomes of the head.
//!
//! `exchange/app_request` asks here when the head of a response is complete; then the driver has the body compressed by a thread
//! while it arrives ([`StreamWork`](crate::compress::StreamWork)), and returns it as output of the application.
//!
//! A compressed response has no length, no ranges and a weak tag: the bytes depend on the pieces in which it arrived, so a strong
//! tag would name several sequences of bytes. A weak one still matches what the application compares (RFC 9110, 8.8.3.2), so it
//! answers conditional requests as before; with a suffix, it would not know the tag as its own.

use alloc::vec::Vec;

use amped_http::caching;
use amped_http::cgi::ScriptHead;
use amped_http::etag::EntityTag;
use amped_http::h1::request::{Request, Version};
use amped_http::negotiate::Coding;
use amped_http::status::Status;
use amped_http::text;

use crate::compress::SIZE_MIN;
use crate::reply;
use crate::site::AppRule;
use crate::traits::is_compressible;

/// The coding in which a client gets responses of this rule that can be compressed.
///
/// A body without a length needs chunks, which clients of HTTP/1.0 cannot read.
pub(crate) fn coding(rule: &AppRule, request: &Request<'_>) -> Coding {
    if rule.compress.is_empty() || request.version == Version::Http10 {
        return Coding::Identity;
    }
    reply::accepted(request).choose(rule.compress.iter().copied())
}

/// Fields of a response whose body must not be changed. A digest is that of the encoded body (RFC 9530, 2).
const OF_BODY: [&str; 5] = ["Content-Encoding", "Content-Range", "Content-MD5", "Content-Digest", "Digest"];

/// Statuses of responses without a body, or with a part of one (RFC 9110, 15).
const NOT_WHOLE: [Status; 4] =
    [Status::NO_CONTENT, Status::RESET_CONTENT, Status::PARTIAL_CONTENT, Status::NOT_MODIFIED];

/// Whether the body of this response can be compressed.
pub(crate) fn is_compressible_response(status: Status, head: &ScriptHead<'_>) -> bool {
    let mut types = fields(head, "Content-Type").filter_map(|value| core::str::from_utf8(value).ok());
    types.next().is_some_and(is_compressible)
        && !NOT_WHOLE.contains(&status)
        && head.length.is_none_or(|length| length >= SIZE_MIN)
        && !OF_BODY.iter().any(|name| fields(head, name).next().is_some())
        && !fields(head, "Cache-Control").any(caching::forbids_transformation)
}

fn fields<'a>(head: &ScriptHead<'a>, name: &str) -> impl Iterator<Item = &'a [u8]> {
    head.fields.iter().filter(move |(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, value)| *value)
}

/// The value of the response's ETag, made weak; empty if there is none.
pub(crate) fn weak_tag(head: &ScriptHead<'_>) -> Vec<u8> {
    let tag = fields(head, "ETag").next().unwrap_or_default();
    match EntityTag::parse(tag) {
        Some(EntityTag { weak: false, opaque }) => [b"W/", opaque].concat(),
        _ => tag.to_vec(),
    }
}

/// The head of a response that other clients may get in another coding. `weak_tag`: see [`weak_tag`]; `None`: this client gets it
/// as it is.
pub(crate) fn varying<'a>(head: &ScriptHead<'a>, weak_tag: Option<&'a [u8]>) -> ScriptHead<'a> {
    let mut head = head.clone();
    if let Some(tag) = weak_tag {
        head.fields.retain(|(name, _)| !name.eq_ignore_ascii_case("Accept-Ranges"));
        let tags = head.fields.iter_mut().filter(|(name, _)| name.eq_ignore_ascii_case("ETag"));
        tags.for_each(|(_, value)| *value = tag);
    }
    let is_said = |name: &[u8]| name == b"*" || name.eq_ignore_ascii_case(b"Accept-Encoding");
    if !fields(&head, "Vary").any(|value| text::list(value).any(is_said)) {
        head.fields.push(("Vary", b"Accept-Encoding"));
    }
    head
}

/// The head of a response with a body in this coding.
pub(crate) fn encoded<'a>(head: &ScriptHead<'a>, coding: Coding, weak_tag: &'a [u8]) -> ScriptHead<'a> {
    let mut head = varying(head, Some(weak_tag));
    head.fields.push(("Content-Encoding", coding.token().as_bytes()));
    head.length = None;
    head
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::String;
    use amped_http::cgi;

    fn check(head: &str, f: impl FnOnce(Status, &ScriptHead<'_>)) {
        let text = [head, "\n\n"].concat();
        let (head, _) = cgi::parse(text.as_bytes()).expect("good").expect("whole");
        let cgi::Answer::Reply(status) = head.answer() else { panic!("{text}") };
        f(status, &head);
    }

    #[test]
    fn only_whole_text_of_some_length_is_compressed() {
        let check = |head: &str, expected| {
            check(head, |status, head| assert_eq!(is_compressible_response(status, head), expected, "{head:?}"));
        };
        check("Content-Type: text/html", true);
        check("content-type: application/json; charset=utf-8\nContent-Length: 1024", true);
        check("Content-Type: text/html\nStatus: 404 Not Found", true);
        check("Content-Type: text/html\nContent-Length: 1023", false);
        check("Content-Type: image/png", false);
        check("X: y", false);
        for status in [204, 205, 206, 304] {
            check(&alloc::format!("Content-Type: text/html\nStatus: {status}"), false);
        }
        for field in ["Content-Encoding: gzip", "content-encoding: identity", "Content-MD5: x", "Content-Digest: x"] {
            check(&alloc::format!("Content-Type: text/html\n{field}"), false);
        }
        check("Content-Type: text/html\nCache-Control: public, No-Transform", false);
        check("Content-Type: text/html\nCache-Control: public, x=\"no-transform\"", true);
    }

    #[test]
    fn head_of_compressed_response_promises_only_what_holds() {
        let check = |head: &str, expected: &str| {
            check(head, |_, head| {
                let tag = weak_tag(head);
                let head = encoded(head, Coding::Gzip, &tag);
                let lines = head
                    .fields
                    .iter()
                    .map(|(name, value)| alloc::format!("{name}: {}\n", core::str::from_utf8(value).expect("text")));
                assert_eq!((lines.collect::<String>().trim_end(), head.length), (expected, None));
            });
        };
        let end = "Vary: Accept-Encoding\nContent-Encoding: gzip";
        check("A: b\nContent-Length: 5000\nAccept-Ranges: bytes", &["A: b\n", end].concat());
        check("ETag: \"x\"", &["ETag: W/\"x\"\n", end].concat());
        check("ETag: W/\"x\"", &["ETag: W/\"x\"\n", end].concat());
        check("ETag: odd", &["ETag: odd\n", end].concat());
        check("Vary: Cookie", &["Vary: Cookie\n", end].concat());
        check("Vary: cookie, accept-encoding", "Vary: cookie, accept-encoding\nContent-Encoding: gzip");
        check("Vary: *", "Vary: *\nContent-Encoding: gzip");
    }
}
