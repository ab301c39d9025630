//! `ammeter diagnose` against planted bottlenecks: it must name the known limit of each server and set-up.
//!
//! The tests assert which resource is named and no durations. A test that measures cores runs alone; where threads
//! sleep, other tests have little effect.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use serde_json::Value;

use super::{ammeter, said};

/// The program, built with the tests.
fn program() -> PathBuf {
    let program = Path::new(env!("CARGO_BIN_EXE_ammeter")).with_file_name("examples").join("planted");
    assert!(program.exists(), "{} is not there: build it (cargo build -p ammeter --examples)", program.display());
    program
}

/// A server with a known limit. Stopped when dropped.
struct Planted {
    child: Child,
    port: String,
}

impl Planted {
    fn start(switches: &str) -> Planted {
        Planted::by("exec \"$0\" \"$@\"", switches, None)
    }

    /// Starts it by this shell command.
    fn by(shell: &str, switches: &str, file: Option<&Path>) -> Planted {
        let program = program();
        let mut command = Command::new("sh");
        command.args(["-c", shell]).arg(program).args(switches.split(' ')).stdout(Stdio::piped());
        if let Some(file) = file {
            command.env("PLANTED_FILE", file);
        }
        let mut child = command.spawn().unwrap();
        let mut port = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut port).unwrap();
        Planted { child, port: port.trim().to_owned() }
    }
}

impl Drop for Planted {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

/// A control group of version 1, removed when dropped: declare it before the processes in it.
struct Group(PathBuf);

impl Group {
    fn new(controller: &str, settings: &[(&str, &str)]) -> Group {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("ammeter-diagnose-{}-{number}", std::process::id());
        let folder = Path::new("/sys/fs/cgroup").join(controller).join(name);
        let way_out = "run the tests as root on a machine with control groups of version 1 (cpu, blkio)";
        fs::create_dir(&folder).unwrap_or_else(|error| panic!("cannot make {}: {error}; {way_out}", folder.display()));
        let group = Group(folder);
        for (name, value) in settings {
            fs::write(group.0.join(name), value).unwrap_or_else(|error| panic!("{name}: {error}; {way_out}"));
        }
        group
    }

