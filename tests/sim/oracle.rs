//! The oracle: generates requests, and decides which responses to them are correct.
//!
//! It records the history of the file system, and when a request was sent and answered, but ignores caches: a response
//! may reflect any state of a name during that period, and no other.

use std::rc::Rc;

use amped_units::Time;

use crate::client::Response;
use crate::files::{Files, State};
use crate::seed::{Dice, RngExt, one_of};

/// A request that was sent.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    pub(crate) bytes: Vec<u8>,
    pub(crate) head_only: bool,
    /// Whether the client wants the connection closed, or the server must close it.
    pub(crate) ends: bool,
    what: What,
}

#[derive(Clone, Debug)]
enum What {
    /// A file: its path, and the statuses that its fields allow besides those of a plain GET.
    Name { path: String, may: Vec<u16> },
    /// One of these statuses, independent of files.
    Fixed(Vec<u16>),
}

/// File sizes, of which the larger ones are not cached in memory.
const SIZES: &[usize] = &[0, 1, 100, 5_000, 32 * 1024, 32 * 1024 + 1, 100_000];

/// The paths of requests. Those of directories end with a slash.
pub(crate) const PATHS: &[&str] = &[
    "/a.html",
    "/b.txt",
    "/b.txt.gz",
    "/empty.txt",
    "/big.bin",
    "/big2.bin",
    "/dir/",
    "/dir",
    "/dir/index.html",
    "/bare/",
    "/missing",
    "/comes/and/goes.txt",
    "/secret",
];

/// A unique text: each line contains the path and number of the file.
pub(crate) fn text_of(dice: &mut Dice, path: &str, size: usize) -> Vec<u8> {
    let line = format!("{path} {:016x}\n", dice.random::<u64>());
    line.bytes().cycle().take(size).collect()
}

/// Fills a file system.
pub(crate) fn furnish(dice: &mut Dice, files: &mut Files) {
    let now = Time::START;
    for directory in ["/dir", "/bare", "/comes", "/comes/and"] {
        files.directory(now, directory);
    }
    for path in ["/a.html", "/b.txt", "/b.txt.gz", "/dir/index.html", "/big.bin", "/big2.bin", "/empty.txt"] {
        let size = match path {
            "/big.bin" => 300_000,
            "/big2.bin" => 70_000,
            "/empty.txt" => 0,
            _ => SIZES[dice.random_range(1..5)],
        };
        let text = text_of(dice, path, size);
        files.replace(now, path, text);
    }
    files.forbid(now, "/secret");
}

/// Changes a file that requests refer to.
pub(crate) fn disturb(dice: &mut Dice, files: &mut Files, now: Time) {
    let path = one_of(dice, &["/a.html", "/b.txt", "/b.txt.gz", "/dir/index.html", "/big2.bin", "/comes/and/goes.txt"]);
    let size = SIZES[dice.random_range(0..SIZES.len())];
    let text = text_of(dice, path, size);
    // A reader of a large open file sees later writes, whatever the server does, so these files are only truncated and
    // extended, never rewritten. A truncated file does not grow again.
    let small = files.bytes(path).is_some_and(|bytes| bytes.len() <= 32 * 1024);
    match dice.random_range(0..6) {
        0 => files.delete(now, path),
        1 if small => files.change(now, path, |_| Rc::new(text)),
        2 => files.append(now, path, b"and more"),
        3 => {
            files.truncate(now, path, size);
            // The name refers to another file; an open descriptor keeps the short one.
            let short = files.bytes(path);
            files.replace(now, path, short.map_or(text, |bytes| bytes.to_vec()));
        }
        _ => files.replace(now, path, text),
    }
}

