//! strace: the number of system calls of a cached request, and injected system call errors.

use std::collections::BTreeMap;
use std::fs;
use std::io::{ErrorKind, Read};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::process::{Child, Stdio};
use std::time::Instant;

use rustix::process::{Pid, Signal, kill_process};

use super::harness::{
    Client, Server, ServiceManager, Site, answer_by_fastcgi, configuration, let_files_settle, pattern, program,
    wait_until,
};
use super::peer;
use super::ports::free_addresses;
use super::started_nginx::Nginx;

/// The calls of revalidation depend on how long the requests take, which nobody can foresee under strace on a busy machine.
const KEPT: &str = "[cache]\nrevalidate = \"1h\"";

/// One call to receive, one to send, and a share of the wait for the next event.
#[test]
fn cached_request_costs_two_system_calls() {
    let site = Site::new();
    site.file("small.txt", "small\n");
    let server = Server::configured(&site, KEPT);
    let (calls, text) = trace(&server, "/small.txt");
    let waits: u64 = calls.iter().filter(|(name, _)| name.starts_with("epoll_")).map(|(_, calls)| calls).sum();
    let others = calls.values().sum::<u64>() - waits;
    println!("{calls:?}");
    assert!(others <= 2 * REQUESTS + SPARE, "{text}");
    assert!(waits <= REQUESTS + SPARE, "{text}");
    // The last response can arrive before its call returns, and strace counts at the return.
    assert!(others + 2 >= 2 * REQUESTS, "not all was counted: {text}");
}

/// The same as for a file that is cached as it is; the thread that compressed it is idle.
#[test]
fn compressed_response_costs_two_system_calls() {
    let site = Site::new();
    site.file("large.txt", "all work and no play\n".repeat(5000));
    let server = Server::with_site(&site, &format!("compress = ['gzip']\n{KEPT}"));
    let fields = [("Accept-Encoding", "gzip")];
    let mut client = server.connect();
    wait_until("compression", || client.request("GET", "/large.txt", &fields).field("Content-Encoding").is_some());
    let (calls, text) = trace_request(&server, "/large.txt", &fields);
    let waits: u64 = calls.iter().filter(|(name, _)| name.starts_with("epoll_")).map(|(_, calls)| calls).sum();
    let others = calls.values().sum::<u64>() - waits;
    assert!(others <= 2 * REQUESTS + SPARE, "{text}");
    assert!(others + 2 >= 2 * REQUESTS, "not all was counted: {text}");
}

/// The same without epoll, which a worker of MT calls only ten times a second, for messages.
#[test]
fn blocking_worker_receives_and_sends_without_epoll() {
    let site = Site::new();
    site.file("small.txt", "small\n");
    let root = site.path().to_str().unwrap();
    let server = Server::start(&[root, "--architecture", "mt", "--workers", "1", "--without", "pool-epoll"]);
    let (calls, text) = trace(&server, "/small.txt");
    let waits: u64 = calls.iter().filter(|(name, _)| name.starts_with("epoll_")).map(|(_, calls)| calls).sum();
    assert!(waits <= REQUESTS / 10, "{text}");
    for call in ["recvfrom", "sendto"] {
        assert!((REQUESTS - 2..=REQUESTS + SPARE).contains(&calls[call]), "{text}");
    }
}

/// Counting costs no call. Timing a request costs two, and more if a phase is long, as every phase is under strace: for
/// the few timed requests, and for a connection that ends when a request was to be timed.
#[test]
fn metrics_add_system_calls_only_to_sampled_requests() {
    let site = Site::new();
    site.file("small.txt", "small\n");
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    let metrics = folder.path().join("metrics");
    let server = Server::configured(&site, &format!("{KEPT}\n[metrics]\nfile = {metrics:?}"));
    let (mut calls, text) = trace(&server, "/small.txt");
    let clock = calls.remove("clock_gettime").unwrap_or(0);
    let waits: u64 = calls.iter().filter(|(name, _)| name.starts_with("epoll_")).map(|(_, calls)| calls).sum();
    let others = calls.values().sum::<u64>() - waits;
    assert!(others <= 2 * REQUESTS + SPARE, "{text}");
    assert!((1..REQUESTS / 5).contains(&clock), "{text}");
}

