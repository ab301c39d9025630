//! Bodies of requests and responses of applications with slow clients: which side waits, what is stored in files, and
//! what happens when storing fails.

use std::fs;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use super::harness::*;

/// An application that reports what it received.
const APP: &str = include_str!("fastcgi_app.py");

/// Writes an executable script to the scripts' directory.
fn script(site: &Site, name: &str, text: &str) -> PathBuf {
    let path = site.file(&format!("cgi-bin/{name}"), format!("#!/bin/sh\n{text}"));
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    path
}

/// Serves a site with scripts in `/cgi-bin` and the FastCGI application at `/app`, with these keys for both.
fn serve(site: &Site, keys: &str, tables: &str) -> Server {
    let app = site.file("hidden/app.py", APP);
    let command = format!("[\"python3\", {:?}, {:?}]", app.to_str().unwrap(), site.path().to_str().unwrap());
    let toml = format!(
        "[[site.app]]\nmatch = \"/cgi-bin/**\"\ncgi = true\n{keys}\n\
         [[site.app]]\nmatch = \"/app\"\ncommand = {command}\n{keys}\n{tables}"
    );
    Server::with_site(site, &toml)
}

/// Returns whether the server has unnamed files open (proc(5)).
fn has_files(server: &Server) -> bool {
    server.descriptors().iter().any(|path| path.to_string_lossy().contains("/#"))
}

/// Encodes a body in chunks of several sizes.
fn chunked(data: &[u8]) -> Vec<u8> {
    let (mut chunks, mut at) = (Vec::new(), 0);
    for size in [1, 7, 4096, 100_000].into_iter().cycle() {
        let size = size.min(data.len() - at);
        chunks.extend_from_slice(format!("{size:x}\r\n").as_bytes());
        chunks.extend_from_slice(&data[at..at + size]);
        chunks.extend_from_slice(b"\r\n");
        at += size;
        if size == 0 {
            return chunks;
        }
    }
    chunks
}

const CHUNKED: (&str, &str) = ("Transfer-Encoding", "chunked");

/// A script that returns its CONTENT_LENGTH and its body.
const ECHO: &str = "printf 'Content-Type: text/plain\\nX-Length: %s\\n\\n' \"$CONTENT_LENGTH\"; cat";

#[test]
fn chunked_body_reaches_application_with_length() {
    // This test reads and writes the socket directly.
    if is_secure() || is_http2() {
        return;
    }
    let site = Site::new();
    script(&site, "echo", ECHO);
    for keys in ["", "buffer_request = false"] {
        let server = serve(&site, keys, "");
        let mut client = server.connect();
        for size in [0, 5, 65_536, 3_000_000] {
            let body = pattern(size);
            for target in ["/cgi-bin/echo", "/app?body"] {
                let mut sender = Client::on(client.stream());
                let response = thread::scope(|scope| {
                    scope.spawn(|| {
                        sender.send_request("POST", target, &[CHUNKED]);
                        sender.send(chunked(&body));
                    });
                    client.response("POST")
                });
                assert_eq!(response.status, 200, "{target}");
                assert!(response.body == body, "{target}: {size} bytes sent, {} returned", response.body.len());
                if target.starts_with("/cgi-bin") {
                    assert_eq!(response.field("X-Length"), Some(&*size.to_string()));
                }
            }
        }
        client.send_request("PUT", "/cgi-bin/echo", &[CHUNKED, ("Expect", "100-continue")]);
        assert_eq!(client.response("PUT").status, 100);
        client.send(chunked(b"hello"));
        let response = client.response("PUT");
        assert_eq!((response.text().as_str(), response.field("X-Length")), ("hello", Some("5")));
        wait_until("all spool files to be closed", || !has_files(&server));
    }
}

#[test]
fn incomplete_body_does_not_reach_application() {
    let site = Site::new();
    let seen = site.path().join("seen");
    script(&site, "notes", &format!("echo >> {}; printf 'Content-Type: a/b\\n\\nok'", seen.display()));
    let server = serve(&site, "", "");
    let body = chunked(&pattern(200_000));
    let without_end = &body[..body.len() - b"0\r\n\r\n".len()];
    for bad in ["x\r\n", "5\r\nabcdefg\r\n", "-1\r\n"] {
        let mut client = server.connect();
        client.send_request("POST", "/cgi-bin/notes", &[CHUNKED]);
        client.send([without_end, bad.as_bytes()].concat());
        let status = client.try_response("POST").map(|response| response.status).ok();
        assert_eq!(status, Some(400), "{bad:?}");
    }
    for field in [CHUNKED, ("Content-Length", "300000")] {
        let mut client = server.connect();
        client.send_request("POST", "/cgi-bin/notes", &[field]);
        client.send(without_end);
        client.half_close();
        assert!(client.try_response("POST").is_err(), "an incomplete request got a response");
    }
    assert!(!seen.exists(), "the application was started");
    assert_eq!(server.get("/cgi-bin/notes").text(), "ok");
}

