//! `cargo xtask bench classes`: where a server's CPU time goes, by the size of the files that it is asked for, as in figures 4
//! to 10 of Hu, Nanda and Yang and figure 3 of Yates, Almeida and Almeida.
//!
//! Each server stands on one core and is asked by `ammeter load` from the other, in a closed loop and with a new connection
//! for each request, as clients of that time asked: for the files of one class of SPECweb96 after the other, then for the
//! mix. Meanwhile `ammeter profile` samples it, and what it says of this server is what is drawn: the same samples by what
//! the kernel was entered for, and by what it was doing.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::thread;
use std::time::Duration;

use amped_measure::host::load_average;
use amped_measure::stats::Random;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::ammeter::read;
use super::group::Group;
use super::host::Host;
use super::plot;
use super::report;
use super::rig::{Bench, Clocks, Common, Progress};
use super::sample::{Sample, figure};
use super::speed::program::{AMPED, NGINX, Place, Program};
use crate::command::{Outcome, output, shown};
use crate::setup;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Seconds for which each server is sampled at each class
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=600))]
    seconds: u32,
    #[command(flatten)]
    common: Common,
}

const TITLE: &str = "Where the CPU time goes, by the size of files";

const STORY: &str = "\
Hu, Nanda and Yang broke the CPU time of Apache 1.2 on AIX down by what the kernel was entered for, by class of SPECweb96 and
for the mix. With small files (classes 0 and 1) user code dominated, and file system and TCP/IP weighed about the same; with
large ones (2 and 3) most of the time went into the TCP/IP stack, which for class 3 means into `write`. Yates, Almeida and
Almeida broke the kernel's time of theirs down by what it was doing.

Here amped and nginx are asked in a closed loop of 8 clients over loopback, with a new connection for each request as then,
for files of 1/10 to 9/10 of 1 KiB (class 0), of 10 KiB (1), 100 KiB (2) and 1 MiB (3), all of which are in memory, and for the
mix of these four (35, 50, 14 and 1 % of requests). Both write an access log. Over loopback what a server sends is received
within its own system call, so `softirq net_rx` is work of both sides; bars are of the innermost context.";

/// What is asked for: the name, and the class of files, if it is one.
const LOADS: [(&str, Option<&str>); 5] = [
    ("class 0", Some("class0")),
    ("class 1", Some("class1")),
    ("class 2", Some("class2")),
    ("class 3", Some("class3")),
    ("mix", None),
];

const PROGRAMS: [Program; 2] = [AMPED, NGINX];

const CLIENTS: &str = "8";

/// A view of a profile.
type View = fn(&Profiled) -> &[Row];

/// Those that are drawn, and what they are called.
const VIEWS: [(View, &str); 2] = [
    (|profiled| &profiled.contexts, "what for, by innermost context"),
    (|profiled| &profiled.categories, "doing what, by category"),
];

/// What `ammeter profile` said of a server at a load.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Profiled {
    #[serde(default)]
    server: String,
    #[serde(default)]
    load: String,
    /// CPU time of the server for a request, in microseconds; and how busy everybody was.
    #[serde(default)]
    cpu_us: f64,
    seconds: f64,
    samples: u64,
    expected: u64,
    lost: u64,
    contexts: Vec<Row>,
    categories: Vec<Row>,
    unknown: Share,
}

/// A row of a view.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Row {
    name: String,
    samples: u64,
    share: f64,
    low: f64,
    high: f64,
}

#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
struct Share {
    share: f64,
}

