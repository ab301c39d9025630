//! What the operator wants: flags and a file become one [`Settings`], or an [`Error`] that tells all that is wrong.
//!
//! 1. [`settings`], `file` and core define each key once; `schema` has descriptions, ranges and examples of them.
//! 2. [`cli`] has the flags as typed, each looked at alone.
//! 3. `read` makes a `File` of the text, and knows the place of each value.
//! 4. `checked` makes [`Settings`] of both: a flag goes before the file, the file before the default.
//! 5. `print` goes the other way: the configuration in force, the example and the reference.
//!
//! Nothing behind this module sees 2 or 3, so no value has two meanings and none is checked twice. Roots are looked at here, but
//! opened by the server: they may vanish between the two.

mod checked;
pub mod cli;
pub mod error;
mod file;
pub mod optimise;
mod print;
mod read;
mod schema;
pub mod settings;
mod types;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub use error::{Error, Problem};
pub use types::known as known_type;

use amped_core::auth::AccountError;

use crate::passwords::accounts;
use error::{Findings, Source};
use file::File;
use settings::Settings;

/// The settings that these flags ask for, with the file that they name. After a SIGHUP, the same again: an error then leaves
/// the old ones in force.
pub fn load(flags: &cli::Serve) -> Result<Settings, Error> {
    resolve(flags).map(|(_, settings)| settings)
}

/// The whole configuration that these flags ask for, as a file: `amped serve --print-config`.
pub fn print(flags: &cli::Serve) -> Result<String, Error> {
    resolve(flags).map(|(file, _)| print::print(&file))
}

/// A page that is generated from the definition of the configuration.
pub fn page(page: cli::Page) -> String {
    match page {
        cli::Page::Example => print::example(),
        cli::Page::Reference => print::reference(),
        cli::Page::Schema => schema::for_editors() + "\n",
    }
}

fn resolve(flags: &cli::Serve) -> Result<(File, Settings), Error> {
    let Some(path) = &flags.config else {
        return parse_within(flags, "", Path::new(""), Findings::default());
    };
    let text = std::fs::read(path).and_then(|bytes| {
        String::from_utf8(bytes).map_err(|error| {
            let at = error.utf8_error().valid_up_to();
            io::Error::new(io::ErrorKind::InvalidData, format!("it is not UTF-8 text, at byte {at}"))
        })
    });
    let text = text.map_err(|reason| error::unreadable(path, &reason))?;
    // An absolute path that was given has a folder, whatever the current one is.
    let absolute = std::path::absolute(path).map_err(|reason| error::unreadable(path, &reason))?;
    let folder = absolute.parent().map_or_else(PathBuf::new, Path::to_path_buf);
    parse(flags, &path.display().to_string(), text, &folder)
}

/// What `amped check` prints: the file is good, and what it would do.
pub fn check(flags: &cli::Check) -> Result<String, Error> {
    let settings = load(&cli::Serve { config: Some(flags.config.clone()), ..cli::Serve::default() })?;
    let addresses: Vec<String> = settings.listen.iter().map(ToString::to_string).collect();
    let sites = match settings.roots.len() {
        1 => "1 site".to_owned(),
        n => format!("{n} sites"),
    };
    let mut summary = format!("{}: ok\n{sites} on {}\n", flags.config.display(), addresses.join(", "));
    let mut findings = Findings::default();
    for path in &settings.accounts {
        summary += &check_accounts(path, &mut findings);
    }
    findings.into_result(Some(summary))
}

/// A line for each entry of this file that lets nobody in. One that would cost too much is an error: it looks as if it did.
fn check_accounts(path: &Path, findings: &mut Findings) -> String {
    let shown = path.display();
    let accounts = match accounts::read(path) {
        Ok(accounts) => accounts,
        Err(error) => {
            let help = "the user who serves must be able to read it";
            findings.outside(format!("cannot read the accounts in {shown}: {error}"), help);
            return String::new();
        }
    };
    let mut lines = String::new();
    for AccountError { line, why, costs_too_much } in &accounts.flaws {
        let message = format!("{shown}:{line}: this entry lets nobody in: {why}");
        match costs_too_much {
            true => findings.outside(message, format!("write it anew: `htpasswd -B {shown} NAME`")),
            false => lines += &format!("warning: {message}\n"),
        }
    }
    if accounts.is_empty() {
        lines += &format!("warning: {shown}: no entry lets anybody in; `htpasswd -B {shown} NAME` adds one\n");
    }
    lines
}

/// The file in force and the settings of a configuration text with this name; its paths are relative to `folder`.
fn parse(flags: &cli::Serve, name: &str, text: String, folder: &Path) -> Result<(File, Settings), Error> {
    let source = Arc::new(Source { name: name.to_owned(), text });
    parse_within(flags, &source.text, folder, Findings::within(Arc::clone(&source)))
}

fn parse_within(
    flags: &cli::Serve,
    text: &str,
    folder: &Path,
    mut findings: Findings,
) -> Result<(File, Settings), Error> {
    let read = read::read(text, &mut findings);
    let (file, settings) = checked::settle(flags, read, folder, &mut findings);
    findings.into_result(settings).map(|settings| (file, settings))
}

#[cfg(test)]
mod tests;
