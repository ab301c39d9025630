//! `ammeter load` with the workloads of `ammeter files`, against a server of files that is a few lines long.

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::thread;

use serde_json::Value;

use super::{ammeter, excerpt, said};

/// Serves the files of a folder; 404 for what is not there. A thread for each connection.
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
    // Requests come one at a time and whole: that is how they are sent.
    while let Ok(length @ 1..) = stream.read(&mut buffer) {
        let head = String::from_utf8_lossy(&buffer[..length]).into_owned();
        let path = head.split(' ').nth(1).unwrap();
        let index = if path.ends_with('/') { "index.html" } else { "" };
        let (status, body) = match fs::read(folder.join(format!("{}{index}", &path[1..]))) {
            Ok(body) => ("200 OK", body),
            Err(_) => ("404 Not Found", Vec::new()),
        };
        let head = format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\n\r\n", body.len());
        if stream.write_all(&[head.as_bytes(), &body].concat()).is_err() {
            return;
        }
    }
}

fn load(url: &str, words: &[&str]) -> Value {
    let output = ammeter(&[&["load", url, "--json"], words].concat());
    let text = said(&output).0;
    serde_json::from_str(&text)
        .unwrap_or_else(|error| panic!("{error}: {text}{}", String::from_utf8_lossy(&output.stderr)))
}

/// How many requests failed, and how many did not.
fn counts(outcome: &Value) -> (u64, u64) {
    let failed = outcome["failures"].as_array().unwrap().iter().map(|pair| pair[1].as_u64().unwrap()).sum();
    (failed, outcome["ok"].as_u64().unwrap())
}

#[test]
fn replies_are_checked_against_the_file_set() {
    let home = tempfile::tempdir().unwrap();
    let set = home.path().join("set");
    let folder = set.to_str().unwrap();
    assert_eq!(said(&ammeter(&["files", "webstone", "--scale", "1/4", folder])).1, 0);
    let url = server(&set);
    let words = ["--workload", folder, "--verify", "--clients", "2", "--duration", "500ms", "--seed", "1"];
    let (failed, ok) = counts(&load(&url, &words));
    assert!(failed == 0 && ok > 20, "{failed} {ok}");
    // The images, three quarters of all requests, are others now, of the same size.
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
fn every_request_of_a_log_is_accounted_for() {
    let home = tempfile::tempdir().unwrap();
    let set = home.path().join("set");
    let (log, folder) = (excerpt(), set.to_str().unwrap());
    let log = log.to_str().unwrap();
    assert_eq!(said(&ammeter(&["files", "log", log, folder])).1, 0);
    let url = server(&set);
    let lines = fs::read_to_string(log).unwrap().lines().count() as u64;
    let odd = 16;
    // With its file set all replies are right, at whatever pace; what is not in the set may be anything.
    for pace in [&["--speed", "100"][..], &["--speed", "max", "--clients", "3"], &["--speed", "max", "--rate", "200"]] {
        let outcome = load(&url, &[&["--replay", log, "--workload", folder, "--verify"], pace].concat());
        assert_eq!(counts(&outcome), (0, lines - odd), "{pace:?}: {outcome}");
    }
    let output = ammeter(&["load", &url, "--replay", log, "--speed", "100"]);
    let told = String::from_utf8(output.stderr).unwrap();
    assert!(told.contains("method other than GET 3"), "{told}");
}
