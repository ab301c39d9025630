//! Persistent applications (FastCGI): Debian's php-fpm, fcgiwrap, and a test application that reports what it received.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Instant;

use super::harness::*;
use crate::php::Php;

/// An application that reports what it received.
const APP: &str = include_str!("fastcgi_app.py");

/// Serves a site whose `/app` is that application, started by the server.
fn serve(site: &Site, keys: &str) -> Server {
    let app = site.file("hidden/app.py", APP);
    let command = format!("[\"python3\", {:?}, {:?}]", app.to_str().unwrap(), site.path().to_str().unwrap());
    Server::with_site(site, &format!("[[site.app]]\nmatch = \"/app\"\ncommand = {command}\n{keys}"))
}

/// Parses its report: its process, requests and connections.
fn report_of(response: &Response) -> [usize; 3] {
    assert_eq!(response.status, 200, "{}", response.text());
    let text = response.text();
    let numbers: Vec<usize> = text.split(' ').take(3).map(|number| number.parse().unwrap()).collect();
    numbers.try_into().unwrap()
}

#[test]
fn application_is_started_and_kept_running() {
    // In MP the applications belong to the workers, so it runs the long test too.
    let count = if matches!(architecture(), Some("amped" | "mp")) { 2000 } else { 300 };
    let site = Site::new();
    let server = serve(&site, "");
    assert!(server.programs().is_empty(), "it is started on demand");
    let mut client = server.connect();
    let first = client.get("/app/more/of%20it?x");
    assert!(first.text().ends_with(" /app /more/of it"), "{}", first.text());
    let [pid, ..] = report_of(&first);
    let descriptors = server.descriptors().len();
    for n in 2..=count {
        let [same, requests, connections] = report_of(&client.get("/app"));
        assert_eq!((same, requests), (pid, n));
        // If workers are processes, an idle connection would keep the other workers from the application.
        assert_eq!(connections, if has_processes() { n } else { 1 });
    }
    assert_eq!(server.programs(), [pid as u32]);
    assert_eq!(server.descriptors().len(), descriptors);
    // Bodies in both directions.
    for size in [0, 1, 70_000, 3_000_000] {
        let body = pattern(size);
        client.send_request("POST", "/app?body", &[("Content-Length", &size.to_string())]);
        client.send(&body);
        assert!(client.response("POST").body == body, "{size} bytes");
    }
    assert_eq!(client.get("/app?complain").status, 200);
    server.wait_for("/app: something is wrong");
}

#[test]

fn unused_application_is_stopped() {
    let site = Site::new();
    let server = serve(&site, "min_spare = 0");
    let before = super::apps::descriptors(&server);
    let [pid, ..] = report_of(&server.get("/app"));
    wait_until("the application to exit", || parent_of(pid as u32).is_none());
    wait_until("its descriptors to be closed", || server.descriptors().len() <= before);
}

#[test]
fn application_pages_are_cached() {
    let site = Site::new();
    let server = serve(&site, "cache = \"1h\"");
    let mut client = server.connect();
    let first = client.get("/app?a");
    let [.., requests, _] = report_of(&first);
    for _ in 0..3 {
        let again = client.get("/app?a");
        assert_eq!((again.status, &again.body), (200, &first.body));
        assert!(again.field("Age").is_some());
    }
    assert_eq!(report_of(&client.get("/app?b"))[1], requests + 1);
}

