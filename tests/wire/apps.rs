//! CGI applications, with one process per request, in every architecture.
//!
//! The scripts are shell scripts: a shell is present everywhere and starts within a millisecond. A script reports what
//! it does in its response or by files in the site's directory, and the tests wait for these events, not for durations.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use super::harness::*;

/// Writes an executable script to the scripts' directory.
fn script(site: &Site, name: &str, text: &str) -> PathBuf {
    let path = site.file(&format!("cgi-bin/{name}"), format!("#!/bin/sh\n{text}"));
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    path
}

/// Serves a site with scripts in `/cgi-bin` and these keys for them.
fn serve(site: &Site, keys: &str) -> Server {
    Server::with_site(site, &format!("[[site.app]]\nmatch = \"/cgi-bin/**\"\ncgi = true\n{keys}"))
}

/// Counts the server's open file descriptors after all its loops have started.
pub(super) fn descriptors(server: &Server) -> usize {
    wait_until("a report from all loops", || {
        let before = server.said().len();
        server.signal("QUIT");
        wait_until("the report", || server.said()[before..].contains("loops: answered="));
        let said = server.said();
        let line = said[before..].lines().find_map(|line| line.strip_prefix("loops: answered=")).unwrap();
        line.split_once(" of=").is_some_and(|(answered, of)| answered == of)
    });
    server.descriptors().len()
}

#[test]
fn script_inherits_umask_of_server() {
    let site = Site::new();
    script(&site, "mask", "printf 'Content-Type: text/plain\\n\\n'; umask");
    let own = Command::new("sh").args(["-c", "umask"]).output().unwrap().stdout;
    assert_eq!(serve(&site, "").get("/cgi-bin/mask").body, own);
}

#[test]
fn script_inherits_core_limit_of_server() {
    allow_core_dumps();
    let site = Site::new();
    script(&site, "limit", "printf 'Content-Type: text/plain\\n\\n'; ulimit -c");
    let own = Command::new("sh").args(["-c", "ulimit -c"]).output().unwrap().stdout;
    assert_eq!(serve(&site, "").get("/cgi-bin/limit").body, own);
}

#[test]
fn script_response_is_served() {
    let site = Site::new();
    site.file("a.txt", "static");
    script(&site, "hello", "printf 'Content-Type: text/x-test\\nX-Own: a\\n\\nhello'");
    // No shell interprets its name.
    script(&site, "odd;name `touch x` $(touch x)", "printf 'Content-Type: a/b\\n\\n'; ls");
    site.file("cgi-bin/data", "no script");
    site.file("cgi-bin/folder/inner", "#!/bin/sh\necho");
    let server = serve(&site, "");
    let mut client = server.connect();
    for _ in 0..3 {
        let response = client.get("/cgi-bin/hello");
        assert_eq!((response.status, response.text().as_str()), (200, "hello"));
        assert_eq!(response.field("Content-Type"), Some("text/x-test"));
        assert_eq!(response.field("X-Own"), Some("a"));
        assert_eq!(response.field("Transfer-Encoding"), Some("chunked"));
        assert_eq!(response.field("Server"), Some("amped"));
        let response = client.request("HEAD", "/cgi-bin/hello", &[]);
        assert_eq!((response.status, response.field("Content-Type")), (200, Some("text/x-test")));
        assert_eq!(client.get("/a.txt").text(), "static");
    }
    let odd = client.get("/cgi-bin/odd;name%20%60touch%20x%60%20$(touch%20x)?;touch%20x").text();
    assert_eq!(odd, "data\nfolder\nhello\nodd;name `touch x` $(touch x)\n");
    for (target, status) in [
        ("/cgi-bin/none", 404),
        ("/cgi-bin/data/x", 403),
        ("/cgi-bin/data", 403),
        ("/cgi-bin/folder", 404),
        ("/cgi-bin/folder/inner", 403),
        ("/cgi-bin/%2e%2e/a.txt", 200),
    ] {
        assert_eq!(client.get(target).status, status, "{target}");
    }
    // HTTP/1.0 has no chunks: the response ends with the connection.
    let mut old = server.connect();
    old.send("GET /cgi-bin/hello HTTP/1.0\r\n\r\n");
    let text = String::from_utf8(old.read_to_end()).unwrap();
    assert!(text.starts_with("HTTP/1.1 200 OK\r\n") && text.contains("\r\nConnection: close\r\n"), "{text}");
    assert!(text.ends_with("\r\n\r\nhello") && !text.contains("Transfer-Encoding"), "{text}");
}

