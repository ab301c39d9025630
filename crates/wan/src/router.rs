//! The delay router: reads packets from the devices of clients and
//! server, gets the departure time of each from the links, and sends it then.
//!
//! One thread, one wait. A turn: (1) wait until a packet arrives or the next one is due, polling the clock at the end
//! (`SPIN`), since a sleeping thread wakes tens of microseconds late; (2) read the arrived packets, a batch per device;
//! (3) send the packets that are due. The lateness of each packet is always measured: lateness is the router's fault,
//! not the emulated network's, and [`Report::verdict`] says so. The same holds for packets that the kernel dropped
//! before they were read, and for packets that exceeded the router's memory limit. Times in which the machine did not
//! run the thread although it was runnable are reported separately ([`Stalls`], and time stolen by the hypervisor): no
//! router sends on time while it does not run.
//!
//! A large packet is one buffer, with one entry in its link per segment. Segments that leave in the same turn are
//! written together, so a fast link costs less per byte, and a slow one sends single packets.

use std::cell::{Cell, RefCell};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use amped_measure::host::stolen_ns;
use amped_measure::{Failure, Validity, Verdict};
use amped_sys::clock::{self, Clock};
use amped_sys::epoll::{Epoll, Events, Interest};
use amped_sys::eventfd::EventFd;
use amped_sys::process;
use amped_sys::tun::{self, HEADER_BYTES, Tun};
use amped_units::{Bytes, Time};
use hdrhistogram::Histogram;
use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::agenda::Agenda;
use crate::capture::{Capture, Happened};
use crate::link::{Bandwidth, Counts, Departure, Link};
use crate::packet::{self, Layout, Packet};
use crate::path::{PathSettings, Prefixes};
use crate::queue::Cause;

/// A device of the router.
#[derive(Debug)]
pub struct Port {
    /// Name in reports and captures.
    pub name: String,
    /// The router's end of the device.
    pub tun: Tun,
    /// Its line of `/proc/net/dev`, opened in its namespace: the number
    /// of packets that the kernel dropped before they were read.
    pub statistics: Statistics,
}

/// The counters of one device (proc_pid_net(5), `/proc/net/dev`).
#[derive(Debug)]
pub struct Statistics {
    file: File,
    device: String,
}

impl Statistics {
    /// Opens the counters of this device in the namespace of the calling thread.
    ///
    /// # Errors
    /// When `/proc` is not mounted.
    pub fn open(device: &str) -> io::Result<Statistics> {
        Ok(Statistics { file: File::open("/proc/thread-self/net/dev")?, device: device.to_owned() })
    }

    /// Packets for the device that the kernel dropped because its queue was full; 0 once the device is removed.
    pub(crate) fn dropped(&self) -> u64 {
        let mut text = vec![0; 16 * 1024];
        let length = self.file.read_at(&mut text, 0).unwrap_or(0);
        dropped_of(&String::from_utf8_lossy(&text[..length]), &self.device).unwrap_or(0)
    }
}

fn dropped_of(table: &str, device: &str) -> Option<u64> {
    let line = table.lines().find_map(|line| line.trim_start().strip_prefix(device)?.strip_prefix(':'))?;
    // Eight receive counters, then bytes, packets, errors and drops of transmission.
    line.split_whitespace().nth(8 + 3)?.parse().ok()
}

/// A path, and the clients that use it.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Name in reports.
    pub name: String,
    /// Addresses of its clients.
    pub prefixes: Vec<IpNet>,
    /// Index of its clients' device in [`RouterSettings::clients`].
    pub client: usize,
    /// Its two links.
    pub settings: PathSettings,
}

/// The configuration of a router.
#[derive(Debug)]
pub struct RouterSettings {
    /// The server's device.
    pub server: Port,
    /// The clients' devices.
    pub clients: Vec<Port>,
    /// The paths between them.
    pub paths: Vec<Plan>,
    /// The seed of all random draws.
    pub seed: u64,
    /// TCP's congestion control, which is set where devices are made ([`crate::place`]) and recorded here.
    pub congestion_control: String,
    /// Maximum bytes of packets held; packets beyond count as overflow.
    pub held_max: Bytes,
    /// The capture file; `None` for no capture.
    pub capture: Option<PathBuf>,
}

/// How long before a departure the router polls the clock instead of sleeping: a sleeping thread wakes 80 to 120 us late
/// at p99 even with `SCHED_FIFO` (on a virtual machine of two cores, Linux 6.18). Packets 40 ms apart leave 33 us late
/// at p99 with 60 us, and 5 us late with 150 us.
const SPIN: Duration = Duration::from_micros(150);

