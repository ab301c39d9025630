//! The claims of an experiment, judged by its archive: a figure or a ratio within each block, against the bound of the
//! claim. Before it, the manipulation check: a claim whose treatment did not act has no verdict.
//!
//! Pure. The statistics are those of `compare`: the interval of order statistics, and the noise band of identical pairs.

use std::collections::BTreeSet;

use amped_measure::stats::{COVERAGE_MIN, Summary};
use amped_units::parse_duration;
use serde::Serialize;

use super::figures::{cell, drawn, median, step_at, step_name, value};
use crate::archive::{Archive, Arm, At, Claim, RunStatus, Step, Summary as RunSummary, Term, without_words};
use crate::compare::{Band, LOWER_BOUNDS, noise};
use crate::figure::number;

/// The monitor's metric that rises on a path with packet loss.
const RETRANSMITS: &str = "tcp_retransmits_per_s";

/// The status of a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum ClaimStatus {
    /// The whole interval is within the bound.
    StillHolds,
    /// The whole interval is outside the bound.
    NoLonger,
    /// The treatment did not act: the manipulation check failed.
    NotApplied,
    /// The interval covers less than 95 %, contains the bound, or is no further from it than the noise band is wide.
    Undecided,
    /// Figures are missing.
    CannotBeTold,
}

impl ClaimStatus {
    /// The status as the start of a sentence.
    fn told(self) -> &'static str {
        match self {
            ClaimStatus::StillHolds => "Still holds",
            ClaimStatus::NoLonger => "No longer",
            ClaimStatus::NotApplied => "Not applied",
            ClaimStatus::Undecided => "Undecided",
            ClaimStatus::CannotBeTold => "Cannot be told",
        }
    }

    /// The status as the end of a sentence that starts with the claim.
    pub(super) fn ends(self) -> &'static str {
        match self {
            ClaimStatus::StillHolds => "still holds",
            ClaimStatus::NoLonger => "no longer holds",
            ClaimStatus::NotApplied => "not applied",
            ClaimStatus::Undecided => "undecided",
            ClaimStatus::CannotBeTold => "cannot be told",
        }
    }
}

/// A claim with its status.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Judged {
    /// The text of the claim.
    pub(crate) says: String,
    /// Description of the compared figures.
    pub(crate) compared: String,
    /// Description of the bounds within which the claim holds.
    pub(crate) holds: String,
    /// The paper's figure or ratio.
    pub(crate) paper: Option<f64>,
    /// The figure or ratio measured here, over the blocks: lower end, median,
    /// upper end of its interval; `None` without valid or censored runs.
    pub(crate) here: Option<[f64; 3]>,
    /// The unit of the figure; empty for a ratio.
    pub(crate) unit: &'static str,
    /// Number of blocks behind the interval.
    pub(crate) blocks: usize,
    /// Probability that such an interval contains the true median.
    pub(crate) coverage: f64,
    /// The resulting status.
    pub(crate) status: ClaimStatus,
    /// Why the claim is undecided; empty if it is decided.
    pub(crate) why: String,
}

impl Judged {
    /// Formats the figure with its interval, the paper's figure, and the
    /// reason why the claim is undecided, in brackets.
    pub(crate) fn figures(&self) -> String {
        let Judged { here, unit, blocks, paper, why, .. } = self;
        let here = here.map_or("no runs that count".to_owned(), |[low, median, high]| {
            let unit = if unit.is_empty() { String::new() } else { format!(" {unit}") };
            let count = if *blocks == 1 { "1 block".to_owned() } else { format!("{blocks} blocks") };
            format!("{}{unit} [{}, {}], {count}", number(median), number(low), number(high))
        });
        let paper = paper.map_or(String::new(), |paper| format!("; the paper {}", number(paper)));
        let why = if why.is_empty() { String::new() } else { format!("; {why}") };
        format!("({here}{paper}{why})")
    }
}

/// Summarises the decided claims, one sentence for each status that occurs.
pub(crate) fn claim_summaries(claims: &[Judged]) -> Vec<String> {
    sentences_of(claims, &[ClaimStatus::StillHolds, ClaimStatus::NoLonger])
}

