//! Control groups, version 1 or 2: limit a server (memory, disk, CPU), account for all its
//! processes, and kill them all at the end.
//!
//! A group's name contains the process id and start time of its creator. A later process can therefore
//! find and remove groups of killed creators ([`end_orphans`]), and leave groups in use alone.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use ammeter_wan::place::birth;
use amped_measure::Failure;
use amped_sys::process;
use serde::{Deserialize, Serialize};

use crate::experiment::Limits;

const ROOT: &str = "/sys/fs/cgroup";

/// Prefix of our group names: `ammeter-run-PID-BIRTH-NUMBER`.
const PREFIX: &str = "ammeter-run-";

/// The controllers of version 1, each of which has its own hierarchy. `cpu` is joined only for a
/// CPU limit, since it adds a cost to each context switch.
const CONTROLLERS: [&str; 3] = ["cpuacct", "memory", "blkio"];

/// A control group. Dropping it kills its processes and removes it.
#[derive(Debug)]
pub(crate) struct Group {
    /// One directory with version 2, one per controller with version 1.
    folders: Vec<PathBuf>,
}

/// CPU time of a group, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(crate) struct CpuTime {
    /// Total.
    pub(crate) all_ns: u64,
    /// User code; `None` if the kernel does not split the total.
    pub(crate) user_ns: Option<u64>,
}

impl Group {
    /// Creates a group with these limits; `disk` is the device (`major:minor`) of the read limit.
    ///
    /// # Errors
    /// If this user may not create one, or the kernel lacks a limit.
    pub(crate) fn new(limits: &Limits, disk: &str) -> Result<Group, Failure> {
        if !is_v1() {
            for controller in ["+cpu", "+memory", "+io"] {
                // Fails if a controller is unavailable; the limit's file is then missing below.
                let _ = fs::write(Path::new(ROOT).join("cgroup.subtree_control"), controller);
            }
        }
        let mut trees: Vec<PathBuf> = if is_v1() {
            CONTROLLERS.iter().map(|name| Path::new(ROOT).join(name)).filter(|tree| tree.exists()).collect()
        } else {
            vec![PathBuf::from(ROOT)]
        };
        if is_v1() && limits.cpu.is_some() {
            trees.push(Path::new(ROOT).join("cpu"));
        }
        let group = Group::in_trees(&trees)?;
        if let Some(memory) = limits.memory {
            group.set("memory.limit_in_bytes", "memory.max", &memory.0.to_string())?;
        }
        if let Some(bytes) = limits.disk {
            group.set(
                "blkio.throttle.read_bps_device",
                "io.max",
                &match is_v1() {
                    true => format!("{disk} {}", bytes.0),
                    false => format!("{disk} rbps={}", bytes.0),
                },
            )?;
        }
        if let Some(share) = limits.cpu {
            let (quota_us, period_us) = quota(share);
            if is_v1() {
                group.set("cpu.cfs_period_us", "", &period_us.to_string())?;
                group.set("cpu.cfs_quota_us", "", &quota_us.to_string())?;
            } else {
                group.set("", "cpu.max", &format!("{quota_us} {period_us}"))?;
            }
        }
        Ok(group)
    }

    /// Creates a group that only counts CPU time.
    ///
    /// # Errors
    /// If this user may not create one.
    pub(crate) fn counter() -> Result<Group, Failure> {
        let tree = if is_v1() { Path::new(ROOT).join(CONTROLLERS[0]) } else { PathBuf::from(ROOT) };
        Group::in_trees(&[tree])
    }

