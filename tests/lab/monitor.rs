//! `ammeter monitor`, `profile` and `overhead` against known values: connections in each state, a full listen queue
//! with a known number of drops, a thread with a known CPU share, a reader of a known number of bytes.
//!
//! Sockets live in a network namespace of their own, so that counters start at zero and count no other process.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rustix::net::{self, AddressFamily, SocketFlags, SocketType};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use rustix::time::{ClockId, clock_gettime};
use serde_json::Value;

use super::ports::free_addresses;
use super::{ammeter, said, until};

/// A network namespace, removed when dropped.
struct Namespace(String);

impl Namespace {
    fn new(name: &str) -> Namespace {
        let namespace = Namespace(format!("ammeter-{name}-{}", std::process::id()));
        ip(&["netns", "add", &namespace.0]);
        namespace.loopback("up");
        namespace
    }

    fn loopback(&self, state: &str) {
        ip(&["-n", &self.0, "link", "set", "lo", state]);
    }

    /// Runs a closure within it, in a thread of its own.
    fn within<T: Send>(&self, what: impl FnOnce() -> T + Send) -> T {
        let namespace = File::open(format!("/run/netns/{}", self.0)).unwrap();
        std::thread::scope(|scope| {
            let inside = scope.spawn(|| {
                move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
                what()
            });
            inside.join().unwrap()
        })
    }

    fn ammeter(&self, words: &[&str]) -> Output {
        self.within(|| ammeter(words))
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "del", &self.0]).status();
    }
}

fn ip(words: &[&str]) {
    let status = Command::new("ip").args(words).status().expect("the program `ip` (Debian package iproute2)");
    assert!(status.success(), "ip {words:?}: network namespaces need root");
}

fn ticks(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Arguments of a watch with a short interval, whatever its overhead.
fn watch<'a>(port: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    [&["monitor", "--port", port, "--json", "--interval", "50ms", "--budget", "100%"], more].concat()
}

/// Returns the last tick of a short watch.
fn last_tick(namespace: &Namespace, port: u16) -> Value {
    let port = port.to_string();
    let output = namespace.ammeter(&watch(&port, &["--census", "50ms", "--duration", "300ms"]));
    let (text, status) = said(&output);
    assert_eq!(status, 0, "{}", String::from_utf8_lossy(&output.stderr));
    ticks(&text).pop().expect("a tick")
}

/// Opens this many connections to the listener: the clients' ends and the server's ends.
fn pairs(listener: &TcpListener, count: usize) -> Vec<(TcpStream, TcpStream)> {
    let address = listener.local_addr().unwrap();
    (0..count).map(|_| (TcpStream::connect(address).unwrap(), listener.accept().unwrap().0)).collect()
}

#[test]
fn connections_are_counted_by_state() {
    let namespace = Namespace::new("states");
    for address in ["127.0.0.1:0", "[::1]:0"] {
        namespace.loopback("up");
        // A new loopback device takes a moment to check its IPv6 address.
        let mut bound = None;
        until("the address of the loopback device", || {
            bound = namespace.within(|| TcpListener::bind(address)).ok();
            bound.is_some()
        });
        let listener = bound.unwrap();
        let port = listener.local_addr().unwrap().port();
        let make = |count| namespace.within(|| pairs(&listener, count));
        let established = make(7);
        // The client closes first, and the server has not closed its end yet.
        let close_wait: Vec<TcpStream> = make(3).into_iter().map(|(_, server)| server).collect();
        let last_ack: Vec<TcpStream> = make(6).into_iter().map(|(_, server)| server).collect();
        // The server shuts down its sending side, and the client stays open.
        let fin_wait_2 = make(4);
        fin_wait_2.iter().for_each(|(_, server)| server.shutdown(Shutdown::Write).unwrap());
        // The server closes first, then the client.
        for (client, server) in make(5) {
            drop(server);
            drop(client);
        }
        let fin_wait_1 = make(2);
        let states = |expected: &[(&str, u64)]| {
            let tick = last_tick(&namespace, port);
            let found = tick["census"]["states"].as_object().unwrap();
            found.len() == expected.len()
                && expected.iter().all(|(state, count)| found.get(*state).and_then(Value::as_u64) == Some(*count))
        };
        until("the expected connection states", || {
            states(&[("established", 9), ("close_wait", 9), ("fin_wait_2", 4), ("time_wait", 5)])
        });
        // From here on no packet arrives: an end that closes waits for an acknowledgement.
        namespace.loopback("down");
        last_ack.iter().for_each(|server| server.shutdown(Shutdown::Write).unwrap());
        fin_wait_1.iter().for_each(|(_, server)| server.shutdown(Shutdown::Write).unwrap());
        until("the expected connection states without network", || {
            states(&[
                ("established", 7),
                ("close_wait", 3),
                ("fin_wait_2", 4),
                ("time_wait", 5),
                ("fin_wait_1", 2),
                ("last_ack", 6),
            ])
        });
        drop((established, close_wait, last_ack, fin_wait_2, fin_wait_1));
    }
}

