//! The table at the top of a report: a row for each arm, with its subject and version, capacity, latency and cost.
//!
//! The capacity lies between the highest sustained step of the ladder and the next one (`verdict::knee`). Latencies of
//! several arms are compared at a common load: the highest that all of them sustain.

use amped_measure::stats::Summary;
use maud::{Markup, html};
use serde::Serialize;

use super::figures::{arm_label, cell, median, percent, step_at, step_name};
use super::verdict;
use crate::archive::{Archive, Arm, At, Run, RunStatus, SUBJECT, Step};
use crate::figure::{number, sign};

/// The table.
#[derive(Debug, Default, PartialEq, Serialize)]
pub(crate) struct Overview {
    /// The common load for latency, failures and cost, in connections per second or clients.
    pub(crate) at: Option<f64>,
    /// Whether every arm sustains that load.
    pub(crate) is_sustained_by_all: bool,
    /// The arms, without the repetition of the first.
    pub(crate) arms: Vec<Row>,
    /// The load as text.
    #[serde(skip)]
    at_text: String,
}

/// A row of the table: one arm.
#[derive(Debug, PartialEq, Serialize)]
pub(crate) struct Row {
    /// Its label.
    pub(crate) arm: String,
    /// The server.
    pub(crate) subject: String,
    /// The version that the program reports; empty if unknown.
    pub(crate) version: String,
    /// Levels of the factors other than the subject.
    pub(crate) levels: Vec<String>,
    /// The highest sustained load of the ladder; `None` if the lowest is not sustained, or in a closed loop.
    pub(crate) capacity_from: Option<f64>,
    /// The lowest load that is not sustained; `None` if the ladder or the client ended first.
    pub(crate) capacity_to: Option<f64>,
    /// Completed responses per second at the step with the highest rate.
    pub(crate) peak: Option<Interval>,
    /// Median latency at the common load, in ms.
    pub(crate) p50_ms: Option<Interval>,
    /// 95th percentile of latency at the common load, in ms.
    pub(crate) p95_ms: Option<Interval>,
    /// 99th percentile of latency at the common load, in ms.
    pub(crate) p99_ms: Option<Interval>,
    /// The share of connections and requests that failed at the common load.
    pub(crate) failed_share: Option<f64>,
    /// The server's CPU time per response at the common load, in microseconds.
    pub(crate) cpu_us: Option<Interval>,
    /// Valid runs, without attempts that were repeated.
    pub(crate) valid: usize,
    /// All runs, without attempts that were repeated.
    pub(crate) runs: usize,
    /// Whether the peak is a lower bound.
    pub(crate) is_at_least: bool,
}

/// A median over runs with its interval; with one run, both ends equal the median.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Interval {
    pub(crate) low: f64,
    pub(crate) median: f64,
    pub(crate) high: f64,
}

impl Interval {
    fn of(summary: Summary) -> Interval {
        let Summary { low, median, high, .. } = summary;
        Interval { low, median, high }
    }
}

/// Builds the table of these arms.
pub(super) fn overview(archive: &Archive, arms: &[&Arm]) -> Overview {
    let (at, is_sustained_by_all) = common_step(archive, arms).map_or((None, false), |(step, all)| (Some(step), all));
    Overview {
        at: at.map(Step::value),
        is_sustained_by_all,
        arms: arms.iter().map(|arm| row(archive, arm, at)).collect(),
        at_text: at.map_or_else(String::new, step_name),
    }
}

/// The highest step that every arm sustains, else the lowest at which all
/// have a figure; in a closed loop the highest at which all have one.
fn common_step(archive: &Archive, arms: &[&Arm]) -> Option<(Step, bool)> {
    let has_all = |step: &&Step| arms.iter().all(|arm| median(archive, &arm.id, **step, "p50").is_some());
    let mut known = archive.resolved.steps.iter().filter(has_all);
    if let Some(Step::Clients(_)) = archive.resolved.steps.first() {
        return known.next_back().map(|step| (*step, false));
    }
    let sustained: Option<Vec<f64>> =
        arms.iter().map(|arm| verdict::knee(archive, arm).sustained.map(Step::value)).collect();
    let least = sustained.and_then(|sustained| sustained.into_iter().reduce(f64::min));
    let highest = least.and_then(|least| known.clone().rfind(|step| step.value() <= least));
    highest.map(|step| (*step, true)).or_else(|| known.next().map(|step| (*step, false)))
}

