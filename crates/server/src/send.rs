//! Stop 10 of 10: bytes to the client.
//!
//! Replies wait in an [`SendQueue`] as chunks: text (heads, and bodies so small that a copy is cheaper than a second piece),
//! memory that a cache lends, ranges of files. Memory goes out in one call, head and body together, and the heads of a
//! whole pipelined batch with it. Files go out a few windows at a time, so that one download does not hold up the others, and
//! only windows that are in memory: for others the loop asks a helper first. A window is lent to the socket by sendfile
//! behind its head, or goes out with it in one call, copied through a buffer or from a mapping: as the key `send.content` says.
//! A head goes out once the first window behind it is in memory, or, where windows are not probed, its first byte was read: so
//! a disk that fails there is a 500.
//!
//! A file may change while it is sent. Before each call and after the last its size and times must be those of the head, but
//! for changes that leave its bytes alone ([`OpenFile::still_has_bytes_of`]), else the connection is reset: a reply is all of one version, or visibly cut short. sendfile lends the page cache's own
//! pages to the socket, where an edit in place still reaches them until the client has them, and a mapping is as live until
//! the kernel has copied it; so a file that changed within the last minute (the key `send.sendfile_min_age`) is copied instead, which
//! freezes the bytes at the moment they are checked. What is left: the first edit in place of an older file, while the last
//! of its bytes are on their way. That a mapped file has become shorter is an error of the call, and no signal.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use amped_core::file::{Content, FileVersion, Stored};
use amped_core::record::{Outcome, Record, Records};
use amped_core::reply::{self, Body, Reply, WallClock};
use amped_http::date;
use amped_http::h1::response::Connection;
use amped_http::status::Status;
use amped_sys::file::{self, Patience};
use amped_sys::mapping::Mapping;
use amped_sys::process;
use amped_units::Time;

use crate::access_log::{AccessLog, Peer};
use crate::config::optimise::{Optimisation, Optimise};
use crate::config::settings::ContentMode;
use crate::config_snapshot::ConfigSnapshot;
use crate::metrics::{Meter, Phase, Timing};
use crate::open_file::{MappedWindows, OpenFile, WINDOW};
use crate::residency::Residency;
use crate::transport::Transport;

/// Bodies up to this size are copied behind their head: one piece, one `send`. Copying so little costs less than a second
/// entry in the kernel's vector.
const INLINE_MAX: u64 = 4 * 1024;

/// What is left of a range of a large file and is no longer than this is copied: read and sent with the head before it in one
/// call. For more than this, two calls without a copy are cheaper.
const SHORT: u64 = 32 * 1024;

/// Windows of files that one turn sends for one connection; in one call where they lie behind one another and are lent. Each
/// call ends with a packet that is not full, and each turn with a client that waits: at 64 downloads of 1 MiB two windows a
/// turn, one at a time, cost a fifth more than these.
const WINDOWS_A_TURN: u64 = 4;

/// What a client is told where the disk fails.
const UNREAD: &str = "the file could not be read";

/// Pieces that go into one call.
const PIECES_MAX: usize = 64;

/// What is still to be sent on a connection.
#[derive(Debug, Default)]
pub struct SendQueue {
    chunks: VecDeque<Chunk>,
    /// The bytes of all text chunks behind one another; those before `text_at` have been sent.
    text: Vec<u8>,
    text_at: usize,
    /// Bytes of the reply at the front, head included, that have been sent.
    reply_sent: u64,
    /// When the caches last looked whether the file at the front is still what its head says. In the same turn nobody has
    /// to look again before its first window.
    looked_at: Option<Time>,
    /// Of the reply whose body an application has not ended yet.
    open: Option<Box<Record>>,
}

#[derive(Debug)]
enum Chunk {
    /// The next so many bytes of the text.
    Text(usize),
    /// The same, for bytes that belong to no reply.
    Interim(usize),
    Memory(Arc<Content<OpenFile>>, Range<usize>),
    Shared(Arc<Vec<u8>>, Range<usize>),
    File(Arc<Content<OpenFile>>, Range<u64>),
    /// A reply ends here.
    End(Box<Record>),
}

/// How far sending has come.
#[derive(Debug)]
pub enum Progress {
    /// Nothing is left.
    Done,
    /// The client has to take something first.
    Full,
    /// This range is not in memory.
    Cold(Arc<Content<OpenFile>>, Range<u64>),
    /// There is more, but others have their turn first.
    Yield,
    /// The connection is dead, or must be: the client is gone, or the file has changed.
    Broken,
}

/// Which windows are sent only if they are in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Probes {
    /// None: sending may wait for the disk.
    None,
    /// All. That at the front has been fetched so often already, without any of it having been sent since: a few times it
    /// is believed to be there, and at last waited for.
    All {
        /// How often.
        fetched: u8,
    },
}

