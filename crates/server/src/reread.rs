//! Detects that files have changed since they were read: certificates with their keys, OCSP responses, CRLs, ticket secrets.
//!
//! The main thread checks every few seconds, so a renewal needs no signal. Attributes are compared, not contents. Files
//! are read once they have settled: one may still be written, and a key follows its certificate a moment later.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// When changed files are read again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reread {
    /// Once they have not changed between two calls, because files that belong together are written one after the other.
    WhenSettled,
    /// At once.
    Now,
}

/// Attributes that change when a file is replaced or written: device, inode, size, times of modification and of change.
/// `None` for a missing file.
type Attributes = Option<(u64, u64, u64, [i64; 4])>;

/// The state of some files when they were read.
#[derive(Clone, Debug)]
pub struct FileStates<const N: usize> {
    read: [Attributes; N],
    /// Their state at the last check, if it has changed since.
    changed: Option<[Attributes; N]>,
}

impl<const N: usize> FileStates<N> {
    /// Notes the state of these files. Must be called before they are read, so that a change during the read is noticed
    /// later.
    pub fn new(paths: [&Path; N]) -> FileStates<N> {
        FileStates { read: paths.map(attributes), changed: None }
    }

    /// Returns whether the files must be read again. From then on their present state counts as read, so that a file that
    /// cannot be used is reported once.
    pub fn have_changed(&mut self, paths: [&Path; N], when: Reread) -> bool {
        let now = paths.map(attributes);
        if now == self.read {
            self.changed = None;
            return false;
        }
        if self.changed.replace(now) != Some(now) && when == Reread::WhenSettled {
            return false;
        }
        (self.read, self.changed) = (now, None);
        true
    }

    /// Returns whether the files have changed, but were not read again because they had not settled.
    pub fn are_changing(&self) -> bool {
        self.changed.is_some()
    }
}

fn attributes(path: &Path) -> Attributes {
    let file = fs::metadata(path).ok()?;
    let times = [file.mtime(), file.mtime_nsec(), file.ctime(), file.ctime_nsec()];
    Some((file.dev(), file.ino(), file.size(), times))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changed_files_are_read_once_after_they_settled() {
        let folder = tempfile::tempdir().unwrap();
        let [one, other] = ["one", "other"].map(|name| folder.path().join(name));
        let paths = || [one.as_path(), other.as_path()];
        let mut states = FileStates::new(paths());
        assert!(!states.have_changed(paths(), Reread::Now));
        fs::write(&one, "1").unwrap();
        assert!(!states.have_changed(paths(), Reread::WhenSettled));
        fs::write(&other, "22").unwrap();
        assert!(!states.have_changed(paths(), Reread::WhenSettled));
        assert!(states.have_changed(paths(), Reread::WhenSettled));
        assert!(!states.have_changed(paths(), Reread::WhenSettled));
        fs::remove_file(&one).unwrap();
        assert!(states.have_changed(paths(), Reread::Now));
        assert!(!states.have_changed(paths(), Reread::Now));
    }
}
