//! `ammeter run` and `ammeter list`: whole small experiments on real servers, and the clean-up after SIGKILL.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::Value;

use super::{ammeter, said, until};

/// Rules that hold on a shared machine: the tests assert no measured figure.
pub const PATIENT: &str =
    "[validity]\nothers-max = \"1000%\"\nidle-max = \"1000%\"\ndrift-max = \"1000%\"\nlittle-max = \"1000%\"\n";

/// Runs an experiment of this text into a directory.
fn run(folder: &Path, text: &str, more: &[&str]) -> Output {
    let (file, out) = (folder.join("mine.toml"), folder.join("out"));
    fs::write(&file, text).unwrap();
    let words = ["run", file.to_str().unwrap(), "--out", out.to_str().unwrap(), "--json"];
    ammeter(&[&words[..], more].concat())
}

pub fn json(path: &Path) -> Value {
    serde_json::from_slice(&fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))).unwrap()
}

/// All runs of an archive, by id.
pub fn runs(folder: &Path) -> BTreeMap<String, Value> {
    let entries = fs::read_dir(folder.join("out/runs")).unwrap();
    let named =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).filter(|name| !name.starts_with('.'));
    named.map(|id| (id.clone(), json(&folder.join("out/runs").join(id).join("run.json")))).collect()
}

/// The result of a check of a run.
pub fn check<'a>(run: &'a Value, name: &str) -> &'a Value {
    let checks = run["checks"].as_array().unwrap();
    &checks.iter().find(|check| check["name"] == name).unwrap_or_else(|| panic!("no check {name}: {run}"))["holds"]
}

pub fn told(output: &Output) -> (Value, String) {
    let err = String::from_utf8_lossy(&output.stderr).into_owned();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    (serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}\n{text}\n{err}")), err)
}

/// Path of the null server.
fn null_server() -> String {
    format!(
        "[[subject]]\nname = \"null\"\nkind = \"command\"\nstart = [{:?}, \"null-server\", \"@address@:@port@\"]\n",
        env!("CARGO_BIN_EXE_ammeter")
    )
}

#[test]
fn ten_lines_for_nginx_run_as_experiment() {
    let home = tempfile::tempdir().unwrap();
    let text = format!(
        "title = \"Capacity of nginx\"\nrepetitions = 1\n[[subject]]\nkind = \"nginx\"\n[workload]\nfile = \"1KiB\"\n[load]\nrate = [100, 200]\n\
         duration = \"600ms\"\nconnect-timeout = \"20s\"\ntimeout = \"30s\"\n[[factor]]\nset = \"server.log\"\nlevels = [false, true]\n{PATIENT}"
    );
    let output = run(home.path(), &text, &[]);
    let (result, err) = told(&output);
    assert_eq!(output.status.code(), Some(0), "{result}\n{err}");
    assert!(err.contains("6 runs, about") && err.contains("block 1:"), "{err}");
    let out = home.path().join("out");
    assert_eq!(fs::read_to_string(out.join("experiment.toml")).unwrap(), text);
    let (resolved, host) = (json(&out.join("resolved.json")), json(&out.join("host.json")));
    assert_eq!(resolved["programs"]["nginx"]["sha256"].as_str().map(str::len), Some(64), "{resolved}");
    assert!(host["machine"]["cores"].as_u64() > Some(0) && host["kernel"]["net.core.somaxconn"].is_string(), "{host}");
    assert_eq!(json(&out.join("clients.json"))["steps"].as_array().map(Vec::len), Some(3));
    assert!(json(&out.join("blocks/1.json"))["busy"].is_number());
    let runs = runs(home.path());
    let ids: Vec<&str> = runs.keys().map(String::as_str).collect();
    assert_eq!(ids, ["1-a0-100", "1-a0-200", "1-a1-100", "1-a1-200", "1-aa-100", "1-aa-200"]);
    for (id, run) in &runs {
        let folder = out.join("runs").join(id);
        for file in ["load.json", "load.hlog", "monitor.zst", "server.conf", "server.log"] {
            assert!(folder.join(file).exists(), "{id}: no {file}");
        }
        let config = fs::read_to_string(folder.join("server.conf")).unwrap();
        assert_eq!(config.contains("access.log"), id.contains("a1"), "{id}");
        let summary = &run["summary"];
        // Client, server and network agree on the counts.
        assert_eq!(
            (check(run, "counts"), check(run, "bytes")),
            (&Value::Bool(true), &Value::Bool(true)),
            "{id}: {run}"
        );
        assert_eq!(
            (&summary["failed"], &summary["ok"]),
            (&Value::from(0), &summary["server"]["replies"]),
            "{id}: {run}"
        );
        assert!(
            summary["server"]["cpu_s"].as_f64() > Some(0.0) && summary["network"]["is_private"] == true,
            "{id}: {run}"
        );
        let (target, begun) = (summary["target_rate"].as_f64().unwrap(), summary["ok"].as_f64().unwrap());
        assert!((0.5..1.5).contains(&(begun / target)), "{id}: {summary}");
    }
    assert_eq!(result["points"].as_array().map(Vec::len), Some(6), "{result}");
    // The page draws every chart: clients, server and network of each run.
    let page = fs::read_to_string(out.join("report.html")).unwrap();
    assert!(page.contains("<h2>Results by load</h2>") && !page.contains("Missing: "), "the page of a whole experiment");
    let (_, data) = page.split_once("id=\"data\">").unwrap();
    let data: Value = serde_json::from_str(data.split_once("</script>").unwrap().0).unwrap();
    for run in data["runs"].as_array().unwrap() {
        let charts = run["charts"].as_array().unwrap();
        let labels: Vec<&Value> = charts.iter().flat_map(|chart| chart["series"].as_array().unwrap()).collect();
        for label in ["answered", "p99", "kernel", "waiting to be accepted", "out"] {
            assert!(labels.iter().any(|series| series["label"] == label), "no {label} in {charts:?}");
        }
    }
    let output = ammeter(&["compare", out.to_str().unwrap(), "--subjects", "log off,log on"]);
    let shown = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.code() == Some(3) && shown.contains("A  log off"), "one block decides nothing: {shown}");
    assert!(shown.starts_with("No verdict: ") || shown.starts_with("Undecided"), "{shown}");
    let output =
        ammeter(&["compare", out.to_str().unwrap(), "--arm", "log off", "--arm", "log on", "--fail-if", "p99>+5%"]);
    let shown = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.code() == Some(3) && shown.contains("undecided  p99>+5%"), "{shown}");
    // Claims made later can be judged too, by a file that measures the same.
    let claimed = format!(
        "{text}[[claim]]\nsays = \"Both answer\"\nmetric = \"rate\"\nof = {{ log = true }}\nagainst = {{}}\nabove = 0.01\n"
    );
    let held = |text: &str| {
        let file = home.path().join("claims.toml");
        fs::write(&file, text).unwrap();
        ammeter(&["report", out.to_str().unwrap(), "--claims", file.to_str().unwrap(), "--json"])
    };
    let (judged, _) = told(&held(&claimed));
    assert_eq!(
        (&judged["claims"][0]["says"], &judged["claims"][0]["blocks"]),
        (&Value::from("Both answer"), &Value::from(1))
    );
    let status = &judged["claims"][0]["status"];
    assert_eq!(status, "undecided", "of a single block: {judged}");
    let other = held(&claimed.replace("rate = [100, 200]", "rate = [100, 300]"));
    let why = String::from_utf8_lossy(&other.stderr).into_owned();
    assert!(other.status.code() == Some(2) && why.contains("other settings"), "{why}");
    // A repeated run finds its results, and another experiment is not mixed with them.
    let again = run(home.path(), &text, &[]);
    assert!(String::from_utf8_lossy(&again.stderr).contains("6 of 6 runs already exist"));
    let other = run(home.path(), &text.replace("duration = \"600ms\"", "duration = \"2s\""), &[]);
    let why = String::from_utf8_lossy(&other.stderr).into_owned();
    assert!(other.status.code() == Some(2) && why.contains("--out"), "{why}");
}

