//! The results of active health checks (`checker`), in memory that forked processes share.
//!
//! The first process to begin the checks of an interval does them, so backends get one request whatever the number of processes, and
//! the checks continue if one dies.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use amped_sys::shared::{Guard, Outside, PATIENCE, Region};

use super::names::milliseconds;
use crate::config::settings::{BACKENDS_MAX, HealthCheck};

/// The state of all backends of a rule.
#[derive(Debug)]
pub(super) struct Health {
    /// How they are checked.
    pub(super) check: HealthCheck,
    region: Region,
    start: Instant,
    /// The thread of this process was started.
    is_started: AtomicBool,
}

/// Words of the memory: a set of bits for the unhealthy backends, when the next checks begin, in milliseconds since
/// `start`, and for each backend its results in succession that contradict its state.
const DOWN: usize = 0;
const DUE_MS: usize = 8;
const COUNTS: usize = 16;

impl Health {
    /// Creates the state, in which all backends are healthy.
    ///
    /// # Errors
    /// There is no memory, or no descriptor.
    pub(super) fn new(check: HealthCheck) -> io::Result<Health> {
        let region = Region::new(1, COUNTS + 8 * BACKENDS_MAX)?;
        Ok(Health { check, region, start: Instant::now(), is_started: AtomicBool::new(false) })
    }

    /// Returns the unhealthy backends as a set of bits.
    pub(super) fn down(&self) -> u64 {
        self.lock().map_or(0, |guard| guard.word(DOWN).unwrap_or(0))
    }

    /// Returns `None` while a stopped process has the lock; then all backends count as healthy.
    fn lock(&self) -> Option<Guard<'_>> {
        let clear = |guard: &Guard<'_>| {
            let _ = guard.zero(0, COUNTS + 8 * BACKENDS_MAX);
        };
        self.region.lock_mended(0, PATIENCE, clear)
    }

    /// Returns whether the thread of this process is to be started: one caller gets `true`.
    pub(super) fn takes_start(&self) -> bool {
        !self.is_started.swap(true, Ordering::Relaxed)
    }

    fn now_ms(&self) -> u64 {
        milliseconds(self.start.elapsed())
    }

    /// Returns when the next checks begin, if another process does them; otherwise they are the caller's.
    pub(super) fn begin(&self) -> Result<Option<Duration>, Outside> {
        let Some(guard) = self.lock() else { return Ok(Some(self.check.interval)) };
        let now = self.now_ms();
        let due = guard.word(DUE_MS)?;
        if now < due {
            return Ok(Some(Duration::from_millis(due - now)));
        }
        guard.set_word(DUE_MS, now.saturating_add(milliseconds(self.check.interval)))?;
        Ok(None)
    }

    /// Another backend has this number now, which counts as healthy.
    pub(super) fn forget(&self, number: usize) -> Result<(), Outside> {
        let Some(guard) = self.lock() else { return Ok(()) };
        guard.set_word(DOWN, guard.word(DOWN)? & !(1 << number))?;
        guard.set_word(COUNTS + 8 * number, 0)
    }

    /// Notes the result of a check. Returns whether the state of the backend has changed.
    pub(super) fn note(&self, member: usize, is_healthy: bool) -> Result<bool, Outside> {
        let Some(guard) = self.lock() else { return Ok(false) };
        let at = COUNTS + 8 * member;
        let down = guard.word(DOWN)?;
        let was_healthy = down & 1 << member == 0;
        if is_healthy == was_healthy {
            guard.set_word(at, 0)?;
            return Ok(false);
        }
        let count = guard.word(at)? + 1;
        let needed = if is_healthy { self.check.healthy } else { self.check.unhealthy };
        if count < needed as u64 {
            guard.set_word(at, count)?;
            return Ok(false);
        }
        guard.set_word(at, 0)?;
        guard.set_word(DOWN, down ^ 1 << member)?;
        Ok(true)
    }
}
