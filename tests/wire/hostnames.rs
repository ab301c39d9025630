//! Host names of clients in the access log, from a name server of the tests, which can be slow, silent or wrong.
//!
//! The server runs in a network namespace with only a loopback interface, and with its own `/etc/resolv.conf` and
//! related files mounted over the machine's, visible to it alone. Both end with it, however a test ends. The name
//! server and the clients are threads that enter this namespace; a client may use any address in 127.0.0.0/8.
//!
//! Needs root, and `unshare`, `mount` and `ip`.

use std::collections::HashMap;
use std::fs::{self, File};
use std::net::{IpAddr, Ipv6Addr, SocketAddr, TcpStream, UdpSocket};
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SocketFlags, SocketType};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use serde_json::Value;

use crate::harness::*;

/// Query types: RFC 1035, 3.2.2, and RFC 3596, 2.1.
const A: u16 = 1;
const PTR: u16 = 12;
const AAAA: u16 = 28;

/// RFC 1035, 4.1.1.
const SERVFAIL: u8 = 2;
const NXDOMAIN: u8 = 3;

/// An answer of the name server.
#[derive(Clone)]
enum Says {
    /// To PTR: this name, with labels of any bytes.
    Name(Vec<Vec<u8>>),
    /// To A or AAAA.
    Address(IpAddr),
    /// An error code.
    Error(u8),
}

fn name(text: &str) -> Says {
    Says::Name(text.split('.').map(|label| label.as_bytes().to_vec()).collect())
}

#[derive(Default)]
struct Zone {
    says: HashMap<(String, u16), Says>,
    delay: Duration,
    /// Answers no query.
    silent: bool,
    /// Delays all answers until it is open.
    closed: bool,
    /// All queries so far, in lower case.
    asked: Vec<(String, u16)>,
}

impl Zone {
    fn ptr(&mut self, address: IpAddr, says: Says) {
        self.says.insert((reverse(address), PTR), says);
    }

    fn address(&mut self, name: &str, address: IpAddr) {
        let kind = if address.is_ipv4() { A } else { AAAA };
        self.says.insert((name.to_owned(), kind), Says::Address(address));
    }

    /// Adds an address and its name, with a matching forward record.
    fn host(&mut self, address: IpAddr, text: &str) {
        self.ptr(address, name(text));
        self.address(&text.to_ascii_lowercase(), address);
    }

    fn times_asked(&self, what: &str, kind: u16) -> usize {
        self.asked.iter().filter(|(name, asked)| name == what && *asked == kind).count()
    }

    /// Records a query and returns the answer, or `None` if the zone is silent. A name outside the zone does not exist.
    fn answer(&mut self, query: &[u8]) -> Option<Vec<u8>> {
        let (mut labels, mut at) = (Vec::new(), 12);
        while query[at] != 0 {
            let end = at + 1 + usize::from(query[at]);
            labels.push(String::from_utf8_lossy(&query[at + 1..end]).to_ascii_lowercase());
            at = end;
        }
        let kind = u16::from_be_bytes([query[at + 1], query[at + 2]]);
        let asked = (labels.join("."), kind);
        let says = self.says.get(&asked).cloned().unwrap_or(Says::Error(NXDOMAIN));
        self.asked.push(asked);
        let (code, data) = match says {
            Says::Error(code) => (code, None),
            Says::Address(IpAddr::V4(address)) => (0, Some(address.octets().to_vec())),
            Says::Address(IpAddr::V6(address)) => (0, Some(address.octets().to_vec())),
            Says::Name(labels) => {
                let label = |label: &Vec<u8>| [&[label.len() as u8], label.as_slice()].concat();
                (0, Some(labels.iter().flat_map(label).chain([0]).collect()))
            }
        };
        // An answer to the one question, which it repeats, with recursion desired and available.
        let mut reply = [&query[..2], &[0x81, 0x80 | code, 0, 1, 0, u8::from(data.is_some()), 0, 0, 0, 0]].concat();
        reply.extend_from_slice(&query[12..at + 5]);
        if let Some(data) = data {
            // For the queried name, class IN, with a TTL of 0.
            reply.extend(
                [&[0xc0, 12], &kind.to_be_bytes()[..], &[0, 1, 0, 0, 0, 0, 0, data.len() as u8], &data].concat(),
            );
        }
        (!self.silent).then_some(reply)
    }
}

