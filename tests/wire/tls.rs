//! TLS: files, applications and refusals over encrypted connections, certificates, and clients that break the protocol.

use std::fs;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::os::unix::fs::PermissionsExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{
    CryptoProvider, WebPkiSupportedAlgorithms, aws_lc_rs, verify_tls12_signature, verify_tls13_signature,
};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{
    ClientConfig, ClientConnection, DigitallySignedStruct, HandshakeKind, RootCertStore, SignatureScheme,
    SupportedProtocolVersion, version,
};
use x509_cert::der::DateTime;

use super::frames::Http2;
use super::harness::*;

/// Certificates that clients trust; each is its own authority.
#[derive(Clone)]
pub struct Trust {
    roots: RootCertStore,
    /// Stored sessions, shared by all clients.
    config: Option<Arc<ClientConfig>>,
}

impl Trust {
    fn new() -> Trust {
        Trust { roots: RootCertStore::empty(), config: None }
    }

    /// Writes a new certificate for these names to `NAME.pem`, and its key to `NAME.key`.
    pub fn issue(&mut self, site: &Site, name: &str, algorithm: &'static rcgen::SignatureAlgorithm, hosts: &[&str]) {
        let hosts: Vec<String> = hosts.iter().map(|host| (*host).to_owned()).collect();
        self.issue_as(site, name, algorithm, &rcgen::CertificateParams::new(hosts).unwrap());
    }

    fn issue_as(
        &mut self,
        site: &Site,
        name: &str,
        algorithm: &'static rcgen::SignatureAlgorithm,
        params: &rcgen::CertificateParams,
    ) {
        let key = rcgen::KeyPair::generate_for(algorithm).unwrap();
        let certificate = params.self_signed(&key).unwrap();
        fs::write(site.path().join(name).with_extension("pem"), certificate.pem()).unwrap();
        fs::write(site.path().join(name).with_extension("key"), key.serialize_pem()).unwrap();
        self.roots.add(certificate.der().clone()).unwrap();
    }

    /// A session with the site of this name.
    pub fn session(
        &self,
        name: &str,
        provider: CryptoProvider,
        version: &'static SupportedProtocolVersion,
    ) -> ClientConnection {
        let config = self.config.clone().unwrap_or_else(|| {
            let config =
                ClientConfig::builder_with_provider(provider.into()).with_protocol_versions(&[version]).unwrap();
            Arc::new(config.with_root_certificates(self.roots.clone()).with_no_client_auth())
        });
        ClientConnection::new(config, ServerName::try_from(name.to_owned()).unwrap()).unwrap()
    }

    /// From now on clients share their sessions, and use this version.
    pub fn store_sessions(&mut self, version: &'static SupportedProtocolVersion) {
        let provider = aws_lc_rs::default_provider().into();
        let config = ClientConfig::builder_with_provider(provider).with_protocol_versions(&[version]).unwrap();
        self.config = Some(Arc::new(config.with_root_certificates(self.roots.clone()).with_no_client_auth()));
    }

    pub fn connect(&self, server: &Server) -> Client {
        self.connect_as(server, &version::TLS13)
    }

    pub fn connect_as(&self, server: &Server, version: &'static SupportedProtocolVersion) -> Client {
        self.connect_to(server, "localhost", version)
    }

    /// Connects to the site of this name.
    pub fn connect_to(&self, server: &Server, name: &str, version: &'static SupportedProtocolVersion) -> Client {
        server.connect().secure(self.session(name, aws_lc_rs::default_provider(), version))
    }

    /// Waits for the end of the handshake, and returns the certificate that the server has sent.
    pub fn certificate(client: &mut Client) -> CertificateDer<'static> {
        client.get("/");
        client.tls().unwrap().peer_certificates().unwrap()[0].clone().into_owned()
    }
}

pub const BOTH: [&SupportedProtocolVersion; 2] = [&version::TLS12, &version::TLS13];

/// A site in a directory of its own, with its certificate beside it.
pub fn place() -> (Site, Trust) {
    let (site, mut trust) = (Site::new(), Trust::new());
    fs::create_dir(site.path().join("root")).unwrap();
    trust.issue(&site, "own", &rcgen::PKCS_ECDSA_P256_SHA256, &["localhost"]);
    (site, trust)
}

/// Serves it; `keys` are added at the top, `tables` to the site.
pub fn serve(site: &Site, keys: &str, tables: &str) -> Server {
    Server::start(&["--config", configure(site, keys, tables).to_str().unwrap()])
}

pub fn configure(site: &Site, keys: &str, tables: &str) -> std::path::PathBuf {
    let text = format!(
        "listen = [\"127.0.0.1:0 tls\", \"127.0.0.1:0\"]\n{keys}\n\
         [[site]]\nroot = \"root\"\ncertificate = [\"own.pem\"]\nkey = [\"own.key\"]\n{tables}\n"
    );
    site.file("amped.toml", text)
}

/// The server's address without TLS, the second that it reports.
pub fn plain_address(server: &Server) -> SocketAddr {
    server.wait_for("serving on http://");
    let said = server.said();
    let line = said.lines().find_map(|line| line.split_once("serving on http://")).expect("the address in the output");
    line.1.trim_end_matches('/').parse().unwrap()
}

#[test]
fn files_of_all_sizes_are_served_over_tls() {
    let (site, trust) = place();
    // Below and above the sizes of records, of inlined bodies, of the content cache and of windows.
    let sizes = [0, 1, 1_000, 1_369, 5_000, 20_000, 70_000, 262_144, 300_001, 2_500_000];
    for size in sizes {
        site.file(&format!("root/{size}"), pattern(size));
    }
    let server = serve(&site, "", "");
    for version in BOTH {
        let mut client = trust.connect_as(&server, version);
        // The second round is answered from the caches.
        for size in sizes.iter().chain(&sizes) {
            assert!(client.get(&format!("/{size}")).body == pattern(*size), "{size} bytes, {version:?}");
        }
        for size in sizes {
            client.send_request("GET", &format!("/{size}"), &[]);
        }
        for size in sizes {
            assert!(client.response("GET").body == pattern(size), "{size} bytes, pipelined, {version:?}");
        }
        let range = client.request("GET", "/2500000", &[("Range", "bytes=262000-530000")]);
        assert!(range.status == 206 && range.body == pattern(2_500_000)[262_000..=530_000]);
        assert_eq!(client.tls().unwrap().alpn_protocol(), None);
    }
}

#[test]
fn every_content_mode_serves_files_over_tls() {
    let (site, trust) = place();
    site.file("root/a", pattern(1_000_000));
    for mode in MODES {
        let server = serve(&site, &format!("send.content = \"{mode}\"\nsend.sendfile_min_age = \"0s\""), "");
        let mut client = trust.connect(&server);
        for _ in 0..2 {
            assert!(client.get("/a").body == pattern(1_000_000), "{mode}");
        }
    }
}

impl Trust {
    fn connect_with_alpn(&self, server: &Server, protocol: &[u8]) -> Client {
        let provider = Arc::new(aws_lc_rs::default_provider());
        let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
        let mut config = config.with_root_certificates(self.roots.clone()).with_no_client_auth();
        config.alpn_protocols = vec![protocol.to_vec()];
        let name = ServerName::try_from("localhost").unwrap();
        server.connect().secure(ClientConnection::new(Arc::new(config), name).unwrap())
    }
}

#[test]
fn alpn_chooses_http_2_before_http_1_1() {
    let (site, trust) = place();
    site.file("root/a", pattern(200_000));
    let server = serve(&site, "", "");
    let mut client = trust.connect_with_alpn(&server, b"h2").untranslated();
    client.send(b"");
    let mut http2 = Http2::begin(client, &[]);
    assert_eq!(http2.get("/a").body, pattern(200_000));
    assert_eq!(http2.client.tls().unwrap().alpn_protocol(), Some(&b"h2"[..]));
    let streams: Vec<_> = (0..50).map(|_| http2.request("GET", "/a", &[])).collect();
    for stream in streams {
        assert_eq!(http2.response(stream).body, pattern(200_000));
    }
}

#[test]
fn alpn_chooses_http_1_1_and_refuses_others() {
    let (site, trust) = place();
    site.file("root/a", "a");
    let server = serve(&site, "", "");
    let mut client = trust.connect_with_alpn(&server, b"http/1.1");
    assert_eq!(client.get("/a").text(), "a");
    assert_eq!(client.tls().unwrap().alpn_protocol(), Some(&b"http/1.1"[..]));
    assert!(trust.connect_with_alpn(&server, b"h3").try_get("/a").is_none());
}

