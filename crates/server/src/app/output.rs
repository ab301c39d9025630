//! Output of an application: pieces of its response ([`ReadResult`]), and messages on standard error ([`StderrLines`]).
//!
//! Both come from a script through pipes (`request`), or over a connection (`backend_request`).

use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;

use amped_core::app::AppTrouble;
use amped_http::interim::Interim;
use amped_sys::pipe;
use amped_sys::process::Ending;

use super::cgi::RequestName;
use crate::say;

/// The result of serving a request.
pub(super) enum ReadResult {
    /// Nothing to report to the connection.
    Nothing,
    /// The same, and there may be more to do at once.
    Again,
    /// There is room for more of the body.
    Room,
    /// So many bytes of the response.
    Bytes(usize),
    /// So many bytes of the response, and its end.
    Last(usize),
    /// A response that precedes the final one.
    Interim(Interim),
    /// So many bytes, which are the head of a response with which the connection switches to another protocol.
    Switched(usize),
    /// The end of the response.
    Ended,
    /// The response has failed.
    Failed(AppTrouble),
}

/// Standard error of an application, copied to the server's: line by line, each with the request's number.
pub(super) struct StderrLines {
    /// The request's name, and its path.
    id: RequestName,
    path: Arc<[u8]>,
    line: Vec<u8>,
    /// Bytes that may still be logged.
    left: usize,
}

/// Maximum bytes logged from one request's standard error, and of a single line.
const STDERR_MAX: usize = 64 * 1024;
const LINE_MAX: usize = 1024;

/// Bytes of standard error read in one turn, as many as two pipes hold.
const TURN_MAX: usize = 128 * 1024;

impl StderrLines {
    pub(super) fn new(id: RequestName, path: Arc<[u8]>) -> StderrLines {
        StderrLines { id, path, line: Vec::new(), left: STDERR_MAX }
    }

    /// Returns the request's name for messages.
    fn name(&self) -> String {
        format!("[{}] {}", self.id, String::from_utf8_lossy(&self.path).escape_debug())
    }

    /// Reads available output, up to a limit per turn, so that a verbose application delays nothing else.
    /// Returns whether there may be more. The pipe stays open beyond what is logged: a script that writes to
    /// a closed one is killed.
    pub(super) fn read_from(&mut self, stderr: &mut Option<impl AsFd>, buffer: &mut [u8]) -> bool {
        let mut read = 0;
        while let Some(pipe) = stderr {
            match pipe::read(pipe, buffer) {
                Ok(0) => *stderr = None,
                Ok(count) => {
                    self.say(&buffer[..count]);
                    read += count;
                    if read >= TURN_MAX {
                        return true;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return false,
                Err(_) => *stderr = None,
            }
        }
        self.log_line();
        false
    }

    pub(super) fn say(&mut self, bytes: &[u8]) {
        if self.left == 0 {
            return;
        }
        let count = bytes.len().min(self.left);
        self.left -= count;
        for piece in bytes[..count].split_inclusive(|&byte| byte == b'\n') {
            self.line.extend_from_slice(piece);
            if piece.ends_with(b"\n") || self.line.len() >= LINE_MAX {
                self.log_line();
            }
        }
        if self.left == 0 {
            self.log_line();
            say!("{}: standard error exceeds 64 KiB; the rest is dropped", self.name());
        }
    }

    pub(super) fn log_line(&mut self) {
        let line = std::mem::take(&mut self.line);
        let line = line.trim_ascii_end();
        if !line.is_empty() {
            // The text may come from a client: no control character reaches a terminal.
            let text: String = String::from_utf8_lossy(line).chars().flat_map(shown).collect();
            say!("{}: {text}", self.name());
        }
    }

    /// Reports an abnormal end.
    pub(super) fn note_end(&mut self, ending: Ending) {
        self.log_line();
        if ending != Ending::Status(0) {
            say!("{}: the application {ending}", self.name());
        }
    }

    /// Reports why the response is unusable.
    pub(super) fn note(&mut self, why: &str) {
        if !why.is_empty() {
            self.log_line();
            say!("{}: {why}", self.name());
        }
    }
}

fn shown(c: char) -> impl Iterator<Item = char> {
    let plain = (!c.is_control() || c == '\t').then_some(c);
    plain.into_iter().chain(plain.is_none().then(|| c.escape_default()).into_iter().flatten())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_escaped() {
        let text: String = "a\tb\u{1b}[31mc\u{7}é".chars().flat_map(shown).collect();
        assert_eq!(text, "a\tb\\u{1b}[31mc\\u{7}é");
    }
}
