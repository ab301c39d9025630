//! `ammeter list`: the experiments that are built in, one a line.

use amped_measure::{Failure, Verdict};
use serde::Serialize;

use crate::exhibits;
use crate::experiment::{self, Wish};
use crate::plan;
use crate::say;

/// The flags.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// As JSON, in one line
    #[arg(long)]
    json: bool,
    /// Print the file of this one, to look at it or to begin one's own with it
    #[arg(value_name = "NAME", conflicts_with = "json")]
    name: Option<String>,
}

const EXAMPLES: &str = "\
Examples:
  ammeter list
  ammeter list arlitt-figure-5 > mine.toml      begin an experiment of one's own with it
  ammeter run arlitt-figure-5 --quick --out /tmp/figure-5";

#[derive(Serialize)]
struct Line {
    name: String,
    title: String,
    /// How long it takes, in seconds.
    quick_s: f64,
    /// Likewise at length.
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
            let experiment = experiment::parse(&exhibit.file(), exhibit.text, Wish { quick, seed: None })?;
            Ok::<_, Failure>((plan::plan(&experiment.resolved).expected_s, experiment.resolved.title))
        };
        let ((quick_s, title), (whole_s, _)) = (of(true)?, of(false)?);
        lines.push(Line { name: exhibit.name.to_owned(), title, quick_s, whole_s });
    }
    if args.json {
        say::json(&lines)?;
    } else {
        let width = lines.iter().map(|line| line.name.len()).max().unwrap_or(0);
        let text: Vec<String> = lines
            .iter()
            .map(|Line { name, title, quick_s, whole_s }| {
                format!("{name:width$}  {title} (--quick {}, whole {})", plan::told(*quick_s), plan::told(*whole_s))
            })
            .collect();
        say::out(&text.join("\n"))?;
    }
    Ok(Verdict::valid())
}
