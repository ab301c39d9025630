//! Password protection: admitted clients, the responses to other clients, and attempts to bypass it.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use argon2::password_hash::PasswordHasher;
use argon2::password_hash::phc::PasswordHash;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use super::harness::{Client, Response, Server, Site, is_pool, let_files_settle, pattern, wait_until};

/// `ann` has the password `open sesame`, `bob` has `geheim`, by argon2id.
pub fn accounts(site: &Site) -> PathBuf {
    let ann = bcrypt::hash("open sesame", 4).unwrap();
    // The cheapest parameters: these hashes protect nothing.
    let params = argon2::Params::new(64, 1, 1, None).unwrap();
    let argon = argon2::Argon2::new(argon2::Algorithm::Argon2id, argon2::Version::V0x13, params);
    let bob: PasswordHash = argon.hash_password_with_salt(b"geheim", b"some salt of ours").unwrap();
    let path = site.path().with_extension("users");
    fs::write(&path, format!("# people\nann:{ann}\nbob:{bob}\n")).unwrap();
    path
}

fn serve(site: &Site, keys: &str, tables: &str) -> Server {
    accounts(site);
    let_files_settle();
    // Unlimited password attempts.
    serve_limited(site, 0, keys, tables)
}

/// Serves the site with the existing accounts and this many attempts a minute.
fn serve_limited(site: &Site, attempts: u32, keys: &str, tables: &str) -> Server {
    let accounts = site.path().with_extension("users");
    let guard = format!("[[site.auth]]\ndirectory = '/private/'\nrealm = 'Staff'\naccounts = {accounts:?}\n");
    let root = site.path();
    let config = site.path().with_extension("toml");
    let text = format!(
        "listen = ['127.0.0.1:0']\ncache = {{ revalidate = '20ms' }}\nlimits.max_password_attempts = {attempts}\n{tables}\n\
         [[site]]\nroot = {root:?}\n{keys}\n{guard}"
    );
    fs::write(&config, text).unwrap();
    Server::start(&["--config", config.to_str().unwrap()])
}

/// Returns `Basic` and the base64 of these credentials.
pub fn basic(name: &str, password: &str) -> String {
    format!("Basic {}", STANDARD.encode(format!("{name}:{password}")))
}

fn get_as(server: &Server, target: &str, name: &str, password: &str) -> Response {
    server.connect().request("GET", target, &[("Authorization", &basic(name, password))])
}

fn tree() -> Site {
    let site = Site::new();
    site.file("index.html", "for all");
    site.file("private/page.html", "for some");
    site.file("private/page.html.gz", "packed");
    site.file("private/sub/index.html", "deeper");
    site.file("private/listed/a.txt", "a");
    site.file("private2.txt", "beside");
    site
}

struct Users<'a>(&'a Path);

impl Drop for Users<'_> {
    fn drop(&mut self) {
        let _ = fs::remove_file(self.0);
    }
}

