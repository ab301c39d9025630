//! `ammeter` with the server of this project: the server's own counts equal the client's, to the byte.
//!
//! Neither program contains the other's code. docs/metrics-file.md describes the file between them, and this test
//! checks both against it.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::Value;

use super::load::PATIENT;
use super::{ammeter, said, until};

/// The program, in the same directory as `ammeter`.
fn amped() -> PathBuf {
    let path = Path::new(env!("CARGO_BIN_EXE_ammeter")).with_file_name("amped");
    assert!(path.exists(), "{} is not there: build it (cargo build --package amped)", path.display());
    path
}

/// A server of a directory. Stopped when dropped.
pub struct Server {
    child: Child,
    pub address: SocketAddr,
}

impl Server {
    fn start(site: &Path, metrics: &Path, architecture: &str) -> Server {
        Server::start_with(site, &["--architecture", architecture, "--metrics-file", metrics.to_str().unwrap()])
    }

    fn start_with(site: &Path, flags: &[&str]) -> Server {
        Server::spawn(Command::new(amped()).arg("serve").arg(site).args(["--listen", "127.0.0.1:0"]).args(flags))
    }

    /// Starts it with a configuration file, which has its address.
    pub fn configured(config: &Path) -> Server {
        Server::spawn(Command::new(amped()).args(["serve", "--config"]).arg(config))
    }

    fn spawn(command: &mut Command) -> Server {
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map_while(Result::ok);
        let address = |line: &str| {
            let (_, url) = line.split_once("serving on ")?;
            url.split_once("://")?.1.strip_suffix('/')?.parse().ok()
        };
        let address = lines.find_map(|line| address(&line));
        // Read to the end: a full pipe would block the server.
        std::thread::spawn(move || lines.for_each(drop));
        Server { child, address: address.expect("a line with its address") }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // All workers of a pool end with their parent. The test waits for the parent, so that the name of its file is
        // free.
        let pid = self.child.id().to_string();
        let _ = Command::new("kill").args(["-TERM", &pid]).status();
        let _ = self.child.wait();
    }
}

