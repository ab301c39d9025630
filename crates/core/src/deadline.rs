//! When to look at a connection again: a timer wheel that is touched as little as possible.
//!
//! A connection's deadline moves with each request, mostly to later. Moving a timer each time would cost more than the
//! request's own bookkeeping, so an entry stays where it is; when it comes up, its owner says whether it was meant, and
//! puts it in again if not. A deadline that moves to earlier gets a second entry; the first then comes up for nothing.
//!
//! One wheel of 512 slots; what lies beyond its circumference waits in the last slot and is put in again from there.

use alloc::vec::Vec;
use core::time::Duration;

use amped_units::Time;

/// Slots in the wheel.
const SLOTS: u64 = 512;

/// Words of the bit map of slots.
const WORDS: usize = (SLOTS / 64) as usize;

/// Length of a slot. Time-outs are promised in seconds, and may be late by this much, never early.
const SLOT: Duration = Duration::from_millis(128);

const SLOT_NANOS: u64 = SLOT.as_nanos() as u64;

/// Entries with the moment at which each comes up.
pub struct Wheel<T> {
    slots: Vec<Vec<(Time, T)>>,
    /// A bit for each slot that has entries. A loop asks for the next deadline in every turn, and to look through the slots
    /// themselves took up to 1 us of that (release build, the only deadline a minute away, this project's machine).
    occupied: [u64; WORDS],
    /// The slot that is looked at next, counted from the start of time: all earlier ones are empty.
    next: u64,
    len: usize,
}

impl<T> Default for Wheel<T> {
    fn default() -> Self {
        Wheel { slots: (0..SLOTS).map(|_| Vec::new()).collect(), occupied: [0; WORDS], next: 0, len: 0 }
    }
}

impl<T> Wheel<T> {
    /// Puts an entry in that comes up once `due` has passed.
    pub fn insert(&mut self, due: Time, entry: T) {
        // Rounded up: a slot is emptied when all of it has passed.
        let slot = (due.as_nanos() / SLOT_NANOS).clamp(self.next, self.next + SLOTS - 1);
        let at = (slot % SLOTS) as usize;
        self.slots[at].push((due, entry));
        self.occupied[at / 64] |= 1 << (at % 64);
        self.len += 1;
    }

    /// The moment at which [`expire`](Wheel::expire) next has something to do; `None` without entries.
    pub fn next_due(&self) -> Option<Time> {
        let start = (self.next % SLOTS) as usize;
        // Once round from `start`: the word it lies in comes first without the bits before it, and last with them alone.
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

    /// Takes out all entries that have come up at `now` into `expired`.
    pub fn expire(&mut self, now: Time, expired: &mut Vec<T>) {
        let current = now.as_nanos() / SLOT_NANOS;
        // Nothing is in the slots beyond one round, so there is no point in going round twice.
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

    /// Entries in it.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has none.
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
                prop_assert!(expired.is_empty() || now >= due, "something came before it was announced");
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
