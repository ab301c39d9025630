//! JSON strings (RFC 8259, 7), for listings and for the access log.

use alloc::string::String;
use alloc::vec::Vec;

/// Appends `text` as a quoted JSON string. Bytes that are not UTF-8 become U+FFFD, because JSON cannot represent them.
pub fn push_string(out: &mut Vec<u8>, text: &[u8]) {
    out.push(b'"');
    for c in String::from_utf8_lossy(text).chars() {
        match c {
            '"' | '\\' => out.extend_from_slice(&[b'\\', c as u8]),
            c if (c as u32) < 0x20 || c == '\u{7f}' => {
                out.extend_from_slice(alloc::format!("\\u{:04x}", c as u32).as_bytes());
            }
            c => out.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes()),
        }
    }
    out.push(b'"');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_are_escaped() {
        let check = |text: &[u8], expected: &str| {
            let mut out = Vec::new();
            push_string(&mut out, text);
            assert_eq!(core::str::from_utf8(&out), Ok(expected));
        };
        check(b"", "\"\"");
        check("plain, \u{e4}\u{1f980}".as_bytes(), "\"plain, \u{e4}\u{1f980}\"");
        check(b"a\"b\\c\nd\x7f\xffe", "\"a\\\"b\\\\c\\u000ad\\u007f\u{fffd}e\"");
    }
}
