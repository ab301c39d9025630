//! Counts of samples, and the shares that they estimate.
//!
//! A share p of n independent samples has a standard error of about sqrt(p (1 - p) / n). The interval
//! is Wilson's (1927), at 95 %: unlike the normal approximation it stays within 0 and 1, and is
//! accurate for small shares, as most of a profile's are.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

/// A share, from a count of samples.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Share {
    /// Number of samples.
    pub samples: u64,
    /// Share of all samples, from 0 to 1.
    pub share: f64,
    /// Lower end of its 95 % interval.
    pub low: f64,
    /// Upper end.
    pub high: f64,
}

impl Share {
    /// The share of `samples` in `all`. Without samples it is unknown: from 0 to 1.
    pub fn of(samples: u64, all: u64) -> Share {
        if all == 0 {
            return Share { samples, share: 0.0, low: 0.0, high: 1.0 };
        }
        // The quantile of the normal distribution for 95 %.
        const Z: f64 = 1.959_964;
        let n = all as f64;
        let share = samples as f64 / n;
        let scale = 1.0 + Z * Z / n;
        let middle = (share + Z * Z / (2.0 * n)) / scale;
        let half = Z / scale * (share * (1.0 - share) / n + Z * Z / (4.0 * n * n)).sqrt();
        Share { samples, share, low: (middle - half).clamp(0.0, share), high: (middle + half).clamp(share, 1.0) }
    }
}

/// A line of a view.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// Name.
    pub name: String,
    /// Share.
    #[serde(flatten)]
    pub share: Share,
    /// Share including nested contexts or called functions; these shares add up to more than 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub around: Option<Share>,
}

/// Counts by name.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    counts: HashMap<String, (u64, u64)>,
    total: u64,
}

impl Tally {
    /// Adds samples.
    pub(crate) fn add(&mut self, name: &str, samples: u64) {
        self.entry(name).0 += samples;
        self.total += samples;
    }

    /// Adds samples that ran within this name.
    pub(crate) fn add_around(&mut self, name: &str, samples: u64) {
        self.entry(name).1 += samples;
    }

    /// Adds samples to each of these names once.
    pub(crate) fn add_each_around<'a>(&mut self, names: impl Iterator<Item = &'a str>, samples: u64) {
        let mut names: Vec<&str> = names.collect();
        names.sort_unstable();
        names.dedup();
        names.into_iter().for_each(|name| self.add_around(name, samples));
    }

    fn entry(&mut self, name: &str) -> &mut (u64, u64) {
        self.counts.entry(name.to_owned()).or_default()
    }

    /// The sum, without samples added by `add_around`.
    pub(crate) fn total(&self) -> u64 {
        self.total
    }

    /// The samples added to this name.
    pub(crate) fn count(&self, name: &str) -> u64 {
        self.counts.get(name).map_or(0, |(count, _)| *count)
    }

    /// The rows, largest first.
    pub(crate) fn rows(&self) -> Vec<Row> {
        let share = |samples| Share::of(samples, self.total);
        let row = |(name, (inside, around)): (&String, &(u64, u64))| Row {
            name: name.clone(),
            share: share(*inside),
            around: (*around > 0).then(|| share(*around)),
        };
        let mut rows: Vec<Row> = self.counts.iter().map(row).collect();
        rows.sort_by(|a, b| b.share.samples.cmp(&a.share.samples).then_with(|| a.name.cmp(&b.name)));
        rows
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn wilson_interval_matches_reference() {
        let check = |samples, all, low: f64, high: f64| {
            let found = Share::of(samples, all);
            assert!(
                (found.low - low).abs() < 5e-4 && (found.high - high).abs() < 5e-4,
                "{samples} of {all}: {found:?}"
            );
        };
        // Newcombe 1998, table I, method 3.
        check(81, 263, 0.2553, 0.3662);
        check(15, 148, 0.0624, 0.1605);
        check(0, 20, 0.0, 0.1611);
        check(1, 29, 0.0061, 0.1718);
        check(0, 0, 0.0, 1.0);
        check(50, 50, 0.9287, 1.0);
    }

    #[test]
    fn rows_are_sorted_and_sum_up() {
        let mut tally = Tally::default();
        tally.add("b", 2);
        tally.add("a", 2);
        tally.add("c", 6);
        tally.add_around("a", 8);
        let rows = tally.rows();
        let names: Vec<&str> = rows.iter().map(|row| row.name.as_str()).collect();
        assert_eq!((names, tally.total(), tally.count("c"), tally.count("x")), (vec!["c", "a", "b"], 10, 6, 0));
        assert_eq!((rows[1].around.map(|share| share.share), rows[2].around), (Some(0.8), None));
    }

    proptest! {
        #[test]
        fn interval_contains_its_share(all in 0..10_000_u64, part in 0.0..=1.0_f64) {
            let share = Share::of((all as f64 * part) as u64, all);
            prop_assert!(0.0 <= share.low && share.low <= share.share && share.share <= share.high && share.high <= 1.0);
        }
    }
}