/// Receive, connect, send, wait, receive, close, send: the end of the response goes out with the response.
#[test]
fn application_request_costs_eight_system_calls_and_two_waits() {
    let site = Site::new();
    let socket = site.path().with_extension("socket");
    answer_by_fastcgi(&socket, "Content-Type: text/plain\r\n\r\nhello");
    site.file("hello.php", "");
    let rule = format!("[[site.app]]\nmatch = \"*.php\"\nfastcgi = \"unix:{}\"", socket.display());
    let server = Server::with_site(&site, &rule);
    let (mut calls, text) = trace(&server, "/hello.php");
    // Without optimisation Rust checks each descriptor before it closes it.
    calls.remove("fcntl");
    let waits = calls.get("epoll_pwait2").unwrap_or(&0);
    let others = calls.values().sum::<u64>() - waits;
    assert!(others <= 8 * REQUESTS + SPARE, "{text}");
    assert!(*waits <= 2 * REQUESTS + SPARE, "{text}");
    assert!(others + 8 >= 8 * REQUESTS, "not all was counted: {text}");
}

/// Receive, send, wait, receive, send: the kept connection is watched in any case.
#[test]
fn forwarded_request_costs_four_system_calls_and_two_waits() {
    let site = Site::new();
    let [address] = free_addresses();
    let servers = format!("server {{ listen {address}; keepalive_requests 100000; return 200 hello; }}");
    let _nginx = Nginx::start(tempfile::tempdir().unwrap(), address, &servers);
    let server = Server::with_site(&site, &format!("[[site.app]]\nmatch = \"/**\"\nhttp = \"{address}\""));
    let (calls, text) = trace(&server, "/hello");
    let waits = calls.get("epoll_pwait2").unwrap_or(&0);
    let others = calls.values().sum::<u64>() - waits;
    assert!(others <= 4 * REQUESTS + SPARE, "{text}");
    assert!(*waits <= 2 * REQUESTS + SPARE, "{text}");
    assert!(others + 4 >= 4 * REQUESTS, "not all was counted: {text}");
}

/// Both bodies of a request: one that its client reads, and one that it does not.
#[test]
fn spool_files_are_accessed_by_helper_threads_only() {
    let (site, spool) = (Site::new(), tempfile::tempdir().unwrap());
    let script = site.file("cgi-bin/echo", "#!/bin/sh\nprintf 'Content-Type: a/b\\n\\n'; cat");
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    let config = site.path().with_extension("toml");
    let root = site.path();
    let toml = format!(
        "listen = [\"127.0.0.1:0\"]\n[[site]]\nroot = {root:?}\n[[site.app]]\nmatch = \"/cgi-bin/**\"\ncgi = true\nmax_body_bytes = \"16MB\"\n[spool]\ndirectory = {:?}",
        spool.path()
    );
    fs::write(&config, toml).unwrap();
    let calls = site.path().with_extension("calls");
    let mut command = peer("strace");
    command.args(["-D", "-f", "-y", "-qq", "-o", calls.to_str().unwrap(), "-e", "trace=%desc"]);
    command.arg(program().get_program()).args(["serve", "--config", config.to_str().unwrap()]);
    let server = Server::spawn(command);
    // After a response the thread has set its name.
    server.get("/");
    let loop_thread = loop_thread(server.pid());
    let body = pattern(8_000_000);
    let name = spool.path().to_str().unwrap();
    let lines = |call: &str| {
        let text = fs::read_to_string(&calls).unwrap_or_default();
        let lines = text.lines().filter(|line| line.contains(name) && line.contains(call));
        lines.map(str::to_owned).collect::<Vec<_>>()
    };
    for leaves in [false, true] {
        let mut client = Client::connect_narrow(server.address, 4096);
        client.send_request("POST", "/cgi-bin/echo", &[("Content-Length", &body.len().to_string())]);
        client.send(&body);
        assert!(client.read_head().starts_with("HTTP/1.1 200"));
        if leaves {
            drop(client);
        } else {
            assert!(client.read_chunks().unwrap() == body);
        }
        wait_until("all spool files to be closed", || {
            !server.descriptors().iter().any(|path| path.starts_with(spool.path()))
        });
    }
    drop(server);
    assert!(!lines("O_TMPFILE").is_empty() && !lines(" pwrite64(").is_empty() && !lines(" pread64(").is_empty());
    let of_loop: Vec<String> =
        lines("").into_iter().filter(|line| line.split(' ').next() == Some(&loop_thread.to_string())).collect();
    assert!(of_loop.is_empty(), "{of_loop:#?}");
}

