//! Large objects of a store, which are fetched in windows: here of 256 KiB.
//!
//! The store (`tests/object_store.rs`) notes which parts were requested, and withholds those that a test wants to wait.

use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use super::frames::Http2;
use super::harness::{Client, Server, SetOnDrop, architecture, descriptors_of, find, parent_of, pattern, wait_until};
use super::object_store::Setup;
use crate::object_store::Fault;

/// Bytes of a window.
const WINDOW: usize = 256 * 1024;

/// Bytes of an object: five windows and a bit.
const SIZE: usize = 5 * WINDOW + 1000;

const KEY: &str = "site/a.bin";

fn serve(setup: &Setup) -> Server {
    serve_with(setup, "", "")
}

fn serve_with(setup: &Setup, keys: &str, of_cache: &str) -> Server {
    let keys = format!("window = \"256KiB\"\nrevalidate = \"1h\"\n{keys}");
    setup.serve(&keys, "precompressed = []", of_cache)
}

/// Bytes that differ from window to window, and from version to version.
fn object(version: u8) -> Vec<u8> {
    (0..SIZE).map(|at| (at % 251) as u8 ^ (at / WINDOW) as u8 ^ version).collect()
}

/// The parts of windows that were requested, in ascending order.
fn parts(setup: &Setup) -> Vec<usize> {
    let mut parts: Vec<usize> = setup.store.parts(KEY).iter().map(|part| part.start / WINDOW).collect();
    parts.sort_unstable();
    parts
}

/// Reads the head and at least so many bytes of the body.
fn read_start(client: &mut Client, count: usize) -> Vec<u8> {
    client.read_head();
    client.wait_for_many_bytes(count);
    client.buffered().to_vec()
}

/// Requests an object of which the store sends only this many bytes, and waits for them.
fn request_held(setup: &Setup, server: &Server, target: &str, count: usize) -> Client {
    setup.store.hold(Some(count));
    let mut client = server.connect();
    client.send_request("GET", target, &[]);
    read_start(&mut client, count);
    client
}

#[test]
fn first_bytes_arrive_while_store_withholds_the_rest() {
    let setup = Setup::new();
    setup.store.put(KEY, object(0));
    setup.store.put("site/hot.txt", "hot");
    let server = serve(&setup);
    assert_eq!(server.get("/hot.txt").text(), "hot");
    let mut client = request_held(&setup, &server, "/a.bin", 2 * WINDOW);
    let start = client.buffered();
    assert!(start[..2 * WINDOW] == object(0)[..2 * WINDOW], "{} bytes", start.len());
    // In SPED all clients wait with this one.
    if architecture() != Some("sped") {
        for _ in 0..20 {
            assert_eq!(server.get("/hot.txt").text(), "hot");
        }
        let mut other = server.connect();
        other.send_request("GET", "/a.bin", &[]);
        assert!(read_start(&mut other, 2 * WINDOW) == object(0)[..2 * WINDOW]);
    }
    setup.store.hold(None);
    client.wait_for_many_bytes(SIZE);
    assert!(client.buffered() == object(0));
    assert_eq!(parts(&setup), [0, 1, 2, 3, 4, 5]);
}

#[test]
fn range_of_cold_object_causes_requests_of_its_windows() {
    let setup = Setup::new();
    setup.store.put(KEY, object(0));
    let server = serve(&setup);
    let mut client = server.connect();
    let mut check = |range: &str, status: u16, body: &[u8], expected: &[usize]| {
        let response = client.request("GET", "/a.bin", &[("Range", range)]);
        assert!(response.status == status && (response.body == body || status == 416), "{range}: {}", response.status);
        assert_eq!(parts(&setup), expected, "{range}");
    };
    let bytes = object(0);
    check("bytes=1000000-1000009", 206, &bytes[1_000_000..1_000_010], &[3]);
    check("bytes=1000010-1000019", 206, &bytes[1_000_010..1_000_020], &[3]);
    check("bytes=500000-600000", 206, &bytes[500_000..=600_000], &[1, 2, 3]);
    check("bytes=-10", 206, &bytes[SIZE - 10..], &[1, 2, 3, 5]);
    check("bytes=2000000-", 416, &[], &[1, 2, 3, 5]);
    assert_eq!(client.request("HEAD", "/a.bin", &[]).field("Content-Length"), Some(&*SIZE.to_string()));
    assert_eq!(parts(&setup), [1, 2, 3, 5]);
    assert!(client.get("/a.bin").body == bytes);
    assert_eq!(parts(&setup), [0, 1, 2, 3, 4, 5]);
}

