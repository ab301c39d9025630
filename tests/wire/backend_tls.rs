//! TLS to the servers behind this one: which of them are trusted, what they get, and how a handshake fails. What is
//! forwarded over such connections is in `https_backends`.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use rcgen::{CertifiedKey, KeyPair, date_time_ymd};
use rustls::server::WebPkiClientVerifier;
use rustls::{HandshakeKind, RootCertStore, ServerConfig};

use super::harness::*;
use super::tls_backend::{CERTIFICATE, authorities, identity, signed_for, terminate_as};

/// The parts of a handshake that a backend sees: the name, the protocol, the client's certificate, whether it was resumed.
type Seen = (Option<String>, Option<Vec<u8>>, bool, Option<HandshakeKind>);

fn config(certified: &CertifiedKey<KeyPair>) -> ServerConfig {
    let (chain, key) = identity(certified);
    let mut config = ServerConfig::builder().with_no_client_auth().with_single_cert(chain, key).unwrap();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    config
}

/// A server with this TLS configuration that responds to each request. Returns its address and what it sees.
fn backend(config: ServerConfig) -> (SocketAddr, Receiver<Seen>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (sender, receiver) = channel();
    let config = Arc::new(config);
    thread::spawn(move || {
        for stream in listener.incoming() {
            let sender = sender.clone();
            let note = move |session: &rustls::ServerConnection| {
                let name = session.server_name().map(str::to_owned);
                let protocol = session.alpn_protocol().map(<[u8]>::to_vec);
                let _ = sender.send((name, protocol, session.peer_certificates().is_some(), session.handshake_kind()));
            };
            let plain = terminate_as(stream.unwrap(), &config, note);
            thread::spawn(move || respond(plain));
        }
    });
    (address, receiver)
}

fn respond(mut stream: TcpStream) {
    let mut head = Vec::new();
    let mut byte = [0];
    while stream.read(&mut byte).is_ok_and(|count| count > 0) {
        head.push(byte[0]);
        if head.ends_with(b"\r\n\r\n") {
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
            head.clear();
        }
    }
}

fn serve(site: &Site, url: &str, keys: &str) -> Server {
    Server::with_site(site, &format!("[[site.app]]\nmatch = \"/**\"\nhttp = {url:?}\n{keys}"))
}

fn file(site: &Site, name: &str, text: &str) -> PathBuf {
    let path = site.file(name, text);
    let_files_settle();
    path
}

fn ca(path: &Path) -> String {
    format!("tls_ca = {path:?}")
}

#[test]
fn untrusted_backend_is_refused_and_reported() {
    let (site, (address, _seen)) = (Site::new(), backend(config(&CERTIFICATE)));
    let other = file(&site, "hidden/other.pem", &signed_for(&["127.0.0.1"]).cert.pem());
    // The system's authorities, and another one of the same name.
    for (keys, reason) in [("", "UnknownIssuer"), (&ca(&other)[..], "BadSignature")] {
        let server = serve(&site, &format!("https://{address}"), keys);
        let response = server.get("/");
        assert_eq!(response.status, 502, "{}", response.text());
        server.wait_for(&format!(
            "cannot reach the application at https://{address}: TLS: invalid peer certificate: {reason}; name its CA, or"
        ));
    }
    let server = serve(&site, &format!("https://{address}"), "tls_verify = false");
    server.wait_for(&format!("the certificate of https://{address} is not verified"));
    assert_eq!(server.get("/").text(), "ok");
}

#[test]
fn name_in_certificate_must_be_that_of_backend() {
    let (site, named) = (Site::new(), signed_for(&["app.example"]));
    let (address, seen) = backend(config(&named));
    let trusted = ca(&file(&site, "hidden/named.pem", &named.cert.pem()));
    let url = format!("https://{address}");
    let server = serve(&site, &url, &trusted);
    assert_eq!(server.get("/").status, 502);
    server.wait_for("write a name of the certificate in `tls_name`");
    let server = serve(&site, &url, &format!("{trusted}\ntls_name = \"app.example\""));
    assert_eq!(server.get("/").text(), "ok");
    assert_eq!(seen.recv().unwrap().0.as_deref(), Some("app.example"));
}

