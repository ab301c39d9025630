//! Stop 10 of 10: bytes to the client.
//!
//! Before it, `core/reply` (stop 9) built a response, which `turn` (stop 2) queued; after it, only its line in the access
//! log remains.
//!
//! Responses wait in a [`SendQueue`] as chunks: text (heads, and bodies so small that a copy is cheaper than a second
//! piece), memory borrowed from a cache, and ranges of files. Memory is sent in one call, head and body together, along
//! with the heads of a whole pipelined batch. Files are sent a few windows at a time, so that one download does not
//! delay the others, and only windows that are in memory: others are read by a helper first. A window is sent by
//! sendfile after its head, or in one call with it, copied through a buffer or from a mapping, depending on the key
//! `send.content`. A head is sent when the first window after it is in memory or, if windows are not probed, its first
//! byte was read: so a disk that fails there results in a 500, and an object store in a 503.
//!
//! A large object of a store may be there in part (`object_store/windows`). A missing part is fetched before it is read, whatever the
//! residency test says, and the one after it is read ahead.
//!
//! A file may change while it is sent. Before each call and after the last one its size and times must match the head,
//! except for changes that leave its bytes alone ([`OpenFile::still_has_bytes_of`]); otherwise the connection is reset:
//! a response consists of a single version, or is visibly truncated. sendfile lends pages of the page cache to the
//! socket, where an edit in place still reaches them until the client has received them, and the same is true of a
//! mapping until the kernel has copied it. So a file that changed within the last minute (the key
//! `send.sendfile_min_age`) is copied instead, which freezes the bytes at the moment of the check. The remaining risk
//! is the first edit in place of an older file while its last bytes are in transit. A mapped file that has become
//! shorter causes an error of the call, not a signal.

pub mod file_budget;
pub mod frames;
pub mod streams;

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use amped_core::file::{Content, FileVersion, Stored};
use amped_core::pacer::Pacer;
use amped_core::record::{Outcome, Record, Records};
use amped_core::reply::{self, Body, Reply, WallClock};
use amped_http::date;
use amped_http::h1::response::Connection;
use amped_http::status::Status;
use amped_sys::file::{self, Patience};
use amped_sys::mapping::Mapping;
use amped_sys::process;
use amped_units::Time;

use self::file_budget::FileBudget;
use self::frames::FrameBuffer;
use crate::access_log::{AccessLog, Peer};
use crate::config::Settings;
use crate::config::optimise::Optimise;
use crate::config::settings::{Architecture, ContentMode, KeyHolder, Signing};
use crate::config_snapshot::ConfigSnapshot;
use crate::counters::Negotiated;
use crate::metrics::{Meter, Phase, Timing};
use crate::open_file::{MappedWindows, OpenFile, WINDOW};
use crate::residency::Residency;
use crate::transport::Transport;
use crate::transport::tls::{Buffers, Deferral, SEALED_MAX};

/// Bodies up to this size are copied after their head: one piece, one `send`. A copy of this size costs less
/// than a second entry in the kernel's vector.
const INLINE_MAX: u64 = 4 * 1024;

/// The rest of a range of a large file that is no longer than this is copied: read and sent with the preceding head in
/// one call. For more than this, two calls without a copy are cheaper.
const SHORT: u64 = 32 * 1024;

/// Maximum windows of files sent for one connection in a turn; in one call if they are adjacent and sent by sendfile.
/// Each call ends with a partial packet, and each turn with a client that waits: with 64 downloads of 1 MiB, two
/// windows a turn, one at a time, cost a fifth more than these.
const WINDOWS_A_TURN: u64 = 4;

/// Bytes of a file that are read and encrypted at once; a connection whose client does not read holds this much.
const TLS_STEP: u64 = 64 * 1024;

// The head before them, and heads of pipelined responses, fit into the same call.
const _: () = assert!(TLS_STEP < SEALED_MAX as u64 && WINDOW.is_multiple_of(TLS_STEP));

/// Maximum bytes of bodies in memory that are encrypted for one connection in a turn.
const ENCRYPTED_A_TURN: u64 = WINDOWS_A_TURN * WINDOW;

