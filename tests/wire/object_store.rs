//! Sites in an object store: `root = "s3://BUCKET/PREFIX"`.
//!
//! The store is a small one in the test (`tests/object_store.rs`), which counts requests and fails as asked. In SPED a
//! request waits for the loop, which waits for the store: those tests are about the other architectures.

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::harness::{PATIENCE, Server, Site, architecture, parent_of, pattern, program, wait_until};
use super::tls_backend::{authorities, terminate};
use crate::object_store::{BUCKET, Fault, Store};
use crate::ports;

/// A store, and the directory of a server's local copies.
pub struct Setup {
    pub store: Store,
    pub site: Site,
}

impl Setup {
    pub fn new() -> Setup {
        Setup { store: Store::on(ports::listen()), site: Site::new() }
    }

    /// Keys of `[object_storage]`, of the site, then of `[cache]`.
    pub fn serve(&self, keys: &str, of_site: &str, of_cache: &str) -> Server {
        self.serve_from("http", keys, of_site, of_cache)
    }

    fn serve_from(&self, scheme: &str, keys: &str, of_site: &str, of_cache: &str) -> Server {
        let config = self.site.path().with_extension("toml");
        let timeout = if keys.contains("timeout") { "" } else { "timeout = \"2s\"" };
        let text = format!(
            "listen = [\"127.0.0.1:0\"]\n[object_storage]\nendpoint = \"{scheme}://{}\"\n{timeout}\n{keys}\n\
             [cache]\ndisk = {:?}\nrevalidate = \"0s\"\n{of_cache}\n[[site]]\nroot = \"s3://{BUCKET}/site\"\n{of_site}\n",
            self.store.address,
            self.site.path(),
        );
        fs::write(&config, text).unwrap();
        let mut command = program();
        command.arg("serve").arg("--config").arg(&config);
        command.env("AWS_ACCESS_KEY_ID", "id").env("AWS_SECRET_ACCESS_KEY", "secret");
        Server::spawn(command)
    }

    /// Objects are never asked for again.
    fn serve_fresh(&self) -> Server {
        self.serve("revalidate = \"1h\"", "", "")
    }

    /// Files of the local copies.
    pub fn files(&self) -> Vec<std::path::PathBuf> {
        fs::read_dir(self.site.path()).unwrap().map(|entry| entry.unwrap().path()).collect()
    }
}

