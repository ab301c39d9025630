//! Behaviour specific to one architecture: several loops, pools, and processes.

use std::collections::BTreeSet;
use std::fs;
use std::io::ErrorKind;
use std::net::TcpStream;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use crate::ARCHITECTURES;
use crate::harness::*;

const HUGE: u64 = 16 << 20;

/// A small file, and a sparse one that is larger than any socket buffer.
fn site() -> Site {
    let site = Site::new();
    site.file("a.txt", "hello");
    fs::File::create(site.path().join("huge.bin")).unwrap().set_len(HUGE).unwrap();
    site
}

fn start(site: &Site, architecture: &str, workers: usize) -> Server {
    Server::configured(site, &format!("architecture = {architecture:?}\nworkers = {workers}"))
}

/// Begins a download that cannot continue before its client reads.
fn begin_download(server: &Server) -> Client {
    let mut client = Client::connect_narrow(server.address, 64 * 1024);
    client.send_request("GET", "/huge.bin", &[]);
    client.wait_for_bytes();
    client
}

fn end_download(client: &mut Client) {
    let head = client.read_head();
    assert!(head.contains(&format!("Content-Length: {HUGE}\r\n")), "{head}");
    client.read_body(HUGE as usize).unwrap();
}

/// Returns whether a process runs; a zombie does not.
fn lives(pid: u32) -> bool {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    text.rsplit(") ").next().is_some_and(|rest| !rest.is_empty() && !rest.starts_with('Z'))
}

fn kill(signal: &str, target: &str) {
    assert!(Command::new("kill").args([&format!("-{signal}"), "--", target]).status().unwrap().success());
}

#[test]
fn both_loops_of_two_workers_serve() {
    for architecture in ["amped", "sped"] {
        both_loops_serve(architecture);
    }
}

fn both_loops_serve(architecture: &str) {
    let site = site();
    let server = start(&site, architecture, 2);
    // Waits of each loop so far: a loop waits after each batch of events.
    let waits = || -> Vec<u64> {
        let tasks = fs::read_dir(format!("/proc/{}/task", server.pid())).unwrap();
        let mut found = Vec::new();
        for task in tasks {
            let task = task.unwrap().path();
            if fs::read_to_string(task.join("comm")).unwrap().starts_with("loop-") {
                let status = fs::read_to_string(task.join("status")).unwrap();
                let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
                found.push(line.unwrap().trim().parse().unwrap());
            }
        }
        found
    };
    // A thread sets its own name after it starts.
    wait_until("two idle loops", || waits().len() == 2);
    let before = waits();
    // Kept open, so that the number of connections of each loop stays.
    let mut clients: Vec<Client> = (0..100).map(|_| server.connect()).collect();
    for client in &mut clients {
        assert_eq!(client.get("/a.txt").text(), "hello");
    }
    for (before, after) in before.iter().zip(waits()) {
        // A hash spreads 100 connections over two loops; fewer than ten at one of them has a probability of 10^-17.
        assert!(after >= before + 10, "{before} {after}");
    }
    assert_eq!(server.report("connections"), 100);
    assert_eq!(server.report("requests"), 100);
}

#[test]
fn pool_serves_one_connection_per_worker_and_queues_rest() {
    for architecture in ["mt", "mp"] {
        let site = site();
        let server = start(&site, architecture, 2);
        let mut busy = [begin_download(&server), begin_download(&server)];
        let mut waiting = server.connect();
        waiting.send_request("GET", "/a.txt", &[]);
        assert!(waiting.is_quiet(Duration::from_millis(300)), "{architecture}");
        end_download(&mut busy[0]);
        assert_eq!(waiting.response("GET").text(), "hello");
        // All workers have a connection, and one connection is idle: it is closed for the new one.
        let mut another = server.connect();
        assert_eq!(another.get("/a.txt").text(), "hello");
        end_download(&mut busy[1]);
        assert_eq!(server.report("connections_broken"), 0);
    }
}

#[test]
fn pool_with_free_workers_keeps_idle_connections() {
    for architecture in ["mt", "mp"] {
        let site = site();
        // Enough workers for those that have closed a connection and, on a busy machine, have not yet accepted the next
        // one.
        let server = start(&site, architecture, 24);
        let mut idle: Vec<Client> = (0..4).map(|_| server.connect()).collect();
        idle.iter_mut().for_each(|client| assert_eq!(client.get("/a.txt").text(), "hello"));
        thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    for _ in 0..200 {
                        let mut client = server.connect();
                        assert_eq!(client.request("GET", "/a.txt", &[("Connection", "close")]).text(), "hello");
                        assert!(client.ends());
                    }
                });
            }
        });
        for client in &mut idle {
            assert_eq!(client.get("/a.txt").text(), "hello", "{architecture}");
        }
    }
}

#[test]
fn workers_do_not_exceed_max_connections() {
    for (architecture, what) in [("mt", "3 threads"), ("mp", "3 processes")] {
        let site = site();
        let config = format!("architecture = {architecture:?}\nworkers = 8\n[limits]\nmax_connections = 3");
        let server = Server::configured(&site, &config);
        server.wait_for(&format!("architecture {architecture}, {what}"));
    }
}

