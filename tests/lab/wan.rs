//! `ammeter wan`: the path between a command and this host has the requested properties, and leaves nothing behind.
//!
//! These tests create network namespaces and devices, which requires root. The only assertion about time is a lower
//! bound: nothing arrives before its latency.

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, UdpSocket};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread;

use serde_json::Value;

use crate::{ammeter, until};

/// Starts a server on all addresses that answers each connection with `bytes` bytes, and returns its port. It ends with
/// the test.
fn server(bytes: usize) -> u16 {
    let listener = TcpListener::bind("[::]:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    thread::spawn(move || {
        for connection in listener.incoming() {
            let mut connection = connection.unwrap();
            thread::spawn(move || {
                let mut request = [0; 4096];
                let _ = connection.read(&mut request);
                let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {bytes}\r\nConnection: close\r\n\r\n");
                // The client may have disconnected.
                let _ = connection.write_all(head.as_bytes()).and_then(|()| connection.write_all(&vec![b'x'; bytes]));
            });
        }
    });
    port
}

/// Runs `ammeter wan --json FLAGS -- COMMAND`; returns its standard output, the report on the last line of standard
/// error, and the status. `selftest` judges how late packets leave.
fn wan(flags: &[&str], command: &[&str]) -> (String, Value, i32) {
    let words = [&["wan", "--json", "--late-max=1m"], flags, &["--"], command].concat();
    let output = ammeter(&words);
    let errors = String::from_utf8(output.stderr).unwrap();
    let last = errors.lines().last().unwrap_or_default();
    let result = serde_json::from_str(last).unwrap_or_else(|_| panic!("{words:?} said: {errors}"));
    (String::from_utf8(output.stdout).unwrap(), result, output.status.code().unwrap())
}

fn curl(flags: &[&str], url: &str, shown: &str) -> (String, Value, i32) {
    wan(flags, &["curl", "--silent", "--show-error", "--max-time", "60", "-o", "/dev/null", "-w", shown, url])
}

fn count(result: &Value, direction: &str, name: &str) -> u64 {
    result["report"]["paths"][0][direction]["packets"][name].as_u64().unwrap()
}

#[test]
fn each_direction_has_its_own_values() {
    let port = server(1000);
    for host in ["10.77.0.1", "[fd77::1]"] {
        let url = format!("http://{host}:{port}/");
        let (times, result, status) = curl(&["--latency", "50ms"], &url, "%{time_connect} %{time_total}");
        assert_eq!(status, 0, "{result}");
        let times: Vec<f64> = times.split(' ').map(|time| time.parse().unwrap()).collect();
        // One round trip to connect, another for request and response.
        assert!(times[0] >= 0.1 && times[1] >= 0.2, "{host}: {times:?}");
        // The last packets are in flight when the command ends.
        let held = result["report"]["paths"][0]["up"]["held"].as_u64().unwrap();
        assert_eq!(count(&result, "up", "entered"), count(&result, "up", "left") + held);
        assert!(result["report"]["paths"][0]["down"]["delay_mean_ms"].as_f64().unwrap() >= 50.0);
        assert_eq!(result["report"]["congestion_control"], "cubic");
    }
}

#[test]
fn bandwidth_is_not_exceeded() {
    let port = server(100_000);
    let url = format!("http://10.77.0.1:{port}/");
    let (time, result, status) = curl(&["--bandwidth", "2mbit"], &url, "%{time_total}");
    assert_eq!(status, 0, "{result}");
    // 100,000 bytes and the headers of at least 70 packets.
    let time: f64 = time.parse().unwrap();
    assert!(time >= (100_000.0 + 69.0 * 52.0) * 8.0 / 2e6, "{time} s");
    assert!(count(&result, "down", "left_bytes") > 100_000);
}

#[test]
fn losses_are_reported_and_recovered_by_tcp() {
    let port = server(300_000);
    let url = format!("http://10.77.0.1:{port}/");
    let (size, result, status) = curl(&["--loss", "pattern:.........x", "--latency", "1ms"], &url, "%{size_download}");
    assert_eq!((size.as_str(), status), ("300000", 0), "{result}");
    for direction in ["up", "down"] {
        let (entered, lost) = (count(&result, direction, "entered"), count(&result, direction, "lost"));
        // Packets in flight at the end are not lost yet.
        assert!(lost == entered / 10 || lost + 1 == entered / 10, "{direction}: {lost} of {entered}");
    }
}

