//! The URI cache: which site and which clean path a target stands for (Hu, Nanda and Yang, section 5.4).
//!
//! The paper's *TLB of a server*: a target that has been seen is not taken apart, decoded, cleaned and matched to a site
//! again. As there, what the path means is another cache's business, so two spellings of one name share all the rest, and
//! nothing here ever grows old: a target stands for the same path as long as the configuration holds.

use core::hash::{Hash, Hasher};

use alloc::boxed::Box;
use alloc::sync::Arc;

use hashbrown::Equivalent;

use super::policy::{Store, StoreCounts};

/// The cache.
pub struct UriCache {
    store: Store<Uri, Translated>,
}

/// What a target stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Translated {
    /// The site's number.
    pub site: u16,
    /// The clean path; it may be served as far as that can be told from the name.
    pub path: Arc<[u8]>,
}

/// The key: a host and a path as they were sent.
#[derive(PartialEq, Eq)]
struct Uri {
    host: Box<[u8]>,
    path: Box<[u8]>,
}

/// The same, borrowed, for lookups.
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

/// Bytes that an entry may weigh on average, as for the path cache.
const MEAN_BYTES: u64 = 512;

/// What an entry costs beside its texts.
const OVERHEAD: u64 = 120;

impl UriCache {
    /// An empty cache of so many targets; 0 switches it off.
    pub fn new(entries_max: usize) -> UriCache {
        UriCache { store: Store::new(entries_max, (entries_max as u64).saturating_mul(MEAN_BYTES)) }
    }

    /// What this path, at this host, stands for, if that is known.
    pub fn find(&mut self, host: &[u8], path: &[u8]) -> Option<&Translated> {
        if !self.store.is_on() {
            return None;
        }
        self.store.get(&UriRef(host, path)).map(|translated| &*translated)
    }

    /// Keeps what was worked out; asks for it only if it is kept.
    pub fn learn(&mut self, host: &[u8], path: &[u8], translated: impl FnOnce() -> Translated) {
        if !self.store.is_on() {
            return;
        }
        let translated = translated();
        let weight = OVERHEAD + (host.len() + path.len() + translated.path.len()) as u64;
        self.store.insert(Uri { host: host.into(), path: path.into() }, translated, weight);
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        self.store.clear();
    }

    /// Targets held.
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
