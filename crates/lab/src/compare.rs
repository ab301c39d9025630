//! Tests whether two measurements differ: ratios of paired runs, their medians and confidence
//! intervals, and the noise band.
//!
//! Pure. Each run of B is paired with the run of A at the same step in the same block, so changes from block to
//! block (other processes, temperature, page cache) affect both and cancel. The pairs of a metric give one ratio,
//! B / A: its median, and the interval of order statistics. The level is corrected for the number of metrics
//! (Bonferroni: of four, each at 98.75 %), so that of twenty experiments without a difference, nineteen report none.
//!
//! The noise band is the range of the median of as many pairs when there is no difference. It is computed by
//! resampling pairs of runs of the same thing (A/A), each inverted with probability 1/2. A difference is reported
//! only if the interval excludes 1 and the median lies outside the band. If there are too few pairs to reach the
//! level in any case, the result is undecided.
//!
//! Two archives are measured one after the other, and a change of the machine in between affects all their pairs: more
//! pairs do not average it out. There the band is the largest shift between blocks of one archive, over all steps,
//! times 2. It takes three blocks of each archive: one block has no shift, and the shift between two is too often
//! smaller than the one between the archives. With fewer, the result is undecided.
//!
//! Under relaxed validity rules, disturbed runs are included, with an unknown effect. There is then no
//! verdict, unless A and B were measured in the same blocks together with a repetition of the baseline.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use amped_measure::Failure;
use amped_measure::stats::{COVERAGE_MIN, Random, Summary, median};
use serde::Serialize;

use crate::archive::{self, Archive, Arm, Rules, RunStatus, Step as Load, flatten, without_words};

/// Default metrics, by the names of `archive::Summary::metric`. CPU time comes first, since on a
/// shared machine rates and latencies are evidence only next to it.
pub(crate) const METRICS: &[&str] = &["cpu-per-reply", "rate", "p50", "p99"];

/// Metrics that are lower bounds if the load generator reached its limit before the server did.
pub(crate) const LOWER_BOUNDS: [&str; 4] = ["rate", "request-rate", "established-rate", "throughput"];
/// Of these, the ones in which two servers are equal below their capacity.
const AS_OFFERED: [&str; 2] = ["rate", "throughput"];
/// The metric that shows whether a server kept up with the load.
const RATE: &str = "rate";

/// The side of a run in a comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Side {
    A,
    B,
    /// Neither: used only for the noise.
    Other,
}

/// A run, as input of a comparison.
#[derive(Clone, Debug)]
struct Taken {
    side: Side,
    /// Settings and load: everything but the side.
    step: String,
    /// The load alone, to sort steps.
    load: f64,
    block: u32,
    /// Run id, for messages.
    name: String,
    status: RunStatus,
    /// Responses per second that the started connections request, in an open loop.
    target_rate: Option<f64>,
    /// Values, by metric.
    figures: BTreeMap<String, f64>,
}

/// Compares two arms of an archive.
pub(crate) fn arms(archive: &Archive, a: &Arm, b: &Arm) -> Comparison {
    within(archive, METRICS, (&a.label, &[a]), (&b.label, &[b]))
}

/// Compares the parts of an archive with these names: subjects, arm labels or arm ids.
///
/// # Errors
/// If a name is unknown, or both names mean the same.
pub(crate) fn named(archive: &Archive, metrics: &[&str], a: &str, b: &str) -> Result<Comparison, Failure> {
    let of = |name: &str| {
        let of = called(archive, name);
        if of.is_empty() {
            return Err(Failure::usage(format!(
                "{} has no arm {name:?}; it has {}",
                archive.path().display(),
                choices(archive)
            )));
        }
        Ok(of)
    };
    let (of_a, of_b) = (of(a)?, of(b)?);
    if of_a.iter().any(|arm| of_b.contains(arm)) {
        return Err(Failure::usage(format!(
            "{a:?} and {b:?} select the same arm of {}, which has {}",
            archive.path().display(),
            choices(archive)
        )));
    }
    Ok(within(archive, metrics, (a, &of_a), (b, &of_b)))
}

/// Splits `A,B` into two names of an archive at the comma between two known names: names may contain commas.
///
/// # Errors
/// If there is no such comma, or several.
pub(crate) fn two_names(archive: &Archive, text: &str) -> Result<[String; 2], Failure> {
    let is_known = |name: &str| !called(archive, name).is_empty();
    let split = |(at, _)| [text[..at].trim().to_owned(), text[at + 1..].trim().to_owned()];
    let all: Vec<[String; 2]> = text.match_indices(',').map(split).collect();
    let known: Vec<&[String; 2]> = all.iter().filter(|[a, b]| is_known(a) && is_known(b)).collect();
    let way_out = "or give each with its own flag: --arm A --arm B";
    match (&known[..], &all[..]) {
        ([names], _) => Ok((*names).clone()),
        // With a single comma, the caller reports which of the two names is unknown.
        ([], [names]) if names.iter().all(|name| !name.is_empty()) => Ok(names.clone()),
        ([], _) => Err(Failure::usage(format!(
            "{text:?} does not name two arms of {}, which has {}: write A,B, {way_out}",
            archive.path().display(),
            choices(archive)
        ))),
        _ => Err(Failure::usage(format!(
            "{text:?} can be read as two names in several ways; give each with its own flag: --arm A --arm B"
        ))),
    }
}

fn called<'a>(archive: &'a Archive, name: &str) -> Vec<&'a Arm> {
    archive.resolved.arms.iter().filter(|arm| !arm.is_again && is_called(arm, name)).collect()
}

/// Compares the two arms of an archive that has exactly two.
///
/// # Errors
/// If it has another number of arms; the user must then name two.
pub(crate) fn only_two(archive: &Archive, metrics: &[&str]) -> Result<Comparison, Failure> {
    let arms: Vec<&Arm> = archive.resolved.arms.iter().filter(|arm| !arm.is_again).collect();
    match arms[..] {
        [a, b] => Ok(within(archive, metrics, (&a.label, &[a]), (&b.label, &[b]))),
        _ => Err(Failure::usage(format!(
            "{} has {} arms: select two with --arm A --arm B, of {}; or name a second archive",
            archive.path().display(),
            arms.len(),
            choices(archive)
        ))),
    }
}

/// Returns an archive's noise band of a metric for the median of `pairs` pairs; `None` if nothing
/// was measured twice in a block.
pub(crate) fn noise(archive: &Archive, metric: &str, pairs: usize) -> Option<Band> {
    let runs = taken(archive, &[metric], |arm| (Side::Other, format!("{} {}", arm.subject, settings(arm, |_| true))));
    band(metric, &runs, pairs, true)
}

fn is_called(arm: &Arm, name: &str) -> bool {
    [&arm.id, &arm.label, &arm.subject].into_iter().any(|called| called == name)
}

