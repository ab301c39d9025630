//! `ammeter agent`: the part of `ammeter run` on another host. Hidden: it is started over ssh, and ends with it.

use ammeter_load::drive::Stop;
use amped_measure::{Failure, Verdict};

use crate::hosts::{server, session};
use crate::run::look_at_rest;
use crate::say;

/// The command-line arguments.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    task: Task,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Task {
    /// Keep the host ready for the runs of an experiment
    Session,
    /// Start the server of a run
    Server,
    /// Print the programs of the subjects
    Programs,
    /// Observe the idle machine
    Rest,
}

pub(crate) fn run(args: &Args) -> Result<Verdict, Failure> {
    match args.task {
        Task::Session => session::run(),
        Task::Server => server::serve(),
        Task::Programs => server::print_programs(),
        Task::Rest => say::json(&look_at_rest(&Stop::default())?),
    }
    .map(|()| Verdict::valid())
}
