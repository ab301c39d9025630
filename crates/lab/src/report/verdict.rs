//! What a report says first: how much load each arm bears, what of the paper still holds, and how much of it can be
//! believed.
//!
//! Pure. An arm bears a step if its valid runs answer nearly all that was asked for; its knee lies between the highest step
//! up to which it bears all, and the next one. Where the load came to its end first, only the lower end is known.

use std::collections::BTreeSet;

use amped_measure::stats::Summary;
use serde::Serialize;

use super::figure::number;
use super::figures::{cell, drawn, median, step_at, step_name, value};
use crate::archive::{Archive, Arm, At, Claim, Run, Standing, Step, Summary as RunSummary, Term};

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

/// Whether the arm of this label bears every step.
pub(super) fn bears_all(archive: &Archive, label: &str) -> bool {
    let highest = archive.resolved.steps.last();
    drawn(archive)
        .find(|arm| arm.label == label)
        .is_some_and(|arm| highest.is_some() && knee(archive, arm).borne.as_ref() == highest)
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

/// What becomes of a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Fate {
    /// The whole interval is within the bound.
    StillHolds,
    /// It is outside of it.
    NoLonger,
    /// Neither, or there are no two blocks that tell.
    CannotBeTold,
}

impl Fate {
    /// As it begins a sentence.
    fn told(self) -> &'static str {
        match self {
            Fate::StillHolds => "Still holds",
            Fate::NoLonger => "No longer",
            Fate::CannotBeTold => "Cannot be told from this many runs",
        }
    }

    /// As it ends one that begins with the claim.
    pub(super) fn ends(self) -> &'static str {
        match self {
            Fate::StillHolds => "still holds",
            Fate::NoLonger => "no longer holds",
            Fate::CannotBeTold => "cannot be told",
        }
    }
}

/// A claim, and what became of it.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Judged {
    /// What is claimed.
    pub(crate) says: String,
    /// What was compared, in words.
    pub(crate) compared: String,
    /// Within what it holds, in words.
    pub(crate) holds: String,
    /// The paper's figure or ratio.
    pub(crate) paper: Option<f64>,
    /// The one here, over the blocks: where its interval begins, the median, where it ends; `None` without runs that count.
    pub(crate) here: Option<[f64; 3]>,
    /// Its unit; empty for a ratio.
    pub(crate) unit: &'static str,
    /// Of how many blocks that is.
    pub(crate) blocks: usize,
    /// With which probability such an interval contains the true median.
    pub(crate) coverage: f64,
    /// What follows.
    pub(crate) fate: Fate,
}

impl Judged {
    /// The figure with its interval, and the paper's, in brackets.
    pub(crate) fn figures(&self) -> String {
        let Judged { here, unit, blocks, paper, .. } = self;
        let here = here.map_or("no runs that count".to_owned(), |[low, median, high]| {
            let unit = if unit.is_empty() { String::new() } else { format!(" {unit}") };
            let count = if *blocks == 1 { "1 block".to_owned() } else { format!("{blocks} blocks") };
            format!("{}{unit} [{}, {}], {count}", number(median), number(low), number(high))
        });
        let paper = paper.map_or(String::new(), |paper| format!("; the paper {}", number(paper)));
        format!("({here}{paper})")
    }
}

/// What still holds, what no longer does, and what cannot be told: a sentence each, as far as there is something to say.
pub(crate) fn fates(claims: &[Judged]) -> Vec<String> {
    let of = |fate| {
        let told = claims.iter().filter(move |claim| claim.fate == fate);
        let told: Vec<String> =
            told.map(|claim| format!("{} {}", claim.says.trim_end_matches('.'), claim.figures())).collect();
        (!told.is_empty()).then(|| format!("{}: {}.", fate.told(), told.join("; ")))
    };
    [Fate::StillHolds, Fate::NoLonger, Fate::CannotBeTold].into_iter().filter_map(of).collect()
}

/// What is known of a figure: itself, or one of its ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Known {
    Exactly,
    AtLeast,
    AtMost,
}