/// The file is not mapped or read again.
#[test]
fn small_mapped_body_is_sent_with_header_in_one_call() {
    let site = Site::new();
    site.file("small.txt", "small\n");
    let trace_with = |min_age: &str| {
        let config = site.path().with_extension("toml");
        let toml = format!("[send]\nsendfile_min_age = '{min_age}'\ncontent = 'mmap'\nresidency = 'mincore'");
        fs::write(&config, configuration(site.path(), &toml)).unwrap();
        trace(&Server::start(&["--config", config.to_str().unwrap()]), "/small.txt")
    };
    // A file this young is copied, after its head.
    let (calls, text) = trace_with("1h");
    assert!((REQUESTS - 1..=REQUESTS + 1).contains(&calls["sendmsg"]) && calls["preadv2"] + 1 >= REQUESTS, "{text}");

    let (calls, text) = trace_with("0s");
    assert!((REQUESTS - 1..=REQUESTS + 1).contains(&calls["sendmsg"]), "{text}");
    for other in ["sendto", "sendfile", "mmap", "munmap", "preadv2"] {
        assert!(calls.get(other).is_none_or(|count| *count <= SPARE), "{text}");
    }
}

/// Short, but not cached in memory: read, and sent after its head.
#[test]
fn short_uncached_file_is_sent_with_header_in_one_call() {
    let site = Site::new();
    site.file("page.bin", vec![7; 10 << 10]);
    let config = site.path().with_extension("toml");
    let toml = "[send]\nsendfile_min_age = '0s'\n[cache]\nmax_content_file_bytes = '4K'";
    fs::write(&config, configuration(site.path(), toml)).unwrap();
    let server = Server::start(&["--config", config.to_str().unwrap()]);
    let (calls, text) = trace(&server, "/page.bin");
    for each in ["preadv2", "sendmsg"] {
        assert!((REQUESTS - 1..=REQUESTS + 1).contains(&calls[each]), "{text}");
    }
    for other in ["sendto", "sendfile"] {
        assert!(calls.get(other).is_none_or(|count| *count <= SPARE), "{text}");
    }
}

