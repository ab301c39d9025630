//! The URI cache: the site and clean path of a target (Hu, Nanda and Yang, section 5.4).
//!
//! The paper's *TLB of a server*: a target that was requested before need not be split, decoded, cleaned and matched to
//! a site again. As in the paper, the resolution of the path is another cache's task, so two spellings of one name
//! share it, and entries here never expire: a target has the same path as long as the configuration is unchanged.

use alloc::boxed::Box;
use alloc::sync::Arc;

use super::policy::{KeyRef, Store};

/// The URI cache. The key is a host and a path as sent.
pub type UriCache = Store<(Box<[u8]>, Box<[u8]>), Translated>;

/// The resolved form of a target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Translated {
    /// The site's number.
    pub site: u16,
    /// The clean path; as far as its name shows, it may be served.
    pub path: Arc<[u8]>,
}

/// A host, borrowed, for lookups.
#[derive(Hash)]
struct Host<'a>(&'a [u8]);

impl PartialEq<Box<[u8]>> for Host<'_> {
    fn eq(&self, host: &Box<[u8]>) -> bool {
        *self.0 == **host
    }
}

/// Maximum average weight of an entry in bytes, as in the path cache.
const MEAN_BYTES: u64 = 512;

/// Bytes of an entry in addition to its texts.
const OVERHEAD: u64 = 120;

impl UriCache {
    /// Creates an empty cache of at most this many targets; 0 disables it.
    pub fn of(entries_max: usize) -> UriCache {
        Store::new(entries_max, (entries_max as u64).saturating_mul(MEAN_BYTES))
    }

    /// Looks up this path at this host.
    pub fn translated(&mut self, host: &[u8], path: &[u8]) -> Option<&Translated> {
        if !self.is_on() {
            return None;
        }
        self.get(&KeyRef(Host(host), path)).map(|translated| &*translated)
    }

    /// Inserts an entry; calls `translated` only if the cache is enabled.
    pub fn learn(&mut self, host: &[u8], path: &[u8], translated: impl FnOnce() -> Translated) {
        if !self.is_on() {
            return;
        }
        let translated = translated();
        let weight = OVERHEAD + (host.len() + path.len() + translated.path.len()) as u64;
        self.insert((host.into(), path.into()), translated, weight);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::policy::StoreCounts;

    #[test]
    fn host_and_path_form_distinct_keys() {
        let mut cache = UriCache::of(10);
        let translated = |site| Translated { site, path: b"/x"[..].into() };
        cache.learn(b"a", b"b/x", || translated(1));
        cache.learn(b"ab", b"/x", || translated(2));
        assert_eq!(cache.translated(b"a", b"b/x"), Some(&translated(1)));
        assert_eq!(cache.translated(b"ab", b"/x"), Some(&translated(2)));
        assert_eq!(cache.translated(b"abb", b"/x"), None);
        let mut off = UriCache::of(0);
        off.learn(b"a", b"/x", || translated(1));
        assert_eq!(off.translated(b"a", b"/x"), None);
        assert_eq!(off.counts(), StoreCounts::default());
    }
}
