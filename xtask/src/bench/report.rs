//! What was measured, as a table for people, a file of all samples for programs, and a plot.
//!
//! An exhibit's folder has `result.json`, `plot.svg` and `README.md`. In the last one everything between two marks is
//! written anew each time; what stands outside them is a person's, who has looked at it.

use std::fs;
use std::path::Path;

use amped_measure::stats::Summary;

use super::exhibit::{Exhibit, Point, Shape};
use super::plot;
use super::record::{AGAIN, LeftOut, Record};
use super::sample::{Metric, Sample, figure};
use crate::command::Outcome;

/// Everything that is said of a run, as Markdown that can be read as it is.
pub(super) fn tables(exhibit: &Exhibit, record: &Record) -> String {
    let mut text = String::new();
    let mut groups: Vec<&str> = exhibit.points.iter().map(|point| point.group).collect();
    groups.dedup();
    let arms = record.arms(exhibit);
    let [first, ..] = exhibit.metrics else { return text };
    for group in groups {
        let points: Vec<&Point> = exhibit.points.iter().filter(|point| point.group == group).collect();
        let heading = if group.is_empty() { String::new() } else { format!(", {group}") };
        if exhibit.shape == Shape::Steps {
            for point in &points {
                text += &steps(exhibit, record, point, &arms);
            }
            continue;
        }
        let labels: Vec<&str> = points.iter().map(|point| &point.label[..]).collect();
        for metric in exhibit.metrics {
            text += &row("", &labels, &format!("{}{heading}", metric.title()));
            let cells =
                |arm: &&str| -> Vec<String> { points.iter().map(|point| cell(record, *metric, point, arm)).collect() };
            arms.iter().for_each(|arm| text += &line(arm, &cells(arm)));
            text += "\n";
        }
        text += &row("", &labels, &format!("ratio to {}: {}{heading}", arms[0], first.title()));
        for arm in arms[1..].iter().chain([&AGAIN]) {
            let cells: Vec<String> =
                points.iter().map(|point| ratio_cell(record, *first, point, arm, arms[0], arms[0])).collect();
            text += &line(arm, &cells);
        }
        text += "\n";
    }
    text + &notes(exhibit, record)
}

/// The table of steps: each against the first and against the one before.
fn steps(exhibit: &Exhibit, record: &Record, point: &Point, arms: &[&str]) -> String {
    let [first, others @ ..] = exhibit.metrics else { return String::new() };
    let mut columns = vec![first.title(), "ratio to the first", "ratio to the one before"];
    columns.extend(others.iter().map(|metric| metric.title()));
    let mut text = row("", &columns, &point.label);
    for (at, arm) in arms.iter().chain([&AGAIN]).enumerate() {
        let before = if *arm == AGAIN { 0 } else { at.saturating_sub(1) };
        let mut cells = vec![cell(record, *first, point, arm)];
        cells.extend([0, before].map(|to| match *arm == arms[to] {
            true => String::new(),
            false => ratio_cell(record, *first, point, arm, arms[to], arms[0]),
        }));
        cells.extend(others.iter().map(|metric| cell(record, *metric, point, arm)));
        text += &line(arm, &cells);
    }
    text + "\n"
}

fn row(corner: &str, columns: &[&str], title: &str) -> String {
    let dashes = "---|".repeat(columns.len() + 1);
    format!("**{title}**\n\n| {corner} | {} |\n|{dashes}\n", columns.join(" | "))
}

fn line(name: &str, cells: &[String]) -> String {
    format!("| {name} | {} |\n", cells.join(" | "))
}

/// `0.912 (0.905-0.921)`.
pub(super) fn interval(summary: Summary, shown: impl Fn(f64) -> String) -> String {
    let Summary { low, median, high, coverage } = summary;
    let interval = if coverage > 0.0 { format!(" ({}-{})", shown(low), shown(high)) } else { String::new() };
    shown(median) + &interval
}

/// From this share of its core on a client is thought to have been too slow for the server.
const CLIENT_FULL: f64 = 0.95;

fn cell(record: &Record, metric: Metric, point: &Point, arm: &str) -> String {
    let Some(found) = record.summary(metric, point, arm) else { return String::new() };
    let client = Summary::of(record.samples_of(point, arm).map(|sample| sample.client_share));
    let least = metric.has_ceiling() && client.is_some_and(|client| client.median > CLIENT_FULL);
    let least = if least { "≥ " } else { "" };
    least.to_owned() + &interval(found, figure)
}

