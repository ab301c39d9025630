//! Helper processes: their results, their crashes, and that none remains.
//!
//! `/proc` distinguishes them from the server: the fork server is the server's child, and helpers are the fork server's
//! children. A test that stops a helper (SIGSTOP) keeps it busy for as long as it needs.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::thread;
use std::time::Duration;

use super::disk::{SlowDisk, alone, cold_files, evict};
use super::frames::Http2;
use super::harness::{
    Client, Server, Site, children_of, configuration, let_files_settle, need_root, parent_of, pattern, run, wait_until,
};

/// Starts a server with at most `max` helper processes.
fn serve(site: &Site, max: usize, toml: &str) -> Server {
    serve_with(site, &[], &format!("[helpers]\nkind = 'processes'\nmax = {max}\nmin_spare = {max}\n{toml}"))
}

/// Starts a server with these flags and this configuration.
fn serve_with(site: &Site, flags: &[&str], toml: &str) -> Server {
    // A server that switches to another user must be able to enter it.
    fs::set_permissions(site.path(), Permissions::from_mode(0o755)).unwrap();
    let config = site.path().with_extension("toml");
    fs::write(&config, configuration(site.path(), toml)).unwrap();
    // Tests give a helper work by requesting a listing, repeatedly, so listings are not cached.
    let listing = ["--listing", "--without", "made-pages", "--config", config.to_str().unwrap()];
    Server::start(&[&listing[..], flags].concat())
}

fn fork_server_of(server: &Server) -> u32 {
    let children = children_of(server.pid());
    assert_eq!(children.len(), 1, "{children:?}");
    children[0]
}

pub fn helpers_of(server: &Server) -> Vec<u32> {
    children_of(fork_server_of(server))
}

pub fn signal(name: &str, pid: u32) {
    assert!(Command::new("kill").args([&format!("-{name}"), &pid.to_string()]).status().unwrap().success());
}

fn descriptors_of(pid: u32) -> usize {
    fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count()
}

/// Reads a field of `/proc/pid/status`.
fn status_of(pid: u32, field: &str) -> String {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    status.lines().find_map(|line| line.strip_prefix(field).map(str::to_owned)).expect("the field")
}

/// Stops the only helper and sends a request that needs a helper. Returns when the helper has the request.
fn give_work_to_a_stopped_one(server: &Server, client: &mut Client) -> u32 {
    assert_eq!(client.get("/").status, 200);
    let [helper] = helpers_of(server)[..] else { panic!("one helper") };
    signal("STOP", helper);
    wait_until("the helper to stop", || parent_of(helper).is_some_and(|(state, _)| state == 'T'));
    let questions = server.report("disk_questions");
    client.send_request("GET", "/folder/", &[]);
    wait_until("a disk lookup", || server.report("disk_questions") > questions);
    assert_eq!(server.report("helper_queue"), 0, "no helper has taken the task");
    helper
}

/// The page waits for the only helper, which is stopped; its links do not.
#[test]
fn links_of_site_precede_file_that_helper_reads() {
    let site = Site::on_disk();
    site.file("index.html", "index");
    evict(&site.file("page.html", "page"));
    let_files_settle();
    fs::set_permissions(site.path(), Permissions::from_mode(0o755)).unwrap();
    let toml = "[[site.early_hints]]\nmatch = \"*.html\"\nlinks = [\"</a.css>; rel=preload; as=style\"]\n\
        [helpers]\nkind = \"processes\"\nmax = 1\nmin_spare = 1";
    let server = Server::with_site(&site, toml);
    assert_eq!(server.get("/index.html").text(), "index");
    let [helper] = helpers_of(&server)[..] else { panic!("one helper") };
    signal("STOP", helper);
    let mut http2 = Http2::connect(&server);
    let stream = http2.request("GET", "/page.html", &[("sec-fetch-mode", "navigate")]);
    http2.read_until(|http2| http2.interim(stream) == [103]);
    assert_eq!(http2.last_head(stream).field("link"), Some("</a.css>; rel=preload; as=style"));
    signal("CONT", helper);
    let response = http2.response(stream);
    assert_eq!((response.status, response.text().as_str()), (200, "page"));
    // It is in memory now, and its response is ready at once.
    let stream = http2.request("GET", "/page.html", &[("sec-fetch-mode", "navigate")]);
    assert_eq!((http2.response(stream).text().as_str(), http2.interim(stream).len()), ("page", 0));
}

