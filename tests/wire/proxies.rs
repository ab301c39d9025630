//! Clients behind proxies: which address a request has, in the log, for applications and for access rules, and the PROXY
//! protocol.
//!
//! The tests are clients at 127.0.0.1, which a configuration trusts or not.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::time::Duration;

use super::frames::Http2;
use super::harness::*;

const TRUSTED: &str = "trusted_proxies = ['127.0.0.1', '10.0.0.0/8']";
const UNTRUSTED: &str = "trusted_proxies = ['10.0.0.0/8']";

/// A site with a script that reports its variables, and a log.
struct Place {
    site: Site,
    logs: Site,
}

impl Place {
    fn new() -> Place {
        let site = Site::new();
        site.file("index.html", "all");
        site.file("inner/page.html", "some");
        site.file("inner/deep/page.html", "few");
        let text = "#!/bin/sh\nprintf 'Content-Type: text/plain\\n\\n'\n\
                    printf '%s|%s|%s|%s' \"$REMOTE_ADDR\" \"$REMOTE_PORT\" \"$HTTPS\" \"$SERVER_ADDR:$SERVER_PORT\"\n";
        let script = site.file("cgi-bin/who", text);
        fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
        let_files_settle();
        Place { site, logs: Site::new() }
    }

    fn log(&self) -> PathBuf {
        self.logs.path().join("log")
    }

    /// Serves it with these keys, and these in the table of the site.
    fn serve(&self, listen: &str, keys: &str, site: &str) -> Server {
        let (root, log) = (self.site.path(), self.log());
        let text = format!(
            "listen = ['{listen}']\n{keys}\n[log]\naccess = {log:?}\nformat = 'json'\nflush = '10ms'\n\
             [[site]]\nroot = {root:?}\n{site}\n[[site.app]]\nmatch = '/cgi-bin/**'\ncgi = true\n"
        );
        let config = self.site.path().with_extension("toml");
        fs::write(&config, text).unwrap();
        Server::start(&["--config", config.to_str().unwrap()])
    }

    /// The clients and proxies of the first lines of the log.
    fn logged(&self, count: usize) -> Vec<(String, Option<String>)> {
        let text = || fs::read_to_string(self.log()).unwrap_or_default();
        wait_until("the log", || text().matches('\n').count() >= count);
        let text = text();
        let line = |line: &str| {
            let line: serde_json::Value = serde_json::from_str(line).unwrap();
            let proxy = line.get("proxy").map(|proxy| proxy.as_str().unwrap().to_owned());
            (line["client"].as_str().unwrap().to_owned(), proxy)
        };
        text.lines().map(line).collect()
    }
}

fn proxied(client: &str) -> (String, Option<String>) {
    (client.to_owned(), Some("127.0.0.1".to_owned()))
}

/// What the script says of the client: address, port (if any), and whether it used https.
fn who(client: &mut Client, fields: &[(&str, &str)]) -> String {
    let response = client.request("GET", "/cgi-bin/who", fields);
    assert_eq!(response.status, 200, "{response:?}");
    let text = response.text();
    let parts: Vec<&str> = text.split('|').collect();
    format!("{} {} {}", parts[0], if parts[1].is_empty() { "-" } else { "port" }, parts[2]).trim_end().to_owned()
}

#[test]
fn trusted_proxy_names_client_of_each_request() {
    let place = Place::new();
    let server = place.serve("127.0.0.1:0", TRUSTED, "");
    // One connection, several clients.
    let mut client = server.connect();
    let own = if is_secure() { " on" } else { "" };
    let forwarded = [("X-Forwarded-For", "198.51.100.9, 192.0.2.1, 10.0.0.3"), ("Forwarded", "for=192.0.2.7")];
    assert_eq!(who(&mut client, &forwarded), format!("192.0.2.1 -{own}"));
    assert_eq!(
        who(&mut client, &[("X-Forwarded-For", "2001:db8::1"), ("X-Forwarded-Proto", "https")]),
        "2001:db8::1 - on"
    );
    assert_eq!(who(&mut client, &[]), format!("127.0.0.1 port{own}"));
    assert_eq!(who(&mut client, &[("X-Forwarded-For", "192.0.2.4"), ("X-Forwarded-Proto", "http")]), "192.0.2.4 -");
    assert_eq!(client.request("GET", "/", &[("X-Forwarded-For", "192.0.2.5")]).text(), "all");
    assert_eq!(client.request("GET", "/", &[("X-Forwarded-For", "192.0.2.6")]).text(), "all");
    let expected = [
        proxied("192.0.2.1"),
        proxied("2001:db8::1"),
        ("127.0.0.1".to_owned(), None),
        proxied("192.0.2.4"),
        proxied("192.0.2.5"),
        proxied("192.0.2.6"),
    ];
    assert_eq!(place.logged(6), expected);
}