/// Why the first bytes of a body cannot be sent: the status and the text of the response that takes its place.
type Unsendable = (Status, &'static str);

/// The disk fails.
const UNREAD: Unsendable = (Status::INTERNAL_SERVER_ERROR, "cannot read the file");

/// The object store fails, or has another version.
const UNFETCHED: Unsendable =
    (Status::SERVICE_UNAVAILABLE, "the object cannot be fetched from its store; try again in a second");

/// Maximum pieces in one call.
const PIECES_MAX: usize = 64;

/// The data to be sent on a connection.
#[derive(Debug, Default)]
pub struct SendQueue {
    chunks: VecDeque<Chunk>,
    /// The bytes of all text chunks, concatenated; those before `text_at` have been sent.
    text: Vec<u8>,
    text_at: usize,
    /// Bytes of the first response, including its head, that have been sent.
    reply_sent: u64,
    /// When the caches last checked that the first file still matches its head. Its first
    /// window needs no second check in the same turn.
    looked_at: Option<Time>,
    /// The record of the response whose body an application has not finished yet.
    open: Option<Box<Record>>,
    /// The credit of its last response, if that has a bandwidth; none follows before it is sent.
    pacer: Option<Pacer>,
    /// It waits until that permits more.
    is_paced: bool,
    /// When the connection may send again, if any of its responses was limited with it ([`Pacer::connection_due`]).
    connection_due: Time,
}

#[derive(Debug)]
enum Chunk {
    /// The next bytes of the text.
    Text(usize),
    /// The same, for bytes that do not belong to a response.
    Interim(usize),
    /// The same, for the header block of a response of HTTP/2.
    Head(usize),
    Memory(Arc<Content<OpenFile>>, Range<usize>),
    Shared(Arc<Vec<u8>>, Range<usize>),
    File(Arc<Content<OpenFile>>, Range<u64>),
    /// The end of a response.
    End(Box<Record>),
}

impl Chunk {
    /// Returns how many bytes it has.
    fn bytes(&self) -> u64 {
        match self {
            Chunk::Text(length) | Chunk::Interim(length) | Chunk::Head(length) => *length as u64,
            Chunk::Memory(_, range) | Chunk::Shared(_, range) => range.len() as u64,
            Chunk::File(_, range) => range.end - range.start,
            Chunk::End(_) => 0,
        }
    }
}

/// The result of sending.
#[derive(Debug)]
pub enum Progress {
    /// Everything was sent.
    Done,
    /// The socket is full: the client must receive first.
    Full,
    /// This range is not in memory.
    Cold(Arc<Content<OpenFile>>, Range<u64>),
    /// The bandwidth of the response permits no more for now ([`SendQueue::paced`]).
    Paced,
    /// There is more, but other connections are served first.
    Yield,
    /// The connection must be closed: the client has left, or the file has changed.
    Broken,
}

/// Which windows are sent only if they are in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Probes {
    /// None: sending may wait for the disk.
    None,
    /// All. The first one has been fetched this often without any of it being sent since: a few times it is assumed
    /// to be in memory, and finally waited for.
    All {
        /// How often.
        fetched: u8,
    },
}

/// A loop's resources for sending, shared by its connections.
pub struct Sender {
    /// Send queues for reuse, so that a response that is sent at once allocates nothing.
    #[expect(clippy::vec_box, reason = "the boxes themselves are reused")]
    spare: Vec<Box<SendQueue>>,
    /// Buffer for windows of recently changed files.
    window: Vec<u8>,
    /// Buffer for frames of HTTP/2.
    pub(crate) frames: FrameBuffer,
    /// Limits the files that streams of HTTP/2 have open.
    files: FileBudget,
    /// Buffers of TLS sessions.
    pub(crate) tls: Buffers,
    /// A file that has not changed for longer is sent by sendfile; a newer one is copied. Editors, and people,
    /// save again within a minute, the default.
    sendfile_min_age: Duration,
    /// `[optimise] sendfile`: use sendfile if possible; otherwise copy.
    uses_sendfile: bool,
    style: Style,
    backoff: EvictionBackoff,
    /// Number of residency tests so far.
    looks: u64,
    /// The time of this turn, and the wall clock in seconds since 1970.
    now: Time,
    wall_seconds: i64,
    residency: Arc<Residency>,
    content: ContentMode,
    mapped: MappedWindows,
    /// What was noticed about objects since the caches and helpers were last told.
    noted: NotedObjects,
}

/// What sending notices about large objects of a store.
#[derive(Debug, Default)]
pub struct NotedObjects {
    /// Windows that will be needed next and must be fetched: each by its first byte.
    pub ahead: Vec<(Arc<Content<OpenFile>>, u64)>,
    /// Files that were evicted, and grow: caches should not keep them open.
    pub orphaned: Vec<FileVersion>,
}

/// Detects whether windows have recently lost pages in their middle.
///
/// When memory is scarce, the kernel evicts pages of files in use, and the residency test probes only a few places
/// of a window; then sendfile waits for the disk in the loop. Probing every page would cost twice as much as
/// sending them. So the loop notices when a window that was in memory is gone, or when it has waited; for a while
/// after that it reads windows into its own memory without waiting, which tests every page and costs two to four
/// times as much as sendfile. A window read in this way may be sent by sendfile again for a moment ([`READ_FOR`]),
/// so that a popular file is read once a second. A window that has never been seen does not start a backoff: it is read
/// in any case, and sent by sendfile from then on.
#[derive(Debug, Default)]
struct EvictionBackoff {
    since: Time,
    until: Time,
    /// The blocks that this thread had read as of the last check, and when that was.
    blocks_read: i64,
    looked: Time,
}

/// A window takes 18 to 60 us to send. If it takes longer than this, the thread
/// waited for the disk, or was switched out.
const SUSPICIOUS: Duration = Duration::from_millis(1);

/// How long sendfile is not used after a wait, or after the last evicted window.
const BACKOFF: Duration = Duration::from_secs(10);

/// How long a window that was seen in memory is assumed to be there: four probes of one cost a tenth of sending it.
/// Before the kernel evicts it, its lists must be scanned twice without a use of it.
const SEEN_FOR: Duration = Duration::from_millis(10);

/// How long a window that was read completely, page by page, is assumed to be in memory while others lose pages.
const READ_FOR: Duration = Duration::from_secs(1);

/// How often a window is fetched before the loop waits for it: it must make progress eventually.
const FETCHES_MAX: u8 = 3;

/// Before sendfile, the blocks read by the thread are counted again if the last count is older than this: earlier reads
/// for other reasons, such as a directory, must not be taken for a wait when the thread is switched out minutes later.
const COUNT_STEP: Duration = Duration::from_millis(100);

