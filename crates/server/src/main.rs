//! `amped`, the web server: parses the command line and runs the command.
#![forbid(unsafe_code)]

use std::process::ExitCode;

use amped::config::cli::{self, Command};
use amped::upgrade::Inherited;
use amped::{acme_command, config, convert, preload, say, serve, service_manager, upgrade_command};

fn main() -> ExitCode {
    let command = match cli::parse(std::env::args_os()) {
        Ok(command) => command,
        Err(error) => error.exit(),
    };
    match command {
        Command::Serve(flags) => {
            // First of all: from here on all open descriptors belong to the server.
            match service_manager::take_descriptors() {
                Ok(descriptors) => serve::serve(&flags, Inherited::of(descriptors)),
                Err(message) => {
                    say::plain(&format!("amped: {message}\n"));
                    ExitCode::FAILURE
                }
            }
        }
        Command::Preload(flags) => preload::preload(&flags),
        Command::Acme(flags) => acme_command::run(&flags),
        Command::Upgrade(flags) => upgrade_command::run(&flags),
        Command::Config(flags) => serve::print(&config::page(flags.page)),
        Command::Convert(flags) => convert::run(&flags),
        Command::Check(flags) => serve::print_or_report(config::check(&flags)),
    }
}
