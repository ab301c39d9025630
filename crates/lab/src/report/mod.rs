//! `ammeter report`: renders an archive as one page that opens from disk without a network, and its figures as SVG.
//!
//! A pure function of the archive: the same directory gives the same bytes, years later and on another machine.
//!
//! ```text
//! verdict    the top of the page: knees, run counts
//! claims     the status of a paper's claims
//! overview   the table below it: a row for each arm
//! figures    points, curves and bars of an archive, which `crate::figure` draws: medians, intervals, validity
//! hosts      the table of several hosts: figures and clock of each
//! series     a run over time: clients, server, network; drawn by assets/report.js when it is opened
//! ```
//!
//! The page shows, in order: the verdict, the overview table, a figure for each metric with a curve for each arm, the
//! figures that a paper printed, the claims. Folded sections follow: what limits each arm, the comparison, the
//! experiment's other figures, CPU time, validation, each run over time, tables, and settings. The page names runs that
//! are missing, and missing files.

mod claims;
mod figures;
mod hosts;
mod overview;
mod series;
mod verdict;

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

use amped_measure::Failure;
use amped_measure::host::Machine;
use amped_measure::stats::Summary;
use maud::{Markup, PreEscaped, html};
use serde::Serialize;
use serde_json::json;

pub(crate) use self::claims::{ClaimStatus, Judged, Repeats, blocks, claim_summaries, claims, decide, open_claims};
use self::figures::Breakdown;
use self::figures::percent;
use self::overview::Overview;
pub(crate) use self::verdict::Counts;
use crate::archive::{Archive, Arm, Check, Run, RunStatus, SUBJECT, name};
use crate::compare::{self, Comparison};
use crate::diagnose::verdict::{Answer, Diagnosis};
use crate::figure::{Legend, number};
use crate::{diagnose, figure, page};

pub(crate) use self::overview::text as overview_text;

/// A rendered report.
#[derive(Debug)]
pub(crate) struct Report {
    /// The HTML page.
    pub(crate) html: String,
    /// The name and the SVG of each figure.
    pub(crate) figures: Vec<(String, String)>,
    /// The content of the report without its figures.
    pub(crate) summary: ReportSummary,
}

/// The content of a report without its figures.
#[derive(Debug, Serialize)]
pub(crate) struct ReportSummary {
    /// The experiment's name.
    pub(crate) experiment: String,
    /// The sentences at the top of the page.
    pub(crate) verdict: Vec<String>,
    /// The overview table.
    pub(crate) overview: Overview,
    /// The limit of each arm, as far as it is known.
    pub(crate) limits: Vec<String>,
    /// Run counts by status.
    pub(crate) runs: Counts,
    /// The experiment's claims, each with its status.
    pub(crate) claims: Vec<Judged>,
    /// The comparison of repeated arms (A/A).
    pub(crate) repeats: Repeats,
    /// Each arm compared with its counterpart.
    pub(crate) against_baseline: Vec<Comparison>,
    /// Missing runs and files, a line each.
    pub(crate) missing: Vec<String>,
    /// The names of the figures that the experiment defines: their file names without `.svg`.
    pub(crate) figures: Vec<String>,
    /// The files written.
    pub(crate) files: Vec<PathBuf>,
}

/// Writes the page and, on request, each figure into a directory, which it creates.
///
/// # Errors
/// If a file cannot be written.
pub(crate) fn write(archive: &Archive, page: &Path, svg: Option<&Path>) -> Result<ReportSummary, Failure> {
    let Report { html, figures, mut summary } = report(archive);
    let mut write = |path: PathBuf, text: &str| {
        fs::write(&path, text).map_err(Failure::io(format_args!("write {}", path.display())))?;
        summary.files.push(path);
        Ok(())
    };
    write(page.to_owned(), &html)?;
    if let Some(folder) = svg {
        fs::create_dir_all(folder).map_err(Failure::io(format_args!("create {}", folder.display())))?;
        figures.iter().try_for_each(|(name, svg)| write(folder.join(format!("{name}.svg")), svg))?;
    }
    Ok(summary)
}

