//! HTTP/2: requests side by side, flow control, priorities, the limits of a client, and the end of a connection.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use amped_http::h2::frame::{self, ErrorCode, FRAME_BYTES, StreamId};

use super::frames::*;
use super::harness::*;
use super::http_backends::Backend;

fn get(http2: &mut Http2, path: &str, fields: &[(&str, &str)]) -> Response {
    let stream = http2.request("GET", path, fields);
    http2.response(stream)
}

#[test]
fn files_conditions_ranges_and_errors() {
    let site = Site::new();
    let body = pattern(300_000);
    site.file("large", &body);
    site.file("small.html", "<p>small</p>");
    site.file("empty.txt", "");
    let server = Server::serve(&site);
    let mut http2 = Http2::connect(&server);
    let small = http2.get("/small.html");
    assert_eq!((small.status, small.text().as_str()), (200, "<p>small</p>"));
    assert_eq!(small.field("content-type"), Some("text/html; charset=utf-8"));
    assert_eq!(small.field("server"), Some("amped"));
    assert!(small.field("date").is_some() && small.field("connection").is_none(), "{small:?}");
    let tag = small.field("etag").unwrap().to_owned();
    // The same again from the cache, and the same fields as in HTTP/1.
    let again = http2.get("/small.html");
    assert_eq!((again.lasting_fields(), &again.body), (small.lasting_fields(), &small.body));
    let mut by_http1 = server.get("/small.html").lasting_fields();
    by_http1.iter_mut().for_each(|(name, _)| name.make_ascii_lowercase());
    assert_eq!(by_http1, small.lasting_fields());
    assert_eq!(get(&mut http2, "/small.html", &[("if-none-match", &tag)]).status, 304);
    let part = get(&mut http2, "/large", &[("range", "bytes=100-199")]);
    assert_eq!((part.status, &part.body[..]), (206, &body[100..200]));
    let parts = get(&mut http2, "/large", &[("range", "bytes=0-9,100000-100009")]);
    assert!(parts.status == 206 && parts.text().contains("Content-Range: bytes 0-9/300000"), "{parts:?}");
    assert_eq!(http2.get("/large").body, body);
    assert_eq!((http2.get("/empty.txt").status, http2.get("/none").status), (200, 404));
    let stream = http2.request("HEAD", "/large", &[]);
    let head = http2.response(stream);
    assert_eq!((head.field("content-length"), head.body.len()), (Some("300000"), 0));
    assert_eq!(get(&mut http2, "/../etc/passwd", &[]).status, 400);
    // RFC 9113, 8.3.1: CONNECT has other pseudo-fields; this one is malformed.
    let stream = http2.request("CONNECT", "/", &[]);
    assert_eq!(http2.try_response(stream), Err(Some(ErrorCode::PROTOCOL_ERROR)));
    assert_eq!(http2.get("/empty.txt").status, 200, "the connection goes on");
}

#[test]
fn streams_are_answered_side_by_side() {
    let site = Site::new();
    for n in 0..100 {
        site.file(&format!("{n}"), pattern(n * 300));
    }
    let server = Server::serve(&site);
    let mut http2 = Http2::connect(&server);
    for _ in 0..3 {
        let streams: Vec<_> = (0..100).map(|n| (n, http2.request("GET", &format!("/{n}"), &[]))).collect();
        for (n, stream) in streams.into_iter().rev() {
            let response = http2.response(stream);
            assert_eq!((response.status, response.body), (200, pattern(n * 300)), "{n}");
        }
    }
}

