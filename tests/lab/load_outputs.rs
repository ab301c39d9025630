//! Outputs of `ammeter load`: the histogram log, the screen and the page; and parked connections.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::process::{Command, Stdio};
use std::sync::atomic::Ordering;
use std::time::Duration;
use std::{fs, thread};

use base64::Engine;
use hdrhistogram::Histogram;
use hdrhistogram::serialization::Deserializer;
use hdrhistogram::serialization::interval_log::{IntervalLogIterator, LogEntry};

use super::load::{PATIENT, load, server, url};
use super::nginx::Nginx;
use super::ports::free_addresses;
use super::until;

/// The histograms of a log by tag: the start of each interval in seconds, and its histogram.
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
fn histogram_log_matches_result() {
    let (address, _) = server(|number| thread::sleep(Duration::from_millis(number % 20)));
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.hlog");
    let words = ["--rate", "200", "--duration", "2s", "--generators", "2", "--hlog", path.to_str().unwrap()];
    let outcome = load(address, &words);
    let text = fs::read_to_string(&path).unwrap();
    let validity = outcome["verdict"]["validity"].as_str().unwrap();
    let says = |part: &str| text.lines().any(|line| line.starts_with('#') && line.contains(part));
    assert!(says("open loop, poisson") && says(&format!("verdict {validity}")), "{text}");
    let found = logged(text.as_bytes());
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
            let (result, logged) = (outcome[tag][name].as_f64().unwrap(), all.value_at_quantile(quantile) as f64 / 1e6);
            assert!((result - logged).abs() < 0.001, "{tag} {name}: {result} and {logged}");
        }
    }
    let starts: Vec<f64> = found["latency"].iter().map(|(start, _)| *start).collect();
    assert!(starts.len() >= 2 && starts.windows(2).all(|pair| (pair[1] - pair[0] - 1.0).abs() < 0.01), "{starts:?}");
}

#[test]
fn screen_shows_run_and_restores_terminal() {
    let (address, count) = server(|_| {});
    let load = format!("{} load {} --rate 200 --duration 10m --screen", env!("CARGO_BIN_EXE_ammeter"), url(address));
    // script(1) creates the terminal, which has a size only if stty sets one.
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
    // The display has drawn two seconds.
    until("two seconds of load", || count.load(Ordering::Relaxed) > 450);
    let mut keyboard = child.stdin.take().unwrap();
    keyboard.write_all(b"\x03").unwrap();
    assert!(child.wait().unwrap().success());
    let text = seen.join().unwrap();
    let (before, rest) = text.split_once("\x1b[?1049h").expect("it takes the alternate screen");
    let (drawn, after) = rest.split_once("\x1b[?1049l").expect("it leaves it");
    for part in ["offered", "completed", "lateness", "Ctrl-C"] {
        assert!(drawn.contains(part), "{part} is not in {drawn:?}");
    }
    assert!(
        after.contains("Interrupted after ") && after.contains("verdict") && after.contains("ended with "),
        "{after}"
    );
    let settings = |text: &str| text[text.find("speed ").expect("what stty prints")..].trim().to_owned();
    assert_eq!(settings(before), settings(after));
}

#[test]
fn screen_requires_terminal() {
    let (address, _) = server(|_| {});
    let output = super::ammeter(&["load", &url(address), "--rate", "1", "--screen"]);
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.code() == Some(2) && text.contains("--screen requires a terminal"), "{text}");
}

#[test]
fn page_is_written_for_interrupted_run_and_path_is_checked_first() {
    let (address, count) = server(|_| {});
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.html");
    let words = ["load", &url(address), "--rate", "100", "--duration", "10m", "--html", path.to_str().unwrap()];
    let mut command = Command::new(env!("CARGO_BIN_EXE_ammeter"));
    let child = command.args(words).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    until("20 requests", || count.load(Ordering::Relaxed) > 20);
    assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
    child.wait_with_output().unwrap();
    let page = fs::read_to_string(&path).unwrap();
    for part in ["The run was interrupted", "<h2>Latency</h2>", "id=\"data\"", "</html>"] {
        assert!(page.contains(part), "{part} is not in the page");
    }
    let (address, count) = server(|_| {});
    let place = folder.path().join("no/such/folder.html");
    let output = super::ammeter(&["load", &url(address), "--rate", "100", "--html", place.to_str().unwrap()]);
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.code() == Some(1) && text.contains("no/such/folder.html"), "{text}");
    assert_eq!(count.load(Ordering::Relaxed), 0, "no request was sent before");
}

