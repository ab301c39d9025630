//! What each client has open at the moment, over all loops and processes: its connections, and requests under a limit.
//!
//! Loops that are threads share maps behind locks, with an entry for each client that has anything open, so that their
//! size is bounded by what may be open. Processes share a table of what each process has open for each client. A process
//! that dies, even by SIGKILL, releases nothing; its parent removes its entries when it replaces it (`processes`).
//!
//! Unlike the buckets of [`request_limits`](crate::request_limits) counts are exact, and nothing is evicted.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use amped_core::record::EndRequest;
use amped_sys::shared::{Guard, Outside, PATIENCE, Region};

/// The counts of all clients of a server.
#[derive(Debug)]
pub struct ClientCounts(Store);

#[derive(Debug)]
enum Store {
    Threads {
        hash: RandomState,
        parts: Box<[Mutex<HashMap<u128, u32>>; PARTS]>,
        log_at: AtomicU64,
    },
    /// `late`: the places that this process has released while it could not lock the table.
    Processes {
        region: Region,
        late: Mutex<Vec<usize>>,
    },
}

/// Maps with a lock each, so that loops seldom meet, and none waits long for another whose map grows.
const PARTS: usize = 16;

/// Places in the table of processes, 256 KiB: twice as many as the most workers, each with one connection. What finds no
/// place is not counted.
const PLACES: usize = if cfg!(test) { 100 } else { 8192 };

/// In the region: the number of places that were ever used, when the next line may be written to the error log, and the
/// places.
const USED: usize = 0;
const LOG_AT: usize = 8;
const TABLE: usize = 16;

/// A process, 0 in a free place; how much it has open; for which key.
const ENTRY: usize = 32;

/// The number under which a client's connections are counted; no limit of requests has it.
pub const CONNECTIONS: u16 = u16::MAX;

/// The time between two lines in the error log.
const LOG_NS: u64 = 60_000_000_000;

/// How long the parent waits for the table: no client waits for the parent.
const FORGET_MAX: Duration = Duration::from_secs(1);

/// Something that a client has open, which counts until this is dropped.
#[derive(Debug)]
pub struct Permit {
    counts: Arc<ClientCounts>,
    key: u128,
    /// Its place in the table of processes.
    place: usize,
}

impl ClientCounts {
    /// Creates counts that are zero. `processes`: they must be created before the processes that share them.
    ///
    /// # Errors
    /// There is no memory, or no descriptor.
    pub fn new(processes: bool) -> io::Result<ClientCounts> {
        Ok(ClientCounts(match processes {
            true => Store::Processes { region: Region::new(1, TABLE + PLACES * ENTRY)?, late: Mutex::default() },
            false => {
                let parts = Box::new(std::array::from_fn(|_| Mutex::default()));
                Store::Threads { hash: RandomState::new(), parts, log_at: AtomicU64::new(0) }
            }
        }))
    }

    /// Counts one more of a key until the permit is dropped; `None` if there are `max` of it. `max >= 1`
    pub fn permit(self: &Arc<ClientCounts>, key: u128, max: u32) -> Option<Permit> {
        self.take(key, max).map(|place| Permit { counts: Arc::clone(self), key, place })
    }

    /// Counts one more of a key; `None` if there are `max` of it. Returns the place to [`release`](ClientCounts::release).
    pub fn take(&self, key: u128, max: u32) -> Option<usize> {
        match &self.0 {
            Store::Threads { hash, parts, .. } => {
                let mut part = lock_part(hash, parts, key);
                if part.get(&key).is_some_and(|count| *count >= max) {
                    return None;
                }
                *part.entry(key).or_insert(0) += 1;
                Some(PLACES)
            }
            Store::Processes { region, late } => {
                // What cannot be counted is not refused.
                let Some(guard) = lock(region, PATIENCE) else { return Some(PLACES) };
                lock_late(late).drain(..).for_each(|place| release_place(&guard, place));
                take_place(&guard, u64::from(std::process::id()), key, max)
            }
        }
    }

    /// Counts one less of a key, which was taken at this place.
    pub fn release(&self, key: u128, place: usize) {
        match &self.0 {
            Store::Threads { hash, parts, .. } => {
                let mut part = lock_part(hash, parts, key);
                if let Some(count) = part.get_mut(&key) {
                    *count -= 1;
                    if *count == 0 {
                        part.remove(&key);
                    }
                }
            }
            Store::Processes { region, late } => match lock(region, PATIENCE) {
                Some(guard) => release_place(&guard, place),
                None => lock_late(late).push(place),
            },
        }
    }