pub(super) fn run(args: &Args) -> Outcome {
    setup::bring_rivals()?;
    let bench = Bench::new(args.common.core)?;
    let mut host = Host::now()?;
    host.programs = PROGRAMS.iter().filter_map(Program::version).collect();
    let site = make_files(&bench)?;
    let mut random = Random(args.common.seed);
    let mut order: Vec<usize> = (0..LOADS.len()).collect();
    random.shuffle(&mut order);
    let seconds = f64::from(args.seconds) + 2.0 * f64::from(AROUND_S);
    let mut progress = Progress::over(order.len() * PROGRAMS.len(), seconds * (order.len() * PROGRAMS.len()) as f64);
    let (mut found, mut spent) = (Vec::new(), Vec::new());
    for program in &PROGRAMS {
        let run = bench.folder.join(format!("run-{}", program.name));
        fs::create_dir_all(&run).map_err(|error| format!("cannot make {}: {error}", run.display()))?;
        let place = Place { run: &run, site: &site, amped: &bench.binary, floor: &bench.binary, core: bench.core };
        let mut server = program.start(Group::new(None)?, &place, &["log"])?;
        for at in &order {
            let (name, class) = LOADS[*at];
            progress.begin(&format!("{:8} {name:8}", program.name));
            let (mut profiled, sample) = measure(&bench, &server.group, server.address.port(), &site, class, args)
                .map_err(|text| format!("{}, {name}: {text}", program.name))?;
            server.check()?;
            (profiled.server, profiled.load) = (program.name.to_owned(), name.to_owned());
            progress.end(seconds, &format!("{:.1} µs a request", profiled.cpu_us));
            found.push((*at, profiled));
            spent.push(sample);
        }
    }
    host.load_after = load_average()?;
    // In the order of the paper, whatever that of the measurements was.
    found.sort_by_key(|(at, _)| *at);
    let found: Vec<Profiled> = found.into_iter().map(|(_, profiled)| profiled).collect();
    let tables = tables(&found);
    let command = format!("cargo xtask bench classes --seconds {} --seed {}", args.seconds, args.common.seed);
    let unknown = found.iter().map(|profiled| profiled.unknown.share).fold(0.0, f64::max) * 100.0;
    let programs = host.programs.join("; ");
    let notes = format!(
        "Shares of the server's own samples in percent, and Wilson's interval of 95 %; `-`: no sample. Of functions of the \
         kernel at most {unknown:.1} % of the samples of a column were in one that the table does not know.\n\n`{command}`, {}. \
         {programs}.\n",
        host.sentence(&report::uses("servers", &spent), "", ", loopback")
    );
    println!("\n{tables}{notes}");
    let folder = args.common.folder("hu-figures-6-10");
    let measured = format!("{STORY}\n\n![plot](plot.svg)\n\n{tables}{notes}");
    report::write_files(&folder, TITLE, &measured, &plot::stacks(TITLE, &panels(&found)), &json(&host, args, &found)?)?;
    println!("written: {}", folder.display());
    Ok(())
}

/// Makes the files, and for each load a list of what is asked for by its weights.
fn make_files(bench: &Bench) -> Outcome<PathBuf> {
    // Of the least that SPECweb96 knows, 10 folders: all in memory, and more than any cache of descriptors is small for.
    let site = bench.folder.join("specweb96");
    let path = site.to_string_lossy();
    output(&mut bench.client.ammeter(&["files", "specweb96", "--ops", "5", &path]))?;
    let manifest = site.join("manifest.jsonl");
    let text = fs::read_to_string(&manifest).map_err(|error| format!("cannot read {}: {error}", manifest.display()))?;
    for (_, class) in LOADS {
        let list = mix(&text, class).ok_or_else(|| format!("{} is no manifest", manifest.display()))?;
        let path = list_of(&site, class);
        fs::write(&path, list).map_err(|error| format!("cannot write {}: {error}", path.display()))?;
    }
    Ok(site)
}

fn list_of(site: &Path, class: Option<&str>) -> PathBuf {
    site.with_file_name(format!("{}.list", class.unwrap_or("mix")))
}

/// Weights and targets of a class, or of all, out of a manifest.
fn mix(manifest: &str, class: Option<&str>) -> Option<String> {
    let mut list = String::new();
    // The first line says what set it is.
    for line in manifest.lines().skip(1) {
        let file: Value = serde_json::from_str(line).ok()?;
        if class.is_none_or(|class| file["class"] == class) {
            let _ = writeln!(list, "{} {}", file["weight"].as_f64()?, file["path"].as_str()?);
        }
    }
    (!list.is_empty()).then_some(list)
}

/// The load begins so much earlier than the sampling, and ends so much later.
const AROUND_S: u32 = 1;

fn measure(
    bench: &Bench,
    server: &Group,
    port: u16,
    site: &Path,
    class: Option<&str>,
    args: &Args,
) -> Outcome<(Profiled, Sample)> {
    let (list, seed) = (list_of(site, class).to_string_lossy().into_owned(), args.common.seed.to_string());
    let duration = format!("{}s", args.seconds + 2 * AROUND_S);
    let flags = ["--clients", CLIENTS, "--requests-per-connection", "1", "--mix", &list, "--seed", &seed];
    let mut load =
        bench.client.load(([127, 0, 0, 1], port).into(), "/", &[&flags[..], &["--duration", &duration]].concat());
    let clocks = Clocks::read(server, &bench.client.group)?;
    let mut child = load.spawn().map_err(|error| format!("cannot start `{}`: {error}", shown(&load)))?;
    thread::sleep(Duration::from_secs(AROUND_S.into()));
    let (port, seconds) = (port.to_string(), format!("{}s", args.seconds));
    let mut profile = bench.client.ammeter(&["profile", "--port", &port, "--duration", &seconds, "--json"]);
    let text = output(profile.stdin(Stdio::null()));
    if text.is_err() {
        let _ = child.kill();
    }
    let ended = child.wait_with_output().map_err(|error| format!("`{}`: {error}", shown(&load)))?;
    let text = text?;
    let said = read(&ended).map_err(|text| format!("`{}`: {text}", shown(&load)))?;
    let sample = clocks.sample(server, &bench.client.group, said.replies(200)?, said.seconds, said.received_bytes)?;
    let profiled: Profiled = serde_json::from_str(&text).map_err(|error| format!("`{}`: {error}", shown(&profile)))?;
    Ok((Profiled { cpu_us: sample.cpu_us, ..profiled }, sample))
}

