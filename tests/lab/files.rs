//! `ammeter files`: the real program writes file sets to a real disk.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::{ammeter, excerpt, said};

/// Runs `ammeter files` with these arguments and `--json`, and parses the result.
fn files(words: &[&str]) -> Value {
    let output = ammeter(&[&["files"], words, &["--json"]].concat());
    let (text, status) = said(&output);
    assert_eq!(status, 0, "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_str(&text).unwrap()
}

/// Returns the error message and the exit status of a run that fails.
fn refused(words: &[&str]) -> (String, i32) {
    let output = ammeter(&[&["files"], words].concat());
    assert_eq!(said(&output).0, "");
    (String::from_utf8(output.stderr).unwrap(), output.status.code().unwrap())
}

/// All files below a directory, with their bytes.
fn tree(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(tree(&path));
        } else {
            found.insert(path.clone(), fs::read(path).unwrap());
        }
    }
    found
}

#[test]
fn no_arguments_prints_help_with_example() {
    let (text, status) = said(&ammeter(&["files"]));
    assert!(status == 0 && text.contains("ammeter files specweb96 --ops 500"), "{text}");
}

#[test]
fn file_sets_match_published_tables() {
    let sets = [(1, 22), (5, 49), (10, 69), (20, 98), (50, 154), (100, 218), (200, 309), (500, 488), (1000, 690)];
    for (ops, mb) in sets {
        let result = files(&["specweb96", "--ops", &ops.to_string(), "--dry-run"]);
        assert_eq!(result["table_mib"].as_f64().unwrap().round(), f64::from(mb), "{ops}");
        let directories = (10.0 * (f64::from(ops) / 5.0).sqrt()).round();
        assert_eq!(result["bytes"].as_f64().unwrap(), directories * 5_119_470.0, "{ops}");
    }
    for (scale, mean) in [("1/4", 7.00), ("1/2", 14.82), ("1", 29.31), ("2", 58.73), ("4", 117.46)] {
        let result = files(&["webstone", "--scale", scale, "--dry-run"]);
        let found = result["mean_bytes"].as_f64().unwrap() / 1024.0;
        assert!((found - mean).abs() < 0.005, "{scale}: {found}");
    }
}

#[test]
fn file_set_is_reproducible() {
    let home = tempfile::tempdir().unwrap();
    let (one, two) = (home.path().join("one"), home.path().join("two"));
    let created = files(&["webstone", "--scale", "1/4", one.to_str().unwrap()]);
    assert_eq!((created["files"].as_u64(), created["written"].as_u64()), (Some(77), Some(77)));
    files(&["webstone", "--scale", "1/4", two.to_str().unwrap()]);
    let (first, second) = (tree(&one), tree(&two));
    assert_eq!(first.len(), 78, "and the manifest");
    assert!(first.values().eq(second.values()));
    assert_eq!(created["manifest"].as_str(), one.join("manifest.jsonl").to_str());
    let (_, all) = first
        .iter()
        .filter(|(path, _)| !path.ends_with("manifest.jsonl"))
        .fold((0, 0), |(n, sum), (_, bytes)| (n + 1, sum + bytes.len()));
    assert_eq!(created["bytes"].as_u64(), Some(all as u64));

    // A second run writes nothing; it restores missing files; another seed makes another set.
    let again = files(&["webstone", "--scale", "1/4", one.to_str().unwrap()]);
    assert_eq!((again["kept"].as_u64(), again["written"].as_u64()), (Some(77), Some(0)));
    fs::remove_dir_all(one.join("video")).unwrap();
    fs::write(one.join("html/01.html"), "damaged").unwrap();
    let mended = files(&["webstone", "--scale", "1/4", one.to_str().unwrap()]);
    assert_eq!((mended["kept"].as_u64(), mended["written"].as_u64()), (Some(72), Some(5)));
    assert!(tree(&one) == first);
    let (why, status) = refused(&["webstone", "--scale", "1/4", "--seed", "2", one.to_str().unwrap()]);
    assert!(status == 1 && why.contains("is not empty") && why.contains("choose an empty or new one"), "{why}");
    assert!(tree(&one) == first);
}

