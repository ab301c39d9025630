//! `cargo xtask man`: generates manual pages and shell completions from the definition of flags that `amped` parses.
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
    for file in write(&out)? {
        println!("{}", file.display());
    }
    Ok(())
}

/// Writes all pages and completions below `out` and returns their names.
fn write(out: &Path) -> Outcome<Vec<PathBuf>> {
    let (man, completions) = (out.join("man"), out.join("completions"));
    for dir in [&man, &completions] {
        fs::create_dir_all(dir).map_err(|error| format!("cannot create {}: {error}", dir.display()))?;
    }
    let failed = |error| format!("cannot write below {}: {error}", out.display());

    let command = amped::config::cli::command();
    // One page per subcommand: amped.1, amped-serve.1 and so on, since users try `man amped-serve`.
    clap_mangen::generate_to(command.clone(), &man).map_err(failed)?;
    for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
        clap_complete::generate_to(shell, &mut command.clone(), "amped", &completions).map_err(failed)?;
    }

    let mut files = Vec::new();
    for dir in [man, completions] {
        for entry in fs::read_dir(dir).map_err(failed)? {
            files.push(entry.map_err(failed)?.path());
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
        let files = write(&out).expect("the temporary directory can be written");
        let has = |name: &str| assert!(files.contains(&out.join(name)), "{name} is missing in {files:?}");
        has("man/amped.1");
        for subcommand in amped::config::cli::command().get_subcommands().filter(|command| !command.is_hide_set()) {
            has(&format!("man/amped-{}.1", subcommand.get_name()));
        }
        for name in ["amped.bash", "_amped", "amped.fish"] {
            has(&format!("completions/{name}"));
        }
        fs::remove_dir_all(&out).expect("we made it");
    }
}
