//! CPU time of other processes: which of the machine's processes,
//! neither measured nor measuring, ran between two readings.
//!
//! Interference from other processes makes a measurement invalid. A server in a control group has its
//! CPU time counted by that group (`ammeter run`). Without one, this module decides: processes that
//! the caller names as its own or the server's, and their descendants, are not others. Neither are
//! processes that were idle before the load and busy under it, as an application behind the server
//! is. Others are busy programs, programs that start meanwhile, and time stolen by a hypervisor.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs;
use std::time::Instant;

use serde::{Deserialize, Serialize};

use crate::Failure;
use crate::host;

/// The share of a machine's CPU time that other processes may use during a valid measurement.
pub const MAX: f64 = 0.1;

/// A process at one instant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Process {
    /// Its name (`comm`).
    pub name: String,
    parent: u32,
    /// CPU time in ticks of 10 ms (`USER_HZ`): its own, and that of children that ended and were waited for.
    own: u64,
    children: u64,
    /// Start time in ticks; it distinguishes processes that had the same number.
    began: u64,
    /// Whether it is a kernel thread, such as one that receives packets.
    is_kernel: bool,
}

impl Process {
    /// Parses `/proc/PID/stat` (proc_pid_stat(5)).
    pub fn parse(stat: &str) -> Option<Process> {
        /// `PF_KTHREAD` in the kernel's sched.h.
        const KERNEL_THREAD: u64 = 0x0020_0000;
        let (head, rest) = stat.rsplit_once(") ")?;
        let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
        let number = |at: usize| fields.get(at)?.parse::<u64>().ok();
        Some(Process {
            name: head.split_once('(')?.1.to_owned(),
            parent: u32::try_from(number(1)?).ok()?,
            own: number(11)?.saturating_add(number(12)?),
            children: number(13)?.saturating_add(number(14)?),
            began: number(19)?,
            is_kernel: number(6)? & KERNEL_THREAD != 0,
        })
    }
}

/// All processes at one instant, and the CPU time of all cores until then.
#[derive(Clone, Debug)]
pub struct Census {
    at: Instant,
    stolen_ns: u64,
    processes: BTreeMap<u32, Process>,
}

impl Census {
    /// Reads the processes that exist now.
    ///
    /// # Errors
    /// When `/proc` is not mounted.
    pub fn take() -> Result<Census, Failure> {
        let stolen_ns = host::stolen_ns()?;
        let entries = fs::read_dir("/proc").map_err(Failure::io("list /proc"))?;
        let process = |pid: u32| Some((pid, Process::parse(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)?));
        let pids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok());
        Ok(Census { at: Instant::now(), stolen_ns, processes: pids.filter_map(process).collect() })
    }

    /// CPU time of each process since an earlier census, in ticks, including children that ended meanwhile.
    pub fn since(&self, earlier: &Census) -> BTreeMap<u32, u64> {
        used(&earlier.processes, &self.processes)
    }

    /// The programs that used CPU time since an earlier census, among the processes that `counts` accepts, with the
    /// number of cores each; busiest first.
    pub fn busiest(&self, earlier: &Census, counts: impl Fn(u32) -> bool) -> Vec<(String, f64)> {
        let elapsed_s = (self.at - earlier.at).as_secs_f64().max(1e-3);
        let mut by_name: BTreeMap<&str, f64> = BTreeMap::new();
        for (pid, ticks) in self.since(earlier).into_iter().filter(|(pid, ticks)| *ticks > 0 && counts(*pid)) {
            *by_name.entry(self.name(pid).unwrap_or("?")).or_default() += ticks as f64 / TICKS_PER_S / elapsed_s;
        }
        let mut busiest: Vec<(String, f64)> =
            by_name.into_iter().map(|(name, cores)| (name.to_owned(), cores)).collect();
        busiest.sort_by(|a, b| b.1.total_cmp(&a.1));
        busiest
    }

    /// The share of the CPU time of `cores` cores that a hypervisor stole since an earlier census, from 0 to 1.
    pub fn stolen(&self, earlier: &Census, cores: usize) -> f64 {
        let whole_s = (self.at - earlier.at).as_secs_f64().max(1e-3) * cores.max(1) as f64;
        self.stolen_ns.saturating_sub(earlier.stolen_ns) as f64 / 1e9 / whole_s
    }

    /// The name of a process.
    pub fn name(&self, pid: u32) -> Option<&str> {
        self.processes.get(&pid).map(|process| process.name.as_str())
    }
}

/// The parent of orphans.
const INIT: u32 = 1;