#[test]
fn response_without_length_is_ended_by_close_notify() {
    let (site, trust) = place();
    site.file("root/a", "a");
    let server = serve(&site, "", "");
    for version in BOTH {
        let mut client = trust.connect_as(&server, version);
        client.send("GET /a HTTP/1.0\r\n\r\n");
        // An end without close_notify would be an error.
        assert_eq!(client.response("GET").text(), "a");
        assert!(client.ends(), "{version:?}");
    }
}

#[test]
fn applications_receive_https_and_large_bodies() {
    let (site, trust) = place();
    let script = site.file(
        "root/cgi-bin/echo",
        "#!/bin/sh\nprintf 'Content-Type: a/b\\n\\n%s %s ' \"$HTTPS\" \"$REQUEST_SCHEME\"; cat",
    );
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    let server = serve(&site, "", "[[site.app]]\nmatch = \"/cgi-bin/**\"\ncgi = true");
    let body = pattern(3_000_000);
    let check = |mut client: Client, prefix: &str| {
        client.send(format!("POST /cgi-bin/echo HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n", body.len()));
        client.send(&body);
        let response = client.response("POST");
        assert!(response.body == [prefix.as_bytes(), &body].concat(), "{prefix}");
    };
    for version in BOTH {
        check(trust.connect_as(&server, version), "on https ");
    }
    check(Client::connect(plain_address(&server)), " http ");
}

#[test]
fn cached_application_responses_differ_by_scheme() {
    let (site, trust) = place();
    let script = site.file("root/cgi-bin/scheme", "#!/bin/sh\nprintf 'Content-Type: a/b\\n\\n%s' \"$REQUEST_SCHEME\"");
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    let server = serve(&site, one_set_of_caches(), "[[site.app]]\nmatch = \"/cgi-bin/**\"\ncgi = true\ncache = \"1h\"");
    let plain = plain_address(&server);
    for _ in 0..2 {
        assert_eq!(trust.connect(&server).get("/cgi-bin/scheme").text(), "https");
        assert_eq!(Client::connect(plain).get("/cgi-bin/scheme").text(), "http");
    }
}

#[test]
fn plain_http_on_port_for_tls_is_400() {
    let (site, trust) = place();
    site.file("root/a", "a");
    let server = serve(&site, "", "");
    let refused = server.get("/a");
    assert_eq!(refused.status, 400);
    assert!(refused.text().contains("port requires TLS"), "{}", refused.text());
    let mut byte_wise = server.connect();
    for byte in b"GET / HTTP/1.1\r\n\r\n" {
        byte_wise.send([*byte]);
    }
    assert_eq!(byte_wise.response("GET").status, 400);
    assert_eq!(trust.connect(&server).get("/a").text(), "a");
}

#[test]
fn certificate_is_chosen_by_name_and_signature() {
    let (site, mut trust) = place();
    trust.issue(&site, "rsa", &rcgen::PKCS_RSA_SHA256, &["localhost"]);
    trust.issue(&site, "wild", &rcgen::PKCS_ECDSA_P384_SHA384, &["*.b.example"]);
    let text = "listen = [\"127.0.0.1:0 tls\"]\n\
         [[site]]\nroot = \"root\"\ncertificate = [\"rsa.pem\", \"own.pem\"]\nkey = [\"rsa.key\", \"own.key\"]\n\
         [[site]]\nroot = \"root\"\nhosts = [\"*.b.example\"]\ncertificate = [\"wild.pem\"]\nkey = [\"wild.key\"]\n\
         [[site]]\nroot = \"root\"\nhosts = [\"c.example\"]\n";
    let config = site.file("amped.toml", text);
    let server = Server::start(&["--config", config.to_str().unwrap()]);
    let file = |name: &str| CertificateDer::from_pem_file(site.path().join(name)).unwrap();
    let rsa_only = || {
        let mut provider = aws_lc_rs::default_provider();
        let schemes = provider.signature_verification_algorithms;
        let mapping: Vec<_> = schemes.mapping.iter().filter(|(scheme, _)| is_rsa(*scheme)).copied().collect();
        provider.signature_verification_algorithms.mapping = Vec::leak(mapping);
        provider
    };
    let check = |name: &str, provider: CryptoProvider, version, expected: &str| {
        let mut client = server.connect().secure(trust.session(name, provider, version));
        let expected: CertificateDer<'static> = file(expected);
        assert!(Trust::certificate(&mut client) == expected, "{name}, {version:?}");
    };
    for version in BOTH {
        // Clients that accept both get ECDSA.
        check("localhost", aws_lc_rs::default_provider(), version, "own.pem");
        check("localhost", rsa_only(), version, "rsa.pem");
        check("a.b.example", aws_lc_rs::default_provider(), version, "wild.pem");
        let mut unknown = server.connect().secure(trust.session("c.example", aws_lc_rs::default_provider(), version));
        // The client does not accept the certificate of the default site for this name.
        assert!(unknown.try_get("/").is_none());
    }
}

fn is_rsa(scheme: SignatureScheme) -> bool {
    matches!(
        scheme,
        SignatureScheme::RSA_PSS_SHA256
            | SignatureScheme::RSA_PSS_SHA384
            | SignatureScheme::RSA_PSS_SHA512
            | SignatureScheme::RSA_PKCS1_SHA256
            | SignatureScheme::RSA_PKCS1_SHA384
            | SignatureScheme::RSA_PKCS1_SHA512
    )
}

#[test]
fn sessions_are_resumed_by_any_worker() {
    let (site, mut trust) = place();
    site.file("root/a", "a");
    for version in BOTH {
        let server = serve(&site, "", "");
        trust.store_sessions(version);
        let kind = |trust: &Trust| {
            let mut client = trust.connect(&server);
            assert_eq!(client.get("/a").text(), "a");
            client.tls().unwrap().handshake_kind()
        };
        assert_eq!(kind(&trust), Some(HandshakeKind::Full), "{version:?}");
        // Each goes to another thread or process of a pool; the first connection is still open there.
        let held = trust.connect(&server);
        for _ in 0..4 {
            assert_eq!(kind(&trust), Some(HandshakeKind::Resumed), "{version:?}");
        }
        drop(held);
    }
}

#[test]
fn servers_with_the_same_ticket_secret_resume_sessions_of_each_other() {
    let (site, trust) = place();
    site.file("root/a", "a");
    // By renaming, so that no server reads a part.
    let write = |name: &str, byte: u8| fs::rename(site.file("new", [byte; 48]), site.path().join(name)).unwrap();
    write("secret", 1);
    write("other", 2);
    let start = |secret: &str| serve(&site, &format!("tls.ticket_secret = {secret:?}"), "");
    let (one, two, stranger) = (start("secret"), start("secret"), start("other"));
    let kind = |trust: &Trust, server: &Server| {
        let mut client = trust.connect(server);
        assert_eq!(client.get("/a").text(), "a");
        client.tls().unwrap().handshake_kind()
    };
    let client = |version: &'static SupportedProtocolVersion| {
        let mut trust = trust.clone();
        trust.store_sessions(version);
        trust
    };
    let (full, resumed) = (Some(HandshakeKind::Full), Some(HandshakeKind::Resumed));
    for version in BOTH {
        let trust = client(version);
        for (server, expected) in [(&one, full), (&two, resumed), (&one, resumed), (&stranger, full)] {
            assert_eq!(kind(&trust, server), expected, "{version:?}");
        }
    }
    let kept = BOTH.map(client);
    kept.iter().for_each(|trust| assert_eq!(kind(trust, &one), full));
    // The operator replaces the secret; `three` is a server that starts later.
    write("secret", 3);
    [&one, &two].iter().for_each(|server| server.wait_for("new ticket secret: "));
    let three = start("secret");
    kept.iter().for_each(|trust| assert_eq!(kind(trust, &two), resumed));
    for version in BOTH {
        // The processes of a pool read the file a moment later.
        wait_until("tickets of the new secret", || {
            let trust = client(version);
            assert_eq!(kind(&trust, &one), full);
            kind(&trust, &three) == resumed
        });
    }
    // A secret that cannot be used changes nothing.
    fs::rename(site.file("new", "short"), site.path().join("secret")).unwrap();
    one.wait_for("keeping the ticket secret in use");
    let trust = client(&version::TLS13);
    assert_eq!((kind(&trust, &one), kind(&trust, &three)), (full, resumed));
}

