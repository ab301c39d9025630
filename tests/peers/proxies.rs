//! Proxies that are not ours in front of the server: nginx, HAProxy and curl.

use std::fs;
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::process::{Child, Command, Stdio};

use super::harness::{Client, Server, Site, let_files_settle, wait_until};
use super::ports::free_addresses;
use super::started_nginx::Nginx;
use super::{peer, said};

/// A site with a script that reports the client, whether it used https, and the server's address.
fn site() -> Site {
    let site = Site::new();
    let text = "#!/bin/sh\nprintf 'Content-Type: text/plain\\n\\n'\n\
                printf '%s %s %s %s' \"$REMOTE_ADDR\" \"$REMOTE_PORT\" \"$REQUEST_SCHEME\" \"$SERVER_PORT\"\n";
    let script = site.file("cgi-bin/who", text);
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    let_files_settle();
    site
}

fn serve(site: &Site, listen: &str, keys: &str) -> Server {
    serve_with(site, listen, keys, "")
}

fn serve_with(site: &Site, listen: &str, keys: &str, keys_of_site: &str) -> Server {
    let root = site.path();
    let config = root.with_extension("toml");
    let text = format!(
        "listen = ['{listen}']\ntrusted_proxies = ['127.0.0.1']\n{keys}\n[[site]]\nroot = {root:?}\n{keys_of_site}\n\
         [[site.app]]\nmatch = '/cgi-bin/**'\ncgi = true\n"
    );
    fs::write(&config, text).unwrap();
    Server::start(&["--config", config.to_str().unwrap()])
}

/// A running HAProxy. Stopped when dropped.
struct Haproxy(Child);

impl Haproxy {
    /// Starts it between this address and the server. `options`: of the server's line; `frontend`: further lines.
    fn start(site: &Site, address: SocketAddr, server: SocketAddr, options: &str, frontend: &str) -> Haproxy {
        let text = format!(
            "global\n maxconn 100\ndefaults\n mode http\n timeout connect 10s\n timeout client 60s\n timeout server 60s\n\
             frontend f\n bind {address}\n{frontend}\n default_backend b\nbackend b\n server s {server} {options}\n"
        );
        let config = site.file("haproxy.cfg", text);
        let mut command = peer("haproxy");
        command.args(["-db", "-f"]).arg(config).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut haproxy = Haproxy(command.spawn().unwrap());
        wait_until("HAProxy to listen", || {
            assert!(haproxy.0.try_wait().unwrap().is_none(), "haproxy has ended");
            TcpStream::connect(address).is_ok()
        });
        haproxy
    }
}

