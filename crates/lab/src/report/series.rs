//! A run over time: what the clients measured, second by second, and below it what the monitor measured of the server
//! and its network. All times count from the start of the measured load.
//!
//! Missing files are reported, a line each; the others are drawn.

use std::path::Path;

use ammeter_load::window::Second;
use ammeter_monitor::Tick;
use serde::Serialize;

use crate::archive::{Archive, Run, name};

const MIB: f64 = 1024.0 * 1024.0;

/// The plots of a run.
#[derive(Debug, Serialize)]
pub(super) struct Timeline {
    /// Start and end, in seconds since the measured load began.
    pub(super) range: [f64; 2],
    /// The charts, top to bottom.
    pub(super) charts: Vec<Chart>,
}

/// A chart of a timeline.
#[derive(Debug, Serialize)]
pub(super) struct Chart {
    /// The caption.
    #[serde(skip)]
    pub(super) caption: &'static str,
    /// The title of the y axis.
    pub(super) title: &'static str,
    /// Whether the y axis is logarithmic.
    pub(super) logarithmic: bool,
    /// Seconds since the measured load began.
    pub(super) x: Vec<f64>,
    /// Its curves.
    pub(super) series: Vec<Series>,
}

/// A curve of a chart.
#[derive(Debug, Serialize)]
pub(super) struct Series {
    pub(super) label: &'static str,
    /// A colour name of `plot.js`.
    pub(super) hue: &'static str,
    pub(super) unit: &'static str,
    /// A value for each x; `None` if there is none.
    pub(super) values: Vec<Option<f64>>,
}

/// Reads the files of a run. Appends a line to `missing` for each file that it cannot read.
pub(super) fn timeline(archive: &Archive, run: &Run, missing: &mut Vec<String>) -> Timeline {
    let mut charts = Vec::new();
    let id = &run.plan.id;
    let is_there = |name: &str| archive.file(id, name).exists();
    if is_there(name::LOAD) {
        clients(archive, run, &mut charts).unwrap_or_else(|why| missing.push(format!("{id}: {why}")));
    }
    if is_there(name::MONITOR) {
        server(archive, run, &mut charts, missing).unwrap_or_else(|why| missing.push(format!("{id}: {why}")));
    }
    let xs = charts.iter().flat_map(|chart| [chart.x.first(), chart.x.last()]).flatten().copied();
    let (from, to) =
        xs.fold((0.0, (run.load_ended_s - run.load_began_s).max(0.1)), |(from, to), x| (x.min(from), x.max(to)));
    Timeline { range: [to_ms(from), to_ms(to)], charts }
}

/// Extracts a figure from a moment; `None` if unknown.
type Of<T> = fn(&T) -> Option<f64>;

