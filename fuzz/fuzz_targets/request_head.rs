//! The head of a request: never a panic; a prefix of a valid head needs more input; parsing the head again
//! gives the same.
#![no_main]

use amped_http::h1::request::{HeadLimits, blank_lines, parse};

const LIMITS: HeadLimits = HeadLimits { request_line: 1000, head: 4000, fields: 50, secure: false };

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let bytes = &bytes[blank_lines(bytes)..];
    if let Ok(Some((request, length))) = parse(bytes, &LIMITS) {
        assert!(length <= bytes.len() && length <= LIMITS.head);
        assert!(bytes[..length].ends_with(b"\r\n\r\n"));
        for cut in [0, length / 2, length - 1] {
            assert!(matches!(parse(&bytes[..cut], &LIMITS), Ok(None)), "a prefix of a valid head is not rejected");
        }
        let (again, _) = parse(&bytes[..length], &LIMITS).expect("good").expect("whole");
        assert_eq!((request.target, request.framing, request.host), (again.target, again.framing, again.host));
    }
});