    fn in_trees(trees: &[PathBuf]) -> Result<Group, Failure> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let own = std::process::id();
        let born = birth(own).ok_or_else(|| Failure::failed("cannot read /proc/self/stat; is /proc mounted?"))?;
        let name = format!("{PREFIX}{own}-{born}-{}", NEXT.fetch_add(1, Ordering::Relaxed));
        let mut group = Group { folders: Vec::new() };
        for tree in trees {
            let folder = tree.join(&name);
            match fs::create_dir(&folder) {
                Ok(()) => group.folders.push(folder),
                // `cpu` and `cpuacct` may be the same hierarchy under two names.
                Err(_) if folder.exists() => {}
                Err(error) => {
                    let way_out = "run as root, with control groups of version 1 (cpuacct, cpu, memory, blkio) or 2";
                    return Err(Failure::failed(format!("cannot create {}: {error}; {way_out}", folder.display())));
                }
            }
        }
        Ok(group)
    }

    /// Command prefix that starts a process in this group. The shell joins the group and then calls
    /// exec, so the process id stays the same and all CPU time is counted.
    pub(crate) fn prefix(&self) -> Vec<String> {
        let join = r#"while [ "$1" != -- ]; do echo $$ > "$1/cgroup.procs" || exit 1; shift; done; shift; exec "$@""#;
        let folders = self.folders.iter().map(|folder| folder.display().to_string());
        ["sh", "-c", join, "sh"].into_iter().map(str::to_owned).chain(folders).chain(["--".to_owned()]).collect()
    }

    /// CPU time of all current and former processes of the group; `None` if it is not counted.
    pub(crate) fn cpu(&self) -> Option<CpuTime> {
        let read = |file: &str| fs::read_to_string(self.file(file)?).ok();
        if is_v1() {
            let number = |file| read(file)?.trim().parse().ok();
            return Some(CpuTime { all_ns: number("cpuacct.usage")?, user_ns: number("cpuacct.usage_user") });
        }
        let stat = read("cpu.stat")?;
        let of = |key| Some(stat.lines().find_map(|line| line.strip_prefix(key)?.trim().parse::<u64>().ok())? * 1000);
        Some(CpuTime { all_ns: of("usage_usec ")?, user_ns: of("user_usec ") })
    }

    /// Maximum memory use in bytes, including page cache.
    pub(crate) fn memory_max(&self) -> Option<u64> {
        let file = self.file(if is_v1() { "memory.max_usage_in_bytes" } else { "memory.peak" })?;
        fs::read_to_string(file).ok()?.trim().parse().ok()
    }

    /// Number of processes in the group.
    pub(crate) fn processes(&self) -> Option<u32> {
        let text = fs::read_to_string(self.folders.first()?.join("cgroup.procs")).ok()?;
        u32::try_from(text.lines().count()).ok()
    }

    fn set(&self, v1: &str, v2: &str, value: &str) -> Result<(), Failure> {
        let name = if is_v1() { v1 } else { v2 };
        let path = self.file(name).ok_or_else(|| {
            Failure::failed(format!("this kernel's control groups have no {name}, so this limit cannot be set"))
        })?;
        fs::write(&path, value).map_err(Failure::io(format_args!("write {value} to {}", path.display())))
    }

    fn file(&self, name: &str) -> Option<PathBuf> {
        self.folders.iter().map(|folder| folder.join(name)).find(|path| path.exists())
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        end(&self.folders);
    }
}

fn is_v1() -> bool {
    Path::new(ROOT).join("cpuacct/cgroup.procs").exists()
}

/// Whether the process named in `PREFIX PID-BIRTH-...` no longer exists.
pub(crate) fn is_orphan(name: &str, prefix: &str) -> bool {
    let owner = || {
        let mut parts = name.strip_prefix(prefix)?.split('-');
        Some((parts.next()?.parse().ok()?, parts.next()?.parse::<u64>().ok()?))
    };
    owner().is_some_and(|(pid, born)| birth(pid) != Some(born))
}

/// Kills all processes in groups whose creators have exited, and removes these groups.
pub(crate) fn end_orphans() {
    let mut trees = vec![PathBuf::from(ROOT)];
    trees.extend(CONTROLLERS.iter().chain(&["cpu"]).map(|name| Path::new(ROOT).join(name)));
    let groups = trees.iter().filter_map(|tree| fs::read_dir(tree).ok()).flatten().flatten();
    let left = groups.filter(|entry| entry.file_name().to_str().is_some_and(|name| is_orphan(name, PREFIX)));
    end(&left.map(|entry| entry.path()).collect::<Vec<_>>());
}

