//! `ammeter load`: the flags, what they mean together, and how a result is told: in words here, as a log of histograms in
//! `load/hlog.rs`, as a page in `load/html.rs`, and while it goes on, as a screen, in `load/screen.rs`.

pub(crate) mod hlog;
mod html;
mod screen;

use std::fmt::Write;
use std::io::{ErrorKind, IsTerminal};
use std::net::TcpStream;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use ammeter_load::client::Plan;
use ammeter_load::condition::Condition;
use ammeter_load::drive::parked::{Lot, Wanted};
use ammeter_load::drive::{self, Settings, Stop, Target};
use ammeter_load::null::Null;
use ammeter_load::outcome::{ClassOutcome, Fault, Interval, Loop, Outcome, Second, Spread, Used};
use ammeter_load::parts::{Parts, Recorded};
use ammeter_load::schedule::{self, Arrivals, Schedule, duration};
use ammeter_load::slice::Slice;
use ammeter_load::tls::{Tls, Trust};
use ammeter_load::url::Url;
use ammeter_load::workload::log::{Belief, Log, Spacing, Tally};
use ammeter_load::workload::manifest::Manifest;
use ammeter_load::workload::{Requests, mix};
use ammeter_load::{Version, knee};
use amped_measure::{Failure, Verdict, Worth};
use serde::Serialize;

use crate::{archive, say, terminal};

/// The flags.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// What to ask for, such as http://127.0.0.1:8080/index.html
    #[arg(required_unless_present = "calibrate")]
    url: Option<String>,
    /// Find out what this machine can generate, against a server that does nothing: one generator beside two
    #[arg(long, conflicts_with_all = ["url", "rate", "clients", "sweep", "generators", "unix"])]
    calibrate: bool,
    /// Connections to begin a second, whatever the server does
    #[arg(long, value_name = "N", conflicts_with = "clients", allow_negative_numbers = true)]
    rate: Option<f64>,
    /// How long to begin connections; replies may take longer [default: 10s; of a replay, to its end]
    #[arg(long, value_name = "TIME", value_parser = duration)]
    duration: Option<Duration>,
    /// Ask for a file set, by the manifest that `ammeter files` has made
    #[arg(long, value_name = "MANIFEST")]
    workload: Option<PathBuf>,
    /// Ask for targets by their weights: a file with a weight and a target a line
    #[arg(long, value_name = "FILE", conflicts_with_all = ["workload", "replay"])]
    mix: Option<PathBuf>,
    /// Ask again for what an access log shows by GET and HEAD, in its order, at its times: Common or Combined Log Format, also
    /// as gzip
    #[arg(long, value_name = "LOG")]
    replay: Option<PathBuf>,
    /// How many times as fast as then, or max: as --rate or --clients say
    #[arg(long, value_name = "X|max", default_value = "1", requires = "replay")]
    speed: Spacing,
    /// Replies must be as the log has them: the status, and of a 200 the size. By default only a file that the log shows is
    /// expected, as 200
    #[arg(long, requires = "replay", conflicts_with = "workload")]
    as_logged: bool,
    /// Check the content of each reply against the manifest
    #[arg(long, requires = "workload")]
    verify: bool,
    /// How connections follow each other: constant, poisson, bursty:RATIO,PERCENT%[,PERIOD], self-similar:HURST[,onoff], file:F
    #[arg(long, value_name = "PROCESS", default_value = "poisson", conflicts_with = "clients")]
    arrivals: Arrivals,
    /// What the schedule is drawn from [default: another for each run, and printed]
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// How long a connection may take to be established, from its planned instant; then it is given up
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "500ms")]
    connect_timeout: Duration,
    /// How long a reply may take, from the planned instant of its request
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "10s")]
    timeout: Duration,
    /// How long to wait for a server that does not listen yet; 0s: begin all the same [default: if nobody listens, say so]
    #[arg(long, value_name = "TIME", value_parser = duration, conflicts_with = "calibrate")]
    wait: Option<Duration>,
    /// Requests on a connection, one after the other; 0: no end [default: 1, with --clients 0]
    #[arg(long, value_name = "K")]
    requests_per_connection: Option<u64>,
    /// Requests that are sent together, before their replies
    #[arg(long, value_name = "P", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=1000))]
    pipeline: u64,
    /// Speak HTTP/1.0
    #[arg(long)]
    http10: bool,
    /// A header field to send with each request; may be given again. Host goes before that of the URL
    #[arg(long, short = 'H', value_name = "NAME: VALUE")]
    header: Vec<String>,
    /// A socket in the file system to connect to, in place of the URL's host
    #[arg(long, value_name = "SOCKET")]
    unix: Option<PathBuf>,
    /// Believe any certificate of an https URL, or none
    #[arg(long, conflicts_with = "ca")]
    insecure: bool,
    /// Authorities to believe in place of this machine's, as PEM; or the server's own certificate
    #[arg(long, value_name = "FILE")]
    ca: Option<PathBuf>,
    /// A closed loop: so many clients, each of which asks when it has its reply. The server sets the pace
    #[arg(long, short = 'c', value_name = "N")]
    clients: Option<usize>,
    /// What a client of a closed loop waits between a reply and its next request
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "0s", requires = "clients")]
    think_time: Duration,
    /// Make one part of the load, as one of several machines that are given the same flags: the I-th of N makes every N-th
    /// connection, or in a closed loop every N-th client and request
    #[arg(long, value_name = "I/N", default_value_t, conflicts_with_all = ["calibrate", "sweep"])]
    slice: Slice,
    /// Pairs of threads that make load, each its part of it
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
    generators: u16,
    /// Connections held open beside the load, as N:idle (asks once) or N:slow-read (takes 16 bytes a second of each reply);
    /// may be given again
    #[arg(long, value_name = "N[:KIND]", conflicts_with = "calibrate")]
    parked: Vec<Wanted>,
    /// How long before an instant the clock is watched in place of sleeping
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "60us")]
    spin: Duration,
    /// Rates one after the other: FROM..TO/STEP, each for --duration
    #[arg(long, value_name = "A..B/STEP", conflicts_with_all = ["rate", "clients"])]
    sweep: Option<Sweep>,
    /// Times that a sweep goes through its rates [default: 1, with --find-capacity 3]
    #[arg(long, value_name = "N", requires = "sweep", value_parser = clap::value_parser!(u32).range(1..=100))]
    repeat: Option<u32>,
    /// Between the rates of a sweep
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "1s", requires = "sweep")]
    pause: Duration,
    /// Say which rate of the sweep the server still bears
    #[arg(long, requires = "sweep")]
    find_capacity: bool,
    /// What a server that bears a rate keeps to, besides answering 99 % rightly
    #[arg(long, value_name = "p99=TIME", requires = "find_capacity", value_parser = slo)]
    slo: Option<Condition>,
    /// The run has failed if this holds, such as p99>20ms, failed>1% or rate<4990; may be given again
    #[arg(long, value_name = "CONDITION")]
    fail_if: Vec<Condition>,
    /// The result as JSON, in one line
    #[arg(long)]
    json: bool,
    /// Histograms of each second to this file, as a log that HdrHistogram's own tools read
    #[arg(long, value_name = "FILE", conflicts_with = "calibrate")]
    hlog: Option<PathBuf>,
    /// The result as one page with plots, to this file; it opens in any browser and loads nothing
    #[arg(long, value_name = "FILE", conflicts_with = "calibrate")]
    html: Option<PathBuf>,
    /// The result with its histograms to this file, to be put together with those of other slices
    #[arg(long, value_name = "FILE", hide = true, conflicts_with_all = ["calibrate", "sweep"])]
    parts: Option<PathBuf>,
    /// Say `ready` on standard error when all is, and begin at the instant that comes as a line on standard input: seconds
    /// since 1970
    #[arg(long, hide = true, conflicts_with_all = ["calibrate", "sweep"])]
    await_start: bool,
    /// A screen in place of the live line
    #[arg(long, conflicts_with = "calibrate")]
    screen: bool,
}

