//! The body of a message, by length or chunked (RFC 9112, 6 and 7.1): finds its end and yields its data; writes chunks.
//!
//! Sans-I/O: bytes go in as they arrive, in pieces of any size, and data is borrowed, not copied.

use alloc::vec::Vec;

use super::request::Framing;

/// Maximum bytes of chunk headers and trailers together. Chunk extensions
/// and trailers are ignored, so no client has a reason to send more.
const OVERHEAD_MAX: u32 = 16 * 1024;

/// The parser of one body.
#[derive(Clone, Debug)]
pub struct BodyReader {
    state: State,
    /// Bytes of framing since the last data: `overhead <= OVERHEAD_MAX`.
    overhead: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// In the data of a body by length, or of a chunk: bytes remaining.
    Data {
        left: u64,
        chunked: bool,
    },
    /// In the digits of a chunk's size; `digits` counts them.
    Size {
        size: u64,
        digits: u8,
    },
    /// In an extension of a chunk of this size.
    Extension {
        size: u64,
        place: Extension,
    },
    /// After the CR of the size line.
    SizeLf {
        size: u64,
    },
    /// After a chunk's data.
    DataCr,
    DataLf,
    /// At the start of a trailer field or of the empty line that ends the body.
    TrailerStart,
    TrailerName,
    TrailerValue,
    TrailerLf,
    EndLf,
    Done,
}

/// The position in an extension: `*( BWS ";" BWS chunk-ext-name [ BWS "=" BWS chunk-ext-val ] )` (RFC 9112, 7.1.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Extension {
    /// In whitespace that must be followed by a semicolon.
    BeforeSemicolon,
    /// Before the name.
    BeforeName,
    Name,
    /// In whitespace after a name.
    AfterName,
    /// Before the value.
    BeforeValue,
    Token,
    Quoted,
    /// After a backslash in a quoted value.
    Escaped,
    /// After the closing quote.
    AfterQuoted,
}

/// One parsed piece of the input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece<'a> {
    /// Bytes of the body consumed, its framing included.
    pub used: usize,
    /// The data among them; the end of the consumed bytes.
    pub data: &'a [u8],
}

/// The chunks are malformed, so the start of the next request is unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadBody;

impl BodyReader {
    /// A parser at the start of a body with this framing.
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

