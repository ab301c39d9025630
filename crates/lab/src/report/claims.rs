//! The claims of an experiment, judged by its archive: a figure or a ratio within each block, against the bound of the
//! claim. Before it, the manipulation check: a claim whose treatment did not act has no verdict.
//!
//! Pure. The statistics are those of `compare`: the exact sign test, whose inversion is the interval of order statistics, and
//! the noise band of identical pairs. A verdict takes at least six blocks and, among all claims that are judged together, an
//! adjusted p-value of at most 5 %.

use std::borrow::Cow;
use std::collections::BTreeSet;

use amped_measure::stats::{BLOCKS_MIN, COVERAGE_MIN, Summary, blocks_needed, false_discovery, sign_test};
use amped_units::parse_duration;
use serde::Serialize;

use super::figures::{cell, drawn, median, step_at, step_name, value};
use crate::archive::{
    Archive, Arm, At, Claim, Needs, Run, RunStatus, Step, Summary as RunSummary, Term, without_words,
};
use crate::compare::{Band, LOWER_BOUNDS, noise};
use crate::figure::number;
use crate::validate::PROTOCOL;

/// The monitor's metric that rises on a path with packet loss.
const RETRANSMITS: &str = "tcp_retransmits_per_s";

/// Maximum share of false discoveries among the verdicts on claims that are judged together.
const FALSE_MAX: f64 = 1.0 - COVERAGE_MIN;

/// The status of a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum ClaimStatus {
    /// The value is within the bound.
    Holds,
    /// The value is outside the bound.
    NoLonger,
    /// The treatment did not act: the manipulation check failed.
    NotApplied,
    /// Too few blocks agree, the value is no further from the bound than the noise band is wide, or it is missing.
    Undecided,
    /// The claim needs what this machine does not have.
    NotTestable,
}

impl ClaimStatus {
    /// The status as the end of a sentence that starts with the claim.
    pub(crate) fn ends(self) -> &'static str {
        match self {
            ClaimStatus::Holds => "holds",
            ClaimStatus::NoLonger => "no longer holds",
            ClaimStatus::NotApplied => "not applied",
            ClaimStatus::Undecided => "undecided",
            ClaimStatus::NotTestable => "not testable here",
        }
    }
}

/// A claim with its status.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Judged {
    /// The text of the claim.
    pub(crate) says: String,
    /// The version of the claim: [`crate::archive::Resolved::claim_hash`].
    pub(crate) hash: String,
    /// Whether it tests the load generator or the workload, and is not counted.
    pub(crate) is_self_test: bool,
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
    /// Probability that one end of such an interval is right.
    pub(crate) coverage: f64,
    /// Probability of as many blocks on this side of the bound by chance, adjusted for the number of claims that are
    /// judged together; `None` if no block has the figure.
    pub(crate) p: Option<f64>,
    /// The resulting status.
    pub(crate) status: ClaimStatus,
    /// Number of blocks that would decide an undecided claim, if as many agree as now.
    pub(crate) blocks_needed: Option<usize>,
    /// The reason for the status; empty if the claim holds.
    pub(crate) why: String,
    /// The counts of the blocks; `None` if something else determines the status.
    #[serde(skip)]
    tally: Option<Tally>,
}

/// The blocks of a claim, counted on the side of the bound where most are.
#[derive(Clone, Debug)]
struct Tally {
    /// Whether this side is within the bound.
    is_within: bool,
    /// Blocks on this side.
    hits: usize,
    /// The one-sided p-value.
    p: f64,
    /// Why the claim would be undecided although enough blocks agree.
    doubt: Option<String>,
    /// Why the claim no longer holds, if its file says so.
    reason: String,
}

impl Judged {
    /// Formats the figure with its interval, the paper's figure, and the
    /// reason why the claim is undecided, in brackets.
    pub(crate) fn figures(&self) -> String {
        let Judged { here, unit, blocks, paper, why, .. } = self;
        let here = here.map_or("no usable runs".to_owned(), |[low, median, high]| {
            let unit = if unit.is_empty() { String::new() } else { format!(" {unit}") };
            format!("{}{unit} [{}, {}], {}", number(median), number(low), number(high), self::blocks(*blocks))
        });
        let paper = paper.map_or(String::new(), |paper| format!("; the paper {}", number(paper)));
        let why = if why.is_empty() { String::new() } else { format!("; {why}") };
        format!("({here}{paper}{why})")
    }
}

/// Summarises the decided claims, one sentence for each status that occurs.
pub(crate) fn claim_summaries(claims: &[Judged]) -> Vec<String> {
    sentences_of(claims, &[ClaimStatus::Holds, ClaimStatus::NoLonger])
}

/// Summarises the other claims, one sentence for each status that occurs, with the reasons.
pub(crate) fn open_claims(claims: &[Judged]) -> Vec<String> {
    sentences_of(claims, &[ClaimStatus::NotApplied, ClaimStatus::Undecided, ClaimStatus::NotTestable])
}

