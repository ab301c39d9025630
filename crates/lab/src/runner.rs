//! Executes the runs of an experiment, on this machine or on the hosts that the experiment names.
//!
//! The steps of a run, on one host or several: start the server and wait for its first response; generate
//! the warm-up load; prepare the load generators; start counting on the server's side; generate the load
//! (`generate.rs`); end the server's side; evaluate the run (`run.rs`). The run is then added to the
//! archive. Before the first run, the clients are measured against a null server, in the same place.

use std::cell::RefCell;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ammeter_load::drive::Stop;
use ammeter_load::parts::Parts;
use amped_measure::Failure;

use crate::archive::{self, Block, ClientStep, Clients, Planned, Resolved, Run, Step, name};
use crate::channel::Channel;
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

/// State shared by all runs of an experiment.
pub(crate) struct Lab<'a> {
    pub(crate) environment: &'a TestEnvironment,
    /// The hosts, if there are several.
    pub(crate) fleet: Option<&'a RefCell<Fleet>>,
    /// Directory of the archive.
    pub(crate) dir: &'a Path,
    /// The resolved experiment.
    pub(crate) resolved: &'a Resolved,
    /// Results of the clients against the null server.
    pub(crate) clients: &'a Clients,
    /// Set by an interrupt.
    pub(crate) stop: &'a Stop,
}

impl Lab<'_> {
    /// Observes the idle machine, or all hosts.
    ///
    /// # Errors
    /// Those of [`run::look_at_rest`]; a lost host.
    pub(crate) fn look_at_rest(&self, block: u32) -> Result<Block, Failure> {
        let found = match self.fleet {
            Some(fleet) => fleet.borrow_mut().look_at_rest(self.stop)?,
            None => run::look_at_rest(self.stop)?,
        };
        Ok(Block { block, is_clean: found.busy <= self.resolved.rules.idle_max, ..found })
    }
}

/// Executes one run and adds its directory to the archive.
///
/// # Errors
/// If the run cannot be made at all: no program, no disk space, an interrupt. A failing server is a
/// result, not an error.
pub(crate) fn make(lab: &Lab<'_>, settings: &Settings, planned: &Planned, block: &Block) -> Result<Run, Failure> {
    let order = order(lab, settings, planned, block)?;
    let run = work(lab.environment, lab.fleet, &order, lab.stop)?;
    keep(&order, &run)?;
    Ok(run)
}

/// Executes these runs interleaved, with all their servers up. Passes each run to `each` once it is in the archive.
///
/// # Errors
/// Those of [`make`].
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

/// Returns the parameters of a run, and creates its directory under a temporary name.
fn order(lab: &Lab<'_>, settings: &Settings, planned: &Planned, block: &Block) -> Result<Order, Failure> {
    let into = lab.dir.join(name::RUNS).join(format!(".{}", planned.id));
    let _ = fs::remove_dir_all(&into);
    fs::create_dir_all(&into).map_err(Failure::io(format_args!("create {}", into.display())))?;
    Ok(Order {
        settings: settings.clone(),
        planned: planned.clone(),
        rules: lab.resolved.rules.clone(),
        seed: lab.resolved.seed,
        interval: settings.interval,
        clients: lab.clients.steps.iter().find(|step| step.step == planned.step).cloned(),
        idle: Some((block.is_clean, block.busy)),
        into,
    })
}

/// Renames the directory of a finished run to its final name.
fn keep(order: &Order, run: &Run) -> Result<(), Failure> {
    archive::write(&order.into.join(name::RUN), run)?;
    let to = order.into.with_file_name(&order.planned.id);
    fs::rename(&order.into, &to).map_err(Failure::io(format_args!("rename {}", order.into.display())))
}

/// Executes a run. A server failure is a result of the run, and so is a host failure.
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