#[test]
fn bodies_within_windows_of_client() {
    let site = Site::new();
    site.file("large", pattern(200_000));
    let server = Server::serve(&site);
    let mut http2 = Http2::connect_with(&server, &[window(10)]);
    http2.updates_windows = false;
    let stream = http2.request("GET", "/large", &[]);
    http2.read_until(|http2| http2.received(stream) == 10);
    // A stream of its own is not delayed by one without a window.
    let other = http2.request("HEAD", "/large", &[]);
    assert_eq!(http2.response(other).status, 200);
    assert_eq!(http2.received(stream), 10);
    http2.send(|out| frame::window_update(out, stream, 5));
    http2.read_until(|http2| http2.received(stream) == 15);
    // The initial window changes those of open streams (RFC 9113, 6.9.2), but not that of the connection.
    http2.send(|out| frame::settings(out, &[window(100_000)]));
    http2.read_until(|http2| http2.received(stream) == 65_535);
    http2.send(|out| frame::window_update(out, StreamId::CONNECTION, 1_000_000));
    http2.read_until(|http2| http2.received(stream) == 100_005);
    http2.send(|out| frame::window_update(out, stream, 1_000_000));
    assert_eq!(http2.response(stream).body, pattern(200_000));
    // A window beyond the maximum is an error of its stream, or of the connection.
    http2.send(|out| frame::settings(out, &[window(10)]));
    let stream = http2.request("GET", "/large", &[]);
    http2.send(|out| {
        frame::window_update(out, stream, frame::WINDOW_MAX);
        frame::window_update(out, stream, frame::WINDOW_MAX);
    });
    assert_eq!(http2.try_response(stream), Err(Some(ErrorCode::FLOW_CONTROL_ERROR)));
    http2.send(|out| frame::window_update(out, StreamId::CONNECTION, frame::WINDOW_MAX));
    http2.read_to_end();
    assert_eq!(http2.goodbyes.last().map(|(_, code)| *code), Some(ErrorCode::FLOW_CONTROL_ERROR));
}

#[test]
fn urgent_responses_overtake_others() {
    let site = Site::new();
    site.file("large", pattern(2_000_000));
    site.file("small", pattern(20_000));
    let server = Server::serve(&site);
    let mut http2 = Http2::connect(&server);
    assert_eq!(http2.get("/small").status, 200);
    let large = http2.request("GET", "/large", &[("priority", "u=5")]);
    http2.read_until(|http2| http2.received(large) > 0);
    let small = http2.request("GET", "/small", &[("priority", "u=0")]);
    http2.response(small);
    assert!(http2.received(large) < 2_000_000, "the urgent response waited for the other");
    assert_eq!(http2.response(large).body, pattern(2_000_000));
    // Responses of one urgency are sent one after another, unless they are incremental.
    for (priority, least) in [("u=3, i", 1_500_000), ("u=3", 0)] {
        let mut http2 = Http2::connect_with(&server, &[window(4_000_000)]);
        http2.updates_windows = false;
        let streams = [(); 2].map(|()| http2.request("GET", "/large", &[("priority", priority)]));
        http2.send(|out| frame::window_update(out, StreamId::CONNECTION, 1 << 30));
        http2.read_until(|http2| !http2.completed.is_empty());
        let second = http2.received(streams[1]);
        assert!((least..least + 600_000).contains(&second), "{priority}: {second}");
        assert_eq!(http2.response(streams[1]).body, pattern(2_000_000));
    }
}

/// RFC 9218, 7.1: a priority may arrive before its stream, for which it precedes the field.
#[test]
fn priority_that_arrives_before_its_stream_is_applied() {
    let site = Site::new();
    site.file("large", pattern(2_000_000));
    site.file("small", pattern(20_000));
    let server = Server::serve(&site);
    let mut http2 = Http2::connect_with(&server, &[window(0)]);
    assert_eq!(http2.request("HEAD", "/small", &[]), StreamId(1));
    assert_eq!(http2.response(StreamId(1)).status, 200);
    http2.updates_windows = false;
    http2.send(|out| {
        frame::window_update(out, StreamId::CONNECTION, 1 << 30);
        frame::priority_update(out, StreamId(5), b"u=7");
        frame::priority_update(out, StreamId(5), b"u=0");
        frame::priority_update(out, StreamId(7), b"u=1");
    });
    let streams = [("/large", "u=3"), ("/small", "u=6"), ("/small", "u=6"), ("/small", "u=2")]
        .map(|(path, priority)| http2.request("GET", path, &[("priority", priority)]));
    assert_eq!(streams.map(|stream| stream.0), [3, 5, 7, 9]);
    http2.read_until(|http2| streams.iter().all(|stream| http2.status(*stream).is_some()));
    http2.send(|out| frame::settings(out, &[window(4_000_000)]));
    http2.read_until(|http2| http2.completed.len() == 5);
    assert_eq!(http2.completed, [1, 5, 7, 9, 3]);
}

