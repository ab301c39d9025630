//! Limits of requests by client address or user: bursts, delays, refusals, and what shares a bucket.
//!
//! Rates are so low that no test sees a bucket refill, or so high that the time of a delay can only be too long. Clients
//! are those that a trusted proxy, the test, names.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};

use super::auth::{accounts, basic};
use super::frames::Http2;
use super::harness::*;

/// A site with a file in each of two directories, and a script.
fn site() -> Site {
    let site = Site::new();
    site.file("login/form.html", "form");
    site.file("other/page.html", "page");
    let script = site.file("cgi-bin/app", "#!/bin/sh\nprintf 'Content-Type: text/plain\\n\\n%s' \"$PATH_INFO\"\n");
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    let_files_settle();
    site
}

fn configuration_of(site: &Site, tables: &str) -> String {
    let root = site.path();
    format!("listen = ['127.0.0.1:0']\ntrusted_proxies = ['127.0.0.1']\n[[site]]\nroot = {root:?}\n{tables}")
}

fn serve(site: &Site, tables: &str) -> Server {
    let config = site.path().with_extension("toml");
    fs::write(&config, configuration_of(site, tables)).unwrap();
    Server::start(&["--config", config.to_str().unwrap()])
}

/// The status of a request of this client, over a connection of its own, which another worker may have.
fn status(server: &Server, target: &str, client: &str) -> u16 {
    server.connect().request("GET", target, &[("X-Forwarded-For", client)]).status
}

#[test]
fn burst_is_served_and_further_requests_get_429_with_retry_after() {
    let site = site();
    let server = serve(&site, "[[site.limit]]\nmatch = '/login/**'\nrequests = '1/h'\nburst = 3");
    let of_one = |target: &str| status(&server, target, "192.0.2.1");
    assert_eq!([(); 5].map(|()| of_one("/login/form.html")), [200, 200, 200, 429, 429]);
    // All paths of the limit share a bucket, under every spelling, whether they exist or not.
    for target in ["/login/none", "/login/./form.html", "//login/form.html", "/%6cogin/form.html", "/login/"] {
        assert_eq!(of_one(target), 429, "{target}");
    }
    assert_eq!([(); 5].map(|()| of_one("/other/page.html")), [200; 5]);
    let mut client = server.connect();
    let mut refused = |method: &str| client.request(method, "/login/form.html", &[("X-Forwarded-For", "192.0.2.1")]);
    for method in ["GET", "HEAD", "POST", "GET"] {
        let response = refused(method);
        let seconds: u64 = response.field("Retry-After").unwrap().parse().unwrap();
        assert!(response.status == 429 && (1800..=3600).contains(&seconds), "{response:?}");
        assert_eq!(response.text().contains("Too many requests from your address"), method != "HEAD");
    }
    assert_eq!(server.report("requests_limited"), 2 + 5 + 4);
    assert_eq!(server.report("requests_delayed"), 0);
    // One line in the error log, whichever loops and processes refuse.
    assert_eq!(server.said().matches("for /login/** exceed 1/h and get 429").count(), 1, "{}", server.said());
}

#[test]
fn clients_have_buckets_of_their_own_and_ipv6_by_64_bits() {
    let site = site();
    let server = serve(&site, "[[site.limit]]\nmatch = '/login/**'\nrequests = '1/h'");
    let check =
        |client: &str, expected: u16| assert_eq!(status(&server, "/login/form.html", client), expected, "{client}");
    check("192.0.2.1", 200);
    check("192.0.2.1", 429);
    check("::ffff:192.0.2.1", 429);
    check("192.0.2.2", 200);
    check("2001:db8::1", 200);
    check("2001:db8::ffff:1:2:3", 429);
    check("2001:db8:0:1::1", 200);
    // The proxy itself, if it names nobody.
    assert_eq!([(); 2].map(|()| server.get("/login/form.html").status), [200, 429]);
}

