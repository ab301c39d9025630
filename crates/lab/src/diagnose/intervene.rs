//! Changes the capacity of the suspected resource and checks whether
//! throughput follows: that shows a cause, not only a correlation.
//!
//! A trial is several pairs of runs at a load above the knee: one run unchanged, one with the
//! suspect's capacity changed by a fifth, in alternating order. Its elasticity is the change of
//! throughput divided by the change of capacity, both as logarithms: near 1 for a bottleneck, near
//! 0 otherwise. The ladder has already varied the load itself.
//!
//! Every change is reverted, also after a failure: quotas and limits of control groups to their former values,
//! processes to their former group. A resource that cannot be changed is reported with the reason.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use ammeter_load::drive::Stop;
use ammeter_monitor::source::{GroupDisk, Limits, stat_of};
use ammeter_monitor::{Server, Target, group_of, groups_of};
use amped_measure::Failure;
use amped_measure::stats::Summary;
use amped_units::BitsPerSecond;

use super::ladder::{self, Settings};
use super::subject::{Setting, Subject};
use super::verdict::{Diagnosis, Trial};
use crate::analyse::use_of::{Kind, group_name};
use crate::archive::Step;

/// Factor by which a capacity is raised.
const MORE: f64 = 1.2;
/// Factor by which a capacity is lowered if it cannot be raised.
const LESS: f64 = 0.8;

/// The resources for trials.
pub(crate) struct Means<'a> {
    /// The settings of the ladder.
    pub(crate) settings: &'a Settings,
    /// The server to intervene on.
    pub(crate) target: Target,
    /// The server's command, to restart it with other settings, if known.
    pub(crate) subject: Option<&'a mut Subject>,
    /// The server's settings.
    pub(crate) server: &'a [Setting],
    /// Number of pairs of runs per trial.
    pub(crate) pairs: u32,
    /// Stops the trials.
    pub(crate) stop: &'a Stop,
    /// Receives progress messages.
    pub(crate) tell: &'a dyn Fn(&str),
}

/// Runs a trial for the suspected resource and for each known setting of the server.
///
/// # Errors
/// If a run fails. A resource that cannot be changed is not an error.
pub(crate) fn intervene(diagnosis: &Diagnosis, mut means: Means<'_>) -> Result<Vec<Trial>, Failure> {
    let mut trials = Vec::new();
    let step = |capacity: f64| step_above(diagnosis, &means.settings.steps, capacity);
    let as_it_is = means.settings.clone();
    if let Some(kind) = diagnosis.kind {
        match suspect(kind, diagnosis, &means) {
            Ok(Some((what, capacity, lever))) => {
                let moved_settings = lever.settings(&as_it_is);
                let run = |is_moved: bool, seed| {
                    let _restore = if is_moved { Some(lever.pull()?) } else { None };
                    ladder::throughput(
                        if is_moved { &moved_settings } else { &as_it_is },
                        step(capacity),
                        seed,
                        means.stop,
                    )
                };
                trials.extend(pairs(&means, what, true, capacity, run)?);
            }
            Ok(None) if matches!(kind, Kind::Thread | Kind::Core) => trials.extend(less_cpu_time(&means, step(LESS))?),
            Ok(None) => {}
            Err(why) => (means.tell)(&format!("not changed: {why}")),
        }
    }
    if let Some(subject) = means.subject.take() {
        for setting in means.server {
            let moved = setting.moved(MORE);
            let what = format!("{} {} instead of {}", setting.name, moved.value, setting.value);
            let (is_suspect, capacity) = (setting.kind() == diagnosis.kind, moved.value / setting.value);
            let run = |is_moved: bool, seed| {
                let server: Vec<Setting> = means
                    .server
                    .iter()
                    .map(|one| if is_moved && one == setting { &moved } else { one })
                    .cloned()
                    .collect();
                subject.restart(&server)?;
                ladder::throughput(&as_it_is, step(capacity), seed, means.stop)
            };
            trials.extend(pairs(&means, what, is_suspect, capacity, run)?);
        }
        subject.restart(means.server)?;
    }
    Ok(trials)
}

/// A step well above the knee, even if the suspect's capacity is multiplied by `capacity`: throughput cannot exceed the
/// load. The lowest of such steps: at higher ones the server only refuses clients.
fn step_above(diagnosis: &Diagnosis, steps: &[Step], capacity: f64) -> Step {
    let knee = diagnosis.analysis.knee.map_or(f64::INFINITY, |knee| knee.at);
    let mut above = steps.iter().filter(|step| step.value() > 1.2 * capacity.max(1.0) * knee);
    let highest = steps.last().copied().unwrap_or(Step::Rate(1.0));
    above.next().copied().unwrap_or(highest)
}

