//! Load at rising rates beside the monitor, without an experiment file. The load generator and the monitor run as
//! processes of their own, as they do when started by hand, and the result is an archive like that of an experiment.
//!
//! In a run the monitor starts and samples the server at rest, then the load runs, then
//! both end. Rates rise within each repetition, so that the after-effects of an overload
//! do not affect a lower rate, and a pause separates the runs.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use ammeter_load::drive::Stop;
use ammeter_load::outcome::Outcome;
use ammeter_monitor::groups_of;
use amped_measure::{Failure, Validity, Verdict};
use serde::Deserialize;

use super::PATH;
use super::observe::CLIENT_LIMITS;
use crate::archive::{
    self, Archive, Arm, Check, FORM, Figure, HostUse, Plan, Planned, Resolved, Run, RunStatus, Step, Summary, name,
};
use crate::environment::{self, Running, Streams};
use crate::run::{END, Loaded, Seen, Snapshot, await_samples, micros, monitor, now_s};
use crate::subject::{identity, own_program};

/// The settings of a ladder.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    /// The URL to load.
    pub(crate) url: String,
    /// The processes to watch, as arguments for the monitor.
    pub(crate) target: Vec<String>,
    /// The loads, in rising order.
    pub(crate) steps: Vec<Step>,
    /// Duration of the load in each run.
    pub(crate) duration: Duration,
    /// Pause between runs.
    pub(crate) pause: Duration,
    /// Number of runs at each load.
    pub(crate) repeat: u32,
    /// Sampling interval of the monitor.
    pub(crate) interval: Duration,
    /// Seed for the arrival times.
    pub(crate) seed: u64,
    /// Further arguments for the load generator.
    pub(crate) load: Vec<String>,
    /// Arguments for the emulated path between clients and server; empty for no path.
    pub(crate) path: Vec<String>,
    /// The directory of the archive; it must not exist.
    pub(crate) dir: PathBuf,
}

/// Number of monitor samples at rest before the load.
const LOOKS_AT_REST: u32 = 5;
/// Maximum time of a load beyond its own duration: its flags may include any timeout.
const PATIENCE: Duration = Duration::from_secs(3600);
/// Maximum share of throttled periods in the clients' own CPU quota.
const THROTTLED_MAX: f64 = 0.1;

/// Makes all runs and their archive; reports each to `tell`. If stopped, it keeps the complete runs. On failure it
/// removes the directory, which would block the next attempt.
///
/// # Errors
/// If the directory cannot be created, a program cannot be started, the server cannot be watched, no response was correct,
/// or it was stopped before the first run was complete.
pub(crate) fn climb(settings: &Settings, stop: &Stop, tell: &dyn Fn(&str)) -> Result<Archive, Failure> {
    let dir = &settings.dir;
    fs::create_dir(dir).map_err(|error| {
        Failure::usage(format!(
            "cannot create the directory {} for the archive: {error}; name another with --out",
            dir.display()
        ))
    })?;
    let climbed = climb_in(settings, stop, tell);
    if climbed.is_err() {
        // `create_dir` above created the directory, so it holds no other files.
        let _ = fs::remove_dir_all(dir);
    }
    climbed
}

fn climb_in(settings: &Settings, stop: &Stop, tell: &dyn Fn(&str)) -> Result<Archive, Failure> {
    let dir = &settings.dir;
    fs::create_dir(dir.join(name::RUNS))
        .map_err(Failure::io(format_args!("create a directory in {}", dir.display())))?;
    let blocks = 1..=settings.repeat;
    let planned = |block: u32| {
        settings.steps.iter().map(move |step| Planned {
            id: format!("{block}-{ARM}-{}", step.value()),
            block,
            arm: ARM.to_owned(),
            step: *step,
            seed: settings.seed.wrapping_add(u64::from(block)),
        })
    };
    let runs: Vec<Planned> = blocks.flat_map(planned).collect();
    let expected_s = (settings.duration + settings.pause + settings.interval * LOOKS_AT_REST).as_secs_f64();
    let plan = Plan { expected_s: expected_s * runs.len() as f64, runs };
    archive::write(&dir.join(name::RESOLVED), &resolved(settings)?)?;
    let path = match &settings.path[..] {
        [] => "clients and server share this machine".to_owned(),
        words => format!("clients behind: ammeter wan {}", words.join(" ")),
    };
    archive::write(&dir.join(name::HOST), &environment::host(vec![path])?)?;
    archive::write(&dir.join(name::PLAN), &plan)?;
    tell(&format!("{} runs, about {:.0} s", plan.runs.len(), plan.expected_s));
    let (mut is_answered, mut complaint) = (false, String::new());
    for planned in &plan.runs {
        if stop.is_stopped() {
            break;
        }
        let folder = dir.join(name::RUNS).join(&planned.id);
        // The directory has another name until it is complete.
        let part = folder.with_extension("part");
        fs::create_dir(&part).map_err(Failure::io(format_args!("create {}", part.display())))?;
        let result = make(settings, planned, &part, stop);
        if stop.is_stopped() {
            let _ = fs::remove_dir_all(&part);
            break;
        }
        let (run, verdict) = result?;
        archive::write(&part.join(name::RUN), &run)?;
        fs::rename(&part, &folder).map_err(Failure::io(format_args!("rename {}", part.display())))?;
        let summary = run.summary.unwrap_or_default();
        is_answered |= summary.ok > 0;
        complaint = verdict.to_string();
        tell(&format!(
            "{:>10}  offered {:>9.1}/s  completed {:>9.1}/s  failed {:>6}  p50 {:>8} ms  {}",
            planned.step.value(),
            summary.offered_rate,
            summary.window.completed_rate,
            summary.failed,
            summary.latency.p50_ms,
            verdict
        ));
        thread::sleep(settings.pause);
    }
    if complaint.is_empty() && stop.is_stopped() {
        return Err(Failure::failed("interrupted before the first run was complete; there is no result"));
    }
    if !is_answered {
        return Err(Failure::failed(format!("no correct response at any load: {complaint}")));
    }
    Archive::open(dir)
}