/// Each on a connection of its own, with the request received before the connection is accepted.
#[test]
fn single_request_is_answered_without_epoll_wait() {
    const CLIENTS: usize = 20;
    let site = Site::new();
    site.file("small.txt", "small\n");
    let calls = site.path().with_extension("calls");
    let server = tampered(
        (calls.to_str().unwrap(), "epoll_ctl,epoll_pwait2,close"),
        "epoll_pwait2:delay_exit=300ms",
        &[site.path().to_str().unwrap(), "--listen", "127.0.0.1:0"],
    );
    // The server waits for what it must read from the disk.
    server.get("/small.txt");
    let ask = || {
        let mut client = server.connect();
        client.send("GET /small.txt HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
        client
    };
    let clients: Vec<_> = (0..CLIENTS).map(|_| ask()).collect();
    for mut client in clients {
        assert_eq!(client.response("GET").body, b"small\n");
    }
    drop(server);
    let added = |text: &str| text.lines().filter(|line| line.contains("EPOLL_CTL_ADD")).count();
    wait_until("the traced calls", || {
        fs::read_to_string(&calls).unwrap_or_default().matches("close(").count() >= CLIENTS
    });
    let text = fs::read_to_string(&calls).unwrap();
    // The mailbox, the listener, the first client, and connections accepted before their request arrived.
    assert!(added(&text) < 4 + CLIENTS / 2, "{text}");
}

#[test]
fn sendfile_is_called_unless_disabled() {
    let site = Site::new();
    site.file("small.txt", "small\n");
    let config = site.path().with_extension("toml");
    fs::write(&config, configuration(site.path(), "[send]\nsendfile_min_age = '0s'\ncontent = 'sendfile'")).unwrap();
    for (flags, expected) in [(&[][..], REQUESTS), (&["--without", "sendfile"], 0)] {
        let server = Server::start(&[&["--config", config.to_str().unwrap()], flags].concat());
        let began = Instant::now();
        let (calls, text) = trace(&server, "/small.txt");
        // How often a window is probed, at most.
        let probes = began.elapsed().as_millis() as u64 / 10 + SPARE;
        assert!(calls.get("sendfile").is_none_or(|count| *count <= expected + 1), "{text}");
        assert!(calls.get("sendfile").unwrap_or(&0) + 2 >= expected, "{text}");
        // With sendfile, preadv2 only checks now and then whether a window is in memory; copying calls it each time.
        let count = *calls.get("preadv2").unwrap_or(&0);
        assert!(
            if expected > 0 { count <= probes } else { count + 2 >= REQUESTS },
            "{count} of at most {probes}: {text}"
        );
    }
}

const REQUESTS: u64 = 10_000;

/// Revalidation of a file takes up to ten calls a second, and the requests up to a minute on a busy machine.
const SPARE: u64 = REQUESTS / 10;

/// Returns the system calls of a loop during repeated requests for a small file, and strace's output.
fn trace(server: &Server, target: &str) -> (BTreeMap<String, u64>, String) {
    trace_request(server, target, &[])
}

fn trace_request(server: &Server, target: &str, fields: &[(&str, &str)]) -> (BTreeMap<String, u64>, String) {
    let mut client = server.connect();
    assert_eq!(client.request("GET", target, fields).status, 200);
    std::thread::sleep(std::time::Duration::from_millis(100));
    let body = client.request("GET", target, fields).body;

    let tid = loop_thread(server.pid());
    let folder = Site::new();
    let table = folder.path().join("table");
    let strace = Strace::attach(tid, &["-c", "-o", table.to_str().unwrap()]);
    for _ in 0..REQUESTS {
        assert_eq!(client.request("GET", target, fields).body, body);
    }
    strace.detach();
    let text = fs::read_to_string(&table).unwrap();
    (read_table(&text), text)
}

/// strace, attached to a thread.
struct Strace(Child);

impl Strace {
    fn attach(tid: u32, words: &[&str]) -> Strace {
        let tid = tid.to_string();
        let strace = peer("strace").args(["-p", &tid]).args(words).stderr(Stdio::null()).spawn().unwrap();
        wait_until("strace to attach", || {
            let status = fs::read_to_string(format!("/proc/{tid}/status")).unwrap();
            status.lines().any(|line| line.strip_prefix("TracerPid:").is_some_and(|pid| pid.trim() != "0"))
        });
        Strace(strace)
    }

    /// Interrupts strace, which then writes its counts.
    fn detach(mut self) {
        kill_process(Pid::from_child(&self.0), Signal::INT).unwrap();
        self.0.wait().unwrap();
    }
}

/// Detaches it, also after a failure.
impl Drop for Strace {
    fn drop(&mut self) {
        if let Ok(None) = self.0.try_wait() {
            let _ = kill_process(Pid::from_child(&self.0), Signal::TERM);
            let _ = self.0.wait();
        }
    }
}

/// The kernel counts watches per user, so other processes can use them up.
#[test]
fn server_survives_exhausted_epoll_watches() {
    let site = Site::new();
    site.file("small.txt", "small\n");
    let config = site.path().with_extension("toml");
    fs::write(&config, configuration(site.path(), "[limits]\nmax_connections = 1")).unwrap();
    // The loop adds its mailbox, its listener and the connection, whose request is incomplete. It removes the listener
    // because all connections are in use, and cannot add it again.
    let server =
        tampered(("/dev/null", "epoll_ctl"), "epoll_ctl:error=ENOSPC:when=5", &["--config", config.to_str().unwrap()]);
    let mut first = server.connect();
    first.send("GET /small.txt HTTP/1.1\r\nHost: a\r\nConnection: close\r\n");
    let mut second = server.connect();
    second.send_request("GET", "/small.txt", &[]);
    server.wait_for("cannot wait for connections");
    first.send("\r\n");
    assert_eq!(first.response("GET").body, b"small\n");
    assert_eq!(second.response("GET").body, b"small\n");
}

/// The head has promised the complete body, so a client must be able to detect a truncated one.
#[test]
fn disk_error_after_header_resets_connection() {
    let site = Site::new();
    site.file("large.bin", vec![7; 8 << 20]);
    let config = site.path().with_extension("toml");
    fs::write(&config, configuration(site.path(), "[send]\nsendfile_min_age = '0s'")).unwrap();
    let server =
        tampered(("/dev/null", "sendfile"), "sendfile:error=EIO:when=3", &["--config", config.to_str().unwrap()]);
    // The speed of the helpers decides how much of the first response has been sent: the call that fails may be in any
    // of these.
    let cut = (0..4).filter(|_| {
        let mut client = server.connect();
        client.send_request("GET", "/large.bin", &[("Connection", "close")]);
        let mut got = Vec::new();
        let end = client.stream().read_to_end(&mut got);
        // The reset may overtake data in the send queue, the head included.
        assert!(
            got.is_empty() || got.starts_with(b"HTTP/1.1 200 "),
            "{}",
            String::from_utf8_lossy(&got[..got.len().min(80)])
        );
        match end {
            Ok(_) => assert!(got.len() > 8 << 20, "{} bytes and no reset", got.len()),
            Err(ref error) => assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}"),
        }
        end.is_err()
    });
    assert_eq!(cut.count(), 1, "the error was injected once");
}