#[test]
fn priorities_of_more_streams_than_allowed_are_an_error() {
    let site = Site::new();
    site.file("x", "x");
    let server = Server::configured(&site, "[limits]\nmax_concurrent_streams = 4");
    let mut http2 = Http2::connect_with(&server, &[window(0)]);
    let first = http2.request("GET", "/x", &[]);
    http2.read_until(|http2| http2.status(first).is_some());
    // With the open one as many as allowed; again and again the same ones, and others once those are opened.
    for _ in 0..2 {
        http2.send(|out| (1..4).for_each(|n| frame::priority_update(out, StreamId(n * 2 + 1), b"u=1")));
    }
    http2.send(|out| frame::settings(out, &[window(100)]));
    assert_eq!(http2.get("/x").text(), "x");
    assert_eq!(http2.get("/x").text(), "x");
    http2.send(|out| (3..7).for_each(|n| frame::priority_update(out, StreamId(n * 2 + 1), b"u=1")));
    assert_eq!(http2.get("/x").text(), "x");
    http2.send(|out| (20..24).for_each(|n| frame::priority_update(out, StreamId(n * 2 + 1), b"u=1")));
    http2.read_to_end();
    assert_eq!(http2.goodbyes.last().map(|(_, code)| *code), Some(ErrorCode::PROTOCOL_ERROR));
}

/// An urgent response waits for what the socket may take ahead and for the client's buffer, at most 0.3 MB as measured;
/// without a limit, for 2.8 MB.
#[test]
fn urgent_response_overtakes_download_within_what_socket_has_to_send() {
    let site = Site::new();
    site.file("large", pattern(20_000_000));
    site.file("small", pattern(1000));
    let server = Server::serve(&site);
    for receive_buffer in [16 * 1024, 64 * 1024] {
        let client = Client::connect_narrow(server.address, receive_buffer).untranslated();
        let mut http2 = Http2::begin(client, &[window(1 << 30)]);
        http2.updates_windows = false;
        http2.send(|out| frame::window_update(out, StreamId::CONNECTION, 1 << 30));
        assert_eq!(http2.get("/small").status, 200);
        let large = http2.request("GET", "/large", &[("priority", "u=7")]);
        http2.read_until(|http2| http2.received(large) > 8_000_000);
        // The server fills the socket while the client reads nothing.
        thread::sleep(Duration::from_millis(300));
        let before = http2.received(large) + http2.client.buffered().len();
        let small = http2.request("GET", "/small", &[("priority", "u=0")]);
        http2.response(small);
        let overtaken = http2.received(large) - before;
        assert!(overtaken < 700_000, "{overtaken} bytes of the download were sent before");
    }
}

#[test]
fn request_bodies_and_applications() {
    let site = Site::new();
    let socket = site.path().join("socket");
    answer_by_fastcgi(&socket, "Content-Type: text/plain\r\n\r\nanswered");
    let config = format!("[[site.app]]\nmatch = \"/app\"\nfastcgi = \"unix:{}\"\nfiles = false\n", socket.display());
    site.file("x", "file");
    let server = Server::with_site(&site, &config);
    let mut http2 = Http2::connect(&server);
    let body = pattern(600_000);
    // More than the window, which the server extends as it stores the body.
    let length = body.len().to_string();
    for fields in [&[("content-length", length.as_str())][..], &[]] {
        let stream = http2.post("/app", fields, &body, 10_000);
        assert_eq!(http2.response(stream).text(), "answered");
    }
    let streams: Vec<_> = (0..10).map(|_| http2.request("GET", "/app", &[])).collect();
    for stream in streams {
        assert_eq!(http2.response(stream).text(), "answered");
    }
    // A body that a file does not need is discarded.
    let stream = http2.post("/x", &[], &body[..100_000], 10_000);
    assert_eq!(http2.response(stream).status, 405);
    assert_eq!(http2.get("/x").text(), "file");
    // A body of another length than announced is malformed (RFC 9113, 8.1.1).
    for (said, part) in [("5", 6), ("5", 4)] {
        let stream = http2.post("/app", &[("content-length", said)], &body[..part], 100);
        assert_eq!(http2.try_response(stream), Err(Some(ErrorCode::PROTOCOL_ERROR)), "{said} {part}");
    }
    assert_eq!(http2.get("/x").text(), "file");
}