/// A ratio, with a mark where it is none that can be told from what the first arm makes with itself.
fn ratio_cell(record: &Record, metric: Metric, point: &Point, arm: &str, to: &str, first: &str) -> String {
    let Some(ratio) = record.ratio(metric, point, arm, to) else { return String::new() };
    let noise = record.ratio(metric, point, AGAIN, first);
    let is_noise = ratio.low <= 1.0 && 1.0 <= ratio.high || noise.is_some_and(|noise| noise.meets(&ratio));
    // Of a single measurement there is no saying.
    let mark = if is_noise && arm != AGAIN && ratio.coverage > 0.0 { " ~" } else { "" };
    interval(ratio, |ratio| format!("{ratio:.3}")) + mark
}

/// What the two cores were for, and how busy they were in these measurements.
pub(super) fn uses<'a>(first: &str, samples: impl IntoIterator<Item = &'a Sample> + Clone) -> String {
    let share = |of: fn(&Sample) -> f64| {
        Summary::of(samples.clone().into_iter().map(of)).map_or(0.0, |share| share.median * 100.0)
    };
    format!(
        ", one for the {first} and one for the client (medians: server {:.0} %, client {:.0} %, all others {:.0} % of a core)",
        share(|sample| sample.server_share),
        share(|sample| sample.client_share),
        share(|sample| sample.others_share)
    )
}

/// How to read the tables, and what else is known of the run.
fn notes(exhibit: &Exhibit, record: &Record) -> String {
    let Record { quick, seed, host, left_out, refused, samples } = record;
    let rounds = samples.iter().map(|sample| sample.round + 1).max().unwrap_or_default();
    let coverage = Summary::of((0..rounds).map(|round| round as f64)).map_or(0.0, |summary| summary.coverage * 100.0);
    let medians = match rounds {
        1 => "Measured once, which shows that it works and not what it is worth".to_owned(),
        _ => format!("Medians of {rounds} rounds, and the {coverage:.0} % interval of the median (order statistics)"),
    };
    let only = format!("--only {}{}", exhibit.name, if *quick { " --quick" } else { "" });
    let mut text = format!(
        "{medians}. Ratios are those within a round. `~`: not to be told from 1, or from what \"{AGAIN}\", the first arm once more, \
         makes. `≥`: the client had no time left, so the server could do more.\n\n\
         `cargo xtask bench ablation {only} --seed {seed}`, {}.\n",
        host.sentence(&uses("server", samples), &format!(", {}", host.wrk), ", loopback")
    );
    for LeftOut { arms, why } in left_out {
        text += &format!("\nNot measured: {}. The server of that commit says: {why}\n", arms.join(", "));
    }
    if !refused.is_empty() {
        text += &format!("\nMeasurements made again: {}. The first: {}\n", refused.len(), refused[0]);
    }
    text
}

pub(super) const BEGIN: &str = "<!-- What follows is written anew by each run. -->";
pub(super) const END: &str = "<!-- From here on it is a person who writes. -->";
const FINDINGS: &str = "## What agrees with the paper, and what no longer does\n";

/// Writes the three files of an exhibit.
pub(super) fn write(folder: &Path, exhibit: &Exhibit, record: &Record) -> Outcome {
    let measured = format!("{}\n\n![plot](plot.svg)\n\n{}", exhibit.story, tables(exhibit, record));
    write_files(folder, exhibit.title, &measured, &plot::svg(exhibit, record), &json(record)?)
}

/// The same from what stands in them; of the README only what was measured is written anew.
pub(super) fn write_files(folder: &Path, title: &str, measured: &str, plot: &str, result: &str) -> Outcome {
    let at = |error: std::io::Error| format!("cannot write into {}: {error}", folder.display());
    fs::create_dir_all(folder).map_err(at)?;
    let readme = folder.join("README.md");
    let before = fs::read_to_string(&readme).unwrap_or_default();
    fs::write(&readme, with_measured(&before, title, measured)).map_err(at)?;
    fs::write(folder.join("plot.svg"), plot).map_err(at)?;
    fs::write(folder.join("result.json"), result).map_err(at)
}

/// Puts what was measured between the marks of a text; a new one gets a heading, and a place for findings.
pub(super) fn with_measured(text: &str, title: &str, measured: &str) -> String {
    let new = format!("# {title}\n\n{BEGIN}\n{END}\n\n{FINDINGS}");
    let text = if text.contains(BEGIN) && text.contains(END) { text } else { &new };
    let (head, rest) = text.split_once(BEGIN).expect("it contains the mark");
    let (_, tail) = rest.split_once(END).expect("it contains the mark");
    format!("{head}{BEGIN}\n\n{}\n\n{END}{tail}", measured.trim_end())
}

/// The record with a line for each sample, so that a difference shows which have changed.
pub(super) fn json(record: &Record) -> Outcome<String> {
    let failed = |error: serde_json::Error| format!("the result cannot be written as JSON: {error}");
    let Record { quick, seed, host, left_out, refused, samples } = record;
    let line = |sample: &Sample| serde_json::to_string(sample).map_err(failed);
    let lines = samples.iter().map(line).collect::<Outcome<Vec<String>>>()?;
    let head = serde_json::json!({
        "quick": quick, "seed": seed, "host": host, "left_out": left_out, "refused": refused
    });
    let head = serde_json::to_string_pretty(&head).map_err(failed)?;
    let head = head.strip_suffix("\n}").unwrap_or(&head);
    Ok(format!("{head},\n  \"samples\": [\n    {}\n  ]\n}}\n", lines.join(",\n    ")))
}

