//! The monotonic clock that all threads share, and the wall clock.
//!
//! `core` reads no clock: time is an argument there. Event loops and the log thread read one [`Clock`], so that their
//! times are comparable. The `Date` field and log lines use the wall clock.

use std::time::{Duration, Instant, SystemTime};

use amped_core::reply::WallClock;
use amped_units::Time;

/// A monotonic clock.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    start: Instant,
}

impl Clock {
    /// Creates a clock that starts now.
    pub fn start() -> Clock {
        Clock { start: Instant::now() }
    }

    /// Returns the time since its start.
    pub fn now(&self) -> Time {
        Time::from_nanos(u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }
}

/// Returns the time of day.
pub fn wall() -> WallClock {
    WallClock::at(i64::try_from(since_1970().as_secs()).unwrap_or(i64::MAX))
}

/// Returns the time since 1970, by the wall clock.
pub fn since_1970() -> Duration {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO)
}
