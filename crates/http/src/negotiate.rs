//! Proactive negotiation (RFC 9110, 12): which content coding, which
//! variant of a document, and HTML or JSON for our own pages.
//!
//! Before it: the `Accept` fields of a request. After it: the sibling file that `amped-core` selects (`page.html.br`
//! for `page.html`), the variant (`page.fr.html` for `page`), and the form of listings and error pages. Browsers send
//! `Accept-Encoding` with every request, so it is parsed to ten bytes without allocation; the choice among the existing
//! siblings is made later, once the disk or a cache has reported them.
//!
//! [`choose_variant`] compares media type, then language, then charset, each by its quality; RFC 9110 leaves the
//! weighing of the three to servers, and this order is that of Apache's mod_negotiation. The coding is not part of it:
//! it is chosen among those of the variant, by the same [`Accepted`] as for any other file.
//!
//! Languages are matched by basic filtering (RFC 4647, 3.3.1). A range that matches nothing is shortened from its end,
//! as lookup does (3.4): a reader of `fr-CH` gets `fr`, ranked below every language that matches directly.

use alloc::vec::Vec;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::text::{list, trim_ows};

/// A content coding that we can send (RFC 9110, 8.4.1). Ordered by preference: the last shrinks text most.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Coding {
    /// None: the file itself.
    #[schemars(skip)]
    Identity,
    /// RFC 1952
    Gzip,
    /// RFC 8878
    Zstd,
    /// RFC 7932
    #[serde(rename = "br")]
    Brotli,
}

impl Coding {
    /// The codings of precompressed sibling files, best first.
    pub const SIBLINGS: [Coding; 3] = [Coding::Brotli, Coding::Zstd, Coding::Gzip];

    /// The name in `Content-Encoding` (RFC 9110, 18.6), which never names `Identity`.
    pub fn token(self) -> &'static str {
        match self {
            Coding::Identity => "identity",
            Coding::Gzip => "gzip",
            Coding::Zstd => "zstd",
            Coding::Brotli => "br",
        }
    }

    /// The suffix of the sibling file's name.
    pub fn suffix(self) -> &'static str {
        match self {
            Coding::Identity => "",
            Coding::Gzip => ".gz",
            Coding::Zstd => ".zst",
            Coding::Brotli => ".br",
        }
    }

    /// Looks up a coding. RFC 9110, 8.4.1: names are case-insensitive. RFC 9110, 8.4.1.3: `x-gzip` is gzip.
    fn from_token(token: &[u8]) -> Option<Coding> {
        const NAMES: [(&str, Coding); 5] = [
            ("gzip", Coding::Gzip),
            ("br", Coding::Brotli),
            ("zstd", Coding::Zstd),
            ("identity", Coding::Identity),
            ("x-gzip", Coding::Gzip),
        ];
        NAMES.iter().find(|(name, _)| token.eq_ignore_ascii_case(name.as_bytes())).map(|&(_, coding)| coding)
    }
}

/// The `Accept-Encoding` of a request, as far as it concerns the known codings (RFC 9110, 12.5.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Accepted {
    /// By `Coding`: quality in thousandths, 0 to 1000, or `UNNAMED`.
    named: [u16; 4],
    /// The same for `*`.
    others: u16,
}

/// Not mentioned in the field. Not an `Option`, so that `Accepted` stays ten bytes long.
const UNNAMED: u16 = u16::MAX;

impl Accepted {
    /// A request without the field accepts only `Identity`. RFC 9110, 12.5.3 lets it mean any coding, but a client that
    /// can decode one says so, and the others could not read an encoded page.
    pub const NOTHING_SAID: Accepted = Accepted { named: [UNNAMED; 4], others: UNNAMED };

    /// Parses an `Accept-Encoding` field, if any. Malformed elements and unknown codings are skipped.
    pub fn parse(field: Option<&[u8]>) -> Accepted {
        field.map_or(Accepted::NOTHING_SAID, |field| Accepted::NOTHING_SAID.and(field))
    }

    /// Adds one more line of the field. RFC 9110, 5.3: the lines form one list, so the order of calls does not matter.
    ///
    /// A coding that is named twice (as gzip and x-gzip, say) has the higher of its qualities.
    pub fn and(mut self, field: &[u8]) -> Accepted {
        for (token, quality) in weighted(field) {
            let slot = match Coding::from_token(token) {
                Some(coding) => &mut self.named[coding as usize],
                None if token == b"*" => &mut self.others,
                None => continue,
            };
            *slot = if *slot == UNNAMED { quality } else { quality.max(*slot) };
        }
        self
    }

