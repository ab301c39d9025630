//! The body of a request, by length or by chunks (RFC 9112, 6 and 7.1): finds its end and hands out its data.
//!
//! Sans-I/O: bytes go in as they come, in pieces of any size, and what is data among them is pointed at, not copied.

use super::request::Framing;

/// Bytes that chunk headers and trailers may weigh together. Chunk extensions and trailers are ignored, so that nobody
/// has a reason to send more than this.
const OVERHEAD_MAX: u32 = 16 * 1024;

/// A body that is being read.
#[derive(Clone, Debug)]
pub struct BodyReader {
    state: State,
    /// Bytes since the last data that were none: `overhead <= OVERHEAD_MAX`.
    overhead: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Data of a body by length, or of a chunk: so many bytes are still to come.
    Data {
        left: u64,
        chunked: bool,
    },
    /// In the digits of a chunk's size. `digits` counts them.
    Size {
        size: u64,
        digits: u8,
    },
    /// In the blanks that may stand before a chunk extension (RFC 9112, 7.1.1).
    SizeBlank {
        size: u64,
    },
    /// In a chunk extension, up to its CR.
    Extension {
        size: u64,
    },
    /// After the CR of the size's line.
    SizeLf {
        size: u64,
    },
    /// After a chunk's data.
    DataCr,
    DataLf,
    /// At the start of a trailer line, or of the empty line that ends the body.
    TrailerStart,
    Trailer,
    TrailerLf,
    EndLf,
    Done,
}

/// What was found at the start of the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece<'a> {
    /// Bytes that belong to the body, its framing included; they are done with.
    pub used: usize,
    /// The data among them; the last part of what was used.
    pub data: &'a [u8],
}

/// The chunks are malformed: nobody knows where the next request begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadBody;

impl BodyReader {
    /// A reader at the start of a body that is framed so.
    pub fn new(framing: Framing) -> BodyReader {
        let state = match framing {
            Framing::None => State::Done,
            Framing::Length(left) => State::Data { left, chunked: false },
            Framing::Chunked => State::Size { size: 0, digits: 0 },
        };
        BodyReader { state, overhead: 0 }
    }

    /// Whether the whole body has been read.
    pub fn is_done(&self) -> bool {
        self.state == State::Done
    }

    /// Takes bytes up to the end of the next run of data, of the body, or of `bytes`.
    ///
    /// # Errors
    /// [`BadBody`] for malformed chunks.
    pub fn next<'a>(&mut self, bytes: &'a [u8]) -> Result<Piece<'a>, BadBody> {
        let mut used = 0;
        while used < bytes.len() {
            if let State::Data { left, chunked } = self.state {
                let length = usize::try_from(left).unwrap_or(usize::MAX).min(bytes.len() - used);
                let data = &bytes[used..used + length];
                let left = left - length as u64;
                self.state = match (left, chunked) {
                    (0, false) => State::Done,
                    (0, true) => State::DataCr,
                    _ => State::Data { left, chunked },
                };
                self.overhead = 0;
                return Ok(Piece { used: used + length, data });
            }
            if self.state == State::Done {
                break;
            }
            self.state = step(self.state, bytes[used])?;
            used += 1;
            self.overhead += 1;
            if self.overhead > OVERHEAD_MAX {
                return Err(BadBody);
            }
        }
        Ok(Piece { used, data: &[] })
    }
}

