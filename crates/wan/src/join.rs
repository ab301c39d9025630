//! Clients of a test bed on other hosts: their packets reach the router over UDP.
//!
//! In the namespace of a class that accepts other hosts ([`Meeting`]) there is a second device, and the kernel forwards packets between
//! it and the class's own, whose other end is the router's. On another host, [`run`] gives a command a namespace with one
//! device. Between the two devices, each packet is a datagram. So no host forwards packets outside such a namespace or
//! changes an address, and nothing is left there when a program ends.
//!
//! A datagram is a key, without which it is ignored, a number, by which losses between the hosts are noticed, and one packet (IPv4). Others
//! have no packet: a joined host sends a [`Greeting`] from time to time, at first to get an address, which the answer has.

use std::ffi::OsString;
use std::fmt;
use std::fs::{self, File};
use std::io::{self, IoSlice, Read as _};
use std::iter::Sum;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::ops::Add;
use std::os::fd::AsFd;
use std::process::ExitStatus;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use amped_measure::Failure;
use amped_sys::clock;
use amped_sys::netns::NetNs;
use amped_sys::poll::{self, Until};
use amped_sys::signal::Signals;
use amped_sys::tun::HEADER_BYTES;
use ipnet::{IpNet, Ipv4Net};
use serde::{Deserialize, Serialize};

use crate::behind::{DEVICE, HOST4, Inside, failure_of, wait};
use crate::place::{DeviceSettings, Mark, be_allowed, check_congestion_control, in_thread, make_device};
use crate::router::{PRIORITY, Port};

/// The largest packet of a joined host: with the headers of IPv6 and UDP and the key, a datagram of 1500 bytes has room for more.
const MTU: u32 = 1400;

/// Maximum joined hosts of a class: their addresses end in 1 to this.
const PEERS_MAX: usize = 250;

/// A joined host that has been silent for this long loses its address, if there is no other for the next one.
const SILENCE: Duration = Duration::from_secs(60);

/// Timeout for an answer from the test bed, and the interval of greetings until there is one.
const ANSWER: Duration = Duration::from_secs(5);
const ASK_AGAIN: Duration = Duration::from_millis(200);

/// Interval of greetings afterwards: the address of a host behind NAT may change when nothing is sent.
const GREET: Duration = Duration::from_secs(5);

/// A test bed that has been silent for this long has ended.
const ENDED: Duration = Duration::from_secs(20);

/// How often a thread that moves packets checks whether it is to end.
const CHECK: Duration = Duration::from_millis(100);

/// Packets that are moved in one direction before the other has its turn.
const BURST: usize = 64;

const KEY_BYTES: usize = 16;

/// The key, and a number of 32 bits in network order.
const HEAD_BYTES: usize = KEY_BYTES + 4;

/// A datagram's buffer, in which a packet from a device is preceded by its header.
const BUFFER_BYTES: usize = HEAD_BYTES + 65_536;

/// Bytes of datagrams that wait for the thread, or the network.
const SOCKET_BYTES: usize = 8 << 20;

/// How long a full socket is waited for.
const FULL: Duration = Duration::from_millis(10);

/// What a datagram must begin with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key([u8; KEY_BYTES]);

fn random<const COUNT: usize>() -> io::Result<[u8; COUNT]> {
    let mut bytes = [0; COUNT];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes)
}

impl fmt::Display for Key {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(formatter, "{byte:02x}"))
    }
}

impl FromStr for Key {
    type Err = String;

    fn from_str(text: &str) -> Result<Key, String> {
        let wrong = || "a key has 32 hexadecimal digits; `ammeter wan invite` prints it".to_owned();
        let value = (text.len() == 2 * KEY_BYTES).then(|| u128::from_str_radix(text, 16).ok()).flatten();
        Ok(Key(value.ok_or_else(wrong)?.to_be_bytes()))
    }
}

/// What another host needs to join a class.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Invitation {
    /// Where the class receives datagrams.
    pub address: SocketAddr,
    /// The key, in hexadecimal digits.
    pub key: String,
    /// TCP's congestion control in the test bed.
    pub congestion_control: String,
}

/// What disturbed packets between the hosts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Disturbance {
    /// Packets that were lost, in both directions.
    pub(crate) lost: u64,
    /// Time in which moving packets kept a thread busy, in milliseconds.
    pub(crate) strained_ms: u64,
}

