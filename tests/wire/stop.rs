//! Stopping the server, and reloading its configuration: no request in progress is lost.

use std::fs;
use std::io::{ErrorKind, Read};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::harness::*;
use crate::ports::free_addresses;

/// A directory with a site, a second one, and a configuration that a test can rewrite.
struct Place {
    folder: Site,
}

const HUGE: u64 = 64 << 20;

impl Place {
    fn new() -> Place {
        let folder = Site::new();
        folder.file("one/a.txt", "one");
        folder.file("two/a.txt", "two");
        fs::File::create(folder.path().join("one/huge.bin")).unwrap().set_len(HUGE).unwrap();
        Place { folder }
    }

    /// Writes the configuration and returns its path.
    fn configure(&self, toml: &str) -> PathBuf {
        self.folder.file("amped.toml", toml)
    }

    fn start(&self, toml: &str) -> Server {
        Server::start(&["--config", self.configure(toml).to_str().unwrap()])
    }

    /// Writes another configuration, and waits until it is in force.
    fn reload(&self, server: &Server, toml: &str) {
        self.configure(toml);
        let before = server.said().matches(IN_FORCE).count();
        server.signal("HUP");
        wait_until("the reload", || server.said().matches(IN_FORCE).count() > before);
    }

    /// Writes an invalid configuration, waits until it is rejected, and returns the message.
    fn reload_wrong(&self, server: &Server, toml: &str) -> String {
        self.configure(toml);
        let before = server.said().len();
        server.signal("HUP");
        wait_until("the reload to be rejected", || {
            server.said()[before..].contains("keeping the current configuration")
        });
        assert!(!server.said()[before..].contains(IN_FORCE));
        server.said()[before..].to_owned()
    }
}

const IN_FORCE: &str = "the new configuration is in force";

const ONE: &str = "root = \"one\"\nlisten = [\"127.0.0.1:0\"]\n";

fn is_refused(address: SocketAddr) -> bool {
    matches!(TcpStream::connect(address), Err(error) if error.kind() == ErrorKind::ConnectionRefused)
}

/// Begins a download, on a connection that cannot take it all at once.
fn begin_download(server: &Server) -> Client {
    let mut client = Client::connect_narrow(server.address, 64 * 1024);
    client.send_request("GET", "/huge.bin", &[]);
    let mut piece = [0; 16];
    client.stream().read_exact(&mut piece).unwrap();
    assert_eq!(piece, *b"HTTP/1.1 200 OK\r");
    client
}

/// Reads the rest of the download; returns the size of the body.
fn end_download(client: &mut Client) -> std::io::Result<usize> {
    // `begin_download` has read the beginning of the status line.
    let head = client.read_head();
    assert!(head.contains(&format!("Content-Length: {HUGE}\r\n")), "{head}");
    client.read_body(HUGE as usize)
}

/// Asserts what happens to an idle connection at a reload: it stays open, and its thread soon has the new configuration,
/// perhaps later than others. Processes are replaced, and close their idle connections as at a stop.
fn assert_idle_connection_after_reload(client: &mut Client, text: &str) {
    if has_processes() {
        assert!(client.is_closed());
    } else {
        assert_eq!(client.get("/a.txt").text(), text);
    }
}

#[test]
fn stop_closes_idle_connections_and_exits_with_0() {
    let [few, many] = crews();
    for (signal, workers) in [("TERM", few), ("INT", few), ("TERM", many)] {
        let place = Place::new();
        let mut server = place.start(&format!("{ONE}workers = {workers}"));
        let mut clients: Vec<Client> = (0..20).map(|_| server.connect()).collect();
        for client in &mut clients[1..] {
            assert_eq!(client.get("/a.txt").text(), "one");
        }
        let begin = Instant::now();
        server.signal(signal);
        assert_eq!(server.wait().code(), Some(0), "{}", server.said());
        assert!(begin.elapsed() < Duration::from_secs(9), "the server waited for its deadline");
        for client in &mut clients {
            assert!(client.is_closed());
        }
    }
}

#[test]
fn stop_completes_download_and_refuses_new_connections() {
    for workers in crews() {
        let place = Place::new();
        let mut server = place.start(&format!("{ONE}workers = {workers}\n[stop]\ndeadline = \"1m\""));
        let mut client = begin_download(&server);
        let mut idle = server.connect();
        assert_eq!(idle.get("/a.txt").status, 200);
        server.signal("TERM");
        assert!(idle.is_closed());
        // The listener may live a moment longer than the idle connection.
        wait_until("connections to be refused", || is_refused(server.address));
        // The server has nothing to do until the client reads.
        let before = server.cpu_time();
        thread::sleep(Duration::from_secs(1));
        assert!(server.cpu_time() - before < Duration::from_millis(300), "it spins");
        assert_eq!(end_download(&mut client).unwrap() as u64, HUGE);
        assert!(client.is_closed());
        assert_eq!(server.wait().code(), Some(0));
    }
}

