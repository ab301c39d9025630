//! Prepared header blocks, one per representation and kind of response: Flash's response header cache.
//!
//! It needs no invalidation: the key contains the state of the file, so the
//! head of an older state is never looked up again and is evicted in time.

use alloc::sync::Arc;

use amped_http::h1::response::Head;
use amped_http::negotiate::Coding;

use super::backend::CacheBackend;
use super::policy::{Hint, Store};
use crate::cors::CorsOrigin;
use crate::file::FileVersion;
use crate::vary::Vary;

/// The kind of response of a head.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum HeadKind {
    /// A 200 with the whole representation.
    Whole = 0,
    /// A 304.
    NotModified = 1,
}

/// Everything on which a head depends.
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
    /// The request fields on which the representation depends.
    pub vary: Vary,
    /// The origin that may read it.
    pub cors_origin: CorsOrigin,
    /// Whether the head identifies the variant.
    pub is_chosen: bool,
    /// The kind of response.
    pub kind: HeadKind,
}

/// The head cache.
pub type HeadCache = Store<HeadKey, Arc<Head>>;

/// Bytes of an entry in addition to its content: key, name, slot and index.
const OVERHEAD: u64 = 200;

impl HeadCache {
    /// Creates an empty cache of at most this many bytes; 0 disables it.
    pub fn of(bytes_max: u64) -> HeadCache {
        Store::new(usize::MAX, bytes_max)
    }

    /// Looks up the head of `key`, or builds it with `make` and inserts it.
    pub fn get_or_make(&mut self, hint: &Hint, key: HeadKey, make: impl FnOnce() -> Head) -> Arc<Head> {
        if let Some(head) = self.get_at(hint, &key) {
            return Arc::clone(head);
        }
        let head = Arc::new(make());
        let weight = head.weight() as u64 + key.name.len() as u64 + OVERHEAD;
        self.insert(key, Arc::clone(&head), weight);
        head
    }
}

impl CacheBackend<HeadCache> {
    /// Looks up the head of `key`, or builds it with `make` and inserts it.
    pub fn get_or_make(&mut self, hint: &Hint, key: HeadKey, make: impl FnOnce() -> Head) -> Arc<Head> {
        self.at(key.version.inode, |heads| heads.get_or_make(hint, key, make))
    }
}
