//! One run: from the flags to a schedule and its requests, and from there to a result.

use std::collections::BTreeSet;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::SocketAddr;
use std::sync::PoisonError;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ammeter_load::Version;
use ammeter_load::client::Plan;
use ammeter_load::drive::parked::Lot;
use ammeter_load::drive::{self, Settings, Stop, Target};
use ammeter_load::null::Null;
use ammeter_load::outcome::{Fault, Loop, Outcome};
use ammeter_load::parts::Parts;
use ammeter_load::schedule::{self, Arrivals, Schedule};
use ammeter_load::tls::{Tls, Trust};
use ammeter_load::url::Url;
use ammeter_load::workload::log::{Belief, Log, Spacing, Tally};
use ammeter_load::workload::manifest::Manifest;
use ammeter_load::workload::{Requests, mix};
use amped_measure::host::Machine;
use amped_measure::others::{Census, Others};
use amped_measure::{Failure, Verdict};

use super::args::{Args, check_paths, parked};
use super::ears::Ears;
use super::html;
use super::summary::{summary, write_page};
use super::sweep::{calibrate, run_sweep};
use crate::{archive, say, terminal};

/// Connections a second of which no machine that this runs on can begin more: one costs 10 us of CPU at the least.
pub(super) const RATE_MAX: f64 = 1e6;

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
            let outcome = beside(args, &asked, lot.as_ref(), || {
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
            let outcome = beside(args, &asked, lot.as_ref(), || asked.open(args, rate, asked.seed, &stop, &ears))?;
            tell(args, &asked, outcome, ears)
        }
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

/// Runs beside what is parked, and has the result tell what became of that meanwhile, and who else used the machine.
pub(super) fn beside(
    args: &Args,
    asked: &Asked,
    lot: Option<&Lot>,
    run: impl FnOnce() -> Result<Outcome, Failure>,
) -> Result<Outcome, Failure> {
    let watch = (args.others_max < 1.0).then(|| Watch::begin(&asked.settings.target)).transpose()?;
    lot.map(Lot::take);
    let mut outcome = run()?;
    if let Some(watch) = watch {
        outcome.shared_with(watch.end()?, args.others_max);
    }
    if let Some(lot) = lot {
        outcome.park(lot.take());
    }
    Ok(outcome)
}

/// Who else uses the machine while there is load.
struct Watch {
    rest: Census,
    before: Census,
    server: BTreeSet<u32>,
    is_local: bool,
}

impl Watch {
    /// Looks before the load begins, for as long as it takes to see who is busy.
    fn begin(target: &Target) -> Result<Watch, Failure> {
        const REST: Duration = Duration::from_millis(250);
        let (is_local, server) = match target {
            Target::Unix(_) => (true, BTreeSet::new()),
            // An address of this machine can be bound.
            Target::Tcp(address) if std::net::UdpSocket::bind((address.ip(), 0)).is_ok() => {
                // Of another user's server it may not be seen; it was idle before the load then, as what works for it.
                let found = ammeter_monitor::Server::find(ammeter_monitor::Target::Port(address.port()));
                (true, found.map(|server| server.pids().clone()).unwrap_or_default())
            }
            Target::Tcp(_) => (false, BTreeSet::new()),
        };
        let rest = Census::take()?;
        std::thread::sleep(REST);
        Ok(Watch { rest, before: Census::take()?, server, is_local })
    }

    fn end(self) -> Result<Others, Failure> {
        let after = Census::take()?;
        // Instruments beside this one, and generators of other slices, are this program as well.
        let own = std::fs::read_link("/proc/self/exe").ok();
        let is_own = |pid: &u32| own.is_some() && std::fs::read_link(format!("/proc/{pid}/exe")).ok() == own;
        let mut ours = self.server;
        ours.insert(std::process::id());
        ours.extend(after.since(&self.before).into_keys().filter(is_own));
        let cores = Machine::this()?.cores;
        Ok(Others::between(&self.rest, &self.before, &after, &ours, !self.is_local, cores))
    }
}

/// What the flags come to.
#[derive(Clone)]
pub(super) struct Asked {
    pub(super) url: String,
    pub(super) settings: Settings,
    pub(super) plan: Plan,
    /// What parked connections ask for: the URL, and nothing of a workload.
    pub(super) parked_plan: Plan,
    pub(super) seed: u64,
}

impl Asked {
    pub(super) fn new(args: &Args, text: &str) -> Result<Asked, Failure> {
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
                    "--header {field:?} frames a body; give the body itself by --body or --body-file, and its length is sent"
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
        let requests = if let Some(limit) = args.requests { requests.limit(limit) } else { requests };
        let requests = if args.clients.is_some() { requests.slice(args.slice) } else { requests };
        let (method, body) = args.method_and_body()?;
        let plan = Plan::new(requests, version, authority, &fields, per_connection, args.pipeline)
            .with_method(&method, &body)
            .with_statuses(args.expect.clone().unwrap_or_default());
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
    pub(super) fn park(&self, args: &Args, stop: &Stop) -> Result<Option<Lot>, Failure> {
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

    pub(super) fn open(&self, args: &Args, rate: f64, seed: u64, stop: &Stop, ears: &Ears) -> Result<Outcome, Failure> {
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
                schedule.end_at(duration);
            }
            (schedule, format!("replay:{}", log.display()))
        } else {
            // A list that ends, ends the run.
            let count = requests.len().map(|count| count.div_ceil(per_connection));
            let mut schedule = match (count, args.duration) {
                (Some(count), None) if args.requests.is_some() => {
                    Schedule::of_count(&args.arrivals, rate, count, seed)?
                }
                _ => Schedule::new(&args.arrivals, rate, args.duration(), seed)?,
            };
            if let Some(count) = count {
                schedule.truncate(count);
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
