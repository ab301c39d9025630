//! Cached pages of applications that are not fresh any more: sent while they are revalidated, confirmed by 304, and sent in place
//! of errors (RFC 5861; RFC 9111, 4.3).

use std::fs;
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use super::harness::*;
use super::http_backends::{Arrived, Backend};

/// A backend whose pages are the numbers of their requests.
struct Numbered {
    backend: Backend,
    /// Requests that have arrived.
    count: Arc<AtomicUsize>,
    /// The status of its responses; 0: it waits with them.
    status: Arc<AtomicU16>,
}

impl Numbered {
    /// `fields`: those of a response to this request.
    fn start(fields: impl Fn(&Arrived) -> String + Send + Sync + 'static) -> Numbered {
        let (count, status) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicU16::new(200)));
        let (counter, current) = (Arc::clone(&count), Arc::clone(&status));
        let backend = Backend::start(move |_, peer| {
            while let Some(arrived) = peer.request() {
                let number = counter.fetch_add(1, Ordering::SeqCst) + 1;
                let status = loop {
                    match current.load(Ordering::SeqCst) {
                        0 => thread::sleep(Duration::from_millis(5)),
                        status => break status,
                    }
                };
                let (fields, body) = (fields(&arrived), number.to_string());
                let head = format!("HTTP/1.1 {status} X\r\nX-Number: {number}\r\n{fields}");
                peer.send(match status {
                    304 => format!("{head}\r\n"),
                    _ => format!("{head}Content-Length: {}\r\n\r\n{body}", body.len()),
                });
            }
        });
        Numbered { backend, count, status }
    }

    fn serve(&self, site: &Site, keys: &str) -> Server {
        Server::with_site(
            site,
            &format!("[[site.app]]\nmatch = \"/**\"\nhttp = [\"{}\"]\n{keys}", self.backend.address),
        )
    }

    fn count(&self) -> usize {
        self.count.load(Ordering::SeqCst)
    }

    fn respond(&self, status: u16) {
        self.status.store(status, Ordering::SeqCst);
    }

    /// Requests the page until another request arrives at the backend. All responses are this page.
    fn request_until_stale(&self, client: &mut Client, page: &str) {
        let before = self.count();
        wait_until("a request for a stale page", || {
            let response = client.get("/");
            assert_eq!((response.status, response.text().as_str()), (200, page));
            self.count() > before
        });
    }
}

fn age(response: &Response) -> u64 {
    response.field("Age").expect("a cached page").parse().unwrap()
}

#[test]
fn stale_page_is_sent_while_one_request_revalidates_it() {
    let (by_response, by_rule) =
        ("Cache-Control: max-age=1, stale-while-revalidate=3600\r\n", "stale_while_revalidate = \"1h\"");
    for (fields, keys) in [(by_response, ""), ("", by_rule)] {
        let (site, numbered) = (Site::new(), Numbered::start(move |_| fields.to_owned()));
        let server = numbered.serve(&site, &format!("cache = \"1s\"\n{keys}"));
        let mut client = server.connect();
        assert_eq!(client.get("/").text(), "1");
        numbered.respond(0);
        numbered.request_until_stale(&mut client, "1");
        // All get it at once, in MT from other threads too; each process of MP has its own.
        let mut others: Vec<Client> = (0..if has_processes() { 0 } else { 3 }).map(|_| server.connect()).collect();
        for _ in 0..5 {
            for client in others.iter_mut().chain([&mut client]) {
                let response = client.get("/");
                assert_eq!((response.status, response.text().as_str()), (200, "1"));
                assert!(age(&response) >= 1, "the age goes on");
            }
        }
        let response = client.request("HEAD", "/", &[]);
        assert_eq!((response.status, response.field("X-Number")), (200, Some("1")));
        assert_eq!(numbered.count(), 2, "one request revalidates it");
        // The client whose request that was leaves.
        if !has_processes() {
            client = others.remove(0);
        }
        numbered.respond(200);
        wait_until("the new page", || client.get("/").text() != "1");
        assert!(server.report("pages_stale revalidation") >= 6);
        assert!(server.report("page_revalidations") >= 1);
    }
}

#[test]
fn not_modified_renews_stale_page() {
    let validators = "ETag: \"x\"\r\nLast-Modified: Sun, 06 Nov 1994 08:49:37 GMT\r\n";
    for keys in ["", "stale_while_revalidate = \"1h\""] {
        let site = Site::new();
        let numbered = Numbered::start(move |arrived| {
            let value = |wanted: &str| {
                let found = arrived.fields.iter().find(|(name, _)| name.eq_ignore_ascii_case(wanted));
                found.map_or("none", |(_, value)| value.as_str())
            };
            let told = ["If-None-Match", "If-Modified-Since", "Range"].map(value);
            format!("{validators}X-Told: {}\r\n", told.join("; "))
        });
        let server = numbered.serve(&site, &format!("cache = \"1s\"\n{keys}"));
        let mut client = server.connect();
        // What the client has cached is not what the server has.
        let own = [("If-None-Match", "\"y\""), ("Range", "bytes=0-0")];
        let response = client.request("GET", "/", &own);
        assert_eq!((response.text().as_str(), response.field("X-Told")), ("1", Some("none; none; none")));
        numbered.respond(304);
        let told = "\"x\"; Sun, 06 Nov 1994 08:49:37 GMT; none";
        wait_until("a renewed page", || {
            let response = client.request("GET", "/", &own);
            assert_eq!((response.status, response.text().as_str()), (200, "1"));
            response.field("X-Told") == Some(told) && age(&response) == 0
        });
        assert_eq!(client.request("GET", "/", &[("If-None-Match", "\"x\"")]).status, 304);
        assert!(server.report("pages_confirmed") >= 1);
        // The connection to the backend was kept.
        assert_eq!(numbered.backend.connections(), 1);
        numbered.respond(200);
        wait_until("another page", || client.get("/").text() != "1");
    }
}

