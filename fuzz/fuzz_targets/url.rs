//! The URL of a server: never a panic; each part of the request is one line of visible characters.
#![no_main]

use ammeter_load::url::Url;

libfuzzer_sys::fuzz_target!(|text: &str| {
    if let Ok(url) = Url::parse(text) {
        assert!(url.port > 0 && !url.host.is_empty());
        assert!(url.target.starts_with('/') && !url.target.contains('#'));
        assert!((url.target.clone() + &url.authority).bytes().all(|byte| byte.is_ascii_graphic()));
        // The parsed URL, written out, parses to the same.
        let scheme = if url.secure { "https" } else { "http" };
        assert_eq!(Url::parse(&format!("{scheme}://{}{}", url.authority, url.target)), Ok(url));
    }
});