    /// Removes what a process that has died had open.
    pub fn forget_process(&self, pid: u32) {
        let Store::Processes { region, .. } = &self.0 else { return };
        let Some(guard) = lock(region, FORGET_MAX) else { return };
        for place in 0..used(&guard) {
            if owner(&guard, place) == u64::from(pid) {
                set_owner(&guard, place, 0);
            }
        }
    }

    /// Returns whether a line may be written to the error log, and if so, that none may be for a minute.
    pub fn may_log(&self, now_ns: u64) -> bool {
        let next = |next: u64| (next <= now_ns).then_some(now_ns + LOG_NS);
        match &self.0 {
            Store::Threads { log_at, .. } => log_at.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next).is_ok(),
            Store::Processes { region, .. } => {
                let Some(guard) = lock(region, PATIENCE) else { return false };
                let next = guard.word(LOG_AT).ok().and_then(next);
                next.is_some_and(|next| guard.set_word(LOG_AT, next).is_ok())
            }
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.counts.release(self.key, self.place);
    }
}

impl EndRequest for ClientCounts {
    fn end(&self, key: u128, place: usize) {
        self.release(key, place);
    }
}

fn lock_part<'a>(
    hash: &RandomState,
    parts: &'a [Mutex<HashMap<u128, u32>>; PARTS],
    key: u128,
) -> MutexGuard<'a, HashMap<u128, u32>> {
    // The map hashes with a key of its own.
    parts[hash.hash_one(key) as usize % PARTS].lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns `None` while a stopped process has the lock. A process that died with it leaves nothing to repair: a place
/// belongs to it once its first word is written, which is the last that is, and its parent frees that.
fn lock(region: &Region, patience: Duration) -> Option<Guard<'_>> {
    region.lock_mended(0, patience, |_| ())
}

fn lock_late(late: &Mutex<Vec<usize>>) -> MutexGuard<'_, Vec<usize>> {
    late.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the place of a process and a key with one more, `PLACES` if none is free; `None` if there are `max`.
fn take_place(guard: &Guard<'_>, pid: u64, key: u128, max: u32) -> Option<usize> {
    let (mut sum, mut own, mut free) = (0, None, None);
    let used = used(guard);
    for place in 0..used {
        match owner(guard, place) {
            0 => free = free.or(Some(place)),
            its_pid => {
                let Ok((count, its_key)) = entry(guard, place) else { continue };
                if its_key == key {
                    sum += count;
                    own = own.or((its_pid == pid).then_some((place, count)));
                }
            }
        }
    }
    if sum >= u64::from(max) {
        return None;
    }
    if let Some((place, count)) = own {
        set_count(guard, place, count + 1);
        return Some(place);
    }
    let place = free.unwrap_or(used);
    if place == PLACES {
        return Some(PLACES);
    }
    let written = guard.write(at(place) + 16, &key.to_ne_bytes());
    debug_assert!(written.is_ok(), "the table has a fixed size");
    set_count(guard, place, 1);
    set_owner(guard, place, pid);
    if place == used {
        let written = guard.set_word(USED, used as u64 + 1);
        debug_assert!(written.is_ok(), "the table has a fixed size");
    }
    Some(place)
}

fn release_place(guard: &Guard<'_>, place: usize) {
    if place == PLACES {
        return;
    }
    match entry(guard, place) {
        Ok((count @ 2.., _)) => set_count(guard, place, count - 1),
        _ => set_owner(guard, place, 0),
    }
}

fn at(place: usize) -> usize {
    TABLE + place * ENTRY
}

/// Returns the number of places that were ever used.
fn used(guard: &Guard<'_>) -> usize {
    guard.word(USED).map_or(0, |used| PLACES.min(used as usize))
}

/// Returns the process that has this place; 0: none.
fn owner(guard: &Guard<'_>, place: usize) -> u64 {
    guard.word(at(place)).unwrap_or(0)
}

fn set_owner(guard: &Guard<'_>, place: usize, pid: u64) {
    let written = guard.set_word(at(place), pid);
    debug_assert!(written.is_ok(), "the table has a fixed size");
}

/// Returns how much its process has open, and the key.
fn entry(guard: &Guard<'_>, place: usize) -> Result<(u64, u128), Outside> {
    let mut key = [0; 16];
    guard.read(at(place) + 16, &mut key)?;
    Ok((guard.word(at(place) + 8)?, u128::from_ne_bytes(key)))
}