/// Everything left of a program with this process id: control groups, directories, and processes whose arguments contain
/// this directory.
pub fn left_of(pid: u32, folder: &Path) -> Vec<String> {
    let mut left = Vec::new();
    let places = [
        "/sys/fs/cgroup",
        "/sys/fs/cgroup/cpuacct",
        "/sys/fs/cgroup/cpu",
        "/sys/fs/cgroup/memory",
        "/sys/fs/cgroup/blkio",
        "/var/tmp",
        "/dev/shm",
    ];
    for entry in places.iter().filter_map(|place| fs::read_dir(place).ok()).flatten().flatten() {
        if entry.file_name().to_string_lossy().starts_with(&format!("ammeter-run-{pid}-")) {
            left.push(entry.path().display().to_string());
        }
    }
    let scratch = format!("ammeter-run-{pid}-");
    for entry in fs::read_dir("/proc").unwrap().flatten() {
        let words = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let words = String::from_utf8_lossy(&words).replace('\0', " ");
        if words.contains(folder.to_str().unwrap()) || words.contains(&scratch) {
            left.push(words);
        }
    }
    left
}

#[test]
fn killed_experiment_leaves_nothing_and_resumes() {
    let home = tempfile::tempdir().unwrap();
    // nginx workers outlive their master; a path runs a program of its own, and namespaces with the server in one of
    // them.
    let text = format!(
        "repetitions = 2\nagain = false\n[[subject]]\nkind = \"nginx\"\n[load]\nrate = [100, 200]\nduration = \"300ms\"\nwarm-up = \"100ms\"\n\
         connect-timeout = \"20s\"\ntimeout = \"30s\"\n[[factor]]\nname = \"where\"\n\
         levels = [{{ label = \"near\", set = {{}} }}, {{ label = \"far\", set = {{ \"path.latency\" = \"1ms\" }} }}]\n{PATIENT}"
    );
    let (file, out) = (home.path().join("mine.toml"), home.path().join("out"));
    fs::write(&file, &text).unwrap();
    let start = || -> Child {
        Command::new(env!("CARGO_BIN_EXE_ammeter"))
            .args(["run", file.to_str().unwrap(), "--out", out.to_str().unwrap(), "--quiet-timeout", "0s"])
            .stdout(Stdio::null())
            .stderr(fs::File::create(home.path().join("said")).unwrap())
            .spawn()
            .unwrap()
    };
    let finished = || -> BTreeMap<PathBuf, Vec<u8>> {
        let entries = fs::read_dir(out.join("runs")).into_iter().flatten().flatten();
        let runs = entries
            .map(|entry| entry.path())
            .filter(|path| !path.file_name().unwrap().to_string_lossy().starts_with('.'));
        runs.map(|path| path.join("run.json")).map(|path| (path.clone(), fs::read(path).unwrap())).collect()
    };
    // Moments that differ from run to run; a failure prints them.
    let noise = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().subsec_nanos();
    let (mut kept, mut gone): (BTreeMap<PathBuf, Vec<u8>>, Vec<u32>) = (BTreeMap::new(), Vec::new());
    for round in 0..3_u32 {
        let mut child = start();
        let before = kept.len();
        // In the middle of a run: some time after the first run of this round has been written.
        until("a complete run", || finished().len() > before || child.try_wait().unwrap().is_some());
        std::thread::sleep(Duration::from_millis(u64::from(noise.rotate_left(round * 7) % 1200)));
        child.kill().unwrap();
        child.wait().unwrap();
        gone.push(child.id());
        let now = finished();
        for (path, text) in &kept {
            assert_eq!(now.get(path), Some(text), "{noise}: {} was lost or changed", path.display());
        }
        kept = now;
    }
    let mut child = start();
    // On a shared machine the router may be late and its runs invalid: the exit status is then 1.
    let status = child.wait().unwrap();
    let said = fs::read_to_string(home.path().join("said")).unwrap();
    assert!(status.success() || said.contains("path: "), "{noise}: {status}: {said}");
    gone.push(child.id());
    let now = finished();
    assert_eq!(now.len(), 8, "{noise}");
    for (path, text) in &kept {
        assert_eq!(now.get(path), Some(text), "{noise}: {} was lost or changed", path.display());
    }
    for pid in gone {
        assert_eq!(left_of(pid, home.path()), Vec::<String>::new(), "{noise}");
    }
}

