//! Servers that are not ours behind this one: Python's, aiohttp, websockets, PHP's and nginx.

use std::fs;
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};

use super::harness::{Client, Server, Site, pattern, wait_until};
use super::started_nginx::{Nginx, free_addresses};
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