pub(crate) const EXAMPLES: &str = "\
Examples:
  ammeter load http://127.0.0.1:8080/ --rate 5000 --duration 30s
  ammeter load http://127.0.0.1:8080/ --rate 2000 --arrivals bursty:6,5% --fail-if 'p99>20ms'
  ammeter load https://127.0.0.1:8443/ --rate 500 --ca cert.pem    TLS, a full handshake for each connection
  ammeter load http://127.0.0.1:8080/ --clients 50                 closed loop, as wrk -c 50
  ammeter load http://127.0.0.1:8080/ --replay access.log.gz --speed 10
  ammeter load http://127.0.0.1:8080/ --sweep 1000..20000/1000 --find-capacity --slo p99=10ms
  ammeter load http://127.0.0.1:8080/ --rate 2000 --html run.html --hlog run.hlog
  ammeter load http://127.0.0.1:8080/ --rate 500 --parked 2000 --parked 50:slow-read
  ammeter load --calibrate --duration 2s                           what this machine can generate

A rate is of connections, each with --requests-per-connection requests. It does not depend on the server: a connection
that is not established in time is given up, and the next one begins when it is planned. Exit status: 0 for a result that
is the server's, 1 if it is the client's own (client-bound) or a --fail-if holds, 2 for wrong usage.";

impl Args {
    fn duration(&self) -> Duration {
        self.duration.unwrap_or(Duration::from_secs(10))
    }
}

/// What is asked for: one URL, unless flags say more.
fn requests(args: &Args, url: &Url, seed: u64) -> Result<Requests, Failure> {
    let manifest = args.workload.as_deref().map(Manifest::read).transpose()?;
    if let Some(path) = &args.replay {
        let log = Log::read(path)?;
        let Tally { lines, odd, cut, .. } = log.tally();
        if !odd.is_empty() {
            let odd: Vec<String> = odd.iter().map(|(odd, count)| format!("{} {count}", odd.name())).collect();
            say::plain(&format!("{}: {lines} lines, not replayed: {}", path.display(), odd.join(", ")));
        }
        if let Some(why) = cut {
            say::plain(&format!("{}: read as far as it goes: {why}", path.display()));
        }
        let belief = match &manifest {
            Some(manifest) => Belief::Manifest { manifest, verify: args.verify },
            None if args.as_logged => Belief::Log,
            None => Belief::Files,
        };
        return Ok(log.requests(args.speed, belief, seed));
    }
    if let Some(manifest) = manifest {
        return Ok(manifest.requests(seed, args.verify));
    }
    let Some(path) = &args.mix else { return Ok(Requests::same(url.target.as_bytes())) };
    let text = std::fs::read_to_string(path).map_err(Failure::io(format_args!("read {}", path.display())))?;
    mix::parse(&text, seed).map_err(|why| Failure::failed(format!("{}: {why}", path.display())))
}

/// Rates from, to, and their distance.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Sweep {
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
            let [from, to, step] = [from, to, step].map(|part| part.trim().parse::<f64>().ok());
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
    pub(super) fn rates(self) -> impl Iterator<Item = f64> {
        let Sweep { from, to, step } = self;
        (0..).map(move |n| from + f64::from(n) * step).take_while(move |rate| *rate <= to * (1.0 + 1e-9))
    }
}

/// `p99=10ms` is what must hold; what must not is the condition.
fn slo(text: &str) -> Result<Condition, String> {
    let broken = text.replacen("<=", ">", 1).replacen('=', ">", 1);
    if broken == text { Err(format!("{text:?} is no objective: write p99=10ms")) } else { broken.parse() }
}

