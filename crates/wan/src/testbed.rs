//! A complete testbed: a namespace for the server, one per class of clients, and the router between them (Banga and
//! Druschel 1999, figure 3), described by a file, owned by one program and controlled over a socket.
//!
//! The program that runs `up` owns namespaces, devices and router, which live as long as it does. `exec` requests a
//! namespace and enters it; `status` requests packet statistics; `down` ends it, with all programs started in it. A
//! request and its response are one line of JSON each.

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, BufRead, BufReader, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use amped_measure::Failure;
use amped_sys::netns::{self, NetNs};
use amped_sys::poll;
use amped_sys::signal::{Signal, Signals};
use ipnet::{IpNet, Ipv4Net};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::behind::{HELD_MAX, HOST4, HOST6, cannot_start};
use crate::join::{Disturbance, Invitation, Meeting};
use crate::link::{Bandwidth, ETHERNET_BYTES, LinkSettings};
use crate::path::PathSettings;
use crate::place::{DeviceSettings, Mark, be_allowed, check_congestion_control, in_new_namespace, make_device};
use crate::profile::Profile;
use crate::router::{Plan, Port, Report, Router, RouterSettings};
use crate::spec::{self, LinkTexts, ReadFile};

/// The server's name among the classes.
pub const SERVER: &str = "server";
/// Class number n, from 0, has the addresses 10.(78 + n).0.0/16; more classes would leave 10.0.0.0/8.
const CLASSES_MAX: usize = 177;
/// Maximum number of addresses per class.
const CLIENTS_MAX: u32 = 65_000;

/// The configuration of a test bed.
#[derive(Clone, Debug, PartialEq)]
pub struct Net {
    /// The seed of all random draws.
    pub seed: u64,
    /// TCP's congestion control, everywhere in it.
    pub congestion_control: String,
    /// The largest packet, in bytes at layer 3.
    pub mtu: u32,
    /// The classes of clients.
    pub classes: Vec<Class>,
}

