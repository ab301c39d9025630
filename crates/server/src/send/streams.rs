//! The frames of an HTTP/2 connection, in place of `send` (stop 10).
//!
//! Each stream with a response has a lane with a send queue of its own. The session (`core/http2`) chooses the lane that
//! sends next; [`SendQueue::draw`] turns the front of its queue into frames. Frames of many lanes are gathered in a buffer
//! of the loop and sent in one call. What the socket does not take is kept, and nothing more is drawn until it has been
//! sent. The socket takes little ahead of what it has sent (`turn`), so that an urgent response soon overtakes a long one.
//!
//! Bytes of files are read without waiting straight into their frame: the read is the residency test. If it would wait,
//! the lane is cold: a helper reads ahead for it, and the other lanes go on.

use std::collections::VecDeque;
use std::io::{self, IoSliceMut};
use std::ops::Range;
use std::sync::Arc;

use amped_core::event::Lane;
use amped_core::file::{Content, Stored};
use amped_core::http2::Drawn;
use amped_core::record::Record;
use amped_core::reply::{self, Body, Reply, WallClock};
use amped_http::h2::frame::{self, FRAME_BYTES, HEAD_BYTES, StreamId};
use amped_http::status::Status;
use amped_sys::file::Patience;
use amped_units::Time;

use super::file_budget::FilePermit;
use super::frames::FrameBuffer;
use super::{Chunk, FETCHES_MAX, LogContext, Missing, Probes, SendQueue, Sender, Style, UNFETCHED, UNREAD, Unsendable};
use crate::open_file::OpenFile;

/// Bytes of frames gathered for one call.
pub const GATHERED: usize = 64 * 1024;

/// Maximum windows of one connection that helpers read at a time; further lanes wait for one of them.
const FETCHES_AT_ONCE: usize = 8;

/// Maximum frames that are read from a file in one call.
const FRAMES_A_READ: usize = 4;

/// The memory for text that a queue keeps for the next lane.
const SPARE_TEXT_MAX: usize = 8 * 1024;

/// The error text of a response without a permit for its file.
const BUSY: &str = "too many files are being sent; try again later";

/// What an HTTP/2 connection has to send.
#[derive(Default)]
pub struct Outbox {
    /// Frames that precede those of all lanes.
    control: Vec<u8>,
    /// In the order of their numbers. Most end in that order too.
    lanes: VecDeque<LaneQueue>,
    /// Frames that the transport has not taken, from `unsent_at`.
    unsent: Vec<u8>,
    unsent_at: usize,
    /// Responses whose last frame was drawn, and how many bytes had been drawn then.
    drawn: VecDeque<(u64, Finished)>,
    /// Bytes drawn and sent so far.
    drawn_bytes: u64,
    sent_bytes: u64,
}

/// A lane's responses.
struct LaneQueue {
    lane: Lane,
    /// Held while its response has a file open.
    permit: Option<FilePermit>,
    queue: Box<SendQueue>,
    fetch: Fetch,
    /// How often the next data have been fetched without any of them being drawn since, and their offset in the file.
    fetched: (u8, u64),
}

/// Whether a helper reads the next data of a lane.
enum Fetch {
    None,
    /// It is in progress since then.
    Runs(Time),
    /// It begins when there is room.
    Waits(Arc<Content<OpenFile>>, Range<u64>),
}

/// A response whose last frame was drawn.
struct Finished {
    record: Box<Record>,
    body_bytes: u64,
}

/// A range of a file that is not in memory.
type Cold = (Arc<Content<OpenFile>>, Range<u64>);

/// A range of a file that is not in memory, for the lane whose response continues with it.
pub type ColdRange = (Lane, Arc<Content<OpenFile>>, Range<u64>);

impl Outbox {
    /// Appends frames that belong to no response.
    pub fn put_control(&mut self, bytes: &[u8]) {
        self.control.extend_from_slice(bytes);
    }

