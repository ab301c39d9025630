//! Apache with mod_cgi on the same scripts: every difference must have a reason.
//!
//! Seeded random requests go to a script that prints all its variables, and to one that prints a random head. Both
//! servers must pass the same variables and return the same response. Each intended difference is an entry of
//! [`DIFFERENCES`], with its reason, or is removed by [`variables`], which states why.

use std::collections::BTreeMap;
use std::fs;
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Stdio};

use super::harness::{Client, Response, Server, Site, need_root, wait_until};
use super::peer;
use super::ports::free_addresses;
use super::requests::{Draw, Random};

/// A running Apache. Stopped when dropped.
struct Apache {
    child: Child,
    address: SocketAddr,
    _folder: tempfile::TempDir,
}

impl Apache {
    fn start(root: &Path) -> Apache {
        need_root("starts Apache, which becomes www-data");
        let folder = tempfile::tempdir().unwrap();
        let [address] = free_addresses();
        let (own, root) = (folder.path().display(), root.display());
        let module = |name: &str| format!("LoadModule {name}_module /usr/lib/apache2/modules/mod_{name}.so\n");
        let modules: String = ["mpm_prefork", "authz_core", "alias", "cgi"].map(module).concat();
        let text = format!(
            "{modules}ServerRoot {own}\nPidFile {own}/pid\nErrorLog {own}/error.log\nListen {address}\n\
             ServerName localhost\nServerTokens Prod\nUser www-data\nGroup www-data\nStartServers 1\nDocumentRoot {root}\n\
             ScriptAlias /cgi-bin/ {root}/cgi-bin/\n<Directory {root}>\nRequire all granted\n</Directory>\n"
        );
        let config = folder.path().join("apache.conf");
        fs::write(&config, text).unwrap();
        let mut command = peer("apache2");
        command.args(["-D", "FOREGROUND", "-f"]).arg(&config).stdout(Stdio::null()).stderr(Stdio::null());
        // Apache signals its whole process group at the end, which must not be the test's; and it passes
        // LD_LIBRARY_PATH on.
        let mut child = command.process_group(0).env_clear().spawn().expect("apache2");
        let log = folder.path().join("error.log");
        wait_until("Apache to listen", || {
            let ended = child.try_wait().unwrap();
            assert!(ended.is_none(), "Apache has exited: {}", fs::read_to_string(&log).unwrap_or_default());
            TcpStream::connect(address).is_ok()
        });
        Apache { child, address, _folder: folder }
    }
}

impl Drop for Apache {
    fn drop(&mut self) {
        // SIGTERM ends its children too; SIGKILL would not.
        let _ = peer("kill").arg(self.child.id().to_string()).status();
        let _ = self.child.wait();
    }
}