    /// Consumes bytes up to the end of the next run of data, of the body, or of `bytes`.
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

/// Appends a part of a chunked body (RFC 9112, 7.1); an empty one is left out, because it would end the body.
pub fn push_chunk(out: &mut Vec<u8>, data: &[u8]) {
    if !data.is_empty() {
        out.extend_from_slice(alloc::format!("{:x}\r\n", data.len()).as_bytes());
        out.extend_from_slice(data);
        out.extend_from_slice(b"\r\n");
    }
}

/// The end of a chunked body, without trailers.
pub const LAST_CHUNK: &[u8] = b"0\r\n\r\n";

/// Consumes one byte of framing. Lines end with CR LF only, for the same reason as in the head.
fn step(state: State, byte: u8) -> Result<State, BadBody> {
    Ok(match (state, byte) {
        (State::Size { size, digits }, _) if byte.is_ascii_hexdigit() => {
            let digit = (byte as char).to_digit(16).ok_or(BadBody)?;
            // RFC 9112, 7.1: guard against overflow of the size; 15 digits always fit.
            if digits == 15 {
                return Err(BadBody);
            }
            State::Size { size: size * 16 + u64::from(digit), digits: digits + 1 }
        }
        (State::Size { digits: 0, .. }, _) => return Err(BadBody),
        // A space before the line end is an error: servers differ in how they read `1 \r\n`.
        (State::Size { size, .. }, b'\r') => State::SizeLf { size },
        (State::Size { size, .. }, b';') => State::Extension { size, place: Extension::BeforeName },
        (State::Size { size, .. }, b' ' | b'\t') => State::Extension { size, place: Extension::BeforeSemicolon },
        (State::Extension { size, place: Extension::Name | Extension::Token | Extension::AfterQuoted }, b'\r') => {
            State::SizeLf { size }
        }
        (State::Extension { size, place }, _) => State::Extension { size, place: extension(place, byte)? },
        (State::SizeLf { size: 0 }, b'\n') => State::TrailerStart,
        (State::SizeLf { size }, b'\n') => State::Data { left: size, chunked: true },
        (State::DataCr, b'\r') => State::DataLf,
        (State::DataLf, b'\n') => State::Size { size: 0, digits: 0 },
        (State::TrailerStart, b'\r') => State::EndLf,
        (State::TrailerStart | State::TrailerName, _) if is_token(byte) => State::TrailerName,
        (State::TrailerName, b':') => State::TrailerValue,
        (State::TrailerValue, b'\r') => State::TrailerLf,
        (State::TrailerValue, _) if is_text(byte) => State::TrailerValue,
        (State::TrailerLf, b'\n') => State::TrailerStart,
        (State::EndLf, b'\n') => State::Done,
        _ => return Err(BadBody),
    })
}

/// Consumes one byte of an extension, except for the line end.
fn extension(place: Extension, byte: u8) -> Result<Extension, BadBody> {
    use Extension as E;
    Ok(match (place, byte) {
        (E::BeforeSemicolon | E::AfterName, b' ' | b'\t') => place,
        (E::BeforeSemicolon | E::Name | E::AfterName | E::Token | E::AfterQuoted, b';') => E::BeforeName,
        (E::BeforeName | E::BeforeValue, b' ' | b'\t') => place,
        (E::BeforeName | E::Name, _) if is_token(byte) => E::Name,
        (E::Name | E::AfterName, b'=') => E::BeforeValue,
        (E::Name, b' ' | b'\t') => E::AfterName,
        (E::BeforeValue | E::Token, _) if is_token(byte) => E::Token,
        (E::BeforeValue, b'"') => E::Quoted,
        (E::Token | E::AfterQuoted, b' ' | b'\t') => E::BeforeSemicolon,
        (E::Quoted, b'"') => E::AfterQuoted,
        (E::Quoted, b'\\') => E::Escaped,
        (E::Quoted | E::Escaped, _) if is_text(byte) => E::Quoted,
        _ => return Err(BadBody),
    })
}

/// RFC 9110, 5.6.2.
fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

/// RFC 9110, 5.5 and 5.6.4: visible characters, whitespace and bytes above ASCII.
fn is_text(byte: u8) -> bool {
    byte == b'\t' || (byte >= b' ' && byte != 0x7f)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the data, the number of bytes left after the body, and whether it is complete.
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
    fn bodies_may_be_split_anywhere() {
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
            for good in [
                &b";a"[..],
                b";a=b",
                b" ; a = b",
                b";a;b=c;d",
                b";a=\"x y\\\";z\xff\t\"",
                b";a=\"\";b",
                b"\t;\ta\t=\t\"b\" ; c",
            ] {
                let bytes = [b"1", good, b"\r\na\r\n0", good, b"\r\n\r\n"].concat();
                check(chunked, &bytes, Ok((b"a", 0, true)));
            }
            for bad in [
                &b" "[..],
                b"\t",
                b";",
                b";;a",
                b"; ",
                b";a ",
                b";a=",
                b";a= ",
                b";=b",
                b" a",
                b";a b",
                b";a=b c",
                b";a=b ",
                b";a=\"b",
                b";a=\"b\"c",
                b";a=\"b\" ",
                b";a=\"b\nc\"",
                b";a=\"b\rc\"",
                b";a=\"b\\\n\"",
                b";a\0",
                b";a=\x7f",
                b";\xff",
            ] {
                check(chunked, &[b"1", bad, b"\r\na\r\n0\r\n\r\n"].concat(), Err(BadBody));
            }
            for good in [&b"A: b\r\n"[..], b"A:\r\nB:c\xff\t d\r\n", b"a-b!: \"\r\n"] {
                check(chunked, &[b"0\r\n", good, b"\r\n"].concat(), Ok((b"", 0, true)));
            }
            for bad in [
                &b"A\r\n"[..],
                b": b\r\n",
                b"A : b\r\n",
                b" A: b\r\n",
                b"A: b\r\n c\r\n",
                b"A: b\0\r\n",
                b"A: b\x7f\r\n",
                b"A: b\rc\r\n",
                b"A: b\n",
                b"A(: b\r\n",
                b"\n",
            ] {
                check(chunked, &[b"0\r\n", bad, b"\r\n"].concat(), Err(BadBody));
            }
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
    fn written_chunks_are_read_back() {
        let mut out = Vec::new();
        for part in [&b"a"[..], b"", &[b'x'; 17]] {
            push_chunk(&mut out, part);
        }
        assert_eq!(out, b"1\r\na\r\n11\r\nxxxxxxxxxxxxxxxxx\r\n");
        out.extend_from_slice(LAST_CHUNK);
        assert_eq!(read(Framing::Chunked, &out, 5), Ok((b"axxxxxxxxxxxxxxxxx".to_vec(), 0, true)));
    }

    #[test]
    fn endless_extensions_and_trailers_are_rejected() {
        for start in [&b"3;"[..], b"3;a=\"", b"0\r\nA:"] {
            let mut endless = start.to_vec();
            endless.resize(OVERHEAD_MAX as usize + 10, b'x');
            assert_eq!(read(Framing::Chunked, &endless[..OVERHEAD_MAX as usize], 1000).map(|read| read.2), Ok(false));
            assert_eq!(read(Framing::Chunked, &endless, 1000), Err(BadBody));
        }
    }
}
