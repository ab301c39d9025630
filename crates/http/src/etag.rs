//! Entity tags: one for `If-Range`, lists of them for `If-Match` and `If-None-Match` (RFC 9110, 8.8.3).
//!
//! Before it: a field value from the request. After it: `amped-core` decides between 200, 206,
//! 304 and 412. Our own tag is passed as the bytes of our `ETag` line, quotes included, so
//! that a cached head can lend them and the common comparison is one of two slices.
//! A list is compared while it is parsed, up to the first match, so nothing is allocated.
//! Not here: how a tag is made from a file.

use crate::text::trim_ows;

/// An entity tag (RFC 9110, 8.8.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EntityTag<'a> {
    /// Written with `W/`: equivalent, but not necessarily identical byte for byte.
    pub weak: bool,
    /// The opaque tag with its quotes. A backslash in it has no special meaning.
    pub opaque: &'a [u8],
}

impl<'a> EntityTag<'a> {
    /// Parses a field value that is exactly one tag. `None` also for the date that `If-Range` may contain instead.
    pub fn parse(field: &'a [u8]) -> Option<EntityTag<'a>> {
        let (tag, rest) = EntityTag::take(trim_ows(field))?;
        rest.is_empty().then_some(tag)
    }

    /// Compares strongly (RFC 9110, 8.8.3.2): the same opaque tag, and neither is weak.
    pub fn matches_strong(&self, other: &EntityTag<'_>) -> bool {
        !self.weak && !other.weak && self.opaque == other.opaque
    }

    /// Compares weakly (RFC 9110, 8.8.3.2): the same opaque tag.
    pub fn matches_weak(&self, other: &EntityTag<'_>) -> bool {
        self.opaque == other.opaque
    }

    /// Splits `text` into its leading tag and the rest.
    fn take(text: &'a [u8]) -> Option<(EntityTag<'a>, &'a [u8])> {
        // RFC 9110, 8.8.3: weak = %s"W/", which is case-sensitive.
        let (weak, quoted) = match text.strip_prefix(b"W/") {
            Some(quoted) => (true, quoted),
            None => (false, text),
        };
        let inside = quoted.strip_prefix(b"\"")?;
        let length = inside.iter().position(|&byte| !is_etagc(byte))?;
        if inside[length] != b'"' {
            return None;
        }
        let (opaque, rest) = quoted.split_at(length + 2);
        Some((EntityTag { weak, opaque }, rest))
    }
}

/// The value of `If-Match` or `If-None-Match` (RFC 9110, 13.1.1, 13.1.2).
#[derive(Clone, Debug)]
pub enum TagList<'a> {
    /// `*`: any current representation.
    Any,
    /// Any of these.
    Tags(Tags<'a>),
}

impl<'a> TagList<'a> {
    /// Parses a field value. A `*` among tags is malformed and ends the list.
    pub fn parse(field: &'a [u8]) -> TagList<'a> {
        match trim_ows(field) {
            b"*" => TagList::Any,
            list => TagList::Tags(Tags { rest: list }),
        }
    }
}

/// The tags of a list, up to the first malformed element: beyond it, element boundaries are unknown.
#[derive(Clone, Debug)]
pub struct Tags<'a> {
    rest: &'a [u8],
}

impl<'a> Iterator for Tags<'a> {
    type Item = EntityTag<'a>;

    fn next(&mut self) -> Option<EntityTag<'a>> {
        // RFC 9110, 5.6.1.2: empty elements are ignored.
        while let [b',' | b' ' | b'\t', rest @ ..] = self.rest {
            self.rest = rest;
        }
        let taken = EntityTag::take(self.rest).map(|(tag, rest)| (tag, trim_ows(rest)));
        let Some((tag, rest @ ([] | [b',', ..]))) = taken else {
            self.rest = &[];
            return None;
        };
        self.rest = rest;
        Some(tag)
    }
}

/// Whether `If-None-Match: field` matches the representation whose strong tag is `current`, with its quotes.
///
/// Weak comparison (RFC 9110, 13.1.2): a proxy that compressed our page may have made our tag weak.
pub fn list_matches_weak(field: &[u8], current: &[u8]) -> bool {
    list_matches(field, |tag| tag.opaque == current)
}

/// Whether `If-Match: field` matches the representation whose strong tag is `current`, with its quotes.
///
/// Strong comparison (RFC 9110, 13.1.1).
pub fn list_matches_strong(field: &[u8], current: &[u8]) -> bool {
    list_matches(field, |tag| !tag.weak && tag.opaque == current)
}

