//! Proactive negotiation: which content coding, and whether a machine or a person reads our own pages (RFC 9110, 12).
//!
//! Before it: the `Accept-Encoding` and `Accept` fields of a request. After it: the sibling file that `amped-core`
//! picks (`page.html.br` for `page.html`), and the form of listings and error pages.
//! `Accept-Encoding` comes with each request of a browser, so it becomes ten bytes without allocation, and the choice
//! among the siblings that exist is made later, when the disk or a cache has told which do.
//! Not here: languages and charsets, of which a file has the one it has.

use crate::text::{list, trim_ows};

/// A content coding that we can send (RFC 9110, 8.4.1). Ordered by preference: the last shrinks text most.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Coding {
    /// None: the file itself.
    Identity,
    /// RFC 1952.
    Gzip,
    /// RFC 8878.
    Zstd,
    /// RFC 7932.
    Brotli,
}

impl Coding {
    /// The codings whose file stands beside the plain one, best first.
    pub const SIBLINGS: [Coding; 3] = [Coding::Brotli, Coding::Zstd, Coding::Gzip];

    /// The name in `Content-Encoding` (RFC 9110, 18.6). `Identity` is never written there.
    pub fn token(self) -> &'static str {
        match self {
            Coding::Identity => "identity",
            Coding::Gzip => "gzip",
            Coding::Zstd => "zstd",
            Coding::Brotli => "br",
        }
    }

    /// What the name of the sibling file has at its end.
    pub fn suffix(self) -> &'static str {
        match self {
            Coding::Identity => "",
            Coding::Gzip => ".gz",
            Coding::Zstd => ".zst",
            Coding::Brotli => ".br",
        }
    }

    /// RFC 9110, 8.4.1: names are case-insensitive. RFC 9110, 8.4.1.3: `x-gzip` is gzip.
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

/// The `Accept-Encoding` of a request, in as much as it concerns the codings that we know (RFC 9110, 12.5.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Accepted {
    /// By `Coding`: 0 to 1000 thousandths, or `UNNAMED`.
    named: [u16; 4],
    /// Of `*`: the same.
    others: u16,
}

/// Not mentioned in the field. Not an `Option`, so that `Accepted` stays at ten bytes.
const UNNAMED: u16 = u16::MAX;

impl Accepted {
    /// What a request without the field accepts. RFC 9110, 12.5.3 lets it mean any coding; but a client that can
    /// decode one says so, and to the others an encoded page is noise: so only `Identity`.
    pub const NOTHING_SAID: Accepted = Accepted { named: [UNNAMED; 4], others: UNNAMED };

    /// Reads an `Accept-Encoding` field, or none. Malformed elements and unknown codings are skipped.
    pub fn parse(field: Option<&[u8]>) -> Accepted {
        field.map_or(Accepted::NOTHING_SAID, |field| Accepted::NOTHING_SAID.and(field))
    }

    /// With one more line of the field. RFC 9110, 5.3: lines are one list, so the order of calls does not matter.
    ///
    /// A coding that is named twice (as gzip and x-gzip, say) has the higher of its qualities.
    pub fn and(mut self, field: &[u8]) -> Accepted {
        for element in list(field) {
            let (token, weight) = match element.iter().position(|&byte| byte == b';') {
                Some(at) => (trim_ows(&element[..at]), read_weight(&element[at + 1..])),
                None => (element, Some(1000)),
            };
            let Some(quality) = weight else { continue };
            let slot = match Coding::from_token(token) {
                Some(coding) => &mut self.named[coding as usize],
                None if token == b"*" => &mut self.others,
                None => continue,
            };
            *slot = if *slot == UNNAMED { quality } else { quality.max(*slot) };
        }
        self
    }

    /// The quality of a coding, 0 (not acceptable) to 1000 (RFC 9110, 12.4.2).
    ///
    /// `*` stands for what is not named (RFC 9110, 12.5.3), but not for `Identity`, of which it only tells whether it
    /// is excluded: identity that is not named has the least quality that is still acceptable, 1. A client that lists
    /// its codings means these to be used.
    pub fn quality(self, coding: Coding) -> u16 {
        match (self.named[coding as usize], self.others) {
            (UNNAMED, 0) => 0,
            (UNNAMED, _) if coding == Coding::Identity => 1,
            (UNNAMED, UNNAMED) => 0,
            (UNNAMED, others) => others,
            (named, _) => named,
        }
    }