#[test]
fn frames_of_a_stream_do_not_reach_into_a_hole() {
    let setup = Setup::new();
    setup.store.put(KEY, object(0));
    let server = serve(&setup);
    let mut http2 = Http2::connect(&server);
    for (first, last) in [(WINDOW - 1000, 2 * WINDOW + 5), (4 * WINDOW - 70_000, SIZE - 1)] {
        let range = format!("bytes={first}-{last}");
        let stream = http2.request("GET", "/a.bin", &[("range", &range)]);
        let response = http2.response(stream);
        assert!(response.status == 206 && response.body == object(0)[first..=last], "{range}: {}", response.status);
    }
    assert_eq!(parts(&setup), [0, 1, 2, 3, 4, 5]);
}

#[test]
fn cold_request_beyond_the_end_gets_416() {
    let setup = Setup::new();
    setup.store.put(KEY, object(0));
    setup.store.put("site/small.txt", "small");
    setup.store.put("site/empty.txt", "");
    let server = serve(&setup);
    let mut client = server.connect();
    for target in ["/a.bin", "/small.txt", "/empty.txt"] {
        assert_eq!(client.request("GET", target, &[("Range", "bytes=9000000-")]).status, 416, "{target}");
    }
    assert_eq!((client.get("/small.txt").text(), client.get("/empty.txt").text()), ("small".into(), String::new()));
}

#[test]
fn twenty_clients_cause_one_request_a_window() {
    let setup = Setup::new();
    setup.store.put(KEY, object(0));
    let server = serve(&setup);
    thread::scope(|scope| {
        for _ in 0..20 {
            scope.spawn(|| assert!(server.get("/a.bin").body == object(0)));
        }
    });
    assert_eq!(parts(&setup), [0, 1, 2, 3, 4, 5]);
}

#[test]
fn object_that_is_replaced_meanwhile_is_cut_off() {
    let setup = Setup::new();
    setup.store.put(KEY, object(0));
    let server = serve(&setup);
    let mut client = request_held(&setup, &server, "/a.bin", 2 * WINDOW);
    setup.store.put(KEY, object(0x80));
    setup.store.hold(None);
    let body = client.read_to_end();
    assert!(body.len() >= 2 * WINDOW && body.len() < SIZE && body == object(0)[..body.len()], "{} bytes", body.len());
    // The next request finds the new version, although the old one is not stale yet.
    wait_until("the new version", || {
        server.connect().try_get("/a.bin").is_some_and(|response| response.body == object(0x80))
    });
    assert!(server.connect().get("/a.bin").body == object(0x80));
    let files = setup.files().len();
    assert_eq!(files, 2, "{:?}", setup.files());
}

#[test]
fn store_that_fails_in_the_middle_cuts_off_response() {
    let setup = Setup::new();
    let faults = [Fault::Cut, Fault::Stalls, Fault::Status(500, "InternalError")];
    for (n, fault) in faults.into_iter().enumerate() {
        // Another one, which knows nothing of earlier failures.
        let server = serve_with(&setup, "timeout = \"300ms\"", "");
        let target = format!("/{n}.bin");
        setup.store.put(&format!("site{target}"), object(0));
        let mut client = request_held(&setup, &server, &target, 2 * WINDOW);
        setup.store.fail(fault);
        setup.store.hold(None);
        let body = client.read_to_end();
        assert!(body.len() < SIZE && body == object(0)[..body.len()], "{} bytes", body.len());
        // Nothing was sent of this one, so it is an error.
        let mut client = server.connect();
        let last = client.request("GET", &target, &[("Range", "bytes=-10")]);
        assert_eq!((last.status, last.field("Retry-After")), (503, Some("1")));
        let known = client.request("GET", &target, &[("Range", "bytes=300000-300009")]);
        assert!(known.status == 206 && known.body == object(0)[300_000..300_010]);
        setup.store.fail(Fault::None);
        let is_whole = || server.connect().try_get(&target).is_some_and(|response| response.body == object(0));
        wait_until("the whole object", is_whole);
    }
}

