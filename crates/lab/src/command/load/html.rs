//! `--html`: a result as one self-contained page (see `page.rs`).
//!
//! First the verdict in a sentence, then the plots, then the figures and the conditions. The points of a sweep are
//! medians of the repetitions with their intervals; if the client did not keep up, the point is open, a censored
//! observation: the server's figure may be any better one.

use std::collections::BTreeMap;
use std::fmt::Write;

use ammeter_load::drive::parked::Wanted;
use ammeter_load::drive::{Settings, Target};
use ammeter_load::outcome::{ClassOutcome, Loop, Outcome};
use ammeter_load::tally::Spread;
use amped_measure::stats::Summary;
use amped_measure::{Failure, Validity, Verdict};
use maud::{Markup, html};
use serde_json::{Value, json};

use super::args::{Args, parked};
use super::setup::Setup;
use super::summary::{Swept, counted, failures, handshake_rows, headline};
use crate::page;

/// The content of a page besides the result.
pub(super) struct Head {
    /// The URL.
    url: String,
    /// The relevant settings with their values.
    settings: Vec<(&'static str, String)>,
}

/// Writes a page, if requested.
pub(super) fn write(args: &Args, setup: &Setup, page: impl FnOnce(&Head) -> Option<String>) -> Result<(), Failure> {
    let Some(path) = &args.html else { return Ok(()) };
    let head = Head { url: setup.url.clone(), settings: settings(args, setup) };
    let Some(text) = page(&head) else { return Ok(()) };
    std::fs::write(path, text).map_err(Failure::io(format_args!("write {}", path.display())))
}

/// The settings that a page lists: those given, and the defaults of the others.
fn settings(args: &Args, setup: &Setup) -> Vec<(&'static str, String)> {
    let Settings { target, tls, connect_timeout, timeout, spin, lanes, .. } = &setup.settings;
    let mut rows = vec![
        (
            "server",
            match target {
                Target::Tcp(address) => address.to_string(),
                Target::Unix(path) => path.display().to_string(),
            },
        ),
        ("duration", format!("{:?}", args.duration())),
        ("connect timeout", format!("{connect_timeout:?}")),
        ("response timeout", format!("{timeout:?}")),
        (
            "requests per connection",
            match setup.plan.per_connection() {
                u64::MAX => "unlimited".to_owned(),
                count => count.to_string(),
            },
        ),
        if args.http2 { ("streams", args.streams.to_string()) } else { ("pipeline", args.pipeline.to_string()) },
        (
            "HTTP",
            if args.http2 {
                "2"
            } else if args.http10 {
                "1.0"
            } else {
                "1.1"
            }
            .to_owned(),
        ),
        ("generators", lanes.to_string()),
        ("spin", format!("{spin:?}")),
        ("seed", setup.seed.to_string()),
    ];
    if tls.is_some() {
        let version = args.tls_version.map_or("1.2 or 1.3".to_owned(), |version| version.to_string());
        rows.push(("TLS", version));
        rows.push(("sessions to resume", format!("{} %", (args.tls_resume * 1e3).round() / 10.0)));
    }
    if !args.slice.is_whole() {
        rows.push(("slice", args.slice.to_string()));
    }
    for Wanted { count, mode } in &parked(args) {
        rows.push(("parked", format!("{count} {mode}")));
    }
    for (name, path) in [("workload", &args.workload), ("mix", &args.mix), ("replay", &args.replay)] {
        rows.extend(path.as_ref().map(|path| (name, path.display().to_string())));
    }
    // Values may be secret, and pages are shared.
    let fields: Vec<&str> = args.header.iter().filter_map(|field| Some(field.split_once(':')?.0)).collect();
    if !fields.is_empty() {
        rows.push(("header fields", fields.join(", ")));
    }
    rows
}

/// The page of a run.
pub(super) fn run(head: &Head, outcome: &Outcome) -> String {
    let target = match outcome.load {
        Loop::Open { rate, .. } => Some(rate),
        Loop::Closed { .. } => None,
    };
    let data = json!({ "run": {
        "seconds": outcome.series,
        "target": target,
        "allowed_lateness_ms": outcome.allowed_lateness_ms(),
        "distribution": outcome.distribution,
    }});
    let failed = outcome.unserved();
    let body = html! {
        (verdict(&outcome.verdict, &format!("{}.", headline(outcome))))
        @if outcome.interrupted {
            p.bad { "The run was interrupted; the results cover the time until then." }
        }
        h2 { "Rate" }
        (plot("rates", match target {
            Some(_) => "Connections offered and correct responses per second, including the drain after the measured \
                 window. Where completed stays below offered, the server falls behind.",
            None => "Connections offered and correct responses per second. Closed loop: the server sets the pace.",
        }))
        h2 { "Latency" }
        (plot("latencies", "Time from the scheduled start to the last byte of correct responses, by second."))
        h2 { "Failures" }
        @if failed == 0 {
            p { "None." }
        } @else {
            p { (failed) " failed: " (failures(outcome)) "." }
            (plot("failures", "Failed connections and requests, per second."))
        }
        @if target.is_some() {
            h2 { "Lateness of the generator" }
            (plot("lateness", "From the scheduled time of a connection to its SYN. If the whole run is above the \
                 dashed line, the results describe the generator."))
        }
        h2 { "Distribution" }
        (plot("distribution", "Distributions over the whole run."))
        h2 { "Times" }
        div.scroll { (clocks(outcome)) }
        @if outcome.handshakes.all.count > 0 {
            h2 { "TLS handshakes" }
            p { (counted(&outcome.handshakes)) "." }
            @if let Some(why) = &outcome.handshakes.warning { p.bad { "Warning: " (why) "." } }
            div.scroll { (handshakes(outcome)) }
        }
        @if !outcome.parked.is_empty() {
            h2 { "Parked connections" }
            @for parked in &outcome.parked { p { (parked) } }
        }
        @if !outcome.classes.is_empty() {
            h2 { "Classes" }
            div.scroll { (classes(outcome)) }
        }
        (about(head, outcome))
    };
    page(&format!("load {}", head.url), &head.url, outcome, &body, &data)
}

/// The page of a sweep; `None` if it ended before its first run.
pub(super) fn sweep(head: &Head, swept: &Swept) -> Option<String> {
    let first = swept.runs.first()?;
    let body = html! {
        (verdict(&swept.verdict, &match &swept.capacity {
            Some(found) => format!("Capacity: {found}."),
            None => format!("{} runs at {} rates.", swept.runs.len(), by_rate(&swept.runs).len()),
        }))
        h2 { "Rate" }
        (plot("rates", "Medians of the repetitions, with their intervals. Open points: limited by the load generator. \
             The band is between the highest sustained and the lowest unsustained rate."))
        h2 { "Latency" }
        (plot("latencies", "Time from the scheduled start to the last byte of correct responses."))
        h2 { "Lateness of the generator" }
        (plot("lateness", "From the scheduled time of a connection to its SYN."))
        h2 { "Runs" }
        div.scroll { (runs(&swept.runs)) }
        (about(head, first))
    };
    let points: Vec<Value> = by_rate(&swept.runs).into_values().map(|runs| point(&runs)).collect();
    let data = json!({ "sweep": { "points": points, "capacity": swept.capacity } });
    Some(page(&format!("sweep {}", head.url), &head.url, first, &body, &data))
}

/// The runs at each requested rate.
fn by_rate(runs: &[Outcome]) -> BTreeMap<u64, Vec<&Outcome>> {
    let mut rates: BTreeMap<u64, Vec<&Outcome>> = BTreeMap::new();
    for run in runs {
        if let Loop::Open { rate, .. } = run.load {
            // Rates are positive, so their bit patterns have the same order.
            rates.entry(rate.to_bits()).or_default().push(run);
        }
    }
    rates
}

/// A rate of a sweep, for the plot.
fn point(runs: &[&Outcome]) -> Value {
    let spread = |figure: fn(&Outcome) -> f64| {
        let found = Summary::of(runs.iter().copied().map(figure));
        found.map(|Summary { low, median, high, .. }| json!({ "low": low, "median": median, "high": high }))
    };
    let target = match runs.first().map(|run| &run.load) {
        Some(Loop::Open { rate, .. }) => *rate,
        _ => 0.0,
    };
    json!({
        "target": target,
        "kept": runs.iter().filter(|run| run.verdict.validity == Validity::Valid).count() * 2 > runs.len(),
        "begun": spread(|run| run.window.offered_rate),
        "answered": spread(|run| run.window.completed_rate),
        "failed": spread(|run| run.window.rate(run.window.failed)),
        "p50_ms": spread(|run| run.latency.p50_ms),
        "p99_ms": spread(|run| run.latency.p99_ms),
        "lateness_p99_ms": spread(|run| run.lateness.p99_ms),
    })
}

fn verdict(verdict: &Verdict, sentence: &str) -> Markup {
    let means = match verdict.validity {
        Validity::Valid => "The load generator kept up: the results describe the server.",
        Validity::AtLeast => "The load generator saturated before the server: rates are lower bounds.",
        Validity::Disturbed => "Other processes used the machine during the run, and may have affected the results.",
        Validity::ClientBound => "The load generator did not keep up: the results describe it, not the server.",
        Validity::PathBound => "The network path was not as requested: the results describe the path, not the server.",
    };
    let class = if verdict.broken.is_empty() { verdict.validity.to_string() } else { "broken".to_owned() };
    html! {
        div class=(format!("verdict {class}")) {
            p { strong { (verdict.validity) ": " } (sentence) }
            p { (means) }
            @for line in &verdict.evidence { p { (line) } }
            @for line in &verdict.broken { p.bad { "Check failed: " (line) } }
        }
    }
}

fn plot(id: &str, caption: &str) -> Markup {
    html! { figure { div id=(id) {} figcaption { (caption) } } }
}

fn clocks(outcome: &Outcome) -> Markup {
    let rows = [
        ("latency", "last byte of a correct response", &outcome.latency),
        ("first byte", "its first byte", &outcome.first_byte),
        ("secured", "TLS handshake complete", &outcome.secured),
        ("connected", "connection established", &outcome.connected),
        ("lateness", "SYN sent: the generator's own", &outcome.lateness),
    ];
    html! {
        table {
            tr { th { "ms since the scheduled time" } th {} @for name in SPREAD { th { (name) } } }
            @for (name, meaning, spread) in rows.into_iter().filter(|(.., spread)| spread.count > 0) {
                tr { td { (name) } td.faint.text { (meaning) } (cells(spread)) }
            }
        }
    }
}

/// The times of handshakes, which do not count from the scheduled time.
fn handshakes(outcome: &Outcome) -> Markup {
    html! {
        table {
            tr { th { "ms since the connection" } @for name in SPREAD { th { (name) } } }
            @for (name, spread) in handshake_rows(&outcome.handshakes) { tr { td { (name.trim()) } (cells(spread)) } }
        }
    }
}

/// The columns of times.
const SPREAD: [&str; 8] = ["count", "mean", "p50", "p90", "p95", "p99", "p99.9", "max"];

fn cells(spread: &Spread) -> Markup {
    let Spread { count, mean_ms, p50_ms, p90_ms, p95_ms, p99_ms, p999_ms, max_ms } = spread;
    html! {
        td { (count) }
        @for ms in [mean_ms, p50_ms, p90_ms, p95_ms, p99_ms, p999_ms, max_ms] { td { (format!("{ms:.3}")) } }
    }
}

fn classes(outcome: &Outcome) -> Markup {
    html! {
        table {
            tr { @for name in ["class", "answered", "failed", "p50 ms", "p99 ms"] { th { (name) } } }
            @for ClassOutcome { class, ok, failed, latency, .. } in &outcome.classes {
                tr {
                    td { (class) } td { (ok) } td { (failed) }
                    @for figure in [|times: &Spread| times.p50_ms, |times: &Spread| times.p99_ms] {
                        td { (latency.as_ref().filter(|times| times.count > 0).map_or_else(String::new, |times| format!("{:.3}", figure(times)))) }
                    }
                }
            }
        }
    }
}

fn runs(runs: &[Outcome]) -> Markup {
    html! {
        table {
            tr { @for name in ["target/s", "offered/s", "completed/s", "backlog", "failed", "p50 ms", "p99 ms", "lateness p99 ms"] { th { (name) } } th.text { "verdict" } }
            @for run in runs {
                @let target = match run.load { Loop::Open { rate, .. } => rate, Loop::Closed { .. } => 0.0 };
                tr {
                    @for figure in [target, run.window.offered_rate, run.window.completed_rate] { td { (format!("{figure:.1}")) } }
                    td { (run.window.backlog) } td { (run.unserved()) }
                    @for ms in [run.latency.p50_ms, run.latency.p99_ms, run.lateness.p99_ms] { td { (format!("{ms:.3}")) } }
                    td.text { (run.verdict) }
                }
            }
        }
    }
}

/// The conditions of the figures.
fn about(head: &Head, outcome: &Outcome) -> Markup {
    let machine = &outcome.machine;
    let share = |cpu_s: f64, elapsed_s: f64| format!("{:.0} % of a core", cpu_s / elapsed_s.max(1e-9) * 100.0);
    let (establisher, handler) = (&outcome.establisher, &outcome.handler);
    let mut client = format!("handling connections took {}", share(handler.cpu_s, handler.elapsed_s));
    let mut rows: Vec<(&str, String)> = head.settings.clone();
    if let Loop::Open { arrivals, seed, shape, .. } = &outcome.load {
        let mut text = arrivals.clone();
        for dispersion in &shape.dispersion {
            let _ = write!(text, ", dispersion {:.2} at {} ms", dispersion.index, dispersion.window_ms);
        }
        if let Some(hurst) = shape.hurst {
            let _ = write!(text, ", Hurst {hurst:.2}");
        }
        rows.push(("arrivals, as generated", text));
        rows.push(("seed of the first run", seed.to_string()));
        let begun = share(establisher.cpu_s, establisher.elapsed_s);
        let fifo = if outcome.real_time { "with" } else { "without" };
        let _ = write!(client, ", opening them {begun} ({fifo} SCHED_FIFO)");
    }
    let _ = write!(client, "; {:.1} us of CPU per correct response", outcome.cpu_us());
    rows.push(("generator", client));
    rows.push(("machine", format!("{}, {} cores", machine.cpu, machine.cores)));
    rows.push(("kernel", format!("{}, {}", machine.kernel, machine.congestion_control)));
    html! {
        h2 { "Settings" }
        table.pairs { @for (name, value) in &rows { tr { td { (name) } td { (value) } } } }
    }
}

const SCRIPT: &str = include_str!("../../../assets/load.js");

fn page(title: &str, heading: &str, first: &Outcome, body: &Markup, data: &Value) -> String {
    page::page(title, heading, &first.began(), body, data, SCRIPT)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page::chromium::{self, Seen};
    use ammeter_load::drive::{self, Settings, Stop, Target};
    use ammeter_load::null::Null;
    use ammeter_load::schedule::{Arrivals, Schedule};
    use ammeter_load::tally::Fault;
    use ammeter_load::workload::Requests;
    use ammeter_load::{Version, client::Plan};
    use std::time::Duration;

    /// A short run against a null server.
    fn outcome(rate: f64) -> Outcome {
        let server = Null::start().unwrap();
        let second = Duration::from_secs(20);
        let settings = Settings {
            target: Target::Tcp(server.address()),
            tls: None,
            connect_timeout: second,
            timeout: second,
            spin: Duration::ZERO,
            lanes: 1,
            parked: 0,
            start: None,
        };
        let plan = Plan::new(Requests::same(b"/"), Version::Http11, "h", "", 1, 1);
        let schedule = Schedule::new(&Arrivals::Constant, rate, Duration::from_millis(200), 1).unwrap();
        let load = Loop::Open { arrivals: "constant".to_owned(), rate, seed: 1, shape: schedule.shape() };
        drive::open(&settings, &plan, &schedule, load, &Stop::default(), &|_| {}).unwrap()
    }

    fn head() -> Head {
        Head { url: "http://h/?a=<b>&c".to_owned(), settings: vec![("timeout", "20s".to_owned())] }
    }

    /// The data embedded in a page.
    fn data(page: &str) -> Value {
        let (_, rest) = page.split_once("id=\"data\">").unwrap();
        serde_json::from_str(rest.split_once("</script>").unwrap().0).unwrap()
    }

    #[test]
    fn page_is_self_contained() {
        let mut outcome = outcome(100.0);
        outcome.verdict.broken.push("</script><b>".to_owned());
        // On a busy machine fewer were.
        outcome.window.offered_rate = 100.0;
        let page = run(&head(), &outcome);
        assert_eq!(data(&page)["run"]["seconds"], serde_json::to_value(&outcome.series).unwrap());
        assert_eq!(data(&page)["run"]["target"], 100.0);
        for part in ["http://h/?a=&lt;b&gt;&amp;c", "Offered 100/s. Completed ", "SCHED_FIFO", "20s", "MIT License"] {
            assert!(page.contains(part), "{part} is not in the page");
        }
        // External text is escaped everywhere.
        assert!(!page.contains("<b>") && page.contains("&lt;/script&gt;"));
        // No element that loads anything, and a policy that forbids it.
        for loads in ["src=", "href=", "@import", "url("] {
            assert!(!page.contains(loads), "{loads}");
        }
        assert!(page.contains("default-src 'none'"));
    }

    #[test]
    fn chromium_draws_every_plot_without_network() {
        let folder = tempfile::tempdir().unwrap();
        let mut one = outcome(200.0);
        one.failures.push((Fault::TimedOut, 3));
        one.series[0].failed = 3;
        let mut pages = vec![run(&head(), &one)];
        let mut runs: Vec<Outcome> = [100.0, 200.0, 300.0, 200.0].map(outcome).into();
        runs[1].verdict.weaken(Validity::ClientBound, "late");
        pages.extend(sweep(&head(), &Swept { runs, capacity: None, verdict: Verdict::valid() }));
        for (page, plots) in pages.iter().zip([5, 3]) {
            assert_eq!(chromium::sound(page, folder.path()), Seen { plots, figures: 0 });
        }
    }

    #[test]
    fn sweep_has_point_for_each_rate() {
        let runs = vec![outcome(100.0), outcome(200.0), outcome(100.0), outcome(100.0)];
        let mut runs = runs;
        runs.iter_mut().for_each(|run| run.verdict = Verdict::valid());
        for at in [0, 2] {
            runs[at].verdict.weaken(Validity::ClientBound, "late");
        }
        for (at, rate) in [(0, 70.0), (2, 90.0), (3, 80.0)] {
            runs[at].window.completed_rate = rate;
        }
        let swept = Swept { runs, capacity: None, verdict: Verdict::valid() };
        let page = sweep(&head(), &swept).unwrap();
        let points = &data(&page)["sweep"]["points"];
        let target: Vec<f64> =
            points.as_array().unwrap().iter().map(|point| point["target"].as_f64().unwrap()).collect();
        assert_eq!(target, [100.0, 200.0]);
        // Two of three did not keep the schedule: the point is open.
        assert_eq!((&points[0]["kept"], &points[1]["kept"]), (&json!(false), &json!(true)));
        assert_eq!(points[0]["answered"], json!({ "low": 70.0, "median": 80.0, "high": 90.0 }));
        let nothing = Swept { runs: Vec::new(), capacity: None, verdict: Verdict::valid() };
        assert_eq!(sweep(&head(), &nothing), None);
    }
}
