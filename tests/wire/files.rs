//! Static files: the mapping of paths to files, which files may be served, and the metadata of responses.
//!
//! The promise behind the refusals: nothing outside the root, nothing hidden, and nothing that the server's user may
//! not read leaves the machine, however the path is written; and no file in a root can stop the server.

use std::fs::{self, File, Permissions};
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, lchown, symlink};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime};

use flate2::Compression;
use flate2::write::GzEncoder;

use super::harness::{Client, Response, Server, Site, has_processes, let_files_settle, need_root, pattern, wait_until};

/// Returns the status, and the target of a redirect.
fn outcome(client: &mut Client, target: &str) -> (u16, Option<String>) {
    let response = client.get(target);
    (response.status, response.field("Location").map(str::to_owned))
}

fn check_text(client: &mut Client, target: &str, expected: &str) {
    let response = client.get(target);
    assert_eq!((response.status, response.text().as_str()), (200, expected), "{target}");
}

fn check_status(client: &mut Client, target: &str, status: u16) {
    assert_eq!(client.get(target).status, status, "{target}");
}

/// Returns whether the tests run as root, which may read every file.
fn is_root() -> bool {
    fs::metadata("/proc/self").unwrap().uid() == 0
}

#[test]
fn directory_serves_its_index() {
    let site = Site::new();
    site.file("index.html", "root");
    site.file("a/index.html", "a");
    site.file("a/index.htm", "not the first choice");
    site.file("b/index.htm", "b");
    site.file("c/other.html", "c");
    fs::create_dir_all(site.path().join("d/index.html")).unwrap();
    site.file("d/index.htm", "d");
    let server = Server::serve(&site);
    let mut client = server.connect();
    check_text(&mut client, "/", "root");
    check_text(&mut client, "/?query", "root");
    check_text(&mut client, "/a/", "a");
    check_text(&mut client, "//a///", "a");
    check_text(&mut client, "/b/", "b");
    check_text(&mut client, "/a/index.htm", "not the first choice");
    check_status(&mut client, "/c/", 403);
    // A directory of that name is not an index.
    check_text(&mut client, "/d/", "d");
    check_status(&mut client, "/d/index.html", 301);
    check_status(&mut client, "/d/index.html/", 403);
    assert_eq!(client.get("/b/").field("Content-Type"), Some("text/html; charset=utf-8"));

    let server = Server::with_site(&site, "index = [\"other.html\"]");
    let mut client = server.connect();
    check_text(&mut client, "/c/", "c");
    check_status(&mut client, "/a/", 403);
}

#[test]
fn file_with_trailing_slash_is_not_a_directory() {
    let site = Site::new();
    site.file("file.txt", "text");
    let server = Server::serve(&site);
    let mut client = server.connect();
    check_text(&mut client, "/file.txt", "text");
    for target in ["/file.txt/", "/file.txt/x", "/file.txt/index.html", "/file.txt/."] {
        check_status(&mut client, target, 404);
    }
    // `..` is resolved before the disk is accessed, as browsers do.
    check_text(&mut client, "/file.txt/../file.txt", "text");
}

#[test]
fn directory_without_slash_redirects_within_site() {
    let site = Site::new();
    for folder in
        ["folder/sub", "evil.example", "\\evil.example", "a b", "ä", "q?x", "#", "%2e", "a%", "'\"<>", ":80", "@x"]
    {
        site.file(&format!("{folder}/index.html"), "index");
    }
    let server = Server::serve(&site);
    let mut client = server.connect();
    let mut check = |target: &str, location: &str| {
        assert_eq!(outcome(&mut client, target), (301, Some(location.to_owned())), "{target}");
        // The redirect leads to the page.
        check_text(&mut client, location, "index");
    };
    check("/folder/sub", "/folder/sub/");
    check("/folder/sub?a=b&c=%20d?e", "/folder/sub/?a=b&c=%20d?e");
    check("/folder/sub?", "/folder/sub/?");
    check("/folder/sub?//evil.example", "/folder/sub/?//evil.example");
    check("/a%20b", "/a%20b/");
    check("/%C3%A4", "/%C3%A4/");
    check("/q%3Fx?y", "/q%3Fx/?y");
    check("/%23", "/%23/");
    check("/%252e", "/%252e/");
    check("/a%25", "/a%25/");
    check("/'%22<>", "/%27%22%3C%3E/");
    check("/%3A80", "/:80/");
    check("/@x", "/@x/");
    // A browser treats `//name` and `/\name` as another host.
    check("//evil.example", "/evil.example/");
    check("///evil.example", "/evil.example/");
    check("/./%2e//evil.example", "/evil.example/");
    check("/x/..//evil.example", "/evil.example/");
    check("/\\evil.example", "/%5Cevil.example/");
    check("/%5Cevil.example", "/%5Cevil.example/");
    check("//%5Cevil.example", "/%5Cevil.example/");
    check("http://localhost//evil.example", "/evil.example/");
    let mut check = |target: &str| {
        let (status, location) = outcome(&mut client, target);
        assert!(status == 404 && location.is_none(), "{target}: {status} {location:?}");
    };
    check("/%2f%2fevil.example");
    check("/%2fevil.example");
    check("/%2Fevil.example/");
    check("//evil.example%2f");
    check("//evil.example%2f..");
    check("/%0d%0aLocation:%20http://evil.example");
}

#[test]
fn dotfiles_are_hidden_except_well_known() {
    let site = Site::new();
    for name in [
        ".env",
        ".git/config",
        "a/.htpasswd",
        "a/.git/config",
        ".well-known/security.txt",
        ".well-known/.secret",
        ".well-known/a/b",
        "a/.well-known/x",
        ".well-knownx/y",
        "..x",
        "...",
        "a.b",
    ] {
        site.file(name, name);
    }
    symlink(".env", site.path().join("link")).unwrap();
    let targets = [
        "/.env",
        "/.git/config",
        "/.git",
        "/.git/",
        "/a/.htpasswd",
        "/a/.git/config",
        "/.well-known/.secret",
        "/a/.well-known/x",
        "/.well-knownx/y",
        "/..x",
        "/...",
        "/%2eenv",
        "/%2Eenv",
        "/a/%2ehtpasswd",
        "//.env",
        "/a/../.env",
        "/./.env",
        "/.missing",
        "/.env?x",
    ];
    let server = Server::serve(&site);
    let mut client = server.connect();
    for target in targets {
        // As if nothing existed: the response reveals nothing.
        check_status(&mut client, target, 404);
    }
    check_text(&mut client, "/.well-known/security.txt", ".well-known/security.txt");
    check_text(&mut client, "/%2ewell-known/a/b", ".well-known/a/b");
    check_text(&mut client, "/a.b", "a.b");
    // A link to a hidden file was made on purpose.
    check_text(&mut client, "/link", ".env");

    let server = Server::with_site(&site, "dotfiles = true");
    let mut client = server.connect();
    check_text(&mut client, "/.env", ".env");
    check_text(&mut client, "/a/%2ehtpasswd", "a/.htpasswd");
    check_text(&mut client, "/...", "...");
}

#[test]
fn no_path_escapes_root() {
    let site = Site::new();
    site.file("secret", "secret");
    site.file("root/a/b/file", "file");
    site.file("root/top", "top");
    let server = Server::start(&[site.path().join("root").to_str().unwrap()]);
    let mut client = server.connect();
    for target in [
        "/..",
        "/../",
        "/../secret",
        "/../root/top",
        "/../../../../etc/passwd",
        "/a/../../secret",
        "/a/b/../../../secret",
        "/%2e%2e/secret",
        "/%2E%2e/secret",
        "/.%2e/secret",
        "/%2e./secret",
        "//../secret",
        "/./../secret",
        "/%2e/%2e%2e/secret",
        "/a/%2e%2e/%2e%2e/secret",
        "http://localhost/../secret",
    ] {
        check_status(&mut client, target, 400);
    }
    for target in [
        "/..%2fsecret",
        "/%2e%2e%2fsecret",
        "/a%2f..%2f..%2fsecret",
        "/a/..%2f..%2fsecret",
        "/..%5csecret",
        "/..\\secret",
        "/a/..\\..\\secret",
        // Decoded only once.
        "/%252e%252e/secret",
        "/%252e%252e%252fsecret",
        "/..%252fsecret",
        // Overlong encodings of a dot and a slash are invalid.
        "/%c0%ae%c0%ae/secret",
        "/..%c0%afsecret",
        "/%u002e%u002e/secret",
        "/...//secret",
        "/..;/secret",
        "/..%20/secret",
        "/.../secret",
        "/..%09/secret",
    ] {
        let status = client.get(target).status;
        assert!(status == 404 || status == 400, "{target}: {status}");
    }
    check_text(&mut client, "/a/../top", "top");
    check_text(&mut client, "/a/b/%2e%2e/./../top", "top");
    check_text(&mut client, "/a/b/..//b/./file", "file");
    check_status(&mut client, "/a/b/..", 403);
}