#[test]
fn streams_of_a_connection_have_clients_of_their_own() {
    if is_secure() {
        return;
    }
    let place = Place::new();
    let server = place.serve("127.0.0.1:0", TRUSTED, "");
    let mut http2 = Http2::connect(&server);
    let addresses: Vec<String> = (1..9).map(|n| format!("192.0.2.{n}")).collect();
    let streams: Vec<_> = addresses
        .iter()
        .map(|address| (address, http2.request("GET", "/cgi-bin/who", &[("x-forwarded-for", address)])))
        .collect();
    for (address, stream) in streams {
        let text = http2.response(stream).text();
        assert!(text.starts_with(&format!("{address}||")), "{text}");
    }
    let mut logged = place.logged(8);
    logged.sort();
    assert_eq!(logged, addresses.iter().map(|address| proxied(address)).collect::<Vec<_>>());
}

#[test]
fn fields_of_untrusted_peers_change_nothing() {
    let place = Place::new();
    let all = ["", UNTRUSTED, "trusted_proxies = ['10.0.0.0/8']\nclient_address = 'forwarded'"];
    for (number, keys) in (1..).zip(all) {
        let server = place.serve("127.0.0.1:0", keys, "[[site.access]]\ndirectory = '/inner/'\nallow = ['192.0.2.1']");
        let fields = [
            ("X-Forwarded-For", "192.0.2.1"),
            ("X-Forwarded-Proto", "https"),
            ("Forwarded", "for=192.0.2.1;proto=https"),
            ("X-Real-IP", "192.0.2.1"),
        ];
        let own = if is_secure() { " on" } else { "" };
        assert_eq!(who(&mut server.connect(), &fields), format!("127.0.0.1 port{own}"));
        assert_eq!(server.connect().request("GET", "/inner/page.html", &fields).status, 403);
        // A malformed field is no error there.
        assert_eq!(server.connect().request("GET", "/", &[("Forwarded", "for=\"")]).status, 200);
        // The server is killed, with the lines that it has not written.
        place.logged(3 * number);
    }
    assert!(place.logged(9).iter().all(|line| *line == ("127.0.0.1".to_owned(), None)));
}

#[test]
fn forwarded_field_is_used_if_configured() {
    let place = Place::new();
    let server = place.serve("127.0.0.1:0", &format!("{TRUSTED}\nclient_address = 'forwarded'"), "");
    let mut client = server.connect();
    let fields =
        [("Forwarded", "for=\"[2001:db8::9]:80\";proto=https, for=10.0.0.1"), ("X-Forwarded-For", "192.0.2.9")];
    assert_eq!(who(&mut client, &fields), "2001:db8::9 - on");
    let own = if is_secure() { " on" } else { "" };
    assert_eq!(who(&mut client, &[("X-Forwarded-For", "192.0.2.9")]), format!("127.0.0.1 port{own}"));
    assert_eq!(who(&mut client, &[("Forwarded", "for=192.0.2.8, for=_hidden")]), format!("127.0.0.1 port{own}"));
    // The client must not hide the entry of the proxy.
    let malformed = client.request("GET", "/", &[("Forwarded", "for=\"192.0.2.8, for=192.0.2.1")]);
    assert_eq!(malformed.status, 400);
    assert!(malformed.text().contains("Malformed Forwarded field"), "{malformed:?}");
}

