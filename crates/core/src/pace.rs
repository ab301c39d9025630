//! The minimum rate at which a client must send a request body.
//!
//! A client has a time credit of at most `body_timeout`. It runs down while the server waits for the client, and each
//! received byte adds to it, a second per `min_body_rate` bytes. A client that sends nothing is cut off after
//! `body_timeout`, and so is one that trickles bytes; a client that keeps the rate may send for `body_total_timeout`.
//! Apache's mod_reqtimeout uses the same two numbers, but its credit grows without bound.
//!
//! A request head needs no rate: `header_timeout` limits its total time.

use core::time::Duration;

use amped_units::Time;

use crate::limits::Limits;

/// The time left to a client.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    credit: Duration,
    /// The start of the current credit.
    from: Time,
    /// The total deadline.
    until: Time,
}

impl Pace {
    /// The state at the start of a body.
    pub(crate) fn start(now: Time, limits: &Limits) -> Pace {
        Pace { credit: limits.body_timeout, from: now, until: now + limits.body_total_timeout }
    }

    /// When the client times out.
    pub(crate) fn due(&self) -> Time {
        (self.from + self.credit).min(self.until)
    }

    /// Records that `bytes` have arrived.
    pub(crate) fn note(&mut self, now: Time, bytes: usize, limits: &Limits) {
        if bytes == 0 {
            return;
        }
        let gained = match limits.min_body_rate.0 {
            0 => limits.body_timeout,
            rate => Duration::from_nanos((bytes as u64).saturating_mul(1_000_000_000) / rate),
        };
        let left = self.credit.saturating_sub(now.since(self.from));
        (self.credit, self.from) = (left.saturating_add(gained).min(limits.body_timeout), now);
    }

    /// Restarts the clock after the client had to wait for the server.
    pub(crate) fn resume(&mut self, now: Time) {
        let waited = now.since(self.from);
        (self.from, self.until) = (now, self.until + waited);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use amped_units::Bytes;

    fn at(seconds: u64) -> Time {
        Time::from_millis(seconds * 1000)
    }

    fn limits(rate: u64) -> Limits {
        let (body_timeout, body_total_timeout) = (Duration::from_secs(20), Duration::from_secs(1000));
        Limits { body_timeout, min_body_rate: Bytes(rate), body_total_timeout, ..Limits::default() }
    }

    /// When a client that sends `rate` bytes per second is cut off.
    fn cut_off(rate: u64, bytes: usize) -> u64 {
        let limits = limits(rate);
        let mut pace = Pace::start(Time::START, &limits);
        (0..)
            .find(|&second| {
                let now = at(second);
                let is_late = now >= pace.due();
                pace.note(now, bytes, &limits);
                is_late
            })
            .expect("at some time")
    }

    #[test]
    fn client_below_minimum_rate_is_cut_off() {
        assert_eq!(cut_off(500, 0), 20);
        assert_eq!(cut_off(500, 1), 21);
        assert_eq!(cut_off(500, 250), 39);
        assert_eq!(cut_off(500, 500), 1000);
        assert_eq!(cut_off(500, 1 << 20), 1000);
        assert_eq!(cut_off(0, 1), 1000);
    }

    #[test]
    fn burst_earns_no_more_than_credit_limit() {
        let limits = limits(500);
        let mut pace = Pace::start(Time::START, &limits);
        pace.note(at(1), usize::MAX, &limits);
        assert_eq!(pace.due(), at(21));
    }

    #[test]
    fn server_delay_consumes_no_credit() {
        let limits = limits(500);
        let mut pace = Pace::start(Time::START, &limits);
        pace.note(at(15), 500, &limits);
        pace.resume(at(600));
        assert_eq!(pace.due(), at(606));
    }
}
