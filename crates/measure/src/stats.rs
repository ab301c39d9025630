//! Statistics of a few repetitions: the median, and a confidence interval for it that assumes nothing about their
//! distribution; and random numbers from a recorded seed, which determine the order of measurements.
//!
//! On a shared machine outliers lie on one side, so neither mean nor standard deviation
//! describes the runs. The interval is that of order statistics: the true median lies below
//! the k-th smallest of n values only if fewer than k of n tosses of a coin fall on one side,
//! whatever the distribution (Conover, Practical Nonparametric Statistics, section 3.2).

use std::f64::consts::LN_2;

/// The minimum coverage of an interval for a verdict, and 1 minus the maximum share of false discoveries.
pub const COVERAGE_MIN: f64 = 0.95;

/// The minimum number of blocks that a verdict needs. With all on one side of a bound, p is 1/64.
pub const BLOCKS_MIN: usize = 6;

/// A median and its confidence interval. `cut` values lie outside it on each
/// side; its coverage is 1 - 2 * sum of C(n, i) / 2^n for i from 0 to `cut`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Summary {
    /// Lower end of the interval, in the unit of the values.
    pub low: f64,
    /// The median.
    pub median: f64,
    /// Upper end of the interval.
    pub high: f64,
    /// The probability that such an interval contains the true median; 0 for a single value.
    pub coverage: f64,
}

impl Summary {
    /// Summarises these values; `None` if there are none. With fewer than 6
    /// the interval is their whole range, and its coverage is below 95 %.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Option<Summary> {
        Summary::at(COVERAGE_MIN, values)
    }

    /// As [`Summary::of`], with another coverage: each of several intervals that must all hold needs a higher one.
    pub fn at(level: f64, values: impl IntoIterator<Item = f64>) -> Option<Summary> {
        let values = sorted(values);
        let (n, median) = (values.len(), middle(&values)?);
        let mut tails = tails(n);
        let (mut cut, mut below) = (0, tails.next()?);
        for wider in tails.take(n.div_ceil(2).saturating_sub(1)).take_while(|tail| 1.0 - 2.0 * tail >= level) {
            (cut, below) = (cut + 1, wider);
        }
        let coverage = (1.0 - 2.0 * below).max(0.0);
        Some(Summary { low: values[cut], median, high: values[n - 1 - cut], coverage })
    }

    /// Summarises these values by an interval each end of which is right by itself in at least 95 % of cases, for a
    /// question about one side; `coverage` is that of one end. An end beyond a bound is the same as a [`sign_test`] below
    /// 5 %. It takes 5 values.
    pub fn one_sided(values: impl IntoIterator<Item = f64>) -> Option<Summary> {
        let both = Summary::at(2.0 * COVERAGE_MIN - 1.0, values)?;
        Some(Summary { coverage: f64::midpoint(both.coverage, 1.0), ..both })
    }

    /// Whether the two intervals overlap.
    pub fn meets(&self, other: &Summary) -> bool {
        self.low <= other.high && other.low <= self.high
    }
}

/// The probability of at most 0, 1, ... `n` heads in `n` tosses of a coin. Logarithms, as 1 / 2^n underflows for n above 1074.
fn tails(n: usize) -> impl Iterator<Item = f64> {
    let (mut ln_term, mut sum) = (n as f64 * -LN_2, 0.0);
    (0..=n).map(move |heads| {
        if heads > 0 {
            ln_term += ((n - heads + 1) as f64 / heads as f64).ln();
        }
        sum += ln_term.exp();
        sum
    })
}

/// The exact one-sided sign test: the probability that at least `hits` of `n` values lie on one side of a bound although the
/// true median does not, whatever their distribution (Conover, section 3.4). 1 without values.
pub fn sign_test(hits: usize, n: usize) -> f64 {
    // By symmetry, at least `hits` on one side is at most `n - hits` on the other.
    tails(n).nth(n.saturating_sub(hits)).map_or(1.0, |p| p.min(1.0))
}

/// The number of values that brings a sign test to `level`, if as large a share of them lies on one side as of these.
/// `None` if this is not more than half, or more than 1,000 are needed.
pub fn blocks_needed(hits: usize, n: usize, level: f64) -> Option<usize> {
    const MOST: usize = 1000;
    (BLOCKS_MIN.max(n)..=MOST).find(|&count| 2 * hits > n && sign_test(count * hits / n, count) <= level)
}

/// Adjusts p-values for their number by the procedure of Benjamini and Hochberg (1995): if all tests whose adjusted value is
/// at most 5 % are called discoveries, on average at most 5 % of these are false.
pub fn false_discovery(p: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..p.len()).collect();
    order.sort_by(|one, other| p[*other].total_cmp(&p[*one]));
    let (mut adjusted, mut least) = (vec![1.0; p.len()], 1.0_f64);
    for (at, rank) in order.into_iter().zip((1..=p.len()).rev()) {
        least = least.min(p[at] * p.len() as f64 / rank as f64);
        adjusted[at] = least;
    }
    adjusted
}

