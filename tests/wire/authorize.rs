//! Requests that an application authorises first (`[[site.authorize]]`): what it is asked, what its response means, and that
//! nothing of the directory is served without it.

use std::sync::{Arc, Mutex};

use super::frames::*;
use super::harness::*;
use super::http_backends::{Arrived, Backend};

/// An application that admits clients by their cookie, and the requests it got.
fn authorizer() -> (Backend, Arc<Mutex<Vec<Arrived>>>) {
    let all: Arc<Mutex<Vec<Arrived>>> = Arc::default();
    let asked = Arc::clone(&all);
    let backend = Backend::start(move |_, peer| {
        while let Some(arrived) = peer.request() {
            let response = match value(&arrived, "Cookie") {
                Some("ann") => "200 OK\r\nRemote-User: ann\r\nX-Secret: s\r\n",
                Some("bob") => "204 No Content\r\n",
                Some("stranger") => "403 No\r\nX-Secret: s\r\n",
                Some("moved") => {
                    "302 Found\r\nLocation: https://login.example/?rd=x\r\nSet-Cookie: a=b\r\nSet-Cookie: c=d\r\n"
                }
                Some("odd") => "404 Odd\r\nRemote-User: ann\r\n",
                Some("broken") => "503 Broken\r\n",
                Some("gone") => return,
                _ => "401 Who\r\nWWW-Authenticate: Bearer\r\nX-Secret: s\r\n",
            };
            asked.lock().unwrap().push(arrived);
            let length = if response.starts_with("204") { "" } else { "Content-Length: 0\r\n" };
            peer.send(format!("HTTP/1.1 {response}{length}\r\n"));
        }
    });
    (backend, all)
}

fn value<'a>(arrived: &'a Arrived, wanted: &str) -> Option<&'a str> {
    arrived.fields.iter().find(|(name, _)| name.eq_ignore_ascii_case(wanted)).map(|(_, value)| value.as_str())
}

/// Serves files and an application that returns its requests, behind this authorizer.
fn serve(site: &Site, authorizer: &Backend, app: &Backend) -> Server {
    site.file("a.txt", "static");
    site.file("public/a.txt", "public");
    site.file("list/b.txt", "b");
    let toml = format!(
        "listing = true\n\
         [[site.authorize]]\ndirectory = \"/\"\nrequest = \"/auth?q\"\ncopy_to_request = [\"Remote-User\"]\n\
         [[site.authorize]]\ndirectory = \"/public/\"\n\
         [[site.route]]\nmatch = \"/auth\"\ninternal = true\n\
         [[site.route]]\nmatch = \"/public/rewritten\"\nrewrite = \"/a.txt\"\n\
         [[site.app]]\nmatch = \"/auth\"\nhttp = [\"{}\"]\n\
         [[site.app]]\nmatch = \"/app/**\"\nhttp = [\"{}\"]\ncache = \"1h\"\n",
        authorizer.address, app.address
    );
    Server::with_site(site, &toml)
}

const PATHS: [&str; 4] = ["/a.txt", "/list/", "/app/x", "/public/rewritten"];

#[test]
fn authorized_requests_are_served_and_others_denied() {
    let (site, (authorizer, _), app) = (Site::new(), authorizer(), Backend::echo());
    let server = serve(&site, &authorizer, &app);
    let mut client = server.connect();
    for _ in 0..2 {
        for path in PATHS {
            for cookie in ["ann", "bob"] {
                assert_eq!(client.request("GET", path, &[("Cookie", cookie)]).status, 200, "{path} {cookie}");
            }
            for method in ["GET", "HEAD", "POST", "DELETE", "OPTIONS"] {
                let denied = client.request(method, path, &[("Content-Length", "0")]);
                let fields = ["WWW-Authenticate", "X-Secret"].map(|name| denied.field(name));
                assert_eq!((denied.status, fields), (401, [Some("Bearer"), None]), "{method} {path}");
                assert!(!String::from_utf8_lossy(&denied.body).contains("static"));
            }
            let denied = client.request("GET", path, &[("Cookie", "stranger")]);
            assert_eq!((denied.status, denied.field("X-Secret")), (403, None));
            let moved = client.request("GET", path, &[("Cookie", "moved")]);
            assert_eq!((moved.status, moved.field("Location")), (302, Some("https://login.example/?rd=x")));
            let cookies = moved.fields.iter().filter(|(name, _)| name == "Set-Cookie").map(|(_, value)| value.as_str());
            assert_eq!(cookies.collect::<Vec<_>>(), ["a=b", "c=d"]);
            assert_eq!(moved.field("Cache-Control"), Some("no-store"));
            for cookie in ["odd", "broken", "gone"] {
                assert_eq!(client.request("GET", path, &[("Cookie", cookie)]).status, 500, "{path} {cookie}");
            }
        }
    }
    assert_eq!(client.get("/public/a.txt").text(), "public", "the innermost table asks nobody");
    assert_eq!(client.request("GET", "/auth", &[("Cookie", "ann")]).status, 404, "the authorizer is internal");
    let private = client.request("GET", "/a.txt", &[("Cookie", "ann")]);
    assert_eq!(private.field("Cache-Control"), Some("private"));
}

