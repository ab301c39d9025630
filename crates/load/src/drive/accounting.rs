//! Every planned request ends in exactly one count, whatever the server does: a correct response, a failure of some
//! kind, or not sent. Each server here has one fault, and each mode of the generator meets all of them.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};

use amped_http::h1::request::Version;
use amped_http::h2::frame::{self, ErrorCode, StreamId};
use amped_http::h2::hpack;

use super::*;
use crate::schedule::Arrivals;
use crate::tally::Fault;
use crate::workload::{Order, Request, Requests};

const OK: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

/// What a server does with a connection, of which it has read `number` requests before this one; `None` closes it.
type Behaviour = fn(u64) -> Option<&'static [u8]>;

/// Faults, each with the counts of a connection that is to carry four requests, one at a time: correct, failed, and not
/// sent. `None` where they depend on which side is faster.
const FAULTS: &[(&str, Behaviour, Option<[u64; 3]>)] = &[
    ("none", |_| Some(OK), Some([4, 0, 0])),
    ("surplus bytes", |_| Some(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok, and more"), Some([1, 0, 3])),
    (
        "surplus bytes later",
        |at| Some(if at == 2 { b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\nx" } else { OK }),
        Some([3, 0, 1]),
    ),
    (
        "announced end",
        |_| Some(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok"),
        Some([1, 0, 3]),
    ),
    (
        "announced end after two",
        |at| Some(if at == 1 { b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok" } else { OK }),
        Some([2, 0, 2]),
    ),
    ("end without announcement", |at| (at < 2).then_some(OK), Some([2, 1, 1])),
    ("end without response", |_| None, Some([0, 1, 3])),
    ("not HTTP", |_| Some(b"220 mail\r\n"), Some([0, 1, 3])),
    ("busy", |_| Some(b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n"), Some([0, 4, 0])),
    ("until the end", |_| Some(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nok"), None),
    ("short", |at| (at == 0).then_some(&b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nok"[..]), None),
    ("silent", |_| Some(b""), Some([0, 1, 3])),
];

/// Serves each connection in a thread of its own. Closes a connection after a response that announces this: clients
/// rely on it if the response has no length.
fn faulty(behaviour: Behaviour) -> Target {
    serving(move |mut stream| {
        let (mut held, mut buffer, mut number) = (Vec::new(), [0; 4096], 0);
        while let Ok(count @ 1..) = stream.read(&mut buffer) {
            held.extend_from_slice(&buffer[..count]);
            while let Some(end) = held.windows(4).position(|bytes| bytes == b"\r\n\r\n") {
                held.drain(..end + 4);
                let Some(reply) = behaviour(number) else { return };
                number += 1;
                let ends = reply.windows(17).any(|bytes| bytes == b"Connection: close");
                if stream.write_all(reply).is_err() || ends {
                    return;
                }
            }
        }
    })
}

fn serving(serve: impl Fn(TcpStream) + Copy + Send + 'static) -> Target {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let target = Target::Tcp(listener.local_addr().unwrap());
    thread::spawn(move || {
        for stream in listener.incoming() {
            thread::spawn(move || serve(stream.unwrap()));
        }
    });
    target
}

/// An address that refuses connections. No server of another test, nor an outgoing connection, can get its port meanwhile, as it could a free one.
pub(super) fn refusing() -> SocketAddr {
    ([127, 0, 0, 1], 1).into()
}

/// Targets without a connection, or with one that is reset.
fn unreachable() -> Vec<(&'static str, Target)> {
    let refusing = refusing();
    // It never accepts: its queue fills, and the kernel does not answer further clients. It lives as long as the tests.
    let deaf = amped_sys::socket::listen("127.0.0.1:0".parse().unwrap(), 3, false).unwrap();
    let deaf = amped_sys::socket::local_address(Box::leak(Box::new(deaf))).unwrap();
    let resetting = serving(|mut stream| {
        let _ = stream.read(&mut [0; 4096]);
        amped_sys::socket::reset_on_close(&stream);
    });
    let resetting_at_once = serving(|stream| amped_sys::socket::reset_on_close(&stream));
    vec![
        ("refusing", Target::Tcp(refusing)),
        ("deaf", Target::Tcp(deaf)),
        ("resetting", resetting),
        ("resetting at once", resetting_at_once),
    ]
}

/// A server of HTTP/2 with these frames for its only response.
fn faulty_http2(number: usize) -> Target {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let target = Target::Tcp(listener.local_addr().unwrap());
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            thread::spawn(move || {
                let mut buffer = [0; 4096];
                let _ = stream.read(&mut buffer);
                if stream.write_all(&frames(number)).is_ok() && number > 0 {
                    // The client ends the connection, or its timeout does.
                    while let Ok(1..) = stream.read(&mut buffer) {}
                }
            });
        }
    });
    target
}

/// Number of faults in [`frames`].
const HTTP2_FAULTS: usize = 9;

fn frames(number: usize) -> Vec<u8> {
    let mut out = Vec::new();
    frame::settings(&mut out, &[]);
    let reply = |out: &mut Vec<u8>, stream: u32| {
        let mut block = Vec::new();
        hpack::write_field(&mut block, b":status", b"200");
        frame::headers(out, StreamId(stream), &block, true, 1 << 14);
    };
    match number {
        // The settings, and then the end of the connection, or silence.
        0 | 1 => {}
        2 => reply(&mut out, 1),
        3 => {
            reply(&mut out, 1);
            frame::go_away(&mut out, StreamId(1), ErrorCode::NO_ERROR, b"");
        }
        4 => {
            reply(&mut out, 1);
            frame::go_away(&mut out, StreamId(1), ErrorCode::PROTOCOL_ERROR, b"");
        }
        5 => (1..9).step_by(2).for_each(|stream| frame::reset(&mut out, StreamId(stream), ErrorCode::REFUSED_STREAM)),
        6 => (1..9).step_by(2).for_each(|stream| frame::reset(&mut out, StreamId(stream), ErrorCode::INTERNAL_ERROR)),
        7 => frame::settings(&mut out, &[(frame::setting::MAX_CONCURRENT_STREAMS, 0)]),
        _ => out = b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec(),
    }
    out
}

/// Short timeouts: on a slow machine, a planted fault may become another one, but every sum stays the same.
fn settings(target: &Target, lanes: usize) -> Settings {
    let timeout = Duration::from_millis(200);
    let target = target.clone();
    Settings {
        target,
        tls: None,
        connect_timeout: timeout,
        timeout,
        spin: Duration::ZERO,
        lanes,
        parked: 0,
        start: None,
    }
}

fn sum(outcome: &Outcome) -> u64 {
    outcome.ok + outcome.failed() + outcome.unsent
}

/// Runs an open loop: twenty connections, or as many as a number of descriptors begins.
fn run_open(settings: &Settings, plan: &Plan, arrivals: &Arrivals) -> Outcome {
    // If connections end at once, descriptors begin hundreds of them in a few milliseconds.
    let window = Duration::from_millis(if *arrivals == Arrivals::Descriptors { 20 } else { 100 });
    let mut schedule = Schedule::new(arrivals, 200.0, window, 1).unwrap();
    if let Some(count) = plan.requests().len() {
        schedule.truncate(count.div_ceil(plan.per_connection()));
    }
    let load = Loop::Open { arrivals: String::new(), rate: 200.0, seed: 1, shape: schedule.shape() };
    open(settings, plan, &schedule, load, &Stop::default(), &|_| {}).unwrap()
}

fn run_closed(settings: &Settings, plan: &Plan, ms: u64) -> Outcome {
    closed(settings, plan, 3, Duration::ZERO, Duration::from_millis(ms), &Stop::default(), &|_| {}).unwrap()
}

/// Fifty requests, each once.
fn list() -> Requests {
    Requests::new(vec![Request { target: b"/".as_slice().into(), ..Request::default() }; 50], Order::Once)
}

/// Checks the sum in all modes: open loop, descriptors, a list, a closed loop.
fn check(name: &str, target: &Target, version: Version, at_once: u64) {
    let plan = |requests, each| Plan::new(requests, version, "test", "", each, at_once);
    let same = || Requests::same(b"/");
    for (lanes, each) in [(1, 1), (2, 5)] {
        for arrivals in [Arrivals::Constant, Arrivals::Descriptors] {
            let outcome = run_open(&settings(target, lanes), &plan(same(), each), &arrivals);
            let text = format!("{name}, {each} requests each, {at_once} at once, {arrivals}: {outcome:?}");
            assert_eq!(sum(&outcome), outcome.planned * each, "{text}");
        }
    }
    let outcome = run_open(&settings(target, 1), &plan(list(), 4), &Arrivals::Constant);
    assert_eq!(sum(&outcome), 50, "{name}, a list: {outcome:?}");
    // The end of the run cuts off at most the last connection of each client.
    let outcome = run_closed(&settings(target, 1), &plan(same(), 4), 150);
    let most = 4 * outcome.started + outcome.failed_by(Fault::Local);
    assert!((most.saturating_sub(3 * 4)..=most).contains(&sum(&outcome)), "{name}, closed: {outcome:?}");
}

#[test]
fn counts_of_each_fault_are_exact() {
    for (name, behaviour, expected) in FAULTS {
        let Some(each) = expected else { continue };
        let long = Duration::from_secs(20);
        let patient = Settings { connect_timeout: long, ..settings(&faulty(*behaviour), 1) };
        let patient = if *name == "silent" { patient } else { Settings { timeout: long, ..patient } };
        let plan = Plan::new(Requests::same(b"/"), Version::Http11, "test", "", 4, 1);
        let outcome = run_open(&patient, &plan, &Arrivals::Constant);
        let found = [outcome.ok, outcome.failed(), outcome.unsent];
        assert_eq!(found, each.map(|count| count * 20), "{name}: {outcome:?}");
    }
}

#[test]
fn every_planned_request_has_one_count_with_http1() {
    // Most of the time is spent waiting.
    thread::scope(|scope| {
        for (name, behaviour, _) in FAULTS {
            scope.spawn(move || {
                let target = faulty(*behaviour);
                check(name, &target, Version::Http11, 1);
                check(name, &target, Version::Http11, 3);
                if *name != "silent" {
                    // A closed loop takes each request of a list once: another connection does not repeat it.
                    let plan = Plan::new(list(), Version::Http11, "test", "", 4, 2);
                    // A connection that is not established in time would be counted beside them.
                    let patient = Settings { connect_timeout: Duration::from_secs(20), ..settings(&target, 1) };
                    let outcome = run_closed(&patient, &plan, 60_000);
                    assert_eq!(sum(&outcome), 50, "{name}, closed, a list: {outcome:?}");
                }
            });
        }
    });
}

#[test]
fn every_planned_request_has_one_count_without_connection() {
    thread::scope(|scope| {
        for (name, target) in unreachable() {
            scope.spawn(move || {
                check(name, &target, Version::Http11, 1);
                check(name, &target, Version::Http2, 2);
            });
        }
    });
}

#[test]
fn every_planned_request_has_one_count_with_http2() {
    thread::scope(|scope| {
        for number in 0..HTTP2_FAULTS {
            scope.spawn(move || {
                let target = faulty_http2(number);
                check(&format!("fault {number}"), &target, Version::Http2, 1);
                check(&format!("fault {number}"), &target, Version::Http2, 3);
            });
        }
    });
}
