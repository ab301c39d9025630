//! Limits on what one client may use: size, time, number.
//!
//! Timeouts are tested exactly from below (never early) and loosely from above (a loaded machine is late): a limit of
//! one second must act while the client continues for [`PATIENCE`] with actions that must not extend it.

use std::io::{ErrorKind, Read, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::harness::*;

fn small_site() -> Site {
    let site = Site::new();
    site.file("a.txt", "hello");
    site
}

/// Creates a sparse file larger than any socket buffer.
fn huge(site: &Site, name: &str, mib: u64) -> u64 {
    std::fs::File::create(site.path().join(name)).unwrap().set_len(mib << 20).unwrap();
    mib << 20
}

/// Asserts a response after which the server reads no further request.
fn assert_refused(client: &mut Client, status: u16) {
    let response = client.response("GET");
    assert_eq!((response.status, response.field("Connection")), (status, Some("close")), "{response:?}");
    assert!(client.is_closed());
}

/// Sends `piece` every tenth of a second until `answer` returns, for at most PATIENCE.
fn drip(sender: &Client, piece: &[u8], answer: impl FnOnce()) {
    let mut stream = sender.stream();
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let _stop = SetOnDrop(&done);
        scope.spawn(|| {
            let begin = Instant::now();
            while !done.load(Ordering::Relaxed) && begin.elapsed() < PATIENCE {
                if stream.write_all(piece).is_err() {
                    return;
                }
                thread::sleep(Duration::from_millis(100));
            }
        });
        answer();
    });
}

#[test]
fn request_line_over_limit_returns_414() {
    let site = small_site();
    let server = Server::configured(&site, "[limits]\nmax_request_line_bytes = \"100\"");
    let line = |length: usize| {
        let target = "a".repeat(length - "GET / HTTP/1.1\r\n".len());
        format!("GET /{target} HTTP/1.1\r\nHost: localhost\r\n\r\n")
    };
    let mut client = server.connect();
    client.send(line(100));
    assert_eq!(client.response("GET").status, 404);
    client.send(line(101));
    assert_refused(&mut client, 414);
    // The server does not wait for a line without an end.
    let mut client = server.connect();
    client.send("GET /".to_owned() + &"a".repeat(200));
    assert_refused(&mut client, 414);
}

#[test]
fn default_limit_accepts_request_line_of_8000_bytes() {
    // The minimum that RFC 9112, 3 recommends.
    let site = small_site();
    let server = Server::serve(&site);
    assert_eq!(server.get(&format!("/a.txt?{}", "q".repeat(8000 - 24))).status, 200);
    assert_eq!(server.get(&format!("/a.txt?{}", "q".repeat(9000))).status, 414);
}

#[test]
fn header_over_limit_returns_431() {
    let site = small_site();
    let server = Server::configured(&site, "[limits]\nmax_header_bytes = \"500\"");
    let head = |length: usize| {
        let rest = "GET /a.txt HTTP/1.1\r\nHost: localhost\r\nX-Long: \r\n\r\n".len();
        format!("GET /a.txt HTTP/1.1\r\nHost: localhost\r\nX-Long: {}\r\n\r\n", "x".repeat(length - rest))
    };
    let mut client = server.connect();
    client.send(head(500));
    assert_eq!(client.response("GET").status, 200);
    client.send(head(501));
    assert_refused(&mut client, 431);
    let mut client = server.connect();
    client.send("GET /a.txt HTTP/1.1\r\nX-Endless: ".to_owned() + &"x".repeat(600));
    assert_refused(&mut client, 431);
}

#[test]
fn too_many_fields_return_431() {
    let site = small_site();
    let server = Server::configured(&site, "[limits]\nmax_header_fields = 5");
    let head = |fields: usize| {
        let more: String = (1..fields).map(|n| format!("X-{n}: x\r\n")).collect();
        format!("GET /a.txt HTTP/1.1\r\nHost: localhost\r\n{more}\r\n")
    };
    let mut client = server.connect();
    client.send(head(5));
    assert_eq!(client.response("GET").status, 200);
    client.send(head(6));
    assert_refused(&mut client, 431);
}