#[test]
fn objects_are_served_as_files_are() {
    let setup = Setup::new();
    let store = &setup.store;
    store.put_with("site/index.html", "<p>home", &[("Content-Type", "text/html")]);
    let style = [("Content-Type", "text/x-style"), ("Cache-Control", "max-age=7"), ("Content-Encoding", "aws-chunked")];
    store.put_with("site/a/style.css", "body{}", &style);
    store.put_with("site/a/style.css.br", "packed", &[]);
    store.put_with(
        "site/coded",
        "deflated",
        &[("Content-Encoding", "deflate"), ("Content-Type", "binary/octet-stream")],
    );
    store.put("site/a/large file.bin", pattern(1_000_000));
    // A key beside others that begin with it, and the object that some programs put for a directory.
    store.put("site/a", "both");
    store.put("site/b/", "");
    store.put("site/b/c/d.txt", "deep");
    store.put("other/secret", "secret");
    let server = setup.serve("", "listing = true", "");
    let mut client = server.connect();
    let home = client.get("/");
    assert_eq!((home.status, home.text().as_str()), (200, "<p>home"));
    assert_eq!(home.field("Content-Type"), Some("text/html"));
    assert_eq!(home.field("ETag"), Some(&*store.etag("site/index.html")));
    assert_eq!(home.field("Last-Modified"), Some("Sun, 09 Sep 2001 01:46:41 GMT"));
    let style = client.get("/a/style.css");
    assert_eq!((style.field("Content-Type"), style.field("Cache-Control")), (Some("text/x-style"), Some("max-age=7")));
    assert_eq!((style.field("Content-Encoding"), style.field("Vary")), (None, Some("Accept-Encoding")));
    let packed = client.request("GET", "/a/style.css", &[("Accept-Encoding", "br")]);
    assert_eq!((packed.text().as_str(), packed.field("Content-Encoding")), ("packed", Some("br")));
    assert_eq!(packed.field("ETag"), Some(&*store.etag("site/a/style.css.br")));
    assert_eq!(packed.field("Content-Type"), Some("text/x-style"));
    let coded = client.get("/coded");
    assert_eq!(coded.field("Content-Encoding"), Some("deflate"));
    assert_eq!(coded.field("Content-Type"), Some("application/octet-stream"));
    let etag = store.etag("site/a/large file.bin");
    let large = client.get("/a/large%20file.bin");
    assert!(large.status == 200 && large.body == pattern(1_000_000));
    let part = client.request("GET", "/a/large%20file.bin", &[("Range", "bytes=999990-"), ("If-Range", &etag)]);
    assert_eq!((part.status, &*part.body), (206, &pattern(1_000_000)[999_990..]));
    let head = client.request("HEAD", "/a/large%20file.bin", &[]);
    assert_eq!((head.status, head.field("Content-Length")), (200, Some("1000000")));
    assert_eq!(client.request("GET", "/a/large%20file.bin", &[("If-None-Match", &etag)]).status, 304);
    assert_eq!(client.get("/a").text(), "both");
    let slash = client.get("/b/c");
    assert_eq!((slash.status, slash.field("Location").unwrap().ends_with("/b/c/")), (301, true));
    for (target, status) in [("/none", 404), ("/none/", 404), ("/%2e%2e/other/secret", 400), ("/b/c/d.txt/x", 404)] {
        assert_eq!(server.get(target).status, status, "{target}");
    }
    let json = |target: &str| server.connect().request("GET", target, &[("Accept", "application/json")]).text();
    let listing = json("/a/");
    for name in ["style.css", "style.css.br", "large file.bin"] {
        assert!(listing.contains(name), "{name} is not in {listing}");
    }
    assert!(json("/b/").contains("\"c") && !json("/b/").contains("\"\""), "{}", json("/b/"));
}

#[test]
fn variants_error_pages_and_aliases_may_be_objects() {
    let setup = Setup::new();
    for (key, text) in [
        ("site/404.html", "lost"),
        ("site/docs/guide.en.html", "english"),
        ("site/docs/guide.fr.html", "français"),
        ("site/docs/guided.html", "another"),
        ("site/only.txt.gz", "packed"),
        ("other/a.txt", "alias"),
    ] {
        setup.store.put(key, text);
    }
    let of_site = format!(
        "errors = {{ \"404\" = \"/404.html\" }}\n[[site.alias]]\nmatch = \"/static/**\"\nroot = \"s3://{BUCKET}/other\"\n\
         [[site.negotiation]]\nmatch = \"/docs/**\"\nlanguages = [\"en\", \"fr\"]"
    );
    let server = setup.serve("", &of_site, "");
    let missing = server.get("/none");
    assert_eq!((missing.status, missing.text().as_str()), (404, "lost"));
    for (language, text) in [("fr", "français"), ("en", "english")] {
        let guide = server.connect().request("GET", "/docs/guide.html", &[("Accept-Language", language)]);
        assert_eq!((guide.status, guide.text().as_str()), (200, text));
    }
    let only = server.connect().request("GET", "/only.txt", &[("Accept-Encoding", "gzip")]);
    assert_eq!((only.text().as_str(), only.field("Content-Encoding")), ("packed", Some("gzip")));
    assert_eq!(server.get("/static/a.txt").text(), "alias");
    assert_eq!(server.get("/static/b.txt").text(), "lost");
}

#[test]
fn long_listing_is_complete() {
    let setup = Setup::new();
    for n in 0..2345 {
        setup.store.put(&format!("site/dir/{n:04} ü&.txt"), "");
    }
    let server = setup.serve("", "listing = true", "");
    let listing = server.connect().request("GET", "/dir/", &[("Accept", "application/json")]);
    assert_eq!(listing.status, 200);
    let listing = listing.text();
    assert!((0..2345).all(|n| listing.contains(&format!("{n:04} ü&.txt"))));
}