#[test]
fn valid_password_is_accepted_and_others_get_401() {
    let site = tree();
    let server = serve(&site, "listing = true", "");
    let users = site.path().with_extension("users");
    let _gone = Users(&users);
    let good = get_as(&server, "/private/page.html", "ann", "open sesame");
    assert_eq!((good.status, good.text().as_str()), (200, "for some"));
    assert_eq!(good.field("Cache-Control"), Some("private"));
    for target in ["/private/page.html", "/private/", "/private", "/private/none", "/private/sub/", "/private/listed/"]
    {
        for response in [
            server.get(target),
            get_as(&server, target, "ann", "wrong"),
            get_as(&server, target, "carl", "open sesame"),
            get_as(&server, target, "bob", "open sesame"),
            server.connect().request("GET", target, &[("Authorization", "Bearer x")]),
            server.connect().request("GET", target, &[("Authorization", "Basic !")]),
        ] {
            assert_eq!(response.status, 401, "{target}");
            assert_eq!(response.field("WWW-Authenticate"), Some("Basic realm=\"Staff\", charset=\"UTF-8\""));
            assert!(!response.text().contains("for some") && !response.text().contains("a.txt"));
            assert_eq!(response.field("ETag"), None);
        }
    }
    // Every spelling of the path is protected.
    for target in ["/a/../private/page.html", "//private//page.html", "/%70rivate/page.html", "/private/./page.html"] {
        assert_eq!(server.get(target).status, 401, "{target}");
        assert_eq!(get_as(&server, target, "ann", "open sesame").text(), "for some", "{target}");
    }
    for (target, status) in [("/", 200), ("/index.html", 200), ("/private2.txt", 200), ("/none", 404)] {
        assert_eq!(server.get(target).status, status, "{target}");
        assert_eq!(get_as(&server, target, "ann", "wrong").status, status, "{target}");
    }
    let head = server.connect().request("HEAD", "/private/page.html", &[]);
    assert_eq!((head.status, head.body.len()), (401, 0));
    assert_eq!(server.connect().request("OPTIONS", "/private/page.html", &[]).status, 401);
    // Everything else works as usual: codings, conditions, ranges, listings.
    let mut client = server.connect();
    let pass = basic("ann", "open sesame");
    let coded = client.request("GET", "/private/page.html", &[("Authorization", &pass), ("Accept-Encoding", "gzip")]);
    assert_eq!(coded.text(), "packed");
    let tag = good.field("ETag").unwrap();
    let unchanged = client.request("GET", "/private/page.html", &[("Authorization", &pass), ("If-None-Match", tag)]);
    assert_eq!((unchanged.status, unchanged.field("Cache-Control")), (304, Some("private")));
    let part = client.request("GET", "/private/page.html", &[("Authorization", &pass), ("Range", "bytes=0-2")]);
    assert_eq!((part.status, part.text().as_str()), (206, "for"));
    let listed = client.request("GET", "/private/listed/", &[("Authorization", &pass)]);
    assert_eq!((listed.status, listed.field("Cache-Control")), (200, Some("private")));
    assert!(listed.text().contains("a.txt"));
    assert_eq!(client.request("GET", "/private/none", &[("Authorization", &pass)]).status, 404);
}

#[test]
fn exempt_addresses_need_no_password_for_their_directory_only() {
    let site = tree();
    site.file("office/page.html", "for the office");
    let script =
        site.file("office/time", "#!/bin/sh\nprintf 'Content-Type: text/plain\n\n'; cat /proc/uptime; echo $$\n");
    fs::set_permissions(script, PermissionsExt::from_mode(0o755)).unwrap();
    let who = site.file("office/who", "#!/bin/sh\nprintf 'Content-Type: text/plain\n\nuser=%s\n' \"$REMOTE_USER\"\n");
    fs::set_permissions(who, PermissionsExt::from_mode(0o755)).unwrap();
    let users = site.path().with_extension("users");
    let _gone = Users(&users);
    let keys = format!(
        "[[site.app]]\nmatch = '/office/who'\ncgi = true\n[[site.route]]\nmatch = '/office/inner'\nrewrite = '/private/page.html'\n\
         [[site.route]]\nmatch = '/private/outer'\nrewrite = '/office/page.html'\n\
         [[site.app]]\nmatch = '/office/time'\ncgi = true\ncache = '1h'\n\
         [[site.auth]]\ndirectory = '/office/'\naccounts = {users:?}\nexempt = ['10.0.0.0/8', '2001:db8::/32']"
    );
    let server = serve(&site, &keys, "trusted_proxies = ['127.0.0.1']");
    let mut client = server.connect();
    let mut ask = |target: &str, address: &str, password: &str| {
        let pass = basic("ann", password);
        let mut fields = vec![("X-Forwarded-For", address)];
        fields.extend((!password.is_empty()).then_some(("Authorization", &*pass)));
        let response = client.request("GET", target, &fields);
        (response.status, response.text(), response.field("Cache-Control").map(str::to_owned))
    };
    let office = (200, "for the office".to_owned(), Some("private".to_owned()));
    for address in ["10.1.2.3", "2001:db8::7"] {
        assert_eq!(ask("/office/page.html", address, ""), office, "{address}");
        assert_eq!(ask("/office/page.html", address, "wrong"), office, "it is not asked for");
        // The other directory has no exemption, whichever way leads there.
        assert_eq!(ask("/private/page.html", address, "").0, 401);
        assert_eq!(ask("/office/inner", address, "").0, 401);
        assert_eq!(ask("/private/outer", address, "").0, 401);
        assert_eq!(ask("/office/inner", address, "open sesame").1, "for some");
    }
    assert_eq!(ask("/office/page.html", "192.0.2.1", "").0, 401);
    assert_eq!(ask("/office/page.html", "192.0.2.1", "wrong").0, 401);
    assert_eq!(ask("/office/page.html", "192.0.2.1", "open sesame"), office);
    // An exempt client has no name, whatever it claims.
    assert_eq!(ask("/office/who", "10.1.2.3", "wrong").1, "user=\n");
    assert_eq!(ask("/office/who", "192.0.2.1", "open sesame").1, "user=ann\n");
    // Nobody else gets the response of an application to an exempt client.
    let first = ask("/office/time", "10.1.2.3", "");
    assert_eq!((first.0, first.2.as_deref()), (200, Some("private")));
    assert_ne!(ask("/office/time", "10.1.2.3", "").1, first.1);
}