fn list_matches(field: &[u8], is_current: impl FnMut(EntityTag<'_>) -> bool) -> bool {
    match TagList::parse(field) {
        TagList::Any => true,
        TagList::Tags(mut tags) => tags.any(is_current),
    }
}

/// RFC 9110, 8.8.3: etagc = %x21 / %x23-7E / obs-text. So no space and no quote, but commas.
fn is_etagc(byte: u8) -> bool {
    matches!(byte, 0x21 | 0x23..=0x7e | 0x80..)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::string::String;
    use std::vec::Vec;

    #[test]
    fn valid_etags_parse_and_invalid_ones_fail() {
        #[track_caller]
        fn check(field: &str, expected: Option<(bool, &str)>) {
            let parsed = EntityTag::parse(field.as_bytes());
            let expected = expected.map(|(weak, opaque)| EntityTag { weak, opaque: opaque.as_bytes() });
            assert_eq!(parsed, expected, "{field}");
        }
        check(r#""abc""#, Some((false, r#""abc""#)));
        check(r#"W/"abc""#, Some((true, r#""abc""#)));
        check(r#""""#, Some((false, r#""""#)));
        check(r#"W/"""#, Some((true, r#""""#)));
        check(" \"abc\"\t", Some((false, r#""abc""#)));
        check(r#""a,b""#, Some((false, r#""a,b""#)));
        check(r#""a\""#, Some((false, r#""a\""#)));
        check("\"\u{e4}\"", Some((false, "\"\u{e4}\"")));
        check("", None);
        check("*", None);
        check("abc", None);
        check(r#"""#, None);
        check(r#""abc"#, None);
        check(r#"abc""#, None);
        check(r#"w/"abc""#, None);
        check(r#"W/ "abc""#, None);
        check("W/", None);
        check(r#"W/abc"#, None);
        check(r#""a b""#, None);
        check("\"a\tb\"", None);
        check("\"a\u{7f}\"", None);
        check(r#""a\"b""#, None);
        check(r#""a", "b""#, None);
        check("Sun, 06 Nov 1994 08:49:37 GMT", None);
    }

    #[test]
    fn comparison_matches_rfc_table() {
        #[track_caller]
        fn check(a: &str, b: &str, strong: bool, weak: bool) {
            let (a, b) = (EntityTag::parse(a.as_bytes()).unwrap(), EntityTag::parse(b.as_bytes()).unwrap());
            assert_eq!((a.matches_strong(&b), a.matches_weak(&b)), (strong, weak));
            assert_eq!((b.matches_strong(&a), b.matches_weak(&a)), (strong, weak));
        }
        // RFC 9110, 8.8.3.2, table 3.
        check(r#"W/"1""#, r#"W/"1""#, false, true);
        check(r#"W/"1""#, r#"W/"2""#, false, false);
        check(r#"W/"1""#, r#""1""#, false, true);
        check(r#""1""#, r#""1""#, true, true);
    }

    #[test]
    fn lists_match_own_etag() {
        #[track_caller]
        fn check(field: &str, strong: bool, weak: bool) {
            let current = br#""abc""#;
            assert_eq!(list_matches_strong(field.as_bytes(), current), strong, "strong {field}");
            assert_eq!(list_matches_weak(field.as_bytes(), current), weak, "weak {field}");
        }
        check("*", true, true);
        check(" * ", true, true);
        check(r#""abc""#, true, true);
        check(r#"W/"abc""#, false, true);
        check(r#""x", "abc""#, true, true);
        check(r#""x","abc""#, true, true);
        check(r#""x" ,  W/"abc""#, false, true);
        check("\t\"x\"\t,\t\"abc\"\t", true, true);
        check(r#"W/"abc", "abc""#, true, true);
        // Empty elements.
        check(r#", ,"abc""#, true, true);
        check(r#""abc",,"#, true, true);
        // Commas inside quotes do not separate.
        check(r#""x,y", "abc""#, true, true);
        check(r#""x,"abc","y""#, false, false);
        // Near misses.
        check("", false, false);
        check(",", false, false);
        check("abc", false, false);
        check(r#""ABC""#, false, false);
        check(r#""abc"#, false, false);
        check(r#""abcd", "ab""#, false, false);
        // No element matches from the first malformed one on; all elements before it count.
        check(r#"abc, "abc""#, false, false);
        check(r#"*, "abc""#, false, false);
        check(r#""x" "abc""#, false, false);
        check(r#""abc" "x""#, false, false);
        check(r#""abc", x"#, true, true);
        check(r#"w/"x", "abc""#, false, false);
        check(r#""x"; "abc""#, false, false);
    }

    proptest! {
        #[test]
        fn etag_is_found_at_any_list_position(
            before in prop::collection::vec("(W/)?\"[!#-~]{0,6}\"", 0..4),
            tag in "\"[!#-~]{0,6}\"",
            after in "[ -~]{0,12}",
            comma in "[ \t]{0,2},[ \t,]{0,3}",
        ) {
            let mut field: String = before.join(&comma);
            if !before.is_empty() {
                field.push_str(&comma);
            }
            field.push_str(&tag);
            prop_assert!(list_matches_strong(field.as_bytes(), tag.as_bytes()));
            field.push_str(&comma);
            field.push_str(&after);
            prop_assert!(list_matches_strong(field.as_bytes(), tag.as_bytes()));
            prop_assert!(list_matches_weak(field.as_bytes(), tag.as_bytes()));
        }

        #[test]
        fn strong_match_implies_weak_match(field: Vec<u8>, current in "\"[!#-~]{0,3}\"") {
            let strong = list_matches_strong(&field, current.as_bytes());
            prop_assert!(!strong || list_matches_weak(&field, current.as_bytes()));
            let tags = Tags { rest: &field };
            prop_assert!(tags.count() <= field.len() / 2);
        }
    }
}
