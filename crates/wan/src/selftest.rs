//! Whether the router does on this machine what is asked of it, as seen from its two ends: asked against got.
//!
//! Each trial makes two namespaces with a router between them, and nothing of it is seen from outside. Senders and receivers
//! are ordinary UDP and TCP sockets that share one clock: single packets for the delay, a train back to back for rate and
//! spacing, many packets for the loss, one connection for what TCP makes of it. The kernel itself notes when a packet arrives,
//! so that a receiver that is run late changes nothing; what the router was late by stands beside.
//!
//! A router that is run late only ever makes packets arrive later, so a rate is taken between those packets of a train that
//! were delayed least: one that was not run for some milliseconds leaves it as it is, and is told apart. What the machine has to do with it (a stall, what the hypervisor took) is part of the verdict, since no router does what is asked of
//! it while it does not run.

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
use serde::{Deserialize, Serialize};

use crate::behind::HELD_MAX;
use crate::link::{Bandwidth, Latency};
use crate::loss::Loss;
use crate::path::{PathSettings, Prefix};
use crate::place::{DeviceSettings, Mark, check_congestion_control, in_new_namespace, in_thread, make_device};
use crate::queue::Limit;
use crate::router::{Accuracy, Lateness, PRIORITY, Plan, Report, Router, RouterSettings, Stalls};

const SERVER: [IpAddr; 2] =
    [IpAddr::V4(Ipv4Addr::new(10, 77, 0, 1)), IpAddr::V6(Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, 1))];
const CLIENT: [IpAddr; 2] =
    [IpAddr::V4(Ipv4Addr::new(10, 77, 0, 2)), IpAddr::V6(Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, 2))];
/// IPv4 and UDP.
const HEADERS4: u32 = 28;
/// IPv6 and UDP.
const HEADERS6: u32 = 48;
/// Of a packet of ours: its number and when it was sent.
const LEAST_DATA: u32 = 12;
/// No answer for so long: nothing more comes.
const SILENCE: Duration = Duration::from_millis(500);

/// How trials are made.
#[derive(Clone, Debug)]
pub struct TrialSettings {
    /// From which all is drawn.
    pub seed: u64,
    /// How exact the router is to be.
    pub accuracy: Accuracy,
    /// The largest packet, in bytes at layer 3.
    pub mtu: u32,
    /// Whether TCP may hand over segments uncut.
    pub large_packets: bool,
    /// What TCP's senders do about congestion.
    pub congestion_control: String,
    /// How late packets may leave at p99; `None`: as late as [`late_max`] says, and [`LATE_MAX`] while TCP sends as fast as it
    /// can on the same cores as the router.
    pub late_max: Option<Duration>,
    /// For how long TCP sends.
    pub tcp: Duration,
}

/// What was asked for and what was seen. Times in milliseconds and microseconds as named.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Trial {
    /// What the path was called.
    pub name: String,
    /// Delay of a single packet: asked.
    pub delay_asked_ms: f64,
    /// Its median over IPv4.
    pub delay_got_ms: f64,
    /// Its median over IPv6, whose packets are 20 bytes longer.
    pub delay6_got_ms: f64,
    /// Rate in Mbit/s, of bytes as the path counts them: asked; 0 for an unlimited one.
    pub rate_asked_mbit: f64,
    /// That of a train of packets, between the least delayed of its first and of its last quarter.
    pub rate_got_mbit: f64,
    /// How much later than the least delayed packet of the train the latest one arrived: for how long the router was not run.
    pub train_late_us: f64,
    /// From one packet of that train to the next: asked.
    pub spacing_asked_us: f64,
    /// The median.
    pub spacing_got_us: f64,
    /// Share of packets lost: asked.
    pub loss_asked: f64,
    /// Share of packets lost.
    pub loss_got: f64,
    /// Of so many.
    pub loss_packets: u64,
    /// Packets that left the router and that the receiver had no room for; in none of the figures about the loss.
    pub loss_missed: u64,
    /// Chi-square of these with one degree of freedom; below 10.83 in 999 of 1000 runs.
    pub loss_chi_square: f64,
    /// What one TCP connection delivered to the client, in Mbit/s of data.
    pub tcp_mbit: f64,
    /// CPU time of the router for each Gbit of that, in seconds.
    pub tcp_cpu_seconds_a_gbit: f64,
    /// How late the router was, but for TCP.
    pub lateness: Lateness,
    /// How late the router was while TCP sent.
    pub tcp_lateness: Lateness,
    /// When the machine did not run the router though it was to.
    pub stalls: Stalls,
    /// CPU time that a hypervisor took meanwhile, in seconds.
    pub stolen_s: f64,
    /// How the router ran.
    pub scheduling: String,
    /// Which of that is not as asked.
    pub verdict: Verdict,
}