#[test]
fn handshake_may_be_split_anywhere_and_times_out() {
    let (site, trust) = place();
    site.file("root/a", pattern(100_000));
    let server = serve(&site, "limits.header_timeout = \"2s\"", "");
    for version in BOTH {
        let mut tls = trust.session("localhost", aws_lc_rs::default_provider(), version);
        let stream = server.connect();
        let mut stream = stream.stream();
        let mut received = [0; 4096];
        // Each byte of the client's flights is a packet of its own.
        while tls.is_handshaking() {
            let mut flight = Vec::new();
            while tls.wants_write() {
                tls.write_tls(&mut flight).unwrap();
            }
            for byte in flight {
                stream.write_all(&[byte]).unwrap();
            }
            if tls.is_handshaking() {
                let count = stream.read(&mut received).unwrap();
                assert!(count > 0, "the server closed in the handshake");
                tls.read_tls(&mut &received[..count]).unwrap();
                tls.process_new_packets().unwrap();
            }
        }
        let mut client = Client::on(stream).secure(tls);
        assert!(client.get("/a").body == pattern(100_000), "{version:?}");
    }
    // Clients that send nothing, or stop in the middle, are closed.
    let mut silent = server.connect();
    assert!(silent.is_closed());
    let mut tls = trust.session("localhost", aws_lc_rs::default_provider(), &version::TLS13);
    let mut hello = Vec::new();
    tls.write_tls(&mut hello).unwrap();
    let mut slow = server.connect();
    slow.send(&hello[..hello.len() / 2]);
    assert!(slow.is_closed());
    let mut silent_after_hello = server.connect();
    silent_after_hello.send(&hello);
    assert!(!silent_after_hello.read_to_end().is_empty());
    // Bytes that keep arriving extend no deadline: at this rate the hello would take half a minute.
    let client = server.connect();
    let mut stream = client.stream();
    let is_refused = hello.iter().any(|byte| {
        thread::sleep(Duration::from_millis(20));
        stream.write_all(&[*byte]).is_err()
    });
    assert!(is_refused, "the whole hello was accepted");
}

#[test]
fn handshakes_are_counted_by_version_kind_cipher_and_failure() {
    let (site, mut trust) = place();
    site.file("root/a", "a");
    let server = serve(&site, "limits.header_timeout = \"2s\"", "");
    for version in BOTH {
        trust.store_sessions(version);
        for _ in 0..3 {
            assert_eq!(trust.connect(&server).get("/a").text(), "a");
        }
    }
    for (figure, count) in [
        ("tls_handshakes full,1.2", 1),
        ("tls_handshakes resumed,1.2", 2),
        ("tls_handshakes full,1.3", 1),
        ("tls_handshakes resumed,1.3", 2),
        ("tls_ciphers AES_256_GCM", 6),
    ] {
        wait_until(figure, || server.report(figure) == count);
    }
    trust.config = None;
    let mut provider = aws_lc_rs::default_provider();
    provider.kx_groups = vec![aws_lc_rs::kx_group::MLKEM768];
    let unsupported = trust.session("localhost", provider, &version::TLS13);
    let none = Trust::new();
    // A hello of TLS 1.1 with one cipher suite: record, message, version, random bytes, no session.
    let hello_of_1_1 = [&[22, 3, 1, 0, 45, 1, 0, 0, 41, 3, 2][..], &[7; 32], &[0, 0, 2, 0xc0, 0x2f, 1, 0]].concat();
    let send = |bytes: &[u8]| {
        let mut client = server.connect();
        client.send(bytes);
        client.read_to_end();
    };
    assert!(server.connect().secure(unsupported).try_get("/a").is_none());
    assert!(trust.connect_with_alpn(&server, b"h3").try_get("/a").is_none());
    assert!(none.connect(&server).try_get("/a").is_none());
    send(&hello_of_1_1);
    send(&[22, 3, 1, 0, 4, 99, 0, 0, 0]);
    assert_eq!(server.get("/a").status, 400);
    drop(server.connect());
    send(b"");
    for reason in ["version", "parameters", "alpn", "rejected", "malformed", "plain", "timeout", "closed"] {
        wait_until(reason, || server.report(&format!("tls_failures {reason}")) == 1);
    }
}

#[test]
fn client_that_leaves_in_handshake_is_closed_at_once() {
    let (site, trust) = place();
    const CLOSE_NOTIFY: &[u8] = &[21, 3, 3, 0, 2, 1, 0];
    const FATAL: &[u8] = &[21, 3, 3, 0, 2, 2, 0];
    let server = serve(&site, "", "");
    let mut count = 0;
    for version in BOTH {
        let mut session = trust.session("localhost", aws_lc_rs::default_provider(), version);
        let mut hello = Vec::new();
        session.write_tls(&mut hello).unwrap();
        let part = &hello[..hello.len() / 2];
        for (before, last) in [
            (&[][..], CLOSE_NOTIFY),
            (&[], FATAL),
            (part, &[]),
            (&hello[..], &[]),
            (&hello[..], CLOSE_NOTIFY),
            (&hello[..], FATAL),
        ] {
            for waits in [false, true] {
                let mut client = server.connect();
                client.send(before);
                if waits && before.len() == hello.len() {
                    // The server's part of the handshake.
                    let mut stream = client.stream();
                    assert!(stream.read(&mut [0; 1]).unwrap() > 0);
                }
                client.send(last);
                if last.is_empty() {
                    client.half_close();
                }
                client.read_to_end();
                count += 1;
            }
        }
    }
    // Those that were not noticed would be counted as timeouts, 20 s later.
    wait_until("all to be counted", || server.report("tls_failures closed") == count);
    for reason in ["timeout", "malformed", "rejected"] {
        assert_eq!(server.report(&format!("tls_failures {reason}")), 0, "{reason}");
    }
}

