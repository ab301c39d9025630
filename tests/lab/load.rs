//! `ammeter load` against servers with planted faults: the load that it offers, and the truth of its results.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::{ammeter, said};

const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
const BUSY: &str = "HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n";

/// Starts a server with a thread per connection that calls `before` ahead of each response.
pub fn server(before: impl Fn(u64) + Send + Sync + 'static) -> (SocketAddr, Arc<AtomicU64>) {
    answering(move |number| {
        before(number);
        OK
    })
}

/// Like [`server`], with this response to the request of that number.
fn answering(reply: impl Fn(u64) -> &'static str + Send + Sync + 'static) -> (SocketAddr, Arc<AtomicU64>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    (listener.local_addr().unwrap(), serving(listener, reply))
}

/// Serves in a thread, and returns the count of requests.
fn serving(listener: TcpListener, reply: impl Fn(u64) -> &'static str + Send + Sync + 'static) -> Arc<AtomicU64> {
    let (reply, count) = (Arc::new(reply), Arc::new(AtomicU64::new(0)));
    let counted = Arc::clone(&count);
    thread::spawn(move || {
        for stream in listener.incoming() {
            let (reply, count) = (Arc::clone(&reply), Arc::clone(&count));
            thread::spawn(move || serve(stream.unwrap(), |number| reply(number), &count));
        }
    });
    counted
}

/// Answers requests; the client sends them one at a time, each in one piece.
fn serve(mut stream: TcpStream, reply: impl Fn(u64) -> &'static str, count: &AtomicU64) {
    let mut buffer = [0; 2048];
    while let Ok(1..) = stream.read(&mut buffer) {
        let reply = reply(count.fetch_add(1, Ordering::Relaxed));
        if stream.write_all(reply.as_bytes()).is_err() {
            return;
        }
    }
}

pub fn url(address: SocketAddr) -> String {
    format!("http://{address}/")
}

/// Timeouts so long that only requests without any response fail, however slow the machine is.
pub const PATIENT: [&str; 4] = ["--connect-timeout", "1m", "--timeout", "1m"];

/// Runs to a result, with long timeouts.
pub fn load(address: SocketAddr, words: &[&str]) -> Value {
    load_by(address, &[words, &PATIENT].concat())
}

/// Runs to a result, with only these arguments.
fn load_by(address: SocketAddr, words: &[&str]) -> Value {
    let url = url(address);
    let (text, _) = said(&ammeter(&[&["load", &url, "--json"], words].concat()));
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

fn figure(outcome: &Value, path: &str) -> f64 {
    outcome.pointer(path).and_then(Value::as_f64).unwrap_or_else(|| panic!("no {path} in {outcome}"))
}

/// The exit status for a verdict: a slow machine may have delayed the load generator.
pub fn status_of(verdict: &Value) -> i32 {
    let is_bound = ["disturbed", "client-bound", "path-bound"].iter().any(|name| verdict["validity"] == *name);
    i32::from(is_bound || verdict["broken"].as_array().is_some_and(|broken| !broken.is_empty()))
}

#[test]
fn alone_offered_rate_is_kept_beyond_capacity() {
    // One connection at a time, each for at least a millisecond: less than 1000 a second on any machine.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut buffer = [0; 2048];
            let mut stream = stream.unwrap();
            if let Ok(1..) = stream.read(&mut buffer) {
                thread::sleep(Duration::from_millis(1));
                let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok");
            }
        }
    });
    // Closed-loop clients offer no more than the server's capacity, whatever their number (Banga and Druschel, figure
    // 5).
    for clients in ["5", "50"] {
        let outcome = load(address, &["--clients", clients, "--requests-per-connection", "1", "--duration", "1s"]);
        let offered = figure(&outcome, "/started") / figure(&outcome, "/seconds");
        println!("{clients} simple clients: {offered}/s");
        assert!(offered > 0.0 && offered < 1100.0, "{clients} clients offer {offered}/s");
    }
    for rate in ["5000", "10000"] {
        let arguments =
            ["--rate", rate, "--duration", "3s", "--timeout", "2s", "--arrivals", "constant", "--seed", "1"];
        let outcome = load_by(address, &arguments);
        let (offered, target) = (figure(&outcome, "/offered_rate"), rate.parse::<f64>().unwrap());
        println!("{rate}: {offered}/s, lateness {}, verdict {}", outcome["lateness"], outcome["verdict"]);
        // A load generator that this machine delayed says so. An overloaded server must not delay it: a capacity of
        // 1000/s is no reason to offer less.
        if outcome["verdict"]["validity"] != "client-bound" {
            assert!((offered / target - 1.0).abs() < 0.01, "a target of {rate}/s, and offered {offered}/s");
        }
        assert!(offered > 2000.0, "a target of {rate}/s, and offered {offered}/s: {}", outcome["verdict"]);
        // Each arrival either began or is reported as not begun, and ended in a response or a failure.
        let failures = outcome["failures"].as_array().unwrap();
        let failed_by =
            |kind: &str| failures.iter().find(|pair| pair[0] == kind).map_or(0, |pair| pair[1].as_u64().unwrap());
        let failed: u64 = failures.iter().map(|pair| pair[1].as_u64().unwrap()).sum();
        let (planned, ok) = (outcome["planned"].as_u64().unwrap(), outcome["ok"].as_u64().unwrap());
        let not_begun = failed_by("unsent") + failed_by("local");
        assert_eq!((planned, planned), (3 * target as u64, ok + failed), "{outcome}");
        assert_eq!(planned, outcome["started"].as_u64().unwrap() + not_begun, "{outcome}");
        // The overload is five- to tenfold and appears as failures, most of them before a connection.
        assert!(2 * ok < planned && 2 * failed_by("abandoned") > failed - not_begun, "{ok} {failures:?}");
    }
}