#[test]
fn scheme_of_trusted_proxy_decides_redirects_and_hsts() {
    if is_secure() {
        return;
    }
    let place = Place::new();
    let server = place.serve("127.0.0.1:0", TRUSTED, "redirect_to_https = true\nhsts = 'max-age=60'");
    let mut client = server.connect();
    let response = client.request("GET", "/a?b", &[("X-Forwarded-For", "192.0.2.1"), ("X-Forwarded-Proto", "http")]);
    assert_eq!((response.status, response.field("Location")), (308, Some("https://localhost/a?b")), "{response:?}");
    assert_eq!(response.field("Strict-Transport-Security"), None);
    let response = client.request("GET", "/", &[("X-Forwarded-Proto", "https")]);
    assert_eq!((response.status, response.field("Strict-Transport-Security")), (200, Some("max-age=60")));
    assert_eq!(client.get("/").status, 308);
}

#[test]
fn password_attempts_count_for_each_client() {
    let place = Place::new();
    let accounts = place.logs.file("users", format!("ann:{}\n", bcrypt::hash("open", 4).unwrap()));
    let guard = format!("[[site.auth]]\ndirectory = '/inner/'\naccounts = {accounts:?}");
    let keys = format!("limits.max_password_attempts = 1\n{}{TRUSTED}", one_set_of_caches());
    let server = place.serve("127.0.0.1:0", &keys, &guard);
    let status = |address: &str, credentials: &str| {
        let fields = [("X-Forwarded-For", address), ("Authorization", credentials)];
        server.connect().request("GET", "/inner/page.html", &fields).status
    };
    // `ann:wrong` and `ann:open`.
    let (wrong, right) = ("Basic YW5uOndyb25n", "Basic YW5uOm9wZW4=");
    wait_until("the limit", || status("192.0.2.1", wrong) == 429);
    assert_eq!(status("192.0.2.1", right), 429);
    assert_eq!(status("192.0.2.2", right), 200);
    assert_eq!(status("192.0.2.1", right), 429, "the verified password of another client is not an answer");
    assert_eq!(status("192.0.2.2", wrong), 401);
}

#[test]
fn backends_get_verified_part_of_the_chain() {
    let place = Place::new();
    let check = |keys: &str, fields: &[(&str, &str)], expected: &[&str]| {
        let backend = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = backend.local_addr().unwrap();
        let app = format!("[[site.app]]\nmatch = '/app/**'\nhttp = '{address}'");
        let server = place.serve("127.0.0.1:0", keys, &app);
        let mut client = server.connect();
        client.send_request("GET", "/app/", fields);
        let mut stream = backend.accept().unwrap().0;
        let mut received = Vec::new();
        while find(&received, b"\r\n\r\n").is_none() {
            let mut piece = [0; 4096];
            let count = stream.read(&mut piece).unwrap();
            assert!(count > 0);
            received.extend_from_slice(&piece[..count]);
        }
        stream.write_all(b"HTTP/1.1 204 No Content\r\n\r\n").unwrap();
        assert_eq!(client.response("GET").status, 204);
        let text = String::from_utf8(received).unwrap();
        let is_of_gateway = |line: &&str| line.contains("orwarded") && !line.contains("-Host");
        let found: Vec<&str> = text.lines().filter(is_of_gateway).collect();
        let expected: Vec<String> = expected.iter().map(|line| line.replace("HOST", "localhost")).collect();
        assert_eq!(found, expected);
    };
    let secure = if is_secure() { "https" } else { "http" };
    let chain = [("X-Forwarded-For", "198.51.100.1, 192.0.2.1, 10.0.0.1"), ("X-Forwarded-Proto", "https")];
    check(
        TRUSTED,
        &chain,
        &[
            "X-Forwarded-For: 192.0.2.1, 10.0.0.1, 127.0.0.1",
            "X-Forwarded-Proto: https",
            "Forwarded: for=192.0.2.1;host=\"HOST\";proto=https, for=10.0.0.1, for=127.0.0.1",
        ],
    );
    check(
        UNTRUSTED,
        &chain,
        &[
            "X-Forwarded-For: 127.0.0.1",
            &format!("X-Forwarded-Proto: {secure}"),
            &format!("Forwarded: for=127.0.0.1;host=\"HOST\";proto={secure}"),
        ],
    );
    check(
        &format!("{TRUSTED}\nclient_address = 'forwarded'"),
        &[("Forwarded", "for=\"[2001:db8::1]\";proto=https"), ("X-Forwarded-For", "192.0.2.9")],
        &[
            "X-Forwarded-For: 2001:db8::1, 127.0.0.1",
            "X-Forwarded-Proto: https",
            "Forwarded: for=\"[2001:db8::1]\";host=\"HOST\";proto=https, for=127.0.0.1",
        ],
    );
}

