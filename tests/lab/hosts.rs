//! `ammeter run` over several hosts: real OpenSSH servers with their own keys, in network namespaces joined by a
//! bridge. The namespaces have no names outside the test, and end with it, however it ends.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use serde_json::Value;

use super::run::{PATIENT, check, json, left_of, runs, told};
use super::until;

/// The hosts. The first is the control machine.
struct Net {
    home: tempfile::TempDir,
    /// A process that holds each namespace open, and its servers.
    holders: Vec<Child>,
    servers: Vec<Child>,
}

const NAMES: [&str; 3] = ["server", "c1", "c2"];

/// Wraps a command that ends with the test, also if the test is killed.
fn held(words: &[&str]) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "--"]).args(words).stdin(Stdio::null());
    command
}

fn done(command: &mut Command) {
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{command:?}: {said}");
}

fn namespace(pid: u32) -> PathBuf {
    fs::read_link(format!("/proc/{pid}/ns/net")).unwrap_or_default()
}

impl Net {
    /// Creates the hosts; those named in `with_program` have this program in their PATH.
    fn new(with_program: &[&str]) -> Net {
        assert!(
            Path::new("/usr/sbin/sshd").exists(),
            "OpenSSH's server is missing: cargo xtask setup, or apt-get install openssh-server"
        );
        let home = tempfile::tempdir().unwrap();
        // sshd(8) requires this directory, even if it does not use it.
        fs::create_dir_all("/run/sshd").unwrap();
        let at = |name: &str| home.path().join(name).display().to_string();
        for key in ["key", "host_key"] {
            done(Command::new("ssh-keygen").args(["-q", "-t", "ed25519", "-N", "", "-f", &at(key)]));
        }
        fs::copy(at("key.pub"), at("authorized_keys")).unwrap();
        let host_key = fs::read_to_string(at("host_key.pub")).unwrap();
        let mut net = Net { home, holders: Vec::new(), servers: Vec::new() };
        let own = namespace(std::process::id());
        for _ in 0..=NAMES.len() {
            let holder = held(&["unshare", "--net", "sleep", "infinity"]).spawn().unwrap();
            net.holders.push(holder);
        }
        for holder in &net.holders {
            until("the network namespace", || ![PathBuf::new(), own.clone()].contains(&namespace(holder.id())));
        }
        done(net.within(0, &["ip", "link", "set", "lo", "up"]).stdin(Stdio::null()));
        done(&mut net.within(0, &["ip", "link", "add", "br0", "type", "bridge"]));
        done(&mut net.within(0, &["ip", "addr", "add", "10.98.0.1/24", "dev", "br0"]));
        done(&mut net.within(0, &["ip", "link", "set", "br0", "up"]));
        let at = |name: &str| net.home.path().join(name).display().to_string();
        let mut config = format!(
            "Host nobody\n  HostName 10.98.0.1\nHost *\n  User root\n  IdentityFile {}\n  IdentitiesOnly yes\n  UserKnownHostsFile {}\n  \
             StrictHostKeyChecking yes\n",
            at("key"),
            at("known_hosts")
        );
        let mut known = String::new();
        let path = Path::new(env!("CARGO_BIN_EXE_ammeter")).parent().unwrap().display().to_string();
        // bash(1) reads ~/.bashrc if sshd(8) starts it. That of this machine may take long, and may not survive being killed.
        let home_without_startup_files = net.home.path().join("home");
        fs::create_dir(&home_without_startup_files).unwrap();
        let mut servers = Vec::new();
        for (number, name) in NAMES.iter().enumerate() {
            let (at_host, pid, address) = (number + 1, net.holders[number + 1].id(), format!("10.98.0.{}", number + 2));
            let (device, pid) = (format!("v{number}"), pid.to_string());
            let make = ["ip", "link", "add", &device, "type", "veth", "peer", "name", "eth0", "netns", &pid];
            done(&mut net.within(0, &make));
            done(&mut net.within(0, &["ip", "link", "set", &device, "master", "br0", "up"]));
            done(&mut net.within(at_host, &["ip", "addr", "add", &format!("{address}/24"), "dev", "eth0"]));
            for device in ["lo", "eth0"] {
                done(&mut net.within(at_host, &["ip", "link", "set", device, "up"]));
            }
            config += &format!("Host {name}\n  HostName {address}\n");
            known += &format!("{address} {host_key}");
            let with = if with_program.contains(name) { format!("{path}:") } else { String::new() };
            let file = at(&format!("{name}.conf"));
            fs::write(
                &file,
                format!(
                    "ListenAddress {address}\nHostKey {}\nAuthorizedKeysFile {}\nPidFile none\nUsePAM no\nStrictModes no\n\
                     PermitRootLogin yes\nPasswordAuthentication no\nKbdInteractiveAuthentication no\n\
                     SetEnv PATH={with}/usr/sbin:/usr/bin:/sbin:/bin HOME={}\n",
                    at("host_key"),
                    at("authorized_keys"),
                    home_without_startup_files.display()
                ),
            )
            .unwrap();
            let log = fs::File::create(at(&format!("{name}.log"))).unwrap();
            symlink(format!("/proc/{pid}/ns/net"), net.space(name)).unwrap();
            let space = format!("--net={}", net.space(name));
            let words = ["nsenter", &space, "/usr/sbin/sshd", "-D", "-e", "-f", &file];
            servers.push(held(&words).stderr(log).spawn().unwrap());
        }
        fs::write(at("known_hosts"), known).unwrap();
        fs::write(at("ssh_config"), config).unwrap();
        for name in NAMES {
            let log = at(&format!("{name}.log"));
            until(&format!("sshd on {name} to listen; its log: {log}"), || {
                fs::read_to_string(&log).unwrap().contains("Server listening")
            });
        }
        net.servers = servers;
        net
    }

