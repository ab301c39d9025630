//! An amount of bytes with its unit: `64KiB`, `10MB`, `512`.

use core::fmt;
use core::str::FromStr;

use crate::number::{self, ParseError};

/// An amount of bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Bytes(pub u64);

impl Bytes {
    /// `n` times 1024 bytes.
    pub const fn kib(n: u64) -> Bytes {
        Bytes(n * 1024)
    }

    /// `n` times 1024 * 1024 bytes.
    pub const fn mib(n: u64) -> Bytes {
        Bytes(n * 1024 * 1024)
    }

    /// Returns the amount as a length in memory, saturating at `usize::MAX`.
    pub fn as_usize(self) -> usize {
        usize::try_from(self.0).unwrap_or(usize::MAX)
    }
}

/// The units of IEC 80000-13 and the decimal units of the SI. A
/// bare `K`, `M` or `G` is binary, as in nginx and lighttpd.
const UNITS: &[(&str, u64)] = &[
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("TiB", 1 << 40),
    ("kB", 1_000),
    ("KB", 1_000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("TB", 1_000_000_000_000),
    ("k", 1 << 10),
    ("K", 1 << 10),
    ("M", 1 << 20),
    ("G", 1 << 30),
    ("B", 1),
    ("", 1),
];

impl FromStr for Bytes {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Bytes, ParseError> {
        const WRONG: ParseError = ParseError("not an amount of bytes; examples: 512, 64KiB, 10MB, 1GiB");
        let text = text.trim();
        let digits = text.bytes().take_while(u8::is_ascii_digit).count();
        let (number, unit) = text.split_at(digits);
        let number: u64 = number.parse().map_err(|_| WRONG)?;
        let (_, scale) = UNITS.iter().find(|(name, _)| *name == unit.trim_start()).ok_or(WRONG)?;
        number.checked_mul(*scale).map(Bytes).ok_or(WRONG)
    }
}

impl fmt::Display for Bytes {
    /// Prints the largest binary unit that leaves a whole number, so that the text parses back without loss.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let binary = [("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10), ("B", 1)];
        let (number, unit) = number::whole(self.0, &binary);
        write!(f, "{number}{unit}")
    }
}

impl fmt::Debug for Bytes {
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
    fn valid_sizes_parse_and_invalid_ones_fail() {
        let check = |text: &str, expected: Option<u64>| {
            assert_eq!(text.parse::<Bytes>().ok().map(|b| b.0), expected, "{text:?}");
        };
        check("0", Some(0));
        check("512", Some(512));
        check("64KiB", Some(65_536));
        check("64 KiB", Some(65_536));
        check("10MB", Some(10_000_000));
        check("1k", Some(1024));
        check("1GiB", Some(1 << 30));
        for bad in ["", "KiB", "-1", "1.5MiB", "1 furlong", "99999999999999999999", "18446744073709551615KiB"] {
            check(bad, None);
        }
    }

    #[test]
    fn formatted_size_round_trips() {
        for n in [0, 1, 1023, 1024, 1025, 65_536, 10_000_000, 1 << 30, u64::MAX] {
            assert_eq!(Bytes(n).to_string().parse::<Bytes>().ok(), Some(Bytes(n)));
        }
        assert_eq!(Bytes::kib(64).to_string(), "64KiB");
    }
}