/// Sends SYN segments from this address, one from each port, without receiving the replies.
fn begin_from(source: std::net::Ipv4Addr, to: std::net::SocketAddrV4, ports: std::ops::Range<u16>) {
    let socket = net::socket_with(AddressFamily::INET, SocketType::RAW, SocketFlags::CLOEXEC, Some(net::ipproto::RAW));
    let socket = socket.unwrap();
    for port in ports {
        // RFC 9293, 3.1: ports, sequence number, no acknowledgement, five words, SYN, window, checksum, nothing urgent.
        let mut tcp = [&port.to_be_bytes()[..], &to.port().to_be_bytes(), &[0, 0, 0, 1], &[0; 4], &[0x50, 2]].concat();
        tcp.extend([0xff, 0xff, 0, 0, 0, 0]);
        let pseudo = [&source.octets()[..], &to.ip().octets(), &[0, 6, 0, tcp.len() as u8], &tcp].concat();
        let mut sum: u32 = pseudo.chunks(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum();
        while sum > 0xffff {
            sum = (sum & 0xffff) + (sum >> 16);
        }
        tcp[16..18].copy_from_slice(&(!(sum as u16)).to_be_bytes());
        // RFC 791, 3.1; the kernel sets the length and the checksum.
        let mut packet = vec![0x45, 0, 0, 0, 0, 0, 0, 0, 64, 6, 0, 0];
        packet.extend(source.octets());
        packet.extend(to.ip().octets());
        packet.extend(tcp);
        net::sendto(&socket, &packet, net::SendFlags::empty(), &SocketAddr::from((*to.ip(), 0))).unwrap();
    }
}

#[test]
fn half_open_connections_are_counted() {
    let namespace = Namespace::new("begun");
    let name = &namespace.0;
    // A veth pair whose other end accepts every packet, and a neighbour that does not exist: replies to it are lost.
    ip(&["-n", name, "link", "add", "here", "type", "veth", "peer", "name", "there"]);
    ip(&["-n", name, "address", "add", "10.9.0.1/24", "dev", "here"]);
    ip(&["-n", name, "link", "set", "here", "up"]);
    ip(&["-n", name, "link", "set", "there", "up"]);
    let nobody = ["-n", name, "neighbour", "add", "10.9.0.77", "lladdr", "02:00:00:00:00:77", "dev", "here"];
    ip(&[&nobody[..], &["nud", "permanent"]].concat());
    let listener = namespace.within(|| TcpListener::bind("10.9.0.1:0").unwrap());
    let SocketAddr::V4(address) = listener.local_addr().unwrap() else { unreachable!() };
    namespace.within(|| begin_from([10, 9, 0, 77].into(), address, 40_000..40_006));
    // From the server's port, at another address of its host, to a listener with a full queue: the SYN receives no
    // reply.
    let tcp =
        |flags| net::socket_with(AddressFamily::INET, SocketType::STREAM, flags | SocketFlags::CLOEXEC, None).unwrap();
    let (full, waiting, asking) = namespace.within(|| {
        let full = tcp(SocketFlags::empty());
        net::bind(&full, &SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
        net::listen(&full, 0).unwrap();
        let to = SocketAddr::try_from(net::getsockname(&full).unwrap()).unwrap();
        let waiting = TcpStream::connect(to).unwrap();
        let asking: Vec<OwnedFd> = (2..5)
            .map(|host| {
                let socket = tcp(SocketFlags::NONBLOCK);
                net::bind(&socket, &SocketAddr::from(([127, 0, 0, host], address.port()))).unwrap();
                let _ = net::connect(&socket, &to);
                socket
            })
            .collect();
        (full, waiting, asking)
    });
    let held = namespace.within(|| pairs(&listener, 2));
    until("the expected connection states", || {
        let tick = last_tick(&namespace, address.port());
        let expected = serde_json::json!({ "established": 2, "syn_received": 6, "syn_sent": 3 });
        tick["census"]["states"] == expected
    });
    drop((held, full, waiting, asking));
}

#[test]
fn full_accept_queue_shows_length_limit_and_drops() {
    let namespace = Namespace::new("queue");
    let tcp =
        |flags| net::socket_with(AddressFamily::INET, SocketType::STREAM, flags | SocketFlags::CLOEXEC, None).unwrap();
    let (listener, address) = namespace.within(|| {
        let listener = tcp(SocketFlags::empty());
        net::bind(&listener, &SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
        net::listen(&listener, 4).unwrap();
        let address = SocketAddr::try_from(net::getsockname(&listener).unwrap()).unwrap();
        (listener, address)
    });
    // The kernel admits one connection more than the limit and drops the rest, each with its single SYN.
    let ask = |count: usize| -> Vec<OwnedFd> {
        namespace.within(|| {
            let begin = |_| {
                let socket = tcp(SocketFlags::NONBLOCK);
                let _ = net::connect(&socket, &address);
                socket
            };
            (0..count).map(begin).collect()
        })
    };
    let waiting = ask(5);
    drop(ask(7));
    let tick = last_tick(&namespace, address.port());
    let found = &tick["listeners"][0];
    let numbers = ["depth", "limit", "drops_total"].map(|name| found[name].as_u64().unwrap());
    assert_eq!((numbers, found["address"].as_str()), ([5, 4, 7], Some(address.to_string().as_str())), "{tick}");
    drop((waiting, listener));
}

/// `ammeter monitor --pid` of this process, as JSON.
struct Watch {
    child: Child,
    lines: std::io::Lines<BufReader<std::process::ChildStdout>>,
}

impl Watch {
    fn this_process(interval: &str) -> Watch {
        let pid = std::process::id().to_string();
        let mut child = Command::new(env!("CARGO_BIN_EXE_ammeter"))
            .args(["monitor", "--pid", &pid, "--json", "--budget", "100%", "--duration", "10m", "--interval", interval])
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Watch { child, lines }
    }

    fn next(&mut self) -> Value {
        serde_json::from_str(&self.lines.next().expect("a tick").unwrap()).unwrap()
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The time of the clock that ticks use, in seconds.
fn wall_s() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64()
}

/// When a tick began and when it was taken, by that clock.
fn span_s(tick: &Value) -> (f64, f64) {
    let end = tick["wall_ms"].as_f64().unwrap() / 1e3;
    (end - tick["interval_s"].as_f64().unwrap(), end)
}

#[test]
fn alone_cpu_share_of_thread_is_accurate() {
    static ENOUGH: AtomicBool = AtomicBool::new(false);
    // The CPU time that it used, and when: the scheduler decides how much it gets, and that may vary.
    let spin = || {
        let used = || Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap().as_secs_f64();
        let (begun, mut diary) = (wall_s(), vec![(wall_s(), used())]);
        while !ENOUGH.load(Ordering::Relaxed) {
            let entry = (wall_s(), used());
            if entry.0 > diary[diary.len() - 1].0 + 0.001 {
                diary.push(entry);
            }
            if entry.1 > 0.3 * (entry.0 - begun) {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        diary.push((wall_s(), used()));
        diary
    };
    let thread = std::thread::Builder::new().name("spinner".to_owned()).spawn(spin).unwrap();
    let mut watch = Watch::this_process("200ms");
    let (mut ran, mut first, mut last) = (0.0, f64::MAX, 0.0f64);
    for _ in 0..10 {
        let tick = watch.next();
        let threads = tick["threads"].as_array().unwrap();
        let spinner = threads.iter().find(|thread| thread["name"] == "spinner").expect("the thread");
        let (from, to) = span_s(&tick);
        ran += spinner["run"].as_f64().unwrap() * (to - from);
        (first, last) = (first.min(from), last.max(to));
        assert!(threads.iter().all(|thread| thread["name"] != "ammeter"), "the monitor is not the server: {tick}");
    }
    ENOUGH.store(true, Ordering::Relaxed);
    let diary = thread.join().unwrap();
    let used_by = |at: f64| {
        let after = diary.partition_point(|(when, _)| *when < at).clamp(1, diary.len() - 1);
        let ((from, low), (to, high)) = (diary[after - 1], diary[after]);
        low + (high - low) * ((at - from) / (to - from)).clamp(0.0, 1.0)
    };
    let truth = used_by(last) - used_by(first);
    assert!((0.8..1.25).contains(&(ran / truth)), "used {truth} s in {} s, seen {ran} s", last - first);
}

#[test]
fn disk_reads_are_measured() {
    const BYTES: u64 = 32 << 20;
    let folder = tempfile::tempdir_in(".").unwrap();
    let path = folder.path().join("file");
    fs::write(&path, vec![7; BYTES as usize]).unwrap();
    let mut file = File::open(&path).unwrap();
    file.sync_all().unwrap();
    let own = || {
        let text = fs::read_to_string("/proc/self/io").unwrap();
        text.lines().find_map(|line| line.strip_prefix("read_bytes: ")).unwrap().parse::<u64>().unwrap()
    };
    let mut watch = Watch::this_process("100ms");
    let (mut seen, mut of_disks) = (0.0, 0.0);
    let mut add = |tick: &Value| {
        let seconds = tick["interval_s"].as_f64().unwrap();
        let sum = |list: &Value| {
            list.as_array().unwrap().iter().map(|one| one["read_bytes_per_s"].as_f64().unwrap_or(0.0)).sum::<f64>()
        };
        seen += sum(&tick["processes"]) * seconds;
        of_disks += sum(&tick["disks"]) * seconds;
    };
    add(&watch.next());
    let before = own();
    // On a busy machine other processes hold pages for a moment, and these are not evicted.
    until("a file that is read from disk; if the build directory is not on a disk, build elsewhere", || {
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
        std::io::Seek::rewind(&mut file).unwrap();
        std::io::copy(&mut file, &mut std::io::sink()).unwrap();
        own() - before >= BYTES
    });
    let (truth, read_by) = ((own() - before) as f64, wall_s());
    // Sums everything reported, up to the first tick taken after it.
    loop {
        let tick = watch.next();
        add(&tick);
        if span_s(&tick).1 > read_by {
            break;
        }
    }
    assert!((0.9..1.1).contains(&(seen / truth)), "read {truth}, seen {seen}");
    assert!(of_disks > 0.9 * truth, "read {truth}, of disks {of_disks}");
}

/// A monitor of this process that serves its metrics at an address.
struct Published {
    child: Child,
    address: SocketAddr,
}

impl Published {
    fn start(more: &[&str]) -> Published {
        let pid = std::process::id().to_string();
        let mut child = Command::new(env!("CARGO_BIN_EXE_ammeter"))
            .args(["monitor", "--pid", &pid, "--json", "--metrics-listen", "127.0.0.1:0"])
            .args(more)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map_while(Result::ok);
        let address =
            lines.find_map(|line| line.strip_prefix("metrics on http://")?.strip_suffix("/metrics")?.parse().ok());
        std::thread::spawn(move || lines.for_each(drop));
        Published { child, address: address.expect("a line with its address") }
    }

    /// Returns the media type and the page, as curl received them.
    fn page(&self) -> String {
        let url = format!("http://{}/metrics", self.address);
        let words = ["--silent", "--show-error", "--fail", "--max-time", "60", "--write-out", "%{content_type}", &url];
        let output = Command::new("curl").args(words).output().expect("the program `curl`");
        let (text, status) = said(&output);
        assert_eq!(status, 0, "{}", String::from_utf8_lossy(&output.stderr));
        text
    }
}

impl Drop for Published {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The value of the only sample whose line begins so.
fn of_page(page: &str, name: &str) -> f64 {
    let line = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("no {name} in\n{page}")).parse().unwrap()
}

#[test]
fn collectors_receive_samples() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let held = pairs(&listener, 3);
    let mut published = Published::start(&["--interval", "50ms", "--budget", "100%"]);
    // A full pipe would stop the monitor.
    let lines = BufReader::new(published.child.stdout.take().unwrap()).lines().map_while(Result::ok);
    std::thread::spawn(move || lines.for_each(drop));
    let mut page = String::new();
    until("two samples", || {
        page = published.page();
        of_page(&page, "ammeter_ticks_total") >= 2.0
    });
    let end = "# EOF\napplication/openmetrics-text; version=1.0.0; charset=utf-8";
    assert!(page.ends_with(end), "{page}");
    assert!(page.contains(&format!("ammeter_watch_info{{target=\"process {}\"}} 1", std::process::id())));
    // Other tests in this process may have connections too.
    assert!(of_page(&page, "ammeter_connections{state=\"established\"}") >= 3.0, "{page}");
    assert_eq!(of_page(&page, "ammeter_connections{state=\"syn_sent\"}"), 0.0, "{page}");
    assert!(page.contains(&format!("ammeter_listen_queue_depth{{address=\"{}\",", listener.local_addr().unwrap())));
    assert!(
        of_page(&page, "ammeter_own_cpu_seconds_total") > 0.0 && page.contains("ammeter_thread_run_seconds_total{pid=")
    );
    // Counters only increase.
    let before = of_page(&page, "ammeter_cpu_seconds_total{mode=\"user\"}");
    until("a later sample", || {
        of_page(&published.page(), "ammeter_ticks_total") > of_page(&page, "ammeter_ticks_total")
    });
    assert!(of_page(&published.page(), "ammeter_cpu_seconds_total{mode=\"user\"}") >= before);
    drop((held, published));
    let check = |words: &[&str], status: i32, part: &str| {
        let output = ammeter(&[&["monitor", "--port", "1"], words].concat());
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(status) && text.contains(part), "{words:?}: {text}");
    };
    check(&["--metrics-listen", "9146"], 2, "127.0.0.1:9146");
    check(&["--metrics-public"], 2, "--metrics-listen");
    let taken = listener.local_addr().unwrap().to_string();
    let own = std::process::id().to_string();
    let output = ammeter(&["monitor", "--pid", &own, "--metrics-listen", &taken]);
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.code() == Some(1) && text.contains("another program listens there"), "{text}");
    let output = ammeter(&["monitor", "--pid", &own, "--metrics-listen", "0.0.0.0:0"]);
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.code() == Some(2) && text.contains("--metrics-public"), "{text}");
}

#[test]
fn alone_slow_collectors_delay_no_tick() {
    let mut published = Published::start(&["--interval", "100ms", "--budget", "20%"]);
    let mut lines = BufReader::new(published.child.stdout.take().unwrap()).lines();
    let mut ticks = |count: usize| {
        let begun = Instant::now();
        lines.by_ref().take(count).for_each(drop);
        begun.elapsed().as_secs_f64()
    };
    ticks(3);
    let quiet = ticks(15);
    let enough = std::sync::Arc::new(AtomicBool::new(false));
    let address = published.address;
    // Some clients send nothing, some never stop, some send request after request and read no response.
    let silent: Vec<TcpStream> = (0..4).map(|_| TcpStream::connect(address).unwrap()).collect();
    let hostile: Vec<_> = (0..4)
        .map(|number| {
            let enough = enough.clone();
            std::thread::spawn(move || {
                while !enough.load(Ordering::Relaxed) {
                    let Ok(mut client) = TcpStream::connect(address) else { continue };
                    let _ = client.set_write_timeout(Some(Duration::from_millis(100)));
                    let _ = client.write_all(b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n");
                    while number % 2 == 0 && !enough.load(Ordering::Relaxed) && client.write_all(&[b'x'; 4096]).is_ok()
                    {
                    }
                }
            })
        })
        .collect();
    let busy = ticks(15);
    enough.store(true, Ordering::Relaxed);
    hostile.into_iter().for_each(|thread| thread.join().unwrap());
    assert!(busy < 2.0 * quiet, "15 ticks took {busy} s beside {quiet} s");
    drop(silent);
}

#[test]
fn closed_output_pipe_ends_monitor() {
    let pid = std::process::id().to_string();
    for form in ["--json", "--csv", "--lines"] {
        let mut child = Command::new(env!("CARGO_BIN_EXE_ammeter"))
            .args(["monitor", "--pid", &pid, form, "--interval", "50ms", "--budget", "100%"])
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let mut ended = None;
        until("the monitor to end", || {
            ended = child.try_wait().unwrap();
            ended.is_some()
        });
        assert!(ended.unwrap().success() && !line.is_empty(), "{form}: {ended:?}");
    }
}

#[test]
fn recording_replays_same_output_even_if_truncated() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port().to_string();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.zst");
    let name = path.to_str().unwrap();
    let words = watch(&port, &["--duration", "1s", "--record", name]);
    let (live, status) = said(&ammeter(&words));
    assert!(status == 0 && live.lines().count() >= 3, "{live}");
    assert_eq!(said(&ammeter(&["monitor", "--replay", name, "--json"])), (live.clone(), 0));
    let (csv, _) = said(&ammeter(&["monitor", "--replay", name, "--csv"]));
    assert_eq!(csv.lines().count(), live.lines().count() + 1);
    // A record is never overwritten.
    assert_eq!(ammeter(&words).status.code(), Some(2));
    // A truncated record shows its complete ticks; the end of a tick depends on the number of programs.
    let whole = fs::read(&path).unwrap();
    let shown = (1..10).map(|tenths| {
        fs::write(&path, &whole[..whole.len() * tenths / 10]).unwrap();
        let output = ammeter(&["monitor", "--replay", name, "--json"]);
        let (cut, status) = said(&output);
        assert!(
            status == 1 && String::from_utf8_lossy(&output.stderr).contains("is truncated"),
            "{tenths} tenths: {cut}"
        );
        assert!(live.starts_with(&cut), "{tenths} tenths: {cut}");
        cut.len()
    });
    let shown: Vec<usize> = shown.collect();
    assert!(shown.iter().any(|length| (1..live.len()).contains(length)), "{shown:?} of {}", live.len());
}

#[test]
fn shortest_duration_has_one_tick() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port().to_string();
    let (text, status) = said(&ammeter(&watch(&port, &["--duration", "1ms"])));
    assert_eq!((ticks(&text).len(), status), (1, 0), "{text}");
}

#[test]
fn wrong_usage_is_reported_with_hint() {
    let check = |words: &[&str], status: i32, part: &str| {
        let output = ammeter(words);
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(status), "{words:?}: {text}");
        assert!(text.contains(part), "{words:?}: {text}");
    };
    let [unused] = free_addresses();
    let port = unused.port().to_string();
    let folder = tempfile::tempdir().unwrap();
    let noise = folder.path().join("noise");
    fs::write(&noise, "no record").unwrap();
    check(&["monitor", "--port", &port], 1, "no process listens on");
    check(&["profile", "--port", &port, "--duration", "1s"], 1, "no process listens on");
    check(&["overhead", "--port", &port], 1, "no process listens on");
    let own = std::process::id().to_string();
    check(&["profile", "--pid", &own, "--duration", "1h", "--svg", "/nowhere/a.svg"], 1, "/nowhere/a.svg");
    check(&["monitor", "--pid", "4000000"], 1, "no process 4000000");
    check(&["monitor", "--json"], 2, "--port 8080");
    check(&["monitor", "--port", "0"], 2, "0");
    check(&["monitor", "--port", "1", "--interval", "0s"], 2, "50ms");
    check(&["monitor", "--port", "1", "--budget", "0"], 2, "0.5%");
    check(&["monitor", "--replay", noise.to_str().unwrap()], 1, "is not a recording");
    check(&["monitor", "--replay", "/nowhere/record"], 1, "/nowhere/record");
    let (text, status) = said(&ammeter(&["profile"]));
    assert!(status == 0 && text.contains("Examples"), "{text}");
}

