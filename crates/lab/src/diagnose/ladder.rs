//! Load at rising rates beside the monitor, without an experiment's file. The load generator and the monitor run as
//! processes of their own, as they do when started by hand, and the result is an archive like that of an experiment.
//!
//! In a run the monitor starts and samples the server at rest, then the load runs, then
//! both end. Rates rise within each repetition, so that the after-effects of an overload
//! do not affect a lower rate, and a pause separates the runs.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use ammeter_load::drive::Stop;
use ammeter_load::outcome::Outcome;
use ammeter_monitor::groups_of;
use ammeter_monitor::source::Memory;
use amped_measure::host::{Machine, load_average};
use amped_measure::{Failure, Validity, Verdict};
use amped_sys::process;
use serde::Deserialize;

use super::PATH;
use super::observe::CLIENT_LIMITS;
use crate::archive::{
    self, Archive, Arm, Check, FORM, Figure, Host, HostUse, Plan, Planned, Program, Resolved, Rules, Run, RunStatus,
    Step, Summary, name,
};
use crate::run::{Seen, Snapshot, now_s};

/// The settings of a ladder.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    /// The URL to load.
    pub(crate) url: String,
    /// The processes to watch, as arguments for the monitor.
    pub(crate) whom: Vec<String>,
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
    /// The folder of the archive; it must not exist.
    pub(crate) dir: PathBuf,
}

/// Number of monitor samples at rest before the load.
const LOOKS_AT_REST: u32 = 5;
/// Time for which the load generator measures other processes before it starts.
const LOAD_AT_REST: Duration = Duration::from_millis(250);
/// Timeout for the monitor to start.
const PATIENCE: Duration = Duration::from_secs(30);
/// Maximum share of throttled periods in the clients' own CPU quota.
const THROTTLED_MAX: f64 = 0.1;

/// Makes all runs and their archive; reports each to `tell`. If stopped, it keeps the complete runs. On failure it
/// removes the folder, which would block the next attempt.
///
/// # Errors
/// If the folder cannot be created, a program cannot be started, the server cannot be watched, no response was correct,
/// or it was stopped before the first run was complete.
pub(crate) fn climb(settings: &Settings, stop: &Stop, tell: &dyn Fn(&str)) -> Result<Archive, Failure> {
    let dir = &settings.dir;
    fs::create_dir(dir).map_err(|error| {
        Failure::usage(format!(
            "cannot make the folder {} for the archive: {error}; name another with --out",
            dir.display()
        ))
    })?;
    let climbed = climb_in(settings, stop, tell);
    if climbed.is_err() {
        // `create_dir` above created the folder, so it holds no other files.
        let _ = fs::remove_dir_all(dir);
    }
    climbed
}

fn climb_in(settings: &Settings, stop: &Stop, tell: &dyn Fn(&str)) -> Result<Archive, Failure> {
    let dir = &settings.dir;
    fs::create_dir(dir.join(name::RUNS)).map_err(Failure::io(format_args!("make a folder in {}", dir.display())))?;
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
    archive::write(&dir.join(name::HOST), &host(settings)?)?;
    archive::write(&dir.join(name::PLAN), &plan)?;
    tell(&format!("{} runs, about {:.0} s", plan.runs.len(), plan.expected_s));
    let (mut is_answered, mut complaint) = (false, String::new());
    for planned in &plan.runs {
        if stop.is_stopped() {
            break;
        }
        let made = make(settings, planned);
        if stop.is_stopped() {
            // Ctrl-C also reaches the programs of a run: this run is incomplete, whatever they report.
            let folder = dir.join(name::RUNS).join(&planned.id);
            let _ = fs::remove_dir_all(&folder);
            let _ = fs::remove_dir_all(folder.with_extension("part"));
            break;
        }
        let made = made?;
        let summary = made.run.summary.clone().unwrap_or_default();
        is_answered |= summary.ok > 0;
        complaint = made.verdict.to_string();
        tell(&format!(
            "{:>10}  offered {:>9.1}/s  completed {:>9.1}/s  failed {:>6}  p50 {:>8} ms  {}",
            planned.step.value(),
            summary.offered_rate,
            summary.window.completed_rate,
            summary.failed,
            summary.latency.p50_ms,
            made.verdict
        ));
        thread::sleep(settings.pause);
    }
    if complaint.is_empty() && stop.is_stopped() {
        return Err(Failure::failed("interrupted before the first run was whole, so there is nothing to look at"));
    }
    if !is_answered {
        return Err(Failure::failed(format!("no correct response at any load: {complaint}")));
    }
    Archive::open(dir)
}

/// The only arm.
const ARM: &str = "a0";

/// A finished run and the load generator's verdict.
struct Made {
    run: Run,
    verdict: Verdict,
}