#[test]
fn cold_object_causes_one_request_and_fresh_one_none() {
    let setup = Setup::new();
    setup.store.put("site/a.bin", pattern(300_000));
    let server = setup.serve_fresh();
    let bodies: Vec<Vec<u8>> = thread::scope(|scope| {
        let clients: Vec<_> = (0..20).map(|_| scope.spawn(|| server.get("/a.bin").body)).collect();
        clients.into_iter().map(|client| client.join().unwrap()).collect()
    });
    assert!(bodies.iter().all(|body| *body == pattern(300_000)));
    assert_eq!(setup.store.statuses("site/a.bin"), [206]);
    // Processes may look for siblings once each; then nothing is asked.
    let mut before = usize::MAX;
    wait_until("the store is left alone", || {
        let requests = setup.store.requests();
        (0..50).for_each(|_| assert_eq!(server.get("/a.bin").status, 200));
        std::mem::replace(&mut before, requests) == requests
    });
    assert_eq!(setup.store.statuses("site/a.bin"), [206]);
}

#[test]
fn object_is_revalidated_and_replaced() {
    let setup = Setup::new();
    setup.store.put_with("site/a.txt", "one", &[("Content-Type", "text/a")]);
    let server = setup.serve("revalidate = \"0s\"", "precompressed = []", "");
    let mut client = server.connect();
    assert_eq!(client.get("/a.txt").text(), "one");
    wait_until("revalidation", || {
        client.get("/a.txt").status == 200 && setup.store.statuses("site/a.txt").contains(&304)
    });
    assert_eq!(setup.store.statuses("site/a.txt").iter().filter(|status| **status == 206).count(), 1);
    // Other metadata of the same bytes.
    setup.store.describe("site/a.txt", &[("Content-Type", "text/b")]);
    wait_until("the new type", || client.get("/a.txt").field("Content-Type") == Some("text/b"));
    setup.store.put("site/a.txt", "two");
    wait_until("the new version", || client.get("/a.txt").text() == "two");
    setup.store.remove("site/a.txt");
    wait_until("its end", || client.get("/a.txt").status == 404);
    setup.store.put("site/a.txt", "three");
    wait_until("another one", || client.get("/a.txt").text() == "three");
    // One for the object: the older ones are removed.
    assert_eq!(setup.files().len(), 2, "{:?}", setup.files());
    assert!(server.report("store_confirmed") > 0 && server.report("store_fetched_bytes") >= 3 + 3 + 3 + 5);
}

#[test]
fn cache_control_of_object_is_obeyed() {
    let setup = Setup::new();
    setup.store.put_with("site/long", "one", &[("Cache-Control", "public, max-age=3600")]);
    setup.store.put_with("site/short", "one", &[("Cache-Control", "no-cache")]);
    let server = setup.serve("revalidate = \"1h\"", "precompressed = []", "");
    let mut client = server.connect();
    for name in ["long", "short"] {
        assert_eq!(client.get(&format!("/{name}")).text(), "one");
        setup.store.put_with(&format!("site/{name}"), "two", &[]);
    }
    wait_until("the new version", || client.get("/short").text() == "two");
    assert_eq!(client.get("/long").text(), "one");
    assert_eq!(setup.store.statuses("site/long"), [206]);
}

#[test]
fn object_replaced_under_load_is_never_mixed() {
    let setup = Setup::new();
    let version = |byte: u8| vec![byte; 400_000];
    setup.store.put("site/a.bin", version(0));
    let server = setup.serve("revalidate = \"0s\"", "precompressed = []", "");
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..6 {
            scope.spawn(|| {
                let mut seen = 0;
                while !stop.load(Ordering::Relaxed) {
                    let response = server.get("/a.bin");
                    assert_eq!((response.status, response.body.len()), (200, 400_000));
                    let first = response.body[0];
                    assert!(response.body.iter().all(|byte| *byte == first), "two versions in one response");
                    seen = first.max(seen);
                }
            });
        }
        for byte in 1..=20 {
            setup.store.put("site/a.bin", version(byte));
            thread::sleep(Duration::from_millis(20));
        }
        wait_until("the last version", || server.get("/a.bin").body[0] == 20);
        stop.store(true, Ordering::Relaxed);
    });
}