fn end(folders: &[PathBuf]) {
    const PATIENCE: Duration = Duration::from_secs(10);
    let begin = Instant::now();
    let mut left: Vec<&PathBuf> = folders.iter().filter(|folder| folder.exists()).collect();
    while !left.is_empty() && begin.elapsed() < PATIENCE {
        for folder in &left {
            let members = fs::read_to_string(folder.join("cgroup.procs")).unwrap_or_default();
            members.lines().filter_map(|line| line.parse().ok()).for_each(process::kill);
            // Otherwise their pages stay in memory, and the next server starts with a warm page cache.
            let _ = fs::write(folder.join("memory.force_empty"), "0");
        }
        left.retain(|folder| fs::remove_dir(folder).is_err() && folder.exists());
        if !left.is_empty() {
            thread::sleep(Duration::from_millis(2));
        }
    }
}

/// The quota and the period of a share of CPU time, in microseconds.
///
/// While a server is throttled its listen queue fills, so a period limits it to one queue of connections: the period is
/// as short as the kernel permits, which rejects quotas below 1 ms and periods above 1 s. The monitor's interval is no
/// multiple of it; otherwise every sample of the listen queue would fall at the same phase.
fn quota(share: f64) -> (u64, u64) {
    let period_us = (1033.0 / share).clamp(10_330.0, 1_000_000.0).round();
    ((period_us * share).round() as u64, period_us as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    fn spawn(group: &Group, words: &[&str]) -> std::process::Child {
        let prefix = group.prefix();
        Command::new(&prefix[0]).args(&prefix[1..]).args(words).spawn().unwrap()
    }

    #[test]
    fn cpu_limit_of_group_is_enforced() {
        let limits = Limits { cpu: Some(0.1), ..Limits::default() };
        let group = Group::new(&limits, "").unwrap();
        let begin = Instant::now();
        let mut child = spawn(&group, &["sh", "-c", "while :; do :; done"]);
        thread::sleep(Duration::from_millis(400));
        let (used, had) = (group.cpu().unwrap().all_ns, begin.elapsed().as_nanos() as u64);
        drop(group);
        child.wait().unwrap();
        assert!(used > 0 && used < had / 3, "{used} ns of {had}");
    }

    #[test]
    fn quota_period_is_as_short_as_permitted() {
        let check = |share: f64, expected: (u64, u64)| assert_eq!(quota(share), expected, "{share}");
        check(0.1, (1033, 10_330));
        check(0.02, (1033, 51_650));
        check(0.001, (1000, 1_000_000));
        check(2.0, (20_660, 10_330));
    }

    #[test]
    fn orphaned_group_is_killed_by_next_run() {
        let group = Group::new(&Limits::default(), "").unwrap();
        assert_eq!(group.processes(), Some(0));
        let mut sleeper = spawn(&group, &["sleep", "1000"]);
        end_orphans();
        assert!(sleeper.try_wait().unwrap().is_none(), "its owner lives");
        let folders = group.folders.clone();
        assert!(group.memory_max().is_some());
        drop(group);
        assert!(!sleeper.wait().unwrap().success() && folders.iter().all(|folder| !folder.exists()));
        // A creator with an impossible start time.
        let mut group = Group::new(&Limits::default(), "").unwrap();
        let mut sleeper = spawn(&group, &["sleep", "1000"]);
        let mut moved = Vec::new();
        for folder in std::mem::take(&mut group.folders) {
            let to = folder.with_file_name(format!("{PREFIX}{}-1-0", std::process::id()));
            fs::rename(&folder, &to).unwrap();
            moved.push(to);
        }
        end_orphans();
        assert!(!sleeper.wait().unwrap().success() && moved.iter().all(|folder| !folder.exists()));
    }

    #[test]
    fn group_name_identifies_its_owner() {
        let (own, born) = (std::process::id(), birth(std::process::id()).unwrap());
        let check = |name: &str, expected: bool| assert_eq!(is_orphan(name, "x-"), expected, "{name}");
        check(&format!("x-{own}-{born}-3"), false);
        check(&format!("x-{own}-{}-3", born + 1), true);
        check("x-4000000000-1-0", true);
        for other in ["", "x-", "x-1", "y-4000000000-1-0", "x-a-b-c"] {
            check(other, false);
        }
    }
}