/// Summarises the undecided claims, one sentence for each status that occurs, with the reasons.
pub(crate) fn open_claims(claims: &[Judged]) -> Vec<String> {
    sentences_of(claims, &[ClaimStatus::NotApplied, ClaimStatus::Undecided, ClaimStatus::CannotBeTold])
}

fn sentences_of(claims: &[Judged], statuses: &[ClaimStatus]) -> Vec<String> {
    let of = |status: &ClaimStatus| {
        let told = claims.iter().filter(|claim| claim.status == *status);
        let told: Vec<String> =
            told.map(|claim| format!("{} {}", claim.says.trim_end_matches('.'), claim.figures())).collect();
        (!told.is_empty()).then(|| format!("{}: {}.", status.told(), told.join("; ")))
    };
    statuses.iter().filter_map(of).collect()
}

/// Whether a figure is exact, a lower bound or an upper bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Known {
    Exactly,
    AtLeast,
    AtMost,
}

/// Judges a claim by the runs of an archive. Compares within each block, so that drift between blocks cancels.
pub(super) fn judged(archive: &Archive, claim: &Claim) -> Judged {
    let measured = measure(archive, claim);
    let (values, missing) = match &measured {
        Ok((values, _)) => (&values[..], String::new()),
        Err(why) => (&[][..], (*why).to_owned()),
    };
    let here = Summary::of(values.iter().copied());
    let (status, why) = match (manipulation(archive, claim), here, &measured) {
        (Some(failed), ..) => failed,
        (None, Some(here), Ok((_, Some(known)))) => claim_status(archive, claim, &here, *known, values.len()),
        (None, Some(_), _) => {
            (ClaimStatus::CannotBeTold, "some values are lower bounds and others upper ones".to_owned())
        }
        (None, None, _) => (ClaimStatus::CannotBeTold, missing),
    };
    Judged {
        says: claim.says.clone(),
        compared: compared(archive, claim),
        holds: holds(claim),
        paper: claim.paper,
        here: here.map(|here| [here.low, here.median, here.high]),
        unit: unit(claim),
        blocks: values.len(),
        coverage: here.map_or(0.0, |here| here.coverage),
        status,
        why,
    }
}

fn unit(claim: &Claim) -> &'static str {
    if claim.against.is_some() { "" } else { RunSummary::described(&claim.of.metric).map_or("", |(unit, _)| unit) }
}

/// Describes the compared figures.
fn compared(archive: &Archive, claim: &Claim) -> String {
    let words = |term: &Term| {
        format!("{}{}", arm_of(archive, term).map_or("no arm", |arm| &arm.label), at_words(archive, term))
    };
    let meaning = |term: &Term| {
        RunSummary::described(&term.metric).map_or_else(|| term.metric.clone(), |(_, meaning)| meaning.into_owned())
    };
    match &claim.against {
        None => format!("{}: {}", meaning(&claim.of), words(&claim.of)),
        Some(against) if against.metric == claim.of.metric => {
            format!("{}: {} / {}", meaning(against), words(&claim.of), words(against))
        }
        Some(against) => {
            format!("{}: {} / {}: {}", meaning(&claim.of), words(&claim.of), meaning(against), words(against))
        }
    }
}

/// Describes the bounds within which a claim holds.
fn holds(claim: &Claim) -> String {
    let unit = unit(claim);
    let bound = |bound: f64| if unit.is_empty() { number(bound) } else { format!("{} {unit}", number(bound)) };
    match (claim.above, claim.below) {
        (Some(above), Some(below)) => format!("between {} and {}", bound(above), bound(below)),
        (Some(above), None) => format!("above {}", bound(above)),
        (None, Some(below)) => format!("below {}", bound(below)),
        (None, None) => "always".to_owned(),
    }
}

