//! Many concurrent connections: their cost, and the behaviour when file descriptors run out.

use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::harness::*;
use super::helpers::{helpers_of, signal};
use crate::requests::Random;

/// Resident memory of a process, in bytes.
fn resident_bytes(pid: u32) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
}

/// Sets the soft limit on file descriptors of a running process. `prlimit` is in util-linux, which Debian always has.
fn limit_descriptors(pid: u32, soft: usize) {
    let limit = format!("--nofile={soft}:");
    let status = Command::new("prlimit").args(["--pid", &pid.to_string(), &limit]).status().unwrap();
    assert!(status.success());
}

/// In a multi-threaded process the kernel enlarges the descriptor table only after an RCU grace period. The loop that
/// opens one file too many would wait 5 to 15 ms for it.
#[test]
fn descriptor_table_is_sized_at_start() {
    let site = Site::new();
    let server = Server::start(&[site.path().to_str().unwrap()]);
    let status = fs::read_to_string(format!("/proc/{}/status", server.pid())).unwrap();
    let size = status.lines().find_map(|line| line.strip_prefix("FDSize:")).unwrap();
    let limit = getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX);
    assert!(size.trim().parse::<u64>().unwrap() >= limit.min(65_536), "room for {size} of {limit} descriptors");
}

#[test]
fn ten_thousand_idle_connections_cost_half_a_kibibyte_each() {
    const CONNECTIONS: usize = 10_000;
    const THREADS: usize = 4;
    const NEEDED: u64 = CONNECTIONS as u64 + 2000;
    let limit = getrlimit(Resource::Nofile);
    let hard = limit.maximum.unwrap_or(u64::MAX);
    assert!(
        hard >= NEEDED,
        "this test opens {CONNECTIONS} connections, and the hard limit on open files is {hard}: raise it to {NEEDED} \
         (`ulimit -Hn {NEEDED}` as root, or --ulimit nofile={NEEDED} for a container)"
    );
    // Raised here and in the server, which inherits the hard limit and raises its own soft limit.
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum }).unwrap();

    let site = Site::new();
    site.file("a.txt", "hello");
    let server = Server::configured(&site, "[limits]\nidle_timeout = \"1h\"\nheader_timeout = \"1h\"");
    assert_eq!(server.get("/a.txt").status, 200);
    let resident_before = resident_bytes(server.pid());
    let mut clients: Vec<Client> = thread::scope(|scope| {
        let open = || -> Vec<Client> {
            let one = |_| {
                let mut client = server.connect();
                assert_eq!(client.get("/a.txt").text(), "hello");
                client
            };
            (0..CONNECTIONS / THREADS).map(one).collect()
        };
        let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(open)).collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    wait_until("all connections to be accepted", || server.report("connections") == CONNECTIONS as u64);
    let bytes = server.report("connection_bytes") / CONNECTIONS as u64;
    let resident = resident_bytes(server.pid()).saturating_sub(resident_before) / CONNECTIONS as u64;
    println!("{bytes} bytes a connection by the server's own count, {resident} by the growth of its resident memory");
    assert!(bytes <= 512, "{bytes} bytes a connection");

    let mut random = Random(20_260_101);
    println!("seed {}", random.0);
    let mut sample = vec![0, CONNECTIONS - 1];
    sample.extend((0..500).map(|_| random.below(CONNECTIONS)));
    for n in sample {
        assert_eq!(clients[n].get("/a.txt").text(), "hello", "connection {n}");
    }
    for client in &clients {
        // Closed by a reset: ten thousand ports in TIME_WAIT would disturb other tests.
        rustix::net::sockopt::set_socket_linger(client.stream(), Some(Duration::ZERO)).unwrap();
    }
    drop(clients);
    wait_until("all connections to close", || server.report("connections") == 0);
}

