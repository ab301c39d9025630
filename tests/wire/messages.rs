//! HTTP/1.1 message syntax (RFC 9112): valid requests are answered; invalid ones are refused, and the connection is
//! closed.
//!
//! The promise behind most of these: at every moment both sides agree where a request ends. A request that leaves this
//! open receives an error and the end of the connection, and bytes after it in the same write are never parsed as a
//! request.

use super::harness::{Client, Server, Site, find, is_secure, pattern, wait_until};

/// Size of a file that is sent from its descriptor, not from memory.
const LARGE: usize = 100_000;

/// Small files, a large one, and a directory.
fn site() -> Site {
    let site = Site::new();
    site.file("hello.txt", "hello\n");
    site.file("large.bin", pattern(LARGE));
    site.file("folder/index.html", "<p>index\n");
    site
}

#[test]
fn file_is_served() {
    let site = Site::new();
    site.file("hello.txt", "hello\n");
    let response = Server::serve(&site).get("/hello.txt");
    assert_eq!((response.status, response.text().as_str()), (200, "hello\n"));
    assert_eq!(response.field("Content-Type"), Some("text/plain; charset=utf-8"));
}

#[test]
fn head_returns_fields_of_get_without_body() {
    let site = site();
    site.file("empty", "");
    site.file("plain/a", "a");
    site.file("404.html", "<p>gone\n");
    let server = Server::with_site(&site, "listing = true\n[site.errors]\n404 = \"/404.html\"");
    let mut client = server.connect();
    for target in ["/hello.txt", "/large.bin", "/empty", "/folder/", "/folder?x=y", "/plain/", "/missing", "/%00", "/%"]
    {
        // The first request reads the disk, the second the caches.
        for _ in 0..2 {
            let get = client.get(target);
            let head = client.request("HEAD", target, &[]);
            assert_eq!((head.status, head.lasting_fields()), (get.status, get.lasting_fields()), "{target}");
        }
    }
}

#[test]
fn refused_head_request_has_no_body() {
    let site = site();
    let server = Server::configured(&site, "[limits]\nmax_body_bytes = \"10\"");
    let check = |text: &str, status: u16| {
        let mut client = server.connect();
        client.send(text);
        assert_eq!((client.response("HEAD").status, client.ends()), (status, true), "{text:?}");
    };
    check("HEAD / HTTP/1.1\r\n\r\n", 400);
    check("HEAD / HTTP/2.0\r\nHost: a\r\n\r\n", 505);
    check("HEAD / HTTP/1.1\r\nHost: a\r\nContent-Length: 11\r\n\r\n", 413);
    check("HEAD / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nx\r\n", 400);
}

#[test]
fn options_lists_allowed_methods() {
    let site = site();
    let server = Server::serve(&site);
    let mut client = server.connect();
    for target in ["*", "/", "/hello.txt", "/missing", "http://localhost", "http://localhost/hello.txt"] {
        let response = client.request("OPTIONS", target, &[]);
        assert_eq!((response.status, response.field("Allow")), (204, Some("GET, HEAD, OPTIONS")), "{target}");
        // RFC 9110, 8.6: no Content-Length in a 204.
        assert_eq!(response.field("Content-Length"), None, "{target}");
    }
}

#[test]
fn other_methods_are_405_and_unknown_ones_501() {
    let site = site();
    let server = Server::serve(&site);
    let mut client = server.connect();
    let mut check = |method: &str, target: &str, status: u16| {
        let response = client.request(method, target, &[]);
        assert_eq!(response.status, status, "{method}");
        // RFC 9110, 15.5.6: a 405 lists the allowed methods.
        let allow = (status == 405).then_some("GET, HEAD, OPTIONS");
        assert_eq!(response.field("Allow"), allow, "{method}");
    };
    for method in ["POST", "PUT", "DELETE", "PATCH", "TRACE"] {
        check(method, "/hello.txt", 405);
        check(method, "/missing", 405);
    }
    check("CONNECT", "localhost:80", 405);
    // RFC 9110, 9.1: names of methods are case-sensitive.
    for method in ["get", "Get", "gET", "head", "BREW", "PROPFIND", "M-SEARCH", "GETX", "GE"] {
        check(method, "/hello.txt", 501);
    }
}

