//! Makes the runs of an experiment where it says: on this machine, or on the hosts that it names.
//!
//! A run, on one host or several: the server is started until it answers; load that is not counted; generators are made ready; the
//! server's side begins to count; the load (`generate.rs`); the server's side ends, and `run.rs` judges what all of them saw. It is
//! in the archive when it is over. Before the first run, the clients are tried against a server that does nothing, in the
//! same place.

use std::cell::RefCell;
use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use ammeter_load::drive::Stop;
use ammeter_load::parts::Parts;
use amped_measure::Failure;

use crate::archive::{self, Block, ClientStep, Clients, Offset, Planned, Resolved, Run, Step, name};
use crate::command::load::hlog;
use crate::environment::{Running, Site, TestEnvironment, interrupted};
use crate::experiment::{Limits, Settings, Workload};
use crate::generate::{self, Clock, Generator, Hosts, Load};
use crate::hosts::Fleet;
use crate::interleave;
use crate::plan;
use crate::run::{self, Order, Side, Watched, judge, now_s, patience, refused};
use crate::say;
use crate::subject::Subject;

/// What all runs of an experiment have in common.
pub(crate) struct Lab<'a> {
    /// This machine.
    pub(crate) environment: &'a TestEnvironment,
    /// The hosts, where it is several.
    pub(crate) fleet: Option<&'a RefCell<Fleet>>,
    /// The archive.
    pub(crate) dir: &'a Path,
    /// What was asked for.
    pub(crate) resolved: &'a Resolved,
    /// What the clients can do.
    pub(crate) clients: &'a Clients,
    /// Says when it is enough.
    pub(crate) stop: &'a Stop,
}

impl Lab<'_> {
    /// Looks at the machine while nothing is asked of it, or at all of the hosts.
    ///
    /// # Errors
    /// As [`run::look_at_rest`]; a host that is gone.
    pub(crate) fn look_at_rest(&self, block: u32) -> Result<Block, Failure> {
        let found = match self.fleet {
            Some(fleet) => fleet.borrow_mut().look_at_rest(self.stop)?,
            None => run::look_at_rest(self.stop)?,
        };
        Ok(Block { block, is_clean: found.busy <= self.resolved.rules.idle_max, ..found })
    }
}

/// Makes one run: its directory is in the archive when this returns.
///
/// # Errors
/// When it could not be made at all: no program, no disk, an interrupt. A server that fails is a result, and no error.
pub(crate) fn make(lab: &Lab<'_>, settings: &Settings, planned: &Planned, block: &Block) -> Result<Run, Failure> {
    let order = order(lab, settings, planned, block)?;
    let run = work(lab.environment, lab.fleet, &order, lab.stop)?;
    keep(&order, &run)?;
    Ok(run)
}

/// Makes these runs, whose servers are alive at once; `each` gets a run when its directory is in the archive.
///
/// # Errors
/// As [`make`].
pub(crate) fn make_interleaved(
    lab: &Lab<'_>,
    runs: &[(&Settings, &Planned)],
    block: &Block,
    each: &mut (dyn FnMut(Run) + Send),
) -> Result<(), Failure> {
    let orders: Vec<Order> =
        runs.iter().map(|(settings, planned)| order(lab, settings, planned, block)).collect::<Result<_, _>>()?;
    interleave::work(lab.environment, &orders, lab.stop, &mut |at, run| {
        keep(&orders[at], &run)?;
        each(run);
        Ok(())
    })
}

/// What a run is made of; its directory is there, under a name of its own.
fn order(lab: &Lab<'_>, settings: &Settings, planned: &Planned, block: &Block) -> Result<Order, Failure> {
    let into = lab.dir.join(name::RUNS).join(format!(".{}", planned.id));
    let _ = fs::remove_dir_all(&into);
    fs::create_dir_all(&into).map_err(Failure::io(format_args!("make {}", into.display())))?;
    Ok(Order {
        settings: settings.clone(),
        planned: planned.clone(),
        rules: lab.resolved.rules.clone(),
        seed: lab.resolved.seed,
        interval: Duration::from_secs_f64(lab.resolved.interval_ms / 1e3),
        clients: lab.clients.steps.iter().find(|step| step.step == planned.step).cloned(),
        idle: Some((block.is_clean, block.busy)),
        into,
    })
}

