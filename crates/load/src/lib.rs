//! Load that does not slow down when the server does: what is asked, when, and what came of it.
//!
//! `workload` says what is asked for. Nothing here prints, and nothing here knows a command line.
#![forbid(unsafe_code)]

pub mod workload;
