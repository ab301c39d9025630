//! CPU time of a group of processes that start and end: what they used between two readings, each second counted once.
//!
//! Pure. The time of a process that ends is not lost: once its parent has waited for it, the parent shows it
//! as time of its children (`cutime` and `cstime`, proc_pid_stat(5)). The part that was counted while the
//! child ran is then subtracted.
//!
//! Unlike [`others`](crate::others), which attributes the time to each program of the machine between two distant
//! readings, this adds up readings that may be 50 ms apart, without losing what each of them rounds away.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The CPU time of a process at one instant, in nanoseconds since it started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reading {
    /// Start time in ticks since boot; it distinguishes processes that had the same number.
    pub began: u64,
    /// Time since it started.
    pub age_ns: u64,
    /// CPU time of all of its threads, including those that have ended.
    pub own_ns: u64,
    /// CPU time of its children that have ended and that it waited for.
    pub children_ns: u64,
    /// The part of both in user code, to within a few ticks.
    pub user_ns: u64,
    /// The part of both in the kernel, likewise.
    pub system_ns: u64,
}

/// CPU time, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CpuTime {
    /// In user code.
    pub user_ns: u64,
    /// In the kernel.
    pub system_ns: u64,
}

impl CpuTime {
    /// User code and kernel together.
    pub fn all_ns(self) -> u64 {
        self.user_ns + self.system_ns
    }
}

/// Adds up the CPU time of a group of processes.
#[derive(Clone, Debug, Default)]
pub struct Account {
    known: BTreeMap<u32, Reading>,
    /// Time of processes that have ended, counted while they ran, which their parents are about to show again.
    owed_ns: u64,
}

/// Resolution of times in `/proc`, in nanoseconds (`USER_HZ`).
const TICK_NS: u64 = 10_000_000;

impl Account {
    /// Returns the CPU time used since the previous reading, `elapsed_ns` ago; zero for the first, with an elapsed time
    /// of zero. A process that started earlier than that and was not known then is counted for the elapsed time only.
    pub fn add(&mut self, now: BTreeMap<u32, Reading>, elapsed_ns: u64) -> CpuTime {
        let (mut own, mut children) = (0, 0);
        for (pid, to) in &now {
            if let Some(from) = self.known.get(pid).filter(|from| from.began == to.began) {
                own += to.own_ns.saturating_sub(from.own_ns);
                children += to.children_ns.saturating_sub(from.children_ns);
            } else if elapsed_ns > 0 {
                let share = (elapsed_ns + TICK_NS) as f64 / to.age_ns.max(1) as f64;
                own += ((to.own_ns + to.children_ns) as f64 * share.min(1.0)) as u64;
            }
        }
        let is_gone = |(pid, from): &(&u32, &Reading)| now.get(pid).is_none_or(|to| to.began != from.began);
        let gone: u64 = self.known.iter().filter(is_gone).map(|(_, from)| from.own_ns + from.children_ns).sum();
        let again = children.min(self.owed_ns + gone);
        // A parent that was read before it waited for a child shows the child's time in the next reading. One that
        // ignores SIGCHLD, or has ended, never shows it: after that reading only a rounding error is carried on.
        let rounding = 2 * TICK_NS * now.len() as u64;
        self.owed_ns = (self.owed_ns + gone - again).min(gone.max(rounding));
        let share = self.user_share(&now);
        self.known = now;
        let used = own + children - again;
        let user_ns = (used as f64 * share).round() as u64;
        CpuTime { user_ns, system_ns: used.saturating_sub(user_ns) }
    }