/// Renders the report of an archive.
pub(crate) fn report(archive: &Archive) -> Report {
    let mut missing = missing(archive);
    let resolved = &archive.resolved;
    let arms: Vec<&Arm> = figures::drawn(archive).collect();
    let overview = overview::overview(archive, &arms);
    // The bands of several arms would hide each other.
    let band = match arms[..] {
        [only] => {
            let knee = verdict::knee(archive, only);
            knee.sustained.zip(knee.not_sustained).map(|(sustained, not)| (sustained.value(), not.value()))
        }
        _ => None,
    };

    let mut drawn = Drawn::default();
    let legend = if arms.len() > 1 { Legend::Shared } else { Legend::Own };
    let overlay: Vec<Markup> =
        figures::overlay(archive, band).iter().map(|(name, plot)| drawn.plot(name, plot, legend)).collect();
    let before = drawn.files.len();
    let figures: Vec<(Vec<Markup>, &crate::archive::Figure)> = resolved
        .figures
        .iter()
        .map(|figure| {
            let plots = figures::plots(archive, figure);
            (plots.iter().map(|plot| drawn.plot(&plot.title, plot, Legend::Own)).collect(), figure)
        })
        .collect();
    // Figures from a paper, or over a factor, are the subject of the
    // experiment; the others are over the load, as those above.
    let is_first = |(_, figure): &&(Vec<Markup>, &crate::archive::Figure)| {
        !figure.paper.is_empty() || resolved.factors.iter().any(|factor| factor.name == figure.x)
    };
    let own_figures = drawn.files[before..].iter().map(|(id, _)| id.clone()).collect();
    let cpu = figures::cpu(archive, &arms).map(|bars| drawn.bars(&bars.title, &bars));
    let mut profiles = Vec::new();
    for by in [Breakdown::Context, Breakdown::Category] {
        let bars = figures::profile(archive, &arms, by, &mut missing);
        profiles.extend(bars.map(|bars| drawn.bars(&bars.title, &bars)));
    }
    // Windows shorter than a second show nothing over time.
    let long_runs = archive.runs.iter().filter(|_| !resolved.is_interleaved);
    let timelines: Vec<series::Timeline> = long_runs.map(|run| series::timeline(archive, run, &mut missing)).collect();
    let claims = claims(archive);
    let repeats = claims::repeats(archive);
    let hosts = hosts::hosts(archive, &mut missing);
    let others = arms.iter().skip(1).copied();
    let against_baseline: Vec<Comparison> =
        others.map(|arm| compare::arms(archive, counterpart(&arms, arm), arm)).collect();
    let counts = verdict::counts(archive);
    let mut verdict = verdict::sentences(archive, &arms);
    verdict.extend(claim_summaries(&claims));

    // Invalid runs are not evidence.
    let is_sound = |run: &&Run| run.status != RunStatus::Invalid;
    let sound = Archive { runs: archive.runs.iter().filter(is_sound).cloned().collect(), ..archive.clone() };
    let (diagnoses, unknown) = match diagnose::diagnose(&sound) {
        Ok(found) => (found, None),
        Err(why) => (Vec::new(), Some(why.to_string())),
    };

    let shown = shown_first(archive, &arms);
    let (first, others): (Vec<_>, Vec<_>) = figures.iter().partition(is_first);
    let own = |figures: &[&(Vec<Markup>, &crate::archive::Figure)]| {
        html! {
            div.plots { @for (plots, figure) in figures { @for (at, drawn) in plots.iter().enumerate() {
                div { (drawn) @if at + 1 == plots.len() && !figure.paper.is_empty() { (values(archive, figure)) } }
            } } }
        }
    };
    let body = html! {
        (verdict_box(archive, &verdict, &diagnoses, &counts))
        (overview::table(archive, &overview))
        @if !missing.is_empty() {
            details {
                summary.bad { "Missing: " (missing[0]) @if missing.len() > 1 { ", and " (missing.len() - 1) " more" } }
                ul.bad { @for line in &missing { li { (line) } } }
            }
        }
        @if !overlay.is_empty() {
            h2 { "Results by load" }
            (overview::legend(&arms))
            div.plots.overlay { @for drawn in &overlay { (drawn) } }
            p.faint { "Medians of the repetitions with their intervals." }
        }
        @if !first.is_empty() {
            h2 { "Figures" }
            (own(&first))
        }
        @if !claims.is_empty() {
            h2 { "Claims" }
            div.scroll { (judged(&claims)) }
            @for line in open_claims(&claims) { p { (line) } }
            p { (repeats.sentence()) "." }
            p.faint { "Each value is a ratio or a metric within one block. The interval is over the blocks; the coverage is that of each of its ends. A claim holds or no longer holds if there are at least six blocks and the sign test on the side of the bound gives p of at most 5 %. Here each claim is judged by itself; the table of ammeter exhibits corrects for the number of claims, which requires more blocks. A claim is not applied if its treatment had no effect." }
        }
        h2 { "Details" }
        (folded("Bottleneck", html! {
            @for diagnosis in &diagnoses { (limits(diagnosis, diagnoses.len() > 1)) }
            @if let Some(why) = &unknown { p.faint { "Unknown: " (why) } }
        }))
        @if !against_baseline.is_empty() {
            (folded("Comparison", html! {
                p.faint { "Ratios of runs at the same step in the same block. The noise band is the ratio of two equal arms. " (baseline_again(archive)) }
                @match &against_baseline[..] {
                    [only] => (compared(only)),
                    all => (compared_all(all)),
                }
            }))
        }
        @if !others.is_empty() { (folded("More figures", own(&others))) }
        @if cpu.is_some() || !profiles.is_empty() {
            (folded("Processor time", html! { div.plots { @for drawn in cpu.iter().chain(&profiles) { (drawn) } } }))
        }
        (folded("Validity", validation(archive)))
        @if let Some(hosts) = &hosts { (folded("Hosts", hosts.clone())) }
        @if !timelines.is_empty() {
            (folded("Each run over time", html! {
                p.faint { "Clients, server and network on one axis: seconds since the measured load began." }
                @for (at, (run, timeline)) in archive.runs.iter().zip(&timelines).enumerate() {
                    (over_time(archive, at, run, timeline, Some(&run.plan.id) == shown.as_ref()))
                }
            }))
        }
        (folded("Metrics by arm and step", html! { div.scroll { (by_step(archive, &arms)) } }))
        (folded("All runs", html! { div.scroll { (all_runs(archive)) } }))
        (folded("Settings", settings(archive)))
    };
    let heading = if resolved.title.is_empty() { &resolved.name } else { &resolved.title };
    let below = format!("{}, started {}", resolved.name, ammeter_load::date(resolved.began_s));
    let data = json!({ "runs": timelines });
    let html = page::page(&format!("{heading} - ammeter"), heading, &below, &body, &data, SCRIPT);
    let summary = ReportSummary {
        experiment: resolved.name.clone(),
        verdict,
        overview,
        limits: diagnoses.iter().map(|one| format!("{}: {}", one.arm, one.sentence)).collect(),
        runs: counts,
        claims,
        repeats,
        against_baseline,
        missing,
        figures: own_figures,
        files: Vec::new(),
    };
    Report { html, figures: drawn.files, summary }
}

