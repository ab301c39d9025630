//! Containment: what the server may still do after its start, as the kernel shows and enforces it.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use super::harness::*;

/// The sets of capabilities (proc_pid_status(5)).
const CAPABILITIES: [&str; 5] = ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"];

const NO_CAPABILITY: &str = "0000000000000000";

/// The name and the value of this field of proc_pid_status(5) of each thread of all the server's processes.
fn of_each_thread(server: &Server, field: &str) -> Vec<(String, String)> {
    let mut pids = server.pids();
    pids.extend(server.children().into_iter().flat_map(children_of));
    let mut found = Vec::new();
    for pid in pids {
        for task in fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten() {
            // A helper may exit during the loop.
            let Ok(status) = fs::read_to_string(task.path().join("status")) else { continue };
            found.push((of_status(&status, "Name"), of_status(&status, field)));
        }
    }
    found
}

/// The value of a field of proc_pid_status(5); empty if it is not there.
fn of_status(status: &str, field: &str) -> String {
    let line = status.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
    line.unwrap_or_default().trim().to_owned()
}

/// The soft limit on core dumps of a process (proc_pid_limits(5)).
fn core_limit(pid: u32) -> String {
    let limits = fs::read_to_string(format!("/proc/{pid}/limits")).unwrap();
    let line = limits.lines().find_map(|line| line.strip_prefix("Max core file size")).unwrap();
    line.split_whitespace().next().unwrap().to_owned()
}

/// A site that every user may read.
fn site() -> Site {
    let site = Site::new();
    fs::set_permissions(site.path(), fs::Permissions::from_mode(0o755)).unwrap();
    site.file("a.txt", "hello");
    site
}

fn start(site: &Site, architecture: &str, toml: &str) -> Server {
    let config = site.path().with_extension("toml");
    fs::write(&config, configuration(site.path(), toml)).unwrap();
    let mut command = program();
    command.args(["serve", "--architecture", architecture, "--config", config.to_str().unwrap()]);
    Server::spawn(command)
}

#[test]
fn no_thread_has_capabilities_and_no_process_dumps_core() {
    need_root("starts the server with capabilities, to drop them");
    allow_core_dumps();
    let helper_processes = "[helpers]\nkind = \"processes\"\n";
    for architecture in crate::ARCHITECTURES {
        for (user, kind) in [("", ""), ("user = \"nobody\"\n", ""), ("", helper_processes)] {
            let site = site();
            let server = start(&site, architecture, &format!("{user}workers = 2\n{kind}"));
            assert_eq!(server.get("/a.txt").text(), "hello");
            for set in CAPABILITIES {
                for (thread, value) in of_each_thread(&server, set) {
                    assert_eq!(value, NO_CAPABILITY, "{set} of {thread}, {architecture}, {user}{kind}");
                }
            }
            for pid in server.pids() {
                assert_eq!(core_limit(pid), "0", "{architecture}");
            }
        }
    }
}

#[test]
fn switches_keep_capabilities_and_core_dumps() {
    need_root("starts the server with capabilities, to keep them");
    allow_core_dumps();
    let site = site();
    let keys = "[contain]\nno_new_privs = false\ndrop_capabilities = false\ncore_dumps = true";
    for architecture in crate::ARCHITECTURES {
        let server = start(&site, architecture, keys);
        assert_eq!(server.get("/a.txt").text(), "hello");
        let threads = of_each_thread(&server, "CapEff");
        assert!(threads.iter().all(|(_, value)| value != NO_CAPABILITY), "{architecture}: {threads:?}");
        assert_eq!(core_limit(server.pid()), core_limit(std::process::id()));
    }
}