    /// Returns a shell command that moves itself into this group and then executes a program.
    fn joining(&self) -> String {
        format!("echo $$ > {}/cgroup.procs; exec \"$0\" \"$@\"", self.0.display())
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // The last process leaves a group a moment after it was reaped.
        for _ in 0..400 {
            if fs::remove_dir(&self.0).is_ok() {
                return;
            }
            thread::sleep(Duration::from_millis(5));
        }
        eprintln!("{} could not be removed", self.0.display());
    }
}

/// Flags for the shortest useful runs.
const QUICK: [&str; 5] = ["--duration", "700ms", "--pause", "50ms", "--load-flag=--arrivals=constant"];

/// Diagnoses a server at these rates.
fn diagnosed(planted: &Planted, host: &str, rates: &str, more: &[&str]) -> Value {
    let output = ammeter(&words(planted, host, rates, more).iter().map(String::as_str).collect::<Vec<_>>());
    read(&output)
}

fn words(planted: &Planted, host: &str, rates: &str, more: &[&str]) -> Vec<String> {
    let url = format!("http://{host}:{}/", planted.port);
    let pid = planted.child.id().to_string();
    let words = ["diagnose", &url, "--pid", &pid, "--rates", rates, "--json", "--repeat", "1", "--seed", "7"];
    words.iter().chain(&QUICK).chain(more).map(|&word| word.to_owned()).collect()
}

fn read(output: &Output) -> Value {
    let (text, _) = said(output);
    let whole: Value = serde_json::from_str(&text)
        .unwrap_or_else(|error| panic!("{error}: {text}{}", String::from_utf8_lossy(&output.stderr)));
    let found = whole["diagnoses"][0].clone();
    // The archive alone leads to the same result.
    let archive = whole["archive"].as_str().unwrap();
    let (text, _) = said(&ammeter(&["diagnose", archive, "--json"]));
    let again = serde_json::from_str::<Value>(&text).unwrap()["diagnoses"][0].clone();
    for part in ["answer", "kind", "sentence", "confidence", "evidence", "follows"] {
        assert_eq!(again[part], found[part]);
    }
    fs::remove_dir_all(archive).unwrap();
    found
}

/// Returns whether the diagnosis names this resource.
fn is_right(found: &Value, kind: &str, says: &str) -> bool {
    assert!(!found["evidence"].as_array().unwrap().is_empty() && !found["refuted_by"].as_array().unwrap().is_empty());
    found["kind"] == kind && found["sentence"].as_str().unwrap().contains(says)
}

fn shown(found: &Value) -> String {
    let [sentence, confidence, others, evidence, follows, analysis] =
        ["sentence", "confidence", "others", "evidence", "follows", "analysis"].map(|part| &found[part]);
    format!("{sentence} ({confidence}): {evidence}, others {others}, follows {follows}, {analysis}")
}

/// Repeats diagnoses until they are right. The first attempt is right unless other processes disturbed it; a disturbed
/// diagnosis must say so and must not be strong. Processes that take much of the machine in every run are a bottleneck
/// themselves: if they did so in any attempt, no result is expected.
fn undisturbed(diagnose: impl Fn() -> Vec<Value>, are_right: impl Fn(&[Value]) -> bool) {
    const ATTEMPTS: usize = 5;
    const MUCH: f64 = 0.25;
    let is_said = |found: &Value| {
        let evidence = found["evidence"].to_string();
        let says = ["other processes used", "were used nevertheless"].iter().any(|part| evidence.contains(part));
        says && found["confidence"] != "strong"
    };
    let had_much = |found: &Value| {
        let shares: Vec<f64> = found["others"].as_array().unwrap().iter().filter_map(Value::as_f64).collect();
        !shares.is_empty() && shares.iter().all(|share| *share > MUCH)
    };
    let mut disturbed = Vec::new();
    while disturbed.len() < ATTEMPTS {
        let found = diagnose();
        if are_right(&found) {
            return;
        }
        assert!(found.iter().any(is_said), "{}", found.iter().map(shown).collect::<String>());
        disturbed.push(found);
    }
    assert!(disturbed.iter().flatten().any(had_much), "{}", disturbed.iter().flatten().map(shown).collect::<String>());
}

/// Repeats a diagnosis until it names this resource.
fn named(kind: &str, says: &str, diagnose: impl Fn() -> Value) {
    undisturbed(|| vec![diagnose()], |found| is_right(&found[0], kind, says));
}

#[test]
fn alone_busy_single_thread_is_named() {
    let planted = Planted::start("--compute-us 5000");
    named("thread", "the thread worker-0", || diagnosed(&planted, "127.0.0.1", "20..420/100", &[]));
}

#[test]
fn sleep_under_lock_is_named() {
    let planted = Planted::start("--threads 8 --lock-ms 5");
    named("lock", "one thread at a time sleeps in hrtimer_nanosleep while others wait for it", || {
        diagnosed(&planted, "127.0.0.1", "20..420/100", &[])
    });
}

/// The diagnosis starts the server itself, and adds one helper to measure the effect.
#[test]
fn pool_of_two_helpers_is_named() {
    let [address] = super::ports::free_addresses();
    let start = format!("{} --port {} --helpers {{helpers}} --sleep-ms 10", program().display(), address.port());
    let url = format!("http://{address}/");
    let words = ["diagnose", &url, "--start", &start, "--setting", "helpers=2", "--intervene", "--pairs", "2"];
    let rates = ["--rates", "20..420/100", "--json", "--repeat", "1", "--seed", "7"];
    undisturbed(
        || vec![read(&ammeter(&[&words[..], &rates, &QUICK].concat()))],
        |found| {
            let is_moved = |trial: &Value| {
                trial["is_suspect"] == true
                    && trial["capacity"] == 1.5
                    && trial["elasticity"].as_f64().is_some_and(|moved| moved > 0.4)
            };
            found[0]["trials"].as_array().unwrap().iter().any(is_moved)
                && is_right(&found[0], "pool", "the threads helper limit")
        },
    );
    assert!(TcpStream::connect(address).is_err(), "it exits with the diagnosis");
}

/// An experiment in which each server has another limit.
#[test]
fn each_variant_of_experiment_has_its_own_bottleneck() {
    let subject = |name: &str, switches: &str| {
        let words: Vec<String> = switches.split(' ').map(|word| format!("{word:?}")).collect();
        let start = format!("[{:?}, \"--port\", \"@port@\", {}]", program(), words.join(", "));
        format!("[[subject]]\nname = {name:?}\nkind = \"command\"\nstart = {start}\n")
    };
    // Rules that hold on a shared machine, unless other processes use most of it.
    let text = format!(
        "repetitions = 1\nagain = false\n{}{}[load]\nrate = [20, 120, 220, 320, 420]\narrivals = \"constant\"\nduration = \"700ms\"\n\
         timeout = \"2s\"\n[monitor]\ninterval = \"50ms\"\n[validity]\nothers-max = \"60%\"\nidle-max = \"1000%\"\n\
         drift-max = \"1000%\"\nlittle-max = \"1000%\"\ncounts-max = \"1000%\"\n",
        subject("one-lock", "--threads 8 --lock-ms 5"),
        subject("two-helpers", "--helpers 2 --sleep-ms 10")
    );
    undisturbed(
        || diagnosed_experiment(&text),
        |found| {
            is_right(&found[0], "lock", "one thread at a time sleeps in hrtimer_nanosleep while others wait for it")
                && is_right(&found[1], "pool", "the threads helper limit")
        },
    );
}

/// Runs an experiment with two arms and diagnoses each; the report must agree.
fn diagnosed_experiment(text: &str) -> Vec<Value> {
    let home = tempfile::tempdir().unwrap();
    let (file, out) = (home.path().join("mine.toml"), home.path().join("out"));
    fs::write(&file, text).unwrap();
    let dir = out.to_str().unwrap();
    let output = ammeter(&["run", file.to_str().unwrap(), "--out", dir]);
    let runs = String::from_utf8_lossy(&output.stderr).into_owned();
    let (text, _) = said(&ammeter(&["diagnose", dir, "--json"]));
    let result: Value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}\n{runs}"));
    let found = result["diagnoses"].as_array().unwrap().clone();
    assert_eq!(found.len(), 2, "{text}");
    // The page names the knee together with its cause; for an arm that was disturbed it names neither.
    let page = fs::read_to_string(out.join("report.html")).unwrap();
    let (_, verdict) = page.split_once("<div class=\"verdict").unwrap();
    let (verdict, _) = verdict.split_once("</div>").unwrap();
    for found in &found {
        let (arm, sentence) = (found["arm"].as_str().unwrap(), found["sentence"].as_str().unwrap());
        let is_named = [sentence, "no valid run"].iter().any(|part| verdict.contains(&format!("{arm}: {part}")));
        let none_counts = verdict.contains("No run is valid");
        // A report uses no invalid runs as evidence; `diagnose` uses them where few others are left, and says so.
        let evidence = found["evidence"].as_array().unwrap();
        let has_few = evidence.iter().any(|why| why.as_str().unwrap().contains("were used nevertheless"));
        assert!(is_named || none_counts || has_few, "{arm}: {sentence} is not in {verdict}");
    }
    found
}

