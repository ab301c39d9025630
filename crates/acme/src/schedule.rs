//! When a certificate is renewed, and when a failed order is repeated.
//!
//! Pure: the wall clock is an argument, and so is chance. `manager` asks at least once a minute, so that a clock that is
//! set or a machine that was asleep delays nothing by more than that. Delays after an order, successful or not, are
//! measured by the monotonic clock there: however the wall clock jumps, it causes at most one order in
//! [`after_success`].

use std::time::Duration;

/// Delay after the first failure; it doubles with each further one.
const BACKOFF_MIN: Duration = Duration::from_secs(60);

/// Maximum delay after a failure, unless the CA requests a longer one.
const BACKOFF_MAX: Duration = Duration::from_secs(12 * 3600);

/// Minimum delay after a success, for a certificate that is valid for longer than twice this.
const SUCCESS_MIN: Duration = Duration::from_secs(12 * 3600);

/// A period of time, since 1970: the validity of a certificate, or the window that the CA suggests for its renewal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Period {
    /// Its begin.
    pub(crate) from: Duration,
    /// Its end. `from <= until`
    pub(crate) until: Duration,
}

impl Period {
    fn length(self) -> Duration {
        self.until.saturating_sub(self.from)
    }
}

/// Returns when to renew a certificate, since 1970. `chance`: from 0 to 1, so that not all clients of a CA come at once.
///
/// With a `window`, it is a uniformly random time in it (RFC 9773, 4.2), but not after nine tenths of the validity. Otherwise
/// it is after two thirds of the validity, less up to a twentieth.
pub(crate) fn renewal(validity: Period, window: Option<Period>, chance: f64) -> Duration {
    match window {
        Some(window) => {
            let latest = validity.from + validity.length() * 9 / 10;
            (window.from + window.length().mul_f64(chance)).min(latest)
        }
        None => validity.from + validity.length() * 2 / 3 - (validity.length() / 20).mul_f64(chance),
    }
}

/// Returns the delay before the next order after this many `failures`, at least 1. `retry_after`: what the CA has
/// requested. `chance`: from 0 to 1, for up to a tenth more.
pub(crate) fn after_failure(failures: u32, retry_after: Option<Duration>, chance: f64) -> Duration {
    let doubled = BACKOFF_MIN.saturating_mul(1 << failures.saturating_sub(1).min(16)).min(BACKOFF_MAX);
    let delay = doubled + (doubled / 10).mul_f64(chance);
    delay.max(retry_after.unwrap_or_default())
}

/// Returns the minimum delay before the next order after a success. It bounds the orders that a wrong clock causes, which
/// makes each new certificate look expired.
pub(crate) fn after_success(validity: Period) -> Duration {
    (validity.length() / 2).min(SUCCESS_MIN)
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: Duration = Duration::from_secs(86_400);

    fn period(from: u32, until: u32) -> Period {
        Period { from: DAY * from, until: DAY * until }
    }

    #[test]
    fn certificate_is_renewed_after_two_thirds_of_validity() {
        assert_eq!(renewal(period(100, 190), None, 0.0), DAY * 160);
        assert_eq!(renewal(period(100, 190), None, 1.0), DAY * 160 - DAY * 9 / 2);
        assert_eq!(renewal(period(100, 100), None, 1.0), DAY * 100);
    }

    #[test]
    fn window_of_ca_replaces_default() {
        let check = |chance, expected| assert_eq!(renewal(period(100, 190), Some(period(120, 124)), chance), expected);
        check(0.0, DAY * 120);
        check(0.5, DAY * 122);
        check(1.0, DAY * 124);
        assert_eq!(renewal(period(100, 190), Some(period(400, 500)), 0.0), DAY * 181, "never after its expiry");
    }

    #[test]
    fn delay_doubles_with_each_failure_to_twelve_hours() {
        let minutes = |failures, retry_after, chance| after_failure(failures, retry_after, chance).as_secs() / 60;
        assert_eq!([1, 2, 3, 10, 11, 99].map(|failures| minutes(failures, None, 0.0)), [1, 2, 4, 512, 720, 720]);
        assert_eq!(minutes(99, None, 1.0), 792);
        assert_eq!(minutes(1, Some(DAY * 7), 1.0), 7 * 24 * 60, "the CA knows better");
        assert_eq!(minutes(11, Some(Duration::ZERO), 0.0), 720);
    }

    #[test]
    fn success_is_followed_by_pause() {
        assert_eq!(after_success(period(0, 90)), DAY / 2);
        assert_eq!(after_success(Period { from: DAY, until: DAY + Duration::from_secs(60) }), Duration::from_secs(30));
    }
}
