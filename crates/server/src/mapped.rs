//! Windows of files that are mapped into memory, and stay so for a while after they were used (Flash, section 5.4).
//!
//! Mapping and unmapping cost two system calls and the page faults between them, so a window that was needed is kept: its
//! next use finds it. Large files are mapped a window at a time, when it is their turn, so that one download does not
//! push out everything else. What was not used for longest, as CLOCK tells it, is unmapped when the budget is full.
//!
//! A mapping keeps its file's blocks on the disk like a descriptor. So mappings go with the opened file that they were
//! made for, and [`OpenFile`] sees to that.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use amped_core::cache::policy::Store;
use amped_core::file::FileVersion;
use amped_core::residency::Part;
use amped_sys::mapping::Mapping;

use crate::counters::MappedCounts;
use crate::disk::{OpenFile, WINDOW};

/// The mapped windows of a process: its loops share one address space, whose lock the kernel takes for each mapping
/// anyway. Ours is held for a lookup, and at worst while one window is unmapped.
#[derive(Clone)]
pub struct MappedWindows {
    windows: Arc<Mutex<Store<Part, Arc<Mapping>>>>,
}

/// Half of what the kernel allows a process as it comes (`vm.max_map_count`, 65530). A mapping that fails is no harm, the
/// window is copied; but so would be one that an allocator or a thread needs.
const MAPPINGS_MAX: usize = 32 * 1024;

/// The budget counts whole pages and the kernel's own account of a mapping, with its page table: a page as well.
const PAGE: u64 = 4096;

impl MappedWindows {
    /// None yet, and up to so many bytes. 0 keeps none.
    pub fn new(bytes_max: u64) -> MappedWindows {
        MappedWindows { windows: Arc::new(Mutex::new(Store::new(MAPPINGS_MAX, bytes_max))) }
    }

    /// The window of this number of a file in this state, which is mapped if it was not.
    ///
    /// # Errors
    /// As mmap(2).
    pub fn get(&self, file: &OpenFile, version: &FileVersion, number: u64) -> io::Result<Arc<Mapping>> {
        let part = Part { version: *version, number };
        if let Some(mapping) = self.lock().get(&part) {
            return Ok(Arc::clone(mapping));
        }
        let start = number * WINDOW;
        let length = WINDOW.min(version.size.saturating_sub(start));
        let mapping = Arc::new(Mapping::new(file, start, length as usize)?);
        file.is_mapped_in(self, version);
        self.lock().insert(part, Arc::clone(&mapping), length.next_multiple_of(PAGE) + PAGE);
        Ok(mapping)
    }

    /// Takes out all windows of a file in this state.
    pub fn take(&self, version: &FileVersion) -> Vec<Arc<Mapping>> {
        let mut windows = self.lock();
        match version.size.div_ceil(WINDOW) {
            // A huge file has more windows than are mapped of all files together.
            count if count > windows.len() as u64 => windows.remove_where(|part| part.version == *version),
            count => (0..count).filter_map(|number| windows.remove(&Part { version: *version, number })).collect(),
        }
    }

    /// How they stand.
    pub fn counts(&self) -> MappedCounts {
        let windows = self.lock();
        let (counts, chunks) = (windows.counts(), windows.len() as u64);
        let unmapped = counts.insertions + counts.refusals - chunks;
        MappedCounts { chunks, bytes: windows.weight(), hits: counts.hits, misses: counts.misses, unmapped }
    }

    fn lock(&self) -> MutexGuard<'_, Store<Part, Arc<Mapping>>> {
        self.windows.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::fmt::Debug for MappedWindows {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.counts().fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::version_of;
    use std::fs;

    fn opened(path: &std::path::Path) -> (OpenFile, FileVersion) {
        let file = OpenFile::new(fs::File::open(path).unwrap().into());
        let version = version_of(&amped_sys::file::status(&file).unwrap());
        (file, version)
    }

    #[test]
    fn windows_stay_mapped_within_their_budget_and_go_with_their_file() {
        let folder = tempfile::tempdir().unwrap();
        let (small, large) = (folder.path().join("small"), folder.path().join("large"));
        fs::write(&small, "small").unwrap();
        fs::write(&large, vec![1; 5 * WINDOW as usize + 1]).unwrap();
        // Four whole windows, with what they cost beside.
        let windows = MappedWindows::new(4 * (WINDOW + PAGE));
        let (large, version) = opened(&large);
        for number in [0, 1, 0, 5] {
            let mapping = windows.get(&large, &version, number).unwrap();
            assert_eq!(mapping.length() as u64, if number == 5 { 1 } else { WINDOW });
        }
        let bytes = 2 * (WINDOW + PAGE) + 2 * PAGE;
        assert_eq!(windows.counts(), MappedCounts { chunks: 3, bytes, hits: 1, misses: 3, unmapped: 0 });
        for number in 0..5 {
            windows.get(&large, &version, number).unwrap();
            assert!(windows.counts().bytes <= 4 * (WINDOW + PAGE));
        }
        assert!(windows.counts().unmapped > 0);
        let (small, small_version) = opened(&small);
        windows.get(&small, &small_version, 0).unwrap();
        drop(large);
        assert_eq!((windows.counts().chunks, windows.counts().bytes), (1, 2 * PAGE));
        drop(small);
        assert_eq!(windows.counts().chunks, 0);
    }

    #[test]
    fn without_a_budget_a_window_is_unmapped_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        fs::write(&path, "file").unwrap();
        let windows = MappedWindows::new(0);
        let (file, version) = opened(&path);
        for n in 1..3 {
            assert_eq!(windows.get(&file, &version, 0).unwrap().length(), 4);
            assert_eq!(windows.counts(), MappedCounts { misses: n, unmapped: n, ..MappedCounts::default() });
        }
    }
}
