//! Rewrites, redirects, and fallbacks for missing files.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};

use super::harness::{Server, Site, is_secure, let_files_settle, wait_until};

fn serve(site: &Site, tables: &str) -> Server {
    let_files_settle();
    let root = site.path();
    let config = site.path().with_extension("toml");
    let text =
        format!("listen = ['127.0.0.1:0']\ncache = {{ revalidate = '20ms' }}\n[[site]]\nroot = {root:?}\n{tables}");
    fs::write(&config, text).unwrap();
    Server::start(&["--config", config.to_str().unwrap()])
}

#[test]
fn redirects_send_location() {
    let site = Site::new();
    site.file("old/there.html", "still here");
    let routes = "[[site.route]]\nmatch = '/old/**'\nredirect = '/new/$1'\nstatus = 301\n\
                  [[site.route]]\nmatch = '/old/**'\nredirect = '/never'\n\
                  [[site.route]]\nmatch = '/out/*/**'\nredirect = 'https://b.example/$2?from=$1'\n\
                  [[site.route]]\nmatch = '/x**'\nredirect = '/$1'\nstatus = 308\n";
    let server = serve(&site, routes);
    let mut client = server.connect();
    let mut check = |target: &str, status: u16, location: Option<&str>| {
        let response = client.get(target);
        assert_eq!((response.status, response.field("Location")), (status, location), "{target}");
    };
    check("/old/a%20b/c?d=e", 301, Some("/new/a%20b/c?d=e"));
    check("/old/there.html", 301, Some("/new/there.html"));
    check("/old/", 301, Some("/new/"));
    check("/old", 301, Some("/old/"));
    check("/older", 404, None);
    check("/out/1/2/3?x", 302, Some("https://b.example/2/3?from=1"));
    // No request may choose the host of a redirect, or end the header line.
    check("/x/evil.example/", 308, Some("/evil.example/"));
    check("//x//evil.example", 308, Some("/evil.example"));
    check("/old/a%0d%0aSet-Cookie:%20a=b", 301, Some("/new/a%0D%0ASet-Cookie:%20a=b"));
    let head = client.request("HEAD", "/old/a", &[]);
    assert_eq!((head.status, head.field("Location"), head.body.len()), (301, Some("/new/a"), 0));
    // RFC 9110, 15.4.8: a redirect applies to every method; the body is read first.
    client.send_request("POST", "/old/a", &[("Content-Length", "5")]);
    client.send("hello");
    assert_eq!(client.response("POST").field("Location"), Some("/new/a"));
    assert_eq!(client.get("/old/").status, 301);
}

#[test]
fn redirects_and_rewrites_keep_or_drop_query() {
    let site = Site::new();
    let show = site.file("show.cgi", "#!/bin/sh\nprintf 'Content-Type: text/plain\\n\\n%s' \"$QUERY_STRING\"");
    fs::set_permissions(show, fs::Permissions::from_mode(0o755)).unwrap();
    let routes = "[[site.route]]\nmatch = '/dropped/**'\nredirect = '/new/$1'\nquery = 'drop'\n\
                  [[site.route]]\nmatch = '/own/*'\nredirect = '/new?id=$1'\n\
                  [[site.route]]\nmatch = '/both/*'\nredirect = '/new?id=$1'\nquery = 'keep'\n\
                  [[site.route]]\nmatch = '/run/*'\nrewrite = '/show.cgi?id=$1'\nquery = 'drop'\n\
                  [[site.route]]\nmatch = '/bare/*'\nrewrite = '/show.cgi'\nquery = 'drop'\n\
                  [[site.app]]\nmatch = '*.cgi'\ncgi = true\n";
    let server = serve(&site, routes);
    let mut client = server.connect();
    for (target, location) in [
        ("/dropped/a?b=c", "/new/a"),
        ("/own/a?b=c", "/new?id=a"),
        ("/both/a?b=c", "/new?id=a&b=c"),
        ("/both/a", "/new?id=a"),
    ] {
        assert_eq!(client.get(target).field("Location"), Some(location), "{target}");
    }
    assert_eq!(client.get("/run/a?b=c").text(), "id=a");
    assert_eq!(client.get("/bare/a?b=c").text(), "");
}