/// Returns `2.0.0.127.in-addr.arpa` (RFC 1035, 3.5), or the equivalent in `ip6.arpa` (RFC 3596, 2.5).
fn reverse(address: IpAddr) -> String {
    match address {
        IpAddr::V4(address) => {
            let [a, b, c, d] = address.octets();
            format!("{d}.{c}.{b}.{a}.in-addr.arpa")
        }
        IpAddr::V6(address) => {
            let nibbles = address.octets().into_iter().rev().map(|byte| format!("{:x}.{:x}.", byte & 15, byte >> 4));
            nibbles.collect::<String>() + "ip6.arpa"
        }
    }
}

fn local(last: u8) -> IpAddr {
    IpAddr::from([127, 0, 0, last])
}

/// A server and a name server in a network namespace.
struct Net {
    server: Server,
    network: File,
    zone: Arc<Mutex<Zone>>,
    stop: Arc<AtomicBool>,
    name_server: Option<JoinHandle<()>>,
    site: Site,
    logs: Site,
}

/// Mounts the files that the C library reads over the machine's, and becomes the server. Hides a machine-wide cache
/// (nscd).
const ENTER: &str = r#"
    for file in resolv.conf hosts nsswitch.conf; do mount --bind "$0/$file" /etc/$file || exit 1; done
    if [ -d /run/nscd ]; then mount -t tmpfs tmpfs /run/nscd || exit 1; fi
    ip link set lo up && exec "$@"
"#;

const ADDRESS: &str = "*:8080";

impl Net {
    /// Starts it with these keys in `[log]`; other tables may follow them.
    fn start(keys: &str, fill: impl FnOnce(&mut Zone)) -> Net {
        Net::start_with("amped", PATIENT, keys, fill)
    }

    /// Starts it in this architecture, with these options in resolv.conf(5).
    fn start_with(architecture: &str, options: &str, keys: &str, fill: impl FnOnce(&mut Zone)) -> Net {
        need_root("starts the server in a network of its own");
        let (site, logs) = (Site::new(), Site::new());
        site.file("a.txt", "hello");
        let etc = |name: &str, text: &str| logs.file(&format!("etc/{name}"), text);
        etc("resolv.conf", &format!("nameserver 127.0.0.1\noptions {options}\n"));
        etc("hosts", "127.0.0.1 localhost\n127.0.0.250 qu\"ote\n127.0.0.251 own-file\n");
        etc("nsswitch.conf", "passwd: files\ngroup: files\nhosts: files dns\n");
        let mut net = Command::new("unshare");
        net.args(["--net", "--mount", "sh", "-c", ENTER]).arg(logs.path().join("etc"));
        net.arg(program().get_program()).args(["serve", "--config"]).arg(Net::configure(&site, &logs, keys));
        net.args(["--architecture", architecture]);
        let server = Server::spawn(net);
        let network = File::open(format!("/proc/{}/ns/net", server.pid())).unwrap();
        let mut zone = Zone::default();
        fill(&mut zone);
        let (zone, stop) = (Arc::new(Mutex::new(zone)), Arc::new(AtomicBool::new(false)));
        let mut net = Net { server, network, zone, stop, name_server: None, site, logs };
        let socket = net.inside(|| UdpSocket::bind("127.0.0.1:53").unwrap());
        let (zone, stop) = (Arc::clone(&net.zone), Arc::clone(&net.stop));
        net.name_server = Some(thread::spawn(move || serve_names(&socket, &zone, &stop)));
        net
    }

