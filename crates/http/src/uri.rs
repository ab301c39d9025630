//! The request target and the host of a request (RFC 9112, 3.2; RFC 3986).
//!
//! Before it, `h1` has split the target from the request line. After it, `amped-core` selects the site by [`Host`] and
//! looks up the path that [`clean_path`] returns; redirects and listings write paths with [`encode_path`].
//! A path that is rejected here never reaches the file system. Cleaning has a fixed order: split
//! at the slashes as sent, decode once, then look for dots. Otherwise `%2e%2e` would pass for a
//! name, or `%2F` would make a segment that was not matched against the rules for hidden files. The kernel
//! confines lookups to the root too (`openat2`); this module protects the meaning of paths.
//! Lenient where browsers are careless: `|`, `^`, quotes and bytes above 0x7f are
//! accepted in paths and queries, as file names may contain them; control bytes, spaces
//! and `#` are not. Not a URL library: no joining, no userinfo, no other schemes.

use crate::text::byte_set;
use alloc::borrow::Cow;
use alloc::vec::Vec;
use core::net::Ipv6Addr;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode, percent_encode};

/// The target of a request line (RFC 9112, 3.2). Paths are as sent: see [`clean_path`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TargetOf<T> {
    /// `/path?query`, the common form (RFC 9112, 3.2.1).
    Origin {
        /// Begins with `/`.
        path: T,
        /// The part after the `?`; may be empty.
        query: Option<T>,
    },
    /// `http://host/path?query`, the form for proxies, which a server must accept as well (RFC 9112, 3.2.2).
    Absolute {
        /// Accepted by [`host_of`], with a non-empty name. It takes precedence over the `Host` field.
        authority: T,
        /// Begins with `/`.
        path: T,
        /// The part after the `?`; may be empty.
        query: Option<T>,
    },
    /// `*`: the server itself (RFC 9112, 3.2.4). Valid for OPTIONS only, which the caller must check.
    Asterisk,
    /// `host:port`, accepted by [`host_of`]: the target of CONNECT (RFC 9112, 3.2.3).
    Authority(T),
}

/// A request target, borrowed from a head.
pub type Target<'a> = TargetOf<&'a [u8]>;

impl<T> TargetOf<T> {
    /// The same target with each part converted by `part`.
    pub(crate) fn map<U>(&self, part: &impl Fn(&T) -> U) -> TargetOf<U> {
        match self {
            TargetOf::Origin { path, query } => TargetOf::Origin { path: part(path), query: query.as_ref().map(part) },
            TargetOf::Absolute { authority, path, query } => {
                TargetOf::Absolute { authority: part(authority), path: part(path), query: query.as_ref().map(part) }
            }
            TargetOf::Asterisk => TargetOf::Asterisk,
            TargetOf::Authority(authority) => TargetOf::Authority(part(authority)),
        }
    }
}

impl<'a> Target<'a> {
    /// The part after the `?`, if there is one.
    pub fn query(&self) -> Option<&'a [u8]> {
        match self {
            TargetOf::Origin { query, .. } | TargetOf::Absolute { query, .. } => *query,
            TargetOf::Asterisk | TargetOf::Authority(_) => None,
        }
    }

    /// Parses a request target. `host:port` is valid for CONNECT,
    /// and the other forms for other methods (RFC 9112, 3.2).
    pub fn parse(target: &'a [u8], is_connect: bool) -> Option<Target<'a>> {
        if is_connect {
            let host = host_of(target)?;
            // RFC 9112, 3.2.3: there is no default port, so the port is required.
            return (!host.name.is_empty() && host.port.is_some()).then_some(Target::Authority(target));
        }
        match target {
            [b'/', ..] => {
                let (path, query) = split_query(target)?;
                Some(Target::Origin { path, query })
            }
            b"*" => Some(Target::Asterisk),
            _ => {
                let rest = strip_scheme(target)?;
                let authority_length = rest.iter().position(|byte| b"/?#".contains(byte)).unwrap_or(rest.len());
                let (authority, rest) = rest.split_at(authority_length);
                // RFC 9110, 4.2.1: an http URI with an empty host is invalid;
                // 4.2.4: userinfo is an error, and `host_of` rejects its `@`.
                if host_of(authority)?.name.is_empty() {
                    return None;
                }
                let (path, query) = split_query(rest)?;
                // RFC 9110, 4.2.3: an empty path is equivalent to `/`.
                let path = if path.is_empty() { b"/" } else { path };
                Some(Target::Absolute { authority, path, query })
            }
        }
    }
}

