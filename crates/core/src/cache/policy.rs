//! A map with a budget, the basis of every cache here.
//!
//! Policy: CLOCK, that is second chance. A hit sets one bit and moves nothing, so that the common case writes a single
//! byte; the hand sweeps the entries in a circle, clears the bit where it is set, and evicts the entry where it is not.
//! A new entry starts without the bit, so that a name requested once does not displace one that is requested often.
//!
//! An entry is found by the hash of its key, or by a *hint*: its last known slot, valid only if the key still matches.
//! With a hint a hit costs one comparison and no hashing.

use core::hash::{BuildHasher, Hash};
use core::ops::{AddAssign, Deref};
use core::sync::atomic::{AtomicU32, Ordering};

use alloc::vec::Vec;
use foldhash::fast::RandomState;
use hashbrown::{Equivalent, HashTable};
use serde::{Deserialize, Serialize};

/// Entries under a budget of weight and of number.
pub struct Store<K, V> {
    index: HashTable<u32>,
    slots: Vec<Option<Slot<K, V>>>,
    free: Vec<u32>,
    hasher: RandomState,
    /// The next candidate for eviction: `hand < slots.len()`, or 0.
    hand: usize,
    weight: u64,
    weight_max: u64,
    entries_max: usize,
    counts: StoreCounts,
}

struct Slot<K, V> {
    key: K,
    value: V,
    weight: u64,
    used: bool,
}

/// Counters of a store since its creation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoreCounts {
    /// Lookups that found their entry.
    pub hits: u64,
    /// Lookups that found none.
    pub misses: u64,
    /// Insertions, including replacements.
    pub insertions: u64,
    /// Entries evicted to make room.
    pub evictions: u64,
    /// Entries not inserted: they exceed the whole budget, or the cache is disabled.
    pub refusals: u64,
}

impl AddAssign<&StoreCounts> for StoreCounts {
    fn add_assign(&mut self, other: &StoreCounts) {
        self.hits += other.hits;
        self.misses += other.misses;
        self.insertions += other.insertions;
        self.evictions += other.evictions;
        self.refusals += other.refusals;
    }
}

/// The last known slot of an entry. May be outdated: the key is compared.
#[derive(Debug, Default)]
pub struct Hint(AtomicU32);

impl Hint {
    fn get(&self) -> usize {
        self.0.load(Ordering::Relaxed) as usize
    }

    fn set(&self, slot: u32) {
        self.0.store(slot, Ordering::Relaxed);
    }
}

/// A key of two parts, the second of which is borrowed, for lookups.
#[derive(Hash)]
pub struct KeyRef<'a, N>(pub N, pub &'a [u8]);

impl<M, N: PartialEq<M>, P: Deref<Target = [u8]>> Equivalent<(M, P)> for KeyRef<'_, N> {
    fn equivalent(&self, (first, second): &(M, P)) -> bool {
        self.0 == *first && *self.1 == **second
    }
}

impl<K: Hash + Eq, V> Store<K, V> {
    /// Creates an empty store. A zero budget of either kind disables it.
    pub fn new(entries_max: usize, weight_max: u64) -> Store<K, V> {
        Store {
            index: HashTable::new(),
            slots: Vec::new(),
            free: Vec::new(),
            hasher: RandomState::default(),
            hand: 0,
            weight: 0,
            weight_max,
            entries_max: entries_max.min(u32::MAX as usize),
            counts: StoreCounts::default(),
        }
    }

    /// Looks up the value of `key`.
    pub fn get<Q: Hash + Equivalent<K> + ?Sized>(&mut self, key: &Q) -> Option<&mut V> {
        let found = self.find(key);
        self.touch(found)
    }

    /// Looks up the value of `key`, first at `hint`, and updates the hint.
    pub fn get_at(&mut self, hint: &Hint, key: &K) -> Option<&mut V> {
        let at_hint = matches!(self.slots.get(hint.get()), Some(Some(slot)) if slot.key == *key);
        let found = if at_hint { Some(hint.get()) } else { self.find(key) };
        if let Some(slot) = found {
            hint.set(slot as u32);
        }
        self.touch(found)
    }

    /// Looks up the value of `key`. Counts as a use, but not as a hit or miss.
    pub fn get_uncounted<Q: Hash + Equivalent<K> + ?Sized>(&mut self, key: &Q) -> Option<&mut V> {
        let at = self.find(key)?;
        let slot = self.slots[at].as_mut()?;
        slot.used = true;
        Some(&mut slot.value)
    }