impl EvictionBackoff {
    /// Records the start of a sendfile.
    fn look(&mut self, now: Time, blocks_read: impl FnOnce() -> i64) {
        if now.since(self.looked) >= COUNT_STEP || self.looked == Time::START {
            (self.looked, self.blocks_read) = (now, blocks_read());
        }
    }

    /// Checks a sendfile that took suspiciously long; `blocks_read` is the number of blocks that the thread has read so
    /// far.
    fn suspect(&mut self, now: Time, blocks_read: i64) {
        if std::mem::replace(&mut self.blocks_read, blocks_read) < blocks_read {
            self.begin(now);
        }
    }

    /// Starts the backoff: a window was evicted, so others may have lost pages that the test does not probe.
    fn begin(&mut self, now: Time) {
        if now >= self.until {
            self.since = now;
        }
        self.until = now + BACKOFF;
    }

    /// Returns whether a window last seen at this time is assumed to be in memory. During a backoff
    /// only windows that were read count as seen.
    fn trusts(&self, seen: Option<Time>, now: Time) -> bool {
        seen.is_some_and(|seen| match now < self.until {
            true => seen >= self.since && now.since(seen) < READ_FOR,
            false => now.since(seen) < SEEN_FOR,
        })
    }

    /// Extends the backoff: something was not in memory.
    fn extend(&mut self, now: Time) {
        if now < self.until {
            self.until = now + BACKOFF;
        }
    }
}

/// How heads are written: two of the papers' optimisations.
#[derive(Clone, Copy, Debug)]
pub struct Style {
    /// The date is that of the loop, formatted once a second rather than for each response (Hu, Nanda and Yang, 5.3.2).
    string_caches: bool,
    /// Heads are padded to a multiple of [`ALIGNMENT`], so that a body after
    /// one begins at such an address (Flash, 5.5).
    aligned: bool,
}

impl Style {
    fn of(optimise: &Optimise) -> Style {
        Style { string_caches: optimise.string_caches, aligned: optimise.header_alignment }
    }

    fn date(self, wall: &WallClock) -> [u8; date::LEN] {
        if self.string_caches { wall.date } else { WallClock::at(wall.seconds).date }
    }

    fn alignment(self) -> usize {
        if self.aligned { ALIGNMENT } else { 1 }
    }
}

/// Alignment of heads: the size of a cache line at the time of the paper.
const ALIGNMENT: usize = 32;

/// A send queue whose text has grown beyond this is not reused.
const SPARE_TEXT_MAX: usize = 64 * 1024;

/// Maximum send queues kept for reuse; each stream of an HTTP/2 connection may need one at the same time.
const SPARE_MAX: usize = 128;

/// The client of a log line, and where lines and records go.
pub struct LogContext<'a> {
    /// The access log.
    pub log: &'a mut AccessLog,
    /// The client.
    pub peer: &'a Peer,
    /// The parameters of its TLS session.
    pub tls: Option<Negotiated>,
    /// Records for reuse.
    pub records: &'a mut Records,
    /// The wall clock.
    pub wall: &'a WallClock,
    /// The time.
    pub now: Time,
    /// The loop's metrics.
    pub meter: &'a mut Meter,
    /// The times of the next request to be logged, if it is sampled.
    pub timing: &'a mut Option<Box<Timing>>,
}

impl LogContext<'_> {
    /// Logs and counts a response; `is_whole`: it was sent completely.
    pub(crate) fn log_response(&mut self, record: Box<Record>, body_bytes: u64, is_whole: bool) {
        let mut timing = self.timing.take();
        if let Some(timing) = &mut timing {
            timing.pass(Phase::Logging);
        }
        self.log.write(&record, (self.peer, self.tls.as_ref()), body_bytes, self.wall, self.now);
        self.meter.count(&record, body_bytes, is_whole, timing);
        self.records.give_back(record);
    }
}

/// Returns what of the handshakes of TLS clients a thread may do, or does in any case.
fn deferral(generation: &ConfigSnapshot) -> Deferral {
    let Settings { file, .. } = &generation.settings;
    match (file.architecture, file.tls.keys, file.tls.sign) {
        (Architecture::Amped, KeyHolder::Process, _) => Deferral::Records,
        (Architecture::Amped, KeyHolder::Server, Signing::Helper) => Deferral::Hello,
        _ => Deferral::None,
    }
}

/// Returns how many files the streams of HTTP/2 of a loop may have open: as many as connections of HTTP/1 could, and in a
/// pool as many as its one connection may have streams.
fn files_max(generation: &ConfigSnapshot) -> usize {
    let streams = generation.settings.limits.max_concurrent_streams;
    if generation.pooled() { streams } else { generation.connections_max.max(FILES_MIN) }
}

/// Files that streams may always have open.
const FILES_MIN: usize = 8;

impl Sender {
    /// Creates the resources for this configuration.
    pub fn new(generation: &ConfigSnapshot) -> Sender {
        Sender {
            spare: Vec::new(),
            window: vec![0; WINDOW as usize],
            frames: FrameBuffer::default(),
            files: FileBudget::new(files_max(generation)),
            tls: Buffers::new(deferral(generation)),
            sendfile_min_age: generation.settings.send.sendfile_min_age,
            uses_sendfile: generation.settings.optimise.sendfile,
            style: Style::of(&generation.settings.optimise),
            backoff: EvictionBackoff::default(),
            looks: 0,
            now: Time::START,
            wall_seconds: 0,
            residency: Arc::clone(generation.disk.residency()),
            content: generation.settings.send.content,
            mapped: generation.disk.mapped().clone(),
            noted: NotedObjects::default(),
        }
    }