/// Connections a second of which no machine that this runs on can begin more: one costs 10 us of CPU at the least.
const RATE_MAX: f64 = 1e6;

pub(crate) fn run(args: &Args) -> Result<Verdict, Failure> {
    if args.calibrate {
        let stop = Stop::on_signals(terminal::restore)?;
        let server = Null::start()?;
        return calibrate(args, &Asked::new(args, &format!("http://{}/", server.address()))?, &stop);
    }
    check_paths(args)?;
    let asked = Asked::new(args, args.url.as_deref().unwrap_or_default())?;
    // Before the first thread.
    let stop = Stop::on_signals(terminal::restore)?;
    match (args.sweep, args.clients) {
        (Some(sweep), _) => run_sweep(args, &asked, sweep, &stop),
        (None, Some(clients)) => {
            if clients == 0 {
                return Err(Failure::usage("no clients ask for nothing; give --clients 1 or more"));
            }
            if args.duration().is_zero() {
                return Err(Failure::usage(schedule::NO_LENGTH));
            }
            let Asked { settings, plan, .. } = &asked;
            let all = clients;
            let clients = args.slice.share(all as u64) as usize;
            if clients == 0 {
                return Err(Failure::usage(format!(
                    "of {all} clients there is none in slice {}; give more --clients, or fewer slices",
                    args.slice
                )));
            }
            let lot = asked.park(args, &stop)?;
            let ears = Ears::new(args, &asked, &stop)?;
            ears.begin(&format!("{}  CLOSED loop, {clients} clients", asked.url), args.duration())?;
            let (think, length) = (args.think_time, args.duration());
            let outcome = beside(lot.as_ref(), || {
                drive::closed(settings, plan, clients, think, length, &stop, &|second| ears.hear(second))
            })?;
            tell(args, &asked, outcome, ears)
        }
        (None, None) => {
            let rate = match (args.rate, &args.arrivals) {
                (Some(rate), _) => rate,
                (None, Arrivals::File(_)) => 0.0,
                (None, _) if args.replay.is_some() && args.speed != Spacing::Max => 0.0,
                (None, _) => {
                    return Err(Failure::usage(
                        "how much load? give --rate N (connections a second), --clients N (a closed loop) or --sweep A..B/STEP",
                    ));
                }
            };
            let lot = asked.park(args, &stop)?;
            let ears = Ears::new(args, &asked, &stop)?;
            let outcome = beside(lot.as_ref(), || asked.open(args, rate, asked.seed, &stop, &ears))?;
            tell(args, &asked, outcome, ears)
        }
    }
}

