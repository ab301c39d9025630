//! Compression of responses of applications, as they arrive: CGI scripts, and HTTP backends that play a script.
//!
//! The decoders are the crates that the server uses; curl decodes all codings in `peers/curl`.

use std::fs;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use super::harness::*;
use super::http_backends::{Backend, Peer};
use crate::requests::Random;

const CODINGS: [&str; 3] = ["gzip", "zstd", "br"];

const COMPRESS: &str = "compress = ['br', 'zstd', 'gzip']";

/// Decodes as much as there is.
fn decode(bytes: &[u8], coding: Option<&str>) -> Vec<u8> {
    let mut reader: Box<dyn Read + '_> = match coding {
        Some("gzip") => Box::new(flate2::read::GzDecoder::new(bytes)),
        Some("zstd") => Box::new(zstd::stream::read::Decoder::new(bytes).unwrap()),
        Some("br") => Box::new(brotli::Decompressor::new(bytes, 4096)),
        None => return bytes.to_vec(),
        Some(other) => panic!("{other}"),
    };
    let (mut plain, mut buffer) = (Vec::new(), [0; 4096]);
    while let Ok(count @ 1..) = reader.read(&mut buffer) {
        plain.extend_from_slice(&buffer[..count]);
    }
    plain
}

fn decoded(response: &Response) -> Vec<u8> {
    decode(&response.body, response.field("Content-Encoding"))
}

fn text(size: usize) -> Vec<u8> {
    let mut text = Vec::new();
    let mut lines = (0..).map(|line: usize| format!("line {}\n", line * line % 1009));
    while text.len() < size {
        text.extend_from_slice(lines.next().unwrap().as_bytes());
    }
    text.truncate(size);
    text
}

/// Serves a site that forwards to this backend.
fn serve(site: &Site, backend: &Backend, keys: &str) -> Server {
    let app = format!("[[site.app]]\nmatch = \"/**\"\nhttp = \"{}\"\n{COMPRESS}\n{keys}", backend.address);
    Server::with_site(site, &app)
}

/// A backend that sends this head, then the body, to each request.
fn responder(respond: impl Fn(&str, &mut Peer) + Send + Sync + 'static) -> Backend {
    Backend::start(move |_, peer| {
        while let Some(arrived) = peer.request() {
            let target = arrived.line.split(' ').nth(1).unwrap().to_owned();
            respond(&target, peer);
        }
    })
}

#[test]
fn response_is_compressed_in_the_preferred_coding() {
    let body = text(200_000);
    let sent = body.clone();
    let backend = responder(move |_, peer| {
        peer.send("HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nETag: \"x\"\r\nAccept-Ranges: bytes\r\n");
        peer.send(format!("X-Own: a\r\nContent-Length: {}\r\n\r\n", sent.len()));
        peer.send(&sent);
    });
    let site = Site::new();
    for keys in ["", "buffer_response = false"] {
        let server = serve(&site, &backend, keys);
        let mut client = server.connect();
        for (accepted, coding) in [
            ("gzip", Some("gzip")),
            ("br", Some("br")),
            ("gzip, zstd", Some("zstd")),
            ("gzip, deflate, br, zstd", Some("br")),
            ("br;q=0.5, gzip", Some("gzip")),
            ("identity, gzip;q=0.5", None),
            ("deflate", None),
        ] {
            let response = client.request("GET", "/", &[("Accept-Encoding", accepted)]);
            assert_eq!((response.status, response.field("Content-Encoding")), (200, coding), "{accepted}");
            assert!(decoded(&response) == body, "{accepted}");
            assert_eq!((response.field("Vary"), response.field("X-Own")), (Some("Accept-Encoding"), Some("a")));
            let of_plain = coding.is_none().then_some(("\"x\"", "bytes", "200000"));
            assert_eq!(response.field("ETag"), Some(of_plain.map_or("W/\"x\"", |(tag, ..)| tag)));
            assert_eq!(response.field("Accept-Ranges"), of_plain.map(|(_, unit, _)| unit));
            assert_eq!(response.field("Content-Length"), of_plain.map(|(.., length)| length));
            assert!(coding.is_none() || response.body.len() < body.len() / 4);
        }
        assert_eq!(server.report("app_compressions compressed"), 5);
        assert_eq!(server.report("app_compression_input_bytes"), 5 * 200_000);
        assert!((1..250_000).contains(&server.report("app_compression_output_bytes")));
        assert_eq!(client.get("/").field("Content-Encoding"), None);
    }
}

