//! The bandwidth of a response: how much of it may be sent now, and when there is more.
//!
//! A response may send `free` bytes at any speed, and the rest at a rate. Its credit grows with time and is spent by
//! sending. The sender waits until the credit is worth a call ([`Pacer::due`]), an eighth of a second; timers may be as
//! late again, so credit is kept for half a second. The rate is therefore met on average, while a client that could not
//! receive for a while gets no burst of all that it has missed.

use core::time::Duration;

use amped_units::Time;

/// The bandwidth of a response, as configured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bandwidth {
    /// Bytes per second, at least 1.
    pub rate: u64,
    /// Bytes that precede the limit.
    pub after: u64,
}

/// The credit of a response that is being sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pacer {
    rate: u64,
    /// Bytes that are not limited.
    free: u64,
    /// When the credit is worth a call.
    due: Time,
}

/// The credit that is worth a call, as a time.
const STEP: Duration = Duration::from_millis(125);

/// The credit that is added to this at most, while nothing is sent.
const LATE_MAX: Duration = Duration::from_millis(375);

impl Pacer {
    /// The credit of a response whose sending begins: one step.
    pub fn new(Bandwidth { rate, after }: Bandwidth, now: Time) -> Pacer {
        Pacer { rate: rate.max(1), free: after, due: now }
    }

    /// Permits so many bytes more, which belong to something else.
    pub fn permit(&mut self, bytes: u64) {
        self.free = self.free.saturating_add(bytes);
    }

    /// How many bytes may be sent; 0 before [`due`](Pacer::due).
    pub fn allowance(&self, now: Time) -> u64 {
        let credit = if now >= self.due { self.bytes_in(STEP + now.since(self.due).min(LATE_MAX)).max(1) } else { 0 };
        self.free.saturating_add(credit)
    }

    /// Records that `bytes` were sent.
    pub fn note(&mut self, bytes: u64, now: Time) {
        let limited = bytes - bytes.min(self.free);
        self.free -= bytes - limited;
        if limited > 0 {
            let time = u128::from(limited) * 1_000_000_000 / u128::from(self.rate);
            let earliest = Time::from_nanos(now.as_nanos().saturating_sub(LATE_MAX.as_nanos() as u64));
            self.due = self.due.max(earliest) + Duration::from_nanos(u64::try_from(time).unwrap_or(u64::MAX));
        }
    }

    /// When the next bytes may be sent, if none may be now.
    pub fn due(&self) -> Time {
        self.due
    }

    fn bytes_in(&self, time: Duration) -> u64 {
        u64::try_from(u128::from(self.rate) * time.as_nanos() / 1_000_000_000).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn at(ms: u64) -> Time {
        Time::from_millis(10_000 + ms)
    }

    #[test]
    fn first_bytes_are_free_and_rest_comes_in_steps() {
        let mut pacer = Pacer::new(Bandwidth { rate: 8000, after: 500 }, at(0));
        assert_eq!(pacer.allowance(at(0)), 1500);
        pacer.note(1500, at(0));
        assert_eq!((pacer.allowance(at(124)), pacer.due()), (0, at(125)));
        assert_eq!(pacer.allowance(at(125)), 1000);
        // A late timer costs nothing, a long pause of the client does.
        assert_eq!((pacer.allowance(at(300)), pacer.allowance(at(60_000))), (2400, 4000));
        pacer.note(4000, at(60_000));
        assert_eq!(pacer.due(), at(60_125));
    }

    #[test]
    fn bytes_of_earlier_responses_do_not_count() {
        let mut pacer = Pacer::new(Bandwidth { rate: 8, after: 0 }, at(0));
        pacer.permit(100);
        pacer.note(100, at(0));
        assert_eq!(pacer.allowance(at(0)), 1);
    }

    proptest! {
        /// Whatever the times of its calls, a sender that takes what it may, at most half a second late, meets the rate.
        #[test]
        fn rate_is_met_and_never_exceeded(rate in 1_u64..100_000_000, lates in prop::collection::vec(0_u64..300, 20..100)) {
            let (mut pacer, mut now, mut sent) = (Pacer::new(Bandwidth { rate, after: 0 }, at(0)), at(0), 0);
            for late in lates {
                let allowance = pacer.allowance(now);
                prop_assert!(allowance > 0);
                sent += allowance;
                pacer.note(allowance, now);
                prop_assert_eq!(pacer.allowance(now), 0);
                let seconds = now.since(at(0)).as_secs_f64();
                prop_assert!(sent as f64 <= rate as f64 * (seconds + 0.126) + 1.0, "{} in {}", sent, seconds);
                prop_assert!(rate < 80 || sent as f64 >= rate as f64 * seconds - 1.0, "{} in {}", sent, seconds);
                now = pacer.due() + Duration::from_millis(late);
            }
        }
    }
}