/// Rows that are drawn by themselves; the others are one.
const ROWS: usize = 13;
const OTHERS: &str = "all others";

/// The rows of a view of one server, with the shares of each load: those that weigh most in all servers, in the order of their
/// sum, so that they have the same places and colours for each; and the others together.
fn rows(all: &[Profiled], server: &str, view: View) -> Vec<(String, Vec<Option<Row>>)> {
    let found = of_server(all, server);
    let of = |profiled: &Profiled, name: &str| view(profiled).iter().find(|row| row.name == name).cloned();
    let mut names: Vec<String> = all.iter().flat_map(view).map(|row| row.name.clone()).collect();
    names.sort_unstable();
    names.dedup();
    let sum = |name: &String| all.iter().filter_map(|one| Some(of(one, name)?.share)).sum::<f64>();
    let mut names: Vec<(f64, String)> = names.into_iter().map(|name| (sum(&name), name)).collect();
    names.sort_by(|a, b| b.0.total_cmp(&a.0).then_with(|| a.1.cmp(&b.1)));
    let kept = if names.len() > ROWS + 1 { ROWS } else { names.len() };
    let mut rows: Vec<(String, Vec<Option<Row>>)> = Vec::new();
    for (_, name) in &names[..kept] {
        rows.push((name.clone(), found.iter().map(|one| of(one, name)).collect()));
    }
    if kept < names.len() {
        let rest = |one: &&Profiled| {
            let is_rest = |row: &&Row| names[kept..].iter().any(|(_, name)| *name == row.name);
            // A sum of nothing would be -0.
            let share = view(one).iter().filter(is_rest).fold(0.0, |sum, row| sum + row.share);
            Some(Row { name: OTHERS.to_owned(), share, low: f64::NAN, high: f64::NAN, samples: 0 })
        };
        rows.push((OTHERS.to_owned(), found.iter().map(rest).collect()));
    }
    rows
}

fn of_server<'a>(found: &'a [Profiled], name: &str) -> Vec<&'a Profiled> {
    found.iter().filter(|one| one.server == name).collect()
}

/// A table for each server and view.
fn tables(found: &[Profiled]) -> String {
    let mut text = String::new();
    for Program { name, .. } in &PROGRAMS {
        let all = found;
        let found = of_server(all, name);
        for (view, title) in VIEWS {
            let loads: Vec<&str> = found.iter().map(|one| &*one.load).collect();
            let dashes = "---|".repeat(loads.len() + 1);
            let _ = writeln!(text, "**{name}: {title}**\n\n| | {} |\n|{dashes}", loads.join(" | "));
            for (name, cells) in rows(all, name, view) {
                if cells.iter().all(Option::is_none) {
                    continue;
                }
                let percent = |share: f64| share * 100.0;
                let cell = |row: &Option<Row>| match row {
                    None => "-".to_owned(),
                    Some(row) if row.low.is_nan() => format!("{:.1}", percent(row.share)),
                    Some(Row { share, low, high, .. }) => {
                        format!("{:.1} ({:.1}-{:.1})", percent(*share), percent(*low), percent(*high))
                    }
                };
                let _ = writeln!(text, "| {name} | {} |", cells.iter().map(cell).collect::<Vec<_>>().join(" | "));
            }
            let cpu: Vec<String> = found.iter().map(|one| figure(one.cpu_us)).collect();
            let _ = writeln!(text, "| *server CPU, µs a request* | {} |\n", cpu.join(" | "));
        }
    }
    text
}

/// The same as bars.
fn panels(found: &[Profiled]) -> Vec<plot::Stacks> {
    let panel = |name: &str, view: View, title: &str| {
        let rows = rows(found, name, view);
        let found = of_server(found, name);
        let share = |cell: &Option<Row>| cell.as_ref().map_or(0.0, |row| row.share);
        plot::Stacks {
            title: format!("{name}: {title}"),
            bars: found.iter().map(|one| one.load.clone()).collect(),
            parts: rows.into_iter().map(|(name, cells)| (name, cells.iter().map(share).collect())).collect(),
        }
    };
    VIEWS.iter().flat_map(|(view, title)| PROGRAMS.iter().map(move |one| panel(one.name, *view, title))).collect()
}