#[test]
fn rules_apply_to_requests_that_fulfil_their_conditions() {
    let site = Site::new();
    site.file("page.html", "a page");
    site.file("mobile/page.html", "a small page");
    script(&site, "a.cgi");
    let tables = "[[site.route]]\nmatch = '**'\nwhen = { header = { User-Agent = '*bot*' } }\ndeny = true\n\
                  [[site.route]]\nmatch = '/**'\nwhen = { hosts = ['www.*'] }\nredirect = 'https://a.example/$1'\n\
                  [[site.route]]\nmatch = '/a.cgi'\nwhen = { query = { action = 'register' } }\ndeny = true\nstatus = 404\n\
                  [[site.route]]\nmatch = '/page.html'\nwhen = { header = { Cookie = '*small=1*' } }\nrewrite = '/mobile/page.html'\n\
                  [[site.route]]\nmatch = '/scheme'\nwhen = { scheme = 'https' }\nrespond = 'https'\n\
                  [[site.route]]\nmatch = '/scheme'\nrespond = 'http'\n\
                  [[site.headers]]\nmatch = '*.html'\nwhen = { query = { v = '*' } }\ncache_control = 'max-age=9'\n\
                  set = { 'X-Versioned' = 'yes' }\n\
                  [[site.limit]]\nmatch = '/page.html'\nwhen = { methods = ['POST'] }\nrequests = '1/h'\n\
                  [[site.app]]\nmatch = '*.cgi'\nwhen = { methods = ['GET', 'POST'] }\ncgi = true\n";
    let server = serve(&site, tables);
    let mut client = server.connect();
    // Each twice: the second is answered from the caches.
    for _ in 0..2 {
        let page = client.get("/page.html");
        assert_eq!((page.status, page.text().as_str(), page.field("X-Versioned")), (200, "a page", None));
        assert_eq!(page.field("Cache-Control"), None);
        let vary: Vec<&str> = page
            .fields
            .iter()
            .filter(|(name, _)| name.eq_ignore_ascii_case("Vary"))
            .map(|(_, value)| &**value)
            .collect();
        assert!(vary.contains(&"Cookie, User-Agent"), "{vary:?}");
        let page = client.get("/page.html?v=1");
        assert_eq!((page.field("X-Versioned"), page.field("Cache-Control")), (Some("yes"), Some("max-age=9")));
        let page = client.request("GET", "/page.html", &[("Cookie", "a=b; small=1")]);
        assert_eq!((page.status, page.text().as_str()), (200, "a small page"));
        assert_eq!(client.request("GET", "/page.html", &[("User-Agent", "a bot")]).status, 403);
        let www = client.request("GET", "/page.html?q", &[("Host", "WWW.a.example")]);
        assert_eq!((www.status, www.field("Location")), (302, Some("https://a.example/page.html?q")));
        let scheme = if is_secure() { "https" } else { "http" };
        assert_eq!(client.get("/scheme").text(), scheme);
        assert_eq!(client.get("/a.cgi?action=%72egister").status, 404);
        assert_eq!(client.get("/a.cgi?action=login").text(), "GET /a.cgi |");
        // The source of a script is not a file for requests that its application does not get.
        assert_eq!(client.request("HEAD", "/a.cgi", &[]).status, 403);
    }
    assert_eq!(client.request("POST", "/page.html", &[]).status, 405);
    assert_eq!(client.request("POST", "/page.html", &[]).status, 429);
    assert_eq!(client.get("/page.html").status, 200);
}

#[test]
fn response_to_conditional_rewrite_is_not_cached() {
    let site = Site::new();
    script(&site, "a.cgi");
    script(&site, "b.cgi");
    let tables = "[[site.route]]\nmatch = '/page'\nwhen = { header = { X-B = '*' } }\nrewrite = '/b.cgi'\n\
                  [[site.route]]\nmatch = '/page'\nrewrite = '/a.cgi'\n\
                  [[site.app]]\nmatch = '*.cgi'\ncgi = true\ncache = '1h'\n";
    let server = serve(&site, tables);
    let mut client = server.connect();
    for _ in 0..2 {
        assert_eq!(client.get("/page").text(), "GET /a.cgi |");
        assert_eq!(client.request("GET", "/page", &[("X-B", "1")]).text(), "GET /b.cgi |");
    }
}