/// The only arm.
const ARM: &str = "a0";

/// Makes a run with its files in `part`; returns it and the load generator's verdict.
fn make(settings: &Settings, planned: &Planned, part: &Path, stop: &Stop) -> Result<(Run, Verdict), Failure> {
    let mut run = Run::begun(planned.clone(), now_s());
    let record = part.join(name::MONITOR);
    let mut monitor =
        monitor(vec![own_program()?.display().to_string()], &settings.target, settings.interval, "20%", part)?;
    watched(&record, &mut monitor, settings, stop)?;
    thread::sleep(settings.interval * LOOKS_AT_REST);
    let (quota_before, before) = (throttled(), Snapshot::take(None, None)?);
    let (said, path) = load(settings, planned.step, planned.seed, part, stop)?;
    let (quota_after, after) = (throttled(), Snapshot::take(None, None)?);
    watched(&record, &mut monitor, settings, stop)?;
    monitor.end(END);
    run.ended_s = now_s();
    run.load_began_s = said.began_s;
    run.load_ended_s = said.began_s + said.seconds;
    let seen = Seen::read(&record, &Loaded::between(run.load_began_s, run.load_ended_s))?;
    let mut summary = Summary::of(&said);
    (summary.server, summary.network, summary.monitor) = (seen.server(), seen.network(false), seen.figures());
    let others = said.others.as_ref().map(|others| others.share);
    summary.host = HostUse { others, ..seen.host(&before.until(&after), &summary) };
    run.summary = Some(summary);
    let (periods, spent) = (quota_after.0.saturating_sub(quota_before.0), quota_after.1.saturating_sub(quota_before.1));
    let quota =
        format!("the control group of the load generator used up its CPU quota in {spent} of {periods} periods");
    let checks = [
        (PATH, path.validity == Validity::Valid, path.evidence.join("; "), path.to_string()),
        // `diagnose` reports other processes' CPU use once for all runs.
        (
            "client",
            matches!(said.verdict.validity, Validity::Valid | Validity::Disturbed),
            said.verdict.evidence.join("; "),
            said.verdict.to_string(),
        ),
        (CLIENT_LIMITS, (spent as f64) <= THROTTLED_MAX * periods.max(1) as f64, quota.clone(), quota),
    ];
    for (name, holds, says, why) in checks {
        run.checks.push(Check { name: name.to_owned(), holds: Some(holds), says });
        run.why.extend((!holds).then_some(why));
    }
    run.status = if run.why.is_empty() { RunStatus::Valid } else { RunStatus::Censored };
    let mut verdict = said.verdict;
    path.evidence.into_iter().for_each(|line| verdict.weaken(path.validity, line));
    Ok((run, verdict))
}

/// Waits for the monitor's next samples.
///
/// # Errors
/// The monitor's own error, if it cannot watch the server; an interrupt.
fn watched(record: &Path, monitor: &mut Running, settings: &Settings, stop: &Stop) -> Result<(), Failure> {
    await_samples(record, monitor, settings.interval, stop)?;
    if monitor.ended().is_none_or(|status| status.success()) {
        return Ok(());
    }
    let text = fs::read_to_string(record.with_file_name("monitor.log")).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("ammeter: ")).unwrap_or("no error message");
    Err(Failure::failed(format!("cannot monitor the server: {line}")))
}