#[test]
fn alone_planted_delays_are_measured() {
    let rest = |ms| thread::sleep(Duration::from_millis(ms));
    let fixed = server(move |_| rest(1000)).0;
    // One request of four takes four seconds: the median is that of the three, the 90th percentile that of the one.
    let bimodal = server(move |number| rest(if number % 4 == 0 { 4000 } else { 1000 })).0;
    thread::scope(|scope| {
        for (address, planted_ms) in [(fixed, [1000.0, 1000.0]), (bimodal, [1000.0, 4000.0])] {
            scope.spawn(move || {
                let outcome = load(address, &["--rate", "50", "--duration", "2s"]);
                assert_eq!(outcome["ok"], outcome["planned"], "{outcome}");
                for (name, planted) in ["p50_ms", "p90_ms"].into_iter().zip(planted_ms) {
                    let found = figure(&outcome, &format!("/latency/{name}"));
                    println!("{name}: {found} ms, {planted} planted");
                    // A slow machine increases the latencies, but hardly doubles them.
                    assert!((0.99 * planted..2.0 * planted).contains(&found), "{name}: {found} ms, {planted} planted");
                }
            });
        }
    });
}

#[test]
fn alone_freeze_shows_in_open_loop_and_not_in_closed_loop() {
    const FREEZE: Duration = Duration::from_millis(500);
    let began = Instant::now();
    // The server stops for 500 ms of every five seconds: for one second of ten, whenever these begin.
    let (address, _) = server(move |_| {
        let into = Duration::from_nanos((began.elapsed().as_nanos() % 5_000_000_000) as u64);
        thread::sleep(FREEZE.saturating_sub(into));
    });
    let length = ["--duration", "10s"];
    let closed = [&["--clients", "1", "--think-time", "1ms"][..], &length].concat();
    let open = [&["--rate", "200", "--arrivals", "constant"][..], &length].concat();
    let [open, closed] = thread::scope(|scope| {
        [open, closed].map(|words| scope.spawn(move || load(address, &words))).map(|run| run.join().unwrap())
    });
    assert_eq!((open["planned"].as_u64(), open["ok"].as_u64()), (Some(2000), Some(2000)), "{open}");
    // A tenth of the arrivals fall into a stop, evenly spread, and wait for its end: a fraction p of all (p < 0.1)
    // waits longer than 500 ms * (1 - p / 0.1). That is 450 ms at p99. Arrivals are 5 ms apart, and no machine responds
    // before the end.
    let of = |name: &str| -> Vec<f64> {
        let list = open.pointer(&format!("/distribution/{name}")).and_then(Value::as_array).unwrap();
        list.iter().map(|figure| figure.as_f64().unwrap()).collect()
    };
    let mut seen = 0;
    for (quantile, found) in of("quantiles").into_iter().zip(of("latency_ms")).filter(|(quantile, _)| *quantile > 0.9) {
        let planted = 500.0 * (1.0 - (1.0 - quantile) / 0.1);
        println!("{:.2} %: {found} ms, {planted:.0} planted", quantile * 100.0);
        assert!((planted - 10.0..planted + 1000.0).contains(&found), "{quantile}: {found} ms, {planted} were planted");
        seen += 1;
    }
    let [half, open] = ["p50_ms", "p99_ms"].map(|name| figure(&open, &format!("/latency/{name}")));
    assert!(seen >= 20 && half < 440.0 && open > 440.0, "{seen} percentiles, p50 {half} ms, p99 {open} ms");
    // The only client met both stops, and each counts once among hundreds of responses.
    let [p99, max, count] = ["p99_ms", "max_ms", "count"].map(|name| figure(&closed, &format!("/latency/{name}")));
    println!("closed: p99 {p99} ms, longest {max} ms, of {count}");
    assert!(max > 250.0 && count > 300.0 && 2.0 * p99 < open, "p99 {p99} ms, longest {max} ms, of {count}");
}

