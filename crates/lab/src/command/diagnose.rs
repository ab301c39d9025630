//! `ammeter diagnose`: finds the bottleneck of a server, from an archive or from a load ladder run now.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ammeter_load::drive::Stop;
use ammeter_load::url::Url;
use ammeter_monitor::Target;
use amped_measure::{Failure, Validity, Verdict};
use serde::Serialize;

use super::duration;
use super::load::Sweep;
use super::monitor::TargetFlags;
use crate::archive::{self, Archive, Step};
use crate::diagnose::intervene::{Means, intervene};
use crate::diagnose::ladder::{Settings, climb};
use crate::diagnose::subject::{Setting, Subject};
use crate::diagnose::verdict::{Answer, Diagnosis};
use crate::diagnose::{TRIALS, diagnose};
use crate::{say, terminal};

/// The command-line flags.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Archive of `ammeter run` or of an earlier diagnosis, or the URL to load, such as http://127.0.0.1:8080/
    #[arg(value_name = "ARCHIVE|URL")]
    what: String,
    #[command(flatten)]
    target: TargetFlags,
    /// Rates in connections per second; the highest must exceed the capacity of the server
    #[arg(long, value_name = "A..B/STEP")]
    rates: Option<Sweep>,
    /// Numbers of clients of a closed loop, instead of rates
    #[arg(long, value_name = "A..B/STEP", conflicts_with = "rates")]
    clients: Option<Sweep>,
    /// Duration of the load at each rate
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "5s")]
    duration: Duration,
    /// Runs at each rate
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    repeat: u32,
    /// Pause between runs
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "1s")]
    pause: Duration,
    /// Length of the windows in which saturation is tested
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "50ms")]
    window: Duration,
    /// Random seed of the arrivals [default: random, and recorded in the archive]
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Timeout for a response
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "2s")]
    timeout: Duration,
    /// Flag for `ammeter load`, such as --load-flag=--requests-per-connection=10; repeatable
    #[arg(long, value_name = "FLAG", allow_hyphen_values = true)]
    load_flag: Vec<String>,
    /// Put the clients behind a path with this bandwidth (`ammeter wan`); the server is then 10.77.0.1
    #[arg(long, value_name = "RATE")]
    bandwidth: Option<String>,
    /// Put the clients behind a path with this latency
    #[arg(long, value_name = "TIME")]
    latency: Option<String>,
    /// Change the suspected resource by a fifth and check whether throughput follows
    #[arg(long)]
    intervene: bool,
    /// Pairs of runs for each intervention
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=50))]
    pairs: u32,
    /// Command that starts the server, which is stopped afterwards; values of --setting are written in braces
    #[arg(long, value_name = "COMMAND", conflicts_with_all = ["pid", "port"])]
    start: Option<String>,
    /// Setting of the server that --intervene may change, with its value; repeatable
    #[arg(long, value_name = "NAME=NUMBER", requires = "start")]
    setting: Vec<Setting>,
    /// New directory for the archive [default: one in the temporary directory]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Print the result as JSON, on one line
    #[arg(long)]
    json: bool,
}

pub(crate) const EXAMPLES: &str = "\
Examples:
  ammeter diagnose http://127.0.0.1:8080/ --port 8080 --rates 1000..8000/1000
  ammeter diagnose http://127.0.0.1:8080/ --pid 1234 --rates 100..800/100 --intervene
  ammeter diagnose http://10.77.0.1:8080/ --port 8080 --rates 20..120/20 --bandwidth 50mbit --intervene
  ammeter diagnose http://127.0.0.1:8080/big --rates 20..200/20 --intervene --setting helpers=2 \\
      --start 'amped serve site --listen 127.0.0.1:8080 --helpers {helpers}'
  ammeter diagnose DIR                            from the archive of an experiment

The lowest rate must be easy for the server and the highest too much. Where throughput stops following the rate is the knee; the
resource that is saturated above it, and not below, is the bottleneck. Root is needed to see threads, where they sleep, and quotas.

Exit status: 0 for a bottleneck of the server, or none within the rates; 1 if the load generator was the limit, nothing was
found, or the diagnosis was interrupted; 2 for wrong usage.";

