//! The ring buffer of perf_event_open(2) with any content: never a panic; no sample is longer than the input, and the
//! samples of a prefix are a prefix of all samples.
#![no_main]

use amped_sys::perf::{Record, records};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let read = |bytes: &[u8]| {
        let mut found = Vec::new();
        records(bytes, &mut |record| found.push(record));
        found
    };
    let found = read(bytes);
    assert!(read(&bytes[..bytes.len() / 2]).iter().zip(&found).all(|(one, other)| one == other));
    for record in found {
        let Record::Sample(sample) = record else { continue };
        assert!(8 * sample.kernel_chain.len() < bytes.len());
    }
});
