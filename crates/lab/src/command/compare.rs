//! `ammeter compare`: tests whether two archives, or two subjects of one, differ by more than the noise.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use amped_measure::Failure;
use serde::Serialize;

use crate::archive::{Archive, Summary};
use crate::compare::{self, Comparison, Finding, METRICS};
use crate::say;

/// The command-line flags.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Archive of A, or of both
    #[arg(value_name = "A")]
    a: PathBuf,
    /// Archive of B, whose arms are paired with those of A that have the same settings
    #[arg(value_name = "B", conflicts_with_all = ["subjects", "arm"])]
    b: Option<PathBuf>,
    /// Two subjects of one archive, or two of its arms by their labels
    #[arg(long, value_name = "A,B", conflicts_with = "arm")]
    subjects: Option<String>,
    /// Subject or arm of one archive, by its full name; given twice, A first
    #[arg(long, value_name = "NAME")]
    arm: Vec<String>,
    /// Fail if a metric of B differs from A's by more than this, such as 'p99>+5%' or 'rate<-3%'; repeatable
    #[arg(long, value_name = "METRIC>+N%")]
    fail_if: Vec<Demand>,
    /// Print the result as JSON, on one line
    #[arg(long)]
    json: bool,
}

pub(crate) const EXAMPLES: &str = "\
Examples:
  ammeter compare shoot-out --subjects nginx,amped    two subjects, block by block, so that drift cancels
  ammeter compare shoot-out --arm 'log on, 2 workers' --arm 'log off'     names with a comma
  ammeter compare before after                        two archives of one experiment, measured one after the other
  ammeter compare before after --fail-if 'p99>+5%' --fail-if 'rate<-3%' --fail-if 'cpu>+2%'      for CI

Ratios are B / A of runs of the same step and block: the median, its interval, and the noise band, which is the ratio of identical
pairs. A difference is reported only if the interval excludes 1 and the median is outside the band. There is no verdict where
validity rules were relaxed, unless A and B were interleaved and the baseline was measured twice per block.

--fail-if: '>' with a positive percentage is an increase from A to B, '<' with a negative one a decrease. It fails if the whole
interval is beyond the bound and the median outside the noise band, and holds if the whole interval is within; else it is
undecided. Only the named metrics are then compared, so fewer pairs suffice: 6 for one metric, 8 for four. Pairs are counted over all
loads and repetitions. Two archives also need three repetitions each: otherwise a change of the machine looks like a difference.
Metrics: rate (responses/s), throughput (Mbit/s), mean, p50, p90, p99, p999, cpu (server CPU time per response), memory,
and every other metric of an experiment.

Exit status: 0 if there is a verdict and no --fail-if failed; 1 if one failed; 2 for wrong usage and for archives that do not
measure the same; 3 if the comparison, or a --fail-if, is undecided.";

/// The exit status of an undecided comparison.
const UNDECIDED: u8 = 3;

/// A bound on the difference between a metric of B and A's.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct Demand {
    /// As typed.
    text: String,
    /// The metric, by the names of `archive::Summary::metric`.
    figure: String,
    /// Whether B must not be above the bound; otherwise not below it.
    is_increase: bool,
    /// The bound on B / A.
    bound: f64,
}

impl FromStr for Demand {
    type Err = String;

    fn from_str(text: &str) -> Result<Demand, String> {
        let wrong =
            |why: &str| format!("{why}: write a metric, > or <, and a percentage of A's: 'p99>+5%', 'rate<-3%'");
        let at = text.find(['>', '<']).ok_or_else(|| wrong("no > or <"))?;
        let (name, rest) = (text[..at].trim(), text[at + 1..].trim());
        let is_increase = text[at..].starts_with('>');
        let percent = rest.strip_suffix('%').ok_or_else(|| wrong("no %"))?.trim();
        let percent: f64 =
            percent.parse().ok().filter(|percent: &f64| percent.is_finite()).ok_or_else(|| wrong("not a number"))?;
        match is_increase {
            true if percent < 0.0 => return Err(wrong("'>' is for an increase, which is positive")),
            false if percent > 0.0 => return Err(wrong("'<' is for a decrease, which is negative")),
            false if percent <= -100.0 => return Err(wrong("a decrease must be below 100 %")),
            _ => {}
        }
        let figure = match name {
            "cpu" | "cpu-per-request" => "cpu-per-reply",
            name => name,
        };
        if Summary::described(figure).is_none() {
            let known: Vec<&str> = Summary::METRICS.iter().map(|(name, ..)| *name).collect();
            return Err(format!(
                "unknown metric {name:?}; known: cpu, {}, and the columns of `ammeter monitor --csv`",
                known.join(", ")
            ));
        }
        Ok(Demand { text: text.to_owned(), figure: figure.to_owned(), is_increase, bound: 1.0 + percent / 100.0 })
    }
}

