//! `ammeter load`. `args.rs` parses the flags, and `setup.rs` converts them to settings; `single.rs`
//! makes one run, `sweep.rs` several, `hosts.rs` one from several hosts; `ears.rs` consumes each second. Results are printed as text
//! (`summary.rs`), as a log of histograms (`hlog.rs`), as a page (`html.rs`), and during the run as a
//! screen (`screen.rs`). `run.rs` ties these together.

mod args;
mod ears;
pub(crate) mod hlog;
mod hosts;
mod html;
mod run;
mod screen;
mod setup;
mod single;
mod summary;
mod sweep;

pub(super) use args::Sweep;
pub(crate) use args::{Args, EXAMPLES};
pub(crate) use run::run;