#[test]
fn same_seed_gives_same_arrivals() {
    let (address, _) = server(|_| {});
    let shape = |seed: &str| {
        let arguments = ["--rate", "500", "--duration", "1s", "--arrivals", "bursty:4,10%,200ms", "--seed", seed];
        load(address, &arguments)["load"]["open"].to_string()
    };
    assert_eq!(shape("5"), shape("5"));
    assert_ne!(shape("5"), shape("6"));
}

#[test]
fn slices_together_equal_whole_plan() {
    let (address, count) = server(|_| {});
    let plan = ["--rate", "300", "--duration", "500ms", "--seed", "4"];
    let slice = |words: &[&str], which: &str| load(address, &[words, &["--slice", which]].concat());
    let whole = load(address, &plan);
    let requests = count.load(Ordering::Relaxed);
    let parts = ["1/3", "2/3", "3/3"].map(|which| slice(&plan, which));
    let planned = |outcome: &Value| outcome["planned"].as_u64().unwrap();
    assert_eq!(parts.iter().map(planned).sum::<u64>(), planned(&whole), "{parts:?}");
    assert_eq!(count.load(Ordering::Relaxed), 2 * requests, "all of them request what one did");
    let of = |outcome: &Value, what: &str| outcome["load"]["open"][what].clone();
    for part in &parts {
        assert_eq!((of(part, "shape"), of(part, "seed")), (of(&whole, "shape"), of(&whole, "seed")));
        assert!((figure(part, "/load/open/rate") - 100.0).abs() < 1e-6, "{part}");
    }
    let closed = ["--clients", "3", "--duration", "200ms", "--seed", "4"];
    let clients = ["1/2", "2/2"].map(|which| slice(&closed, which)["load"]["closed"]["clients"].clone());
    assert_eq!(clients, [2, 1]);
}

#[test]
fn text_result_has_all_sections() {
    let (address, count) = server(|_| {});
    let url = url(address);
    let run = ["load", &url, "--rate", "100", "--duration", "500ms", "--requests-per-connection", "3", "--seed", "9"];
    let (text, _) = said(&ammeter(&[&run[..], &PATIENT].concat()));
    let status = format!("status      200 {}\n", count.load(Ordering::Relaxed));
    for part in
        ["open loop, poisson, seed 9", "completed ", " MB/s", "failed      0", "p95", &status, "lateness", "verdict "]
    {
        assert!(text.contains(part), "no {part:?} in {text}");
    }
    let (text, _) = said(&ammeter(&["load", &url, "--clients", "2", "--duration", "200ms"]));
    assert!(text.contains("CLOSED loop, 2 clients"), "{text}");
}

#[test]
fn failed_objective_sets_exit_status() {
    let (address, _) = server(|_| thread::sleep(Duration::from_millis(20)));
    let url = url(address);
    let check = |condition: &str, expected: i32| {
        let run = ["load", &url, "--clients", "2", "--duration", "300ms", "--fail-if", condition];
        let (text, status) = said(&ammeter(&[&run[..], &PATIENT].concat()));
        assert_eq!(status, expected, "{text}");
        assert_eq!(text.contains("check failed"), expected == 1, "{text}");
    };
    check("p50>10ms", 1);
    check("p50<10ms", 0);
    check("failed>0", 0);
    check("rate<1000000", 1);
}

