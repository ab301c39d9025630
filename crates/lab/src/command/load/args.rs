//! The flags of `ammeter load`, and the checks that need nothing but them.

use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::time::Duration;

use ammeter_load::condition::Condition;
use ammeter_load::drive::parked::Wanted;
use ammeter_load::schedule::{Arrivals, rate, seconds};
use ammeter_load::slice::Slice;
use ammeter_load::workload::Statuses;
use ammeter_load::workload::log::Spacing;
use amped_measure::Failure;

use crate::command::percentage;

/// The flags.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// What to ask for, such as http://127.0.0.1:8080/index.html
    #[arg(required_unless_present = "calibrate")]
    pub(super) url: Option<String>,
    /// Find out what this machine can generate, against a server that does nothing: one generator beside two
    #[arg(long, conflicts_with_all = ["url", "rate", "clients", "sweep", "generators", "unix"])]
    pub(super) calibrate: bool,
    /// Connections to begin a second, whatever the server does: 500, 10k or 1.5m
    #[arg(long, value_name = "N", conflicts_with = "clients", allow_negative_numbers = true, value_parser = rate)]
    pub(super) rate: Option<f64>,
    /// How long to begin connections, such as 30s, 2m or 10 (seconds); replies may take longer [default: 10s; of a replay, or
    /// with --requests, to the end]
    #[arg(long, short = 'd', value_name = "TIME", value_parser = seconds)]
    pub(super) duration: Option<Duration>,
    /// End after so many requests, or after --duration if that comes first [default: no limit]
    #[arg(long, short = 'n', value_name = "N", conflicts_with_all = ["calibrate", "sweep", "replay"],
          value_parser = clap::value_parser!(u64).range(1..))]
    pub(super) requests: Option<u64>,
    /// The method of each request [default: GET, with a body POST]
    #[arg(long, value_name = "METHOD", conflicts_with_all = ["workload", "replay", "calibrate"])]
    pub(super) method: Option<String>,
    /// A body to send with each request; its Content-Type by --header
    #[arg(long, value_name = "TEXT", conflicts_with_all = ["workload", "replay", "calibrate", "body_file"])]
    pub(super) body: Option<String>,
    /// A file to send as the body of each request
    #[arg(long, value_name = "FILE", conflicts_with_all = ["workload", "replay", "calibrate"])]
    pub(super) body_file: Option<PathBuf>,
    /// Statuses that are right, as 2xx,404 [default: all below 400]
    #[arg(long, value_name = "STATUSES", conflicts_with_all = ["workload", "replay", "calibrate"])]
    pub(super) expect: Option<Statuses>,
    /// Ask for a file set, by the manifest that `ammeter files` has made
    #[arg(long, value_name = "MANIFEST")]
    pub(super) workload: Option<PathBuf>,
    /// Ask for targets by their weights: a file with a weight and a target a line
    #[arg(long, value_name = "FILE", conflicts_with_all = ["workload", "replay"])]
    pub(super) mix: Option<PathBuf>,
    /// Ask again for what an access log shows by GET and HEAD, in its order, at its times: Common or Combined Log Format, also
    /// as gzip
    #[arg(long, value_name = "LOG")]
    pub(super) replay: Option<PathBuf>,
    /// How many times as fast as then, or max: as --rate or --clients say
    #[arg(long, value_name = "X|max", default_value = "1", requires = "replay")]
    pub(super) speed: Spacing,
    /// Replies must be as the log has them: the status, and of a 200 the size. By default only a file that the log shows is
    /// expected, as 200
    #[arg(long, requires = "replay", conflicts_with = "workload")]
    pub(super) as_logged: bool,
    /// Check the content of each reply against the manifest
    #[arg(long, requires = "workload")]
    pub(super) verify: bool,
    /// How connections follow each other: constant, poisson, bursty:RATIO,PERCENT%[,PERIOD], self-similar:HURST[,onoff], file:F
    #[arg(long, value_name = "PROCESS", default_value = "poisson", conflicts_with = "clients")]
    pub(super) arrivals: Arrivals,
    /// What the schedule is drawn from [default: another for each run, and printed]
    #[arg(long, value_name = "N")]
    pub(super) seed: Option<u64>,
    /// How long a connection may take to be established, from its planned instant; then it is given up
    #[arg(long, value_name = "TIME", value_parser = seconds, default_value = "500ms")]
    pub(super) connect_timeout: Duration,
    /// How long a reply may take, from the planned instant of its request
    #[arg(long, value_name = "TIME", value_parser = seconds, default_value = "10s")]
    pub(super) timeout: Duration,
    /// How long to wait for a server that does not listen yet; 0s: begin all the same [default: if nobody listens, say so]
    #[arg(long, value_name = "TIME", value_parser = seconds, conflicts_with = "calibrate")]
    pub(super) wait: Option<Duration>,
    /// Requests on a connection, one after the other; 0: no end [default: 1, with --clients 0]
    #[arg(long, value_name = "K")]
    pub(super) requests_per_connection: Option<u64>,
    /// Requests that are sent together, before their replies
    #[arg(long, value_name = "P", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=1000))]
    pub(super) pipeline: u64,
    /// Speak HTTP/1.0
    #[arg(long)]
    pub(super) http10: bool,
    /// A header field to send with each request; may be given again. Host goes before that of the URL
    #[arg(long, short = 'H', value_name = "NAME: VALUE")]
    pub(super) header: Vec<String>,
    /// A socket in the file system to connect to, in place of the URL's host
    #[arg(long, value_name = "SOCKET")]
    pub(super) unix: Option<PathBuf>,
    /// Believe any certificate of an https URL, or none
    #[arg(long, conflicts_with = "ca")]
    pub(super) insecure: bool,
    /// Authorities to believe in place of this machine's, as PEM; or the server's own certificate
    #[arg(long, value_name = "FILE")]
    pub(super) ca: Option<PathBuf>,
    /// A closed loop: so many clients, each of which asks when it has its reply. The server sets the pace
    #[arg(long, short = 'c', value_name = "N")]
    pub(super) clients: Option<usize>,
    /// What a client of a closed loop waits between a reply and its next request
    #[arg(long, value_name = "TIME", value_parser = seconds, default_value = "0s", requires = "clients")]
    pub(super) think_time: Duration,
    /// Make one part of the load, as one of several machines that are given the same flags: the I-th of N makes every N-th
    /// connection, or in a closed loop every N-th client and request
    #[arg(long, value_name = "I/N", default_value_t, conflicts_with_all = ["calibrate", "sweep"])]
    pub(super) slice: Slice,
    /// Pairs of threads that make load, each its part of it
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub(super) generators: u16,
    /// Connections held open beside the load, as N:idle (asks once) or N:slow-read (takes 16 bytes a second of each reply);
    /// may be given again
    #[arg(long, value_name = "N[:KIND]", conflicts_with = "calibrate")]
    pub(super) parked: Vec<Wanted>,
    /// Share of the machine's CPU time that processes other than the server's and the load's may use; beyond, the result is
    /// disturbed. 100%: nobody looks
    #[arg(long, value_name = "SHARE", value_parser = percentage, default_value = "10%", conflicts_with = "calibrate")]
    pub(super) others_max: f64,
    /// How long before an instant the clock is watched in place of sleeping
    #[arg(long, value_name = "TIME", value_parser = seconds, default_value = "60us")]
    pub(super) spin: Duration,
    /// Rates one after the other: FROM..TO/STEP, each for --duration
    #[arg(long, value_name = "A..B/STEP", conflicts_with_all = ["rate", "clients"])]
    pub(super) sweep: Option<Sweep>,
    /// Times that a sweep goes through its rates [default: 1, with --find-capacity 3]
    #[arg(long, value_name = "N", requires = "sweep", value_parser = clap::value_parser!(u32).range(1..=100))]
    pub(super) repeat: Option<u32>,
    /// Between the rates of a sweep
    #[arg(long, value_name = "TIME", value_parser = seconds, default_value = "1s", requires = "sweep")]
    pub(super) pause: Duration,
    /// Say which rate of the sweep the server still bears
    #[arg(long, requires = "sweep")]
    pub(super) find_capacity: bool,
    /// What a server that bears a rate keeps to, besides answering 99 % rightly
    #[arg(long, value_name = "p99=TIME", requires = "find_capacity", value_parser = slo)]
    pub(super) slo: Option<Condition>,
    /// The run has failed if this holds, such as p99>20ms, failed>1% or rate<4990; may be given again
    #[arg(long, value_name = "CONDITION")]
    pub(super) fail_if: Vec<Condition>,
    /// The result as JSON, in one line
    #[arg(long)]
    pub(super) json: bool,
    /// Histograms of each second to this file, as a log that HdrHistogram's own tools read
    #[arg(long, value_name = "FILE", conflicts_with = "calibrate")]
    pub(super) hlog: Option<PathBuf>,
    /// The result as one page with plots, to this file; it opens in any browser and loads nothing
    #[arg(long, value_name = "FILE", conflicts_with = "calibrate")]
    pub(super) html: Option<PathBuf>,
    /// The result with its histograms to this file, to be put together with those of other slices
    #[arg(long, value_name = "FILE", hide = true, conflicts_with_all = ["calibrate", "sweep"])]
    pub(super) parts: Option<PathBuf>,
    /// Say `ready` on standard error when all is, and begin at the instant that comes as a line on standard input: seconds
    /// since 1970
    #[arg(long, hide = true, conflicts_with_all = ["calibrate", "sweep"])]
    pub(super) await_start: bool,
    /// A screen in place of the live line
    #[arg(long, conflicts_with = "calibrate")]
    pub(super) screen: bool,
}