/// Each of two directories has a password, and a route leads from one to the other.
#[test]
fn rewritten_request_satisfies_passwords_of_both_paths() {
    let site = tree();
    site.file("admin/page.html", "for admins");
    let admins = site.path().with_extension("admins");
    let hash = bcrypt::hash("open sesame", 4).unwrap();
    fs::write(&admins, format!("ann:{hash}\neve:{hash}\n")).unwrap();
    let keys = format!(
        "[[site.auth]]\ndirectory = '/admin/'\nrealm = 'Admins'\naccounts = {admins:?}\n\
         [[site.route]]\nmatch = '/admin/in'\nrewrite = '/private/page.html'\n\
         [[site.route]]\nmatch = '/private/in'\nrewrite = '/admin/page.html'\n\
         [[site.route]]\nmatch = '/private/same'\nrewrite = '/private/page.html'\n\
         [[site.route]]\nmatch = '/in'\nrewrite = '/admin/page.html'"
    );
    let server = serve(&site, &keys, "");
    let users = site.path().with_extension("users");
    let _gone = (Users(&users), Users(&admins));
    // `eve` is only in the admins' file, `bob` only in the staff's, and `ann` in both.
    for (target, realm, [ann, bob, eve]) in [
        ("/private/page.html", "Staff", [200, 200, 401]),
        ("/admin/page.html", "Admins", [200, 401, 200]),
        ("/admin/in", "Admins", [200, 401, 401]),
        ("/private/in", "Staff", [200, 401, 401]),
        ("/private/same", "Staff", [200, 200, 401]),
        ("/in", "Admins", [200, 401, 200]),
    ] {
        let challenge = format!("Basic realm=\"{realm}\", charset=\"UTF-8\"");
        let nobody = server.get(target);
        assert_eq!((nobody.status, nobody.field("WWW-Authenticate")), (401, Some(&*challenge)), "{target}");
        for (name, password, status) in
            [("ann", "open sesame", ann), ("bob", "geheim", bob), ("eve", "open sesame", eve), ("ann", "wrong", 401)]
        {
            let response = get_as(&server, target, name, password);
            assert_eq!(response.status, status, "{target} {name}");
            let control = response.field("Cache-Control");
            assert!(status != 200 || control == Some("private"), "{target} {name} {control:?}");
        }
    }
}

#[test]
fn argon2_password_is_accepted() {
    let site = tree();
    let server = serve(&site, "", "");
    let users = site.path().with_extension("users");
    let _gone = Users(&users);
    assert_eq!(get_as(&server, "/private/page.html", "bob", "geheim").text(), "for some");
    assert_eq!(get_as(&server, "/private/page.html", "bob", "geheim2").status, 401);
}

#[test]
fn accounts_file_change_takes_effect() {
    let site = tree();
    let server = serve(&site, "", "");
    let users = site.path().with_extension("users");
    let _gone = Users(&users);
    let status = |password: &str| get_as(&server, "/private/page.html", "ann", password).status;
    assert_eq!([status("open sesame"), status("another")], [200, 401]);
    fs::write(&users, format!("ann:{}\n", bcrypt::hash("another", 4).unwrap())).unwrap();
    wait_until("the old password to be rejected", || status("open sesame") == 401);
    assert_eq!(status("another"), 200);
    // Without the accounts file nobody is admitted, and the error log states the reason.
    fs::remove_file(&users).unwrap();
    wait_until("status 500", || status("another") == 500);
    server.wait_for("cannot read password file ");
    fs::write(&users, "ann:$y$x$y\n").unwrap();
    wait_until("a refusal", || status("another") == 401);
    server.wait_for("1 invalid entry, first on line 1");
}