#[test]
fn invalid_input_is_reported_in_one_line() {
    let check = |words: &[&str], expected: i32, says: &str| {
        let output = ammeter(&[&["load"], words].concat());
        let text = String::from_utf8(output.stderr).unwrap() + &String::from_utf8(output.stdout).unwrap();
        assert_eq!(output.status.code(), Some(expected), "{words:?}: {text}");
        assert!(text.contains(says), "{words:?}: {text}");
    };
    let url = "http://127.0.0.1:1/";
    check(&["127.0.0.1:80/", "--rate", "1"], 2, "has no scheme");
    check(&["ftp://127.0.0.1/", "--rate", "1"], 2, "neither http nor https");
    check(&[url, "--rate", "1", "--insecure"], 2, "require https");
    check(&[url, "--rate", "1", "--tls-resume", "50%"], 2, "--tls-version and --tls-resume require https");
    check(&[url, "--rate", "1", "--tls-version", "1.3"], 2, "--tls-version and --tls-resume require https");
    check(&["https://127.0.0.1/", "--rate", "1", "--tls-version", "1.1"], 2, "write 1.2 or 1.3");
    check(&["https://127.0.0.1/", "--rate", "1", "--tls-resume", "101%"], 2, "from 0% to 100%");
    check(&["https://127.0.0.1/", "--rate", "1", "--ca", "/no/such/file"], 1, "/no/such/file");
    check(&["https://127.0.0.1/", "--rate", "1", "--ca", "/dev/null"], 1, "-----BEGIN CERTIFICATE-----");
    check(&[url], 2, "--rate");
    check(&[url, "--rate", "0"], 2, "above 0");
    check(&[url, "--rate", "1e9"], 2, "lower --rate");
    check(&[url, "--rate", "100", "--duration", "never"], 2, "is not a duration");
    check(&[url, "--rate", "100", "--arrivals", "poison"], 2, "poisson");
    check(&[url, "--rate", "100", "--fail-if", "p98>1ms"], 2, "p99>20ms");
    check(&[url, "--rate", "100", "--header", "nothing"], 2, "Name: value");
    check(&[url, "--rate", "100", "-H", "content-length: 5"], 2, "give the body with");
    check(&[url, "--rate", "100", "-H", "Transfer-Encoding: chunked"], 2, "give the body with");
    let none = [url, "--rate", "1", "--duration", "1ms", "--arrivals", "constant", "--wait", "0s"];
    check(&none, 1, "give a longer --duration");
    check(&[url, "--rate", "nan"], 2, "above 0");
    check(&[url, "--rate", "10q"], 2, "such as 500, 10k");
    check(&[url, "--rate", "5", "-n", "0"], 2, "--requests");
    check(&[url, "--rate", "5", "--expect", "2x"], 2, "write 404, 2xx");
    check(&[url, "--rate", "5", "--method", "G T"], 2, "invalid --method");
    check(&[url, "--rate", "5", "--method", "CONNECT"], 2, "tunnel");
    check(&[url, "--rate", "5", "--body-file", "/no/such/file"], 1, "/no/such/file");
    check(&[url, "--rate", "5", "--body", "a", "--body-file", "b"], 2, "cannot be used with");
    check(&[url, "--rate", "5", "--body", "a", "--replay", "some.log"], 2, "cannot be used with");
    check(&[url, "--rate", "-5"], 2, "above 0");
    check(&[url, "--rate", "5", "--duration", "0s"], 2, "30s");
    check(&[url, "--clients", "0"], 2, "--clients");
    check(&[url, "--clients", "5", "--duration", "0s"], 2, "30s");
    check(&[url, "--rate", "5", "--replay", "some.log"], 2, "--speed max");
    check(&["http://::1:80/", "--rate", "1"], 2, "[::1]");
    check(&[url, "--rate", "1", "--unix", "/no/such/socket"], 1, "/no/such/socket");
    check(&[url, "--rate", "1", "--unix", "/dev/null"], 1, "is not a socket");
    check(&[url, "--rate", "1", "--unix", &"x".repeat(200)], 1, "xxx");
    check(&[url, "--sweep", "9..1/1"], 2, "FROM..TO/STEP");
    check(&[url, "--rate", "5", "--slice", "3/2"], 2, "write I/N");
    check(&[url, "--rate", "5", "--slice", "1/2"], 2, "the same --seed");
    check(&[url, "--clients", "1", "--slice", "2/2", "--seed", "1"], 2, "fewer slices");
    check(&["http://no-such-name.invalid/", "--rate", "1"], 1, "does not resolve");
    check(&[url, "--arrivals", "file:/no/such/file"], 1, "/no/such/file");
    // No process listens there: the load generator reports it at once, or after the run with `--wait 0s`.
    let flags = [url, "--rate", "100", "--duration"];
    check(&[&flags[..], &["1h"]].concat(), 1, "no server listens at 127.0.0.1:1: Connection refused");
    check(&[url, "--sweep", "10..50/10", "--duration", "1h"], 1, "--wait 10s");
    check(&[url, "--clients", "5", "--duration", "1h", "--wait", "60ms"], 1, "waiting for a server at 127.0.0.1:1");
    check(&[&flags[..], &["200ms", "--wait", "0s"]].concat(), 1, "no correct response; is a web server listening");
}