/// Returns why a claim cannot be judged although its figures exist: the treatment did not act, or it is unknown whether
/// it did. `None` if the treatment acted, or if the claim has no condition to check. All blocks must agree, but a few
/// are enough: a treatment that acted in one of two blocks is no treatment.
fn manipulation(archive: &Archive, claim: &Claim) -> Option<(ClaimStatus, String)> {
    if let Some((one, other)) = claim.against.as_ref().and_then(|against| arms_of(archive, &claim.of, against))
        && one.subject == other.subject
        && settings(one).is_some_and(|settings_of_one| Some(settings_of_one) == settings(other))
    {
        return Some((ClaimStatus::NotApplied, format!("{} and {} have the same settings", one.label, other.label)));
    }
    claim.acted.iter().cloned().chain(implied(archive, claim)).find_map(|condition| {
        let what = format!("{} must be {}", compared(archive, &condition), holds(&condition));
        let found = measure(archive, &condition).ok().and_then(|(values, known)| Summary::of(values).zip(known));
        let Some((here, known)) = found else {
            return Some((
                ClaimStatus::CannotBeTold,
                format!("whether the treatment acted is not known: {what}, and was not measured"),
            ));
        };
        match position(&here, known, condition.above, condition.below) {
            Position::Within => None,
            Position::Outside => Some((ClaimStatus::NotApplied, format!("{what}, and is {}", number(here.median)))),
            Position::Neither => {
                let why = format!(
                    "whether the treatment acted is not known: {what}, and is {} to {}",
                    number(here.low),
                    number(here.high)
                );
                Some((ClaimStatus::CannotBeTold, why))
            }
        }
    })
}

/// The arms of two terms, if the arms differ.
fn arms_of<'a>(archive: &'a Archive, one: &Term, other: &Term) -> Option<(&'a Arm, &'a Arm)> {
    let arms = (arm_of(archive, one)?, arm_of(archive, other)?);
    (arms.0.levels != arms.1.levels).then_some(arms)
}

/// The settings of an arm, without titles and texts.
fn settings(arm: &Arm) -> Option<toml::Table> {
    let table = arm.settings.parse::<toml::Table>().ok().filter(|table| !table.is_empty())?;
    Some(without_words(table))
}

/// Conditions that a claim need not state: a path with packet loss causes retransmissions, and on a path with latency a
/// connect takes about a round trip. They apply to arms that differ in just that setting.
fn implied(archive: &Archive, claim: &Claim) -> Vec<Claim> {
    let Some((one, other)) = claim.against.as_ref().and_then(|against| arms_of(archive, &claim.of, against)) else {
        return Vec::new();
    };
    let of_path = |arm: &Arm, name: &str| {
        let value = settings(arm)?.get("path")?.get(name)?.clone();
        Some(value.as_str().map_or_else(|| value.to_string(), str::to_owned))
    };
    let mut conditions = Vec::new();
    for (arm, against, at) in
        [(one, other, claim.of.at), (other, one, claim.against.as_ref().map_or(At::Peak, |term| term.at))]
    {
        let mut demand = |metric: &str, above: f64| {
            let of = Term { metric: metric.to_owned(), levels: arm.levels.clone(), at };
            conditions.push(Claim { of, above: Some(above), ..Claim::default() });
        };
        let loses = of_path(arm, "loss").is_some_and(|loss| !["0", "0%"].contains(&&loss[..]));
        if loses && of_path(arm, "loss") != of_path(against, "loss") && is_measured(archive, arm, RETRANSMITS) {
            demand(RETRANSMITS, 0.0);
        }
        let latency = |arm| parse_duration(&of_path(arm, "latency")?).ok();
        if let (Some(mine), Some(others)) = (latency(arm), latency(against))
            && mine > others
            && is_measured(archive, arm, "connect-p50")
        {
            demand("connect-p50", 1.8 * mine.as_secs_f64() * 1e3);
        }
    }
    conditions
}

fn is_measured(archive: &Archive, arm: &Arm, metric: &str) -> bool {
    archive.runs.iter().any(|run| run.plan.arm == arm.id && value(run, metric).is_some())
}

/// The position of an interval relative to a bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Position {
    Within,
    Outside,
    Neither,
}

