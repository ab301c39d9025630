//! Whether two things that were measured differ: ratios of runs that belong together, their medians and intervals, and
//! beside them the noise band.
//!
//! Pure. A run of B is paired with the run of A of the same step in the same block, so that what changed from block to block
//! (a neighbour, the temperature, the page cache) is in both and cancels. Of a figure all pairs give one ratio, B / A: its
//! median, and the interval of order statistics, at a level that bears several figures (Bonferroni: of four, each at
//! 98.75 %), so that of twenty experiments with nothing to find nineteen find nothing.
//!
//! The noise band is what the median of as many pairs comes to where there is nothing: pairs of runs of the same thing (A/A),
//! drawn again and again, each as likely turned round. A difference is told only if the interval leaves out 1 and the
//! median lies outside of the band. Where pairs are too few to reach the level whatever they are, that is said instead.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use amped_measure::Failure;
use amped_measure::stats::{Random, Summary};
use serde::Serialize;

use crate::archive::{self, Archive, Arm, Standing, Step as Load};

/// What is compared, by the names of `archive::Summary::metric`: processor time first, since rates and latencies of a
/// machine with neighbours are evidence only beside it.
const METRICS: [&str; 4] = ["cpu-per-reply", RATE, "p50", "p99"];

/// It is known only from one side where the load came to its end first; and below their capacity two servers have the same.
const RATE: &str = "rate";

/// Which of the two.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Side {
    A,
    B,
    /// Neither: it tells of the noise only.
    Other,
}

/// A run, as a comparison sees it.
#[derive(Clone, Debug)]
struct Taken {
    side: Side,
    /// What it was besides its side: settings and load.
    step: String,
    /// The load alone, by which steps are put in order.
    load: f64,
    /// In which block.
    block: u32,
    /// Its name in messages.
    name: String,
    standing: Standing,
    /// Replies a second that the connections which were begun ask for, in an open loop.
    asked: Option<f64>,
    /// By metric.
    figures: BTreeMap<&'static str, f64>,
}

/// Compares two arms of an archive.
pub(crate) fn arms(archive: &Archive, a: &Arm, b: &Arm) -> Comparison {
    within(archive, (&a.label, &[a]), (&b.label, &[b]))
}

/// Compares what an archive calls by these names: subjects, arms' labels or their ids.
///
/// # Errors
/// When it calls nothing so, or both the same.
pub(crate) fn named(archive: &Archive, a: &str, b: &str) -> Result<Comparison, Failure> {
    let of = |name: &str| {
        let of: Vec<&Arm> = archive.resolved.arms.iter().filter(|arm| !arm.is_again && is_called(arm, name)).collect();
        if of.is_empty() {
            return Err(Failure::usage(format!(
                "{} has nothing that is called {name:?}; it has {}",
                archive.dir.display(),
                choices(archive)
            )));
        }
        Ok(of)
    };
    let (of_a, of_b) = (of(a)?, of(b)?);
    if of_a.iter().any(|arm| of_b.contains(arm)) {
        return Err(Failure::usage(format!(
            "{a:?} and {b:?} are the same in {}; it has {}",
            archive.dir.display(),
            choices(archive)
        )));
    }
    Ok(within(archive, (a, &of_a), (b, &of_b)))
}

