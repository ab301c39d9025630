//! Requests that are forwarded to servers by HTTP: what reaches a backend, what its response becomes, and what happens
//! when it misbehaves. The backends are threads of the test that play a script.
//!
//! The suite has this module twice: as `https_backends` the connections to the backends use TLS.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use amped_http::h2::frame::{self, ErrorCode, FRAME_BYTES, StreamId};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use sha1::{Digest, Sha1};

use super::frames::*;
use super::harness::*;
use super::tls_backend;
use crate::ports::{free_addresses, listen};

/// Whether backends use TLS.
fn is_https() -> bool {
    module_path!().ends_with("::https_backends")
}

/// The keys for these backends.
fn http(site: &Site, addresses: &[SocketAddr]) -> String {
    if !is_https() {
        let addresses: Vec<String> = addresses.iter().map(SocketAddr::to_string).collect();
        return format!("http = {addresses:?}");
    }
    let urls: Vec<String> = addresses.iter().map(|address| format!("https://{address}/")).collect();
    format!("http = {urls:?}\ntls_ca = {:?}", tls_backend::authorities(site))
}

/// The name of a backend in messages.
fn shown(address: SocketAddr) -> String {
    if is_https() { format!("https://{address}") } else { address.to_string() }
}

/// A server behind the one under test.
pub(super) struct Backend {
    pub(super) address: SocketAddr,
    /// All connections so far.
    streams: Arc<Mutex<Vec<TcpStream>>>,
    is_over: Arc<AtomicBool>,
}

/// A connection to it.
pub(super) struct Peer {
    reader: BufReader<TcpStream>,
    stream: TcpStream,
}

/// A request as it arrived.
#[derive(Debug, Default)]
pub(super) struct Arrived {
    pub(super) line: String,
    pub(super) fields: Vec<(String, String)>,
    body: Vec<u8>,
}

impl Backend {
    /// Serves each connection in a thread by this function, which gets its number, from 1.
    pub(super) fn start(serve: impl Fn(usize, &mut Peer) + Send + Sync + 'static) -> Backend {
        Backend::at(TcpListener::bind("127.0.0.1:0").unwrap(), serve)
    }

    pub(super) fn at(listener: TcpListener, serve: impl Fn(usize, &mut Peer) + Send + Sync + 'static) -> Backend {
        let address = listener.local_addr().unwrap();
        let (streams, is_over): (Arc<Mutex<Vec<TcpStream>>>, _) = (Arc::default(), Arc::new(AtomicBool::new(false)));
        let (all, over, serve) = (Arc::clone(&streams), Arc::clone(&is_over), Arc::new(serve));
        thread::spawn(move || {
            for stream in listener.incoming() {
                if over.load(Ordering::Relaxed) {
                    return;
                }
                let (stream, serve) = (stream.unwrap(), Arc::clone(&serve));
                let stream = if is_https() { tls_backend::terminate(stream) } else { stream };
                stream.set_read_timeout(Some(PATIENCE)).unwrap();
                let mut all = all.lock().unwrap();
                all.push(stream.try_clone().unwrap());
                let number = all.len();
                thread::spawn(move || {
                    let reader = BufReader::new(stream.try_clone().unwrap());
                    serve(number, &mut Peer { reader, stream: stream.try_clone().unwrap() });
                    // A copy of it is in the list.
                    let _ = stream.shutdown(Shutdown::Both);
                });
            }
        });
        Backend { address, streams, is_over }
    }

    /// Responds to each request with its own head, and the body.
    pub(super) fn echo() -> Backend {
        Backend::start(|_, peer| {
            while let Some(arrived) = peer.request() {
                let fields: String = arrived.fields.iter().map(|(name, value)| format!("{name}: {value}\n")).collect();
                let text = [arrived.line.as_bytes(), b"\n", fields.as_bytes(), b"\n", &arrived.body].concat();
                peer.send(format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", text.len()));
                if !arrived.line.starts_with("HEAD ") {
                    peer.send(text);
                }
            }
        })
    }

    /// Responds to each request with its name.
    fn named(name: &'static str) -> Backend {
        Backend::named_at(TcpListener::bind("127.0.0.1:0").unwrap(), name)
    }

    pub(super) fn named_at(listener: TcpListener, name: &'static str) -> Backend {
        Backend::at(listener, move |_, peer| {
            while peer.request().is_some() {
                peer.send(format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{name}", name.len()));
            }
        })
    }

    pub(super) fn connections(&self) -> usize {
        self.streams.lock().unwrap().len()
    }
}

impl Drop for Backend {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        let _ = TcpStream::connect(self.address);
        self.streams.lock().unwrap().iter().for_each(|stream| _ = stream.shutdown(Shutdown::Both));
    }
}

impl Peer {
    /// Reads the next request; `None` at the end of the connection.
    pub(super) fn request(&mut self) -> Option<Arrived> {
        let mut arrived = self.head()?;
        let field = |name: &str| arrived.fields.iter().find(|(known, _)| known.eq_ignore_ascii_case(name));
        if let Some((_, length)) = field("Content-Length") {
            arrived.body = vec![0; length.parse().unwrap()];
            self.reader.read_exact(&mut arrived.body).ok()?;
        } else if let Some((_, coding)) = field("Transfer-Encoding") {
            assert_eq!(coding, "chunked");
            loop {
                let size = usize::from_str_radix(&self.line()?, 16).unwrap();
                let mut chunk = vec![0; size + 2];
                self.reader.read_exact(&mut chunk).ok()?;
                arrived.body.extend_from_slice(&chunk[..size]);
                if size == 0 {
                    break;
                }
            }
        }
        Some(arrived)
    }

    fn head(&mut self) -> Option<Arrived> {
        let mut arrived = Arrived { line: self.line()?, ..Arrived::default() };
        loop {
            let line = self.line()?;
            let Some((name, value)) = line.split_once(": ") else { return Some(arrived) };
            arrived.fields.push((name.to_owned(), value.to_owned()));
        }
    }

    fn line(&mut self) -> Option<String> {
        let mut line = String::new();
        let count = self.reader.read_line(&mut line).ok()?;
        (count > 0).then(|| line.trim_end_matches("\r\n").to_owned())
    }

    /// Sends, unless the server has given up.
    pub(super) fn try_send(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        self.stream.write_all(bytes)
    }

    /// Ends the connection.
    pub(super) fn close(&mut self) {
        let _ = self.stream.shutdown(Shutdown::Both);
    }

