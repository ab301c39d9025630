//! Resolutions of names: Flash's pathname translation cache, including negative entries.
//!
//! The key is a site's number and a clean path. A resolution holds no descriptor and no content, only the file and its
//! state, so that this cache and that of contents can be sized, and disabled, independently.

use core::time::Duration;

use alloc::sync::Arc;
use alloc::vec::Vec;

use amped_units::Time;

use super::policy::{KeyRef, Store};
use crate::file::FileVersion;
use crate::resource::Resource;
use crate::variants::Variants;

/// The resolution of a name.
#[derive(Clone, Debug)]
pub enum LookupResult {
    /// A file, possibly in several codings.
    File(Arc<Resource>),
    /// No file of this name, but a document with variants.
    Variants(Arc<Variants>),
    /// A directory, requested without its final slash.
    NeedsSlash,
    /// A directory without an index file, and its state, which
    /// identifies its listing; `None` if the state was not read.
    Directory(Option<FileVersion>),
    /// The name does not exist.
    Absent,
    /// Permission denied, or outside the root.
    Forbidden,
}

impl LookupResult {
    /// The files of the resolution.
    pub fn resources(&self) -> impl Iterator<Item = &Resource> {
        let (file, variants) = match self {
            LookupResult::File(resource) => (Some(&**resource), &[][..]),
            LookupResult::Variants(variants) => (None, &variants.list[..]),
            LookupResult::NeedsSlash | LookupResult::Directory(_) | LookupResult::Absent | LookupResult::Forbidden => {
                (None, &[][..])
            }
        };
        file.into_iter().chain(variants.iter().map(|variant| &*variant.resource))
    }
}

/// A cached resolution and its age.
#[derive(Clone, Debug)]
pub struct CachedEntry {
    /// The resolution.
    pub meaning: LookupResult,
    /// Time since the last check of the file system.
    pub age: Duration,
}

/// The path cache.
pub struct PathCache {
    /// By site and clean path.
    pub(super) store: Store<(u16, Arc<[u8]>), Entry>,
    /// How often names were invalidated. Names share these counters by their hash, since the number of names is
    /// unbounded; a collision costs at most one extra lookup.
    editions: [Edition; 64],
}

/// How often, and when last, names with this hash were invalidated.
#[derive(Clone, Copy)]
struct Edition {
    number: u32,
    since: Time,
}

impl Edition {
    fn end(&mut self, now: Time) {
        *self = Edition { number: self.number.wrapping_add(1), since: now };
    }
}

pub(super) struct Entry {
    meaning: LookupResult,
    checked: Time,
}

/// Maximum average weight of an entry in bytes. Real names are far shorter; without this limit, a client that requests
/// nonexistent names of 8 KiB could fill 64 MiB with 8192 entries that are meant to be short.
const MEAN_BYTES: u64 = 512;

/// Bytes of an entry in addition to its name: slot, index, resolution.
const OVERHEAD: u64 = 200;

impl PathCache {
    /// Creates an empty cache of at most this many names; 0 disables it.
    pub fn new(entries_max: usize) -> PathCache {
        let store = Store::new(entries_max, (entries_max as u64).saturating_mul(MEAN_BYTES));
        PathCache { store, editions: [Edition { number: 0, since: Time::START }; 64] }
    }

    /// Looks up the resolution of `path`.
    pub fn find(&mut self, now: Time, site: u16, path: &[u8]) -> Option<CachedEntry> {
        let entry = self.store.get(&KeyRef(site, path))?;
        Some(CachedEntry { meaning: entry.meaning.clone(), age: now.since(entry.checked) })
    }

    /// The resolution of `path`, at any age. Does not count as a use.
    pub fn meaning(&mut self, site: u16, path: &[u8]) -> Option<LookupResult> {
        self.store.peek(&KeyRef(site, path)).map(|entry| entry.meaning.clone())
    }

    /// The edition of a name: it changes each time the name is invalidated.
    pub fn edition(&self, site: u16, path: &[u8]) -> u32 {
        self.editions[self.shared_count(site, path)].number
    }

    /// When a name, or one that shares its edition, was last invalidated.
    pub fn forgotten_at(&self, site: u16, path: &[u8]) -> Time {
        self.editions[self.shared_count(site, path)].since
    }

    fn shared_count(&self, site: u16, path: &[u8]) -> usize {
        let hash = self.store.hash(&KeyRef(site, path));
        // The upper half, because the store uses the lower bits to find its entries.
        (hash >> 32) as usize % self.editions.len()
    }

    /// Invalidates a name. Results of earlier lookups are not cached. Returns its resolution.
    pub fn invalidate(&mut self, now: Time, site: u16, path: &[u8]) -> Option<LookupResult> {
        let count = self.shared_count(site, path);
        self.editions[count].end(now);
        self.store.remove(&KeyRef(site, path)).map(|entry| entry.meaning)
    }

    /// Invalidates all names for which `matches` returns true, as [`invalidate`](PathCache::invalidate) does. It cannot
    /// test names whose lookup is in progress: none of these results is cached.
    pub fn invalidate_if(&mut self, now: Time, matches: impl Fn(u16, &[u8]) -> bool) -> Vec<LookupResult> {
        self.editions.iter_mut().for_each(|edition| edition.end(now));
        let entries = self.store.remove_where(|(site, path)| matches(*site, path));
        entries.into_iter().map(|entry| entry.meaning).collect()
    }