/// A loop's means of sending, shared by its connections.
pub struct Sender {
    /// send queues to be used again, so that a reply that goes out at once allocates nothing.
    #[expect(clippy::vec_box, reason = "the boxes themselves are what is used again")]
    spare: Vec<Box<SendQueue>>,
    /// Where windows of young files are copied.
    window: Vec<u8>,
    /// A file that has been left alone for longer is lent to the socket; a younger one is copied. Editors, and people,
    /// come back within a minute, the default.
    sendfile_min_age: Duration,
    /// [`Optimisation::Sendfile`]: what could be lent is. Else it is copied.
    lends: bool,
    style: Style,
    backoff: EvictionBackoff,
    /// Tests of residency so far.
    looks: u64,
    /// The moment of this turn, and the time of day in seconds since 1970.
    now: Time,
    wall_seconds: i64,
    residency: Arc<Residency>,
    content: ContentMode,
    mapped: MappedWindows,
}

/// Whether windows have lost pages in their middle of late.
///
/// Where memory is scarce, the kernel takes pages out of files that are in use, and the residency test looks at a few places
/// of a window alone; then sendfile waits for the disk in the loop. To look at every page would cost twice as much as to
/// send them. So the loop notices that a window is gone which was there, or that it has waited, and from then on, for a
/// while, reads windows into memory of its own by a read that never waits, which looks at every page: two to four times as
/// dear as lending. What was read so is lent for a moment again ([`READ_FOR`]), so that a file that many ask for is read once
/// a second. A window that nobody has seen before tells nothing: it is read in any case, and lent from then on.
#[derive(Debug, Default)]
struct EvictionBackoff {
    since: Time,
    until: Time,
    /// Blocks that this thread had read when it looked last, and when that was.
    blocks_read: i64,
    looked: Time,
}

/// A window takes 18 to 60 us to send. For longer than this it waits for the disk, or the thread had lost the processor.
const SUSPICIOUS: Duration = Duration::from_millis(1);

/// For how long nothing is lent after a wait, or after the last window that was gone.
const WARY: Duration = Duration::from_secs(10);

/// For how long a window that was seen to be in memory is believed to be there: four looks at one cost a tenth of what
/// sending it does. Before the kernel takes it, it has to go through its lists twice while it was not asked for.
const SEEN_FOR: Duration = Duration::from_millis(10);

/// For how long a window that was read as a whole, page by page, is believed to be there when others have lost pages.
const READ_FOR: Duration = Duration::from_secs(1);

/// How often a window is fetched before the loop waits for it: it must come forward at some time.
const FETCHES_MAX: u8 = 3;

/// Before something is lent, the blocks that the thread has read are counted anew if that is so long ago: what it read for
/// other reasons, the folder of a name say, must not be taken for a wait when it loses the processor minutes later.
const COUNT_STEP: Duration = Duration::from_millis(100);

impl EvictionBackoff {
    /// Something is about to be lent.
    fn look(&mut self, now: Time, blocks_read: impl FnOnce() -> i64) {
        if now.since(self.looked) >= COUNT_STEP || self.looked == Time::START {
            (self.looked, self.blocks_read) = (now, blocks_read());
        }
    }

    /// Sending it has taken suspiciously long, and the thread has read so many blocks by now.
    fn suspect(&mut self, now: Time, blocks_read: i64) {
        if std::mem::replace(&mut self.blocks_read, blocks_read) < blocks_read {
            self.begin(now);
        }
    }

    /// A window is gone: others may have lost pages that the test does not see.
    fn begin(&mut self, now: Time) {
        if now >= self.until {
            self.since = now;
        }
        self.until = now + WARY;
    }

    /// Whether a window that was last seen then is believed to be in memory. Meanwhile only those that are read are seen.
    fn believes(&self, seen: Option<Time>, now: Time) -> bool {
        seen.is_some_and(|seen| match now < self.until {
            true => seen >= self.since && now.since(seen) < READ_FOR,
            false => now.since(seen) < SEEN_FOR,
        })
    }

    /// Something was not in memory.
    fn go_on(&mut self, now: Time) {
        if now < self.until {
            self.until = now + WARY;
        }
    }
}

/// How heads are written: two of the papers' optimisations.
#[derive(Clone, Copy, Debug)]
pub struct Style {
    /// The date is that of the loop, made once a second, and not made for each reply (Hu, Nanda and Yang, 5.3.2).
    string_caches: bool,
    /// Heads are padded to a multiple of [`ALIGNMENT`], so that a body behind one begins at such an address (Flash, 5.5).
    aligned: bool,
}