/// A class of equal clients.
#[derive(Clone, Debug, PartialEq)]
pub struct Class {
    /// Its name.
    pub name: String,
    /// Number of addresses.
    pub clients: u32,
    /// Whether all of them share one path; otherwise each has its own.
    pub shared: bool,
    /// Where datagrams of other hosts that join it are received; `None`: none may.
    pub listen: Option<SocketAddr>,
    /// The links of the paths.
    pub path: PathSettings,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct NetFile {
    #[serde(default = "one")]
    seed: u64,
    #[serde(default = "cubic")]
    congestion_control: String,
    #[serde(default = "ethernet")]
    mtu: u32,
    #[serde(default)]
    class: Vec<ClassFile>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct ClassFile {
    name: String,
    #[serde(default = "one")]
    clients: u64,
    #[serde(default)]
    shared: bool,
    listen: Option<SocketAddr>,
    profile: Option<String>,
    latency: Option<String>,
    bandwidth: Option<String>,
    loss: Option<String>,
    queue: Option<String>,
    #[serde(default)]
    layer2: bool,
    #[serde(default)]
    up: LinkTexts,
    #[serde(default)]
    down: LinkTexts,
}

fn one() -> u64 {
    1
}

fn cubic() -> String {
    "cubic".to_owned()
}

fn ethernet() -> u32 {
    1500
}

impl Net {
    /// Parses a description (TOML).
    ///
    /// # Errors
    /// The error, its place, and what to write instead.
    pub fn parse(text: &str, files: ReadFile<'_>) -> Result<Net, String> {
        let file: NetFile = toml::from_str(text).map_err(|error| error.to_string())?;
        if file.class.is_empty() || file.class.len() > CLASSES_MAX {
            return Err(format!(
                "the number of classes must be 1 to {CLASSES_MAX}; write [[class]], and name = \"home\" below it"
            ));
        }
        if !(1280..=65_535).contains(&file.mtu) {
            return Err("mtu must be 1280 to 65535 bytes (RFC 8200, section 5)".to_owned());
        }
        let mut names = BTreeSet::from([SERVER]);
        let mut classes = Vec::new();
        for class in &file.class {
            let wrong = |error: String| format!("class {:?}: {error}", class.name);
            let is_word = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
            if class.name.is_empty() || !class.name.chars().all(is_word) || !names.insert(&class.name) {
                return Err(wrong("a name must be one unique word other than `server`".to_owned()));
            }
            let clients = u32::try_from(class.clients).ok().filter(|count| (1..=CLIENTS_MAX).contains(count));
            let clients = clients.ok_or_else(|| wrong(format!("clients must be 1 to {CLIENTS_MAX}")))?;
            if class.listen.is_some() && !class.shared {
                return Err(wrong("hosts that join it share one path; write shared = true".to_owned()));
            }
            if class.listen.is_some_and(|listen| listen.ip().is_unspecified()) {
                return Err(wrong("listen must be an address of this host that other hosts can reach".to_owned()));
            }
            let path = class.path(files).map_err(wrong)?;
            let (name, shared, listen) = (class.name.clone(), class.shared, class.listen);
            classes.push(Class { name, clients, shared, listen, path });
        }
        Ok(Net { seed: file.seed, congestion_control: file.congestion_control, mtu: file.mtu, classes })
    }
}

impl ClassFile {
    fn path(&self, files: ReadFile<'_>) -> Result<PathSettings, String> {
        let mut path = match &self.profile {
            None => PathSettings { up: spec::plain_link(), down: spec::plain_link() },
            Some(name) => Profile::find(name)?,
        };
        let both = LinkTexts {
            latency: self.latency.clone(),
            bandwidth: self.bandwidth.clone(),
            loss: self.loss.clone(),
            queue: self.queue.clone(),
        };
        let apply = |link: &mut LinkSettings, one: &LinkTexts, name: &str| {
            both.apply(link, files)?;
            link.framing_bytes = if self.layer2 { ETHERNET_BYTES } else { 0 };
            one.apply(link, files).map_err(|error| format!("{name}.{error}"))
        };
        apply(&mut path.up, &self.up, "up")?;
        apply(&mut path.down, &self.down, "down")?;
        Ok(path)
    }
}

/// The address of client `number`, from 1, of class number `class`, from 0.
fn client(class: usize, number: u32) -> [IpAddr; 2] {
    let v4 = Ipv4Addr::from_bits(u32::from_be_bytes([10, 78 + class as u8, 0, 0]) + number);
    let v6 = Ipv6Addr::new(0xfd77, class as u16 + 1, 0, 0, 0, 0, 0, number as u16);
    [v4.into(), v6.into()]
}

/// The addresses of other hosts that join a class: beyond those of its own clients.
fn joined(class: usize) -> Ipv4Net {
    let address = Ipv4Addr::new(10, 78 + class as u8, 254, 0);
    Ipv4Net::new(address, 24).expect("no longer than an address")
}

/// All addresses of a class.
fn network(class: usize) -> [IpNet; 2] {
    let [v4, v6] = client(class, 0);
    [IpNet::new(v4, 16), IpNet::new(v6, 32)].map(|prefix| prefix.expect("no longer than an address"))
}

/// Creates a test bed and serves requests at this socket until a request or a signal ends it; calls `ready` once it is
/// up. Call it before starting any thread, so that all threads leave signals to this one.
///
/// # Errors
/// When another test bed uses this socket, permission is missing, `ip` is missing, or the router stops on its own.
pub fn run(net: &Net, capture: Option<PathBuf>, socket: &Path, ready: impl FnOnce()) -> Result<Report, Failure> {
    let signals = Signals::block().map_err(Failure::io("receive signals"))?;
    let listener = listen(socket)?;
    let ended = Testbed::build(net, capture).and_then(|testbed| testbed.serve(socket, &listener, &signals, ready));
    if ended.is_err() {
        // It may have been removed already.
        let _ = fs::remove_file(socket);
    }
    ended
}

/// A running test bed.
#[derive(Debug)]
struct Testbed {
    router: Router,
    namespaces: Vec<(String, NetNs)>,
    /// Where other hosts join, by class.
    meetings: Vec<(String, Meeting)>,
    mark: Mark,
}

impl Testbed {
    fn build(net: &Net, capture: Option<PathBuf>) -> Result<Testbed, Failure> {
        be_allowed()?;
        Mark::end_orphans();
        check_congestion_control(&net.congestion_control)?;
        let networks = (0..net.classes.len()).flat_map(network).collect();
        let (server, namespace) = end(net, SERVER, vec![HOST4.into(), HOST6.into()], networks)?;
        let mut namespaces = vec![(SERVER.to_owned(), namespace)];
        let (mut clients, mut paths, mut meetings) = (Vec::new(), Vec::new(), Vec::new());
        for (number, class) in net.classes.iter().enumerate() {
            let addresses: Vec<[IpAddr; 2]> = (1..=class.clients).map(|n| client(number, n)).collect();
            let hosts = vec![IpAddr::from(HOST4).into(), IpAddr::from(HOST6).into()];
            let (port, namespace) = end(net, &class.name, addresses.concat(), hosts)?;
            clients.push(port);
            if let Some(listen) = class.listen {
                let meeting = Meeting::open(listen, joined(number), &namespace, &net.congestion_control)?;
                meetings.push((class.name.clone(), meeting));
            }
            namespaces.push((class.name.clone(), namespace));
            let plan = |prefixes: Vec<IpNet>| Plan {
                name: class.name.clone(),
                prefixes,
                client: number,
                settings: class.path.clone(),
            };
            if class.shared {
                paths.push(plan(network(number).to_vec()));
            } else {
                paths.extend(addresses.iter().map(|both| plan(both.map(IpNet::from).to_vec())));
            }
        }
        let congestion_control = net.congestion_control.clone();
        let (seed, held_max) = (net.seed, HELD_MAX);
        let settings = RouterSettings { server, clients, paths, seed, congestion_control, held_max, capture };
        Ok(Testbed { router: Router::start(settings)?, namespaces, meetings, mark: Mark::own()? })
    }

    fn serve(
        self,
        socket: &Path,
        listener: &UnixListener,
        signals: &Signals,
        ready: impl FnOnce(),
    ) -> Result<Report, Failure> {
        let bell = signals.bell().map_err(Failure::io("receive signals"))?;
        ready();
        let asked = loop {
            let readable = poll::wait_readable(&[listener.as_fd(), bell.as_fd()], Duration::from_millis(200))
                .map_err(Failure::io("wait for requests"))?;
            let signal = signals.wait_for(Duration::ZERO);
            if matches!(signal, Some(Signal::Interrupt | Signal::Terminate | Signal::Quit | Signal::HangUp))
                || self.router.has_ended()
                || self.meetings.iter().any(|(_, meeting)| meeting.has_ended())
            {
                break None;
            }
            if readable.first() == Some(&true)
                && let Ok((connection, _)) = listener.accept()
                && let Some(connection) = self.answer(connection)
            {
                break Some(connection);
            }
        };
        // Before the reply to `down`: the caller may create the next test bed at once.
        let _ = fs::remove_file(socket);
        self.mark.end_all();
        Mark::end_orphans();
        let Testbed { router, meetings, .. } = self;
        let mut report = router.stop().map(|report| with_disturbance(report, &meetings));
        if let Some((class, _)) = meetings.iter().find(|(_, meeting)| meeting.has_ended()) {
            report = report.and(Err(Failure::failed(format!("the device join0 of {class} was removed"))));
        }
        // Their addresses are free before the reply too.
        drop(meetings);
        if let Some(mut connection) = asked {
            let _ = tell(&mut connection, &report.as_ref().map_err(Failure::to_string));
        }
        report
    }

    /// Answers one request; returns the connection if the request is to end.
    fn answer(&self, mut connection: UnixStream) -> Option<UnixStream> {
        // A silent connection must not block the test bed.
        connection.set_read_timeout(Some(Duration::from_secs(5))).ok()?;
        let mut line = String::new();
        BufReader::new(&connection).read_line(&mut line).ok()?;
        // The caller may have disconnected.
        let _ = match serde_json::from_str(&line) {
            Ok(Request::Down) => return Some(connection),
            Ok(Request::Status) => {
                let report = self.router.report().map(|report| with_disturbance(report, &self.meetings));
                tell(&mut connection, &report.map_err(|failure| failure.to_string()))
            }
            Ok(Request::Namespace(name)) => tell(&mut connection, &self.way_into(&name)),
            Ok(Request::Invitation(class)) => tell(&mut connection, &self.invitation(&class)),
            Ok(Request::SetBandwidth { class, bandwidth }) => {
                tell(&mut connection, &self.set_bandwidth(&class, &bandwidth))
            }
            Err(error) => tell(&mut connection, &Err::<(), _>(format!("invalid request: {error}"))),
        };
        None
    }

    /// Namespaces are found through the process that holds them. For an
    /// ordinary user there is a user namespace too ([`be_allowed`]).
    fn way_into(&self, name: &str) -> Result<WayIn, String> {
        let (_, namespace) = known(&self.namespaces, name)?;
        let users = PathBuf::from(format!("/proc/{}/ns/user", std::process::id()));
        Ok(WayIn { network: namespace.path(), users })
    }

    fn invitation(&self, class: &str) -> Result<&Invitation, String> {
        known(&self.namespaces[1..], class)?;
        let meeting = self.meetings.iter().find(|(name, _)| name == class);
        meeting.map(|(_, meeting)| meeting.invitation()).ok_or_else(|| {
            format!("no other host may join {class:?}; write in its [[class]]: listen = \"ADDR:PORT\", an address of this host")
        })
    }

    fn set_bandwidth(&self, class: &str, bandwidth: &str) -> Result<(), String> {
        let bandwidth = live_bandwidth(bandwidth)?;
        // The first is the server's.
        known(&self.namespaces[1..], class)?;
        self.router.set_bandwidth(class, bandwidth);
        Ok(())
    }
}

/// Adds what has disturbed packets between this host and others so far.
fn with_disturbance(report: Report, meetings: &[(String, Meeting)]) -> Report {
    let sum = meetings.iter().map(|(_, meeting)| meeting.disturbance()).sum();
    let Disturbance { lost: lost_between_hosts, strained_ms } = sum;
    Report { lost_between_hosts, strained_ms, ..report }
}

fn known<'a>(namespaces: &'a [(String, NetNs)], name: &str) -> Result<&'a (String, NetNs), String> {
    namespaces.iter().find(|(known, _)| known == name).ok_or_else(|| {
        let names: Vec<&str> = namespaces.iter().map(|(name, _)| name.as_str()).collect();
        format!("unknown class {name:?}; known: {}", names.join(", "))
    })
}

