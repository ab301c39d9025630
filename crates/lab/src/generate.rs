//! A load made by one host or several, all from one instant.
//!
//! Each generator is `ammeter load --slice I/N --await-start --parts -`, here or over ssh. It says when it is ready. When all
//! are, their clocks are compared, and each is given the same instant by its own clock, as far ahead as the slowest round trip
//! asks for. Their slices are merged (`ammeter_load::parts`). A load on this machine alone has one slice.

use std::fs::{self, File};
use std::io::Write;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use ammeter_load::drive::{Stop, TOO_LATE};
use ammeter_load::outcome::Outcome;
use ammeter_load::parts::Parts;
use amped_measure::Failure;

use crate::archive::{self, HostRun, Offset, SliceRun, Step};
use crate::command::load::READY;
use crate::environment::{Running, Said, Site, Streams, interrupted, quoted};
use crate::experiment::Settings;
use crate::run::{load_words, now_s, patience};

/// How long a generator may take until it is ready: it may have many connections to park.
const READY_WITHIN: Duration = Duration::from_secs(120);

/// How long before it a load is given its start time, at least.
const NOTICE: Duration = Duration::from_millis(100);

/// How often a load is begun whose start time came too late.
const ATTEMPTS: u32 = 4;

/// A host that makes load.
pub(crate) struct Generator {
    /// Its name.
    pub(crate) name: String,
    /// Words before those of `ammeter load`, ending with the program.
    pub(crate) words: Vec<String>,
    /// Words of the ssh that runs a command there; empty: it is this machine.
    pub(crate) ssh: Vec<String>,
    /// Where it has the manifest, if a set is asked for.
    pub(crate) manifest: Option<PathBuf>,
}

/// A host's clock at a moment.
pub(crate) struct Clock {
    pub(crate) host: String,
    /// When it was looked at.
    pub(crate) taken: Instant,
    /// How far it is ahead of this machine's.
    pub(crate) offset: Offset,
    /// The longest round trip that was seen.
    pub(crate) trip: Duration,
    /// CPU time that the host has used so far, in nanoseconds.
    pub(crate) busy_ns: u64,
    /// Its cores.
    pub(crate) cores: usize,
}

impl Clock {
    /// The share of its CPU time that was used until a later look, and of it what was not used for `own_s` seconds.
    fn shares(&self, later: &Clock, own_s: f64) -> (f64, f64) {
        let whole_s = (later.taken - self.taken).as_secs_f64().max(1e-9) * self.cores.max(1) as f64;
        let busy_s = later.busy_ns.saturating_sub(self.busy_ns) as f64 / 1e9;
        ((busy_s / whole_s).min(1.0), ((busy_s - own_s) / whole_s).max(0.0))
    }
}

/// A load to make.
pub(crate) struct Order<'a> {
    pub(crate) settings: &'a Settings,
    pub(crate) server: SocketAddr,
    pub(crate) site: &'a Site,
    pub(crate) step: Step,
    pub(crate) duration: Duration,
    pub(crate) seed: u64,
    /// Where the results of its slices go.
    pub(crate) into: &'a Path,
    /// What the names of these files begin with.
    pub(crate) stem: &'a str,
}

/// What came of a load.
pub(crate) struct Load {
    /// The slices, each with the name of its host, by the clock of this machine.
    pub(crate) parts: Vec<(String, Parts)>,
    /// All of them together.
    pub(crate) outcome: Outcome,
    /// The clocks before and after it, the server's first.
    clocks: [Vec<Clock>; 2],
}

/// The hosts of a run, as a load sees them.
pub(crate) trait Hosts {
    /// Compares the clocks of the server's host and of so many generators.
    fn clocks(&mut self, generators: usize) -> Result<Vec<Clock>, Failure>;

    /// Fails where a host is gone.
    fn check(&mut self) -> Result<(), Failure>;

    /// All generators are ready, and the load will begin.
    fn begin(&mut self, stop: &Stop) -> Result<(), Failure>;
}

