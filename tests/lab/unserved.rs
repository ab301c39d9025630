//! `ammeter load` against servers that leave requests unserved although not each of them fails: every figure
//! and verdict must count them.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::process::{Command, Stdio};
use std::thread;

use serde_json::Value;

use super::load::{PATIENT, load, status_of, url};
use super::{ammeter, said};

/// Starts a server that answers one request of each connection with these bytes, and then closes it.
fn answering_once(reply: &'static [u8]) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            thread::spawn(move || {
                if let Ok(1..) = stream.read(&mut [0; 2048]) {
                    let _ = stream.write_all(reply);
                }
            });
        }
    });
    address
}

const CLOSING: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok";
const SURPLUS: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok, and more";

/// Twenty connections with four requests each.
const FOUR_EACH: [&str; 8] =
    ["--rate", "40", "--duration", "500ms", "--arrivals", "constant", "--requests-per-connection", "4"];

fn count(outcome: &Value, name: &str) -> u64 {
    outcome[name].as_u64().unwrap_or_else(|| panic!("no {name} in {outcome}"))
}

/// A server may end a connection between two requests, and a client of a closed loop then goes on with another.
#[test]
fn closed_loop_fails_no_requests_if_server_ends_connections() {
    let address = answering_once(CLOSING);
    let closed = ["--clients", "2", "--duration", "300ms", "--requests-per-connection", "4", "--fail-if", "failed>0"];
    let (text, status) = said(&ammeter(&[&["load", &url(address)], &closed[..], &PATIENT].concat()));
    assert_eq!(status, 0, "{text}");
    for part in ["failed      0\n", "their connections ended early, and the clients went on with new ones"] {
        assert!(text.contains(part), "no {part:?} in {text}");
    }
}

#[test]
fn requests_that_were_not_sent_are_not_served() {
    let address = answering_once(CLOSING);
    let outcome = load(address, &FOUR_EACH);
    assert_eq!((count(&outcome, "ok"), count(&outcome, "unsent")), (20, 60), "{outcome}");
    assert_eq!(
        (&outcome["window"]["pace"], &outcome["failures"]),
        (&"failed".into(), &Value::Array(vec![])),
        "{outcome}"
    );
    let run = [&["load", &url(address), "--fail-if", "failed>1%", "--fail-if", "failed>59"], &FOUR_EACH[..], &PATIENT];
    let (text, status) = said(&ammeter(&run.concat()));
    assert_eq!(status, 1, "{text}");
    for part in ["75 % failed (not sent 60)", "failed      60: not sent 60\n", "failed>1%: 75 %", "failed>59: 60"] {
        assert!(text.contains(part), "no {part:?} in {text}");
    }
    // A rate at which a quarter of the requests is served is not sustained, although no response is wrong.
    let sweep = ["--sweep", "20..40/20", "--find-capacity", "--duration", "300ms", "--pause", "0s"];
    let swept = load(address, &[&sweep[..], &["--requests-per-connection", "4"]].concat());
    assert!(swept["capacity"].is_null() && status_of(&swept["verdict"]) == 1, "{swept}");
}

#[test]
fn surplus_bytes_leave_rest_unsent() {
    let address = answering_once(SURPLUS);
    let run = [&["load", &url(address), "--fail-if", "failed>0"], &FOUR_EACH[..], &PATIENT];
    let (text, status) = said(&ammeter(&run.concat()));
    assert_eq!(status, 1, "{text}");
    for part in ["failed      60: not sent 60\n", "failed>0: 60", "stray       20 connections"] {
        assert!(text.contains(part), "no {part:?} in {text}");
    }
}

#[test]
fn refused_connection_counts_with_all_its_requests() {
    // No server listens there, and no other test starts one.
    let outcome = load(([127, 0, 0, 1], 1).into(), &[&FOUR_EACH[..], &["--wait", "0s"]].concat());
    let refused: u64 = outcome["failures"].as_array().unwrap().iter().map(|pair| pair[1].as_u64().unwrap()).sum();
    assert_eq!((refused, count(&outcome, "unsent"), count(&outcome, "ok")), (20, 60, 0), "{outcome}");
}

#[test]
fn ctrl_c_before_first_response_is_no_result() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_ammeter"));
    let words = ["load", &url(listener.local_addr().unwrap()), "--clients", "3", "--duration", "10m"];
    let child = command.args(words).args(PATIENT).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    // The first connection only asks whether a server listens. A later one has carried a request.
    let mut streams = Vec::new();
    loop {
        let (mut stream, _) = listener.accept().unwrap();
        if let Ok(1..) = stream.read(&mut [0; 2048]) {
            break;
        }
        streams.push(stream);
    }
    assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
    let (text, status) = said(&child.wait_with_output().unwrap());
    assert_eq!(status, 1, "{text}");
    assert!(text.starts_with("Interrupted after ") && text.contains("before the first correct response"), "{text}");
}