impl Add for Disturbance {
    type Output = Disturbance;

    fn add(self, other: Disturbance) -> Disturbance {
        Disturbance { lost: self.lost + other.lost, strained_ms: self.strained_ms + other.strained_ms }
    }
}

impl Sum for Disturbance {
    fn sum<I: Iterator<Item = Disturbance>>(all: I) -> Disturbance {
        all.fold(Disturbance::default(), Add::add)
    }
}

/// Accepts other hosts for a class, until it is dropped.
#[derive(Debug)]
pub(crate) struct Meeting {
    invitation: Invitation,
    mover: Option<Mover>,
}

impl Meeting {
    /// Receives datagrams at this address for the class in this namespace. `network`: the addresses of joined hosts.
    ///
    /// # Errors
    /// The address is not one of this host, or in use; permission or `ip` is missing.
    pub(crate) fn open(
        listen: SocketAddr,
        network: Ipv4Net,
        namespace: &NetNs,
        congestion_control: &str,
    ) -> Result<Meeting, Failure> {
        let socket = UdpSocket::bind(listen)
            .map_err(|error| Failure::failed(format!("cannot receive datagrams at {listen}: {error}")))?;
        let address = socket.local_addr().map_err(Failure::io("get the address of a socket"))?;
        let key = Key(random().map_err(Failure::io("read /dev/urandom"))?);
        let device = DeviceSettings {
            name: "join0".to_owned(),
            mtu: MTU,
            addresses: Vec::new(),
            routes: vec![IpNet::V4(network)],
            congestion_control: congestion_control.to_owned(),
        };
        let path = namespace.path();
        let port = in_thread(move || {
            NetNs::open(&path).and_then(|namespace| namespace.enter()).map_err(Failure::io("enter a namespace"))?;
            let port = make_device(&device)?;
            port.tun.without_offload().map_err(Failure::io("set up a network device"))?;
            // That of this namespace.
            let forward = "/proc/sys/net/ipv4/ip_forward";
            fs::write(forward, "1").map_err(Failure::io(format_args!("write {forward}")))?;
            Ok(port)
        })?;
        let mover = Mover::start(port, socket, key, Peers::Joined { network, known: Vec::new() })?;
        let (key, congestion_control) = (key.to_string(), congestion_control.to_owned());
        Ok(Meeting { invitation: Invitation { address, key, congestion_control }, mover: Some(mover) })
    }

    /// Returns what has disturbed packets so far.
    pub(crate) fn disturbance(&self) -> Disturbance {
        let of = |mover: &Mover| Disturbance {
            lost: mover.lost.load(Ordering::Relaxed),
            strained_ms: mover.strained_ms.load(Ordering::Relaxed),
        };
        self.mover.as_ref().map(of).unwrap_or_default()
    }

    /// Returns whether packets are no longer moved: the device was removed.
    pub(crate) fn has_ended(&self) -> bool {
        self.mover.as_ref().is_none_or(|mover| mover.thread.is_finished())
    }

    /// Returns what another host needs.
    pub(crate) fn invitation(&self) -> &Invitation {
        &self.invitation
    }
}

impl Drop for Meeting {
    fn drop(&mut self) {
        self.mover.take().into_iter().for_each(|mover| _ = mover.stop());
    }
}

/// The settings of a command that joins a test bed on another host.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Where the class receives datagrams.
    pub address: SocketAddr,
    /// Its key.
    pub key: Key,
    /// The command, with its arguments; not empty.
    pub command: Vec<OsString>,
    /// TCP's congestion control.
    pub congestion_control: String,
}

