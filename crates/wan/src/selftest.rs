//! Whether the router does on this machine what is asked of it, as seen from its two ends: asked against got.
//!
//! Each trial makes two namespaces with a router between them, and nothing of it is seen from outside. Senders and receivers
//! are ordinary UDP and TCP sockets that share one clock: single packets for the delay, a train back to back for rate and
//! spacing, many packets for the loss, one connection for what TCP makes of it. The receiver is woken by the kernel, which
//! takes tens of microseconds, so what it sees of a delay is an upper bound; what the router itself was late by stands beside.

use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::thread;
use std::time::Duration;

use amped_measure::{Failure, Verdict, Worth};
use amped_sys::clock::{self, Clock};
use amped_sys::netns::NetNs;
use amped_units::Time;
use serde::{Deserialize, Serialize};

use crate::behind::HELD_MAX;
use crate::link::Latency;
use crate::loss::Loss;
use crate::path::{PathSettings, Prefix};
use crate::place::{DeviceSettings, check_congestion_control, in_new_namespace, in_thread, make_device};
use crate::queue::Limit;
use crate::router::{Accuracy, Lateness, PRIORITY, Plan, Router, RouterSettings};

const SERVER: [IpAddr; 2] =
    [IpAddr::V4(Ipv4Addr::new(10, 77, 0, 1)), IpAddr::V6(Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, 1))];
const CLIENT: [IpAddr; 2] =
    [IpAddr::V4(Ipv4Addr::new(10, 77, 0, 2)), IpAddr::V6(Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, 2))];
/// IPv4 and UDP.
const HEADERS4: u32 = 28;
/// IPv6 and UDP.
const HEADERS6: u32 = 48;
/// No answer for so long: nothing more comes.
const SILENCE: Duration = Duration::from_millis(1500);

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
    /// How late packets may leave at p99.
    pub late_max: Duration,
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
    /// Rate at layer 3 in Mbit/s: asked; 0 for an unlimited one.
    pub rate_asked_mbit: f64,
    /// That of a train of packets.
    pub rate_got_mbit: f64,
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
    /// Chi-square of these with one degree of freedom; below 10.83 in 999 of 1000 runs.
    pub loss_chi_square: f64,
    /// What one TCP connection delivered to the client, in Mbit/s of data.
    pub tcp_mbit: f64,
    /// CPU time of the router for each Gbit of that, in seconds.
    pub tcp_cpu_seconds_a_gbit: f64,
    /// How late the router was, over all of it.
    pub lateness: Lateness,
    /// How the router ran.
    pub scheduling: String,
    /// Which of that is not as asked.
    pub verdict: Verdict,
}

/// Runs one trial over a path whose two directions are alike.
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
        accuracy: settings.accuracy,
        held_max: HELD_MAX,
        capture: None,
    })?;
    let ends = Ends { server, client, clock: Clock::start() };
    let measured = measure(name, &path, settings, &ends, &router);
    // What the router says goes before what was seen of its end.
    let report = router.stop()?;
    let mut trial = measured?;
    trial.verdict = report.verdict(settings.late_max);
    judge(&mut trial, &path);
    (trial.lateness, trial.scheduling) = (report.lateness, report.scheduling);
    Ok(trial)
}

/// As near as this a rate is to be.
const RATE_TOLERANCE: f64 = 0.01;
/// Chi-square for one degree of freedom and a probability of 0.001.
const CHI_SQUARE_MAX: f64 = 10.83;

