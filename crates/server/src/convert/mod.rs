//! `amped convert`: translates a configuration of nginx.
//!
//! 1. `lex` splits the text into words, `tree` makes directives of them, with those of included files. `variables` replaces
//!    variables that have one value.
//! 2. `main_block` translates what concerns the whole server, `listens` its addresses. `server` makes a site of each
//!    `server`: `scope` keeps a directive with what is around it, `order` sorts the locations (`paths`, `regexes`) by
//!    nginx's precedence, and `rules` translates each `location` by `rewrite`, `files` with `media_types`, `apps`, `backends`,
//!    `caching` and `limits`.
//! 3. `guards` lists what restricts access, and `protect` and `authorize` translate it. A location with a restriction that
//!    cannot be translated is refused.
//! 4. `page` collects the tables, checks each as the server does, and prints them, with a comment for each directive that is left.
//!
//! A directive that cannot be translated exactly is reported, never guessed: the operator has to know.

mod apps;
mod authorize;
mod backends;
mod caching;
mod challenges;
mod files;
mod guards;
mod known;
mod lex;
mod limits;
mod listens;
mod location;
mod main_block;
mod media_types;
mod order;
mod page;
mod paths;
mod protect;
mod regexes;
mod rewrite;
mod rules;
mod scope;
mod server;
mod tree;
mod variables;

use std::path::Path;
use std::process::ExitCode;

use crate::config::cli;
use crate::{say, serve};

/// The result of a conversion.
#[derive(Debug)]
pub struct Converted {
    /// The configuration, in TOML.
    pub text: String,
    /// A line for each directive that is not converted.
    pub left: Vec<String>,
    /// A line for each that is converted to what a default of amped would be safer than.
    pub warnings: Vec<String>,
}

/// Translates a file and all that it includes.
///
/// # Errors
/// A message with file, line and column.
pub fn convert(path: &Path) -> Result<Converted, String> {
    let mut directives = tree::read(path)?;
    variables::substitute(&mut directives);
    let page = main_block::page(&directives);
    let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy();
    Ok(Converted { text: page.text(&name), left: page.left, warnings: page.warnings })
}

/// The exit status if a directive is left.
const INCOMPLETE: u8 = 3;

/// Runs the command.
pub fn run(flags: &cli::Convert) -> ExitCode {
    let converted = match convert(&flags.config) {
        Ok(converted) => converted,
        Err(message) => {
            say!("{message}");
            return ExitCode::FAILURE;
        }
    };
    let written = match &flags.output {
        None => serve::print(&converted.text),
        Some(path) => match std::fs::write(path, &converted.text) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                say!("cannot write {}: {error}", path.display());
                ExitCode::FAILURE
            }
        },
    };
    for line in converted.left.iter().chain(&converted.warnings) {
        say!("{line}");
    }
    match converted.left.len() {
        0 => written,
        _ if written != ExitCode::SUCCESS => written,
        n => {
            match n {
                1 => say!("one directive is not converted; a comment in the output is at its place"),
                _ => say!("{n} directives are not converted; the comments in the output are at their places"),
            }
            ExitCode::from(INCOMPLETE)
        }
    }
}

#[cfg(test)]
mod tests;
