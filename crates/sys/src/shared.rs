//! Memory that processes share, in parts with one lock each that survives a holder that dies.
//!
//! [`Region::new`] is called before the fork, and the children inherit the mapping; a process started by exec maps
//! the same memory with [`Region::open`]. It must be the fork of the C library, as
//! [`process::fork`](crate::process::fork) is: a bare clone(2) leaves the kernel without the list of a child's locks.
//! The holder of a part's lock defines what its bytes mean.
//!
//! The locks are robust mutexes (pthread_mutexattr_setrobust(3)): the kernel releases those of a process that
//! dies, even by SIGKILL, and the next process that takes one gets an error ([`Damaged`]). The part then stays damaged
//! for all processes until one has repaired it. A process that is stopped (SIGSTOP, a debugger, a frozen cgroup) keeps
//! its locks: the others wait for a limited time, and then for none until the part is released ([`NotLocked::Held`]).
//!
//! No references are handed out: another process may write as soon as the lock is
//! released, so bytes are copied in and out.

use std::fmt;
use std::io;
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fstat, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

/// Memory in parts of equal size, mapped by this process and by others.
#[derive(Debug)]
pub struct Region {
    memory: OwnedFd,
    start: NonNull<u8>,
    length: usize,
    parts: usize,
    part_bytes: usize,
}

// SAFETY: the mapping belongs to the process, not to a thread; `parts` and the other fields do not change, and the
// bytes of a part are accessed only under its lock, which excludes threads as it does processes.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

/// How long to wait for a lock that is held for microseconds: longer than a holder that was preempted needs, short
/// enough to hardly be noticed when one is stopped.
pub const PATIENCE: Duration = Duration::from_millis(20);

/// Before the first part: the number of parts, and their size.
const PREAMBLE: usize = 128;

/// Before the bytes of a part: its mutex, at `STATE` a word that is not 0 while it is damaged, and at `STUCK` a byte
/// that is not 0 while nobody waits for it. Two cache lines, so that parts share none.
const PART_HEAD: usize = 128;
const STATE: usize = 64;
const STUCK: usize = 72;

const _: () = assert!(size_of::<libc::pthread_mutex_t>() <= STATE && align_of::<libc::pthread_mutex_t>() <= STATE);

impl Region {
    /// Allocates zeroed memory: at least one part, each of this size. Pages are allocated when first touched.
    ///
    /// # Errors
    /// Those of memfd_create(2) and mmap(2); `InvalidInput` if that much cannot be addressed, or there is no part.
    pub fn new(parts: usize, part_bytes: usize) -> io::Result<Region> {
        let length = length(parts, part_bytes).ok_or(io::ErrorKind::InvalidInput)?;
        let memory = memfd_create(c"amped", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        ftruncate(&memory, length as u64)?;
        // Sealed against truncation, which would raise SIGBUS in every process that touches the missing part.
        fcntl_add_seals(&memory, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        let region = Region::map(memory, parts, part_bytes, length)?;
        // SAFETY: the mapping is longer than PREAMBLE and nothing else uses it yet.
        unsafe {
            region.start.cast::<u64>().write(parts as u64);
            region.start.cast::<u64>().add(1).write(part_bytes as u64);
        }
        let attributes = Attributes::new()?;
        for part in 0..parts {
            // SAFETY: `mutex` is inside the mapping and aligned; nothing has used it yet, and the attributes are alive.
            check(unsafe { libc::pthread_mutex_init(region.mutex(part), &raw const attributes.0) })?;
        }
        Ok(region)
    }

    /// Maps a region that another process created, from its descriptor.
    ///
    /// # Errors
    /// Those of mmap(2); `InvalidData` if [`new`](Region::new) did not create it.
    pub fn open(memory: OwnedFd) -> io::Result<Region> {
        let mut preamble = [0; 16];
        let read = rustix::io::pread(&memory, &mut preamble, 0)?;
        let word = |at: usize| preamble[at..].first_chunk().map(|bytes| u64::from_ne_bytes(*bytes) as usize);
        let (Some(parts), Some(part_bytes), 16) = (word(0), word(8), read) else {
            return Err(io::ErrorKind::InvalidData.into());
        };
        let sealed = rustix::fs::fcntl_get_seals(&memory).is_ok_and(|seals| seals.contains(SealFlags::SHRINK));
        match length(parts, part_bytes) {
            Some(length) if sealed && fstat(&memory)?.st_size == length as i64 => {
                Region::map(memory, parts, part_bytes, length)
            }
            _ => Err(io::ErrorKind::InvalidData.into()),
        }
    }

    fn map(memory: OwnedFd, parts: usize, part_bytes: usize, length: usize) -> io::Result<Region> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: without a requested address, mmap(2) touches no existing mapping.
        let start = unsafe { mmap(std::ptr::null_mut(), length, protection, MapFlags::SHARED, &memory, 0)? };
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Region { memory, start, length, parts, part_bytes })
    }

