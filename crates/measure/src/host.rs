//! What a figure depends on besides the programs: the machine, its kernel, and who else was using it.

use std::fs;

use serde::{Deserialize, Serialize};

use crate::Failure;

/// What stays the same from one run to the next, recorded beside each result.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// The name that the processor gives itself (`/proc/cpuinfo`).
    pub cpu: String,
    /// Its cores, as far as the kernel uses them.
    pub cores: usize,
    /// The kernel's release, as `uname -r` prints it.
    pub kernel: String,
    /// What TCP's senders do by default about congestion (`net.ipv4.tcp_congestion_control`).
    pub congestion_control: String,
}

impl Machine {
    /// The one that this program runs on.
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

/// CPU time that all cores have been busy since the start of the machine, in nanoseconds, by ticks of 10 ms (proc_stat(5)).
///
/// # Errors
/// When `/proc/stat` is not there or has another form.
pub fn busy_ns() -> Result<u64, Failure> {
    Ok(times()?.busy * TICK_NS)
}

/// CPU time that a hypervisor has taken from this machine since its start, all cores together, in nanoseconds, by ticks of
/// 10 ms; 0 where it does not say.
///
/// # Errors
/// As [`busy_ns`].
pub fn stolen_ns() -> Result<u64, Failure> {
    Ok(times()?.stolen * TICK_NS)
}

const TICK_NS: u64 = 10_000_000;

/// CPU times of all cores, in ticks.
struct Times {
    busy: u64,
    stolen: u64,
}

fn times() -> Result<Times, Failure> {
    let found = times_in(&read("/proc/stat")?);
    found.ok_or_else(|| Failure::failed("/proc/stat does not begin as in proc_stat(5)"))
}

fn times_in(stat: &str) -> Option<Times> {
    let figures = stat.lines().next()?.strip_prefix("cpu ")?.split_whitespace();
    let figures: Vec<u64> = figures.map(|figure| figure.parse().ok()).collect::<Option<_>>()?;
    // user, nice, system, idle, iowait, irq, softirq, steal; guests are in user.
    let [user, nice, system, _, _, irq, softirq, stolen] = *figures.first_chunk()?;
    Some(Times { busy: user + nice + system + irq + softirq + stolen, stolen })
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
    fn waiting_is_not_being_busy() {
        let times = times_in("cpu  1 20 300 4000 50000 600000 7000000 80000000 9 9\ncpu0 1").unwrap();
        assert_eq!((times.busy, times.stolen), (87_600_321, 80_000_000));
        assert!(times_in("cpu  1 20").is_none());
        assert!(busy_ns().unwrap() > 0);
    }

    #[test]
    fn this_machine_has_a_name_for_everything() {
        let machine = Machine::this().unwrap();
        assert!(machine.cores > 0 && !machine.kernel.is_empty() && !machine.congestion_control.is_empty());
        assert_eq!(load_average().unwrap().split(' ').count(), 3);
    }
}
