//! Upgrades: another process takes over, and no request fails; one that cannot start changes nothing.

use std::fs;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, RootCertStore};

use super::frames::Http2;
use super::harness::*;

/// A site, its configuration and the program beside it, which a test may replace.
struct Place {
    folder: Site,
    tls: Arc<ClientConfig>,
}

impl Place {
    fn new() -> Place {
        let folder = Site::new();
        folder.file("root/a.txt", "one");
        folder.file("root/large.txt", "large".repeat(20_000));
        let key = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
        folder.file("own.pem", key.cert.pem());
        folder.file("own.key", key.signing_key.serialize_pem());
        let mut roots = RootCertStore::empty();
        roots.add(key.cert.der().clone()).unwrap();
        let tls = Arc::new(ClientConfig::builder().with_root_certificates(roots).with_no_client_auth());
        symlink(program().get_program(), folder.path().join("amped")).unwrap();
        Place { folder, tls }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Writes the configuration, with these keys before the site, and returns its path.
    fn configure(&self, keys: &str) -> PathBuf {
        let site = "[[site]]\nroot = \"root\"\ncertificate = [\"own.pem\"]\nkey = [\"own.key\"]\n";
        self.folder.file("amped.toml", format!("{keys}\n{site}"))
    }

    /// The command that serves with this configuration.
    fn command(&self, keys: &str) -> Command {
        let mut command = Command::new(self.path("amped"));
        command.args(["serve", "--config", self.configure(keys).to_str().unwrap()]);
        command
    }

    fn start(&self, keys: &str) -> Server {
        Server::spawn(self.command(keys))
    }

    /// Replaces the program by a script.
    fn replace(&self, script: &str) {
        fs::remove_file(self.path("amped")).unwrap();
        let path = self.folder.file("amped", script);
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    fn restore(&self) {
        fs::remove_file(self.path("amped")).unwrap();
        symlink(program().get_program(), self.path("amped")).unwrap();
    }

    /// Connects with TLS, for HTTP/1 or HTTP/2.
    fn secure(&self, address: SocketAddr, protocol: &str) -> Client {
        let mut config = ClientConfig::clone(&self.tls);
        config.alpn_protocols = vec![protocol.as_bytes().to_vec()];
        let name = ServerName::try_from("localhost").unwrap();
        Client::connect(address).untranslated().secure(ClientConnection::new(config.into(), name).unwrap())
    }
}

const ANY: &str = "listen = [\"127.0.0.1:0\"]";

/// With a plain address and one with TLS.
const BOTH: &str = "listen = [\"127.0.0.1:0\", \"127.0.0.1:0 tls\"]";

/// The address with TLS of a server with both.
fn secure_address(server: &Server) -> SocketAddr {
    server.wait_for("amped: serving on https://");
    let said = server.said();
    let line = said.lines().find_map(|line| line.strip_prefix("amped: serving on https://")).unwrap();
    line.split('/').next().unwrap().parse().unwrap()
}

fn is_refused(address: SocketAddr) -> bool {
    TcpStream::connect(address).is_err()
}

/// Waits until only this process has the directory's program open, so that all before it have ended.
fn wait_for_end(pid: u32) {
    wait_until("the end of the old process", || parent_of(pid).is_none());
}

/// Requests from one client, over connections that it keeps or not, until `done`. Each must be answered.
fn request_all_the_time(connect: impl Fn() -> Client, keep: bool, done: &AtomicBool, requests: &AtomicU64) {
    let mut client = connect();
    while !done.load(Ordering::Relaxed) {
        for (target, length) in [("/a.txt", 3), ("/large.txt", 100_000)] {
            let response = client.get(target);
            assert_eq!((response.status, response.body.len()), (200, length));
            if !keep || response.field("Connection") == Some("close") {
                client = connect();
            }
            requests.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// The same over HTTP/2, on a connection until the server announces its end.
fn request_by_http2(connect: impl Fn() -> Client, done: &AtomicBool, requests: &AtomicU64) {
    let mut http2 = Http2::begin(connect(), &[]);
    while !done.load(Ordering::Relaxed) {
        let streams =
            [("/a.txt", 3), ("/large.txt", 100_000)].map(|(path, length)| (http2.request("GET", path, &[]), length));
        for (stream, length) in streams {
            let response = http2.response(stream);
            assert_eq!((response.status, response.body.len()), (200, length));
            requests.fetch_add(1, Ordering::Relaxed);
        }
        if !http2.goodbyes.is_empty() {
            http2 = Http2::begin(connect(), &[]);
        }
    }
}

/// Upgrades so many times while clients of all kinds send requests.
fn upgrade_under_load(count: usize, keys: &str) {
    let place = Place::new();
    let server = place.start(&format!("{BOTH}\n{keys}"));
    let secure = secure_address(&server);
    let (done, requests) = (AtomicBool::new(false), AtomicU64::new(0));
    let first = server.pid();
    thread::scope(|scope| {
        let _stop = SetOnDrop(&done);
        let (place, done, requests, plain) = (&place, &done, &requests, server.address);
        for keep in [false, true, true] {
            let connect = move || Client::connect(plain).untranslated();
            scope.spawn(move || request_all_the_time(connect, keep, done, requests));
            scope.spawn(move || request_all_the_time(move || place.secure(secure, "http/1.1"), keep, done, requests));
        }
        scope.spawn(move || request_by_http2(move || Client::connect(plain).untranslated(), done, requests));
        scope.spawn(move || request_by_http2(move || place.secure(secure, "h2"), done, requests));
        for _ in 0..count {
            let before = requests.load(Ordering::Relaxed);
            let old = server.pid();
            server.upgrade();
            wait_until("further responses", || requests.load(Ordering::Relaxed) > before + 20);
            wait_for_end(old);
        }
    });
    assert_eq!(server.said().matches(" serves; finishing").count(), count);
    assert_ne!(server.pid(), first);
    assert_eq!(server.report("connections_broken"), 0);
}

/// A hundred upgrades in all four architectures.
#[test]
fn upgrades_under_load_fail_no_request() {
    if is_pool() {
        upgrade_under_load(25, "");
    } else {
        upgrade_under_load(5, "");
        upgrade_under_load(20, "workers = 2");
    }
}

#[test]
fn upgrades_with_key_process_fail_no_request() {
    upgrade_under_load(3, "tls.keys = \"process\"");
}

#[test]
fn idle_connection_is_answered_once_more_and_closed() {
    let place = Place::new();
    let mut server = place.start(ANY);
    let (mut idle, mut new) = (server.connect().untranslated(), server.connect().untranslated());
    assert_eq!(idle.get("/a.txt").text(), "one");
    // It has sent nothing so far, and the first half of a request.
    new.send("GET /a.txt HTTP/1.1\r\nHost: loc");
    let old = server.pid();
    server.upgrade();
    for client in [&mut idle, &mut new] {
        assert!(client.is_quiet(Duration::from_millis(300)), "closed without a response");
    }
    assert!(parent_of(old).is_some());
    new.send("alhost\r\n\r\n");
    let response = new.response("GET");
    assert_eq!((response.text().as_str(), response.field("Connection")), ("one", Some("close")));
    let response = idle.get("/a.txt");
    assert_eq!((response.text().as_str(), response.field("Connection")), ("one", Some("close")));
    assert!(idle.is_closed() && new.is_closed());
    assert_eq!(server.wait().code(), Some(0));
    assert_eq!(server.get("/a.txt").text(), "one");
}

#[test]
fn connections_left_at_deadline_are_closed() {
    let place = Place::new();
    let mut server = place.start(&format!("{ANY}\nstop.deadline = \"1s\""));
    let mut idle = server.connect().untranslated();
    assert_eq!(idle.get("/a.txt").text(), "one");
    server.upgrade();
    assert_eq!(server.wait().code(), Some(0));
    assert!(idle.is_closed());
    assert_eq!(server.get("/a.txt").text(), "one");
}

#[test]
fn slow_script_is_answered_by_old_process_and_next_one_by_new() {
    let place = Place::new();
    let script = place.folder.file(
        "root/slow.cgi",
        "#!/bin/sh\nwhile ! test -e go; do sleep 0.05; done\nprintf 'Content-Type: text/plain\\n\\ndone'\n",
    );
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    let config = place.configure(ANY);
    let app = "[[site.app]]\nmatch = \"/*.cgi\"\ncgi = true\n";
    fs::write(&config, fs::read_to_string(&config).unwrap() + app).unwrap();
    let mut command = Command::new(place.path("amped"));
    command.args(["serve", "--config", config.to_str().unwrap()]);
    let mut server = Server::spawn(command);
    let mut slow = server.connect().untranslated();
    slow.send_request("GET", "/slow.cgi", &[]);
    wait_until("the request", || server.report("requests") == 1);
    server.upgrade();
    assert!(slow.is_quiet(Duration::from_millis(100)));
    place.folder.file("root/go", "");
    assert_eq!(slow.response("GET").text(), "done");
    assert_eq!(server.wait().code(), Some(0));
    assert_eq!(server.get("/slow.cgi").text(), "done");
}

/// Upgrades, which must fail; returns why.
fn fail(server: &Server) -> String {
    let (before, pid) = (server.said().len(), server.pid());
    server.signal("USR2");
    const FAILED: &str = "the upgrade has failed, and this process goes on: ";
    wait_until("the failure", || server.said()[before..].contains(FAILED));
    assert_eq!(server.pid(), pid);
    let said = server.said()[before..].to_owned();
    said.split_once(FAILED).unwrap().1.lines().next().unwrap().to_owned()
}

#[test]
fn failed_upgrade_changes_nothing() {
    let place = Place::new();
    let server = place.start(ANY);
    let mut kept = server.connect().untranslated();
    assert_eq!(kept.get("/a.txt").text(), "one");
    let children = children_of(server.pid());
    let check = |script: &str, says: &str, kept: &mut Client| {
        place.replace(script);
        let why = fail(&server);
        assert!(why.contains(says), "{script:?}: {why}");
        let response = kept.get("/a.txt");
        assert_eq!((response.text().as_str(), response.field("Connection")), ("one", None));
        assert_eq!(server.get("/a.txt").text(), "one");
        assert_eq!(children_of(server.pid()), children);
    };
    check("#!/bin/sh\nexit 3\n", "the new process ended with status 3", &mut kept);
    check("#!/bin/sh\nkill -SEGV $$\n", "the new process was killed by signal 11", &mut kept);
    check("#!/nonexistent\n", "No such file", &mut kept);
    check("nonsense", "cannot start ", &mut kept);
    place.restore();
    place.configure(&format!("{ANY}\nnonsense = 1"));
    let why = fail(&server);
    assert!(why.contains("nonsense"), "{why}");
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    place.configure(&format!("listen = [\"127.0.0.1:0\", \"{}\"]", taken.local_addr().unwrap()));
    let why = fail(&server);
    assert!(why.contains("cannot listen on"), "{why}");
    assert_eq!(kept.get("/a.txt").field("Connection"), None);
    assert_eq!(server.report("connections_broken"), 0);
    place.configure(ANY);
    server.upgrade();
    assert_eq!(server.get("/a.txt").text(), "one");
}

#[test]
fn upgrade_that_takes_too_long_changes_nothing() {
    let place = Place::new();
    let server = place.start(&format!("{ANY}\nstop.upgrade_timeout = \"1s\""));
    let children = children_of(server.pid());
    place.replace("#!/bin/sh\nexec sleep 1000\n");
    let why = fail(&server);
    assert!(why.contains("the new process did not serve within 1 s"), "{why}");
    assert_eq!(server.get("/a.txt").text(), "one");
    assert_eq!(children_of(server.pid()), children);
}

#[test]
fn settings_that_need_a_restart_change_by_upgrade() {
    let place = Place::new();
    let [few, many] = crews();
    let mut server = place.start(&format!("{BOTH}\nworkers = {many}\nhelpers.kind = \"processes\""));
    let (plain, secure) = (server.address, secure_address(&server));
    // Each loop has a listener of its own, to which the kernel assigns connections; fewer loops must serve all.
    place.configure(&format!("{ANY}\nworkers = {few}\nhelpers.kind = \"processes\""));
    server.upgrade();
    assert_eq!(server.wait().code(), Some(0));
    assert!(is_refused(secure), "an address that is not configured any more");
    for _ in 0..40 {
        assert_eq!(Client::connect(plain).get("/a.txt").text(), "one");
    }
    place.configure(&format!("{ANY}\nworkers = {many}"));
    let old = server.pid();
    server.upgrade();
    wait_for_end(old);
    for _ in 0..40 {
        assert_eq!(Client::connect(plain).get("/a.txt").text(), "one");
    }
    let last = server.pid();
    server.signal("TERM");
    wait_for_end(last);
    assert!(is_refused(plain), "a process still has the listener");
}

/// Runs `amped upgrade`.
fn order(control: &Path) -> Ended {
    run(&["upgrade", "--control", control.to_str().unwrap()])
}

#[test]
fn command_upgrades_and_prints_outcome() {
    let place = Place::new();
    let control = place.path("control");
    let keys = format!("{ANY}\ncontrol.socket = {control:?}");
    let server = place.start(&keys);
    for _ in 0..2 {
        let old = server.pid();
        let Ended { status, stdout, stderr } = order(&control);
        wait_until("the new process", || server.pid() != old);
        assert_eq!((status, stdout), (0, format!("process {} serves\n", server.pid())), "{stderr}");
        wait_for_end(old);
    }
    let preload = run(&["preload", "--control", control.to_str().unwrap(), "/a.txt"]);
    assert_eq!(preload.status, 0, "{}", preload.stderr);
    place.replace("#!/bin/sh\nexit 3\n");
    let failed = order(&control);
    assert_eq!((failed.status, failed.stderr.as_str()), (1, "amped: the new process ended with status 3\n"));
    place.restore();
    // Another name for the socket: the old one is removed.
    let other = place.path("other");
    place.configure(&format!("{ANY}\ncontrol.socket = {other:?}"));
    let old = server.pid();
    assert_eq!(order(&control).status, 0);
    wait_until("the new process", || server.pid() != old);
    assert!(!control.exists() && other.exists());
    let last = server.pid();
    server.signal("TERM");
    wait_for_end(last);
    assert!(!other.exists());
}

#[test]
fn reload_during_upgrade_reaches_new_process() {
    let place = Place::new();
    let server = place.start(ANY);
    let [go, started] = ["go", "started"].map(|name| place.path(name));
    place.replace(&format!(
        "#!/bin/sh\ntouch {}\nwhile ! test -e {}; do sleep 0.05; done\nexec {} \"$@\"\n",
        started.display(),
        go.display(),
        program().get_program().display()
    ));
    server.signal("USR2");
    wait_until("the new process", || started.exists());
    server.signal("USR2");
    server.wait_for("an upgrade is in progress already");
    server.signal("HUP");
    server.wait_for("the new configuration is in force");
    let old = server.pid();
    fs::write(go, "").unwrap();
    wait_until("the upgrade", || server.pid() != old);
    wait_until("the reload of both", || server.said().matches("the new configuration is in force").count() == 2);
    assert_eq!(server.get("/a.txt").text(), "one");
}

#[test]
fn service_manager_learns_of_new_process_which_pings_its_watchdog() {
    let place = Place::new();
    let manager = ServiceManager::new();
    let inner = place.command(ANY);
    let mut command = Command::new("bash");
    command.args(["-c", "WATCHDOG_PID=$$ exec \"$0\" \"$@\""]).arg(inner.get_program()).args(inner.get_args());
    command.env("WATCHDOG_USEC", "400000");
    manager.supervise(&mut command);
    let mut server = Server::spawn(command);
    let next = || {
        let mut message = String::new();
        wait_until("a message other than that of the watchdog", || {
            message = manager.next();
            message != "WATCHDOG=1\n"
        });
        message
    };
    let ready = format!("READY=1\nSTATUS=serving on {}\n", server.address);
    assert_eq!(next(), ready);
    place.replace("#!/bin/sh\nexit 3\n");
    fail(&server);
    assert_eq!(next(), format!("{}; the last upgrade failed, see the log\n", ready.trim_end()));
    place.restore();
    let pid = server.upgrade();
    // The first message is the new process's own, which the service manager ignores.
    assert_eq!([next(), next()], [ready.clone(), format!("MAINPID={pid}\n{ready}")]);
    assert_eq!(server.wait().code(), Some(0));
    manager.expect_only("WATCHDOG=1\n", 3);
    server.signal("TERM");
    assert!(next().starts_with("STOPPING=1\n"));
}

#[test]
fn metrics_file_and_address_go_to_new_process() {
    let place = Place::new();
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    let file = folder.path().join("metrics");
    let keys = format!("{ANY}\n[metrics]\nlisten = \"127.0.0.1:0\"\nfile = {file:?}\n");
    let server = place.start(&keys);
    server.wait_for("amped: metrics on http://");
    let said = server.said();
    let line = said.lines().find_map(|line| line.strip_prefix("amped: metrics on http://")).unwrap();
    let address: SocketAddr = line.split('/').next().unwrap().parse().unwrap();
    let owner = || {
        let bytes = fs::read(&file).unwrap();
        u64::from_ne_bytes(bytes[40..48].try_into().unwrap())
    };
    assert_eq!(owner(), u64::from(server.pid()));
    place.configure(&keys.replace("127.0.0.1:0\"]", "192.0.2.1:1\"]"));
    fail(&server);
    assert_eq!(owner(), u64::from(server.pid()));
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    place.configure(&keys);
    let old = server.pid();
    let pid = server.upgrade();
    wait_for_end(old);
    assert_eq!(owner(), u64::from(pid));
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    assert_eq!(server.get("/a.txt").text(), "one");
    let page = Client::connect(address).untranslated().get("/metrics").text();
    assert!(page.contains("\namped_requests_total 1\n"), "{page}");
}

#[test]
fn process_without_privileges_upgrades_with_port_that_needed_them() {
    need_root("binds a port below 1024");
    let place = Place::new();
    let port = (900..1000).find(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok()).unwrap();
    let log = place.path("log");
    fs::create_dir(&log).unwrap();
    fs::set_permissions(place.folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    for name in ["own.key", "own.pem"] {
        fs::set_permissions(place.path(name), fs::Permissions::from_mode(0o644)).unwrap();
    }
    let keys = format!(
        "listen = [\"127.0.0.1:{port}\", \"127.0.0.1:0 tls\"]\nuser = \"nobody\"\nlog.access = {:?}",
        log.join("access.log")
    );
    let program = fs::copy(program().get_program(), place.path("copy")).and(Ok(place.path("copy"))).unwrap();
    let mut command = Command::new(program);
    command.args(["serve", "--config", place.configure(&keys).to_str().unwrap()]);
    let server = Server::spawn(command);
    let old = server.pid();
    server.upgrade();
    wait_for_end(old);
    assert_eq!(server.get("/a.txt").text(), "one");
    let status = fs::read_to_string(format!("/proc/{}/status", server.pid())).unwrap();
    assert!(!status.contains("\nUid:\t0\t") && status.contains("\nCapEff:\t0000000000000000\n"), "{status}");
    wait_until("the log", || fs::read_to_string(log.join("access.log")).unwrap().contains("/a.txt"));
    // Only root may read the key now.
    fs::set_permissions(place.path("own.key"), fs::Permissions::from_mode(0o600)).unwrap();
    let why = fail(&server);
    assert!(why.contains("own.key") && why.contains("denied"), "{why}");
    assert_eq!(server.get("/a.txt").text(), "one");
}