#[test]
fn responses_of_any_size_and_segmentation_decode_to_the_same_bytes() {
    let backend = responder(|target, peer| {
        let mut random = Random(target[1..].parse().unwrap());
        let size = [0, 1, 1000, 1024, 70_000, 400_000][random.below(6)] + random.below(1000);
        let body = text(size);
        let is_announced = random.below(2) == 0;
        peer.send("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n");
        peer.send(if is_announced {
            format!("Content-Length: {size}\r\n\r\n")
        } else {
            "Transfer-Encoding: chunked\r\n\r\n".into()
        });
        let mut left = &body[..];
        while !left.is_empty() {
            let most = 1 << (1 + random.below(17));
            let (piece, rest) = left.split_at((1 + random.below(most)).min(left.len()));
            left = rest;
            match is_announced {
                true => peer.send(piece),
                false => peer.send([format!("{:x}\r\n", piece.len()).as_bytes(), piece, b"\r\n"].concat()),
            }
            if random.below(8) == 0 {
                thread::sleep(Duration::from_micros(random.below(2000) as u64));
            }
        }
        if !is_announced {
            peer.send("0\r\n\r\n");
        }
    });
    let site = Site::new();
    let servers = ["", "buffer_response = false"].map(|keys| serve(&site, &backend, keys));
    for server in &servers {
        thread::scope(|scope| {
            for thread in 0..3 {
                scope.spawn(move || {
                    let mut client = server.connect();
                    for seed in (thread + 1..90).step_by(3) {
                        let target = format!("/{seed}");
                        let plain = client.get(&target);
                        let coded = client.request("GET", &target, &[("Accept-Encoding", CODINGS[seed / 3 % 3])]);
                        assert_eq!((plain.status, coded.status), (200, 200));
                        assert!(decoded(&coded) == plain.body, "{seed}");
                        let is_long = plain.body.len() >= 1024;
                        assert!(coded.field("Content-Encoding").is_some() || !is_long, "{seed}");
                    }
                });
            }
        });
    }
}

#[test]
fn other_responses_of_applications_are_sent_as_they_are() {
    let backend = responder(|target, peer| {
        let (status, fields) = match target {
            "/coded" => ("200 OK", "Content-Type: text/css\r\nContent-Encoding: deflate"),
            "/fixed" => ("200 OK", "Content-Type: text/css\r\nCache-Control: no-transform"),
            "/image" => ("200 OK", "Content-Type: image/png"),
            "/part" => ("206 Partial Content", "Content-Type: text/css\r\nContent-Range: bytes 0-1999/5000"),
            "/same" => ("304 Not Modified", "ETag: \"x\""),
            "/none" => ("204 No Content", "Content-Type: text/css"),
            "/small" => ("200 OK", "Content-Type: text/css"),
            other => panic!("{other}"),
        };
        let size = match target {
            "/same" | "/none" => 0,
            "/small" => 1023,
            _ => 2000,
        };
        let length = if size > 0 { format!("Content-Length: {size}\r\n") } else { String::new() };
        peer.send(format!("HTTP/1.1 {status}\r\n{fields}\r\n{length}\r\n"));
        peer.send(text(size));
    });
    let site = Site::new();
    let server = serve(&site, &backend, "");
    let mut client = server.connect();
    for (target, status, size) in [
        ("/coded", 200, 2000),
        ("/fixed", 200, 2000),
        ("/image", 200, 2000),
        ("/part", 206, 2000),
        ("/none", 204, 0),
        ("/small", 200, 1023),
    ] {
        let response = client.request("GET", target, &[("Accept-Encoding", "gzip")]);
        assert_eq!((response.status, response.body.len()), (status, size), "{target}");
        let coding = (target == "/coded").then_some("deflate");
        assert_eq!((response.field("Content-Encoding"), response.field("Vary")), (coding, None), "{target}");
        assert_eq!(response.field("Content-Length"), (size > 0).then(|| size.to_string()).as_deref(), "{target}");
    }
    // The client's copy was compressed, or was not.
    for (accepted, tag) in [("gzip", "W/\"x\""), ("identity", "\"x\"")] {
        let fields = [("Accept-Encoding", accepted), ("If-None-Match", "W/\"x\"")];
        let response = client.request("GET", "/same", &fields);
        assert_eq!((response.status, response.field("ETag")), (304, Some(tag)));
        assert_eq!(response.field("Vary"), Some("Accept-Encoding"));
    }
    assert_eq!(server.report("app_compressions compressed"), 0);
}

