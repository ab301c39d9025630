//! Ready header blocks, one for each representation and kind of reply: Flash's response header cache.
//!
//! No invalidation of its own: the key holds the file's state, so the head of an older state is simply never asked for
//! again and falls out in time.

use alloc::sync::Arc;

use amped_http::h1::response::Head;
use amped_http::negotiate::Coding;

use super::backend::CacheBackend;
use super::policy::{Hint, Store, StoreCounts};
use crate::cors::CorsOrigin;
use crate::file::FileVersion;
use crate::vary::Vary;

/// What a head is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum HeadKind {
    /// A 200 with the whole representation.
    Whole = 0,
    /// A 304.
    NotModified = 1,
}

/// All that a head depends on.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct HeadKey {
    /// The site, for its rules.
    pub site: u16,
    /// The file's name, for its media type and the rules that match it.
    pub name: Arc<[u8]>,
    /// The file's state.
    pub version: FileVersion,
    /// The coding of this representation.
    pub coding: Coding,
    /// On what it depends that this one is sent.
    pub vary: Vary,
    /// Whose page may read it.
    pub cors_origin: CorsOrigin,
    /// Whether it says which of several variants this is.
    pub is_chosen: bool,
    /// What it is for.
    pub kind: HeadKind,
}

/// The cache.
pub struct HeadCache {
    store: Store<HeadKey, Arc<Head>>,
}

/// What an entry costs beside its bytes: key, name, slot and index.
const OVERHEAD: u64 = 200;

impl HeadCache {
    /// An empty cache of so many bytes; 0 switches it off.
    pub fn new(bytes_max: u64) -> HeadCache {
        HeadCache { store: Store::new(usize::MAX, bytes_max) }
    }

    /// The head under `key`, or the one that `make` writes, which is then kept.
    pub fn get_or_make(&mut self, hint: &Hint, key: HeadKey, make: impl FnOnce() -> Head) -> Arc<Head> {
        if let Some(head) = self.store.get_at(hint, &key) {
            return Arc::clone(head);
        }
        let head = Arc::new(make());
        let weight = head.len() as u64 + key.name.len() as u64 + OVERHEAD;
        self.store.insert(key, Arc::clone(&head), weight);
        head
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        self.store.clear();
    }

    /// Bytes held.
    pub fn weight(&self) -> u64 {
        self.store.weight()
    }

    /// What has happened so far.
    pub fn counts(&self) -> StoreCounts {
        self.store.counts()
    }
}

impl CacheBackend<HeadCache> {
    /// The head under `key`, or the one that `make` writes, which is then kept.
    pub fn get_or_make(&mut self, hint: &Hint, key: HeadKey, make: impl FnOnce() -> Head) -> Arc<Head> {
        self.at(key.version.inode, |heads| heads.get_or_make(hint, key, make))
    }
}
