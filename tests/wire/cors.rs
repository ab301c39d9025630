//! CORS: which responses pages of other origins may read, and what a preflight response allows.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use super::harness::{Client, Response, Server, Site, let_files_settle};

const A: &str = "https://a.example";
const B: &str = "http://b.example:8080";

fn serve(site: &Site) -> Server {
    let_files_settle();
    let root = site.path();
    let config = site.path().with_extension("toml");
    let text = format!(
        "listen = ['127.0.0.1:0']\n[[site]]\nroot = {root:?}\nlisting = true\n\
         [[site.cors]]\nmatch = '/shared/**'\norigins = ['{A}', '{B}']\nmethods = ['GET']\nheaders = ['X-One', 'X-Two']\n\
         expose = ['ETag']\ncredentials = true\nmax_age = '10m'\n\
         [[site.cors]]\nmatch = '*.woff2'\norigins = ['*']\n"
    );
    fs::write(&config, text).unwrap();
    Server::start(&["--config", config.to_str().unwrap()])
}

fn tree() -> Site {
    let site = Site::new();
    site.file("shared/data.json", "{}");
    site.file("shared/data.json.gz", "packed");
    site.file("font.woff2", "font");
    site.file("own.html", "ours");
    site
}

fn ask(client: &mut Client, method: &str, target: &str, origin: Option<&str>, others: &[(&str, &str)]) -> Response {
    let origin = origin.map(|origin| ("Origin", origin));
    let fields: Vec<(&str, &str)> = origin.into_iter().chain(others.iter().copied()).collect();
    client.request(method, target, &fields)
}

fn cors_of(response: &Response) -> (Option<&str>, Option<&str>) {
    (response.field("Access-Control-Allow-Origin"), response.field("Vary"))
}

#[test]
fn listed_origin_is_allowed_and_others_are_not() {
    let site = tree();
    let server = serve(&site);
    let mut client = server.connect();
    // Twice: a head cached for one origin must not serve another.
    for _ in 0..2 {
        for (origin, allowed) in [
            (Some(A), Some(A)),
            (Some(B), Some(B)),
            (Some("https://evil.example"), None),
            (Some("https://a.example.evil"), None),
            (Some("HTTPS://A.EXAMPLE"), None),
            (Some("null"), None),
            (None, None),
        ] {
            let response = ask(&mut client, "GET", "/shared/data.json", origin, &[]);
            assert_eq!(response.status, 200);
            assert_eq!(cors_of(&response), (allowed, Some("Accept-Encoding, Origin")), "{origin:?}");
            let credentials = response.field("Access-Control-Allow-Credentials");
            let exposed = response.field("Access-Control-Expose-Headers");
            assert_eq!((credentials, exposed), (allowed.and(Some("true")), allowed.and(Some("ETag"))), "{origin:?}");
        }
    }
    // Every other response carries the same fields.
    let tag = ask(&mut client, "GET", "/shared/data.json", None, &[]).field("ETag").unwrap().to_owned();
    for (status, vary, response) in [
        (
            304,
            "Accept-Encoding, Origin",
            ask(&mut client, "GET", "/shared/data.json", Some(B), &[("If-None-Match", &tag)]),
        ),
        (
            206,
            "Accept-Encoding, Origin",
            ask(&mut client, "GET", "/shared/data.json", Some(B), &[("Range", "bytes=0-0")]),
        ),
        (416, "Origin", ask(&mut client, "GET", "/shared/data.json", Some(B), &[("Range", "bytes=9-")])),
        (404, "Origin", ask(&mut client, "GET", "/shared/none", Some(B), &[])),
        (200, "Accept, Origin", ask(&mut client, "GET", "/shared/", Some(B), &[])),
        (405, "Origin", ask(&mut client, "DELETE", "/shared/data.json", Some(B), &[])),
    ] {
        assert_eq!((response.status, cors_of(&response)), (status, (Some(B), Some(vary))));
    }
    // Open to all: the response does not depend on the origin.
    for origin in [Some(A), Some("null"), None] {
        let response = ask(&mut client, "GET", "/font.woff2", origin, &[]);
        assert_eq!((cors_of(&response), response.field("Access-Control-Allow-Credentials")), ((Some("*"), None), None));
    }
    let own = ask(&mut client, "GET", "/own.html", Some(A), &[]);
    assert_eq!(cors_of(&own), (None, None));
}

