//! `ammeter list`: the built-in exhibits, one per line, each with its experiment if that makes several.

use amped_measure::{Failure, Verdict};
use serde::Serialize;

use crate::exhibits;
use crate::experiment::{self, Options};
use crate::plan;
use crate::say;

/// The command-line flags.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Print the list as JSON, on one line
    #[arg(long)]
    json: bool,
    /// Print the file of this experiment, to read it or to start your own from it
    #[arg(value_name = "NAME", conflicts_with = "json")]
    name: Option<String>,
}

const EXAMPLES: &str = "\
Examples:
  ammeter list
  ammeter list arlitt-figure-5 > mine.toml      start your own experiment from it
  ammeter run arlitt-figure-5 --quick --out /tmp/figure-5";

#[derive(Serialize)]
struct Line {
    /// The name by which it is run.
    name: String,
    /// The title.
    title: String,
    /// The experiment that makes it, possibly with others; its own name if it makes only one.
    experiment: &'static str,
    /// Duration of the quick version, in seconds.
    quick_s: f64,
    /// Duration of the whole version, in seconds.
    whole_s: f64,
}

pub(crate) fn run(args: &Args) -> Result<Verdict, Failure> {
    if let Some(name) = &args.name {
        let exhibit = exhibits::find(name)?;
        return say::out(exhibit.text).map(|()| Verdict::valid());
    }
    let mut lines = Vec::new();
    for exhibit in exhibits::ALL {
        let of = |quick| {
            let experiment = experiment::parse(&exhibit.file(), exhibit.text, Options { quick, seed: None })?;
            Ok::<_, Failure>((plan::plan(&experiment.resolved).expected_s, experiment.resolved.title))
        };
        let ((quick_s, title), (whole_s, _)) = (of(true)?, of(false)?);
        let mut makes = exhibit.makes();
        if makes.is_empty() {
            makes.push((exhibit.name.to_owned(), title));
        }
        let line = |(name, title)| Line { name, title, experiment: exhibit.name, quick_s, whole_s };
        lines.extend(makes.into_iter().map(line));
    }
    if args.json {
        say::json(&lines)?;
    } else {
        let width = lines.iter().map(|line| line.name.len()).max().unwrap_or(0);
        let text: Vec<String> = lines
            .iter()
            .map(|Line { name, title, experiment, quick_s, whole_s }| {
                let by = if name == experiment { String::new() } else { format!("by {experiment}, ") };
                format!(
                    "{name:width$}  {title} ({by}--quick {}, whole {})",
                    plan::duration(*quick_s),
                    plan::duration(*whole_s)
                )
            })
            .collect();
        say::out(&text.join("\n"))?;
    }
    Ok(Verdict::valid())
}
