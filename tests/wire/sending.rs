//! The settings `send.residency` and `send.content`: the bytes are the same with every value, and each value uses its
//! own system calls.

use std::fs;
use std::time::Duration;

use super::harness::{MODES, Server, Site, let_files_settle, pattern, wait_until};

const WINDOW: usize = 256 << 10;

/// Around all size limits: copied with the head, cached in memory, windows.
const SIZES: [usize; 9] = [0, 1, 4096, 4097, 32 << 10, (32 << 10) + 1, WINDOW, WINDOW + 1, 3 * WINDOW + 123];

#[test]
fn every_mode_and_residency_check_sends_same_bytes() {
    let site = Site::new();
    for size in SIZES {
        site.file(&format!("{size}.bin"), pattern(size));
    }
    let_files_settle();
    for mode in MODES {
        for residency in ["nowait", "mincore", "clock", "none"] {
            for sendfile_min_age in ["60s", "0s"] {
                let toml = format!(
                    "[send]\ncontent = '{mode}'\nresidency = '{residency}'\nsendfile_min_age = '{sendfile_min_age}'"
                );
                let server = Server::configured(&site, &toml);
                let mut client = server.connect();
                for _ in 0..2 {
                    // Pipelined, so that heads stand between bodies of all kinds.
                    SIZES.iter().for_each(|size| client.send_request("GET", &format!("/{size}.bin"), &[]));
                    for size in SIZES {
                        let response = client.response("GET");
                        assert_eq!(response.status, 200);
                        assert!(response.body == pattern(size), "{size} bytes, {toml}");
                    }
                }
                assert_eq!(server.report("connections_broken"), 0, "{toml}");
            }
        }
    }
}

#[test]
fn send_mode_determines_where_bodies_are_cached() {
    let site = Site::new();
    site.file("small.bin", pattern(1000));
    site.file("large.bin", pattern(100_000));
    let_files_settle();
    for (mode, bodies, files, mapped) in
        [("mixed", 1, 1, false), ("copy", 1, 1, false), ("mmap", 0, 2, true), ("sendfile", 0, 2, false)]
    {
        let server = Server::configured(&site, &format!("[send]\ncontent = '{mode}'\nsendfile_min_age = '0s'"));
        for name in ["/small.bin", "/large.bin", "/small.bin", "/large.bin"] {
            assert_eq!(server.get(name).status, 200);
        }
        let held = (server.report("cache_insertions body"), server.report("cache_entries file"));
        assert_eq!(held, (bodies, files), "{mode}");
        let figures =
            ["entries", "hits", "misses", "evictions"].map(|what| server.report(&format!("cache_{what} mapped")));
        assert_eq!(figures, if mapped { [2, 2, 2, 0] } else { [0; 4] }, "{mode}");
    }
}

#[test]
fn mapped_windows_stay_within_budget() {
    let site = Site::new();
    let content = pattern(8 * WINDOW);
    site.file("large.bin", &content);
    let_files_settle();
    // Each window is charged a page more than its bytes.
    for (budget, kept) in [("64MiB", 8), ("1100KiB", 4), ("0", 0)] {
        let toml = format!("[send]\ncontent = 'mmap'\nsendfile_min_age = '0s'\nmapped_bytes = '{budget}'");
        let server = Server::configured(&site, &toml);
        for _ in 0..3 {
            assert!(server.get("/large.bin").body == content);
        }
        let [entries, bytes, misses, evictions] =
            ["entries", "held_bytes", "misses", "evictions"].map(|what| server.report(&format!("cache_{what} mapped")));
        assert_eq!((entries, bytes), (kept, kept * (WINDOW as u64 + 4096)), "{budget}");
        assert_eq!(evictions, misses - entries, "{budget}");
        assert_eq!(misses == 8, kept == 8, "{budget}: {misses}");
    }
}

/// A mapping keeps a file's blocks allocated, as a descriptor does.
#[test]
fn removed_file_is_unmapped() {
    let site = Site::new();
    for (mode, residency) in [("mmap", "nowait"), ("mixed", "mincore")] {
        let path = site.file("large.bin", pattern(5 * WINDOW));
        let_files_settle();
        let toml = format!(
            "[send]\ncontent = '{mode}'\nresidency = '{residency}'\nsendfile_min_age = '0s'\n[cache]\nrevalidate = '20ms'\nmax_stale = '20ms'"
        );
        let server = Server::configured(&site, &toml);
        let maps = || fs::read_to_string(format!("/proc/{}/maps", server.pid())).unwrap();
        let name = path.to_str().unwrap();
        assert_eq!(server.get("/large.bin").status, 200);
        assert!(maps().contains(name), "{}", maps());
        fs::remove_file(&path).unwrap();
        wait_until("status 404", || {
            std::thread::sleep(Duration::from_millis(20));
            server.get("/large.bin").status == 404
        });
        wait_until("the file to be unmapped", || !maps().contains(name));
        assert_eq!(server.report("cache_entries mapped"), 0);
    }
}

