//! Caching directives of a response: Cache-Control, Expires, Age and Vary (RFC 9111), as a shared cache obeys them, and
//! X-Accel-Expires, by which applications tell nginx the lifetime of a response in its cache.
//!
//! Before it: the fields of a response. After it: `amped-core` decides whether to store the response, and for how long
//! it stays fresh. A malformed value is read in the sense that stores less.

use alloc::string::String;
use alloc::vec::Vec;

use crate::date;
use crate::negotiate::split_unquoted;
use crate::text::trim_ows;

/// The caching directives of a response.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Said {
    /// The response must not be stored, or not be used without revalidation: `no-store` (RFC 9111, 5.2.2.5), `private`
    /// (5.2.2.7) or `no-cache` (5.2.2.4), each with or without field names.
    pub forbids: bool,
    /// RFC 9111, 3.5: `public`, `s-maxage` or `must-revalidate` lets a
    /// shared cache store the response to a request with credentials.
    pub for_all: bool,
    /// Freshness lifetime in seconds (X-Accel-Expires, else RFC 9111, 4.2.1: `s-maxage`, else `max-age`, else Expires);
    /// `None` if not given.
    pub lifetime: Option<u64>,
    /// Seconds after its lifetime during which the response may be used while it is revalidated (RFC 5861, 3); `None` if
    /// nothing is said about that.
    pub stale_while_revalidate: Option<u64>,
    /// Seconds after its lifetime during which the response may be used in place of an error (RFC 5861, 4); likewise.
    pub stale_if_error: Option<u64>,
    /// Age in seconds on arrival (RFC 9111, 5.1).
    pub age: u64,
    /// The request fields that the response depends on, in lower case, sorted (RFC 9110, 12.5.5); `None` for `*`.
    pub vary: Option<Vec<String>>,
}

/// Seconds that represent any larger value (RFC 9111, 1.2.2).
const FOREVER: u64 = 1 << 31;

/// Reads these fields of a response that arrived at `now_seconds`.
pub fn read<'a>(fields: impl Iterator<Item = (&'a str, &'a [u8])>, now_seconds: i64) -> Said {
    let mut said = Said { vary: Some(Vec::new()), ..Said::default() };
    let (mut s_maxage, mut max_age, mut expires, mut accel) = (None, None, None, None);
    let (mut while_revalidate, mut if_error, mut forbids_stale) = (None, None, false);
    for (name, value) in fields {
        let is = |known: &str| name.eq_ignore_ascii_case(known);
        if is("cache-control") {
            each_directive(value, |directive, argument| {
                let is = |known: &str| directive.eq_ignore_ascii_case(known.as_bytes());
                said.forbids |= is("no-store") || is("private") || is("no-cache");
                said.for_all |= is("public") || is("must-revalidate") || is("s-maxage");
                forbids_stale |= is("must-revalidate") || is("proxy-revalidate");
                if is("s-maxage") {
                    note(&mut s_maxage, argument);
                } else if is("max-age") {
                    note(&mut max_age, argument);
                } else if is("stale-while-revalidate") {
                    note(&mut while_revalidate, argument);
                } else if is("stale-if-error") {
                    note(&mut if_error, argument);
                }
            });
        } else if is("expires") {
            // RFC 9111, 5.3: an invalid date, `0` above all, is in the past.
            let at = date::parse(value, now_seconds).map_or(0, |at| u64::try_from(at - now_seconds).unwrap_or(0));
            expires = Some(expires.map_or(at, |known: u64| known.min(at)));
        } else if is("x-accel-expires") {
            // Seconds, or after `@` those since 1970. Unlike in nginx it does not override a Cache-Control that forbids.
            let lifetime = match value.strip_prefix(b"@") {
                Some(at) => seconds(at).map_or(0, |at| at.saturating_sub(u64::try_from(now_seconds).unwrap_or(0))),
                None => seconds(value).unwrap_or(0),
            };
            accel = Some(accel.map_or(lifetime, |known: u64| known.min(lifetime)));
        } else if is("age") {
            said.age = said.age.max(seconds(value).unwrap_or(FOREVER));
        } else if is("vary") {
            for field in value.split(|&byte| byte == b',').map(trim_ows).filter(|field| !field.is_empty()) {
                match (&mut said.vary, core::str::from_utf8(field)) {
                    (Some(known), Ok(field)) if field != "*" => {
                        let field = field.to_ascii_lowercase();
                        if let Err(at) = known.binary_search(&field) {
                            known.insert(at, field);
                        }
                    }
                    _ => said.vary = None,
                }
            }
        }
    }
    said.lifetime = accel.or(s_maxage).or(max_age).or(expires);
    // RFC 9111, 5.2.2.2 and 5.2.2.8 forbid every use of a stale response. So does s-maxage (5.2.2.10), unless the
    // response itself makes an exception, which applications do that know RFC 5861.
    let at_most = |said: Option<u64>| if forbids_stale { Some(0) } else { said.or(s_maxage.map(|_| 0)) };
    (said.stale_while_revalidate, said.stale_if_error) = (at_most(while_revalidate), at_most(if_error));
    said
}

