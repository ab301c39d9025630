//! Generated pages in the cache, in every architecture: listings, until their directories change, and responses of
//! applications, for the lifetime that they declare.
//!
//! The server's own counters or the application count how often a page was generated; no test measures time.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::thread;
use std::time::{Duration, SystemTime};

use super::harness::*;
use super::http_backends::{Arrived, Backend};

const EAGER: &str = "[cache]\nrevalidate = \"20ms\"";
const NEVER: &str = "[cache]\nrevalidate = \"1h\"\nmax_stale = \"1h\"";

/// Serves a site with listings, with one set of caches.
fn serve_listings(site: &Site, toml: &str) -> Server {
    let root = site.path();
    let text = format!(
        "{}listen = [\"127.0.0.1:0\"]\n[[site]]\nroot = {root:?}\nlisting = true\n{toml}\n",
        one_set_of_caches()
    );
    let config = site.path().with_extension("toml");
    fs::write(&config, text).unwrap();
    Server::start(&["--config", config.to_str().unwrap()])
}

/// Hits and misses of the cache of generated pages.
fn pages(server: &Server) -> [u64; 2] {
    ["cache_hits page", "cache_misses page"].map(|figure| server.report(figure))
}

#[test]
fn listing_is_cached_in_each_format() {
    let site = Site::new();
    site.file("folder/b", "bb");
    // Older than the other file, so that the order by time differs from the order by name.
    let a = fs::File::options().write(true).open(site.file("folder/a", "a")).unwrap();
    a.set_modified(SystemTime::now() - Duration::from_secs(60)).unwrap();
    let_files_settle();
    let server = serve_listings(&site, NEVER);
    let mut client = server.connect();
    let json = [("Accept", "application/json")];
    let forms: [(&str, &[(&str, &str)]); 4] =
        [("", &[]), ("?sort=size", &[]), ("", &json), ("?sort=time&order=desc", &json)];
    let first: Vec<_> =
        forms.iter().map(|(query, fields)| client.request("GET", &format!("/folder/{query}"), fields)).collect();
    assert_eq!(pages(&server), [0, 4]);
    for _ in 0..3 {
        for ((query, fields), first) in forms.iter().zip(&first) {
            let again = client.request("GET", &format!("/folder/{query}"), fields);
            assert_eq!((again.status, again.lasting_fields()), (200, first.lasting_fields()), "{query} {fields:?}");
            assert!(again.body == first.body, "{query} {fields:?}");
        }
    }
    assert_eq!(pages(&server), [12, 4]);
    let tags: std::collections::HashSet<_> = first.iter().map(|page| page.field("ETag").unwrap()).collect();
    assert_eq!(tags.len(), 4, "{tags:?}");
    assert!(first.iter().all(|page| page.field("Vary") == Some("Accept")));
}

#[test]
fn conditions_on_cached_listing_are_evaluated() {
    let site = Site::new();
    site.file("folder/a", "a");
    let_files_settle();
    let server = serve_listings(&site, NEVER);
    let mut client = server.connect();
    let page = client.get("/folder/");
    let (tag, modified) = (page.field("ETag").unwrap(), page.field("Last-Modified").unwrap());
    let length = page.body.len().to_string();
    let mut check = |method: &str, fields: &[(&str, &str)], status: u16| {
        let response = client.request(method, "/folder/", fields);
        assert_eq!(response.status, status, "{method} {fields:?}");
        if status == 304 {
            let field = |name: &str| response.field(name).map(str::to_owned);
            assert_eq!((field("ETag"), field("Last-Modified")), (Some(tag.into()), Some(modified.into())));
            assert_eq!((field("Vary").as_deref(), field("Content-Length")), (Some("Accept"), None));
        }
        if status == 200 {
            assert_eq!(response.field("Content-Length"), Some(&*length), "{method} {fields:?}");
            assert_eq!(response.body.is_empty(), method == "HEAD");
        }
    };
    for method in ["GET", "HEAD"] {
        check(method, &[], 200);
        check(method, &[("If-None-Match", tag)], 304);
        check(method, &[("If-None-Match", "\"other\"")], 200);
        check(method, &[("If-Modified-Since", modified)], 304);
        check(method, &[("If-Modified-Since", "Sun, 06 Nov 1994 08:49:37 GMT")], 200);
        check(method, &[("If-Match", tag)], 200);
        check(method, &[("If-Match", "\"other\"")], 412);
        check(method, &[("If-Unmodified-Since", "Sun, 06 Nov 1994 08:49:37 GMT")], 412);
        check(method, &[("Range", "bytes=0-3")], 200);
    }
    assert_eq!(pages(&server), [18, 1]);
}

