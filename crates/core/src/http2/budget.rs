//! The budget of a client's control traffic.
//!
//! A client may make a server work without asking for anything: by resetting streams as soon as they are open
//! (CVE-2023-44487), by having the server reset them (CVE-2025-8671), and by frames that carry nothing. Each costs part
//! of a budget, which responses and time restore. A client that has spent it is disconnected.

use core::time::Duration;

use amped_units::Time;

/// The budget of a new connection, and the most that is saved; more if the client may have many streams, which it may
/// reset all at once.
const MOST: i64 = 200;

/// What a complete response gives back.
const RESPONSE: i64 = 2;

/// The time that gives back a tenth of a unit: ten units a second.
const STEP: Duration = Duration::from_millis(10);

/// The cost of a stream reset before its response was complete, by either side.
pub(super) const RESET: i64 = 2;

/// The cost of a frame that only controls the connection, or carries nothing.
pub(super) const CONTROL: i64 = 1;

/// The cost of a frame with this many settings. A browser sends at most about eight; each change of the window size
/// makes the server visit every stream.
pub(super) fn of_settings(count: usize) -> i64 {
    CONTROL + i64::try_from(count / 8).unwrap_or(i64::MAX / 20)
}

/// What is left of a connection's budget.
#[derive(Debug)]
pub(super) struct Budget {
    /// In tenths of a unit.
    left: i64,
    most: i64,
    since: Time,
}

impl Budget {
    /// The budget of a new connection.
    pub(super) fn new(now: Time, streams: usize) -> Budget {
        let all = RESET.saturating_mul(i64::try_from(streams).unwrap_or(i64::MAX)).saturating_add(MOST / 2);
        let most = MOST.max(all).saturating_mul(10);
        Budget { left: most, most, since: now }
    }

    /// Spends part of it. Returns whether that much was left.
    #[must_use]
    pub(super) fn spend(&mut self, now: Time, cost: i64) -> bool {
        let steps = now.since(self.since).as_nanos() / STEP.as_nanos();
        let restored = u32::try_from(steps).unwrap_or(u32::MAX);
        self.since = self.since + STEP * restored;
        self.left = self.left.saturating_add(i64::from(restored)).min(self.most) - cost * 10;
        self.left >= 0
    }

    /// A response is complete.
    pub(super) fn note_response(&mut self) {
        self.left = self.left.saturating_add(RESPONSE * 10).min(self.most);
    }

    /// A message of a tunnel was sent.
    pub(super) fn note_message(&mut self) {
        self.left = self.left.saturating_add(2 * CONTROL * 10).min(self.most);
    }

    /// Data were sent.
    pub(super) fn note_data(&mut self) {
        self.left = self.left.saturating_add(CONTROL * 10).min(self.most);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn responses_and_time_restore_what_resets_cost() {
        let at = Time::from_millis;
        let mut budget = Budget::new(at(0), 1);
        let spent = (0..).take_while(|_| budget.spend(at(0), RESET)).count() as i64;
        assert_eq!(spent, MOST / RESET);
        // One response for each reset: a client that cancels half of its requests is not disconnected.
        let mut budget = Budget::new(at(0), 1);
        for _ in 0..10_000 {
            budget.note_response();
            assert!(budget.spend(at(0), RESET));
        }
        // Ten a second: a client that pings ten times a second.
        let mut budget = Budget::new(at(0), 1);
        assert!((1..100_000).all(|turn| budget.spend(at(turn * 100), CONTROL)));
        let mut budget = Budget::new(at(0), 1);
        assert!(!(1..100_000).all(|turn| budget.spend(at(turn * 50), CONTROL)));
        // Nothing is saved beyond the first amount.
        let mut budget = Budget::new(at(0), 1);
        assert!(budget.spend(at(3_600_000), MOST) && !budget.spend(at(3_600_000), CONTROL));
    }
}
