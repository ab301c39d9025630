//! Deadlines of connections: a timer wheel that is modified as rarely as possible.
//!
//! The deadline of a connection moves with each request, mostly to later. Moving a timer each time
//! would cost more than the rest of the request's bookkeeping, so an entry stays in place; when it
//! expires, its owner decides whether it is due, and inserts it again if not. A deadline that
//! moves to earlier gets a second entry, and the first one expires without effect.
//!
//! The wheel has 512 slots; an entry beyond its range waits in the last slot and is inserted again from there.

use alloc::vec::Vec;
use core::time::Duration;

use amped_units::Time;

/// Slots in the wheel.
const SLOTS: u64 = 512;

/// Words in the bitmap of slots.
const WORDS: usize = (SLOTS / 64) as usize;

/// Length of a slot. Timeouts are promised in seconds; they may fire late by this much, never early.
const SLOT: Duration = Duration::from_millis(128);

const SLOT_NANOS: u64 = SLOT.as_nanos() as u64;

/// Entries with their expiry times.
pub struct Wheel<T> {
    slots: Vec<Vec<(Time, T)>>,
    /// One bit per non-empty slot. A loop reads the next deadline on every turn, and scanning the slots themselves
    /// took up to 1 us (release build, the only deadline a minute away, this project's machine).
    occupied: [u64; WORDS],
    /// The next slot to expire, counted from the start of time: all earlier slots are empty.
    next: u64,
    len: usize,
}

impl<T> Default for Wheel<T> {
    fn default() -> Self {
        Wheel { slots: (0..SLOTS).map(|_| Vec::new()).collect(), occupied: [0; WORDS], next: 0, len: 0 }
    }
}

impl<T> Wheel<T> {
    /// Inserts an entry that expires once `due` has passed.
    pub fn insert(&mut self, due: Time, entry: T) {
        // Rounded up: a slot expires only once all of it has passed.
        let slot = (due.as_nanos() / SLOT_NANOS).clamp(self.next, self.next + SLOTS - 1);
        let at = (slot % SLOTS) as usize;
        self.slots[at].push((due, entry));
        self.occupied[at / 64] |= 1 << (at % 64);
        self.len += 1;
    }

    /// When [`expire`](Wheel::expire) next has an entry to return; `None` without entries.
    pub fn next_due(&self) -> Option<Time> {
        let start = (self.next % SLOTS) as usize;
        // One round from `start`: its word is visited first without the earlier bits, and last with only those.
        let before = (1_u64 << (start % 64)) - 1;
        let (word, bits) = (0..=WORDS).find_map(|n| {
            let word = (start / 64 + n) % WORDS;
            let mask = match n {
                0 => !before,
                WORDS => before,
                _ => u64::MAX,
            };
            let bits = self.occupied[word] & mask;
            (bits != 0).then_some((word, bits))
        })?;
        let at = word * 64 + bits.trailing_zeros() as usize;
        let ahead = (at + SLOTS as usize - start) % SLOTS as usize;
        Some(Time::from_nanos((self.next + ahead as u64 + 1) * SLOT_NANOS))
    }

    /// Moves all entries that have expired by `now` to `expired`.
    pub fn expire(&mut self, now: Time, expired: &mut Vec<T>) {
        let current = now.as_nanos() / SLOT_NANOS;
        // All entries lie within one round, so a second round would find nothing.
        if current.saturating_sub(self.next) > SLOTS {
            self.next = self.next.max(current - SLOTS);
        }
        while self.next < current {
            let slot = (self.next % SLOTS) as usize;
            self.next += 1;
            self.occupied[slot / 64] &= !(1 << (slot % 64));
            for (due, entry) in core::mem::take(&mut self.slots[slot]) {
                self.len -= 1;
                if due <= now {
                    expired.push(entry);
                } else {
                    self.insert(due, entry);
                }
            }
        }
    }

    /// The number of entries.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no entries.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn timers_fire_neither_early_nor_much_late(dues in prop::collection::vec(0u64..400_000, 1..60), step in 1u64..30_000) {
            let mut wheel = Wheel::default();
            for (n, due) in dues.iter().enumerate() {
                wheel.insert(Time::from_millis(*due), n);
            }
            let mut when = std::vec![None; dues.len()];
            let mut now = 0;
            while !wheel.is_empty() {
                let due = wheel.next_due().expect("not empty").as_millis();
                let slot = (wheel.next..).find(|slot| !wheel.slots[(slot % SLOTS) as usize].is_empty());
                prop_assert_eq!(slot.map(|slot| (slot + 1) * SLOT.as_millis() as u64), Some(due));
                let before = wheel.len();
                let mut expired = Vec::new();
                wheel.expire(Time::from_millis(now), &mut expired);
                prop_assert!(expired.is_empty() || now >= due, "an entry expired before next_due");
                prop_assert_eq!(before - expired.len(), wheel.len());
                for n in expired {
                    prop_assert!(when[n].replace(now).is_none());
                }
                now += step;
            }
            for (n, due) in dues.iter().enumerate() {
                let when = when[n].expect("came up");
                prop_assert!(when >= *due && when <= due + step + 2 * SLOT.as_millis() as u64, "due {} came {}", due, when);
            }
        }
    }
}
