//! The access log: one line per request, which never delays a response.
//!
//! Each loop formats its lines into its own buffer and passes the buffer, when it is full or old enough, to the
//! one writer thread ([`Writer`]). If host names are enabled, the writer replaces addresses by names (`held`),
//! which other threads look up (`resolver`). Common and Combined are as in Apache and NCSA, with local time; JSON
//! adds host, version and cipher suite of TLS, time taken, cache outcome and backend.

mod held;
mod resolver;
mod writer;

use std::fmt::Write as _;
use std::io::Write;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use amped_core::json;
use amped_core::record::Record;
use amped_core::reply::WallClock;
use amped_http::date::Civil;
use amped_sys::process;
use amped_units::Time;

use crate::config::log_format::{LogField, LogFormat, LogPart};
use crate::config::settings::LogSettings;
use crate::counters::Negotiated;
use held::{JSON_CLIENT, JSON_TIME};
use writer::Batch;
pub(crate) use writer::end_log;
pub use writer::{Sink, Writer};

/// A client's address as the log writes it, formatted once per connection.
#[derive(Clone, Debug)]
pub struct Peer {
    /// The longest form is an IPv6 address with an embedded IPv4 address: 45 characters.
    text: [u8; 46],
    length: u8,
}

impl Peer {
    /// Formats the address without its port. An IPv4 address mapped into IPv6 is written as IPv4.
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

    /// Returns the address, or `None` if it is unknown.
    pub fn address(&self) -> Option<IpAddr> {
        std::str::from_utf8(self.as_bytes()).ok()?.parse().ok()
    }

    fn as_bytes(&self) -> &[u8] {
        &self.text[..usize::from(self.length)]
    }
}

/// A loop's side of the access log.
pub struct AccessLog {
    /// `None`: logging is disabled.
    writer: Option<Arc<Writer>>,
    format: LogFormat,
    buffer: Vec<u8>,
    lines: u64,
    buffer_max: usize,
    flush_after: Duration,
    /// When the oldest line in the buffer was added; [`Time::NEVER`] if the buffer is empty.
    oldest: Time,
    /// Whether lines are buffered and recurring texts are cached.
    delayed: bool,
    string_caches: bool,
    /// The last status and its formatted text.
    status: (u16, Vec<u8>),
    /// The second for which `stamp` was formatted.
    stamp_second: i64,
    /// The time of day in the log's format, formatted once a second.
    stamp: String,
    /// The same by ISO 8601, for templates and lists.
    stamp_iso: String,
    /// For values that are put together.
    scratch: Vec<u8>,
}

impl AccessLog {
    /// Creates a log that passes its lines to `writer`, or a disabled log.
    pub fn new(settings: &LogSettings, writer: Option<Arc<Writer>>) -> AccessLog {
        AccessLog {
            writer,
            format: settings.format.clone(),
            buffer: Vec::new(),
            lines: 0,
            buffer_max: settings.buffer.as_usize(),
            flush_after: settings.flush,
            oldest: Time::NEVER,
            delayed: settings.delayed,
            string_caches: settings.string_caches,
            status: (0, Vec::new()),
            stamp_second: i64::MIN,
            stamp: String::new(),
            stamp_iso: String::new(),
            scratch: Vec::new(),
        }
    }

    /// Applies another format and other limits; the file stays open.
    pub fn renew(&mut self, settings: &LogSettings) {
        self.flush();
        self.format = settings.format.clone();
        self.buffer_max = settings.buffer.as_usize();
        self.flush_after = settings.flush;
        (self.delayed, self.string_caches) = (settings.delayed, settings.string_caches);
        self.stamp_second = i64::MIN;
    }

    /// Returns whether lines have the time that a request took.
    pub fn has_duration(&self) -> bool {
        self.format.has_duration()
    }

    /// Returns the writer.
    pub fn writer(&self) -> Option<&Writer> {
        self.writer.as_deref()
    }

    /// Returns when [`flush`](AccessLog::flush) is due.
    pub fn next_due(&self) -> Time {
        self.oldest + self.flush_after
    }

