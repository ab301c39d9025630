//! The budget: the monitor's share of a processor, kept by sampling less often.
//!
//! The cost of each sample is measured, since it grows with threads, connections and interfaces. Half of the budget is
//! for ticks, half for the census of connections, whose cost is unbounded. An interval is the requested one, or longer
//! if its half of the budget requires it.
//!
//! Pure: costs and times are arguments.

use std::time::Duration;

/// The share of one processor that may be used, and the recent costs of samples.
#[derive(Clone, Copy, Debug)]
pub struct Budget {
    share: f64,
    tick: Option<Duration>,
    census: Option<Duration>,
}

/// Maximum interval between ticks and between censuses, whatever their cost.
const INTERVAL_MAX: Duration = Duration::from_secs(60);

impl Budget {
    /// A budget of this share of one processor: 0.005 is 0.5 %.
    pub fn new(share: f64) -> Budget {
        Budget { share, tick: None, census: None }
    }

    /// The allowed share.
    pub fn share(&self) -> f64 {
        self.share
    }

    /// Records the cost of a tick, without a census.
    pub fn pay_for_tick(&mut self, cost: Duration) {
        self.tick = Some(blend(self.tick, cost));
    }

    /// Records the cost of a census.
    pub fn pay_for_census(&mut self, cost: Duration) {
        self.census = Some(blend(self.census, cost));
    }

    /// The interval to the next tick, at least `requested`.
    pub fn tick_interval(&self, requested: Duration) -> Duration {
        self.interval(self.tick, requested)
    }

    /// The interval to the next census, at least `requested`.
    pub fn census_interval(&self, requested: Duration) -> Duration {
        self.interval(self.census, requested)
    }

    fn interval(&self, cost: Option<Duration>, requested: Duration) -> Duration {
        let cost = cost.unwrap_or_default().as_secs_f64();
        let kept = Duration::try_from_secs_f64(cost / (self.share / 2.0)).unwrap_or(INTERVAL_MAX);
        requested.max(kept.min(INTERVAL_MAX))
    }
}

/// A moving average with weight 1/4 for the new cost: a single disturbed
/// sample has little effect, and a lasting change takes effect soon.
fn blend(old: Option<Duration>, new: Duration) -> Duration {
    old.map_or(new, |old| (old * 3 + new) / 4)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spend(share: f64, requested: Duration, costs: impl Fn(u32) -> Duration) -> (f64, Duration) {
        let mut budget = Budget::new(share);
        let (mut used, mut passed, mut interval) = (Duration::ZERO, Duration::ZERO, requested);
        for tick in 0..1000 {
            let cost = costs(tick);
            budget.pay_for_tick(cost);
            interval = budget.tick_interval(requested);
            used += cost;
            passed += interval;
        }
        (used.as_secs_f64() / passed.as_secs_f64(), interval)
    }

    #[test]
    fn cheap_sampling_keeps_requested_interval() {
        let second = Duration::from_secs(1);
        assert_eq!(spend(0.005, second, |_| Duration::from_micros(300)).1, second);
        assert_eq!(Budget::new(0.005).tick_interval(second), second);
    }

    #[test]
    fn costly_sampling_is_stretched_to_budget() {
        let requested = Duration::from_millis(50);
        for costs in [|_| Duration::from_millis(1), |tick: u32| Duration::from_micros(u64::from(tick % 7) * 500)] {
            let (share, interval) = spend(0.005, requested, costs);
            assert!(share < 0.0026, "half of the budget is for ticks: {share}");
            assert!(interval > requested);
        }
        // A cost that grows during the run.
        let (share, _) = spend(0.005, requested, |tick| Duration::from_micros(100 + u64::from(tick) * 10));
        assert!(share < 0.0027, "{share}");
    }

    #[test]
    fn interval_is_bounded() {
        let mut budget = Budget::new(1e-9);
        budget.pay_for_census(Duration::from_secs(100));
        assert_eq!(budget.census_interval(Duration::ZERO), INTERVAL_MAX);
        assert_eq!(Budget::new(0.0).census_interval(Duration::ZERO), INTERVAL_MAX);
    }
}