/// Creates a namespace with a device, whose other end is the router's.
fn end(net: &Net, name: &str, addresses: Vec<IpAddr>, routes: Vec<IpNet>) -> Result<(Port, NetNs), Failure> {
    let device = DeviceSettings {
        name: "wan0".to_owned(),
        mtu: net.mtu,
        addresses,
        routes,
        congestion_control: net.congestion_control.clone(),
    };
    let (port, namespace) = in_new_namespace(Mark::own()?, move || make_device(&device))?;
    Ok((Port { name: name.to_owned(), ..port }, namespace))
}

fn listen(socket: &Path) -> Result<UnixListener, Failure> {
    let place = socket.display();
    if UnixStream::connect(socket).is_ok() {
        return Err(Failure::failed(format!("a test bed is already up at {place}; stop it with `ammeter wan down`")));
    }
    match fs::symlink_metadata(socket) {
        // The socket of a test bed that was killed.
        Ok(meta) if std::os::unix::fs::FileTypeExt::is_socket(&meta.file_type()) => {
            fs::remove_file(socket).map_err(Failure::io(format!("remove the stale socket {place}")))?;
        }
        Ok(_) => {
            return Err(Failure::failed(format!("{place} exists and is not a socket; choose another with --control")));
        }
        Err(_) => {}
    }
    let listener = UnixListener::bind(socket).map_err(|error| {
        Failure::failed(format!("cannot listen at {place}: {error}; name another socket: --control"))
    })?;
    // Requests can start programs in the test bed, so only the same user may send them.
    fs::set_permissions(socket, fs::Permissions::from_mode(0o600)).map_err(Failure::io(format!("protect {place}")))?;
    Ok(listener)
}