#[test]
fn client_that_resets_streams_or_sends_empty_frames_is_disconnected() {
    let site = Site::new();
    site.file("x", pattern(100_000));
    let server = Server::serve(&site);
    type Flood = fn(&mut Http2, usize);
    let floods: [(&str, Flood); 7] = [
        ("rapid resets", |http2, _| {
            let stream = http2.request("GET", "/x", &[]);
            http2.send(|out| frame::reset(out, stream, ErrorCode::CANCEL));
        }),
        ("resets by the server", |http2, _| {
            let stream = http2.request("GET", "/x", &[]);
            http2.send(|out| frame::window_update(out, stream, 0));
        }),
        ("pings", |http2, n| http2.send(|out| frame::ping(out, false, (n as u64).to_be_bytes()))),
        ("settings", |http2, _| http2.send(|out| frame::settings(out, &[]))),
        ("tiny windows", |http2, _| http2.send(|out| frame::window_update(out, StreamId::CONNECTION, 1))),
        ("priorities", |http2, _| http2.send(|out| frame::priority_update(out, StreamId(1), b"u=1"))),
        ("empty data", |http2, n| {
            if n == 0 {
                let (stream, block) = (http2.open(), http2.head("POST", "/x", &[]));
                http2.send(|out| frame::headers(out, stream, &block, false, FRAME_BYTES));
            }
            http2.data(StreamId(1), &[], false);
        }),
    ];
    for (name, flood) in floods {
        let mut http2 = Http2::connect_with(&server, &[window(0)]);
        for n in 0..1000 {
            flood(&mut http2, n);
        }
        http2.read_to_end();
        assert_eq!(http2.goodbyes.last().map(|(_, code)| *code), Some(ErrorCode::ENHANCE_YOUR_CALM), "{name}");
    }
    // Few frames with many settings.
    let mut http2 = Http2::connect(&server);
    let settings: Vec<_> = (0..2700).map(|n| window(n % 100)).collect();
    for _ in 0..5 {
        http2.send(|out| frame::settings(out, &settings));
    }
    http2.read_to_end();
    assert_eq!(http2.goodbyes.last().map(|(_, code)| *code), Some(ErrorCode::ENHANCE_YOUR_CALM));
    // A header block that never ends.
    let mut http2 = Http2::connect(&server);
    let stream = http2.open();
    let block = vec![0; 1000];
    http2.send(|out| {
        frame::headers(out, stream, &block, true, 1000);
        out[4] &= !4;
        for _ in 0..20 {
            out.extend_from_slice(&[0, 0, 1, 9, 0, 0, 0, 0, stream.0 as u8, 0]);
        }
    });
    http2.read_to_end();
    assert_eq!(http2.goodbyes.last().map(|(_, code)| *code), Some(ErrorCode::ENHANCE_YOUR_CALM));
    assert_eq!(server.get("/x").body, pattern(100_000));
}

#[test]
fn heads_over_limits_and_malformed_ones() {
    let site = Site::new();
    site.file("x", "x");
    let log = site.path().with_extension("log");
    let server = Server::configured(&site, &format!("log.access = {log:?}\nlog.flush = \"50ms\"\n"));
    let mut http2 = Http2::connect(&server);
    let long = "x".repeat(35_000);
    assert_eq!(get(&mut http2, "/x", &[("a", &long)]).status, 431);
    assert_eq!(get(&mut http2, &format!("/{}", &long[..9000]), &[]).status, 414);
    let names: Vec<String> = (0..150).map(|n| format!("a{n}")).collect();
    let many: Vec<_> = names.iter().map(|name| (name.as_str(), "")).collect();
    assert_eq!(get(&mut http2, "/x", &many).status, 431);
    for (fields, what) in [
        (&[("connection", "close")][..], "a field of the connection"),
        (&[("te", "gzip")], "te"),
        (&[(":path", "/y")], "a pseudo-field after others, or twice"),
        (&[("a", "b\nc")], "a line end"),
    ] {
        let stream = http2.request("GET", "/x", fields);
        assert_eq!(http2.try_response(stream), Err(Some(ErrorCode::PROTOCOL_ERROR)), "{what}");
    }
    let stream = http2.open();
    let block = [http2.head("GET", "/x", &[]), b"\x00\x01X\x01y".to_vec()].concat();
    http2.send(|out| frame::headers(out, stream, &block, true, FRAME_BYTES));
    assert_eq!(http2.try_response(stream), Err(Some(ErrorCode::PROTOCOL_ERROR)), "upper case");
    wait_until("the malformed requests to be logged", || {
        let lines = fs::read_to_string(&log).unwrap_or_default();
        lines.lines().filter(|line| line.contains("\"/x\" 400 -")).count() == 5
    });
    fs::remove_file(&log).unwrap();
    assert_eq!(http2.get("/x").text(), "x");
    // A block that cannot be decoded ends the connection.
    let stream = http2.open();
    http2.send(|out| frame::headers(out, stream, &[0x80], true, FRAME_BYTES));
    http2.read_to_end();
    assert_eq!(http2.goodbyes.last().map(|(_, code)| *code), Some(ErrorCode::COMPRESSION_ERROR));
}