#[test]
fn json_log_has_tls_version_and_cipher_suite() {
    let (site, trust) = place();
    site.file("root/a", "a");
    let log = site.path().join("log");
    let server = serve(&site, &format!("log.access = {log:?}\nlog.format = \"json\"\nlog.flush = \"10ms\""), "");
    for (version, expected) in [
        (&version::TLS12, r#""tls":"1.2","cipher":"TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384""#),
        (&version::TLS13, r#""tls":"1.3","cipher":"TLS_AES_256_GCM_SHA384""#),
    ] {
        trust.connect_as(&server, version).get("/a");
        wait_until(expected, || fs::read_to_string(&log).is_ok_and(|text| text.contains(expected)));
    }
}

/// An authority that issues certificates to clients.
struct Authority(rcgen::CertifiedIssuer<'static, rcgen::KeyPair>);

impl Authority {
    fn new(site: &Site, name: &str) -> Authority {
        let key = rcgen::KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256).unwrap();
        let mut params = rcgen::CertificateParams::new([]).unwrap();
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let issuer = rcgen::CertifiedIssuer::self_signed(params, key).unwrap();
        site.file(name, issuer.pem());
        Authority(issuer)
    }

    /// A list that revokes the certificates of these clients. `end`: since 1970.
    fn crl(&self, names: &[&str], end: Duration) -> String {
        let revoked = names.iter().map(|name| rcgen::RevokedCertParams {
            serial_number: name.as_bytes().to_vec().into(),
            revocation_time: rcgen::date_time_ymd(2024, 6, 17),
            reason_code: None,
            invalidity_date: None,
        });
        let params = rcgen::CertificateRevocationListParams {
            this_update: rcgen::date_time_ymd(2024, 6, 17),
            next_update: rcgen::date_time_ymd(1970, 1, 1) + end,
            crl_number: rcgen::SerialNumber::from(1_u64),
            issuing_distribution_point: None,
            revoked_certs: revoked.collect(),
            key_identifier_method: rcgen::KeyIdMethod::Sha256,
        };
        params.signed_by(&self.0).unwrap().pem().unwrap()
    }

    /// A configuration whose clients have a certificate with this common name and serial number, and store their sessions.
    fn client(&self, trust: &Trust, version: &'static SupportedProtocolVersion, name: &str) -> Trust {
        self.client_until(trust, version, name, in_seconds(86_400))
    }

    /// The same, with a certificate that is valid until this Unix time.
    fn client_until(
        &self,
        trust: &Trust,
        version: &'static SupportedProtocolVersion,
        name: &str,
        end: Duration,
    ) -> Trust {
        let key = rcgen::KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256).unwrap();
        let mut params = rcgen::CertificateParams::new([]).unwrap();
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(rcgen::DnType::OrganizationName, "Example, Inc.");
        params.distinguished_name.push(rcgen::DnType::CommonName, name);
        params.serial_number = Some(name.as_bytes().to_vec().into());
        params.extended_key_usages = vec![rcgen::ExtendedKeyUsagePurpose::ClientAuth];
        params.not_after = rcgen::date_time_ymd(1970, 1, 1) + end;
        let certificate = params.signed_by(&key, &self.0).unwrap();
        let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
        let provider = aws_lc_rs::default_provider().into();
        let config = ClientConfig::builder_with_provider(provider).with_protocol_versions(&[version]).unwrap();
        let config = config.with_root_certificates(trust.roots.clone());
        let config = config.with_client_auth_cert(vec![certificate.der().clone()], key).unwrap();
        Trust { roots: trust.roots.clone(), config: Some(Arc::new(config)) }
    }
}

#[test]
fn client_certificates_are_verified_and_passed_on() {
    let (site, trust) = place();
    let (good, other) = (Authority::new(&site, "clients.pem"), Authority::new(&site, "other.pem"));
    let script = site.file(
        "root/cgi-bin/who",
        "#!/bin/sh\nprintf 'Content-Type: a/b\\n\\n%s %s %s' \"$SSL_PROTOCOL\" \"$SSL_CLIENT_VERIFY\" \"$SSL_CLIENT_S_DN\"",
    );
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    let subject = r#""subject":"CN=ann,O=Example\\, Inc.""#;
    for (kind, is_optional) in [("required", false), ("optional", true)] {
        let log = site.path().join(kind);
        let keys = format!(
            "log.access = {log:?}\nlog.format = \"json\"\nlog.flush = \"10ms\"\n\
             tls.client_ca = \"clients.pem\"\ntls.client_certificate = \"{kind}\""
        );
        let server = serve(&site, &keys, "[[site.app]]\nmatch = \"/cgi-bin/**\"\ncgi = true");
        for (version, name) in [(&version::TLS12, "TLSv1.2"), (&version::TLS13, "TLSv1.3")] {
            let known = good.client(&trust, version, "ann");
            // The second session is resumed.
            for _ in 0..2 {
                let said = known.connect(&server).get("/cgi-bin/who").text();
                assert_eq!(said, format!("{name} SUCCESS CN=ann,O=Example\\, Inc."), "{kind}");
            }
            let unknown = other.client(&trust, version, "ann");
            assert!(unknown.connect(&server).try_get("/cgi-bin/who").is_none(), "{kind}");
            let none = trust.connect_as(&server, version).try_get("/cgi-bin/who");
            assert_eq!(none.map(|response| response.text()), is_optional.then(|| format!("{name} NONE ")), "{kind}");
        }
        let refused = if is_optional { 2 } else { 4 };
        wait_until("refusals to be counted", || server.report("tls_failures certificate") == refused);
        wait_until("the log", || fs::read_to_string(&log).is_ok_and(|text| text.matches(subject).count() == 4));
    }
}

#[test]
fn cached_response_does_not_name_a_client() {
    let (site, trust) = place();
    let authority = Authority::new(&site, "clients.pem");
    let script = site.file("root/cgi-bin/who", "#!/bin/sh\nprintf 'Content-Type: a/b\\n\\n%s' \"$SSL_CLIENT_S_DN\"");
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    let app = "[[site.app]]\nmatch = \"/cgi-bin/**\"\ncgi = true\ncache = \"1h\"";
    let server = serve(&site, "tls.client_ca = \"clients.pem\"", app);
    for name in ["ann", "ben"] {
        let client = authority.client(&trust, &version::TLS13, name);
        assert_eq!(client.connect(&server).get("/cgi-bin/who").text(), "");
    }
}

/// A response that may be stored names nobody, even if no other request waits for it: after a failure, or with cookies.
#[test]
fn response_that_may_be_cached_does_not_name_a_client() {
    let (site, trust) = place();
    let authority = Authority::new(&site, "clients.pem");
    let fails = site.file("fails", "");
    let text = "printf 'Content-Type: a/b\\nCache-Control: max-age=60\\n\\n<%s>' \"$SSL_CLIENT_S_DN\"";
    let text = format!("#!/bin/sh\n[ -e {} ] && printf 'Status: 500\\n\\n' && exit\n{text}", fails.display());
    for name in ["flaky", "cookie"] {
        let script = site.file(&format!("root/cgi-bin/{name}"), &text);
        fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    }
    let keys = format!("{}tls.client_ca = \"clients.pem\"\ntls.client_certificate = \"optional\"", one_set_of_caches());
    let server = serve(&site, &keys, "[[site.app]]\nmatch = \"/cgi-bin/**\"\ncgi = true\ncache = \"1m\"");
    let ann = authority.client(&trust, &version::TLS13, "ann");
    assert_eq!(trust.connect(&server).get("/cgi-bin/flaky").status, 500);
    fs::remove_file(fails).unwrap();
    // For a second, requests for this page do not wait for each other.
    assert_eq!(ann.connect(&server).get("/cgi-bin/flaky").text(), "<>");
    let response = ann.connect(&server).request("GET", "/cgi-bin/cookie", &[("Cookie", "a=b")]);
    assert_eq!((response.status, response.text().as_str()), (200, "<>"));
    for name in ["flaky", "cookie"] {
        assert_eq!(trust.connect(&server).get(&format!("/cgi-bin/{name}")).text(), "<>", "{name}");
    }
}

/// Even a hard link to it below the root is refused.
#[test]
fn private_key_is_never_served() {
    let (site, trust) = place();
    site.file("root/index.html", "for all");
    let server = serve(&site, "", "");
    fs::hard_link(site.path().join("own.key"), site.path().join("root/key.txt")).unwrap();
    fs::hard_link(site.path().join("own.pem"), site.path().join("root/certificate.txt")).unwrap();
    assert_eq!(trust.connect(&server).get("/key.txt").status, 403);
    assert_eq!(trust.connect(&server).get("/certificate.txt").status, 200);
    assert_eq!(trust.connect(&server).get("/").text(), "for all");
}

#[test]
fn reload_that_requests_certificates_resumes_no_session() {
    let (site, mut trust) = place();
    site.file("root/a", "a");
    let authority = Authority::new(&site, "clients.pem");
    let server = serve(&site, "", "");
    trust.store_sessions(&version::TLS13);
    assert_eq!(trust.connect(&server).get("/a").text(), "a");
    configure(&site, "tls.client_ca = \"clients.pem\"", "");
    let old = server.children();
    server.signal("HUP");
    server.wait_for("the new configuration is in force");
    // The processes of a pool are replaced after that, one after the other.
    wait_until("the old processes to exit", || server.children().iter().all(|pid| !old.contains(pid)));
    wait_until("clients without a certificate to be refused", || trust.connect(&server).try_get("/a").is_none());
    for _ in 0..3 {
        assert!(trust.connect(&server).try_get("/a").is_none());
    }
    assert_eq!(authority.client(&trust, &version::TLS13, "ann").connect(&server).get("/a").text(), "a");
}

const CLIENT_CRL: &str = "tls.client_ca = \"clients.pem\"\ntls.client_crl = \"clients.crl\"";

/// The time in this many seconds, since 1970.
fn in_seconds(seconds: u64) -> Duration {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    Duration::from_secs(now.as_secs() + seconds)
}

/// How a new connection of this client began; `None`: it was refused.
fn handshake(trust: &Trust, server: &Server) -> Option<HandshakeKind> {
    let mut client = trust.connect(server);
    let response = client.try_get("/a")?;
    assert_eq!(response.text(), "a");
    client.tls().unwrap().handshake_kind()
}

/// Waits until every process refuses this client, which may have tickets.
fn wait_for_refusal(trust: &Trust, server: &Server) {
    wait_until("the client to be refused", || (0..8).all(|_| handshake(trust, server).is_none()));
}

#[test]
fn revoked_client_is_refused_without_restart() {
    let (site, trust) = place();
    site.file("root/a", "a");
    let authority = Authority::new(&site, "clients.pem");
    // By renaming, so that no server reads a part.
    let replace = |list: String| fs::rename(site.file("new", list), site.path().join("clients.crl")).unwrap();
    let revoke = |names: &[&str]| replace(authority.crl(names, in_seconds(86_400)));
    revoke(&["ann"]);
    let server = serve(&site, CLIENT_CRL, "");
    let (full, resumed) = (Some(HandshakeKind::Full), Some(HandshakeKind::Resumed));
    let clients = |name: &str| BOTH.map(|version| authority.client(&trust, version, name));
    let (ann, ben, cyd) = (clients("ann"), clients("ben"), clients("cyd"));
    let expect = |clients: &[Trust], expected: &[Option<HandshakeKind>]| {
        for (client, version) in clients.iter().zip(BOTH) {
            let found: Vec<_> = expected.iter().map(|_| handshake(client, &server)).collect();
            assert_eq!(found, expected, "{version:?}");
        }
    };
    expect(&ann, &[None]);
    expect(&ben, &[full, resumed]);
    expect(&cyd, &[full, resumed]);
    // A file that cannot be used changes nothing.
    replace(fs::read_to_string(site.path().join("clients.pem")).unwrap());
    server.wait_for("clients.crl contains no CRL");
    server.wait_for("keeping the CRLs in use");
    expect(&ann, &[None]);
    expect(&ben, &[resumed]);
    revoke(&["ann", "ben"]);
    server.wait_for("new CRLs: ");
    // The processes of a pool read the file a moment later.
    ben.iter().for_each(|client| wait_for_refusal(client, &server));
    expect(&ann, &[None]);
    // Tickets of the old list are no longer valid.
    expect(&cyd, &[full, resumed]);
    assert!(server.report("tls_failures certificate") >= 2);
    // Only the list was reloaded.
    assert!(!server.said().contains("configuration"), "{}", server.said());
}

#[test]
fn expired_client_certificate_ends_its_sessions() {
    let (site, trust) = place();
    site.file("root/a", "a");
    let authority = Authority::new(&site, "clients.pem");
    let server = serve(&site, "tls.client_ca = \"clients.pem\"", "");
    for version in BOTH {
        // A busy machine may need longer for two connections.
        let resuming = [4, 16, 64].into_iter().find_map(|seconds| {
            let client = authority.client_until(&trust, version, "ann", in_seconds(seconds));
            handshake(&client, &server)?;
            (handshake(&client, &server)? == HandshakeKind::Resumed).then_some(client)
        });
        wait_for_refusal(&resuming.unwrap(), &server);
    }
    assert!(server.report("tls_failures certificate") >= 2);
}

#[test]
fn expired_crl_refuses_clients_and_ends_their_sessions() {
    let (site, trust) = place();
    site.file("root/a", "a");
    let authority = Authority::new(&site, "clients.pem");
    let write = |end: Duration| {
        fs::rename(site.file("new", authority.crl(&[], end)), site.path().join("clients.crl")).unwrap();
    };
    write(in_seconds(86_400));
    let server = serve(&site, CLIENT_CRL, "");
    let clients = BOTH.map(|version| authority.client(&trust, version, "ann"));
    for client in &clients {
        assert_eq!(handshake(client, &server), Some(HandshakeKind::Full));
    }
    // An expired list does not replace a current one.
    write(in_seconds(0));
    server.wait_for("keeping the CRLs in use");
    for client in &clients {
        assert_eq!(handshake(client, &server), Some(HandshakeKind::Resumed));
    }
    // It is read after 2 to 4 s.
    write(in_seconds(10));
    server.wait_for("client certificates of this CA are refused");
    clients.iter().for_each(|client| wait_for_refusal(client, &server));
    // A server starts with it, and clients that need no certificate are served.
    let keys = format!("{CLIENT_CRL}\ntls.client_certificate = \"optional\"");
    let restarted = serve(&site, &keys, "");
    restarted.wait_for("client certificates of this CA are refused");
    assert_eq!(trust.connect(&restarted).get("/a").text(), "a");
    assert_eq!(handshake(&clients[0], &restarted), None);
    // A new list ends this.
    write(in_seconds(86_400));
    restarted.wait_for("new CRLs: ");
    wait_until("the client to be accepted", || handshake(&clients[0], &restarted).is_some());
}

/// The metrics of a server with `metrics.listen`.
pub fn metrics(server: &Server) -> String {
    server.wait_for("/metrics");
    let said = server.said();
    let url = said.lines().find_map(|line| line.split_once("http://")?.1.split_once("/metrics")).expect("its address");
    Client::connect(url.0.parse().unwrap()).untranslated().get("/metrics").text()
}

#[test]
fn metrics_have_expiry_of_each_certificate() {
    let (site, _) = place();
    let page = metrics(&serve(&site, "metrics.listen = \"127.0.0.1:0\"", ""));
    // The year 4096, the default of rcgen.
    let file = site.path().join("own.pem");
    let expected = format!("amped_tls_certificate_end_seconds{{site=\"0\",file=\"{}\"}} 67090118400", file.display());
    assert!(page.lines().any(|line| line.starts_with(&expected)), "{expected} is not in {page}");
}

#[test]
fn metrics_have_expiry_of_ocsp_responses_and_crls() {
    let (site, mut trust) = place();
    let mut params = rcgen::CertificateParams::new(["localhost".to_owned()]).unwrap();
    params.serial_number = Some(vec![0x8a, 0x11, 0x0c, 0x5b].into());
    trust.issue_as(&site, "own", &rcgen::PKCS_ECDSA_P256_SHA256, &params);
    let authority = Authority::new(&site, "clients.pem");
    let crl = site.file("clients.crl", authority.crl(&[], Duration::from_secs(4_900_000_000)));
    let ocsp = site.path().join("own.ocsp");
    let keys = format!("metrics.listen = \"127.0.0.1:0\"\n{CLIENT_CRL}");
    // Without a response there is no sample of it.
    let page = metrics(&serve(&site, &keys, "ocsp = [\"own.ocsp\"]"));
    assert!(!page.contains("amped_tls_ocsp_response_end_seconds"), "{page}");
    fs::write(&ocsp, GOOD).unwrap();
    let page = metrics(&serve(&site, &keys, "ocsp = [\"own.ocsp\"]"));
    for expected in [
        // 2126-10-31, 14:28:55.
        format!("amped_tls_ocsp_response_end_seconds{{site=\"0\",file=\"{}\"}} 4949130535", ocsp.display()),
        format!(
            "amped_tls_crl_end_seconds{{file=\"{}\",issuer=\"CN=rcgen self signed cert\"}} 4900000000",
            crl.display()
        ),
    ] {
        assert!(page.lines().any(|line| line == expected), "{expected} is not in {page}");
    }
}

#[test]
fn session_secrets_are_logged_only_where_configured() {
    let (site, trust) = place();
    site.file("root/a", "a");
    let secrets = site.path().join("secrets");
    for (keys, is_logged) in [("", false), ("tls.key_log = true", true)] {
        let mut command = program();
        command.env("SSLKEYLOGFILE", &secrets).args(["serve", "--config"]).arg(configure(&site, keys, ""));
        let server = Server::spawn(command);
        assert_eq!(trust.connect(&server).get("/a").text(), "a");
        assert_eq!(secrets.exists(), is_logged);
        assert_eq!(server.said().contains("can decrypt TLS connections"), is_logged);
    }
    assert!(fs::read_to_string(&secrets).unwrap().contains("CLIENT_TRAFFIC_SECRET_0 "));
    assert_eq!(fs::metadata(&secrets).unwrap().permissions().mode() & 0o007, 0);
}

/// Like [`place`], with an RSA key, whose signatures AMPED computes in a thread.
fn place_with_rsa() -> (Site, Trust) {
    let (site, mut trust) = place();
    trust.issue(&site, "own", &rcgen::PKCS_RSA_SHA256, &["localhost"]);
    (site, trust)
}

impl Trust {
    /// The first flight of a client.
    pub fn hello(&self, version: &'static SupportedProtocolVersion) -> Vec<u8> {
        let mut hello = Vec::new();
        self.session("localhost", aws_lc_rs::default_provider(), version).write_tls(&mut hello).unwrap();
        hello
    }
}

/// How much nicer than the server itself its threads for handshakes are (proc_pid_stat(5), field 19).
fn handshake_threads(server: &Server) -> Vec<i32> {
    let process = std::path::PathBuf::from(format!("/proc/{}", server.pid()));
    let nice = |task: &std::path::Path| -> i32 {
        let stat = fs::read_to_string(task.join("stat")).unwrap();
        stat.rsplit(") ").next().unwrap().split(' ').nth(19 - 3).unwrap().parse().unwrap()
    };
    let is_one = |task: &std::path::PathBuf| {
        fs::read_to_string(task.join("comm")).is_ok_and(|name| name.trim_end() == "handshakes")
    };
    let tasks = fs::read_dir(process.join("task")).unwrap().map(|task| task.unwrap().path());
    tasks.filter(is_one).map(|task| nice(&task) - nice(&process)).collect()
}

#[test]
fn rsa_handshakes_run_in_thread_of_amped_if_processor_is_spare() {
    let (site, trust) = place_with_rsa();
    site.file("root/a", "a");
    let processors = processors();
    let all_busy = format!("workers = {processors}");
    let is_amped = architecture() == Some("amped");
    let mut cases = vec![("", is_amped && processors > 1), ("tls.sign = \"loop\"", false)];
    if is_amped {
        cases.push((&all_busy, false));
    }
    for (keys, has_thread) in cases {
        let count = |tasks: u64| if has_thread { tasks } else { 0 };
        let server = serve(&site, keys, "");
        for version in BOTH {
            for _ in 0..3 {
                assert_eq!(trust.connect_as(&server, version).get("/a").text(), "a");
            }
        }
        assert_eq!(server.report("helper_tasks handshake"), count(6), "{keys}");
        assert_eq!(handshake_threads(&server), if has_thread { &[5][..] } else { &[] }, "{keys}");
        // The server does not support the first key exchange that this client offers, so the client says hello twice.
        let mut provider = aws_lc_rs::default_provider();
        provider.kx_groups = vec![aws_lc_rs::kx_group::MLKEM768, aws_lc_rs::kx_group::X25519];
        let mut twice = server.connect().secure(trust.session("localhost", provider, &version::TLS13));
        assert_eq!(twice.get("/a").text(), "a");
        assert_eq!(twice.tls().unwrap().handshake_kind(), Some(HandshakeKind::FullWithHelloRetryRequest));
        assert_eq!(server.report("helper_tasks handshake"), count(8), "{keys}");
    }
}

#[test]
fn single_ecdsa_handshake_runs_in_event_loop() {
    let (site, trust) = place();
    site.file("root/a", "a");
    let server = serve(&site, "", "");
    for version in BOTH {
        assert_eq!(trust.connect_as(&server, version).get("/a").text(), "a");
    }
    assert_eq!(handshake_threads(&server), [0; 0]);
}

fn processors() -> usize {
    thread::available_parallelism().unwrap().get()
}

#[test]
fn handshake_bursts_and_disconnects_are_handled() {
    handshake_bursts("");
    if architecture() == Some("amped") {
        // No processor is spare, so hellos wait for later iterations of the loop.
        handshake_bursts(&format!("workers = {}", processors()));
    }
}

fn handshake_bursts(keys: &str) {
    let (site, trust) = place_with_rsa();
    site.file("root/a", pattern(20_000));
    let server = serve(&site, keys, "");
    for round in 0..4 {
        thread::scope(|threads| {
            for n in 0..12 {
                let (server, trust) = (&server, &trust);
                threads.spawn(move || {
                    assert!(trust.connect_as(server, BOTH[n % 2]).get("/a").body == pattern(20_000), "{round}");
                });
            }
            // Others disconnect before they have the server's part of the handshake.
            for n in 0..8 {
                server.connect().send(trust.hello(BOTH[n % 2]));
            }
        });
    }
    wait_until("all connections to close", || server.report("connections") == 0);
}

#[test]
fn thousand_unfinished_handshakes_cost_little_memory_and_are_closed() {
    const CLIENTS: usize = 1000;
    if is_pool() {
        // Its workers have one connection each.
        return;
    }
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum }).unwrap();
    let (site, trust) = place_with_rsa();
    site.file("root/a", "a");
    let server = serve(&site, "limits.header_timeout = \"5s\"", "");
    assert_eq!(trust.connect(&server).get("/a").text(), "a");
    let before = memory_kib(&server, "VmRSS:");
    let hello = trust.hello(&version::TLS13);
    let connect = |n: usize| {
        let client = server.connect();
        // Every other hello lacks its last byte. On a busy machine the deadline may pass before it is sent.
        let _ = client.stream().write_all(&hello[..hello.len() - n % 2]);
        client
    };
    let clients: Vec<Client> = (0..CLIENTS).map(connect).collect();
    wait_until("all connections to close", || server.report("connections") == 0);
    drop(clients);
    let peak = memory_kib(&server, "VmHWM:").saturating_sub(before) / CLIENTS as u64;
    println!("{peak} KiB a connection");
    assert!(peak <= 64, "{peak} KiB a connection");
    assert_eq!(trust.connect(&server).get("/a").text(), "a");
}

