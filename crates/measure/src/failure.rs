//! Why a command could not do what it was asked, and whose turn it is now.

use std::fmt;
use std::io;

/// A command did not come to a result. Its text holds the thing, the place and the way out, in one line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The command line asks for what cannot be: exit status 2.
    Usage(String),
    /// The run could not be made, or not to its end: exit status 1.
    Failed(String),
    /// The same, with an exit status that other programs use for it, such as 127 for a command that was not found.
    WithStatus(u8, String),
}

impl Failure {
    /// Wrong usage.
    pub fn usage(text: impl Into<String>) -> Failure {
        Failure::Usage(text.into())
    }

    /// A run that failed.
    pub fn failed(text: impl Into<String>) -> Failure {
        Failure::Failed(text.into())
    }

    /// The same failure with this exit status; wrong usage keeps its own.
    #[must_use]
    pub fn or_status(self, status: u8) -> Failure {
        match self {
            Failure::Failed(text) => Failure::WithStatus(status, text),
            Failure::Usage(_) | Failure::WithStatus(..) => self,
        }
    }

    /// For `map_err`: a run that failed while `doing` something, by an error of the system.
    pub fn io(doing: impl fmt::Display) -> impl FnOnce(io::Error) -> Failure {
        move |error| Failure::Failed(format!("cannot {doing}: {error}"))
    }

    /// What the program ends with.
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

/// For who tells failures as plain texts.
impl From<Failure> for String {
    fn from(failure: Failure) -> String {
        failure.to_string()
    }
}