    /// Caches the file system's result for a lookup that was requested at `requested_at`. An unchanged
    /// file keeps its [`Resource`], and with it the hints to its heads and contents. Returns the
    /// resolution to use, and the replaced one if it differs. If the name was invalidated after
    /// this `edition`, the result is returned to its requesters and not cached.
    pub fn learn(
        &mut self,
        (requested_at, edition): (Time, u32),
        site: u16,
        path: &Arc<[u8]>,
        meaning: LookupResult,
    ) -> (LookupResult, Option<LookupResult>) {
        if edition != self.edition(site, path) {
            return (meaning, None);
        }
        if let Some(entry) = self.store.peek(&KeyRef(site, path)) {
            let says_more = match (&entry.meaning, &meaning) {
                (LookupResult::File(old), LookupResult::File(new)) => {
                    new.contains_all_of(old) && !old.contains_all_of(new)
                }
                _ => false,
            };
            let is_same = match (&entry.meaning, &meaning) {
                // The decompressed form stays known as long as the state is unchanged.
                (LookupResult::File(old), LookupResult::File(new)) => old.is_same_as(new) || old.contains_all_of(new),
                // Cached choices among the variants stay valid.
                (LookupResult::Variants(old), LookupResult::Variants(new)) => old.is_same_as(new),
                _ => false,
            };
            if entry.checked > requested_at && !says_more {
                // A later lookup has finished first. Return this result to its requester without caching it: the cached
                // resolution has other contents, which were not read, so the requester would repeat its lookup forever.
                return (if is_same { entry.meaning.clone() } else { meaning }, None);
            }
            entry.checked = entry.checked.max(requested_at);
            if is_same {
                return (entry.meaning.clone(), None);
            }
            let replaced = core::mem::replace(&mut entry.meaning, meaning);
            return (entry.meaning.clone(), Some(replaced));
        }
        let weight = OVERHEAD + path.len() as u64;
        self.store.insert((site, Arc::clone(path)), Entry { meaning: meaning.clone(), checked: requested_at }, weight);
        (meaning, None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::file::NotUnpacked;
    use crate::site::Site;
    use amped_http::negotiate::Coding;

    /// A file in this state that exists only in compressed form, with its decompressed size or why it has none.
    fn lone(state: i64, unpacked: Option<Result<u64, NotUnpacked>>, is_changing: bool) -> LookupResult {
        let version = FileVersion { size: 9, mtime_ns: state, is_changing, ..FileVersion::default() };
        let plain = unpacked.and_then(Result::ok).map(|size| (Coding::Identity, version.unpacked(size)));
        let states = core::iter::once((Coding::Gzip, version)).chain(plain);
        let why = unpacked.and_then(Result::err);
        LookupResult::File(Arc::new(Resource::of_lone(&Site::default(), b"/a"[..].into(), states, why)))
    }

    #[test]
    fn decompressed_size_is_kept_until_file_changes() {
        let shown = |meaning: &LookupResult| alloc::format!("{meaning:?}");
        // The cached and the new resolution, requested earlier or later; returns what is used and what is cached.
        let learn = |old: &LookupResult, new: &LookupResult, asked_ms: u64| {
            let mut cache = PathCache::new(10);
            let path = b"/a"[..].into();
            cache.learn((Time::from_millis(5), 0), 0, &path, old.clone());
            let (used, _) = cache.learn((Time::from_millis(asked_ms), 0), 0, &path, new.clone());
            let kept = cache.find(Time::from_millis(9), 0, &path).expect("learnt");
            assert_eq!(kept.age, Duration::from_millis(9 - asked_ms.max(5)));
            (shown(&used), shown(&kept.meaning))
        };
        let check = |old: &LookupResult, new: &LookupResult, asked_ms: u64, expected: &LookupResult| {
            assert_eq!(learn(old, new, asked_ms), (shown(expected), shown(expected)), "{old:?} {new:?} {asked_ms}");
        };
        let (packed, unpacked) = (lone(1, None, false), lone(1, Some(Ok(100)), false));
        let too_large = lone(1, Some(Err(NotUnpacked::TooLarge)), false);
        for known in [&unpacked, &too_large] {
            for asked_ms in [4, 6] {
                check(&packed, known, asked_ms, known);
                check(known, &packed, asked_ms, known);
                check(known, known, asked_ms, known);
            }
            let changed = lone(2, None, false);
            check(known, &changed, 6, &changed);
            // An earlier lookup: its requester gets the new resolution, whose content was read with it.
            assert_eq!(learn(known, &changed, 4), (shown(&changed), shown(known)));
            check(known, &LookupResult::Absent, 6, &LookupResult::Absent);
        }
        // The state of a file that keeps changing proves nothing.
        let changing = lone(1, None, true);
        for known in [lone(1, Some(Ok(100)), true), lone(1, Some(Err(NotUnpacked::Damaged)), true)] {
            check(&known, &changing, 6, &changing);
            check(&changing, &known, 6, &known);
        }
    }

    #[test]
    fn long_names_count_against_budget() {
        let mut cache = PathCache::new(100);
        for n in 0..1000 {
            let path: Arc<[u8]> = alloc::format!("/{n}{}", "x".repeat(8000)).into_bytes().into();
            cache.learn((Time::START, 0), 0, &path, LookupResult::Absent);
        }
        assert!(cache.store.len() * 8000 <= 100 * 512, "{} of 8000 bytes", cache.store.len());
        for n in 0..1000 {
            let path = alloc::format!("/{n}").into_bytes().into();
            cache.learn((Time::START, 0), 0, &path, LookupResult::Absent);
        }
        assert_eq!(cache.store.len(), 100);
    }
}
