//! Password state shared by all workers of a server, threads or processes.
//!
//! - How many passwords an address may try. Each has a budget of attempts that refills within a minute; a successful
//!   attempt is refunded. A second budget of the same size counts the attempts that were refused: each of them was still
//!   compared with the verified pairs.
//! - Which names and passwords were verified recently, as a hash that reveals neither.
//! - A lock, under which one password at a time is verified in the whole server, and slots for waiting processes.
//!
//! Both tables have a fixed size ([`client_times`](crate::client_times)). An attacker with thousands of addresses evades
//! the budgets this way, and meets the limit of the queue (`verifier`).
//!
//! The memory is shared with processes that are forked later (`sys/shared`).

use std::io;
use std::num::NonZeroU32;
use std::time::Duration;

use amped_sys::shared::{Guard, PATIENCE, Region};

use crate::client_times::{Client, TimeTable};

/// The attempts that an address has, and that refill within a minute; `None`: unlimited.
pub type Budget = Option<NonZeroU32>;

/// The tables, the lock and the slots.
#[derive(Debug)]
pub struct Ledger {
    region: Region,
    table: TimeTable,
}

const SETS: usize = 1024;

/// Slots for waiting processes, after the table: until when each is taken.
const PLACES: usize = TimeTable::bytes(SETS);
const PLACES_MAX: usize = 256;

/// A slot that is in use but not recorded, because a stopped process has the lock.
const UNCOUNTED: usize = usize::MAX;

/// Longer than the other processes of a busy server need to verify one password each.
const VERIFYING_MAX: Duration = Duration::from_secs(20);

/// The slot of a process that dies is released after this.
const LEASE: Duration = Duration::from_secs(60);

/// The part for addresses, with the time at which the budget of each is full again.
const TRIED: usize = 0;

/// The part for pairs, with the time at which each was verified.
const GOOD: usize = 1;

/// A part that is used only for its lock.
const VERIFYING: usize = 2;

/// The part for addresses, with the time at which the budget of refused attempts of each is full again.
const REFUSED: usize = 3;

/// How long a verified pair is valid without being verified again.
const REMEMBERED_NS: u64 = 300_000_000_000;

const MINUTE_NS: u64 = 60_000_000_000;

impl Ledger {
    /// Creates an empty ledger.
    ///
    /// # Errors
    /// There is no memory, or no descriptor.
    pub fn new() -> io::Result<Ledger> {
        let region = Region::new(4, PLACES + 8 * PLACES_MAX)?;
        Ok(Ledger { region, table: TimeTable::new(SETS) })
    }

    /// Takes an attempt at `now_ns` from a client's budget. Returns `false` if none is left, and counts that too.
    pub fn take(&self, client: Client, budget: Budget, now_ns: u64) -> bool {
        let taken = self.take_from(TRIED, client, budget, now_ns);
        if !taken {
            self.take_from(REFUSED, client, budget, now_ns);
        }
        taken
    }

    /// Returns whether a client's password may be compared with its verified pairs: not after too many refused
    /// attempts, as the result would tell right guesses from wrong ones.
    pub fn may_compare(&self, client: Client, budget: Budget, now_ns: u64) -> bool {
        let mut may = true;
        self.change(REFUSED, client.key(), |full_at| {
            may = budget.is_none_or(|budget| after_attempt(full_at, budget, now_ns).is_some());
            None
        });
        may
    }

    fn take_from(&self, part: usize, client: Client, budget: Budget, now_ns: u64) -> bool {
        budget.is_none_or(|budget| self.change(part, client.key(), |full_at| after_attempt(full_at, budget, now_ns)))
    }

    /// Refunds a successful attempt.
    pub fn give_back(&self, client: Client, budget: Budget) {
        if let Some(budget) = budget {
            let step = MINUTE_NS / u64::from(budget.get());
            self.change(TRIED, client.key(), |full_at| Some(full_at.saturating_sub(step)));
        }
    }

    /// Records at `now_ns` that this pair was verified.
    pub fn remember(&self, pair: u128, now_ns: u64) {
        self.change(GOOD, pair, |_| Some(now_ns));
    }

    /// Returns whether this pair was verified recently.
    pub fn remembers(&self, pair: u128, now_ns: u64) -> bool {
        let mut good = false;
        self.change(GOOD, pair, |since| {
            good = since > 0 && now_ns.saturating_sub(since) < REMEMBERED_NS;
            None
        });
        good
    }

    /// Returns `true` if nothing could be changed because a stopped process has the lock.
    fn change(&self, part: usize, key: u128, to: impl FnOnce(u64) -> Option<u64>) -> bool {
        self.lock(part, PATIENCE).is_none_or(|guard| self.table.change(&guard, key, to))
    }

    /// Takes one of the first `places` slots for a waiting process. Returns `None` if all are taken.
    pub fn take_place(&self, places: usize, now_ns: u64) -> Option<usize> {
        let Some(guard) = self.lock(TRIED, PATIENCE) else { return Some(UNCOUNTED) };
        let place = (0..places.min(PLACES_MAX))
            .find(|place| guard.word(PLACES + 8 * place).is_ok_and(|until| until <= now_ns))?;
        let until = now_ns + u64::try_from(LEASE.as_nanos()).unwrap_or(u64::MAX);
        guard.set_word(PLACES + 8 * place, until).ok().map(|()| place)
    }

