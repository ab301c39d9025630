//! Interim responses: heads that precede the response to a request (RFC 9110, 15.2), such as 100 (Continue) and
//! 103 (Early Hints, RFC 8297).

use alloc::vec::Vec;

use crate::h1::request;
use crate::h2::response;
use crate::status::Status;
use crate::text::push_decimal;

/// An interim response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interim {
    status: Status,
    /// As HTTP/1.1 sends it, with its empty line.
    head: Vec<u8>,
}

impl Interim {
    /// 100 (Continue): the client may send the body of its request.
    pub fn proceed() -> Interim {
        Interim::new(Status::CONTINUE, [])
    }

    /// A response with this status and these fields, which must be those of a parsed or checked head.
    pub fn new<'a>(status: Status, fields: impl IntoIterator<Item = (&'a [u8], &'a [u8])>) -> Interim {
        let mut head = b"HTTP/1.1 ".to_vec();
        push_decimal(&mut head, u64::from(status.0));
        head.extend_from_slice(&[b" ", status.reason().as_bytes(), b"\r\n"].concat());
        for (name, value) in fields {
            head.extend_from_slice(&[name, b": ", value, b"\r\n"].concat());
        }
        head.extend_from_slice(b"\r\n");
        Interim { status, head }
    }

    /// Its status.
    pub fn status(&self) -> Status {
        self.status
    }

    /// Its head as HTTP/1.1 sends it.
    pub fn head(&self) -> &[u8] {
        &self.head
    }

    /// Its fields, in order.
    pub fn fields(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        request::fields(&self.head)
    }

    /// Appends its header block of HTTP/2.
    pub fn write_block(&self, out: &mut Vec<u8>) {
        response::write_interim(out, self.status, self.fields());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::h2::fields::FieldList;
    use crate::h2::hpack::Decoder;

    #[test]
    fn interim_response_has_the_same_fields_in_both_versions() {
        let hints = Interim::new(Status::EARLY_HINTS, [(&b"Link"[..], &b"</a>"[..]), (b"Connection", b"x")]);
        assert_eq!(hints.head(), b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\nConnection: x\r\n\r\n");
        let mut block = Vec::new();
        hints.write_block(&mut block);
        let mut fields = FieldList::new(usize::MAX, usize::MAX);
        Decoder::new().decode(&block, &mut fields).expect("valid");
        let fields: Vec<_> = fields.iter().collect();
        assert_eq!(fields, [(&b":status"[..], &b"103"[..]), (b"link", b"</a>")]);
        assert_eq!(Interim::proceed().head(), b"HTTP/1.1 100 Continue\r\n\r\n");
    }
}
