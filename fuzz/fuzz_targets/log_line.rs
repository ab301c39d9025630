//! A line of an access log: never a panic; every parsed part occurs in the line; the target made from it can be
//! requested.
#![no_main]

use ammeter_load::workload::log::{Log, parse, target_of};
use amped_http::uri::Target;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    if let Ok(line) = parse(bytes) {
        assert!((100..1000).contains(&line.status) && line.zone_min.abs() < 24 * 60);
        assert!(!line.client.is_empty() && !line.client.contains(&b' '));
        assert!(line.request.len() + line.client.len() < bytes.len());
        if let Ok(target) = target_of(line.request) {
            assert!(matches!(Target::parse(&target, false), Some(Target::Origin { .. })));
        }
    }
    let log = Log::read_from(bytes);
    let odd: u64 = log.tally().odd.values().sum();
    assert_eq!(odd + log.len() as u64, log.tally().lines);
});