#[test]
fn browser_without_session_is_sent_to_login_page() {
    let site = Site::new();
    site.file("a b.txt", "static");
    let (authorizer, _) = authorizer();
    let toml = |login: &str| {
        format!(
            "[[site.authorize]]\ndirectory = \"/\"\nrequest = \"/auth\"\nlogin = {login:?}\n\
             [[site.authorize]]\ndirectory = \"/login/\"\n[[site.app]]\nmatch = \"/auth\"\nhttp = [\"{}\"]\n",
            authorizer.address
        )
    };
    let server = Server::with_site(&site, &toml("/login/?rd=$request_uri&x=1"));
    let mut client = server.connect();
    let browser = ("Sec-Fetch-Mode", "navigate");
    for fields in [&[][..], &[browser], &[browser, ("Cookie", "nobody")]] {
        let moved = client.request("GET", "/a%20b.txt?q=1&r=%22", fields);
        let shown = ["Location", "WWW-Authenticate", "Cache-Control"].map(|name| moved.field(name));
        let location = "/login/?rd=/a%2520b.txt%3Fq%3D1%26r%3D%2522&x=1";
        assert_eq!((moved.status, shown), (302, [Some(location), None, Some("no-store")]));
    }
    // Scripts of a page take the status as it is, and so do clients that send something.
    assert_eq!(client.request("GET", "/a%20b.txt", &[("Sec-Fetch-Mode", "cors")]).status, 401);
    let posted = client.request("POST", "/a%20b.txt", &[browser, ("Content-Length", "0")]);
    assert_eq!((posted.status, posted.field("WWW-Authenticate")), (401, Some("Bearer")));
    // The application's own redirect and its refusal stand.
    let moved = client.request("GET", "/a%20b.txt", &[("Cookie", "moved")]);
    assert_eq!(moved.field("Location"), Some("https://login.example/?rd=x"));
    assert_eq!(client.request("GET", "/a%20b.txt", &[("Cookie", "stranger")]).status, 403);
    assert_eq!(client.request("GET", "/a%20b.txt", &[("Cookie", "ann")]).text(), "static");
    drop(server);
    let server = Server::with_site(&site, &toml("https://sso.example/in?rd=$scheme://$host$request_uri"));
    let moved = server.connect().request("GET", "/a%20b.txt", &[("Host", "x.example:81")]);
    let scheme = if is_secure() { "https" } else { "http" };
    let expected = format!("https://sso.example/in?rd={scheme}://x.example%3A81/a%2520b.txt");
    assert_eq!(moved.field("Location"), Some(&*expected));
}

#[test]
fn authorizer_that_cannot_be_reached_denies_everything() {
    let (site, app) = (Site::new(), Backend::echo());
    let (authorizer, _) = authorizer();
    let server = serve(&site, &authorizer, &app);
    let address = authorizer.address;
    drop(authorizer);
    wait_until("the authorizer to end", || std::net::TcpStream::connect(address).is_err());
    let mut client = server.connect();
    for path in PATHS {
        assert_eq!(client.request("GET", path, &[("Cookie", "ann")]).status, 500, "{path}");
    }
}