#[test]
fn content_from_helper_processes_is_complete() {
    let site = Site::on_disk();
    let small = pattern(10 << 10);
    // A body far larger than a socket buffer, and a descriptor with several windows.
    let (body, large) = (pattern(3 << 20), pattern((5 << 20) + 17));
    for (name, content) in [
        ("small.txt", &small),
        ("small.txt.gz", &body),
        ("small.txt.br", &small),
        ("body.bin", &body),
        ("large.bin", &large),
    ] {
        evict(&site.file(name, content));
    }
    (0..3000).for_each(|n| drop(site.file(&format!("many/a file with a name that is rather long, number {n}"), "")));
    let_files_settle();
    let server = serve(&site, 4, "[cache]\nmax_content_file_bytes = '4MiB'\ncontent_bytes = '32MiB'");
    let mut client = server.connect();
    for (target, content) in [("/small.txt", &small), ("/body.bin", &body), ("/large.bin", &large)] {
        let response = client.get(target);
        assert!(response.status == 200 && response.body == *content, "{target}: {}", response.status);
    }
    let zipped = client.request("GET", "/small.txt", &[("Accept-Encoding", "gzip")]);
    assert_eq!((zipped.field("Content-Encoding"), zipped.body == body), (Some("gzip"), true));
    let listing = client.get("/many/");
    assert_eq!((listing.status, listing.text().matches("number ").count() >= 3000), (200, true));
    assert!(listing.body.len() > 400_000, "more than a socket holds: {}", listing.body.len());
    assert_eq!(client.get("/missing").status, 404);
    assert_eq!(client.get("/many").status, 301);
    assert_eq!(server.report("helpers threads"), 0);
    assert!(server.report("helpers processes") > 0);
    // Because of read-ahead, a busy machine may have the whole file in memory before the second window is due.
    wait_until("a window of large.bin that is not in memory", || {
        evict(&site.path().join("large.bin"));
        assert!(client.get("/large.bin").body == large);
        server.report("probe_misses window") > 0
    });
    assert_eq!(server.report("helpers_died"), 0);
}

#[test]
fn content_read_by_helper_processes_counts_as_resident() {
    let site = Site::new();
    site.file("small.txt", pattern(10 << 10));
    let_files_settle();
    let server = serve(&site, 1, "[send]\nresidency = 'clock'");
    assert_eq!(server.report("page_cache_believed_bytes"), 0);
    assert_eq!(server.get("/small.txt").body, pattern(10 << 10));
    assert!(server.report("page_cache_believed_bytes") >= 10 << 10);
}

#[test]
fn helper_killed_while_busy_is_replaced_and_request_retried() {
    let site = Site::new();
    site.file("folder/file", "");
    let server = serve(&site, 1, "");
    let mut client = server.connect();
    let helper = give_work_to_a_stopped_one(&server, &mut client);
    signal("KILL", helper);
    let response = client.response("GET");
    assert_eq!((response.status, response.text().contains("file")), (200, true));
    server.wait_for(&format!("helper {helper} was killed by signal 9 (Killed) during a task ("));
    server.wait_for("/folder/); retrying it once");
    assert_eq!(server.report("helpers_died"), 1);
    assert_eq!(helpers_of(&server).len(), 1);
}