#[test]
fn connection_persists_until_close() {
    let site = site();
    let server = Server::serve(&site);
    let mut client = server.connect();
    for _ in 0..3 {
        let response = client.get("/hello.txt");
        assert_eq!((response.status, response.field("Connection")), (200, None));
    }
    for connection in ["close", "Close", "keep-alive, close", "x,close , y"] {
        let mut client = server.connect();
        let response = client.request("GET", "/hello.txt", &[("Connection", connection)]);
        assert_eq!((response.status, response.field("Connection")), (200, Some("close")), "{connection}");
        assert!(client.ends(), "{connection}");
    }
}

#[test]
fn http_1_0_persists_only_with_keep_alive() {
    let site = site();
    let server = Server::serve(&site);
    let mut client = server.connect();
    for _ in 0..2 {
        client.send("GET /hello.txt HTTP/1.0\r\nConnection: Keep-Alive\r\n\r\n");
        let response = client.response("GET");
        assert_eq!((response.status, response.field("Connection")), (200, Some("keep-alive")));
    }
    client.send("GET /hello.txt HTTP/1.0\r\n\r\n");
    let response = client.response("GET");
    assert_eq!((response.status, response.text().as_str()), (200, "hello\n"));
    assert_eq!(response.field("Connection"), Some("close"));
    assert!(client.ends());
}

/// A request, and the expected response.
struct Exchange {
    text: String,
    method: &'static str,
    status: u16,
    body: Option<Vec<u8>>,
}

/// Returns `count` requests of all kinds that leave the connection open.
fn mixed(server: &Server, count: usize) -> Vec<Exchange> {
    let etag = server.get("/hello.txt").field("ETag").unwrap().to_owned();
    let kinds = [
        ("GET", "/hello.txt", String::new(), "", 200, Some(b"hello\n".to_vec())),
        ("HEAD", "/hello.txt", String::new(), "", 200, None),
        ("GET", "/missing", String::new(), "", 404, None),
        ("GET", "/large.bin", String::new(), "", 200, Some(pattern(LARGE))),
        ("POST", "/hello.txt", "Content-Length: 27\r\n".into(), "GET /in-body HTTP/1.1\r\n\r\n\r\n", 405, None),
        ("GET", "/hello.txt", format!("If-None-Match: {etag}\r\n"), "", 304, None),
        ("GET", "/hello.txt", "Range: bytes=1-3\r\n".into(), "", 206, Some(b"ell".to_vec())),
        ("PUT", "/x", "Transfer-Encoding: chunked\r\n".into(), "3;a=b\r\nabc\r\n0\r\nT: u\r\n\r\n", 405, None),
        ("GET", "/folder", String::new(), "", 301, None),
        ("OPTIONS", "*", String::new(), "", 204, None),
        ("GET", "/large.bin", "Range: bytes=99990-\r\n".into(), "", 206, Some(pattern(LARGE)[99_990..].to_vec())),
    ];
    let exchange = |(method, target, fields, body, status, expected): (_, &str, String, &str, _, _)| Exchange {
        text: format!("{method} {target} HTTP/1.1\r\nHost: a\r\n{fields}\r\n{body}"),
        method,
        status,
        body: expected,
    };
    kinds.into_iter().cycle().take(count).map(exchange).collect()
}

fn expect_in_order(client: &mut Client, exchanges: &[Exchange], what: &str) {
    for (n, exchange) in exchanges.iter().enumerate() {
        let response = client.response(exchange.method);
        assert_eq!(response.status, exchange.status, "{what}: reply {n}");
        if let Some(body) = &exchange.body {
            assert!(response.body == *body, "{what}: the body of reply {n}");
        }
    }
}

