//! The figures of an archive: which points each one has, and how they are marked.
//!
//! A point is the median over the runs of one arm at one step, with its interval. Valid runs make one point; runs that
//! are lower bounds make another, drawn open. Each invalid run is a point of its own, crossed out. So the figure omits
//! no run that has a value, and gives none more weight than it deserves.

use std::borrow::Cow;
use std::collections::BTreeMap;

use amped_measure::stats::Summary;

use crate::archive::{self, Archive, Arm, At, Run, RunStatus, Step};
use crate::figure::{Bars, Curve, Mark, Plot, Point, Scale, number};

/// Returns the unit and the meaning of a metric.
fn metric(name: &str) -> (&'static str, Cow<'static, str>) {
    archive::Summary::described(name).unwrap_or(("", Cow::Borrowed("unknown metric")))
}

/// The title of a metric for an axis or a curve.
pub(super) fn titled(name: &str) -> String {
    let (unit, meaning) = metric(name);
    if unit.is_empty() { meaning.into_owned() } else { format!("{meaning}, {unit}") }
}

/// The arms drawn: all but the repetition of the baseline, which only measures the noise.
pub(super) fn drawn(archive: &Archive) -> impl Iterator<Item = &Arm> {
    archive.resolved.arms.iter().filter(|arm| !arm.is_again)
}

/// The runs of an arm at a step.
pub(super) fn cell<'a>(archive: &'a Archive, arm: &'a str, step: Step) -> impl Iterator<Item = &'a Run> {
    archive.runs.iter().filter(move |run| run.plan.arm == arm && run.plan.step == step)
}

/// The value of a metric in a run.
pub(super) fn value(run: &Run, metric: &str) -> Option<f64> {
    run.summary.as_ref()?.metric(metric).filter(|value| value.is_finite())
}

/// The median over the valid runs, else over the lower bounds; `None` without either.
pub(super) fn median(archive: &Archive, arm: &str, step: Step, metric: &str) -> Option<Summary> {
    let of = |status| {
        let runs = cell(archive, arm, step).filter(move |run| run.status == status);
        Summary::of(runs.filter_map(|run| value(run, metric)))
    };
    of(RunStatus::Valid).or_else(|| of(RunStatus::Censored))
}

/// The points of these runs at one x.
fn points<'a>(runs: impl Iterator<Item = &'a Run>, x: f64, metric: &str) -> Vec<Point> {
    let mut values_by_mark: BTreeMap<Mark, Vec<f64>> = BTreeMap::new();
    for run in runs {
        let mark = match run.status {
            RunStatus::Valid => Mark::Kept,
            RunStatus::Censored => Mark::AtLeast,
            RunStatus::Invalid => Mark::Invalid,
        };
        values_by_mark.entry(mark).or_default().extend(value(run, metric));
    }
    let mut points = Vec::new();
    for (mark, values) in values_by_mark {
        match mark {
            Mark::Kept | Mark::AtLeast => points.extend(Summary::of(values).map(|y| Point { x, y, mark })),
            Mark::Invalid => {
                points.extend(values.into_iter().filter_map(|value| Some(Point { x, y: Summary::of([value])?, mark })));
            }
        }
    }
    points
}

/// The points of an arm's metric over the steps.
fn over_steps(archive: &Archive, arm: &Arm, metric: &str) -> Vec<Point> {
    let steps = archive.resolved.steps.iter();
    steps.flat_map(|step| points(cell(archive, &arm.id, *step), step.value(), metric)).collect()
}

/// The title of the axis of steps.
fn steps_title(archive: &Archive) -> String {
    match archive.resolved.steps.first() {
        Some(Step::Clients(_)) => "concurrent clients".to_owned(),
        Some(Step::Rate(_)) | None => "offered connections, 1/s".to_owned(),
    }
}

/// Metrics that equal the offered load as long as nothing is lost. Other
/// rates, such as a disk's, have no relation to it.
const OF_TARGET: [&str; 5] = ["target-rate", "offered-rate", "established-rate", "request-rate", "rate"];

/// Whether a step offers as many requests as connections, so that the
/// offered load can be drawn beside the completed responses.
fn has_target(archive: &Archive) -> bool {
    archive.resolved.requests_per_connection == 1 && matches!(archive.resolved.steps.first(), Some(Step::Rate(_)))
}