/// Returns the variables that a script printed, except those that must differ between two servers.
fn variables(response: &Response) -> BTreeMap<String, String> {
    let own = [
        // The server's name, its port, the client's port, and the number of the request.
        "SERVER_SOFTWARE",
        "SERVER_PORT",
        "REMOTE_PORT",
        "UNIQUE_ID",
        // The shell's own variables, and its search path, which the server chooses (RFC 3875, 7.2).
        "PWD",
        "OLDPWD",
        "SHLVL",
        "_",
        "PATH",
        // Apache's own variables, in no standard. Not DOCUMENT_ROOT, which is the test's in both servers.
        "SERVER_SIGNATURE",
        "SERVER_ADMIN",
        "REQUEST_SCHEME",
        "CONTEXT_PREFIX",
        "CONTEXT_DOCUMENT_ROOT",
        // Beyond the standard: a variable of nginx, and those of Apache's internal redirects.
        "DOCUMENT_URI",
        "REDIRECT_STATUS",
    ];
    let text = response.text();
    let pairs = text.lines().filter_map(|line| line.split_once('='));
    pairs.filter(|(name, _)| !own.contains(name)).map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

fn site() -> Site {
    let site = Site::new();
    fs::set_permissions(site.path(), fs::Permissions::from_mode(0o755)).unwrap();
    site.file("page.txt", "a page\n");
    let scripts = [
        ("env", "printf 'Content-Type: text/plain\\n\\n'; /usr/bin/env | sort"),
        // Its query names the heads that it prints, by number.
        ("says", "cat \"$(dirname \"$SCRIPT_FILENAME\")/../heads/$QUERY_STRING\""),
    ];
    for (name, text) in scripts {
        let path = site.file(&format!("cgi-bin/{name}"), format!("#!/bin/sh\n{text}\n"));
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    }
    site
}

#[test]
fn cgi_variables_agree_with_apache() {
    let site = site();
    let (server, apache) =
        (Server::with_site(&site, "[[site.app]]\nmatch = \"/cgi-bin/**\"\ncgi = true"), Apache::start(site.path()));
    let mut random = Random(7);
    let paths = ["", "/", "/a", "/a/b", "/a%20b", "/%C3%A9", "/a//b", "/a/../b", "/a/./b/", "/a;b", "/a+b&c"];
    let queries = ["", "?", "?a=b", "?a%20b", "?a+b=c&d", "?a?b", "?%00", "?a=b/../c"];
    let fields = [
        ("Accept", "text/*;q=0.5"),
        ("accept", "a/b"),
        ("X-One", "1"),
        ("X-One", "2"),
        ("x-two", " spaces  within "),
        ("Cookie", "a=b; c=d"),
        ("Proxy", "http://evil.example"),
        ("X_Under", "score"),
        ("User-Agent", "test (\"quoted\")"),
        ("Referer", "http://a.example/?b"),
        ("If-Modified-Since", "Tue, 02 Jan 2024 03:04:05 GMT"),
        ("Range", "bytes=0-1"),
    ];
    for n in 0..300 {
        let target = format!("/cgi-bin/env{}{}", random.one_of(&paths), random.one_of(&queries));
        let method = random.one_of(&["GET", "POST", "PUT", "DELETE", "PATCH"]);
        // The same name for both: different names would be one of the permitted differences.
        let mut sent = vec![("Host", "example.org:81")];
        sent.extend((0..random.below(5)).map(|_| random.one_of(&fields)));
        let body = if method == "POST" { "hello" } else { "" };
        if !body.is_empty() {
            sent.extend([("Content-Length", "5"), ("Content-Type", "a/b; c=d")]);
        }
        let ask = |address: SocketAddr| {
            let mut client = Client::connect(address);
            client.send_request(method, &target, &sent);
            client.send(body);
            client.response(method)
        };
        let (ours, theirs) = (ask(server.address), ask(apache.address));
        let what = format!("{n}: {method} {target} {sent:?}");
        assert_eq!(ours.status, theirs.status, "{what}");
        if ours.status == 200 {
            let (ours, mut theirs) = (variables(&ours), variables(&theirs));
            // Apache passes the port in Host; RFC 3875, 4.1.15 requires the port that received the request, and both
            // are excluded above. Apache also omits a content length of zero.
            if let Some(path) = ours.get("PATH_INFO")
                && theirs.get("PATH_INFO") != Some(path)
            {
                // Apache merges slashes in the path up to the script only (MergeSlashes), Amped in the whole path.
                assert!(target.contains("//"), "{what}: {ours:?} {theirs:?}");
                theirs.insert("PATH_INFO".into(), path.clone());
                theirs.insert("PATH_TRANSLATED".into(), ours["PATH_TRANSLATED"].clone());
            }
            // Two Cookie fields are not a list (RFC 6265, 5.4; RFC 9113, 8.2.3 defines how to join them); Apache makes
            // one of them.
            theirs.entry("HTTP_COOKIE".into()).and_modify(|cookies| *cookies = cookies.replace(", ", "; "));
            assert_eq!(ours, theirs, "{what}");
        }
    }
}

/// Header lines that Apache treats differently, and the reasons for Amped's treatment.
const DIFFERENCES: &[(&str, &str)] = &[
    (
        "no line at all",
        "Apache answers 500 for a script without a response head; RFC 9110, 15.6.3 requires 502 of a gateway",
    ),
    ("Status: 99", "not a status; Apache forwards the value"),
    (
        "Status: 100 Continue",
        "a final response would have to follow (RFC 9110, 15.2), and a script has only one response",
    ),
    ("X-Own: a\n folded: b", "line folding is obsolete (RFC 9112, 5.2), and RFC 3875 never had it"),
    ("Content-Length: x", "not a length; Apache removes the field"),
    ("Status: 200\nStatus: 404", "ambiguous; Apache uses the last"),
];

#[test]
fn cgi_responses_agree_with_apache() {
    let site = site();
    let (server, apache) =
        (Server::with_site(&site, "[[site.app]]\nmatch = \"/cgi-bin/**\"\ncgi = true"), Apache::start(site.path()));
    let lines = [
        "Content-Type: text/x-test",
        "Status: 404 Not Found",
        "Status: 201",
        "Status: 204 No Content",
        "Status: 301 Moved",
        "Location: http://a.example/b",
        "X-Own: a b  c",
        "x-empty:",
        "Cache-Control: no-store",
        "Set-Cookie: a=b",
        "Content-Language: de",
    ];
    let mut random = Random(11);
    let ask = |name: &str, head: &str| {
        site.file(&format!("heads/{name}"), format!("{head}\n\nthe body\n"));
        let ask = |address| {
            Client::connect(address).request("GET", &format!("/cgi-bin/says?{name}"), &[("Connection", "close")])
        };
        (ask(server.address), ask(apache.address))
    };
    let own = ["Date", "Server", "Connection", "Keep-Alive", "Transfer-Encoding", "Content-Length"];
    let shown = |response: &Response| {
        // Apache removes the type of a 204, which has no content. The field is harmless.
        let of_nothing = |name: &str| response.status == 204 && name.eq_ignore_ascii_case("Content-Type");
        let is_own = |name: &str| own.iter().any(|own| name.eq_ignore_ascii_case(own));
        let fields = response.fields.iter().filter(|(name, _)| !is_own(name) && !of_nothing(name));
        let mut fields: Vec<_> = fields.map(|(name, value)| (name.to_ascii_lowercase(), value.clone())).collect();
        fields.sort();
        (response.status, fields, response.text())
    };
    for n in 0..150 {
        let mut head: Vec<&str> = Vec::new();
        for line in (0..1 + random.below(4)).map(|_| random.one_of(&lines)) {
            // Each field once: a repeated field is one of the differences.
            let name = |line: &str| line.split(':').next().unwrap().to_owned();
            if !head.iter().any(|known| name(known) == name(line)) {
                head.push(line);
            }
        }
        let head = head.join("\n");
        let (ours, theirs) = ask(&n.to_string(), &head);
        if head.contains("Location") && !head.contains("Status") {
            // RFC 3875, 6.2.3: only a Location. Amped passes on further lines of the script; Apache sends its own page.
            assert_eq!((ours.status, ours.field("Location")), (theirs.status, theirs.field("Location")), "{head:?}");
            continue;
        }
        assert_eq!(shown(&ours), shown(&theirs), "{head:?}");
    }
    let (ours, theirs) = ask("instead", "Location: /page.txt");
    assert_eq!((ours.status, ours.text()), (theirs.status, theirs.text()));
    for (head, why) in DIFFERENCES {
        let head = if *head == "no line at all" { "" } else { head };
        site.file("heads/meant", format!("{head}\n\nthe body\n"));
        // Only the status: the end of an invalid response is not compared.
        let status = |address| {
            let mut client = Client::connect(address);
            client.send_request("GET", "/cgi-bin/says?meant", &[("Connection", "close")]);
            let text = String::from_utf8(client.read_to_end()).unwrap();
            text.split(' ').nth(1).map(str::to_owned)
        };
        assert_eq!(status(server.address).as_deref(), Some("502"), "{head:?}");
        assert_ne!(status(apache.address).as_deref(), Some("502"), "this difference no longer occurs: {why}");
    }
}