/// Generates a load with its files in `into`; returns its outcome, and the verdict on the path.
fn load(settings: &Settings, step: Step, seed: u64, into: &Path, stop: &Stop) -> Result<(Outcome, Verdict), Failure> {
    let own = own_program()?.display().to_string();
    let mut words: Vec<String> = vec![own.clone()];
    if !settings.path.is_empty() {
        words.extend(["wan".to_owned(), "--json".to_owned()]);
        words.extend(settings.path.iter().cloned());
        words.extend(["--".to_owned(), own]);
    }
    words.extend(["load".to_owned(), settings.url.clone(), "--json".to_owned(), "--seed".to_owned(), seed.to_string()]);
    words.extend(["--duration".to_owned(), micros(settings.duration)]);
    words.extend(match step {
        Step::Rate(rate) => ["--rate".to_owned(), rate.to_string()],
        Step::Clients(clients) => ["--clients".to_owned(), clients.to_string()],
    });
    words.extend(settings.load.iter().cloned());
    let (out, log) = (into.join(name::LOAD), into.join("load.log"));
    Running::start("the load", &words, Streams::to(Some(&out), &log)?)?.wait(settings.duration + PATIENCE, stop)?;
    let said = fs::read_to_string(&log).unwrap_or_default();
    let outcome = archive::read(&out).map_err(|_| {
        let why = said.trim().trim_start_matches("ammeter: ");
        Failure::failed(format!("`{}` ended without a result: {why}", words[1..].join(" ")))
    })?;
    Ok((outcome, verdict_of_path(&said)))
}

/// Extracts the verdict on the path, which `ammeter wan --json` prints as a line of its own on standard error. Its exit
/// status does not show it, as the load's takes precedence.
fn verdict_of_path(errors: &str) -> Verdict {
    #[derive(Deserialize)]
    struct Said {
        verdict: Verdict,
    }
    let said = errors.lines().rev().find_map(|line| serde_json::from_str::<Said>(line).ok());
    said.map_or_else(Verdict::valid, |said| said.verdict)
}

/// Correct responses per second within the window of a run without the monitor.
///
/// # Errors
/// If the run fails, or the path did not behave as requested; an interrupt.
pub(super) fn throughput(settings: &Settings, step: Step, seed: u64, stop: &Stop) -> Result<f64, Failure> {
    let folder = settings.dir.join("trial");
    fs::create_dir_all(&folder).map_err(Failure::io(format_args!("create {}", folder.display())))?;
    let loaded = load(settings, step, seed, &folder, stop);
    let _ = fs::remove_dir_all(&folder);
    let (outcome, path) = loaded?;
    if path.validity != Validity::Valid {
        return Err(Failure::failed(format!("the run has no data about the server: {path}")));
    }
    Ok(outcome.window.completed_rate)
}

/// The periods of the CPU quotas that apply to this process, and how many of them were throttled.
fn throttled() -> (u64, u64) {
    let groups = groups_of(std::process::id());
    let groups = groups.iter().filter(|limits| limits.group.quota.is_some());
    groups.fold((0, 0), |(periods, used), limits| {
        let (more, also) = (limits.group.periods, limits.group.throttled_periods);
        (periods + more.unwrap_or(0), used + also.unwrap_or(0))
    })
}

fn resolved(settings: &Settings) -> Result<Resolved, Failure> {
    let arm =
        Arm { id: ARM.to_owned(), label: settings.url.clone(), subject: settings.target.join(" "), ..Arm::default() };
    let x = settings.steps.first().map_or("rate", |step| step.axis()).to_owned();
    let y = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
    let figure = |title: &str, names: &[&str]| Figure {
        title: title.to_owned(),
        x: x.clone(),
        y: y(names),
        ..Figure::default()
    };
    Ok(Resolved {
        form: FORM,
        name: "diagnose".to_owned(),
        title: format!("Bottleneck of {}", settings.url),
        seed: settings.seed,
        repetitions: settings.repeat,
        duration_s: settings.duration.as_secs_f64(),
        interval_ms: settings.interval.as_secs_f64() * 1e3,
        requests_per_connection: 1,
        arms: vec![arm],
        steps: settings.steps.clone(),
        figures: vec![
            figure("Throughput", &["offered-rate", "rate"]),
            figure("Latency", &["p50", "p99"]),
            figure("CPU of the server", &["server-cpu"]),
        ],
        programs: BTreeMap::from([("ammeter".to_owned(), identity(&own_program()?, "--version"))]),
        began_s: now_s(),
        ..Resolved::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn path_verdict_is_parsed_from_other_output() {
        let check =
            |errors: &str, expected: &str| assert_eq!(verdict_of_path(errors).to_string(), expected, "{errors}");
        check("", "valid");
        check("ammeter: 80 begun\n{}\n{\"verdict\":1}\n", "valid");
        let line = r#"{"report":{},"verdict":{"validity":"path-bound","evidence":["9 packets were late"],"broken":[]},"exit_status":125}"#;
        check(&format!("ammeter: 80 begun\n{line}\nlast\n"), "path-bound: 9 packets were late");
    }
}