/// The requests to a test bed.
#[derive(Debug, Serialize, Deserialize)]
enum Request {
    Status,
    Namespace(String),
    Invitation(String),
    SetBandwidth { class: String, bandwidth: String },
    Down,
}

/// The answer to [`Request::Namespace`]: files of the namespaces to enter.
#[derive(Debug, Serialize, Deserialize)]
struct WayIn {
    network: PathBuf,
    users: PathBuf,
}

fn tell(connection: &mut UnixStream, message: &impl Serialize) -> io::Result<()> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    connection.write_all(&line)
}

fn ask<T: DeserializeOwned>(socket: &Path, request: &Request) -> Result<T, Failure> {
    let place = socket.display();
    let mut connection = UnixStream::connect(socket).map_err(|error| {
        Failure::failed(format!("no test bed at {place} ({error}); start one with `ammeter wan up NET.toml`, or give its socket with --control"))
    })?;
    let mut line = String::new();
    // A test bed that ends meanwhile closes the connection.
    let _ = tell(&mut connection, request).and_then(|()| BufReader::new(&connection).read_line(&mut line));
    let answer: Result<T, String> = serde_json::from_str(&line).map_err(|_| {
        Failure::failed(format!("the test bed at {place} has ended; start one with `ammeter wan up NET.toml`"))
    })?;
    answer.map_err(Failure::Failed)
}

