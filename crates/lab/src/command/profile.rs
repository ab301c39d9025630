//! `ammeter profile`: where a server's CPU time goes.

mod page;

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::Duration;

use ammeter_monitor::profile::{self, Outcome, Profile};
use ammeter_monitor::{Next, Sampler, Stop, Target, Tick};
use amped_measure::{Failure, Verdict};

use super::monitor::TargetFlags;
use super::{duration, percentage};
use crate::say;

/// The command-line flags.
#[derive(clap::Args, Debug)]
#[command(arg_required_else_help = true, after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(flatten)]
    target: TargetFlags,
    /// Profile everything that is not idle, instead of one server
    #[arg(long, conflicts_with_all = ["port", "pid"])]
    all: bool,
    /// Duration of the profile
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "10s")]
    duration: Duration,
    /// Samples per second and processor; a prime avoids lockstep with periodic work
    #[arg(long, value_name = "HZ", default_value_t = 199, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    frequency: u32,
    /// Maximum CPU use of the profiler, as a share of one processor; it pauses beyond that
    #[arg(long, value_name = "PERCENT", value_parser = percentage, default_value = "0.5%")]
    budget: f64,
    /// Print the views and all call chains as JSON, on one line
    #[arg(long)]
    json: bool,
    /// Write the views as an SVG picture to this file
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Write the picture, a flame graph and the most frequent call chains as an HTML page to this file
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Write folded stacks for flame graphs to this file
    #[arg(long, value_name = "FILE")]
    folded: Option<PathBuf>,
}

const EXAMPLES: &str = "\
Examples:
  ammeter profile --port 8080                      10 s of the server at this port, under whatever load it has
  ammeter profile --port 8080 --duration 30s --html profile.html
  ammeter profile --all --folded stacks.txt        the whole machine; flamegraph.pl reads the file

Requires root, or CAP_PERFMON and CAP_SYSLOG. Without them it shows only user and system time.";

pub(crate) fn run(args: &Args) -> Result<Verdict, Failure> {
    let target = if args.all { None } else { Some(args.target.needed()?) };
    // Tested first: a bad path must not cost a finished profile.
    for path in [&args.svg, &args.html, &args.folded].into_iter().flatten() {
        let tried = File::options().create(true).append(true).open(path);
        tried.map_err(Failure::io(format!("write {}", path.display())))?;
    }
    let stop = Stop::listen()?;
    let Args { duration, frequency, budget, .. } = *args;
    let settings = profile::Settings { target, duration, frequency, budget };
    match profile::run(&settings, &stop)? {
        Outcome::Sampled(profile) => tell(args, &profile),
        Outcome::Refused(why) => match target {
            None => Err(Failure::failed(why)),
            Some(target) => {
                say::plain(&format!("ammeter: {why}"));
                split(args, target, &stop)
            }
        },
    }
}

fn tell(args: &Args, profile: &Profile) -> Result<Verdict, Failure> {
    let write = |path: &Option<PathBuf>, text: fn(&Profile) -> String| match path {
        None => Ok(()),
        Some(path) => write(path, &text(profile)),
    };
    // The result first, so that it is printed even if the disk is full.
    if args.json {
        say::json(profile)?;
    } else {
        say::out(&profile::text(profile))?;
    }
    write(&args.svg, page::svg)?;
    write(&args.html, page::html)?;
    write(&args.folded, profile::folded)?;
    Ok(Verdict::valid())
}

fn write(path: &Path, text: &str) -> Result<(), Failure> {
    fs::write(path, text).map_err(Failure::io(format!("write {}", path.display())))
}

/// The fallback without samples: the split of the server's time.
fn split(args: &Args, target: Target, stop: &Stop) -> Result<Verdict, Failure> {
    let interval = args.duration;
    let settings =
        ammeter_monitor::Settings { target, interval, census_interval: interval, budget: 1.0, server_file: None };
    let mut sampler = Sampler::begin(settings)?;
    let mut next = || match sampler.next(stop, Duration::MAX)? {
        Next::Sample(sample) => Ok(sample),
        Next::Stopped | Next::Waiting => Err(Failure::failed("stopped before the first result")),
        Next::Ended => Err(Failure::failed("the server ended before the first result")),
    };
    let (from, to) = (next()?, next()?);
    let tick = Tick::between(&from, &to).ok_or_else(|| Failure::failed("no time has passed"))?;
    if args.json {
        return say::json(&tick).map(|()| Verdict::valid());
    }
    let percent = |share: f64| share * 100.0;
    say::out(&format!(
        "of one processor: user {:.1} %, system {:.1} %, waiting for a processor {:.1} %, in {:.1} s",
        percent(tick.server.user),
        percent(tick.server.system),
        percent(tick.server.wait),
        tick.interval_s
    ))?;
    Ok(Verdict::valid())
}
