//! S-Clients and closed loops against small servers in this process. Nothing about time is asserted.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::unix::net::UnixListener;

use super::*;
use crate::client::Plan;
use crate::schedule::{Arrivals, Schedule};
use crate::workload::{Order, Request, Requests};
use amped_http::h1::request::Version;

/// Answers everything on all connections of a listener, a thread each, until the process ends.
fn answer<S: Read + Write + Send + 'static>(mut accept: impl FnMut() -> io::Result<S> + Send + 'static) {
    thread::spawn(move || {
        while let Ok(mut stream) = accept() {
            thread::spawn(move || {
                let (mut held, mut buffer) = (Vec::new(), [0; 4096]);
                while let Ok(count @ 1..) = stream.read(&mut buffer) {
                    held.extend_from_slice(&buffer[..count]);
                    while let Some(end) = held.windows(4).position(|bytes| bytes == b"\r\n\r\n") {
                        let head = String::from_utf8(held.drain(..end + 4).collect()).unwrap();
                        let close = head.contains("Connection: close");
                        let status = if head.starts_with("GET /missing") { "404 Not Found" } else { "200 OK" };
                        let connection = if close { "Connection: close\r\n" } else { "" };
                        let reply = format!("HTTP/1.1 {status}\r\n{connection}Content-Length: 2\r\n\r\nok");
                        if stream.write_all(reply.as_bytes()).is_err() || close {
                            return;
                        }
                    }
                }
            });
        }
    });
}

fn server() -> Target {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    answer(move || listener.accept().map(|(stream, _)| stream));
    Target::Tcp(address)
}

fn settings(target: Target) -> Settings {
    let (connect_timeout, timeout) = (Duration::from_secs(20), Duration::from_secs(20));
    Settings { target, connect_timeout, timeout, spin: Duration::ZERO, lanes: 1 }
}

fn plan(requests: Requests, per_connection: u64, pipeline: u64) -> Plan {
    Plan::new(requests, Version::Http11, "test", "", per_connection, pipeline)
}

fn run(settings: &Settings, plan: &Plan, rate: f64, ms: u64) -> Outcome {
    let schedule = Schedule::new(&Arrivals::Constant, rate, Duration::from_millis(ms), 1).unwrap();
    let shape = schedule.shape();
    let asked = Loop::Open { arrivals: "constant".to_owned(), rate, seed: 1, shape };
    open(settings, plan, &schedule, asked, &Stop::default(), &|_| {}).unwrap()
}

#[test]
fn each_arrival_is_answered() {
    let target = server();
    for (lanes, per_connection, pipeline) in [(1, 1, 1), (2, 1, 1), (1, 5, 1), (1, 5, 2), (3, 4, 4)] {
        let settings = Settings { lanes, ..settings(target.clone()) };
        let outcome = run(&settings, &plan(Requests::same(b"/"), per_connection, pipeline), 200.0, 500);
        assert_eq!((outcome.planned, outcome.started, outcome.established), (100, 100, 100), "{lanes} lanes");
        assert_eq!((outcome.ok, outcome.failed()), (100 * per_connection, 0), "{:?}", outcome.failures);
        assert_eq!(outcome.latency.count, outcome.ok);
        assert_eq!(outcome.statuses, [0, outcome.ok, 0, 0, 0]);
    }
}

#[test]
fn a_list_is_asked_once_and_classes_are_told_apart() {
    let request = |target: &str, class| Request { target: target.as_bytes().into(), class, ..Request::default() };
    let table = vec![request("/", 0), request("/missing", 1), request("/", 1), request("/", 1)];
    let requests = Requests::new(table, Order::Once);
    let outcome = run(&settings(server()), &plan(requests, 1, 1), 100.0, 40);
    assert_eq!((outcome.ok, outcome.failed_by(Fault::Status)), (3, 1));
    assert_eq!(outcome.classes, [(1, 0), (2, 1)]);
}

#[test]
fn nobody_listens() {
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let outcome = run(&settings(Target::Tcp(address)), &plan(Requests::same(b"/"), 1, 1), 200.0, 500);
    assert_eq!((outcome.started, outcome.ok, outcome.failed_by(Fault::Refused)), (100, 0, 100));
}

#[test]
fn what_is_not_connected_or_answered_in_time_is_given_up() {
    // It accepts nobody: its queue fills, and whoever comes later is not even answered by the kernel.
    let deaf = amped_sys::socket::listen("127.0.0.1:0".parse().unwrap(), 10, false).unwrap();
    let target = Target::Tcp(amped_sys::socket::local_address(&deaf).unwrap());
    let short = Duration::from_millis(300);
    let settings = Settings { connect_timeout: short, timeout: 2 * short, ..settings(target) };
    let outcome = run(&settings, &plan(Requests::same(b"/"), 1, 1), 200.0, 500);
    let (abandoned, timed_out) = (outcome.failed_by(Fault::Abandoned), outcome.failed_by(Fault::TimedOut));
    assert_eq!((outcome.started, outcome.ok, abandoned + timed_out), (100, 0, 100), "{:?}", outcome.failures);
    assert!(abandoned >= 50 && timed_out >= 5, "{:?}", outcome.failures);
}