const SCRIPT: &str = include_str!("../../assets/report.js");

/// The figures rendered so far, for the page and as files under unique names.
#[derive(Default)]
struct Drawn {
    files: Vec<(String, String)>,
}

impl Drawn {
    fn plot(&mut self, name: &str, plot: &figure::Plot, legend: Legend) -> Markup {
        let id = self.id(name);
        let svg = figure::plot(&id, plot, legend);
        // A file has no page around it to name the curves.
        let alone = if legend == Legend::Own { svg.clone() } else { figure::plot(&id, plot, Legend::Own) };
        self.add(id, &svg, &alone)
    }

    fn bars(&mut self, name: &str, bars: &figure::Bars) -> Markup {
        let id = self.id(name);
        let svg = figure::bars(&id, bars);
        self.add(id, &svg, &svg)
    }

    /// Returns a unique id for a figure: the letters and digits of its
    /// name, and a number if another figure has the same.
    fn id(&self, name: &str) -> String {
        const LONGEST: usize = 60;
        let mut word = String::new();
        for c in name.to_lowercase().chars().take(LONGEST) {
            if c.is_ascii_alphanumeric() {
                word.push(c);
            } else if !word.ends_with('-') && !word.is_empty() {
                word.push('-');
            }
        }
        let word = if word.is_empty() { "figure" } else { word.trim_end_matches('-') };
        let is_taken = |id: &str| self.files.iter().any(|(taken, _)| taken == id);
        let numbered = (2..).map(|number| format!("{word}-{number}"));
        std::iter::once(word.to_owned()).chain(numbered).find(|id| !is_taken(id)).unwrap_or_default()
    }

