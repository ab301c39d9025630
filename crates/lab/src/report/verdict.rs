//! What a report says first: how much load each arm bears, what of the paper still holds, and how much of it can be
//! believed.
//!
//! Pure. An arm bears a step if its valid runs answer nearly all that was asked for; its knee lies between the highest step
//! up to which it bears all, and the next one. Where the load came to its end first, only the lower end is known.

use std::collections::{BTreeMap, BTreeSet};

use amped_measure::stats::Summary;
use serde::Serialize;

use super::figure::number;
use super::figures::{cell, drawn, median, step_at, step_name, titled, value};
use crate::archive::{Archive, Arm, At, Finding, Run, Standing, Step};

/// How much of what was asked for must be answered for the load to be borne.
const BORNE_MIN: f64 = 0.98;

/// How the runs stand.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Counts {
    /// Runs of the plan.
    pub(crate) planned: usize,
    /// Those that are there.
    pub(crate) there: usize,
    /// Attempts before these, which were invalid and were made again.
    pub(crate) again: usize,
    /// Of those that are there, how many have each standing.
    pub(crate) valid: usize,
    /// See there.
    pub(crate) censored: usize,
    /// See there.
    pub(crate) invalid: usize,
}

pub(super) fn counts(archive: &Archive) -> Counts {
    let of = |standing| archive.last_attempts().filter(|run| run.standing == standing).count();
    let there = archive.last_attempts().count();
    Counts {
        planned: archive.plan.runs.len(),
        there,
        again: archive.runs.len() - there,
        valid: of(Standing::Valid),
        censored: of(Standing::Censored),
        invalid: of(Standing::Invalid),
    }
}

/// Where the knee of an arm is.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Knee {
    /// The highest step up to which all are borne.
    pub(super) borne: Option<Step>,
    /// The next one, if it is known not to be borne.
    pub(super) not_borne: Option<Step>,
    /// Whether the load came to its end there.
    pub(super) is_open: bool,
}

/// Of a ladder of rates; in a closed loop nothing is asked for, and there is no such knee.
pub(super) fn knee(archive: &Archive, arm: &Arm) -> Knee {
    let mut knee = Knee::default();
    for step in &archive.resolved.steps {
        let Step::Rate(_) = step else { return Knee::default() };
        let of = |standing| {
            let runs = cell(archive, &arm.id, *step).filter(move |run| run.standing == standing);
            Summary::of(runs.filter_map(|run| answered(archive, run))).map(|share| share.median)
        };
        match (of(Standing::Valid), of(Standing::Censored)) {
            (Some(share), _) if share >= BORNE_MIN => knee.borne = Some(*step),
            (Some(_), _) => {
                knee.not_borne = Some(*step);
                return knee;
            }
            // A lower bound that is high enough is enough.
            (None, Some(share)) if share >= BORNE_MIN => knee.borne = Some(*step),
            (None, Some(_)) => {
                knee.is_open = true;
                return knee;
            }
            (None, None) => return knee,
        }
    }
    knee
}

/// The share of what the clients asked for that was answered rightly, and in time. They ask for as much as they begin: of a
/// short run with random arrivals that is not quite what was planned.
fn answered(archive: &Archive, run: &Run) -> Option<f64> {
    let summary = run.summary.as_ref()?;
    let right = summary.ok as f64 / summary.ok.saturating_add(summary.failed).max(1) as f64;
    match archive.resolved.requests_per_connection {
        0 => Some(right),
        requests => Some(right.min(summary.rate / (summary.offered_rate * requests as f64).max(1e-9))),
    }
}

/// What is said of the arms: of few each, else of the baseline and of the one with the highest rate.
pub(super) fn sentences(archive: &Archive, arms: &[&Arm]) -> Vec<String> {
    const FEW: usize = 3;
    if arms.len() <= FEW {
        return arms.iter().map(|arm| format!("{}.", told(archive, arm))).collect();
    }
    let highest = |arm: &Arm| {
        let step = step_at(archive, arm, "rate", At::Peak)?;
        median(archive, &arm.id, step, "rate").map(|rate| rate.median)
    };
    let best = arms.iter().max_by(|one, other| {
        let of = |arm| highest(arm).unwrap_or(0.0);
        of(one).total_cmp(&of(other))
    });
    let mut sentences = vec![format!("{}.", told(archive, arms[0]))];
    if let Some(best) = best.filter(|best| best.id != arms[0].id && highest(best).is_some()) {
        sentences.push(format!("Of {} arms the one with the most: {}.", arms.len(), told(archive, best)));
    }
    sentences
}

