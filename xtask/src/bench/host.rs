//! What a figure depends on besides the program: the machine, its kernel, and who else was using it.

use std::fs;

use serde::{Deserialize, Serialize};

use crate::{Outcome, output, program};

/// The machine and the version, as recorded beside each result.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Host {
    pub(super) cpu: String,
    pub(super) cores: usize,
    pub(super) kernel: String,
    pub(super) congestion_control: String,
    pub(super) wrk: String,
    /// The commit that was measured, with `+` where files were changed since.
    pub(super) commit: String,
    /// When the measuring began.
    pub(super) date: String,
    /// 1, 5 and 15 minutes, before the measuring and after it.
    pub(super) load_before: String,
    pub(super) load_after: String,
}

impl Host {
    pub(super) fn now() -> Outcome<Host> {
        let cpus = read("/proc/cpuinfo")?;
        let cpu = cpus.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
        let mut describe = program("git");
        describe.args(["-c", "safe.directory=*", "describe", "--always", "--abbrev=10", "--dirty=+"]);
        let version = program("wrk").arg("-v").output().map_err(|error| format!("cannot start wrk: {error}"))?;
        let version = String::from_utf8_lossy(&version.stdout).into_owned();
        Ok(Host {
            cpu: cpu.map_or("unknown", |(_, name)| name).to_owned(),
            cores: cpus.lines().filter(|line| line.starts_with("processor")).count(),
            kernel: read("/proc/sys/kernel/osrelease")?,
            congestion_control: read("/proc/sys/net/ipv4/tcp_congestion_control")?,
            wrk: version.split(" [").next().unwrap_or_default().trim().to_owned(),
            commit: output(&mut describe)?.trim().to_owned(),
            date: output(program("date").args(["--utc", "+%F %H:%M UTC"]))?.trim().to_owned(),
            load_before: load()?,
            load_after: String::new(),
        })
    }
}

/// The load average.
pub(super) fn load() -> Outcome<String> {
    Ok(read("/proc/loadavg")?.split(' ').take(3).collect::<Vec<_>>().join(" "))
}

/// CPU time that all cores have been busy since the start of the machine, in nanoseconds, by ticks of 10 ms (proc_stat(5)).
pub(super) fn busy_ns() -> Outcome<u64> {
    busy_ticks(&read("/proc/stat")?).map(|ticks| ticks * 10_000_000).ok_or_else(|| "/proc/stat has changed".to_owned())
}

fn busy_ticks(stat: &str) -> Option<u64> {
    let figures = stat.lines().next()?.strip_prefix("cpu ")?.split_whitespace();
    let figures: Vec<u64> = figures.map(|figure| figure.parse().ok()).collect::<Option<_>>()?;
    // user, nice, system, idle, iowait, irq, softirq, steal; guests are in user.
    let [user, nice, system, _, _, irq, softirq, steal] = figures.first_chunk()?;
    Some(user + nice + system + irq + softirq + steal)
}

fn read(path: &str) -> Outcome<String> {
    Ok(fs::read_to_string(path).map_err(|error| format!("cannot read {path}: {error}"))?.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiting_is_not_being_busy() {
        assert_eq!(busy_ticks("cpu  1 20 300 4000 50000 600000 7000000 80000000 9 9\ncpu0 1"), Some(87_600_321));
        assert_eq!(busy_ticks("cpu  1 20"), None);
        assert!(busy_ns().unwrap() > 0);
    }
}
