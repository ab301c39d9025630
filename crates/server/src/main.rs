//! `amped`, the web server: parses the command line and runs the command.
#![forbid(unsafe_code)]

use std::process::ExitCode;

use amped::config::cli::{self, Command};
use amped::{acme_command, config, preload, say, serve};
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
        Command::Acme(flags) => acme_command::run(&flags),
        Command::Config(flags) => serve::print(&config::page(flags.page)),
        Command::Check(flags) => serve::print_or_report(config::check(&flags)),
    }
}
