//! Tests the router on this machine from its two ends: compares requested with measured figures.
//!
//! Each trial creates two namespaces with a router between them, isolated from the host. Senders and receivers are
//! ordinary UDP and TCP sockets that share one clock: single packets measure the delay, a train of back-to-back packets
//! rate and spacing, many packets the loss, and one connection TCP's throughput. The kernel timestamps each arrival, so
//! that a delayed receiver changes nothing; the router's own lateness is reported beside the figures.
//!
//! A router that is delayed only ever makes packets arrive later, so the rate is computed from the least delayed
//! packets of a train: a stall of some milliseconds does not change it, and is reported separately. Stalls and time
//! stolen by the hypervisor are part of the verdict, since no router meets its settings while it does not run.

use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::thread;
use std::time::Duration;

use amped_measure::stats::median;
use amped_measure::{Failure, Validity, Verdict};
use amped_sys::clock::{self, Clock};
use amped_sys::netns::NetNs;
use amped_sys::{datagram, socket};
use amped_units::Time;
use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::behind::HELD_MAX;
use crate::link::{Bandwidth, Latency};
use crate::loss::Loss;
use crate::path::PathSettings;
use crate::place::{DeviceSettings, Mark, check_congestion_control, in_new_namespace, in_thread, make_device};
use crate::queue::Limit;
use crate::router::{Lateness, PRIORITY, Plan, Report, Router, RouterSettings, Stalls};

const SERVER: [IpAddr; 2] =
    [IpAddr::V4(Ipv4Addr::new(10, 77, 0, 1)), IpAddr::V6(Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, 1))];
const CLIENT: [IpAddr; 2] =
    [IpAddr::V4(Ipv4Addr::new(10, 77, 0, 2)), IpAddr::V6(Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, 2))];
/// Headers of IPv4 and UDP.
const HEADERS4: u32 = 28;
/// Headers of IPv6 and UDP.
const HEADERS6: u32 = 48;
/// Minimum data of a test packet: its number and its send time.
const LEAST_DATA: u32 = 12;
/// After this time without a packet, no more are expected.
const SILENCE: Duration = Duration::from_millis(500);

/// The settings of trials.
#[derive(Clone, Debug)]
pub struct TrialSettings {
    /// The seed of all random draws.
    pub seed: u64,
    /// The largest packet, in bytes at layer 3.
    pub mtu: u32,
    /// TCP's congestion control.
    pub congestion_control: String,
    /// Maximum lateness of packets at p99; by default that of [`late_max`], and [`LATE_MAX`] while TCP sends at full
    /// speed on the same cores as the router.
    pub late_max: Option<Duration>,
    /// Duration of the TCP transfer.
    pub tcp: Duration,
}

/// Requested and measured figures of a trial, in the units that the names say.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Trial {
    /// Name of the path.
    pub name: String,
    /// Delay of a single packet, requested.
    pub delay_asked_ms: f64,
    /// Median delay over IPv4, measured.
    pub delay_got_ms: f64,
    /// Median delay over IPv6, whose packets are 20 bytes longer, measured.
    pub delay6_got_ms: f64,
    /// Rate in Mbit/s, of bytes as the path counts them, requested; 0 if unlimited.
    pub rate_asked_mbit: f64,
    /// Rate of a packet train, between the least delayed packets of its first and its last quarter.
    pub rate_got_mbit: f64,
    /// Extra delay of the latest packet of the train over the least delayed one: how long the router did not run.
    pub train_late_us: f64,
    /// Spacing of the packets of the train, requested.
    pub spacing_asked_us: f64,
    /// Median spacing, measured.
    pub spacing_got_us: f64,
    /// Share of lost packets, requested.
    pub loss_asked: f64,
    /// Share of lost packets, measured.
    pub loss_got: f64,
    /// Number of packets for that share.
    pub loss_packets: u64,
    /// Packets that left the router but overflowed the receiver's buffer; excluded from the loss figures.
    pub loss_missed: u64,
    /// Chi-square of the loss, with one degree of freedom; below 10.83 in 999 of 1000 runs.
    pub loss_chi_square: f64,
    /// Throughput of one TCP connection to the client, in Mbit/s of data.
    pub tcp_mbit: f64,
    /// CPU time of the router per Gbit of it, in seconds.
    pub tcp_cpu_seconds_a_gbit: f64,
    /// Lateness of the router, without TCP.
    pub lateness: Lateness,
    /// Lateness of the router while TCP sent.
    pub tcp_lateness: Lateness,
    /// Times in which the machine did not run the router although it was runnable.
    pub stalls: Stalls,
    /// CPU time that a hypervisor stole meanwhile, in seconds.
    pub stolen_s: f64,
    /// The scheduling of the router's thread.
    pub scheduling: String,
    /// The differences beyond tolerance.
    pub verdict: Verdict,
}

