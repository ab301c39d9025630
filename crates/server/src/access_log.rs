//! The access log: a line a request, which never holds up a reply.
//!
//! A loop formats its lines into a buffer of its own and hands it over, when it is full or old enough, to the one thread
//! that writes. That thread may wait for a disk or fail on a full one: the loops go on, and what cannot be kept is counted
//! and reported. Common and Combined are as Apache and NCSA have them, with local time; JSON adds host, time taken and
//! cache outcome.

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, Write};
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use amped_core::json;
use amped_core::record::Record;
use amped_core::reply::Wall;
use amped_http::date::Civil;
use amped_sys::process;
use amped_units::Time;

use crate::config::{LogFormat, LogSettings, LogTarget};
use crate::say;

/// A client's address as the log has it, made once for each connection.
#[derive(Clone, Debug)]
pub struct Peer {
    /// The longest is an IPv6 address with an embedded IPv4 one, 45 characters.
    text: [u8; 46],
    length: u8,
}

impl Peer {
    /// The address, without its port; an IPv4 address that came in on an IPv6 socket is an IPv4 address.
    pub fn new(address: Option<SocketAddr>) -> Peer {
        let mut peer = Peer { text: [0; 46], length: 0 };
        let mut free = &mut peer.text[..];
        let _ = match address.map(|address| address.ip().to_canonical()) {
            Some(IpAddr::V4(address)) => write!(free, "{address}"),
            Some(IpAddr::V6(address)) => write!(free, "{address}"),
            None => write!(free, "-"),
        };
        let left = free.len();
        peer.length = (peer.text.len() - left) as u8;
        peer
    }

    fn as_bytes(&self) -> &[u8] {
        &self.text[..usize::from(self.length)]
    }
}

/// A loop's end of the log.
pub struct AccessLog {
    /// `None`: no log is kept.
    writer: Option<Arc<Writer>>,
    format: LogFormat,
    buffer: Vec<u8>,
    lines: u64,
    buffer_max: usize,
    flush_after: Duration,
    /// When the oldest line in the buffer was written; [`Time::NEVER`] for an empty one.
    oldest: Time,
    /// The second of `stamp`.
    stamp_second: i64,
    /// The time of day as the format has it, made once a second.
    stamp: String,
}

impl AccessLog {
    /// The end of a log that is kept by `writer`, or of none.
    pub fn new(settings: &LogSettings, writer: Option<Arc<Writer>>) -> AccessLog {
        AccessLog {
            writer,
            format: settings.format,
            buffer: Vec::new(),
            lines: 0,
            buffer_max: settings.buffer.as_usize(),
            flush_after: settings.flush,
            oldest: Time::NEVER,
            stamp_second: i64::MIN,
            stamp: String::new(),
        }
    }

    /// Takes over another form and other limits; the file stays.
    pub fn renew(&mut self, settings: &LogSettings) {
        self.flush();
        self.format = settings.format;
        self.buffer_max = settings.buffer.as_usize();
        self.flush_after = settings.flush;
        self.stamp_second = i64::MIN;
    }

    /// The form of its lines.
    pub fn format(&self) -> LogFormat {
        self.format
    }

    /// When [`flush`](AccessLog::flush) is due.
    pub fn next_due(&self) -> Time {
        self.oldest + self.flush_after
    }

    /// Adds a request's line.
    pub fn write(&mut self, record: &Record, peer: &Peer, body_bytes: u64, wall: &Wall, now: Time) {
        if self.writer.is_none() {
            return;
        }
        if self.stamp_second != wall.seconds {
            self.stamp_second = wall.seconds;
            self.stamp = stamp(wall.seconds, self.format);
        }
        if self.lines == 0 {
            self.oldest = now;
        }
        self.lines += 1;
        match self.format {
            LogFormat::Common | LogFormat::Combined => self.write_common(record, peer, body_bytes),
            LogFormat::Json => self.write_json(record, peer, body_bytes, now),
        }
        if self.buffer.len() >= self.buffer_max {
            self.flush();
        }
    }

    /// Hands over what has been gathered.
    pub fn flush(&mut self) {
        if self.lines == 0 {
            return;
        }
        if let Some(writer) = &self.writer {
            let batch = Batch { text: std::mem::take(&mut self.buffer), lines: std::mem::take(&mut self.lines) };
            self.buffer = writer.put(batch);
        }
        self.oldest = Time::NEVER;
    }