#[test]
fn body_over_limit_returns_413_and_is_logged() {
    let site = Site::new();
    let seen = site.path().join("seen");
    script(&site, "notes", &format!("echo >> {}; printf 'Content-Type: a/b\\n\\nok'", seen.display()));
    let server = serve(&site, "max_body_bytes = \"100KB\"", "");
    let data = pattern(8_000_000);
    for (field, body) in [(CHUNKED, chunked(&data)), (("Content-Length", "8000000"), data)] {
        for target in ["/cgi-bin/notes", "/app?body"] {
            let mut client = server.connect();
            client.send_request("POST", target, &[field]);
            // The client reads nothing before it has sent the complete body.
            client.send(&body);
            let response = client.response("POST");
            assert_eq!((response.status, response.field("Connection")), (413, Some("close")), "{target} {field:?}");
            assert!(client.ends(), "a reset");
        }
        let mut client = server.connect();
        client.send_request("POST", "/cgi-bin/notes", &[field, ("Expect", "100-continue")]);
        let first = client.response("POST").status;
        if first == 100 {
            client.send(&body);
            assert_eq!(client.response("POST").status, 413);
        } else {
            assert_eq!(first, 413);
        }
    }
    for path in ["/cgi-bin/notes", "/app"] {
        server.wait_for(&format!("{path}: 413, the request body exceeds 100000B"));
    }
    assert!(!seen.exists(), "the application was started");
}

#[test]
fn slow_uploads_hold_no_application_process() {
    let site = Site::new();
    script(&site, "echo", ECHO);
    let server = serve(&site, "max_processes = 1\nmin_spare = 0", "");
    for target in ["/cgi-bin/echo", "/app?body"] {
        let body = pattern(300_000);
        let mut uploads: Vec<Client> = (0..4)
            .map(|n| {
                let mut client = server.connect();
                let field = if n % 2 == 0 { CHUNKED } else { ("Content-Length", "300000") };
                client.send_request("POST", target, &[field]);
                client.send(if n % 2 == 0 { &b"493e0\r\n"[..] } else { b"" });
                client.send(&body[..200_000]);
                client
            })
            .collect();
        for _ in 0..3 {
            assert_eq!(server.get(target).status, 200, "{target}");
        }
        for (n, client) in uploads.iter_mut().enumerate() {
            client.send(&body[200_000..]);
            client.send(if n % 2 == 0 { &b"\r\n0\r\n\r\n"[..] } else { b"" });
            assert!(client.response("POST").body == body, "{target}");
        }
    }
}

#[test]
fn upload_below_minimum_rate_times_out() {
    // This test reads and writes the socket directly.
    if is_secure() || is_http2() {
        return;
    }
    let site = Site::new();
    script(&site, "echo", ECHO);
    for keys in ["", "buffer_request = false"] {
        let server = serve(&site, keys, "[limits]\nbody_timeout = \"1s\"");
        let mut client = server.connect();
        let sender = Client::on(client.stream());
        client.send_request("POST", "/cgi-bin/echo", &[("Content-Length", "1000000")]);
        let is_over = Arc::new(AtomicBool::new(false));
        let is_stopped = Arc::clone(&is_over);
        let drips = thread::spawn(move || {
            // One byte in 20 ms, a tenth of the rate: the upload would take hours.
            let drip = || rustix::net::send(sender.stream(), b"x", rustix::net::SendFlags::NOSIGNAL);
            while !is_stopped.load(Ordering::Relaxed) && drip().is_ok() {
                thread::sleep(std::time::Duration::from_millis(20));
            }
        });
        // After the head was sent, the server can only close the connection.
        let status = client.try_response("POST").map(|response| response.status).ok();
        assert!(status == Some(408) || (!keys.is_empty() && status.is_none()), "{status:?}");
        // The server continues to read for seconds, so that the client can read the reason (lingering close).
        is_over.store(true, Ordering::Relaxed);
        drips.join().unwrap();
    }
}

