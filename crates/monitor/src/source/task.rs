//! Parses `/proc/PID/task/TID/{stat,schedstat}` and `/proc/PID/io` (proc_pid_stat(5)):
//! resources of a server's threads and processes.
//!
//! `schedstat` has exact times; `stat` splits them into user and system by ticks. The name of a thread may contain
//! anything, including blanks and parentheses, and ends at the last `)`.

use crate::figure::figures;

figures! {
    /// A thread, since it began.
    Thread "thread" {
        /// Its process.
        pid: u32,
        /// Thread number.
        tid: u32,
        /// Name, at most 15 bytes.
        name: String,
    } [
        /// Current state: Running, Sleeping, waiting for a Disk, sTopped, Zombie.
        state: char,
        /// The kernel function in which it sleeps (`/proc/PID/task/TID/wchan`); `None` while it runs, and without
        /// permission to read it (ptrace(2)).
        sleeps_in: Option<String>,
    ]
    /// Time that a thread ran.
    run: N => Counter Seconds,
    /// Time that a thread was runnable but waited for a processor.
    wait: N => Counter Seconds,
    /// User time of a thread, by ticks.
    user: N => Counter Seconds,
    /// System time of a thread, by ticks.
    system: N => Counter Seconds,
    /// Page faults of a thread that read from a disk.
    major_page_faults: N => Counter Things,
    /// Time since a thread began.
    age: Option<N> => Gauge Seconds,
}

figures! {
    /// A process, since it began.
    Process "process" {
        /// Process number.
        pid: u32,
    } [
        /// Its parent's number.
        parent: u32,
        /// The cores on which its first thread may run; empty if they are unknown, as in older records.
        cores: Vec<u32>,
    ]
    /// Threads of a process.
    threads: Option<N> => Gauge Things,
    /// Resident memory of a process, including shared memory.
    resident: N => Gauge Bytes,
    /// Bytes that a process read from disks.
    ///
    /// `None` without permission to read it (ptrace(2)).
    read: Option<N> => Counter Bytes "read_bytes",
    /// Bytes that a process wrote, or will write, to disks.
    written: Option<N> => Counter Bytes "write_bytes",
    /// Open descriptors of a process.
    ///
    /// `None` before Linux 6.2.
    descriptors: Option<N> => Gauge Things,
    /// Limit of open descriptors of a process.
    descriptors_max: Option<N> => Gauge Things,
}

/// The parsed fields of a `stat` file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stat {
    /// The name.
    pub name: String,
    /// The letter of its state.
    pub state: char,
    /// The number of the parent.
    pub parent: u32,
    /// Page faults that read from a disk.
    pub major_faults: u64,
    /// User time in units of 1/100 s.
    pub user_ticks: u64,
    /// System time likewise.
    pub system_ticks: u64,
    /// User time of children that have ended and that it waited for, likewise.
    pub children_user_ticks: u64,
    /// Their system time.
    pub children_system_ticks: u64,
    /// Threads of the process.
    pub threads: u64,
    /// Start time, in units of 1/100 s since boot.
    pub started_ticks: u64,
    /// Resident memory in pages.
    pub resident_pages: u64,
    /// Whether it is a thread other than the first of its process, even if `/proc` shows it like a process.
    pub is_thread: bool,
}

impl Stat {
    /// Whether it has not ended.
    pub fn is_alive(&self) -> bool {
        !matches!(self.state, 'Z' | 'X')
    }
}

/// Parses `/proc/PID/stat` or `/proc/PID/task/TID/stat`.
pub fn stat_of(text: &str) -> Option<Stat> {
    let (_, rest) = text.split_once('(')?;
    let (name, rest) = rest.rsplit_once(')')?;
    let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
    // Field 3 of the manual page is index 0 here.
    let number = |field: usize| -> Option<u64> { fields.get(field - 3)?.parse().ok() };
    Some(Stat {
        name: name.to_owned(),
        state: fields.first()?.chars().next()?,
        parent: fields.get(1)?.parse().ok()?,
        major_faults: number(12)?,
        user_ticks: number(14)?,
        system_ticks: number(15)?,
        children_user_ticks: number(16)?,
        children_system_ticks: number(17)?,
        threads: number(20)?,
        started_ticks: number(22)?,
        resident_pages: number(24)?,
        // Only the first thread sends a signal when it ends.
        is_thread: fields.get(38 - 3) == Some(&"-1"),
    })
}

/// The parsed fields of a `schedstat` file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Scheduled {
    /// CPU time in nanoseconds.
    pub run_ns: u64,
    /// Time spent runnable but waiting for a processor, in nanoseconds.
    pub wait_ns: u64,
}