    /// The quality of a coding, from 0 (not acceptable) to 1000 (RFC 9110, 12.4.2).
    ///
    /// `*` covers the codings that are not named (RFC 9110, 12.5.3), but for `Identity`
    /// it only decides whether that is excluded: identity that is not named has the
    /// lowest acceptable quality, 1. A client that lists its codings prefers them.
    pub fn quality(self, coding: Coding) -> u16 {
        match (self.named[coding as usize], self.others) {
            (UNNAMED, 0) => 0,
            (UNNAMED, _) if coding == Coding::Identity => 1,
            (UNNAMED, UNNAMED) => 0,
            (UNNAMED, others) => others,
            (named, _) => named,
        }
    }

    /// Chooses the best available coding: the highest quality, and among equals the last in the order of [`Coding`].
    ///
    /// `Identity` is always available, listed or not. It is also the choice if nothing
    /// available is acceptable, even if the field excludes it: RFC 9110, 12.4.1 lets a server
    /// disregard the field, and a page that may be unreadable is more useful than a 406.
    pub fn choose(self, available: impl Iterator<Item = Coding>) -> Coding {
        available
            .map(|coding| (self.quality(coding), coding))
            .filter(|&(quality, _)| quality > 0)
            .fold((self.quality(Coding::Identity), Coding::Identity), Ord::max)
            .1
    }
}

/// Whether `Accept` strictly prefers application/json over text/html (RFC 9110, 12.5.1).
///
/// Each takes its quality from the most specific range that matches it: `type/subtype`, then `type/*`, then `*/*`.
/// Equal qualities, or no field, mean HTML; HTML with quality 0 means JSON, if that has a quality above 0. Parameters
/// other than `q` are not compared: our types have none that a client could mean by `;charset=utf-8`.
pub fn prefers_json(accept: Option<&[u8]>) -> bool {
    let accept = accept.unwrap_or_default();
    type_grade(accept, "application/json").0 > type_grade(accept, "text/html").0
}

/// The quality of a media type, and the specificity of the range that gives it: 0 no range, 1 `*/*`, 2 `type/*`, 3
/// `type/subtype`. The most specific range counts; of two equally specific ranges, the higher quality.
fn type_grade(accept: &[u8], media_type: &str) -> (u16, u8) {
    let media_type = media_type.split(';').next().unwrap_or_default().trim_end().as_bytes();
    let slash = media_type.iter().position(|&byte| byte == b'/').map_or(0, |slash| slash + 1);
    let (mut best, mut rest) = ((0, 0), accept);
    while !rest.is_empty() {
        let (element, after) = split_unquoted(rest, b',');
        rest = after;
        let Some((range, quality)) = read_media_range(element) else { continue };
        let specificity = match range.strip_suffix(b"*") {
            _ if range.eq_ignore_ascii_case(media_type) => 3,
            Some(top) if top.eq_ignore_ascii_case(&media_type[..slash]) && slash > 0 => 2,
            _ if range == b"*/*" => 1,
            _ => continue,
        };
        best = best.max((specificity, quality));
    }
    (best.1, best.0)
}

/// One of the available variants of a document.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Variant<'a> {
    /// Its media type; parameters are not compared.
    pub media_type: &'a str,
    /// Its language tag (RFC 9110, 8.5.1), if any.
    pub language: Option<&'a str>,
    /// Its charset, if charsets are compared.
    pub charset: Option<&'a str>,
    /// The codings in which it is available, at least one.
    pub codings: &'a [Coding],
}

/// The `Accept` fields of a request, several lines of one field joined by
/// commas. A field that is `None` accepts anything (RFC 9110, 12.5).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AcceptFields<'a> {
    /// RFC 9110, 12.5.1.
    pub accept: Option<&'a [u8]>,
    /// RFC 9110, 12.5.4.
    pub language: Option<&'a [u8]>,
    /// RFC 9110, 12.5.2.
    pub charset: Option<&'a [u8]>,
    /// RFC 9110, 12.5.3.
    pub encoding: Option<&'a [u8]>,
}

/// The result of a negotiation. Variants are identified by their index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// This variant is better than all others.
    One(usize),
    /// Several variants are equally good; this is the first of them.
    Tie(usize),
    /// No variant is acceptable.
    Nothing,
}

/// How well a variant matches: greater is better. Media type first, then language, then charset.
///
/// The specificity of the range follows the quality of a media type: `text/html, */*` prefers HTML, although both
/// ranges have quality 1. (Apache reads `*/*` as 0.01 in this case, unless the field contains a weight.)
type Grade = ((u16, u8), (u8, u16, u8), u16);

