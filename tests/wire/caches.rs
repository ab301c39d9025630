//! The contents of the caches, and the expiry of their entries.
//!
//! The promise: a cache changes the latency of a response and nothing else. A change becomes visible when the
//! revalidation interval is over (20 ms here, to keep the tests short). At every moment a response contains one version
//! of its file, or is visibly truncated.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::path::Path;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, SystemTime};

use super::harness::{
    Client, Response, Server, SetOnDrop, Site, find, let_files_settle, one_set_of_caches, pattern, wait_until,
};

const EAGER: &str = "[cache]\nrevalidate = \"20ms\"";
const NEVER: &str = "[cache]\nrevalidate = \"1h\"\nmax_stale = \"1h\"";

/// A size that is cached in memory, and a size for which the server caches a file descriptor.
const SIZES: [usize; 2] = [5_000, 300_000];

/// Replaces a file by rename, as deployments do.
fn put_over(path: &Path, content: &[u8]) {
    let next = path.with_extension("next");
    fs::write(&next, content).unwrap();
    fs::rename(next, path).unwrap();
}

/// Repeats a request until the response has this status and body. Each earlier response must have one of the bodies in
/// `before`.
fn wait_for(client: &mut Client, target: &str, status: u16, body: &[u8], before: &[&[u8]]) -> Response {
    let mut found = None;
    wait_until(&format!("{status} for {target}"), || {
        let response = client.get(target);
        if response.status == status && (status != 200 || response.body == body) {
            found = Some(response);
            return true;
        }
        let known = response.status != 200 || before.contains(&&*response.body);
        assert!(known, "{target}: {} bytes that match no version", response.body.len());
        false
    });
    found.unwrap()
}

#[test]
fn change_is_visible_after_revalidation() {
    for size in SIZES {
        let site = Site::new();
        let first = pattern(size);
        let path = site.file("file.bin", &first);
        let server = Server::configured(&site, EAGER);
        let mut client = server.connect();
        let mut etags = Vec::new();
        let mut check = |status: u16, body: &[u8], before: &[u8]| {
            let response = wait_for(&mut client, "/file.bin", status, body, &[before]);
            // Validators of the earlier version do not match, and no tag is reused.
            if let Some(etag) = response.field("ETag") {
                assert!(!etags.contains(&etag.to_owned()), "{etag} again");
                etags.push(etag.to_owned());
            }
        };
        check(200, &first, b"");
        // A replacement of another size, and one of the same size.
        let second = [&first[..], b"longer"].concat();
        put_over(&path, &second);
        check(200, &second, &first);
        let third: Vec<u8> = second.iter().rev().copied().collect();
        put_over(&path, &third);
        check(200, &third, &second);
        // In place: one byte, shorter, longer.
        File::options().write(true).open(&path).unwrap().write_all_at(b"!", 7).unwrap();
        let fourth = fs::read(&path).unwrap();
        check(200, &fourth, &third);
        File::options().write(true).open(&path).unwrap().set_len(size as u64 / 2).unwrap();
        check(200, &fourth[..size / 2], &fourth);
        File::options().append(true).open(&path).unwrap().write_all(b"grown").unwrap();
        let fifth = [&fourth[..size / 2], b"grown"].concat();
        check(200, &fifth, &fourth[..size / 2]);
        // With unchanged size and modification time.
        let modified = fs::metadata(&path).unwrap().modified().unwrap();
        let file = File::options().write(true).open(&path).unwrap();
        file.write_all_at(b"?", 9).unwrap();
        file.set_modified(modified).unwrap();
        let sixth = fs::read(&path).unwrap();
        check(200, &sixth, &fifth);
        // Deleted, restored, empty, replaced by a directory.
        fs::remove_file(&path).unwrap();
        check(404, b"", &sixth);
        fs::write(&path, &first).unwrap();
        check(200, &first, b"");
        File::options().write(true).open(&path).unwrap().set_len(0).unwrap();
        check(200, b"", &first);
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        check(301, b"", b"");
    }
}

