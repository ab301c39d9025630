//! Shared by all instruments: the outcome and validity of a run, statistics of repetitions, and the record of the
//! machine that a result belongs to.
//!
//! Independent of any server, load or network. Prints nothing; only the command-line program prints.
#![forbid(unsafe_code)]

pub mod account;
mod failure;
pub mod host;
pub mod others;
pub mod stats;
mod verdict;

pub use failure::Failure;
pub use verdict::{Validity, Verdict};
