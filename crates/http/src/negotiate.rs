//! To come.

/// A content coding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Coding {
    /// None.
    Identity,
    /// gzip
    Gzip,
    /// zstd
    Zstd,
    /// br
    Brotli,
}
