//! Contents of files: small ones in memory, descriptors of large
//! ones. Also generated pages, in memory ([`super::page`]), and files compressed on the fly.
//!
//! The key is the state of the file, so an entry can never be served for another state: a file that was edited in place
//! has a new state and is read again. There are two budgets, because memory and descriptors run out separately, and a third
//! for compressed files, so that neither these nor the files themselves displace the others.

use alloc::sync::Arc;
use core::hash::{Hash, Hasher};
use core::time::Duration;

use amped_http::negotiate::Coding;
use amped_units::Time;
use hashbrown::Equivalent;

use super::page::{Page, PageName};
use super::policy::{Hint, Store};
use crate::compress::{Compressed, Encoded};
use crate::file::{Content, FileVersion, Stored};

/// The content cache.
pub struct ContentCache<F> {
    pub(super) memory: Store<Name, Kept<F>>,
    pub(super) files: Store<Name, Kept<F>>,
    pub(super) encodings: Store<(FileVersion, Coding), Encoding<F>>,
}

/// The key.
#[derive(PartialEq, Eq)]
pub(super) enum Name {
    /// A file in this state.
    File(FileVersion),
    /// A generated page.
    Page(PageName),
}

impl Hash for Name {
    fn hash<H: Hasher>(&self, state: &mut H) {
        match self {
            Name::File(version) => version.hash(state),
            Name::Page(name) => name.hash(state),
        }
    }
}

/// The name of a page, borrowed, for lookups.
struct PageRef<'a>(&'a PageName);

impl Equivalent<Name> for PageRef<'_> {
    fn equivalent(&self, name: &Name) -> bool {
        matches!(name, Name::Page(name) if name == self.0)
    }
}

impl Hash for PageRef<'_> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.hash(state);
    }
}

/// A cached value.
pub(super) enum Kept<F> {
    File(Arc<Content<F>>),
    Page(Page),
}

/// A file in a coding in which it is compressed on the fly.
pub enum Encoding<F> {
    /// It is being compressed, since then.
    Pending(Time),
    /// It does not become much smaller.
    NotWorthIt,
    /// It is cached.
    Ready(Arc<Encoded<F>>),
}

impl<F> Clone for Encoding<F> {
    fn clone(&self) -> Encoding<F> {
        match self {
            Encoding::Pending(since) => Encoding::Pending(*since),
            Encoding::NotWorthIt => Encoding::NotWorthIt,
            Encoding::Ready(encoded) => Encoding::Ready(Arc::clone(encoded)),
        }
    }
}

/// A file that has been pending for so long is compressed again: the result was lost with the worker that it was sent to.
const PENDING_MAX: Duration = Duration::from_secs(60);

/// Bytes of an entry in addition to its content: key, slot, index and reference counts.
const OVERHEAD: u64 = 160;

impl<F> ContentCache<F> {
    /// Creates an empty cache of at most this many bytes, descriptors, and bytes of compressed files; 0 disables each.
    pub fn new(bytes_max: u64, files_max: usize, compressed_max: u64) -> ContentCache<F> {
        ContentCache {
            memory: Store::new(usize::MAX, bytes_max),
            files: Store::new(files_max, u64::MAX),
            encodings: Store::new(usize::MAX, compressed_max),
        }
    }

    /// Looks up the content of a file in this state. `in_memory`: whether files of this size are normally held in
    /// memory; the disk side may have returned the other form.
    pub fn find(&mut self, hint: &Hint, version: &FileVersion, in_memory: bool) -> Option<Arc<Content<F>>> {
        let (usual, other) = match in_memory {
            true => (&mut self.memory, &mut self.files),
            false => (&mut self.files, &mut self.memory),
        };
        let name = Name::File(*version);
        if let Some(Kept::File(content)) = usual.get_at(hint, &name) {
            return Some(Arc::clone(content));
        }
        // Count one miss only.
        other.peek(&name)?;
        match other.get_at(hint, &name) {
            Some(Kept::File(content)) => Some(Arc::clone(content)),
            Some(Kept::Page(_)) | None => None,
        }
    }

    /// Looks up the page of this name. The caller counts hits and misses.
    pub fn page(&mut self, name: &PageName) -> Option<Page> {
        match self.memory.get_uncounted(&PageRef(name)) {
            Some(Kept::Page(page)) => Some(page.clone()),
            Some(Kept::File(_)) | None => None,
        }
    }

    /// Caches a generated page.
    pub fn keep_page(&mut self, name: PageName, page: Page) {
        let weight = page.weight(&name) + OVERHEAD;
        self.memory.insert(Name::Page(name), Kept::Page(page), weight);
    }

    /// Caches content that was just opened or read.
    pub fn learn(&mut self, content: &Arc<Content<F>>) {
        let (name, kept) = (Name::File(content.version), Kept::File(Arc::clone(content)));
        match &content.store {
            Stored::Memory(bytes) => self.memory.insert(name, kept, bytes.len() as u64 + OVERHEAD),
            Stored::File(_) => self.files.insert(name, kept, 1),
        }
    }