#[test]
fn regular_expressions_match_and_capture() {
    let site = Site::new();
    site.file("posts/2024/cats.html", "meow");
    site.file("uploads/e.PHP", "<?php");
    site.file("uploads/a.txt", "text");
    script(&site, "run.cgi");
    let tables = "[[site.route]]\nmatch = '~* ^/uploads/.*\\.php$'\ndeny = true\n\
                  [[site.route]]\nmatch = '~^/(\\d{4})/([a-z]+)$'\nrewrite = '/posts/$1/$2.html'\n\
                  [[site.route]]\nmatch = '~^/(.+)/$'\nredirect = '/$1'\nstatus = 301\n\
                  [[site.app]]\nmatch = '~^/run\\.cgi$'\ncgi = true\n\
                  [[site.limit]]\nmatch = '~^/limited'\nrequests = '1/h'\n\
                  [[site.headers]]\nmatch = '~\\.(txt|html)$'\nset = { 'X-Text' = 'yes' }\n";
    let server = serve(&site, tables);
    let mut client = server.connect();
    assert_eq!(client.get("/uploads/e.PHP").status, 403);
    let text = client.get("/uploads/a.txt");
    assert_eq!((text.status, text.field("X-Text")), (200, Some("yes")));
    assert_eq!(client.get("/2024/cats").text(), "meow");
    assert_eq!(client.get("/2024/Cats").status, 404);
    assert_eq!(client.get("/a/b/?c").field("Location"), Some("/a/b?c"));
    assert_eq!(client.get("/run.cgi/a").text(), "GET /run.cgi /a|");
    assert_eq!([client.get("/limited/a").status, client.get("/limited/b").status], [404, 429]);
}

/// What documentation says about configurations of nginx.
#[test]
fn slashes_and_host_names_are_normalised_by_redirects() {
    let site = Site::new();
    site.file("posts/index.html", "posts");
    let tables = "hosts = ['example.org', 'www.example.org']\n\
                  [[site.route]]\nmatch = '/**'\nwhen = { hosts = ['www.example.org'] }\n\
                  redirect = 'https://example.org/$1'\nstatus = 301\n\
                  [[site.route]]\nmatch = '~^/bare/(.+)/$'\nredirect = '/bare/$1'\nstatus = 301\n\
                  [[site.route]]\nmatch = '~^/(.*/)?([^/.]+)$'\nwhen = { methods = ['GET'] }\nredirect = '/$1$2/'\nquery = 'drop'\n";
    let server = serve(&site, tables);
    let mut client = server.connect();
    let mut check = |host: &str, target: &str, expected: Option<&str>| {
        let response = client.request("GET", target, &[("Host", host)]);
        assert_eq!(response.field("Location"), expected, "{host} {target}: {}", response.status);
    };
    check("www.example.org", "/a%20b/c?d", Some("https://example.org/a%20b/c?d"));
    check("www.example.org", "/", Some("https://example.org/"));
    check("example.org", "/bare/a/?b", Some("/bare/a?b"));
    check("example.org", "/posts?page=2", Some("/posts/"));
    check("example.org", "/a/posts", Some("/a/posts/"));
    check("example.org", "/posts/", None);
    check("example.org", "/a.css", None);
    check("example.org", "/", None);
}