    /// Looks up the value of `key` without counting as a use.
    pub fn peek<Q: Hash + Equivalent<K> + ?Sized>(&mut self, key: &Q) -> Option<&mut V> {
        let at = self.find(key)?;
        self.slots[at].as_mut().map(|slot| &mut slot.value)
    }

    fn find<Q: Hash + Equivalent<K> + ?Sized>(&self, key: &Q) -> Option<usize> {
        let hash = self.hasher.hash_one(key);
        let same = |&slot: &u32| matches!(&self.slots[slot as usize], Some(slot) if key.equivalent(&slot.key));
        self.index.find(hash, same).map(|&slot| slot as usize)
    }

    fn touch(&mut self, found: Option<usize>) -> Option<&mut V> {
        match found.and_then(|slot| self.slots[slot].as_mut()) {
            Some(slot) => {
                slot.used = true;
                self.counts.hits += 1;
                Some(&mut slot.value)
            }
            None => {
                self.counts.misses += 1;
                None
            }
        }
    }

    /// Inserts an entry, replacing one with the same key, and evicts others
    /// until it fits. An entry that exceeds the whole budget is not inserted.
    pub fn insert(&mut self, key: K, value: V, weight: u64) {
        self.remove(&key);
        if !self.fits(weight) {
            self.counts.refusals += 1;
            return;
        }
        while self.weight + weight > self.weight_max || self.len() >= self.entries_max {
            self.evict_one();
        }
        let hash = self.hasher.hash_one(&key);
        let slot = Some(Slot { key, value, weight, used: false });
        let at = match self.free.pop() {
            Some(at) => {
                self.slots[at as usize] = slot;
                at
            }
            None => {
                self.slots.push(slot);
                (self.slots.len() - 1) as u32
            }
        };
        let (slots, hasher) = (&self.slots, &self.hasher);
        let rehash = |&slot: &u32| slots[slot as usize].as_ref().map_or(0, |slot| hasher.hash_one(&slot.key));
        self.index.insert_unique(hash, at, rehash);
        self.weight += weight;
        self.counts.insertions += 1;
    }

    /// Removes an entry.
    pub fn remove<Q: Hash + Equivalent<K> + ?Sized>(&mut self, key: &Q) -> Option<V> {
        let at = self.find(key)?;
        self.take(at)
    }

    /// Changes the weight budget, and evicts entries until the rest fits.
    pub fn set_weight_max(&mut self, weight_max: u64) {
        self.weight_max = weight_max;
        while self.weight > weight_max {
            self.evict_one();
        }
    }

    /// Removes all entries whose key matches.
    pub fn remove_where(&mut self, is_gone: impl Fn(&K) -> bool) -> Vec<V> {
        let gone = |slot: &Option<Slot<K, V>>| matches!(slot, Some(slot) if is_gone(&slot.key));
        let places: Vec<usize> = (0..self.slots.len()).filter(|&at| gone(&self.slots[at])).collect();
        places.into_iter().filter_map(|at| self.take(at)).collect()
    }

    /// Returns all values, in no particular order. Counts as no use.
    pub fn values_mut(&mut self) -> impl Iterator<Item = &mut V> {
        self.slots.iter_mut().flatten().map(|slot| &mut slot.value)
    }

    /// Hashes a key, consistently for the lifetime of the store, for tables beside it.
    pub fn hash<Q: Hash + Equivalent<K> + ?Sized>(&self, key: &Q) -> u64 {
        self.hasher.hash_one(key)
    }

    /// Removes all entries; the counters stay.
    pub fn clear(&mut self) {
        self.index.clear();
        self.slots.clear();
        self.free.clear();
        self.hand = 0;
        self.weight = 0;
    }

    /// Advances the hand to an entry that was not used since its last visit, and evicts it. The store must not be
    /// empty. Terminates, because after one round every bit is cleared.
    fn evict_one(&mut self) {
        loop {
            let at = self.hand;
            self.hand = (at + 1) % self.slots.len();
            match &mut self.slots[at] {
                Some(slot) if slot.used => slot.used = false,
                Some(_) => {
                    self.take(at);
                    self.counts.evictions += 1;
                    return;
                }
                None => {}
            }
        }
    }