#[test]
fn authorizer_gets_request_without_body_and_application_gets_user() {
    let (site, (authorizer, asked), app) = (Site::new(), authorizer(), Backend::echo());
    let server = serve(&site, &authorizer, &app);
    let mut client = server.connect();
    let fields = [
        ("Cookie", "ann"),
        ("remote-user", "root"),
        ("X-Original-URI", "/public/a.txt"),
        ("X-Forwarded-Uri", "/public/a.txt"),
        ("Connection", "Remote-User"),
        ("If-None-Match", "\"x\""),
        ("Content-Length", "5"),
    ];
    client.send_request("POST", "/app/x%20y?z", &fields);
    client.send("hello");
    let response = client.response("POST");
    let text = response.text();
    assert_eq!(response.status, 200, "{text}");
    assert!(text.starts_with("POST /app/x%20y?z HTTP/1.1\n") && text.ends_with("\n\nhello"), "{text}");
    let users: Vec<&str> = text.lines().filter(|line| line.to_ascii_lowercase().starts_with("remote-user:")).collect();
    assert_eq!(users, ["Remote-User: ann"], "{text}");
    let asked = asked.lock().unwrap();
    let [question] = &asked[..] else { panic!("{asked:?}") };
    assert_eq!(question.line, "GET /auth?q HTTP/1.1");
    for (name, expected) in [
        ("Cookie", Some("ann")),
        ("X-Original-Method", Some("POST")),
        ("X-Original-URI", Some("/app/x%20y?z")),
        ("X-Forwarded-Method", Some("POST")),
        ("X-Forwarded-Uri", Some("/app/x%20y?z")),
        ("Content-Length", None),
        ("If-None-Match", None),
    ] {
        assert_eq!(value(question, name), expected, "{name}: {question:?}");
    }
    assert!(value(question, "X-Original-URL").is_some_and(|url| url.ends_with("/app/x%20y?z")), "{question:?}");
    assert!(value(question, "X-Forwarded-For").is_some(), "{question:?}");
}

#[test]
fn denied_request_leaves_connection_usable() {
    let (site, (authorizer, _), app) = (Site::new(), authorizer(), Backend::echo());
    let server = serve(&site, &authorizer, &app);
    let mut client = server.connect();
    for path in ["/app/x", "/a.txt"] {
        client.send_request("POST", path, &[("Content-Length", "100000")]);
        client.send(pattern(100_000));
        assert_eq!(client.response("POST").status, 401);
        assert_eq!(client.request("GET", "/a.txt", &[("Cookie", "ann")]).text(), "static");
    }
}

#[test]
fn pages_for_one_user_are_not_sent_to_another() {
    let (site, (authorizer, _)) = (Site::new(), authorizer());
    let app = Backend::start(|_, peer| {
        while let Some(arrived) = peer.request() {
            let user = value(&arrived, "Remote-User").unwrap_or("nobody");
            let head = format!("HTTP/1.1 200 OK\r\nCache-Control: max-age=60\r\nContent-Length: {}", user.len());
            peer.send(format!("{head}\r\n\r\n{user}"));
        }
    });
    let server = serve(&site, &authorizer, &app);
    let mut client = server.connect();
    for (cookie, user) in [("ann", "ann"), ("bob", "nobody"), ("ann", "ann")] {
        assert_eq!(client.request("GET", "/app/x", &[("Cookie", cookie)]).text(), user);
    }
}

#[test]
fn streams_of_http2_are_authorized_each() {
    let (site, (authorizer, _), app) = (Site::new(), authorizer(), Backend::echo());
    let server = serve(&site, &authorizer, &app);
    let mut http2 = Http2::connect(&server);
    for path in PATHS {
        let streams = ["ann", "none", "moved", "ann"].map(|cookie| http2.request("GET", path, &[("cookie", cookie)]));
        let statuses = streams.map(|stream| http2.response(stream).status);
        assert_eq!(statuses, [200, 401, 302, 200], "{path}");
    }
}

/// An application whose responses have these lines, and the requests it got.
fn answers(lines: impl Fn(&Arrived) -> String + Send + Sync + 'static) -> (Backend, Arc<Mutex<Vec<Arrived>>>) {
    let all: Arc<Mutex<Vec<Arrived>>> = Arc::default();
    let asked = Arc::clone(&all);
    let backend = Backend::start(move |_, peer| {
        while let Some(arrived) = peer.request() {
            let lines = lines(&arrived);
            asked.lock().unwrap().push(arrived);
            peer.send(format!("HTTP/1.1 {lines}Content-Length: 0\r\n\r\n"));
        }
    });
    (backend, all)
}

/// A table that authorises the requests of a directory at this path.
fn table(directory: &str, question: &str, copied: &str) -> String {
    format!(
        "[[site.authorize]]\ndirectory = \"{directory}\"\nrequest = \"{question}\"\ncopy_to_request = [\"{copied}\"]\n"
    )
}

/// A table that forwards the requests of a pattern.
fn forward(pattern: &str, backend: &Backend, keys: &str) -> String {
    format!("[[site.app]]\nmatch = \"{pattern}\"\nhttp = [\"{}\"]\n{keys}\n", backend.address)
}

