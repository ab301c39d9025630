//! Byte ranges: a `Range` field and a size become the parts to send (RFC 9110, 14.1, 14.2, 15.3.7).
//!
//! Before it, `amped-core` has found that the request is a GET, that `If-Range` (if any) holds and how many bytes the
//! representation has. After it come 200, 206 or 416, and the `Content-Range` of the two writers here.
//! A short field can demand a lot of work, so the number of ranges is limited
//! and overlapping ranges are sent once (RFC 9110, 14.2 and 17.15).
//! Not here: units other than bytes, and the multipart body of several ranges.

use crate::text::{list, push_decimal};
use alloc::vec::Vec;
use core::ops::Range;

/// How to respond to a `Range` field for a representation of known size.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ranges {
    /// Ignore the field: 200 and the whole representation.
    Whole,
    /// No range overlaps the representation: 416.
    Unsatisfiable,
    /// 206 with these ranges: at least one, each non-empty and within the size, no two overlapping or touching.
    Partial(Vec<Range<u64>>),
}

/// Parses a `Range` field for a representation of `size` bytes.
///
/// More than `count_max` ranges give the whole representation, and so does any range if
/// `count_max` is 0. Ranges stay in the order of the request (RFC 9110, 15.3.7.2), unless
/// some overlap or touch: then these are merged, and all are in ascending order.
pub fn parse(field: &[u8], size: u64, count_max: usize) -> Ranges {
    // RFC 9110, 14.2: an unknown range unit is ignored, and an invalid set may be: send the whole rather than guess.
    let Some(set) = strip_bytes_unit(field) else { return Ranges::Whole };

    let mut count = 0;
    let mut ranges = Vec::new();
    for spec in list(set) {
        count += 1;
        // Stop here: thousands of ranges could follow.
        if count > count_max {
            return Ranges::Whole;
        }
        match read_spec(spec) {
            None => return Ranges::Whole,
            // Ignore the field: `0-` requests everything, as clients do that resume a download of zero bytes. RFC 9110,
            // 14.2 lets a server ignore any Range.
            Some(Spec::From { first: 0, last: u64::MAX }) if size == 0 => return Ranges::Whole,
            Some(Spec::From { first, last }) if first < size => ranges.push(first..last.saturating_add(1).min(size)),
            Some(Spec::Last { length: 1.. }) if size == 0 => {
                // RFC 9110, 14.1.2: satisfiable, but Content-Range cannot express an empty range.
                return Ranges::Whole;
            }
            Some(Spec::Last { length: length @ 1.. }) => ranges.push(size - length.min(size)..size),
            Some(Spec::From { .. } | Spec::Last { .. }) => {} // Unsatisfiable (RFC 9110, 14.1.2); another may be satisfiable.
        }
    }

    match (count, ranges.is_empty()) {
        (0, _) => Ranges::Whole, // A set has at least one range, so `bytes=` is malformed.
        (_, true) => Ranges::Unsatisfiable,
        (_, false) => Ranges::Partial(coalesce(ranges)),
    }
}

/// Returns the first byte of the first range of a `Range` field, if that does not depend on the size of the representation.
pub fn first_byte(field: &[u8]) -> Option<u64> {
    match read_spec(list(strip_bytes_unit(field)?).next()?)? {
        Spec::From { first, .. } => Some(first),
        Spec::Last { .. } => None,
    }
}

/// Appends the `Content-Range` of a part: `bytes 0-4/10` (RFC 9110, 14.4). The range must not be empty.
pub fn content_range(range: &Range<u64>, size: u64, out: &mut Vec<u8>) {
    out.extend_from_slice(b"bytes ");
    push_decimal(out, range.start);
    out.push(b'-');
    push_decimal(out, range.end.saturating_sub(1));
    out.push(b'/');
    push_decimal(out, size);
}

/// Appends the `Content-Range` of a 416: `bytes */10` (RFC 9110, 14.4).
pub fn unsatisfied_content_range(size: u64, out: &mut Vec<u8>) {
    out.extend_from_slice(b"bytes */");
    push_decimal(out, size);
}

