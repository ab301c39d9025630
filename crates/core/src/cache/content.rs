//! Contents of files: small ones in memory, descriptors of large
//! ones. Also generated pages, in memory ([`super::page`]).
//!
//! The key is the state of the file, so an entry can never be served for another state: a file that was edited in place
//! has a new state and is read again. There are two budgets, because memory and descriptors run out separately.

use alloc::sync::Arc;
use core::hash::{Hash, Hasher};

use hashbrown::Equivalent;

use super::page::{Page, PageName};
use super::policy::{Hint, Store};
use crate::file::{Content, FileVersion, Stored};

/// The content cache.
pub struct ContentCache<F> {
    pub(super) memory: Store<Name, Kept<F>>,
    pub(super) files: Store<Name, Kept<F>>,
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

/// Bytes of an entry in addition to its content: key, slot, index and reference counts.
const OVERHEAD: u64 = 160;

impl<F> ContentCache<F> {
    /// Creates an empty cache of at most this many bytes and descriptors; 0 disables either.
    pub fn new(bytes_max: u64, files_max: usize) -> ContentCache<F> {
        ContentCache { memory: Store::new(usize::MAX, bytes_max), files: Store::new(files_max, u64::MAX) }
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
    }
}
