//! `ammeter load` from the flags to a result: one run or several, and the output.

use std::sync::PoisonError;

use ammeter_load::drive::{self, Stop, Target};
use ammeter_load::null::Null;
use ammeter_load::outcome::{Loop, Outcome};
use ammeter_load::parts::Parts;
use ammeter_load::schedule::{self, Arrivals};
use ammeter_load::tally::Fault;
use ammeter_load::workload::log::Spacing;
use amped_measure::{Failure, Verdict};

use super::args::{Args, check_paths};
use super::ears::Ears;
use super::setup::Setup;
use super::single::{beside, open};
use super::summary::summary;
use super::sweep::{calibrate, run_sweep};
use super::{hosts, html};
use crate::{archive, say, terminal};

pub(crate) fn run(args: &Args) -> Result<Verdict, Failure> {
    if args.calibrate {
        let stop = Stop::on_signals(terminal::restore)?;
        let server = Null::start()?;
        return calibrate(args, &Setup::new(args, &format!("http://{}/", server.address()))?, &stop);
    }
    check_paths(args)?;
    let setup = Setup::new(args, args.url.as_deref().unwrap_or_default())?;
    // Before any thread starts.
    let stop = Stop::on_signals(terminal::restore)?;
    if !args.hosts.is_empty() {
        match args.clients {
            Some(clients) => check_closed(args, clients)?,
            None => _ = offered_rate(args)?,
        }
        return hosts::run(args, &setup, &stop, |outcome| judge(args, &setup, outcome));
    }
    match (args.sweep, args.clients) {
        (Some(sweep), _) => run_sweep(args, &setup, sweep, &stop),
        (None, Some(clients)) => {
            check_closed(args, clients)?;
            let Setup { settings, plan, .. } = &setup;
            let all = clients;
            let clients = args.slice.share(all as u64) as usize;
            if clients == 0 {
                return Err(Failure::usage(format!(
                    "slice {} has none of the {all} clients; give more --clients, or fewer slices",
                    args.slice
                )));
            }
            let pool = setup.park(args, &stop)?;
            let ears = Ears::new(args, &setup, &stop)?;
            ears.begin(&format!("{}  CLOSED loop, {clients} clients", setup.shown), args.duration())?;
            let (think, length) = (args.think_time, args.duration());
            let outcome = beside(args, &setup, pool.as_ref(), || {
                drive::closed(settings, plan, clients, think, length, &stop, &|second| ears.hear(second))
            })?;
            tell(args, &setup, outcome, ears)
        }
        (None, None) => {
            let rate = offered_rate(args)?;
            let pool = setup.park(args, &stop)?;
            let ears = Ears::new(args, &setup, &stop)?;
            let outcome = beside(args, &setup, pool.as_ref(), || open(args, &setup, rate, setup.seed, &stop, &ears))?;
            tell(args, &setup, outcome, ears)
        }
    }
}

/// Checks the load of a closed loop.
fn check_closed(args: &Args, clients: usize) -> Result<(), Failure> {
    if clients == 0 {
        return Err(Failure::usage("--clients must be at least 1"));
    }
    if args.duration().is_zero() {
        return Err(Failure::usage(schedule::NO_LENGTH));
    }
    Ok(())
}

/// Returns the rate of an open loop; 0: that of the recorded times.
fn offered_rate(args: &Args) -> Result<f64, Failure> {
    Ok(match (args.rate, &args.arrivals) {
        (Some(rate), _) => rate,
        (None, Arrivals::File(_)) => 0.0,
        (None, _) if args.replay.is_some() && args.speed != Spacing::Max => 0.0,
        (None, _) => {
            return Err(Failure::usage(
                "no load given; write --rate N (connections per second), --clients N (a closed loop) or \
                 --sweep A..B/STEP",
            ));
        }
    })
}

/// Adds to the verdict which conditions do not hold, and why no response was correct.
fn judge(args: &Args, setup: &Setup, outcome: &mut Outcome) {
    let broken: Vec<String> = args.fail_if.iter().filter_map(|condition| condition.holds(outcome)).collect();
    outcome.verdict.broken.extend(broken);
    if outcome.ok == 0 && outcome.interrupted {
        outcome.verdict.broken.push("interrupted before the first correct response".to_owned());
    } else if outcome.ok == 0 {
        let place = match &setup.settings.target {
            Target::Tcp(address) => address.to_string(),
            Target::Unix(path) => path.display().to_string(),
        };
        let most = outcome.failures.iter().max_by_key(|(_, count)| *count).map(|(fault, _)| *fault);
        outcome.verdict.broken.push(match (&outcome.tls, most) {
            _ if outcome.planned == 0 && matches!(outcome.load, Loop::Open { .. }) => {
                "no connection is scheduled in so short a time at so low a rate; give a \
                 longer --duration or a higher --rate"
                    .to_owned()
            }
            (Some(why), _) => format!("no correct response: {why}"),
            (None, Some(Fault::Status | Fault::Length | Fault::Content)) => {
                format!("no correct response, only failures: inspect one (curl -i {})", setup.url)
            }
            (None, Some(Fault::Malformed)) if outcome.stray > 0 => {
                format!(
                    "no correct response: bodies are longer than Content-Length; inspect one (curl -i {})",
                    setup.url
                )
            }
            (None, Some(fault)) if outcome.established > 0 => {
                let scheme = setup.url.split("://").next().unwrap_or_default();
                let scheme = if args.http2 { "HTTP/2" } else { scheme };
                format!(
                    "no correct response; connections were established ({}): does {place} speak {scheme}?",
                    fault.name()
                )
            }
            (None, _) => format!("no correct response; is a web server listening at {place}?"),
        });
    }
}

/// Prints a result, with failed conditions in its verdict. An output that cannot
/// be written does not prevent the others.
fn tell(args: &Args, setup: &Setup, mut outcome: Outcome, ears: Ears) -> Result<Verdict, Failure> {
    judge(args, setup, &mut outcome);
    ears.judge(&outcome.verdict);
    if let (Some(path), Some(kept)) = (&args.parts, &ears.kept) {
        let seconds = std::mem::take(&mut *kept.lock().unwrap_or_else(PoisonError::into_inner));
        let parts = Parts::new(&outcome, seconds);
        if path.as_os_str() == "-" {
            say::json(&parts)?;
            return Ok(outcome.verdict);
        }
        archive::write_bytes(path, say::as_json(&parts)?.as_bytes())?;
    }
    let logged = ears.end();
    let page = html::write(args, setup, |head| Some(html::run(head, &outcome)));
    if args.json { say::json(&outcome) } else { say::out(&summary(&setup.shown, &outcome)) }?;
    logged.and(page).map(|()| outcome.verdict)
}
