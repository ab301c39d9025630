//! Concurrent connections: none starves another, and none receives another's bytes.

use std::fs;
use std::io::{Read, Write};
use std::net::Shutdown;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::harness::*;

/// Runs `greedy` until other clients have received 50 responses each, on new connections and on a persistent one.
fn assert_others_are_answered_while(server: &Server, greedy: impl Fn(&AtomicBool, &AtomicU64) + Send + Sync) {
    let (done, progress) = (AtomicBool::new(false), AtomicU64::new(0));
    thread::scope(|scope| {
        let stop = SetOnDrop(&done);
        scope.spawn(|| greedy(&done, &progress));
        wait_until("the pipelining client to start", || progress.load(Ordering::Relaxed) > 1 << 20);
        let mut stays = server.connect();
        let (mut worst, before) = (Duration::ZERO, progress.load(Ordering::Relaxed));
        let begin = Instant::now();
        for _ in 0..50 {
            let begin = Instant::now();
            assert_eq!(stays.get("/a.txt").text(), "hello");
            assert_eq!(server.get("/a.txt").text(), "hello");
            worst = worst.max(begin.elapsed());
        }
        // The greedy client makes progress too, though perhaps not in so short a time.
        wait_until("the pipelining client to continue", || progress.load(Ordering::Relaxed) > before);
        drop(stop);
        println!("50 pairs of requests took {:?}, the longest {worst:?}", begin.elapsed());
    });
}

#[test]
fn endless_pipelining_starves_no_other_client() {
    let site = Site::new();
    site.file("a.txt", "hello");
    let server = Server::serve(&site);
    assert_others_are_answered_while(&server, |done, progress| {
        let client = server.connect();
        thread::scope(|scope| {
            scope.spawn(|| {
                let batch = "GET /a.txt HTTP/1.1\r\nHost: localhost\r\n\r\n".repeat(500);
                while !done.load(Ordering::Relaxed) && client.stream().write_all(batch.as_bytes()).is_ok() {}
                let _ = client.stream().shutdown(Shutdown::Write);
            });
            let mut buffer = vec![0; 1 << 16];
            while let Ok(count @ 1..) = client.stream().read(&mut buffer) {
                progress.fetch_add(count as u64, Ordering::Relaxed);
            }
        });
    });
}

#[test]
fn fast_download_of_huge_file_starves_no_other_client() {
    let site = Site::new();
    site.file("a.txt", "hello");
    fs::File::create(site.path().join("huge.bin")).unwrap().set_len(32 << 20).unwrap();
    let server = Server::serve(&site);
    assert_others_are_answered_while(&server, |done, progress| {
        let mut client = server.connect();
        client.send_request("GET", "/huge.bin", &[]);
        client.send_request("GET", "/huge.bin", &[]);
        let mut buffer = vec![0; 1 << 16];
        let mut left = 32 << 20;
        while !done.load(Ordering::Relaxed) {
            let count = client.stream().read(&mut buffer).unwrap() as u64;
            assert!(count > 0);
            progress.fetch_add(count, Ordering::Relaxed);
            // At least one more request follows the current one.
            if left <= count {
                client.send_request("GET", "/huge.bin", &[]);
                left += 32 << 20;
            }
            left -= count;
        }
    });
}

#[test]
fn thousand_pipelined_responses_reach_their_own_client() {
    let site = Site::new();
    for name in ["a", "b"] {
        site.file(&format!("{name}.txt"), name.repeat(3000));
    }
    let server = Server::serve(&site);
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let _stop = SetOnDrop(&done);
        scope.spawn(|| {
            let mut other = server.connect();
            while !done.load(Ordering::Relaxed) {
                assert_eq!(other.get("/b.txt").text(), "b".repeat(3000));
            }
        });
        for _ in 0..20 {
            let mut client = server.connect();
            client.send("GET /a.txt HTTP/1.1\r\nHost: localhost\r\n\r\n".repeat(1000));
            for n in 0..1000 {
                assert_eq!(client.response("GET").text(), "a".repeat(3000), "reply {n}");
            }
        }
    });
}