/// A chart of several figures at the same moments; `None` if none of them is known.
fn chart<T>(
    (title, caption, logarithmic): (&'static str, &'static str, bool),
    x: &[f64],
    moments: &[T],
    curves: &[(&'static str, &'static str, &'static str, Of<T>)],
) -> Option<Chart> {
    let curve = |(label, hue, unit, of): &(&'static str, &'static str, &'static str, Of<T>)| Series {
        label,
        hue,
        unit,
        values: moments.iter().map(|moment| of(moment).and_then(rounded)).collect(),
    };
    let series: Vec<Series> =
        curves.iter().map(curve).filter(|curve| curve.values.iter().any(Option::is_some)).collect();
    let x = x.iter().map(|x| to_ms(*x)).collect();
    (!series.is_empty()).then_some(Chart { caption, title, logarithmic, x, series })
}

fn clients(archive: &Archive, run: &Run, charts: &mut Vec<Chart>) -> Result<(), String> {
    let record = archive.load(&run.plan.id)?;
    // The last second may be partial: a rate over a few milliseconds is meaningless beside whole seconds.
    let is_whole = |second: &&Second| second.length_s >= 0.5 || record.series.len() == 1;
    let seconds: Vec<Second> = record.series.iter().filter(is_whole).copied().collect();
    let late = record.began_s - run.load_began_s;
    let x: Vec<f64> = seconds.iter().map(|second| late + second.at_s + second.length_s / 2.0).collect();
    let rates: [(_, _, _, Of<Second>); 3] = [
        ("offered", "blue", "/s", |second| Some(second.rate(second.started))),
        ("answered", "green", "/s", |second| Some(second.rate(second.ok))),
        ("failed", "red", "/s", |second| Some(second.rate(second.failed))),
    ];
    let caption = "Clients: connections offered, correct responses and failures, per second.";
    charts.extend(chart(("per second", caption, false), &x, &seconds, &rates));
    let times: [(_, _, _, Of<Second>); 4] = [
        ("max", "red", " ms", |second| known(second, second.max_ms)),
        ("p99", "orange", " ms", |second| known(second, second.p99_ms)),
        ("p90", "blue", " ms", |second| known(second, second.p90_ms)),
        ("p50", "green", " ms", |second| known(second, second.p50_ms)),
    ];
    let caption = "Clients: time from the scheduled start to the last byte of correct responses.";
    charts.extend(chart(("ms, logarithmic", caption, true), &x, &seconds, &times));
    Ok(())
}

/// A latency to draw; `None` without correct responses, or if it has no logarithm.
fn known(second: &Second, ms: f64) -> Option<f64> {
    (second.ok > 0 && ms > 0.0).then_some(ms)
}

fn server(archive: &Archive, run: &Run, charts: &mut Vec<Chart>, missing: &mut Vec<String>) -> Result<(), String> {
    let mut replay = archive.samples(&run.plan.id)?;
    let (mut ticks, mut before) = (Vec::new(), None);
    for sample in replay.by_ref() {
        ticks.extend(before.as_ref().and_then(|before| Tick::between(before, &sample)));
        before = Some(sample);
    }
    if let Some(why) = replay.cut() {
        let path = archive.file(&run.plan.id, name::MONITOR);
        missing.push(format!("{} is truncated: {why}", shown(&path)));
    }
    // Times are by the clock of the server's host, if that is another machine.
    let hosts = archive.hosts(&run.plan.id)?;
    let began_s = run.load_began_s + hosts.first().map_or(0.0, |server| server.clock.offset_s);
    // A tick is drawn at its middle, as is a second of the clients.
    let x: Vec<f64> = ticks.iter().map(|tick| tick.wall_ms as f64 / 1e3 - began_s - tick.interval_s / 2.0).collect();
    let processors: [(_, _, _, Of<Tick>); 5] = [
        ("user", "blue", "", |tick| Some(tick.server.user)),
        ("kernel", "orange", "", |tick| Some(tick.server.system)),
        ("waiting for a core", "red", "", |tick| Some(tick.server.wait)),
        ("busiest thread", "violet", "", |tick| Some(tick.threads.first()?.run)),
        ("busiest core, all programs", "grey", "", |tick| Some(tick.busiest_core)),
    ];
    let caption = "Server: cores used in user code and in the kernel, and cores that its runnable threads waited for.";
    charts.extend(chart(("cores", caption, false), &x, &ticks, &processors));
    let queue: [(_, _, _, Of<Tick>); 3] = [
        ("waiting to be accepted", "blue", "", |tick| sum(&tick.listeners, |one| Some(one.depth))),
        // Drawn only when the depth is near it: otherwise it would flatten the other curves.
        ("maximum length", "grey", "", |tick| {
            sum(&tick.listeners, |one| Some(one.limit).filter(|limit| one.depth * 4.0 >= *limit))
        }),
        ("dropped", "red", "/s", |tick| sum(&tick.listeners, |one| one.drops)),
    ];
    let caption = "Listen queue: connections waiting to be accepted, and connections dropped per second.";
    charts.extend(chart(("connections; drops/s", caption, false), &x, &ticks, &queue));
    let network: [(_, _, _, Of<Tick>); 2] = [
        ("out", "blue", " Mbit/s", |tick| sum(&tick.interfaces, |one| Some(one.sent * 8e-6))),
        ("in", "green", " Mbit/s", |tick| sum(&tick.interfaces, |one| Some(one.received * 8e-6))),
    ];
    let caption = "Network: bytes of all devices in the server's namespace.";
    charts.extend(chart(("Mbit/s", caption, false), &x, &ticks, &network));
    let segments: [(_, _, _, Of<Tick>); 3] = [
        ("segments retransmitted", "orange", "/s", |tick| tick.tcp.retransmits),
        ("packets dropped", "red", "/s", |tick| sum(&tick.interfaces, |one| Some(one.received_drops + one.sent_drops))),
        ("connections reset", "violet", "/s", |tick| tick.tcp.resets),
    ];
    let caption = "Network: retransmissions per second.";
    charts.extend(chart(("per second", caption, false), &x, &ticks, &segments));
    let disks: [(_, _, _, Of<Tick>); 2] = [
        ("read", "blue", " MiB/s", |tick| sum(&tick.disks, |disk| Some(disk.read / MIB))),
        ("written", "orange", " MiB/s", |tick| sum(&tick.disks, |disk| Some(disk.written / MIB))),
    ];
    let caption = "Disks: bytes read and written, sum of all disks.";
    charts.extend(chart(("MiB/s", caption, false), &x, &ticks, &disks));
    Ok(())
}

/// The sum of the known values; `None` if none is known.
fn sum<T>(all: &[T], of: impl Fn(&T) -> Option<f64>) -> Option<f64> {
    all.iter().filter_map(of).reduce(|sum, one| sum + one)
}

/// Rounds to four digits: a plot shows no more, and the digits would double the size of the page.
fn rounded(value: f64) -> Option<f64> {
    if !value.is_finite() {
        return None;
    }
    if value == 0.0 {
        return Some(0.0);
    }
    let scale = 10f64.powi(3 - value.abs().log10().floor() as i32);
    let rounded = (value * scale).round() / scale;
    Some(if rounded.is_finite() { rounded } else { value })
}

/// Seconds, rounded to a millisecond.
fn to_ms(seconds: f64) -> f64 {
    if seconds.is_finite() { (seconds * 1e3).round() / 1e3 } else { 0.0 }
}

/// The last two components of a path: the run and the file.
fn shown(path: &Path) -> String {
    let parts: Vec<_> = path.iter().rev().take(2).map(|part| part.to_string_lossy()).collect();
    parts.into_iter().rev().collect::<Vec<_>>().join("/")
}