#[test]
fn store_that_is_down_does_not_stop_known_objects() {
    let setup = Setup::new();
    setup.store.put("site/known.txt", "known");
    setup.store.put("site/cold.txt", "cold");
    let server = setup.serve("revalidate = \"0s\"", "precompressed = []", "");
    assert_eq!(server.get("/known.txt").text(), "known");
    for fault in [Fault::Down, Fault::Status(500, "InternalError"), Fault::Status(503, "SlowDown")] {
        setup.store.fail(fault);
        for _ in 0..5 {
            assert_eq!(server.get("/known.txt").text(), "known");
            let cold = server.get("/cold.txt");
            assert_eq!((cold.status, cold.field("Retry-After")), (503, Some("1")));
        }
    }
    server.wait_for("asked again in");
    assert!(server.report("store_stale") > 0 && server.report("store_failures") > 0);
    setup.store.fail(Fault::None);
    wait_until("the cold object", || server.get("/cold.txt").text() == "cold");
    // In MP it is a worker that has noticed the failure.
    wait_until("the message", || server.get("/cold.txt").status == 200 && server.said().contains("answers again"));
}

#[test]
fn stale_object_is_not_served_forever() {
    let setup = Setup::new();
    setup.store.put("site/a.txt", "a");
    let server = setup.serve("revalidate = \"0s\"\nstale_max = \"0s\"", "precompressed = []", "max_stale = \"0s\"");
    assert_eq!(server.get("/a.txt").text(), "a");
    setup.store.fail(Fault::Status(500, "InternalError"));
    wait_until("the end of the stale object", || server.get("/a.txt").status == 503);
    setup.store.fail(Fault::None);
    wait_until("its return", || server.get("/a.txt").text() == "a");
    // It is still there, so it was not sent again.
    assert_eq!(setup.store.statuses("site/a.txt").iter().filter(|status| **status == 206).count(), 1);
}

#[test]
fn truncated_object_is_never_served() {
    let setup = Setup::new();
    setup.store.put("site/a.bin", pattern(500_000));
    let server = setup.serve("timeout = \"300ms\"", "precompressed = []", "");
    for fault in [Fault::Cut, Fault::Stalls] {
        setup.store.fail(fault);
        for _ in 0..2 {
            assert_eq!(server.get("/a.bin").status, 503);
        }
    }
    assert!(setup.files().is_empty(), "{:?}", setup.files());
    setup.store.fail(Fault::None);
    wait_until("the whole object", || server.get("/a.bin").status == 200);
    assert!(server.get("/a.bin").body == pattern(500_000));
}

#[test]
fn store_with_tls_is_verified() {
    let setup = Setup { store: Store::behind(ports::listen(), terminate), site: Site::new() };
    setup.store.put("site/a.txt", "a");
    let keys = format!("ca = {:?}", authorities(&setup.site));
    let server = setup.serve_from("https", &keys, "", "");
    assert_eq!(server.get("/a.txt").text(), "a");
    drop(server);
    setup.files().iter().for_each(|path| fs::remove_file(path).unwrap());
    let server = setup.serve_from("https", "", "", "");
    assert_eq!(server.get("/a.txt").status, 503);
    server.wait_for("name the CA of the store in `ca`");
}

#[test]
fn too_large_object_is_refused() {
    let setup = Setup::new();
    setup.store.put("site/a.bin", pattern(100_001));
    setup.store.put("site/b.bin", pattern(100_000));
    let server = setup.serve("max_object = 100000", "precompressed = []", "");
    assert_eq!(server.get("/a.bin").status, 503);
    server.wait_for("bucket/site/a.bin has more than 100000 bytes: raise `max_object`");
    assert_eq!(server.get("/b.bin").status, 200);
}

