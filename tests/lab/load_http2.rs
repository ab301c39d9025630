//! `ammeter load --http2` against other people's servers: nghttpd, which speaks nothing else, and nginx.

use std::fs;
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use serde_json::Value;

use super::nginx::Nginx;
use super::ports::free_addresses;
use super::{ammeter, said, until};

/// A running nghttpd, which serves a directory. Stopped when dropped.
struct Nghttpd {
    child: Child,
    address: SocketAddr,
}

impl Nghttpd {
    fn start(folder: &Path, flags: &[&str]) -> Nghttpd {
        let [address] = free_addresses();
        let mut command = Command::new("nghttpd");
        command.env("PATH", std::env::var("PATH").unwrap_or_default() + ":/usr/sbin");
        command.args(["--no-tls", "--address", "127.0.0.1", "--htdocs"]).arg(folder).args(flags);
        let child = command.arg(address.port().to_string()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        let nghttpd = Nghttpd { child: child.expect("nghttpd is not there: run cargo xtask setup"), address };
        until("nghttpd to listen", || TcpStream::connect(address).is_ok());
        nghttpd
    }

    fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }
}

impl Drop for Nghttpd {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The result of a load with HTTP/2, which has time enough on any machine.
fn load(url: &str, words: &[&str]) -> Value {
    let patient = ["--http2", "--json", "--seed", "1", "--connect-timeout", "1m", "--timeout", "1m"];
    let (text, _) = said(&ammeter(&[&["load", url], &patient[..], words].concat()));
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

fn count(outcome: &Value, name: &str) -> u64 {
    outcome[name].as_u64().unwrap_or_else(|| panic!("{name}: {outcome}"))
}

#[track_caller]
fn check(outcome: &Value, ok: u64, connections: u64) {
    let found = (count(outcome, "ok"), count(outcome, "established"), count(outcome, "stray"));
    assert_eq!((found, &outcome["failures"]), ((ok, connections, 0), &Value::Array(vec![])), "{outcome}");
}

#[test]
fn nghttpd_is_loaded_by_open_and_closed_loops() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("a"), "12345").unwrap();
    let nghttpd = Nghttpd::start(folder.path(), &[]);
    let url = nghttpd.url("/a");
    for streams in ["1", "7", "300"] {
        let outcome = load(&url, &["--clients", "3", "-n", "2000", "--streams", streams]);
        check(&outcome, 2000, 3);
        assert_eq!(outcome["status_codes"]["200"].as_u64(), Some(2000), "{outcome}");
        // nghttpd allows 100.
        assert_eq!(outcome["streams"].as_u64(), (streams == "300").then_some(100), "{outcome}");
    }
    // Each connection is a client that requests one page, or a given number of pages.
    for (words, each) in [(&["--streams", "6"][..], 6), (&["--streams", "3", "--requests-per-connection", "10"], 10)] {
        let outcome = load(&url, &[&["--rate", "100", "--duration", "500ms"], words].concat());
        let connections = count(&outcome, "started");
        check(&outcome, connections * each, connections);
    }
    let paced = load(&url, &["--clients", "2", "--duration", "500ms", "--streams", "4", "--think-time", "50ms"]);
    let ok = count(&paced, "ok");
    assert!(ok.is_multiple_of(4) && (8..=80).contains(&ok), "{paced}");
    assert_eq!(count(&load(&nghttpd.url("/none"), &["--clients", "1", "-n", "5", "--expect", "404"]), "ok"), 5);
}

#[test]
fn large_bodies_pass_windows_in_both_directions() {
    let home = tempfile::tempdir().unwrap();
    let set = home.path().join("set");
    let folder = set.to_str().unwrap();
    assert_eq!(said(&ammeter(&["files", "webstone", "--scale", "1/4", folder])).1, 0);
    let body = home.path().join("body");
    fs::write(&body, vec![b'b'; 3_000_000]).unwrap();
    fs::write(set.join("large"), vec![b'l'; 5_000_000]).unwrap();
    let nghttpd = Nghttpd::start(&set, &[]);
    let words = ["--workload", folder, "--verify", "--clients", "2", "--streams", "10", "-n", "300"];
    check(&load(&nghttpd.url("/"), &words), 300, 2);
    let large = load(&nghttpd.url("/large"), &["--clients", "2", "--streams", "5", "-n", "20"]);
    check(&large, 20, 2);
    assert!(count(&large, "received_bytes") > 20 * 5_000_000, "{large}");
    // With padding, which counts for the windows, and with a small window for bodies.
    let padding = Nghttpd::start(&set, &["--padding", "200", "--window-bits", "10"]);
    check(&load(&padding.url("/large"), &["--clients", "1", "--streams", "2", "-n", "4"]), 4, 1);
    for url in [nghttpd.url("/large"), padding.url("/large")] {
        let words = ["--method", "POST", "--body-file", body.to_str().unwrap(), "--clients", "2", "--streams", "3"];
        check(&load(&url, &[&words[..], &["-n", "12"]].concat()), 12, 2);
    }
}