#[test]
fn flood_beyond_queue_is_dropped_and_counted() {
    let sink = UdpSocket::bind("0.0.0.0:0").unwrap();
    let port = sink.local_addr().unwrap().port();
    let flood = format!("exec 3>/dev/udp/10.77.0.1/{port}; for i in {{1..5000}}; do echo $i >&3; done");
    let (_, result, status) = wan(&["--bandwidth", "100kbit", "--queue", "50"], &["bash", "-c", &flood]);
    assert_eq!(status, 0, "{result}");
    let up = |name| count(&result, "up", name);
    assert!(up("queue_full") > 0, "{result}");
    let held = result["report"]["paths"][0]["up"]["held"].as_u64().unwrap();
    assert_eq!(up("entered"), up("left") + up("queue_full") + held);
    assert!(up("entered") >= 5000, "{result}");
}

#[test]
fn concurrent_paths_are_independent() {
    let port = server(10);
    let url = format!("http://10.77.0.1:{port}/");
    let runs: Vec<_> = (0..4)
        .map(|_| {
            let url = url.clone();
            thread::spawn(move || curl(&["--latency", "100ms"], &url, "%{http_code}"))
        })
        .collect();
    for run in runs {
        let (code, result, status) = run.join().unwrap();
        assert_eq!((code.as_str(), status), ("200", 0), "{result}");
    }
}