#[test]
fn listing_changes_with_its_directory() {
    let site = Site::new();
    let path = site.file("folder/first", "");
    let_files_settle();
    let server = serve_listings(&site, EAGER);
    let mut client = server.connect();
    let mut seen = |shown: &[&str], hidden: &[&str]| {
        wait_until(&format!("{shown:?} without {hidden:?}"), || {
            let text = client.get("/folder/").text();
            shown.iter().all(|name| text.contains(name)) && !hidden.iter().any(|name| text.contains(name))
        });
        let_files_settle();
        // Now it is cached.
        client.get("/folder/");
    };
    seen(&["./first"], &[]);
    site.file("folder/second", "");
    seen(&["./first", "./second"], &[]);
    fs::rename(&path, path.with_file_name("third")).unwrap();
    seen(&["./second", "./third"], &["./first"]);
    // A directory's modification time does not change when a file grows; its listing is generated again after ten times
    // `revalidate`.
    site.file("folder/second", pattern(5 << 10));
    seen(&["5.0 KiB"], &[]);
    fs::remove_file(site.path().join("folder/third")).unwrap();
    seen(&["./second"], &["./third"]);
    fs::remove_dir_all(site.path().join("folder")).unwrap();
    wait_until("status 404", || client.get("/folder/").status == 404);
}

#[test]
fn disabled_page_cache_renders_each_listing() {
    let site = Site::new();
    site.file("folder/a", "a");
    let_files_settle();
    let server = serve_listings(&site, &format!("{NEVER}\n[optimise]\nmade_pages = false"));
    let mut client = server.connect();
    let first = client.get("/folder/");
    for _ in 0..4 {
        assert_eq!(client.get("/folder/").lasting_fields(), first.lasting_fields());
    }
    assert_eq!(pages(&server), [0, 5]);
}

