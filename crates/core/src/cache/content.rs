//! Contents of files: small ones in memory, descriptors of large ones.
//!
//! The key is the file's state, so an entry can never be served for another one: a file that was edited in place has a
//! new state and is read anew. Two budgets, since memory and descriptors run out separately.

use alloc::sync::Arc;

use super::policy::{Hint, Store, StoreCounts};
use crate::file::{Content, FileVersion, Stored};

/// The cache.
pub struct ContentCache<F> {
    memory: Store<FileVersion, Arc<Content<F>>>,
    files: Store<FileVersion, Arc<Content<F>>>,
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
        if let Some(content) = usual.get_at(hint, version) {
            return Some(Arc::clone(content));
        }
        // One miss is enough to count.
        other.peek(version)?;
        other.get_at(hint, version).map(|content| Arc::clone(content))
    }

    /// Keeps content that was just opened or read.
    pub fn learn(&mut self, content: &Arc<Content<F>>) {
        match &content.store {
            Stored::Memory(bytes) => {
                self.memory.insert(content.version, Arc::clone(content), bytes.len() as u64 + OVERHEAD);
            }
            Stored::File(_) => self.files.insert(content.version, Arc::clone(content), 1),
        }
    }

    /// Whether a file in this state is held; does not count as a use.
    pub fn holds(&mut self, version: &FileVersion) -> bool {
        self.memory.peek(version).is_some() || self.files.peek(version).is_some()
    }

    /// Forgets a file's state; what replies still hold lives on with them.
    pub fn forget(&mut self, version: &FileVersion) {
        self.memory.remove(version);
        self.files.remove(version);
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
