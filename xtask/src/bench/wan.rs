//! `cargo xtask bench wan`: what one core of this machine carries through the delay router, as one TCP connection sees it.
//!
//! The router measures itself (`ammeter wan selftest`): once with packets of 1500 bytes that the kernel has cut, once with
//! large ones whose segments the models see one by one, in turns. CPU time is that of the router's thread, in which the
//! kernel works off the receiver's TCP as well.

use amped_measure::stats::Summary;
use serde_json::Value;

use crate::command::{Outcome, cargo, output, program, run as run_command, target_dir};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// How often each is measured
    #[arg(long, default_value_t = 6)]
    rounds: usize,
    /// For how long TCP sends each time
    #[arg(long, value_name = "TIME", default_value = "5s")]
    time: String,
}

/// What is compared: name and flags.
const ARMS: [(&str, &[&str]); 2] = [("packets of 1500 bytes", &["--small-packets"]), ("large packets", &[])];

pub(crate) fn run(args: &Args) -> Outcome {
    run_command(&mut cargo(&["build", "--release", "--package", "ammeter"]))?;
    let ammeter = target_dir().join("release/ammeter");
    let mut samples = ARMS.map(|_| (Vec::new(), Vec::new()));
    for _ in 0..args.rounds {
        for ((_, flags), (rates, costs)) in ARMS.iter().zip(&mut samples) {
            // A path that is not quite none, so that it is the only one; late packets are no matter here.
            let words = ["wan", "selftest", "--json", "--latency=1us", "--late-max=1m", "--tcp", &args.time];
            let text = output(program(&ammeter).args(words).args(*flags))?;
            let trials: Value = serde_json::from_str(&text).map_err(|error| format!("ammeter says {text}: {error}"))?;
            let figure = |name: &str| trials[0][name].as_f64().ok_or_else(|| format!("ammeter says no {name}: {text}"));
            rates.push(figure("tcp_mbit")? / 1e3);
            costs.push(1.0 / figure("tcp_cpu_seconds_a_gbit")?);
        }
    }
    println!("One TCP connection through `ammeter wan`, Gbit/s of data: median [interval] of {} runs", args.rounds);
    for ((name, _), (rates, costs)) in ARMS.iter().zip(samples) {
        let shown = |values: Vec<f64>| match Summary::of(values) {
            Some(Summary { low, median, high, .. }) => format!("{median:5.2} [{low:.2}, {high:.2}]"),
            None => "none".to_owned(),
        };
        println!("{name:22} {}   for each second of the router's CPU time {}", shown(rates), shown(costs));
    }
    Ok(())
}