#[test]
fn store_without_ranges_or_strong_tags_sends_whole_objects() {
    let setup = Setup::new();
    setup.store.put(KEY, object(0));
    setup.store.tag(KEY, "W/\"weak\"");
    setup.store.put("site/b.bin", object(1));
    let server = serve(&setup);
    assert!(server.get("/a.bin").body == object(0));
    assert_eq!(setup.store.parts(KEY).last(), Some(&(0..SIZE)));
    setup.store.ignore_ranges();
    assert!(server.get("/b.bin").body == object(1));
    let parts = setup.store.parts("site/b.bin");
    assert_eq!((parts.len(), parts.first()), (1, Some(&(0..SIZE))));
}

#[test]
fn store_that_begins_to_ignore_ranges_is_understood() {
    let setup = Setup::new();
    setup.store.put(KEY, object(0));
    let server = serve(&setup);
    let first = server.connect().request("GET", "/a.bin", &[("Range", "bytes=0-9")]);
    assert_eq!((first.status, &*first.body), (206, &object(0)[..10]));
    setup.store.ignore_ranges();
    assert!(server.get("/a.bin").body == object(0));
}

/// Kills the server and all its processes.
fn kill(server: Server) {
    let processes = server.pids();
    server.signal("KILL");
    drop(server);
    wait_until("the end of all processes", || processes.iter().all(|pid| parent_of(*pid).is_none()));
}

#[test]
fn server_killed_in_the_middle_of_a_window_leaves_nothing_wrong() {
    let setup = Setup::new();
    setup.store.put(KEY, object(0));
    let server = serve(&setup);
    let _client = request_held(&setup, &server, "/a.bin", 2 * WINDOW);
    // Half of the window arrives, and then nothing.
    setup.store.fail(Fault::Stalls);
    setup.store.hold(None);
    let data = || setup.files().into_iter().max_by_key(|path| path.metadata().unwrap().len()).unwrap();
    let on_disk = || data().metadata().unwrap().blocks() as usize * 512;
    wait_until("half a window", || on_disk() >= 2 * WINDOW + WINDOW / 4);
    kill(server);
    setup.store.fail(Fault::Down);
    let before = parts(&setup);
    let server = serve(&setup);
    // Windows on the disk are served without the store.
    let part = server.connect().request("GET", "/a.bin", &[("Range", "bytes=1000-400000")]);
    assert!(part.status == 206 && part.body == object(0)[1000..=400_000]);
    assert!(on_disk() < 2 * WINDOW + WINDOW / 4, "{} bytes", on_disk());
    assert!(!setup.files().iter().any(|path| path.to_string_lossy().contains(".w")), "{:?}", setup.files());
    assert!(server.connect().try_get("/a.bin").is_none());
    setup.store.fail(Fault::None);
    wait_until("the object", || server.connect().try_get("/a.bin").is_some_and(|response| response.body == object(0)));
    let mut later = parts(&setup);
    for part in before {
        let at = later.iter().position(|other| *other == part).unwrap();
        later.remove(at);
    }
    assert!(later.iter().all(|part| *part >= 2), "{later:?}");
}

#[test]
fn damaged_window_is_fetched_again_after_restart() {
    let setup = Setup::new();
    setup.store.put(KEY, object(0));
    let server = serve(&setup);
    assert!(server.get("/a.bin").body == object(0));
    drop(server);
    let data = setup.files().into_iter().max_by_key(|path| path.metadata().unwrap().len()).unwrap();
    let file = fs::File::options().write(true).open(data).unwrap();
    file.write_all_at(&[!object(0)[WINDOW + 77]], WINDOW as u64 + 77).unwrap();
    let server = serve(&setup);
    for _ in 0..3 {
        assert!(server.get("/a.bin").body == object(0));
    }
    assert_eq!(parts(&setup), [0, 1, 1, 2, 3, 4, 5]);
}