#[test]
fn command_status_becomes_own_status() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("plain.txt");
    fs::write(&file, "no program").unwrap();
    let check = |command: &[&str], expected: i32, ended: &str| {
        let (_, result, status) = wan(&["--loss", "100%"], command);
        assert_eq!(
            (status, result["exit_status"].as_i64()),
            (expected, Some(expected.into())),
            "{command:?}: {result}"
        );
        assert_eq!(result["command"].to_string(), ended, "{command:?}");
        assert_eq!(result["verdict"]["validity"], "valid", "the path behaved as configured: {result}");
    };
    check(&["true"], 0, r#"{"code":0,"signal":null}"#);
    check(&["sh", "-c", "exit 7"], 7, r#"{"code":7,"signal":null}"#);
    check(&["sh", "-c", "exit 255"], 255, r#"{"code":255,"signal":null}"#);
    check(&["sh", "-c", "kill -9 $$"], 137, r#"{"code":null,"signal":9}"#);
    check(&["sh", "-c", "kill -TERM $$"], 143, r#"{"code":null,"signal":15}"#);

    let fails = |command: &str, expected: i32, says: &str| {
        let output = ammeter(&["wan", "--", command]);
        let text = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(expected) && text.contains(says), "{command}: {text}");
    };
    fails("no-such-program-anywhere", 127, "cannot start \"no-such-program-anywhere\"");
    fails("/no/such/program", 127, "No such file");
    fails(file.to_str().unwrap(), 126, "Permission denied");
    // In text output the command's status is beside the verdict on the path.
    let output = ammeter(&["wan", "--", "sh", "-c", "exit 7"]);
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.code() == Some(7) && text.contains("the command exited with exit status: 7"), "{text}");
}

/// No router is exact to a nanosecond, so every packet on this path is late.
#[test]
fn path_bound_has_own_status_unless_command_failed() {
    let port = server(10);
    let url = format!("http://10.77.0.1:{port}/");
    let check = |after: &str, expected: i32| {
        let script = format!("curl -s -o /dev/null {url}; exit {after}");
        let words = ["wan", "--late-max", "1ns", "--latency", "1ms"];
        let json = ammeter(&[&words[..], &["--json", "--", "sh", "-c", &script]].concat());
        let errors = String::from_utf8(json.stderr).unwrap();
        let result: Value = serde_json::from_str(errors.lines().last().unwrap()).unwrap();
        assert_eq!(json.status.code(), Some(expected), "{result}");
        assert_eq!(
            (result["verdict"]["validity"].as_str(), result["exit_status"].as_i64()),
            (Some("path-bound"), Some(expected.into()))
        );
        assert_eq!(result["command"]["code"].to_string(), after);
        let text = ammeter(&[&words[..], &["--", "sh", "-c", &script]].concat());
        let errors = String::from_utf8(text.stderr).unwrap();
        assert!(text.status.code() == Some(expected) && errors.contains("ammeter wan: path-bound"), "{errors}");
    };
    check("0", 125);
    check("3", 3);
}

#[test]
fn path_congestion_control_does_not_change_host() {
    let setting = "/proc/sys/net/ipv4/tcp_congestion_control";
    let before = fs::read_to_string(setting).unwrap();
    // TCP_CONGESTION is option 13.
    let serve = "import socket; l = socket.create_server(('', 0)); print(l.getsockname()[1], flush=True)\n\
                 s = l.accept()[0]; print(s.getsockopt(6, 13, 16).strip(b'\\0').decode())";
    let mut server = Command::new("python3").args(["-c", serve]).stdout(Stdio::piped()).spawn().unwrap();
    let mut said = BufReader::new(server.stdout.take().unwrap()).lines().map(Result::unwrap);
    let port = said.next().unwrap();
    let connect = format!(
        "import socket; s = socket.create_connection(('10.77.0.1', {port})); \
         print(s.getsockopt(6, 13, 16).strip(b'\\0').decode())"
    );
    let (text, result, status) = wan(&["--congestion-control", "reno"], &["python3", "-c", &connect]);
    assert_eq!((text.trim(), status), ("reno", 0), "{result}");
    assert_eq!(said.next().as_deref(), Some("reno"));
    assert_eq!(fs::read_to_string(setting).unwrap(), before);
    server.wait().unwrap();
}

#[test]
fn wrong_usage_is_reported_with_hint() {
    let check = |flags: &[&str], says: &str| {
        let output = ammeter(&[&["wan"], flags].concat());
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{flags:?}: {text}");
        assert!(text.contains(says), "{flags:?}: {text}");
    };
    check(&["--latency", "50", "--", "true"], "50ms");
    check(&["--bandwidth", "10mbps", "--", "true"], "10mbit");
    check(&["--loss", "101%", "--", "true"], "0.5%");
    check(&["--queue", "some", "--", "true"], "codel");
    check(&["--profile", "moon", "--", "true"], "transatlantic");
    check(&["--bandwidth", "trace:/no/such/file", "--", "true"], "/no/such/file");
    check(&["--congestion-control", "hope", "--", "true"], "cubic");
    check(&["--latency", "50ms"], "--");
    check(&["--mtu", "100", "--", "true"], "1280");
    for (flag, value, says) in [
        ("--latency", "-5ms", "50ms"),
        ("--latency", "1000h", "hour"),
        ("--latency", "trace:/dev/zero", "/dev/zero"),
        ("--bandwidth", "-1mbit", "10mbit"),
        ("--bandwidth", "0bit", "100%"),
        ("--loss", "-1%", "0.5%"),
        ("--queue", "-3", "codel"),
        ("--queue", "codel:0ms,0ms", "RFC 8289"),
        ("--queue", "red:30KB,90KB", "codel"),
    ] {
        check(&[flag, value, "--", "true"], says);
    }
    let output = ammeter(&["wan", "--pcap", "/no/such/folder/file", "--", "true"]);
    assert_eq!(output.status.code(), Some(125), "the path could not be created");
    assert!(String::from_utf8(output.stderr).unwrap().contains("/no/such/folder/file"));
}

#[test]
fn packets_are_captured_as_pcapng() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("run.pcapng");
    let port = server(10);
    let url = format!("http://10.77.0.1:{port}/");
    let flags = ["--pcap", file.to_str().unwrap(), "--loss", "pattern:...x"];
    let (_, result, _) = curl(&flags, &url, "");
    let bytes = fs::read(&file).unwrap();
    // The magic number of a section, and the cause of a drop.
    assert_eq!(bytes[..4], [0x0a, 0x0d, 0x0d, 0x0a]);
    assert!(count(&result, "up", "lost") > 0, "{result}");
    assert!(bytes.windows(13).any(|text| text == b"dropped: lost"));
}

/// Starts `ammeter wan` with a command that starts others and never ends, and waits until these run.
fn endless(folder: &Path) -> Child {
    let child = endless_behind(&["wan", "--latency", "10ms", "--"], folder);
    assert!(device(&child).exists(), "its device exists");
    child
}

/// The same with these words before the command.
fn endless_behind(words: &[&str], folder: &Path) -> Child {
    let ready = folder.join("ready");
    // A process with an empty environment, such as a server that a script starts.
    let inside = format!("env -i sleep 600 & echo $! > {0}.new; mv {0}.new {0}; wait", ready.display());
    let child = Command::new(env!("CARGO_BIN_EXE_ammeter"))
        .args(words)
        .args(["sh", "-c", &inside])
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    until("the command to start", || ready.exists());
    child
}

fn device(child: &Child) -> PathBuf {
    Path::new("/sys/class/net").join(format!("wan{}", child.id()))
}

fn sleeper(folder: &Path) -> PathBuf {
    Path::new("/proc").join(fs::read_to_string(folder.join("ready")).unwrap().trim()).join("exe")
}

fn is_running(exe: &Path) -> bool {
    // A zombie has no executable.
    fs::read_link(exe).is_ok()
}

fn signal(child: &Child, name: &str) {
    assert!(Command::new("kill").args([name, &child.id().to_string()]).status().unwrap().success());
}

#[test]
fn signal_ends_command_and_leaves_nothing() {
    for name in ["-INT", "-TERM", "-HUP"] {
        let folder = tempfile::tempdir().unwrap();
        let mut child = endless(folder.path());
        let (device, sleeper) = (device(&child), sleeper(folder.path()));
        signal(&child, name);
        assert_eq!(child.wait().unwrap().code(), Some(143), "{name}: the command ends by SIGTERM");
        let mut said = String::new();
        child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        assert!(said.contains("SIGTERM"), "{name}: {said}");
        assert!(!device.exists());
        until("the child of the command to exit", || !is_running(&sleeper));
    }
}

#[test]
fn signal_before_command_starts_ends_it() {
    let command = ["wan", "--", "sleep", "600"];
    let mut child = Command::new(env!("CARGO_BIN_EXE_ammeter")).args(command).stderr(Stdio::null()).spawn().unwrap();
    // The host's end of the path exists; the other end and the command do not.
    until("the network device", || device(&child).exists());
    signal(&child, "-INT");
    assert_eq!(child.wait().unwrap().code(), Some(143));
}

#[test]
fn killed_path_is_cleaned_up() {
    let folder = tempfile::tempdir().unwrap();
    let mut child = endless(folder.path());
    let (device, sleeper) = (device(&child), sleeper(folder.path()));
    signal(&child, "-KILL");
    child.wait().unwrap();
    until("the device to be removed with its program", || !device.exists());
    // The process that the command had started continues without a network until the next `ammeter wan` runs.
    let (_, result, status) = wan(&[], &["true"]);
    assert_eq!(status, 0, "{result}");
    until("the orphaned process to exit", || !is_running(&sleeper));
}

#[test]
fn removed_device_ends_run() {
    let output = ammeter(&["wan", "--", "sh", "-c", "ip link del wan0; exec sleep 600"]);
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(125), "{text}");
    assert!(text.contains("wan0") && text.contains("removed"), "{text}");
}