#[test]
fn helper_killed_while_idle_costs_nothing() {
    let site = Site::new();
    let server = serve(&site, 1, "");
    let mut client = server.connect();
    for died in 1..4 {
        assert_eq!(client.get("/").status, 200);
        let [helper] = helpers_of(&server)[..] else { panic!("one helper") };
        signal("KILL", helper);
        server.wait_for(&format!("helper {helper} was killed by signal 9 (Killed) while idle"));
        assert_eq!(server.report("helpers_died"), died);
    }
    assert_eq!(client.get("/").status, 200);
    assert!(!server.said().contains("retrying it once"), "{}", server.said());
}

#[test]
fn alone_request_that_kills_two_helpers_fails() {
    let _alone = alone();
    let site = Site::on_disk();
    let names = cold_files(&site, 2, 512 << 10);
    // One window takes many seconds.
    let slow = SlowDisk::new(site.path(), 16 << 10);
    let server = serve(&site, 1, "");
    let [begun, cold] = [&names[0], &names[1]].map(|name| format!("/{name}"));
    assert_eq!(server.get(&begun).body.len(), 512 << 10);
    // Its first window stays in memory.
    let input = format!("if={}", site.path().join(&names[0]).display());
    let range = ["iflag=nocache,skip_bytes,count_bytes", "bs=64K", "skip=262144", "count=262144"];
    assert!(Command::new("dd").args([&input, "of=/dev/null", "status=none"]).args(range).status().unwrap().success());
    slow.hold(&server);
    let kill_two = |work: &str| {
        for (n, what_then) in ["retrying it once", "giving up"].into_iter().enumerate() {
            let died = server.report("helpers_died");
            wait_until("a helper to start", || !helpers_of(&server).is_empty());
            let helper = helpers_of(&server)[0];
            // A helper that waits for the disk has begun its task.
            wait_until("the helper to wait for the disk", || parent_of(helper).is_some_and(|(state, _)| state == 'D'));
            signal("KILL", helper);
            wait_until("the exit of the helper", || server.report("helpers_died") > died);
            let which = if n == 0 { "a task" } else { "the retried task" };
            let line = format!("helper {helper} was killed by signal 9 (Killed) during {which} ({work}");
            wait_until("the reason in the error log", || {
                server.said().lines().any(|said| said.contains(&line) && said.ends_with(what_then))
            });
        }
    };
    let mut client = server.connect();
    client.send_request("GET", &cold, &[]);
    kill_two(&cold);
    assert_eq!(client.response("GET").status, 500);

    // A download in progress has sent its head, and cannot be completed.
    let mut client = server.connect();
    client.send_request("GET", &begun, &[]);
    kill_two("reading bytes 262144 to 524288 of inode");
    assert!(client.try_response("GET").is_err(), "a download that cannot continue is not truncated");
    assert_eq!(server.report("connections_broken"), 1);
    assert_eq!(server.get("/missing").status, 404, "the server does not continue");
}

#[test]
fn thousand_cold_requests_leak_no_descriptor() {
    const CLIENTS: usize = 10;
    let site = Site::new();
    // A file that was just written is handled by a helper, which waits until the file no longer changes.
    let server = serve(&site, 16, "[cache]\ndescriptors = 0\nmax_content_file_bytes = '1KiB'");
    let ask = |round: usize, n: usize, client: &mut Client| {
        let name = format!("{round}-{n}.bin");
        let path = site.file(&name, vec![n as u8; 40 << 10]);
        site.file(&format!("{name}.gz"), "x");
        let response = client.get(&format!("/{name}"));
        assert_eq!((response.status, response.body.len()), (200, 40 << 10));
        fs::remove_file(path).unwrap();
    };
    let all = |rounds: usize| {
        thread::scope(|scope| {
            for n in 0..CLIENTS {
                let (server, ask) = (&server, &ask);
                scope.spawn(move || {
                    let mut client = server.connect();
                    (0..rounds).for_each(|round| ask(round, n, &mut client));
                });
            }
        });
        wait_until("all connections to close", || server.report("connections") == 0);
    };
    all(1);
    let processes = |server: &Server| [vec![server.pid(), fork_server_of(server)], helpers_of(server)].concat();
    let count = || processes(&server).into_iter().map(|pid| (pid, descriptors_of(pid))).collect::<Vec<_>>();
    // Ten concurrent clients start as many helpers, which stay.
    let before = count();
    all(1000 / CLIENTS);
    assert!(server.report("disk_questions") >= 1000);
    let mut after = Vec::new();
    wait_until("the descriptors to be closed", || {
        after = count();
        after[0].1 <= before[0].1 + after.len() - before.len()
    });
    for &(pid, descriptors) in &after[1..] {
        let (name, most) = match before.iter().find(|(known, _)| *known == pid) {
            // One descriptor for each helper started since.
            Some((_, known)) if pid == after[1].0 => ("fork server", known + after.len() - before.len()),
            Some((_, known)) => ("helper", *known),
            None => ("helper", before[2].1),
        };
        assert!(descriptors <= most, "{name} {pid}: {descriptors}; before {before:?}, after {after:?}");
    }
}