#[test]
fn descriptor_exhaustion_is_logged_once_and_accept_resumes() {
    let site = Site::new();
    site.file("a.txt", "hello");
    let server = Server::configured(
        &site,
        "[limits]\nmax_connections = 1000\n[cache]\nrevalidate = \"10m\"\nmax_stale = \"10m\"",
    );
    let_files_settle();
    let mut clients: Vec<Client> = (0..8).map(|_| server.connect()).collect();
    for client in &mut clients {
        assert_eq!(client.get("/a.txt").text(), "hello");
    }
    // Ten more descriptors, and no more than that.
    limit_descriptors(server.pid(), descriptors_of(server.pid()).len() + 10);
    let mut crowd: Vec<Client> = (0..40).map(|_| server.connect()).collect();
    for client in &mut crowd {
        client.send_request("GET", "/a.txt", &[]);
    }
    let exhausted = "amped: cannot accept connections: Too many open files";
    server.wait_for(exhausted);
    let (begin, cpu_before) = (Instant::now(), server.cpu_time());
    while begin.elapsed() < Duration::from_secs(1) {
        for client in &mut clients {
            assert_eq!(client.get("/a.txt").text(), "hello");
        }
        thread::sleep(Duration::from_millis(100));
    }
    let (time, cpu) = (begin.elapsed(), server.cpu_time() - cpu_before);
    assert!(cpu < time * 3 / 10, "{cpu:?} of CPU time in {time:?}: the server spins");
    // The limit applies to the highest descriptor number, so gaps below it are filled too.
    let open = server.report("connections");
    assert!((9..30).contains(&open), "{open}");

    // The accepted clients have received their responses; as they close, the server accepts the others.
    let mut answered = 0;
    for mut client in crowd {
        assert_eq!(client.response("GET").text(), "hello");
        answered += 1;
    }
    assert_eq!(answered, 40);
    server.wait_for("amped: file descriptors available again; resuming accept");
    for client in &mut clients {
        assert_eq!(client.get("/a.txt").text(), "hello");
    }
}

#[test]
fn released_descriptors_are_noticed_without_waiting_client() {
    let site = Site::new();
    site.file("a.txt", "hello");
    let server = Server::configured(&site, "[limits]\nmax_connections = 1000");
    limit_descriptors(server.pid(), descriptors_of(server.pid()).len() + 10);
    // The last connection with room is accepted, and none waits in the listen queue.
    let mut clients = Vec::new();
    while !server.said().contains("amped: cannot accept connections: Too many open files") {
        assert!(clients.len() < 100, "{}", server.said());
        let mut client = server.connect();
        client.send_request("GET", "/a.txt", &[]);
        clients.push(client);
        thread::sleep(Duration::from_millis(20));
    }
    drop(clients);
    server.wait_for("amped: file descriptors available again; resuming accept");
    assert_eq!(server.get("/a.txt").text(), "hello");
}

#[test]
fn repeated_descriptor_exhaustion_is_logged_once() {
    let site = Site::new();
    site.file("a.txt", "hello");
    let server = Server::configured(&site, "[limits]\nmax_connections = 1000");
    let mut client = server.connect();
    assert_eq!(client.get("/a.txt").text(), "hello");
    limit_descriptors(server.pid(), descriptors_of(server.pid()).len());
    let _crowd: Vec<Client> = (0..40).map(|_| server.connect()).collect();
    server.wait_for("amped: cannot accept connections");
    thread::sleep(Duration::from_secs(1));
    let said = server.said();
    assert_eq!(said.matches("cannot accept connections").count(), 1, "{said}");
    assert_eq!(said.matches("available again").count(), 0, "{said}");
}