#[test]
fn server_exit_keeps_collected_samples() {
    let mut server = Command::new("sleep").arg("60").spawn().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.zst");
    let watch = Command::new(env!("CARGO_BIN_EXE_ammeter"))
        .args([
            "monitor",
            "--pid",
            &server.id().to_string(),
            "--csv",
            "--interval",
            "50ms",
            "--budget",
            "100%",
            "--record",
        ])
        .arg(&path)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    until("a recording of 2 kB", || fs::metadata(&path).is_ok_and(|meta| meta.len() > 2000));
    server.kill().unwrap();
    server.wait().unwrap();
    let output = watch.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.code() == Some(1) && text.contains("has ended"), "{text}");
    assert!(output.stdout.split(|byte| *byte == b'\n').count() >= 3);
    let (shown, status) = said(&ammeter(&["monitor", "--replay", path.to_str().unwrap(), "--csv"]));
    assert_eq!((shown.as_bytes(), status), (&output.stdout[..], 0));
}

/// Copies the program to a directory that every user can read.
fn readable_copy(folder: &tempfile::TempDir) -> PathBuf {
    use std::os::unix::fs::PermissionsExt;
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let copy = folder.path().join("ammeter");
    fs::copy(env!("CARGO_BIN_EXE_ammeter"), &copy).unwrap();
    copy
}