/// Chooses the best of these variants.
pub fn choose_variant(variants: &[Variant<'_>], fields: &AcceptFields<'_>) -> Choice {
    let accepted = fields.encoding.map(|field| Accepted::parse(Some(field)));
    let mut best: Option<(Grade, usize)> = None;
    let mut tie = false;
    for (at, variant) in variants.iter().enumerate() {
        let Some(grade) = grade(variant, fields, accepted) else { continue };
        match &best {
            Some((known, _)) if grade < *known => {}
            Some((known, _)) if grade == *known => tie = true,
            _ => (best, tie) = (Some((grade, at)), false),
        }
    }
    match best {
        None => Choice::Nothing,
        Some((_, at)) if tie => Choice::Tie(at),
        Some((_, at)) => Choice::One(at),
    }
}

/// Grades a variant; `None` if it is not acceptable.
fn grade(variant: &Variant<'_>, fields: &AcceptFields<'_>, accepted: Option<Accepted>) -> Option<Grade> {
    // As for any file: the plain form is better than nothing, even for a client that excludes it.
    let decodes =
        |&coding: &Coding| coding == Coding::Identity || accepted.is_none_or(|accepted| accepted.quality(coding) > 0);
    if !variant.codings.iter().any(decodes) {
        return None;
    }
    let media_type = fields.accept.map_or((1000, 0), |accept| type_grade(accept, variant.media_type));
    let charset = match (fields.charset, variant.charset) {
        (Some(field), Some(charset)) => charset_quality(field, charset),
        _ => 1000,
    };
    let language = language_grade(fields.language, variant.language)?;
    (media_type.0 > 0 && charset > 0).then_some((media_type, language, charset))
}

/// RFC 9110, 12.5.2: `*` covers the charsets that are not named; a
/// charset that is neither named nor covered is not acceptable.
fn charset_quality(field: &[u8], charset: &str) -> u16 {
    let (mut named, mut others) = (None, 0);
    for (token, quality) in weighted(field) {
        if token.eq_ignore_ascii_case(charset.as_bytes()) {
            named = named.max(Some(quality));
        } else if token == b"*" {
            others = others.max(quality);
        }
    }
    named.unwrap_or(others)
}

/// How well a language matches: 3 a range matches, 2 a shortened range matches, 1 the variant has no language; then the
/// quality of the range, and the number of subtags left in it. `None` if it is not acceptable.
fn language_grade(field: Option<&[u8]>, tag: Option<&str>) -> Option<(u8, u16, u8)> {
    let (field, tag) = match (field, tag) {
        (None, _) => return Some((3, 1000, 0)),
        (Some(_), None) => return Some((1, 0, 0)),
        (Some(field), Some(tag)) => (field, tag.as_bytes()),
    };
    // The longest matching range counts, of duplicates the higher quality; `*` only if none matches.
    let (mut matched, mut rest): (Option<(usize, u16)>, (u16, u8)) = (None, (0, 0));
    for (range, quality) in weighted(field) {
        if range == b"*" {
            matched = matched.max(Some((0, quality)));
        } else if covers(range, tag) {
            matched = matched.max(Some((range.len(), quality)));
        } else {
            let cuts = range.iter().enumerate().filter(|(_, byte)| **byte == b'-').map(|(at, _)| at);
            let left = cuts.filter(|&at| covers(&range[..at], tag)).count();
            if left > 0 {
                rest = rest.max((quality, u8::try_from(left).unwrap_or(u8::MAX)));
            }
        }
    }
    match (matched, rest) {
        (Some((_, 0)), _) | (None, (0, _)) => None,
        (Some((_, quality)), _) => Some((3, quality, 0)),
        (None, (quality, left)) => Some((2, quality, left)),
    }
}

/// RFC 4647, 3.3.1: a range matches a tag that is equal to it, or starts with it and a hyphen.
fn covers(range: &[u8], tag: &[u8]) -> bool {
    let begins = tag.len() >= range.len() && tag[..range.len()].eq_ignore_ascii_case(range);
    begins && !range.is_empty() && matches!(tag.get(range.len()), None | Some(b'-'))
}

/// Appends a field in a normal form, in which equivalent fields are equal: in lower case, without whitespace around
/// separators, all lines as one list. Quoted strings are left as they are. A choice cached under the normal form is
/// therefore valid for every field with that form.
pub fn normalise<'a>(lines: impl Iterator<Item = &'a [u8]>, out: &mut Vec<u8>) {
    let is_separator = |byte: u8| matches!(byte, b',' | b';');
    let start = out.len();
    let (mut quoted, mut escaped, mut blank) = (false, false, false);
    for (n, line) in lines.enumerate() {
        if n > 0 {
            // An unclosed quote ends with its line.
            (quoted, escaped, blank) = (false, false, false);
            out.push(b',');
        }
        for &byte in line {
            let before = out[start..].last().copied();
            match byte {
                _ if escaped => escaped = false,
                b'\\' if quoted => escaped = true,
                b'"' => quoted = !quoted,
                _ => {}
            }
            if quoted || byte == b'"' || escaped {
                if core::mem::take(&mut blank) && before.is_some_and(|before| !is_separator(before)) {
                    out.push(b' ');
                }
                out.push(byte);
            } else if matches!(byte, b' ' | b'\t') {
                blank = true;
            } else {
                if core::mem::take(&mut blank) && !is_separator(byte) && before.is_some_and(|it| !is_separator(it)) {
                    out.push(b' ');
                }
                out.push(byte.to_ascii_lowercase());
            }
        }
        blank = false;
    }
}

