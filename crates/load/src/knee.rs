//! The capacity of a server from runs at several rates. Bisecting single runs would mistake luck for the server's
//! capacity. [`capacity`] decides by an objective which rates the server sustained; [`bend`] finds the change point
//! where throughput stops following the offered load, with a confidence interval.

use std::fmt;

use amped_measure::Validity;
use amped_measure::stats::student;
use serde::Serialize;

use crate::condition::Condition;
use crate::outcome::{Loop, Outcome};
use crate::window::{Pace, UNSERVED_MAX};

/// The rates between which a server stops sustaining the load.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Capacity {
    /// The highest rate up to which the server sustained all rates, each in most runs, in connections per second.
    pub sustained: f64,
    /// The runs that support it.
    pub sustained_runs: Runs,
    /// The lowest rate that the server did not sustain; absent if it sustained all.
    pub not_sustained: Option<f64>,
    /// The runs that support it.
    pub not_sustained_runs: Option<Runs>,
    /// The highest rate up to which no run failed.
    pub sustained_by_all_runs: f64,
    /// Why the capacity may be higher.
    pub at_least: Option<String>,
}

/// The runs at one rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Runs {
    /// Runs in which the server sustained the rate.
    pub sustained: usize,
    /// Runs in which the client kept its schedule and no other process disturbed the machine.
    pub valid: usize,
    /// All runs.
    pub made: usize,
}

impl Runs {
    /// Minimum number of valid runs that decide about a rate.
    pub const MIN: usize = 3;

    /// Whether the server sustained the rate in most valid runs.
    fn is_sustained(self) -> bool {
        self.sustained * 2 > self.valid
    }
}

impl fmt::Display for Runs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {} valid runs", self.sustained, self.valid)
    }
}

impl fmt::Display for Capacity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Capacity { sustained, sustained_runs, .. } = self;
        let at_least = if self.at_least.is_some() { "at least " } else { "" };
        write!(f, "{at_least}{sustained}/s: sustained in {sustained_runs}")?;
        if let (Some(rate), Some(runs)) = (self.not_sustained, self.not_sustained_runs) {
            write!(f, "; {rate}/s in {runs}")?;
        }
        if let Some(why) = &self.at_least {
            write!(f, "; {why}")?;
        }
        if self.sustained_by_all_runs < self.sustained {
            write!(f, "; single runs failed above {}/s", self.sustained_by_all_runs)?;
        }
        Ok(())
    }
}

/// The rates of these runs in ascending order, and the runs at each.
fn by_rate(runs: &[Outcome], objective: Option<&Condition>) -> Vec<(f64, Runs)> {
    let mut rates: Vec<f64> = runs.iter().filter_map(rate_of).collect();
    rates.sort_by(f64::total_cmp);
    rates.dedup();
    let sustains = |run: &&Outcome| {
        run.ok > 0
            && run.window.pace != Pace::FellBehind
            && run.unserved_share() <= UNSERVED_MAX
            && objective.is_none_or(|objective| objective.holds(run).is_none())
    };
    let count = |rate: f64| {
        let made = || runs.iter().filter(move |run| rate_of(run) == Some(rate));
        let valid = || made().filter(|run| matches!(run.verdict.validity, Validity::Valid | Validity::AtLeast));
        (rate, Runs { sustained: valid().filter(sustains).count(), valid: valid().count(), made: made().count() })
    };
    rates.into_iter().map(count).collect()
}

/// The capacity from runs at several rates, each repeated. Runs in which the client did not
/// keep its schedule are ignored, and a rate with fewer than [`Runs::MIN`] other runs decides
/// nothing: then the capacity is a lower bound. `objective` is a condition that must not hold.
/// `None` if the server did not sustain even the lowest rate, or if too few runs are valid.
pub fn capacity(runs: &[Outcome], objective: Option<&Condition>) -> Option<Capacity> {
    let mut found: Option<Capacity> = None;
    let mut is_sure = true;
    for (rate, runs) in by_rate(runs, objective) {
        let is_known = runs.valid >= Runs::MIN;
        if runs.valid > 0 && runs.is_sustained() {
            is_sure &= runs.sustained == runs.valid;
            // A rate with too few valid runs neither ends the search nor counts as sustained.
            if is_known {
                let sustained_by_all_runs =
                    if is_sure { rate } else { found.as_ref().map_or(0.0, |before| before.sustained_by_all_runs) };
                let (not_sustained, not_sustained_runs, at_least) = (None, None, None);
                found = Some(Capacity {
                    sustained: rate,
                    sustained_runs: runs,
                    not_sustained,
                    not_sustained_runs,
                    sustained_by_all_runs,
                    at_least,
                });
            }
            continue;
        }
        return found.map(|capacity| {
            if is_known {
                return Capacity { not_sustained: Some(rate), not_sustained_runs: Some(runs), ..capacity };
            }
            let Runs { valid, made, .. } = runs;
            let why = format!("{rate}/s is unknown: {valid} of {made} runs are valid, {} are needed", Runs::MIN);
            Capacity { at_least: Some(why), ..capacity }
        });
    }
    let why = "the server sustained every rate of the sweep".to_owned();
    found.map(|capacity| Capacity { at_least: Some(why), ..capacity })
}