/// A figure for each metric over the load, with a curve for each arm. All share one load axis; latency figures share
/// one time axis. Empty with fewer than two steps. `band`: the range of the capacity if there is only one arm.
pub(super) fn overlay(archive: &Archive, band: Option<(f64, f64)>) -> Vec<(&'static str, Plot)> {
    const LATENCY: [&str; 3] = ["p50", "p95", "p99"];
    if archive.resolved.steps.len() < 2 {
        return Vec::new();
    }
    let steps: Vec<f64> = archive.resolved.steps.iter().map(|step| step.value()).collect();
    let has =
        |name: &str, least: f64| archive.runs.iter().filter_map(|run| value(run, name)).any(|value| value > least);
    let latencies: Vec<f64> = LATENCY
        .iter()
        .flat_map(|name| archive.runs.iter().filter_map(move |run| value(run, name)))
        .filter(|value| *value > 0.0)
        .collect();
    let plot = |title: &str, name: &'static str, y_title: String| {
        let is_latency = LATENCY.contains(&name);
        let plot = Plot {
            title: title.to_owned(),
            x_title: steps_title(archive),
            y_title,
            y_logarithmic: is_latency,
            curves: curves(archive, name),
            x_reach: steps.clone(),
            y_reach: if is_latency { latencies.clone() } else { Vec::new() },
            has_target: name == "rate" && has_target(archive),
            band: band.filter(|_| name == "rate").map(|(from, to)| (from, to, "capacity".to_owned())),
            ..Plot::default()
        };
        (name, plot)
    };
    let mut plots = vec![plot("Throughput", "rate", "completed responses, 1/s".to_owned())];
    for name in LATENCY.into_iter().filter(|name| has(name, 0.0)) {
        plots.push(plot(&format!("Latency, {name}"), name, "ms, logarithmic".to_owned()));
    }
    if has("failed-share", 0.0) {
        plots.push(plot("Failures", "failed-share", "share of failures".to_owned()));
    }
    if has("cpu-per-reply", 0.0) {
        plots.push(plot("Cost", "cpu-per-reply", "server CPU time per response, us".to_owned()));
    }
    plots
}

fn curves(archive: &Archive, metric: &str) -> Vec<Curve> {
    let curve = |arm: &Arm| Curve { name: arm_label(arm), points: over_steps(archive, arm, metric), printed: false };
    drawn(archive).map(curve).collect()
}

pub(super) fn arm_label(arm: &Arm) -> String {
    if arm.label.is_empty() { arm.subject.clone() } else { arm.label.clone() }
}

/// The plots of a figure that the experiment defines: one, or one for
/// each metric if several metrics of several arms would share a plot.
pub(super) fn plots(archive: &Archive, figure: &archive::Figure) -> Vec<Plot> {
    if figure.x != "rate" && figure.x != "clients" {
        return vec![over_levels(archive, figure)];
    }
    let all: Vec<&Arm> = drawn(archive).collect();
    let is_split = all.len() > 1 && figure.y.len() > 1;
    let plot = |names: &[String]| {
        let of = |arm| names.iter().map(move |name| (arm, name));
        let curve = |(arm, name): (&&Arm, &String)| Curve {
            name: if all.len() > 1 { arm_label(arm) } else { metric(name).1.into_owned() },
            points: over_steps(archive, arm, name),
            printed: false,
        };
        let of_what = if is_split { names.first().map(|name| format!(": {}", metric(name).1)) } else { None };
        Plot {
            title: format!("{}{}", figure.title, of_what.unwrap_or_default()),
            x_title: steps_title(archive),
            y_title: axis_title(names),
            x: if figure.log_x { Scale::Logarithmic } else { Scale::Linear },
            y_logarithmic: figure.log_y,
            curves: all.iter().flat_map(of).map(curve).chain(printed(figure)).collect(),
            has_target: !figure.log_y && has_target(archive) && names.iter().all(|name| OF_TARGET.contains(&&name[..])),
            ..Plot::default()
        }
    };
    if is_split { figure.y.chunks(1).map(plot).collect() } else { vec![plot(&figure.y)] }
}

/// The levels of the factor on a figure's x axis, and their values if all are numbers.
fn levels(archive: &Archive, figure: &archive::Figure) -> (Vec<String>, Option<Vec<f64>>) {
    let factor = archive.resolved.factors.iter().find(|factor| factor.name == figure.x);
    let levels: Vec<String> = factor.map(|factor| factor.levels.clone()).unwrap_or_default();
    let numbers: Option<Vec<f64>> = levels.iter().map(|level| level.parse().ok()).collect();
    let numbers = numbers.filter(|numbers| !numbers.is_empty() && numbers.iter().all(|number| number.is_finite()));
    (levels, numbers)
}

/// The level at an x position; `None` if the axis is numeric.
pub(super) fn level(archive: &Archive, figure: &archive::Figure, x: f64) -> Option<String> {
    match levels(archive, figure) {
        (levels, None) => levels.get(x.round().max(0.0) as usize).cloned(),
        (_, Some(_)) => None,
    }
}