/// The packet statistics of the test bed at this socket so far.
///
/// # Errors
/// When there is no test bed.
pub fn status(socket: &Path) -> Result<Report, Failure> {
    ask(socket, &Request::Status)
}

/// Ends the test bed at this socket, with all programs started in it; returns its packet statistics.
///
/// # Errors
/// When there is no test bed, or it has failed.
pub fn down(socket: &Path) -> Result<Report, Failure> {
    ask(socket, &Request::Down)
}

/// Returns what another host needs to join a class.
///
/// # Errors
/// When there is no test bed or no such class, or it accepts no other hosts.
pub fn invitation(socket: &Path, class: &str) -> Result<Invitation, Failure> {
    ask(socket, &Request::Invitation(class.to_owned()))
}

/// Sets the bandwidth of all paths of this class, in both directions.
///
/// # Errors
/// When there is no test bed or no such class, or the bandwidth is invalid.
pub fn set_bandwidth(socket: &Path, class: &str, bandwidth: &str) -> Result<(), Failure> {
    live_bandwidth(bandwidth).map_err(Failure::Usage)?;
    ask(socket, &Request::SetBandwidth { class: class.to_owned(), bandwidth: bandwidth.to_owned() })
}

fn live_bandwidth(text: &str) -> Result<Bandwidth, String> {
    let wrong = |error: String| format!("--bandwidth: {error}");
    spec::bandwidth(text, &|_| Err("a trace cannot be set live; write a rate, for example 1mbit".to_owned()))
        .map_err(wrong)
}

