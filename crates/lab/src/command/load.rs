//! `ammeter load`. The flags are read by `args.rs`, and what they come to is `asked.rs`; `single.rs` makes a run of it, `sweep.rs`
//! several; `ears.rs` receives each second. A result is told in words (`summary.rs`), as a log of histograms (`hlog.rs`), as a
//! page (`html.rs`), and while it goes on, as a screen (`screen.rs`). `run.rs` is the whole.

mod args;
mod asked;
mod ears;
pub(crate) mod hlog;
mod html;
mod run;
mod screen;
mod single;
mod summary;
mod sweep;

pub(super) use args::Sweep;
pub(crate) use args::{Args, EXAMPLES};
pub(crate) use asked::READY;
pub(crate) use run::run;