#[test]
fn load_waits_for_server_to_start() {
    let [address] = super::ports::free_addresses();
    let url = url(address);
    let words =
        ["load", &url, "--rate", "50", "--duration", "200ms", "--wait", "10m", "--json", "--others-max", "100%"];
    let mut command = Command::new(env!("CARGO_BIN_EXE_ammeter"));
    let mut child = command.args(words).args(PATIENT).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut said = BufReader::new(child.stderr.take().unwrap()).lines().map(Result::unwrap);
    assert_eq!(said.next(), Some(format!("waiting for a server at {address}: Connection refused (os error 111)")));
    let count = serving(TcpListener::bind(address).unwrap(), |_| OK);
    let output = child.wait_with_output().unwrap();
    let outcome: Value = serde_json::from_slice(&output.stdout).unwrap();
    // No request began earlier, and the search for the server sent it none.
    assert_eq!(outcome["failures"].as_array().map(Vec::len), Some(0), "{outcome}");
    assert_eq!(output.status.code(), Some(status_of(&outcome["verdict"])), "{outcome}");
    assert!(count.load(Ordering::Relaxed) > 0 && outcome["ok"] == count.load(Ordering::Relaxed), "{outcome}");
}

/// Returns the first request that `ammeter` sends in a load.
fn first_request(words: &[&str]) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = url(listener.local_addr().unwrap());
    let request = thread::spawn(move || {
        let mut stream = listener.accept().unwrap().0;
        let mut buffer = [0; 2048];
        let length = stream.read(&mut buffer).unwrap();
        stream.write_all(OK.as_bytes()).unwrap();
        String::from_utf8(buffer[..length].to_vec()).unwrap()
    });
    let once = ["load", &url, "--rate", "20", "--arrivals", "constant", "--duration", "80ms", "--wait", "0s"];
    ammeter(&[&once[..], &PATIENT, words].concat());
    request.join().unwrap()
}

#[test]
fn host_header_overrides_host_of_url() {
    let hosts = |words: &[&str]| -> Vec<String> {
        let request = first_request(words);
        let is_host = |line: &&str| line.to_ascii_lowercase().starts_with("host:");
        request.lines().filter(is_host).map(|line| line.split_once(':').unwrap().1.trim().to_owned()).collect()
    };
    assert!(hosts(&[])[0].starts_with("127.0.0.1:"));
    // Every server would refuse two Host fields (RFC 9112, 3.2).
    assert_eq!(hosts(&["-H", "host:  example.org", "-H", "X-A: b"]), ["example.org"]);
    assert!(first_request(&["-H", "host: a", "-H", "X-A: b"]).contains("\r\nX-A: b\r\n"));
}

#[test]
fn surplus_response_bytes_are_reported() {
    let (address, _) = answering(|_| "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nokay");
    let words = ["load", &url(address), "--rate", "50", "--duration", "500ms"];
    let (text, _) = said(&ammeter(&[&words[..], &PATIENT].concat()));
    assert!(text.contains("received more data than requested"), "{text}");
}

#[test]
fn lack_of_correct_responses_is_explained() {
    let check = |address: SocketAddr, says: &str| {
        let words = ["load", &url(address), "--rate", "50", "--duration", "200ms"];
        let (text, status) = said(&ammeter(&[&words[..], &PATIENT].concat()));
        assert!(status == 1 && text.contains("no correct response") && text.contains(says), "{text}");
        assert!(!text.contains("of CPU per response"), "there is none: {text}");
    };
    check(answering(|_| BUSY).0, "inspect one (curl -i http://127.0.0.1:");
    check(answering(|_| "220 mail\r\n").0, "(malformed): does 127.0.0.1:");
}

