//! The monotonic clock, and sleeping until an absolute time, so that a late wakeup does not delay later ones.

use std::num::NonZeroU64;
use std::time::Duration;

use amped_units::Time;
use rustix::thread::clock_nanosleep_absolute;
use rustix::time::{ClockId, Timespec, clock_gettime};

/// `CLOCK_MONOTONIC`, relative to an origin that all copies share.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    origin_ns: u64,
}

impl Clock {
    /// Creates a clock that shows [`Time::START`] now.
    pub fn start() -> Clock {
        Clock { origin_ns: monotonic_ns() }
    }

    /// Returns the current time. No system call if the kernel has a vDSO.
    pub fn now(self) -> Time {
        Time::from_nanos(monotonic_ns() - self.origin_ns)
    }

    /// Converts a value of [`monotonic_ns`]; [`Time::START`] before the origin.
    pub fn at(self, monotonic_ns: u64) -> Time {
        Time::from_nanos(monotonic_ns.saturating_sub(self.origin_ns))
    }

    /// Sleeps until this time, or until a signal arrives. How late the thread wakes up depends on the
    /// scheduler: see [`exact_timers`] and [`run_first`].
    pub fn sleep_until(self, until: Time) {
        let at = self.origin_ns.saturating_add(until.as_nanos()).min(i64::MAX as u64);
        let request = Timespec { tv_sec: (at / 1_000_000_000) as i64, tv_nsec: (at % 1_000_000_000) as i64 };
        // With a valid time, this fails only if a signal arrives, after which the caller reads the clock anyway.
        let _ = clock_nanosleep_absolute(ClockId::Monotonic, &request);
    }
}

/// Returns `CLOCK_MONOTONIC` in nanoseconds since the machine started. Through the vDSO, some 25 ns.
pub fn monotonic_ns() -> u64 {
    nanos(clock_gettime(ClockId::Monotonic))
}

/// Returns `CLOCK_BOOTTIME` in nanoseconds since the machine started: the clock of start times in `/proc`.
pub fn boot_ns() -> u64 {
    nanos(clock_gettime(ClockId::Boottime))
}

/// Returns the CPU time of the calling thread.
pub fn cpu_time() -> Duration {
    Duration::from_nanos(nanos(clock_gettime(ClockId::ThreadCPUTime)))
}

/// Disables timer slack: otherwise the kernel may wake this thread 50 us late, together with others
/// (`PR_SET_TIMERSLACK`).
pub fn exact_timers() {
    // A kernel without this option has no slack.
    let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
}

/// Schedules the calling thread before all threads of the usual policy (`SCHED_FIFO`), and before those of the same
/// policy with a lower priority, from 1 to 99. The thread must sleep at times, or nothing else runs on its core.
///
/// # Errors
/// Those of sched_setscheduler(2): when this process lacks the permission (`RLIMIT_RTPRIO`, `CAP_SYS_NICE`).
pub fn run_first(priority: u8) -> std::io::Result<()> {
    let priority = libc::sched_param { sched_priority: priority.into() };
    // SAFETY: sched_setscheduler(2) reads the parameters, which are alive; 0 is the calling thread. JUSTIFICATION: neither
    // std nor rustix has it.
    match unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const priority) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    }
}

pub(crate) fn nanos(time: Timespec) -> u64 {
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sleep_does_not_end_early() {
        let clock = Clock::start();
        exact_timers();
        for step in 1..20 {
            let until = Time::from_millis(step);
            clock.sleep_until(until);
            assert!(clock.now() >= until);
        }
        clock.sleep_until(Time::START);
    }

    #[test]
    fn cpu_time_belongs_to_thread() {
        let before = cpu_time();
        while cpu_time() - before < Duration::from_millis(2) {}
        let after = std::thread::spawn(cpu_time).join().expect("ends");
        assert!(after < Duration::from_secs(1) && cpu_time() > before);
    }
}