#[test]
fn unprivileged_user_gets_available_figures() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port().to_string();
    let held = pairs(&listener, 3);
    let folder = tempfile::tempdir().unwrap();
    let program = readable_copy(&folder);
    let as_nobody = |words: &[&str]| {
        let user = ["--reuid", "65534", "--regid", "65534", "--clear-groups"];
        Command::new("setpriv").args(user).arg(&program).args(words).output().expect("setpriv (util-linux)")
    };
    let output = as_nobody(&watch(&port, &["--duration", "1s"]));
    let why = String::from_utf8_lossy(&output.stderr).into_owned();
    let (text, status) = said(&output);
    assert_eq!((status, why.matches("is unknown (").count()), (0, 1), "{why}");
    assert!(why.contains("run as root"), "{why}");
    let tick = ticks(&text).pop().unwrap();
    assert_eq!(tick["census"]["states"]["established"], 3, "{tick}");
    assert!(tick["threads"].as_array().unwrap().is_empty() && tick["tcp"]["retransmits_per_s"].is_number(), "{tick}");
    let output = as_nobody(&["profile", "--all", "--duration", "1s"]);
    let why = String::from_utf8_lossy(&output.stderr).into_owned();
    let level: i32 = fs::read_to_string("/proc/sys/kernel/perf_event_paranoid").unwrap().trim().parse().unwrap();
    assert!(level < 1 || output.status.code() == Some(1) && why.contains("setcap cap_perfmon"), "{why}");
    drop(held);
}