/// One byte of framing. Line ends are CR LF and nothing else, for the same reason as in the head.
fn step(state: State, byte: u8) -> Result<State, BadBody> {
    Ok(match (state, byte) {
        (State::Size { size, digits }, _) if byte.is_ascii_hexdigit() => {
            let digit = (byte as char).to_digit(16).ok_or(BadBody)?;
            // RFC 9112, 7.1: guard against a size that does not fit; 15 digits always do.
            if digits == 15 {
                return Err(BadBody);
            }
            State::Size { size: size * 16 + u64::from(digit), digits: digits + 1 }
        }
        (State::Size { digits: 0, .. }, _) => return Err(BadBody),
        (State::Size { size, .. } | State::SizeBlank { size } | State::Extension { size }, b'\r') => {
            State::SizeLf { size }
        }
        (State::Size { size, .. } | State::SizeBlank { size }, b';') => State::Extension { size },
        // Behind a blank there is an extension or the line's end. `1 0` is not 1, nor is it 16.
        (State::Size { size, .. } | State::SizeBlank { size }, b' ' | b'\t') => State::SizeBlank { size },
        (State::Extension { .. }, b'\n' | 0) => return Err(BadBody),
        (State::Extension { size }, _) => State::Extension { size },
        (State::SizeLf { size: 0 }, b'\n') => State::TrailerStart,
        (State::SizeLf { size }, b'\n') => State::Data { left: size, chunked: true },
        (State::DataCr, b'\r') => State::DataLf,
        (State::DataLf, b'\n') => State::Size { size: 0, digits: 0 },
        (State::TrailerStart, b'\r') => State::EndLf,
        (State::TrailerStart | State::Trailer, b'\n' | 0) => return Err(BadBody),
        (State::Trailer, b'\r') => State::TrailerLf,
        (State::TrailerStart | State::Trailer, _) => State::Trailer,
        (State::TrailerLf, b'\n') => State::TrailerStart,
        (State::EndLf, b'\n') => State::Done,
        _ => return Err(BadBody),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    /// The data, and what is left behind the body.
    fn read(framing: Framing, bytes: &[u8], piece: usize) -> Result<(Vec<u8>, usize, bool), BadBody> {
        let mut reader = BodyReader::new(framing);
        let (mut data, mut at) = (Vec::new(), 0);
        while at < bytes.len() && !reader.is_done() {
            let end = bytes.len().min(at + piece);
            let found = reader.next(&bytes[at..end])?;
            data.extend_from_slice(found.data);
            at += found.used;
        }
        Ok((data, bytes.len() - at, reader.is_done()))
    }

    #[test]
    fn bodies_in_pieces_of_any_size() {
        for piece in [1, 2, 3, 7, 1000] {
            let check = |framing, bytes: &[u8], expected: Result<(&[u8], usize, bool), BadBody>| {
                let expected = expected.map(|(data, left, done)| (data.to_vec(), left, done));
                assert_eq!(read(framing, bytes, piece), expected, "{:?} by {piece}", bytes.escape_ascii());
            };
            let chunked = Framing::Chunked;
            check(Framing::Length(3), b"abcGET", Ok((b"abc", 3, true)));
            check(Framing::Length(3), b"ab", Ok((b"ab", 0, false)));
            check(chunked, b"3\r\nabc\r\n0\r\n\r\nGET", Ok((b"abc", 3, true)));
            check(chunked, b"3\r\nabc\r\n2;x=y\r\nde\r\n000\r\nA: b\r\nC: d\r\n\r\n", Ok((b"abcde", 0, true)));
            check(chunked, b"A\r\n0123456789\r\n0\r\n\r\n", Ok((b"0123456789", 0, true)));
            check(chunked, b"0\r\n\r\n", Ok((b"", 0, true)));
            check(chunked, b"1 \t\r\na\r\n1 ; x\r\nb\r\n0\r\n\r\n", Ok((b"ab", 0, true)));
            for bad in [
                &b"\r\n"[..],
                b"x\r\n",
                b"-1\r\n",
                b"3\nabc\r\n",
                b"3\r\nabcd\r\n",
                b"3\r\nabc\n0\r\n\r\n",
                b"3;a\nb\r\nabc\r\n",
                b"0\r\nA: b\n\r\n",
                b"1000000000000000\r\n",
                b" 3\r\nabc\r\n",
                b"3 0\r\nabc\r\n",
                b"3 x\r\nabc\r\n",
            ] {
                check(chunked, bad, Err(BadBody));
            }
        }
    }

    #[test]
    fn endless_extensions_and_trailers_are_refused() {
        let mut endless = b"3;".to_vec();
        endless.resize(OVERHEAD_MAX as usize + 10, b'x');
        assert_eq!(read(Framing::Chunked, &endless, 1000), Err(BadBody));
    }
}
