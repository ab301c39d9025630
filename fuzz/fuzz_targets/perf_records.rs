//! The ring buffer of perf_event_open(2) with any content: never a panic; no sample is longer than the input, and the
//! samples of a prefix are a prefix of all samples.
#![no_main]

use amped_sys::perf::{Record, records};
use amped_sys::syscall;

/// The event id in the records; the seeds contain it.
const NUMBERS: u64 = 71;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let read = |bytes: &[u8], numbers| {
        let mut found = Vec::new();
        records(bytes, numbers, &mut |record| found.push(record));
        found
    };
    for numbers in [None, Some(NUMBERS)] {
        let found = read(bytes, numbers);
        assert!(read(&bytes[..bytes.len() / 2], numbers).iter().zip(&found).all(|(one, other)| one == other));
        for record in found {
            let Record::Sample(sample) = record else { continue };
            assert!(
                8 * sample.kernel_chain.len() < bytes.len() && (numbers.is_some() || sample.saved_number.is_none())
            );
            sample.saved_number.map(syscall::name);
        }
    }
});
