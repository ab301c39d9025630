//! The access log: one line per request, parsable whatever a client sends. The server never loses a line silently, and
//! only if it cannot write it.

use std::collections::{BTreeMap, HashSet};
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, lchown, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::harness::*;

/// A line in Common or Combined format, with escapes decoded.
#[derive(Debug, PartialEq)]
struct Line {
    client: String,
    request: Vec<u8>,
    status: u16,
    bytes: u64,
    /// Referer and User-Agent, in Combined.
    agent: Option<(Vec<u8>, Vec<u8>)>,
}

/// Removes `text` from the front.
fn skip<'a>(line: &'a str, text: &str) -> &'a str {
    line.strip_prefix(text).unwrap_or_else(|| panic!("{text:?} is not at the start of {line:?}"))
}

/// Removes a quoted string from the front. It may contain only printable ASCII and `\xHH`.
fn quoted(line: &str) -> (Vec<u8>, &str) {
    let (text, rest) = skip(line, "\"").split_once('"').expect("a closing quote");
    assert!(text.bytes().all(|b| (0x20..0x7f).contains(&b)), "{text:?}");
    let mut parts = text.split('\\');
    let mut bytes = parts.next().unwrap().as_bytes().to_vec();
    for part in parts {
        let hex = skip(part, "x");
        bytes.push(u8::from_str_radix(&hex[..2], 16).unwrap());
        bytes.extend_from_slice(&hex.as_bytes()[2..]);
    }
    (bytes, rest)
}

/// Parses a line strictly.
fn parse(line: &str) -> Line {
    let (client, rest) = line.split_once(" - - [").unwrap_or_else(|| panic!("{line:?}"));
    client.parse::<std::net::IpAddr>().unwrap();
    let (stamp, rest) = rest.split_once("] ").unwrap();
    // 10/Oct/2000:13:55:36 -0700
    let shape: String = stamp.chars().map(|c| if c.is_ascii_digit() { '9' } else { c }).collect();
    let month = shape.get(3..6).unwrap();
    assert!("JanFebMarAprMayJunJulAugSepOctNovDec".contains(month), "{stamp}");
    assert_eq!(shape.replace(month, "Oct").replace('+', "-"), "99/Oct/9999:99:99:99 -9999");
    let (request, rest) = quoted(rest);
    let (status, rest) = skip(rest, " ").split_once(' ').unwrap();
    let (bytes, rest) = rest.split_once(' ').unwrap_or((rest, ""));
    let bytes = if bytes == "-" { 0 } else { bytes.parse().unwrap() };
    let agent = (!rest.is_empty()).then(|| {
        let (referer, rest) = quoted(rest);
        let (agent, rest) = quoted(skip(rest, " "));
        assert_eq!(rest, "");
        (referer, agent)
    });
    Line { client: client.to_owned(), request, status: status.parse().unwrap(), bytes, agent }
}

#[test]
fn template_is_filled_with_escaped_values() {
    let (site, logs) = (Site::new(), Site::new());
    site.file("a", "hello");
    let log = logs.path().join("log");
    let template = "<$remote_addr> $remote_user [$time_local] $host/$scheme \\\"$request\\\" ${status}x $body_bytes_sent $bytes_sent $request_time \
                    \\\"$http_referer\\\" \\\"$http_user_agent\\\" $upstream_addr $upstream_cache_status";
    let config = format!("[log]\naccess = {log:?}\nflush = '10ms'\nformat = \"{template}\"");
    let server = Server::with_site(&site, &config);
    let mut client = server.connect();
    let fields = [("Host", "b.example"), ("User-Agent", "a \"b\"\tc"), ("Referer", "http://\u{e4}/")];
    let response = client.request("GET", "/a?\"b", &fields);
    let line = wait_for_lines(&log, 1).remove(0);
    let (client, rest) = line.split_once("> - [").unwrap();
    assert!(client.strip_prefix('<').unwrap().parse::<std::net::IpAddr>().is_ok(), "{line}");
    let (stamp, rest) = rest.split_once("] ").unwrap();
    assert_eq!(stamp.len(), "10/Oct/2000:13:55:36 -0700".len(), "{line}");
    let scheme = if is_secure() { "https" } else { "http" };
    let version = if is_http2() { "HTTP/2.0" } else { "HTTP/1.1" };
    let rest = skip(rest, &format!("b.example/{scheme} \"GET /a?\\x22b {version}\" 200x 5 "));
    let numbers: Vec<&str> = rest.splitn(3, ' ').collect();
    assert!(numbers[0].parse::<usize>().unwrap() > response.body.len() + 100, "{line}");
    let (seconds, thousandths) = numbers[1].split_once('.').unwrap();
    assert!(seconds.parse::<u64>().unwrap() < 10 && thousandths.len() == 3, "{line}");
    let rest = skip(numbers[2], "\"http://\\xC3\\xA4/\" \"a \\x22b\\x22\\x09c\" - ");
    assert!(["probe", "helper"].contains(&rest), "{line}");
}