/// A test bed, removed when dropped.
struct Net {
    folder: tempfile::TempDir,
}

impl Net {
    fn up(description: &str) -> Net {
        let net = Net { folder: tempfile::tempdir().unwrap() };
        let file = net.folder.path().join("net.toml");
        fs::write(&file, description).unwrap();
        let output = net.wan("up", &[file.to_str().unwrap()]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        net
    }

    fn wan(&self, action: &str, words: &[&str]) -> Output {
        let socket = self.folder.path().join("socket");
        ammeter(&[&["wan", action, "--control", socket.to_str().unwrap()], words].concat())
    }

    /// Starts a Python program in the server's namespace.
    fn serve(&self, program: &str) -> Child {
        let socket = self.folder.path().join("socket");
        Command::new(env!("CARGO_BIN_EXE_ammeter"))
            .args(["wan", "exec", "--control", socket.to_str().unwrap(), "server", "--", "python3", "-c", program])
            .stderr(Stdio::null())
            .spawn()
            .unwrap()
    }

    fn exec(&self, class: &str, command: &[&str]) -> (String, Option<i32>) {
        let output = self.wan("exec", &[&[class, "--"], command].concat());
        (String::from_utf8(output.stdout).unwrap(), output.status.code())
    }

    fn status(&self) -> Value {
        serde_json::from_slice(&self.wan("status", &["--json"]).stdout).unwrap()
    }
}

impl Drop for Net {
    fn drop(&mut self) {
        self.wan("down", &[]);
    }
}

const SERVE: &str = "import http.server, socket
class S(http.server.ThreadingHTTPServer):
    address_family = socket.AF_INET6
S(('::', 80), http.server.SimpleHTTPRequestHandler).serve_forever()";

#[test]
fn testbed_classes_have_their_own_paths() {
    let net = Net::up(
        "congestion-control = \"reno\"\n[[class]]\nname = \"near\"\nlatency = \"1ms\"\n\
         [[class]]\nname = \"far\"\nlatency = \"80ms\"\nclients = 3\n",
    );
    let mut server = net.serve(SERVE);
    let curl = |class, more: &[&str]| {
        let plain = ["curl", "-s", "-o", "/dev/null", "-w", "%{time_connect}", "--max-time", "60"];
        net.exec(class, &[&plain, more].concat())
    };
    until("the server to listen", || curl("near", &["http://10.77.0.1/"]).1 == Some(0));
    for more in [&["http://10.77.0.1/", "--interface", "10.79.0.3"][..], &["http://[fd77::1]/"]] {
        let (time, status) = curl("far", more);
        assert_eq!(status, Some(0), "{more:?}");
        assert!(time.parse::<f64>().unwrap() >= 0.16, "{more:?}: {time} s");
    }
    let status = net.status();
    assert_eq!(status["congestion_control"], "reno");
    let paths = status["paths"].clone();
    let entered = |path: usize| paths[path]["up"]["packets"]["entered"].as_u64().unwrap();
    assert_eq!((paths.as_array().unwrap().len(), paths[3]["name"].as_str()), (4, Some("far")));
    assert!(entered(0) > 0 && entered(1) > 0 && entered(3) > 0, "{paths}");
    assert_eq!(entered(2), 0, "the second client's path is unused");
    // The exit status is that of the command.
    assert_eq!(net.exec("near", &["sh", "-c", "exit 7"]).1, Some(7));
    assert!(net.wan("down", &[]).status.success());
    assert!(!server.wait().unwrap().success(), "its processes end with the test bed");
    assert_eq!(net.wan("status", &[]).status.code(), Some(1));
}

#[test]
fn other_host_joins_a_class_and_leaves_nothing() {
    let net = Net::up(
        "[[class]]\nname = \"home\"\nlatency = \"40ms\"\nshared = true\nlisten = \"127.0.0.1:0\"\n[[class]]\nname = \"near\"\n",
    );
    let mut server = net.serve(SERVE);
    let invitation = String::from_utf8(net.wan("invite", &["home"]).stdout).unwrap();
    let words: Vec<&str> = invitation.split_whitespace().collect();
    let ["ammeter", "wan", "join", address, "--key", key, "--congestion-control", "cubic", "--", "COMMAND"] = words[..]
    else {
        panic!("{invitation}")
    };
    let join =
        |key: &str, command: &[&str]| ammeter(&[&["wan", "join", address, "--key", key, "--"], command].concat());
    let plain = ["curl", "-s", "-o", "/dev/null", "-w", "%{time_connect}", "--max-time", "20", "http://10.77.0.1/"];
    until("the server to listen", || net.exec("near", &plain).1 == Some(0));
    let output = join(key, &plain);
    let time: f64 = String::from_utf8_lossy(&output.stdout).parse().unwrap();
    assert!(output.status.success() && time >= 0.08, "{time} s, {}", String::from_utf8_lossy(&output.stderr));
    // A large body in both directions.
    let file = net.folder.path().join("sent");
    fs::write(&file, vec![b'x'; 3_000_000]).unwrap();
    let send = "import socket, sys
data = open(sys.argv[1], 'rb').read()
s = socket.create_connection(('10.77.0.1', 81)); s.sendall(data); s.shutdown(1)
got = b''.join(iter(lambda: s.recv(65536), b''))
sys.exit(0 if got == data[::-1] + b'!' else 1)";
    let reverse = "import socket
l = socket.create_server(('0.0.0.0', 81)); c, _ = l.accept()
data = b''.join(iter(lambda: c.recv(65536), b'')); c.sendall(data[::-1] + b'!')";
    let mut echo = net.serve(reverse);
    until("the port to be open", || net.exec("server", &["sh", "-c", "ss -ltn | grep -q :81"]).1 == Some(0));
    let output = join(key, &["python3", "-c", send, file.to_str().unwrap()]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(echo.wait().unwrap().success());
    // The status is that of the command, and one without the key is not let in.
    assert_eq!(join(key, &["sh", "-c", "exit 7"]).status.code(), Some(7));
    let output = join(&"0".repeat(32), &["true"]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.code() == Some(125) && said.contains("no test bed answers"), "{said}");
    for (class, says) in [("near", "listen = "), ("far", "known: ")] {
        let said = String::from_utf8_lossy(&net.wan("invite", &[class]).stderr).into_owned();
        assert!(said.contains(says), "{said}");
    }
    // Even a killed one leaves nothing: the next one ends its command.
    let folder = tempfile::tempdir().unwrap();
    let mut killed = endless_behind(&["wan", "join", address, "--key", key, "--"], folder.path());
    let exe = sleeper(folder.path());
    assert!(is_running(&exe));
    killed.kill().unwrap();
    killed.wait().unwrap();
    assert!(join(key, &["true"]).status.success());
    until("the command to end", || !is_running(&exe));
    assert_eq!(net.status()["lost_between_hosts"], 0);
    // The address is free at once.
    assert!(net.wan("down", &[]).status.success());
    let again = Net::up(&format!("[[class]]\nname = \"home\"\nshared = true\nlisten = \"{address}\"\n"));
    drop(again);
    assert!(!server.wait().unwrap().success());
}

#[test]
fn thousand_paths_carry_traffic_concurrently() {
    let net = Net::up("[[class]]\nname = \"many\"\nclients = 1000\nlatency = \"20ms\"\nbandwidth = \"1mbit\"\n");
    let send = "import socket
all = [socket.socket(2, 2) for _ in range(1000)]
for n, s in enumerate(all, 1): s.bind((f'10.78.{n >> 8}.{n & 255}', 0))
for _ in range(3):
    for s in all: s.sendto(b'0' * 1000, ('10.77.0.1', 9))";
    assert_eq!(net.exec("many", &["python3", "-c", send]).1, Some(0));
    let left = |status: &Value| -> Vec<u64> {
        let paths = status["paths"].as_array().unwrap();
        paths.iter().map(|path| path["up"]["packets"]["left"].as_u64().unwrap()).collect()
    };
    until("three packets through each path", || left(&net.status()) == [3; 1000]);
    let status = net.status();
    assert_eq!((&status["overflow"], &status["kernel_dropped"]), (&Value::from(0), &Value::from(0)));
}

#[test]
fn bandwidth_changes_at_run_time() {
    let net = Net::up("[[class]]\nname = \"a\"\nbandwidth = \"1gbit\"\n");
    // 20,000 bytes, which the sender hands over at once.
    let send = "import socket; s = socket.socket(2, 2); [s.sendto(b'0' * 1000, ('10.77.0.1', 9)) for _ in range(20)]";
    let send = ["python3", "-c", send];
    assert_eq!(net.exec("a", &send).1, Some(0));
    let delay = |status: Value| status["paths"][0]["up"]["delay_max_ms"].as_f64().unwrap();
    until("the packets to arrive", || net.status()["paths"][0]["up"]["packets"]["left"].as_u64() >= Some(20));
    let before = delay(net.status());
    assert!(net.wan("set", &["a", "--bandwidth", "200kbit"]).status.success());
    assert_eq!(net.exec("a", &send).1, Some(0));
    until("the packets to arrive", || net.status()["paths"][0]["up"]["packets"]["left"].as_u64() >= Some(40));
    let after = delay(net.status());
    // 20 packets of 1028 bytes take 822 ms at 200 kbit/s, and 164 us at 1 Gbit/s. A slow sender reduces the delay.
    assert!(after > 100.0 && after > 10.0 * before, "{before} ms, then {after}");
    assert_eq!(net.wan("set", &["b", "--bandwidth", "1mbit"]).status.code(), Some(1));
}

#[test]
fn invalid_testbed_is_reported() {
    let net = Net::up("[[class]]\nname = \"a\"\n");
    let file = net.folder.path().join("net.toml");
    let check = |action: &str, words: &[&str], status: i32, says: &str| {
        let output = net.wan(action, words);
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(status), "{action} {words:?}: {text}");
        assert!(text.contains(says), "{action} {words:?}: {text}");
    };
    check("up", &[file.to_str().unwrap()], 1, "already up");
    check("exec", &["b", "--", "true"], 125, "server, a");
    check("exec", &["a", "--", "/no/such/program"], 127, "/no/such/program");
    check("up", &["/no/such/file"], 2, "/no/such/file");
    check("set", &["a", "--bandwidth", "-3mbit"], 2, "10mbit");
    check("set", &["a", "--bandwidth", "trace:/etc/passwd"], 2, "live");
    check("set", &["server", "--bandwidth", "3mbit"], 1, "known: a");
    fs::write(&file, "[[class]]\nname = \"a\"\nlatency = \"50\"\n").unwrap();
    check("up", &[file.to_str().unwrap()], 2, "50ms");
    assert!(net.wan("down", &[]).status.success());
    check("down", &[], 1, "ammeter wan up");
    fs::write(&file, "[[class]]\nname = \"a\"\n").unwrap();
    check("up", &["--pcap", "/no/such/folder/file", file.to_str().unwrap()], 1, "/no/such/folder/file");
    check("status", &[], 1, "ammeter wan up");
    fs::write(net.folder.path().join("socket"), "not a socket").unwrap();
    check("up", &[file.to_str().unwrap()], 1, "--control");
}

#[test]
fn leftovers_of_killed_testbed_do_not_block_next() {
    let net = Net { folder: tempfile::tempdir().unwrap() };
    let (file, socket) = (net.folder.path().join("net.toml"), net.folder.path().join("socket"));
    fs::write(&file, "[[class]]\nname = \"a\"\n").unwrap();
    let words = ["wan", "up", "--foreground", "--control", socket.to_str().unwrap(), file.to_str().unwrap()];
    let mut first = Command::new(env!("CARGO_BIN_EXE_ammeter"))
        .args(words)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    until("the test bed to start", || net.wan("status", &[]).status.success());
    let mut left = Command::new(env!("CARGO_BIN_EXE_ammeter"))
        .args(["wan", "exec", "--control", socket.to_str().unwrap(), "a", "--", "sleep", "600"])
        .spawn()
        .unwrap();
    let name = Path::new("/proc").join(left.id().to_string()).join("comm");
    until("the command to run", || fs::read_to_string(&name).is_ok_and(|name| name == "sleep\n"));
    first.kill().unwrap();
    first.wait().unwrap();
    assert_eq!(net.wan("status", &[]).status.code(), Some(1));
    let output = net.wan("up", &[file.to_str().unwrap()]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(!left.wait().unwrap().success(), "the orphaned process is killed");
}

#[test]
fn alone_selftest_reports_requested_and_measured_values() {
    let words = [
        "wan",
        "selftest",
        "--json",
        "--latency=20ms",
        "--bandwidth=10mbit",
        "--loss=2%",
        "--tcp=300ms",
        "--attempts=1",
    ];
    let output = ammeter(&words);
    let text = String::from_utf8(output.stdout).unwrap();
    let trials: Value =
        serde_json::from_str(&text).unwrap_or_else(|_| panic!("{}", String::from_utf8_lossy(&output.stderr)));
    let figure = |name: &str| trials[0][name].as_f64().unwrap();
    // 1428 bytes at 10 Mbit/s take 1.1424 ms; nothing can arrive earlier.
    assert!((figure("delay_asked_ms") - 21.1424).abs() < 1e-6, "{text}");
    assert!(figure("delay_got_ms") >= 21.1424 && figure("delay6_got_ms") >= 21.1424, "{text}");
    // On a shared machine receivers wake up late and lose packets to full buffers; the average is the rate.
    let rate = figure("rate_got_mbit") / figure("rate_asked_mbit");
    assert!((0.5..2.0).contains(&rate), "{text}");
    assert!(figure("loss_got") > 0.005 && figure("tcp_mbit") > 0.0, "{text}");
}

/// Everything that this program could leave behind on this host: devices, named namespaces, namespaces with processes,
/// programs outside this namespace, and copies of itself.
fn around() -> BTreeSet<String> {
    let here = fs::read_link("/proc/self/ns/net").unwrap();
    let own = fs::canonicalize(env!("CARGO_BIN_EXE_ammeter")).unwrap();
    let devices = fs::read_dir("/sys/class/net").unwrap().flatten();
    let mut all: BTreeSet<String> = devices.map(|device| format!("device {:?}", device.file_name())).collect();
    let netns = Command::new("ip").args(["netns", "list"]).output().unwrap();
    all.extend(String::from_utf8(netns.stdout).unwrap().lines().map(|line| format!("named {line}")));
    for process in fs::read_dir("/proc").unwrap().flatten() {
        let name = process.file_name().into_string().unwrap();
        // A zombie is in no namespace.
        let Ok(namespace) = fs::read_link(process.path().join("ns/net")) else { continue };
        if fs::read_link(process.path().join("exe")).is_ok_and(|exe| exe == own) {
            all.insert(format!("ammeter {name}"));
        }
        if namespace != here {
            all.insert(format!("program {name}"));
        }
        all.insert(format!("namespace {}", namespace.display()));
    }
    all
}

/// Starts `ammeter wan` with a shell command, and waits until packets pass.
fn under_traffic(flags: &[&str], inside: &str) -> Child {
    let child = Command::new(env!("CARGO_BIN_EXE_ammeter"))
        .args([&["wan"], flags, &["--", "sh", "-c", inside]].concat())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let bytes = device(&child).join("statistics/rx_bytes");
    until("traffic through the path", || {
        fs::read_to_string(&bytes).is_ok_and(|count| count.trim().parse::<u64>().unwrap() > 100_000)
    });
    child
}

#[test]
fn alone_failure_under_traffic_restores_network() {
    // More than passes during the test.
    let port = server(20_000_000);
    let before = around();
    let as_before = |what: &str| until(what, || around().is_subset(&before));
    let fetch = format!(
        "curl -s -o /dev/null http://10.77.0.1:{port}/ & env -i curl -s -o /dev/null http://[fd77::1]:{port}/ & wait"
    );
    // Packets that arrive at this host's device come from the client, which floods.
    let flood =
        "env -i bash -c 'exec 3>/dev/udp/10.77.0.1/9; while :; do echo 1234567890 >&3; done' 2> /dev/null & wait";
    for inside in [flood, &format!("{flood} & {fetch}")] {
        // Two floods, and a queue that is too short for them.
        let inside = format!("{inside} & {inside}");
        let flags = ["--latency", "5ms", "--bandwidth", "5mbit", "--queue", "20"];

        let mut killed = under_traffic(&flags, &inside);
        signal(&killed, "-KILL");
        killed.wait().unwrap();
        until("the device to be removed with its program", || !device(&killed).exists());
        assert_eq!(wan(&[], &["true"]).2, 0);
        as_before("the network to be restored after SIGKILL and a start");

        let mut removed = under_traffic(&flags, &inside);
        let name = device(&removed).file_name().unwrap().to_owned();
        assert!(Command::new("ip").args(["link", "del"]).arg(name).status().unwrap().success());
        assert_eq!(removed.wait().unwrap().code(), Some(125));
        let mut said = String::new();
        removed.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        assert!(said.contains("removed"), "{said}");
        as_before("the network to be restored after the device was removed");

        let mut interrupted = under_traffic(&flags, &inside);
        signal(&interrupted, "-INT");
        interrupted.wait().unwrap();
        as_before("the network to be restored after Ctrl-C");
    }

    let net = Net { folder: tempfile::tempdir().unwrap() };
    let (file, socket) = (net.folder.path().join("net.toml"), net.folder.path().join("socket"));
    fs::write(&file, "[[class]]\nname = \"a\"\n").unwrap();
    let ready = net.folder.path().join("ready");
    let up = || {
        let words = ["wan", "up", "--foreground", "--control", socket.to_str().unwrap(), file.to_str().unwrap()];
        let quiet = || Stdio::null();
        let bed =
            Command::new(env!("CARGO_BIN_EXE_ammeter")).args(words).stdout(quiet()).stderr(quiet()).spawn().unwrap();
        until("the test bed to start", || net.wan("status", &[]).status.success());
        bed
    };
    let mut bed = up();
    let words = ["wan", "exec", "--control", socket.to_str().unwrap(), "a", "--", "sh", "-c", flood];
    let mut client = Command::new(env!("CARGO_BIN_EXE_ammeter")).args(words).spawn().unwrap();
    let entered = || net.status()["paths"][0]["up"]["packets"]["entered"].as_u64();
    until("traffic through the path", || entered() > Some(1000));
    bed.kill().unwrap();
    bed.wait().unwrap();
    let mut next = up();
    client.wait().unwrap();
    // Removed from within, the client's device makes the namespace useless.
    net.exec("a", &["sh", "-c", &format!("ip link del wan0; touch {}", ready.display())]);
    assert_eq!(next.wait().unwrap().code(), Some(1));
    assert!(!socket.exists());
    as_before("the network to be restored after a killed test bed and a removed device");
}

#[test]
fn unprivileged_user_gets_testbed_or_one_line_error() {
    // A directory that every user can enter, wherever this was built.
    let folder = tempfile::tempdir_in("/tmp").unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).unwrap();
    let program = folder.path().join("ammeter");
    // Copied by another process: a child of another test could inherit a descriptor that is open for writing here, and
    // a file that is open for writing cannot be executed (ETXTBSY).
    assert!(Command::new("cp").arg(env!("CARGO_BIN_EXE_ammeter")).arg(&program).status().unwrap().success());
    let file = folder.path().join("net.toml");
    fs::write(&file, "[[class]]\nname = \"a\"\nlatency = \"20ms\"\n").unwrap();
    let socket = folder.path().join("socket");
    let ammeter = |words: &[&str]| {
        let mut command = Command::new("setpriv");
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).arg(&program).arg("wan").args(words);
        command.current_dir("/").output().unwrap()
    };
    let errors = |output: &Output| String::from_utf8_lossy(&output.stderr).trim().to_owned();
    // This user may not change the host's network.
    let output = ammeter(&["--latency", "5ms", "--", "true"]);
    assert_eq!(output.status.code(), Some(125));
    assert!(errors(&output).contains("sudo") && errors(&output).lines().count() == 1, "{}", errors(&output));

    let control = ["--control", socket.to_str().unwrap()];
    let output = ammeter(&[&["up"], &control[..], &[file.to_str().unwrap()]].concat());
    if !output.status.success() {
        // On this machine the device, or user namespaces, require root.
        assert!(errors(&output).contains("sudo") && errors(&output).lines().count() == 1, "{}", errors(&output));
        return;
    }
    let ping = "import socket, time
s = socket.socket(2, 2); t = time.monotonic()
s.sendto(b'x', ('10.77.0.1', 9))
try: s.connect(('10.77.0.1', 9)); s.send(b'x'); s.recv(1)
except ConnectionRefusedError: pass
print(time.monotonic() - t)";
    let output = ammeter(&[&["exec"], &control[..], &["a", "--", "python3", "-c", ping]].concat());
    // No process listens at this port, and the kernel at the other end refuses after a round trip.
    let took: f64 =
        String::from_utf8_lossy(&output.stdout).trim().parse().unwrap_or_else(|_| panic!("{}", errors(&output)));
    assert!(took >= 0.04, "{took} s");
    assert!(ammeter(&[&["down"], &control[..]].concat()).status.success());
}