#[test]
fn crashed_applications_are_restarted() {
    let site = Site::new();
    let server = serve(&site, "max_processes = 2\ntimeout = \"2s\"");
    // Each request on a connection of its own: in a pool an idle connection may be closed for a new one.
    let [first, ..] = report_of(&server.get("/app"));
    // Killed between two requests: no client notices.
    let kill = |pid: usize| assert!(Command::new("kill").args(["-9", &pid.to_string()]).status().unwrap().success());
    kill(first);
    wait_until("the application to exit", || parent_of(first as u32).is_none());
    // A process that died soon after its start is restarted after a delay.
    let again = || {
        let mut second = None;
        wait_until("another application process", || {
            let response = server.get("/app");
            // 502: another request restarted it, and it was about to exit.
            assert!([200, 502, 503].contains(&response.status), "{}", response.text());
            second = (response.status == 200).then(|| report_of(&response)[0]);
            second.is_some()
        });
        second.unwrap()
    };
    let second = again();
    assert_ne!(first, second);
    // Killed during a request: its client receives the error. The application's connection was idle and may have been
    // closed before; the server then sends the request again.
    let status = server.get("/app?die").status;
    assert!([502, 503].contains(&status), "{status}");
    let third = again();
    assert!(server.connect().try_get("/app?half").is_none());
    let fourth = again();
    assert!(third != second && fourth != third);
    let sleeps = site.path().join("sleeps");
    // Not always the process that answered last: its slot may not be free again yet.
    let sleeper = || {
        let mut pid = None;
        wait_until("the application to start its request", || {
            let text = fs::read_to_string(&sleeps).unwrap_or_default();
            pid = text.strip_suffix('\n').and_then(|pid| pid.parse().ok());
            pid.is_some()
        });
        pid.unwrap()
    };
    // An application that exceeds the timeout is killed.
    assert_eq!(server.get("/app?sleep").status, 504);
    let late = sleeper();
    wait_until("the application past its timeout to exit", || parent_of(late).is_none());
    // So is one whose client has disconnected.
    again();
    fs::remove_file(&sleeps).unwrap();
    let mut leaver = server.connect();
    leaver.send_request("GET", "/app?sleep", &[]);
    let left = sleeper();
    drop(leaver);
    wait_until("the application of the disconnected client to exit", || parent_of(left).is_none());
    again();
    assert!(server.programs().len() <= 2);
}

#[test]
fn applications_killed_under_load_are_restarted() {
    let site = Site::new();
    let server = serve(&site, "max_processes = 3");
    let before = super::apps::descriptors(&server);
    let done = AtomicBool::new(false);
    let statuses: Vec<u16> = thread::scope(|scope| {
        let stop = SetOnDrop(&done);
        let ask = || {
            let mut statuses = Vec::new();
            while !done.load(Ordering::Relaxed) {
                // If the application is killed after the body, the client sees a truncated response.
                statuses.push(server.connect().try_get("/app").map_or(502, |response| response.status));
            }
            statuses
        };
        let clients: Vec<_> = (0..4).map(|_| scope.spawn(ask)).collect();
        for _ in 0..3 {
            wait_until("status 200", || {
                server.connect().try_get("/app").is_some_and(|response| response.status == 200)
            });
            for pid in server.programs() {
                let _ = Command::new("kill").args(["-9", &pid.to_string()]).status();
            }
        }
        drop(stop);
        clients.into_iter().flat_map(|client| client.join().unwrap()).collect()
    });
    assert!(!statuses.is_empty() && statuses.iter().all(|status| [200, 502, 503].contains(status)), "{statuses:?}");
    wait_until("the application to respond again", || server.get("/app").status == 200);
    assert!(server.programs().len() <= 3);
    // Two descriptors per process: one that signals its exit, and a connection.
    wait_until("all other descriptors to be closed", || server.descriptors().len() <= before + 3 * 2);
}

#[test]
fn slow_client_does_not_delay_others() {
    let site = Site::new();
    site.file("a.txt", "static");
    let server =
        serve(&site, "max_processes = 4\ntimeout = \"1h\"\nbuffer_request = false\n[spool]\nmax_bytes = \"16MiB\"");
    let targets = ["/app?sleep", "/app?flood", "/app?body", "/app?deaf"];
    // Each process serves one request at a time. When the client disconnects, the process is busy with an aborted
    // request, and the server stops it.
    let running = || server.programs().len();
    super::apps::slow_ones(&server, targets, || running() == 4, || running() == 0);
    assert_eq!(report_of(&server.get("/app")).len(), 3);
}

