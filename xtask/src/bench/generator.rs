//! `cargo xtask bench load`: what `ammeter load` costs its own machine, beside wrk.
//!
//! Both in a closed loop, since wrk knows no other, on the same server (`amped`, one file of 1 KiB), on the same core, in
//! turn, in an order drawn for each round. What is compared is the generator's CPU time for a right reply, by its control
//! group: start and end of the program included, for both. The ratio of a round is of runs within seconds of each other.

use std::fs;
use std::net::SocketAddr;

use amped_measure::stats::{Random, Summary};

use super::ammeter::said;
use super::files;
use super::group::Group;
use super::load::{Load, Targets};
use super::rig::{Bench, REFUSES, retried};
use super::server::Server;
use crate::command::Outcome;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Rounds, each with both generators
    #[arg(long, value_name = "N", default_value_t = 6, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
    /// Seconds of a run
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=60))]
    seconds: u32,
    /// Core of the server; the generators have the next one
    #[arg(long, value_name = "N", default_value_t = 0)]
    core: usize,
}

const CONNECTIONS: usize = 50;

/// What is compared, and what `ammeter` is told for it.
const POINTS: [(&str, bool, &str); 2] = [("keep-alive", false, "0"), ("new connections", true, "1")];

pub(super) fn run(args: &Args) -> Outcome {
    let bench = Bench::new(args.core)?;
    let (site, config) = (bench.site(), bench.folder.join("amped.toml"));
    files::write(&site, &[files::named("file", 1024)], false)?;
    fs::write(&config, format!("root = {site:?}\nlisten = ['127.0.0.1:0']\n"))
        .map_err(|error| format!("cannot write {}: {error}", config.display()))?;
    let mut server = Server::start(Group::new(None)?, args.core, &bench.binary, &config, &[])
        .map_err(|text| format!("the server {REFUSES}: {text}"))?;

    let mut random = Random(1);
    println!("CPU time of the generator for a reply, in us, {CONNECTIONS} connections, {} s a run", args.seconds);
    for (name, fresh, per_connection) in POINTS {
        let mut rounds: Vec<[f64; 2]> = Vec::new();
        for _ in 0..args.rounds {
            let mut order = [0, 1];
            random.shuffle(&mut order);
            let mut costs = [0.0; 2];
            for which in order {
                costs[which] = retried(&mut Vec::new(), || {
                    let before = bench.client.group.cpu_ns()?;
                    let replies = match which {
                        0 => bench.client.run(server.address, &load(fresh, args.seconds), 0)?.requests,
                        _ => asked(&bench, server.address, per_connection, args.seconds)?,
                    };
                    Ok((bench.client.group.cpu_ns()? - before) as f64 / 1e3 / replies.max(1) as f64)
                })?;
            }
            rounds.push(costs);
        }
        server.check()?;
        let of = |figure: fn(&[f64; 2]) -> f64| Summary::of(rounds.iter().map(figure)).expect("there is a round");
        let (wrk, ours, ratio) = (of(|round| round[0]), of(|round| round[1]), of(|round| round[1] / round[0]));
        println!(
            "{name:16} wrk {:.2}  ammeter {:.2}  ratio {:.2} ({:.2} to {:.2}, {:.0} %)",
            wrk.median,
            ours.median,
            ratio.median,
            ratio.low,
            ratio.high,
            ratio.coverage * 100.0
        );
    }
    Ok(())
}

fn load(fresh: bool, seconds: u32) -> Load {
    Load { targets: Targets::One("/file".to_owned(), 1024), connections: CONNECTIONS, fresh, seconds, hot: None }
}

/// Runs `ammeter load`, and returns how many right replies it had.
fn asked(bench: &Bench, address: SocketAddr, per_connection: &str, seconds: u32) -> Outcome<u64> {
    let (clients, duration) = (CONNECTIONS.to_string(), format!("{seconds}s"));
    let flags = ["--clients", &clients, "--duration", &duration, "--requests-per-connection", per_connection];
    said(&mut bench.client.load(address, "/file", &flags))?.replies(200)
}