#[test]
fn fifty_pipelined_requests_are_answered_in_order() {
    let site = site();
    let server = Server::serve(&site);
    let exchanges = mixed(&server, 50);
    let text: String = exchanges.iter().map(|exchange| exchange.text.as_str()).collect();
    let mut client = server.connect();
    client.send(&text);
    expect_in_order(&mut client, &exchanges, "in one write");
    // Neither side has bytes left over.
    assert_eq!(client.get("/hello.txt").text(), "hello\n");
}

#[test]
fn requests_may_be_split_anywhere() {
    let site = site();
    let server = Server::serve(&site);
    let exchanges = mixed(&server, 50);
    let text: String = exchanges.iter().map(|exchange| exchange.text.as_str()).collect();
    let mut client = server.connect();
    for byte in text.bytes() {
        client.send([byte]);
    }
    expect_in_order(&mut client, &exchanges, "byte by byte");

    let exchanges = mixed(&server, 11);
    let text: String = exchanges.iter().map(|exchange| exchange.text.as_str()).collect();
    for at in 1..text.len() {
        let mut client = server.connect();
        client.send(&text[..at]);
        client.send(&text[at..]);
        expect_in_order(&mut client, &exchanges, &format!("cut at {at}"));
    }
}

#[test]
fn absolute_target_selects_site() {
    // A target with https is wrong without TLS alone.
    if is_secure() {
        return;
    }
    let site = Site::new();
    site.file("first/a", "first");
    site.file("second/a", "second");
    let (first, second) = (site.path().join("first"), site.path().join("second"));
    let config = format!(
        "listen = [\"127.0.0.1:0\"]\n[[site]]\nroot = {first:?}\nhosts = [\"one.example\"]\n\
         [[site]]\nroot = {second:?}\nhosts = [\"two.example\"]"
    );
    let config = site.file("amped.toml", config);
    let server = Server::start(&["--config", config.to_str().unwrap()]);
    let mut client = server.connect();
    let mut check = |target: &str, host: &str, expected: &str| {
        let response = client.request("GET", target, &[("Host", host)]);
        assert_eq!((response.status, response.text().as_str()), (200, expected), "{target} with {host}");
    };
    check("/a", "two.example", "second");
    check("http://two.example/a", "one.example", "second");
    check("http://one.example/a", "two.example", "first");
    check("HTTP://TWO.example:8080/a?b", "one.example", "second");
    check("http://two.example./a", "one.example", "second");
    check("http://other.example/a", "two.example", "first");
    // RFC 9112, 3.2.2: Host is ignored, but must be present and valid.
    for (target, host, status) in [
        ("https://two.example/a", "Host: two.example\r\n", 421),
        ("HTTPS://two.example/a", "Host: two.example\r\n", 421),
        ("http://two.example/a", "Host: a b\r\n", 400),
        ("http://two.example/a", "", 400),
        ("http:///a", "Host: a\r\n", 400),
        ("http://user@two.example/a", "Host: a\r\n", 400),
        ("ftp://two.example/a", "Host: a\r\n", 400),
        ("two.example/a", "Host: a\r\n", 400),
        ("a", "Host: a\r\n", 400),
        ("*", "Host: a\r\n", 400),
    ] {
        refused(&server, format!("GET {target} HTTP/1.1\r\n{host}\r\n"), status);
    }
}

#[test]
fn exactly_one_host_is_required() {
    let site = site();
    let server = Server::serve(&site);
    let good = [
        "localhost",
        "",
        "a.example:80",
        "a.example:",
        "A.EXAMPLE.",
        "127.0.0.1:8080",
        "[::1]",
        "[::1]:80",
        "a_b",
        "%41",
    ];
    let mut client = server.connect();
    for host in good {
        assert_eq!(client.request("GET", "/hello.txt", &[("Host", host)]).status, 200, "{host:?}");
    }
    for host in [
        "a b", "a/b", "a:b", "a:65536", "a:1:2", "user@a", "[::1", "::1", "[::g]", "a?b", "a#b", "<a>", "a\\b", "%4",
        ".",
    ] {
        refused(&server, format!("GET /hello.txt HTTP/1.1\r\nHost: {host}\r\n\r\n"), 400);
    }
    refused(&server, "GET /hello.txt HTTP/1.1\r\n\r\n", 400);
    refused(&server, "GET /hello.txt HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n", 400);
    refused(&server, "GET /hello.txt HTTP/1.1\r\nHost: a\r\nX: y\r\nhost: b\r\n\r\n", 400);
    refused(&server, "GET /hello.txt HTTP/1.0\r\nHost: a\r\nHost: b\r\n\r\n", 400);

    let mut client = server.connect();
    client.send("GET /hello.txt HTTP/1.0\r\n\r\n");
    assert_eq!(client.response("GET").status, 200);
}