    fn add(&mut self, id: String, in_page: &str, alone: &str) -> Markup {
        self.files.push((id, figure::file(alone)));
        html! { figure { (PreEscaped(in_page)) } }
    }
}

/// A folded section of the page, which its heading opens.
fn folded(heading: &str, inside: Markup) -> Markup {
    html! { details.part { summary { h3 { (heading) } } (inside) } }
}

/// Lists the runs and files missing from the directory.
fn missing(archive: &Archive) -> Vec<String> {
    let mut missing = Vec::new();
    let Counts { planned, there, .. } = verdict::counts(archive);
    if there < planned {
        missing.push(format!(
            "{} of {planned} runs are missing: the experiment is in progress or was stopped; ammeter run resumes it",
            planned - there
        ));
    }
    if archive.clients.is_none() {
        missing.push("the capacity of the clients has not been measured yet: no clients.json".to_owned());
    }
    let blocks = archive.resolved.repetitions as usize;
    if archive.blocks.len() < blocks {
        missing.push(format!("the idle machine was observed for {} of {blocks} blocks", archive.blocks.len()));
    }
    // A run without load lacks no files.
    let ran: Vec<&str> = archive.runs.iter().filter(|run| run.summary.is_some()).map(|run| &run.plan.id[..]).collect();
    let files = if archive.resolved.interval_ms > 0.0 { &[name::LOAD, name::MONITOR][..] } else { &[name::LOAD] };
    for file in files {
        let without: Vec<&str> = ran.iter().copied().filter(|id| !archive.file(id, file).exists()).collect();
        match without[..] {
            [] => {}
            [first] => missing.push(format!("no {file} of {first}")),
            [first, .., last] => missing.push(format!("no {file} of {} runs, from {first} to {last}", without.len())),
        }
    }
    missing.extend(archive.runs.iter().filter(|run| run.summary.is_none()).map(|run| {
        let why = if run.why.is_empty() { "no reason recorded".to_owned() } else { run.why.join("; ") };
        format!("{}: no results: {why}", run.plan.id)
    }));
    missing
}

/// The counterpart that an arm is compared with: the first subject at the same levels if it exists, else the first arm.
fn counterpart<'a>(arms: &[&'a Arm], arm: &'a Arm) -> &'a Arm {
    let first = arms.first().copied().unwrap_or(arm);
    let mut levels = arm.levels.clone();
    if let Some(subject) = first.levels.get(SUBJECT) {
        levels.insert(SUBJECT.to_owned(), subject.clone());
    }
    arms.iter().copied().find(|other| other.id != arm.id && other.levels == levels).unwrap_or(first)
}

/// The run that the page shows open at first: the first arm at its highest rate.
fn shown_first(archive: &Archive, arms: &[&Arm]) -> Option<String> {
    let peak = arms.first().and_then(|arm| {
        let step = figures::step_at(archive, arm, "rate", crate::archive::At::Peak)?;
        figures::cell(archive, &arm.id, step).min_by_key(|run| run.status as u8)
    });
    peak.or(archive.runs.first()).map(|run| run.plan.id.clone())
}

/// The bottleneck with the evidence for it and what would refute it; folded if there are several arms.
fn limits(diagnosis: &Diagnosis, has_others: bool) -> Markup {
    let Diagnosis { arm, sentence, confidence, evidence, follows, refuted_by, .. } = diagnosis;
    let last = if diagnosis.answer == Answer::Bottleneck { "What would refute it" } else { "What to try" };
    let lists = [("Evidence", evidence), ("Consequences", follows), (last, refuted_by)];
    let finding = html! {
        strong { (sentence) "." }
        @if diagnosis.answer != Answer::Borne { " Confidence: " (confidence) "." }
    };
    let reasons = html! {
        @for (heading, lines) in lists.iter().filter(|(_, lines)| !lines.is_empty()) {
            p.faint { (heading) }
            ul { @for line in *lines { li { (line) } } }
        }
    };
    html! {
        @if has_others {
            details { summary { (arm) ": " (finding) } (reasons) }
        } @else {
            p { (finding) }
            (reasons)
        }
    }
}

