//! The real `ammeter` against real servers, with one module per command.
//!
//! Each test starts the server that it measures, on ports that the kernel chooses, and stops it. Tests that measure
//! time run alone (`alone_`) and assert ratios within one run, never a duration.
#![allow(clippy::unwrap_used, missing_docs, unreachable_pub)]

mod diagnose;
mod files;
mod host;
mod hosts;
mod load;
mod load_http2;
mod load_outputs;
mod load_tls;
mod monitor;
mod monitor_cpu;
mod overload;
mod report;
mod run;
mod server;
mod unserved;
mod wan;
mod workload;

#[path = "../nginx.rs"]
mod nginx;

#[path = "../ports.rs"]
mod ports;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::thread;
use std::time::{Duration, Instant};

/// Runs `ammeter` with these arguments. Unless they say otherwise, other tests may disturb a load, and an experiment
/// does not wait for a quiet machine.
pub fn ammeter(words: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ammeter"));
    command.args(words);
    if words.first() == Some(&"load")
        && !words.iter().any(|word| ["--others-max", "--calibrate", "--help"].contains(word))
    {
        command.args(["--others-max", "100%"]);
    }
    if words.first() == Some(&"run") && words.len() > 1 && !words.contains(&"--quiet-timeout") {
        command.args(["--quiet-timeout", "0s"]);
    }
    command.output().unwrap()
}

/// Returns standard output and the exit status.
pub fn said(output: &Output) -> (String, i32) {
    (String::from_utf8(output.stdout.clone()).unwrap(), output.status.code().unwrap())
}

/// A log of a few dozen lines, some of them unusual.
pub fn excerpt() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/log/nasa-excerpt.log")
}

/// Polls a condition until it holds.
pub fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < Duration::from_secs(60), "timed out waiting for {what}");
        thread::sleep(Duration::from_millis(5));
    }
}
