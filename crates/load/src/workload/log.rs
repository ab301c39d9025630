//! An access log as a workload: its requests, in order, at their times.
//!
//! Reads the Common and the Combined Log Format (Apache's mod_log_config; nginx writes the same), and the JSON objects
//! that amped writes, from plain or gzip files. [`parse`] splits a line, [`target_of`] derives the target from its
//! request, [`Log::read`] reads a whole file, and [`Log::requests`] makes a workload of it.
//!
//! Real logs contain odd lines: none is fatal, and all that are skipped are counted by kind ([`SkipReason`]). Only GET
//! and HEAD are replayed: a log lacks the body of a POST, and an empty one would measure how a server refuses it; and a
//! replay must not change the server's state, as POST, PUT and DELETE do.
//!
//! A log does not determine the expected replies. Its 304 answered a conditional request and its 404 was a missing file
//! on another server years ago; neither condition is in the line. Unless it is set to trust the log
//! ([`ResponseCheck::Log`]), a replay expects the file, status 200, where the log shows that there was one (200, 206,
//! 304), and nothing for other lines. A reply to HEAD has no body (RFC 9110, 9.3.2), so only its status is checked. A
//! manifest takes precedence: it expects each file that it lists, with its size, and nothing elsewhere.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::time::Duration;

use amped_http::date;
use amped_http::uri::Target;
use amped_measure::Failure;
use amped_measure::stats::Random;
use flate2::bufread::MultiGzDecoder;
use memchr::{memchr, memchr_iter};

use super::manifest::{Manifest, file_name};
use super::{Expect, Order, Request, Requests};

/// Maximum length of a line, in bytes; servers do not accept requests of that length.
const LINE_MAX: usize = 64 << 10;

/// Bytes per read.
const BUFFER: usize = 256 << 10;

/// Magic numbers of other compression formats than gzip, their programs, and the commands that unpack them.
const PACKED: [(&[u8], &str, &str); 4] = [
    (&[0x28, 0xb5, 0x2f, 0xfd], "zstd", "zstd -dc"),
    (b"\xfd7zXZ\0", "xz", "xz -dc"),
    (b"BZh", "bzip2", "bzip2 -dc"),
    (&[0x1f, 0x9d], "compress", "gzip -dc"),
];

/// A log line, split into fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Line<'a> {
    /// The client's name or address: the first word.
    pub client: &'a [u8],
    /// The server's local time, in seconds since 1970 as if it were UTC.
    pub wall_s: i64,
    /// Offset of that time from UTC, in minutes.
    pub zone_min: i16,
    /// The quoted request, still escaped.
    pub request: &'a [u8],
    /// The status of the reply.
    pub status: u16,
    /// Bytes of the reply's body; `None` for a dash, which means none.
    pub bytes: Option<u64>,
}

/// Why a line is not replayed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SkipReason {
    /// Empty line.
    Blank,
    /// Longer than 64 KiB.
    Long,
    /// No client followed by a time in brackets.
    Time,
    /// No quoted request followed by status and size.
    Request,
    /// The quotes contain no request: a dash, or bytes of another protocol.
    Nothing,
    /// A method other than GET and HEAD.
    Method,
    /// An invalid target.
    Target,
}

impl SkipReason {
    /// A short description.
    pub fn name(self) -> &'static str {
        match self {
            SkipReason::Blank => "blank",
            SkipReason::Long => "longer than 64 KiB",
            SkipReason::Time => "without client and time",
            SkipReason::Request => "without request, status and size",
            SkipReason::Nothing => "no request line",
            SkipReason::Method => "method other than GET and HEAD",
            SkipReason::Target => "invalid request target",
        }
    }
}

/// Splits a line of the form `client identity user [time] "request" status bytes`, optionally followed by a space and
/// further text (mod_log_config, "Common Log Format" and "Combined Log Format").
///
/// User names may contain spaces and brackets, and old servers did not escape quotes in requests: the time is the first
/// text that parses as one, and the request ends where status and size follow.
///
/// # Errors
/// The reason: [`SkipReason::Blank`], [`SkipReason::Time`] or [`SkipReason::Request`].
pub fn parse(line: &[u8]) -> Result<Line<'_>, SkipReason> {
    let line = line.trim_ascii();
    if line.is_empty() {
        return Err(SkipReason::Blank);
    }
    let client_end = memchr(b' ', line).filter(|end| *end > 0).ok_or(SkipReason::Time)?;
    let (client, rest) = line.split_at(client_end);
    let (wall_s, zone_min, rest) =
        memchr_iter(b'[', rest).find_map(|at| time(&rest[at + 1..])).ok_or(SkipReason::Time)?;

    let quoted = rest.strip_prefix(b" \"").ok_or(SkipReason::Request)?;
    // A backslash escapes a quote in logs of servers that escape. Other servers' logs may have one before the closing
    // quote: that quote is used if there is no other.
    let mut escaped = None;
    for end in memchr_iter(b'"', quoted) {
        let Some((status, bytes)) = status_and_bytes(&quoted[end + 1..]) else { continue };
        let found = Line { client, wall_s, zone_min, request: &quoted[..end], status, bytes };
        if quoted[..end].iter().rev().take_while(|byte| **byte == b'\\').count() % 2 == 0 {
            return Ok(found);
        }
        escaped.get_or_insert(found);
    }
    escaped.ok_or(SkipReason::Request)
}