/// The median; `None` if there are no values.
pub fn median(values: impl IntoIterator<Item = f64>) -> Option<f64> {
    middle(&sorted(values))
}

fn sorted(values: impl IntoIterator<Item = f64>) -> Vec<f64> {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    values
}

fn middle(sorted: &[f64]) -> Option<f64> {
    let n = sorted.len();
    Some(f64::midpoint(*sorted.get(n.checked_sub(1)? / 2)?, sorted[n / 2]))
}

/// The 97.5 % quantile of Student's t with `degrees` degrees of freedom: an interval of that many standard errors to
/// either side covers 95 %. Cornish and Fisher's expansion around the normal distribution (Abramowitz and Stegun,
/// 26.7.5), 0.1 % off from 5 degrees on; below that, table values. Infinite for 0 degrees.
pub fn student(degrees: usize) -> f64 {
    const FEW: [f64; 5] = [f64::INFINITY, 12.706, 4.303, 3.182, 2.776];
    if let Some(known) = FEW.get(degrees) {
        return *known;
    }
    let (x, n): (f64, f64) = (1.959_964, degrees as f64);
    let first = (x.powi(3) + x) / 4.0;
    let second = (5.0 * x.powi(5) + 16.0 * x.powi(3) + 3.0 * x) / 96.0;
    let third = (3.0 * x.powi(7) + 19.0 * x.powi(5) + 17.0 * x.powi(3) - 15.0 * x) / 384.0;
    x + first / n + second / n.powi(2) + third / n.powi(3)
}

/// SplitMix64 (Steele, Lea, Flood 2014): good enough to shuffle and to draw, and the same on every machine.
#[derive(Clone, Debug)]
pub struct Random(
    /// The state; initially the seed.
    pub u64,
);

impl Random {
    /// The next 64 bits.
    #[allow(clippy::should_implement_trait, reason = "an infinite sequence, which no iterator returns")]
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A uniform number from 0 to 1, without 1.
    pub fn fraction(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// A uniform number below `end`, which is not 0. The bias is below `end` / 2^53.
    pub fn below(&mut self, end: usize) -> usize {
        (self.fraction() * end as f64) as usize
    }

    /// Shuffles items (Fisher and Yates).
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for end in (1..items.len()).rev() {
            items.swap(end, self.below(end + 1));
        }
    }