#[test]
fn every_kind_of_server_is_started_measured_and_stopped() {
    let home = tempfile::tempdir().unwrap();
    let kinds = ["nginx", "apache-event", "apache-prefork", "lighttpd", "amped", "null"];
    let subjects: String = kinds.iter().map(|kind| format!("[[subject]]\nkind = {kind:?}\n")).collect();
    let text = format!(
        "repetitions = 1\nagain = false\n{subjects}[load]\nrate = 100\nduration = \"400ms\"\nwarm-up = \"100ms\"\nconnect-timeout = \"20s\"\n\
         timeout = \"30s\"\n{PATIENT}"
    );
    let output = run(home.path(), &text, &[]);
    let (_, err) = told(&output);
    let runs = runs(home.path());
    assert_eq!(runs.len(), kinds.len());
    for (id, run) in &runs {
        let found = ["server", "counts", "bytes"].map(|name| check(run, name).as_bool());
        assert_eq!(found, [Some(true); 3], "{id}: {run}\n{err}");
        let server = &run["summary"]["server"];
        assert!(server["cpu_s"].as_f64() > Some(0.0) && server["processes_max"].as_u64() > Some(0), "{id}: {server}");
    }
    // This project's server and the client count the same bytes.
    let amped = &runs["1-a4-100"]["summary"];
    assert_eq!(
        (&amped["server"]["replies"], &amped["server"]["sent_bytes"]),
        (&amped["ok"], &amped["received_bytes"]),
        "{amped}"
    );
}

#[test]
fn interleaved_servers_alternate_with_floor_server() {
    let home = tempfile::tempdir().unwrap();
    let text = format!(
        "interleave = true\nrepetitions = 2\n[[subject]]\nkind = \"amped\"\nsettings = {{ log = true }}\n\
         config = \"\"\"\n#log#log.access = '@run@/access.log'\n\"\"\"\n\
         [[subject]]\nkind = \"floor\"\n[[subject]]\nkind = \"nginx\"\n[[subject]]\nkind = \"lighttpd\"\nprogram = \"/no/such\"\n\
         optional = true\n[load]\nclients = 4\nduration = \"200ms\"\nwarm-up = \"0s\"\ntimeout = \"30s\"\n\
         [[factor]]\nname = \"row\"\nlevels = [{{ label = \"1k\", set = {{}} }}, {{ label = \"0b\", set = {{ \"workload.file\" = \"0\" }} }},\n\
         {{ label = \"large\", set = {{ \"workload.file\" = \"100KiB\", \"load.requests-per-connection\" = 1 }} }},\n\
         {{ label = \"304\", set = {{ \"load.headers\" = [\"If-None-Match: @etag@\"], \"load.expect\" = \"304\" }} }},\n\
         {{ label = \"404\", set = {{ \"load.path\" = \"/none\", \"load.expect\" = \"404\" }} }}]\n\
         [[claim]]\nsays = \"It costs less\"\nmetric = \"cpu-per-reply\"\nof = {{ row = \"404\" }}\n\
         against-subjects = [\"nginx\", \"lighttpd\"]\nbelow = 1.0\n{PATIENT}"
    );
    let output = run(home.path(), &text, &["--only", "1k,large,304,404"]);
    let (result, err) = told(&output);
    assert_eq!(output.status.code(), Some(0), "{result}\n{err}");
    assert!(err.contains("skipped: lighttpd: program not found: /no/such"), "{err}");
    let runs = runs(home.path());
    // Four rows in two blocks, each of three servers and the first server again.
    assert_eq!(runs.len(), 4 * 2 * 4, "{err}");
    for (id, run) in &runs {
        assert_eq!(
            (check(run, "server"), &run["summary"]["failed"]),
            (&Value::Bool(true), &Value::from(0)),
            "{id}: {run}"
        );
        assert!(run["summary"]["server"]["cpu_s"].as_f64() > Some(0.0), "{id}: {run}");
    }
    // The servers of a row run at the same time: those of the first block are measured before any of the second.
    let began =
        |block: u32| ["a0", "a1", "a2", "aa"].map(|arm| runs[&format!("{block}-{arm}-4")]["load_began_s"].as_f64());
    assert!(began(1).iter().all(|first| began(2).iter().all(|second| first < second)), "{runs:?}");
    // The floor sends as many bytes as the first server.
    let bytes = |id: &str| {
        let summary = &runs[id]["summary"];
        summary["received_bytes"].as_f64().unwrap() / summary["ok"].as_f64().unwrap()
    };
    assert!((bytes("1-a0-4") - bytes("1-a1-4")).abs() < 1.0, "{} and {}", runs["1-a0-4"], runs["1-a1-4"]);
    // The missing server has no claim, and the page shows the others.
    assert_eq!(result["claims"].as_array().map(Vec::len), Some(1), "{result}");
    let page = fs::read_to_string(home.path().join("out/report.html")).unwrap();
    assert!(page.contains("<h2>Claims</h2>") && !page.contains("Missing: "), "the page of interleaved servers");
    let output = run(home.path(), &text, &["--only", "2k"]);
    let (err, status) = (String::from_utf8_lossy(&output.stderr).into_owned(), output.status.code());
    assert!(status == Some(2) && err.contains("row: 1k, 0b, large, 304, 404"), "{err}");
}

