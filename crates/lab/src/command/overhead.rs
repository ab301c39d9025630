//! `ammeter overhead`: the cost of monitoring for a server under load.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ammeter_monitor::overhead::{self, Ratio, Settings};
use ammeter_monitor::{Stop, Unit};
use amped_measure::{Failure, Verdict};

use super::duration;
use super::monitor::TargetFlags;
use crate::say;

/// The command-line flags.
#[derive(clap::Args, Debug)]
#[command(arg_required_else_help = true, after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(flatten)]
    target: TargetFlags,
    /// Instrument to measure
    #[arg(long, value_enum, value_name = "WHAT", default_value = "both")]
    of: What,
    /// Number of blocks of three windows: one watched, two not
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    blocks: u32,
    /// Length of a window
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "200ms")]
    window: Duration,
    /// Samples per second and processor
    #[arg(long, value_name = "HZ", default_value_t = 199, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    frequency: u32,
    /// Random seed for the order of windows [default: random, and printed]
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Print the result as JSON, on one line
    #[arg(long)]
    json: bool,
}

/// An instrument.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    /// `ammeter monitor`, with three samples per window
    Monitor,
    /// `ammeter profile`
    Profile,
    /// Both together
    Both,
    /// Neither: the noise of this machine
    Nothing,
}

const EXAMPLES: &str = "\
Examples:
  ammeter load http://127.0.0.1:8080/ --clients 8 --duration 90s &
  ammeter overhead --port 8080                      both, in 100 blocks: a minute
  ammeter load URL --rate 200 --requests-per-connection 100 --arrivals constant --duration 90s &
                                                    the same at 20,000 requests per second

The server must be under constant load. Only a cost that exceeds the noise is significant. Times are per request if the server
publishes its request count, as `amped --metrics-file` does; else per TCP data segment sent, requests and responses alike.";

pub(crate) fn run(args: &Args) -> Result<Verdict, Failure> {
    let target = args.target.needed()?;
    let stop = Stop::listen()?;
    let seed = args.seed.unwrap_or_else(|| {
        SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| u64::from(since.subsec_nanos()))
    });
    let found = overhead::run(
        &Settings {
            target,
            blocks: args.blocks,
            window: args.window,
            monitor: matches!(args.of, What::Monitor | What::Both),
            profile: matches!(args.of, What::Profile | What::Both),
            frequency: args.frequency,
            seed,
        },
        &stop,
    )?;
    if args.json {
        return say::json(&found).map(|()| Verdict::valid());
    }
    let line = |ratio: &Ratio| {
        let percent = |ratio: f64| (ratio - 1.0) * 100.0;
        format!("{:+.2} %  [{:+.2}, {:+.2}]", percent(ratio.median), percent(ratio.low), percent(ratio.high))
    };
    let (unit, counted) = match found.unit {
        Unit::Requests => ("request", "as the server counts them"),
        Unit::Segments => (
            "data segment",
            "in its whole network namespace; per request if the server publishes its count: amped --metrics-file",
        ),
    };
    say::out(&format!(
        "server CPU time per {unit}: {:.2} us, {:.0} per second ({counted})\n\
         watched      {}\nthe noise    {}\n{} blocks of three windows of {} ms, {} without load, seed {}",
        found.cpu_us,
        found.work_per_s,
        line(&found.watched),
        line(&found.noise),
        found.blocks,
        args.window.as_millis(),
        found.idle_blocks,
        found.seed
    ))?;
    Ok(Verdict::valid())
}
