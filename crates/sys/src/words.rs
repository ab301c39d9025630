//! Words of memory that processes share without locks: one writes, others read, each word atomically.
//!
//! [`Words::new`] is called before the fork, and the children inherit the mapping; [`Words::publish`] gives the same
//! memory a name, so that other programs can map or read it. The user defines what the words mean.
//!
//! A name is possible only on a file system in memory (tmpfs). Elsewhere the kernel writes changed pages out from time
//! to time, and the next writer may wait for the disk, in the middle of a plain store.
//!
//! A program that may write to the file may also truncate it. A store to the missing part raises SIGBUS and would end
//! the process: `guard` replaces it by anonymous memory, and both processes continue.

use std::fs::{File, Permissions};
use std::io;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{FallocateFlags, FlockOperation, OFlags, fallocate, flock};
use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};

use crate::file::is_in_memory;

/// Words, initially zero, mapped by this process and by those that it forks.
#[derive(Debug)]
pub struct Words {
    start: NonNull<AtomicU64>,
    count: usize,
    /// Kept open for its lock: the name is taken as long as one process has it.
    _file: Option<File>,
}

// SAFETY: the mapping belongs to the process, not to a thread, and is accessed only through atomic words.
unsafe impl Send for Words {}
// SAFETY: as above.
unsafe impl Sync for Words {}

impl Words {
    /// Allocates this many words without a name.
    ///
    /// # Errors
    /// Those of mmap(2); `InvalidInput` if there is none, or they cannot be addressed.
    pub fn new(count: usize) -> io::Result<Words> {
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        // SAFETY: without a requested address, mmap(2) touches no existing mapping.
        let start = unsafe { mmap_anonymous(std::ptr::null_mut(), length(count)?, protection, flags)? };
        Ok(Words { start: NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?, count, _file: None })
    }

    /// Allocates this many words in a file of this name, readable by all users. A file that another server left under
    /// this name is replaced, and its readers continue to see it; `is_ours` decides by its first bytes whether it is
    /// one. `prepare` writes the words that must be present when the name appears.
    ///
    /// # Errors
    /// `AddrInUse`: a running process uses the name. `AlreadyExists`: another kind of file has the name. `Unsupported`:
    /// the directory is not in memory. `StorageFull`: there is no room. Otherwise those of open(2).
    pub fn publish(
        path: &Path,
        count: usize,
        is_ours: impl Fn(&[u8]) -> bool,
        prepare: impl FnOnce(&[AtomicU64]),
    ) -> io::Result<Words> {
        check_name(path, is_ours, true)?;
        let words = Words::draft(path, count, prepare)?;
        Words::name_draft(path).inspect_err(|_| Words::remove_draft(path, std::process::id()))?;
        Ok(words)
    }

    /// As [`publish`](Words::publish), for a name that another process uses, which goes on if this one fails: the file gets the name
    /// by [`name_draft`](Words::name_draft).
    ///
    /// # Errors
    /// As there.
    pub fn publish_later(
        path: &Path,
        count: usize,
        is_ours: impl Fn(&[u8]) -> bool,
        prepare: impl FnOnce(&[AtomicU64]),
    ) -> io::Result<Words> {
        check_name(path, is_ours, false)?;
        Words::draft(path, count, prepare)
    }

    /// Creates the file under a name of this process.
    fn draft(path: &Path, count: usize, prepare: impl FnOnce(&[AtomicU64])) -> io::Result<Words> {
        let (length, draft) = (length(count)?, draft_of(path, std::process::id())?);
        let file = File::options().read(true).write(true).create_new(true).mode(0o644).open(&draft)?;
        let words = Words::in_file(file, count, length);
        match &words {
            Ok(words) => prepare(words.all()),
            Err(_) => drop(std::fs::remove_file(&draft)),
        }
        words
    }