fn choices(archive: &Archive) -> String {
    let mut names: Vec<&str> = Vec::new();
    let arms = archive.resolved.arms.iter().filter(|arm| !arm.is_again);
    for name in arms.flat_map(|arm| [&arm.subject[..], &arm.label]).filter(|name| !name.is_empty()) {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    names.iter().map(|name| format!("{name:?}")).collect::<Vec<_>>().join(", ")
}

/// Compares arms of one archive, whose blocks contain both.
fn within(archive: &Archive, metrics: &[&str], (a, of_a): (&str, &[&Arm]), (b, of_b): (&str, &[&Arm])) -> Comparison {
    // Factors that distinguish A from B are not part of the step; the others are.
    let told_apart = |factor: &String| {
        let levels =
            |arms: &[&Arm]| arms.iter().filter_map(|arm| arm.levels.get(factor)).cloned().collect::<BTreeSet<_>>();
        levels(of_a) != levels(of_b)
    };
    let is = |arms: &[&Arm], arm: &Arm| arms.iter().any(|one| one.levels == arm.levels && one.subject == arm.subject);
    let place = |arm: &Arm| match (is(of_a, arm), is(of_b, arm)) {
        (true, _) => (Side::A, settings(arm, |factor| !told_apart(factor))),
        (_, true) => (Side::B, settings(arm, |factor| !told_apart(factor))),
        _ => (Side::Other, format!("{} {}", arm.subject, settings(arm, |_| true))),
    };
    let mut comparison = compare(a, b, metrics, &taken(archive, metrics, place), true);
    let has_band = comparison.figures.iter().all(|figure| figure.noise.is_some_and(|band| band.within_blocks));
    if let Some(rules) = relaxed(archive).filter(|_| !has_band) {
        comparison.refuse(format!("{rules}, and without a repetition of the baseline the noise is unknown"));
    }
    comparison
}

/// Compares two archives at the settings that both have.
///
/// # Errors
/// If they do not measure the same: the workloads differ, or they have no load and settings in common.
pub(crate) fn archives(a: &Archive, b: &Archive, metrics: &[&str]) -> Result<Comparison, Failure> {
    // If each archive has a single arm, the arms correspond, whatever their labels.
    let arms = |archive: &Archive| archive.resolved.arms.iter().filter(|arm| !arm.is_again).count();
    let is_single = arms(a) == 1 && arms(b) == 1;
    let cautions = related(a, b, is_single)?;
    let of = |archive, side| taken(archive, metrics, |arm| (side, settings(arm, |_| !is_single)));
    let mut runs = of(a, Side::A);
    runs.extend(of(b, Side::B));
    let name = |archive: &Archive| format!("{} ({})", archive.path().display(), archive.resolved.name);
    let mut comparison = compare(&name(a), &name(b), metrics, &runs, false);
    comparison.cautions.extend(cautions);
    if let Some(rules) = relaxed(a).or_else(|| relaxed(b)) {
        comparison.refuse(format!("{rules}, so both archives include disturbed runs"));
    }
    Ok(comparison)
}

/// Describes the validity rules that are weaker than the defaults; `None` if there are none.
fn relaxed(archive: &Archive) -> Option<String> {
    let (own, usual) = (&archive.resolved.rules, Rules::default());
    let rules = [
        ("others-max", own.others_max, usual.others_max),
        ("idle-max", own.idle_max, usual.idle_max),
        ("drift-max", own.drift_max, usual.drift_max),
        ("counts-max", own.counts_max, usual.counts_max),
        ("little-max", own.little_max, usual.little_max),
    ];
    let weak = rules.into_iter().filter(|(_, own, usual)| *own > usual * 1.000_001);
    let weak: Vec<String> = weak
        .map(|(name, own, usual)| format!("{name} {:.0} % (usually {:.0} %)", own * 100.0, usual * 100.0))
        .collect();
    (!weak.is_empty())
        .then(|| format!("{} was measured with relaxed validity rules: {}", archive.path().display(), weak.join(", ")))
}

/// Checks that two archives measure the same; returns their other differences, one per line.
///
/// # Errors
/// If the load on the server differs, or they have no load and settings in common.
fn related(a: &Archive, b: &Archive, is_single: bool) -> Result<Vec<String>, Failure> {
    let unrelated = |why: String| {
        Failure::usage(format!(
            "{} and {} cannot be compared: {why}; both archives must have the same load and workload, such as two runs \
             of one experiment",
            a.path().display(),
            b.path().display()
        ))
    };
    let names = |archive: &Archive| (archive.resolved.title.clone(), archive.resolved.name.clone());
    let said = |archive: &Archive| match names(archive) {
        (title, name) if title.is_empty() => name,
        (title, name) => format!("{name} ({title})"),
    };
    // Factors that vary within an archive are not a difference between the two.
    let varied: BTreeSet<&String> =
        [a, b].into_iter().flat_map(|archive| &archive.resolved.arms).flat_map(|arm| arm.levels.keys()).collect();
    let differing = differences(a, b);
    let (load, other): (Vec<&Difference>, Vec<&Difference>) = differing.iter().partition(|one| one.is_load());
    let list = |of: &[&Difference]| of.iter().map(|one| one.to_string()).collect::<Vec<_>>().join(", ");
    if !load.is_empty() {
        return Err(unrelated(format!("they differ in load or workload: {}", list(&load))));
    }
    let places = |archive: &Archive| -> BTreeSet<String> {
        let arms = archive.resolved.arms.iter().filter(|arm| !arm.is_again);
        arms.flat_map(|arm| {
            let settings = settings(arm, |_| !is_single);
            archive.resolved.steps_of(arm).iter().map(move |step| place_name(&settings, *step))
        })
        .collect()
    };
    let (of_a, of_b) = (places(a), places(b));
    if of_a.is_disjoint(&of_b) {
        let few = |places: &BTreeSet<String>| {
            let first: Vec<&str> = places.iter().take(4).map(String::as_str).collect();
            format!("{}{}", first.join("; "), if places.len() > 4 { "; ..." } else { "" })
        };
        let factors = varied.iter().map(|name| name.as_str()).collect::<Vec<_>>().join(", ");
        let factors = if factors.is_empty() { String::new() } else { format!(" (factors: {factors})") };
        return Err(unrelated(format!(
            "they have no settings and load in common{factors}: {} has {}, {} has {}",
            said(a),
            few(&of_a),
            said(b),
            few(&of_b)
        )));
    }
    let mut cautions = Vec::new();
    if !other.is_empty() {
        cautions.push(format!("A and B differ in more than their servers: {}", list(&other)));
    }
    let machine = |archive: &Archive| (archive.host.machine.cpu.clone(), archive.host.machine.cores);
    if machine(a) != machine(b) {
        let ((cpu_a, cores_a), (cpu_b, cores_b)) = (machine(a), machine(b));
        cautions.push(format!(
            "A and B were measured on different machines: {cores_a} cores {cpu_a}, {cores_b} cores {cpu_b}"
        ));
    }
    Ok(cautions)
}

/// A setting that differs between two archives.
struct Difference {
    key: String,
    a: String,
    b: String,
}

impl Difference {
    /// Whether the setting is part of the load, rather than of the place and way the server runs.
    fn is_load(&self) -> bool {
        // The duration affects only the precision of the figures.
        if ["load.duration", "load.warm-up"].contains(&&self.key[..]) {
            return false;
        }
        ["workload", "load", "requests-per-connection"]
            .iter()
            .any(|part| self.key == *part || self.key.strip_prefix(part).is_some_and(|rest| rest.starts_with('.')))
    }
}

impl std::fmt::Display for Difference {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {} in A and {} in B", self.key, self.a, self.b)
    }
}