    /// Whether a file in this state is cached; does not count as a use.
    pub fn holds(&mut self, version: &FileVersion) -> bool {
        let name = Name::File(*version);
        self.memory.peek(&name).is_some() || self.files.peek(&name).is_some()
    }

    /// Removes a file state; responses in progress keep their reference.
    pub fn invalidate(&mut self, version: &FileVersion) {
        let name = Name::File(*version);
        self.memory.remove(&name);
        self.files.remove(&name);
        for coding in Coding::SIBLINGS {
            self.encodings.remove(&(*version, coding));
        }
    }

    /// Looks up a file in this state and coding; `None` if it is unknown, or was pending for too long.
    pub fn encoding(&mut self, now: Time, version: &FileVersion, coding: Coding) -> Option<Encoding<F>> {
        let known = self.encodings.get(&(*version, coding))?;
        let is_lost = matches!(known, Encoding::Pending(since) if now.since(*since) >= PENDING_MAX);
        (!is_lost).then(|| known.clone())
    }

    /// Marks it as pending. Returns `false` if it is pending or known already, or may not fit once it is compressed.
    pub fn begin_encoding(&mut self, now: Time, version: &FileVersion, coding: Coding) -> bool {
        let key = (*version, coding);
        let is_known = match self.encodings.peek(&key) {
            Some(Encoding::Pending(since)) => now.since(*since) < PENDING_MAX,
            Some(Encoding::NotWorthIt | Encoding::Ready(_)) => true,
            None => false,
        };
        let may_begin = !is_known && self.encodings.fits(version.size);
        if may_begin {
            self.encodings.insert(key, Encoding::Pending(now), OVERHEAD);
        }
        may_begin
    }

    /// Caches the result of compression.
    pub fn learn_encoding(&mut self, version: &FileVersion, coding: Coding, result: Compressed<F>) {
        let key = (*version, coding);
        match result {
            Compressed::Encoded(encoded) => {
                let weight = encoded.content.version.size + OVERHEAD;
                self.encodings.insert(key, Encoding::Ready(Arc::new(encoded)), weight);
            }
            Compressed::NotWorthIt => self.encodings.insert(key, Encoding::NotWorthIt, OVERHEAD),
            Compressed::Failed => _ = self.encodings.remove(&key),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: u64 = 5000;

    fn version(inode: u64) -> FileVersion {
        FileVersion { inode, size: SIZE, ..FileVersion::default() }
    }

    fn encoded(version: &FileVersion) -> Compressed<()> {
        Compressed::Encoded(Encoded::new(version, Coding::Gzip, (*b"compressed").into()))
    }

    #[test]
    fn file_is_compressed_once_per_state_and_coding() {
        let mut cache = ContentCache::<()>::new(0, 0, 100_000);
        let (at, one) = (Time::from_millis, version(1));
        let mut begin = |ms, version: &FileVersion, coding| cache.begin_encoding(at(ms), version, coding);
        assert!(begin(0, &one, Coding::Gzip) && !begin(1, &one, Coding::Gzip));
        assert!(begin(1, &one, Coding::Zstd) && begin(1, &version(2), Coding::Gzip));
        // The result was lost.
        assert!(!begin(59_999, &one, Coding::Gzip) && begin(60_000, &one, Coding::Gzip));
        let is_ready = |cache: &mut ContentCache<()>, version: &FileVersion| {
            matches!(cache.encoding(at(0), version, Coding::Gzip), Some(Encoding::Ready(_)))
        };
        cache.learn_encoding(&one, Coding::Gzip, encoded(&one));
        assert!(is_ready(&mut cache, &one) && !cache.begin_encoding(at(999_999), &one, Coding::Gzip));
        assert!(!is_ready(&mut cache, &FileVersion { ctime_ns: 1, ..one }));
        cache.learn_encoding(&version(2), Coding::Gzip, Compressed::NotWorthIt);
        assert!(!cache.begin_encoding(at(999_999), &version(2), Coding::Gzip));
        cache.learn_encoding(&one, Coding::Zstd, Compressed::Failed);
        assert!(cache.begin_encoding(at(2), &one, Coding::Zstd));
        // With its file.
        cache.invalidate(&one);
        assert!(!is_ready(&mut cache, &one) && cache.begin_encoding(at(2), &one, Coding::Gzip));
    }

    #[test]
    fn compressed_files_stay_within_their_budget() {
        let mut cache = ContentCache::<()>::new(0, 0, SIZE);
        for inode in 0..1000 {
            assert!(cache.begin_encoding(Time::START, &version(inode), Coding::Gzip));
            cache.learn_encoding(&version(inode), Coding::Gzip, encoded(&version(inode)));
            assert!(cache.encodings.weight() <= SIZE);
        }
        // If it did not fit, each request would have it compressed again.
        let larger = FileVersion { size: SIZE + 1, ..version(0) };
        assert!(!cache.begin_encoding(Time::START, &larger, Coding::Gzip));
        assert!(!ContentCache::<()>::new(1 << 20, 10, 0).begin_encoding(Time::START, &version(0), Coding::Gzip));
    }
}