#[test]
fn local_copies_in_windows_stay_within_their_limit() {
    const OBJECTS: u8 = 20;
    let setup = Setup::new();
    for n in 0..OBJECTS {
        setup.store.put(&format!("site/{n}.bin"), object(n));
    }
    let limit = 2 * SIZE + SIZE / 2;
    let server = serve_with(&setup, "", &format!("disk_bytes = {limit}"));
    let done = AtomicBool::new(false);
    let most = thread::scope(|scope| {
        let watch = scope.spawn(|| {
            let mut most = 0;
            while !done.load(Ordering::Relaxed) {
                // Without the record and the slots, each below a page or two.
                let bytes_of = |blocks: u64| (blocks as usize * 512).saturating_sub(2 * 4096);
                let sizes = || -> Vec<(PathBuf, u64)> {
                    let files = setup.files().into_iter();
                    let mut sizes: Vec<_> =
                        files.filter_map(|path| path.metadata().ok().map(|status| (path, status.blocks()))).collect();
                    sizes.sort();
                    sizes
                };
                // Read twice: one file may have made room for another meanwhile.
                let found = sizes();
                if found == sizes() {
                    most = most.max(found.iter().map(|(_, blocks)| bytes_of(*blocks)).sum());
                }
                thread::sleep(Duration::from_millis(1));
            }
            most
        });
        let ends = SetOnDrop(&done);
        for round in 0..3_u8 {
            for n in 0..OBJECTS {
                let n = n.wrapping_mul(7).wrapping_add(round) % OBJECTS;
                let from = usize::from(n) * 50_000;
                let range = format!("bytes={from}-");
                let fields = if round == 1 { &[("Range", &*range)][..] } else { &[] };
                let response = server.connect().request("GET", &format!("/{n}.bin"), fields);
                let expected = if round == 1 { &object(n)[from..] } else { &object(n)[..] };
                assert!(response.body == expected, "{n}: {} of {} bytes", response.body.len(), expected.len());
            }
        }
        drop(ends);
        watch.join().unwrap()
    });
    assert!(most > limit / 2 && most <= limit, "{most} of {limit} bytes");
    assert!(server.report("store_evictions") >= 30);
}

#[test]
fn crowded_cache_of_changing_objects_never_yields_wrong_bytes() {
    const OBJECTS: usize = 12;
    let setup = Setup::new();
    let put =
        |n: usize, version: usize| setup.store.put(&format!("site/{n}.bin"), object((n * 16 + version % 16) as u8));
    (0..OBJECTS).for_each(|n| put(n, 0));
    let keys = "window = \"256KiB\"\nrevalidate = \"0s\"";
    let server = setup.serve(keys, "precompressed = []", &format!("disk_bytes = {}", 5 * SIZE));
    let (whole, done) = (AtomicUsize::new(0), AtomicBool::new(false));
    thread::scope(|scope| {
        let ends = SetOnDrop(&done);
        scope.spawn(|| {
            for version in 1.. {
                thread::sleep(Duration::from_millis(30));
                if done.load(Ordering::Relaxed) {
                    break;
                }
                put(version % OBJECTS, version / OBJECTS);
            }
        });
        let clients: Vec<_> = (0..6_usize)
            .map(|client| {
                let (whole, server) = (&whole, &server);
                scope.spawn(move || {
                    for step in 0..30 {
                        let (n, from) = ((client * 5 + step * 7) % OBJECTS, client * 170_000 + step * 11_111);
                        let to = SIZE.min(from + 1 + step * 40_000);
                        let range = format!("bytes={from}-{}", to - 1);
                        let mut client = server.connect();
                        client.send_request("GET", &format!("/{n}.bin"), &[("Range", &*range)]);
                        // It may be cut off, or find no room.
                        let Ok(response) = client.try_response("GET") else { continue };
                        if response.status == 503 {
                            continue;
                        }
                        assert_eq!(response.status, 206);
                        let version = response.body[0] ^ object(0)[from];
                        assert_eq!(usize::from(version / 16), n, "another object");
                        assert!(response.body == object(version)[from..to], "{n}, version {version}: {range}");
                        whole.fetch_add(1, Ordering::Relaxed);
                    }
                })
            })
            .collect();
        clients.into_iter().for_each(|client| client.join().unwrap());
        drop(ends);
    });
    let whole = whole.into_inner();
    assert!(whole >= 100, "only {whole} of 180 responses were complete");
}