#[test]
fn listed_fields_become_json_of_each_line() {
    let (site, logs) = (Site::new(), Site::new());
    let script = site.file("run.cgi", "#!/bin/sh\nprintf 'Content-Type: text/plain\\n\\nran'");
    fs::set_permissions(script, fs::Permissions::from_mode(0o755)).unwrap();
    let log = logs.path().join("log");
    let config = format!(
        "[[site.app]]\nmatch = '*.cgi'\ncgi = true\n[log]\naccess = {log:?}\nflush = '10ms'\n\
         format = ['time_iso8601', 'remote_addr', 'request', 'request_uri', 'status', 'request_time', 'upstream_header_time', 'http_referer', 'ssl_protocol']"
    );
    let server = Server::with_site(&site, &config);
    let mut client = server.connect();
    client.request("GET", "/run.cgi?a=\"\\", &[("Referer", "http://\u{e4}/\u{1f980}")]);
    client.request("GET", "/missing", &[]);
    let lines: Vec<Value> =
        wait_for_lines(&log, 2).iter().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let version = if is_http2() { "HTTP/2.0" } else { "HTTP/1.1" };
    assert_eq!(lines[0]["request_uri"], "/run.cgi?a=\"\\");
    assert_eq!(lines[0]["request"], format!("GET /run.cgi?a=\"\\ {version}"));
    assert_eq!((&lines[0]["status"], &lines[0]["http_referer"]), (&200.into(), &"http://\u{e4}/\u{1f980}".into()));
    assert!(lines[0]["upstream_header_time"].as_f64() <= lines[0]["request_time"].as_f64(), "{}", lines[0]);
    assert!(lines[0]["upstream_header_time"].is_f64() && lines[1]["upstream_header_time"].is_null());
    assert_eq!((&lines[1]["status"], &lines[1]["http_referer"]), (&404.into(), &Value::Null));
    assert_eq!(lines[1]["ssl_protocol"].is_null(), !is_secure());
    assert!(lines.iter().all(|line| line.as_object().unwrap().len() == 9));
    let text = fs::read_to_string(&log).unwrap();
    assert!(text.lines().all(|line| line.starts_with("{\"time_iso8601\":\"20")), "{text}");
}

#[test]
fn unlogged_requests_are_omitted() {
    let (site, logs) = (Site::new(), Site::new());
    site.file("health", "well");
    site.file("a", "a");
    let log = logs.path().join("log");
    let tables = format!(
        "[[site.unlogged]]\nmatch = '/health'\n[[site.unlogged]]\nmatch = '*.ico'\nerrors = true\n\
         [[site.unlogged]]\nmatch = '**'\nwhen = {{ header = {{ User-Agent = 'probe*' }} }}\n[log]\naccess = {log:?}\nflush = '10ms'"
    );
    let server = Server::with_site(&site, &tables);
    let mut client = server.connect();
    for (method, target, agent) in [
        ("GET", "/health", "x"),
        ("POST", "/health", "x"),
        ("GET", "/favicon.ico", "x"),
        ("GET", "/a", "probe/1"),
        ("GET", "/missing", "probe/1"),
        ("GET", "/a", "x"),
    ] {
        client.request(method, target, &[("User-Agent", agent)]);
    }
    let logged: Vec<String> =
        wait_for_lines(&log, 3).iter().map(|line| String::from_utf8(parse(line).request).unwrap()).collect();
    let targets: Vec<&str> = logged.iter().map(|request| request.rsplit_once(' ').unwrap().0).collect();
    assert_eq!(targets, ["POST /health", "GET /missing", "GET /a"]);
}

/// All lines of a file; asserts that each is complete.
fn lines(path: &Path) -> Vec<String> {
    let text = fs::read_to_string(path).unwrap();
    assert!(text.is_empty() || text.ends_with('\n'), "the last line is incomplete: {text:?}");
    text.lines().map(str::to_owned).collect()
}

fn wait_for_lines(path: &Path, count: usize) -> Vec<String> {
    // Complete lines only: the file may be read during a write.
    wait_until(&format!("{count} lines in the log"), || {
        fs::read_to_string(path).is_ok_and(|text| text.matches('\n').count() >= count)
    });
    lines(path)
}

