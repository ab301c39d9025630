//! How a command failed, and the exit status that follows from it.

use std::fmt;
use std::io;

/// A failed command. Its text is one line: what failed, where, and what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The command line is invalid: exit status 2.
    Usage(String),
    /// The run could not start or did not finish: exit status 1.
    Failed(String),
    /// As `Failed`, with an exit status that other programs use
    /// for the case, such as 127 for a command that was not found.
    WithStatus(u8, String),
}

impl Failure {
    /// Invalid usage.
    pub fn usage(text: impl Into<String>) -> Failure {
        Failure::Usage(text.into())
    }

    /// A run that failed.
    pub fn failed(text: impl Into<String>) -> Failure {
        Failure::Failed(text.into())
    }

    /// The same failure with this exit status; invalid usage keeps its own.
    #[must_use]
    pub fn or_status(self, status: u8) -> Failure {
        match self {
            Failure::Failed(text) => Failure::WithStatus(status, text),
            Failure::Usage(_) | Failure::WithStatus(..) => self,
        }
    }

    /// For `map_err`: a run that failed with an I/O error while `doing` something.
    pub fn io(doing: impl fmt::Display) -> impl FnOnce(io::Error) -> Failure {
        move |error| Failure::Failed(format!("cannot {doing}: {error}"))
    }

    /// The exit status of the program.
    pub fn exit_status(&self) -> u8 {
        match self {
            Failure::Usage(_) => 2,
            Failure::Failed(_) => 1,
            Failure::WithStatus(status, _) => *status,
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Failure::Usage(text) | Failure::Failed(text) | Failure::WithStatus(_, text)) = self;
        f.write_str(text)
    }
}

impl std::error::Error for Failure {}

/// For callers that report failures as plain text.
impl From<Failure> for String {
    fn from(failure: Failure) -> String {
        failure.to_string()
    }
}