/// Iterates over the elements of a list of tokens with their weights, without malformed elements.
fn weighted(field: &[u8]) -> impl Iterator<Item = (&[u8], u16)> {
    list(field).filter_map(|element| match element.iter().position(|&byte| byte == b';') {
        Some(at) => Some((trim_ows(&element[..at]), read_weight(&element[at + 1..])?)),
        None => Some((element, 1000)),
    })
}

/// Parses `text/html;level=1;q=0.5` to `text/html` and 500; `None` if the weight is malformed.
fn read_media_range(element: &[u8]) -> Option<(&[u8], u16)> {
    let (range, mut parameters) = split_unquoted(element, b';');
    let mut quality = 1000;
    while !parameters.is_empty() {
        let (parameter, after) = split_unquoted(parameters, b';');
        parameters = after;
        if let [b'q' | b'Q', b'=', ..] = trim_ows(parameter) {
            quality = read_weight(parameter)?;
        }
    }
    Some((trim_ows(range), quality))
}

/// Splits at the first `separator` outside quotes (RFC 9110, 5.6.4).
pub(crate) fn split_unquoted(text: &[u8], separator: u8) -> (&[u8], &[u8]) {
    let mut quoted = false;
    let mut escaped = false;
    for (at, &byte) in text.iter().enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if quoted => escaped = true,
            b'"' => quoted = !quoted,
            _ if byte == separator && !quoted => return (&text[..at], &text[at + 1..]),
            _ => {}
        }
    }
    (text, &[])
}

/// Parses `q=0.5` to 500. RFC 9110, 12.4.2: three decimals at most, 1 at most, and `q` in either case.
fn read_weight(parameter: &[u8]) -> Option<u16> {
    let [b'q' | b'Q', b'=', whole @ (b'0' | b'1'), fraction @ ..] = trim_ows(parameter) else { return None };
    let decimals = match fraction {
        [] => &[],
        [b'.', decimals @ ..] if decimals.len() <= 3 && decimals.iter().all(u8::is_ascii_digit) => decimals,
        _ => return None,
    };
    let thousandths = decimals.iter().zip([100, 10, 1]).map(|(digit, place)| u16::from(digit - b'0') * place);
    let quality = u16::from(whole - b'0') * 1000 + thousandths.sum::<u16>();
    (quality <= 1000).then_some(quality)
}

#[cfg(test)]
mod tests {
    use super::Coding::{Brotli, Gzip, Identity, Zstd};
    use super::*;
    use proptest::prelude::*;
    use std::string::String;

    const ALL: [Coding; 4] = [Identity, Gzip, Zstd, Brotli];

    #[test]
    fn accept_encoding_sets_qualities() {
        /// `expected` in the order identity, gzip, zstd, br.
        #[track_caller]
        fn check(field: &str, expected: [u16; 4]) {
            let accepted = Accepted::parse(Some(field.as_bytes()));
            assert_eq!(ALL.map(|coding| accepted.quality(coding)), expected, "{field}");
        }
        check("", [1, 0, 0, 0]);
        check("gzip", [1, 1000, 0, 0]);
        check("gzip, deflate, br, zstd", [1, 1000, 1000, 1000]);
        check("GZip,BR", [1, 1000, 0, 1000]);
        check("x-gzip", [1, 1000, 0, 0]);
        check("compress, gzip", [1, 1000, 0, 0]);
        check("gzip;q=1.0, identity; q=0.5, *;q=0", [500, 1000, 0, 0]);
        check("*", [1, 1000, 1000, 1000]);
        check("*;q=0.3, br;q=0.9", [1, 300, 300, 900]);
        check("*;q=0", [0, 0, 0, 0]);
        check("*;q=0, identity;q=0.2", [200, 0, 0, 0]);
        check("identity;q=0", [0, 0, 0, 0]);
        check("identity;q=0, *", [0, 1000, 1000, 1000]);
        // Weights.
        check("gzip;q=0", [1, 0, 0, 0]);
        check("gzip;q=0.", [1, 0, 0, 0]);
        check("gzip;q=0.5", [1, 500, 0, 0]);
        check("gzip;q=0.05", [1, 50, 0, 0]);
        check("gzip;q=0.123", [1, 123, 0, 0]);
        check("gzip;q=1.000", [1, 1000, 0, 0]);
        check("gzip;Q=0.7", [1, 700, 0, 0]);
        check("gzip \t;\t q=0.7\t", [1, 700, 0, 0]);
        // Malformed elements are skipped, and no others.
        check("gzip;q=0.1234, br", [1, 0, 0, 1000]);
        check("gzip;q=1.001, br", [1, 0, 0, 1000]);
        check("gzip;q=2, br", [1, 0, 0, 1000]);
        check("gzip;q=-1, br", [1, 0, 0, 1000]);
        check("gzip;q=.5, br", [1, 0, 0, 1000]);
        check("gzip;q=, br", [1, 0, 0, 1000]);
        check("gzip;q = 0.5, br", [1, 0, 0, 1000]);
        check("gzip;, br", [1, 0, 0, 1000]);
        check("gzip;level=9, br", [1, 0, 0, 1000]);
        check("gzip;q=0.5;q=0.5, br", [1, 0, 0, 1000]);
        check("gzip br, br", [1, 0, 0, 1000]);
        check(",, br ,", [1, 0, 0, 1000]);
        // Named twice.
        check("gzip;q=0.2, x-gzip;q=0.6", [1, 600, 0, 0]);
        check("gzip;q=0.6, gzip;q=0", [1, 600, 0, 0]);
    }