/// Runs one trial over a symmetric path. Call [`crate::place::be_allowed`] first.
///
/// # Errors
/// When permission is missing, `ip` is missing, or the router ends.
pub fn trial(name: &str, path: &PathSettings, settings: &TrialSettings) -> Result<Trial, Failure> {
    check_congestion_control(&settings.congestion_control)?;
    let (server_port, server) = end(settings, SERVER, CLIENT)?;
    let (client_port, client) = end(settings, CLIENT, SERVER)?;
    let mut path = path.clone();
    // The whole train must pass.
    path.up.queue.limit = Limit::Unlimited;
    let router = Router::start(RouterSettings {
        server: server_port,
        clients: vec![client_port],
        paths: vec![Plan {
            name: name.to_owned(),
            prefixes: CLIENT.map(IpNet::from).to_vec(),
            client: 0,
            settings: path.clone(),
        }],
        seed: settings.seed,
        congestion_control: settings.congestion_control.clone(),
        held_max: HELD_MAX,
        capture: None,
    })?;
    let ends = Ends { server, client, clock: Clock::start() };
    let measured = measure(name, &path, settings, &ends, &router);
    // An error of the router precedes those of the two ends.
    let report = router.stop()?;
    let mut trial = measured?;
    // Drops always count; lateness has bounds of its own below.
    trial.verdict = report.verdict(Duration::MAX);
    judge(&mut trial, &path, settings, &report);
    (trial.stalls, trial.stolen_s, trial.scheduling) = (report.stalls, report.stolen_s, report.scheduling);
    Ok(trial)
}

impl Trial {
    /// Whether a failed check may be the machine's fault and not
    /// the router's: there was a stall, or a hypervisor stole time.
    pub fn is_disturbed(&self) -> bool {
        self.verdict.validity != Validity::Valid && (self.stalls.count > 0 || self.stolen_s > 0.0)
    }
}

/// Tolerance of the rate.
const RATE_TOLERANCE: f64 = 0.01;
/// The 99.9 % quantile of chi-square with one degree of freedom.
const CHI_SQUARE_MAX: f64 = 10.83;

/// Default maximum lateness of packets at p99.
pub const LATE_MAX: Duration = Duration::from_millis(1);

/// Maximum lateness at p99 of packets below full speed: the figure that a real-time router reaches.
pub fn late_max(is_realtime: bool) -> Duration {
    if is_realtime { Duration::from_micros(5) } else { LATE_MAX }
}

