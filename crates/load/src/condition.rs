//! Failure conditions on a result, for CI: `p99>20ms`, `failed>1%`, `rate<4990`.

use std::fmt;
use std::str::FromStr;

use crate::outcome::Outcome;
use crate::schedule::duration;

/// A condition on a result: a figure is above or below a bound.
#[derive(Clone, Debug, PartialEq)]
pub struct Condition {
    text: String,
    /// Its place in [`FIGURES`].
    figure: usize,
    above: bool,
    /// In the figure's unit.
    bound: f64,
}

/// Name, unit and value of a figure.
type Figure = (&'static str, &'static str, fn(&Outcome) -> f64);

const FIGURES: [Figure; 17] = [
    ("mean", " ms", |outcome| latency(outcome, outcome.latency.mean_ms)),
    ("p50", " ms", |outcome| latency(outcome, outcome.latency.p50_ms)),
    ("p90", " ms", |outcome| latency(outcome, outcome.latency.p90_ms)),
    ("p95", " ms", |outcome| latency(outcome, outcome.latency.p95_ms)),
    ("p99", " ms", |outcome| latency(outcome, outcome.latency.p99_ms)),
    ("p99.9", " ms", |outcome| latency(outcome, outcome.latency.p999_ms)),
    ("max", " ms", |outcome| latency(outcome, outcome.latency.max_ms)),
    ("handshake-mean", " ms", |outcome| handshake(outcome, outcome.handshakes.all.mean_ms)),
    ("handshake-p50", " ms", |outcome| handshake(outcome, outcome.handshakes.all.p50_ms)),
    ("handshake-p99", " ms", |outcome| handshake(outcome, outcome.handshakes.all.p99_ms)),
    ("resumed-share", " %", |outcome| outcome.handshakes.resumed_share.unwrap_or(0.0) * 100.0),
    ("lateness", " ms", |outcome| outcome.lateness.p99_ms),
    ("failed", "", |outcome| outcome.unserved() as f64),
    ("failed", " %", |outcome| outcome.unserved_share() * 100.0),
    ("rate", "/s", |outcome| outcome.window.completed_rate),
    ("offered", "/s", |outcome| outcome.window.offered_rate),
    ("backlog", "", |outcome| outcome.window.backlog as f64),
];

/// Without a correct reply, every latency is infinite.
fn latency(outcome: &Outcome, figure: f64) -> f64 {
    if outcome.ok == 0 { f64::INFINITY } else { figure }
}

/// Without a TLS handshake, its time is infinite.
fn handshake(outcome: &Outcome, figure: f64) -> f64 {
    if outcome.handshakes.all.count == 0 { f64::INFINITY } else { figure }
}

impl FromStr for Condition {
    type Err = String;

    fn from_str(text: &str) -> Result<Condition, String> {
        let refusal = |why: &str| {
            let mut names = FIGURES.map(|(name, ..)| name).to_vec();
            names.dedup();
            let names = names.join(", ");
            format!("{why}; write, for example, p99>20ms, failed>0, failed>1% or rate<4990, with one of {names}")
        };
        let at = text.find(['<', '>']).ok_or_else(|| refusal("it has no < or >"))?;
        let (name, bound) = (text[..at].trim(), text[at + 1..].trim());
        if !FIGURES.iter().any(|(known, ..)| *known == name) {
            return Err(refusal(&format!("unknown metric {name:?}")));
        }
        let number = |text: &str| text.parse::<f64>().ok().filter(|number| number.is_finite());
        let of_unit = |unit: &str| match unit {
            " ms" => duration(bound).ok().map(|bound| bound.as_secs_f64() * 1e3),
            " %" => bound.strip_suffix('%').and_then(number),
            _ => number(bound),
        };
        let named = FIGURES.iter().enumerate().filter(|(_, (known, ..))| *known == name);
        let (figure, bound) = named
            .filter_map(|(at, (_, unit, _))| Some((at, of_unit(unit)?)))
            .next()
            .ok_or_else(|| refusal(&format!("invalid bound {bound:?} for {name}")))?;
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
        let (_, unit, value) = FIGURES[self.figure];
        let found = value(outcome);
        let holds = if self.above { found > self.bound } else { found < self.bound };
        holds.then(|| format!("--fail-if {}: {found}{unit}", self.text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tally::Fault;

    #[test]
    fn requests_that_were_not_sent_count_as_failed() {
        let check = |text: &str, ok: u64, unsent: u64, expected: bool| {
            let outcome = Outcome { planned: 1, ok, unsent, failures: vec![(Fault::Closed, 1)], ..Outcome::default() };
            let found = text.parse::<Condition>().unwrap().holds(&outcome);
            assert_eq!(found.is_some(), expected, "{text}, {ok} and {unsent}: {found:?}");
        };
        check("failed>0", 10, 0, true);
        check("failed>1", 10, 0, false);
        check("failed>1", 10, 1, true);
        check("failed>25%", 24, 7, false);
        check("failed>24%", 24, 7, true);
    }

    #[test]
    fn conditions_are_parsed() {
        let check = |text: &str, expected: Option<(&str, &str, bool, f64)>| {
            let found = text.parse::<Condition>().ok();
            let found = found.map(|found| (FIGURES[found.figure].0, FIGURES[found.figure].1, found.above, found.bound));
            assert_eq!(found, expected, "{text:?}");
        };
        check("p99>20ms", Some(("p99", " ms", true, 20.0)));
        check("p99.9 > 1.5s", Some(("p99.9", " ms", true, 1500.0)));
        check("backlog>100", Some(("backlog", "", true, 100.0)));
        check("p95>20ms", Some(("p95", " ms", true, 20.0)));
        check("handshake-p99>5ms", Some(("handshake-p99", " ms", true, 5.0)));
        check("resumed-share<90%", Some(("resumed-share", " %", false, 90.0)));
        check("failed>0", Some(("failed", "", true, 0.0)));
        check("failed>0.5%", Some(("failed", " %", true, 0.5)));
        check("rate<4990", Some(("rate", "/s", false, 4990.0)));
        for bad in ["", "p99", "p98>1ms", "p99>", "p99>fast", "p99>1%", "rate<1ms", "failed>x%", "rate<NaN", ">1"] {
            check(bad, None);
        }
    }
}
