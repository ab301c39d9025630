//! The server's metrics: exact totals and classes in every architecture, phase times that add up, a page that a strict
//! OpenMetrics parser accepts, and sums that stay correct when processes die.

use std::collections::BTreeMap;
use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;
use std::thread;
use std::time::Duration;

use tempfile::TempDir;

use super::harness::{
    Client, Server, Site, architecture, has_processes, is_pool, let_files_settle, one_set_of_caches, pattern, program,
    run_command, wait_until,
};

/// A server with a metrics address and a metrics file in memory.
struct Setup {
    server: Server,
    exporter: SocketAddr,
    file: PathBuf,
    _folder: TempDir,
}

/// Starts the server on a site with these keys.
fn setup(site: &Site, toml: &str) -> Setup {
    setup_by(Server::configured, site, toml)
}

/// Like [`setup`], with this way to start the server.
fn setup_by(start: fn(&Site, &str) -> Server, site: &Site, toml: &str) -> Setup {
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    let file = folder.path().join("metrics");
    let toml = format!("{toml}\n[metrics]\nfile = {file:?}\nlisten = \"127.0.0.1:0\"\n");
    let server = start(site, &toml);
    server.wait_for("amped: metrics on http://");
    let said = server.said();
    let line = said.lines().find_map(|line| line.strip_prefix("amped: metrics on http://")).unwrap();
    let exporter = line.strip_suffix("/metrics").unwrap().parse().unwrap();
    Setup { server, exporter, file, _folder: folder }
}

impl Setup {
    fn get(&self, target: &str) -> u16 {
        self.server.get(target).status
    }

    fn page(&self) -> Page {
        let response = Client::connect(self.exporter).request("GET", "/metrics", &[]);
        assert_eq!(response.status, 200);
        assert_eq!(response.field("Content-Type"), Some("application/openmetrics-text; version=1.0.0; charset=utf-8"));
        Page::read(&response.text())
    }

    /// Returns the page after a figure has reached a value: the end of a response is counted a moment after it was
    /// sent.
    fn page_with(&self, name: &str, labels: &str, expected: f64) -> Page {
        let mut page = self.page();
        wait_until(&format!("{name}{{{labels}}} to be {expected}"), || {
            page = self.page();
            page.sum(name, labels) >= expected
        });
        assert_eq!(page.sum(name, labels), expected, "{name}{{{labels}}}");
        page
    }
}

/// A page in OpenMetrics format, parsed strictly.
struct Page {
    /// By name and labels as written.
    samples: BTreeMap<(String, String), f64>,
}