#[test]
fn old_clients_get_application_responses_as_they_are() {
    if is_http2() {
        return;
    }
    let (site, backend) = (
        Site::new(),
        responder(|_, peer| {
            peer.send("HTTP/1.1 200 OK\r\nContent-Type: text/css\r\nContent-Length: 2000\r\n\r\n");
            peer.send(text(2000));
        }),
    );
    let server = serve(&site, &backend, "");
    let mut client = server.connect();
    client.send("GET / HTTP/1.0\r\nAccept-Encoding: gzip\r\n\r\n");
    let all = client.read_to_end();
    assert!(all.ends_with(&text(2000)) && find(&all, b"Content-Encoding").is_none());
}

#[test]
fn head_has_the_fields_of_get() {
    let site = Site::new();
    let backend = Backend::start(|_, peer| {
        while let Some(arrived) = peer.request() {
            peer.send("HTTP/1.1 200 OK\r\nContent-Type: text/css\r\nContent-Length: 2000\r\nETag: \"x\"\r\n\r\n");
            if arrived.line.starts_with("GET") {
                peer.send(text(2000));
            }
        }
    });
    let server = serve(&site, &backend, "");
    let mut client = server.connect();
    for accepted in ["gzip", "br", "identity"] {
        let [get, head] = ["GET", "HEAD"].map(|method| client.request(method, "/", &[("Accept-Encoding", accepted)]));
        for name in ["Content-Encoding", "Content-Length", "ETag", "Vary", "Content-Type"] {
            assert_eq!(get.field(name), head.field(name), "{accepted} {name}");
        }
        assert!(head.body.is_empty() && decoded(&get) == text(2000));
    }
}

#[test]
fn each_piece_reaches_the_client_before_the_next() {
    let (told, tell) = channel::<()>();
    let wait: Mutex<Receiver<()>> = Mutex::new(tell);
    let backend = responder(move |_, peer| {
        peer.send("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n");
        for number in 0..20 {
            let event = format!("data: {number}\n\n");
            peer.send(format!("{:x}\r\n{event}\r\n", event.len()));
            wait.lock().unwrap().recv_timeout(PATIENCE).expect("the client gets the event");
        }
        peer.send("0\r\n\r\n");
    });
    let site = Site::new();
    for keys in ["", "buffer_response = false"] {
        let server = serve(&site, &backend, keys);
        for coding in CODINGS {
            let mut client = server.connect();
            client.send_request("GET", "/", &[("Accept-Encoding", coding)]);
            let head = client.read_head().to_ascii_lowercase();
            assert!(head.contains(&format!("content-encoding: {coding}")), "{head}");
            let (mut bytes, mut known) = (Vec::new(), 0);
            while known < 20 {
                bytes.extend(read_chunk(&mut client));
                let plain = String::from_utf8(decode(&bytes, Some(coding))).unwrap();
                while known < 20 && plain.contains(&format!("data: {known}\n\n")) {
                    known += 1;
                    told.send(()).unwrap();
                }
            }
            assert_eq!(plain_events(&bytes, coding), 20);
        }
    }
}

