//! TLS with curl and OpenSSL: keys in the formats that OpenSSL writes, both versions, resumption, and refusals.

use std::fs;
use std::io::Write;
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};

use super::harness::{Server, Site, pattern, wait_until};
use super::{peer, said};

/// A site with a certificate for `localhost` made by OpenSSL with these options.
fn issue(options: &[&str]) -> Site {
    let site = Site::new();
    let mut openssl = peer("openssl");
    openssl.args(["req", "-x509", "-nodes", "-days", "2", "-subj", "/CN=localhost"]);
    openssl.args(["-addext", "subjectAltName=DNS:localhost"]);
    openssl.args(["-keyout", &path(&site, "key"), "-out", &path(&site, "certificate")]);
    said(openssl.args(options));
    fs::create_dir(path(&site, "root")).unwrap();
    site
}

fn path(site: &Site, name: &str) -> String {
    site.path().join(name).to_str().unwrap().to_owned()
}

/// Serves it; `keys` are added at the top, `tables` to the site.
fn start(site: &Site, keys: &str, tables: &str) -> Server {
    let text = format!(
        "listen = [\"127.0.0.1:0 tls\"]\n{keys}\n\
         [[site]]\nroot = \"root\"\ncertificate = [\"certificate\"]\nkey = [\"key\"]\n{tables}\n"
    );
    Server::start(&["--config", site.file("amped.toml", text).to_str().unwrap()])
}

fn serve(options: &[&str]) -> (Site, Server) {
    let site = issue(options);
    let server = start(&site, "", "");
    (site, server)
}

const ECDSA: [&str; 4] = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"];

fn curl(site: &Site, server: &Server, args: &[&str]) -> Command {
    let SocketAddr::V4(address) = server.address else { panic!("the server listens on IPv4") };
    let mut command = peer("curl");
    command.args(["--disable", "--silent", "--show-error", "--noproxy", "*", "--max-time", "60", "--cacert"]);
    command
        .arg(site.path().join("certificate"))
        .args(["--resolve", &format!("localhost:{}:{}", address.port(), address.ip())]);
    command.args(args);
    command
}

fn url(server: &Server, path: &str) -> String {
    format!("https://localhost:{}{path}", server.address.port())
}

#[test]
fn curl_downloads_over_both_versions_and_kinds_of_keys() {
    for options in [&ECDSA[..], &["-newkey", "rsa:2048"], &["-newkey", "ed25519"]] {
        let (site, server) = serve(options);
        let body = pattern(3_000_000);
        site.file("root/a", &body);
        for version in [&["--tls-max", "1.2"][..], &["--tlsv1.3"]] {
            let to = site.path().join("downloaded");
            let address = url(&server, "/a");
            let mut command = curl(&site, &server, version);
            said(command.args(["--output", to.to_str().unwrap(), &address]));
            assert!(fs::read(&to).unwrap() == body, "{options:?}, {version:?}");
            // Both requests use one connection; no rest of the first response appears in the second.
            let twice = said(curl(&site, &server, version).args(["--range", "10-13", &address, &address]));
            assert_eq!(twice.as_bytes(), [&body[10..14], &body[10..14]].concat(), "{options:?}, {version:?}");
        }
        // The server offers HTTP/1.1 only, to a client that would rather have HTTP/2.
        let version = said(
            curl(&site, &server, &["--http2", "--write-out", "%{http_version}", "--output", "/dev/null"])
                .arg(url(&server, "/a")),
        );
        assert_eq!(version, "2");
    }
}

/// `openssl s_client`, whose input is ours and whose output goes to a file.
struct Openssl {
    child: Child,
    output: std::path::PathBuf,
}

impl Openssl {
    fn connect(site: &Site, server: &Server, args: &[&str]) -> Openssl {
        let output = site.path().join("openssl");
        let file = fs::File::create(&output).unwrap();
        let mut command = peer("openssl");
        command.args(["s_client", "-servername", "localhost", "-connect", &server.address.to_string(), "-CAfile"]);
        command.arg(site.path().join("certificate")).args(args);
        let errors = file.try_clone().unwrap();
        let child = command.stdin(Stdio::piped()).stdout(file).stderr(errors).spawn().unwrap();
        Openssl { child, output }
    }

    fn said(&self) -> String {
        String::from_utf8_lossy(&fs::read(&self.output).unwrap()).into_owned()
    }

    fn wait_for(&self, text: &str) {
        wait_until(text, || self.said().contains(text));
    }

    fn send(&mut self, text: &str) {
        self.child.stdin.as_mut().unwrap().write_all(text.as_bytes()).unwrap();
    }

    /// Its output, and whether it has succeeded.
    fn end(mut self) -> (String, bool) {
        drop(self.child.stdin.take());
        let status = self.child.wait().unwrap();
        (self.said(), status.success())
    }
}

#[test]
fn openssl_resumes_sessions() {
    let (site, server) = serve(&ECDSA);
    site.file("root/a", "of the file");
    resume_by_openssl(&site, [&server, &server]);
}

