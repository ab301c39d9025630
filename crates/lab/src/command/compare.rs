//! `ammeter compare`: whether two archives, or two subjects of one, differ by more than the noise.

use std::path::PathBuf;

use amped_measure::{Failure, Verdict};

use crate::archive::Archive;
use crate::{compare, say};

/// The flags.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// The archive of A, or of both
    #[arg(value_name = "A")]
    a: PathBuf,
    /// The archive of B, whose arms are paired with those of A that have the same settings
    #[arg(value_name = "B", conflicts_with = "subjects")]
    b: Option<PathBuf>,
    /// Two subjects of one archive, or two of its arms by their labels
    #[arg(long, value_name = "A,B", value_parser = two)]
    subjects: Option<[String; 2]>,
    /// As JSON, in one line
    #[arg(long)]
    json: bool,
}

pub(crate) const EXAMPLES: &str = "\
Examples:
  ammeter compare shoot-out --subjects nginx,amped    two subjects, block by block: what changed meanwhile cancels
  ammeter compare before after                        two archives, measured one after the other

Ratios are B / A of runs of the same step and block: the median, its interval, and beside it the noise band, which is what
pairs of the same thing come to. A difference is told only where the interval leaves out 1 and the median is out of the band.";

/// Two names with a comma between them.
fn two(text: &str) -> Result<[String; 2], String> {
    let names: Vec<String> = text.split(',').map(|name| name.trim().to_owned()).collect();
    <[String; 2]>::try_from(names)
        .ok()
        .filter(|names| names.iter().all(|name| !name.is_empty()))
        .ok_or_else(|| format!("{text:?} are not two names: write A,B, such as nginx,amped"))
}

pub(crate) fn run(args: &Args) -> Result<Verdict, Failure> {
    let a = Archive::open(&args.a)?;
    let comparison = match (&args.b, &args.subjects) {
        (Some(b), _) => compare::archives(&a, &Archive::open(b)?),
        (None, Some([one, other])) => compare::named(&a, one, other)?,
        (None, None) => compare::only_two(&a)?,
    };
    if args.json {
        say::json(&comparison)?
    } else {
        say::out(&comparison.text())?
    }
    Ok(Verdict::valid())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_names_are_two() {
        assert_eq!(two("a, b"), Ok(["a".to_owned(), "b".to_owned()]));
        for wrong in ["a", "a,", ",", "a,b,c", ""] {
            assert!(two(wrong).is_err(), "{wrong}");
        }
    }
}