    /// The best of the available codings: the highest quality, and among equals the last in the order of [`Coding`].
    ///
    /// `Identity` is always available, listed or not. It is the answer also where nothing available is acceptable, even
    /// if the field excludes it: RFC 9110, 12.4.1 lets a server disregard the field, and a page that may be unreadable
    /// helps more often than a 406 that is of no use for certain.
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
/// Each takes its quality from the most specific range that matches it: `type/subtype`, then `type/*`, then `*/*`. So
/// equal qualities, or no field, mean HTML; HTML with quality 0 means JSON, if that has any.
/// Parameters other than `q` are not compared: ours has none that a client could mean by `;charset=utf-8`.
pub fn prefers_json(accept: Option<&[u8]>) -> bool {
    let mut json = Preference::default();
    let mut html = Preference::default();
    let mut rest = accept.unwrap_or_default();
    while !rest.is_empty() {
        let (element, after) = split_unquoted(rest, b',');
        rest = after;
        let Some((range, quality)) = read_media_range(element) else { continue };
        json.consider(range, b"application/json", b"application/*", quality);
        html.consider(range, b"text/html", b"text/*", quality);
    }
    json.quality > html.quality
}

/// The quality of one media type, as the ranges so far tell it.
#[derive(Default)]
struct Preference {
    /// 0 none, 1 `*/*`, 2 `type/*`, 3 `type/subtype`.
    specificity: u8,
    quality: u16,
}

impl Preference {
    fn consider(&mut self, range: &[u8], media_type: &[u8], any_subtype: &[u8], quality: u16) {
        let specificity = if range.eq_ignore_ascii_case(media_type) {
            3
        } else if range.eq_ignore_ascii_case(any_subtype) {
            2
        } else if range == b"*/*" {
            1
        } else {
            return;
        };
        // The more specific one counts; of two that are the same, the higher quality.
        let better = (specificity, quality) > (self.specificity, self.quality);
        if better {
            *self = Preference { specificity, quality };
        }
    }
}

/// `text/html;level=1;q=0.5` to `text/html` and 500; `None` where the weight is malformed.
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

/// What stands before the first `separator` that is not within quotes (RFC 9110, 5.6.4), and what stands after it.
fn split_unquoted(text: &[u8], separator: u8) -> (&[u8], &[u8]) {
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

/// `q=0.5` as 500. RFC 9110, 12.4.2: three decimals at most, 1 at most, and `q` in either case.
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
    use std::vec::Vec;

    const ALL: [Coding; 4] = [Identity, Gzip, Zstd, Brotli];

    #[test]
    fn accept_encoding_gives_qualities() {
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
        // Malformed elements are skipped, and only they.
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
    fn the_best_available_coding_is_chosen() {
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
        // Identity below any coding that is acceptable, unless it is named.
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
    fn siblings_are_in_order_of_preference() {
        assert!(Coding::SIBLINGS.is_sorted_by(|a, b| a > b));
        assert_eq!(Coding::SIBLINGS.map(Coding::suffix), [".br", ".zst", ".gz"]);
        for coding in ALL {
            assert_eq!(Coding::from_token(coding.token().as_bytes()), Some(coding));
        }
        assert_eq!(size_of::<Accepted>(), 10);
    }

    #[test]
    fn json_for_those_who_ask_for_it() {
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
        // Quoted text may hold separators.
        check(Some(r#"text/plain;x="a,application/json;q=1", text/html;q=0.1"#), false);
        check(Some(r#"text/html;x="\",";q=0.1, application/json;q=0.2"#), true);
        check(Some(r#"application/json;x="never closed, text/html"#), true);
        // Malformed elements are skipped.
        check(Some("application/json;q=9, text/html;q=0.1"), false);
        check(Some("application/json;q=0.5;q=x, text/html;q=0.1"), false);
        check(Some(",;,application/json,"), true);
    }

    proptest! {
        #[test]
        fn lines_are_one_list(a in "[a-z*;=0-9., -]{0,30}", b in "(gzip|br|zstd|\\*|identity)(;q=0\\.[0-9])?") {
            let separate = Accepted::parse(Some(a.as_bytes())).and(b.as_bytes());
            let swapped = Accepted::parse(Some(b.as_bytes())).and(a.as_bytes());
            let joined = Accepted::parse(Some(std::format!("{a},{b}").as_bytes()));
            prop_assert_eq!(separate, swapped);
            prop_assert_eq!(separate, joined);
        }

        #[test]
        fn nothing_available_is_better_than_the_choice(
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
        }
    }
}