    /// Returns the number of parts.
    pub fn parts(&self) -> usize {
        self.parts
    }

    /// Returns the size of each part, bytes.
    pub fn part_bytes(&self) -> usize {
        self.part_bytes
    }

    /// Locks a part. Waits while another holds the lock, for at most `patience`. After a process has given up, later
    /// calls of all processes fail at once, until the lock is released. No process may fork while one of its threads
    /// holds a lock, because the child would hold it too.
    ///
    /// # Errors
    /// [`NotLocked::Damaged`] if the previous holder died, or panicked, in the middle of a change; the lock is taken
    /// nevertheless. [`NotLocked::Held`] if it is not released in time.
    ///
    /// # Panics
    /// If this thread holds the lock already, or there is no such part.
    pub fn lock(&self, part: usize, patience: Duration) -> Result<Guard<'_>, NotLocked<'_>> {
        assert!(part < self.parts, "part {part} of {}", self.parts);
        let error = self.acquire(part, patience);
        let is_held = matches!(error, libc::EBUSY | libc::ETIMEDOUT);
        if is_held || self.stuck(part).load(Relaxed) {
            self.stuck(part).store(is_held, Relaxed);
        }
        if is_held {
            return Err(NotLocked::Held);
        }
        assert!(error == 0 || error == libc::EOWNERDEAD, "lock {part}: {}", io::Error::from_raw_os_error(error));
        let guard = Guard { region: self, part, not_send: PhantomData };
        if error == libc::EOWNERDEAD {
            // The word first: a process that dies in between leaves a part that is known to be damaged.
            self.spoil(part);
            // SAFETY: this thread holds the mutex, and it is inconsistent, as EOWNERDEAD says.
            let error = unsafe { libc::pthread_mutex_consistent(self.mutex(part)) };
            assert_eq!(error, 0, "lock {part}: {}", io::Error::from_raw_os_error(error));
        }
        if self.damaged(part).load(Relaxed) == 0 { Ok(guard) } else { Err(NotLocked::Damaged(Damaged { guard })) }
    }

