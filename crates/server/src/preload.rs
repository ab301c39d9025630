//! `amped preload`: makes a server use the new version of a page at once (Hu, Nanda and Yang, section 5.2.2: "we
//! provide a program to load the file into the cache immediately").
//!
//! The other side is `control`: one line for each path, one line for each reply.

use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use amped_core::json;
use amped_sys::local;

use crate::config::cli;
use crate::control::ORDER_TIME;
use crate::{say, serve};

/// How long the server may take to reply: with other clients queued, several times the timeout of its workers.
const PATIENCE: Duration = Duration::from_secs(10 * ORDER_TIME.as_secs());

/// Maximum length of a reply.
const LINE_MAX: u64 = 1024;

/// The server's reply for a path.
#[derive(Debug, PartialEq, Eq)]
struct Answer {
    status: u16,
    size: u64,
    /// Workers that have answered, and their total.
    done: usize,
    of: usize,
    why: String,
}

/// Makes a server load these paths, and prints the results.
pub fn preload(flags: &cli::Preload) -> ExitCode {
    match try_preload(flags) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(message) => {
            say!("{message}");
            ExitCode::FAILURE
        }
    }
}

/// Returns whether all were loaded.
fn try_preload(flags: &cli::Preload) -> Result<bool, String> {
    let host = flags.host.as_deref().unwrap_or("-");
    if host.is_empty() || host.contains(|c: char| c.is_whitespace() || c.is_control()) {
        return Err(format!("{host:?} is not a host name"));
    }
    let mut stream =
        local::connect(&flags.control, PATIENCE).map_err(|error| cannot_connect(&flags.control, &error))?;
    let mut answers = BufReader::new(stream.try_clone().map_err(|error| error.to_string())?);
    let lost = |error: io::Error| match error.kind() {
        io::ErrorKind::WouldBlock => format!("the server did not reply within {} s", PATIENCE.as_secs()),
        _ => format!("no reply from the server: {error}"),
    };
    let mut all = true;
    for path in &flags.paths {
        let bytes = path.as_bytes();
        let shown = path.to_string_lossy();
        if bytes.contains(&b'\n') {
            return Err(format!("{shown:?} contains a newline: write it as %0A"));
        }
        let line = [b"preload ", host.as_bytes(), b" ", bytes, b"\n"].concat();
        stream.write_all(&line).map_err(lost)?;
        let answer = next_answer(&mut answers).map_err(lost)?;
        all &= answer.is_loaded();
        let line = if flags.json { answer.to_json(&shown) } else { answer.to_text(&shown) };
        if serve::print(&line) != ExitCode::SUCCESS {
            return Ok(false);
        }
    }
    Ok(all)
}

fn next_answer(from: &mut impl BufRead) -> io::Result<Answer> {
    let mut line = String::new();
    io::Read::take(from, LINE_MAX).read_line(&mut line)?;
    if line.is_empty() {
        return Err(io::Error::other("the connection was closed; was the server stopped?"));
    }
    read_answer(&line)
        .ok_or_else(|| io::Error::other(format!("invalid reply {line:?}; does the server have another version?")))
}

fn read_answer(line: &str) -> Option<Answer> {
    let mut words = line.strip_suffix('\n')?.splitn(5, ' ');
    let mut word = || words.next();
    Some(Answer {
        status: word()?.parse().ok()?,
        size: word()?.parse().ok()?,
        done: word()?.parse().ok()?,
        of: word()?.parse().ok()?,
        why: word()?.to_owned(),
    })
}

impl Answer {
    fn is_loaded(&self) -> bool {
        self.status == 200 && self.done == self.of
    }

    fn to_text(&self, path: &str) -> String {
        let Answer { status, size, done, of, why } = self;
        let mut line = format!("{path}: {status}");
        match (status, why.as_str()) {
            (200, "") => line += &format!(" {size} bytes"),
            (_, "") => {}
            (_, why) => line += &format!(" {why}"),
        }
        if done < of {
            line += &format!("; {} of {of} workers did not answer within {} s", of - done, ORDER_TIME.as_secs());
        }
        line + "\n"
    }

    fn to_json(&self, path: &str) -> String {
        let Answer { status, size, done, of, why } = self;
        let mut line = String::from("{\"path\":");
        let text = |line: &mut String, text: &str| {
            let mut bytes = Vec::new();
            json::push_string(&mut bytes, text.as_bytes());
            *line += &String::from_utf8_lossy(&bytes);
        };
        text(&mut line, path);
        line += &format!(",\"status\":{status},\"bytes\":{size},\"workers\":{of},\"answered\":{done},\"reason\":");
        text(&mut line, why);
        line + "}\n"
    }
}

/// Describes why a server cannot be reached at its control socket.
pub fn cannot_connect(path: &Path, error: &io::Error) -> String {
    let shown = path.display();
    match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => format!(
            "no server listens on {shown}: name the socket of its configuration ([control] socket), or start it \
             with --control {shown}"
        ),
        io::ErrorKind::PermissionDenied => {
            format!("permission denied on control socket {shown}: {}", whose(path))
        }
        io::ErrorKind::WouldBlock => format!("no reply from the server at {shown}"),
        _ => format!("cannot connect to {shown}: {error}"),
    }
}

/// Returns which users have access.
fn whose(path: &Path) -> String {
    use std::os::unix::fs::MetadataExt;
    match std::fs::symlink_metadata(path) {
        Ok(status) => format!("run this as the server's user (UID {}) or as root", status.uid()),
        Err(_) => "run this as the server's user or as root".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_parsed_and_formatted() {
        let check = |line: &str, loaded: bool, text: &str| {
            let answer = read_answer(line).expect(line);
            assert_eq!(answer.is_loaded(), loaded, "{line}");
            assert_eq!(answer.to_text("/a"), text);
        };
        check("200 12345 1 1 \n", true, "/a: 200 12345 bytes\n");
        check("200 0 0 0 a listing\n", true, "/a: 200 a listing\n");
        check("404 0 2 2 \n", false, "/a: 404\n");
        check("301 0 2 2 it is a folder\n", false, "/a: 301 it is a folder\n");
        check("200 5 61 64 \n", false, "/a: 200 5 bytes; 3 of 64 workers did not answer within 5 s\n");
        for line in ["", "\n", "200\n", "200 1 1 1\n", "200 1 1 1 ", "x 1 1 1 \n", "200 -1 1 1 \n", "99999999 1 1 1 \n"]
        {
            assert_eq!(read_answer(line), None, "{line:?}");
        }
        let json = read_answer("403 0 1 1 not for \"you\"\n").expect("good").to_json("/a\u{e9}");
        let value: serde_json::Value = serde_json::from_str(&json).expect("JSON");
        assert_eq!(value["path"], "/a\u{e9}");
        assert_eq!((&value["status"], &value["workers"]), (&403.into(), &1.into()));
        assert_eq!(value["reason"], "not for \"you\"");
    }
}
