//! The flags of `ammeter load`, and checks that depend on them alone.

use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::time::Duration;

use ammeter_load::condition::Condition;
use ammeter_load::drive::parked::Wanted;
use ammeter_load::schedule::{Arrivals, rate, seconds};
use ammeter_load::slice::Slice;
use ammeter_load::tls::TlsVersion;
use ammeter_load::workload::Statuses;
use ammeter_load::workload::log::Spacing;
use amped_measure::Failure;

use crate::channel::SSH;
use crate::command::percentage;
use crate::values::{Checked, HostName, Via};

/// The command-line flags.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// URL to request, such as http://127.0.0.1:8080/index.html
    #[arg(required_unless_present = "calibrate")]
    pub(super) url: Option<String>,
    /// Measure what this machine can generate, against a null server, with one generator and with two
    #[arg(long, conflicts_with_all = ["url", "rate", "clients", "sweep", "generators", "unix"])]
    pub(super) calibrate: bool,
    /// Connections to open per second, independent of the server: 500, 10k or 1.5m
    #[arg(long, value_name = "N", conflicts_with = "clients", allow_negative_numbers = true, value_parser = rate)]
    pub(super) rate: Option<f64>,
    /// Duration of the load, such as 30s, 2m or 10 (seconds); responses may arrive later [default: 10s; for a replay,
    /// or with --requests, until the end]
    #[arg(long, short = 'd', value_name = "TIME", value_parser = seconds)]
    pub(super) duration: Option<Duration>,
    /// Stop after this many requests, or after --duration if that is sooner [default: no limit]
    #[arg(long, short = 'n', value_name = "N", conflicts_with_all = ["calibrate", "sweep", "replay"],
          value_parser = clap::value_parser!(u64).range(1..))]
    pub(super) requests: Option<u64>,
    /// Method of each request [default: GET; POST with a body]
    #[arg(long, value_name = "METHOD", conflicts_with_all = ["workload", "replay", "calibrate"])]
    pub(super) method: Option<String>,
    /// Body to send with each request; set its Content-Type with --header
    #[arg(long, value_name = "TEXT", conflicts_with_all = ["workload", "replay", "calibrate", "body_file"])]
    pub(super) body: Option<String>,
    /// File to send as the body of each request
    #[arg(long, value_name = "FILE", conflicts_with_all = ["workload", "replay", "calibrate"])]
    pub(super) body_file: Option<PathBuf>,
    /// Statuses that count as success, such as 2xx,404 [default: all below 400]
    #[arg(long, value_name = "STATUSES", conflicts_with_all = ["workload", "replay", "calibrate"])]
    pub(super) expect: Option<Statuses>,
    /// Request the files of a set, by the manifest that `ammeter files` wrote
    #[arg(long, value_name = "MANIFEST")]
    pub(super) workload: Option<PathBuf>,
    /// Request targets by weight, from a file with a weight and a target per line
    #[arg(long, value_name = "FILE", conflicts_with_all = ["workload", "replay"])]
    pub(super) mix: Option<PathBuf>,
    /// Replay the GET and HEAD requests of an access log in order and at its times: Common, Combined or amped's JSON
    /// format, also gzip
    #[arg(long, value_name = "LOG")]
    pub(super) replay: Option<PathBuf>,
    /// Speed of the replay relative to the log, or max: ignore its times, and use --rate or --clients
    #[arg(long, value_name = "X|max", default_value = "1", requires = "replay")]
    pub(super) speed: Spacing,
    /// Expect the statuses of the log, and for a 200 its size [default: expect 200 where the log shows a file]
    #[arg(long, requires = "replay", conflicts_with = "workload")]
    pub(super) as_logged: bool,
    /// Check the contents of each response against the manifest
    #[arg(long, requires = "workload")]
    pub(super) verify: bool,
    /// Arrival process: constant, poisson, bursty:RATIO,PERCENT%[,PERIOD], self-similar:HURST, file:F; or descriptors: as many
    /// as the rate and the connect timeout need, each of which opens a connection when its last one is
    /// established or expired
    #[arg(long, value_name = "PROCESS", default_value = "poisson", conflicts_with = "clients")]
    pub(super) arrivals: Arrivals,
    /// Random seed of the schedule [default: random, and printed]
    #[arg(long, value_name = "N")]
    pub(super) seed: Option<u64>,
    /// Timeout for establishing a connection, from its scheduled time
    #[arg(long, value_name = "TIME", value_parser = seconds, default_value = "500ms")]
    pub(super) connect_timeout: Duration,
    /// Timeout for a response, from the scheduled time of its request
    #[arg(long, value_name = "TIME", value_parser = seconds, default_value = "10s")]
    pub(super) timeout: Duration,
    /// Time to wait for the server to listen; 0s: start without checking [default: fail if nothing listens]
    #[arg(long, value_name = "TIME", value_parser = seconds, conflicts_with = "calibrate")]
    pub(super) wait: Option<Duration>,
    /// Requests per connection, one after the other; 0: unlimited [default: 1, or --streams; 0 with
    /// --clients]
    #[arg(long, value_name = "K")]
    pub(super) requests_per_connection: Option<u64>,
    /// Requests to pipeline: sent together, before their responses
    #[arg(long, value_name = "P", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=1000))]
    pub(super) pipeline: u64,
    /// Use HTTP/2: by ALPN with an https URL, with prior knowledge (h2c) with an http URL
    #[arg(long, conflicts_with_all = ["http10", "pipeline", "parked", "calibrate"])]
    pub(super) http2: bool,
    /// Concurrent requests of a connection, each on a stream of HTTP/2: a response makes room for the next request
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=10_000),
          requires = "http2")]
    pub(super) streams: u64,
    /// Use HTTP/1.0
    #[arg(long)]
    pub(super) http10: bool,
    /// Header field to send with each request; repeatable. Host overrides that of the URL
    #[arg(long, short = 'H', value_name = "NAME: VALUE")]
    pub(super) header: Vec<String>,
    /// Unix domain socket to connect to, instead of the URL's host
    #[arg(long, value_name = "SOCKET")]
    pub(super) unix: Option<PathBuf>,
    /// Do not verify the certificate of an https URL
    #[arg(long, conflicts_with = "ca")]
    pub(super) insecure: bool,
    /// CA certificates (PEM) to trust instead of the system's; or the server's own certificate
    #[arg(long, value_name = "FILE")]
    pub(super) ca: Option<PathBuf>,
    /// TLS version of an https URL, 1.2 or 1.3 [default: both]
    #[arg(long, value_name = "VERSION", conflicts_with = "calibrate")]
    pub(super) tls_version: Option<TlsVersion>,
    /// Share of the connections to an https URL that resume an earlier session; the others make a full handshake
    #[arg(long, value_name = "SHARE", value_parser = resumed, default_value = "0%", conflicts_with = "calibrate")]
    pub(super) tls_resume: f64,
    /// Closed loop with this many clients, each of which sends its next request when it has its response
    #[arg(long, short = 'c', value_name = "N")]
    pub(super) clients: Option<usize>,
    /// Time that a client of a closed loop waits between a response and its next request
    #[arg(long, value_name = "TIME", value_parser = seconds, default_value = "0s", requires = "clients")]
    pub(super) think_time: Duration,
    /// Generate part I of N of the load, on one of several machines with the same flags and seed: every N-th
    /// connection, or in a closed loop every N-th client and request
    #[arg(long, value_name = "I/N", default_value_t, conflicts_with_all = ["calibrate", "sweep"])]
    pub(super) slice: Slice,
    /// Hosts that generate the load together, which begins on all of them at the same instant; they have ssh names unless
    /// --via says otherwise
    #[arg(long, value_name = "HOST,...", value_delimiter = ',',
          conflicts_with_all = ["calibrate", "sweep", "unix", "slice", "parts", "await_start", "screen", "parked"])]
    pub(super) hosts: Vec<Checked<HostName>>,
    /// Program that runs a command on a host of --hosts, with {host} in place of its name: 'kubectl exec -i {host} --'
    #[arg(long, value_name = "COMMAND", default_value = SSH, requires = "hosts")]
    pub(super) via: Checked<Via>,
    /// Pairs of threads that generate the load
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub(super) generators: u16,
    /// Connections to hold open during the load, as N:idle (one request each) or N:slow-read (read 16 bytes per
    /// second); repeatable
    #[arg(long, value_name = "N[:KIND]", conflicts_with = "calibrate")]
    pub(super) parked: Vec<Wanted>,
    /// Maximum share of the machine's CPU time for other processes; beyond it the result is disturbed. 100%: do not
    /// check
    #[arg(long, value_name = "SHARE", value_parser = percentage, default_value = "10%", conflicts_with = "calibrate")]
    pub(super) others_max: f64,
    /// Time to spin, instead of sleeping, before each scheduled connection
    #[arg(long, value_name = "TIME", value_parser = seconds, default_value = "60us")]
    pub(super) spin: Duration,
    /// Sweep rates FROM..TO/STEP, each for --duration
    #[arg(long, value_name = "A..B/STEP", conflicts_with_all = ["rate", "clients"])]
    pub(super) sweep: Option<Sweep>,
    /// Number of passes of a sweep [default: 1; 3 with --find-capacity]
    #[arg(long, value_name = "N", requires = "sweep", value_parser = clap::value_parser!(u32).range(1..=100))]
    pub(super) repeat: Option<u32>,
    /// Pause between the rates of a sweep
    #[arg(long, value_name = "TIME", value_parser = seconds, default_value = "1s", requires = "sweep")]
    pub(super) pause: Duration,
    /// Report the highest rate of the sweep that the server sustains
    #[arg(long, requires = "sweep")]
    pub(super) find_capacity: bool,
    /// Latency objective for a sustained rate, in addition to 99 % correct responses
    #[arg(long, value_name = "p99=TIME", requires = "find_capacity", value_parser = slo)]
    pub(super) slo: Option<Condition>,
    /// Fail (exit status 1) if this holds, such as p99>20ms, failed>1% or rate<4990; repeatable
    #[arg(long, value_name = "CONDITION")]
    pub(super) fail_if: Vec<Condition>,
    /// Print the result as JSON, on one line
    #[arg(long)]
    pub(super) json: bool,
    /// Write a histogram per second to this file, in HdrHistogram's log format
    #[arg(long, value_name = "FILE", conflicts_with = "calibrate")]
    pub(super) hlog: Option<PathBuf>,
    /// Write the result as a self-contained HTML page with plots to this file
    #[arg(long, value_name = "FILE", conflicts_with = "calibrate")]
    pub(super) html: Option<PathBuf>,
    /// Write the result with its histograms to this file, for merging with those of other slices; `-`: standard output, and
    /// nothing else there
    #[arg(long, value_name = "FILE", hide = true, conflicts_with_all = ["calibrate", "sweep"])]
    pub(super) parts: Option<PathBuf>,
    /// Print `ready` on standard error when ready, and begin at the instant read from standard input, in seconds since 1970;
    /// end at the end of standard input
    #[arg(long, hide = true, conflicts_with_all = ["calibrate", "sweep"])]
    pub(super) await_start: bool,
    /// Show a full screen instead of the live line
    #[arg(long, conflicts_with = "calibrate")]
    pub(super) screen: bool,
}