/// Converts a JSON log line of amped (`[log] format = "json"`) to the Common Log Format; `None` if it is not one.
fn common_of_json(line: &[u8]) -> Option<Vec<u8>> {
    #[derive(serde::Deserialize)]
    struct Json {
        time: String,
        client: String,
        // Absent if the request's head could not be parsed.
        #[serde(default)]
        method: String,
        #[serde(default)]
        target: String,
        #[serde(default)]
        protocol: String,
        status: u16,
        body_bytes: u64,
    }
    const MONTHS: [&str; 12] = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let Json { time, client, method, target, protocol, status, body_bytes } = serde_json::from_slice(line).ok()?;
    // RFC 3339: `2026-11-23T02:26:51-05:00`.
    let part = |range: std::ops::Range<usize>| time.get(range);
    let month = number(part(5..7)?.as_bytes())?.checked_sub(1).and_then(|month| MONTHS.get(month as usize))?;
    let (day, year, clock, zone) = (part(8..10)?, part(0..4)?, part(11..19)?, part(19..25)?.replace(':', ""));
    // Escapes the bytes that would end the request, as logs in this format do.
    let mut request = Vec::new();
    for byte in format!("{method} {target} {protocol}").bytes() {
        match byte {
            b'"' | b'\\' | ..b' ' => request.extend_from_slice(format!("\\x{byte:02X}").as_bytes()),
            byte => request.push(byte),
        }
    }
    let start = format!("{client} - - [{day}/{month}/{year}:{clock} {zone}] \"");
    Some([start.as_bytes(), &request, format!("\" {status} {body_bytes}").as_bytes()].concat())
}

/// Parses `01/Aug/1995:00:00:01 -0400]`: local seconds, minutes ahead of UTC, and the rest.
fn time(text: &[u8]) -> Option<(i64, i16, &[u8])> {
    let (text, rest) = text.split_at_checked(27)?;
    if [2, 6, 11, 20, 26].map(|at| text[at]) != *b"//: ]" {
        return None;
    }
    // The calendar is that of HTTP dates, whose parser ignores the weekday.
    let mut date = *b"Sun, 00 Jan 1970 00:00:00 GMT";
    for (to, from) in [(5..7, 0..2), (8..11, 3..6), (12..16, 7..11), (17..25, 12..20)] {
        date[to].copy_from_slice(&text[from]);
    }
    let sign = match text[21] {
        b'+' => 1,
        b'-' => -1,
        _ => return None,
    };
    let (hours, minutes) = (number(&text[22..24])?, number(&text[24..26])?);
    let zone_min = (hours < 24 && minutes < 60).then_some(sign * (hours * 60 + minutes) as i16)?;
    Some((date::parse(&date, 0)?, zone_min, rest))
}

/// Parses ` 200 1839`, up to the end or the next space.
fn status_and_bytes(text: &[u8]) -> Option<(u16, Option<u64>)> {
    let (status, rest) = text.strip_prefix(b" ")?.split_at_checked(3)?;
    let bytes = rest.strip_prefix(b" ")?;
    let bytes = match &bytes[..memchr(b' ', bytes).unwrap_or(bytes.len())] {
        b"-" => None,
        digits => Some(number(digits)?),
    };
    let status = number(status)? as u16;
    (status >= 100).then_some((status, bytes))
}

/// Parses decimal digits, at least one.
fn number(digits: &[u8]) -> Option<u64> {
    let add = |sum: u64, digit: &u8| {
        let digit = digit.is_ascii_digit().then(|| u64::from(digit - b'0'))?;
        sum.checked_mul(10)?.checked_add(digit)
    };
    if digits.is_empty() { None } else { digits.iter().try_fold(0, add) }
}

/// The target of a logged request, in the form of a request line: path and query (RFC 9112, 3.2.1).
///
/// Reverses the log's escapes, then percent-encodes what a target may not contain (RFC 3986, 2.1), so that a name with
/// a space or a broken escape requests the same file. `http://host/path` becomes its path. A path without a leading
/// slash is relative to the root, as for servers of the time: anonymised logs (Calgary's, SDSC's) have no other.
///
/// # Errors
/// [`SkipReason::Nothing`], [`SkipReason::Method`] or [`SkipReason::Target`].
pub fn target_of(request: &[u8]) -> Result<Vec<u8>, SkipReason> {
    let request = request.trim_ascii();
    let method_end = memchr(b' ', request).ok_or(SkipReason::Nothing)?;
    let (method, rest) = (&request[..method_end], request[method_end..].trim_ascii());
    if !method.iter().all(u8::is_ascii_alphabetic) {
        return Err(SkipReason::Nothing);
    }
    if ![&b"GET"[..], b"HEAD"].contains(&method) {
        return Err(SkipReason::Method);
    }
    // The version is the last word. HTTP/0.9 has none.
    let last = rest.iter().rposition(|byte| *byte == b' ').map_or(0, |at| at + 1);
    let target = if rest[last..].starts_with(b"HTTP/") { rest[..last].trim_ascii() } else { rest };

    let mut target = encoded(&unescaped(target));
    if is_relative(&target) {
        target.insert(0, b'/');
    }
    match Target::parse(&target, false) {
        Some(Target::Origin { .. }) => Ok(target),
        Some(Target::Absolute { path, query, .. }) => {
            let query = query.map(|query| [b"?", query].concat()).unwrap_or_default();
            Ok([path, &query].concat())
        }
        Some(Target::Asterisk | Target::Authority(_)) | None => Err(SkipReason::Target),
    }
}

/// Whether it is a relative path and nothing else (RFC 3986, 4.2, `path-noscheme`): a colon in its first segment would
/// make it a scheme, or a host with its port.
fn is_relative(target: &[u8]) -> bool {
    let first = target.split(|byte| b"/?".contains(byte)).next().unwrap_or_default();
    !first.is_empty() && first != b"*" && !first.contains(&b':')
}