    #[test]
    fn best_available_coding_is_chosen() {
        #[track_caller]
        fn check(field: Option<&str>, available: &[Coding], expected: Coding) {
            let accepted = Accepted::parse(field.map(str::as_bytes));
            assert_eq!(accepted.choose(available.iter().copied()), expected, "{field:?}");
        }
        check(None, &ALL, Identity);
        check(Some(""), &ALL, Identity);
        check(Some("gzip, deflate, br, zstd"), &ALL, Brotli);
        check(Some("gzip, deflate, br, zstd"), &[Identity, Gzip, Zstd], Zstd);
        check(Some("gzip, deflate, br, zstd"), &[Gzip, Identity], Gzip);
        check(Some("gzip, deflate, br, zstd"), &[Identity], Identity);
        check(Some("gzip, deflate, br, zstd"), &[], Identity);
        check(Some("gzip, br;q=0.9"), &ALL, Gzip);
        check(Some("deflate"), &ALL, Identity);
        // Identity ranks below any acceptable coding, unless it is named.
        check(Some("gzip;q=0.001"), &ALL, Gzip);
        check(Some("gzip;q=0.5, identity"), &ALL, Identity);
        check(Some("gzip;q=0.5, identity"), &[Gzip], Identity);
        check(Some("gzip;q=0.5, identity;q=0.5"), &ALL, Gzip);
        check(Some("*;q=0.1"), &ALL, Brotli);
        check(Some("br;q=0, *;q=0.1"), &ALL, Zstd);
        // Nothing acceptable.
        check(Some("identity;q=0"), &ALL, Identity);
        check(Some("*;q=0"), &ALL, Identity);
        check(Some("identity;q=0, br"), &[Identity, Gzip], Identity);
        check(Some("identity;q=0, gzip"), &[Identity, Gzip], Gzip);
    }

    #[test]
    fn sibling_codings_are_in_order_of_preference() {
        assert!(Coding::SIBLINGS.is_sorted_by(|a, b| a > b));
        assert_eq!(Coding::SIBLINGS.map(Coding::suffix), [".br", ".zst", ".gz"]);
        for coding in ALL {
            assert_eq!(Coding::from_token(coding.token().as_bytes()), Some(coding));
        }
        assert_eq!(size_of::<Accepted>(), 10);
    }