#[test]
fn access_rules_admit_by_address_before_anything_else() {
    let place = Place::new();
    let accounts = place.logs.file("users", "");
    let rules = format!(
        "[[site.access]]\ndirectory = '/inner/'\nallow = ['192.0.2.0/24', '2001:db8::/32']\ndeny = ['192.0.2.7']\n\
         [[site.access]]\ndirectory = '/inner/deep/'\nallow = ['198.51.100.1']\n\
         [[site.access]]\ndirectory = '/cgi-bin/'\ndeny = ['192.0.2.0/24']\n\
         [[site.auth]]\ndirectory = '/inner/deep/'\naccounts = {accounts:?}\n\
         [[site.route]]\nmatch = '/way/**'\nrewrite = '/inner/$1'"
    );
    let server = place.serve("127.0.0.1:0", TRUSTED, &rules);
    let mut client = server.connect();
    let mut check = |target: &str, address: &str, expected: u16| {
        for method in ["GET", "HEAD", "GET"] {
            let status = client.request(method, target, &[("X-Forwarded-For", address)]).status;
            assert_eq!(status, expected, "{method} {target} {address}");
        }
    };
    check("/", "203.0.113.1", 200);
    for target in
        ["/inner/page.html", "/inner/./page.html", "//inner/page.html", "/%69nner/page.html", "/way/page.html"]
    {
        check(target, "192.0.2.1", 200);
        check(target, "::ffff:192.0.2.1", 200);
        check(target, "2001:db8::5", 200);
        check(target, "192.0.2.7", 403);
        check(target, "203.0.113.1", 403);
        check(target, "::1", 403);
    }
    // Whether it exists is not revealed.
    for target in ["/inner", "/inner/", "/inner/none", "/inner/none/", "/way/none"] {
        check(target, "203.0.113.1", 403);
    }
    // The innermost directory decides, and comes before passwords.
    check("/inner/deep/page.html", "192.0.2.1", 403);
    check("/inner/deep/page.html", "198.51.100.1", 401);
    check("/cgi-bin/who", "192.0.2.1", 403);
    check("/cgi-bin/who", "203.0.113.1", 200);
    check("/cgi-bin/who", "127.0.0.1", 200);
    let denied = client.request("POST", "/cgi-bin/who", &[("X-Forwarded-For", "192.0.2.1"), ("Content-Length", "0")]);
    assert_eq!(denied.status, 403);
    assert!(denied.text().contains("Access denied"), "{denied:?}");
}

#[test]
fn access_rules_apply_to_peers_without_proxies() {
    if is_secure() {
        return;
    }
    let place = Place::new();
    let rules = "[[site.access]]\ndirectory = '/inner/'\nallow = ['127.0.0.0/8']\n\
                 [[site.access]]\ndirectory = '/cgi-bin/'\ndeny = ['127.0.0.1']";
    for listen in ["127.0.0.1:0", "[::]:0"] {
        let server = place.serve(listen, "", rules);
        // A client of IPv4 has a mapped address on a socket of IPv6.
        let address = SocketAddr::from(([127, 0, 0, 1], server.address.port()));
        let mut client = Client::connect(address);
        let forged = [("X-Forwarded-For", "192.0.2.1")];
        assert_eq!(client.request("GET", "/inner/page.html", &forged).status, 200);
        assert_eq!(client.request("GET", "/cgi-bin/who", &forged).status, 403);
    }
}