/// Apache and nginx write quotes, backslashes, control bytes and bytes above 0x7e as `\"`, `\\`, `\n`, `\t`, `\xhh`.
fn unescaped(text: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(text.len());
    let mut rest = text;
    while let [byte, after @ ..] = rest {
        let (byte, after) = match (byte, after) {
            (b'\\', [b'x' | b'X', high, low, after @ ..]) if hex(*high).is_some() && hex(*low).is_some() => {
                (hex(*high).unwrap_or_default() << 4 | hex(*low).unwrap_or_default(), after)
            }
            (b'\\', [b'"', after @ ..]) => (b'"', after),
            (b'\\', [b'\\', after @ ..]) => (b'\\', after),
            (b'\\', [b'n', after @ ..]) => (b'\n', after),
            (b'\\', [b'r', after @ ..]) => (b'\r', after),
            (b'\\', [b't', after @ ..]) => (b'\t', after),
            (byte, after) => (*byte, after),
        };
        plain.push(byte);
        rest = after;
    }
    plain
}

/// Percent-encodes bytes that a target may not contain (RFC 3986, 3.3 and 3.4), including a `%` that begins no escape.
fn encoded(target: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(target.len());
    for (at, byte) in target.iter().enumerate() {
        let broken =
            *byte == b'%' && !target.get(at + 1..at + 3).is_some_and(|next| next.iter().all(u8::is_ascii_hexdigit));
        if broken || !byte.is_ascii_graphic() || b"\"#<>\\^`{|}".contains(byte) {
            out.extend_from_slice(format!("%{byte:02X}").as_bytes());
        } else {
            out.push(*byte);
        }
    }
    out
}

fn hex(digit: u8) -> Option<u8> {
    char::from(digit).to_digit(16).map(|value| value as u8)
}

/// The clock by which the lines are better ordered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clock {
    /// UTC: each time with its own zone, as intended.
    Zoned,
    /// Local time only. By their zones the lines would run back more often, so the zones are wrong.
    Wall,
}

/// Statistics of a log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// All lines.
    pub lines: u64,
    /// Skipped lines, by kind.
    pub odd: BTreeMap<SkipReason, u64>,
    /// Replies to the replayed requests, by status.
    pub statuses: BTreeMap<u16, u64>,
    /// Lines earlier than the previous one, by UTC and by local time.
    pub backward: [u64; 2],
    /// Why reading stopped early: an error of the file or of its compression.
    pub cut: Option<String>,
}

impl Tally {
    /// The clock for the lines: the one that runs back less often; UTC if both are equal.
    pub fn clock(&self) -> Clock {
        if self.backward[1] < self.backward[0] { Clock::Wall } else { Clock::Zoned }
    }
}

/// A request of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    wall_s: i64,
    pub(super) bytes: Option<u64>,
    /// Index of the target.
    pub(super) target: u32,
    /// Whether the method was HEAD.
    pub(super) head: bool,
    zone_min: i16,
    pub(super) status: u16,
}

/// The requests of a log, in its order.
#[derive(Clone, Debug, Default)]
pub struct Log {
    pub(super) targets: Vec<Box<[u8]>>,
    pub(super) entries: Vec<Entry>,
    tally: Tally,
}

/// The timing of a replay.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Spacing {
    /// This many times the original speed.
    Times(f64),
    /// In the log's order, without its times.
    Max,
}

impl std::str::FromStr for Spacing {
    type Err = String;

    fn from_str(text: &str) -> Result<Spacing, String> {
        let times = |text: &str| text.parse().ok().filter(|times| (0.001..=1e6).contains(times));
        match text {
            "max" => Ok(Spacing::Max),
            _ => times(text).map(Spacing::Times).ok_or_else(|| {
                "write a speed factor from 0.001 to 1000000, such as `10`, or `max` to ignore times".to_owned()
            }),
        }
    }
}

/// The expected replies.
#[derive(Clone, Copy, Debug, Default)]
pub enum ResponseCheck<'a> {
    /// The file where the log shows that there was one, and anything for other lines.
    #[default]
    Files,
    /// The log's status, and for 200 its size. 206 and 304 answered ranges and
    /// conditions that a log does not record, so there the file is expected.
    Log,
    /// A manifest's description of the server's files, with `verify` to the last byte; anything for paths that are not
    /// in it. A manifest of the first requests of a log ends the replay after them
    /// ([`Head::requests`](super::manifest::Head)).
    Manifest {
        /// The server's files.
        manifest: &'a Manifest,
        /// Whether to check content.
        verify: bool,
    },
}

impl Log {
    /// Reads the log at `path`, plain or compressed by gzip, as its first bytes show (RFC 1952, 2.3.1).
    ///
    /// # Errors
    /// When it cannot be opened, or has no request to replay. A truncated
    /// log is read as far as possible, and [`Tally::cut`] has the reason.
    pub fn read(path: &Path) -> Result<Log, Failure> {
        let place = path.display();
        let open = || {
            let mut file = BufReader::with_capacity(BUFFER, File::open(path)?);
            file.fill_buf()?;
            Ok(file)
        };
        let file = open().map_err(Failure::io(format_args!("read the log {place}")))?;
        let packed = PACKED.iter().find(|(magic, ..)| file.buffer().starts_with(magic));
        let log = if file.buffer().starts_with(&[0x1f, 0x8b]) {
            Log::read_from(BufReader::with_capacity(BUFFER, MultiGzDecoder::new(file)))
        } else {
            Log::read_from(file)
        };
        let Tally { lines, odd, cut, .. } = log.tally();
        if let (true, Some((_, name, unpack))) = (log.entries.is_empty(), packed) {
            return Err(Failure::failed(format!(
                "the log {place} is compressed by {name}, and only gzip is supported: decompress it first, `{unpack} \
                 {place} > access.log`"
            )));
        }
        if log.entries.is_empty() {
            let why = match (cut, odd.iter().max_by_key(|(_, count)| **count)) {
                (Some(cut), _) => format!("it cannot be read: {cut}"),
                (None, Some((kind, count))) => format!("{count} of its {lines} lines are invalid: {}", kind.name()),
                (None, None) => "it is empty".to_owned(),
            };
            return Err(Failure::failed(format!(
                "no request to replay in the log {place}: {why}; lines must be in the Common or Combined Log Format, as \
                 `host - - [01/Aug/1995:00:00:01 -0400] \"GET / HTTP/1.0\" 200 1839`, or in amped's JSON"
            )));
        }
        Ok(log)
    }

