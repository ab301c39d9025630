//! Which windows of a large object are there, as far as this process knows.
//!
//! Threads share it, and a loop asks it before it sends a byte: a window is either there, complete and verified in this run of the server,
//! or a helper fills it first. Whether another process has filled it, or one before a restart, is in its slot (`layout`), at which the
//! helper looks; so no window needs to be looked up beforehand.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

use super::layout::Layout;
use super::mirror::Name;

/// A large object of a store, in one version.
#[derive(Debug)]
pub struct Windows {
    /// The name of its files.
    pub name: Name,
    /// The bucket.
    pub bucket: Box<str>,
    /// The key.
    pub key: Box<[u8]>,
    /// The entity tag of the version, which is a strong one.
    pub etag: Box<str>,
    /// The layout of its file.
    pub layout: Layout,
    /// The times that identify its file, whose own change with every window: Last-Modified, and when it was created,
    /// nanoseconds since 1970.
    pub times_ns: (i64, i64),
    present: Box<[AtomicBool]>,
    is_replaced: AtomicBool,
}

impl Windows {
    /// Creates the windows of an object, of which none is known to be there.
    pub fn new(name: Name, (bucket, key): (&str, &[u8]), etag: &str, layout: Layout, times_ns: (i64, i64)) -> Windows {
        let present = (0..layout.windows()).map(|_| AtomicBool::new(false)).collect();
        let is_replaced = AtomicBool::new(false);
        Windows {
            name,
            bucket: bucket.into(),
            key: key.into(),
            etag: etag.into(),
            layout,
            times_ns,
            present,
            is_replaced,
        }
    }

    /// Returns the number of the window that has this byte.
    pub fn at(&self, offset: u64) -> u64 {
        offset / self.layout.window_bytes
    }

    /// Returns whether a window is there.
    pub fn is_present(&self, window: u64) -> bool {
        // Acquire, paired with the release of `note_present`: a thread that sees the flag reads the file after the window was written.
        usize::try_from(window).ok().and_then(|at| self.present.get(at)).is_some_and(|one| one.load(Ordering::Acquire))
    }

    /// Notes that a window is there.
    pub fn note_present(&self, window: u64) {
        let one = usize::try_from(window).ok().and_then(|at| self.present.get(at));
        one.into_iter().for_each(|one| one.store(true, Ordering::Release));
    }

    /// Returns the first byte of the next window after the one that has the byte at `range.start`, if the range extends to it and it
    /// is missing.
    pub fn missing_after(&self, range: &Range<u64>) -> Option<u64> {
        let next = self.at(range.start) + 1;
        let start = next.saturating_mul(self.layout.window_bytes);
        (start < range.end && !self.is_present(next) && !self.is_replaced()).then_some(start)
    }

    /// Returns whether the store has another version, so that no window will come any more.
    pub fn is_replaced(&self) -> bool {
        self.is_replaced.load(Ordering::Relaxed)
    }

    /// Notes that the store has another version.
    pub fn note_replaced(&self) {
        self.is_replaced.store(true, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn next_missing_window_is_within_range() {
        let layout = Layout { size: 2500, window_bytes: 1000 };
        let name = Name::of("http://store", "bucket", b"key");
        let windows = Windows::new(name, ("bucket", b"key"), "\"1\"", layout, (0, 0));
        let check = |range: Range<u64>, expected| assert_eq!(windows.missing_after(&range), expected, "{range:?}");
        check(0..2500, Some(1000));
        check(999..1001, Some(1000));
        check(0..1000, None);
        check(1500..2500, Some(2000));
        check(2000..2500, None);
        windows.note_present(1);
        assert!(windows.is_present(1) && !windows.is_present(0) && !windows.is_present(3));
        check(0..2500, None);
        check(1000..2500, Some(2000));
        windows.note_replaced();
        check(1000..2500, None);
    }
}