/// Runs one trial over a path whose two directions are alike. To be called after [`crate::place::be_allowed`].
///
/// # Errors
/// When this user may not, there is no `ip`, or the router ends.
pub fn trial(name: &str, path: &PathSettings, settings: &TrialSettings) -> Result<Trial, Failure> {
    check_congestion_control(&settings.congestion_control)?;
    let (server_port, server) = end(settings, SERVER, CLIENT)?;
    let (client_port, client) = end(settings, CLIENT, SERVER)?;
    let mut path = path.clone();
    // A train is to be seen as a whole.
    path.up.queue.limit = Limit::Unlimited;
    let router = Router::start(RouterSettings {
        server: server_port,
        clients: vec![client_port],
        paths: vec![Plan {
            name: name.to_owned(),
            prefixes: CLIENT.map(Prefix::host).to_vec(),
            client: 0,
            settings: path.clone(),
        }],
        seed: settings.seed,
        congestion_control: settings.congestion_control.clone(),
        accuracy: settings.accuracy,
        held_max: HELD_MAX,
        capture: None,
    })?;
    let ends = Ends { server, client, clock: Clock::start() };
    let measured = measure(name, &path, settings, &ends, &router);
    // What the router says goes before what was seen of its end.
    let report = router.stop()?;
    let mut trial = measured?;
    // What was dropped counts in any case; lateness has its own bounds below.
    trial.verdict = report.verdict(Duration::MAX);
    judge(&mut trial, &path, settings, &report);
    (trial.stalls, trial.stolen_s, trial.scheduling) = (report.stalls, report.stolen_s, report.scheduling);
    Ok(trial)
}

impl Trial {
    /// Whether it speaks of the machine and not of the router: not all is as asked, and there was a stall,
    /// or a hypervisor took time.
    pub fn is_disturbed(&self) -> bool {
        self.verdict.validity != Validity::Valid && (self.stalls.count > 0 || self.stolen_s > 0.0)
    }
}

/// As near as this a rate is to be.
const RATE_TOLERANCE: f64 = 0.01;
/// Chi-square for one degree of freedom and a probability of 0.001.
const CHI_SQUARE_MAX: f64 = 10.83;

/// How late packets may leave at p99, where nothing else is said.
pub const LATE_MAX: Duration = Duration::from_millis(1);

/// How late packets may leave at p99 that do not come as fast as they can: what a router reaches that runs before all ordinary
/// threads, with and without a spin.
pub fn late_max(is_realtime: bool, spin: Duration) -> Duration {
    match (is_realtime, spin) {
        (false, _) => LATE_MAX,
        (true, Duration::ZERO) => Duration::from_micros(100),
        (true, _) => Duration::from_micros(5),
    }
}