/// Loops and threads of a process share its mapped windows; each process of MP has its own.
#[test]
fn every_architecture_maps_files() {
    let site = Site::new();
    let content = pattern(3 * WINDOW + 123);
    let path = site.file("large.bin", &content);
    site.file("small.bin", pattern(1000));
    let_files_settle();
    for architecture in ["amped", "sped", "mt", "mp"] {
        let toml = format!(
            "architecture = '{architecture}'\nworkers = 4\n[send]\ncontent = 'mmap'\nsendfile_min_age = '0s'\n\
             [cache]\nrevalidate = '20ms'\nmax_stale = '20ms'"
        );
        let server = Server::configured(&site, &toml);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..20 {
                        assert!(server.get("/large.bin").body == content, "{architecture}");
                        assert!(server.get("/small.bin").body == pattern(1000), "{architecture}");
                    }
                });
            }
        });
        let chunks = server.report("cache_entries mapped");
        let expected = if architecture == "mp" { 5..=4 * 5 } else { 5..=5 };
        assert!(expected.contains(&chunks), "{architecture}: {chunks}");
        if architecture == "mt" {
            let aside = path.with_extension("aside");
            fs::rename(&path, &aside).unwrap();
            wait_until("status 404", || server.get("/large.bin").status == 404);
            wait_until("the file to be unmapped", || server.report("cache_entries mapped") == 1);
            fs::rename(&aside, &path).unwrap();
        }
        assert_eq!(server.report("connections_broken"), 0, "{architecture}");
    }
}

/// At many moments of a download, some of them during a system call.
#[test]
fn file_truncated_while_sent_closes_connection_and_not_server() {
    const LENGTH: usize = 4 * WINDOW;
    const ROUNDS: u64 = 24;
    let content = pattern(LENGTH);
    let mut cut_in_all = 0;
    for mode in MODES {
        let site = Site::new();
        let paths: Vec<_> = (0..ROUNDS).map(|round| site.file(&format!("{round}.bin"), &content)).collect();
        let_files_settle();
        let server = Server::configured(&site, &format!("[send]\ncontent = '{mode}'\nsendfile_min_age = '0s'"));
        let mut cut = 0;
        for (round, path) in paths.iter().enumerate() {
            let target = format!("/{round}.bin");
            let mut client = server.connect();
            assert_eq!(client.request("GET", &target, &[("Range", "bytes=0-9")]).status, 206);
            let file = fs::OpenOptions::new().write(true).open(path).unwrap();
            // Not at a page boundary, so that a page loses only a part.
            let left = 1000 + round % 7 * 150_000;
            client.send_request("GET", &target, &[]);
            std::thread::sleep(Duration::from_micros(50 * (round as u64 % 12)));
            file.set_len(left as u64).unwrap();
            match client.try_response("GET") {
                // The server read the length or sent the file before it was truncated, or after.
                Ok(response) => {
                    let length = response.body.len();
                    assert!(length == LENGTH || length == left, "{mode}, round {round}: {length} bytes");
                    // Pages in the socket after sendfile belong to the file: truncating it zeroes the rest of the last
                    // page.
                    let is_lent = ["mixed", "sendfile"].contains(&mode);
                    assert!(is_lent || response.body == content[..length], "{mode}, round {round}");
                }
                Err(_) => cut += 1,
            }
            assert_eq!(server.get(&target).body.len(), left, "{mode}, round {round}");
        }
        println!("{mode}: {cut} of {ROUNDS} were truncated");
        // The server also counts downloads whose client had every byte before the server noticed the truncation.
        assert!(server.report("connections_broken") >= cut, "{mode}");
        cut_in_all += cut;
    }
    assert!(cut_in_all > 0);
}

#[test]
fn reload_rejects_changed_send_mode() {
    let site = Site::new();
    site.file("small.bin", pattern(1000));
    let config = site.path().with_extension("toml");
    let server = Server::configured(&site, "[send]\ncontent = 'mmap'\nsendfile_min_age = '0s'");
    for key in ["[send]\ncontent = 'copy'", "[send]\ncontent = 'mmap'\nresidency = 'clock'"] {
        let before = server.said().len();
        fs::write(&config, super::harness::configuration(site.path(), key)).unwrap();
        server.signal("HUP");
        wait_until("the reload to be rejected", || {
            server.said()[before..].contains("keeping the current configuration")
        });
        assert!(server.said()[before..].contains("cannot change while the server runs"), "{}", server.said());
    }
    // Other settings may change, and mapped files are still served.
    assert_eq!(server.get("/small.bin").status, 200);
    let toml = "[send]\ncontent = 'mmap'\nsendfile_min_age = '0s'\n[limits]\nmax_requests = 7";
    fs::write(&config, super::harness::configuration(site.path(), toml)).unwrap();
    server.signal("HUP");
    server.wait_for("the new configuration is in force");
    assert!(server.get("/small.bin").body == pattern(1000));
    assert_eq!(server.report("cache_entries mapped"), 1);
}
