//! `ammeter subject`: the server of a run with `[hosts]`. Hidden: it is started over ssh, and ends with it.

use std::path::PathBuf;

use amped_measure::{Failure, Verdict};

use crate::hosts::server;

/// The command-line flags.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Folder of the session
    #[arg(long, value_name = "DIR", required_unless_present = "programs")]
    scratch: Option<PathBuf>,
    /// Process of the session; the server ends with it
    #[arg(long, value_name = "PID", default_value_t = 1)]
    session: u32,
    /// Print the programs of the subjects instead
    #[arg(long)]
    programs: bool,
}

pub(crate) fn run(args: &Args) -> Result<Verdict, Failure> {
    match &args.scratch {
        Some(scratch) => server::serve(scratch, args.session),
        None => server::print_programs(),
    }
    .map(|()| Verdict::valid())
}
