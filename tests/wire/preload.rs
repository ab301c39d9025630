//! `amped preload` and `[cache] watch`: all workers serve the new version of a page at once.
//!
//! Cache entries here are valid for ten minutes, so that nothing else can be the reason.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::process::Command;
use std::thread;
use std::time::Instant;

use super::harness::{Client, Ended, PATIENCE, Server, Site, need_root, program, run, run_command, wait_until};

/// All architectures, AMPED with helper processes, and MP with a shared cache.
fn architectures() -> impl Iterator<Item = &'static str> {
    super::ARCHITECTURES.iter().copied().chain(["amped processes", "mp shared"])
}

/// The beginning of each configuration, up to further keys of `[cache]`.
fn believing(architecture: &str) -> String {
    let (architecture, variant) = architecture.split_once(' ').unwrap_or((architecture, ""));
    let helpers = if variant == "processes" { "[helpers]\nkind = \"processes\"\n" } else { "" };
    format!(
        "architecture = {architecture:?}\nworkers = 4\n{helpers}[cache]\nrevalidate = \"10m\"\nmax_stale = \"10m\"\n\
         shared = {}\n",
        variant == "shared"
    )
}

/// Starts a server with long-lived cache entries, a control socket and several workers.
fn serve(site: &Site, architecture: &str, more: &str) -> Server {
    Server::configured(site, &format!("{}[control]\nsocket = {:?}\n{more}", believing(architecture), socket(site)))
}

/// Path of the control socket, beside the site and not within it.
fn socket(site: &Site) -> PathBuf {
    site.path().with_extension("control")
}

/// Removes the socket when dropped: tests kill their server, which leaves it.
struct Gone(PathBuf);