#[test]
fn request_begun_before_stop_is_answered_with_close() {
    let place = Place::new();
    let mut server = place.start(ONE);
    let mut client = server.connect();
    client.send("GET /a.txt HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\n\r\n1");
    wait_until("the request head to be read", || server.report("requests") == 1);
    server.signal("TERM");
    // Every stopping loop has closed its listener.
    wait_until("connections to be refused", || is_refused(server.address));
    client.send("23");
    let response = client.response("GET");
    assert_eq!((response.text().as_str(), response.field("Connection")), ("one", Some("close")));
    assert!(client.is_closed());
    assert_eq!(server.wait().code(), Some(0));
}

#[test]
fn incomplete_responses_are_cut_and_logged_at_deadline() {
    let place = Place::new();
    let log = place.folder.path().join("access.log");
    let mut server =
        place.start(&format!("{ONE}[log]\naccess = \"access.log\"\nflush = \"1h\"\n[stop]\ndeadline = \"1s\""));
    let mut client = begin_download(&server);
    let begin = Instant::now();
    server.signal("TERM");
    assert_eq!(server.wait().code(), Some(0));
    assert!(begin.elapsed() >= Duration::from_secs(1), "early");
    assert!(end_download(&mut client).is_err());
    let lines = fs::read_to_string(log).unwrap();
    let (before, bytes) = lines.trim_end().split_once(" 200 ").expect("its line");
    assert!(before.ends_with("\"GET /huge.bin HTTP/1.1\""), "{lines}");
    let bytes: u64 = bytes.split(' ').next().unwrap().parse().unwrap();
    assert!(0 < bytes && bytes < HUGE, "{lines}");
}

#[test]
fn unread_log_pipe_does_not_delay_exit() {
    let place = Place::new();
    let mut server = place.start(&format!("{ONE}stop.deadline = '1s'\nlog.access = '-'\nlog.flush = '1ms'\n"));
    // Standard output is a pipe that holds 64 KiB, and this test does not read it.
    let agent = "x".repeat(1000);
    let mut client = server.connect();
    for _ in 0..200 {
        client.request("GET", "/a.txt", &[("User-Agent", &agent)]);
    }
    server.signal("TERM");
    let begin = Instant::now();
    assert_eq!(server.wait().code(), Some(0), "{}", server.said());
    assert!(begin.elapsed() < Duration::from_secs(10), "{:?}", begin.elapsed());
    assert!(server.said().contains("amped: access log blocked: the last "), "{}", server.said());
}

#[test]
fn second_signal_exits_at_once_with_1() {
    let place = Place::new();
    let mut server = place.start(&format!("{ONE}[stop]\ndeadline = \"1h\""));
    let mut client = begin_download(&server);
    server.signal("TERM");
    server.wait_for("finishing requests in progress");
    server.signal("INT");
    assert_eq!(server.wait().code(), Some(1));
    assert!(end_download(&mut client).is_err());
}

#[test]
fn last_log_lines_are_written_at_exit() {
    let place = Place::new();
    let log = place.folder.path().join("access.log");
    let mut server =
        place.start(&format!("{ONE}workers = 2\n[log]\naccess = \"access.log\"\nflush = \"1h\"\nbuffer = \"1MiB\""));
    for n in 0..100 {
        assert_eq!(server.get(&format!("/a.txt?{n}")).status, 200);
    }
    assert_eq!(fs::read_to_string(&log).unwrap(), "");
    server.signal("TERM");
    assert_eq!(server.wait().code(), Some(0));
    let lines = fs::read_to_string(log).unwrap();
    for n in 0..100 {
        assert!(lines.contains(&format!("\"GET /a.txt?{n} HTTP/1.1\" 200 3 ")), "{n}");
    }
}

