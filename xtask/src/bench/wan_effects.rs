//! `cargo xtask bench wan-effects`: what the delay and the loss of a wide-area network do to a server's throughput, and to
//! the connections that it has at once, as in figures 9 and 10 and section 5.6 of Banga and Druschel.
//!
//! The server runs on this host, the S-Clients in a namespace behind the delay router (`ammeter wan ... -- ammeter load ...`).
//! The rate is one that every server bears where there is no delay. What the router itself dropped, or left too late, makes a
//! measurement that is made again.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::ammeter::read;
use super::client::AMMETER;
use super::curves::{Curves, Figure};
use super::files;
use super::group::Group;
use super::rig::{Bench, Common, REFUSES, retried};
use super::server::{Server, free_port};
use crate::command::{Outcome, output, program, shown};
use amped_measure::stats::Random;
use serde_json::Value;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// How often each point is measured
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Whole seconds of each measurement, of which the first 3 are left out
    #[arg(long, default_value_t = 7, value_parser = clap::value_parser!(u32).range(5..=60))]
    seconds: u32,
    /// Connections a second
    #[arg(long, default_value_t = 500)]
    rate: u32,
    #[command(flatten)]
    common: Common,
}

const STORY: &str = "\
Apache 1.2, with a process for each connection and 152 of them at most, lost 54 % of its throughput as the round trip grew
from 0 to 200 ms, and 36 % as the loss grew to 5 % at 100 ms: connections last longer, so there are more at once. Zeus,
driven by events, lost 20 %, which was the cost of select(). Their files did not all fit into memory, and the processes took
more of it the more there were.

