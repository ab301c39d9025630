//! `amped`, the web server: parses the command line and runs the command.
#![forbid(unsafe_code)]

use std::io::{self, IsTerminal};
use std::process::ExitCode;

use amped::config::cli::{self, Command};
use amped::{config, preload, say, serve};
use amped_sys::process;

fn main() -> ExitCode {
    let command = match cli::parse(std::env::args_os()) {
        Ok(command) => command,
        Err(error) => error.exit(),
    };
    match command {
        Command::Serve(flags) => {
            // First of all: from here on all open descriptors belong to the server.
            if let Err(error) = process::close_inherited() {
                say::plain(&format!("amped: cannot close inherited descriptors: {error}\n"));
            }
            serve::serve(&flags)
        }
        Command::Preload(flags) => preload::preload(&flags),
        Command::Check(flags) => match config::check(&flags) {
            Ok(summary) => serve::print(&summary),
            Err(error) => {
                say::plain(&error.report(io::stderr().is_terminal()));
                ExitCode::from(error.exit_status())
            }
        },
    }
}