/// A site, and a log in a directory of its own.
struct Place {
    site: Site,
    logs: Site,
}

impl Place {
    fn new() -> Place {
        let site = Site::new();
        site.file("a.txt", "hello");
        site.file("folder/b.txt", "hello");
        Place { site, logs: Site::new() }
    }

    fn log(&self) -> PathBuf {
        self.logs.path().join("access.log")
    }

    fn start(&self, keys: &str) -> Server {
        Server::configured(&self.site, &format!("[log]\naccess = {:?}\n{keys}", self.log().to_str().unwrap()))
    }
}

const SOON: &str = "flush = \"50ms\"\n";

#[test]
fn common_and_combined_log_formats_have_standard_fields() {
    for format in ["common", "combined"] {
        let place = Place::new();
        let server = place.start(&format!("{SOON}format = \"{format}\""));
        let mut client = server.connect();
        client.get("/a.txt?x=1");
        client.request("HEAD", "/a.txt", &[("Referer", "http://x.test/"), ("User-Agent", "test/1.0 (a; b)")]);
        client.request("GET", "/a.txt", &[("Range", "bytes=1-2")]);
        client.get("/none");
        client.request("POST", "/a.txt", &[]);
        let found: Vec<Line> = wait_for_lines(&place.log(), 5).iter().map(|line| parse(line)).collect();
        let requests: Vec<_> = found.iter().map(|line| String::from_utf8(line.request.clone()).unwrap()).collect();
        let targets = ["GET /a.txt?x=1", "HEAD /a.txt", "GET /a.txt", "GET /none", "POST /a.txt"];
        assert_eq!(requests, targets.map(|target| format!("{target} HTTP/1.1")));
        assert_eq!(found.iter().map(|line| line.status).collect::<Vec<_>>(), [200, 200, 206, 404, 405]);
        assert_eq!(found.iter().map(|line| line.bytes).collect::<Vec<_>>()[..3], [5, 0, 2]);
        assert!(found[3].bytes > 100, "the error page has no body");
        assert!(found.iter().all(|line| line.client == "127.0.0.1"));
        let text = |text: &str| text.as_bytes().to_vec();
        let given = (text("http://x.test/"), text("test/1.0 (a; b)"));
        let none = (text("-"), text("-"));
        let expected = [None, Some(given), None, None, None].map(|agent| agent.unwrap_or(none.clone()));
        let expected = expected.map(|agent| (format == "combined").then_some(agent));
        assert_eq!(found.into_iter().map(|line| line.agent).collect::<Vec<_>>(), expected);
    }
}

#[test]
fn json_log_has_host_duration_and_cache_status() {
    let place = Place::new();
    let server = place.start(&format!(
        "{SOON}format = \"json\"\n[[site]]\nroot = {:?}\nlisting = true\nhosts = [\"x.test\"]",
        place.site.path()
    ));
    let mut client = server.connect();
    let_files_settle();
    client.request("GET", "/a.txt?x=1", &[("Host", "X.test:80"), ("Referer", "http://y.test/"), ("User-Agent", "me")]);
    client.request("GET", "/a.txt", &[("Host", "x.test")]);
    client.request("GET", "/folder/", &[("Host", "x.test")]);
    client.request("OPTIONS", "/a.txt", &[]);
    client.get("/none");
    let text = wait_for_lines(&place.log(), 5);
    let found: Vec<BTreeMap<String, Value>> = text.iter().map(|line| serde_json::from_str(line).unwrap()).collect();
    let keys = |line: &BTreeMap<String, Value>| line.keys().cloned().collect::<Vec<_>>().join(" ");
    assert_eq!(
        keys(&found[0]),
        "body_bytes cache client host method protocol referer status target time took_us user_agent"
    );
    // Each key once: a map would hide a repeated one.
    for key in found[0].keys() {
        assert_eq!(text[0].matches(&format!("\"{key}\":")).count(), 1, "{}", text[0]);
    }
    assert_eq!(keys(&found[1]), "body_bytes cache client host method protocol status target time took_us");
    let of = |key: &str| found.iter().map(|line| line[key].clone()).collect::<Vec<_>>();
    assert_eq!(of("target"), ["/a.txt?x=1", "/a.txt", "/folder/", "/a.txt", "/none"]);
    assert_eq!(of("method"), ["GET", "GET", "GET", "OPTIONS", "GET"]);
    assert_eq!(of("status"), [200, 200, 200, 204, 404]);
    assert_eq!(of("host")[1..], ["x.test", "x.test", "localhost", "localhost"]);
    assert_eq!(of("body_bytes")[..2], [5, 5]);
    // The lookup of a file does not block if the kernel has its name cached. A helper reads a directory, if there are
    // helpers; otherwise the loop reads it at once, however long that takes.
    let reader = if matches!(architecture(), Some("amped")) { "helper" } else { "probe" };
    assert!(["probe", reader].contains(&of("cache")[0].as_str().unwrap()), "{:?}", of("cache"));
    assert_eq!(of("cache")[1..], ["hit", reader, "none", "none"]);
    assert_eq!((&found[0]["referer"], &found[0]["user_agent"]), (&"http://y.test/".into(), &"me".into()));
    assert!(of("took_us").iter().all(|time| (1..60_000_000).contains(&time.as_u64().unwrap())), "{:?}", of("took_us"));
    // 2026-01-31T12:00:00+01:00
    let shape = |text: &str| text.chars().map(|c| if c.is_ascii_digit() { '9' } else { c }).collect::<String>();
    assert_eq!(shape(found[0]["time"].as_str().unwrap()).replace('-', "+"), "9999+99+99T99:99:99+99:99");
}