#[test]
fn servers_are_measured_over_tls_with_full_and_resumed_handshakes() {
    let home = tempfile::tempdir().unwrap();
    let kinds = ["amped", "nginx", "h2o", "apache-event"];
    let subjects: String = kinds.iter().map(|kind| format!("[[subject]]\nkind = \"{kind}\"\n")).collect();
    let text = format!(
        "interleave = true\nrepetitions = 1\nagain = false\n{subjects}\
         [load]\nclients = 4\nduration = \"1s\"\nwarm-up = \"100ms\"\ntimeout = \"30s\"\nrequests-per-connection = 1\n\
         tls = \"ecdsa\"\ntls-version = \"1.3\"\n\
         [[factor]]\nname = \"row\"\nlevels = [{{ label = \"rsa\", set = {{ \"load.tls\" = \"rsa\" }} }},\n\
         {{ label = \"resumed\", set = {{ \"load.tls-resume\" = \"100%\" }} }},\n\
         {{ label = \"persistent\", set = {{ \"load.requests-per-connection\" = 0 }} }}]\n{PATIENT}"
    );
    let output = run(home.path(), &text, &[]);
    let (result, err) = told(&output);
    assert_eq!(output.status.code(), Some(0), "{result}\n{err}");
    let runs = runs(home.path());
    assert_eq!(runs.len(), kinds.len() * 3, "{err}");
    for (id, run) in &runs {
        let load = fs::read_to_string(home.path().join("out/runs").join(id).join("load.json")).unwrap();
        let load: Value = serde_json::from_str(&load).unwrap();
        let failed = &run["summary"]["failed"];
        assert_eq!((check(run, "server"), failed), (&Value::Bool(true), &Value::from(0)), "{id}: {run}");
        let handshakes = |kind: &str| load["handshakes"][kind]["count"].as_u64().unwrap();
        let (full, resumed, ok) = (handshakes("full"), handshakes("resumed"), load["ok"].as_u64().unwrap());
        // The arms are the rows, and in each row the servers.
        match id.split('-').nth(1).unwrap()[1..].parse::<usize>().unwrap() / kinds.len() {
            0 => assert!(full >= ok && resumed == 0, "{id}: {load}"),
            // The first handshake of each client is full, and with h2o, which gives no ticket when it resumes, others are.
            1 => assert!(full >= 4 && (resumed > 0 || full == 4), "{id}: {load}"),
            _ => assert!(full == 4 && resumed == 0 && ok >= 4, "{id}: {load}"),
        }
    }
}

#[test]
fn servers_are_measured_over_http2() {
    let home = tempfile::tempdir().unwrap();
    let kinds = ["amped", "nginx", "h2o", "apache-event", "lighttpd"];
    let subjects: String = kinds.iter().map(|kind| format!("[[subject]]\nkind = \"{kind}\"\n")).collect();
    let text = format!(
        "interleave = true\nrepetitions = 1\nagain = false\n{subjects}\
         [load]\nclients = 2\nduration = \"1s\"\nwarm-up = \"100ms\"\nconnect-timeout = \"20s\"\ntimeout = \"30s\"\nhttp2 = true\nstreams = 200\n\
         [[factor]]\nname = \"row\"\nlevels = [{{ label = \"h2c\", set = {{}} }},\n\
         {{ label = \"single\", set = {{ \"load.clients\" = 3, \"load.streams\" = 1 }} }},\n\
         {{ label = \"tls\", set = {{ \"load.tls\" = \"ecdsa\" }} }}]\n{PATIENT}"
    );
    let output = run(home.path(), &text, &[]);
    let (result, err) = told(&output);
    assert_eq!(output.status.code(), Some(0), "{result}\n{err}");
    let runs = runs(home.path());
    assert_eq!(runs.len(), kinds.len() * 3, "{err}");
    for (id, run) in &runs {
        let summary = &run["summary"];
        let found = (check(run, "server"), check(run, "protocol"), &summary["failed"]);
        assert_eq!(found, (&Value::Bool(true), &Value::Bool(true), &Value::from(0)), "{id}: {run}");
        let load = json(&home.path().join("out/runs").join(id).join("load.json"));
        // The arms are the rows, and in each row the servers. Each server allows fewer than 200 streams.
        let row = id.split('-').nth(1).unwrap()[1..].parse::<usize>().unwrap() / kinds.len();
        let streams = if row == 1 { Value::from(1) } else { load["streams"].clone() };
        assert_eq!(summary["streams"], streams, "{id}: {run}");
        assert_eq!((id.ends_with("-3"), load["load"]["closed"]["clients"] == 3), (row == 1, row == 1), "{id}: {load}");
        assert!(streams.as_u64().is_some_and(|streams| (row == 1) == (streams == 1) && streams < 200), "{id}: {run}");
        assert_eq!(load["handshakes"]["full"]["count"], if row == 2 { 2 } else { 0 }, "{id}: {load}");
    }
}