/// Clients that guess passwords take no helpers or workers from other requests, and do not evict verified passwords
/// from the cache.
#[test]
fn wrong_passwords_do_not_delay_other_requests() {
    let site = tree();
    let users = site.path().with_extension("users");
    let _gone = Users(&users);
    fs::write(
        &users,
        format!("ann:{}\nbob:{}\n", bcrypt::hash("secret", 9).unwrap(), bcrypt::hash("geheim", 4).unwrap()),
    )
    .unwrap();
    for n in 0..20 {
        site.file(&format!("cold/{n}.txt"), n.to_string());
    }
    let_files_settle();
    let server = serve_limited(&site, 0, "", "");
    assert_eq!(get_as(&server, "/private/page.html", "bob", "geheim").status, 200);
    let mut strangers: Vec<Client> = (0..24)
        .map(|n| {
            let mut client = server.connect();
            client.send_request("GET", "/private/page.html", &[("Authorization", &basic("ann", &n.to_string()))]);
            client
        })
        .collect();
    for n in 0..20 {
        assert_eq!(server.get(&format!("/cold/{n}.txt")).text(), n.to_string());
    }
    assert_eq!(get_as(&server, "/private/page.html", "bob", "geheim").status, 200);
    let last_waits = strangers.iter_mut().any(|client| client.is_quiet(Duration::from_millis(1)));
    assert!(last_waits, "all passwords were verified before the files were served");
    // In a pool most clients receive 503 at once, because too many requests wait.
    let allowed: &[u16] = if is_pool() { &[401, 503] } else { &[401] };
    for client in &mut strangers {
        let response = client.response("GET");
        assert!(allowed.contains(&response.status), "{}", response.status);
        assert_eq!(response.field("Retry-After").is_some(), response.status == 503);
    }
}

#[test]
fn address_with_too_many_wrong_passwords_is_refused() {
    let site = tree();
    accounts(&site);
    let_files_settle();
    let users = site.path().with_extension("users");
    let _gone = Users(&users);
    let server = serve_limited(&site, 3, "", "");
    let status = |name: &str, password: &str| get_as(&server, "/private/page.html", name, password).status;
    // Correct passwords do not count as attempts.
    assert!((0..5).all(|_| status("ann", "open sesame") == 200));
    assert_eq!([0; 3].map(|_| status("ann", "wrong")), [401; 3]);
    let refused = get_as(&server, "/private/page.html", "ann", "wrong");
    assert_eq!((refused.status, refused.field("Retry-After")), (429, Some("60")));
    assert_eq!(status("nobody", "wrong"), 429);
    assert_eq!(status("ann", "open sesame"), 200, "a remembered password is still accepted");
    assert_eq!(server.get("/private/page.html").status, 401, "a request without a password is not counted");
}

/// Under any name, and however the accounts file came there.
#[test]
fn accounts_file_is_never_served() {
    let site = tree();
    let users = accounts(&site);
    let _gone = Users(&users);
    let_files_settle();
    let server = serve_limited(&site, 0, "", "");
    fs::hard_link(&users, site.path().join("linked.txt")).unwrap();
    fs::hard_link(&users, site.path().join("index.html.gz")).unwrap();
    assert_eq!(server.get("/linked.txt").status, 403);
    let coded = server.connect().request("GET", "/", &[("Accept-Encoding", "gzip")]);
    assert!(!coded.text().contains("ann:"), "{}", coded.text());
}

#[test]
fn log_contains_user_name() {
    let site = tree();
    let log = site.path().with_extension("log");
    for (format, good, bad) in
        [("combined", " - ann [", " - a\\x20\\x22b ["), ("json", "\"user\":\"ann\"", "\"user\":\"a \\\"b\"")]
    {
        let tables = format!("log = {{ access = {log:?}, format = '{format}', flush = '10ms' }}");
        let server = serve(&site, "", &tables);
        get_as(&server, "/private/page.html", "ann", "open sesame");
        get_as(&server, "/private/page.html", "a \"b", "x");
        get_as(&server, "/index.html", "ann", "open sesame");
        server.get("/private/page.html");
        let lines = || fs::read_to_string(&log).unwrap_or_default();
        wait_until("four log lines", || lines().lines().count() == 4);
        let text = lines();
        let with = |what: &str| text.lines().filter(|line| line.contains(what)).count();
        assert_eq!((with(good), with(bad)), (1, 1), "{text}");
        // Without a required password, or without credentials, the log line has no name.
        let anonymous = if format == "json" { 4 - with("\"user\"") } else { with(" - - [") };
        assert_eq!(anonymous, 2, "{text}");
        drop(server);
        fs::remove_file(&log).unwrap();
    }
    let _ = fs::remove_file(site.path().with_extension("users"));
}

