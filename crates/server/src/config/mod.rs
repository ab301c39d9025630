//! The configuration: flags and a file become one [`Settings`], or an [`Error`] that lists every mistake.
//!
//! 1. [`settings`], `file` and core define each key once; `schema` has descriptions, ranges and examples of them.
//! 2. [`cli`] has the flags. Those that set a key put their value in the place of the key.
//! 3. `include` reads the files that the main file includes. `read` parses all texts into a `File`, checks each value,
//!    and keeps the position of each.
//! 4. `checked` checks keys together and builds the [`Settings`].
//! 5. `print` prints: the configuration in force, the example and the reference.
//!
//! Roots are checked here but opened by the server: they may disappear in between.

mod acme;
mod backends;
mod certificates;
mod checked;
pub mod cli;
pub mod error;
pub(crate) mod file;
mod forms;
mod include;
pub mod log_format;
pub mod optimise;
pub(crate) mod print;
mod read;
mod review;
mod schema;
pub mod settings;
mod types;

use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

pub use checked::Settings;
pub use error::{Error, Problem};
pub use types::known as known_type;

use amped_core::auth::AccountError;

use crate::certified::Unusable;
use crate::keys::client::KeySource;
use crate::object_store::Bucket;
use crate::object_store::settings::Location;
use crate::passwords::accounts;
use error::{Findings, Source};
use settings::KeyHolder;

/// The whole configuration in force with these flags, as a file: `amped serve --print-config`.
pub fn print(flags: &cli::Serve) -> Result<String, Error> {
    load(flags).map(|settings| print::print(&settings.file))
}

/// A page that is generated from the definition of the configuration.
pub fn page(page: cli::Page) -> String {
    match page {
        cli::Page::Example => print::example(),
        cli::Page::Reference => print::reference(),
        cli::Page::Schema => schema::for_editors() + "\n",
    }
}

/// Reads the settings from these flags and the file that they name, at the start and after each SIGHUP.
pub fn load(flags: &cli::Serve) -> Result<Settings, Error> {
    let Some(path) = &flags.config else {
        return parse(flags, None, Path::new(""));
    };
    let text = include::text_of(path).map_err(|reason| error::unreadable(path, &reason))?;
    // An absolute path does not depend on the current directory.
    let absolute = std::path::absolute(path).map_err(|reason| error::unreadable(path, &reason))?;
    let folder = absolute.parent().map_or_else(PathBuf::new, Path::to_path_buf);
    parse(flags, Some(Source::new(path.display().to_string(), text)), &folder)
}

/// Returns the output of `amped check`: that the file is valid, a summary, and flaws of its certificates and accounts.
pub fn check(flags: &cli::Check) -> Result<String, Error> {
    let mut settings = load(&cli::Serve { config: Some(flags.config.clone()), ..cli::Serve::default() })?;
    let mut findings = Findings::default();
    if settings.tls.keys == KeyHolder::Process {
        let unusable = settings.read_certificates(&KeySource::Files);
        unusable.into_iter().for_each(|Unusable { message, help, .. }| findings.outside(message, help));
    }
    let addresses: Vec<String> = settings.listen.iter().map(|listen| listen.to_string()).collect();
    let sites = match settings.apps.len() {
        1 => "1 site".to_owned(),
        n => format!("{n} sites"),
    };
    let mut summary = format!("{}: ok\n{sites} on {}\n", flags.config.display(), addresses.join(", "));
    for file in &settings.included {
        summary += &format!("included: {file}\n");
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    summary += &review::review(&settings, now);
    if let Some(plan) = &settings.acme {
        summary += &acme::describe(plan, &settings.listen);
    }
    if let Some(store) = &settings.store {
        let mut locations: Vec<Location> = settings.roots.iter().filter_map(|root| Location::of(root)?.ok()).collect();
        locations.sort();
        locations.dedup();
        for location in &locations {
            match Bucket::check(store, location) {
                Ok(line) => summary += &line,
                Err((message, help)) => findings.outside(message, help),
            }
        }
    }
    for path in &settings.accounts {
        summary += &check_accounts(path, &mut findings);
    }
    findings.into_result(Some(summary))
}

/// Returns a line for each invalid entry of this file. An entry whose hash costs too much to verify is an error,
/// because it looks valid.
fn check_accounts(path: &Path, findings: &mut Findings) -> String {
    let shown = path.display();
    let accounts = match accounts::read(path) {
        Ok(accounts) => accounts,
        Err(error) => {
            let help = "make it readable by the user that serves";
            findings.outside(format!("cannot read the accounts file {shown}: {error}"), help);
            return String::new();
        }
    };
    let mut lines = String::new();
    for AccountError { line, why, costs_too_much } in &accounts.flaws {
        let message = format!("{shown}:{line}: invalid entry: {why}");
        match costs_too_much {
            true => findings.outside(message, format!("replace it with `htpasswd -B {shown} NAME`")),
            false => lines += &format!("warning: {message}\n"),
        }
    }
    if accounts.is_empty() {
        lines += &format!("warning: {shown}: no valid entry; `htpasswd -B {shown} NAME` adds one\n");
    }
    lines
}

/// Reads the settings from flags and a file, if any, whose paths are relative to `folder`.
fn parse(flags: &cli::Serve, source: Option<Source>, folder: &Path) -> Result<Settings, Error> {
    let overrides = flags.overrides();
    let mut findings = Findings::of_flags(overrides.iter().map(|key| key.flag).collect());
    let sources = source.map_or_else(Vec::new, |main| include::sources(main, folder, &mut findings));
    let read = read::read(&sources, &overrides, &mut findings);
    let mut settings = checked::settle(flags, read, folder, &mut findings);
    if let Some(settings) = &mut settings {
        settings.included = sources.iter().skip(1).map(|source| source.name.clone()).collect();
    }
    findings.into_result(settings)
}

#[cfg(test)]
mod tests;
