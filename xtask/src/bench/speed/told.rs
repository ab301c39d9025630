//! What was measured, as tables with the targets beside it, and the files of the exhibit.

use std::fs;
use std::path::Path;

use amped_measure::stats::Summary;

use super::super::record::{AGAIN, Record};
use super::super::report::{self, BEGIN, END, interval};
use super::super::sample::{Metric, Sample, figure};
use super::program::{AMPED, FLOOR, NGINX, RIVALS};
use super::row::{ROWS, Row};
use super::single::{self, DISK, IDLE, NGINX_THREADS, OVERLOAD, PEAK, RESIDENT, START, with_connections};
use crate::command::Outcome;

/// What `amped` is to reach.
struct Target {
    what: String,
    metric: Metric,
    point: String,
    against: Against,
    /// Of the ratio; of the figure itself where nothing is beside it.
    bound: Bound,
}

enum Against {
    Nothing,
    /// The same point of another server.
    Arm(&'static str),
    /// Another point of the same.
    Point(String),
}

enum Bound {
    Most(f64),
    Least(f64),
}

/// Targets of rows that `single` measures.
fn targets() -> Vec<Target> {
    let target = |what: &str, metric, point: &str, against, bound| {
        let (what, point) = (what.to_owned(), point.to_owned());
        Target { what, metric, point, against, bound }
    };
    let few = Against::Point(with_connections(single::ACTIVE));
    let threads = || Against::Arm(NGINX_THREADS);
    vec![
        target(
            "rate with 10,000 connections, to that with 64",
            Metric::Rate,
            "10000 connections",
            few,
            Bound::Least(0.95),
        ),
        target(IDLE, Metric::Value, IDLE, Against::Nothing, Bound::Most(512.0)),
        target(START, Metric::Value, START, Against::Nothing, Bound::Most(20.0)),
        target(RESIDENT, Metric::Value, RESIDENT, Against::Nothing, Bound::Most(8.0)),
        target(
            "slow disk: cold throughput, to nginx with threads",
            Metric::Throughput,
            DISK,
            threads(),
            Bound::Least(1.0),
        ),
        target("slow disk: rate of a cached file, to the same", Metric::Rate, DISK, threads(), Bound::Least(1.5)),
        target("slow disk: its 99th percentile, to the same", Metric::HotP99, DISK, threads(), Bound::Most(0.8)),
        target(
            "overload: right replies, to the peak",
            Metric::Rate,
            OVERLOAD,
            Against::Point(PEAK.to_owned()),
            Bound::Least(0.9),
        ),
    ]
}

/// The figures of a point and server, by their rounds.
fn figures<'a>(
    record: &'a Record,
    metric: Metric,
    point: &'a str,
    arm: &'a str,
) -> impl Iterator<Item = (usize, f64)> + 'a {
    let is_it = move |sample: &&Sample| sample.point == point && sample.arm == arm;
    record.samples.iter().filter(is_it).filter_map(move |sample| Some((sample.round, metric.of(sample)?)))
}

fn summary(record: &Record, metric: Metric, point: &str, arm: &str) -> Option<Summary> {
    Summary::of(figures(record, metric, point, arm).map(|(_, figure)| figure))
}

/// The ratios within a round of one (point, server) to another.
fn ratio(record: &Record, metric: Metric, of: (&str, &str), to: (&str, &str)) -> Option<Summary> {
    Summary::of(figures(record, metric, of.0, of.1).filter_map(|(round, figure)| {
        let (_, other) = figures(record, metric, to.0, to.1).find(|(other, _)| *other == round)?;
        Some(figure / other)
    }))
}

/// The rival that takes the least CPU time in a row.
fn best_rival(record: &Record, row: &Row) -> Option<&'static str> {
    let cost = |name: &&str| summary(record, Metric::Cpu, row.name, name).map(|summary| summary.median);
    let there = RIVALS.iter().map(|rival| rival.name).filter(|name| cost(name).is_some());
    there.min_by(|one, other| cost(one).unwrap_or(f64::MAX).total_cmp(&cost(other).unwrap_or(f64::MAX)))
}

fn held(found: f64, bound: &Bound) -> String {
    let (words, holds) = match bound {
        Bound::Most(bound) => (format!("at most {bound}"), found <= *bound),
        Bound::Least(bound) => (format!("at least {bound}"), found >= *bound),
    };
    format!("{words}: {}", if holds { "held" } else { "**missed**" })
}

/// Everything that is said of a run, as Markdown that can be read as it is.
pub(super) fn tables(record: &Record, pairs: u32) -> String {
    let rows: Vec<&Row> =
        ROWS.iter().filter(|row| record.samples.iter().any(|sample| sample.point == row.name)).collect();
    let names: Vec<&str> = [AMPED.name, FLOOR.name].into_iter().chain(RIVALS.iter().map(|rival| rival.name)).collect();
    let mut text = String::new();
    if !rows.is_empty() {
        for metric in [Metric::Cpu, Metric::Rate] {
            text += &head(metric.title(), &names);
            for row in &rows {
                let median =
                    |name: &&str| summary(record, metric, row.name, name).map_or(String::new(), |s| figure(s.median));
                text += &line(row.title, names.iter().map(median));
            }
            text += "\n";
        }
        text += &head(
            "CPU time of amped for a request, ratio",
            &["best rival", "to it", "target", "to the floor", "target", "to itself"],
        );
        for row in &rows {
            text += &line(row.title, ratios(record, row));
        }
        text += "\n";
    }
    text += &others(record);
    text + &notes(record, pairs)
}