    fn configure(site: &Site, logs: &Site, keys: &str) -> PathBuf {
        let log = logs.path().join("access.log");
        let root = site.path();
        logs.file(
            "amped.toml",
            format!("root = {root:?}\nlisten = [{ADDRESS:?}]\n[log]\naccess = {log:?}\nflush = \"20ms\"\n{keys}\n"),
        )
    }

    /// Reloads the configuration with other keys.
    fn reload(&self, keys: &str) {
        let in_force = || self.server.said().matches("the new configuration is in force").count();
        let before = in_force();
        Net::configure(&self.site, &self.logs, keys);
        self.server.signal("HUP");
        wait_until("the reload", || in_force() > before);
    }

    /// Runs a closure in the network namespace.
    fn inside<T: Send>(&self, what: impl FnOnce() -> T + Send) -> T {
        let inside = || {
            move_into_link_name_space(self.network.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
            what()
        };
        // In a thread of its own, because a thread that has entered cannot return.
        thread::scope(|scope| scope.spawn(inside).join()).unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }

    /// Sends requests from this address on one connection: `/a.txt?N` for each number.
    fn ask(&self, from: IpAddr, numbers: impl IntoIterator<Item = usize, IntoIter: Send> + Send) {
        self.inside(|| {
            let mut client = client(from);
            for number in numbers {
                assert_eq!(client.get(&format!("/a.txt?{number}")).text(), "hello");
            }
        });
    }

    fn zone<T>(&self, what: impl FnOnce(&mut Zone) -> T) -> T {
        what(&mut self.zone.lock().unwrap())
    }

    fn log(&self) -> PathBuf {
        self.logs.path().join("access.log")
    }

    /// The log lines so far.
    fn lines(&self) -> Vec<String> {
        let text = fs::read_to_string(self.log()).unwrap();
        text.split_inclusive('\n').filter(|line| line.ends_with('\n')).map(|line| line.trim_end().to_owned()).collect()
    }

    fn wait_for_lines(&self, count: usize) -> Vec<String> {
        wait_until(&format!("{count} lines"), || self.lines().len() >= count);
        assert_eq!(self.lines().len(), count);
        self.lines()
    }

    /// Like `wait_for_lines`, but sorted by number, for architectures whose loops buffer lines separately.
    fn wait_for_lines_in_order(&self, count: usize) -> Vec<String> {
        let mut lines = self.wait_for_lines(count);
        lines.sort_by_key(|line| host_and_number(line).1);
        lines
    }
}

impl Drop for Net {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.name_server.take() {
            let _ = thread.join();
        }
    }
}

/// Opens a connection from this address.
fn client(from: IpAddr) -> Client {
    let (family, to) = match from {
        IpAddr::V4(_) => (AddressFamily::INET, local(1)),
        IpAddr::V6(_) => (AddressFamily::INET6, IpAddr::V6(Ipv6Addr::LOCALHOST)),
    };
    let socket = rustix::net::socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
    rustix::net::bind(&socket, &SocketAddr::new(from, 0)).unwrap();
    rustix::net::connect(&socket, &SocketAddr::new(to, 8080)).unwrap();
    let stream = TcpStream::from(socket);
    stream.set_nodelay(true).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    Client::on(&stream)
}

/// Runs the name server: each query has its own delay, however many there are.
fn serve_names(socket: &UdpSocket, zone: &Mutex<Zone>, stop: &AtomicBool) {
    socket.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
    thread::scope(|scope| {
        while !stop.load(Ordering::Relaxed) {
            let mut query = [0; 512];
            let Ok((length, from)) = socket.recv_from(&mut query) else { continue };
            let (reply, delay) = {
                let mut zone = zone.lock().unwrap();
                (zone.answer(&query[..length]), zone.delay)
            };
            let Some(reply) = reply else { continue };
            scope.spawn(move || {
                while zone.lock().unwrap().closed && !stop.load(Ordering::Relaxed) {
                    thread::sleep(Duration::from_millis(2));
                }
                thread::sleep(delay);
                let _ = socket.send_to(&reply, from);
            });
        }
    });
}