/// One element of a range set, as written (RFC 9110, 14.1.1, 14.1.2).
enum Spec {
    /// `0-4`, or `5-` with the largest possible `last`. Both ends are inclusive; `first <= last`.
    From { first: u64, last: u64 },
    /// `-5`: the last five bytes.
    Last { length: u64 },
}

/// Returns the set after `bytes=`. RFC 9110, 14.1: unit names are case-insensitive.
fn strip_bytes_unit(field: &[u8]) -> Option<&[u8]> {
    let (unit, set) = field.split_at_checked(b"bytes=".len())?;
    unit.eq_ignore_ascii_case(b"bytes=").then_some(set)
}

fn read_spec(spec: &[u8]) -> Option<Spec> {
    let dash = spec.iter().position(|&byte| byte == b'-')?;
    match (&spec[..dash], &spec[dash + 1..]) {
        (b"", length) => Some(Spec::Last { length: read_number(length)? }),
        (first, b"") => Some(Spec::From { first: read_number(first)?, last: u64::MAX }),
        (first, last) => {
            let (first, last) = (read_number(first)?, read_number(last)?);
            // RFC 9110, 14.1.1: an int-range whose last-pos is less than its first-pos is invalid.
            (first <= last).then_some(Spec::From { first, last })
        }
    }
}

/// Parses digits only. A number beyond u64 saturates: it lies beyond any representation, as does u64::MAX.
fn read_number(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    Some(digits.iter().fold(0_u64, |n, digit| n.saturating_mul(10).saturating_add(u64::from(digit - b'0'))))
}

/// Merges overlapping and touching ranges; without any, leaves the order unchanged.
fn coalesce(ranges: Vec<Range<u64>>) -> Vec<Range<u64>> {
    let apart = |ranges: &[Range<u64>]| ranges.windows(2).all(|pair| pair[0].end < pair[1].start);
    // The common cases: a single range, or ascending ranges.
    if apart(&ranges) {
        return ranges;
    }
    let mut sorted = ranges.clone();
    sorted.sort_unstable_by_key(|range| range.start);
    if apart(&sorted) {
        return ranges;
    }
    sorted.dedup_by(|next, kept| {
        let touches = next.start <= kept.end;
        if touches {
            kept.end = kept.end.max(next.end);
        }
        touches
    });
    sorted
}