/// The cells of a row's ratios.
fn ratios(record: &Record, row: &Row) -> Vec<String> {
    let best = best_rival(record, row);
    let to = |arm: &str| ratio(record, Metric::Cpu, (row.name, AMPED.name), (row.name, arm));
    let shown =
        |found: Option<Summary>| found.map_or(String::new(), |found| interval(found, |figure| format!("{figure:.3}")));
    let target = |found: Option<Summary>, most: Option<f64>| match (found, most) {
        (Some(found), Some(most)) => held(found.median, &Bound::Most(most)),
        _ => String::new(),
    };
    let (rival, floor) = (best.and_then(to), to(FLOOR.name));
    let itself = ratio(record, Metric::Cpu, (row.name, AGAIN), (row.name, AMPED.name));
    vec![
        best.unwrap_or_default().to_owned(),
        shown(rival),
        target(rival, row.best_max),
        shown(floor),
        target(floor, row.floor_max),
        shown(itself),
    ]
}

/// What `single` has measured, and its targets.
fn others(record: &Record) -> String {
    let mut text = String::new();
    let levels: Vec<String> = single::LEVELS.map(with_connections).to_vec();
    let at_rest = [IDLE, START, RESIDENT].map(str::to_owned);
    let servers: Vec<&str> = [AMPED.name].into_iter().chain(RIVALS.iter().map(|rival| rival.name)).collect();
    type Table<'a> = (&'a str, Vec<&'a str>, Vec<(String, String, Metric)>);
    let of_metric = |points: &[String], metric: Metric| -> Vec<(String, String, Metric)> {
        points.iter().map(|point| (point.clone(), point.clone(), metric)).collect()
    };
    let disk = |name: &str, metric| (name.to_owned(), DISK.to_owned(), metric);
    let tables: [Table<'_>; 4] = [
        (
            "1 KiB, of which 64 connections ask: 1000 requests/s",
            vec![AMPED.name, NGINX.name],
            of_metric(&levels, Metric::Rate),
        ),
        ("At rest", servers, of_metric(&at_rest, Metric::Value)),
        (
            "512 files of 1 MiB, 128 MiB of memory, a disk of 30 MB/s; beside them a cached file of 1 KiB",
            vec![AMPED.name, NGINX_THREADS, NGINX.name],
            vec![
                disk("cold, MiB/s", Metric::Throughput),
                disk("cached, 1000 requests/s", Metric::Rate),
                disk("cached, 99th percentile, ms", Metric::HotP99),
            ],
        ),
        (
            "New connections, ten times as many as at the peak, on a fortieth of a core",
            vec![AMPED.name, NGINX.name],
            vec![
                ("peak, 1000 replies/s".to_owned(), PEAK.to_owned(), Metric::Rate),
                ("overload, 1000 right replies/s".to_owned(), OVERLOAD.to_owned(), Metric::Rate),
                ("offered, times the peak".to_owned(), OVERLOAD.to_owned(), Metric::Value),
            ],
        ),
    ];
    for (title, arms, lines) in tables {
        let cell =
            |metric, point: &str, arm: &str| summary(record, metric, point, arm).map(|found| interval(found, figure));
        let is_there = |(_, point, metric): &(String, String, Metric)| cell(*metric, point, AMPED.name).is_some();
        if !lines.iter().any(is_there) {
            continue;
        }
        text += &head(title, &arms);
        for (name, point, metric) in lines.iter().filter(|line| is_there(line)) {
            text += &line(name, arms.iter().map(|arm| cell(*metric, point, arm).unwrap_or_default()));
        }
        text += "\n";
    }

    let mut told = Vec::new();
    for Target { what, metric, point, against, bound } in targets() {
        let of = (&*point, AMPED.name);
        let found = match &against {
            Against::Nothing => summary(record, metric, of.0, of.1),
            Against::Arm(arm) => ratio(record, metric, of, (of.0, arm)),
            Against::Point(other) => ratio(record, metric, of, (other, of.1)),
        };
        let shown = |found: Summary| match against {
            Against::Nothing => interval(found, figure),
            Against::Arm(_) | Against::Point(_) => interval(found, |figure| format!("{figure:.3}")),
        };
        told.extend(found.map(|found| line(&what, [shown(found), held(found.median, &bound)])));
    }
    if told.is_empty() {
        return text;
    }
    text + &head("Other targets", &["amped", "target"]) + &told.concat() + "\n"
}

fn head(title: &str, columns: &[&str]) -> String {
    format!("**{title}**\n\n| | {} |\n|{}\n", columns.join(" | "), "---|".repeat(columns.len() + 1))
}