/// A host, as given by `Host` or the authority of a target (RFC 9110, 7.2; RFC 3986, 3.2.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Host<'a> {
    /// Without port and without the dot of the DNS root, in its original case.
    /// An IPv6 address has its brackets. Empty only if the whole field is.
    pub name: &'a [u8],
    /// `None` without a port, or if nothing follows the colon, which is equivalent (RFC 3986, 3.2.3).
    pub port: Option<u16>,
}

impl Host<'_> {
    /// Whether the host has this name. RFC 9110, 4.2.3: hosts are case-insensitive.
    pub fn is(&self, name: &[u8]) -> bool {
        self.name.eq_ignore_ascii_case(name)
    }
}

/// Parses the value of a `Host` field or an authority; `None` if it is invalid and the request must get a 400.
///
/// RFC 9112, 3.2: an empty value is valid, for a target that has no authority.
pub fn host_of(authority: &[u8]) -> Option<Host<'_>> {
    if authority.is_empty() {
        return Some(Host { name: b"", port: None });
    }
    let name_length = match authority {
        [b'[', ..] => authority.iter().position(|&byte| byte == b']')? + 1,
        _ => authority.iter().position(|&byte| byte == b':').unwrap_or(authority.len()),
    };
    let (name, rest) = authority.split_at(name_length);
    let port = match rest {
        [] | [b':'] => None,
        [b':', digits @ ..] => Some(read_port(digits)?),
        _ => return None,
    };
    let name = match name {
        [b'[', address @ .., b']'] => {
            // RFC 9844 removed the zone (`%eth0`) from URIs.
            let is_ipv6 = || core::str::from_utf8(address).is_ok_and(|address| address.parse::<Ipv6Addr>().is_ok());
            (is_ipv_future(address) || is_ipv6()).then_some(name)?
        }
        _ => {
            // `example.com.` is `example.com`: the dot is that of the DNS root.
            let name = name.strip_suffix(b".").unwrap_or(name);
            (!name.is_empty() && is_reg_name(name)).then_some(name)?
        }
    };
    Some(Host { name, port })
}

/// Why a path is rejected. All of these are the client's fault: 400.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathError {
    /// A `%` without two hexadecimal digits.
    BadEscape,
    /// A byte 0, bare or as `%00`: no file name contains one, and C would end the name there.
    Nul,
    /// `%2F`: a slash in a name, which no file has, and which is not a separator either (RFC 3986, 2.2).
    EncodedSlash,
    /// More `..` than segments before them.
    AboveRoot,
}

/// Cleans a path: decodes it once, and removes dot segments and empty segments.
///
/// The result begins with `/`, and ends with one if the path does, or ends in a dot segment. A path that is already
/// clean is returned as it is, after one scan; otherwise the result is written to `scratch`.
/// RFC 3986, 5.2.4 drops `..` at the root; we reject it, because no well-meaning client sends it.
pub fn clean_path<'a>(path: &'a [u8], scratch: &'a mut Vec<u8>) -> Result<&'a [u8], PathError> {
    if is_clean(path) {
        return Ok(path);
    }
    // Invariant of the loop: `scratch` begins and ends with a slash.
    scratch.clear();
    scratch.push(b'/');
    let mut segments = path.split(|&byte| byte == b'/').peekable();
    while let Some(segment) = segments.next() {
        let start = scratch.len();
        decode_segment(segment, scratch)?;
        match &scratch[start..] {
            b"" | b"." => scratch.truncate(start),
            b".." => {
                let parent = scratch[..start - 1].iter().rposition(|&byte| byte == b'/').ok_or(PathError::AboveRoot)?;
                scratch.truncate(parent + 1);
            }
            _ if segments.peek().is_some() => scratch.push(b'/'),
            _ => {}
        }
    }
    Ok(scratch)
}

