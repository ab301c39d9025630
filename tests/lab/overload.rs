//! `ammeter load` against a server that completes a known number of requests a second: its results for the measured
//! window must equal the server's own log of completions for the same time.
//!
//! Both sides read the same clock, and the client reports when its window began. They may differ by the requests in
//! flight at either end of the window, and by responses that the client reads late: no duration is asserted.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde_json::Value;

use super::load::{load, status_of, url};
use super::{ammeter, said};

const OK: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok";
const BUSY: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";

/// A server with one worker: each request takes `service`, in the order of arrival.
struct Planted {
    address: SocketAddr,
    /// Completion time of each request, in seconds since 1970.
    completed: Arc<Mutex<Vec<f64>>>,
}

impl Planted {
    /// `room` is the number of requests that may wait; further requests receive 503 at once.
    fn start(service: Duration, room: usize) -> Planted {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (waiting, completed) = (Arc::new(Mutex::new(VecDeque::new())), Arc::new(Mutex::new(Vec::new())));
        let (queue, log) = (Arc::clone(&waiting), Arc::clone(&completed));
        // The server accepts connections at once, so that none waits in the kernel's queue, where it could be dropped.
        thread::spawn(move || {
            for stream in listener.incoming() {
                let Ok(mut stream) = stream else { continue };
                let mut waiting = queue.lock().unwrap();
                if waiting.len() < room {
                    waiting.push_back(stream);
                } else {
                    drop(waiting);
                    answer(&mut stream, BUSY);
                }
            }
        });
        thread::spawn(move || {
            let mut free = Instant::now();
            loop {
                let next = waiting.lock().unwrap().pop_front();
                let Some(mut stream) = next else {
                    thread::sleep(Duration::from_micros(200));
                    continue;
                };
                // Absolute times instead of sleeps of a fixed length: a late wake-up does not accumulate.
                free = free.max(Instant::now()) + service;
                thread::sleep(free.saturating_duration_since(Instant::now()));
                let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
                if answer(&mut stream, OK) {
                    log.lock().unwrap().push(now.as_secs_f64());
                }
            }
        });
        Planted { address, completed }
    }

    /// Requests completed in `seconds` from `from_s` on.
    fn completed(&self, from_s: f64, seconds: f64) -> u64 {
        let log = self.completed.lock().unwrap();
        log.iter().filter(|at| (from_s..from_s + seconds).contains(*at)).count() as u64
    }
}

/// Reads a request and answers it; returns `false` if the client has disconnected.
fn answer(stream: &mut TcpStream, reply: &[u8]) -> bool {
    let mut buffer = [0; 2048];
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    match stream.read(&mut buffer) {
        Ok(1..) => stream.write_all(reply).is_ok(),
        Ok(_) => false,
        Err(error) => matches!(error.kind(), ErrorKind::Interrupted),
    }
}

const CAPACITY: f64 = 200.0;

fn planted(room: usize) -> Planted {
    Planted::start(Duration::from_secs_f64(1.0 / CAPACITY), room)
}

fn figure(outcome: &Value, path: &str) -> f64 {
    outcome.pointer(path).and_then(Value::as_f64).unwrap_or_else(|| panic!("no {path} in {outcome}"))
}

#[test]
fn alone_window_and_drain_match_server_counts() {
    // Multiples of the capacity, and durations in seconds: with a fraction the window ends within a second.
    for (times, seconds) in [(0.5, 2.0), (0.9, 2.5), (1.1, 2.5), (2.0, 2.0), (16.0, 0.5)] {
        let server = planted(usize::MAX);
        let (rate, duration) = ((times * CAPACITY).to_string(), format!("{seconds}s"));
        let outcome = load(server.address, &["--rate", &rate, "--duration", &duration, "--seed", "5"]);
        let began_s = figure(&outcome, "/began_s");
        let [offered, completed, backlog, drained] = ["offered", "completed", "backlog", "drain_completed"]
            .map(|name| figure(&outcome, &format!("/window/{name}")));
        // Requests in flight, and responses that a busy machine reads late.
        let slack = 3.0 + 0.02 * CAPACITY * seconds;
        let close = |what: &str, found: f64, truth: f64| {
            assert!(
                (found - truth).abs() <= slack,
                "{times} times: {what} {found}, the server counted {truth}: {outcome}"
            );
        };
        close("completed", completed, server.completed(began_s, seconds) as f64);
        close("drain", drained, server.completed(began_s + seconds, 1e6) as f64);
        for second in outcome["series"].as_array().unwrap() {
            let [at_s, length_s, ok] = ["at_s", "length_s", "ok"].map(|name| second[name].as_f64().unwrap());
            close("a second", ok, server.completed(began_s + at_s, length_s) as f64);
        }
        // No request is lost, and none is counted twice.
        assert_eq!((completed + drained, offered - completed), (figure(&outcome, "/ok"), backlog), "{outcome}");
        assert_eq!(figure(&outcome, "/rate"), figure(&outcome, "/window/completed_rate"));
        assert!((figure(&outcome, "/rate") * seconds - completed).abs() < 0.01 * seconds, "{outcome}");
        // No machine makes the server faster than its capacity.
        assert!(completed <= CAPACITY * seconds + 1.0, "{outcome}");
        if times >= 2.0 {
            assert_eq!(outcome["window"]["pace"], "fell-behind", "{outcome}");
        }
    }
}