    pub(super) fn send(&mut self, bytes: impl AsRef<[u8]>) {
        // The server may have given up.
        let _ = self.stream.write_all(bytes.as_ref());
    }
}

/// Serves a site that forwards everything to these backends.
fn serve(site: &Site, backends: &[&Backend], keys: &str) -> Server {
    let addresses: Vec<SocketAddr> = backends.iter().map(|backend| backend.address).collect();
    Server::with_site(site, &format!("[[site.app]]\nmatch = \"/**\"\n{}\n{keys}", http(site, &addresses)))
}

const SCHEME: &str = "X-Forwarded-Proto: ";

#[test]
fn request_reaches_backend_without_fields_of_connection() {
    let (site, backend) = (Site::new(), Backend::echo());
    let server = serve(&site, &[&backend], "");
    let mut client = server.connect();
    let fields = [
        ("Host", "a.example:81"),
        ("Connection", "keep-alive, X-Own"),
        ("X-Own", "1"),
        ("X-Forwarded-For", "9.9.9.9"),
        ("X-Forwarded-Host", "evil.example"),
        ("Forwarded", "for=9.9.9.9"),
        ("X-Real-IP", "9.9.9.9"),
        ("X_Forwarded_For", "9.9.9.9"),
        ("Proxy", "evil.example"),
        ("TE", "trailers"),
        ("Accept", "a"),
        ("Cookie", "b=c"),
    ];
    let response = client.request("GET", "/x%20y%2Fz/?q=%20", &fields);
    let scheme = if is_secure() { "https" } else { "http" };
    let expected = format!(
        "GET /x%20y%2Fz/?q=%20 HTTP/1.1\nHost: a.example:81\nAccept: a\nCookie: b=c\nX-Forwarded-For: 127.0.0.1\n\
         {SCHEME}{scheme}\nX-Forwarded-Host: a.example:81\n\
         Forwarded: for=127.0.0.1;host=\"a.example:81\";proto={scheme}\n\n"
    );
    assert_eq!((response.status, response.text()), (200, expected));
    // What the rules of the site applied to is what the backend gets.
    assert!(client.get("/a/../b//c").text().starts_with("GET /b/c HTTP/1.1\n"));
    let response = client.request("HEAD", "/", &[]);
    let length: usize = response.field("Content-Length").unwrap().parse().unwrap();
    assert!(length > 100 && response.body.is_empty());
    assert_eq!(backend.connections(), 1, "the connection is kept");
    let server = serve(&site, &[&backend], "host = \"app.internal\"");
    let text = server.connect().request("GET", "/", &fields[..1]).text();
    assert!(text.contains("Host: app.internal\n") && text.contains("X-Forwarded-Host: a.example:81\n"), "{text}");
}

#[test]
fn backend_gets_fields_of_the_operator_and_its_own_path() {
    let (site, backend) = (Site::new(), Backend::echo());
    let keys = "match = '/wiki/**'\nbackend_path = '/base/'\nhost = 'app.internal'\n\
                request_fields = { X-Real-IP = '$remote_addr', X-Port = '$server_port', X-Url = '$scheme://$http_host$request_uri', \
                Cookie = '', X-Device = '$http_user_agent' }";
    let server = Server::with_site(&site, &format!("[[site.app]]\n{}\n{keys}", http(&site, &[backend.address])));
    let fields =
        [("Host", "a.example"), ("X-Real-IP", "9.9.9.9"), ("x-port", "1"), ("Cookie", "a=b"), ("User-Agent", "phone")];
    let scheme = if is_secure() { "https" } else { "http" };
    let port = server.address.port();
    for (target, inner) in [("/wiki/a%20b?c", "/base/a%20b?c"), ("/wiki", "/base"), ("/x/../wiki/", "/base/")] {
        let text = server.connect().request("GET", target, &fields).text();
        assert!(text.starts_with(&format!("GET {inner} HTTP/1.1\nHost: app.internal\n")), "{text}");
        // Names are in lower case in HTTP/2.
        let lower = text.to_ascii_lowercase();
        assert!(lower.contains("\nuser-agent: phone\n") && !lower.contains("cookie"), "{text}");
        let own =
            format!("\nX-Device: phone\nX-Port: {port}\nX-Real-IP: 127.0.0.1\nX-Url: {scheme}://a.example{target}\n");
        assert!(text.contains(&own) && !text.contains("9.9.9.9"), "{text}");
    }
    assert_eq!(server.get("/wikis").status, 404);
}

/// Redirects to the URL in X-To.
fn redirecting_backend() -> Backend {
    Backend::start(|_, peer| {
        while let Some(arrived) = peer.request() {
            let to = arrived.fields.iter().find(|(name, _)| name.eq_ignore_ascii_case("X-To")).unwrap().1.clone();
            peer.send(format!("HTTP/1.1 302 Found\r\nContent-Length: 0\r\nLocation: {to}\r\n\r\n"));
        }
    })
}

#[test]
fn location_of_backend_is_that_of_clients() {
    let (site, backend) = (Site::new(), redirecting_backend());
    let toml = format!(
        "[[site.app]]\nmatch = '/wiki/**'\nbackend_path = '/'\nhost = 'app.internal'\n{}",
        http(&site, &[backend.address])
    );
    let server = Server::with_site(&site, &toml);
    for (to, expected) in [
        ("/login?next=/wiki/a", "/wiki/login?next=/wiki/a"),
        ("http://app.internal/a", "/wiki/a"),
        ("https://other.example/a", "https://other.example/a"),
        ("a", "a"),
    ] {
        let response = server.connect().request("GET", "/wiki/x", &[("X-To", to)]);
        assert_eq!((response.status, response.field("Location")), (302, Some(expected)), "{to}");
    }
}

#[test]
fn prefix_of_location_is_replaced_in_cached_pages_too() {
    let (site, backend) = (Site::new(), redirecting_backend());
    let keys = "cache = '1h'\nmap_location = { 'http://' = 'https://', 'http://app/' = '$scheme://$http_host/at/' }";
    let server = serve(&site, &[&backend], keys);
    // Each process of MP has pages of its own.
    let mut client = server.connect();
    for (number, (to, expected)) in [
        ("http://app/a?b", "SCHEME://HOST/at/a?b"),
        ("http://other.example/a", "https://other.example/a"),
        ("/a", "/a"),
    ]
    .into_iter()
    .enumerate()
    {
        // The second page of each host is that of the cache.
        for host in ["a.example", "b.example:81", "a.example:81", "a.example", "b.example:81", "a.example:81"] {
            let response = client.request("GET", &format!("/{number}"), &[("Host", host), ("X-To", to)]);
            let scheme = if is_secure() { "https" } else { "http" };
            let expected = expected.replace("SCHEME", scheme).replace("HOST", host);
            assert_eq!((response.status, response.field("Location")), (302, Some(&*expected)), "{to} {host}");
        }
    }
}

/// The cache chooses pages by the client's fields, but the backend has got others.
#[test]
fn page_that_varies_by_a_field_of_the_operator_is_not_cached() {
    let (site, count) = (Site::new(), Arc::new(AtomicUsize::new(0)));
    let counted = Arc::clone(&count);
    let backend = Backend::start(move |_, peer| {
        while let Some(arrived) = peer.request() {
            counted.fetch_add(1, Ordering::Relaxed);
            let vary = if arrived.line.contains("/own") { "X-Country" } else { "X-Other" };
            let head = format!("HTTP/1.1 200 OK\r\nContent-Length: 2\r\nVary: {vary}\r\n\r\n");
            peer.send(head + "ok");
        }
    });
    let keys = "cache = '1h'\nrequest_fields = { X-Country = '$http_x_from' }";
    let server = serve(&site, &[&backend], keys);
    // Each process of MP has pages of its own.
    let mut client = server.connect();
    for (target, expected) in [("/other", 1), ("/own", 3)] {
        let before = count.load(Ordering::Relaxed);
        for country in ["a", "b", "c"] {
            assert_eq!(client.request("GET", target, &[("X-From", country)]).text(), "ok");
        }
        assert_eq!(count.load(Ordering::Relaxed) - before, expected, "{target}");
    }
}

#[test]
fn backend_gets_verified_user_and_no_password() {
    let (site, backend) = (Site::new(), Backend::echo());
    let users = site.path().with_extension("users");
    // For the password `secret`.
    std::fs::write(&users, format!("ann:{}\n", bcrypt::hash("secret", 4).unwrap())).unwrap();
    let_files_settle();
    let keys = format!("[[site.auth]]\ndirectory = \"/private/\"\naccounts = {users:?}");
    let server = serve(&site, &[&backend], &keys);
    let password = [("Authorization", "Basic YW5uOnNlY3JldA=="), ("X-Forwarded-User", "root")];
    let ask = |target: &str, fields: &[(&str, &str)]| server.connect().request("GET", target, fields);
    assert_eq!(ask("/private/a", &password[1..]).status, 401);
    assert_eq!(ask("/x/..//private/./a", &password[1..]).status, 401);
    let text = ask("/private/a", &password).text();
    assert!(text.contains("X-Forwarded-User: ann\n") && !text.contains("Authorization"), "{text}");
    let text = ask("/a", &password).text();
    assert!(text.contains("Authorization: Basic ") && !text.contains("X-Forwarded-User"), "{text}");
    std::fs::remove_file(users).unwrap();
}

#[test]
fn bodies_pass_in_both_directions() {
    let (site, backend) = (Site::new(), Backend::echo());
    for (keys, has_chunks) in [("", false), ("buffer_request = false\nbuffer_response = false", true)] {
        let server = serve(&site, &[&backend], keys);
        let mut client = server.connect();
        for size in [0, 1, 70_000, 3_000_000] {
            for is_chunked in [false, true] {
                let body = pattern(size);
                if is_chunked {
                    client.send_request("POST", "/", &[("Transfer-Encoding", "chunked")]);
                    for chunk in body.chunks(50_000) {
                        client.send([format!("{:x}\r\n", chunk.len()).as_bytes(), chunk, b"\r\n"].concat());
                    }
                    client.send("0\r\n\r\n");
                } else {
                    client.send_request("POST", "/", &[("Content-Length", &size.to_string())]);
                    client.send(&body);
                }
                let response = client.response("POST");
                let end = find(&response.body, b"\n\n").unwrap();
                let head = String::from_utf8_lossy(&response.body[..end]).into_owned();
                assert!(response.body[end + 2..] == body, "{size} bytes, {keys}: {head}");
                let framing = if is_chunked && has_chunks {
                    "Transfer-Encoding: chunked"
                } else {
                    &format!("Content-Length: {size}")
                };
                assert!(head.lines().any(|line| line == framing), "{size} bytes, {keys}: {head}");
            }
        }
    }
}

/// The responses of a scripted backend, with the status and body that a client gets; no body if it is cut off.
fn scripts() -> Vec<(Vec<u8>, u16, Option<&'static str>)> {
    let many = "X: y\r\n".repeat(200);
    let huge = format!("X: {}\r\n", "y".repeat(140_000));
    let head = |fields: &str| format!("HTTP/1.1 200 OK\r\n{fields}\r\n");
    let scripts = [
        ("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello".to_owned(), 200, Some("hello")),
        (head("Content-Length: 5\r\nContent-Length: 5\r\n") + "hello", 200, Some("hello")),
        (head("Transfer-Encoding: chunked\r\n") + "3\r\nhel\r\n2;a=b\r\nlo\r\n0\r\nT: x\r\n\r\n", 200, Some("hello")),
        (head("") + "hello", 200, Some("hello")),
        ("HTTP/1.0 404 Gone away\r\n\r\nhello".to_owned(), 404, Some("hello")),
        ("HTTP/1.1 100 Continue\r\n\r\n".to_owned() + &head("Content-Length: 5\r\n") + "hello", 200, Some("hello")),
        (
            "HTTP/1.1 103 Early\r\nLink: x\r\n\r\n".to_owned() + &head("Content-Length: 5\r\n") + "hello",
            200,
            Some("hello"),
        ),
        ("HTTP/1.1 204 None\r\n\r\n".to_owned(), 204, Some("")),
        ("HTTP/1.1 304 Same\r\nETag: \"x\"\r\n\r\n".to_owned(), 304, Some("")),
        // More than was announced belongs to no response.
        (head("Content-Length: 5\r\n") + "helloHTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil", 200, Some("hello")),
        (head("Content-Length: 6\r\n") + "hello", 200, None),
        (head("Transfer-Encoding: chunked\r\n") + "5\r\nhello\r\n", 200, None),
        (head("Transfer-Encoding: chunked\r\n") + "5\r\nhelloo\r\n0\r\n\r\n", 200, None),
        (head("Content-Length: 5\r\nTransfer-Encoding: chunked\r\n") + "0\r\n\r\nhello", 502, Some("")),
        (head("Content-Length: 5\r\nContent-Length: 6\r\n") + "hello", 502, Some("")),
        (head("Content-Length: 5, 5\r\n") + "hello", 502, Some("")),
        (head("Transfer-Encoding: gzip, chunked\r\n") + "0\r\n\r\n", 502, Some("")),
        ("HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n".to_owned(), 502, Some("")),
        ("HTTP/2 200 OK\r\n\r\n".to_owned(), 502, Some("")),
        ("HTTP/1.1 600 OK\r\n\r\n".to_owned(), 502, Some("")),
        ("HTTP/1.1 101 Other\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n".to_owned(), 502, Some("")),
        (head("A: b\r\n c\r\n"), 502, Some("")),
        (head("A b: c\r\n"), 502, Some("")),
        (head(&many), 502, Some("")),
        (head(&huge), 502, Some("")),
        ("hello".to_owned(), 502, Some("")),
        ("HTTP/1.1 200 OK\r\nContent-Le".to_owned(), 502, Some("")),
        (String::new(), 502, Some("")),
    ];
    scripts.into_iter().map(|(text, status, body)| (text.into_bytes(), status, body)).collect()
}

/// Sends the script of a target, closes the connection after it, or waits for the next request.
fn play(peer: &mut Peer, pieces: usize) {
    let scripts = scripts();
    while let Some(arrived) = peer.request() {
        let number = arrived.line.split(['/', ' ']).nth(2).unwrap();
        let (text, ..) = &scripts[number.parse::<usize>().unwrap()];
        if pieces == 0 {
            peer.send(text);
        } else {
            for piece in text.chunks(text.len().div_ceil(pieces).max(1)) {
                peer.send(piece);
                thread::sleep(Duration::from_micros(200));
            }
        }
        let _ = peer.stream.shutdown(Shutdown::Write);
    }
}

#[test]
fn responses_are_passed_on_or_become_errors() {
    let site = Site::new();
    // At once, and byte by byte.
    for pieces in [0, 200] {
        let backend = Backend::start(move |_, peer| play(peer, pieces));
        for keys in ["", "buffer_response = false"] {
            let server = serve(&site, &[&backend], keys);
            for (number, (text, status, body)) in scripts().into_iter().enumerate() {
                // Bytes that arrive after the next request was sent cannot be told from its response: that a backend
                // sends none is a condition of HTTP/1.1 itself.
                if pieces > 0 && text.ends_with(b"evil") {
                    continue;
                }
                let shown = String::from_utf8_lossy(&text[..text.len().min(200)]).into_owned();
                let mut client = server.connect();
                client.send_request("GET", &format!("/{number}"), &[]);
                let mut found = client.try_response("GET");
                while matches!(&found, Ok(response) if response.status == 103) {
                    found = client.try_response("GET");
                }
                match (found, body) {
                    (Ok(response), Some(body)) => {
                        assert_eq!(response.status, status, "{shown}");
                        assert!(status == 502 || response.text() == body, "{shown}: {}", response.text());
                        assert!(status != 304 || response.field("ETag") == Some("\"x\""), "{shown}");
                    }
                    (Err(_), None) => {}
                    (found, _) => panic!("{shown}: {found:?}"),
                }
            }
            // Nothing of one client's response has reached another's.
            assert_eq!(server.get("/0").text(), "hello");
        }
    }
}

#[test]
fn unexpected_bytes_on_kept_connection_are_not_a_response() {
    let site = Site::new();
    let sent = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&sent);
    let backend = Backend::start(move |number, peer| {
        while peer.request().is_some() {
            peer.send(format!("HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n{number}"));
            // After the response, and not together with it.
            thread::sleep(Duration::from_millis(100));
            peer.send("HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil");
            count.fetch_add(1, Ordering::Relaxed);
        }
    });
    let server = serve(&site, &[&backend], "");
    let mut client = server.connect();
    for number in 1..4 {
        assert_eq!(client.get("/").text(), number.to_string());
        wait_until("unexpected bytes", || sent.load(Ordering::Relaxed) == number);
        // Over TLS another thread encrypts them.
        thread::sleep(Duration::from_millis(if is_https() { 500 } else { 50 }));
    }
}