    /// Adds the line of a request of this client, with the parameters of its TLS session.
    pub fn write(
        &mut self,
        record: &Record,
        (peer, tls): (&Peer, Option<&Negotiated>),
        body_bytes: u64,
        wall: &WallClock,
        now: Time,
    ) {
        let Some(writer) = self.writer.as_ref().filter(|_| !record.is_unlogged) else {
            return;
        };
        let begin = self.buffer.len();
        let writer = (!self.delayed).then(|| Arc::clone(writer));
        if self.stamp_second != wall.seconds || !self.string_caches {
            self.stamp_second = wall.seconds;
            self.stamp = stamp(wall.seconds, self.format == LogFormat::Json);
            if !self.format.is_named() {
                self.stamp_iso = stamp(wall.seconds, true);
            }
        }
        if self.lines == 0 {
            self.oldest = now;
        }
        self.lines += 1;
        match &self.format {
            LogFormat::Common | LogFormat::Combined => self.write_common(record, peer, body_bytes),
            LogFormat::Json => self.write_json(record, (peer, tls), body_bytes, now),
            LogFormat::Template(template) => {
                let stamps = [&self.stamp, &self.stamp_iso].map(String::as_bytes);
                let line = Line { record, peer, tls, stamps, body_bytes, now };
                let (template, out) = (Arc::clone(template), &mut self.buffer);
                for part in &template.parts {
                    match part {
                        LogPart::Literal(text) => out.extend_from_slice(text.as_bytes()),
                        LogPart::Field(field) => line.value(*field, &mut self.scratch).push_text(out),
                    }
                }
                out.push(b'\n');
            }
            LogFormat::Fields(fields) => {
                let stamps = [&self.stamp, &self.stamp_iso].map(String::as_bytes);
                let line = Line { record, peer, tls, stamps, body_bytes, now };
                let out = &mut self.buffer;
                for (number, field) in fields.iter().enumerate() {
                    out.extend_from_slice(if number == 0 { b"{\"" } else { b",\"" });
                    out.extend_from_slice(field.name().as_bytes());
                    out.extend_from_slice(b"\":");
                    line.value(*field, &mut self.scratch).push_json(out);
                }
                out.extend_from_slice(b"}\n");
            }
        }
        if let Some(writer) = writer
            && writer.write_at_once(&self.buffer[begin..])
        {
            self.buffer.truncate(begin);
            self.lines -= 1;
            if self.lines == 0 {
                self.oldest = Time::NEVER;
            }
        }
        if self.buffer.len() >= self.buffer_max || !self.delayed {
            self.flush();
        }
    }

    /// Formats a status, or reuses the last one. Nearly all are the same (Hu, Nanda and Yang, 5.3.2).
    fn note_status(&mut self, status: u16) {
        if self.status.0 != status || !self.string_caches {
            self.status.1.clear();
            amped_http::text::push_decimal(&mut self.status.1, status.into());
            self.status.0 = status;
        }
    }

    /// Passes the buffered lines to the writer.
    pub fn flush(&mut self) {
        if self.lines == 0 {
            return;
        }
        if let Some(writer) = &self.writer {
            let (text, lines) = (std::mem::take(&mut self.buffer), std::mem::take(&mut self.lines));
            let batch = Batch { text, lines, format: self.format.clone() };
            self.buffer = writer.put(batch);
        }
        self.oldest = Time::NEVER;
    }