pub(crate) const EXAMPLES: &str = "\
Examples:
  ammeter load http://127.0.0.1:8080/ --rate 5000 --duration 30s
  ammeter load http://127.0.0.1:8080/ --rate 2000 --arrivals bursty:6,5% --fail-if 'p99>20ms'
  ammeter load https://127.0.0.1:8443/ --rate 500 --ca cert.pem    TLS, a full handshake for each connection
  ammeter load http://127.0.0.1:8080/ --clients 50                 closed loop, as wrk -c 50
  ammeter load http://127.0.0.1:8080/ -c 50 -n 10000               10,000 requests, as fast as the server answers
  ammeter load http://127.0.0.1:8080/api --rate 1k -d 10 --body '[1, 2]' -H 'Content-Type: application/json'
  ammeter load http://127.0.0.1:8080/gone --rate 500 --expect 2xx,404
  ammeter load http://127.0.0.1:8080/ --replay access.log.gz --speed 10
  ammeter load http://127.0.0.1:8080/ --sweep 1000..20000/1000 --find-capacity --slo p99=10ms
  ammeter load http://127.0.0.1:8080/ --rate 2000 --html run.html --hlog run.hlog
  ammeter load http://127.0.0.1:8080/ --rate 500 --parked 2000 --parked 50:slow-read
  ammeter load --calibrate --duration 2s                           what this machine can generate