#[test]
fn missing_proc_is_reported() {
    let folder = tempfile::tempdir().unwrap();
    let program = readable_copy(&folder);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let script = format!("mount -t tmpfs none /proc && exec {} monitor --port {port}", program.display());
    let output = Command::new("unshare").args(["--mount", "sh", "-c", &script]).output().expect("unshare (util-linux)");
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.code() == Some(1) && text.contains("mount -t proc"), "{text}");
}

/// A server that answers each byte, and a client that keeps it busy, until this is dropped.
struct Busy {
    port: String,
    enough: std::sync::Arc<AtomicBool>,
}

impl Busy {
    fn start() -> Busy {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port().to_string();
        let enough = std::sync::Arc::new(AtomicBool::new(false));
        let (mut client, mut server) = pairs(&listener, 1).pop().unwrap();
        std::thread::spawn(move || {
            let _kept = listener;
            let mut byte = [0];
            while server.read_exact(&mut byte).and_then(|()| server.write_all(&byte)).is_ok() {}
        });
        let done = enough.clone();
        std::thread::spawn(move || {
            let mut byte = [1];
            while !done.load(Ordering::Relaxed)
                && client.write_all(&byte).and_then(|()| client.read_exact(&mut byte)).is_ok()
            {}
        });
        Busy { port, enough }
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.enough.store(true, Ordering::Relaxed);
    }
}