/// A figure whose x axis is a factor: numeric if all levels are numbers, else one position for each name.
fn over_levels(archive: &Archive, figure: &archive::Figure) -> Plot {
    let (levels, numbers) = levels(archive, figure);
    let x = |arm: &Arm| {
        let at = levels.iter().position(|level| Some(level) == arm.levels.get(&figure.x))?;
        Some(numbers.as_ref().map_or(at as f64, |numbers| numbers[at]))
    };
    let mut curves = over_factor(archive, figure, x);
    curves.extend(printed(figure));
    Plot {
        title: figure.title.clone(),
        x_title: figure.x.clone(),
        y_title: axis_title(&figure.y),
        x: match numbers {
            Some(_) if figure.log_x => Scale::Logarithmic,
            Some(_) => Scale::Linear,
            None => Scale::Names(levels),
        },
        y_logarithmic: figure.log_y,
        curves,
        ..Plot::default()
    }
}

/// The curves that the paper printed.
fn printed(figure: &archive::Figure) -> impl Iterator<Item = Curve> {
    figure.paper.iter().map(|paper| {
        let point = |[x, y]: &[f64; 2]| Some(Point { x: *x, y: Summary::of([*y])?, mark: Mark::Kept });
        let points = paper.points.iter().filter_map(point).collect();
        Curve { name: format!("paper: {}", paper.name), points, printed: true }
    })
}

/// The title of the y axis: a single metric's title, or the unit that several metrics share.
fn axis_title(names: &[String]) -> String {
    let units: Vec<&str> = names.iter().map(|name| metric(name).0).collect();
    match names {
        [name] => titled(name),
        _ if units.iter().all(|unit| *unit == "1/s") => "per second".to_owned(),
        _ if units.windows(2).all(|pair| pair[0] == pair[1]) => units.first().copied().unwrap_or_default().to_owned(),
        names => names.iter().map(|name| titled(name)).collect::<Vec<_>>().join("; "),
    }
}

/// A metric over the levels of a factor: a curve for each combination of
/// the other factors' levels that has several arms.
fn over_factor(archive: &Archive, figure: &archive::Figure, x: impl Fn(&Arm) -> Option<f64>) -> Vec<Curve> {
    let mut groups: BTreeMap<Vec<(&str, &str)>, Vec<&Arm>> = BTreeMap::new();
    for arm in drawn(archive) {
        let others = arm.levels.iter().filter(|(factor, _)| **factor != figure.x);
        groups.entry(others.map(|(factor, level)| (&factor[..], &level[..])).collect()).or_default().push(arm);
    }
    // In a one-at-a-time design, an arm that varies another factor has only the baseline's level of this one.
    if groups.values().any(|arms| arms.len() > 1) {
        groups.retain(|_, arms| arms.len() > 1);
    }
    let several = groups.len() > 1;
    let mut curves = Vec::new();
    for (others, arms) in &groups {
        let label = others.iter().map(|(factor, level)| format!("{factor} {level}")).collect::<Vec<_>>().join(", ");
        for name in &figure.y {
            let points = arms.iter().filter_map(|arm| {
                let step = step_at(archive, arm, name, figure.at)?;
                Some(points(cell(archive, &arm.id, step), x(arm)?, name))
            });
            let meaning = metric(name).1;
            let name = match (several, figure.y.len() > 1) {
                (true, true) => format!("{label}: {meaning}"),
                (true, false) => label.clone(),
                (false, _) => meaning.into_owned(),
            };
            curves.push(Curve { name, points: points.flatten().collect(), printed: false });
        }
    }
    curves
}

/// The step that represents an arm; `None` if it has no valid or censored
/// run there. No other step is substituted for it.
pub(super) fn step_at(archive: &Archive, arm: &Arm, metric: &str, at: At) -> Option<Step> {
    let known = |step: &&Step| median(archive, &arm.id, **step, metric).is_some();
    let mut steps = archive.resolved.steps_of(arm).iter();
    match at {
        At::First => steps.next().filter(known).copied(),
        At::Last => steps.next_back().filter(known).copied(),
        At::Step(value) => steps.find(|step| step.value() == value).filter(known).copied(),
        At::Peak => {
            let steps = steps.filter(known);
            let of = |step: &Step| median(archive, &arm.id, *step, metric).map_or(f64::MIN, |found| found.median);
            steps.max_by(|one, other| of(one).total_cmp(&of(other))).copied()
        }
    }
}

/// The bars of a figure: arm, step, and a name made of what differs. At each step the arms are side by side.
fn bars_of<'a>(archive: &'a Archive, arms: &'a [&'a Arm]) -> impl Iterator<Item = (&'a Arm, Step, String)> {
    let steps = &archive.resolved.steps;
    let name = move |arm: &Arm, step| match (arms.len() > 1, steps.len() > 1) {
        (true, true) => format!("{}, {}", arm_label(arm), step_name(step)),
        (true, false) => arm_label(arm),
        (false, _) => step_name(step),
    };
    let is_made = |(arm, step): &(&Arm, Step)| archive.resolved.steps_of(arm).contains(step);
    let pairs = steps.iter().flat_map(move |step| arms.iter().map(move |arm| (*arm, *step)));
    pairs.filter(is_made).map(move |(arm, step)| (arm, step, name(arm, step)))
}

