//! `/proc/stat` (proc_stat(5)): what the processors did, in units of 1/100 s, and how often they were interrupted.
//!
//! On a kernel with tick accounting (`CONFIG_TICK_CPU_ACCOUNTING`) all but idle is sampled 250 times a second: good over a
//! second, coarse over a twentieth. What the server's threads used is exact, and from elsewhere (`task`).

use amped_measure::host::Cpu;
use serde::{Deserialize, Serialize};

/// The kinds of soft interrupts, as the kernel numbers them.
pub const SOFTIRQS: [&str; 10] =
    ["hi", "timer", "net_tx", "net_rx", "block", "irq_poll", "tasklet", "sched", "hrtimer", "rcu"];

/// The whole machine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Host {
    /// All processors together.
    pub cpu: Cpu,
    /// Each of them.
    pub cores: Vec<Cpu>,
    /// Interrupts of devices and of the machine itself.
    pub interrupts: u64,
    /// Soft interrupts by kind, in the order of [`SOFTIRQS`].
    pub softirqs: Vec<u64>,
    /// How often one task followed another.
    pub context_switches: u64,
    /// Processes and threads that were made.
    pub forks: u64,
}

impl Host {
    /// Reads `/proc/stat`; `None` where it does not begin as it should.
    pub fn parse(text: &str) -> Option<Host> {
        let mut host = Host { cpu: Cpu::parse(text.lines().next()?.strip_prefix("cpu ")?)?, ..Host::default() };
        for line in text.lines().skip(1) {
            let (name, rest) = line.split_once(' ')?;
            let first = || -> Option<u64> { rest.split(' ').next()?.parse().ok() };
            match name {
                "intr" => host.interrupts = first()?,
                "ctxt" => host.context_switches = first()?,
                "processes" => host.forks = first()?,
                "softirq" => host.softirqs = numbers(rest).skip(1).collect(),
                core if core.starts_with("cpu") => host.cores.push(Cpu::parse(rest)?),
                _ => {}
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
    fn reads_what_the_kernel_writes() {
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
        assert_eq!((host.interrupts, host.context_switches, host.forks), (53_826_212, 161_616_835, 421_001));
        assert_eq!(host.softirqs.len(), SOFTIRQS.len());
        assert_eq!(host.softirqs[3], 278_996_977);
        assert_eq!(host.cores[1].since(&host.cores[0]).user, 1_244_812 - 1_205_519);
    }

    #[test]
    fn what_it_is_not_is_refused() {
        for bad in ["", "cpu", "cpu  1 2 3", "cpu0 1 2 3 4 5 6 7", "cpu  1 2 3 4 5 6 7 8\nctxt x"] {
            assert_eq!(Host::parse(bad), None, "{bad:?}");
        }
    }

    proptest::proptest! {
        #[test]
        fn no_text_makes_it_stop(text in ".{0,200}", cut in 0..TEXT.len()) {
            Host::parse(&text);
            Host::parse(&TEXT[..cut]);
        }
    }
}
