//! Where a cache stands: in one loop, or between threads that share it.
//!
//! A loop's own cache is a plain value. A shared one is cut into shards, each behind a lock of its own; which shard an
//! entry is in follows from its key, so two threads meet only when they want neighbours. Locks are the driver's, since the
//! core knows no threads; none is held across a call that may wait.

use core::hash::{BuildHasher, Hash};

use alloc::sync::Arc;

use foldhash::fast::RandomState;

/// The shards of a cache, each behind its lock.
pub trait Shards<T>: Send + Sync {
    /// How many, at least one.
    fn count(&self) -> usize;

    /// Calls `f` once with the shard of this number, `number < count()`, which is nobody else's meanwhile.
    fn with(&self, number: usize, f: &mut dyn FnMut(&mut T));
}

/// A cache shared by threads.
pub struct Shared<T> {
    shards: Arc<dyn Shards<T>>,
    /// The same for all who share it.
    hasher: RandomState,
}

impl<T> Shared<T> {
    /// A cache of these shards.
    pub fn new(shards: Arc<dyn Shards<T>>) -> Shared<T> {
        Shared { shards, hasher: RandomState::default() }
    }

    fn with<R>(&self, number: usize, f: impl FnOnce(&mut T) -> R) -> R {
        let (mut f, mut result) = (Some(f), None);
        self.shards.with(number, &mut |shard| result = f.take().map(|f| f(shard)));
        result.expect("`Shards::with` calls once")
    }
}

impl<T> Clone for Shared<T> {
    fn clone(&self) -> Shared<T> {
        Shared { shards: Arc::clone(&self.shards), hasher: self.hasher.clone() }
    }
}

/// A cache, wherever it stands.
pub enum CacheBackend<T> {
    /// One loop's own.
    Own(T),
    /// Shared.
    Shared(Shared<T>),
}

impl<T> CacheBackend<T> {
    /// Does something with the part of the cache that `key` belongs to.
    pub fn at<R>(&mut self, key: impl Hash, f: impl FnOnce(&mut T) -> R) -> R {
        match self {
            CacheBackend::Own(cache) => f(cache),
            CacheBackend::Shared(shared) => {
                let number = shared.hasher.hash_one(key) % shared.shards.count() as u64;
                shared.with(number as usize, f)
            }
        }
    }

    /// Into how many parts its budgets are divided.
    pub fn parts(&self) -> usize {
        match self {
            CacheBackend::Own(_) => 1,
            CacheBackend::Shared(shared) => shared.shards.count(),
        }
    }

    /// Looks at every part.
    pub fn each(&self, mut f: impl FnMut(&T)) {
        match self {
            CacheBackend::Own(cache) => f(cache),
            CacheBackend::Shared(shared) => (0..shared.shards.count()).for_each(|n| shared.with(n, |cache| f(cache))),
        }
    }

    /// Changes every part.
    pub fn change(&mut self, mut f: impl FnMut(&mut T)) {
        match self {
            CacheBackend::Own(cache) => f(cache),
            CacheBackend::Shared(shared) => (0..shared.shards.count()).for_each(|n| shared.with(n, &mut f)),
        }
    }
}