/// nginx with HTTP/2 on a port with TLS and on one without, where other requests get 404; and without HTTP/2 on two more.
fn nginx() -> (Nginx, [String; 4]) {
    let folder = tempfile::tempdir().unwrap();
    let own = folder.path().display();
    let pair = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
    fs::write(folder.path().join("certificate.pem"), pair.cert.pem()).unwrap();
    fs::write(folder.path().join("key.pem"), pair.signing_key.serialize_pem()).unwrap();
    let addresses: [SocketAddr; 4] = free_addresses();
    let [tls, plain, old_tls, old] = addresses;
    let keys = format!("ssl_certificate {own}/certificate.pem; ssl_certificate_key {own}/key.pem;\n");
    let answer = |http2: &str| {
        format!("keepalive_requests 50; location / {{ if ($http2 != \"{http2}\") {{ return 404; }} return 200 ok; }}")
    };
    let servers = format!(
        "server {{ listen {tls} ssl http2; {keys} {} }}\nserver {{ listen {plain} http2; {} }}\n\
         server {{ listen {old_tls} ssl; {keys} }}\nserver {{ listen {old}; }}\n",
        answer("h2"),
        answer("h2c")
    );
    let url = |scheme: &str, address: SocketAddr| format!("{scheme}://{address}/");
    let urls = [url("https", tls), url("http", plain), url("https", old_tls), url("http", old)];
    (Nginx::start(folder, plain, &servers), urls)
}

#[test]
fn nginx_is_loaded_by_alpn_and_by_prior_knowledge() {
    let (_nginx, [tls, plain, ..]) = nginx();
    for (url, words) in [(&tls, &["--insecure"][..]), (&plain, &[])] {
        let open = load(url, &[&["--rate", "50", "--duration", "400ms", "--streams", "10"], words].concat());
        let connections = count(&open, "started");
        check(&open, connections * 10, connections);
        // nginx ends each connection after 50 requests: requests that it has not processed count as not sent.
        let closed = load(url, &[&["--clients", "2", "-n", "1000", "--streams", "10"], words].concat());
        let sum = count(&closed, "ok") + count(&closed, "unsent");
        assert_eq!((sum, &closed["failures"]), (1000, &Value::Array(vec![])), "{closed}");
        assert!(count(&closed, "ok") >= 800 && count(&closed, "established") >= 800 / 50, "{closed}");
    }
}

#[test]
fn server_without_http2_is_named_as_reason() {
    let (_nginx, [.., old_tls, old]) = nginx();
    for (url, flag, says) in [
        (old_tls, &["--insecure"][..], "127.0.0.1 does not speak HTTP/2 over TLS (ALPN)"),
        (old, &[], "does 127.0.0.1:"),
    ] {
        let words = ["load", &url, "--http2", "--clients", "1", "-n", "5", "--streams", "5"];
        let (text, status) = said(&ammeter(&[&words[..], flag].concat()));
        assert!(text.contains("no correct response") && text.contains(says) && status == 1, "{status}: {text}");
        assert!(text.contains("HTTP/2"), "{text}");
    }
}

#[test]
fn flags_of_other_versions_are_rejected() {
    for words in [
        &["--streams", "2"][..],
        &["--http2", "--pipeline", "2"],
        &["--http2", "--http10"],
        &["--http2", "--parked", "2"],
        &["--http2", "-H", "Connection: close"],
        &["--http2", "-H", "Transfer-Encoding: chunked"],
    ] {
        let output = ammeter(&[&["load", "http://127.0.0.1:1/", "--rate", "1", "-d", "1"], words].concat());
        assert_eq!(output.status.code(), Some(2), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
    }
}