fn line(name: &str, cells: impl IntoIterator<Item = String>) -> String {
    format!("| {name} | {} |\n", cells.into_iter().collect::<Vec<_>>().join(" | "))
}

fn notes(record: &Record, pairs: u32) -> String {
    let rows = record.samples.iter().filter(|sample| ROWS.iter().any(|row| row.name == sample.point));
    let mut text = format!(
        "Medians of {pairs} pairs (3 for memory and disk, 1 for overload), and intervals of at least 95 % where there are 6 or more \
         (order statistics); ratios are those within a pair. \"To itself\": `amped` once more in the same pairs, which is the \
         noise. 64 connections unless said otherwise. `amped` writes its access log, the others do not, unless said otherwise.\n\n\
         `cargo xtask bench server --pairs {pairs} --seed {seed}`, {host}. {programs}.\n",
        seed = record.seed,
        host = record.host.sentence(&report::uses("servers", rows), "", ", loopback"),
        programs = record.host.programs.join("; "),
    );
    if !record.refused.is_empty() {
        text += &format!("\nMade again, or in doubt: {}.\n", record.refused.join("; "));
    }
    text
}

/// Writes `result.json`, and the tables into `README.md` between its marks; what stands outside them is a person's.
pub(super) fn write(folder: &Path, record: &Record, pairs: u32) -> Outcome {
    let at = |error: std::io::Error| format!("cannot write into {}: {error}", folder.display());
    fs::create_dir_all(folder).map_err(at)?;
    fs::write(folder.join("result.json"), report::json(record)?).map_err(at)?;
    let readme = folder.join("README.md");
    let before =
        fs::read_to_string(&readme).unwrap_or_else(|_| format!("# As fast as the machine allows\n\n{BEGIN}\n{END}\n"));
    fs::write(&readme, report::with_measured(&before, "", &tables(record, pairs))).map_err(at)
}

#[cfg(test)]
mod tests {
    use super::super::super::sample::Sample;
    use super::*;

    fn sample(round: usize, point: &str, arm: &str, cpu_us: f64) -> Sample {
        let (point, arm) = (point.to_owned(), arm.to_owned());
        Sample { round, point, arm, cpu_us, rate: 1e6 / cpu_us, ..Sample::default() }
    }

    /// Ten pairs in which everything becomes slower and slower, at the same ratios.
    fn record() -> Record {
        let mut samples = Vec::new();
        for round in 0..10 {
            let drift = 1.0 + round as f64 / 10.0;
            let costs = [("amped", 8.0), ("floor", 5.0), ("nginx", 12.0), ("h2o", 10.0), (AGAIN, 8.0)];
            samples.extend(costs.map(|(arm, cost)| sample(round, "1k", arm, cost * drift)));
            samples.push(sample(round, "10000 connections", "amped", 8.0 * drift));
            samples.push(sample(round, "64 connections", "amped", 8.0 * drift));
            samples.push(Sample { value: Some(600.0), ..sample(round, IDLE, "amped", 1.0) });
        }
        let (host, left_out, refused) = (super::super::host::Host::default(), Vec::new(), Vec::new());
        Record { quick: false, seed: 1, host, left_out, refused, samples }
    }

    #[test]
    fn targets_stand_beside_what_was_found() {
        let text = tables(&record(), 10);
        let has = |part: &str| assert!(text.contains(part), "{part} is not in\n{text}");
        has(
            "| 1 KiB | h2o | 0.800 (0.800-0.800) | at most 0.85: held | 1.600 (1.600-1.600) | at most 1.15: **missed** | 1.000 (1.000-1.000) |",
        );
        has("| rate with 10,000 connections, to that with 64 | 1.000 (1.000-1.000) | at least 0.95: held |");
        has(&format!("| {IDLE} | 600 (600-600) | at most 512: **missed** |"));
        // What was not measured has no line.
        assert!(!text.contains("overload: right replies") && !text.contains("SPECweb96"), "{text}");
    }

    #[test]
    fn the_best_rival_is_the_cheapest_of_those_that_were_measured() {
        let mut record = record();
        let row = ROWS.iter().find(|row| row.name == "1k").unwrap();
        assert_eq!(best_rival(&record, row), Some("h2o"));
        record.samples.retain(|sample| sample.arm != "h2o");
        assert_eq!(best_rival(&record, row), Some("nginx"));
        record.samples.clear();
        assert_eq!(best_rival(&record, row), None);
    }

    #[test]
    fn a_person_keeps_what_a_person_wrote() {
        let folder = std::env::temp_dir().join(format!("amped-told-{}", std::process::id()));
        write(&folder, &record(), 10).unwrap();
        let readme = folder.join("README.md");
        let text = fs::read_to_string(&readme).unwrap() + "\nWhat misses, and why.\n";
        fs::write(&readme, &text).unwrap();
        write(&folder, &record(), 10).unwrap();
        let after = fs::read_to_string(&readme).unwrap();
        let read = report::read(&folder).unwrap();
        fs::remove_dir_all(&folder).unwrap();
        assert_eq!(after, text);
        assert_eq!(tables(&read, 10), tables(&record(), 10));
    }
}