#[test]
fn alone_profile_shows_purpose_and_activity() {
    let busy = Busy::start();
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (svg, html, folded) = (path("a.svg"), path("a.html"), path("a.txt"));
    let output = ammeter(&[
        "profile",
        "--port",
        &busy.port,
        "--duration",
        "3s",
        "--frequency",
        "997",
        "--json",
        "--svg",
        &svg,
        "--html",
        &html,
        "--folded",
        &folded,
    ]);
    let (text, status) = said(&output);
    assert_eq!(status, 0, "{}", String::from_utf8_lossy(&output.stderr));
    let profile: Value = serde_json::from_str(&text).unwrap();
    let sum =
        |view: &str| profile[view].as_array().unwrap().iter().map(|row| row["samples"].as_u64().unwrap()).sum::<u64>();
    let share = |view: &str, names: &[&str]| -> f64 {
        let rows = profile[view].as_array().unwrap().iter();
        rows.filter(|row| names.contains(&row["name"].as_str().unwrap()))
            .map(|row| row["share"].as_f64().unwrap())
            .sum()
    };
    assert_eq!(sum("contexts"), sum("categories"));
    assert!(sum("contexts") > 50, "{profile}");
    assert!(profile["unknown"]["share"].as_f64().unwrap() < 0.02, "{profile}");
    // It does nothing but send and receive.
    let calls =
        share("contexts", &["sendto", "recvfrom", "write", "read", "softirq net_rx", "system call entry and exit"]);
    assert!(calls > 0.6, "{calls}: {profile}");
    assert!(share("categories", &["tcp/ip and sockets"]) > 0.1, "{profile}");
    let (samples, expected) = (profile["samples"].as_f64().unwrap(), profile["expected"].as_f64().unwrap());
    assert!((0.5..1.2).contains(&(samples / expected)), "{samples} of {expected}");
    assert!(
        fs::read_to_string(&svg).unwrap().starts_with("<svg") && fs::read_to_string(&html).unwrap().contains("<svg")
    );
    let stacks = fs::read_to_string(&folded).unwrap();
    let counted: u64 = stacks.lines().map(|line| line.rsplit_once(' ').unwrap().1.parse::<u64>().unwrap()).sum();
    assert_eq!(counted, sum("contexts"));
}