/// The lowest rate, and its runs; `None` without a run that was not interrupted.
pub fn lowest(runs: &[Outcome], objective: Option<&Condition>) -> Option<(f64, Runs)> {
    by_rate(runs, objective).into_iter().next()
}

/// The rates that decide about the capacity and have too few
/// valid runs: the highest sustained rate and the one above it.
pub fn lacking(runs: &[Outcome], objective: Option<&Condition>) -> Vec<f64> {
    let rates = by_rate(runs, objective);
    let above = rates.iter().position(|(_, runs)| !runs.is_sustained()).unwrap_or(rates.len());
    let deciding = &rates[above.saturating_sub(1)..(above + 1).min(rates.len())];
    deciding.iter().filter(|(_, runs)| runs.valid < Runs::MIN).map(|(rate, _)| *rate).collect()
}

/// The rate of an open-loop run; `None` if the run was interrupted.
fn rate_of(run: &Outcome) -> Option<f64> {
    match run.load {
        Loop::Open { rate, .. } if !run.interrupted => Some(rate),
        Loop::Open { .. } | Loop::Closed { .. } => None,
    }
}

/// The change point where throughput stops following the offered load.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Bend {
    /// The offered load there, in the unit of the input.
    pub at: f64,
    /// Lower end of its 95 % interval.
    pub at_low: f64,
    /// Upper end.
    pub at_high: f64,
    /// Throughput per unit of offered load, below it.
    pub slope: f64,
    /// Throughput per unit of offered load, above it: 0 is a plateau, below 0 a collapse.
    pub slope_above: f64,
    /// Throughput at the bend.
    pub throughput: f64,
    /// Lower end of its interval.
    pub throughput_low: f64,
    /// Upper end.
    pub throughput_high: f64,
}

/// Fits two lines to runs as (offered, throughput): throughput is proportional to the offered load up to the change
/// point, and has another slope above it. The change point is the one with the least squares (Hudson 1966; the interval
/// comes from the F test on the residuals). `None` if one line through the origin fits as well (F test, 5 %), if
/// throughput is within 5 % of the offered load, or with fewer than four runs or three different loads.
pub fn bend(runs: &[(f64, f64)]) -> Option<Bend> {
    /// Number of candidate change points.
    const PLACES: usize = 400;
    /// The largest shortfall at the highest load that is ignored.
    const LACK: f64 = 0.05;
    let mut offers: Vec<f64> = runs.iter().map(|(offer, _)| *offer).collect();
    offers.sort_by(f64::total_cmp);
    let (first, last) = (*offers.first()?, *offers.last()?);
    let apart = offers.windows(2).filter(|pair| pair[1] - pair[0] > 0.02 * last).count();
    let degrees = runs.len().checked_sub(3).filter(|degrees| *degrees > 0 && apart >= 2 && first > 0.0)?;
    let straight = left(
        runs,
        runs.iter().map(|(x, y)| x * y).sum::<f64>() / runs.iter().map(|(x, _)| x * x).sum::<f64>(),
        0.0,
        0.0,
    );
    let tried: Vec<(f64, f64, f64, f64)> = (1..PLACES)
        .filter_map(|place| {
            let at = first + (last - first) * place as f64 / PLACES as f64;
            let (slope, change) = two_lines(runs, at)?;
            Some((left(runs, slope, change, at), at, slope, change))
        })
        .collect();
    let &(least, at, slope, change) = tried.iter().min_by(|a, b| a.0.total_cmp(&b.0))?;
    // Rounding of figures is not noise.
    let floor = 1e-9 * runs.iter().map(|(_, y)| y * y).sum::<f64>();
    let (d, noise) = (degrees as f64, least.max(floor) / degrees as f64);
    // The 95 % quantile of F with 2 and d degrees of freedom has a closed form; with 1 and d it is that of t, squared.
    let significant = d / 2.0 * (0.05f64.powf(-2.0 / d) - 1.0);
    let lack = -change * (last - at) / (slope * last);
    if slope <= 0.0 || (straight - least) / 2.0 < significant * noise || lack < LACK {
        return None;
    }
    let bound = least + noise * student(degrees).powi(2);
    let near = || tried.iter().filter(|(left, ..)| *left <= bound).map(|(_, at, slope, _)| (*at, at * slope));
    let range = |of: fn((f64, f64)) -> f64| {
        near().map(of).fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), x| (low.min(x), high.max(x)))
    };
    let ((at_low, at_high), (throughput_low, throughput_high)) = (range(|near| near.0), range(|near| near.1));
    Some(Bend {
        at,
        at_low,
        at_high,
        slope,
        slope_above: slope + change,
        throughput: slope * at,
        throughput_low,
        throughput_high,
    })
}