/// A run that is over has its name in the archive.
fn keep(order: &Order, run: &Run) -> Result<(), Failure> {
    archive::write(&order.into.join(name::RUN), run)?;
    let to = order.into.with_file_name(&order.planned.id);
    fs::rename(&order.into, &to).map_err(Failure::io(format_args!("name {}", to.display())))
}

/// Makes a run. A server that fails is its result, and so is a host that does.
fn work(
    environment: &TestEnvironment,
    fleet: Option<&RefCell<Fleet>>,
    order: &Order,
    stop: &Stop,
) -> Result<Run, Failure> {
    let Order { settings, seed, interval, into, .. } = order;
    let run = Run::begun(order.planned.clone(), now_s());
    if let Some(fleet) = fleet {
        fleet.borrow_mut().revive(stop)?;
    }
    let began = run.clone();
    let work = move |bench: &mut Bench<'_>, stop: &Stop| measured(began, order, bench, stop);
    match with_server(environment, fleet, settings, *seed, *interval, into, stop, work) {
        Ok(Ok(run)) => Ok(run),
        Ok(Err(why)) => Ok(refused(run, "server", &why)),
        Err(_) if stop.is_stopped() => Err(interrupted()),
        Err(failure) if fleet.is_some() => Ok(refused(run, "hosts", &failure.to_string())),
        Err(failure) => Err(failure),
    }
}

/// A run whose server answers.
fn measured(mut run: Run, order: &Order, bench: &mut Bench<'_>, stop: &Stop) -> Result<Run, Failure> {
    let Order { settings, planned, into, .. } = order;
    let warm_up = settings.load.warm_up;
    if !warm_up.is_zero() {
        bench.counted = None;
        // Connections are parked beside the measured load alone, or what they take would be there before it.
        let mut settings = settings.clone();
        settings.load.parked.clear();
        if let Ok(load) = bench.load(&settings, planned.step, warm_up, planned.seed ^ 1, into, "warm-up", stop)? {
            archive::write_bytes(&into.join(name::WARM_UP), say::as_json(&load.outcome)?.as_bytes())?;
        }
    }
    bench.counted = Some(order.clone());
    let load = bench.load(settings, planned.step, settings.load.duration, planned.seed, into, "load", stop)?;
    if let Some(beside) = bench.beside.take() {
        beside.wait(patience(settings, settings.load.duration), stop)?;
    }
    run.load_ended_s = now_s();
    let watched = bench.end(settings, into, stop)?;
    let load = match load {
        Ok(load) => load,
        Err(why) => return Ok(refused(run, "client", &why)),
    };
    let Load { parts, outcome, .. } = &load;
    archive::write_bytes(&into.join(name::LOAD), say::as_json(outcome)?.as_bytes())?;
    hlog::write(&into.join(name::HLOG), &planned.id, outcome.began_s, Parts::intervals(parts))?;
    let hosts = bench.server_cores().map(|cores| load.hosts(watched.spell.shares(cores, None).0)).unwrap_or_default();
    if !hosts.is_empty() {
        archive::write(&into.join(name::HOSTS), &hosts)?;
    }
    judge(run, order, outcome, &watched, bench.is_private(&watched), &hosts)
}

/// A server that answers, and where load for it comes from.
struct Bench<'a> {
    place: Place<'a>,
    server: SocketAddr,
    site: Site,
    /// The run of the next load, if the server's side counts what that does.
    counted: Option<Order>,
    /// Clients beside the load.
    beside: Option<Running>,
}

