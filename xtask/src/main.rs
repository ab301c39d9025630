//! `cargo xtask`: the developer's tasks, in one place and one language.
//!
//! Each task is one file with one `run`; this file parses the command line, and `command` holds what the tasks share.
//! Dependencies are few (clap, syn and those of the server), since every task waits for this build.
#![forbid(unsafe_code)]

mod cluster;
mod command;
mod cycles;
mod fuzz;
mod image;
mod man;
mod package;
#[cfg(test)]
#[path = "../../tests/ports.rs"]
#[allow(clippy::unwrap_used, unreachable_pub, reason = "tests only")]
mod ports;
mod setup;
mod test;
mod tidy;
mod tree;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// The project's own tasks.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", arg_required_else_help = true)]
#[command(after_help = "Before a commit: cargo xtask test --quick")]
struct Args {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Install what the tests need: Debian packages, and Cargo tools into target/tools
    Setup(setup::Args),
    /// Run everything that CI runs: setup, format, tidy, clippy, deny, tests, a short measurement, fuzzing
    Test(test::Args),
    /// Run each fuzz target for a short time, beginning with the inputs that once crashed
    FuzzSmoke(fuzz::Args),
    /// Check the house rules that a machine can check
    Tidy,
    /// Write manual pages and shell completions
    Man(man::Args),
    /// Serve a site from Ceph, and check responses while everything is changed, slowed and killed; needs root
    Cluster(cluster::Args),
    /// Make Debian packages, and an archive for other systems
    Package(package::Args),
}

fn main() -> ExitCode {
    let outcome = match Args::parse().task {
        Task::Setup(args) => setup::run(&args),
        Task::Test(args) => test::run(&args),
        Task::FuzzSmoke(args) => fuzz::run(&args),
        Task::Tidy => tidy::run(),
        Task::Man(args) => man::run(&args),
        Task::Cluster(args) => cluster::run(&args),
        Task::Package(args) => package::run(&args),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(text) => {
            eprintln!("xtask: {text}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn command_line_definition_is_valid() {
        Args::command().debug_assert();
    }
}