/// Returns the server's own counts at the end of a short watch.
fn watched(port: &str, more: &[&str]) -> Value {
    let words = ["monitor", "--port", port, "--json", "--interval", "100ms", "--budget", "100%", "--duration", "300ms"];
    let output = ammeter(&[&words[..], more].concat());
    let (text, status) = said(&output);
    assert_eq!(status, 0, "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_str::<Value>(text.lines().last().expect("a tick")).unwrap()["module"].clone()
}

#[test]
fn server_figures_match_client_counts() {
    let home = tempfile::tempdir_in("/dev/shm").unwrap();
    let (site, metrics) = (home.path().join("site"), home.path().join("metrics"));
    fs::create_dir(&site).unwrap();
    let sizes = [(500, "<1K"), (5000, "<10K"), (200_000, "<1M")];
    for (size, _) in sizes {
        fs::write(site.join(size.to_string()), vec![b'x'; size]).unwrap();
    }
    let mix = home.path().join("mix");
    fs::write(&mix, "5 /500\n3 /5000\n1 /200000\n").unwrap();
    for architecture in ["amped", "sped", "mt", "mp"] {
        let server = Server::start(&site, &metrics, architecture);
        let url = format!("http://{}/", server.address);
        let flags =
            ["--rate", "100", "--arrivals", "constant", "--duration", "500ms", "--requests-per-connection", "6"];
        let words = ["load", &url, "--json", "--seed", "3", "--mix", mix.to_str().unwrap()];
        let outcome: Value = serde_json::from_str(&said(&ammeter(&[&words[..], &flags, &PATIENT].concat())).0).unwrap();
        assert!(outcome["failures"].as_array().unwrap().is_empty(), "{outcome}");
        let (replies, bytes) = (outcome["ok"].as_u64().unwrap(), outcome["received_bytes"].as_u64().unwrap());
        assert_eq!(replies, 50 * 6, "{outcome}");

        let port = server.address.port().to_string();
        let all = |module: &Value, what: &str| -> u64 {
            module["classes"].as_array().unwrap().iter().map(|class| class[what].as_u64().unwrap()).sum()
        };
        // The server counts the last responses a moment after the client has received them.
        let mut module = Value::Null;
        until("the metrics file, with all responses counted", || {
            module = watched(&port, &[]);
            module.is_object() && all(&module, "replies") >= replies
        });
        let counter = |name: &str| module["counters"][name].as_u64().unwrap_or_else(|| panic!("no {name}: {module}"));
        assert_eq!((counter("requests"), counter("sent_bytes")), (replies, bytes), "{architecture}: {module}");
        assert_eq!(all(&module, "replies"), replies, "{architecture}: {module}");
        let of_classes: u64 = sizes
            .iter()
            .map(|(size, class)| {
                let classes = module["classes"].as_array().unwrap();
                let found = classes.iter().find(|found| found["size"] == *class && found["kind"] == "static");
                let found = found.unwrap_or_else(|| panic!("no {class}: {module}"));
                let count = found["replies"].as_u64().unwrap();
                assert_eq!(found["body_bytes"].as_u64(), Some(count * *size as u64), "{architecture}: {found}");
                count
            })
            .sum();
        assert_eq!(of_classes, replies);
        assert_eq!(module["gauges"]["helper_queue"].as_u64(), Some(0), "{module}");
        // The same, with the name of the file.
        let again = watched(&port, &["--server-file", metrics.to_str().unwrap()]);
        let totals = |module: &Value| ["requests", "sent_bytes"].map(|name| module["counters"][name].clone());
        assert_eq!((totals(&again), &again["classes"]), (totals(&module), &module["classes"]), "{architecture}");
    }
}

/// strace delays file reads by a known time, in the loop itself, because SPED has no helpers.
#[test]
fn alone_stalled_loop_reports_count_and_duration() {
    const FILES: usize = 5;
    const DELAY_S: f64 = 0.2;
    let home = tempfile::tempdir_in("/dev/shm").unwrap();
    let (site, metrics, trace) = (home.path().join("site"), home.path().join("metrics"), home.path().join("trace"));
    fs::create_dir(&site).unwrap();
    for file in 0..FILES {
        fs::write(site.join(file.to_string()), vec![b'x'; 3000]).unwrap();
    }
    let server = Server::start(&site, &metrics, "sped");
    let (pid, port) = (server.child.id().to_string(), server.address.port().to_string());
    let inject = format!("inject=preadv2,pread64:delay_enter={}", DELAY_S * 1e6);
    let words = ["-f", "-qq", "-e", "trace=preadv2,pread64", "-e", &inject, "-p", &pid, "-o"];
    let mut strace = Command::new("strace").args(words).arg(&trace).spawn().expect("the program `strace`");
    until("strace to attach to every thread", || {
        let threads = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
        let mut states = threads.map(|thread| fs::read_to_string(thread.unwrap().path().join("status")).unwrap());
        states.all(|state| !state.contains("TracerPid:\t0\n"))
    });
    let reported = || {
        let module = watched(&port, &[]);
        ["loop_stalls", "loop_stalled_ns"].map(|name| module["counters"][name].as_f64().expect("a figure"))
    };
    let before = reported();
    for file in 0..FILES {
        let mut client = TcpStream::connect(server.address).unwrap();
        client.write_all(format!("GET /{file} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").as_bytes()).unwrap();
        let mut reply = Vec::new();
        client.read_to_end(&mut reply).unwrap();
        assert!(reply.starts_with(b"HTTP/1.1 200") && reply.len() > 3000);
    }
    // A turn is counted when it ends.
    let mut found = before;
    until("all stalls to be reported", || {
        found = reported();
        found[0] - before[0] >= FILES as f64
    });
    Command::new("kill").args(["-INT", &strace.id().to_string()]).status().unwrap();
    strace.wait().unwrap();
    let calls = fs::read_to_string(&trace).unwrap().lines().filter(|line| line.contains("(DELAYED)")).count();
    let (stalls, truth_s) = (found[0] - before[0], calls as f64 * DELAY_S);
    let reported_s = (found[1] - before[1]) / 1e9;
    assert!(calls >= FILES && stalls == FILES as f64, "{stalls} stalls of {calls} calls");
    assert!((1.0..1.5).contains(&(reported_s / truth_s)), "{reported_s} s reported, {truth_s} s expected");
}

/// A connection with many requests that ends within a window counts as many units of work, not as one.
#[test]
fn alone_monitor_overhead_is_reported_per_request() {
    const REQUESTS: f64 = 40.0;
    let home = tempfile::tempdir_in("/dev/shm").unwrap();
    let (site, metrics) = (home.path().join("site"), home.path().join("metrics"));
    fs::create_dir(&site).unwrap();
    fs::write(site.join("a"), vec![b'x'; 500]).unwrap();
    let server = Server::start(&site, &metrics, "amped");
    let url = format!("http://{}/a", server.address);
    let each = REQUESTS.to_string();
    let mut load = Command::new(env!("CARGO_BIN_EXE_ammeter"))
        .args(["load", &url, "--rate", "50", "--requests-per-connection", &each, "--arrivals", "constant"])
        .args(["--duration", "60s"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let port = server.address.port().to_string();
    let words = ["overhead", "--port", &port, "--blocks", "6", "--window", "200ms", "--of", "monitor", "--seed", "3"];
    let mut found = Value::Null;
    // The load must begin first.
    until("load in every block", || {
        let output = ammeter(&[&words[..], &["--json"]].concat());
        found = serde_json::from_slice(&output.stdout).unwrap_or_default();
        found["idle_blocks"] == 0
    });
    let shown = said(&ammeter(&words)).0;
    load.kill().unwrap();
    load.wait().unwrap();
    let work_per_s = found["work_per_s"].as_f64().unwrap();
    assert_eq!(found["unit"], "requests", "{found}");
    // Fewer if the machine ran other processes; 50 if connections were counted, 4000 for segments.
    assert!((8.0..1.5 * REQUESTS).contains(&(work_per_s / 50.0)), "{found}");
    assert!(shown.contains("per request"), "{shown}");
}

#[test]
fn phases_of_concurrent_requests_are_shown() {
    let home = tempfile::tempdir_in("/dev/shm").unwrap();
    let (site, metrics) = (home.path().join("site"), home.path().join("metrics"));
    fs::create_dir(&site).unwrap();
    fs::write(site.join("a"), vec![b'x'; 3000]).unwrap();
    let server = Server::start(&site, &metrics, "amped");
    let url = format!("http://{}/a", server.address);
    let mut load = Command::new(env!("CARGO_BIN_EXE_ammeter"))
        .args(["load", &url, "--clients", "2", "--duration", "60s"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let port = server.address.port().to_string();
    until("a sample with phase times", || {
        let module = watched(&port, &[]);
        let class = &module["classes"][0];
        let Some(phases) = class["phases"].as_array().filter(|phases| !phases.is_empty()) else { return false };
        let names: Vec<&str> = phases.iter().map(|phase| phase["name"].as_str().unwrap()).collect();
        assert_eq!(names, ["waiting", "parsing", "processing", "sending", "logging"], "{module}");
        let times = |what: &str| phases.iter().map(|phase| phase[what].as_f64().unwrap()).sum::<f64>();
        let (elapsed, cpu) = (times("elapsed_us"), times("cpu_us"));
        assert!(elapsed >= cpu && cpu > 0.0 && class["timed"].as_u64().unwrap() > 0, "{module}");
        assert!(class["size"] == "<10K" && class["replies_per_s"].as_f64().unwrap() > 0.0, "{module}");
        true
    });
    load.kill().unwrap();
    load.wait().unwrap();
    let output = ammeter(&["monitor", "--port", &port, "--server-file", site.join("a").to_str().unwrap()]);
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.code() == Some(1) && text.contains("is not a metrics file"), "{text}");
}

#[test]
fn replay_of_each_log_format_gets_same_responses() {
    let home = tempfile::tempdir_in("/dev/shm").unwrap();
    let site = home.path().join("site");
    fs::create_dir(&site).unwrap();
    fs::write(site.join("a b\"c"), vec![b'x'; 3000]).unwrap();
    fs::write(site.join("plain.txt"), "text").unwrap();
    for form in ["common", "combined", "json"] {
        let log = home.path().join(form);
        let log = log.to_str().unwrap();
        let server = Server::start_with(&site, &["--access-log", log, "--log-format", form]);
        let mut stream = TcpStream::connect(server.address).unwrap();
        let ask = |request: &str, more: &str| format!("{request} HTTP/1.1\r\nHost: a\r\n{more}\r\n");
        let requests = [
            ask("GET /plain.txt?q=1", ""),
            ask("GET /a%20b%22c", ""),
            ask("HEAD /plain.txt", ""),
            ask("GET /gone", "User-Agent: \"quoted\\\r\n"),
            ask("GET /plain.txt", "Range: bytes=0-1\r\n"),
            ask("POST /plain.txt", "Content-Length: 0\r\nConnection: close\r\n"),
        ];
        stream.write_all(requests.concat().as_bytes()).unwrap();
        let mut replies = String::new();
        stream.read_to_string(&mut replies).unwrap();
        assert_eq!(replies.matches("HTTP/1.1 ").count(), 6, "{replies}");
        let address = server.address;
        drop(server);
        // Another server of the same directory responds as the log says; requests other than GET and HEAD are reported. A
        // log does not contain the requested range, so the replay requests whole files.
        let again = Server::start_with(&site, &[]);
        assert_ne!(again.address, address);
        let url = format!("http://{}/", again.address);
        let words = ["load", &url, "--replay", log, "--speed", "max", "--clients", "1", "--as-logged", "--json"];
        let output = ammeter(&[&words[..], &PATIENT].concat());
        let outcome: Value = serde_json::from_str(&said(&output).0).unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(
            (outcome["failures"].as_array().map(Vec::len), &outcome["ok"]),
            (Some(0), &5.into()),
            "{form}: {errors}{outcome}"
        );
        assert!(errors.contains("6 lines") && errors.contains("method other than GET and HEAD 1"), "{form}: {errors}");
    }
}
