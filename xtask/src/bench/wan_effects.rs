//! `cargo xtask bench wan-effects`: what the delay and the loss of a wide-area network do to a server's throughput, and to
//! the connections that it has at once, as in figures 9 and 10 and section 5.6 of Banga and Druschel.
//!
//! The server runs on this host, the S-Clients in a namespace behind the delay router (`ammeter wan ... -- ammeter load ...`).
//! The rate is one that every server bears where there is no delay.

use std::fs;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use amped_measure::stats::Random;
use serde_json::Value;

use super::curves::{Curves, Figure};
use super::group::Group;
use super::load::AMMETER;
use super::server::Server;
use super::{Bench, REFUSES};
use crate::{Outcome, output, program, root};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// How often each point is measured
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Whole seconds of each measurement
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(2..=60))]
    seconds: u32,
    /// Connections a second
    #[arg(long, default_value_t = 500)]
    rate: u32,
    /// Seed of the order of measurements
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Core of the server; the router and the load generator have the next one
    #[arg(long, value_name = "N", default_value_t = 0)]
    core: usize,
    /// The folder of the result
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

const STORY: &str = "\
Apache 1.2, with a process for each connection and 152 of them at most, lost 54 % of its throughput as the round trip grew
from 0 to 200 ms, and 36 % as the loss grew to 5 % at 100 ms: connections last longer, so there are more at once. Zeus,
driven by events, lost 20 %, which was the cost of select(). Their files did not all fit into memory, and the processes took
more of it the more there were.