#[test]
fn created_file_replaces_cached_404() {
    let site = Site::new();
    site.file("folder/other", "x");
    site.file("404.html", "first");
    let server = Server::with_site(&site, &format!("[site.errors]\n404 = \"/404.html\"\n{EAGER}"));
    let mut client = server.connect();
    for target in ["/new.txt", "/new/deep/file.txt"] {
        assert_eq!(client.get(target).status, 404, "{target}");
        site.file(&target[1..], "now");
        wait_for(&mut client, target, 200, b"now", &[]);
    }
    // An index, first the second choice.
    assert_eq!(client.get("/folder/").status, 403);
    site.file("folder/index.htm", "htm");
    wait_for(&mut client, "/folder/", 200, b"htm", &[]);
    site.file("folder/index.html", "html");
    wait_for(&mut client, "/folder/", 200, b"html", &[b"htm"]);
    fs::remove_file(site.path().join("folder/index.html")).unwrap();
    wait_for(&mut client, "/folder/", 200, b"htm", &[b"html"]);
    // The page of an error is a file as well.
    assert_eq!(client.get("/missing").text(), "first");
    site.file("404.html", "second");
    wait_until("the new error page", || client.get("/missing").text() == "second");
    fs::remove_file(site.path().join("404.html")).unwrap();
    wait_until("the built-in error page", || client.get("/missing").text().contains("404 Not Found"));
}

#[test]
fn changed_sibling_is_detected() {
    let site = Site::new();
    let original = site.file("page.html", "plain");
    let server = Server::configured(&site, EAGER);
    let mut client = server.connect();
    let gzip = [("Accept-Encoding", "gzip")];
    let mut wait_for = |text: &str, varies: bool| {
        wait_until(text, || {
            let response = client.request("GET", "/page.html", &gzip);
            response.text() == text && response.field("Vary").is_some() == varies
        });
    };
    wait_for("plain", false);
    let sibling = site.file("page.html.gz", "coded");
    wait_for("coded", true);
    fs::write(&sibling, "coded again").unwrap();
    wait_for("coded again", true);
    fs::remove_file(&sibling).unwrap();
    wait_for("plain", false);
    fs::write(&sibling, "coded").unwrap();
    wait_for("coded", true);
    // Edited and not compressed again: the sibling is stale.
    fs::write(&original, "edited").unwrap();
    let later = SystemTime::now() + Duration::from_secs(5);
    File::options().write(true).open(&original).unwrap().set_modified(later).unwrap();
    wait_for("edited", false);
}

#[test]
fn switched_root_link_is_detected() {
    let site = Site::new();
    for release in ["one", "two"] {
        site.file(&format!("{release}/small"), release);
        site.file(&format!("{release}/large"), release.repeat(50_000));
    }
    site.file("two/new", "new");
    let current = site.path().join("current");
    symlink("one", &current).unwrap();
    let config = format!("listen = [\"127.0.0.1:0\"]\nroot = {current:?}\n{EAGER}");
    let config = site.file("amped.toml", config);
    let server = Server::start(&["--config", config.to_str().unwrap()]);
    let mut client = server.connect();
    wait_for(&mut client, "/small", 200, b"one", &[]);
    assert_eq!(client.get("/large").body.len(), 150_000);
    assert_eq!(client.get("/new").status, 404);
    symlink("two", site.path().join("next")).unwrap();
    fs::rename(site.path().join("next"), &current).unwrap();
    wait_for(&mut client, "/small", 200, b"two", &[b"one"]);
    wait_for(&mut client, "/new", 200, b"new", &[]);
    wait_for(&mut client, "/large", 200, "two".repeat(50_000).as_bytes(), &["one".repeat(50_000).as_bytes()]);
    // A root that is missing for a moment does not affect the rest.
    fs::remove_file(&current).unwrap();
    thread::sleep(Duration::from_millis(30));
    assert_eq!(client.get("/small").text(), "two");
    symlink("one", &current).unwrap();
    wait_for(&mut client, "/small", 200, b"one", &[b"two"]);
}

/// A version of a file: one letter, repeated.
fn version(n: usize, size: usize) -> Vec<u8> {
    vec![b'a' + (n % 26) as u8; size]
}

