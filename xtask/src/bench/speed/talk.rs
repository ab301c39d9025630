//! A few words with a server on one connection, read as strictly as a measurement needs: what it answers is looked at before
//! how fast it does.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use crate::command::Outcome;

/// A connection.
pub(super) struct Talk {
    stream: TcpStream,
    address: SocketAddr,
    /// Bytes that came behind the last answer.
    rest: Vec<u8>,
}

/// A whole answer.
pub(super) struct Answer {
    pub(super) status: u16,
    /// The head, the empty line at its end included.
    pub(super) head: Vec<u8>,
    pub(super) body: Vec<u8>,
}

impl Talk {
    pub(super) fn to(address: SocketAddr) -> Outcome<Talk> {
        let open = || {
            let stream = TcpStream::connect(address)?;
            stream.set_read_timeout(Some(Duration::from_secs(20)))?;
            Ok(Talk { stream, address, rest: Vec::new() })
        };
        open().map_err(|error: std::io::Error| format!("cannot connect to {address}: {error}"))
    }

    /// Asks as `ammeter load` does, with more header fields, each with its line end, and waits for the answer.
    pub(super) fn ask(&mut self, target: &str, fields: &str) -> Outcome<Answer> {
        let text = format!("GET {target} HTTP/1.1\r\nHost: {}\r\n{fields}\r\n", self.address);
        let failed = |error: std::io::Error| format!("{target} was not answered: {error}");
        self.stream.write_all(text.as_bytes()).map_err(failed)?;
        let mut bytes = std::mem::take(&mut self.rest);
        let mut buffer = vec![0; 256 << 10];
        loop {
            if let Some((head, length)) = read_head(&bytes)?
                && bytes.len() >= head + length
            {
                self.rest = bytes.split_off(head + length);
                let body = bytes.split_off(head);
                return Ok(Answer { status: status(&bytes)?, head: bytes, body });
            }
            match self.stream.read(&mut buffer).map_err(failed)? {
                0 => return Err(format!("{target} was not answered to the end, after {} bytes", bytes.len())),
                count => bytes.extend_from_slice(&buffer[..count]),
            }
        }
    }
}

impl Answer {
    /// The value of a header field.
    pub(super) fn field(&self, name: &str) -> Option<String> {
        field(&String::from_utf8_lossy(&self.head), name)
    }
}

/// The lengths of head and body, once the head is there.
fn read_head(bytes: &[u8]) -> Outcome<Option<(usize, usize)>> {
    let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") else { return Ok(None) };
    let head = String::from_utf8_lossy(&bytes[..end + 4]);
    // RFC 9112, 6.3.
    if status(bytes)? == 304 {
        return Ok(Some((end + 4, 0)));
    }
    let length = field(&head, "Content-Length").and_then(|length| length.parse().ok());
    let length = length.ok_or_else(|| format!("a reply does not say how long it is: {head}"))?;
    Ok(Some((end + 4, length)))
}

fn status(head: &[u8]) -> Outcome<u16> {
    let text = String::from_utf8_lossy(head.get(9..12).unwrap_or_default());
    text.parse().map_err(|_| format!("no reply: {}", String::from_utf8_lossy(head)))
}

fn field(head: &str, name: &str) -> Option<String> {
    let value = |line: &str| {
        let (found, value) = line.split_once(':')?;
        found.eq_ignore_ascii_case(name).then(|| value.trim().to_owned())
    };
    head.lines().find_map(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_are_read_to_their_end() {
        let check =
            |text: &str, expected: Result<Option<(usize, usize)>, &str>| match (read_head(text.as_bytes()), expected) {
                (Ok(found), Ok(expected)) => assert_eq!(found, expected, "{text}"),
                (Err(found), Err(part)) => assert!(found.contains(part), "{found}"),
                (found, _) => panic!("{found:?} for {text}"),
            };
        check("HTTP/1.1 200 OK\r\ncontent-length: 5\r\n", Ok(None));
        check("HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n", Ok(Some((38, 5))));
        check("HTTP/1.1 304 Not Modified\r\nETag: \"1\"\r\n\r\n", Ok(Some((40, 0))));
        check("HTTP/1.1 200 OK\r\n\r\n", Err("how long"));
        check("SSH-2.0\r\n\r\n", Err("no reply"));
    }

    #[test]
    fn fields_are_found_whatever_their_case() {
        let answer =
            Answer { status: 200, head: b"HTTP/1.1 200 OK\r\netag: \"a:b\"\r\n\r\n".to_vec(), body: Vec::new() };
        assert_eq!(answer.field("ETag").as_deref(), Some("\"a:b\""));
        assert_eq!(answer.field("Date"), None);
    }
}