#[test]
fn script_gains_privileges_only_with_switch() {
    need_root("creates a set-uid program");
    let site = site();
    // Of root, with the set-uid bit.
    let id = site.path().join("id");
    fs::copy("/usr/bin/id", &id).unwrap();
    fs::set_permissions(&id, fs::Permissions::from_mode(0o4755)).unwrap();
    let script = format!("#!/bin/sh\nprintf 'Content-Type: text/plain\\n\\n'; {} -u", id.display());
    let script = site.file("cgi-bin/who", script);
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    fs::set_permissions(script.parent().unwrap(), fs::Permissions::from_mode(0o755)).unwrap();
    for (keys, uid) in [("", "65534\n"), ("[contain]\nno_new_privs = false\n", "0\n")] {
        let app = "[[site]]\n[[site.app]]\nmatch = \"/cgi-bin/**\"\ncgi = true\n";
        let config = site.path().with_extension("toml");
        let app = app.replace("[[site]]", &format!("[[site]]\nroot = {:?}", site.path()));
        fs::write(&config, format!("listen = [\"127.0.0.1:0\"]\nuser = \"nobody\"\n{keys}{app}")).unwrap();
        let server = Server::start(&["--config", config.to_str().unwrap()]);
        let response = server.get("/cgi-bin/who");
        assert_eq!((response.status, response.text().as_str()), (200, uid), "{keys}");
    }
}

/// A site with its configuration, passwords, logs and spooled bodies in directories of their own.
struct Place(Site);

/// The directories whose files a running server opens again.
const FOLDERS: [&str; 6] = ["etc", "root", "users", "logs", "spool", "run"];

impl Place {
    fn new() -> Place {
        let site = Site::new();
        fs::set_permissions(site.path(), fs::Permissions::from_mode(0o755)).unwrap();
        FOLDERS.iter().for_each(|name| fs::create_dir(site.path().join(name)).unwrap());
        site.file("root/a.txt", "hello");
        site.file("root/private/a.txt", "private");
        site.file("users/list", format!("ann:{}\n", bcrypt::hash("secret", 4).unwrap()));
        site.file("outside", "outside");
        Place(site)
    }

    fn path(&self, name: &str) -> String {
        self.0.path().join(name).display().to_string()
    }