    /// Returns the queue of a lane, which is created if there is none.
    pub fn queue(&mut self, lane: Lane, sender: &mut Sender) -> &mut SendQueue {
        let at = match self.lanes.binary_search_by_key(&lane, |queued| queued.lane) {
            Ok(at) => at,
            Err(at) => {
                let queue = sender.send_queue();
                self.lanes.insert(at, LaneQueue { lane, permit: None, queue, fetch: Fetch::None, fetched: (0, 0) });
                at
            }
        };
        &mut self.lanes[at].queue
    }

    /// Appends a response to its lane. If too many responses of the loop have files open, it becomes a 503: a client
    /// could make one connection hold more descriptors than the server has for all.
    pub fn put(&mut self, lane: Lane, mut reply: Reply<OpenFile>, sender: &mut Sender, wall: &WallClock) {
        let has_file = matches!(&reply.body, Body::Content(content, _) | Body::Parts(content, ..)
            if matches!(content.store, Stored::File(_)));
        let permit = if has_file { sender.files.take() } else { None };
        if has_file && permit.is_none() {
            let (head, body) = reply::bad_head(Status::SERVICE_UNAVAILABLE, BUSY, false);
            reply.record.set(Status::SERVICE_UNAVAILABLE, reply.record.outcome);
            body.note_in(&mut reply.record);
            (reply.head, reply.body) = (head, body);
        }
        let style = sender.style();
        self.queue(lane, sender).put_stream(reply, wall, style);
        if let Some(at) = self.find(lane) {
            self.lanes[at].permit = permit;
        }
    }

    fn find(&mut self, lane: Lane) -> Option<usize> {
        self.lanes.binary_search_by_key(&lane, |queued| queued.lane).ok()
    }

    /// Drops what a lane has to send, and logs it as incomplete.
    pub fn cancel(&mut self, lane: Lane, sender: &mut Sender, log_context: &mut LogContext<'_>) {
        if let Some(at) = self.find(lane) {
            let Some(LaneQueue { mut queue, .. }) = self.lanes.remove(at) else { return };
            queue.give_up(log_context);
            sender.give_back(queue);
        }
    }

    /// Returns whether there is something that only has to be sent.
    pub fn has_unsent(&self) -> bool {
        !self.control.is_empty() || self.unsent_at < self.unsent.len()
    }

    /// Returns whether any response is incomplete.
    pub fn has_responses(&self) -> bool {
        !self.lanes.is_empty() || !self.drawn.is_empty()
    }

    /// Returns the frames that the transport has not taken.
    pub fn unsent(&self) -> &[u8] {
        &self.unsent[self.unsent_at..]
    }

    /// The transport has taken so many of them.
    pub fn note_taken(&mut self, count: usize) {
        self.unsent_at += count;
        self.sent_bytes += count as u64;
        if self.unsent_at == self.unsent.len() {
            // An idle connection keeps no buffer.
            (self.unsent, self.unsent_at) = (Vec::new(), 0);
        }
    }

    /// Moves the control frames to `out`, which is sent next.
    pub fn draw_control(&mut self, out: &mut FrameBuffer) {
        if !self.control.is_empty() {
            out.extend(&std::mem::take(&mut self.control));
        }
    }

    /// Frames were gathered, and the transport has taken this many bytes of them.
    pub fn note_sent(&mut self, gathered: &[u8], taken: usize) {
        self.drawn_bytes += gathered.len() as u64;
        self.sent_bytes += taken as u64;
        if taken < gathered.len() {
            (self.unsent, self.unsent_at) = (gathered[taken..].to_vec(), 0);
        }
    }

    /// Logs the responses of which all bytes were sent. `is_flushed`: the transport holds none back.
    pub fn log_sent(&mut self, is_flushed: bool, log_context: &mut LogContext<'_>) {
        while is_flushed && self.drawn.front().is_some_and(|(end, _)| *end <= self.sent_bytes) {
            if let Some((_, Finished { record, body_bytes })) = self.drawn.pop_front() {
                log_context.log_response(record, body_bytes, true);
            }
        }
    }

