//! Time, amounts of bytes and bandwidths that carry and print their unit.
//!
//! Pure: a `Time` is handed in by whoever owns a clock, so that a test can let ten minutes pass in a
//! millisecond. All types are plain integers inside, cheap to copy and to compare.
#![no_std]
#![forbid(unsafe_code)]

mod bytes;
mod duration;
mod rate;
mod time;

pub use bytes::{Bytes, ParseBytesError};
pub use duration::{ParseDurationError, parse_duration};
pub use rate::{BitsPerSecond, ParseBitsPerSecondError};
pub use time::Time;

/// How often the largest unit that leaves a whole number is in `amount`, and that unit, so that what is printed can be read
/// back without loss. `units` begin with the largest and end with one of 1.
fn whole(amount: u64, units: &[(&'static str, u64)]) -> (u64, &'static str) {
    let fits = |&&(_, scale): &&(&str, u64)| scale == 1 || amount >= scale && amount.is_multiple_of(scale);
    let (unit, scale) = units.iter().find(fits).copied().unwrap_or(("", 1));
    (amount / scale, unit)
}

/// `number`, which may have a decimal point, times `scale`; `None` where that is no number, does not fit, or is no whole
/// one. In integers, so that `1.1` is not a little less.
fn decimal(number: &str, scale: u64) -> Option<u64> {
    let (whole, part) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() && part.is_empty() {
        return None;
    }
    let mut sum = if whole.is_empty() { 0 } else { whole.parse::<u64>().ok()?.checked_mul(scale)? };
    let mut scale = scale;
    for digit in part.chars() {
        if !scale.is_multiple_of(10) && digit != '0' {
            return None;
        }
        scale /= 10;
        sum = sum.checked_add(u64::from(digit.to_digit(10)?) * scale)?;
    }
    Some(sum)
}