fn position(here: &Summary, known: Known, above: Option<f64>, below: Option<f64>) -> Position {
    // The upper end of a lower bound is unknown, and so is the lower end of an upper bound.
    let low = if known == Known::AtMost { f64::NEG_INFINITY } else { here.low };
    let high = if known == Known::AtLeast { f64::INFINITY } else { here.high };
    let is_within = above.is_none_or(|above| low > above) && below.is_none_or(|below| high < below);
    let is_outside = above.is_some_and(|above| high <= above) || below.is_some_and(|below| low >= below);
    match () {
        () if is_within => Position::Within,
        () if is_outside => Position::Outside,
        () => Position::Neither,
    }
}

/// The status of a claim by its interval, and the reason if it is undecided. The rules are those of `compare`: the
/// interval covers at least 95 %, and a ratio of two arms is further from the bound than the noise band is wide.
fn claim_status(
    archive: &Archive,
    claim: &Claim,
    here: &Summary,
    known: Known,
    blocks: usize,
) -> (ClaimStatus, String) {
    if here.coverage < COVERAGE_MIN {
        let count = if blocks == 1 { "1 block covers".to_owned() } else { format!("{blocks} blocks cover") };
        return (ClaimStatus::Undecided, format!("{count} {:.0} %, 95 % take {BLOCKS_MIN}", here.coverage * 100.0));
    }
    let found = match position(here, known, claim.above, claim.below) {
        Position::Within => ClaimStatus::StillHolds,
        Position::Outside => ClaimStatus::NoLonger,
        Position::Neither if known != Known::Exactly => {
            let bound = if known == Known::AtLeast { "a lower" } else { "an upper" };
            return (ClaimStatus::Undecided, format!("the figure is only {bound} bound"));
        }
        Position::Neither => {
            return (ClaimStatus::Undecided, format!("the bound, {}, is within the interval", holds(claim)));
        }
    };
    let is_of_two = claim.against.as_ref().filter(|against| against.metric == claim.of.metric);
    let is_of_two = is_of_two.and_then(|against| arms_of(archive, &claim.of, against)).is_some();
    let band = if is_of_two { noise(archive, &claim.of.metric, blocks) } else { None };
    let is_near = |band: &Band, bound: f64| {
        let off = here.median / bound;
        band.low <= off && off <= band.high
    };
    match band {
        Some(band) if [claim.above, claim.below].into_iter().flatten().any(|bound| is_near(&band, bound)) => (
            ClaimStatus::Undecided,
            format!("the median is no further from the bound than the noise ({:.3} to {:.3})", band.low, band.high),
        ),
        _ => (found, String::new()),
    }
}

/// Number of blocks that an interval of 95 % needs.
const BLOCKS_MIN: usize = 6;

/// The arm of a term.
fn arm_of<'a>(archive: &'a Archive, term: &Term) -> Option<&'a Arm> {
    let mut levels = archive.resolved.arms.first()?.levels.clone();
    levels.extend(term.levels.clone());
    drawn(archive).find(|arm| arm.levels == levels)
}

/// Names the step of a term, if there are several steps.
fn at_words(archive: &Archive, term: &Term) -> String {
    if archive.resolved.steps.len() == 1 {
        return String::new();
    }
    match term.at {
        At::Peak => " at its peak".to_owned(),
        At::First => " at the lowest load".to_owned(),
        At::Last => " at the highest load".to_owned(),
        At::Step(value) => format!(" at {}", number(value)),
    }
}

/// The arm of a term, and the step at which the term is evaluated.
///
/// # Errors
/// The step has no valid or censored run, or a neighbour of the peak has none: that neighbour may have been higher.
fn place_of<'a>(archive: &'a Archive, term: &Term) -> Result<(&'a Arm, Step), String> {
    let arm = arm_of(archive, term).ok_or("no arm has these levels")?;
    let steps = &archive.resolved.steps;
    let Some(step) = step_at(archive, arm, &term.metric, term.at) else {
        let of_one = |step: Option<&Step>| match step {
            Some(step) => format!("step {} of {} has no valid run", step_name(*step), arm.label),
            None => format!("{} has no such step", arm.label),
        };
        return Err(match term.at {
            At::Peak => format!("{} has no valid run", arm.label),
            At::First => of_one(steps.first()),
            At::Last => of_one(steps.last()),
            At::Step(value) => of_one(steps.iter().find(|step| step.value() == value)),
        });
    };
    if term.at == At::Peak {
        let peak = steps.iter().position(|one| *one == step).unwrap_or(0);
        let beside = [peak.checked_sub(1), Some(peak + 1)].into_iter().flatten().filter_map(|at| steps.get(at));
        if let Some(missing) = beside.into_iter().find(|one| median(archive, &arm.id, **one, &term.metric).is_none()) {
            let (missing, label) = (step_name(*missing), &arm.label);
            return Err(format!("step {missing} of {label}, beside its peak, has no valid run"));
        }
    }
    Ok((arm, step))
}