#[test]
fn server_without_http2_is_not_testable_with_reason() {
    let home = tempfile::tempdir().unwrap();
    // It listens at both ports, and speaks only HTTP/1.1.
    let config = "daemon off;\n#as-root#user root;\npid @run@/nginx.pid;\nerror_log stderr crit;\nevents { }\n\
                  http { access_log off; server { listen @address@:@port@; root \"@site@\";\n\
                  #h2c#listen @address@:@h2c-port@;\n#tls#listen @address@:@tls-port@ ssl;\n\
                  #tls#ssl_certificate @tls-certificate@; ssl_certificate_key @tls-key@;\n} }\n";
    let text = format!(
        "repetitions = 1\n[[subject]]\nname = \"own\"\nkind = \"nginx\"\nconfig = '''\n{config}'''\n\
         [load]\nclients = 2\nduration = \"300ms\"\nwarm-up = \"0s\"\nconnect-timeout = \"20s\"\nhttp2 = true\n\
         [[factor]]\nname = \"way\"\nlevels = [{{ label = \"h2c\", set = {{}} }},\n\
         {{ label = \"tls\", set = {{ \"load.tls\" = \"ecdsa\" }} }}]\n\
         [[claim]]\nsays = \"It is fast\"\nmetric = \"rate\"\nof = {{ way = \"tls\" }}\nabove = 1\n{PATIENT}"
    );
    let output = run(home.path(), &text, &[]);
    let (result, err) = told(&output);
    let runs = runs(home.path());
    for (id, says) in [("1-a0-2", "HTTP/2?"), ("1-a1-2", "does not speak HTTP/2 over TLS (ALPN)")] {
        let run = &runs[id];
        let found = (check(run, "protocol"), &run["status"], &run["summary"]["ok"]);
        assert_eq!(found, (&Value::Bool(false), &Value::from("invalid"), &Value::from(0)), "{run}\n{err}");
        assert!(run["why"].to_string().contains(says), "{run}");
        // Nothing is repeated that fails again.
        assert!(!runs.contains_key(&format!("{id}-2")), "{err}");
    }
    let claim = &result["claims"][0];
    assert_eq!(claim["status"], "not-testable", "{result}");
    assert!(claim["why"].as_str().unwrap().contains("way tls: no correct response: "), "{result}");
}

#[test]
fn cached_requests_among_cold_ones_have_latencies_of_their_own() {
    let home = tempfile::tempdir().unwrap();
    let text = format!(
        "repetitions = 1\nagain = false\n[[subject]]\nkind = \"nginx\"\n[workload]\nwebstone = \"1/4\"\n\
         [load]\nclients = 2\nbeside = 1\nhttp2 = true\nstreams = 10\ncached-share = \"80%\"\nduration = \"500ms\"\nconnect-timeout = \"20s\"\n\
         timeout = \"30s\"\n[[figure]]\ntitle = \"f\"\ny = [\"cached-p50\", \"cached-p99\", \"cold-p50\", \"cold-p99\"]\n{PATIENT}"
    );
    let output = run(home.path(), &text, &[]);
    let (result, err) = told(&output);
    assert_eq!(output.status.code(), Some(0), "{result}\n{err}");
    let run = &runs(home.path())["1-a0-2"];
    let summary = &run["summary"];
    let found = (check(run, "protocol"), &summary["failed"], &summary["streams"]);
    assert_eq!(found, (&Value::Bool(true), &Value::from(0), &Value::from(10)), "{run}");
    let [cached, cold] = ["cached", "cold"].map(|class| summary["mixed"][class]["count"].as_f64().unwrap());
    assert_eq!(cached + cold, summary["ok"].as_f64().unwrap(), "{run}");
    // Drawn independently: five standard deviations.
    let all = cached + cold;
    assert!((cached - 0.8 * all).abs() <= 5.0 * (0.16 * all).sqrt() + 1.0, "{cached} of {all}");
    assert!(summary["beside"]["ok"].as_u64() > Some(0), "{run}");
}

#[test]
fn additional_clients_and_parked_connections_have_metrics() {
    let home = tempfile::tempdir().unwrap();
    let text = format!(
        "repetitions = 1\n[[subject]]\nkind = \"nginx\"\n[workload]\nspecweb96 = 1\n\
         [load]\nclients = 2\nbeside = 2\nparked = [\"20:idle\"]\nduration = \"400ms\"\ntimeout = \"30s\"\n[[figure]]\ntitle = \"f\"\n\
         y = [\"start\", \"memory-at-rest\", \"memory-per-parked\", \"beside-rate\", \"beside-p50\", \"beside-p99\"]\n{PATIENT}"
    );
    let output = run(home.path(), &text, &[]);
    let (result, err) = told(&output);
    assert_eq!(output.status.code(), Some(0), "{result}\n{err}");
    let run = &runs(home.path())["1-a0-2"];
    let summary = &run["summary"];
    assert_eq!((&summary["parked"], check(run, "server")), (&Value::from(20), &Value::Bool(true)), "{run}");
    assert!(summary["beside"]["ok"].as_u64() > Some(0) && summary["ok"].as_u64() > Some(0), "{run}");
    let server = &summary["server"];
    assert!(server["start_ms"].as_f64() > Some(0.0), "{run}");
    assert!(server["resident_max_bytes"].as_u64() >= server["rest_bytes"].as_u64(), "{run}");
    assert!(server["rest_bytes"].as_u64() > Some(0), "{run}");
}