/// Parses host and number of a line in Common or Combined format.
fn host_and_number(line: &str) -> (&str, usize) {
    let (host, rest) = line.split_once(" - - [").unwrap_or_else(|| panic!("{line:?}"));
    let number = rest.split_once("\"GET /a.txt?").unwrap().1.split_once(' ').unwrap().0;
    (host, number.parse().unwrap())
}

const ON: &str = "hostnames = true";

/// Options that outlast every test: the C library sends one query and waits.
const PATIENT: &str = "timeout:30 attempts:2";

const ARCHITECTURES: [&str; 4] = ["amped", "sped", "mt", "mp"];

#[test]
fn log_line_has_confirmed_name_or_else_address() {
    let clients: Vec<(IpAddr, &str)> = vec![
        (local(2), "host2.test"),
        // No name; an error.
        (local(3), "127.0.0.3"),
        (local(4), "127.0.0.4"),
        // Another host's name; a name without an address.
        (local(5), "127.0.0.5"),
        (local(6), "127.0.0.6"),
        // Invalid names, and names that look like addresses, even if the C library accepts them.
        (local(7), "127.0.0.7"),
        (local(8), "127.0.0.8"),
        (local(9), "127.0.0.9"),
        (local(250), "127.0.0.250"),
        // Valid names.
        (local(10), "host_10-x.test"),
        (local(251), "own-file"),
        (Ipv6Addr::LOCALHOST.into(), "six.test"),
    ];
    for format in ["common", "combined", "json"] {
        let net = Net::start(&format!("{ON}\nformat = {format:?}"), |zone| {
            zone.host(local(2), "host2.test");
            zone.ptr(local(4), Says::Error(SERVFAIL));
            zone.ptr(local(5), name("host2.test"));
            zone.ptr(local(6), name("nowhere.test"));
            zone.ptr(local(7), Says::Name(vec![b"a b\" - - [".to_vec(), b"test".to_vec()]));
            zone.ptr(local(8), Says::Name(vec![b"a\n127.0.0.1 - - [\x1b[31m".to_vec()]));
            zone.host(local(9), "0x7f000009");
            zone.host(local(10), "Host_10-X.TEST");
            zone.host(Ipv6Addr::LOCALHOST.into(), "six.test");
        });
        for (number, &(from, _)) in clients.iter().enumerate() {
            net.ask(from, [number]);
        }
        let lines = net.wait_for_lines(clients.len());
        for (line, (_, expected)) in lines.iter().zip(&clients) {
            if format == "json" {
                let line: Value = serde_json::from_str(line).unwrap();
                assert_eq!((line["client"].as_str(), line["host"].as_str()), (Some(*expected), Some("localhost")));
            } else {
                assert_eq!(host_and_number(line).0, *expected, "{line}");
            }
        }
        assert_eq!(
            (
                net.server.report("cache_misses hostname"),
                net.server.report("hostname_lookups"),
                net.server.report("hostname_failures")
            ),
            (12, 12, 8)
        );
        assert_eq!((net.server.report("hostname_timeouts"), net.server.report("cache_entries hostname")), (0, 12));
    }
}