/// As [`clean_path`], with `%2F` accepted as a slash, as paths of applications may contain
/// it; also returns whether there was one. The slashes are decoded first, so that the rules
/// for dots see every segment, and the rules for paths see the names that are used.
pub fn clean_path_with_slashes<'a>(path: &'a [u8], scratch: &'a mut Vec<u8>) -> Result<(&'a [u8], bool), PathError> {
    let is_slash = |escape: &[u8]| escape.eq_ignore_ascii_case(b"%2f");
    if memchr::memchr(b'%', path).is_none() || !path.windows(3).any(is_slash) {
        return Ok((clean_path(path, scratch)?, false));
    }
    let mut decoded = Vec::with_capacity(path.len());
    let mut rest = path;
    while let [byte, after @ ..] = rest {
        let is_slash = rest.get(..3).is_some_and(is_slash);
        decoded.push(if is_slash { b'/' } else { *byte });
        rest = if is_slash { &rest[3..] } else { after };
    }
    let mut cleaned = Vec::new();
    let path = clean_path(&decoded, &mut cleaned)?;
    scratch.clear();
    scratch.extend_from_slice(path);
    Ok((scratch, true))
}

/// Whether a path as sent differs from this clean form of it only by escapes: it has no dot segments and no empty ones,
/// which servers resolve differently.
pub fn is_equivalent(sent: &[u8], clean: &[u8]) -> bool {
    percent_decode(sent).eq(clean.iter().copied())
}

/// Whether a clean path contains a hidden name: one that begins with a dot, as in Unix.
///
/// `/.well-known` is not hidden, since clients must be able to fetch it (RFC 8615, 3).
pub fn hidden(path: &[u8]) -> bool {
    let mut segments = path.strip_prefix(b"/").unwrap_or(path).split(|&byte| byte == b'/');
    let first_hidden = segments.next().is_some_and(|first| first.starts_with(b".") && first != b".well-known");
    first_hidden || segments.any(|segment| segment.starts_with(b"."))
}

/// Appends a clean path as encoded for a `Location` or a link (RFC 3986, 3.3): the inverse of [`clean_path`].
///
/// The caller must handle two things: a lone name with a colon needs `./` before it, or it would look like a scheme
/// (RFC 3986, 4.2); and `&` is not encoded, so HTML must escape it.
pub fn encode_path(path: &[u8], out: &mut Vec<u8>) {
    for piece in percent_encode(path, ENCODED_IN_PATH) {
        out.extend_from_slice(piece.as_bytes());
    }
}

/// All but the slash and RFC 3986's pchar: unreserved, sub-delims, `:` and `@`. Of the sub-delims, `'` is encoded too,
/// so that a link cannot leave an attribute in single quotes. `%` is encoded because a clean path is already decoded.
const ENCODED_IN_PATH: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'/')
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~')
    .remove(b'!')
    .remove(b'$')
    .remove(b'&')
    .remove(b'(')
    .remove(b')')
    .remove(b'*')
    .remove(b'+')
    .remove(b',')
    .remove(b';')
    .remove(b'=')
    .remove(b':')
    .remove(b'@');

/// Appends a text as encoded for the value of a query field: `&`, `=`, `+` and other special characters are encoded.
pub fn encode_query_value(text: &[u8], out: &mut Vec<u8>) {
    for piece in percent_encode(text, ENCODED_IN_QUERY_VALUE) {
        out.extend_from_slice(piece.as_bytes());
    }
}