#[test]
fn slow_header_returns_408_even_if_bytes_trickle() {
    // This test reads and writes the socket directly.
    if is_secure() || is_http2() {
        return;
    }
    let site = small_site();
    let server = Server::configured(&site, "[limits]\nheader_timeout = \"1s\"");
    // The first request of a connection, and a later one.
    for requests_before in [0, 1] {
        let mut client = server.connect();
        for _ in 0..requests_before {
            assert_eq!(client.get("/a.txt").status, 200);
        }
        let begin = Instant::now();
        client.send("GET /a.txt HTTP/1.1\r\nX-Slow: ");
        let sender = Client::on(client.stream());
        drip(&sender, b"x", || {
            assert_refused(&mut client, 408);
            assert!(begin.elapsed() >= Duration::from_secs(1), "early");
        });
    }
    assert_eq!(server.report("bad_requests"), 2);
}

#[test]
fn silent_connection_is_closed_without_response() {
    let site = small_site();
    let server = Server::configured(&site, "[limits]\nheader_timeout = \"1s\"");
    let begin = Instant::now();
    let mut client = server.connect();
    assert!(client.is_closed());
    assert!(begin.elapsed() >= Duration::from_secs(1), "early");
}

#[test]
fn idle_connection_times_out_and_each_request_restarts_timer() {
    let site = small_site();
    let idle_timeout = Duration::from_secs(4);
    let server = Server::configured(&site, "[limits]\nidle_timeout = \"4s\"");
    let mut client = server.connect();
    assert_eq!(client.get("/a.txt").status, 200);
    let mut sent = Instant::now();
    for _ in 0..6 {
        thread::sleep(Duration::from_millis(800));
        let before = sent;
        sent = Instant::now();
        let response = client.try_get("/a.txt").map(|response| response.status);
        assert_eq!(response, Some(200), "{:?} after the last request", sent - before);
    }
    assert!(client.is_closed());
    assert!(sent.elapsed() >= idle_timeout, "early: {:?}", sent.elapsed());
}

#[test]
fn slow_body_returns_408_even_if_bytes_trickle() {
    // This test reads and writes the socket directly.
    if is_secure() || is_http2() {
        return;
    }
    let site = small_site();
    let server = Server::configured(&site, "[limits]\nbody_timeout = \"1s\"");
    for framing in ["Content-Length: 100000", "Transfer-Encoding: chunked"] {
        let mut client = server.connect();
        let begin = Instant::now();
        client.send(format!("GET /a.txt HTTP/1.1\r\nHost: localhost\r\n{framing}\r\n\r\n"));
        let sender = Client::on(client.stream());
        drip(&sender, b"1\r\nx\r\n", || {
            assert_refused(&mut client, 408);
            assert!(begin.elapsed() >= Duration::from_secs(1), "early");
        });
    }
}

#[test]
fn body_over_limit_returns_413_and_body_within_keeps_connection() {
    let site = small_site();
    let server = Server::configured(&site, "[limits]\nmax_body_bytes = \"1000\"");
    let mut client = server.connect();
    let body = "x".repeat(1000);
    client.send(format!("GET /a.txt HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n{body}"));
    assert_eq!(client.response("GET").status, 200);
    client.send("GET /a.txt HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n");
    client.send(format!("1f4\r\n{0}\r\n1F4\r\n{0}\r\n0\r\n\r\n", "y".repeat(500)));
    assert_eq!(client.response("GET").status, 200);

    // A body with a declared length is refused at once, unread.
    client.send("GET /a.txt HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1001\r\n\r\n");
    assert_refused(&mut client, 413);
    // A chunked body is refused when it exceeds the limit.
    let mut client = server.connect();
    client.send("GET /a.txt HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n");
    client.send(format!("3e8\r\n{body}\r\n"));
    assert!(client.is_quiet(Duration::from_millis(200)));
    client.send("1\r\nx\r\n");
    assert_refused(&mut client, 413);
    // Even a client that first sends its whole body can read the response.
    let mut client = server.connect();
    client.send("POST /a.txt HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n\r\n");
    client.send("x".repeat(1_000_000));
    assert_eq!(client.response("POST").status, 413);
}