#[test]
fn odd_paths_are_rejected_or_not_found() {
    let site = Site::new();
    site.file("file", "file");
    site.file("a/b", "b");
    let server = Server::serve(&site);
    let mut client = server.connect();
    for target in [
        "/%00",
        "/file%00",
        "/file%00.html",
        "/a%00/../file",
        "/%",
        "/%2",
        "/%zz",
        "/file%",
        "/%%20",
        "/%2x",
        "/a%g0/b",
    ] {
        check_status(&mut client, target, 400);
    }
    for target in [
        "/a%2Fb",
        "/a%2fb",
        "/%2F",
        "/%2ffile",
        "/File",
        "/file%20",
        "/file.",
        "/%ff",
        "/%0a",
        "/file%0d%0a",
        "/~",
        "/~root/",
    ] {
        check_status(&mut client, target, 404);
    }
    // A name too long for any file system, a path too long for any, and a line longer than the server's limit.
    check_status(&mut client, &format!("/{}", "x".repeat(255)), 404);
    check_status(&mut client, &format!("/{}", "x".repeat(300)), 404);
    check_status(&mut client, &format!("/{}/", "x".repeat(300)), 404);
    check_status(&mut client, &"/x".repeat(2500), 404);
    check_status(&mut client, &format!("/{}", "a/../".repeat(1500)), 403);
    check_text(&mut client, "/file", "file");
    let response = client.get(&format!("/{}", "x".repeat(10_000)));
    assert_eq!((response.status, response.field("Connection")), (414, Some("close")));
    assert!(client.ends());
}

#[test]
fn links_outside_root_are_refused() {
    let site = Site::new();
    site.file("secret/file", "secret");
    site.file("root/a/file", "file");
    site.file("root/a/index.html", "index");
    let root = site.path().join("root");
    fs::create_dir(root.join("i")).unwrap();
    for (link, target) in [
        ("inside", "a/file"),
        ("a/up", "../a/file"),
        ("folder", "a"),
        ("twice", "inside"),
        ("relative", "../secret/file"),
        ("absolute", site.path().join("secret/file").to_str().unwrap()),
        ("etc", "/etc"),
        ("passwd", "/etc/passwd"),
        ("through", "etc/passwd"),
        ("out", "../secret"),
        ("out-and-in", "../root/a/file"),
        ("absolute-inside", root.join("a/file").to_str().unwrap()),
        ("proc", "/proc/self/root/etc/passwd"),
        ("i/index.html", "../../secret/file"),
        ("nowhere", "missing"),
        ("loop", "loop"),
        ("ping", "pong"),
        ("pong", "ping"),
    ] {
        symlink(target, root.join(link)).unwrap();
    }
    let server = Server::start(&[root.to_str().unwrap(), "--listing"]);
    let mut client = server.connect();
    // Twice: a refused file must not come from a cache either.
    for _ in 0..2 {
        check_text(&mut client, "/inside", "file");
        check_text(&mut client, "/a/up", "file");
        check_text(&mut client, "/folder/file", "file");
        check_text(&mut client, "/folder/", "index");
        check_text(&mut client, "/twice", "file");
        check_text(&mut client, "/out-and-in", "file");
        check_text(&mut client, "/absolute-inside", "file");
        check_status(&mut client, "/folder", 301);
        for target in [
            "/relative",
            "/absolute",
            "/etc",
            "/etc/",
            "/etc/passwd",
            "/passwd",
            "/through",
            "/out",
            "/out/",
            "/out/file",
            "/proc",
            "/i/",
        ] {
            check_status(&mut client, target, 403);
        }
        for target in ["/nowhere", "/loop", "/loop/x", "/ping"] {
            check_status(&mut client, target, 404);
        }
    }
    // Each refusal is logged once per name, with the target of the link.
    for (name, where_to) in [("/passwd", "/etc/passwd"), ("/out/file", "/secret/file"), ("/proc", "a link of /proc")] {
        let refused = format!(": {name} is refused: ");
        server.wait_for(&refused);
        let said = server.said();
        let lines: Vec<&str> = said.lines().filter(|line| line.contains(&refused)).collect();
        assert!(!lines.is_empty() && lines.iter().all(|line| line.contains(where_to)), "{name}: {lines:?}");
        assert!(lines.len() == 1 || has_processes(), "{lines:?}");
    }
}

#[test]
fn symlink_policy_of_site_is_obeyed() {
    need_root("links of other owners");
    let site = Site::new();
    let root = site.path().canonicalize().unwrap().join("root");
    site.file("outside.txt", "outside");
    site.file("root/page.txt", "page");
    site.file("root/docs/index.html", "index");
    site.file("root/docs/more.txt", "more");
    for (link, target) in [
        ("relative.txt", PathBuf::from("page.txt")),
        ("absolute.txt", root.join("page.txt")),
        ("theirs.txt", root.join("page.txt")),
        ("folder", root.join("docs")),
        ("out.txt", "../outside.txt".into()),
    ] {
        symlink(target, root.join(link)).unwrap();
    }
    lchown(root.join("theirs.txt"), Some(12_345), None).unwrap();
    let targets =
        ["/page.txt", "/relative.txt", "/absolute.txt", "/folder/", "/folder/more.txt", "/theirs.txt", "/out.txt"];
    let config = site.path().with_extension("toml");
    for (symlinks, expected) in [
        ("within", [200, 200, 200, 200, 200, 200, 403]),
        ("owner", [200, 200, 200, 200, 200, 403, 403]),
        ("any", [200, 200, 200, 200, 200, 200, 200]),
        ("none", [200, 403, 403, 403, 403, 403, 403]),
    ] {
        let text =
            format!("listen = ['127.0.0.1:0']\n[[site]]\nroot = {root:?}\nlisting = true\nsymlinks = '{symlinks}'\n");
        fs::write(&config, text).unwrap();
        let server = Server::start(&["--config", config.to_str().unwrap()]);
        let mut client = server.connect();
        for _ in 0..2 {
            let statuses = targets.map(|target| client.get(target).status);
            assert_eq!(statuses, expected, "{symlinks}");
        }
        // A listing shows only entries that the server would serve.
        let page = client.get("/").text();
        for (target, status) in targets.iter().zip(expected).filter(|(target, _)| !target[1..].contains('/')) {
            assert_eq!(page.contains(&target[1..]), status == 200, "{symlinks} {target} in {page}");
        }
    }
}

/// Starts a server that may not read every file: as root, it switches to nobody.
fn unprivileged(site: &Site, flags: &[&str]) -> Server {
    // Temporary directories are accessible to their owner only.
    fs::set_permissions(site.path(), Permissions::from_mode(0o755)).unwrap();
    let mut args = vec![site.path().to_str().unwrap()];
    args.extend(flags);
    if is_root() {
        args.extend(["--user", "nobody"]);
    }
    Server::start(&args)
}