#[test]
fn requests_in_progress_hold_limited_memory_for_their_heads() {
    const HEAD: usize = 16_000;
    let site = Site::new();
    site.file("x", "x");
    let server = Server::serve(&site);
    let mut http2 = Http2::connect(&server);
    // A body that never comes keeps each request in progress.
    let streams: Vec<StreamId> = (0..60)
        .map(|_| {
            let (stream, block) = (http2.open(), http2.head("POST", "/x", &[("cookie", &"a".repeat(HEAD))]));
            http2.send(|out| frame::headers(out, stream, &block, false, FRAME_BYTES));
            stream
        })
        .collect();
    assert_eq!(http2.get("/x").text(), "x", "a small head");
    let (open, refused): (Vec<StreamId>, Vec<StreamId>) = streams.iter().partition(|&&stream| !http2.is_reset(stream));
    assert_eq!(open, streams[..open.len()], "the later ones are refused");
    assert!((40..=49).contains(&open.len()), "{} heads of {HEAD} bytes", open.len());
    for stream in refused {
        assert_eq!(http2.try_response(stream), Err(Some(ErrorCode::REFUSED_STREAM)));
    }
    for &stream in &open {
        http2.data(stream, b"", true);
        assert_eq!(http2.response(stream).status, 405);
    }
    let again = http2.post("/x", &[("cookie", &"a".repeat(HEAD))], b"y", 1);
    assert_eq!(http2.response(again).status, 405);
}

#[test]
fn more_streams_than_allowed_are_refused() {
    let site = Site::new();
    site.file("x", pattern(100_000));
    let server = Server::configured(&site, "limits.max_concurrent_streams = 3\n");
    let mut http2 = Http2::connect_with(&server, &[window(0)]);
    let streams = [(); 4].map(|()| http2.request("GET", "/x", &[]));
    assert_eq!(http2.try_response(streams[3]), Err(Some(ErrorCode::REFUSED_STREAM)));
    http2.send(|out| frame::settings(out, &[window(200_000)]));
    for stream in &streams[..3] {
        assert_eq!(http2.response(*stream).body, pattern(100_000));
    }
    assert_eq!(http2.get("/x").status, 200);
}

#[test]
fn stop_finishes_streams_and_announces_last_one() {
    let site = Site::new();
    site.file("x", pattern(3_000_000));
    let mut server = Server::serve(&site);
    let mut http2 = Http2::connect_with(&server, &[window(1000)]);
    let stream = http2.request("GET", "/x", &[]);
    http2.read_until(|http2| http2.received(stream) > 0);
    server.signal("TERM");
    http2.read_until(|http2| !http2.goodbyes.is_empty());
    assert_eq!(http2.goodbyes[0], (frame::WINDOW_MAX, ErrorCode::NO_ERROR));
    http2.read_until(|http2| http2.goodbyes.len() == 2);
    assert_eq!(http2.goodbyes[1], (stream.0, ErrorCode::NO_ERROR));
    http2.send(|out| frame::settings(out, &[window(4_000_000)]));
    assert_eq!(http2.response(stream).body, pattern(3_000_000));
    http2.read_to_end();
    server.wait();
}

#[test]
fn file_that_changes_while_sent_resets_its_stream_only() {
    let site = Site::new();
    let path = site.file("x", pattern(1_000_000));
    site.file("y", "y");
    let server = Server::serve(&site);
    let mut http2 = Http2::connect_with(&server, &[window(1000)]);
    http2.updates_windows = false;
    let stream = http2.request("GET", "/x", &[]);
    http2.read_until(|http2| http2.received(stream) == 1000);
    fs::write(&path, pattern(900_000)).unwrap();
    http2.send(|out| frame::window_update(out, stream, 100_000));
    assert_eq!(http2.try_response(stream), Err(Some(ErrorCode::INTERNAL_ERROR)));
    assert_eq!(http2.get("/y").text(), "y");
}