#[test]
fn slow_but_steady_download_outlives_send_timeout() {
    // This test reads and writes the socket directly.
    if is_secure() || is_http2() {
        return;
    }
    let site = Site::new();
    let content: Vec<u8> = (0..8u32 << 18).flat_map(u32::to_le_bytes).collect();
    site.file("big.bin", &content);
    let server = Server::configured(&site, "[limits]\nsend_timeout = \"2s\"");
    let mut client = Client::connect_narrow(server.address, 4096);
    client.send_request("GET", "/big.bin", &[]);
    // 20 KiB a second: the TCP window opens several times a second. epoll, which reports room only when a third of the
    // megabytes in the socket buffer is free, reports nothing for minutes.
    let begin = Instant::now();
    let mut received = Vec::new();
    let mut piece = [0; 1024];
    while begin.elapsed() < Duration::from_secs(6) {
        let count = client.stream().read(&mut piece).unwrap();
        assert!(count > 0, "the download was aborted after {:?} and {} bytes", begin.elapsed(), received.len());
        received.extend_from_slice(&piece[..count]);
        thread::sleep(Duration::from_millis(50));
    }
    assert!(received.len() < 1 << 20, "not slow");
    rustix::net::sockopt::set_socket_recv_buffer_size(client.stream(), 1 << 20).unwrap();
    let body = find(&received, b"\r\n\r\n").unwrap() + 4;
    let left = body + content.len() - received.len();
    client.stream().take(left as u64).read_to_end(&mut received).unwrap();
    assert!(received[body..] == content, "{} of {} bytes", received.len() - body, content.len());
    assert_eq!(server.report("connections_broken"), 0);
}

#[test]
fn stalled_download_is_closed_visibly_incomplete() {
    let site = Site::new();
    let length = huge(&site, "huge.bin", 64);
    let server = Server::configured(&site, "[limits]\nsend_timeout = \"1s\"");
    let mut client = Client::connect_narrow(server.address, 4096);
    let begin = Instant::now();
    client.send_request("GET", "/huge.bin", &[]);
    wait_until("the server to close the connection", || server.report("connections") == 0);
    assert!(begin.elapsed() >= Duration::from_secs(1), "early");
    assert_eq!(server.report("connections_broken"), 1);
    let mut received = 0;
    let mut piece = [0; 64 * 1024];
    let end = loop {
        match client.stream().read(&mut piece) {
            Ok(0) => break None,
            Ok(count) => received += count as u64,
            Err(error) => break Some(error.kind()),
        }
    };
    assert!(received < length);
    assert_eq!(end, Some(ErrorKind::ConnectionReset), "after {received} bytes");
}

#[test]
fn trickling_reader_is_reset_and_counted() {
    // HTTP/2 has a test of its own.
    if is_http2() {
        return;
    }
    let site = Site::new();
    huge(&site, "huge.bin", 64);
    let server = Server::configured(&site, "[limits]\nsend_timeout = \"1s\"\nmin_send_rate = \"1MB\"");
    let mut client = Client::connect_narrow(server.address, 4096);
    client.send_request("GET", "/huge.bin", &[]);
    // At most 100 kB/s, so that each second something is acknowledged.
    wait_until("the server to give the client up", || {
        for _ in 0..40 {
            client.fill_at_most(1024);
            thread::sleep(Duration::from_millis(10));
        }
        server.report("connections_slow") == 1
    });
    assert_eq!((server.report("connections"), server.report("connections_broken")), (0, 1));
}

