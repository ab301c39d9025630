//! The server's processes and threads: their files are opened once and read at each sample.
//!
//! Threads are listed once a second, too rarely for those that serve one connection, and at most [`THREADS_MAX`] of
//! them. The server's CPU time is therefore that of its processes and their descendants, which includes threads and
//! children that have ended ([`Account`]). New children are found at each sample by their numbers, which the kernel
//! gives in order.

use std::collections::BTreeMap;
use std::fs;
use std::ops::Range;

use amped_measure::account::{Account, CpuTime, Reading};
use amped_sys::{clock, process};

use crate::server::{INIT, Server};
use crate::source::{Process, Reader, Scheduled, Stat, Thread, cores_of, stat_of};

/// Maximum number of threads sampled; the first ones of a larger server.
pub(crate) const THREADS_MAX: usize = 512;

/// The opened files of the server's processes and threads.
#[derive(Debug)]
pub(crate) struct Tasks {
    threads: BTreeMap<u32, ThreadFiles>,
    processes: BTreeMap<u32, ProcessFiles>,
    newest: Newest,
    account: Account,
    /// When the processes were read last, by [`clock::boot_ns`].
    read_ns: Option<u64>,
    used: CpuTime,
    /// Whether threads exist that are not sampled.
    has_more: bool,
}

/// The result of [`Tasks::read`].
#[derive(Debug)]
pub(crate) struct TaskFigures {
    pub(crate) processes: Vec<Process>,
    pub(crate) threads: Vec<Thread>,
    /// CPU time of the server since the first reading.
    pub(crate) used: Option<CpuTime>,
}

#[derive(Debug)]
struct ThreadFiles {
    pid: u32,
    stat: Reader,
    schedule: Option<Reader>,
    sleeps_in: Option<Reader>,
}

/// The files of a process, as far as they may be read.
#[derive(Debug)]
struct ProcessFiles {
    stat: Reader,
    io: Option<Reader>,
    limits: Option<Reader>,
    /// The directory, whose size is the number of descriptors.
    descriptors: Option<fs::File>,
    /// Whether it is one of the server's own processes, rather than only a descendant.
    is_own: bool,
    /// The cores on which it may run, at the last listing.
    cores: Vec<u32>,
}

impl Tasks {
    /// Creates one without any process. Processes that start from now on are found, so call it
    /// before looking for the server.
    pub(crate) fn begin() -> Tasks {
        Tasks {
            threads: BTreeMap::new(),
            processes: BTreeMap::new(),
            newest: Newest::begin(),
            account: Account::default(),
            read_ns: None,
            used: CpuTime::default(),
            has_more: false,
        }
    }