#[test]
fn repeatedly_replaced_file_is_never_torn() {
    for size in SIZES {
        let site = Site::new();
        let path = site.file("file.bin", version(0, size));
        let server = Server::configured(&site, "[cache]\nrevalidate = \"1ms\"");
        let writer = thread::spawn(move || {
            for n in 1..40 {
                // The size determines the letter, so a length and a body of two versions are detected.
                put_over(&path, &version(n, size + n % 26));
                // Either at once, or after several revalidations of the last version.
                thread::sleep(Duration::from_millis(n as u64 % 7 * 10));
            }
        });
        let mut client = server.connect();
        while !writer.is_finished() {
            let response = client.get("/file.bin");
            assert_eq!(response.status, 200, "{}", response.text());
            let letter = response.body.len() - size;
            assert!(response.body == version(letter, size + letter), "torn: {} bytes for {size}", response.body.len());
        }
        wait_until("the last version", || client.get("/file.bin").body == version(39, size + 13));
    }
}

/// Starts a download of a new file that is much larger than the buffers between server and client.
fn begin_download(server: &Server, path: &Path) -> Client {
    fs::write(path, &*WHOLE).unwrap();
    let mut client = server.connect();
    client.send_request("GET", &format!("/{}", path.file_name().unwrap().to_str().unwrap()), &[]);
    // The first bytes have arrived, so the file is open and its length was sent.
    client.wait_for_bytes();
    client
}

/// A change to a file.
type Change<T> = fn(&T);

/// More than the kernel buffers for one connection.
const DOWNLOAD: usize = 32 << 20;

/// The complete download, created once.
static WHOLE: LazyLock<Vec<u8>> = LazyLock::new(|| pattern(DOWNLOAD));

#[test]
fn download_survives_unlink() {
    let site = Site::new();
    let server = Server::configured(&site, EAGER);
    let ends: [(&str, Change<Path>); 5] = [
        ("removed", |path| fs::remove_file(path).unwrap()),
        ("replaced", |path| put_over(path, b"another")),
        ("renamed", |path| fs::rename(path, path.with_extension("elsewhere")).unwrap()),
        ("linked", |path| fs::hard_link(path, path.with_extension("link")).unwrap()),
        ("chmod", |path| fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap()),
    ];
    for (name, end) in ends {
        let path = site.path().join(name);
        let mut client = begin_download(&server, &path);
        end(&path);
        assert!(client.response("GET").body == *WHOLE, "{name}");
    }
    wait_for(&mut server.connect(), "/replaced", 200, b"another", &[&*WHOLE]);
    assert_eq!(server.report("connections_broken"), 0);
}

#[test]
fn download_of_edited_file_is_cut_and_never_mixed() {
    let site = Site::new();
    let server = Server::configured(&site, EAGER);
    let edits: [(&str, Change<File>); 5] = [
        ("edited", |file| file.write_all_at(&vec![b'X'; DOWNLOAD], 0).unwrap()),
        ("shorter", |file| file.set_len(DOWNLOAD as u64 - 1).unwrap()),
        ("emptied", |file| file.set_len(0).unwrap()),
        ("longer", |file| file.write_all_at(b"X", DOWNLOAD as u64).unwrap()),
        ("put-back", |file| {
            let modified = file.metadata().unwrap().modified().unwrap();
            file.write_all_at(&vec![b'X'; DOWNLOAD], 0).unwrap();
            file.set_modified(modified).unwrap();
        }),
    ];
    for (n, (what, edit)) in edits.into_iter().enumerate() {
        let path = site.path().join(what);
        let mut client = begin_download(&server, &path);
        edit(&File::options().write(true).open(&path).unwrap());
        let received = client.read_to_end();
        let head = find(&received, b"\r\n\r\n").unwrap() + 4;
        let body = &received[head..];
        assert!(body.len() < DOWNLOAD, "{what}: the download is complete");
        assert!(WHOLE.starts_with(body), "{what}: {} bytes that are not the old version's", body.len());
        assert_eq!(server.report("connections_broken"), n as u64 + 1, "{what}");
    }
    // The next request receives the current version.
    let now = fs::read(site.path().join("edited")).unwrap();
    wait_until("the edited file", || server.connect().try_get("/edited").is_some_and(|response| response.body == now));
}