#[test]
fn expect_100_continue_gets_100() {
    let site = site();
    let server = Server::serve(&site);
    for (framing, body) in [("Content-Length: 5", "hello"), ("Transfer-Encoding: chunked", "5\r\nhello\r\n0\r\n\r\n")] {
        for method in ["GET", "HEAD", "OPTIONS"] {
            let mut client = server.connect();
            client
                .send(format!("{method} /hello.txt HTTP/1.1\r\nHost: a\r\nExpect: 100-Continue\r\n{framing}\r\n\r\n"));
            assert_eq!(client.response(method).status, 100, "{method} {framing}");
            client.send(body);
            let status = if method == "OPTIONS" { 204 } else { 200 };
            assert_eq!(client.response(method).status, status, "{method} {framing}");
            assert_eq!(client.get("/hello.txt").text(), "hello\n");
        }
    }
    // RFC 9110, 10.1.1: no 100 Continue without a body, after the body has begun to arrive, or in HTTP/1.0.
    let mut client = server.connect();
    assert_eq!(client.request("GET", "/hello.txt", &[("Expect", "100-continue")]).status, 200);
    client.send("GET /hello.txt HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\nab");
    assert_eq!(client.response("GET").status, 200);
    client.send("GET /hello.txt HTTP/1.0\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n");
    client.send("ab");
    assert_eq!(client.response("GET").status, 200);
}

#[test]
fn refused_expect_100_continue_gets_final_status_at_once() {
    let site = site();
    site.file("405.html", "<p>read only\n");
    // With a built-in page, and with one that is read from the disk.
    for config in ["", "[site.errors]\n405 = \"/405.html\""] {
        let server = Server::with_site(&site, config);
        for framing in ["Content-Length: 70", "Transfer-Encoding: chunked"] {
            for _ in 0..2 {
                let mut client = server.connect();
                client
                    .send(format!("POST /hello.txt HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\n{framing}\r\n\r\n"));
                let response = client.response("POST");
                assert_eq!(
                    (response.status, response.field("Connection")),
                    (405, Some("close")),
                    "{framing}, {config}"
                );
                // The client may still send the body, so no further bytes may be parsed as a request.
                client.send("GET /hello.txt HTTP/1.1\r\nHost: a\r\n\r\n");
                assert!(client.ends(), "{framing}, {config}");
            }
        }
    }
}

#[test]
fn endless_method_is_501_and_two_authorizations_are_400() {
    let site = site();
    let server = Server::serve(&site);
    let status = |request: String| {
        let mut client = server.connect();
        client.send(request);
        client.response("GET").status
    };
    assert_eq!(status(format!("{} / HTTP/1.1\r\nHost: a\r\n\r\n", "A".repeat(100_000))), 501);
    assert_eq!(status("A".repeat(100_000)), 501);
    assert_eq!(status(format!("GET /{} HTTP/1.1\r\nHost: a\r\n\r\n", "a".repeat(100_000))), 414);
    let basic = "Authorization: Basic YTpi\r\n";
    assert_eq!(status(format!("GET /hello.txt HTTP/1.1\r\nHost: a\r\n{basic}\r\n")), 200);
    assert_eq!(status(format!("GET /hello.txt HTTP/1.1\r\nHost: a\r\n{basic}{basic}\r\n")), 400);
    assert_eq!(status("GET /hello.txt HTTP/1.1\r\nHost: [v1.a]\r\n\r\n".to_owned()), 200);
}