#[test]
fn reload_reaches_helper_processes() {
    let [old, new] = [Site::new(), Site::new()];
    old.file("which/old", "");
    new.file("which/new", "");
    new.file("index.htm", "index");
    let server = serve(&old, 2, "");
    let mut client = server.connect();
    assert!(client.get("/which/").text().contains("old"));
    let root_of = |helper: u32| {
        let links = fs::read_dir(format!("/proc/{helper}/fd")).unwrap();
        let mut links = links.filter_map(|entry| fs::read_link(entry.unwrap().path()).ok());
        links.find(|link| [old.path(), new.path()].contains(&&**link))
    };
    let helper = helpers_of(&server)[0];
    assert_eq!(root_of(helper).as_deref(), Some(old.path()));
    let config = old.path().with_extension("toml");
    fs::write(&config, configuration(new.path(), "[helpers]\nkind = 'processes'\nmax = 3")).unwrap();
    server.signal("HUP");
    server.wait_for("the new configuration is in force");
    // An idle helper also releases a root that is no longer served.
    wait_until("the helper to use the new root", || root_of(helper).as_deref() == Some(new.path()));
    assert!(client.get("/which/").text().contains("new"));
    assert_eq!(client.get("/").text(), "index");
    assert_eq!(helpers_of(&server), [helper], "the helper was replaced");

    fs::write(&config, configuration(new.path(), "[helpers]\nkind = 'threads'")).unwrap();
    server.signal("HUP");
    server.wait_for("helpers.kind cannot change while the server runs");
    assert!(client.get("/which/").text().contains("new"));
}

#[test]
fn snapshot_of_several_messages_reaches_helpers() {
    const SITES: usize = 150;
    let site = Site::new();
    let mut toml = "listen = ['127.0.0.1:0']\n[helpers]\nkind = 'processes'\n".to_owned();
    for n in 0..SITES {
        site.file(&format!("{n}/sub/this is {n}."), "");
        let root = site.path().join(n.to_string());
        toml += &format!("[[site]]\nroot = {root:?}\nhosts = ['s{n}.example']\nlisting = true\n");
    }
    let config = site.path().with_extension("toml");
    fs::write(&config, toml).unwrap();
    let server = Server::start(&["--config", config.to_str().unwrap()]);
    let mut client = server.connect();
    for n in 0..SITES {
        let listing = client.request("GET", "/sub/", &[("Host", &format!("s{n}.example"))]);
        assert!(listing.text().contains(&format!("this is {n}.")), "{n}: {}", listing.text());
    }
}

#[test]
fn helper_processes_exit_with_server() {
    let site = Site::new();
    site.file("folder/file", "");
    for how in ["KILL", "TERM"] {
        let mut server = serve(&site, 3, "");
        let family = {
            let mut client = server.connect();
            // One helper is stopped during its work, another is idle.
            let helper = give_work_to_a_stopped_one(&server, &mut client);
            assert_eq!(server.get("/").status, 200);
            let family = [vec![fork_server_of(&server)], helpers_of(&server)].concat();
            assert_eq!(family.len(), 3);
            server.signal(how);
            signal("CONT", helper);
            family
        };
        server.wait();
        wait_until("all processes to exit", || family.iter().all(|pid| parent_of(*pid).is_none()));
    }
}