fn row(archive: &Archive, arm: &Arm, at: Option<Step>) -> Row {
    let knee = verdict::knee(archive, arm);
    let peak = step_at(archive, arm, "rate", At::Peak);
    let of = |name: &str| median(archive, &arm.id, at?, name);
    let factors = archive.resolved.factors.iter().filter(|factor| factor.name != SUBJECT);
    let is_it = |run: &&Run| run.plan.arm == arm.id;
    let version =
        archive.resolved.programs.get(&arm.subject).map_or_else(String::new, |program| program.version.clone());
    Row {
        arm: arm_label(arm),
        subject: arm.subject.clone(),
        version: version.lines().next().unwrap_or_default().to_owned(),
        levels: factors.map(|factor| arm.levels.get(&factor.name).cloned().unwrap_or_default()).collect(),
        capacity_from: knee.sustained.map(Step::value),
        capacity_to: knee.not_sustained.map(Step::value),
        peak: peak.and_then(|step| median(archive, &arm.id, step, "rate")).map(Interval::of),
        p50_ms: of("p50").map(Interval::of),
        p95_ms: of("p95").map(Interval::of),
        p99_ms: of("p99").map(Interval::of),
        failed_share: of("failed-share").map(|share| share.median),
        cpu_us: of("cpu-per-reply").map(Interval::of),
        valid: archive.last_attempts().filter(is_it).filter(|run| run.status == RunStatus::Valid).count(),
        runs: archive.last_attempts().filter(is_it).count(),
        is_at_least: peak.is_some_and(|step| cell(archive, &arm.id, step).all(|run| run.status != RunStatus::Valid)),
    }
}

impl Row {
    /// The capacity as text; empty in a closed loop and without valid or censored runs.
    fn capacity(&self) -> String {
        match (self.capacity_from, self.capacity_to) {
            (Some(from), Some(to)) => format!("{} to {}", number(from), number(to)),
            (Some(from), None) => format!("≥ {}", number(from)),
            (None, Some(to)) => format!("< {}", number(to)),
            (None, None) => String::new(),
        }
    }

    /// The subject's name without its levels, which have their own columns.
    fn server(&self) -> String {
        match release(&self.version) {
            Some(release) => format!("{} {release}", self.subject),
            None => self.subject.clone(),
        }
    }
}

/// Extracts the release number from a program's version line: `1.22.1` of `nginx version: nginx/1.22.1`.
fn release(version: &str) -> Option<&str> {
    let is_number = |word: &&str| word.starts_with(|c: char| c.is_ascii_digit()) && word.contains('.');
    version.split(['/', ' ', '(', ')', ',']).map(|word| word.strip_prefix('v').unwrap_or(word)).find(is_number)
}