#[test]
fn clients_in_a_closed_loop() {
    let target = server();
    for (lanes, per_connection, pipeline, think_ms) in [(1, u64::MAX, 1, 0), (2, 3, 2, 0), (1, 1, 1, 5), (2, 4, 1, 1)] {
        let settings = Settings { lanes, ..settings(target.clone()) };
        let think = Duration::from_millis(think_ms);
        let plan = plan(Requests::same(b"/"), per_connection, pipeline);
        let outcome =
            closed(&settings, &plan, 4, think, Duration::from_millis(300), &Stop::default(), &|_| {}).unwrap();
        assert!(outcome.ok >= 4 && outcome.failed() == 0, "{} {:?}", outcome.ok, outcome.failures);
        if per_connection == u64::MAX {
            assert_eq!(outcome.started, 4, "they stay connected");
        } else {
            assert!(outcome.ok.div_ceil(per_connection) <= outcome.started);
        }
        assert_eq!(outcome.asked, Loop::Closed { clients: 4, think_ms: think_ms as f64 });
    }
}

#[test]
fn a_list_that_ends_ends_a_closed_loop() {
    let target = server();
    for (lanes, per_connection, pipeline) in [(1, u64::MAX, 1), (1, 1, 1), (2, 4, 2)] {
        let settings = Settings { lanes, ..settings(target.clone()) };
        let table = vec![Request { target: b"/".as_slice().into(), ..Request::default() }; 50];
        let plan = plan(Requests::new(table, Order::Once), per_connection, pipeline);
        // A minute, if it does not end by itself.
        let long = Duration::from_secs(60);
        let outcome = closed(&settings, &plan, 4, Duration::ZERO, long, &Stop::default(), &|_| {}).unwrap();
        assert_eq!((outcome.ok, outcome.failed()), (50, 0), "{lanes} lanes: {:?}", outcome.failures);
        assert!(outcome.started <= 50 + 4 && outcome.seconds < 60.0, "{} {}", outcome.started, outcome.seconds);
    }
}

#[test]
fn a_closed_loop_survives_a_server_that_is_not_there() {
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let settings = settings(Target::Tcp(address));
    let plan = plan(Requests::same(b"/"), 1, 1);
    let outcome =
        closed(&settings, &plan, 2, Duration::ZERO, Duration::from_millis(200), &Stop::default(), &|_| {}).unwrap();
    // Each client pauses 10 ms after each refusal.
    assert!((2..=44).contains(&outcome.failed_by(Fault::Refused)), "{:?}", outcome.failures);
}

#[test]
fn sockets_in_the_file_system() {
    let folder = std::env::temp_dir().join(format!("ammeter-load-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    let path = folder.join("socket");
    let listener = UnixListener::bind(&path).unwrap();
    answer(move || listener.accept().map(|(stream, _)| stream));
    let outcome = run(&settings(Target::Unix(path)), &plan(Requests::same(b"/"), 2, 1), 100.0, 200);
    fs::remove_dir_all(folder).unwrap();
    assert_eq!((outcome.ok, outcome.failed()), (40, 0), "{:?}", outcome.failures);
}

#[test]
fn a_run_that_is_stopped_tells_what_there_is() {
    let (target, stop) = (server(), Stop::default());
    let schedule = Schedule::new(&Arrivals::Constant, 50.0, Duration::from_secs(600), 1).unwrap();
    let asked = Loop::Open { arrivals: "constant".to_owned(), rate: 50.0, seed: 1, shape: schedule.shape() };
    let on_second = |_: &Second| stop.stop();
    let outcome =
        open(&settings(target), &plan(Requests::same(b"/"), 1, 1), &schedule, asked, &stop, &on_second).unwrap();
    assert!(outcome.interrupted && outcome.ok > 0 && outcome.planned < 30_000, "{}", outcome.planned);
    assert!(outcome.planned <= outcome.started + 1);
}

#[test]
fn descriptors_that_cannot_be_had_are_told_with_their_number() {
    let schedule = Schedule::at(&vec![Duration::ZERO; 40_000_000]).unwrap();
    let asked = Loop::Closed { clients: 0, think_ms: 0.0 };
    let plan = plan(Requests::same(b"/"), 1, 1);
    let refused = open(&settings(server()), &plan, &schedule, asked, &Stop::default(), &|_| {}).unwrap_err();
    let text = refused.to_string();
    assert!(refused.exit_status() == 1 && text.contains("40000064") && text.contains("ulimit -n"), "{text}");
}
