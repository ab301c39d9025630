//! The verdict of a report: the load that each arm sustains, and how far to trust it.
//!
//! Pure. An arm sustains a step if its valid runs answer at least 98 % of the offered load. The knee of an arm lies
//! between the highest step up to which it sustains every step, and the next one. If the load generator reached its
//! limit first, only the lower end is known.

use ammeter_load::window::Pace;
use amped_measure::stats::Summary;
use serde::Serialize;

use super::figures::{cell, drawn, median, step_at, step_name};
use crate::archive::{Archive, Arm, At, Run, RunStatus, Step};
use crate::figure::number;

/// Minimum share of the offered load that must be answered for a step to count as sustained.
const SUSTAINED_MIN: f64 = 0.98;

/// Run counts by status.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Counts {
    /// Runs in the plan.
    pub(crate) planned: usize,
    /// Runs in the archive.
    pub(crate) there: usize,
    /// Earlier attempts that were invalid and were repeated.
    pub(crate) again: usize,
    /// Valid runs among those in the archive.
    pub(crate) valid: usize,
    /// Censored runs among those in the archive.
    pub(crate) censored: usize,
    /// Invalid runs among those in the archive.
    pub(crate) invalid: usize,
}

pub(super) fn counts(archive: &Archive) -> Counts {
    let of = |status| archive.last_attempts().filter(|run| run.status == status).count();
    let there = archive.last_attempts().count();
    Counts {
        planned: archive.plan.runs.len(),
        there,
        again: archive.runs.len() - there,
        valid: of(RunStatus::Valid),
        censored: of(RunStatus::Censored),
        invalid: of(RunStatus::Invalid),
    }
}

/// The knee of an arm.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Knee {
    /// The highest step up to which the arm sustains every step.
    pub(super) sustained: Option<Step>,
    /// The next step, if the arm is known not to sustain it.
    pub(super) not_sustained: Option<Step>,
    /// Whether the load generator reached its limit there.
    pub(super) is_open: bool,
}

/// Finds the knee of an arm on a ladder of rates. A closed loop offers no rate, and so has no such knee.
pub(super) fn knee(archive: &Archive, arm: &Arm) -> Knee {
    let mut knee = Knee::default();
    for step in archive.resolved.steps_of(arm) {
        let Step::Rate(_) = step else { return Knee::default() };
        let of = |status| {
            let runs = cell(archive, &arm.id, *step).filter(move |run| run.status == status);
            Summary::of(runs.filter_map(answered)).map(|share| share.median)
        };
        match (of(RunStatus::Valid), of(RunStatus::Censored)) {
            (Some(share), _) if share >= SUSTAINED_MIN => knee.sustained = Some(*step),
            (Some(_), _) => {
                knee.not_sustained = Some(*step);
                return knee;
            }
            // A lower bound above the threshold suffices.
            (None, Some(share)) if share >= SUSTAINED_MIN => knee.sustained = Some(*step),
            (None, Some(_)) => {
                knee.is_open = true;
                return knee;
            }
            (None, None) => return knee,
        }
    }
    knee
}

/// Whether the arm with this label sustains every step.
pub(super) fn bears_all(archive: &Archive, label: &str) -> bool {
    drawn(archive).find(|arm| arm.label == label).is_some_and(|arm| {
        let highest = archive.resolved.steps_of(arm).last();
        highest.is_some() && knee(archive, arm).sustained.as_ref() == highest
    })
}

/// The share of the offered load that was answered correctly; within the window if the server fell behind.
fn answered(run: &Run) -> Option<f64> {
    let summary = run.summary.as_ref()?;
    let window = summary.window;
    let right = summary.ok as f64 / summary.ok.saturating_add(summary.unserved()).max(1) as f64;
    Some(match window.completed_share {
        Some(completed) if window.pace == Pace::FellBehind => right.min(completed),
        _ => right,
    })
}

/// Summarises each arm if there are few; otherwise only the baseline and the arm with the highest rate.
pub(super) fn sentences(archive: &Archive, arms: &[&Arm]) -> Vec<String> {
    const FEW: usize = 3;
    let highest = |arm: &Arm| {
        let step = step_at(archive, arm, "rate", At::Peak)?;
        median(archive, &arm.id, step, "rate").map(|rate| rate.median)
    };
    if arms.iter().all(|arm| highest(arm).is_none()) {
        return vec!["No run is valid, so there is no result.".to_owned()];
    }
    if arms.len() <= FEW {
        return arms.iter().map(|arm| format!("{}.", sentence(archive, arm))).collect();
    }
    let best = arms.iter().max_by(|one, other| {
        let of = |arm| highest(arm).unwrap_or(0.0);
        of(one).total_cmp(&of(other))
    });
    let mut sentences = vec![format!("{}.", sentence(archive, arms[0]))];
    if let Some(best) = best.filter(|best| best.id != arms[0].id && highest(best).is_some()) {
        sentences.push(format!("Best of {} arms: {}.", arms.len(), sentence(archive, best)));
    }
    sentences
}

/// Describes an arm in a sentence, without the full stop.
fn sentence(archive: &Archive, arm: &Arm) -> String {
    let label = if arm.label.is_empty() { &arm.subject } else { &arm.label };
    let steps = &archive.resolved.steps;
    let peak = step_at(archive, arm, "rate", At::Peak);
    let most = peak.and_then(|step| Some((step, median(archive, &arm.id, step, "rate")?)));
    let Some((peak, most)) = most else { return format!("{label}: no valid run") };
    let is_valid = cell(archive, &arm.id, peak).any(|run| run.status == RunStatus::Valid);
    let at_least = if is_valid { "" } else { "at least " };
    let highest =
        format!("its highest rate is {at_least}{} correct responses/s, at {}", number(most.median), step_name(peak));
    let knee = knee(archive, arm);
    match (knee.sustained, knee.not_sustained) {
        (Some(sustained), Some(not)) => {
            format!("{label} sustains {} but not {}; {highest}", step_name(sustained), step_name(not))
        }
        (Some(sustained), None) if knee.is_open => {
            format!(
                "{label} sustains at least {}; above that, the load generator reached its limit before the server; {highest}",
                step_name(sustained)
            )
        }
        (Some(sustained), None) if steps.last() == Some(&sustained) => {
            format!(
                "{label} sustains every offered load, up to {}: its limit was not reached; {highest}",
                step_name(sustained)
            )
        }
        (Some(sustained), None) => {
            format!("{label} sustains {}; no valid run above that; {highest}", step_name(sustained))
        }
        (None, Some(not)) => format!("{label} does not sustain {}, the lowest load; {highest}", step_name(not)),
        (None, None) => format!("{label}: {highest}"),
    }
}
