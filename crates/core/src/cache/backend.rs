//! Placement of a cache: private to one loop, or shared by threads.
//!
//! A private cache is a plain value. A shared one is split into shards, each with its own lock; the key selects the
//! shard, so two threads contend only for the same shard. The driver provides the locks, because the core has no
//! threads; no lock is held across a call that may block.

use core::hash::{BuildHasher, Hash};

use alloc::sync::Arc;

use foldhash::fast::RandomState;

/// The shards of a cache, each with its lock.
pub trait Shards<T>: Send + Sync {
    /// The number of shards, at least one.
    fn count(&self) -> usize;

    /// Calls `f` once with shard `number < count()`, locked for the duration.
    fn with(&self, number: usize, f: &mut dyn FnMut(&mut T));
}

/// A cache shared by threads.
pub struct Shared<T> {
    shards: Arc<dyn Shards<T>>,
    /// The same for all users of the cache.
    hasher: RandomState,
}

impl<T> Shared<T> {
    /// Creates a cache of these shards.
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

/// A private or a shared cache.
pub enum CacheBackend<T> {
    /// Private to one loop.
    Own(T),
    /// Shared by threads.
    Shared(Shared<T>),
}

impl<T> CacheBackend<T> {
    /// Calls `f` with the part of the cache that holds `key`.
    pub fn at<R>(&mut self, key: impl Hash, f: impl FnOnce(&mut T) -> R) -> R {
        match self {
            CacheBackend::Own(cache) => f(cache),
            CacheBackend::Shared(shared) => {
                let number = shared.hasher.hash_one(key) % shared.shards.count() as u64;
                shared.with(number as usize, f)
            }
        }
    }

    /// The number of parts among which its budgets are divided.
    pub fn parts(&self) -> usize {
        match self {
            CacheBackend::Own(_) => 1,
            CacheBackend::Shared(shared) => shared.shards.count(),
        }
    }

    /// Calls `f` with every part, for reading.
    pub fn each(&self, mut f: impl FnMut(&T)) {
        match self {
            CacheBackend::Own(cache) => f(cache),
            CacheBackend::Shared(shared) => (0..shared.shards.count()).for_each(|n| shared.with(n, |cache| f(cache))),
        }
    }

    /// Calls `f` with every part, for modification.
    pub fn change(&mut self, mut f: impl FnMut(&mut T)) {
        match self {
            CacheBackend::Own(cache) => f(cache),
            CacheBackend::Shared(shared) => (0..shared.shards.count()).for_each(|n| shared.with(n, &mut f)),
        }
    }
}