#[test]
fn http2_can_be_switched_off() {
    let site = Site::new();
    site.file("x", "x");
    let server = Server::configured(&site, "http2 = false\n");
    let mut client = server.connect().untranslated();
    client.send("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
    assert_eq!(client.response("PRI").status, 505);
}

#[test]
fn preface_in_pieces_is_recognised() {
    let site = Site::new();
    site.file("x", "x");
    let server = Server::serve(&site);
    for piece in [1, 3, 14, 20, 23] {
        let mut client = server.connect().untranslated();
        for part in frame::PREFACE.chunks(piece) {
            client.send(part);
            thread::sleep(Duration::from_millis(2));
        }
        let mut http2 = Http2::resume(client);
        assert_eq!(http2.get("/x").text(), "x", "{piece}");
    }
    // What only begins like it is HTTP/1.
    assert_eq!(server.connect().untranslated().request("PRIX", "/x", &[]).status, 501);
    assert_eq!(server.connect().untranslated().request("PUT", "/x", &[]).status, 405);
}

/// Reads a body at this many bytes a second, for so long; returns the bytes received.
fn read_slowly(http2: &mut Http2, stream: StreamId, rate: usize, time: Duration) -> usize {
    let begin = Instant::now();
    while begin.elapsed() < time {
        http2.client.fill_at_most(rate / 10);
        thread::sleep(Duration::from_millis(100));
        while http2.take_buffered_frame() {}
    }
    http2.received(stream)
}

#[test]
fn slow_reader_outlives_send_timeout_and_streams_wait_for_their_turn() {
    let site = Site::new();
    site.file("large", pattern(20_000_000));
    let server = Server::configured(&site, "limits.send_timeout = \"2s\"\n");
    let client = Client::connect_narrow(server.address, 16 * 1024).untranslated();
    let mut http2 = Http2::begin(client, &[window(1 << 30)]);
    http2.send(|out| frame::window_update(out, StreamId::CONNECTION, 1 << 30));
    http2.updates_windows = false;
    let streams = [(); 3].map(|()| http2.request("GET", "/large", &[]));
    let received = read_slowly(&mut http2, streams[0], 200_000, Duration::from_secs(6));
    assert!(received > 200_000, "{received}");
    assert!(streams.iter().all(|&stream| !http2.is_reset(stream)), "a stream that waited for its turn was reset");
}

#[test]
fn trickling_reader_of_streams_is_disconnected() {
    let site = Site::new();
    site.file("large", pattern(40_000_000));
    let server = Server::configured(&site, "[limits]\nsend_timeout = \"1s\"\nmin_send_rate = \"1MB\"\n");
    let client = Client::connect_narrow(server.address, 4096).untranslated();
    let mut http2 = Http2::begin(client, &[window(1 << 30)]);
    http2.send(|out| frame::window_update(out, StreamId::CONNECTION, 1 << 30));
    http2.updates_windows = false;
    let stream = http2.request("GET", "/large", &[]);
    wait_until("the server to give the client up", || {
        read_slowly(&mut http2, stream, 100_000, Duration::from_millis(400));
        server.report("connections_slow") == 1
    });
    assert_eq!(server.report("connections"), 0);
}

#[test]
fn stream_whose_window_opens_too_slowly_is_reset() {
    let site = Site::new();
    site.file("large", pattern(10_000_000));
    let server = Server::configured(&site, "[limits]\nsend_timeout = \"1s\"\nmin_send_rate = \"1MB\"\n");
    let mut http2 = Http2::connect_with(&server, &[window(0)]);
    http2.updates_windows = false;
    let stream = http2.request("GET", "/large", &[]);
    wait_until("the stream to be reset", || {
        http2.send(|out| frame::window_update(out, stream, 2000));
        thread::sleep(Duration::from_millis(50));
        http2.client.fill_at_most(10_000);
        while http2.take_buffered_frame() {}
        http2.is_reset(stream)
    });
    http2.send(|out| frame::settings(out, &[window(1_000_000)]));
    assert_eq!(http2.get("/none").status, 404);
}

#[test]
fn stream_without_window_times_out_alone() {
    let site = Site::new();
    site.file("large", pattern(200_000));
    let server = Server::configured(&site, "limits.send_timeout = \"1s\"\n");
    let mut http2 = Http2::connect_with(&server, &[window(0)]);
    let stream = http2.request("GET", "/large", &[]);
    assert_eq!(http2.try_response(stream), Err(Some(ErrorCode::CANCEL)));
    http2.send(|out| frame::settings(out, &[window(1_000_000)]));
    assert_eq!(http2.get("/large").status, 200);
}

#[test]
fn request_that_is_cancelled_at_once_leaves_nothing_to_be_sent() {
    let site = Site::new();
    site.file("x", "x");
    let server = Server::configured(&site, "limits.send_timeout = \"1s\"\n");
    let mut http2 = Http2::connect(&server);
    // Cached, the response is there before the cancellation is read.
    assert_eq!(http2.get("/x").text(), "x");
    let (stream, block) = (http2.open(), http2.head("GET", "/x", &[]));
    http2.send(|out| {
        frame::headers(out, stream, &block, true, FRAME_BYTES);
        frame::reset(out, stream, ErrorCode::CANCEL);
    });
    thread::sleep(Duration::from_millis(2500));
    assert_eq!(http2.get("/x").text(), "x", "the client has received all that was sent");
}

#[test]
fn frames_of_streams_after_last_one_are_ignored() {
    let site = Site::new();
    site.file("x", pattern(100_000));
    let server = Server::configured(&site, "limits.max_requests = 2\n");
    let mut http2 = Http2::connect_with(&server, &[window(10)]);
    let streams = [(); 2].map(|()| http2.request("GET", "/x", &[]));
    http2.read_until(|http2| http2.goodbyes.len() == 2);
    assert_eq!(http2.goodbyes[1], (streams[1].0, ErrorCode::NO_ERROR));
    let (late, block) = (http2.open(), http2.head("POST", "/x", &[]));
    http2.send(|out| frame::headers(out, late, &block, false, FRAME_BYTES));
    http2.data(late, b"hello", false);
    http2.send(|out| frame::reset(out, late, ErrorCode::CANCEL));
    http2.send(|out| frame::settings(out, &[window(200_000)]));
    for stream in streams {
        assert_eq!(http2.response(stream).body, pattern(100_000));
    }
    http2.read_to_end();
    assert_eq!(http2.goodbyes.len(), 2, "{:?}", http2.goodbyes);
}

#[test]
fn control_frames_are_answered_while_downloads_fill_the_socket() {
    let site = Site::new();
    site.file("large", pattern(30_000_000));
    let server = Server::serve(&site);
    let client = Client::connect_narrow(server.address, 16 * 1024).untranslated();
    let mut http2 = Http2::begin(client, &[window(1 << 30)]);
    http2.send(|out| frame::window_update(out, StreamId::CONNECTION, 1 << 30));
    http2.updates_windows = false;
    let stream = http2.request("GET", "/large", &[]);
    // More bytes of answers than may be queued at a time; large enough updates cost nothing, pings restore by time.
    for n in 0..400_u64 {
        http2.read_until(|http2| http2.received(stream) > n as usize * 60_000);
        http2.send(|out| frame::ping(out, false, n.to_be_bytes()));
    }
    http2.read_until(|http2| http2.pings == 400);
}

#[test]
fn smaller_table_of_client_is_acknowledged() {
    let site = Site::new();
    site.file("x", "x");
    let server = Server::serve(&site);
    let mut http2 = Http2::connect_with(&server, &[(1, 0)]);
    http2.begins_blocks.clear();
    for _ in 0..3 {
        assert_eq!(http2.get("/x").text(), "x");
    }
    // RFC 7541, 4.2: the new size comes first in the next block, and in no other.
    assert_eq!((http2.begins_blocks[0], http2.begins_blocks[1] == 0x20), (0x20, false));
}

#[test]
fn preconnection_without_request_ends_without_error() {
    let site = Site::new();
    let server = Server::configured(&site, "limits.header_timeout = \"1s\"\n");
    let mut http2 = Http2::connect(&server);
    http2.read_to_end();
    assert_eq!(http2.goodbyes, [(0, ErrorCode::NO_ERROR)]);
}

#[test]
fn new_incremental_stream_shares_with_older_ones() {
    let site = Site::new();
    site.file("large", pattern(4_000_000));
    let server = Server::serve(&site);
    let mut http2 = Http2::connect_with(&server, &[window(1 << 30)]);
    http2.updates_windows = false;
    let old = http2.request("GET", "/large", &[("priority", "i")]);
    http2.send(|out| frame::window_update(out, StreamId::CONNECTION, 2_000_000));
    http2.read_until(|http2| http2.received(old) == 2_065_535);
    let new = http2.request("GET", "/large", &[("priority", "i")]);
    http2.send(|out| frame::window_update(out, StreamId::CONNECTION, 1_000_000));
    http2.read_until(|http2| http2.received(old) + http2.received(new) == 3_065_535);
    let received = http2.received(new);
    assert!((400_000..600_000).contains(&received), "{received} of 1000000 bytes");
}

/// A connection of HTTP/2 has a file for each of its streams. Many of them must not use up the descriptors of all.
#[test]
fn stalled_downloads_leave_descriptors_for_others() {
    if is_pool() {
        // A worker of a pool has one connection, and descriptors for its streams.
        return;
    }
    let site = Site::new();
    for n in 0..600 {
        site.file(&format!("{n}"), pattern(100_000 + n));
    }
    site.file("small", "small");
    let server = Server::configured(&site, "limits.max_connections = 40\n");
    let mut stalled: Vec<Http2> = (0..5).map(|_| Http2::connect_with(&server, &[window(0)])).collect();
    let mut statuses = Vec::new();
    for (n, http2) in stalled.iter_mut().enumerate() {
        let streams: Vec<_> = (0..100).map(|m| http2.request("GET", &format!("/{}", 100 * n + m), &[])).collect();
        for stream in streams {
            http2.read_until(|http2| http2.status(stream).is_some());
            statuses.push(http2.status(stream).unwrap());
        }
    }
    let sent = statuses.iter().filter(|&&status| status == 200).count();
    assert_eq!((sent, statuses.len()), (40, 500), "{statuses:?}");
    assert!(statuses.iter().all(|status| matches!(status, 200 | 503)));
    assert_eq!(server.get("/small").text(), "small");
    assert_eq!(server.get("/599").body.len(), 100_599);
    drop(stalled);
    let mut http2 = Http2::connect(&server);
    wait_until("the files to be closed", || http2.get("/598").status == 200);
}

/// A hundred and more responses that their client does not read, whatever it is that stops them: its windows, or its socket.
#[test]
fn stalled_responses_of_applications_hold_little_memory_and_delay_no_other() {
    const BYTES: usize = 1_000_000;
    const STREAMS: usize = 127;
    let body = pattern(BYTES);
    let served = body.clone();
    let backend = Backend::start(move |_, peer| {
        while peer.request().is_some() {
            peer.send([format!("HTTP/1.1 200 OK\r\nContent-Length: {BYTES}\r\n\r\n").as_bytes(), &served].concat());
        }
    });
    for (keys, initial_window) in
        [("", 65_535), ("", 4_000_000), ("buffer_response = false", 65_535), ("buffer_response = false", 4_000_000)]
    {
        let server = Server::with_site(
            &Site::new(),
            &format!(
                "[[site.app]]\nmatch = \"/**\"\nmax_processes = 256\nhttp = [\"{}\"]\ntimeout = \"10m\"\n{keys}\n\
                 [limits]\nmax_concurrent_streams = 128\nsend_timeout = \"10m\"",
                backend.address
            ),
        );
        let mut http2 = Http2::connect_with(&server, &[window(initial_window)]);
        http2.updates_windows = false;
        http2.send(|out| frame::window_update(out, StreamId::CONNECTION, 1 << 30));
        let streams: Vec<_> = (0..STREAMS).map(|n| http2.request("GET", &format!("/{n}"), &[])).collect();
        if initial_window == 65_535 {
            // All of them have used up their windows.
            http2.read_until(|http2| streams.iter().all(|stream| http2.received(*stream) == 65_535));
        }
        let held = most_held(&server);
        println!("{keys:?}, windows of {initial_window}: {held} bytes");
        assert!(held < 5 << 19, "{keys:?}, windows of {initial_window}: {held} bytes");
        if initial_window == 65_535 {
            // One that is read is whole, although the others hold their part.
            let stream = http2.request("GET", "/read", &[]);
            http2.send(|out| frame::window_update(out, stream, BYTES as u32));
            assert!(http2.response(stream).body == body);
            streams.iter().for_each(|stream| http2.send(|out| frame::window_update(out, *stream, BYTES as u32)));
        }
        for stream in streams {
            assert!(http2.response(stream).body == body, "stream {} with {keys:?}", stream.0);
        }
    }
}

/// The memory of a server's connections, once it does not change any more.
fn most_held(server: &Server) -> u64 {
    let (mut held, mut alike) = (0, 0);
    wait_until("the memory of connections not to change", || {
        let before = held;
        held = server.report("connection_bytes");
        alike = if held == before { alike + 1 } else { 0 };
        thread::sleep(Duration::from_millis(50));
        alike == 5
    });
    held
}