#[test]
fn alias_serves_files_of_another_root() {
    let (site, other) = (Site::new(), Site::new());
    for (name, text) in [("a.txt", "root"), ("static/a.txt", "never"), ("secret", "secret"), ("x.png", "never")] {
        site.file(name, text);
    }
    for (name, text) in [
        ("a.txt", "alias"),
        ("a.txt.gz", "packed"),
        ("sub/index.html", "index"),
        (".hidden", "hidden"),
        ("private/a.txt", "private"),
        ("list/b.txt", "b"),
        ("x.png", "image"),
        ("kept/a.txt", "kept"),
    ] {
        other.file(name, text);
    }
    script(&other, "tool.cgi");
    symlink(site.path().join("secret"), other.path().join("out")).unwrap();
    symlink("a.txt", other.path().join("in")).unwrap();
    let users = site.path().with_extension("users");
    fs::write(&users, format!("ann:{}\n", bcrypt::hash("pass", 4).unwrap())).unwrap();
    let root = other.path();
    let tables = format!(
        "listing = true\n[[site.alias]]\nmatch = '/static/**'\nroot = {root:?}\n\
         [[site.alias]]\nmatch = '/kept/**'\nroot = {root:?}\nkeep_prefix = true\n\
         [[site.alias]]\nmatch = '*.png'\nroot = {root:?}\n\
         [[site.auth]]\ndirectory = '/static/private/'\naccounts = {users:?}\n\
         [[site.headers]]\nmatch = '/static/**'\nset = {{ 'X-From' = 'alias' }}\n\
         [[site.route]]\nmatch = '/static/list/b.txt'\nrewrite = '/a.txt'\n\
         [[site.app]]\nmatch = '/static/*.cgi'\ncgi = true\n"
    );
    for helpers in ["", "[helpers]\nkind = 'processes'\n"] {
        let server = serve(&site, &format!("{tables}{helpers}"));
        let mut client = server.connect();
        let mut check = |target: &str, status: u16, text: &str| {
            for _ in 0..2 {
                let response = client.request("GET", target, &[]);
                assert_eq!(response.status, status, "{target}");
                assert!(status >= 300 || response.text().contains(text), "{target}: {}", response.text());
                assert!(!response.text().contains("secret"), "{target}");
                let is_alias = target.starts_with("/static/") && !target.contains("..");
                assert_eq!(response.field("X-From"), is_alias.then_some("alias"), "{target}");
            }
        };
        check("/a.txt", 200, "root");
        check("/static/a.txt", 200, "alias");
        check("/static/sub/", 200, "index");
        check("/static/list/", 200, "b.txt");
        check("/static/", 200, "a.txt");
        check("/static/in", 200, "alias");
        check("/x.png", 200, "image");
        check("/kept/a.txt", 200, "kept");
        check("/static/out", 403, "");
        check("/static/.hidden", 404, "");
        check("/static/private/a.txt", 401, "");
        check("/static/../a.txt", 200, "root");
        assert_eq!(client.get("/static/list/b.txt").text(), "root");
        // Nothing but the alias leads into its root, and nothing out of it.
        for target in ["/static../a.txt", "/static/..%2fsecret", "/static/%2e%2e/%2e%2e/x", "/sub/", "/static/a.txt/"] {
            let status = client.get(target).status;
            assert!(matches!(status, 400 | 404), "{target}: {status}");
        }
        for (target, location) in [("/static?a", "/static/?a"), ("/static/sub", "/static/sub/")] {
            let response = client.get(target);
            assert_eq!((response.status, response.field("Location")), (301, Some(location)), "{target}");
        }
        let packed = client.request("GET", "/static/a.txt", &[("Accept-Encoding", "gzip")]);
        assert_eq!((packed.text().as_str(), packed.field("Content-Encoding")), ("packed", Some("gzip")));
        assert_eq!(client.get("/static/tool.cgi").text(), "GET /static/tool.cgi |");
    }
    fs::remove_file(users).unwrap();
}

#[test]
fn rewrites_serve_target() {
    let site = Site::new();
    site.file("posts/cats.html", "meow");
    site.file("posts/.draft.html", "not yet");
    site.file("posts/folder/index.html", "a folder");
    site.file("private/page.html", "for some");
    let users = site.path().with_extension("users");
    fs::write(&users, format!("ann:{}\n", bcrypt::hash("pass", 4).unwrap())).unwrap();
    let tables = format!(
        "[[site.route]]\nmatch = '/blog/*'\nrewrite = '/posts/$1.html'\n\
         [[site.route]]\nmatch = '/all/**'\nrewrite = '/posts/$1'\n\
         [[site.route]]\nmatch = '/open/*'\nrewrite = '/private/$1.html'\n\
         [[site.auth]]\ndirectory = '/private/'\naccounts = {users:?}\n"
    );
    let server = serve(&site, &tables);
    let mut client = server.connect();
    let cats = client.get("/blog/cats?x=y");
    assert_eq!((cats.status, cats.text().as_str()), (200, "meow"));
    assert_eq!(cats.lasting_fields(), client.get("/posts/cats.html").lasting_fields());
    assert_eq!(client.request("GET", "/blog/cats", &[("If-None-Match", cats.field("ETag").unwrap())]).status, 304);
    assert_eq!(client.get("/blog/dogs").status, 404);
    assert_eq!(client.get("/blog/.draft").status, 404);
    assert_eq!(client.get("/all/folder/").text(), "a folder");
    // The target of a rewrite is protected like a direct request for it.
    let refused = client.get("/open/page");
    assert_eq!((refused.status, refused.field("WWW-Authenticate").is_some()), (401, true));
    let pass = [("Authorization", "Basic YW5uOnBhc3M=")];
    assert_eq!(client.request("GET", "/open/page", &pass).text(), "for some");
    fs::remove_file(users).unwrap();
}