    fn take(&mut self, at: usize) -> Option<V> {
        let slot = self.slots[at].take()?;
        let hash = self.hasher.hash_one(&slot.key);
        if let Ok(entry) = self.index.find_entry(hash, |&other| other as usize == at) {
            entry.remove();
        }
        self.weight -= slot.weight;
        self.free.push(at as u32);
        Some(slot.value)
    }

    /// Whether an entry of this weight can be inserted.
    pub fn fits(&self, weight: u64) -> bool {
        weight <= self.weight_max && self.entries_max > 0
    }

    /// Whether it is enabled.
    pub fn is_on(&self) -> bool {
        self.entries_max > 0 && self.weight_max > 0
    }

    /// The number of entries.
    pub fn len(&self) -> usize {
        self.index.len()
    }

    /// Whether there are no entries.
    pub fn is_empty(&self) -> bool {
        self.index.is_empty()
    }

    /// The total weight: `weight() <= weight_max`.
    pub fn weight(&self) -> u64 {
        self.weight
    }

    /// Counters since the start.
    pub fn counts(&self) -> StoreCounts {
        self.counts
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn least_recently_used_entry_is_evicted_first() {
        let mut store = Store::new(3, 100);
        for key in 0..3 {
            store.insert(key, key * 10, 1);
        }
        assert_eq!(store.get(&0), Some(&mut 0));
        store.insert(3, 30, 1);
        assert_eq!(store.get(&1), None, "1 was first in line without having been used");
        assert_eq!(store.get(&0), Some(&mut 0));
        assert_eq!(store.get(&3), Some(&mut 30));
    }

    #[test]
    fn stale_hint_is_not_followed() {
        let mut store = Store::new(2, 100);
        let hint = Hint::default();
        store.insert("a", 1, 1);
        store.insert("b", 2, 1);
        assert_eq!(store.get_at(&hint, &"b"), Some(&mut 2));
        store.remove("a");
        store.remove("b");
        store.insert("c", 3, 1);
        assert_eq!(store.get_at(&hint, &"b"), None);
        assert_eq!(store.get_at(&hint, &"c"), Some(&mut 3));
    }

    #[test]
    fn smaller_budget_evicts_excess() {
        let mut store = Store::new(10, 100);
        (0..10).for_each(|key| store.insert(key, key, 10));
        assert_eq!(store.get(&0), Some(&mut 0));
        store.set_weight_max(25);
        assert_eq!((store.len(), store.weight(), store.counts().evictions), (2, 20, 8));
        assert_eq!(store.get(&0), Some(&mut 0));
        store.set_weight_max(0);
        assert!(store.is_empty());
    }

    #[test]
    fn remove_where_returns_removed_values() {
        let mut store = Store::new(10, 100);
        (0..10).for_each(|key| store.insert(key, key * 10, 10));
        assert_eq!(store.remove_where(|key| key % 4 == 1), [10, 50, 90]);
        assert_eq!((store.len(), store.weight()), (7, 70));
        assert_eq!(store.get(&5), None);
        assert_eq!(store.get(&6), Some(&mut 60));
    }

    #[test]
    fn zero_budget_disables_cache() {
        for (entries, weight) in [(0, 10), (10, 0)] {
            let mut store = Store::new(entries, weight);
            store.insert(1, 1, 1);
            assert_eq!(store.get(&1), None);
            assert_eq!(store.counts().refusals, 1);
        }
    }

    proptest! {
        #[test]
        fn budgets_hold_and_last_inserted_value_wins(
            entries_max in 1usize..8,
            weight_max in 1u64..50,
            steps in prop::collection::vec((0u8..12, 0u64..60, any::<bool>()), 0..200),
        ) {
            let mut store = Store::new(entries_max, weight_max);
            let mut last = std::collections::HashMap::new();
            for (n, (key, weight, put)) in steps.into_iter().enumerate() {
                if put {
                    store.insert(key, n, weight);
                    last.insert(key, n);
                } else if let Some(value) = store.get(&key) {
                    prop_assert_eq!(Some(&*value), last.get(&key));
                }
                prop_assert!(store.len() <= entries_max && store.weight() <= weight_max);
                let weights: u64 = store.slots.iter().flatten().map(|slot| slot.weight).sum();
                prop_assert_eq!(weights, store.weight());
                prop_assert_eq!(store.slots.iter().flatten().count(), store.len());
            }
        }
    }
}