#[test]
fn low_descriptor_limit_bounds_connections() {
    let site = Site::new();
    site.file("a.txt", "hello");
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -n 80; exec \"$0\" \"$@\"", program().get_program().to_str().unwrap()]);
    command.args(["serve", site.path().to_str().unwrap(), "--listen", "127.0.0.1:0"]);
    let server = Server::spawn(command);
    let mut clients: Vec<Client> = (0..10).map(|_| server.connect()).collect();
    for _ in 0..2 {
        for client in &mut clients {
            assert_eq!(client.get("/a.txt").text(), "hello", "ten connections fit: {}", server.said());
        }
    }
    // The server closes idle connections for new ones, and can still open files.
    for n in 0..200 {
        site.file(&format!("{n}.txt"), "new");
        let mut client = server.connect();
        assert_eq!(client.get(&format!("/{n}.txt")).text(), "new");
        clients.push(client);
    }
    assert!(!server.said().contains("cannot accept"), "{}", server.said());
}

#[test]
fn max_connections_above_descriptor_limit_is_reported_and_reduced() {
    let site = Site::new();
    site.file("a.txt", "hello");
    let config = site.file("amped.toml", configuration(site.path(), "[limits]\nmax_connections = 10000"));
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -n 200; exec \"$0\" \"$@\"", program().get_program().to_str().unwrap()]);
    command.args(["serve", "--config", config.to_str().unwrap()]);
    let server = Server::spawn(command);
    let said = server.said();
    assert!(
        said.contains("limits.max_connections is 10000, but the limit on open files (200) allows only about"),
        "{said}"
    );
    assert!(said.contains("ulimit -n"), "{said}");
    let mut clients = Vec::new();
    for n in 0..300 {
        site.file(&format!("{n}.txt"), "new");
        let mut client = server.connect();
        assert_eq!(client.get(&format!("/{n}.txt")).text(), "new");
        clients.push(client);
    }
    assert!(!server.said().contains("cannot accept"), "{}", server.said());
}

/// A server with a hard limit on open files. The soft limit is half of it, and the server raises it.
fn limited(limit: usize, architecture: &str, args: &[&str]) -> Command {
    let mut command = Command::new("sh");
    let script = format!("ulimit -Sn {1}; ulimit -Hn {0}; exec \"$0\" \"$@\"", limit, limit / 2);
    command.args(["-c", &script, program().get_program().to_str().unwrap(), "serve", "--architecture", architecture]);
    command.args(args);
    command
}

#[test]
fn many_clients_are_served_under_low_descriptor_limit() {
    const CLIENTS: usize = 60;
    let site = Site::new();
    for n in 0..CLIENTS {
        site.file(&format!("{n}.txt"), n.to_string());
        site.file(&format!("{n}.bin"), vec![n as u8; 100_000]);
    }
    let_files_settle();
    for architecture in crate::ARCHITECTURES {
        for limit in [64, 128, 256] {
            let server = Server::spawn(limited(
                limit,
                architecture,
                &[site.path().to_str().unwrap(), "--listen", "127.0.0.1:0"],
            ));
            let ask = |n: usize| {
                let mut client = server.connect();
                for round in 0..5 {
                    for (name, length) in [("txt", n.to_string().len()), ("bin", 100_000)] {
                        let target = format!("/{}.{name}", (n + round * 7) % CLIENTS);
                        // An idle connection may have been closed for another; a request on a new connection always
                        // gets a response.
                        let response = client.try_get(&target).unwrap_or_else(|| {
                            client = server.connect();
                            client.get(&target)
                        });
                        assert_eq!(response.status, 200, "{architecture} at {limit}: {}", response.text());
                        assert!(name == "txt" || response.body.len() == length);
                    }
                }
            };
            thread::scope(|scope| (0..CLIENTS).for_each(|n| _ = scope.spawn(move || ask(n))));
            let said = server.said();
            assert!(!said.contains("cannot accept"), "{architecture} at {limit}: {said}");
            let is_small = *architecture == "mt" && limit < 512 || *architecture == "mp" && limit < 256;
            assert_eq!(said.contains("of 64 workers; raise it"), is_small, "{architecture}: {said}");
            if is_small {
                // The configuration requests the same limit again.
                server.signal("HUP");
                server.wait_for("the new configuration is in force");
                assert_eq!(server.get("/1.txt").text(), "1");
            }
        }
        let ended = run_command(limited(16, architecture, &[site.path().to_str().unwrap(), "--listen", "127.0.0.1:0"]));
        assert_eq!(ended.status, 1, "{architecture}: {ended:?}");
        assert!(ended.stderr.contains("the limit on open files is 16, and the server needs"), "{}", ended.stderr);
    }
}