/// A header of version 2 for a connection from 192.0.2.1:5000 to 192.0.2.2:443, with a vector.
fn version_2() -> Vec<u8> {
    let addresses = [192, 0, 2, 1, 192, 0, 2, 2, 0x13, 0x88, 0x01, 0xbb];
    [b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x13", &addresses[..], b"\x05\0\x04\x01\x02\x03\x04"].concat()
}

const VERSION_1: &[u8] = b"PROXY TCP4 192.0.2.1 192.0.2.2 5000 443\r\n";

/// Sends these bytes, each piece for itself, and reads to the end.
fn exchange(server: &Server, pieces: &[&[u8]]) -> String {
    let mut stream = TcpStream::connect(server.address).unwrap();
    stream.set_nodelay(true).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    for (number, piece) in pieces.iter().enumerate() {
        if number > 0 {
            std::thread::sleep(Duration::from_millis(2));
        }
        // The server may have closed the connection.
        let _ = stream.write_all(piece);
    }
    let mut received = Vec::new();
    let _ = stream.read_to_end(&mut received);
    String::from_utf8_lossy(&received).into_owned()
}

const WHO: &[u8] = b"GET /cgi-bin/who HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";

#[test]
fn proxy_protocol_names_client_of_a_connection() {
    if is_secure() || is_http2() {
        return;
    }
    let place = Place::new();
    let server = place.serve("127.0.0.1:0 proxy", TRUSTED, "");
    let expected = "192.0.2.1|5000||192.0.2.2:443";
    for header in [VERSION_1.to_vec(), version_2()] {
        // At once, and byte by byte.
        let whole = [&header, WHO].concat();
        assert!(exchange(&server, &[&whole]).contains(expected));
        let mut pieces: Vec<&[u8]> = header.chunks(1).collect();
        pieces.push(WHO);
        assert!(exchange(&server, &pieces).contains(expected));
    }
    let own = "127.0.0.1|";
    let local = b"\r\n\r\n\0\r\nQUIT\n\x20\0\0\0";
    for header in [&b"PROXY UNKNOWN\r\n"[..], local] {
        let text = exchange(&server, &[header, WHO]);
        assert!(text.contains(own), "{text}");
    }
    // Its client may be a proxy too, if it is trusted.
    let request = b"GET /cgi-bin/who HTTP/1.1\r\nHost: a\r\nConnection: close\r\nX-Forwarded-For: 192.0.2.9\r\n\r\n";
    let text = exchange(&server, &[VERSION_1, request]);
    assert!(text.contains("192.0.2.1|5000|"), "{text}");
    let text = exchange(&server, &[b"PROXY TCP4 10.0.0.1 192.0.2.2 5000 443\r\n", request]);
    assert!(text.contains("192.0.2.9||"), "{text}");
    // Each process writes its own records, so their order in the file is not that of the requests.
    let mut clients: Vec<String> = place.logged(8).into_iter().map(|(client, _)| client).collect();
    clients.sort();
    let direct = ["127.0.0.1"; 2].into_iter().chain(["192.0.2.1"; 5]).chain(["192.0.2.9"]);
    assert!(clients.iter().map(String::as_str).eq(direct), "{clients:?}");
    assert_eq!(server.report("proxy_protocol_refused"), 0);
}

#[test]
fn connections_without_valid_proxy_header_are_closed_and_counted() {
    if is_secure() || is_http2() {
        return;
    }
    let place = Place::new();
    let server = place.serve("127.0.0.1:0 proxy", &format!("limits.header_timeout = '300ms'\n{TRUSTED}"), "");
    let malformed = [WHO, b"PROXY TCP4 192.0.2.1\r\n", b"\x16\x03\x01\0\0", b"\r\n\r\n\0\r\nQUIT\n\x11", &[b'P'; 200]];
    for bytes in malformed {
        assert_eq!(exchange(&server, &[bytes]), "", "{}", bytes.escape_ascii());
    }
    // Too late, or never.
    assert_eq!(exchange(&server, &[b"PROXY TCP4 192."]), "");
    assert_eq!(exchange(&server, &[b""]), "");
    assert_eq!(server.report("proxy_protocol_refused"), malformed.len() as u64 + 2);
    let untrusting = place.serve("127.0.0.1:0 proxy", UNTRUSTED, "");
    assert_eq!(exchange(&untrusting, &[VERSION_1, WHO]), "");
    assert_eq!(untrusting.report("proxy_protocol_refused"), 1);
    assert!(!place.log().exists() || fs::read_to_string(place.log()).unwrap().is_empty());
}

#[test]
fn header_on_ordinary_address_is_no_request() {
    if is_secure() || is_http2() {
        return;
    }
    let place = Place::new();
    let server = place.serve("127.0.0.1:0", TRUSTED, "");
    assert!(exchange(&server, &[VERSION_1, WHO]).starts_with("HTTP/1.1 400 "));
}