/// A trial with less CPU time for the server. Other processes may use the machine too, so the server's share is
/// measured, not assumed: the first run of a pair measures the CPU time used, a quota grants a part of it in the
/// second, and the CPU time used then is measured again.
fn less_cpu_time(means: &Means<'_>, step: Step) -> Result<Option<Trial>, Failure> {
    let server = || Server::find(means.target).map(|server| server.pids().iter().copied().collect::<Vec<u32>>());
    let run = |lever: Option<&Lever>, pids: &[u32], seed| {
        let _restore = lever.map(Lever::pull).transpose()?;
        let (before, begun) = (cpu_ticks(pids), Instant::now());
        let throughput = ladder::throughput(means.settings, step, seed, means.stop)?;
        let used = cpu_ticks(pids).saturating_sub(before) as f64 / 100.0;
        Ok::<_, Failure>((throughput, used, begun.elapsed().as_secs_f64()))
    };
    let mut made = Vec::new();
    for pair in 0..means.pairs {
        if means.stop.is_stopped() {
            break;
        }
        let pids = server()?;
        let seed = means.settings.seed.wrapping_add(1000 + u64::from(pair));
        let Some((root, from)) = pids.first().and_then(|pid| group_of(*pid, "cpu")) else {
            (means.tell)("not changed: the server's control group is unknown; run as root");
            return Ok(None);
        };
        let (plain, had_s, elapsed_s) = run(None, &pids, seed)?;
        thread::sleep(means.settings.pause);
        let lever = Lever::Slower { root, from, pids: pids.clone(), cores: LESS * had_s / elapsed_s };
        match run(Some(&lever), &pids, seed) {
            Ok((moved, has_s, _)) if has_s > 0.0 && has_s < 0.95 * had_s && plain > 0.0 && moved > 0.0 => {
                made.push((has_s / had_s, moved / plain));
            }
            Ok(_) => {}
            Err(why) => {
                (means.tell)(&format!("not changed: {why}"));
                return Ok(None);
            }
        }
        thread::sleep(means.settings.pause);
    }
    let capacity = Summary::of(made.iter().map(|(capacity, _)| *capacity)).map_or(LESS, |capacity| capacity.median);
    let found = trial(format!("{capacity:.2} of its CPU time"), true, made);
    heard(means, found.as_ref());
    Ok(found)
}

/// CPU time of processes, in units of 1/100 s.
fn cpu_ticks(pids: &[u32]) -> u64 {
    let of = |pid: &u32| stat_of(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?);
    pids.iter().filter_map(of).map(|stat| stat.user_ticks + stat.system_ticks).sum()
}

fn heard(means: &Means<'_>, trial: Option<&Trial>) {
    if let Some(trial) = trial {
        (means.tell)(&format!(
            "{}: elasticity {:.2} [{:.2}, {:.2}]",
            trial.what, trial.elasticity, trial.low, trial.high
        ));
    }
}

/// Runs pairs: every other pair starts with the changed run.
fn pairs(
    means: &Means<'_>,
    what: String,
    is_suspect: bool,
    capacity: f64,
    mut run: impl FnMut(bool, u64) -> Result<f64, Failure>,
) -> Result<Option<Trial>, Failure> {
    let mut made = Vec::new();
    for pair in 0..means.pairs {
        if means.stop.is_stopped() {
            break;
        }
        let seed = means.settings.seed.wrapping_add(1000 + u64::from(pair));
        let mut both = [0.0; 2];
        for turn in 0..2 {
            let is_moved = (pair + turn) % 2 == 1;
            both[usize::from(is_moved)] = run(is_moved, seed)?;
            thread::sleep(means.settings.pause);
        }
        let [plain, moved] = both;
        if plain > 0.0 && moved > 0.0 {
            made.push((capacity, moved / plain));
        }
    }
    let trial = trial(what, is_suspect, made);
    heard(means, trial.as_ref());
    Ok(trial)
}

/// The trial of these pairs, each the ratio of capacity and of throughput; `None` without pairs.
fn trial(what: String, is_suspect: bool, made: Vec<(f64, f64)>) -> Option<Trial> {
    let capacity = Summary::of(made.iter().map(|(capacity, _)| *capacity))?.median;
    let elasticity = |(capacity, throughput): &(f64, f64)| throughput.ln() / capacity.ln();
    let Summary { low, median, high, .. } = Summary::of(made.iter().map(elasticity))?;
    let throughputs = made.into_iter().map(|(_, throughput)| throughput).collect();
    Some(Trial { what, is_suspect, capacity, throughputs, elasticity: median, low, high })
}

/// A way to change a capacity.
enum Lever {
    /// Write these lines to these files.
    Files(Vec<(PathBuf, String)>),
    /// Move these processes from one group into a new one with a quota of this many cores.
    Slower { root: PathBuf, from: PathBuf, pids: Vec<u32>, cores: f64 },
    /// Use other arguments for the path or the load.
    Words(Box<Settings>),
}