    /// Draws frames of a lane to the end of `out`, with at most this many bytes of body. `table_update`: whether the next
    /// header block must begin with the size of the dynamic table; cleared once one does.
    pub fn draw(
        &mut self,
        (lane, most): (Lane, usize),
        table_update: &mut bool,
        out: &mut FrameBuffer,
        sender: &mut Sender,
        probes: bool,
        wall: &WallClock,
    ) -> (Drawn, Option<ColdRange>) {
        let Some(at) = self.find(lane) else { return (Drawn::Waits(0), None) };
        let LaneQueue { queue, fetched, .. } = &mut self.lanes[at];
        let from = out.len();
        let probes = if probes { Probes::All { fetched: fetched.0 } } else { Probes::None };
        let (drawn, cold) = queue.draw((StreamId(lane.0), most), table_update, out, sender, probes, wall);
        match &cold {
            Some((_, range)) if range.start == fetched.1 => {}
            Some((_, range)) => *fetched = (0, range.start),
            None => fetched.0 = 0,
        }
        match drawn {
            Drawn::End(_) => {
                if let Some(LaneQueue { mut queue, .. }) = self.lanes.remove(at) {
                    let end = self.drawn_bytes + out.len() as u64;
                    self.drawn.extend(queue.take_finished().map(|finished| (end, finished)));
                    sender.give_back(queue);
                }
            }
            Drawn::Failed => out.truncate(from),
            Drawn::More(_) | Drawn::Waits(_) | Drawn::Cold(_) => {}
        }
        (drawn, cold.map(|(content, range)| (lane, content, range)))
    }

    /// A lane waits for a range of a file. Returns the range if it is to be fetched now.
    pub fn note_cold(&mut self, (lane, content, range): ColdRange, now: Time) -> Option<ColdRange> {
        let running = self.lanes.iter().filter(|queued| matches!(queued.fetch, Fetch::Runs(_))).count();
        let at = self.find(lane)?;
        if running >= FETCHES_AT_ONCE {
            self.lanes[at].fetch = Fetch::Waits(content, range);
            return None;
        }
        self.lanes[at].fetch = Fetch::Runs(now);
        Some((lane, content, range))
    }

    /// A helper has read the next data of a lane. Returns since when that was awaited, and what is to be fetched next.
    pub fn note_warm(&mut self, lane: Lane, now: Time) -> (Option<Time>, Option<ColdRange>) {
        let mut since = None;
        if let Some(at) = self.find(lane)
            && let Fetch::Runs(begun) = std::mem::replace(&mut self.lanes[at].fetch, Fetch::None)
        {
            since = Some(begun);
            let fetched = &mut self.lanes[at].fetched.0;
            *fetched = fetched.saturating_add(1);
        }
        (since, self.next_fetch(now))
    }

    /// Returns what is to be fetched next, of what waits.
    pub fn next_fetch(&mut self, now: Time) -> Option<ColdRange> {
        let waiting = self.lanes.iter_mut().find(|queued| matches!(queued.fetch, Fetch::Waits(..)))?;
        let Fetch::Waits(content, range) = std::mem::replace(&mut waiting.fetch, Fetch::Runs(now)) else {
            return None;
        };
        Some((waiting.lane, content, range))
    }

    /// Replaces the response of a lane by an error, if nothing was sent of it: the object store has failed on its first bytes. Returns
    /// whether it did.
    pub fn fail_undecided(&mut self, lane: Lane, wall: &WallClock, style: Style) -> bool {
        let Some(at) = self.find(lane) else { return false };
        let queue = &mut self.lanes[at].queue;
        let is_undecided = matches!(queue.chunks.front(), Some(Chunk::Head(_)));
        if is_undecided {
            queue.fail_stream(UNFETCHED, wall, style);
        }
        is_undecided
    }

    /// No helper is available for a lane: it is fetched later.
    pub fn note_refused(&mut self, (lane, content, range): ColdRange) {
        if let Some(at) = self.find(lane) {
            self.lanes[at].fetch = Fetch::Waits(content, range);
        }
    }

