//! Open files: the state kept for an open file, and its windows that are mapped into memory.
//!
//! An [`OpenFile`] is shared by the cache, by responses being sent and by helpers. It checks whether the file
//! still has the bytes of a version, records which windows were found in the page cache, and closes its
//! descriptor in a thread if that may wait for the disk.
//!
//! Mapping and unmapping cost two system calls and the page faults between them, so [`MappedWindows`] keeps a window
//! after use: its next use finds it (Flash, section 5.4). Large files are mapped one window at a time, when it is sent,
//! so that one download does not evict everything else. When the budget is full, CLOCK chooses the window to unmap. A
//! mapping keeps its file's blocks on the disk as a descriptor does. So mappings are dropped with the open file that
//! they were created for, which is why both are in one file.

use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;

use amped_core::cache::policy::Store;
use amped_core::file::{FileHandle, FileVersion};
use amped_core::residency::Part;
use amped_sys::file::{self, Patience};
use amped_sys::mapping::Mapping;
use amped_units::Time;

use crate::counters::MappedCounts;
use crate::object_store::ObjectWindows;
use crate::object_store::settings::WINDOW_STEP;

/// Size of a window: the unit of reading ahead of what is sent.
pub const WINDOW: u64 = 256 * 1024;

// What is sent at a time lies in one window of an object.
const _: () = assert!(WINDOW_STEP.is_multiple_of(WINDOW));

/// A file that is open for reading.
#[derive(Debug)]
pub struct OpenFile {
    /// `None` only while it is being dropped.
    descriptor: Option<OwnedFd>,
    /// Where windows of it are mapped, if any were, and the version that was opened.
    mapped: OnceLock<Box<(MappedWindows, FileVersion)>>,
    /// When each of the first windows was last seen completely in memory:
    /// milliseconds, from 1. Created for the first of them.
    seen: OnceLock<Box<[AtomicU64]>>,
    /// Distinguishes changes that leave the bytes unchanged from others.
    known: Box<Mutex<KnownInode>>,
    /// The windows of a large object, of which some may be missing: they must not be read. Its bytes never change.
    windows: Option<Box<ObjectWindows>>,
}

/// The inode of an open file, as of the last ctime change that left its bytes unchanged.
#[derive(Debug)]
struct KnownInode {
    ctime_ns: i64,
    traits: Traits,
    /// The ctime differs from the one at opening, and the change was explained.
    is_later: bool,
}

/// Attributes of an inode that reveal changes which leave its bytes unchanged.
#[derive(Debug, Default, PartialEq, Eq)]
struct Traits {
    links: u64,
    owner: (u32, u32),
    mode: u32,
    /// The path of the file; a rename changes it.
    path: Option<PathBuf>,
}

impl Traits {
    fn of(file: impl AsFd, status: &file::Status) -> Traits {
        Traits { path: file::path(file), ..Traits::without_path(status) }
    }

    fn without_path(status: &file::Status) -> Traits {
        Traits { links: status.links, owner: status.owner, mode: status.mode, path: None }
    }
}

/// Maximum windows whose residency is recorded: all windows of a file of 16 MiB, in half a KiB.
const SEEN_MAX: u64 = 64;

impl OpenFile {
    /// Wraps a descriptor that was found in this version; returns the current version too. If they differ, the file was
    /// replaced, renamed or written to since; which of these is unknown, so it counts as being changed.
    pub fn new(descriptor: OwnedFd, version: FileVersion) -> (OpenFile, FileVersion) {
        // Before the status: a rename in between changes the status.
        let path = file::path(&descriptor);
        let (known, version) = match file::status(&descriptor) {
            Ok(status) => {
                let now = version_of(&status);
                let is_same = now == FileVersion { is_changing: false, ..version };
                let version = if is_same { version } else { FileVersion { is_changing: true, ..now } };
                let traits = Traits { path, ..Traits::without_path(&status) };
                (KnownInode { ctime_ns: status.ctime_ns, traits, is_later: false }, version)
            }
            Err(_) => (KnownInode { ctime_ns: 0, traits: Traits::default(), is_later: false }, version),
        };
        (OpenFile::with(descriptor, known, None), version)
    }

