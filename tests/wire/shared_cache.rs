//! MP with a cache in shared memory.

use std::fs::File;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::disk::{evict, pages_in_memory};
use crate::requests::Random;

use crate::harness::{Server, SetOnDrop, Site, let_files_settle, pattern, wait_until};

const FILES: usize = 200;

fn body(n: usize) -> Vec<u8> {
    let mut body = pattern(1 + (n * 7919) % 30_000);
    body.splice(0..0, format!("{n}:").into_bytes());
    body
}

fn site() -> Site {
    let site = Site::new();
    (0..FILES).for_each(|n| drop(site.file(&format!("{n}.bin"), body(n))));
    site.file("large.bin", pattern(500_000));
    let_files_settle();
    site
}

const CONFIG: &str = "architecture = \"mp\"\nworkers = 6\n[cache]\nshared = true\ncontent_bytes = \"1MiB\"";

#[test]
fn content_read_by_one_process_is_shared() {
    let site = site();
    // No process revalidates during the test, however slow this machine is.
    let server = Server::configured(&site, &format!("{CONFIG}\nrevalidate = \"10m\""));
    // Each process holds one connection, so each of the six answers one request.
    let mut clients: Vec<_> = (0..6).map(|_| server.connect()).collect();
    for client in &mut clients {
        assert_eq!(client.get("/7.bin").body, body(7));
        assert_eq!(client.get("/large.bin").body, pattern(500_000));
        assert_eq!(client.get("/nothing").status, 404);
    }
    assert_eq!(server.report("shared cache insertions"), 3);
    assert!(server.report("shared cache hits") >= 15);
}

/// The kernel does not notice the use of a cached body, and evicts the pages of the file.
#[test]
fn revalidation_does_not_reread_body() {
    let site = Site::on_disk();
    let path = site.file("7.bin", body(7));
    let_files_settle();
    let server = Server::configured(&site, &format!("{CONFIG}\nrevalidate = \"50ms\""));
    let mut clients: Vec<_> = (0..6).map(|_| server.connect()).collect();
    assert_eq!(clients[0].get("/7.bin").body, body(7));
    evict(&path);
    for client in &mut clients {
        thread::sleep(Duration::from_millis(60));
        assert_eq!(client.get("/7.bin").body, body(7));
    }
    assert_eq!(server.report("shared cache insertions"), 7, "not every process looked up the name again");
    assert_eq!(pages_in_memory(&File::open(&path).unwrap()), Vec::<usize>::new());
}

#[test]
fn change_is_visible_to_all_processes() {
    let site = site();
    let server = Server::configured(&site, &format!("{CONFIG}\nrevalidate = \"50ms\""));
    let mut clients: Vec<_> = (0..6).map(|_| server.connect()).collect();
    for client in &mut clients {
        assert_eq!(client.get("/7.bin").body, body(7));
    }
    site.file("7.bin", "new");
    for client in &mut clients {
        wait_until("the change", || client.get("/7.bin").text() == "new");
    }
}

#[test]
fn killed_processes_do_not_corrupt_shared_cache() {
    let seed = std::env::var("SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(20_261_122);
    let mut random = Random(seed);
    println!("seed {seed}");
    let site = site();
    // Entries with so short a lifetime are inserted over and over.
    let server = Server::configured(&site, &format!("{CONFIG}\nrevalidate = \"1ms\""));
    let (done, served) = (AtomicBool::new(false), AtomicU64::new(0));
    let mut kills = 0;
    thread::scope(|scope| {
        let _stop = SetOnDrop(&done);
        for client in 0..6_usize {
            let (server, done, served) = (&server, &done, &served);
            scope.spawn(move || {
                let mut n = client * 31;
                while !done.load(Ordering::Relaxed) {
                    let mut client = server.connect();
                    // A killed process resets the connection; every complete response must be correct.
                    for _ in 0..20 {
                        n = (n + 17) % FILES;
                        let Some(response) = client.try_get(&format!("/{n}.bin")) else { break };
                        assert!(response.body == body(n), "the body of {n} is damaged");
                        served.fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
        }
        let begin = Instant::now();
        while begin.elapsed() < Duration::from_secs(4) {
            let children = server.children();
            if let Some(pid) = children.get(random.below(children.len().max(1))) {
                let pid = rustix::process::Pid::from_raw(*pid as i32).unwrap();
                let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
                kills += 1;
            }
            thread::sleep(Duration::from_millis(30 + 10 * random.below(16) as u64));
        }
    });
    wait_until("a full pool of workers", || server.children().len() == 6);
    let mut client = server.connect();
    for n in 0..FILES {
        assert_eq!(client.get(&format!("/{n}.bin")).body, body(n));
    }
    let repairs = server.report("shared cache repairs");
    println!("{kills} killed, {} replies, {repairs} repairs", served.load(Ordering::Relaxed));
    assert!(served.load(Ordering::Relaxed) > 100 && kills > 10);
    assert!(server.said().contains("was killed by signal 9 (Killed); replacing it"), "{}", server.said());
}