pub(crate) const EXAMPLES: &str = "\
Examples:
  ammeter load http://127.0.0.1:8080/ --rate 5000 --duration 30s
  ammeter load http://127.0.0.1:8080/ --rate 2000 --arrivals bursty:6,5% --fail-if 'p99>20ms'
  ammeter load https://127.0.0.1:8443/ --rate 500 --ca cert.pem    TLS, a full handshake for each connection
  ammeter load https://127.0.0.1:8443/ --rate 500 --ca cert.pem --tls-resume 80%
  ammeter load http://127.0.0.1:8080/ --clients 50                 closed loop, as wrk -c 50
  ammeter load http://127.0.0.1:8080/ -c 50 -n 10000               10,000 requests, as fast as the server responds
  ammeter load https://127.0.0.1:8443/ -c 10 --http2 --streams 100  HTTP/2, 1,000 requests at once, as h2load -c 10 -m 100
  ammeter load http://127.0.0.1:8080/ --rate 50 --http2 --streams 30 --mix page.txt    30 requests at once on each connection
  ammeter load http://127.0.0.1:8080/api --rate 1k -d 10 --body '[1, 2]' -H 'Content-Type: application/json'
  ammeter load http://127.0.0.1:8080/gone --rate 500 --expect 2xx,404
  ammeter load http://127.0.0.1:8080/ --replay access.log.gz --speed 10
  ammeter load http://127.0.0.1:8080/ --sweep 1000..20000/1000 --find-capacity --slo p99=10ms
  ammeter load http://127.0.0.1:8080/ --rate 2000 --html run.html --hlog run.hlog
  ammeter load http://server/ --rate 200k --hosts c1,c2,c3         from three hosts, by ssh
  ammeter load http://10.0.0.7/ -c 300 --hosts pod-1,pod-2 --via 'kubectl exec -i {host} --'
  ammeter load http://127.0.0.1:8080/ --rate 500 --parked 2000 --parked 50:slow-read
  ammeter load --calibrate --duration 2s                           what this machine can generate