#[test]
fn rewritten_request_satisfies_rules_of_both_paths() {
    let (authorizer, asked) = answers(|arrived| {
        let cookie = value(arrived, "Cookie").unwrap_or("nobody");
        let (status, field) = match &*arrived.line {
            "GET /auth?admin HTTP/1.1" if cookie == "root" => ("200 OK", "Remote-User"),
            "GET /auth?user HTTP/1.1" if cookie != "nobody" => ("200 OK", "Remote-Groups"),
            _ => ("403 No", "X-None"),
        };
        format!("{status}\r\n{field}: {cookie}\r\n")
    });
    let (site, app) = (Site::new(), Backend::echo());
    site.file("admin/x.txt", "x");
    let tables = [
        table("/admin/", "/auth?admin", "Remote-User"),
        table("/front/", "/auth?user", "Remote-Groups"),
        "[[site.route]]\nmatch = \"/admin/panel/**\"\nrewrite = \"/front/$1\"\n".into(),
        "[[site.route]]\nmatch = \"/admin/same\"\nrewrite = \"/admin/x.txt\"\n".into(),
        "[[site.route]]\nmatch = \"/open/**\"\nrewrite = \"/front/$1\"\n".into(),
        forward("/auth", &authorizer, ""),
        forward("/front/**", &app, ""),
    ];
    let server = Server::with_site(&site, &tables.concat());
    let mut client = server.connect();
    let lies = [("Remote-User", "root"), ("Remote-Groups", "root"), ("remote_user", "root")];
    let mut get = |target: &str, cookie: &str| {
        let fields: Vec<_> = [("Cookie", cookie)].into_iter().chain(lies).collect();
        client.request("GET", target, &fields)
    };
    for (target, cookie, status) in [
        ("/admin/x.txt", "ann", 403),
        ("/admin/x.txt", "root", 200),
        ("/front/x", "nobody", 403),
        ("/front/x", "ann", 200),
        ("/open/x", "nobody", 403),
        ("/open/x", "ann", 200),
        ("/admin/panel/x", "nobody", 403),
        ("/admin/panel/x", "ann", 403),
        ("/admin/panel/x", "root", 200),
    ] {
        assert_eq!(get(target, cookie).status, status, "{target} {cookie}");
    }
    let text = get("/admin/panel/x", "root").text();
    let mut copied: Vec<&str> = text.lines().filter(|line| line.to_ascii_lowercase().starts_with("remote")).collect();
    copied.sort_unstable();
    assert_eq!(copied, ["Remote-Groups: root", "Remote-User: root"], "{text}");
    let questions = || asked.lock().unwrap().len();
    let before = questions();
    get("/admin/panel/x", "root");
    assert_eq!(questions(), before + 2);
    get("/admin/same", "root");
    assert_eq!(questions(), before + 3, "one rule of both paths is asked once");
}

/// An application that is authorised names a page of another, which gets the user too.
#[test]
fn page_behind_authorized_redirect_is_for_its_client() {
    let (authorizer, _) = authorizer();
    let (gate, _) = answers(|_| "200 OK\r\nX-Accel-Redirect: /c/inner\r\n".into());
    let inner = Backend::start(|_, peer| {
        while let Some(arrived) = peer.request() {
            let user = value(&arrived, "Remote-User").unwrap_or("nobody");
            let is_for_all = arrived.line.contains("public");
            let control = if is_for_all { "public, max-age=60" } else { "max-age=60" };
            let head = format!("HTTP/1.1 200 OK\r\nCache-Control: {control}\r\nContent-Length: {}", user.len());
            peer.send(format!("{head}\r\n\r\n{user}"));
        }
    });
    let site = Site::new();
    let tables = [
        table("/gate/", "/auth", "Remote-User"),
        forward("/auth", &authorizer, ""),
        forward("/gate/**", &gate, ""),
        forward("/c/**", &inner, "cache = \"1m\""),
    ];
    let server = Server::with_site(&site, &tables.concat());
    let mut client = server.connect();
    for (cookie, user) in [("ann", "ann"), ("bob", "nobody"), ("ann", "ann")] {
        let response = client.request("GET", "/gate/x", &[("Cookie", cookie)]);
        assert_eq!((response.text().as_str(), response.field("Age")), (user, None), "{cookie}");
    }
    let response = client.get("/c/inner");
    assert_eq!((response.text().as_str(), response.field("Age")), ("nobody", None));
}

