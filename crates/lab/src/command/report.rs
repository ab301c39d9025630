//! `ammeter report`: an experiment's archive as a page, and its figures as files.

use std::path::PathBuf;

use amped_measure::{Failure, Verdict};

use crate::archive::name;
use crate::report::{self, Told};
use crate::say;

/// The flags.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// The directory that `ammeter run --out` made
    #[arg(value_name = "RUN")]
    dir: PathBuf,
    /// Where the page goes; without it to report.html in that directory
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Each figure as a file into this folder, which is made
    #[arg(long, value_name = "DIR")]
    svg: Option<PathBuf>,
    /// What it says as JSON, in one line
    #[arg(long)]
    json: bool,
}

pub(crate) const EXAMPLES: &str = "\
Examples:
  ammeter report logging                     writes logging/report.html, which opens without a network
  ammeter report logging --svg figures       and each figure as an SVG file

The page is a function of the archive alone: made again years later it is the same. Of an experiment that is under way, or
lacks files, it shows what there is and names what is missing.";

pub(crate) fn run(args: &Args) -> Result<Verdict, Failure> {
    let page = args.html.clone().unwrap_or_else(|| args.dir.join(name::REPORT));
    let told = report::write(&args.dir, &page, args.svg.as_deref())?;
    if args.json {
        say::json(&told)?
    } else {
        say::out(&text(&told))?
    }
    Ok(Verdict::valid())
}

fn text(told: &Told) -> String {
    let mut lines = told.verdict.clone();
    lines.extend(told.limits.iter().cloned());
    lines.extend(told.against_baseline.iter().map(|one| format!("{} against {}: {}", one.b, one.a, one.sentence())));
    lines.extend(told.missing.iter().map(|line| format!("missing: {line}")));
    lines.extend(told.files.iter().map(|file| format!("written: {}", file.display())));
    lines.join("\n")
}