/// What is written must not be what is read, or written twice.
fn check_paths(args: &Args) -> Result<(), Failure> {
    let series = if let Arrivals::File(path) = &args.arrivals { Some(path) } else { None };
    let (html, hlog) = (("--html", args.html.as_ref()), ("--hlog", args.hlog.as_ref()));
    let read = [
        ("--workload", args.workload.as_ref()),
        ("--mix", args.mix.as_ref()),
        ("--replay", args.replay.as_ref()),
        ("--ca", args.ca.as_ref()),
        ("--arrivals", series),
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

/// Runs beside what is parked, and has the result tell what became of that meanwhile.
fn beside(lot: Option<&Lot>, run: impl FnOnce() -> Result<Outcome, Failure>) -> Result<Outcome, Failure> {
    let Some(lot) = lot else { return run() };
    lot.take();
    let mut outcome = run()?;
    outcome.park(lot.take());
    Ok(outcome)
}

/// What the flags come to.
#[derive(Clone)]
struct Asked {
    url: String,
    settings: Settings,
    plan: Plan,
    /// What parked connections ask for: the URL, and nothing of a workload.
    parked_plan: Plan,
    seed: u64,
}

impl Asked {
    fn new(args: &Args, text: &str) -> Result<Asked, Failure> {
        let url = Url::parse(text).map_err(Failure::usage)?;
        let (mut fields, mut authority) = (String::new(), url.authority.as_str());
        for field in &args.header {
            let parts = field.split_once(':').filter(|(name, _)| {
                !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_graphic()) && !field.contains(['\r', '\n'])
            });
            let Some((name, value)) = parts else {
                return Err(Failure::usage(format!("--header {field:?} is no field: write 'Name: value'")));
            };
            if name.eq_ignore_ascii_case("Host") {
                // In place of the URL's: a server refuses a request with two (RFC 9112, 3.2).
                authority = value.trim();
            } else if ["Content-Length", "Transfer-Encoding"].iter().any(|known| name.eq_ignore_ascii_case(known)) {
                return Err(Failure::usage(format!(
                    "--header {field:?} announces a body, for which the server would wait: requests here have none"
                )));
            } else {
                fields.push_str(field);
                fields.push_str("\r\n");
            }
        }
        if args.replay.is_some() && args.speed != Spacing::Max {
            let pace = [
                ("--rate", args.rate.is_some()),
                ("--clients", args.clients.is_some()),
                ("--sweep", args.sweep.is_some()),
            ];
            if let Some((flag, _)) = pace.iter().find(|(_, is_given)| *is_given) {
                return Err(Failure::usage(format!(
                    "a log is replayed at its own times or as {flag} says; give --speed max with {flag}, or leave it out"
                )));
            }
        }
        let target = match &args.unix {
            Some(path) => {
                // A server that comes later would be asked in vain until then, and a name that is wrong for ever.
                let is_socket = std::fs::metadata(path).map(|found| found.file_type().is_socket());
                match is_socket.and_then(|is| SocketAddr::from_pathname(path).map(|_| is)) {
                    Ok(true) => Target::Unix(path.clone()),
                    Ok(false) => {
                        return Err(Failure::failed(format!(
                            "--unix {} is no socket; give the server's",
                            path.display()
                        )));
                    }
                    Err(error) => {
                        return Err(Failure::failed(format!(
                            "cannot connect to --unix {}: {error}; does the server run, and is that its socket?",
                            path.display()
                        )));
                    }
                }
            }
            None => Target::Tcp(url.resolve()?),
        };
        let trust = match &args.ca {
            Some(path) => Trust::File(path),
            None if args.insecure => Trust::Anybody,
            None => Trust::System,
        };
        if trust != Trust::System && !url.secure {
            return Err(Failure::usage(format!(
                "--ca and --insecure are for https, and {text} is not; write https://"
            )));
        }
        if url.secure && !args.parked.is_empty() {
            return Err(Failure::usage("parked connections speak no TLS; leave --parked out, or ask for an http URL"));
        }
        let tls = url.secure.then(|| Tls::new(&url.host, trust)).transpose()?;
        for (what, time) in [("--connect-timeout", args.connect_timeout), ("--timeout", args.timeout)] {
            if time.is_zero() {
                return Err(Failure::usage(format!("{what} 0 leaves no time for anything; give 500ms, say")));
            }
        }
        let per_connection = match (args.requests_per_connection, args.clients) {
            (Some(0), Some(_)) | (None, Some(_)) => u64::MAX,
            (Some(0), None) => {
                return Err(Failure::usage(
                    "connections without an end are for --clients; at a rate, give --requests-per-connection 1 or more",
                ));
            }
            (None, None) => 1,
            (Some(count), _) => count,
        };
        let version = if args.http10 { Version::Http10 } else { Version::Http11 };
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        if args.seed.is_none() && !args.slice.is_whole() {
            return Err(Failure::usage(
                "slices are of one plan, which is drawn from a seed: give all of them the same --seed N",
            ));
        }
        let seed = args.seed.unwrap_or(u64::from(now.subsec_nanos()));
        let requests = requests(args, &url, seed)?;
        // At a rate whole connections are a slice's, with all of their requests.
        let requests = if args.clients.is_some() { requests.slice(args.slice) } else { requests };
        let plan = Plan::new(requests, version, authority, &fields, per_connection, args.pipeline);
        let same = Requests::same(url.target.as_bytes());
        let parked_plan = Plan::new(same, version, authority, &fields, u64::MAX, 1);
        let settings = Settings {
            target,
            tls,
            connect_timeout: args.connect_timeout,
            timeout: args.timeout,
            // Longer would be a thread that never sleeps, and runs before all others.
            spin: args.spin.min(Duration::from_millis(1)),
            lanes: usize::from(args.generators),
            parked: parked(args).iter().map(|wanted| wanted.count).sum(),
            start: args.await_start.then_some(told_when as fn() -> _),
        };
        Ok(Asked { url: text.to_owned(), settings, plan, parked_plan, seed })
    }

    /// Opens what is to be parked, and says so where that takes a while.
    fn park(&self, args: &Args, stop: &Stop) -> Result<Option<Lot>, Failure> {
        if parked(args).is_empty() {
            return Ok(None);
        }
        if !args.json {
            say::plain(&format!("parking {} connections", self.settings.parked));
        }
        let lot = Lot::open(&self.settings, &self.parked_plan, &parked(args), stop)?;
        if stop.is_stopped() {
            return Err(Failure::failed("interrupted while connections were parked: the load had not begun"));
        }
        Ok(Some(lot))
    }

    fn open(&self, args: &Args, rate: f64, seed: u64, stop: &Stop, ears: &Ears) -> Result<Outcome, Failure> {
        if rate > RATE_MAX {
            return Err(Failure::usage(format!(
                "{rate} connections a second are more than any one machine can begin ({RATE_MAX}); lower --rate"
            )));
        }
        let (requests, per_connection) = (self.plan.requests(), self.plan.per_connection());
        let recorded = matches!(args.speed, Spacing::Times(_)) && args.replay.is_some();
        let (schedule, arrivals) = if let (true, Some(log)) = (recorded, &args.replay) {
            let schedule = Schedule::of_requests(requests, per_connection);
            let mut schedule = schedule.ok_or_else(|| Failure::failed("the requests of this log have no times"))?;
            if let Some(duration) = args.duration {
                let end = schedule.at_ns().partition_point(|at| u128::from(*at) < duration.as_nanos());
                schedule.truncate(end as u64);
            }
            (schedule, format!("replay:{}", log.display()))
        } else {
            let mut schedule = Schedule::new(&args.arrivals, rate, args.duration(), seed)?;
            // A list that ends, ends the run.
            if let Some(count) = requests.len() {
                schedule.truncate(count.div_ceil(per_connection));
            }
            (schedule, args.arrivals.to_string())
        };
        let shape = schedule.shape();
        // Of a recorded series, its own.
        let rate = if rate > 0.0 { rate } else { schedule.rate() } / args.slice.count() as f64;
        let schedule = schedule.slice(args.slice);
        ears.begin(&format!("{}  open loop, {arrivals}, {rate:.1} connections/s", self.url), schedule.duration())?;
        let asked = Loop::Open { arrivals, rate, seed, shape };
        drive::open(&self.settings, &self.plan, &schedule, asked, stop, &|second| ears.hear(second))
    }
}

/// How many connections this slice parks.
fn parked(args: &Args) -> Vec<Wanted> {
    let share = |wanted: &Wanted| Wanted { count: args.slice.share(wanted.count as u64) as usize, ..*wanted };
    args.parked.iter().map(share).filter(|wanted| wanted.count > 0).collect()
}

/// When to begin, as somebody says who waits until all generators are ready.
fn told_when() -> Result<SystemTime, Failure> {
    say::plain(READY);
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).map_err(Failure::io("read when to begin"))?;
    let unix_s = line.trim().parse::<f64>().ok().filter(|unix_s| (0.0..1e11).contains(unix_s));
    unix_s
        .map(|unix_s| UNIX_EPOCH + Duration::from_secs_f64(unix_s))
        .ok_or_else(|| Failure::usage(format!("{:?} is no instant; write seconds since 1970", line.trim())))
}