#[test]
fn interrupt_keeps_completed_measurements() {
    let home = tempfile::tempdir().unwrap();
    let text = format!(
        "repetitions = 50\n{}[load]\nrate = 100\nduration = \"300ms\"\nwarm-up = \"0s\"\nconnect-timeout = \"20s\"\n{PATIENT}",
        null_server()
    );
    let (file, out) = (home.path().join("mine.toml"), home.path().join("out"));
    fs::write(&file, text).unwrap();
    let mut child = Command::new(env!("CARGO_BIN_EXE_ammeter"))
        .args(["run", file.to_str().unwrap(), "--out", out.to_str().unwrap(), "--quiet-timeout", "0s"])
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    until("a complete run", || out.join("runs/1-a0-100/run.json").exists());
    Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    let mut said = String::new();
    std::io::Read::read_to_string(&mut child.stderr.take().unwrap(), &mut said).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(1), "{said}");
    assert!(said.contains("interrupted; completed measurements are kept"), "{said}");
    assert_eq!(left_of(child.id(), home.path()), Vec::<String>::new());
}

#[test]
fn subject_that_fails_to_start_makes_broken_runs() {
    let home = tempfile::tempdir().unwrap();
    let text = "repetitions = 1\n[[subject]]\nname = \"odd\"\nkind = \"command\"\nstart = [\"sh\", \"-c\", \"echo no port left >&2; exit 3\"]\n[load]\nrate = 100\n";
    let output = run(home.path(), text, &[]);
    let (result, err) = told(&output);
    assert_eq!(output.status.code(), Some(1), "{err}");
    let broken = result["verdict"]["broken"].to_string();
    assert!(broken.contains("no port left") && broken.contains("exit status: 3"), "{broken}");
    let run = &runs(home.path())["1-a0-100"];
    assert!(run["status"] == "invalid" && run["summary"].is_null() && check(run, "server") == false, "{run}");
    // A failure of the server is a result and is not repeated.
    let again = self::run(home.path(), text, &["--retry"]);
    assert_eq!((again.status.code(), runs(home.path()).len()), (Some(1), 1));
    let err = String::from_utf8_lossy(&again.stderr).into_owned();
    assert!(err.contains("1 of 1 runs already exist; none of them can be repeated"), "{err}");
}

/// A process that uses a whole core. Stopped when dropped.
struct Busy(Child);