impl Style {
    fn of(optimise: &Optimise) -> Style {
        Style {
            string_caches: optimise.has(Optimisation::StringCaches),
            aligned: optimise.has(Optimisation::HeaderAlignment),
        }
    }

    fn date(self, wall: &WallClock) -> [u8; date::LEN] {
        if self.string_caches { wall.date } else { WallClock::at(wall.seconds).date }
    }

    fn alignment(self) -> usize {
        if self.aligned { ALIGNMENT } else { 1 }
    }
}

/// Bytes to which heads are aligned: those of the cache lines of the paper's day.
const ALIGNMENT: usize = 32;

/// A send queue whose text has grown beyond this is not kept.
const SPARE_TEXT_MAX: usize = 256 * 1024;

/// send queues that are kept; one is enough but for bursts.
const SPARE_MAX: usize = 16;

/// Whom a line of the log is about, and where lines and records go.
pub struct LogContext<'a> {
    /// The log.
    pub log: &'a mut AccessLog,
    /// The client.
    pub peer: &'a Peer,
    /// Records to be used again.
    pub records: &'a mut Records,
    /// The time of day.
    pub wall: &'a WallClock,
    /// The time.
    pub now: Time,
    /// Who counts.
    pub meter: &'a mut Meter,
    /// What the next request to be told took, if that is timed.
    pub timing: &'a mut Option<Box<Timing>>,
}

impl LogContext<'_> {
    /// A reply is out, all of it if `is_whole`.
    fn tell(&mut self, record: Box<Record>, body_bytes: u64, is_whole: bool) {
        let mut timing = self.timing.take();
        if let Some(timing) = &mut timing {
            timing.pass(Phase::Logging);
        }
        self.log.write(&record, self.peer, body_bytes, self.wall, self.now);
        self.meter.count(&record, body_bytes, is_whole, timing);
        self.records.give_back(record);
    }
}

impl Sender {
    /// Means of sending under this configuration.
    pub fn new(generation: &ConfigSnapshot) -> Sender {
        Sender {
            spare: Vec::new(),
            window: vec![0; WINDOW as usize],
            sendfile_min_age: generation.settings.send.sendfile_min_age,
            lends: generation.settings.optimise.has(Optimisation::Sendfile),
            style: Style::of(&generation.settings.optimise),
            backoff: EvictionBackoff::default(),
            looks: 0,
            now: Time::START,
            wall_seconds: 0,
            residency: Arc::clone(generation.disk.residency()),
            content: generation.settings.send.content,
            mapped: generation.disk.mapped().clone(),
        }
    }

    /// How heads are written.
    pub fn style(&self) -> Style {
        self.style
    }

    /// Another configuration comes into force. Tests and mappings stay as they are.
    pub fn renew(&mut self, generation: &ConfigSnapshot) {
        self.sendfile_min_age = generation.settings.send.sendfile_min_age;
        self.lends = generation.settings.optimise.has(Optimisation::Sendfile);
        self.style = Style::of(&generation.settings.optimise);
    }

    /// An empty send queue.
    pub fn send_queue(&mut self) -> Box<SendQueue> {
        self.spare.pop().unwrap_or_default()
    }

    /// Takes back a send queue of which everything was sent.
    pub fn give_back(&mut self, mut send_queue: Box<SendQueue>) {
        if self.spare.len() < SPARE_MAX && send_queue.text.capacity() <= SPARE_TEXT_MAX {
            send_queue.text.clear();
            send_queue.text_at = 0;
            self.spare.push(send_queue);
        }
    }
}

impl SendQueue {
    /// Puts a reply behind what is there.
    pub fn put(&mut self, reply: Reply<OpenFile>, now: Time, wall: &WallClock, style: Style) {
        let Reply { head, connection, body, mut record } = reply;
        self.looked_at = (record.outcome == Outcome::Hit).then_some(now);
        let start = self.text.len();
        head.get().write(&mut self.text, &style.date(wall), connection, style.alignment());
        record.head_bytes = self.text.len() - start;
        let is_open = matches!(body, Body::Open);
        self.put_body(start, body);
        match is_open {
            true => self.open = Some(record),
            false => self.chunks.push_back(Chunk::End(record)),
        }
    }

    /// Puts more of the open reply's body behind what is there. So many bytes of it are framing, which the log does not count.
    pub fn put_piece(&mut self, bytes: &[u8], framed: usize) {
        self.text.extend_from_slice(bytes);
        self.chunks.push_back(Chunk::Text(bytes.len()));
        if let Some(record) = &mut self.open {
            record.head_bytes += framed;
            record.body_bytes += (bytes.len() - framed) as u64;
        }
    }

    /// The open reply's body is complete.
    pub fn put_end(&mut self) {
        self.chunks.extend(self.open.take().map(Chunk::End));
    }

