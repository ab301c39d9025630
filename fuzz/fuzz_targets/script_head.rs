//! The head of a script's response: never a panic; a prefix of a valid head needs more input; no value contains a line
//! break; and further bytes do not change whether a head is valid.
#![no_main]

use amped_http::cgi::{Answer, HEAD_MAX, parse};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let found = parse(bytes);
    let followed = [bytes, b"X: y\n\n"].concat();
    match &found {
        Ok(None) => {}
        decided => assert_eq!(*decided, parse(&followed)),
    }
    let Ok(Some((head, length))) = found else { return };
    assert!(length <= bytes.len().min(HEAD_MAX) && bytes[..length].ends_with(b"\n"));
    for cut in [0, length / 2, length - 1] {
        assert_eq!(parse(&bytes[..cut]), Ok(None), "a prefix of a valid head is not rejected");
    }
    for (name, value) in &head.fields {
        assert!(!name.is_empty() && !name.contains([' ', ':']));
        assert!(!value.iter().any(|byte| b"\r\n\0".contains(byte)));
    }
    match head.answer() {
        Answer::Reply(status) => assert!((200..600).contains(&status.0)),
        Answer::Instead(path) => assert!(path.starts_with(b"/") && head.status.is_none()),
    }
});