#[test]
fn unreadable_file_is_403() {
    let site = Site::new();
    let forbid = |path: &str| {
        let path = site.path().join(path);
        fs::set_permissions(&path, Permissions::from_mode(0o000)).unwrap();
        path
    };
    site.file("open.txt", "open");
    site.file("closed.txt", "closed");
    site.file("folder/file", "inside");
    site.file("index/index.html", "index");
    site.file("page.html", "page");
    site.file("page.html.gz", "compressed");
    for path in ["closed.txt", "index/index.html", "page.html.gz"] {
        forbid(path);
    }
    let folder = forbid("folder");
    let server = unprivileged(&site, &["--listing"]);
    let mut client = server.connect();
    for _ in 0..2 {
        check_text(&mut client, "/open.txt", "open");
        for target in ["/closed.txt", "/folder/file", "/folder/missing", "/folder/", "/index/"] {
            check_status(&mut client, target, 403);
        }
        // The original is served if its sibling is not readable.
        let response = client.request("GET", "/page.html", &[("Accept-Encoding", "gzip")]);
        assert_eq!((response.status, response.field("Content-Encoding")), (200, None));
    }
    fs::set_permissions(folder, Permissions::from_mode(0o755)).unwrap();
}

#[test]
fn special_file_is_403_and_does_not_block() {
    let site = Site::new();
    site.file("file", "file");
    let pipe = |name: &str| {
        fs::create_dir_all(site.path().join(name).parent().unwrap()).unwrap();
        assert!(Command::new("mkfifo").arg(site.path().join(name)).status().unwrap().success());
    };
    pipe("pipe");
    pipe("folder/index.html");
    pipe("file.gz");
    let _socket = UnixListener::bind(site.path().join("socket")).unwrap();
    // One helper, so that a single blocking request would block them all.
    let server = Server::configured(&site, "[helpers]\nmax = 1");
    let mut client = server.connect();
    for _ in 0..2 {
        for target in ["/pipe", "/socket", "/folder/"] {
            check_status(&mut client, target, 403);
        }
        let response = client.request("GET", "/file", &[("Accept-Encoding", "gzip")]);
        assert_eq!((response.status, response.text().as_str()), (200, "file"));
    }
    for target in ["/pipe/", "/socket/", "/pipe/x"] {
        let status = client.get(target).status;
        assert!(status == 403 || status == 404, "{target}: {status}");
    }
    check_text(&mut client, "/file", "file");
}

#[test]
fn file_names_may_contain_any_byte() {
    let site = Site::new();
    let names: [&[u8]; 20] = [
        b"with space",
        "Käse & Brot – ¥.txt".as_bytes(),
        "日本語".as_bytes(),
        b"'single' \"double\"",
        b"100%",
        b"%41",
        b"a?b",
        b"a#b",
        b"a;b=c,d",
        b"a:b",
        b"a\\b",
        b"<b>&amp;",
        b"line\nbreak",
        b"tab\tand\rreturn",
        b"\x01\x7f",
        b"latin-1 \xe4",
        b"\xff\xfe",
        b"[x]{y}|^`",
        b"a+b=c@d!e$f*(g)",
        b"~tilde",
    ];
    for name in names {
        fs::write(site.path().join(std::ffi::OsStr::from_bytes(name)), name).unwrap();
    }
    let server = Server::serve(&site);
    let mut client = server.connect();
    for name in names {
        let all: String = name.iter().map(|byte| format!("%{byte:02x}")).collect();
        let few: String = name
            .iter()
            .map(|&byte| match byte {
                b'%' | b'?' | b'#' | b'/' | ..=b' ' | 0x7f.. => format!("%{byte:02X}"),
                _ => char::from(byte).to_string(),
            })
            .collect();
        for target in [format!("/{all}"), format!("/{few}"), format!("/{few}?x")] {
            let response = client.get(&target);
            assert!((response.status, &response.body[..]) == (200, name), "{target}: {response:?}");
        }
    }
    // Unencoded UTF-8: no browser sends it, some tools do.
    check_text(&mut client, "/日本語", "日本語");
}

#[test]
fn extension_determines_media_type() {
    let site = Site::new();
    let server = |toml: &str| Server::with_site(&site, toml);
    let check = |server: &Server, name: &str, expected: &str| {
        site.file(name, "x");
        let mut client = server.connect();
        let target = format!("/{name}");
        assert_eq!(client.get(&target).field("Content-Type"), Some(expected), "{name}");
        let part = client.request("GET", &target, &[("Range", "bytes=0-0")]);
        assert_eq!((part.status, part.field("Content-Type")), (206, Some(expected)), "{name}");
    };
    let plain = server("");
    check(&plain, "a.html", "text/html; charset=utf-8");
    check(&plain, "A.HTML", "text/html; charset=utf-8");
    check(&plain, "a.css", "text/css; charset=utf-8");
    check(&plain, "a.js", "text/javascript; charset=utf-8");
    check(&plain, "a.txt", "text/plain; charset=utf-8");
    check(&plain, "a.svg", "image/svg+xml");
    check(&plain, "a.png", "image/png");
    check(&plain, "a.json", "application/json");
    check(&plain, "a.wasm", "application/wasm");
    check(&plain, "a.woff2", "font/woff2");
    check(&plain, "a.tar.gz", "application/gzip");
    check(&plain, "a.unknown", "application/octet-stream");
    check(&plain, "Makefile", "application/octet-stream");
    check(&plain, "html", "application/octet-stream");
    check(&plain, "a.", "application/octet-stream");
    check(&plain, "dir.html/file", "application/octet-stream");

    let own = server(
        "charset = \"iso-8859-1\"\ndefault_type = \"text/plain\"\n[site.types]\nhtml = \"application/xhtml+xml\"\n\
         log = \"text/plain; charset=us-ascii\"\nUNKNOWN = \"x/y\"",
    );
    check(&own, "a.html", "application/xhtml+xml");
    check(&own, "a.css", "text/css; charset=iso-8859-1");
    check(&own, "a.log", "text/plain; charset=us-ascii");
    check(&own, "a.unknown", "x/y");
    check(&own, "Makefile", "text/plain; charset=iso-8859-1");
    check(&server("charset = \"\""), "a.html", "text/html");
}

const HEADERS: &str = r#"
[[site.headers]]
match = "**"
cache_control = "no-cache"
set = { "X-All" = "1", "X-Later" = "first" }
[[site.headers]]
match = "*.css"
cache_control = "max-age=31536000, immutable"
set = { "x-later" = "css" }
[[site.headers]]
match = "/private/**"
set = { "X-Later" = "private", "X-Robots-Tag" = "noindex" }
[[site.headers]]
match = "/a b/ü.txt"
set = { "X-Exact" = "yes" }
"#;

#[test]
fn headers_match_by_pattern_and_later_rule_wins() {
    let site = Site::new();
    for name in ["index.html", "style.css", "private/style.css", "private/page.html", "a b/ü.txt"] {
        site.file(name, "0123456789");
    }
    let server = Server::with_site(&site, HEADERS);
    let mut client = server.connect();
    let mut check = |target: &str, cache_control: &str, later: &str, robots: Option<&str>| {
        let whole = client.get(target);
        let etag = whole.field("ETag").unwrap().to_owned();
        let replies = [
            (200, whole),
            (200, client.request("HEAD", target, &[])),
            (206, client.request("GET", target, &[("Range", "bytes=1-2")])),
            (206, client.request("GET", target, &[("Range", "bytes=1-2,4-5")])),
            (304, client.request("GET", target, &[("If-None-Match", &etag)])),
        ];
        for (status, response) in replies {
            let field = |name| response.field(name);
            let shown =
                (response.status, field("Cache-Control"), field("X-Later"), field("X-Robots-Tag"), field("X-All"));
            assert_eq!(shown, (status, Some(cache_control), Some(later), robots, Some("1")), "{target}");
            assert_eq!(field("X-Exact").is_some(), target.starts_with("/a%20b"), "{target}");
        }
        // On errors too, except Cache-Control: a stored error would outlive its cause.
        for (status, field, value) in [(412, "If-Match", "\"x\""), (416, "Range", "bytes=99-"), (417, "Expect", "x")] {
            let response = client.request("GET", target, &[(field, value)]);
            let shown = (response.status, response.field("Cache-Control"), response.field("X-Later"));
            assert_eq!(shown, (status, None, Some(later)), "{target}");
            assert_eq!(response.field("X-Robots-Tag"), robots, "{target}");
        }
        let response = client.request("POST", target, &[]);
        assert_eq!((response.status, response.field("X-Later")), (405, Some(later)), "{target}");
    };
    check("/", "no-cache", "first", None);
    check("/index.html", "no-cache", "first", None);
    check("/style.css", "max-age=31536000, immutable", "css", None);
    check("/private/style.css", "max-age=31536000, immutable", "private", Some("noindex"));
    check("/private/page.html", "no-cache", "private", Some("noindex"));
    check("/a%20b/%c3%bc.txt", "no-cache", "first", None);
}

