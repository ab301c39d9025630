//! What `ammeter load` leaves behind and shows: the log of histograms, the screen, and the page.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::process::{Command, Stdio};
use std::sync::atomic::Ordering;
use std::time::Duration;
use std::{fs, thread};

use base64::Engine;
use hdrhistogram::Histogram;
use hdrhistogram::serialization::Deserializer;
use hdrhistogram::serialization::interval_log::{IntervalLogIterator, LogEntry};

use super::load::{load, server, url};
use super::until;

/// The histograms of a log, by tag: of each interval when it began, in seconds, and what is in it.
fn logged(log: &[u8]) -> BTreeMap<String, Vec<(f64, Histogram<u64>)>> {
    let mut found: BTreeMap<String, Vec<_>> = BTreeMap::new();
    for entry in IntervalLogIterator::new(log) {
        if let LogEntry::Interval(line) = entry.unwrap() {
            let bytes = base64::engine::general_purpose::STANDARD.decode(line.encoded_histogram()).unwrap();
            let histogram = Deserializer::new().deserialize(&mut &bytes[..]).unwrap();
            let tag = line.tag().unwrap().as_str().to_owned();
            found.entry(tag).or_default().push((line.start_timestamp().as_secs_f64(), histogram));
        }
    }
    found
}

#[test]
fn the_log_of_histograms_is_the_result() {
    let (address, _) = server(|number| thread::sleep(Duration::from_millis(number % 20)));
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.hlog");
    let words = ["--rate", "200", "--duration", "2s", "--generators", "2", "--hlog", path.to_str().unwrap()];
    let outcome = load(address, &words);
    let found = logged(&fs::read(&path).unwrap());
    let whole = |tag: &str| {
        let mut all = Histogram::new_with_bounds(512, 3_600_000_000_000, 3).unwrap();
        found[tag].iter().for_each(|(_, histogram)| all.add(histogram).unwrap());
        all
    };
    for (tag, count) in [("latency", "ok"), ("first_byte", "ok"), ("connected", "established"), ("lateness", "started")]
    {
        let all = whole(tag);
        assert_eq!(Some(all.len()), outcome[count].as_u64(), "{tag}");
        for (name, quantile) in [("p50_ms", 0.5), ("p90_ms", 0.9), ("p99_ms", 0.99)] {
            let (told, logged) = (outcome[tag][name].as_f64().unwrap(), all.value_at_quantile(quantile) as f64 / 1e6);
            assert!((told - logged).abs() < 0.001, "{tag} {name}: {told} and {logged}");
        }
    }
    let starts: Vec<f64> = found["latency"].iter().map(|(start, _)| *start).collect();
    assert!(starts.len() >= 2 && starts.windows(2).all(|pair| (pair[1] - pair[0] - 1.0).abs() < 0.01), "{starts:?}");
}

#[test]
fn the_screen_shows_the_run_and_leaves_the_terminal_as_it_was() {
    let (address, count) = server(|_| {});
    let load = format!("{} load {} --rate 200 --duration 10m --screen", env!("CARGO_BIN_EXE_ammeter"), url(address));
    // script(1) makes the terminal. It has a size only if it is given one.
    let inside = format!("stty rows 40 cols 120; stty -a; {load}; echo ended with $?; stty -a");
    let mut command = Command::new("script");
    command.args(["--quiet", "--return", "--command", &inside, "/dev/null"]).env("TERM", "xterm");
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut output = child.stdout.take().unwrap();
    let seen = thread::spawn(move || {
        let mut text = Vec::new();
        output.read_to_end(&mut text).unwrap();
        String::from_utf8_lossy(&text).into_owned()
    });
    // Two seconds have been drawn.
    until("a run of two seconds", || count.load(Ordering::Relaxed) > 450);
    let mut keyboard = child.stdin.take().unwrap();
    keyboard.write_all(b"\x03").unwrap();
    assert!(child.wait().unwrap().success());
    let text = seen.join().unwrap();
    let (before, rest) = text.split_once("\x1b[?1049h").expect("it takes the alternate screen");
    let (drawn, after) = rest.split_once("\x1b[?1049l").expect("it leaves it");
    for part in ["begun", "answered", "lateness", "Ctrl-C"] {
        assert!(drawn.contains(part), "{part} is not in {drawn:?}");
    }
    assert!(after.contains("interrupted") && after.contains("verdict") && after.contains("ended with "), "{after}");
    let settings = |text: &str| text[text.find("speed ").expect("what stty prints")..].trim().to_owned();
    assert_eq!(settings(before), settings(after));
}

#[test]
fn a_screen_needs_a_terminal() {
    let (address, _) = server(|_| {});
    let output = super::ammeter(&["load", &url(address), "--rate", "1", "--screen"]);
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.code() == Some(2) && text.contains("--screen is for a terminal"), "{text}");
}

#[test]
fn a_page_is_written_also_of_what_was_interrupted_and_its_place_is_tried_first() {
    let (address, count) = server(|_| {});
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.html");
    let words = ["load", &url(address), "--rate", "100", "--duration", "10m", "--html", path.to_str().unwrap()];
    let mut command = Command::new(env!("CARGO_BIN_EXE_ammeter"));
    let child = command.args(words).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    until("a few requests", || count.load(Ordering::Relaxed) > 20);
    assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
    child.wait_with_output().unwrap();
    let page = fs::read_to_string(&path).unwrap();
    for part in ["The run was interrupted", "<h2>Latency</h2>", "id=\"data\"", "</html>"] {
        assert!(page.contains(part), "{part} is not in the page");
    }
    let before = count.load(Ordering::Relaxed);
    let place = folder.path().join("no/such/folder.html");
    let output = super::ammeter(&["load", &url(address), "--rate", "100", "--html", place.to_str().unwrap()]);
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.code() == Some(1) && text.contains("no/such/folder.html"), "{text}");
    assert_eq!(count.load(Ordering::Relaxed), before, "nothing was asked before");
}

#[test]
fn a_sweep_has_a_page_and_a_log_of_all_its_runs() {
    let (address, _) = server(|_| {});
    let folder = tempfile::tempdir().unwrap();
    let [page, log] = ["sweep.html", "sweep.hlog"].map(|name| folder.path().join(name));
    let words = [
        "--sweep",
        "100..200/100",
        "--duration",
        "500ms",
        "--pause",
        "0s",
        "--repeat",
        "2",
        "--find-capacity",
        "--html",
        page.to_str().unwrap(),
        "--hlog",
        log.to_str().unwrap(),
    ];
    let swept = load(address, &words);
    let ok: u64 = swept["runs"].as_array().unwrap().iter().map(|run| run["ok"].as_u64().unwrap()).sum();
    let logged: u64 = logged(&fs::read(&log).unwrap())["latency"].iter().map(|(_, histogram)| histogram.len()).sum();
    assert!(ok > 0 && logged == ok, "{logged} of {ok}");
    let page = fs::read_to_string(&page).unwrap();
    assert!(page.contains("Capacity: ") && page.contains("\"sweep\":"), "{}", page.len());
}
