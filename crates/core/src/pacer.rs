//! The bandwidth of a response: how much of it may be sent now, and when there is more.
//!
//! A response may send `free` bytes at any speed, and the rest at a rate. Its credit grows with time and is spent by
//! sending. The sender waits until the credit is worth a call ([`Pacer::due`]), an eighth of a second; timers may be as
//! late again, so credit is kept for half a second. The rate is therefore met on average, while a client that could not
//! receive for a while gets no burst of all that it has missed.
//!
//! Responses of a connection may share a credit besides. It is one time, which each response moves by what its bytes
//! take at its own rate. So it outlives them, and a connection that waits for it has one timer. What one response leaves
//! of a step is for the next: otherwise a connection with many small ones would have a timer for each.

use core::time::Duration;

use amped_units::Time;

/// The bandwidth of a response, as configured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bandwidth {
    /// Bytes per second of the response, at least 1, if it is limited by itself.
    pub rate: Option<u64>,
    /// Bytes that precede this limit.
    pub after: u64,
    /// Bytes per second, at least 1, of all responses of its connection with such a limit together.
    pub connection_rate: Option<u64>,
}

/// The credit of a response that is being sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pacer {
    own: Option<Credit>,
    /// What it has of the credit of its connection.
    shared: Option<Credit>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Credit {
    rate: u64,
    /// Bytes that are not limited.
    free: u64,
    /// When the credit is worth a call.
    due: Time,
    /// Whether part of a step is worth a call too.
    is_shared: bool,
}

/// The credit that is worth a call, as a time.
const STEP: Duration = Duration::from_millis(125);

/// The credit that is added to this at most, while nothing is sent.
const LATE_MAX: Duration = Duration::from_millis(375);

impl Pacer {
    /// The credit of a response whose sending begins: one step. `connection_due`: when its connection may send again;
    /// [`Time::START`] if none of its responses was limited with it yet.
    pub fn new(bandwidth: Bandwidth, connection_due: Time, now: Time) -> Pacer {
        let Bandwidth { rate, after, connection_rate } = bandwidth;
        let connection_due = if connection_due == Time::START { now } else { connection_due };
        let own = |rate: u64| Credit { rate: rate.max(1), free: after, due: now, is_shared: false };
        let shared = |rate: u64| Credit { rate: rate.max(1), free: 0, due: connection_due, is_shared: true };
        Pacer { own: rate.map(own), shared: connection_rate.map(shared) }
    }

    /// Permits so many bytes more, which belong to something else.
    pub fn permit(&mut self, bytes: u64) {
        self.credits().for_each(|credit| credit.free = credit.free.saturating_add(bytes));
    }

    /// How many bytes may be sent. If none may be, ask again when it is [`due`](Pacer::due).
    pub fn allowance(&self, now: Time) -> u64 {
        let of = |credit: Option<Credit>| credit.map_or(u64::MAX, |credit| credit.allowance(now));
        of(self.own).min(of(self.shared))
    }

    /// Records that `bytes` were sent.
    pub fn note(&mut self, bytes: u64, now: Time) {
        self.credits().for_each(|credit| credit.note(bytes, now));
    }

    /// When the next bytes may be sent, if none may be now.
    pub fn due(&self) -> Time {
        // The time of a credit with free bytes has passed.
        [self.own, self.shared].into_iter().flatten().map(|credit| credit.due).max().unwrap_or(Time::START)
    }

    /// When its connection may send again, if they share a limit.
    pub fn connection_due(&self) -> Option<Time> {
        self.shared.map(|credit| credit.due)
    }

    /// Another response of its connection has been sent, so that the connection may send again at this time.
    pub fn set_connection_due(&mut self, due: Time) {
        if let Some(shared) = &mut self.shared {
            shared.due = due;
        }
    }

    fn credits(&mut self) -> impl Iterator<Item = &mut Credit> {
        self.own.iter_mut().chain(&mut self.shared)
    }
}

impl Credit {
    fn allowance(&self, now: Time) -> u64 {
        let time = (now + STEP).since(self.due).min(STEP + LATE_MAX);
        let credit = match now >= self.due {
            true => self.bytes_in(time).max(1),
            false if self.is_shared => self.bytes_in(time),
            false => 0,
        };
        self.free.saturating_add(credit)
    }