#[test]
fn kept_connections_are_few_and_closed_when_idle() {
    let site = Site::new();
    let (here, ended) = (Arc::new(Barrier::new(3)), Arc::new(AtomicUsize::new(0)));
    let (wait, count) = (Arc::clone(&here), Arc::clone(&ended));
    let backend = Backend::start(move |_, peer| {
        while peer.request().is_some() {
            wait.wait();
            peer.send("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
        }
        count.fetch_add(1, Ordering::Relaxed);
    });
    let server = serve(&site, &[&backend], "min_spare = 2");
    let clients: Vec<Client> = (0..3)
        .map(|_| {
            let mut client = server.connect();
            client.send_request("GET", "/", &[]);
            client
        })
        .collect();
    for mut client in clients {
        assert_eq!(client.response("GET").text(), "ok");
    }
    // Each worker of a pool has one client, and keeps its connection.
    if !is_pool() {
        wait_until("one connection to be closed", || ended.load(Ordering::Relaxed) == 1);
        thread::sleep(Duration::from_millis(500));
        assert_eq!(ended.load(Ordering::Relaxed), 1);
    }
    wait_until("the kept connections to be closed", || ended.load(Ordering::Relaxed) == 3);
    assert_eq!(backend.connections(), 3);
}

#[test]
fn request_is_repeated_only_if_that_is_safe() {
    let site = Site::new();
    let requests = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&requests);
    // Each connection carries one response, although it seems to be kept.
    let backend = Backend::start(move |_, peer| {
        if let Some(arrived) = peer.request() {
            seen.lock().unwrap().push(arrived.line);
            peer.send("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
        }
        if let Some(arrived) = peer.request() {
            seen.lock().unwrap().push(arrived.line);
        }
    });
    let server = serve(&site, &[&backend], "");
    let mut client = server.connect();
    assert_eq!(client.get("/1").text(), "ok");
    assert_eq!(client.get("/2").text(), "ok", "it was sent again");
    client.send_request("POST", "/3", &[("Content-Length", "3")]);
    client.send("abc");
    assert_eq!(client.response("POST").status, 502, "it may have been processed");
    assert_eq!(client.get("/4").text(), "ok");
    client.send_request("DELETE", "/5", &[]);
    assert_eq!(client.response("DELETE").text(), "ok", "it was sent again");
    let lines: Vec<String> = requests.lock().unwrap().iter().map(|line| line.replace(" HTTP/1.1", "")).collect();
    assert_eq!(lines, ["GET /1", "GET /2", "GET /2", "POST /3", "GET /4", "DELETE /5", "DELETE /5"]);
}

/// The end arrives in the same packet as the response, so epoll reports both at once, and nothing later.
#[test]
fn connection_that_ends_with_its_response_is_not_used_again() {
    if is_https() {
        return;
    }
    let site = Site::new();
    let backend = Backend::start(|number, peer| {
        if peer.request().is_some() {
            rustix::net::sockopt::set_tcp_cork(&peer.stream, true).unwrap();
            let body = number.to_string();
            peer.send(format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len()));
        }
    });
    let server = serve(&site, &[&backend], "");
    let mut client = server.connect();
    for number in 1..=20 {
        // It would get 502 over a connection that has ended.
        client.send_request("POST", "/", &[("Content-Length", "1")]);
        client.send("a");
        let response = client.response("POST");
        assert_eq!((response.status, response.text()), (200, number.to_string()));
    }
    assert_eq!(backend.connections(), 20);
}

