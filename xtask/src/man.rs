//! `cargo xtask man`: generates manual pages and shell completions from the definitions of flags that the programs parse.
//!
//! Nothing is written by hand, so no flag can be missing. Packagers install both directories unchanged.

use std::fs;
use std::path::{Path, PathBuf};

use clap_complete::Shell;

use crate::command::{Outcome, target_dir};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Write into DIR/man and DIR/completions [default: the target directory]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

pub(crate) fn run(args: &Args) -> Outcome {
    let out = args.out.clone().unwrap_or_else(target_dir);
    for name in PROGRAMS {
        for file in write(name, &out)? {
            println!("{}", file.display());
        }
    }
    Ok(())
}

const PROGRAMS: [&str; 2] = ["amped", "ammeter"];

/// The definition of the flags of a program.
fn definition(name: &str) -> Outcome<clap::Command> {
    match name {
        "amped" => Ok(amped::config::cli::command()),
        "ammeter" => Ok(ammeter::command()),
        _ => Err(format!("unknown program {name}")),
    }
}

/// Writes all pages and completions of a program below `out` and returns their names.
pub(crate) fn write(name: &str, out: &Path) -> Outcome<Vec<PathBuf>> {
    let (man, completions) = (out.join("man"), out.join("completions"));
    for dir in [&man, &completions] {
        fs::create_dir_all(dir).map_err(|error| format!("cannot create {}: {error}", dir.display()))?;
    }
    let failed = |error| format!("cannot write below {}: {error}", out.display());

    let command = definition(name)?;
    // One page per subcommand: amped.1, amped-serve.1 and so on, since users try `man amped-serve`.
    clap_mangen::generate_to(command.clone(), &man).map_err(failed)?;
    for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
        clap_complete::generate_to(shell, &mut command.clone(), name, &completions).map_err(failed)?;
    }

    let mut files = Vec::new();
    for dir in [man, completions] {
        for entry in fs::read_dir(dir).map_err(failed)? {
            let file = entry.map_err(failed)?;
            if file.file_name().to_string_lossy().contains(name) {
                files.push(file.path());
            }
        }
    }
    files.sort();
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_subcommand_has_manual_and_every_shell_completion() {
        let out = std::env::temp_dir().join(format!("amped-man-{}", std::process::id()));
        for name in PROGRAMS {
            let files = write(name, &out.join(name)).expect("the temporary directory can be written");
            let has =
                |file: &str| assert!(files.contains(&out.join(name).join(file)), "{file} is missing in {files:?}");
            has(&format!("man/{name}.1"));
            let definition = definition(name).expect("known");
            for subcommand in definition.get_subcommands().filter(|command| !command.is_hide_set()) {
                has(&format!("man/{name}-{}.1", subcommand.get_name()));
            }
            for file in [format!("{name}.bash"), format!("_{name}"), format!("{name}.fish")] {
                has(&format!("completions/{file}"));
            }
        }
        fs::remove_dir_all(&out).expect("we made it");
    }
}