#[test]
fn ctrl_c_prints_partial_result() {
    let (address, count) = server(|_| {});
    let mut command = Command::new(env!("CARGO_BIN_EXE_ammeter"));
    let arguments = ["load", &url(address), "--rate", "100", "--duration", "10m"];
    let child = command.args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let began = Instant::now();
    while count.load(Ordering::Relaxed) < 20 {
        assert!(began.elapsed() < Duration::from_secs(60), "no request arrived");
        thread::sleep(Duration::from_millis(5));
    }
    assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
    let output = child.wait_with_output().unwrap();
    assert!(began.elapsed() < Duration::from_secs(60), "it did not end");
    let (text, _) = said(&output);
    assert!(text.starts_with("Interrupted after ") && text.contains("completed "), "{text}");
}

#[test]
fn ctrl_c_between_runs_starts_no_other() {
    let (address, _) = server(|_| {});
    let words = ["load", &url(address), "--sweep", "50..500/50", "--duration", "200ms", "--pause", "10m"];
    let mut command = Command::new(env!("CARGO_BIN_EXE_ammeter"));
    let mut child = command.args(words).args(PATIENT).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    // The URL, the heading, and the first run.
    let row = lines.nth(2).unwrap();
    assert!(row.trim_start().starts_with("50 "), "{row}");
    assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
    let rest: Vec<String> = lines.collect();
    child.wait().unwrap();
    assert!(rest.len() == 1 && rest[0].starts_with("verdict "), "{rest:?}");
}

#[test]
fn ctrl_c_before_load_gives_no_result() {
    // It accepts connections and never responds.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let words = ["load", &url(listener.local_addr().unwrap()), "--rate", "1", "--parked", "3", "--timeout", "10m"];
    let mut command = Command::new(env!("CARGO_BIN_EXE_ammeter"));
    let mut child = command.args(words).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut said = BufReader::new(child.stderr.take().unwrap()).lines().map(Result::unwrap);
    assert_eq!(said.next().as_deref(), Some("parking 3 connections"));
    assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
    let said: Vec<String> = said.collect();
    assert!(said.len() == 1 && said[0].contains("interrupted while opening parked connections"), "{said:?}");
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), &*output.stdout), (Some(1), &b""[..]));
}

#[test]
fn replay_accounts_for_every_line() {
    let (address, count) = server(|_| {});
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("access.log");
    let line =
        |second: u32, request: &str| format!("host - - [01/Aug/1995:00:00:0{second} -0400] \"{request}\" 200 2\n");
    // A POST is counted and not replayed: the log does not have its body.
    let text = line(1, "GET /a HTTP/1.0")
        + &line(1, "POST /a HTTP/1.0")
        + &line(1, "GET /b?c HTTP/1.0")
        + "nonsense\n"
        + &line(3, "GET /a HTTP/1.0");
    std::fs::write(&log, text).unwrap();
    let outcome = load(address, &["--replay", log.to_str().unwrap(), "--speed", "10", "--seed", "1"]);
    assert_eq!((outcome["planned"].as_u64(), outcome["ok"].as_u64()), (Some(3), Some(3)), "{outcome}");
    assert_eq!(count.load(Ordering::Relaxed), 3);
    // At a fixed rate the replay ends where the log ends.
    let outcome = load(address, &["--replay", log.to_str().unwrap(), "--speed", "max", "--rate", "100"]);
    assert_eq!(outcome["planned"].as_u64(), Some(3), "{outcome}");
    let empty = folder.path().join("empty.log");
    std::fs::write(&empty, "").unwrap();
    let output = ammeter(&["load", &url(address), "--replay", empty.to_str().unwrap()]);
    assert!(output.status.code() == Some(1) && !output.stderr.is_empty());
}

#[test]
fn targets_are_requested_by_weight() {
    let (address, _) = server(|_| {});
    let folder = tempfile::tempdir().unwrap();
    let mix = folder.path().join("mix");
    std::fs::write(&mix, "3 /a\n1 /b\n").unwrap();
    let arguments = ["--mix", mix.to_str().unwrap(), "--rate", "200", "--duration", "200ms", "--seed", "1"];
    let outcome = load(address, &arguments);
    assert!(outcome["ok"].as_u64().unwrap() > 0 && outcome["failures"].as_array().unwrap().is_empty(), "{outcome}");
    let classes = outcome["classes"].as_array().unwrap();
    assert_eq!([&classes[0]["class"], &classes[1]["class"]], ["/a", "/b"]);
    let ok: u64 = classes.iter().map(|class| class["ok"].as_u64().unwrap()).sum();
    assert_eq!(Some(ok), outcome["ok"].as_u64(), "{outcome}");
    assert!(figure(&classes[0], "/latency/p99_ms") > 0.0);
    let (text, _) = said(&ammeter(&[&["load", &url(address)], &arguments[..], &PATIENT].concat()));
    let lines: Vec<&str> = text.lines().map(|line| line.split(' ').next().unwrap()).collect();
    assert!(lines.windows(4).any(|lines| lines == ["class", "/a", "/b", "client"]), "{text}");
}