    /// Whether more of a reply is to come.
    pub fn is_open(&self) -> bool {
        self.open.is_some()
    }

    /// Puts bytes behind what is there that belong to no reply.
    pub fn put_interim(&mut self, bytes: &[u8]) {
        self.text.extend_from_slice(bytes);
        self.chunks.push_back(Chunk::Interim(bytes.len()));
    }

    fn put_body(&mut self, mut start: usize, body: Body<OpenFile>) {
        match body {
            Body::Empty | Body::Open => {}
            Body::Text(text) => self.text.extend_from_slice(&text),
            Body::Shared(text) if text.len() as u64 <= INLINE_MAX => self.text.extend_from_slice(&text),
            Body::Shared(text) => {
                self.put_text(start);
                let length = text.len();
                self.chunks.push_back(Chunk::Shared(text, 0..length));
                return;
            }
            Body::Content(content, range) => {
                start = self.put_range(start, &content, range);
            }
            Body::Parts(content, parts, last) => {
                for (text, range) in parts {
                    self.text.extend_from_slice(&text);
                    start = self.put_range(start, &content, range);
                }
                self.text.extend_from_slice(&last);
            }
        }
        self.put_text(start);
    }

    /// Puts a range of a file behind the text that began at `start`; returns where text begins that is no chunk yet.
    fn put_range(&mut self, start: usize, content: &Arc<Content<OpenFile>>, range: Range<u64>) -> usize {
        match &content.store {
            Stored::Memory(bytes) => {
                // A range of content in memory fits in memory.
                let range = range.start as usize..range.end as usize;
                if range.len() as u64 <= INLINE_MAX {
                    self.text.extend_from_slice(&bytes[range]);
                    return start;
                }
                self.put_text(start);
                self.chunks.push_back(Chunk::Memory(Arc::clone(content), range));
            }
            Stored::File(_) => {
                self.put_text(start);
                self.chunks.push_back(Chunk::File(Arc::clone(content), range));
            }
        }
        self.text.len()
    }

    fn put_text(&mut self, start: usize) {
        let length = self.text.len() - start;
        if length > 0 {
            self.chunks.push_back(Chunk::Text(length));
        }
    }

    /// Whether nothing is left to send.
    pub fn is_empty(&self) -> bool {
        self.chunks.is_empty()
    }

    /// Whether a reply lies in it, and not only bytes that belong to none.
    pub fn holds_reply(&self) -> bool {
        self.is_open() || matches!(self.chunks.back(), Some(Chunk::End(_)))
    }

    /// Bytes of memory it holds.
    pub fn heap_bytes(&self) -> usize {
        size_of::<SendQueue>() + self.text.capacity() + self.chunks.capacity() * size_of::<Chunk>()
    }

    /// Sends until something is in the way. Replies that are complete are told to the log.
    ///
    /// `probes`: which windows stop it if they are not in memory; for others it waits for the disk.
    pub fn pump(
        &mut self,
        transport: &Transport,
        sender: &mut Sender,
        probes: Probes,
        log_context: &mut LogContext<'_>,
    ) -> Progress {
        let mut windows = 0;
        (sender.now, sender.wall_seconds) = (log_context.now, log_context.wall.seconds);
        loop {
            self.tell_ends(log_context);
            if self.chunks.is_empty() {
                return Progress::Done;
            }
            let probes = match probes {
                Probes::All { .. } if windows > 0 => Probes::All { fetched: 0 },
                probes => probes,
            };
            match self.send_front(transport, sender, WINDOWS_A_TURN - windows, probes) {
                Ok(SendOutcome::Sent(count)) => self.advance(count, log_context),
                Ok(SendOutcome::SentWindows(number, count)) => {
                    windows += number;
                    self.looked_at = None;
                    self.advance(count, log_context);
                }
                Ok(SendOutcome::Cold(content, range)) => return Progress::Cold(content, range),
                Ok(SendOutcome::TurnIsOver) => return Progress::Yield,
                Ok(SendOutcome::Changed) => return Progress::Broken,
                Ok(SendOutcome::Unread) => self.fail_front(log_context.wall, sender.style),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Progress::Full,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return Progress::Broken,
            }
        }
    }