impl Busy {
    fn on_each_core() -> Vec<Busy> {
        let cores = std::thread::available_parallelism().unwrap().get();
        let spin = || Busy(Command::new("sh").args(["-c", "while :; do :; done"]).spawn().unwrap());
        (0..cores).map(|_| spin()).collect()
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

#[test]
fn alone_run_waits_for_busy_machine() {
    let home = tempfile::tempdir().unwrap();
    let text = format!(
        "repetitions = 1\nagain = false\n{}[load]\nrate = 20\nduration = \"300ms\"\nwarm-up = \"0s\"\nconnect-timeout = \"20s\"\n{}",
        null_server(),
        PATIENT.replacen("idle-max = \"1000%\"", "idle-max = \"20%\"", 1)
    );
    let _others = Busy::on_each_core();
    let (_, err) = told(&run(home.path(), &text, &["--quiet-timeout", "1s"]));
    for part in ["block 1: waiting up to 1 s for a quiet machine", "--quiet-timeout 0s", "is busy"] {
        assert!(err.contains(part), "no {part:?} in {err}");
    }
    assert_eq!(runs(home.path()).len(), 1, "it continues after the timeout");
}

#[test]
fn alone_disturbed_run_is_repeated_once_and_again_on_demand() {
    let home = tempfile::tempdir().unwrap();
    let text = format!(
        "repetitions = 1\nagain = false\n{}[load]\nrate = 50\nduration = \"600ms\"\nwarm-up = \"0s\"\nconnect-timeout = \"20s\"\n\
         timeout = \"30s\"\n{}",
        null_server(),
        PATIENT.replacen("others-max = \"1000%\"", "others-max = \"60%\"", 1)
    );
    let ids = || runs(home.path()).into_keys().collect::<Vec<_>>();
    let others = Busy::on_each_core();
    let output = run(home.path(), &text, &[]);
    let (result, err) = told(&output);
    assert_eq!((output.status.code(), ids()), (Some(1), vec!["1-a0-50".to_owned(), "1-a0-50-2".to_owned()]), "{err}");
    assert!(err.contains("other processes disturbed 1 of 1 runs; repeating them once"), "{err}");
    assert_eq!((&result["points"][0]["invalid"], &result["points"][0]["again"]), (&1.into(), &1.into()), "{result}");
    // Once: the same command finds nothing to do.
    run(home.path(), &text, &[]);
    assert_eq!(ids().len(), 2);
    drop(others);
    let texts =
        || ["1-a0-50", "1-a0-50-2"].map(|id| fs::read(home.path().join("out/runs").join(id).join("run.json")).unwrap());
    let before = texts();
    let output = run(home.path(), &text, &["--retry"]);
    let (result, err) = told(&output);
    assert!(err.contains("1 of 1 runs already exist; 1 invalid run will be repeated"), "{err}");
    assert_eq!(texts(), before, "existing attempts are never changed");
    let runs = runs(home.path());
    assert!(["1-a0-50", "1-a0-50-2"].iter().all(|id| check(&runs[*id], "others") == false), "{runs:?}");
    // Other processes on this machine may use the core too, and then the run is as invalid as before.
    let is_invalid = check(&runs["1-a0-50-3"], "others") == false;
    assert_eq!(output.status.code(), Some(i32::from(is_invalid)), "{result}\n{err}");
    let counted = [&result["points"][0]["invalid"], &result["points"][0]["again"]];
    assert_eq!(counted, [&Value::from(u8::from(is_invalid)), &2.into()], "{result}");
    let page = fs::read_to_string(home.path().join("out/report.html")).unwrap();
    assert!(page.contains("; 2 earlier attempts were invalid and repeated"), "the page lists the attempts");
    // A valid run stays unchanged.
    if !is_invalid {
        run(home.path(), &text, &["--retry"]);
        assert_eq!(ids().len(), 3);
    }
}

#[test]
fn server_gets_its_files_from_an_origin_over_the_path() {
    let home = tempfile::tempdir().unwrap();
    let text = format!(
        "repetitions = 1\nagain = false\n[[subject]]\nkind = \"amped\"\nconfig = '''\ncache.disk = \"@run@\"\n\
         object_storage.endpoint = \"http://@origin@\"\nsite = [{{ root = \"s3://bucket/\" }}]\n'''\n\
         [[subject]]\nkind = \"nginx\"\nconfig = '''\ndaemon off;\npid @run@/nginx.pid;\n#as-root#user root;\nerror_log stderr;\n\
         events {{}}\nhttp {{\nproxy_temp_path @run@/proxy;\nserver {{\nlisten @address@:@port@;\n\
         location / {{ proxy_pass http://@origin@/bucket/; }}\n}}\n}}\n'''\n[load]\nrate = 20\nduration = \"1s\"\nwarm-up = \"0s\"\n\
         connect-timeout = \"20s\"\ntimeout = \"30s\"\n[path]\npeer = \"origin\"\nlatency = \"30ms\"\n{PATIENT}"
    );
    let output = run(home.path(), &text, &[]);
    let (_, err) = told(&output);
    let runs = runs(home.path());
    let p50 = |id: &str, what: &str| {
        let run = &runs[id];
        assert_eq!(
            (check(run, "server"), &run["summary"]["failed"]),
            (&Value::Bool(true), &Value::from(0)),
            "{run}\n{err}"
        );
        assert!(check(run, "path").is_boolean(), "{run}");
        run["summary"][what]["p50_ms"].as_f64().unwrap_or_else(|| panic!("{run}\n{err}"))
    };
    // amped keeps the object; nginx, without a cache, asks for each on a new connection: two round trips. Neither is away from its clients.
    let (kept, passed) = (p50("1-a0-20", "latency"), p50("1-a1-20", "latency"));
    assert!(passed >= 110.0 && kept < passed / 2.0, "{kept} {passed}");
    assert!(p50("1-a1-20", "connected") < 55.0, "{err}");
}

#[test]
fn emulated_path_between_client_and_server_keeps_counts_equal() {
    let home = tempfile::tempdir().unwrap();
    let text = format!(
        "repetitions = 1\nagain = false\n[[subject]]\nkind = \"nginx\"\n[load]\nrate = 20\nduration = \"1s\"\nwarm-up = \"0s\"\nconnect-timeout = \"20s\"\n\
         timeout = \"30s\"\n[path]\nlatency = \"1ms\"\n[[factor]]\nset = \"path.latency\"\nlevels = [\"1ms\", \"40ms\"]\n{PATIENT}"
    );
    let output = run(home.path(), &text, &[]);
    let (_, err) = told(&output);
    let runs = runs(home.path());
    let median = |id: &str| {
        let run = &runs[id];
        assert_eq!(check(run, "counts"), true, "{run}\n{err}");
        assert!(check(run, "path").is_boolean(), "{run}");
        run["summary"]["connected"]["p50_ms"].as_f64().unwrap_or_else(|| panic!("{run}\n{err}"))
    };
    // A connection is established after one round trip.
    let (near, far) = (median("1-a0-20"), median("1-a1-20"));
    assert!(near >= 2.0 && far >= 80.0 && far > near * 3.0, "{near} ms, {far} ms");
}

#[test]
fn alone_cpu_limit_slows_server_and_limits_do_not_leak() {
    let home = tempfile::tempdir().unwrap();
    let text = format!(
        "repetitions = 1\nagain = false\n[[subject]]\nkind = \"nginx\"\n[load]\nclients = 4\nduration = \"1500ms\"\nconnect-timeout = \"20s\"\ntimeout = \"30s\"\n\
         [[factor]]\nname = \"core\"\nlevels = [{{ label = \"whole\", set = {{ \"limits.memory\" = \"256MiB\" }} }}, {{ label = \"fiftieth\", set = {{ \"limits.cpu\" = \"2%\" }} }}]\n{PATIENT}"
    );
    let output = run(home.path(), &text, &[]);
    let (result, err) = told(&output);
    assert_eq!(output.status.code(), Some(0), "{result}\n{err}");
    let rate = |at: usize| result["points"][at]["rate"].as_f64().unwrap();
    let runs = runs(home.path());
    let cores = |id: &str| {
        runs[id]["summary"]["server"]["cpu_s"].as_f64().unwrap() / runs[id]["summary"]["seconds"].as_f64().unwrap()
    };
    assert!(cores("1-a1-4") < 0.1, "{}", cores("1-a1-4"));
    // On a busy machine the server that may use a whole core hardly gets more than that either.
    assert!(rate(1) < rate(0) * 0.5 || cores("1-a0-4") < 0.1, "{}: {result}", cores("1-a0-4"));
    assert!(runs["1-a0-4"]["summary"]["server"]["memory_max_bytes"].as_u64() > Some(100_000));
}

#[test]
fn alone_client_bound_result_is_lower_bound() {
    let home = tempfile::tempdir().unwrap();
    // No current core begins 80,000 connections a second; all of them begin in the end, and receive responses.
    let text = format!(
        "repetitions = 1\n{}[load]\nrate = 80000\nconnect-timeout = \"20s\"\ntimeout = \"30s\"\nduration = \"200ms\"\n\
         warm-up = \"0s\"\n{PATIENT}",
        null_server()
    );
    let output = run(home.path(), &text, &[]);
    let (result, err) = told(&output);
    let run = &runs(home.path())["1-a0-80000"];
    assert_eq!(
        (&run["status"], check(run, "clients"), check(run, "client")),
        (&"censored".into(), &false.into(), &false.into()),
        "{run}"
    );
    assert_eq!(
        (output.status.code(), &result["verdict"]["validity"]),
        (Some(0), &"at-least".into()),
        "{result}\n{err}"
    );
    assert!(err.contains("the clients limit throughput"), "{err}");
}

#[test]
fn invalid_experiment_is_reported_before_anything_runs() {
    let home = tempfile::tempdir().unwrap();
    let wrong = |text: &str, says: &[&str]| {
        let output = run(home.path(), text, &[]);
        let err = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(2) && says.iter().all(|says| err.contains(says)), "{err}");
        assert!(!home.path().join("out").exists());
    };
    wrong("[[subject]]\nkind = \"nginx\"\n[load]\nrate = 0\n", &["mine.toml:4:8: ", "rate = 0", "above 0"]);
    wrong("[[subject]]\nkind = \"nginx\"\n[server]\nlgo = true\n[load]\nrate = 1\n", &["mine.toml:4:7: ", "it has: "]);
    let output = ammeter(&["run", "no-such-thing"]);
    let err = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.code() == Some(2) && err.contains("arlitt-figure-5"), "{err}");
    let (text, status) = said(&ammeter(&["run"]));
    assert!(status == 0 && text.contains("kind = \"nginx\""), "{text}");
}