/// The outcome of a demand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Outcome {
    Held,
    Failed,
    Undecided,
}

/// A demand with its outcome.
#[derive(Clone, Debug, Serialize)]
struct Checked {
    #[serde(flatten)]
    demand: Demand,
    outcome: Outcome,
    /// The reason.
    why: String,
}

impl fmt::Display for Checked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let outcome = match self.outcome {
            Outcome::Held => "holds",
            Outcome::Failed => "failed",
            Outcome::Undecided => "undecided",
        };
        write!(f, "{outcome:<10} {}: {}", self.demand.text, self.why)
    }
}

fn check(demand: &Demand, comparison: &Comparison) -> Checked {
    let found = comparison.figures.iter().find(|figure| figure.figure == demand.figure);
    let (outcome, why) = match (found, &comparison.refused) {
        (_, Some(why)) => (Outcome::Undecided, format!("no verdict: {why}")),
        (None, _) => (Outcome::Undecided, "no pair of runs has this metric".to_owned()),
        (Some(found), _) => {
            let (ratio, bound) = (found.ratio, demand.bound);
            let said = format!("B / A {:.3}, {:.3} to {:.3}", ratio.median, ratio.low, ratio.high);
            let (is_beyond, is_within) = match demand.is_increase {
                true => (ratio.low > bound, ratio.high <= bound),
                false => (ratio.high < bound, ratio.low >= bound),
            };
            match found.finding {
                Finding::Undecided => (Outcome::Undecided, format!("{said}; {}", found.lack_text())),
                _ if is_within => (Outcome::Held, said),
                Finding::Difference if is_beyond => (Outcome::Failed, said),
                _ if is_beyond => (Outcome::Undecided, format!("{said}; exceeds the bound, but is within the noise")),
                _ => (Outcome::Undecided, format!("{said}; the bound, {bound:.3}, is within the interval")),
            }
        }
    };
    Checked { demand: demand.clone(), outcome, why }
}

/// The JSON form of a comparison.
#[derive(Serialize)]
struct ComparisonReport<'a> {
    #[serde(flatten)]
    comparison: &'a Comparison,
    demands: &'a [Checked],
    exit_status: u8,
}

pub(crate) fn run(args: &Args) -> Result<u8, Failure> {
    let mut metrics: Vec<&str> = args.fail_if.iter().map(|demand| &demand.figure[..]).collect();
    metrics.sort_unstable();
    metrics.dedup();
    let metrics = if metrics.is_empty() { METRICS } else { &metrics[..] };
    let a = Archive::open(&args.a)?;
    let comparison = match (&args.b, &args.subjects, &args.arm[..]) {
        (Some(b), ..) => compare::archives(&a, &Archive::open(b)?, metrics)?,
        (None, Some(names), _) => {
            let [one, other] = compare::two_names(&a, names)?;
            compare::named(&a, metrics, &one, &other)?
        }
        (None, None, [one, other]) => compare::named(&a, metrics, one, other)?,
        (None, None, []) => compare::only_two(&a, metrics)?,
        (None, None, names) => {
            let count = names.len();
            return Err(Failure::usage(format!(
                "--arm must be given twice, first A and then B; it was given {count} times"
            )));
        }
    };
    let demands: Vec<Checked> = args.fail_if.iter().map(|demand| check(demand, &comparison)).collect();
    let status = exit_status(&comparison, &demands);
    if args.json {
        say::json(&ComparisonReport { comparison: &comparison, demands: &demands, exit_status: status })?;
    } else {
        let lines: Vec<String> = demands.iter().map(|checked| format!("{checked}\n")).collect();
        let gap = if lines.is_empty() { "" } else { "\n" };
        say::out(&format!("{}{gap}{}", comparison.text(), lines.concat()))?;
    }
    Ok(status)
}

