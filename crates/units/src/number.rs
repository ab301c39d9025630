//! Parsing and printing of numbers with units, in integers, so that nothing is lost to rounding.

use core::fmt;

/// The text is not of its type; the message continues it, and has examples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParseError(pub(crate) &'static str);

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl core::error::Error for ParseError {}

/// Returns `amount` in the largest unit that leaves a whole number, and that unit, so that the text parses back without
/// loss. `units` are in descending order and end with a unit of 1.
pub(crate) fn whole(amount: u64, units: &[(&'static str, u64)]) -> (u64, &'static str) {
    let fits = |&&(_, scale): &&(&str, u64)| scale == 1 || amount >= scale && amount.is_multiple_of(scale);
    let (unit, scale) = units.iter().find(fits).copied().unwrap_or(("", 1));
    (amount / scale, unit)
}

/// Returns `number`, which may have a decimal point, times `scale`; `None` if it is not a number, or the product does
/// not fit or is not whole. Integer arithmetic keeps `1.1` exact.
pub(crate) fn decimal(number: &str, scale: u64) -> Option<u64> {
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