    /// `host - - [time] "request" status bytes`, and `"referer" "agent"` for Combined.
    fn write_common(&mut self, record: &Record, peer: &Peer, body_bytes: u64) {
        let out = &mut self.buffer;
        out.extend_from_slice(peer.as_bytes());
        out.extend_from_slice(b" - - ");
        out.extend_from_slice(self.stamp.as_bytes());
        out.extend_from_slice(b" \"");
        if !record.method().is_empty() {
            push_escaped(out, record.method());
            out.push(b' ');
        }
        push_escaped(out, record.target());
        if !record.version().is_empty() {
            out.push(b' ');
            out.extend_from_slice(record.version().as_bytes());
        }
        out.extend_from_slice(b"\" ");
        amped_http::text::push_decimal(out, record.status.into());
        out.push(b' ');
        match body_bytes {
            0 => out.push(b'-'),
            bytes => amped_http::text::push_decimal(out, bytes),
        }
        if self.format == LogFormat::Combined {
            for field in [record.referer(), record.user_agent()] {
                out.extend_from_slice(b" \"");
                push_escaped(out, field.unwrap_or(b"-"));
                out.push(b'"');
            }
        }
        out.push(b'\n');
    }

    fn write_json(&mut self, record: &Record, peer: &Peer, body_bytes: u64, now: Time) {
        let out = &mut self.buffer;
        out.extend_from_slice(b"{\"time\":\"");
        out.extend_from_slice(self.stamp.as_bytes());
        out.push(b'"');
        push_json_field(out, "client", peer.as_bytes());
        push_json_field(out, "host", record.host());
        push_json_field(out, "method", record.method());
        push_json_field(out, "target", record.target());
        push_json_field(out, "protocol", record.version().as_bytes());
        let took_us = u64::try_from(now.since(record.began).as_micros()).unwrap_or(u64::MAX);
        for (name, number) in [("status", record.status.into()), ("body_bytes", body_bytes), ("took_us", took_us)] {
            out.extend_from_slice(b",\"");
            out.extend_from_slice(name.as_bytes());
            out.extend_from_slice(b"\":");
            amped_http::text::push_decimal(out, number);
        }
        push_json_field(out, "cache", record.outcome.as_str().as_bytes());
        for (name, field) in [("referer", record.referer()), ("user_agent", record.user_agent())] {
            if let Some(field) = field {
                push_json_field(out, name, field);
            }
        }
        out.extend_from_slice(b"}\n");
    }
}

/// `[10/Oct/2000:13:55:36 -0700]`, or RFC 3339 for JSON.
fn stamp(seconds: i64, format: LogFormat) -> String {
    let offset = process::local_offset(seconds);
    let at = Civil::from_unix(seconds + i64::from(offset));
    let (sign, minutes) = (if offset < 0 { '-' } else { '+' }, offset.unsigned_abs() / 60);
    let (zone_hours, zone_minutes) = (minutes / 60, minutes % 60);
    let mut text = String::new();
    // Writing to a String cannot fail.
    let _ = match format {
        LogFormat::Common | LogFormat::Combined => write!(
            text,
            "[{:02}/{}/{:04}:{:02}:{:02}:{:02} {sign}{zone_hours:02}{zone_minutes:02}]",
            at.day,
            at.month_name(),
            at.year,
            at.hour,
            at.minute,
            at.second
        ),
        LogFormat::Json => write!(text, "{at}{sign}{zone_hours:02}:{zone_minutes:02}"),
    };
    text
}

/// Text inside quotes: quotes, backslashes, control bytes and bytes beyond ASCII become `\xHH`, as in Apache and nginx, so
/// that a line is one line and its fields can be told apart whatever a client sends.
fn push_escaped(out: &mut Vec<u8>, text: &[u8]) {
    let plain = |&b: &u8| (0x20..0x7f).contains(&b) && b != b'"' && b != b'\\';
    if text.iter().all(plain) {
        out.extend_from_slice(text);
        return;
    }
    for byte in text {
        if plain(byte) {
            out.push(*byte);
        } else {
            let _ = write!(out, "\\x{byte:02X}");
        }
    }
}

/// `,"name":"value"`
fn push_json_field(out: &mut Vec<u8>, name: &str, value: &[u8]) {
    out.extend_from_slice(b",\"");
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(b"\":");
    json::push_string(out, value);
}

/// Lines on their way to the file.
#[derive(Debug, Default)]
struct Batch {
    text: Vec<u8>,
    lines: u64,
}

/// Batches that may wait to be written. With the default buffer 16 MiB: a minute of a slow disk at a few thousand
/// requests a second.
const BATCHES_MAX: usize = 256;

/// The thread that writes, as the loops see it.
#[derive(Debug)]
pub struct Writer {
    state: Mutex<State>,
    wake: Condvar,
    lost: AtomicU64,
}

