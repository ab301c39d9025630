//! The URI cache: the site and clean path of a target (Hu, Nanda and Yang, section 5.4).
//!
//! The paper's *TLB of a server*: a target that has been seen need not be split, decoded, cleaned and matched to a site
//! again. As in the paper, the resolution of the path is another cache's task, so two spellings of one name share it,
//! and entries here never expire: a target stands for the same path as long as the configuration is unchanged.

use core::hash::{Hash, Hasher};

use alloc::boxed::Box;
use alloc::sync::Arc;

use hashbrown::Equivalent;

use super::policy::{Store, StoreCounts};

/// The URI cache.
pub struct UriCache {
    store: Store<Uri, Translated>,
}

/// The resolved form of a target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Translated {
    /// The site's number.
    pub site: u16,
    /// The clean path; as far as its name shows, it may be served.
    pub path: Arc<[u8]>,
}

/// The key: a host and a path as sent.
#[derive(PartialEq, Eq)]
struct Uri {
    host: Box<[u8]>,
    path: Box<[u8]>,
}

/// The key, borrowed, for lookups.
struct UriRef<'a>(&'a [u8], &'a [u8]);

impl Equivalent<Uri> for UriRef<'_> {
    fn equivalent(&self, uri: &Uri) -> bool {
        (self.0, self.1) == (&*uri.host, &*uri.path)
    }
}

impl Hash for UriRef<'_> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_usize(self.0.len());
        state.write(self.0);
        state.write(self.1);
    }
}

impl Hash for Uri {
    fn hash<H: Hasher>(&self, state: &mut H) {
        UriRef(&self.host, &self.path).hash(state);
    }
}

/// Maximum average weight of an entry in bytes, as in the path cache.
const MEAN_BYTES: u64 = 512;

/// Bytes of an entry in addition to its texts.
const OVERHEAD: u64 = 120;

impl UriCache {
    /// Creates an empty cache of at most this many targets; 0 disables it.
    pub fn new(entries_max: usize) -> UriCache {
        UriCache { store: Store::new(entries_max, (entries_max as u64).saturating_mul(MEAN_BYTES)) }
    }

    /// Looks up this path at this host.
    pub fn find(&mut self, host: &[u8], path: &[u8]) -> Option<&Translated> {
        if !self.store.is_on() {
            return None;
        }
        self.store.get(&UriRef(host, path)).map(|translated| &*translated)
    }

    /// Inserts an entry; calls `translated` only if the cache is enabled.
    pub fn learn(&mut self, host: &[u8], path: &[u8], translated: impl FnOnce() -> Translated) {
        if !self.store.is_on() {
            return;
        }
        let translated = translated();
        let weight = OVERHEAD + (host.len() + path.len() + translated.path.len()) as u64;
        self.store.insert(Uri { host: host.into(), path: path.into() }, translated, weight);
    }

    /// Removes all entries.
    pub fn clear(&mut self) {
        self.store.clear();
    }

    /// The number of targets.
    pub fn len(&self) -> usize {
        self.store.len()
    }

    /// Whether the cache is empty.
    pub fn is_empty(&self) -> bool {
        self.store.is_empty()
    }

    /// Counters since the start.
    pub fn counts(&self) -> StoreCounts {
        self.store.counts()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_and_path_form_distinct_keys() {
        let mut cache = UriCache::new(10);
        let translated = |site| Translated { site, path: b"/x"[..].into() };
        cache.learn(b"a", b"b/x", || translated(1));
        cache.learn(b"ab", b"/x", || translated(2));
        assert_eq!(cache.find(b"a", b"b/x"), Some(&translated(1)));
        assert_eq!(cache.find(b"ab", b"/x"), Some(&translated(2)));
        assert_eq!(cache.find(b"abb", b"/x"), None);
        let mut off = UriCache::new(0);
        off.learn(b"a", b"/x", || translated(1));
        assert_eq!(off.find(b"a", b"/x"), None);
        assert_eq!(off.counts(), StoreCounts::default());
    }
}