    /// Releases a slot.
    pub fn give_place_back(&self, place: usize) {
        // A slot that cannot be released now becomes free when its lease ends.
        if place != UNCOUNTED
            && let Some(guard) = self.lock(TRIED, PATIENCE)
        {
            let freed = guard.set_word(PLACES + 8 * place, 0);
            debug_assert!(freed.is_ok(), "it was taken");
        }
    }

    /// Waits until nothing else in the server verifies a password. Returns `None` if this takes so long that a process
    /// must have been stopped; then verify beside it.
    pub fn verifying(&self) -> Option<Guard<'_>> {
        self.lock(VERIFYING, VERIFYING_MAX)
    }

    /// Returns `None` while a stopped process has the lock: the others continue without counting. A process that died
    /// with the lock leaves nothing to repair: every word belongs to a single entry.
    fn lock(&self, part: usize, patience: Duration) -> Option<Guard<'_>> {
        self.region.lock_mended(part, patience, |_| ())
    }
}

/// Returns when a budget is full again after one more attempt; `None`: it has none left.
fn after_attempt(full_at: u64, budget: NonZeroU32, now_ns: u64) -> Option<u64> {
    let step = MINUTE_NS / u64::from(budget.get());
    let full_at = full_at.max(now_ns) + step;
    (full_at - now_ns <= step * u64::from(budget.get())).then_some(full_at)
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;

    fn client(text: &str) -> Client {
        Client::new(Some(text.parse().unwrap()))
    }

    fn budget(attempts: u32) -> Budget {
        NonZeroU32::new(attempts)
    }

    #[test]
    fn budget_is_exhausted_and_refills_within_one_minute() {
        let ledger = Ledger::new().unwrap();
        let (ann, bob) = (client("192.0.2.1"), client("192.0.2.2"));
        let take = |client, at: u64| ledger.take(client, budget(20), 1_000_000_000 + at * 1_000_000_000);
        assert_eq!((0..30).filter(|_| take(ann, 0)).count(), 20);
        assert!(take(bob, 0), "another address has its own budget");
        assert!(!take(ann, 2));
        assert!(take(ann, 3), "one is regained every three seconds");
        assert!(!take(ann, 3));
        assert_eq!((0..30).filter(|_| take(ann, 63)).count(), 20);
        ledger.give_back(ann, budget(20));
        assert!(take(ann, 63), "a successful attempt does not count");
        assert!(!take(ann, 63));
        assert!((0..1000).all(|_| ledger.take(ann, None, 0)), "without a budget there is no limit");
    }

    #[test]
    fn refused_attempts_have_budget_too() {
        let ledger = Ledger::new().unwrap();
        let (ann, bob) = (client("192.0.2.1"), client("192.0.2.2"));
        let at = |second: u64| 1_000_000_000 + second * 1_000_000_000;
        while ledger.take(ann, budget(20), at(0)) {}
        for _ in 1..20 {
            assert!(ledger.may_compare(ann, budget(20), at(0)));
            assert!(!ledger.take(ann, budget(20), at(0)));
        }
        assert!(!ledger.may_compare(ann, budget(20), at(2)));
        assert!(ledger.may_compare(ann, budget(20), at(3)), "one is regained every three seconds");
        assert!(ledger.may_compare(bob, budget(20), at(0)), "another address has its own budget");
        assert!(ledger.may_compare(ann, None, at(0)));
    }

    #[test]
    fn addresses_with_fewest_attempts_are_evicted_first() {
        let ledger = Ledger::new().unwrap();
        let worst = client("192.0.2.1");
        while ledger.take(worst, budget(20), 0) {}
        for n in 0..2_u32 * (SETS * 4) as u32 {
            ledger.take(Client::new(Some(IpAddr::from(n.to_be_bytes()))), budget(20), 0);
        }
        assert!(!ledger.take(worst, budget(20), 0));
    }

    #[test]
    fn verified_pair_expires() {
        let ledger = Ledger::new().unwrap();
        ledger.remember(7, 1);
        let known = |pair, now_ns| ledger.remembers(pair, now_ns);
        assert_eq!(
            [known(7, 1), known(7, REMEMBERED_NS), known(7, REMEMBERED_NS + 1), known(8, 1)],
            [true, true, false, false]
        );
        assert!(!known(0, 1), "an empty entry is ignored");
        // The table is full; the most recently verified pairs stay.
        for pair in 0..100_000 {
            ledger.remember(pair, 1 + pair as u64);
        }
        assert_eq!((99_990..100_000).filter(|pair| known(*pair, 100_000)).count(), 10);
        assert!((0..100_000).filter(|pair| known(*pair, 100_000)).count() <= SETS * 4);
    }

    #[test]
    fn lease_is_returned_or_expires() {
        let ledger = Ledger::new().unwrap();
        let (now, later) = (1, 1 + LEASE.as_nanos() as u64);
        assert_eq!([(); 3].map(|()| ledger.take_place(2, now)), [Some(0), Some(1), None]);
        ledger.give_place_back(0);
        assert_eq!([(); 2].map(|()| ledger.take_place(2, now)), [Some(0), None]);
        assert_eq!([(); 3].map(|()| ledger.take_place(2, later)), [Some(0), Some(1), None]);
    }
}