pub(crate) fn run(args: &Args) -> Result<Verdict, Failure> {
    if !args.what.contains("://") {
        let flags = [
            ("--rates", args.rates.is_some()),
            ("--clients", args.clients.is_some()),
            ("--intervene", args.intervene),
            ("--start", args.start.is_some()),
            ("--out", args.out.is_some()),
            ("--port or --pid", args.target.target().is_some()),
        ];
        if let Some((flag, _)) = flags.iter().find(|(_, is_given)| *is_given) {
            return Err(Failure::usage(format!(
                "{flag} measures a running server, but {} is not a URL: write http://HOST:PORT/, or omit {flag}",
                args.what
            )));
        }
        let archive = Archive::open(Path::new(&args.what))?;
        return tell(args, &archive, diagnose(&archive)?, interrupted(&archive));
    }
    let steps = steps(args)?;
    let url = Url::parse(&args.what).map_err(Failure::usage)?;
    let address = url.resolve()?;
    // Before any thread starts.
    let stop = Stop::on_signals(terminal::restore)?;
    // The address behind a path exists only together with the path.
    let has_path = args.bandwidth.is_some() || args.latency.is_some();
    let near = if has_path { SocketAddr::from(([127, 0, 0, 1], address.port())) } else { address };
    let mut subject = args.start.as_deref().map(|command| Subject::start(command, near, &args.setting)).transpose()?;
    let target = match &subject {
        // By port: a restarted server is another process.
        Some(_) => Target::Port(address.port()),
        None => args.target.needed()?,
    };
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let settings = settings(args, target, steps, now);
    let print_line = |line: &str| {
        if !args.json {
            say::plain(line);
        }
    };
    let archive = climb(&settings, &stop, &print_line)?;
    let mut found = diagnose(&archive)?;
    let mut cut_short = if stop.is_stopped() { interrupted(&archive) } else { None };
    if let ([only], true, false) = (&mut found[..], args.intervene, stop.is_stopped()) {
        let means = Means {
            settings: &settings,
            target,
            subject: subject.as_mut(),
            server: &args.setting,
            pairs: args.pairs,
            stop: &stop,
            tell: &print_line,
        };
        match intervene(only, means) {
            Ok(trials) => {
                if stop.is_stopped() {
                    cut_short =
                        Some(format!("interrupted after the ladder and {} trials of interventions", trials.len()));
                }
                archive::write(&settings.dir.join(TRIALS), &trials)?;
                only.try_it(trials);
            }
            Err(_) if stop.is_stopped() => {
                cut_short = Some("interrupted after the ladder, before any intervention was complete".to_owned());
            }
            Err(failure) => return Err(failure),
        }
    }
    drop(subject);
    tell(args, &archive, found, cut_short)
}

/// Explains which planned runs an archive lacks; `None` if it is complete.
fn interrupted(archive: &Archive) -> Option<String> {
    let (complete, planned) = (archive.last_attempts().count(), archive.plan.runs.len());
    // An incomplete experiment continues with `ammeter run`, and says so itself.
    (complete < planned && archive.resolved.name == "diagnose")
        .then(|| format!("interrupted: the result is from {complete} of {planned} runs"))
}

/// The requested loads.
fn steps(args: &Args) -> Result<Vec<Step>, Failure> {
    let steps: Vec<Step> = match (args.rates, args.clients) {
        (Some(rates), _) => rates.rates().map(Step::Rate).collect(),
        (None, Some(clients)) => {
            clients.rates().map(|clients| Step::Clients(clients.round().max(1.0) as u32)).collect()
        }
        (None, None) => {
            return Err(Failure::usage(
                "no load given; write --rates A..B/STEP, from below the server's capacity to above it, such as \
                 100..800/100",
            ));
        }
    };
    if steps.len() < 3 || steps.len() as u32 * args.repeat < 4 {
        return Err(Failure::usage("too few runs to find the knee: give at least three rates, and four runs in all"));
    }
    Ok(steps)
}

fn settings(args: &Args, target: Target, steps: Vec<Step>, now: Duration) -> Settings {
    let path = [("--bandwidth", &args.bandwidth), ("--latency", &args.latency)];
    let path = path.into_iter().filter_map(|(flag, value)| Some([flag.to_owned(), value.clone()?])).flatten();
    let micros = format!("{}us", args.timeout.as_micros());
    let mut load = vec!["--timeout".to_owned(), micros];
    load.extend(args.load_flag.iter().cloned());
    Settings {
        url: args.what.clone(),
        target: match target {
            Target::Port(port) => vec!["--port".to_owned(), port.to_string()],
            Target::Pid(pid) => vec!["--pid".to_owned(), pid.to_string()],
        },
        steps,
        duration: args.duration,
        pause: args.pause,
        repeat: args.repeat,
        interval: args.window,
        seed: args.seed.unwrap_or(u64::from(now.subsec_nanos())),
        load,
        path: path.collect(),
        dir: args.out.clone().unwrap_or_else(|| {
            std::env::temp_dir().join(format!("ammeter-diagnose-{}-{}", now.as_secs(), std::process::id()))
        }),
    }
}

