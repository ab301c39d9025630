//! What names mean: Flash's pathname translation cache, negative answers included.
//!
//! A name is a site's number and a clean path. Its meaning holds no descriptor and no content, only which file in which
//! state, so that this cache and that of contents can be sized, and switched off, each by itself.

use core::hash::{Hash, Hasher};
use core::time::Duration;

use alloc::sync::Arc;
use alloc::vec::Vec;

use amped_units::Time;
use hashbrown::Equivalent;

use super::policy::{Store, StoreCounts};
use crate::file::FileVersion;
use crate::resource::Resource;
use crate::variants::Variants;

/// What a name means.
#[derive(Clone, Debug)]
pub enum LookupResult {
    /// A file, perhaps in several codings.
    File(Arc<Resource>),
    /// No file of this name, but a document in variants.
    Variants(Arc<Variants>),
    /// A directory that was asked for without its final slash.
    NeedsSlash,
    /// A directory with none of the index files, and its state, by which its listing is known; `None`: nobody looked.
    Directory(Option<FileVersion>),
    /// Nothing.
    Absent,
    /// Something that must not be read, or lies outside the root.
    Forbidden,
}

impl LookupResult {
    /// The files that it stands for.
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

/// A cached meaning and how far it can be trusted.
#[derive(Clone, Debug)]
pub struct CachedEntry {
    /// The meaning.
    pub meaning: LookupResult,
    /// How long ago the file system was last asked.
    pub age: Duration,
}

/// The cache.
pub struct PathCache {
    store: Store<Name, Entry>,
    /// How often a name has been forgotten. Names share these counts, by their hash: there is no end to names, and whoever
    /// shares one is at worst asked about once more.
    editions: [Edition; 64],
}

/// How often names have been forgotten, and when last.
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

struct Entry {
    meaning: LookupResult,
    checked: Time,
}

/// The key: a site and a clean path.
#[derive(PartialEq, Eq)]
struct Name {
    site: u16,
    path: Arc<[u8]>,
}

/// The same, borrowed, for lookups.
struct NameRef<'a>(u16, &'a [u8]);

impl Equivalent<Name> for NameRef<'_> {
    fn equivalent(&self, name: &Name) -> bool {
        (self.0, self.1) == (name.site, &*name.path)
    }
}

impl Hash for NameRef<'_> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u16(self.0);
        state.write(self.1);
    }
}

impl Hash for Name {
    fn hash<H: Hasher>(&self, state: &mut H) {
        NameRef(self.site, &self.path).hash(state);
    }
}

/// Bytes that an entry may weigh on average. Names that people give are far shorter; without this bound, someone who asks
/// for names of 8 KiB that do not exist would fill 64 MiB with what is meant to be 8192 short ones.
const MEAN_BYTES: u64 = 512;

/// What an entry costs beside its name: slot, index, meaning.
const OVERHEAD: u64 = 200;

impl PathCache {
    /// An empty cache of so many names; 0 switches it off.
    pub fn new(entries_max: usize) -> PathCache {
        let store = Store::new(entries_max, (entries_max as u64).saturating_mul(MEAN_BYTES));
        PathCache { store, editions: [Edition { number: 0, since: Time::START }; 64] }
    }

    /// What `path` means, as far as is known.
    pub fn find(&mut self, now: Time, site: u16, path: &[u8]) -> Option<CachedEntry> {
        let entry = self.store.get(&NameRef(site, path))?;
        Some(CachedEntry { meaning: entry.meaning.clone(), age: now.since(entry.checked) })
    }

    /// What `path` means, however old that is. Does not count as a use.
    pub fn meaning(&mut self, site: u16, path: &[u8]) -> Option<LookupResult> {
        self.store.peek(&NameRef(site, path)).map(|entry| entry.meaning.clone())
    }

    /// Which edition of a name a question is about: it changes each time that the name is forgotten.
    pub fn edition(&self, site: u16, path: &[u8]) -> u32 {
        self.editions[self.shared_count(site, path)].number
    }

    /// When a name was forgotten last, or one that it shares its edition with.
    pub fn forgotten_at(&self, site: u16, path: &[u8]) -> Time {
        self.editions[self.shared_count(site, path)].since
    }

    fn shared_count(&self, site: u16, path: &[u8]) -> usize {
        let hash = self.store.hash(&NameRef(site, path));
        // The upper half: the lower bits are those by which the store finds its entries.
        (hash >> 32) as usize % self.editions.len()
    }