#[test]
fn full_accept_queue_is_named() {
    let planted = Planted::start("--backlog 8 --nap-ms 20");
    named("accept-queue", "connections are dropped", || diagnosed(&planted, "127.0.0.1", "50..850/200", &[]));
}

#[test]
fn descriptor_limit_is_named() {
    let planted = Planted::by("ulimit -n 64; exec \"$0\" \"$@\"", "--hold 1 --sleep-ms 200", None);
    named("descriptors", "descriptors of the server", || diagnosed(&planted, "127.0.0.1", "40..640/150", &[]));
}

#[test]
fn alone_cpu_quota_is_named() {
    let group = Group::new("cpu", &[("cpu.cfs_period_us", "20000"), ("cpu.cfs_quota_us", "4000")]);
    let planted = Planted::by(&group.joining(), "--compute-us 2000", None);
    let rates = ["--intervene", "--pairs", "2"];
    undisturbed(
        || vec![diagnosed(&planted, "127.0.0.1", "10..210/50", &rates)],
        |found| {
            let trial = &found[0]["trials"][0];
            let is_moved = trial["is_suspect"] == true && trial["elasticity"].as_f64().is_some_and(|moved| moved > 0.4);
            is_moved && is_right(&found[0], "quota", "quota of the control group")
        },
    );
    assert_eq!(fs::read_to_string(group.0.join("cpu.cfs_quota_us")).unwrap().trim(), "4000", "it is restored");
}

#[test]
fn throttled_disk_is_named() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let file = folder.path().join("file");
    let mut written = fs::File::create(&file).unwrap();
    written.write_all(&vec![1; 16 << 20]).unwrap();
    written.sync_all().unwrap();
    let device = written.metadata().unwrap().dev();
    // makedev(3), for small numbers.
    let line = format!("{}:{} {}", device >> 8 & 0xfff, device & 0xff, 4 << 20);
    let group = Group::new("blkio", &[("blkio.throttle.read_bps_device", &line)]);
    let planted = Planted::by(&group.joining(), "--threads 4 --read-bytes 65536", Some(&file));
    named("disk-limit", "the limit of the control group on reads", || {
        diagnosed(&planted, "127.0.0.1", "8..128/30", &[])
    });
}

#[test]
fn slow_backend_behind_nginx_is_named() {
    let backend = Planted::start("--threads 2 --sleep-ms 10 --backlog 1024");
    let [address] = super::ports::free_addresses();
    let servers =
        format!("server {{ listen {address}; location / {{ proxy_pass http://127.0.0.1:{}; }} }}", backend.port);
    let _nginx = super::nginx::Nginx::start(tempfile::tempdir().unwrap(), address, &servers);
    let (url, port) = (format!("http://{address}/"), address.port().to_string());
    let words = ["diagnose", &url, "--port", &port, "--rates", "20..420/100", "--json", "--repeat", "1", "--seed", "7"];
    let says = format!("the backend 127.0.0.1:{} limits the server", backend.port);
    named("backend", &says, || read(&ammeter(&[&words[..], &QUICK].concat())));
}