#[test]
fn script_receives_cgi_variables() {
    // Its variables are those of http.
    if is_secure() {
        return;
    }
    let site = Site::new();
    script(&site, "env", "printf 'Content-Type: text/plain\\n\\n'; /usr/bin/env; echo CWD=$(pwd)");
    let server = serve(&site, "env = { LANG = \"C.UTF-8\" }");
    let mut client = server.connect();
    let local = client.stream().local_addr().unwrap();
    let fields = [
        ("Host", "example.org:81"),
        ("Proxy", "http://evil.example"),
        ("X-Two", "1"),
        ("X-Two", "2"),
        ("X_Under", "score"),
        ("User-Agent", "test"),
    ];
    let response = client.request("GET", "/cgi-bin/env/more%20of/it?a=b%20c&d", &fields);
    let text = response.text();
    let mut lines: Vec<&str> = text.lines().filter(|line| !line.starts_with("UNIQUE_ID=")).collect();
    // Variables that the shell sets itself.
    lines.retain(|line| !["PWD=", "_=", "OLDPWD=", "SHLVL="].iter().any(|own| line.starts_with(own)));
    lines.sort_unstable();
    let root = site.path().canonicalize().unwrap();
    let root = root.display();
    let mut expected = vec![
        format!("CWD={root}/cgi-bin"),
        format!("DOCUMENT_ROOT={root}"),
        "GATEWAY_INTERFACE=CGI/1.1".into(),
        "HTTP_HOST=example.org:81".into(),
        "HTTP_USER_AGENT=test".into(),
        "HTTP_X_TWO=1, 2".into(),
        "LANG=C.UTF-8".into(),
        "PATH=/usr/local/bin:/usr/bin:/bin".into(),
        "PATH_INFO=/more of/it".into(),
        format!("PATH_TRANSLATED={root}/more of/it"),
        "QUERY_STRING=a=b%20c&d".into(),
        "REMOTE_ADDR=127.0.0.1".into(),
        format!("REMOTE_PORT={}", local.port()),
        "REQUEST_METHOD=GET".into(),
        "REQUEST_URI=/cgi-bin/env/more%20of/it?a=b%20c&d".into(),
        "REQUEST_SCHEME=http".into(),
        "REDIRECT_STATUS=200".into(),
        "DOCUMENT_URI=/cgi-bin/env/more of/it".into(),
        format!("SCRIPT_FILENAME={root}/cgi-bin/env"),
        "SCRIPT_NAME=/cgi-bin/env".into(),
        "SERVER_ADDR=127.0.0.1".into(),
        "SERVER_NAME=example.org".into(),
        format!("SERVER_PORT={}", server.address.port()),
        "SERVER_PROTOCOL=HTTP/1.1".into(),
        "SERVER_SOFTWARE=amped".into(),
    ];
    expected.sort_unstable();
    assert_eq!(lines, expected);
    assert!(text.contains("\nUNIQUE_ID=") || text.starts_with("UNIQUE_ID="), "{text}");
}

#[test]
fn script_inherits_no_other_descriptors() {
    let site = Site::new();
    script(&site, "fds", "printf 'Content-Type: text/plain\\n\\n'; exec ls /proc/self/fd");
    script(&site, "signals", "printf 'Content-Type: text/plain\\n\\n'; exec cat /proc/self/status");
    let server = serve(&site, "");
    // Descriptor 3 is the directory that `ls` reads.
    assert_eq!(server.get("/cgi-bin/fds").text(), "0\n1\n2\n3\n");
    let text = server.get("/cgi-bin/signals").text();
    for mask in ["SigBlk:", "SigIgn:"] {
        let line = text.lines().find_map(|line| line.strip_prefix(mask)).expect(mask);
        // The parent of the server may ignore signals above 31.
        let signals = u64::from_str_radix(line.trim(), 16).unwrap() & 0x7fff_ffff;
        assert_eq!(signals, 0, "{mask} {line}");
    }
}

#[test]
fn rewrite_with_query_reaches_script() {
    let site = Site::new();
    script(&site, "query", "printf 'Content-Type: a/b\\n\\n%s' \"$QUERY_STRING\"");
    let route = "[[site.route]]\nmatch = '/search/*/**'\nrewrite = '/cgi-bin/query?q=$1&rest=$2'\n\
                 [[site.route]]\nmatch = '/plain/*'\nrewrite = '/cgi-bin/query'\n";
    let server = serve(&site, route);
    let mut client = server.connect();
    let mut check = |target: &str, body: &str| {
        let response = client.get(target);
        assert_eq!((response.status, response.text().as_str()), (200, body), "{target}");
    };
    check("/search/cats/a/b", "q=cats&rest=a/b");
    check("/search/cats/a/b?page=2&q=dogs", "q=cats&rest=a/b&page=2&q=dogs");
    check("/search/a%26admin=1%20%2Bx/?", "q=a%26admin%3D1%20%2Bx&rest=");
    check("/plain/x?a=b", "a=b");
    check("/cgi-bin/query?a=b", "a=b");
}