    /// Reads the lines of a log.
    pub fn read_from(mut source: impl BufRead) -> Log {
        let mut log = Log::default();
        let mut known: HashMap<Box<[u8]>, u32> = HashMap::new();
        let mut line = Vec::new();
        let mut before: Option<[i64; 2]> = None;
        loop {
            line.clear();
            // A line that is too long is kept only as far as needed to detect it.
            let read = (&mut source).take(LINE_MAX as u64 + 2).read_until(b'\n', &mut line).and_then(|_| {
                if line.len() > LINE_MAX && !line.ends_with(b"\n") { source.skip_until(b'\n') } else { Ok(0) }
            });
            log.tally.cut = read.err().map(|error| error.to_string());
            if !line.is_empty() {
                log.take(line.strip_suffix(b"\n").unwrap_or(&line), &mut known, &mut before);
            }
            if line.is_empty() || log.tally.cut.is_some() {
                return log;
            }
        }
    }

    fn take(&mut self, line: &[u8], known: &mut HashMap<Box<[u8]>, u32>, before: &mut Option<[i64; 2]>) {
        self.tally.lines += 1;
        let common = line.trim_ascii_start().starts_with(b"{").then(|| common_of_json(line));
        let parsed = match &common {
            _ if line.len() > LINE_MAX => Err(SkipReason::Long),
            Some(None) => Err(SkipReason::Request),
            Some(Some(line)) => parse(line),
            None => parse(line),
        };
        let found = parsed.and_then(|line| match known.get(line.request) {
            Some(target) => Ok((line, *target)),
            None => {
                let target = self.targets.len() as u32;
                self.targets.push(target_of(line.request)?.into());
                known.insert(line.request.into(), target);
                Ok((line, target))
            }
        });
        let (line, target) = match found {
            Ok(found) => found,
            Err(odd) => {
                *self.tally.odd.entry(odd).or_default() += 1;
                return;
            }
        };
        *self.tally.statuses.entry(line.status).or_default() += 1;
        let Line { wall_s, zone_min, status, bytes, .. } = line;
        let head = line.request.trim_ascii().starts_with(b"HEAD ");
        let entry = Entry { wall_s, bytes, target, head, zone_min, status };
        let now = [entry.second(Clock::Zoned), entry.second(Clock::Wall)];
        for (count, (now, before)) in self.tally.backward.iter_mut().zip(now.iter().zip(before.unwrap_or(now))) {
            *count += u64::from(*now < before);
        }
        *before = Some(now);
        self.entries.push(entry);
    }

    /// The statistics, including skipped lines.
    pub fn tally(&self) -> &Tally {
        &self.tally
    }

    /// Number of requests.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are no requests.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The requests in order, each once. A log has no fractions of seconds: the seed
    /// decides the instants within a second, one per request, uniform and independent.
    /// A line earlier than the previous one gets the same second as that one.
    ///
    /// # Panics
    /// If there are no requests.
    pub fn requests(&self, spacing: Spacing, response_check: ResponseCheck<'_>, seed: u64) -> Requests {
        let mut instants = match spacing {
            Spacing::Times(times) => self.moments(times, seed),
            Spacing::Max => Vec::new(),
        };
        // By target, as targets repeat and their content is generated only once.
        let (mut known, mut end) = (Vec::new(), None);
        if let ResponseCheck::Manifest { manifest, verify } = response_check {
            let (files, mut expectations) = (manifest.by_name(), HashMap::new());
            let mut expect = |target: &[u8]| {
                let file = files.get(&name_of(target)?)?;
                Some(*expectations.entry(file.path.as_str()).or_insert_with(|| file.expect(verify)))
            };
            known = self.targets.iter().map(|target| expect(target).unwrap_or_default()).collect();
            end = manifest.head.requests;
        }
        let end = end.and_then(|end| usize::try_from(end).ok()).unwrap_or(usize::MAX);
        instants.truncate(end);
        // Distinct requests only: a line then costs a few bytes.
        let (mut table, mut places) = (Vec::new(), HashMap::new());
        let order = self.entries.iter().take(end).map(|entry| {
            let expect = match response_check {
                ResponseCheck::Files if is_file(entry.status) => Expect { status: Some(200), ..Expect::default() },
                ResponseCheck::Files => Expect::default(),
                ResponseCheck::Log => {
                    let status = if is_file(entry.status) { 200 } else { entry.status };
                    let length = entry.bytes.filter(|_| entry.status == 200);
                    Expect { status: Some(status), length, content: None }
                }
                ResponseCheck::Manifest { .. } => known[entry.target as usize],
            };
            let head = entry.head;
            let expect = if head { Expect { status: expect.status, ..Expect::default() } } else { expect };
            *places.entry((entry.target, head, expect)).or_insert_with(|| {
                let target = self.targets[entry.target as usize].clone();
                table.push(Request { head, target, expect: Some(expect), class: u16::from(head) });
                table.len() as u32 - 1
            })
        });
        let order = Order::Listed(order.collect());
        let classes = ["GET", "HEAD"].map(str::to_owned).into();
        Requests::new(table, order).with_classes(classes).with_instants(instants)
    }