fn sentences_of(claims: &[Judged], statuses: &[ClaimStatus]) -> Vec<String> {
    let of = |status: &ClaimStatus| {
        let texts = claims.iter().filter(|claim| claim.status == *status);
        let texts: Vec<String> =
            texts.map(|claim| format!("{} {}", claim.says.trim_end_matches('.'), claim.figures())).collect();
        let mut ends = status.ends().to_owned();
        ends[..1].make_ascii_uppercase();
        (!texts.is_empty()).then(|| format!("{ends}: {}.", texts.join("; ")))
    };
    statuses.iter().filter_map(of).collect()
}

/// Judges each claim of an archive by itself.
pub(crate) fn claims(archive: &Archive) -> Vec<Judged> {
    let mut claims: Vec<Judged> = archive.resolved.claims.iter().map(|claim| judged(archive, claim)).collect();
    claims.iter_mut().for_each(|claim| decide([claim]));
    claims
}

/// Decides claims together: a claim that most blocks agree on is decided if the procedure of Benjamini and Hochberg, at 5 %
/// over all of these claims, calls it a discovery. More claims need more blocks each.
pub(crate) fn decide<'a>(claims: impl IntoIterator<Item = &'a mut Judged>) {
    let mut open: Vec<(Tally, &mut Judged)> =
        claims.into_iter().filter_map(|claim| Some((claim.tally.clone()?, claim))).collect();
    let adjusted = false_discovery(&open.iter().map(|(tally, _)| tally.p).collect::<Vec<_>>());
    let discoveries = adjusted.iter().filter(|p| **p <= FALSE_MAX).count();
    let (count, level) = (open.len(), FALSE_MAX * (discoveries + 1) as f64 / open.len().max(1) as f64);
    for ((tally, claim), p) in open.iter_mut().zip(adjusted) {
        claim.settle(tally, p, count, level.min(FALSE_MAX));
    }
}

/// Whether a figure is exact, a lower bound or an upper bound; the ratio of two lower bounds is unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Exactness {
    Exact,
    AtLeast,
    AtMost,
    Unknown,
}

/// Judges a claim by the runs of an archive. Compares within each block, so that drift between blocks cancels. The
/// status is provisional until [`decide`] has judged all claims of one table together.
fn judged(archive: &Archive, claim: &Claim) -> Judged {
    let (values, missing) = match measure(archive, claim) {
        Ok(values) => (values, String::new()),
        Err(why) => (Vec::new(), why),
    };
    let here = Summary::one_sided(values.iter().map(|(value, _)| *value));
    let settled = untestable(archive, claim).or_else(|| manipulation(archive, claim));
    let tally = match (&settled, here) {
        (None, Some(here)) => Some(tally(archive, claim, &values, here.median)),
        _ => None,
    };
    let (status, why) = settled.unwrap_or((ClaimStatus::Undecided, missing));
    Judged {
        says: claim.says.clone(),
        hash: claim.hash.clone(),
        is_self_test: claim.is_self_test,
        compared: compared(archive, claim),
        holds: holds(claim),
        paper: claim.paper,
        here: here.map(|here| [here.low, here.median, here.high]),
        unit: unit(claim),
        blocks: values.len(),
        coverage: here.map_or(0.0, |here| here.coverage),
        p: None,
        status,
        blocks_needed: None,
        why,
        tally,
    }
}

impl Judged {
    /// Sets the status from the block counts. `level` is the p-value at which one more of `count` claims is decided.
    fn settle(&mut self, tally: &Tally, p: f64, count: usize, level: f64) {
        let Tally { is_within, hits, doubt, reason, .. } = tally;
        self.p = Some(p);
        // An earlier pass may have judged this claim alone.
        (self.status, self.why, self.blocks_needed) = (ClaimStatus::Undecided, String::new(), None);
        if self.blocks < BLOCKS_MIN || p > FALSE_MAX {
            let among = if count > 1 { format!(" among {count} claims") } else { String::new() };
            let side = if *is_within { "within" } else { "outside" };
            self.blocks_needed = blocks_needed(*hits, self.blocks, level);
            let needed = self.blocks_needed.map_or_else(
                || "more than 1,000 blocks would be needed".to_owned(),
                |needed| format!("{needed} blocks would decide it if the same share agrees"),
            );
            self.why = format!("{hits} of {} {side} the bound, p {p:.2}{among}; {needed}", blocks(self.blocks));
            return;
        }
        match doubt {
            Some(doubt) => self.why.clone_from(doubt),
            None if *is_within => self.status = ClaimStatus::Holds,
            None => (self.status, self.why) = (ClaimStatus::NoLonger, reason.clone()),
        }
    }
}

/// Formats a number of blocks.
pub(crate) fn blocks(count: usize) -> String {
    if count == 1 { "1 block".to_owned() } else { format!("{count} blocks") }
}