#[test]
fn helper_processes_start_on_demand_and_some_stay_in_reserve() {
    let site = Site::new();
    site.file("folder/file", "");
    let toml = "[helpers]\nkind = 'processes'\nmax = 3\nmin_spare = 1\nidle_timeout = '50ms'";
    let server = serve_with(&site, &[], toml);
    assert!(helpers_of(&server).is_empty());
    let mut client = server.connect();
    let stopped = give_work_to_a_stopped_one(&server, &mut client);
    assert_eq!(server.get("/").status, 200);
    // There were two (`peak`). The busy helper stays, and no other.
    wait_until("the idle helper to exit", || helpers_of(&server) == [stopped]);
    assert_eq!((server.report("helpers processes"), server.report("helpers_peak")), (1, 2));
    signal("CONT", stopped);
    assert_eq!(client.response("GET").status, 200);
    thread::sleep(Duration::from_millis(150));
    assert_eq!(helpers_of(&server), [stopped], "the reserve exited");
    assert_eq!(server.report("helpers_died"), 0, "a released helper was counted as dead");
}

#[test]
fn cold_requests_get_503_until_helper_process_starts() {
    need_root("limits the processes of another user");
    let site = Site::new();
    site.file("hot.txt", "hot");
    let_files_settle();
    let toml = "[helpers]\nkind = 'processes'\n[limits]\ndisk_timeout = '300ms'";
    let server = serve_with(&site, &["--user", "nobody"], toml);
    assert_eq!(server.get("/hot.txt").status, 200);
    let fork_server = fork_server_of(&server).to_string();
    // The soft limit only, and as the same user, which needs no capability that a container may lack.
    let number = |field| status_of(fork_server_of(&server), field).trim().split('\t').next().unwrap().parse().unwrap();
    let allow = |processes: &str| {
        let mut prlimit = Command::new("prlimit");
        prlimit.args(["--pid", &fork_server, &format!("--nproc={processes}:")]).uid(number("Uid:")).gid(number("Gid:"));
        assert!(prlimit.status().unwrap().success());
    };
    allow("0");
    // The helper of the first request.
    helpers_of(&server).into_iter().for_each(|helper| signal("KILL", helper));
    wait_until("the exit of the helper", || server.report("helpers processes") == 0);
    for _ in 0..3 {
        assert_eq!(server.get("/").status, 503);
        assert_eq!(server.get("/hot.txt").status, 200);
    }
    server.wait_for("cannot start a helper: Resource temporarily unavailable");
    assert_eq!(server.said().matches("cannot start a helper").count(), 1);
    let most = rustix::process::getrlimit(rustix::process::Resource::Nproc).maximum;
    allow(&most.map_or("unlimited".to_owned(), |most| most.to_string()));
    wait_until("a helper to start", || server.get("/").status == 200);
}

#[test]
fn signals_are_ignored_by_helper_processes() {
    let site = Site::new();
    let server = serve(&site, 1, "");
    assert_eq!(server.get("/").status, 200);
    let family = [vec![fork_server_of(&server)], helpers_of(&server)].concat();
    assert_eq!(family.len(), 2);
    for name in ["INT", "HUP", "USR1", "USR2", "QUIT", "TERM"] {
        family.iter().for_each(|pid| signal(name, *pid));
    }
    assert_eq!(server.get("/").status, 200);
    assert_eq!([vec![fork_server_of(&server)], helpers_of(&server)].concat(), family);
    assert_eq!(server.report("helpers_died"), 0);
}

#[test]
fn server_without_fork_server_exits_with_reason() {
    let site = Site::new();
    let mut server = serve(&site, 1, "");
    signal("KILL", fork_server_of(&server));
    assert_eq!(server.wait().code(), Some(1));
    server.wait_for("the fork server was killed by signal 9 (Killed)");
}