/// Moves the calling thread, and only this one, into the namespace of the server or of a class. For an ordinary user
/// the program must be single-threaded; it then is in the test bed's user namespace.
///
/// # Errors
/// When there is no test bed or no such class.
pub fn enter(socket: &Path, class: &str) -> Result<(), Failure> {
    let WayIn { network, users } = ask(socket, &Request::Namespace(class.to_owned()))?;
    // Opened first: from within the user namespace no other file of this host may be opened.
    NetNs::open(&network)
        .and_then(|namespace| netns::enter_users(&users).and_then(|()| namespace.enter()))
        .map_err(Failure::io(format!("enter the namespace of {class}")))
}

/// Replaces this program by a command in the namespace of the server or of a class. Call it before starting any thread.
///
/// # Errors
/// When there is no test bed, no such class, or no such program. Otherwise this does not return.
pub fn exec(socket: &Path, class: &str, mut command: Command) -> Result<std::convert::Infallible, Failure> {
    enter(socket, class)?;
    let error = command.exec();
    Err(cannot_start(command.get_program(), &error))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Net, String> {
        Net::parse(text, &|name| Err(format!("no file {name}")))
    }

    #[test]
    fn description_is_parsed() {
        let net = parse(
            "seed = 7\ncongestion-control = \"reno\"\n[[class]]\nname = \"lan\"\nclients = 20\n\
             [[class]]\nname = \"home\"\nprofile = \"cable\"\nloss = \"1%\"\nshared = true\ndown.bandwidth = \"20mbit\"\n",
        )
        .expect("right");
        assert_eq!((net.seed, net.congestion_control.as_str(), net.mtu), (7, "reno", 1500));
        let [lan, home] = &net.classes[..] else { panic!("two classes") };
        assert_eq!((lan.clients, lan.shared, &lan.path.up), (20, false, &spec::plain_link()));
        assert_eq!((home.clients, home.shared), (1, true));
        assert_eq!((home.path.up.bandwidth.mean(), home.path.down.bandwidth.mean()), (Some(1e6), Some(2e7)));
        assert_eq!(home.path.down.loss.mean(), 0.01);
    }

    #[test]
    fn errors_are_reported_with_position() {
        let check = |text: &str, says: &str| {
            let error = parse(text).expect_err(text);
            assert!(error.contains(says), "{text}: {error}");
        };
        let class = |line: &str| format!("[[class]]\nname = \"a\"\n{line}\n");
        check("", "[[class]]");
        check("[[class]]\nnam = 1\n", "line 2");
        check(&class("latency = \"50\""), "class \"a\": latency");
        check(&class("up.loss = \"x\""), "up.loss");
        check(&class("clients = 0"), "clients");
        check(&class("profile = \"moon\""), "satellite");
        check(&class("[[class]]\nname = \"a\""), "unique");
        check("[[class]]\nname = \"server\"\n", "server");
        check(&class("listen = \"127.0.0.1:1\""), "shared = true");
        check(&class("listen = \"0.0.0.0:1\"\nshared = true"), "other hosts can reach");
        check(&class("listen = \"a\"\nshared = true"), "line 3");
        check("mtu = 100\n[[class]]\nname = \"a\"\n", "1280");
    }

    #[test]
    fn every_client_has_address_in_its_network() {
        for class in [0, 1, CLASSES_MAX - 1] {
            let mut prefixes = crate::path::Prefixes::default();
            network(class).into_iter().for_each(|prefix| assert_eq!(prefixes.insert(prefix, 1), None));
            for number in [1, 2, 256, CLIENTS_MAX] {
                assert!(client(class, number).iter().all(|address| prefixes.find(*address) == Some(1)));
            }
            assert!(client(class + 1, 1).iter().all(|address| prefixes.find(*address).is_none()));
            let last = client(class, CLIENTS_MAX);
            assert!(
                joined(class).hosts().all(|own| prefixes.find(own.into()) == Some(1) && !last.contains(&own.into()))
            );
            assert!(!joined(class).contains(&Ipv4Addr::new(10, 78 + class as u8, (CLIENTS_MAX >> 8) as u8, 0)));
        }
    }
}