/// Holds a claim against the runs of an archive: within each block, so that what changed from block to block cancels.
pub(super) fn judged(archive: &Archive, claim: &Claim) -> Judged {
    let (values, known) = values(archive, claim);
    let here = Summary::of(values.iter().copied());
    let unit =
        if claim.against.is_some() { "" } else { RunSummary::described(&claim.of.metric).map_or("", |(unit, _)| unit) };
    let bound = |bound: f64| if unit.is_empty() { number(bound) } else { format!("{} {unit}", number(bound)) };
    let words = |term: &Term| {
        format!("{}{}", arm_of(archive, term).map_or("no arm", |arm| &arm.label), at_words(archive, term))
    };
    let meaning = |term: &Term| {
        RunSummary::described(&term.metric).map_or_else(|| term.metric.clone(), |(_, meaning)| meaning.into_owned())
    };
    Judged {
        says: claim.says.clone(),
        compared: match &claim.against {
            None => format!("{}: {}", meaning(&claim.of), words(&claim.of)),
            Some(against) if against.metric == claim.of.metric => {
                format!("{}: {} / {}", meaning(against), words(&claim.of), words(against))
            }
            Some(against) => {
                format!("{}: {} / {}: {}", meaning(&claim.of), words(&claim.of), meaning(against), words(against))
            }
        },
        holds: match (claim.above, claim.below) {
            (Some(above), Some(below)) => format!("between {} and {}", bound(above), bound(below)),
            (Some(above), None) => format!("above {}", bound(above)),
            (None, Some(below)) => format!("below {}", bound(below)),
            (None, None) => "always".to_owned(),
        },
        paper: claim.paper,
        here: here.map(|here| [here.low, here.median, here.high]),
        unit,
        blocks: values.len(),
        coverage: here.map_or(0.0, |here| here.coverage),
        fate: here.zip(known).map_or(Fate::CannotBeTold, |(here, known)| fate(&here, known, claim.above, claim.below)),
    }
}

/// Whether an interval is within a bound. Of a single block there is none.
fn fate(here: &Summary, known: Known, above: Option<f64>, below: Option<f64>) -> Fate {
    // Of a lower bound nobody knows where it ends, and of an upper one not where it begins.
    let low = if known == Known::AtMost { f64::NEG_INFINITY } else { here.low };
    let high = if known == Known::AtLeast { f64::INFINITY } else { here.high };
    let is_within = above.is_none_or(|above| low > above) && below.is_none_or(|below| high < below);
    let is_outside = above.is_some_and(|above| high <= above) || below.is_some_and(|below| low >= below);
    match () {
        () if here.coverage <= 0.0 => Fate::CannotBeTold,
        () if is_within => Fate::StillHolds,
        () if is_outside => Fate::NoLonger,
        () => Fate::CannotBeTold,
    }
}

/// The arm of a term.
fn arm_of<'a>(archive: &'a Archive, term: &Term) -> Option<&'a Arm> {
    let mut levels = archive.resolved.arms.first()?.levels.clone();
    levels.extend(term.levels.clone());
    drawn(archive).find(|arm| arm.levels == levels)
}

/// At which step a term is taken, where there are several.
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