impl Page {
    /// OpenMetrics 1.0: each family once, with its metadata first; samples of a family together, with names that its
    /// type requires; units at the end of names; histograms that increase to `+Inf`; one `# EOF` at the end.
    fn read(text: &str) -> Page {
        let body = text.strip_suffix("# EOF\n").expect("the page ends with # EOF");
        let mut samples = BTreeMap::new();
        let mut families: BTreeMap<String, BTreeMap<String, String>> = BTreeMap::new();
        let mut family = String::new();
        for line in body.lines() {
            if let Some(rest) = line.strip_prefix("# ") {
                let mut words = rest.splitn(3, ' ');
                let (what, name, value) = (words.next().unwrap(), words.next().unwrap(), words.next().unwrap());
                assert!(["TYPE", "UNIT", "HELP"].contains(&what), "{line}");
                if name != family {
                    assert!(!families.contains_key(name), "the samples of family {name} are not adjacent");
                    family = name.to_owned();
                }
                let known = families.entry(family.clone()).or_default();
                assert!(known.insert(what.to_owned(), value.to_owned()).is_none(), "{line}");
                continue;
            }
            let (name_and_labels, value) = line.rsplit_once(' ').expect("a value");
            let (name, labels) = match name_and_labels.split_once('{') {
                Some((name, labels)) => (name, labels.strip_suffix('}').expect("a closing brace")),
                None => (name_and_labels, ""),
            };
            assert!(name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_'), "{line}");
            for pair in labels.split(',').filter(|pair| !pair.is_empty()) {
                let (label, value) = pair.split_once("=\"").unwrap_or_else(|| panic!("{line}"));
                assert!(label.bytes().all(|b| b.is_ascii_lowercase()) && value.ends_with('"'), "{line}");
            }
            let meta = families.get(&family).unwrap_or_else(|| panic!("{line}: no metadata for its family"));
            let suffix = name.strip_prefix(family.as_str()).unwrap_or_else(|| panic!("{line} is not of {family}"));
            let fits: &[&str] = match meta["TYPE"].as_str() {
                "counter" => &["_total"],
                "gauge" => &[""],
                "histogram" => &["_bucket", "_count", "_sum"],
                "info" => &["_info"],
                other => panic!("unexpected type {other}"),
            };
            assert!(fits.contains(&suffix), "{line} is not a valid sample of a {}", meta["TYPE"]);
            if let Some(unit) = meta.get("UNIT") {
                assert!(family.ends_with(&format!("_{unit}")), "{family} does not end with its unit {unit}");
                assert!(["bytes", "seconds"].contains(&unit.as_str()), "{unit} is not a base unit");
            }
            let value: f64 = value.parse().unwrap_or_else(|_| panic!("{line}: the value is not a number"));
            assert!(value >= 0.0 && value.is_finite(), "{line}");
            assert!(samples.insert((name.to_owned(), labels.to_owned()), value).is_none(), "{line} is a duplicate");
        }
        for (name, meta) in &families {
            assert!(meta.contains_key("TYPE") && meta["HELP"].ends_with('.'), "{name}: {meta:?}");
        }
        let page = Page { samples };
        page.check_histograms();
        page
    }

    fn check_histograms(&self) {
        let mut series: BTreeMap<(String, String), Vec<(f64, f64)>> = BTreeMap::new();
        for ((name, labels), value) in &self.samples {
            if let Some(base) = name.strip_suffix("_bucket") {
                let (labels, end) = labels.split_once(",le=\"").expect("the end of the bucket");
                let end = end.strip_suffix('"').unwrap().replace("+Inf", "inf").parse().unwrap();
                series.entry((base.to_owned(), labels.to_owned())).or_default().push((end, *value));
            }
        }
        for ((base, labels), mut buckets) in series {
            buckets.sort_by(|a, b| a.0.total_cmp(&b.0));
            assert!(buckets.windows(2).all(|pair| pair[0].1 <= pair[1].1), "{base}{{{labels}}} falls: {buckets:?}");
            let (end, last) = *buckets.last().unwrap();
            assert!(end.is_infinite() && self.of(&format!("{base}_count"), &labels) == last, "{base}{{{labels}}}");
        }
    }

    /// The value of one sample.
    fn of(&self, name: &str, labels: &str) -> f64 {
        *self.samples.get(&(name.to_owned(), labels.to_owned())).unwrap_or_else(|| panic!("missing {name}{{{labels}}}"))
    }

    /// The sum of all samples of a name whose labels contain this text.
    fn sum(&self, name: &str, part: &str) -> f64 {
        let these = self.samples.iter().filter(|((known, labels), _)| known == name && labels.contains(part));
        these.map(|(_, value)| value).sum()
    }
}

/// A file of each size class, and the name of the class.
const SIZES: [(usize, &str); 5] =
    [(300, "<1K"), (5000, "<10K"), (50_000, "<100K"), (500_000, "<1M"), (3_000_000, "more")];

#[test]
fn each_response_is_counted_by_class_to_the_byte() {
    let site = Site::new();
    for (size, _) in SIZES {
        site.file(&format!("{size}"), pattern(size));
    }
    site.file("empty", "");
    let_files_settle();
    let setup = setup(&site, "");
    let (mut replies, mut sent) = (0, 0);
    for round in 0..3 {
        for (size, _) in SIZES {
            let mut client = setup.server.connect();
            for _ in 0..=round {
                client.send_request("GET", &format!("/{size}"), &[]);
                let head = client.read_head().len();
                sent += head + client.read_body(size).unwrap();
                replies += 1;
            }
        }
    }
    let page = setup.page_with("amped_replies_total", "", f64::from(replies));
    assert_eq!(page.of("amped_requests_total", ""), f64::from(replies));
    assert_eq!(page.of("amped_sent_bytes_total", ""), sent as f64);
    for (size, class) in SIZES {
        let labels = format!("size=\"{class}\",kind=\"static\"");
        assert_eq!(page.of("amped_replies_total", &labels), 6.0, "{class}");
        assert_eq!(page.of("amped_reply_body_bytes_total", &labels), 6.0 * size as f64, "{class}");
    }
    // Generated responses and responses without a body are in the smallest class.
    assert_eq!(setup.get("/none"), 404);
    assert_eq!(setup.get("/"), 403);
    setup.server.connect().request("HEAD", "/3000000", &[]);
    let tag = setup.server.get("/empty").field("ETag").unwrap().to_owned();
    assert_eq!(setup.server.connect().request("GET", "/empty", &[("If-None-Match", &tag)]).status, 304);
    // An error does not count as a generated page.
    setup.page_with("amped_replies_total", "size=\"<1K\",kind=\"error\"", 2.0);
    assert_eq!(setup.page().of("amped_replies_total", "size=\"<1K\",kind=\"dynamic\""), 0.0);
    setup.page_with("amped_replies_total", "size=\"<1K\",kind=\"static\"", 6.0 + 3.0);
    // Pipelined requests are counted like others.
    let mut client = setup.server.connect();
    (0..20).for_each(|_| client.send_request("GET", "/300", &[]));
    (0..20).for_each(|_| assert_eq!(client.response("GET").body.len(), 300));
    let page = setup.page_with("amped_replies_total", "size=\"<1K\",kind=\"static\"", 29.0);
    assert_eq!(page.sum("amped_replies_total", ""), page.of("amped_requests_total", ""));
    assert_eq!(page.of("amped_bad_requests_total", ""), 0.0);
}

#[test]
fn responses_are_counted_by_site_handler_and_status() {
    let site = Site::new();
    site.file("folder/a.txt", "a text");
    let script = site.file("x.cgi", "#!/bin/sh\nprintf 'Status: %s\\nContent-Type: a/b\\n\\nx' \"$QUERY_STRING\"\n");
    fs::set_permissions(script, fs::Permissions::from_mode(0o755)).unwrap();
    let tables = "listing = true\n\
         [[site.route]]\nmatch = '/old'\nredirect = '/new'\n\
         [[site.app]]\nmatch = '*.cgi'\ncgi = true\n\
         [[site]]\nroot = '/'\nhosts = ['b.example']\n";
    let setup = setup_by(Server::with_site, &site, tables);
    let mut client = setup.server.connect();
    let mut ask = |host: &str, method: &str, target: &str, count: usize| {
        (0..count).for_each(|_| drop(client.request(method, target, &[("Host", host)])));
    };
    ask("a", "GET", "/folder/a.txt", 3);
    ask("a", "GET", "/folder/", 1);
    ask("a", "GET", "/old", 2);
    ask("a", "GET", "/none", 4);
    ask("a", "GET", "/x.cgi?200", 2);
    ask("a", "PURGE", "/x.cgi?404", 5);
    ask("a", "PROPFIND", "/x.cgi?503", 1);
    ask("b.example", "GET", "/none", 6);
    for (labels, expected) in [
        ("site=\"0\",handler=\"file\",status=\"2xx\"", 3.0),
        ("site=\"0\",handler=\"own\",status=\"2xx\"", 1.0),
        ("site=\"0\",handler=\"own\",status=\"3xx\"", 2.0),
        ("site=\"0\",handler=\"error\",status=\"4xx\"", 4.0),
        ("site=\"0\",handler=\"app\",status=\"2xx\"", 2.0),
        ("site=\"0\",handler=\"app\",status=\"4xx\"", 5.0),
        ("site=\"0\",handler=\"app\",status=\"5xx\"", 1.0),
        ("site=\"1\",handler=\"error\",status=\"4xx\"", 6.0),
    ] {
        setup.page_with("amped_responses_total", labels, expected);
    }
    // Unknown methods add no sample.
    assert_eq!(setup.page().sum("amped_responses_total", ""), 24.0);
    assert_eq!(setup.page().samples.iter().filter(|((_, labels), _)| labels.contains("PURGE")).count(), 0);
}

#[test]
fn phase_times_do_not_exceed_total() {
    let site = Site::new();
    site.file("small", pattern(2000));
    let_files_settle();
    let setup = setup(&site, &format!("[log]\naccess = {:?}\n", site.path().join("access.log")));
    let begun = std::time::Instant::now();
    let mut client = setup.server.connect();
    let sent = 1000;
    (0..sent).for_each(|_| assert_eq!(client.get("/small").status, 200));
    let elapsed = begun.elapsed().as_secs_f64();
    let page = setup.page_with("amped_replies_total", "", f64::from(sent));
    let class = "size=\"<10K\",kind=\"static\"";
    let timed = page.of("amped_request_phase_seconds_count", &format!("phase=\"parsing\",{class}"));
    // One in 64, and the first.
    assert!((4.0..60.0).contains(&timed), "{timed} of {sent} were timed");
    let mut sum = 0.0;
    for phase in ["waiting", "parsing", "processing", "sending", "logging"] {
        let labels = format!("phase=\"{phase}\",{class}");
        assert_eq!(page.of("amped_request_phase_seconds_count", &labels), timed, "{phase}");
        let seconds = page.of("amped_request_phase_seconds_sum", &labels);
        let cpu = page.of("amped_request_phase_cpu_seconds_total", &labels);
        assert!(cpu <= seconds && seconds > 0.0, "{phase}: {cpu} of {seconds} s");
        sum += seconds;
    }
    // One client sends its requests in sequence, so the sum of all timed phases is less than the elapsed time.
    assert!(sum < elapsed, "{sum} s of {elapsed} s");
    assert!(page.sum("amped_request_phase_seconds_count", "size=\"<1M\"") == 0.0, "no metrics are configured");
}

#[test]
fn aborted_response_counts_only_its_bytes() {
    let site = Site::new();
    site.file("large", pattern(40_000_000));
    let_files_settle();
    let setup = setup(&site, "");
    let mut client = Client::connect_narrow(setup.server.address, 16 * 1024);
    client.send_request("GET", "/large", &[]);
    client.read_head();
    client.read_body(100_000).unwrap();
    // During a response its bytes are counted after each call that sends them; the response is not.
    wait_until("bytes to be counted", || setup.page().of("amped_sent_bytes_total", "") >= 100_000.0);
    let page = setup.page();
    assert_eq!(page.sum("amped_replies_total", ""), 0.0);
    drop(client);
    setup.page_with("amped_connections_broken_total", "", 1.0);
    let page = setup.page();
    let bytes = page.of("amped_reply_body_bytes_total", "size=\"more\",kind=\"static\"");
    assert!((100_000.0..40_000_000.0).contains(&bytes), "{bytes}");
    assert_eq!(page.sum("amped_replies_total", ""), 0.0);
}

#[test]
fn gauges_and_cache_counters_are_published_promptly() {
    let site = Site::new();
    site.file("a", pattern(2000));
    let_files_settle();
    let setup = setup(&site, one_set_of_caches());
    let mut client = setup.server.connect();
    (0..10).for_each(|_| assert_eq!(client.get("/a").status, 200));
    // One miss, with the empty cache.
    setup.page_with("amped_cache_hits_total", "cache=\"path\"", 9.0);
    let page = setup.page_with("amped_connections", "", 1.0);
    assert_eq!(page.of("amped_cache_misses_total", "cache=\"path\""), 1.0);
    assert_eq!(page.of("amped_cache_entries", "cache=\"path\""), 1.0);
    let held = page.of("amped_cache_held_bytes", "cache=\"body\"");
    assert!((2000.0..3000.0).contains(&held), "{held}");
    assert_eq!(page.of("amped_connections_accepted_total", ""), 1.0);
    assert_eq!(page.of("amped_request_hits_total", ""), 9.0);
    assert!(page.of("amped_loop_turns_total", "") >= 10.0 && page.of("amped_loop_busy_seconds_total", "") > 0.0);
    drop(client);
    wait_until("the connection to close", || setup.page().of("amped_connections", "") == 0.0);
    wait_until("its memory to be released", || {
        let page = setup.page();
        page.of("amped_connection_bytes", "") < 100_000.0
    });
}

#[test]
fn blocking_operations_are_counted_by_cause() {
    let site = Site::new();
    site.file("folder/a", pattern(2000));
    let_files_settle();
    let setup = setup_by(Server::with_site, &site, "listing = true");
    let has_helpers = matches!(architecture(), None | Some("amped"));
    let with_helpers = |count: f64| if has_helpers { count } else { 0.0 };
    assert_eq!(setup.get("/folder/"), 200);
    let list = "cause=\"list\"";
    let page = setup.page_with("amped_replies_total", "kind=\"dynamic\"", 1.0);
    wait_until("the listing to be counted", || setup.page().of("amped_helper_tasks_total", list) == with_helpers(1.0));
    assert_eq!(setup.page().of("amped_helper_wait_seconds_total", list) > 0.0, has_helpers);
    assert_eq!(page.of("amped_helper_queue", ""), 0.0);
    // The server waits for a new file until it no longer changes; on a busy machine that may be before the request.
    let mut fresh = 0;
    wait_until("a request for a file that is being written", || {
        fresh += 1;
        site.file(&format!("fresh-{fresh}"), "x");
        assert_eq!(setup.get(&format!("/fresh-{fresh}")), 200);
        setup.page().of("amped_probe_misses_total", "of=\"change\"") > 0.0
    });
    wait_until("the helper tasks to be counted", || {
        let page = setup.page();
        let [tasks, seconds] = ["amped_helper_tasks_total", "amped_helper_wait_seconds_total"];
        let of = |name: &str| page.of(name, "cause=\"change\"");
        (of(tasks) > 0.0 && of(seconds) > 0.0) == has_helpers
    });
}

#[test]
fn exporter_accepts_only_get_of_one_page() {
    let site = Site::new();
    site.file("index.html", "x");
    let setup = setup(&site, "");
    let status = |method: &str, target: &str| Client::connect(setup.exporter).request(method, target, &[]).status;
    assert_eq!([status("GET", "/metrics"), status("HEAD", "/metrics")], [200, 200]);
    assert_eq!([status("GET", "/"), status("POST", "/metrics")], [404, 405]);
    let mut silent = Client::connect(setup.exporter);
    silent.send("GET /metrics HTTP/1.1\r\nHo");
    assert_eq!(status("GET", "/metrics"), 200, "an incomplete request of another client blocks the endpoint");
    silent.send("st: a\r\n\r\n");
    assert_eq!(silent.response("GET").status, 200);
    assert!(silent.ends(), "the connection persists");
    let mut wrong = Client::connect(setup.exporter);
    wrong.send("no request at all\r\n\r\n");
    assert_eq!(wrong.response("GET").status, 400);
    // None of these was a request of the site.
    assert_eq!(setup.page().of("amped_requests_total", ""), 0.0);
}

#[test]
fn killed_process_keeps_its_counts() {
    let site = Site::new();
    site.file("a", pattern(2000));
    let_files_settle();
    if !has_processes() {
        return a_server_that_is_killed(&site);
    }
    let setup = setup(&site, "workers = 3\n");
    let mut sent = 0;
    for round in 0..3 {
        let mut client = setup.server.connect();
        for _ in 0..10 + round {
            assert_eq!(client.get("/a").status, 200);
            sent += 1;
        }
        // A request is counted before its response is sent, so the figures are final:
        let children = setup.server.children();
        let victim = children[round % children.len()].to_string();
        assert!(Command::new("kill").args(["-KILL", &victim]).status().unwrap().success());
        let page = setup.page();
        assert_eq!(page.of("amped_requests_total", ""), f64::from(sent));
        drop(client);
        wait_until("a replacement process", || setup.server.children().len() == 3);
    }
    let page = setup.page();
    // A process may have been killed after the last byte of its last response and before counting it, but not earlier.
    let replies = page.sum("amped_replies_total", "");
    assert!((f64::from(sent) - 3.0..=f64::from(sent)).contains(&replies), "{replies} of {sent}");
    wait_until("the gauges of exited processes to be removed", || setup.page().of("amped_connections", "") == 0.0);
}

#[test]
fn truncated_metrics_file_affects_no_response() {
    let site = Site::new();
    site.file("a", pattern(2000));
    let_files_settle();
    let setup = setup(&site, "workers = 3\n");
    let processes = setup.server.pids();
    let mut client = setup.server.connect();
    assert_eq!(client.get("/a").status, 200);
    fs::OpenOptions::new().write(true).open(&setup.file).unwrap().set_len(0).unwrap();
    for _ in 0..20 {
        assert_eq!(client.get("/a").status, 200);
        assert_eq!(setup.server.get("/a").status, 200);
    }
    assert_eq!(setup.server.pids(), processes, "{}", setup.server.said());
    if !has_processes() {
        setup.server.wait_for("another program truncated the metrics file");
    }
    // Metrics over HTTP continue.
    assert!(setup.page().of("amped_requests_total", "") > 0.0 || has_processes());
}

/// Checks that the file keeps its counts after the server is killed. With loops as threads, the death of one is that of
/// the server.
fn a_server_that_is_killed(site: &Site) {
    let setup = setup(site, "");
    let mut client = setup.server.connect();
    (0..25).for_each(|_| assert_eq!(client.get("/a").status, 200));
    let before = fs::read(&setup.file).unwrap();
    setup.server.signal("KILL");
    wait_until("the server to exit", || std::net::TcpStream::connect(setup.server.address).is_err());
    let after = fs::read(&setup.file).unwrap();
    assert_eq!((first_figure(&before), first_figure(&after)), (25, 25));
}

/// The first figure, summed over all slots, in the layout of docs/metrics-file.md.
fn first_figure(file: &[u8]) -> u64 {
    let word = |at: usize| u64::from_ne_bytes(file[8 * at..8 * at + 8].try_into().unwrap());
    assert_eq!((&file[..8], word(1)), (&b"AMPEDMET"[..], 1));
    let [head, slot, slots, figures_at] = [2, 3, 4, 12].map(|at| word(at) as usize);
    (0..slots).map(|number| word((head + number * slot + figures_at) / 8)).sum()
}

#[test]
fn reload_keeps_sums() {
    let site = Site::new();
    site.file("a", pattern(2000));
    let_files_settle();
    let setup = setup(&site, if is_pool() { "workers = 2\n" } else { "" });
    let mut sent = 0;
    for _ in 0..4 {
        // Each request on a connection of its own: a retiring worker closes its connection after the response.
        for _ in 0..5 {
            assert_eq!(setup.get("/a"), 200);
            sent += 1;
        }
        let before = setup.server.said().len();
        setup.server.signal("HUP");
        wait_until("the reload", || setup.server.said()[before..].contains("is in force"));
    }
    let page = setup.page_with("amped_requests_total", "", f64::from(sent));
    assert_eq!(page.sum("amped_replies_total", ""), f64::from(sent));
}

#[test]
fn all_loops_are_summed_under_concurrent_scrapes() {
    let site = Site::new();
    site.file("a", pattern(2000));
    let_files_settle();
    let setup = setup(&site, if is_pool() { "workers = 8\n" } else { "workers = 2\n" });
    let (clients, each) = (8, 200);
    thread::scope(|scope| {
        for _ in 0..clients {
            scope.spawn(|| {
                let mut client = setup.server.connect();
                (0..each).for_each(|_| assert_eq!(client.get("/a").body.len(), 2000));
            });
        }
        // Sums never decrease while they are read.
        let mut last = 0.0;
        for _ in 0..50 {
            let now = setup.page().of("amped_requests_total", "");
            assert!(now >= last, "{now} after {last}");
            last = now;
            thread::sleep(Duration::from_millis(1));
        }
    });
    let total = f64::from(clients * each);
    let page = setup.page_with("amped_replies_total", "", total);
    assert_eq!(page.of("amped_requests_total", ""), total);
    assert_eq!(page.sum("amped_reply_body_bytes_total", ""), 2000.0 * total);
}

#[test]
fn metrics_are_off_by_default() {
    let site = Site::new();
    site.file("a", pattern(10));
    let server = Server::serve(&site);
    assert_eq!(server.get("/a").status, 200);
    assert!(!server.said().contains("metrics"));
    let maps = fs::read_to_string(format!("/proc/{}/maps", server.pid())).unwrap();
    assert!(!maps.lines().any(|line| line.contains("rw-s") && line.contains("metrics")), "{maps}");
}

/// Invalid settings are reported with a remedy before the server starts to serve.
#[test]
fn invalid_metrics_settings_are_rejected_at_start() {
    let site = Site::new();
    site.file("a", "x");
    let refused = |flags: &[&str], says: &str| {
        let mut command = program();
        command.arg("serve").arg(site.path()).args(["--listen", "127.0.0.1:0"]).args(flags);
        let ended = run_command(command);
        assert!(ended.status != 0 && ended.stderr.contains(says), "{flags:?}: {}", ended.stderr);
    };
    refused(&["--metrics-listen", "0.0.0.0:9145"], "would be accessible to other machines");
    refused(&["--metrics-listen", "9145"], "127.0.0.1:9145");
    let on_disk = Site::on_disk();
    let path = on_disk.path().join("metrics");
    refused(&["--metrics-file", path.to_str().unwrap()], "/dev/shm");
    let setup = setup(&site, "");
    refused(&["--metrics-file", setup.file.to_str().unwrap()], "a running server uses it");
    assert_eq!(setup.page().of("amped_requests_total", ""), 0.0);
    // After it ends, the next server takes over the name and starts at zero.
    let file = setup.file.clone();
    assert_eq!(setup.get("/a"), 200);
    setup.page_with("amped_replies_total", "", 1.0);
    let Setup { mut server, _folder, .. } = setup;
    server.signal("TERM");
    server.wait();
    assert_eq!(first_figure(&fs::read(&file).unwrap()), 1);
    let mut command = program();
    command.arg("serve").arg(site.path()).args(["--listen", "127.0.0.1:0", "--metrics-file", file.to_str().unwrap()]);
    let server = Server::spawn(command);
    assert_eq!(first_figure(&fs::read(&file).unwrap()), 0);
    assert_eq!(server.get("/a").status, 200);
    wait_until("its first request", || first_figure(&fs::read(&file).unwrap()) == 1);
}