    /// Forgets what a name means. An answer to a question that was asked before is not kept. Returns what it meant.
    pub fn forget(&mut self, now: Time, site: u16, path: &[u8]) -> Option<LookupResult> {
        let count = self.shared_count(site, path);
        self.editions[count].end(now);
        self.store.remove(&NameRef(site, path)).map(|entry| entry.meaning)
    }

    /// Forgets all names of which `gone` says so, as [`forget`](PathCache::forget) does one. What it says is not asked of
    /// names that are being looked up now: none of these answers is kept.
    pub fn forget_if(&mut self, now: Time, gone: impl Fn(u16, &[u8]) -> bool) -> Vec<LookupResult> {
        self.editions.iter_mut().for_each(|edition| edition.end(now));
        let entries = self.store.remove_where(|name| gone(name.site, &name.path));
        entries.into_iter().map(|entry| entry.meaning).collect()
    }

    /// Keeps the file system's answer to a question of the moment `asked`. A file that has not changed keeps its
    /// [`Resource`], and with it the hints to its heads and contents. Returns the meaning to be used, and what the name meant
    /// before, if it is no longer the same. If the name has been forgotten since it was of this `edition`,
    /// the answer is for those who asked it, and not kept.
    pub fn learn(
        &mut self,
        (asked, edition): (Time, u32),
        site: u16,
        path: &Arc<[u8]>,
        meaning: LookupResult,
    ) -> (LookupResult, Option<LookupResult>) {
        if edition != self.edition(site, path) {
            return (meaning, None);
        }
        if let Some(entry) = self.store.peek(&NameRef(site, path)) {
            let says_more = match (&entry.meaning, &meaning) {
                (LookupResult::File(old), LookupResult::File(new)) => {
                    new.says_no_less_than(old) && !old.says_no_less_than(new)
                }
                _ => false,
            };
            let is_same = match (&entry.meaning, &meaning) {
                // What a file unpacks to stays known as long as it is in the same state.
                (LookupResult::File(old), LookupResult::File(new)) => old.is_same_as(new) || old.says_no_less_than(new),
                // So choices that were made among them stay good.
                (LookupResult::Variants(old), LookupResult::Variants(new)) => old.is_same_as(new),
                _ => false,
            };
            if entry.checked > asked && !says_more {
                // A later question was answered earlier. This answer is returned to its asker, but not kept: with the other
                // meaning, whose contents were not brought, the asker would ask again and again.
                return (if is_same { entry.meaning.clone() } else { meaning }, None);
            }
            entry.checked = entry.checked.max(asked);
            if is_same {
                return (entry.meaning.clone(), None);
            }
            let replaced = core::mem::replace(&mut entry.meaning, meaning);
            return (entry.meaning.clone(), Some(replaced));
        }
        let name = Name { site, path: Arc::clone(path) };
        let weight = OVERHEAD + path.len() as u64;
        self.store.insert(name, Entry { meaning: meaning.clone(), checked: asked }, weight);
        (meaning, None)
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        self.store.clear();
    }

    /// Names held.
    pub fn len(&self) -> usize {
        self.store.len()
    }

    /// Whether none are.
    pub fn is_empty(&self) -> bool {
        self.store.is_empty()
    }

    /// What has happened so far.
    pub fn counts(&self) -> StoreCounts {
        self.store.counts()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::file::NotUnpacked;
    use crate::site::Site;
    use amped_http::negotiate::Coding;

    /// A compressed file in this state alone, and how many bytes it unpacks to, or why it does not.
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
        // What is known of it, what is found then, asked later or earlier; and what is used and kept.
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
            // An earlier question: whoever asked it gets what was found, whose content was brought with it.
            assert_eq!(learn(known, &changed, 4), (shown(&changed), shown(known)));
            check(known, &LookupResult::Absent, 6, &LookupResult::Absent);
        }
        // Of a file that keeps changing the state says nothing.
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
        assert!(cache.len() * 8000 <= 100 * 512, "{} of 8000 bytes", cache.len());
        for n in 0..1000 {
            let path = alloc::format!("/{n}").into_bytes().into();
            cache.learn((Time::START, 0), 0, &path, LookupResult::Absent);
        }
        assert_eq!(cache.len(), 100);
    }
}
