//! The minimum rates at which a client must send a request body, and receive responses.
//!
//! A client that sends has a time credit of at most `body_timeout`. It runs down while the server waits for the client, and each
//! received byte adds to it, a second per `min_body_rate` bytes. A client that sends nothing is cut off after
//! `body_timeout`, and so is one that trickles bytes; a client that keeps the rate may send for `body_total_timeout`.
//! Apache's mod_reqtimeout uses the same two numbers, but its credit grows without bound.
//!
//! A request head needs no rate: `header_timeout` limits its total time.
//!
//! A client that receives has a credit of at most `send_timeout`, which runs down while something is on its way to it. What it has
//! acknowledged adds to it, a second per `min_send_rate` bytes; what the socket's buffer took is no evidence. The loop asks the
//! kernel only when the credit would be used up, so a client that keeps up costs nothing. No total time limits it.

use core::time::Duration;

use amped_units::{Bytes, Time};

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
        let gained = earned(bytes as u64, limits.min_body_rate, limits.body_timeout);
        let left = self.credit.saturating_sub(now.since(self.from));
        (self.credit, self.from) = (left.saturating_add(gained).min(limits.body_timeout), now);
    }

    /// Restarts the clock after the client had to wait for the server.
    pub(crate) fn resume(&mut self, now: Time) {
        let waited = now.since(self.from);
        (self.from, self.until) = (now, self.until + waited);
    }
}

/// The time that bytes add to a credit of at most `max`.
fn earned(bytes: u64, rate: Bytes, max: Duration) -> Duration {
    match (bytes, rate.0) {
        (0, _) => Duration::ZERO,
        (_, 0) => max,
        (_, rate) => Duration::from_nanos(bytes.saturating_mul(1_000_000_000) / rate),
    }
}

/// The time left to a client that receives, in milliseconds: it is part of each connection.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SendCredit(u32);

impl SendCredit {
    /// The credit when something begins to be sent.
    pub(crate) fn full(limits: &Limits) -> SendCredit {
        SendCredit::of(limits.send_timeout)
    }

    fn of(time: Duration) -> SendCredit {
        SendCredit(u32::try_from(time.as_millis()).unwrap_or(u32::MAX))
    }

    /// The time that is left.
    pub(crate) fn left(self) -> Duration {
        Duration::from_millis(self.0.into())
    }

    /// The credit after this time, in which the client has received so many bytes.
    #[must_use]
    pub(crate) fn after(self, elapsed: Duration, bytes: u64, limits: &Limits) -> SendCredit {
        let gained = earned(bytes, limits.min_send_rate, limits.send_timeout);
        SendCredit::of(self.left().saturating_add(gained).saturating_sub(elapsed).min(limits.send_timeout))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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

    /// When a client that acknowledges so many bytes a second is given up, if the kernel is asked only when the credit is used up.
    fn given_up(rate: u64, bytes: u64) -> Option<u64> {
        let limits = Limits { send_timeout: Duration::from_secs(60), min_send_rate: Bytes(rate), ..Limits::default() };
        let (mut credit, mut now, mut from) = (SendCredit::full(&limits), Time::START, Time::START);
        for _ in 0..1000 {
            let (then, acknowledged) = (now, |time: Time| time.as_millis() * bytes / 1000);
            now = from + credit.left();
            credit = credit.after(now.since(from), acknowledged(now) - acknowledged(then), &limits);
            from = now;
            if credit.left().is_zero() {
                return Some(now.as_millis() / 1000);
            }
        }
        None
    }

    #[test]
    fn receiver_below_minimum_rate_is_given_up_in_bounded_time() {
        assert_eq!(given_up(500, 0), Some(60));
        assert_eq!(given_up(500, 1), Some(60));
        assert_eq!(given_up(500, 250), Some(119));
        assert!(given_up(500, 450).is_some_and(|seconds| seconds < 700));
        assert_eq!(given_up(500, 500), None);
        assert_eq!(given_up(500, 6250), None);
        assert_eq!(given_up(0, 1), None);
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