fn make(settings: &Settings, planned: &Planned) -> Result<Made, Failure> {
    let folder = settings.dir.join(name::RUNS).join(&planned.id);
    // The folder has another name until it is complete.
    let part = folder.with_extension("part");
    fs::create_dir(&part).map_err(Failure::io(format_args!("make {}", part.display())))?;
    let began_s = now_s();
    // The load generator, too, samples the machine at rest before it starts.
    let length = settings.interval * LOOKS_AT_REST + LOAD_AT_REST + settings.duration + settings.interval * 4;
    let mut monitor = Watch::begin(settings, &part, length)?;
    monitor.wait_for_record(&part.join(name::MONITOR))?;
    thread::sleep(settings.interval * LOOKS_AT_REST);
    let (quota_before, before) = (throttled(), Snapshot::take(None, None)?);
    let Loaded { text, path } = load(settings, planned.step, planned.seed)?;
    let (quota_after, after) = (throttled(), Snapshot::take(None, None)?);
    monitor.end()?;
    let ended_s = now_s();
    archive::write_bytes(&part.join(name::LOAD), text.as_bytes())?;
    let said = read_load(&text)?;
    let seen = Seen::read(&part.join(name::MONITOR), said.began_s, said.began_s + said.seconds)?;
    let mut summary = Summary::of(&said);
    (summary.server, summary.network, summary.monitor) = (seen.server(), seen.network(false), seen.figures());
    let others = said.others.as_ref().map(|others| others.share);
    summary.host = HostUse { others, ..seen.host(&before.until(&after), &summary) };
    let own = said.verdict.evidence.join("; ");
    let is_path = path.validity == Validity::Valid;
    let (periods, spent) = (quota_after.0.saturating_sub(quota_before.0), quota_after.1.saturating_sub(quota_before.1));
    let is_free = (spent as f64) <= THROTTLED_MAX * periods.max(1) as f64;
    // `diagnose` reports other processes' CPU use once for all runs.
    let is_kept = matches!(said.verdict.validity, Validity::Valid | Validity::Disturbed);
    let check = |name: &str, holds: bool, says: String| Check { name: name.to_owned(), holds: Some(holds), says };
    let run = Run {
        form: FORM,
        plan: planned.clone(),
        began_s,
        load_began_s: said.began_s,
        load_ended_s: said.began_s + said.seconds,
        ended_s,
        status: if is_path && is_kept && is_free { RunStatus::Valid } else { RunStatus::Censored },
        why: [
            (is_path, path.to_string()),
            (is_kept, said.verdict.to_string()),
            (is_free, "the clients' quota was used up".to_owned()),
        ]
        .into_iter()
        .filter(|(holds, _)| !holds)
        .map(|(_, why)| why)
        .collect(),
        checks: vec![
            check(PATH, is_path, path.evidence.join("; ")),
            check("client", is_kept, own),
            check(
                CLIENT_LIMITS,
                is_free,
                format!(
                    "the control group of what makes the load used up its CPU quota in {spent} of {periods} periods"
                ),
            ),
        ],
        summary: Some(summary),
    };
    archive::write(&part.join(name::RUN), &run)?;
    fs::rename(&part, &folder).map_err(Failure::io(format_args!("name {}", folder.display())))?;
    let mut verdict = said.verdict;
    path.evidence.into_iter().for_each(|line| verdict.weaken(path.validity, line));
    Ok(Made { run, verdict })
}

/// The result of a load.
struct Loaded {
    /// The load generator's output, as JSON.
    text: String,
    /// The verdict on the path, if there was one.
    path: Verdict,
}

fn load(settings: &Settings, step: Step, seed: u64) -> Result<Loaded, Failure> {
    let mut words: Vec<String> = Vec::new();
    if !settings.path.is_empty() {
        words.extend(["wan".to_owned(), "--json".to_owned()]);
        words.extend(settings.path.iter().cloned());
        words.extend(["--".to_owned(), own_program()?.display().to_string()]);
    }
    let micros = |time: Duration| format!("{}us", time.as_micros());
    words.extend(["load".to_owned(), settings.url.clone(), "--json".to_owned(), "--seed".to_owned(), seed.to_string()]);
    words.extend(["--duration".to_owned(), micros(settings.duration)]);
    words.extend(match step {
        Step::Rate(rate) => ["--rate".to_owned(), rate.to_string()],
        Step::Clients(clients) => ["--clients".to_owned(), clients.to_string()],
    });
    words.extend(settings.load.iter().cloned());
    let mut command = Command::new(own_program()?);
    command.args(&words).stdin(Stdio::null());
    process::end_with_this_thread(&mut command);
    let output = command.output().map_err(Failure::io("start `ammeter load`"))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    if text.trim().is_empty() {
        let why = String::from_utf8_lossy(&output.stderr).trim().trim_start_matches("ammeter: ").to_owned();
        return Err(Failure::failed(format!("`ammeter {}` came to nothing: {why}", words.join(" "))));
    }
    Ok(Loaded { text, path: verdict_of_path(&String::from_utf8_lossy(&output.stderr)) })
}