#[test]
fn killed_server_leaves_nothing_wrong() {
    let setup = Setup::new();
    setup.store.put("site/a.bin", pattern(200_000));
    setup.store.put("site/b.bin", pattern(3_000_000));
    let server = setup.serve_fresh();
    assert_eq!(server.get("/a.bin").body, pattern(200_000));
    // In the middle of another object.
    setup.store.fail(Fault::Stalls);
    let mut client = server.connect();
    client.send_request("GET", "/b.bin", &[]);
    wait_until("the first bytes", || {
        setup.files().iter().any(|path| path.extension().is_some_and(|end| end == "part"))
    });
    let processes = server.pids();
    server.signal("KILL");
    drop(server);
    // Workers of MP notice that their parent is gone.
    wait_until("the end of all processes", || processes.iter().all(|pid| parent_of(*pid).is_none()));
    // The store is not needed for what is here.
    setup.store.fail(Fault::Down);
    let before = setup.store.requests();
    let server = setup.serve("revalidate = \"1h\"", "precompressed = []", "");
    assert_eq!(server.get("/a.bin").body, pattern(200_000));
    assert_eq!(setup.store.requests(), before);
    assert!(!setup.files().iter().any(|path| path.extension().is_some_and(|end| end == "part")));
    drop(server);
    // Damaged while the server was stopped: it is fetched again.
    let bytes = setup.files().into_iter().find(|path| path.metadata().unwrap().len() == 200_000).unwrap();
    let mut damaged = pattern(200_000);
    damaged[100_000] ^= 1;
    fs::write(&bytes, &damaged).unwrap();
    let server = setup.serve("revalidate = \"1h\"", "precompressed = []", "");
    assert_eq!(server.get("/a.bin").status, 503);
    setup.store.fail(Fault::None);
    wait_until("the object", || server.get("/a.bin").status == 200);
    assert!(server.get("/a.bin").body == pattern(200_000) && server.get("/b.bin").body == pattern(3_000_000));
}

#[test]
fn local_copies_stay_within_their_limit() {
    let setup = Setup::new();
    for n in 0..40 {
        setup.store.put(&format!("site/{n}.bin"), pattern(10_000 + n));
    }
    let server = setup.serve("revalidate = \"1h\"", "precompressed = []", "disk_bytes = 100000");
    for n in (0..40).chain(0..40) {
        assert!(server.get(&format!("/{n}.bin")).body == pattern(10_000 + n), "{n}");
        // Without their records.
        let copies = setup.files().into_iter().filter(|path| path.extension().is_some());
        let bytes: u64 = copies.map(|path| path.metadata().map_or(0, |file| file.len())).sum();
        // The last one may be there in addition.
        assert!(bytes <= 100_000 + 11_000, "{bytes} bytes");
    }
    assert!(server.report("store_evictions") >= 30);
}

#[test]
fn hot_requests_are_answered_while_store_hangs() {
    if architecture() == Some("sped") {
        // Its loop waits for the store, and so do all its clients.
        return;
    }
    let setup = Setup::new();
    setup.store.put("site/hot.txt", "hot");
    setup.store.put("site/cold.txt", "cold");
    setup.store.hang(Some("cold"));
    let server = setup.serve("revalidate = \"0s\"\ntimeout = \"1s\"", "precompressed = []", "");
    assert_eq!(server.get("/hot.txt").text(), "hot");
    let mut waiting: Vec<_> = (0..20).map(|_| server.connect()).collect();
    // More than there are helpers, for as many objects.
    for (n, client) in waiting.iter_mut().enumerate() {
        client.send_request("GET", &format!("/cold.txt{}", "x".repeat(n)), &[]);
    }
    wait_until("the requests at the store", || !setup.store.statuses("site/cold.txtxxxxxxxxxxxxxxxxxxx").is_empty());
    let (start, mut answered) = (Instant::now(), 0);
    while start.elapsed() < Duration::from_millis(500) {
        assert_eq!(server.get("/hot.txt").text(), "hot");
        answered += 1;
    }
    assert!(answered > 0 && start.elapsed() < PATIENCE);
    waiting.iter_mut().for_each(|client| assert_eq!(client.response("GET").status, 503));
    setup.store.hang(None);
    wait_until("the cold object", || server.get("/cold.txt").text() == "cold");
}