#[test]
fn headers_on_errors_match_requested_path() {
    let site = Site::new();
    site.file("private/folder/x", "x");
    let server = Server::with_site(&site, HEADERS);
    let mut client = server.connect();
    let mut check = |method: &str, target: &str, status: u16, later: &str| {
        let response = client.request(method, target, &[]);
        let shown = (response.status, response.field("X-Later"), response.field("X-All"));
        assert_eq!(shown, (status, Some(later), Some("1")), "{method} {target}");
        assert_eq!(response.field("Cache-Control"), None, "{method} {target}");
    };
    check("GET", "/missing", 404, "first");
    check("GET", "/missing.css", 404, "css");
    check("GET", "/missing.c%73s", 404, "css");
    check("GET", "/private/missing", 404, "private");
    check("GET", "//private/missing", 404, "private");
    check("GET", "/pr%69vate/missing", 404, "private");
    check("GET", "/x/../private/missing", 404, "private");
    check("GET", "/private/../missing", 404, "first");
    check("GET", "/private/.hidden", 404, "private");
    check("GET", "/private/folder", 301, "private");
    check("GET", "//private/folder/", 403, "private");
    check("POST", "//private/folder/", 405, "private");
    // As a CORS preflight requires.
    check("OPTIONS", "/private/folder/", 204, "private");
    check("OPTIONS", "/missing.css", 204, "css");
    check("OPTIONS", "*", 204, "first");
    // The request has no path: the rules for all paths apply.
    check("GET", "/%", 400, "first");
    check("GET", "/private/../..", 400, "first");
}

#[test]
fn header_rules_append_and_spare_errors() {
    let site = Site::new();
    site.file("a", "a");
    let toml = "[[site.headers]]\nmatch = \"**\"\nappend = { Link = \"</1>\" }\nset = { X-Set = \"1\" }\n\
                [[site.headers]]\nmatch = \"**\"\nappend = { Link = \"</2>\" }\nremove = [\"x-set\"]\nerrors = false\n";
    let server = Server::with_site(&site, toml);
    let mut client = server.connect();
    let mut check = |target: &str, status: u16, links: &[&str], set: bool| {
        // The second response comes from the cache.
        for _ in 0..2 {
            let response = client.get(target);
            let fields = response.lasting_fields();
            let found: Vec<&str> = fields
                .iter()
                .filter(|(name, _)| name.eq_ignore_ascii_case("link"))
                .map(|(_, value)| value.as_str())
                .collect();
            assert_eq!(
                (response.status, &found[..], response.field("X-Set").is_some()),
                (status, links, set),
                "{target}"
            );
        }
    };
    check("/a", 200, &["</1>", "</2>"], false);
    check("/missing", 404, &["</1>"], true);
}

/// By the type of the file, also if the response has none (304) or another one (several ranges).
#[test]
fn header_rules_apply_by_media_type() {
    let site = Site::new();
    for name in ["page.html", "style.css", "a.png", "list/x"] {
        site.file(name, "0123456789");
    }
    let toml = "listing = true\n\
                [[site.headers]]\nmatch = \"**\"\ncache_control = \"max-age=9\"\nset = { X-Type = \"other\" }\n\
                [[site.headers]]\nmatch = \"**\"\nmedia_type = \"image/*\"\ncache_control = \"max-age=1\"\n\
                [[site.headers]]\nmatch = \"**\"\nmedia_type = \"~*^TEXT/(html|css)$\"\nset = { X-Type = \"text\" }\nappend = { X-More = \"1\" }\n\
                [[site.headers]]\nmatch = \"**\"\nmedia_type = \"text/html\"\ncache_control = \"no-cache\"\n";
    let server = Server::with_site(&site, toml);
    let mut client = server.connect();
    let mut check = |target: &str, cache_control: &str, kind: &str| {
        // Twice, because heads are cached.
        for _ in 0..2 {
            let whole = client.get(target);
            let etag = whole.field("ETag").unwrap().to_owned();
            let mut responses = vec![(200, whole), (304, client.request("GET", target, &[("If-None-Match", &etag)]))];
            if !target.ends_with('/') {
                responses.push((206, client.request("GET", target, &[("Range", "bytes=1-2,4-5")])));
            }
            for (status, response) in responses {
                let fields = ["Cache-Control", "X-Type", "X-More"].map(|name| response.field(name));
                let expected = [Some(cache_control), Some(kind), (kind == "text").then_some("1")];
                assert_eq!((response.status, fields), (status, expected), "{target}");
            }
        }
    };
    check("/page.html", "no-cache", "text");
    check("/style.css", "max-age=9", "text");
    check("/a.png", "max-age=1", "other");
    check("/list/", "no-cache", "text");
    let missing = server.get("/missing.png");
    assert_eq!((missing.status, missing.field("X-Type"), missing.field("Cache-Control")), (404, Some("text"), None));
}

#[test]
fn header_rule_may_replace_server() {
    let site = Site::new();
    site.file("a", "a");
    let server = Server::with_site(&site, "[[site.headers]]\nmatch = \"**\"\nset = { \"server\" = \"kettle\" }");
    let mut client = server.connect();
    for target in ["/a", "/a", "/missing"] {
        // `field` panics on a repeated field.
        assert_eq!(client.get(target).field("Server"), Some("kettle"), "{target}");
    }
}

#[test]
fn site_has_its_own_error_pages() {
    let site = Site::new();
    site.file("errors/404.html", "<p>lost\n");
    site.file("errors/404.html.gz", "never sent");
    site.file("errors/403.txt", "no\n");
    site.file("errors/large.html", pattern(200_000));
    site.file("file", "file");
    fs::create_dir(site.path().join("empty")).unwrap();
    let toml = "[[site.headers]]\nmatch = \"**\"\ncache_control = \"max-age=60\"\n[site.errors]\n404 = \"/errors/404.html\"\n\
                403 = \"/errors/403.txt\"\n400 = \"/errors/missing.html\"\n405 = \"/errors/large.html\"\n417 = \"/empty\"";
    let server = Server::with_site(&site, toml);
    let mut client = server.connect();
    let mut check = |method: &str, target: &str, fields: &[(&str, &str)], status: u16, kind: &str, body: &[u8]| {
        for _ in 0..2 {
            let response = client.request(method, target, fields);
            assert_eq!((response.status, response.field("Content-Type")), (status, Some(kind)), "{method} {target}");
            assert!(response.body == body, "{method} {target}: {}", response.text());
            // The page represents the requested path, so the response must not describe the page itself.
            for name in ["ETag", "Last-Modified", "Accept-Ranges", "Cache-Control", "Content-Encoding"] {
                assert_eq!(response.field(name), None, "{method} {target}: {name}");
            }
        }
    };
    let html = "text/html; charset=utf-8";
    check("GET", "/missing", &[("Accept-Encoding", "gzip")], 404, html, b"<p>lost\n");
    check("GET", "/.hidden", &[], 404, html, b"<p>lost\n");
    check("GET", "/missing", &[("Range", "bytes=0-1"), ("If-None-Match", "*")], 404, html, b"<p>lost\n");
    check("HEAD", "/missing", &[], 404, html, b"");
    check("GET", "/empty/", &[], 403, "text/plain; charset=utf-8", b"no\n");
    check("POST", "/file", &[], 405, html, &pattern(200_000));
    // The page itself is an ordinary page.
    let page = client.get("/errors/404.html");
    assert_eq!((page.status, page.text().as_str(), page.field("ETag").is_some()), (200, "<p>lost\n", true));
    // A missing page, or a directory, does not cause another error.
    let response = client.get("/%");
    assert!(response.status == 400 && response.text().contains("400 Bad Request"), "{}", response.text());
    let response = client.request("GET", "/file", &[("Expect", "x")]);
    assert!(response.status == 417 && response.text().contains("417"), "{}", response.text());
    assert_eq!(client.request("HEAD", "/missing", &[]).field("Content-Length"), Some("8"));
}