impl Asked {
    /// A well-formed request for a file.
    pub(crate) fn name(dice: &mut Dice, files: &Files) -> Asked {
        let path = one_of(dice, PATHS);
        let head_only = dice.random_bool(0.2);
        let mut fields = String::new();
        let mut may = Vec::new();
        let size = files.bytes(path).map_or(1000, |bytes| bytes.len()) as u64;
        if dice.random_bool(0.3) {
            fields += one_of(
                dice,
                &[
                    "Accept-Encoding: gzip\r\n",
                    "Accept-Encoding: identity\r\n",
                    "accept-encoding: br;q=0.5, *;q=0.1\r\n",
                ],
            );
        }
        if dice.random_bool(0.3) {
            let mut at = || dice.random_range(0..size + 2);
            let (one, two, three) = (at(), at(), at());
            let range = match dice.random_range(0..5) {
                0 => format!("{one}-"),
                1 => format!("-{one}"),
                2 => format!("{}-{}", one.min(two), one.max(two)),
                3 => format!("{}-{},-{three}", one.min(two), one.max(two)),
                _ => format!("0-0,{one}-{one},{two}-{two}"),
            };
            fields += &format!("Range: bytes={range}\r\n");
            may.extend([206, 416]);
            if dice.random_bool(0.3) {
                fields += "If-Range: \"no such tag\"\r\n";
            }
        }
        match dice.random_range(0..10) {
            0 => {
                fields += "If-None-Match: *\r\n";
                may.push(304);
            }
            1 => fields += "If-None-Match: \"no\", W/\"none\"\r\n",
            2 => {
                fields += "If-Modified-Since: Sun, 06 Nov 2044 08:49:37 GMT\r\n";
                may.push(304);
            }
            3 => {
                fields += "If-Match: \"no such tag\"\r\n";
                may.push(412);
            }
            4 => {
                fields += "If-Unmodified-Since: Sunday, 06-Nov-94 08:49:37 GMT\r\n";
                may.push(412);
            }
            _ => {}
        }
        let ends = dice.random_bool(0.02);
        if ends {
            fields += "Connection: close\r\n";
        }
        let (mut length, mut body) = (String::new(), Vec::new());
        if dice.random_bool(0.1) {
            (length, body) = random_body(dice);
        }
        let method = if head_only { "HEAD" } else { "GET" };
        let query = one_of(dice, &["", "", "", "?", "?a=b"]);
        let blank = one_of(dice, &["", "", "", "\r\n"]);
        let head = format!("{blank}{method} {path}{query} HTTP/1.1\r\nHost: a\r\n{fields}{length}\r\n");
        let bytes = [head.into_bytes(), body].concat();
        Asked { bytes, head_only, ends, what: What::Name { path: path.into(), may } }
    }

    /// A request that does not concern files.
    pub(crate) fn other(dice: &mut Dice) -> Asked {
        let (length, body) = random_body(dice);
        let body = String::from_utf8(body).expect("ASCII");
        let (request, status) = match dice.random_range(0..6) {
            0 => (format!("POST /a.html HTTP/1.1\r\nHost: a\r\n{length}\r\n{body}"), 405),
            1 => (String::from("OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n"), 204),
            2 => (format!("BREW /pot HTTP/1.1\r\nHost: a\r\n{length}\r\n{body}"), 501),
            3 => (String::from("GET /a%00b HTTP/1.1\r\nHost: a\r\n\r\n"), 400),
            4 => (String::from("GET /.git/config HTTP/1.1\r\nHost: a\r\n\r\n"), 404),
            _ => (String::from("GET / HTTP/1.1\r\nHost: a\r\nExpect: the unexpected\r\n\r\n"), 417),
        };
        Asked { bytes: request.into_bytes(), head_only: false, ends: false, what: What::Fixed(vec![status]) }
    }