    /// `host - - [time] "request" status bytes`, and `"referer" "agent"` for Combined.
    fn write_common(&mut self, record: &Record, peer: &Peer, body_bytes: u64) {
        self.note_status(record.status);
        let out = &mut self.buffer;
        push_client(out, record, peer);
        out.extend_from_slice(b" - ");
        push_user(out, record.user());
        out.push(b' ');
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
        out.extend_from_slice(&self.status.1);
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

    fn write_json(&mut self, record: &Record, (peer, tls): (&Peer, Option<&Negotiated>), body_bytes: u64, now: Time) {
        let out = &mut self.buffer;
        out.extend_from_slice(JSON_TIME);
        out.extend_from_slice(self.stamp.as_bytes());
        out.extend_from_slice(JSON_CLIENT);
        push_client(out, record, peer);
        out.push(b'"');
        if record.proxied {
            push_json_field(out, "proxy", peer.as_bytes());
        }
        if let Some(user) = record.user() {
            push_json_field(out, "user", user);
        }
        push_json_field(out, "host", record.host());
        push_json_field(out, "method", record.method());
        push_json_field(out, "target", record.target());
        push_json_field(out, "protocol", record.version().as_bytes());
        if let Some(tls) = tls {
            push_json_field(out, "tls", tls.version.as_str().as_bytes());
            push_json_field(out, "cipher", tls.suite.as_bytes());
            if let Some(subject) = &tls.subject {
                push_json_field(out, "subject", subject.as_bytes());
            }
        }
        let took_us = u64::try_from(now.since(record.began).as_micros()).unwrap_or(u64::MAX);
        for (name, number) in [("status", record.status.into()), ("body_bytes", body_bytes), ("took_us", took_us)] {
            out.extend_from_slice(b",\"");
            out.extend_from_slice(name.as_bytes());
            out.extend_from_slice(b"\":");
            amped_http::text::push_decimal(out, number);
        }
        push_json_field(out, "cache", record.outcome.as_str().as_bytes());
        let fields =
            [("backend", record.backend()), ("referer", record.referer()), ("user_agent", record.user_agent())];
        for (name, field) in fields {
            if let Some(field) = field {
                push_json_field(out, name, field);
            }
        }
        out.extend_from_slice(b"}\n");
    }
}

/// Appends the address of the client, which a proxy may have named.
fn push_client(out: &mut Vec<u8>, record: &Record, peer: &Peer) {
    match record.client {
        // Writing to a vector cannot fail.
        Some(address) => _ = write!(out, "{address}"),
        None => out.extend_from_slice(peer.as_bytes()),
    }
}

/// What a line is about.
struct Line<'a> {
    record: &'a Record,
    peer: &'a Peer,
    tls: Option<&'a Negotiated>,
    /// The time in the forms of Common and of ISO 8601.
    stamps: [&'a [u8]; 2],
    body_bytes: u64,
    now: Time,
}

impl Line<'_> {
    /// The value of a field. `scratch` is for one that is put together.
    fn value<'v>(&'v self, field: LogField, scratch: &'v mut Vec<u8>) -> Value<'v> {
        let Line { record, peer, tls, stamps: [local, iso], body_bytes, now } = *self;
        scratch.clear();
        let text = |text: Option<&'v [u8]>| text.filter(|text| !text.is_empty()).map_or(Value::Missing, Value::Text);
        match field {
            LogField::RemoteAddr => {
                push_client(scratch, record, peer);
                Value::Text(scratch)
            }
            LogField::PeerAddr => Value::Text(peer.as_bytes()),
            LogField::RemoteUser => record.user().filter(|user| !user.is_empty()).map_or(Value::Missing, Value::User),
            // Without its brackets.
            LogField::TimeLocal => Value::Text(local.get(1..local.len() - 1).unwrap_or_default()),
            LogField::TimeIso => Value::Text(iso),
            LogField::Host => text(Some(record.host())),
            LogField::Scheme => Value::Text(if record.secure { b"https" } else { b"http" }),
            LogField::Request => {
                let parts = [record.method(), record.target(), record.version().as_bytes()];
                for part in parts.into_iter().filter(|part| !part.is_empty()) {
                    if !scratch.is_empty() {
                        scratch.push(b' ');
                    }
                    scratch.extend_from_slice(part);
                }
                text(Some(scratch))
            }
            LogField::RequestId => text(record.request_id()),
            LogField::Method => text(Some(record.method())),
            LogField::Target => text(Some(record.target())),
            LogField::Protocol => text(Some(record.version().as_bytes())),
            LogField::Status => Value::Number(record.status.into()),
            LogField::BodyBytes => Value::Number(body_bytes),
            LogField::Bytes => Value::Number(body_bytes + record.head_bytes as u64),
            LogField::RequestTime => Value::Seconds(now.since(record.began)),
            LogField::Referer => text(record.referer()),
            LogField::UserAgent => text(record.user_agent()),
            LogField::TlsVersion => text(tls.map(|tls| tls.version.as_str().as_bytes())),
            LogField::TlsCipher => text(tls.map(|tls| tls.suite.as_bytes())),
            LogField::TlsSubject => text(tls.and_then(|tls| tls.subject.as_deref()).map(str::as_bytes)),
            LogField::Upstream => text(record.backend()),
            LogField::UpstreamTime => record.upstream_time.map_or(Value::Missing, Value::Seconds),
            LogField::Cache => Value::Text(record.outcome.as_str().as_bytes()),
        }
    }
}