/// Returns the settings that differ between the baselines of two archives, except the server's own,
/// the load steps and descriptive texts.
fn differences(a: &Archive, b: &Archive) -> Vec<Difference> {
    // These affect precision or procedure, but not the meaning of a figure.
    const IGNORED: [&str; 12] = [
        "subject",
        "server",
        "factor",
        "repetitions",
        "design",
        "again",
        "quick",
        "seed",
        "hosts",
        "monitor",
        "validity",
        "programs",
    ];
    let flat = |archive: &Archive| {
        let mut flat = BTreeMap::new();
        flat.insert("requests-per-connection".to_owned(), archive.resolved.requests_per_connection.to_string());
        let baseline = archive.resolved.arms.first();
        if let Some(table) = baseline.and_then(|arm| arm.settings.parse::<toml::Table>().ok()) {
            flatten("", &toml::Value::Table(without_words(table)), &mut flat);
        }
        // Exclude the load steps: those that both have are compared.
        flat.retain(|key, _| {
            let first = key.split('.').next().unwrap_or(key);
            !IGNORED.contains(&first) && !["load.rate", "load.clients"].contains(&&key[..])
        });
        flat
    };
    // A factor of either archive is compared level by level.
    let is_varied = |key: &str| {
        let name = key.rsplit('.').next().unwrap_or(key);
        let factors = [a, b].into_iter().flat_map(|archive| &archive.resolved.factors);
        factors.into_iter().any(|factor| factor.name == name || factor.name == key)
    };
    let (of_a, of_b) = (flat(a), flat(b));
    let keys: BTreeSet<&String> = of_a.keys().chain(of_b.keys()).collect();
    let of = |map: &BTreeMap<String, String>, key: &str| map.get(key).cloned().unwrap_or_else(|| "not set".to_owned());
    let pairs = keys.into_iter().filter(|key| !is_varied(key));
    let pairs = pairs.map(|key| Difference { key: key.clone(), a: of(&of_a, key), b: of(&of_b, key) });
    pairs.filter(|one| one.a != one.b).collect()
}

fn settings(arm: &Arm, counts: impl Fn(&String) -> bool) -> String {
    let levels = arm.levels.iter().filter(|(factor, _)| counts(factor));
    levels.map(|(factor, level)| format!("{factor} {level}, ")).collect()
}

/// Names settings and load of a run; runs of A and B are paired by this name.
fn place_name(settings: &str, step: Load) -> String {
    match step {
        Load::Rate(rate) => format!("{settings}{rate}/s"),
        Load::Clients(clients) => format!("{settings}{clients} clients"),
    }
}

/// Collects the runs of an archive, with the side and settings that `place` gives to their arms.
fn taken(archive: &Archive, metrics: &[&str], place: impl Fn(&Arm) -> (Side, String)) -> Vec<Taken> {
    let take = |run: &archive::Run| {
        let (side, settings) = place(archive.arm(&run.plan.arm)?);
        let summary = run.summary.as_ref();
        let requests = archive.resolved.requests_per_connection;
        // The rate is always needed: it shows whether the server kept up with the load.
        let value = |name: &&str| Some(((*name).to_owned(), summary?.metric(name)?));
        Some(Taken {
            side,
            step: place_name(&settings, run.plan.step),
            load: run.plan.step.value(),
            block: run.plan.block,
            name: run.plan.id.clone(),
            status: run.status,
            target_rate: summary
                .filter(|summary| requests > 0 && summary.target_rate.is_some())
                .map(|summary| summary.offered_rate * requests as f64),
            figures: metrics.iter().chain([&RATE]).filter_map(value).collect(),
        })
    };
    archive.last_attempts().filter_map(take).collect()
}

/// Result of a comparison.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Comparison {
    /// Name of A.
    pub(crate) a: String,
    /// Name of B.
    pub(crate) b: String,
    /// Whether any metric differs.
    pub(crate) finding: Finding,
    /// Why there is no verdict, regardless of the figures; `None` if there is one.
    pub(crate) refused: Option<String>,
    /// The metrics that both sides have.
    pub(crate) figures: Vec<Compared>,
    /// Runs and steps that were not used, with the reason, one per line.
    pub(crate) left_out: Vec<String>,
    /// Caveats about the whole comparison, one per line.
    pub(crate) cautions: Vec<String>,
}

/// Comparison of one metric.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Compared {
    /// Name, as in `archive::Summary::metric`.
    pub(crate) figure: String,
    /// Median over the paired runs of A.
    pub(crate) a: f64,
    /// Median over the paired runs of B.
    pub(crate) b: f64,
    pub(crate) pairs: usize,
    /// B / A.
    pub(crate) ratio: Interval,
    /// Noise band; `None` if nothing was measured twice.
    pub(crate) noise: Option<Band>,
    pub(crate) finding: Finding,
    /// Why nothing was decided, if the finding is undecided.
    pub(crate) lack: Option<Lack>,
    /// The ratios of each step.
    pub(crate) steps: Vec<Step>,
}

/// A median and its confidence interval.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Interval {
    pub(crate) low: f64,
    pub(crate) median: f64,
    pub(crate) high: f64,
    /// Probability that the interval contains the true median.
    pub(crate) coverage: f64,
}

impl From<Summary> for Interval {
    fn from(Summary { low, median, high, coverage }: Summary) -> Interval {
        Interval { low, median, high, coverage }
    }
}

/// Ratios at one step.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Step {
    pub(crate) step: String,
    pub(crate) pairs: usize,
    /// B / A.
    pub(crate) ratio: Interval,
}

/// Noise band: the range of the median of as many pairs, in 95 of 100 cases, without a difference.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Band {
    pub(crate) low: f64,
    pub(crate) high: f64,
    /// Number of A/A pairs from which the band was computed.
    pub(crate) pairs: usize,
    /// Whether these pairs were in the same block; otherwise they are as far apart as the blocks.
    pub(crate) within_blocks: bool,
}

/// Result of a test.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Finding {
    /// Too few pairs.
    Undecided,
    /// No difference larger than the noise.
    NoDifference,
    /// A difference larger than the noise.
    Difference,
}

/// What a comparison lacks for a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Lack {
    /// Pairs of runs, for the confidence level.
    Pairs,
    /// Repetitions of each of two archives, for the noise between them.
    Repetitions,
}

/// The minimum repetitions of each of two archives.
const REPETITIONS_MIN: usize = 3;

/// Confidence level of a whole comparison.
const LEVEL: f64 = COVERAGE_MIN;