#[test]
fn edited_file_is_served_whole_before_revalidation() {
    for size in SIZES {
        let site = Site::new();
        let path = site.file("file.bin", version(0, size));
        let_files_settle();
        let server = Server::configured(&site, NEVER);
        let mut client = server.connect();
        assert!(client.get("/file.bin").body == version(0, size));
        for (n, length) in [(1, size), (2, size / 2), (3, size * 2), (4, 70_000)] {
            let file = File::options().write(true).open(&path).unwrap();
            file.set_len(length as u64).unwrap();
            file.write_all_at(&version(n, length), 0).unwrap();
            for _ in 0..2 {
                // The memory cache keeps the old content; a file descriptor shows the edit.
                let expected = if size == SIZES[0] { version(0, size) } else { version(n, length) };
                assert!(client.get("/file.bin").body == expected, "{size} to {length}");
            }
        }
        // And with its old modification time restored.
        let modified = fs::metadata(&path).unwrap().modified().unwrap();
        let before = client.get("/file.bin");
        let file = File::options().write(true).open(&path).unwrap();
        file.write_all_at(&version(5, 70_000), 0).unwrap();
        file.set_modified(modified).unwrap();
        let after = client.get("/file.bin");
        // Either the old bytes with the old tag, or the new ones with another tag.
        let is_old = after.body == before.body && after.field("ETag") == before.field("ETag");
        let is_new = after.body == version(5, 70_000) && after.field("ETag") != before.field("ETag");
        assert!(is_old || is_new, "{size}");
    }
}

#[test]
fn constantly_changing_file_has_weak_etag_and_is_not_cached() {
    thread::scope(|scope| SIZES.iter().for_each(|size| drop(scope.spawn(|| rests_after_all(*size)))));
}

/// Writes to a file of this size continuously, then stops.
fn rests_after_all(size: usize) {
    let site = Site::new();
    let path = site.file("file.bin", version(0, size));
    let_files_settle();
    let server = Server::configured(&site, "[cache]\nrevalidate = \"1ms\"\nmax_stale = \"1ms\"");
    let mut client = server.connect();
    assert!(client.get("/file.bin").field("ETag").unwrap().starts_with('"'), "at rest");
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let _stop = SetOnDrop(&stop);
        // Several, because on a busy machine each pauses at times for longer than the file must rest.
        for _ in 0..8 {
            scope.spawn(|| {
                let file = File::options().write(true).open(&path).unwrap();
                for n in 0.. {
                    if stop.load(Ordering::Relaxed) {
                        break;
                    }
                    file.write_all_at(&version(n % 26, 1), 0).unwrap();
                    thread::sleep(Duration::from_millis(2));
                }
            });
        }
        // A body is truncated when the file changes while it is sent, which is almost always; a head is not.
        wait_until("a weak ETag", || {
            let response = server.connect().request("HEAD", "/file.bin", &[]);
            assert_eq!(response.status, 200);
            response.field("ETag").unwrap().starts_with("W/\"")
        });
    });
    File::options().write(true).open(&path).unwrap().write_all_at(&version(25, size), 0).unwrap();
    wait_until("a strong ETag", || {
        let response = server.get("/file.bin");
        response.body == version(25, size) && response.field("ETag").unwrap().starts_with('"')
    });
}

