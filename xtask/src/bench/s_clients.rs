//! `cargo xtask bench s-clients`: the load that simple clients and S-Clients offer to a server that can bear little of it, as
//! in figures 5 and 6 of Banga and Druschel.
//!
//! The server takes one connection at a time and computes for a millisecond before it answers, so it bears less than a
//! thousand a second, whatever the machine. Simple clients are `ammeter load --clients N` with a new connection for each
//! request; S-Clients with D descriptors and a time T to be established begin D / T connections a second
//! (`ammeter load --rate`). What is drawn is how many connections a second were begun.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::thread;
use std::time::{Duration, Instant};

use super::ammeter::said;
use super::curves::{Curves, Figure};
use super::rig::{Bench, Common};
use crate::command::Outcome;
use amped_measure::stats::Random;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// How often each point is measured
    #[arg(long, default_value_t = 6)]
    rounds: usize,
    /// Whole seconds of each measurement
    #[arg(long, default_value_t = 2)]
    seconds: u32,
    #[command(flatten)]
    common: Common,
}

const STORY: &str = "\
Simple clients, each of which waits for its reply before it asks again, offered a server at most as many requests as it
could answer, however many clients there were: about 130 a second. With S-Clients, which have D sockets in the state of
connecting and give each up after T = 500 ms, the load rose in proportion to D, far beyond what the server could bear.

Here the server takes one connection at a time and computes for a millisecond before it answers. It runs on the same
machine, over loopback, its queue of connections as long as the standard library makes it (128).";

/// Of the paper: how long a connection may take to be established.
const T: f64 = 0.5;

/// What the server computes for a connection.
const WORK: Duration = Duration::from_millis(1);

const NAMES: [&str; 2] = ["simple clients", "S-Clients"];
const X_TITLES: [&str; 2] = ["clients", "descriptors of S-Clients, T = 500 ms"];
const POINTS: [&[u32]; 2] = [&[1, 2, 5, 10, 20, 40, 60, 80, 100], &[50, 250, 500, 1000, 2000, 3000, 4000, 5000]];

pub(crate) fn run(args: &Args) -> Outcome {
    let bench = Bench::new(args.common.core)?;
    let figures = X_TITLES.map(|x_title| Figure { title: "connections begun a second", x_title });
    let title = "Load offered by simple clients and by S-Clients";
    let command = format!("cargo xtask bench s-clients --seed {}", args.common.seed);
    let mut curves = Curves::new(title, STORY, command, vec![figures.into()], NAMES.into())?;
    let address = serve()?;
    let mut order: Vec<(usize, u32)> =
        POINTS.iter().enumerate().flat_map(|(kind, points)| points.iter().map(move |point| (kind, *point))).collect();
    let mut random = Random(args.common.seed);
    for round in 0..args.rounds {
        random.shuffle(&mut order);
        for (kind, point) in &order {
            let offered = measure(&bench, args.seconds, address, *kind, *point)?;
            println!("[{}/{}] {:14} {point:>5}  {offered:>8.0}/s", round + 1, args.rounds, NAMES[*kind]);
            curves.take(round, *kind, *kind, f64::from(*point), offered);
            // What waits in the server's queue is worked off first.
            thread::sleep(Duration::from_millis(500));
        }
    }
    curves.write(&args.common.folder("s-clients"))
}

/// Starts the server, which ends with this process.
fn serve() -> Outcome<SocketAddr> {
    let cannot = |error: std::io::Error| format!("cannot start a server: {error}");
    let listener = TcpListener::bind("127.0.0.1:0").map_err(cannot)?;
    let address = listener.local_addr().map_err(cannot)?;
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let mut request = [0; 2048];
            // A client that has given up has left its connection in the queue.
            let _ = stream.set_read_timeout(Some(Duration::from_millis(100)));
            if let Ok(1..) = stream.read(&mut request) {
                let begun = Instant::now();
                while begun.elapsed() < WORK {
                    std::hint::spin_loop();
                }
                let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok");
            }
        }
    });
    Ok(address)
}

/// Connections a second that were begun. That some were given up is what overload is.
fn measure(bench: &Bench, seconds: u32, address: SocketAddr, kind: usize, point: u32) -> Outcome<f64> {
    let duration = format!("{seconds}s");
    let (how, number, more) = match kind {
        0 => ("--clients", point.to_string(), ["--requests-per-connection", "1", "30s", "30s"]),
        _ => ("--rate", (f64::from(point) / T).to_string(), ["--arrivals", "constant", "500ms", "2s"]),
    };
    let [flag, value, connect, timeout] = more;
    let flags =
        [how, &number, flag, value, "--connect-timeout", connect, "--timeout", timeout, "--duration", &duration];
    Ok(said(&mut bench.client.load(address, "/", &flags))?.offered_rate)
}
