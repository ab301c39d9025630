//! The conditions of a measurement besides the programs: the machine, its kernel, and the load of other processes.

use std::fs;

use serde::{Deserialize, Serialize};

use crate::Failure;

/// The properties of a machine that do not change between runs, recorded with each result.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// The processor's model name (`/proc/cpuinfo`).
    pub cpu: String,
    /// Cores that the kernel uses.
    pub cores: usize,
    /// The kernel's release, as `uname -r` prints it.
    pub kernel: String,
    /// The default congestion control of TCP (`net.ipv4.tcp_congestion_control`).
    pub congestion_control: String,
}

impl Machine {
    /// The machine that this program runs on.
    ///
    /// # Errors
    /// When `/proc` is not mounted.
    pub fn this() -> Result<Machine, Failure> {
        let cpus = read("/proc/cpuinfo")?;
        let cpu = cpus.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
        Ok(Machine {
            cpu: cpu.map_or("unknown", |(_, name)| name).to_owned(),
            cores: cpus.lines().filter(|line| line.starts_with("processor")).count(),
            kernel: read("/proc/sys/kernel/osrelease")?,
            congestion_control: read("/proc/sys/net/ipv4/tcp_congestion_control")?,
        })
    }
}

/// The load average of 1, 5 and 15 minutes (proc_loadavg(5)).
///
/// # Errors
/// When `/proc` is not mounted.
pub fn load_average() -> Result<String, Failure> {
    Ok(read("/proc/loadavg")?.split(' ').take(3).collect::<Vec<_>>().join(" "))
}

/// CPU time that all cores have been busy since boot, in nanoseconds, in ticks of 10 ms (proc_stat(5)).
///
/// # Errors
/// When `/proc/stat` is missing or has another format.
pub fn busy_ns() -> Result<u64, Failure> {
    Ok(times()?.busy() * TICK_NS)
}

/// CPU time that a hypervisor has stolen from this machine since boot, all cores together, in nanoseconds, in ticks of
/// 10 ms; 0 where the hypervisor does not report it.
///
/// # Errors
/// Those of [`busy_ns`].
pub fn stolen_ns() -> Result<u64, Failure> {
    Ok(times()?.steal * TICK_NS)
}

const TICK_NS: u64 = 10_000_000;

fn times() -> Result<Cpu, Failure> {
    all_cores(&read("/proc/stat")?).ok_or_else(|| Failure::failed("/proc/stat does not begin as proc_stat(5) says"))
}

fn all_cores(stat: &str) -> Option<Cpu> {
    Cpu::parse(stat.lines().next()?.strip_prefix("cpu ")?)
}

/// CPU time of one processor, or of all, by state since boot, in units of 1/100 s (`USER_HZ`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cpu {
    /// User code, including guests and niced processes.
    pub user: u64,
    /// The kernel on behalf of a process.
    pub system: u64,
    /// Idle.
    pub idle: u64,
    /// Idle while a process waited for a disk.
    pub iowait: u64,
    /// Interrupts.
    pub interrupt: u64,
    /// Work that interrupts deferred, such as most of packet reception.
    pub softirq: u64,
    /// Stolen by the hypervisor for another virtual machine.
    pub steal: u64,
}

impl Cpu {
    /// Parses the fields after the name in a line of `/proc/stat` (proc_stat(5)).
    pub fn parse(line: &str) -> Option<Cpu> {
        let mut numbers = line.split_ascii_whitespace().map_while(|number| number.parse::<u64>().ok());
        let mut next = || numbers.next();
        let (user, nice, system, idle, iowait) = (next()?, next()?, next()?, next()?, next()?);
        let (interrupt, softirq) = (next()?, next()?);
        // `user` includes guests already. `steal` was added last, with 2.6.11.
        let (user, steal) = (user.saturating_add(nice), next().unwrap_or(0));
        Some(Cpu { user, system, idle, iowait, interrupt, softirq, steal })
    }

    /// All states but idle and iowait.
    pub fn busy(&self) -> u64 {
        self.total().saturating_sub(self.idle).saturating_sub(self.iowait)
    }

    /// The sum of all states.
    pub fn total(&self) -> u64 {
        let Cpu { user, system, idle, iowait, interrupt, softirq, steal } = self;
        // A recorded or invented text may hold numbers that no kernel counts.
        [user, system, idle, iowait, interrupt, softirq, steal]
            .into_iter()
            .fold(0, |sum: u64, part| sum.saturating_add(*part))
    }

    /// The difference to an earlier reading.
    pub fn since(&self, earlier: &Cpu) -> Cpu {
        Cpu {
            user: self.user.saturating_sub(earlier.user),
            system: self.system.saturating_sub(earlier.system),
            idle: self.idle.saturating_sub(earlier.idle),
            iowait: self.iowait.saturating_sub(earlier.iowait),
            interrupt: self.interrupt.saturating_sub(earlier.interrupt),
            softirq: self.softirq.saturating_sub(earlier.softirq),
            steal: self.steal.saturating_sub(earlier.steal),
        }
    }
}

fn read(path: &str) -> Result<String, Failure> {
    let text = fs::read_to_string(path).map_err(|error| {
        Failure::failed(format!("cannot read {path}: {error}; is /proc mounted (mount -t proc proc /proc)?"))
    })?;
    Ok(text.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn iowait_is_not_busy_time() {
        let times = all_cores("cpu  1 20 300 4000 50000 600000 7000000 80000000 9 9\ncpu0 1").unwrap();
        assert_eq!((times.busy(), times.steal, times.total()), (87_600_321, 80_000_000, 87_654_321));
        assert!(all_cores("cpu  1 20").is_none() && all_cores("cpu0 1 2 3 4 5 6 7 8").is_none());
        assert!(busy_ns().unwrap() > 0);
    }

    #[test]
    fn machine_description_is_complete() {
        let machine = Machine::this().unwrap();
        assert!(machine.cores > 0 && !machine.kernel.is_empty() && !machine.congestion_control.is_empty());
        assert_eq!(load_average().unwrap().split(' ').count(), 3);
    }
}
