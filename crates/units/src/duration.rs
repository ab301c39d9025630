//! A duration with its unit: `50ms`, `1.5s`, `100us`, `2m`.

use core::time::Duration;

use crate::number::{self, ParseError};

/// Units and their lengths in nanoseconds.
const UNITS: &[(&str, u64)] = &[
    ("ns", 1),
    ("us", 1_000),
    ("µs", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("m", 60_000_000_000),
    ("min", 60_000_000_000),
    ("h", 3_600_000_000_000),
];

/// Parses a duration. A bare number is an error, because each tool assumes another unit; only 0 needs none.
///
/// # Errors
/// If the text is not a duration, or the duration is longer than 584 years.
pub fn parse_duration(text: &str) -> Result<Duration, ParseError> {
    const WRONG: ParseError = ParseError("not a duration; examples: 100us, 50ms, 1.5s, 2m");
    let text = text.trim();
    if text == "0" {
        return Ok(Duration::ZERO);
    }
    let (number, unit) = text.split_at(text.bytes().take_while(|b| b.is_ascii_digit() || *b == b'.').count());
    let (_, scale) = UNITS.iter().find(|(name, _)| *name == unit.trim_start()).ok_or(WRONG)?;
    number::decimal(number, *scale).map(Duration::from_nanos).ok_or(WRONG)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn valid_durations_parse_and_invalid_ones_fail() {
        let check = |text: &str, expected: Option<u64>| {
            assert_eq!(parse_duration(text).ok().map(|span| span.as_nanos() as u64), expected, "{text:?}");
        };
        check("0", Some(0));
        check("0s", Some(0));
        check("50ms", Some(50_000_000));
        check("1.5 s", Some(1_500_000_000));
        check("0.25ms", Some(250_000));
        check("100us", Some(100_000));
        check("100µs", Some(100_000));
        check("2m", Some(120_000_000_000));
        check("1h", Some(3_600_000_000_000));
        for bad in ["", "50", "ms", "-1s", "1.5ns", "1..5s", "1s 2ms", "1 fortnight", "99999999999h"] {
            check(bad, None);
        }
    }
}