/// The only two arms that an archive has.
///
/// # Errors
/// When it has another number of them: then it is to be said which.
pub(crate) fn only_two(archive: &Archive) -> Result<Comparison, Failure> {
    let arms: Vec<&Arm> = archive.resolved.arms.iter().filter(|arm| !arm.is_again).collect();
    match arms[..] {
        [a, b] => Ok(self::arms(archive, a, b)),
        _ => Err(Failure::usage(format!(
            "{} has {} arms: say which two with --subjects A,B, of {}; or name a second archive",
            archive.dir.display(),
            arms.len(),
            choices(archive)
        ))),
    }
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

/// Arms of one archive, whose blocks have both.
fn within(archive: &Archive, (a, of_a): (&str, &[&Arm]), (b, of_b): (&str, &[&Arm])) -> Comparison {
    // What tells A from B is no part of a step; what they have in common is.
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
    compare(a, b, &taken(archive, place), true)
}

/// Compares an archive with another: what has the same settings in both.
pub(crate) fn archives(a: &Archive, b: &Archive) -> Comparison {
    // Of single arms it is clear which belong together, whatever they are called.
    let arms = |archive: &Archive| archive.resolved.arms.iter().filter(|arm| !arm.is_again).count();
    let is_single = arms(a) == 1 && arms(b) == 1;
    let of = |archive, side| taken(archive, |arm| (side, settings(arm, |_| !is_single)));
    let mut runs = of(a, Side::A);
    runs.extend(of(b, Side::B));
    let name = |archive: &Archive| format!("{} ({})", archive.dir.display(), archive.resolved.name);
    compare(&name(a), &name(b), &runs, false)
}

fn settings(arm: &Arm, counts: impl Fn(&String) -> bool) -> String {
    let levels = arm.levels.iter().filter(|(factor, _)| counts(factor));
    levels.map(|(factor, level)| format!("{factor} {level}, ")).collect()
}

/// The runs of an archive whose arms have a place.
fn taken(archive: &Archive, place: impl Fn(&Arm) -> (Side, String)) -> Vec<Taken> {
    let take = |run: &archive::Run| {
        let (side, settings) = place(archive.arm(&run.plan.arm)?);
        let load = match run.plan.step {
            Load::Rate(rate) => format!("{rate}/s"),
            Load::Clients(clients) => format!("{clients} clients"),
        };
        let summary = run.summary.as_ref();
        let requests = archive.resolved.requests_per_connection;
        let value = |name: &'static str| Some((name, summary?.metric(name)?));
        Some(Taken {
            side,
            step: format!("{settings}{load}"),
            load: run.plan.step.value(),
            block: run.plan.block,
            name: run.plan.id.clone(),
            standing: run.standing,
            asked: summary
                .filter(|summary| requests > 0 && summary.asked_rate.is_some())
                .map(|summary| summary.offered_rate * requests as f64),
            figures: METRICS.into_iter().filter_map(value).collect(),
        })
    };
    archive.last_attempts().filter_map(take).collect()
}

/// What came of it.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Comparison {
    /// What A is, and B.
    pub(crate) a: String,
    /// See there.
    pub(crate) b: String,
    /// Whether any figure differs.
    pub(crate) finding: Finding,
    /// One of each figure that both have.
    pub(crate) figures: Vec<Compared>,
    /// What was not used, and why, a line each.
    pub(crate) left_out: Vec<String>,
    /// What speaks against the comparison as a whole, a line each.
    pub(crate) cautions: Vec<String>,
}

/// A figure of both.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Compared {
    /// Which, by the names of `archive::Summary::metric`.
    pub(crate) figure: &'static str,
    /// Its median over the paired runs of A, and of B.
    pub(crate) a: f64,
    /// See there.
    pub(crate) b: f64,
    /// How many pairs there are.
    pub(crate) pairs: usize,
    /// B / A.
    pub(crate) ratio: Interval,
    /// What pairs of the same thing come to; `None` where none were measured.
    pub(crate) noise: Option<Band>,
    /// What follows.
    pub(crate) finding: Finding,
    /// The same for each step.
    pub(crate) steps: Vec<Step>,
}

/// A median and its interval.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Interval {
    pub(crate) low: f64,
    pub(crate) median: f64,
    pub(crate) high: f64,
    /// With which probability it contains the true median.
    pub(crate) coverage: f64,
}

impl From<Summary> for Interval {
    fn from(Summary { low, median, high, coverage }: Summary) -> Interval {
        Interval { low, median, high, coverage }
    }
}

/// Ratios of one step.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Step {
    /// Which.
    pub(crate) step: String,
    /// How many.
    pub(crate) pairs: usize,
    /// B / A.
    pub(crate) ratio: Interval,
}

/// Where the median of as many pairs lies, in 95 of 100 cases, when there is nothing to find.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Band {
    pub(crate) low: f64,
    pub(crate) high: f64,
    /// Of how many pairs of the same thing it is known.
    pub(crate) pairs: usize,
    /// Whether these were in the same block; else their times are as far apart as blocks are.
    pub(crate) within_blocks: bool,
}

/// What is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Finding {
    /// Too few pairs to say.
    Undecided,
    /// None that is larger than the noise.
    NoDifference,
    /// One that is.
    Difference,
}

/// How sure a comparison is to be as a whole.
const LEVEL: f64 = 0.95;