/// The figure of a claim in each block that has it, and what is known of these; `None` where some are lower bounds and others
/// upper ones.
fn values(archive: &Archive, claim: &Claim) -> (Vec<f64>, Option<Known>) {
    let of_block = |term: &Term, block: u32| {
        let arm = arm_of(archive, term)?;
        let step = step_at(archive, arm, &term.metric, term.at)?;
        let mut runs =
            cell(archive, &arm.id, step).filter(|run| run.plan.block == block && run.standing != Standing::Invalid);
        runs.find_map(|run| {
            let is_bound = run.standing == Standing::Censored && LOWER_BOUNDS.contains(&&term.metric[..]);
            Some((value(run, &term.metric)?, is_bound))
        })
    };
    let in_block = |block| {
        let (value, is_bound) = of_block(&claim.of, block)?;
        let known = if is_bound { Known::AtLeast } else { Known::Exactly };
        let Some(against) = &claim.against else { return Some((value, Some(known))) };
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
    let together = known.into_iter().try_fold(Known::Exactly, |all, one| match (all, one?) {
        (all, Known::Exactly) => Some(all),
        (Known::Exactly, one) => Some(one),
        (all, one) => (all == one).then_some(all),
    });
    (values, together)
}

/// Figures of a run whose load came to its end before the server did that are lower bounds for it: it could have done more.
const LOWER_BOUNDS: [&str; 4] = ["rate", "request-rate", "established-rate", "throughput"];

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;
    use std::path::Path;

    use crate::report::tests::archive;

    /// The made archive, in which the values of `rate` of the arms `a0` and `a1` at the highest step are these, block by block.
    fn made(a0: &[f64], a1: &[f64]) -> Archive {
        let mut archive = archive(Path::new("dir"), a0.len().max(a1.len()) as u32);
        archive.runs.retain(|run| run.plan.step.value() == 1500.0 && run.plan.arm != "aa");
        for run in &mut archive.runs {
            run.standing = Standing::Valid;
            let values = if run.plan.arm == "a0" { a0 } else { a1 };
            match values.get(run.plan.block as usize - 1) {
                Some(rate) => run.summary.as_mut().unwrap().rate = *rate,
                None => run.summary = None,
            }
        }
        archive
    }

    fn claim(above: Option<f64>, below: Option<f64>) -> Claim {
        let term = |level: &str| Term {
            metric: "rate".to_owned(),
            levels: BTreeMap::from([("log".to_owned(), level.to_owned())]),
            at: At::Last,
        };
        let says = "A log takes a tenth of the rate (5.1.2).".to_owned();
        Claim { says, of: term("on"), against: Some(term("off")), above, below, paper: Some(0.9) }
    }

    #[test]
    fn a_claim_holds_or_not_or_cannot_be_told() {
        let check = |a0: &[f64], a1: &[f64], (above, below), expected: Fate, figures: &str| {
            let found = judged(&made(a0, a1), &claim(above, below));
            assert_eq!((found.fate, &found.figures()[..]), (expected, figures), "{a0:?} {a1:?} {above:?} {below:?}");
        };
        let (off, on) = ([1000.0, 1010.0, 990.0], [900.0, 899.0, 901.0]);
        let told = "(0.9 [0.89, 0.91], 3 blocks; the paper 0.9)";
        check(&off, &on, (None, Some(0.98)), Fate::StillHolds, told);
        check(&off, &on, (Some(0.8), Some(0.98)), Fate::StillHolds, told);
        check(&off, &on, (None, Some(0.8)), Fate::NoLonger, told);
        check(&off, &on, (Some(0.95), None), Fate::NoLonger, told);
        // The bound is within the interval.
        check(&off, &on, (None, Some(0.9)), Fate::CannotBeTold, told);
        // Of one block alone nobody knows how it would be in another; and of none there is nothing.
        check(&off[..1], &on, (None, Some(0.98)), Fate::CannotBeTold, "(0.9 [0.9, 0.9], 1 block; the paper 0.9)");
        check(&[], &on, (None, Some(0.98)), Fate::CannotBeTold, "(no runs that count; the paper 0.9)");
        // Pairs are those of a block: what moves both does not count.
        check(
            &[1000.0, 100.0],
            &[900.0, 90.0],
            (None, Some(0.95)),
            Fate::StillHolds,
            "(0.9 [0.9, 0.9], 2 blocks; the paper 0.9)",
        );
    }

    #[test]
    fn of_a_lower_bound_only_so_much_follows() {
        let check = |bound_of: &str, (above, below), expected: Fate| {
            let mut archive = made(&[1000.0, 1000.0], &[900.0, 900.0]);
            let bounds = archive.runs.iter_mut().filter(|run| bound_of.contains(&run.plan.arm));
            bounds.for_each(|run| run.standing = Standing::Censored);
            assert_eq!(judged(&archive, &claim(above, below)).fate, expected, "{bound_of} {above:?} {below:?}");
        };
        // What it is more than, it is more than all the more; what it is less than is not known.
        check("a1", (Some(0.8), None), Fate::StillHolds);
        check("a1", (None, Some(0.98)), Fate::CannotBeTold);
        check("a1", (None, Some(0.8)), Fate::NoLonger);
        // Divided by a lower bound it is an upper one.
        check("a0", (None, Some(0.98)), Fate::StillHolds);
        check("a0", (Some(0.8), None), Fate::CannotBeTold);
        check("a0", (Some(0.95), None), Fate::NoLonger);
        check("a0 a1", (Some(0.8), None), Fate::CannotBeTold);
        // A run that is worth nothing tells nothing, and with it no two blocks are left.
        let mut archive = made(&[1000.0, 1000.0], &[900.0, 900.0]);
        archive.runs[0].standing = Standing::Invalid;
        assert_eq!(judged(&archive, &claim(Some(0.8), None)).fate, Fate::CannotBeTold);
    }

    #[test]
    fn a_figure_alone_has_a_unit_and_claims_make_a_sentence() {
        let archive = made(&[1000.0, 1020.0], &[900.0, 900.0]);
        let alone = Claim {
            says: "The server bears 1000/s".to_owned(),
            of: Term { metric: "rate".to_owned(), at: At::Step(1500.0), ..Term::default() },
            above: Some(500.0),
            ..Claim::default()
        };
        let none = Claim {
            of: Term { at: At::Step(7.0), ..alone.of.clone() },
            says: "No such step".to_owned(),
            ..alone.clone()
        };
        let judged: Vec<Judged> = [&claim(None, Some(0.98)), &alone, &claim(Some(0.98), None), &none]
            .map(|claim| judged(&archive, claim))
            .into();
        assert_eq!(judged[1].compared, "responses: log off at 1500");
        assert_eq!(judged[0].compared, "responses: log on at the highest load / log off at the highest load");
        assert_eq!(judged[1].holds, "above 500 1/s");
        let told = fates(&judged);
        assert!(
            told[0].starts_with("Still holds: A log takes a tenth of the rate (5.1.2) (0.891 [0.882, 0.9], 2 blocks; the paper 0.9); The server bears 1000/s (1010 1/s [1000, 1020], 2 blocks)."),
            "{told:?}"
        );
        assert!(
            told[1].starts_with("No longer: ")
                && told[2] == "Cannot be told from this many runs: No such step (no runs that count).",
            "{told:?}"
        );
        assert!(fates(&[]).is_empty());
    }
}
