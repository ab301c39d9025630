//! The response of a backend: never a panic, no byte twice, and the same result however it is split; its head is one that
//! the parser of scripts' heads accepts or rejects without more bytes.
#![no_main]

use amped_http::cgi;
use amped_http::h1::gateway::{Additions, BadResponse, Forward, ReplyReader, Said};
use amped_http::h1::request::{self, HeadLimits};
use amped_http::interim::Interim;

/// Responses before the final one, its head, data, and whether it is complete, would be if the connection closed, and has
/// switched.
type Read = (Vec<Interim>, Vec<u8>, Vec<u8>, [bool; 3]);

fn read(request: &Forward, bytes: &[u8], piece: usize) -> Result<Read, BadResponse> {
    let mut reader = ReplyReader::new(request);
    let (mut interim, mut head, mut data, mut at) = (Vec::new(), Vec::new(), Vec::new(), 0);
    while at < bytes.len() && !reader.is_done() {
        let found = reader.next(&bytes[at..bytes.len().min(at + piece)])?;
        assert!(found.used > 0, "no byte was consumed");
        at += found.used;
        match found.said {
            Said::Nothing => {}
            Said::Interim(response) => {
                assert!(!reader.has_head(), "an interim response after the final head");
                interim.push(response);
            }
            Said::Head(text) | Said::Switched(text) => {
                assert!(head.is_empty() && data.is_empty() && reader.has_head(), "a second head");
                assert!(text.len() <= at, "the head grew");
                head = text;
            }
            Said::Data(bytes) => data.extend_from_slice(bytes),
        }
    }
    assert!(data.len() <= bytes.len());
    assert!(!reader.keeps_connection() || reader.is_done());
    Ok((interim, head, data, [reader.is_done(), reader.is_whole_at_close(), reader.has_switched()]))
}

const REQUESTS: [&str; 3] = [
    "GET / HTTP/1.1\r\nHost: h\r\n\r\n",
    "HEAD / HTTP/1.1\r\nHost: h\r\n\r\n",
    "GET / HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
];

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    for text in REQUESTS {
        let limits = HeadLimits::unlimited(false);
        let (request, _) = request::parse(text.as_bytes(), &limits).expect("good").expect("whole");
        let fields = || request::fields(text.as_bytes());
        let request = Forward::new(&request, b"/", fields, Additions::default());
        let whole = read(&request, bytes, bytes.len().max(1));
        assert_eq!(whole, read(&request, bytes, 1));
        assert_eq!(whole, read(&request, bytes, 7));
        if let Ok((_, head, _, [_, _, false])) = &whole
            && !head.is_empty()
        {
            assert_ne!(cgi::parse(head), Ok(None), "the head has no end");
        }
    }
});