/// Compares. `interleaved`: A and B were measured in the same blocks.
fn compare(a: &str, b: &str, runs: &[Taken], interleaved: bool) -> Comparison {
    let of_these = || runs.iter().filter(|run| run.side != Side::Other);
    let mut left_out: Vec<String> = of_these()
        .filter_map(|run| match run.standing {
            Standing::Valid => None,
            Standing::Censored => Some(format!("{}: its rate is a lower bound, and is not compared", run.name)),
            Standing::Invalid => Some(format!("{}: invalid, and not compared", run.name)),
        })
        .collect();
    let steps = |side| runs.iter().filter(move |run| run.side == side).map(|run| run.step.as_str());
    let (of_a, of_b): (BTreeSet<&str>, BTreeSet<&str>) = (steps(Side::A).collect(), steps(Side::B).collect());
    left_out.extend(of_a.symmetric_difference(&of_b).map(|step| {
        let whose = if of_a.contains(step) { a } else { b };
        format!("{step}: only {whose} has this step")
    }));
    let paired = METRICS.into_iter().map(|metric| (metric, pairs(metric, runs)));
    let paired: Vec<(&'static str, Vec<Pair<'_>>)> = paired.filter(|(_, pairs)| !pairs.is_empty()).collect();
    let level = 1.0 - (1.0 - LEVEL) / paired.len().max(1) as f64;
    let figures = paired.into_iter().filter_map(|(metric, pairs)| compared(metric, &pairs, runs, level, interleaved));
    let figures: Vec<Compared> = figures.collect();
    let mut cautions = Vec::new();
    if !interleaved {
        let text = "A and B were not measured in turns: what changed on the machine in between is in the ratios";
        cautions.push(text.to_owned());
    }
    if figures.is_empty() {
        cautions.push("no run of A has a counterpart of B with figures: the same step, in the same block".to_owned());
    } else if figures.iter().all(|figure| figure.noise.is_none()) {
        let text = "no noise band: too little was measured twice in a block; let the plan repeat its baseline (A/A)";
        cautions.push(text.to_owned());
    }
    let finding = figures.iter().map(|figure| figure.finding).max().unwrap_or(Finding::Undecided);
    Comparison { a: a.to_owned(), b: b.to_owned(), finding, figures, left_out, cautions }
}

/// A run of A and one of B that belong together.
struct Pair<'a> {
    step: &'a str,
    a: f64,
    b: f64,
}

impl Pair<'_> {
    fn ratio(&self) -> f64 {
        self.b / self.a
    }
}

/// The metric in runs of one side, by step and block, in the order in which they were taken.
fn by_place<'a>(metric: &str, side: Side, runs: &'a [Taken]) -> BTreeMap<(&'a str, u32), Vec<f64>> {
    let mut places: BTreeMap<(&str, u32), Vec<f64>> = BTreeMap::new();
    for run in runs.iter().filter(|run| run.side == side) {
        if run.standing == Standing::Invalid || run.standing == Standing::Censored && metric == RATE {
            continue;
        }
        // A ratio to 0 is none.
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
        pairs.extend(of_a.into_iter().zip(of_b).map(|(a, b)| Pair { step: place.0, a, b }));
    }
    if metric == RATE {
        // What both bear is the rate that was asked for, and no figure of theirs.
        let full: BTreeSet<&str> = pairs.iter().map(|pair| pair.step).filter(|step| !is_borne(step, runs)).collect();
        if !full.is_empty() {
            pairs.retain(|pair| full.contains(pair.step));
        }
    }
    pairs
}

/// Whether both sides answered nearly all that was asked for at this step.
fn is_borne(step: &str, runs: &[Taken]) -> bool {
    const BORNE_MIN: f64 = 0.98;
    [Side::A, Side::B].into_iter().all(|side| {
        let of_it = runs.iter().filter(|run| run.side == side && run.step == step && run.standing == Standing::Valid);
        let shares = of_it.filter_map(|run| Some(run.figures.get(RATE)? / run.asked?));
        Summary::of(shares).is_some_and(|share| share.median >= BORNE_MIN)
    })
}