/// Makes a load; the reason, if the generators could not.
///
/// # Errors
/// A host that is gone; an interrupt.
pub(crate) fn load(
    hosts: &mut impl Hosts,
    generators: &[Generator],
    order: &Order<'_>,
    stop: &Stop,
) -> Result<Result<Load, String>, Failure> {
    let mut attempt = 0;
    loop {
        let mut slices = Vec::new();
        for (at, generator) in generators.iter().enumerate() {
            slices.push(Slice::start(generator, order, at, generators.len())?);
        }
        if let Err(why) = await_ready(hosts, &mut slices, stop)? {
            return Ok(Err(why));
        }
        hosts.begin(stop)?;
        let before = hosts.clocks(slices.len())?;
        let trip = before.iter().map(|clock| clock.trip).max().unwrap_or_default();
        let at_s = now_s() + notice(trip, attempt).as_secs_f64();
        for (slice, clock) in slices.iter_mut().zip(&before[1..]) {
            slice.begin(at_s + clock.offset.offset_s);
        }
        await_end(hosts, &mut slices, patience(order.settings, order.duration) + notice(trip, attempt), stop)?;
        let after = hosts.clocks(slices.len())?;
        attempt += 1;
        if attempt < ATTEMPTS && slices.iter().any(|slice| slice.said.whole().contains(TOO_LATE)) {
            continue;
        }
        let clocks = [before, after];
        let read = |(at, slice): (usize, &Slice)| slice.parts(offset(&clocks, at + 1), generators.len());
        let parts = match slices.iter().enumerate().map(read).collect::<Result<Vec<_>, String>>() {
            Ok(parts) => parts,
            Err(why) => return Ok(Err(why)),
        };
        let outcome = match &parts[..] {
            [(_, only)] => only.outcome.clone(),
            parts => Parts::merge(parts).map_err(Failure::failed)?,
        };
        return Ok(Ok(Load { parts, outcome, clocks }));
    }
}

/// How far ahead a start time is: what is said must reach the slowest host first. More with each attempt.
fn notice(trip: Duration, attempt: u32) -> Duration {
    (NOTICE + trip * 4) * 4_u32.pow(attempt.min(ATTEMPTS))
}

/// How far a clock was ahead throughout.
fn offset([before, after]: &[Vec<Clock>; 2], at: usize) -> Offset {
    before[at].offset.and(after[at].offset)
}

impl Load {
    /// What each host did, the server's first, of whose machine this share was used.
    pub(crate) fn hosts(&self, server_busy: f64) -> Vec<HostRun> {
        let [before, after] = &self.clocks;
        let mut hosts = vec![HostRun {
            host: before[0].host.clone(),
            role: "server".to_owned(),
            clock: offset(&self.clocks, 0),
            busy: server_busy,
            ..HostRun::default()
        }];
        for (at, (host, Parts { outcome, .. })) in self.parts.iter().enumerate() {
            let (busy, others) =
                before[at + 1].shares(&after[at + 1], outcome.establisher.cpu_s + outcome.handler.cpu_s);
            hosts.push(HostRun {
                host: host.clone(),
                role: format!("load {}/{}", at + 1, self.parts.len()),
                clock: offset(&self.clocks, at + 1),
                busy,
                others: Some(others),
                load: Some(SliceRun {
                    offered_rate: outcome.window.offered_rate,
                    rate: outcome.window.completed_rate,
                    lateness_p99_ms: outcome.lateness.p99_ms,
                    verdict: outcome.verdict.clone(),
                }),
            });
        }
        hosts
    }
}

/// A generator at work. Dropped, it ends.
struct Slice {
    name: String,
    running: Running,
    input: Option<ChildStdin>,
    said: Said,
    file: PathBuf,
    status: Option<ExitStatus>,
}