    /// Returns what was noticed about objects, to be drained.
    pub fn noted(&mut self) -> &mut NotedObjects {
        &mut self.noted
    }

    /// This range of a file is being sent: notes the window after its beginning, if it must be fetched.
    pub(crate) fn look_ahead(&mut self, content: &Arc<Content<OpenFile>>, range: &Range<u64>) {
        let Stored::File(file) = &content.store else { return };
        if let Some(offset) = file.missing_after(range) {
            self.noted.ahead.push((Arc::clone(content), offset));
        }
    }

    /// Checks that this byte of a file is there, with all of its [`WINDOW`]; fetches it, if windows are not probed.
    fn missing(&mut self, file: &OpenFile, version: &FileVersion, offset: u64, probes: Probes) -> Option<Missing> {
        let missing = match probes {
            _ if file.is_present(offset) => None,
            _ if file.is_replaced() => Some(Missing::Failed),
            Probes::All { .. } => Some(Missing::Awaited),
            Probes::None => file.fetch(offset).is_err().then_some(Missing::Failed),
        };
        if file.is_orphaned() {
            self.noted.orphaned.push(*version);
        }
        missing
    }

    /// Sets the time of this turn.
    pub fn set_time(&mut self, now: Time, wall_seconds: i64) {
        (self.now, self.wall_seconds, self.tls.now) = (now, wall_seconds, now);
    }

    /// Returns how heads are written.
    pub fn style(&self) -> Style {
        self.style
    }

    /// Applies another configuration. Residency tests and mappings are kept.
    pub fn renew(&mut self, generation: &ConfigSnapshot) {
        self.tls.deferral = deferral(generation);
        self.files.set(files_max(generation));
        self.sendfile_min_age = generation.settings.send.sendfile_min_age;
        self.uses_sendfile = generation.settings.optimise.sendfile;
        self.style = Style::of(&generation.settings.optimise);
    }

    /// Returns an empty send queue.
    pub fn send_queue(&mut self) -> Box<SendQueue> {
        self.spare.pop().unwrap_or_default()
    }

    /// Takes back an empty send queue for reuse.
    pub fn give_back(&mut self, mut send_queue: Box<SendQueue>) {
        if self.spare.len() < SPARE_MAX && send_queue.text.capacity() <= SPARE_TEXT_MAX {
            send_queue.text.clear();
            send_queue.text_at = 0;
            send_queue.connection_due = Time::START;
            self.spare.push(send_queue);
        }
    }
}

impl SendQueue {
    /// Appends a response.
    pub fn put(&mut self, reply: Reply<OpenFile>, now: Time, wall: &WallClock, style: Style) {
        let Reply { head, connection, hsts, body, mut record } = reply;
        self.looked_at = (record.outcome == Outcome::Hit).then_some(now);
        let start = self.text.len();
        head.get().write(&mut self.text, &style.date(wall), connection, hsts.as_deref(), style.alignment());
        record.head_bytes = self.text.len() - start;
        if let Some(bandwidth) = record.bandwidth {
            // Its head is free, so that it is not sent without knowing that the body can be read.
            let mut pacer = Pacer::new(bandwidth, self.connection_due, now);
            pacer.permit(self.chunks.iter().map(Chunk::bytes).sum::<u64>() + record.head_bytes as u64);
            self.pacer = Some(pacer);
        }
        let is_open = matches!(body, Body::Open);
        self.put_body(start, body);
        match is_open {
            true => self.open = Some(record),
            false => self.chunks.push_back(Chunk::End(record)),
        }
    }

    /// Appends a piece of the open response's body. So many bytes of it are framing, which the log does not count.
    pub fn put_piece(&mut self, bytes: &[u8], framed: usize) {
        self.text.extend_from_slice(bytes);
        self.chunks.push_back(Chunk::Text(bytes.len()));
        if let Some(record) = &mut self.open {
            record.head_bytes += framed;
            record.body_bytes += (bytes.len() - framed) as u64;
        }
    }

    /// Ends the open response's body.
    pub fn put_end(&mut self) {
        self.chunks.extend(self.open.take().map(Chunk::End));
    }

    /// Returns whether a response is incomplete.
    pub fn is_open(&self) -> bool {
        self.open.is_some()
    }

    /// Appends bytes that do not belong to a response.
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

    /// Appends a range of a file after the text that began at `start`; returns where the
    /// text begins that is not part of a chunk yet.
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

    /// Returns whether everything has been sent.
    pub fn is_empty(&self) -> bool {
        self.chunks.is_empty()
    }

    /// Returns whether it contains a response, not only bytes that belong to none.
    pub fn holds_reply(&self) -> bool {
        self.is_open() || matches!(self.chunks.back(), Some(Chunk::End(_)))
    }

    /// Returns the memory that it uses, bytes.
    pub fn heap_bytes(&self) -> usize {
        size_of::<SendQueue>() + self.text.capacity() + self.chunks.capacity() * size_of::<Chunk>()
    }

    /// Returns the memory of its text, bytes.
    pub fn text_bytes(&self) -> usize {
        self.text.capacity()
    }