/// A line of proc_pid_status(5).
fn memory_kib(server: &Server, name: &str) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", server.pid())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

#[test]
fn server_stops_with_handshakes_in_flight() {
    let (site, trust) = place_with_rsa();
    let mut server = serve(&site, "", "");
    let mut clients: Vec<Client> = (0..24).map(|_| server.connect()).collect();
    for client in &mut clients {
        client.send(trust.hello(&version::TLS13));
    }
    server.signal("TERM");
    assert!(server.wait().success());
}

#[test]
fn slow_reader_gets_large_file_over_tls() {
    let (site, trust) = place();
    let size = 6_000_000;
    site.file("root/a", pattern(size));
    site.file("root/b", "b");
    let server = serve(&site, "", "");
    let tls = trust.session("localhost", aws_lc_rs::default_provider(), &version::TLS13);
    let mut slow = Client::connect_narrow(server.address, 4096).secure(tls);
    slow.send_request("GET", "/a", &[]);
    slow.wait_for_bytes();
    // Others are served while it does not read.
    assert_eq!(trust.connect(&server).get("/b").text(), "b");
    assert!(slow.response("GET").body == pattern(size));
    assert!(slow.get("/a").body == pattern(size));
}

#[test]
fn trickling_reader_over_tls_is_reset_and_steady_one_is_not() {
    let (site, trust) = place();
    site.file("root/large", pattern(20_000_000));
    let server = serve(&site, "[limits]\nsend_timeout = \"1s\"\nmin_send_rate = \"500kB\"", "");
    let begin = || {
        let session = trust.session("localhost", aws_lc_rs::default_provider(), &version::TLS13);
        let mut client = Client::connect_narrow(server.address, 16 * 1024).secure(session);
        client.send_request("GET", "/large", &[]);
        client
    };
    // 2 MB/s for a busy machine, and for twice the timeout.
    let (mut steady, from) = (begin(), Instant::now());
    while from.elapsed() < Duration::from_secs(2) {
        steady.fill_at_most(20_000);
        thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(server.report("connections_slow"), 0);
    drop(steady);
    let mut slow = begin();
    wait_until("the server to give the client up", || {
        for _ in 0..40 {
            slow.fill_at_most(1024);
            thread::sleep(Duration::from_millis(10));
        }
        server.report("connections_slow") == 1
    });
}

#[test]
fn broken_records_close_their_connection_alone() {
    let (site, trust) = place();
    site.file("root/a", "a");
    let server = serve(&site, "", "");
    let mut kept = trust.connect(&server);
    assert_eq!(kept.get("/a").text(), "a");
    // A seeded generator (Knuth, MMIX): a failure is repeatable.
    let mut seed = 1_u64;
    let mut random = |below: usize| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) as usize % below
    };
    for round in 0..60 {
        let version = BOTH[round % 2];
        let mut tls = trust.session("localhost", aws_lc_rs::default_provider(), version);
        let client = server.connect();
        let mut stream = client.stream();
        let mut received = [0; 16 * 1024];
        // Half of them are broken in the handshake, half after it.
        if round >= 30 {
            while tls.is_handshaking() {
                let Ok(_) = tls.complete_io(&mut stream) else { panic!("a handshake failed") };
            }
        }
        let mut flight = Vec::new();
        if !tls.is_handshaking() {
            tls.writer().write_all(b"GET /a HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
        }
        while tls.wants_write() {
            tls.write_tls(&mut flight).unwrap();
        }
        for _ in 0..=random(3) {
            let at = random(flight.len());
            match random(3) {
                0 => flight[at] ^= 1 << random(8),
                1 => flight.truncate(at),
                _ => flight.insert(at, random(256) as u8),
            }
            flight.push(0x17);
        }
        let _ = stream.write_all(&flight);
        let _ = stream.shutdown(Shutdown::Write);
        // To the end: the server closes the connection after any data.
        while matches!(stream.read(&mut received), Ok(count) if count > 0) {}
    }
    assert_eq!(kept.get("/a").text(), "a");
    assert_eq!(trust.connect(&server).get("/a").text(), "a");
}