    /// Writes a script of the site.
    fn script(&self, name: &str, text: &str) {
        let path =
            self.0.file(&format!("root/{name}"), format!("#!/bin/sh\nprintf 'Content-Type: text/plain\\n\\n'\n{text}"));
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    /// Writes the configuration, with these keys before the site.
    fn configure(&self, keys: &str) {
        let contain =
            if keys.contains("landlock") { "" } else { "contain.landlock = true\ncontain.seccomp = 'kill'\n" };
        let folder = self.0.path();
        let text = format!(
            "listen = ['127.0.0.1:0']\ncache = {{ revalidate = '20ms' }}\nlog = {{ access = {:?}, flush = '20ms' }}\n\
             spool.directory = {:?}\ncontrol.socket = {:?}\nlimits.max_password_attempts = 0\n{contain}{keys}\n\
             [[site]]\nroot = {:?}\nlisting = true\n\
             [[site.auth]]\ndirectory = '/private/'\naccounts = {:?}\n\
             [[site.app]]\nmatch = '/*.cgi'\ncgi = true\n",
            folder.join("logs/access.log"),
            folder.join("spool"),
            folder.join("run/control"),
            folder.join("root"),
            folder.join("users/list"),
        );
        self.0.file("etc/amped.toml", text);
    }

    fn start(&self, architecture: &str, keys: &str) -> Server {
        self.configure(keys);
        let mut command = program();
        command.args(["serve", "--architecture", architecture, "--config", &self.path("etc/amped.toml")]);
        if matches!(architecture, "mt" | "mp") {
            command.args(["--workers", "8"]);
        }
        Server::spawn(command)
    }

    /// Puts a copy in place of a directory: its files have the same names and contents, but are others.
    fn replace(&self, name: &str) {
        let (path, old) = (self.path(name), self.path(&format!("{name}.old")));
        fs::rename(&path, &old).unwrap();
        let copied = std::process::Command::new("cp").args(["-a", &old, &path]).status().unwrap();
        assert!(copied.success());
    }
}

/// The status of a request for a page that needs a password.
fn status_with_password(server: &Server) -> u16 {
    // `ann:secret`
    server.connect().request("GET", "/private/a.txt", &[("Authorization", "Basic YW5uOnNlY3JldA==")]).status
}

/// Sends a request with a body that is longer than what is kept in memory.
fn post(server: &Server, target: &str, body: &str) -> Response {
    let mut client = server.connect();
    client.send(format!("POST {target} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\n\r\n{body}", body.len()));
    client.response("POST")
}

/// Sends a signal, and waits for one of these texts on standard error. Returns whether it was the first.
fn signal(server: &Server, name: &str, [good, bad]: [&str; 2]) -> bool {
    let before = server.said().len();
    server.signal(name);
    wait_until(&format!("{good:?} or {bad:?}"), || {
        let said = server.said();
        said[before..].contains(good) || said[before..].contains(bad)
    });
    server.said()[before..].contains(good)
}

const RELOADED: [&str; 2] = ["configuration is in force", "keeping the current configuration"];

#[test]
fn confined_server_does_all_that_it_is_configured_for() {
    for architecture in crate::ARCHITECTURES {
        let place = Place::new();
        place.script("length.cgi", "wc -c");
        // A text without `#!`, which the shell runs.
        let text = place.0.file("root/text.cgi", "printf 'Content-Type: text/plain\\n\\n'; echo ${0##*/}");
        fs::set_permissions(text, fs::Permissions::from_mode(0o755)).unwrap();
        // Neither reading nor writing is limited for programs.
        place.script("free.cgi", &format!("cat {} && echo written > {}", place.path("outside"), place.path("new")));
        let mut server = place.start(architecture, "");
        server.wait_for("Landlock limits this server");
        assert_eq!(server.get("/a.txt").text(), "hello", "{architecture}");
        assert_eq!((status_with_password(&server), server.get("/private/a.txt").status), (200, 401));
        let body = "x".repeat(1 << 20);
        let length = post(&server, "/length.cgi", &body);
        assert_eq!(length.text().trim(), body.len().to_string(), "{architecture}");
        assert_eq!(
            (server.get("/free.cgi").text(), server.get("/text.cgi").text()),
            ("outside".into(), "text.cgi\n".into())
        );
        assert_eq!(fs::read_to_string(place.path("new")).unwrap(), "written\n");
        // The configuration and the passwords are other files now, in the same directories.
        place.configure("");
        place.0.file("users/next", format!("ann:{}\n", bcrypt::hash("another", 4).unwrap()));
        fs::rename(place.path("users/next"), place.path("users/list")).unwrap();
        assert!(signal(&server, "HUP", RELOADED), "{architecture}: {}", server.said());
        wait_until("the new password", || status_with_password(&server) == 401);
        fs::rename(place.path("logs/access.log"), place.path("logs/access.log.1")).unwrap();
        server.signal("USR1");
        wait_until("a new log", || {
            server.get("/a.txt");
            fs::read_to_string(place.path("logs/access.log")).is_ok_and(|log| log.contains("GET /a.txt"))
        });
        server.upgrade();
        assert_eq!(server.wait().code(), Some(0), "{architecture}: {}", server.said());
        assert_eq!((server.get("/a.txt").text(), server.get("/free.cgi").text()), ("hello".into(), "outside".into()));
        assert!(signal(&server, "HUP", RELOADED), "{architecture}: {}", server.said());
    }
}

#[test]
fn confined_server_opens_no_other_files() {
    need_root("serves as root, so that nothing but Landlock protects files");
    for (architecture, confined) in crate::ARCHITECTURES.iter().flat_map(|one| [(one, true), (one, false)]) {
        let place = Place::new();
        place.script("length.cgi", "wc -c");
        let keys = if confined { "" } else { "contain.landlock = false" };
        let mut server = place.start(architecture, keys);
        let context = format!("{architecture}, {confined}");
        assert_eq!((server.get("/a.txt").status, status_with_password(&server)), (200, 200), "{context}");
        // Read by the loop or a thread beside it; written by the same.
        place.replace("users");
        place.replace("spool");
        wait_until(&format!("{context}: the password file is looked at again"), || {
            (status_with_password(&server) == 200) != confined
        });
        let length = post(&server, "/length.cgi", &"x".repeat(1 << 20));
        assert_eq!(length.status == 200, !confined, "{context}: {}", server.said());
        // By the thread of the log.
        place.replace("logs");
        fs::remove_file(place.path("logs/access.log")).unwrap();
        server.signal("USR1");
        if confined {
            server.wait_for("access.log");
        }
        let has_log = || fs::exists(place.path("logs/access.log")).unwrap();
        wait_until("a new log", || {
            server.get("/a.txt");
            confined || has_log()
        });
        assert_eq!(has_log(), !confined, "{context}");
        // By the main thread.
        place.replace("etc");
        assert_eq!(signal(&server, "HUP", RELOADED), !confined, "{context}: {}", server.said());
        fs::remove_dir_all(place.path("etc")).unwrap();
        fs::rename(place.path("etc.old"), place.path("etc")).unwrap();
        // By all of them: files of the site.
        assert_eq!(server.get("/a.txt").text(), "hello");
        place.replace("root");
        wait_until("the new root", || server.get("/a.txt").status == if confined { 403 } else { 200 });
        assert_eq!(signal(&server, "HUP", RELOADED), !confined, "{context}: {}", server.said());
        if confined {
            assert!(server.said().contains("is not among the files"), "{}", server.said());
            assert!(
                server
                    .said()
                    .contains("Landlock limits this server to the files that its configuration named at the start")
            );
        }
        // An upgrade is not limited to the files of its predecessor.
        server.upgrade();
        assert_eq!(server.wait().code(), Some(0), "{context}: {}", server.said());
        assert_eq!((server.get("/a.txt").text().as_str(), status_with_password(&server)), ("hello", 200), "{context}");
        let length = post(&server, "/length.cgi", &"x".repeat(1 << 20));
        assert_eq!(length.status, 200, "{context}");
    }
}

#[test]
fn reload_of_confined_server_cannot_add_programs() {
    let place = Place::new();
    place.script("free.cgi", "echo $OWN");
    let mut server = place.start("amped", "");
    let config = place.path("etc/amped.toml");
    let text = fs::read_to_string(&config).unwrap();
    for more in ["env = { OWN = '1' }\n", "[[site.app]]\nmatch = '/app'\ncommand = ['/bin/sh']\n"] {
        fs::write(&config, format!("{text}{more}")).unwrap();
        assert!(!signal(&server, "HUP", RELOADED), "{more}");
        assert!(server.said().contains("are limited to those at the start of this server"), "{}", server.said());
        assert_eq!(server.get("/free.cgi").text(), "\n");
    }
    fs::write(&config, format!("{text}env = {{ OWN = '1' }}\n")).unwrap();
    server.upgrade();
    assert_eq!(server.wait().code(), Some(0), "{}", server.said());
    assert_eq!(server.get("/free.cgi").text(), "1\n");
}

#[test]
fn confined_server_does_not_serve_shadow_file_through_a_replaced_root() {
    need_root("serves as root, which may read /etc/shadow");
    let helper_processes = "helpers.kind = \"processes\"\n";
    let kinds = crate::ARCHITECTURES.iter().map(|one| (*one, "")).chain([("amped", helper_processes)]);
    for ((architecture, keys), confined) in kinds.flat_map(|kind| [(kind, true), (kind, false)]) {
        let place = Place::new();
        let text = "x".repeat(100_000);
        place.0.file("root/large.txt", &text);
        let server = place.start(architecture, &format!("contain.landlock = {confined}\n{keys}"));
        assert_eq!((server.get("/large.txt").text(), server.get("/").status), (text, 200), "{architecture}, {keys}");
        fs::rename(place.path("root"), place.path("root.old")).unwrap();
        std::os::unix::fs::symlink("/etc", place.path("root")).unwrap();
        // By the loop, if the name is in memory; directories are read by a helper if there are any.
        for target in ["/shadow", "/"] {
            let status = if confined { 403 } else { 200 };
            wait_until(&format!("{status} for {target}, {architecture}, {keys}"), || {
                server.get(target).status == status
            });
        }
    }
}

#[test]
fn system_calls_of_all_threads_are_limited_but_not_those_of_programs() {
    // Containers have filters of their own.
    let own = fs::read_to_string("/proc/self/status").unwrap();
    let own: u32 = of_status(&own, "Seccomp_filters").parse().unwrap();
    let helper_processes = "helpers.kind = 'processes'\n";
    let kinds = crate::ARCHITECTURES.iter().map(|one| (*one, "")).chain([("amped", helper_processes)]);
    for ((architecture, keys), value) in kinds.flat_map(|kind| [(kind, "refuse"), (kind, "kill"), (kind, "off")]) {
        let place = Place::new();
        place.script("own.cgi", "grep ^Seccomp_filters: /proc/self/status");
        let server =
            place.start(architecture, &format!("contain.landlock = false\ncontain.seccomp = '{value}'\n{keys}"));
        let limited = if value == "off" { own } else { own + 2 };
        // A successor is not limited twice.
        for is_successor in [false, true].into_iter().take(if value == "kill" { 2 } else { 1 }) {
            if is_successor {
                server.upgrade();
            }
            assert_eq!(server.get("/a.txt").text(), "hello");
            assert_eq!(server.get("/own.cgi").text(), format!("Seccomp_filters:\t{own}\n"), "{architecture}");
            for (thread, filters) in of_each_thread(&server, "Seccomp_filters") {
                let expected = if thread == "app-manager" { own } else { limited };
                assert_eq!(filters, expected.to_string(), "{thread}, {architecture}, {keys}, {value}");
            }
        }
    }
}

#[test]
fn set_uid_bits_work_for_programs_of_confined_server_only_with_switch() {
    need_root("creates a set-uid program");
    let place = Place::new();
    let id = place.path("id");
    fs::copy("/usr/bin/id", &id).unwrap();
    fs::set_permissions(&id, fs::Permissions::from_mode(0o4755)).unwrap();
    place.script("who.cgi", &format!("{id} -u"));
    fs::set_permissions(place.path("logs"), fs::Permissions::from_mode(0o777)).unwrap();
    for (keys, uid) in [("", "65534\n"), ("contain.no_new_privs = false\n", "0\n")] {
        let server = place.start("amped", &format!("user = \"nobody\"\n{keys}"));
        assert_eq!(server.get("/who.cgi").text(), uid, "{keys}");
    }
}

#[test]
fn scripts_of_another_user_cannot_touch_server() {
    need_root("starts scripts as other users");
    for (architecture, confined) in crate::ARCHITECTURES.iter().flat_map(|one| [(one, true), (one, false)]) {
        let place = Place::new();
        let secret = place.0.file("root/secret", "secret");
        let server_user = "user = 'nobody'\n";
        std::os::unix::fs::chown(&secret, Some(65534), Some(65534)).unwrap();
        fs::set_permissions(&secret, fs::Permissions::from_mode(0o600)).unwrap();
        place.script(
            "who.cgi",
            &format!(
                "id -u; id -g; id -G; grep -E '^Cap(Prm|Eff|Bnd)' /proc/self/status\n\
                 kill -0 $QUERY_STRING 2>/dev/null && echo signals server\n\
                 kill -0 $PPID 2>/dev/null && echo signals manager\n\
                 python3 -c 'import socket; socket.socket(socket.AF_UNIX).connect({:?})' 2>/dev/null && echo connects\n\
                 cat secret 2>/dev/null; echo",
                place.path("run/control")
            ),
        );
        place.script("wait.cgi", "echo waiting; exec sleep 1000");
        let contain = if confined { "" } else { "contain.landlock = false\n" };
        let capabilities = ["CapPrm", "CapEff", "CapBnd"].map(|set| format!("{set}:\t{NO_CAPABILITY}\n")).concat();
        let own =
            "65534\n65534\n65534\n".to_owned() + &capabilities + "signals server\nsignals manager\nconnects\nsecret\n";
        let other = "1\n1\n1\n".to_owned() + &capabilities + "\n";
        for (user, expected) in [("", own), ("user = 'daemon'\n", other)] {
            let mut server = place.start(architecture, &format!("{server_user}{contain}"));
            if !user.is_empty() {
                drop(server);
                let config = place.path("etc/amped.toml");
                fs::write(&config, fs::read_to_string(&config).unwrap() + user).unwrap();
                let mut command = program();
                command.args(["serve", "--architecture", architecture, "--config", &config]);
                server = Server::spawn(command);
            }
            let response = server.get(&format!("/who.cgi?{}", server.pid()));
            assert_eq!(response.text(), expected, "{architecture}, {confined}, {user}: {}", server.said());
            // It ends although it is another user's.
            let mut leaves = server.connect();
            leaves.send_request("GET", "/wait.cgi", &[]);
            wait_until("the script", || server.programs().len() == 1);
            drop(leaves);
            wait_until("its end", || server.programs().is_empty());
        }
    }
}

/// The manual, which contains a systemd drop-in for scripts that run as other users.
const MANUAL: &str = include_str!("../../docs/operating.md");

#[test]
fn server_started_as_root_uses_directories_of_its_user_with_capabilities_of_manual() {
    need_root("starts scripts as other users");
    let bounding = MANUAL.lines().find_map(|line| line.trim().strip_prefix("CapabilityBoundingSet=CAP_")).unwrap();
    let bounding = bounding.to_lowercase().replace(" cap_", ",+");
    for architecture in ["amped", "mp"] {
        let place = Place::new();
        place.script("who.cgi", "id -u");
        place.configure("user = 'nobody'\n");
        let config = place.path("etc/amped.toml");
        let more = "user = 'daemon'\n[[site.app]]\nmatch = '/app'\ncommand = ['/bin/sleep', '1000']\n";
        fs::write(&config, fs::read_to_string(&config).unwrap() + more).unwrap();
        // systemd gives the runtime directory to root.
        for (folder, owner) in [("logs", 65534), ("run", 65534), ("tmp", 65534), ("runtime", 0)] {
            fs::create_dir_all(place.path(folder)).unwrap();
            std::os::unix::fs::chown(place.path(folder), Some(owner), Some(owner)).unwrap();
            fs::set_permissions(place.path(folder), fs::Permissions::from_mode(0o750)).unwrap();
        }
        let mut command = std::process::Command::new("setpriv");
        command.arg(format!("--bounding-set=-all,+{bounding}")).arg(program().get_program());
        command.args(["serve", "--architecture", architecture, "--config", &config]);
        command.env("RUNTIME_DIRECTORY", place.path("runtime")).env("TMPDIR", place.path("tmp"));
        let mut server = Server::spawn(command);
        assert_eq!(server.get("/who.cgi").text(), "1\n", "{}", server.said());
        let count = |folder: &str| fs::read_dir(place.path(folder)).unwrap().count();
        assert_eq!((count("runtime"), count("tmp")), (0, 1), "the directory of the application's sockets");
        fs::remove_file(place.path("logs/access.log")).unwrap();
        server.signal("USR1");
        wait_until("a new log", || {
            server.get("/a.txt");
            fs::read_to_string(place.path("logs/access.log")).is_ok_and(|log| log.contains("GET /a.txt"))
        });
        server.signal("TERM");
        assert_eq!(server.wait().code(), Some(0), "{}", server.said());
        assert_eq!((count("run"), count("tmp")), (0, 0), "{}", server.said());
    }
}

#[test]
fn scripts_as_root_and_of_servers_that_are_not_root_are_refused() {
    need_root("starts scripts as other users");
    let place = Place::new();
    let config = place.path("etc/amped.toml");
    let start = |user: &str, by: Option<&str>| {
        place.configure("");
        fs::write(&config, fs::read_to_string(&config).unwrap() + &format!("user = '{user}'\n")).unwrap();
        let mut command = program();
        if let Some(by) = by {
            command = std::process::Command::new("setpriv");
            command.args(["--reuid", by, "--regid", "65534", "--clear-groups"]).arg(program().get_program());
        }
        command.args(["serve", "--config", &config]);
        run_command(command)
    };
    for (user, by, why) in [
        ("root", None, "scripts cannot run as root"),
        ("nobody of this name", None, "does not exist"),
        ("daemon", Some("nobody"), "only root can start scripts as user daemon"),
    ] {
        let ended = start(user, by);
        assert!(ended.status != 0 && ended.stderr.contains(why), "{}", ended.stderr);
    }
}

#[test]
fn confined_server_ends_with_its_process_manager() {
    for architecture in crate::ARCHITECTURES {
        let place = Place::new();
        let mut server = place.start(architecture, "");
        let name = |pid: &u32| fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        let manager = || server.children().into_iter().find(|pid| name(pid) == "app-manager\n");
        // It sets its name after it was forked.
        wait_until("the process manager", || manager().is_some());
        let manager = manager().unwrap();
        let killed = std::process::Command::new("kill").args(["-KILL", &manager.to_string()]).status().unwrap();
        assert!(killed.success());
        assert_eq!(server.wait().code(), Some(1), "{architecture}");
        assert!(server.said().contains("the process manager was killed by signal 9"), "{}", server.said());
    }
}