#[test]
fn unknown_expectation_is_417() {
    let site = site();
    let server = Server::serve(&site);
    let mut client = server.connect();
    for expectation in ["200-ok", "100-continue, x", "100-continued", ",x,", "100-continue;a"] {
        assert_eq!(client.request("GET", "/hello.txt", &[("Expect", expectation)]).status, 417, "{expectation:?}");
    }
    // RFC 9110, 5.6.1: elements of a list may be empty, even all of them.
    for expectation in ["", ",", " , ,", "100-continue,", ", 100-Continue ,"] {
        assert_eq!(client.request("GET", "/hello.txt", &[("Expect", expectation)]).status, 200, "{expectation:?}");
    }
    client.send("GET /hello.txt HTTP/1.1\r\nHost: a\r\nExpect: much\r\nContent-Length: 3\r\n\r\nabc");
    assert_eq!(client.response("GET").status, 417);
    assert_eq!(client.get("/hello.txt").status, 200);
}

#[test]
fn body_within_limit_is_discarded() {
    let site = site();
    let server = Server::configured(&site, "[limits]\nmax_body_bytes = \"1000\"");
    let mut client = server.connect();
    let mut check = |method: &str, framing: &str, body: &str, status: u16| {
        let text = format!("{method} /hello.txt HTTP/1.1\r\nHost: a\r\n{framing}\r\n\r\n{body}");
        client.send(text + "GET /large.bin HTTP/1.1\r\nHost: a\r\n\r\n");
        assert_eq!(client.response(method).status, status, "{method} {framing}");
        assert_eq!(client.response("GET").body.len(), LARGE, "after {method} {framing}");
    };
    let full = "x".repeat(1000);
    let full_chunks = format!("1F4\r\n{}\r\n1f4\r\n{}\r\n0\r\n\r\n", &full[..500], &full[500..]);
    for (method, status) in
        [("GET", 200), ("HEAD", 200), ("POST", 405), ("DELETE", 405), ("BREW", 501), ("OPTIONS", 204)]
    {
        check(method, "Content-Length: 0", "", status);
        check(method, "Content-Length: 5", "ab\r\n\r", status);
        check(method, "Content-Length: 0005", "GET /", status);
        check(method, "Content-Length: 1000", &full, status);
        check(method, "Transfer-Encoding: chunked", "0\r\n\r\n", status);
        check(method, "transfer-encoding:\tCHUNKED ", "3\r\nabc\r\n0A;x=\"y\"\r\n0123456789\r\n000\r\n\r\n", status);
        check(
            method,
            "Transfer-Encoding: chunked",
            "1\r\na\r\n1\t;\tx\r\nb\r\n0\r\nContent-Length: 9\r\nX: y\r\n\r\n",
            status,
        );
        check(method, "Transfer-Encoding: chunked", &full_chunks, status);
    }
}

#[test]
fn body_over_limit_is_413_and_closes() {
    let site = site();
    let server = Server::configured(&site, "[limits]\nmax_body_bytes = \"1000\"");
    let check = |framing: &str, body: &str| {
        refused(&server, format!("POST / HTTP/1.1\r\nHost: a\r\n{framing}\r\n\r\n{body}"), 413);
    };
    let long = "x".repeat(1001);
    check("Content-Length: 1001", &long);
    // A declared length is refused at once: the server does not wait for bytes that it will not read.
    check("Content-Length: 1001", "");
    check("Content-Length: 1001\r\nExpect: 100-continue", "");
    check("Content-Length: 18446744073709551615", "");
    check("Content-Length: 99999999999999999999999999", "");
    check("Transfer-Encoding: chunked", &format!("3e9\r\n{long}\r\n0\r\n\r\n"));
    check("Transfer-Encoding: chunked", &format!("3E8\r\n{}\r\n1\r\nx\r\n0\r\n\r\n", &long[1..]));
}

