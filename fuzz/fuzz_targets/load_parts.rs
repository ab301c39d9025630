//! The result of a load generator on another host: never a panic; a part of another plan is refused, and merging two
//! equal parts doubles all counts.
#![no_main]

use ammeter_load::parts::Parts;

libfuzzer_sys::fuzz_target!(|text: &str| {
    let Ok(parts) = Parts::read(text) else { return };
    let both = [("a".to_owned(), parts.clone()), ("b".to_owned(), parts.clone())];
    let Ok(merged) = Parts::merge(&both) else { return };
    assert_eq!(merged.ok, parts.outcome.ok.saturating_mul(2));
    assert_eq!(merged.series.len(), Parts::intervals(&both).count());
});
