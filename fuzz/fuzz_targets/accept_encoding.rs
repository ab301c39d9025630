//! Accept-Encoding: the choice is available, and no available coding is better.
#![no_main]

use amped_http::negotiate::{Accepted, Coding, prefers_json};

libfuzzer_sys::fuzz_target!(|field: &[u8]| {
    let accepted = Accepted::parse(Some(field));
    for available in [&Coding::SIBLINGS[..], &[Coding::Gzip], &[]] {
        let chosen = accepted.choose(available.iter().copied());
        assert!(chosen == Coding::Identity || available.contains(&chosen));
        assert!(available.iter().all(|&coding| accepted.quality(coding) <= accepted.quality(chosen)));
    }
    // A repeated field changes nothing.
    assert_eq!(accepted.and(field), accepted);
    let _ = prefers_json(Some(field));
});
