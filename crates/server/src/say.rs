//! What the server says to the people who run it: a line on standard error.
//!
//! Never a panic, as `eprintln!` has for a reader that is gone: a server must not end because nobody listens.

use std::fmt;
use std::io::{self, Write};

/// Says a line; see [`say!`](crate::say!).
pub fn line(text: fmt::Arguments<'_>) {
    // One write for the line, so that those of several threads do not mix.
    let _ = io::stderr().write_all(format!("amped: {text}\n").as_bytes());
}

/// Says why the server cannot go on, and ends the process.
pub(crate) fn die(message: &str) -> ! {
    line(format_args!("{message}"));
    std::process::exit(1)
}

/// Says text as it is.
pub fn plain(text: &str) {
    let _ = io::stderr().write_all(text.as_bytes());
}

/// Says a line to the people who run the server: `say!("cannot do {this}: {error}")`.
#[macro_export]
macro_rules! say {
    ($($text:tt)*) => { $crate::say::line(format_args!($($text)*)) };
}