A rate is in connections, each with --requests-per-connection requests. It does not depend on the server: a connection
that is not established in time is closed, and the next one begins as planned.

Exit status: 0 if the result is valid; 1 if the load generator was the limit (client-bound), other processes used the machine
(disturbed), or a --fail-if holds; 2 for wrong usage.";

impl Args {
    /// How long connections are opened. A closed loop that ends after a number of requests has no fixed duration.
    pub(super) fn duration(&self) -> Duration {
        const USUAL: Duration = Duration::from_secs(10);
        const A_DAY: Duration = Duration::from_secs(86_400);
        self.duration.unwrap_or(if self.requests.is_some() { A_DAY } else { USUAL })
    }

    /// Maximum duration of the load.
    pub(super) fn longest(&self) -> Duration {
        if self.replay.is_some() && self.duration.is_none() { Duration::MAX } else { self.duration() }
    }

    /// The method and the body of each request.
    ///
    /// # Errors
    /// When the method is not a token (RFC 9110, 9.1), or a file cannot be read.
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
            return Err(Failure::usage(format!("invalid --method {method:?}; write, for example, POST")));
        }
        if method == "CONNECT" {
            return Err(Failure::usage("--method CONNECT opens a tunnel and is not supported"));
        }
        Ok((method, body.unwrap_or_default()))
    }
}