    /// Sends until something prevents it. Complete responses are logged.
    ///
    /// `probes`: which windows stop it if they are not in memory; for others it waits for the disk.
    pub fn pump(
        &mut self,
        transport: &mut Transport,
        sender: &mut Sender,
        probes: Probes,
        log_context: &mut LogContext<'_>,
    ) -> Progress {
        let mut windows = 0;
        let mut encrypted = 0;
        sender.set_time(log_context.now, log_context.wall.seconds);
        loop {
            if let Err(error) = transport.flush() {
                match error.kind() {
                    io::ErrorKind::WouldBlock => return Progress::Full,
                    io::ErrorKind::Interrupted => continue,
                    _ => return Progress::Broken,
                }
            }
            self.log_completed(log_context);
            if self.chunks.is_empty() {
                return Progress::Done;
            }
            let most = self.pacer.map_or(u64::MAX, |pacer| pacer.allowance(sender.now));
            // A head is free, but may be sent only with the first bytes of its file.
            let is_head_only = matches!(self.chunks.front(), Some(Chunk::Text(length)) if most <= *length as u64)
                && self.is_undecided();
            self.is_paced = most == 0 || is_head_only;
            if self.is_paced {
                return Progress::Paced;
            }
            if encrypted >= ENCRYPTED_A_TURN {
                return Progress::Yield;
            }
            let probes = match probes {
                Probes::All { .. } if windows > 0 => Probes::All { fetched: 0 },
                probes => probes,
            };
            match self.send_front(transport, sender, (WINDOWS_A_TURN - windows, most), probes) {
                Ok(SendOutcome::Sent(count)) => {
                    encrypted += if transport.is_tls() { count } else { 0 };
                    self.note_paced(count, sender.now);
                    self.advance(count, log_context);
                }
                Ok(SendOutcome::SentWindows(number, count)) => {
                    windows += number;
                    self.looked_at = None;
                    self.note_paced(count, sender.now);
                    self.advance(count, log_context);
                }
                Ok(SendOutcome::Cold(content, range)) => return Progress::Cold(content, range),
                Ok(SendOutcome::TurnIsOver) => return Progress::Yield,
                Ok(SendOutcome::Changed) => return Progress::Broken,
                Ok(SendOutcome::Unread(why)) => self.fail_front(why, log_context.wall, sender.style),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Progress::Full,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return Progress::Broken,
            }
        }
    }

    /// Until when the bandwidth of its response permits nothing more, if it does not.
    pub fn paced(&self) -> Option<Time> {
        self.pacer.filter(|_| self.is_paced).map(|pacer| pacer.due())
    }

    fn note_paced(&mut self, count: u64, now: Time) {
        if let Some(pacer) = &mut self.pacer {
            pacer.note(count, now);
            self.connection_due = pacer.connection_due().unwrap_or(self.connection_due);
        }
    }

    /// Returns whether its connection needs it no longer: all was sent, and no bandwidth is shared with later responses.
    pub fn is_spare(&self) -> bool {
        !self.is_open() && self.connection_due == Time::START
    }

    /// Sends the front of the queue, in one call: data in memory, at most this many windows of a file, or both; and at most
    /// this many bytes.
    fn send_front(
        &self,
        transport: &mut Transport,
        sender: &mut Sender,
        (windows_max, most): (u64, u64),
        probes: Probes,
    ) -> io::Result<SendOutcome> {
        // The common case, which need not initialise a kibibyte of empty pieces.
        if self.chunks.iter().all(|chunk| matches!(chunk, Chunk::Text(_) | Chunk::Interim(_) | Chunk::End(_))) {
            let text = &self.text[self.text_at..];
            let text = &text[..at_most(text.len(), most)];
            return Ok(SendOutcome::Sent(transport.send(&[IoSlice::new(text)], false, &mut sender.tls)? as u64));
        }
        let mut pieces = [IoSlice::new(&[]); PIECES_MAX];
        let (count, next) = self.gather(&mut pieces, most);
        let before = &pieces[..count];
        if let Some((content, range, end)) = &next {
            sender.look_ahead(content, &(range.start..*end));
            // A window that is not in memory is read as a whole, even if only part of it may be sent now.
            let cold = |range: Range<u64>| {
                let window_end = (range.start / WINDOW + 1) * WINDOW;
                Ok(SendOutcome::Cold(Arc::clone(content), range.start..window_end.min(*end)))
            };
            if windows_max > 0 {
                let must_look = self.looked_at != Some(sender.now);
                let windows = (range.clone(), windows_max, must_look);
                let is_undecided = self.is_undecided();
                match send_windows(transport, before, content, windows, sender, probes)? {
                    Window::Sent(number, count) => return Ok(SendOutcome::SentWindows(number, count)),
                    Window::Unread(why) if is_undecided => return Ok(SendOutcome::Unread(why)),
                    Window::Cold(range) if is_undecided => return cold(range),
                    // The data before it must still be sent.
                    Window::Cold(_) | Window::Changed | Window::Unread(_) if !before.is_empty() => {}
                    Window::Cold(range) => return cold(range),
                    Window::Changed | Window::Unread(_) => return Ok(SendOutcome::Changed),
                    Window::AfterTheHead => {}
                }
            } else if before.is_empty() {
                return Ok(SendOutcome::TurnIsOver);
            }
        }
        // If a file is next, its first window follows at once; without this the head would be sent in its own packet.
        let more = next.is_some();
        Ok(SendOutcome::Sent(transport.send(before, more, &mut sender.tls)? as u64))
    }

    /// Returns whether the front is a response with a file after its head, of which nothing was sent: then it
    /// may still be replaced by another response.
    fn is_undecided(&self) -> bool {
        self.reply_sent == 0
            && matches!((self.chunks.front(), self.chunks.get(1)), (Some(Chunk::Text(_)), Some(Chunk::File(..))))
    }

