//! FastCGI 1.0: the records between a web server and an application that outlives a request.
//!
//! The server's side of the *responder* role (specification of 1996, sections 3, 5 and 6): it writes
//! `BEGIN_REQUEST`, `PARAMS` and `STDIN`, and reads `STDOUT`, `STDERR` and `END_REQUEST`. A
//! connection carries one request at a time, whose id is always 1: multiplexing is not implemented,
//! because hardly any application supports it. The streams carry CGI ([`crate::cgi`]).
//!
//! Sans-I/O, as `h1::body`: bytes go in as they arrive, in pieces of any size, and content is borrowed, not copied.

use alloc::vec::Vec;

/// FCGI_VERSION_1.
const VERSION: u8 = 1;
/// The id of the only request on a connection.
const REQUEST: u16 = 1;

/// FCGI_BEGIN_REQUEST.
const BEGIN_REQUEST: u8 = 1;
/// FCGI_END_REQUEST.
const END_REQUEST: u8 = 3;
/// FCGI_PARAMS.
const PARAMS: u8 = 4;
/// FCGI_STDIN.
const STDIN: u8 = 5;
/// FCGI_STDOUT.
const STDOUT: u8 = 6;
/// FCGI_STDERR.
const STDERR: u8 = 7;

/// Bytes of a record header (section 3.3).
const HEADER: usize = 8;

/// Maximum content bytes of one record: the largest multiple of eight, so that records need no padding.
const CONTENT_MAX: usize = 65_528;

/// Writes the beginning of a request, with all its variables. `keep`: the
/// application leaves the connection open after the request (FCGI_KEEP_CONN).
pub fn begin<'a>(out: &mut Vec<u8>, keep: bool, variables: impl Iterator<Item = (&'a [u8], &'a [u8])>) {
    // Section 5.1: the role FCGI_RESPONDER is 1; then the flags and five reserved bytes.
    record(out, BEGIN_REQUEST, &[0, 1, u8::from(keep), 0, 0, 0, 0, 0]);
    let mut pairs = Vec::new();
    for (name, value) in variables {
        push_length(&mut pairs, name.len());
        push_length(&mut pairs, value.len());
        pairs.extend_from_slice(name);
        pairs.extend_from_slice(value);
    }
    stream(out, PARAMS, &pairs);
    record(out, PARAMS, &[]);
}

/// Writes a part of the request body.
pub fn body(out: &mut Vec<u8>, data: &[u8]) {
    stream(out, STDIN, data);
}

/// Writes the end of the request body; required for an empty body too.
pub fn body_end(out: &mut Vec<u8>) {
    record(out, STDIN, &[]);
}

/// FCGI_OVERLOADED: the application accepts no request now.
pub const OVERLOADED: u8 = 2;

/// Writes an application's rejection of a request, with this protocol status.
pub fn refusal(out: &mut Vec<u8>, status: u8) {
    record(out, END_REQUEST, &[0, 0, 0, 0, status, 0, 0, 0]);
}

/// Section 3.4: one byte up to 127, else four with the highest bit set. A request head is far below 2 GiB.
fn push_length(out: &mut Vec<u8>, length: usize) {
    match u8::try_from(length) {
        Ok(short @ ..=127) => out.push(short),
        _ => out.extend_from_slice(&(length as u32 | 1 << 31).to_be_bytes()),
    }
}

fn stream(out: &mut Vec<u8>, kind: u8, data: &[u8]) {
    data.chunks(CONTENT_MAX).for_each(|piece| record(out, kind, piece));
}

fn record(out: &mut Vec<u8>, kind: u8, content: &[u8]) {
    let (id, length) = (REQUEST.to_be_bytes(), (content.len() as u16).to_be_bytes());
    out.extend_from_slice(&[VERSION, kind, id[0], id[1], length[0], length[1], 0, 0]);
    out.extend_from_slice(content);
}

/// Parses the records of an application.
#[derive(Clone, Debug, Default)]
pub struct RecordReader {
    header: [u8; HEADER],
    /// Bytes of the header received: `have <= HEADER`. Once complete, the content follows.
    have: usize,
    /// Bytes of content, then of padding, still to come.
    content: usize,
    padding: usize,
    /// The content of END_REQUEST received so far.
    end: Vec<u8>,
}