A rate is of connections, each with --requests-per-connection requests. It does not depend on the server: a connection
that is not established in time is given up, and the next one begins when it is planned. Exit status: 0 for a result that
is the server's, 1 if it is the client's own (client-bound), may be that of other processes (disturbed) or a --fail-if holds,
2 for wrong usage.";

impl Args {
    /// How long to begin connections. A closed loop that ends after a number of requests takes what it takes.
    pub(super) fn duration(&self) -> Duration {
        const USUAL: Duration = Duration::from_secs(10);
        const A_DAY: Duration = Duration::from_secs(86_400);
        self.duration.unwrap_or(if self.requests.is_some() { A_DAY } else { USUAL })
    }

    /// The method and the body of each request.
    ///
    /// # Errors
    /// A method that is no token (RFC 9110, 9.1); a file that cannot be read.
    pub(super) fn method_and_body(&self) -> Result<(String, Vec<u8>), Failure> {
        let body = match (&self.body, &self.body_file) {
            (Some(text), _) => Some(text.clone().into_bytes()),
            (None, Some(path)) => {
                Some(std::fs::read(path).map_err(Failure::io(format_args!("read --body-file {}", path.display())))?)
            }
            (None, None) => None,
        };
        let usual = if body.is_some() { "POST" } else { "GET" };
        let method = self.method.clone().unwrap_or_else(|| usual.to_owned());
        let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
        if method.is_empty() || !method.bytes().all(is_token) {
            return Err(Failure::usage(format!("--method {method:?} is no method; write for example POST")));
        }
        if method == "CONNECT" {
            return Err(Failure::usage("--method CONNECT opens a tunnel, which this program does not measure"));
        }
        Ok((method, body.unwrap_or_default()))
    }
}

/// Rates from, to, and their distance.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Sweep {
    from: f64,
    to: f64,
    step: f64,
}

