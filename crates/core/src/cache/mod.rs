//! The caches: everything that a request would otherwise make the server work out twice.

use core::time::Duration;

use amped_units::Bytes;

/// What the caches may hold, and for how long an entry is believed.
#[derive(Clone, Debug, PartialEq)]
pub struct Budgets {
    /// Names whose translation is kept, negative ones included. About 300 bytes each.
    pub path_entries: usize,
    /// Bytes of ready header blocks. One is 250 to 400 bytes, and each representation may have two (200 and 304).
    pub head_bytes: Bytes,
    /// Bytes of file content in memory.
    pub content_bytes: Bytes,
    /// Files up to this size are kept in memory whole; of larger ones a descriptor is kept and the page cache serves.
    /// One `send` from memory beats sendfile below 32 to 64 KiB (web-server notes of the project: 5.0 against 5.5
    /// microseconds at 16 KiB, 8.7 against 8.5 at 64 KiB).
    pub content_file_max: Bytes,
    /// Most descriptors of large files that are kept open.
    pub descriptors: usize,
    /// An entry is used this long before the file system is asked again.
    pub revalidate: Duration,
    /// While that question waits for the disk, the entry may still be used up to this age: a busy disk must not delay
    /// what is in memory.
    pub stale_max: Duration,
}

impl Default for Budgets {
    fn default() -> Budgets {
        Budgets {
            path_entries: 8192,
            head_bytes: Bytes::mib(4),
            content_bytes: Bytes::mib(64),
            content_file_max: Bytes::kib(32),
            descriptors: 1024,
            revalidate: Duration::from_secs(1),
            stale_max: Duration::from_secs(10),
        }
    }
}
