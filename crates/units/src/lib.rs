//! Time and amounts of bytes that carry and print their unit.
//!
//! Pure: a `Time` is handed in by whoever owns a clock, so that a test can let ten minutes pass in a
//! millisecond. Both types are plain integers inside, cheap to copy and to compare.
#![no_std]
#![forbid(unsafe_code)]

mod bytes;
mod time;

pub use bytes::{Bytes, ParseBytesError};
pub use time::Time;