#[test]
fn error_page_of_class_serves_statuses_without_their_own() {
    let site = Site::new();
    for name in ["404", "4xx", "5xx"] {
        site.file(&format!("{name}.txt"), name);
    }
    let toml = "[site.errors]\n4xx = \"/4xx.txt\"\n404 = \"/404.txt\"\n5xx = \"/5xx.txt\"";
    let server = Server::with_site(&site, toml);
    let mut client = server.connect();
    let mut check = |method: &str, target: &str, fields: &[(&str, &str)], status: u16, body: &str| {
        for _ in 0..2 {
            let response = client.request(method, target, fields);
            assert_eq!(response.status, status, "{method} {target}");
            assert!(response.text().contains(body), "{method} {target}: {}", response.text());
        }
    };
    check("GET", "/missing", &[], 404, "404");
    check("GET", "/", &[], 403, "4xx");
    check("POST", "/404.txt", &[], 405, "4xx");
    check("BREW", "/404.txt", &[], 501, "5xx");
    // It needs details that only the built-in page has.
    check("GET", "/404.txt", &[("Range", "bytes=9-")], 416, "416 Range Not Satisfiable");
}

#[test]
fn host_selects_site() {
    let site = Site::new();
    let mut config = "listen = [\"127.0.0.1:0\"]\n".to_owned();
    for (name, hosts) in [
        ("default", "\"default.example\""),
        ("one", "\"one.example\", \"www.one.example\""),
        ("stars", "\"*.star.example\""),
        ("deep", "\"*.deep.star.example\", \"exact.star.example\""),
        ("six", "\"[::1]\""),
    ] {
        let file = site.file(&format!("{name}/who"), name);
        config += &format!("[[site]]\nroot = {:?}\nhosts = [{hosts}]\n", file.parent().unwrap());
    }
    let config = site.file("amped.toml", config);
    let server = Server::start(&["--config", config.to_str().unwrap()]);
    let mut client = server.connect();
    let mut check = |host: &str, expected: &str| {
        let response = client.request("GET", "/who", &[("Host", host)]);
        assert_eq!((response.status, response.text().as_str()), (200, expected), "{host}");
    };
    check("default.example", "default");
    check("one.example", "one");
    check("ONE.Example", "one");
    check("one.example.", "one");
    check("one.example:8080", "one");
    check("www.one.example", "one");
    check("other.one.example", "default");
    check("xone.example", "default");
    check("a.star.example", "stars");
    check("a.b.star.example", "stars");
    check("A.STAR.EXAMPLE:80", "stars");
    check("star.example", "default");
    check("xstar.example", "default");
    check("x.deep.star.example", "deep");
    check("deep.star.example", "stars");
    check("exact.star.example", "deep");
    check("a.exact.star.example", "stars");
    check("[::1]", "six");
    check("[::1]:80", "six");
    check("127.0.0.1", "default");
    check("", "default");
    check("*.star.example", "stars");
    client.send("GET /who HTTP/1.0\r\n\r\n");
    assert_eq!(client.response("GET").text(), "default");
}

/// A directory in a user's home, removed when dropped, with the account if the test created it.
struct Home {
    folder: PathBuf,
    made_user: Option<&'static str>,
}

impl Drop for Home {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
        if let Some(user) = self.made_user {
            let _ = Command::new("userdel").args(["--remove", user]).output();
        }
    }
}

/// Returns the name of a user with a home that the test may write to, and that home, or `None` if there is none.
fn find_user(folder: &str) -> Option<(String, Home)> {
    let me = fs::metadata("/proc/self").unwrap().uid();
    let find = || {
        fs::read_to_string("/etc/passwd").unwrap().lines().find_map(|line| {
            let fields: Vec<&str> = line.split(':').collect();
            let uid: u32 = fields.get(2)?.parse().ok()?;
            let usable = uid >= 1000 && (me == 0 || uid == me) && Path::new(fields.get(5)?).is_dir();
            usable.then(|| (fields[0].to_owned(), PathBuf::from(fields[5])))
        })
    };
    let mut made_user = None;
    let (name, home) = find().or_else(|| {
        let created = me == 0
            && Command::new("useradd").args(["--create-home", "amped-wire"]).status().is_ok_and(|s| s.success());
        made_user = created.then_some("amped-wire");
        find()
    })?;
    let folder = home.join(folder);
    fs::create_dir(&folder).ok()?;
    Some((name, Home { folder, made_user }))
}

#[test]
fn user_directories_are_served_only_if_enabled() {
    let folder = format!("amped-wire-{}", std::process::id());
    let (user, home) =
        find_user(&folder).expect("an account with a writable home directory: run this as root, or create one");
    fs::create_dir(home.folder.join("sub")).unwrap();
    for (name, text) in [("index.html", "home"), ("file.txt", "file"), (".hidden", "x"), ("sub/page", "page")] {
        fs::write(home.folder.join(name), text).unwrap();
    }
    symlink("/etc/passwd", home.folder.join("passwd")).unwrap();
    symlink("../", home.folder.join("up")).unwrap();
    let site = Site::new();
    site.file("~own/file", "own");
    site.file("about", "about");

    let off = Server::serve(&site);
    let mut client = off.connect();
    check_status(&mut client, &format!("/~{user}/file.txt"), 404);
    check_text(&mut client, "/~own/file", "own");

    let on = Server::with_site(&site, &format!("user_dirs = {folder:?}"));
    let mut client = on.connect();
    for _ in 0..2 {
        check_text(&mut client, &format!("/~{user}/file.txt"), "file");
        check_text(&mut client, &format!("/%7e{user}/sub/page"), "page");
        check_text(&mut client, &format!("/~{user}/"), "home");
        assert_eq!(outcome(&mut client, &format!("/~{user}?x")), (301, Some(format!("/~{user}/?x"))));
        assert_eq!(outcome(&mut client, &format!("//~{user}/sub")), (301, Some(format!("/~{user}/sub/"))));
        for path in ["passwd", "up/", "up"] {
            check_status(&mut client, &format!("/~{user}/{path}"), 403);
        }
        for path in [".hidden", "missing", "%2e%2e%2ffile.txt"] {
            check_status(&mut client, &format!("/~{user}/{path}"), 404);
        }
        for target in ["/~", "/~/", "/~no-such-user-here/", "/~own/file", "/~../", "/~%2e%2e/"] {
            check_status(&mut client, target, 404);
        }
        check_text(&mut client, &format!("/~{user}/../about"), "about");
        check_text(&mut client, "/about", "about");
    }
    if is_root() {
        // System accounts are excluded: root's directory stays private, even if it has one of this name.
        let roots = Home { folder: Path::new("/root").join(&folder), made_user: None };
        fs::create_dir(&roots.folder).unwrap();
        fs::write(roots.folder.join("file.txt"), "root's").unwrap();
        check_status(&mut client, "/~root/file.txt", 404);
        check_status(&mut client, "/~root", 404);
    }
}

/// The targets of a page's links to entries, with HTML escapes decoded.
fn links(page: &str) -> Vec<String> {
    let unescape = |text: &str| {
        text.replace("&lt;", "<")
            .replace("&gt;", ">")
            .replace("&quot;", "\"")
            .replace("&#39;", "'")
            .replace("&amp;", "&")
    };
    page.split("<a href=\"")
        .skip(1)
        .map(|rest| unescape(rest.split('"').next().unwrap()))
        .filter(|l| l.starts_with("./"))
        .collect()
}

