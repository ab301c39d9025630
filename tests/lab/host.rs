//! The program as a whole, and `ammeter host`.

use super::{ammeter, said};

#[test]
fn no_arguments_prints_help_with_example() {
    let (text, status) = said(&ammeter(&[]));
    assert_eq!(status, 0);
    assert!(text.contains("Usage: ammeter") && text.contains("Examples:"), "{text}");
}

#[test]
fn wrong_usage_exits_with_2() {
    for words in [&["nothing-of-this-name"][..], &["host", "--no-such-flag"]] {
        let output = ammeter(words);
        assert_eq!((output.status.code(), &*output.stdout), (Some(2), &b""[..]), "{words:?}");
        assert!(!output.stderr.is_empty());
    }
}

#[test]
fn machine_is_described() {
    let (text, status) = said(&ammeter(&["host"]));
    assert!(status == 0 && text.contains("kernel") && text.contains("load average"), "{text}");
    let (text, _) = said(&ammeter(&["host", "--json"]));
    let found: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert!(found["machine"]["cores"].as_u64().unwrap() > 0, "{text}");
    assert_eq!(text.lines().count(), 1);
}
