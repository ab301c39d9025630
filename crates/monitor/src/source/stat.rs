//! Parses `/proc/stat` (proc_stat(5)): processor time by state, in units of 1/100 s, and counts of interrupts.
//!
//! On a kernel with tick accounting (`CONFIG_TICK_CPU_ACCOUNTING`) all states but idle are sampled
//! 250 times per second: accurate over a second, coarse over a twentieth. CPU times of the server's
//! threads are exact, from another source (`task`).

use amped_measure::host::Cpu;
use serde::{Deserialize, Serialize};

use crate::figure::figures;

/// The kinds of soft interrupts, in the kernel's order.
pub const SOFTIRQS: [&str; 10] =
    ["hi", "timer", "net_tx", "net_rx", "block", "irq_poll", "tasklet", "sched", "hrtimer", "rcu"];

figures! {
    /// Interrupts and tasks, since boot and now.
    System ""
    /// Interrupts of devices and of the machine.
    interrupts: Option<N> => Counter Things "intr" as "interrupts",
    /// Context switches.
    context_switches: Option<N> => Counter Things "ctxt" as "switches",
    /// Processes and threads created.
    forks: Option<N> => Counter Things "processes",
    /// Runnable tasks, running or not.
    procs_running: Option<N> => Gauge Things "procs_running",
    /// Tasks waiting for a disk.
    procs_blocked: Option<N> => Gauge Things "procs_blocked",
}

/// Processor figures of the whole machine.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Host {
    /// All processors together.
    pub cpu: Cpu,
    /// Each processor.
    pub cores: Vec<Cpu>,
    /// Soft interrupts by kind, in the order of [`SOFTIRQS`].
    pub softirqs: Vec<u64>,
    /// Interrupts and tasks.
    pub system: System,
}

impl Host {
    /// Parses `/proc/stat`; `None` if it does not begin as expected.
    pub fn parse(text: &str) -> Option<Host> {
        let mut host = Host { cpu: Cpu::parse(text.lines().next()?.strip_prefix("cpu ")?)?, ..Host::default() };
        for line in text.lines().skip(1) {
            let (name, rest) = line.split_once(' ')?;
            match name {
                "softirq" => host.softirqs = numbers(rest).skip(1).collect(),
                core if core.starts_with("cpu") => host.cores.push(Cpu::parse(rest)?),
                _ => numbers(rest).take(1).for_each(|first| host.system.take(name, first)),
            }
        }
        Some(host)
    }
}

fn numbers(line: &str) -> impl Iterator<Item = u64> {
    line.split_ascii_whitespace().map_while(|number| number.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
cpu  2363128 87204 413749 1809868 164580 0 64524 89314 0 0
cpu0 1167215 38304 199845 935502 79410 0 31451 44402 0 0
cpu1 1195912 48900 213903 874365 85169 0 33073 44912 0 0
intr 53826212 0 0 1 16
ctxt 161616835
btime 1795300000
processes 421001
procs_running 3
procs_blocked 0
softirq 295000000 0 2553423 472 278996977 3767039 0 143 2336830 5573308 7707739
";

    #[test]
    fn parses_kernel_format() {
        let host = Host::parse(TEXT).unwrap();
        let cpu = Cpu {
            user: 2_450_332,
            system: 413_749,
            idle: 1_809_868,
            iowait: 164_580,
            interrupt: 0,
            softirq: 64_524,
            steal: 89_314,
        };
        assert_eq!((host.cpu, host.cores.len()), (cpu, 2));
        let system = System {
            interrupts: Some(53_826_212),
            context_switches: Some(161_616_835),
            forks: Some(421_001),
            procs_running: Some(3),
            procs_blocked: Some(0),
        };
        assert_eq!(host.system, system);
        assert_eq!(host.softirqs.len(), SOFTIRQS.len());
        assert_eq!(host.softirqs[3], 278_996_977);
        assert_eq!(host.cores[1].since(&host.cores[0]).user, 1_244_812 - 1_205_519);
    }

    #[test]
    fn malformed_stat_is_rejected() {
        for bad in ["", "cpu", "cpu  1 2 3", "cpu0 1 2 3 4 5 6 7", "cpu  1 2 3 4 5 6 7 8\nctxt"] {
            assert_eq!(Host::parse(bad), None, "{bad:?}");
        }
    }

    proptest::proptest! {
        #[test]
        fn random_text_does_not_panic(text in ".{0,200}", cut in 0..TEXT.len()) {
            Host::parse(&text);
            Host::parse(&TEXT[..cut]);
        }
    }
}