#[test]
fn helper_processes_run_as_serving_user_without_listener() {
    need_root("becomes another user");
    let site = Site::new();
    let server = serve_with(&site, &["--user", "nobody", "--helpers-kind", "processes"], "");
    assert_eq!(server.get("/").status, 200);
    for pid in [vec![fork_server_of(&server)], helpers_of(&server)].concat() {
        for name in ["Uid:", "Gid:", "Groups:", "NoNewPrivs:", "CapEff:"] {
            assert_eq!(status_of(pid, name), status_of(server.pid(), name), "{name} of {pid}");
        }
        assert_ne!(status_of(pid, "Uid:").trim().split('\t').next(), Some("0"));
        // One socket, its connection to the server; an inherited listener would keep the port in use.
        let links = fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
        let links = links.filter_map(|entry| fs::read_link(entry.unwrap().path()).ok());
        assert_eq!(links.filter(|link| link.to_string_lossy().starts_with("socket:")).count(), 1);
    }
}

#[test]
fn helper_flags_without_helpers_are_rejected() {
    let site = Site::new();
    let root = site.path().to_str().unwrap();
    for (flag, value) in [("--helpers", "4"), ("--helpers-kind", "processes")] {
        for architecture in ["sped", "mt", "mp"] {
            let ended = run(&["serve", root, "--architecture", architecture, flag, value]);
            assert_eq!(ended.status, 2, "{ended:?}");
            let says = format!("{flag}: this architecture has no helpers");
            assert!(ended.stderr.contains(&says), "{}", ended.stderr);
            assert!(ended.stderr.contains("--architecture amped"), "{}", ended.stderr);
        }
    }
    let ended = run(&["serve", root, "--helpers-kind", "processes", "--print-config"]);
    assert!(ended.stdout.contains("kind = \"processes\""), "{}", ended.stdout);
}

#[test]
fn hung_helper_does_not_delay_others() {
    let site = Site::new();
    site.file("folder/file", "");
    let server = serve(&site, 2, "[limits]\ndisk_timeout = '300ms'");
    let mut client = server.connect();
    let helper = give_work_to_a_stopped_one(&server, &mut client);
    // Served by the other helper.
    (0..20).for_each(|_| assert_eq!(server.get("/").status, 200));
    assert_eq!(client.response("GET").status, 503);
    signal("CONT", helper);
    assert_eq!(client.get("/folder/").status, 200);
}

#[test]
fn alone_large_listing_does_not_delay_others() {
    let site = Site::new();
    site.file("a.txt", "small");
    let folder = site.path().join("many");
    fs::create_dir(&folder).unwrap();
    (0..50_000).for_each(|n| drop(fs::File::create(folder.join(format!("a file with the number {n}"))).unwrap()));
    let_files_settle();
    let server = Server::start(&[site.path().to_str().unwrap(), "--listing"]);
    let mut client = server.connect();
    assert_eq!(client.get("/a.txt").text(), "small");
    let answered = thread::scope(|scope| {
        let listing = scope.spawn(|| server.get("/many/"));
        // Other requests continue until the listing is complete.
        let mut answered = 0;
        while !listing.is_finished() {
            assert_eq!(client.get("/a.txt").text(), "small");
            answered += 1;
        }
        let listing = listing.join().unwrap();
        assert_eq!((listing.status, listing.text().matches("href=\"./a").count()), (200, 50_000));
        answered
    });
    // Reading 50,000 names takes a hundred times as long as one response.
    assert!(answered > 20, "{answered} responses meanwhile");
    assert_eq!((server.report("cache_hits page"), server.report("helper_tasks list")), (0, 1));
    // The complete listing is cached, and sent again.
    assert_eq!(client.get("/many/").text().matches("href=\"./a").count(), 50_000);
    assert_eq!((server.report("cache_hits page"), server.report("helper_tasks list")), (1, 1));
}