    /// A request that a server must reject.
    pub(crate) fn bad(dice: &mut Dice) -> Asked {
        let (request, status) = match dice.random_range(0..8) {
            0 => ("GET / HTTP/1.1\r\n\r\n", 400),
            1 => ("GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400),
            2 => ("\x16\x03\x01", 400),
            3 => ("GET / HTTP/3.0\r\nHost: a\r\n\r\n", 505),
            4 => ("GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
            5 => ("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n", 400),
            6 => ("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999\r\n\r\nxyz\r\n", 413),
            _ => ("GET /\nHost: a\r\n\r\n", 400),
        };
        Asked { bytes: request.into(), head_only: false, ends: true, what: What::Fixed(vec![status]) }
    }

    /// Checks that `response` is correct for a time between `from` and `to`.
    ///
    /// # Panics
    /// If it is not.
    pub(crate) fn check(&self, response: &Response, files: &Files, from: Time, to: Time, trouble: bool) {
        let complain = |why: &str| {
            let request = String::from_utf8_lossy(&self.bytes);
            panic!(
                "{why}: {request:?} was answered {} {:?} between {from:?} and {to:?}",
                response.status, response.fields
            );
        };
        let status = response.status;
        let (path, may) = match &self.what {
            What::Fixed(statuses) if statuses.contains(&status) => return,
            What::Fixed(_) => return complain("unexpected status"),
            What::Name { path, may } => (path, may),
        };
        if trouble && (status == 500 || status == 503) {
            return;
        }
        let plain = |path: &str| -> Vec<State> {
            match path.strip_suffix('/') {
                None => files.states(path, from, to),
                Some(directory) if files.states(directory, from, to).contains(&State::Directory) => {
                    let index = files.states(&format!("{path}index.html"), from, to);
                    index
                        .into_iter()
                        .map(|state| if state == State::Absent { State::Forbidden } else { state })
                        .collect()
                }
                Some(_) => vec![State::Absent],
            }
        };
        let states = plain(path);
        let all: Vec<Rc<Vec<u8>>> = match response.field("Content-Encoding") {
            None => states.iter().filter_map(bytes_of).collect(),
            Some("gzip") => files.states(&format!("{path}.gz"), from, to).iter().filter_map(bytes_of).collect(),
            Some(other) => return complain(&format!("unexpected coding {other}")),
        };
        let held = match status {
            200 if self.head_only => all.iter().any(|bytes| Some(bytes.len() as u64) == response.length()),
            200 if response.complete => all.iter().any(|bytes| **bytes == response.body),
            200 => all.iter().any(|bytes| bytes.starts_with(&response.body)),
            206 if !may.contains(&206) || self.head_only => false,
            206 => parts_of(response).is_none_or(|parts| {
                let fits = |bytes: &[u8]| {
                    parts
                        .iter()
                        .all(|(range, size, part)| *size == bytes.len() && bytes.get(range.clone()) == Some(part))
                };
                all.iter().any(|bytes| fits(bytes))
            }),
            304 | 412 | 416 => may.contains(&status) && !all.is_empty(),
            301 => states.contains(&State::Directory),
            403 => states.contains(&State::Forbidden),
            404 => states.contains(&State::Absent),
            _ => false,
        };
        if !held {
            complain(&format!("none of {} states matches", states.len()));
        }
        if status == 200 && self.head_only {
            assert!(response.body.is_empty());
        }
    }
}

fn bytes_of(state: &State) -> Option<Rc<Vec<u8>>> {
    match state {
        State::File(bytes) => Some(Rc::clone(bytes)),
        State::Absent | State::Forbidden | State::Directory => None,
    }
}

/// A body, and its framing field.
fn random_body(dice: &mut Dice) -> (String, Vec<u8>) {
    let size = dice.random_range(0..300);
    let data = "GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n".bytes().cycle().take(size).collect::<Vec<u8>>();
    if dice.random_bool(0.5) {
        return (format!("Content-Length: {size}\r\n"), data);
    }
    let mut chunked = Vec::new();
    for chunk in data.chunks(dice.random_range(1..100)) {
        chunked.extend_from_slice(format!("{:x};extension=\"1\"\r\n", chunk.len()).as_bytes());
        chunked.extend_from_slice(chunk);
        chunked.extend_from_slice(b"\r\n");
    }
    chunked.extend_from_slice(b"0\r\nTrailer: x\r\n\r\n");
    (String::from("Transfer-Encoding: chunked\r\n"), chunked)
}

type Part<'a> = (std::ops::Range<usize>, usize, &'a [u8]);

/// The parts of a 206, each with its range and the size of the whole; `None` if a multipart body was cut.
pub(crate) fn parts_of(response: &Response) -> Option<Vec<Part<'_>>> {
    fn read_range(text: &str) -> (std::ops::Range<usize>, usize) {
        let (range, size) = text.strip_prefix("bytes ").expect("the unit").split_once('/').expect("a slash");
        let (first, last) = range.split_once('-').expect("a dash");
        let number = |text: &str| text.parse::<usize>().expect("a number");
        (number(first)..number(last) + 1, number(size))
    }
    let kind = response.field("Content-Type").expect("a type");
    let Some(boundary) = kind.strip_prefix("multipart/byteranges; boundary=") else {
        let (range, size) = read_range(response.field("Content-Range").expect("a range"));
        assert!(range.end <= size && range.len() as u64 == response.length().expect("a length"));
        let got = range.start..range.start + response.body.len();
        return Some(vec![(got, size, &response.body)]);
    };
    assert_eq!(response.field("Content-Range"), None, "RFC 9110, 15.3.7.2");
    if !response.complete {
        return None;
    }
    let mut parts = Vec::new();
    let mut rest = &response.body[..];
    let delimiter = format!("\r\n--{boundary}");
    loop {
        rest = rest.strip_prefix(delimiter.as_bytes()).expect("a boundary");
        if rest == b"--\r\n" {
            break;
        }
        let head = rest.windows(4).position(|four| four == b"\r\n\r\n").expect("a part's head");
        let head_text = std::str::from_utf8(&rest[..head]).expect("ASCII");
        let range = head_text.split("\r\n").find_map(|line| line.strip_prefix("Content-Range: ")).expect("a range");
        let (range, size) = read_range(range);
        rest = &rest[head + 4..];
        let (body, after) = rest.split_at(range.len());
        parts.push((range, size, body));
        rest = after;
    }
    assert!(parts.len() > 1, "multipart with a single part");
    Some(parts)
}
