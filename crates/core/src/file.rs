//! The core's view of a file: its identity and state, and content that responses can borrow.

use alloc::boxed::Box;

use serde::{Deserialize, Serialize};

use crate::site::EtagForm;

/// A file in one state. Two equal versions have the same bytes, unless `is_changing`: every change updates ctime, with
/// the resolution of the file system, and the disk side waits until that interval has passed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct FileVersion {
    /// Device number.
    pub device: u64,
    /// Inode number.
    pub inode: u64,
    /// Size in bytes.
    pub size: u64,
    /// Time of the last modification, nanoseconds since 1970.
    pub mtime_ns: i64,
    /// Time of the last change of content or inode, nanoseconds since 1970. Users cannot set it.
    pub ctime_ns: i64,
    /// Whether the file kept changing while it was read, so that other bytes may have the same state.
    pub is_changing: bool,
    /// Whether this is the decompressed form of the file in this state. Then `size` is that of the decompressed form;
    /// all other fields are the compressed file's.
    pub is_unpacked: bool,
}

/// Metadata of an object in an object store, which take precedence over those derived from the name and state of its file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ObjectHead {
    /// Its entity tag, with quotes.
    pub etag: Option<Box<str>>,
    /// Content-Type.
    pub media_type: Option<Box<str>>,
    /// Content-Encoding: the object is sent with it to every client, as the store itself does.
    pub encoding: Option<Box<str>>,
    /// Cache-Control.
    pub cache_control: Option<Box<str>>,
}

/// Why a file that exists only in compressed form cannot be sent to a client that does not accept its coding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum NotUnpacked {
    /// Its decompressed size exceeds the configured limit.
    TooLarge,
    /// It is truncated or corrupt.
    Damaged,
}

impl FileVersion {
    /// The decompressed form of this version, with a size of `size` bytes.
    #[must_use]
    pub fn unpacked(self, size: u64) -> FileVersion {
        FileVersion { size, is_unpacked: true, ..self }
    }

    /// Whether this is the decompressed form of `packed`.
    pub fn is_unpacked_of(&self, packed: &FileVersion) -> bool {
        *self == packed.unpacked(self.size)
    }

    /// Last-Modified, seconds since 1970. RFC 9110, 8.8.2.1: rounded down, so that the value does not change later, and
    /// never later than the Date of the response. A file may carry any mtime, but ctime is when it was set.
    pub fn modified_seconds(&self) -> i64 {
        self.mtime_ns.min(self.ctime_ns).div_euclid(1_000_000_000)
    }

    /// Builds the entity tag with its quotes (RFC 9110, 8.8.3). Each coding of a file has its own, because codings are
    /// different representations (8.8.3.3). The tag is strong unless the file was changing, because a strong tag must
    /// not identify two byte sequences (8.8.1).
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

/// FNV-1a over the words, finalised as in SplitMix64: the same on every run and every machine.
pub(crate) fn digest(words: &[u64]) -> u64 {
    let bytes = words.iter().flat_map(|word| word.to_le_bytes());
    let hash =
        bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
    let hash = (hash ^ (hash >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let hash = (hash ^ (hash >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    hash ^ (hash >> 31)
}

/// A digest of these bytes, the same on every run and every machine. Each step is invertible, so two texts of equal
/// length that differ in a single word never collide.
pub(crate) fn digest_of(bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks();
    let step = |hash: u64, word: u64| (hash ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
    let hash = words.iter().fold(bytes.len() as u64, |hash, word| step(hash, u64::from_le_bytes(*word)));
    let mut last = [0; 8];
    last[..rest.len()].copy_from_slice(rest);
    digest(&[step(hash, u64::from_le_bytes(last))])
}

/// The operations that the core needs on an opened file, which is otherwise opaque.
pub trait FileHandle {
    /// Whether the file's bytes still match this version. A mapped file reflects the page cache, so an in-place edit
    /// changes files that were opened before it.
    fn has_bytes_of(&self, version: &FileVersion) -> bool;
}

/// The bytes of a file in one state, which responses borrow. The descriptor stays open while any reference exists, so
/// eviction from a cache never disturbs a response in progress.
#[derive(Debug)]
pub struct Content<F> {
    /// The version of the bytes.
    pub version: FileVersion,
    /// Where the bytes are.
    pub store: Stored<F>,
}

/// Where content is stored. The serialised form contains the kind only; the content is sent separately.
#[derive(Debug, Serialize, Deserialize)]
#[serde(bound(serialize = "", deserialize = "F: Default"))]
pub enum Stored<F> {
    /// In memory, complete: `len() == version.size`.
    Memory(#[serde(skip)] Box<[u8]>),
    /// In an opened file, which the disk side can send.
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