#[test]
fn log_is_converted_to_file_set() {
    let home = tempfile::tempdir().unwrap();
    let folder = home.path().join("set");
    let (log, folder_text) = (excerpt(), folder.to_str().unwrap());
    let created = files(&["log", log.to_str().unwrap(), folder_text]);
    let log_result = &created["log"];
    assert_eq!(log_result["odd"]["method other than GET and HEAD"].as_u64(), Some(2));
    assert_eq!(log_result["requests_taken"], log_result["requests"]);
    assert_eq!(fs::metadata(folder.join("images/launchmedium.gif")).unwrap().len(), 11_853);
    let sum: usize =
        tree(&folder).iter().filter(|(path, _)| !path.ends_with("manifest.jsonl")).map(|(_, bytes)| bytes.len()).sum();
    assert_eq!(created["bytes"].as_u64(), Some(sum as u64));
    assert_eq!(created["bytes"], log_result["bytes_shown"]);

    let half = files(&["log", log.to_str().unwrap(), "--dataset", "20kB", "--dry-run"]);
    let bytes = half["bytes"].as_u64().unwrap();
    assert!((10_000..=20_000).contains(&bytes), "{half}");
    assert!(half["log"]["requests_taken"].as_u64() < log_result["requests"].as_u64());
    assert_eq!(half["manifest"], Value::Null);
}

#[test]
fn impossible_file_set_is_rejected_with_hint() {
    let home = tempfile::tempdir().unwrap();
    let set = home.path().join("set");
    let empty = home.path().join("empty.log");
    fs::write(&empty, "").unwrap();
    let check = |words: &[&str], says: &str, status: i32| {
        let (text, found) = refused(words);
        assert!(text.contains(says) && found == status, "{words:?}: {found}: {text}");
    };
    check(&["specweb96", "--ops", "0", "set"], "from 1 to 1000000", 2);
    check(&["specweb96", "--ops", "1e9", "set"], "from 1 to 1000000", 2);
    check(&["specweb96", "--ops", "5"], "DIR", 2);
    check(&["webstone", "--scale", "3", "set"], "1/4, 1/2, 1, 2 or 4", 2);
    check(&["log", empty.to_str().unwrap(), set.to_str().unwrap()], "it is empty", 1);
    check(&["log", "/nowhere.log", set.to_str().unwrap()], "/nowhere.log", 1);
    check(&["log", excerpt().to_str().unwrap(), "--dataset", "5", "--dry-run"], "raise --dataset", 1);
    check(&["log", excerpt().to_str().unwrap(), "--dataset", "5 miles", "--dry-run"], "64KiB", 2);
    assert!(!set.exists());
}

#[test]
fn oversized_file_set_does_not_fill_disk() {
    let home = tempfile::tempdir().unwrap();
    // A file system of its own, which ends with the namespace. The mount is private to it.
    let script =
        "mount -t tmpfs -o size=4m none \"$1\" && \"$2\" files specweb96 --ops 1 \"$1/set\"; echo $?; ls \"$1\"";
    let output = Command::new("unshare")
        .args(["--mount", "--propagation", "private", "sh", "-c", script, "sh"])
        .arg(home.path())
        .arg(env!("CARGO_BIN_EXE_ammeter"))
        .output()
        .expect("unshare(1) of util-linux, as root");
    let why = String::from_utf8(output.stderr).unwrap();
    assert_eq!(String::from_utf8(output.stdout).unwrap(), "1\n", "{why}");
    assert!(
        why.contains("not enough disk space for 19 MiB: 4 MiB are free") && why.contains("choose another disk"),
        "{why}"
    );
}