/// Maximum share of the time that threads which move packets between hosts are busy without a pause.
const STRAINED_MAX: f64 = 0.01;

/// The statistics so far.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Run time of the router, in seconds.
    pub seconds: f64,
    /// CPU time of its thread, in seconds.
    pub cpu_seconds: f64,
    /// The scheduling of its thread, and the accuracy to expect.
    pub scheduling: String,
    /// Whether it runs with real-time priority.
    pub is_realtime: bool,
    /// The seed of all random draws.
    pub seed: u64,
    /// TCP's congestion control on the paths.
    pub congestion_control: String,
    /// Lateness of the packets.
    pub lateness: Lateness,
    /// Times in which the router was runnable but did not run.
    pub stalls: Stalls,
    /// CPU time that a hypervisor stole from this machine meanwhile, all cores together, in seconds, in ticks of 10 ms.
    pub stolen_s: f64,
    /// Packets beyond the router's memory limit.
    pub overflow: u64,
    /// Packets that the kernel dropped before the router could read them.
    pub kernel_dropped: u64,
    /// Packets that were lost between this host and those that have joined the test bed.
    pub lost_between_hosts: u64,
    /// Time in which a thread that moves packets between the hosts ran or waited for a core without a pause, in milliseconds.
    pub strained_ms: u64,
    /// Packets that a device refused because it was down.
    pub refused: u64,
    /// Packets from or to addresses without a path.
    pub no_path: u64,
    /// Packets other than IP, or with invalid headers.
    pub not_ip: u64,
    /// Blocks of 1 MiB missing from the capture because the disk was too slow.
    pub capture_left_out: u64,
    /// Statistics of each path.
    pub paths: Vec<PathReport>,
}

/// Actual minus intended departure time, in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Lateness {
    /// Number of packets.
    pub packets: u64,
    /// The median.
    pub p50_us: f64,
    /// The 99th percentile.
    pub p99_us: f64,
    /// The 99.9th percentile.
    pub p999_us: f64,
    /// The maximum.
    pub max_us: f64,
}

/// Waits that ended more than [`STALL`] late: the kernel ran another thread, or the hypervisor another machine. Packets
/// due meanwhile leave late with any router.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Stalls {
    /// Number of stalls.
    pub count: u64,
    /// Their total length, in milliseconds.
    pub sum_ms: f64,
    /// Length of the longest, in milliseconds.
    pub max_ms: f64,
}

/// Longer than the kernel takes to wake a real-time thread (80 to 120 us at p99 without a spin, Linux 6.18).
pub const STALL: Duration = Duration::from_micros(150);

/// Statistics of a path.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PathReport {
    /// Its name.
    pub name: String,
    /// To the server.
    pub up: LinkReport,
    /// To the client.
    pub down: LinkReport,
}

/// Statistics of a link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LinkReport {
    /// Packets by outcome.
    pub packets: Counts,
    /// Packets in the link now.
    pub held: u64,
    /// Packets in its queue now.
    pub queue_packets: u64,
    /// Bytes in its queue now.
    pub queue_bytes: u64,
    /// Mean delay of the packets that left, in milliseconds.
    pub delay_mean_ms: f64,
    /// Maximum delay of these packets, in milliseconds.
    pub delay_max_ms: f64,
}

impl Report {
    /// Whether the paths or the router shaped the traffic: path-bound if more than 1 % of the packets left more than
    /// `bound` late, or if any were dropped other than by a model.
    pub fn verdict(&self, bound: Duration) -> Verdict {
        let mut verdict = Verdict::valid();
        let bound_us = bound.as_secs_f64() * 1e6;
        if self.lateness.p99_us > bound_us {
            verdict.weaken(
                Validity::PathBound,
                format!(
                    "packets left {:.1} us late at p99, more than {bound_us:.0} us{}",
                    self.lateness.p99_us,
                    self.machine()
                ),
            );
        }
        for (count, what) in [
            (self.overflow, "were dropped by the router's full queue"),
            (self.kernel_dropped, "were dropped by the kernel before the router read them"),
            (self.lost_between_hosts, "were lost between the hosts, not on the path"),
            (self.refused, "were dropped because the device was down"),
        ] {
            if count > 0 {
                verdict.weaken(Validity::PathBound, format!("{count} packets {what}"));
            }
        }
        if self.strained_ms as f64 > STRAINED_MAX * self.seconds * 1e3 {
            let ms = self.strained_ms;
            verdict.weaken(
                Validity::PathBound,
                format!("moving packets between the hosts kept a thread busy for {ms} ms"),
            );
        }
        verdict
    }