/// A program that spends 70 % of its time in one function and 30 % in another, until this is dropped. Its functions
/// have mangled names of C++ and Rust; each calls a third function, so that both are in the middle of call chains.
struct Planted(Child);

impl Planted {
    const SOURCE: &str = r#"
static volatile unsigned long sum;
__attribute__((noinline)) static void turn(unsigned times) { while (times--) sum += times; }
__attribute__((noinline)) void seventy(void) __asm__("_ZN5plant7seventyEv");
__attribute__((noinline)) void thirty(void) __asm__("_RNvCs1234_5plant6thirty");
void seventy(void) { turn(7000); sum++; }
void thirty(void) { turn(3000); sum++; }
int main(void) { for (;;) { seventy(); thirty(); } }
"#;

    /// Compiles it, and starts it by a shell command that receives its path as `$1`.
    fn start(folder: &Path, options: &[&str], command: &str) -> Planted {
        let (source, program) = (folder.join("plant.c"), folder.join("plant"));
        fs::write(&source, Planted::SOURCE).unwrap();
        // With optimisation, a leaf function has no frame, and its caller is missing from the chain.
        let mut compiler = Command::new("cc");
        compiler.arg("-O0").args(options).arg("-o").arg(&program).arg(&source);
        assert!(compiler.status().expect("cc").success());
        let mut unshared = Command::new("unshare");
        let child =
            unshared.args(["--mount", "sh", "-c", command, "sh"]).arg(&program).spawn().expect("unshare (util-linux)");
        let planted = Planted(child);
        until("the planted program to run", || {
            fs::read_to_string(format!("/proc/{}/comm", planted.0.id())).unwrap().trim() == "plant"
        });
        planted
    }

    fn profile(&self, more: &[&str]) -> Value {
        let pid = self.0.id().to_string();
        let words = ["profile", "--pid", &pid, "--duration", "3s", "--frequency", "997", "--budget", "100%", "--json"];
        let (text, status) = said(&ammeter(&[&words[..], more].concat()));
        assert_eq!(status, 0, "{text}");
        serde_json::from_str(&text).unwrap()
    }
}

