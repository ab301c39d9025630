//! Converts a run of an archive into the input of `analyse`: the clients'
//! figures, and the monitor's windows before and under load.

use ammeter_load::outcome::Outcome;
use ammeter_load::window::Pace;
use ammeter_monitor::{Sample, Tick};
use amped_measure::Failure;

use crate::analyse::{Bound, Observed};
use crate::archive::{self, Archive, Run, RunStatus, Summary, name};

/// Margin between the load and the windows before it: the clocks of two
/// programs differ, and a window may straddle the start.
const MARGIN_S: f64 = 0.05;

/// Reads a run.
///
/// # Errors
/// If its files are damaged. A run without a monitor record has no windows.
pub(crate) fn observe(archive: &Archive, run: &Run) -> Result<Observed, Failure> {
    let summary = run.summary.clone().unwrap_or_default();
    let load = archive.load(&run.plan.id)?;
    // An overloaded server still works on requests of the warm-up after its end.
    let warm_up = archive.file(&run.plan.id, name::WARM_UP);
    let asked_from_s = match warm_up.exists() {
        true => archive::read::<Outcome>(&warm_up)?.began_s,
        false => run.load_began_s,
    };
    let idle_until_s = asked_from_s - MARGIN_S;
    let ended_s = run.load_began_s + summary.seconds;
    let mut observed = Observed {
        target_rate: run.plan.step.value(),
        offered: summary.target_rate.map_or(run.plan.step.value(), |_| summary.offered_rate),
        is_closed: summary.target_rate.is_none(),
        throughput: summary.window.completed_rate,
        backlog: (summary.window.pace == Pace::FellBehind).then_some(summary.window.backlog),
        client: client(run, &summary, (load.planned, load.started)),
        latency_s: (summary.latency.count > 0).then_some(summary.latency.p50_ms / 1e3),
        ..Observed::default()
    };
    // Scaled by the bytes per response: the bytes received in all, over
    // the schedule's time, would include those that came after it.
    observed.received_bytes_per_s = observed.throughput * summary.received_bytes as f64 / (summary.ok as f64).max(1.0);
    if !archive.file(&run.plan.id, name::MONITOR).exists() {
        return Ok(observed);
    }
    // Times are by the clock of the server's host, if that is another machine.
    let ahead_s = archive.hosts(&run.plan.id)?.first().map_or(0.0, |server| server.clock.offset_s);
    let wall_s = |sample: &Sample| sample.wall_ms as f64 / 1e3 - ahead_s;
    let mut last: Option<Sample> = None;
    for sample in archive.samples(&run.plan.id)? {
        if let Some(from) = &last
            && let Some(tick) = Tick::between(from, &sample)
        {
            if wall_s(&sample) <= idle_until_s {
                observed.before.push(tick);
            } else if wall_s(from) >= run.load_began_s + MARGIN_S && wall_s(&sample) <= ended_s {
                observed.under.push(tick);
            }
        }
        last = Some(sample);
    }
    Ok(observed)
}

/// Why a run is client-bound, if it is. `planned` and `started` count the connections of the schedule, which random
/// arrivals make more or fewer than the rate implies, and the connections opened.
fn client(run: &Run, summary: &Summary, (planned, started): (u64, u64)) -> Option<Bound> {
    const BEGUN_MIN: f64 = 0.95;
    let ended = (summary.ok as f64 + summary.failed as f64).max(1.0);
    let own: u64 = ["local", "unsent"].iter().filter_map(|name| summary.failures.get(*name)).sum();
    let broken = |names: &[&str]| {
        let check = run.checks.iter().find(|check| check.holds == Some(false) && names.contains(&&check.name[..]));
        check.map(|check| check.says.clone())
    };
    let certain = match summary.target_rate {
        Some(_) if (started as f64) < BEGUN_MIN * planned as f64 => {
            Some(format!("only {started} of {planned} scheduled connections were started"))
        }
        _ if own as f64 > 0.01 * ended => Some(format!(
            "{own} connections failed at the client for lack of a port or descriptor, or started too late"
        )),
        _ => broken(&[CLIENT_LIMITS]),
    };
    if let Some(why) = certain {
        return Some(Bound { why, is_certain: true });
    }
    let late = (run.status != RunStatus::Valid).then(|| broken(&["client", "clients"])).flatten();
    late.map(|why| Bound { why, is_certain: false })
}

/// The name of the check that the clients' own CPU quota did not throttle them.
pub(crate) const CLIENT_LIMITS: &str = "client-limits";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::archive::{Check, FORM, Planned, Step};

    #[test]
    fn missing_connections_are_client_bound_and_lateness_alone_is_not() {
        let run = |checks: &[(&str, bool)]| Run {
            form: FORM,
            plan: Planned { id: "1-a0-100".into(), block: 1, arm: "a0".into(), step: Step::Rate(100.0), seed: 1 },
            began_s: 0.0,
            load_began_s: 1.0,
            load_ended_s: 2.0,
            ended_s: 2.0,
            status: RunStatus::Censored,
            why: Vec::new(),
            checks: checks
                .iter()
                .map(|(name, holds)| Check { name: (*name).into(), holds: Some(*holds), says: (*name).into() })
                .collect(),
            summary: None,
        };
        let summary = |offered_rate| Summary { target_rate: Some(100.0), offered_rate, ok: 90, ..Summary::default() };
        let begun = |checks: &[(&str, bool)], summary: Summary, counts, expected: Option<bool>| {
            let found = client(&run(checks), &summary, counts).map(|bound| bound.is_certain);
            assert_eq!(found, expected, "{checks:?} {summary:?} {counts:?}");
        };
        let check = |checks: &[(&str, bool)], summary, expected| begun(checks, summary, (100, 100), expected);
        // A short schedule with random arrivals may plan fewer connections than the rate implies.
        begun(&[], summary(92.0), (92, 92), None);
        begun(&[], summary(85.0), (92, 85), Some(true));
        // A closed loop plans no connections.
        begun(&[], summary(100.0), (0, 0), None);
        check(&[], summary(100.0), None);
        check(&[("client", true), ("server", false)], summary(100.0), None);
        check(&[("client", false)], summary(100.0), Some(false));
        check(&[("client-limits", false)], summary(100.0), Some(true));
        let mut without_ports = summary(100.0);
        without_ports.failures.insert("local".into(), 5);
        check(&[], without_ports, Some(true));
    }
}