    /// Explains lateness by stalls of the machine, as a suffix; empty if there were none.
    pub fn machine(&self) -> String {
        let mut text = String::new();
        if let Stalls { count: count @ 1.., sum_ms, max_ms } = self.stalls {
            let times = if count == 1 { "once" } else { "times" };
            let count = if count == 1 { String::new() } else { format!("{count} ") };
            text.push_str(&format!(
                "; {count}{times} the router was runnable but did not run, {max_ms:.1} ms at most and {sum_ms:.1} ms in total"
            ));
        }
        if self.stolen_s > 0.0 {
            text.push_str(&format!("; meanwhile the hypervisor stole {:.0} ms of CPU time", self.stolen_s * 1e3));
        }
        text
    }
}

/// A running router.
#[derive(Debug)]
pub struct Router {
    orders: Sender<Order>,
    bell: Arc<EventFd>,
    thread: JoinHandle<Result<Report, Failure>>,
    /// Time stolen by a hypervisor before the start.
    stolen_ns: u64,
}

enum Order {
    Report(Sender<Report>),
    Lateness(Sender<Lateness>),
    SetBandwidth(String, Bandwidth),
    Stop,
}

impl Router {
    /// Starts a router in a thread of its own; returns when it runs.
    ///
    /// # Errors
    /// When no thread, descriptor or capture file is available, or two paths have the same prefix.
    pub fn start(settings: RouterSettings) -> Result<Router, Failure> {
        let bell = Arc::new(EventFd::new().map_err(Failure::io("create an eventfd for the router"))?);
        let (orders, received) = channel();
        let (begun, has_begun) = channel();
        let ring = Arc::clone(&bell);
        let stolen_ns = stolen_ns()?;
        let thread = thread::Builder::new()
            .name("router".to_owned())
            .spawn(move || {
                let state = State::new(settings, received, ring)?;
                // The caller of `start` waits for this.
                let _ = begun.send(());
                state.run()
            })
            .map_err(Failure::io("start the router's thread"))?;
        let router = Router { orders, bell, thread, stolen_ns };
        match has_begun.recv() {
            Ok(()) => Ok(router),
            Err(_) => Err(router.stop().err().unwrap_or_else(|| Failure::failed("the router has ended"))),
        }
    }

    /// The statistics so far.
    ///
    /// # Errors
    /// When the router has ended; [`Router::stop`] says why.
    pub fn report(&self) -> Result<Report, Failure> {
        let report = self.ask(Order::Report)?;
        with_stolen(report, self.stolen_ns)
    }

    /// The lateness of packets since the last call, or since the start.
    ///
    /// # Errors
    /// Those of [`Router::report`].
    pub fn lateness(&self) -> Result<Lateness, Failure> {
        self.ask(Order::Lateness)
    }

    fn ask<T>(&self, order: impl FnOnce(Sender<T>) -> Order) -> Result<T, Failure> {
        let (sender, receiver) = channel();
        self.order(order(sender));
        receiver.recv().map_err(|_| Failure::failed("the router has ended"))
    }

    /// Sets the bandwidth of all paths of this name, in both directions.
    pub fn set_bandwidth(&self, path: &str, bandwidth: Bandwidth) {
        self.order(Order::SetBandwidth(path.to_owned(), bandwidth));
    }

    /// Whether the router has stopped on its own; [`Router::stop`] says why.
    pub fn has_ended(&self) -> bool {
        self.thread.is_finished()
    }

    /// Stops the router. Packets in transit are lost.
    ///
    /// # Errors
    /// Why the router had already ended: a device was removed, or the capture could not be written.
    pub fn stop(self) -> Result<Report, Failure> {
        self.order(Order::Stop);
        let Router { thread, stolen_ns: before, .. } = self;
        let report = thread.join().unwrap_or_else(|_| Err(Failure::failed("the router's thread panicked")))?;
        with_stolen(report, before)
    }

    fn order(&self, order: Order) {
        // A router that has ended receives nothing.
        let _ = self.orders.send(order);
        self.bell.ring();
    }
}

/// Adds the time stolen by a hypervisor. The router's thread does not read that file, since packets would wait.
fn with_stolen(report: Report, before_ns: u64) -> Result<Report, Failure> {
    Ok(Report { stolen_s: stolen_ns()?.saturating_sub(before_ns) as f64 / 1e9, ..report })
}

/// A packet in transit, with all its segments.
struct Held {
    buffer: Vec<u8>,
    length: usize,
    layout: Layout,
    arrived: Time,
    pool: Rc<Pool>,
}