    /// Sends what is at the front, in one call: what lies in memory, or windows of a file, so many at most, or both.
    fn send_front(
        &self,
        transport: &Transport,
        sender: &mut Sender,
        windows_max: u64,
        probes: Probes,
    ) -> io::Result<SendOutcome> {
        // The usual case, for which nobody has to write a kibibyte of empty pieces.
        if self.chunks.iter().all(|chunk| matches!(chunk, Chunk::Text(_) | Chunk::Interim(_) | Chunk::End(_))) {
            return Ok(SendOutcome::Sent(transport.send(&[IoSlice::new(&self.text[self.text_at..])], false)? as u64));
        }
        let mut pieces = [IoSlice::new(&[]); PIECES_MAX];
        let (count, next) = self.gather(&mut pieces);
        let before = &pieces[..count];
        if let Some((content, range)) = next {
            if windows_max > 0 {
                let must_look = self.looked_at != Some(sender.now);
                let windows = (range.clone(), windows_max, must_look);
                let is_undecided = self.is_undecided();
                match send_windows(transport, before, content, windows, sender, probes)? {
                    Window::Sent(number, count) => return Ok(SendOutcome::SentWindows(number, count)),
                    Window::Unread if is_undecided => return Ok(SendOutcome::Unread),
                    Window::Cold(range) if is_undecided => return Ok(SendOutcome::Cold(Arc::clone(content), range)),
                    // Whatever stands there is not to be lost.
                    Window::Cold(_) | Window::Changed | Window::Unread if !before.is_empty() => {}
                    Window::Cold(range) => return Ok(SendOutcome::Cold(Arc::clone(content), range)),
                    Window::Changed | Window::Unread => return Ok(SendOutcome::Changed),
                    Window::AfterTheHead => {}
                }
            } else if before.is_empty() {
                return Ok(SendOutcome::TurnIsOver);
            }
        }
        // If a file is next, its first window follows at once; without this the head would be a packet of its own.
        let more = next.is_some();
        Ok(SendOutcome::Sent(transport.send(before, more)? as u64))
    }

    /// Whether nothing stands at the front but a reply with a file behind its head, of which nothing was sent: then it may
    /// still become another reply.
    fn is_undecided(&self) -> bool {
        self.reply_sent == 0
            && matches!((self.chunks.front(), self.chunks.get(1)), (Some(Chunk::Text(_)), Some(Chunk::File(..))))
    }

    /// Makes an error of the reply at the front, of which nothing was sent: the disk has failed on its first bytes.
    fn fail_front(&mut self, wall: &WallClock, style: Style) {
        let is_end = |chunk: &Chunk| matches!(chunk, Chunk::End(_));
        let Some(end) = self.chunks.iter().position(is_end) else { return };
        let (head, body) = reply::bad_head::<OpenFile>(Status::INTERNAL_SERVER_ERROR, UNREAD, false);
        let mut text = Vec::new();
        // What the client was to be told of the connection may be left out.
        head.get().write(&mut text, &style.date(wall), Connection::Persists, style.alignment());
        let head_bytes = text.len();
        let mut old = 0;
        let mut record = None;
        for chunk in self.chunks.drain(..=end) {
            match chunk {
                Chunk::Text(length) => old += length,
                Chunk::End(ended) => record = Some(ended),
                _ => {}
            }
        }
        if let Some(mut record) = record {
            record.set(Status::INTERNAL_SERVER_ERROR, record.outcome);
            body.note_in(&mut record);
            record.head_bytes = head_bytes;
            self.chunks.push_front(Chunk::End(record));
        }
        if let Body::Text(page) = body {
            text.extend_from_slice(&page);
        }
        self.chunks.push_front(Chunk::Text(text.len()));
        self.text.splice(self.text_at..self.text_at + old, text);
    }

    /// Puts what lies in memory at the front into `pieces`: how many there are, and the range of a file behind them.
    fn gather<'a>(&'a self, pieces: &mut [IoSlice<'a>; PIECES_MAX]) -> (usize, Option<FileRange<'a>>) {
        let mut count = 0;
        let mut text_at = self.text_at;
        let mut text_from = text_at;
        let mut next = None;
        for chunk in &self.chunks {
            let bytes = match chunk {
                // Texts lie behind one another: those of a batch of small replies make one piece.
                Chunk::Text(length) | Chunk::Interim(length) => {
                    text_at += length;
                    continue;
                }
                Chunk::End(_) => continue,
                Chunk::File(content, range) => {
                    next = Some((content, range));
                    break;
                }
                Chunk::Memory(content, range) => match &content.store {
                    Stored::Memory(bytes) => &bytes[range.clone()],
                    Stored::File(_) => continue,
                },
                Chunk::Shared(text, range) => &text[range.clone()],
            };
            if text_from < text_at {
                pieces[count] = IoSlice::new(&self.text[text_from..text_at]);
                text_from = text_at;
                count += 1;
            }
            pieces[count] = IoSlice::new(bytes);
            count += 1;
            if count + 2 > PIECES_MAX {
                break;
            }
        }
        if text_from < text_at {
            pieces[count] = IoSlice::new(&self.text[text_from..text_at]);
            count += 1;
        }
        (count, next)
    }