fn judge(trial: &mut Trial, path: &PathSettings, settings: &TrialSettings, report: &Report) {
    let mut broken = Vec::new();
    for (what, lateness, usual) in [
        ("packets", trial.lateness, late_max(report.is_realtime, settings.accuracy.spin)),
        ("with TCP packets", trial.tcp_lateness, LATE_MAX),
    ] {
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

/// A namespace with a device that the router has the other end of.
fn end(
    settings: &TrialSettings,
    addresses: [IpAddr; 2],
    others: [IpAddr; 2],
) -> Result<(crate::router::Port, NetNs), Failure> {
    let TrialSettings { mtu, large_packets, congestion_control, .. } = settings;
    let device = DeviceSettings {
        name: "wan0".to_owned(),
        mtu: *mtu,
        large_packets: *large_packets,
        addresses: addresses.to_vec(),
        routes: others.map(Prefix::host).to_vec(),
        congestion_control: congestion_control.clone(),
    };
    in_new_namespace(Mark::own()?, move || make_device(&device))
}

/// The two ends, and the clock that both look at.
struct Ends {
    server: NetNs,
    client: NetNs,
    clock: Clock,
}

impl Ends {
    /// A UDP socket at one end; that of the client is connected to the server's.
    fn udp(&self, family: usize) -> Result<(UdpSocket, UdpSocket), Failure> {
        let at = SERVER[family];
        let server = within(&self.server, move || {
            let socket = UdpSocket::bind((at, 0))?;
            // A receiver that is not run for 100 ms loses nothing.
            socket::raise_receive_buffer(&socket, 32 << 20)?;
            datagram::stamp_arrivals(&socket)?;
            Ok(socket)
        })?;
        let to = server.local_addr().map_err(Failure::io("ask for a port"))?;
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

    // Slow links get small packets, so that a trial takes seconds.
    let is_slow = rate.is_some_and(|rate| rate < 1e6);
    let (single, data) = if is_slow { (LEAST_DATA, 256) } else { (1400, 1400) };
    // Enough of them for a 99th percentile: it is no worse than the fifth from the end.
    let pause = on_wire(single + HEADERS6) + Duration::from_micros(2300);
    let mut delays = [0.0; 2];
    for (family, delay) in delays.iter_mut().enumerate() {
        let arrivals = send(ends, family, single, 250, |n| pause * n, silence)?;
        *delay = median(arrivals.iter().map(|arrival| (arrival.got - arrival.sent).as_secs_f64() * 1e3)).unwrap_or(0.0);
    }

    // A train of 0.4 s, of no more than 11 MB and no fewer than 20 packets.
    let bytes = data + HEADERS4;
    let gap_asked = on_wire(bytes).as_secs_f64();
    let packets = if gap_asked > 0.0 { ((0.4 / gap_asked) as u32).clamp(20, 8000) } else { 0 };
    let mut train = send(ends, 0, data, packets, |_| Duration::ZERO, silence)?;
    let gaps = train.windows(2).filter(|pair| pair[1].number == pair[0].number + 1);
    let spacing = median(gaps.map(|pair| (pair[1].got - pair[0].got).as_secs_f64() * 1e6)).unwrap_or(0.0);
    // Where packets overtake one another.
    train.sort_by_key(|arrival| arrival.number);
    let (gap_got, train_late) = gap_of(busy(&train, gap_asked), gap_asked).unwrap_or_default();
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
    // Nothing is connected where nothing arrives.
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
        spacing_asked_us: gap_asked * 1e6,
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

/// The longest part of a train, by its numbers, in which the wire always had a packet to send, one each `gap`: a sender
/// that was not run for a while leaves it without.
fn busy(train: &[Arrival], gap: f64) -> &[Arrival] {
    let mut free = 0.0;
    let parts = train.chunk_by(|before, next| {
        let sent = |arrival: &Arrival| arrival.sent.since(Time::START).as_secs_f64();
        free = f64::max(free, sent(before)) + gap * f64::from(next.number - before.number);
        sent(next) < free
    });
    parts.max_by_key(|part| part.len()).unwrap_or_default()
}

/// Seconds from one packet of a train to the next, and how much later than on time the latest one came. Packets
/// are only ever delayed, so the truth lies between the one of the first quarter and the one of the last quarter that were
/// delayed least; what becomes of the others changes nothing. Which ones these are is seen by the gap, so that it is improved
/// some times, from the one that was asked for.
fn gap_of(train: &[Arrival], gap_asked: f64) -> Option<(f64, f64)> {
    let (begin, end) = (train.first()?.number, train.last()?.number + 1);
    let quarter = (end - begin) / 4;
    let got = |arrival: &Arrival| arrival.got.since(Time::START).as_secs_f64();
    let delay = |arrival: &Arrival, gap: f64| got(arrival) - f64::from(arrival.number) * gap;
    let mut gap = gap_asked;
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

/// Sends packets of `data` bytes from client to server, each at its moment after the start; returns those
/// that arrived, in that order.
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
        // Where that is refused the receiver is woken later.
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
        // A thread of its own, which runs before ordinary ones: on the core of a router that spins nobody else is run, and
        // a train with a pause in it would be the sender's.
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
        let sent = sender.join().map_err(|_| Failure::failed("the sender has panicked"))?;
        sent.map_err(Failure::io("send a packet"))
    })?;
    receiver.join().map_err(|_| Failure::failed("the receiver has panicked"))
}

/// Bits of data in a second that one TCP connection brings from server to client in `time`, its beginning included.
fn tcp(ends: &Ends, time: Duration) -> Result<f64, Failure> {
    if time.is_zero() {
        return Ok(0.0);
    }
    let listener = within(&ends.server, || TcpListener::bind((SERVER[0], 0)))?;
    let to: SocketAddr = listener.local_addr().map_err(Failure::io("ask for a port"))?;
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
            // The end, or nothing within the time.
            Ok(0) | Err(_) => break,
            Ok(count) => bytes += count,
        }
    }
    let took = ends.clock.now() - begun;
    // With data unread, closing resets, and the sender ends.
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
        let verdict_of = |is_realtime: bool, spin_us: u64, p99_us: f64, tcp_p99_us: f64, rate: f64, chi_square: f64| {
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
                "kernel_dropped": 0, "refused": 0, "no_path": 0, "not_ip": 0, "capture_left_out": 0, "paths": []
            }))
            .expect("the form of a report");
            let accuracy = Accuracy { realtime: true, spin: Duration::from_micros(spin_us) };
            let (congestion_control, tcp) = ("cubic".to_owned(), Duration::ZERO);
            let settings = TrialSettings {
                seed: 1,
                accuracy,
                mtu: 1500,
                large_packets: true,
                congestion_control,
                late_max: None,
                tcp,
            };
            let link = || LinkSettings {
                bandwidth: Bandwidth::Fixed(BitsPerSecond(10_000_000)),
                loss: Loss::Bernoulli(0.1),
                ..spec::plain_link()
            };
            judge(&mut trial, &PathSettings { up: link(), down: link() }, &settings, &report);
            assert_eq!(trial.is_disturbed(), trial.verdict.exit_status() == 1, "a stall is told");
            trial.verdict.to_string()
        };
        assert_eq!(verdict_of(true, 60, 5.0, 1000.0, 10.09, 10.8), "valid");
        assert_eq!(verdict_of(true, 0, 100.0, 1000.0, 9.91, 0.0), "valid");
        assert_eq!(verdict_of(false, 60, 1000.0, 1000.0, 10.0, 0.0), "valid");
        let check =
            |verdict: String, says: &str| assert!(verdict.contains(says) && verdict.contains("2.0 ms"), "{verdict}");
        check(verdict_of(true, 60, 5.1, 1.0, 10.0, 0.0), "more than 5 us");
        check(verdict_of(true, 0, 101.0, 1.0, 10.0, 0.0), "more than 100 us");
        check(verdict_of(false, 60, 1001.0, 1.0, 10.0, 0.0), "more than 1000 us");
        check(verdict_of(true, 60, 1.0, 1001.0, 10.0, 0.0), "with TCP");
        check(verdict_of(true, 60, 1.0, 1.0, 10.11, 0.0), "the rate is 1.1 % off");
        check(verdict_of(true, 60, 1.0, 1.0, 10.0, 10.9), "chi-square");
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
        // Four packets keep it busy for 40 us.
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
            // Packets come a true gap apart, 12 us late; in a pause of the receiver all that come are seen at its end.
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
