//! The PROXY protocol: never a panic; a prefix of a valid header needs more bytes; what follows it does not matter.
#![no_main]

use amped_http::proxy_header::{HEADER_MAX, parse};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    match parse(bytes) {
        Ok(Some(header)) => {
            assert!(header.length <= bytes.len().min(HEADER_MAX));
            assert_eq!(parse(&bytes[..header.length]), Ok(Some(header)));
            for cut in [0, 1, header.length / 2, header.length - 1] {
                assert_eq!(parse(&bytes[..cut]), Ok(None), "a prefix of a valid header is not rejected");
            }
        }
        // No byte can repair it.
        Err(error) => assert_eq!(parse(&[bytes, b"\r\n"].concat()), Err(error)),
        Ok(None) => assert!(bytes.len() < HEADER_MAX, "the length of a header is bounded"),
    }
});