impl Drop for Gone {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

fn preload(site: &Site, args: &[&str]) -> Ended {
    run(&[&["preload", "--control", socket(site).to_str().unwrap()], args].concat())
}

/// Opens connections to all four workers: each worker of a pool takes one, loops get a random share.
///
/// While a worker of a pool is still starting, another closes its idle connection for one that has waited for 0.1 s. So
/// closed connections are replaced until all are served twice.
fn one_for_each(server: &Server, architecture: &str, target: &str, status: u16) -> Vec<Client> {
    let count = if architecture.starts_with('m') { 4 } else { 32 };
    let mut clients: Vec<Client> = (0..count).map(|_| server.connect()).collect();
    clients.iter_mut().for_each(|client| assert_eq!(client.get(target).status, status, "{target}"));
    let deadline = Instant::now() + PATIENCE;
    loop {
        clients.retain_mut(|client| client.try_get(target).is_some_and(|response| response.status == status));
        if clients.len() == count {
            return clients;
        }
        assert!(Instant::now() < deadline, "{architecture}: {} of {count} connections stay open", clients.len());
        for mut client in (clients.len()..count).map(|_| server.connect()).collect::<Vec<_>>() {
            assert_eq!(client.get(target).status, status, "{target}");
            clients.push(client);
        }
    }
}

/// Asserts the response that all of these clients get.
fn all_get(clients: &mut [Client], target: &str, status: u16, text: &str) {
    for client in clients {
        let response = client.get(target);
        assert_eq!(response.status, status, "{target}");
        assert!(status != 200 || response.text() == text, "{target}: {}", response.text());
    }
}

#[test]
fn all_workers_serve_new_version_after_preload() {
    for architecture in architectures() {
        let site = Site::new();
        let _gone = Gone(socket(&site));
        let large = "x".repeat(300_000);
        site.file("a.html", "old");
        site.file("large.txt", &large);
        site.file("folder/index.html", "old");
        let server = serve(&site, architecture, "");
        let mut clients = one_for_each(&server, architecture, "/a.html", 200);
        for target in ["/new.html", "/folder/new/deep.html"] {
            all_get(&mut clients, target, 404, "");
        }
        all_get(&mut clients, "/folder/", 200, "old");
        all_get(&mut clients, "/large.txt", 200, &large);
        site.file("a.html", "new version");
        site.file("new.html", "is there");
        site.file("folder/new/deep.html", "is there too");
        site.file("folder/index.html", "another");
        site.file("large.txt", "small");
        // Without a notification the caches still hold the old version, so the changes below are the effect of
        // `preload`.
        all_get(&mut clients, "/a.html", 200, "old");
        all_get(&mut clients, "/new.html", 404, "");
        let paths = ["/a.html", "/new.html", "/folder/new/deep.html", "/folder/index.html", "/large.txt"];
        let done = preload(&site, &paths);
        assert_eq!((done.status, done.stderr.as_str()), (0, ""), "{architecture}: {done:?}");
        let sizes = [11, 8, 12, 7, 5];
        let lines: String = paths.iter().zip(sizes).map(|(path, size)| format!("{path}: 200 {size} bytes\n")).collect();
        assert_eq!(done.stdout, lines, "{architecture}");
        all_get(&mut clients, "/a.html", 200, "new version");
        all_get(&mut clients, "/new.html", 200, "is there");
        all_get(&mut clients, "/folder/new/deep.html", 200, "is there too");
        all_get(&mut clients, "/folder/index.html", 200, "another");
        // The same page under its other name.
        all_get(&mut clients, "/folder/", 200, "another");
        all_get(&mut clients, "/large.txt", 200, "small");
        fs::remove_file(site.path().join("a.html")).unwrap();
        site.file("folder/index.html", "a third");
        let done = preload(&site, &["/a.html", "/folder/", "/folder", "/%2e%2e/x", "/new%2ehtml"]);
        assert_eq!(done.status, 1, "{architecture}");
        let lines: Vec<&str> = done.stdout.lines().collect();
        assert_eq!(lines[0], "/a.html: 404");
        assert_eq!(lines[1], "/folder/: 200 7 bytes");
        assert_eq!(lines[2], "/folder: 301 a directory: add a slash for its index page");
        assert!(lines[3].starts_with("/%2e%2e/x: 400 "), "{lines:?}");
        assert_eq!(lines[4], "/new%2ehtml: 200 8 bytes");
        all_get(&mut clients, "/a.html", 404, "");
        all_get(&mut clients, "/folder/", 200, "a third");
        all_get(&mut clients, "/folder/index.html", 200, "a third");
        assert_eq!(server.report("control orders"), 9, "{architecture}");
    }
}

#[test]
fn site_is_selected_by_host_and_switched_root_is_followed() {
    for architecture in architectures() {
        let (site, other) = (Site::new(), Site::new());
        let _gone = Gone(socket(&site));
        let _link = Gone(other.path().with_extension("link"));
        site.file("a.html", "default");
        let releases = ["first", "second"].map(|name| {
            let file = other.file(&format!("{name}/a.html"), name);
            file.parent().unwrap().to_owned()
        });
        let link = other.path().with_extension("link");
        symlink(&releases[0], &link).unwrap();
        let more = format!("[[site]]\nhosts = [\"other.example\"]\nroot = {link:?}");
        let server = serve(&site, architecture, &more);
        let get = |host: &str| server.connect().request("GET", "/a.html", &[("Host", host)]).text();
        assert_eq!((get("x"), get("other.example")), ("default".to_owned(), "first".to_owned()));
        fs::remove_file(&link).unwrap();
        symlink(&releases[1], &link).unwrap();
        // A file this new requires a helper, which may be a process with root directories of its own.
        other.file("second/a.html", "second");
        site.file("a.html", "changed");
        let done = preload(&site, &["--json", "--host", "other.example", "/a.html"]);
        assert_eq!(done.status, 0, "{architecture}: {done:?}");
        let value: serde_json::Value = serde_json::from_str(&done.stdout).unwrap();
        assert_eq!((&value["path"], &value["status"], &value["bytes"]), (&"/a.html".into(), &200.into(), &6.into()));
        assert_eq!(value["workers"], value["answered"]);
        assert_eq!(get("other.example"), "second", "{architecture}");
        assert_eq!(preload(&site, &["/a.html"]).stdout, "/a.html: 200 7 bytes\n");
        assert_eq!(get("x"), "changed", "{architecture}");
    }
}

#[test]
fn only_serving_user_and_root_may_send_commands() {
    need_root("runs a server and its clients as other users");
    for architecture in ["amped", "mp"] {
        let site = Site::new();
        fs::set_permissions(site.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let _gone = Gone(socket(&site));
        site.file("a.html", "text");
        let server = serve(&site, architecture, "[stop]\ndeadline = \"1s\"\n").address;
        assert_ne!(server.port(), 0);
        // The earlier server was killed and left its socket, which the new one replaces.
        let toml = format!(
            "user = \"nobody\"\narchitecture = {architecture:?}\nworkers = 2\n[control]\nsocket = {:?}",
            socket(&site)
        );
        let mut server = Server::configured(&site, &toml);
        let status = fs::metadata(socket(&site)).unwrap();
        let nobody = fs::metadata(format!("/proc/{}", server.pid())).unwrap().uid();
        assert_ne!(nobody, 0);
        assert_eq!((status.mode() & 0o777, status.uid()), (0o600, nobody));
        let as_user = |uid: u32| {
            let copy = site.file("amped", fs::read(program().get_program()).unwrap());
            fs::set_permissions(&copy, fs::Permissions::from_mode(0o755)).unwrap();
            let mut command = Command::new("setpriv");
            command.args([&format!("--reuid={uid}"), "--clear-groups"]).arg(copy);
            command.args(["preload", "--control"]).arg(socket(&site)).arg("/a.html");
            run_command(command)
        };
        assert_eq!(preload(&site, &["/a.html"]).stdout, "/a.html: 200 4 bytes\n");
        assert_eq!(as_user(nobody).stdout, "/a.html: 200 4 bytes\n");
        let refused = as_user(1);
        assert_eq!((refused.status, refused.stdout.as_str()), (1, ""));
        let way_out = format!("run this as the server's user (UID {nobody}) or as root");
        assert!(refused.stderr.contains(&way_out), "{}", refused.stderr);
        // Even if the permissions of the socket allow access, the server checks the user.
        fs::set_permissions(socket(&site), fs::Permissions::from_mode(0o666)).unwrap();
        let refused = as_user(1);
        assert_eq!((refused.status, refused.stdout.as_str()), (1, ""));
        assert!(
            refused.stderr.contains("the connection was closed") || refused.stderr.contains("no reply from the server")
        );
        server.signal("TERM");
        assert!(server.wait().success());
    }
}

#[test]
fn stale_socket_is_taken_over_and_removed_on_clean_exit() {
    for architecture in ["amped", "mp"] {
        let site = Site::new();
        let _gone = Gone(socket(&site));
        site.file("a.html", "text");
        let path = socket(&site);
        let arguments = ["--architecture", architecture, "--workers=2", "--control", path.to_str().unwrap()];
        let arguments = [&[site.path().to_str().unwrap()], &arguments[..]].concat();
        drop(UnixListener::bind(&path).unwrap());
        let mut server = Server::start(&arguments);
        assert_eq!(preload(&site, &["/a.html"]).status, 0);
        let second = run(&[&["serve", "--listen=127.0.0.1:0"], &arguments[..]].concat());
        assert_eq!(second.status, 1);
        assert!(second.stderr.contains("another server listens on control socket"), "{}", second.stderr);
        assert_eq!(preload(&site, &["/a.html"]).status, 0, "the first server is affected");
        server.signal("TERM");
        assert!(server.wait().success());
        assert!(!path.exists());
        let unserved = preload(&site, &["/a.html"]);
        assert_eq!(unserved.status, 1);
        assert!(unserved.stderr.contains("no server listens on") && unserved.stderr.contains("[control] socket"));
        fs::write(&path, "a file").unwrap();
        let no_socket = run(&[&["serve", "--listen=127.0.0.1:0"], &arguments[..]].concat());
        assert_eq!(no_socket.status, 1);
        assert!(no_socket.stderr.contains("is not a socket"), "{}", no_socket.stderr);
        assert_eq!(fs::read_to_string(&path).unwrap(), "a file", "a file of another program was changed");
    }
}

#[test]
fn silent_control_client_does_not_block_signals_or_others() {
    for architecture in ["amped", "mp"] {
        let site = Site::new();
        let _gone = Gone(socket(&site));
        site.file("a.html", "text");
        let mut server = serve(&site, architecture, "");
        let silent: Vec<UnixStream> = (0..7).map(|_| UnixStream::connect(socket(&site)).unwrap()).collect();
        (&silent[0]).write_all(b"preload - /a").unwrap();
        // A client that sends several lines at once gets a response for each, in order.
        let ahead = UnixStream::connect(socket(&site)).unwrap();
        ahead.set_read_timeout(Some(PATIENCE)).unwrap();
        (&ahead).write_all(b"preload - /a.html\nnonsense\npreload - /b.html\n").unwrap();
        let lines: Vec<String> = BufReader::new(&ahead).lines().take(3).map(Result::unwrap).collect();
        assert!(lines[0].starts_with("200 4 "), "{lines:?}");
        assert!(lines[1].starts_with("400 0 0 0 invalid command"), "{lines:?}");
        assert!(lines[2].starts_with("404 0 "), "{lines:?}");
        assert_eq!(server.report("control orders"), 2);
        server.signal("HUP");
        server.wait_for("the new configuration is in force");
        // This completes the unfinished line.
        (&silent[0]).write_all(b".html\n").unwrap();
        silent[0].set_read_timeout(Some(PATIENCE)).unwrap();
        let mut line = String::new();
        BufReader::new(&silent[0]).read_line(&mut line).unwrap();
        assert!(line.starts_with("200 4 "), "{line}");
        server.signal("TERM");
        assert!(server.wait().success());
    }
}

#[test]
fn unresponsive_worker_is_reported() {
    let site = Site::new();
    let _gone = Gone(socket(&site));
    site.file("a.html", "text");
    let server = serve(&site, "mp", "");
    let children = fs::read_to_string(format!("/proc/{0}/task/{0}/children", server.pid())).unwrap();
    let child = children.split_whitespace().next().unwrap().to_owned();
    let signal = |name: &str| assert!(Command::new("kill").args([name, &child]).status().unwrap().success());
    signal("-STOP");
    let done = preload(&site, &["/a.html"]);
    signal("-CONT");
    assert_eq!(done.status, 1);
    assert_eq!(done.stdout, "/a.html: 200 4 bytes; 1 of 4 workers did not answer within 5 s\n");
    // The process responds again, and its late response is not taken for the current one.
    site.file("a.html", "longer");
    wait_until("a result from all four workers", || preload(&site, &["/a.html"]).stdout == "/a.html: 200 6 bytes\n");
    // A process that dies is replaced, and the new one receives the next request.
    signal("-KILL");
    server.wait_for("replacing it");
    wait_until("a result from all four workers", || preload(&site, &["/a.html"]).stdout == "/a.html: 200 6 bytes\n");
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| assert_eq!(preload(&site, &["/a.html", "/a.html"]).status, 0));
        }
    });
}