    /// Locks a part, and repairs it if it is damaged. Returns `None` if the lock is not released in time.
    ///
    /// # Panics
    /// Those of [`lock`](Region::lock).
    pub fn lock_mended<'a>(
        &'a self,
        part: usize,
        patience: Duration,
        repair: impl FnOnce(&Guard<'a>),
    ) -> Option<Guard<'a>> {
        self.lock(part, patience).map_or_else(|why| why.mend(repair), Some)
    }

    /// Marks a part as damaged, without its lock: the next holder must repair it.
    pub fn spoil(&self, part: usize) {
        self.damaged(part).store(1, Relaxed);
    }

    /// Takes a mutex, and returns 0 or an error number.
    fn acquire(&self, part: usize, patience: Duration) -> libc::c_int {
        let mutex = self.mutex(part);
        // SAFETY: `mutex` was created by `new`, in this process or another, and stays mapped as long as `self`.
        let error = unsafe { libc::pthread_mutex_trylock(mutex) };
        if error != libc::EBUSY || self.stuck(part).load(Relaxed) {
            return error;
        }
        // The function counts on this clock; one that is set back meanwhile prolongs the wait.
        let until = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default() + patience;
        let until = libc::timespec {
            tv_sec: libc::time_t::try_from(until.as_secs()).unwrap_or(libc::time_t::MAX),
            tv_nsec: libc::c_long::from(until.subsec_nanos()),
        };
        // SAFETY: as above; the time is alive during the call.
        unsafe { libc::pthread_mutex_timedlock(mutex, &raw const until) }
    }

    fn damaged(&self, part: usize) -> &AtomicU64 {
        // SAFETY: the word is inside the mapping and aligned, and all processes access it as an atomic.
        unsafe { AtomicU64::from_ptr(self.part(part).as_ptr().add(STATE).cast()) }
    }

    fn stuck(&self, part: usize) -> &AtomicBool {
        // SAFETY: the byte is inside the mapping, and all processes access it as an atomic; it is 0 or 1.
        unsafe { AtomicBool::from_ptr(self.part(part).as_ptr().add(STUCK).cast()) }
    }

    /// Returns the address of a part.
    fn part(&self, part: usize) -> NonNull<u8> {
        debug_assert!(part < self.parts);
        // SAFETY: `length` counts all parts, and `part` is one of them, so this is inside the mapping.
        unsafe { self.start.add(PREAMBLE + part * stride(self.part_bytes)) }
    }

    fn mutex(&self, part: usize) -> *mut libc::pthread_mutex_t {
        self.part(part).as_ptr().cast()
    }
}

/// Returns the distance between parts, bytes; part sizes have passed `length`, so this does not overflow.
fn stride(part_bytes: usize) -> usize {
    (PART_HEAD + part_bytes).next_multiple_of(STATE)
}

/// Returns the size of the whole, bytes, if there is a part and the whole can be mapped.
fn length(parts: usize, part_bytes: usize) -> Option<usize> {
    let fits = |length: &usize| isize::try_from(*length).is_ok();
    let stride = part_bytes.checked_add(PART_HEAD + STATE).filter(fits).map(|_| stride(part_bytes))?;
    stride.checked_mul(parts).filter(|_| parts > 0)?.checked_add(PREAMBLE).filter(fits)
}

impl AsFd for Region {
    /// The memory, for [`Region::open`].
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.memory.as_fd()
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: `map` created this mapping, guards borrow `self`, and nothing else points into it. If it
        // fails, the mapping stays, which is harmless.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.length) };
    }
}

/// The attributes of the mutexes.
struct Attributes(libc::pthread_mutexattr_t);

impl Attributes {
    fn new() -> io::Result<Attributes> {
        let mut made = MaybeUninit::uninit();
        // SAFETY: pthread_mutexattr_init(3) writes `made`, and reports whether it has; the others take what it wrote.
        // JUSTIFICATION: std has no lock that processes share, nor one that survives its holder.
        unsafe {
            check(libc::pthread_mutexattr_init(made.as_mut_ptr()))?;
            let mut made = Attributes(made.assume_init());
            check(libc::pthread_mutexattr_setpshared(&raw mut made.0, libc::PTHREAD_PROCESS_SHARED))?;
            check(libc::pthread_mutexattr_setrobust(&raw mut made.0, libc::PTHREAD_MUTEX_ROBUST))?;
            // Taking it twice in a thread is an error rather than a deadlock.
            check(libc::pthread_mutexattr_settype(&raw mut made.0, libc::PTHREAD_MUTEX_ERRORCHECK))?;
            Ok(made)
        }
    }
}

impl Drop for Attributes {
    fn drop(&mut self) {
        // SAFETY: `new` has created it.
        unsafe { libc::pthread_mutexattr_destroy(&raw mut self.0) };
    }
}

fn check(error: libc::c_int) -> io::Result<()> {
    if error == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(error)) }
}

