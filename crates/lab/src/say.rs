//! Output of the program: results to standard output, everything else to standard error.

use std::io::{self, Write};

use amped_measure::Failure;
use serde::Serialize;

/// Prints a result, with a newline appended if it has none.
///
/// # Errors
/// If standard output cannot be written. A closed pipe is not an error: the reader has read enough.
pub(crate) fn out(text: &str) -> Result<(), Failure> {
    read(text).map(drop)
}

/// As [`out`], for callers with more to print: returns `false` if the reader has closed the pipe.
///
/// # Errors
/// Those of [`out`].
pub(crate) fn read(text: &str) -> Result<bool, Failure> {
    let end = if text.ends_with('\n') { "" } else { "\n" };
    let mut stdout = io::stdout().lock();
    match write!(stdout, "{text}{end}").and_then(|()| stdout.flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(Failure::failed(format!("cannot write the result to standard output: {error}"))),
    }
}

/// Prints a result as JSON, on one line.
///
/// # Errors
/// Those of [`out`].
pub(crate) fn json(result: &impl Serialize) -> Result<(), Failure> {
    out(&as_json(result)?)
}

/// Formats a result as JSON, on one line.
///
/// # Errors
/// None for results made of numbers, strings and lists.
pub(crate) fn as_json(result: &impl Serialize) -> Result<String, Failure> {
    serde_json::to_string(result).map_err(|error| Failure::failed(format!("cannot write the result as JSON: {error}")))
}

/// Prints a line to standard error. Write errors are ignored: there is no other place to report them.
pub(crate) fn plain(text: &str) {
    let _ = writeln!(io::stderr().lock(), "{text}");
}