fn judge(trial: &mut Trial, path: &PathSettings, settings: &TrialSettings, report: &Report) {
    let mut broken = Vec::new();
    for (what, lateness, usual) in
        [("packets", trial.lateness, late_max(report.is_realtime)), ("with TCP packets", trial.tcp_lateness, LATE_MAX)]
    {
        let bound = settings.late_max.unwrap_or(usual);
        let bound_us = bound.as_secs_f64() * 1e6;
        if lateness.p99_us > bound_us {
            broken.push(format!("{what} left {:.1} us late at p99, more than {bound_us:.0} us", lateness.p99_us));
        }
    }
    let off = trial.rate_got_mbit / trial.rate_asked_mbit - 1.0;
    if matches!(path.up.bandwidth, Bandwidth::Fixed(_)) && off.abs() > RATE_TOLERANCE && trial.loss_asked < 0.5 {
        broken.push(format!("the rate is {:.1} % off", off * 100.0));
    }
    if trial.delay_got_ms < trial.delay_asked_ms
        && matches!(path.up.latency, Latency::Fixed(_))
        && trial.loss_asked < 1.0
    {
        let early = (trial.delay_asked_ms - trial.delay_got_ms) * 1e3;
        broken.push(format!("packets arrive {early:.1} us early"));
    }
    if matches!(path.up.loss, Loss::Bernoulli(_)) && trial.loss_chi_square > CHI_SQUARE_MAX {
        broken.push(format!("chi-square of the loss is {:.1}", trial.loss_chi_square));
    }
    if let Some(last) = broken.last_mut() {
        last.push_str(&report.machine());
    }
    for text in broken {
        trial.verdict.weaken(Validity::PathBound, text);
    }
}

/// Creates a namespace with a device whose other end is the router's.
fn end(
    settings: &TrialSettings,
    addresses: [IpAddr; 2],
    others: [IpAddr; 2],
) -> Result<(crate::router::Port, NetNs), Failure> {
    let TrialSettings { mtu, congestion_control, .. } = settings;
    let device = DeviceSettings {
        name: "wan0".to_owned(),
        mtu: *mtu,
        addresses: addresses.to_vec(),
        routes: others.map(IpNet::from).to_vec(),
        congestion_control: congestion_control.clone(),
    };
    in_new_namespace(Mark::own()?, move || make_device(&device))
}

/// The two ends, with their common clock.
struct Ends {
    server: NetNs,
    client: NetNs,
    clock: Clock,
}

impl Ends {
    /// A UDP socket at each end; the client's is connected to the server's.
    fn udp(&self, family: usize) -> Result<(UdpSocket, UdpSocket), Failure> {
        let at = SERVER[family];
        let server = within(&self.server, move || {
            let socket = UdpSocket::bind((at, 0))?;
            // The buffer holds what arrives while the receiver does not run for 100 ms.
            socket::raise_receive_buffer(&socket, 32 << 20)?;
            datagram::stamp_arrivals(&socket)?;
            Ok(socket)
        })?;
        let to = server.local_addr().map_err(Failure::io("get a port"))?;
        let client = within(&self.client, move || {
            let socket = UdpSocket::bind((CLIENT[family], 0))?;
            socket.connect(to)?;
            Ok(socket)
        })?;
        Ok((client, server))
    }
}

fn within<T: Send + 'static>(
    namespace: &NetNs,
    make: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> Result<T, Failure> {
    let path = namespace.path();
    in_thread(move || {
        let made = NetNs::open(&path).and_then(|namespace| namespace.enter()).and_then(|()| make());
        made.map_err(Failure::io("open a socket in a namespace"))
    })
}