/// Reads what [`write`] has written.
pub(super) fn read(folder: &Path) -> Outcome<Record> {
    let path = folder.join("result.json");
    let text = fs::read_to_string(&path).map_err(|error| format!("cannot read {}: {error}", path.display()))?;
    serde_json::from_str(&text).map_err(|error| format!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::super::exhibit::{Scale, all};
    use super::super::host::Host;
    use super::*;

    fn exhibit(name: &str) -> Exhibit {
        all(Scale::Quick, 1).into_iter().find(|exhibit| exhibit.name == name).unwrap()
    }

    /// Six rounds in which the n-th arm takes 1 + n/2 times as long as the first, which becomes slower and slower.
    fn record(exhibit: &Exhibit) -> Record {
        let names: Vec<&str> = exhibit.arms.iter().map(|arm| &arm.name[..]).collect();
        let mut samples = Vec::new();
        for round in 0..6 {
            for point in exhibit.points.iter().map(Point::key) {
                for (at, name) in names.iter().enumerate().chain([(0, &AGAIN)]) {
                    let cpu_us = (10.0 + round as f64) * (1.0 + at as f64 / 2.0);
                    let arm = (*name).to_owned();
                    let sample = Sample { round, point: point.clone(), arm, cpu_us, ..Sample::default() };
                    samples.push(Sample { rate: 1e6 / cpu_us, client_share: at as f64, ..sample });
                }
            }
        }
        let host = Host::default();
        Record { quick: false, seed: 1, host, left_out: Vec::new(), refused: vec!["wrk met errors".into()], samples }
    }

    #[test]
    fn ratios_are_taken_within_a_round() {
        let exhibit = exhibit("alignment");
        let tables = tables(&exhibit, &record(&exhibit));
        let has = |line: &str| assert!(tables.contains(line), "{line} is not in\n{tables}");
        has("| as they come | 12.5 (10.0-15.0) |");
        has("| multiple of 32 | 18.8 (15.0-22.5) |");
        // The drift over the rounds is in the medians, and not in the ratios.
        has("| multiple of 32 | 1.500 (1.500-1.500) |");
        has("| the same again | 1.000 (1.000-1.000) |");
        has("| multiple of 32 | ≥ 53.4 (44.4-66.7) |");
        has("Medians of 6 rounds, and the 97 % interval of the median");
        has("Measurements made again: 1. The first: wrk met errors");
    }

    #[test]
    fn steps_are_compared_with_the_one_before() {
        let exhibit = exhibit("hu-figure-12");
        let tables = tables(&exhibit, &record(&exhibit));
        let line = tables.lines().find(|line| line.starts_with("| + string caches |")).unwrap();
        assert!(line.contains("| 2.000 (2.000-2.000) | 1.333 (1.333-1.333) |"), "{line}");
    }

    #[test]
    fn what_cannot_be_told_from_noise_is_marked() {
        let exhibit = exhibit("alignment");
        let mut record = record(&exhibit);
        let noisy = |sample: &mut Sample| {
            let up = if sample.round.is_multiple_of(2) { 1.0 } else { 2.0 };
            sample.cpu_us *= if sample.arm == AGAIN { up } else { 1.0 };
        };
        record.samples.iter_mut().for_each(noisy);
        assert!(tables(&exhibit, &record).contains("| multiple of 32 | 1.500 (1.500-1.500) ~ |"));
    }

    #[test]
    fn a_person_keeps_what_a_person_wrote() {
        let first = with_measured("", "Title", "figures 1");
        assert!(first.starts_with("# Title\n") && first.contains("figures 1") && first.ends_with(FINDINGS));
        let edited = first.replace(FINDINGS, "It agrees.\n").replace("# Title", "# My title");
        let second = with_measured(&edited, "Title", "figures 2");
        assert!(second.contains("figures 2") && !second.contains("figures 1"));
        assert!(second.starts_with("# My title\n") && second.ends_with("It agrees.\n"));
    }

    #[test]
    fn a_result_is_read_as_it_was_written() {
        let exhibit = exhibit("alignment");
        let folder = std::env::temp_dir().join(format!("amped-report-{}", std::process::id()));
        let record = record(&exhibit);
        write(&folder, &exhibit, &record).unwrap();
        let read = read(&folder).unwrap();
        let _ = fs::remove_dir_all(&folder);
        assert_eq!(tables(&exhibit, &read), tables(&exhibit, &record));
    }
}
