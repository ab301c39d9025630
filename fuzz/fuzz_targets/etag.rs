//! Entity tags: a field with one tag is a list of that tag, and a strong match implies a weak one.
#![no_main]

use amped_http::etag::{EntityTag, list_matches_strong, list_matches_weak};

libfuzzer_sys::fuzz_target!(|field: &[u8]| {
    if let Some(tag) = EntityTag::parse(field) {
        assert!(list_matches_weak(field, tag.opaque));
        assert_eq!(list_matches_strong(field, tag.opaque), !tag.weak);
    }
    assert!(!list_matches_strong(field, b"\"abc\"") || list_matches_weak(field, b"\"abc\""));
});