fn set_count(guard: &Guard<'_>, place: usize, count: u64) {
    let written = guard.set_word(at(place) + 8, count);
    debug_assert!(written.is_ok(), "the table has a fixed size");
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;

    use super::*;

    fn locked(region: &Region) -> Guard<'_> {
        lock(region, Duration::from_secs(60)).unwrap()
    }

    #[test]
    fn what_is_released_during_stop_of_another_process_is_free_afterwards() {
        let counts = Arc::new(ClientCounts::new(true).unwrap());
        let Store::Processes { region, .. } = &counts.0 else { unreachable!() };
        let permit = counts.permit(1, 1);
        let (held, release) = (Barrier::new(2), Barrier::new(2));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let _guard = locked(region);
                held.wait();
                release.wait();
            });
            held.wait();
            drop(permit);
            assert!(counts.permit(1, 1).is_some(), "not counted");
            release.wait();
        });
        let permit = counts.permit(1, 1);
        assert!(permit.is_some() && counts.permit(1, 1).is_none());
    }

    fn both() -> [Arc<ClientCounts>; 2] {
        [false, true].map(|processes| Arc::new(ClientCounts::new(processes).unwrap()))
    }

    #[test]
    fn keys_count_up_to_maximum_until_permits_are_dropped() {
        for counts in both() {
            let held: Vec<_> = (0..5).map(|_| counts.permit(1, 3)).collect();
            assert_eq!(held.iter().flatten().count(), 3);
            let other = counts.permit(2, 3);
            assert!(other.is_some() && counts.permit(1, 3).is_none());
            drop(held);
            let held: Vec<_> = (0..5).map(|_| counts.permit(1, 3)).collect();
            assert_eq!(held.iter().flatten().count(), 3);
            // A lower maximum, after a reload.
            assert!(counts.permit(2, 1).is_none());
        }
    }

    #[test]
    fn nothing_is_kept_of_closed_connections() {
        for counts in both() {
            for key in 0..3 * PLACES as u128 {
                drop(counts.permit(key, 1));
            }
            match &counts.0 {
                Store::Threads { parts, .. } => assert!(parts.iter().all(|part| part.lock().unwrap().is_empty())),
                Store::Processes { region, .. } => assert_eq!(used(&locked(region)), 1),
            }
        }
    }

    #[test]
    fn processes_count_together_and_dead_one_is_forgotten() {
        let counts = ClientCounts::new(true).unwrap();
        let Store::Processes { region, .. } = &counts.0 else { unreachable!() };
        let take = |pid: u64, key: u128| take_place(&locked(region), pid, key, 3);
        let places = [take(10, 1), take(11, 1), take(10, 1)];
        assert_eq!(places, [Some(0), Some(1), Some(0)]);
        assert_eq!([take(11, 1), take(12, 1), take(12, 2)], [None, None, Some(2)]);
        counts.forget_process(10);
        assert_eq!([take(12, 1), take(12, 1), take(12, 1)], [Some(0), Some(0), None]);
        release_place(&locked(region), 0);
        assert_eq!([take(13, 1), take(13, 1)], [Some(3), None]);
        counts.forget_process(11);
        counts.forget_process(12);
        counts.forget_process(13);
        assert_eq!([take(14, 1), take(14, 2)], [Some(0), Some(1)]);
    }

    #[test]
    fn full_table_counts_no_more_and_refuses_nobody() {
        let counts = Arc::new(ClientCounts::new(true).unwrap());
        let held: Vec<_> = (0..PLACES as u128).map(|key| counts.permit(key, 1)).collect();
        assert!(held.iter().all(Option::is_some));
        let more = [counts.permit(PLACES as u128, 1), counts.permit(PLACES as u128, 1)];
        assert!(more.iter().all(Option::is_some) && counts.permit(7, 1).is_none());
        drop((held, more));
        let Store::Processes { region, .. } = &counts.0 else { unreachable!() };
        assert!((0..PLACES).all(|place| owner(&locked(region), place) == 0));
    }

    #[test]
    fn one_line_a_minute_may_be_logged() {
        for counts in both() {
            let may_log = |seconds: u64| counts.may_log(1_000_000_000_000 + seconds * 1_000_000_000);
            assert_eq!([0, 1, 59, 60, 61, 120].map(may_log), [true, false, false, true, false, true]);
        }
    }
}