/// Demands, if any, decide alone.
fn exit_status(comparison: &Comparison, demands: &[Checked]) -> u8 {
    let any = |outcome| demands.iter().any(|checked| checked.outcome == outcome);
    match demands.is_empty() {
        _ if any(Outcome::Failed) => 1,
        _ if any(Outcome::Undecided) => UNDECIDED,
        true if comparison.finding == Finding::Undecided => UNDECIDED,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::{Compared, Interval};

    #[test]
    fn objective_names_figure_direction_and_bound() {
        let check = |text: &str, figure: &str, is_increase, bound: f64| {
            let found: Demand = text.parse().unwrap_or_else(|why| panic!("{text}: {why}"));
            assert_eq!((&found.figure[..], found.is_increase), (figure, is_increase), "{text}");
            assert!((found.bound - bound).abs() < 1e-9, "{text}: {found:?}");
        };
        check("p99>+5%", "p99", true, 1.05);
        check("p99 > 5 %", "p99", true, 1.05);
        check("rate<-3.5%", "rate", false, 0.965);
        check("cpu>+0%", "cpu-per-reply", true, 1.0);
        check("cpu-per-request>+2%", "cpu-per-reply", true, 1.02);
        for (wrong, says) in [
            ("p99", "no > or <"),
            ("p99>5", "no %"),
            ("p99>x%", "not a number"),
            ("p99>nan%", "not a number"),
            ("p99>-5%", "'>' is for an increase"),
            ("rate<5%", "'<' is for a decrease"),
            ("rate<-100%", "100 %"),
            ("speed>5%", "unknown metric \"speed\""),
        ] {
            let why = wrong.parse::<Demand>().unwrap_err();
            assert!(why.contains(says), "{wrong}: {why}");
        }
    }

    /// A comparison of the 99th percentile with this interval.
    fn comparison(low: f64, high: f64, finding: Finding) -> Comparison {
        let ratio = Interval { low, median: f64::midpoint(low, high), high, coverage: 0.97 };
        let figure = Compared {
            figure: "p99".to_owned(),
            a: 1.0,
            b: 1.0,
            pairs: 8,
            ratio,
            noise: None,
            finding,
            lack: None,
            steps: Vec::new(),
        };
        let word = str::to_owned;
        Comparison {
            a: word("a"),
            b: word("b"),
            finding,
            refused: None,
            figures: vec![figure],
            left_out: Vec::new(),
            cautions: Vec::new(),
        }
    }

    #[test]
    fn objective_fails_only_if_whole_interval_exceeds_bound() {
        let status = |demands: &[&str], comparison: &Comparison| {
            let demands: Vec<Checked> = demands.iter().map(|text| check(&text.parse().unwrap(), comparison)).collect();
            exit_status(comparison, &demands)
        };
        let (differs, same, few) = (Finding::Difference, Finding::NoDifference, Finding::Undecided);
        assert_eq!(status(&["p99>+5%"], &comparison(1.06, 1.2, differs)), 1);
        assert_eq!(
            status(&["p99>+5%"], &comparison(1.01, 1.2, differs)),
            3,
            "the median is beyond the bound, the interval is not"
        );
        assert_eq!(status(&["p99>+5%"], &comparison(1.01, 1.04, differs)), 0);
        assert_eq!(status(&["p99>+5%"], &comparison(0.5, 0.6, differs)), 0, "an improvement is no failure");
        assert_eq!(status(&["p99<-5%"], &comparison(0.5, 0.6, differs)), 1);
        assert_eq!(status(&["p99<-5%"], &comparison(0.9, 1.2, same)), 3);
        assert_eq!(status(&["p99<-5%"], &comparison(0.97, 1.2, same)), 0);
        assert_eq!(status(&["p99>+5%"], &comparison(1.06, 1.2, same)), 3, "within the noise band");
        assert_eq!(status(&["p99>+5%"], &comparison(1.06, 1.2, few)), 3);
        assert_eq!(status(&["p50>+5%"], &comparison(1.0, 1.0, same)), 3, "no pair has it");
        assert_eq!(status(&["p99<-5%", "p99>+5%"], &comparison(1.06, 1.2, differs)), 1, "one of several fails");
        assert_eq!(
            status(&["p99>+5%", "p50>+5%"], &comparison(1.06, 1.2, differs)),
            1,
            "a failure takes precedence over an undecided one"
        );
        let mut refused = comparison(1.06, 1.2, differs);
        refused.refused = Some("relaxed".to_owned());
        assert_eq!(status(&["p99>+5%"], &refused), 3);
        assert_eq!([differs, same, few].map(|finding| status(&[], &comparison(1.0, 1.0, finding))), [0, 0, 3]);
    }
}