#[test]
fn malformed_chunks_are_400_and_close() {
    let site = site();
    let server = Server::serve(&site);
    for chunks in [
        "\r\n",
        "x\r\n",
        "-1\r\n\r\n",
        "+1\r\na\r\n0\r\n\r\n",
        "0x1\r\na\r\n0\r\n\r\n",
        " 1\r\na\r\n0\r\n\r\n",
        "1 1\r\na\r\n0\r\n\r\n",
        "1 x\r\na\r\n0\r\n\r\n",
        "1\na\r\n0\r\n\r\n",
        "1\r\na\n0\r\n\r\n",
        "1\r\nab\r\n0\r\n\r\n",
        "2\r\na\r\n0\r\n\r\n",
        "1\r\na0\r\n\r\n",
        "1;x\ny\r\na\r\n0\r\n\r\n",
        "1;x\ry\r\na\r\n0\r\n\r\n",
        "1;\0\r\na\r\n0\r\n\r\n",
        "0\r\n\n",
        "0\r\nX: y\n\r\n",
        "0\r\nX: y\rz\r\n\r\n",
        "0\r\nX: \0\r\n\r\n",
        "10000000000000000\r\na\r\n0\r\n\r\n",
        "fffffffffffffffff\r\na\r\n0\r\n\r\n",
    ] {
        refused(&server, format!("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n{chunks}"), 400);
    }
}

/// Asserts that the request receives this status and the end of the connection, and that a request after it in the same
/// write receives no response.
fn refused(server: &Server, text: impl AsRef<[u8]>, status: u16) {
    let text = text.as_ref();
    let shown = text.escape_ascii();
    let mut client = server.connect();
    client.send([text, b"GET /hello.txt HTTP/1.1\r\nHost: smuggled\r\n\r\n"].concat());
    let response = client.try_response("GET").unwrap_or_else(|error| panic!("{shown}: {error}"));
    assert_eq!((response.status, response.field("Connection")), (status, Some("close")), "{shown}");
    assert!(client.ends(), "data after the refusal of {shown}");
}

#[test]
fn ambiguous_framing_is_rejected() {
    let site = site();
    let server = Server::serve(&site);
    let framed = |fields: &str, status: u16| {
        refused(
            &server,
            format!("POST /hello.txt HTTP/1.1\r\nHost: a\r\n{fields}\r\n\r\n5\r\nhello\r\n0\r\n\r\n"),
            status,
        );
    };
    // RFC 9112, 6.1 and 6.3; RFC 9110, 8.6.
    framed("Content-Length: 5\r\nTransfer-Encoding: chunked", 400);
    framed("Transfer-Encoding: chunked\r\nContent-Length: 5", 400);
    framed("Transfer-Encoding: chunked\r\ncontent-length: 0", 400);
    framed("Content-Length: 5\r\nContent-Length: 6", 400);
    framed("Content-Length: 5\r\nContent-Length: 5", 400);
    for length in ["5, 5", "5,6", "+5", "-5", "-0", "0x5", "5 5", "5;", "5.0", "", "\"5\"", "five", "5\u{b}", "٥"] {
        framed(&format!("Content-Length: {length}"), 400);
    }
    for coding in [
        "gzip",
        "identity",
        "chunked, identity",
        "chunked, chunked",
        "chunked, gzip",
        "",
        ",",
        "xchunked",
        "chunked;q=1",
        "\"chunked\"",
        "chunked\u{b}",
    ] {
        framed(&format!("Transfer-Encoding: {coding}"), 400);
    }
    framed("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked", 400);
    framed("Transfer-Encoding: chunked\r\nTransfer-Encoding: identity", 400);
    // RFC 9112, 6.1: an unknown transfer coding, but with a known end of the body.
    framed("Transfer-Encoding: gzip, chunked", 501);
    framed("Transfer-Encoding: gzip\r\nTransfer-Encoding: chunked", 501);
    // RFC 9112, 5.1: no space before the colon; 5.2: no line folding; 2.2: no bare CR.
    framed("Content-Length : 5", 400);
    framed("Content-Length\t: 5", 400);
    framed("Transfer-Encoding : chunked", 400);
    framed(" Content-Length: 5", 400);
    framed("\tContent-Length: 5", 400);
    framed("X: y\r\n Content-Length: 5", 400);
    framed("X: y\r\n\tz", 400);
    framed("X: y\r\n \r\n", 400);
    framed("X: y\rContent-Length: 5", 400);
    framed("X: y\r\rContent-Length: 5", 400);
    framed("X: y\r\n\rContent-Length: 5", 400);
    framed("X: y\nContent-Length: 5", 400);
    framed("X: y\0z", 400);
    framed("X: y\u{1}z", 400);
    framed("X: y\u{7f}z", 400);
    framed("X\0: y", 400);
    framed("X y: z", 400);
    framed(": y", 400);
    framed("no colon", 400);
    framed("(X): y", 400);
    framed("Ä: y", 400);

    // RFC 9112, 6.1: no transfer codings in HTTP/1.0.
    refused(&server, "POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\nConnection: keep-alive\r\n\r\n0\r\n\r\n", 400);
}

