//! One run of load: its schedule, the parked connections beside it, and other processes on the machine.

use std::collections::BTreeSet;
use std::time::Duration;

use ammeter_load::drive::parked::IdlePool;
use ammeter_load::drive::{self, Stop, Target};
use ammeter_load::outcome::{Loop, Outcome};
use ammeter_load::schedule::{Arrivals, Schedule};
use ammeter_load::workload::log::Spacing;
use amped_measure::Failure;
use amped_measure::host::Machine;
use amped_measure::others::{Census, Others};

use super::args::Args;
use super::ears::Ears;
use super::setup::Setup;

/// Maximum connections per second: opening one costs at least 10 us of CPU.
pub(super) const RATE_MAX: f64 = 1e6;

/// Runs beside parked connections, and adds to the result their state and the CPU use of other processes.
pub(super) fn beside(
    args: &Args,
    setup: &Setup,
    pool: Option<&IdlePool>,
    run: impl FnOnce() -> Result<Outcome, Failure>,
) -> Result<Outcome, Failure> {
    let watch = (args.others_max < 1.0).then(|| Watch::begin(&setup.settings.target)).transpose()?;
    pool.map(IdlePool::take);
    let mut outcome = run()?;
    if let Some(watch) = watch {
        outcome.shared_with(watch.end()?, args.others_max);
    }
    if let Some(pool) = pool {
        outcome.park(pool.take());
    }
    Ok(outcome)
}

/// Runs an open loop at this rate, or at the times of a log.
pub(super) fn open(
    args: &Args,
    setup: &Setup,
    rate: f64,
    seed: u64,
    stop: &Stop,
    ears: &Ears,
) -> Result<Outcome, Failure> {
    if rate > RATE_MAX {
        return Err(Failure::usage(format!(
            "{rate} connections per second exceed the maximum of {RATE_MAX}; lower --rate"
        )));
    }
    let (requests, per_connection) = (setup.plan.requests(), setup.plan.per_connection());
    let recorded = matches!(args.speed, Spacing::Times(_)) && args.replay.is_some();
    let (schedule, arrivals) = if let (true, Some(log)) = (recorded, &args.replay) {
        let schedule = Schedule::of_requests(requests, per_connection);
        let mut schedule = schedule.ok_or_else(|| Failure::failed("the requests of this log have no times"))?;
        if let Some(duration) = args.duration {
            schedule.end_at(duration);
        }
        (schedule, format!("replay:{}", log.display()))
    } else {
        // A finite list of requests ends the run.
        let count = requests.len().map(|count| count.div_ceil(per_connection));
        if count.is_some() && args.arrivals == Arrivals::Descriptors {
            return Err(Failure::usage(
                "--arrivals descriptors has no fixed number of connections; omit the list or --requests",
            ));
        }
        let mut schedule = match (count, args.duration) {
            (Some(count), None) if args.requests.is_some() => Schedule::of_count(&args.arrivals, rate, count, seed)?,
            _ => Schedule::new(&args.arrivals, rate, args.duration(), seed)?,
        };
        if let Some(count) = count {
            schedule.truncate(count);
        }
        (schedule, args.arrivals.to_string())
    };
    let shape = schedule.shape();
    // The rate of a recorded series is its own.
    let rate = if rate > 0.0 { rate } else { schedule.rate() } / args.slice.count() as f64;
    let schedule = schedule.slice(args.slice);
    ears.begin(&format!("{}  open loop, {arrivals}, {rate:.1} connections/s", setup.shown), schedule.duration())?;
    let wanted = Loop::Open { arrivals, rate, seed, shape };
    drive::open(&setup.settings, &setup.plan, &schedule, wanted, stop, &|second| ears.hear(second))
}

/// Watches other processes during the load.
struct Watch {
    rest: Census,
    before: Census,
    server: BTreeSet<u32>,
    is_local: bool,
}

impl Watch {
    /// Takes a census before the load begins, long enough to see which processes are busy.
    fn begin(target: &Target) -> Result<Watch, Failure> {
        const REST: Duration = Duration::from_millis(250);
        let (is_local, server) = match target {
            Target::Unix(_) => (true, BTreeSet::new()),
            // An address of this machine can be bound.
            Target::Tcp(address) if std::net::UdpSocket::bind((address.ip(), 0)).is_ok() => {
                // Another user's server may be hidden; it was idle before the load, as are its backends.
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
        // Other instruments and generators of other slices run this program too.
        let own = std::fs::read_link("/proc/self/exe").ok();
        let is_own = |pid: &u32| own.is_some() && std::fs::read_link(format!("/proc/{pid}/exe")).ok() == own;
        let mut ours = self.server;
        ours.insert(std::process::id());
        ours.extend(after.since(&self.before).into_keys().filter(is_own));
        let cores = Machine::this()?.cores;
        Ok(Others::between(&self.rest, &self.before, &after, &ours, !self.is_local, cores))
    }
}