/// Executes a run whose server has started.
fn measured(mut run: Run, order: &Order, bench: &mut Bench<'_>, stop: &Stop) -> Result<Run, Failure> {
    let Order { settings, planned, into, .. } = order;
    let warm_up = settings.load.warm_up;
    if !warm_up.is_zero() {
        bench.counted = None;
        // Connections are parked only during the measured load; otherwise their memory would be in use before it.
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

/// A running server, and the place where load for it is generated.
struct Bench<'a> {
    place: Place<'a>,
    server: SocketAddr,
    site: Site,
    /// The run of the next load, if the server's side counts it.
    counted: Option<Order>,
    beside: Option<Running>,
}

/// Place of a run.
enum Place<'a> {
    /// This machine.
    Here { environment: &'a TestEnvironment, side: Option<Box<Side>> },
    /// Several hosts.
    Hosts(&'a mut Fleet),
}

impl Hosts for Bench<'_> {
    fn clocks(&mut self, generators: usize) -> Result<Vec<Clock>, Failure> {
        match &mut self.place {
            Place::Hosts(fleet) => fleet.clocks(generators),
            Place::Here { .. } => Ok((0..=generators).map(|_| Clock::own()).collect()),
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
        let load = |prefix: &[String], manifest: Option<PathBuf>| {
            let site = Site { manifest: self.site.manifest.as_ref().and(manifest), ..self.site.clone() };
            let words = run::load_words(settings, &site, step, self.server, duration, seed);
            prefix.iter().cloned().chain(words).collect()
        };
        let generators = match &self.place {
            Place::Hosts(fleet) => fleet.generators(settings, step, load)?,
            Place::Here { side, .. } => vec![Generator {
                name: String::new(),
                words: load(side.as_ref().map_or(&[], |side| side.prefix()), self.site.manifest.clone()),
                channel: Channel::default(),
            }],
        };
        let order = generate::Order { patience: patience(settings, duration), into, stem };
        generate::load(self, &generators, &order, stop)
    }

    /// Ends the server's side after the load.
    fn end(&mut self, settings: &Settings, into: &Path, stop: &Stop) -> Result<Watched, Failure> {
        match &mut self.place {
            Place::Hosts(fleet) => fleet.end(settings, into, stop),
            Place::Here { side, .. } => side.take().ok_or_else(|| Failure::failed("no server was started"))?.end(stop),
        }
    }

    /// The number of cores of the server's host, if it is one of several.
    fn server_cores(&self) -> Option<usize> {
        match &self.place {
            Place::Hosts(fleet) => fleet.host().ok().map(|host| host.machine.cores),
            Place::Here { .. } => None,
        }
    }

    /// Whether the server's network has no other users: a separate host is assumed to be exclusive.
    fn is_private(&self, watched: &Watched) -> bool {
        match &self.place {
            Place::Hosts(_) => true,
            Place::Here { environment, .. } => environment.is_private || watched.path.is_some(),
        }
    }
}

/// Starts a server with these settings and calls `work` with it; returns the reason if the server cannot run.
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

/// Measures the clients against a null server, at each step and at 1.5 times the highest.
///
/// # Errors
/// If the null server cannot be started; an interrupt.
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
    if let Some(what) = settings.load.tls.map(|_| "TLS").or(settings.load.http2.then_some("HTTP/2")) {
        let why = format!("the null server does not speak {what}, whose cost for the clients it could not show");
        return Ok(Clients { steps: Vec::new(), skipped: Some(why) });
    }
    let mut settings = settings.clone();
    settings.subject = Subject::null();
    // The null server takes each received segment for a request, and responds with two bytes.
    settings.load.pipeline = 1;
    settings.workload = Workload::File(amped_units::Bytes(2));
    settings.path = None;
    settings.limits = Limits::default();
    settings.profile = false;
    let mut clients = Clients::default();
    for step in steps {
        let mut tried = try_step(environment, fleet, &settings, step, resolved.seed, stop)?;
        // Other processes may use the machine for a moment: only a rate that is missed in every attempt is too high.
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

/// Maximum attempts at a step.
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
        // The load generator's own reason why it cannot generate this load at all.
        Ok(Ok(Err(why))) => why,
        Ok(Err(why)) => return Err(Failure::failed(why)),
        Err(_) if stop.is_stopped() => return Err(interrupted()),
        Err(failure) if fleet.is_none_or(|fleet| fleet.borrow().has_lost()) => return Err(failure),
        Err(failure) => failure.to_string(),
    };
    Ok(ClientStep { why: vec![why], ..ClientStep::of(step) })
}
