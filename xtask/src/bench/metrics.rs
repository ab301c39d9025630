//! `cargo xtask bench metrics`: what it costs the server to count and to time its requests.
//!
//! Four servers stand on one core at the same time, and one of them is asked: one that was built without the feature
//! `metrics`, the same once more, one that has it and is not asked to tell, and one that tells by a file and an address. In
//! each round all four are loaded in an order that is drawn, a second each, with the smallest requests that there are, since
//! for these a share is largest. The ratio of a round is that of the CPU time for a request, by the control group, to the
//! mean of the two that were built without; that of these two to one another is the noise. Servers are started anew for each
//! session: how a program comes to lie in memory is luck, and would else be measured with it.

use std::fs;
use std::path::{Path, PathBuf};

use amped_measure::host::load_average;
use amped_measure::stats::{Random, Summary};

use super::files;
use super::group::Group;
use super::load::{Load, Targets};
use super::rig::{Bench, Clocks, REFUSES, retried};
use super::server::Server;
use crate::command::{Outcome, cargo, run as run_command, target_dir};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Sessions, for each of which the servers are started anew
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=100))]
    sessions: u32,
    /// Rounds of a session, of four seconds for each kind of load
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// Core of the servers; the load generator has the next one
    #[arg(long, value_name = "N", default_value_t = 0)]
    core: usize,
    /// Seed of the order
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// What is compared, whether it was built with the feature, and whether it tells.
const ARMS: [(&str, bool, bool); 4] =
    [("without", false, false), ("without, again", false, false), ("not asked", true, false), ("told", true, true)];

/// Connections of wrk: enough to keep a loop busy.
const CONNECTIONS: usize = 48;

/// Kinds of load, and whether each request has a connection of its own.
const POINTS: [(&str, bool); 2] = [("connections persist", false), ("a connection each", true)];

pub(super) fn run(args: &Args) -> Outcome {
    run_command(&mut cargo(&["build", "--release", "--package", "amped", "--no-default-features"]))?;
    let without = target_dir().join("amped-without-metrics");
    let built = target_dir().join("release/amped");
    fs::copy(&built, &without).map_err(|error| format!("cannot copy {}: {error}", built.display()))?;
    // Builds the one that has it.
    let bench = Bench::new(args.core)?;
    files::write(&bench.site(), &[files::named("file", 1024)], false)?;

    let mut random = Random(args.seed);
    let mut costs: [Vec<[f64; ARMS.len()]>; POINTS.len()] = Default::default();
    let (load_before, mut spans) = (load_average()?, Vec::new());
    for session in 0..args.sessions {
        let mut servers = start(&bench, &without)?;
        for round in 0..args.rounds {
            let mut points: Vec<usize> = (0..POINTS.len()).collect();
            random.shuffle(&mut points);
            for point in points {
                let mut order: Vec<usize> = (0..ARMS.len()).collect();
                random.shuffle(&mut order);
                let mut found = [0.0; ARMS.len()];
                for arm in order {
                    let (us, others) = retried(&mut Vec::new(), || measure(&bench, &servers[arm], POINTS[point].1))?;
                    found[arm] = us;
                    spans.push(others);
                }
                costs[point].push(found);
            }
            eprintln!("session {} of {}, round {} of {}", session + 1, args.sessions, round + 1, args.rounds);
        }
        servers.iter_mut().try_for_each(Server::check)?;
    }
    println!("CPU time of the server for a request of 1 KiB, {} rounds in {} sessions", args.rounds, args.sessions);
    println!("{:20} {:16} {:>7}   to those without: median [interval]", "", "", "us");
    for ((name, _), rounds) in POINTS.iter().zip(&costs) {
        for (arm, (arm_name, ..)) in ARMS.iter().enumerate() {
            let us = summary(rounds.iter().map(|found| found[arm]));
            let ratio = summary(rounds.iter().map(|found| ratio(found, arm)));
            println!(
                "{name:20} {arm_name:16} {:7.3}   {:.4} [{:.4}, {:.4}]",
                us.median, ratio.median, ratio.low, ratio.high
            );
        }
    }
    let others = summary(spans);
    println!(
        "the machine: load average {load_before} before and {} after; others used {:.2} of a core [{:.2}, {:.2}]",
        load_average()?,
        others.median,
        others.low,
        others.high
    );
    Ok(())
}

/// To the mean of both that were built without; of these, one to the other.
fn ratio(found: &[f64; ARMS.len()], arm: usize) -> f64 {
    match arm {
        0 => 1.0,
        1 => found[1] / found[0],
        _ => found[arm] / f64::midpoint(found[0], found[1]),
    }
}

fn summary(values: impl IntoIterator<Item = f64>) -> Summary {
    Summary::of(values).expect("there is a round")
}

/// Starts one of each, and warms it.
fn start(bench: &Bench, without: &Path) -> Outcome<Vec<Server>> {
    // Where the loops may publish: in memory.
    let told = PathBuf::from(format!("/dev/shm/amped-bench-{}", std::process::id()));
    let mut servers = Vec::new();
    for (name, has_feature, tells) in ARMS {
        let config = bench.folder.join(format!("{}.toml", name.replace([' ', ','], "-")));
        let mut text = format!("root = {:?}\nlisten = ['127.0.0.1:0']\n", bench.site());
        if tells {
            text += &format!("[metrics]\nfile = {told:?}\nlisten = '127.0.0.1:0'\n");
        }
        fs::write(&config, text).map_err(|error| format!("cannot write {}: {error}", config.display()))?;
        let binary = if has_feature { &bench.binary } else { without };
        let server = Server::start(Group::new(None)?, bench.core, binary, &config, &[])
            .map_err(|text| format!("the server {REFUSES}: {text}"))?;
        bench.client.warm(server.address, &vec!["/file".to_owned(); 480], CONNECTIONS)?;
        servers.push(server);
    }
    // Whoever has it mapped goes on.
    let _ = fs::remove_file(told);
    Ok(servers)
}

/// CPU time for a request, in microseconds, and how many cores others used meanwhile.
fn measure(bench: &Bench, server: &Server, fresh: bool) -> Outcome<(f64, f64)> {
    let load = Load {
        targets: Targets::One("/file".to_owned(), 1024),
        connections: CONNECTIONS,
        fresh,
        seconds: 1,
        hot: None,
    };
    let clients = &bench.client.group;
    let clocks = Clocks::read(&server.group, clients)?;
    let heard = bench.client.run(server.address, &load, 0)?;
    let sample = clocks.sample(&server.group, clients, heard.requests, heard.seconds, heard.bytes)?;
    Ok((sample.cpu_us, sample.others_share))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_to_the_mean_of_both_without() {
        let found = [4.0, 6.0, 5.0, 5.5];
        assert_eq!([0, 1, 2, 3].map(|arm| ratio(&found, arm)), [1.0, 1.5, 1.0, 1.1]);
    }
}