    /// The share of user code in the time since the previous reading; if neither had a tick in
    /// that time, since the start.
    fn user_share(&self, now: &BTreeMap<u32, Reading>) -> f64 {
        let sums = |of: &BTreeMap<u32, Reading>| {
            of.values().fold((0, 0), |(user, system), one| (user + one.user_ns, system + one.system_ns))
        };
        let (from, to) = (sums(&self.known), sums(now));
        let share = |user: u64, system: u64| (user + system > 0).then(|| user as f64 / (user + system) as f64);
        share(to.0.saturating_sub(from.0), to.1.saturating_sub(from.1)).or(share(to.0, to.1)).unwrap_or(0.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// Readings of (number, start, age, own, children), times in milliseconds, and the time used since the last one.
    fn add(account: &mut Account, elapsed_ms: u64, of: &[(u32, u64, u64, u64, u64)]) -> u64 {
        let reading = |&(pid, began, age, own, children): &(u32, u64, u64, u64, u64)| {
            let [age_ns, own_ns, children_ns] = [age, own, children].map(|ms| ms * MS);
            (pid, Reading { began, age_ns, own_ns, children_ns, user_ns: own_ns + children_ns, system_ns: 0 })
        };
        let used = account.add(of.iter().map(reading).collect(), elapsed_ms * MS);
        assert_eq!(used.system_ns, 0);
        used.user_ns / MS
    }

    #[test]
    fn time_before_first_reading_is_not_counted() {
        let mut account = Account::default();
        assert_eq!(add(&mut account, 0, &[(10, 1, 9000, 500, 300)]), 0);
        assert_eq!(add(&mut account, 100, &[(10, 1, 9100, 540, 300)]), 40);
    }

    #[test]
    fn child_is_counted_once() {
        let mut account = Account::default();
        add(&mut account, 0, &[(10, 1, 9000, 0, 300)]);
        // A child starts, is counted while it runs, and ends after 20 ms more.
        assert_eq!(add(&mut account, 100, &[(10, 1, 9100, 0, 300), (11, 910, 60, 50, 0)]), 50);
        assert_eq!(add(&mut account, 100, &[(10, 1, 9200, 0, 300), (11, 910, 160, 150, 0)]), 100);
        assert_eq!(add(&mut account, 100, &[(10, 1, 9300, 0, 470)]), 20);
        // A child that no reading saw.
        assert_eq!(add(&mut account, 100, &[(10, 1, 9400, 0, 480)]), 10);
    }

    #[test]
    fn parent_read_before_it_waited_is_not_counted_twice() {
        let mut account = Account::default();
        add(&mut account, 0, &[(10, 1, 9000, 0, 0), (11, 1, 9000, 400, 0)]);
        assert_eq!(add(&mut account, 100, &[(10, 1, 9100, 3, 0)]), 3);
        assert_eq!(add(&mut account, 100, &[(10, 1, 9200, 3, 450)]), 50);
    }

    #[test]
    fn child_without_waiting_parent_hides_little_of_later_children() {
        let mut account = Account::default();
        add(&mut account, 0, &[(10, 1, 9000, 0, 0), (11, 1, 9000, 400, 0)]);
        assert_eq!(add(&mut account, 100, &[(10, 1, 9100, 0, 0)]), 0);
        assert_eq!(add(&mut account, 100, &[(10, 1, 9200, 0, 0)]), 0);
        assert_eq!(add(&mut account, 100, &[(10, 1, 9300, 0, 200)]), 200 - 20);
    }

    #[test]
    fn rounding_of_many_children_does_not_add_up() {
        let mut account = Account::default();
        let parent = |time: u64| (10, 1, 9000 + time, 0, time / 10 * 10);
        add(&mut account, 0, &[parent(0)]);
        let mut sum = 0;
        // Each child is seen at 7 of 9 ms; the parent's time of children is in whole ticks.
        for number in 1..=100 {
            sum += add(&mut account, 50, &[parent(9 * (number - 1)), (10 + number as u32, number, 10, 7, 0)]);
            sum += add(&mut account, 50, &[parent(9 * number)]);
        }
        assert_eq!(sum, 900);
    }

    #[test]
    fn process_found_late_is_counted_for_elapsed_time() {
        let mut account = Account::default();
        add(&mut account, 0, &[(10, 1, 9000, 0, 0)]);
        let late = (20, 1, 5000, 4000, 1000);
        assert_eq!(add(&mut account, 90, &[(10, 1, 9090, 0, 0), late]), 100);
        // Another process with its number started within the interval.
        assert_eq!(add(&mut account, 90, &[(10, 1, 9180, 0, 5000), (20, 918, 50, 30, 0)]), 30);
    }

    #[test]
    fn time_is_split_by_ticks() {
        let mut account = Account::default();
        let reading = |own, user, system| {
            let [own_ns, user_ns, system_ns] = [own, user, system].map(|ms| ms * MS);
            BTreeMap::from([(1, Reading { own_ns, user_ns, system_ns, ..Reading::default() })])
        };
        account.add(reading(1000, 900, 100), 0);
        assert_eq!(account.add(reading(1040, 930, 110), MS), CpuTime { user_ns: 30 * MS, system_ns: 10 * MS });
        // Without a tick of either, the split is that of its whole life.
        let used = account.add(reading(1048, 930, 110), MS);
        assert!((used.user_ns as f64 / (8.0 * MS as f64) - 930.0 / 1040.0).abs() < 1e-6, "{used:?}");
    }
}