impl Held {
    fn view(&self) -> Packet<'_> {
        Packet { bytes: &self.buffer[..self.length], layout: &self.layout }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.pool.give_back(std::mem::take(&mut self.buffer));
    }
}

/// A segment of a packet in transit.
type Segment = (Rc<Held>, u32);

/// Packet buffers, with the number of bytes in use.
#[derive(Default)]
struct Pool {
    held_bytes: Cell<u64>,
    spare: RefCell<Vec<Vec<u8>>>,
}

/// Maximum length of an IP packet with the device header.
const BUFFER_BYTES: usize = 65_535 + HEADER_BYTES;
/// From this size a packet keeps the buffer that it was read into; smaller ones are copied.
const COPY_BYTES_MAX: usize = 8 * 1024;
/// Number of large buffers kept for reuse, 16 MiB.
const SPARE_MAX: usize = 256;

impl Pool {
    /// Keeps the first `length` bytes of `read`.
    fn keep(&self, read: &mut Vec<u8>, length: usize) -> Vec<u8> {
        let buffer = if length <= COPY_BYTES_MAX {
            read[..length].to_vec()
        } else {
            std::mem::replace(read, self.spare.borrow_mut().pop().unwrap_or_else(|| vec![0; BUFFER_BYTES]))
        };
        self.held_bytes.set(self.held_bytes.get() + buffer.len() as u64);
        buffer
    }

    fn give_back(&self, buffer: Vec<u8>) {
        self.held_bytes.set(self.held_bytes.get() - buffer.len() as u64);
        let mut spare = self.spare.borrow_mut();
        if buffer.len() == BUFFER_BYTES && spare.len() < SPARE_MAX {
            spare.push(buffer);
        }
    }
}

/// Maximum packets, and bytes, read from one device before the others. Due packets are sent in between.
const BATCH: usize = 32;
const BATCH_BYTES: usize = 128 * 1024;
/// Maximum spin time in each window of this length. The kernel stops a real-time thread that never sleeps, by default
/// for 50 ms per second (sched(7), `sched_rt_runtime_us`; since Linux 6.12 in favour of ordinary threads that wait for
/// its core, the fair server), which would show in every path.
const WINDOW: Duration = Duration::from_millis(100);
const SPIN_OF_WINDOW: Duration = Duration::from_millis(90);

const BELL: u64 = u64::MAX;

struct State {
    clock: Clock,
    /// The server's first, then the clients'.
    ports: Vec<Port>,
    prefixes: Prefixes,
    names: Vec<String>,
    /// For each path the index of its clients' port.
    clients: Vec<usize>,
    /// Link 2 * path is up, 2 * path + 1 down.
    links: Vec<Link<Segment>>,
    delays: Vec<Delay>,
    agenda: Agenda,
    pool: Rc<Pool>,
    held_max: u64,
    read: Vec<u8>,
    header: Vec<u8>,
    leaving: Vec<Departure<Segment>>,
    /// Packets that left before the last [`Order::Lateness`], and since.
    lateness: Histogram<u64>,
    recent: Histogram<u64>,
    stalls: Stalls,
    capture: Option<Capture>,
    epoll: Epoll,
    orders: Receiver<Order>,
    bell: Arc<EventFd>,
    /// Start of the window, and time spun within it.
    window: Time,
    spun: Duration,
    /// Start of the last turn.
    turned: Time,
    /// Counters that are not kept elsewhere; all other fields stay empty until the end.
    report: Report,
}

/// Real-time priority: above that of clients and servers on the same
/// machine, or packets would wait for the programs that wait for them.
pub(crate) const PRIORITY: u8 = 20;

#[derive(Clone, Copy, Debug, Default)]
struct Delay {
    sum_ns: u64,
    max_ns: u64,
}