/// What a load that waits for its instant says when it could begin.
pub(crate) const READY: &str = "ready";

/// Who hears of each second of a run: the log, and whoever watches.
struct Ears {
    /// Where a log is to be, and what it is of.
    place: Option<(PathBuf, String)>,
    /// From the first run on: what was in its place is not lost to a run that never was.
    log: Mutex<Option<Heard>>,
    screen: Option<screen::Live>,
    /// A line each, if there is no screen.
    lines: bool,
    /// Whether the first run has begun.
    has_begun: AtomicBool,
    settings: Settings,
    /// How long to wait for the server, if that is said.
    wait: Option<Duration>,
    stop: Stop,
    /// The clocks of each second, where they are to be kept.
    kept: Option<Mutex<Vec<Recorded>>>,
}

/// A log, and what became of it.
struct Heard {
    log: hlog::Log,
    failure: Option<Failure>,
}

impl Ears {
    fn new(args: &Args, asked: &Asked, stop: &Stop) -> Result<Ears, Failure> {
        if args.screen && !std::io::stdout().is_terminal() {
            return Err(Failure::usage(
                "--screen is for a terminal; elsewhere there are --json, --hlog and the summary",
            ));
        }
        for path in [&args.html, &args.hlog].into_iter().flatten() {
            // Now rather than after the run: what is there is kept until there is something to write.
            let opened = std::fs::File::options().append(true).create(true).open(path);
            opened.map_err(Failure::io(format_args!("write {}", path.display())))?;
        }
        Ok(Ears {
            place: args.hlog.clone().map(|path| (path, asked.url.clone())),
            log: Mutex::new(None),
            screen: args.screen.then(|| screen::Live::begin(stop)).transpose()?,
            lines: !args.screen && !args.json && std::io::stderr().is_terminal(),
            has_begun: AtomicBool::new(false),
            settings: asked.settings.clone(),
            wait: args.wait,
            stop: stop.clone(),
            kept: args.parts.is_some().then(Mutex::default),
        })
    }

    /// Looks whether anybody listens, by one connection on which nothing is asked: else that would be told after a whole run. Who
    /// does not answer may be overloaded, and is measured.
    fn find_server(&self) -> Result<(), Failure> {
        /// Between two looks for a server that is to come.
        const PAUSE: Duration = Duration::from_millis(50);
        let (Target::Tcp(address), patience) = (&self.settings.target, self.wait.unwrap_or_default()) else {
            return Ok(());
        };
        let begin = Instant::now();
        let mut is_told = false;
        loop {
            let nobody = [ErrorKind::ConnectionRefused, ErrorKind::HostUnreachable, ErrorKind::NetworkUnreachable];
            let error = match TcpStream::connect_timeout(address, self.settings.connect_timeout) {
                Err(error) if nobody.contains(&error.kind()) => error,
                Ok(_) | Err(_) => return Ok(()),
            };
            if self.stop.is_stopped() {
                return Err(Failure::failed("interrupted while nobody listened yet: the load had not begun"));
            }
            if begin.elapsed() >= patience {
                return Err(Failure::failed(format!(
                    "is a web server listening at {address}? {error}; start it first, wait for it with --wait 10s, or give --wait 0s \
                     to begin all the same"
                )));
            }
            if !is_told {
                let text = format!("waiting for a server at {address}: {error}");
                match &self.screen {
                    Some(screen) => screen.next_run(text, Duration::ZERO),
                    None => say::plain(&text),
                }
                is_told = true;
            }
            pause(PAUSE, &self.stop);
        }
    }

    /// A run begins.
    fn begin(&self, title: &str, length: Duration) -> Result<(), Failure> {
        // Of several, whoever has gone meanwhile is no reason to lose those before.
        if !self.has_begun.swap(true, Ordering::Relaxed) && self.wait != Some(Duration::ZERO) {
            self.find_server()?;
        }
        if let Some(screen) = &self.screen {
            screen.next_run(title.to_owned(), length);
        } else if self.lines {
            say::plain(title);
        }
        let Some((path, about)) = &self.place else { return Ok(()) };
        let mut heard = self.log.lock().unwrap_or_else(PoisonError::into_inner);
        let heard = match &mut *heard {
            Some(heard) => heard,
            none => none.insert(Heard { log: hlog::Log::create(path, about)?, failure: None }),
        };
        heard.log.note(title)
    }

    fn hear(&self, interval: &Interval) {
        if let Some(Heard { log, failure }) = &mut *self.log.lock().unwrap_or_else(PoisonError::into_inner)
            && failure.is_none()
        {
            *failure = log.add(interval).err();
        }
        if let Some(kept) = &self.kept {
            kept.lock().unwrap_or_else(PoisonError::into_inner).push(Recorded::of(&interval.clocks));
        }
        match &self.screen {
            Some(screen) => screen.hear(interval),
            None if self.lines => say::plain(&line(&interval.second)),
            None => {}
        }
    }

    /// What a run was worth goes behind its seconds.
    fn judge(&self, verdict: &Verdict) {
        if let Some(Heard { log, failure }) = &mut *self.log.lock().unwrap_or_else(PoisonError::into_inner)
            && failure.is_none()
        {
            *failure = log.note(&format!("verdict {}", verdict.to_string().replace('\n', "; "))).err();
        }
    }

