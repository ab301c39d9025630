//! Compression on the fly: which files are compressed when a client accepts it, and the result.
//!
//! A precompressed sibling is better, because it is made once, and may be made slowly. Without one, the first client gets the
//! file as it is, nobody waits, and the driver has a thread of low priority compress the content that was sent to it
//! ([`CompressWork`]). The result ([`Encoded`]) is cached by the state of the file and the coding (`cache/content`).
//!
//! Responses of applications are compressed only if their rule asks for it, while they arrive ([`StreamWork`]): the length of a
//! compressed page that contains both a secret and something that an attacker chooses reveals the secret (BREACH, 2013).

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;

use amped_http::negotiate::Coding;

use crate::file::{Content, FileVersion, Stored};
use crate::resource::Representation;

/// Minimum size of a file that is compressed, bytes: a smaller one fits into one packet anyway.
pub const SIZE_MIN: u64 = 1024;

/// Maximum size of a file that is compressed, bytes. It takes about 0.1 s of processor time.
pub const SIZE_MAX: u64 = 4 << 20;

/// Whether compression to this size is worth decompressing it: it saves at least a tenth.
pub fn is_worth_it(size: u64, compressed: u64) -> bool {
    compressed <= size - size / 10
}

/// A file to compress.
#[derive(Debug)]
pub struct CompressWork<F> {
    /// The file, in the state in which it was sent.
    pub content: Arc<Content<F>>,
    /// The coding.
    pub coding: Coding,
}

/// The result of compressing a file.
#[derive(Debug)]
pub enum Compressed<F> {
    /// The compressed file.
    Encoded(Encoded<F>),
    /// It does not become much smaller: see [`is_worth_it`].
    NotWorthIt,
    /// The file has changed, or cannot be read.
    Failed,
}

/// A compressed file.
#[derive(Debug)]
pub struct Encoded<F> {
    /// How responses present it.
    pub representation: Representation,
    /// Its bytes, in memory.
    pub content: Arc<Content<F>>,
}

impl<F> Encoded<F> {
    /// Wraps the compressed form of a file in this state. Computes a digest of all bytes, for the entity tag.
    pub fn new(version: &FileVersion, coding: Coding, bytes: Box<[u8]>) -> Encoded<F> {
        let representation = Representation::encoded(version, coding, &bytes);
        let content = Content { version: representation.version, store: Stored::Memory(bytes) };
        Encoded { representation, content: Arc::new(content) }
    }
}

/// Maximum responses of applications that a loop compresses at a time; each takes up to 2 MiB. Further ones are sent as they are.
pub const STREAMS_MAX: usize = 64;

/// The body of a response to compress while it arrives.
#[derive(Debug)]
pub struct StreamWork {
    /// The coding.
    pub coding: Coding,
    /// The first bytes of the body, which have arrived with the head.
    pub first: Vec<u8>,
    /// These are all.
    pub is_last: bool,
    /// The length of the body, if the application has given it.
    pub length: Option<u64>,
    /// Maximum length of the body.
    pub max_bytes: u64,
    /// One of [`STREAMS_MAX`], until dropped.
    pub slot: Arc<()>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tenth_must_be_saved() {
        let check =
            |size, compressed, expected| assert_eq!(is_worth_it(size, compressed), expected, "{size} {compressed}");
        check(1000, 900, true);
        check(1000, 901, false);
        check(1024, 2000, false);
        check(0, 0, true);
    }

    #[test]
    fn tag_identifies_compressed_bytes() {
        let version = FileVersion { inode: 7, size: 5000, mtime_ns: 3, ..FileVersion::default() };
        let of = |version: &FileVersion, coding, bytes: &[u8]| Encoded::<()>::new(version, coding, bytes.into());
        let tag = |version, coding, bytes| of(version, coding, bytes).representation.etag;
        let one = tag(&version, Coding::Gzip, b"abc");
        assert!(one.starts_with("\"3-") && one.ends_with("-gz\""), "{one}");
        assert_ne!(one, tag(&version, Coding::Zstd, b"abc"));
        assert_ne!(one, tag(&version, Coding::Gzip, b"abd"));
        // The same bytes on another host have the same tag.
        assert_eq!(one, tag(&FileVersion { inode: 8, ..version }, Coding::Gzip, b"abc"));
        let encoded = of(&version, Coding::Gzip, b"abc");
        assert_eq!((encoded.content.version.size, encoded.representation.version.mtime_ns), (3, 3));
    }
}