/// Reverts a change when dropped.
struct Restore {
    files: Vec<(PathBuf, String)>,
    folder: Option<PathBuf>,
}

impl Drop for Restore {
    fn drop(&mut self) {
        for (path, text) in &self.files {
            // A failure means that the process has ended: there is nothing to move back.
            let _ = fs::write(path, text);
        }
        let Some(folder) = &self.folder else { return };
        // The last process leaves its group a moment after the write returns.
        for _ in 0..400 {
            if fs::remove_dir(folder).is_ok() {
                return;
            }
            thread::sleep(Duration::from_millis(5));
        }
    }
}

fn set(path: &Path, text: &str) -> Result<(), Failure> {
    fs::write(path, text).map_err(Failure::io(format_args!("write {} to {}", text.trim(), path.display())))
}

impl Lever {
    fn settings(&self, as_it_is: &Settings) -> Settings {
        match self {
            Lever::Words(settings) => (**settings).clone(),
            Lever::Files(_) | Lever::Slower { .. } => as_it_is.clone(),
        }
    }

    fn pull(&self) -> Result<Restore, Failure> {
        let mut restore = Restore { files: Vec::new(), folder: None };
        match self {
            Lever::Words(_) => {}
            Lever::Files(lines) => {
                for (path, line) in lines {
                    let was = fs::read_to_string(path).map_err(Failure::io(format_args!("read {}", path.display())))?;
                    // A file that lists devices accepts the line of a single device.
                    let device = line.split_once(' ').map(|(device, _)| device).filter(|device| device.contains(':'));
                    let of_device = |device: &str| was.lines().find(|line| line.starts_with(&format!("{device} ")));
                    let was = device.and_then(of_device).unwrap_or(was.trim()).to_owned();
                    set(path, line)?;
                    restore.files.push((path.clone(), was));
                }
            }
            Lever::Slower { root, from, pids, cores } => {
                const PERIOD_US: f64 = 20_000.0;
                let folder = from.join(format!("ammeter-{}", std::process::id()));
                let is_second = root.join("cgroup.controllers").exists();
                if is_second {
                    // Fails if the controller is already enabled. If it cannot be enabled, the writes below fail.
                    let _ = fs::write(from.join("cgroup.subtree_control"), "+cpu");
                }
                fs::create_dir(&folder)
                    .map_err(Failure::io(format_args!("create the control group {}", folder.display())))?;
                restore.folder = Some(folder.clone());
                let quota = (cores * PERIOD_US).max(1000.0).round();
                if is_second {
                    set(&folder.join("cpu.max"), &format!("{quota} {PERIOD_US}"))?;
                } else {
                    set(&folder.join("cpu.cfs_period_us"), &PERIOD_US.to_string())?;
                    set(&folder.join("cpu.cfs_quota_us"), &quota.to_string())?;
                }
                for pid in pids {
                    restore.files.push((from.join("cgroup.procs"), pid.to_string()));
                    set(&folder.join("cgroup.procs"), &pid.to_string())?;
                }
            }
        }
        Ok(restore)
    }
}

