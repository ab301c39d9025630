//! Parses `/proc/pressure` (the kernel's `Documentation/accounting/psi.rst`): how long
//! tasks waited for processor, memory or disk.
//!
//! For the whole machine. The kernel may lack it (`psi=0`, or a build option).

use crate::figure::figures;

figures! {
    /// Pressure by resource, since boot.
    Pressure "pressure"
    /// Time in which some task waited for a processor.
    cpu_some: Option<N> => Counter Seconds "cpu some" as "cpu",
    /// Time in which all tasks waited for a processor.
    cpu_full: Option<N> => Counter Seconds "cpu full",
    /// Time in which some task waited for memory: reclaim, swapping in, refaults.
    memory_some: Option<N> => Counter Seconds "memory some" as "memory",
    /// Time in which all non-idle tasks waited for memory.
    memory_full: Option<N> => Counter Seconds "memory full",
    /// Time in which some task waited for a disk.
    io_some: Option<N> => Counter Seconds "io some" as "disk",
    /// Time in which all non-idle tasks waited for a disk.
    io_full: Option<N> => Counter Seconds "io full",
}

impl Pressure {
    /// Parses the file of a resource, with lines such as `some avg10=0.00 avg60=0.00 avg300=0.00 total=1094126844`.
    pub fn take_file(&mut self, resource: &str, text: &str) {
        for (kind, rest) in text.lines().filter_map(|line| line.split_once(' ')) {
            let us = rest.rsplit_once("total=").and_then(|(_, us)| us.trim().parse::<u64>().ok());
            us.into_iter().for_each(|us| self.take(&format!("{resource} {kind}"), us.saturating_mul(1000)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pressure_totals_are_parsed() {
        let some = "some avg10=2.76 avg60=5.63 avg300=23.89 total=8213874431\n";
        let both = format!("{some}full avg10=0.00 avg60=0.57 avg300=3.56 total=1094126844\n");
        let mut found = Pressure::default();
        found.take_file("cpu", some);
        found.take_file("memory", &both);
        found.take_file("io", "some avg10=1\nfull total=1");
        let expected = Pressure {
            cpu_some: Some(8_213_874_431_000),
            // The processor's file has no second line before 5.13.
            cpu_full: None,
            memory_some: Some(8_213_874_431_000),
            memory_full: Some(1_094_126_844_000),
            io_some: None,
            io_full: Some(1000),
        };
        assert_eq!(found, expected);
    }
}