#[test]
fn first_matching_limit_applies_also_to_rewritten_paths_and_scripts() {
    let site = site();
    let tables = "[[site.limit]]\nmatch = '/cgi-bin/app'\nrequests = '1/h'\n\
                  [[site.limit]]\nmatch = '/login/**'\nrequests = '1/h'\nburst = 2\n\
                  [[site.limit]]\nmatch = '**'\nrequests = '1/h'\nburst = 5\n\
                  [[site.route]]\nmatch = '/way/**'\nrewrite = '/login/$1'\n\
                  [[site.app]]\nmatch = '/cgi-bin/**'\ncgi = true\n";
    let server = serve(&site, tables);
    let of = |client: &str, targets: &[&str]| -> Vec<u16> {
        targets.iter().map(|target| status(&server, target, client)).collect()
    };
    assert_eq!(of("192.0.2.1", &["/cgi-bin/app/a", "/cgi-bin/app", "/cgi-bin/app/b/c"]), [200, 429, 429]);
    assert_eq!(of("192.0.2.1", &["/login/form.html"; 3]), [200, 200, 429]);
    assert_eq!(of("192.0.2.1", &["/other/page.html"; 6]), [200, 200, 200, 200, 200, 429]);
    // `**` matches the requested path before any limit is looked up for the rewritten one.
    assert_eq!(of("192.0.2.2", &["/way/form.html"; 6]), [200, 200, 200, 200, 200, 429]);
    assert_eq!(of("192.0.2.2", &["/login/form.html"; 3]), [200, 200, 429]);
    let server = serve(&site, &tables.replace("match = '**'", "match = '/other/**'"));
    let of_one = |target: &str| status(&server, target, "192.0.2.1");
    assert_eq!(["/way/form.html", "/login/form.html", "/way/form.html"].map(of_one), [200, 200, 429]);
}

#[test]
fn refused_request_with_body_leaves_connection_usable() {
    let site = site();
    let tables = "[[site.limit]]\nmatch = '/cgi-bin/**'\nrequests = '1/h'\n\
                  [[site.app]]\nmatch = '/cgi-bin/**'\ncgi = true\n";
    let server = serve(&site, tables);
    let mut client = server.connect();
    for expected in [200, 429, 429] {
        client.send("POST /cgi-bin/app HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n\r\nhello");
        assert_eq!(client.response("POST").status, expected);
    }
    assert_eq!(client.get("/other/page.html").text(), "page");
}

#[test]
fn excess_waits_for_the_rate_and_is_refused_beyond_the_maximum_delay() {
    let site = site();
    let tables = "[[site.limit]]\nmatch = '/login/**'\nrequests = '4/s'\nmax_delay = '1h'\n\
                  [[site.limit]]\nmatch = '/other/**'\nrequests = '1/h'\nmax_delay = '59m'\n";
    let server = serve(&site, tables);
    let begin = Instant::now();
    let mut clients: Vec<Client> = (0..6).map(|_| server.connect()).collect();
    for client in &mut clients {
        client.send_request("GET", "/login/form.html", &[("X-Forwarded-For", "192.0.2.1")]);
    }
    // Another client is not delayed by them.
    assert_eq!(status(&server, "/login/form.html", "192.0.2.2"), 200);
    assert!(clients.iter_mut().all(|client| client.response("GET").text() == "form"));
    // One at once, and five a quarter of a second apart.
    assert!(begin.elapsed() >= Duration::from_millis(1250), "{:?}", begin.elapsed());
    assert!((1..=5).contains(&server.report("requests_delayed")));
    let of_other = |client: &str| status(&server, "/other/page.html", client);
    assert_eq!(["192.0.2.1", "192.0.2.1", "192.0.2.3"].map(of_other), [200, 429, 200]);
    assert_eq!(server.report("requests_limited"), 1);
}

#[test]
fn pipelined_requests_are_delayed_in_order() {
    let site = site();
    let server = serve(&site, "[[site.limit]]\nmatch = '/login/**'\nrequests = '10/s'\nmax_delay = '1h'");
    let begin = Instant::now();
    let mut client = server.connect();
    for target in ["/other/page.html", "/login/form.html", "/login/form.html", "/other/page.html", "/login/form.html"] {
        client.send_request("GET", target, &[]);
    }
    assert_eq!([(); 5].map(|()| client.response("GET").text()), ["page", "form", "form", "page", "form"]);
    assert!(begin.elapsed() >= Duration::from_millis(200), "{:?}", begin.elapsed());
}

#[test]
fn client_that_leaves_while_it_is_delayed_holds_nothing() {
    let site = site();
    let server = serve(&site, "[[site.limit]]\nmatch = '/login/**'\nrequests = '1/h'\nmax_delay = '10h'");
    assert_eq!(server.get("/login/form.html").status, 200);
    let mut client = server.connect();
    client.send_request("GET", "/login/form.html", &[]);
    wait_until("the delay", || server.report("requests_delayed") == 1);
    assert_eq!(server.report("connections"), 1);
    drop(client);
    wait_until("the end of the connection", || server.report("connections") == 0);
}