impl State {
    fn new(settings: RouterSettings, orders: Receiver<Order>, bell: Arc<EventFd>) -> Result<State, Failure> {
        let RouterSettings { server, clients, paths, seed, congestion_control, held_max, capture } = settings;
        clock::exact_timers();
        let priority = clock::run_first(PRIORITY);
        let is_realtime = priority.is_ok();
        let policy = match priority {
            Ok(()) => {
                // Code that was paged out would be read from disk while
                // packets wait. If locking is refused, the lateness shows it.
                let _ = process::lock_program();
                "SCHED_FIFO".to_owned()
            }
            Err(error) => {
                format!("SCHED_OTHER, since SCHED_FIFO is denied ({error}): packets may leave milliseconds late")
            }
        };
        let scheduling = format!("{policy}; polls the clock in the last {} us", SPIN.as_micros());

        // Up to a minute, with three digits.
        let lateness = Histogram::new_with_bounds(1, 60_000_000_000, 3).expect("1 < 60e9, and 3 figures are allowed");
        let clock = Clock::start();
        let ports: Vec<Port> = std::iter::once(server).chain(clients).collect();
        let epoll = Epoll::new().map_err(Failure::io("create an epoll instance for the router"))?;
        epoll.add(&*bell, BELL, Interest::Readable).map_err(Failure::io("wait for commands"))?;
        for (number, port) in ports.iter().enumerate() {
            epoll.add(&port.tun, number as u64, Interest::Readable).map_err(Failure::io("wait for a device"))?;
        }
        let mut prefixes = Prefixes::default();
        let mut links = Vec::with_capacity(paths.len() * 2);
        // Each link has a seed of its own, independent of the number of links.
        let mut seeds = amped_measure::stats::Random(seed);
        for (number, plan) in paths.iter().enumerate() {
            for prefix in &plan.prefixes {
                if prefixes.insert(*prefix, number as u32).is_some() {
                    return Err(Failure::usage(format!(
                        "two paths have the prefix {}; give each its own",
                        prefix.trunc()
                    )));
                }
            }
            for settings in [&plan.settings.up, &plan.settings.down] {
                links.push(Link::new(settings, seeds.next()));
            }
        }
        let capture = match capture {
            None => None,
            Some(path) => {
                let names: Vec<String> = ports.iter().map(|port| port.name.clone()).collect();
                let place = path.display().to_string();
                let file = File::create(&path).and_then(|file| Capture::begin(file, &names, clock.now()));
                Some(file.map_err(Failure::io(format!("write packets to {place}")))?)
            }
        };
        Ok(State {
            clock,
            ports,
            prefixes,
            clients: paths.iter().map(|plan| plan.client + 1).collect(),
            names: paths.into_iter().map(|plan| plan.name).collect(),
            agenda: Agenda::new(links.len()),
            delays: vec![Delay::default(); links.len()],
            links,
            pool: Rc::default(),
            held_max: held_max.0,
            read: vec![0; BUFFER_BYTES],
            header: Vec::with_capacity(256),
            leaving: Vec::new(),
            recent: lateness.clone(),
            lateness,
            stalls: Stalls::default(),
            capture,
            epoll,
            orders,
            bell,
            window: Time::START,
            spun: Duration::ZERO,
            turned: Time::START,
            report: Report {
                seconds: 0.0,
                cpu_seconds: 0.0,
                scheduling,
                is_realtime,
                seed,
                congestion_control,
                lateness: Lateness::default(),
                stalls: Stalls::default(),
                stolen_s: 0.0,
                overflow: 0,
                kernel_dropped: 0,
                lost_between_hosts: 0,
                strained_ms: 0,
                refused: 0,
                no_path: 0,
                not_ip: 0,
                capture_left_out: 0,
                paths: Vec::new(),
            },
        })
    }

    fn run(mut self) -> Result<Report, Failure> {
        let mut events = Events::with_capacity(self.ports.len() + 1);
        loop {
            let timeout = self.timeout();
            self.epoll.wait(&mut events, timeout).map_err(Failure::io("wait for packets"))?;
            if let Some(timeout) = timeout {
                self.note_stall(self.turned + timeout);
            }
            for ready in events.iter() {
                match ready.token {
                    BELL if self.obey() => return self.end(),
                    BELL => {}
                    port => self.take_in(port as usize)?,
                }
            }
            self.send_due(self.clock.now())?;
        }
    }

    /// Records a stall if the wait, which was due to end at `latest`, ended late.
    fn note_stall(&mut self, latest: Time) {
        let late = self.clock.now() - latest;
        if late > STALL {
            let late_ms = late.as_secs_f64() * 1e3;
            let Stalls { count, sum_ms, max_ms } = self.stalls;
            self.stalls = Stalls { count: count + 1, sum_ms: sum_ms + late_ms, max_ms: max_ms.max(late_ms) };
        }
    }

    fn send_due(&mut self, now: Time) -> Result<(), Failure> {
        while let Some(link) = self.agenda.next(now) {
            self.send(link, now)?;
        }
        Ok(())
    }

    /// How long to sleep: until shortly before the next packet is due, and not at all from then on.
    fn timeout(&mut self) -> Option<Duration> {
        let now = self.clock.now();
        let turned = std::mem::replace(&mut self.turned, now);
        let due = self.agenda.next_due();
        if due == Time::NEVER {
            return None;
        }
        let wait = due - now;
        if wait > SPIN {
            return Some(wait - SPIN);
        }
        if now - self.window > WINDOW {
            (self.window, self.spun) = (now, Duration::ZERO);
        }
        if self.spun >= SPIN_OF_WINDOW {
            return Some(wait);
        }
        // The loop polls without sleeping until then, and sees packets that arrive. It may have slept before.
        self.spun += (now - turned).min(SPIN);
        Some(Duration::ZERO)
    }

