//! `cargo xtask fuzz-smoke`: runs each fuzz target for a short time, so
//! that a shallow bug is found on the day it is introduced.
//!
//! 1. Build all targets with cargo-fuzz, on a nightly toolchain if there is one, else on stable with the variable that
//!    makes stable accept nightly's flags: the sanitizer needs them, our code does not.
//! 2. Fuzz one target per core, from inputs that once crashed (`fuzz/regressions/<target>`), the seeds
//!    (`fuzz/seeds/<target>`, both committed) and the corpus of former runs (`fuzz/corpus/<target>`, not committed).
//!
//! On a crash it prints libFuzzer's last lines, with the path of the input. For a longer session, give `--seconds`.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use crate::command::{Outcome, output, program, root, run as run_command, succeeds, target_dir};
use crate::setup::FUZZ;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Time for each target, in seconds
    #[arg(long, value_name = "N", default_value_t = 60)]
    seconds: u32,

    /// Targets to run, as their files in fuzz/fuzz_targets are named [default: all]
    targets: Vec<String>,
}

pub(crate) fn run(args: &Args) -> Outcome {
    smoke(args.seconds, &args.targets)
}

/// Runs the targets in `wanted`, or all targets if it is empty.
pub(crate) fn smoke(seconds: u32, wanted: &[String]) -> Outcome {
    let all = targets()?;
    if let Some(unknown) = wanted.iter().find(|name| !all.contains(name)) {
        return Err(format!("unknown fuzz target `{unknown}`; known: {}", all.join(", ")));
    }
    let targets = if wanted.is_empty() { &all[..] } else { wanted };
    let binaries = build(wanted)?;

    // A libFuzzer process uses one core. A shared queue keeps all cores busy to the end.
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let queue = Mutex::new(targets.iter());
    let failures = Mutex::new(Vec::new());
    let next = || queue.lock().ok().and_then(|mut queue| queue.next());
    std::thread::scope(|scope| {
        for _ in 0..cores.min(targets.len()) {
            scope.spawn(|| {
                while let Some(target) = next() {
                    if let Err(text) = check(&binaries.join(target), target, seconds)
                        && let Ok(mut failures) = failures.lock()
                    {
                        println!("{text}");
                        failures.push(target.clone());
                    }
                }
            });
        }
    });
    let failures = failures.into_inner().map_err(|_| "a thread that ran a fuzz target panicked")?;
    if failures.is_empty() { Ok(()) } else { Err(format!("fuzz targets failed: {}", failures.join(", "))) }
}

/// The names of all targets, in order.
fn targets() -> Outcome<Vec<String>> {
    let dir = root().join("fuzz/fuzz_targets");
    let entries =
        fs::read_dir(&dir).map_err(|error| format!("cannot read the directory {}: {error}", dir.display()))?;
    let paths = entries.flatten().map(|entry| entry.path());
    let mut names: Vec<String> = paths.filter_map(|file| Some(file.file_stem()?.to_str()?.to_owned())).collect();
    names.sort();
    Ok(names)
}

/// Builds the targets in `wanted`, or all targets if it is empty, and returns the directory of the binaries.
fn build(wanted: &[String]) -> Outcome<PathBuf> {
    let target_dir = target_dir().join("fuzz");
    // Name the host: the default of cargo-fuzz is the system that it was itself built on.
    let version = output(program("rustc").arg("-vV"))?;
    let host = version.lines().find_map(|line| line.strip_prefix("host: ")).ok_or("`rustc -vV` names no host")?;
    let each: Vec<Option<&String>> = if wanted.is_empty() { vec![None] } else { wanted.iter().map(Some).collect() };
    for target in each {
        let mut build = FUZZ.command(&["fuzz", "build", "--fuzz-dir", "fuzz", "--target", host])?;
        build.arg("--target-dir").arg(&target_dir).args(target);
        // Cargo sets CARGO to the running Cargo; cargo-fuzz would prefer that to the toolchain chosen below.
        build.env_remove("CARGO").env_remove("CARGO_TARGET_DIR");
        match has_nightly() {
            true => build.env("RUSTUP_TOOLCHAIN", "nightly"),
            false => build.env("RUSTC_BOOTSTRAP", "1"),
        };
        run_command(&mut build)?;
    }
    Ok(target_dir.join(host).join("release"))
}

/// Whether a nightly toolchain is installed. Installs nothing: without rustup, `+nightly` is an unknown argument.
fn has_nightly() -> bool {
    succeeds(program("cargo").args(["+nightly", "--version"]))
}

/// Fuzzes a target for a while. libFuzzer first runs every input of all directories, including those that once crashed,
/// and keeps new inputs in the first. Its output goes to a file, whose end is printed on failure.
fn check(binary: &Path, name: &str, seconds: u32) -> Outcome {
    let folder = |kind: &str| root().join("fuzz").join(kind).join(name);
    let (corpus, artifacts, log) = (folder("corpus"), binary.with_extension("artifacts"), binary.with_extension("log"));
    for dir in [&corpus, &artifacts] {
        fs::create_dir_all(dir).map_err(|error| format!("cannot create {}: {error}", dir.display()))?;
    }
    let failed = |error| format!("cannot write {}: {error}", log.display());
    let file = File::create(&log).map_err(failed)?;
    let mut command = program(binary);
    command.args(["-rss_limit_mb=2048", "-timeout=10"]).arg(format!("-max_total_time={seconds}"));
    command.arg(format!("-artifact_prefix={}/", artifacts.display())).arg(&corpus);
    command.args(["regressions", "seeds"].map(folder).iter().filter(|folder| folder.is_dir()));
    command.stdout(file.try_clone().map_err(failed)?).stderr(file);
    if run_command(&mut command).is_ok() {
        println!("fuzz {name}: ok");
        return Ok(());
    }
    let said = fs::read(&log).unwrap_or_default();
    let said = String::from_utf8_lossy(&said);
    let lines: Vec<&str> = said.lines().collect();
    Err(format!(
        "fuzz {name}: failed; commit the input with the fix, as {}/<what-it-is>\n{}\ncomplete output: {}",
        folder("regressions").display(),
        lines[lines.len().saturating_sub(40)..].join("\n"),
        log.display()
    ))
}