/// The table as HTML.
pub(super) fn table(archive: &Archive, overview: &Overview) -> Markup {
    let factors: Vec<&str> =
        archive.resolved.factors.iter().map(|factor| &factor.name[..]).filter(|name| *name != SUBJECT).collect();
    let rows = &overview.arms;
    let has = |of: fn(&Row) -> bool| rows.iter().any(of);
    let (has_capacity, has_p95) = (has(|row| !row.capacity().is_empty()), has(|row| row.p95_ms.is_some()));
    let figure = |interval: Option<Interval>| {
        html! {
            td {
                @match interval {
                    Some(Interval { low, median, high }) => {
                        (number(median))
                        @if high > low { br; span.faint { (number(low)) "–" (number(high)) } }
                    }
                    None => "–",
                }
            }
        }
    };
    html! {
        div.scroll { table.overview {
            tr {
                th.text { "server" }
                @for name in &factors { th.text { (name) } }
                @if has_capacity { th { "capacity, connections/s" } }
                th { "peak, responses/s" }
                th { "p50, ms" } @if has_p95 { th { "p95, ms" } } th { "p99, ms" }
                th { "failed" } th { "CPU/response, us" } th { "valid runs" }
            }
            @for (at, row) in rows.iter().enumerate() {
                tr {
                    @let (class, mark) = sign(at);
                    td.text { @if rows.len() > 1 { span.figure { span class=(class) { (mark) " " } } } (row.server()) }
                    @for level in &row.levels { td.text { (level) } }
                    @if has_capacity {
                        @let capacity = row.capacity();
                        td { strong { @if capacity.is_empty() { "–" } @else { (capacity) } } }
                    }
                    @match row.peak {
                        Some(Interval { low, median, high }) => td {
                            @if row.is_at_least { "≥ " } (number(median))
                            @if high > low { br; span.faint { (number(low)) "–" (number(high)) } }
                        },
                        None => td { "–" },
                    }
                    (figure(row.p50_ms)) @if has_p95 { (figure(row.p95_ms)) } (figure(row.p99_ms))
                    td { (row.failed_share.map_or_else(|| "–".to_owned(), percent)) }
                    (figure(row.cpu_us))
                    td { @if row.valid < row.runs { span.bad { (row.valid) " of " (row.runs) } } @else { (row.valid) " of " (row.runs) } }
                }
            }
        } }
        p.faint { (note(archive, overview, has_capacity)) }
    }
}

/// The note that explains the columns.
fn note(archive: &Archive, overview: &Overview, has_capacity: bool) -> String {
    let mut text = String::new();
    if has_capacity {
        text += "Capacity lies between the highest offered rate of which 98 % is completed and the next rate of the \
                 ladder; ≥ if the ladder ended, or the client reached its limit, first. ";
    }
    match (overview.at_text.as_str(), overview.is_sustained_by_all, overview.arms.len() > 1) {
        ("", ..) => {}
        (at, true, true) => {
            text += &format!("Latency, failures and CPU at {at}, the highest load that every arm sustains. ")
        }
        (at, true, false) => text += &format!("Latency, failures and CPU at {at}, the highest load that it sustains. "),
        (at, false, _) => text += &format!("Latency, failures and CPU at {at}. "),
    }
    let repetitions = archive.resolved.repetitions;
    text += match repetitions {
        1 => "One repetition: no intervals.",
        _ => "The interval over the repetitions is below each median.",
    };
    text
}

/// The table as text, a line for each arm.
pub(crate) fn text(overview: &Overview) -> String {
    let shown = |value: Option<Interval>| value.map_or_else(|| "-".to_owned(), |value| number(value.median));
    let mut rows =
        vec![["", "capacity/s", "peak/s", "p50 ms", "p95 ms", "p99 ms", "failed", "valid"].map(str::to_owned)];
    rows.extend(overview.arms.iter().map(|row| {
        let capacity = row.capacity();
        [
            row.arm.clone(),
            if capacity.is_empty() { "-".to_owned() } else { capacity },
            format!("{}{}", if row.is_at_least { "≥ " } else { "" }, shown(row.peak)),
            shown(row.p50_ms),
            shown(row.p95_ms),
            shown(row.p99_ms),
            row.failed_share.map_or_else(|| "-".to_owned(), percent),
            format!("{}/{}", row.valid, row.runs),
        ]
    }));
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..8).map(width).collect();
    let line = |row: &[String; 8]| {
        let cells = row.iter().zip(&widths).enumerate().map(|(at, (cell, width))| match at {
            0 => format!("{cell:<width$}"),
            _ => format!("  {cell:>width$}"),
        });
        cells.collect::<String>().trim_end().to_owned()
    };
    let mut lines: Vec<String> = rows.iter().map(line).collect();
    if !overview.at_text.is_empty() {
        lines.push(format!("latency and failures at {}", overview.at_text));
    }
    lines.join("\n")
}