    /// Logs all responses that will not be completed.
    pub fn give_up(&mut self, log_context: &mut LogContext<'_>) {
        for (_, Finished { record, body_bytes }) in self.drawn.drain(..) {
            // Its last bytes were drawn, and not taken.
            log_context.log_response(record, body_bytes, false);
        }
        self.lanes.drain(..).for_each(|mut queued| queued.queue.give_up(log_context));
    }

    /// Returns the memory of texts beyond this much of each lane, bytes.
    pub fn texts_beyond(&self, free: usize) -> usize {
        self.lanes.iter().map(|queued| queued.queue.text_bytes().saturating_sub(free)).sum()
    }

    /// Returns the memory that it uses, bytes.
    pub fn heap_bytes(&self) -> usize {
        let lanes: usize = self.lanes.iter().map(|queued| queued.queue.heap_bytes()).sum();
        size_of::<Outbox>()
            + self.control.capacity()
            + self.unsent.capacity()
            + self.lanes.capacity() * size_of::<LaneQueue>()
            + lanes
            + self.drawn.capacity() * size_of::<(u64, Finished)>()
    }
}

/// The frames of a body.
struct DrawnBody {
    /// Bytes of body.
    count: usize,
    /// Where the last frame begins, and its length without its head.
    last: Option<(usize, usize)>,
    /// Why there are not more.
    failure: Option<FileRead>,
}

/// A read of a file's next bytes into frames.
enum FileRead {
    /// So many bytes; where the last frame begins, and its length without its head.
    Frames {
        count: usize,
        last: (usize, usize),
    },
    Cold(Arc<Content<OpenFile>>, Range<u64>),
    /// The file has changed.
    Changed,
    /// The disk, or the object store, failed.
    Unread(Unsendable),
}

impl SendQueue {
    /// Appends the response of a stream.
    pub fn put_stream(&mut self, reply: Reply<OpenFile>, wall: &WallClock, style: Style) {
        let Reply { head, connection: _, hsts, body, mut record } = reply;
        let start = self.text.len();
        head.get().h2_block().write(&mut self.text, &style.date(wall), hsts.as_deref());
        self.chunks.push_back(Chunk::Head(self.text.len() - start));
        // Only the body counts as sent, so nothing is subtracted.
        record.head_bytes = 0;
        let is_open = matches!(body, Body::Open);
        self.put_body(self.text.len(), body);
        match is_open {
            true => self.open = Some(record),
            false => self.chunks.push_back(Chunk::End(record)),
        }
    }

    /// Turns the front of the queue into frames at the end of `out`, with at most this many bytes of body.
    fn draw(
        &mut self,
        (stream, most): (StreamId, usize),
        table_update: &mut bool,
        out: &mut FrameBuffer,
        sender: &mut Sender,
        probes: Probes,
        wall: &WallClock,
    ) -> (Drawn, Option<Cold>) {
        let from = out.len();
        let has_head = matches!(self.chunks.front(), Some(Chunk::Head(_)));
        if let Some(Chunk::Head(length)) = self.chunks.front() {
            let is_whole = matches!(self.chunks.get(1), Some(Chunk::End(_)));
            let block = &self.text[self.text_at..self.text_at + length];
            out.extend_by_headers(stream, (block, *table_update), is_whole);
            if is_whole {
                *table_update = false;
                return (Drawn::End(0), None);
            }
        }
        let DrawnBody { count, last, failure } =
            self.draw_body(usize::from(has_head), (stream, most), out, sender, probes);
        match failure {
            // Nothing was sent of it, so it can be replaced.
            Some(FileRead::Unread(why)) if has_head && count == 0 => {
                out.truncate(from);
                self.fail_stream(why, wall, sender.style);
                return (Drawn::More(0), None);
            }
            Some(FileRead::Changed | FileRead::Unread(_)) => return (Drawn::Failed, None),
            // The head waits for the first bytes of the body.
            Some(FileRead::Cold(content, range)) if count == 0 => {
                out.truncate(from);
                return (Drawn::Cold(0), Some((content, range)));
            }
            _ => {}
        }
        if has_head {
            self.pop_head();
            *table_update = false;
        }
        let is_end = matches!(self.chunks.front(), Some(Chunk::End(_)));
        match last {
            Some((at, length)) if is_end => out.put_data_head(at, length, stream, true),
            None if is_end => out.extend(&frame::data_head(0, stream, true)),
            _ => {}
        }
        self.reply_sent += count as u64;
        match failure {
            Some(FileRead::Cold(content, range)) => (Drawn::Cold(count), Some((content, range))),
            _ if is_end => (Drawn::End(count), None),
            _ if self.chunks.is_empty() => {
                // A stream that waits for its application holds no memory.
                (self.text, self.text_at) = (Vec::new(), 0);
                (Drawn::Waits(count), None)
            }
            _ => (Drawn::More(count), None),
        }
    }