#[test]
fn preflight_lists_allowed_methods_and_fields() {
    let site = tree();
    let server = serve(&site);
    let mut client = server.connect();
    let requested = [("Access-Control-Request-Method", "PUT"), ("Access-Control-Request-Headers", "x-one")];
    let allowed = ask(&mut client, "OPTIONS", "/shared/data.json", Some(A), &requested);
    assert_eq!((allowed.status, cors_of(&allowed)), (204, (Some(A), Some("Origin"))));
    assert_eq!(allowed.field("Access-Control-Allow-Methods"), Some("GET"));
    assert_eq!(allowed.field("Access-Control-Allow-Headers"), Some("X-One, X-Two"));
    assert_eq!(allowed.field("Access-Control-Max-Age"), Some("600"));
    assert_eq!(allowed.field("Access-Control-Allow-Credentials"), Some("true"));
    let refused = ask(&mut client, "OPTIONS", "/shared/data.json", Some("https://evil.example"), &requested);
    assert_eq!((refused.status, cors_of(&refused)), (204, (None, Some("Origin"))));
    assert_eq!(refused.field("Access-Control-Allow-Methods"), None);
    let open = ask(&mut client, "OPTIONS", "/font.woff2", Some("null"), &requested);
    assert_eq!((open.status, cors_of(&open)), (204, (Some("*"), None)));
    assert_eq!(open.field("Access-Control-Allow-Methods"), Some("GET, HEAD"));
    // Without Access-Control-Request-Method it is a plain OPTIONS request.
    let plain = ask(&mut client, "OPTIONS", "/shared/data.json", Some(A), &[]);
    assert_eq!((plain.field("Access-Control-Allow-Methods"), plain.field("Allow")), (None, Some("GET, HEAD, OPTIONS")));
}

/// A browser's preflight carries no password; every other request needs one.
#[test]
fn preflight_needs_no_password_and_other_requests_do() {
    let site = tree();
    let script = "#!/bin/sh\n[ -z \"$QUERY_STRING\" ] || printf 'Access-Control-Allow-Origin: %s\\n' \"$QUERY_STRING\"\n\
                  printf 'Content-Type: text/plain\\n\\n%s' $REQUEST_METHOD\n";
    for name in ["private/api.cgi", "closed/api.cgi", "open/api.cgi"] {
        let path = site.file(name, script);
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    }
    site.file("private/page.html", "for some");
    let users = site.path().with_extension("users");
    fs::write(&users, format!("ann:{}\n", bcrypt::hash("pass", 4).unwrap())).unwrap();
    let auth = |folder: &str| format!("[[site.auth]]\ndirectory = '/{folder}/'\naccounts = {users:?}\n");
    let tables = format!(
        "[[site.app]]\nmatch = '*.cgi'\ncgi = true\n{}{}\
         [[site.cors]]\nmatch = '/private/**'\norigins = ['{A}']\nmethods = ['PUT']\n",
        auth("private"),
        auth("closed")
    );
    let server = Server::with_site(&site, &tables);
    let mut client = server.connect();
    let requested = ("Access-Control-Request-Method", "PUT");
    let pass = ("Authorization", "Basic YW5uOnBhc3M=");
    for target in ["/private/api.cgi", "/private/api.cgi/more", "/private/page.html", "/private/none", "/private/"] {
        let allowed = ask(&mut client, "OPTIONS", target, Some(A), &[requested]);
        assert_eq!((allowed.status, cors_of(&allowed)), (204, (Some(A), Some("Origin"))), "{target}");
        assert_eq!(allowed.field("Access-Control-Allow-Methods"), Some("PUT"));
        let refused = ask(&mut client, "OPTIONS", target, Some(B), &[requested]);
        assert_eq!((refused.status, cors_of(&refused)), (204, (None, Some("Origin"))), "{target}");
        // A body, which no browser sends, changes nothing.
        client.send_request("OPTIONS", target, &[("Origin", A), requested, ("Content-Length", "5")]);
        client.send("GET /");
        assert_eq!(client.response("OPTIONS").status, 204);
        // Requests that resemble a preflight but are not.
        for (method, origin, fields) in [
            ("OPTIONS", Some(A), &[][..]),
            ("OPTIONS", None, &[requested]),
            ("PUT", Some(A), &[requested]),
            ("GET", Some(A), &[requested]),
        ] {
            let response = ask(&mut client, method, target, origin, fields);
            assert_eq!(response.status, 401, "{method} {target} {origin:?}");
        }
    }
    // If no rule applies, only the application responds.
    let closed = ask(&mut client, "OPTIONS", "/closed/api.cgi", Some(A), &[requested]);
    assert_eq!(closed.status, 401);
    let open = ask(&mut client, "OPTIONS", "/open/api.cgi", Some(A), &[requested]);
    assert_eq!((open.status, open.text().as_str(), cors_of(&open)), (200, "OPTIONS", (None, None)));
    let own = ask(&mut client, "OPTIONS", "/closed/api.cgi?x", Some(A), &[requested, pass]);
    assert_eq!((own.status, cors_of(&own)), (200, (Some("x"), None)));
    // With the password the application responds. The rule adds the origin unless the application named one.
    let answered = ask(&mut client, "OPTIONS", "/private/api.cgi", Some(A), &[pass]);
    assert_eq!((answered.status, answered.text().as_str()), (200, "OPTIONS"));
    for (target, origin, expected) in [
        ("/private/api.cgi", Some(A), (Some(A), Some("Origin"))),
        ("/private/api.cgi", Some(B), (None, Some("Origin"))),
        ("/private/api.cgi", None, (None, Some("Origin"))),
        ("/private/api.cgi?its-own", Some(A), (Some("its-own"), None)),
    ] {
        let response = ask(&mut client, "GET", target, origin, &[pass]);
        assert_eq!((response.status, response.text().as_str()), (200, "GET"));
        assert_eq!(cors_of(&response), expected, "{target} {origin:?}");
        assert_eq!(response.field("Cache-Control"), Some("private"));
    }
    fs::remove_file(users).unwrap();
}