/// Connections arrive while strace delays the loop at the end of each wait.
#[test]
fn at_most_64_connections_are_accepted_per_turn() {
    const CROWD: usize = 200;
    let site = Site::new();
    let calls = site.path().with_extension("calls");
    let server = tampered(
        (calls.to_str().unwrap(), "accept4,epoll_pwait2"),
        "epoll_pwait2:delay_exit=300ms",
        &[site.path().to_str().unwrap(), "--listen", "127.0.0.1:0"],
    );
    let crowd: Vec<_> = (0..CROWD).map(|_| TcpStream::connect(server.address).unwrap()).collect();
    let accepted = |text: &str| text.lines().filter(|line| line.contains("accept4(") && !line.contains("= -1")).count();
    wait_until("all connections to be accepted", || server.report("connections_accepted") >= CROWD as u64);
    drop((crowd, server));
    // strace writes the rest of its output when it exits.
    wait_until("the traced calls", || accepted(&fs::read_to_string(&calls).unwrap_or_default()) >= CROWD);
    let text = fs::read_to_string(&calls).unwrap();
    let turns: Vec<usize> = text.split("epoll_pwait2(").map(accepted).collect();
    assert_eq!(turns.iter().max(), Some(&64), "{turns:?}");
}

/// Nothing was sent yet, so the client receives the error.
#[test]
fn disk_error_on_first_bytes_returns_500() {
    let site = Site::new();
    site.file("small.txt", "small\n");
    site.file("large.bin", vec![7; 300_000]);
    let_files_settle();
    for architecture in ["amped", "sped", "mt", "mp"] {
        let path = site.path().to_str().unwrap();
        let words = [path, "--listen", "127.0.0.1:0", "--architecture", architecture, "--workers", "2"];
        let server = tampered(("/dev/null", "preadv2"), "preadv2:error=EIO", &words);
        for target in ["/small.txt", "/large.bin"] {
            let response = server.get(target);
            assert_eq!(response.status, 500, "{architecture}, {target}: {}", response.text());
        }
    }
}

/// The head of a file with a cached name is sent with its first bytes: the status is still open, and the connection
/// stays.
#[test]
fn disk_error_on_first_bytes_of_cached_name_returns_500() {
    let site = Site::new();
    site.file("large.bin", vec![7; 300_000]);
    let_files_settle();
    let log = site.path().with_extension("log");
    let ways = ["sendfile_min_age = '0s'", "sendfile_min_age = '1h'", "content = 'mmap'"];
    let cases = ["amped", "sped", "mt", "mp"].into_iter().flat_map(|architecture| ways.map(|way| (architecture, way)));
    for (architecture, way) in cases {
        let config = site.path().with_extension("toml");
        let toml = format!("workers = 1\n[send]\n{way}\n[log]\naccess = '{}'\nformat = 'common'", log.display());
        fs::write(&config, configuration(site.path(), &toml)).unwrap();
        let server = Server::start(&["--architecture", architecture, "--config", config.to_str().unwrap()]);
        let mut client = server.connect();
        assert_eq!(client.get("/large.bin").body.len(), 300_000);
        let fails = ["-o", "/dev/null", "-e", "trace=preadv2", "-e", "inject=preadv2:error=EIO"];
        let worker = if architecture == "mp" { server.children()[0] } else { loop_thread(server.pid()) };
        let strace = Strace::attach(worker, &fails);
        // The server assumes for a moment that the window it just sent is in memory.
        let failed = (0..100).find_map(|_| {
            std::thread::sleep(std::time::Duration::from_millis(20));
            client.send("GET /large.bin HTTP/1.1\r\nHost: a\r\n\r\nOPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n");
            let (first, second) = (client.response("GET"), client.response("OPTIONS"));
            assert!(second.field("Allow").is_some(), "{architecture}, {way}: {}", second.status);
            (first.status != 200).then_some(first)
        });
        let response = failed.unwrap_or_else(|| panic!("{architecture}, {way}: none of a hundred requests failed"));
        assert_eq!(response.status, 500, "{architecture}, {way}: {}", response.text());
        assert!(response.text().contains("Cannot read the file"), "{}", response.text());
        strace.detach();
        assert_eq!(client.get("/large.bin").body.len(), 300_000);
        let line = format!("\"GET /large.bin HTTP/1.1\" 500 {}\n", response.body.len());
        wait_until("the log line", || fs::read_to_string(&log).unwrap().contains(&line));
    }
}