#[test]
fn inherited_descriptors_are_closed_at_start() {
    let site = Site::new();
    let secret = site.file("secret", "");
    let script = format!("exec 7<{}; exec \"$0\" \"$@\"", secret.display());
    let mut command = Command::new("sh");
    command.args(["-c", &script, program().get_program().to_str().unwrap()]);
    command.args(["serve", site.path().to_str().unwrap(), "--listen", "127.0.0.1:0"]);
    let server = Server::spawn(command);
    assert!(!server.descriptors().contains(&secret), "{:?}", server.descriptors());
}

/// Reads a field of the status of a process or thread (proc_pid_status(5)).
fn status_field(path: &str, name: &str) -> String {
    let status = fs::read_to_string(format!("{path}/status")).unwrap();
    status.lines().find_map(|line| line.strip_prefix(name)).unwrap().trim_start_matches(':').trim().to_owned()
}

#[test]
fn no_process_or_thread_can_gain_privileges() {
    need_root("empties the bounding set of capabilities");
    let site = Site::new();
    fs::set_permissions(site.path(), fs::Permissions::from_mode(0o755)).unwrap();
    site.file("a.txt", "hello");
    for architecture in crate::ARCHITECTURES {
        for user in ["", "user = \"nobody\"\n"] {
            let config = site.file("amped.toml", configuration(site.path(), &format!("{user}workers = 3")));
            let mut command = program();
            command.args(["serve", "--architecture", architecture, "--config", config.to_str().unwrap()]);
            let server = Server::spawn(command);
            assert_eq!(server.get("/a.txt").text(), "hello");
            for pid in server.pids() {
                for task in fs::read_dir(format!("/proc/{pid}/task")).unwrap() {
                    let task = task.unwrap().path();
                    let task = task.to_str().unwrap();
                    assert_eq!(status_field(task, "NoNewPrivs"), "1", "{architecture}");
                    assert_eq!(status_field(task, "CapBnd"), "0000000000000000", "{architecture}");
                }
            }
        }
    }
}

#[test]
fn oom_killer_prefers_child_to_parent() {
    let site = Site::new();
    site.file("a.txt", "hello");
    let path = site.path().to_str().unwrap().to_owned();
    let kinds: [&[&str]; 2] = [&["--architecture", "mp", "--workers", "3"], &["--helpers-kind", "processes"]];
    for kind in kinds {
        let server = Server::start(&[kind, &[path.as_str()]].concat());
        assert_eq!(server.get("/a.txt").text(), "hello");
        let score =
            |pid: u32| -> i64 { fs::read_to_string(format!("/proc/{pid}/oom_score")).unwrap().trim().parse().unwrap() };
        let is_parent = |pid: u32| pid == server.pid();
        // The server needs its fork server; the helpers that this starts are expendable.
        let mut all = server.pids();
        all.extend(server.children().into_iter().flat_map(children_of));
        let expendable: Vec<u32> =
            all.into_iter().filter(|&pid| !is_parent(pid) && !is_named(pid, "fork-server")).collect();
        assert!(kind[0] != "--architecture" || expendable.len() == 3, "{expendable:?}");
        for pid in expendable {
            assert!(score(pid) > score(server.pid()), "{kind:?}: {} and {}", score(pid), score(server.pid()));
        }
        if kind[0] == "--architecture" {
            assert_eq!(status_field(&format!("/proc/{}", server.pid()), "VmLck"), "0 kB");
        }
    }
}

