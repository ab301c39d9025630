//! `ammeter report`: an experiment's archive as a page, and its figures as files.

use std::path::{Path, PathBuf};

use amped_measure::{Failure, Verdict};

use crate::archive::{Archive, name};
use crate::experiment::{self, Options};
use crate::report::{self, ReportSummary};
use crate::{exhibits, say};

/// The command-line flags.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Archive that `ammeter run --out` wrote, or a packed one (`archive.tar.zst`)
    #[arg(value_name = "RUN")]
    run: PathBuf,
    /// File for the page [default: report.html in the archive, or beside a packed one]
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Write each figure as an SVG file into this directory, which is created
    #[arg(long, value_name = "DIR")]
    svg: Option<PathBuf>,
    /// Use the figures and claims of this experiment (file or name) instead of the archive's; it must measure the same
    #[arg(long, value_name = "EXPERIMENT")]
    claims: Option<String>,
    /// Print the report as JSON, on one line
    #[arg(long)]
    json: bool,
}

pub(crate) const EXAMPLES: &str = "\
Examples:
  ammeter report logging                     writes logging/report.html, which needs no network
  ammeter report logging --svg figures       and each figure as an SVG file
  ammeter report old --claims arlitt-figure-5       with the figures and claims of the current experiment
  ammeter report experiments/residency/archive.tar.zst       a packed archive, as ammeter exhibits writes them

The page depends on the archive alone: generated again years later it is the same. For an incomplete experiment it shows the
existing runs and lists the missing ones.";

pub(crate) fn run(args: &Args) -> Result<Verdict, Failure> {
    let page = args.html.clone().unwrap_or_else(|| page_of(&args.run));
    let mut archive = Archive::open(&args.run)?;
    if let Some(experiment) = &args.claims {
        adopt(&mut archive, experiment)?;
    }
    let summary = report::write(&archive, &page, args.svg.as_deref())?;
    if args.json {
        say::json(&summary)?
    } else {
        say::out(&text(&summary))?
    }
    Ok(Verdict::valid())
}

fn page_of(run: &Path) -> PathBuf {
    if run.is_dir() { run.join(name::REPORT) } else { run.with_file_name(name::REPORT) }
}

/// Replaces the title, figures and claims of the archive by those of an experiment. Claims that the archive was not
/// measured for, by their hash, are marked: they have no verdict.
///
/// # Errors
/// When there is no such experiment, or it measures something else.
pub(super) fn adopt(archive: &mut Archive, experiment: &str) -> Result<(), Failure> {
    let (file, text) = exhibits::read(experiment)?;
    let old = &mut archive.resolved;
    let mut new = experiment::parse(&file, &text, Options { quick: old.quick, seed: Some(old.seed) })?.resolved;
    // Fewer repetitions measure the same.
    new.repetitions = old.repetitions;
    if !old.measures_as(&new) {
        return Err(Failure::usage(format!(
            "{} was measured with other settings than {experiment} has now; measure it again: ammeter run {experiment} \
             --out DIR",
            archive.path().display()
        )));
    }
    for claim in &mut new.claims {
        claim.is_later = !old.claims.iter().any(|frozen| frozen.hash == claim.hash);
    }
    (old.name, old.title, old.about) = (new.name, new.title, new.about);
    (old.figures, old.claims) = (new.figures, new.claims);
    Ok(())
}

fn text(summary: &ReportSummary) -> String {
    let mut lines = summary.verdict.clone();
    lines.push(report::overview_text(&summary.overview));
    lines.extend(report::open_claims(&summary.claims));
    if !summary.claims.is_empty() {
        lines.push(format!("{}.", summary.repeats.sentence()));
    }
    lines.extend(summary.limits.iter().cloned());
    lines.extend(summary.against_baseline.iter().map(|one| format!("{} against {}: {}", one.b, one.a, one.sentence())));
    lines.extend(summary.missing.iter().map(|line| format!("missing: {line}")));
    lines.extend(summary.files.iter().map(|file| format!("written: {}", file.display())));
    lines.join("\n")
}