/// With a line for each server and load.
fn json(host: &Host, args: &Args, found: &[Profiled]) -> Outcome<String> {
    let failed = |error: serde_json::Error| format!("the result cannot be written as JSON: {error}");
    let host = serde_json::to_string(host).map_err(failed)?;
    let lines = found.iter().map(serde_json::to_string).collect::<Result<Vec<_>, _>>().map_err(failed)?;
    let Args { seconds, common: Common { seed, .. } } = args;
    let lines = lines.join(",\n    ");
    Ok(format!(
        "{{\n  \"host\": {host},\n  \"seconds\": {seconds},\n  \"seed\": {seed},\n  \"profiles\": [\n    {lines}\n  ]\n}}\n"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn profiled(server: &str, load: &str, shares: &[(&str, f64)]) -> Profiled {
        let row = |(name, share): &(&str, f64)| Row {
            name: (*name).to_owned(),
            share: *share,
            low: share - 0.01,
            high: share + 0.01,
            samples: 7,
        };
        let contexts: Vec<Row> = shares.iter().map(row).collect();
        let (server, load) = (server.to_owned(), load.to_owned());
        Profiled { server, load, cpu_us: 12.5, categories: contexts.clone(), contexts, ..Profiled::default() }
    }

    #[test]
    fn a_table_has_what_weighs_most_and_the_rest_together() {
        let many: Vec<String> = (0..ROWS + 2).map(|number| format!("call{number:02}")).collect();
        let small: Vec<(&str, f64)> = many.iter().map(|name| (&**name, 0.01)).collect();
        let first = profiled("amped", "class 0", &[&[("user", 0.5)], &small[..]].concat());
        let second = profiled("amped", "mix", &[("writev", 0.75), ("user", 0.25)]);
        let other = profiled("nginx", "mix", &[("splice", 0.9)]);
        let tables = tables(&[first.clone(), second.clone(), other]);
        let has = |line: &str| assert!(tables.lines().any(|found| found == line), "{line} is not in\n{tables}");
        has("| | class 0 | mix |");
        has("| writev | - | 75.0 (74.0-76.0) |");
        has("| user | 50.0 (49.0-51.0) | 25.0 (24.0-26.0) |");
        has("| all others | 5.0 | 0.0 |");
        assert!(tables.contains("| splice | 90.0 (89.0-91.0) |") && !tables.contains("| splice | - "), "{tables}");
        has("| *server CPU, µs a request* | 12.5 | 12.5 |");
        let stacks = panels(&[first, second]);
        assert_eq!(stacks.len(), VIEWS.len() * PROGRAMS.len());
        let of_bar = |bar: usize| stacks[0].parts.iter().map(|(_, shares)| shares[bar]).sum::<f64>();
        assert!((of_bar(0) - 0.65).abs() < 1e-9 && (of_bar(1) - 1.0).abs() < 1e-9);
    }

    #[test]
    fn a_class_is_taken_out_of_a_manifest() {
        let manifest = "{\"ammeter_files\":1}\n{\"path\":\"/a\",\"bytes\":7,\"class\":\"class0\",\"weight\":2.5}\n\
                        {\"path\":\"/b\",\"bytes\":7,\"class\":\"class1\",\"weight\":1.0}\n";
        assert_eq!(mix(manifest, Some("class1")).unwrap(), "1 /b\n");
        assert_eq!(mix(manifest, None).unwrap(), "2.5 /a\n1 /b\n");
        assert_eq!((mix(manifest, Some("class9")), mix("{}\nno", None)), (None, None));
    }

    #[test]
    fn what_a_profile_says_is_read() {
        let text = r#"{"whose":"x","seconds":2.0,"frequency":199,"processors":2,"samples":8,"expected":9,"lost":0,"who":[],
            "contexts":[{"name":"user","samples":3,"share":0.5,"low":0.4,"high":0.6,"around":{"samples":3,"share":0.5,"low":0.4,"high":0.6}}],
            "categories":[],"unknown":{"samples":0,"share":0.01,"low":0.0,"high":0.1},"own_cpu":0.1,"missing":[],"stacks":[]}"#;
        let profiled: Profiled = serde_json::from_str(text).unwrap();
        assert_eq!(
            (&*profiled.contexts[0].name, profiled.contexts[0].samples, profiled.unknown.share),
            ("user", 3, 0.01)
        );
    }
}