#[test]
fn reload_applies_new_configuration_without_dropping_connections() {
    for workers in crews() {
        let place = Place::new();
        let top = format!("listen = [\"127.0.0.1:0\"]\nworkers = {workers}\n");
        let server = place.start(&format!("{top}root = \"one\""));
        let mut kept = server.connect();
        assert_eq!(kept.get("/a.txt").text(), "one");
        let mut download = begin_download(&server);

        let rule = "[[site.headers]]\nmatch = \"**\"\nset = { \"X-New\" = \"yes\" }\n";
        let other = "[[site]]\nhosts = [\"other.test\"]\nroot = \"one\"\n";
        place.reload(
            &server,
            &format!("{top}[limits]\nmax_request_line_bytes = 100\n[[site]]\nroot = \"two\"\n{rule}{other}"),
        );
        for _ in 0..20 {
            assert_eq!(server.get("/a.txt").text(), "two");
        }
        assert_idle_connection_after_reload(&mut kept, "two");
        let mut kept = server.connect();
        let response = kept.get("/a.txt");
        assert_eq!((response.text().as_str(), response.field("X-New")), ("two", Some("yes")));
        assert_eq!(kept.request("GET", "/a.txt", &[("Host", "other.test")]).text(), "one");
        assert_eq!(kept.get(&format!("/{}", "x".repeat(200))).status, 414);
        assert_eq!(end_download(&mut download).unwrap() as u64, HUGE);
        assert_idle_connection_after_reload(&mut download, "two");
        assert_eq!(server.report("connections_broken"), 0);
    }
}

#[test]
fn reload_reads_included_files_again() {
    let place = Place::new();
    let main = "listen = [\"127.0.0.1:0\"]\nroot = \"one\"\ninclude = [\"sites/*.toml\"]\n";
    let server = place.start(main);
    let of_host = |host: &str| server.connect().request("GET", "/a.txt", &[("Host", host)]).text();
    assert_eq!(of_host("new.test"), "one");
    place.folder.file("sites/new.toml", "[[site]]\nhosts = [\"new.test\"]\nroot = \"two\"\n");
    place.reload(&server, main);
    assert_eq!(of_host("new.test"), "two");
    assert_eq!(of_host("x.test"), "one");
    let file = place.folder.file("sites/new.toml", "[[site]]\nhosts = [\"new.test\"]\nroot = \"none\"\n");
    let said = place.reload_wrong(&server, main);
    assert!(said.contains(&format!("{}:3:8: ", file.display())), "{said}");
    assert_eq!(of_host("new.test"), "two");
    fs::remove_file(file).unwrap();
    place.reload(&server, main);
    assert_eq!(of_host("new.test"), "one");
}

#[test]
fn reload_changes_addresses_and_keeps_connections_of_others() {
    for workers in crews() {
        let place = Place::new();
        let [first, second] = free_addresses();
        let config = |listen: &[SocketAddr]| {
            let listen: Vec<String> = listen.iter().map(|address| format!("\"{address}\"")).collect();
            format!("root = \"one\"\nworkers = {workers}\nlisten = [{}]", listen.join(", "))
        };
        let server = place.start(&config(&[first]));
        assert!(is_refused(second));
        let mut kept = server.connect();
        assert_eq!(kept.get("/a.txt").text(), "one");
        place.reload(&server, &config(&[first, second]));
        for address in [first, second] {
            assert_eq!(Client::connect(address).get("/a.txt").text(), "one");
        }
        place.reload(&server, &config(&[second]));
        wait_until("the first address to be closed", || is_refused(first));
        // A connection accepted there stays open.
        assert_idle_connection_after_reload(&mut kept, "one");
        assert_eq!(Client::connect(second).get("/a.txt").text(), "one");
        let before = server.cpu_time();
        thread::sleep(Duration::from_secs(1));
        assert!(server.cpu_time() - before < Duration::from_millis(300), "it spins");

        // If an address cannot be bound, nothing changes.
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let said = place.reload_wrong(&server, &config(&[taken.local_addr().unwrap(), second]));
        assert!(said.contains(&format!("cannot listen on {}", taken.local_addr().unwrap())), "{said}");
        assert_eq!(Client::connect(second).get("/a.txt").text(), "one");
    }
}