#[test]
fn application_on_tcp_port_is_served() {
    let site = Site::new();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let app = Listening::start(&site, listener, &[]);
    let server = Server::with_site(
        &site,
        &format!("[[site.app]]\nmatch = \"/app\"\nfastcgi = \"{address}\"\nmax_processes = 1"),
    );
    let mut client = server.connect();
    for n in 1..20 {
        assert_eq!(report_of(&client.get("/app"))[..2], [app.0.id() as usize, n]);
    }
    let body = pattern(1_000_000);
    client.send_request("POST", "/app?body", &[("Content-Length", "1000000")]);
    client.send(&body);
    assert!(client.response("POST").body == body);
    drop(app);
    wait_until("status 502", || {
        let response = client.get("/app");
        response.status == 502 && response.text().contains("application cannot be reached")
    });
    server.wait_for(&format!("cannot reach the application at {address}"));
}

/// Starts a server with that application, whose configuration file can be changed. Its temporary files are in `beside`.
fn serve_from_file(site: &Site, beside: &Path, keys: &str) -> Server {
    write_config(site, beside, keys);
    let mut command = program();
    command.args(["serve", "--config"]).arg(beside.join("amped.toml")).env("TMPDIR", beside);
    Server::spawn(command)
}

fn write_config(site: &Site, beside: &Path, keys: &str) {
    let app = site.file("hidden/app.py", APP);
    let command = format!("[\"python3\", {:?}, {:?}]", app.to_str().unwrap(), site.path().to_str().unwrap());
    let toml = format!(
        "listen = [\"127.0.0.1:0\"]\n[[site]]\nroot = {:?}\n[[site.app]]\nmatch = \"/app\"\ncommand = {command}\n{keys}",
        site.path()
    );
    fs::write(beside.join("amped.toml"), toml).unwrap();
}

/// Sends a request that the application holds until a file `go` exists.
fn waiting(site: &Site, server: &Server) -> Client {
    let sleeps = site.path().join("sleeps");
    let _ = fs::remove_file(&sleeps);
    let mut client = server.connect();
    client.send_request("GET", "/app?wait", &[]);
    wait_until("the application to start its request", || sleeps.exists());
    client
}

#[test]
fn reload_keeps_unchanged_applications_and_their_requests() {
    let site = Site::new();
    let beside = tempfile::tempdir().unwrap();
    let server = serve_from_file(&site, beside.path(), "max_processes = 2");
    let [pid, ..] = report_of(&server.get("/app"));
    let mut client = waiting(&site, &server);
    let reload = |keys: &str, count: usize| {
        write_config(&site, beside.path(), keys);
        server.signal("HUP");
        wait_until("the reload", || server.said().matches("the new configuration is in force").count() == count);
    };
    reload("max_processes = 2", 1);
    fs::write(site.path().join("go"), "").unwrap();
    assert_eq!(report_of(&client.response("GET"))[0], pid, "the request continues");
    for _ in 0..3 {
        assert_eq!(report_of(&server.get("/app"))[0], pid, "the process continues");
    }
    // After a change of the application, a pending request ends with the old process and further ones go to the new
    // one.
    fs::remove_file(site.path().join("go")).unwrap();
    let mut client = waiting(&site, &server);
    reload("max_processes = 2\nenv = { SCRIPT_NAME = \"/new\" }", 2);
    // A worker that is about to retire may still accept a connection.
    let mut other = pid;
    wait_until("the new application", || {
        let response = server.get("/app");
        other = report_of(&response)[0];
        response.text().contains("/new")
    });
    assert_ne!(other, pid);
    fs::write(site.path().join("go"), "").unwrap();
    assert_eq!(report_of(&client.response("GET"))[0], pid);
    drop(client);
    wait_until("the old application to exit", || parent_of(pid as u32).is_none());
    assert_eq!(report_of(&server.get("/app"))[0], other);
}

#[test]
fn stopping_server_lets_applications_finish_and_leaves_nothing() {
    let site = Site::new();
    let beside = tempfile::tempdir().unwrap();
    let mut server = serve_from_file(&site, beside.path(), "max_processes = 2");
    let [pid, ..] = report_of(&server.get("/app"));
    let mut client = waiting(&site, &server);
    server.signal("TERM");
    server.wait_for("finishing requests in progress");
    fs::write(site.path().join("go"), "").unwrap();
    assert_eq!(client.response("GET").status, 200);
    drop(client);
    assert!(server.wait().success());
    wait_until("its processes to exit", || parent_of(pid as u32).is_none());
    let left: Vec<_> = fs::read_dir(beside.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["amped.toml"]);
}