    /// Wraps the descriptor of a large object, which is open for reading and writing.
    pub fn of_object(descriptor: OwnedFd, windows: ObjectWindows) -> OpenFile {
        let known = KnownInode { ctime_ns: 0, traits: Traits::default(), is_later: false };
        OpenFile::with(descriptor, known, Some(Box::new(windows)))
    }

    fn with(descriptor: OwnedFd, known: KnownInode, windows: Option<Box<ObjectWindows>>) -> OpenFile {
        let known = Box::new(Mutex::new(known));
        OpenFile { descriptor: Some(descriptor), mapped: OnceLock::new(), seen: OnceLock::new(), known, windows }
    }

    /// Returns whether this byte is there, with all of its [`WINDOW`]. If not, it is in a window of an object that must be fetched first:
    /// it reads as zero, and must not be read.
    pub fn is_present(&self, offset: u64) -> bool {
        self.windows.as_deref().map(ObjectWindows::windows).is_none_or(|windows| windows.is_present(windows.at(offset)))
    }

    /// Makes this byte be there, with all of its window. Waits for an object store.
    ///
    /// # Errors
    /// As for [`ObjectWindows::fetch`].
    pub fn fetch(&self, offset: u64) -> io::Result<()> {
        self.windows.as_ref().map_or(Ok(()), |windows| windows.fetch(self, offset))
    }

    /// Returns the number of the window that has this byte, among those that are fetched at a time.
    pub fn fetched_with(&self, offset: u64) -> u64 {
        self.windows.as_ref().map_or(0, |windows| windows.windows().at(offset))
    }

    /// Returns the beginning of the next window, if this range extends to it and it must be fetched.
    pub fn missing_after(&self, range: &Range<u64>) -> Option<u64> {
        self.windows.as_ref()?.windows().missing_after(range)
    }

    /// Returns whether it has grown although its object was evicted, so that it should be closed as soon as no response needs it.
    pub fn is_orphaned(&self) -> bool {
        self.windows.as_ref().is_some_and(|windows| windows.is_orphaned())
    }

    /// Returns whether the object store has another version, so that what is missing will never come.
    pub fn is_replaced(&self) -> bool {
        self.windows.as_ref().is_some_and(|windows| windows.windows().is_replaced())
    }

    /// Returns whether the bytes are still those of this version, while a response is being sent. Never waits.
    ///
    /// Size and modification time must be the same. So must the ctime, which cannot be set back; but a rename, a new or
    /// removed link, owner or mode changes it as well, as every deployment does, and responses continue if such a
    /// change is found. A ctime change without an explanation counts as a change of the bytes.
    ///
    /// # Errors
    /// Those of fstat(2).
    pub fn still_has_bytes_of(&self, version: &FileVersion) -> io::Result<bool> {
        if self.windows.is_some() {
            return Ok(true);
        }
        let status = file::status(self)?;
        if (status.size, status.mtime_ns) != (version.size, version.mtime_ns) {
            return Ok(false);
        }
        if status.ctime_ns == version.ctime_ns {
            return Ok(true);
        }
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        // It was opened in a later state than the version: what happened in between is unknown.
        if !known.is_later && known.ctime_ns != version.ctime_ns {
            return Ok(false);
        }
        let traits = Traits::of(self, &status);
        let is_explained = status.ctime_ns == known.ctime_ns || traits != known.traits;
        if is_explained {
            *known = KnownInode { ctime_ns: status.ctime_ns, traits, is_later: true };
        }
        Ok(is_explained)
    }

    /// Returns whether all of its bytes are there.
    pub fn is_complete(&self) -> bool {
        let windows = self.windows.as_deref().map(ObjectWindows::windows);
        windows.is_none_or(|windows| (0..windows.layout.windows()).all(|window| windows.is_present(window)))
    }

