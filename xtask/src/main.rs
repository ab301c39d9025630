//! `cargo xtask`: what a developer of the project runs, in one place and one language.
//!
//! Each task is one file here with one `run`; this file reads the command line and holds what they share: where the
//! project lies, and how to start a program so that its failure says what was started. Little but clap
//! and what the server itself brings, since every task waits until this is built.
#![forbid(unsafe_code)]

mod bench;
mod fuzz;
mod man;
mod setup;
mod test;
mod tidy;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use clap::{Parser, Subcommand};

/// The project's own tasks.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", arg_required_else_help = true)]
#[command(after_help = "Before a commit: cargo xtask test --quick")]
struct Args {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Install what the tests need: Debian packages, and Cargo tools into target/tools
    Setup(setup::Args),
    /// Run everything that CI runs: setup, format, tidy, clippy, deny, tests, a short measurement, fuzzing
    Test(test::Args),
    /// Run each fuzz target for a short time, beginning with the inputs that once crashed
    FuzzSmoke(fuzz::Args),
    /// Measure what optimisations and architectures are worth, as the papers did
    #[command(subcommand)]
    Bench(bench::Args),
    /// Check the house rules that a machine can check
    Tidy,
    /// Write manual pages and shell completions
    Man(man::Args),
}

/// A task's failure is a text for the developer: the thing, the place and the way out.
type Outcome<T = ()> = Result<T, String>;

fn main() -> ExitCode {
    let outcome = match Args::parse().task {
        Task::Setup(args) => setup::run(&args),
        Task::Test(args) => test::run(&args),
        Task::FuzzSmoke(args) => fuzz::run(&args),
        Task::Bench(args) => bench::run(&args),
        Task::Tidy => tidy::run(),
        Task::Man(args) => man::run(&args),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(text) => {
            eprintln!("xtask: {text}");
            ExitCode::FAILURE
        }
    }
}

/// The folder of the workspace. Asked at run time, because a target folder may be shared by several checkouts.
fn root() -> PathBuf {
    let xtask = std::env::var_os("CARGO_MANIFEST_DIR").unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into());
    Path::new(&xtask).parent().expect("xtask is a folder of the workspace").to_owned()
}

/// Where everything that can be made again goes.
fn target_dir() -> PathBuf {
    match std::env::var_os("CARGO_TARGET_DIR") {
        // Cargo takes a relative one from where it was started; the tasks start programs from the root.
        Some(dir) => std::path::absolute(&dir).unwrap_or_else(|_| dir.into()),
        None => root().join("target"),
    }
}

/// Cargo, of the toolchain that runs this task.
fn cargo(args: &[&str]) -> Command {
    let mut command = program(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(args);
    command
}

/// A program, started from the root. A test may never become a download of toolchains, hence the variable.
fn program(name: impl Into<OsString>) -> Command {
    let mut command = Command::new(name.into());
    command.current_dir(root()).env("RUSTUP_AUTO_INSTALL", "0");
    command
}

/// A command as one would type it.
fn shown(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|word| word.to_string_lossy().into_owned()).collect::<Vec<_>>().join(" ")
}

/// Runs `command` with its output going where ours goes.
fn run(command: &mut Command) -> Outcome {
    let status = command.status().map_err(|error| format!("cannot start `{}`: {error}", shown(command)))?;
    if status.success() { Ok(()) } else { Err(format!("`{}` failed: {status}", shown(command))) }
}

/// Runs `command` and returns what it printed; its complaints go where ours go.
fn output(command: &mut Command) -> Outcome<String> {
    let output = command
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .map_err(|error| format!("cannot start `{}`: {error}", shown(command)))?;
    if !output.status.success() {
        return Err(format!("`{}` failed: {}", shown(command), output.status));
    }
    String::from_utf8(output.stdout).map_err(|_| format!("`{}` printed something that is not UTF-8", shown(command)))
}

/// Whether `command` runs and ends well. Silent: the answer is all that is wanted.
fn succeeds(command: &mut Command) -> bool {
    let command = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_sound() {
        Args::command().debug_assert();
    }
}