#[test]
fn any_request_is_logged_as_one_line() {
    let hostile: [&[u8]; 6] =
        [b"\"", b"\\", b"\\x22", b"\" 200 5 \"", "\u{e9}\u{1f600}\u{2028}".as_bytes(), b"\xff\xc3(\x80"];
    for format in ["common", "combined", "json"] {
        let place = Place::new();
        let server = place.start(&format!("{SOON}format = \"{format}\""));
        let mut client = server.connect();
        for text in hostile {
            let mut request = b"GET /a.txt HTTP/1.1\r\nHost: localhost\r\nReferer: ".to_vec();
            request.extend([text, b"\tx", b"\r\nUser-Agent: ", text, b"\r\n\r\n"].concat());
            client.send(request);
            assert_eq!(client.response("GET").status, 200, "{text:?}");
        }
        // The workers of a pool write in no common order.
        wait_for_lines(&place.log(), hostile.len());
        // In a target or a method, most of these are refused; each request still produces exactly one line.
        let mut bad: Vec<Vec<u8>> = hostile.iter().map(|text| [b"GET /", *text, b" HTTP/1.1"].concat()).collect();
        bad.extend([
            b"GET /\x00\x01\x1b[31m\x7f HTTP/1.1".to_vec(),
            b"GET /a\rb HTTP/1.1".to_vec(),
            b"{\"a\": 1}\t\x0b".to_vec(),
        ]);
        for line in &bad {
            let mut client = server.connect();
            client.send([line.as_slice(), b"\r\nHost: localhost\r\n\r\n"].concat());
            assert!(client.response("GET").status >= 400, "{line:?}");
        }
        let count = hostile.len() + bad.len();
        let found = wait_for_lines(&place.log(), count);
        assert_eq!(found.len(), count, "{found:#?}");
        for (n, line) in found.iter().enumerate() {
            let sent = hostile.get(n).map(|text| [*text, b"\tx"].concat());
            if format == "json" {
                let line: BTreeMap<String, Value> = serde_json::from_str(line).unwrap();
                assert!(line["status"].is_u64());
                if let Some(sent) = sent {
                    assert_eq!(line["referer"], String::from_utf8_lossy(&sent).into_owned());
                }
            } else {
                let line = parse(line);
                if let (Some(sent), Some((referer, agent))) = (sent, line.agent) {
                    assert_eq!((referer, agent), (sent, hostile[n].to_vec()));
                }
            }
        }
    }
}

#[test]
fn refused_and_incomplete_requests_are_logged() {
    let place = Place::new();
    let server = place.start(&format!(
        "{SOON}[limits]\nheader_timeout = \"200ms\"\nmax_body_bytes = 10\nmax_request_line_bytes = 100"
    ));
    let mut said = 0;
    let mut say = |bytes: &[u8]| {
        let mut client = server.connect();
        client.send(bytes);
        let status = client.response("GET").status;
        // The workers of a pool write in no common order.
        said += 1;
        wait_for_lines(&place.log(), said);
        status
    };
    assert_eq!(say(b"no request\r\n\r\n"), 400);
    assert_eq!(say(b"GET /half HTTP/1.1\r\nHost: x"), 408);
    assert_eq!(say(format!("GET /{} HTTP/1.1\r\n\r\n", "long".repeat(100)).as_bytes()), 414);
    assert_eq!(say(b"GET /body HTTP/1.1\r\nHost: x\r\nContent-Length: 11\r\n\r\n"), 413);
    // A connection without a byte is not a request.
    assert!(server.connect().is_closed());
    let found: Vec<Line> = wait_for_lines(&place.log(), 4).iter().map(|line| parse(line)).collect();
    assert_eq!(found.iter().map(|line| line.status).collect::<Vec<_>>(), [400, 408, 414, 413]);
    let begins = ["no request", "GET /half HTTP/1.1", "GET /longlong", "GET /body HTTP/1.1"];
    for (line, begin) in found.iter().zip(begins) {
        assert!(line.request.starts_with(begin.as_bytes()), "{line:?}");
    }
}

