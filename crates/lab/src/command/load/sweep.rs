//! Runs at several rates: a sweep, the capacity that it finds, and the calibration of this machine.

use std::collections::VecDeque;

use ammeter_load::condition::Condition;
use ammeter_load::drive::{Settings, Stop};
use ammeter_load::knee;
use ammeter_load::outcome::{Loop, Outcome};
use ammeter_load::window::Pace;
use amped_measure::{Failure, Validity, Verdict};
use serde::Serialize;

use super::args::{Args, Sweep};
use super::ears::{Ears, pause};
use super::html;
use super::setup::Setup;
use super::single::{RATE_MAX, beside, open};
use super::summary::Swept;
use crate::say;

pub(super) fn run_sweep(args: &Args, setup: &Setup, sweep: Sweep, stop: &Stop) -> Result<Verdict, Failure> {
    let mut runs: Vec<Outcome> = Vec::new();
    let mut verdict = Verdict::valid();
    let pool = setup.park(args, stop)?;
    let ears = Ears::new(args, setup, stop)?;
    // Texts that a screen would cover are printed after it.
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
        "{}\n{:>9}{:>10}{:>12}{:>9}{:>8}{:>9}{:>9}{:>9}{:>10}  verdict",
        setup.shown,
        "target/s",
        "offered/s",
        "completed/s",
        "backlog",
        "failed",
        "p50 ms",
        "p99 ms",
        "late p99",
        "client us"
    ))?;
    // A single run at a rate may be luck.
    let repeat = args.repeat.unwrap_or(if args.find_capacity { 3 } else { 1 });
    let mut planned: VecDeque<(f64, u32)> =
        (0..repeat).flat_map(|repetition| sweep.rates().map(move |rate| (rate, repetition))).collect();
    loop {
        if planned.is_empty() && args.find_capacity {
            planned.extend(more(&runs, args.slo.as_ref()));
        }
        let Some((rate, repetition)) = planned.pop_front() else { break };
        if !runs.is_empty() {
            pause(args.pause, stop);
        }
        if stop.is_stopped() {
            break;
        }
        // The same arrivals at a rate would repeat the same luck.
        let seed = setup.seed.wrapping_add(u64::from(repetition));
        let outcome = beside(args, setup, pool.as_ref(), || open(args, setup, rate, seed, stop, &ears))?;
        tell(format!(
            "{rate:>9}{:>10}{:>12}{:>9}{:>8}{:>9}{:>9}{:>9}{:>10.1}  {}{}",
            outcome.window.offered_rate,
            outcome.window.completed_rate,
            outcome.window.backlog,
            outcome.unserved(),
            outcome.latency.p50_ms,
            outcome.latency.p99_ms,
            outcome.lateness.p99_ms,
            outcome.cpu_us(),
            if outcome.window.pace == Pace::FellBehind { "the server fell behind; " } else { "" },
            outcome.verdict
        ))?;
        ears.judge(&outcome.verdict);
        verdict.broken.extend(outcome.verdict.broken.iter().map(|line| format!("at {rate}/s: {line}")));
        for condition in &args.fail_if {
            verdict.broken.extend(condition.holds(&outcome).map(|line| format!("at {rate}/s: {line}")));
        }
        runs.push(outcome);
    }
    let logged = ears.end();
    covered.into_iter().try_for_each(|text| say::out(&text))?;
    let capacity = args.find_capacity.then(|| knee::capacity(&runs, args.slo.as_ref())).flatten();
    match &capacity {
        Some(found) => {
            if let Some(why) = &found.at_least {
                verdict.weaken(Validity::AtLeast, why.clone());
            }
            if !args.json {
                say::out(&format!("capacity    {found}"))?;
            }
        }
        None if args.find_capacity => judge_without_capacity(&mut verdict, &runs, args.slo.as_ref(), stop.is_stopped()),
        None => judge(&mut verdict, &runs),
    }
    let swept = Swept { runs, capacity, verdict };
    let page = html::write(args, setup, |head| html::sweep(head, &swept));
    if args.json { say::json(&swept) } else { say::out(&format!("verdict     {}", swept.verdict)) }?;
    logged.and(page).map(|()| swept.verdict)
}

/// Adds to the verdict of a sweep that looks for no capacity whether its runs say anything about the server.
fn judge(verdict: &mut Verdict, runs: &[Outcome]) {
    if runs.iter().all(|run| run.ok == 0) {
        verdict.broken.push("no correct response at any rate".to_owned());
    } else if runs.iter().all(|run| run.verdict.validity == Validity::ClientBound) {
        verdict.weaken(Validity::ClientBound, "the client did not keep its schedule in any run");
    }
}