/// Runs a command in the class of a test bed on another host; there the server is [`HOST4`]. Returns its exit status, and the CPU time that
/// moving its packets has taken. Call it before starting any thread, so that all threads leave signals to this one; a terminating
/// signal ends the command, and then this returns.
///
/// # Errors
/// When the test bed does not answer or ends, permission or `ip` is missing, or the command cannot be started. Nothing is left behind then
/// either.
pub fn run(settings: &Settings) -> Result<(ExitStatus, Duration), Failure> {
    let signals = Signals::block().map_err(Failure::io("block signals"))?;
    be_allowed()?;
    Mark::end_orphans();
    let mark = Mark::own()?;
    check_congestion_control(&settings.congestion_control)?;
    let session = u64::from_be_bytes(random().map_err(Failure::io("read /dev/urandom"))?);
    let (socket, own) = meet(settings, session, &signals)?;
    let device = DeviceSettings {
        name: DEVICE.to_owned(),
        mtu: MTU,
        addresses: vec![own.into()],
        routes: vec![IpAddr::from(HOST4).into()],
        congestion_control: settings.congestion_control.clone(),
    };
    let (ports, port) = channel();
    let (starts, start) = channel();
    let (events, ended) = channel();
    let inside = Inside { command: settings.command.clone(), device, mark };
    let thread = inside.start(ports, start, events)?;
    // Without a device, it has sent its error before it ended.
    let Ok(port) = port.recv() else { return Err(failure_of(&ended)) };
    port.tun.without_offload().map_err(Failure::io("set up a network device"))?;
    let mover = Mover::start(port, socket, settings.key, Peers::Testbed { session, flow: Flow::default() })?;
    // A thread that has ended is detected below.
    let _ = starts.send(());
    let result = wait(&ended, &signals, || mover.thread.is_finished());
    mark.end_all();
    let _ = thread.join();
    // One of them may have been another `ammeter wan`.
    Mark::end_orphans();
    let moved = mover.stop();
    result.and_then(|status| Ok((status, moved?)))
}

/// Asks the test bed for an address. Returns it, with the socket that packets go through.
fn meet(settings: &Settings, session: u64, signals: &Signals) -> Result<(UdpSocket, Ipv4Addr), Failure> {
    let any: IpAddr =
        if settings.address.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let socket = UdpSocket::bind((any, 0)).map_err(Failure::io("open a socket"))?;
    socket.connect(settings.address).map_err(Failure::io(format_args!("reach {}", settings.address)))?;
    socket.set_read_timeout(Some(ASK_AGAIN)).map_err(Failure::io("set up a socket"))?;
    let (begin, greeting) = (Instant::now(), Greeting { session, lost: 0, strained_ms: 0 });
    let mut buffer = [0; 64];
    while begin.elapsed() < ANSWER {
        if signals.wait_for(Duration::ZERO).is_some() {
            return Err(Failure::failed("interrupted"));
        }
        // Refused, for instance: nobody receives there yet.
        let _ = socket.send(&[&settings.key.0[..], &greeting.bytes()].concat());
        if let Ok(count) = socket.recv(&mut buffer)
            && let Some(octets) = content(&buffer[..count], settings.key)
            && let Ok(octets) = <[u8; 4]>::try_from(octets)
        {
            return Ok((socket, Ipv4Addr::from(octets)));
        }
        // An error comes at once.
        thread::sleep(Duration::from_millis(10));
    }
    Err(Failure::failed(format!(
        "no test bed answers at {}; is it up, has it this key (ammeter wan invite), do datagrams (UDP) reach it, and have fewer than \
         {PEERS_MAX} hosts joined?",
        settings.address
    )))
}

/// What follows the key of a datagram that has it.
fn content(datagram: &[u8], key: Key) -> Option<&[u8]> {
    datagram.strip_prefix(&key.0)
}

/// The addresses of a packet: source and destination; `None` if it is not of IPv4 (RFC 791, 3.1).
fn addresses(packet: &[u8]) -> Option<[Ipv4Addr; 2]> {
    let octets = |at: usize| Some(Ipv4Addr::from(<[u8; 4]>::try_from(packet.get(at..at + 4)?).ok()?));
    (packet.first()? >> 4 == 4).then_some([octets(12)?, octets(16)?])
}

/// What a joined host reports from time to time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Greeting {
    /// Identifies the program, whatever its address.
    session: u64,
    /// Packets of the test bed that were lost so far.
    lost: u32,
    /// Time in which its thread was busy, in milliseconds.
    strained_ms: u32,
}

const GREETING_BYTES: usize = 16;

impl Greeting {
    fn bytes(self) -> [u8; GREETING_BYTES] {
        let mut bytes = [0; GREETING_BYTES];
        bytes[..8].copy_from_slice(&self.session.to_be_bytes());
        bytes[8..12].copy_from_slice(&self.lost.to_be_bytes());
        bytes[12..].copy_from_slice(&self.strained_ms.to_be_bytes());
        bytes
    }

