//! `/proc/pressure` (the kernel's `Documentation/accounting/psi.rst`): how long work waited for processor, memory or disk.
//!
//! Of the whole machine. A kernel may be built or started without (`psi=0`).

use serde::{Deserialize, Serialize};

/// What was waited for, since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pressure {
    /// Processors.
    pub cpu: Stall,
    /// Memory: reclaim, swapping in, refaults.
    pub memory: Stall,
    /// Disks.
    pub io: Stall,
}

/// For how long.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stall {
    /// Microseconds in which some task waited.
    pub some_us: u64,
    /// Microseconds in which all tasks that had something to do waited.
    pub full_us: u64,
}

impl Stall {
    /// Reads one of the files.
    pub fn parse(text: &str) -> Option<Stall> {
        let total = |kind: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(kind))?;
            line.rsplit_once("total=")?.1.trim().parse().ok()
        };
        // That of the processors has no second line before 5.13.
        Some(Stall { some_us: total("some ")?, full_us: total("full ").unwrap_or(0) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn totals() {
        let check = |text: &str, expected: Option<(u64, u64)>| {
            assert_eq!(Stall::parse(text), expected.map(|(some_us, full_us)| Stall { some_us, full_us }), "{text:?}");
        };
        let some = "some avg10=2.76 avg60=5.63 avg300=23.89 total=8213874431\n";
        check(some, Some((8_213_874_431, 0)));
        check(
            &format!("{some}full avg10=0.00 avg60=0.57 avg300=3.56 total=1094126844\n"),
            Some((8_213_874_431, 1_094_126_844)),
        );
        check("", None);
        check("some avg10=1", None);
        check("full total=1", None);
    }
}