#[test]
fn script_status_and_location_are_obeyed() {
    let site = Site::new();
    site.file("page.html", "a page");
    script(&site, "status", "printf 'Status: 418 I am a teapot\\nContent-Type: text/plain\\n\\nshort and stout'");
    script(&site, "empty", "printf 'Status: 204 None\\n\\n'");
    script(&site, "away", "printf 'Location: http://example.org/x\\n\\n'");
    script(&site, "moved", "printf 'Status: 301 Moved\\nLocation: /page.html\\nContent-Type: a/b\\n\\nthere'");
    script(&site, "here", "printf 'Location: /page.html\\n\\n'");
    script(&site, "other", "printf 'Location: /cgi-bin/query?a=b\\n\\n'");
    script(&site, "query", "printf 'Content-Type: a/b\\n\\n%s %s' \"$REQUEST_METHOD\" \"$QUERY_STRING\"");
    script(&site, "round", "printf 'Location: /cgi-bin/round\\n\\n'");
    script(&site, "bad", "printf 'Location: /a b\\n\\n'");
    script(&site, "sized", "printf 'Content-Type: a/b\\nContent-Length: 5\\n\\n12345678'");
    let server = serve(&site, "");
    let mut client = server.connect();
    let mut check = |target: &str, status: u16, body: &str| {
        let response = client.get(target);
        assert_eq!((response.status, response.text().as_str()), (status, body), "{target}");
        response
    };
    check("/cgi-bin/status", 418, "short and stout");
    let mut raw = server.connect();
    raw.send_request("GET", "/cgi-bin/status", &[]);
    assert!(raw.read_head().starts_with("HTTP/1.1 418 I am a teapot\r\n"));
    check("/cgi-bin/empty", 204, "");
    assert_eq!(check("/cgi-bin/away", 302, "").field("Location"), Some("http://example.org/x"));
    assert_eq!(check("/cgi-bin/moved", 301, "there").field("Location"), Some("/page.html"));
    assert_eq!(check("/cgi-bin/here", 200, "a page").field("Content-Type"), Some("text/html; charset=utf-8"));
    check("/cgi-bin/other", 200, "GET a=b");
    check("/cgi-bin/sized", 200, "12345");
    for target in ["/cgi-bin/round", "/cgi-bin/bad"] {
        assert_eq!(client.get(target).status, 502, "{target}");
    }
    // Without a body and as GET, whatever the method of the first request.
    let response = client.request("POST", "/cgi-bin/other", &[("Content-Length", "0")]);
    assert_eq!(response.text(), "GET a=b");
    assert_eq!(client.request("HEAD", "/cgi-bin/here", &[]).field("Content-Length"), Some("6"));
}

#[test]
fn request_and_response_bodies_pass_through_script() {
    // This test reads and writes the socket directly.
    if is_secure() || is_http2() {
        return;
    }
    let site = Site::new();
    script(&site, "echo", "printf 'Content-Type: text/plain\\nX-Length: %s\\n\\n' \"$CONTENT_LENGTH\"; cat");
    script(&site, "deaf", "exec 0<&-; printf 'Content-Type: text/plain\\n\\ndeaf'");
    let server = serve(&site, "max_body_bytes = \"3MiB\"");
    let mut client = server.connect();
    for size in [0, 1, 100_000, 3 << 20] {
        let body = pattern(size);
        let mut sender = Client::on(client.stream());
        let response = thread::scope(|scope| {
            scope.spawn(|| {
                sender.send_request("POST", "/cgi-bin/echo", &[("Content-Length", &size.to_string())]);
                sender.send(&body);
            });
            client.response("POST")
        });
        assert_eq!(response.status, 200);
        assert!(response.body == body, "{size} bytes sent, {} returned", response.body.len());
        assert_eq!(response.field("X-Length"), (size > 0).then(|| size.to_string()).or(Some("".into())).as_deref());
    }
    client.send_request("POST", "/cgi-bin/echo", &[("Transfer-Encoding", "chunked")]);
    client.send("3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n");
    assert_eq!(client.response("POST").text(), "abcde");
    client.send_request("PUT", "/cgi-bin/echo", &[("Content-Length", "5"), ("Expect", "100-continue")]);
    assert_eq!(client.response("PUT").status, 100);
    client.send("hello");
    assert_eq!(client.response("PUT").text(), "hello");
    // A script that reads none of its body still responds.
    client.send_request("POST", "/cgi-bin/deaf", &[("Content-Length", "2000000")]);
    client.send(pattern(2_000_000));
    assert_eq!(client.response("POST").text(), "deaf");

    let mut client = server.connect();
    client.send_request("POST", "/cgi-bin/echo", &[("Content-Length", "3145729")]);
    assert_eq!(client.response("POST").status, 413);
    let mut client = server.connect();
    // Before the script responds: after that the server could only close the connection.
    client.send("POST /cgi-bin/echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nx\r\n");
    assert_eq!(client.response("POST").status, 400);
}