/// A part whose lock is held until this is dropped. Its bytes are accessed by copying.
#[derive(Debug)]
pub struct Guard<'a> {
    region: &'a Region,
    part: usize,
    /// The thread that took a mutex must release it.
    not_send: PhantomData<*mut u8>,
}

/// The bytes are not inside the part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outside;

impl fmt::Display for Outside {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("these bytes are not all inside the part of shared memory")
    }
}

impl std::error::Error for Outside {}

impl Guard<'_> {
    /// Copies bytes out, from `at` on.
    ///
    /// # Errors
    /// When they are not all inside the part; then none is copied. The same holds for the other three.
    pub fn read(&self, at: usize, into: &mut [u8]) -> Result<(), Outside> {
        let from = self.inside(at, into.len())?;
        // SAFETY: `from` has `into.len()` readable bytes of the mapping, which no reference in this process overlaps,
        // and which nothing else writes while the lock is held.
        unsafe { std::ptr::copy_nonoverlapping(from, into.as_mut_ptr(), into.len()) };
        Ok(())
    }

    /// Copies bytes in, from `at` on.
    ///
    /// # Errors
    /// Those of [`read`](Guard::read).
    pub fn write(&self, at: usize, bytes: &[u8]) -> Result<(), Outside> {
        let to = self.inside(at, bytes.len())?;
        // SAFETY: as for `read`; a shared `self` is sound, since no references
        // are handed out and no other thread has it.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
        Ok(())
    }

    /// Fills `length` bytes from `at` on with zeros.
    ///
    /// # Errors
    /// Those of [`read`](Guard::read).
    pub fn zero(&self, at: usize, length: usize) -> Result<(), Outside> {
        let to = self.inside(at, length)?;
        // SAFETY: as for `write`.
        unsafe { std::ptr::write_bytes(to, 0, length) };
        Ok(())
    }

    /// Returns whether `at` is the position of these bytes.
    ///
    /// # Errors
    /// Those of [`read`](Guard::read).
    pub fn holds(&self, at: usize, bytes: &[u8]) -> Result<bool, Outside> {
        let from = self.inside(at, bytes.len())?;
        // SAFETY: as for `read`; memcmp(3) reads this many bytes of both.
        Ok(unsafe { libc::memcmp(from.cast(), bytes.as_ptr().cast(), bytes.len()) } == 0)
    }

    /// Returns the word at `at`, which need not be aligned.
    ///
    /// # Errors
    /// Those of [`read`](Guard::read).
    pub fn word(&self, at: usize) -> Result<u64, Outside> {
        let mut word = [0; 8];
        self.read(at, &mut word)?;
        Ok(u64::from_ne_bytes(word))
    }

    /// Sets the word at `at`.
    ///
    /// # Errors
    /// Those of [`read`](Guard::read).
    pub fn set_word(&self, at: usize, word: u64) -> Result<(), Outside> {
        self.write(at, &word.to_ne_bytes())
    }

    fn inside(&self, at: usize, length: usize) -> Result<*mut u8, Outside> {
        let end = at.checked_add(length).ok_or(Outside)?;
        if end > self.region.part_bytes {
            return Err(Outside);
        }
        // SAFETY: `at <= end <= part_bytes`, so this is inside the part, or its end.
        Ok(unsafe { self.region.part(self.part).add(PART_HEAD + at) }.as_ptr())
    }
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.region.spoil(self.part);
        }
        // SAFETY: this thread took the mutex in `lock`, and a guard cannot be sent to another.
        let error = unsafe { libc::pthread_mutex_unlock(self.region.mutex(self.part)) };
        debug_assert_eq!(error, 0, "unlocking a mutex that is held");
    }
}

/// Why a part cannot be used at once.
#[derive(Debug)]
pub enum NotLocked<'a> {
    /// A process keeps its lock, probably because it is stopped.
    Held,
    /// It is locked, but its last holder died in the middle of a change.
    Damaged(Damaged<'a>),
}

