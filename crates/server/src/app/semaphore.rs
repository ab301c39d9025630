//! Limits the number of concurrent requests of a rule; further ones wait.
//!
//! The limit applies to the server, not to a loop. Loops in threads count together; processes, as in MP,
//! share slots that the kernel releases when one of them dies (`amped_sys::slots`). A loop is not
//! notified when another one releases a permit: its queued requests retry after a moment, while its own
//! permits go to its queued requests at once.
//!
//! A rule without a limit, such as one for an application that this server did not start, still has a queue, for
//! requests for which the application's own queue (its socket's backlog) has no room.

use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex, PoisonError};

use amped_sys::slots::Slots;

/// The permits of one rule.
#[derive(Debug)]
pub struct Semaphore {
    places: Mutex<Places>,
    queue_max: usize,
    /// The state shared with other processes.
    shared: Option<Slots>,
    /// Permits held by idle connections.
    pub idle: AtomicUsize,
}

#[derive(Debug)]
struct Places {
    /// The permits taken by this process; `None`: there is no limit.
    taken: Option<Vec<bool>>,
    /// Number of queued requests.
    waiting: usize,
}

impl Semaphore {
    /// Creates a semaphore with these numbers of permits and queued requests. `shared`: with other processes.
    ///
    /// # Errors
    /// When the process is out of descriptors.
    pub fn new(places: Option<usize>, queue_max: usize, shared: bool) -> std::io::Result<Semaphore> {
        let shared = (shared && places.is_some()).then(Slots::new).transpose()?;
        let taken = places.map(|places| vec![false; places]);
        Ok(Semaphore { places: Mutex::new(Places { taken, waiting: 0 }), queue_max, shared, idle: AtomicUsize::new(0) })
    }

    /// Creates a semaphore of permits that another process shares with this one.
    pub fn of_slots(places: usize, slots: Slots) -> Semaphore {
        let taken = Some(vec![false; places]);
        let places = Mutex::new(Places { taken, waiting: 0 });
        Semaphore { places, queue_max: 0, shared: Some(slots), idle: AtomicUsize::new(0) }
    }

    /// Returns the state shared with other processes, if there is any.
    pub fn slots(&self) -> Option<&Slots> {
        self.shared.as_ref()
    }

    fn places(&self) -> std::sync::MutexGuard<'_, Places> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a permit, if one is free.
    pub fn enter(self: &Arc<Semaphore>) -> Option<Permit> {
        let Some(places) = self.places().taken.as_ref().map(Vec::len) else {
            return Some(Permit { semaphore: Arc::clone(self), number: 0 });
        };
        (0..places).find_map(|number| self.enter_at(number))
    }

    /// Takes this permit, if it is free.
    pub fn enter_at(self: &Arc<Semaphore>, number: usize) -> Option<Permit> {
        let mut places = self.places();
        let taken = places.taken.as_mut()?;
        let is_free = !taken[number] && self.shared.as_ref().is_none_or(|shared| shared.take(number as u32));
        is_free.then(|| {
            taken[number] = true;
            Permit { semaphore: Arc::clone(self), number }
        })
    }

    /// Returns the number of permits free as far as this process can see.
    pub fn free(&self) -> usize {
        match &self.places().taken {
            Some(taken) => taken.iter().filter(|taken| !**taken).count(),
            None => UNLIMITED_TRIES,
        }
    }

    /// Queues the request of this number, unless the queue is full.
    pub fn queue(self: &Arc<Semaphore>, number: u64) -> Option<Waits> {
        let mut places = self.places();
        (places.waiting < self.queue_max).then(|| {
            places.waiting += 1;
            Waits { semaphore: Arc::clone(self), number }
        })
    }

    /// Returns whether requests wait for a permit.
    pub fn is_wanted(&self) -> bool {
        self.places().waiting > 0
    }
}

/// Requests that retry at a time whether an application has room for them: each attempt is a system call.
const UNLIMITED_TRIES: usize = 8;

/// A permit, released when dropped.
#[derive(Debug)]
pub struct Permit {
    semaphore: Arc<Semaphore>,
    number: usize,
}

impl Permit {
    /// Returns its number.
    pub fn number(&self) -> usize {
        self.number
    }

    /// Returns its semaphore.
    pub fn semaphore(&self) -> &Arc<Semaphore> {
        &self.semaphore
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        if let Some(taken) = &mut self.semaphore.places().taken {
            taken[self.number] = false;
            if let Some(shared) = &self.semaphore.shared {
                shared.give_back(self.number as u32);
            }
        }
    }
}

/// A queued request; dropping it removes it from the queue.
#[derive(Debug)]
pub struct Waits {
    semaphore: Arc<Semaphore>,
    /// Its sequence number in the loop: the lowest is served first.
    pub number: u64,
}

impl Waits {
    /// Returns the semaphore that it waits for.
    pub fn semaphore(&self) -> &Arc<Semaphore> {
        &self.semaphore
    }
}

impl Drop for Waits {
    fn drop(&mut self) {
        self.semaphore.places().waiting -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permits_are_limited_and_waiters_are_woken() {
        for shared in [false, true] {
            let semaphore = Arc::new(Semaphore::new(Some(2), 1, shared).expect("made"));
            let first = semaphore.enter().expect("free");
            let second = semaphore.enter().expect("free");
            assert!(semaphore.enter().is_none());
            let waits = semaphore.queue(1).expect("room");
            assert!(semaphore.queue(2).is_none() && semaphore.is_wanted());
            drop(first);
            let third = semaphore.enter().expect("free again");
            assert!(semaphore.enter().is_none());
            drop((second, third, waits));
            assert!(semaphore.queue(3).is_some() && semaphore.enter().is_some());
        }
    }

    #[test]
    fn unlimited_semaphore_admits_all_and_bounds_its_queue() {
        let semaphore = Arc::new(Semaphore::new(None, 1, true).expect("made"));
        let passes: Vec<Permit> = (0..1000).map_while(|_| semaphore.enter()).collect();
        assert_eq!(passes.len(), 1000);
        let waits = semaphore.queue(1).expect("room");
        assert!(semaphore.queue(2).is_none());
        drop((passes, waits));
        assert!(semaphore.queue(3).is_some() && semaphore.free() > 0);
    }
}