/// In AMPED the only helper does not wait for the writers.
#[test]
fn constantly_changing_files_delay_no_other_lookup() {
    const COUNT: usize = 4;
    let site = Site::new();
    let logs: Vec<_> = (0..COUNT).map(|n| site.file(&format!("{n}.log"), "x")).collect();
    let server = Server::configured(&site, "[helpers]\nmax = 1\n[cache]\nrevalidate = \"1ms\"\nmax_stale = \"1ms\"");
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let _stop = SetOnDrop(&stop);
        scope.spawn(|| {
            let files: Vec<_> = logs.iter().map(|log| File::options().append(true).open(log).unwrap()).collect();
            while !stop.load(Ordering::Relaxed) {
                files.iter().for_each(|mut file| file.write_all(b"y").unwrap());
                thread::sleep(Duration::from_millis(5));
            }
        });
        // On a busy machine the writer may pause, or the file may take a second; then try again.
        let mut attempt = 0;
        wait_until("a file to be served before those that change", || {
            attempt += 1;
            let name = format!("{attempt}.txt");
            site.file(&name, "z");
            let_files_settle();
            let mut clients: Vec<_> = (0..COUNT).map(|_| server.connect()).collect();
            for (n, client) in clients.iter_mut().enumerate() {
                client.send_request("GET", &format!("/{n}.log"), &[]);
            }
            // Long enough for these requests to reach the helper.
            thread::sleep(Duration::from_millis(20));
            assert_eq!(server.get(&format!("/{name}")).text(), "z");
            clients.iter_mut().all(|client| client.is_quiet(Duration::from_millis(1)))
        });
    });
}

/// Requests for servers with different caches, to compare their responses.
fn tour(server: &Server) -> Vec<Response> {
    let mut client = server.connect();
    let mut responses = Vec::new();
    for _ in 0..3 {
        for target in
            ["/small.txt", "/large.bin", "/page.html", "/folder", "/folder/", "/list/", "/missing", "/.x", "/empty"]
        {
            for fields in [
                &[][..],
                &[("Range", "bytes=1-2")],
                &[("Range", "bytes=1-2,5-6")],
                &[("Accept-Encoding", "gzip")],
                &[("If-None-Match", "*")],
                &[("If-Match", "\"x\"")],
            ] {
                for method in ["GET", "HEAD"] {
                    let mut response = client.request(method, target, fields);
                    response.fields = response.lasting_fields();
                    responses.push(response);
                }
            }
        }
    }
    responses
}

#[test]
fn disabled_caches_change_no_response() {
    let site = Site::new();
    for (name, size) in [("small.txt", 5000), ("large.bin", 300_000), ("page.html", 100), ("page.html.gz", 50)] {
        site.file(name, pattern(size));
    }
    for (name, text) in [("folder/index.html", "index"), ("list/a", "a"), ("404.html", "lost"), ("empty", "")] {
        site.file(name, text);
    }
    let serve = |cache: &str| {
        Server::with_site(&site, &format!("listing = true\n[site.errors]\n404 = \"/404.html\"\n[cache]\n{cache}"))
    };
    let expected = tour(&serve(""));
    let all = "path_entries = 0\nhead_bytes = 0\ncontent_bytes = 0\ndescriptors = 0\nmax_content_file_bytes = 0\nrevalidate = \"0s\"";
    for cache in all.lines().chain([
        all,
        "max_stale = \"0s\"",
        "max_content_file_bytes = \"1MiB\"",
        "path_entries = 1",
        "head_bytes = 400",
    ]) {
        let server = serve(cache);
        let found = tour(&server);
        for (n, (found, expected)) in found.iter().zip(&expected).enumerate() {
            assert!(found == expected, "reply {n} with {cache}: {found:?} instead of {expected:?}");
        }
        if cache == all {
            for amount in ["cache_entries path", "cache_held_bytes head", "cache_held_bytes body", "cache_entries file"]
            {
                assert_eq!(server.report(amount), 0, "{amount}");
            }
            for cache in ["path", "head", "body", "file"] {
                assert_eq!(server.report(&format!("cache_hits {cache}")), 0, "{cache}");
            }
        }
    }
}