#[test]
fn reload_loads_new_certificate_and_keeps_connections() {
    let (site, mut trust) = place();
    site.file("root/a", "a");
    let server = serve(&site, "", "");
    let mut old = trust.connect(&server);
    assert_eq!(old.get("/a").text(), "a");
    let before = Trust::certificate(&mut trust.connect(&server));
    trust.issue(&site, "own", &rcgen::PKCS_ECDSA_P256_SHA256, &["localhost"]);
    server.signal("HUP");
    server.wait_for("the new configuration is in force");
    // The processes of a pool are replaced after that.
    wait_until("the new certificate", || Trust::certificate(&mut trust.connect(&server)) != before);
    if !has_processes() {
        assert_eq!(old.get("/a").text(), "a");
    }
    // A certificate and a key that do not belong together change nothing.
    trust.issue(&site, "other", &rcgen::PKCS_ECDSA_P256_SHA256, &["localhost"]);
    fs::copy(site.path().join("other.key"), site.path().join("own.key")).unwrap();
    server.signal("HUP");
    server.wait_for("keeping the current configuration");
    assert!(server.said().contains("does not belong to the certificate"), "{}", server.said());
    assert_eq!(trust.connect(&server).get("/a").text(), "a");
}

#[test]
fn certificates_are_renewed_under_load_without_failed_request() {
    renew_certificates_under_load("");
}

