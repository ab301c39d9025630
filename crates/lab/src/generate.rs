//! Generates one load from one host or several, starting at the same instant.
//!
//! Each generator is `ammeter load --slice I/N --await-start --parts -`, run locally or on another host.
//! It reports when it is ready. When all are ready, their clocks are compared. Each is sent the
//! same start time, converted to its own clock and far enough ahead for the slowest round trip.
//! `ammeter_load::parts` merges the slices. A load from this machine alone has one slice.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use ammeter_load::drive::{Stop, TOO_LATE};
use ammeter_load::outcome::Outcome;
use ammeter_load::parts::Parts;
use amped_measure::Failure;

use crate::archive::{self, HostRun, Offset, SliceRun};
use crate::channel::Channel;
use crate::environment::{Running, Said, Streams, interrupted};
use crate::run::now_s;

/// Printed by a load that waits for its start time when it is ready.
pub(crate) const READY: &str = "ready";

/// Maximum time for a generator to become ready: it may have many connections to park.
const READY_WITHIN: Duration = Duration::from_secs(120);

/// Minimum time between sending the start time and the start of the load.
const NOTICE: Duration = Duration::from_millis(100);

/// Maximum attempts at a load if a generator receives the start time too late.
const ATTEMPTS: u32 = 4;

/// Begins the line in which `ammeter wan join --cpu` says how many seconds of CPU time moving packets has taken.
pub(crate) const PATH_CPU: &str = "path-cpu-s ";

/// A load generator and its host.
pub(crate) struct Generator {
    pub(crate) name: String,
    /// The command line of `ammeter load` on the host, without the flags that make it a slice.
    pub(crate) words: Vec<String>,
    /// What runs it on the host.
    pub(crate) channel: Channel,
}

/// One reading of a host's clock.
pub(crate) struct Clock {
    pub(crate) host: String,
    /// When the clock was read.
    pub(crate) taken: Instant,
    /// Offset from this machine's clock.
    pub(crate) offset: Offset,
    /// The longest round trip of the comparison.
    pub(crate) trip: Duration,
    /// CPU time that the host has used since boot, in nanoseconds.
    pub(crate) busy_ns: u64,
    /// Number of cores.
    pub(crate) cores: usize,
}

impl Clock {
    /// The clock of this machine, whose offset from itself is 0.
    pub(crate) fn own() -> Clock {
        let (offset, trip) = (Offset::default(), Duration::ZERO);
        Clock { host: String::new(), taken: Instant::now(), offset, trip, busy_ns: 0, cores: 1 }
    }

    /// Returns the share of CPU time in use until a later reading, and the share of it beyond the
    /// generator's own `own_s` seconds.
    fn shares(&self, later: &Clock, own_s: f64) -> (f64, f64) {
        let whole_s = (later.taken - self.taken).as_secs_f64().max(1e-9) * self.cores.max(1) as f64;
        let busy_s = later.busy_ns.saturating_sub(self.busy_ns) as f64 / 1e9;
        ((busy_s / whole_s).min(1.0), ((busy_s - own_s) / whole_s).max(0.0))
    }
}

/// A load to generate.
pub(crate) struct Order<'a> {
    /// Maximum time from its start to its end.
    pub(crate) patience: Duration,
    /// Directory of the slices' results.
    pub(crate) into: &'a Path,
    /// Prefix of their file names.
    pub(crate) stem: &'a str,
}

/// The result of a load.
pub(crate) struct Load {
    /// The slices, each with the name of its host, stamped by this machine's clock.
    pub(crate) parts: Vec<(String, Parts)>,
    /// The merged outcome.
    pub(crate) outcome: Outcome,
    /// CPU time of the path on each generator's host, in seconds.
    path_cpu_s: Vec<f64>,
    /// Clock readings before and after the load, the server's host first.
    clocks: [Vec<Clock>; 2],
}

/// The load generation's view of the hosts of a run.
pub(crate) trait Hosts {
    /// Reads the clocks of the server's host and of `generators` generators.
    fn clocks(&mut self, generators: usize) -> Result<Vec<Clock>, Failure>;