fn compared(
    figure: &'static str,
    pairs: &[Pair<'_>],
    runs: &[Taken],
    level: f64,
    interleaved: bool,
) -> Option<Compared> {
    let ratio = Summary::at(level, pairs.iter().map(Pair::ratio))?;
    let noise = band(figure, runs, pairs.len(), interleaved);
    let mut steps: Vec<&str> = pairs.iter().map(|pair| pair.step).collect();
    steps.dedup();
    let load = |step: &str| runs.iter().find(|run| run.step == step).map_or(0.0, |run| run.load);
    // Those of one load stay in the order of their names.
    steps.sort_by(|one, other| load(one).total_cmp(&load(other)));
    let step = |step: &str| {
        let ratios: Vec<f64> = pairs.iter().filter(|pair| pair.step == step).map(Pair::ratio).collect();
        let pairs = ratios.len();
        Some(Step { step: step.to_owned(), pairs, ratio: Summary::of(ratios)?.into() })
    };
    Some(Compared {
        figure,
        a: Summary::of(pairs.iter().map(|pair| pair.a))?.median,
        b: Summary::of(pairs.iter().map(|pair| pair.b))?.median,
        pairs: pairs.len(),
        ratio: ratio.into(),
        noise,
        finding: judge(&ratio, noise.as_ref(), level),
        steps: steps.into_iter().filter_map(step).collect(),
    })
}

/// A difference: the interval is sure enough and leaves out 1, and the median is outside of the noise.
fn judge(ratio: &Summary, noise: Option<&Band>, level: f64) -> Finding {
    if ratio.coverage < level {
        return Finding::Undecided;
    }
    let is_one = ratio.low <= 1.0 && 1.0 <= ratio.high;
    let is_noise = noise.is_some_and(|band| band.low <= ratio.median && ratio.median <= band.high);
    if is_one || is_noise { Finding::NoDifference } else { Finding::Difference }
}

/// The band for the median of `count` pairs. Runs of one side, of the same step and block, are pairs of the same thing; and
/// where A and B were measured at other times than each other, neighbouring blocks are.
fn band(metric: &str, runs: &[Taken], count: usize, interleaved: bool) -> Option<Band> {
    const DRAWS: usize = 500;
    const PAIRS_MIN: usize = 3;
    let mut logs: Vec<f64> = Vec::new();
    for side in [Side::A, Side::B, Side::Other] {
        let mut by_step: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
        for ((step, _), values) in by_place(metric, side, runs) {
            if interleaved {
                logs.extend(values.chunks_exact(2).map(|pair| (pair[0] / pair[1]).ln()));
            } else {
                by_step.entry(step).or_default().extend(values);
            }
        }
        logs.extend(by_step.values().flat_map(|values| values.chunks_exact(2).map(|pair| (pair[0] / pair[1]).ln())));
    }
    if logs.len() < PAIRS_MIN {
        return None;
    }
    // The same seed always: a comparison is a function of what was measured.
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
    Some(Band { low: 1.0 / wide, high: wide, pairs: logs.len(), within_blocks: interleaved })
}

impl Comparison {
    /// The sentence that stands first.
    pub(crate) fn sentence(&self) -> String {
        let told = self.figures.iter().filter(|figure| figure.finding == Finding::Difference);
        let told: Vec<String> = told.map(|figure| format!("{} {}", figure.name(), figure.told())).collect();
        match self.finding {
            Finding::Difference => format!("{} differs from {}: {}.", self.b, self.a, told.join("; ")),
            Finding::NoDifference => {
                format!("No difference: in no figure is {} further from {} than the noise.", self.b, self.a)
            }
            Finding::Undecided => "Undecided: there are too few pairs to tell a difference from noise.".to_owned(),
        }
    }

    /// As people read it.
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
                figure.told()
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
                "\nIntervals of the median of the ratios; {:.2} % sure for {} pairs.",
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
    /// As it is printed.
    pub(crate) fn name(&self) -> String {
        let known = archive::Summary::METRICS.iter().find(|(name, ..)| *name == self.figure);
        known.map_or_else(|| self.figure.to_owned(), |(_, unit, meaning)| format!("{meaning}, {unit}"))
    }

    /// What follows, in words.
    pub(crate) fn told(&self) -> String {
        let percent = (self.ratio.median - 1.0) * 100.0;
        match self.finding {
            Finding::Difference => format!("{percent:+.1} %"),
            Finding::NoDifference => "no difference".to_owned(),
            Finding::Undecided => format!("undecided: {} pairs cannot tell", self.pairs),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Of the normal distribution, by twelve even ones.
    fn normal(random: &mut Random) -> f64 {
        (0..12).map(|_| random.fraction()).sum::<f64>() - 6.0
    }

    /// An experiment: blocks that differ by 5 %, runs within them by 2 %; B needs `factor` times the CPU of A, and of A there
    /// are two runs of each step in a block.
    fn experiment(seed: u64, blocks: u32, factor: f64) -> Vec<Taken> {
        let mut random = Random(seed);
        let mut runs = Vec::new();
        for block in 0..blocks {
            let common = 0.05 * normal(&mut random);
            for (step, rate) in [1000.0, 2000.0, 4000.0].into_iter().enumerate() {
                for side in [Side::A, Side::B, Side::A] {
                    let mut noisy = |sd: f64| (common + sd * normal(&mut random)).exp();
                    let times = if side == Side::B { factor } else { 1.0 };
                    let figures = BTreeMap::from([
                        ("cpu-per-reply", 10.0 * times * noisy(0.02)),
                        ("rate", rate * (1.0 + 0.0005 * (noisy(0.1) - 1.0))),
                        ("p50", noisy(0.05)),
                        ("p99", 4.0 * noisy(0.3)),
                    ]);
                    runs.push(Taken {
                        side,
                        step: format!("{step}"),
                        load: rate,
                        block,
                        name: format!("run {}", runs.len()),
                        standing: Standing::Valid,
                        asked: Some(rate),
                        figures,
                    });
                }
            }
        }
        runs
    }

    fn finding(runs: &[Taken], figure: &str) -> (Finding, f64) {
        let compared = compare("a", "b", runs, true);
        let found = compared.figures.iter().find(|compared| compared.figure == figure).unwrap();
        (found.finding, found.ratio.median)
    }

    #[test]
    fn nothing_is_found_in_nineteen_of_twenty_experiments_without_a_difference() {
        let found = (0..200).filter(|seed| {
            let runs = experiment(*seed, 5, 1.0);
            compare("a", "b", &runs, true).finding == Finding::Difference
        });
        let found = found.count();
        assert!(found <= 10, "a difference in {found} of 200");
    }

    #[test]
    fn a_planted_difference_of_five_percent_is_found() {
        for factor in [1.05, 1.0 / 1.05] {
            let found = (0..100).filter(|seed| {
                let (finding, ratio) = finding(&experiment(1000 + seed, 6, factor), "cpu-per-reply");
                finding == Finding::Difference && (ratio - factor).abs() < 0.03
            });
            let found = found.count();
            assert!(found >= 95, "found in {found} of 100");
        }
    }

    #[test]
    fn archives_that_were_not_measured_in_turns_have_a_band_as_wide_as_their_drift() {
        let runs = experiment(3, 6, 1.05);
        let turned = compare("a", "b", &runs, true);
        let apart = compare("a", "b", &runs, false);
        let wide = |compared: &Comparison| compared.figures[0].noise.unwrap().high;
        assert!(wide(&apart) > wide(&turned), "{} and {}", wide(&apart), wide(&turned));
        assert!(apart.cautions[0].contains("not measured in turns") && turned.cautions.is_empty());
    }

    #[test]
    fn few_pairs_decide_nothing() {
        let mut runs = experiment(1, 2, 2.0);
        let (found, ratio) = finding(&runs, "cpu-per-reply");
        assert_eq!(found, Finding::Undecided, "{ratio}");
        assert!(compare("a", "b", &runs, true).sentence().starts_with("Undecided"));
        runs.clear();
        let nothing = compare("a", "b", &runs, true);
        assert!(nothing.finding == Finding::Undecided && nothing.cautions[0].contains("no run of A"));
    }

    #[test]
    fn what_is_not_the_servers_is_left_out_and_named() {
        let mut runs = experiment(1, 5, 1.0);
        let pairs = |runs: &[Taken], figure: &str| {
            let compared = compare("a", "b", runs, true);
            compared.figures.iter().find(|compared| compared.figure == figure).unwrap().pairs
        };
        assert_eq!((pairs(&runs, "cpu-per-reply"), pairs(&runs, "rate")), (15, 15));
        // The second of the nine of a block is its only one of B in this step.
        runs[1].standing = Standing::Censored;
        runs[10].standing = Standing::Invalid;
        assert_eq!((pairs(&runs, "cpu-per-reply"), pairs(&runs, "rate")), (14, 13));
        let compared = compare("a", "b", &runs, true);
        assert_eq!(
            compared.left_out,
            ["run 1: its rate is a lower bound, and is not compared", "run 10: invalid, and not compared"]
        );
        runs[1].step = "other".to_owned();
        assert!(compare("a", "b", &runs, true).left_out.iter().any(|line| line == "other: only b has this step"));
    }

    #[test]
    fn the_text_says_it_first_and_gives_the_figures() {
        let text = compare("nginx", "amped", &experiment(5, 8, 0.5), true).text();
        let (first, rest) = text.split_once('\n').unwrap();
        assert!(first.starts_with("amped differs from nginx: CPU of the server for a response, us -"), "{text}");
        for part in ["A  nginx", "B  amped", "no difference", "noise band", "by step", "24 pairs"] {
            assert!(rest.contains(part), "{part} is not in {text}");
        }
    }

    #[test]
    fn rates_are_compared_where_one_of_the_two_does_not_keep_up() {
        let mut runs = experiment(2, 8, 1.0);
        for run in runs.iter_mut().filter(|run| run.step == "2") {
            let times = if run.side == Side::B { 0.5 } else { 0.7 };
            run.figures.entry("rate").and_modify(|rate| *rate *= times);
        }
        let compared = compare("a", "b", &runs, true);
        let rate = compared.figures.iter().find(|compared| compared.figure == "rate").unwrap();
        assert_eq!((rate.pairs, rate.finding, rate.steps.len()), (8, Finding::Difference, 1));
        assert!((rate.ratio.median - 5.0 / 7.0).abs() < 0.01, "{}", rate.ratio.median);
    }

    #[test]
    fn arms_of_an_archive_are_named_by_label_subject_or_id() {
        let archive = crate::report::tests::archive(std::path::Path::new("dir"), 4);
        let compared = named(&archive, "log off", "a1").unwrap();
        assert_eq!((compared.finding, compared.figures[0].figure), (Finding::Difference, "cpu-per-reply"));
        // The baseline and its repetition are pairs of the same thing: one in each block and step, but for the lower bound.
        assert_eq!(compared.figures[0].noise.map(|band| (band.pairs, band.within_blocks)), Some((12, true)));
        assert_eq!(
            only_two(&archive).unwrap().text(),
            arms(&archive, &archive.resolved.arms[0], &archive.resolved.arms[1]).text()
        );
        let fails = |a: &str, b: &str, part: &str| {
            let error = named(&archive, a, b).unwrap_err();
            assert!(error.exit_status() == 2 && error.to_string().contains(part), "{error}");
        };
        fails("log off", "h2o", "nothing that is called \"h2o\"; it has \"nginx\", \"log off\", \"log on\"");
        fails("nginx", "log on", "are the same");
        let mut three = archive.clone();
        three.resolved.arms.push(Arm { id: "a2".to_owned(), label: "log far away".to_owned(), ..Arm::default() });
        assert!(only_two(&three).unwrap_err().to_string().contains("has 3 arms: say which two with --subjects A,B"));
    }

    #[test]
    fn what_has_the_same_settings_in_two_archives_is_compared() {
        let before = crate::report::tests::archive(std::path::Path::new("before"), 4);
        let mut after = crate::report::tests::archive(std::path::Path::new("after"), 4);
        for run in &mut after.runs {
            let summary = run.summary.as_mut().unwrap();
            summary.server.cpu_s = summary.server.cpu_s.map(|cpu_s| cpu_s * 1.2);
        }
        let compared = archives(&before, &after);
        let cpu = &compared.figures[0];
        // 36 runs of each, of which the same one is invalid.
        assert_eq!((cpu.pairs, cpu.steps.len(), cpu.finding), (35, 6, Finding::Difference));
        assert!((cpu.ratio.median - 1.2).abs() < 1e-9 && !cpu.noise.unwrap().within_blocks, "{cpu:?}");
        assert!(compared.cautions[0].contains("not measured in turns"));
        let same = archives(&before, &before);
        assert_eq!(same.finding, Finding::NoDifference);
        assert!(same.sentence().starts_with("No difference"));
    }

    proptest! {
        /// To ask the other way round is to find the inverse.
        #[test]
        fn turned_round_it_is_the_inverse(seed: u64, blocks in 3u32..8, factor in 0.5f64..2.0) {
            let runs = experiment(seed, blocks, factor);
            // One run of each side and step.
            let mut seen = BTreeSet::new();
            let runs: Vec<Taken> = runs.into_iter().filter(|run| seen.insert((run.side, run.step.clone(), run.block))).collect();
            let turned: Vec<Taken> = runs
                .iter()
                .map(|run| Taken { side: if run.side == Side::A { Side::B } else { Side::A }, ..run.clone() })
                .collect();
            let ((one, ratio), (other, inverse)) = (finding(&runs, "cpu-per-reply"), finding(&turned, "cpu-per-reply"));
            prop_assert_eq!(one, other);
            // The median of an even number is a mean, which an inverse does not keep exactly.
            prop_assert!((ratio * inverse - 1.0).abs() < 0.01, "{} {}", ratio, inverse);
        }
    }
}