    /// After the last run. The terminal is as it was.
    fn end(self) -> Result<(), Failure> {
        drop(self.screen);
        let heard = self.log.into_inner().unwrap_or_else(PoisonError::into_inner);
        heard.and_then(|heard| heard.failure).map_or(Ok(()), Err)
    }
}

/// What a page says of the settings: what was asked for, and what was not said and is so by default.
fn settings(args: &Args, asked: &Asked) -> Vec<(&'static str, String)> {
    let Settings { target, connect_timeout, timeout, spin, lanes, .. } = &asked.settings;
    let mut rows = vec![
        (
            "server",
            match target {
                Target::Tcp(address) => address.to_string(),
                Target::Unix(path) => path.display().to_string(),
            },
        ),
        ("duration", format!("{:?}", args.duration())),
        ("time to connect", format!("{connect_timeout:?}")),
        ("time to answer", format!("{timeout:?}")),
        (
            "requests on a connection",
            match asked.plan.per_connection() {
                u64::MAX => "no end".to_owned(),
                count => count.to_string(),
            },
        ),
        ("pipeline", args.pipeline.to_string()),
        ("HTTP", if args.http10 { "1.0" } else { "1.1" }.to_owned()),
        ("generators", lanes.to_string()),
        ("spin", format!("{spin:?}")),
        ("seed", asked.seed.to_string()),
    ];
    if !args.slice.is_whole() {
        rows.push(("slice", args.slice.to_string()));
    }
    for Wanted { count, habit } in &parked(args) {
        rows.push(("parked", format!("{count} {habit}")));
    }
    for (name, path) in [("workload", &args.workload), ("mix", &args.mix), ("replay", &args.replay)] {
        rows.extend(path.as_ref().map(|path| (name, path.display().to_string())));
    }
    // Values may be secret, and pages are shown around.
    let fields: Vec<&str> = args.header.iter().filter_map(|field| Some(field.split_once(':')?.0)).collect();
    if !fields.is_empty() {
        rows.push(("header fields", fields.join(", ")));
    }
    rows
}

/// Writes a page, if one is asked for.
fn write_page(args: &Args, asked: &Asked, page: impl FnOnce(&html::Head) -> Option<String>) -> Result<(), Failure> {
    let Some(path) = &args.html else { return Ok(()) };
    let head = html::Head { url: asked.url.clone(), settings: settings(args, asked) };
    let Some(text) = page(&head) else { return Ok(()) };
    std::fs::write(path, text).map_err(Failure::io(format_args!("write {}", path.display())))
}

/// A second in a line.
fn line(second: &Second) -> String {
    let Second { at_s, length_s, p50_ms, p99_ms, max_ms, lateness_p99_ms, .. } = second;
    let [started, ok, failed] = [second.started, second.ok, second.failed].map(|count| second.rate(count));
    format!(
        "{:>6.1} s  begun {started:>6.0}/s  answered {ok:>6.0}/s  failed {failed:>6.0}/s  p50 {p50_ms:>8} ms  p99 \
         {p99_ms:>8} ms  max {max_ms:>8} ms  late {lateness_p99_ms:>7} ms",
        at_s + length_s
    )
}

/// Prints a result; what was demanded of it becomes part of its verdict. What cannot be written keeps nothing else from
/// being so.
fn tell(args: &Args, asked: &Asked, mut outcome: Outcome, ears: Ears) -> Result<Verdict, Failure> {
    let broken: Vec<String> = args.fail_if.iter().filter_map(|condition| condition.holds(&outcome)).collect();
    outcome.verdict.broken.extend(broken);
    if outcome.ok == 0 && !outcome.interrupted {
        let place = match &asked.settings.target {
            Target::Tcp(address) => address.to_string(),
            Target::Unix(path) => path.display().to_string(),
        };
        let most = outcome.failures.iter().max_by_key(|(_, count)| *count).map(|(fault, _)| *fault);
        outcome.verdict.broken.push(match (&outcome.tls, most) {
            _ if outcome.planned == 0 => {
                "nothing was asked: no connection was planned for so short a time at so low a rate; \
                                          give a longer --duration or a higher --rate"
                    .to_owned()
            }
            (Some(why), _) => format!("no right reply came: {why}"),
            (None, Some(Fault::Status | Fault::Length | Fault::Content)) => {
                format!("no right reply came, but wrong ones: look at one (curl -i {})", asked.url)
            }
            (None, Some(fault)) if outcome.established > 0 => {
                let scheme = asked.url.split("://").next().unwrap_or_default();
                format!(
                    "no right reply came; connections were established ({}): is it {scheme} that {place} speaks?",
                    fault.name()
                )
            }
            (None, _) => format!("no right reply came; is a web server listening at {place}?"),
        });
    }
    ears.judge(&outcome.verdict);
    if let (Some(path), Some(kept)) = (&args.parts, &ears.kept) {
        let seconds = std::mem::take(&mut *kept.lock().unwrap_or_else(PoisonError::into_inner));
        archive::write_bytes(path, say::as_json(&Parts::new(&outcome, seconds))?.as_bytes())?;
    }
    let logged = ears.end();
    let page = write_page(args, asked, |head| Some(html::run(head, &outcome)));
    if args.json { say::json(&outcome) } else { say::out(&summary(&asked.url, &outcome)) }?;
    logged.and(page).map(|()| outcome.verdict)
}

