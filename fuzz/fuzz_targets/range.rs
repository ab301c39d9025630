//! Range: parts are non-empty, within the size, disjoint, and no more than allowed.
#![no_main]

use amped_http::range::{Ranges, parse};

const COUNT_MAX: usize = 16;

libfuzzer_sys::fuzz_target!(|field: &[u8]| {
    for size in [0, 1, 10, 1000, u64::MAX] {
        if let Ranges::Partial(mut ranges) = parse(field, size, COUNT_MAX) {
            assert!(!ranges.is_empty() && ranges.len() <= COUNT_MAX);
            assert!(ranges.iter().all(|range| range.start < range.end && range.end <= size));
            ranges.sort_unstable_by_key(|range| range.start);
            assert!(ranges.windows(2).all(|pair| pair[0].end < pair[1].start));
        }
    }
});
