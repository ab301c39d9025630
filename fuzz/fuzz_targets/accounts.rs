//! A file of passwords: every line is an account, a comment or a bad one, and only hashes that can be verified are kept.
#![no_main]

use amped_core::auth::Accounts;

libfuzzer_sys::fuzz_target!(|text: &[u8]| {
    let accounts = Accounts::parse(text);
    let lines = text.split(|&byte| byte == b'\n').count();
    assert!(accounts.len() + accounts.bad_lines.len() <= lines);
    assert!(accounts.bad_lines.is_sorted() && accounts.bad_lines.iter().all(|line| (1..=lines).contains(line)));
    for line in text.split(|&byte| byte == b'\n') {
        let name = line.trim_ascii().split(|&byte| byte == b':').next().unwrap_or_default();
        assert!(accounts.hash_of(name).is_none_or(|hash| hash.starts_with("$2") || hash.starts_with("$argon2id$")));
    }
});