#[test]
fn malformed_request_line_is_rejected() {
    let site = site();
    let server = Server::serve(&site);
    let check = |line: &str, status: u16| refused(&server, format!("{line}\r\nHost: a\r\n\r\n"), status);
    for line in [
        " GET /hello.txt HTTP/1.1",
        "\tGET /hello.txt HTTP/1.1",
        "GET  /hello.txt HTTP/1.1",
        "GET /hello.txt  HTTP/1.1",
        "GET /hello.txt HTTP/1.1 ",
        "GET\t/hello.txt\tHTTP/1.1",
        "GET /hello.txt",
        "GET /hello.txt ",
        "GET HTTP/1.1",
        "GET",
        "GET /a b HTTP/1.1",
        "GET /a\tb HTTP/1.1",
        "GET /a\rb HTTP/1.1",
        "GET /a\0b HTTP/1.1",
        "GET /a\u{7f}b HTTP/1.1",
        "GET /a#b HTTP/1.1",
        "GET /hello.txt HTTP/1.1\rX: y",
        "GET /hello.txt http/1.1",
        "GET /hello.txt HTTP/1",
        "GET /hello.txt HTTP/1.",
        "GET /hello.txt HTTP/11",
        "GET /hello.txt HTTP/1.10",
        "GET /hello.txt HTTP/01.1",
        "GET /hello.txt HTTP/1.1x",
        "GET /hello.txt XTTP/1.1",
        "GET /hello.txt HTTP/1,1",
        "G(T /hello.txt HTTP/1.1",
        "G\"T /hello.txt HTTP/1.1",
        "{} /hello.txt HTTP/1.1",
        "GÄT /hello.txt HTTP/1.1",
    ] {
        check(line, 400);
    }
    refused(&server, "GET /hello.txt HTTP/1.1\nHost: a\n\n", 400);
    refused(&server, "GET /hello.txt HTTP/1.1\nHost: a\r\n\r\n", 400);
    refused(&server, "GET /hello.txt HTTP/1.1\r\nHost: a\n\r\n", 400);
    refused(&server, "GET /hello.txt HTTP/1.1\r\nHost: a\r\n\n", 400);
    refused(&server, "\nGET /hello.txt HTTP/1.1\r\nHost: a\r\n\r\n", 400);
    refused(&server, b"GET /\xff HTTP/1.1\r\nHost: a\r\n\r\n", 400);
}

#[test]
fn other_versions_are_505() {
    let site = site();
    let server = Server::serve(&site);
    for version in ["HTTP/2.0", "HTTP/2.1", "HTTP/0.9", "HTTP/3.0", "HTTP/9.9"] {
        refused(&server, format!("GET /hello.txt {version}\r\nHost: a\r\n\r\n"), 505);
    }
    // RFC 9110, 6.2: a later minor version is treated as the latest known one.
    let mut client = server.connect();
    for version in ["HTTP/1.2", "HTTP/1.9", "HTTP/1.1"] {
        client.send(format!("GET /hello.txt {version}\r\nHost: a\r\n\r\n"));
        assert_eq!(client.response("GET").text(), "hello\n", "{version}");
    }
    refused(&server, "GET /hello.txt HTTP/1.2\r\n\r\n", 400);
}