#[test]
fn slow_and_unreachable_backends_cause_504_and_502() {
    let site = Site::new();
    let backend = Backend::start(|_, peer| {
        while let Some(arrived) = peer.request() {
            if arrived.line.starts_with("GET /body ") {
                peer.send("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhello");
            } else if arrived.line.starts_with("GET /head ") {
                peer.send("HTTP/1.1 200 OK\r\n");
            }
        }
    });
    let server = serve(&site, &[&backend], "timeout = \"1s\"\nidle_timeout = \"500ms\"");
    assert_eq!(server.get("/").status, 504);
    assert_eq!(server.get("/head").status, 504);
    assert!(server.connect().try_get("/body").is_none());
    let [refused] = free_addresses();
    let server = Server::with_site(&site, &format!("[[site.app]]\nmatch = \"/**\"\n{}", http(&site, &[refused])));
    let response = server.get("/");
    assert_eq!(response.status, 502);
    let report = format!("cannot reach the application at {}", shown(refused));
    server.wait_for(&report);
    let began = Instant::now();
    (0..50).for_each(|_| assert_eq!(server.get("/").status, 502));
    let reports = server.said().matches(&report).count() as u64;
    // Each process reports for itself.
    assert!(has_processes() || reports <= 2 + began.elapsed().as_secs(), "{reports}");
    // A listener whose queue is full drops the packets of further clients.
    let (full, _clients) = full_listener();
    let toml = format!("[[site.app]]\nmatch = \"/**\"\n{}\nconnect_timeout = \"500ms\"", http(&site, &[full]));
    let server = Server::with_site(&site, &toml);
    let response = server.get("/");
    assert_eq!((response.status, response.text().contains("Timed out connecting")), (504, true), "{}", response.text());
}

