//! Startup errors name the item, the place and the remedy; and the server drops root permanently.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::PathBuf;
use std::process::Command;

use super::harness::*;
use crate::ports::free_addresses;

/// The UID of nobody, on every Linux.
const NOBODY: u32 = 65534;

fn assert_says(ended: &Ended, status: i32, says: &[&str]) {
    assert_eq!((ended.status, ended.stdout.as_str()), (status, ""), "{ended:?}");
    for text in says {
        assert!(ended.stderr.contains(text), "{text:?} is missing:\n{}", ended.stderr);
    }
    assert!(!ended.stderr.contains("panicked"), "{}", ended.stderr);
}

fn path(site: &Site) -> &str {
    site.path().to_str().unwrap()
}

/// Lets every user read the site.
fn open_to_all(site: &Site) {
    fs::set_permissions(site.path(), fs::Permissions::from_mode(0o755)).unwrap();
}

/// A copy of the program, started by nobody: the build directory may be closed to other users.
struct AsNobody {
    folder: Site,
}

impl AsNobody {
    fn new() -> AsNobody {
        need_root("starts the server as another user");
        let folder = Site::new();
        open_to_all(&folder);
        let copy = folder.path().join("amped");
        // Copied by another process: a child of another test could inherit a descriptor open for writing here, and a
        // file open for writing cannot be executed (ETXTBSY).
        let status = Command::new("cp").arg(program().get_program()).arg(&copy).status().unwrap();
        assert!(status.success());
        fs::set_permissions(&copy, fs::Permissions::from_mode(0o755)).unwrap();
        AsNobody { folder }
    }

    fn command(&self) -> Command {
        let mut command = Command::new("setpriv");
        let nobody = NOBODY.to_string();
        command.args(["--reuid", &nobody, "--regid", &nobody, "--clear-groups", "--inh-caps=-all"]);
        command.arg(self.folder.path().join("amped")).current_dir("/");
        command
    }

    fn run(&self, args: &[&str]) -> Ended {
        let mut command = self.command();
        command.args(args);
        run_command(command)
    }
}

#[test]
fn missing_root_is_reported_with_hint() {
    let site = Site::new();
    let none = site.path().join("none");
    let ended = run(&["serve", none.to_str().unwrap(), "--listen", "127.0.0.1:0"]);
    assert_says(&ended, 1, &[none.to_str().unwrap(), "does not exist", "create it, or correct the path"]);
}

#[test]
fn root_that_is_a_file_is_reported_with_its_directory() {
    let site = Site::new();
    let file = site.file("a.txt", "");
    let ended = run(&["serve", file.to_str().unwrap(), "--listen", "127.0.0.1:0"]);
    assert_says(&ended, 1, &["a.txt is a file", &format!("use its directory: `{}`", path(&site))]);
}

#[test]
fn inaccessible_root_is_reported_with_command() {
    let nobody = AsNobody::new();
    let site = Site::new();
    fs::set_permissions(site.path(), fs::Permissions::from_mode(0o700)).unwrap();
    let ended = nobody.run(&["serve", path(&site), "--listen", "127.0.0.1:0"]);
    assert_says(&ended, 1, &[&format!("no permission to enter the root {}", path(&site)), "chmod a+x", "namei -l"]);
    // The same for the user that root switches to: the server reports at startup a root that this user cannot read.
    let ended = run(&["serve", path(&site), "--listen", "127.0.0.1:0", "--user", "nobody"]);
    let says = [&format!("cannot open root {}", path(&site)), "Permission denied", "the user nobody", "namei -l"];
    assert_says(&ended, 1, &says);
}

#[test]
fn duplicate_listen_address_is_reported() {
    let site = Site::new();
    let [address] = free_addresses();
    let port = address.port();
    let [one, all] = ["127.0.0.1", "*"].map(|host| format!("{host}:{port}"));
    let ended = run(&["serve", path(&site), "--listen", &one, "--listen", &one]);
    assert_says(&ended, 2, &[&format!("--listen: duplicate listen address `{one}`")]);
    for (first, flag, second) in [(&all, "--listen", &one), (&one, "--metrics-listen", &one)] {
        let ended = run(&["serve", path(&site), "--listen", first, flag, second]);
        assert_says(
            &ended,
            1,
            &[&format!("cannot listen on {second}"), "this server itself listens on", "configure one"],
        );
        assert!(!ended.stderr.contains("another program"), "{}", ended.stderr);
    }
    let ended = run(&["serve", path(&site), "--listen", "[fe80::1]:8080"]);
    assert_says(&ended, 1, &["cannot listen on [fe80::1]:8080", "[fe80::1%2]:8080"]);
}