#[test]
fn crashed_process_is_replaced_and_logged() {
    let site = site();
    let server = start(&site, "mp", 6);
    let before: BTreeSet<u32> = server.children().into_iter().collect();
    assert_eq!(before.len(), 6);
    // A process that ran for less than a second is replaced after a delay.
    let victim = *before.first().unwrap();
    let (done, served, lost) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    thread::scope(|scope| {
        let _stop = SetOnDrop(&done);
        for _ in 0..3 {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    match server.connect().try_get("/a.txt") {
                        Some(response) => {
                            _ = (served.fetch_add(1, Ordering::Relaxed), assert_eq!(response.status, 200))
                        }
                        None => _ = lost.fetch_add(1, Ordering::Relaxed),
                    }
                }
            });
        }
        wait_until("100 responses", || served.load(Ordering::Relaxed) > 100);
        kill("KILL", &victim.to_string());
        server.wait_for(&format!("process {victim} was killed by signal 9 (Killed); replacing it"));
        // The server reaps the process that died and restores the number of workers.
        wait_until("six live workers", || {
            server.children().len() == 6 && server.children().iter().all(|&pid| lives(pid))
        });
        let before = served.load(Ordering::Relaxed);
        wait_until("100 more responses", || served.load(Ordering::Relaxed) > before + 100);
    });
    let after: BTreeSet<u32> = server.children().into_iter().collect();
    assert_eq!(after.intersection(&before).count(), 5, "{before:?} {after:?}");
    assert!(lost.load(Ordering::Relaxed) <= 1, "more requests were lost than that of the killed process: {lost:?}");
    assert_eq!(server.said().matches("was killed").count(), 1, "{}", server.said());
}

#[test]
fn child_processes_exit_with_parent() {
    for end in ["KILL", "TERM", "TERM INT"] {
        let site = site();
        let mut server = start(&site, "mp", 4);
        let children = server.children();
        let download = begin_download(&server);
        let mut signals = end.split(' ');
        server.signal(signals.next().unwrap());
        match signals.next() {
            Some(second) => {
                server.wait_for("finishing requests in progress");
                server.signal(second);
            }
            None if end == "TERM" => drop(download),
            None => {}
        }
        server.wait();
        wait_until(&format!("the children to exit ({end})"), || !children.iter().any(|&pid| lives(pid)));
        let refused = TcpStream::connect(server.address).map_err(|error| error.kind());
        assert_eq!(refused.map(drop), Err(ErrorKind::ConnectionRefused));
    }
}

#[test]
fn twenty_reloads_leak_no_descriptor() {
    let site = site();
    let server = start(&site, "mp", 4);
    let reload = |n: usize| {
        server.signal("HUP");
        wait_until("the reload", || server.said().matches("the new configuration is in force").count() == n);
        // The old processes have no requests to finish.
        wait_until("the old processes to exit", || server.children().len() == 4);
        let of = |pid: u32| {
            let name = |target: &std::path::PathBuf| {
                // The names of sockets and pipes contain a number.
                target.to_string_lossy().split('[').next().unwrap().to_owned()
            };
            descriptors_of(pid).iter().map(name).collect::<Vec<_>>()
        };
        // A thread of a child process may not have started yet.
        wait_until("a report from all loops", || server.report("loops answered") == 4);
        (of(server.pid()), server.children().into_iter().map(of).collect::<BTreeSet<_>>())
    };
    let first = reload(1);
    assert_eq!(first.1.len(), 1, "the children differ: {first:#?}");
    for n in 2..=20 {
        assert_eq!(reload(n), first, "reload {n}");
    }
}

#[test]
fn counters_include_exited_processes() {
    let site = site();
    let server = start(&site, "mp", 4);
    for requests in [10, 20] {
        let mut clients: Vec<Client> = (0..2).map(|_| server.connect()).collect();
        for _ in 0..5 {
            clients.iter_mut().for_each(|client| assert_eq!(client.get("/a.txt").text(), "hello"));
        }
        assert_eq!(server.report("requests"), requests);
        assert_eq!(server.report("connections"), 2);
        let old = server.children();
        server.signal("HUP");
        // Reaped, and therefore included in the sums.
        wait_until("the old processes to exit", || server.children().iter().all(|pid| !old.contains(pid)));
        wait_until("the counts of the old processes", || server.report("requests") == requests);
        assert_eq!(server.report("connections"), 0);
    }
}

#[test]
fn signal_to_process_group_completes_active_responses() {
    // Ctrl-C in a terminal, and a supervisor that signals all processes of a service.
    for signal in ["INT", "TERM"] {
        for architecture in ARCHITECTURES {
            let site = site();
            let mut command = program();
            command.args(["serve", site.path().to_str().unwrap(), "--listen", "127.0.0.1:0", "--workers", "4"]);
            command.args(["--architecture", architecture]).process_group(0);
            let mut server = Server::spawn(command);
            let mut client = begin_download(&server);
            kill(signal, &format!("-{}", server.pid()));
            server.wait_for("finishing requests in progress");
            end_download(&mut client);
            assert_eq!(server.wait().code(), Some(0), "{architecture}, {signal}: {}", server.said());
        }
    }
}
