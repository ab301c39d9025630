//! The project's directories, and how tasks run programs so that a failure names the command.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The result of a task; the error is a text for the developer: what failed, where, and how to fix it.
pub(crate) type Outcome<T = ()> = Result<T, String>;

/// The workspace directory. Read at run time, because several checkouts may share a target directory.
pub(crate) fn root() -> PathBuf {
    let xtask = std::env::var_os("CARGO_MANIFEST_DIR").unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into());
    Path::new(&xtask).parent().expect("xtask is a directory of the workspace").to_owned()
}

/// The directory for everything that can be rebuilt.
pub(crate) fn target_dir() -> PathBuf {
    match std::env::var_os("CARGO_TARGET_DIR") {
        // Cargo resolves a relative path from where it was started; the tasks start programs from the root.
        Some(dir) => std::path::absolute(&dir).unwrap_or_else(|_| dir.into()),
        None => root().join("target"),
    }
}

/// A Cargo command, of the toolchain that runs this task.
pub(crate) fn cargo(args: &[&str]) -> Command {
    let mut command = program(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(args);
    command
}

/// A command that starts in the root. The environment variable keeps rustup from downloading toolchains in a test.
pub(crate) fn program(name: impl Into<OsString>) -> Command {
    let mut command = Command::new(name.into());
    command.current_dir(root()).env("RUSTUP_AUTO_INSTALL", "0");
    command
}

/// The command line as typed in a shell.
pub(crate) fn shown(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|word| word.to_string_lossy().into_owned()).collect::<Vec<_>>().join(" ")
}

/// Runs `command` with inherited output.
pub(crate) fn run(command: &mut Command) -> Outcome {
    let status = command.status().map_err(|error| format!("cannot start `{}`: {error}", shown(command)))?;
    if status.success() { Ok(()) } else { Err(format!("`{}` failed: {status}", shown(command))) }
}

/// Runs `command` and returns its standard output; standard error is inherited.
pub(crate) fn output(command: &mut Command) -> Outcome<String> {
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

/// Whether `command` succeeds. Discards its output.
pub(crate) fn succeeds(command: &mut Command) -> bool {
    let command = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}