    /// Returns a command that runs in a namespace; 0 is the control machine.
    fn within(&self, at: usize, words: &[&str]) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net=/proc/{}/ns/net", self.holders[at].id())).args(words);
        command
    }

    /// Returns the experiment's table that names these hosts.
    fn table(&self, clients: &[&str]) -> String {
        let config = self.home.path().join("ssh_config").display().to_string();
        format!("[hosts]\nserver = \"server\"\nclients = {clients:?}\nvia = \"ssh -F {config} {{host}}\"\n")
    }

    /// The same, without ssh: nsenter(1) runs a command in the namespace of a host.
    fn table_without_ssh(&self) -> String {
        let via = format!("nsenter --net={} --", self.space("{host}"));
        format!("[hosts]\nserver = \"server\"\nclients = [\"c1\", \"c2\"]\naddress = \"10.98.0.2\"\nvia = \"{via}\"\n")
    }

    /// The file of the namespace of a host.
    fn space(&self, name: &str) -> String {
        self.home.path().join(format!("net-{name}")).display().to_string()
    }

    /// Returns the command that runs this experiment on the control machine.
    fn run(&self, text: &str) -> Command {
        let (file, out) = (self.home.path().join("mine.toml"), self.home.path().join("out"));
        fs::write(&file, text).unwrap();
        let own = env!("CARGO_BIN_EXE_ammeter");
        self.within(
            0,
            &[own, "run", file.to_str().unwrap(), "--out", out.to_str().unwrap(), "--json", "--quiet-timeout", "0s"],
        )
    }

    /// Processes on a host, except its sshd and the process that holds its namespace: process id and command line.
    fn processes(&self, at: usize) -> Vec<(u32, String)> {
        let space = namespace(self.holders[at].id());
        let mine: BTreeSet<u32> = self.holders.iter().chain(&self.servers).map(Child::id).collect();
        let pids = fs::read_dir("/proc").unwrap().flatten();
        let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
        pids.filter(|pid| !mine.contains(pid) && namespace(*pid) == space)
            .map(|pid| {
                let words = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
                (pid, String::from_utf8_lossy(&words).replace('\0', " "))
            })
            .collect()
    }

    /// The agent on a host, and the directory of its program.
    fn agent(&self, at: usize) -> Option<(u32, PathBuf)> {
        // An agent that was copied to the host has a parent shell with the same arguments.
        let agents = self.processes(at).into_iter().filter(|(_, words)| words.ends_with("ammeter agent session "));
        let programs = agents.filter_map(|(pid, _)| Some((pid, fs::read_link(format!("/proc/{pid}/exe")).ok()?)));
        let mut found = programs.filter(|(_, program)| program.file_name().is_some_and(|name| name == "ammeter"));
        found.next().map(|(pid, program)| (pid, program.parent().unwrap().to_owned()))
    }

    /// Kills the agent of the second client once this command has started the load there.
    fn kill_second_client(&self, command: &mut Child) {
        until("load on the second client", || {
            assert!(command.try_wait().unwrap().is_none(), "it has exited");
            self.generator(3)
        });
        let (pid, _) = self.agent(3).unwrap();
        done(Command::new("kill").args(["-KILL", &pid.to_string()]));
    }

    /// Returns whether a load generator runs on a host.
    fn generator(&self, at: usize) -> bool {
        self.processes(at).iter().any(|(_, words)| words.contains(" load ") && words.contains("--await-start"))
    }
}