    /// Reads up to a batch of packets from a device.
    fn take_in(&mut self, port: usize) -> Result<(), Failure> {
        let mut bytes = 0;
        for _ in 0..BATCH {
            if bytes >= BATCH_BYTES {
                break;
            }
            let length = match self.ports[port].tun.read(&mut self.read) {
                Ok(length) => length,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(self.lost(port, &error)),
            };
            bytes += length;
            let now = self.clock.now();
            let Some(layout) = packet::layout(&self.read[..length]) else {
                self.report.not_ip += 1;
                continue;
            };
            let (direction, client) = if port == 0 { (1, layout.destination) } else { (0, layout.source) };
            let path = self.prefixes.find(client).map(|path| path as usize);
            // An address of another device's clients has no path here.
            let Some(path) = path.filter(|path| port == 0 || self.clients[*path] == port) else {
                self.report.no_path += 1;
                continue;
            };
            if let Some(capture) = &mut self.capture {
                capture.note(now, port as u32, Happened::Entered, &[&self.read[HEADER_BYTES..length]]);
            }
            if self.pool.held_bytes.get() + length as u64 > self.held_max {
                self.report.overflow += u64::from(layout.segments);
                continue;
            }
            let buffer = self.pool.keep(&mut self.read, length);
            let held = Rc::new(Held { buffer, length, layout, arrived: now, pool: Rc::clone(&self.pool) });
            let number = path * 2 + direction;
            let link = &mut self.links[number];
            for segment in 0..layout.segments {
                link.enter(now, held.view().segment_bytes(segment), (Rc::clone(&held), segment));
            }
            self.agenda.remind(number as u32, link.next_due());
            self.forget_dropped(number);
            // Due packets do not wait for the whole batch: reading one takes
            // 50 us, five times as long as a packet takes at 1 Gbit/s.
            self.send_due(now)?;
        }
        Ok(())
    }

    /// Sends the packets of a link that are due.
    fn send(&mut self, number: u32, now: Time) -> Result<(), Failure> {
        let link = &mut self.links[number as usize];
        let mut leaving = std::mem::take(&mut self.leaving);
        leaving.extend(std::iter::from_fn(|| link.pop(now)));
        self.agenda.remind(number, link.next_due());
        self.forget_dropped(number as usize);
        // Adjacent segments of one large packet leave together.
        for run in leaving.chunk_by(|a, b| Rc::ptr_eq(&a.item.0, &b.item.0) && a.item.1 + 1 == b.item.1) {
            self.write(number as usize, run)?;
        }
        leaving.clear();
        self.leaving = leaving;
        Ok(())
    }

    fn write(&mut self, link: usize, run: &[Departure<Segment>]) -> Result<(), Failure> {
        let Some(Departure { item: (held, first), .. }) = run.first() else { return Ok(()) };
        let port = if link.is_multiple_of(2) { 0 } else { self.clients[link / 2] };
        let now = self.clock.now();
        for departure in run {
            self.recent.saturating_record((now - departure.due).as_nanos() as u64);
            let delay_ns = (departure.due - held.arrived).as_nanos() as u64;
            let delay = &mut self.delays[link];
            delay.sum_ns += delay_ns;
            delay.max_ns = delay.max_ns.max(delay_ns);
        }
        let (tun, capture) = (&self.ports[port].tun, &mut self.capture);
        let written = held.view().write(*first, first + run.len() as u32, &mut self.header, |pieces| {
            if let Some(capture) = capture {
                note(capture, now, port, Happened::Left, pieces);
            }
            tun.write(pieces)
        });
        match written {
            Ok(()) => Ok(()),
            Err(error) if tun::is_gone(&error) => Err(self.lost(port, &error)),
            Err(_) => {
                self.report.refused += run.len() as u64;
                Ok(())
            }
        }
    }

    fn forget_dropped(&mut self, link: usize) {
        let port = if link.is_multiple_of(2) { self.clients[link / 2] } else { 0 };
        let dropped = self.links[link].take_dropped();
        let Some(capture) = &mut self.capture else { return };
        for dropped in dropped {
            let cause = match dropped.cause {
                Cause::Loss => "lost",
                Cause::QueueFull => "queue full",
                Cause::CoDel => "codel",
            };
            let (held, segment) = &dropped.item;
            // Nothing is written, so nothing can fail.
            let _ = held.view().write(*segment, segment + 1, &mut self.header, |pieces| {
                note(capture, dropped.at, port, Happened::Dropped(cause), pieces);
                Ok(())
            });
        }
    }

