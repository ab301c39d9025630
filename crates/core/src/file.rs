//! Files as the core sees them: which file and which state of it, and content that can be lent to a reply.

use alloc::boxed::Box;

use serde::{Deserialize, Serialize};

use crate::site::EtagForm;

/// A file in one state. Two equal versions have the same bytes, unless they were changing: whatever changes a file changes
/// its ctime, as finely as the file system tells times apart, and the disk side waits until that time is past.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct FileVersion {
    /// Number of the device that holds it.
    pub device: u64,
    /// Its inode number there.
    pub inode: u64,
    /// Bytes.
    pub size: u64,
    /// Time of the last modification, nanoseconds since 1970.
    pub mtime_ns: i64,
    /// Time of the last change, of content or of inode, nanoseconds since 1970. No user can set it.
    pub ctime_ns: i64,
    /// Whether the file kept changing while it was looked at. Then other bytes may have the same state.
    pub is_changing: bool,
    /// Whether the bytes are those that a compressed file in this state unpacks to. Then `size` is theirs, all else the
    /// compressed file's.
    pub is_unpacked: bool,
}

/// Why a file that is there compressed alone cannot be sent to clients that do not take its coding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum NotUnpacked {
    /// It unpacks to more bytes than the configuration allows.
    TooLarge,
    /// It is cut off, or its bytes are not what its coding says.
    Damaged,
}

impl FileVersion {
    /// What a compressed file in this state unpacks to, if that is so many bytes.
    #[must_use]
    pub fn unpacked(self, size: u64) -> FileVersion {
        FileVersion { size, is_unpacked: true, ..self }
    }

    /// Whether these are the bytes that a compressed file in this state unpacks to.
    pub fn is_unpacked_of(&self, packed: &FileVersion) -> bool {
        *self == packed.unpacked(self.size)
    }

    /// Last-Modified, seconds since 1970. RFC 9110, 8.8.2.1: the time as nobody will see it later changed, so rounded down;
    /// and never later than the reply's Date. A file may carry any mtime, but its ctime is when that was put there.
    pub fn modified_seconds(&self) -> i64 {
        self.mtime_ns.min(self.ctime_ns).div_euclid(1_000_000_000)
    }

    /// An entity tag with its quotes (RFC 9110, 8.8.3): a different one for each coding of the same file, since these are
    /// different representations (8.8.3.3). It is strong unless the file was changing, for a strong one must not name two
    /// sequences of bytes (8.8.1).
    pub fn etag(&self, form: EtagForm, coding_suffix: &str) -> Box<str> {
        let suffix = coding_suffix.trim_start_matches('.');
        let dash = if suffix.is_empty() { "" } else { "-" };
        let weak = if self.is_changing { "W/" } else { "" };
        match form {
            EtagForm::Portable => alloc::format!("{weak}\"{:x}-{:x}{dash}{suffix}\"", self.size, self.mtime_ns),
            EtagForm::Full => {
                let state = [self.device, self.inode, self.mtime_ns as u64, self.ctime_ns as u64];
                alloc::format!("{weak}\"{:x}-{:016x}{dash}{suffix}\"", self.size, digest(&state))
            }
        }
        .into_boxed_str()
    }
}

/// FNV-1a over the words' bytes, finished as in SplitMix64: the same on every run and every machine.
pub(crate) fn digest(words: &[u64]) -> u64 {
    let bytes = words.iter().flat_map(|word| word.to_le_bytes());
    let hash =
        bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
    let hash = (hash ^ (hash >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let hash = (hash ^ (hash >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    hash ^ (hash >> 31)
}

/// A number that follows from these bytes, the same on every run and every machine. Each step can be undone, so that two texts
/// of one length which differ in a single word never have the same.
pub(crate) fn digest_of(bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks();
    let step = |hash: u64, word: u64| (hash ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
    let hash = words.iter().fold(bytes.len() as u64, |hash, word| step(hash, u64::from_le_bytes(*word)));
    let mut last = [0; 8];
    last[..rest.len()].copy_from_slice(rest);
    digest(&[step(hash, u64::from_le_bytes(last))])
}

/// What the core asks of an opened file, into which it never looks.
pub trait FileHandle {
    /// Whether the file's bytes are still those of this version. A file in memory is the page cache's, so an edit in place
    /// changes what was opened before it.
    fn has_bytes_of(&self, version: &FileVersion) -> bool;
}

/// The bytes of a file in one state, to be lent to replies. Lives, and keeps its descriptor open, as long as anybody
/// holds it: eviction from a cache never disturbs a reply under way.
#[derive(Debug)]
pub struct Content<F> {
    /// The state whose bytes these are.
    pub version: FileVersion,
    /// Where they are.
    pub store: Stored<F>,
}

/// Where content lies. Serialized, it says where, and the content goes beside it.
#[derive(Debug, Serialize, Deserialize)]
#[serde(bound(serialize = "", deserialize = "F: Default"))]
pub enum Stored<F> {
    /// In memory, all of it: `len() == version.size`.
    Memory(#[serde(skip)] Box<[u8]>),
    /// In an opened file, which the disk side knows how to send.
    File(#[serde(skip)] F),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn etag_changes_with_every_change() {
        let base = FileVersion {
            device: 1,
            inode: 2,
            size: 3,
            mtime_ns: 4,
            ctime_ns: 5,
            is_changing: false,
            is_unpacked: false,
        };
        let tag = |version: FileVersion| version.etag(EtagForm::Full, "");
        assert_eq!(tag(base), tag(base));
        let others = [
            FileVersion { inode: 3, ..base },
            FileVersion { size: 4, ..base },
            FileVersion { mtime_ns: 5, ..base },
            FileVersion { ctime_ns: 6, ..base },
        ];
        for other in others {
            assert_ne!(tag(base), tag(other), "{other:?}");
        }
        assert_ne!(tag(base), base.etag(EtagForm::Full, ".gz"));
        let moved = FileVersion { inode: 9, device: 9, ctime_ns: 9, ..base };
        assert_eq!(base.etag(EtagForm::Portable, ".br"), moved.etag(EtagForm::Portable, ".br"));
        assert_eq!(&*base.etag(EtagForm::Portable, ".br"), "\"3-4-br\"");
        let changing = FileVersion { is_changing: true, ..base };
        assert_eq!(&*changing.etag(EtagForm::Portable, ".br"), "W/\"3-4-br\"");
        assert_eq!(*changing.etag(EtagForm::Full, ""), *alloc::format!("W/{}", base.etag(EtagForm::Full, "")));
    }

    #[test]
    fn digest_changes_with_every_byte() {
        let text: alloc::vec::Vec<u8> = (0..100).collect();
        let mut seen = std::collections::HashSet::new();
        for length in 0..text.len() {
            assert!(seen.insert(digest_of(&text[..length])), "of {length}");
            for at in 0..length {
                let mut other = text[..length].to_vec();
                other[at] ^= 0x80;
                assert!(seen.insert(digest_of(&other)), "at {at} of {length}");
            }
        }
        assert_eq!(digest_of(&text), digest_of(&text.clone()));
    }

    #[test]
    fn future_modification_time_is_clamped() {
        let check = |mtime_ns, ctime_ns, expected| {
            let version = FileVersion {
                device: 1,
                inode: 2,
                size: 3,
                mtime_ns,
                ctime_ns,
                is_changing: false,
                is_unpacked: false,
            };
            assert_eq!(version.modified_seconds(), expected);
        };
        check(5_999_999_999, 9_000_000_000, 5);
        check(i64::MAX, 9_000_000_001, 9);
        check(-1, 9_000_000_000, -1);
    }
}
