//! `cargo xtask fuzz-smoke`: runs each fuzz target for a short time, so
//! that a shallow bug is found on the day it is introduced.
//!
//! 1. Build all targets with cargo-fuzz, on a nightly toolchain if there is one, else on stable with the variable that
//!    makes stable accept nightly's flags: the sanitizer needs them, our code does not.
//! 2. Run each input that once crashed (`fuzz/regressions/<target>`) once.
//! 3. Fuzz one target per core, from the seeds (`fuzz/seeds/<target>`, committed)
//!    and the corpus of former runs (`fuzz/corpus/<target>`, not committed).
//!
//! On a crash it prints the path of the input and the command that
//! reproduces it. For a longer session, give `--seconds`.

use std::ffi::OsString;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::time::Instant;

use crate::command::{Outcome, output, program, root, run as run_command, shown, succeeds, target_dir};
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
        return Err(format!("there is no fuzz target `{unknown}`; there are: {}", all.join(", ")));
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
                    if let Err(text) = (Target { name: target, binary: binaries.join(target) }).check(seconds)
                        && let Ok(mut failures) = failures.lock()
                    {
                        println!("{text}");
                        failures.push(target.clone());
                    }
                }
            });
        }
    });
    let failures = failures.into_inner().map_err(|_| "a thread that ran a fuzz target has panicked")?;
    if failures.is_empty() { Ok(()) } else { Err(format!("fuzz targets failed: {}", failures.join(", "))) }
}

/// The names of all targets: the files in `fuzz/fuzz_targets`.
fn targets() -> Outcome<Vec<String>> {
    let dir = root().join("fuzz/fuzz_targets");
    let files = files(&dir)?;
    let mut names: Vec<String> = files
        .iter()
        .filter(|file| file.extension().is_some_and(|extension| extension == "rs"))
        .filter_map(|file| Some(file.file_stem()?.to_str()?.to_owned()))
        .collect();
    names.sort();
    if names.is_empty() { Err(format!("no fuzz target in {}", dir.display())) } else { Ok(names) }
}

/// Builds the targets in `wanted`, or all targets if it is empty, and returns the folder of the binaries.
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

/// A built fuzz target.
struct Target<'a> {
    name: &'a str,
    binary: PathBuf,
}

impl Target<'_> {
    /// Runs the former crashes, then new inputs for `seconds`.
    fn check(&self, seconds: u32) -> Outcome {
        let fuzz = root().join("fuzz");
        let corpus = fuzz.join("corpus").join(self.name);
        fs::create_dir_all(&corpus).map_err(|error| format!("cannot create {}: {error}", corpus.display()))?;
        let seeds = fuzz.join("seeds").join(self.name);
        let regressions = fuzz.join("regressions").join(self.name);

        // One process per input shows which one crashes. There are few.
        for input in if regressions.is_dir() { files(&regressions)? } else { Vec::new() } {
            let mut command = self.command();
            command.arg(&input);
            if !self.log(&mut command, "regressions")?.0 {
                return Err(self.crashed("an input that crashed once crashes again", Some(&input), "regressions"));
            }
        }

        let mut command = self.command();
        command.arg(format!("-max_total_time={seconds}")).arg("-print_final_stats=1").arg(&corpus);
        if seeds.is_dir() {
            command.arg(&seeds);
        }
        let began = Instant::now();
        let (good, log) = self.log(&mut command, "log")?;
        if !good {
            let input = written_input(&log).map(PathBuf::from);
            return Err(self.crashed("crashed", input.as_deref(), "log"));
        }
        let took = began.elapsed().as_secs_f64();
        println!("fuzz {}: ok, {} inputs in {took:.1} s", self.name, inputs_run(&log).unwrap_or("no count of"));
        Ok(())
    }

    /// The command of the target. Its limits make slow or memory-hungry inputs
    /// failures, too: a server must answer both in bounded time and memory.
    fn command(&self) -> Command {
        let mut prefix = OsString::from("-artifact_prefix=");
        prefix.push(self.beside("artifacts"));
        prefix.push("/");
        let mut command = program(&self.binary);
        command.args(["-rss_limit_mb=2048", "-timeout=10"]).arg(prefix);
        command
    }

    /// Runs `command` and returns whether it succeeded, and its output. The
    /// output goes to a file, as several targets run at once.
    fn log(&self, command: &mut Command, ending: &str) -> Outcome<(bool, String)> {
        let artifacts = self.beside("artifacts");
        fs::create_dir_all(&artifacts).map_err(|error| format!("cannot create {}: {error}", artifacts.display()))?;
        let path = self.beside(ending);
        let failed = |error| format!("cannot write {}: {error}", path.display());
        let file = File::create(&path).map_err(failed)?;
        let command = command.stdout(file.try_clone().map_err(failed)?).stderr(file);
        let status = command.status().map_err(|error| format!("cannot start `{}`: {error}", shown(command)))?;
        // A crashed target prints its input, which may not be UTF-8.
        let text = fs::read(&path).map_err(|error| format!("cannot read {}: {error}", path.display()))?;
        Ok((status.success(), String::from_utf8_lossy(&text).into_owned()))
    }

    /// The path of a file or folder of this target beside its binary.
    fn beside(&self, ending: &str) -> PathBuf {
        self.binary.with_file_name(format!("{}.{ending}", self.name))
    }

    fn crashed(&self, what: &str, input: Option<&Path>, ending: &str) -> String {
        let log = self.beside(ending);
        let said = fs::read(&log).unwrap_or_default();
        let said = String::from_utf8_lossy(&said);
        let Some(input) = input else {
            return format!("fuzz {}: failed without an input of its own:\n{}", self.name, reason(&said));
        };
        let kept = root().join("fuzz/regressions").join(self.name);
        let then = if input.starts_with(&kept) {
            String::new()
        } else {
            format!("\n  when it is mended, commit the input with the fix, as {}/<what-it-is>", kept.display())
        };
        format!(
            "fuzz {}: {what}\n{}\n  input:     {input}\n  run again: {} {input}\n  all of it: {}{then}",
            self.name,
            reason(&said),
            self.binary.display(),
            log.display(),
            input = input.display(),
        )
    }
}

