//! `ammeter load` with https URLs, against nginx and amped with a certificate made by the test.

use std::fs;
use std::net::SocketAddr;

use serde_json::Value;

use super::nginx::Nginx;
use super::ports::free_addresses;
use super::server::Server;
use super::{ammeter, said};

/// nginx with TLS on loopback and on a Unix socket in its directory.
struct Secure {
    nginx: Nginx,
    address: SocketAddr,
}

impl Secure {
    /// Starts it with a self-signed certificate for these names, which is `certificate.pem` in its directory.
    fn start(names: &[&str], change: impl FnOnce(&mut rcgen::CertificateParams)) -> Secure {
        Secure::start_with(names, change, "")
    }

    /// The same with more lines of configuration.
    fn start_with(names: &[&str], change: impl FnOnce(&mut rcgen::CertificateParams), lines: &str) -> Secure {
        let folder = tempfile::tempdir().unwrap();
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let mut parameters = rcgen::CertificateParams::new(names).unwrap();
        change(&mut parameters);
        let key = rcgen::KeyPair::generate().unwrap();
        let certificate = parameters.self_signed(&key).unwrap();
        fs::write(folder.path().join("certificate.pem"), certificate.pem()).unwrap();
        fs::write(folder.path().join("key.pem"), key.serialize_pem()).unwrap();
        let [address] = free_addresses();
        let own = folder.path().display();
        let servers = format!(
            "server {{ listen {address} ssl; listen unix:{own}/socket ssl;\n\
             ssl_certificate {own}/certificate.pem; ssl_certificate_key {own}/key.pem;\n{lines}\n\
             location / {{ return 200 ok; }} }}"
        );
        Secure { nginx: Nginx::start(folder, address, &servers), address }
    }

    fn url(&self) -> String {
        format!("https://{}/", self.address)
    }

    fn certificate(&self) -> String {
        self.nginx.folder().join("certificate.pem").to_str().unwrap().to_owned()
    }
}

const RATE: [&str; 8] = ["--rate", "50", "--duration", "400ms", "--connect-timeout", "1m", "--timeout", "1m"];

#[test]
fn nginx_is_loaded_over_tls() {
    let nginx = Secure::start(&["127.0.0.1", "localhost"], |_| {});
    let (url, certificate, socket) = (nginx.url(), nginx.certificate(), nginx.nginx.folder().join("socket"));
    let check = |words: &[&str]| {
        let (text, _) = said(&ammeter(&[&["load", "--json"], words].concat()));
        let outcome: Value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
        let count = |name: &str| outcome.pointer(name).and_then(Value::as_u64).unwrap_or_else(|| panic!("{outcome}"));
        assert!(count("/ok") >= 3 && outcome["failures"].as_array().unwrap().is_empty(), "{words:?}: {outcome}");
        assert_eq!(count("/secured/count"), count("/established"), "{words:?}: {outcome}");
    };
    let trusted = ["--ca", &*certificate];
    check(&[&[&*url], &RATE[..], &trusted].concat());
    check(&[&[&*url, "--insecure"], &RATE[..]].concat());
    check(&[&[&*url, "--requests-per-connection", "7", "--pipeline", "3"], &RATE[..], &trusted].concat());
    check(&[&[&*url, "--clients", "3", "--duration", "300ms"], &trusted[..]].concat());
    // The Host field and the name in the certificate are still those of the URL.
    check(&[&["https://localhost/", "--unix", socket.to_str().unwrap()], &RATE[..], &trusted].concat());
    let (text, _) = said(&ammeter(&[&["load", &*url], &RATE[..], &trusted].concat()));
    assert!(text.contains("\nsecured "), "{text}");
}