#[test]
fn expired_certificate_is_refused_even_if_it_is_the_trusted_one() {
    let site = Site::new();
    let key = KeyPair::generate().unwrap();
    let mut params = rcgen::CertificateParams::new(["127.0.0.1".to_owned()]).unwrap();
    (params.not_before, params.not_after) = (date_time_ymd(2020, 1, 1), date_time_ymd(2021, 1, 1));
    let expired = CertifiedKey { cert: params.self_signed(&key).unwrap(), signing_key: key };
    let (address, _seen) = backend(config(&expired));
    let trusted = ca(&file(&site, "hidden/expired.pem", &expired.cert.pem()));
    let server = serve(&site, &format!("https://{address}"), &trusted);
    assert_eq!(server.get("/").status, 502);
    server.wait_for("TLS: invalid peer certificate: Expired; renew it");
}

#[test]
fn certificates_of_an_authority_are_trusted() {
    let site = Site::new();
    let mut params = rcgen::CertificateParams::new([]).unwrap();
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let authority = rcgen::CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
    let key = KeyPair::generate().unwrap();
    let params = rcgen::CertificateParams::new(["localhost".to_owned()]).unwrap();
    let own = CertifiedKey { cert: params.signed_by(&key, &authority).unwrap(), signing_key: key };
    let (address, seen) = backend(config(&own));
    let trusted = ca(&file(&site, "hidden/ca.pem", &authority.pem()));
    // The name of the URL; it may have an IPv6 address too, where nothing listens.
    let server = serve(&site, &format!("https://localhost:{}", address.port()), &trusted);
    assert_eq!(server.get("/").text(), "ok");
    let (name, protocol, ..) = seen.recv().unwrap();
    assert_eq!((name.as_deref(), protocol.as_deref()), (Some("localhost"), Some(&b"http/1.1"[..])));
}

#[test]
fn client_certificate_is_presented() {
    let (site, client) = (Site::new(), signed_for(&["client.example"]));
    let mut roots = RootCertStore::empty();
    roots.add(client.cert.der().clone()).unwrap();
    let verifier = WebPkiClientVerifier::builder(Arc::new(roots)).build().unwrap();
    let (chain, key) = identity(&CERTIFICATE);
    let config = ServerConfig::builder().with_client_cert_verifier(verifier).with_single_cert(chain, key).unwrap();
    let (address, seen) = backend(config);
    let (url, trusted) = (format!("https://{address}"), ca(&authorities(&site)));
    let server = serve(&site, &url, &trusted);
    assert_eq!(server.get("/").status, 502);
    server.wait_for("it requires a client certificate: set `tls_certificate` and `tls_key`");
    let keys = Site::new();
    let certificate = file(&keys, "client.pem", &client.cert.pem());
    let key = file(&keys, "client.key", &client.signing_key.serialize_pem());
    let server = serve(&site, &url, &format!("{trusted}\ntls_certificate = {certificate:?}\ntls_key = {key:?}"));
    assert_eq!(server.get("/").text(), "ok");
    assert!(seen.recv().unwrap().2);
}

#[test]
fn sessions_are_resumed() {
    for version in [&rustls::version::TLS13, &rustls::version::TLS12] {
        let site = Site::new();
        let (chain, key) = identity(&CERTIFICATE);
        let config = ServerConfig::builder_with_protocol_versions(&[version]);
        let config = config.with_no_client_auth().with_single_cert(chain, key).unwrap();
        let (address, seen) = backend(config);
        // No connection is kept.
        let keys = format!("{}\nmin_spare = 0", ca(&authorities(&site)));
        let server = serve(&site, &format!("https://{address}"), &keys);
        let mut client = server.connect();
        let kinds: Vec<Option<HandshakeKind>> = (0..4)
            .map(|_| {
                assert_eq!(client.get("/").text(), "ok");
                seen.recv().unwrap().3
            })
            .collect();
        let expected = [HandshakeKind::Full, HandshakeKind::Resumed, HandshakeKind::Resumed, HandshakeKind::Resumed];
        assert_eq!(kinds, expected.map(Some), "{version:?}");
    }
}