/// An arm in a sentence, without its end.
fn told(archive: &Archive, arm: &Arm) -> String {
    let label = if arm.label.is_empty() { &arm.subject } else { &arm.label };
    let steps = &archive.resolved.steps;
    let peak = step_at(archive, arm, "rate", At::Peak);
    let most = peak.and_then(|step| Some((step, median(archive, &arm.id, step, "rate")?)));
    let Some((peak, most)) = most else { return format!("{label}: no run of it counts") };
    let is_valid = cell(archive, &arm.id, peak).any(|run| run.standing == Standing::Valid);
    let at_least = if is_valid { "" } else { "at least " };
    let highest =
        format!("its highest rate: {at_least}{} right replies/s, at {}", number(most.median), step_name(peak));
    let knee = knee(archive, arm);
    match (knee.borne, knee.not_borne) {
        (Some(borne), Some(not)) => {
            format!("{label} bears {} and no longer {}; {highest}", step_name(borne), step_name(not))
        }
        (Some(borne), None) if knee.is_open => {
            format!(
                "{label} bears at least {}; above, the load came to its end before the server did; {highest}",
                step_name(borne)
            )
        }
        (Some(borne), None) if steps.last() == Some(&borne) => {
            format!(
                "{label} bears all that was asked for, up to {}: its limit was not reached; {highest}",
                step_name(borne)
            )
        }
        (Some(borne), None) => format!("{label} bears {}; above, no run says more; {highest}", step_name(borne)),
        (None, Some(not)) => format!("{label} does not bear {}, the lowest load; {highest}", step_name(not)),
        (None, None) => format!("{label}: {highest}"),
    }
}

/// What became of something that a paper found.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Found {
    /// What the paper says.
    pub(crate) says: String,
    /// What was compared.
    pub(crate) metric: String,
    /// The paper's ratio.
    pub(crate) paper: f64,
    /// The ratio here: median, and the interval over blocks; `None` without runs of both.
    pub(crate) here: Option<[f64; 3]>,
    /// Of how many blocks.
    pub(crate) blocks: usize,
    /// What follows.
    pub(crate) finding: &'static str,
}

impl Found {
    /// What the paper says, and what is found here.
    pub(crate) fn sentence(&self) -> String {
        let Found { says, paper, here, finding, .. } = self;
        let ratio = here.map_or_else(String::new, |[_, median, _]| {
            format!(" (a ratio of {}; the paper's is {})", number(median), number(*paper))
        });
        format!("Paper: {says} Here: {finding}{ratio}.")
    }
}

/// A smaller difference than this is none that a paper would tell.
const ALIKE: f64 = 0.03;

pub(super) fn found(archive: &Archive, finding: &Finding) -> Found {
    let ratios = ratios(archive, finding).unwrap_or_default();
    let here = Summary::of(ratios.iter().copied());
    Found {
        says: finding.says.clone(),
        metric: titled(&finding.metric),
        paper: finding.paper,
        here: here.map(|here| [here.low, here.median, here.high]),
        blocks: ratios.len(),
        finding: here.map_or("not known: there are no valid runs of both", |here| judged(&here, finding.paper)),
    }
}

/// Whether it still holds: the same direction, and how much of it.
fn judged(here: &Summary, paper: f64) -> &'static str {
    let is_one = here.low <= 1.0 && 1.0 <= here.high || (here.median - 1.0).abs() < ALIKE;
    let agrees = here.low <= paper && paper <= here.high || (here.median / paper - 1.0).abs() < ALIKE;
    match ((paper - 1.0).abs() < ALIKE, is_one) {
        (true, true) => "still holds",
        (true, false) => "no longer holds: there is a difference",
        (false, _) if agrees => "still holds, and as much",
        (false, true) => "not seen here",
        (false, false) if (here.median > 1.0) == (paper > 1.0) => {
            if (here.median.ln() / paper.ln()).abs() > 1.0 {
                "still holds, and more"
            } else {
                "still holds, but less"
            }
        }
        (false, false) => "the other way round",
    }
}

/// The ratio in each block that has both.
fn ratios(archive: &Archive, finding: &Finding) -> Option<Vec<f64>> {
    let baseline = archive.resolved.arms.first()?;
    let arm = |moved: &BTreeMap<String, String>| {
        let mut levels = baseline.levels.clone();
        levels.extend(moved.clone());
        drawn(archive).find(|arm| arm.levels == levels)
    };
    let of_block = |arm: &Arm, block: u32| {
        let step = step_at(archive, arm, &finding.metric, finding.at)?;
        let mut runs =
            cell(archive, &arm.id, step).filter(|run| run.plan.block == block && run.standing == Standing::Valid);
        runs.find_map(|run| value(run, &finding.metric))
    };
    let (of, against) = (arm(&finding.of)?, arm(&finding.against)?);
    let ratio = |block| Some(of_block(of, block)? / of_block(against, block).filter(|value| *value > 0.0)?);
    let blocks: BTreeSet<u32> = archive.runs.iter().map(|run| run.plan.block).collect();
    Some(blocks.into_iter().filter_map(ratio).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_paper_found_holds_or_not() {
        let check = |here: [f64; 3], paper: f64, expected: &str| {
            let summary = Summary { low: here[0], median: here[1], high: here[2], coverage: 0.95 };
            assert_eq!(judged(&summary, paper), expected, "{here:?} {paper}");
        };
        check([0.85, 0.9, 0.95], 0.9, "still holds, and as much");
        check([0.95, 0.96, 0.97], 0.8, "still holds, but less");
        check([0.4, 0.5, 0.6], 0.8, "still holds, and more");
        check([0.9, 0.99, 1.1], 0.7, "not seen here");
        check([1.1, 1.2, 1.3], 0.8, "the other way round");
        check([0.99, 1.0, 1.01], 1.0, "still holds");
        check([1.4, 1.5, 1.6], 1.0, "no longer holds: there is a difference");
    }
}
