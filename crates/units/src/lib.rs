//! Time, amounts of bytes and bandwidths that carry and print their unit.
//!
//! Pure: the owner of the clock passes each `Time` in, so a test can let ten minutes pass in a millisecond. All types
//! are plain integers inside, cheap to copy and to compare.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod bytes;
mod duration;
mod number;
mod rate;
pub mod text;
mod time;
mod written;

pub use bytes::Bytes;
pub use duration::parse_duration;
pub use number::ParseError;
pub use rate::BitsPerSecond;
pub use text::{Form, parse_text};
pub use time::Time;
pub use written::{Count, Positive, PositiveBytes, PositiveSeconds, Seconds, TimeFrom};