#[test]
fn name_and_lack_of_name_are_looked_up_once() {
    let net = Net::start(ON, |zone| zone.host(local(2), "host2.test"));
    for round in 0..3 {
        net.ask(local(2), 20 * round..20 * round + 10);
        net.ask(local(3), 20 * round + 10..20 * round + 20);
    }
    for (n, line) in net.wait_for_lines(60).iter().enumerate() {
        assert_eq!(host_and_number(line), (if n % 20 < 10 { "host2.test" } else { "127.0.0.3" }, n));
    }
    let asked = || {
        net.zone(|zone| {
            let ptr = |address| zone.times_asked(&reverse(address), PTR);
            (ptr(local(2)), zone.times_asked("host2.test", A), ptr(local(3)))
        })
    };
    assert_eq!(asked(), (1, 1, 1));
    assert_eq!(
        (
            net.server.report("hostname_lookups"),
            net.server.report("hostname_failures"),
            net.server.report("cache_entries hostname")
        ),
        (2, 1, 2)
    );
    assert_eq!(net.server.report("cache_hits hostname") + net.server.report("cache_misses hostname"), 60);
    // Expired entries are looked up again; a missing name has a TTL of its own.
    net.reload(&format!("{ON}\nhostname_negative_ttl = \"100ms\"\nhostname_entries = 100"));
    net.ask(local(2), [60]);
    net.ask(local(3), [61]);
    net.wait_for_lines(62);
    thread::sleep(Duration::from_millis(100));
    net.ask(local(3), [62]);
    net.ask(local(2), [63]);
    net.wait_for_lines(64);
    // Its size changed, so the cache started empty.
    assert_eq!(asked(), (2, 2, 3));
}

#[test]
fn disabled_cache_looks_up_name_for_each_line() {
    for off in ["hostname_entries = 0", "[optimise]\ndns_cache = false"] {
        let net = Net::start(&format!("{ON}\n{off}"), |zone| zone.host(local(2), "host2.test"));
        net.ask(local(2), 0..25);
        let lines = net.wait_for_lines(25);
        assert!(lines.iter().enumerate().all(|(n, line)| host_and_number(line) == ("host2.test", n)), "{lines:#?}");
        assert_eq!(net.zone(|zone| zone.times_asked(&reverse(local(2)), PTR)), 25);
        assert_eq!(
            (
                net.server.report("cache_hits hostname"),
                net.server.report("cache_misses hostname"),
                net.server.report("hostname_lookups"),
                net.server.report("cache_entries hostname")
            ),
            (0, 25, 25, 0)
        );
    }
}

#[test]
fn response_does_not_wait_for_name() {
    for architecture in ARCHITECTURES {
        let net = Net::start_with(architecture, PATIENT, &format!("{ON}\nhostname_timeout = \"1m\""), |zone| {
            (2..7).for_each(|n| zone.host(local(n), &format!("host{n}.test")));
            zone.closed = true;
        });
        for n in 0..50 {
            net.ask(local(2 + (n % 5) as u8), [n]);
        }
        // All lines of an address share its lookup. Four lookups run at a time: those of four clients, or the first one
        // of each process, which has its own cache.
        wait_until("the pending lookups", || {
            net.server.report("cache_misses hostname") == 50 && net.server.report("hostname_lookups") >= 4
        });
        assert!(net.server.report("hostname_lookups") == 4 || architecture == "mp");
        assert!(net.lines().is_empty(), "{:#?}", net.lines());
        net.zone(|zone| zone.closed = false);
        for (n, line) in net.wait_for_lines_in_order(50).iter().enumerate() {
            assert_eq!(host_and_number(line), (format!("host{}.test", 2 + n % 5).as_str(), n));
        }
        assert!(net.server.report("hostname_lookups") == 5 || architecture == "mp");
        assert_eq!(net.server.report("hostname_timeouts"), 0);
    }
}

