//! A workload drawn by weight: from a manifest, or from a list of targets with weights.
//!
//! [`read`] accepts either. A list has one target per line, with an optional weight before it:
//!
//! ```text
//! # weight  target
//! 35        /index.html
//! 0.5       /search?q=x
//! /favicon.ico
//! ```
//!
//! The default weight is 1. Only ratios matter.

use std::fs;
use std::path::Path;

use amped_measure::Failure;

use super::manifest::Manifest;
use super::{Order, Request, Requests, running_sums};

/// Reads the workload at `path`: a directory that `ammeter files` created, or the manifest in it; otherwise a list, where
/// each target is a class. `verify` applies to manifests: replies are checked to the last byte.
///
/// # Errors
/// When it cannot be read or is invalid; the text has the line number.
pub fn read(path: &Path, seed: u64, verify: bool) -> Result<Requests, Failure> {
    let place = path.display();
    let text = if path.is_dir() {
        None
    } else {
        Some(fs::read_to_string(path).map_err(Failure::io(format_args!("read {place}")))?)
    };
    match text {
        Some(text) if !text.starts_with('{') => {
            parse(&text, seed).map_err(|trouble| Failure::failed(format!("{place}: {trouble}")))
        }
        _ => Ok(Manifest::read(path)?.requests(seed, verify)),
    }
}

/// Parses a list of weights and targets.
///
/// # Errors
/// The error, with the line number and what to write instead.
pub fn parse(text: &str, seed: u64) -> Result<Requests, String> {
    let (mut table, mut weights) = (Vec::new(), Vec::new());
    let lines = text.lines().enumerate().map(|(number, line)| (number + 1, line.trim()));
    for (number, line) in lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#')) {
        let mut words = line.split_whitespace();
        let (weight, target) = match (words.next(), words.next(), words.next()) {
            (Some(target), None, _) => ("1", target),
            (Some(weight), Some(target), None) => (weight, target),
            _ => return Err(format!("line {number}: write a weight and a target, `35 /index.html`, not `{line}`")),
        };
        let weight: f64 =
            weight.parse().ok().filter(|weight: &f64| weight.is_finite() && *weight >= 0.0).ok_or_else(|| {
                format!("line {number}: invalid weight `{weight}`: write a number, 0 or more, before the target")
            })?;
        let plain = target.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'#');
        if !(target.starts_with('/') && plain) {
            return Err(format!(
                "line {number}: invalid target `{target}`: write only path and query, as `/a%20b?c=d`; the server is \
                 given separately"
            ));
        }
        // A class each, so that results distinguish them, as long as numbers suffice.
        let class = u16::try_from(table.len()).unwrap_or(u16::MAX);
        table.push(Request { target: target.as_bytes().into(), class, ..Request::default() });
        weights.push(weight);
    }
    let sums = running_sums(weights);
    match sums.last() {
        Some(sum) if *sum > 0.0 && sum.is_finite() => {
            let name = |request: &Request| String::from_utf8_lossy(&request.target).into_owned();
            let names = table.iter().map(name).collect();
            Ok(Requests::new(table, Order::Drawn { seed, sums }).with_classes(names))
        }
        Some(_) => Err("the sum of the weights is zero or too large".to_owned()),
        None => Err("no targets: write one per line, with its weight before it, as `35 /index.html`".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn weighted_list_is_parsed() {
        let requests = parse("# a comment\n\n3 /a?b=c\n  /d  \n0 /never\n", 1).expect("good");
        let targets: Vec<&[u8]> = requests.table().iter().map(|request| &*request.target).collect();
        assert_eq!(targets, [&b"/a?b=c"[..], b"/d", b"/never"]);
        assert_eq!(requests.table()[1].class, 1);
        let mut counts = [0; 3];
        (0..10_000).for_each(|n| counts[requests.index(n).expect("no end")] += 1);
        // 7500 expected, standard deviation 43.
        assert!((7250..7750).contains(&counts[0]) && counts[2] == 0, "{counts:?}");
    }

    #[test]
    fn manifest_or_list_is_detected() {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let path = |name| folder.path().join(name);
        let files = [("/a", "small"), ("/b", "large")].map(|(path, class)| (path.to_owned(), 5, class.to_owned(), 1.0));
        let manifest = Manifest::new("test".to_owned(), 1, files);
        fs::write(path("manifest.jsonl"), manifest.to_text()).expect("written");
        fs::write(path("list"), "3 /c\n/d\n").expect("written");
        fs::write(path("bad"), "3 c\n").expect("written");
        let classes = |path: &Path| {
            let requests = read(path, 1, false).expect("good");
            [0, 1].map(|class| requests.class(class))
        };
        assert_eq!(classes(folder.path()), ["small", "large"]);
        assert_eq!(classes(&path("manifest.jsonl")), ["small", "large"]);
        assert_eq!(classes(&path("list")), ["/c", "/d"]);
        let fails = |name| read(&path(name), 1, false).expect_err(name).to_string();
        assert!(fails("bad").contains("bad: line 1: invalid target `c`"));
        assert!(fails("none").contains("none: No such file"));
    }

    #[test]
    fn errors_are_reported_with_line() {
        let check = |text: &str, says: &str| {
            let error = parse(text, 1).expect_err(text);
            assert!(error.contains(says), "{error}");
        };
        check("", "no targets");
        check("# nothing\n", "no targets");
        check("/a\nx /b", "line 2: invalid weight `x`");
        check("-1 /b", "line 1: invalid weight `-1`");
        check("inf /b", "invalid weight");
        check("NaN /b", "invalid weight");
        check("1 b", "line 1: invalid target `b`");
        check("1 http://host/b", "invalid target");
        check("1 /b#c", "invalid target");
        check("1 /\u{e9}", "invalid target");
        check("1 /b c", "line 1: write a weight and a target");
        check("0 /b", "is zero or too large");
        check("1e308 /a\n1e308 /b", "is zero or too large");
    }

    proptest! {
        #[test]
        fn random_text_does_not_panic(text in "(?s).{0,200}") {
            if let Ok(requests) = parse(&text, 1) {
                prop_assert!(requests.index(0).is_some());
            }
        }

        #[test]
        fn running_sums_never_decrease(weights in proptest::collection::vec(0.0f64..1e9, 1..50)) {
            let sums = running_sums(weights.iter().copied());
            prop_assert_eq!(sums.len(), weights.len());
            prop_assert!(sums.is_sorted());
        }
    }
}
