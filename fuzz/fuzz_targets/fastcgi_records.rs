//! FastCGI records of an application: never a panic, no byte twice, and the same result however they are split.
#![no_main]

use amped_http::fastcgi::{BadRecord, RecordReader, Said};

/// Output, error output, and how the request ended.
type Read = (Vec<u8>, Vec<u8>, Option<bool>);

fn read(bytes: &[u8], piece: usize) -> Result<Read, BadRecord> {
    let mut reader = RecordReader::default();
    let (mut output, mut errors, mut at) = (Vec::new(), Vec::new(), 0);
    while at < bytes.len() {
        let found = reader.next(&bytes[at..bytes.len().min(at + piece)])?;
        assert!(found.used > 0, "no byte was consumed");
        at += found.used;
        match found.said {
            Said::Nothing => {}
            Said::Output(data) => output.extend_from_slice(data),
            Said::Error(data) => errors.extend_from_slice(data),
            Said::End => return Ok((output, errors, Some(true))),
            Said::Refused(_) => return Ok((output, errors, Some(false))),
        }
    }
    assert!(output.len() + errors.len() <= bytes.len());
    Ok((output, errors, None))
}

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let whole = read(bytes, bytes.len().max(1));
    assert_eq!(whole, read(bytes, 1));
    assert_eq!(whole, read(bytes, 7));
});
