//! `ammeter`, the laboratory: measures any web server from outside, this project's or another.
//!
//! This file parses the command line and sets the exit status: 0 success, 1 a run failed or a check did
//! not hold, 2 usage error. `compare` and `wan` have further statuses (see their help). Each command is a
//! file in `command`; the work is done by the modules below, which never parse arguments and print nothing.
#![forbid(unsafe_code)]

mod analyse;
mod archive;
mod certificate;
mod channel;
mod command;
mod compare;
mod diagnose;
mod environment;
mod exhibits;
mod experiment;
mod figure;
mod generate;
mod group;
mod hosts;
mod interleave;
mod page;
mod plan;
mod report;
mod run;
mod runner;
mod say;
mod subject;
mod terminal;
mod validate;
mod values;

use std::process::ExitCode;

use amped_measure::Failure;
use clap::{CommandFactory, Parser, Subcommand};

/// Load generator and laboratory for web servers
#[derive(Parser)]
#[command(name = "ammeter", version, arg_required_else_help = true, after_help = EXAMPLES)]
struct Ammeter {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Take part in an experiment of another host, until standard input ends
    #[command(hide = true)]
    Agent(command::agent::Args),
    /// Compare two experiments, or two subjects of one, against the noise of the machine
    #[command(after_help = command::compare::EXAMPLES, arg_required_else_help = true)]
    Compare(command::compare::Args),
    /// Find the bottleneck of a server, by loading it or from an archive
    #[command(after_help = command::diagnose::EXAMPLES, arg_required_else_help = true)]
    Diagnose(Box<command::diagnose::Args>),
    /// Run all built-in experiments one after another, and write a table of their claims
    #[command(after_help = command::exhibits::EXAMPLES)]
    Exhibits(command::exhibits::Args),
    /// Generate a file set to serve, and the manifest of its requests
    Files(command::files::Args),
    /// Serve prepared responses from a file, without parsing requests
    #[command(hide = true)]
    FloorServer(command::floor_server::Args),
    /// Print a record of the machine: processor, kernel, and other activity
    Host(command::host::Args),
    /// List the built-in experiments, or print one
    List(command::list::Args),
    /// Load a web server at a rate that does not depend on the server
    #[command(after_help = command::load::EXAMPLES, arg_required_else_help = true)]
    Load(Box<command::load::Args>),
    /// Watch a server and its machine: CPU, threads, listen queue, connections, network, disks
    Monitor(command::monitor::Args),
    /// Answer any request with two bytes
    #[command(hide = true)]
    NullServer(command::null_server::Args),
    /// Measure what monitoring costs a server under load
    Overhead(command::overhead::Args),
    /// Sample where CPU time goes: system calls, interrupts, kernel and program functions
    Profile(command::profile::Args),
    /// Generate the HTML report of an experiment, and its figures
    #[command(after_help = command::report::EXAMPLES, arg_required_else_help = true)]
    Report(command::report::Args),
    /// Run an experiment: servers, factors and a ladder of load, measured, validated and archived
    #[command(after_help = command::run::EXAMPLES, arg_required_else_help = true)]
    Run(command::run::Args),
    /// Run a command behind an emulated network path
    Wan(Box<command::wan::Args>),
}

impl Command {
    /// Runs the command and returns its exit status.
    fn run(&self) -> Result<u8, Failure> {
        let verdict = match self {
            // The exit status is that of the command that it runs.
            Command::Wan(args) => return command::wan::run(args),
            // One more exit status: undecided.
            Command::Compare(args) => return command::compare::run(args),
            Command::Agent(args) => command::agent::run(args),
            Command::Diagnose(args) => command::diagnose::run(args),
            Command::Exhibits(args) => command::exhibits::run(args),
            Command::Files(args) => command::files::run(args),
            Command::FloorServer(args) => command::floor_server::run(args),
            Command::Host(args) => command::host::run(args),
            Command::List(args) => command::list::run(args),
            Command::Load(args) => command::load::run(args),
            Command::Monitor(args) => command::monitor::run(args),
            Command::NullServer(args) => command::null_server::run(args),
            Command::Overhead(args) => command::overhead::run(args),
            Command::Profile(args) => command::profile::run(args),
            Command::Report(args) => command::report::run(args),
            Command::Run(args) => command::run::run(args),
        };
        verdict.map(|verdict| verdict.exit_status())
    }
}

const EXAMPLES: &str = "\
Examples:
  ammeter load http://127.0.0.1:8080/ --rate 1000 --duration 10s
  ammeter files specweb96 --ops 500 /srv/spec     a file set with its request mix
  ammeter monitor --port 8080                     watch a server and its machine
  ammeter profile --port 8080                     where its CPU time goes
  ammeter diagnose http://127.0.0.1:8080/ --port 8080 --rates 1000..8000/1000     what limits it
  ammeter wan --latency 50ms -- curl http://10.77.0.1:8080/   a server on this host, over a slow path
  ammeter run arlitt-figure-5 --quick             an experiment of a paper; ammeter list shows all
  ammeter host --json                             a record of this machine, to keep with results";

/// The definition of the command line, for manual pages and completions.
#[must_use]
pub fn command() -> clap::Command {
    Ammeter::command()
}

/// Runs the program with the arguments of this process, and returns its exit status.
#[must_use]
pub fn run() -> ExitCode {
    // clap exits with status 2 on a usage error, and with 0 after help. Without arguments, print the help.
    let ended = match Ammeter::try_parse() {
        Ok(ammeter) => ammeter.command.run(),
        Err(error) if error.kind() == clap::error::ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            // To standard output with status 0: this is not an error.
            say::out(&error.to_string()).map(|()| 0)
        }
        Err(error) => error.exit(),
    };
    match ended {
        Ok(status) => ExitCode::from(status),
        Err(failure) => {
            say::plain(&format!("ammeter: {failure}"));
            ExitCode::from(failure.exit_status())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_line_definition_is_valid() {
        command().debug_assert();
    }
}