#[test]
fn evicted_object_is_sent_to_its_end() {
    let setup = Setup::new();
    setup.store.put(KEY, object(0));
    let server = serve(&setup);
    let mut client = request_held(&setup, &server, "/a.bin", 3 * WINDOW);
    setup.files().iter().for_each(|path| fs::remove_file(path).unwrap());
    setup.store.hold(None);
    client.wait_for_many_bytes(SIZE);
    assert!(client.buffered() == object(0));
    // It would be counted as long as a cache keeps it open.
    let is_open = || {
        let files = server.pids().into_iter().flat_map(descriptors_of);
        files
            .filter(|path| path.starts_with(setup.site.path()))
            .any(|path| path.to_string_lossy().ends_with(" (deleted)"))
    };
    wait_until("its file to be closed", || !is_open());
    assert!(server.get("/a.bin").body == object(0));
}

#[test]
fn no_way_of_sending_reads_a_hole() {
    let ways = [
        "content = \"copy\"\nresidency = \"clock\"",
        "content = \"mmap\"\nresidency = \"mincore\"",
        "content = \"sendfile\"\nresidency = \"none\"",
        "content = \"mixed\"\nsendfile_min_age = \"0s\"",
        "content = \"mmap\"\nsendfile_min_age = \"0s\"",
        "[helpers]\nkind = \"processes\"",
    ];
    for (n, way) in ways.into_iter().enumerate() {
        let setup = Setup::new();
        setup.store.put(KEY, object(n as u8));
        let server = serve_with(&setup, "", &format!("[send]\n{way}"));
        // One window of the object is there before the others.
        let part = server.connect().request("GET", "/a.bin", &[("Range", "bytes=800000-800009")]);
        assert!(part.status == 206 && part.body == object(n as u8)[800_000..800_010], "{way}");
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let mut client = server.connect();
                    (0..3).for_each(|_| assert!(client.get("/a.bin").body == object(n as u8), "{way}"));
                    let range = [("Range", "bytes=100-200,600000-1000000")];
                    let parts = client.request("GET", "/a.bin", &range).body;
                    assert!(find(&parts, &object(n as u8)[600_000..=1_000_000]).is_some(), "{way}");
                });
            }
        });
        assert_eq!(parts(&setup), [0, 1, 2, 3, 4, 5], "{way}");
    }
}

#[test]
fn compressible_object_in_windows_is_served_right() {
    let setup = Setup::new();
    let text = "all work and no play\n".repeat(SIZE / 21).into_bytes();
    setup.store.put_with("site/a.txt", text.clone(), &[("Content-Type", "text/plain")]);
    let server =
        setup.serve("window = \"256KiB\"\nrevalidate = \"1h\"", "precompressed = []\ncompress = [\"gzip\"]", "");
    let mut client = server.connect();
    let part = client.request("GET", "/a.txt", &[("Accept-Encoding", "gzip"), ("Range", "bytes=300000-300020")]);
    assert!(part.body == text[300_000..=300_020], "{}", part.status);
    wait_until("the compressed form", || {
        let response = client.request("GET", "/a.txt", &[("Accept-Encoding", "gzip")]);
        match response.field("Content-Encoding") {
            Some("gzip") => {
                let mut plain = Vec::new();
                std::io::Read::read_to_end(&mut flate2::read::GzDecoder::new(&*response.body), &mut plain).unwrap();
                assert!(plain == text);
                true
            }
            _ => {
                assert!(response.body == text);
                false
            }
        }
    });
}

#[test]
fn lone_compressed_object_in_windows_is_unpacked() {
    let setup = Setup::new();
    let text = pattern(3 * SIZE);
    let mut packed = Vec::new();
    let mut encoder = flate2::read::GzEncoder::new(&*text, flate2::Compression::none());
    std::io::Read::read_to_end(&mut encoder, &mut packed).unwrap();
    setup.store.put("site/a.txt.gz", packed.clone());
    let server = setup.serve("window = \"256KiB\"\nrevalidate = \"1h\"", "", "");
    assert!(server.get("/a.txt").body == text);
    let response = server.connect().request("GET", "/a.txt", &[("Accept-Encoding", "gzip")]);
    assert!(response.field("Content-Encoding") == Some("gzip") && response.body == packed);
}