#[test]
fn fallback_file_replaces_missing_file() {
    let site = Site::new();
    site.file("app/index.html", "the application");
    site.file("app/index.html.gz", "packed");
    site.file("app/there.js", "a script");
    fs::create_dir(site.path().join("app/empty")).unwrap();
    let tables = "[[site.fallback]]\ndirectory = '/app/'\nfile = '/app/index.html'\n\
                  [[site.fallback]]\ndirectory = '/app/deep/'\nfile = '/app/deep/none.html'\n";
    let server = serve(&site, tables);
    let mut client = server.connect();
    let index = client.get("/app/index.html");
    for target in ["/app/any", "/app/a/b/c?d", "/app/.hidden-no", "/app/missing.js/"] {
        let response = client.get(target);
        match target.contains("/.") {
            // Hidden names are refused before any lookup.
            true => assert_eq!(response.status, 404, "{target}"),
            false => {
                assert_eq!((response.status, response.text().as_str()), (200, "the application"), "{target}");
                assert_eq!(response.lasting_fields(), index.lasting_fields(), "{target}");
            }
        }
    }
    let coded = client.request("GET", "/app/any", &[("Accept-Encoding", "gzip")]);
    assert_eq!((coded.field("Content-Encoding"), coded.text().as_str()), (Some("gzip"), "packed"));
    let unchanged = client.request("GET", "/app/any", &[("If-None-Match", index.field("ETag").unwrap())]);
    assert_eq!(unchanged.status, 304);
    let head = client.request("HEAD", "/app/any", &[]);
    assert_eq!(head.lasting_fields(), index.lasting_fields());
    assert_eq!(client.get("/app/there.js").text(), "a script");
    // Existing paths do not use the fallback, and paths outside its directory do not either.
    for (target, status) in [("/app/empty/", 403), ("/app", 301), ("/none", 404), ("/app/deep/none", 404)] {
        assert_eq!(client.get(target).status, status, "{target}");
    }
    // It changes as any file does.
    fs::remove_file(site.path().join("app/index.html.gz")).unwrap();
    site.file("app/index.html", "the next version");
    wait_until("the next version", || client.get("/app/any").text() == "the next version");
    fs::remove_file(site.path().join("app/index.html")).unwrap();
    wait_until("404", || client.get("/app/any").status == 404);
}

/// No name leads to a script's source, and a password is required before it runs.
#[test]
fn script_runs_under_any_name_that_leads_to_it() {
    let site = Site::new();
    let script = "#!/bin/sh\nprintf 'Content-Type: text/plain\\r\\n\\r\\nran'\ncat\n";
    let users = site.path().with_extension("users");
    fs::write(&users, format!("ann:{}\n", bcrypt::hash("pass", 4).unwrap())).unwrap();
    for name in ["front.cgi", "private/front.cgi", "docs/page.en.cgi"] {
        let path = site.file(name, script);
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    }
    let tables = format!(
        "types = {{ cgi = 'text/x-script' }}\n\
         [[site.route]]\nmatch = '/pretty/**'\nrewrite = '/front.cgi'\n\
         [[site.fallback]]\ndirectory = '/private/'\nfile = '/private/front.cgi'\n\
         [[site.negotiation]]\nmatch = '/docs/**'\nlanguages = ['en']\n\
         [[site.auth]]\ndirectory = '/private/'\naccounts = {users:?}\n\
         [[site.app]]\nmatch = '*.cgi'\ncgi = true\n"
    );
    let server = serve(&site, &tables);
    let mut client = server.connect();
    let pass = [("Authorization", "Basic YW5uOnBhc3M=")];
    for target in ["/front.cgi", "/pretty/a", "/docs/page", "/docs/page.en.cgi"] {
        let response = client.request("GET", target, &[("Connection", "keep-alive")]);
        assert_eq!((response.status, response.text().as_str()), (200, "ran"), "{target}");
    }
    for target in ["/private/front.cgi", "/private/front.cgi/more", "/private/missing"] {
        for method in ["GET", "HEAD", "POST", "OPTIONS"] {
            assert_eq!(server.connect().request(method, target, &[]).status, 401, "{method} {target}");
        }
        assert_eq!(client.request("GET", target, &pass).text(), "ran", "{target}");
    }
    // The target receives the body.
    let fields = [pass[0], ("Content-Length", "5")];
    for target in ["/front.cgi", "/pretty/a", "/private/front.cgi"] {
        client.send_request("POST", target, &fields);
        client.send("hello");
        assert_eq!(client.response("POST").text(), "ranhello", "{target}");
    }
    client.send_request("POST", "/private/front.cgi", &fields[1..]);
    client.send("hello");
    assert_eq!(client.response("POST").status, 401);
    fs::remove_file(users).unwrap();
}