/// One parsed piece of the input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece<'a> {
    /// Bytes consumed.
    pub used: usize,
    /// Their content.
    pub said: Said<'a>,
}

/// Content of a record stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Said<'a> {
    /// Nothing yet.
    Nothing,
    /// Part of the response.
    Output(&'a [u8]),
    /// Part of the error stream.
    Error(&'a [u8]),
    /// The response is complete.
    End,
    /// The application rejected the request with this `protocolStatus` (section 5.5; [`OVERLOADED`]).
    Refused(u8),
}

/// The bytes are not FastCGI.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadRecord;

impl RecordReader {
    /// Consumes bytes up to the end of the next run of content, of the request, or of `bytes`.
    ///
    /// # Errors
    /// [`BadRecord`] if a record has another version, or END_REQUEST is too short.
    pub fn next<'a>(&mut self, bytes: &'a [u8]) -> Result<Piece<'a>, BadRecord> {
        let mut used = 0;
        loop {
            let rest = &bytes[used..];
            if self.have < HEADER {
                let count = rest.len().min(HEADER - self.have);
                self.header[self.have..self.have + count].copy_from_slice(&rest[..count]);
                self.have += count;
                used += count;
                if self.have < HEADER {
                    return Ok(Piece { used, said: Said::Nothing });
                }
                let [version, kind, _, _, high, low, padding, _] = self.header;
                self.content = usize::from(u16::from_be_bytes([high, low]));
                self.padding = usize::from(padding);
                if version != VERSION || (kind == END_REQUEST && self.content < 8) {
                    return Err(BadRecord);
                }
            } else if self.content > 0 {
                let count = rest.len().min(self.content);
                if count == 0 {
                    return Ok(Piece { used, said: Said::Nothing });
                }
                self.content -= count;
                used += count;
                // Ignore records of another request and management records: the server requests neither.
                let is_ours = u16::from_be_bytes([self.header[2], self.header[3]]) == REQUEST;
                match self.header[1] {
                    STDOUT if is_ours => return Ok(Piece { used, said: Said::Output(&rest[..count]) }),
                    STDERR if is_ours => return Ok(Piece { used, said: Said::Error(&rest[..count]) }),
                    END_REQUEST if is_ours => self.end.extend_from_slice(&rest[..count.min(8)]),
                    _ => {}
                }
            } else if self.padding > 0 {
                let count = rest.len().min(self.padding);
                if count == 0 {
                    return Ok(Piece { used, said: Said::Nothing });
                }
                self.padding -= count;
                used += count;
            } else {
                self.have = 0;
                // Section 5.5: the application's status (4 bytes), then the protocol's; FCGI_REQUEST_COMPLETE is 0.
                if let Some(&status) = self.end.get(4) {
                    self.end.clear();
                    let said = if status == 0 { Said::End } else { Said::Refused(status) };
                    return Ok(Piece { used, said });
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;
    use proptest::prelude::*;

    /// Writes a record as an application does.
    fn said(kind: u8, id: u16, content: &[u8], padding: u8) -> Vec<u8> {
        let (id, length) = (id.to_be_bytes(), (content.len() as u16).to_be_bytes());
        let header = [1, kind, id[0], id[1], length[0], length[1], padding, 0];
        [&header[..], content, &vec![0xee; padding.into()]].concat()
    }

    /// Output, error stream, whether and how it ended, and bytes left.
    type Read = (Vec<u8>, Vec<u8>, Option<bool>, usize);

    fn read(bytes: &[u8], piece: usize) -> Result<Read, BadRecord> {
        let mut reader = RecordReader::default();
        let (mut output, mut errors, mut at) = (Vec::new(), Vec::new(), 0);
        while at < bytes.len() {
            let found = reader.next(&bytes[at..bytes.len().min(at + piece)])?;
            at += found.used;
            match found.said {
                Said::Nothing => {}
                Said::Output(data) => output.extend_from_slice(data),
                Said::Error(data) => errors.extend_from_slice(data),
                Said::End => return Ok((output, errors, Some(true), bytes.len() - at)),
                Said::Refused(_) => return Ok((output, errors, Some(false), bytes.len() - at)),
            }
        }
        Ok((output, errors, None, 0))
    }

    #[test]
    fn records_may_be_split_anywhere() {
        let end = said(END_REQUEST, 1, &[0; 8], 0);
        let whole = [
            said(STDOUT, 1, b"Content-Type: a/b\n\n", 5),
            said(STDERR, 1, b"complaint", 255),
            said(STDOUT, 2, b"another's", 0),
            said(11, 0, b"unknown", 1),
            said(STDOUT, 1, b"", 0),
            said(STDOUT, 1, b"body", 0),
            end.clone(),
            b"next".to_vec(),
        ]
        .concat();
        for piece in [1, 2, 7, 8, 9, 1000] {
            let expected = (b"Content-Type: a/b\n\nbody".to_vec(), b"complaint".to_vec(), Some(true), 4);
            assert_eq!(read(&whole, piece), Ok(expected), "by {piece}");
            let refused = said(END_REQUEST, 1, &[0, 0, 0, 0, 2, 0, 0, 0], 3);
            assert_eq!(read(&refused, piece), Ok((vec![], vec![], Some(false), 0)));
            assert_eq!(read(&said(END_REQUEST, 9, &[0; 8], 0), piece), Ok((vec![], vec![], None, 0)));
            assert_eq!(read(&said(END_REQUEST, 1, &[0; 7], 0), piece), Err(BadRecord));
            assert_eq!(read(b"HTTP/1.1 400 Bad Request", piece), Err(BadRecord));
            assert_eq!(read(&end[..15], piece), Ok((vec![], vec![], None, 0)));
        }
    }

    /// Groups the written records by kind and joins each stream.
    fn streams(mut bytes: &[u8]) -> Vec<(u8, Vec<u8>)> {
        let mut found: Vec<(u8, Vec<u8>)> = Vec::new();
        while let [1, kind, 0, 1, high, low, 0, 0, rest @ ..] = bytes {
            let (content, rest) = rest.split_at(usize::from(u16::from_be_bytes([*high, *low])));
            bytes = rest;
            match found.last_mut() {
                Some((last, known)) if *last == *kind && !content.is_empty() => known.extend_from_slice(content),
                _ => found.push((*kind, content.to_vec())),
            }
        }
        assert!(bytes.is_empty(), "not a record: {:?}", bytes.escape_ascii());
        found
    }

    #[test]
    fn request_matches_specification_example() {
        let mut out = Vec::new();
        let long = vec![b'v'; 200];
        begin(&mut out, true, [(&b"A"[..], &b"bc"[..]), (b"LONG", &long)].into_iter());
        body(&mut out, &vec![7; 70_000]);
        body_end(&mut out);
        let pairs = [b"\x01\x02Abc\x04\x80\x00\x00\xc8LONG", &long[..]].concat();
        let none = Vec::new();
        let expected = [
            (BEGIN_REQUEST, vec![0, 1, 1, 0, 0, 0, 0, 0]),
            (PARAMS, pairs),
            (PARAMS, none.clone()),
            (STDIN, vec![7; 70_000]),
            (STDIN, none),
        ];
        assert_eq!(streams(&out), expected);
    }

    #[test]
    fn refusal_round_trips() {
        let mut out = Vec::new();
        refusal(&mut out, OVERLOADED);
        let piece = RecordReader::default().next(&out).expect("a record");
        assert_eq!(piece, Piece { used: out.len(), said: Said::Refused(OVERLOADED) });
    }

    proptest! {
        #[test]
        fn random_bytes_do_not_panic(
            bytes in proptest::collection::vec(any::<u8>(), 0..300),
            kind in 0u8..12,
            piece in 1usize..40,
        ) {
            let mixed = [said(kind, 1, b"12345678", 3), bytes].concat();
            // The result does not depend on how the input is split.
            prop_assert_eq!(read(&mixed, piece), read(&mixed, usize::MAX / 2));
        }
    }
}