impl<'a> NotLocked<'a> {
    /// Repairs a damaged part, as [`Damaged::mend`] does.
    pub fn mend(self, repair: impl FnOnce(&Guard<'a>)) -> Option<Guard<'a>> {
        match self {
            NotLocked::Held => None,
            NotLocked::Damaged(damaged) => Some(damaged.mend(repair)),
        }
    }
}

/// A locked part that a process left in the middle of a change.
#[derive(Debug)]
pub struct Damaged<'a> {
    guard: Guard<'a>,
}

impl<'a> Damaged<'a> {
    /// Repairs it. The part stays damaged until `repair` has returned, even if this process dies meanwhile. If this is
    /// dropped instead, the part stays damaged.
    pub fn mend(self, repair: impl FnOnce(&Guard<'a>)) -> Guard<'a> {
        repair(&self.guard);
        self.guard.region.damaged(self.guard.part).store(0, Relaxed);
        self.guard
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::panic::{AssertUnwindSafe, catch_unwind};

    /// Long enough for any machine.
    const PATIENCE: Duration = Duration::from_secs(60);

    #[test]
    fn written_bytes_appear_in_every_mapping() {
        let region = Region::new(3, 100).expect("memory");
        let other = Region::open(region.as_fd().try_clone_to_owned().expect("descriptor")).expect("the same memory");
        assert_eq!((other.parts(), other.part_bytes()), (3, 100));
        for part in 0..3 {
            let guard = region.lock(part, PATIENCE).expect("sound");
            assert_eq!(guard.word(92), Ok(0), "new memory is zero");
            guard.write(0, &[part as u8 + 1; 100]).expect("inside");
            guard.set_word(3, 77).expect("inside");
        }
        for part in 0..3 {
            let guard = other.lock(part, PATIENCE).expect("sound");
            let mut bytes = [0; 100];
            guard.read(0, &mut bytes).expect("inside");
            let mut expected = [part as u8 + 1; 100];
            expected[3..11].copy_from_slice(&77u64.to_ne_bytes());
            assert_eq!(bytes, expected);
            assert_eq!((guard.word(3), guard.holds(1, &expected[1..])), (Ok(77), Ok(true)));
            assert_eq!(guard.holds(1, &expected[..99]), Ok(false));
            guard.zero(1, 99).expect("inside");
            assert_eq!((guard.word(0).map(|word| word.to_ne_bytes()[0]), guard.word(92)), (Ok(part as u8 + 1), Ok(0)));
        }
    }

    #[test]
    fn out_of_bounds_access_is_rejected() {
        let region = Region::new(2, 100).expect("memory");
        let guard = region.lock(0, PATIENCE).expect("sound");
        for at in [93, 100, 101, usize::MAX - 7, usize::MAX] {
            assert_eq!(guard.word(at), Err(Outside), "{at}");
            assert_eq!(guard.set_word(at, 1), Err(Outside), "{at}");
            assert_eq!(guard.holds(at, &[0; 8]), Err(Outside), "{at}");
            assert_eq!(guard.zero(at, 8), Err(Outside), "{at}");
        }
        assert_eq!(guard.read(100, &mut []), Ok(()));
    }

    #[test]
    fn invalid_sizes_are_rejected() {
        for (parts, bytes) in [(0, 1), (1, usize::MAX), (usize::MAX, 1), (2, usize::MAX / 2), (1, usize::MAX - 127)] {
            let error = Region::new(parts, bytes).expect_err("too much, or none");
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "{parts} x {bytes}");
        }
        let foreign = memfd_create(c"test", MemfdFlags::CLOEXEC).expect("memory");
        assert_eq!(Region::open(foreign).expect_err("empty").kind(), io::ErrorKind::InvalidData);
    }

    #[test]
    fn lock_is_exclusive() {
        let region = Region::new(1, 8).expect("memory");
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..10_000 {
                        let guard = region.lock(0, PATIENCE).expect("sound");
                        let count = guard.word(0).expect("inside");
                        guard.set_word(0, count + 1).expect("inside");
                    }
                });
            }
        });
        assert_eq!(region.lock(0, PATIENCE).expect("sound").word(0), Ok(40_000));
    }

    /// To the kernel a thread that ends with a robust mutex is the same as a process that does.
    #[test]
    fn damaged_part_stays_damaged_until_repaired() {
        let region = Region::new(2, 8).expect("memory");
        let die_inside = || {
            thread::scope(|scope| {
                scope.spawn(|| std::mem::forget(region.lock(0, PATIENCE)));
            });
        };
        die_inside();
        drop(region.lock(0, PATIENCE).expect_err("its holder died"));
        drop(region.lock(0, PATIENCE).expect_err("not repaired"));
        drop(region.lock(1, PATIENCE).expect("the other is sound"));
        die_inside();
        let damaged = region.lock(0, PATIENCE).expect_err("its holder died again");
        drop(damaged.mend(|guard| guard.set_word(0, 5).expect("inside")));
        assert_eq!(region.lock(0, PATIENCE).expect("repaired").word(0), Ok(5));
    }

    #[test]
    fn exit_of_forked_lock_holder_is_detected() {
        let region = Region::new(1, 8).expect("memory");
        // SAFETY: the child is a copy of only this thread, so it must take no lock of the C library or of std, and does
        // not: it locks a mutex of its own mapping, writes a word and exits.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let guard = region.lock(0, PATIENCE);
            let written = guard.as_ref().is_ok_and(|guard| guard.set_word(0, 7).is_ok());
            std::mem::forget(guard);
            // SAFETY: _exit(2) ends the process at once, without running anything else.
            unsafe { libc::_exit(i32::from(!written)) };
        }
        let mut status = -1;
        // SAFETY: waitpid(2) writes the status to the place given.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0, "the child failed to take the lock");
        let damaged = region.lock(0, PATIENCE).expect_err("its holder died");
        assert_eq!(damaged.mend(|_| ()).map(|guard| guard.word(0)), Some(Ok(7)));
    }

    #[test]
    fn only_first_waits_for_holder_that_stops() {
        let region = Region::new(2, 8).expect("memory");
        let (held, release) = (std::sync::Barrier::new(2), std::sync::Barrier::new(2));
        thread::scope(|scope| {
            scope.spawn(|| {
                let _guard = region.lock(0, PATIENCE).expect("sound");
                held.wait();
                release.wait();
            });
            held.wait();
            assert!(matches!(region.lock(0, Duration::from_millis(1)), Err(NotLocked::Held)));
            // It would wait for a minute.
            let start = std::time::Instant::now();
            assert!(matches!(region.lock(0, PATIENCE), Err(NotLocked::Held)));
            assert!(start.elapsed() < PATIENCE / 2);
            region.lock(1, PATIENCE).expect("the other is free");
            region.spoil(0);
            release.wait();
        });
        region.lock(0, PATIENCE).expect_err("spoiled meanwhile").mend(|_| ()).expect("locked");
        assert!(!region.stuck(0).load(Relaxed), "the next may wait again");
        region.lock(0, PATIENCE).expect("repaired");
    }

    #[test]
    fn panic_marks_locked_part_as_damaged() {
        let region = Region::new(1, 8).expect("memory");
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            let _guard = region.lock(0, PATIENCE).expect("sound");
            panic!("in the middle of a change");
        }));
        assert!(panicked.is_err());
        let damaged = region.lock(0, PATIENCE).expect_err("left in the middle of a change");
        // A repair that panics repairs nothing.
        assert!(catch_unwind(AssertUnwindSafe(|| damaged.mend(|_| panic!("again")))).is_err());
        drop(region.lock(0, PATIENCE).expect_err("still").mend(|_| ()));
        region.lock(0, PATIENCE).expect("repaired");
    }

    #[test]
    #[should_panic(expected = "deadlock")]
    fn recursive_lock_panics() {
        let region = Region::new(1, 8).expect("memory");
        let _first = region.lock(0, PATIENCE);
        let _second = region.lock(0, PATIENCE);
    }
}
