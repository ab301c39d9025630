//! Where the project lies, and how a task starts a program so that its failure says what was started.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A task's failure is a text for the developer: the thing, the place and the way out.
pub(crate) type Outcome<T = ()> = Result<T, String>;

/// The folder of the workspace. Asked at run time, because a target folder may be shared by several checkouts.
pub(crate) fn root() -> PathBuf {
    let xtask = std::env::var_os("CARGO_MANIFEST_DIR").unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into());
    Path::new(&xtask).parent().expect("xtask is a folder of the workspace").to_owned()
}

/// Where everything that can be made again goes.
pub(crate) fn target_dir() -> PathBuf {
    match std::env::var_os("CARGO_TARGET_DIR") {
        // Cargo takes a relative one from where it was started; the tasks start programs from the root.
        Some(dir) => std::path::absolute(&dir).unwrap_or_else(|_| dir.into()),
        None => root().join("target"),
    }
}

/// Cargo, of the toolchain that runs this task.
pub(crate) fn cargo(args: &[&str]) -> Command {
    let mut command = program(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(args);
    command
}

/// A program, started from the root. A test may never become a download of toolchains, hence the variable.
pub(crate) fn program(name: impl Into<OsString>) -> Command {
    let mut command = Command::new(name.into());
    command.current_dir(root()).env("RUSTUP_AUTO_INSTALL", "0");
    command
}

/// A command as one would type it.
pub(crate) fn shown(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|word| word.to_string_lossy().into_owned()).collect::<Vec<_>>().join(" ")
}

/// Runs `command` with its output going where ours goes.
pub(crate) fn run(command: &mut Command) -> Outcome {
    let status = command.status().map_err(|error| format!("cannot start `{}`: {error}", shown(command)))?;
    if status.success() { Ok(()) } else { Err(format!("`{}` failed: {status}", shown(command))) }
}

/// Runs `command` and returns what it printed; its complaints go where ours go.
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

/// Whether `command` runs and ends well. Silent: the answer is all that is wanted.
pub(crate) fn succeeds(command: &mut Command) -> bool {
    let command = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}