#[test]
fn crashed_worker_does_not_affect_application() {
    if !has_processes() {
        return;
    }
    let site = Site::new();
    let beside = tempfile::tempdir().unwrap();
    let server = serve_from_file(&site, beside.path(), "max_processes = 1");
    let [pid, ..] = report_of(&server.get("/app"));
    let applications = server.programs();
    let manager = parent_of(pid as u32).unwrap().1;
    for worker in server.children().into_iter().filter(|&child| child != manager) {
        let _ = Command::new("kill").args(["-9", &worker.to_string()]).status();
    }
    wait_until("a response through another worker", || {
        server.connect().try_get("/app").is_some_and(|response| report_of(&response)[0] == pid)
    });
    assert_eq!(server.programs(), applications);
    // After SIGKILL of the server no process stays either.
    let _ = Command::new("kill").args(["-9", &server.pid().to_string()]).status();
    wait_until("its processes to exit", || [pid as u32, manager].iter().all(|&pid| parent_of(pid).is_none()));
}

#[test]
fn failed_application_start_is_logged() {
    let site = Site::new();
    let server = Server::with_site(&site, "[[site.app]]\nmatch = \"/app\"\ncommand = [\"/there/is/none\"]");
    let response = server.get("/app");
    assert_eq!(response.status, 502);
    assert!(response.text().contains("application cannot be reached"), "{}", response.text());
    server.wait_for("cannot start /there/is/none");
}

/// The test application, which listens before the server starts. Stopped when dropped.
struct Listening(Child);