#[test]
fn each_cache_counts_hits() {
    let site = Site::new();
    site.file("small.txt", "small");
    site.file("large.bin", pattern(300_000));
    let_files_settle();
    let server = Server::configured(&site, NEVER);
    let mut client = server.connect();
    let figures =
        ["request_hits", "disk_questions", "cache_hits path", "cache_hits head", "cache_hits body", "cache_hits file"];
    let counts = || figures.map(|figure| server.report(figure));
    let mut check = |method: &str, target: &str, fields: &[(&str, &str)], expected: [u64; 6]| {
        // The first request fills the caches.
        client.request(method, target, fields);
        let before = counts();
        for _ in 0..10 {
            client.request(method, target, fields);
        }
        let after = counts();
        let grown: Vec<u64> = after.iter().zip(before).map(|(after, before)| after - before).collect();
        assert_eq!(grown, expected, "{method} {target} {fields:?}");
    };
    check("GET", "/small.txt", &[], [10, 0, 10, 10, 10, 0]);
    check("HEAD", "/small.txt", &[], [10, 0, 10, 10, 0, 0]);
    check("GET", "/small.txt", &[("If-None-Match", "*")], [10, 0, 10, 10, 0, 0]);
    // A partial response has a head of its own.
    check("GET", "/small.txt", &[("Range", "bytes=0-1")], [10, 0, 10, 0, 10, 0]);
    check("GET", "/large.bin", &[], [10, 0, 10, 10, 0, 10]);
    check("GET", "/large.bin", &[("Range", "bytes=0-1")], [10, 0, 10, 0, 0, 10]);
    // The absence of a file is cached too.
    check("GET", "/missing", &[], [10, 0, 10, 0, 0, 0]);
    assert_eq!(server.report("cache_entries path"), 3);
    assert_eq!(server.report("requests"), 77);
}

/// File descriptors of this file that the server has open.
fn descriptors(server: &Server, path: &Path) -> usize {
    server.descriptors().iter().filter(|target| *target == path).count()
}

#[test]
fn large_file_stays_open_and_small_file_does_not() {
    let site = Site::new();
    let (small, large) = (site.file("small", "small"), site.file("large", pattern(300_000)));
    let (small, large) = (fs::canonicalize(small).unwrap(), fs::canonicalize(large).unwrap());
    let_files_settle();
    let server = Server::configured(&site, &[one_set_of_caches(), NEVER].concat());
    for _ in 0..3 {
        assert_eq!((server.get("/small").status, server.get("/large").status), (200, 200));
    }
    assert_eq!((descriptors(&server, &small), descriptors(&server, &large)), (0, 1));
    assert_eq!(server.report("cache_entries file"), 1);
    assert_eq!(server.report("cache_insertions file"), 1);

    let server = Server::configured(&site, "[cache]\ndescriptors = 0");
    assert_eq!(server.get("/large").body, pattern(300_000));
    wait_until("the descriptor to be closed", || descriptors(&server, &large) == 0);
}

#[test]
fn cache_budgets_hold_for_many_files() {
    let site = Site::new();
    for n in 0..300 {
        site.file(&format!("small/{n}"), version(n, 1000 + n));
    }
    for n in 0..40 {
        site.file(&format!("large/{n}"), version(n, 40_000 + n));
    }
    let_files_settle();
    let budgets = "[cache]\npath_entries = 100\nhead_bytes = \"16KiB\"\ncontent_bytes = \"64KiB\"\ndescriptors = 8";
    let server = Server::configured(&site, &[one_set_of_caches(), budgets].concat());
    let mut client = server.connect();
    for round in 0..3 {
        for n in 0..300 {
            assert!(client.get(&format!("/small/{n}")).body == version(n, 1000 + n), "{n} in round {round}");
            assert_eq!(client.get(&format!("/missing/{n}")).status, 404);
        }
        for n in 0..40 {
            assert!(client.get(&format!("/large/{n}")).body == version(n, 40_000 + n), "{n} in round {round}");
        }
        for (amount, cache, budget) in [
            ("cache_entries", "path", 100),
            ("cache_held_bytes", "head", 16 << 10),
            ("cache_held_bytes", "body", 64 << 10),
            ("cache_entries", "file", 8),
        ] {
            let held = server.report(&format!("{amount} {cache}"));
            // Full, or nearly full: the cache uses its budget.
            assert!((budget * 3 / 4..=budget).contains(&held), "{cache}: {held} of {budget}");
            assert!(server.report(&format!("cache_evictions {cache}")) > 0, "{cache}");
        }
    }
    let open = server.descriptors();
    let large = open.iter().filter(|to| to.to_string_lossy().contains("/large/"));
    assert!(large.count() <= 9, "no more descriptors than the budget and the one in use");
}