#[test]
fn invalid_output_path_destroys_no_file() {
    let (address, count) = server(|_| {});
    let folder = tempfile::tempdir().unwrap();
    let [old, link] = ["old", "link"].map(|name| folder.path().join(name));
    fs::write(&old, "of value").unwrap();
    std::os::unix::fs::symlink(&old, &link).unwrap();
    let [old_name, link_name] = [&old, &link].map(|path| path.to_str().unwrap());
    let run = |words: &[&str]| super::ammeter(&[&["load", &url(address)], words].concat());
    for words in [
        &["--rate", "0", "--hlog", old_name, "--html", link_name][..],
        &["--rate", "0", "--hlog", old_name],
        &["--rate", "0", "--html", old_name],
        &["--rate", "9", "--html", link_name, "--hlog", old_name],
        &["--rate", "9", "--arrivals", &format!("file:{old_name}"), "--hlog", link_name],
        &["--rate", "9", "--mix", old_name, "--html", old_name],
        &["--replay", old_name, "--hlog", old_name],
        &["--rate", "9", "--html", &format!("{old_name}.new"), "--hlog", &format!("{old_name}.new")],
    ] {
        let output = run(words);
        assert_eq!(output.status.code(), Some(2), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
        assert_eq!(fs::read_to_string(&old).unwrap(), "of value", "{words:?}");
    }
    assert_eq!(count.load(Ordering::Relaxed), 0);
    // A page that cannot be written does not affect the other outputs.
    let output = run(&["--clients", "1", "--duration", "100ms", "--html", "/dev/full"]);
    let (why, (text, status)) = (String::from_utf8_lossy(&output.stderr).into_owned(), super::said(&output));
    assert!(status == 1 && why.contains("cannot write /dev/full") && text.contains("verdict"), "{why}{text}");
}

#[test]
fn sweep_writes_page_and_log_of_all_runs() {
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
    let runs = swept["runs"].as_array().unwrap();
    let ok: u64 = runs.iter().map(|run| run["ok"].as_u64().unwrap()).sum();
    let logged: u64 = logged(&fs::read(&log).unwrap())["latency"].iter().map(|(_, histogram)| histogram.len()).sum();
    assert!(ok > 0 && logged == ok, "{logged} of {ok}");
    let page = fs::read_to_string(&page).unwrap();
    // There is no capacity if this machine delayed the load generator in the repeated runs too.
    let headline = match swept["capacity"].is_null() {
        true => format!("{} runs at 2 rates.", runs.len()),
        false => "Capacity: ".to_owned(),
    };
    assert!(page.contains(&headline) && page.contains("\"sweep\":"), "no {headline} in {} bytes", page.len());
}

/// nginx with two servers on loopback: one has a long keep-alive timeout, the other one second.
struct Two {
    _nginx: Nginx,
    patient: SocketAddr,
    hasty: SocketAddr,
}

impl Two {
    fn start() -> Two {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("small"), "ok").unwrap();
        fs::write(folder.path().join("large"), vec![b'x'; 1 << 20]).unwrap();
        let [patient, hasty] = free_addresses();
        let servers = format!(
            "root {};\n\
             server {{ listen {patient}; keepalive_timeout 10m; send_timeout 10m; }}\n\
             server {{ listen {hasty}; keepalive_timeout 1s; }}",
            folder.path().display()
        );
        Two { _nginx: Nginx::start(folder, patient, &servers), patient, hasty }
    }
}

/// Established connections to a server from 127.0.0.254, the source address of parked connections.
fn established(server: SocketAddr) -> usize {
    let to = format!(":{:04X}", server.port());
    let table = fs::read_to_string("/proc/net/tcp").unwrap();
    let is_parked = |line: &&str| {
        let mut words = line.split_whitespace().skip(1);
        let (Some(from), Some(peer), Some(state)) = (words.next(), words.next(), words.next()) else { return false };
        from.starts_with("FE00007F:") && peer.ends_with(&to) && state == "01"
    };
    table.lines().filter(is_parked).count()
}

#[test]
fn parked_connections_match_kernel_count() {
    let nginx = Two::start();
    let target = format!("http://{}/large", nginx.patient);
    let words =
        ["load", &target, "--rate", "20", "--duration", "3s", "--parked", "100", "--parked", "20:slow-read", "--json"];
    let mut command = Command::new(env!("CARGO_BIN_EXE_ammeter"));
    let child = command.args(words).args(PATIENT).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    until("120 parked connections", || established(nginx.patient) == 120);
    let output = child.wait_with_output().unwrap();
    let (text, _) = super::said(&output);
    let outcome: serde_json::Value = serde_json::from_str(&text).unwrap();
    for (parked, (mode, count)) in outcome["parked"].as_array().unwrap().iter().zip([("idle", 100), ("slow-read", 20)])
    {
        assert_eq!(parked["mode"], mode);
        for figure in ["target", "open_at_start", "open_least", "open_at_end"] {
            assert_eq!(parked[figure], count, "{figure} of {parked}");
        }
        assert_eq!((&parked["closed"], &parked["failed"]), (&0.into(), &0.into()), "{parked}");
    }
    // A slow reader takes 16 bytes a second, of 1 MiB.
    let taken = outcome["parked"][1]["received_bytes"].as_u64().unwrap();
    assert!((20 * 16..20 * 16 * 100).contains(&taken), "{taken} bytes");
    // Parked connections are counted separately: the responses are those of the schedule.
    assert_eq!(outcome["ok"], outcome["planned"]);
    until("all parked connections to be closed", || established(nginx.patient) == 0);
}

#[test]
fn parked_connections_closed_by_server_are_reported() {
    let nginx = Two::start();
    let target = format!("http://{}/small", nginx.hasty);
    let output = super::ammeter(&["load", &target, "--rate", "20", "--duration", "3500ms", "--parked", "10"]);
    let (text, _) = super::said(&output);
    let line = text.lines().find(|line| line.starts_with("parked ")).unwrap_or_else(|| panic!("{text}"));
    assert!(
        line.contains("10 idle: ") && line.contains("the server closed ") && line.contains("were reopened"),
        "{line}"
    );
}

#[test]
fn invalid_parked_connections_are_reported() {
    let (address, _) = server(|_| {});
    let check = |words: &[&str], status: i32, says: &str| {
        let output = super::ammeter(&[&["load", &url(address), "--rate", "10", "--duration", "100ms"], words].concat());
        let text = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(status) && text.contains(says), "{words:?}: {text}");
    };
    check(&["--parked", "0"], 2, "write 1000, 1000:idle or 50:slow-read");
    check(&["--parked", "10:fast"], 2, "50:slow-read");
    let output = super::ammeter(&["load", "https://127.0.0.1:1/", "--rate", "1", "--parked", "1"]);
    assert!(output.status.code() == Some(2) && String::from_utf8_lossy(&output.stderr).contains("do not support TLS"));
}