/// How to change the suspect's capacity: description, factor and lever.
/// `None` if only the server's settings can change it.
fn suspect(kind: Kind, diagnosis: &Diagnosis, means: &Means<'_>) -> Result<Option<(String, f64, Lever)>, Failure> {
    let server = || Server::find(means.target).map(|server| server.pids().iter().copied().collect::<Vec<u32>>());
    let unknown = || Failure::failed("the server's processes are unknown; run as root");
    let limits = || Ok::<_, Failure>(groups_of(*server()?.first().ok_or_else(unknown)?));
    Ok(match kind {
        Kind::Quota => {
            let name = diagnosis.resource.clone().unwrap_or_default();
            let groups = limits()?.into_iter().map(|limits| limits.group);
            let mut groups = groups.filter(|group| group_name(&group.path) == name);
            let group = groups.find(|group| group.quota.is_some()).ok_or_else(unknown)?;
            // The files take microseconds.
            let quota = (group.quota.unwrap_or(0) as f64 / 1e3 * MORE).round();
            let period = group.period.unwrap_or(100_000_000) / 1000;
            let first = Path::new(&group.path).join("cpu.cfs_quota_us");
            let line = if first.exists() {
                (first, quota.to_string())
            } else {
                (Path::new(&group.path).join("cpu.max"), format!("{quota} {period}"))
            };
            Some((format!("{MORE:.2} times the CPU quota"), MORE, Lever::Files(vec![line])))
        }
        Kind::DiskLimit => {
            let name = diagnosis.resource.clone().unwrap_or_default();
            let is_it = |limits: &Limits| {
                name.ends_with(&format!(" in {}", group_name(&limits.group.path))) && !limits.disks.is_empty()
            };
            let Limits { group, disks } = limits()?.into_iter().find(is_it).ok_or_else(unknown)?;
            type Limit = fn(&GroupDisk) -> Option<u64>;
            let kinds: [(&str, &str, &str, Limit); 4] = [
                ("reads of", "blkio.throttle.read_bps_device", "rbps", |disk| disk.read_max),
                ("writes of", "blkio.throttle.write_bps_device", "wbps", |disk| disk.written_max),
                ("the number of reads of", "blkio.throttle.read_iops_device", "riops", |disk| disk.reads_max),
                ("the number of writes of", "blkio.throttle.write_iops_device", "wiops", |disk| disk.writes_max),
            ];
            let kind = kinds.into_iter().find(|(prefix, ..)| name.starts_with(prefix));
            let (what, first, second, limit_of) = kind.ok_or_else(unknown)?;
            let what = what.trim_end_matches(" of");
            let folder = Path::new(&group.path);
            let line = |disk: &GroupDisk| {
                let limit = (limit_of(disk)? as f64 * MORE).round();
                Some(if folder.join(first).exists() {
                    (folder.join(first), format!("{} {limit}", disk.device))
                } else {
                    (folder.join("io.max"), format!("{} {second}={limit}", disk.device))
                })
            };
            let lines = disks.iter().filter_map(line).collect();
            Some((format!("{MORE:.2} times the limit on {what}"), MORE, Lever::Files(lines)))
        }
        Kind::Network => {
            let mut settings = means.settings.clone();
            let at = settings.path.iter().position(|word| word == "--bandwidth");
            let Some(rate) = at.and_then(|at| settings.path.get_mut(at + 1)) else { return Ok(None) };
            let BitsPerSecond(bits) =
                rate.parse().map_err(|error| Failure::usage(format!("--bandwidth {rate} is {error}")))?;
            *rate = format!("{}bit", (bits as f64 * MORE) as u64);
            Some((format!("a path {MORE:.2} times as fast"), MORE, Lever::Words(Box::new(settings))))
        }
        Kind::Client => {
            let mut settings = means.settings.clone();
            settings.load.extend(["--generators".to_owned(), "2".to_owned()]);
            Some(("two generators instead of one".to_owned(), 2.0, Lever::Words(Box::new(settings))))
        }
        // `less_cpu_time` covers threads and cores.
        Kind::Thread
        | Kind::Core
        | Kind::Disk
        | Kind::Memory
        | Kind::Lock
        | Kind::Pool
        | Kind::Softirq
        | Kind::Descriptors
        | Kind::AcceptQueue
        | Kind::Backend
        | Kind::Inside => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elasticity_is_one_for_bottleneck_and_zero_otherwise() {
        let check = |capacity: f64, throughputs: &[f64], expected: f64| {
            let made = throughputs.iter().map(|throughput| (capacity, *throughput)).collect();
            let found = trial("x".into(), true, made).unwrap();
            assert!((found.elasticity - expected).abs() < 0.01, "{found:?}");
            assert!(found.low <= found.elasticity && found.elasticity <= found.high);
        };
        check(1.2, &[1.2, 1.2, 1.2], 1.0);
        check(0.8, &[0.8, 0.7, 0.9], 1.0);
        check(1.2, &[1.0, 0.99, 1.01], 0.0);
        check(1.2, &[1.1], 0.523);
        assert!(trial("x".into(), true, Vec::new()).is_none());
    }

    #[test]
    fn changed_files_are_restored() {
        let folder = tempfile::tempdir().unwrap();
        let (quota, devices) = (folder.path().join("quota"), folder.path().join("devices"));
        fs::write(&quota, "20000\n").unwrap();
        fs::write(&devices, "8:0 100\n254:0 500\n").unwrap();
        let lever = Lever::Files(vec![(quota.clone(), "24000".into()), (devices.clone(), "254:0 600".into())]);
        let restore = lever.pull().unwrap();
        assert_eq!(fs::read_to_string(&quota).unwrap(), "24000");
        assert_eq!(fs::read_to_string(&devices).unwrap(), "254:0 600");
        drop(restore);
        assert_eq!(fs::read_to_string(&quota).unwrap(), "20000");
        assert_eq!(fs::read_to_string(&devices).unwrap(), "254:0 500", "the kernel takes a line for each device");
        let lever = Lever::Files(vec![(quota.clone(), "1".into()), (folder.path().join("no/file"), "1".into())]);
        assert!(lever.pull().is_err());
        assert_eq!(fs::read_to_string(&quota).unwrap(), "20000", "also when only a part could be changed");
    }
}
