//! The demand of a request on a resource, and the throughput at which the resource saturates.
//!
//! Below saturation, the utilisation of a resource is linear in throughput: U = a + D X, where D is its demand per
//! request (the utilisation law; Denning and Buzen 1978) and a its use without requests. The resource saturates where
//! the line reaches 1, at X = (1 - a) / D: the predicted ceiling, known before any run has reached it. Its interval is
//! that of inverse prediction (Fieller 1954), which is unbounded if the slope may be 0.

use amped_measure::stats::student;
use serde::Serialize;

/// A demand and the ceiling predicted from it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Demand {
    /// Demand per request, in seconds of the resource.
    pub(crate) per_request_s: f64,
    /// Lower end of its 95 % interval.
    pub(crate) low_s: f64,
    /// Upper end of its 95 % interval.
    pub(crate) high_s: f64,
    /// Utilisation without requests.
    pub(crate) idle: f64,
    /// Requests per second at which the resource saturates; `None` if its use does not rise with requests.
    pub(crate) ceiling: Option<f64>,
    /// Lower end of its 95 % interval; `None` as for `ceiling`.
    pub(crate) ceiling_low: Option<f64>,
    /// Upper end of its 95 % interval; `None` if unbounded.
    pub(crate) ceiling_high: Option<f64>,
}

/// Estimates the demand from runs below saturation, given as (throughput, utilisation).
/// `None` with fewer than three runs, or if all have the same throughput.
pub(crate) fn demand(runs: &[(f64, f64)]) -> Option<Demand> {
    let n = runs.len() as f64;
    let degrees = runs.len().checked_sub(2).filter(|degrees| *degrees > 0)?;
    let (x_mean, u_mean) = (runs.iter().map(|(x, _)| x).sum::<f64>() / n, runs.iter().map(|(_, u)| u).sum::<f64>() / n);
    let spread: f64 = runs.iter().map(|(x, _)| (x - x_mean).powi(2)).sum();
    if spread <= 1e-6 * x_mean.powi(2) * n {
        return None;
    }
    let slope = runs.iter().map(|(x, u)| (x - x_mean) * (u - u_mean)).sum::<f64>() / spread;
    let idle = u_mean - slope * x_mean;
    let noise = runs.iter().map(|(x, u)| (u - idle - slope * x).powi(2)).sum::<f64>() / degrees as f64;
    let t = student(degrees);
    let margin = t * (noise / spread).sqrt();
    // Solves a + D X +- t s sqrt(1/n + (X - mean)^2 / spread) = 1. With z = X - mean and c = 1 - mean of U, the
    // solutions are the roots of (D^2 - t^2 s^2 / spread) z^2 - 2 D c z + c^2 - t^2 s^2 / n.
    let (full, error) = (1.0 - u_mean, t * t * noise);
    let square = slope.powi(2) - error / spread;
    let constant = full.powi(2) - error / n;
    let root = (slope * full).powi(2) - square * constant;
    let ends = (square > 0.0 && root >= 0.0)
        .then(|| [-1.0, 1.0].map(|sign| x_mean + (slope * full + sign * root.sqrt()) / square));
    let rises = slope > 0.0;
    Some(Demand {
        per_request_s: slope,
        low_s: slope - margin,
        high_s: slope + margin,
        idle,
        ceiling: rises.then(|| (1.0 - idle) / slope),
        // Without an upper end, the upper bound of the slope gives the lower end.
        ceiling_low: rises.then(|| ends.map_or_else(|| x_mean + full / (slope + margin), |[low, _]| low)),
        ceiling_high: ends.filter(|_| rises).map(|[_, high]| high),
    })
}

impl Demand {
    /// Whether the ceiling's interval admits this throughput, within a relative tolerance of `slack`.
    pub(crate) fn allows(&self, throughput: f64, slack: f64) -> bool {
        self.ceiling_low.is_some_and(|low| low <= throughput * (1.0 + slack))
            && self.ceiling_high.is_none_or(|high| high >= throughput * (1.0 - slack))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use amped_measure::stats::Random;
    use proptest::prelude::*;

    /// Runs of a resource with this demand, at throughputs up to 0.9 of its ceiling, with uniform noise of this width.
    fn runs(idle: f64, demand: f64, noise: f64, count: usize, random: &mut Random) -> Vec<(f64, f64)> {
        let ceiling = (1.0 - idle) / demand;
        let run = |at: usize| {
            let x = ceiling * 0.9 * (at + 1) as f64 / count as f64;
            (x, idle + demand * x + noise * (2.0 * random.fraction() - 1.0))
        };
        (0..count).map(run).collect()
    }

    #[test]
    fn confidence_intervals_have_nominal_coverage() {
        let mut random = Random(5);
        let (mut demands, mut ceilings) = (0, 0);
        for _ in 0..2000 {
            let found = demand(&runs(0.05, 0.004, 0.05, 8, &mut random)).unwrap();
            demands += usize::from(found.low_s <= 0.004 && 0.004 <= found.high_s);
            ceilings += usize::from(found.allows(0.95 / 0.004, 0.0));
        }
        for hits in [demands, ceilings] {
            assert!((1840..=1960).contains(&hits), "{demands} and {ceilings} of 2000");
        }
    }

    #[test]
    fn flat_or_falling_demand_has_no_ceiling() {
        let flat = demand(&[(1.0, 0.2), (2.0, 0.2), (3.0, 0.2)]).unwrap();
        assert_eq!((flat.ceiling, flat.ceiling_low, flat.ceiling_high), (None, None, None));
        let falling = demand(&[(1.0, 0.3), (2.0, 0.2), (3.0, 0.1)]).unwrap();
        assert!(falling.ceiling.is_none() && !falling.allows(2.0, 1.0));
        // The slope is positive, but may as well be 0: there is a ceiling without an upper end.
        let vague = demand(&[(1.0, 0.1), (2.0, 0.3), (3.0, 0.1), (4.0, 0.3)]).unwrap();
        assert!(vague.ceiling.is_some() && vague.ceiling_high.is_none() && vague.allows(1e9, 0.0));
        for few in [&[][..], &[(1.0, 0.1), (2.0, 0.2)], &[(1.0, 0.1), (1.0, 0.2), (1.0, 0.3)]] {
            assert_eq!(demand(few), None);
        }
    }

    proptest! {
        #[test]
        fn planted_demand_is_recovered(idle in 0.0..0.3_f64, per_request in 1e-6..1e-1_f64, seed in any::<u64>()) {
            let found = demand(&runs(idle, per_request, 0.0, 5, &mut Random(seed))).unwrap();
            let ceiling = (1.0 - idle) / per_request;
            prop_assert!((found.per_request_s / per_request - 1.0).abs() < 1e-6, "{found:?}");
            prop_assert!((found.ceiling.unwrap() / ceiling - 1.0).abs() < 1e-6 && found.allows(ceiling, 1e-6), "{found:?}");
        }

        #[test]
        fn random_figures_do_not_panic(runs in prop::collection::vec((0.0..1e6_f64, 0.0..2.0_f64), 0..9)) {
            demand(&runs);
        }
    }
}