    fn read(bytes: &[u8]) -> Option<Greeting> {
        let bytes = <[u8; GREETING_BYTES]>::try_from(bytes).ok()?;
        let (session, counts) = bytes.split_first_chunk()?;
        let (lost, strained_ms) = counts.split_first_chunk()?;
        Some(Greeting {
            session: u64::from_be_bytes(*session),
            lost: u32::from_be_bytes(*lost),
            strained_ms: u32::from_be_bytes(strained_ms.try_into().ok()?),
        })
    }
}

/// The datagrams between two hosts, and how many were lost.
#[derive(Clone, Copy, Debug, Default)]
struct Flow {
    sent: u32,
    received: u32,
    /// The number after the highest that was received.
    next: u32,
}

impl Flow {
    /// Returns the number of the next datagram.
    fn number(&mut self) -> u32 {
        self.sent = self.sent.wrapping_add(1);
        self.sent.wrapping_sub(1)
    }

    /// Notes a datagram of this number.
    fn note(&mut self, number: u32) {
        self.received = self.received.wrapping_add(1);
        let after = number.wrapping_add(1);
        if after.wrapping_sub(self.next).cast_signed() > 0 {
            self.next = after;
        }
    }

    /// Datagrams that were sent here and have not arrived, or not yet. A network that repeats one hides another's loss.
    fn lost(&self) -> u32 {
        self.next.wrapping_sub(self.received).cast_signed().max(0).cast_unsigned()
    }
}

/// The other ends of datagrams.
#[derive(Debug)]
enum Peers {
    /// The test bed.
    Testbed { session: u64, flow: Flow },
    /// Joined hosts, in the order of their addresses.
    Joined { network: Ipv4Net, known: Vec<Peer> },
}

/// A joined host.
#[derive(Debug)]
struct Peer {
    at: SocketAddr,
    /// When something arrived from it.
    heard: Instant,
    /// Its last greeting.
    greeting: Greeting,
    flow: Flow,
    /// That of the hosts that had its address before.
    before: Disturbance,
}

impl Peers {
    /// The address of a host of this number, from 0.
    fn address(network: Ipv4Net, number: usize) -> Ipv4Addr {
        Ipv4Addr::from_bits(network.network().to_bits() + number as u32 + 1)
    }

    /// Handles a greeting. Returns the address of the host, unless there is none.
    fn admit(&mut self, at: SocketAddr, greeting: Greeting, now: Instant) -> Option<Ipv4Addr> {
        let Peers::Joined { network, known } = self else { return None };
        let new = |before| Peer { at, heard: now, greeting, flow: Flow::default(), before };
        let number = match known.iter().position(|peer| peer.greeting.session == greeting.session) {
            Some(number) => number,
            None if known.len() < PEERS_MAX => {
                known.push(new(Disturbance::default()));
                known.len() - 1
            }
            None => {
                let (number, oldest) = known.iter().enumerate().min_by_key(|(_, peer)| peer.heard)?;
                if now.duration_since(oldest.heard) <= SILENCE {
                    return None;
                }
                known[number] = new(oldest.disturbance());
                number
            }
        };
        let peer = &mut known[number];
        (peer.at, peer.heard, peer.greeting) = (at, now, greeting);
        Some(Peers::address(*network, number))
    }

    /// Notes a packet. Returns whether it may come from this host.
    fn note(&mut self, from: SocketAddr, number: u32, packet: &[u8], now: Instant) -> bool {
        match self {
            Peers::Testbed { flow, .. } => {
                flow.note(number);
                true
            }
            Peers::Joined { network, known } => {
                // The last one, if an address was used by another program before.
                let Some(place) = known.iter().rposition(|peer| peer.at == from) else { return false };
                let peer = &mut known[place];
                peer.heard = now;
                peer.flow.note(number);
                addresses(packet).is_some_and(|[source, _]| Peers::address(*network, place) == source)
            }
        }
    }

    /// The host to which a packet goes, and its datagrams. `None` if there is no such host, or the packet is not of IPv4.
    fn route(&mut self, packet: &[u8]) -> Option<(Option<SocketAddr>, &mut Flow)> {
        let [_, to] = addresses(packet)?;
        match self {
            Peers::Testbed { flow, .. } => Some((None, flow)),
            Peers::Joined { network, known } => {
                let number = to.to_bits().checked_sub(network.network().to_bits() + 1)?;
                let peer = known.get_mut(number as usize)?;
                Some((Some(peer.at), &mut peer.flow))
            }
        }
    }