#[test]
fn streams_of_http2_are_limited_and_delayed_side_by_side() {
    if is_secure() {
        return;
    }
    let site = site();
    let tables = "[[site.limit]]\nmatch = '/login/**'\nrequests = '4/s'\nmax_delay = '1h'\n\
                  [[site.limit]]\nmatch = '/cgi-bin/**'\nrequests = '1/h'\nburst = 2\n\
                  [[site.app]]\nmatch = '/cgi-bin/**'\ncgi = true\n";
    let server = serve(&site, tables);
    let mut http2 = Http2::connect(&server);
    let begin = Instant::now();
    let delayed: Vec<_> = (0..6).map(|_| http2.request("GET", "/login/form.html", &[])).collect();
    // Streams that no limit concerns do not wait for them.
    assert_eq!(http2.get("/other/page.html").text(), "page");
    for stream in delayed {
        assert_eq!(http2.response(stream).text(), "form");
    }
    assert!(begin.elapsed() >= Duration::from_millis(1250), "{:?}", begin.elapsed());
    let statuses = [(); 3].map(|()| {
        let stream = http2.post("/cgi-bin/app", &[], b"hello", 5);
        http2.response(stream).status
    });
    assert_eq!(statuses, [200, 200, 429]);
    let stream = http2.request("GET", "/cgi-bin/app", &[("x-forwarded-for", "192.0.2.1")]);
    assert_eq!(http2.response(stream).status, 200);
    let stream = http2.request("GET", "/cgi-bin/app", &[]);
    assert!(http2.response(stream).field("Retry-After").is_some_and(|seconds| seconds.parse::<u64>().unwrap() > 1));
}

#[test]
fn reload_keeps_buckets_unless_limits_change() {
    // The configuration would be another one.
    if is_secure() {
        return;
    }
    let site = site();
    let limit = "[[site.limit]]\nmatch = '/login/**'\nrequests = '1/h'\n";
    let server = serve(&site, limit);
    let config = site.path().with_extension("toml");
    let of_one = |target: &str| status(&server, target, "192.0.2.1");
    assert_eq!([(); 2].map(|()| of_one("/login/form.html")), [200, 429]);
    let reload = |tables: &str| {
        fs::write(&config, configuration_of(&site, tables)).unwrap();
        server.signal("HUP");
    };
    let mark = "[[site.route]]\nmatch = '/mark'\nrespond = 'new'\n";
    reload(&format!("{limit}{mark}"));
    wait_until("the configuration", || [(); 40].iter().all(|()| of_one("/mark") == 200));
    assert_eq!(of_one("/login/form.html"), 429);
    reload(&limit.replace("1/h", "2/h"));
    wait_until("the other limit", || of_one("/login/form.html") == 200);
    reload("");
    wait_until("no limit", || [(); 40].iter().all(|()| of_one("/login/form.html") == 200));
}

/// A site with a script that waits until [`Waiting::let_go`], and a large file.
struct Waiting(Site);

impl Waiting {
    fn new() -> Waiting {
        let site = site();
        let text = "#!/bin/sh\ncd \"$(dirname \"$0\")\"/..\n: > \"begun.$$\"\n\
                    while [ ! -e go ]; do sleep 0.02; done\nprintf 'Content-Type: text/plain\\n\\ndone'\n";
        let script = site.file("cgi-bin/wait", text);
        fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
        fs::File::create(site.path().join("other/huge")).unwrap().set_len(64 << 20).unwrap();
        let_files_settle();
        Waiting(site)
    }

    fn serve(&self, concurrent: usize) -> Server {
        let tables = format!(
            "[[site.limit]]\nmatch = '/cgi-bin/**'\nconcurrent = {concurrent}\n\
             [[site.limit]]\nmatch = '/other/**'\nconcurrent = {concurrent}\n\
             [[site.app]]\nmatch = '/cgi-bin/**'\ncgi = true\n"
        );
        serve(&self.0, &tables)
    }

    fn wait_for_begun(&self, count: usize) {
        let is_begun = |entry: &fs::DirEntry| entry.file_name().to_string_lossy().starts_with("begun.");
        let begun = || fs::read_dir(self.0.path()).unwrap().flatten().filter(is_begun).count();
        wait_until("the scripts", || begun() == count);
    }