#[test]
fn watched_file_change_is_detected() {
    for architecture in architectures() {
        let site = Site::new();
        for (file, content) in [("a.html", "old"), ("b.html", "b"), ("folder/index.html", "old"), ("folder/in/c", "c")]
        {
            site.file(file, content);
        }
        symlink("folder/in/c", site.path().join("link")).unwrap();
        let server = Server::configured(&site, &(believing(architecture) + "watch = true\n"));
        let mut clients = one_for_each(&server, architecture, "/a.html", 200);
        let mut wait_for = |target: &str, status: u16, text: &str| {
            for client in &mut clients {
                wait_until(&format!("{target} in {architecture}"), || {
                    let response = client.get(target);
                    response.status == status && (status != 200 || response.text() == text)
                });
            }
        };
        let path = |name: &str| site.path().join(name);
        wait_for("/folder/", 200, "old");
        wait_for("/folder/in/c", 200, "c");
        wait_for("/link", 200, "c");
        wait_for("/new/deep.html", 404, "");
        // Edited in place; replaced by rename; an index page, and the other name of its directory.
        site.file("a.html", "edited");
        wait_for("/a.html", 200, "edited");
        site.file("next", "replaced");
        fs::rename(path("next"), path("a.html")).unwrap();
        wait_for("/a.html", 200, "replaced");
        site.file("folder/index.html", "new");
        wait_for("/folder/", 200, "new");
        // Behind a symbolic link.
        site.file("folder/in/c", "changed");
        wait_for("/link", 200, "changed");
        wait_for("/folder/in/c", 200, "changed");
        fs::remove_file(path("link")).unwrap();
        symlink("b.html", path("link")).unwrap();
        wait_for("/link", 200, "b");
        // Renamed; a new name; a new directory.
        fs::rename(path("b.html"), path("d.html")).unwrap();
        wait_for("/b.html", 404, "");
        wait_for("/d.html", 200, "b");
        site.file("new/deep.html", "deep");
        wait_for("/new/deep.html", 200, "deep");
        // A directory that is renamed and replaced by another.
        fs::rename(path("folder"), path("was")).unwrap();
        wait_for("/folder/in/c", 404, "");
        site.file("folder/in/c", "another");
        wait_for("/folder/in/c", 200, "another");
        fs::remove_dir_all(path("folder")).unwrap();
        wait_for("/folder/in/c", 404, "");
        assert!(server.report("watched_folders") > 0, "{architecture}");
        assert!(server.report("watch_events") > 0, "{architecture}");
        assert_eq!(server.report("watch_overflows"), 0, "{architecture}");
        // A new configuration starts with new watches.
        server.signal("HUP");
        server.wait_for("the new configuration is in force");
        wait_until(&format!("the change in {architecture}"), || server.connect().get("/d.html").text() == "b");
        site.file("d.html", "after the reload");
        wait_until(&format!("the change in {architecture}"), || {
            server.connect().get("/d.html").text() == "after the reload"
        });
    }
}