fn verdict_box(archive: &Archive, sentences: &[String], diagnoses: &[Diagnosis], counts: &Counts) -> Markup {
    /// Maximum number of diagnosis sentences in the summary.
    const SENTENCES: usize = 3;
    let resolved = &archive.resolved;
    let Counts { planned, there, again, valid, censored, invalid } = counts;
    let class = match () {
        () if there < planned || *valid == 0 && *censored == 0 => "verdict broken",
        () if *censored > 0 || *invalid > 0 => "verdict at-least",
        () => "verdict valid",
    };
    let mut runs = format!("{there} of {planned} runs: {valid} valid");
    if *censored > 0 {
        let _ = write!(runs, ", {censored} lower bound{}", if *censored == 1 { "" } else { "s" });
    }
    if *invalid > 0 {
        let _ = write!(runs, ", {invalid} invalid ({})", reasons(archive));
    }
    if *again > 0 {
        let _ = write!(
            runs,
            "; {again} earlier attempt{} invalid and repeated",
            if *again == 1 { " was" } else { "s were" }
        );
    }
    // Nothing limits an arm that sustains every step; its fullest resources appear further below.
    let is_shown = |one: &&Diagnosis| match one.answer {
        Answer::Borne => false,
        Answer::Bottleneck => !verdict::bears_all(archive, &one.arm),
        Answer::ClientBound | Answer::NotFound => true,
    };
    html! {
        div class=(class) {
            @for line in sentences { p { strong { (line) } } }
            @for diagnosis in diagnoses.iter().filter(is_shown).take(SENTENCES) {
                p { @if diagnoses.len() > 1 { (diagnosis.arm) ": " } (diagnosis.sentence) }
            }
            @if sentences.is_empty() { p { strong { "No arm to report." } } }
            p { (runs) "." @if resolved.quick { " This is the short version of the experiment." } }
        }
        @if !resolved.about.is_empty() { p { (resolved.about) } }
    }
}

/// Counts the invalid runs by the check that they failed.
fn reasons(archive: &Archive) -> String {
    let mut reasons: Vec<(&str, usize)> = Vec::new();
    let invalid = archive.last_attempts().filter(|run| run.status == RunStatus::Invalid);
    for check in invalid.flat_map(|run| &run.checks).filter(|check| check.holds == Some(false)) {
        match reasons.iter_mut().find(|(name, _)| *name == check.name) {
            Some((_, count)) => *count += 1,
            None => reasons.push((&check.name, 1)),
        }
    }
    reasons.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    let parts: Vec<String> = reasons.iter().map(|(name, count)| format!("{name}: {count}")).collect();
    if parts.is_empty() { "reasons below".to_owned() } else { parts.join(", ") }
}

/// The paper's values as numbers: a curve shows them only roughly.
fn values(archive: &Archive, figure: &crate::archive::Figure) -> Markup {
    let x = |x: f64| figures::level(archive, figure, x).unwrap_or_else(|| number(x));
    html! {
        p.faint {
            "The paper's values: "
            @for (at, curve) in figure.paper.iter().enumerate() {
                @if at > 0 { "; " }
                (curve.name) ": "
                @for (at, [place, y]) in curve.points.iter().enumerate() {
                    @if at > 0 { ", " }
                    (number(*y)) " at " (x(*place))
                }
            }
            "."
        }
    }
}

fn judged(claims: &[Judged]) -> Markup {
    html! {
        table {
            tr { th.text { "claim" } th.text { "compared" } th { "bound" } th { "paper" } th { "measured" } th { "interval" } th { "blocks" } th { "coverage" } th { "p" } th.text { "status" } th.text { "version" } }
            @for claim in claims {
                tr {
                    td.text { (claim.says) } td.text { (claim.compared) } td { (claim.holds) }
                    td { (claim.paper.map_or_else(|| "–".to_owned(), number)) }
                    @match claim.here {
                        Some([low, median, high]) => { td { (number(median)) } td { (number(low)) " to " (number(high)) } }
                        None => { td { "–" } td { "–" } }
                    }
                    td { (claim.blocks) } td { (percent(claim.coverage)) }
                    td { (claim.p.map_or_else(|| "–".to_owned(), |p| format!("{p:.3}"))) }
                    td.text { (claim.status.ends()) @if claim.is_self_test { " (self-test)" } }
                    td.text { (claim.hash) }
                }
            }
        }
    }
}

fn baseline_again(archive: &Archive) -> &'static str {
    if archive.resolved.arms.iter().any(|arm| arm.is_again) {
        "The first arm was measured twice in each block: the ratios of the two are the noise band. The repetition is listed in the tables but not drawn."
    } else {
        "No arm was measured twice in a block, so no noise band is known."
    }
}