#[test]
fn stale_page_replaces_errors() {
    let (site, numbered) = (Site::new(), Numbered::start(|_| String::new()));
    let server = numbered.serve(&site, "cache = \"1s\"\nstale_if_error = \"1h\"\ntimeout = \"1s\"");
    let mut client = server.connect();
    assert_eq!(client.get("/").text(), "1");
    for status in [500, 502, 503, 504, 0] {
        numbered.respond(status);
        numbered.request_until_stale(&mut client, "1");
    }
    assert!(server.report("pages_stale error") >= 5);
    // Another status is a response.
    numbered.respond(501);
    wait_until("the response", || client.get("/").status == 501);
    // It is not cacheable, so it has ended the page.
    numbered.respond(503);
    assert_eq!(client.get("/").status, 503);
}

#[test]
fn stale_page_replaces_backend_that_is_gone() {
    let (site, numbered) = (Site::new(), Numbered::start(|_| String::new()));
    let server = numbered.serve(&site, "cache = \"1s\"\nstale_if_error = \"1h\"");
    let mut client = server.connect();
    assert_eq!(client.get("/").text(), "1");
    assert_eq!(client.get("/other").text(), "2");
    let address = numbered.backend.address;
    drop(numbered);
    wait_until("the backend to end", || TcpStream::connect(address).is_err());
    wait_until("a stale page", || {
        let response = client.get("/");
        assert_eq!((response.status, response.text().as_str()), (200, "1"));
        age(&response) >= 2
    });
    assert_eq!(client.get("/third").status, 502, "no page replaces this error");
}

#[test]
fn page_that_must_be_revalidated_is_never_stale() {
    for fields in ["must-revalidate", "proxy-revalidate, stale-if-error=9", "s-maxage=1", "stale-if-error=0"] {
        let fields = format!("Cache-Control: max-age=1, {fields}, stale-while-revalidate=0\r\n");
        let (site, numbered) = (Site::new(), Numbered::start(move |_| fields.clone()));
        let keys = "cache = \"1s\"\nstale_if_error = \"1h\"\nstale_while_revalidate = \"1h\"";
        let server = numbered.serve(&site, keys);
        let mut client = server.connect();
        assert_eq!(client.get("/").text(), "1");
        numbered.respond(500);
        wait_until("the error", || client.get("/").status == 500);
        assert_eq!(server.report("pages_stale error"), 0);
    }
}

#[test]
fn response_that_may_not_be_cached_ends_stale_page() {
    for field in ["Set-Cookie: a=b", "Cache-Control: private", "Cache-Control: no-store"] {
        let site = Site::new();
        let first = AtomicUsize::new(0);
        let numbered = Numbered::start(move |_| match first.fetch_add(1, Ordering::SeqCst) {
            0 => String::new(),
            _ => format!("{field}\r\n"),
        });
        let server = numbered.serve(&site, "cache = \"1s\"\nstale_while_revalidate = \"1h\"");
        let mut client = server.connect();
        assert_eq!(client.get("/").text(), "1");
        wait_until("a response to the client", || client.get("/").field("Age").is_none());
        let next = numbered.count() + 1;
        assert_eq!(client.get("/").text(), next.to_string(), "{field}");
    }
}

#[test]
fn failed_revalidation_keeps_stale_page_and_pauses() {
    let (site, numbered) = (Site::new(), Numbered::start(|_| String::new()));
    let server = numbered.serve(&site, "cache = \"1s\"\nstale_while_revalidate = \"1h\"\ntimeout = \"1s\"");
    let mut client = server.connect();
    assert_eq!(client.get("/").text(), "1");
    // 0: the revalidation times out.
    for status in [500, 0, 503] {
        numbered.respond(status);
        numbered.request_until_stale(&mut client, "1");
        numbered.request_until_stale(&mut client, "1");
    }
    numbered.respond(200);
    wait_until("the new page", || client.get("/").text() != "1");
}

#[test]
fn scripts_are_revalidated_in_background() {
    let site = Site::new();
    let (fails, name) = (site.path().join("fails"), site.path().join("cgi-bin/page"));
    fs::create_dir(site.path().join("cgi-bin")).unwrap();
    let text =
        format!("#!/bin/sh\n[ -e {} ] && exit 1\nprintf 'Content-Type: text/plain\\n\\n%s' $$\n", fails.display());
    fs::write(&name, text).unwrap();
    fs::set_permissions(&name, fs::Permissions::from_mode(0o755)).unwrap();
    let keys = "cgi = true\ncache = \"1s\"\nstale_while_revalidate = \"1h\"";
    let server = Server::with_site(&site, &format!("[[site.app]]\nmatch = \"/cgi-bin/**\"\n{keys}"));
    let mut client = server.connect();
    let first = client.get("/cgi-bin/page").text();
    wait_until("another page", || client.get("/cgi-bin/page").text() != first);
    fs::write(&fails, "").unwrap();
    wait_until("an old page", || {
        let response = client.get("/cgi-bin/page");
        assert_eq!(response.status, 200);
        age(&response) >= 3
    });
}