#[test]
fn aborted_download_is_logged_with_bytes_sent() {
    let place = Place::new();
    File::create(place.site.path().join("huge.bin")).unwrap().set_len(64 << 20).unwrap();
    let server = place.start(SOON);
    let mut client = Client::connect_narrow(server.address, 64 * 1024);
    client.send_request("GET", "/huge.bin", &[]);
    client.stream().read_exact(&mut vec![0; 1 << 20]).unwrap();
    drop(client);
    let line = parse(&wait_for_lines(&place.log(), 1)[0]);
    assert_eq!((line.status, line.request), (200, b"GET /huge.bin HTTP/1.1".to_vec()));
    // At least the received bytes without the head; more were in buffers.
    assert!((1 << 20) - 1000 < line.bytes && line.bytes < 64 << 20, "{}", line.bytes);
    assert_eq!(server.report("connections_broken"), 1);
}

#[test]
fn interim_response_is_not_counted_as_body() {
    let place = Place::new();
    let server = place.start("format = 'common'\nflush = '10ms'");
    let mut client = server.connect();
    for _ in 0..2 {
        client.send_request("GET", "/a.txt", &[("Expect", "100-continue"), ("Content-Length", "3")]);
        assert_eq!(client.response("GET").status, 100);
        // Another response is sent in between.
        assert_eq!(server.get("/a.txt").status, 200);
        client.send("abc");
        assert_eq!(client.response("GET").status, 200);
    }
    let lines = wait_for_lines(&place.log(), 4);
    let length = server.get("/a.txt").body.len();
    assert!(lines.iter().all(|line| line.ends_with(&format!(" 200 {length}"))), "{lines:?}");
}

#[test]
fn lines_are_flushed_after_delay_without_further_request() {
    let place = Place::new();
    let server = place.start("flush = \"300ms\"");
    let begin = Instant::now();
    assert_eq!(server.get("/a.txt").status, 200);
    assert_eq!(wait_for_lines(&place.log(), 1).len(), 1);
    assert!(begin.elapsed() >= Duration::from_millis(300), "not gathered");
}

#[test]
fn lines_are_buffered_up_to_limit_and_written_whole() {
    let place = Place::new();
    let server = place.start("flush = \"1h\"\nbuffer = \"4KiB\"");
    let mut client = server.connect();
    let mut requests = 0;
    // About 90 bytes a line.
    for _ in 0..20 {
        client.get(&format!("/a.txt?{requests:010}"));
        requests += 1;
    }
    assert_eq!(lines(&place.log()).len(), 0);
    for _ in 0..80 {
        client.get(&format!("/a.txt?{requests:010}"));
        requests += 1;
    }
    let text = wait_for_lines(&place.log(), 40);
    assert!(text.len() < requests, "not gathered");
    for (n, line) in text.iter().enumerate() {
        assert_eq!(parse(line).request, format!("GET /a.txt?{n:010} HTTP/1.1").into_bytes());
    }
}

#[test]
fn rotated_log_is_reopened_without_losing_a_line() {
    let place = Place::new();
    let server = place.start("flush = \"20ms\"\nbuffer = \"2KiB\"");
    let done = AtomicBool::new(false);
    let mut rotated = Vec::new();
    let sent: Vec<String> = thread::scope(|scope| {
        let stop = SetOnDrop(&done);
        let (done, server) = (&done, &server);
        let clients = ["x", "y"].map(|name| {
            scope.spawn(move || {
                let mut client = server.connect();
                let mut sent = Vec::new();
                while !done.load(Ordering::Relaxed) {
                    let target = format!("/a.txt?{name}{}", sent.len());
                    assert_eq!(client.get(&target).status, 200);
                    sent.push(format!("GET {target} HTTP/1.1"));
                }
                sent
            })
        });
        for n in 0..5 {
            wait_for_lines_or_more(&place.log());
            let old = place.logs.path().join(format!("access.log.{n}"));
            fs::rename(place.log(), &old).unwrap();
            server.signal("USR1");
            wait_until("the reopened log", || place.log().exists());
            rotated.push(old);
        }
        wait_for_lines_or_more(&place.log());
        drop(stop);
        clients.into_iter().flat_map(|client| client.join().unwrap()).collect()
    });
    let mut server = server;
    server.signal("TERM");
    assert_eq!(server.wait().code(), Some(0));
    rotated.push(place.log());
    let mut found = Vec::new();
    for file in &rotated {
        let text = lines(file);
        assert!(!text.is_empty());
        found.extend(text.iter().map(|line| String::from_utf8(parse(line).request).unwrap()));
    }
    // Each once.
    assert_eq!(found.len(), sent.len());
    assert_eq!(found.into_iter().collect::<HashSet<_>>(), sent.into_iter().collect::<HashSet<_>>());
    assert_eq!(figure_in(&server.said(), "log_lines_lost"), 0);
}