fn compared(comparison: &Comparison) -> Markup {
    html! {
        h3 { (comparison.b) " against " (comparison.a) }
        p { (comparison.sentence()) }
        @if !comparison.figures.is_empty() {
            div.scroll { table {
                tr { th.text { "figure" } th { (comparison.a) } th { (comparison.b) } th { "ratio" } th { "interval" } th { "pairs" } th { "noise band" } th.text { "finding" } }
                @for figure in &comparison.figures {
                    tr {
                        td.text { (figure.name()) } td { (number(figure.a)) } td { (number(figure.b)) }
                        td { (format!("{:.3}", figure.ratio.median)) }
                        td { (format!("{:.3} to {:.3}", figure.ratio.low, figure.ratio.high)) }
                        td { (figure.pairs) }
                        td { @match figure.noise { Some(band) => { (format!("{:.3} to {:.3}", band.low, band.high)) } None => { "–" } } }
                        td.text { (figure.ratio_text()) }
                    }
                }
            } }
        }
        @for line in &comparison.cautions { p.faint { (line) } }
    }
}

/// Several comparisons in one table: the ratio of each figure, and whether it is a difference.
fn compared_all(comparisons: &[Comparison]) -> Markup {
    let mut figures: Vec<String> = Vec::new();
    let mut cautions: Vec<&String> = Vec::new();
    for comparison in comparisons {
        let names = comparison.figures.iter().map(compare::Compared::name).filter(|name| !figures.contains(name));
        let names: Vec<String> = names.collect();
        figures.extend(names);
        cautions.extend(&comparison.cautions);
    }
    cautions.sort_unstable();
    cautions.dedup();
    html! {
        div.scroll { table {
            tr { th.text { "arm" } th.text { "against" } @for name in &figures { th { (name) } } th { "pairs" } th { "noise band" } }
            @for comparison in comparisons {
                @let first = comparison.figures.first();
                tr {
                    td.text.word { (comparison.b) } td.text.word { (comparison.a) }
                    @for name in &figures {
                        td { @if let Some(figure) = comparison.figures.iter().find(|figure| figure.name() == *name) {
                            @let ratio = format!("{:.3}", figure.ratio.median);
                            @match figure.finding {
                                compare::Finding::Difference => strong { (ratio) },
                                compare::Finding::NoDifference => (ratio),
                                compare::Finding::Undecided => span.faint { (ratio) " ?" },
                            }
                            br; span.faint { (format!("{:.3} to {:.3}", figure.ratio.low, figure.ratio.high)) }
                        } @else { "–" } }
                    }
                    td { (first.map_or(0, |figure| figure.pairs)) }
                    td { @match first.and_then(|figure| figure.noise) { Some(band) => { (format!("{:.3} to {:.3}", band.low, band.high)) } None => { "–" } } }
                }
            }
        } }
        p.faint { "Bold: a difference. Plain: no difference larger than the noise. Question mark: too few pairs. Pairs and noise band are those of the first metric." }
        @for line in cautions { p.faint { (line) } }
    }
}