#[test]
fn failing_script_returns_error() {
    let site = Site::new();
    script(&site, "dies", "exit 3");
    script(&site, "silent", "");
    script(&site, "killed", "kill -9 $$");
    script(&site, "half", "printf 'Content-Type: text/pl'");
    script(&site, "no-head", "printf '<html>\\n\\n'");
    script(&site, "cut", "printf 'Content-Type: a/b\\n\\nhello'; kill -9 $$");
    script(&site, "short", "printf 'Content-Type: a/b\\nContent-Length: 10\\n\\nhello'");
    script(&site, "slow", "sleep 1000");
    script(&site, "stops", "printf 'Content-Type: a/b\\n\\nhello'; sleep 1000");
    script(&site, "much", "printf 'Content-Type: a/b\\n\\n'; head -c 2000000 /dev/zero");
    script(
        &site,
        "complains",
        "echo 'a \\033[31mred line' >&2; echo another >&2; printf 'Content-Type: a/b\\n\\n'; printf $UNIQUE_ID",
    );
    let path = script(&site, "no-program", "");
    fs::write(&path, "#!/there/is/none\n").unwrap();
    let server = serve(&site, "timeout = \"3s\"\nmax_response_bytes = \"1MB\"");
    for (name, status) in [
        ("dies", 502),
        ("killed", 502),
        ("half", 502),
        ("silent", 502),
        ("no-head", 502),
        ("slow", 504),
        ("no-program", 502),
    ] {
        let mut client = server.connect();
        for _ in 0..2 {
            assert_eq!(client.get(&format!("/cgi-bin/{name}")).status, status, "{name}");
        }
    }
    // A response whose promised body is incomplete reaches the client as incomplete.
    for name in ["cut", "short", "stops", "much"] {
        assert!(server.connect().try_get(&format!("/cgi-bin/{name}")).is_none(), "{name}");
    }
    // Each line contains the number that the script received.
    for _ in 0..2 {
        let id = server.get("/cgi-bin/complains").text();
        server.wait_for(&format!("[{id}] /cgi-bin/complains: a \\u{{1b}}[31mred line\n"));
        server.wait_for(&format!("[{id}] /cgi-bin/complains: another\n"));
    }
    server.wait_for("/cgi-bin/dies: the application ended with status 3");
    server.wait_for("the interpreter in its first line does not exist");
    // The error log states the reason of each invalid response, for the operator of the script.
    for (name, why) in [
        ("half", "the application ended without a response"),
        ("silent", "the application ended without a response"),
        ("no-head", "malformed header line in the response"),
        ("short", "the application ended before its response was complete"),
        ("slow", "timed out waiting for the application"),
        ("stops", "timed out waiting for the application"),
        ("much", "the application's response exceeds max_response_bytes"),
    ] {
        server.wait_for(&format!("/cgi-bin/{name}: {why}\n"));
    }
    wait_until("all scripts to exit", || server.programs().is_empty());
}

/// A script that writes to a closed pipe is killed, in the middle of what it does.
#[test]
fn verbose_script_is_not_killed() {
    let site = Site::new();
    script(&site, "warns", "seq 1 100000 >&2 || exit; printf 'Content-Type: text/plain\n\ndone'");
    let server = serve(&site, "");
    assert_eq!(server.get("/cgi-bin/warns").text(), "done");
    server.wait_for("standard error exceeds 64 KiB");
}