/// Some containers have no IPv6; `*:PORT` then means every IPv4 address.
#[test]
fn wildcard_address_is_ipv4_without_ipv6() {
    let site = Site::new();
    site.file("small.txt", "small\n");
    let server = tampered(
        ("/dev/null", "socket"),
        "socket:error=EAFNOSUPPORT:when=1",
        &[site.path().to_str().unwrap(), "--listen", "*:0"],
    );
    assert_eq!(server.get("/small.txt").body, b"small\n");
}

/// A supervisor notices the end of a process, but not of a thread.
#[test]
fn failed_event_loop_ends_process() {
    let site = Site::new();
    site.file("small.txt", "small\n");
    let config = site.path().with_extension("toml");
    fs::write(&config, configuration(site.path(), "")).unwrap();
    let mut server = tampered(
        ("/dev/null", "epoll_pwait2"),
        "epoll_pwait2:error=EINVAL:when=20+",
        &["--config", config.to_str().unwrap()],
    );
    // Each connection ends a wait of the loop.
    (0..10_000).find(|_| TcpStream::connect(server.address).is_err());
    assert_eq!(server.wait().code(), Some(1));
    assert!(server.said().contains("loop 0 failed"), "{}", server.said());
}

/// A loop that hangs ends no process, so only the watchdog of a service manager can notice.
#[test]
fn watchdog_is_not_pinged_when_one_of_two_loops_hangs() {
    let site = Site::new();
    let config = site.path().with_extension("toml");
    fs::write(&config, configuration(site.path(), "workers = 2")).unwrap();
    let manager = ServiceManager::new();
    let server = manager.start(config.to_str().unwrap(), &[("WATCHDOG_USEC", "200000")]);
    assert!(manager.next().starts_with("READY=1\n"));
    assert_eq!(manager.next(), "WATCHDOG=1\n");
    // Longer than the test takes; the thread continues when strace ends.
    let hang = ["-qq", "-o", "/dev/null", "-e", "trace=epoll_pwait2", "-e", "inject=epoll_pwait2:delay_enter=600s"];
    let strace = Strace::attach(loop_thread(server.pid()), &hang);
    manager.wait_for_silence();
    drop(strace);
    assert_eq!(manager.next(), "WATCHDOG=1\n");
}

/// Starts a server under strace, which tampers with its calls (`inject`) and writes the traced calls to a file. With
/// `-D` the server is the test's child, not strace's, and ends with the test.
fn tampered((file, traced): (&str, &str), inject: &str, words: &[&str]) -> Server {
    let mut command = peer("strace");
    command.args(["-D", "-f", "-qq", "-o", file, "-e", &format!("trace={traced}"), "-e", &format!("inject={inject}")]);
    command.arg(program().get_program()).arg("serve").args(words);
    Server::spawn(command)
}

/// Returns the thread of the only loop, found by its name.
fn loop_thread(pid: u32) -> u32 {
    for task in fs::read_dir(format!("/proc/{pid}/task")).unwrap() {
        let task = task.unwrap();
        if fs::read_to_string(task.path().join("comm")).unwrap().trim() == "loop-0" {
            return task.file_name().to_str().unwrap().parse().unwrap();
        }
    }
    panic!("no thread has the name loop-0");
}

/// Parses calls by name. The columns are: % time, seconds, usecs/call, calls, errors (which may be blank), syscall.
fn read_table(text: &str) -> BTreeMap<String, u64> {
    let rows = text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    rows.filter(|row| row.len() >= 5 && row[row.len() - 1] != "total")
        .filter_map(|row| Some((row[row.len() - 1].to_owned(), row[3].parse().ok()?)))
        .collect()
}