/// The checks made before, during and after the runs.
fn validation(archive: &Archive) -> Markup {
    let bad: Vec<&Run> = archive.runs.iter().filter(|run| run.status != RunStatus::Valid).collect();
    let is_last = |run: &Run| archive.last_attempts().any(|last| last.plan.id == run.plan.id);
    let mut names: Vec<&str> = Vec::new();
    for check in archive.runs.iter().flat_map(|run| &run.checks) {
        if !names.contains(&&check.name[..]) {
            names.push(&check.name);
        }
    }
    let count = |name: &str, holds: Option<bool>| {
        let is_it = |check: &&Check| check.name == name && check.holds == holds;
        archive.runs.iter().flat_map(|run| &run.checks).filter(is_it).count()
    };
    let first_failure = |name: &str| {
        let fails = |check: &&Check| check.name == name && check.holds == Some(false);
        archive.runs.iter().find_map(|run| Some(format!("{}: {}", run.plan.id, run.checks.iter().find(fails)?.says)))
    };
    html! {
        @if !names.is_empty() {
            div.scroll { table {
                tr { th.text { "check" } th { "passed" } th { "failed" } th { "skipped" } th.text { "first failure" } }
                @for name in names {
                    tr {
                        td.text { (name) } td { (count(name, Some(true))) } td { (count(name, Some(false))) } td { (count(name, None)) }
                        td.text { (first_failure(name).unwrap_or_default()) }
                    }
                }
            } }
        }
        @if !bad.is_empty() {
            details open[bad.len() <= 12] {
                summary { (bad.len()) " runs that are not valid, with the reasons" }
                ul { @for run in bad { li { (run.plan.id) ": " (status_name(run.status)) @if !is_last(run) { ", repeated" } @if !run.why.is_empty() { ": " (run.why.join("; ")) } } } }
            }
        }
        @if let Some(clients) = &archive.clients {
            h3 { "Capacity of the clients, against a null server" }
            @if let Some(why) = &clients.skipped { p { "Not measured: " (why) } }
            @if !clients.steps.is_empty() {
                div.scroll { table {
                    tr { th.text { "load" } th { "offered/s" } th { "correct responses/s" } th { "lateness p99, ms" } th.text { "schedule" } }
                    @for step in &clients.steps {
                        tr {
                            td.text { (figures::step_name(step.step)) } td { (number(step.offered_rate)) } td { (number(step.rate)) }
                            td { (number(step.lateness_p99_ms)) }
                            td.text { @if step.is_kept { "kept" } @else { span.bad { "not kept: " (step.why.join("; ")) } } }
                        }
                    }
                } }
            }
        }
        @if !archive.blocks.is_empty() {
            h3 { "Idle machine before each block" }
            div.scroll { table {
                tr { th { "block" } th { "CPU in use" } th { "stolen by the hypervisor" } th { "packets/s" } th { "disk, KiB/s" } th.text { "busiest" } th.text { "clean" } }
                @for block in &archive.blocks {
                    tr {
                        td { (block.block) } td { (percent(block.busy)) } td { (percent(block.stolen)) }
                        td { (number(block.packets_per_s)) } td { (number(block.disk_bytes_per_s / 1024.0)) }
                        td.text { (block.busiest.iter().map(|(name, cores)| format!("{name} {cores:.2}")).collect::<Vec<_>>().join(", ")) }
                        td.text { @if block.is_clean { "yes" } @else { span.bad { "no" } } }
                    }
                }
            } }
        }
    }
}

fn over_time(archive: &Archive, at: usize, run: &Run, timeline: &series::Timeline, is_open: bool) -> Markup {
    let label = archive.arm(&run.plan.arm).map_or(&run.plan.arm, |arm| &arm.label);
    let step = figures::step_name(run.plan.step);
    let figures = run.summary.as_ref().map(|summary| {
        format!("{} responses/s, p99 {} ms", number(summary.window.completed_rate), number(summary.latency.p99_ms))
    });
    html! {
        details.run id=(format!("run-{at}")) open[is_open] {
            summary {
                (label) ", " (step) ", block " (run.plan.block) ": " (status_name(run.status))
                @if let Some(figures) = figures { span.faint { " " (figures) } }
            }
            @for line in &run.why { p.bad { (line) } }
            @if timeline.charts.is_empty() { p.faint { "This run has no time series." } }
            @for (chart, drawn) in timeline.charts.iter().enumerate() {
                figure { div id=(format!("run-{at}-{chart}")) {} figcaption { (drawn.caption) } }
            }
        }
    }
}

fn status_name(status: RunStatus) -> &'static str {
    match status {
        RunStatus::Valid => "valid",
        RunStatus::Censored => "at least",
        RunStatus::Invalid => "invalid",
    }
}

/// The columns of the tables: metric and heading.
const COLUMNS: [(&str, &str); 9] = [
    ("offered-rate", "offered/s"),
    ("request-rate", "requests/s"),
    ("rate", "responses/s"),
    ("failed-share", "failed"),
    ("p50", "p50 ms"),
    ("p99", "p99 ms"),
    ("throughput", "Mbit/s"),
    ("server-cpu", "server cores"),
    ("cpu-per-reply", "CPU us/response"),
];

fn column(name: &str, value: f64) -> String {
    if name == "failed-share" { percent(value) } else { number(value) }
}