/// The machine's CPU time by consumer, in cores; `None` if unknown.
pub(super) fn cpu(archive: &Archive, arms: &[&Arm]) -> Option<Bars> {
    let cores = archive.host.machine.cores as f64;
    let parts = ["server, user code", "server, kernel", "clients", "others", "unattributed", "idle"];
    let bar = |(arm, step, name): (&Arm, Step, String)| {
        let of = |name| median(archive, &arm.id, step, name).map(|found| found.median);
        let (user, system) = (of("server-user")?, of("server-system")?);
        let others = Summary::of(cell(archive, &arm.id, step).filter_map(|run| run.summary.as_ref()?.host.others));
        let others = others.map_or(0.0, |others| others.median * cores);
        let clients = of("client-cpu").unwrap_or(0.0);
        let busy = of("host-cpu")? / 100.0 * cores;
        let rest = (busy - user - system - clients - others).max(0.0);
        let idle = (cores - user - system - clients - others - rest).max(0.0);
        let parts = vec![user, system, clients, others, rest, idle];
        // A damaged archive may hold shares whose sum is no number.
        parts.iter().sum::<f64>().is_finite().then_some((name, parts))
    };
    let bars: Vec<_> = bars_of(archive, arms).filter_map(bar).collect();
    (!bars.is_empty()).then(|| Bars {
        title: "CPU time of the machine".to_owned(),
        x_title: "cores; medians of the runs".to_owned(),
        parts: parts.map(str::to_owned).to_vec(),
        bars,
    })
}

/// The breakdowns of a profile.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Breakdown {
    Context,
    Category,
}

/// The server's CPU time by profiles; `None` if there is no profile.
pub(super) fn profile(archive: &Archive, arms: &[&Arm], by: Breakdown, missing: &mut Vec<String>) -> Option<Bars> {
    /// More parts would need colours too similar to distinguish.
    const PARTS: usize = 7;
    let mut bars: Vec<(String, BTreeMap<String, f64>)> = Vec::new();
    for (arm, step, name) in bars_of(archive, arms) {
        let (mut shares, mut count) = (BTreeMap::<String, f64>::new(), 0.0);
        for run in cell(archive, &arm.id, step) {
            let profile = match archive.profile(&run.plan.id) {
                Ok(Some(profile)) => profile,
                Ok(None) => continue,
                Err(why) => {
                    missing.push(format!("{}: {why}", run.plan.id));
                    continue;
                }
            };
            count += 1.0;
            let rows = match by {
                Breakdown::Context => &profile.contexts,
                Breakdown::Category => &profile.categories,
            };
            for row in rows {
                *shares.entry(row.name.clone()).or_default() += row.share.share;
            }
        }
        if count > 0.0 {
            shares.values_mut().for_each(|share| *share *= 100.0 / count);
            bars.push((name, shares));
        }
    }
    let mut sums: BTreeMap<&str, f64> = BTreeMap::new();
    for (name, share) in bars.iter().flat_map(|(_, shares)| shares) {
        *sums.entry(name).or_default() += share;
    }
    let mut parts: Vec<&str> = sums.keys().copied().collect();
    parts.sort_by(|one, other| sums[other].total_cmp(&sums[one]));
    let is_all = parts.len() <= PARTS + 1;
    parts.truncate(if is_all { PARTS + 1 } else { PARTS });
    let bar = |(name, shares): &(String, BTreeMap<String, f64>)| {
        let mut lengths: Vec<f64> = parts.iter().map(|part| shares.get(*part).copied().unwrap_or(0.0)).collect();
        if !is_all {
            lengths.push((shares.values().sum::<f64>() - lengths.iter().sum::<f64>()).max(0.0));
        }
        (name.clone(), lengths)
    };
    let drawn: Vec<_> = bars.iter().map(bar).collect();
    let more = if is_all { None } else { Some("all others") };
    let what = match by {
        Breakdown::Context => "by context",
        Breakdown::Category => "by category",
    };
    (!drawn.is_empty()).then(|| Bars {
        title: format!("CPU time of the server, {what}"),
        x_title: "% of the server's samples".to_owned(),
        parts: parts.into_iter().chain(more).map(str::to_owned).collect(),
        bars: drawn,
    })
}

/// Formats a step.
pub(super) fn step_name(step: Step) -> String {
    match step {
        Step::Rate(rate) => format!("{rate}/s"),
        Step::Clients(clients) => format!("{clients} clients"),
    }
}

/// Formats a share as a percentage.
pub(super) fn percent(share: f64) -> String {
    format!("{} %", number(share * 100.0))
}