    fn let_go(&self) {
        self.0.file("go", "");
    }
}

#[test]
fn requests_under_way_are_limited_and_further_ones_get_429() {
    let site = Waiting::new();
    let server = site.serve(2);
    let begin = |address: &str| {
        let mut client = server.connect();
        client.send_request("GET", "/cgi-bin/wait", &[("X-Forwarded-For", address)]);
        client
    };
    let mut clients = [begin("192.0.2.1"), begin("192.0.2.1")];
    site.wait_for_begun(2);
    let refused = server.connect().request("GET", "/cgi-bin/wait", &[("X-Forwarded-For", "192.0.2.1")]);
    assert_eq!((refused.status, refused.field("Retry-After")), (429, Some("1")));
    // Other clients, and other limits, count for themselves.
    assert_eq!(status(&server, "/other/page.html", "192.0.2.1"), 200);
    let mut other = begin("192.0.2.2");
    site.wait_for_begun(3);
    assert_eq!(status(&server, "/cgi-bin/wait", "192.0.2.1"), 429);
    site.let_go();
    assert!(clients.iter_mut().chain([&mut other]).all(|client| client.response("GET").text() == "done"));
    wait_until("the end of the requests", || status(&server, "/cgi-bin/wait", "192.0.2.1") == 200);
    assert!(server.report("requests_limited") >= 2);
    assert_eq!(server.said().matches("for /cgi-bin/** exceed 2 at a time").count(), 1, "{}", server.said());
}

#[test]
fn response_counts_until_it_is_sent_or_its_client_leaves() {
    let site = Waiting::new();
    let server = site.serve(1);
    let mut reader = Client::connect_narrow(server.address, 4096);
    reader.send_request("GET", "/other/huge", &[]);
    reader.wait_for_bytes();
    assert_eq!(server.get("/other/page.html").status, 429);
    drop(reader);
    wait_until("the end of the response", || server.get("/other/page.html").status == 200);
    // So does one whose application has not responded.
    let mut client = server.connect();
    client.send_request("GET", "/cgi-bin/wait", &[]);
    site.wait_for_begun(1);
    assert_eq!(server.get("/cgi-bin/wait").status, 429);
    drop(client);
    site.let_go();
    wait_until("the end of the request", || server.get("/cgi-bin/wait").status == 200);
}

#[test]
fn pipelined_requests_are_under_way_one_after_another() {
    let site = Waiting::new();
    let server = site.serve(1);
    let mut client = server.connect();
    if is_http2() {
        return;
    }
    for _ in 0..5 {
        client.send_request("GET", "/other/page.html", &[]);
    }
    assert_eq!([(); 5].map(|()| client.response("GET").text()), ["page"; 5]);
}

#[test]
fn streams_of_http2_count_each() {
    if is_secure() {
        return;
    }
    let site = Waiting::new();
    let server = site.serve(3);
    let mut http2 = Http2::connect(&server);
    let streams: Vec<_> = (0..3).map(|_| http2.request("GET", "/cgi-bin/wait", &[])).collect();
    site.wait_for_begun(3);
    let refused: Vec<_> = (0..2).map(|_| http2.request("GET", "/cgi-bin/wait", &[])).collect();
    assert!(refused.into_iter().all(|stream| http2.response(stream).status == 429));
    assert_eq!(http2.get("/other/page.html").text(), "page");
    site.let_go();
    assert!(streams.into_iter().all(|stream| http2.response(stream).text() == "done"));
    wait_until("the end of the requests", || http2.get("/cgi-bin/wait").text() == "done");
}

/// Tables for a directory with passwords and a limit by user.
fn by_user(site: &Site, directory: &str, limit: &str) -> String {
    format!(
        "[[site.auth]]\ndirectory = '{directory}'\naccounts = {:?}\n\
         [[site.limit]]\nmatch = '{directory}**'\nkey = 'user'\n{limit}\n\
         [[site.app]]\nmatch = '/cgi-bin/**'\ncgi = true\n",
        accounts(site)
    )
}

fn request_as(server: &Server, target: &str, address: &str, (name, password): (&str, &str)) -> Response {
    let fields = [("X-Forwarded-For", address), ("Authorization", &*basic(name, password))];
    server.connect().request("GET", target, &fields)
}

const ANN: (&str, &str) = ("ann", "open sesame");
const BOB: (&str, &str) = ("bob", "geheim");