#[test]
fn invalid_configuration_on_reload_changes_nothing() {
    let place = Place::new();
    let one = format!("{ONE}workers = {}\n", crews()[0]);
    let server = place.start(&one);
    let mut kept = server.connect();
    assert_eq!(kept.get("/a.txt").text(), "one");
    let check = |toml: &str, says: &[&str]| {
        let said = place.reload_wrong(&server, toml);
        for text in says {
            assert!(said.contains(text), "{text:?} is missing:\n{said}");
        }
    };
    let file = place.folder.path().join("amped.toml").display().to_string();
    check("root = \"two\"\nlisten = [\n", &[&format!("{file}:2:11: ")]);
    check("root = \"two\"\n\n[limits]\n  max_requets = 5\n", &[&format!("{file}:4:3: "), "`max_requests`"]);
    check("root = \"three\"\n", &[&format!("{file}:1:8: "), "three does not exist"]);
    let others = format!("{ONE}workers = {}\n", crews()[1]);
    check(&others, &["workers cannot change while the server runs: restart it"]);
    check(&format!("{one}user = \"nobody\""), &["user or group cannot change"]);
    check(&format!("{others}[log]\naccess = \"x.log\""), &["workers, log.access cannot change"]);
    fs::remove_file(&file).unwrap();
    let before = server.said().len();
    server.signal("HUP");
    wait_until("the reload to be rejected", || server.said()[before..].contains("keeping the current configuration"));
    assert!(server.said()[before..].contains(&file), "{}", server.said());
    assert_eq!(kept.get("/a.txt").text(), "one");
    assert_eq!(server.get("/a.txt").text(), "one");
    // A corrected configuration is accepted.
    place.reload(&server, &one.replace("one", "two"));
    wait_until("the new root", || server.get("/a.txt").text() == "two");
    assert_idle_connection_after_reload(&mut kept, "two");
}

#[test]
fn flags_override_reloaded_configuration() {
    let place = Place::new();
    let config = place.configure(ONE);
    let one = place.folder.path().join("one");
    let server = Server::start(&[one.to_str().unwrap(), "--config", config.to_str().unwrap(), "--listing"]);
    place.reload(&server, "root = \"two\"\nlisten = [\"127.0.0.1:0\"]\n[[site]]\nhosts = [\"x.test\"]\nroot = \"two\"");
    wait_until("the new site", || server.connect().request("GET", "/a.txt", &[("Host", "x.test")]).text() == "two");
    assert_eq!(server.get("/a.txt").text(), "one");
    assert_eq!(server.get("/").status, 200);
}

#[test]
fn fifty_reloads_under_load_lose_no_request_or_descriptor() {
    for workers in crews() {
        let place = Place::new();
        let config = |n: u32| {
            let set = format!("[[site.headers]]\nmatch = \"**\"\nset = {{ \"X-Generation\" = \"{n}\" }}");
            format!("listen = [\"127.0.0.1:0\"]\nworkers = {workers}\n[[site]]\nroot = \"one\"\n{set}")
        };
        let large = &"large".repeat(20_000);
        place.folder.file("one/large.txt", large);
        let server = place.start(&config(0));
        // Opens everything that is opened only once before descriptors are counted.
        let warm_up = |n: u32| {
            wait_until("the new header from all loops", || {
                (0..20).all(|_| server.get("/a.txt").field("X-Generation") == Some(n.to_string().as_str()))
            });
            // Enough requests that each loop has the file open.
            for _ in 0..40 {
                assert_eq!(server.get("/large.txt").body.len(), 100_000);
            }
        };
        warm_up(0);
        place.reload(&server, &config(1));
        warm_up(1);
        let before = descriptors_of(server.pid());

        let (done, requests) = (AtomicBool::new(false), AtomicU64::new(0));
        thread::scope(|scope| {
            let _stop = SetOnDrop(&done);
            let (done, requests, server) = (&done, &requests, &server);
            for fresh in [false, true] {
                scope.spawn(move || {
                    let mut client = server.connect();
                    while !done.load(Ordering::Relaxed) {
                        for (target, text) in [("/a.txt", "one"), ("/large.txt", large)] {
                            // With processes an idle connection is closed at a reload, possibly while its next request
                            // is in transit.
                            if fresh || has_processes() {
                                client = server.connect();
                            }
                            assert!(client.get(target).text() == text);
                            requests.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                });
            }
            for n in 2..=51 {
                let before = requests.load(Ordering::Relaxed);
                place.reload(server, &config(n));
                wait_until("further responses", || requests.load(Ordering::Relaxed) > before);
            }
        });
        warm_up(51);
        wait_until("the last connections to close", || server.report("connections") == 0);
        let begin = Instant::now();
        let mut after = descriptors_of(server.pid());
        // Helpers may still have files open.
        while after.len() > before.len() && begin.elapsed() < Duration::from_secs(5) {
            thread::sleep(Duration::from_millis(20));
            after = descriptors_of(server.pid());
        }
        assert!(after.len() <= before.len(), "before {before:#?}, after {after:#?}");
    }
}