    fn pop_head(&mut self) {
        if let Some(Chunk::Head(length)) = self.chunks.pop_front() {
            self.text_at += length;
        }
    }

    /// Appends frames with at most this many bytes of body. `at`: the position of its first chunk.
    fn draw_body(
        &mut self,
        at: usize,
        (stream, most): (StreamId, usize),
        out: &mut FrameBuffer,
        sender: &mut Sender,
        probes: Probes,
    ) -> DrawnBody {
        // The text of a head that is still in the queue precedes that of the body.
        let skipped = if let (1, Some(Chunk::Head(length))) = (at, self.chunks.front()) { *length } else { 0 };
        self.text_at += skipped;
        let mut drawn = DrawnBody { count: 0, last: None, failure: None };
        while drawn.count < most {
            let room = most - drawn.count;
            match self.chunks.get_mut(at) {
                None | Some(Chunk::End(_) | Chunk::Head(_) | Chunk::Interim(_)) => break,
                Some(Chunk::File(content, range)) => {
                    match sender.read_frames((stream, out), content, range, room, probes) {
                        FileRead::Frames { count, last } => {
                            range.start += count as u64;
                            drawn.count += count;
                            drawn.last = Some(last);
                            if range.start == range.end {
                                self.chunks.remove(at);
                            }
                        }
                        other => {
                            drawn.failure = Some(other);
                            break;
                        }
                    }
                }
                Some(_) => {
                    let head_at = out.len();
                    out.extend(&[0; HEAD_BYTES]);
                    let count = self.draw_memory(at, room.min(FRAME_BYTES), out);
                    out.put_data_head(head_at, count, stream, false);
                    drawn.count += count;
                    drawn.last = Some((head_at, count));
                }
            }
        }
        self.text_at -= skipped;
        drawn
    }

    /// Appends at most this many bytes of body that are in memory, from the chunks at `at`.
    fn draw_memory(&mut self, at: usize, most: usize, out: &mut FrameBuffer) -> usize {
        let mut count = 0;
        while count < most {
            let room = most - count;
            let (taken, is_used_up) = match self.chunks.get_mut(at) {
                Some(Chunk::Text(length)) => {
                    let taken = room.min(*length);
                    out.extend(&self.text[self.text_at..self.text_at + taken]);
                    *length -= taken;
                    self.text_at += taken;
                    (taken, *length == 0)
                }
                Some(Chunk::Memory(content, range)) => {
                    let taken = room.min(range.len());
                    if let Stored::Memory(bytes) = &content.store {
                        out.extend(&bytes[range.start..range.start + taken]);
                    }
                    range.start += taken;
                    (taken, range.start == range.end)
                }
                Some(Chunk::Shared(text, range)) => {
                    let taken = room.min(range.len());
                    out.extend(&text[range.start..range.start + taken]);
                    range.start += taken;
                    (taken, range.start == range.end)
                }
                _ => break,
            };
            count += taken;
            if is_used_up {
                self.chunks.remove(at);
            }
        }
        count
    }