    /// Fails if a host is lost.
    fn check(&mut self) -> Result<(), Failure>;

    /// Called when all generators are ready, just before the load starts.
    fn begin(&mut self, stop: &Stop) -> Result<(), Failure>;
}

/// Generates a load; returns the reason if the generators fail.
///
/// # Errors
/// A lost host; an interrupt.
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
        await_end(hosts, &mut slices, order.patience.saturating_add(notice(trip, attempt)), stop)?;
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
        let path_cpu_s = slices.iter().map(Slice::path_cpu_s).collect();
        return Ok(Ok(Load { parts, outcome, path_cpu_s, clocks }));
    }
}

/// Time between sending the start time and the start itself, long enough to reach the slowest host.
/// Grows with each attempt.
fn notice(trip: Duration, attempt: u32) -> Duration {
    (NOTICE + trip * 4) * 4_u32.pow(attempt.min(ATTEMPTS))
}

/// Offset of a clock over the whole load.
fn offset([before, after]: &[Vec<Clock>; 2], at: usize) -> Offset {
    before[at].offset.and(after[at].offset)
}

impl Load {
    /// Returns each host's part in the run, the server's first; `server_busy` is the busy share of the server's host.
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
            let own_s = outcome.establisher.cpu_s + outcome.handler.cpu_s + self.path_cpu_s[at];
            let (busy, others) = before[at + 1].shares(&after[at + 1], own_s);
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

/// A running generator. Dropping it ends the process.
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
        let Order { into, stem, .. } = order;
        let mut words = generator.words.clone();
        words.extend(["--slice".to_owned(), format!("{}/{count}", at + 1)]);
        words.extend(["--await-start", "--parts", "-"].map(str::to_owned));
        let words = generator.channel.command(words.iter().map(String::as_str));
        let file = into.join(format!("{stem}-{}.json", at + 1));
        let out = File::create(&file).map_err(Failure::io(format_args!("write {}", file.display())))?;
        let streams = Streams { out: out.into(), err: Stdio::piped() };
        let mut running = Running::start_fed("the load", &words, streams)?;
        let (input, said) = (running.take_input(), Said::by(running.take_errors()));
        let name = generator.name.clone();
        Ok(Slice { name, running, input, said, file, status: None })
    }

    fn is_ready(&self) -> bool {
        self.said.so_far().lines().any(|line| line == READY)
    }

    /// Sends the start time, in the generator's own clock.
    fn begin(&mut self, at_s: f64) {
        if let Some(input) = &mut self.input {
            // A failed write means that the generator has exited; its status shows that.
            let _ = writeln!(input, "{at_s}");
        }
    }

    /// Reads the result and converts its times from the generator's clock, which is ahead by `clock`.
    fn parts(&self, clock: Offset, count: usize) -> Result<(String, Parts), String> {
        let mut parts: Parts = archive::read(&self.file).map_err(|_| self.why())?;
        parts.outcome.began_s -= clock.offset_s;
        if count == 1 && clock == Offset::default() {
            let _ = fs::remove_file(&self.file);
        }
        Ok((self.name.clone(), parts))
    }

    /// CPU time of its path on its host, in seconds.
    fn path_cpu_s(&self) -> f64 {
        let said = self.said.whole();
        said.lines().find_map(|line| line.strip_prefix(PATH_CPU)?.parse().ok()).unwrap_or_default()
    }

    /// The reason why there is no result.
    fn why(&self) -> String {
        let said = self.said.whole();
        let said: Vec<&str> = said.lines().filter(|line| *line != READY).collect();
        let status = self.status.map_or("no status".to_owned(), |status| status.to_string());
        let whose = if self.name.is_empty() { String::new() } else { format!("{}: ", self.name) };
        format!("{whose}`ammeter load` ended with {status}: {}", said.join("\n"))
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
            return Err(Failure::failed(format!("the load did not end within {patience:?} and was killed")));
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