#[test]
fn userspace_lock_is_named() {
    let planted = Planted::start("--inside-ms 5 --backlog 256");
    // A busy machine increases the latency at the lowest load.
    undisturbed(
        || vec![diagnosed(&planted, "127.0.0.1", "20..420/100", &[])],
        |found| ["lock", "inside"].iter().any(|kind| is_right(&found[0], kind, "the server's own code limits it")),
    );
}

#[test]
fn read_iops_limit_is_not_reported_as_slow_disk() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let file = folder.path().join("file");
    let mut written = fs::File::create(&file).unwrap();
    written.write_all(&vec![1; 16 << 20]).unwrap();
    written.sync_all().unwrap();
    let device = written.metadata().unwrap().dev();
    let line = format!("{}:{} 60", device >> 8 & 0xfff, device & 0xff);
    let group = Group::new("blkio", &[("blkio.throttle.read_iops_device", &line)]);
    let planted = Planted::by(&group.joining(), "--threads 4 --read-bytes 65536", Some(&file));
    named("disk-limit", "the limit of the control group on the number of reads", || {
        diagnosed(&planted, "127.0.0.1", "8..128/30", &[])
    });
}

#[test]
fn failed_diagnosis_leaves_no_directory() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out");
    let [address] = super::ports::free_addresses();
    let own = std::process::id().to_string();
    // No process listens there.
    let url = format!("http://{address}/");
    let words =
        ["diagnose", &url, "--pid", &own, "--rates", "20..60/20", "--repeat", "2", "--out", out.to_str().unwrap()];
    let output = ammeter(&[&words[..], &QUICK].concat());
    assert_eq!(output.status.code(), Some(1), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(!out.exists(), "{}", String::from_utf8_lossy(&output.stderr));
    // A directory that existed before is kept.
    fs::create_dir(&out).unwrap();
    let output = ammeter(&[&words[..], &QUICK].concat());
    assert!(output.status.code() == Some(2) && out.exists());
}

#[test]
fn interrupted_diagnosis_is_marked_and_keeps_complete_runs() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out");
    let planted = Planted::start("--threads 8");
    let mut all = words(&planted, "127.0.0.1", "20..60/20", &["--repeat", "50"]);
    // The number of repetitions may be given only once.
    let at = all.iter().position(|word| word == "--repeat").unwrap();
    all.drain(at..at + 2);
    all.extend(["--out".to_owned(), out.to_str().unwrap().to_owned()]);
    let mut command = Command::new(env!("CARGO_BIN_EXE_ammeter"));
    let child = command.args(&all).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    super::until("some complete runs", || {
        fs::read_dir(out.join("runs"))
            .is_ok_and(|runs| runs.filter(|run| run.as_ref().unwrap().path().join("run.json").exists()).count() >= 3)
    });
    assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let result: Value = serde_json::from_slice(&output.stdout).unwrap();
    let line = result["interrupted"].as_str().unwrap();
    assert!(line.starts_with("interrupted: ") && line.contains(" of 150 runs"), "{line}");
    assert_eq!(result["diagnoses"].as_array().map(Vec::len), Some(1), "{result}");
    let (text, status) = said(&ammeter(&["diagnose", out.to_str().unwrap()]));
    assert!(text.starts_with("interrupted: ") && status == 1, "the archive says the same: {text}");
}

#[test]
fn alone_path_of_50_mbit_is_named() {
    let planted = Planted::start("--threads 32 --body 100000 --backlog 256");
    named("network", "the path is full", || diagnosed(&planted, "10.77.0.1", "10..130/30", &["--bandwidth", "50mbit"]));
}

#[test]
fn alone_slow_load_generator_is_named() {
    let group = Group::new("cpu", &[("cpu.cfs_quota_us", "10000")]);
    let planted = Planted::start("--threads 8 --backlog 1024");
    let words = words(&planted, "127.0.0.1", "400..2000/400", &[]);
    let program = env!("CARGO_BIN_EXE_ammeter");
    named("client", "client-bound", || {
        let output = Command::new("sh").args(["-c", &group.joining(), program]).args(&words).output().unwrap();
        let found = read(&output);
        let status = i32::from(found["answer"] == "client-bound");
        assert_eq!(output.status.code(), Some(status), "{}", String::from_utf8_lossy(&output.stderr));
        found
    });
}