fn measure(
    name: &str,
    path: &PathSettings,
    settings: &TrialSettings,
    ends: &Ends,
    router: &Router,
) -> Result<Trial, Failure> {
    let rate = path.up.bandwidth.mean();
    let latency = match &path.up.latency {
        Latency::Fixed(latency) => *latency,
        Latency::Jitter(jitter) => jitter.mean,
        Latency::Trace(_) => Duration::ZERO,
    };
    let framing = path.up.framing_bytes;
    let on_wire =
        |bytes: u32| Duration::from_secs_f64(rate.map_or(0.0, |rate| f64::from(bytes + framing) * 8.0 / rate));
    let silence = SILENCE + latency * 4 + on_wire(1500) * 4;

    // Small packets on slow links, so that a trial takes seconds.
    let is_slow = rate.is_some_and(|rate| rate < 1e6);
    let (single, data) = if is_slow { (LEAST_DATA, 256) } else { (1400, 1400) };
    // Enough of them for a 99th percentile: no worse than the fifth from the end.
    let pause = on_wire(single + HEADERS6) + Duration::from_micros(2300);
    let mut delays = [0.0; 2];
    for (family, delay) in delays.iter_mut().enumerate() {
        let arrivals = send(ends, family, single, 250, |n| pause * n, silence)?;
        *delay = median(arrivals.iter().map(|arrival| (arrival.got - arrival.sent).as_secs_f64() * 1e3)).unwrap_or(0.0);
    }

    // A train of 0.4 s, at most 11 MB and at least 20 packets.
    let bytes = data + HEADERS4;
    let gap_requested = on_wire(bytes).as_secs_f64();
    let packets = if gap_requested > 0.0 { ((0.4 / gap_requested) as u32).clamp(20, 8000) } else { 0 };
    let mut train = send(ends, 0, data, packets, |_| Duration::ZERO, silence)?;
    let gaps = train.windows(2).filter(|pair| pair[1].number == pair[0].number + 1);
    let spacing = median(gaps.map(|pair| (pair[1].got - pair[0].got).as_secs_f64() * 1e6)).unwrap_or(0.0);
    // Where packets overtake one another.
    train.sort_by_key(|arrival| arrival.number);
    let (gap_got, train_late) = gap_of(busy(&train, gap_requested), gap_requested).unwrap_or_default();
    let rate_got = if gap_got > 0.0 { f64::from(bytes + framing) * 8.0 / gap_got } else { 0.0 };

    let loss = path.up.loss.mean();
    let many = if loss == 0.0 { 0 } else { 5000u32.max((rate.unwrap_or(1e9) * 2.0 / 48.0 / 8.0) as u32).min(20_000) };
    let step = on_wire(LEAST_DATA + HEADERS4).max(Duration::from_micros(50));
    let left = |router: &Router| Ok(router.report()?.paths.iter().map(|path| path.up.packets.left).sum::<u64>());
    let left_before: u64 = left(router)?;
    let arrived = send(ends, 0, LEAST_DATA, many, |n| step * n, silence)?.len() as u64;
    let left = left(router)? - left_before;
    let lost = u64::from(many).saturating_sub(left);
    let expected = f64::from(many) * loss;
    let variance = expected * (1.0 - loss);
    let chi_square = if variance > 0.0 { (lost as f64 - expected).powi(2) / variance } else { 0.0 };
    let lateness = router.lateness()?;

    let before = router.report()?.cpu_seconds;
    // Without any arrivals TCP cannot connect.
    let tcp = if loss < 1.0 { tcp(ends, settings.tcp)? } else { 0.0 };
    let cpu = router.report()?.cpu_seconds - before;
    let gbit = tcp * settings.tcp.as_secs_f64() / 1e9;
    Ok(Trial {
        name: name.to_owned(),
        delay_asked_ms: (latency + on_wire(single + HEADERS4)).as_secs_f64() * 1e3,
        delay_got_ms: delays[0],
        delay6_got_ms: delays[1],
        rate_asked_mbit: rate.unwrap_or(0.0) / 1e6,
        rate_got_mbit: rate_got / 1e6,
        train_late_us: train_late * 1e6,
        spacing_asked_us: gap_requested * 1e6,
        spacing_got_us: spacing,
        loss_asked: loss,
        loss_got: lost as f64 / f64::from(many.max(1)),
        loss_packets: many.into(),
        loss_missed: left.saturating_sub(arrived),
        loss_chi_square: chi_square,
        tcp_mbit: tcp / 1e6,
        tcp_cpu_seconds_a_gbit: if gbit > 0.0 { cpu / gbit } else { 0.0 },
        lateness,
        tcp_lateness: router.lateness()?,
        stalls: Stalls::default(),
        stolen_s: 0.0,
        scheduling: String::new(),
        verdict: Verdict::valid(),
    })
}

/// The longest part of a train, by packet numbers, in which the wire was never idle: it always had a packet to send at
/// intervals of `gap`. A sender that does not run for a while leaves it idle.
fn busy(train: &[Arrival], gap: f64) -> &[Arrival] {
    let mut free = 0.0;
    let parts = train.chunk_by(|before, next| {
        let sent = |arrival: &Arrival| arrival.sent.since(Time::START).as_secs_f64();
        free = f64::max(free, sent(before)) + gap * f64::from(next.number - before.number);
        sent(next) < free
    });
    parts.max_by_key(|part| part.len()).unwrap_or_default()
}

