//! `amped upgrade`: makes a running server start its successor, and reports whether that serves.
//!
//! The other side is `control`, and `upgrade` does the work.

use std::process::ExitCode;
use std::time::Duration;

use crate::acme_command::ask;
use crate::config::cli;
use crate::{say, serve};

/// How long the command waits; the server itself waits for its successor only for `stop.upgrade_timeout`.
const PATIENCE: Duration = Duration::from_secs(3600);

/// Executes the command.
pub fn run(flags: &cli::Upgrade) -> ExitCode {
    match ask(&flags.control, "upgrade\n", PATIENCE) {
        Ok(text) => serve::print(&format!("{text}\n")),
        Err(why) => {
            say!("{why}");
            ExitCode::FAILURE
        }
    }
}