impl Drop for Planted {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The share of this function in perf's samples of that process.
fn share_by_perf(pid: u32, folder: &Path, function: &str) -> f64 {
    let data = folder.join("perf.data");
    let perf = |words: &[&str], more: &[&str]| {
        let output = Command::new("perf").args(words).arg(&data).args(more).output().expect("perf (linux-perf)");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    perf(&["record", "-q", "-g", "-e", "cpu-clock", "-F", "991", "-p", &pid.to_string(), "-o"], &["--", "sleep", "3"]);
    let text = perf(&["script", "-F", "pid,ip,sym", "-i"], &[]);
    let samples: Vec<&str> = text.split("\n\n").filter(|sample| !sample.trim().is_empty()).collect();
    samples.iter().filter(|sample| sample.contains(function)).count() as f64 / samples.len() as f64
}

#[test]
fn profile_names_functions_as_perf_does() {
    let folder = tempfile::tempdir().unwrap();
    let planted = Planted::start(folder.path(), &[], "exec $1");
    let (folded, html) = (folder.path().join("a.txt"), folder.path().join("a.html"));
    let profile = planted.profile(&["--folded", folded.to_str().unwrap(), "--html", html.to_str().unwrap()]);
    let rows = profile["functions"].as_array().unwrap();
    let row = |name: &str| rows.iter().find(|row| row["name"] == name).unwrap_or_else(|| panic!("{name}: {profile}"));
    let share = |name| row(name)["around"]["share"].as_f64().unwrap();
    let samples = rows.iter().map(|row| row["samples"].as_u64().unwrap()).sum::<u64>() as f64;
    // Six standard errors, and a margin for a busy machine.
    let bound = 6.0 * (0.7_f64 * 0.3 / samples).sqrt() + 0.05;
    let seventy = share("plant::seventy()") / (share("plant::seventy()") + share("plant::thirty"));
    assert!((seventy - 0.7).abs() < bound, "{seventy} of {samples}: {profile}");
    assert!(row("turn")["share"].as_f64().unwrap() > 0.8, "{profile}");
    let by_perf = share_by_perf(planted.0.id(), folder.path(), "seventy");
    assert!((by_perf - share("plant::seventy()")).abs() < 2.0 * bound, "{by_perf}: {profile}");
    let folded = fs::read_to_string(&folded).unwrap();
    let chain = folded.lines().next().unwrap();
    assert!(chain.starts_with("plant;") && chain.contains("plant::seventy();turn "), "{folded}");
    assert!(fs::read_to_string(&html).unwrap().contains(">plant::seventy()</button>"));
}

/// The process runs in a mount namespace of its own, from a deleted file.
#[test]
fn profile_reads_executable_of_process() {
    let folder = tempfile::tempdir().unwrap();
    let planted = Planted::start(folder.path(), &[], "mount -t tmpfs none /mnt && cp $1 /mnt/plant && exec /mnt/plant");
    fs::remove_file(format!("/proc/{}/root/mnt/plant", planted.0.id())).unwrap();
    let profile = planted.profile(&[]);
    assert_eq!(profile["functions"][0]["name"], "turn", "{profile}");
}

#[test]
fn profile_of_stripped_program_names_its_file() {
    let folder = tempfile::tempdir().unwrap();
    let planted = Planted::start(folder.path(), &["-s"], "exec $1");
    let profile = planted.profile(&[]);
    let first = &profile["functions"][0];
    assert!(first["name"] == "[plant]" && first["share"].as_f64().unwrap() > 0.8, "{profile}");
}

/// A program that only writes, to /dev/null.
struct Writer(Child);

impl Writer {
    fn start() -> Writer {
        let nowhere = File::options().write(true).open("/dev/null").unwrap();
        let writer = Writer(Command::new("yes").stdout(nowhere).spawn().expect("the program `yes` (coreutils)"));
        let stat = format!("/proc/{}/stat", writer.0.id());
        // Until it has written for 0.1 s it may still be starting.
        until("the program to write", || {
            let text = fs::read_to_string(&stat).unwrap();
            let ticks = text.rsplit_once(") ").unwrap().1.split(' ').nth(12).unwrap();
            text.contains("(yes)") && ticks.parse::<u64>().unwrap() > 10
        });
        writer
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn alone_system_calls_are_classified_by_call_chain() {
    let writer = Writer::start();
    let pid = writer.0.id().to_string();
    let words = ["profile", "--pid", &pid, "--duration", "2s", "--frequency", "997", "--budget", "100%", "--json"];
    let output = ammeter(&words);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    let profile: Value = serde_json::from_slice(&output.stdout).unwrap();
    // System calls: every context except user code, interrupts and page faults.
    let is_call =
        |name: &str| !["user", "interrupt", "page fault", "unknown"].contains(&name) && !name.starts_with("softirq");
    let rows = profile["contexts"].as_array().unwrap().iter();
    let share = |row: &Value| row["around"]["share"].as_f64().unwrap_or_default();
    let rows = rows.map(|row| (row["name"].as_str().unwrap(), share(row))).filter(|(name, _)| is_call(name));
    let calls: Vec<(&str, f64)> = rows.collect();
    assert!(calls.iter().all(|(name, _)| ["write", "system call entry and exit"].contains(name)), "{calls:?}");
    assert!(calls.iter().any(|(name, share)| *name == "write" && *share > 0.1), "{calls:?}");
}

#[test]
fn alone_monitor_overhead_is_measured_under_load() {
    let busy = Busy::start();
    let words = ["overhead", "--port", &busy.port, "--blocks", "12", "--window", "50ms", "--seed", "3", "--json"];
    let output = ammeter(&words);
    let (text, status) = said(&output);
    assert_eq!(status, 0, "{}", String::from_utf8_lossy(&output.stderr));
    let found: Value = serde_json::from_str(&text).unwrap();
    // In a window that the machine gave to other processes there was no load.
    let blocks = ["blocks", "idle_blocks"].map(|name| found[name].as_u64().unwrap());
    assert!(blocks[0] > 0 && blocks[0] + blocks[1] == 12 && found["cpu_us"].as_f64().unwrap() > 0.0, "{text}");
    // The server publishes no metrics.
    assert_eq!(found["unit"], "segments", "{text}");
    for what in ["watched", "noise"] {
        let of = |part: &str| found[what][part].as_f64().unwrap();
        assert!(of("low") <= of("median") && of("median") <= of("high"), "{text}");
    }
    drop(busy);
    let idle = TcpListener::bind("127.0.0.1:0").unwrap();
    let words = [
        "overhead",
        "--port",
        &idle.local_addr().unwrap().port().to_string(),
        "--blocks",
        "2",
        "--window",
        "20ms",
        "--of",
        "monitor",
    ];
    let output = ammeter(&words);
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.code() == Some(1) && text.contains("no load"), "{text}");
}
