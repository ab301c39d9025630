//! The papers' optimisations: every response is the same with each of them on or off.

use std::fs;

use crate::harness::{Client, Server, Site, let_files_settle, wait_until};

/// All values of `--without`.
const SWITCHES: [&str; 13] = [
    "path-cache",
    "header-cache",
    "content-cache",
    "file-state-cache",
    "uri-cache",
    "string-caches",
    "delayed-log",
    "dns-cache",
    "ready-headers",
    "made-pages",
    "sendfile",
    "pool-epoll",
    "header-alignment",
];

fn site() -> Site {
    let site = Site::new();
    site.file("index.html", "<p>hello");
    site.file("small.css", "a{}");
    site.file("small.css.gz", [0x1f, 0x8b, 8, 0]);
    site.file("with space.txt", "space");
    site.file("empty", "");
    let large: Vec<u8> = (0..700_000_u32).map(|n| (n / 3) as u8).collect();
    site.file("large.bin", large);
    site.file("sub/page.html", "below");
    let_files_settle();
    site
}

/// Method, target, fields.
type Request = (&'static str, &'static str, &'static [(&'static str, &'static str)]);

const REQUESTS: &[Request] = &[
    ("GET", "/", &[]),
    ("HEAD", "/index.html", &[]),
    ("GET", "/small.css", &[("Accept-Encoding", "gzip")]),
    ("GET", "/small.css", &[]),
    ("GET", "/with%20space.txt", &[]),
    ("GET", "/./sub/../with%20space.txt?query", &[]),
    ("GET", "/empty", &[]),
    ("GET", "/large.bin", &[]),
    ("GET", "/large.bin", &[("Range", "bytes=300000-599999")]),
    ("GET", "/large.bin", &[("Range", "bytes=0-9,-9")]),
    ("GET", "/sub", &[]),
    ("GET", "/sub/page.html", &[("If-None-Match", "*")]),
    ("GET", "/nothing", &[]),
    ("GET", "/.hidden", &[]),
    ("POST", "/small.css", &[]),
    ("OPTIONS", "*", &[]),
];

/// Status, lasting fields, body.
type Reply = (u16, Vec<(String, String)>, Vec<u8>);

/// All responses, each requested twice to use the caches, without fields that depend on the time.
fn replies(server: &Server) -> Vec<Reply> {
    let mut client: Client = server.connect();
    let mut replies = Vec::new();
    for _ in 0..2 {
        for (method, target, fields) in REQUESTS {
            let response = client.request(method, target, fields);
            replies.push((response.status, response.lasting_fields(), response.body));
        }
    }
    replies
}

#[test]
fn optimisations_do_not_change_responses() {
    let site = site();
    let root = site.path().to_str().unwrap();
    let usual = replies(&Server::start(&[root]));
    for architecture in ["amped", "mt", "mp"] {
        for switch in SWITCHES.iter().chain(&["all"]) {
            for flag in ["--without", "--with"] {
                if (flag, *switch) == ("--with", "all") {
                    continue;
                }
                let server = Server::start(&[root, flag, switch, "--architecture", architecture, "--workers", "1"]);
                for (n, (reply, usual)) in replies(&server).iter().zip(&usual).enumerate() {
                    let request = REQUESTS[n % REQUESTS.len()];
                    assert!(reply == usual, "{flag} {switch} {architecture} {request:?}: {reply:?}, not {usual:?}");
                }
            }
        }
    }
}

/// A deadline that stays in the past would make the event loop run without a pause.
#[test]
fn idle_server_uses_no_cpu_time_with_any_switch() {
    let site = site();
    let root = site.path().to_str().unwrap();
    let log = site.path().with_extension("log");
    let log = log.to_str().unwrap();
    let mut servers = Vec::new();
    for architecture in ["amped", "mt"] {
        for switch in SWITCHES.iter().chain(&["all"]) {
            for flag in ["--without", "--with"] {
                if (flag, *switch) == ("--with", "all") {
                    continue;
                }
                let args = [root, flag, switch, "--architecture", architecture, "--workers", "1", "--access-log", log];
                let server = Server::start(&args);
                replies(&server);
                servers.push((format!("{flag} {switch} {architecture}"), server));
            }
        }
    }
    // Every delay of a server that has nothing to do has passed.
    std::thread::sleep(std::time::Duration::from_millis(1500));
    let before: Vec<_> = servers.iter().map(|(_, server)| server.cpu_time()).collect();
    std::thread::sleep(std::time::Duration::from_secs(2));
    for ((what, server), before) in servers.iter().zip(before) {
        let used = server.cpu_time() - before;
        assert!(used.as_millis() < 40, "{what}: {used:?} in 2 s");
    }
}

/// In a pool without its epoll set, workers wait in accept, recv and send, and still notice all else.
#[test]
fn blocking_workers_keep_deadlines_and_obey_signals() {
    let site = site();
    let root = site.path().to_str().unwrap();
    for architecture in ["mt", "mp"] {
        let args = [root, "--architecture", architecture, "--workers", "2", "--without", "pool-epoll"];
        let config = site.path().with_extension("toml");
        fs::write(&config, "limits.idle_timeout = '300ms'\nlimits.header_timeout = '300ms'").unwrap();
        let config = ["--config", config.to_str().unwrap()];
        let mut server = Server::start(&[&args[..], &config].concat());

        // Pipelined requests, and a client that reads slowly.
        let mut client = Client::connect_narrow(server.address, 4096);
        client.send("GET /small.css HTTP/1.1\r\nHost: a\r\n\r\nGET /large.bin HTTP/1.1\r\nHost: a\r\n\r\n");
        assert_eq!(client.response("GET").body, b"a{}");
        std::thread::sleep(std::time::Duration::from_millis(250));
        assert_eq!(client.response("GET").body.len(), 700_000);
        // Its idle timeout.
        assert!(client.is_closed());

        // Two workers, two idle clients, and a third that takes the place of one of them.
        let config = site.path().with_extension("toml");
        fs::write(&config, "limits.idle_timeout = '60s'").unwrap();
        server.signal("HUP");
        server.wait_for("the new configuration is in force");
        let mut clients = [server.connect(), server.connect(), server.connect()];
        for client in &mut clients {
            assert_eq!(client.get("/empty").status, 200, "{architecture}");
        }

        // A response in progress is completed.
        let mut client = Client::connect_narrow(server.address, 4096);
        client.send_request("GET", "/large.bin", &[]);
        client.wait_for_bytes();
        server.signal("TERM");
        server.wait_for("finishing requests in progress");
        assert_eq!(client.response("GET").body.len(), 700_000, "{architecture}");
        drop(client);
        drop(clients);
        assert!(server.wait().success(), "{architecture}: {}", server.said());
    }
}

#[test]
fn disabled_optimisation_is_not_used() {
    let site = site();
    let root = site.path().to_str().unwrap();
    let hits = |flag: &str, switch: &str, cache: &str| {
        let server = Server::start(&[root, flag, switch]);
        replies(&server);
        server.report(&format!("cache_hits {cache}"))
    };
    for (switch, cache) in [
        ("path-cache", "path"),
        ("header-cache", "head"),
        ("content-cache", "body"),
        ("content-cache", "file"),
        ("uri-cache", "uri"),
    ] {
        assert_eq!(hits("--without", switch, cache), 0, "{switch}");
        assert!(hits("--with", switch, cache) > 0, "{switch}");
    }
    let questions = |flags: &[&str]| {
        let server = Server::start(&[&[root], flags].concat());
        let mut client = server.connect();
        for _ in 0..100 {
            client.get("/small.css");
        }
        server.report("disk_questions")
    };
    assert_eq!(questions(&["--without", "file-state-cache"]), 100);
    assert_eq!(questions(&["--without", "all"]), 100);
    assert!(questions(&[]) < 10);
}

#[test]
fn disabled_log_delay_writes_each_line_at_once() {
    let site = site();
    let log = site.path().with_extension("log");
    let server = Server::configured(
        &site,
        &format!("[log]\naccess = {log:?}\nflush = \"1h\"\n[optimise]\ndelayed_log = false\nstring_caches = false"),
    );
    let mut client = server.connect();
    for n in 1..=20 {
        client.get(if n % 2 == 0 { "/small.css" } else { "/nothing" });
        wait_until("the log line", || fs::read_to_string(&log).unwrap().lines().count() == n);
    }
    let lines = fs::read_to_string(&log).unwrap();
    fs::remove_file(&log).unwrap();
    let of = |what: &str| lines.lines().filter(|line| line.contains(what)).count();
    assert_eq!((of("\"GET /small.css HTTP/1.1\" 200 3 "), of("\"GET /nothing HTTP/1.1\" 404 ")), (10, 10), "{lines}");
}

#[test]
fn headers_are_aligned_if_enabled() {
    let site = site();
    let root = site.path().to_str().unwrap();
    let lengths = |flags: &[&str]| {
        let server = Server::start(&[&[root], flags].concat());
        let mut client = server.connect();
        let targets = ["/small.css", "/index.html", "/nothing", "/sub", "/large.bin"];
        targets.map(|target| {
            client.send_request("GET", target, &[]);
            let head = client.read_head();
            let length = head.lines().find_map(|line| line.strip_prefix("Content-Length: ")).unwrap();
            client.read_body(length.trim_end().parse().unwrap()).unwrap();
            head.len()
        })
    };
    assert!(lengths(&["--with", "header-alignment"]).iter().all(|length| length.is_multiple_of(32)));
    assert!(!lengths(&[]).iter().all(|length| length.is_multiple_of(32)));
}
