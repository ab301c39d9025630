//! Messages to the operator: lines on standard error.
//!
//! Unlike `eprintln!`, this never panics when the reader has closed the
//! pipe: a server must not exit because its output is not read.

use std::fmt;
use std::io::{self, Write};

/// Writes a line; see [`say!`](crate::say!).
pub fn line(text: fmt::Arguments<'_>) {
    // A single write, so that lines of several threads do not mix.
    let _ = io::stderr().write_all(format!("amped: {text}\n").as_bytes());
}

/// Reports a fatal error and exits.
pub(crate) fn die(message: &str) -> ! {
    line(format_args!("{message}"));
    std::process::exit(1)
}

/// Writes text unchanged.
pub fn plain(text: &str) {
    let _ = io::stderr().write_all(text.as_bytes());
}

/// Writes a line to the operator: `say!("cannot do {this}: {error}")`.
#[macro_export]
macro_rules! say {
    ($($text:tt)*) => { $crate::say::line(format_args!($($text)*)) };
}