#[test]
fn method_and_body_reach_server() {
    let request = first_request(&["--body", "a=1", "-H", "Content-Type: text/plain"]);
    assert!(
        request.starts_with("POST / HTTP/1.1\r\n") && request.ends_with("\r\nContent-Length: 3\r\n\r\na=1"),
        "{request}"
    );
    assert!(request.contains("\r\nContent-Type: text/plain\r\n"), "{request}");
    let request = first_request(&["--method", "PROPFIND"]);
    assert!(request.starts_with("PROPFIND / ") && !request.contains("Content-Length"), "{request}");
}

#[test]
fn long_body_is_sent_whole_in_both_loops() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("body");
    // More than a socket buffer holds, so that it is sent in pieces.
    let body: Vec<u8> = (0..3_000_000u32).map(|at| (at % 251) as u8).collect();
    std::fs::write(&file, &body).unwrap();
    let whole = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&whole);
    thread::spawn(move || {
        for stream in listener.incoming() {
            let (mut reader, body, whole) = (BufReader::new(stream.unwrap()), body.clone(), Arc::clone(&counted));
            thread::spawn(move || {
                loop {
                    let mut line = String::from("x");
                    while line != "\r\n" {
                        line.clear();
                        if reader.read_line(&mut line).unwrap_or(0) == 0 {
                            return;
                        }
                    }
                    let mut found = vec![0; body.len()];
                    reader.read_exact(&mut found).unwrap();
                    whole.fetch_add(u64::from(found == body), Ordering::Relaxed);
                    reader.get_mut().write_all(OK.as_bytes()).unwrap();
                }
            });
        }
    });
    let body = ["--body-file", file.to_str().unwrap()];
    let outcome = load(address, &[&body[..], &["--clients", "2", "-n", "6"]].concat());
    assert_eq!((&outcome["ok"], whole.swap(0, Ordering::Relaxed)), (&6.into(), 6), "{outcome}");
    let outcome = load(address, &[&body[..], &["--rate", "20", "-n", "4"]].concat());
    assert_eq!((&outcome["ok"], whole.load(Ordering::Relaxed)), (&4.into(), 4), "{outcome}");
}

#[test]
fn request_count_ends_run() {
    let (address, count) = server(|_| {});
    let check = |words: &[&str], expected: u64| {
        let outcome = load(address, words);
        assert_eq!((outcome["ok"].as_u64(), count.swap(0, Ordering::Relaxed)), (Some(expected), expected), "{outcome}");
    };
    check(&["--rate", "0.2k", "-n", "20"], 20);
    check(&["--rate", "100", "-n", "21", "--requests-per-connection", "4"], 21);
    check(&["--clients", "3", "-n", "25"], 25);
    check(&["--clients", "3", "--requests", "25", "--requests-per-connection", "2", "--generators", "2"], 25);
    // The first limit reached ends the run; a bare number is in seconds.
    let outcome = load(address, &["--rate", "50", "-n", "100000", "-d", "0.2", "--arrivals", "constant"]);
    assert_eq!(outcome["planned"], 10, "{outcome}");
}

#[test]
fn expected_status_counts_as_correct() {
    let (address, _) = answering(|_| "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n");
    let words = ["--rate", "100", "-n", "10"];
    let counts = |more: &[&str]| {
        let outcome = load(address, &[&words[..], more].concat());
        (
            outcome["ok"].as_u64(),
            outcome["failed"].as_u64().or_else(|| outcome["failures"].as_array().map(|all| all.len() as u64)),
        )
    };
    assert_eq!(counts(&["--expect", "2xx,404"]), (Some(10), Some(0)));
    assert_eq!(counts(&[]).0, Some(0));
    assert_eq!(counts(&["--expect", "2xx"]).0, Some(0));
}