    /// Takes `count` bytes from the front.
    fn advance(&mut self, mut count: u64, log_context: &mut LogContext<'_>) {
        log_context.meter.sent(count);
        while count > 0 {
            let left = match self.chunks.front_mut() {
                None => return,
                Some(Chunk::End(_)) => {
                    self.tell_ends(log_context);
                    continue;
                }
                Some(Chunk::Text(length)) => {
                    let taken = count.min(*length as u64);
                    *length -= taken as usize;
                    self.text_at += taken as usize;
                    count -= taken;
                    self.reply_sent += taken;
                    *length as u64
                }
                Some(Chunk::Interim(length)) => {
                    let taken = count.min(*length as u64);
                    *length -= taken as usize;
                    self.text_at += taken as usize;
                    count -= taken;
                    *length as u64
                }
                Some(Chunk::Memory(_, range) | Chunk::Shared(_, range)) => {
                    let taken = count.min(range.len() as u64);
                    range.start += taken as usize;
                    count -= taken;
                    self.reply_sent += taken;
                    range.len() as u64
                }
                Some(Chunk::File(_, range)) => {
                    let taken = count.min(range.end - range.start);
                    range.start += taken;
                    count -= taken;
                    self.reply_sent += taken;
                    range.end - range.start
                }
            };
            if left == 0 {
                self.chunks.pop_front();
            }
        }
    }

    fn tell_ends(&mut self, log_context: &mut LogContext<'_>) {
        while matches!(self.chunks.front(), Some(Chunk::End(_))) {
            if let Some(Chunk::End(record)) = self.chunks.pop_front() {
                let sent = std::mem::take(&mut self.reply_sent);
                let body_bytes = sent.saturating_sub(record.head_bytes as u64);
                log_context.tell(record, body_bytes, true);
            }
        }
        if self.chunks.is_empty() {
            self.text.clear();
            self.text_at = 0;
        }
    }

    /// Tells the log of replies that will not be completed: with the bytes that went out of the first.
    pub fn give_up(&mut self, log_context: &mut LogContext<'_>) {
        self.put_end();
        for chunk in self.chunks.drain(..) {
            if let Chunk::End(record) = chunk {
                let sent = std::mem::take(&mut self.reply_sent);
                let body_bytes = sent.saturating_sub(record.head_bytes as u64);
                log_context.tell(record, body_bytes, false);
            }
        }
    }
}

type FileRange<'a> = (&'a Arc<Content<OpenFile>>, &'a Range<u64>);

/// What came of sending what is at the front.
enum SendOutcome {
    /// So many bytes went out.
    Sent(u64),
    /// The same, of so many windows among them.
    SentWindows(u64, u64),
    /// This range is not in memory.
    Cold(Arc<Content<OpenFile>>, Range<u64>),
    /// The windows of this turn have been sent.
    TurnIsOver,
    /// The file is not what the head says.
    Changed,
    /// The disk failed on the first bytes of a reply of which nothing was sent.
    Unread,
}

enum Window {
    /// So many, and so many bytes.
    Sent(u64, u64),
    Cold(Range<u64>),
    Changed,
    /// The disk failed.
    Unread,
    /// It is lent, and what is to be sent before it goes by itself.
    AfterTheHead,
}

/// How a window goes out.
enum Way {
    /// The page cache's own pages are lent to the socket.
    Lent,
    /// The kernel copies it from this mapping.
    Mapped(Arc<Mapping>),
    /// It is read into a buffer, looked at, and sent from there.
    Copied,
}

impl Way {
    /// The mapping of this window: that by which it goes out, or one for whoever tests by it.
    fn mapping(
        &self,
        mapped: &MappedWindows,
        file: &OpenFile,
        version: &FileVersion,
        number: u64,
    ) -> io::Result<Arc<Mapping>> {
        match self {
            Way::Mapped(mapping) => Ok(Arc::clone(mapping)),
            Way::Lent | Way::Copied => mapped.get(file, version, number),
        }
    }
}

impl Sender {
    /// Whether the test of residency looks at a few places of a window alone. The others look at every page, or at none, and
    /// are experiments: they are asked each time, and what they say is believed.
    fn samples(&self) -> bool {
        matches!(*self.residency, Residency::Nowait)
    }

    fn way(&self, file: &OpenFile, version: &FileVersion, window: &Range<u64>, probes: Probes) -> Way {
        let number = window.start / WINDOW;
        // What nobody has seen as a whole may be on its way in, or half gone: lent, it would be waited for.
        let is_new = probes != Probes::None && self.samples() && file.is_new(number);
        match self.content {
            ContentMode::Copy => Way::Copied,
            // Where memory is scarce, part of what a helper has fetched may have gone again, and only reading it tells.
            _ if matches!(probes, Probes::All { fetched: 1.. }) && self.samples() => Way::Copied,
            _ if self.now < self.backoff.until && !self.backoff.believes(file.last_seen(number), self.now) => {
                Way::Copied
            }
            _ if !is_settled(version, self.sendfile_min_age, self.wall_seconds) => Way::Copied,
            ContentMode::Mixed | ContentMode::Sendfile if self.lends && !is_new => Way::Lent,
            ContentMode::Mixed | ContentMode::Sendfile => Way::Copied,
            // What cannot be mapped is copied.
            ContentMode::Mmap => self.mapped.get(file, version, number).map_or(Way::Copied, Way::Mapped),
        }
    }