/// Adds to the verdict why no capacity was found: the sweep was interrupted, the server did not sustain the lowest
/// rate, or too few runs at that rate were valid.
fn judge_without_capacity(verdict: &mut Verdict, runs: &[Outcome], slo: Option<&Condition>, is_interrupted: bool) {
    const LOWER: &str = "start --sweep at a lower rate";
    let broken = match knee::lowest(runs, slo) {
        _ if is_interrupted => {
            "interrupted before any rate was sustained in a valid run, so the capacity is unknown".to_owned()
        }
        Some((rate, runs)) if runs.valid >= knee::Runs::MIN => {
            format!("no rate was sustained: {rate}/s in {runs}; {LOWER}")
        }
        lowest => {
            let valid = lowest.map_or(0, |(_, runs)| runs.valid);
            let why = format!(
                "the capacity is unknown: the lowest rate has {valid} valid runs, and {} are needed; {LOWER}",
                knee::Runs::MIN
            );
            return verdict.weaken(Validity::ClientBound, why);
        }
    };
    verdict.broken.push(broken);
}

/// One more run at each rate that decides about the capacity and lacks valid runs, up to a limit per rate.
fn more(runs: &[Outcome], slo: Option<&Condition>) -> Vec<(f64, u32)> {
    const ATTEMPTS: u32 = 2 * knee::Runs::MIN as u32;
    let is_of = |run: &Outcome, rate: f64| matches!(run.load, Loop::Open { rate: of, .. } if of == rate);
    let made = |rate: f64| runs.iter().filter(|run| is_of(run, rate)).count() as u32;
    let lacking = knee::lacking(runs, slo).into_iter().map(|rate| (rate, made(rate)));
    lacking.filter(|(_, made)| *made < ATTEMPTS).collect()
}

/// The limit of one generator on this machine.
#[derive(Serialize)]
struct Calibration {
    /// Pairs of runs at rising rates: one generator, then two with the same load.
    runs: Vec<[Outcome; 2]>,
    /// The highest rate up to which one generator kept its schedule and received as many
    /// replies as two, in connections per second.
    kept: f64,
    verdict: Verdict,
}

/// Banga and Druschel, section 4.2: a generator's limit is where its curve leaves that of two generators that share the
/// load. Below it, the server is measured.
pub(super) fn calibrate(args: &Args, setup: &Setup, stop: &Stop) -> Result<Verdict, Failure> {
    /// Share of the replies of two generators that one may lack.
    const LACK: f64 = 0.02;
    /// A neighbour may disturb the machine briefly: only a rate that fails this often is too high.
    const ATTEMPTS: usize = 3;
    let mut found = Calibration { runs: Vec::new(), kept: 0.0, verdict: Verdict::valid() };
    let two = Setup { settings: Settings { lanes: 2, ..setup.settings.clone() }, ..setup.clone() };
    if !args.json {
        say::out(&format!(
            "{:>10}{:>14}{:>14}{:>12}{:>14}{:>12}  verdict of one generator",
            "target/s", "one offered/s", "one completed", "late p99", "two completed", "client us"
        ))?;
    }
    let ears = Ears::new(args, setup, stop)?;
    let (mut rate, mut attempts) = (1000.0, 0);
    while rate <= RATE_MAX && !stop.is_stopped() {
        let of = |setup: &Setup| open(args, setup, rate, setup.seed, stop, &ears);
        let pair = [of(setup)?, of(&two)?];
        let [one, both] = &pair;
        if !args.json {
            say::out(&format!(
                "{rate:>10}{:>14}{:>14}{:>12}{:>14}{:>12.1}  {}",
                one.window.offered_rate,
                one.window.completed_rate,
                one.lateness.p99_ms,
                both.window.completed_rate,
                one.cpu_us(),
                one.verdict
            ))?;
        }
        // A partial run is no evidence.
        if stop.is_stopped() {
            break;
        }
        let [rate_of_one, rate_of_both] = [one, both].map(|run| run.window.completed_rate);
        let keeps = one.verdict.validity == Validity::Valid
            && rate_of_one >= rate_of_both * (1.0 - LACK)
            && one.unserved() == 0;
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
        found.verdict.broken.push("interrupted before the first rate was complete".to_owned());
    } else if found.kept == 0.0 {
        found.verdict.weaken(
            Validity::ClientBound,
            "the load generator could not sustain 1000 connections/s; stop other \
                 programs and retry",
        );
    }
    if args.json {
        say::json(&found)?;
    } else {
        say::out(&format!(
            "one generator sustains {} connections/s on this machine, with the server on the same machine",
            found.kept
        ))?;
        say::out(&format!("verdict     {}", found.verdict))?;
    }
    Ok(found.verdict)
}