Here one file of 64 KiB is asked for, which is in memory, as in their control experiment; today's TCP sends so much in as
many round trips as theirs took for 10 KiB. A new connection for each request, constant arrivals at a rate that all servers
bear without a delay. Connections are counted that are established or not yet closed by both sides; the first 3 seconds of
each measurement are left out, until as many connections end as begin, also those that wait for a lost packet. apache2 is Debian's, with MaxRequestWorkers 150 (its
default), as processes (prefork, the paper's way) and as it comes (event); so many workers run from the start. Paths have no
limit of bandwidth, and cubic at both ends. Nobody gives up during the measurement: a lost SYN comes again after a second, and
after two more.";

const NAMES: [&str; 3] = ["amped", "apache2 prefork", "apache2 event"];

/// Round-trip times in milliseconds, without loss.
const DELAYS: [f64; 6] = [0.0, 20.0, 50.0, 100.0, 150.0, 200.0];

/// Loss in percent, both ways, at a round trip of 100 ms; without any it is one of the points above.
const LOSSES: [f64; 4] = [1.0, 2.0, 3.0, 5.0];
const LOSS_MS: f64 = 100.0;

/// What is left out of a measurement, in seconds: as long as connections go on to become more. With a loss of 5 % 9 of 10 are
/// over after 3 s.
const SETTLE_S: u32 = 3;

/// How late the router may leave packets at p99, which is nothing beside a round trip of 20 ms.
const LATE_MAX_US: f64 = 2000.0;

/// What stands before a path that has no delay, so that there is one.
const LEAST_MS: f64 = 0.001;

pub(crate) fn run(args: &Args) -> Outcome {
    let bench = Bench::new(args.common.core)?;
    let figure = |title, x_title| Figure { title, x_title };
    let (delay, loss) = ("round trip, ms", "loss each way, %, at a round trip of 100 ms");
    let figures = vec![
        vec![figure("right replies a second", delay), figure("connections", delay)],
        vec![figure("right replies a second", loss), figure("connections", loss)],
    ];
    let title = "What a wide-area network does to a server";
    let command = format!("cargo xtask bench wan-effects --rate {} --seed {}", args.rate, args.common.seed);
    let mut curves = Curves::new(title, STORY, command, figures, NAMES.into())?;
    files::write(&bench.site(), &[files::named("file", 64 << 10)], false)?;

    let points = DELAYS.iter().map(|ms| (0, *ms)).chain(LOSSES.iter().map(|percent| (2, *percent)));
    let mut order: Vec<(usize, (usize, f64))> =
        points.flat_map(|point| (0..NAMES.len()).map(move |server| (server, point))).collect();
    let mut random = Random(args.common.seed);
    for round in 0..args.rounds {
        random.shuffle(&mut order);
        for (server, (figure, x)) in &order {
            let mut refused = Vec::new();
            let measured = retried(&mut refused, || match server {
                0 => measure_amped(args, &bench, *figure, *x),
                _ => measure_apache(args, &bench, NAMES[*server], *figure, *x),
            });
            let what = if *figure == 0 { "ms" } else { "% lost" };
            refused.iter().for_each(|why| println!("again: {} {x} {what}: {why}", NAMES[*server]));
            let (rate, connections) = measured?;
            let left = format!("{}/{}", round + 1, args.rounds);
            println!("[{left}] {:16} {x:>4} {what:6}  {rate:>7.0}/s  {connections:>6.0} connections", NAMES[*server]);
            curves.take(round, *figure, *server, *x, rate);
            curves.take(round, figure + 1, *server, *x, connections);
            if (*figure, *x) == (0, LOSS_MS) {
                curves.take(round, 2, *server, 0.0, rate);
                curves.take(round, 3, *server, 0.0, connections);
            }
        }
    }
    curves.write(&args.common.folder("wan-effects"))
}

fn measure_amped(args: &Args, bench: &Bench, figure: usize, x: f64) -> Outcome<(f64, f64)> {
    let config = bench.folder.join("amped.toml");
    let text = format!("root = {:?}\nlisten = ['0.0.0.0:0']\n", bench.site());
    fs::write(&config, text).map_err(|error| format!("cannot write {}: {error}", config.display()))?;
    let mut server = Server::start(Group::new(None)?, args.common.core, &bench.binary, &config, &[])
        .map_err(|text| format!("the server {REFUSES}: {text}"))?;
    let measured = measure(args, bench, server.address.port(), figure, x)?;
    server.check()?;
    Ok(measured)
}

/// apache2, Debian's.
fn measure_apache(args: &Args, bench: &Bench, name: &str, figure: usize, x: f64) -> Outcome<(f64, f64)> {
    let port = free_port()?;
    let module = name.split(' ').next_back().unwrap_or_default();
    let (home, site) = (bench.folder.join("apache"), bench.site());
    fs::create_dir_all(&home).map_err(|error| format!("cannot make {}: {error}", home.display()))?;
    // 25 threads a process, Apache's own default.
    let workers = match module {
        "event" => "StartServers 6\nMinSpareThreads 150\nMaxSpareThreads 150\nThreadsPerChild 25",
        _ => "StartServers 150\nMinSpareServers 1\nMaxSpareServers 150",
    };
    let text = format!(
        "ServerRoot {home:?}\nServerName localhost\nListen 0.0.0.0:{port}\nPidFile pid\nErrorLog /dev/stderr\nLogLevel crit\n\
         LoadModule mpm_{module}_module /usr/lib/apache2/modules/mod_mpm_{module}.so\n\
         LoadModule authz_core_module /usr/lib/apache2/modules/mod_authz_core.so\n\
         User nobody\nGroup nogroup\nDocumentRoot {site:?}\nMaxRequestWorkers 150\n{workers}\n"
    );
    let config = home.join("apache.conf");
    fs::write(&config, text).map_err(|error| format!("cannot write {}: {error}", config.display()))?;
    let words = ["apache2", "-f", &config.to_string_lossy(), "-DFOREGROUND"];
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let mut server = Server::start_at(address, Group::new(None)?, args.common.core, &words)
        .map_err(|text| format!("{text}; is apache2 installed (apt-get install apache2)?"))?;
    // So that the workers are there.
    thread::sleep(Duration::from_millis(500));
    let measured = measure(args, bench, port, figure, x)?;
    server.check()?;
    Ok(measured)
}

/// Right replies a second, and connections that the server had on average.
fn measure(args: &Args, bench: &Bench, port: u16, figure: usize, x: f64) -> Outcome<(f64, f64)> {
    let (round_trip, loss) = if figure == 0 { (x, 0.0) } else { (LOSS_MS, x) };
    let (latency, loss) = (format!("{}ms", (round_trip / 2.0).max(LEAST_MS)), format!("{loss}%"));
    let ammeter = bench.client.path(AMMETER);
    let (url, rate) = (format!("http://10.77.0.1:{port}/file"), args.rate.to_string());
    let duration = format!("{}s", args.seconds);
    let mut words = vec!["wan", "--json", "--latency", &latency];
    if loss != "0%" {
        words.extend(["--loss", &loss]);
    }
    words.extend([
        "--",
        &ammeter,
        "load",
        &url,
        "--others-max",
        "100%",
        "--rate",
        &rate,
        "--arrivals",
        "constant",
        "--duration",
        &duration,
    ]);
    // Who waits for a worker, or for a SYN that is sent again, is not given up before the measurement is over.
    words.extend(["--connect-timeout", &duration, "--timeout", &duration, "--json"]);
    let mut command = bench.client.ammeter(&words);
    let done = AtomicBool::new(false);
    let (found, connections) = thread::scope(|scope| {
        let counting = scope.spawn(|| connected(port, args.seconds, &done));
        let ended = command.output();
        done.store(true, Ordering::Relaxed);
        (ended, counting.join().unwrap_or_else(|_| Err("the count of connections failed".to_owned())))
    });
    let ended = found.map_err(|error| format!("cannot start `{}`: {error}", shown(&command)))?;
    check_router(&ended.stderr)?;
    let series = read(&ended)?.series;
    let counted = series.into_iter().take(args.seconds as usize).skip(SETTLE_S as usize);
    let in_time: u64 = counted.map(|second| second.ok).sum();
    Ok((in_time as f64 / f64::from(args.seconds - SETTLE_S), connections?))
}

/// Whether the router did what was asked of it, by the report that is the last line of what it says.
fn check_router(said: &[u8]) -> Outcome {
    let text = String::from_utf8_lossy(said);
    let told: Value = serde_json::from_str(text.lines().last().unwrap_or_default())
        .map_err(|error| format!("no report of the router in {text:?}: {error}"))?;
    let figure = |place: &str| {
        told.pointer(place).and_then(Value::as_f64).ok_or_else(|| format!("the router says no {place}: {told}"))
    };
    for place in ["/report/overflow", "/report/kernel_dropped", "/report/refused"] {
        if figure(place)? > 0.0 {
            return Err(format!("the router, not the path, dropped packets: {place} is {}", figure(place)?));
        }
    }
    match figure("/report/lateness/p99_us")? {
        late if late > LATE_MAX_US => Err(format!("the router left packets {late:.0} us late at p99")),
        _ => Ok(()),
    }
}

/// States in which a server has to do with a connection.
const STATES: [&str; 6] = ["established", "fin-wait-1", "fin-wait-2", "close-wait", "last-ack", "closing"];

/// The mean number of connections at this port, in the seconds that count.
fn connected(port: u16, seconds: u32, done: &AtomicBool) -> Outcome<f64> {
    thread::sleep(Duration::from_secs(SETTLE_S.into()));
    let (begun, mut counts) = (Instant::now(), Vec::new());
    let time = Duration::from_secs(seconds.saturating_sub(SETTLE_S).into());
    while !done.load(Ordering::Relaxed) && begun.elapsed() < time {
        let filter = format!("sport = :{port}");
        let states = STATES.iter().flat_map(|state| ["state", state]);
        let text = output(program("ss").arg("-Htn").args(states).arg(&filter))?;
        counts.push(text.lines().count() as f64);
        thread::sleep(Duration::from_millis(200));
    }
    Ok(counts.iter().sum::<f64>() / counts.len().max(1) as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_router_did_by_itself_is_no_measurement() {
        let check = |overflow: u32, dropped: u32, late: f64, is_right: bool| {
            let text = format!(
                "a line of the command\n{{\"report\":{{\"overflow\":{overflow},\"kernel_dropped\":{dropped},\"refused\":0,\
                 \"lateness\":{{\"p99_us\":{late}}}}}}}\n"
            );
            assert_eq!(check_router(text.as_bytes()).is_ok(), is_right, "{text}");
        };
        check(0, 0, 5.0, true);
        check(1, 0, 5.0, false);
        check(0, 1, 5.0, false);
        check(0, 0, 5000.0, false);
        check_router(b"").expect_err("no report");
    }
}
