//! Servers that are not ours behind this one: Python's, aiohttp, websockets, PHP's and nginx, without and with TLS.

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};

use super::harness::{Client, Server, Site, pattern, wait_until};
use super::ports::free_addresses;
use super::started_nginx::Nginx;
use super::{peer, said};

const SCRIPT: &str = include_str!("backends.py");

/// A running server. Stopped when dropped.
struct Running(Child);

impl Running {
    /// Starts a server; returns when it accepts connections.
    fn start(mut command: Command, address: SocketAddr) -> Running {
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let mut running = Running(child);
        wait_until("the backend to listen", || {
            assert!(running.0.try_wait().unwrap().is_none(), "{command:?} has ended: run cargo xtask setup");
            TcpStream::connect(address).is_ok()
        });
        running
    }

    /// Starts the Python script as one of its servers.
    fn script(site: &Site, mode: &str) -> (Running, SocketAddr) {
        let [address] = free_addresses();
        (Running::start(python(site, &[mode, &address.port().to_string()]), address), address)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Debian's Python, for which its packages are installed, with the script.
fn python(site: &Site, args: &[&str]) -> Command {
    let script = site.path().join("hidden/backends.py");
    // Another Python may be reading it.
    if !script.exists() {
        site.file("hidden/backends.py", SCRIPT);
    }
    let mut python = Command::new("/usr/bin/python3");
    python.arg(script).args(args);
    python
}

fn serve(site: &Site, address: SocketAddr, keys: &str) -> Server {
    Server::with_site(site, &format!("[[site.app]]\nmatch = \"/**\"\nhttp = \"{address}\"\n{keys}"))
}

fn curl(server: &Server, path: &str, args: &[&str]) -> String {
    let mut curl = peer("curl");
    curl.args(["--disable", "--silent", "--show-error", "--noproxy", "*", "--max-time", "60"]);
    said(curl.args(args).arg(format!("http://{}{path}", server.address)))
}

#[test]
fn pages_of_python_http_server_are_forwarded() {
    // It speaks HTTP/1.0: each response ends with its connection.
    let (site, beside) = (Site::new(), tempfile::tempdir().unwrap());
    fs::write(beside.path().join("a.bin"), pattern(2_000_000)).unwrap();
    let [address] = free_addresses();
    let mut python = Command::new("/usr/bin/python3");
    python.args(["-m", "http.server", "--bind", "127.0.0.1", &address.port().to_string()]).current_dir(beside.path());
    let _running = Running::start(python, address);
    let server = serve(&site, address, "");
    let mut client = server.connect();
    for _ in 0..3 {
        assert!(client.get("/a.bin").body == pattern(2_000_000));
        assert_eq!(client.get("/none").status, 404);
        assert_eq!(client.request("HEAD", "/a.bin", &[]).field("Content-Length"), Some("2000000"));
    }
}

#[test]
fn aiohttp_application_gets_bodies_and_streams_responses() {
    let site = Site::new();
    let (_running, address) = Running::script(&site, "aiohttp");
    let upload = site.file("hidden/upload", pattern(3_000_000));
    for keys in ["", "buffer_request = false\nbuffer_response = false"] {
        let server = serve(&site, address, keys);
        for method in [&["--data-binary"][..], &["-H", "Transfer-Encoding: chunked", "--data-binary"]] {
            let data = format!("@{}", upload.display());
            let output = site.path().join("hidden/output");
            let output =
                ["-o", output.to_str().unwrap(), "-w", "%{http_code} %header{x-seen-for} %header{x-seen-host}"];
            let result = curl(&server, "/echo", &[method, &[&data], &output].concat());
            assert_eq!(result, format!("200 127.0.0.1 {}", server.address));
            assert!(fs::read(site.path().join("hidden/output")).unwrap() == pattern(3_000_000));
        }
        let expected: String = (0..200).map(|number| format!("{number}\n").repeat(500)).collect();
        assert!(curl(&server, "/stream", &[]) == expected);
        let url = format!("ws://{}/chat", server.address);
        assert_eq!(said(&mut python(&site, &["client", &url])).trim(), "ok");
    }
}

#[test]
fn curl_decompresses_responses_of_aiohttp() {
    let site = Site::new();
    let (_running, address) = Running::script(&site, "aiohttp");
    for coding in ["br", "zstd", "gzip"] {
        let server = serve(&site, address, &format!("compress = ['{coding}']"));
        let written = |seed: usize, args: &[&str]| {
            let output = site.path().join("hidden/output");
            let args = [args, &["-o", output.to_str().unwrap(), "-w", "%header{content-encoding}"]].concat();
            let found = curl(&server, &format!("/text/{seed}"), &args);
            (found, fs::read(output).unwrap())
        };
        for seed in 1..12 {
            let (_, plain) = written(seed, &[]);
            for version in ["--http1.1", "--http2-prior-knowledge"] {
                let (found, decoded) = written(seed, &["--compressed", version]);
                assert!(found == coding && decoded == plain, "{coding} {seed} {version}: {found}");
            }
            let (found, old) = written(seed, &["--compressed", "--http1.0"]);
            assert!(found.is_empty() && old == plain);
        }
        assert_eq!(server.report("app_compressions compressed"), 22);
    }
}

#[test]
fn websocket_messages_pass_in_both_directions() {
    let site = Site::new();
    let (_running, address) = Running::script(&site, "websockets");
    let server = serve(&site, address, "timeout = \"5s\"");
    let url = format!("ws://{}/", server.address);
    let clients: Vec<Child> = (0..4)
        .map(|_| python(&site, &["client", &url]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap())
        .collect();
    for client in clients {
        let output = client.wait_with_output().unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), "ok", "{}", String::from_utf8_lossy(&output.stderr));
    }
    assert_eq!(server.report("tunnels"), 4);
}

#[test]
fn php_development_server_is_a_backend() {
    let (site, beside) = (Site::new(), tempfile::tempdir().unwrap());
    let page = "<?php header('X-A: b'); setcookie('c', 'd'); http_response_code(201);\n\
                echo $_SERVER['REQUEST_METHOD'], ' ', $_SERVER['REQUEST_URI'], ' ', $_SERVER['HTTP_X_FORWARDED_FOR'], ' ',\n\
                md5(file_get_contents('php://input'));";
    fs::write(beside.path().join("index.php"), page).unwrap();
    let [address] = free_addresses();
    let mut php = peer("php");
    php.args(["-S", &address.to_string(), "-t"]).arg(beside.path());
    let _running = Running::start(php, address);
    let server = serve(&site, address, "");
    let mut client = server.connect();
    for body in ["", "hello"] {
        client.send_request("POST", "/a/b?c=%20", &[("Content-Length", &body.len().to_string())]);
        client.send(body);
        let response = client.response("POST");
        assert_eq!((response.status, response.field("X-A")), (201, Some("b")));
        assert!(response.field("Set-Cookie").is_some());
        let digest =
            if body.is_empty() { "d41d8cd98f00b204e9800998ecf8427e" } else { "5d41402abc4b2a76b9719d911017c592" };
        assert_eq!(response.text(), format!("POST /a/b?c=%20 127.0.0.1 {digest}"));
    }
}

#[test]
fn nginx_responses_are_the_same_through_this_server() {
    let site = Site::new();
    let root = tempfile::tempdir().unwrap();
    for size in [0, 1, 5_000, 3_000_000] {
        fs::write(root.path().join(format!("{size}.bin")), pattern(size)).unwrap();
    }
    let [address] = free_addresses();
    let servers = format!(
        "server {{ listen {address}; root {}; keepalive_requests 5;\n\
         location /gzip/ {{ alias {}/; gzip on; gzip_types *; gzip_min_length 1; }} }}",
        root.path().display(),
        root.path().display()
    );
    let _nginx = Nginx::start(tempfile::tempdir().unwrap(), address, &servers);
    let server = serve(&site, address, "");
    let range = |range| vec![("Range", range)];
    let requests = [
        ("GET", "/0.bin", vec![]),
        ("GET", "/1.bin", vec![]),
        ("GET", "/5000.bin", vec![]),
        ("GET", "/3000000.bin", vec![]),
        ("GET", "/5000.bin", range("bytes=10-19")),
        ("GET", "/5000.bin", range("bytes=9000-")),
        ("GET", "/gzip/5000.bin", vec![("Accept-Encoding", "gzip")]),
        ("HEAD", "/5000.bin", vec![]),
        ("GET", "/none", vec![]),
    ];
    let mut through = server.connect();
    for _ in 0..4 {
        for (method, target, fields) in &requests {
            // nginx closes a connection after some requests.
            let mut direct = Client::connect(address);
            direct.send_request(method, target, fields);
            through.send_request(method, target, fields);
            let (expected, found) = (direct.response(method), through.response(method));
            assert_eq!((expected.status, expected.body == found.body), (found.status, true), "{method} {target}");
            for name in ["Content-Type", "Content-Length", "Content-Range", "Content-Encoding", "ETag", "Last-Modified"]
            {
                // A body of unknown length may be complete, and then has one.
                let is_same = expected.field(name) == found.field(name);
                assert!(
                    is_same || (name == "Content-Length" && expected.field(name).is_none()),
                    "{method} {target} {name}"
                );
            }
        }
    }
}

#[test]
fn stopped_python_server_gets_no_requests_until_it_runs_again() {
    let (site, beside) = (Site::new(), tempfile::tempdir().unwrap());
    let [first, second] = free_addresses();
    for address in [first, second] {
        let root = beside.path().join(address.port().to_string());
        fs::create_dir(&root).unwrap();
        fs::write(root.join("name"), address.port().to_string()).unwrap();
    }
    let start = |address: SocketAddr| {
        let mut python = Command::new("/usr/bin/python3");
        let port = address.port().to_string();
        python.args(["-m", "http.server", "--bind", "127.0.0.1", &port]).current_dir(beside.path().join(port));
        Running::start(python, address)
    };
    let (_first, running) = (start(first), start(second));
    let toml = format!(
        "[[site.app]]\nmatch = \"/**\"\nhttp = [\"{first}\", \"{second}\"]\nmax_failures = 1000\n\
         health = {{ path = \"/name\", interval = \"1s\", timeout = \"1s\", status = 200 }}"
    );
    let server = Server::with_site(&site, &toml);
    let count = || {
        let mut client = server.connect();
        (0..10).filter(|_| client.get("/name").text() == second.port().to_string()).count()
    };
    assert_eq!(count(), 5);
    drop(running);
    server.wait_for(&format!("the backend {second} is unhealthy and gets no requests: Connection refused"));
    let before = server.report("backend_failures");
    assert_eq!((count(), server.report("backend_failures")), (0, before), "no request tries it");
    let _second = start(second);
    server.wait_for(&format!("the backend {second} is healthy again"));
    assert_eq!(count(), 5);
}

/// Writes a self-signed certificate for 127.0.0.1, as `openssl req -x509` makes it, and its key.
fn self_signed(directory: &std::path::Path) -> (std::path::PathBuf, std::path::PathBuf) {
    let [certificate, key] = ["own.pem", "own.key"].map(|name| directory.join(name));
    let mut openssl = peer("openssl");
    openssl.args(["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=own"]);
    openssl.args(["-addext", "subjectAltName=IP:127.0.0.1", "-out"]).arg(&certificate).arg("-keyout").arg(&key);
    let output = openssl.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    (certificate, key)
}

/// Serves a site that forwards everything to an https server.
fn serve_https(site: &Site, address: SocketAddr, keys: &str) -> Server {
    Server::with_site(site, &format!("[[site.app]]\nmatch = \"/**\"\nhttp = \"https://{address}\"\n{keys}"))
}

#[test]
fn nginx_with_tls_is_a_backend() {
    let (site, root) = (Site::new(), tempfile::tempdir().unwrap());
    fs::write(root.path().join("a.bin"), pattern(3_000_000)).unwrap();
    let (certificate, key) = self_signed(root.path());
    let [address, plain] = free_addresses();
    for protocol in ["TLSv1.2", "TLSv1.3"] {
        let servers = format!(
            "server {{ listen {plain}; }} server {{ listen {address} ssl; root {}; ssl_protocols {protocol};\n\
             ssl_certificate {}; ssl_certificate_key {}; keepalive_requests 3;\n\
             location = /tls {{ return 200 \"$ssl_protocol $ssl_session_reused\"; }} }}",
            root.path().display(),
            certificate.display(),
            key.display()
        );
        let _nginx = Nginx::start(tempfile::tempdir().unwrap(), plain, &servers);
        let server = serve_https(&site, address, &format!("tls_ca = {certificate:?}"));
        let mut client = server.connect();
        let seen: Vec<String> = (0..7).map(|_| client.get("/tls").text()).collect();
        // A connection has three requests; later ones resume the session.
        let [full, resumed] = [".", "r"].map(|reused| format!("{protocol} {reused}"));
        assert_eq!((&seen[0], &seen[6]), (&full, &resumed), "{seen:?}");
        assert!(client.get("/a.bin").body == pattern(3_000_000));
        let server = serve_https(&site, address, "");
        assert_eq!(server.get("/tls").status, 502);
        server.wait_for("; name its CA, or its own certificate, in `tls_ca`");
    }
}

#[test]
fn python_server_with_tls_is_a_backend() {
    let (site, beside) = (Site::new(), tempfile::tempdir().unwrap());
    fs::write(beside.path().join("a.bin"), pattern(2_000_000)).unwrap();
    let (certificate, key) = self_signed(beside.path());
    let [address] = free_addresses();
    let script = "import sys, ssl, http.server\n\
                  server = http.server.ThreadingHTTPServer(('127.0.0.1', int(sys.argv[1])), http.server.SimpleHTTPRequestHandler)\n\
                  context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)\n\
                  context.load_cert_chain(sys.argv[2], sys.argv[3])\n\
                  server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)\n\
                  server.serve_forever()";
    let mut python = Command::new("/usr/bin/python3");
    python.args(["-c", script, &address.port().to_string()]).args([&certificate, &key]).current_dir(beside.path());
    let _running = Running::start(python, address);
    let server = serve_https(&site, address, &format!("tls_ca = {certificate:?}"));
    let mut client = server.connect();
    for _ in 0..3 {
        assert!(client.get("/a.bin").body == pattern(2_000_000));
        assert_eq!(client.get("/none").status, 404);
    }
}

/// Messages of several sizes, one after another; then the result is reported to `REPORT`, whatever it is.
const BROWSER_PAGE: &str = r#"<!doctype html><title>WebSocket</title><script>
const socket = new WebSocket(`wss://${location.host}/socket`);
const sent = [1, 100, 125, 126, 20000, 65536, 300000].map(size => 'x'.repeat(size) + size);
const report = what => { new Image().src = 'http://REPORT/' + what; };
let at = 0;
socket.onopen = () => socket.send(sent[0]);
socket.onerror = () => report('error');
socket.onmessage = ({ data }) => {
  if (data !== sent[at]) return report('wrong-' + at);
  at += 1;
  if (at < sent.length) return socket.send(sent[at]);
  socket.onclose = ({ code, wasClean }) => report(`closed-${code}-${wasClean}`);
  socket.close(1000);
};
</script>"#;

/// Chromium uses the HTTP/2 connection of the page for its WebSocket (RFC 8441), because the server's settings allow it.
#[test]
fn chromium_has_websocket_in_stream_of_http2() {
    let site = Site::new();
    let (_running, address) = Running::script(&site, "websockets");
    let (certificate, key) = self_signed(site.path());
    let reports = TcpListener::bind("127.0.0.1:0").unwrap();
    let place = reports.local_addr().unwrap().to_string();
    site.file("root/page.html", BROWSER_PAGE.replace("REPORT", &place));
    let log = site.path().join("log");
    let config = format!(
        "listen = [\"127.0.0.1:0 tls\"]\n[log]\naccess = {log:?}\nflush = \"10ms\"\n\
         [[site]]\nroot = \"root\"\ncertificate = [{certificate:?}]\nkey = [{key:?}]\n\
         [[site.app]]\nmatch = \"/socket\"\nhttp = \"{address}\"\n"
    );
    let server = Server::start(&["--config", site.file("amped.toml", config).to_str().unwrap()]);
    let mut chromium = peer("chromium");
    chromium.args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-proxy-server"]);
    chromium.args(["--disable-background-networking", "--ignore-certificate-errors", "--remote-debugging-port=0"]);
    chromium.arg(format!("--user-data-dir={}", site.path().join("profile").display()));
    chromium.arg(format!("https://{}/page.html", server.address));
    let _chromium = Running(chromium.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
    let mut line = String::new();
    BufReader::new(reports.accept().unwrap().0).read_line(&mut line).unwrap();
    assert!(line.starts_with("GET /closed-1000-true "), "{line}");
    assert_eq!(server.report("tunnels"), 1);
    let has_logged = || fs::read_to_string(&log).is_ok_and(|log| log.contains("/socket"));
    wait_until("the line of the WebSocket connection", has_logged);
    let lines = fs::read_to_string(&log).unwrap();
    let line = lines.lines().find(|line| line.contains("/socket")).unwrap();
    assert!(line.contains("\"CONNECT /socket HTTP/2.0\" 200 "), "{lines}");
}