fn used(from: &BTreeMap<u32, Process>, to: &BTreeMap<u32, Process>) -> BTreeMap<u32, u64> {
    let before = |pid: &u32, now: &Process| from.get(pid).filter(|before| before.began == now.began);
    // When a process ends, the CPU time it had used before the first census becomes its parent's; if the parent has
    // ended as well, that of the nearest living ancestor; or init's, if it was an orphan by then.
    let mut inherited: BTreeMap<u32, u64> = BTreeMap::new();
    let is_gone = |(pid, old): &(&u32, &Process)| to.get(pid).is_none_or(|now| now.began != old.began);
    for (_, gone) in from.iter().filter(is_gone) {
        let up = |pid: u32| from.get(&pid).map(|process| process.parent).filter(|parent| *parent != pid);
        let mut ancestors = std::iter::successors(Some(gone.parent), |pid| up(*pid)).take(100);
        let heir = ancestors.find(|pid| to.contains_key(pid)).unwrap_or(INIT);
        for heir in BTreeSet::from([heir, INIT]) {
            *inherited.entry(heir).or_default() += gone.own + gone.children;
        }
    }
    let ticks = |(pid, now): (&u32, &Process)| {
        let (own, children) = before(pid, now).map_or((0, 0), |before| (before.own, before.children));
        let of_children = now.children.saturating_sub(children);
        let of_children = of_children.saturating_sub(inherited.get(pid).copied().unwrap_or(0));
        (*pid, now.own.saturating_sub(own) + of_children)
    };
    to.iter().map(ticks).collect()
}

/// CPU time that other processes used during a measurement.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Others {
    /// Share of the machine's CPU time, from 0 to 1, including time stolen by a hypervisor.
    pub share: f64,
    /// Share stolen by a hypervisor.
    pub stolen: f64,
    /// The programs that used most, with the number of cores each.
    pub busiest: Vec<(String, f64)>,
}

impl Others {
    /// Compares two censuses taken under load on a machine of `cores` cores. `rest` is an
    /// earlier census: a process that was busy then is independent of the load. `ours` are
    /// the measured and the measuring processes. With `alone`, no process here serves the
    /// load, as where the server runs on another machine: then all other processes count.
    pub fn between(
        rest: &Census,
        before: &Census,
        after: &Census,
        ours: &BTreeSet<u32>,
        alone: bool,
        cores: usize,
    ) -> Others {
        let rest_s = (before.at - rest.at).as_secs_f64().max(1e-3);
        let is_other = others(&rest.processes, rest_s, &before.processes, &after.processes, ours, alone);
        let mut busiest = after.busiest(before, |pid| is_other.contains(&pid));
        let stolen = after.stolen(before, cores);
        let used = busiest.iter().map(|(_, cores)| cores).sum::<f64>() / cores.max(1) as f64;
        busiest.retain(|(_, one)| *one >= 0.01);
        busiest.truncate(3);
        Others { share: (used + stolen).clamp(0.0, 1.0), stolen, busiest }
    }
}

impl fmt::Display for Others {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "other processes used {:.0} % of the machine's CPU time", self.share * 100.0)?;
        let mut parts: Vec<String> =
            self.busiest.iter().map(|(name, cores)| format!("{name} {cores:.2} cores")).collect();
        if self.stolen >= 0.001 {
            parts.push(format!("a hypervisor {:.1} %", self.stolen * 100.0));
        }
        if parts.is_empty() { Ok(()) } else { write!(f, " ({})", parts.join(", ")) }
    }
}

/// `USER_HZ`, the same on all architectures of Linux.
const TICKS_PER_S: f64 = 100.0;

