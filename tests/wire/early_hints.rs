//! Responses before the final one: those of backends, and the links of a site (RFC 8297).

use std::sync::Mutex;
use std::sync::mpsc::{self, Sender};
use std::time::{Duration, Instant};

use super::frames::*;
use super::harness::*;
use super::http_backends::{Backend, Peer};

/// The fields of a browser that requests a page.
const NAVIGATES: &[(&str, &str)] = &[("sec-fetch-mode", "navigate")];

const LINK: &str = "</style.css>; rel=preload; as=style";

/// A backend that sends this text, and its final response once it may.
fn backend_with(interim: String) -> (Backend, Sender<()>) {
    let (go, may_go) = mpsc::channel();
    let may_go = Mutex::new(may_go);
    let backend = Backend::start(move |_, peer: &mut Peer| {
        while peer.request().is_some() {
            peer.send(&interim);
            if may_go.lock().unwrap().recv_timeout(PATIENCE).is_err() {
                return;
            }
            peer.send("HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\npage");
        }
    });
    (backend, go)
}

fn serve(site: &Site, backend: &Backend, toml: &str) -> Server {
    let app = format!("[[site.app]]\nmatch = \"/app/**\"\nhttp = [\"{}\"]\n{toml}", backend.address);
    Server::with_site(site, &app)
}

/// The rest of the body is read, although its event comes while earlier interim responses are being passed on.
#[test]
fn body_that_arrives_while_interim_responses_are_passed_on_is_complete() {
    let site = Site::new();
    let hints = "HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n".repeat(8);
    let backend = Backend::start(move |_, peer: &mut Peer| {
        let mut pause = Duration::ZERO;
        while peer.request().is_some() {
            peer.send(format!("{hints}HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhello"));
            let start = Instant::now();
            while start.elapsed() < pause {
                std::hint::spin_loop();
            }
            peer.send("world");
            pause = if pause > Duration::from_micros(500) { Duration::ZERO } else { pause + Duration::from_micros(7) };
        }
    });
    let server = serve(&site, &backend, "idle_timeout = \"5s\"");
    let mut client = server.connect().untranslated();
    for _ in 0..400 {
        client.send("GET /app/ HTTP/1.1\r\nHost: a\r\n\r\n");
        (0..8).for_each(|_| assert!(client.read_head().starts_with("HTTP/1.1 103")));
        assert_eq!(client.response("GET").text(), "helloworld");
    }
}

#[test]
fn interim_responses_of_backend_reach_client_before_the_final_one() {
    let hints = format!(
        "HTTP/1.1 103 Early Hints\r\nLink: {LINK}\r\nX-Powered-By: a\r\nServer: b\r\nConnection: close\r\n\r\n"
    );
    let interim = ["HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 102 Processing\r\n\r\n", &hints, &hints].concat();
    let (backend, go) = backend_with(interim);
    let server = serve(&Site::new(), &backend, "[[site.headers]]\nmatch = \"**\"\nremove = [\"X-Powered-By\"]");

    let mut client = server.connect().untranslated();
    for _ in 0..2 {
        client.send("GET /app/ HTTP/1.1\r\nHost: a\r\n\r\n");
        assert_eq!(client.read_head(), "HTTP/1.1 102 \r\n\r\n");
        for _ in 0..2 {
            assert_eq!(client.read_head(), format!("HTTP/1.1 103 Early Hints\r\nLink: {LINK}\r\n\r\n"));
        }
        go.send(()).unwrap();
        assert_eq!(client.response("GET").text(), "page");
    }

    let mut http2 = Http2::connect(&server);
    let stream = http2.request("GET", "/app/", &[]);
    http2.read_until(|http2| http2.interim(stream).len() == 3);
    assert_eq!(http2.interim(stream), [102, 103, 103]);
    assert_eq!(http2.last_head(stream).fields, [("link".to_owned(), LINK.to_owned())]);
    go.send(()).unwrap();
    let response = http2.response(stream);
    assert_eq!((response.status, response.text().as_str()), (200, "page"));

    // RFC 9110, 15.2: a client of HTTP/1.0 knows none.
    go.send(()).unwrap();
    let mut client = server.connect().untranslated();
    client.send("GET /app/ HTTP/1.0\r\nHost: a\r\n\r\n");
    assert!(client.read_head().starts_with("HTTP/1.1 200 "), "the first head is the final one");
}

#[test]
fn interim_responses_of_a_request_are_limited() {
    let (backend, go) = backend_with("HTTP/1.1 103 Early Hints\r\nLink: <a>\r\n\r\n".repeat(200));
    let server = serve(&Site::new(), &backend, "");
    let mut http2 = Http2::connect(&server);
    let stream = http2.request("GET", "/app/", &[]);
    http2.read_until(|http2| http2.interim(stream).len() == 8);
    go.send(()).unwrap();
    assert_eq!(http2.response(stream).text(), "page");
    assert_eq!(http2.interim(stream), [103; 8]);
}

#[test]
fn links_of_site_precede_response_of_application_for_browsers() {
    let (backend, go) = backend_with(String::new());
    let site = Site::new();
    site.file("page.html", "file");
    let hints = "[[site.early_hints]]\nmatch = \"/**\"\nlinks = [\"</style.css>; rel=preload; as=style\", \"<https://a>; rel=preconnect\"]\n\
        [[site.early_hints]]\nmatch = \"/app/b\"\nwhen = { methods = [\"GET\"] }\nlinks = [\"<c>\"]";
    let server = serve(&site, &backend, hints);
    let mut http2 = Http2::connect(&server);
    for (path, links) in [
        ("/app/a", &[LINK, "<https://a>; rel=preconnect"][..]),
        ("/app/b", &[LINK, "<https://a>; rel=preconnect", "<c>"]),
    ] {
        let stream = http2.request("GET", path, NAVIGATES);
        http2.read_until(|http2| !http2.interim(stream).is_empty());
        let sent: Vec<_> = links.iter().map(|link| ("link".to_owned(), (*link).to_owned())).collect();
        assert_eq!(http2.last_head(stream).fields, sent);
        go.send(()).unwrap();
        assert_eq!(http2.response(stream).text(), "page");
        assert_eq!(http2.interim(stream), [103]);
    }
    // Others make no use of them: what is no page, or no GET.
    go.send(()).unwrap();
    go.send(()).unwrap();
    for (method, fields) in [("GET", &[("sec-fetch-mode", "no-cors")][..]), ("HEAD", NAVIGATES)] {
        let stream = http2.request(method, "/app/a", fields);
        assert_eq!((http2.response(stream).status, http2.interim(stream).len()), (200, 0), "{method}");
    }
    // A file that is ready at once has no hints; a new one may have to settle.
    assert_eq!(http2.get("/page.html").text(), "file");
    let stream = http2.request("GET", "/page.html", NAVIGATES);
    assert_eq!((http2.response(stream).text().as_str(), http2.interim(stream).len()), ("file", 0));
    go.send(()).unwrap();
    let mut client = server.connect().untranslated();
    client.send("GET /app/a HTTP/1.1\r\nHost: a\r\nSec-Fetch-Mode: navigate\r\n\r\n");
    assert!(client.read_head().starts_with("HTTP/1.1 200 "), "HTTP/1.1 gets none");
}
