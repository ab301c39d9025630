//! A bandwidth with its unit: `10mbit`, `56kbit`, `1.5Mbit/s`.

use core::fmt;
use core::str::FromStr;

use crate::number::{self, ParseError};

/// Bits per second.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct BitsPerSecond(pub u64);

/// The units are decimal, as always for links, and spelled as in tc(8).
const UNITS: &[(&str, u64)] =
    &[("Tbit", 1_000_000_000_000), ("Gbit", 1_000_000_000), ("Mbit", 1_000_000), ("kbit", 1_000), ("bit", 1)];

impl FromStr for BitsPerSecond {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<BitsPerSecond, ParseError> {
        const WRONG: ParseError =
            ParseError("not a bandwidth; examples: 56kbit, 1.5mbit, 10mbit, 1gbit (bits per second, not bytes)");
        let text = text.trim();
        let text = text.strip_suffix("/s").unwrap_or(text);
        let (number, unit) = text.split_at(text.bytes().take_while(|b| b.is_ascii_digit() || *b == b'.').count());
        let unit = unit.trim_start();
        let (_, scale) = UNITS.iter().find(|(name, _)| name.eq_ignore_ascii_case(unit)).ok_or(WRONG)?;
        number::decimal(number, *scale).map(BitsPerSecond).ok_or(WRONG)
    }
}

impl fmt::Display for BitsPerSecond {
    /// Prints the largest unit that leaves a whole number, so that the text parses back without loss.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (number, unit) = number::whole(self.0, UNITS);
        write!(f, "{number}{unit}/s")
    }
}

impl fmt::Debug for BitsPerSecond {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    extern crate alloc;
    use super::*;
    use alloc::string::ToString;

    #[test]
    fn valid_rates_parse_and_invalid_ones_fail() {
        let check = |text: &str, expected: Option<u64>| {
            assert_eq!(text.parse::<BitsPerSecond>().ok().map(|rate| rate.0), expected, "{text:?}");
        };
        check("9600bit", Some(9600));
        check("56kbit", Some(56_000));
        check("1.5mbit", Some(1_500_000));
        check("10 Mbit/s", Some(10_000_000));
        check("1gbit", Some(1_000_000_000));
        check("0.0001kbit", None);
        // tc(8) reads `mbps` as megabytes, other tools as megabits, so it is rejected.
        for bad in ["", "10", "mbit", "10mbps", "1.2.3mbit", "-1kbit", ".mbit", "99999999999tbit"] {
            check(bad, None);
        }
    }

    #[test]
    fn formatted_rate_round_trips() {
        for n in [0, 1, 56_000, 33_600, 1_500_000, 1_000_000_000, 1_000_000_001, u64::MAX] {
            assert_eq!(BitsPerSecond(n).to_string().parse::<BitsPerSecond>().ok(), Some(BitsPerSecond(n)));
        }
        assert_eq!(BitsPerSecond(10_000_000).to_string(), "10Mbit/s");
    }
}