#[test]
fn directories_are_listed_only_if_enabled() {
    let site = Site::new();
    site.file("a", "a");
    check_status(&mut Server::serve(&site).connect(), "/", 403);
    check_status(&mut Server::with_site(&site, "listing = false").connect(), "/", 403);
    check_status(&mut Server::with_site(&site, "listing = true").connect(), "/", 200);
    check_status(&mut Server::start(&[site.path().to_str().unwrap(), "--listing"]).connect(), "/", 200);
}

#[test]
fn listing_shows_only_servable_entries() {
    let site = Site::new();
    let names: [&[u8]; 12] = [
        b"plain.txt",
        b"<script>alert(1)",
        b"\"><img src=x>",
        b"'single'",
        b"a&b;c",
        b"javascript:alert(1)",
        b"100% #1?",
        b"with space",
        "Käse".as_bytes(),
        b"\xff latin",
        b"new\nline",
        b"%2e%2e",
    ];
    for name in names {
        fs::create_dir_all(site.path().join("root")).unwrap();
        fs::write(site.path().join("root").join(std::ffi::OsStr::from_bytes(name)), name).unwrap();
    }
    let root = site.path().join("root");
    site.file("root/folder/index.html", "index");
    site.file("root/.hidden", "x");
    site.file("root/.well-known/x", "x");
    site.file("secret", "secret");
    for (link, target) in
        [("good", "plain.txt"), ("out", "../secret"), ("etc", "/etc"), ("nowhere", "missing"), ("in", "folder")]
    {
        symlink(target, root.join(link)).unwrap();
    }
    assert!(Command::new("mkfifo").arg(root.join("pipe")).status().unwrap().success());
    let server = Server::start(&[root.to_str().unwrap(), "--listing"]);
    let mut client = server.connect();
    let response = client.get("/");
    assert_eq!((response.status, response.field("Content-Type")), (200, Some("text/html; charset=utf-8")));
    let page = response.text();
    for evil in ["<script", "<img", "href=\"javascript", "hidden", "well-known", "out", "etc", "nowhere", "pipe"] {
        assert!(!page.contains(evil), "{evil} in {page}");
    }
    // Every link leads to its file.
    let links = links(&page);
    assert_eq!(links.len(), names.len() + 3, "{links:?}");
    for link in &links {
        let response = client.get(&link[1..]);
        assert_eq!(response.status, 200, "{link}");
    }
    for expected in ["./folder/", "./good", "./in/", "./%2e%2e".replace('%', "%25").as_str(), "./javascript:alert(1)"] {
        assert!(links.iter().any(|link| link == expected), "{expected} in {links:?}");
    }
    assert!(!page.contains("href=\"../\""), "the root has a link to its parent");
    let server = Server::start(&[site.path().to_str().unwrap(), "--listing"]);
    assert!(server.get("/root/").text().contains("href=\"../\""));
}

/// The names of a JSON listing in its order. Amped writes one entry per line.
fn json_names(response: &Response) -> Vec<String> {
    let name = |line: &str| line.split("{\"name\":\"").nth(1)?.split('"').next().map(str::to_owned);
    response.text().lines().filter_map(name).collect()
}

#[test]
fn listing_is_sorted_as_requested_in_each_format() {
    let site = Site::new();
    for (name, size, time) in [("b.txt", 10, 30), ("A.txt", 20, 20), ("c.txt", 5, 10)] {
        let path = site.file(&format!("files/{name}"), vec![b'x'; size]);
        let time = SystemTime::UNIX_EPOCH + Duration::from_secs(1_600_000_000 + time);
        File::options().write(true).open(path).unwrap().set_modified(time).unwrap();
    }
    fs::create_dir(site.path().join("files/z")).unwrap();
    let server = Server::start(&[site.path().to_str().unwrap(), "--listing"]);
    let mut client = server.connect();
    let mut check = |query: &str, expected: [&str; 4]| {
        let json = client.request("GET", &format!("/files/{query}"), &[("Accept", "application/json")]);
        assert_eq!((json.status, json.field("Content-Type")), (200, Some("application/json")), "{query}");
        assert_eq!(json.field("Vary"), Some("Accept"), "{query}");
        assert_eq!(json_names(&json), expected, "{query}");
        let html = client.get(&format!("/files/{query}"));
        assert_eq!(html.field("Vary"), Some("Accept"), "{query}");
        let expected: Vec<String> =
            expected.iter().map(|name| if *name == "z" { "./z/".to_owned() } else { format!("./{name}") }).collect();
        assert_eq!(links(&html.text()), expected, "{query}");
    };
    check("", ["z", "A.txt", "b.txt", "c.txt"]);
    check("?sort=name&order=desc", ["z", "c.txt", "b.txt", "A.txt"]);
    check("?sort=size", ["z", "c.txt", "b.txt", "A.txt"]);
    check("?order=desc&sort=size", ["z", "A.txt", "b.txt", "c.txt"]);
    check("?sort=time&order=asc", ["z", "c.txt", "A.txt", "b.txt"]);
    check("?sort=time&order=desc", ["z", "b.txt", "A.txt", "c.txt"]);
    check("?sort=%00&order=<script>", ["z", "A.txt", "b.txt", "c.txt"]);

    let json = client.request("GET", "/files/", &[("Accept", "text/html;q=0.5, application/json")]).text();
    let line = "{\"name\":\"b.txt\",\"type\":\"file\",\"size\":10,\"modified\":\"2020-09-13T12:27:10Z\"}";
    assert!(json.contains(line) && json.starts_with("{\"path\":\"/files/\",\"entries\":["), "{json}");
    for accept in ["*/*", "text/html, application/json", "application/json;q=0", "text/*, application/json;q=0.9", "x"]
    {
        let response = client.request("GET", "/files/", &[("Accept", accept)]);
        assert_eq!(response.field("Content-Type"), Some("text/html; charset=utf-8"), "{accept}");
    }
}

#[test]
fn precompressed_sibling_is_sent_if_accepted() {
    let site = Site::new();
    for name in ["page.html", "page.html.gz", "page.html.br", "page.html.zst", "only.css", "only.css.gz", "alone.txt"] {
        site.file(name, name);
    }
    site.file("sub/index.html", "index");
    site.file("sub/index.html.gz", "index, coded");
    let server = Server::serve(&site);
    let mut client = server.connect();
    let mut check = |target: &str, accept: Option<&str>, coding: Option<&str>| {
        let suffix = match coding {
            None => "",
            Some("gzip") => ".gz",
            Some("br") => ".br",
            Some("zstd") => ".zst",
            Some(other) => panic!("{other}"),
        };
        let fields: Vec<_> = accept.iter().map(|accept| ("Accept-Encoding", *accept)).collect();
        let response = client.request("GET", target, &fields);
        assert_eq!((response.status, response.field("Content-Encoding")), (200, coding), "{target} {accept:?}");
        assert_eq!(response.text(), format!("{}{suffix}", &target[1..]), "{target} {accept:?}");
        // RFC 9110, 12.5.5: also on the plain response, because other requests would not have received it.
        assert_eq!(response.field("Vary"), Some("Accept-Encoding"), "{target} {accept:?}");
        assert_eq!(response.field("Content-Type").unwrap().split(';').next().unwrap().split('/').next(), Some("text"));
        assert_eq!(client.request("HEAD", target, &fields).lasting_fields(), response.lasting_fields(), "{accept:?}");
    };
    let page = "/page.html";
    check(page, None, None);
    check(page, Some(""), None);
    check(page, Some("gzip"), Some("gzip"));
    check(page, Some("GZip"), Some("gzip"));
    check(page, Some("x-gzip"), Some("gzip"));
    check(page, Some("gzip, deflate, br, zstd"), Some("br"));
    check(page, Some("gzip, zstd"), Some("zstd"));
    check(page, Some("br;q=0.5, gzip;q=0.8, zstd;q=0.1"), Some("gzip"));
    check(page, Some("br;q=0.001, gzip;q=0"), Some("br"));
    check(page, Some("br;q=0, *"), Some("zstd"));
    check(page, Some("*"), Some("br"));
    check(page, Some("*;q=0"), None);
    check(page, Some("gzip;q=0"), None);
    check(page, Some("identity"), None);
    check(page, Some("identity, gzip;q=0.5"), None);
    check(page, Some("identity;q=0.5, gzip"), Some("gzip"));
    check(page, Some("identity;q=0, gzip"), Some("gzip"));
    check(page, Some("identity;q=0, *;q=0.1"), Some("br"));
    check(page, Some("deflate, compress"), None);
    check(page, Some("gzip;q=2, br;q=x"), None);
    check(page, Some("gzip;foo=bar"), None);
    let only = "/only.css";
    check(only, Some("br"), None);
    check(only, Some("br, gzip;q=0.1"), Some("gzip"));
    // Nothing acceptable: the plain file is more useful than an error (RFC 9110, 12.4.1).
    check(only, Some("br, identity;q=0"), None);

    // Two lines form one list.
    let two = [("Accept-Encoding", "deflate"), ("Accept-Encoding", "gzip")];
    assert_eq!(client.request("GET", page, &two).text(), "page.html.gz");
    // A file without siblings does not vary.
    let alone = client.request("GET", "/alone.txt", &[("Accept-Encoding", "gzip, br")]);
    assert_eq!((alone.field("Vary"), alone.text().as_str()), (None, "alone.txt"));
    let index = client.request("GET", "/sub/", &[("Accept-Encoding", "gzip")]);
    assert_eq!(
        (index.text().as_str(), index.field("Content-Type")),
        ("index, coded", Some("text/html; charset=utf-8"))
    );
}