Here one file of 64 KiB is asked for, which is in memory, as in their control experiment; today's TCP sends so much in as
many round trips as theirs took for 10 KiB. A new connection for each request, constant arrivals at a rate that all servers
bear without a delay. Connections are counted that are established or not yet closed by both sides; the first second of
each measurement is left out. apache2 is Debian's, with MaxRequestWorkers 150 (its
default), as processes (prefork, the paper's way) and as it comes (event); so many workers run from the start. Paths have no
limit of bandwidth. A connection may take 10 s to be established, since a lost SYN comes again after one.";

const NAMES: [&str; 3] = ["amped", "apache2 prefork", "apache2 event"];

/// Round-trip times in milliseconds, without loss.
const DELAYS: [f64; 6] = [0.0, 20.0, 50.0, 100.0, 150.0, 200.0];

/// Loss in percent, both ways, at a round trip of 100 ms.
const LOSSES: [f64; 6] = [0.0, 1.0, 2.0, 3.0, 4.0, 5.0];

/// What stands before a path that has no delay, so that there is one.
const LEAST_MS: f64 = 0.001;

pub(crate) fn run(args: &Args) -> Outcome {
    let bench = Bench::new(args.core)?;
    let figure = |title, x_title| Figure { title, x_title };
    let (delay, loss) = ("round trip, ms", "loss each way, %, at a round trip of 100 ms");
    let figures = vec![
        vec![figure("right replies a second", delay), figure("connections", delay)],
        vec![figure("right replies a second", loss), figure("connections", loss)],
    ];
    let title = "What a wide-area network does to a server";
    let command = format!("cargo xtask bench wan-effects --rate {} --seed {}", args.rate, args.seed);
    let mut curves = Curves::new(title, STORY, command, figures, NAMES.into())?;
    fs::create_dir_all(bench.site()).map_err(|error| format!("cannot make {}: {error}", bench.site().display()))?;
    fs::write(bench.site().join("file"), [b'x'; 64 << 10]).map_err(|error| format!("cannot write a file: {error}"))?;

    let points = DELAYS.iter().map(|ms| (0, *ms)).chain(LOSSES.iter().map(|percent| (2, *percent)));
    let mut order: Vec<(usize, (usize, f64))> =
        points.flat_map(|point| (0..NAMES.len()).map(move |server| (server, point))).collect();
    let mut random = Random(args.seed);
    for round in 0..args.rounds {
        random.shuffle(&mut order);
        for (server, (figure, x)) in &order {
            let (rate, connections) = match server {
                0 => measure_amped(args, &bench, *figure, *x)?,
                _ => measure_apache(args, &bench, NAMES[*server], *figure, *x)?,
            };
            let what = if *figure == 0 { "ms" } else { "% lost" };
            let left = format!("{}/{}", round + 1, args.rounds);
            println!("[{left}] {:16} {x:>4} {what:6}  {rate:>7.0}/s  {connections:>6.0} connections", NAMES[*server]);
            curves.take(round, *figure, *server, *x, rate);
            curves.take(round, figure + 1, *server, *x, connections);
        }
    }
    curves.write(&args.out.clone().unwrap_or_else(|| root().join("experiments/wan-effects")))
}

fn measure_amped(args: &Args, bench: &Bench, figure: usize, x: f64) -> Outcome<(f64, f64)> {
    let config = bench.folder.join("amped.toml");
    let text = format!("root = {:?}\nlisten = ['0.0.0.0:0']\n", bench.site());
    fs::write(&config, text).map_err(|error| format!("cannot write {}: {error}", config.display()))?;
    let mut server = Server::start(Group::new(None)?, args.core, &bench.binary, &config, &[])
        .map_err(|text| format!("the server {REFUSES}: {text}"))?;
    let measured = measure(args, bench, server.address.port(), figure, x)?;
    server.check()?;
    Ok(measured)
}

fn measure_apache(args: &Args, bench: &Bench, name: &str, figure: usize, x: f64) -> Outcome<(f64, f64)> {
    let group = Group::new(None)?;
    let apache = Apache::start(&group, args.core, &bench.folder, &bench.site(), name)?;
    measure(args, bench, apache.port, figure, x)
}

/// apache2, Debian's.
struct Apache {
    child: Child,
    port: u16,
}

impl Apache {
    fn start(group: &Group, core: usize, folder: &Path, site: &Path, name: &str) -> Outcome<Apache> {
        let free = || TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
        let port = free().map_err(|error| format!("there is no free port: {error}"))?.port();
        let module = name.split(' ').next_back().unwrap_or_default();
        let home = folder.join("apache");
        fs::create_dir_all(&home).map_err(|error| format!("cannot make {}: {error}", home.display()))?;
        // 25 threads a process, Apache's own default.
        let workers = match module {
            "event" => "StartServers 6\nMinSpareThreads 150\nMaxSpareThreads 150\nThreadsPerChild 25",
            _ => "StartServers 150\nMinSpareServers 1\nMaxSpareServers 150",
        };
        let text = format!(
            "ServerRoot {home:?}\nServerName localhost\nListen 0.0.0.0:{port}\nPidFile pid\nErrorLog error.log\n\
             LoadModule mpm_{module}_module /usr/lib/apache2/modules/mod_mpm_{module}.so\n\
             LoadModule authz_core_module /usr/lib/apache2/modules/mod_authz_core.so\n\
             User nobody\nGroup nogroup\nDocumentRoot {site:?}\nMaxRequestWorkers 150\n{workers}\n"
        );
        let config = home.join("apache.conf");
        fs::write(&config, text).map_err(|error| format!("cannot write {}: {error}", config.display()))?;
        let config = config.to_string_lossy();
        let mut command: Command = group.command(core, &["apache2", "-f", &config, "-DFOREGROUND"]);
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn();
        let child = child.map_err(|error| format!("cannot start apache2: {error}; apt-get install apache2"))?;
        let mut apache = Apache { child, port };
        let begun = Instant::now();
        while TcpStream::connect(SocketAddr::from(([127, 0, 0, 1], port))).is_err() {
            let ended = apache.child.try_wait().ok().flatten();
            if ended.is_some() || begun.elapsed() > Duration::from_secs(20) {
                let said = fs::read_to_string(home.join("error.log")).unwrap_or_default();
                return Err(format!("apache2 does not listen ({ended:?}); is it installed? It said: {said}"));
            }
            thread::sleep(Duration::from_millis(20));
        }
        // So that the workers are there.
        thread::sleep(Duration::from_millis(500));
        Ok(apache)
    }
}

impl Drop for Apache {
    fn drop(&mut self) {
        // Its processes are ended with the group.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Right replies a second, and connections that the server had on average.
fn measure(args: &Args, bench: &Bench, port: u16, figure: usize, x: f64) -> Outcome<(f64, f64)> {
    let (round_trip, loss) = if figure == 0 { (x, 0.0) } else { (100.0, x) };
    let (latency, loss) = (format!("{}ms", (round_trip / 2.0).max(LEAST_MS)), format!("{loss}%"));
    let ammeter = bench.client.path(AMMETER);
    let (url, rate) = (format!("http://10.77.0.1:{port}/file"), args.rate.to_string());
    let duration = format!("{}s", args.seconds);
    let mut words = vec![&ammeter[..], "wan", "--latency", &latency];
    if loss != "0%" {
        words.extend(["--loss", &loss]);
    }
    words.extend(["--", &ammeter, "load", &url, "--rate", &rate, "--arrivals", "constant", "--duration", &duration]);
    // A lost SYN comes again after a second; who waits for a worker is not given up.
    words.extend(["--connect-timeout", "10s", "--timeout", "20s", "--json"]);
    let mut command = bench.client.group.command(args.core + 1, &words);
    let done = AtomicBool::new(false);
    let (said, connections) = thread::scope(|scope| {
        let counting = scope.spawn(|| connected(port, args.seconds, &done));
        let said = command.stderr(Stdio::null()).output();
        done.store(true, Ordering::Relaxed);
        (said, counting.join().unwrap_or_else(|_| Err("the count of connections failed".to_owned())))
    });
    let said = said.map_err(|error| format!("cannot start ammeter: {error}"))?;
    let text = String::from_utf8_lossy(&said.stdout);
    let found: Value = serde_json::from_str(&text).map_err(|error| format!("ammeter said {text}: {error}"))?;
    let in_time: f64 = found["series"]
        .as_array()
        .into_iter()
        .flatten()
        .take(args.seconds as usize)
        .skip(1)
        .filter_map(|second| second["ok"].as_f64())
        .sum();
    Ok((in_time / f64::from(args.seconds.saturating_sub(1).max(1)), connections?))
}

/// States in which a server has to do with a connection.
const STATES: [&str; 6] = ["established", "fin-wait-1", "fin-wait-2", "close-wait", "last-ack", "closing"];

/// The mean number of connections at this port, from the second second to the last.
fn connected(port: u16, seconds: u32, done: &AtomicBool) -> Outcome<f64> {
    thread::sleep(Duration::from_secs(1));
    let (begun, mut counts) = (Instant::now(), Vec::new());
    while !done.load(Ordering::Relaxed) && begun.elapsed() < Duration::from_secs(u64::from(seconds).saturating_sub(1)) {
        let filter = format!("sport = :{port}");
        let states = STATES.iter().flat_map(|state| ["state", state]);
        let text = output(program("ss").arg("-Htn").args(states).arg(&filter))?;
        counts.push(text.lines().count() as f64);
        thread::sleep(Duration::from_millis(200));
    }
    Ok(counts.iter().sum::<f64>() / counts.len().max(1) as f64)
}
