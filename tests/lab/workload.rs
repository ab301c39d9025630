//! `ammeter load` with the workloads of `ammeter files`, against a minimal file server.

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::thread;

use serde_json::Value;

use super::load::PATIENT;
use super::nginx::Nginx;
use super::ports::free_addresses;
use super::{ammeter, excerpt, said};

/// Serves the files of a directory, and 404 for other paths, with a thread per connection.
fn server(folder: &Path) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    let folder = folder.to_owned();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let folder = folder.clone();
            thread::spawn(move || serve(stream.unwrap(), &folder));
        }
    });
    url
}

fn serve(mut stream: TcpStream, folder: &Path) {
    let mut buffer = [0; 4096];
    // The client sends requests one at a time, each in one piece.
    while let Ok(length @ 1..) = stream.read(&mut buffer) {
        let head = String::from_utf8_lossy(&buffer[..length]).into_owned();
        let (method, path) = (head.split(' ').next().unwrap(), head.split(' ').nth(1).unwrap());
        let index = if path.ends_with('/') { "index.html" } else { "" };
        let (status, body) = match fs::read(folder.join(format!("{}{index}", &path[1..]))) {
            Ok(body) => ("200 OK", body),
            Err(_) => ("404 Not Found", Vec::new()),
        };
        let head = format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\n\r\n", body.len());
        let body = if method == "HEAD" { &[][..] } else { &body };
        if stream.write_all(&[head.as_bytes(), body].concat()).is_err() {
            return;
        }
    }
}

fn load(url: &str, words: &[&str]) -> Value {
    let output = ammeter(&[&["load", url, "--json"], words, &PATIENT].concat());
    let text = said(&output).0;
    serde_json::from_str(&text)
        .unwrap_or_else(|error| panic!("{error}: {text}{}", String::from_utf8_lossy(&output.stderr)))
}

/// Numbers of failed and of successful requests.
fn counts(outcome: &Value) -> (u64, u64) {
    let failed = outcome["failures"].as_array().unwrap().iter().map(|pair| pair[1].as_u64().unwrap()).sum();
    (failed, outcome["ok"].as_u64().unwrap())
}

#[test]
fn responses_are_checked_against_file_set() {
    let home = tempfile::tempdir().unwrap();
    let set = home.path().join("set");
    let folder = set.to_str().unwrap();
    assert_eq!(said(&ammeter(&["files", "webstone", "--scale", "1/4", folder])).1, 0);
    let url = server(&set);
    let words = ["--workload", folder, "--verify", "--rate", "200", "--duration", "500ms", "--seed", "1"];
    let (failed, ok) = counts(&load(&url, &words));
    assert!(failed == 0 && ok > 20, "{failed} {ok}");
    // Replaces the images, three quarters of all requests, by others of the same size.
    for entry in fs::read_dir(set.join("image")).unwrap() {
        let path = entry.unwrap().path();
        let mut bytes = fs::read(&path).unwrap();
        bytes[0] ^= 1;
        fs::write(&path, bytes).unwrap();
    }
    let (failed, ok) = counts(&load(&url, &words));
    assert!(failed > ok && ok > 0, "{failed} {ok}");
    let unverified: Vec<&str> = words.into_iter().filter(|word| *word != "--verify").collect();
    assert_eq!(counts(&load(&url, &unverified)).0, 0, "sizes are right");
}

#[test]
fn every_request_of_log_is_accounted_for() {
    let home = tempfile::tempdir().unwrap();
    let set = home.path().join("set");
    let (log, folder) = (excerpt(), set.to_str().unwrap());
    let log = log.to_str().unwrap();
    assert_eq!(said(&ammeter(&["files", "log", log, folder])).1, 0);
    let url = server(&set);
    let [address] = free_addresses();
    let servers = format!("server {{ listen {address}; root {folder}; index index.html; }}");
    let _nginx = Nginx::start(tempfile::tempdir().unwrap(), address, &servers);
    let lines = fs::read_to_string(log).unwrap().lines().count() as u64;
    let odd = 14;
    // With its file set all responses are right at any rate; targets outside the set may return anything.
    for (url, pace) in [
        (&url[..], &["--speed", "100"][..]),
        (&url, &["--speed", "max", "--clients", "3"]),
        (&url, &["--speed", "max", "--rate", "200"]),
        (&format!("http://{address}/"), &["--speed", "max", "--rate", "200", "--requests-per-connection", "3"]),
    ] {
        let outcome = load(url, &[&["--replay", log, "--workload", folder, "--verify"], pace].concat());
        assert_eq!(counts(&outcome), (0, lines - odd), "{pace:?}: {outcome}");
    }
    let output = ammeter(&["load", &url, "--replay", log, "--speed", "100"]);
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(errors.contains("method other than GET and HEAD 2"), "{errors}");
}

#[test]
fn responses_are_checked_against_log_or_file() {
    let home = tempfile::tempdir().unwrap();
    fs::write(home.path().join("a"), "12345").unwrap();
    let url = server(home.path());
    let log = home.path().join("access.log");
    let line =
        |(request, reply): (&str, &str)| format!("h - - [01/Aug/1995:00:00:01 +0000] \"{request} HTTP/1.1\" {reply}\n");
    let lines = [
        ("GET /a", "200 5"),
        ("GET /a", "200 4"),
        ("GET /a", "304 -"),
        ("HEAD /a", "200 -"),
        ("GET /gone", "200 9"),
        ("GET /gone", "404 3"),
        ("HEAD /gone", "404 -"),
        ("GET /a", "500 7"),
    ];
    fs::write(&log, lines.map(line).concat()).unwrap();
    let replay = ["--replay", log.to_str().unwrap(), "--speed", "max", "--clients", "1"];
    let check = |words: &[&str], failures: &[(&str, u64)], by_head: u64| {
        let outcome = load(&url, &[&replay[..], words].concat());
        let found = outcome["failures"].as_array().unwrap();
        let found: Vec<_> = found.iter().map(|pair| (pair[0].as_str().unwrap(), pair[1].as_u64().unwrap())).collect();
        assert_eq!(found, failures, "{words:?}: {outcome}");
        assert_eq!(counts(&outcome).1 + failures.iter().map(|(_, count)| count).sum::<u64>(), 8);
        let head = &outcome["classes"][1];
        assert_eq!((&head["class"], head["ok"].as_u64()), (&Value::from("HEAD"), Some(by_head)), "{outcome}");
    };
    check(&[], &[("status", 1)], 2);
    check(&["--as-logged"], &[("status", 2), ("length", 1)], 2);
}