/// A result in a few lines.
fn summary(url: &str, outcome: &Outcome) -> String {
    let mut text = String::new();
    let Outcome { planned, started, seconds, offered_rate, rate, ok, .. } = outcome;
    let interrupted = if outcome.interrupted { ", interrupted" } else { "" };
    // Writing to a string cannot fail.
    let _ = match &outcome.asked {
        Loop::Open { arrivals, rate: asked, seed, shape } => {
            let mut shape_text = String::new();
            for dispersion in &shape.dispersion {
                let _ = write!(shape_text, ", dispersion {:.2} at {} ms", dispersion.index, dispersion.window_ms);
            }
            if let Some(hurst) = shape.hurst {
                let _ = write!(shape_text, ", Hurst {hurst:.2}");
            }
            writeln!(
                text,
                "{url}  open loop, {arrivals}, seed {seed}{shape_text}{interrupted}\n\
                 offered     {offered_rate}/s of {asked:.1}/s asked: {started} of {planned} connections in {seconds:.1} s"
            )
        }
        Loop::Closed { clients, think_ms } => writeln!(
            text,
            "{url}  CLOSED loop, {clients} clients, think time {think_ms} ms{interrupted}: the server sets the pace, and \
             latencies leave out who would have come meanwhile\n\
             connections {started} in {seconds:.1} s"
        ),
    };
    let failures: Vec<String> =
        outcome.failures.iter().map(|(fault, count)| format!("{} {count}", fault.name())).collect();
    let failures = if failures.is_empty() { String::new() } else { format!(": {}", failures.join(", ")) };
    let _ = writeln!(text, "answered    {ok}, {rate}/s; failed {}{failures}", outcome.failed());
    if outcome.unasked > 0 {
        let _ = writeln!(text, "not asked   {}: the server closed their connections early", outcome.unasked);
    }
    if outcome.stray > 0 {
        let _ = writeln!(
            text,
            "stray       on {} connections more came than was asked for: bodies are longer than Content-Length says?",
            outcome.stray
        );
    }
    for parked in &outcome.parked {
        let _ = writeln!(text, "parked      {parked}");
    }
    if let (Some(why), 1..) = (&outcome.tls, outcome.ok) {
        let _ = writeln!(text, "TLS         {why}");
    }
    let rows = [
        ("latency", &outcome.latency),
        ("first byte", &outcome.first_byte),
        ("connected", &outcome.connected),
        ("secured", &outcome.secured),
        ("lateness", &outcome.lateness),
    ];
    let _ =
        writeln!(text, "ms           {:>9}{:>10}{:>10}{:>10}{:>10}{:>10}", "mean", "p50", "p90", "p99", "p99.9", "max");
    for (name, spread) in rows {
        let Spread { count, mean_ms, p50_ms, p90_ms, p99_ms, p999_ms, max_ms } = spread;
        if *count > 0 {
            let _ =
                writeln!(text, "{name:<12} {mean_ms:>9}{p50_ms:>10}{p90_ms:>10}{p99_ms:>10}{p999_ms:>10}{max_ms:>10}");
        }
    }
    text += &class_lines(&outcome.classes);
    let share = |used: &Used| used.cpu_s / used.elapsed_s.max(1e-9) * 100.0;
    let establisher = match outcome.asked {
        Loop::Open { .. } => format!(
            "beginning connections took {:.0} % of a core{}, ",
            share(&outcome.establisher),
            if outcome.real_time { " (SCHED_FIFO)" } else { " (without SCHED_FIFO: give root or CAP_SYS_NICE)" }
        ),
        Loop::Closed { .. } => String::new(),
    };
    let handler = share(&outcome.handler);
    let each = if outcome.ok > 0 { format!("{:.1} us of CPU for a reply; ", outcome.cpu_us()) } else { String::new() };
    let _ = writeln!(text, "client      {each}{establisher}handling them {handler:.0} %");
    let _ = writeln!(text, "verdict     {}", outcome.verdict);
    text
}

/// A line for each class, with the first ones of many.
fn class_lines(classes: &[ClassOutcome]) -> String {
    const SHOWN: usize = 20;
    if classes.is_empty() {
        return String::new();
    }
    let width = classes.iter().take(SHOWN).map(|class| class.class.chars().count()).max().unwrap_or(0).clamp(12, 60);
    let mut text = format!("{:<width$} {:>9}{:>10}{:>10}{:>10}\n", "class", "answered", "failed", "p50 ms", "p99 ms");
    for ClassOutcome { class, ok, failed, latency, .. } in classes.iter().take(SHOWN) {
        let times = latency.as_ref().filter(|times| times.count > 0);
        let times = times.map(|times| format!("{:>10}{:>10}", times.p50_ms, times.p99_ms)).unwrap_or_default();
        text += &format!("{class:<width$} {ok:>9}{failed:>10}{times}\n");
    }
    if classes.len() > SHOWN {
        text += &format!("and {} more classes: --json has them all\n", classes.len() - SHOWN);
    }
    text
}

/// A sweep, as it is told.
#[derive(Serialize)]
struct Swept {
    /// Each run, in the order in which they were made.
    runs: Vec<Outcome>,
    /// Where it was asked for.
    capacity: Option<knee::Capacity>,
    verdict: Verdict,
}

