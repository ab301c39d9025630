//! The monotonic clock that all threads share, and the time of day.
//!
//! `core` reads no clock: time is an argument there. Event loops and the log's thread read one [`Clock`], so that a time
//! taken by one can be compared with a time taken by another. The `Date` field and log lines use the time of day.

use std::time::{Duration, Instant, SystemTime};

use amped_core::reply::WallClock;
use amped_units::Time;

/// The time, from one clock.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    start: Instant,
}

impl Clock {
    /// A clock that starts now.
    pub fn start() -> Clock {
        Clock { start: Instant::now() }
    }

    /// The time since.
    pub fn now(&self) -> Time {
        Time::from_nanos(u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }
}

/// The time of day.
pub fn wall() -> WallClock {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO);
    WallClock::at(i64::try_from(since.as_secs()).unwrap_or(i64::MAX))
}