    /// Whether a window is in memory: one that was just seen there is believed to be, at others the test of residency looks.
    fn is_there(&mut self, file: &OpenFile, version: &FileVersion, window: &Range<u64>, way: &Way) -> bool {
        let number = window.start / WINDOW;
        let seen = if self.samples() { file.last_seen(number) } else { None };
        if self.backoff.believes(seen, self.now) {
            return true;
        }
        self.looks += 1;
        let map = || way.mapping(&self.mapped, file, version, number);
        let is_there = self.residency.is_resident(file, version, window, self.looks, map);
        if self.samples() && is_there && is_whole(window, version) {
            file.is_seen(number, version.size, self.now);
        } else if seen.is_some() && !is_there {
            self.backoff.begin(self.now);
        }
        is_there
    }

    /// The end of the windows behind `window` that can be lent with it: so many at most, and all of them in memory.
    fn lent_until(
        &mut self,
        file: &OpenFile,
        version: &FileVersion,
        window: &Range<u64>,
        (windows_max, end): (u64, u64),
        probes: Probes,
    ) -> u64 {
        // What has just been fetched is waited for if need be, but nothing behind it; models learn window by window.
        if !matches!(probes, Probes::None | Probes::All { fetched: 0 }) || !self.samples() {
            return window.end;
        }
        let end = end.min((window.start / WINDOW + windows_max) * WINDOW);
        let mut next = window.end..end.min(window.end + WINDOW);
        while !next.is_empty()
            && matches!(self.way(file, version, &next, probes), Way::Lent)
            && (probes == Probes::None || self.is_there(file, version, &next, &Way::Lent))
        {
            next = next.end..end.min(next.end + WINDOW);
        }
        next.start
    }
}

/// Whether a window is all of one, or all that its file has of it.
fn is_whole(window: &Range<u64>, version: &FileVersion) -> bool {
    window.start.is_multiple_of(WINDOW) && (window.end.is_multiple_of(WINDOW) || window.end == version.size)
}