/// Where a run is made.
enum Place<'a> {
    /// On this machine.
    Here { environment: &'a TestEnvironment, side: Option<Box<Side>> },
    /// On several.
    Hosts(&'a mut Fleet),
}

impl Hosts for Bench<'_> {
    fn clocks(&mut self, generators: usize) -> Result<Vec<Clock>, Failure> {
        match &mut self.place {
            Place::Hosts(fleet) => fleet.clocks(generators),
            Place::Here { .. } => Ok((0..=generators).map(|_| own_clock()).collect()),
        }
    }

    fn check(&mut self) -> Result<(), Failure> {
        match &mut self.place {
            Place::Hosts(fleet) => fleet.check(),
            Place::Here { .. } => Ok(()),
        }
    }

    fn begin(&mut self, stop: &Stop) -> Result<(), Failure> {
        let Some(order) = &self.counted else { return Ok(()) };
        match &mut self.place {
            Place::Hosts(fleet) => fleet.measure(stop),
            Place::Here { side: Some(side), .. } => {
                side.calm(stop)?;
                side.measure()?;
                self.beside = side.beside(order, &self.site)?;
                Ok(())
            }
            Place::Here { side: None, .. } => Ok(()),
        }
    }
}

/// This machine's clock is not ahead of itself.
fn own_clock() -> Clock {
    let (offset, trip) = (Offset::default(), Duration::ZERO);
    Clock { host: String::new(), taken: Instant::now(), offset, trip, busy_ns: 0, cores: 1 }
}

impl Bench<'_> {
    #[allow(clippy::too_many_arguments, reason = "all of them are of different kinds")]
    fn load(
        &mut self,
        settings: &Settings,
        step: Step,
        duration: Duration,
        seed: u64,
        into: &Path,
        stem: &str,
        stop: &Stop,
    ) -> Result<Result<Load, String>, Failure> {
        let generators = match &self.place {
            Place::Hosts(fleet) => fleet.generators(settings, step)?,
            Place::Here { side, .. } => vec![Generator {
                name: String::new(),
                words: side.as_ref().map(|side| side.prefix().to_vec()).unwrap_or_default(),
                ssh: Vec::new(),
                manifest: self.site.manifest.clone(),
            }],
        };
        let (server, site) = (self.server, self.site.clone());
        let order = generate::Order { settings, server, site: &site, step, duration, seed, into, stem };
        generate::load(self, &generators, &order, stop)
    }

    /// The load has ended: ends the server's side.
    fn end(&mut self, settings: &Settings, into: &Path, stop: &Stop) -> Result<Watched, Failure> {
        match &mut self.place {
            Place::Hosts(fleet) => fleet.end(settings, into, stop),
            Place::Here { side, .. } => side.take().ok_or_else(|| Failure::failed("there is no server"))?.end(stop),
        }
    }

    /// The cores of the server's host, where it is one of several.
    fn server_cores(&self) -> Option<usize> {
        match &self.place {
            Place::Hosts(fleet) => fleet.host().ok().map(|host| host.machine.cores),
            Place::Here { .. } => None,
        }
    }

    /// Whether nobody else is in the server's network: a host of its own is to be nobody else's.
    fn is_private(&self, watched: &Watched) -> bool {
        match &self.place {
            Place::Hosts(_) => true,
            Place::Here { environment, .. } => environment.is_private || watched.path.is_some(),
        }
    }
}