    /// Opens the files of new processes and threads.
    pub(crate) fn list(&mut self, server: &Server) {
        server.family().iter().for_each(|pid| self.open(*pid));
        for (pid, files) in &mut self.processes {
            files.is_own = server.pids().contains(pid);
            if files.is_own {
                files.cores = cores_of(&fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default());
            }
        }
        self.has_more = false;
        for pid in server.pids() {
            let Ok(entries) = fs::read_dir(format!("/proc/{pid}/task")) else { continue };
            for tid in entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()) {
                if self.threads.contains_key(&tid) {
                    continue;
                }
                if self.threads.len() >= THREADS_MAX {
                    self.has_more = true;
                    break;
                }
                let file = |name| Reader::open(format!("/proc/{pid}/task/{tid}/{name}"));
                if let Ok(stat) = file("stat") {
                    let (schedule, sleeps_in) = (file("schedstat").ok(), file("wchan").ok());
                    self.threads.insert(tid, ThreadFiles { pid: *pid, stat, schedule, sleeps_in });
                }
            }
        }
    }

    fn open(&mut self, pid: u32) {
        if self.processes.contains_key(&pid) {
            return;
        }
        if let Ok(stat) = Reader::open(format!("/proc/{pid}/stat")) {
            let file = |name| Reader::open(format!("/proc/{pid}/{name}")).ok();
            let descriptors = fs::File::open(format!("/proc/{pid}/fd")).ok();
            let files = ProcessFiles {
                stat,
                io: file("io"),
                limits: file("limits"),
                descriptors,
                is_own: false,
                cores: Vec::new(),
            };
            self.processes.insert(pid, files);
        }
    }

    /// Whether no thread is known.
    pub(crate) fn is_empty(&self) -> bool {
        self.threads.is_empty()
    }

    /// Whether the last listing found more threads than are sampled.
    pub(crate) fn has_more(&self) -> bool {
        self.has_more
    }

    /// Reads all of them.
    pub(crate) fn read(&mut self) -> TaskFigures {
        self.find_children();
        let (processes, used) = self.read_processes();
        TaskFigures { processes, threads: self.read_threads(), used }
    }

    /// Finds processes that known ones have started since the last call.
    fn find_children(&mut self) {
        for pid in self.newest.pids() {
            if self.processes.contains_key(&pid) || self.threads.contains_key(&pid) || pid == std::process::id() {
                continue;
            }
            let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok().and_then(|text| stat_of(&text));
            if stat
                .is_some_and(|stat| !stat.is_thread && stat.parent != INIT && self.processes.contains_key(&stat.parent))
            {
                self.open(pid);
            }
        }
    }

    /// The server's processes, and the CPU time used so far; `None` if none was ever seen.
    fn read_processes(&mut self) -> (Vec<Process>, Option<CpuTime>) {
        let now_ns = clock::boot_ns();
        let (mut readings, mut own) = (BTreeMap::new(), Vec::new());
        // In ascending order: parents mostly before their children, as the account requires.
        self.processes.retain(|pid, files| {
            let Some(stat) = files.stat.read().ok().and_then(|text| stat_of(&text)) else { return false };
            readings.insert(*pid, reading(*pid, &stat, now_ns));
            if files.is_own && stat.is_alive() {
                own.push(files.process(*pid, &stat));
            }
            true
        });
        if readings.is_empty() && self.read_ns.is_none() {
            return (own, None);
        }
        let elapsed_ns = self.read_ns.map_or(0, |before| now_ns.saturating_sub(before));
        let used = self.account.add(readings, elapsed_ns);
        self.used.user_ns += used.user_ns;
        self.used.system_ns += used.system_ns;
        self.read_ns = Some(now_ns);
        (own, Some(self.used))
    }

    fn read_threads(&mut self) -> Vec<Thread> {
        let mut threads = Vec::new();
        self.threads.retain(|tid, files| {
            let stat = files.stat.read().ok().and_then(|text| stat_of(&text));
            let Some(stat) = stat.filter(Stat::is_alive) else { return false };
            threads.push(files.thread(*tid, stat));
            true
        });
        threads
    }
}

/// The times of a process. Its own time is exact where the kernel gives it, else in ticks.
fn reading(pid: u32, stat: &Stat, now_ns: u64) -> Reading {
    let by_ticks = in_ns(stat.user_ticks + stat.system_ticks);
    let exact = process::cpu_time_of(pid).map(|time| time.as_nanos() as u64);
    // Init also waits for orphans of other programs.
    let of_children = |ticks| if pid == INIT { 0 } else { ticks };
    let (user_ticks, system_ticks) = (of_children(stat.children_user_ticks), of_children(stat.children_system_ticks));
    Reading {
        began: stat.started_ticks,
        age_ns: now_ns.saturating_sub(in_ns(stat.started_ticks)),
        own_ns: exact.unwrap_or(by_ticks),
        children_ns: in_ns(user_ticks + system_ticks),
        user_ns: in_ns(stat.user_ticks + user_ticks),
        system_ns: in_ns(stat.system_ticks + system_ticks),
    }
}

/// Converts a time of `/proc` to nanoseconds.
fn in_ns(ticks: u64) -> u64 {
    ticks.saturating_mul(1_000_000_000 / process::ticks_per_second().max(1))
}

