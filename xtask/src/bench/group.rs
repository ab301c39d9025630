//! Control groups: they count the CPU time of a program with all its threads and processes, and give it little memory and a
//! slow disk.
//!
//! The count is the scheduler's, in nanoseconds (microseconds in groups of version 2), and holds those that have ended as
//! well; the ticks of `/proc/PID/stat` are 10 ms. Both versions of control groups will do.
//!
//! Whatever is started to be measured is started in a group of ours, so that [`end_all`] finds it also after a failure or an
//! interrupt.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::command::{Outcome, program};

const ROOT: &str = "/sys/fs/cgroup";

/// The controllers of version 1, each of which is a tree of its own.
const CONTROLLERS: [&str; 3] = ["cpuacct", "memory", "blkio"];

/// The one that is joined only where it is wanted, since it takes time of its own at each switch.
const CPU: &str = "cpu";

/// What the names of our groups begin with; the number of the process that made it follows.
const PREFIX: &str = "amped-bench-";

/// A group. Dropped, it ends who is in it, gives back their page cache, and is gone.
pub(super) struct Group {
    /// One folder in version 2, one for each controller in version 1.
    folders: Vec<PathBuf>,
}

impl Group {
    /// A new group; with `memory`, so many bytes of it, page cache included.
    pub(super) fn new(memory: Option<u64>) -> Outcome<Group> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("{PREFIX}{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        if !is_v1() {
            // Refused if they are not there: then the limit's file is missing below.
            for controller in ["+cpu", "+memory", "+io"] {
                let _ = fs::write(Path::new(ROOT).join("cgroup.subtree_control"), controller);
            }
        }
        let group = Group { folders: trees().iter().map(|tree| tree.join(&name)).collect() };
        for folder in &group.folders {
            let way_out = "run as root, with control groups v1 (cpuacct, cpu, memory, blkio) or v2";
            fs::create_dir(folder).map_err(|error| format!("cannot make {}: {error}; {way_out}", folder.display()))?;
        }
        if let Some(memory) = memory {
            group.set("memory.limit_in_bytes", "memory.max", &memory.to_string())?;
        }
        Ok(group)
    }

    /// From now on what its members read from a disk (`major:minor`) comes at so many bytes a second.
    pub(super) fn slow_disk(&self, disk: &str, bytes_a_second: u64) -> Outcome {
        if is_v1() {
            self.set("blkio.throttle.read_bps_device", "", &format!("{disk} {bytes_a_second}"))
        } else {
            self.set("", "io.max", &format!("{disk} rbps={bytes_a_second}"))
        }
    }

    /// Whoever is started in it from now on has a core for no more than this part of the time.
    pub(super) fn slow_core(&mut self, share: f64) -> Outcome {
        // Short, so that who has used up his part does not stand still for long; the kernel takes no quota below 1 ms.
        const PERIOD_US: u32 = 40_000;
        let quota_us = (f64::from(PERIOD_US) * share) as u32;
        if is_v1() {
            let name = self.folders[0].file_name().unwrap_or_default();
            let folder = Path::new(ROOT).join(CPU).join(name);
            // On some systems it is mounted as one with cpuacct, and the folder is there.
            if !folder.exists() {
                fs::create_dir(&folder).map_err(|error| format!("cannot make {}: {error}", folder.display()))?;
                self.folders.push(folder);
            }
            self.set("cpu.cfs_period_us", "", &PERIOD_US.to_string())?;
            self.set("cpu.cfs_quota_us", "", &quota_us.to_string())
        } else {
            self.set("", "cpu.max", &format!("{quota_us} {PERIOD_US}"))
        }
    }

    /// Memory of its members that is in RAM, in bytes; what they share is counted for each.
    pub(super) fn resident_bytes(&self) -> Outcome<u64> {
        let path = self.file("cgroup.procs")?;
        let members = fs::read_to_string(&path).map_err(|error| format!("cannot read {}: {error}", path.display()))?;
        let resident = |pid: &str| {
            // One that has just ended has none.
            let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
            let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
            line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<u64>().ok()).unwrap_or(0)
        };
        Ok(members.lines().map(resident).sum::<u64>() * 1024)
    }

    /// CPU time of all who are or were in it, user and system, in nanoseconds.
    pub(super) fn cpu_ns(&self) -> Outcome<u64> {
        let (file, key, unit_ns) = if is_v1() { ("cpuacct.usage", "", 1) } else { ("cpu.stat", "usage_usec ", 1000) };
        let path = self.file(file)?;
        let text = fs::read_to_string(&path).map_err(|error| format!("cannot read {}: {error}", path.display()))?;
        let figure = text.lines().find_map(|line| line.strip_prefix(key)?.trim().parse::<u64>().ok());
        figure.map(|figure| figure * unit_ns).ok_or_else(|| format!("no CPU time in {}: {text}", path.display()))
    }

    /// A program that begins its life in this group, on this core.
    pub(super) fn command(&self, core: usize, words: &[&str]) -> Command {
        // The shell joins and is replaced, so the number of the process stays and nothing of it escapes the count.
        let join = r#"while [ "$1" != -- ]; do echo $$ > "$1/cgroup.procs" || exit 1; shift; done; shift; exec "$@""#;
        let mut command = program("sh");
        command.args(["-c", join, "sh"]).args(&self.folders).args(["--", "taskset", "-c", &core.to_string()]);
        command.args(words);
        command
    }

    fn set(&self, v1: &str, v2: &str, value: &str) -> Outcome {
        let path = self.file(if is_v1() { v1 } else { v2 })?;
        fs::write(&path, value).map_err(|error| format!("cannot write {value} to {}: {error}", path.display()))
    }

    /// Where this file of the group is.
    fn file(&self, name: &str) -> Outcome<PathBuf> {
        let mut paths = self.folders.iter().map(|folder| folder.join(name));
        paths.find(|path| path.exists()).ok_or_else(|| format!("control groups of this kernel have no {name}"))
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        end(&self.folders);
    }
}

