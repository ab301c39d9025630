//! Caching fields of a response: never a panic; `no-store` before any lines forbids storing, and repeated lines change
//! nothing.
#![no_main]

use amped_http::caching;

const NOW: i64 = 1_795_219_200; // 2026-11-21

libfuzzer_sys::fuzz_target!(|text: &[u8]| {
    let fields = || {
        text.split(|&byte| byte == b'\n').filter_map(|line| {
            let colon = line.iter().position(|&byte| byte == b':')?;
            Some((std::str::from_utf8(&line[..colon]).ok()?, &line[colon + 1..]))
        })
    };
    let said = caching::read(fields(), NOW);
    let vary = said.vary.clone().unwrap_or_default();
    assert!(vary.windows(2).all(|pair| pair[0] < pair[1]) && !vary.iter().any(|name| name == "*"));
    // A further field never allows more.
    let no_store = ("Cache-Control", &b"no-store"[..]);
    assert!(caching::read(std::iter::once(no_store).chain(fields()), NOW).forbids);
    let twice = caching::read(fields().chain(fields()), NOW);
    assert_eq!(twice, said);
});
