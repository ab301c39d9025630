//! What the instruments share: how a run ended and what it is worth, what is said of repetitions, and the record of the
//! machine that a figure belongs to.
//!
//! Knows no server, no load and no network. Prints nothing: the program that a person calls does.
#![forbid(unsafe_code)]

mod failure;
pub mod host;
pub mod others;
pub mod stats;
mod verdict;

pub use failure::Failure;
pub use verdict::{Validity, Verdict};
