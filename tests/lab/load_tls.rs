//! `ammeter load` of https URLs, against nginx with a certificate that is made here.

use std::fs;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};

use serde_json::Value;

use super::{ammeter, said, until};

/// nginx with TLS on loopback and on a socket in its folder. Ended when dropped.
struct Nginx {
    child: Child,
    address: SocketAddr,
    folder: tempfile::TempDir,
}

impl Nginx {
    /// With a certificate for these names, signed by itself; it lies in the folder as `certificate.pem`.
    fn start(names: &[&str], change: impl FnOnce(&mut rcgen::CertificateParams)) -> Nginx {
        let folder = tempfile::tempdir().unwrap();
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let mut parameters = rcgen::CertificateParams::new(names).unwrap();
        change(&mut parameters);
        let key = rcgen::KeyPair::generate().unwrap();
        let certificate = parameters.self_signed(&key).unwrap();
        fs::write(folder.path().join("certificate.pem"), certificate.pem()).unwrap();
        fs::write(folder.path().join("key.pem"), key.serialize_pem()).unwrap();
        // The port is free when it is chosen, and hardly taken in the moment until it is used.
        let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let own = folder.path().display();
        let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
            .map(|name| format!("{name}_temp_path {own}/{name};\n"))
            .concat();
        // One process, so that its id is all there is to end.
        let text = format!(
            "daemon off; master_process off; pid {own}/pid; error_log {own}/error.log;\n\
             events {{ worker_connections 256; }}\n\
             http {{ {temporary} access_log off;\n\
             server {{ listen {address} ssl; listen unix:{own}/socket ssl;\n\
             ssl_certificate {own}/certificate.pem; ssl_certificate_key {own}/key.pem;\n\
             location / {{ return 200 ok; }} }} }}\n"
        );
        let config = folder.path().join("nginx.conf");
        fs::write(&config, text).unwrap();
        // Debian keeps nginx where a plain user's PATH does not look.
        let path = std::env::var("PATH").unwrap_or_default() + ":/usr/sbin";
        let mut child = Command::new("nginx")
            .env("PATH", path)
            .args(["-e", &format!("{own}/error.log"), "-p"])
            .arg(folder.path())
            .arg("-c")
            .arg(&config)
            .stderr(Stdio::null())
            .spawn()
            .expect("nginx: run cargo xtask setup");
        until("nginx to listen", || {
            let ended = child.try_wait().unwrap();
            let log = || fs::read_to_string(folder.path().join("error.log")).unwrap_or_default();
            assert!(ended.is_none(), "nginx has ended: {}", log());
            TcpStream::connect(address).is_ok()
        });
        Nginx { child, address, folder }
    }

    fn url(&self) -> String {
        format!("https://{}/", self.address)
    }

    fn certificate(&self) -> String {
        self.folder.path().join("certificate.pem").to_str().unwrap().to_owned()
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

const RATE: [&str; 4] = ["--rate", "50", "--duration", "400ms"];

#[test]
fn nginx_is_asked_over_tls() {
    let nginx = Nginx::start(&["127.0.0.1", "localhost"], |_| {});
    let (url, certificate, socket) = (nginx.url(), nginx.certificate(), nginx.folder.path().join("socket"));
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
    // The name is still the URL's, and so is whom the certificate must be for.
    check(&[&["https://localhost/", "--unix", socket.to_str().unwrap()], &RATE[..], &trusted].concat());
    let (text, _) = said(&ammeter(&[&["load", &*url], &RATE[..], &trusted].concat()));
    assert!(text.contains("\nsecured "), "{text}");
}

#[test]
fn why_there_is_no_tls_is_told_with_the_way_out() {
    let check = |nginx: &Nginx, words: &[&str], says: &str| {
        let (text, status) = said(&ammeter(&[&["load", &nginx.url()], &RATE[..], words].concat()));
        let told = text.contains("tls ") && text.contains("no right reply came: ") && text.contains(says);
        assert!(told && status == 1, "{status}: {text}");
    };
    let good = Nginx::start(&["127.0.0.1"], |_| {});
    check(&good, &[], "give the one of its authority, or itself, by --ca FILE, or give --insecure");
    let other = Nginx::start(&["elsewhere.example"], |_| {});
    check(&other, &["--ca", &other.certificate()], "not for 127.0.0.1 but for elsewhere.example");
    let old = Nginx::start(&["127.0.0.1"], |parameters| parameters.not_after = rcgen::date_time_ymd(2001, 1, 1));
    check(&old, &["--ca", &old.certificate()], "has expired");
}