/// Returns why a claim has no verdict whatever was measured: the machine lacks what it needs, or it was measured for
/// another version of the claim.
fn untestable(archive: &Archive, claim: &Claim) -> Option<(ClaimStatus, String)> {
    if claim.is_later {
        let why = format!("the claim was changed after the measurement (version {}): measure again", claim.hash);
        return Some((ClaimStatus::Undecided, why));
    }
    let mut terms = [Some(&claim.of), claim.against.as_ref()].into_iter().flatten();
    if let Some(why) = terms.find_map(|term| lacks_protocol(archive, term)) {
        return Some((ClaimStatus::NotTestable, why));
    }
    let Needs { hosts, cores, because } = claim.needs.as_ref()?;
    let has_hosts = archive.resolved.hosts.as_ref().map_or(1, |hosts| 1 + hosts.clients.len());
    let has_cores = archive.host.machine.cores;
    if (*hosts, *cores) != (0, 0) && has_hosts >= *hosts && has_cores >= *cores {
        return None;
    }
    let lacks = [("hosts", *hosts, has_hosts), ("cores", *cores, has_cores)];
    let lacks = lacks.iter().filter(|(_, needed, has)| has < needed);
    let lacks: String = lacks.map(|(what, needed, has)| format!("needs {needed} {what}, has {has}: ")).collect();
    Some((ClaimStatus::NotTestable, format!("{lacks}{because}")))
}

/// Returns why no run of a term's arm could be made: the server does not speak the protocol of the load.
fn lacks_protocol(archive: &Archive, term: &Term) -> Option<String> {
    let arm = arm_of(archive, term)?;
    let lack = |run: &Run| {
        let failed = run.checks.iter().find(|check| check.name == PROTOCOL && check.holds == Some(false));
        failed.map(|check| format!("{}: {}", arm.label, check.says))
    };
    let mut whys = archive.runs.iter().filter(|run| run.plan.arm == arm.id).map(lack);
    let first = whys.next()??;
    whys.all(|why| why.is_some()).then_some(first)
}

/// Counts the blocks that are certainly on either side of the bound: a lower bound is never known to be below anything.
/// A figure that equals the bound is outside.
fn tally(archive: &Archive, claim: &Claim, values: &[(f64, Exactness)], median: f64) -> Tally {
    let count = |is_on_side: &dyn Fn(f64, Exactness) -> bool| {
        values.iter().filter(|(value, known)| is_on_side(*value, *known)).count()
    };
    let n = values.len();
    let mut sides = Vec::new();
    if let Some(bound) = claim.above {
        sides.push([
            count(&|value, known| value > bound && [Exactness::Exact, Exactness::AtLeast].contains(&known)),
            count(&|value, known| value <= bound && [Exactness::Exact, Exactness::AtMost].contains(&known)),
        ]);
    }
    if let Some(bound) = claim.below {
        sides.push([
            count(&|value, known| value < bound && [Exactness::Exact, Exactness::AtMost].contains(&known)),
            count(&|value, known| value >= bound && [Exactness::Exact, Exactness::AtLeast].contains(&known)),
        ]);
    }
    // Within both bounds: both tests must succeed. Outside one of two: either may succeed, which doubles p.
    let within = sides.iter().map(|[within, _]| *within).min().unwrap_or(0);
    let outside = sides.iter().map(|[_, outside]| *outside).max().unwrap_or(0);
    let p_outside = (sign_test(outside, n) * sides.len() as f64).min(1.0);
    let is_within = sign_test(within, n) <= p_outside;
    Tally {
        is_within,
        hits: if is_within { within } else { outside },
        p: sign_test(within, n).min(p_outside),
        doubt: doubt(archive, claim, median, n),
        reason: reason(archive, claim),
    }
}

/// Returns why a ratio of two arms decides nothing: it is no further from the bound than the noise band of identical pairs.
fn doubt(archive: &Archive, claim: &Claim, median: f64, blocks: usize) -> Option<String> {
    let against = claim.against.as_ref().filter(|against| against.metric == claim.of.metric)?;
    arms_of(archive, &claim.of, against)?;
    let Band { low, high, .. } = noise(archive, &claim.of.metric, blocks)?;
    let is_near = |bound: &f64| (low..=high).contains(&(median / bound));
    let is_doubtful = [claim.above, claim.below].iter().flatten().any(is_near);
    is_doubtful.then(|| {
        format!("the median is no further from the bound than the noise of equal arms ({low:.3} to {high:.3})")
    })
}

/// The sentence on why a claim no longer holds, with the figures that it rests on; empty if the claim has none.
fn reason(archive: &Archive, claim: &Claim) -> String {
    let figure = |evidence: &Claim| {
        let median =
            measure(archive, evidence).ok().and_then(|values| Summary::of(values.into_iter().map(|(value, _)| value)));
        let value = median.map_or_else(|| "not measured".to_owned(), |here| number(here.median));
        let unit = unit(evidence);
        format!("{} {value}{}{unit}", compared(archive, evidence), if unit.is_empty() { "" } else { " " })
    };
    let figures: Vec<String> = claim.evidence.iter().map(figure).collect();
    let figures = if figures.is_empty() { String::new() } else { format!(" ({})", figures.join("; ")) };
    format!("{}{figures}", claim.no_longer.trim_end_matches('.'))
}

