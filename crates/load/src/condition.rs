//! Failure conditions on a result, for CI: `p99>20ms`, `failed>1%`, `rate<4990`.

use std::fmt;
use std::str::FromStr;

use crate::outcome::Outcome;
use crate::schedule::duration;

/// A condition that fails a run if it holds of the result.
#[derive(Clone, Debug, PartialEq)]
pub struct Condition {
    text: String,
    figure: Figure,
    above: bool,
    bound: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Figure {
    /// Latencies, in milliseconds.
    Mean,
    P50,
    P90,
    P95,
    P99,
    P999,
    Max,
    /// Lateness of the generator, 99th percentile, in milliseconds.
    Lateness,
    /// Failures.
    Failed,
    /// Failures as a share of all that ended, in percent.
    FailedPercent,
    /// Correct replies per second, within the window.
    Rate,
    /// Connections begun per second.
    Offered,
    /// Connections still open at the end of the window.
    Backlog,
}

const NAMES: [(&str, Figure); 12] = [
    ("mean", Figure::Mean),
    ("p50", Figure::P50),
    ("p90", Figure::P90),
    ("p95", Figure::P95),
    ("p99", Figure::P99),
    ("p99.9", Figure::P999),
    ("max", Figure::Max),
    ("lateness", Figure::Lateness),
    ("failed", Figure::Failed),
    ("rate", Figure::Rate),
    ("offered", Figure::Offered),
    ("backlog", Figure::Backlog),
];

impl FromStr for Condition {
    type Err = String;

    fn from_str(text: &str) -> Result<Condition, String> {
        let refusal = |why: &str| {
            let names = NAMES.map(|(name, _)| name).join(", ");
            format!("{why}; write for example p99>20ms, failed>0, failed>1% or rate<4990, with one of {names}")
        };
        let at = text.find(['<', '>']).ok_or_else(|| refusal("it has no < or >"))?;
        let (name, bound) = (text[..at].trim(), text[at + 1..].trim());
        let figure = NAMES.iter().find(|(known, _)| *known == name).map(|(_, figure)| *figure);
        let figure = figure.ok_or_else(|| refusal(&format!("unknown figure {name:?}")))?;
        let number = |text: &str| text.parse::<f64>().ok().filter(|number| number.is_finite());
        let wrong = || refusal(&format!("invalid bound {bound:?} for {name}"));
        let (figure, bound) = match (figure, bound.strip_suffix('%')) {
            (Figure::Failed, Some(percent)) => (Figure::FailedPercent, number(percent).ok_or_else(wrong)?),
            (Figure::Failed | Figure::Rate | Figure::Offered | Figure::Backlog, None) => {
                (figure, number(bound).ok_or_else(wrong)?)
            }
            (_, Some(_)) => return Err(wrong()),
            (_, None) => (figure, duration(bound).map_err(|_| wrong())?.as_secs_f64() * 1e3),
        };
        Ok(Condition { text: text.to_owned(), figure, above: text[at..].starts_with('>'), bound })
    }
}

impl fmt::Display for Condition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl Condition {
    /// The value of the figure, if the condition holds. A latency without samples is above every bound, so a run
    /// without a correct reply does not pass.
    pub fn holds(&self, outcome: &Outcome) -> Option<String> {
        let latency = |figure: f64| if outcome.ok == 0 { f64::INFINITY } else { figure };
        let (found, unit) = match self.figure {
            Figure::Mean => (latency(outcome.latency.mean_ms), " ms"),
            Figure::P50 => (latency(outcome.latency.p50_ms), " ms"),
            Figure::P90 => (latency(outcome.latency.p90_ms), " ms"),
            Figure::P95 => (latency(outcome.latency.p95_ms), " ms"),
            Figure::P99 => (latency(outcome.latency.p99_ms), " ms"),
            Figure::P999 => (latency(outcome.latency.p999_ms), " ms"),
            Figure::Max => (latency(outcome.latency.max_ms), " ms"),
            Figure::Lateness => (outcome.lateness.p99_ms, " ms"),
            Figure::Failed => (outcome.failed() as f64, ""),
            Figure::FailedPercent => {
                (outcome.failed() as f64 * 100.0 / (outcome.failed() + outcome.ok).max(1) as f64, " %")
            }
            Figure::Rate => (outcome.window.completed_rate, "/s"),
            Figure::Offered => (outcome.window.offered_rate, "/s"),
            Figure::Backlog => (outcome.window.backlog as f64, ""),
        };
        let holds = if self.above { found > self.bound } else { found < self.bound };
        holds.then(|| format!("--fail-if {}: {found}{unit}", self.text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conditions_are_parsed() {
        let check = |text: &str, expected: Option<(Figure, bool, f64)>| {
            let found = text.parse::<Condition>().ok().map(|found| (found.figure, found.above, found.bound));
            assert_eq!(found, expected, "{text:?}");
        };
        check("p99>20ms", Some((Figure::P99, true, 20.0)));
        check("p99.9 > 1.5s", Some((Figure::P999, true, 1500.0)));
        check("backlog>100", Some((Figure::Backlog, true, 100.0)));
        check("p95>20ms", Some((Figure::P95, true, 20.0)));
        check("failed>0", Some((Figure::Failed, true, 0.0)));
        check("failed>0.5%", Some((Figure::FailedPercent, true, 0.5)));
        check("rate<4990", Some((Figure::Rate, false, 4990.0)));
        for bad in ["", "p99", "p98>1ms", "p99>", "p99>fast", "p99>1%", "rate<1ms", "failed>x%", "rate<NaN", ">1"] {
            check(bad, None);
        }
    }
}