/// Sends the first window of a file's range, and those behind it that can be lent in the same call, `windows_max` at most.
/// `must_look`: whether it has to be made sure first that the file has not changed.
/// `before` goes before it: both go in one call, or nothing does.
fn send_windows(
    transport: &Transport,
    before: &[IoSlice<'_>],
    content: &Content<OpenFile>,
    (range, windows_max, must_look): (Range<u64>, u64, bool),
    sender: &mut Sender,
    probes: Probes,
) -> io::Result<Window> {
    let Stored::File(file) = &content.store else {
        return Ok(Window::Changed);
    };
    let version = &content.version;
    // Windows begin at multiples of their size, so that a range is read ahead as the whole file is.
    let number = range.start / WINDOW;
    let mut window = range.start..range.end.min((number + 1) * WINDOW);
    let way = match sender.content {
        ContentMode::Mixed if range.end - range.start <= SHORT => Way::Copied,
        _ => sender.way(file, version, &window, probes),
    };
    let samples = probes != Probes::None && sender.samples();

    if matches!(way, Way::Copied) {
        let more = window.end < range.end;
        let buffer = &mut sender.window[..(window.end - window.start) as usize];
        // Part of what was fetched may have gone again, and part is enough to go on.
        let probe = matches!(probes, Probes::All { fetched: ..FETCHES_MAX });
        let patience = if probe { Patience::Now } else { Patience::Wait };
        let map = || way.mapping(&sender.mapped, file, version, number);
        let count = match sender.residency.read(file, version, (buffer, window.start), patience, map) {
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                sender.backoff.go_on(sender.now);
                return Ok(Window::Cold(window));
            }
            Err(_) => return Ok(Window::Unread),
        };
        let buffer = &sender.window[..count];
        if samples && is_whole(&window, version) && window.start + count as u64 == window.end {
            file.is_seen(number, version.size, sender.now);
        }
        // Checked after reading: the bytes in the buffer are those of this state.
        if count == 0 || !file.still_has_bytes_of(version)? {
            return Ok(Window::Changed);
        }
        let sent = match before {
            [] => transport.send(&[IoSlice::new(buffer)], more)?,
            _ => {
                let mut pieces = [IoSlice::new(&[]); PIECES_MAX];
                pieces[..before.len()].copy_from_slice(before);
                pieces[before.len()] = IoSlice::new(buffer);
                transport.send(&pieces[..=before.len()], more)?
            }
        };
        return Ok(Window::Sent(1, sent as u64));
    }
    // Where windows are not probed the disk is waited for in any case, so the first byte may be, before the head is out.
    let is_first = probes == Probes::None && !before.is_empty();
    if is_first && file::read_at(file, &mut [0], window.start, Patience::Wait).is_err() {
        return Ok(Window::Unread);
    }
    let probe = probes == Probes::All { fetched: 0 };
    if matches!(way, Way::Lent) && !before.is_empty() {
        // What is believed to be there is not looked at twice.
        let is_cold = probe && samples && !sender.is_there(file, version, &window, &way);
        return Ok(if is_cold { Window::Cold(window) } else { Window::AfterTheHead });
    }
    let is_cold = probe && !sender.is_there(file, version, &window, &way);
    // A file that has become shorter looks like one that is not in memory.
    let is_changed = (must_look || is_cold) && !file.still_has_bytes_of(version)?;
    if is_cold || is_changed {
        return Ok(if is_changed { Window::Changed } else { Window::Cold(window) });
    }
    if matches!(way, Way::Lent) {
        window.end = sender.lent_until(file, version, &window, (windows_max, range.end), probes);
    }
    if samples {
        sender.backoff.look(sender.now, blocks_read);
    }
    let more = window.end < range.end;
    let begun = Instant::now();
    let sent = sender.residency.watch(version, &window, probe, || match &way {
        Way::Mapped(mapping) => {
            let start = (window.start % WINDOW) as usize;
            transport.send_mapped(before, mapping, start..start + (window.end - window.start) as usize, more)
        }
        Way::Lent | Way::Copied => transport.send_file(file, window.clone()),
    })?;
    if begun.elapsed() > SUSPICIOUS && samples {
        sender.backoff.suspect(sender.now, blocks_read());
    }
    let before: usize = before.iter().map(|piece| piece.len()).sum();
    let end = window.start + sent.saturating_sub(before) as u64;
    if sent == 0 || (end == range.end && !file.still_has_bytes_of(version)?) {
        return Ok(Window::Changed);
    }
    Ok(Window::Sent(end.div_ceil(WINDOW) - number, sent as u64))
}

/// Whether the file has been left alone long enough to be lent to a socket.
fn is_settled(version: &FileVersion, sendfile_min_age: Duration, wall_seconds: i64) -> bool {
    let settle_ns = i64::try_from(sendfile_min_age.as_nanos()).unwrap_or(i64::MAX);
    let now_ns = wall_seconds.saturating_mul(1_000_000_000);
    // The wall's clock has whole seconds, so a file of this second is not older than zero.
    settle_ns == 0 || now_ns.saturating_sub(version.mtime_ns.max(version.ctime_ns)) > settle_ns
}

/// Blocks that this thread has read.
fn blocks_read() -> i64 {
    process::disk_use().blocks_read
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_block_read_does_not_trigger_backoff() {
        let mut backoff = EvictionBackoff::default();
        let at = Time::from_millis;
        // A block was read while names were looked up; then the thread loses the processor while it sends.
        backoff.look(at(1), || 8);
        backoff.suspect(at(1), 8);
        assert!(backoff.until <= at(1));
        backoff.look(at(60_000), || 16);
        backoff.suspect(at(60_000), 16);
        assert!(backoff.until <= at(60_000));
        // This time the block is read by the sending itself.
        backoff.look(at(60_050), || 24);
        backoff.suspect(at(60_050), 24);
        assert_eq!(backoff.until, at(60_050) + WARY);
    }

    #[test]
    fn during_backoff_only_recently_read_content_is_trusted() {
        let mut backoff = EvictionBackoff::default();
        let at = Time::from_millis;
        let check = |backoff: &EvictionBackoff, seen: Option<u64>, now: u64, expected: bool| {
            assert_eq!(backoff.believes(seen.map(at), at(now)), expected, "{seen:?} at {now}");
        };
        check(&backoff, None, 1_000, false);
        check(&backoff, Some(1_000), 1_009, true);
        check(&backoff, Some(1_000), 1_010, false);
        backoff.begin(at(2_000));
        check(&backoff, Some(1_999), 2_001, false);
        check(&backoff, Some(2_001), 3_000, true);
        check(&backoff, Some(2_001), 3_001, false);
        // Another that is gone puts the end off, and changes nothing of what has been read.
        backoff.begin(at(2_500));
        check(&backoff, Some(2_100), 3_000, true);
        check(&backoff, Some(12_499), 12_600, false);
        check(&backoff, Some(12_499), 12_505, true);
    }
}