#[derive(Debug, Default)]
struct State {
    /// `queue.len() <= BATCHES_MAX`
    queue: VecDeque<Batch>,
    /// Buffers to be filled again.
    spare: Vec<Vec<u8>>,
    reopen: bool,
    stopping: bool,
}

/// An open log.
#[derive(Debug)]
pub enum Sink {
    /// Standard output.
    Stdout,
    /// A file, open for appending.
    File(File),
}

impl Sink {
    /// Opens the log; `None`: none is wanted. A file that is created here by root is given to `owner`, who will have to
    /// reopen it; one that was there is somebody's already.
    ///
    /// # Errors
    /// When the file cannot be opened, or not be given away.
    pub fn open(target: &LogTarget, owner: Option<(u32, u32)>) -> io::Result<Option<Sink>> {
        let path = match target {
            LogTarget::Off => return Ok(None),
            LogTarget::Stdout => return Ok(Some(Sink::Stdout)),
            LogTarget::File(path) => path,
        };
        let file = match File::options().append(true).create_new(true).open(path) {
            Ok(file) => {
                if let Some((uid, gid)) = owner {
                    process::give_to(&file, uid, gid)?;
                }
                file
            }
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => open(path)?,
            Err(error) => return Err(error),
        };
        Ok(Some(Sink::File(file)))
    }

    fn write(&mut self, text: &[u8]) -> io::Result<usize> {
        match self {
            Sink::Stdout => io::stdout().lock().write_all(text).map(|()| text.len()),
            Sink::File(file) => file.write(text),
        }
    }
}

fn open(path: &Path) -> io::Result<File> {
    File::options().append(true).create(true).open(path)
}

