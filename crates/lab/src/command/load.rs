//! `ammeter load`. The flags are read by `args.rs`; `run.rs` makes a run of them, `sweep.rs` several; `ears.rs` receives each
//! second. A result is told in words (`summary.rs`), as a log of histograms (`hlog.rs`), as a page (`html.rs`), and while it
//! goes on, as a screen (`screen.rs`).

mod args;
mod ears;
pub(crate) mod hlog;
mod html;
mod run;
mod screen;
mod summary;
mod sweep;

pub(super) use args::Sweep;
pub(crate) use args::{Args, EXAMPLES};
pub(crate) use run::{READY, run};
