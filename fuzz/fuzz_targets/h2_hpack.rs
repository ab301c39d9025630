//! Header blocks of HTTP/2 on one connection: never a panic; table and list within their limits; the limits of the list
//! do not change what is decoded; and a request that is accepted means the same to the parser of HTTP/1.
#![no_main]

use amped_http::h1::request::{self, HeadLimits};
use amped_http::h2::fields::FieldList;
use amped_http::h2::head::{FlatHead, check_trailers};
use amped_http::h2::hpack::{Decoder, TABLE_BYTES};

const LIMITS: HeadLimits = HeadLimits { request_line: 1000, head: 4000, fields: 50, secure: false };
const LIST_BYTES: usize = 5000;

/// A block is preceded by its length, two bytes.
fn blocks(mut bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || {
        let (length, rest) = bytes.split_first_chunk()?;
        let length = usize::from(u16::from_be_bytes(*length)).min(rest.len());
        let (block, rest) = rest.split_at(length);
        bytes = rest;
        Some(block)
    })
}

/// Checks that no byte of the client has changed the lines of the flat form, and that HTTP/1 reads it the same way.
fn check_flat(head: &FlatHead, fields: &FieldList) {
    let bytes = head.bytes();
    let Ok(request) = head.request(&LIMITS) else { return };
    let lines = bytes.iter().filter(|&&byte| byte == b'\n').count();
    let cookies = fields.iter().filter(|(name, _)| *name == b"cookie").count();
    let hosts = fields.iter().filter(|(name, _)| *name == b"host" || *name == b":authority").count();
    let others = fields.iter().filter(|(name, _)| !name.starts_with(b":")).count();
    let at_most = 2 + others - cookies + cookies.min(1) + hosts.min(1);
    assert!(lines <= at_most && !bytes.contains(&0), "{}", bytes.escape_ascii());

    let line_end = bytes.iter().position(|&byte| byte == b'\r').expect("a request line");
    let mut as_1_1 = bytes.to_vec();
    as_1_1[line_end - 8..line_end].copy_from_slice(b"HTTP/1.1");
    let (known, length) = request::parse(&as_1_1, &LIMITS).expect("good").expect("whole");
    assert_eq!(length, as_1_1.len());
    assert_eq!(
        (known.method, known.method_text, known.target_text),
        (request.method, request.method_text, request.target_text)
    );
    assert_eq!((known.target, known.host, known.keep_alive), (request.target, request.host, request.keep_alive));
    assert_eq!(
        (known.range, known.if_range, known.authorization),
        (request.range, request.if_range, request.authorization)
    );
    assert_eq!(known.if_modified_since, request.if_modified_since);
    assert!(known.if_none_match.iter().eq(request.if_none_match.iter()));
    let own = request::parse_own(bytes, &LIMITS).expect("good");
    assert_eq!((own.target, own.host, own.version), (request.target, request.host, request.version));
}

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let (mut decoder, mut other) = (Decoder::new(), Decoder::new());
    let (mut fields, mut unlimited) = (FieldList::new(LIST_BYTES, 20), FieldList::new(usize::MAX, usize::MAX));
    let mut head = FlatHead::new();
    for block in blocks(bytes) {
        fields.clear();
        unlimited.clear();
        let decoded = decoder.decode(block, &mut fields);
        assert_eq!(decoded, other.decode(block, &mut unlimited));
        assert!(decoder.table_bytes() <= TABLE_BYTES && decoder.heap_bytes() <= 2 * TABLE_BYTES);
        if decoded.is_err() {
            return;
        }
        assert_eq!((decoder.table_bytes(), fields.size()), (other.table_bytes(), unlimited.size()));
        assert!(fields.iter().eq(unlimited.iter().take(fields.len())));
        assert_eq!(fields.len() < unlimited.len(), fields.is_over_limit());
        assert!(fields.iter().map(|(name, value)| name.len() + value.len() + 32).sum::<usize>() <= LIST_BYTES);
        let _ = check_trailers(&fields);
        if head.fill(&unlimited, true).is_ok() {
            check_flat(&head, &unlimited);
        }
    }
});
