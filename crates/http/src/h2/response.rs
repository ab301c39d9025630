//! The HTTP/2 form of a response head, ready to be copied.
//!
//! `h1::response::Head` is what the server builds and caches; this is the same head as a header block (RFC 7541) that
//! uses no dynamic table, so that it is the same on every connection. Date alone changes, in its place.

use alloc::boxed::Box;
use alloc::vec::Vec;

use super::{CONNECTION_FIELDS, hpack};
use crate::date;
use crate::status::Status;

/// The header block of a response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadyBlock {
    bytes: Box<[u8]>,
    /// Offset of the [`date::LEN`] bytes of the date; `None` if it is fixed.
    date_at: Option<usize>,
}

impl ReadyBlock {
    /// Encodes a head. `date`: its fixed date. Fields of a connection are left out.
    pub(crate) fn new<'a>(
        status: Status,
        server: &[u8],
        date: Option<&[u8]>,
        fields: impl Iterator<Item = (&'a [u8], &'a [u8])>,
    ) -> ReadyBlock {
        let mut bytes = Vec::with_capacity(192);
        hpack::write_status(&mut bytes, status.0);
        hpack::write_field(&mut bytes, b"server", server);
        let date_at = match date {
            Some(date) => {
                hpack::write_field(&mut bytes, b"date", date);
                None
            }
            None => {
                hpack::write_field_plain(&mut bytes, b"date", &[b' '; date::LEN]);
                Some(bytes.len() - date::LEN)
            }
        };
        write_fields(&mut bytes, fields);
        ReadyBlock { bytes: bytes.into(), date_at }
    }

    /// Appends the block, with the date unless it is fixed, and the value of Strict-Transport-Security.
    pub fn write(&self, out: &mut Vec<u8>, date: &[u8; date::LEN], hsts: Option<&str>) {
        let start = out.len();
        out.extend_from_slice(&self.bytes);
        if let Some(at) = self.date_at {
            out[start + at..start + at + date::LEN].copy_from_slice(date);
        }
        if let Some(hsts) = hsts {
            hpack::write_field_plain(out, b"strict-transport-security", hsts.as_bytes());
        }
    }

    /// The bytes that [`Self::write`] appends.
    pub fn len(&self, hsts: Option<&str>) -> usize {
        // The name is one number, of two bytes; the length of a value below 127 bytes is another, of one byte.
        self.bytes.len() + hsts.map_or(0, |hsts| 2 + hpack::integer_len(7, hsts.len()) + hsts.len())
    }

    /// Always false: a block has a status.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }
}

/// Appends the header block of an interim response. Fields of a connection are left out.
pub(crate) fn write_interim<'a>(out: &mut Vec<u8>, status: Status, fields: impl Iterator<Item = (&'a [u8], &'a [u8])>) {
    hpack::write_status(out, status.0);
    write_fields(out, fields);
}

/// Appends fields, except those of a connection.
fn write_fields<'a>(out: &mut Vec<u8>, fields: impl Iterator<Item = (&'a [u8], &'a [u8])>) {
    for (name, value) in fields {
        if !CONNECTION_FIELDS.iter().any(|known| known.eq_ignore_ascii_case(name)) {
            hpack::write_field(out, name, value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::h1::response::Head;
    use crate::h2::fields::FieldList;
    use alloc::string::String;

    const DATE: &[u8; date::LEN] = b"Sun, 06 Nov 1994 08:49:37 GMT";

    /// The decoded fields of a head, a line each.
    fn sent(head: &Head, hsts: Option<&str>) -> String {
        let (block, mut out) = (head.h2_block(), b"before".to_vec());
        block.write(&mut out, DATE, hsts);
        assert_eq!(out.len() - b"before".len(), block.len(hsts));
        let mut fields = FieldList::new(usize::MAX, usize::MAX);
        hpack::Decoder::new().decode(&out[b"before".len()..], &mut fields).expect("valid");
        let line =
            |(name, value): (&[u8], &[u8])| alloc::format!("{}: {}\n", name.escape_ascii(), value.escape_ascii());
        fields.iter().map(line).collect()
    }

    #[test]
    fn fields_are_in_order_and_lower_case_without_those_of_connection() {
        let mut head = Head::with_reason(Status(299), b"Fine");
        head.field("Content-Type", "text/html").field("Connection", "close").number("Content-Length", 5);
        head.field("Transfer-Encoding", "chunked").field("X-Odd", "").field("Keep-Alive", "9").field("upgrade", "h2c");
        let expected = ":status: 299\nserver: amped\ndate: Sun, 06 Nov 1994 08:49:37 GMT\ncontent-type: text/html\n\
            content-length: 5\nx-odd: \n";
        assert_eq!(sent(&head, None), expected);
        let hsts = "max-age=31536000; includeSubDomains";
        assert_eq!(sent(&head, Some(hsts)), String::from(expected) + "strict-transport-security: " + hsts + "\n");
        let long = "x".repeat(300);
        assert!(sent(&head, Some(&long)).ends_with(&alloc::format!(": {long}\n")));
    }

    #[test]
    fn changed_head_has_changed_block() {
        let mut head = Head::new(Status::OK);
        assert_eq!(sent(&head, None), ":status: 200\nserver: amped\ndate: Sun, 06 Nov 1994 08:49:37 GMT\n");
        let same = head.clone();
        head.field("A", "b");
        assert!(sent(&head, None).ends_with("a: b\n"));
        head.number("C", 1);
        assert!(sent(&head, None).ends_with("a: b\nc: 1\n"));
        head.remove("a");
        assert!(sent(&head, None).ends_with("GMT\nc: 1\n"));
        head.server("x");
        assert!(sent(&head, None).contains("server: x\n"));
        head.date(b"Mon, 07 Nov 1994 08:49:37 GMT");
        assert_eq!(sent(&head, None), ":status: 200\nserver: x\ndate: Mon, 07 Nov 1994 08:49:37 GMT\nc: 1\n");
        assert_eq!(sent(&same, None), ":status: 200\nserver: amped\ndate: Sun, 06 Nov 1994 08:49:37 GMT\n");
        assert_eq!(same, Head::new(Status::OK), "heads are equal with and without a block");
    }
}