    /// Replaces the response, of which nothing was sent, by an error: the disk has failed on its first bytes.
    fn fail_stream(&mut self, (status, why): Unsendable, wall: &WallClock, style: Style) {
        let record = self.chunks.drain(..).find_map(|chunk| match chunk {
            Chunk::End(record) => Some(record),
            _ => None,
        });
        self.text.clear();
        self.text_at = 0;
        let (head, body) = reply::bad_head::<OpenFile>(status, why, false);
        head.get().h2_block().write(&mut self.text, &style.date(wall), None);
        self.chunks.push_back(Chunk::Head(self.text.len()));
        if let Some(mut record) = record {
            record.set(status, record.outcome);
            body.note_in(&mut record);
            self.put_body(self.text.len(), body);
            self.chunks.push_back(Chunk::End(record));
        }
    }

    /// Takes the record of the response whose end was drawn.
    fn take_finished(&mut self) -> Option<Finished> {
        let body_bytes = std::mem::take(&mut self.reply_sent);
        let record = self.chunks.drain(..).find_map(|chunk| match chunk {
            Chunk::End(record) => Some(record),
            _ => None,
        });
        if self.text.capacity() > SPARE_TEXT_MAX {
            // One of another lane, which may wait with it.
            self.text = Vec::new();
        }
        self.text.clear();
        self.text_at = 0;
        record.map(|record| Finished { record, body_bytes })
    }
}

impl Sender {
    /// Reads the next bytes of a file into frames at the end of `out`.
    fn read_frames(
        &mut self,
        (stream, out): (StreamId, &mut FrameBuffer),
        content: &Arc<Content<OpenFile>>,
        range: &Range<u64>,
        most: usize,
        probes: Probes,
    ) -> FileRead {
        let Stored::File(file) = &content.store else { return FileRead::Changed };
        let version = &content.version;
        // Windows are probed, and may be missing, each for itself.
        let number = range.start / super::WINDOW;
        let window_end = range.end.min((number + 1) * super::WINDOW);
        let length = (window_end - range.start).min(most.min(FRAMES_A_READ * FRAME_BYTES) as u64) as usize;
        let frames = length.div_ceil(FRAME_BYTES);
        let probe = matches!(probes, Probes::All { fetched: ..FETCHES_MAX });
        let patience = if probe { Patience::Now } else { Patience::Wait };
        self.look_ahead(content, range);
        match self.missing(file, version, range.start, probes) {
            Some(Missing::Awaited) => return FileRead::Cold(Arc::clone(content), range.start..window_end),
            Some(Missing::Failed) => return FileRead::Unread(UNFETCHED),
            None => {}
        }
        let map = || self.mapped.get(file, version, number);
        // Each frame has a place for its head.
        let mut places = out.room(length + frames * HEAD_BYTES).chunks_mut(HEAD_BYTES + FRAME_BYTES);
        let mut pieces = [(); FRAMES_A_READ]
            .map(|()| IoSliceMut::new(places.next().map_or(&mut [], |place| &mut place[HEAD_BYTES..])));
        let read = self.residency.read_pieces(file, version, (&mut pieces[..frames], range.start), patience, map);
        let count = match read {
            Ok(0) => return FileRead::Changed,
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                return FileRead::Cold(Arc::clone(content), range.start..window_end);
            }
            Err(_) => return FileRead::Unread(UNREAD),
        };
        // Checked after reading: the bytes in the buffer are those of this version.
        if !matches!(file.still_has_bytes_of(version), Ok(true)) {
            return FileRead::Changed;
        }
        let mut last = (out.len(), 0);
        for from in (0..count).step_by(FRAME_BYTES) {
            last = (out.len(), FRAME_BYTES.min(count - from));
            out.advance(HEAD_BYTES + last.1);
            out.put_data_head(last.0, last.1, stream, false);
        }
        FileRead::Frames { count, last }
    }
}
