//! Contents of files: small ones in memory, descriptors of large ones. And pages that are made, in memory ([`super::page`]).
//!
//! The key is the file's state, so an entry can never be served for another one: a file that was edited in place has a
//! new state and is read anew. Two budgets, since memory and descriptors run out separately.

use alloc::sync::Arc;
use core::hash::{Hash, Hasher};

use hashbrown::Equivalent;

use super::page::{Page, PageName};
use super::policy::{Hint, Store, StoreCounts};
use crate::file::{Content, FileVersion, Stored};

/// The cache.
pub struct ContentCache<F> {
    memory: Store<Name, Kept<F>>,
    files: Store<Name, Kept<F>>,
}

/// The key.
#[derive(PartialEq, Eq)]
enum Name {
    /// A file in this state.
    File(FileVersion),
    /// A page that was made.
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

/// What is kept.
enum Kept<F> {
    File(Arc<Content<F>>),
    Page(Page),
}

/// What an entry costs beside its bytes: key, slot, index and reference counts.
const OVERHEAD: u64 = 160;

impl<F> ContentCache<F> {
    /// An empty cache of so many bytes in memory and so many descriptors; 0 switches either off.
    pub fn new(bytes_max: u64, files_max: usize) -> ContentCache<F> {
        ContentCache { memory: Store::new(usize::MAX, bytes_max), files: Store::new(files_max, u64::MAX) }
    }

    /// The content of a file in this state. `in_memory`: whether a file of this size is held in memory as a rule; but the
    /// disk side may have brought a descriptor of it, or the other way round.
    pub fn find(&mut self, hint: &Hint, version: &FileVersion, in_memory: bool) -> Option<Arc<Content<F>>> {
        let (usual, other) = match in_memory {
            true => (&mut self.memory, &mut self.files),
            false => (&mut self.files, &mut self.memory),
        };
        let name = Name::File(*version);
        if let Some(Kept::File(content)) = usual.get_at(hint, &name) {
            return Some(Arc::clone(content));
        }
        // One miss is enough to count.
        other.peek(&name)?;
        match other.get_at(hint, &name) {
            Some(Kept::File(content)) => Some(Arc::clone(content)),
            Some(Kept::Page(_)) | None => None,
        }
    }

    /// The page of this name. Whoever asks counts that himself.
    pub fn page(&mut self, name: &PageName) -> Option<Page> {
        match self.memory.use_quietly(&PageRef(name)) {
            Some(Kept::Page(page)) => Some(page.clone()),
            Some(Kept::File(_)) | None => None,
        }
    }

    /// Keeps a page that was just made.
    pub fn keep_page(&mut self, name: PageName, page: Page) {
        let weight = page.weight(&name) + OVERHEAD;
        self.memory.insert(Name::Page(name), Kept::Page(page), weight);
    }

    /// Keeps content that was just opened or read.
    pub fn learn(&mut self, content: &Arc<Content<F>>) {
        let (name, kept) = (Name::File(content.version), Kept::File(Arc::clone(content)));
        match &content.store {
            Stored::Memory(bytes) => self.memory.insert(name, kept, bytes.len() as u64 + OVERHEAD),
            Stored::File(_) => self.files.insert(name, kept, 1),
        }
    }

    /// Whether a file in this state is held; does not count as a use.
    pub fn holds(&mut self, version: &FileVersion) -> bool {
        let name = Name::File(*version);
        self.memory.peek(&name).is_some() || self.files.peek(&name).is_some()
    }

    /// Forgets a file's state; what replies still hold lives on with them.
    pub fn forget(&mut self, version: &FileVersion) {
        let name = Name::File(*version);
        self.memory.remove(&name);
        self.files.remove(&name);
    }

    /// Bytes held in memory.
    pub fn weight(&self) -> u64 {
        self.memory.weight()
    }

    /// Descriptors held.
    pub fn files(&self) -> usize {
        self.files.len()
    }

    /// What has happened so far: in memory, and with descriptors.
    pub fn counts(&self) -> (StoreCounts, StoreCounts) {
        (self.memory.counts(), self.files.counts())
    }
}