#[test]
fn overload_is_reported_first_and_distinguished_from_shedding() {
    let words = |address| {
        let url = url(address);
        let run = [
            "load",
            &url,
            "--rate",
            "800",
            "--duration",
            "1s",
            "--seed",
            "5",
            "--connect-timeout",
            "1m",
            "--timeout",
            "1m",
        ];
        said(&ammeter(&run)).0
    };
    let text = words(planted(usize::MAX).address);
    let first = text.lines().next().unwrap();
    assert!(first.starts_with("Offered ") && first.contains("the server fell behind: backlog "), "{text}");
    let text = words(planted(4).address);
    let first = text.lines().next().unwrap();
    assert!(first.contains("the server shed load") && first.contains("503: "), "{text}");
    assert!(!first.contains("fell behind") && text.contains("\nstatus      200 "), "{text}");
}

/// One pass through the rates is not enough: the two deciding rates are repeated.
#[test]
fn alone_capacity_needs_three_valid_runs_at_deciding_rates() {
    let server = planted(usize::MAX);
    let words = ["--sweep", "50..850/400", "--repeat", "1", "--duration", "600ms", "--pause", "0s", "--find-capacity"];
    let swept = load(server.address, &words);
    let at_rate = |rate: f64| -> Vec<&Value> {
        let runs = swept["runs"].as_array().unwrap().iter();
        runs.filter(|run| run.pointer("/load/open/rate").and_then(Value::as_f64) == Some(rate)).collect()
    };
    let valid = |rate| at_rate(rate).iter().filter(|run| run["verdict"]["validity"] == "valid").count();
    let found =
        ["sustained", "not_sustained"].map(|name| swept.pointer(&format!("/capacity/{name}")).and_then(Value::as_f64));
    let at_least = swept.pointer("/capacity/at_least").is_some_and(Value::is_string);
    // If this machine delayed the load generator, the result is weaker, but never different.
    match (valid(50.0), valid(450.0)) {
        (3.., 3..) => {
            assert_eq!((found, at_least), ([Some(50.0), Some(450.0)], false), "{swept}");
            // A rate that decides nothing is not repeated.
            assert_eq!((figure(&swept, "/capacity/sustained_runs/valid"), at_rate(850.0).len()), (3.0, 1), "{swept}");
        }
        (3.., _) => assert!(found[0] == Some(50.0) && found[1].is_none() && at_least, "{swept}"),
        _ => assert!(found[0].is_none(), "{swept}"),
    }
}

/// The server is the limit even at the lowest rate, not the load generator.
#[test]
fn alone_sweep_above_capacity_is_not_client_bound() {
    let server = planted(usize::MAX);
    let words = ["--sweep", "600..800/200", "--duration", "600ms", "--pause", "0s", "--find-capacity"];
    let swept = load(server.address, &words);
    let runs = swept["runs"].as_array().unwrap().iter();
    let valid = runs.filter(|run| {
        run.pointer("/load/open/rate").and_then(Value::as_f64) == Some(600.0) && run["verdict"]["validity"] == "valid"
    });
    let (valid, verdict) = (valid.count(), &swept["verdict"]);
    assert!(swept["capacity"].is_null() && status_of(verdict) == 1, "{swept}");
    // If this machine delayed the load generator in too many runs, it was the limit.
    if valid >= 3 {
        let says = verdict["broken"].to_string();
        assert!(verdict["validity"] == "valid" && says.contains("no rate was sustained: 600/s in 0 of"), "{verdict}");
    } else {
        assert_eq!(verdict["validity"], "client-bound", "{verdict}");
    }
}

/// Processes that are not descendants of this one, which runs the server. Stopped when dropped.
struct Busy(Vec<String>);

impl Busy {
    fn on_each_core() -> Busy {
        let cores = thread::available_parallelism().unwrap().get();
        let words = ["-c", "while :; do :; done > /dev/null 2>&1 & echo $!"];
        let one = || String::from_utf8(Command::new("sh").args(words).output().unwrap().stdout).unwrap();
        Busy((0..cores).map(|_| one().trim().to_owned()).collect())
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        let _ = Command::new("kill").arg("-KILL").args(&self.0).status();
    }
}

#[test]
fn alone_run_beside_busy_programs_is_disturbed_with_hint() {
    let server = planted(usize::MAX);
    let _busy = Busy::on_each_core();
    let url = url(server.address);
    let words = [
        "load",
        &url,
        "--rate",
        "20",
        "--duration",
        "1s",
        "--connect-timeout",
        "1m",
        "--timeout",
        "1m",
        "--others-max",
    ];
    let output = ammeter(&[&words[..], &["20%", "--json"]].concat());
    let outcome: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(figure(&outcome, "/others/share") > 0.2, "{outcome}");
    // The load generator may have been late as well: that decides the verdict, and this is reported beside it.
    assert_eq!((output.status.code(), outcome["verdict"]["validity"] != "valid"), (Some(1), true), "{outcome}");
    let evidence = outcome["verdict"]["evidence"].to_string();
    for part in ["other processes used ", " cores", "they may have affected the results", "--others-max"] {
        assert!(evidence.contains(part), "no {part:?} in {evidence}");
    }
    let allowed = said(&ammeter(&[&words[..], &["100%"]].concat())).0;
    assert!(!allowed.contains("other processes"), "{allowed}");
}