#[test]
fn silent_name_server_delays_log_and_loses_no_line() {
    let keys = format!("{ON}\nhostname_timeout = \"300ms\"\nhostname_negative_ttl = \"50ms\"");
    let net = Net::start_with("amped", "timeout:1 attempts:5", &keys, |zone| {
        (2..5).for_each(|n| zone.host(local(n), &format!("host{n}.test")));
        zone.silent = true;
    });
    let begin = Instant::now();
    for n in 0..30 {
        net.ask(local(2 + (n % 3) as u8), [n]);
    }
    for (n, line) in net.wait_for_lines(30).iter().enumerate() {
        assert_eq!(host_and_number(line), (local(2 + (n % 3) as u8).to_string().as_str(), n));
    }
    assert!(begin.elapsed() >= Duration::from_millis(300), "no line waited");
    assert_eq!(net.server.report("hostname_timeouts"), 30);
    net.zone(|zone| zone.silent = false);
    let mut n = 30;
    wait_until("a line with a host name", || {
        net.ask(local(2), [n]);
        n += 1;
        host_and_number(&net.wait_for_lines(n)[n - 1]).0 == "host2.test"
    });
}

#[test]
fn stop_and_log_reopen_do_not_wait_for_silent_name_server() {
    for architecture in ARCHITECTURES {
        let keys = format!("{ON}\nhostname_timeout = \"1h\"");
        let mut net = Net::start_with(architecture, PATIENT, &keys, |zone| zone.silent = true);
        for n in 0..20 {
            net.ask(local(2 + (n % 10) as u8), [n]);
        }
        wait_until("all 20 lookups", || net.server.report("cache_misses hostname") == 20);
        assert!(net.lines().is_empty());
        let old = net.log().with_extension("old");
        fs::rename(net.log(), &old).unwrap();
        net.server.signal("USR1");
        wait_until("the reopened log", || net.log().exists());
        let begin = Instant::now();
        net.server.signal("TERM");
        assert_eq!(net.server.wait().code(), Some(0));
        let taken = begin.elapsed();
        // The deadline is 10 s, and the C library waits 60 s.
        assert!(taken < Duration::from_secs(9), "{taken:?}");
        assert_eq!(fs::read_to_string(&old).unwrap(), "");
        for (n, line) in net.wait_for_lines_in_order(20).iter().enumerate() {
            assert_eq!(host_and_number(line), (local(2 + (n % 10) as u8).to_string().as_str(), n));
        }
        assert_eq!(figure_in(&net.server.said(), "hostname_timeouts"), 20);
        assert_eq!(figure_in(&net.server.said(), "log_lines_lost"), 0);
    }
}

#[test]
fn reload_enables_and_disables_names() {
    let net = Net::start("", |zone| zone.host(local(2), "host2.test"));
    let mut asked = 0;
    for (keys, expected) in [("", "127.0.0.2"), (ON, "host2.test"), ("hostnames = false", "127.0.0.2")] {
        net.reload(keys);
        net.ask(local(2), [asked]);
        asked += 1;
        assert_eq!(host_and_number(&net.wait_for_lines(asked)[asked - 1]), (expected, asked - 1));
    }
    assert_eq!(net.server.report("cache_misses hostname"), 1);
}

#[test]
fn lines_of_many_clients_have_their_names_in_order() {
    const CLIENTS: usize = 400;
    let of = |n: usize| IpAddr::from([127, 1, (n / 200) as u8, (n % 200) as u8 + 1]);
    // The cache holds far fewer names than there are clients, and several lines wait for each lookup.
    let net = Net::start(&format!("{ON}\nhostname_entries = 16\nhostname_timeout = \"1m\""), |zone| {
        (0..CLIENTS).for_each(|n| zone.host(of(n), &format!("client{n}.test")));
        zone.delay = Duration::from_millis(2);
    });
    for round in 0..2 {
        for n in 0..CLIENTS {
            let number = 3 * (round * CLIENTS + n);
            net.ask(of(n), number..number + 3);
        }
    }
    for (n, line) in net.wait_for_lines(6 * CLIENTS).iter().enumerate() {
        assert_eq!(host_and_number(line), (format!("client{}.test", n / 3 % CLIENTS).as_str(), n));
    }
    assert_eq!(
        (
            net.server.report("hostname_refusals"),
            net.server.report("hostname_timeouts"),
            net.server.report("cache_entries hostname")
        ),
        (0, 0, 16)
    );
}