/// A listener that accepts no further connection, and the connections that fill its queue.
fn full_listener() -> (SocketAddr, Vec<Box<dyn std::any::Any>>) {
    use rustix::net::{self, AddressFamily, SocketFlags, SocketType};
    let socket = net::socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
    net::bind(&socket, &SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
    net::listen(&socket, 0).unwrap();
    let listener = TcpListener::from(socket);
    let address = listener.local_addr().unwrap();
    let mut held: Vec<Box<dyn std::any::Any>> = vec![Box::new(listener)];
    while let Ok(client) = TcpStream::connect_timeout(&address, Duration::from_millis(300)) {
        held.push(Box::new(client));
        assert!(held.len() < 20, "the queue does not fill");
    }
    (address, held)
}

#[test]
fn response_before_end_of_body_reaches_client() {
    let site = Site::new();
    // It never reads the body.
    let backend = Backend::start(|_, peer| {
        if peer.head().is_some() {
            peer.send("HTTP/1.1 413 Too Large\r\nContent-Length: 2\r\nConnection: close\r\n\r\nno");
        }
    });
    for keys in ["", "buffer_request = false"] {
        let server = serve(&site, &[&backend], keys);
        for _ in 0..5 {
            let mut client = server.connect();
            client.send_request("POST", "/", &[("Content-Length", "3000000")]);
            client.send(pattern(3_000_000));
            let response = client.response("POST");
            assert_eq!((response.status, response.text().as_str()), (413, "no"));
        }
    }
}

#[test]
fn static_paths_are_files_beside_a_backend() {
    let (site, backend) = (Site::new(), Backend::named("backend"));
    for (name, text) in
        [("static/a.css", "css"), ("static/index.html", "index"), ("b.txt", "text"), ("other.html", "other")]
    {
        site.file(name, text);
    }
    site.file("static/404.html", "missing");
    let tables = "errors = { 404 = '/static/404.html' }\n[[site.app]]\nmatch = '/static/own'\nHTTP\n\
                  [[site.app]]\nmatch = '/static/**'\nstatic = true\n\
                  [[site.app]]\nmatch = '*.txt'\nstatic = true\nwhen = { query = { own = '' } }\n\
                  [[site.app]]\nmatch = '/**'\nHTTP";
    let server = Server::with_site(&site, &tables.replace("HTTP", &http(&site, &[backend.address])));
    let check = |method: &str, target: &str, status: u16, text: &str| {
        let response = server.connect().request(method, target, &[]);
        assert_eq!((response.status, response.text().as_str()), (status, text), "{method} {target}");
    };
    // Twice, as names are cached.
    for _ in 0..2 {
        check("GET", "/static/a.css", 200, "css");
        check("GET", "/static/", 200, "index");
        check("GET", "/static/none", 404, "missing");
        check("GET", "/static/own", 200, "backend");
        check("GET", "/b.txt", 200, "text");
        check("GET", "/b.txt?own=1", 200, "backend");
        check("GET", "/b.txt/more", 200, "backend");
        check("GET", "/other.html", 200, "backend");
        check("GET", "/static", 200, "backend");
    }
    check("POST", "/other.html", 200, "backend");
    assert_eq!(server.connect().request("POST", "/static/a.css", &[]).status, 405);
}

/// In MT and MP each connection may get another worker, for which this is the first request.
#[test]
fn workers_share_the_turns_of_backends() {
    let site = Site::new();
    let [first, second] = ["first", "second"].map(Backend::named);
    let server = serve(&site, &[&first, &second], "");
    let texts: Vec<String> = (0..12).map(|_| server.connect().get("/").text()).collect();
    assert_eq!(texts.iter().filter(|text| *text == "first").count(), 6, "{texts:?}");
}

#[test]
fn requests_are_shared_by_backends_in_service() {
    let site = Site::new();
    let listener = listen();
    let third_address = listener.local_addr().unwrap();
    let [first, second] = ["first", "second"].map(Backend::named);
    let third = Backend::named_at(listener, "third");
    // Each process counts for itself.
    let toml = format!(
        "{}listen = [\"127.0.0.1:0\"]\n[[site]]\nroot = {:?}\n[[site.app]]\nmatch = \"/**\"\n\
         {}\nmax_failures = 2\nfailure_timeout = \"1s\"\n",
        one_set_of_caches(),
        site.path(),
        http(&site, &[first.address, second.address, third_address]).replacen("[\"127", "[\"http://127", 1)
    );
    let config = site.path().with_extension("toml");
    std::fs::write(&config, toml).unwrap();
    let server = Server::start(&["--config", config.to_str().unwrap()]);
    let counts = || {
        let (mut counts, mut client) = (HashMap::new(), server.connect());
        for _ in 0..30 {
            let response = client.get("/");
            assert_eq!(response.status, 200, "{}", response.text());
            *counts.entry(response.text()).or_insert(0) += 1;
        }
        let of = |name: &str| counts.get(name).copied().unwrap_or_default();
        (of("first"), of("second"), of("third"))
    };
    assert_eq!(counts(), (10, 10, 10));
    // No client notices when one ends, and it gets no requests for a while.
    drop(third);
    wait_until("the backend to end", || TcpStream::connect(third_address).is_err());
    wait_until("the backend to be out of service", || {
        counts();
        server.said().contains(&format!("the backend {} is out of service", shown(third_address)))
    });
    let _third = Backend::named_at(TcpListener::bind(third_address).unwrap(), "third");
    wait_until("the backend to get requests again", || counts().2 > 0);
    server.wait_for(&format!("the backend {} is in service again", shown(third_address)));
    assert_eq!(counts(), (10, 10, 10));
}

/// Responds with its name, and to `/health` with a status that the test sets. Counts both.
fn checked_backend(name: &'static str, status: Arc<AtomicUsize>) -> (Backend, [Arc<AtomicUsize>; 2]) {
    let counts: [Arc<AtomicUsize>; 2] = Default::default();
    let [checks, requests] = counts.clone();
    let backend = Backend::start(move |_, peer| {
        while let Some(arrived) = peer.request() {
            if arrived.line == "GET /health?x HTTP/1.1" {
                checks.fetch_add(1, Ordering::Relaxed);
                assert!(arrived.fields.contains(&("Host".to_owned(), "app.internal".to_owned())), "{arrived:?}");
                let status = status.load(Ordering::Relaxed);
                peer.send(format!("HTTP/1.1 103 Early\r\n\r\nHTTP/1.1 {status} X\r\nContent-Length: 0\r\n\r\n"));
            } else {
                requests.fetch_add(1, Ordering::Relaxed);
                peer.send(format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{name}", name.len()));
            }
        }
    });
    (backend, counts)
}

#[test]
fn unhealthy_backend_gets_no_requests_until_it_recovers() {
    let site = Site::new();
    let status = Arc::new(AtomicUsize::new(204));
    let (first, [checks, _]) = checked_backend("first", Arc::new(AtomicUsize::new(302)));
    let (second, [_, requests]) = checked_backend("second", Arc::clone(&status));
    let health =
        "{ path = \"/health?x\", host = \"app.internal\", interval = \"500ms\", timeout = \"500ms\", unhealthy = 3 }";
    let toml = format!(
        "listen = [\"127.0.0.1:0\"]\nmetrics.listen = \"127.0.0.1:0\"\n[[site]]\nroot = {:?}\n[[site.app]]\n\
         match = \"/**\"\n{}\nhealth = {health}\n",
        site.path(),
        http(&site, &[first.address, second.address])
    );
    let config = site.path().with_extension("toml");
    std::fs::write(&config, toml).unwrap();
    let server = Server::start(&["--config", config.to_str().unwrap()]);
    let second = shown(second.address);
    let gauge = |value: u8| format!("amped_backend_healthy{{backend=\"{second}\"}} {value}\n");
    let names = || {
        let mut client = server.connect();
        (0..20).filter(|_| client.get("/").text() == "second").count()
    };
    assert!(names() > 5, "it is healthy until checks fail");
    status.store(500, Ordering::Relaxed);
    server.wait_for(&format!("the backend {second} is unhealthy and gets no requests: status 500"));
    let before = requests.load(Ordering::Relaxed);
    assert_eq!(names(), 0);
    assert!(super::tls::metrics(&server).contains(&gauge(0)));
    // One checker, whatever the number of processes.
    let (began, count) = (Instant::now(), checks.load(Ordering::Relaxed));
    wait_until("two checks", || checks.load(Ordering::Relaxed) >= count + 2);
    let (made, most) = (checks.load(Ordering::Relaxed) - count, began.elapsed().as_millis() as usize / 500 + 2);
    assert!(made <= most, "{made} of at most {most}");
    assert_eq!(requests.load(Ordering::Relaxed), before, "not even to try it");
    status.store(200, Ordering::Relaxed);
    server.wait_for(&format!("the backend {second} is healthy again"));
    assert!(names() > 5);
    assert!(super::tls::metrics(&server).contains(&gauge(1)));
    let said = server.said();
    assert_eq!((said.matches("is unhealthy").count(), said.matches("is healthy again").count()), (1, 1), "{said}");
}

#[test]
fn whole_body_reaches_another_backend_if_one_is_unreachable() {
    let (site, backend) = (Site::new(), Backend::echo());
    let [refused] = free_addresses();
    let (full, _clients) = full_listener();
    // It covers handshakes of TLS too, which take longer on a busy machine; a full listener costs the whole of it each time.
    let connect_timeout = if is_https() { "3s" } else { "200ms" };
    for keys in ["", "buffer_request = false"] {
        let toml = format!(
            "[[site.app]]\nmatch = \"/**\"\n{}\nmax_failures = 1000\nconnect_timeout = {connect_timeout:?}\n{keys}",
            http(&site, &[refused, backend.address, full])
        );
        let server = Server::with_site(&site, &toml);
        let mut client = server.connect();
        for size in [1, 1, 1, 70_000, 70_000, 70_000, 1_000_000, 1_000_000, 1_000_000] {
            let body = pattern(size);
            client.send_request("POST", "/", &[("Content-Length", &size.to_string())]);
            client.send(&body);
            let response = client.response("POST");
            let end = find(&response.body, b"\n\n").unwrap();
            assert!(response.status == 200 && response.body[end + 2..] == body, "{size} bytes, {keys}");
        }
    }
}

/// Responds with this status and text.
fn answering(status: &'static str, text: &'static str) -> Backend {
    Backend::start(move |_, peer| {
        while peer.request().is_some() {
            peer.send(format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\n", text.len()));
            // The rest of the head arrives later.
            thread::sleep(Duration::from_millis(5));
            peer.send(format!("\r\n{text}"));
        }
    })
}

#[test]
fn request_goes_to_another_backend_after_a_status() {
    let site = Site::new();
    let backends = [
        answering("503 Service Unavailable", "busy"),
        answering("200 OK", "fine"),
        answering("404 Not Found", "absent"),
    ];
    let [busy, fine, absent] = &backends;
    let keys = "retry_statuses = [503, 404]\nmax_failures = 1000";
    let server = serve(&site, &[busy, fine, absent], keys);
    let mut client = server.connect();
    for method in ["GET", "DELETE", "PUT"] {
        for _ in 0..6 {
            let response = client.request(method, "/", &[]);
            assert_eq!((response.status, &*response.text()), (200, "fine"), "{method}");
        }
    }
    // These may not be repeated.
    let statuses = |client: &mut Client, method: &str, body: &str| -> Vec<u16> {
        let request = |_| {
            client.send_request(method, "/", &[("Content-Length", &body.len().to_string())]);
            client.send(body.as_bytes());
            client.response(method).status
        };
        let mut all: Vec<u16> = (0..9).map(request).collect();
        all.sort_unstable();
        all.dedup();
        all
    };
    assert_eq!(statuses(&mut client, "POST", ""), [200, 404, 503]);
    assert_eq!(statuses(&mut client, "PUT", "body"), [200, 404, 503]);
    // The last one's response is passed on.
    let server = serve(&site, &[busy, absent], keys);
    let mut client = server.connect();
    for _ in 0..6 {
        let response = client.get("/");
        assert!([(503, "busy"), (404, "absent")].contains(&(response.status, &*response.text())));
    }
    // Each is a failure.
    let server = serve(&site, &[busy, fine], "retry_statuses = [503]\nmax_failures = 2");
    let mut client = server.connect();
    assert!((0..6).all(|_| client.get("/").text() == "fine"));
    server.wait_for(&format!("the backend {} is out of service for 10s after 2 failures\n", shown(busy.address)));
}

#[test]
fn status_after_early_hints_is_passed_on() {
    let (site, are_seen) = (Site::new(), Arc::new(AtomicBool::new(false)));
    let hinting = |status: &'static str| {
        let are_seen = Arc::clone(&are_seen);
        Backend::start(move |_, peer| {
            while peer.request().is_some() {
                peer.send("HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n");
                wait_until("the client to have the hints", || are_seen.swap(false, Ordering::Relaxed));
                peer.send(format!("HTTP/1.1 {status} No\r\nContent-Length: 0\r\n\r\n"));
            }
        })
    };
    let (one, other) = (hinting("503"), hinting("502"));
    let server = serve(&site, &[&one, &other], "retry_statuses = [502, 503]\nmax_failures = 1000");
    let mut client = server.connect().untranslated();
    let mut found = Vec::new();
    for _ in 0..6 {
        client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
        assert!(client.read_head().starts_with("HTTP/1.1 103 "));
        are_seen.store(true, Ordering::Relaxed);
        found.push(client.response("GET").status);
    }
    found.sort_unstable();
    assert_eq!(found, [502, 502, 502, 503, 503, 503]);
}

#[test]
fn backend_is_chosen_by_hash_of_field() {
    let site = Site::new();
    let backends = ["first", "second", "third"].map(Backend::named);
    let backends: Vec<&Backend> = backends.iter().collect();
    let server = serve(&site, &backends, "balance = \"hash\"\nhash_field = \"X-User\"");
    let ask = |user: &str| server.connect().request("GET", "/", &[("X-User", user)]).text();
    let users: Vec<String> = (0..20).map(|n| format!("user {n}")).collect();
    let chosen: Vec<String> = users.iter().map(|user| ask(user)).collect();
    assert_eq!(chosen, users.iter().map(|user| ask(user)).collect::<Vec<_>>());
    for backend in ["first", "second", "third"] {
        assert!(chosen.iter().any(|name| name == backend), "{chosen:?}");
    }
}

/// Switches protocols and echoes everything until the client ends its side; then says goodbye.
fn tunnel_backend() -> Backend {
    Backend::start(|_, peer| {
        let Some(arrived) = peer.head() else { return };
        if !arrived.fields.iter().any(|(name, value)| name == "Upgrade" && value == "websocket") {
            return peer.send("HTTP/1.1 426 Upgrade Required\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
        }
        peer.send(format!("{}X-A: b\r\n\r\nwelcome ", switching(&arrived)));
        let mut buffer = vec![0; 10_000];
        while let Ok(count @ 1..) = peer.reader.read(&mut buffer) {
            if peer.stream.write_all(&buffer[..count]).is_err() {
                return;
            }
        }
        peer.send("goodbye");
    })
}

/// The beginning of the response that switches to WebSocket; the key is that of the server under test, for HTTP/2.
fn switching(arrived: &Arrived) -> String {
    let key = arrived.fields.iter().find(|(name, _)| name == "Sec-WebSocket-Key");
    let accept = key.map_or_else(String::new, |(_, key)| {
        let digest = Sha1::new_with_prefix(key).chain_update("258EAFA5-E914-47DA-95CA-C5AB0DC85B11").finalize();
        format!("Sec-WebSocket-Accept: {}\r\n", STANDARD.encode(digest))
    });
    format!("HTTP/1.1 101 Switching\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n{accept}")
}

const WEBSOCKET: (&str, &str) = (":protocol", "websocket");

/// Opens a stream whose request asks for a tunnel (RFC 8441).
fn connect(http2: &mut Http2, path: &str, protocol: (&str, &str)) -> StreamId {
    let stream = http2.open();
    let block = http2.head("CONNECT", path, &[protocol]);
    http2.send(|out| frame::headers(out, stream, &block, false, FRAME_BYTES));
    stream
}

#[test]
fn stream_of_http2_is_a_tunnel() {
    let (site, backend) = (Site::new(), tunnel_backend());
    let server = serve(&site, &[&backend], "timeout = \"1s\"");
    let mut http2 = Http2::connect(&server);
    let stream = connect(&mut http2, "/chat", WEBSOCKET);
    // It need not wait for the response.
    http2.data(stream, b"early ", false);
    http2.read_until(|http2| http2.received(stream) == "welcome early ".len());
    // Longer than the timeout of a response; others are answered meanwhile.
    thread::sleep(Duration::from_millis(1500));
    assert_eq!(http2.get("/other").status, 426);
    let data = pattern(3_000_000);
    for piece in data.chunks(10_000) {
        http2.data(stream, piece, false);
    }
    http2.data(stream, b"", true);
    let response = http2.response(stream);
    assert_eq!((response.status, response.field("x-a")), (200, Some("b")));
    for field in ["connection", "upgrade", "sec-websocket-accept", "content-length"] {
        assert_eq!(response.field(field), None, "{response:?}");
    }
    let expected = [b"welcome early ", &data[..], b"goodbye"].concat();
    assert!(response.body == expected, "{} of {} bytes", response.body.len(), expected.len());
    assert_eq!(server.report("tunnels"), 1);
}

#[test]
fn reset_stream_ends_its_tunnel_only() {
    let site = Site::new();
    let ended = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&ended);
    let backend = Backend::start(move |_, peer| {
        if let Some(arrived) = peer.head() {
            peer.send(format!("{}\r\n", switching(&arrived)));
            let _ = peer.reader.read_to_end(&mut Vec::new());
            count.fetch_add(1, Ordering::Relaxed);
        }
    });
    let server = serve(&site, &[&backend], "tunnel_timeout = \"3s\"");
    let mut http2 = Http2::connect(&server);
    let streams: Vec<StreamId> = (0..3).map(|_| connect(&mut http2, "/", WEBSOCKET)).collect();
    http2.read_until(|http2| streams.iter().all(|stream| http2.status(*stream) == Some(200)));
    http2.send(|out| frame::reset(out, streams[0], ErrorCode::CANCEL));
    wait_until("the backend to see the end", || ended.load(Ordering::Relaxed) == 1);
    // Those in which nothing is sent end too, later.
    for stream in &streams[1..] {
        let _ = http2.try_response(*stream);
    }
    wait_until("all backends to see the end", || ended.load(Ordering::Relaxed) == 3);
}

#[test]
fn extended_connect_without_websocket_is_refused() {
    let site = Site::new();
    let backend = Backend::start(|_, peer| {
        let Some(arrived) = peer.head() else { return };
        assert!(arrived.line.starts_with("GET "), "{arrived:?}");
        peer.send(match arrived.line.split(' ').nth(1) {
            Some("/200") => "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n".to_owned(),
            Some("/403") => "HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n".to_owned(),
            _ => {
                let other =
                    Arrived { fields: vec![("Sec-WebSocket-Key".into(), "other".into())], ..Arrived::default() };
                format!("{}\r\n", switching(&other))
            }
        });
    });
    let server = serve(&site, &[&backend], "");
    let mut http2 = Http2::connect(&server);
    let mut status = |path: &str, protocol: &str| {
        let stream = connect(&mut http2, path, (":protocol", protocol));
        http2.response(stream).status
    };
    assert_eq!([status("/200", "websocket"), status("/403", "websocket")], [502, 403]);
    assert_eq!([status("/wrong-key", "websocket"), status("/403", "connect-udp")], [502, 501]);
    // A file is no tunnel.
    let site = Site::new();
    site.file("a.txt", "a");
    let server = Server::serve(&site);
    let mut http2 = Http2::connect(&server);
    let stream = connect(&mut http2, "/a.txt", WEBSOCKET);
    assert_eq!(http2.response(stream).status, 501);
    assert_eq!(http2.get("/a.txt").text(), "a");
}

const UPGRADE: [(&str, &str); 2] = [("Connection", "Upgrade"), ("Upgrade", "websocket")];

#[test]
fn upgraded_connection_is_a_tunnel() {
    let (site, backend) = (Site::new(), tunnel_backend());
    let log = site.path().with_extension("log");
    let keys = "timeout = \"1s\"\ncache = \"1h\"";
    let toml = format!(
        "listen = [\"127.0.0.1:0\"]\nlog = {{ access = {log:?}, flush = \"10ms\", format = \"json\" }}\n\
         [[site]]\nroot = {:?}\n\
         [[site.app]]\nmatch = \"/**\"\n{}\n{keys}\n",
        site.path(),
        http(&site, &[backend.address])
    );
    let config = site.path().with_extension("toml");
    std::fs::write(&config, toml).unwrap();
    let server = Server::start(&["--config", config.to_str().unwrap()]);
    let mut client = server.connect();
    client.send_request("GET", "/chat", &UPGRADE);
    // It need not wait for the response.
    client.send("early ");
    let head = client.read_head();
    assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
    for field in ["Connection: Upgrade\r\n", "Upgrade: websocket\r\n", "X-A: b\r\n"] {
        assert!(head.contains(field), "{head}");
    }
    // Longer than the timeout of a response.
    thread::sleep(Duration::from_millis(1500));
    let data = pattern(3_000_000);
    let mut received = Vec::new();
    client.wait_for_many_bytes("welcome early ".len());
    for piece in data.chunks(100_000) {
        client.send(piece);
    }
    client.half_close();
    received.extend(client.read_to_end());
    let expected = [b"welcome early ", &data[..], b"goodbye"].concat();
    assert!(received == expected, "{} of {} bytes", received.len(), expected.len());
    let lines = || std::fs::read_to_string(&log).unwrap_or_default();
    wait_until("a line in the log", || lines().ends_with('\n'));
    let fields = [
        format!("\"status\":101,\"body_bytes\":{},", expected.len()),
        format!("\"backend\":\"{}\"", shown(backend.address)),
    ];
    assert!(fields.iter().all(|field| lines().contains(field)), "{}", lines());
    assert_eq!(server.report("tunnels"), 1);
    std::fs::remove_file(&log).unwrap();
}

#[test]
fn only_websocket_is_a_tunnel() {
    let (site, backend) = (Site::new(), tunnel_backend());
    let server = serve(&site, &[&backend], "tunnel_timeout = \"500ms\"");
    for fields in [vec![], vec![UPGRADE[1]], vec![UPGRADE[0], ("Upgrade", "h2c"), ("HTTP2-Settings", "x")]] {
        assert_eq!(server.connect().request("GET", "/", &fields).status, 426, "{fields:?}");
    }
    let mut client = server.connect();
    client.send_request("GET", "/", &UPGRADE);
    assert!(client.read_head().starts_with("HTTP/1.1 101 "));
    assert_eq!(client.read_to_end(), b"welcome ", "it ends when nothing is sent for a while");
    // An application that speaks another protocol than HTTP cannot switch.
    let server = Server::with_site(&site, "[[site.app]]\nmatch = \"/cgi-bin/**\"\ncgi = true");
    assert_eq!(server.connect().request("GET", "/cgi-bin/none", &UPGRADE).status, 404);
}

#[test]
fn end_of_client_ends_tunnel() {
    let site = Site::new();
    let ended = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&ended);
    let backend = Backend::start(move |_, peer| {
        if peer.head().is_some() {
            peer.send("HTTP/1.1 101 Switching\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n");
            let mut rest = Vec::new();
            let _ = peer.reader.read_to_end(&mut rest);
            count.fetch_add(1, Ordering::Relaxed);
        }
    });
    let server = serve(&site, &[&backend], "");
    let before = super::apps::descriptors(&server);
    let clients: Vec<Client> = (0..5)
        .map(|_| {
            let mut client = server.connect();
            client.send_request("GET", "/", &UPGRADE);
            client.read_head();
            client
        })
        .collect();
    drop(clients);
    wait_until("the backend to see the end", || ended.load(Ordering::Relaxed) == 5);
    wait_until("all descriptors to be closed", || super::apps::descriptors(&server) <= before);
}

#[test]
fn reload_changes_backends_of_new_requests_only() {
    let site = Site::new();
    let (tunnel, other) = (tunnel_backend(), Backend::named("other"));
    let config = site.path().with_extension("toml");
    let write = |backend: &Backend| {
        let toml = format!(
            "listen = [\"127.0.0.1:0\"]\n[[site]]\nroot = {:?}\n[[site.app]]\nmatch = \"/**\"\n{}\n",
            site.path(),
            http(&site, &[backend.address])
        );
        std::fs::write(&config, toml).unwrap();
    };
    write(&tunnel);
    let mut command = program();
    command.args(["serve", "--config"]).arg(&config);
    // Over TLS the harness starts the server with a copy of this file.
    if is_secure() {
        return;
    }
    let server = Server::spawn(command);
    let mut client = server.connect();
    client.send_request("GET", "/", &UPGRADE);
    assert!(client.read_head().starts_with("HTTP/1.1 101 "));
    write(&other);
    server.signal("HUP");
    server.wait_for("the new configuration is in force");
    // A worker that is about to retire may still accept a connection.
    wait_until("the other backend", || server.get("/").text() == "other");
    client.send("still here");
    client.half_close();
    assert_eq!(client.read_to_end(), b"welcome still heregoodbye");
}

#[test]
fn cacheable_responses_are_cached() {
    let site = Site::new();
    let backend = Backend::start(|_, peer| {
        let mut count = 0;
        while let Some(arrived) = peer.request() {
            count += 1;
            let fields = if arrived.line.contains("/private") { "Cache-Control: private\r\n" } else { "" };
            peer.send(format!("HTTP/1.1 200 OK\r\n{fields}Content-Length: 1\r\n\r\n{count}"));
        }
    });
    let server = serve(&site, &[&backend], "cache = \"1h\"");
    let mut client = server.connect();
    assert_eq!(client.get("/a").text(), "1");
    for _ in 0..3 {
        let again = client.get("/a");
        assert_eq!((again.text().as_str(), again.field("Age").is_some()), ("1", true));
    }
    assert_eq!(client.get("/private").text(), "2");
    assert_eq!(client.get("/private").text(), "3");
    client.send_request("POST", "/a", &[("Content-Length", "0")]);
    assert_eq!(client.response("POST").text(), "4");
    assert_eq!(client.get("/a").text(), "5", "a change invalidates the cached response");
}

#[test]
fn backend_on_socket_is_served_beside_files() {
    let site = Site::new();
    site.file("a.txt", "static");
    let beside = tempfile::tempdir().unwrap();
    let listener = UnixListener::bind(beside.path().join("app.sock")).unwrap();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut reader = BufReader::new(stream.try_clone().unwrap());
            let mut line = String::new();
            while reader.read_line(&mut line).is_ok_and(|count| count > 0) {
                if line.ends_with("\r\n\r\n") {
                    let first = line.lines().next().unwrap().to_owned();
                    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", first.len());
                    stream.write_all((head + &first).as_bytes()).unwrap();
                    line.clear();
                }
            }
        }
    });
    // Paths without a file go to the backend, as they were requested.
    let toml = format!(
        "[[site.fallback]]\ndirectory = \"/\"\nfile = \"/backend\"\n[[site.app]]\nmatch = \"/backend\"\nhttp = \"unix:{}\"",
        beside.path().join("app.sock").display()
    );
    let server = Server::with_site(&site, &toml);
    let mut client = server.connect();
    assert_eq!(client.get("/a.txt").text(), "static");
    for _ in 0..3 {
        assert_eq!(client.get("/other/path?x").text(), "GET /other/path?x HTTP/1.1");
    }
}