    /// Executes orders; returns whether the router must stop.
    fn obey(&mut self) -> bool {
        self.bell.silence();
        while let Ok(order) = self.orders.try_recv() {
            match order {
                Order::Report(to) => {
                    // The caller may have disconnected.
                    let _ = to.send(self.report_now());
                }
                Order::Lateness(to) => {
                    let _ = to.send(lateness_of(&self.recent));
                    self.forget_recent();
                }
                Order::SetBandwidth(name, bandwidth) => {
                    let now = self.clock.now();
                    for path in (0..self.names.len()).filter(|path| self.names[*path] == name) {
                        for number in [path * 2, path * 2 + 1] {
                            self.links[number].set_bandwidth(now, bandwidth.clone());
                            self.agenda.remind(number as u32, self.links[number].next_due());
                        }
                    }
                }
                Order::Stop => return true,
            }
        }
        false
    }

    /// Merges the recent lateness into that of the whole run.
    fn forget_recent(&mut self) {
        self.lateness.add(&self.recent).expect("both have the same bounds");
        self.recent.reset();
    }

    fn report_now(&self) -> Report {
        let mut lateness = self.lateness.clone();
        lateness.add(&self.recent).expect("both have the same bounds");
        let link = |number: usize| {
            let (link, delay) = (&self.links[number], self.delays[number]);
            let packets = link.counts();
            let (queue_packets, queue_bytes) = link.queued();
            LinkReport {
                packets,
                held: link.held(),
                queue_packets,
                queue_bytes,
                delay_mean_ms: delay.sum_ns as f64 / packets.left.max(1) as f64 / 1e6,
                delay_max_ms: delay.max_ns as f64 / 1e6,
            }
        };
        let paths = self.names.iter().enumerate().map(|(path, name)| PathReport {
            name: name.clone(),
            up: link(path * 2),
            down: link(path * 2 + 1),
        });
        Report {
            seconds: self.clock.now().since(Time::START).as_secs_f64(),
            cpu_seconds: clock::cpu_time().as_secs_f64(),
            lateness: lateness_of(&lateness),
            stalls: self.stalls,
            kernel_dropped: self.ports.iter().map(|port| port.statistics.dropped()).sum(),
            paths: paths.collect(),
            ..self.report.clone()
        }
    }

    fn end(mut self) -> Result<Report, Failure> {
        let mut report = self.report_now();
        if let Some(capture) = self.capture.take() {
            report.capture_left_out = capture.end().map_err(Failure::io("write the packet capture"))?;
        }
        Ok(report)
    }

    fn lost(&self, port: usize, error: &io::Error) -> Failure {
        let name = &self.ports[port].name;
        if tun::is_gone(error) {
            Failure::failed(format!("the device of {name} was removed while the router ran; start again"))
        } else {
            Failure::failed(format!("cannot read packets from the device of {name}: {error}"))
        }
    }
}

fn lateness_of(histogram: &Histogram<u64>) -> Lateness {
    let quantile = |q: f64| if histogram.is_empty() { 0.0 } else { histogram.value_at_quantile(q) as f64 / 1e3 };
    Lateness {
        packets: histogram.len(),
        p50_us: quantile(0.5),
        p99_us: quantile(0.99),
        p999_us: quantile(0.999),
        max_us: quantile(1.0),
    }
}

