//! The head of a response: never a panic; a prefix of a valid head needs more input; a response to HEAD has no body,
//! and is otherwise equal.
#![no_main]

use amped_http::h1::reply::{HEAD_MAX, ReplyBody, ReplyHead, parse};
use amped_http::h1::request::Framing;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let Ok(Some((head, length))) = parse(bytes, false) else { return };
    assert!(length <= bytes.len().min(HEAD_MAX));
    // A line may end with LF alone (RFC 9112, 2.2).
    assert!(bytes[..length].ends_with(b"\n"));
    for cut in [0, length / 2, length - 1] {
        assert_eq!(parse(&bytes[..cut], false), Ok(None), "a prefix of a valid head is not rejected");
    }
    let (to_head, again) = parse(&bytes[..length], true).expect("good").expect("whole");
    assert_eq!((to_head.body, again), (ReplyBody::Framed(Framing::None), length));
    let ReplyHead { status, version, .. } = to_head;
    assert_eq!((status, version), (head.status, head.version));
    assert!(to_head.keep_alive || !head.keep_alive);
});