fn wait_for_lines_or_more(path: &Path) {
    wait_until("20 log lines", || fs::read_to_string(path).is_ok_and(|text| text.matches('\n').count() > 20));
}

#[test]
fn log_that_cannot_be_reopened_continues_in_old_file() {
    let place = Place::new();
    let server = place.start(SOON);
    server.get("/a.txt?1");
    wait_for_lines(&place.log(), 1);
    let old = place.logs.path().join("old");
    fs::rename(place.log(), &old).unwrap();
    fs::create_dir(place.log()).unwrap();
    server.signal("USR1");
    server.wait_for("cannot reopen the log");
    assert!(server.said().contains("still writing to the old file"), "{}", server.said());
    server.get("/a.txt?2");
    wait_for_lines(&old, 2);
    fs::remove_dir(place.log()).unwrap();
    server.signal("USR1");
    wait_until("the reopened log", || place.log().is_file());
    server.get("/a.txt?3");
    wait_for_lines(&place.log(), 1);
}

/// A file system of 64 KiB, unmounted when dropped, even if the test fails.
struct TinyDisk<'a>(&'a Path);

impl TinyDisk<'_> {
    fn mount(folder: &Path) -> TinyDisk<'_> {
        need_root("mounts a file system of 64 KiB");
        let status =
            Command::new("mount").args(["-t", "tmpfs", "-o", "size=64k", "tmpfs"]).arg(folder).status().unwrap();
        assert!(status.success(), "cannot mount: a container needs CAP_SYS_ADMIN for it");
        TinyDisk(folder)
    }
}

impl Drop for TinyDisk<'_> {
    fn drop(&mut self) {
        // A lazy unmount: a server that still runs may have a file open on it.
        let _ = Command::new("umount").arg("-l").arg(self.0).status();
    }
}

#[test]
fn full_disk_loses_counted_lines_and_no_responses() {
    let place = Place::new();
    let disk = TinyDisk::mount(place.logs.path());
    let filler = place.logs.path().join("filler");
    fs::write(&filler, vec![0; 40 << 10]).unwrap();
    let mut server = place.start("flush = \"20ms\"\nbuffer = \"3KiB\"");
    let mut client = server.connect();
    let mut requests = 0;
    let mut ask = |count: usize| {
        for _ in 0..count {
            assert_eq!(client.get(&format!("/a.txt?{requests:0200}")).text(), "hello");
            requests += 1;
        }
        requests
    };
    // 300 bytes a line: 24 KiB are full after 80 lines.
    ask(200);
    let failed = "amped: cannot write the log";
    server.wait_for(failed);
    assert!(server.said().contains("No space left on device"), "{}", server.said());
    ask(100);
    wait_until("lost lines", || server.report("log_lines_lost") > 100);
    assert_eq!(server.said().matches(failed).count(), 1, "logged once");

    fs::remove_file(&filler).unwrap();
    ask(20);
    server.wait_for("amped: writing the log");
    let asked = ask(10);
    server.signal("TERM");
    assert_eq!(server.wait().code(), Some(0));
    let said = server.said();
    let lost = figure_in(&said, "log_lines_lost") as usize;
    // The log's lines are complete, in order, and all except the counted ones.
    let mut found = lines(&place.log());
    if has_processes() {
        // Another process may have written after a torn line, so the server terminates that line instead of truncating
        // it, and counts it as lost.
        found.retain(|line| line.ends_with(" \"-\" \"-\""));
    }
    let numbers: Vec<usize> = found
        .iter()
        .map(|line| {
            let request = String::from_utf8(parse(line).request).unwrap();
            skip(&request, "GET /a.txt?").trim_end_matches(" HTTP/1.1").parse().unwrap()
        })
        .collect();
    assert!(numbers.is_sorted());
    assert_eq!(numbers.last(), Some(&(asked - 1)));
    assert_eq!(found.len() + lost, asked, "{said}");
    drop(disk);
}