    /// What the numbers and the greetings tell of disturbances.
    fn disturbance(&self) -> Disturbance {
        match self {
            Peers::Testbed { flow, .. } => Disturbance { lost: flow.lost().into(), strained_ms: 0 },
            Peers::Joined { known, .. } => known.iter().map(Peer::disturbance).sum(),
        }
    }
}

impl Peer {
    fn disturbance(&self) -> Disturbance {
        let lost = u64::from(self.flow.lost()) + u64::from(self.greeting.lost);
        self.before + Disturbance { lost, strained_ms: self.greeting.strained_ms.into() }
    }
}

/// A thread that moves packets between a device and a socket.
#[derive(Debug)]
struct Mover {
    thread: JoinHandle<Result<Duration, Failure>>,
    is_over: Arc<AtomicBool>,
    /// Packets lost so far.
    lost: Arc<AtomicU64>,
    /// Time in which this thread, and those of joined hosts, were busy.
    strained_ms: Arc<AtomicU64>,
}

/// What the thread works with.
struct Work {
    port: Port,
    socket: UdpSocket,
    key: Key,
    peers: Peers,
    buffer: Vec<u8>,
    lost: Arc<AtomicU64>,
    strained_ms: Arc<AtomicU64>,
    own_strained: Duration,
    /// When the thread's time was last read, and that time: running or waiting for a core.
    checked: (Instant, Duration),
    /// When a greeting was sent, and when something arrived.
    greeted: Instant,
    heard: Instant,
}

impl Mover {
    fn start(port: Port, socket: UdpSocket, key: Key, peers: Peers) -> Result<Mover, Failure> {
        let set_up = || {
            amped_sys::socket::raise_receive_buffer(&socket, SOCKET_BYTES)?;
            socket.set_nonblocking(true)
        };
        set_up().map_err(Failure::io("set up a socket"))?;
        let is_over = Arc::new(AtomicBool::new(false));
        let [lost, strained_ms] = [0, 0].map(|count| Arc::new(AtomicU64::new(count)));
        let now = Instant::now();
        let mut work = Work {
            port,
            socket,
            key,
            peers,
            buffer: vec![0; BUFFER_BYTES],
            lost: Arc::clone(&lost),
            strained_ms: Arc::clone(&strained_ms),
            own_strained: Duration::ZERO,
            checked: (now, Duration::ZERO),
            greeted: now,
            heard: now,
        };
        let over = Arc::clone(&is_over);
        let run = move || {
            // An ordinary thread may wait for milliseconds while packets arrive; without the permission it is one.
            let _ = clock::run_first(PRIORITY - 1);
            while !over.load(Ordering::Relaxed) {
                work.turn()?;
            }
            work.check();
            work.greet();
            Ok(clock::cpu_time())
        };
        let thread = thread::Builder::new().name("join".to_owned()).spawn(run);
        Ok(Mover { thread: thread.map_err(Failure::io("start a thread"))?, is_over, lost, strained_ms })
    }

    /// Ends the thread. Returns its CPU time.
    ///
    /// # Errors
    /// Why it has ended before.
    fn stop(self) -> Result<Duration, Failure> {
        self.is_over.store(true, Ordering::Relaxed);
        self.thread.join().unwrap_or_else(|_| Err(Failure::failed("the thread that moves packets panicked")))
    }
}

impl Work {
    /// Moves what there is, or waits.
    fn turn(&mut self) -> Result<(), Failure> {
        let ready = poll::wait_readable(&[self.port.tun.as_fd(), self.socket.as_fd()], CHECK);
        let ready = ready.map_err(Failure::io("wait for packets"))?;
        if ready[0] {
            self.send_packets()?;
        }
        if ready[1] {
            self.receive_packets()?;
        }
        if self.checked.0.elapsed() >= CHECK {
            self.check();
        }
        if matches!(self.peers, Peers::Testbed { .. }) {
            if self.heard.elapsed() > ENDED {
                return Err(Failure::failed(format!(
                    "the test bed has not answered for {ENDED:?}: it has ended, or cannot be reached"
                )));
            }
            if self.greeted.elapsed() >= GREET {
                self.greet();
            }
        }
        Ok(())
    }

