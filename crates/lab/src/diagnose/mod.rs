//! `ammeter diagnose`: finds the resource that limits a server (Arlitt
//! and Williamson, section 6, left this as future work).
//!
//! ```text
//! observe    converts the runs of an archive into the input of `analyse`
//! verdict    turns the analysis of all resources into a sentence, with its evidence                 pure
//! ladder     without an experiment: load at rising rates beside the monitor, stored as an archive
//! intervene  changes the capacity of the suspected resource and checks whether throughput follows
//! subject    the server, started by a command with named settings
//! ```
//!
//! The diagnosis of an archive is a function of its files alone.

pub(crate) mod intervene;
pub(crate) mod ladder;
pub(crate) mod observe;
pub(crate) mod subject;
pub(crate) mod verdict;

use amped_measure::Failure;

use crate::analyse::analyse;
use crate::archive::{self, Archive, Run, RunStatus};
use verdict::{Diagnosis, Trial, judge};

/// Minimum number of runs that shows where throughput stops following the offered load.
const RUNS_MIN: usize = 4;

/// The archive's file of trials with their results.
pub(crate) const TRIALS: &str = "trials.json";

/// The name of the check that the path between clients and server behaved as requested.
const PATH: &str = "path";

/// Diagnoses each server of an archive: each arm with runs; the baseline includes its repetitions.
///
/// # Errors
/// If files of the archive are damaged, or no run in it has a result.
pub(crate) fn diagnose(archive: &Archive) -> Result<Vec<Diagnosis>, Failure> {
    let mut found = Vec::new();
    for arm in archive.resolved.arms.iter().filter(|arm| !arm.is_again) {
        let is_of = |id: &str| {
            id == arm.id || archive.arm(id).is_some_and(|other| other.is_again && other.levels == arm.levels)
        };
        let all = || archive.runs.iter().filter(|run| is_of(&run.plan.arm) && run.summary.is_some());
        let valid = || all().filter(|run| run.status != RunStatus::Invalid);
        // With too few valid runs, use the invalid ones too, and say so.
        let has_enough = valid().count() >= RUNS_MIN;
        let observed: Result<Vec<_>, _> = all()
            .filter(|run| !has_enough || run.status != RunStatus::Invalid)
            .map(|run| observe::observe(archive, run))
            .collect();
        let observed = observed?;
        if observed.is_empty() {
            continue;
        }
        let mut diagnosis = judge(&arm.label, analyse(&observed));
        if !has_enough && valid().count() < observed.len() {
            let why = all().flat_map(|run| &run.why).next().map_or("", |why| &why[..]);
            diagnosis.doubt(format!(
                "{} of {} runs are invalid, and were used nevertheless: {why}",
                observed.len() - valid().count(),
                observed.len()
            ));
        }
        if let Some(why) = other_path(&all().collect::<Vec<_>>()) {
            diagnosis.doubt(why);
        }
        let others: Vec<f64> = all().filter_map(|run| run.summary.as_ref()?.host.others).collect();
        diagnosis.share_with(others, archive.resolved.rules.others_max);
        found.push(diagnosis);
    }
    if found.is_empty() {
        return Err(Failure::failed(format!(
            "{} has no run with a result; see its runs/*/run.json for the reasons",
            archive.dir.display()
        )));
    }
    let trials = archive.dir.join(TRIALS);
    if let ([only], true) = (&mut found[..], trials.exists()) {
        only.try_it(archive::read::<Vec<Trial>>(&trials)?);
    }
    Ok(found)
}

/// Why a path that did not behave as requested casts doubt on the diagnosis.
fn other_path(runs: &[&Run]) -> Option<String> {
    let checks = || runs.iter().flat_map(|run| &run.checks).filter(|check| check.name == PATH);
    let failed: Vec<&str> = checks().filter(|check| check.holds == Some(false)).map(|check| &check.says[..]).collect();
    let says = failed.first()?;
    Some(format!(
        "in {} of {} runs the path was not as configured (path-bound): {says}; the saturated resource may be its router",
        failed.len(),
        runs.len()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::archive::{Check, FORM, Planned, Step};

    #[test]
    fn path_bound_run_is_reported() {
        let run = |holds| Run {
            form: FORM,
            plan: Planned { id: "1".to_owned(), block: 1, arm: "a0".to_owned(), step: Step::Rate(1.0), seed: 1 },
            began_s: 0.0,
            load_began_s: 0.0,
            load_ended_s: 0.0,
            ended_s: 0.0,
            status: RunStatus::Valid,
            why: Vec::new(),
            checks: vec![Check { name: PATH.to_owned(), holds: Some(holds), says: "9 packets were late".to_owned() }],
            summary: None,
        };
        let (right, wrong) = (run(true), run(false));
        assert_eq!(other_path(&[&right]), None);
        let why = other_path(&[&right, &wrong, &wrong]).unwrap();
        assert!(why.starts_with("in 2 of 3 runs the path was not as configured (path-bound): 9 packets"), "{why}");
    }
}