#[test]
fn standard_output_receives_log() {
    let place = Place::new();
    let mut server = Server::start(&[place.site.path().to_str().unwrap(), "--access-log", "-", "--log-format", "json"]);
    let mut stdout = server.take_stdout();
    for n in 0..10 {
        server.get(&format!("/a.txt?{n}"));
    }
    server.signal("TERM");
    assert_eq!(server.wait().code(), Some(0));
    let mut text = String::new();
    stdout.read_to_string(&mut text).unwrap();
    let mut targets: Vec<Value> =
        text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()["target"].clone()).collect();
    if is_pool() {
        // Each worker buffers the lines of its own connections, and writes them at its own time.
        targets.sort_by_key(Value::to_string);
    }
    assert_eq!(targets, (0..10).map(|n| format!("/a.txt?{n}")).collect::<Vec<_>>());
}

#[test]
fn closed_log_pipe_affects_no_response() {
    let place = Place::new();
    let config =
        place.site.file("amped.toml", configuration(place.site.path(), "[log]\naccess = \"-\"\nflush = \"20ms\""));
    let mut server = Server::start(&["--config", config.to_str().unwrap()]);
    drop(server.take_stdout());
    server.get("/a.txt");
    server.wait_for("amped: cannot write the log standard output");
    assert_eq!(server.get("/a.txt").text(), "hello");
    wait_until("two lost lines to be counted", || server.report("log_lines_lost") == 2);
}

#[test]
fn unread_log_pipe_blocks_neither_start_nor_stop() {
    let place = Place::new();
    let status = Command::new("mkfifo").arg(place.log()).status().expect("mkfifo (coreutils)");
    assert!(status.success());
    let mut server = place.start(SOON);
    assert_eq!(server.get("/a.txt?1").text(), "hello");
    server.wait_for("amped: cannot write the log");
    let mut reader = BufReader::new(File::open(place.log()).unwrap());
    assert_eq!(server.get("/a.txt?2").text(), "hello");
    let mut line = String::new();
    reader.read_line(&mut line).unwrap();
    assert!(line.contains("\"GET /a.txt?2 HTTP/1.1\" 200 5"), "{line}");
    drop(reader);
    // Reopening does not block either.
    server.signal("USR1");
    server.get("/a.txt?3");
    server.signal("TERM");
    assert_eq!(server.wait().code(), Some(0), "{}", server.said());
}

/// Creates a pipe for the log, and opens it as a reader that never reads.
fn unread_pipe(place: &Place) -> File {
    assert!(Command::new("mkfifo").arg(place.log()).status().expect("mkfifo (coreutils)").success());
    // For reading and writing, so that open(2) does not wait for a writer.
    File::options().read(true).write(true).open(place.log()).unwrap()
}

/// Sends this many requests, each with a log line of more than 1 KiB.
fn ask_at_length(server: &Server, count: usize) {
    let mut client = server.connect();
    for n in 0..count {
        assert_eq!(client.get(&format!("/a.txt?{n}-{}", "x".repeat(1000))).text(), "hello");
    }
}

#[test]
fn blocked_log_reader_loses_lines_and_delays_no_response() {
    // A pipe holds 64 KiB.
    const COUNT: usize = 300;
    for optimise in ["delayed_log = true", "delayed_log = false"] {
        let place = Place::new();
        let mut reader = unread_pipe(&place);
        let config = format!("[log]\nflush = '20ms'\naccess = {:?}\n[optimise]\n{optimise}", place.log());
        let config = place.site.file("amped.toml", configuration(place.site.path(), &config));
        let mut server = Server::start(&["--config", config.to_str().unwrap()]);
        ask_at_length(&server, COUNT);
        if optimise == "delayed_log = false" {
            server.wait_for("its reader has stopped reading; lines are lost");
            assert!(server.report("log_lines_lost") > 100);
        }
        server.signal("TERM");
        assert_eq!(server.wait().code(), Some(0), "{}", server.said());
        // Each line is in the pipe or counted as lost.
        let mut kept = 0;
        let mut text = Vec::new();
        rustix::io::ioctl_fionbio(&reader, true).unwrap();
        let _ = reader.read_to_end(&mut text);
        kept += text.iter().filter(|&&byte| byte == b'\n').count();
        assert!((1..COUNT).contains(&kept), "{kept}");
        server.wait_for("log_lines_lost: ");
        let said = server.said();
        assert_eq!(kept + figure_in(&said, "log_lines_lost") as usize, COUNT, "{optimise}: {said}");
    }
}

