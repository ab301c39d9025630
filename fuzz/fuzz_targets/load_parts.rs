//! What a generator on another machine came to: never a panic; what is no part of the same plan is refused, and of two that are the
//! same all counts are twice as much.
#![no_main]

use ammeter_load::parts::Parts;

libfuzzer_sys::fuzz_target!(|text: &str| {
    let Ok(parts) = Parts::read(text) else { return };
    let both = [("a".to_owned(), parts.clone()), ("b".to_owned(), parts.clone())];
    let Ok(merged) = Parts::merge(&both) else { return };
    assert_eq!(merged.ok, parts.outcome.ok.saturating_mul(2));
    assert_eq!(merged.series.len(), Parts::intervals(&both).count());
});