/// Compares A and B. `interleaved`: they were measured in the same blocks.
fn compare(a: &str, b: &str, metrics: &[&str], runs: &[Taken], interleaved: bool) -> Comparison {
    let of_these = || runs.iter().filter(|run| run.side != Side::Other);
    let mut left_out: Vec<String> = of_these()
        .filter_map(|run| match run.status {
            RunStatus::Valid => None,
            RunStatus::Censored => Some(format!("{}: its rate is a lower bound, and is not compared", run.name)),
            RunStatus::Invalid => Some(format!("{}: invalid, and not compared", run.name)),
        })
        .collect();
    let steps = |side| runs.iter().filter(move |run| run.side == side).map(|run| run.step.as_str());
    let (of_a, of_b): (BTreeSet<&str>, BTreeSet<&str>) = (steps(Side::A).collect(), steps(Side::B).collect());
    left_out.extend(of_a.symmetric_difference(&of_b).map(|step| {
        let whose = if of_a.contains(step) { a } else { b };
        format!("{step}: only {whose} has this step")
    }));
    let paired = metrics.iter().map(|metric| (*metric, pairs(metric, runs)));
    let paired: Vec<(&str, Vec<Pair<'_>>)> = paired.filter(|(_, pairs)| !pairs.is_empty()).collect();
    let level = 1.0 - (1.0 - LEVEL) / paired.len().max(1) as f64;
    let figures = paired.into_iter().filter_map(|(metric, pairs)| compared(metric, &pairs, runs, level, interleaved));
    let figures: Vec<Compared> = figures.collect();
    let mut cautions = Vec::new();
    if !interleaved {
        let text = "A and B were not interleaved: the ratios include changes of the machine between them";
        cautions.push(text.to_owned());
    }
    if figures.is_empty() {
        cautions.push("no run of A has a counterpart with results in B: the same step, in the same block".to_owned());
    } else if interleaved && figures.iter().all(|figure| figure.noise.is_none()) {
        let text = "no noise band: too few repetitions within blocks; repeat the baseline in the plan (A/A)";
        cautions.push(text.to_owned());
    }
    let finding = figures.iter().map(|figure| figure.finding).max().unwrap_or(Finding::Undecided);
    Comparison { a: a.to_owned(), b: b.to_owned(), finding, refused: None, figures, left_out, cautions }
}

/// A run of A and the corresponding run of B.
struct Pair<'a> {
    step: &'a str,
    block: u32,
    a: f64,
    b: f64,
}

impl Pair<'_> {
    fn ratio(&self) -> f64 {
        self.b / self.a
    }
}

/// Returns a metric of one side's runs by step and block, in run order.
fn by_place<'a>(metric: &str, side: Side, runs: &'a [Taken]) -> BTreeMap<(&'a str, u32), Vec<f64>> {
    let mut places: BTreeMap<(&str, u32), Vec<f64>> = BTreeMap::new();
    for run in runs.iter().filter(|run| run.side == side) {
        if run.status == RunStatus::Invalid || run.status == RunStatus::Censored && LOWER_BOUNDS.contains(&metric) {
            continue;
        }
        // A ratio to 0 is undefined.
        if let Some(value) = run.figures.get(metric).filter(|value| value.is_finite() && **value > 0.0) {
            places.entry((run.step.as_str(), run.block)).or_default().push(*value);
        }
    }
    places
}

fn pairs<'a>(metric: &str, runs: &'a [Taken]) -> Vec<Pair<'a>> {
    let mut of_b = by_place(metric, Side::B, runs);
    let mut pairs = Vec::new();
    for (place, of_a) in by_place(metric, Side::A, runs) {
        let of_b = of_b.remove(&place).unwrap_or_default();
        pairs.extend(of_a.into_iter().zip(of_b).map(|(a, b)| Pair { step: place.0, block: place.1, a, b }));
    }
    if AS_OFFERED.contains(&metric) {
        // If both sides keep up, these metrics equal the offered load and do not distinguish the servers.
        let full: BTreeSet<&str> =
            pairs.iter().map(|pair| pair.step).filter(|step| !is_sustained(step, runs)).collect();
        if !full.is_empty() {
            pairs.retain(|pair| full.contains(pair.step));
        }
    }
    pairs
}

/// Whether both sides answered nearly the whole offered load at this step.
fn is_sustained(step: &str, runs: &[Taken]) -> bool {
    const SUSTAINED_MIN: f64 = 0.98;
    [Side::A, Side::B].into_iter().all(|side| {
        let of_it = runs.iter().filter(|run| run.side == side && run.step == step && run.status == RunStatus::Valid);
        let shares = of_it.filter_map(|run| Some(run.figures.get(RATE)? / run.target_rate?));
        Summary::of(shares).is_some_and(|share| share.median >= SUSTAINED_MIN)
    })
}