/// Serves with these keys at the top.
pub fn renew_certificates_under_load(keys: &str) {
    let (site, mut trust) = place();
    site.file("root/a", "a");
    // All are trusted before the first client connects.
    for name in ["new", "other"] {
        trust.issue(&site, name, &rcgen::PKCS_ECDSA_P256_SHA256, &["localhost"]);
    }
    let replace = |name: &str, suffix: &str| {
        let file = site.path().join(name).with_extension(suffix);
        fs::rename(file, site.path().join("own").with_extension(suffix)).unwrap();
    };
    let server = serve(&site, &format!("limits.idle_timeout = \"1h\"\n{keys}"), "");
    let mut kept = trust.connect(&server);
    assert_eq!(kept.get("/a").text(), "a");
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        // Returning clients resume their sessions with a ticket, whichever certificate is in use.
        let client = |version: &'static SupportedProtocolVersion| {
            let config = ClientConfig::builder_with_provider(aws_lc_rs::default_provider().into());
            let config = config.with_protocol_versions(&[version]).unwrap();
            let config = config.with_root_certificates(trust.roots.clone()).with_no_client_auth();
            let trust = Trust { config: Some(Arc::new(config)), ..trust.clone() };
            let (server, done) = (&server, &done);
            move || {
                for number in 0.. {
                    let mut client = trust.connect(server);
                    assert_eq!(client.get("/a").text(), "a");
                    let expected = if number == 0 { HandshakeKind::Full } else { HandshakeKind::Resumed };
                    assert_eq!(client.tls().unwrap().handshake_kind(), Some(expected), "{number}, {version:?}");
                    if done.load(Ordering::Relaxed) {
                        break;
                    }
                    thread::sleep(Duration::from_millis(5));
                }
            }
        };
        for version in BOTH {
            scope.spawn(client(version));
        }
        let end = Finally(|| done.store(true, Ordering::Relaxed));
        replace("new", "pem");
        replace("new", "key");
        let new = CertificateDer::from_pem_file(site.path().join("own.pem")).unwrap();
        wait_until("the new certificate", || Trust::certificate(&mut trust.connect(&server)) == new);
        // A key that does not belong to the certificate changes nothing.
        replace("other", "key");
        server.wait_for("keeping the certificate in use");
        drop(end);
    });
    assert!(server.said().contains("does not belong to the certificate"), "{}", server.said());
    assert_eq!(trust.connect(&server).get("/a").text(), "a");
    // In a pool an idle connection may have made room for another one.
    if !is_pool() {
        assert_eq!(kept.get("/a").text(), "a");
    }
    // Only the certificates were reloaded.
    assert!(!server.said().contains("configuration"), "{}", server.said());
}

/// By OpenSSL, see `tests/golden/ocsp/README.md`.
const GOOD: &[u8] = include_bytes!("../golden/ocsp/good.der");
const EXPIRED: &[u8] = include_bytes!("../golden/ocsp/expired.der");

/// The good response, but it expires after this time. Its signature is wrong then, which the server does not check.
fn response_for(time: Duration) -> Vec<u8> {
    let end = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap() + time;
    let end = DateTime::from_unix_duration(end).unwrap().to_string().replace(['-', 'T', ':'], "");
    let at = find(GOOD, b"21261031142855Z").unwrap();
    [&GOOD[..at], end.as_bytes(), &GOOD[at + end.len()..]].concat()
}

/// Accepts every certificate, and keeps the OCSP response that came with it.
#[derive(Debug)]
struct ResponseKeeper {
    response: Mutex<Vec<u8>>,
    algorithms: WebPkiSupportedAlgorithms,
}