    /// Draws the index of an item in proportion to its weight; `sums` are the running sums of the weights.
    pub fn weighted(&mut self, sums: &[f64]) -> usize {
        let at = self.fraction() * sums.last().copied().unwrap_or_default();
        sums.partition_point(|sum| *sum <= at).min(sums.len() - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn median_has_confidence_interval() {
        let check = |values: &[f64], low: f64, median: f64, high: f64, coverage: f64| {
            let found = Summary::of(values.iter().copied()).unwrap();
            assert_eq!((found.low, found.median, found.high), (low, median, high), "{values:?}");
            assert!((found.coverage - coverage).abs() < 1e-4, "{values:?}: {found:?}");
        };
        assert_eq!(Summary::of([]), None);
        check(&[3.0], 3.0, 3.0, 3.0, 0.0);
        check(&[5.0, 3.0], 3.0, 4.0, 5.0, 0.5);
        // Tables of order statistics: 5 values reach 93.75 %, 6 values 96.88 %, the 2nd to the 8th of 9 96.09 %.
        check(&[5.0, 1.0, 2.0, 4.0, 3.0], 1.0, 3.0, 5.0, 0.9375);
        check(&[6.0, 5.0, 1.0, 2.0, 4.0, 3.0], 1.0, 3.5, 6.0, 0.9688);
        check(&[9.0, 8.0, 7.0, 6.0, 5.0, 4.0, 3.0, 2.0, 1.0], 2.0, 5.0, 8.0, 0.9609);
        // The 6th to the 15th of 20, a textbook value.
        let twenty: Vec<f64> = (1..=20).map(f64::from).collect();
        check(&twenty, 6.0, 10.5, 15.0, 0.9586);
        // More values than 1 / 2^n can represent; 1201 of 2500, computed with integers.
        let many: Vec<f64> = (1..=2500).map(f64::from).collect();
        check(&many, 1201.0, 1250.5, 1300.0, 0.9523);
        assert_eq!((median([3.0, 1.0, 2.0]), median([])), (Some(2.0), None));
        // For a level of 99 %, the 4th to the 17th.
        let wider = Summary::at(0.99, twenty).unwrap();
        assert_eq!((wider.low, wider.median, wider.high), (4.0, 10.5, 17.0));
        assert!((wider.coverage - 0.9974).abs() < 1e-4, "{wider:?}");
    }

    #[test]
    fn sign_test_and_one_sided_interval_agree() {
        let check = |hits: usize, n: usize, p: f64| {
            let found = sign_test(hits, n);
            assert!((found - p).abs() < 1e-9, "{hits} of {n}: {found}");
        };
        check(6, 6, 1.0 / 64.0);
        check(5, 6, 7.0 / 64.0);
        check(7, 8, 9.0 / 256.0);
        check(0, 6, 1.0);
        check(0, 0, 1.0);
        assert!((sign_test(1250, 2500) - 0.508).abs() < 1e-3);
        let ends = |n: i32| Summary::one_sided((1..=n).map(f64::from)).unwrap();
        let eight = ends(8);
        assert_eq!((eight.low, eight.high), (2.0, 7.0));
        assert!((1.0 - eight.coverage - sign_test(7, 8)).abs() < 1e-9, "{eight:?}");
        assert!((1.0 - ends(6).coverage - sign_test(6, 6)).abs() < 1e-9);
        assert!(ends(4).coverage < COVERAGE_MIN && ends(5).coverage > COVERAGE_MIN);
    }

    #[test]
    fn blocks_needed_follow_share_and_level() {
        assert_eq!(blocks_needed(2, 2, 0.05), Some(6));
        assert_eq!(blocks_needed(6, 6, 0.05), Some(6));
        // Seven agreeing blocks are 1/128.
        assert_eq!(blocks_needed(6, 6, 0.01), Some(7));
        assert_eq!(blocks_needed(5, 6, 0.05).map(|count| sign_test(count * 5 / 6, count) <= 0.05), Some(true));
        assert_eq!((blocks_needed(3, 6, 0.05), blocks_needed(0, 0, 0.05)), (None, None));
        assert_eq!(blocks_needed(501, 1000, 0.05), None, "more than a thousand");
    }

    #[test]
    fn false_discovery_matches_published_example() {
        // Benjamini and Hochberg (1995), section 3.2: of 15 tests of a trial the first four are discoveries at 5 %.
        let p = [
            0.0001, 0.0004, 0.0019, 0.0095, 0.0201, 0.0278, 0.0298, 0.0344, 0.0459, 0.3240, 0.4262, 0.5719, 0.6528,
            0.7590, 1.0,
        ];
        let adjusted = false_discovery(&p);
        assert_eq!(adjusted.iter().filter(|p| **p <= 0.05).count(), 4, "{adjusted:?}");
        assert!((adjusted[3] - 0.035_625).abs() < 1e-9 && adjusted.is_sorted() && adjusted[14] == 1.0);
        // The order of the tests does not matter.
        assert_eq!(false_discovery(&[0.5, 0.01]), [0.5, 0.02]);
        assert!(false_discovery(&[]).is_empty());
    }

    #[test]
    fn interval_covers_median_at_nominal_rate() {
        let mut random = Random(1);
        let hits = (0..2000).filter(|_| {
            // A skewed distribution whose median is ln 2.
            let found = Summary::of((0..9).map(|_| -random.fraction().ln())).unwrap();
            found.low <= 2f64.ln() && 2f64.ln() <= found.high
        });
        let share = hits.count() as f64 / 2000.0;
        assert!((share - 0.9609).abs() < 0.02, "{share}");
    }

    #[test]
    fn student_quantiles_match_tables() {
        for (degrees, expected) in
            [(1, 12.706), (4, 2.776), (5, 2.571), (7, 2.365), (10, 2.228), (30, 2.042), (1000, 1.962)]
        {
            let found = student(degrees);
            assert!((found / expected - 1.0).abs() < 0.002, "{degrees}: {found}, not {expected}");
        }
        assert!(student(0).is_infinite());
    }

    #[test]
    fn random_numbers_match_test_vectors() {
        // The first two of SplitMix64 from 1234567, as in the test vectors of the xoshiro generators.
        let mut random = Random(1_234_567);
        assert_eq!([random.next(), random.next()], [6_457_827_717_110_365_317, 3_203_168_211_198_807_973]);
        let mut items: Vec<usize> = (0..100).collect();
        random.shuffle(&mut items);
        assert_ne!(items, (0..100).collect::<Vec<_>>());
        items.sort_unstable();
        assert_eq!(items, (0..100).collect::<Vec<_>>());
    }

    #[test]
    fn draws_follow_weights() {
        let mut random = Random(7);
        let mut counts = [0; 3];
        (0..10_000).for_each(|_| counts[random.weighted(&[0.5, 0.5, 2.0])] += 1);
        assert_eq!(counts[1], 0, "its weight is 0");
        assert!((2300..2700).contains(&counts[0]), "{counts:?}");
    }
}