#[test]
fn error_page_for_401_has_www_authenticate() {
    let site = tree();
    site.file("private/401.html", "who are you?");
    let server = serve(&site, "errors = { 401 = '/private/401.html' }", "");
    let users = site.path().with_extension("users");
    let _gone = Users(&users);
    let response = server.get("/private/page.html");
    assert_eq!((response.status, response.text().as_str()), (401, "who are you?"));
    assert_eq!(response.field("WWW-Authenticate"), Some("Basic realm=\"Staff\", charset=\"UTF-8\""));
}

/// The server passes a body to an application only after it has authenticated the client.
#[test]
fn body_waits_for_authentication() {
    let site = tree();
    let text = "touch ran; printf 'Content-Type: text/plain\\n\\n%s %s [%s]\\n' \"$AUTH_TYPE\" \"$REMOTE_USER\" \
                \"$HTTP_AUTHORIZATION\"; cat";
    let path = site.file("private/echo.cgi", format!("#!/bin/sh\n{text}\n"));
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    let server = serve(&site, "[[site.app]]\nmatch = '*.cgi'\ncgi = true", "");
    let users = site.path().with_extension("users");
    let _gone = Users(&users);
    let (good, bad) = (basic("ann", "open sesame"), basic("ann", "wrong"));
    let (good, bad) = (("Authorization", &*good), ("Authorization", &*bad));
    let refused = |response: &Response| {
        assert_eq!(response.status, 401, "{}", response.text());
        assert_eq!(response.field("WWW-Authenticate"), Some("Basic realm=\"Staff\", charset=\"UTF-8\""));
    };
    let (short, long) = (("Content-Length", "30"), ("Content-Length", "3000000"));
    let chunks = ("Transfer-Encoding", "chunked");
    let (expect, other) = (("Expect", "100-continue"), ("X-Other", "a"));
    for pass in [bad, other] {
        // A short body is discarded, and the connection continues after it.
        let mut client = server.connect();
        for _ in 0..2 {
            client.send_request("POST", "/private/echo.cgi", &[pass, short]);
            client.send("GET /private/page.html HTTP/1.");
            refused(&client.response("POST"));
            client.send_request("PUT", "/private/echo.cgi", &[pass, chunks]);
            client.send("5\r\nhello\r\n0\r\n\r\n");
            refused(&client.response("PUT"));
        }
        assert_eq!(client.get("/index.html").text(), "for all");
        // A client that expects 100 Continue does not receive it, and the server does not read a long body.
        for length in [short, long, chunks] {
            let mut client = server.connect();
            client.send_request("POST", "/private/echo.cgi", &[pass, length, expect]);
            let response = client.response("POST");
            refused(&response);
            assert_eq!(response.field("Connection"), Some("close"));
            assert!(client.is_closed());
        }
        let mut client = server.connect();
        client.send_request("POST", "/private/echo.cgi", &[pass, long]);
        refused(&client.response("POST"));
        let mut client = server.connect();
        client.send_request("POST", "/private/echo.cgi", &[pass, chunks]);
        client.send(format!("200000\r\n{}", "x".repeat(0x20_0000)));
        refused(&client.response("POST"));
        let mut client = server.connect();
        client.send_request("POST", "/private/echo.cgi", &[pass, chunks]);
        client.send("x\r\n");
        assert_eq!(client.response("POST").status, 400);
    }
    assert!(!site.path().join("private/ran").exists(), "the script ran without a valid password");

    // A client with valid credentials receives 100 Continue. The application receives the complete body, and the
    // client's name in place of its password.
    let mut client = server.connect();
    for size in [0, 5, 70_000, 3_000_000] {
        for expects in [false, true] {
            let (length, body) = (size.to_string(), pattern(size));
            let fields = [good, ("Content-Length", &length), if expects { expect } else { other }];
            let mut sender = Client::on(client.stream());
            let response = thread::scope(|scope| {
                sender.send_request("POST", "/private/echo.cgi", &fields);
                if expects && size > 0 {
                    assert_eq!(client.response("POST").status, 100);
                }
                scope.spawn(|| sender.send(&body));
                client.response("POST")
            });
            let head = b"Basic ann []\n";
            assert_eq!((response.status, response.field("Cache-Control")), (200, Some("private")));
            assert!(response.body.starts_with(head) && response.body[head.len()..] == body, "{size} bytes, {expects}");
        }
    }
    client.send_request("POST", "/private/echo.cgi", &[good, chunks]);
    client.send("3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n");
    assert_eq!(client.response("POST").text(), "Basic ann []\nabcde");
    assert_eq!(client.get("/index.html").text(), "for all");
}