fn run_sweep(args: &Args, asked: &Asked, sweep: Sweep, stop: &Stop) -> Result<Verdict, Failure> {
    let mut runs: Vec<Outcome> = Vec::new();
    let mut verdict = Verdict::valid();
    let lot = asked.park(args, stop)?;
    let ears = Ears::new(args, asked, stop)?;
    // What a screen would cover is told behind it.
    let mut covered = Vec::new();
    let mut tell = |text: String| match (args.json, args.screen) {
        (true, _) => Ok(()),
        (false, true) => {
            covered.push(text);
            Ok(())
        }
        (false, false) => say::out(&text),
    };
    tell(format!(
        "{}\n{:>10}{:>12}{:>12}{:>10}{:>10}{:>10}{:>10}{:>12}  verdict",
        asked.url, "asked/s", "offered/s", "answered/s", "failed", "p50 ms", "p99 ms", "late p99", "client us"
    ))?;
    // What a single run says of a rate may be luck.
    let repeat = args.repeat.unwrap_or(if args.find_capacity { 3 } else { 1 });
    'all: for repetition in 0..repeat {
        for rate in sweep.rates() {
            if !runs.is_empty() {
                pause(args.pause, stop);
            }
            if stop.is_stopped() {
                break 'all;
            }
            // The same arrivals at a rate would be the same luck each time.
            let seed = asked.seed.wrapping_add(u64::from(repetition));
            let outcome = beside(lot.as_ref(), || asked.open(args, rate, seed, stop, &ears))?;
            tell(format!(
                "{rate:>10}{:>12}{:>12}{:>10}{:>10}{:>10}{:>10}{:>12.1}  {}",
                outcome.offered_rate,
                outcome.rate,
                outcome.failed(),
                outcome.latency.p50_ms,
                outcome.latency.p99_ms,
                outcome.lateness.p99_ms,
                outcome.cpu_us(),
                outcome.verdict
            ))?;
            ears.judge(&outcome.verdict);
            verdict.broken.extend(outcome.verdict.broken.iter().map(|line| format!("at {rate}/s: {line}")));
            for condition in &args.fail_if {
                verdict.broken.extend(condition.holds(&outcome).map(|line| format!("at {rate}/s: {line}")));
            }
            runs.push(outcome);
        }
    }
    let logged = ears.end();
    covered.into_iter().try_for_each(|text| say::out(&text))?;
    let capacity = args.find_capacity.then(|| knee::capacity(&runs, args.slo.as_ref())).flatten();
    if let Some(found) = &capacity {
        if let Some(why) = &found.at_least {
            verdict.weaken(Worth::AtLeast, why.clone());
        }
        if !args.json {
            say::out(&format!("capacity    {found}"))?;
        }
    } else if args.find_capacity && stop.is_stopped() {
        verdict.broken.push("interrupted before a rate was both kept and borne, so no capacity is known".to_owned());
    } else if args.find_capacity {
        verdict.weaken(Worth::ClientBound, "no rate was both kept by the client and borne by the server");
    } else if !runs.is_empty() && runs.iter().all(|run| run.verdict.worth == Worth::ClientBound) {
        verdict.weaken(Worth::ClientBound, "in no run did the client keep its schedule");
    }
    let swept = Swept { runs, capacity, verdict };
    let page = write_page(args, asked, |head| html::sweep(head, &swept));
    if args.json { say::json(&swept) } else { say::out(&format!("verdict     {}", swept.verdict)) }?;
    logged.and(page).map(|()| swept.verdict)
}

/// What one generator of this machine can do, as it is told.
#[derive(Serialize)]
struct Calibration {
    /// Runs in pairs at rising rates: one generator, then two with the same load.
    runs: Vec<[Outcome; 2]>,
    /// The highest rate up to which one generator kept its schedule and was answered as often as two, in connections a
    /// second.
    kept: f64,
    verdict: Verdict,
}

/// Banga and Druschel, section 4.2: a generator's own limit is where its curve leaves that of two which share the load. At
/// the rates below it, what is measured is the server.
fn calibrate(args: &Args, asked: &Asked, stop: &Stop) -> Result<Verdict, Failure> {
    /// Part of the replies of two that one may lack.
    const LACK: f64 = 0.02;
    /// A neighbour may have the machine for a moment: only a rate that is missed so often is too high.
    const ATTEMPTS: usize = 3;
    let mut found = Calibration { runs: Vec::new(), kept: 0.0, verdict: Verdict::valid() };
    let two = Asked { settings: Settings { lanes: 2, ..asked.settings.clone() }, ..asked.clone() };
    if !args.json {
        say::out(&format!(
            "{:>10}{:>14}{:>14}{:>12}{:>14}{:>12}  verdict of one",
            "asked/s", "one offers/s", "one answered", "late p99", "two answered", "client us"
        ))?;
    }
    let ears = Ears::new(args, asked, stop)?;
    let (mut rate, mut attempts) = (1000.0, 0);
    while rate <= RATE_MAX && !stop.is_stopped() {
        let pair = [asked.open(args, rate, asked.seed, stop, &ears)?, two.open(args, rate, asked.seed, stop, &ears)?];
        let [one, both] = &pair;
        if !args.json {
            say::out(&format!(
                "{rate:>10}{:>14}{:>14}{:>12}{:>14}{:>12.1}  {}",
                one.offered_rate,
                one.rate,
                one.lateness.p99_ms,
                both.rate,
                one.cpu_us(),
                one.verdict
            ))?;
        }
        // A part of a run is no evidence.
        if stop.is_stopped() {
            break;
        }
        let keeps = one.verdict.worth == Worth::Valid && one.rate >= both.rate * (1.0 - LACK) && one.failed() == 0;
        found.runs.push(pair);
        attempts += 1;
        if !keeps && attempts < ATTEMPTS {
            continue;
        }
        if !keeps {
            break;
        }
        (found.kept, attempts) = (rate, 0);
        rate = (rate * 1.25 / 100.0).round() * 100.0;
    }
    if found.kept == 0.0 && stop.is_stopped() {
        found.verdict.broken.push("interrupted before the first rate was through".to_owned());
    } else if found.kept == 0.0 {
        found.verdict.weaken(Worth::ClientBound, "not even 1000 connections a second were kept: what else runs here?");
    }
    if args.json {
        say::json(&found)?;
    } else {
        say::out(&format!("one generator keeps {} connections/s on this machine, its server beside it", found.kept))?;
        say::out(&format!("verdict     {}", found.verdict))?;
    }
    Ok(found.verdict)
}

fn pause(time: Duration, stop: &Stop) {
    let until = Instant::now() + time;
    while !stop.is_stopped() && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(10).min(time));
    }
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
