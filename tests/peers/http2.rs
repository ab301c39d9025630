//! HTTP/2 with clients that are not ours: curl, nghttp and h2load, with and without TLS.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::process::Command;
use std::thread;

use super::harness::{Server, Site, pattern};
use super::{peer, said};

/// A site with a certificate for `localhost`, served with and without TLS.
fn served() -> (Site, Server) {
    served_with("")
}

/// The same, with these keys of the site.
fn served_with(keys: &str) -> (Site, Server) {
    let site = Site::new();
    let path = |name: &str| site.path().join(name).to_str().unwrap().to_owned();
    let mut openssl = peer("openssl");
    openssl.args(["req", "-x509", "-nodes", "-days", "2", "-subj", "/CN=localhost", "-newkey", "ec"]);
    openssl.args(["-pkeyopt", "ec_paramgen_curve:P-256", "-addext", "subjectAltName=DNS:localhost"]);
    said(openssl.args(["-keyout", &path("key"), "-out", &path("certificate")]));
    site.file("root/small.txt", "small\n");
    site.file("root/large.bin", pattern(3_000_000));
    let text = format!(
        "listen = [\"127.0.0.1:0\", \"127.0.0.1:0 tls\"]\n\
         [[site]]\nroot = \"root\"\ncertificate = [\"certificate\"]\nkey = [\"key\"]\n{keys}"
    );
    let server = Server::start(&["--config", site.file("amped.toml", text).to_str().unwrap()]);
    (site, server)
}

/// The addresses without and with TLS.
fn urls(server: &Server) -> [String; 2] {
    server.wait_for("https://");
    let said = server.said();
    let secure = said.split_whitespace().find_map(|word| word.strip_prefix("https://")).expect("an address with TLS");
    let port = secure.trim_end_matches('/').rsplit(':').next().unwrap();
    [format!("http://{}", server.address), format!("https://localhost:{port}")]
}

fn curl(site: &Site) -> Command {
    let mut command = peer("curl");
    command.args(["--disable", "--silent", "--show-error", "--noproxy", "*", "--max-time", "60", "--cacert"]);
    command.arg(site.path().join("certificate"));
    command
}

#[test]
fn curl_and_nghttp_download_over_http2() {
    let (site, server) = served();
    for (url, option) in urls(&server).iter().zip(["--http2-prior-knowledge", "--http2"]) {
        let version =
            said(curl(&site).args([option, "--output", "/dev/null", "--write-out", "%{http_version}"]).arg(url));
        assert_eq!(version, "2", "{url}");
        let file = site.path().join("got");
        said(curl(&site).args([option, "--output"]).arg(&file).arg(format!("{url}/large.bin")));
        assert!(fs::read(&file).unwrap() == pattern(3_000_000), "{url}");
        // Ten downloads at a time on one connection.
        let many: Vec<String> = (0..10).map(|n| format!("{url}/large.bin?{n}")).collect();
        let text = said(peer("nghttp").args(["--null-out", "--stat"]).args(&many).arg(format!("{url}/small.txt")));
        let statuses = text.lines().filter(|line| line.contains(" 200 ")).count();
        assert_eq!(statuses, 11, "{text}");
    }
    assert_eq!(server.report("connections_broken"), 0);
}

#[test]
fn h2load_gets_every_response_over_http2() {
    let (_site, server) = served();
    for url in urls(&server) {
        for (connections, streams, file) in
            [("1", "100", "small.txt"), ("10", "10", "small.txt"), ("4", "8", "large.bin")]
        {
            let count = if file == "small.txt" { "5000" } else { "100" };
            let args = ["-n", count, "-c", connections, "-m", streams];
            let text = said(peer("h2load").args(args).arg(format!("{url}/{file}")));
            let line =
                |start: &str| text.lines().find(|line| line.starts_with(start)).unwrap_or_else(|| panic!("{text}"));
            let expected = format!(
                "requests: {count} total, {count} started, {count} done, {count} succeeded, 0 failed, 0 errored, 0 timeout"
            );
            assert_eq!(line("requests:"), expected);
            assert_eq!(line("status codes:"), format!("status codes: {count} 2xx, 0 3xx, 0 4xx, 0 5xx"));
        }
    }
}

/// curl and nghttp get responses before the final one, over both versions.
#[test]
fn curl_and_nghttp_take_early_hints() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let backend = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = BufReader::new(stream.unwrap());
            let mut line = String::new();
            while stream.read_line(&mut line).is_ok_and(|count| count > 2) {
                line.clear();
            }
            let hints = "HTTP/1.1 103 Early Hints\r\nLink: </b.css>; rel=preload; as=style\r\n\r\n";
            let _ = stream.get_mut().write_all(hints.repeat(2).as_bytes());
            let _ =
                stream.get_mut().write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\nConnection: close\r\n\r\npage");
        }
    });
    let (site, server) = served_with(&format!(
        "[[site.app]]\nmatch = \"/app\"\nhttp = [\"{backend}\"]\n\
         [[site.early_hints]]\nmatch = \"/app\"\nlinks = [\"</a.css>; rel=preload; as=style\"]\n"
    ));
    let navigates = "sec-fetch-mode: navigate";
    let count = |text: &str, what: &str| text.matches(what).count();
    for (url, http2) in urls(&server).iter().zip(["--http2-prior-knowledge", "--http2"]) {
        let get = |option: &str| {
            let args = [option, "--no-alpn", "--include", "--header", navigates];
            // `curl --http1.0` offers `http/1.0` alone otherwise.
            let args = if option == "--http1.0" { &args[..] } else { &[option, "--include", "--header", navigates] };
            said(curl(&site).args(args).arg(format!("{url}/app"))).to_ascii_lowercase()
        };
        let text = get(http2);
        assert_eq!(
            (count(&text, "http/2 103"), count(&text, "http/2 200"), count(&text, "link: </a.css>")),
            (3, 1, 1),
            "{text}"
        );
        assert!(text.ends_with("\r\n\r\npage"), "{text}");
        let text = get("--http1.1");
        assert_eq!(
            (count(&text, "http/1.1 103"), count(&text, "http/1.1 200"), count(&text, "/a.css")),
            (2, 1, 0),
            "{text}"
        );
        let text = get("--http1.0");
        assert_eq!((count(&text, " 103"), count(&text, " 200 ok")), (0, 1), "{text}");
        let args = ["--verbose", "--no-verify-peer", "--header", navigates];
        let text = said(peer("nghttp").args(args).arg(format!("{url}/app")));
        assert_eq!((count(&text, ":status: 103"), count(&text, ":status: 200")), (3, 1), "{text}");
    }
}