    /// Gives the file of this process its name; the one that had the name stays as long as it is used.
    ///
    /// # Errors
    /// Those of rename(2).
    pub fn name_draft(path: &Path) -> io::Result<()> {
        std::fs::rename(draft_of(path, std::process::id())?, path)
    }

    /// Removes the file of a process that has ended before it got its name, if there is one.
    pub fn remove_draft(path: &Path, process: u32) {
        let _ = draft_of(path, process).and_then(std::fs::remove_file);
    }

    fn in_file(file: File, count: usize, length: usize) -> io::Result<Words> {
        if !is_in_memory(&file) {
            return Err(io::ErrorKind::Unsupported.into());
        }
        // This sets the mode regardless of the umask: readers are rarely the server's user.
        file.set_permissions(Permissions::from_mode(0o644))?;
        // Now, and not at a store: there a lack of room would raise a signal.
        fallocate(&file, FallocateFlags::empty(), 0, length as u64)?;
        flock(&file, FlockOperation::NonBlockingLockExclusive)?;
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        // SAFETY: without a requested address, mmap(2) touches no existing mapping.
        let start = unsafe { mmap(std::ptr::null_mut(), length, protection, flags, &file, 0)? };
        guard::watch(start as usize, length);
        Ok(Words { start: NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?, count, _file: Some(file) })
    }

    /// Returns whether the file was truncated, so that the words are private to this process and were reset to zero.
    pub fn is_cut(&self) -> bool {
        guard::is_cut(self.start.as_ptr() as usize)
    }

    /// Returns all words.
    pub fn all(&self) -> &[AtomicU64] {
        // SAFETY: the mapping has `count` words, is aligned to a page, and lasts as long as `self`;
        // any bytes are a valid `AtomicU64`, and it is written only as such, here and in other
        // processes. JUSTIFICATION: std maps no memory.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.count) }
    }
}

/// Checks that words may get this name. `alone`: no running process uses it.
fn check_name(path: &Path, is_ours: impl Fn(&[u8]) -> bool, alone: bool) -> io::Result<()> {
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits() as i32;
    let old = match File::options().read(true).custom_flags(flags).open(path) {
        Ok(old) => old,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) if error.raw_os_error() == Some(libc::ELOOP) => return Err(io::ErrorKind::AlreadyExists.into()),
        Err(error) => return Err(error),
    };
    let mut begin = [0; 64];
    let read = rustix::io::pread(&old, &mut begin, 0).unwrap_or(0);
    if !old.metadata()?.is_file() || !is_ours(&begin[..read]) {
        return Err(io::ErrorKind::AlreadyExists.into());
    }
    if alone {
        flock(&old, FlockOperation::NonBlockingLockExclusive).map_err(|_| io::ErrorKind::AddrInUse)?;
    }
    Ok(())
}

/// Returns the name of the file of a process, before it is that of all.
fn draft_of(path: &Path, process: u32) -> io::Result<PathBuf> {
    let mut name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?.to_owned();
    name.push(format!(".{process}"));
    Ok(path.with_file_name(name))
}

/// Returns the size of the words, bytes.
fn length(count: usize) -> io::Result<usize> {
    let length = count.checked_mul(size_of::<AtomicU64>()).filter(|length| isize::try_from(*length).is_ok());
    length.filter(|length| *length > 0).ok_or_else(|| io::ErrorKind::InvalidInput.into())
}

impl Drop for Words {
    fn drop(&mut self) {
        guard::forget(self.start.as_ptr() as usize);
        // SAFETY: this mapping was created above, the references handed out borrow `self`, and nothing else points into
        // it. If it fails, the mapping stays, which is harmless.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.count * size_of::<AtomicU64>()) };
    }
}

/// The words of a file that another process publishes, for reading.
#[derive(Debug)]
pub struct View {
    start: NonNull<AtomicU64>,
    count: usize,
}

// SAFETY: the mapping belongs to the process, not to a thread, and is read word by word.
unsafe impl Send for View {}
// SAFETY: as above.
unsafe impl Sync for View {}

