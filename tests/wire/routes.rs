//! Names that stand for others, and the file in place of what is missing.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use super::harness::{Server, Site, let_files_settle, wait_until};

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
fn redirects_tell_the_client_where_to_go() {
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
    // Nobody who asks may choose the host, nor end the header.
    check("/x/evil.example/", 308, Some("/evil.example/"));
    check("//x//evil.example", 308, Some("/evil.example"));
    check("/old/a%0d%0aSet-Cookie:%20a=b", 301, Some("/new/a%0D%0ASet-Cookie:%20a=b"));
    let head = client.request("HEAD", "/old/a", &[]);
    assert_eq!((head.status, head.field("Location"), head.body.len()), (301, Some("/new/a"), 0));
    assert_eq!(client.request("POST", "/old/a", &[("Content-Length", "0")]).status, 405);
}

#[test]
fn rewrites_serve_what_is_meant() {
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
         [[site.auth]]\nfolder = '/private/'\naccounts = {users:?}\n"
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
    // What is meant is guarded as if it had been asked for.
    let refused = client.get("/open/page");
    assert_eq!((refused.status, refused.field("WWW-Authenticate").is_some()), (401, true));
    let pass = [("Authorization", "Basic YW5uOnBhc3M=")];
    assert_eq!(client.request("GET", "/open/page", &pass).text(), "for some");
    fs::remove_file(users).unwrap();
}

#[test]
fn a_file_serves_in_place_of_what_is_missing() {
    let site = Site::new();
    site.file("app/index.html", "the application");
    site.file("app/index.html.gz", "packed");
    site.file("app/there.js", "a script");
    fs::create_dir(site.path().join("app/empty")).unwrap();
    let tables = "[[site.fallback]]\nfolder = '/app/'\nfile = '/app/index.html'\n\
                  [[site.fallback]]\nfolder = '/app/deep/'\nfile = '/app/deep/none.html'\n";
    let server = serve(&site, tables);
    let mut client = server.connect();
    let index = client.get("/app/index.html");
    for target in ["/app/any", "/app/a/b/c?d", "/app/.hidden-no", "/app/missing.js/"] {
        let response = client.get(target);
        match target.contains("/.") {
            // Names with a dot in front are refused before anything is looked for.
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
    // What is there is not missing, and what is elsewhere is none of it.
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

/// A script's source is nobody's, whatever name leads to it, and a password goes before it runs.
#[test]
fn whatever_name_leads_to_a_script_runs_it() {
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
         [[site.fallback]]\nfolder = '/private/'\nfile = '/private/front.cgi'\n\
         [[site.negotiation]]\nmatch = '/docs/**'\nlanguages = ['en']\n\
         [[site.auth]]\nfolder = '/private/'\naccounts = {users:?}\n\
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
    // A body comes to whoever is meant.
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