/// The slope up to `at` and its change there, by least squares; `None` if one side has no runs.
fn two_lines(runs: &[(f64, f64)], at: f64) -> Option<(f64, f64)> {
    let mut sums = [0.0; 5];
    for (x, y) in runs {
        let beyond = (x - at).max(0.0);
        for (sum, more) in sums.iter_mut().zip([x * x, x * beyond, beyond * beyond, x * y, beyond * y]) {
            *sum += more;
        }
    }
    let [xx, xb, bb, xy, by] = sums;
    let determinant = xx * bb - xb * xb;
    (determinant > 1e-9 * xx * xx).then(|| ((xy * bb - by * xb) / determinant, (by * xx - xy * xb) / determinant))
}

/// The sum of squared residuals.
fn left(runs: &[(f64, f64)], slope: f64, change: f64, at: f64) -> f64 {
    runs.iter().map(|(x, y)| (y - slope * x - change * (x - at).max(0.0)).powi(2)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outcome::tests::outcome;
    use amped_measure::stats::Random;
    use proptest::prelude::*;

    /// Runs at eight rates against a server with this capacity per second, with this share of noise.
    fn ladder(capacity: f64, above: f64, noise: f64, repeats: usize, seed: u64) -> Vec<(f64, f64)> {
        let mut random = Random(seed);
        let rates = (1..=8).flat_map(|step| std::iter::repeat_n(f64::from(step) * 100.0, repeats));
        let answered = |rate: f64| if rate > capacity { capacity + above * (rate - capacity) } else { rate };
        let around: Vec<(f64, f64)> = rates.map(|rate| (rate, answered(rate))).collect();
        around.into_iter().map(|(x, y)| (x, y * (1.0 + noise * (2.0 * random.fraction() - 1.0)))).collect()
    }

    #[test]
    fn throughput_that_follows_load_has_no_knee() {
        for seed in 0..50 {
            assert_eq!(bend(&ladder(1e9, 0.0, 0.03, 3, seed)), None, "{seed}");
        }
        assert_eq!(bend(&ladder(1e9, 0.0, 0.0, 1, 1)), None);
        assert_eq!(bend(&[]), None);
        assert_eq!(bend(&[(1.0, 1.0), (2.0, 1.0), (3.0, 1.0)]), None, "three runs for three parameters");
        assert_eq!(bend(&[(1.0, 1.0); 9]), None, "one rate");
    }

    #[test]
    fn confidence_interval_covers_planted_knee() {
        let hits = (0..200).filter(|seed| {
            let found = bend(&ladder(430.0, 0.0, 0.05, 3, *seed)).expect("a bend");
            found.at_low <= 430.0 && 430.0 <= found.at_high && found.at_high - found.at_low < 80.0
        });
        assert!(hits.count() >= 180);
    }

    proptest! {
        #[test]
        fn planted_knee_is_found(capacity in 150.0..650.0_f64, above in -0.5..0.5_f64, seed in any::<u64>()) {
            let found = bend(&ladder(capacity, above, 0.0, 1, seed)).expect("a bend");
            prop_assert!((found.at / capacity - 1.0).abs() < 0.02, "{found:?}");
            prop_assert!((found.throughput / capacity - 1.0).abs() < 0.02, "{found:?}");
            prop_assert!((found.slope_above - above).abs() < 0.1, "{found:?}");
        }

        #[test]
        fn random_figures_do_not_panic(runs in prop::collection::vec((0.0..1e6_f64, 0.0..1e6_f64), 0..12)) {
            if let Some(found) = bend(&runs) {
                prop_assert!(found.at_low <= found.at && found.at <= found.at_high, "{found:?}");
            }
        }
    }

    /// Runs as (rate, correct replies of a hundred, whether the client kept its schedule), each repeated.
    fn made(runs: &[(f64, u64, bool)], times: usize) -> Vec<Outcome> {
        let one = |(rate, ok, kept): &(f64, u64, bool)| std::iter::repeat_n(outcome(*rate, *ok, *kept), times);
        runs.iter().flat_map(one).collect()
    }

    fn check(runs: &[Outcome], expected: Option<(f64, Option<f64>, f64, bool)>) {
        let found = capacity(runs, None);
        let found = found
            .map(|found| (found.sustained, found.not_sustained, found.sustained_by_all_runs, found.at_least.is_some()));
        assert_eq!(found, expected);
    }

    #[test]
    fn capacity_is_rate_below_first_failing_one() {
        let check = |runs: &[(f64, u64, bool)], expected| check(&made(runs, 3), expected);
        check(&[(1.0, 100, true), (2.0, 100, true), (3.0, 50, true)], Some((2.0, Some(3.0), 2.0, false)));
        // One lucky run above the capacity does not raise it.
        check(&[(1.0, 100, true), (2.0, 50, true), (3.0, 100, true)], Some((1.0, Some(2.0), 1.0, false)));
        check(&[(1.0, 50, true), (2.0, 100, true)], None);
        check(&[(1.0, 100, true), (2.0, 99, true)], Some((2.0, None, 2.0, true)));
        check(&[], None);
    }

    #[test]
    fn rate_at_which_server_falls_behind_is_not_sustained() {
        let mut runs = made(&[(1.0, 100, true), (2.0, 100, true)], 3);
        runs[3..].iter_mut().for_each(|run| run.window.pace = Pace::FellBehind);
        check(&runs, Some((1.0, Some(2.0), 1.0, false)));
        assert_eq!(
            capacity(&runs, None).unwrap().to_string(),
            "1/s: sustained in 3 of 3 valid runs; 2/s in 0 of 3 valid runs"
        );
    }

    /// Of a hundred connections, each was answered once and closed, with three more requests to go.
    #[test]
    fn rate_at_which_requests_are_not_sent_is_not_sustained() {
        let mut runs = made(&[(1.0, 100, true), (2.0, 100, true)], 3);
        runs[3..].iter_mut().for_each(|run| (run.planned, run.unsent) = (100, 300));
        check(&runs, Some((1.0, Some(2.0), 1.0, false)));
        // One in a hundred is allowed, whether it failed or was not sent.
        runs[3..].iter_mut().for_each(|run| (run.planned, run.unsent) = (100, 1));
        check(&runs, Some((2.0, None, 2.0, true)));
    }

    #[test]
    fn majority_of_runs_decides_and_minority_widens_interval() {
        let runs = [made(&[(1.0, 100, true)], 3), made(&[(2.0, 100, true)], 2), made(&[(2.0, 50, true)], 2)].concat();
        check(&runs, Some((1.0, Some(2.0), 1.0, false)));
        let runs =
            [made(&[(1.0, 100, true), (3.0, 10, true)], 3), made(&[(2.0, 100, true)], 2), made(&[(2.0, 50, true)], 1)];
        check(&runs.concat(), Some((2.0, Some(3.0), 1.0, false)));
    }

    #[test]
    fn fewer_than_three_valid_runs_are_undecided_and_named() {
        // Too few runs above, too few at the sustained rate, too few of both: more are needed.
        let of = |runs: &[(f64, u64, bool)]| made(runs, 1);
        let mut runs = [made(&[(1.0, 100, true)], 3), of(&[(2.0, 50, true), (2.0, 50, false)])].concat();
        check(&runs, Some((1.0, None, 1.0, true)));
        assert_eq!(lacking(&runs, None), [2.0]);
        let text = capacity(&runs, None).unwrap().to_string();
        assert_eq!(
            text,
            "at least 1/s: sustained in 3 of 3 valid runs; 2/s is unknown: 1 of 2 runs are valid, 3 are needed"
        );
        runs.extend(made(&[(2.0, 50, true)], 2));
        assert_eq!(lacking(&runs, None), [0.0; 0]);
        check(&runs, Some((1.0, Some(2.0), 1.0, false)));
        let runs = of(&[(1.0, 100, true), (2.0, 100, true), (3.0, 50, true)]);
        assert_eq!((capacity(&runs, None), lacking(&runs, None)), (None, vec![2.0, 3.0]));
        let runs = of(&[(1.0, 100, true), (2.0, 100, true)]);
        assert_eq!(lacking(&runs, None), [2.0]);
        assert_eq!((lacking(&of(&[(1.0, 50, true)]), None), lacking(&[], None)), (vec![1.0], Vec::new()));
    }

    #[test]
    fn interrupted_runs_are_ignored() {
        let mut runs = made(&[(1.0, 100, true), (2.0, 100, true)], 3);
        runs[3..].iter_mut().for_each(|run| run.interrupted = true);
        assert_eq!(capacity(&runs, None).map(|found| (found.sustained, found.at_least.is_some())), Some((1.0, true)));
    }

    #[test]
    fn client_bound_runs_are_ignored() {
        check(&made(&[(1.0, 100, true), (2.0, 10, false)], 3), Some((1.0, None, 1.0, true)));
        check(&made(&[(1.0, 100, true), (2.0, 10, false), (2.0, 100, true)], 3), Some((2.0, None, 2.0, true)));
        check(&made(&[(1.0, 100, false)], 3), None);
    }
}
