//! An accounts file: every line is an account, a comment or an error, and only verifiable hashes are kept.
#![no_main]

use amped_core::auth::Accounts;

libfuzzer_sys::fuzz_target!(|text: &[u8]| {
    let accounts = Accounts::parse(text);
    let lines = text.split(|&byte| byte == b'\n').count();
    let flawed: Vec<usize> = accounts.flaws.iter().map(|flaw| flaw.line).collect();
    assert!(accounts.len() + flawed.len() <= lines);
    assert!(flawed.is_sorted() && flawed.iter().all(|line| (1..=lines).contains(line)));
    assert_eq!(accounts.decoy(text.len() as u64).is_none(), accounts.is_empty());
});