#[test]
fn each_coding_has_its_own_etag_and_all_responses_vary() {
    let site = Site::new();
    for name in ["page.html", "page.html.gz", "page.html.br", "page.html.zst"] {
        site.file(name, "0123456789");
    }
    for form in ["full", "portable"] {
        let server = Server::with_site(&site, &format!("etag = {form:?}"));
        let mut client = server.connect();
        let mut tags = Vec::new();
        for coding in ["identity", "gzip", "br", "zstd"] {
            let accept = ("Accept-Encoding", coding);
            let tag = client.request("GET", "/page.html", &[accept]).field("ETag").unwrap().to_owned();
            assert!(tag.starts_with('"') && !tags.contains(&tag), "{tag} among {tags:?}");
            let mut check = |method: &str, field: (&str, &str), status: u16| {
                let response = client.request(method, "/page.html", &[accept, field]);
                assert_eq!((response.status, response.field("Vary")), (status, Some("Accept-Encoding")), "{field:?}");
                assert_eq!(response.field("ETag"), Some(&*tag), "{field:?}");
            };
            check("HEAD", ("X", "y"), 200);
            check("GET", ("Range", "bytes=1-2"), 206);
            check("GET", ("Range", "bytes=1-2,5-6"), 206);
            check("GET", ("If-None-Match", &tag), 304);
            check("HEAD", ("If-None-Match", &tag), 304);
            check("GET", ("If-Match", &tag), 200);
            tags.push(tag);
        }
    }
}