#[test]
fn concurrent_listing_requests_share_one_result() {
    let site = Site::new();
    (0..500).for_each(|n| drop(site.file(&format!("folder/a file of the number {n}"), "")));
    let_files_settle();
    let server = serve_listings(&site, NEVER);
    let clients = if has_processes() { 1 } else { 20 };
    let bodies: Vec<Vec<u8>> = thread::scope(|scope| {
        let ask = || {
            let response = server.get("/folder/");
            assert_eq!(response.status, 200);
            response.body
        };
        let threads: Vec<_> = (0..clients).map(|_| scope.spawn(ask)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert!(bodies.iter().all(|body| *body == bodies[0] && body.len() > 500 * 60));
    let [hits, misses] = pages(&server);
    assert_eq!(hits + misses, clients);
    assert_eq!(server.get("/folder/").body, bodies[0]);
    assert_eq!(pages(&server), [hits + 1, misses], "the listing is not cached");
}

/// Writes an executable script to the scripts' directory. Each run appends a line to the file `runs`.
fn script(site: &Site, name: &str, text: &str) {
    let runs = site.path().join("runs");
    let path = site.file(&format!("cgi-bin/{name}"), format!("#!/bin/sh\necho {name} >> {}\n{text}", runs.display()));
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

/// Number of runs of a script.
fn runs(site: &Site, name: &str) -> usize {
    let runs = fs::read_to_string(site.path().join("runs")).unwrap_or_default();
    runs.lines().filter(|line| *line == name).count()
}

/// Serves a site with scripts in `/cgi-bin` and these keys, with one set of caches.
fn serve_scripts(site: &Site, keys: &str) -> Server {
    serve_app(site, &format!("match = \"/cgi-bin/**\"\ncgi = true\n{keys}"))
}

/// Serves a site with this application, with one set of caches.
fn serve_app(site: &Site, keys: &str) -> Server {
    let (workers, root) = (one_set_of_caches(), site.path());
    let text = format!("{workers}listen = [\"127.0.0.1:0\"]\n[[site]]\nroot = {root:?}\n[[site.app]]\n{keys}\n");
    let config = site.path().with_extension("toml");
    fs::write(&config, text).unwrap();
    Server::start(&["--config", config.to_str().unwrap()])
}

/// The same with the default number of workers: a pool has as many as a test has clients.
fn serve_many(site: &Site, keys: &str) -> Server {
    Server::with_site(site, &format!("[[site.app]]\nmatch = \"/cgi-bin/**\"\ncgi = true\n{keys}"))
}

const OK: &str = "printf 'Content-Type: text/plain\\n";

#[test]
fn application_page_is_cached_for_its_lifetime() {
    let site = Site::new();
    script(&site, "plain", &format!("{OK}ETag: \"t\"\\nX-Own: y\\n\\n%s' \"$QUERY_STRING $HTTP_HOST\""));
    script(&site, "brief", &format!("{OK}Cache-Control: max-age=1\\n\\nbrief'"));
    script(&site, "none", "printf 'Status: 404\\n\\nnothing'");
    for (name, field) in
        [("no-store", "Cache-Control: no-store"), ("private", "Cache-Control: private"), ("cookie", "Set-Cookie: a=b")]
    {
        script(&site, name, &format!("{OK}{field}\\n\\n'"));
    }
    script(&site, "fails", "printf 'Status: 500\\n\\n'");
    let server = serve_scripts(&site, "cache = \"1h\"");
    let mut client = server.connect();
    let first = client.get("/cgi-bin/plain?a");
    assert_eq!((first.status, first.text().starts_with("a "), first.field("Age")), (200, true, None));
    for _ in 0..3 {
        let again = client.get("/cgi-bin/plain?a");
        assert_eq!((again.status, &again.body), (200, &first.body));
        for name in ["Content-Type", "ETag", "X-Own", "Date"] {
            assert_eq!(again.field(name), first.field(name), "{name}");
        }
        assert!(again.field("Age").unwrap().parse::<u64>().unwrap() < 60);
        assert_eq!(again.field("Content-Length"), Some(&*first.body.len().to_string()));
        // A client's `no-cache` does not start the application.
        let reload =
            client.request("GET", "/cgi-bin/plain?a", &[("Cache-Control", "no-cache"), ("Pragma", "no-cache")]);
        assert_eq!(reload.body, first.body);
        let head = client.request("HEAD", "/cgi-bin/plain?a", &[]);
        assert_eq!((head.status, head.field("ETag")), (200, Some("\"t\"")));
        let known = client.request("GET", "/cgi-bin/plain?a", &[("If-None-Match", "\"t\"")]);
        assert_eq!((known.status, known.field("ETag"), known.field("Content-Type")), (304, Some("\"t\""), None));
    }
    assert_eq!(runs(&site, "plain"), 1);
    assert_eq!(pages(&server), [12, 1]);
    // Host and query are part of the cache key.
    assert!(client.get("/cgi-bin/plain?b").text().starts_with("b "));
    assert!(client.request("GET", "/cgi-bin/plain?a", &[("Host", "b.example")]).text().ends_with(" b.example"));
    assert!(client.request("GET", "/cgi-bin/plain?a", &[("Host", "b.example:81")]).text().ends_with(" b.example:81"));
    assert_eq!(runs(&site, "plain"), 4);
    // A request with a password or a cookie neither uses nor fills the cache unless the application permits it.
    for field in [("Authorization", "Basic eDp5"), ("Cookie", "a=b")] {
        client.request("GET", "/cgi-bin/plain?a", &[field]);
    }
    assert_eq!(runs(&site, "plain"), 6);
    // An unsafe method invalidates the entry.
    client.request("POST", "/cgi-bin/plain?a", &[("Content-Length", "0")]);
    client.get("/cgi-bin/plain?a");
    client.get("/cgi-bin/plain?a");
    assert_eq!(runs(&site, "plain"), 8);
    for (name, expected) in [("none", 1), ("no-store", 3), ("private", 3), ("cookie", 3), ("fails", 3)] {
        for _ in 0..3 {
            client.get(&format!("/cgi-bin/{name}"));
        }
        assert_eq!(runs(&site, name), expected, "{name}");
    }
    assert_eq!(client.get("/cgi-bin/brief").text(), "brief");
    wait_until("the page to be generated again", || {
        client.get("/cgi-bin/brief");
        runs(&site, "brief") > 1
    });
}

#[test]
fn disabled_cache_stores_no_page() {
    let site = Site::new();
    script(&site, "plain", &format!("{OK}Cache-Control: max-age=60\\n\\nplain'"));
    for (n, keys) in ["", "cache = \"1h\"\n[optimise]\nmade_pages = false"].into_iter().enumerate() {
        let server = serve_scripts(&site, keys);
        let mut client = server.connect();
        for _ in 0..3 {
            assert_eq!(client.get("/cgi-bin/plain").field("Age"), None);
        }
        assert_eq!((runs(&site, "plain"), pages(&server)), (3 * (n + 1), [0, 0]), "{keys}");
    }
}

#[test]
fn pages_vary_by_request_fields() {
    let site = Site::new();
    script(&site, "speaks", &format!("{OK}Vary: Accept-Language\\n\\n%s' \"$HTTP_ACCEPT_LANGUAGE\""));
    script(&site, "all", &format!("{OK}Vary: *\\n\\n'"));
    let server = serve_scripts(&site, "cache = \"1h\"");
    let mut client = server.connect();
    for _ in 0..3 {
        for language in ["de", "fr", "de, fr;q=0.5"] {
            let response = client.request("GET", "/cgi-bin/speaks", &[("Accept-Language", language)]);
            assert_eq!((response.text().as_str(), response.field("Vary")), (language, Some("Accept-Language")));
        }
        assert_eq!(client.get("/cgi-bin/speaks").text(), "");
        client.get("/cgi-bin/all");
    }
    assert_eq!((runs(&site, "speaks"), runs(&site, "all")), (4, 3));
}

#[test]
fn site_headers_are_added_to_cached_pages() {
    let site = Site::new();
    script(&site, "api", &format!("{OK}\\n{{}}'"));
    let cors = "[[site.cors]]\nmatch = \"**\"\norigins = [\"https://a.example\", \"https://b.example\"]";
    let headers = "[[site.headers]]\nmatch = \"**\"\nset = { X-Site = \"s\" }";
    let server = serve_scripts(&site, &format!("cache = \"1h\"\n{cors}\n{headers}"));
    let mut client = server.connect();
    for _ in 0..2 {
        for (origin, allowed) in
            [("https://a.example", true), ("https://b.example", true), ("https://c.example", false)]
        {
            let response = client.request("GET", "/cgi-bin/api", &[("Origin", origin)]);
            let expected = allowed.then_some(origin);
            assert_eq!(response.field("Access-Control-Allow-Origin"), expected, "{origin}");
            assert_eq!((response.field("Vary"), response.field("X-Site")), (Some("Origin"), Some("s")));
        }
    }
    assert_eq!((runs(&site, "api"), pages(&server)), (1, [5, 1]));
}

#[test]
fn header_rules_remove_fields_of_applications() {
    let site = Site::new();
    let fields = "X-Powered-By: kettle\\nX-Kept: 1\\nX-Own: app";
    script(&site, "api", &format!("printf 'Cache-Control: max-age=60\\n{fields}\\n\\nbody'"));
    let headers =
        "[[site.headers]]\nmatch = \"**\"\nremove = [\"x-powered-by\", \"x-own\"]\nset = { X-Own = \"site\" }";
    let server = serve_scripts(&site, &format!("cache = \"1h\"\n{headers}"));
    let mut client = server.connect();
    for _ in 0..2 {
        let response = client.get("/cgi-bin/api");
        let fields = ["X-Powered-By", "X-Kept", "X-Own"].map(|name| response.field(name));
        assert_eq!((response.status, fields), (200, [None, Some("1"), Some("site")]));
    }
}

#[test]
fn header_rules_apply_by_media_type_of_applications() {
    let site = Site::new();
    site.file("a.bin", "file");
    script(&site, "file", "printf 'X-Accel-Redirect: /a.bin\\nContent-Type: text/html\\n\\n'");
    for (name, kind) in [("html", "Text/HTML;charset=utf-8\\nETag: \"a\""), ("json", "application/json\\nETag: \"b\"")]
    {
        script(&site, name, &format!("printf 'Cache-Control: max-age=60\\nContent-Type: {kind}\\nX-Own: 1\\n\\nbody'"));
    }
    let headers = "[[site.headers]]\nmatch = \"**\"\nset = { X-Frame-Options = \"SAMEORIGIN\" }\n\
                   [[site.headers]]\nmatch = \"**\"\nmedia_type = \"text/html\"\nset = { X-Frame-Options = \"DENY\" }\n\
                   [[site.headers]]\nmatch = \"**\"\nmedia_type = \"*/json\"\nremove = [\"X-Own\"]";
    let server = serve_scripts(&site, &format!("cache = \"1h\"\n{headers}"));
    let mut client = server.connect();
    for _ in 0..2 {
        for (name, frames, own) in [
            ("html", "DENY", Some("1")),
            ("json", "SAMEORIGIN", None),
            // A file that is sent in the place of a response has the type that the application says.
            ("file", "DENY", None),
        ] {
            let response = client.get(&format!("/cgi-bin/{name}"));
            let fields = ["X-Frame-Options", "X-Own"].map(|name| response.field(name));
            assert_eq!((response.status, fields), (200, [Some(frames), own]), "{name}");
        }
        // The client keeps that of the page.
        let known = client.request("GET", "/cgi-bin/html", &[("If-None-Match", "\"a\"")]);
        assert_eq!((known.status, known.field("X-Frame-Options")), (304, None));
    }
}

#[test]
fn burst_of_requests_starts_application_once() {
    let count = if is_pool() { 24 } else { 200 };
    let site = Site::new();
    let go = site.path().join("go");
    script(&site, "slow", &format!("until [ -e {} ]; do sleep 0.01; done\n{OK}\\n%s' $$", go.display()));
    let server = serve_many(&site, "cache = \"1h\"\nmax_processes = 30");
    let bodies: Vec<String> = thread::scope(|scope| {
        let ask = || {
            let response = server.get("/cgi-bin/slow");
            assert_eq!(response.status, 200);
            response.text()
        };
        let threads: Vec<_> = (0..count).map(|_| scope.spawn(ask)).collect();
        // Each process has a cache of its own and generates the page itself.
        match has_processes() {
            true => wait_until("all scripts to run", || runs(&site, "slow") == count),
            false => wait_until("the other requests to wait", || server.report("pages_shared") == count as u64 - 1),
        }
        fs::write(&go, "").unwrap();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    if !has_processes() {
        assert!(bodies.iter().all(|body| *body == bodies[0]));
        assert_eq!(runs(&site, "slow"), 1);
    }
}

#[test]
fn uncacheable_pages_are_requested_concurrently() {
    let count = 20;
    let site = Site::new();
    let here = site.path().join("here");
    fs::create_dir(&here).unwrap();
    // Each run ends only when all of them run at the same time.
    let meets = format!("mkdir {0}/$$; until [ $(ls {0} | wc -l) -ge {count} ]; do sleep 0.01; done", here.display());
    script(&site, "not-kept", &format!("{OK}Cache-Control: no-store\\n\\nbegun '\n{meets}; echo done"));
    let server = serve_many(&site, &format!("cache = \"1h\"\nmax_processes = {count}"));
    thread::scope(|scope| {
        for _ in 0..count {
            scope.spawn(|| assert_eq!(server.get("/cgi-bin/not-kept").text(), "begun done\n"));
        }
    });
    assert_eq!(runs(&site, "not-kept"), count);
    wait_until("all scripts to exit", || server.programs().is_empty());
}

#[test]
fn oversized_page_is_not_shared() {
    let (count, size) = (6, 3_000_000);
    let site = Site::new();
    script(&site, "large", &format!("{OK}\\n'; head -c {size} /dev/zero"));
    let server = serve_many(&site, "cache = \"1h\"");
    thread::scope(|scope| {
        for _ in 0..count {
            scope.spawn(|| assert_eq!(server.get("/cgi-bin/large").body.len(), size));
        }
    });
    assert_eq!((runs(&site, "large"), server.report("cache_hits page")), (count, 0));
}

#[test]
fn leaving_stalled_or_crashed_leader_does_not_fail_followers() {
    let count = if is_pool() { 20 } else { 50 };
    let site = Site::new();
    let (go, pid) = (site.path().join("go"), site.path().join("pid"));
    let waits =
        format!("echo $$ > {0}.$$; mv {0}.$$ {0}; until [ -e {1} ]; do sleep 0.01; done", pid.display(), go.display());
    script(&site, "slow", &format!("{waits}\n{OK}\\nthe page'"));
    script(
        &site,
        "long",
        &format!("{OK}\\n'; head -c 300000 /dev/zero; echo end >> {}", site.path().join("runs").display()),
    );
    let server = serve_many(&site, "cache = \"1h\"\nmax_processes = 20");
    server.report("requests");
    let before = server.descriptors().len();
    let running = || fs::read_to_string(&pid).ok().and_then(|text| text.trim().parse::<u32>().ok());

    let mut clients: Vec<Client> = Vec::new();
    for n in 0..count {
        let mut client = server.connect();
        client.send_request("GET", "/cgi-bin/slow", &[]);
        if n == 0 {
            wait_until("the script to start", || running().is_some());
        }
        clients.push(client);
    }
    if !has_processes() {
        let waiting = count as u64 - 1;
        wait_until("the other requests to wait", || server.report("pages_shared") == waiting);
        assert_eq!(server.programs().len(), 1);
        // The client whose request generates the page disconnects, and another request takes over.
        let first = running();
        drop(clients.remove(0));
        wait_until("a second script", || running() != first && runs(&site, "slow") == 2);
        wait_until("the other requests to wait", || server.report("pages_shared") == 2 * waiting - 1);
        // The application is killed: each waiting request then starts a run of its own.
        let second = running().expect("a running script");
        assert!(Command::new("kill").args(["-9", &second.to_string()]).status().unwrap().success());
        wait_until("the other scripts to run", || runs(&site, "slow") > 3);
    }
    fs::write(&go, "").unwrap();
    let statuses: Vec<u16> = clients.iter_mut().map(|client| client.response("GET").status).collect();
    let bad = usize::from(!has_processes());
    assert_eq!(statuses.iter().filter(|status| **status == 502).count(), bad, "{statuses:?}");
    assert_eq!(statuses.iter().filter(|status| **status == 200).count(), clients.len() - bad, "{statuses:?}");
    drop(clients);
    wait_until("all scripts to exit", || server.programs().is_empty());
    wait_until("all descriptors to be closed", || server.descriptors().len() <= before);

    // The client whose request generates the page reads nothing of it: the page is completed nevertheless.
    let mut narrow = Client::connect_narrow(server.address, 4096);
    narrow.send_request("GET", "/cgi-bin/long", &[]);
    wait_until("the page to be generated", || runs(&site, "end") == 1);
    let mut other = server.connect();
    assert_eq!(other.get("/cgi-bin/long").body.len(), 300_000);
    if !has_processes() {
        assert_eq!(runs(&site, "long"), 1);
    }
    assert_eq!(narrow.response("GET").body.len(), 300_000);
}

#[test]
fn follower_requests_page_itself_after_timeout() {
    let site = Site::new();
    // The first run sends output slowly until its client disconnects, and never times out; the others end at once. Each
    // run determines which it is before it sends its head, and the client starts the others when it has that head.
    let drips = "while [ \"$first\" ]; do echo; sleep 0.1; done";
    script(&site, "drips", &format!("mkdir first && first=yes; {OK}\\n'; {drips}"));
    let server = serve_many(&site, "cache = \"1h\"\ntimeout = \"1s\"");
    let mut first = server.connect();
    first.send_request("GET", "/cgi-bin/drips", &[]);
    first.wait_for_bytes();
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| assert_eq!(server.get("/cgi-bin/drips").status, 200));
        }
    });
    // One run may have filled the cache before the other requests stopped waiting.
    assert!((2..=5).contains(&runs(&site, "drips")));
    drop(first);
    wait_until("all scripts to exit", || server.programs().is_empty());
}

#[test]
fn cached_page_still_requires_password() {
    let site = Site::new();
    let accounts = site.path().with_extension("accounts");
    let hash = bcrypt::hash("secret", 4).unwrap();
    fs::write(&accounts, format!("staff:{hash}\n")).unwrap();
    script(&site, "own", &format!("{OK}\\n'"));
    script(&site, "public", &format!("{OK}Cache-Control: public\\n\\n'"));
    let server = serve_scripts(
        &site,
        &format!(
            "cache = \"1h\"\n[[site.auth]]\ndirectory = \"/cgi-bin/\"\nrealm = \"Staff\"\naccounts = {accounts:?}"
        ),
    );
    let mut client = server.connect();
    let password = [("Authorization", "Basic c3RhZmY6c2VjcmV0")];
    for _ in 0..3 {
        for name in ["own", "public"] {
            let target = format!("/cgi-bin/{name}");
            assert_eq!(client.request("GET", &target, &password).status, 200, "{name}");
            assert_eq!(client.get(&target).status, 401, "{name}");
        }
    }
    fs::remove_file(accounts).unwrap();
    assert_eq!((runs(&site, "own"), runs(&site, "public")), (3, 1));
}

/// A backend whose pages contain the values of these request fields, and vary by them.
fn told(fields: &'static [&str]) -> Backend {
    Backend::start(move |_, peer| {
        while let Some(arrived) = peer.request() {
            let value = |wanted: &str| {
                let found = |arrived: &Arrived| {
                    let mut fields = arrived.fields.iter().filter(|(name, _)| name.eq_ignore_ascii_case(wanted));
                    fields.next().map(|(_, value)| value.clone())
                };
                found(&arrived).unwrap_or_default()
            };
            let text = fields.iter().map(|name| value(name)).collect::<Vec<_>>().join("|");
            let head = format!("Cache-Control: max-age=60\r\nVary: {}", fields.join(", "));
            peer.send(format!("HTTP/1.1 200 OK\r\n{head}\r\nContent-Length: {}\r\n\r\n{text}", text.len()));
        }
    })
}

/// Serves pages of this backend, with one set of caches.
fn serve_backend(site: &Site, backend: &Backend) -> Server {
    serve_app(site, &format!("match = \"/**\"\nhttp = \"{}\"\ncache = \"1h\"", backend.address))
}

/// The backend does not get a field that the client's Connection names, so its page must not go to
/// clients that send the field.
#[test]
fn field_that_client_has_removed_does_not_choose_page() {
    let (site, backend) = (Site::new(), told(&["Accept-Language", "Origin"]));
    let server = serve_backend(&site, &backend);
    let mut client = server.connect();
    let fields = [("Accept-Language", "de"), ("Origin", "https://a.example")];
    for (n, connection) in ["Accept-Language", "keep-alive, origin"].into_iter().enumerate() {
        let target = format!("/{n}");
        client.request("GET", &target, &[fields[0], fields[1], ("Connection", connection)]);
        let response = client.request("GET", &target, &fields);
        assert_eq!(response.text(), "de|https://a.example", "{connection}");
        // Nor does such a client get a page that was made for others.
        let own = client.request("GET", &target, &[fields[0], fields[1], ("Connection", connection)]);
        assert_eq!(own.field("Age").is_some(), is_http2(), "{connection}");
        let kept = client.request("GET", &target, &[fields[0], fields[1], ("Connection", "keep-alive")]);
        assert!(kept.field("Age").is_some(), "{connection}");
    }
}

#[test]
fn page_that_depends_on_fields_of_server_is_not_cached() {
    for fields in [&["X-Forwarded-For"][..], &["Accept", "Forwarded"], &["X-Real-IP"]] {
        let (site, backend) = (Site::new(), told(fields));
        let server = serve_backend(&site, &backend);
        for last in [1, 5, 1] {
            let from = std::net::Ipv4Addr::new(127, 0, 0, last);
            let response = Client::connect_from(server.address, from).get("/");
            assert_eq!(response.field("Age"), None, "{fields:?}");
            assert_eq!(response.text().contains(&from.to_string()), fields != ["X-Real-IP"], "{fields:?}");
        }
    }
    // The scheme and the host are part of the cache key.
    let (site, backend) = (Site::new(), told(&["X-Forwarded-Proto", "X-Forwarded-Host"]));
    let server = serve_backend(&site, &backend);
    let mut client = server.connect();
    let first = client.get("/").text();
    let again = client.get("/");
    assert_eq!((again.text(), again.field("Age").is_some()), (first, true));
}

/// The variants are scripts: each has pages of its own, and all responses have the `Vary` of the choice.
#[test]
fn negotiated_scripts_have_pages_of_their_own() {
    let site = Site::new();
    for language in ["de", "en"] {
        script(&site, &format!("doc.{language}.html"), &format!("{OK}Cache-Control: max-age=60\\n\\n{language}'"));
    }
    let rule = "[[site.negotiation]]\nmatch = \"**\"\nlanguages = [\"en\", \"de\"]";
    let server = serve_app(&site, &format!("match = \"*.html\"\ncgi = true\ncache = \"1h\"\n{rule}"));
    let mut client = server.connect();
    for _ in 0..2 {
        for language in ["de", "en", "fr, de;q=0.5", "fr"] {
            let response = client.request("GET", "/cgi-bin/doc", &[("Accept-Language", language)]);
            let expected = if language.contains("de") { "de" } else { "en" };
            assert_eq!((response.status, response.text().as_str()), (200, expected), "{language}");
            assert_eq!(response.field("Vary"), Some("Accept-Language"), "{language}");
        }
        let own = client.request("GET", "/cgi-bin/doc.de.html", &[("Accept-Language", "en")]);
        assert_eq!((own.text().as_str(), own.field("Vary")), ("de", None));
    }
    assert_eq!(["doc.de.html", "doc.en.html"].map(|name| runs(&site, name)), [3, 2]);
    // An unsafe method invalidates all of them.
    client.request("POST", "/cgi-bin/doc", &[("Accept-Language", "de"), ("Content-Length", "0")]);
    client.request("GET", "/cgi-bin/doc", &[("Accept-Language", "en")]);
    assert_eq!(["doc.de.html", "doc.en.html"].map(|name| runs(&site, name)), [4, 3]);
}