impl Listening {
    fn start(site: &Site, listener: impl Into<std::os::fd::OwnedFd>, words: &[&str]) -> Listening {
        let app = site.file("hidden/app.py", APP);
        let mut command = Command::new("python3");
        command.arg(app).arg(site.path()).args(words).stdin(listener.into());
        Listening(command.spawn().unwrap())
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Statuses of concurrent requests for these targets, each on a connection of its own.
fn at_once(server: &Server, targets: &[String]) -> Vec<u16> {
    thread::scope(|scope| {
        let threads: Vec<_> = targets.iter().map(|target| scope.spawn(move || server.get(target).status)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// A connection that one rule kept open would deny the only process to the other.
#[test]
fn single_process_application_serves_several_rules() {
    let site = Site::new();
    let beside = tempfile::tempdir().unwrap();
    let socket = beside.path().join("app.sock");
    let _app = Listening::start(&site, std::os::unix::net::UnixListener::bind(&socket).unwrap(), &[]);
    let rule = |name: &str| format!("[[site.app]]\nmatch = \"{name}\"\nfastcgi = \"unix:{}\"\n", socket.display());
    let server = Server::with_site(&site, &[rule("/a"), rule("/b")].concat());
    let mut clients = [server.connect(), server.connect()];
    for _ in 0..5 {
        for (client, target) in clients.iter_mut().zip(["/a", "/b"]) {
            assert_eq!(client.get(target).status, 200, "{target}");
        }
    }
    let targets: Vec<String> = (0..20).map(|n| ["/a", "/b"][n % 2].to_owned()).collect();
    assert_eq!(at_once(&server, &targets), [200; 20]);
}

#[test]
fn event_streams_of_external_application_run_concurrently() {
    let site = Site::new();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let _app = Listening::start(&site, listener, &["forks"]);
    let server = Server::with_site(&site, &format!("[[site.app]]\nmatch = \"/app\"\nfastcgi = \"{address}\"\n"));
    // More than the 20 processes of a server's own application, and fewer than the workers of a pool.
    let mut streams: Vec<Client> = (0..26).map(|_| server.connect()).collect();
    for stream in &mut streams {
        stream.send_request("GET", "/app?stream", &[]);
    }
    for stream in &mut streams {
        assert!(stream.read_head().starts_with("HTTP/1.1 200"));
    }
    assert_eq!(server.get("/app").status, 200);
}

/// The kernel queues one or two connections, so most find the application's listen queue full.
#[test]
fn requests_wait_while_listen_queue_is_full() {
    let site = Site::new();
    let beside = tempfile::tempdir().unwrap();
    let socket = beside.path().join("app.sock");
    let listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    rustix::net::listen(&listener, 1).unwrap();
    let _app = Listening::start(&site, listener, &[]);
    let rule = format!("[[site.app]]\nmatch = \"/app\"\nfastcgi = \"unix:{}\"\n", socket.display());
    let server = Server::with_site(&site, &rule);
    assert_eq!(at_once(&server, &vec!["/app?short".to_owned(); 30]), [200; 30]);
}

#[test]
fn complete_response_has_content_length() {
    let site = Site::new();
    let socket = site.path().with_extension("socket");
    answer_by_fastcgi(&socket, "Content-Type: text/plain\r\n\r\nhello");
    let rule = format!("[[site.app]]\nmatch = \"/app\"\nfastcgi = \"unix:{}\"", socket.display());
    let server = Server::with_site(&site, &rule);
    let mut client = server.connect();
    for version in ["1.0", "1.1", "1.0"] {
        client.send(format!("GET /app HTTP/{version}\r\nHost: a\r\nConnection: keep-alive\r\n\r\n"));
        let response = client.response("GET");
        assert_eq!(response.text(), "hello");
        assert_eq!(response.field("Content-Length"), Some("5"));
        assert_eq!(response.field("Transfer-Encoding"), None);
    }
    let response = client.request("HEAD", "/app", &[]);
    assert_eq!((response.status, response.text().as_str()), (200, ""));
}

/// Each site has its own rule for the same socket, and there are more sites than processes.
#[test]
fn sites_sharing_php_pool_do_not_starve_each_other() {
    need_root("starts php-fpm, whose children are root's");
    let site = Site::new();
    let beside = tempfile::tempdir().unwrap();
    let socket = beside.path().join("php.sock");
    site.file("a.php", "<?php usleep(100000); echo 'ok';");
    let _php = Php::start(beside.path(), &socket);
    let rules = (0..8).map(|n| {
        let (root, socket) = (site.path(), socket.display());
        format!("[[site]]\nhosts = [\"s{n}\"]\nroot = {root:?}\n[[site.app]]\nmatch = \"*.php\"\nfastcgi = \"unix:{socket}\"\n")
    });
    let server = Server::with_site(&site, &rules.collect::<String>());
    let ask = |n: usize| {
        let mut client = server.connect();
        client.send(format!("GET /a.php HTTP/1.1\r\nHost: s{n}\r\n\r\n"));
        client.response("GET").status
    };
    for n in 0..8 {
        assert_eq!(ask(n), 200, "site {n}");
    }
    let alone = Instant::now();
    assert_eq!(ask(0), 200);
    let alone = alone.elapsed();
    // 16 concurrent requests for 4 processes: each waits for up to four pages. An idle connection that held a process
    // would cost seconds.
    let at_once = Instant::now();
    thread::scope(|scope| {
        let threads: Vec<_> = (0..16).map(|n| scope.spawn(move || ask(n % 8))).collect();
        threads.into_iter().for_each(|thread| assert_eq!(thread.join().unwrap(), 200));
    });
    assert!(at_once.elapsed() < alone * 40, "{:?} for 16 pages of {alone:?}", at_once.elapsed());
}

#[test]
fn php_pages_are_served() {
    need_root("starts php-fpm, whose children are root's");
    let site = Site::new();
    let beside = tempfile::tempdir().unwrap();
    let socket = beside.path().join("php.sock");
    site.file(
        "index.php",
        "<?php header('X-Own: a'); echo $_SERVER['SCRIPT_NAME'], ' ', $_SERVER['PATH_INFO'] ?? '-';",
    );
    site.file("a.html", "static");
    site.file("post.php", "<?php echo strlen(file_get_contents('php://input')), ' ', $_SERVER['CONTENT_TYPE'];");
    site.file(
        "upload.php",
        "<?php echo $_FILES['f']['size'], ' ', md5_file($_FILES['f']['tmp_name']), ' ', $_POST['a'];",
    );
    site.file("large.php", "<?php $s = str_repeat('x', 1 << 20); for ($i = 0; $i < 100; $i++) { echo $s; }");
    site.file("status.php", "<?php http_response_code(410); error_log('from php'); echo 'gone';");
    let php = Php::start(beside.path(), &socket);
    let server = Server::with_site(
        &site,
        &format!(
            "index = [\"index.php\"]\n[[site.app]]\nmatch = \"*.php\"\nfastcgi = \"unix:{}\"\nmax_processes = 4",
            socket.display()
        ),
    );
    let mut client = server.connect();
    for (target, text) in [
        ("/", "/index.php -"),
        ("/index.php", "/index.php -"),
        ("/index.php/a/b", "/index.php /a/b"),
        ("/a.html", "static"),
    ] {
        let response = client.get(target);
        assert_eq!((response.status, response.text().as_str()), (200, text), "{target}");
    }
    assert_eq!(client.request("HEAD", "/index.php", &[]).field("X-Own"), Some("a"));
    // A request for anything but a file of the site does not reach the application.
    for target in ["/none.php", "/a.html/x.php"] {
        assert_eq!(client.get(target).status, 404, "{target}");
    }
    let gone = client.get("/status.php");
    assert_eq!((gone.status, gone.text().as_str()), (410, "gone"));
    server.wait_for("from php");

    client.send_request("POST", "/post.php", &[("Content-Length", "5"), ("Content-Type", "a/b")]);
    client.send("hello");
    assert_eq!(client.response("POST").text(), "5 a/b");
    // 50 MB, as a form sends it.
    let file = pattern(50_000_000);
    let before = "--b\r\nContent-Disposition: form-data; name=\"a\"\r\n\r\nfield\r\n--b\r\nContent-Disposition: form-data; \
                  name=\"f\"; filename=\"x\"\r\n\r\n";
    let after = "\r\n--b--\r\n";
    let length = (before.len() + file.len() + after.len()).to_string();
    let fields = [("Content-Length", &*length), ("Content-Type", "multipart/form-data; boundary=b")];
    client.send_request("POST", "/upload.php", &fields);
    client.send(before);
    client.send(&file);
    client.send(after);
    let answer = client.response("POST").text();
    let path = beside.path().join("same");
    fs::write(&path, &file).unwrap();
    let digest = Command::new("md5sum").arg(&path).output().unwrap().stdout;
    let digest = String::from_utf8(digest).unwrap();
    assert_eq!(answer, format!("50000000 {} field", &digest[..32]));
    // 100 MiB.
    let response = client.get("/large.php");
    assert_eq!(response.body.len(), 100 << 20);
    assert!(response.body.iter().all(|&byte| byte == b'x'));

    drop(php);
    let failed = client.get("/index.php");
    assert_eq!(failed.status, 502);
    assert!(failed.text().contains("application cannot be reached"), "{}", failed.text());
    server.wait_for("cannot reach the application at");
}

#[test]
fn scripts_run_through_fcgiwrap() {
    let site = Site::new();
    let path = site
        .file("cgi-bin/hello", "#!/bin/sh\nprintf 'Content-Type: a/b\\n\\n%s %s' \"$SCRIPT_NAME\" \"$PATH_INFO\"; cat");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    let server = Server::with_site(&site, "[[site.app]]\nmatch = \"/cgi-bin/**\"\ncommand = [\"/usr/sbin/fcgiwrap\"]");
    let mut client = server.connect();
    assert_eq!(client.get("/cgi-bin/hello/x").text(), "/cgi-bin/hello /x");
    client.send_request("POST", "/cgi-bin/hello", &[("Content-Length", "100000")]);
    client.send(vec![b'y'; 100_000]);
    assert_eq!(client.response("POST").body.len(), 100_000 + "/cgi-bin/hello ".len());
    assert_eq!(client.get("/cgi-bin/none").status, 404);
}