#[test]
fn limit_by_user_counts_verified_user_at_all_addresses() {
    let site = site();
    let server = serve(&site, &by_user(&site, "/login/", "requests = '1/h'\nburst = 3"));
    let of = |address: &str, user| request_as(&server, "/login/form.html", address, user).status;
    // Wrong passwords take from the address, not from the user that they name.
    assert_eq!([(); 5].map(|()| of("192.0.2.9", ("ann", "wrong"))), [401, 401, 401, 429, 429]);
    let addresses = ["192.0.2.1", "192.0.2.2", "2001:db8::1", "192.0.2.3"];
    assert_eq!(addresses.map(|address| of(address, ANN)), [200, 200, 200, 429]);
    let refused = request_as(&server, "/login/form.html", "192.0.2.4", ANN);
    assert!(refused.text().contains("Too many requests from your account"), "{refused:?}");
    assert!(refused.field("Retry-After").is_some_and(|seconds| seconds.parse::<u64>().unwrap() > 1800));
    // Users that share an address do not share a bucket, and take nothing from that of the address.
    assert_eq!([(); 4].map(|()| of("192.0.2.1", BOB)), [200, 200, 200, 429]);
    let without = |address: &str| status(&server, "/login/form.html", address);
    assert_eq!([(); 4].map(|()| without("192.0.2.1")), [401, 401, 401, 429]);
    assert_eq!(server.report("requests_limited"), 2 + 2 + 1 + 1);
    // Unprotected paths have no user, whatever credentials a client sends.
    let server = serve(&site, "[[site.limit]]\nmatch = '/other/**'\nkey = 'user'\nrequests = '1/h'");
    let of = |address: &str, user| request_as(&server, "/other/page.html", address, user).status;
    assert_eq!([of("192.0.2.1", ANN), of("192.0.2.1", BOB), of("192.0.2.2", ANN)], [200, 429, 200]);
}

#[test]
fn limit_by_user_delays_and_counts_requests_under_way() {
    let site = Waiting::new();
    let tables = by_user(&site.0, "/login/", "requests = '4/s'\nmax_delay = '1h'");
    let server = serve(&site.0, &tables);
    let begin = Instant::now();
    for number in 1..=4 {
        let response = request_as(&server, "/login/form.html", &format!("192.0.2.{number}"), ANN);
        assert_eq!(response.text(), "form");
    }
    assert!(begin.elapsed() >= Duration::from_millis(750), "{:?}", begin.elapsed());
    let server = serve(&site.0, &by_user(&site.0, "/cgi-bin/", "concurrent = 1"));
    let mut first = server.connect();
    let fields = [("X-Forwarded-For", "192.0.2.1"), ("Authorization", &*basic(ANN.0, ANN.1))];
    first.send_request("GET", "/cgi-bin/wait", &fields);
    site.wait_for_begun(1);
    let of = |address: &str, user| request_as(&server, "/cgi-bin/wait", address, user).status;
    assert_eq!(of("192.0.2.2", ANN), 429);
    site.let_go();
    assert_eq!(of("192.0.2.1", BOB), 200);
    assert_eq!(first.response("GET").text(), "done");
    wait_until("the end of the request", || of("192.0.2.2", ANN) == 200);
}

#[test]
fn streams_of_http2_are_limited_by_user_and_bodies_stay_with_their_requests() {
    if is_secure() {
        return;
    }
    let site = site();
    let server = serve(&site, &by_user(&site, "/cgi-bin/", "requests = '1/h'\nburst = 2"));
    let mut http2 = Http2::connect(&server);
    let (ann, bob) = (basic(ANN.0, ANN.1), basic(BOB.0, BOB.1));
    let mut status = |credentials: &str| {
        let stream = http2.post("/cgi-bin/app/x", &[("authorization", credentials)], b"hello", 5);
        http2.response(stream).status
    };
    assert_eq!([&ann, &ann, &ann, &bob, &bob, &bob].map(|user| status(user)), [200, 200, 429, 200, 200, 429]);
    // Of HTTP/1, the connection stays usable.
    let mut client = server.connect();
    for expected in [429, 429] {
        let fields = format!("Host: localhost\r\nAuthorization: {ann}\r\nContent-Length: 5\r\n\r\nhello");
        client.send(format!("POST /cgi-bin/app HTTP/1.1\r\n{fields}"));
        assert_eq!(client.response("POST").status, expected);
    }
    assert_eq!(client.get("/other/page.html").text(), "page");
}