/// A sweep: first and last rate, and the step.
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
            format!("invalid sweep {text:?}: write FROM..TO/STEP, such as 1000..20000/1000, with at most 1000 rates")
        })
    }
}

impl Sweep {
    pub(crate) fn rates(self) -> impl Iterator<Item = f64> {
        let Sweep { from, to, step } = self;
        (0..).map(move |n| from + f64::from(n) * step).take_while(move |rate| *rate <= to * (1.0 + 1e-9))
    }
}

/// Parses the share of connections that resume a session.
fn resumed(text: &str) -> Result<f64, String> {
    let percent = text.strip_suffix('%').unwrap_or(text).trim().parse::<f64>().ok();
    let share = percent.map(|percent| percent / 100.0).filter(|share| (0.0..=1.0).contains(share));
    share.ok_or_else(|| format!("invalid share {text:?}: write a percentage from 0% to 100%, such as 50%"))
}

/// Parses an objective such as `p99=10ms` into the condition that violates it.
fn slo(text: &str) -> Result<Condition, String> {
    let broken = text.replacen("<=", ">", 1).replacen('=', ">", 1);
    if broken == text { Err(format!("invalid objective {text:?}: write p99=10ms")) } else { broken.parse() }
}

/// The files that flags name, with the flags.
pub(super) fn files_read(args: &Args) -> impl Iterator<Item = (&'static str, &PathBuf)> {
    let series = if let Arrivals::File(path) = &args.arrivals { Some(path) } else { None };
    let files = [
        ("--workload", args.workload.as_ref()),
        ("--mix", args.mix.as_ref()),
        ("--replay", args.replay.as_ref()),
        ("--ca", args.ca.as_ref()),
        ("--arrivals", series),
        ("--body-file", args.body_file.as_ref()),
    ];
    files.into_iter().filter_map(|(flag, path)| Some((flag, path?)))
}

/// Checks that no output file is also an input or written twice.
pub(super) fn check_paths(args: &Args) -> Result<(), Failure> {
    let read: Vec<(&str, &PathBuf)> = files_read(args).collect();
    let hlog = args.hlog.as_ref().map(|path| ("--hlog", path));
    let html = args.html.as_ref().map(|path| ("--html", path));
    for (written, others) in [(html, read.iter().copied().chain(hlog).collect()), (hlog, read.clone())] {
        let Some((flag, path)) = written else { continue };
        // The same file under another name; other than regular files, such as a terminal, may have several writers.
        let identity = |path: &PathBuf| {
            let found = std::fs::metadata(path).ok().filter(std::fs::Metadata::is_file)?;
            Some((found.dev(), found.ino()))
        };
        let is_same = |other: &PathBuf| match identity(path) {
            Some(known) => identity(other) == Some(known),
            None => !path.exists() && path == other,
        };
        if let Some((other, _)) = others.iter().find(|(_, other)| is_same(other)) {
            return Err(Failure::usage(format!(
                "{} is the output of {flag} and the file of {other}; give {flag} another name",
                path.display()
            )));
        }
    }
    Ok(())
}

/// The parked connections of this slice.
pub(super) fn parked(args: &Args) -> Vec<Wanted> {
    let share = |wanted: &Wanted| Wanted { count: args.slice.share(wanted.count as u64) as usize, ..*wanted };
    args.parked.iter().map(share).filter(|wanted| wanted.count > 0).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn valid_sweeps_parse_and_invalid_ones_fail() {
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
    fn shares_of_resumed_sessions_parse() {
        for (text, expected) in [
            ("0%", Some(0.0)),
            ("50%", Some(0.5)),
            ("50", Some(0.5)),
            ("100 %", Some(1.0)),
            ("101%", None),
            ("-1%", None),
        ] {
            assert_eq!(resumed(text).ok(), expected, "{text:?}");
        }
        assert!(resumed("most").unwrap_err().contains("such as 50%") && resumed("NaN%").is_err());
    }

    #[test]
    fn valid_objectives_parse_and_invalid_ones_fail() {
        assert_eq!(slo("p99=10ms").unwrap().to_string(), "p99>10ms");
        assert_eq!(slo("p99<=10ms").unwrap().to_string(), "p99>10ms");
        assert!(slo("p99>10ms").is_err() && slo("p99").is_err());
    }
}
