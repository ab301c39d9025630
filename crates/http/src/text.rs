//! The pieces of field syntax that several headers share: whitespace, lists, numbers.
//!
//! Any grammar of more than a line or two has a module of its own.

use alloc::vec::Vec;

/// Appends `n` in decimal. Avoids `core::fmt`: this runs for each `Content-Length` and each byte count of the log.
pub fn push_decimal(out: &mut Vec<u8>, n: u64) {
    // 20 digits hold u64::MAX. Written from the end, because the last digit is known first.
    let mut digits = [0; 20];
    let mut rest = n;
    let mut start = digits.len();
    for (at, digit) in digits.iter_mut().enumerate().rev() {
        *digit = b'0' + (rest % 10) as u8;
        start = at;
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    out.extend_from_slice(&digits[start..]);
}

/// Returns a table that is true for these bytes. A lookup costs less than comparing a byte with each of them,
/// above all in short texts, where a vectorised loop does not begin.
pub const fn byte_set(bytes: &[u8]) -> [bool; 256] {
    let mut set = [false; 256];
    let mut at = 0;
    while at < bytes.len() {
        set[bytes[at] as usize] = true;
        at += 1;
    }
    set
}

/// Strips the optional whitespace at both ends (RFC 9110, 5.6.3: spaces and tabs, nothing else).
pub fn trim_ows(mut text: &[u8]) -> &[u8] {
    while let [b' ' | b'\t', rest @ ..] | [rest @ .., b' ' | b'\t'] = text {
        text = rest;
    }
    text
}

/// Iterates over the elements of a comma-separated list, trimmed, without the empty ones (RFC 9110, 5.6.1.2).
///
/// Only for lists without quoted strings: a comma inside quotes would count as a separator.
pub fn list(field: &[u8]) -> impl Iterator<Item = &[u8]> {
    field.split(|&byte| byte == b',').map(trim_ows).filter(|element| !element.is_empty())
}

/// Text, and the name of the variable that follows it, if any.
pub type TextThenVariable<'a> = (&'a str, Option<&'a str>);

/// Splits a template with variables (`$name` or `${name}`, as in nginx).
///
/// # Errors
/// For an unmatched brace: the message and, in a second line, the remedy.
pub fn variables(template: &str) -> Result<Vec<TextThenVariable<'_>>, &'static str> {
    let (mut parts, mut rest) = (Vec::new(), template);
    while let Some((text, after)) = rest.split_once('$') {
        let is_of_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let (name, next) = match after.strip_prefix('{') {
            Some(inner) => inner.split_once('}').ok_or("unmatched `{`\nwrite `${scheme}`, or `$scheme`")?,
            None => after.split_at(after.find(|c| !is_of_name(c)).unwrap_or(after.len())),
        };
        parts.push((text, Some(name)));
        rest = next;
    }
    parts.push((rest, None));
    Ok(parts)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::string::ToString;

    #[test]
    fn decimals_are_appended() {
        for n in [0, 1, 9, 10, 99, 100, 12_345, u64::MAX - 1, u64::MAX] {
            let mut out = b"n=".to_vec();
            push_decimal(&mut out, n);
            assert_eq!(out, std::format!("n={n}").into_bytes());
        }
    }

    #[test]
    fn lists_split_at_commas() {
        #[track_caller]
        fn check(field: &str, expected: &[&str]) {
            let elements: Vec<_> = list(field.as_bytes()).map(|e| core::str::from_utf8(e).unwrap()).collect();
            assert_eq!(elements, expected);
        }
        check("", &[]);
        check(" \t ", &[]);
        check(",, ,", &[]);
        check("a", &["a"]);
        check(" a ,\tb\t,c d", &["a", "b", "c d"]);
        check("a\u{a0}", &["a\u{a0}"]);
    }

    proptest! {
        #[test]
        fn decimals_agree_with_std(n: u64) {
            let mut out = Vec::new();
            push_decimal(&mut out, n);
            prop_assert_eq!(out, n.to_string().into_bytes());
        }
    }
}