#[test]
fn connection_is_not_idle_while_its_client_receives_from_socket_buffer() {
    if is_secure() || is_http2() {
        return;
    }
    let site = Site::new();
    // The socket's buffer takes all of it at once.
    site.file("big.bin", vec![7; 1 << 20]);
    let limits = "[limits]\nsend_timeout = \"1s\"\nidle_timeout = \"2s\"\nmin_send_rate = \"1kB\"";
    let server = Server::configured(&site, limits);
    let mut client = Client::connect_narrow(server.address, 4096);
    client.send_request("GET", "/big.bin", &[]);
    let mut received = Vec::new();
    let mut piece = vec![0; 10 << 10];
    // 4 s at least.
    while find(&received, b"\r\n\r\n").is_none_or(|head| received.len() < head + 4 + (1 << 20)) {
        let count = client.stream().read(&mut piece).unwrap();
        assert!(count > 0, "closed after {} bytes", received.len());
        received.extend_from_slice(&piece[..count]);
        thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(client.get("/big.bin").status, 200);
    assert_eq!(server.report("connections_slow"), 0);

    // One that receives nothing is given up, though nothing is left to be sent.
    let mut client = Client::connect_narrow(server.address, 4096);
    client.send_request("GET", "/big.bin", &[]);
    wait_until("the server to give the client up", || server.report("connections_slow") == 1);
    let end = loop {
        match client.stream().read(&mut piece) {
            Ok(0) => break None,
            Ok(_) => {}
            Err(error) => break Some(error.kind()),
        }
    };
    assert_eq!(end, Some(ErrorKind::ConnectionReset));
}

#[test]
fn last_allowed_request_is_answered_with_close() {
    let site = small_site();
    let server = Server::configured(&site, "[limits]\nmax_requests = 3");
    let mut client = server.connect();
    for _ in 0..2 {
        assert_eq!(client.get("/a.txt").field("Connection"), None);
    }
    let last = client.get("/a.txt");
    assert_eq!((last.status, last.field("Connection")), (200, Some("close")));
    assert!(client.is_closed());

    // Pipelined requests after the last one receive no response.
    let mut client = server.connect();
    client.send("GET /a.txt HTTP/1.1\r\nHost: localhost\r\n\r\n".repeat(3));
    client.half_close();
    let text = client.read_to_end();
    assert_eq!(text.windows(12).filter(|window| window == b"HTTP/1.1 200").count(), 3);
    let mut client = server.connect();
    client.send("GET /a.txt HTTP/1.1\r\nHost: localhost\r\n\r\n".repeat(5));
    for n in 1..=3 {
        assert_eq!(client.response("GET").field("Connection"), (n == 3).then_some("close"));
    }
    assert!(client.is_closed());
}

#[test]
fn idle_connection_makes_room_at_max_connections() {
    let site = small_site();
    let server = Server::configured(&site, "[limits]\nmax_connections = 4");
    let mut clients: Vec<Client> = Vec::new();
    // Some workers of a pool may not have started; then a running one closes its idle connection for a waiting one.
    wait_until("four connections that are kept open", || {
        clients = (0..4).map(|_| server.connect()).collect();
        let mut is_kept =
            |_| clients.iter_mut().all(|client| client.try_get("/a.txt").is_some_and(|reply| reply.status == 200));
        (0..2).all(&mut is_kept)
    });
    let before = server.report("connections_accepted");
    let mut one_more = server.connect();
    assert_eq!(one_more.get("/a.txt").status, 200);
    // The idle connection was closed before the new one was accepted.
    let alive = clients.iter_mut().filter_map(|client| client.try_get("/a.txt")).count();
    assert_eq!(alive, 3);
    assert_eq!(one_more.get("/a.txt").status, 200);
    assert_eq!(server.report("connections_accepted"), before + 1);
}

#[test]
fn new_connection_has_one_second_for_first_request() {
    let site = small_site();
    let server = Server::configured(&site, "[limits]\nmax_connections = 2");
    let begin = Instant::now();
    let mut silent: Vec<Client> = (0..2).map(|_| server.connect()).collect();
    let mut one_more = server.connect();
    assert_eq!(one_more.get("/a.txt").status, 200);
    assert!(begin.elapsed() >= Duration::from_secs(1), "a connection was closed after {:?}", begin.elapsed());
    assert_eq!(silent.iter_mut().filter_map(|client| client.try_get("/a.txt")).count(), 1);
}

#[test]
fn new_connections_wait_while_none_is_idle() {
    // A handshake in progress would not count as a silent connection.
    if is_secure() {
        return;
    }
    let site = small_site();
    huge(&site, "huge.bin", 64);
    let server = Server::configured(&site, "[limits]\nmax_connections = 2");
    // One sends a head, one downloads a file.
    let mut first = server.connect();
    first.send("GET /a.txt HTTP/1.1\r\n");
    let mut second = Client::connect_narrow(server.address, 4096);
    second.send_request("GET", "/huge.bin", &[]);
    wait_until("both connections to be accepted", || server.report("connections_accepted") == 2);
    second.stream().read_exact(&mut [0; 100]).unwrap();

    let mut waiting: Vec<Client> = (0..3).map(|_| server.connect()).collect();
    for client in &mut waiting {
        client.send_request("GET", "/a.txt", &[("Connection", "close")]);
    }
    assert!(waiting.iter_mut().all(|client| client.is_quiet(Duration::from_millis(200))));
    assert_eq!(server.report("connections_accepted"), 2);
    first.send("Host: localhost\r\n\r\n");
    assert_eq!(first.response("GET").status, 200);
    for client in &mut waiting {
        assert_eq!(client.response("GET").text(), "hello");
    }
    assert_eq!(server.report("connections_broken"), 0);
}