#[test]
fn exhibits_are_listed_and_planned() {
    let (text, status) = said(&ammeter(&["list"]));
    assert!(
        status == 0 && text.lines().any(|line| line.starts_with("arlitt-figure-5 ") && line.contains("--quick")),
        "{text}"
    );
    let (json, _) = said(&ammeter(&["list", "--json"]));
    let list: Vec<Value> = serde_json::from_str(&json).unwrap();
    assert_eq!(list.len(), text.lines().count());
    for exhibit in list {
        let name = exhibit["name"].as_str().unwrap();
        let (file, _) = said(&ammeter(&["list", name]));
        assert!(file.contains("[load]") && file.contains("about = "), "{file}");
        let (plan, status) = said(&ammeter(&["run", name, "--quick", "--plan"]));
        assert!(
            status == 0
                && plan.contains(exhibit["experiment"].as_str().unwrap())
                && (plan.contains("block 1:") || plan.contains("interleaved, "))
                && plan.contains("runs, about"),
            "{plan}"
        );
    }
}

/// Ends a process with the test, if it still is one with this path among its arguments.
struct Killed<'a>(u32, &'a Path);

impl Killed<'_> {
    fn is_there(&self) -> bool {
        let words = fs::read(format!("/proc/{}/cmdline", self.0)).unwrap_or_default();
        String::from_utf8_lossy(&words).contains(self.1.to_str().unwrap())
    }
}

impl Drop for Killed<'_> {
    fn drop(&mut self) {
        if !self.is_there() {
            return;
        }
        let _ = Command::new("kill").args(["-KILL", &self.0.to_string()]).stderr(Stdio::null()).status();
    }
}

#[test]
fn interrupted_exhibits_end_after_their_run() {
    for signal in ["-INT", "-TERM"] {
        let home = tempfile::tempdir().unwrap();
        let out = home.path().join("out");
        let mut command = Command::new(env!("CARGO_BIN_EXE_ammeter"));
        command.args(["exhibits", "--only", "arlitt-figure-5", "--out"]).arg(&out).arg("--into").arg(home.path());
        // Not a pipe, whose end would be that of the run.
        let errors = home.path().join("errors");
        command.stdout(Stdio::null()).stderr(fs::File::create(&errors).unwrap());
        let mut child = command.spawn().unwrap();
        let _exhibits = Killed(child.id(), &out);
        // It has blocked signals, and holds its directory.
        until("the run", || out.join("arlitt-figure-5/resolved.json").exists());
        let children = fs::read_to_string(format!("/proc/{0}/task/{0}/children", child.id())).unwrap();
        let run = Killed(children.trim().parse().unwrap(), &out);
        assert!(Command::new("kill").args([signal, &child.id().to_string()]).status().unwrap().success());
        let status = child.wait().unwrap();
        let text = fs::read_to_string(&errors).unwrap();
        assert!(status.code() == Some(1) && text.contains("interrupted; the same command resumes"), "{text}");
        assert!(!run.is_there(), "the run goes on");
        let archive = fs::File::open(out.join("arlitt-figure-5")).unwrap();
        assert!(archive.try_lock().is_ok(), "the archive is in use");
    }
}