#[test]
fn invalid_first_byte_is_rejected_before_line_ends() {
    let site = site();
    let server = Server::serve(&site);
    // A TLS ClientHello, which contains no line end: without a response both sides would wait.
    for begin in
        [&b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"[..], b"\x80\x2e\x01\x03\x01", b"\0", b" ", b"\xff\xd8", b"{"]
    {
        let mut client = server.connect();
        client.send(begin);
        assert_eq!((client.response("GET").status, client.ends()), (400, true), "{}", begin.escape_ascii());
    }
}

#[test]
fn empty_lines_before_request_are_skipped() {
    let site = site();
    let server = Server::serve(&site);
    let mut client = server.connect();
    // RFC 9112, 2.2: empty lines that old clients send after a body.
    for begin in ["\r\n", "\r\n\r\n", "\r\n\r\n\r\n\r\n\r\n"] {
        client.send(format!("{begin}GET /hello.txt HTTP/1.1\r\nHost: a\r\n\r\n"));
        assert_eq!(client.response("GET").status, 200, "{begin:?}");
    }
    client
        .send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\nx\r\nGET /hello.txt HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!((client.response("POST").status, client.response("GET").status), (405, 200));
    for byte in b"\r\n\r\nGET /hello.txt HTTP/1.1\r\nHost: a\r\n\r\n" {
        client.send([*byte]);
    }
    assert_eq!(client.response("GET").status, 200);
}

#[test]
fn half_closed_client_gets_all_responses() {
    let site = site();
    let server = Server::serve(&site);
    let exchanges = mixed(&server, 50);
    let text: String = exchanges.iter().map(|exchange| exchange.text.as_str()).collect();
    let whole = "GET /hello.txt HTTP/1.1\r\nHost: a\r\n\r\n";
    let post = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\npart";
    // Also with an incomplete request after the last: it receives no response, and earlier responses are complete.
    for tail in ["", "\r\n", &whole[..9], &whole[..whole.len() - 2], post] {
        let mut client = server.connect();
        client.send(text.clone() + tail);
        client.half_close();
        expect_in_order(&mut client, &exchanges, &format!("before {tail:?}"));
        assert!(client.ends(), "{tail:?}");
    }
}

#[test]
fn vanished_client_leaks_nothing() {
    let site = site();
    site.file("huge.bin", pattern(8 << 20));
    let server = Server::serve(&site);
    for begin in [
        "",
        "G",
        "GET /hello.txt HTTP/1.1\r\nHost",
        "GET /hello.txt HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET /huge.bin HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET /huge.bin HTTP/1.1\r\nHost: a\r\n\r\nGET /huge.bin HTTP/1.1\r\nHost: a\r\n\r\nGET /hu",
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\nabc",
        "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab",
        "POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n",
        "GET / HTTP/1.1\n",
    ] {
        for _ in 0..5 {
            let mut client = server.connect();
            client.send(begin);
        }
        assert_eq!(server.get("/hello.txt").text(), "hello\n", "after {begin:?}");
    }
    wait_until("all connections to be closed", || server.report("connections") == 0);
}

#[test]
fn every_response_has_date_and_server() {
    let site = site();
    let server = Server::serve(&site);
    for text in [
        "GET /hello.txt HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET /missing HTTP/1.1\r\nHost: a\r\n\r\n",
        "OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET /folder HTTP/1.1\r\nHost: a\r\n\r\n",
        "nonsense\r\n\r\n",
    ] {
        let mut client = server.connect();
        client.send(text);
        let response = client.response("GET");
        let date = response.field("Date").expect(text);
        // RFC 9110, 5.6.7.
        assert!(date.len() == 29 && date.ends_with(" GMT") && find(date.as_bytes(), b", ") == Some(3), "{date}");
        assert_eq!(response.field("Server"), Some("amped"), "{text}");
    }
}