impl ProcessFiles {
    fn process(&mut self, pid: u32, stat: &Stat) -> Process {
        let resident = stat.resident_pages * process::page_bytes();
        let (cores, threads) = (self.cores.clone(), Some(stat.threads));
        let mut process = Process { pid, parent: stat.parent, cores, resident, threads, ..Process::default() };
        if let Some(Ok(text)) = self.io.as_mut().map(Reader::read) {
            process.set_io(&text);
        }
        if let Some(Ok(text)) = self.limits.as_mut().map(Reader::read) {
            process.set_limits(&text);
        }
        let folder = self.descriptors.as_ref().and_then(|folder| folder.metadata().ok());
        process.descriptors = folder.map(|folder| folder.len()).filter(|count| *count > 0);
        process
    }
}

impl ThreadFiles {
    fn thread(&mut self, tid: u32, stat: Stat) -> Thread {
        let exact = self.schedule.as_mut().and_then(|file| Scheduled::parse(&file.read().ok()?));
        // A kernel without CONFIG_SCHED_INFO only has ticks.
        let [user, system] = [stat.user_ticks, stat.system_ticks].map(in_ns);
        let by_ticks = Scheduled { run_ns: user.saturating_add(system), wait_ns: 0 };
        let Scheduled { run_ns, wait_ns } = exact.unwrap_or(by_ticks);
        // Read last, so that the thread did not run for longer than its age.
        let age = clock::boot_ns().saturating_sub(in_ns(stat.started_ticks));
        let is_asleep = matches!(stat.state, 'S' | 'D');
        let place = self.sleeps_in.as_mut().filter(|_| is_asleep).and_then(|file| file.read().ok());
        let sleeps_in = place.map(|place| place.trim().to_owned()).filter(|place| !matches!(&place[..], "" | "0"));
        Thread {
            pid: self.pid,
            tid,
            name: stat.name,
            state: stat.state,
            run: run_ns,
            wait: wait_ns,
            user,
            system,
            major_page_faults: stat.major_faults,
            sleeps_in,
            age: Some(age),
        }
    }
}

/// The numbers of new processes and threads, from the number that the kernel gave last (proc_loadavg(5)).
#[derive(Debug)]
struct Newest {
    file: Option<Reader>,
    last: u32,
}

impl Newest {
    fn begin() -> Newest {
        let mut newest = Newest { file: Reader::open("/proc/loadavg").ok(), last: 0 };
        newest.last = newest.number().unwrap_or(0);
        newest
    }

    fn number(&mut self) -> Option<u32> {
        self.file.as_mut()?.read().ok()?.split_ascii_whitespace().nth(4)?.parse().ok()
    }

    /// The numbers given since the last call, at most the newest few; most of them may have ended.
    fn pids(&mut self) -> Range<u32> {
        let Some(number) = self.number() else { return 0..0 };
        let before = std::mem::replace(&mut self.last, number);
        newest(before, number)
    }
}

/// The newest numbers after `before` up to `last`, which is smaller if the kernel began again from the lowest.
fn newest(before: u32, last: u32) -> Range<u32> {
    /// Reading the state of one takes about 10 us, and a busy machine starts thousands per second.
    const COUNT_MAX: u32 = 32;
    let oldest = (last + 1).saturating_sub(COUNT_MAX).max(1);
    if before <= last { oldest.max(before + 1)..last + 1 } else { oldest..last + 1 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn new_processes_have_the_numbers_after_the_last() {
        let check = |before, last, expected: Range<u32>| {
            assert_eq!(newest(before, last), expected, "{before} {last}");
        };
        check(500, 500, 501..501);
        check(500, 503, 501..504);
        check(500, 9000, 8969..9001);
        check(32_000, 310, 279..311);
        check(32_000, 3, 1..4);
    }

    #[test]
    fn child_is_found_by_its_number() {
        let mut numbers = Newest::begin();
        assert!(numbers.last > 0);
        let mut child = std::process::Command::new("true").spawn().expect("started");
        // Other programs may start many meanwhile.
        assert!(numbers.pids().end > child.id() || numbers.last < child.id());
        child.wait().expect("ends");
    }
}