fn unit(claim: &Claim) -> &'static str {
    if claim.against.is_some() { "" } else { RunSummary::described(&claim.of.metric).map_or("", |(unit, _)| unit) }
}

/// Describes the compared figures.
fn compared(archive: &Archive, claim: &Claim) -> String {
    let words = |term: &Term| {
        format!("{}{}", arm_of(archive, term).map_or("no arm", |arm| &arm.label), at_words(archive, term))
    };
    match &claim.against {
        None => format!("{}: {}", meaning(&claim.of.metric), words(&claim.of)),
        Some(against) if against.metric == claim.of.metric => {
            format!("{}: {} / {}", meaning(&against.metric), words(&claim.of), words(against))
        }
        Some(against) => {
            format!(
                "{}: {} / {}: {}",
                meaning(&claim.of.metric),
                words(&claim.of),
                meaning(&against.metric),
                words(against)
            )
        }
    }
}

/// The meaning of a metric, or its name if it is unknown.
fn meaning(metric: &str) -> Cow<'_, str> {
    RunSummary::described(metric).map_or(Cow::Borrowed(metric), |(_, meaning)| meaning)
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
    claim.check.iter().cloned().chain(implied(archive, claim)).find_map(|condition| {
        let what = format!("{} must be {}", compared(archive, &condition), holds(&condition));
        let unknown = |rest: &str| {
            Some((
                ClaimStatus::Undecided,
                format!("it is unknown whether the treatment had an effect: {what}, and {rest}"),
            ))
        };
        let Ok(values) = measure(archive, &condition) else { return unknown("was not measured") };
        let Tally { is_within, hits, .. } = tally(archive, &condition, &values, 0.0);
        match (hits == values.len(), is_within) {
            (true, true) => None,
            (true, false) => {
                let median = Summary::of(values.iter().map(|(value, _)| *value)).map_or(0.0, |here| here.median);
                Some((ClaimStatus::NotApplied, format!("{what}, and is {}", number(median))))
            }
            (false, _) => {
                let (low, high) = values
                    .iter()
                    .fold((f64::MAX, f64::MIN), |(low, high), (value, _)| (low.min(*value), high.max(*value)));
                unknown(&format!("is {} to {}", number(low), number(high)))
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
    let steps = archive.resolved.steps_of(arm);
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

/// The figure of a claim in each block that has it.
///
/// # Errors
/// The reason why no block has the figure.
fn measure(archive: &Archive, claim: &Claim) -> Result<Vec<(f64, Exactness)>, String> {
    let place =
        |term: &Term| place_of(archive, term).map(|(arm, step)| Place { metric: term.metric.clone(), arm, step });
    let of = place(&claim.of)?;
    let against = claim.against.as_ref().map(place).transpose()?;
    let values = by_block(archive, &of, against.as_ref());
    if values.is_empty() { Err("no block has valid runs of all compared steps".to_owned()) } else { Ok(values) }
}

/// A metric of an arm at a step.
struct Place<'a> {
    metric: String,
    arm: &'a Arm,
    step: Step,
}

/// A figure, or its ratio to another of the same block, in each block that has it.
fn by_block(archive: &Archive, of: &Place<'_>, against: Option<&Place<'_>>) -> Vec<(f64, Exactness)> {
    let of_block = |Place { metric, arm, step }: &Place<'_>, block: u32| {
        let mut runs =
            cell(archive, &arm.id, *step).filter(|run| run.plan.block == block && run.status != RunStatus::Invalid);
        runs.find_map(|run| {
            let is_bound = run.status == RunStatus::Censored && LOWER_BOUNDS.contains(&&metric[..]);
            Some((value(run, metric)?, is_bound))
        })
    };
    let in_block = |block| {
        let (value, is_bound) = of_block(of, block)?;
        let Some(against) = against else {
            return Some((value, if is_bound { Exactness::AtLeast } else { Exactness::Exact }));
        };
        let (divisor, is_divisor_bound) = of_block(against, block).filter(|(divisor, _)| *divisor > 0.0)?;
        let known = match (is_bound, is_divisor_bound) {
            (false, false) => Exactness::Exact,
            (true, false) => Exactness::AtLeast,
            (false, true) => Exactness::AtMost,
            (true, true) => Exactness::Unknown,
        };
        Some((value / divisor, known))
    };
    let blocks: BTreeSet<u32> = archive.runs.iter().map(|run| run.plan.block).collect();
    blocks.into_iter().filter_map(in_block).collect()
}

/// The comparison of repeated arms (A/A). A difference means that something besides the treatment differs between runs.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Repeats {
    /// Number of figures of the claims that were compared between equal arms.
    pub(crate) figures: usize,
    /// The figures that differ, each with its ratio. The experiment is suspect if there are any.
    pub(crate) differing: Vec<String>,
}

/// Compares each repeated arm with its original in the figures of the claims, two-sided, at 5 % false discoveries over all.
pub(super) fn repeats(archive: &Archive) -> Repeats {
    let mut terms: Vec<&Term> = Vec::new();
    for term in archive.resolved.claims.iter().map(|claim| &claim.of) {
        if !terms.iter().any(|known| (&known.metric, known.at) == (&term.metric, term.at)) {
            terms.push(term);
        }
    }
    let mut found: Vec<(String, f64)> = Vec::new();
    for again in archive.resolved.arms.iter().filter(|arm| arm.is_again) {
        let Some(arm) = drawn(archive).find(|arm| arm.levels == again.levels) else { continue };
        for Term { metric, at, .. } in &terms {
            let Some(step) = step_at(archive, arm, metric, *at) else { continue };
            let place = |arm| Place { metric: metric.clone(), arm, step };
            let ratios = by_block(archive, &place(again), Some(&place(arm)));
            let ratios: Vec<f64> =
                ratios.into_iter().filter(|(_, known)| *known == Exactness::Exact).map(|(ratio, _)| ratio).collect();
            let Some(here) = Summary::of(ratios.iter().copied()).filter(|_| ratios.len() >= BLOCKS_MIN) else {
                continue;
            };
            let side = |is_on_side: fn(&f64) -> bool| {
                sign_test(ratios.iter().filter(|ratio| is_on_side(ratio)).count(), ratios.len())
            };
            let p = 2.0 * side(|ratio| *ratio > 1.0).min(side(|ratio| *ratio < 1.0));
            let what = format!("{} of {} at {}", meaning(metric), arm.label, step_name(step));
            found.push((
                format!("{what}: {} [{}, {}]", number(here.median), number(here.low), number(here.high)),
                p.min(1.0),
            ));
        }
    }
    let adjusted = false_discovery(&found.iter().map(|(_, p)| *p).collect::<Vec<_>>());
    let figures = found.len();
    let differing =
        found.into_iter().zip(adjusted).filter(|(_, p)| *p <= FALSE_MAX).map(|((what, _), _)| what).collect();
    Repeats { figures, differing }
}

impl Repeats {
    /// The result as a sentence, without the full stop.
    pub(crate) fn sentence(&self) -> String {
        let Repeats { figures, differing } = self;
        match (figures, &differing[..]) {
            (0, _) => "A/A: no arm was repeated in six blocks".to_owned(),
            (count, []) => format!("A/A: equal arms agree in {count} comparison{}", if *count == 1 { "" } else { "s" }),
            (_, differing) => format!("Suspect: equal arms differ (A/A): {}", differing.join("; ")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::values::Checked;
    use std::collections::BTreeMap;
    use std::path::Path;

    use crate::archive::{Check, Hosts};
    use crate::report::tests::{archive, claim_on_rate as claim, set_rate};
    use ammeter_load::tally::Spread;
    use amped_measure::stats::Random;

    /// A synthetic archive whose arms `a0` and `a1` have these values of `rate` at the highest step, block by block.
    fn with_rates(a0: &[f64], a1: &[f64]) -> Archive {
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

    /// The status of a claim that is judged alone.
    fn judged(archive: &Archive, claim: &Claim) -> Judged {
        let mut judged = super::judged(archive, claim);
        decide([&mut judged]);
        judged
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
            let found = judged(&with_rates(a0, a1), &claim(above, below));
            assert_eq!((found.status, &found.figures()[..]), (expected, figures), "{a0:?} {a1:?} {above:?} {below:?}");
            assert_eq!(
                !found.why.is_empty(),
                expected == ClaimStatus::Undecided,
                "the reason is shown for undecided claims"
            );
        };
        let texts = |rest: &str| format!("(0.9 [0.89, 0.91], 6 blocks; the paper 0.9{rest})");
        check(&OFF, &ON, (None, Some(0.98)), ClaimStatus::Holds, &texts(""));
        check(&OFF, &ON, (Some(0.8), Some(0.98)), ClaimStatus::Holds, &texts(""));
        check(&OFF, &ON, (None, Some(0.8)), ClaimStatus::NoLonger, &texts(""));
        check(&OFF, &ON, (Some(0.95), None), ClaimStatus::NoLonger, &texts(""));
        check(
            &OFF,
            &ON,
            (None, Some(0.9)),
            ClaimStatus::Undecided,
            &texts("; 4 of 6 blocks outside the bound, p 0.34; 30 blocks would decide it if the same share agrees"),
        );
        // A verdict takes six blocks, though five reach 3 %.
        let few = |count: usize, p: &str| {
            let found = judged(&with_rates(&OFF[..count], &ON), &claim(None, Some(0.98)));
            let (all, s) = (count, if count == 1 { "" } else { "s" });
            let why = format!(
                "{all} of {all} block{s} within the bound, p {p}; 6 blocks would decide it if the same share agrees"
            );
            assert_eq!((found.status, found.why, found.blocks_needed), (ClaimStatus::Undecided, why, Some(6)));
        };
        few(5, "0.03");
        few(2, "0.25");
        few(1, "0.50");
        // Values are paired within a block, so drift that affects both arms cancels.
        let (fast, slow) = ([1000.0, 100.0].repeat(3), [900.0, 90.0].repeat(3));
        let texts = "(0.9 [0.9, 0.9], 6 blocks; the paper 0.9)";
        check(&fast, &slow, (None, Some(0.95)), ClaimStatus::Holds, texts);
    }

    #[test]
    fn missing_step_is_named_and_not_substituted() {
        let why = |archive: &Archive, claim: &Claim| {
            let found = judged(archive, claim);
            assert_eq!(found.status, ClaimStatus::Undecided, "{found:?}");
            found.why
        };
        assert_eq!(why(&with_rates(&[], &ON), &claim(None, Some(0.98))), "step 1500/s of log off has no valid run");
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
        assert_ne!(judged(&archive, &at(At::First, At::First)).status, ClaimStatus::Undecided);
        // Both steps have runs, but no block has both.
        let mut apart = with_rates(&OFF, &ON);
        let odd = |run: &Run| (run.plan.block % 2 == 1) == (run.plan.arm == "a0");
        apart.runs.retain(odd);
        assert_eq!(why(&apart, &claim(None, Some(0.98))), "no block has valid runs of all compared steps");
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
        let archive = counted(with_rates(&OFF, &ON));
        let with = |check: Vec<Claim>| judged(&archive, &Claim { check, ..claim(None, Some(0.98)) });
        let processes =
            |above: f64| Claim { of: term("processes", "on", At::Last), above: Some(above), ..Claim::default() };
        let found = with(vec![processes(3.0)]);
        assert_eq!((found.status, &found.why[..]), (ClaimStatus::Holds, ""), "there are 4 processes");
        let found = with(vec![processes(3.0), processes(149.0)]);
        assert_eq!(found.status, ClaimStatus::NotApplied);
        assert_eq!(found.why, "maximum server processes: log on at the highest load must be above 149, and is 4");
        let unknown = Claim { of: term("parsing", "on", At::Last), above: Some(1.0), ..Claim::default() };
        let found = with(vec![unknown]);
        assert!(found.status == ClaimStatus::Undecided && found.why.contains("and was not measured"), "{found:?}");
        // A few blocks are enough to show that the treatment did not act.
        let few = counted(with_rates(&OFF[..2], &ON[..2]));
        let found = judged(&few, &Claim { check: vec![processes(149.0)], ..claim(None, Some(0.98)) });
        assert_eq!(found.status, ClaimStatus::NotApplied);
        let texts = open_claims(&[found]);
        assert!(texts[0].starts_with("Not applied: A log takes a tenth of the rate"), "{texts:?}");
    }

    #[test]
    fn arms_with_same_settings_are_no_treatment() {
        let mut archive = with_rates(&OFF, &ON);
        archive.resolved.arms.iter_mut().for_each(|arm| arm.settings = "title = \"x\"\nworkers = 1\n".to_owned());
        let found = judged(&archive, &claim(None, Some(0.98)));
        assert_eq!(
            (found.status, &found.why[..]),
            (ClaimStatus::NotApplied, "log on and log off have the same settings")
        );
        // Two servers with equal settings are still two servers.
        archive.resolved.arms[1].subject = "apache".to_owned();
        assert_eq!(judged(&archive, &claim(None, Some(0.98))).status, ClaimStatus::Holds);
    }

    #[test]
    fn lossless_path_is_no_treatment() {
        let path = |on: &str, again: f64, connect_ms: f64| {
            let mut archive = with_rates(&OFF, &ON);
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
        assert_eq!(path("loss = \"5%\"", 12.0, 2.0).status, ClaimStatus::Holds);
        let found = path("latency = \"50ms\"", 0.0, 2.0);
        assert!(
            found.status == ClaimStatus::NotApplied && found.why.contains("median time to connect: log on"),
            "{found:?}"
        );
        assert_eq!(path("latency = \"50ms\"", 0.0, 101.0).status, ClaimStatus::Holds);
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
        assert_eq!(judged(&archive, &claim(Some(0.5), None)).status, ClaimStatus::Holds);
        assert_eq!(judged(&archive, &claim(None, Some(0.5))).status, ClaimStatus::NoLonger);
    }

    #[test]
    fn lower_bound_decides_only_one_direction() {
        let check = |bound_of: &str, (above, below), expected: ClaimStatus| {
            let mut archive = with_rates(&[1000.0; 6], &[900.0; 6]);
            let bounds = archive.runs.iter_mut().filter(|run| bound_of.contains(&run.plan.arm));
            bounds.for_each(|run| run.status = RunStatus::Censored);
            assert_eq!(judged(&archive, &claim(above, below)).status, expected, "{bound_of} {above:?} {below:?}");
        };
        // A lower bound above a threshold proves "more than"; it never proves "less than".
        check("a1", (Some(0.8), None), ClaimStatus::Holds);
        check("a1", (None, Some(0.98)), ClaimStatus::Undecided);
        check("a1", (None, Some(0.8)), ClaimStatus::NoLonger);
        // A ratio whose divisor is a lower bound is an upper bound.
        check("a0", (None, Some(0.98)), ClaimStatus::Holds);
        check("a0", (Some(0.8), None), ClaimStatus::Undecided);
        check("a0", (Some(0.95), None), ClaimStatus::NoLonger);
        check("a0 a1", (Some(0.8), None), ClaimStatus::Undecided);
        // An invalid run is not evidence: fewer than six blocks remain.
        let mut archive = with_rates(&[1000.0; 6], &[900.0; 6]);
        archive.runs[0].status = RunStatus::Invalid;
        assert_eq!(judged(&archive, &claim(Some(0.8), None)).status, ClaimStatus::Undecided);
    }

    #[test]
    fn single_figure_has_unit_and_claim_is_a_sentence() {
        let archive = with_rates(&[1000.0, 1020.0, 1000.0, 1020.0, 1000.0, 1020.0], &[900.0; 6]);
        let alone = Claim {
            says: "The server sustains 1000/s".to_owned(),
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
        let texts = claim_summaries(&judged);
        assert!(
            texts[0].starts_with("Holds: A log takes a tenth of the rate (5.1.2) (0.891 [0.882, 0.9], 6 blocks; the paper 0.9); The server sustains 1000/s (1010 1/s [1000, 1020], 6 blocks)."),
            "{texts:?}"
        );
        assert!(texts.len() == 2 && texts[1].starts_with("No longer holds: "), "{texts:?}");
        assert_eq!(
            open_claims(&judged),
            ["Undecided: No such step (no usable runs; step 500/s of log off has no valid run)."]
        );
        assert!(claim_summaries(&[]).is_empty() && open_claims(&[]).is_empty());
    }

    /// A block of a synthetic experiment in which the second arm has `effect` times the rate of the first, both with noise of
    /// 2 % and a drift of 5 % from block to block.
    fn simulated(random: &mut Random, blocks: usize, effect: f64) -> Archive {
        let normal = |random: &mut Random| (0..12).map(|_| random.fraction()).sum::<f64>() - 6.0;
        let (mut a0, mut a1) = (Vec::new(), Vec::new());
        for _ in 0..blocks {
            let block = 1000.0 * (0.05 * normal(random)).exp();
            a0.push(block * (0.02 * normal(random)).exp());
            a1.push(block * effect * (0.02 * normal(random)).exp());
        }
        with_rates(&a0, &a1)
    }

    #[test]
    fn equal_arms_are_called_different_in_at_most_5_percent() {
        let mut random = Random(1);
        for blocks in [6, 8] {
            let is_called = |_: &usize| {
                judged(&simulated(&mut random, blocks, 1.0), &claim(None, Some(1.0))).status == ClaimStatus::Holds
            };
            let called = (0..1000).filter(is_called).count();
            // sign_test(6, 6) is 1.6 %, sign_test(7, 8) 3.5 %.
            assert!(called <= 50, "{called} of 1000 with {blocks} blocks");
        }
    }

    #[test]
    fn effect_of_5_percent_is_found_in_80_percent_with_8_blocks() {
        let mut random = Random(2);
        let mut found = |effect: f64, (above, below): (Option<f64>, Option<f64>)| {
            let is_found = |_: &usize| {
                judged(&simulated(&mut random, 8, effect), &claim(above, below)).status == ClaimStatus::Holds
            };
            (0..500).filter(is_found).count()
        };
        for found in [found(1.05, (Some(1.0), None)), found(1.0 / 1.05, (None, Some(1.0)))] {
            assert!(found >= 400, "{found} of 500");
        }
    }

    #[test]
    fn at_most_5_percent_of_verdicts_on_many_claims_are_false() {
        // Of 100 claims in a table a half is true by an effect of 5 %, and a half is about no effect.
        let mut random = Random(3);
        let (mut verdicts, mut mistakes, mut right) = (0, 0, 0);
        for _ in 0..20 {
            let mut claims: Vec<Judged> = (0..100)
                .map(|at| {
                    let archive = simulated(&mut random, 8, if at % 2 == 0 { 0.95 } else { 1.0 });
                    super::judged(&archive, &claim(None, Some(1.0)))
                })
                .collect();
            decide(&mut claims);
            let holds = |at: &usize| claims[*at].status == ClaimStatus::Holds;
            let (all, of_none) =
                ((0..100).filter(holds).count(), (0..100).filter(|at| at % 2 == 1 && holds(at)).count());
            (verdicts, mistakes, right) = (verdicts + all, mistakes + of_none, right + all - of_none);
        }
        assert!(mistakes * 20 <= verdicts, "{mistakes} of {verdicts} are false");
        // Alone, 80 % of such effects are found; in a table of so many, 70 %.
        assert!(right >= 700, "{right} of 1000 were found");
    }

    #[test]
    fn claim_that_needs_more_than_machine_has_is_not_testable() {
        let archive = with_rates(&OFF, &ON);
        let status = |archive: &Archive, hosts: usize, cores: usize| {
            let needs = Some(Needs { hosts, cores, because: "one machine carries both".to_owned() });
            let found = judged(archive, &Claim { needs, ..claim(None, Some(0.98)) });
            (found.status, found.why)
        };
        let why = |text: &str| (ClaimStatus::NotTestable, text.to_owned());
        assert_eq!(status(&archive, 2, 0), why("needs 2 hosts, has 1: one machine carries both"));
        assert_eq!(status(&archive, 0, 64), why("needs 64 cores, has 2: one machine carries both"));
        assert_eq!(status(&archive, 0, 0), why("one machine carries both"));
        assert_eq!(status(&archive, 1, 2).0, ClaimStatus::Holds);
        let mut two = archive.clone();
        two.resolved.hosts =
            Some(Hosts { server: Checked::new("s"), clients: vec![Checked::new("c")], address: None, via: None });
        assert_eq!(status(&two, 2, 0).0, ClaimStatus::Holds);
    }

    #[test]
    fn claim_about_server_without_protocol_is_not_testable() {
        let mut archive = with_rates(&OFF, &ON);
        let on = archive.resolved.arms.iter().find(|arm| arm.label == "log on").unwrap().id.clone();
        let lack = Check { name: PROTOCOL.to_owned(), holds: Some(false), says: "no HTTP/2".to_owned() };
        let count = archive.runs.iter().filter(|run| run.plan.arm == on).count();
        let mut judge = |lacking: usize| {
            for run in archive.runs.iter_mut().filter(|run| run.plan.arm == on).take(lacking) {
                (run.status, run.checks) = (RunStatus::Invalid, vec![lack.clone()]);
            }
            let found = judged(&archive, &claim(None, Some(0.98)));
            (found.status, found.why)
        };
        // One run in which it spoke the protocol is enough.
        assert_ne!(judge(count - 1).0, ClaimStatus::NotTestable);
        assert_eq!(judge(count), (ClaimStatus::NotTestable, "log on: no HTTP/2".to_owned()));
    }

    #[test]
    fn claim_changed_after_measurement_has_no_verdict() {
        let found = judged(
            &with_rates(&OFF, &ON),
            &Claim { is_later: true, hash: "0a1b".to_owned(), ..claim(None, Some(0.98)) },
        );
        assert_eq!(found.status, ClaimStatus::Undecided);
        assert_eq!(found.why, "the claim was changed after the measurement (version 0a1b): measure again");
    }

    #[test]
    fn claim_that_no_longer_holds_says_why_with_figures() {
        let evidence = vec![
            Claim { of: term("rate", "off", At::Last), ..Claim::default() },
            Claim { of: term("parsing", "off", At::Last), ..Claim::default() },
        ];
        let says_why = Claim { no_longer: "Disks are faster.".to_owned(), evidence, ..claim(Some(0.95), None) };
        let found = judged(&with_rates(&OFF, &ON), &says_why);
        let why = "Disks are faster (responses: log off at the highest load 1000 1/s; ";
        assert!(found.status == ClaimStatus::NoLonger && found.why.starts_with(why), "{found:?}");
        assert!(found.why.ends_with("not measured ms)"), "{found:?}");
        // No reason is given for a claim that holds.
        let holds = judged(&with_rates(&OFF, &ON), &Claim { above: Some(0.8), ..says_why });
        assert_eq!((holds.status, &holds.why[..]), (ClaimStatus::Holds, ""));
    }

    #[test]
    fn repeated_arm_that_differs_makes_experiment_suspect() {
        let with_again = |times: &dyn Fn(u32) -> f64| {
            let mut archive = archive(Path::new("dir"), 6);
            for run in &mut archive.runs {
                run.status = RunStatus::Valid;
                set_rate(run, if run.plan.arm == "aa" { 1000.0 * times(run.plan.block) } else { 1000.0 });
            }
            archive.resolved.claims = vec![claim(None, Some(0.98)), claim(Some(0.5), None)];
            repeats(&archive)
        };
        let silent = with_again(&|block| if block % 2 == 0 { 1.01 } else { 0.99 });
        assert_eq!(silent.sentence(), "A/A: equal arms agree in 1 comparison");
        assert_eq!(with_again(&|_| 1.0).differing.len(), 0, "equal values are no difference");
        let suspect = with_again(&|_| 1.02);
        assert_eq!(
            suspect.sentence(),
            "Suspect: equal arms differ (A/A): responses of log off at 1500/s: 1.02 [1.02, 1.02]"
        );
        let few = archive(Path::new("dir"), 4);
        assert_eq!(repeats(&few).sentence(), "A/A: no arm was repeated in six blocks");
    }
}
