//! Authorization: parsed credentials have a name without a colon, and encode to the same credentials.
#![no_main]

use amped_http::auth::Credentials;

libfuzzer_sys::fuzz_target!(|field: &[u8]| {
    if let Some(credentials) = Credentials::parse(field) {
        assert!(!credentials.name().contains(&b':'));
        assert_eq!(Credentials::new(credentials.name(), credentials.password()), Some(credentials));
    }
});