impl ServerCertVerifier for ResponseKeeper {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        ocsp_response: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        *self.response.lock().unwrap() = ocsp_response.to_vec();
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, certificate, signed, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signed, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

/// The OCSP response that a new client gets, empty if there is none.
fn stapled(server: &Server, version: &'static SupportedProtocolVersion) -> Vec<u8> {
    let provider = aws_lc_rs::default_provider();
    let algorithms = provider.signature_verification_algorithms;
    let keeper = Arc::new(ResponseKeeper { response: Mutex::default(), algorithms });
    let config = ClientConfig::builder_with_provider(provider.into()).with_protocol_versions(&[version]).unwrap();
    let config = config.dangerous().with_custom_certificate_verifier(Arc::clone(&keeper) as _).with_no_client_auth();
    let name = ServerName::try_from("localhost").unwrap();
    server.connect().secure(ClientConnection::new(Arc::new(config), name).unwrap()).get("/");
    keeper.response.lock().unwrap().clone()
}

#[test]
fn ocsp_response_is_sent_until_it_expires() {
    let (site, mut trust) = place();
    let mut params = rcgen::CertificateParams::new(["localhost".to_owned()]).unwrap();
    params.serial_number = Some(vec![0x8a, 0x11, 0x0c, 0x5b].into());
    trust.issue_as(&site, "own", &rcgen::PKCS_ECDSA_P256_SHA256, &params);
    let server = serve(&site, "", "ocsp = [\"own.ocsp\"]");
    server.wait_for("cannot read the OCSP response");
    let write = |response: &[u8]| fs::rename(site.file("new", response), site.path().join("own.ocsp")).unwrap();
    let wait_for = |response: &[u8]| {
        for version in BOTH {
            wait_until("the OCSP response", || stapled(&server, version) == response);
        }
    };
    wait_for(b"");
    write(GOOD);
    wait_for(GOOD);
    // One that clients would reject does not replace one that they accept.
    write(EXPIRED);
    server.wait_for("keeping the response in use");
    assert!(server.said().contains("expired on 2026-11-24"), "{}", server.said());
    wait_for(GOOD);
    // It is read after 2 to 4 s.
    write(&response_for(Duration::from_secs(10)));
    server.wait_for("own.ocsp has expired");
    wait_for(b"");
}

/// Runs this at the end of its scope, even after a panic.
struct Finally<F: Fn()>(F);

impl<F: Fn()> Drop for Finally<F> {
    fn drop(&mut self) {
        self.0();
    }
}

#[test]
fn requests_without_tls_are_redirected_where_configured() {
    let (site, trust) = place();
    site.file("root/a", "a");
    let server = serve(&site, "", "redirect_to_https = true\nhsts = \"max-age=9\"");
    let secure = trust.connect(&server).get("/a");
    assert_eq!((secure.status, secure.field("Strict-Transport-Security")), (200, Some("max-age=9")));
    let mut plain = Client::connect(plain_address(&server));
    for (method, target, host, location) in [
        ("GET", "/a", "one.example", "https://one.example/a"),
        ("HEAD", "/b%20c?d=e&f", "one.example:8080", "https://one.example/b%20c?d=e&f"),
        ("POST", "/../a", "[::1]:80", "https://[::1]/../a"),
    ] {
        let moved = plain.request(method, target, &[("Host", host)]);
        assert_eq!((moved.status, moved.field("Location")), (308, Some(location)), "{target}");
        // RFC 6797, 7.2: not without TLS.
        assert_eq!(moved.field("Strict-Transport-Security"), None);
    }
    // Without a name there is no URL to redirect to.
    plain.send("GET /a HTTP/1.0\r\n\r\n");
    assert_eq!(plain.response("GET").status, 403);
}

#[test]
fn challenge_of_ca_is_not_redirected_unless_it_is_protected() {
    let (site, trust) = place();
    site.file("root/.well-known/acme-challenge/token", "answer");
    site.file("accounts", format!("name:{}\n", bcrypt::hash("word", 4).unwrap()));
    let answers = |tables: &str, target: &str| {
        let server = serve(&site, "", &format!("redirect_to_https = true\nhsts = \"max-age=9\"\n{tables}"));
        let response = Client::connect(plain_address(&server)).request("GET", target, &[("Host", "one.example")]);
        assert_eq!(response.field("Strict-Transport-Security"), None);
        (response.status, String::from_utf8(response.body).unwrap(), trust.connect(&server).get(target).status)
    };
    let token = "/.well-known/acme-challenge/token";
    assert_eq!(answers("", token), (200, "answer".to_owned(), 200));
    assert_eq!(answers("", "/.well-known/acme-challenge/none").0, 404);
    for redirected in ["/.well-known/acme-challenge/", "/.well-known/acme-challenge/../token", "/.well-known/other"] {
        assert_eq!(answers("", redirected).0, 308, "{redirected}");
    }
    let (status, _, secure) = answers("[[site.auth]]\ndirectory = \"/\"\naccounts = \"accounts\"", token);
    assert_eq!((status, secure), (308, 401));
    let script = site.file("root/who", "#!/bin/sh\nprintf 'Status: 403\\nContent-Type: a/b\\n\\n'");
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    let app = "[[site.app]]\nmatch = \"/who\"\ncgi = true\n[[site.authorize]]\ndirectory = \"/\"\nrequest = \"/who\"";
    let (status, _, secure) = answers(app, token);
    assert_eq!((status, secure), (308, 403));
}

#[test]
fn hsts_is_sent_on_every_response_over_tls_only() {
    let (site, trust) = place();
    site.file("root/a", "0123456789");
    site.file("root/folder/b", "b");
    let script = site.file(
        "root/cgi-bin/script",
        "#!/bin/sh\nprintf 'Content-Type: a/b\\n'; [ \"$QUERY_STRING\" ] && printf 'strict-transport-security: max-age=1\\n'; echo",
    );
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    let tables = "hsts = \"max-age=9; includeSubDomains\"\n\
         [[site.route]]\nmatch = \"/old\"\nredirect = \"/a\"\n[[site.route]]\nmatch = \"/text\"\nrespond = \"text\"\n\
         [[site.app]]\nmatch = \"/cgi-bin/**\"\ncgi = true\ncache = \"1h\"";
    let server = serve(&site, one_set_of_caches(), tables);
    type Fields<'a> = &'a [(&'a str, &'a str)];
    let requests: &[(&str, &str, Fields<'_>, u16)] = &[
        ("GET", "/a", &[], 200),
        ("HEAD", "/a", &[], 200),
        ("GET", "/a", &[("If-None-Match", "*")], 304),
        ("GET", "/a", &[("Range", "bytes=1-2")], 206),
        ("GET", "/a", &[("Range", "bytes=99-")], 416),
        ("GET", "/none", &[], 404),
        ("DELETE", "/a", &[], 405),
        ("OPTIONS", "/a", &[], 204),
        ("GET", "/folder", &[], 301),
        ("GET", "/folder/", &[], 403),
        ("GET", "/old", &[], 302),
        ("GET", "/text", &[], 200),
        ("GET", "/cgi-bin/script", &[], 200),
        ("GET", "/cgi-bin/none", &[], 404),
    ];
    let check = |client: &mut Client, expected: Option<&str>| {
        // The second round is answered from the caches.
        for (method, target, fields, status) in requests.iter().chain(requests) {
            let response = client.request(method, target, fields);
            assert_eq!(response.status, *status, "{method} {target} {fields:?}");
            assert_eq!(response.field("Strict-Transport-Security"), expected, "{method} {target} {fields:?}");
        }
    };
    check(&mut trust.connect(&server), Some("max-age=9; includeSubDomains"));
    check(&mut Client::connect(plain_address(&server)), None);
    // The application's own field replaces it.
    let own = trust.connect(&server).get("/cgi-bin/script?own");
    assert_eq!(own.field("Strict-Transport-Security"), Some("max-age=1"));
}

#[test]
fn https_url_is_valid_only_with_tls() {
    let (site, trust) = place();
    site.file("root/a", "a");
    let server = serve(&site, "", "");
    assert_eq!(trust.connect(&server).get("https://localhost/a").text(), "a");
    assert_eq!(Client::connect(plain_address(&server)).get("https://localhost/a").status, 421);
}

#[test]
fn connection_ends_when_its_server_stops() {
    let (site, trust) = place();
    site.file("root/a", "a");
    let mut server = serve(&site, "", "");
    let mut client = trust.connect(&server);
    assert_eq!(client.get("/a").text(), "a");
    server.signal("TERM");
    // Idle connections are closed with close_notify.
    assert!(client.ends());
    assert!(server.wait().success());
}

#[test]
fn proxy_protocol_precedes_tls() {
    let (site, trust) = place();
    site.file("root/a.txt", "a");
    let log = site.path().join("log");
    let text = format!(
        "listen = [\"127.0.0.1:0 tls proxy\"]\ntrusted_proxies = [\"127.0.0.1\"]\n[log]\naccess = {log:?}\nflush = \"10ms\"\n\
         [[site]]\nroot = \"root\"\ncertificate = [\"own.pem\"]\nkey = [\"own.key\"]\n"
    );
    let config = site.file("amped.toml", text);
    let server = Server::start(&["--config", config.to_str().unwrap()]);
    let header = b"PROXY TCP4 192.0.2.1 192.0.2.2 5000 443\r\n";
    for version in BOTH {
        // With the hello in one packet or in several, and in pieces.
        for length in [1, 20, header.len()] {
            let client = server.connect();
            for piece in header.chunks(length) {
                client.stream().write_all(piece).unwrap();
            }
            let session = trust.session("localhost", aws_lc_rs::default_provider(), version);
            let mut client = client.secure(session);
            assert_eq!(client.get("/a.txt").text(), "a");
            assert_eq!(client.get("/a.txt").text(), "a");
        }
    }
    wait_until("the log", || fs::read_to_string(&log).unwrap_or_default().matches('\n').count() == 12);
    assert!(fs::read_to_string(&log).unwrap().lines().all(|line| line.starts_with("192.0.2.1 ")));
    // Without the header, not even a handshake; after it, TLS is required.
    let mut client = server.connect();
    client.stream().write_all(b"\x16\x03\x01\x02\0\x01\0\x01\xfc\x03\x03").unwrap();
    assert_eq!(client.read_to_end(), b"");
    let mut client = server.connect();
    client.stream().write_all(&[&header[..], b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"].concat()).unwrap();
    assert!(client.read_to_end().starts_with(b"HTTP/1.1 400 "));
    assert_eq!(server.report("proxy_protocol_refused"), 1);
}

#[test]
fn limit_by_user_counts_subjects_of_client_certificates() {
    let (site, trust) = place();
    let authority = Authority::new(&site, "clients.pem");
    site.file("root/a.txt", "a");
    let keys = "tls.client_ca = \"clients.pem\"\ntls.client_certificate = \"optional\"";
    let tables = "[[site.limit]]\nmatch = \"**\"\nkey = \"user\"\nrequests = \"1/h\"\nburst = 2";
    let server = serve(&site, keys, tables);
    let [ann, bob] = ["ann", "bob"].map(|name| authority.client(&trust, &version::TLS13, name));
    let of = |trust: &Trust| trust.connect(&server).get("/a.txt").status;
    assert_eq!([&ann, &bob, &ann, &ann, &bob, &bob].map(of), [200, 200, 200, 429, 200, 429]);
    // Without a certificate: the address, from which the others have taken nothing.
    assert_eq!([&trust; 3].map(of), [200, 200, 429]);
}