/// A memory control group, removed when dropped.
struct MemoryGroup {
    folder: PathBuf,
    limit: &'static str,
    events: &'static str,
}

impl MemoryGroup {
    /// Returns `None` if this machine does not allow the test to create one.
    fn make() -> Option<MemoryGroup> {
        let versions = [
            ("/sys/fs/cgroup", "memory.max", "memory.events"),
            ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.oom_control"),
        ];
        versions.into_iter().find_map(|(root, limit, events)| {
            let folder = Path::new(root).join(format!("amped-test-{}", std::process::id()));
            fs::create_dir(&folder).ok()?;
            let group = MemoryGroup { folder, limit, events };
            fs::OpenOptions::new().write(true).open(group.folder.join(limit)).is_ok().then_some(group)
        })
    }

    /// Returns a command that runs in it.
    fn command(&self, command: &Command) -> Command {
        let mut inside = Command::new("sh");
        inside.args(["-c", "echo $$ > \"$0\" && exec \"$@\""]).arg(self.folder.join("cgroup.procs"));
        inside.arg(command.get_program()).args(command.get_args());
        inside
    }

    /// Limits the group to this many bytes beyond its current use, without swap.
    fn leave(&self, bytes: u64) {
        let usage = ["memory.current", "memory.usage_in_bytes"].map(|name| fs::read_to_string(self.folder.join(name)));
        let usage: u64 = usage.into_iter().find_map(Result::ok).unwrap().trim().parse().unwrap();
        let limit = (usage + bytes).to_string();
        fs::write(self.folder.join(self.limit), &limit).unwrap();
        for (name, value) in [("memory.swap.max", "0"), ("memory.memsw.limit_in_bytes", &limit)] {
            // These files do not exist without swap.
            let _ = fs::OpenOptions::new()
                .write(true)
                .open(self.folder.join(name))
                .and_then(|mut file| file.write_all(value.as_bytes()));
        }
    }

    /// Number of processes that the kernel has killed.
    fn kills(&self) -> u64 {
        let text = fs::read_to_string(self.folder.join(self.events)).unwrap();
        text.lines().find_map(|line| line.strip_prefix("oom_kill ")).unwrap().parse().unwrap()
    }
}

impl Drop for MemoryGroup {
    fn drop(&mut self) {
        let until = Instant::now() + PATIENCE;
        while fs::remove_dir(&self.folder).is_err() && Instant::now() < until {
            thread::sleep(Duration::from_millis(10));
        }
    }
}

/// Uses memory of a group without belonging to a process: a file in memory, so that the OOM killer chooses another
/// process. Frees it when dropped.
struct Hog {
    cat: Child,
    file: tempfile::NamedTempFile,
    taken: u64,
}

impl Hog {
    fn start(group: &MemoryGroup) -> Hog {
        let file = tempfile::NamedTempFile::new_in("/dev/shm").unwrap();
        let mut command = group.command(&Command::new("cat"));
        let cat = command.stdin(Stdio::piped()).stdout(file.reopen().unwrap()).spawn().unwrap();
        Hog { cat, file, taken: 0 }
    }

    /// Uses this many bytes more. Returns `true` when they are in use, `false` if the kernel killed a process for them.
    fn takes(&mut self, bytes: usize, group: &MemoryGroup) -> bool {
        self.taken += bytes as u64;
        if self.cat.stdin.as_mut().unwrap().write_all(&vec![0; bytes]).is_err() {
            return false;
        }
        wait_until("the memory to be allocated", || {
            group.kills() > 0 || self.file.as_file().metadata().unwrap().len() == self.taken
        });
        group.kills() == 0
    }
}

impl Drop for Hog {
    fn drop(&mut self) {
        let _ = self.cat.kill();
        let _ = self.cat.wait();
    }
}