#[test]
fn replaced_sibling_is_detected_by_watch() {
    let site = Site::new();
    site.file("a.css", "plain");
    site.file("a.css.gz", "first");
    let server = Server::configured(&site, "[cache]\nrevalidate = \"10m\"\nmax_stale = \"10m\"\nwatch = true\n");
    let mut client = server.connect();
    let mut wait_for = |text: &str| {
        wait_until(text, || client.request("GET", "/a.css", &[("Accept-Encoding", "gzip")]).text() == text);
    };
    wait_for("first");
    site.file("next", "second");
    fs::rename(site.path().join("next"), site.path().join("a.css.gz")).unwrap();
    wait_for("second");
    fs::remove_file(site.path().join("a.css.gz")).unwrap();
    wait_for("plain");
}

#[test]
fn beyond_4096_directories_changes_wait_for_revalidation() {
    const FOLDERS: usize = 4200;
    let site = Site::new();
    (0..FOLDERS).for_each(|n| fs::create_dir(site.path().join(n.to_string())).unwrap());
    let server = Server::configured(&site, "[cache]\nrevalidate = \"50ms\"\nwatch = true\n");
    let mut client = server.connect();
    for n in 0..FOLDERS {
        assert_eq!(client.get(&format!("/{n}/page.html")).status, 404);
    }
    wait_until("4096 watched directories", || server.report("watched_folders") == 4096);
    server.wait_for("watch limit reached with 4096 directories");
    let last = format!("{}/page.html", FOLDERS - 1);
    site.file(&last, "new");
    wait_until("the change", || client.get(&format!("/{last}")).status == 200);
    assert_eq!(server.report("watched_folders"), 4096);
    assert_eq!(server.said().matches("watch limit reached").count(), 1);
}