/// The JSON form of a diagnosis.
#[derive(Serialize)]
struct DiagnosisReport<'a> {
    archive: &'a Path,
    /// Why the diagnosis is incomplete, if it is.
    interrupted: &'a Option<String>,
    diagnoses: &'a [Diagnosis],
    verdict: &'a Verdict,
}

fn tell(args: &Args, archive: &Archive, found: Vec<Diagnosis>, cut_short: Option<String>) -> Result<Verdict, Failure> {
    let mut verdict = Verdict::valid();
    verdict.broken.extend(cut_short.as_ref().map(|line| format!("all runs are complete ({line})")));
    for one in &found {
        match one.answer {
            Answer::Bottleneck => {}
            Answer::Borne => verdict.weaken(Validity::AtLeast, one.sentence.clone()),
            Answer::ClientBound => verdict.weaken(Validity::ClientBound, one.sentence.clone()),
            Answer::NotFound => verdict.broken.push(format!("a bottleneck is found ({})", one.sentence)),
        }
    }
    if args.json {
        say::json(&DiagnosisReport {
            archive: archive.path(),
            interrupted: &cut_short,
            diagnoses: &found,
            verdict: &verdict,
        })?;
    } else {
        if let Some(line) = &cut_short {
            say::out(&format!("{line}\n"))?;
        }
        let several = found.len() > 1;
        let texts: Vec<String> = found.iter().map(|one| text(one, several)).collect();
        say::out(&texts.join("\n"))?;
        say::out(&format!("archive     {}", archive.path().display()))?;
    }
    Ok(verdict)
}

/// Formats a diagnosis in a few lines.
fn text(found: &Diagnosis, with_arm: bool) -> String {
    let arm = if with_arm { format!("{}: ", found.arm) } else { String::new() };
    let mut lines = vec![format!("{arm}{}", found.sentence)];
    let mut part = |name: &str, texts: &[String]| {
        for (at, text) in texts.iter().enumerate() {
            lines.push(format!("{:<11} {text}", if at == 0 { name } else { "" }));
        }
    };
    part("confidence", &[found.confidence.to_string()]);
    part("evidence", &found.evidence);
    part("follows", &found.follows);
    part(if found.answer == Answer::Bottleneck { "refuted by" } else { "to try" }, &found.refuted_by);
    lines.push(String::new());
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    fn args(words: &str) -> Args {
        Line::try_parse_from(std::iter::once("x").chain(words.split(' ')))
            .unwrap_or_else(|error| panic!("{error}"))
            .args
    }

    #[test]
    fn steps_come_from_rates_or_clients() {
        let steps =
            |words: &str| steps(&args(words)).map(|steps| steps.iter().map(|step| step.value()).collect::<Vec<_>>());
        assert_eq!(steps("http://a/ --rates 10..30/10").unwrap(), [10.0, 20.0, 30.0]);
        assert_eq!(steps("http://a/ --clients 1..4/1").unwrap().len(), 4);
        for (words, says) in [
            ("http://a/", "--rates A..B/STEP"),
            ("http://a/ --rates 10..20/10", "too few runs"),
            ("http://a/ --rates 10..30/10 --repeat 1", "too few runs"),
        ] {
            let text = steps(words).unwrap_err().to_string();
            assert!(text.contains(says), "{words}: {text}");
        }
        let text = run(&args("folder --rates 10..30/10")).unwrap_err().to_string();
        assert!(text.contains("--rates measures a running server"), "{text}");
        let text = run(&args("/nowhere")).unwrap_err().to_string();
        assert!(text.contains("is not an archive"), "{text}");
    }

    #[test]
    fn options_are_forwarded_to_programs() {
        let all = "http://a/ --port 80 --rates 10..30/10 --bandwidth 50mbit --load-flag=--http10 --timeout 1s";
        let found = settings(&args(all), Target::Port(80), Vec::new(), Duration::from_secs(7));
        assert_eq!(found.path, ["--bandwidth", "50mbit"]);
        assert_eq!(found.load, ["--timeout", "1000000us", "--http10"]);
        assert_eq!(found.target, ["--port", "80"]);
        assert_eq!(found.seed, 0);
    }
}
