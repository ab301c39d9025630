//! The monotonic clock, and waiting until it shows a certain time: absolute, so that being late once makes nothing later.

use std::num::NonZeroU64;
use std::time::Duration;

use amped_units::Time;
use rustix::thread::clock_nanosleep_absolute;
use rustix::time::{ClockId, Timespec, clock_gettime};

/// `CLOCK_MONOTONIC`, counted from an origin that all copies share.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    origin_ns: u64,
}

impl Clock {
    /// A clock that shows [`Time::START`] now.
    pub fn start() -> Clock {
        Clock { origin_ns: monotonic_ns() }
    }

    /// What it shows. No system call where the kernel has a vDSO.
    pub fn now(self) -> Time {
        Time::from_nanos(monotonic_ns() - self.origin_ns)
    }

    /// What it showed when [`monotonic_ns`] was this; [`Time::START`] before its origin.
    pub fn at(self, monotonic_ns: u64) -> Time {
        Time::from_nanos(monotonic_ns.saturating_sub(self.origin_ns))
    }

    /// Sleeps until it shows this, or a signal comes. How late the thread wakes up is the scheduler's business: see
    /// [`exact_timers`] and [`run_first`].
    pub fn sleep_until(self, until: Time) {
        let at = self.origin_ns.saturating_add(until.as_nanos()).min(i64::MAX as u64);
        let request = Timespec { tv_sec: (at / 1_000_000_000) as i64, tv_nsec: (at % 1_000_000_000) as i64 };
        // The only error of a valid time is a signal, after which the caller looks at the clock anyway.
        let _ = clock_nanosleep_absolute(ClockId::Monotonic, &request);
    }
}

/// `CLOCK_MONOTONIC` as it is, in nanoseconds: since the machine started. By the vDSO, some 25 ns.
pub fn monotonic_ns() -> u64 {
    nanos(clock_gettime(ClockId::Monotonic))
}

/// CPU time of the calling thread.
pub fn cpu_time() -> Duration {
    Duration::from_nanos(nanos(clock_gettime(ClockId::ThreadCPUTime)))
}

/// The kernel may otherwise wake this thread 50 us late, to wake others with it (`PR_SET_TIMERSLACK`).
pub fn exact_timers() {
    // A kernel without it has no slack.
    let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
}

/// Lets the calling thread run before all that have the usual policy, whenever it is able to (`SCHED_FIFO`), and before
/// those of the same kind with a lower priority, from 1 to 99. It must sleep by itself, or nobody else runs on its core.
///
/// # Errors
/// As sched_setscheduler(2): when this process may not (`RLIMIT_RTPRIO`, `CAP_SYS_NICE`).
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
