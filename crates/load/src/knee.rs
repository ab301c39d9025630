//! The rate that a server bears, from runs at several rates: never by bisecting single runs, whose luck would be taken for
//! the server's.

use std::fmt;

use amped_measure::Worth;
use serde::Serialize;

use crate::condition::Condition;
use crate::outcome::{Loop, Outcome};

/// Between which rates a server stops to bear the load.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Capacity {
    /// The highest rate up to which all rates were borne, each in most of its runs, in connections a second.
    pub borne: f64,
    /// The lowest rate that was not; absent if all were.
    pub not_borne: Option<f64>,
    /// The highest rate up to which no run at all was bad: below it nothing speaks against the server.
    pub surely: f64,
    /// Why it may be more than that.
    pub at_least: Option<String>,
}

impl fmt::Display for Capacity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/s are borne", self.borne)?;
        match self.not_borne {
            Some(rate) => write!(f, ", {rate}/s are not")?,
            None => write!(f, ", and nothing higher was asked")?,
        }
        if self.surely < self.borne {
            write!(f, "; single runs failed from above {}/s on", self.surely)?;
        }
        Ok(())
    }
}

/// Of all that ended, how many may fail at a rate that is borne.
const FAILED_MAX: f64 = 0.01;

/// What runs at several rates, each made once or more, say of the server. Runs in which the client did not keep its schedule
/// say nothing. `objective` is a condition that must not hold. `None`: not even the lowest rate was borne, or none was kept.
pub fn capacity(runs: &[Outcome], objective: Option<&Condition>) -> Option<Capacity> {
    let mut rates: Vec<f64> = runs.iter().filter_map(rate_of).collect();
    rates.sort_by(f64::total_cmp);
    rates.dedup();
    let mut found: Option<Capacity> = None;
    for rate in rates {
        let at = || runs.iter().filter(move |run| rate_of(run) == Some(rate));
        let kept = at().filter(|run| run.verdict.worth != Worth::ClientBound);
        let bears = |run: &&Outcome| {
            let ended = (run.ok + run.failed()).max(1) as f64;
            run.ok > 0
                && run.failed() as f64 <= FAILED_MAX * ended
                && objective.is_none_or(|objective| objective.holds(run).is_none())
        };
        let (borne, kept) = (kept.clone().filter(bears).count(), kept.count());
        if kept == 0 {
            let why = format!("the client could not keep {rate}/s, so nothing is known from there on");
            return found.map(|capacity| Capacity { at_least: Some(why), ..capacity });
        }
        if borne * 2 <= kept {
            return found.map(|capacity| Capacity { not_borne: Some(rate), ..capacity });
        }
        let surely = match &found {
            Some(before) if before.surely < before.borne || borne < kept => before.surely,
            None if borne < kept => 0.0,
            _ => rate,
        };
        found = Some(Capacity { borne: rate, not_borne: None, surely, at_least: None });
    }
    let why = "no rate of the sweep was too much for the server".to_owned();
    found.map(|capacity| Capacity { at_least: Some(why), ..capacity })
}

/// The rate that a run speaks of, if it does: one that was interrupted has not come to what it would have shown.
fn rate_of(run: &Outcome) -> Option<f64> {
    match run.asked {
        Loop::Open { rate, .. } if !run.interrupted => Some(rate),
        Loop::Open { .. } | Loop::Closed { .. } => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outcome::tests::outcome;

    /// Runs as (rate, right replies of a hundred, whether the client kept its schedule).
    fn check(runs: &[(f64, u64, bool)], expected: Option<(f64, Option<f64>, f64, bool)>) {
        let runs: Vec<Outcome> = runs.iter().map(|(rate, ok, kept)| outcome(*rate, *ok, *kept)).collect();
        let found = capacity(&runs, None);
        let found = found.map(|found| (found.borne, found.not_borne, found.surely, found.at_least.is_some()));
        assert_eq!(found, expected);
    }

    #[test]
    fn the_rate_below_the_first_that_is_too_much() {
        check(&[(1.0, 100, true), (2.0, 100, true), (3.0, 50, true)], Some((2.0, Some(3.0), 2.0, false)));
        // Lucky once above it, it has not borne it.
        check(&[(1.0, 100, true), (2.0, 50, true), (3.0, 100, true)], Some((1.0, Some(2.0), 1.0, false)));
        check(&[(1.0, 50, true), (2.0, 100, true)], None);
        check(&[(1.0, 100, true), (2.0, 99, true)], Some((2.0, None, 2.0, true)));
        check(&[], None);
    }

    #[test]
    fn most_runs_decide_and_single_ones_widen_the_interval() {
        let runs = [(1.0, 100, true), (2.0, 100, true), (1.0, 100, true), (2.0, 50, true), (1.0, 100, true)];
        check(&runs, Some((1.0, Some(2.0), 1.0, false)));
        let runs = [(1.0, 100, true), (2.0, 100, true), (2.0, 50, true), (2.0, 100, true), (3.0, 10, true)];
        check(&runs, Some((2.0, Some(3.0), 1.0, false)));
    }

    #[test]
    fn what_was_interrupted_says_nothing() {
        let mut runs = [outcome(1.0, 100, true), outcome(2.0, 100, true)];
        runs[1].interrupted = true;
        assert_eq!(capacity(&runs, None).map(|found| (found.borne, found.at_least.is_some())), Some((1.0, true)));
    }

    #[test]
    fn what_the_client_did_not_keep_says_nothing() {
        check(&[(1.0, 100, true), (2.0, 10, false)], Some((1.0, None, 1.0, true)));
        check(&[(1.0, 100, true), (2.0, 10, false), (2.0, 100, true)], Some((2.0, None, 2.0, true)));
        check(&[(1.0, 100, false)], None);
    }
}