    /// Returns a reader of its bytes from the start, which waits for the disk, or the object store.
    pub fn reader(&self) -> FromStart<'_> {
        FromStart { file: self, at: 0 }
    }

    /// Returns whether this window was never found in memory; `false` for windows that are not recorded.
    pub fn is_new(&self, window: u64) -> bool {
        window < SEEN_MAX && self.last_seen(window).is_none()
    }

    /// Returns when this window was last found in memory, if that is recorded.
    pub fn last_seen(&self, window: u64) -> Option<Time> {
        let note = self.seen.get()?.get(window as usize)?.load(Ordering::Relaxed);
        note.checked_sub(1).map(Time::from_millis)
    }

    /// Records that all of this window, of a file of this size, is in memory now.
    pub fn is_seen(&self, window: u64, size: u64, now: Time) {
        let windows = size.div_ceil(WINDOW).min(SEEN_MAX) as usize;
        let seen = self.seen.get_or_init(|| (0..windows).map(|_| AtomicU64::new(0)).collect());
        if let Some(note) = seen.get(window as usize) {
            note.store(now.as_nanos() / 1_000_000 + 1, Ordering::Relaxed);
        }
    }

    /// Records where windows of it are mapped, for this version; they are dropped with it.
    pub fn is_mapped_in(&self, windows: &MappedWindows, version: &FileVersion) {
        self.mapped.get_or_init(|| Box::new((windows.clone(), *version)));
    }
}

/// Reads a file from its start, however long the disk, or the object store, takes.
#[derive(Debug)]
pub struct FromStart<'a> {
    file: &'a OpenFile,
    at: u64,
}

impl io::Read for FromStart<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut room = buffer.len();
        if let Some(windows) = self.file.windows.as_deref().map(ObjectWindows::windows) {
            // Behind the bytes of an object there are others.
            let left = windows.layout.size.saturating_sub(self.at).min(WINDOW - self.at % WINDOW);
            room = room.min(left as usize);
            if room > 0 {
                self.file.fetch(self.at)?;
            }
        }
        let count = file::read_at(self.file, &mut buffer[..room], self.at, Patience::Wait)?;
        self.at += count as u64;
        Ok(count)
    }
}

impl AsFd for OpenFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_ref().expect("not dropped yet").as_fd()
    }
}

impl FileHandle for OpenFile {
    /// Includes the ctime: before a response starts there is time to look up the file again, and a change is noticed
    /// even if the mtime was reset. Never waits.
    fn has_bytes_of(&self, version: &FileVersion) -> bool {
        if self.windows.is_some() {
            // Missing windows of an evicted object are fetched into its next file.
            let has_name = || file::status(self).is_ok_and(|status| status.links > 0);
            return !self.is_replaced() && (has_name() || self.is_complete());
        }
        let version = FileVersion { is_changing: false, ..*version };
        file::status(self).is_ok_and(|status| version_of(&status) == version)
    }
}

impl Drop for OpenFile {
    /// Closing the last descriptor of a removed file frees its blocks, which takes long for a large one, as does
    /// unmapping its last mapping. So a separate thread does it.
    fn drop(&mut self) {
        let Some(descriptor) = self.descriptor.take() else {
            return;
        };
        let mappings = self.mapped.take().map_or_else(Vec::new, |mapped| mapped.0.take(&mapped.1));
        if file::status(&descriptor).is_ok_and(|status| status.links == 0 && status.size >= CLOSED_ELSEWHERE_MIN)
            && let Some(closer) = closer()
        {
            // If that thread has ended, both come back in the error and are dropped here.
            drop(closer.send((mappings, descriptor)));
        }
    }
}

/// Removed files of at least this size are closed in another thread.
const CLOSED_ELSEWHERE_MIN: u64 = 1024 * 1024;