/// The figure of a claim in each block that has it, and whether the figures are
/// exact or bounds; `None` if some are lower bounds and others upper bounds.
///
/// # Errors
/// The reason why no block has the figure.
fn measure(archive: &Archive, claim: &Claim) -> Result<(Vec<f64>, Option<Known>), String> {
    let of_block = |(term, (arm, step)): &(&Term, (&Arm, Step)), block: u32| {
        let mut runs =
            cell(archive, &arm.id, *step).filter(|run| run.plan.block == block && run.status != RunStatus::Invalid);
        runs.find_map(|run| {
            let is_bound = run.status == RunStatus::Censored && LOWER_BOUNDS.contains(&&term.metric[..]);
            Some((value(run, &term.metric)?, is_bound))
        })
    };
    let of = (&claim.of, place_of(archive, &claim.of)?);
    let against = claim.against.as_ref().map(|term| Ok::<_, String>((term, place_of(archive, term)?))).transpose()?;
    let in_block = |block| {
        let (value, is_bound) = of_block(&of, block)?;
        let known = if is_bound { Known::AtLeast } else { Known::Exactly };
        let Some(against) = &against else { return Some((value, Some(known))) };
        let (divisor, is_bound) = of_block(against, block).filter(|(divisor, _)| *divisor > 0.0)?;
        let known = match (known, is_bound) {
            (known, false) => Some(known),
            (Known::Exactly, true) => Some(Known::AtMost),
            (_, true) => None,
        };
        Some((value / divisor, known))
    };
    let blocks: BTreeSet<u32> = archive.runs.iter().map(|run| run.plan.block).collect();
    let (values, known): (Vec<f64>, Vec<Option<Known>>) = blocks.into_iter().filter_map(in_block).unzip();
    if values.is_empty() {
        return Err("no block has valid runs of all that is compared".to_owned());
    }
    let together = known.into_iter().try_fold(Known::Exactly, |all, one| match (all, one?) {
        (all, Known::Exactly) => Some(all),
        (Known::Exactly, one) => Some(one),
        (all, one) => (all == one).then_some(all),
    });
    Ok((values, together))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;
    use std::path::Path;

    use crate::archive::Run;
    use crate::report::tests::{archive, set_rate};
    use ammeter_load::tally::Spread;

    /// A synthetic archive whose arms `a0` and `a1` have these values of `rate` at the highest step, block by block.
    fn made(a0: &[f64], a1: &[f64]) -> Archive {
        let mut archive = archive(Path::new("dir"), a0.len().max(a1.len()) as u32);
        archive.runs.retain(|run| run.plan.step.value() == 1500.0 && run.plan.arm != "aa");
        for run in &mut archive.runs {
            run.status = RunStatus::Valid;
            let values = if run.plan.arm == "a0" { a0 } else { a1 };
            match values.get(run.plan.block as usize - 1) {
                Some(rate) => set_rate(run, *rate),
                None => run.summary = None,
            }
        }
        archive
    }

    fn claim(above: Option<f64>, below: Option<f64>) -> Claim {
        let says = "A log takes a tenth of the rate (5.1.2).".to_owned();
        let against = Some(term("rate", "off", At::Last));
        Claim { says, of: term("rate", "on", At::Last), against, above, below, paper: Some(0.9), ..Claim::default() }
    }

    fn term(metric: &str, level: &str, at: At) -> Term {
        Term { metric: metric.to_owned(), levels: BTreeMap::from([("log".to_owned(), level.to_owned())]), at }
    }

    /// Rates of the two arms, a tenth apart, in as many blocks as a coverage of 95 % needs.
    const OFF: [f64; 6] = [1000.0, 1010.0, 990.0, 1005.0, 995.0, 1000.0];
    const ON: [f64; 6] = [900.0, 899.0, 901.0, 900.0, 900.0, 900.0];

    #[test]
    fn claim_holds_or_fails_or_is_undecided() {
        let check = |a0: &[f64], a1: &[f64], (above, below), expected: ClaimStatus, figures: &str| {
            let found = judged(&made(a0, a1), &claim(above, below));
            assert_eq!((found.status, &found.figures()[..]), (expected, figures), "{a0:?} {a1:?} {above:?} {below:?}");
            let is_open = [ClaimStatus::Undecided, ClaimStatus::CannotBeTold].contains(&expected);
            assert_eq!(!found.why.is_empty(), is_open, "the reason stands where nothing is decided");
        };
        let told = |rest: &str| format!("(0.9 [0.89, 0.91], 6 blocks; the paper 0.9{rest})");
        check(&OFF, &ON, (None, Some(0.98)), ClaimStatus::StillHolds, &told(""));
        check(&OFF, &ON, (Some(0.8), Some(0.98)), ClaimStatus::StillHolds, &told(""));
        check(&OFF, &ON, (None, Some(0.8)), ClaimStatus::NoLonger, &told(""));
        check(&OFF, &ON, (Some(0.95), None), ClaimStatus::NoLonger, &told(""));
        check(
            &OFF,
            &ON,
            (None, Some(0.9)),
            ClaimStatus::Undecided,
            &told("; the bound, below 0.9, is within the interval"),
        );
        // Five blocks cover 93.75 %, two 50 %, one 0 %.
        let few = |count: usize, rest: &str| {
            let (found, bound) = (judged(&made(&OFF[..count], &ON), &claim(None, Some(0.98))), "95 % take 6");
            assert_eq!((found.status, &found.why[..]), (ClaimStatus::Undecided, &format!("{rest}, {bound}")[..]));
        };
        few(5, "5 blocks cover 94 %");
        few(2, "2 blocks cover 50 %");
        few(1, "1 block covers 0 %");
        // Values are paired within a block, so drift that affects both arms cancels.
        let (fast, slow) = ([1000.0, 100.0].repeat(3), [900.0, 90.0].repeat(3));
        let told = "(0.9 [0.9, 0.9], 6 blocks; the paper 0.9)";
        check(&fast, &slow, (None, Some(0.95)), ClaimStatus::StillHolds, told);
    }

    #[test]
    fn missing_step_is_named_and_not_substituted() {
        let why = |archive: &Archive, claim: &Claim| {
            let found = judged(archive, claim);
            assert_eq!(found.status, ClaimStatus::CannotBeTold, "{found:?}");
            found.why
        };
        assert_eq!(why(&made(&[], &ON), &claim(None, Some(0.98))), "step 1500/s of log off has no valid run");
        let mut archive = archive(Path::new("dir"), 6);
        let highest = archive.runs.iter_mut().filter(|run| run.plan.step.value() == 1500.0);
        highest.for_each(|run| run.status = RunStatus::Invalid);
        let at = |of, against| Claim {
            of: term("rate", "on", of),
            against: Some(term("rate", "off", against)),
            ..claim(None, Some(0.98))
        };
        assert_eq!(why(&archive, &at(At::Last, At::Last)), "step 1500/s of log on has no valid run");
        assert_eq!(why(&archive, &at(At::First, At::Last)), "step 1500/s of log off has no valid run");
        assert_eq!(why(&archive, &at(At::Step(1500.0), At::First)), "step 1500/s of log on has no valid run");
        // The peak among the remaining steps may not be the true peak.
        assert_eq!(why(&archive, &at(At::Peak, At::First)), "step 1500/s of log on, beside its peak, has no valid run");
        assert_ne!(judged(&archive, &at(At::First, At::First)).status, ClaimStatus::CannotBeTold);
        // Both steps have runs, but no block has both.
        let mut apart = made(&OFF, &ON);
        let odd = |run: &Run| (run.plan.block % 2 == 1) == (run.plan.arm == "a0");
        apart.runs.retain(odd);
        assert_eq!(why(&apart, &claim(None, Some(0.98))), "no block has valid runs of all that is compared");
    }

    #[test]
    fn ineffective_treatment_is_not_applied() {
        let counted = |mut archive: Archive| {
            archive
                .runs
                .iter_mut()
                .filter_map(|run| run.summary.as_mut())
                .for_each(|summary| summary.server.processes_max = Some(4));
            archive
        };
        let archive = counted(made(&OFF, &ON));
        let with = |acted: Vec<Claim>| judged(&archive, &Claim { acted, ..claim(None, Some(0.98)) });
        let processes =
            |above: f64| Claim { of: term("processes", "on", At::Last), above: Some(above), ..Claim::default() };
        let found = with(vec![processes(3.0)]);
        assert_eq!((found.status, &found.why[..]), (ClaimStatus::StillHolds, ""), "there are 4 processes");
        let found = with(vec![processes(3.0), processes(149.0)]);
        assert_eq!(found.status, ClaimStatus::NotApplied);
        assert_eq!(
            found.why,
            "processes of the server, at most: log on at the highest load must be above 149, and is 4"
        );
        let unknown = Claim { of: term("parsing", "on", At::Last), above: Some(1.0), ..Claim::default() };
        let found = with(vec![unknown]);
        assert!(found.status == ClaimStatus::CannotBeTold && found.why.contains("and was not measured"), "{found:?}");
        // A few blocks are enough to show that the treatment did not act.
        let few = counted(made(&OFF[..2], &ON[..2]));
        let found = judged(&few, &Claim { acted: vec![processes(149.0)], ..claim(None, Some(0.98)) });
        assert_eq!(found.status, ClaimStatus::NotApplied);
        let told = open_claims(&[found]);
        assert!(told[0].starts_with("Not applied: A log takes a tenth of the rate"), "{told:?}");
    }

    #[test]
    fn arms_with_same_settings_are_no_treatment() {
        let mut archive = made(&OFF, &ON);
        archive.resolved.arms.iter_mut().for_each(|arm| arm.settings = "title = \"x\"\nworkers = 1\n".to_owned());
        let found = judged(&archive, &claim(None, Some(0.98)));
        assert_eq!(
            (found.status, &found.why[..]),
            (ClaimStatus::NotApplied, "log on and log off have the same settings")
        );
        // Two servers with equal settings are still two servers.
        archive.resolved.arms[1].subject = "apache".to_owned();
        assert_eq!(judged(&archive, &claim(None, Some(0.98))).status, ClaimStatus::StillHolds);
    }

    #[test]
    fn lossless_path_is_no_treatment() {
        let path = |on: &str, again: f64, connect_ms: f64| {
            let mut archive = made(&OFF, &ON);
            for arm in &mut archive.resolved.arms {
                let text = if arm.id == "a1" { on } else { "loss = \"0\"\nlatency = \"1ms\"" };
                arm.settings = format!("[path]\n{text}\n");
            }
            for run in &mut archive.runs {
                let summary = run.summary.as_mut().unwrap();
                summary.monitor.insert(RETRANSMITS.to_owned(), if run.plan.arm == "a1" { again } else { 0.0 });
                summary.connected = Spread { count: 9, p50_ms: connect_ms, ..Spread::default() };
            }
            judged(&archive, &claim(None, Some(0.98)))
        };
        let found = path("loss = \"5%\"", 0.0, 2.0);
        assert!(found.status == ClaimStatus::NotApplied && found.why.contains("segments retransmitted"), "{found:?}");
        assert_eq!(path("loss = \"5%\"", 12.0, 2.0).status, ClaimStatus::StillHolds);
        let found = path("latency = \"50ms\"", 0.0, 2.0);
        assert!(
            found.status == ClaimStatus::NotApplied && found.why.contains("time to connect, median: log on"),
            "{found:?}"
        );
        assert_eq!(path("latency = \"50ms\"", 0.0, 101.0).status, ClaimStatus::StillHolds);
    }

    #[test]
    fn ratio_within_noise_of_bound_is_undecided() {
        let mut archive = archive(Path::new("dir"), 6);
        for run in &mut archive.runs {
            run.status = RunStatus::Valid;
            // The baseline and its repetition are a tenth apart, the arm is 3 % above the baseline.
            let rate = match &run.plan.arm[..] {
                "a0" => 1000.0,
                "a1" => 1030.0,
                _ => 1100.0,
            };
            set_rate(run, rate);
        }
        let found = judged(&archive, &claim(Some(1.0), None));
        assert_eq!(found.status, ClaimStatus::Undecided, "{found:?}");
        assert!(found.why.contains("no further from the bound than the noise"), "{found:?}");
        assert_eq!(judged(&archive, &claim(Some(0.5), None)).status, ClaimStatus::StillHolds);
        assert_eq!(judged(&archive, &claim(None, Some(0.5))).status, ClaimStatus::NoLonger);
    }

    #[test]
    fn lower_bound_decides_only_one_direction() {
        let check = |bound_of: &str, (above, below), expected: ClaimStatus| {
            let mut archive = made(&[1000.0; 6], &[900.0; 6]);
            let bounds = archive.runs.iter_mut().filter(|run| bound_of.contains(&run.plan.arm));
            bounds.for_each(|run| run.status = RunStatus::Censored);
            assert_eq!(judged(&archive, &claim(above, below)).status, expected, "{bound_of} {above:?} {below:?}");
        };
        // A lower bound above a threshold proves "more than"; it never proves "less than".
        check("a1", (Some(0.8), None), ClaimStatus::StillHolds);
        check("a1", (None, Some(0.98)), ClaimStatus::Undecided);
        check("a1", (None, Some(0.8)), ClaimStatus::NoLonger);
        // A ratio whose divisor is a lower bound is an upper bound.
        check("a0", (None, Some(0.98)), ClaimStatus::StillHolds);
        check("a0", (Some(0.8), None), ClaimStatus::Undecided);
        check("a0", (Some(0.95), None), ClaimStatus::NoLonger);
        check("a0 a1", (Some(0.8), None), ClaimStatus::CannotBeTold);
        // An invalid run is not evidence: fewer than six blocks remain.
        let mut archive = made(&[1000.0; 6], &[900.0; 6]);
        archive.runs[0].status = RunStatus::Invalid;
        assert_eq!(judged(&archive, &claim(Some(0.8), None)).status, ClaimStatus::Undecided);
    }

    #[test]
    fn single_figure_has_unit_and_claim_is_a_sentence() {
        let archive = made(&[1000.0, 1020.0, 1000.0, 1020.0, 1000.0, 1020.0], &[900.0; 6]);
        let alone = Claim {
            says: "The server bears 1000/s".to_owned(),
            of: Term { metric: "rate".to_owned(), at: At::Step(1500.0), ..Term::default() },
            above: Some(500.0),
            ..Claim::default()
        };
        let none = Claim {
            of: Term { at: At::Step(500.0), ..alone.of.clone() },
            says: "No such step".to_owned(),
            ..alone.clone()
        };
        let judged: Vec<Judged> = [&claim(None, Some(0.98)), &alone, &claim(Some(0.98), None), &none]
            .map(|claim| judged(&archive, claim))
            .into();
        assert_eq!(judged[1].compared, "responses: log off at 1500");
        assert_eq!(judged[0].compared, "responses: log on at the highest load / log off at the highest load");
        assert_eq!(judged[1].holds, "above 500 1/s");
        let told = claim_summaries(&judged);
        assert!(
            told[0].starts_with("Still holds: A log takes a tenth of the rate (5.1.2) (0.891 [0.882, 0.9], 6 blocks; the paper 0.9); The server bears 1000/s (1010 1/s [1000, 1020], 6 blocks)."),
            "{told:?}"
        );
        assert!(told.len() == 2 && told[1].starts_with("No longer: "), "{told:?}");
        assert_eq!(
            open_claims(&judged),
            ["Cannot be told: No such step (no runs that count; step 500/s of log off has no valid run)."]
        );
        assert!(claim_summaries(&[]).is_empty() && open_claims(&[]).is_empty());
    }
}
