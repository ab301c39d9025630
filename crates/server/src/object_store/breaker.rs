//! Whether a store is asked at all: after failures in succession it is left alone for a while, so that requests fail at once, or are
//! answered from the local cache, instead of waiting for a timeout each.
//!
//! Pure: time and randomness are arguments.

use std::time::{Duration, Instant};

/// Failures in succession after which a store is left alone.
const FAILURES: u32 = 3;

/// How long it is left alone at first; doubled by each further failure.
const FIRST: Duration = Duration::from_secs(1);

/// Maximum of that.
const LAST: Duration = Duration::from_secs(30);

/// The state of a store.
#[derive(Debug, Default)]
pub struct Breaker {
    failures: u32,
    /// Until then it is not asked.
    closed_at: Option<Instant>,
}

impl Breaker {
    /// Returns whether the store may be asked now. When the time is over, one request is let through, and the others wait for its
    /// result as long as before.
    pub fn admits(&mut self, now: Instant) -> bool {
        match self.closed_at {
            Some(until) if now < until => false,
            Some(_) => {
                self.closed_at = Some(now + pause(self.failures));
                true
            }
            None => true,
        }
    }

    /// Returns whether the store is left alone now.
    pub fn is_open(&self, now: Instant) -> bool {
        self.closed_at.is_some_and(|until| now < until)
    }

    /// Records that the store answered; returns whether it had been left alone.
    pub fn succeeded(&mut self) -> bool {
        self.failures = 0;
        self.closed_at.take().is_some()
    }

    /// Records a failure; returns for how long the store is left alone, if it was not before.
    pub fn failed(&mut self, now: Instant, random: u64) -> Option<Duration> {
        self.failures = self.failures.saturating_add(1);
        if self.failures < FAILURES {
            return None;
        }
        let pause = jittered(pause(self.failures), random);
        self.closed_at.replace(now + pause).is_none().then_some(pause)
    }
}

fn pause(failures: u32) -> Duration {
    FIRST.saturating_mul(1 << failures.saturating_sub(FAILURES).min(8)).min(LAST)
}

/// Returns between half of this time and all of it, so that several servers do not ask in step.
pub fn jittered(time: Duration, random: u64) -> Duration {
    time / 2 + time.mul_f64((random % 1024) as f64 / 2048.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn store_is_left_alone_after_failures_until_one_request_succeeds() {
        let mut breaker = Breaker::default();
        let start = Instant::now();
        let at = |ms: u64| start + Duration::from_millis(ms);
        assert_eq!([breaker.failed(at(0), 0), breaker.failed(at(0), 0)], [None, None]);
        assert!(breaker.admits(at(0)));
        assert_eq!(breaker.failed(at(0), 1023 * 1024 + 1023).map(|pause| pause.as_millis()), Some(999));
        assert!(!breaker.admits(at(0)) && !breaker.admits(at(998)));
        // One request tries again, and others fail at once meanwhile.
        assert!(breaker.admits(at(1000)));
        assert!(!breaker.admits(at(1001)));
        // Reported once.
        assert_eq!(breaker.failed(at(1500), 0), None);
        assert!(!breaker.admits(at(2400)) && breaker.admits(at(2500)));
        assert!(breaker.succeeded() && !breaker.succeeded());
        assert!(breaker.admits(at(2500)) && breaker.admits(at(2500)));
        assert_eq!(breaker.failed(at(2500), 0), None);
    }

    #[test]
    fn pause_grows_to_its_maximum() {
        assert_eq!([3, 4, 5, 7, 8, 1000].map(|failures| pause(failures).as_secs()), [1, 2, 4, 16, 30, 30]);
        assert_eq!(jittered(LAST, 0), LAST / 2);
        assert!(jittered(LAST, u64::MAX) < LAST);
    }
}
