//! What the program prints: results to standard output, everything else to standard error.

use std::io::{self, Write};

use amped_measure::Failure;
use serde::Serialize;

/// Prints a result, with a line end behind it if it has none.
///
/// # Errors
/// When standard output cannot take it. A reader that has closed the pipe has seen what it wanted to see: no error.
pub(crate) fn out(text: &str) -> Result<(), Failure> {
    read(text).map(drop)
}

/// As [`out`], for whoever has more to say: `false`, the reader has closed the pipe.
///
/// # Errors
/// As [`out`].
pub(crate) fn read(text: &str) -> Result<bool, Failure> {
    let end = if text.ends_with('\n') { "" } else { "\n" };
    let mut stdout = io::stdout().lock();
    match write!(stdout, "{text}{end}").and_then(|()| stdout.flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(Failure::failed(format!("cannot write the result to standard output: {error}"))),
    }
}

/// Prints a result as JSON, in one line.
///
/// # Errors
/// As [`out`].
pub(crate) fn json(result: &impl Serialize) -> Result<(), Failure> {
    out(&as_json(result)?)
}

/// A result as JSON, in one line.
///
/// # Errors
/// None of results that are numbers, words and lists.
pub(crate) fn as_json(result: &impl Serialize) -> Result<String, Failure> {
    serde_json::to_string(result).map_err(|error| Failure::failed(format!("cannot write the result as JSON: {error}")))
}

/// Prints a line to standard error. If nobody takes it, there is nobody to tell.
pub(crate) fn plain(text: &str) {
    let _ = writeln!(io::stderr().lock(), "{text}");
}