    /// Updates the losses, and the time in which the thread was busy without a pause.
    fn check(&mut self) {
        let (now, busy) = (Instant::now(), busy_time());
        let (before, known) = self.checked;
        let (elapsed, own) = (now - before, busy.saturating_sub(known));
        if own > elapsed.mul_f64(BUSY) {
            self.own_strained += elapsed;
        }
        self.checked = (now, busy);
        let Disturbance { lost, strained_ms } = self.peers.disturbance();
        self.lost.store(lost + self.port.statistics.dropped(), Ordering::Relaxed);
        self.strained_ms.store(strained_ms + self.own_strained.as_millis() as u64, Ordering::Relaxed);
    }

    /// Sends a greeting, if the other end is a test bed.
    fn greet(&mut self) {
        if let Peers::Testbed { session, .. } = self.peers {
            self.greeted = Instant::now();
            let [lost, strained_ms] = [&self.lost, &self.strained_ms].map(|count| count.load(Ordering::Relaxed) as u32);
            let greeting = Greeting { session, lost, strained_ms };
            // It is sent again.
            let _ = self.socket.send(&[&self.key.0[..], &greeting.bytes()].concat());
        }
    }

    /// Sends packets of the device as datagrams.
    fn send_packets(&mut self) -> Result<(), Failure> {
        for _ in 0..BURST {
            // The packet's header is where the end of the datagram's will be.
            let count = match self.port.tun.read(&mut self.buffer[HEAD_BYTES - HEADER_BYTES..]) {
                Ok(count) => count,
                Err(error) => return self.unless_gone(&error),
            };
            let end = (HEAD_BYTES - HEADER_BYTES + count).max(HEAD_BYTES);
            let Some((to, flow)) = self.peers.route(&self.buffer[HEAD_BYTES..end]) else { continue };
            let number = flow.number().to_be_bytes();
            self.buffer[..KEY_BYTES].copy_from_slice(&self.key.0);
            self.buffer[KEY_BYTES..HEAD_BYTES].copy_from_slice(&number);
            self.send(to, end);
        }
        Ok(())
    }

    /// Sends a datagram of this length, which has a number: the other side notices if it is lost.
    fn send(&self, to: Option<SocketAddr>, length: usize) {
        let send = || match to {
            None => self.socket.send(&self.buffer[..length]),
            Some(to) => self.socket.send_to(&self.buffer[..length], to),
        };
        if send().is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock) {
            let _ = poll::wait(&[(self.socket.as_fd(), Until::Writable)], FULL);
            let _ = send();
        }
    }

    /// Passes packets in datagrams to the device, and answers greetings.
    fn receive_packets(&mut self) -> Result<(), Failure> {
        for _ in 0..BURST {
            let Ok((count, from)) = self.socket.recv_from(&mut self.buffer) else { return Ok(()) };
            let Some(content) = content(&self.buffer[..count], self.key) else { continue };
            let now = Instant::now();
            self.heard = now;
            if let Some(greeting) = Greeting::read(content) {
                if let Some(own) = self.peers.admit(from, greeting, now) {
                    let _ = self.socket.send_to(&[&self.key.0[..], &own.octets()].concat(), from);
                }
                continue;
            }
            let Some((number, packet)) = content.split_first_chunk().filter(|(_, packet)| !packet.is_empty()) else {
                continue;
            };
            if self.peers.note(from, u32::from_be_bytes(*number), packet, now)
                && let Err(error) = self.port.tun.write(&[IoSlice::new(&[0; HEADER_BYTES]), IoSlice::new(packet)])
            {
                self.unless_gone(&error)?;
            }
        }
        Ok(())
    }

    /// The failure if the device is gone; other errors concern one packet.
    fn unless_gone(&self, error: &io::Error) -> Result<(), Failure> {
        match amped_sys::tun::is_gone(error) {
            true => Err(Failure::failed(format!("the device {} was removed", self.port.name))),
            false => Ok(()),
        }
    }
}

/// A thread that was running or waiting for a core for more than this share of an interval had no pause in it.
const BUSY: f64 = 0.8;