    #[test]
    fn json_is_preferred_only_if_accepted() {
        #[track_caller]
        fn check(accept: Option<&str>, expected: bool) {
            assert_eq!(prefers_json(accept.map(str::as_bytes)), expected, "{accept:?}");
        }
        check(None, false);
        check(Some(""), false);
        check(Some("*/*"), false);
        check(Some("application/json"), true);
        check(Some("Application/JSON"), true);
        check(Some("application/json; charset=utf-8"), true);
        check(Some("application/json, text/plain, */*"), false);
        check(Some("application/json, text/plain, */*;q=0.8"), true);
        check(Some("text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"), false);
        check(Some("text/html, application/json"), false);
        check(Some("text/html;q=0.9, application/json"), true);
        check(Some("text/html, application/json;q=0.9"), false);
        // The most specific range counts, not the best or the first.
        check(Some("application/*, text/html;q=0.5"), true);
        check(Some("application/*, application/json;q=0.1, text/html;q=0.5"), false);
        check(Some("application/json;q=0.1, application/*, text/html;q=0.5"), false);
        check(Some("*/*;q=0.5, text/*;q=0.1"), true);
        check(Some("text/*;q=0.1, text/html, application/json;q=0.9"), false);
        check(Some("application/xml"), false);
        // HTML excluded.
        check(Some("text/html;q=0, */*;q=0.1"), true);
        check(Some("text/html;q=0"), false);
        check(Some("text/html;q=0, application/json;q=0"), false);
        // Quoted strings may contain separators.
        check(Some(r#"text/plain;x="a,application/json;q=1", text/html;q=0.1"#), false);
        check(Some(r#"text/html;x="\",";q=0.1, application/json;q=0.2"#), true);
        check(Some(r#"application/json;x="never closed, text/html"#), true);
        // Malformed elements are skipped.
        check(Some("application/json;q=9, text/html;q=0.1"), false);
        check(Some("application/json;q=0.5;q=x, text/html;q=0.1"), false);
        check(Some(",;,application/json,"), true);
    }

    /// `type language charset`, a dash for none; the coding is plain.
    fn variant(text: &str) -> Variant<'_> {
        let [media_type, language, charset] = *text.split(' ').collect::<Vec<_>>() else { panic!("{text}") };
        let some = |text| (text != "-").then_some(text);
        Variant { media_type, language: some(language), charset: some(charset), codings: &[Identity] }
    }

    /// `accept | language | charset | encoding`, empty for none.
    fn accept_fields(text: &str) -> AcceptFields<'_> {
        let fields: Vec<_> = text.split('|').map(str::trim).collect();
        let field = |at: usize| fields.get(at).filter(|text| !text.is_empty()).map(|text| text.as_bytes());
        AcceptFields { accept: field(0), language: field(1), charset: field(2), encoding: field(3) }
    }

    #[test]
    fn variants_are_chosen_by_language() {
        #[track_caller]
        fn check(languages: &str, field: &str, expected: Choice) {
            let texts: Vec<_> = languages.split(' ').map(|tag| std::format!("text/html {tag} -")).collect();
            let variants: Vec<_> = texts.iter().map(|text| variant(text)).collect();
            let fields = AcceptFields { language: Some(field.as_bytes()), ..AcceptFields::default() };
            assert_eq!(choose_variant(&variants, &fields), expected, "{languages}: {field}");
        }
        use Choice::{Nothing, One, Tie};
        check("en fr", "fr", One(1));
        check("en fr", "FR;q=0.5, en;q=0.4", One(1));
        check("en fr", "fr, en", Tie(0));
        check("en fr", "*", Tie(0));
        check("en fr", "fr;q=0, *", One(0));
        check("en fr", "es", Nothing);
        check("en fr", "", Nothing);
        // Filtering: a range covers more specific tags, by whole subtags.
        check("en-GB fr", "en", One(0));
        check("eng fr", "en, fr;q=0.1", One(1));
        check("en-GB en-US", "en;q=0.5, en-GB;q=0.1", One(1));
        check("en-GB en-US", "en, en-GB;q=0", One(1));
        // Lookup: a shortened range, below all direct matches.
        check("en fr", "fr-CH", One(1));
        check("en fr", "fr-CH, en;q=0.1", One(0));
        check("en fr", "en-US;q=0.3, fr-CH;q=0.4", One(1));
        check("en-GB fr", "en-US", One(0));
        check("zh-Hans zh-Hant", "zh-Hant-TW", One(1));
        check("en fr", "fr-CH;q=0", Nothing);
        check("en fr", "fr-CH, fr;q=0", Nothing);
        check("fr en", "fr-CH, *;q=0.1", Tie(0));
        // Without a language: only if no better variant exists.
        check("- en", "en;q=0.001", One(1));
        check("- en", "en-US", One(1));
        check("- en", "fr", One(0));
        check("- -", "fr", Tie(0));
    }

    #[test]
    fn variants_are_chosen_by_all_accept_fields() {
        #[track_caller]
        fn check(variants: &[&str], fields: &str, expected: Choice) {
            let variants: Vec<_> = variants.iter().map(|text| variant(text)).collect();
            assert_eq!(choose_variant(&variants, &accept_fields(fields)), expected, "{fields}");
        }
        use Choice::{Nothing, One, Tie};
        let types = ["text/html - -", "application/pdf - -", "text/plain - -"];
        check(&types, "", Tie(0));
        check(&types, "*/*", Tie(0));
        check(&types, "application/pdf", One(1));
        check(&types, "application/pdf, */*", One(1));
        check(&types, "text/*, application/pdf;q=0.9", Tie(0));
        check(&types, "text/*;q=0.5, text/plain", One(2));
        check(&types, "text/html;q=0, text/*;q=0.1", One(2));
        check(&types, "image/png", Nothing);
        check(&[], "", Nothing);
        // The media type before the language, the language before the charset.
        let both = ["text/html en utf-8", "text/plain fr utf-8", "text/html fr iso-8859-1", "text/html fr utf-8"];
        check(&both, "text/html, text/plain;q=0.9|fr;q=0.1", Tie(2));
        check(&both, "text/html, text/plain;q=0.9|fr, en;q=0.1|iso-8859-1;q=0.1, utf-8", One(3));
        check(&both, "text/plain, text/html;q=0.1|en, fr;q=0.1", One(1));
        check(&both, "|fr|iso-8859-1", One(2));
        check(&both, "||utf-16", Nothing);
        check(&both, "text/html||*;q=0.1, iso-8859-1;q=0", Tie(0));
        // Available only in codings that the client cannot decode.
        let packed = [Variant { codings: &[Gzip, Brotli], ..variant("text/html en -") }, variant("text/html fr -")];
        let check = |fields: &str, expected: Choice| {
            assert_eq!(choose_variant(&packed, &accept_fields(fields)), expected, "{fields}");
        };
        check("|en, fr;q=0.1", One(0));
        check("|en, fr;q=0.1||br", One(0));
        check("|en, fr;q=0.1||deflate", One(1));
        check("|en||identity", Nothing);
        check("|fr||identity;q=0", One(1));
    }

    #[test]
    fn equivalent_fields_normalize_equally() {
        #[track_caller]
        fn check(lines: &[&str], expected: &str) {
            let mut out = b"before".to_vec();
            normalise(lines.iter().map(|line| line.as_bytes()), &mut out);
            assert_eq!(String::from_utf8(out).unwrap(), std::format!("before{expected}"));
        }
        check(&[], "");
        check(&[""], "");
        check(&["EN , fr ;\t q=0.5"], "en,fr;q=0.5");
        check(&[" en", "fr "], "en,fr");
        check(&["a b,c  d"], "a b,c d");
        check(&["Text/HTML; X=\"A ,; B\\\" C\" ; q=1"], "text/html;x=\"A ,; B\\\" C\";q=1");
        check(&["a=\"Never Closed", "B"], "a=\"Never Closed,b");
    }

    proptest! {
        #[test]
        fn repeated_fields_form_one_list(a in "[a-z*;=0-9., -]{0,30}", b in "(gzip|br|zstd|\\*|identity)(;q=0\\.[0-9])?") {
            let separate = Accepted::parse(Some(a.as_bytes())).and(b.as_bytes());
            let swapped = Accepted::parse(Some(b.as_bytes())).and(a.as_bytes());
            let joined = Accepted::parse(Some(std::format!("{a},{b}").as_bytes()));
            prop_assert_eq!(separate, swapped);
            prop_assert_eq!(separate, joined);
        }

        #[test]
        fn no_available_coding_beats_choice(
            elements in prop::collection::vec("(gzip|br|zstd|\\*|identity|x-gzip)(; ?q=(0(\\.[0-9]{1,3})?|1))?", 0..6),
            available in prop::collection::vec(prop::sample::select(ALL.to_vec()), 0..4),
        ) {
            let field: String = elements.join(", ");
            let accepted = Accepted::parse(Some(field.as_bytes()));
            let chosen = accepted.choose(available.iter().copied());
            prop_assert!(chosen == Identity || available.contains(&chosen));
            prop_assert!(available.iter().all(|&coding| accepted.quality(coding) <= accepted.quality(chosen)));
        }

        #[test]
        fn never_panics(field: Vec<u8>) {
            prop_assert!(ALL.iter().all(|&coding| Accepted::parse(Some(&field)).quality(coding) <= 1000));
            let _ = prefers_json(Some(&field));
            let fields = AcceptFields { accept: Some(&field), language: Some(&field), charset: Some(&field), encoding: Some(&field) };
            let _ = choose_variant(&[variant("text/html en utf-8"), variant("text/plain - -")], &fields);
        }

        /// The rules in a slow form: each variant has a rank for each of its
        /// qualities, and the variants that no other one beats are the best.
        #[test]
        fn choice_agrees_with_naive_rules(
            variants in prop::collection::vec(
                "(text/html|text/plain|application/pdf) (-|en|en-GB|fr|zh-Hant) (-|utf-8|iso-8859-1)", 0..5),
            types in prop::collection::vec("(text/html|text/plain|application/pdf|text/\\*|\\*/\\*|image/png)(;q=(0|0\\.[1-3]|1))?", 0..4),
            languages in prop::collection::vec("(en|EN-gb|en-US|fr|fr-CH|zh-Hant-TW|\\*)(;q=(0|0\\.[1-3]|1))?", 0..4),
            charsets in prop::collection::vec("(utf-8|ISO-8859-1|\\*)(;q=(0|0\\.[1-3]|1))?", 0..3),
            present in any::<[bool; 3]>(),
        ) {
            let values = [types.join(","), languages.join(", "), charsets.join(" ,")];
            let field = |at: usize| present[at].then_some(&*values[at]);
            let fields = AcceptFields {
                accept: field(0).map(str::as_bytes),
                language: field(1).map(str::as_bytes),
                charset: field(2).map(str::as_bytes),
                encoding: None,
            };
            let variants: Vec<_> = variants.iter().map(|text| variant(text)).collect();
            let places: Vec<Option<Vec<u32>>> = variants.iter().map(|one| slow::place(one, &[field(0), field(1), field(2)])).collect();
            let best = places.iter().flatten().max();
            let expected = match best {
                None => Choice::Nothing,
                Some(best) => {
                    let mut same = places.iter().enumerate().filter(|(_, place)| place.as_ref() == Some(best));
                    let (first, _) = same.next().expect("the best is one of them");
                    if same.next().is_some() { Choice::Tie(first) } else { Choice::One(first) }
                }
            };
            prop_assert_eq!(choose_variant(&variants, &fields), expected);
            // A choice is cached under the normalised fields, so it must be the same for these.
            let normal = values.each_ref().map(|field| {
                let mut out = Vec::new();
                normalise([field.as_bytes()].into_iter(), &mut out);
                out
            });
            let field = |at: usize| present[at].then_some(&*normal[at]);
            let fields = AcceptFields { accept: field(0), language: field(1), charset: field(2), encoding: None };
            prop_assert_eq!(choose_variant(&variants, &fields), expected);
        }

        #[test]
        fn normalization_is_idempotent(lines in prop::collection::vec("[a-zA-Z*;=,\"\\\\ \t0-9.]{0,20}", 0..3)) {
            let mut once = Vec::new();
            normalise(lines.iter().map(|line| line.as_bytes()), &mut once);
            if !once.contains(&b'"') {
                let mut twice = Vec::new();
                normalise([&*once].into_iter(), &mut twice);
                prop_assert_eq!(&once, &twice);
            }
        }
    }

    /// The rules as documented, without regard to cost.
    mod slow {
        use super::*;
        use std::borrow::ToOwned;

        fn elements(field: &str) -> Vec<(String, u32)> {
            let element = |text: &str| {
                let mut parts = text.trim().split(";q=");
                let name = parts.next().unwrap_or_default().to_lowercase();
                (name, parts.next().map_or(1000, |weight| (weight.parse::<f64>().unwrap() * 1000.0) as u32))
            };
            field.split(',').filter(|text| !text.trim().is_empty()).map(element).collect()
        }

        /// The ranges that match a type, in the order of specificity.
        fn of_type(field: &str, media_type: &str) -> (u32, u32) {
            let any = media_type.split('/').next().unwrap().to_owned() + "/*";
            for (specificity, name) in [(3, media_type), (2, &*any), (1, "*/*")] {
                let all = elements(field).into_iter().filter(|(range, _)| range == name).map(|(_, quality)| quality);
                if let Some(best) = all.max() {
                    return (best, specificity);
                }
            }
            (0, 0)
        }

        fn of_language(field: &str, tag: &str) -> Option<[u32; 3]> {
            let subtags: Vec<String> = tag.to_lowercase().split('-').map(str::to_owned).collect();
            let elements = elements(field);
            // RFC 4647, 3.3.1, from the whole tag to its first subtag.
            for length in (1..=subtags.len()).rev() {
                let range = subtags[..length].join("-");
                let best = elements.iter().filter(|(name, _)| *name == range).map(|(_, quality)| *quality).max();
                if let Some(best) = best {
                    return (best > 0).then_some([3, best, 0]);
                }
            }
            if let Some(best) = elements.iter().filter(|(name, _)| name == "*").map(|(_, quality)| *quality).max() {
                return (best > 0).then_some([3, best, 0]);
            }
            // RFC 4647, 3.4: a range without its last subtags. It shares its first subtags with the tag, at least one.
            let shared = |name: &str| name.split('-').zip(&subtags).take_while(|(a, b)| a == b).count() as u32;
            let rest =
                elements.iter().map(|(name, quality)| (*quality, shared(name))).filter(|(_, shared)| *shared > 0);
            rest.max().filter(|(quality, _)| *quality > 0).map(|(quality, shared)| [2, quality, shared])
        }

        fn of_charset(field: &str, charset: &str) -> u32 {
            for name in [charset, "*"] {
                let all = elements(field).into_iter().filter(|(known, _)| known == name).map(|(_, quality)| quality);
                if let Some(best) = all.max() {
                    return best;
                }
            }
            0
        }

        /// The larger, the better; `None`: not acceptable.
        pub(super) fn place(
            variant: &Variant<'_>,
            [types, languages, charsets]: &[Option<&str>; 3],
        ) -> Option<Vec<u32>> {
            let (quality, specificity) = types.map_or((1000, 0), |field| of_type(field, variant.media_type));
            let language = match (languages, variant.language) {
                (None, _) => [3, 1000, 0],
                (Some(_), None) => [1, 0, 0],
                (Some(field), Some(tag)) => of_language(field, tag)?,
            };
            let charset = match (charsets, variant.charset) {
                (Some(field), Some(charset)) => of_charset(field, charset),
                _ => 1000,
            };
            if quality == 0 || charset == 0 {
                return None;
            }
            Some([&[quality, specificity][..], &language, &[charset]].concat())
        }
    }
}