/// The value of a field.
enum Value<'a> {
    Text(&'a [u8]),
    /// Text in which a space would end the field.
    User(&'a [u8]),
    Number(u64),
    /// Written as nginx does, with milliseconds.
    Seconds(Duration),
    Missing,
}

impl Value<'_> {
    fn push_text(&self, out: &mut Vec<u8>) {
        match self {
            Value::Text(text) => push_escaped(out, text),
            Value::User(name) => push_user(out, Some(name)),
            Value::Missing => out.push(b'-'),
            Value::Number(_) | Value::Seconds(_) => self.push_json(out),
        }
    }

    fn push_json(&self, out: &mut Vec<u8>) {
        match self {
            Value::Text(text) | Value::User(text) => json::push_string(out, text),
            Value::Number(number) => amped_http::text::push_decimal(out, *number),
            // Writing to a vector cannot fail.
            Value::Seconds(time) => _ = write!(out, "{}.{:03}", time.as_secs(), time.subsec_millis()),
            Value::Missing => out.extend_from_slice(b"null"),
        }
    }
}

/// `[10/Oct/2000:13:55:36 -0700]`, or RFC 3339 for JSON.
fn stamp(seconds: i64, is_iso: bool) -> String {
    let offset = process::local_offset(seconds);
    let at = Civil::from_unix(seconds + i64::from(offset));
    let (sign, minutes) = (if offset < 0 { '-' } else { '+' }, offset.unsigned_abs() / 60);
    let (zone_hours, zone_minutes) = (minutes / 60, minutes % 60);
    let mut text = String::new();
    // Writing to a String cannot fail.
    let _ = match is_iso {
        false => write!(
            text,
            "[{:02}/{}/{:04}:{:02}:{:02}:{:02} {sign}{zone_hours:02}{zone_minutes:02}]",
            at.day,
            at.month_name(),
            at.year,
            at.hour,
            at.minute,
            at.second
        ),
        true => write!(text, "{at}{sign}{zone_hours:02}:{zone_minutes:02}"),
    };
    text
}

/// The bytes that stand for themselves in quoted text: printable ASCII but quotes and backslashes.
static PLAIN: [bool; 256] = {
    let mut plain = [false; 256];
    let mut byte = 0x20;
    while byte < 0x7f {
        plain[byte] = byte != b'"' as usize && byte != b'\\' as usize;
        byte += 1;
    }
    plain
};

/// Appends quoted text: quotes, backslashes, control bytes and non-ASCII bytes become `\xHH`, as in Apache and nginx,
/// so that a client can forge neither lines nor fields.
fn push_escaped(out: &mut Vec<u8>, text: &[u8]) {
    let plain = |&byte: &u8| PLAIN[usize::from(byte)];
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

/// Appends a user name. Spaces would end the field, so they are escaped like unprintable bytes.
fn push_user(out: &mut Vec<u8>, user: Option<&[u8]>) {
    let Some(user) = user.filter(|user| !user.is_empty()) else {
        return out.push(b'-');
    };
    for (n, word) in user.split(|&byte| byte == b' ').enumerate() {
        if n > 0 {
            out.extend_from_slice(b"\\x20");
        }
        push_escaped(out, word);
    }
}

/// `,"name":"value"`
fn push_json_field(out: &mut Vec<u8>, name: &str, value: &[u8]) {
    out.extend_from_slice(b",\"");
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(b"\":");
    json::push_string(out, value);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_escaped_on_one_line() {
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
    fn peer_address_is_formatted_without_port() {
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
