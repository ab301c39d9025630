//! Authorization: what is read has a name without a colon, and comes back as it is from its parts.
#![no_main]

use amped_http::auth::Credentials;

libfuzzer_sys::fuzz_target!(|field: &[u8]| {
    if let Some(credentials) = Credentials::parse(field) {
        assert!(!credentials.name().contains(&b':'));
        assert_eq!(Credentials::new(credentials.name(), credentials.password()), Some(credentials));
    }
});