impl View {
    /// Maps a file created by [`Words::publish`]. `is_good` decides by its first bytes whether it is the right one.
    ///
    /// # Errors
    /// `InvalidData` if it is not, or is not a file. Otherwise those of open(2) and mmap(2).
    pub fn open(path: &Path, is_good: impl Fn(&[u8]) -> bool) -> io::Result<View> {
        let file = File::options().read(true).custom_flags(OFlags::NONBLOCK.bits() as i32).open(path)?;
        let status = file.metadata()?;
        let mut begin = [0; 64];
        let read = if status.is_file() { rustix::io::pread(&file, &mut begin, 0)? } else { 0 };
        let count = usize::try_from(status.len()).unwrap_or(0) / size_of::<AtomicU64>();
        if count == 0 || !is_good(&begin[..read]) {
            return Err(io::ErrorKind::InvalidData.into());
        }
        // SAFETY: without a requested address, mmap(2) touches no existing mapping.
        let start = unsafe { mmap(std::ptr::null_mut(), length(count)?, ProtFlags::READ, MapFlags::SHARED, &file, 0)? };
        guard::watch(start as usize, count * size_of::<AtomicU64>());
        Ok(View { start: NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?, count })
    }

    /// Returns the current value of a word; `None` beyond the end.
    pub fn load(&self, at: usize) -> Option<u64> {
        // SAFETY: `at` is below `count`, so the word is within the mapping, which lasts as long as `self`; it is
        // aligned, and atomic, as its writers are. If the file was truncated, `guard` replaces it by memory.
        // JUSTIFICATION: std maps no memory, and a copy by read(2) may be made in the middle of a change.
        (at < self.count).then(|| unsafe { self.start.add(at).as_ref() }.load(Ordering::Relaxed))
    }
}

impl Drop for View {
    fn drop(&mut self) {
        guard::forget(self.start.as_ptr() as usize);
        // SAFETY: as for `Words`.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.count * size_of::<AtomicU64>()) };
    }
}