#[test]
fn authorized_response_is_private_by_any_name() {
    let (authorizer, _) = authorizer();
    let (app, _) = answers(|_| "200 OK\r\n".into());
    let (gate, _) = answers(|_| "200 OK\r\nX-Accel-Redirect: /open/a.txt\r\n".into());
    let site = Site::new();
    for name in ["private/s.txt", "open/a.txt", "front.txt"] {
        site.file(name, "text");
    }
    let route = |from: &str, to: &str| format!("[[site.route]]\nmatch = \"{from}\"\nrewrite = \"{to}\"\n");
    let tables = [
        table("/private/", "/auth", "Remote-User"),
        route("/private/app/**", "/app/$1"),
        route("/private/file", "/open/a.txt"),
        "[[site.fallback]]\ndirectory = \"/\"\nfile = \"/front.txt\"\n".into(),
        forward("/auth", &authorizer, ""),
        forward("/private/gate", &gate, ""),
        forward("/app/**", &app, ""),
        "[[site.headers]]\nmatch = \"/open/*.css\"\ncache_control = \"max-age=5\"\n".into(),
        route("/private/style", "/open/a.css"),
    ];
    site.file("open/a.css", "css");
    let server = Server::with_site(&site, &tables.concat());
    let mut client = server.connect();
    let ann = ("Cookie", "ann");
    // In the second round, the heads are cached.
    for _ in 0..2 {
        for target in ["s.txt", "app/x", "file", "none", "gate"].map(|name| format!("/private/{name}")) {
            assert_eq!(client.get(&target).status, 401, "{target}");
            let response = client.request("GET", &target, &[ann]);
            assert_eq!((response.status, response.field("Cache-Control")), (200, Some("private")), "{target}");
        }
        for target in ["/open/a.txt", "/app/x", "/none"] {
            let response = client.get(target);
            assert_eq!((response.status, response.field("Cache-Control")), (200, None), "{target}");
        }
        let tag = client.get("/open/a.txt").field("ETag").unwrap().to_owned();
        let known = client.request("GET", "/private/file", &[ann, ("If-None-Match", &tag)]);
        assert_eq!((known.status, known.field("Cache-Control")), (304, Some("private")));
        let styled = client.request("GET", "/private/style", &[ann]);
        assert_eq!(styled.field("Cache-Control"), Some("max-age=5"), "a rule says otherwise");
    }
}

/// As an application renews a session: the cookie is for one client, whatever the response.
#[test]
fn fields_of_an_admission_are_added_to_the_response() {
    let (authorizer, _) = answers(|arrived| {
        let cookie = value(arrived, "Cookie").unwrap_or("none");
        format!("200 OK\r\nX-Auth-User: {cookie}\r\nSet-Cookie: s={cookie}\r\nSet-Cookie: t=1\r\nX-Other: a\r\n")
    });
    let app = Backend::start(|_, peer| {
        while let Some(arrived) = peer.request() {
            let user = value(&arrived, "X-User").unwrap_or("nobody").to_owned();
            let length = user.len();
            let head = "HTTP/1.1 200 OK\r\nCache-Control: private=\"X-A\", public\r\nCache-Control: s-maxage=60\r\n\
                        Set-Cookie: own=1\r\nContent-Length: ";
            peer.send(format!("{head}{length}\r\n\r\n{user}"));
        }
    });
    let site = Site::new();
    site.file("in/a.txt", "text");
    site.file("in/b.css", "css");
    let tables = [
        table("/in/", "/auth", "X-Auth-User") + "copy_to_response = [\"Set-Cookie\"]\n",
        forward("/auth", &authorizer, ""),
        forward("/in/app", &app, "cache = \"1m\"\nrequest_fields = { X-User = \"$http_x_auth_user\" }"),
        "[[site.headers]]\nmatch = \"/in/*.css\"\ncache_control = \"public, max-age=60\"\n".to_owned(),
    ];
    let server = Server::with_site(&site, &tables.concat());
    let mut client = server.connect();
    // In the second round, the heads are cached.
    for user in ["ann", "bob", "ann", "bob"] {
        let mut get = |target: &str| {
            // Fields of the client with these names are removed.
            let response =
                client.request("GET", target, &[("Cookie", user), ("X-Auth-User", "root"), ("X-User", "root")]);
            let is_cookie = |(name, _): &&(String, String)| name.eq_ignore_ascii_case("Set-Cookie");
            let cookies: Vec<String> =
                response.fields.iter().filter(is_cookie).map(|(_, value)| value.clone()).collect();
            assert_eq!(response.field("Cache-Control"), Some("private, no-cache"), "{target}");
            assert_eq!(response.field("X-Other"), None);
            (response.status, response.text(), cookies)
        };
        let cookies = [format!("s={user}"), "t=1".to_owned()].to_vec();
        assert_eq!(get("/in/a.txt"), (200, "text".to_owned(), cookies.clone()));
        assert_eq!(get("/in/b.css"), (200, "css".to_owned(), cookies.clone()));
        let (status, _, of_error) = get("/in/missing");
        assert_eq!((status, &of_error), (404, &cookies));
        let with_own = [vec!["own=1".to_owned()], cookies].concat();
        assert_eq!(get("/in/app"), (200, user.to_owned(), with_own));
    }
}