/// The legend: a button for each curve, which hides or shows it in all figures.
pub(super) fn legend(arms: &[&Arm]) -> Markup {
    html! {
        @if arms.len() > 1 {
            div.figure.legend role="group" aria-label="Curves shown" {
                @for (at, arm) in arms.iter().enumerate() {
                    @let (class, mark) = sign(at);
                    button type="button" aria-pressed="true" data-toggles=(at) { span class=(class) { (mark) } " " (arm_label(arm)) }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    use crate::report::figures::drawn;
    use crate::report::tests::{archive, set_rate};

    #[test]
    fn release_is_parsed_from_version_output() {
        for (version, expected) in [
            ("nginx version: nginx/1.22.1", Some("1.22.1")),
            ("Server version: Apache/2.4.57 (Debian)", Some("2.4.57")),
            ("lighttpd/1.4.69 (ssl) - a light and fast webserver", Some("1.4.69")),
            ("h2o version 2.2.5", Some("2.2.5")),
            ("amped 0.1.0", Some("0.1.0")),
            ("Caddy v2.7.6 h1:abc", Some("2.7.6")),
            ("built in 2024", None),
            ("", None),
        ] {
            assert_eq!(release(version), expected, "{version}");
        }
    }

    fn of(archive: &Archive) -> Overview {
        overview(archive, &drawn(archive).collect::<Vec<_>>())
    }

    #[test]
    fn arms_are_compared_at_highest_load_all_sustain() {
        let mut archive = archive(Path::new("dir"), 4);
        let found = of(&archive);
        assert_eq!((found.at, found.is_sustained_by_all), (Some(1000.0), true));
        let [first, second] = &found.arms[..] else { panic!("{found:?}") };
        assert_eq!((first.capacity_from, first.capacity_to), (Some(1000.0), Some(1500.0)));
        assert_eq!(
            (first.capacity(), first.server(), first.valid, first.runs),
            ("1000 to 1500".to_owned(), "nginx 1.22".to_owned(), 11, 12)
        );
        assert!(first.peak.unwrap().low < first.peak.unwrap().high && !first.is_at_least, "{first:?}");
        // Logging costs a tenth more CPU.
        let ratio = second.cpu_us.unwrap().median / first.cpu_us.unwrap().median;
        assert!((1.05..1.15).contains(&ratio), "{ratio}");
        // If an arm does not sustain even the lowest load, the arms are compared there.
        let bad = archive.runs.iter_mut().filter(|run| run.plan.arm == "a1" && run.plan.step.value() == 500.0);
        bad.for_each(|run| {
            let summary = run.summary.as_mut().unwrap();
            (summary.ok, summary.failed) = (1500, 1000);
            set_rate(run, 300.0);
        });
        let found = of(&archive);
        assert_eq!((found.at, found.is_sustained_by_all), (Some(500.0), false));
        assert_eq!(found.arms[1].capacity(), "< 500");
        assert!(
            text(&found).lines().any(|line| line.starts_with("log on") && line.contains("< 500")),
            "{}",
            text(&found)
        );
    }

    #[test]
    fn closed_loop_has_no_capacity_and_one_run_no_interval() {
        let mut archive = archive(Path::new("dir"), 1);
        archive.resolved.steps = vec![Step::Clients(5)];
        archive.runs.retain(|run| run.plan.step.value() == 500.0);
        archive.runs.iter_mut().for_each(|run| run.plan.step = Step::Clients(5));
        let found = of(&archive);
        assert_eq!((found.at, found.arms[0].capacity()), (Some(5.0), String::new()));
        let peak = found.arms[0].peak.unwrap();
        assert_eq!(peak.low, peak.high);
        let page = table(&archive, &found).into_string();
        assert!(!page.contains("capacity") && page.contains("One repetition: no intervals"), "{page}");
        // Without runs, dashes stand for the unknown figures.
        archive.runs.clear();
        let found = of(&archive);
        assert_eq!((found.at, found.arms.len(), found.arms[0].peak), (None, 2, None));
        assert!(table(&archive, &found).into_string().contains("<td>–</td>"));
    }
}