/// Starts the server of these settings, and has `work` done with it; the reason, if it cannot be run.
#[allow(clippy::too_many_arguments, reason = "all of them are of different kinds")]
fn with_server<T: Send>(
    environment: &TestEnvironment,
    fleet: Option<&RefCell<Fleet>>,
    settings: &Settings,
    seed: u64,
    interval: Duration,
    into: &Path,
    stop: &Stop,
    work: impl FnOnce(&mut Bench<'_>, &Stop) -> Result<T, Failure> + Send,
) -> Result<Result<T, String>, Failure> {
    let Some(fleet) = fleet else {
        return run::apart(environment, stop, move |environment, stop| {
            let site = environment.site_for(settings, seed)?;
            let side = match Side::begin(environment, settings, &site, interval, None, into, stop)? {
                Ok(side) => side,
                Err(why) => return Ok(Err(why)),
            };
            let server = side.address();
            let place = Place::Here { environment, side: Some(Box::new(side)) };
            work(&mut Bench { place, server, site, counted: None, beside: None }, stop).map(Ok)
        });
    };
    let fleet = &mut *fleet.borrow_mut();
    let (server, site) = match fleet.start(settings, seed, interval, stop)? {
        Ok(started) => started,
        Err(why) => return Ok(Err(why)),
    };
    let done = work(&mut Bench { place: Place::Hosts(fleet), server, site, counted: None, beside: None }, stop);
    fleet.give_up();
    done.map(Ok)
}

/// Tries the clients at each step against a server that does nothing, and at half as much again as the highest.
///
/// # Errors
/// When such a server cannot be started; an interrupt.
pub(crate) fn try_clients(
    environment: &TestEnvironment,
    fleet: Option<&RefCell<Fleet>>,
    settings: &Settings,
    resolved: &Resolved,
    stop: &Stop,
) -> Result<Clients, Failure> {
    let steps = plan::client_steps(&resolved.steps);
    if steps.is_empty() {
        return Ok(Clients {
            steps: Vec::new(),
            skipped: Some("a closed loop has no schedule that could be missed".to_owned()),
        });
    }
    let mut settings = settings.clone();
    settings.subject = Subject::null();
    // It takes each piece that it receives for a request, and answers it with two bytes.
    settings.load.pipeline = 1;
    settings.workload = Workload::File(amped_units::Bytes(2));
    settings.path = None;
    settings.limits = Limits::default();
    settings.profile = false;
    let mut clients = Clients::default();
    for step in steps {
        let mut tried = try_step(environment, fleet, &settings, step, resolved.seed, stop)?;
        // A neighbour may have the machine for a moment: only a rate that is missed so often is too high.
        for _ in 1..ATTEMPTS {
            if tried.is_kept {
                break;
            }
            tried = try_step(environment, fleet, &settings, step, resolved.seed, stop)?;
        }
        clients.steps.push(tried);
    }
    Ok(clients)
}

/// How often clients are tried at a step, at most.
const ATTEMPTS: usize = 3;

fn try_step(
    environment: &TestEnvironment,
    fleet: Option<&RefCell<Fleet>>,
    settings: &Settings,
    step: Step,
    seed: u64,
    stop: &Stop,
) -> Result<ClientStep, Failure> {
    if let Some(fleet) = fleet {
        fleet.borrow_mut().revive(stop)?;
    }
    let folder = environment.folder()?;
    let (into, duration) = (&folder.path, Duration::from_secs_f64(plan::CLIENTS_S));
    let work = move |bench: &mut Bench<'_>, stop: &Stop| bench.load(settings, step, duration, seed, into, "load", stop);
    let tried = with_server(environment, fleet, settings, seed, Duration::ZERO, into, stop, work);
    let why = match tried {
        Ok(Ok(Ok(Load { outcome, .. }))) => return Ok(ClientStep::measured(step, &outcome)),
        // It says itself why it cannot make such a load at all.
        Ok(Ok(Err(why))) => why,
        Ok(Err(why)) => return Err(Failure::failed(why)),
        Err(_) if stop.is_stopped() => return Err(interrupted()),
        Err(failure) if fleet.is_none_or(|fleet| fleet.borrow().has_lost()) => return Err(failure),
        Err(failure) => failure.to_string(),
    };
    Ok(ClientStep { why: vec![why], ..ClientStep::of(step) })
}