#[test]
fn log_off_writes_nothing() {
    let place = Place::new();
    let mut server = Server::start(&[place.site.path().to_str().unwrap(), "--access-log", "off"]);
    let mut stdout = server.take_stdout();
    let before = fs::read_dir(place.site.path()).unwrap().count();
    for _ in 0..10 {
        server.get("/a.txt");
    }
    server.signal("TERM");
    assert_eq!(server.wait().code(), Some(0));
    let mut text = String::new();
    stdout.read_to_string(&mut text).unwrap();
    assert_eq!(text, "");
    assert!(!server.said().contains("GET"), "{}", server.said());
    assert_eq!(fs::read_dir(place.site.path()).unwrap().count(), before);
}

#[test]
fn log_in_missing_directory_fails_at_start() {
    let place = Place::new();
    let log = place.logs.path().join("none/access.log");
    let log = log.to_str().unwrap();
    let ended = run(&["serve", place.site.path().to_str().unwrap(), "--listen", "127.0.0.1:0", "--access-log", log]);
    assert_eq!(ended.status, 1, "{ended:?}");
    assert!(
        ended.stderr.contains(&format!("the directory of the access log {log} does not exist")),
        "{}",
        ended.stderr
    );
    assert!(ended.stderr.contains("create it"), "{}", ended.stderr);
    // An error in the file, with its position.
    let config = place.site.file("amped.toml", format!("root = \".\"\n[log]\naccess = {log:?}\n"));
    let ended = run(&["serve", "--config", config.to_str().unwrap()]);
    assert_eq!(ended.status, 1, "{ended:?}");
    assert!(ended.stderr.contains("amped.toml:3:10: the directory of the access log"), "{}", ended.stderr);
}

#[test]
fn existing_log_is_appended_and_new_one_belongs_to_serving_user() {
    let place = Place::new();
    File::create(place.log()).unwrap().write_all(b"before\n").unwrap();
    let server = place.start(SOON);
    server.get("/a.txt");
    assert_eq!(wait_for_lines(&place.log(), 2)[0], "before");

    need_root("starts a server that becomes nobody");
    let (place, config) = place_of_nobody(Place::log);
    let server = Server::start(&["--config", &config]);
    assert_eq!(fs::metadata(place.log()).unwrap().uid(), 65534);
    server.get("/a.txt");
    wait_for_lines(&place.log(), 1);
}

/// A place that every user may enter, and the configuration of a server that becomes nobody and has this log.
fn place_of_nobody(log: impl Fn(&Place) -> PathBuf) -> (Place, String) {
    let place = Place::new();
    for folder in [place.site.path(), place.logs.path()] {
        fs::set_permissions(folder, fs::Permissions::from_mode(0o755)).unwrap();
    }
    let keys = format!("user = \"nobody\"\n[log]\n{SOON}access = {:?}", log(&place));
    let config = place.site.file("amped.toml", configuration(place.site.path(), &keys));
    (place, config.to_str().unwrap().to_owned())
}

#[test]
fn root_opens_no_log_through_names_that_serving_user_has_made() {
    need_root("starts a server that becomes nobody");
    const NOBODY: Option<u32> = Some(65534);
    let (place, config) = place_of_nobody(Place::log);
    chown(place.logs.path(), NOBODY, NOBODY).unwrap();
    let secret = place.site.file("secret", "of root\n");
    let refuse = |why: &str| {
        let ended = run(&["serve", "--config", &config]);
        assert!(ended.status == 1 && ended.stderr.contains(why), "{ended:?}");
        fs::remove_file(place.log()).unwrap();
    };
    for target in [secret.clone(), place.site.path().join("new")] {
        symlink(target, place.log()).unwrap();
        lchown(place.log(), NOBODY, NOBODY).unwrap();
        refuse("a symbolic link of user 65534, which root does not follow");
    }
    fs::hard_link(&secret, place.log()).unwrap();
    refuse("has other names (hard links), and belongs to user 0");
    assert!(!place.site.path().join("new").exists());
    assert_eq!(fs::read_to_string(secret).unwrap(), "of root\n");
    // A link of root, such as an administrator would create.
    let elsewhere = place.site.path().join("elsewhere");
    symlink(&elsewhere, place.log()).unwrap();
    let server = Server::start(&["--config", &config]);
    server.get("/a.txt");
    wait_for_lines(&elsewhere, 1);
    assert_eq!(fs::metadata(elsewhere).unwrap().uid(), 65534);
}

#[test]
fn devices_of_standard_streams_receive_log_of_server_that_becomes_another_user() {
    need_root("starts a server that becomes nobody");
    let (_place, config) = place_of_nobody(|_| "/dev/stderr".into());
    let server = Server::start(&["--config", &config]);
    server.get("/a.txt");
    server.wait_for("GET /a.txt");
}
