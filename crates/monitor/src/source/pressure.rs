//! `/proc/pressure` (the kernel's `Documentation/accounting/psi.rst`): how long work waited for processor, memory or disk.
//!
//! Of the whole machine. A kernel may be built or started without (`psi=0`).

use crate::figure::figures;

figures! {
    /// What was waited for, since the start.
    Pressure "pressure"
    /// Time in which some task waited for a processor.
    cpu_some: Option<N> => Counter Seconds as "cpu",
    /// Time in which all tasks waited for a processor.
    cpu_full: Option<N> => Counter Seconds,
    /// Time in which some task waited for memory: reclaim, swapping in, refaults.
    memory_some: Option<N> => Counter Seconds as "memory",
    /// Time in which all tasks that had something to do waited for memory.
    memory_full: Option<N> => Counter Seconds,
    /// Time in which some task waited for a disk.
    io_some: Option<N> => Counter Seconds as "disk",
    /// Time in which all tasks that had something to do waited for a disk.
    io_full: Option<N> => Counter Seconds,
}

impl Pressure {
    /// Reads the three files.
    pub fn parse(cpu: &str, memory: &str, io: &str) -> Pressure {
        let total = |text: &str, kind: &str| -> Option<u64> {
            let line = text.lines().find_map(|line| line.strip_prefix(kind))?;
            let us: u64 = line.rsplit_once("total=")?.1.trim().parse().ok()?;
            Some(us.saturating_mul(1000))
        };
        Pressure {
            cpu_some: total(cpu, "some "),
            cpu_full: total(cpu, "full "),
            memory_some: total(memory, "some "),
            memory_full: total(memory, "full "),
            io_some: total(io, "some "),
            io_full: total(io, "full "),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn totals() {
        let some = "some avg10=2.76 avg60=5.63 avg300=23.89 total=8213874431\n";
        let both = format!("{some}full avg10=0.00 avg60=0.57 avg300=3.56 total=1094126844\n");
        let found = Pressure::parse(some, &both, "some avg10=1\nfull total=1");
        let expected = Pressure {
            cpu_some: Some(8_213_874_431_000),
            // That of the processors has no second line before 5.13.
            cpu_full: None,
            memory_some: Some(8_213_874_431_000),
            memory_full: Some(1_094_126_844_000),
            io_some: None,
            io_full: Some(1000),
        };
        assert_eq!(found, expected);
    }
}