impl Scheduled {
    /// Parses `/proc/PID/task/TID/schedstat`.
    pub fn parse(text: &str) -> Option<Scheduled> {
        let mut numbers = text.split_ascii_whitespace().map_while(|number| number.parse().ok());
        Some(Scheduled { run_ns: numbers.next()?, wait_ns: numbers.next()? })
    }
}

impl Process {
    /// Adds the figures of `/proc/PID/io`.
    pub fn set_io(&mut self, text: &str) {
        for (name, number) in text.lines().filter_map(|line| line.split_once(": ")) {
            number.parse().into_iter().for_each(|number| self.take(name, number));
        }
    }

    /// Adds the figures of `/proc/PID/limits`.
    pub fn set_limits(&mut self, text: &str) {
        let limit = |line: &str| line.strip_prefix("Max open files")?.split_ascii_whitespace().next()?.parse().ok();
        self.descriptors_max = text.lines().find_map(limit);
    }
}

/// The cores on which a process may run, from `/proc/PID/status`; empty if it does not list them.
pub(crate) fn cores_of(status: &str) -> Vec<u32> {
    let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    list.and_then(|list| core_list(list.trim())).unwrap_or_default()
}

/// Parses the kernel's list of cores: `0-3,7`.
pub(crate) fn core_list(text: &str) -> Option<Vec<u32>> {
    let mut numbers = Vec::new();
    for part in text.split(',') {
        let (from, to) = part.split_once('-').unwrap_or((part, part));
        let (from, to): (u32, u32) = (from.parse().ok()?, to.parse().ok()?);
        // No machine has more; a longer list is invalid.
        if to > 65_536 {
            return None;
        }
        numbers.extend(from..=to);
    }
    Some(numbers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_name_may_contain_anything() {
        let rest =
            "S 17605 17605 15499 0 -1 4194304 99 0 6 0 123 45 7 8 20 0 9 0 2487743 3133440 393 18446744073709551615";
        for name in ["cat", "a) R 1", "((", "", "two words"] {
            let stat = stat_of(&format!("17622 ({name}) {rest}")).unwrap();
            let expected = Stat {
                name: name.to_owned(),
                state: 'S',
                parent: 17_605,
                major_faults: 6,
                user_ticks: 123,
                system_ticks: 45,
                children_user_ticks: 7,
                children_system_ticks: 8,
                threads: 9,
                started_ticks: 2_487_743,
                resident_pages: 393,
                is_thread: false,
            };
            assert_eq!(stat, expected);
        }
        for bad in ["", "1 (x", "1 (x) ", "1 (x) S 1 2 3", "1 x S 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1"] {
            assert_eq!(stat_of(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn times_and_bytes_are_parsed() {
        assert_eq!(Scheduled::parse("570849 2557388 2\n"), Some(Scheduled { run_ns: 570_849, wait_ns: 2_557_388 }));
        assert_eq!(Scheduled::parse("570849"), None);
        let mut process = Process::default();
        process.set_io(
            "rchar: 9\nwchar: 8\nsyscr: 1\nsyscw: 1\nread_bytes: 4096\nwrite_bytes: 0\ncancelled_write_bytes: 7\n",
        );
        assert_eq!((process.read, process.written), (Some(4096), Some(0)));
        let mut process = Process::default();
        process.set_io("read_bytes: x");
        assert_eq!((process.read, process.written), (None, None));
        process.set_limits(
            "Limit   Soft Limit  Hard Limit  Units\nMax open files            64        4096      files \n",
        );
        assert_eq!(process.descriptors_max, Some(64));
        process.set_limits("Max open files            unlimited        unlimited      files \n");
        assert_eq!(process.descriptors_max, None);
    }

    #[test]
    fn cpu_list_is_parsed() {
        let check = |text, expected: Option<&[u32]>| {
            assert_eq!(core_list(text).as_deref(), expected, "{text}");
            let status = format!("Cpus_allowed:\tf\nCpus_allowed_list:\t{text}\nMems_allowed:\t1\n");
            assert_eq!(cores_of(&status), expected.unwrap_or_default(), "{text}");
        };
        check("0", Some(&[0]));
        check("0-1,3", Some(&[0, 1, 3]));
        check("", None);
        check("0-", None);
        check("0-4294967295", None);
        assert!(cores_of("").is_empty());
    }

    proptest::proptest! {
        #[test]
        fn random_text_does_not_panic(text in "[0-9]{1,5} \\(\\PC{0,20}\\)?( [A-Z0-9-]{0,22}){0,30}") {
            stat_of(&text);
            Scheduled::parse(&text);
        }
    }
}