fn is_v1() -> bool {
    Path::new(ROOT).join(CONTROLLERS[0]).join("cgroup.procs").exists()
}

fn trees() -> Vec<PathBuf> {
    let root = Path::new(ROOT);
    if is_v1() { CONTROLLERS.iter().map(|name| root.join(name)).collect() } else { vec![root.to_owned()] }
}

/// Ends all that was started in groups of this process, and removes them: for an interrupt, after which nothing is dropped.
pub(super) fn end_all() {
    end_where(|pid| pid == std::process::id());
}

/// The same for what an earlier run left behind that was killed itself.
pub(super) fn end_stale() {
    end_where(|pid| !Path::new(&format!("/proc/{pid}")).exists());
}

fn end_where(is_meant: impl Fn(u32) -> bool) {
    let pid = |name: &str| name.strip_prefix(PREFIX)?.split('-').next()?.parse::<u32>().ok();
    let trees = trees().into_iter().chain([Path::new(ROOT).join(CPU)]);
    let groups = trees.filter_map(|tree| fs::read_dir(tree).ok()).flatten().flatten();
    let folders: Vec<PathBuf> = groups
        .filter(|entry| entry.file_name().to_str().and_then(pid).is_some_and(&is_meant))
        .map(|e| e.path())
        .collect();
    end(&folders);
}

fn end(folders: &[PathBuf]) {
    let begin = Instant::now();
    let mut left: Vec<&PathBuf> = folders.iter().filter(|folder| folder.exists()).collect();
    loop {
        for folder in &left {
            let members = fs::read_to_string(folder.join("cgroup.procs")).unwrap_or_default();
            members.lines().filter_map(|line| line.parse().ok()).for_each(amped_sys::process::kill);
            // Their pages would stay in memory, and the next server would find the files warm.
            let _ = fs::write(folder.join("memory.force_empty"), "0");
            let _ = fs::write(folder.join("memory.reclaim"), "1G");
        }
        left.retain(|folder| fs::remove_dir(folder).is_err() && folder.exists());
        if left.is_empty() {
            return;
        }
        if begin.elapsed() > Duration::from_secs(10) {
            eprintln!("xtask: {left:?} could not be removed");
            return;
        }
        thread::sleep(Duration::from_millis(2));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_limit_of_group_is_enforced() {
        let mut group = Group::new(None).unwrap();
        group.slow_core(0.1).unwrap();
        let begin = Instant::now();
        let mut child = group.command(0, &["sh", "-c", "while :; do :; done"]).spawn().unwrap();
        thread::sleep(Duration::from_millis(400));
        let (used, had) = (group.cpu_ns().unwrap(), begin.elapsed().as_nanos() as u64);
        let resident = group.resident_bytes().unwrap();
        drop(group);
        child.wait().unwrap();
        assert!(used > 0 && used < had / 3, "{used} ns of {had}");
        assert!((64 << 10..64 << 20).contains(&resident), "a shell has {resident} bytes");
    }

    #[test]
    fn a_group_counts_what_ran_in_it_and_takes_it_along() {
        let group = Group::new(None).unwrap();
        // A child of a child, which ends by itself, and one that does not.
        let status =
            group.command(0, &["sh", "-c", "sh -c 'i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done'"]).status();
        assert!(status.unwrap().success());
        let counted = group.cpu_ns().unwrap();
        assert!(counted > 1_000_000, "{counted} ns for 20000 turns of a loop in a shell");
        let mut sleeper = group.command(0, &["sleep", "1000"]).spawn().unwrap();
        let folders = group.folders.clone();
        drop(group);
        assert!(!sleeper.wait().unwrap().success(), "it was ended");
        assert!(folders.iter().all(|folder| !folder.exists()));
    }
}