/// The files in `dir`, in a deterministic order.
fn files(dir: &Path) -> Outcome<Vec<PathBuf>> {
    let failed = |error| format!("cannot read the folder {}: {error}", dir.display());
    let entries = fs::read_dir(dir).map_err(failed)?;
    let mut files = Vec::new();
    for entry in entries {
        let path = entry.map_err(failed)?.path();
        if path.is_file() {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

/// Where libFuzzer reports that it wrote the failing input.
fn written_input(log: &str) -> Option<&str> {
    log.lines().rev().find_map(|line| line.split_once("Test unit written to ").map(|(_, path)| path.trim()))
}

/// The number of inputs that libFuzzer reports.
fn inputs_run(log: &str) -> Option<&str> {
    log.lines().rev().find_map(|line| line.strip_prefix("stat::number_of_executed_units:").map(str::trim))
}

/// The reason for a failure, from a log that is mostly stack traces: from
/// the panic or the sanitizer's report on, else the end.
fn reason(log: &str) -> String {
    const LINES: usize = 12;
    let lines: Vec<&str> = log.lines().collect();
    let told = lines.iter().position(|line| line.contains("panicked at") || line.contains("ERROR: "));
    let begin = told.unwrap_or(lines.len().saturating_sub(LINES));
    lines[begin..].iter().take(LINES).map(|line| format!("  | {line}")).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libfuzzer_output_is_parsed() {
        let log = "thread panicked\nartifact_prefix='/t/'; Test unit written to /t/crash-0a1b\nBase64: AA==\n";
        assert_eq!(written_input(log), Some("/t/crash-0a1b"));
        assert_eq!(written_input("Done 12 runs in 5 second(s)"), None);
        let log = "Done 12 runs\nstat::number_of_executed_units: 12\nstat::new_units_added: 3\n";
        assert_eq!(inputs_run(log), Some("12"));
    }

    #[test]
    fn failure_shows_reason_without_whole_stack() {
        assert_eq!(reason("a\nb"), "  | a\n  | b");
        assert_eq!(reason("INFO: seed\nthread panicked at a.rs:1\nwhy\n"), "  | thread panicked at a.rs:1\n  | why");
        assert_eq!(reason(&"x\n".repeat(1000)).lines().count(), 12);
    }
}
