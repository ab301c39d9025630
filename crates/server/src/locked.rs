//! Caches behind locks, for architectures whose threads share them.

use std::sync::{Arc, Mutex, PoisonError};

use amped_core::cache::backend::Shards;
use amped_core::cache::content::ContentCache;
use amped_core::cache::head::HeadCache;
use amped_core::cache::path::PathCache;
use amped_core::cache::{Budgets, SharedCaches};

use crate::open_file::OpenFile;

/// Shards of a cache. Several times as many as cores, so that threads rarely contend; but no shard is so small that its
/// share of the budget cannot hold the largest entry.
const SHARDS: usize = 16;

/// Minimum names of a shard.
const ENTRIES_MIN: usize = 32;

/// Each shard has its own lock.
struct Locked<T>(Vec<Mutex<T>>);

impl<T: Send> Shards<T> for Locked<T> {
    fn count(&self) -> usize {
        self.0.len()
    }

    fn with(&self, number: usize, f: &mut dyn FnMut(&mut T)) {
        // A thread that panicked ends the process; until then others may use its data.
        f(&mut self.0[number].lock().unwrap_or_else(PoisonError::into_inner));
    }
}

/// Creates empty caches that share these budgets.
pub fn caches(budgets: &Budgets) -> SharedCaches<OpenFile> {
    let fits = |whole: u64, least: u64| usize::try_from(whole / least).unwrap_or(SHARDS);
    let count = SHARDS
        .min(budgets.path_entries / ENTRIES_MIN)
        .min(budgets.descriptors / 2)
        // A file uses at most an eighth of a shard; otherwise files requested in turn would evict each other.
        .min(fits(budgets.content_bytes.0, (budgets.max_content_file_bytes.0 * 8).max(1)))
        .max(1);
    let part = budgets.split(count);
    fn shards<T: Send>(count: usize, make: impl Fn() -> T) -> Arc<Locked<T>> {
        Arc::new(Locked((0..count).map(|_| Mutex::new(make())).collect()))
    }
    SharedCaches::new(
        shards(count, || PathCache::new(part.path_entries)),
        shards(count, || HeadCache::of(part.head_bytes.0)),
        shards(count, || ContentCache::new(part.content_bytes.0, part.descriptors, part.compressed_bytes.0)),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use amped_core::cache::Caches;
    use amped_core::event::{Found, NameWork, Work};
    use amped_core::site::{Site, Sites};
    use amped_units::{Bytes, Time};
    use std::thread;

    #[test]
    fn entry_learned_by_one_thread_is_shared() {
        let budgets = Budgets::default();
        let shared = caches(&budgets);
        let sites = Sites::new(vec![Site::default()]).unwrap();
        thread::scope(|scope| {
            for thread in 0..4 {
                let mut caches = Caches::shared(&shared, budgets.clone(), 0);
                let sites = &sites;
                scope.spawn(move || {
                    for n in 0..1000 {
                        let path: Arc<[u8]> = format!("/{thread}/{n}").into_bytes().into();
                        let work = Work::Name(NameWork { path, ..NameWork::default() });
                        caches.learn(Time::START, &work, Found::Absent, sites);
                    }
                });
            }
        });
        let mut caches = Caches::shared(&shared, budgets, 0);
        assert_eq!(caches.figures().path_entries, 4000);
        for thread in 0..4 {
            for n in 0..1000 {
                assert!(caches.find(Time::START, 0, format!("/{thread}/{n}").as_bytes()).is_some());
            }
        }
        assert!(caches.find(Time::START, 1, b"/0/0").is_none());
    }

    #[test]
    fn shards_together_respect_budgets() {
        for path_entries in [0, 1, 31, 100, 8192] {
            let budgets = Budgets { path_entries, content_bytes: Bytes::mib(1), ..Budgets::default() };
            let mut caches = Caches::shared(&caches(&budgets), budgets.clone(), 0);
            let sites = Sites::new(vec![Site::default()]).unwrap();
            for n in 0..2 * path_entries {
                let path: Arc<[u8]> = format!("/{n}").into_bytes().into();
                let work = Work::Name(NameWork { path, ..NameWork::default() });
                caches.learn(Time::START, &work, Found::Absent, &sites);
            }
            let held = caches.figures().path_entries as usize;
            assert!(held <= path_entries && held >= path_entries / 2, "{held} of {path_entries}");
        }
    }
}