/// Begins a session with one server and resumes it with the other, in both versions.
fn resume_by_openssl(site: &Site, [one, other]: [&Server; 2]) {
    let session = path(site, "session");
    for version in ["-tls1_2", "-tls1_3"] {
        for (server, option, kind) in [(one, "-sess_out", "New, TLSv1"), (other, "-sess_in", "Reused, TLSv1")] {
            let mut openssl = Openssl::connect(site, server, &[version, option, &session]);
            openssl.wait_for("Verify return code: 0 (ok)");
            openssl.send("GET /a HTTP/1.1\r\nHost: localhost\r\n\r\n");
            openssl.wait_for("of the file");
            let (output, is_good) = openssl.end();
            assert!(is_good && output.contains(kind), "{version}, {option}:\n{output}");
        }
    }
}

#[test]
fn openssl_resumes_sessions_of_another_host() {
    let site = issue(&ECDSA);
    site.file("root/a", "of the file");
    site.file("secret", [7_u8; 48]);
    let keys = "tls.ticket_secret = \"secret\"";
    let (one, other) = (start(&site, keys, ""), start(&site, keys, ""));
    resume_by_openssl(&site, [&one, &other]);
}

#[test]
fn openssl_gets_ocsp_response() {
    let site = issue(&ECDSA);
    let [certificate, key, index, response] = ["certificate", "key", "index", "response"].map(|name| path(&site, name));
    // The certificate is its own authority.
    let serial = said(peer("openssl").args(["x509", "-noout", "-serial", "-in", &certificate]));
    let serial = serial.trim().trim_start_matches("serial=");
    site.file("index", format!("V\t491231235959Z\t\t{serial}\tunknown\t/CN=localhost\n"));
    let mut openssl = peer("openssl");
    openssl.args(["ocsp", "-index", &index, "-CA", &certificate, "-rsigner", &certificate, "-rkey", &key]);
    openssl.args(["-issuer", &certificate, "-cert", &certificate, "-no_nonce", "-ndays", "1", "-respout", &response]);
    said(&mut openssl);
    let server = start(&site, "", "ocsp = [\"response\"]");
    for version in ["-tls1_2", "-tls1_3"] {
        let openssl = Openssl::connect(&site, &server, &[version, "-status"]);
        openssl.wait_for("Verify return code: 0 (ok)");
        let (output, is_good) = openssl.end();
        let has = |line: &str| output.contains(line);
        assert!(is_good && has("OCSP Response Status: successful") && has("Cert Status: good"), "{version}:\n{output}");
    }
    let (site, server) = serve(&ECDSA);
    let openssl = Openssl::connect(&site, &server, &["-status"]);
    openssl.wait_for("Verify return code: 0 (ok)");
    let (output, is_good) = openssl.end();
    assert!(is_good && output.contains("OCSP response: no response sent"), "{output}");
}

#[test]
fn openssl_updates_keys_and_cannot_renegotiate() {
    let (site, server) = serve(&ECDSA);
    site.file("root/a", "of the file");
    let mut openssl = Openssl::connect(&site, &server, &["-tls1_3"]);
    openssl.wait_for("Verify return code: 0 (ok)");
    // At the start of its input this is a command: a key update, which the server must answer with its own.
    openssl.send("K\n");
    openssl.wait_for("KEYUPDATE");
    openssl.send("GET /a HTTP/1.1\r\nHost: localhost\r\n\r\n");
    openssl.wait_for("of the file");
    assert!(openssl.end().1);

    let mut openssl = Openssl::connect(&site, &server, &["-tls1_2"]);
    openssl.wait_for("Verify return code: 0 (ok)");
    openssl.send("R\n");
    openssl.wait_for("no renegotiation");
    let (output, is_good) = openssl.end();
    assert!(!is_good, "{output}");
}

#[test]
fn outdated_versions_and_ciphers_are_refused() {
    let (site, server) = serve(&["-newkey", "rsa:2048"]);
    for options in [
        &["-tls1_1", "-cipher", "ALL:@SECLEVEL=0"][..],
        // Without forward secrecy.
        &["-tls1_2", "-cipher", "AES128-GCM-SHA256"],
        // Without authenticated encryption.
        &["-tls1_2", "-cipher", "ECDHE-RSA-AES128-SHA"],
    ] {
        let (output, is_good) = Openssl::connect(&site, &server, options).end();
        assert!(!is_good && output.contains("alert"), "{options:?}:\n{output}");
    }
}

/// RFC 8446, 4.2.3: a server without a certificate for any of the client's signatures answers with `handshake_failure`.
#[test]
fn openssl_without_common_signature_is_told_so() {
    let (site, server) = serve(&ECDSA);
    for version in ["-tls1_2", "-tls1_3"] {
        let openssl = Openssl::connect(&site, &server, &[version, "-sigalgs", "rsa_pss_rsae_sha256"]);
        let (output, is_good) = openssl.end();
        assert!(!is_good && output.contains("alert handshake failure"), "{version}:\n{output}");
    }
}