impl Writer {
    /// Starts the thread that writes.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn start(sink: Sink, target: &LogTarget) -> io::Result<(Arc<Writer>, JoinHandle<()>)> {
        // The first question for the local time reads the zone's file. Here it may.
        process::local_offset(0);
        let writer = Arc::new(Writer { state: Mutex::default(), wake: Condvar::new(), lost: AtomicU64::new(0) });
        let (shared, target) = (Arc::clone(&writer), target.clone());
        let thread = std::thread::Builder::new().name("log".to_owned()).spawn(move || shared.run(sink, &target))?;
        Ok((writer, thread))
    }

    /// Lines that could not be kept.
    pub fn lost_lines(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }

    /// Opens the file anew: the old one has been moved away.
    pub fn reopen(&self) {
        self.lock().reopen = true;
        self.wake.notify_one();
    }

    /// Writes what is there, and ends.
    pub fn stop(&self) {
        self.lock().stopping = true;
        self.wake.notify_one();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a batch and gives an empty buffer in exchange. The lock is never held while anything is written.
    fn put(&self, batch: Batch) -> Vec<u8> {
        let mut state = self.lock();
        if state.queue.len() == BATCHES_MAX {
            self.lost.fetch_add(batch.lines, Ordering::Relaxed);
            let mut text = batch.text;
            text.clear();
            return text;
        }
        state.queue.push_back(batch);
        self.wake.notify_one();
        state.spare.pop().unwrap_or_default()
    }

    fn run(&self, mut sink: Sink, target: &LogTarget) {
        let mut trouble = Trouble::default();
        let mut torn = false;
        loop {
            let mut state = self.lock();
            while state.queue.is_empty() && !state.reopen && !state.stopping {
                state = self.wake.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
            let reopen = std::mem::take(&mut state.reopen);
            let stopping = state.stopping;
            // What was gathered before a reopening belongs to the old file.
            let batches = std::mem::take(&mut state.queue);
            drop(state);
            for mut batch in batches {
                let written = write_all(&mut sink, &batch.text, &mut torn);
                trouble.after(target, written.map_err(|(error, kept)| (error, batch.lines - kept)), &self.lost);
                batch.text.clear();
                let mut state = self.lock();
                if state.spare.len() < 4 {
                    state.spare.push(batch.text);
                }
            }
            if reopen && let LogTarget::File(path) = target {
                match open(path) {
                    Ok(file) => {
                        sink = Sink::File(file);
                        torn = false;
                    }
                    Err(error) => {
                        say!("cannot reopen the log {}: {error}; lines go on to the old file", path.display())
                    }
                }
            }
            if stopping && self.lock().queue.is_empty() {
                return;
            }
        }
    }
}

/// Writes a batch. An error comes with the number of lines that are kept all the same.
///
/// A failure in the middle of a line leaves a torn one, right behind which the next batch would be written: it is taken out
/// again, or, where that cannot be, `torn` is set and the line is ended before another begins.
fn write_all(sink: &mut Sink, text: &[u8], torn: &mut bool) -> Result<(), (io::Error, u64)> {
    if *torn {
        match sink.write(b"\n") {
            Ok(1..) => *torn = false,
            failed => return Err((failed.err().unwrap_or(io::ErrorKind::WriteZero.into()), 0)),
        }
    }
    let mut at = 0;
    while at < text.len() {
        match sink.write(&text[at..]) {
            Ok(count) if count > 0 => at += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            failed => {
                let whole = text[..at].iter().rposition(|&byte| byte == b'\n').map_or(0, |end| end + 1);
                *torn = whole < at && !cut_off(sink, (at - whole) as u64);
                let kept = text[..whole].iter().filter(|&&byte| byte == b'\n').count() as u64;
                return Err((failed.err().unwrap_or(io::ErrorKind::WriteZero.into()), kept));
            }
        }
    }
    Ok(())
}

/// Takes so many bytes from the end of the log; `false` for one that is no regular file.
fn cut_off(sink: &Sink, count: u64) -> bool {
    match sink {
        Sink::Stdout => false,
        Sink::File(file) => {
            let length = file.metadata().map(|state| if state.is_file() { state.len() } else { 0 });
            matches!(length, Ok(length) if length >= count && file.set_len(length - count).is_ok())
        }
    }
}

/// Says once that the log fails, and once that it goes on.
#[derive(Default)]
struct Trouble {
    lost: u64,
}

impl Trouble {
    /// Takes note of how a batch was written, or why not and how many lines were lost.
    fn after(&mut self, target: &LogTarget, written: Result<(), (io::Error, u64)>, lost: &AtomicU64) {
        let name = match target {
            LogTarget::File(path) => path.display().to_string(),
            LogTarget::Stdout | LogTarget::Off => "standard output".to_owned(),
        };
        match written {
            Ok(()) if self.lost > 0 => {
                say!("the log {name} is being written again; {} lines were lost", self.lost);
                self.lost = 0;
            }
            Ok(()) => {}
            Err((error, lines)) => {
                if self.lost == 0 {
                    say!("cannot write the log {name}: {error}; lines are lost until it works again");
                }
                self.lost += lines;
                lost.fetch_add(lines, Ordering::Relaxed);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_a_client_sends_stays_one_line() {
        let check = |text: &[u8], expected: &str| {
            let mut out = Vec::new();
            push_escaped(&mut out, text);
            assert_eq!(String::from_utf8(out).unwrap(), expected);
        };
        check(b"/plain?a=b", "/plain?a=b");
        check(b"a\"b\\c\nd\x7f\xff", "a\\x22b\\x5Cc\\x0Ad\\x7F\\xFF");
        let mut json = Vec::new();
        push_json_field(&mut json, "x", b"a\"b\\c\nd\xffe");
        assert_eq!(String::from_utf8(json).unwrap(), ",\"x\":\"a\\\"b\\\\c\\u000ad\u{fffd}e\"");
    }

    #[test]
    fn what_nobody_writes_is_lost_beyond_a_bound_and_counted() {
        // A writer whose thread hangs, as on a dead disk: nobody takes a batch away.
        let writer = Arc::new(Writer { state: Mutex::default(), wake: Condvar::new(), lost: AtomicU64::new(0) });
        let settings = LogSettings {
            access: LogTarget::Stdout,
            format: LogFormat::Common,
            buffer: amped_units::Bytes(1),
            flush: Duration::from_secs(1),
        };
        let mut log = AccessLog::new(&settings, Some(Arc::clone(&writer)));
        let (record, peer, wall) = (Record::default(), Peer::new(None), Wall::at(0));
        for _ in 0..BATCHES_MAX + 7 {
            log.write(&record, &peer, 0, &wall, Time::START);
        }
        assert_eq!((writer.lock().queue.len(), writer.lost_lines()), (BATCHES_MAX, 7));
    }

    #[test]
    fn peers() {
        let check = |address: &str, expected: &str| {
            let peer = Peer::new(Some(address.parse().unwrap()));
            assert_eq!(std::str::from_utf8(peer.as_bytes()), Ok(expected));
        };
        check("127.0.0.1:80", "127.0.0.1");
        check("[::ffff:127.0.0.1]:80", "127.0.0.1");
        check("[2001:db8:1111:2222:3333:4444:5555:6666]:80", "2001:db8:1111:2222:3333:4444:5555:6666");
        assert_eq!(Peer::new(None).as_bytes(), b"-");
    }
}
