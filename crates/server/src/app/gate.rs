//! How many applications of a rule run at a time: whoever wants another one waits until one has ended.
//!
//! The limit is the server's, not a loop's. Loops in threads count together; processes, as in MP, share places that the kernel
//! gives back when one of them dies (`amped_sys::slots`). Nobody is told across loops that a place is free: who waits looks
//! again after a moment, while a loop's own places go to those who wait in it at once.

use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex, PoisonError};

use amped_sys::slots::Slots;

/// The places of one rule.
#[derive(Debug)]
pub struct Gate {
    places: Mutex<Places>,
    queue_max: usize,
    /// What other processes see of it.
    shared: Option<Slots>,
    /// Places that are held by connections which nobody uses.
    pub idle: AtomicUsize,
}

#[derive(Debug)]
struct Places {
    /// Which are taken by this process.
    taken: Vec<bool>,
    /// Those who wait for one.
    waiting: usize,
}

impl Gate {
    /// So many places, and so many may wait for one. `shared`: with other processes.
    ///
    /// # Errors
    /// When the process is out of descriptors.
    pub fn new(places: usize, queue_max: usize, shared: bool) -> std::io::Result<Gate> {
        let shared = shared.then(Slots::new).transpose()?;
        Ok(Gate {
            places: Mutex::new(Places { taken: vec![false; places], waiting: 0 }),
            queue_max,
            shared,
            idle: AtomicUsize::new(0),
        })
    }

    fn places(&self) -> std::sync::MutexGuard<'_, Places> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A place, if one is free.
    pub fn enter(self: &Arc<Gate>) -> Option<Pass> {
        let places = self.places().taken.len();
        (0..places).find_map(|number| self.enter_at(number))
    }

    /// This place, if it is free.
    pub fn enter_at(self: &Arc<Gate>, number: usize) -> Option<Pass> {
        let mut places = self.places();
        let is_free = !places.taken[number] && self.shared.as_ref().is_none_or(|shared| shared.take(number as u32));
        is_free.then(|| {
            places.taken[number] = true;
            Pass { gate: Arc::clone(self), number }
        })
    }

    /// Places that are free as far as this process can see.
    pub fn free(&self) -> usize {
        self.places().taken.iter().filter(|taken| !**taken).count()
    }

    /// A place in the queue, if it is not full.
    pub fn queue(self: &Arc<Gate>) -> Option<Waits> {
        let mut places = self.places();
        (places.waiting < self.queue_max).then(|| {
            places.waiting += 1;
            Waits(Arc::clone(self))
        })
    }
}

/// A place that is taken until this is dropped.
#[derive(Debug)]
pub struct Pass {
    gate: Arc<Gate>,
    number: usize,
}

impl Pass {
    /// Which place it is.
    pub fn number(&self) -> usize {
        self.number
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        let mut places = self.gate.places();
        places.taken[self.number] = false;
        if let Some(shared) = &self.gate.shared {
            shared.give_back(self.number as u32);
        }
    }
}

/// Somebody who waits, until this is dropped.
#[derive(Debug)]
pub struct Waits(Arc<Gate>);

impl Waits {
    /// What is waited for.
    pub fn gate(&self) -> &Arc<Gate> {
        &self.0
    }
}

impl Drop for Waits {
    fn drop(&mut self) {
        self.0.places().waiting -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_as_there_are_places() {
        for shared in [false, true] {
            let gate = Arc::new(Gate::new(2, 1, shared).expect("made"));
            let first = gate.enter().expect("free");
            let second = gate.enter().expect("free");
            assert!(gate.enter().is_none());
            let waits = gate.queue().expect("room");
            assert!(gate.queue().is_none());
            drop(first);
            let third = gate.enter().expect("free again");
            assert!(gate.enter().is_none());
            drop((second, third, waits));
            assert!(gate.queue().is_some() && gate.enter().is_some());
        }
    }
}