#[cfg(test)]
#[expect(clippy::single_range_in_vec_init, reason = "a list of one range is what most of these cases expect")]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::string::String;

    const COUNT_MAX: usize = 8;

    #[track_caller]
    fn check(field: &str, size: u64, expected: Ranges) {
        assert_eq!(parse(field.as_bytes(), size, COUNT_MAX), expected, "{field} of {size}");
    }

    fn partial(ranges: impl IntoIterator<Item = Range<u64>>) -> Ranges {
        Ranges::Partial(ranges.into_iter().collect())
    }

    #[test]
    fn single_range_is_parsed() {
        check("bytes=0-4", 10, partial([0..5]));
        check("bytes=0-0", 10, partial([0..1]));
        check("bytes=9-9", 10, partial([9..10]));
        check("bytes=5-", 10, partial([5..10]));
        check("bytes=0-", 10, partial([0..10]));
        check("bytes=-3", 10, partial([7..10]));
        check("bytes=-10", 10, partial([0..10]));
        check("bytes=-11", 10, partial([0..10]));
        check("bytes=0-9", 10, partial([0..10]));
        check("bytes=0-10", 10, partial([0..10]));
        check("bytes=007-008", 10, partial([7..9]));
        check("BYTES=0-4", 10, partial([0..5]));
        check("Bytes= 0-4 ", 10, partial([0..5]));
        check("bytes=10-", 10, Ranges::Unsatisfiable);
        check("bytes=10-12", 10, Ranges::Unsatisfiable);
        check("bytes=-0", 10, Ranges::Unsatisfiable);
        check("bytes=-000", 10, Ranges::Unsatisfiable);
    }

    #[test]
    fn first_byte_is_that_of_first_range() {
        let check = |field: &str, expected| assert_eq!(first_byte(field.as_bytes()), expected, "{field}");
        check("bytes=7-", Some(7));
        check("Bytes= 12-20, 0-1", Some(12));
        for field in ["bytes=-7", "bytes=", "bytes=x-", "bytes=5-4", "lines=1-2", ""] {
            check(field, None);
        }
    }

    #[test]
    fn numbers_beyond_u64_saturate() {
        check("bytes=0-18446744073709551615", 10, partial([0..10]));
        check("bytes=0-18446744073709551616", 10, partial([0..10]));
        check("bytes=0-99999999999999999999999999", 10, partial([0..10]));
        check("bytes=-99999999999999999999999999", 10, partial([0..10]));
        check("bytes=18446744073709551615-", 10, Ranges::Unsatisfiable);
        check("bytes=99999999999999999999999999-", 10, Ranges::Unsatisfiable);
        check("bytes=99999999999999999999999999-99999999999999999999999999", 10, Ranges::Unsatisfiable);
        check("bytes=0-99999999999999999999999999", u64::MAX, partial([0..u64::MAX]));
        check("bytes=18446744073709551614-", u64::MAX, partial([u64::MAX - 1..u64::MAX]));
        check("bytes=18446744073709551615-", u64::MAX, Ranges::Unsatisfiable);
        check("bytes=-18446744073709551615", u64::MAX, partial([0..u64::MAX]));
    }

    #[test]
    fn range_of_empty_file_is_whole_or_unsatisfiable() {
        check("bytes=0-", 0, Ranges::Whole);
        check("bytes=1-", 0, Ranges::Unsatisfiable);
        check("bytes=0-0", 0, Ranges::Unsatisfiable);
        check("bytes=-0", 0, Ranges::Unsatisfiable);
        check("bytes=-1", 0, Ranges::Whole);
        check("bytes=0-1,-1", 0, Ranges::Whole);
        check("bytes=0-1,5-", 0, Ranges::Unsatisfiable);
    }

    #[test]
    fn invalid_range_set_is_ignored() {
        for field in [
            "",
            "bytes",
            "bytes=",
            "bytes=,",
            "bytes= , ,",
            "bytes=-",
            "bytes=--1",
            "bytes=1",
            "bytes=a-b",
            "bytes=1-b",
            "bytes=+1-2",
            "bytes=1 - 2",
            "bytes=1- 2",
            "bytes=4-3",
            "bytes=0x1-2",
            "bytes=1-2-3",
            "bytes=0-1;2-3",
            "bytes=0-1,x",
            "bytes=0-1,4-3",
            "bytes=99-98",
            "bytes 0-4",
            "bytes =0-4",
            " bytes=0-4",
            "byte=0-4",
            "items=0-4",
            "\u{ff}\u{ff}\u{ff}",
        ] {
            check(field, 10, Ranges::Whole);
        }
    }

    #[test]
    fn several_ranges_are_parsed() {
        // Disjoint: in the order of the request.
        check("bytes=0-1,4-5", 10, partial([0..2, 4..6]));
        check("bytes=4-5,0-1", 10, partial([4..6, 0..2]));
        check("bytes=-1,0-0", 10, partial([9..10, 0..1]));
        check("bytes=8-,4-5,0-1", 10, partial([8..10, 4..6, 0..2]));
        // Overlapping, touching, nested: merged and in ascending order.
        check("bytes=0-4,2-6", 10, partial([0..7]));
        check("bytes=0-4,5-6", 10, partial([0..7]));
        check("bytes=5-6,0-4", 10, partial([0..7]));
        check("bytes=0-9,2-3,5-6", 10, partial([0..10]));
        check("bytes=8-8,0-1,1-2", 10, partial([0..3, 8..9]));
        check("bytes=0-0,0-0,0-0", 10, partial([0..1]));
        check("bytes=3-4,0-0,-6", 10, partial([0..1, 3..10]));
        // Unsatisfiable ranges are dropped if another one is satisfiable.
        check("bytes=0-1,20-30", 10, partial([0..2]));
        check("bytes=20-30,-0,0-1", 10, partial([0..2]));
        check("bytes=20-30,40-", 10, Ranges::Unsatisfiable);
        // Whitespace and empty elements.
        check("bytes=0-1 ,\t4-5", 10, partial([0..2, 4..6]));
        check("bytes=,, 0-1,,4-5,", 10, partial([0..2, 4..6]));
    }

    #[test]
    fn too_many_ranges_return_whole_file() {
        check("bytes=0-0,2-2,4-4,6-6,8-8,10-10,12-12,14-14", 99, partial((0..8).map(|n| 2 * n..2 * n + 1)));
        check("bytes=0-0,2-2,4-4,6-6,8-8,10-10,12-12,14-14,16-16", 99, Ranges::Whole);
        // Counted as written, including ranges that would merge and unsatisfiable ones.
        check("bytes=0-,0-,0-,0-,0-,0-,0-,0-,0-", 99, Ranges::Whole);
        check("bytes=100-,100-,100-,100-,100-,100-,100-,100-,100-", 99, Ranges::Whole);
        assert_eq!(parse(b"bytes=0-4", 10, 0), Ranges::Whole);
        assert_eq!(parse(b"bytes=0-4", 10, 1), partial([0..5]));
    }

    #[test]
    fn content_range_is_formatted() {
        let mut out = b"Content-Range: ".to_vec();
        content_range(&(0..5), 10, &mut out);
        assert_eq!(out, b"Content-Range: bytes 0-4/10");
        out.clear();
        content_range(&(u64::MAX - 1..u64::MAX), u64::MAX, &mut out);
        assert_eq!(out, b"bytes 18446744073709551614-18446744073709551614/18446744073709551615");
        out.clear();
        unsatisfied_content_range(10, &mut out);
        assert_eq!(out, b"bytes */10");
    }

    proptest! {
        #[test]
        fn covers_what_naive_model_covers(
            size in 1_u64..40,
            specs in prop::collection::vec((0_u8..3, 0_u64..45, 0_u64..10), 1..COUNT_MAX),
        ) {
            let mut field = String::from("bytes=");
            let mut wanted = std::collections::BTreeSet::new();
            for (kind, at, more) in specs {
                let (text, bytes) = match kind {
                    0 => (std::format!("{at}-{},", at + more), at..at + more + 1),
                    1 => (std::format!("{at}-,"), at..size),
                    _ => (std::format!("-{at},"), size.saturating_sub(at)..size),
                };
                field.push_str(&text);
                wanted.extend(bytes.filter(|&byte| byte < size));
            }
            let ranges = match parse(field.as_bytes(), size, COUNT_MAX) {
                Ranges::Partial(ranges) => ranges,
                Ranges::Unsatisfiable => Vec::new(),
                Ranges::Whole => panic!("{field} is valid"),
            };
            let covered: Vec<u64> = ranges.iter().cloned().flatten().collect();
            prop_assert_eq!(covered.len(), wanted.len(), "no byte twice");
            prop_assert_eq!(covered.into_iter().collect::<std::collections::BTreeSet<_>>(), wanted);
        }

        #[test]
        fn parts_are_nonempty_disjoint_and_within_file(
            field in "[bB]ytes=[-0-9, ]{0,24}", size in prop_oneof![0_u64..20, Just(u64::MAX)], count_max in 0_usize..9,
        ) {
            if let Ranges::Partial(mut ranges) = parse(field.as_bytes(), size, count_max) {
                prop_assert!(!ranges.is_empty() && ranges.len() <= count_max);
                prop_assert!(ranges.iter().all(|range| range.start < range.end && range.end <= size));
                ranges.sort_unstable_by_key(|range| range.start);
                prop_assert!(ranges.windows(2).all(|pair| pair[0].end < pair[1].start));
            }
        }

        #[test]
        fn never_panics(field: Vec<u8>, size: u64, count_max: usize) {
            let _ = parse(&field, size, count_max);
        }
    }
}