    fn note(&mut self, bytes: u64, now: Time) {
        let limited = bytes - bytes.min(self.free);
        self.free -= bytes - limited;
        if limited > 0 {
            let time = u128::from(limited) * 1_000_000_000 / u128::from(self.rate);
            let earliest = Time::from_nanos(now.as_nanos().saturating_sub(LATE_MAX.as_nanos() as u64));
            self.due = self.due.max(earliest) + Duration::from_nanos(u64::try_from(time).unwrap_or(u64::MAX));
        }
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

    fn own(rate: u64, after: u64) -> Pacer {
        Pacer::new(Bandwidth { rate: Some(rate), after, connection_rate: None }, Time::START, at(0))
    }

    fn shared(rate: Option<u64>, connection_rate: u64, connection_due: Time, now: Time) -> Pacer {
        Pacer::new(Bandwidth { rate, after: 0, connection_rate: Some(connection_rate) }, connection_due, now)
    }

    #[test]
    fn responses_of_a_connection_share_a_credit() {
        let mut first = shared(None, 8000, Time::START, at(0));
        assert_eq!((first.allowance(at(0)), first.connection_due()), (1000, Some(at(0))));
        first.note(1000, at(0));
        let due = first.connection_due().expect("shared");
        // The next one finds nothing left, and takes twice as long for each byte.
        let mut second = shared(None, 4000, due, at(0));
        assert_eq!((second.allowance(at(0)), second.due(), second.allowance(at(125))), (0, at(125), 500));
        second.note(300, at(125));
        // It leaves 200 bytes, which are 400 of the first.
        first.set_connection_due(second.connection_due().expect("shared"));
        assert_eq!((first.allowance(at(125)), first.due(), first.allowance(at(200))), (400, at(200), 1000));
    }

    #[test]
    fn response_obeys_its_own_limit_and_that_of_its_connection() {
        let mut pacer = shared(Some(800), 8000, Time::START, at(0));
        assert_eq!(pacer.allowance(at(0)), 100);
        pacer.note(100, at(0));
        assert_eq!((pacer.due(), pacer.connection_due()), (at(125), Some(Time::from_nanos(10_012_500_000))));
        let mut pacer = shared(Some(8000), 800, Time::START, at(0));
        assert_eq!(pacer.allowance(at(0)), 100);
        pacer.note(100, at(0));
        assert_eq!(pacer.due(), at(125));
    }

    #[test]
    fn first_bytes_are_free_and_rest_comes_in_steps() {
        let mut pacer = own(8000, 500);
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
        let mut pacer = own(8, 0);
        pacer.permit(100);
        pacer.note(100, at(0));
        assert_eq!(pacer.allowance(at(0)), 1);
    }

    proptest! {
        /// Whatever the times of its calls, a sender that takes what it may, at most half a second late, meets the rate.
        #[test]
        fn rate_is_met_and_never_exceeded(rate in 1_u64..100_000_000, lates in prop::collection::vec(0_u64..300, 20..100)) {
            let (mut pacer, mut now, mut sent) = (own(rate, 0), at(0), 0);
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

        /// However many responses share a credit, and whatever part of it each takes.
        #[test]
        fn shared_rate_is_never_exceeded(
            rate in 1000_u64..100_000_000,
            parts in prop::collection::vec((0_u64..300, 1_u64..=100), 20..200),
        ) {
            let (mut now, mut due, mut sent) = (at(0), at(0), 0);
            for (pause, percent) in parts {
                now = now + Duration::from_millis(pause);
                let mut pacer = shared(None, rate, due, now);
                let bytes = pacer.allowance(now) * percent / 100;
                pacer.note(bytes, now);
                due = pacer.connection_due().expect("shared");
                sent += bytes;
                let seconds = now.since(at(0)).as_secs_f64();
                prop_assert!(sent as f64 <= rate as f64 * (seconds + 0.126) + 100.0, "{} in {}", sent, seconds);
            }
        }
    }
}