fn compared(figure: &str, pairs: &[Pair<'_>], runs: &[Taken], level: f64, interleaved: bool) -> Option<Compared> {
    let ratio = Summary::at(level, pairs.iter().map(Pair::ratio))?;
    let noise = band(figure, runs, pairs.len(), interleaved);
    let blocks: BTreeSet<u32> = pairs.iter().map(|pair| pair.block).collect();
    let lack = if ratio.coverage < level {
        Some(Lack::Pairs)
    } else if !interleaved && (noise.is_none() || blocks.len() < REPETITIONS_MIN) {
        Some(Lack::Repetitions)
    } else {
        None
    };
    let finding = if lack.is_some() { Finding::Undecided } else { judge(&ratio, noise.as_ref()) };
    let mut steps: Vec<&str> = pairs.iter().map(|pair| pair.step).collect();
    steps.dedup();
    let load = |step: &str| runs.iter().find(|run| run.step == step).map_or(0.0, |run| run.load);
    // The sort is stable: steps of equal load stay in name order.
    steps.sort_by(|one, other| load(one).total_cmp(&load(other)));
    let step = |step: &str| {
        let ratios: Vec<f64> = pairs.iter().filter(|pair| pair.step == step).map(Pair::ratio).collect();
        let pairs = ratios.len();
        Some(Step { step: step.to_owned(), pairs, ratio: Summary::of(ratios)?.into() })
    };
    Some(Compared {
        figure: figure.to_owned(),
        a: Summary::of(pairs.iter().map(|pair| pair.a))?.median,
        b: Summary::of(pairs.iter().map(|pair| pair.b))?.median,
        pairs: pairs.len(),
        ratio: ratio.into(),
        noise,
        finding,
        lack,
        steps: steps.into_iter().filter_map(step).collect(),
    })
}

/// Reports a difference if the interval excludes 1 and the median is outside the noise band.
fn judge(ratio: &Summary, noise: Option<&Band>) -> Finding {
    let is_one = ratio.low <= 1.0 && 1.0 <= ratio.high;
    let is_noise = noise.is_some_and(|band| band.low <= ratio.median && ratio.median <= band.high);
    if is_one || is_noise { Finding::NoDifference } else { Finding::Difference }
}

/// Returns the noise band for the median of `count` pairs. If A and B were measured in the same blocks, runs
/// of one side at the same step and block are A/A pairs. Otherwise the blocks of one side are: see [`drift`].
fn band(metric: &str, runs: &[Taken], count: usize, interleaved: bool) -> Option<Band> {
    const DRAWS: usize = 500;
    const PAIRS_MIN: usize = 3;
    if !interleaved {
        return drift(metric, runs);
    }
    let mut logs: Vec<f64> = Vec::new();
    for side in [Side::A, Side::B, Side::Other] {
        for values in by_place(metric, side, runs).values() {
            logs.extend(values.chunks_exact(2).map(|pair| (pair[0] / pair[1]).ln()));
        }
    }
    if logs.len() < PAIRS_MIN {
        return None;
    }
    // Fixed seed: a comparison must be a function of its input.
    let mut random = Random(1);
    let mut medians: Vec<f64> = (0..DRAWS)
        .filter_map(|_| {
            let draw = (0..count).map(|_| {
                let log = logs[random.below(logs.len())];
                if random.below(2) == 0 { log } else { -log }
            });
            Summary::of(draw.collect::<Vec<_>>()).map(|drawn| drawn.median.abs())
        })
        .collect();
    medians.sort_by(f64::total_cmp);
    let wide = medians[(medians.len() as f64 * LEVEL) as usize].exp();
    Some(Band { low: 1.0 / wide, high: wide, pairs: logs.len(), within_blocks: true })
}

/// Returns the largest shift between two blocks of one side, over all its steps, times 2. The centres of
/// two archives of n blocks are at least n blocks apart, but the ends of one only n - 1, so a slow change
/// is larger between the archives than within them. Besides, a few blocks do not show how far others may
/// deviate. In simulations of three blocks each that deviate independently, the median of the ratios
/// exceeds the largest shift in 5.8 % of cases, 1.5 times that shift in 1.6 % (6 % for four metrics), and
/// twice that shift in 0.5 %; with random walks, in 27 %, 10 % and 4 %.
fn drift(metric: &str, runs: &[Taken]) -> Option<Band> {
    const BEYOND: f64 = 2.0;
    let (mut widest, mut pairs) = (0.0_f64, 0);
    for side in [Side::A, Side::B] {
        let mut blocks: BTreeMap<u32, BTreeMap<&str, f64>> = BTreeMap::new();
        for ((step, block), values) in by_place(metric, side, runs) {
            blocks.entry(block).or_default().extend(median(values).map(|value| (step, value)));
        }
        let blocks: Vec<BTreeMap<&str, f64>> = blocks.into_values().collect();
        for (at, one) in blocks.iter().enumerate() {
            for other in &blocks[at + 1..] {
                let logs = one.iter().filter_map(|(step, value)| Some((other.get(step)? / value).ln()));
                if let Some(shift) = median(logs) {
                    widest = widest.max(shift.abs());
                    pairs += 1;
                }
            }
        }
    }
    let wide = (BEYOND * widest).exp();
    (pairs > 0).then_some(Band { low: 1.0 / wide, high: wide, pairs, within_blocks: false })
}

impl Comparison {
    /// Withdraws the verdict: the figures stay, but no conclusion is drawn.
    fn refuse(&mut self, why: String) {
        self.finding = Finding::Undecided;
        self.figures.iter_mut().for_each(|figure| figure.finding = Finding::Undecided);
        self.refused = Some(why);
    }

    /// Returns the summary sentence.
    pub(crate) fn sentence(&self) -> String {
        if let Some(why) = &self.refused {
            return format!("No verdict: {why}.");
        }
        let differences = self.figures.iter().filter(|figure| figure.finding == Finding::Difference);
        let differences: Vec<String> =
            differences.map(|figure| format!("{} {}", figure.name(), figure.ratio_text())).collect();
        match self.finding {
            Finding::Difference => format!("{} differs from {}: {}.", self.b, self.a, differences.join("; ")),
            Finding::NoDifference => {
                format!("No difference: in every metric {} differs from {} by no more than the noise.", self.b, self.a)
            }
            Finding::Undecided if self.figures.iter().any(|figure| figure.lack == Some(Lack::Repetitions)) => format!(
                "Undecided: each archive needs {REPETITIONS_MIN} repetitions, as a change of the machine between them would \
                 look like a difference."
            ),
            Finding::Undecided => "Undecided: too few pairs to distinguish a difference from noise.".to_owned(),
        }
    }

    /// Formats the comparison as text.
    pub(crate) fn text(&self) -> String {
        let mut text = format!("{}\n\n  A  {}\n  B  {}\n", self.sentence(), self.a, self.b);
        if !self.figures.is_empty() {
            let _ = writeln!(
                text,
                "\n{:<36} {:>10} {:>10} {:>8}   {:<18} {:>5}   {:<18} finding",
                "figure", "A", "B", "B / A", "interval", "pairs", "noise band"
            );
        }
        for figure in &self.figures {
            let Compared { a, b, pairs, ratio, noise, .. } = figure;
            let noise =
                noise.map_or_else(|| "not measured".to_owned(), |band| format!("{:.3} .. {:.3}", band.low, band.high));
            let line = format!(
                "{:<36} {a:>10.3} {b:>10.3} {:>8.3}   {:<18} {pairs:>5}   {noise:<18} {}",
                figure.name(),
                ratio.median,
                format!("{:.3} .. {:.3}", ratio.low, ratio.high),
                if self.refused.is_some() { "no verdict".to_owned() } else { figure.ratio_text() }
            );
            let _ = writeln!(text, "{}", line.trim_end());
        }
        for figure in self.figures.iter().filter(|figure| figure.steps.len() > 1) {
            let _ = writeln!(text, "\n{}, by step", figure.name());
            for Step { step, pairs, ratio } in &figure.steps {
                let Interval { low, median, high, .. } = ratio;
                let _ = writeln!(text, "  {step:<40} {median:>8.3}   {low:.3} .. {high:.3}   pairs: {pairs}");
            }
        }
        if let Some(figure) = self.figures.first() {
            let _ = writeln!(
                text,
                "\nIntervals of the median of the ratios; coverage {:.2} % for {} pairs.",
                figure.ratio.coverage * 100.0,
                figure.pairs
            );
        }
        for line in self.cautions.iter().chain(&self.left_out) {
            let _ = writeln!(text, "{line}");
        }
        text
    }
}

impl Compared {
    /// Returns the display name.
    pub(crate) fn name(&self) -> String {
        let known = archive::Summary::described(&self.figure);
        known.map_or_else(|| self.figure.to_owned(), |(unit, meaning)| format!("{meaning}, {unit}"))
    }

    /// Formats the finding.
    pub(crate) fn ratio_text(&self) -> String {
        let times = self.ratio.median;
        match self.finding {
            // Above that, the ratio is easier to read than a percentage.
            Finding::Difference if !(0.5..=2.0).contains(&times) => format!("{times:.2} times"),
            Finding::Difference => format!("{:+.1} %", (times - 1.0) * 100.0),
            Finding::NoDifference => "no difference".to_owned(),
            Finding::Undecided => format!("undecided: {}", self.lack_text()),
        }
    }

    /// Says what is missing for a decision.
    pub(crate) fn lack_text(&self) -> String {
        match self.lack {
            Some(Lack::Repetitions) => "too few repetitions".to_owned(),
            Some(Lack::Pairs) | None => format!("{} pairs are too few", self.pairs),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Normally distributed: the sum of twelve uniform numbers.
    fn normal(random: &mut Random) -> f64 {
        (0..12).map(|_| random.fraction()).sum::<f64>() - 6.0
    }

    /// A synthetic experiment: blocks differ by 5 %, runs within a block by 2 %. B needs `factor` times
    /// the CPU time of A, and A has two runs per step and block.
    fn experiment(seed: u64, blocks: u32, factor: f64) -> Vec<Taken> {
        let mut random = Random(seed);
        let mut runs = Vec::new();
        for block in 0..blocks {
            let common = 0.05 * normal(&mut random);
            for (step, rate) in [1000.0, 2000.0, 4000.0].into_iter().enumerate() {
                for side in [Side::A, Side::B, Side::A] {
                    let mut noisy = |sd: f64| (common + sd * normal(&mut random)).exp();
                    let times = if side == Side::B { factor } else { 1.0 };
                    let figures = [
                        ("cpu-per-reply", 10.0 * times * noisy(0.02)),
                        ("rate", rate * (1.0 + 0.0005 * (noisy(0.1) - 1.0))),
                        ("p50", noisy(0.05)),
                        ("p99", 4.0 * noisy(0.3)),
                    ];
                    let figures = figures.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
                    runs.push(Taken {
                        side,
                        step: format!("{step}"),
                        load: rate,
                        block,
                        name: format!("run {}", runs.len()),
                        status: RunStatus::Valid,
                        target_rate: Some(rate),
                        figures,
                    });
                }
            }
        }
        runs
    }

    fn finding(runs: &[Taken], figure: &str) -> (Finding, f64) {
        let compared = compare("a", "b", METRICS, runs, true);
        let found = compared.figures.iter().find(|compared| compared.figure == figure).unwrap();
        (found.finding, found.ratio.median)
    }

    #[test]
    fn equal_servers_show_no_difference_in_95_percent() {
        let found = (0..200).filter(|seed| {
            let runs = experiment(*seed, 5, 1.0);
            compare("a", "b", METRICS, &runs, true).finding == Finding::Difference
        });
        let found = found.count();
        assert!(found <= 10, "a difference in {found} of 200");
    }

    #[test]
    fn planted_difference_of_five_percent_is_detected() {
        for factor in [1.05, 1.0 / 1.05] {
            let found = (0..100).filter(|seed| {
                let (finding, ratio) = finding(&experiment(1000 + seed, 6, factor), "cpu-per-reply");
                finding == Finding::Difference && (ratio - factor).abs() < 0.03
            });
            let found = found.count();
            assert!(found >= 95, "found in {found} of 100");
        }
    }

    /// How the blocks of two archives deviate.
    #[derive(Clone, Copy, Debug)]
    enum Blocks {
        /// Each independently, with this standard deviation.
        Independent(f64),
        /// Each from the one before, with this standard deviation; the walk continues from the
        /// first archive to the second.
        Walk(f64),
    }

    /// Two archives of the same server, measured one after the other: twenty arms, a deviation of each block that all
    /// its runs share, and a deviation of 1 % of each run, independent in each metric.
    fn two_archives(seed: u64, repetitions: u32, deviation: Blocks) -> Vec<Taken> {
        let mut random = Random(seed);
        let (mut runs, mut common) = (Vec::new(), [0.0; METRICS.len()]);
        for (side, block) in
            [Side::A, Side::B].into_iter().flat_map(|side| (1..=repetitions).map(move |block| (side, block)))
        {
            for common in &mut common {
                *common = match deviation {
                    Blocks::Independent(sd) => sd * normal(&mut random),
                    Blocks::Walk(sd) => *common + sd * normal(&mut random),
                };
            }
            for arm in 0..20 {
                let value = |(name, common): (&&str, &f64)| {
                    ((*name).to_owned(), 100.0 * (common + 0.01 * normal(&mut random)).exp())
                };
                runs.push(Taken {
                    side,
                    step: format!("arm {arm}"),
                    load: 1.0,
                    block,
                    name: format!("run {}", runs.len()),
                    status: RunStatus::Valid,
                    target_rate: None,
                    figures: METRICS.iter().zip(&common).map(value).collect(),
                });
            }
        }
        runs
    }

    /// Number of comparisons of 200 that find a difference where there is none.
    fn false_positives(metrics: &[&str], is_interleaved: bool, of: impl Fn(u64) -> Vec<Taken>) -> usize {
        let finds = |seed: &u64| compare("a", "b", metrics, &of(*seed), is_interleaved).finding == Finding::Difference;
        (0..200).filter(finds).count()
    }

    #[test]
    fn archives_of_same_server_show_no_difference_in_95_percent() {
        let one = &METRICS[..1];
        let cases = [
            (one, Blocks::Independent(0.03)),
            (METRICS, Blocks::Independent(0.03)),
            (METRICS, Blocks::Independent(0.003)),
            (one, Blocks::Walk(0.03)),
        ];
        // With three repetitions and a random walk the rate is 4 %: up to 9 % of 200 by chance.
        for repetitions in 1..=6 {
            for (metrics, blocks) in cases {
                let found = false_positives(metrics, false, |seed| two_archives(seed, repetitions, blocks));
                let most = if matches!(blocks, Blocks::Walk(_)) { 18 } else { 10 };
                assert!(found <= most, "{repetitions} repetitions, {metrics:?}, {blocks:?}: {found} of 200");
            }
        }
    }

    #[test]
    fn arms_of_one_archive_show_no_difference_in_95_percent() {
        for repetitions in 1..=6 {
            // Both sides have the same blocks, whose deviations cancel. No arm was measured twice.
            let found = false_positives(METRICS, true, |seed| {
                let mut runs = two_archives(seed, repetitions, Blocks::Independent(0.0));
                let mut random = Random(seed);
                let common: Vec<f64> = (0..=repetitions).map(|_| (0.03 * normal(&mut random)).exp()).collect();
                for run in &mut runs {
                    run.figures.values_mut().for_each(|value| *value *= common[run.block as usize]);
                }
                runs
            });
            // Up to 9 % of 200 by chance.
            assert!(found <= 18, "{repetitions} repetitions: {found} of 200");
        }
    }

    #[test]
    fn archives_need_three_repetitions() {
        let of = |repetitions, times: f64| {
            let mut runs = two_archives(1, repetitions, Blocks::Independent(0.003));
            runs.iter_mut().filter(|run| run.side == Side::B).for_each(|run| {
                run.figures.values_mut().for_each(|value| *value *= times);
            });
            compare("a", "b", METRICS, &runs, false)
        };
        // Many pairs, but one or two blocks of each: a change of the machine would look the same.
        for repetitions in [1, 2] {
            let compared = of(repetitions, 1.2);
            assert_eq!(compared.finding, Finding::Undecided);
            let text = compared.text();
            assert!(text.starts_with("Undecided: each archive needs 3 repetitions"), "{text}");
            assert!(text.contains("undecided: too few repetitions") && !text.contains("(A/A)"), "{text}");
        }
        assert_eq!(of(3, 1.2).finding, Finding::Difference);
    }

    #[test]
    fn archives_not_interleaved_have_interval_as_wide_as_drift() {
        let runs = experiment(3, 6, 1.05);
        let turned = compare("a", "b", METRICS, &runs, true);
        let apart = compare("a", "b", METRICS, &runs, false);
        let wide = |compared: &Comparison| compared.figures[0].noise.unwrap().high;
        assert!(wide(&apart) > wide(&turned), "{} and {}", wide(&apart), wide(&turned));
        assert!(apart.cautions[0].contains("not interleaved") && turned.cautions.is_empty());
    }

    #[test]
    fn too_few_pairs_are_undecided() {
        let mut runs = experiment(1, 2, 2.0);
        let (found, ratio) = finding(&runs, "cpu-per-reply");
        assert_eq!(found, Finding::Undecided, "{ratio}");
        assert!(compare("a", "b", METRICS, &runs, true).sentence().starts_with("Undecided"));
        runs.clear();
        let nothing = compare("a", "b", METRICS, &runs, true);
        assert!(nothing.finding == Finding::Undecided && nothing.cautions[0].contains("no run of A"));
    }

    #[test]
    fn unusable_runs_are_excluded_and_named() {
        let mut runs = experiment(1, 5, 1.0);
        let pairs = |runs: &[Taken], figure: &str| {
            let compared = compare("a", "b", METRICS, runs, true);
            compared.figures.iter().find(|compared| compared.figure == figure).unwrap().pairs
        };
        assert_eq!((pairs(&runs, "cpu-per-reply"), pairs(&runs, "rate")), (15, 15));
        // The second of the nine is the block's only run of B at this step.
        runs[1].status = RunStatus::Censored;
        runs[10].status = RunStatus::Invalid;
        assert_eq!((pairs(&runs, "cpu-per-reply"), pairs(&runs, "rate")), (14, 13));
        let compared = compare("a", "b", METRICS, &runs, true);
        assert_eq!(
            compared.left_out,
            ["run 1: its rate is a lower bound, and is not compared", "run 10: invalid, and not compared"]
        );
        runs[1].step = "other".to_owned();
        assert!(
            compare("a", "b", METRICS, &runs, true).left_out.iter().any(|line| line == "other: only b has this step")
        );
    }

    #[test]
    fn text_starts_with_verdict_and_gives_figures() {
        let text = compare("nginx", "amped", METRICS, &experiment(5, 8, 0.5), true).text();
        let (first, rest) = text.split_once('\n').unwrap();
        assert!(first.starts_with("amped differs from nginx: server CPU time per response, us 0."), "{text}");
        for part in ["A  nginx", "B  amped", "no difference", "noise band", "by step", "24 pairs"] {
            assert!(rest.contains(part), "{part} is not in {text}");
        }
    }

    #[test]
    fn throughput_is_compared_when_one_arm_falls_behind() {
        let mut runs = experiment(2, 8, 1.0);
        for run in runs.iter_mut().filter(|run| run.step == "2") {
            let times = if run.side == Side::B { 0.5 } else { 0.7 };
            run.figures.entry("rate".to_owned()).and_modify(|rate| *rate *= times);
        }
        let compared = compare("a", "b", METRICS, &runs, true);
        let rate = compared.figures.iter().find(|compared| compared.figure == "rate").unwrap();
        assert_eq!((rate.pairs, rate.finding, rate.steps.len()), (8, Finding::Difference, 1));
        assert!((rate.ratio.median - 5.0 / 7.0).abs() < 0.01, "{}", rate.ratio.median);
    }

    #[test]
    fn arms_are_selected_by_label_subject_or_id() {
        let archive = crate::report::tests::archive(std::path::Path::new("dir"), 4);
        let compared = named(&archive, METRICS, "log off", "a1").unwrap();
        assert_eq!((compared.finding, &compared.figures[0].figure[..]), (Finding::Difference, "cpu-per-reply"));
        // Baseline and repetition are A/A pairs: one per block and step, except for the lower bound.
        assert_eq!(compared.figures[0].noise.map(|band| (band.pairs, band.within_blocks)), Some((12, true)));
        assert_eq!(
            only_two(&archive, METRICS).unwrap().text(),
            arms(&archive, &archive.resolved.arms[0], &archive.resolved.arms[1]).text()
        );
        let fails = |a: &str, b: &str, part: &str| {
            let error = named(&archive, METRICS, a, b).unwrap_err();
            assert!(error.exit_status() == 2 && error.to_string().contains(part), "{error}");
        };
        fails("log off", "h2o", "no arm \"h2o\"; it has \"nginx\", \"log off\", \"log on\"");
        fails("nginx", "log on", "select the same arm");
        let mut three = archive.clone();
        three.resolved.arms.push(Arm { id: "a2".to_owned(), label: "log far away".to_owned(), ..Arm::default() });
        assert!(
            only_two(&three, METRICS).unwrap_err().to_string().contains("has 3 arms: select two with --arm A --arm B")
        );
    }

    #[test]
    fn arms_with_same_settings_in_two_archives_are_compared() {
        let before = crate::report::tests::archive(std::path::Path::new("before"), 4);
        let mut after = crate::report::tests::archive(std::path::Path::new("after"), 4);
        for run in &mut after.runs {
            let summary = run.summary.as_mut().unwrap();
            summary.server.cpu_s = summary.server.cpu_s.map(|cpu_s| cpu_s * 1.2);
        }
        let compared = archives(&before, &after, METRICS).unwrap();
        let cpu = &compared.figures[0];
        // 36 runs of each; the same one is invalid on both sides.
        assert_eq!((cpu.pairs, cpu.steps.len(), cpu.finding), (35, 6, Finding::Difference));
        assert!((cpu.ratio.median - 1.2).abs() < 1e-9 && !cpu.noise.unwrap().within_blocks, "{cpu:?}");
        assert!(compared.cautions[0].contains("not interleaved"));
        let same = archives(&before, &before, METRICS).unwrap();
        assert_eq!(same.finding, Finding::NoDifference);
        assert!(same.sentence().starts_with("No difference"));
    }

    #[test]
    fn relaxed_validity_gives_no_verdict_across_archives() {
        let before = crate::report::tests::archive(std::path::Path::new("before"), 8);
        let mut after = before.clone();
        after.resolved.rules = Rules { others_max: 10.0, idle_max: 10.0, ..Rules::default() };
        for run in &mut after.runs {
            let summary = run.summary.as_mut().unwrap();
            summary.server.cpu_s = summary.server.cpu_s.map(|cpu_s| cpu_s * 1.2);
        }
        for (a, b) in [(&before, &after), (&after, &before)] {
            let compared = archives(a, b, METRICS).unwrap();
            assert_eq!(compared.finding, Finding::Undecided);
            assert!(compared.figures.iter().all(|figure| figure.finding == Finding::Undecided));
            let text = compared.text();
            assert!(text.starts_with("No verdict: "), "{text}");
            for part in ["others-max 1000 % (usually 10 %), idle-max 1000 %", "B / A", "no verdict"] {
                assert!(text.contains(part), "{part} is not in {text}");
            }
        }
        // Stricter rules are not relaxed rules.
        after.resolved.rules = Rules { others_max: 0.01, ..Rules::default() };
        assert_eq!(archives(&before, &after, METRICS).unwrap().finding, Finding::Difference);
    }

    #[test]
    fn relaxed_validity_within_archive_needs_baseline_twice() {
        let mut archive = crate::report::tests::archive(std::path::Path::new("dir"), 8);
        archive.resolved.rules = Rules { others_max: 10.0, ..Rules::default() };
        assert_eq!(only_two(&archive, METRICS).unwrap().finding, Finding::Difference, "A/A pairs show the noise");
        archive.runs.retain(|run| run.plan.arm != "aa");
        let compared = only_two(&archive, METRICS).unwrap();
        assert!(
            compared.finding == Finding::Undecided
                && compared.sentence().contains("without a repetition of the baseline"),
            "{}",
            compared.text()
        );
    }

    #[test]
    fn drift_alone_is_no_difference() {
        let drifting = |seed: u64, by: f64| {
            let mut runs = experiment(seed, 6, 1.0);
            for run in &mut runs {
                // Each block is slower than the one before, and B comes after A.
                let late = f64::from(run.block) + if run.side == Side::B { 6.0 } else { 0.0 };
                let times = (by * late).exp();
                run.figures.values_mut().for_each(|value| *value *= times);
            }
            compare("a", "b", METRICS, &runs, false)
        };
        let found = (0..40).filter(|seed| drifting(*seed, 0.03).finding == Finding::Difference).count();
        assert!(found <= 8, "a difference in {found} of 40 pairs that differ only in time");
    }

    #[test]
    fn unrelated_archives_are_rejected_with_differences() {
        let one = crate::report::tests::archive(std::path::Path::new("one"), 4);
        let fails = |change: &dyn Fn(&mut Archive), parts: &[&str]| {
            let mut other = one.clone();
            other.dir = "two".into();
            change(&mut other);
            let error = archives(&one, &other, METRICS).unwrap_err();
            assert_eq!(error.exit_status(), 2);
            for part in ["one and two cannot be compared", "two runs of one experiment"].iter().chain(parts) {
                assert!(error.to_string().contains(part), "{part} is not in {error}");
            }
        };
        let settings =
            |text: &'static str| move |archive: &mut Archive| archive.resolved.arms[0].settings.push_str(text);
        fails(&settings("[workload]\nfile = \"1MiB\"\n"), &["workload.file not set in A and 1MiB in B"]);
        fails(&settings("[load]\ntimeout = \"5s\"\n"), &["load.timeout not set in A and 5s in B"]);
        fails(&|archive| archive.resolved.requests_per_connection = 8, &["requests-per-connection 1 in A and 8 in B"]);
        let other_ladder = |archive: &mut Archive| archive.resolved.steps = vec![Load::Clients(8), Load::Clients(16)];
        fails(&other_ladder, &["no settings and load in common", "log off, 500/s", "log off, 8 clients"]);
        let other_factor = |archive: &mut Archive| {
            for arm in &mut archive.resolved.arms {
                arm.levels = BTreeMap::from([("cache".to_owned(), arm.levels["log"].clone())]);
            }
        };
        fails(&other_factor, &["no settings and load in common", "cache, log", "cache off, 500/s"]);
        // Duration, repetitions and machine do not change what is measured, but are reported.
        let mut other = one.clone();
        settings("[load]\nduration = \"5s\"\nrate = [1, 2]\n[limits]\ncpu = \"10%\"\n")(&mut other);
        other.host.machine.cores = 64;
        let compared = archives(&one, &other, METRICS).unwrap();
        let cautions = compared.cautions.join("\n");
        for part in ["limits.cpu not set in A and 10% in B", "load.duration", "different machines: 2 cores"] {
            assert!(cautions.contains(part), "{part} is not in {cautions}");
        }
        assert!(!cautions.contains("load.rate"), "{cautions}");
    }

    #[test]
    fn arm_labels_may_contain_commas() {
        let mut archive = crate::report::tests::archive(std::path::Path::new("dir"), 4);
        archive.resolved.arms[0].label = "log off, 2 workers".to_owned();
        archive.resolved.arms[1].label = "log on, 2 workers".to_owned();
        let names = two_names(&archive, "log off, 2 workers,log on, 2 workers").unwrap();
        assert_eq!(names, ["log off, 2 workers", "log on, 2 workers"]);
        assert_eq!(two_names(&archive, "a0, log on, 2 workers").unwrap(), ["a0", "log on, 2 workers"]);
        assert!(named(&archive, METRICS, "log off, 2 workers", "log on, 2 workers").is_ok());
        let fails = |archive: &Archive, text: &str, part: &str| {
            let error = two_names(archive, text).unwrap_err();
            assert!(error.exit_status() == 2 && error.to_string().contains(part), "{error}");
        };
        for text in ["a0", "a0,", ",", "", "a0, b, c"] {
            fails(&archive, text, "does not name two arms of dir, which has \"nginx\", \"log off, 2 workers\"");
        }
        // One comma and an unknown name: the error names it.
        assert!(two_names(&archive, "a0, h2o").is_ok());
        assert!(named(&archive, METRICS, "a0", "h2o").unwrap_err().to_string().contains("no arm \"h2o\""));
        archive.resolved.arms[0].label = "a".to_owned();
        archive.resolved.arms[1].label = "a,a".to_owned();
        fails(&archive, "a,a,a", "in several ways; give each");
    }

    proptest! {
        /// Swapping A and B gives the inverse ratio.
        #[test]
        fn swapped_arms_give_inverse_ratio(seed: u64, blocks in 3u32..8, factor in 0.5f64..2.0) {
            let runs = experiment(seed, blocks, factor);
            // One run per side and step.
            let mut seen = BTreeSet::new();
            let runs: Vec<Taken> = runs.into_iter().filter(|run| seen.insert((run.side, run.step.clone(), run.block))).collect();
            let turned: Vec<Taken> = runs
                .iter()
                .map(|run| Taken { side: if run.side == Side::A { Side::B } else { Side::A }, ..run.clone() })
                .collect();
            let ((one, ratio), (other, inverse)) = (finding(&runs, "cpu-per-reply"), finding(&turned, "cpu-per-reply"));
            prop_assert_eq!(one, other);
            // The median of an even number of values is a mean, which inversion does not preserve exactly.
            prop_assert!((ratio * inverse - 1.0).abs() < 0.01, "{} {}", ratio, inverse);
        }
    }
}