#[test]
fn sibling_older_than_original_is_ignored() {
    let site = Site::new();
    let at = |path: &Path, seconds: u64| {
        let time = SystemTime::UNIX_EPOCH + Duration::from_secs(1_600_000_000 + seconds);
        File::options().write(true).open(path).unwrap().set_modified(time).unwrap();
    };
    for (name, original, sibling) in [("old", 10, 9), ("same", 10, 10), ("new", 10, 11)] {
        at(&site.file(name, "plain"), original);
        at(&site.file(&format!("{name}.gz"), "coded"), sibling);
    }
    // Debian's brotli keeps the file's modification time without the fraction of a second.
    let fraction = site.file("fraction", "plain");
    let time = SystemTime::UNIX_EPOCH + Duration::from_millis(1_600_000_010_700);
    File::options().write(true).open(fraction).unwrap().set_modified(time).unwrap();
    at(&site.file("fraction.gz", "coded"), 10);
    let later = time + Duration::from_millis(200);
    File::options().write(true).open(site.file("rewritten", "plain")).unwrap().set_modified(later).unwrap();
    File::options().write(true).open(site.file("rewritten.gz", "coded")).unwrap().set_modified(time).unwrap();
    site.file("orphan.gz", "coded");
    site.file("folder", "plain");
    fs::create_dir(site.path().join("folder.gz")).unwrap();
    site.file("linked", "plain");
    symlink("/etc/passwd", site.path().join("linked.gz")).unwrap();
    site.file("z", "plain");
    site.file("z.zst", "coded");
    let server = Server::with_site(&site, "precompressed = [\"gzip\"]");
    let mut client = server.connect();
    let mut check = |target: &str, status: u16, text: &str, varies: bool| {
        let response = client.request("GET", target, &[("Accept-Encoding", "gzip, zstd")]);
        assert_eq!((response.status, response.field("Vary").is_some()), (status, varies), "{target}");
        assert!(status == 404 || response.text() == text, "{target}: {}", response.text());
    };
    check("/old", 200, "plain", false);
    check("/same", 200, "coded", true);
    check("/rewritten", 200, "plain", false);
    check("/new", 200, "coded", true);
    check("/fraction", 200, "coded", true);
    check("/orphan", 200, "coded", true);
    check("/folder", 200, "plain", false);
    check("/linked", 200, "plain", false);
    check("/z", 200, "plain", false);
    // Under its own name it is an ordinary file.
    let own = client.request("GET", "/orphan.gz", &[("Accept-Encoding", "gzip")]);
    let shown = (own.status, own.field("Content-Type"), own.field("Content-Encoding"));
    assert_eq!(shown, (200, Some("application/gzip"), None));
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

const TAKES_GZIP: (&str, &str) = ("Accept-Encoding", "gzip");

#[test]
fn lone_gzip_file_is_served_encoded_or_decompressed() {
    let site = Site::new();
    let text = pattern(200_000);
    let (large, index) = (gzip(&text), gzip(b"an index"));
    site.file("doc/changelog.txt.gz", &large);
    site.file("doc/index.html.gz", &index);
    site.file("empty.txt.gz", gzip(b""));
    // Only this file exists uncompressed.
    site.file("both.txt", "plain");
    site.file("both.txt.gz", "coded");
    let_files_settle();
    for keys in
        ["", "etag = 'portable'", "[cache]\npath_entries = 0", "[cache]\ncontent_bytes = 0\nmax_content_file_bytes = 0"]
    {
        let server = match keys.starts_with("etag") {
            true => Server::with_site(&site, keys),
            false => Server::configured(&site, keys),
        };
        let mut client = server.connect();
        // The client without gzip sends the first request, the last, and both in turn.
        for takes_gzip in [false, true, true, false] {
            let accept = if takes_gzip { vec![TAKES_GZIP] } else { vec![] };
            let mut ask = |method: &str, target: &str, more: &[(&str, &str)]| {
                let response = client.request(method, target, &[&accept[..], more].concat());
                assert_eq!(response.field("Vary"), Some("Accept-Encoding"), "{method} {target} {more:?}");
                assert_eq!(
                    response.field("Content-Encoding"),
                    takes_gzip.then_some("gzip").filter(|_| response.status != 304)
                );
                response
            };
            let expected: &[u8] = if takes_gzip { &large } else { &text };
            let size = expected.len();
            let target = "/doc/changelog.txt";
            let whole = ask("GET", target, &[]);
            assert!(whole.status == 200 && whole.body == expected, "{keys}: {} {}", whole.status, whole.body.len());
            assert_eq!(whole.field("Content-Type"), Some("text/plain; charset=utf-8"));
            assert_eq!(ask("HEAD", target, &[]).lasting_fields(), whole.lasting_fields());
            let tag = whole.field("ETag").unwrap().to_owned();
            assert!(tag.starts_with('"') && tag.ends_with("-gz\"") == takes_gzip, "{tag}");
            let date = whole.field("Last-Modified").unwrap().to_owned();
            assert_eq!(ask("GET", target, &[("If-None-Match", &tag)]).status, 304);
            assert_eq!(ask("HEAD", target, &[("If-Modified-Since", &date)]).status, 304);
            let part = ask("GET", target, &[("Range", "bytes=1000-1999"), ("If-Range", &tag)]);
            assert_eq!((part.status, &part.body[..]), (206, &expected[1000..2000]));
            assert_eq!(part.field("Content-Range"), Some(&*format!("bytes 1000-1999/{size}")));
            let several = ask("GET", target, &[("Range", "bytes=0-0,5-6")]);
            assert_eq!(several.status, 206);
            let expected: &[u8] = if takes_gzip { &index } else { b"an index" };
            assert!(ask("GET", "/doc/", &[]).body == expected);
            assert!(ask("GET", "/doc/index.html", &[]).body == expected);
            assert_eq!(ask("GET", "/empty.txt", &[]).body.len(), if takes_gzip { gzip(b"").len() } else { 0 });
        }
        // Beside its original a `.gz` file is sent as the compressed form, whatever it contains.
        assert_eq!(client.get("/both.txt").text(), "plain");
        assert_eq!(client.request("GET", "/both.txt", &[TAKES_GZIP]).text(), "coded");
        assert_eq!(client.request("PUT", "/empty.txt", &[]).status, 405);
        assert!(client.get("/doc/changelog.txt.gz").body == large);
        assert_eq!(client.get("/doc/changelog").status, 404);
    }
    let server = Server::with_site(&site, "precompressed = ['br']");
    assert_eq!(server.connect().request("GET", "/doc/changelog.txt", &[TAKES_GZIP]).status, 404);
}

/// By its own name the compressed file is the application's, which alone may send it.
#[test]
fn lone_gzip_file_beside_application_is_served_if_its_own_name_is_static() {
    let site = Site::new();
    site.file("a.txt.gz", gzip(b"text"));
    let_files_settle();
    let get = |pattern: &str| {
        let table = format!("[[site.app]]\nmatch = '{pattern}'\nstatic = true\n");
        let app = "[[site.app]]\nmatch = '/'\nhttp = ['127.0.0.1:9']\n";
        Server::with_site(&site, &format!("{table}{app}")).get("/a.txt")
    };
    assert_eq!(get("*.txt").status, 404);
    assert_eq!(get("*.{txt,txt.gz}").text(), "text");
}

#[test]
fn lone_gzip_file_change_is_detected() {
    let site = Site::new();
    site.file("a.txt.gz", gzip(b"the first"));
    let server = Server::configured(&site, "[cache]\nrevalidate = '20ms'");
    let mut client = server.connect();
    assert_eq!(client.get("/a.txt").text(), "the first");
    site.file("a.txt.gz", gzip(b"the second"));
    wait_until("the second version", || client.get("/a.txt").text() == "the second");
    assert_eq!(client.request("GET", "/a.txt", &[TAKES_GZIP]).body, gzip(b"the second"));
    site.file("a.txt", "by itself");
    wait_until("the uncompressed file", || client.get("/a.txt").text() == "by itself");
    fs::remove_file(site.path().join("a.txt")).unwrap();
    wait_until("the second again", || client.get("/a.txt").text() == "the second");
    fs::remove_file(site.path().join("a.txt.gz")).unwrap();
    wait_until("status 404", || client.get("/a.txt").status == 404);
}

#[test]
fn corrupt_lone_gzip_file_is_logged() {
    let site = Site::new();
    let whole = gzip(&pattern(100_000));
    site.file("cut.txt.gz", &whole[..whole.len() / 2]);
    site.file("none.txt.gz", "no gzip");
    // A gigabyte of zeros in a megabyte, as concatenated gzip members.
    site.file("bomb.txt.gz", gzip(&vec![0; 16 << 20]).repeat(64));
    site.file("exact.txt.gz", gzip(&[b'x'; 100_000]));
    site.file("above.txt.gz", gzip(&[b'x'; 100_001]));
    let_files_settle();
    let server = Server::configured(&site, "[cache]\nmax_unpacked_file_bytes = 100000");
    let mut client = server.connect();
    for _ in 0..3 {
        for (target, status) in
            [("/cut.txt", 500), ("/none.txt", 500), ("/bomb.txt", 406), ("/above.txt", 406), ("/exact.txt", 200)]
        {
            let response = client.get(target);
            assert_eq!(response.status, status, "{target}");
            assert!(status == 200 || response.text().contains("in compressed form only"), "{}", response.text());
            let head = client.request("HEAD", target, &[]);
            assert_eq!((head.status, head.body.len()), (status, 0), "{target}");
            // A client that accepts gzip receives the file unchanged.
            assert_eq!(client.request("GET", target, &[TAKES_GZIP]).status, 200, "{target}");
        }
    }
    let said = server.said();
    for (name, times) in [
        ("/cut.txt exists only as .gz, which is damaged", 1..),
        ("/bomb.txt exists only as .gz, which unpacks to more than", 1..),
        ("/exact.txt", 0..),
    ] {
        let count = said.matches(name).count();
        assert!(times.contains(&count), "{name}: {count}\n{said}");
        assert!(name != "/exact.txt" || count == 0, "{said}");
        assert!(has_processes() || count <= 1, "{said}");
    }
}

#[test]
fn lone_gzip_file_is_hidden_if_its_own_name_is() {
    let site = Site::new();
    for name in [
        "denied/a.txt.gz",
        "inner/a.txt.gz",
        "fixed/a.txt.gz",
        "pages/a.php.gz",
        "open/a.txt.gz",
        ".hid/a.txt.gz",
        "private/a.txt.gz",
        "moved/a.txt.gz",
    ] {
        site.file(name, gzip(b"secret"));
    }
    site.file("open/.b.txt.gz", gzip(b"secret"));
    site.file("pages/index.php.gz", gzip(b"secret"));
    symlink("/etc/passwd", site.path().join("open/c.txt.gz")).unwrap();
    symlink("/etc/passwd", site.path().join("open/d.txt")).unwrap();
    site.file("open/d.txt.gz", gzip(b"secret"));
    fs::create_dir(site.path().join("open/e.txt.gz")).unwrap();
    let accounts = site.path().with_extension("users");
    fs::write(&accounts, format!("ann:{}\n", bcrypt::hash("pass", 4).unwrap())).unwrap();
    let tables = format!(
        "index = ['index.php']\n\
         [[site.route]]\nmatch = '/denied/*.gz'\ndeny = true\n\
         [[site.route]]\nmatch = '/inner/*.gz'\ninternal = true\n\
         [[site.route]]\nmatch = '/fixed/*.gz'\nrespond = 'gone'\n\
         [[site.route]]\nmatch = '/all/**'\nrewrite = '/moved/$1'\n\
         [[site.route]]\nmatch = '/moved/**'\ninternal = true\n\
         [[site.app]]\nmatch = '*.php'\ncgi = true\n\
         [[site.auth]]\ndirectory = '/private/a.txt.gz/'\naccounts = {accounts:?}\n\
         [[site.auth]]\ndirectory = '/open/guarded/'\naccounts = {accounts:?}\n"
    );
    let_files_settle();
    let server = Server::with_site(&site, &tables);
    let mut client = server.connect();
    for accept in [&[][..], &[TAKES_GZIP]] {
        for _ in 0..2 {
            for (target, status) in [
                ("/open/a.txt", 200),
                ("/all/a.txt", 200),
                ("/denied/a.txt", 403),
                ("/inner/a.txt", 404),
                ("/fixed/a.txt", 404),
                ("/moved/a.txt", 404),
                ("/private/a.txt", 404),
                ("/.hid/a.txt", 404),
                ("/open/.b.txt", 404),
                ("/open/c.txt", 403),
                ("/open/d.txt", 403),
                ("/open/e.txt", 404),
                ("/open/guarded/x.txt", 401),
                ("/pages/", 404),
            ] {
                let response = client.request("GET", target, accept);
                assert_eq!(response.status, status, "{target}");
                assert!(status == 200 || !response.text().contains("secret"), "{target}");
            }
            assert_ne!(client.request("GET", "/pages/a.php", accept).status, 200);
        }
    }
    fs::remove_file(accounts).unwrap();
}
