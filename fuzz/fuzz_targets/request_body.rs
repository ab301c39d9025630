//! Chunked bodies: never a panic; the same data and the same end however the bytes are split.
#![no_main]

use amped_http::h1::body::BodyReader;
use amped_http::h1::request::Framing;

fn read(bytes: &[u8], piece: usize) -> Option<(Vec<u8>, usize, bool)> {
    let (mut reader, mut data, mut at) = (BodyReader::new(Framing::Chunked), Vec::new(), 0);
    while at < bytes.len() && !reader.is_done() {
        let found = reader.next(&bytes[at..bytes.len().min(at + piece)]).ok()?;
        data.extend_from_slice(found.data);
        at += found.used;
    }
    Some((data, at, reader.is_done()))
}

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let whole = read(bytes, usize::MAX / 2);
    for piece in [1, 2, 7] {
        assert_eq!(whole, read(bytes, piece));
    }
});