/// Writes an executable script that reports that it ran.
fn script(site: &Site, name: &str) {
    let text = "#!/bin/sh\nprintf 'Content-Type: text/plain\\n\\n%s %s %s|' \"$REQUEST_METHOD\" \"$SCRIPT_NAME\" \"$PATH_INFO\"\ncat\n";
    let path = site.file(name, text);
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

#[test]
fn denied_paths_are_neither_served_nor_run() {
    let site = Site::new();
    for name in
        ["x.cgi", "uploads/e.cgi", "uploads/deep/e.cgi", "up/e.cgi", "up/index.cgi", "up/doc.en.cgi", "lib/f.cgi"]
    {
        script(&site, name);
    }
    site.file("uploads/a.txt", "a text");
    site.file("uploads/ok.txt", "for all");
    site.file("hidden/page.html", "inner");
    site.file("hidden/error.html", "an error page");
    let tables = "index = ['index.cgi', 'index.html']\n\
         types = { cgi = 'text/x-script' }\n\
         errors = { '403' = '/hidden/error.html' }\n\
         [[site.route]]\nmatch = '/uploads/ok.txt'\nrewrite = '/uploads/ok.txt'\n\
         [[site.route]]\nmatch = '/uploads/**'\ndeny = true\n\
         [[site.route]]\nmatch = '/up/*.cgi'\ndeny = true\nstatus = 404\n\
         [[site.route]]\nmatch = '/hidden/**'\ninternal = true\n\
         [[site.route]]\nmatch = '/shown/**'\nrewrite = '/hidden/$1.html'\n\
         [[site.route]]\nmatch = '/sly/**'\nrewrite = '/uploads/$1'\n\
         [[site.route]]\nmatch = '/gone/**'\nrespond = 'no more'\nstatus = 410\nheaders = { X-A = 'b', Cache-Control = 'no-store' }\n\
         [[site.route]]\nmatch = '/ping'\nrespond = ''\nstatus = 204\n\
         [[site.negotiation]]\nmatch = '/up/**'\nlanguages = ['en']\n\
         [[site.fallback]]\ndirectory = '/lib/'\nfile = '/lib/f.cgi'\n\
         [[site.app]]\nmatch = '*.cgi'\ncgi = true\n";
    let server = serve(&site, tables);
    let mut client = server.connect();
    for method in ["GET", "POST", "PROPFIND", "OPTIONS"] {
        assert_eq!(client.request(method, "/x.cgi/a", &[]).text(), format!("{method} /x.cgi /a|"));
        for target in [
            "/uploads/e.cgi",
            "/uploads/e.cgi/x",
            "/uploads/e.cgi/",
            "/uploads/deep/e.cgi?a=b",
            "/uploads/%65.cgi",
            "/uploads//e.cgi",
            "/uploads%2fe.cgi",
            "/./uploads/./e.cgi",
            "/x.cgi/../uploads/e.cgi",
            "/sly/e.cgi",
            "/uploads/a.txt",
        ] {
            let response = client.request(method, target, &[]);
            assert_eq!((response.status, response.text().as_str()), (403, "an error page"), "{method} {target}");
        }
        // Neither as an index, nor as a variant, nor with a path after it.
        for target in ["/up/e.cgi", "/up/e.cgi/x", "/up/", "/up/doc", "/up/index.cgi", "/hidden/page.html"] {
            let response = client.request(method, target, &[]);
            assert_eq!(response.status, 404, "{method} {target}");
            assert!(!response.text().contains('|'), "{method} {target}");
        }
        let fixed = client.request(method, "/gone/x.cgi", &[]);
        assert_eq!((fixed.status, fixed.text().as_str()), (410, "no more"), "{method}");
        assert_eq!((fixed.field("X-A"), fixed.field("Cache-Control")), (Some("b"), Some("no-store")));
        assert_eq!(fixed.field("Content-Type"), Some("text/plain; charset=utf-8"));
    }
    assert_eq!(client.get("/uploads/ok.txt").text(), "for all");
    assert_eq!(client.get("/shown/page").text(), "inner");
    let ping = client.get("/ping");
    assert_eq!((ping.status, ping.field("Content-Length"), ping.field("Content-Type")), (204, None, None));
    let head = client.request("HEAD", "/gone/a", &[]);
    assert_eq!((head.status, head.field("Content-Length"), head.body.len()), (410, Some("7"), 0));
}

#[test]
fn every_method_reaches_front_controller() {
    let site = Site::new();
    script(&site, "index.cgi");
    script(&site, "sub/index.cgi");
    site.file("there.txt", "a file");
    site.file("plain/index.html", "a page");
    let tables = "index = ['index.cgi', 'index.html']\n\
         [[site.fallback]]\ndirectory = '/'\nfile = '/index.cgi'\n\
         [[site.app]]\nmatch = '*.cgi'\ncgi = true\n";
    let server = serve(&site, tables);
    let mut client = server.connect();
    // The first request reads the disk, the second the caches.
    for method in ["GET", "POST", "PUT", "PATCH", "DELETE", "PROPFIND", "MKCOL", "REPORT", "QUERY", "X-ODD!"] {
        for (target, script) in [
            ("/", "/index.cgi"),
            ("/index.cgi", "/index.cgi"),
            ("/2024/a-post?x=y", "/index.cgi"),
            ("/wp-json/v2/posts/", "/index.cgi"),
            ("/sub/", "/sub/index.cgi"),
        ] {
            for body in ["", "a body"] {
                let length = body.len().to_string();
                client.send_request(method, target, &[("Content-Length", &length)]);
                client.send(body);
                let response = client.response(method);
                let expected = format!("{method} {script} |{body}");
                assert_eq!((response.status, response.text()), (200, expected), "{method} {target}");
            }
        }
        // A file allows reading only, whatever the body.
        for target in ["/there.txt", "/plain/", "/sub"] {
            client.send_request(method, target, &[("Content-Length", "6")]);
            client.send("a body");
            let status = client.response(method).status;
            let expected = match method {
                "GET" if target == "/sub" => 301,
                "GET" => 200,
                "POST" | "PUT" | "PATCH" | "DELETE" => 405,
                _ => 501,
            };
            assert_eq!(status, expected, "{method} {target}");
        }
    }
    // A client that expects 100 Continue receives it only if an application takes the body.
    let fields = [("Content-Length", "6"), ("Expect", "100-continue")];
    let mut waiting = server.connect();
    waiting.send_request("POST", "/a/b", &fields);
    assert!(waiting.read_head().starts_with("HTTP/1.1 100 "));
    waiting.send("a body");
    assert_eq!(waiting.response("POST").text(), "POST /index.cgi |a body");
    waiting.send_request("POST", "/there.txt", &fields);
    assert_eq!(waiting.response("POST").status, 405);
    let options = client.request("OPTIONS", "/there.txt", &[]);
    assert_eq!((options.status, options.field("Allow")), (204, Some("GET, HEAD, OPTIONS")));
    assert_eq!(client.request("OPTIONS", "/a/b", &[]).text(), "OPTIONS /index.cgi |");
}

/// The example configurations for WordPress, Laravel and Nextcloud, with shell scripts in place of PHP.
#[test]
fn example_front_controllers_receive_paths_without_file() {
    let site = Site::new();
    for name in [
        "index.php",
        "wp-config.php",
        "wp-content/uploads/2024/e.php",
        "wp-login.php",
        "other.php",
        "remote.php",
        "lib/base.php",
    ] {
        script(&site, name);
    }
    site.file("wp-content/uploads/e.phtml", "<?php");
    site.file("wp-content/uploads/a.jpg", "a picture");
    site.file("style.css", "a style");
    site.file("data/owner.txt", "a secret");
    let example = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/front-controllers.toml");
    let text = fs::read_to_string(example).unwrap();
    let text = text.replace("listen = [\"127.0.0.1:8080\"]", "listen = [\"127.0.0.1:0\"]");
    let text = text.replace("root = \"site\"", &format!("root = {:?}", site.path()));
    let text = text.replace("fastcgi = \"unix:/run/php/php-fpm.sock\"", "cgi = true").replace("files = true", "");
    let config = site.path().with_extension("toml");
    fs::write(&config, text).unwrap();
    let server = Server::start(&["--config", config.to_str().unwrap()]);
    let mut client = server.connect();
    let mut check = |host: &str, method: &str, target: &str, status: u16, expected: &str| {
        let response = client.request(method, target, &[("Host", host)]);
        assert_eq!((response.status, response.text().contains(expected)), (status, true), "{host} {method} {target}");
        assert!(status == 200 || !response.text().contains('|'), "{host} {method} {target}");
    };
    for host in ["blog.example.org", "shop.example.org", "cloud.example.org"] {
        check(host, "GET", "/", 200, "GET /index.php |");
        check(host, "GET", "/style.css", 200, "a style");
        for (method, target) in
            [("GET", "/a/page?b=c"), ("POST", "/wp-json/posts"), ("PUT", "/api/1"), ("DELETE", "/x/")]
        {
            check(host, method, target, 200, &format!("{method} /index.php |"));
        }
        check(host, "GET", "/index.php/a/b", 200, "GET /index.php /a/b|");
    }
    check("blog.example.org", "POST", "/other.php", 200, "POST /other.php |");
    check("blog.example.org", "GET", "/wp-config.php", 403, "");
    check("blog.example.org", "GET", "/wp-content/uploads/2024/e.php/x", 403, "");
    check("blog.example.org", "GET", "/wp-content/uploads/e.phtml", 403, "");
    check("blog.example.org", "GET", "/wp-content/uploads/a.jpg", 200, "a picture");
    for _ in 0..5 {
        check("blog.example.org", "POST", "/wp-login.php", 200, "POST /wp-login.php |");
    }
    check("blog.example.org", "POST", "/wp-login.php", 429, "");
    check("blog.example.org", "GET", "/wp-login.php", 200, "GET /wp-login.php |");
    check("shop.example.org", "POST", "/other.php", 404, "");
    check("shop.example.org", "GET", "/other.php/x", 200, "GET /index.php |");
    check(
        "cloud.example.org",
        "PROPFIND",
        "/remote.php/dav/files/a/.b%2Fc",
        200,
        "PROPFIND /remote.php /dav/files/a/.b/c|",
    );
    check("cloud.example.org", "MKCOL", "/remote/dav/x", 200, "MKCOL /remote.php /dav/x|");
    check("cloud.example.org", "PROPFIND", "/.well-known/carddav", 301, "");
    check("cloud.example.org", "GET", "/.well-known/webfinger", 200, "GET /index.php /.well-known/webfinger|");
    check("cloud.example.org", "GET", "/data/owner.txt", 404, "");
    check("cloud.example.org", "GET", "/lib/base.php", 404, "");
    check("cloud.example.org", "GET", "/data", 404, "");
    check("cloud.example.org", "GET", "/database", 200, "GET /index.php |");
    check("cloud.example.org", "GET", "/occ", 404, "");
    let cloud = [("Host", "cloud.example.org"), ("User-Agent", "DavClnt/1")];
    assert_eq!(client.request("PROPFIND", "/", &cloud).field("Location"), Some("/remote.php/webdav/"));
    for (target, expected) in [
        ("/style.css", "public, max-age=15778463"),
        ("/style.css?v=", "public, max-age=15778463"),
        ("/style.css?v=7-0", "public, max-age=15778463, immutable"),
        ("/style.css", "public, max-age=15778463"),
    ] {
        assert_eq!(client.request("GET", target, &cloud[..1]).field("Cache-Control"), Some(expected), "{target}");
    }
}