impl Drop for Net {
    fn drop(&mut self) {
        // First the processes left over by a failed run, then the servers. A namespace ends with its last process.
        for at in 1..self.holders.len() {
            for (pid, _) in self.processes(at) {
                let _ = Command::new("kill").args(["-KILL", &pid.to_string()]).stderr(Stdio::null()).status();
            }
        }
        for child in self.servers.iter_mut().chain(&mut self.holders) {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Asserts that no process and no file of these agents is left on a host.
fn assert_nothing_is_left(net: &Net, agents: &[(u32, PathBuf)]) {
    for (at, name) in NAMES.iter().enumerate() {
        until(&format!("all processes on {name} to exit"), || net.processes(at + 1).is_empty());
    }
    for (pid, folder) in agents {
        // A copied program is removed, an installed one is not.
        let is_copy = folder.to_string_lossy().ends_with("-copy");
        let gone = || left_of(*pid, Path::new("/no/folder")).is_empty() && is_copy != folder.exists();
        until(&format!("process {pid} and its directory {} to be removed", folder.display()), gone);
    }
}

fn stands(output: &Output) -> (Value, String) {
    let (result, err) = told(output);
    assert_eq!(output.status.code(), Some(0), "{result}\n{err}");
    (result, err)
}

#[test]
fn one_server_and_two_clients_form_one_experiment() {
    let net = Net::new(&["server", "c1"]);
    let text = format!(
        "title = \"Two clients\"\nrepetitions = 1\n[[subject]]\nkind = \"nginx\"\n[workload]\nfile = \"2KiB\"\n[load]\nrate = 201\narrivals = \"constant\"\n\
         duration = \"1s\"\nwarm-up = \"100ms\"\nconnect-timeout = \"20s\"\ntimeout = \"30s\"\n{}{PATIENT}",
        net.table(&["c1", "c2"])
    );
    let (_, err) = stands(&net.run(&text).output().unwrap());
    assert!(err.contains("on server: the server, at the address") && err.contains("on c2: load, slice 2/2"), "{err}");
    let out = net.home.path().join("out");
    let runs = runs(net.home.path());
    let run = &runs["1-a0-201"];
    assert_ne!(run["status"], "invalid", "{run}\n{err}");
    // Client, server and network agree on the counts; no request was lost or repeated: 201 connections in all.
    for name in ["counts", "bytes", "clocks", "server"] {
        assert_eq!(check(run, name), true, "{name}: {run}");
    }
    let summary = &run["summary"];
    let counted = [&summary["ok"], &summary["server"]["replies"], &summary["network"]["passive_opens"]];
    assert_eq!(counted, [&Value::from(201); 3], "{summary}");
    let folder = out.join("runs/1-a0-201");
    let (load, hosts) = (json(&folder.join("load.json")), json(&folder.join("hosts.json")));
    assert_eq!((&load["planned"], &load["latency"]["count"]), (&Value::from(201), &Value::from(201)), "{load}");
    let parts = [1, 2].map(|at| json(&folder.join(format!("load-{at}.json"))));
    assert_eq!(parts.each_ref().map(|part| part["outcome"]["planned"].as_u64().unwrap()), [101, 100]);
    assert_eq!(parts[0]["outcome"]["load"]["open"]["seed"], parts[1]["outcome"]["load"]["open"]["seed"]);
    let roles: Vec<&Value> = hosts.as_array().unwrap().iter().map(|host| &host["role"]).collect();
    assert_eq!(roles, ["server", "load 1/2", "load 2/2"]);
    for host in hosts.as_array().unwrap() {
        // The namespaces share one machine and thus one clock: the true offset is 0.
        let clock = |name: &str| host["clock"][name].as_f64().unwrap();
        assert!(clock("offset_s").abs() <= clock("bound_s") + 1e-6 && clock("bound_s") > 0.0, "{host}");
    }
    for file in ["load.hlog", "monitor.zst", "server.conf", "server.log"] {
        assert!(folder.join(file).exists(), "no {file}");
    }
    let (resolved, host) = (json(&out.join("resolved.json")), json(&out.join("host.json")));
    assert_eq!(resolved["programs"]["nginx"]["sha256"].as_str().map(str::len), Some(64), "{resolved}");
    let hash = |host: &str| &resolved["programs"][host]["sha256"];
    assert_eq!(hash("ammeter on c2"), hash("ammeter"), "the copy is the same program");
    assert!(host["clients"]["c1"]["machine"]["cores"].as_u64() > Some(0), "{host}");
    assert_eq!(json(&out.join("blocks/1.json"))["hosts"].as_object().unwrap().len(), 3);
    assert_eq!(json(&out.join("clients.json"))["steps"].as_array().map(Vec::len), Some(2));
    let page = fs::read_to_string(out.join("report.html")).unwrap();
    assert!(page.contains("<summary><h3>Hosts</h3></summary>"), "{page}");
    let missing = page.find("Missing: ").map(|at| page[at..].chars().take(300).collect::<String>());
    assert_eq!(missing, None, "the page of a whole experiment");
    let (_, err) = stands(&net.run(&text).output().unwrap());
    assert!(err.contains("1 of 1 runs already exist"), "{err}");
    assert_nothing_is_left(&net, &[]);
}

#[test]
fn hosts_are_reached_by_any_program_that_runs_a_command_there() {
    let net = Net::new(&[]);
    let text = format!(
        "repetitions = 1\n[[subject]]\nkind = \"nginx\"\n[workload]\nwebstone = \"1/4\"\n[load]\nclients = 4\nduration = \"1s\"\n\
         timeout = \"30s\"\n{}{PATIENT}",
        net.table_without_ssh()
    );
    let (_, err) = stands(&net.run(&text).output().unwrap());
    let run = &runs(net.home.path())["1-a0-4"];
    assert!(run["status"] != "invalid" && run["summary"]["ok"].as_u64() > Some(0), "{run}\n{err}");
    let hosts = json(&net.home.path().join("out/runs/1-a0-4/hosts.json"));
    assert_eq!(hosts.as_array().map(Vec::len), Some(3), "{hosts}");
    assert_nothing_is_left(&net, &[]);
}

#[test]
fn path_of_an_experiment_leads_to_clients_on_other_hosts() {
    let net = Net::new(&["server", "c1", "c2"]);
    let text = format!(
        "repetitions = 1\n[[subject]]\nkind = \"nginx\"\n[workload]\nfile = \"1KiB\"\n[load]\nclients = 4\nduration = \"2s\"\n\
         timeout = \"30s\"\n[path]\nlatency = \"30ms\"\nlate-max = \"100ms\"\n{}{PATIENT}",
        net.table(&["c1", "c2"])
    );
    let (_, err) = stands(&net.run(&text).output().unwrap());
    let run = &runs(net.home.path())["1-a0-4"];
    assert_ne!(run["status"], "invalid", "{run}\n{err}");
    assert_eq!(check(run, "path"), true, "{run}");
    let folder = net.home.path().join("out/runs/1-a0-4");
    for part in ["load-1.json", "load-2.json"] {
        // Without the latency of either direction, at most half of a round trip is left.
        let outcome = &json(&folder.join(part))["outcome"];
        assert!(outcome["latency"]["count"].as_u64() > Some(0), "{outcome}");
        assert!(outcome["latency"]["p50_ms"].as_f64() > Some(59.0), "{outcome}");
    }
    let hosts = json(&folder.join("hosts.json"));
    assert_eq!(hosts.as_array().map(Vec::len), Some(3), "{hosts}");
    assert_nothing_is_left(&net, &[]);
}

#[test]
fn load_is_checked_before_hosts_are_reached() {
    for (more, says) in [(&["-c", "0"][..], "--clients must be at least 1"), (&[], "no load given")] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ammeter"));
        command.args(["load", "http://127.0.0.1:1/", "--hosts", "a", "--via", "false {host}"]).args(more);
        let output = command.output().unwrap();
        let err = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(2) && err.contains(says), "{more:?}: {err}");
    }
}

#[test]
fn one_load_comes_from_several_hosts() {
    let net = Net::new(&["c1"]);
    let config = net.home.path().join("nginx.conf");
    let log = net.home.path().join("access.log");
    let text = format!(
        "daemon off;\npid {0}/nginx.pid;\nerror_log {0}/error.log;\nevents {{}}\nhttp {{\n  access_log {0}/access.log;\n  \
         server {{ listen 10.98.0.2:80; return 200 \"ok\"; }}\n}}\n",
        net.home.path().display()
    );
    fs::write(&config, text).unwrap();
    let space = format!("--net={}", net.space("server"));
    let words = ["nsenter", &space, "nginx", "-c", config.to_str().unwrap()];
    let mut server = held(&words).spawn().unwrap();
    until("nginx", || {
        log.exists() && net.within(0, &["curl", "-s", "http://10.98.0.2/"]).output().unwrap().stdout == b"ok"
    });
    fs::write(&log, "").unwrap();
    let mix = net.home.path().join("mix.txt");
    fs::write(&mix, "1 /one\n1 /two\n").unwrap();
    let via = format!("ssh -F {} {{host}}", net.home.path().join("ssh_config").display());
    let own = env!("CARGO_BIN_EXE_ammeter");
    let load = |hosts: &str, more: &[&str]| {
        let words = [own, "load", "http://10.98.0.2/", "--hosts", hosts, "--via", &via, "--mix", mix.to_str().unwrap()];
        let mut command = net.within(0, &words);
        command.args(["--connect-timeout", "20s", "--timeout", "30s", "--others-max", "100%"]).args(more);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    };
    let hlog = net.home.path().join("load.hlog");
    let more = ["--rate", "301", "-d", "1s", "--arrivals", "constant", "--json", "--hlog", hlog.to_str().unwrap()];
    let output = load("c1,c2", &more).output().unwrap();
    // The status is 1 if the machine is too busy for the schedule.
    let (found, err) = told(&output);
    // As one load: 301 connections in all, half of them from each host, and all with the targets of the copied file.
    assert_eq!((&found["planned"], &found["ok"]), (&Value::from(301), &Value::from(301)), "{found}\n{err}");
    let hosts = found["hosts"].as_array().unwrap();
    assert_eq!(hosts.iter().map(|host| host["host"].as_str().unwrap()).collect::<Vec<_>>(), ["c1", "c2"], "{found}");
    assert!(hosts.iter().all(|host| host["clock"]["bound_s"].as_f64() > Some(0.0)), "{found}");
    let served = fs::read_to_string(&log).unwrap();
    for (address, count) in [("10.98.0.3 ", 151), ("10.98.0.4 ", 150)] {
        assert_eq!(served.lines().filter(|line| line.starts_with(address)).count(), count, "{address}");
    }
    assert_eq!(served.matches("GET /one ").count() + served.matches("GET /two ").count(), 301, "{served}");
    assert!(hlog.exists());
    // Without --json there is a line for each host, and one client needs only one host.
    let output = load("c1,c2", &["-c", "1", "-d", "500ms"]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(text.contains("\nhosts\n  c1: ") && !text.contains("c2: "), "{text}");
    // A host that dies is an error, not a smaller load.
    let mut child = load("c1,c2", &["-c", "2", "-d", "60s"]).spawn().unwrap();
    net.kill_second_client(&mut child);
    let output = child.wait_with_output().unwrap();
    let err = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.code() == Some(1) && err.contains("lost the connection to c2"), "{err}");
    assert!(output.stdout.is_empty());
    // Its workers end with it only if it may tell them.
    done(Command::new("kill").arg(server.id().to_string()));
    server.wait().unwrap();
    assert_nothing_is_left(&net, &[]);
}

#[test]
fn killed_or_stopped_run_leaves_nothing_on_any_host() {
    let net = Net::new(&["server", "c1"]);
    let text = "repetitions = 50\n[[subject]]\nkind = \"nginx\"\n[workload]\nwebstone = \"1/4\"\n[load]\nclients = 4\nduration = \"2s\"\n\
                timeout = \"30s\"\n";
    let ssh = net.table(&["c1", "c2"]);
    for (signal, table) in [("-KILL", &ssh), ("-INT", &ssh), ("-KILL", &net.table_without_ssh())] {
        let text = format!("{text}{table}{PATIENT}");
        // Hosts that are reached otherwise are another experiment.
        let _ = fs::remove_dir_all(net.home.path().join("out"));
        let path = net.home.path().join("said");
        let errors = fs::File::create(&path).unwrap();
        let said = || fs::read_to_string(&path).unwrap();
        let mut child = net.run(&text).stdout(Stdio::null()).stderr(errors).spawn().unwrap();
        until("load on both clients", || {
            assert!(child.try_wait().unwrap().is_none(), "it has exited: {}", said());
            net.generator(2) && net.generator(3)
        });
        let agents: Vec<(u32, PathBuf)> = (1..=3).map(|at| net.agent(at).expect("a running agent")).collect();
        assert!(agents[2].1.starts_with("/var/tmp"), "a copy: {agents:?}");
        assert!(net.processes(1).iter().any(|(_, words)| words.contains("nginx")), "{:?}", net.processes(1));
        done(Command::new("kill").args([signal, &child.id().to_string()]));
        let status = child.wait().unwrap();
        assert!(
            signal == "-KILL" || status.code() == Some(1) && said().contains("interrupted"),
            "{status}: {}",
            said()
        );
        assert_nothing_is_left(&net, &agents);
    }
}

#[test]
fn dead_host_invalidates_run_and_is_reconnected() {
    let net = Net::new(&NAMES);
    let text = format!(
        "repetitions = 2\n[[subject]]\nkind = \"nginx\"\n[load]\nclients = 2\nduration = \"3s\"\nwarm-up = \"0s\"\ntimeout = \"30s\"\n{}{PATIENT}",
        net.table(&["c1", "c2"])
    );
    let mut child = net.run(&text).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    net.kill_second_client(&mut child);
    let output = child.wait_with_output().unwrap();
    let (_, err) = stands(&output);
    let runs = runs(net.home.path());
    let (first, second) = (&runs["1-a0-2"], &runs["2-a0-2"]);
    let why = first["why"].to_string();
    assert!(first["status"] == "invalid" && why.contains("hosts: lost the connection to c2"), "{first}\n{err}");
    assert!(second["status"] != "invalid" && second["summary"]["ok"].as_u64() > Some(0), "{second}\n{err}");
    assert_nothing_is_left(&net, &[]);
}

#[test]
fn unreachable_host_is_reported_before_setup() {
    let net = Net::new(&NAMES);
    let text = format!("[[subject]]\nkind = \"nginx\"\n[load]\nrate = 10\n{}", net.table(&["c1", "nobody"]));
    let output = net.run(&text).output().unwrap();
    let err = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.code() == Some(1) && err.contains("cannot reach nobody"), "{err}");
    assert!(err.contains("Connection refused") && err.contains("nobody true"), "{err}");
    assert!(!net.home.path().join("out").exists());
    // A host without the server's program reports it too.
    let text = text.replace("nobody", "c2").replace("kind = \"nginx\"", "kind = \"nginx\"\nprogram = \"/no/such\"");
    let output = net.run(&text).output().unwrap();
    let err = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(err.contains("server: nginx: program not found: /no/such"), "{err}");
    assert_nothing_is_left(&net, &[]);
}