#[test]
fn request_that_waited_for_another_backend_is_logged_with_its_own() {
    if is_https() {
        return;
    }
    let (site, backend, beside) = (Site::new(), Backend::named("free"), tempfile::tempdir().unwrap());
    let (_listener, _clients) = full_socket(&beside.path().join("full.sock"));
    let (config, log) = (site.path().with_extension("toml"), beside.path().join("log"));
    let toml = format!(
        "listen = [\"127.0.0.1:0\"]\nlog = {{ access = {log:?}, flush = \"10ms\", format = \"json\" }}\n\
         [[site]]\nroot = {:?}\n[[site.app]]\nmatch = \"/**\"\nhttp = [\"unix:{}\", \"{}\"]",
        site.path(),
        beside.path().join("full.sock").display(),
        backend.address
    );
    std::fs::write(&config, toml).unwrap();
    let server = Server::start(&["--config", config.to_str().unwrap()]);
    let mut client = server.connect();
    (0..4).for_each(|_| assert_eq!(client.get("/").text(), "free"));
    let own = format!("\"backend\":\"{}\"", backend.address);
    wait_until("four lines with the backend", || {
        std::fs::read_to_string(&log).unwrap_or_default().lines().filter(|line| line.contains(&own)).count() == 4
    });
}

/// A Unix socket that accepts no further connection, and the connections that fill its queue.
fn full_socket(path: &Path) -> (UnixListener, Vec<std::os::fd::OwnedFd>) {
    use rustix::net::{self, AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
    let listener = UnixListener::bind(path).unwrap();
    net::listen(&listener, 0).unwrap();
    let address = SocketAddrUnix::new(path).unwrap();
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let open = || {
        let socket = net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).unwrap();
        net::connect(&socket, &address).ok().map(|()| socket)
    };
    let held = std::iter::from_fn(open).collect();
    (listener, held)
}

#[test]
fn redirects_of_backends_lead_to_files_only_within_site() {
    let site = Site::new();
    site.file("files/a.txt", "protected");
    let backend = Backend::start(|_, peer| {
        while let Some(arrived) = peer.request() {
            let field = match arrived.line.split(' ').nth(1) {
                Some("/app/inside") => "X-Accel-Redirect: /files/a.txt\r\nX-Other: y\r\n",
                Some("/app/outside") => "X-Sendfile: /etc/passwd\r\n",
                _ => "Location: /app/else\r\n",
            };
            peer.send(format!("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n{field}\r\n"));
        }
    });
    let toml = format!(
        "[[site.route]]\nmatch = \"/files/**\"\ninternal = true\n[[site.app]]\nmatch = \"/app\"\n{}",
        http(&site, &[backend.address])
    );
    let server = Server::with_site(&site, &toml);
    let mut client = server.connect();
    assert_eq!(client.get("/files/a.txt").status, 404);
    assert_eq!(client.get("/app/inside").text(), "protected");
    assert_eq!(client.get("/app/outside").status, 502);
    let response = client.get("/app/location");
    assert_eq!((response.status, response.field("Location")), (200, Some("/app/else")), "no local redirect of CGI");
}