/// Reads one chunk of a body.
fn read_chunk(client: &mut Client) -> Vec<u8> {
    loop {
        if let Some(end) = find(client.buffered(), b"\r\n") {
            let size = usize::from_str_radix(std::str::from_utf8(&client.buffered()[..end]).unwrap(), 16).unwrap();
            if client.buffered().len() >= end + 4 + size {
                let chunk = client.buffered()[end + 2..end + 2 + size].to_vec();
                client.discard(end + 4 + size);
                return chunk;
            }
        }
        assert!(client.try_fill(), "the response ends");
    }
}

fn plain_events(bytes: &[u8], coding: &str) -> usize {
    String::from_utf8(decode(bytes, Some(coding))).unwrap().matches("data: ").count()
}

#[test]
fn slow_client_holds_up_an_unbuffered_application() {
    let sent = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&sent);
    let backend = responder(move |_, peer| {
        peer.send("HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nConnection: close\r\n\r\n");
        let mut random = Random(5);
        loop {
            // Half of it remains after compression.
            let piece: Vec<u8> = (0..65_536).map(|_| b'a' + random.below(16) as u8).collect();
            if peer.try_send(&piece).is_err() {
                return;
            }
            count.fetch_add(piece.len(), Ordering::Relaxed);
        }
    });
    let site = Site::new();
    let server = serve(&site, &backend, "buffer_response = false");
    let mut client = Client::connect_narrow(server.address, 4096);
    client.send_request("GET", "/", &[("Accept-Encoding", "gzip")]);
    assert!(client.read_head().starts_with("HTTP/1.1 200"));
    let mut known = usize::MAX;
    wait_until("the application to wait", || {
        let before = std::mem::replace(&mut known, sent.load(Ordering::Relaxed));
        thread::sleep(Duration::from_millis(300));
        before == known && known > 0
    });
    assert!(known < 30 << 20, "{known} bytes are in memory");
    // The end of its client is the end of the application's connection.
    drop(client);
    let before = sent.load(Ordering::Relaxed);
    let mut last = before;
    wait_until("the end of the application", || {
        thread::sleep(Duration::from_millis(100));
        std::mem::replace(&mut last, sent.load(Ordering::Relaxed)) == sent.load(Ordering::Relaxed)
    });
    assert!(last - before < 30 << 20, "it goes on without a client");
}

#[test]
fn truncated_application_response_is_truncated_for_the_client() {
    let backend = responder(|target, peer| {
        let length = if target == "/cut" { "Content-Length: 5000\r\n" } else { "Transfer-Encoding: chunked\r\n" };
        peer.send(format!("HTTP/1.1 200 OK\r\nContent-Type: text/css\r\n{length}\r\n"));
        if target == "/long" {
            for _ in 0..40 {
                peer.send([&b"10000\r\n"[..], &text(65_536), b"\r\n"].concat());
            }
            peer.send("0\r\n\r\n");
        } else {
            peer.send(if target == "/cut" { text(4000) } else { [&b"fa0\r\n"[..], &text(4000)].concat() });
            peer.close();
        }
    });
    let site = Site::new();
    let server = serve(&site, &backend, "max_response_bytes = '1MiB'");
    for target in ["/cut", "/chunk", "/long"] {
        let mut client = server.connect();
        client.send_request("GET", target, &[("Accept-Encoding", "gzip")]);
        assert!(client.try_response("GET").is_err(), "{target}");
    }
    // A script that announces more than it sends.
    let script =
        site.file("cgi-bin/short", "#!/bin/sh\nprintf 'Content-Type: text/css\\nContent-Length: 5000\\n\\n%s' a");
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    let app = format!("[[site.app]]\nmatch = '/cgi-bin/**'\ncgi = true\n{COMPRESS}");
    let mut client = Server::with_site(&site, &app).connect();
    client.send_request("GET", "/cgi-bin/short", &[("Accept-Encoding", "gzip")]);
    assert!(client.try_response("GET").is_err());
}