/// Starts this many helpers, by stopping the existing ones while a new one lists a directory. Each receives at most two
/// requests: the one it was started for, and another if it finished the first before it was stopped.
fn start_helpers(server: &Server, count: usize) {
    let mut clients = Vec::new();
    while helpers_of(server).len() < count {
        for pid in helpers_of(server) {
            signal("STOP", pid);
            wait_until("the helper to stop", || parent_of(pid).is_some_and(|(state, _)| state == 'T'));
        }
        let prior = server.report("disk_questions");
        let mut client = server.connect();
        client.send_request("GET", &format!("/{}/", clients.len()), &[]);
        clients.push(client);
        let is_taken = || server.report("helper_queue") == 0;
        wait_until("the disk lookup to reach the helper", || server.report("disk_questions") > prior && is_taken());
    }
    helpers_of(server).into_iter().for_each(|pid| signal("CONT", pid));
    for mut client in clients {
        assert_eq!(client.response("GET").status, 200);
    }
}

#[test]
fn server_survives_memory_exhaustion() {
    // Enough that one is left if the kernel kills several for one allocation.
    const HELPERS: usize = 4;
    for kind in ["architecture = \"mp\"\nworkers = 3", "[helpers]\nkind = \"processes\"\nmin_spare = 4"] {
        let Some(group) = MemoryGroup::make() else {
            return println!("skipped: this machine does not allow a memory control group");
        };
        let is_mp = kind.starts_with("architecture");
        let site = Site::new();
        site.file("a.txt", "hello");
        for folder in 0..2 * HELPERS {
            site.file(&format!("{folder}/b.txt"), "hello");
        }
        let config = site.file("amped.toml", configuration(site.path(), kind));
        let mut command = program();
        command.args(["serve", "--config", config.to_str().unwrap(), "--listing", "--without", "made-pages"]);
        let server = Server::spawn(group.command(&command));
        if is_mp {
            assert_eq!(server.get("/0/").status, 200);
        } else {
            start_helpers(&server, HELPERS);
        }
        let mut hog = Hog::start(&group);
        let before = server.pids();
        let expendable = |pid: &u32| *pid != server.pid() && !is_named(*pid, "fork-server");
        let needed: Vec<u32> = before.iter().filter(|pid| !expendable(pid)).copied().collect();
        // The kernel adds half of the group's memory to the size of a helper, which must exceed that of the server: of a test
        // build 40 MiB are in memory.
        group.leave(96 << 20);
        // In large steps first and in pages at the end: no more than needed for one process to be killed.
        let _ = (0..80).all(|_| hog.takes(1 << 20, &group)) && (0..8000).all(|_| hog.takes(4 << 10, &group));
        wait_until("the OOM killer", || group.kills() > 0);
        drop(hog);
        let answers = |target: &str| {
            let response = server.connect().try_get(target);
            response.is_some_and(|response| response.status == 200)
        };
        wait_until("responses from the server", || answers("/a.txt") && answers("/1/"));
        if is_mp {
            server.wait_for("was killed by signal 9 (Killed)");
            wait_until("a full pool of workers", || server.children().len() == 3);
        }
        let after = server.pids();
        assert!(needed.iter().all(|pid| after.contains(pid)), "{needed:?} {after:?}");
    }
}

fn is_named(pid: u32, name: &str) -> bool {
    fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|comm| comm.trim() == name)
}

#[test]
fn files_created_by_server_are_not_world_readable() {
    let site = Site::new();
    site.file("a.txt", "hello");
    let logs = tempfile::tempdir().unwrap();
    let log = logs.path().join("access.log");
    let config = site.file("amped.toml", configuration(site.path(), &format!("[log]\naccess = {log:?}")));
    let server = Server::start(&["--config", config.to_str().unwrap()]);
    assert_eq!(server.get("/a.txt").text(), "hello");
    assert_eq!(fs::metadata(&log).unwrap().permissions().mode() & 0o777, 0o640);
}