/// The processes that take no part in the measurement.
fn others(
    rest: &BTreeMap<u32, Process>,
    rest_s: f64,
    before: &BTreeMap<u32, Process>,
    after: &BTreeMap<u32, Process>,
    ours: &BTreeSet<u32>,
    alone: bool,
) -> BTreeSet<u32> {
    /// In cores: a daemon that wakes up now and then uses less.
    const BUSY: f64 = 0.05;
    let parent =
        |pid: u32| after.get(&pid).map(|process| process.parent).filter(|parent| *parent != 0 && *parent != pid);
    let ancestors = |pid: u32| std::iter::successors(parent(pid), |pid| parent(*pid)).take(100);
    // A process with a busy descendant starts further busy processes.
    let mut busy: BTreeSet<u32> = BTreeSet::new();
    for (pid, _) in used(rest, before).into_iter().filter(|(_, ticks)| *ticks as f64 / TICKS_PER_S / rest_s >= BUSY) {
        let up = |pid: u32| before.get(&pid).map(|process| process.parent).filter(|parent| *parent != 0);
        busy.extend(std::iter::successors(Some(pid), |pid| up(*pid)).take(100));
    }
    let is_old =
        |pid: &u32| before.get(pid).is_some_and(|old| after.get(pid).is_some_and(|now| now.began == old.began));
    // It existed before and was idle: it may work for the server.
    let is_driven = |pid: &u32| !alone && is_old(pid) && !busy.contains(pid);
    let is_other = |pid: &u32| {
        let Some(process) = after.get(pid) else { return false };
        if process.is_kernel || ours.contains(pid) || ancestors(*pid).any(|above| ours.contains(&above)) {
            return false;
        }
        // A new process of a pool that was idle, by its name.
        let of_pool =
            |above: u32| is_driven(&above) && after.get(&above).is_some_and(|parent| parent.name == process.name);
        !is_driven(pid) && (is_old(pid) || !ancestors(*pid).any(of_pool))
    };
    after.keys().copied().filter(|pid| is_other(pid)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Processes as (number, parent, name, own ticks, ticks of children).
    fn made(processes: &[(u32, u32, &str, u64, u64)]) -> BTreeMap<u32, Process> {
        let one = |&(pid, parent, name, own, children): &(u32, u32, &str, u64, u64)| {
            let is_kernel = name == "ksoftirqd";
            (pid, Process { name: name.to_owned(), parent, own, children, began: u64::from(pid), is_kernel })
        };
        processes.iter().map(one).collect()
    }

    #[test]
    fn stat_with_any_process_name_is_parsed() {
        let stat = "7 (a) b (c) S 3 7 7 0 -1 4194560 1 2 3 4 10 20 30 40 20 0 1 0 555 1 1";
        let found = Process::parse(stat).unwrap();
        assert_eq!(
            (found.name.as_str(), found.parent, found.own, found.children, found.began),
            ("a) b (c", 3, 30, 70, 555)
        );
        assert!(!found.is_kernel && Process::parse("7 (a) S 1").is_none() && Process::parse("").is_none());
        assert!(Census::take().unwrap().name(std::process::id()).is_some());
    }

    #[test]
    fn child_time_before_first_sample_is_not_counted() {
        let from = made(&[(1, 0, "init", 5, 0), (10, 1, "make", 2, 100), (11, 10, "cc1", 9000, 0)]);
        let to = made(&[(1, 0, "init", 5, 0), (10, 1, "make", 3, 9150)]);
        assert_eq!(used(&from, &to)[&10], 1 + 50);
    }

    #[test]
    fn time_of_exited_process_family_is_not_counted() {
        let from =
            made(&[(9, 1, "sh", 1, 0), (10, 9, "make", 2, 0), (11, 10, "cc1", 9000, 7), (12, 10, "orphan", 800, 0)]);
        let to = made(&[(1, 0, "init", 0, 0), (9, 1, "sh", 1, 9829)]);
        assert_eq!(used(&from, &to), BTreeMap::from([(1, 0), (9, 20)]));
        // The process that waited for an orphan is unknown: count less than was used rather than CPU time from before.
        let to = made(&[(1, 0, "init", 0, 850), (9, 1, "sh", 1, 9029)]);
        assert_eq!(used(&from, &to), BTreeMap::from([(1, 0), (9, 0)]));
    }

    #[test]
    fn busy_and_new_programs_are_others_and_idle_backend_is_not() {
        let rest = made(&[
            (1, 0, "init", 0, 0),
            (2, 0, "ksoftirqd", 0, 0),
            (10, 1, "server", 0, 0),
            (20, 1, "php-fpm", 0, 0),
            (21, 20, "php-fpm", 0, 0),
            (30, 1, "sh", 0, 0),
            (31, 30, "busy", 0, 0),
            (40, 1, "ammeter", 0, 0),
        ]);
        let mut before = rest.clone();
        before.get_mut(&31).unwrap().own = 20;
        let mut after = before.clone();
        after.extend(made(&[
            (12, 10, "cgi", 50, 0),
            (22, 20, "php-fpm", 50, 0),
            (32, 30, "cc1", 50, 0),
            (50, 1, "cron", 9, 0),
        ]));
        let ours = BTreeSet::from([10, 40]);
        let found = |alone| others(&rest, 0.2, &before, &after, &ours, alone);
        // Their shell and init are others too, with the time they inherit.
        assert_eq!(found(false), BTreeSet::from([1, 30, 31, 32, 50]));
        assert!(found(true).is_superset(&BTreeSet::from([20, 21, 22, 31, 32])) && !found(true).contains(&10));
    }

    #[test]
    fn sentence_names_other_programs() {
        let others = Others { share: 0.62, stolen: 0.02, busiest: vec![("yes".to_owned(), 1.2)] };
        let text = "other processes used 62 % of the machine's CPU time (yes 1.20 cores, a hypervisor 2.0 %)";
        assert_eq!(others.to_string(), text);
    }
}