/// Whether this value of Cache-Control forbids to change the coding of a response (`no-transform`: RFC 9111, 5.2.2.6).
pub fn forbids_transformation(value: &[u8]) -> bool {
    let mut forbids = false;
    each_directive(value, |directive, _| forbids |= directive.eq_ignore_ascii_case(b"no-transform"));
    forbids
}

/// RFC 9111, 4.2.1: of conflicting or invalid directives the shortest lifetime counts.
fn note(known: &mut Option<u64>, argument: &[u8]) {
    let seconds = seconds(argument).unwrap_or(0);
    *known = Some(known.map_or(seconds, |known| known.min(seconds)));
}

/// RFC 9111, 1.2.2.
fn seconds(text: &[u8]) -> Option<u64> {
    let is_number = !text.is_empty() && text.iter().all(u8::is_ascii_digit);
    is_number.then(|| text.iter().fold(0, |sum: u64, digit| (sum * 10 + u64::from(digit - b'0')).min(FOREVER)))
}

/// Calls `f` with each directive of a value and its argument, which may be quoted (RFC 9111, 5.2).
fn each_directive<'a>(mut rest: &'a [u8], mut f: impl FnMut(&'a [u8], &'a [u8])) {
    while !rest.is_empty() {
        let (element, after) = split_unquoted(rest, b',');
        rest = after;
        let equals = element.iter().position(|&byte| byte == b'=');
        let (directive, argument) = equals.map_or((element, &b""[..]), |at| (&element[..at], &element[at + 1..]));
        let argument = trim_ows(argument);
        let inside = argument.strip_prefix(b"\"").and_then(|argument| argument.strip_suffix(b"\""));
        f(trim_ows(directive), inside.unwrap_or(argument));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;
    use proptest::prelude::*;

    const NOW: i64 = 784_111_777;

    fn said(fields: &str) -> Said {
        let fields = fields.lines().filter_map(|line| line.split_once(": "));
        read(fields.map(|(name, value)| (name, value.as_bytes())), NOW)
    }

    #[test]
    fn lifetime_follows_response_fields() {
        let check = |fields: &str, expected: Option<u64>| {
            assert_eq!(said(fields).lifetime, expected, "{fields}");
            assert!(!said(fields).forbids, "{fields}");
        };
        check("", None);
        check("Cache-Control: max-age=60", Some(60));
        check("cache-control: MAX-AGE=\"60\"", Some(60));
        check("Cache-Control: max-age=60, s-maxage=5", Some(5));
        check("Cache-Control: s-maxage=500\nCache-Control: max-age=60", Some(500));
        check("Cache-Control: public, max-age = 7 ,", Some(7));
        check("Cache-Control: max-age=60, max-age=50, max-age=70", Some(50));
        check("Cache-Control: max-age=99999999999999999999", Some(FOREVER));
        for bad in ["max-age", "max-age=", "max-age=-1", "max-age=1.5", "max-age=x", "max-age=\"5"] {
            check(&["Cache-Control: ", bad].concat(), Some(0));
        }
        check("Expires: Sun, 06 Nov 1994 08:49:47 GMT", Some(10));
        check("Expires: Sun, 06 Nov 1994 08:49:27 GMT", Some(0));
        check("Expires: 0", Some(0));
        check("Expires: 0\nCache-Control: max-age=9", Some(9));
        check("Cache-Control: public", None);
        check("X-Accel-Expires: 0\nCache-Control: max-age=9", Some(0));
        check("Cache-Control: max-age=9, s-maxage=8\nx-accel-expires: 7", Some(7));
        check("X-Accel-Expires: 5\nX-Accel-Expires: 4", Some(4));
        check("X-Accel-Expires: @784111787", Some(10));
        check("X-Accel-Expires: @784111767", Some(0));
        for bad in ["", "@", "-1", "off"] {
            check(&["X-Accel-Expires: ", bad].concat(), Some(0));
        }
        check("Cache-Control: x-max-age=5, y=\"max-age=6, no-store\"", None);
    }

    #[test]
    fn directives_forbid_or_permit_caching() {
        let check = |value: &str, forbids: bool, for_all: bool| {
            let said = said(&["Cache-Control: ", value].concat());
            assert_eq!((said.forbids, said.for_all), (forbids, for_all), "{value}");
        };
        check("no-store", true, false);
        check("No-Cache", true, false);
        check("no-cache=\"Set-Cookie, X\"", true, false);
        check("private=\"X\", max-age=5", true, false);
        check("max-age=5, private", true, false);
        check("public, max-age=5", false, true);
        check("s-maxage=5", false, true);
        check("must-revalidate", false, true);
        check("proxy-revalidate, no-transform, immutable", false, false);
        check("x=\"no-store\"", false, false);
    }

    #[test]
    fn stale_use_follows_response_fields() {
        let check = |value: &str, while_revalidate: Option<u64>, if_error: Option<u64>| {
            let said = said(&["Cache-Control: ", value].concat());
            assert_eq!((said.stale_while_revalidate, said.stale_if_error), (while_revalidate, if_error), "{value}");
        };
        check("max-age=60", None, None);
        check("max-age=60, stale-while-revalidate=5", Some(5), None);
        check("max-age=60, Stale-If-Error=\"7\", stale-while-revalidate=5", Some(5), Some(7));
        check("stale-if-error=9, stale-if-error=8", None, Some(8));
        check("stale-while-revalidate, stale-if-error=x", Some(0), Some(0));
        check("must-revalidate, stale-while-revalidate=5, stale-if-error=5", Some(0), Some(0));
        check("proxy-revalidate, stale-while-revalidate=5", Some(0), Some(0));
        check("s-maxage=60", Some(0), Some(0));
        check("s-maxage=60, stale-while-revalidate=5", Some(5), Some(0));
    }

    #[test]
    fn vary_and_age_are_parsed() {
        let check = |fields: &str, vary: Option<&[&str]>, age: u64| {
            let said = said(fields);
            let expected = vary.map(|names| names.iter().map(ToString::to_string).collect::<Vec<_>>());
            assert_eq!((said.vary, said.age), (expected, age), "{fields}");
        };
        check("", Some(&[]), 0);
        check("Vary: Cookie, accept-LANGUAGE,,cookie", Some(&["accept-language", "cookie"]), 0);
        check("Vary: B\nVary: A", Some(&["a", "b"]), 0);
        check("Vary: *", None, 0);
        check("Vary: a, *\nVary: b", None, 0);
        check("Vary: \u{e9}", Some(&["\u{e9}"]), 0);
        check("Age: 17", Some(&[]), 17);
        check("Age: x", Some(&[]), FOREVER);
    }

    proptest! {
        #[test]
        fn random_bytes_do_not_panic(value in proptest::collection::vec(any::<u8>(), 0..100)) {
            for name in ["Cache-Control", "Expires", "Age", "Vary", "X-Accel-Expires"] {
                let all = read([(name, &value[..]), ("Cache-Control", b"no-store")].into_iter(), NOW);
                prop_assert!(all.forbids && all.age <= FOREVER && all.lifetime.is_none_or(|life| life <= FOREVER.max(1 << 40)));
            }
        }
    }
}