#[test]
fn backend_without_tls_is_reported() {
    let site = Site::new();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let _ = stream.read(&mut [0; 1024]);
            let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n");
        }
    });
    let server = serve(&site, &format!("https://{address}"), "");
    assert_eq!(server.get("/").status, 502);
    server.wait_for("it may not use TLS: write `http://` instead of `https://`");
}

#[test]
fn handshake_counts_as_connecting() {
    let site = Site::new();
    // It accepts connections and says nothing; or it ends them.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let silent = listener.local_addr().unwrap();
    let held = Arc::new(Mutex::new(Vec::new()));
    let holds = Arc::clone(&held);
    thread::spawn(move || listener.incoming().for_each(|stream| holds.lock().unwrap().push(stream)));
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let ending = listener.local_addr().unwrap();
    thread::spawn(move || listener.incoming().for_each(|stream| _ = stream.unwrap().read(&mut [0; 1024])));
    let server = serve(&site, &format!("https://{silent}"), "connect_timeout = \"300ms\"");
    let response = server.get("/");
    assert_eq!((response.status, response.text().contains("Timed out connecting")), (504, true), "{}", response.text());
    let server = serve(&site, &format!("https://{ending}"), "");
    assert_eq!(server.get("/").status, 502);
    server.wait_for("the connection ended during the TLS handshake");
    // A request goes to another backend if a handshake fails, with its body.
    let (address, _seen) = backend(config(&CERTIFICATE));
    let toml = format!(
        "[[site.app]]\nmatch = \"/**\"\nhttp = [\"https://{silent}\", \"https://{ending}\", \"https://{address}\"]\n\
         connect_timeout = \"5s\"\nmax_failures = 1000\n{}",
        ca(&authorities(&site))
    );
    let server = Server::with_site(&site, &toml);
    assert_eq!(server.get("/").text(), "ok");
}

#[test]
fn end_that_was_not_announced_cuts_response_off() {
    let site = Site::new();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let config = Arc::new(config(&CERTIFICATE));
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut session = rustls::ServerConnection::new(Arc::clone(&config)).unwrap();
            let mut tls = rustls::Stream::new(&mut session, &mut stream);
            let count = tls.read(&mut [0; 4096]).unwrap_or(0);
            assert!(count > 0);
            tls.write_all(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\npart").unwrap();
            tls.flush().unwrap();
        }
    });
    let server = serve(&site, &format!("https://{address}"), &ca(&authorities(&site)));
    assert!(server.connect().try_get("/").is_none(), "it may be incomplete");
}

#[test]
fn files_are_read_again_at_reload() {
    if is_secure() {
        // Over TLS the harness starts the server with a copy of the configuration.
        return;
    }
    let (site, (address, _seen)) = (Site::new(), backend(config(&CERTIFICATE)));
    let trusted = file(&site, "hidden/ca.pem", &signed_for(&["127.0.0.1"]).cert.pem());
    let path = site.path().with_extension("toml");
    let toml = format!(
        "listen = [\"127.0.0.1:0\"]\n[[site]]\nroot = {:?}\n[[site.app]]\nmatch = \"/**\"\nhttp = \"https://{address}\"\n{}\n",
        site.path(),
        ca(&trusted)
    );
    std::fs::write(&path, toml).unwrap();
    let mut command = program();
    command.args(["serve", "--config"]).arg(&path);
    let server = Server::spawn(command);
    assert_eq!(server.get("/").status, 502);
    std::fs::write(&trusted, CERTIFICATE.cert.pem()).unwrap();
    server.signal("HUP");
    server.wait_for("the new configuration is in force");
    wait_until("the new CA", || server.get("/").status == 200);
}

#[test]
fn certificates_are_verified_by_a_thread_in_amped() {
    let (site, (address, _seen)) = (Site::new(), backend(config(&CERTIFICATE)));
    let server = serve(&site, &format!("https://{address}"), &ca(&authorities(&site)));
    assert_eq!(server.get("/").text(), "ok");
    let names = || -> Vec<String> {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", server.pid())).unwrap();
        tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok()).collect()
    };
    if architecture() == Some("amped") {
        wait_until("the thread to have its name", || names().iter().any(|name| name == "backend-tls\n"));
    } else {
        thread::sleep(Duration::from_millis(50));
        assert!(names().iter().all(|name| name != "backend-tls\n"));
    }
}