fn judge(trial: &mut Trial, path: &PathSettings) {
    let off = trial.rate_got_mbit / trial.rate_asked_mbit - 1.0;
    if trial.rate_asked_mbit > 0.0 && off.abs() > RATE_TOLERANCE {
        trial.verdict.weaken(Worth::PathBound, format!("the rate is {:.1} % off", off * 100.0));
    }
    if trial.delay_got_ms < trial.delay_asked_ms && matches!(path.up.latency, Latency::Fixed(_)) {
        let early = (trial.delay_asked_ms - trial.delay_got_ms) * 1e3;
        trial.verdict.weaken(Worth::PathBound, format!("packets arrive {early:.1} us early"));
    }
    if matches!(path.up.loss, Loss::Bernoulli(_)) && trial.loss_chi_square > CHI_SQUARE_MAX {
        trial.verdict.weaken(Worth::PathBound, format!("chi-square of the loss is {:.1}", trial.loss_chi_square));
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
    in_new_namespace(move || make_device(&device))
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
        let server = within(&self.server, move || UdpSocket::bind((at, 0)))?;
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
    let on_wire = |bytes: u32| Duration::from_secs_f64(rate.map_or(0.0, |rate| f64::from(bytes) * 8.0 / rate));
    let silence = SILENCE + latency * 4 + on_wire(1500) * 4;

    // Slow links get small packets, so that a trial takes seconds.
    let data = if rate.is_some_and(|rate| rate < 1e6) { 256 } else { 1400u32 };
    let pause = on_wire(data + HEADERS6).max(Duration::from_millis(2)) + Duration::from_millis(3);
    let mut delays = [0.0; 2];
    for (family, delay) in delays.iter_mut().enumerate() {
        let arrivals = send(ends, family, data, 60, |n| pause * n, silence)?;
        *delay = median(arrivals.iter().map(|arrival| (arrival.got - arrival.sent).as_secs_f64() * 1e3));
    }

    // A train of 0.4 s, of no more than 8 MB and no fewer than 20 packets.
    let bytes = data + HEADERS4;
    let train = on_wire(bytes).as_secs_f64();
    let packets = if train > 0.0 { ((0.4 / train) as u32).clamp(20, 6000) } else { 0 };
    let train = send(ends, 0, data, packets, |_| Duration::ZERO, silence)?;
    let gaps = train.windows(2).filter(|pair| pair[1].number == pair[0].number + 1);
    let spacing = median(gaps.map(|pair| (pair[1].got - pair[0].got).as_secs_f64() * 1e6));
    let rate_got = match (train.first(), train.last()) {
        (Some(first), Some(last)) if last.got > first.got => {
            // Lost packets were on the wire too.
            f64::from(last.number - first.number) * f64::from(bytes) * 8.0 / (last.got - first.got).as_secs_f64()
        }
        _ => 0.0,
    };

    let loss = path.up.loss.mean();
    let many = if loss == 0.0 { 0 } else { 5000u32.max((rate.unwrap_or(1e9) * 2.0 / 48.0 / 8.0) as u32).min(20_000) };
    let step = on_wire(20 + HEADERS4).max(Duration::from_micros(50));
    let lost = u64::from(many) - send(ends, 0, 20, many, |n| step * n, silence)?.len() as u64;
    let expected = f64::from(many) * loss;
    let variance = expected * (1.0 - loss);
    let chi_square = if variance > 0.0 { (lost as f64 - expected).powi(2) / variance } else { 0.0 };

    let before = router.report()?.cpu_seconds;
    let tcp = tcp(ends, settings.tcp)?;
    let cpu = router.report()?.cpu_seconds - before;
    let gbit = tcp * settings.tcp.as_secs_f64() / 1e9;
    Ok(Trial {
        name: name.to_owned(),
        delay_asked_ms: (latency + on_wire(data + HEADERS4)).as_secs_f64() * 1e3,
        delay_got_ms: delays[0],
        delay6_got_ms: delays[1],
        rate_asked_mbit: rate.unwrap_or(0.0) / 1e6,
        rate_got_mbit: rate_got / 1e6,
        spacing_asked_us: on_wire(bytes).as_secs_f64() * 1e6,
        spacing_got_us: spacing,
        loss_asked: loss,
        loss_got: lost as f64 / f64::from(many.max(1)),
        loss_packets: many.into(),
        loss_chi_square: chi_square,
        tcp_mbit: tcp / 1e6,
        tcp_cpu_seconds_a_gbit: if gbit > 0.0 { cpu / gbit } else { 0.0 },
        lateness: Lateness::default(),
        scheduling: String::new(),
        verdict: Verdict::valid(),
    })
}

/// A packet that arrived.
#[derive(Clone, Copy, Debug)]
struct Arrival {
    number: u32,
    sent: Time,
    got: Time,
}

/// Sends packets of `data` bytes from client to server, each at its moment after the start; returns those that arrived, in
/// that order.
fn send(
    ends: &Ends,
    family: usize,
    data: u32,
    packets: u32,
    moment: impl Fn(u32) -> Duration,
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
            && let Ok(length) = server.recv(&mut buffer)
        {
            let got = clock.now();
            if let Some((number, rest)) = buffer[..length].split_first_chunk()
                && let Some((sent, _)) = rest.split_first_chunk()
            {
                let sent = Time::from_nanos(u64::from_ne_bytes(*sent));
                arrivals.push(Arrival { number: u32::from_ne_bytes(*number), sent, got });
            }
        }
        arrivals
    });
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
        client.send(&packet).map_err(Failure::io("send a packet"))?;
    }
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

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}