/// Nothing of the body is missing, so the connection need not be closed to say so.
#[test]
fn complete_body_is_delivered_even_if_script_fails_later() {
    let site = Site::new();
    let response = "printf 'Content-Type: text/plain\nContent-Length: 3\n\nhi\n'";
    script(&site, "killed", &format!("{response}; kill -9 $$"));
    script(&site, "stops", &format!("{response}; exec sleep 1000"));
    let server = serve(&site, "timeout = \"1s\"");
    let mut client = server.connect();
    for name in ["killed", "stops", "killed"] {
        assert_eq!(client.get(&format!("/cgi-bin/{name}")).text(), "hi\n", "{name}");
    }
    wait_until("all scripts to exit", || server.programs().is_empty());
}

#[test]
fn client_disconnect_kills_process_group() {
    let site = Site::new();
    let pids = site.path().join("pids");
    let text = format!("sleep 1000 & sleep 1000 & echo $$ $! > {0}.new; mv {0}.new {0}; wait", pids.display());
    script(&site, "waits", &text);
    let server = serve(&site, "");
    let before = descriptors(&server);
    for _ in 0..3 {
        let mut client = server.connect();
        client.send_request("GET", "/cgi-bin/waits", &[]);
        wait_until("the script to start", || pids.exists());
        let text = fs::read_to_string(&pids).unwrap();
        fs::remove_file(&pids).unwrap();
        let pids: Vec<u32> = text.split_whitespace().map(|pid| pid.parse().unwrap()).collect();
        assert!(pids.iter().all(|&pid| parent_of(pid).is_some()), "{text}");
        drop(client);
        wait_until("its processes to exit", || pids.iter().all(|&pid| parent_of(pid).is_none()));
    }
    wait_until("its descriptors to be closed", || server.descriptors().len() <= before);
}

/// When a script ends, for whatever reason, the processes that it started end too.
#[test]
fn script_limit_or_exit_kills_process_group() {
    let site = Site::new();
    let pids = site.path().join("pids");
    fs::create_dir(&pids).unwrap();
    let starts =
        format!("sleep 1000 >/dev/null 2>&1 & sleep 1000 & echo $$ $! > {0}/new; mv {0}/new {0}/$$; ", pids.display());
    for (name, text) in [
        ("says-nothing", "wait"),
        ("stops", "printf 'Content-Type: a/b\\n\\nhello'; wait"),
        ("much", "printf 'Content-Type: a/b\\n\\n'; head -c 2000000 /dev/zero; wait"),
        ("no-head", "printf '<html>\\n\\n'; wait"),
        ("dies", "kill -9 $$"),
    ] {
        script(&site, name, &format!("{starts}{text}"));
    }
    // Its child process closes its pipes to the server, which would otherwise wait for it.
    script(
        &site,
        "ends",
        &format!("{} printf 'Content-Type: a/b\\n\\nok'", starts.replace("1000 &", "1000 >&- 2>&- &")),
    );
    let server = serve(&site, "timeout = \"1s\"\nmax_response_bytes = \"1MB\"");
    let before = descriptors(&server);
    for (name, status) in
        [("says-nothing", Some(504)), ("stops", None), ("much", None), ("no-head", Some(502)), ("ends", Some(200))]
    {
        let response = server.connect().try_get(&format!("/cgi-bin/{name}"));
        assert_eq!(response.map(|response| response.status), status, "{name}");
    }
    // Its child process holds the response open, so the server cannot know before `timeout` that it is complete.
    assert!(server.connect().try_get("/cgi-bin/dies").is_none_or(|response| response.status >= 502));
    let files: Vec<_> = fs::read_dir(&pids).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(files.len(), 6);
    for file in files {
        let text = fs::read_to_string(file).unwrap();
        for pid in text.split_whitespace().map(|pid| pid.parse().unwrap()) {
            wait_until("its processes to exit", || parent_of(pid).is_none());
        }
    }
    wait_until("its descriptors to be closed", || server.descriptors().len() <= before);
}

