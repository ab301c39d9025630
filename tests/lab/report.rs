//! `ammeter report` and `ammeter compare` from the command line.

use std::fs;

use super::{ammeter, said};

#[test]
fn invalid_archive_is_rejected_with_hint() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().to_str().unwrap();
    for words in [&["report", dir][..], &["compare", dir], &["compare", dir, dir]] {
        let output = ammeter(words);
        let text = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(2) && text.contains("ammeter run EXPERIMENT --out"), "{words:?}: {text}");
    }
    assert!(fs::read_dir(folder.path()).unwrap().next().is_none(), "nothing is written without an archive");
}

#[test]
fn wrong_usage_is_rejected() {
    for (words, part) in [
        (&["compare", "a", "b", "--subjects", "x,y"][..], "cannot be used with"),
        (&["compare", "a", "b", "--arm", "x"], "cannot be used with"),
        (&["compare", "a", "b", "--fail-if", "p99>5ms"], "no %"),
        (&["compare", "a", "b", "--fail-if", "speed>5%"], "unknown metric \"speed\""),
    ] {
        let output = ammeter(words);
        let text = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(2) && text.contains(part), "{words:?}: {text}");
    }
    // Without arguments they describe their purpose.
    for command in ["report", "compare"] {
        let (text, status) = said(&ammeter(&[command]));
        assert!(status == 0 && text.contains("Examples:"), "{command}: {status} {text}");
    }
}