#[test]
fn port_in_use_is_reported_with_command() {
    let site = Site::new();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let port = format!("'sport = :{}'", address.port());
    let says = [&format!("cannot listen on {address}"), "Address already in use", &port, "--listen"];
    for workers in ["1", "2"] {
        let ended = run(&["serve", path(&site), "--listen", &address.to_string(), "--workers", workers]);
        assert_says(&ended, 1, &says);
    }
    // Another amped of the same user holds the port, with sockets that could be shared.
    let running = Server::start(&[path(&site), "--workers", "2"]);
    let address = running.address.to_string();
    for workers in ["1", "2"] {
        let ended = run(&["serve", path(&site), "--listen", &address, "--workers", workers]);
        assert_says(&ended, 1, &[&format!("cannot listen on {address}"), "Address already in use"]);
    }
    assert_eq!(running.get("/").status, 403);
}

#[test]
fn privileged_port_without_root_is_reported_with_two_hints() {
    let start = fs::read_to_string("/proc/sys/net/ipv4/ip_unprivileged_port_start").unwrap();
    assert_eq!(
        start.trim(),
        "1024",
        "this test requires privileged ports: sysctl -w net.ipv4.ip_unprivileged_port_start=1024"
    );
    let nobody = AsNobody::new();
    let ended = nobody.run(&["serve", "/usr", "--listen", "127.0.0.1:81"]);
    assert_says(
        &ended,
        1,
        &["cannot listen on 127.0.0.1:81", "Permission denied", "start as root with --user", "CAP_NET_BIND_SERVICE"],
    );
}

#[test]
fn foreign_address_is_reported_with_command() {
    let site = Site::new();
    // RFC 5737: reserved for documentation, so no host has it.
    let ended = run(&["serve", path(&site), "--listen", "192.0.2.1:8080"]);
    assert_says(&ended, 1, &["cannot listen on 192.0.2.1:8080", "this machine has no such address", "`ip address`"]);
}

#[test]
fn unknown_or_forbidden_user_is_reported_with_hint() {
    let site = Site::new();
    open_to_all(&site);
    let ended = run(&["serve", path(&site), "--listen", "127.0.0.1:0", "--user", "nobody-of-this-name"]);
    assert_says(&ended, 1, &["user nobody-of-this-name does not exist", "getent passwd"]);
    let config = site.file("amped.toml", configuration(site.path(), "user = \"nobody\"\ngroup = \"no-such-group\""));
    let ended = run(&["serve", "--config", config.to_str().unwrap()]);
    assert_says(&ended, 1, &["group no-such-group does not exist", "getent group"]);
    let config = site.file("amped.toml", configuration(site.path(), "group = \"root\""));
    let ended = run(&["serve", "--config", config.to_str().unwrap()]);
    assert_says(&ended, 1, &["amped.toml:3:9: `group` is given without `user`", "write `user` too"]);

    let nobody = AsNobody::new();
    let ended = nobody.run(&["serve", path(&site), "--listen", "127.0.0.1:0", "--user", "daemon"]);
    assert_says(&ended, 1, &["only root can change to user daemon", "start as root, or omit the user"]);
    // A process of that user already has nothing to drop.
    let mut command = nobody.command();
    command.args(["serve", path(&site), "--listen", "127.0.0.1:0", "--user", "nobody"]);
    assert_eq!(Server::spawn(command).get("/").status, 403);
}

#[test]
fn unreadable_configuration_is_reported_with_reason() {
    let site = Site::new();
    open_to_all(&site);
    let check = |file: PathBuf, says: &[&str], ended: &dyn Fn(&[&str]) -> Ended| {
        let file = file.to_str().unwrap();
        for command in ["serve", "check"] {
            let ended = ended(&[command, "--config", file]);
            assert_says(&ended, 1, &[&[file], says].concat());
        }
    };
    check(site.path().join("none.toml"), &["No such file or directory"], &run);
    check(site.path().to_owned(), &["Is a directory"], &run);
    let binary = site.file("binary.toml", b"root = \"\xff\"\n");
    check(binary, &["not UTF-8", "byte 8"], &run);
    let secret = site.file("secret.toml", "root = \".\"\n");
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o600)).unwrap();
    let nobody = AsNobody::new();
    check(secret, &["Permission denied"], &|args| nobody.run(args));
}

#[test]
fn unwritable_log_is_reported_with_reason() {
    let (site, logs) = (Site::new(), Site::new());
    open_to_all(&site);
    open_to_all(&logs);
    let log = logs.path().join("access.log");
    let nobody = AsNobody::new();
    let ended = nobody.run(&["serve", path(&site), "--listen", "127.0.0.1:0", "--access-log", log.to_str().unwrap()]);
    assert_says(&ended, 1, &[&format!("cannot open the log {}", log.display()), "Permission denied"]);
}

#[test]
fn failed_start_leaves_no_side_effects() {
    let site = Site::new();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let log = site.path().join("access.log");
    let address = taken.local_addr().unwrap().to_string();
    let ended = run(&["serve", path(&site), "--listen", &address, "--access-log", log.to_str().unwrap()]);
    assert_says(&ended, 1, &["cannot listen"]);
    assert!(!ended.stderr.contains("serving on"), "{}", ended.stderr);
    assert!(!log.exists());
}