impl std::str::FromStr for Sweep {
    type Err = String;

    fn from_str(text: &str) -> Result<Sweep, String> {
        let parts = || {
            let (from, rest) = text.split_once("..")?;
            let (to, step) = rest.split_once('/')?;
            let [from, to, step] = [from, to, step].map(|part| rate(part).ok());
            Some(Sweep { from: from?, to: to?, step: step? })
        };
        let is_sound = |sweep: &Sweep| {
            let Sweep { from, to, step } = *sweep;
            from > 0.0 && to >= from && step > 0.0 && (to - from) / step < 1000.0
        };
        parts().filter(is_sound).ok_or_else(|| {
            format!("{text:?} is no sweep: write FROM..TO/STEP, such as 1000..20000/1000, with at most 1000 rates")
        })
    }
}

impl Sweep {
    pub(crate) fn rates(self) -> impl Iterator<Item = f64> {
        let Sweep { from, to, step } = self;
        (0..).map(move |n| from + f64::from(n) * step).take_while(move |rate| *rate <= to * (1.0 + 1e-9))
    }
}

/// `p99=10ms` is what must hold; what must not is the condition.
fn slo(text: &str) -> Result<Condition, String> {
    let broken = text.replacen("<=", ">", 1).replacen('=', ">", 1);
    if broken == text { Err(format!("{text:?} is no objective: write p99=10ms")) } else { broken.parse() }
}

/// What is written must not be what is read, or written twice.
pub(super) fn check_paths(args: &Args) -> Result<(), Failure> {
    let series = if let Arrivals::File(path) = &args.arrivals { Some(path) } else { None };
    let (html, hlog) = (("--html", args.html.as_ref()), ("--hlog", args.hlog.as_ref()));
    let read = [
        ("--workload", args.workload.as_ref()),
        ("--mix", args.mix.as_ref()),
        ("--replay", args.replay.as_ref()),
        ("--ca", args.ca.as_ref()),
        ("--arrivals", series),
        ("--body-file", args.body_file.as_ref()),
    ];
    for (written, others) in [(html, &[&read[..], &[hlog]].concat()), (hlog, &read.to_vec())] {
        let (flag, Some(path)) = written else { continue };
        // The same under another name; what is no plain file, such as a terminal, can be written by several.
        let identity = |path: &PathBuf| {
            let found = std::fs::metadata(path).ok().filter(std::fs::Metadata::is_file)?;
            Some((found.dev(), found.ino()))
        };
        let is_same = |other: &PathBuf| match identity(path) {
            Some(known) => identity(other) == Some(known),
            None => !path.exists() && path == other,
        };
        if let Some((other, _)) = others.iter().find(|(_, other)| other.is_some_and(is_same)) {
            return Err(Failure::usage(format!(
                "{} is what {flag} is to write and the file of {other} as well; give {flag} another name",
                path.display()
            )));
        }
    }
    Ok(())
}

/// How many connections this slice parks.
pub(super) fn parked(args: &Args) -> Vec<Wanted> {
    let share = |wanted: &Wanted| Wanted { count: args.slice.share(wanted.count as u64) as usize, ..*wanted };
    args.parked.iter().map(share).filter(|wanted| wanted.count > 0).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sweeps() {
        let check = |text: &str, expected: Option<&[f64]>| {
            let found = text.parse::<Sweep>().ok().map(|sweep| sweep.rates().collect::<Vec<_>>());
            assert_eq!(found.as_deref(), expected, "{text:?}");
        };
        check("100..300/100", Some(&[100.0, 200.0, 300.0]));
        check("0.1k..0.2k/100", Some(&[100.0, 200.0]));
        check("100..250/100", Some(&[100.0, 200.0]));
        check("0.1..0.3/0.1", Some(&[0.1, 0.2, 0.1 + 2.0 * 0.1]));
        for bad in ["", "100", "100..200", "0..10/1", "200..100/10", "1..2/0", "1..1e9/1", "a..b/c"] {
            check(bad, None);
        }
    }

    #[test]
    fn objectives() {
        assert_eq!(slo("p99=10ms").unwrap().to_string(), "p99>10ms");
        assert_eq!(slo("p99<=10ms").unwrap().to_string(), "p99>10ms");
        assert!(slo("p99>10ms").is_err() && slo("p99").is_err());
    }
}