/// Requests a script with a long response and reads none of it.
fn download(server: &Server, target: &str) -> Client {
    let mut client = Client::connect_narrow(server.address, 4096);
    client.send_request("GET", target, &[]);
    client
}

#[test]
fn slow_downloads_hold_no_application_process() {
    let site = Site::new();
    script(&site, "much", "printf 'Content-Type: a/b\\n\\n'; seq 1 2000000");
    let server = serve(&site, "max_processes = 1\nmax_queue = 0", "");
    let mut expected = String::new();
    (1..=2_000_000).for_each(|n| expected += &format!("{n}\n"));
    let mut clients = Vec::new();
    for _ in 0..3 {
        // There is one process and no queue: the process is free again although no client has read anything.
        wait_until("a free application process", || {
            let mut client = download(&server, "/cgi-bin/much");
            let is_begun = client.read_head().starts_with("HTTP/1.1 200");
            clients.extend(is_begun.then_some(client));
            is_begun
        });
    }
    for client in &mut clients {
        let body = client.read_chunks().unwrap();
        assert!(body == expected.as_bytes(), "{} bytes came", body.len());
    }
    drop(clients);
    wait_until("all spool files to be closed", || !has_files(&server));
}

#[test]
fn unbuffered_response_holds_application_process() {
    let site = Site::new();
    for (keys, field) in [("buffer_response = false", ""), ("", "X-Accel-Buffering: no\\n")] {
        let text = format!("printf 'Content-Type: a/b\\n{field}\\n'; seq 1 2000000");
        script(&site, "much", &text);
        let server = serve(&site, &format!("max_processes = 1\nmax_queue = 0\n{keys}"), "");
        let mut client = download(&server, "/cgi-bin/much");
        let head = client.read_head();
        assert!(head.starts_with("HTTP/1.1 200") && !head.contains("X-Accel"), "{head}");
        assert_eq!(server.get("/cgi-bin/much").status, 503);
        assert_eq!(client.read_chunks().unwrap().len(), 14_888_896);
    }
}

#[test]
fn events_are_forwarded_immediately() {
    // This test reads and writes the socket directly.
    if is_secure() || is_http2() {
        return;
    }
    let site = Site::new();
    let go = site.path().join("go");
    let text = format!(
        "printf 'Content-Type: text/event-stream\\n\\ndata: 1\\n\\n'; until [ -e {} ]; do sleep 0.01; done; \
         printf 'data: 2\\n\\n'",
        go.display()
    );
    script(&site, "events", &text);
    let server = serve(&site, "", "");
    let mut client = server.connect();
    client.send_request("GET", "/cgi-bin/events", &[("Connection", "close")]);
    let (mut seen, mut piece) = (Vec::new(), [0; 4096]);
    while find(&seen, b"data: 1\n\n").is_none() {
        let count = client.stream().read(&mut piece).unwrap();
        assert!(count > 0, "the connection ended");
        seen.extend_from_slice(&piece[..count]);
    }
    fs::write(go, "").unwrap();
    let rest = client.read_to_end();
    assert!(find(&rest, b"data: 2\n\n").is_some(), "{}", String::from_utf8_lossy(&rest));
}

#[test]
fn body_without_spool_space_returns_503_and_is_logged() {
    let site = Site::new();
    script(&site, "echo", ECHO);
    script(&site, "much", "printf 'Content-Type: a/b\\n\\n'; seq 1 2000000");
    // The kernel creates no files in /proc.
    for (table, why) in [
        ("[spool]\nmax_bytes = \"200KB\"", "stored bodies already use 200000B (spool.max_bytes)"),
        ("[spool]\ndirectory = \"/proc\"", "cannot store the request body: /proc: "),
    ] {
        let server = serve(&site, "max_processes = 1", table);
        let mut client = server.connect();
        client.send_request("POST", "/cgi-bin/echo", &[("Content-Length", "8000000")]);
        client.send(pattern(8_000_000));
        assert_eq!(client.response("POST").status, 503);
        server.wait_for(why);
        // A body that fits in memory needs no file, and a response waits for its client.
        let mut client = server.connect();
        client.send_request("POST", "/cgi-bin/echo", &[CHUNKED]);
        client.send(chunked(b"hello"));
        assert_eq!(client.response("POST").text(), "hello");
        let mut client = download(&server, "/cgi-bin/much");
        assert!(client.read_head().starts_with("HTTP/1.1 200"));
        assert_eq!(client.read_chunks().unwrap().len(), 14_888_896);
    }
}