/// Mappings of files that other processes may truncate.
mod guard {
    use std::ffi::c_void;
    use std::sync::Once;
    use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering::SeqCst};

    /// A mapping; `start == 0`: none.
    struct Guarded {
        start: AtomicUsize,
        length: AtomicUsize,
        is_cut: AtomicBool,
    }

    /// A process has one file, and rarely maps it again; tests have a few.
    static GUARDED: [Guarded; 16] =
        [const { Guarded { start: AtomicUsize::new(0), length: AtomicUsize::new(0), is_cut: AtomicBool::new(false) } };
            16];

    /// The previous disposition of SIGBUS, for faults elsewhere.
    static BEFORE: AtomicPtr<libc::sigaction> = AtomicPtr::new(std::ptr::null_mut());

    /// Protects this mapping from truncation of its file from now on. With too
    /// many mappings, SIGBUS keeps its disposition.
    pub(super) fn watch(start: usize, length: usize) {
        static INSTALLED: Once = Once::new();
        INSTALLED.call_once(install);
        for one in &GUARDED {
            if one.start.compare_exchange(0, start, SeqCst, SeqCst).is_ok() {
                one.is_cut.store(false, SeqCst);
                one.length.store(length, SeqCst);
                return;
            }
        }
    }

    /// Must be called before it is unmapped.
    pub(super) fn forget(start: usize) {
        if let Some(one) = find(|at, _| at == start) {
            one.length.store(0, SeqCst);
            one.start.store(0, SeqCst);
        }
    }

    pub(super) fn is_cut(start: usize) -> bool {
        find(|at, _| at == start).is_some_and(|one| one.is_cut.load(SeqCst))
    }

    fn find(is_it: impl Fn(usize, usize) -> bool) -> Option<&'static Guarded> {
        GUARDED.iter().find(|one| {
            let start = one.start.load(SeqCst);
            start != 0 && is_it(start, one.length.load(SeqCst))
        })
    }

    fn install() {
        // SAFETY: an all-zero sigaction is valid: the default disposition, no flags, an empty mask.
        let (mut before, mut ours) = unsafe { (Box::new(std::mem::zeroed()), std::mem::zeroed::<libc::sigaction>()) };
        ours.sa_sigaction = on_bus_error as *const () as usize;
        ours.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        // SAFETY: both structures are alive, and the handler does only what signal-safety(7) allows. JUSTIFICATION: std
        // does not support signals, and the fault cannot be foreseen.
        if unsafe { libc::sigaction(libc::SIGBUS, &raw const ours, &raw mut *before) } == 0 {
            BEFORE.store(Box::into_raw(before), SeqCst);
        }
    }

    extern "C" fn on_bus_error(_: libc::c_int, info: *mut libc::siginfo_t, _: *mut c_void) {
        // SAFETY: with SA_SIGINFO the kernel passes a siginfo, which contains an address for SIGBUS.
        let at = unsafe { (*info).si_addr() } as usize;
        let Some(one) = find(|start, length| (start..start + length).contains(&at)) else {
            // Restore the previous disposition; the access is repeated and finds it.
            let before = BEFORE.load(SeqCst);
            // SAFETY: `before` is null or what `install` has leaked for this. Null changes nothing.
            unsafe { libc::sigaction(libc::SIGBUS, before, std::ptr::null_mut()) };
            return;
        };
        // Once: another thread with the same fault repeats its access until the memory exists.
        if one.is_cut.swap(true, SeqCst) {
            return;
        }
        let (start, length) = (one.start.load(SeqCst), one.length.load(SeqCst));
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
        // SAFETY: exactly this range is a guarded mapping, which is accessed only through atomic
        // words, and these may have any value. mmap(2) is a bare system call here. JUSTIFICATION:
        // there is no other way to continue after the fault.
        if unsafe { libc::mmap(start as *mut c_void, length, protection, flags, -1, 0) } == libc::MAP_FAILED {
            // SAFETY: abort(3) may be called in a handler.
            unsafe { libc::abort() };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering::Relaxed;

    fn is_ours(bytes: &[u8]) -> bool {
        bytes.starts_with(b"WORDS!!!")
    }

    fn publish(path: &Path, words: usize) -> io::Result<Words> {
        let mark = |words: &[AtomicU64]| words[0].store(u64::from_ne_bytes(*b"WORDS!!!"), Relaxed);
        Words::publish(path, words, is_ours, mark)
    }

    #[test]
    fn new_words_are_zero_and_as_many_as_requested() {
        let words = Words::new(1000).expect("memory");
        assert!(words.all().iter().all(|word| word.load(Relaxed) == 0));
        std::thread::scope(|scope| {
            for (number, part) in words.all().chunks(100).enumerate() {
                scope.spawn(move || (100 * number as u64..).zip(part).for_each(|(n, word)| word.store(n, Relaxed)));
            }
        });
        assert!((0..).zip(words.all()).all(|(number, word)| word.load(Relaxed) == number));
        assert_eq!(words.all().len(), 1000);
        assert!(Words::new(0).is_err() && Words::new(usize::MAX).is_err());
    }

    #[test]
    fn name_is_exclusive_and_stale_file_is_replaced() {
        let folder = tempfile::tempdir_in("/dev/shm").expect("a directory in memory");
        let path = folder.path().join("words");
        let words = publish(&path, 600).expect("published");
        words.all()[599].store(3, Relaxed);
        let bytes = std::fs::read(&path).expect("read");
        assert_eq!((bytes.len(), bytes[..8].as_ref(), bytes[8 * 599]), (4800, b"WORDS!!!".as_ref(), 3));
        assert_eq!(std::fs::metadata(&path).expect("there").permissions().mode() & 0o777, 0o644);
        let view = View::open(&path, is_ours).expect("mapped");
        assert_eq!([view.load(598), view.load(599), view.load(600)], [Some(0), Some(3), None]);
        words.all()[598].store(8, Relaxed);
        assert_eq!(view.load(598), Some(8));
        let error = publish(&path, 600).expect_err("taken");
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
        let old = File::open(&path).expect("opened");
        drop(words);
        let words = publish(&path, 2).expect("its owner has exited");
        assert_eq!((old.metadata().expect("open").len(), words.all()[1].load(Relaxed)), (4800, 0));
        assert_eq!(view.load(598), Some(8), "readers of the old file still see it");
        let mark = |words: &[AtomicU64]| words[0].store(u64::from_ne_bytes(*b"WORDS!!!"), Relaxed);
        let later = Words::publish_later(&path, 3, is_ours, mark).expect("in use, which is permitted");
        assert_eq!(std::fs::metadata(&path).expect("the old one").len(), 16);
        Words::name_draft(&path).expect("named");
        assert_eq!(std::fs::metadata(&path).expect("the new one").len(), 24);
        drop((words, later));
        let _draft = Words::publish_later(&path, 3, is_ours, mark).expect("made");
        Words::remove_draft(&path, std::process::id());
        assert_eq!(std::fs::read_dir(folder.path()).expect("read").count(), 1, "no other file is left");
    }

    #[test]
    fn truncated_file_loses_words_without_crash() {
        let folder = tempfile::tempdir_in("/dev/shm").expect("a directory in memory");
        let path = folder.path().join("words");
        let words = publish(&path, 2000).expect("published");
        let view = View::open(&path, is_ours).expect("mapped");
        words.all()[1999].store(7, Relaxed);
        assert_eq!((view.load(1999), words.is_cut()), (Some(7), false));
        File::options().write(true).open(&path).expect("opened").set_len(0).expect("cut");
        words.all()[1999].store(8, Relaxed);
        words.all()[0].fetch_add(1, Relaxed);
        assert_eq!((words.all()[1999].load(Relaxed), words.all()[0].load(Relaxed), words.is_cut()), (8, 1, true));
        assert_eq!(view.load(1999), Some(0), "a reader of the file continues, too");
        // A newly published file is complete.
        drop(words);
        std::fs::remove_file(&path).expect("removed");
        let words = publish(&path, 2000).expect("published");
        words.all()[1999].store(9, Relaxed);
        assert_eq!((std::fs::read(&path).expect("read").len(), words.is_cut()), (16_000, false));
    }

    #[test]
    fn foreign_file_is_not_overwritten() {
        let folder = tempfile::tempdir_in("/dev/shm").expect("a directory in memory");
        let check = |path: &Path, expected: io::ErrorKind| {
            assert_eq!(publish(path, 2).expect_err("refused").kind(), expected, "{path:?}");
        };
        let path = folder.path().join("letter");
        std::fs::write(&path, "Dear reader").expect("written");
        check(&path, io::ErrorKind::AlreadyExists);
        let link = folder.path().join("link");
        std::os::unix::fs::symlink(&path, &link).expect("linked");
        check(&link, io::ErrorKind::AlreadyExists);
        check(folder.path(), io::ErrorKind::AlreadyExists);
        check(&folder.path().join("none/words"), io::ErrorKind::NotFound);
        let disk = tempfile::tempdir_in(".").expect("a directory on a disk");
        check(&disk.path().join("words"), io::ErrorKind::Unsupported);
        assert_eq!(std::fs::read_dir(disk.path()).expect("read").count(), 0);
        assert_eq!(std::fs::read(&path).expect("read"), b"Dear reader");
        for path in [&path, folder.path()] {
            assert_eq!(View::open(path, is_ours).expect_err("refused").kind(), io::ErrorKind::InvalidData);
        }
    }
}