fn by_step(archive: &Archive, arms: &[&Arm]) -> Markup {
    let cell = |arm: &Arm, step, name: &str| {
        let Some(Summary { low, median, high, .. }) = figures::median(archive, &arm.id, step, name) else {
            return "–".to_owned();
        };
        let spread =
            if high > low { format!(" ({} to {})", column(name, low), column(name, high)) } else { String::new() };
        format!("{}{spread}", column(name, median))
    };
    let statuses = |arm: &Arm, step| {
        let of = |status| figures::cell(archive, &arm.id, step).filter(|run| run.status == status).count();
        let counts = [(RunStatus::Valid, "valid"), (RunStatus::Censored, "at least"), (RunStatus::Invalid, "invalid")];
        let parts = counts.into_iter().map(|(status, name)| (of(status), name)).filter(|(count, _)| *count > 0);
        parts.map(|(count, name)| format!("{count} {name}")).collect::<Vec<_>>().join(", ")
    };
    html! {
        table {
            tr { th.text { "arm" } th.text { "load" } @for (_, heading) in COLUMNS { th { (heading) } } th.text { "runs" } }
            @for arm in arms {
                @for step in archive.resolved.steps_of(arm) {
                    tr {
                        td.text.word { (arm.label) } td.text.word { (figures::step_name(*step)) }
                        @for (name, _) in COLUMNS { td { (cell(arm, *step, name)) } }
                        td.text { (statuses(arm, *step)) }
                    }
                }
            }
        }
    }
}

fn all_runs(archive: &Archive) -> Markup {
    html! {
        table {
            tr { th.text { "run" } th.text { "arm" } @for (_, heading) in COLUMNS { th { (heading) } } th.text { "failures" } th.text { "status" } }
            @for run in &archive.runs {
                tr {
                    td.text.word { (run.plan.id) }
                    td.text.word { (archive.arm(&run.plan.arm).map_or("", |arm| &arm.label)) }
                    @for (name, _) in COLUMNS {
                        td { (figures::value(run, name).map_or_else(|| "–".to_owned(), |value| column(name, value))) }
                    }
                    td.text { @if let Some(summary) = &run.summary { (summary.failures.iter().map(|(kind, count)| format!("{kind} {count}")).collect::<Vec<_>>().join(", ")) } }
                    td.text.word { (status_name(run.status)) }
                }
            }
        }
    }
}

/// The machine, the programs, the arms, and the experiment's file.
fn settings(archive: &Archive) -> Markup {
    let (resolved, host) = (&archive.resolved, &archive.host);
    let machine = &host.machine;
    let mut rows: Vec<(String, String)> = vec![
        ("machine".to_owned(), format!("{}, {} cores", machine.cpu, machine.cores)),
        ("memory".to_owned(), format!("{} MiB", host.memory_bytes >> 20)),
        ("kernel".to_owned(), format!("{}, {}", machine.kernel, machine.congestion_control)),
        ("load average before".to_owned(), host.load_average.clone()),
    ];
    rows.extend(host.test_bed.iter().map(|line| ("test bed".to_owned(), line.clone())));
    rows.extend(host.clients.iter().map(|(name, client)| {
        let Machine { cpu, cores, kernel, congestion_control } = &client.machine;
        (format!("client {name}"), format!("{cpu}, {cores} cores, {kernel}, {congestion_control}"))
    }));
    rows.extend(host.kernel.iter().map(|(name, value)| (name.clone(), value.clone())));
    rows.extend(resolved.programs.iter().map(|(name, program)| {
        let hash = if program.sha256.is_empty() { String::new() } else { format!(", SHA-256 {}", program.sha256) };
        (name.clone(), format!("{}, {}{hash}", program.path.display(), program.version))
    }));
    rows.extend([
        ("repetitions".to_owned(), resolved.repetitions.to_string()),
        ("measured, warm-up".to_owned(), format!("{} s, {} s", resolved.duration_s, resolved.warm_up_s)),
        ("seed".to_owned(), resolved.seed.to_string()),
    ]);
    let file = fs::read_to_string(archive.dir.join(name::EXPERIMENT)).unwrap_or_default();
    html! {
        table.pairs { @for (name, value) in &rows { tr { td { (name) } td { (value) } } } }
        @for arm in resolved.arms.iter().filter(|arm| !arm.settings.is_empty()) {
            details { summary { "Settings of " (arm.label) } pre { (arm.settings) } }
        }
        @if !file.is_empty() { details { summary { "Experiment file" } pre { (file) } } }
    }
}

#[cfg(test)]
pub(crate) mod tests;
