//! Makes the runs of an experiment where it says: on this machine (`run.rs`), or on the hosts that it names (`hosts`). Either way
//! a run is in the archive when it is over. Before the first, the clients are tried against a server that does nothing, in the
//! same place.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::Duration;

use ammeter_load::drive::Stop;
use amped_measure::Failure;

use crate::archive::{self, Block, ClientStep, Clients, Planned, Resolved, Run, Step, name};
use crate::environment::TestEnvironment;
use crate::experiment::{Limits, Settings, Workload};
use crate::hosts::Fleet;
use crate::plan;
use crate::run::{self, Order};
use crate::subject::{Kind, Subject};

/// What all runs of an experiment have in common.
pub(crate) struct Lab<'a> {
    /// The place.
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
            Some(fleet) => fleet.borrow_mut().look_at_rest(&self.resolved.rules, self.stop)?,
            None => run::look_at_rest(&self.resolved.rules, self.stop)?,
        };
        Ok(Block { block, ..found })
    }
}

/// Makes one run: its directory is in the archive when this returns.
///
/// # Errors
/// When it could not be made at all: no program, no disk, an interrupt. A server that fails is a result, and no error.
pub(crate) fn make(
    Lab { environment, fleet, dir, resolved, clients, stop }: &Lab<'_>,
    settings: &Settings,
    planned: &Planned,
    block: &Block,
) -> Result<Run, Failure> {
    let runs = dir.join(name::RUNS);
    let into = runs.join(format!(".{}", planned.id));
    let _ = fs::remove_dir_all(&into);
    fs::create_dir_all(&into).map_err(Failure::io(format_args!("make {}", into.display())))?;
    let order = Order {
        settings: settings.clone(),
        planned: planned.clone(),
        rules: resolved.rules.clone(),
        seed: resolved.seed,
        interval: Duration::from_secs_f64(resolved.interval_ms / 1e3),
        clients: clients.steps.iter().find(|step| step.step == planned.step).cloned(),
        idle: Some((block.is_clean, block.busy)),
        into: into.clone(),
    };
    let run = match fleet {
        Some(fleet) => fleet.borrow_mut().work(&order, stop)?,
        None => run::work(environment, &order, stop)?,
    };
    archive::write(&into.join(name::RUN), &run)?;
    let to = runs.join(&planned.id);
    fs::rename(&into, &to).map_err(Failure::io(format_args!("name {}", to.display())))?;
    Ok(run)
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
    settings.subject = Subject {
        name: "null".to_owned(),
        kind: Kind::Null,
        program: None,
        start: Vec::new(),
        config: String::new(),
        settings: BTreeMap::new(),
    };
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
    let duration = Duration::from_secs_f64(plan::CLIENTS_S);
    let tried = match fleet {
        Some(fleet) => fleet.borrow_mut().trial(settings, step, duration, seed, stop)?,
        None => run::trial(environment, settings, step, duration, seed, stop)?,
    };
    Ok(match tried {
        Ok(outcome) => ClientStep::measured(step, &outcome),
        Err(why) => ClientStep { why: vec![why], ..ClientStep::of(step) },
    })
}