/// The mappings and the descriptor that keep a file's blocks on the disk.
type Held = (Vec<Arc<Mapping>>, OwnedFd);

/// Returns the queue of the closing thread, which is started when first needed.
fn closer() -> Option<&'static Sender<Held>> {
    static CLOSER: OnceLock<Option<Sender<Held>>> = OnceLock::new();
    let start = || {
        let (to, from) = channel::<Held>();
        let closing = thread::Builder::new().name("closer".to_owned()).stack_size(64 * 1024);
        closing.spawn(move || from.iter().for_each(drop)).ok().map(|_| to)
    };
    CLOSER.get_or_init(start).as_ref()
}

/// Returns the version of a file in this state.
pub fn version_of(status: &file::Status) -> FileVersion {
    FileVersion {
        device: status.device,
        inode: status.inode,
        size: status.size,
        mtime_ns: status.mtime_ns,
        ctime_ns: status.ctime_ns,
        is_changing: false,
        is_unpacked: false,
    }
}

/// The mapped windows of a process: its loops share one address space, whose lock the kernel takes for each mapping
/// anyway. This lock is held for a lookup, and at worst while one window is unmapped.
#[derive(Clone)]
pub struct MappedWindows {
    windows: Arc<Mutex<Store<Part, Arc<Mapping>>>>,
}

/// Half of the kernel's default limit for a process (`vm.max_map_count`, 65530). A failed mapping of a window is
/// harmless, the window is copied; but an allocator or a thread may need a mapping too.
const MAPPINGS_MAX: usize = 32 * 1024;

/// The budget counts whole pages, plus one page for the kernel's own bookkeeping of a mapping and its page table.
const PAGE: u64 = 4096;

impl MappedWindows {
    /// Creates an empty set of at most this many bytes; 0 keeps no window.
    pub fn new(bytes_max: u64) -> MappedWindows {
        MappedWindows { windows: Arc::new(Mutex::new(Store::new(MAPPINGS_MAX, bytes_max))) }
    }

    /// Returns this window of a file in this version, and maps it if necessary.
    ///
    /// # Errors
    /// Those of mmap(2).
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

    /// Removes all windows of a file in this version.
    pub fn take(&self, version: &FileVersion) -> Vec<Arc<Mapping>> {
        let mut windows = self.lock();
        match version.size.div_ceil(WINDOW) {
            // A huge file may have more windows than are mapped of all files together.
            count if count > windows.len() as u64 => windows.remove_where(|part| part.version == *version),
            count => (0..count).filter_map(|number| windows.remove(&Part { version: *version, number })).collect(),
        }
    }

    /// Returns the statistics.
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
    use std::fs;
    use std::path::Path;
    use std::time::{Duration, Instant};

    /// Returns the number of this process's descriptors on removed files in this directory.
    fn removed_and_open(folder: &Path) -> usize {
        let links =
            fs::read_dir("/proc/self/fd").unwrap().filter_map(|entry| fs::read_link(entry.unwrap().path()).ok());
        links.filter(|link| link.starts_with(folder) && link.to_string_lossy().ends_with(" (deleted)")).count()
    }