#[test]
fn tls_failure_is_reported_with_hint() {
    let check = |nginx: &Secure, words: &[&str], says: &str| {
        let (text, status) = said(&ammeter(&[&["load", &nginx.url()], &RATE[..], words].concat()));
        let is_explained = text.contains("tls ") && text.contains("no correct response: ") && text.contains(says);
        assert!(is_explained && status == 1, "{status}: {text}");
    };
    let good = Secure::start(&["127.0.0.1"], |_| {});
    check(&good, &[], "give the authority's certificate, or this one, with --ca FILE, or give --insecure");
    let other = Secure::start(&["elsewhere.example"], |_| {});
    check(&other, &["--ca", &other.certificate()], "not for 127.0.0.1 but for elsewhere.example");
    let old = Secure::start(&["127.0.0.1"], |parameters| parameters.not_after = rcgen::date_time_ymd(2001, 1, 1));
    check(&old, &["--ca", &old.certificate()], "has expired");
}

const VERSIONS: [&str; 2] = ["1.2", "1.3"];

/// The result of one client that makes 40 connections in sequence, with a request on each.
fn in_sequence(url: &str, words: &[&str]) -> Value {
    let one = ["load", url, "--json", "--insecure", "--clients", "1", "--requests-per-connection", "1", "-n", "40"];
    let patient = ["--seed", "1", "--connect-timeout", "1m", "--timeout", "1m"];
    let (text, _) = said(&ammeter(&[&one[..], &patient, words].concat()));
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// The numbers of full handshakes and of resumed sessions.
fn handshakes(outcome: &Value) -> [u64; 2] {
    ["full", "resumed"].map(|kind| outcome["handshakes"][kind]["count"].as_u64().unwrap_or_else(|| panic!("{outcome}")))
}

#[test]
fn nginx_resumes_as_many_sessions_as_requested() {
    let lines = "ssl_protocols TLSv1.2 TLSv1.3;\n\
                 location = /resumed { if ($ssl_session_reused != r) { return 404; } return 200 ok; }\n\
                 location = /1.2 { if ($ssl_protocol != TLSv1.2) { return 404; } return 200 ok; }\n\
                 location = /1.3 { if ($ssl_protocol != TLSv1.3) { return 404; } return 200 ok; }\n";
    let nginx = Secure::start_with(&["127.0.0.1"], |_| {}, lines);
    for version in VERSIONS {
        let found = ["0%", "50%", "100%"].map(|share| {
            let words = ["--tls-version", version, "--tls-resume", share];
            let outcome = in_sequence(&format!("{}resumed", nginx.url()), &words);
            let [full, resumed] = handshakes(&outcome);
            // The server's own view.
            let missing = outcome["status_codes"]["404"].as_u64().unwrap_or(0);
            assert_eq!((outcome["ok"].as_u64(), missing), (Some(resumed), full), "{version} {share}: {outcome}");
            assert_eq!(outcome["handshakes"]["warning"], Value::Null, "{version} {share}: {outcome}");
            let of = |kind: &str| outcome["handshakes"][kind]["p50_ms"].as_f64().unwrap();
            assert!(of("all") > 0.0 && of("all") < outcome["secured"]["max_ms"].as_f64().unwrap(), "{outcome}");
            [full, resumed]
        });
        // The first connection has no session yet.
        assert_eq!((found[0], found[2]), ([40, 0], [1, 39]), "{version}");
        assert!((8..32).contains(&found[1][1]) && found[1].iter().sum::<u64>() == 40, "{version}: {found:?}");
        let outcome = in_sequence(&format!("{}{version}", nginx.url()), &["--tls-version", version]);
        assert_eq!(outcome["ok"], 40, "{version}: {outcome}");
    }
}

#[test]
fn server_that_resumes_nothing_is_reported() {
    let lines = "ssl_protocols TLSv1.2 TLSv1.3; ssl_session_tickets off; ssl_session_cache off;";
    let nginx = Secure::start_with(&["127.0.0.1"], |_| {}, lines);
    for version in VERSIONS {
        let outcome = in_sequence(&nginx.url(), &["--tls-version", version, "--tls-resume", "100%"]);
        assert_eq!((handshakes(&outcome), &outcome["ok"]), ([40, 0], &Value::from(40)), "{version}: {outcome}");
        let warning = outcome["handshakes"]["warning"].as_str().unwrap_or_else(|| panic!("{outcome}"));
        let says = "the server resumed 0 % of the 40 sessions that were to be resumed";
        assert!(warning.starts_with(says), "{version}: {warning}");
        assert!(version == "1.3" || warning.contains("it issues no tickets"), "{warning}");
    }
    let folder = tempfile::tempdir().unwrap();
    let page = folder.path().join("run.html");
    let words = ["load", &nginx.url(), "--insecure", "--tls-version", "1.2", "--tls-resume", "100%", "--clients", "1"];
    let more = ["--requests-per-connection", "1", "-n", "40", "--html", page.to_str().unwrap()];
    let (text, _) = said(&ammeter(&[&words[..], &more].concat()));
    let page = fs::read_to_string(page).unwrap();
    for part in ["40 full, 0 resumed (0 %; 100 % requested)", "the server resumed 0 % of the 40 sessions"] {
        assert!(text.contains(part) && page.contains(part), "{part}: {text}");
    }
    assert!(text.contains("\nhandshake ") && page.contains("TLS handshakes"), "{text}");
}

#[test]
fn handshake_figures_are_conditions() {
    let nginx = Secure::start(&["127.0.0.1"], |_| {});
    let run = |condition: &str| {
        let words =
            ["load", &nginx.url(), "--insecure", "--clients", "1", "--requests-per-connection", "1", "-n", "40"];
        let more = ["--tls-version", "1.2", "--tls-resume", "100%", "--seed", "1", "--fail-if", condition];
        said(&ammeter(&[&words[..], &more].concat()))
    };
    let (text, status) = run("handshake-p99>0ms");
    assert!(status == 1 && text.contains("--fail-if handshake-p99>0ms: "), "{text}");
    assert!(text.contains("\n  full ") && text.contains("\n  resumed "), "{text}");
    let (text, status) = run("resumed-share>90%");
    assert!(status == 1 && text.contains("--fail-if resumed-share>90%: 97.5 %"), "{text}");
}

#[test]
fn amped_resumes_as_many_sessions_as_requested() {
    let folder = tempfile::tempdir().unwrap();
    let certified = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let site = folder.path().join("site");
    fs::create_dir(&site).unwrap();
    fs::write(site.join("index.html"), "ok").unwrap();
    fs::write(folder.path().join("certificate"), certified.cert.pem()).unwrap();
    fs::write(folder.path().join("key"), certified.signing_key.serialize_pem()).unwrap();
    let config = folder.path().join("amped.toml");
    let text =
        "listen = [\"127.0.0.1:0 tls\"]\n[[site]]\nroot = \"site\"\ncertificate = [\"certificate\"]\nkey = [\"key\"]\n";
    fs::write(&config, text).unwrap();
    let server = Server::configured(&config);
    let url = format!("https://{}/", server.address);
    for version in VERSIONS {
        for (share, expected) in [("0%", [40, 0]), ("100%", [1, 39])] {
            let outcome = in_sequence(&url, &["--tls-version", version, "--tls-resume", share]);
            assert_eq!((handshakes(&outcome), &outcome["ok"]), (expected, &Value::from(40)), "{version}: {outcome}");
        }
    }
    // In an open loop connections overlap, and each ticket of TLS 1.3 is offered once.
    let words = ["load", &url, "--json", "--insecure", "--tls-resume", "100%", "--duration", "1s", "--rate", "200"];
    let (text, _) = said(&ammeter(&[&words[..], &["--connect-timeout", "1m", "--timeout", "1m"]].concat()));
    let outcome: Value = serde_json::from_str(&text).unwrap();
    let [full, resumed] = handshakes(&outcome);
    assert_eq!(outcome["handshakes"]["offered"].as_u64(), Some(resumed), "all offers are accepted: {outcome}");
    assert!(full + resumed > 100 && resumed > 0 && outcome["failures"].as_array().unwrap().is_empty(), "{outcome}");
}