#[test]
fn cache_keeps_a_page_for_each_coding() {
    let runs = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&runs);
    let backend = responder(move |_, peer| {
        let run = count.fetch_add(1, Ordering::Relaxed);
        let body = [format!("{run} ").into_bytes(), text(20_000)].concat();
        peer.send("HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nETag: \"x\"\r\n");
        peer.send(format!("Content-Length: {}\r\n\r\n", body.len()));
        peer.send(&body);
    });
    let site = Site::new();
    let server = serve(&site, &backend, "cache = '1h'");
    let accepted = ["gzip", "br, zstd;q=0.5", "zstd", "identity", "gzip;q=0.9", "br", "deflate"];
    let mut known: Vec<(Option<String>, Vec<u8>)> = Vec::new();
    let mut client = server.connect();
    for round in 0..3 {
        for accepted in accepted {
            let response = client.request("GET", "/", &[("Accept-Encoding", accepted)]);
            let coding = response.field("Content-Encoding").map(str::to_owned);
            assert_eq!(response.field("Vary"), Some("Accept-Encoding"));
            let tag = if coding.is_some() { "W/\"x\"" } else { "\"x\"" };
            assert_eq!(response.field("ETag"), Some(tag));
            let is_hit = response.field("Age").is_some();
            assert!(is_hit || round == 0);
            // A cached page has a length.
            assert!(!is_hit || response.field("Content-Length") == Some(&*response.body.len().to_string()));
            let plain = decoded(&response);
            assert!(plain.ends_with(&text(20_000)));
            match known.iter().find(|(known, _)| *known == coding) {
                Some((_, before)) => assert!(*before == plain, "{accepted}"),
                None => known.push((coding, plain)),
            }
            let fields = [("Accept-Encoding", accepted), ("If-None-Match", tag)];
            assert_eq!(client.request("GET", "/", &fields).status, 304);
        }
    }
    assert_eq!((known.len(), runs.load(Ordering::Relaxed)), (4, 4));
    // A successful POST invalidates all of them.
    assert_eq!(client.request("POST", "/", &[("Content-Length", "0")]).status, 200);
    for accepted in &accepted[..4] {
        let response = client.request("GET", "/", &[("Accept-Encoding", accepted)]);
        assert_eq!(response.field("Age"), None, "{accepted}");
    }
}

#[test]
fn requests_that_share_a_page_get_it_in_their_coding() {
    let runs = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&runs);
    let backend = responder(move |_, peer| {
        count.fetch_add(1, Ordering::Relaxed);
        peer.send("HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 20000\r\n\r\n");
        thread::sleep(Duration::from_millis(300));
        peer.send(text(20_000));
    });
    let site = Site::new();
    let server = serve(&site, &backend, "cache = '1h'");
    thread::scope(|scope| {
        for number in 0..12 {
            let server = &server;
            scope.spawn(move || {
                let coding = [Some("gzip"), Some("zstd"), Some("br"), None][number % 4];
                let fields: Vec<_> = coding.iter().map(|coding| ("Accept-Encoding", *coding)).collect();
                let response = server.connect().request("GET", "/", &fields);
                assert_eq!(response.field("Content-Encoding"), coding);
                assert!(decoded(&response) == text(20_000));
            });
        }
    });
    assert!(runs.load(Ordering::Relaxed) >= 4);
}

#[test]
fn script_output_is_compressed() {
    let site = Site::new();
    let script = "#!/bin/sh\nprintf 'Content-Type: text/plain\\n\\n'; seq 1 50000";
    let path = site.file("cgi-bin/seq", script);
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    let app = format!("[[site.app]]\nmatch = '/cgi-bin/**'\ncgi = true\n{COMPRESS}");
    let server = Server::with_site(&site, &app);
    let expected: String = (1..=50_000).map(|number| format!("{number}\n")).collect();
    let mut client = server.connect();
    for coding in CODINGS {
        let response = client.request("GET", "/cgi-bin/seq", &[("Accept-Encoding", coding)]);
        assert_eq!(response.field("Content-Encoding"), Some(coding));
        assert!(decoded(&response) == expected.as_bytes() && response.body.len() < expected.len() / 2);
    }
}