    /// Replaces the first response by an error, if nothing was sent of it: the object store has failed on its first bytes. Returns whether
    /// it did.
    pub fn fail_undecided(&mut self, wall: &WallClock, style: Style) -> bool {
        let is_undecided = self.is_undecided();
        if is_undecided {
            self.fail_front(UNFETCHED, wall, style);
        }
        is_undecided
    }

    /// Replaces the first response, of which nothing was sent, by an error: the disk has failed on its first bytes.
    fn fail_front(&mut self, (status, why): Unsendable, wall: &WallClock, style: Style) {
        let is_end = |chunk: &Chunk| matches!(chunk, Chunk::End(_));
        let Some(end) = self.chunks.iter().position(is_end) else { return };
        let (head, body) = reply::bad_head::<OpenFile>(status, why, false);
        let mut text = Vec::new();
        // A `Connection` field may be left out.
        head.get().write(&mut text, &style.date(wall), Connection::Persists, None, style.alignment());
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
            record.set(status, record.outcome);
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

    /// Collects data in memory at the front into `pieces`. Returns their number, and the range of a file after them; `most`
    /// bytes in all.
    fn gather<'a>(&'a self, pieces: &mut [IoSlice<'a>; PIECES_MAX], most: u64) -> (usize, Option<FileRange<'a>>) {
        let mut count = 0;
        let mut left = most;
        let mut put = |count: usize, bytes: &'a [u8]| {
            let bytes = &bytes[..at_most(bytes.len(), left)];
            left -= bytes.len() as u64;
            pieces[count] = IoSlice::new(bytes);
            count + usize::from(!bytes.is_empty())
        };
        let mut text_at = self.text_at;
        let mut text_from = text_at;
        let mut next = None;
        for chunk in &self.chunks {
            let bytes = match chunk {
                // Texts are adjacent: those of a batch of small responses make one piece.
                Chunk::Text(length) | Chunk::Interim(length) | Chunk::Head(length) => {
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
                count = put(count, &self.text[text_from..text_at]);
                text_from = text_at;
            }
            count = put(count, bytes);
            if count + 2 > PIECES_MAX {
                break;
            }
        }
        if text_from < text_at {
            count = put(count, &self.text[text_from..text_at]);
        }
        let within = |(content, range): (_, &Range<u64>)| {
            (content, range.start..range.end.min(range.start.saturating_add(left)), range.end)
        };
        (count, next.filter(|_| left > 0).map(within))
    }

    /// Removes `count` bytes from the front.
    fn advance(&mut self, mut count: u64, log_context: &mut LogContext<'_>) {
        log_context.meter.sent(count);
        while count > 0 {
            let left = match self.chunks.front_mut() {
                None => return,
                Some(Chunk::End(_)) => {
                    self.log_completed(log_context);
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
                Some(Chunk::Interim(length) | Chunk::Head(length)) => {
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

    fn log_completed(&mut self, log_context: &mut LogContext<'_>) {
        while matches!(self.chunks.front(), Some(Chunk::End(_))) {
            if let Some(Chunk::End(record)) = self.chunks.pop_front() {
                let sent = std::mem::take(&mut self.reply_sent);
                let body_bytes = sent.saturating_sub(record.head_bytes as u64);
                if record.bandwidth.is_some() {
                    self.pacer = None;
                }
                log_context.log_response(record, body_bytes, true);
            }
        }
        if self.chunks.is_empty() {
            self.text.clear();
            self.text_at = 0;
        }
    }

    /// Logs responses that will not be completed: the first with the bytes that were sent.
    pub fn give_up(&mut self, log_context: &mut LogContext<'_>) {
        self.pacer = None;
        self.put_end();
        for chunk in self.chunks.drain(..) {
            if let Chunk::End(record) = chunk {
                let sent = std::mem::take(&mut self.reply_sent);
                let body_bytes = sent.saturating_sub(record.head_bytes as u64);
                log_context.log_response(record, body_bytes, false);
            }
        }
    }
}

/// A file, the range of it to send next, and the end of what is sent in all.
type FileRange<'a> = (&'a Arc<Content<OpenFile>>, Range<u64>, u64);

fn at_most(length: usize, most: u64) -> usize {
    usize::try_from(most).map_or(length, |most| length.min(most))
}

/// The result of sending the front of the queue.
enum SendOutcome {
    /// So many bytes were sent.
    Sent(u64),
    /// Records that this many bytes were sent, including this many windows.
    SentWindows(u64, u64),
    /// This range is not in memory.
    Cold(Arc<Content<OpenFile>>, Range<u64>),
    /// The windows of this turn have been sent.
    TurnIsOver,
    /// The file does not match the head.
    Changed,
    /// The disk failed on the first bytes of a response of which nothing was sent.
    Unread(Unsendable),
}

enum Window {
    /// Records that these numbers of windows and bytes were sent.
    Sent(u64, u64),
    Cold(Range<u64>),
    Changed,
    /// The disk, or the object store, failed.
    Unread(Unsendable),
    /// It is sent by sendfile, after the preceding data were sent separately.
    AfterTheHead,
}

/// How a window is sent.
enum SendMethod {
    /// By sendfile, which lends pages of the page cache to the socket.
    Sendfile,
    /// The kernel copies it from this mapping.
    Mapped(Arc<Mapping>),
    /// It is read into a buffer, checked, and sent from there.
    Copied,
}

impl SendMethod {
    /// Returns the mapping of this window: the one that it is sent from, or one for the residency test.
    fn mapping(
        &self,
        mapped: &MappedWindows,
        file: &OpenFile,
        version: &FileVersion,
        number: u64,
    ) -> io::Result<Arc<Mapping>> {
        match self {
            SendMethod::Mapped(mapping) => Ok(Arc::clone(mapping)),
            SendMethod::Sendfile | SendMethod::Copied => mapped.get(file, version, number),
        }
    }
}

impl Sender {
    /// Returns whether the residency test probes only a few places of a window. The other tests check every page, or
    /// none, and are experimental: they are consulted each time, and trusted.
    fn samples(&self) -> bool {
        matches!(*self.residency, Residency::Nowait)
    }

    fn method(&self, file: &OpenFile, version: &FileVersion, window: &Range<u64>, probes: Probes) -> SendMethod {
        let number = window.start / WINDOW;
        // A window that was never seen completely may be half read or half evicted: sendfile would wait for it.
        let is_new = probes != Probes::None && self.samples() && file.is_new(number);
        match self.content {
            ContentMode::Copy => SendMethod::Copied,
            // When memory is scarce, part of what a helper has fetched may have been evicted again, which only reading it shows.
            _ if matches!(probes, Probes::All { fetched: 1.. }) && self.samples() => SendMethod::Copied,
            _ if self.now < self.backoff.until && !self.backoff.trusts(file.last_seen(number), self.now) => {
                SendMethod::Copied
            }
            _ if !is_settled(version, self.sendfile_min_age, self.wall_seconds) => SendMethod::Copied,
            ContentMode::Mixed | ContentMode::Sendfile if self.uses_sendfile && !is_new => SendMethod::Sendfile,
            ContentMode::Mixed | ContentMode::Sendfile => SendMethod::Copied,
            // A window that cannot be mapped is copied.
            ContentMode::Mmap => self.mapped.get(file, version, number).map_or(SendMethod::Copied, SendMethod::Mapped),
        }
    }

    /// Returns whether a window is in memory: it was seen there a moment ago, or the residency test says so.
    fn is_loaded(&mut self, file: &OpenFile, version: &FileVersion, window: &Range<u64>, method: &SendMethod) -> bool {
        let number = window.start / WINDOW;
        let seen = if self.samples() { file.last_seen(number) } else { None };
        if self.backoff.trusts(seen, self.now) {
            return true;
        }
        self.looks += 1;
        let map = || method.mapping(&self.mapped, file, version, number);
        let is_loaded = self.residency.is_resident(file, version, window, self.looks, map);
        if self.samples() && is_loaded && is_whole(window, version) {
            file.is_seen(number, version.size, self.now);
        } else if seen.is_some() && !is_loaded {
            self.backoff.begin(self.now);
        }
        is_loaded
    }

    /// Returns the end of the windows after `window` that can be sent by sendfile with
    /// it: at most this many, all of them in memory.
    fn sendfile_end(
        &mut self,
        file: &OpenFile,
        version: &FileVersion,
        window: &Range<u64>,
        (windows_max, end): (u64, u64),
        probes: Probes,
    ) -> u64 {
        // The loop may wait for a window that was just fetched, but not for those
        // after it; models are updated window by window.
        if !matches!(probes, Probes::None | Probes::All { fetched: 0 }) || !self.samples() {
            return window.end;
        }
        let end = end.min((window.start / WINDOW + windows_max) * WINDOW);
        let mut next = window.end..end.min(window.end + WINDOW);
        while !next.is_empty()
            && file.is_present(next.start)
            && matches!(self.method(file, version, &next, probes), SendMethod::Sendfile)
            && (probes == Probes::None || self.is_loaded(file, version, &next, &SendMethod::Sendfile))
        {
            next = next.end..end.min(next.end + WINDOW);
        }
        next.start
    }
}

/// Returns whether a window is complete, or all that its file has of it.
fn is_whole(window: &Range<u64>, version: &FileVersion) -> bool {
    window.start.is_multiple_of(WINDOW) && (window.end.is_multiple_of(WINDOW) || window.end == version.size)
}

/// Sends the first window of a file's range, and those after it that sendfile can send in the same call, at most
/// `windows_max`. `must_look`: it must be checked first that the file has not changed. `before` precedes the range:
/// both are sent in one call, or neither is.
fn send_windows(
    transport: &mut Transport,
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
    // Windows begin at multiples of their size, so that a range is read ahead like the whole file.
    let number = range.start / WINDOW;
    let mut window = range.start..range.end.min((number + 1) * WINDOW);
    match sender.missing(file, version, window.start, probes) {
        Some(Missing::Awaited) => return Ok(Window::Cold(window)),
        Some(Missing::Failed) => return Ok(Window::Unread(UNFETCHED)),
        None => {}
    }
    let method = match sender.content {
        _ if transport.is_tls() => SendMethod::Copied,
        ContentMode::Mixed if range.end - range.start <= SHORT => SendMethod::Copied,
        _ => sender.method(file, version, &window, probes),
    };
    let samples = probes != Probes::None && sender.samples();

    if matches!(method, SendMethod::Copied) {
        // TLS encrypts at most this much per call; the rest would be read again.
        let most = if transport.is_tls() { TLS_STEP - window.start % TLS_STEP } else { WINDOW };
        let buffer = &mut sender.window[..(window.end - window.start).min(most) as usize];
        // Part of what was fetched may have been evicted again; the rest is enough to continue.
        let probe = matches!(probes, Probes::All { fetched: ..FETCHES_MAX });
        let patience = if probe { Patience::Now } else { Patience::Wait };
        let map = || method.mapping(&sender.mapped, file, version, number);
        let count = match sender.residency.read(file, version, (buffer, window.start), patience, map) {
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                sender.backoff.extend(sender.now);
                return Ok(Window::Cold(window));
            }
            Err(_) => return Ok(Window::Unread(UNREAD)),
        };
        let buffer = &sender.window[..count];
        let end = window.start + count as u64;
        let more = end < range.end;
        if samples && is_whole(&window, version) && end == window.end {
            file.is_seen(number, version.size, sender.now);
        }
        // Checked after reading: the bytes in the buffer are those of this version.
        if count == 0 || !file.still_has_bytes_of(version)? {
            return Ok(Window::Changed);
        }
        let sent = match before {
            [] => transport.send(&[IoSlice::new(buffer)], more, &mut sender.tls)?,
            _ => {
                let mut pieces = [IoSlice::new(&[]); PIECES_MAX];
                pieces[..before.len()].copy_from_slice(before);
                pieces[before.len()] = IoSlice::new(buffer);
                transport.send(&pieces[..=before.len()], more, &mut sender.tls)?
            }
        };
        let is_done = end == window.end;
        return Ok(Window::Sent(u64::from(is_done || !transport.is_tls()), sent as u64));
    }
    // If windows are not probed, the loop waits for the disk in any case, so it may wait
    // for the first byte before the head is sent.
    let is_first = probes == Probes::None && !before.is_empty();
    if is_first && file::read_at(file, &mut [0], window.start, Patience::Wait).is_err() {
        return Ok(Window::Unread(UNREAD));
    }
    let probe = probes == Probes::All { fetched: 0 };
    if matches!(method, SendMethod::Sendfile) && !before.is_empty() {
        // A window assumed to be in memory is not tested twice.
        let is_cold = probe && samples && !sender.is_loaded(file, version, &window, &method);
        return Ok(if is_cold { Window::Cold(window) } else { Window::AfterTheHead });
    }
    let is_cold = probe && !sender.is_loaded(file, version, &window, &method);
    // A file that has become shorter looks like one that is not in memory.
    let is_changed = (must_look || is_cold) && !file.still_has_bytes_of(version)?;
    if is_cold || is_changed {
        return Ok(if is_changed { Window::Changed } else { Window::Cold(window) });
    }
    if matches!(method, SendMethod::Sendfile) {
        window.end = sender.sendfile_end(file, version, &window, (windows_max, range.end), probes);
    }
    if samples {
        sender.backoff.look(sender.now, blocks_read);
    }
    let more = window.end < range.end;
    let begun = Instant::now();
    let sent = sender.residency.watch(version, &window, probe, || match &method {
        SendMethod::Mapped(mapping) => {
            let start = (window.start % WINDOW) as usize;
            transport.send_mapped(before, mapping, start..start + (window.end - window.start) as usize, more)
        }
        SendMethod::Sendfile | SendMethod::Copied => transport.send_file(file, window.clone()),
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

/// Why a byte of an object cannot be sent now.
enum Missing {
    /// A helper must fetch it first.
    Awaited,
    /// The object store has failed, or has another version.
    Failed,
}

/// Returns whether the file is old enough for sendfile.
fn is_settled(version: &FileVersion, sendfile_min_age: Duration, wall_seconds: i64) -> bool {
    let settle_ns = i64::try_from(sendfile_min_age.as_nanos()).unwrap_or(i64::MAX);
    let now_ns = wall_seconds.saturating_mul(1_000_000_000);
    // The wall clock has whole seconds, so a file of this second is not older than zero.
    settle_ns == 0 || now_ns.saturating_sub(version.mtime_ns.max(version.ctime_ns)) > settle_ns
}

/// Returns the number of blocks that this thread has read.
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
        // A block was read during a name lookup; then the thread is switched out while it sends.
        backoff.look(at(1), || 8);
        backoff.suspect(at(1), 8);
        assert!(backoff.until <= at(1));
        backoff.look(at(60_000), || 16);
        backoff.suspect(at(60_000), 16);
        assert!(backoff.until <= at(60_000));
        // This time the block is read by the sending itself.
        backoff.look(at(60_050), || 24);
        backoff.suspect(at(60_050), 24);
        assert_eq!(backoff.until, at(60_050) + BACKOFF);
    }

    #[test]
    fn during_backoff_only_recently_read_content_is_trusted() {
        let mut backoff = EvictionBackoff::default();
        let at = Time::from_millis;
        let check = |backoff: &EvictionBackoff, seen: Option<u64>, now: u64, expected: bool| {
            assert_eq!(backoff.trusts(seen.map(at), at(now)), expected, "{seen:?} at {now}");
        };
        check(&backoff, None, 1_000, false);
        check(&backoff, Some(1_000), 1_009, true);
        check(&backoff, Some(1_000), 1_010, false);
        backoff.begin(at(2_000));
        check(&backoff, Some(1_999), 2_001, false);
        check(&backoff, Some(2_001), 3_000, true);
        check(&backoff, Some(2_001), 3_001, false);
        // Another missing window extends the backoff, and changes nothing about what has been read.
        backoff.begin(at(2_500));
        check(&backoff, Some(2_100), 3_000, true);
        check(&backoff, Some(12_499), 12_600, false);
        check(&backoff, Some(12_499), 12_505, true);
    }
}