/// Seconds between packets of a train, and the extra delay of the latest one. Packets are only ever delayed, so the
/// true gap lies between the least delayed packet of the first quarter and that of the last; the others do not matter.
/// Finding them requires the gap, which is therefore refined iteratively from the requested one.
fn gap_of(train: &[Arrival], gap_requested: f64) -> Option<(f64, f64)> {
    let (begin, end) = (train.first()?.number, train.last()?.number + 1);
    let quarter = (end - begin) / 4;
    let got = |arrival: &Arrival| arrival.got.since(Time::START).as_secs_f64();
    let delay = |arrival: &Arrival, gap: f64| got(arrival) - f64::from(arrival.number) * gap;
    let mut gap = gap_requested;
    for _ in 0..4 {
        let least = |of: &dyn Fn(u32) -> bool| {
            let those = train.iter().filter(|arrival| of(arrival.number));
            those.min_by(|a, b| delay(a, gap).total_cmp(&delay(b, gap)))
        };
        let (first, last) = (least(&|n| n < begin + quarter)?, least(&|n| n >= end - quarter)?);
        gap = (got(last) - got(first)) / f64::from(last.number - first.number);
    }
    let delays = || train.iter().map(|arrival| delay(arrival, gap));
    Some((gap, delays().max_by(f64::total_cmp)? - delays().min_by(f64::total_cmp)?))
}

/// A packet that arrived.
#[derive(Clone, Copy, Debug)]
struct Arrival {
    number: u32,
    sent: Time,
    got: Time,
}

/// Sends packets of `data` bytes from client to server, each at its
/// time after the start; returns those that arrived, in that order.
fn send(
    ends: &Ends,
    family: usize,
    data: u32,
    packets: u32,
    moment: impl Fn(u32) -> Duration + Sync,
    silence: Duration,
) -> Result<Vec<Arrival>, Failure> {
    if packets == 0 {
        return Ok(Vec::new());
    }
    let (client, server) = ends.udp(family)?;
    server.set_read_timeout(Some(silence)).map_err(Failure::io("set a timeout"))?;
    let clock = ends.clock;
    let receiver = thread::spawn(move || {
        // If this is refused, the receiver wakes later.
        let _ = clock::run_first(PRIORITY - 1);
        let (mut arrivals, mut buffer) = (Vec::with_capacity(packets as usize), [0; 2048]);
        while arrivals.len() < packets as usize
            && let Ok((length, arrived)) = datagram::receive_stamped(&server, &mut buffer)
        {
            let got = clock.at(arrived);
            if let Some((number, rest)) = buffer[..length].split_first_chunk()
                && let Some((sent, _)) = rest.split_first_chunk()
            {
                let sent = Time::from_nanos(u64::from_ne_bytes(*sent));
                arrivals.push(Arrival { number: u32::from_ne_bytes(*number), sent, got });
            }
        }
        arrivals
    });
    thread::scope(|scope| {
        // A separate thread with real-time priority: on the core of a spinning router no ordinary thread runs, and the
        // sender's pause would appear in the train.
        let sender = scope.spawn(|| {
            let _ = clock::run_first(PRIORITY - 2);
            clock::exact_timers();
            let mut packet = vec![0; data as usize];
            let start = clock.now();
            for number in 0..packets {
                let at = start + moment(number);
                if at > clock.now() {
                    clock.sleep_until(at);
                }
                packet[..4].copy_from_slice(&number.to_ne_bytes());
                packet[4..12].copy_from_slice(&clock.now().as_nanos().to_ne_bytes());
                client.send(&packet)?;
            }
            Ok(())
        });
        let sent = sender.join().map_err(|_| Failure::failed("the sender panicked"))?;
        sent.map_err(Failure::io("send a packet"))
    })?;
    receiver.join().map_err(|_| Failure::failed("the receiver panicked"))
}

