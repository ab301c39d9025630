//! `ammeter load` with https URLs, against nginx with a certificate made by the test.

use std::fs;
use std::net::SocketAddr;

use serde_json::Value;

use super::nginx::{Nginx, free_addresses};
use super::{ammeter, said};

/// nginx with TLS on loopback and on a Unix socket in its directory.
struct Secure {
    nginx: Nginx,
    address: SocketAddr,
}

impl Secure {
    /// Starts it with a self-signed certificate for these names, which is `certificate.pem` in its directory.
    fn start(names: &[&str], change: impl FnOnce(&mut rcgen::CertificateParams)) -> Secure {
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
             ssl_certificate {own}/certificate.pem; ssl_certificate_key {own}/key.pem;\n\
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