impl Slice {
    fn start(generator: &Generator, order: &Order<'_>, at: usize, count: usize) -> Result<Slice, Failure> {
        let Order { settings, server, site, step, duration, seed, into, stem } = order;
        let manifest = site.manifest.as_ref().and(generator.manifest.clone());
        let site = Site { folder: PathBuf::new(), target: site.target.clone(), manifest, replies: None };
        let mut words = generator.words.clone();
        words.extend(load_words(settings, &site, *step, *server, *duration, *seed));
        words.extend(["--slice".to_owned(), format!("{}/{count}", at + 1)]);
        words.extend(["--await-start", "--parts", "-"].map(str::to_owned));
        if !generator.ssh.is_empty() {
            let command = quoted(words.iter().map(String::as_str));
            words = generator.ssh.iter().cloned().chain([command]).collect();
        }
        let file = into.join(format!("{stem}-{}.json", at + 1));
        let out = File::create(&file).map_err(Failure::io(format_args!("write {}", file.display())))?;
        let streams = Streams { out: out.into(), err: Stdio::piped() };
        let mut running = Running::start_with("the load", &words, streams, Stdio::piped())?;
        let (input, said) = (running.take_input(), Said::by(running.take_errors()));
        let name = generator.name.clone();
        Ok(Slice { name, running, input, said, file, status: None })
    }

    fn is_ready(&self) -> bool {
        self.said.so_far().lines().any(|line| line == READY)
    }

    /// Has it begin at this instant of its own clock.
    fn begin(&mut self, at_s: f64) {
        if let Some(input) = &mut self.input {
            // That it has ended is seen by its status.
            let _ = writeln!(input, "{at_s}");
        }
    }

    /// Its result, of which the clock was ahead by so much.
    fn parts(&self, clock: Offset, count: usize) -> Result<(String, Parts), String> {
        let mut parts: Parts = archive::read(&self.file).map_err(|_| self.why())?;
        parts.outcome.began_s -= clock.offset_s;
        if count == 1 && clock == Offset::default() {
            let _ = fs::remove_file(&self.file);
        }
        Ok((self.name.clone(), parts))
    }

    /// Why there is no result.
    fn why(&self) -> String {
        let said = self.said.whole();
        let said: Vec<&str> = said.lines().filter(|line| *line != READY).collect();
        let status = self.status.map_or("no status".to_owned(), |status| status.to_string());
        let whose = if self.name.is_empty() { String::new() } else { format!("{}: ", self.name) };
        format!("{whose}the load ended with {status}: {}", said.join("\n"))
    }
}

fn await_ready(hosts: &mut impl Hosts, slices: &mut [Slice], stop: &Stop) -> Result<Result<(), String>, Failure> {
    let begin = Instant::now();
    while !slices.iter().all(Slice::is_ready) {
        hosts.check()?;
        if stop.is_stopped() {
            return Err(interrupted());
        }
        for slice in &mut *slices {
            slice.status = slice.running.ended();
            if slice.status.is_some() {
                return Ok(Err(slice.why()));
            }
        }
        if begin.elapsed() > READY_WITHIN {
            return Err(Failure::failed(format!("the load was not ready within {READY_WITHIN:?}")));
        }
        thread::sleep(Duration::from_millis(2));
    }
    Ok(Ok(()))
}

fn await_end(hosts: &mut impl Hosts, slices: &mut [Slice], patience: Duration, stop: &Stop) -> Result<(), Failure> {
    let begin = Instant::now();
    while slices.iter().any(|slice| slice.status.is_none()) {
        hosts.check()?;
        if stop.is_stopped() {
            return Err(interrupted());
        }
        if begin.elapsed() > patience {
            return Err(Failure::failed(format!("the load did not end within {patience:?}, and was killed")));
        }
        for slice in slices.iter_mut().filter(|slice| slice.status.is_none()) {
            slice.status = slice.running.ended();
        }
        thread::sleep(Duration::from_millis(2));
    }
    hosts.check()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn start_time_allows_for_slowest_round_trip() {
        for trip_ms in [0, 1, 300, 5000] {
            let trip = Duration::from_millis(trip_ms);
            assert!(notice(trip, 0) >= trip * 4 + NOTICE);
            assert!((0..ATTEMPTS).all(|attempt| notice(trip, attempt + 1) > notice(trip, attempt) * 3));
        }
    }
}