/// Bits of data per second that one TCP connection transfers from server to client in `time`, including its start.
fn tcp(ends: &Ends, time: Duration) -> Result<f64, Failure> {
    if time.is_zero() {
        return Ok(0.0);
    }
    let listener = within(&ends.server, || TcpListener::bind((SERVER[0], 0)))?;
    let to: SocketAddr = listener.local_addr().map_err(Failure::io("get a port"))?;
    let sender = thread::spawn(move || {
        let block = vec![0; 256 * 1024];
        // Until the client closes.
        if let Ok((mut connection, _)) = listener.accept() {
            while connection.write_all(&block).is_ok() {}
        }
    });
    let connected = within(&ends.client, move || TcpStream::connect_timeout(&to, Duration::from_secs(30)));
    let mut connection = connected?;
    let begun = ends.clock.now();
    let mut buffer = vec![0; 1 << 20];
    let mut bytes = 0;
    connection.set_read_timeout(Some(time)).map_err(Failure::io("set a timeout"))?;
    while ends.clock.now() - begun < time {
        match connection.read(&mut buffer) {
            // The end of the stream, or a timeout.
            Ok(0) | Err(_) => break,
            Ok(count) => bytes += count,
        }
    }
    let took = ends.clock.now() - begun;
    // With unread data, closing sends a reset, and the sender ends.
    drop(connection);
    let _ = sender.join();
    Ok(bytes as f64 * 8.0 / took.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::LinkSettings;
    use crate::spec;
    use amped_units::BitsPerSecond;
    use proptest::prelude::*;
    use serde_json::json;

    #[test]
    fn inaccurate_path_is_path_bound() {
        let lateness =
            |p99_us: f64| json!({"packets": 500, "p50_us": 0.1, "p99_us": p99_us, "p999_us": 9e3, "max_us": 9e3});
        let stalls = json!({"count": 1, "sum_ms": 2.0, "max_ms": 2.0});
        let verdict_of = |is_realtime: bool, p99_us: f64, tcp_p99_us: f64, rate: f64, chi_square: f64| {
            let mut trial: Trial = serde_json::from_value(json!({
                "name": "x", "delay_asked_ms": 1.0, "delay_got_ms": 1.01, "delay6_got_ms": 1.01, "rate_asked_mbit": 10.0,
                "rate_got_mbit": rate, "train_late_us": 0.0, "spacing_asked_us": 1.0, "spacing_got_us": 1.0, "loss_asked": 0.1,
                "loss_got": 0.1, "loss_packets": 5000, "loss_missed": 0, "loss_chi_square": chi_square, "tcp_mbit": 9.0,
                "tcp_cpu_seconds_a_gbit": 0.1, "lateness": lateness(p99_us), "tcp_lateness": lateness(tcp_p99_us),
                "stalls": stalls, "stolen_s": 0.0, "scheduling": "", "verdict": Verdict::valid()
            }))
            .expect("the form of a trial");
            let report: Report = serde_json::from_value(json!({
                "seconds": 1.0, "cpu_seconds": 0.1, "scheduling": "", "is_realtime": is_realtime, "seed": 1,
                "congestion_control": "cubic", "lateness": lateness(1.0), "stalls": stalls, "stolen_s": 0.0, "overflow": 0,
                "kernel_dropped": 0, "lost_between_hosts": 0, "strained_ms": 0, "refused": 0, "no_path": 0, "not_ip": 0, "capture_left_out": 0, "paths": []
            }))
            .expect("the form of a report");
            let (congestion_control, tcp) = ("cubic".to_owned(), Duration::ZERO);
            let settings = TrialSettings { seed: 1, mtu: 1500, congestion_control, late_max: None, tcp };
            let link = || LinkSettings {
                bandwidth: Bandwidth::Fixed(BitsPerSecond(10_000_000)),
                loss: Loss::Bernoulli(0.1),
                ..spec::plain_link()
            };
            judge(&mut trial, &PathSettings { up: link(), down: link() }, &settings, &report);
            assert_eq!(trial.is_disturbed(), trial.verdict.exit_status() == 1, "a stall is reported");
            trial.verdict.to_string()
        };
        assert_eq!(verdict_of(true, 5.0, 1000.0, 10.09, 10.8), "valid");
        assert_eq!(verdict_of(true, 5.0, 1000.0, 9.91, 0.0), "valid");
        assert_eq!(verdict_of(false, 1000.0, 1000.0, 10.0, 0.0), "valid");
        let check =
            |verdict: String, says: &str| assert!(verdict.contains(says) && verdict.contains("2.0 ms"), "{verdict}");
        check(verdict_of(true, 5.1, 1.0, 10.0, 0.0), "more than 5 us");
        check(verdict_of(false, 1001.0, 1.0, 10.0, 0.0), "more than 1000 us");
        check(verdict_of(true, 1.0, 1001.0, 10.0, 0.0), "with TCP");
        check(verdict_of(true, 1.0, 1.0, 10.11, 0.0), "the rate is 1.1 % off");
        check(verdict_of(true, 1.0, 1.0, 10.0, 10.9), "chi-square");
    }

    #[test]
    fn train_ends_where_link_is_idle() {
        let arrival = |number: u32, sent_us: u64| {
            let sent = Time::from_nanos(sent_us * 1000);
            Arrival { number, sent, got: sent }
        };
        let check = |sent_us: &[u64], expected: std::ops::Range<usize>| {
            let train: Vec<Arrival> = sent_us.iter().zip(0..).map(|(sent, number)| arrival(number, *sent)).collect();
            let numbers: Vec<u32> = busy(&train, 10e-6).iter().map(|arrival| arrival.number).collect();
            let expected: Vec<u32> = expected.map(|n| n as u32).collect();
            assert_eq!(numbers, expected, "{sent_us:?}");
        };
        check(&[], 0..0);
        check(&[1000, 1001, 1002, 1003], 0..4);
        // Four packets keep the wire busy for 40 us.
        check(&[1000, 1001, 1002, 1003, 1039, 1040], 0..6);
        check(&[1000, 1001, 1002, 1003, 1041, 1042], 0..4);
        check(&[1000, 1001, 1500, 1501, 1502, 1503], 2..6);
        check(&[1000, 1001, 1500, 1509, 1518, 1600], 2..5);
    }

    proptest! {
        #[test]
        fn measured_rate_ignores_pauses_of_receiver(
            gap in 10_000..50_000_000u64, off in -0.2..0.2f64, packets in 20..500u32, lost: u64,
            pauses in prop::collection::vec((0.05..0.9f64, 0.0..0.05f64), 0..4),
        ) {
            // Packets arrive one true gap apart, 12 us late; those that
            // arrive during a pause of the receiver are seen after it.
            let true_gap = (gap as f64 * (1.0 + off)) as u64;
            let whole = true_gap * u64::from(packets);
            let seen = |at: u64| pauses.iter().fold(at, |at, (from, length)| {
                let from = (from * whole as f64) as u64;
                let end = from + (length * whole as f64) as u64;
                if (from..end).contains(&at) { end } else { at }
            });
            let arrived = |number: u32| number == 0 || number == packets - 1 || lost.rotate_left(number) & 7 != 0;
            let train: Vec<Arrival> = (0..packets)
                .filter(|number| arrived(*number))
                .map(|number| {
                    let got = Time::from_nanos(seen(12_000 + u64::from(number) * true_gap));
                    Arrival { number, sent: Time::START, got }
                })
                .collect();
            let (found, late) = gap_of(&train, gap as f64 / 1e9).expect("the first and the last are there");
            prop_assert!((found * 1e9 / true_gap as f64 - 1.0).abs() < 1e-3, "{found} s, {true_gap} ns");
            let longest = pauses.iter().map(|(_, length)| length).sum::<f64>() * whole as f64 / 1e9;
            prop_assert!(late <= longest + 1e-3 * whole as f64 / 1e9, "{late} s, {longest} s");
        }
    }
}