impl Drop for Haproxy {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn curl(args: &[&str]) -> Command {
    let mut command = peer("curl");
    command.args(["--disable", "--silent", "--show-error", "--noproxy", "*", "--max-time", "20"]).args(args);
    command
}

/// What the script says to a client at this address of the loopback network: address, port, scheme, server's port.
fn who(from: &str, url: &str, args: &[&str]) -> Vec<String> {
    let text = said(curl(&["--interface", from]).args(args).arg(url));
    text.split(' ').map(str::to_owned).collect()
}

#[test]
fn haproxy_names_client_by_proxy_protocol() {
    let site = site();
    let server = serve(&site, "127.0.0.1:0 proxy", "");
    for options in [
        "send-proxy",
        "send-proxy-v2",
        "send-proxy-v2 proxy-v2-options unique-id,crc32c",
        "send-proxy check check-send-proxy",
    ] {
        let [address] = free_addresses();
        let frontend = " unique-id-format %[uuid()]";
        let _haproxy = Haproxy::start(&site, address, server.address, options, frontend);
        let url = format!("http://{address}/cgi-bin/who");
        for from in ["127.0.0.2", "127.0.0.3"] {
            let found = who(from, &url, &[]);
            assert_eq!((&*found[0], &*found[2]), (from, "http"), "{options} {found:?}");
            assert_eq!(found[3], address.port().to_string(), "{options}");
        }
    }
    assert_eq!(server.report("proxy_protocol_refused"), 0);
}

#[test]
fn haproxy_names_client_of_each_request_by_field() {
    let site = site();
    let check = |field: &str, frontend: &str, options: &str| {
        let server = serve(&site, "127.0.0.1:0", &format!("client_address = '{field}'"));
        let [address] = free_addresses();
        let _haproxy = Haproxy::start(&site, address, server.address, options, frontend);
        let url = format!("http://{address}/cgi-bin/who");
        // HAProxy sends the requests of several clients over one connection.
        for from in ["127.0.0.2", "127.0.0.3", "127.0.0.2"] {
            let forged = ["-H", "X-Forwarded-For: 192.0.2.1", "-H", "Forwarded: for=192.0.2.1"];
            let found = who(from, &url, &forged);
            assert_eq!((&*found[0], &*found[1]), (from, ""), "{found:?}");
        }
    };
    check("x-forwarded-for", " option forwardfor", "");
    check("x-forwarded-for", " option forwardfor", "proto h2");
    check("forwarded", " http-request add-header Forwarded for=%[src];proto=http", "");
}

#[test]
fn nginx_names_client_and_scheme_by_field() {
    let site = site();
    let server = serve(&site, "127.0.0.1:0", "");
    let [plain, secure] = free_addresses();
    let folder = tempfile::tempdir().unwrap();
    let own = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    fs::write(folder.path().join("a.pem"), own.cert.pem()).unwrap();
    fs::write(folder.path().join("a.key"), own.signing_key.serialize_pem()).unwrap();
    let path = folder.path().display().to_string();
    let servers = format!(
        "upstream amped {{ server {}; keepalive 4; }}\n\
         server {{ listen {plain}; listen {secure} ssl; ssl_certificate {path}/a.pem; ssl_certificate_key {path}/a.key;\n\
         location / {{ proxy_pass http://amped; proxy_http_version 1.1; proxy_set_header Connection '';\n\
         proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for; proxy_set_header X-Forwarded-Proto $scheme; }} }}",
        server.address
    );
    let _nginx = Nginx::start(folder, plain, &servers);
    for from in ["127.0.0.2", "127.0.0.3", "127.0.0.2"] {
        let forged = ["--insecure", "-H", "X-Forwarded-For: 192.0.2.1", "-H", "X-Forwarded-Proto: https"];
        let found = who(from, &format!("http://{plain}/cgi-bin/who"), &forged);
        assert_eq!((&*found[0], &*found[2]), (from, "http"), "{found:?}");
        let found = who(from, &format!("https://{secure}/cgi-bin/who"), &forged);
        assert_eq!((&*found[0], &*found[2]), (from, "https"), "{found:?}");
    }
}

#[test]
fn curl_names_itself_by_proxy_protocol() {
    let site = site();
    let server = serve(&site, "127.0.0.1:0 proxy", "");
    let text = said(&mut curl(&["--haproxy-protocol", &format!("http://{}/cgi-bin/who", server.address)]));
    assert!(text.starts_with("127.0.0.1 "), "{text}");
    let (own, keys) = (rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap(), Site::new());
    let (chain, key) = (keys.file("a.pem", own.cert.pem()), keys.file("a.key", own.signing_key.serialize_pem()));
    let tls = serve_with(&site, "127.0.0.1:0 tls proxy", "", &format!("certificate = [{chain:?}]\nkey = [{key:?}]"));
    let url = format!("https://{}/cgi-bin/who", tls.address);
    for version in ["--http2", "--http1.1"] {
        let text = said(&mut curl(&["--insecure", "--haproxy-protocol", version, &url]));
        assert!(text.starts_with("127.0.0.1 ") && text.contains(" https "), "{text}");
    }
    let refused = curl(&[&format!("http://{}/cgi-bin/who", server.address)]).output().unwrap();
    assert!(!refused.status.success());
    assert_eq!(server.report("proxy_protocol_refused"), 1);
    // Without a header, the connection ends without a response.
    let mut client = Client::connect(server.address);
    client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!(client.read_to_end(), b"");
}