/// Returns `Key: value` for each thread of a process, from proc_pid_status(5).
fn of_each_thread(pid: u32, key: &str) -> Vec<(String, String)> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    // A helper may exit during the loop.
    let statuses = tasks.filter_map(|task| fs::read_to_string(task.unwrap().path().join("status")).ok());
    let value = |status: String| {
        let of = |key: &str| status.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':')).unwrap().trim();
        (of("Name").to_owned(), of(key).split_whitespace().collect::<Vec<_>>().join(" "))
    };
    statuses.map(value).collect()
}

#[test]
fn root_is_dropped_in_every_thread_and_server_still_serves() {
    need_root("starts the server as root, to give it up");
    for architecture in ["amped", "mp"] {
        give_up_root(architecture);
    }
}

fn give_up_root(architecture: &str) {
    let (site, logs) = (Site::new(), Site::new());
    open_to_all(&site);
    open_to_all(&logs);
    chown(logs.path(), Some(NOBODY), Some(NOBODY)).unwrap();
    site.file("a.txt", "hello");
    fs::create_dir(site.path().join("folder")).unwrap();
    let secret = site.file("secret.txt", "for root");
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o600)).unwrap();
    let log = logs.path().join("access.log");
    let config = format!(
        "architecture = {architecture:?}\nuser = \"nobody\"\nworkers = 2\n[log]\naccess = {:?}\nflush = \"20ms\"\n[[site]]\nroot = {:?}\nlisting = true\nhosts = [\"x.test\"]",
        log.to_str().unwrap(),
        path(&site)
    );
    let config = site.file("amped.toml", configuration(site.path(), &config));
    let mut server = Server::start(&["--config", config.to_str().unwrap()]);
    assert_eq!(server.get("/a.txt").text(), "hello");
    assert_eq!(server.get("/secret.txt").status, 403);
    // Ensures that a helper is among the threads.
    assert_eq!(server.connect().request("GET", "/folder/", &[("Host", "x.test")]).status, 200);

    let four = |id: u32| format!("{id} {id} {id} {id}");
    let none = "0000000000000000".to_owned();
    for (key, expected) in [
        ("Uid", four(NOBODY)),
        ("Gid", four(NOBODY)),
        ("Groups", NOBODY.to_string()),
        ("NoNewPrivs", "1".to_owned()),
        ("CapPrm", none.clone()),
        ("CapEff", none.clone()),
        ("CapAmb", none),
    ] {
        let found: Vec<_> = server.pids().into_iter().flat_map(|pid| of_each_thread(pid, key)).collect();
        // The main thread, two loops, the log's thread, a helper; each process has a log thread and a connection to its
        // parent.
        assert!(found.len() >= 5, "{found:?}");
        for (thread, value) in found {
            assert_eq!(value, expected, "{key} of the thread {thread}");
        }
    }

    // The log can be reopened, because its directory belongs to nobody.
    wait_until("three log lines", || fs::read_to_string(&log).is_ok_and(|text| text.lines().count() == 3));
    fs::rename(&log, logs.path().join("old.log")).unwrap();
    server.signal("USR1");
    // A process learns of the new file once it exists; until then its lines go to the old one.
    wait_until("a line in the new log", || {
        assert_eq!(server.get("/a.txt").text(), "hello");
        fs::read_to_string(&log).is_ok_and(|text| text.lines().count() > 0)
    });
    // The configuration can be read again too, and the server can be stopped.
    server.signal("HUP");
    server.wait_for("the new configuration is in force");
    server.signal("TERM");
    assert_eq!(server.wait().code(), Some(0), "{}", server.said());
}

#[test]
fn unreadable_directory_redirects_to_slash() {
    need_root("serves as another user");
    let site = Site::new();
    open_to_all(&site);
    site.file("folder/index.html", "inside");
    fs::write(site.path().join("secret.txt"), "secret").unwrap();
    fs::set_permissions(site.path().join("folder"), fs::Permissions::from_mode(0o711)).unwrap();
    fs::set_permissions(site.path().join("secret.txt"), fs::Permissions::from_mode(0o600)).unwrap();
    let server = Server::configured(&site, "user = 'nobody'");
    let response = server.get("/folder?a=b");
    assert_eq!((response.status, response.field("Location")), (301, Some("/folder/?a=b")));
    assert_eq!(server.get("/folder/").text(), "inside");
    assert_eq!(server.get("/secret.txt").status, 403);
}

#[test]
fn serving_as_root_warns() {
    need_root("starts the server as root");
    let site = Site::new();
    let server = Server::serve(&site);
    assert!(server.said().contains("serving as root") && server.said().contains("--user NAME"), "{}", server.said());
}