/// Extracts the verdict on the path, which `ammeter wan --json` prints as a line of its own on standard error. Its exit
/// status does not tell, as the load's takes precedence.
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
/// If the run fails, or the path did not behave as requested.
pub(super) fn throughput(settings: &Settings, step: Step, seed: u64) -> Result<f64, Failure> {
    let Loaded { text, path } = load(settings, step, seed)?;
    if path.validity != Validity::Valid {
        return Err(Failure::failed(format!("the run says nothing of the server: {path}")));
    }
    Ok(read_load(&text)?.window.completed_rate)
}

fn read_load(text: &str) -> Result<Outcome, Failure> {
    serde_json::from_str(text)
        .map_err(|error| Failure::failed(format!("`ammeter load` said what it never does: {error}")))
}

/// The monitor beside a run. It ends by itself after the length of the run, even if no caller waits for it.
struct Watch {
    child: Child,
    log: PathBuf,
}

impl Watch {
    fn begin(settings: &Settings, folder: &Path, length: Duration) -> Result<Watch, Failure> {
        let micros = |time: Duration| format!("{}us", time.as_micros());
        let log = folder.join("monitor.log");
        let errors = File::create(&log).map_err(Failure::io(format_args!("make {}", log.display())))?;
        let mut command = Command::new(own_program()?);
        command
            .arg("monitor")
            .args(&settings.whom)
            .args(["--lines", "--budget", "20%", "--interval", &micros(settings.interval)])
            .args(["--census", &micros(settings.interval), "--duration", &micros(length), "--record"])
            .arg(folder.join(name::MONITOR))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(errors);
        process::end_with_this_thread(&mut command);
        let child = command.spawn().map_err(Failure::io("start `ammeter monitor`"))?;
        Ok(Watch { child, log })
    }

    fn wait_for_record(&mut self, path: &Path) -> Result<(), Failure> {
        let begun = Instant::now();
        while !path.exists() {
            let ended = self.child.try_wait().map_err(Failure::io("wait for `ammeter monitor`"))?;
            if ended.is_some() || begun.elapsed() > PATIENCE {
                return Err(self.failure());
            }
            thread::sleep(Duration::from_millis(2));
        }
        Ok(())
    }

    fn end(mut self) -> Result<(), Failure> {
        let ended = self.child.wait().map_err(Failure::io("wait for `ammeter monitor`"))?;
        if ended.success() { Ok(()) } else { Err(self.failure()) }
    }

    /// The monitor's error output as a failure.
    fn failure(&self) -> Failure {
        let text = fs::read_to_string(&self.log).unwrap_or_default();
        let line = text.lines().find_map(|line| line.strip_prefix("ammeter: ")).unwrap_or("it said nothing");
        Failure::failed(format!("the server could not be watched: {line}"))
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
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

fn own_program() -> Result<PathBuf, Failure> {
    std::env::current_exe().map_err(Failure::io("find this program"))
}

fn resolved(settings: &Settings) -> Result<Resolved, Failure> {
    let arm =
        Arm { id: ARM.to_owned(), label: settings.url.clone(), subject: settings.whom.join(" "), ..Arm::default() };
    let x = settings.steps.first().map_or("rate", |step| step.axis()).to_owned();
    let y = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
    let figure = |title: &str, names: &[&str]| Figure {
        title: title.to_owned(),
        x: x.clone(),
        y: y(names),
        ..Figure::default()
    };
    let program = Program {
        path: own_program()?,
        version: format!("ammeter {}", env!("CARGO_PKG_VERSION")),
        sha256: String::new(),
    };
    Ok(Resolved {
        form: FORM,
        name: "diagnose".to_owned(),
        title: format!("What limits {}", settings.url),
        seed: settings.seed,
        repetitions: settings.repeat,
        rules: Rules::default(),
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
        programs: BTreeMap::from([("ammeter".to_owned(), program)]),
        began_s: now_s(),
        ..Resolved::default()
    })
}

fn host(settings: &Settings) -> Result<Host, Failure> {
    let setting = |name: &str| {
        let path = format!("/proc/sys/{}", name.replace('.', "/"));
        Some((name.to_owned(), fs::read_to_string(path).ok()?.trim().to_owned()))
    };
    let names = ["net.core.somaxconn", "net.ipv4.tcp_max_syn_backlog", "net.ipv4.ip_local_port_range", "fs.file-max"];
    let path = match &settings.path[..] {
        [] => "clients and server share this machine".to_owned(),
        words => format!("clients behind: ammeter wan {}", words.join(" ")),
    };
    let memory = Memory::parse(&fs::read_to_string("/proc/meminfo").unwrap_or_default());
    Ok(Host {
        machine: Machine::this()?,
        memory_bytes: memory.total.unwrap_or(0),
        kernel: names.into_iter().filter_map(setting).collect(),
        load_average: load_average()?,
        test_bed: vec![path],
        ..Host::default()
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