/// All but unreserved characters and the slash, which has no special meaning in a query (RFC 3986, 3.4).
const ENCODED_IN_QUERY_VALUE: &AsciiSet =
    &NON_ALPHANUMERIC.remove(b'/').remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// Returns the part after `http://` or `https://` (RFC 3986, 3.1: schemes are case-insensitive).
fn strip_scheme(target: &[u8]) -> Option<&[u8]> {
    [&b"http://"[..], b"https://"].iter().find_map(|scheme| {
        let (start, rest) = target.split_at_checked(scheme.len())?;
        start.eq_ignore_ascii_case(scheme).then_some(rest)
    })
}

/// Splits path and query; `None` if they contain an invalid byte,
/// such as `#`: a fragment is never sent (RFC 9112, 3.2).
fn split_query(text: &[u8]) -> Option<(&[u8], Option<&[u8]>)> {
    // Scan all bytes without an early exit, so that the compiler can vectorise the loop.
    let bad = text.iter().fold(false, |bad, &byte| bad | (byte <= b' ') | (byte == 0x7f) | (byte == b'#'));
    if bad {
        return None;
    }
    Some(match memchr::memchr(b'?', text) {
        Some(at) => (&text[..at], Some(&text[at + 1..])),
        None => (text, None),
    })
}

/// Parses digits up to 65535; leading zeros are allowed.
fn read_port(digits: &[u8]) -> Option<u16> {
    digits.iter().try_fold(0_u16, |port, digit| {
        let value = digit.is_ascii_digit().then(|| digit - b'0')?;
        port.checked_mul(10)?.checked_add(u16::from(value))
    })
}

/// RFC 3986, 3.2.2: `v`, a version in hexadecimal digits, a dot, and an address of unreserved, sub-delims and colons.
/// No version was ever defined, so no site has such a name, but it is valid.
fn is_ipv_future(address: &[u8]) -> bool {
    let [b'v' | b'V', rest @ ..] = address else { return false };
    let Some(dot) = rest.iter().position(|&byte| byte == b'.') else { return false };
    let (version, address) = (&rest[..dot], &rest[dot + 1..]);
    let is_address = |byte: &u8| byte.is_ascii_alphanumeric() || b"-._~!$&'()*+,;=:".contains(byte);
    !version.is_empty()
        && version.iter().all(u8::is_ascii_hexdigit)
        && !address.is_empty()
        && address.iter().all(is_address)
}

/// The unreserved characters and the sub-delims (RFC 3986, 2.2 and 2.3).
static IN_REG_NAME: [bool; 256] =
    byte_set(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~!$&'()*+,;=");

/// RFC 3986, 3.2.2: unreserved, sub-delims and escapes. IPv4 addresses match as well.
fn is_reg_name(name: &[u8]) -> bool {
    let mut rest = name;
    while let [byte, after @ ..] = rest {
        rest = match (byte, after) {
            (&byte, _) if IN_REG_NAME[usize::from(byte)] => after,
            (b'%', [high, low, after @ ..]) if high.is_ascii_hexdigit() && low.is_ascii_hexdigit() => after,
            _ => return false,
        };
    }
    true
}

/// Whether `clean_path` would neither change nor reject the path.
/// May return false for a clean path, such as `/.well-known`.
fn is_clean(path: &[u8]) -> bool {
    // Compare pairs of neighbours without an early exit, so that the compiler can vectorise the loop.
    let tail = path.get(1..).unwrap_or_default();
    let odd = path.iter().zip(tail).fold(false, |odd, (&before, &byte)| {
        odd | (byte == b'%') | (byte == 0) | ((before == b'/') & ((byte == b'/') | (byte == b'.')))
    });
    path.first() == Some(&b'/') && !odd
}

/// Decodes a segment and appends it.
fn decode_segment(segment: &[u8], out: &mut Vec<u8>) -> Result<(), PathError> {
    let mut rest = segment;
    while let [byte, after @ ..] = rest {
        let (byte, after) = match (*byte, after) {
            (b'%', [high, low, after @ ..]) => match (hex(*high)? << 4) | hex(*low)? {
                b'/' => return Err(PathError::EncodedSlash),
                decoded => (decoded, after),
            },
            (b'%', _) => return Err(PathError::BadEscape),
            (byte, after) => (byte, after),
        };
        if byte == 0 {
            return Err(PathError::Nul);
        }
        out.push(byte);
        rest = after;
    }
    Ok(())
}

/// Decodes the name or value of a parameter of a query (URL Standard, 5.1). An invalid escape stays as it is.
pub fn decode_query(text: &[u8]) -> Cow<'_, [u8]> {
    if memchr::memchr2(b'%', b'+', text).is_none() {
        return Cow::Borrowed(text);
    }
    let mut decoded = Vec::with_capacity(text.len());
    let mut rest = text;
    while let [byte, after @ ..] = rest {
        let (byte, after) = match (*byte, after) {
            (b'%', [high, low, beyond @ ..]) => match (hex(*high), hex(*low)) {
                (Ok(high), Ok(low)) => ((high << 4) | low, beyond),
                _ => (b'%', after),
            },
            (b'+', _) => (b' ', after),
            (byte, _) => (byte, after),
        };
        decoded.push(byte);
        rest = after;
    }
    Cow::Owned(decoded)
}