/// The time in which the calling thread has run or waited for a core (proc_pid_schedstat(5)); zero if that is unknown.
fn busy_time() -> Duration {
    let text = fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    text.split_whitespace().take(2).filter_map(|field| field.parse().ok()).map(Duration::from_nanos).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packet(from: [u8; 4], to: [u8; 4]) -> Vec<u8> {
        [&[0x45; 12][..], &from, &to].concat()
    }

    #[test]
    fn key_round_trips() {
        let key = Key(random().expect("random bytes"));
        assert_eq!(key.to_string().parse(), Ok(key));
        for bad in ["", "0", &"g".repeat(32), &"0".repeat(31), &"0".repeat(33), "+0000000000000000000000000000000"] {
            assert!(bad.parse::<Key>().is_err_and(|error| error.contains("invite")) || bad.starts_with('+'), "{bad}");
        }
    }

    fn greeting(session: u64) -> Greeting {
        Greeting { session, lost: 0, strained_ms: 0 }
    }

    #[test]
    fn joined_hosts_have_addresses_and_send_from_no_other() {
        let network: Ipv4Net = "10.78.254.0/24".parse().expect("a network");
        let mut peers = Peers::Joined { network, known: Vec::new() };
        let host = |number: u64| SocketAddr::from(([192, 0, 2, (number % 250) as u8], 1000 + number as u16));
        let now = Instant::now();
        for number in 0..PEERS_MAX as u64 {
            let expected = Ipv4Addr::new(10, 78, 254, number as u8 + 1);
            // It may ask twice.
            let admitted = [(); 2].map(|()| peers.admit(host(number), greeting(number), now));
            assert_eq!(admitted, [Some(expected); 2]);
        }
        assert_eq!(peers.admit(host(999), greeting(999), now), None);
        let server = HOST4.octets();
        assert!(peers.note(host(2), 0, &packet([10, 78, 254, 3], server), now + SILENCE));
        assert!(!peers.note(host(2), 1, &packet([10, 78, 254, 4], server), now));
        assert!(!peers.note(host(999), 0, &packet([10, 78, 254, 3], server), now));
        for bad in [&[][..], &[0x60; 40], &[0x45; 15]] {
            assert!(!peers.note(host(2), 2, bad, now));
        }
        // Its address changes, as behind NAT.
        assert_eq!(peers.admit(host(500), greeting(3), now), Some(Ipv4Addr::new(10, 78, 254, 4)));
        assert!(peers.note(host(500), 0, &packet([10, 78, 254, 4], server), now));
        // The one that was silent for longest loses its address.
        let later = now + SILENCE * 2;
        assert_eq!(peers.admit(host(999), greeting(999), later), Some(Ipv4Addr::new(10, 78, 254, 1)));
        assert!(!peers.note(host(0), 0, &packet([10, 78, 254, 1], server), later));
    }

    #[test]
    fn lost_datagrams_are_counted_in_both_directions() {
        let mut flow = Flow::default();
        assert_eq!([(); 3].map(|()| flow.number()), [0, 1, 2]);
        // Reordering is no loss, nor is one that comes twice.
        for (number, lost) in [(0, 0), (2, 1), (1, 0), (5, 2), (4, 1), (6, 1), (3, 0), (6, 0)] {
            flow.note(number);
            assert_eq!(flow.lost(), lost, "{number}");
        }
        // The numbers begin again.
        let mut flow = Flow { next: u32::MAX, received: u32::MAX, ..Flow::default() };
        [u32::MAX, 0, 2].into_iter().for_each(|number| flow.note(number));
        assert_eq!(flow.lost(), 1);

        let said = Greeting { session: 7, lost: 4, strained_ms: 5 };
        assert_eq!(Greeting::read(&said.bytes()), Some(said));
        assert_eq!(Greeting::read(&said.bytes()[1..]), None);
        let network: Ipv4Net = "10.78.254.0/24".parse().expect("a network");
        let mut peers = Peers::Joined { network, known: Vec::new() };
        let (at, now) = (SocketAddr::from(([192, 0, 2, 1], 1)), Instant::now());
        peers.admit(at, said, now);
        let sent = packet([10, 78, 254, 1], HOST4.octets());
        assert!(peers.note(at, 3, &sent, now) && peers.note(at, 4, &sent, now));
        assert_eq!(peers.disturbance(), Disturbance { lost: 3 + 4, strained_ms: 5 });
        // Another program with the same port begins at 0.
        assert_eq!(peers.admit(at, greeting(8), now), Some(Ipv4Addr::new(10, 78, 254, 2)));
        assert!(peers.note(at, 0, &packet([10, 78, 254, 2], HOST4.octets()), now));
        assert_eq!(peers.disturbance(), Disturbance { lost: 3 + 4, strained_ms: 5 });
    }
}