/// Records a packet without the device header, which begins its first piece.
fn note(capture: &mut Capture, at: Time, port: usize, happened: Happened, pieces: &[io::IoSlice<'_>]) {
    let mut parts: [&[u8]; 2] = [&[], &[]];
    for (part, piece) in parts.iter_mut().zip(pieces) {
        *part = piece;
    }
    parts[0] = parts[0].get(HEADER_BYTES..).unwrap_or_default();
    capture.note(at, port as u32, happened, &parts);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::place::{DeviceSettings, Mark, in_new_namespace, make_device};
    use crate::spec;

    #[test]
    fn kernel_drops_are_parsed() {
        let table = "Inter-|   Receive                            |  Transmit\n \
                     face |bytes    packets errs drop fifo frame compressed multicast|bytes packets errs drop fifo\n\
                     \x20   lo:   1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16\n\
                     wan0: 100 2 0 0 0 0 0 0 900 10 0 77 0 0 0 0\n";
        assert_eq!(dropped_of(table, "wan0"), Some(77));
        assert_eq!(dropped_of(table, "lo"), Some(12));
        assert_eq!(dropped_of(table, "wan"), None);
    }

    #[test]
    fn lateness_determines_verdict() {
        let report: Report = serde_json::from_str(
            r#"{"seconds":1.0,"cpu_seconds":0.1,"scheduling":"x","is_realtime":true,"seed":1,"congestion_control":"cubic","lateness":{"packets":9,"p50_us":1.0,"p99_us":90.0,
                "p999_us":900.0,"max_us":9000.0},"stalls":{"count":0,"sum_ms":0.0,"max_ms":0.0},"stolen_s":0.0,"overflow":0,"kernel_dropped":0,"lost_between_hosts":0,"strained_ms":0,"refused":0,"no_path":3,"not_ip":0,
                "capture_left_out":0,"paths":[]}"#,
        )
        .expect("the form of a report");
        let check = |report: &Report, bound_us: u64, says: &str| {
            let verdict = report.verdict(Duration::from_micros(bound_us));
            assert_eq!(verdict.exit_status(), u8::from(says != "valid"), "{verdict}");
            assert!(verdict.to_string().contains(says), "{verdict}");
        };
        check(&report, 100, "valid");
        check(&report, 80, "late");
        let stalls = Stalls { count: 2, sum_ms: 5.0, max_ms: 4.0 };
        check(&Report { stalls, ..report.clone() }, 80, "2 times the router was runnable but did not run, 4.0 ms");
        check(&Report { stolen_s: 0.03, ..report.clone() }, 80, "stole 30 ms");
        check(&Report { stalls, stolen_s: 0.03, ..report.clone() }, 100, "valid");
        check(&Report { overflow: 1, ..report.clone() }, 100, "full queue");
        check(&Report { kernel_dropped: 1, ..report.clone() }, 100, "kernel");
        check(&Report { lost_between_hosts: 1, ..report.clone() }, 100, "between the hosts");
        check(&Report { strained_ms: 10, ..report.clone() }, 100, "valid");
        check(&Report { strained_ms: 100, ..report.clone() }, 100, "kept a thread busy for 100 ms");
        check(&Report { refused: 1, ..report }, 100, "path-bound");
    }

    #[test]
    fn failed_start_is_reported_with_reason() {
        let check = |prefixes: [&str; 2], capture: Option<&str>, says: &str| {
            let port = |name: &str| {
                let device = DeviceSettings {
                    name: name.to_owned(),
                    mtu: 1500,
                    addresses: Vec::new(),
                    routes: Vec::new(),
                    congestion_control: "cubic".to_owned(),
                };
                let mark = Mark::own().expect("/proc is mounted");
                in_new_namespace(mark, move || make_device(&device)).expect("as root").0
            };
            let link = spec::plain_link;
            let plan = |prefix: &str| Plan {
                name: "path".to_owned(),
                prefixes: vec![prefix.parse().expect("a prefix")],
                client: 0,
                settings: PathSettings { up: link(), down: link() },
            };
            let started = Router::start(RouterSettings {
                server: port("server"),
                clients: vec![port("client")],
                paths: prefixes.iter().map(|prefix| plan(prefix)).collect(),
                seed: 1,
                congestion_control: "cubic".to_owned(),
                held_max: Bytes::mib(1),
                capture: capture.map(PathBuf::from),
            });
            match started {
                Ok(router) => assert!(says.is_empty() && router.stop().is_ok(), "it runs"),
                Err(failure) => assert!(!says.is_empty() && failure.to_string().contains(says), "{failure}"),
            }
        };
        check(["10.1.0.0/16", "10.2.0.0/16"], None, "");
        check(["10.1.0.0/16", "10.1.9.9/16"], None, "10.1.0.0/16");
        check(["10.1.0.0/16", "10.2.0.0/16"], Some("/no/such/folder/file"), "/no/such/folder/file");
    }

    #[test]
    fn large_buffers_are_reused() {
        let pool = Pool::default();
        let mut read = vec![0; BUFFER_BYTES];
        let small = pool.keep(&mut read, 1500);
        assert_eq!((small.len(), read.len(), pool.held_bytes.get()), (1500, BUFFER_BYTES, 1500));
        let large = pool.keep(&mut read, 60_000);
        assert_eq!((large.len(), read.len()), (BUFFER_BYTES, BUFFER_BYTES));
        pool.give_back(large);
        pool.give_back(small);
        assert_eq!((pool.held_bytes.get(), pool.spare.borrow().len()), (0, 1));
    }
}