fn hex(digit: u8) -> Result<u8, PathError> {
    match digit {
        b'0'..=b'9' => Ok(digit - b'0'),
        b'a'..=b'f' => Ok(digit - b'a' + 10),
        b'A'..=b'F' => Ok(digit - b'A' + 10),
        _ => Err(PathError::BadEscape),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::string::String;

    #[test]
    fn valid_targets_parse_and_invalid_ones_fail() {
        /// `expected` is `form authority path query`, with `-` for an absent part.
        #[track_caller]
        fn check(target: &str, expected: Option<&str>) {
            let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
            let optional = |bytes: Option<&[u8]>| bytes.map_or(String::from("-"), text);
            let parsed = Target::parse(target.as_bytes(), false).map(|target| match target {
                Target::Origin { path, query } => std::format!("origin - {} {}", text(path), optional(query)),
                Target::Absolute { authority, path, query } => {
                    std::format!("absolute {} {} {}", text(authority), text(path), optional(query))
                }
                Target::Asterisk => String::from("asterisk"),
                Target::Authority(authority) => std::format!("authority {}", text(authority)),
            });
            assert_eq!(parsed.as_deref(), expected, "{target}");
        }
        check("/", Some("origin - / -"));
        check("/a/b.html", Some("origin - /a/b.html -"));
        check("/a?b=c", Some("origin - /a b=c"));
        check("/a?", Some("origin - /a "));
        check("/a?b?c/d", Some("origin - /a b?c/d"));
        check("//a", Some("origin - //a -"));
        check("/a|b^{c}", Some("origin - /a|b^{c} -"));
        check("/\u{e4}?\u{e4}", Some("origin - /\u{e4} \u{e4}"));
        check("*", Some("asterisk"));
        check("http://a/b?c", Some("absolute a /b c"));
        check("HTTPS://A.example:8443/", Some("absolute A.example:8443 / -"));
        check("http://a", Some("absolute a / -"));
        check("http://a?b", Some("absolute a / b"));
        check("http://[::1]:80/x", Some("absolute [::1]:80 /x -"));
        check("http://a/http://b/", Some("absolute a /http://b/ -"));
        for target in [
            "",
            "a",
            "a/b",
            "?a",
            "**",
            "*/",
            "/a#b",
            "/a?b#c",
            "/a b",
            "/a?b c",
            "/a\0",
            "/a\t",
            "/a\u{7f}",
            "http:",
            "http:/",
            "http://",
            "http:///a",
            "http://:80/a",
            "http://user@a/",
            "http://user:password@a/",
            "http://a b/",
            "http://a:x/",
            "http://a:80:80/",
            "http://a/#b",
            "http://a#b",
            "http:a",
            "ftp://a/",
            "a:80",
        ] {
            check(target, None);
        }
    }

    #[test]
    fn connect_target_must_be_host_and_port() {
        #[track_caller]
        fn check(target: &str, valid: bool) {
            let expected = valid.then_some(Target::Authority(target.as_bytes()));
            assert_eq!(Target::parse(target.as_bytes(), true), expected, "{target}");
        }
        check("a.example:443", true);
        check("[::1]:443", true);
        check("a.example", false);
        check("a.example:", false);
        check(":443", false);
        check("", false);
        check("*", false);
        check("/", false);
        check("http://a/", false);
    }

    #[test]
    fn valid_hosts_parse_and_invalid_ones_fail() {
        #[track_caller]
        fn check(authority: &str, expected: Option<(&str, Option<u16>)>) {
            let expected = expected.map(|(name, port)| Host { name: name.as_bytes(), port });
            assert_eq!(host_of(authority.as_bytes()), expected, "{authority}");
        }
        check("", Some(("", None)));
        check("example.com", Some(("example.com", None)));
        check("Example.COM:80", Some(("Example.COM", Some(80))));
        check("example.com.", Some(("example.com", None)));
        check("example.com.:8080", Some(("example.com", Some(8080))));
        check("example.com:", Some(("example.com", None)));
        check("a_b-c~d", Some(("a_b-c~d", None)));
        check("a!$&'()*+,;=", Some(("a!$&'()*+,;=", None)));
        check("a%2Db", Some(("a%2Db", None)));
        check("127.0.0.1:1", Some(("127.0.0.1", Some(1))));
        check("[::1]", Some(("[::1]", None)));
        check("[::ffff:1.2.3.4]:00080", Some(("[::ffff:1.2.3.4]", Some(80))));
        check("a:65535", Some(("a", Some(65535))));
        check("a:0", Some(("a", Some(0))));
        for authority in [
            ".",
            ":80",
            ":",
            "a:65536",
            "a:99999999999999999999",
            "a:-1",
            "a:+1",
            "a:8x",
            "a:80:80",
            "a b",
            " a",
            "a/b",
            "a@b",
            "a?",
            "a#",
            "a\\b",
            "a\"",
            "<a>",
            "\u{e4}",
            "a\0",
            "a%",
            "a%2",
            "a%2g",
            "::1",
            "[::1",
            "::1]",
            "[]",
            "[::1].",
            "[::1]a",
            "[::g]",
            "[1.2.3.4]",
            "[fe80::1%25eth0]",
            "[fe80::1%eth0]",
            "[v1.]",
            "[v.a]",
            "[vg.a]",
            "[v1.a@b]",
            "[v1]",
            "[[::1]]",
        ] {
            check(authority, None);
        }
        assert_eq!(host_of(b"[v1.a]:80"), Some(Host { name: b"[v1.a]", port: Some(80) }));
        assert!(host_of(b"[vF0.a:b~]").is_some());
        assert!(host_of(b"Example.COM:80").unwrap().is(b"example.com"));
        assert!(!host_of(b"example.com").unwrap().is(b"example.org"));
    }

    #[test]
    fn paths_are_normalized() {
        #[track_caller]
        fn check(path: &str, expected: Result<&str, PathError>) {
            let mut scratch = b"/left from before".to_vec();
            let cleaned = clean_path(path.as_bytes(), &mut scratch);
            assert_eq!(cleaned, expected.map(str::as_bytes), "{path}");
        }
        // Already clean.
        for path in ["/", "/a", "/a/", "/a/b.html", "/a.b/c..d/e.", "/~user/", "/a b", "/\u{e4}", "/a..", "/a\\b"] {
            check(path, Ok(path));
        }
        // Escapes.
        check("/%61", Ok("/a"));
        check("/a%20b", Ok("/a b"));
        check("/%C3%a4", Ok("/\u{e4}"));
        check("/%253F", Ok("/%3F"));
        check("/%252F", Ok("/%2F"));
        check("/%3f%23", Ok("/?#"));
        check("/%5c", Ok("/\\"));
        check("/%", Err(PathError::BadEscape));
        check("/%a", Err(PathError::BadEscape));
        check("/%a/b", Err(PathError::BadEscape));
        check("/%ga", Err(PathError::BadEscape));
        check("/%ag", Err(PathError::BadEscape));
        check("/%%61", Err(PathError::BadEscape));
        check("/%+1", Err(PathError::BadEscape));
        check("/%u0061", Err(PathError::BadEscape));
        check("/a%2Fb", Err(PathError::EncodedSlash));
        check("/a%2fb", Err(PathError::EncodedSlash));
        check("/..%2f", Err(PathError::EncodedSlash));
        check("/a%00", Err(PathError::Nul));
        check("/a\0b", Err(PathError::Nul));
        // Slashes.
        check("//", Ok("/"));
        check("//a", Ok("/a"));
        check("/a//b///c", Ok("/a/b/c"));
        check("/a//", Ok("/a/"));
        check("", Ok("/"));
        check("a", Ok("/a"));
        // Dots.
        check("/.", Ok("/"));
        check("/./", Ok("/"));
        check("/./a", Ok("/a"));
        check("/a/.", Ok("/a/"));
        check("/a/./b", Ok("/a/b"));
        check("/a/..", Ok("/"));
        check("/a/../", Ok("/"));
        check("/a/../b", Ok("/b"));
        check("/a/b/..", Ok("/a/"));
        check("/a/b/../../c", Ok("/c"));
        check("/a//../b", Ok("/b"));
        check("/a/%2e%2E/b", Ok("/b"));
        check("/a/.%2e/b", Ok("/b"));
        check("/a/%2e/b", Ok("/a/b"));
        check("/%252e%252e/a", Ok("/%2e%2e/a"));
        check("/...", Ok("/..."));
        check("/.a/..b", Ok("/.a/..b"));
        check("/..", Err(PathError::AboveRoot));
        check("/../", Err(PathError::AboveRoot));
        check("/../a", Err(PathError::AboveRoot));
        check("/a/../..", Err(PathError::AboveRoot));
        check("/a/../../a", Err(PathError::AboveRoot));
        check("//..", Err(PathError::AboveRoot));
        check("/./..", Err(PathError::AboveRoot));
        check("/%2e%2e", Err(PathError::AboveRoot));
    }

    #[test]
    fn plain_path_is_not_copied() {
        let path = b"/images/logo.png";
        let mut scratch = Vec::new();
        assert!(core::ptr::eq(clean_path(path, &mut scratch).unwrap(), path));
        assert_eq!(scratch.capacity(), 0);
    }

    #[test]
    fn dotfile_names_are_hidden() {
        #[track_caller]
        fn check(path: &str, expected: bool) {
            assert_eq!(hidden(path.as_bytes()), expected, "{path}");
        }
        check("", false);
        check("/", false);
        check("/a.b/c.", false);
        check("/.git", true);
        check("/.git/config", true);
        check("/a/.htpasswd", true);
        check("/a/.b/", true);
        check("/...", true);
        check("/.well-known", false);
        check("/.well-known/", false);
        check("/.well-known/acme-challenge/x", false);
        check("/.well-known/.git", true);
        check("/.well-known-too", true);
        check("/.Well-Known/x", true);
        check("/a/.well-known/x", true);
    }

    #[test]
    fn encoded_slashes_are_decoded_on_request() {
        #[track_caller]
        fn check(path: &str, expected: Result<(&str, bool), PathError>) {
            let mut scratch = b"/left from before".to_vec();
            let cleaned = clean_path_with_slashes(path.as_bytes(), &mut scratch);
            assert_eq!(cleaned, expected.map(|(path, any)| (path.as_bytes(), any)), "{path}");
        }
        check("/a", Ok(("/a", false)));
        check("/a//b%20", Ok(("/a/b ", false)));
        check("/a%2Fb%2f", Ok(("/a/b/", true)));
        check("/a%2F%2Fb", Ok(("/a/b", true)));
        check("/a%252Fb", Ok(("/a%2Fb", false)));
        check("/a%2F..%2Fb", Ok(("/b", true)));
        check("/a/..%2F..", Err(PathError::AboveRoot));
        check("/a%2F%zz", Err(PathError::BadEscape));
        check("/a%%2F", Err(PathError::BadEscape));
        check("/a%2F%00", Err(PathError::Nul));
    }

    #[test]
    fn paths_are_encoded() {
        #[track_caller]
        fn check(path: &str, expected: &str) {
            let mut out = b"to ".to_vec();
            encode_path(path.as_bytes(), &mut out);
            assert_eq!(core::str::from_utf8(&out[3..]).unwrap(), expected);
        }
        check("", "");
        check("/a/b-c._~/", "/a/b-c._~/");
        check("/!$&()*+,;=:@", "/!$&()*+,;=:@");
        check("/a b", "/a%20b");
        check("/\"<>'", "/%22%3C%3E%27");
        check("/50%?#", "/50%25%3F%23");
        check("/\\^`{|}[]", "/%5C%5E%60%7B%7C%7D%5B%5D");
        check("/\r\n\0\u{7f}", "/%0D%0A%00%7F");
        check("/\u{e4}", "/%C3%A4");
    }

    /// Bytes with a meaning in paths, and some without.
    fn path_like() -> impl Strategy<Value = Vec<u8>> {
        prop::collection::vec(prop::sample::select(b"//..%%22eEfF00a\xff\0".to_vec()), 0..16)
    }

    proptest! {
        #[test]
        fn normalized_path_is_clean(path in path_like()) {
            let (mut scratch, mut again) = (Vec::new(), Vec::new());
            if let Ok(cleaned) = clean_path(&path, &mut scratch) {
                prop_assert_eq!(cleaned.first(), Some(&b'/'));
                prop_assert!(!cleaned.contains(&0));
                let segments: Vec<&[u8]> = cleaned[1..].split(|&byte| byte == b'/').collect();
                prop_assert!(segments.iter().all(|&segment| segment != b"." && segment != b".."));
                prop_assert!(segments[..segments.len() - 1].iter().all(|segment| !segment.is_empty()));
                if !cleaned.contains(&b'%') {
                    prop_assert_eq!(clean_path(cleaned, &mut again), Ok(cleaned));
                }
            }
        }

        #[test]
        fn decoding_reverses_encoding(path in path_like()) {
            let (mut scratch, mut again, mut encoded) = (Vec::new(), Vec::new(), Vec::new());
            if let Ok(cleaned) = clean_path(&path, &mut scratch) {
                encode_path(cleaned, &mut encoded);
                prop_assert!(encoded.is_ascii());
                prop_assert_eq!(clean_path(&encoded, &mut again), Ok(cleaned));
            }
        }

        #[test]
        fn clean_path_is_not_copied(path in "/([a-z~]{1,3}[.]{0,2}/){0,4}") {
            let mut scratch = Vec::new();
            prop_assert!(core::ptr::eq(clean_path(path.as_bytes(), &mut scratch).unwrap(), path.as_bytes()));
        }

        #[test]
        fn absolute_target_has_valid_parts(target in "(/|http://|HTTPS://)[a-z:@/?#%. \\[\\]]{0,12}") {
            if let Some(Target::Absolute { authority, path, query }) = Target::parse(target.as_bytes(), false) {
                prop_assert!(host_of(authority).is_some_and(|host| !host.name.is_empty()));
                prop_assert!(path.starts_with(b"/") && !path.contains(&b'?'));
                prop_assert!(query.is_none_or(|query| !query.contains(&b'#')));
            }
        }

        #[test]
        fn never_panics(bytes: Vec<u8>, is_connect: bool) {
            let mut scratch = Vec::new();
            let _ = Target::parse(&bytes, is_connect);
            let _ = host_of(&bytes);
            let _ = clean_path(&bytes, &mut scratch);
            let _ = hidden(&bytes);
        }
    }
}