    #[test]
    fn unexplained_ctime_change_counts_as_edit() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        fs::write(&path, "text").unwrap();
        let open = || {
            let opened: OwnedFd = fs::File::open(&path).unwrap().into();
            let version = version_of(&file::status(&opened).unwrap());
            OpenFile::new(opened, version)
        };
        let (file, version) = open();
        let check = |expected: bool| assert_eq!(file.still_has_bytes_of(&version).unwrap(), expected);
        // Wait past the resolution of the clock each time, so that no two changes have the same timestamp.
        let after_a_tick = || thread::sleep(Duration::from_millis(20));
        check(true);
        after_a_tick();
        fs::hard_link(&path, folder.path().join("other")).unwrap();
        check(true);
        check(true);
        after_a_tick();
        fs::rename(&path, folder.path().join("renamed")).unwrap();
        check(true);
        after_a_tick();
        let modified = fs::metadata(folder.path().join("renamed")).unwrap().modified().unwrap();
        let writable = fs::File::options().write(true).open(folder.path().join("renamed")).unwrap();
        writable.set_modified(modified).unwrap();
        check(false);
        check(false);
        // Opened in another state than the version's: what happened in between is unknown.
        fs::rename(folder.path().join("renamed"), &path).unwrap();
        let (_, before) = open();
        after_a_tick();
        writable.set_modified(modified).unwrap();
        let (file, _) = open();
        assert!(!file.still_has_bytes_of(&before).unwrap());
    }

    #[test]
    fn file_replaced_while_opened_is_whole_and_not_cached() {
        let folder = tempfile::tempdir().unwrap();
        let (path, other) = (folder.path().join("file"), folder.path().join("other"));
        let replace: [&dyn Fn(); 3] =
            [&|| fs::rename(&other, &path).unwrap(), &|| fs::rename(&path, &other).unwrap(), &|| {
                fs::remove_file(&path).unwrap()
            }];
        for replace in replace {
            fs::write(&path, "text").unwrap();
            fs::write(&other, "next").unwrap();
            let descriptor: OwnedFd = fs::File::open(&path).unwrap().into();
            let found = version_of(&file::status(&descriptor).unwrap());
            // Past the resolution of the clock.
            thread::sleep(Duration::from_millis(20));
            replace();
            let (file, version) = OpenFile::new(descriptor, found);
            assert!(version.is_changing && version.size == found.size && version.ctime_ns != found.ctime_ns);
            assert!(file.has_bytes_of(&version) && file.still_has_bytes_of(&version).unwrap());
        }
    }

    #[test]
    fn window_residency_is_remembered() {
        let (file, _) = OpenFile::new(tempfile::tempfile().unwrap().into(), FileVersion::default());
        let at = Time::from_millis;
        let size = 5 * WINDOW + 1;
        let seen = || [0, 1, 5, 6].map(|window| file.last_seen(window));
        assert_eq!(seen(), [None; 4]);
        assert_eq!([0, SEEN_MAX - 1, SEEN_MAX].map(|window| file.is_new(window)), [true, true, false]);
        file.is_seen(0, size, at(0));
        file.is_seen(5, size, at(101));
        file.is_seen(6, size, at(102));
        assert_eq!(seen(), [Some(at(0)), None, Some(at(101)), None]);
        file.is_seen(0, size, at(105));
        assert_eq!(file.last_seen(0), Some(at(105)));
        assert_eq!([0, 1].map(|window| file.is_new(window)), [false, true]);
    }

    #[test]
    fn large_removed_file_is_closed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().canonicalize().unwrap().join("large");
        fs::write(&path, vec![1; 2 << 20]).unwrap();
        let (file, version) = opened(&path);
        assert!(file.has_bytes_of(&version));
        fs::remove_file(&path).unwrap();
        assert_eq!(removed_and_open(folder.path()), 1);
        drop(file);
        let start = Instant::now();
        while removed_and_open(folder.path()) > 0 {
            assert!(start.elapsed() < Duration::from_secs(20), "it stays open");
            thread::sleep(Duration::from_millis(2));
        }
    }

    fn opened(path: &Path) -> (OpenFile, FileVersion) {
        let descriptor: OwnedFd = fs::File::open(path).unwrap().into();
        let version = version_of(&file::status(&descriptor).unwrap());
        OpenFile::new(descriptor, version)
    }

    #[test]
    fn mapped_windows_stay_within_budget_and_end_with_their_file() {
        let folder = tempfile::tempdir().unwrap();
        let (small, large) = (folder.path().join("small"), folder.path().join("large"));
        fs::write(&small, "small").unwrap();
        fs::write(&large, vec![1; 5 * WINDOW as usize + 1]).unwrap();
        // Four whole windows, with their overhead.
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
    fn zero_budget_unmaps_window_at_once() {
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