    /// The instant of each request, from the start of the first one's second.
    fn moments(&self, times: f64, seed: u64) -> Vec<Duration> {
        let clock = self.tally.clock();
        let mut latest = i64::MIN;
        let seconds: Vec<i64> = self
            .entries
            .iter()
            .map(|entry| {
                latest = latest.max(entry.second(clock));
                latest
            })
            .collect();
        let mut random = Random(seed);
        let (mut moments, mut within) = (Vec::with_capacity(seconds.len()), Vec::new());
        for same in seconds.chunk_by(|a, b| a == b) {
            within.clear();
            within.extend(same.iter().map(|_| random.fraction()));
            within.sort_unstable_by(f64::total_cmp);
            let start = (same[0] - seconds[0]) as f64;
            moments.extend(within.iter().map(|fraction| Duration::from_secs_f64((start + fraction) / times)));
        }
        moments
    }
}

/// Whether the log shows that the file existed: a reply had all or part of it, or said that it had not changed.
pub(super) fn is_file(status: u16) -> bool {
    matches!(status, 200 | 206 | 304)
}

/// The file of a target.
pub(super) fn name_of(target: &[u8]) -> Option<std::path::PathBuf> {
    file_name(target.split(|byte| *byte == b'?').next()?)
}

impl Entry {
    /// Seconds since 1970.
    fn second(&self, clock: Clock) -> i64 {
        match clock {
            Clock::Zoned => self.wall_s - i64::from(self.zone_min) * 60,
            Clock::Wall => self.wall_s,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::io::Write;

    /// Lines of NASA's log of August 1995, with changed zones, and odd lines of many kinds.
    const EXCERPT: &[u8] = include_bytes!("../../../../tests/golden/log/nasa-excerpt.log");

    /// The requests in their order.
    fn all(requests: &Requests) -> Vec<&Request> {
        (0..).map_while(|n| requests.get(n)).collect()
    }

    #[test]
    fn common_and_combined_lines_are_parsed() {
        let check = |line: &str, expected: Option<(&str, &str, u16, Option<u64>)>| {
            let found = parse(line.as_bytes()).ok().map(|line| {
                let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
                (text(line.client), text(line.request), line.status, line.bytes)
            });
            let expected = expected.map(|(a, b, c, d)| (a.to_owned(), b.to_owned(), c, d));
            assert_eq!(found, expected, "{line}");
        };
        let time = "[01/Aug/1995:00:00:01 -0400]";
        let good = |client, request, bytes| Some((client, request, 200, bytes));
        check(&format!("h - - {time} \"GET / HTTP/1.0\" 200 5"), good("h", "GET / HTTP/1.0", Some(5)));
        check(&format!("h - - {time} \"GET / HTTP/1.0\" 200 -\r"), good("h", "GET / HTTP/1.0", None));
        check(
            &format!("::1 - - {time} \"GET / HTTP/1.1\" 200 5 \"-\" \"a b\""),
            good("::1", "GET / HTTP/1.1", Some(5)),
        );
        check(&format!("h - a user [x] {time} \"GET /\" 200 5 1 2"), good("h", "GET /", Some(5)));
        // As old servers wrote it, and as current ones do.
        check(&format!("h - - {time} \"GET /a\"b HTTP/1.0\" 200 5"), good("h", "GET /a\"b HTTP/1.0", Some(5)));
        check(&format!("h - - {time} \"GET /\\\" 404 5 \" 200 5"), good("h", "GET /\\\" 404 5 ", Some(5)));
        check(&format!("h - - {time} \"GET /a\\\" 200 5"), good("h", "GET /a\\", Some(5)));
        check(&format!("h - - {time} \"GET /a\\\\\" 200 5 \"\" 404 6"), good("h", "GET /a\\\\", Some(5)));
        check(&format!("h - - {time} \"\" 200 18446744073709551615"), good("h", "", Some(u64::MAX)));
        for odd in [
            "200 5",
            "\"GET /\"",
            "\"GET / 200 5",
            "\"GET /\" 20 5",
            "\"GET /\" 099 5",
            "\"GET /\" 2x0 5",
            "\"GET /\" 200",
            "\"GET /\" 200 ",
            "\"GET /\" 200 x",
            "\"GET /\" 200 -5",
            "\"GET /\" 200 18446744073709551616",
        ] {
            check(&format!("h - - {time} {odd}"), None);
        }
        check(&format!("{time} \"GET /\" 200 5"), None);
        check(&format!(" {time} \"GET /\" 200 5"), None);
        check("", None);
    }

    #[test]
    fn times_are_parsed_with_zone() {
        let check = |text: &str, expected: Option<(i64, i16)>| {
            let found = time(text.as_bytes()).map(|(wall, zone, _)| (wall, zone));
            assert_eq!(found, expected, "{text}");
        };
        check("01/Jan/1970:00:00:00 +0000]", Some((0, 0)));
        check("01/Aug/1995:00:00:01 -0400] x", Some((807_235_201, -240)));
        check("29/Feb/2024:23:59:60 +0545]", Some((1_709_251_200, 345)));
        for bad in [
            "29/Feb/2023:00:00:00 +0000]",
            "00/Jan/1970:00:00:00 +0000]",
            "01/jan/1970:00:00:00 +0000]",
            "01/Jan/1970:24:00:00 +0000]",
            "01/Jan/1970 00:00:00 +0000]",
            "01/Jan/1970:00:00:00 *0000]",
            "01/Jan/1970:00:00:00 +2400]",
            "01/Jan/1970:00:00:00 +0060]",
            "01/Jan/1970:00:00:00 +0000",
            "1/Jan/1970:00:00:00 +0000]]",
        ] {
            check(bad, None);
        }
    }

    #[test]
    fn targets_are_normalized_or_skipped() {
        let check = |request: &str, expected: Result<&str, SkipReason>| {
            let found = target_of(request.as_bytes()).map(|target| String::from_utf8(target).expect("encoded"));
            assert_eq!(found, expected.map(str::to_owned), "{request}");
        };
        check("GET / HTTP/1.0", Ok("/"));
        check("GET /a?b=c HTTP/1.1", Ok("/a?b=c"));
        check("GET /a", Ok("/a"));
        check("GET  /a b.html  HTTP/V1.0", Ok("/a%20b.html"));
        check("GET http://host:80/a?b HTTP/1.0", Ok("/a?b"));
        check("GET HTTP://host HTTP/1.0", Ok("/"));
        check("GET /%7Ea/%zz%", Ok("/%7Ea/%25zz%25"));
        check("GET /a#b HTTP/1.0", Ok("/a%23b"));
        check(r#"GET /\xc3\xa9\"\\\t HTTP/1.0"#, Ok("/%C3%A9%22%5C%09"));
        check(r"GET /\xg0 HTTP/1.0", Ok("/%5Cxg0"));
        check("GET /\u{e9}|", Ok("/%C3%A9%7C"));
        check("GET HTTP/1.0", Err(SkipReason::Target));
        check("GET a HTTP/1.0", Ok("/a"));
        check("GET index.html?b:c", Ok("/index.html?b:c"));
        check("GET ?b HTTP/1.0", Err(SkipReason::Target));
        check("GET host:443 HTTP/1.0", Err(SkipReason::Target));
        check("GET ftp://host/a HTTP/1.0", Err(SkipReason::Target));
        check("GET * HTTP/1.0", Err(SkipReason::Target));
        check("GET http:///a HTTP/1.0", Err(SkipReason::Target));
        check("HEAD /a HTTP/1.0", Ok("/a"));
        check("POST / HTTP/1.0", Err(SkipReason::Method));
        check("HEADS / HTTP/1.0", Err(SkipReason::Method));
        check("get / HTTP/1.0", Err(SkipReason::Method));
        check("-", Err(SkipReason::Nothing));
        check("", Err(SkipReason::Nothing));
        check("GET", Err(SkipReason::Nothing));
        check(r"\x16\x03\x01\x02 \x01", Err(SkipReason::Nothing));
    }

    /// The log of `amped serve --log-format json` for six requests, one of them not HTTP.
    #[test]
    fn json_log_of_amped_is_replayed() {
        let log = Log::read_from(&include_bytes!("../../../../tests/golden/log/amped.jsonl")[..]);
        let targets: Vec<&[u8]> = log.entries.iter().map(|entry| &*log.targets[entry.target as usize]).collect();
        assert_eq!(targets, [&b"/"[..], b"/a%20b%22c.txt", b"/a%22b%5Cc?x=%7B1%7D", b"/none"]);
        let requests: Vec<(bool, u16, Option<u64>)> =
            log.entries.iter().map(|entry| (entry.head, entry.status, entry.bytes)).collect();
        assert_eq!(requests[..2], [(false, 200, Some(1)), (true, 200, Some(0))]);
        // 23 November 2026, 07:26:51 UTC.
        assert!(log.entries.iter().all(|entry| entry.second(Clock::Zoned) == 1_795_418_811));
        assert_eq!((log.tally().lines, log.len()), (6, 4));
        assert_eq!(log.tally().odd[&SkipReason::Method], 1);
        for odd in [&b"{"[..], b"{}", b"{\"time\":\"\"}", b"[]"] {
            assert_eq!(Log::read_from(odd).len(), 0);
        }
        // The request is the same whatever the target contains.
        let line = br#"{"time":"2026-11-23T02:26:51-05:00","client":"h","method":"GET","target":"/\" 200 5 [01/","protocol":"HTTP/1.1","status":200,"body_bytes":7}"#;
        let log = Log::read_from(&line[..]);
        assert_eq!(&*log.targets[0], b"/%22%20200%205%20[01/");
        assert_eq!(log.entries[0].bytes, Some(7));
    }

    #[test]
    fn excerpt_of_real_log_is_counted_to_last_line() {
        let log = Log::read_from(EXCERPT);
        let Tally { lines, odd, statuses, backward, cut } = log.tally();
        assert_eq!((*lines, cut), (EXCERPT.split(|byte| *byte == b'\n').count() as u64 - 1, &None));
        let kinds: Vec<(SkipReason, u64)> = odd.iter().map(|(kind, count)| (*kind, *count)).collect();
        let expected = [
            (SkipReason::Blank, 1),
            (SkipReason::Time, 3),
            (SkipReason::Request, 4),
            (SkipReason::Nothing, 3),
            (SkipReason::Method, 2),
            (SkipReason::Target, 1),
        ];
        assert_eq!(kinds, expected);
        assert_eq!(lines - odd.values().sum::<u64>(), log.len() as u64);
        assert_eq!(statuses.values().sum::<u64>(), log.len() as u64);
        // Its zones are nonsense: only the local time runs forward, except for one line.
        assert_eq!((backward[1], log.tally().clock()), (1, Clock::Wall));
        assert!(backward[0] > 5, "{backward:?}");
    }

    #[test]
    fn compressed_log_is_read_and_truncated_one_as_far_as_possible() {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let read = |name: &str, bytes: &[u8]| {
            let path = folder.path().join(name);
            std::fs::write(&path, bytes).expect("written");
            Log::read(&path)
        };
        let mut packer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
        packer.write_all(EXCERPT).expect("in memory");
        let packed = packer.finish().expect("in memory");
        let whole = Log::read_from(EXCERPT);
        assert_eq!(read("packed", &packed).expect("good").tally(), whole.tally());
        // Two concatenated files are one (RFC 1952, 2.2).
        assert_eq!(read("twice", &[&packed[..], &packed].concat()).expect("good").len(), 2 * whole.len());
        let torn = read("torn", &packed[..packed.len() / 2]).expect("some of it");
        assert!(torn.tally().cut.is_some() && torn.len() < whole.len() && !torn.is_empty());

        let fails = |name: &str, bytes: &[u8]| read(name, bytes).expect_err(name).to_string();
        assert!(fails("empty", b"").contains("it is empty"));
        assert!(fails("text", b"hello\nworld\n").contains("2 of its 2 lines are invalid: without client and time"));
        assert!(fails("garbled", &packed[..12]).contains("it cannot be read"));
        for (magic, name, unpack) in PACKED {
            let file = [magic, b"\0\n\xff"].concat();
            let message = fails(name, &file);
            assert!(message.contains(&format!("compressed by {name}")) && message.contains(unpack), "{message}");
        }
        let missing = Log::read(&folder.path().join("missing")).expect_err("not there");
        assert!(missing.to_string().contains("missing: No such file"), "{missing}");
    }

    #[test]
    fn endless_line_is_not_buffered() {
        let long = [&EXCERPT[..200], &vec![b'x'; 3 * LINE_MAX], b"\n", &EXCERPT[..EXCERPT.len() / 2]].concat();
        let log = Log::read_from(&*long);
        assert_eq!(log.tally().odd[&SkipReason::Long], 1);
        let small = Log::read_from(BufReader::with_capacity(7, &*long));
        assert_eq!(small.tally(), log.tally());
        assert!(small.len() > 5);
    }

    #[test]
    fn replay_keeps_order_and_seconds() {
        let line =
            |second, zone| format!("h - - [01/Aug/1995:00:00:{second:02} {zone}] \"GET /{second} HTTP/1.0\" 200 5\n");
        let seconds = [1, 1, 1, 4, 3, 9];
        let text: String = seconds.iter().map(|second| line(*second, "-0400")).collect();
        let log = Log::read_from(text.as_bytes());
        let moments = |times, seed| {
            let requests = log.requests(Spacing::Times(times), ResponseCheck::Files, seed);
            requests.instants().iter().map(Duration::as_secs_f64).collect::<Vec<f64>>()
        };
        let once = moments(1.0, 1);
        // The fifth line is earlier than the fourth, and gets its second.
        let within: Vec<u64> = once.iter().map(|at| *at as u64).collect();
        assert_eq!(within, [0, 0, 0, 3, 3, 8]);
        assert!(once.is_sorted());
        assert!(once[0] > 0.0 && once[2] < 1.0 && once[0] < once[2]);
        assert_eq!(once, moments(1.0, 1));
        assert_ne!(once, moments(1.0, 2));
        for (slow, fast) in once.iter().zip(moments(10.0, 1)) {
            assert!((slow - fast * 10.0).abs() < 1e-6);
        }
        let requests = log.requests(Spacing::Max, ResponseCheck::Files, 1);
        assert_eq!((requests.len(), requests.instants()), (Some(6), &[][..]));
        let targets: Vec<&[u8]> = all(&requests).iter().map(|request| &*request.target).collect();
        assert_eq!(targets, [b"/1", b"/1", b"/1", b"/4", b"/3", b"/9"]);
        assert_eq!(requests.table().len(), 4);
    }

    #[test]
    fn zones_are_ignored_if_they_reverse_time() {
        let check = |zones: [&str; 4], expected: Clock, last: u64| {
            let line =
                |(minute, zone)| format!("h - - [01/Aug/1995:00:{minute:02}:00 {zone}] \"GET / HTTP/1.0\" 200 5\n");
            let text: String = zones.into_iter().enumerate().map(line).collect();
            let log = Log::read_from(text.as_bytes());
            assert_eq!(log.tally().clock(), expected, "{zones:?}");
            let requests = log.requests(Spacing::Times(1.0), ResponseCheck::Files, 1);
            assert_eq!(requests.instants()[3].as_secs(), last, "{zones:?}");
        };
        check(["-0400"; 4], Clock::Zoned, 180);
        // Two servers, or a clock that was set back: local time would run the same way.
        check(["+0100", "+0100", "+0000", "+0000"], Clock::Zoned, 3780);
        check(["-0400", "-0700", "-0400", "-0700"], Clock::Wall, 180);
    }

    #[test]
    fn expected_response_follows_log_or_file() {
        let line = |path, status| format!("h - - [01/Aug/1995:00:00:00 +0000] \"GET {path} HTTP/1.0\" {status} 7\n");
        let text: String =
            [("/a", 200), ("/b", 304), ("/c", 404), ("/d", 302)].map(|(path, status)| line(path, status)).concat();
        let log = Log::read_from(text.as_bytes());
        let check = |response_check, expected: [(Option<u16>, Option<u64>); 4]| {
            let requests = log.requests(Spacing::Max, response_check, 1);
            let found = all(&requests).into_iter().map(|request| request.expect.expect("always some"));
            assert!(found.map(|expect| (expect.status, expect.length)).eq(expected), "{response_check:?}");
        };
        check(ResponseCheck::Files, [(Some(200), None), (Some(200), None), (None, None), (None, None)]);
        check(ResponseCheck::Log, [(Some(200), Some(7)), (Some(200), None), (Some(404), None), (Some(302), None)]);
        let files = ["/c", "/x"].map(|path| (path.to_owned(), 9, String::new(), 1.0));
        let mut manifest = Manifest::new(String::new(), 1, files);
        fn response_check(manifest: &Manifest) -> ResponseCheck<'_> {
            ResponseCheck::Manifest { manifest, verify: true }
        }
        check(response_check(&manifest), [(None, None), (None, None), (Some(200), Some(9)), (None, None)]);
        let requests = log.requests(Spacing::Max, response_check(&manifest), 1);
        let content = all(&requests)[2].expect.and_then(|expect| expect.content);
        assert_eq!(content, Some(super::super::content::digest(manifest.files[0].seed, 9)));
        manifest.head.requests = Some(3);
        assert_eq!(log.requests(Spacing::Max, response_check(&manifest), 1).len(), Some(3));
    }

    #[test]
    fn head_is_replayed_as_head_and_checked_by_status() {
        let line = |request| format!("h - - [01/Aug/1995:00:00:00 +0000] \"{request} HTTP/1.0\" 200 7\n");
        let text = ["GET /a", "HEAD /a", "POST /a"].map(line).concat();
        let log = Log::read_from(text.as_bytes());
        assert_eq!((log.len(), log.tally().odd[&SkipReason::Method]), (2, 1));
        let manifest = Manifest::new(String::new(), 1, [("/a".to_owned(), 9, String::new(), 1.0)]);
        for (response_check, length) in
            [(ResponseCheck::Log, Some(7)), (ResponseCheck::Manifest { manifest: &manifest, verify: true }, Some(9))]
        {
            let requests = log.requests(Spacing::Max, response_check, 1);
            let [get, head] = requests.table() else { panic!("two requests") };
            assert_eq!((get.head, get.class, get.expect.expect("some").length), (false, 0, length));
            assert_eq!((head.head, head.class, &*head.target), (true, 1, &b"/a"[..]));
            assert_eq!(head.expect, Some(Expect { status: Some(200), ..Expect::default() }));
            assert_eq!(requests.class(1), "HEAD");
        }
    }

    #[test]
    fn spacing_is_parsed() {
        let check = |text: &str, expected: Option<Spacing>| assert_eq!(text.parse().ok(), expected, "{text}");
        check("max", Some(Spacing::Max));
        check("1", Some(Spacing::Times(1.0)));
        check("0.5", Some(Spacing::Times(0.5)));
        for bad in ["0", "-1", "inf", "NaN", "1e9", "fast", ""] {
            check(bad, None);
        }
    }

    fn digits() -> impl Strategy<Value = Vec<u8>> {
        proptest::collection::vec(proptest::sample::select(&b"0123456789 -\"\\[]/:+x\nGETHP."[..]), 0..60)
    }

    proptest! {
        #[test]
        fn random_bytes_do_not_panic(bytes: Vec<u8>, alike in digits(), cut in 0usize..200) {
            for text in [&bytes, &alike] {
                let _ = parse(text);
                if let Ok(target) = target_of(&[&b"GET /"[..], text].concat()) {
                    let is_fit = matches!(Target::parse(&target, false), Some(Target::Origin { .. }));
                    prop_assert!(is_fit, "{:?}", target);
                }
                // In the middle of a valid line.
                let at = cut.min(EXCERPT.len());
                let log = Log::read_from(&*[&EXCERPT[..at], &text[..], &EXCERPT[at..]].concat());
                let odd: u64 = log.tally().odd.values().sum();
                prop_assert_eq!(odd + log.len() as u64, log.tally().lines);
            }
        }

        #[test]
        fn formatted_line_round_trips(
            client in "[a-z0-9.:-]{1,20}", user in "[^\"\n\r]{0,10}", unix in 0i64..4_000_000_000, zone in -14i16..=14,
            request in "[ -~]{0,40}", status in 100u16..1000, bytes: Option<u64>, rest in "( \"[ -~]{0,20}\")?",
        ) {
            let civil = date::Civil::from_unix(unix);
            let date::Civil { year, day, hour, minute, second, .. } = civil;
            let (month, sign, ahead) = (civil.month_name(), if zone < 0 { '-' } else { '+' }, zone.abs());
            let escaped = request.replace('\\', "\\\\").replace('"', "\\\"");
            let size = bytes.map_or("-".to_owned(), |bytes| bytes.to_string());
            let line = format!(
                "{client} - {user} [{day:02}/{month}/{year}:{hour:02}:{minute:02}:{second:02} {sign}{ahead:02}30] \
                 \"{escaped}\" {status} {size}{rest}"
            );
            let zone_min = if zone < 0 { zone * 60 - 30 } else { zone * 60 + 30 };
            let expected = Line {
                client: client.as_bytes(), wall_s: unix, zone_min, request: escaped.as_bytes(), status, bytes,
            };
            prop_assert_eq!(parse(line.as_bytes()), Ok(expected), "{}", line);
            prop_assert_eq!(unescaped(escaped.as_bytes()), request.as_bytes());
        }

        #[test]
        fn replay_times_never_decrease(
            seconds in proptest::collection::vec((0i64..50, prop_oneof![Just(0i64), Just(3600)]), 1..60), seed: u64,
        ) {
            let line = |(second, zone)| {
                let civil = date::Civil::from_unix(1_000_000 + second);
                let date::Civil { year, day, hour, minute, second, .. } = civil;
                let (month, zone) = (civil.month_name(), if zone == 0 { "+0000" } else { "+0100" });
                format!("h - - [{day:02}/{month}/{year}:{hour:02}:{minute:02}:{second:02} {zone}] \"GET /\" 200 1\n")
            };
            let text: String = seconds.iter().copied().map(line).collect();
            let log = Log::read_from(text.as_bytes());
            prop_assert_eq!(log.len(), seconds.len());
            let requests = log.requests(Spacing::Times(1.0), ResponseCheck::Files, seed);
            prop_assert!(requests.instants().len() == seconds.len() && requests.instants().is_sorted());
        }
    }
}