#[test]
fn authorizer_judges_path_that_is_served() {
    let (authorizer, asked) = answers(|arrived| {
        let uri = value(arrived, "X-Original-URI").unwrap_or_default();
        (if uri.starts_with("/public/") { "200 OK\r\n" } else { "403 No\r\n" }).into()
    });
    let site = Site::new();
    site.file("private/s.txt", "secret");
    site.file("public/a b.txt", "open");
    let server = Server::with_site(&site, &(table("/", "/auth", "Remote-User") + &forward("/auth", &authorizer, "")));
    let mut client = server.connect();
    for target in [
        "/private/s.txt",
        "/public/../private/s.txt",
        "/public/%2e%2e/private/s.txt",
        "/public/.%2E/private/s.txt?/public/",
        "//private//s.txt",
        "/%70rivate/./s.txt",
        "/public/x/../../private/s.txt",
    ] {
        assert_eq!(client.get(target).status, 403, "{target}");
        let asked = asked.lock().unwrap();
        let question = asked.last().unwrap();
        let expected = if target.contains('?') { "/private/s.txt?/public/" } else { "/private/s.txt" };
        for name in ["X-Original-URI", "X-Forwarded-Uri"] {
            assert_eq!(value(question, name), Some(expected), "{target} {name}");
        }
        let url = value(question, "X-Original-URL").unwrap();
        assert!(url.ends_with(expected) && !url.contains(".."), "{target} {url}");
    }
    for target in ["/public/a%20b.txt", "/private/../public/a%20b.txt?q", "/%70ublic/a%20%62.txt"] {
        assert_eq!(client.get(target).text(), "open", "{target}");
    }
}

#[test]
fn fields_of_connection_do_not_reach_application() {
    let (site, (authorizer, _), app) = (Site::new(), authorizer(), Backend::echo());
    let server = serve(&site, &authorizer, &app);
    let fields = [
        ("Cookie", "ann"),
        ("Connection", "X-Hop, Content-Length, Host"),
        ("X-Hop", "1"),
        ("X-End", "2"),
        ("Content-Length", "5"),
    ];
    let mut client = server.connect();
    client.send_request("POST", "/app/x", &fields);
    client.send("hello");
    let response = client.response("POST");
    let text = response.text();
    assert_eq!(response.status, 200, "{text}");
    let sent = |name: &str| text.lines().any(|line| line.to_ascii_lowercase().starts_with(name));
    // HTTP/2 has no such field.
    assert_eq!((sent("x-hop:"), sent("x-end:")), (is_http2(), true), "{text}");
    assert!(sent("remote-user: ann") && text.ends_with("\n\nhello"), "{text}");
}

#[test]
fn limit_by_user_counts_the_user_that_the_authorizer_names() {
    let (authorizer, _) = authorizer();
    let site = Site::new();
    site.file("a.txt", "static");
    let toml = format!(
        "[[site.authorize]]\ndirectory = \"/\"\nrequest = \"/auth\"\nuser = \"Remote-User\"\n\
         [[site.limit]]\nmatch = \"/a.txt\"\nkey = \"user\"\nrequests = \"1/h\"\nburst = 2\n\
         [[site.app]]\nmatch = \"/auth\"\nhttp = [\"{}\"]\n",
        authorizer.address
    );
    let server = Server::with_site(&site, &toml);
    let of = |cookie: &str| {
        let fields = [("Cookie", cookie), ("Remote-User", "eve")];
        server.connect().request("GET", "/a.txt", &fields).status
    };
    assert_eq!(["ann"; 3].map(of), [200, 200, 429]);
    // Without a name, and refused: both count by their address.
    assert_eq!(["bob", "stranger", "stranger", "bob", "nobody"].map(of), [200, 403, 429, 429, 429]);
}
