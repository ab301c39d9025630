//! HTTP-date: a parsed date can be written, and parses to the same time again.
#![no_main]

use amped_http::date;

const NOW: i64 = 1_795_219_200; // 2026-11-21
const END_OF_9999: i64 = 253_402_300_799;

libfuzzer_sys::fuzz_target!(|text: &[u8]| {
    if let Some(seconds) = date::parse(text, NOW) {
        assert_eq!(date::parse(&date::format(seconds), NOW), Some(seconds.clamp(0, END_OF_9999)));
    }
});