#[test]
fn scripts_killed_under_load_do_not_affect_others() {
    let site = Site::new();
    script(&site, "works", "sleep 0.01; printf 'Content-Type: a/b\\n\\nhello '; sleep 0.01; printf you");
    let server = serve(&site, "max_processes = 4");
    let before = descriptors(&server);
    let (done, answers) = (AtomicBool::new(false), AtomicUsize::new(0));
    thread::scope(|scope| {
        let _stop = SetOnDrop(&done);
        for _ in 0..6 {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    // When a script is killed after its head, the client sees a truncated response.
                    let response = server.connect().try_get("/cgi-bin/works");
                    if let Some(response) = response.filter(|response| response.status != 502) {
                        assert_eq!((response.status, response.text().as_str()), (200, "hello you"));
                    }
                    answers.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        for _ in 0..10 {
            let so_far = answers.load(Ordering::Relaxed);
            wait_until("a running script", || !server.programs().is_empty());
            for pid in server.programs() {
                // It may have exited since then; the kernel does not reuse its number so soon.
                let _ = Command::new("kill").args(["-9", &pid.to_string()]).stderr(Stdio::null()).status();
            }
            wait_until("more responses", || answers.load(Ordering::Relaxed) > so_far + 6);
        }
    });
    assert_eq!(server.get("/cgi-bin/works").text(), "hello you");
    wait_until("all scripts to exit", || server.programs().is_empty());
    wait_until("all descriptors to be closed", || server.descriptors().len() <= before);
}

#[test]
fn max_processes_bounds_running_scripts() {
    // Over TLS only as many as a pool has workers: a client that takes seconds for its handshake may be closed for another.
    let (clients, processes) = (if is_secure() { 30 } else { 200 }, 20);
    let site = Site::new();
    let count = site.path().join("running");
    fs::create_dir(&count).unwrap();
    // Each script reports how many others ran at the same time.
    let text = format!(
        "mkdir {0}/$$; n=$(ls {0} | wc -l); sleep 0.02; rmdir {0}/$$; printf 'Content-Type: a/b\\n\\n%s' $n",
        count.display()
    );
    script(&site, "counts", &text);
    let server = serve(&site, &format!("max_processes = {processes}"));
    let most = thread::scope(|scope| {
        let ask = || server.get("/cgi-bin/counts");
        let threads: Vec<_> = (0..clients).map(|_| scope.spawn(ask)).collect();
        let responses = threads.into_iter().map(|thread| thread.join().unwrap());
        responses
            .map(|response| {
                assert_eq!(response.status, 200, "{}", response.text());
                response.text().trim().parse::<usize>().unwrap()
            })
            .max()
    });
    assert!(most <= Some(processes), "{most:?} concurrent scripts");
    wait_until("all scripts to exit", || server.programs().is_empty());
}

#[test]
fn full_script_queue_returns_503() {
    let site = Site::new();
    let go = site.path().join("go");
    let text = format!("until [ -e {} ]; do sleep 0.01; done; printf 'Content-Type: a/b\\n\\nok'", go.display());
    script(&site, "waits", &text);
    let server = serve(&site, "max_processes = 1\nmax_queue = 0");
    let mut first = server.connect();
    first.send_request("GET", "/cgi-bin/waits", &[]);
    wait_until("the script to start", || !server.programs().is_empty());
    let response = server.get("/cgi-bin/waits");
    assert_eq!((response.status, response.field("Retry-After")), (503, Some("1")));
    fs::write(go, "").unwrap();
    assert_eq!(first.response("GET").text(), "ok");
}

#[test]
fn slow_client_does_not_delay_other_scripts() {
    // This test reads and writes the socket directly.
    if is_secure() || is_http2() {
        return;
    }
    let site = Site::new();
    site.file("a.txt", "static");
    script(&site, "computes", "while :; do :; done");
    script(&site, "floods", "printf 'Content-Type: a/b\\n\\n'; cat /dev/zero");
    script(&site, "reads", "printf 'Content-Type: a/b\\n\\n'; cat");
    script(&site, "deaf", "sleep 1000");
    let server = serve(&site, "timeout = \"1h\"\nbuffer_request = false\n[spool]\nmax_bytes = \"16MiB\"");
    let targets = ["/cgi-bin/computes", "/cgi-bin/floods", "/cgi-bin/reads", "/cgi-bin/deaf"];
    slow_ones(&server, targets, || server.programs().len() >= 4, || server.programs().is_empty());
    assert_eq!(server.get("/a.txt").text(), "static");
}

/// Four slow clients: two read nothing of an application's response, if there is one, the third sends a byte now and
/// then, and the application of the fourth reads nothing. The server serves `/a.txt` meanwhile, and frees everything
/// when the clients disconnect.
pub(crate) fn slow_ones(
    server: &Server,
    [silent, floods, reads, deaf]: [&'static str; 4],
    are_at_work: impl Fn() -> bool,
    have_ended: impl Fn() -> bool,
) {
    let before = descriptors(server);
    let mut clients: Vec<Client> = Vec::new();
    for target in [silent, floods] {
        let mut client = Client::connect_narrow(server.address, 4096);
        client.send_request("GET", target, &[]);
        clients.push(client);
    }
    let mut drips = server.connect();
    drips.send_request("POST", reads, &[("Content-Length", "1000")]);
    let unheard = server.connect();
    let mut sender = Client::on(unheard.stream());
    let flood = thread::spawn(move || {
        // More than the server reads ahead for an application: the rest, and the FIN after it, stay in the server's
        // socket. If the socket could not hold the rest, the FIN would stay in the client's socket.
        sender.send_request("POST", deaf, &[("Content-Length", "50000000")]);
        sender.send(vec![0; 100_000]);
    });
    wait_until("the applications to run", are_at_work);
    for n in 0..20 {
        drips.send("x");
        assert_eq!(server.get("/a.txt").text(), "static", "{n}");
    }
    drop((clients, drips));
    unheard.stream().shutdown(std::net::Shutdown::Both).unwrap();
    flood.join().unwrap();
    drop(unheard);
    wait_until("all applications to exit", have_ended);
    wait_until("all descriptors to be closed", || server.descriptors().len() <= before);
}

#[test]
fn index_script_is_executed_and_source_is_hidden() {
    let site = Site::new();
    let path = site.file("app/index.cgi", "#!/bin/sh\nprintf 'Content-Type: a/b\\n\\n%s' \"$SCRIPT_NAME\"");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    let server = Server::with_site(&site, "index = [\"index.cgi\"]\n[[site.app]]\nmatch = \"*.cgi\"\ncgi = true");
    let mut client = server.connect();
    for target in ["/app/", "/app/index.cgi", "/app/"] {
        assert_eq!(client.get(target).text(), "/app/index.cgi", "{target}");
    }
    // The body of a request for a directory is discarded before the lookup of its index, and is not parsed as a request.
    client.send_request("GET", "/app/", &[("Content-Length", "5")]);
    client.send("GET /");
    assert_eq!(client.response("GET").text(), "/app/index.cgi");
    assert_eq!(client.get("/app/").text(), "/app/index.cgi");
}

#[test]
fn log_counts_body_without_framing() {
    let site = Site::new();
    script(&site, "hello", "printf 'Content-Type: a/b\\n\\nhello'; sleep 0.01; printf ' you'");
    script(&site, "half", "printf 'Content-Type: a/b\\nContent-Length: 9\\n\\nhello'");
    let log = site.path().join("log");
    let config = site.path().with_extension("toml");
    let (root, log_shown) = (site.path(), log.display());
    let text = format!(
        "listen = [\"127.0.0.1:0\"]\nlog = {{ access = \"{log_shown}\", format = \"json\", flush = \"1ms\" }}\n\
         [[site]]\nroot = {root:?}\n[[site.app]]\nmatch = \"/cgi-bin/**\"\ncgi = true\n"
    );
    fs::write(&config, text).unwrap();
    let server = Server::start(&["--config", config.to_str().unwrap()]);
    assert_eq!(server.get("/cgi-bin/hello").text(), "hello you");
    assert!(server.connect().try_get("/cgi-bin/half").is_none());
    assert_eq!(server.connect().request("HEAD", "/cgi-bin/hello", &[]).status, 200);
    let lines = || fs::read_to_string(&log).unwrap_or_default();
    wait_until("three log lines", || lines().lines().count() >= 3);
    let mut counted: Vec<(Option<u64>, Option<u64>)> = Vec::new();
    for line in lines().lines() {
        let line: serde_json::Value = serde_json::from_str(line).unwrap();
        assert_eq!(line["cache"].as_str(), Some("app"), "{line}");
        counted.push((line["status"].as_u64(), line["body_bytes"].as_u64()));
    }
    // Each worker of a pool buffers log lines separately.
    counted.sort_unstable();
    assert_eq!(counted, [0, 5, 9].map(|bytes| (Some(200), Some(bytes))));
}

/// X-Accel-Redirect and X-Sendfile: the server sends a file of the site that clients cannot request themselves.
#[test]
fn script_delegates_file_to_server() {
    let site = Site::new();
    let root = site.path().canonicalize().unwrap();
    let text: String = (0..100_000).map(|n| char::from(b'a' + (n % 26) as u8)).collect();
    site.file("protected/large.bin", &text);
    site.file("protected/odd name#.txt", "odd");
    site.file("public.txt", "for all");
    site.file("denied/x.txt", "for nobody");
    site.file("guarded/x.txt", "for some");
    fs::write(site.path().with_extension("secret"), "outside").unwrap();
    let users = site.path().with_extension("users");
    fs::write(&users, format!("ann:{}\n", bcrypt::hash("pass", 4).unwrap())).unwrap();
    let own = "Status: 203 Odd\\nContent-Type: text/x-own\\nContent-Disposition: attachment; filename=x\\nSet-Cookie: a=b\\nSet-Cookie: c=d\\nX-Gone: 1\\nContent-Length: 3\\n";
    let send = |name: &str, field: &str| {
        script(&site, name, &format!("printf '{own}{field}\\n\\nno!'"));
    };
    send("accel", "X-Accel-Redirect: /protected/large.bin");
    send("sendfile", &format!("X-Sendfile: {}/protected/large.bin", root.display()));
    send("odd", "X-Accel-Redirect: /protected/odd name%%23.txt");
    send("public", "X-Accel-Redirect: /public.txt");
    send("missing", "X-Accel-Redirect: /protected/none");
    send("denied", "X-Accel-Redirect: /denied/x.txt");
    send("guarded", "X-Accel-Redirect: /guarded/x.txt");
    send("hidden", "X-Accel-Redirect: /protected/../.env");
    send("above", "X-Accel-Redirect: /../x");
    send("outside", &format!("X-Sendfile: {}", site.path().with_extension("secret").display()));
    send("source", "X-Accel-Redirect: /cgi-bin/plain");
    send("round", "X-Accel-Redirect: /cgi-bin/round");
    script(&site, "plain", "printf 'Content-Type: a/b\\n\\n%s ran' $REQUEST_METHOD");
    let server = Server::with_site(
        &site,
        &format!(
            "[[site.route]]\nmatch = '/protected/**'\ninternal = true\n\
             [[site.route]]\nmatch = '/denied/**'\ndeny = true\n\
             [[site.auth]]\ndirectory = '/guarded/'\naccounts = {users:?}\n\
             [[site.app]]\nmatch = '/cgi-bin/**'\ncgi = true"
        ),
    );
    let mut client = server.connect();
    assert_eq!(client.get("/protected/large.bin").status, 404);
    for name in ["accel", "sendfile"] {
        let target = format!("/cgi-bin/{name}");
        let response = client.get(&target);
        assert_eq!((response.status, response.text() == text), (200, true), "{name}");
        assert_eq!(response.field("Content-Type"), Some("text/x-own"));
        assert_eq!(response.field("Content-Disposition"), Some("attachment; filename=x"));
        assert_eq!((response.field("X-Gone"), response.field("Accept-Ranges")), (None, Some("bytes")));
        assert!(response.field("X-Accel-Redirect").is_none() && response.field("X-Sendfile").is_none());
        let cookies = response.lasting_fields().into_iter().filter(|(name, _)| name.eq_ignore_ascii_case("set-cookie"));
        assert_eq!(cookies.count(), 2);
        let tag = response.field("ETag").unwrap().to_owned();
        let part = client.request("GET", &target, &[("Range", "bytes=10-14")]);
        assert_eq!((part.status, part.text().as_str()), (206, "klmno"), "{name}");
        assert_eq!(part.field("Content-Type"), Some("text/x-own"));
        let parts = client.request("GET", &target, &[("Range", "bytes=0-1,5-6")]);
        assert!(parts.field("Content-Type").unwrap().starts_with("multipart/byteranges"));
        let unchanged = client.request("GET", &target, &[("If-None-Match", &tag)]);
        assert_eq!((unchanged.status, unchanged.field("Content-Type")), (304, None));
        let head = client.request("HEAD", &target, &[]);
        assert_eq!((head.status, head.field("Content-Length")), (200, Some("100000")));
        // Also in response to a form, whether or not the script read its body.
        client.send_request("POST", &target, &[("Content-Length", "5")]);
        client.send("hello");
        let form = client.response("POST");
        assert_eq!((form.status, form.text() == text), (200, true), "{name}");
        client = server.connect();
    }
    // Fields that accompanied one file do not appear with another.
    assert_eq!(client.get("/public.txt").field("Set-Cookie"), None);
    for (name, status, text) in [
        ("odd", 200, "odd"),
        ("public", 200, "for all"),
        ("source", 200, "GET ran"),
        ("missing", 404, ""),
        ("denied", 403, ""),
        ("guarded", 401, ""),
        ("hidden", 404, ""),
        ("above", 400, ""),
        ("outside", 502, ""),
        ("round", 502, ""),
    ] {
        let response = client.get(&format!("/cgi-bin/{name}"));
        assert_eq!(response.status, status, "{name}");
        assert!(status != 200 || response.text() == text, "{name}");
    }
    assert_eq!(client.get("/cgi-bin/source").field("Set-Cookie"), None);
    fs::remove_file(users).unwrap();
    fs::remove_file(site.path().with_extension("secret")).unwrap();
}
