//! HTTP/2 on one connection, from its preface to its close (RFC 9113).
//!
//! Takes the place of `http1` (stop 3): bytes become frames, and each stream is an [`Exchange`], so that a request that
//! has to wait delays no other. Whole responses go out as actions, each for the lane of its stream; the sender asks
//! [`next_lane`](Session::next_lane) which of them sends next, and tells what it has [drawn](Session::drew) from it.
//!
//! `stream` is one stream, `schedule` chooses among them, and `budget` limits what a client may cause without asking for
//! anything; this file holds the rules of the connection itself.

mod budget;
mod schedule;
mod stream;

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::mem;
use core::time::Duration;

use amped_http::h1::request::Request;
use amped_http::h2::fields::FieldList;
use amped_http::h2::frame::{self, ErrorCode, FRAME_BYTES, Frame, FrameError, PREFACE, StreamId, setting};
use amped_http::h2::head::{self, FlatHead};
use amped_http::h2::hpack::Decoder;
use amped_http::priority::Priority;
use amped_http::status::Status;
use amped_units::Time;

use self::budget::{Budget, CONTROL, RESET};
use self::schedule::SendState;
use self::stream::{Common, ResponseState, Side, Stream, Wire};
use crate::client;
use crate::event::{Action, Event, Lane, Ticket};
use crate::exchange::{Context, Exchange, Incoming, Progress};
use crate::file::FileHandle;
use crate::limits::Limits;
use crate::pace::SendCredit;
use crate::record::{Outcome, Record};
use crate::reply::{self, Response};
use crate::shared_state::SharedState;

/// Bytes of body that a client may send before the first is consumed, on a stream.
const STREAM_WINDOW: i64 = 256 * 1024;

/// The same on all streams of the connection together.
const CONNECTION_WINDOW: i64 = 1024 * 1024;

/// The initial window of RFC 9113, 6.9.2.
const INITIAL_WINDOW: i64 = 65_535;

/// The largest window (RFC 9113, 6.9.1).
const WINDOW_MAX: i64 = frame::WINDOW_MAX as i64;

/// Maximum bytes of a compressed header block.
const BLOCK_MAX: usize = 64 * 1024;

/// Maximum CONTINUATION frames of a header block; the block fits into a quarter of them.
const CONTINUATIONS_MAX: u8 = 16;

/// Maximum bytes of frames other than responses that wait to be sent. With more, nothing is read from the client.
const CONTROL_MAX: usize = 4096;

/// Maximum lookups of one connection in progress; further ones wait, so that its cold files are not everybody's queue.
const LOOKUPS_MAX: usize = 16;

/// Maximum bytes of heads of requests in progress on a connection: HPACK lets a client fill each of its streams with a head of 32 KiB
/// that takes a few bytes to send (RFC 7541, 7.3). Further large ones are refused, and may be sent again.
const HEADS_MAX: usize = 768 * 1024;

/// Heads below this length, in bytes, are not refused: the number of streams limits them.
const LARGE_HEAD: usize = 2048;

/// Maximum streams reset by this side, or not accepted, whose late frames are ignored (RFC 9113, 5.1 and 6.8).
const RESETS_KEPT: usize = 1024;

/// Time for the client to acknowledge our settings.
const SETTINGS_TIMEOUT: Duration = Duration::from_secs(10);

/// Bytes of a frame that restore what a small window update costs.
const WORTHWHILE: usize = 256;

/// The size of the dynamic table that the client may have before it says otherwise (RFC 7541, 4.2).
const TABLE_BYTES: u32 = 4096;

/// Silence after which the client of an open stream is asked whether it is there, and time for its answer.
const PING_AFTER: Duration = Duration::from_secs(30);
const PING_TIMEOUT: Duration = Duration::from_secs(15);

/// Time between the announcement that no streams are accepted any more and its last stream: a round trip.
const LAST_STREAM_AFTER: Duration = Duration::from_secs(1);

/// Time to read from a client after the connection was closed for an error.
const LINGER: Duration = Duration::from_secs(1);

/// The data of our PING frames: of one that asks whether the client is there, and of one after an announcement.
const PING_DATA: [u8; 8] = *b"presence";
const ANNOUNCEMENT: [u8; 8] = *b"the end ";

/// A connection.
#[derive(Debug)]
pub struct Session {
    secure: bool,
    state: State,
    /// Bytes of an incomplete frame.
    pending: Vec<u8>,
    decoder: Decoder,
    /// A header block whose end has not arrived.
    block: Option<Box<Block>>,
    /// In the order of their numbers. Most end in that order too.
    streams: VecDeque<Stream>,
    /// Whether none of them has had another priority than the default.
    is_uniform: bool,
    common: Common,
    /// Lookups in progress.
    lookups: Vec<Ticket>,
    /// The highest stream that the client has opened, and the highest one that was accepted.
    last_stream: StreamId,
    last_accepted: StreamId,
    /// Streams that were reset lately by this side.
    resets: VecDeque<StreamId>,
    /// Priorities of streams that the client has not opened yet; with the open ones at most as many as it may have.
    priorities: Vec<(StreamId, Priority)>,
    /// Bytes of bodies that the client accepts, and the initial window of a stream.
    send_window: i64,
    initial_window: i64,
    /// Bytes of bodies that were sent.
    drawn: u64,
    /// Bytes of bodies that the client may send, and consumed ones that it has not been told of.
    receive_window: i64,
    consumed: u32,
    /// Whether an incremental stream is preferred the next time.
    alternate: bool,
    budget: Budget,
    /// Bytes of control frames that are not sent yet.
    control: usize,
    /// Whether any output is unsent, and whether the socket was full when output was last sent.
    unsent: bool,
    was_full: bool,
    requests: usize,
    /// When output was last sent, or the last stream ended.
    since: Time,
    /// The time left to the client to receive, and since when it runs down; [`Time::NEVER`]: nothing is unsent.
    credit: SendCredit,
    credit_since: Time,
    /// When the client was last heard of.
    heard: Time,
    /// When the first byte of the frame in `pending` arrived, or the connection began.
    partial_since: Time,
    /// When our settings were sent, until they are acknowledged.
    settings_sent: Time,
    /// When a PING was sent that has not been answered.
    ping_sent: Time,
}

/// The state of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// The client's preface has not arrived, or its first frame, which must be SETTINGS.
    Preface,
    FirstSettings,
    Open,
    /// GOAWAY was sent; its last stream follows at this time.
    Announced(Time),
    /// No more streams are accepted; the connection closes after the last one.
    Finishing,
    /// The last frame has been queued.
    Closing,
    /// Our side is closed, until this time; further input is dropped.
    Lingering(Time),
    Closed,
}

/// A header block that arrives in several frames.
#[derive(Debug)]
struct Block {
    stream: StreamId,
    bytes: Vec<u8>,
    end_stream: bool,
    depends_on_itself: bool,
    continuations: u8,
    began: Time,
}

/// An error of the whole connection (RFC 9113, 5.4.1).
struct Fatal(ErrorCode, &'static str);

/// What the sender has drawn from a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Drawn {
    /// So many bytes of its body; more follow at once.
    More(usize),
    /// So many bytes of its body, and there is nothing more yet.
    Waits(usize),
    /// So many bytes of its body, after which the next are not in memory.
    Cold(usize),
    /// So many bytes of its body, and the end of the response.
    End(usize),
    /// Its response cannot be completed.
    Failed,
}

impl Session {
    /// A connection that begins at `now`, before its preface. `secure`: its transport is encrypted (TLS).
    pub fn new<F>(now: Time, secure: bool, limits: &Limits, actions: &mut Vec<Action<F>>) -> Session {
        let mut session = Session {
            secure,
            state: State::Preface,
            pending: Vec::new(),
            decoder: Decoder::new(),
            block: None,
            streams: VecDeque::new(),
            is_uniform: true,
            common: Common::default(),
            lookups: Vec::new(),
            last_stream: StreamId(0),
            last_accepted: StreamId(0),
            resets: VecDeque::new(),
            priorities: Vec::new(),
            send_window: INITIAL_WINDOW,
            drawn: 0,
            initial_window: INITIAL_WINDOW,
            receive_window: CONNECTION_WINDOW,
            consumed: 0,
            alternate: false,
            budget: Budget::new(now, limits.max_concurrent_streams),
            control: 0,
            unsent: false,
            was_full: false,
            requests: 0,
            since: now,
            credit: SendCredit::full(limits),
            credit_since: Time::NEVER,
            heard: now,
            partial_since: now,
            settings_sent: now,
            ping_sent: Time::NEVER,
        };
        let settings = [
            (setting::MAX_CONCURRENT_STREAMS, clamp(limits.max_concurrent_streams)),
            (setting::INITIAL_WINDOW_SIZE, STREAM_WINDOW as u32),
            (setting::MAX_HEADER_LIST_SIZE, clamp(list_max(limits))),
            (setting::ENABLE_CONNECT_PROTOCOL, 1),
            (setting::NO_RFC7540_PRIORITIES, 1),
        ];
        session.queue_control(actions, |out| {
            frame::settings(out, &settings);
            frame::window_update(out, StreamId::CONNECTION, (CONNECTION_WINDOW - INITIAL_WINDOW) as u32);
        });
        session
    }

    /// Handles an event that occurred at `now`, and appends the resulting actions to `actions`.
    pub fn handle<F: FileHandle>(
        &mut self,
        now: Time,
        event: Event<'_, F>,
        shared: &mut SharedState<F>,
        actions: &mut Vec<Action<F>>,
    ) {
        let cx = &mut Context { now, shared, actions };
        if self.common.paces {
            self.permit_paced(now);
        }
        match event {
            Event::Bytes(bytes) => self.take_bytes(cx, bytes),
            // The first bytes have decided that there is TLS.
            Event::NotTls(_) => self.close(cx),
            Event::Ended => self.take_leave(cx),
            Event::Disk(ticket, answer) => {
                self.lookups.retain(|&lookup| lookup != ticket);
                if let Some(at) = self.waiting(ticket) {
                    self.advance(cx, at, |exchange, cx, wire| exchange.take_answer(cx, answer, wire));
                }
                self.ask_deferred(cx);
            }
            Event::Late(ticket, delay) => {
                if let Some(at) = self.waiting(ticket) {
                    self.advance(cx, at, |exchange, cx, wire| exchange.take_delay(cx, delay, wire));
                }
                if !self.waits_for(ticket) {
                    // It was answered from a stale entry: the lookup is withdrawn.
                    self.lookups.retain(|&lookup| lookup != ticket);
                    self.ask_deferred(cx);
                }
            }
            Event::App(ticket, output) => {
                let is_its = |exchange: &Exchange| exchange.has_app_ticket(ticket);
                if let Some(at) = self.find(is_its) {
                    self.advance(cx, at, |exchange, cx, wire| exchange.take_output(cx, (ticket, output), wire));
                }
            }
            Event::Sent { all } => {
                self.since = now;
                // A full socket takes more only after its client has received some.
                if mem::replace(&mut self.was_full, !all) {
                    self.note_heard(now);
                }
                self.unsent = !all;
                if all {
                    (self.control, self.common.interim_bytes) = (0, 0);
                    self.all_sent(cx);
                }
            }
            Event::Received { bytes } => self.take_received(cx, bytes),
            Event::Resumed => {}
            Event::Deadline => self.take_deadline(cx),
            // No request was sent, or one is on its way.
            Event::Finish if self.requests == 0 && self.is_idle() => self.close(cx),
            Event::Finish | Event::Retire => self.announce_end(cx),
            // `settle` does it, also later for connections without a request so far.
            Event::Drain => {}
        }
        self.settle(cx);
    }

    /// When [`Event::Deadline`] is due; [`Time::NEVER`] while the server must act, not the client.
    pub fn next_due(&self, limits: &Limits) -> Time {
        let mut due = match self.state {
            State::Closed => return Time::NEVER,
            State::Lingering(until) => return until,
            State::Closing => return self.credit_due(),
            State::Announced(until) => until,
            State::Preface | State::FirstSettings | State::Open | State::Finishing => Time::NEVER,
        };
        due = due.min(self.credit_due());
        due = due.min(self.settings_due(limits)).min(self.partial_due(limits));
        if self.streams.is_empty() {
            return due.min(self.since.max(self.heard) + limits.idle_timeout);
        }
        let window = (self.send_window, self.drawn);
        let streams = self.streams.iter().map(|stream| stream.due(window, limits)).min().unwrap_or(Time::NEVER);
        let paced = if self.common.paces { self.paced_due() } else { Time::NEVER };
        due.min(streams).min(self.ping_due()).min(paced)
    }

    /// When a client that has received nothing more is given up.
    fn credit_due(&self) -> Time {
        if self.credit_since == Time::NEVER { Time::NEVER } else { self.credit_since + self.credit.left() }
    }

    /// Whether it has received too little, of what was sent too.
    pub fn is_slow(&self, now: Time) -> bool {
        let from = if self.credit_since == Time::NEVER { self.since } else { self.credit_since };
        now >= from + self.credit.left()
    }

    /// The client has received so much. If all was sent before, but is still on its way, the connection is not idle yet.
    fn take_received<F>(&mut self, cx: &Context<'_, F>, bytes: u64) {
        self.note_heard(cx.now);
        // A client cannot receive more than bandwidths permit.
        let bytes = if self.common.paces { u64::MAX } else { bytes };
        let from = if self.credit_since == Time::NEVER { self.since } else { self.credit_since };
        self.credit = self.credit.after(cx.now.since(from), bytes, &cx.shared.limits);
        if self.credit_since != Time::NEVER {
            self.credit_since = cx.now;
        } else if !self.credit.left().is_zero() {
            self.since = cx.now;
            if let State::Lingering(until) = &mut self.state {
                *until = cx.now + LINGER;
            }
        }
    }

    /// When the bandwidth of a stream permits more.
    fn paced_due(&self) -> Time {
        self.streams.iter().map(|stream| stream.side.paced_due()).min().unwrap_or(Time::NEVER)
    }

    /// Streams whose bandwidth permits more send again.
    fn permit_paced(&mut self, now: Time) {
        for Stream { side, .. } in &mut self.streams {
            if now >= side.paced_due() {
                side.pace(0, now);
                // Those that wait for the connection's bandwidth wait for each other, and share it by what each has sent.
                if side.connection_due().is_none() {
                    side.slot.join(self.common.virtual_time);
                }
                self.unsent = true;
            }
        }
    }

    /// When our settings must be acknowledged.
    fn settings_due(&self, limits: &Limits) -> Time {
        // Never, once they are.
        self.settings_sent + SETTINGS_TIMEOUT.max(limits.header_timeout)
    }

    /// When a header block, a frame, or the first request must be complete.
    fn partial_due(&self, limits: &Limits) -> Time {
        if let Some(block) = &self.block {
            return block.began + limits.header_timeout;
        }
        if self.requests == 0 {
            return self.partial_since + limits.header_timeout;
        }
        // A frame of a body may arrive at the lowest rate.
        let slowest = (FRAME_BYTES as u64).checked_div(limits.min_body_rate.0).unwrap_or(u64::MAX);
        let time = limits.header_timeout.max(limits.body_timeout).max(Duration::from_secs(slowest.saturating_mul(2)));
        if self.pending.is_empty() { Time::NEVER } else { self.partial_since + time }
    }

    /// When the client is asked whether it is there, or has not said so.
    fn ping_due(&self) -> Time {
        if self.ping_sent == Time::NEVER { self.heard + PING_AFTER } else { self.ping_sent + PING_TIMEOUT }
    }

    /// Whether to read from the client now.
    pub fn wants_bytes(&self) -> bool {
        self.control <= CONTROL_MAX && !matches!(self.state, State::Closed)
    }

    /// Whether no stream is open, so that it could be closed without loss.
    pub fn is_idle(&self) -> bool {
        self.streams.is_empty() && !self.unsent && self.block.is_none() && self.pending.is_empty()
    }

    /// Whether it may be closed to make room for another: it is idle, and has had its first request.
    pub fn may_give_way(&self, now: Time) -> bool {
        self.is_idle() && (self.requests > 0 || now.since(self.since) >= SETTINGS_TIMEOUT)
    }

    /// Whether it still needs the result with this ticket.
    pub fn waits_for(&self, ticket: Ticket) -> bool {
        self.waiting(ticket).is_some()
    }

    /// Whether it accepts output of the application request with this ticket now.
    pub fn wants_output(&self, ticket: Ticket) -> bool {
        self.streams.iter().any(|stream| {
            let is_its = |exchange: &Exchange| {
                exchange.has_app_ticket(ticket)
                    && (stream.side.slot.state == SendState::Empty || exchange.reads_ahead())
            };
            stream.exchange.as_deref().is_some_and(is_its)
        })
    }

    /// Bytes of output of the application request with this ticket that its client and its bandwidth permit now. A head and
    /// an end need none.
    pub fn output_window(&self, ticket: Ticket) -> usize {
        let Some(at) = self.find(|exchange| exchange.has_app_ticket(ticket)) else { return 0 };
        self.streams[at].side.slot.room(self.send_window, usize::MAX / FRAME_BYTES)
    }

    /// Streams that are open.
    pub fn streams(&self) -> usize {
        self.streams.len()
    }

    /// Heap memory in bytes, including the struct itself.
    pub fn heap_bytes(&self) -> usize {
        let stream = |stream: &Stream| {
            let exchange = stream.exchange.as_ref().map_or(0, |exchange| size_of::<Exchange>() + exchange.heap_bytes());
            exchange + stream.side.body.capacity()
        };
        let block = self.block.as_ref().map_or(0, |block| size_of::<Block>() + block.bytes.capacity());
        size_of::<Session>()
            + self.pending.capacity()
            + self.decoder.heap_bytes()
            + block
            + self.streams.capacity() * size_of::<Stream>()
            + self.streams.iter().map(stream).sum::<usize>()
            + self.lookups.capacity() * size_of::<Ticket>()
            + self.resets.capacity() * size_of::<StreamId>()
            + self.priorities.capacity() * size_of::<(StreamId, Priority)>()
    }
}

/// What the sender asks.
impl Session {
    /// The lane that sends next, and the most bytes of body in its next frames.
    pub fn next_lane(&self) -> Option<(Lane, usize)> {
        let slots = self.streams.iter().map(|stream| &stream.side.slot);
        let (at, most) = schedule::next(slots, self.send_window, self.alternate, self.is_uniform)?;
        Some((self.streams[at].side.lane(), most))
    }

    /// The sender has drawn this from a lane, and will send it.
    pub fn drew<F>(&mut self, now: Time, lane: Lane, drawn: Drawn, actions: &mut Vec<Action<F>>) {
        let Some(at) = self.position(StreamId(lane.0)) else { return };
        let side = &mut self.streams[at].side;
        let (count, state) = match drawn {
            Drawn::More(count) => (count, SendState::Body),
            Drawn::Waits(count) | Drawn::End(count) => (count, SendState::Empty),
            Drawn::Cold(count) => (count, SendState::Cold),
            Drawn::Failed => (0, SendState::Empty),
        };
        side.since = now;
        side.slot.state = state;
        if side.slot.priority.incremental {
            self.common.virtual_time = side.slot.sent;
        }
        side.slot.window -= count as i64;
        side.slot.sent += count as u64;
        side.uncredited += count as u64;
        self.drawn += count as u64;
        side.pace(count as u64, now);
        if let Some(due) = side.connection_due() {
            self.common.connection_due = due;
            self.streams.iter_mut().for_each(|stream| stream.side.share(due, now));
        }
        let was_open = self.send_window > 0;
        self.send_window -= count as i64;
        if was_open && self.send_window <= 0 {
            self.streams.iter_mut().for_each(|stream| stream.side.blocked_since = now);
        } else if self.streams[at].side.slot.window <= 0 {
            self.streams[at].side.blocked_since = now;
        }
        if self.streams[at].side.is_tunnel {
            // Messages are small, and its client may update two windows for each.
            self.budget.note_message();
        } else if count >= WORTHWHILE {
            self.budget.note_data();
        }
        self.alternate = !self.alternate;
        match drawn {
            Drawn::Failed => self.reset(now, at, ErrorCode::INTERNAL_ERROR, actions),
            Drawn::End(_) => {
                self.budget.note_response();
                self.streams[at].side.is_sent = true;
                self.end_sent(now, at, actions);
            }
            Drawn::More(_) | Drawn::Waits(_) | Drawn::Cold(_) => {}
        }
    }

    /// All control frames so far were passed to the transport.
    pub fn control_sent(&mut self) {
        (self.control, self.common.interim_bytes) = (0, 0);
    }

    /// The sender has written the size of the dynamic table.
    pub fn table_update_sent(&mut self) {
        self.common.owes_table_update = false;
    }

    /// Whether the next header block must begin with the size of the dynamic table, which the client has reduced.
    pub fn owes_table_update(&self) -> bool {
        self.common.owes_table_update
    }

    /// The next bytes of a lane are in memory now, as far as possible.
    pub fn warmed(&mut self, now: Time, lane: Lane) {
        if let Some(at) = self.position(StreamId(lane.0)) {
            let side = &mut self.streams[at].side;
            side.since = now;
            if side.slot.state == SendState::Cold {
                side.slot.state = SendState::Body;
                side.slot.join(self.common.virtual_time);
            }
        }
    }

    /// Removes a stream whose response has been sent, unless its application has not ended. If its request is not
    /// complete, the client need not send the rest (RFC 9113, 8.1).
    fn end_sent<F>(&mut self, now: Time, at: usize, actions: &mut Vec<Action<F>>) {
        if self.streams[at].exchange.is_some() {
            return;
        }
        let Some(Stream { side, .. }) = self.streams.remove(at) else { return };
        self.since = now;
        self.consumed += clamp(side.body.len());
        if !side.client_ended {
            self.note_reset(side.id);
            self.queue_control(actions, |out| frame::reset(out, side.id, ErrorCode::NO_ERROR));
        }
    }

    /// Queues the control frames that `write` appends.
    fn queue_control<F>(&mut self, actions: &mut Vec<Action<F>>, write: impl FnOnce(&mut Vec<u8>)) {
        let mut bytes = Vec::new();
        write(&mut bytes);
        self.control += bytes.len();
        self.unsent = true;
        actions.push(Action::Control(bytes));
    }
}

impl Stream {
    /// When it times out. A stream that waits only for its turn does not; its connection has a timeout of its own.
    fn due(&self, (connection_window, total): (i64, u64), limits: &Limits) -> Time {
        let since = self.side.since;
        let exchange = match &self.exchange {
            Some(_) if self.deferred.is_some() => since + limits.disk_timeout,
            Some(exchange) if self.side.slot.state == SendState::Empty => exchange.due(since, limits),
            Some(exchange) => exchange.body_due(),
            None => Time::NEVER,
        };
        let sending = match self.side.slot.state {
            SendState::Empty | SendState::Unlimited => Time::NEVER,
            SendState::Body if self.side.slot.window.min(connection_window) <= 0 => {
                self.side.blocked_since + self.side.credit(total, limits).left()
            }
            SendState::Body => Time::NEVER,
            SendState::Cold => since + limits.disk_timeout,
        };
        exchange.min(sending)
    }
}

/// Frames.
impl Session {
    fn take_bytes<F: FileHandle>(&mut self, cx: &mut Context<'_, F>, bytes: &[u8]) {
        self.note_heard(cx.now);
        if matches!(self.state, State::Closing | State::Lingering(_) | State::Closed) {
            return;
        }
        let mut pending = mem::take(&mut self.pending);
        if pending.is_empty() {
            let used = self.consume(cx, bytes);
            pending.extend_from_slice(&bytes[used..]);
            self.partial_since = if self.requests > 0 { cx.now } else { self.partial_since };
        } else {
            pending.extend_from_slice(bytes);
            let used = self.consume(cx, &pending);
            pending.drain(..used);
            self.partial_since = if used > 0 && self.requests > 0 { cx.now } else { self.partial_since };
        }
        if !matches!(self.state, State::Closing | State::Closed) && !pending.is_empty() {
            self.pending = pending;
        }
    }

    /// Handles the complete frames at the start of `bytes`. Returns the number of bytes consumed.
    fn consume<F: FileHandle>(&mut self, cx: &mut Context<'_, F>, bytes: &[u8]) -> usize {
        let mut at = 0;
        if self.state == State::Preface {
            let length = bytes.len().min(PREFACE.len());
            if bytes[..length] != PREFACE[..length] {
                self.fail(cx, Fatal(ErrorCode::PROTOCOL_ERROR, "the connection does not begin with the preface"));
                return bytes.len();
            }
            if length < PREFACE.len() {
                return 0;
            }
            (self.state, at) = (State::FirstSettings, length);
        }
        loop {
            let result = match frame::parse(&bytes[at..]) {
                Ok(None) => return at,
                Ok(Some((frame, length))) => {
                    at += length;
                    self.take_frame(cx, frame)
                }
                Err(FrameError { code, stream: None, why, .. }) => Err(Fatal(code, why)),
                Err(FrameError { code, why, .. }) if self.block.is_some() || self.state == State::FirstSettings => {
                    Err(Fatal(code, why))
                }
                Err(FrameError { code, stream: Some(stream), length, .. }) => {
                    at += length;
                    self.take_stream_error(cx, stream, code)
                }
            };
            if let Err(fatal) = result {
                self.fail(cx, fatal);
                return bytes.len();
            }
        }
    }

    fn take_frame<F: FileHandle>(&mut self, cx: &mut Context<'_, F>, frame: Frame<'_>) -> Result<(), Fatal> {
        if self.state == State::FirstSettings {
            if !matches!(frame, Frame::Settings(_)) {
                return Err(Fatal(ErrorCode::PROTOCOL_ERROR, "the first frame must be SETTINGS"));
            }
            self.state = State::Open;
            cx.shared.counts.http2.connections += 1;
        }
        if let Some(block) = &self.block
            && !matches!(frame, Frame::Continuation { stream, .. } if stream == block.stream)
        {
            return Err(Fatal(ErrorCode::PROTOCOL_ERROR, "a header block is interrupted by another frame"));
        }
        match frame {
            Frame::Data { stream, data, flow_bytes, end_stream } => {
                self.take_data(cx, stream, (data, flow_bytes), end_stream)
            }
            Frame::Headers { stream, block, end_stream, end_headers, depends_on } => {
                let depends_on_itself = depends_on == Some(stream);
                if stream.0.is_multiple_of(2) {
                    return Err(Fatal(ErrorCode::PROTOCOL_ERROR, "a client's streams have odd numbers"));
                }
                let began = cx.now;
                let head = Block { stream, bytes: Vec::new(), end_stream, depends_on_itself, continuations: 0, began };
                if end_headers {
                    return self.take_block(cx, &head, block);
                }
                self.block = Some(Box::new(Block { bytes: block.to_vec(), ..head }));
                Ok(())
            }
            Frame::Continuation { block, end_headers, .. } => self.take_continuation(cx, block, end_headers),
            Frame::Priority { stream, depends_on } => {
                self.spend(cx, CONTROL)?;
                if depends_on == stream {
                    return self.take_stream_error(cx, stream, ErrorCode::PROTOCOL_ERROR);
                }
                Ok(())
            }
            Frame::Reset { stream, .. } => self.take_reset(cx, stream),
            Frame::Settings(settings) => {
                self.spend(cx, budget::of_settings(settings.len()))?;
                for (id, value) in settings {
                    self.take_setting(cx, id, value)?;
                }
                self.queue_control(cx.actions, frame::settings_ack);
                Ok(())
            }
            Frame::SettingsAck => {
                self.settings_sent = Time::NEVER;
                Ok(())
            }
            Frame::PushPromise => Err(Fatal(ErrorCode::PROTOCOL_ERROR, "a client must not push")),
            Frame::Ping { ack: true, data } => {
                self.ping_sent = Time::NEVER;
                if data == ANNOUNCEMENT && matches!(self.state, State::Announced(_)) {
                    self.end_streams(cx);
                }
                Ok(())
            }
            Frame::Ping { ack: false, data } => {
                self.spend(cx, CONTROL)?;
                self.queue_control(cx.actions, |out| frame::ping(out, true, data));
                Ok(())
            }
            // The client opens no more streams; its open ones are answered.
            Frame::GoAway { .. } => self.spend(cx, CONTROL),
            Frame::WindowUpdate { stream, increment } => self.take_window(cx, stream, increment),
            Frame::PriorityUpdate { stream, value } => {
                self.spend(cx, CONTROL)?;
                if stream.0.is_multiple_of(2) {
                    return Err(Fatal(ErrorCode::PROTOCOL_ERROR, "priority of a stream that a client cannot open"));
                }
                self.take_priority(stream, Priority::parse(value), &cx.shared.limits)
            }
            Frame::Unknown { .. } => self.spend(cx, CONTROL),
        }
    }

    /// The client has changed the priority of a stream, which it may open later (RFC 9218, 7.1).
    fn take_priority(&mut self, stream: StreamId, priority: Priority, limits: &Limits) -> Result<(), Fatal> {
        if let Some(at) = self.position(stream) {
            self.streams[at].side.slot.priority = priority;
            self.is_uniform &= priority == Priority::default();
        }
        if stream <= self.last_stream {
            return Ok(());
        }
        if let Some((_, known)) = self.priorities.iter_mut().find(|(known, _)| *known == stream) {
            *known = priority;
            return Ok(());
        }
        let active = self.streams.iter().filter(|stream| !stream.side.is_sent).count();
        if active + self.priorities.len() < limits.max_concurrent_streams {
            self.priorities.push((stream, priority));
            return Ok(());
        }
        // The client may not know our limit yet.
        match self.settings_sent == Time::NEVER {
            true => Err(Fatal(ErrorCode::PROTOCOL_ERROR, "priorities of more streams than may be open")),
            false => Ok(()),
        }
    }

    /// Takes the priority that the client has given a stream before it was opened. It can open none before it any more.
    fn early_priority(&mut self, stream: StreamId) -> Option<Priority> {
        let found = self.priorities.iter().find(|(known, _)| *known == stream).map(|(_, priority)| *priority);
        self.priorities.retain(|(known, _)| *known > stream);
        if self.priorities.is_empty() {
            self.priorities = Vec::new();
        }
        found
    }

    fn take_setting<F>(&mut self, cx: &Context<'_, F>, id: u16, value: u32) -> Result<(), Fatal> {
        match id {
            setting::ENABLE_PUSH if value > 1 => Err(Fatal(ErrorCode::PROTOCOL_ERROR, "ENABLE_PUSH must be 0 or 1")),
            setting::MAX_FRAME_SIZE if !(FRAME_BYTES as u32..1 << 24).contains(&value) => {
                Err(Fatal(ErrorCode::PROTOCOL_ERROR, "MAX_FRAME_SIZE must be from 16384 to 16777215"))
            }
            // RFC 7541, 4.2: a smaller table is acknowledged at the start of the next block. Ours are written without it.
            setting::HEADER_TABLE_SIZE if value < TABLE_BYTES => {
                self.common.owes_table_update = true;
                Ok(())
            }
            setting::INITIAL_WINDOW_SIZE => {
                let window = i64::from(value);
                if window > WINDOW_MAX {
                    return Err(Fatal(ErrorCode::FLOW_CONTROL_ERROR, "INITIAL_WINDOW_SIZE is over 2147483647"));
                }
                // RFC 9113, 6.9.2: open streams change by the difference, and may become negative.
                let difference = window - mem::replace(&mut self.initial_window, window);
                for stream in &mut self.streams {
                    stream.side.note_window((self.send_window, self.drawn), cx.now, &cx.shared.limits);
                    stream.side.slot.join_if_opened(difference, self.common.virtual_time);
                    if stream.side.slot.window > WINDOW_MAX {
                        return Err(Fatal(ErrorCode::FLOW_CONTROL_ERROR, "a window is over 2147483647"));
                    }
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn take_window<F: FileHandle>(
        &mut self,
        cx: &mut Context<'_, F>,
        stream: StreamId,
        increment: u32,
    ) -> Result<(), Fatal> {
        let is_tiny = increment < 1024;
        if stream.0 == 0 {
            if increment == 0 {
                return Err(Fatal(ErrorCode::PROTOCOL_ERROR, "WINDOW_UPDATE of 0"));
            }
            for stream in &mut self.streams {
                stream.side.note_window((self.send_window, self.drawn), cx.now, &cx.shared.limits);
            }
            self.send_window += i64::from(increment);
            if self.send_window > WINDOW_MAX {
                return Err(Fatal(ErrorCode::FLOW_CONTROL_ERROR, "the connection's window is over 2147483647"));
            }
            let is_awaited = self.streams.iter().any(|stream| stream.side.slot.state == SendState::Body);
            return if is_tiny && !is_awaited { self.spend(cx, CONTROL) } else { Ok(()) };
        }
        let Some(at) = self.position(stream) else {
            // RFC 9113, 5.1: it may arrive late for a stream that has ended.
            self.must_not_be_idle(stream)?;
            return if is_tiny { self.spend(cx, CONTROL) } else { Ok(()) };
        };
        if increment == 0 {
            return self.take_stream_error(cx, stream, ErrorCode::PROTOCOL_ERROR);
        }
        let side = &mut self.streams[at].side;
        side.note_window((self.send_window, self.drawn), cx.now, &cx.shared.limits);
        let slot = &mut side.slot;
        slot.join_if_opened(i64::from(increment), self.common.virtual_time);
        if slot.window > WINDOW_MAX {
            return self.take_stream_error(cx, stream, ErrorCode::FLOW_CONTROL_ERROR);
        }
        if is_tiny { self.spend(cx, CONTROL) } else { Ok(()) }
    }

    fn take_reset<F: FileHandle>(&mut self, cx: &mut Context<'_, F>, stream: StreamId) -> Result<(), Fatal> {
        self.must_not_be_idle(stream)?;
        let Some(at) = self.position(stream) else {
            return self.spend(cx, CONTROL);
        };
        self.drop_stream(cx, at);
        cx.shared.counts.http2.cancelled += 1;
        self.spend(cx, RESET)
    }

    /// An error of a stream (RFC 9113, 5.4.2): it is reset.
    fn take_stream_error<F: FileHandle>(
        &mut self,
        cx: &mut Context<'_, F>,
        stream: StreamId,
        code: ErrorCode,
    ) -> Result<(), Fatal> {
        if stream > self.last_stream {
            return Err(Fatal(code, "a faulty frame for a stream that was not opened"));
        }
        if let Some(at) = self.position(stream) {
            self.drop_stream(cx, at);
        }
        let counts = &mut cx.shared.counts.http2;
        *(if code == ErrorCode::REFUSED_STREAM { &mut counts.refused } else { &mut counts.failed }) += 1;
        self.note_reset(stream);
        self.queue_control(cx.actions, |out| frame::reset(out, stream, code));
        // The client may not know our limit yet.
        let is_unaware = code == ErrorCode::REFUSED_STREAM && self.settings_sent != Time::NEVER;
        if is_unaware { Ok(()) } else { self.spend(cx, RESET) }
    }

    fn must_not_be_idle(&self, stream: StreamId) -> Result<(), Fatal> {
        if stream > self.last_stream || stream.0.is_multiple_of(2) {
            return Err(Fatal(ErrorCode::PROTOCOL_ERROR, "a frame for a stream that was not opened"));
        }
        Ok(())
    }

    fn spend<F>(&mut self, cx: &Context<'_, F>, cost: i64) -> Result<(), Fatal> {
        match self.budget.spend(cx.now, cost) {
            true => Ok(()),
            false => Err(Fatal(ErrorCode::ENHANCE_YOUR_CALM, "too many resets, or frames that carry nothing")),
        }
    }
}

/// Requests and their bodies.
impl Session {
    fn take_continuation<F: FileHandle>(
        &mut self,
        cx: &mut Context<'_, F>,
        bytes: &[u8],
        end_headers: bool,
    ) -> Result<(), Fatal> {
        let Some(mut block) = self.block.take() else {
            return Err(Fatal(ErrorCode::PROTOCOL_ERROR, "CONTINUATION without HEADERS"));
        };
        block.continuations += 1;
        block.bytes.extend_from_slice(bytes);
        if block.bytes.len() > BLOCK_MAX || block.continuations > CONTINUATIONS_MAX {
            return Err(Fatal(ErrorCode::ENHANCE_YOUR_CALM, "the header block is too long"));
        }
        if end_headers {
            let bytes = mem::take(&mut block.bytes);
            return self.take_block(cx, &block, &bytes);
        }
        self.block = Some(block);
        Ok(())
    }

    /// A header block is complete: a request, or the trailers of one.
    fn take_block<F: FileHandle>(&mut self, cx: &mut Context<'_, F>, block: &Block, bytes: &[u8]) -> Result<(), Fatal> {
        let mut fields = mem::replace(&mut cx.shared.fields, FieldList::new(0, 0));
        fields.start(list_max(&cx.shared.limits), cx.shared.limits.max_header_fields);
        // Whatever becomes of the stream, the table must stay in step.
        let result = match self.decoder.decode(bytes, &mut fields) {
            Ok(()) => self.take_fields(cx, block, &fields),
            Err(_) => Err(Fatal(ErrorCode::COMPRESSION_ERROR, "the header block is not valid")),
        };
        cx.shared.fields = fields;
        result
    }

    fn take_fields<F: FileHandle>(
        &mut self,
        cx: &mut Context<'_, F>,
        block: &Block,
        fields: &FieldList,
    ) -> Result<(), Fatal> {
        let stream = block.stream;
        if let Some(at) = self.position(stream) {
            return self.take_trailers(cx, at, block.end_stream && head::check_trailers(fields).is_ok());
        }
        if stream <= self.last_stream {
            return match self.resets.contains(&stream) {
                true => self.spend(cx, CONTROL),
                false => Err(Fatal(ErrorCode::STREAM_CLOSED, "HEADERS for a stream that is closed")),
            };
        }
        if self.state == State::Finishing {
            // RFC 9113, 6.8: the client sees from GOAWAY that it was not processed. Its other frames are ignored too.
            self.last_stream = stream;
            self.note_reset(stream);
            return self.spend(cx, CONTROL);
        }
        (self.last_stream, self.last_accepted) = (stream, stream);
        cx.shared.counts.http2.streams += 1;
        if block.depends_on_itself {
            return self.take_stream_error(cx, stream, ErrorCode::PROTOCOL_ERROR);
        }
        if self.streams.len() >= cx.shared.limits.max_concurrent_streams {
            return self.take_stream_error(cx, stream, ErrorCode::REFUSED_STREAM);
        }
        let mut flat = mem::replace(&mut cx.shared.flat_head, FlatHead::new());
        let result = self.open(cx, block, fields, &mut flat);
        cx.shared.flat_head = flat;
        result
    }

    /// Opens a stream.
    fn open<F: FileHandle>(
        &mut self,
        cx: &mut Context<'_, F>,
        block: &Block,
        fields: &FieldList,
        flat: &mut FlatHead,
    ) -> Result<(), Fatal> {
        let said = fields.get(b"priority").map_or_else(Priority::default, Priority::parse);
        let priority = self.early_priority(block.stream).unwrap_or(said);
        let mut side = Side::new(block.stream, priority, (self.initial_window, STREAM_WINDOW), cx.now);
        side.client_ended = block.end_stream;
        self.requests += 1;
        cx.shared.counts.requests += 1;
        cx.shared.lap.note_head();
        if fields.is_over_limit() {
            self.refuse(cx, side, Status::HEAD_TOO_LARGE, "request header fields too long", fields);
        } else if flat.fill(fields, block.end_stream).is_err() {
            let record = record_refused(cx, Status::BAD_REQUEST, fields);
            cx.actions.push(Action::Unanswered(record));
            return self.take_stream_error(cx, block.stream, ErrorCode::PROTOCOL_ERROR);
        } else if !self.has_room_for_head(flat.bytes().len()) {
            return self.take_stream_error(cx, block.stream, ErrorCode::REFUSED_STREAM);
        } else {
            let identified = flat.request(&cx.shared.limits.head(self.secure)).and_then(|mut request| {
                if cx.shared.sites.need_clients() {
                    client::identify(&mut request, flat.bytes(), cx.shared.peer, &cx.shared.sites)?;
                }
                Ok(request)
            });
            match identified {
                Ok(request) => self.begin(cx, side, request, (flat.bytes(), block.began)),
                Err(bad) => self.refuse(cx, side, bad.status, bad.why, fields),
            }
        }
        if self.requests >= cx.shared.limits.max_requests {
            self.announce_end(cx);
        }
        Ok(())
    }

    fn has_room_for_head(&self, length: usize) -> bool {
        let held =
            || self.streams.iter().filter_map(|stream| Some(stream.exchange.as_ref()?.head().len())).sum::<usize>();
        length < LARGE_HEAD || held() + length <= HEADS_MAX
    }

    fn begin<F: FileHandle>(
        &mut self,
        cx: &mut Context<'_, F>,
        mut side: Side,
        request: Request<'_>,
        (head, began): (&[u8], Time),
    ) {
        if request.is_extended_connect() {
            side.expects_tunnel();
        } else {
            side.expects(request.framing);
        }
        let mut wire = Wire { common: &mut self.common, side: &mut side };
        let from = cx.actions.len();
        let exchange = Exchange::begin(cx, Incoming { request, head, began, has_more: false }, &mut wire);
        self.unsent |= side.slot.state != SendState::Empty;
        self.add(Stream { exchange: exchange.map(Box::new), deferred: None, side });
        self.limit_lookups(cx, self.streams.len() - 1, from);
        self.conclude(cx, self.streams.len() - 1);
    }

    fn add(&mut self, stream: Stream) {
        let is_uniform = self.is_uniform || self.streams.is_empty();
        self.is_uniform = is_uniform && stream.side.slot.priority == Priority::default();
        self.streams.push_back(stream);
    }

    /// Responds to a request whose head is refused.
    fn refuse<F: FileHandle>(
        &mut self,
        cx: &mut Context<'_, F>,
        mut side: Side,
        status: Status,
        why: &str,
        fields: &FieldList,
    ) {
        let mut record = record_refused(cx, status, fields);
        let (head, body) = reply::bad_head(status, why, fields.get(b":method") == Some(b"HEAD"));
        body.note_in(&mut record);
        side.skips_body = true;
        self.unsent = true;
        let mut wire = Wire { common: &mut self.common, side: &mut side };
        wire.send(cx, Response { head, hsts: None, body, record }, ResponseState::Complete);
        self.add(Stream { exchange: None, deferred: None, side });
    }

    fn take_data<F: FileHandle>(
        &mut self,
        cx: &mut Context<'_, F>,
        stream: StreamId,
        (data, flow_bytes): (&[u8], u32),
        end_stream: bool,
    ) -> Result<(), Fatal> {
        self.receive_window -= i64::from(flow_bytes);
        if self.receive_window < 0 {
            return Err(Fatal(ErrorCode::FLOW_CONTROL_ERROR, "the client ignores the connection's window"));
        }
        if data.is_empty() && !end_stream {
            self.spend(cx, CONTROL)?;
        }
        let Some(at) = self.position(stream) else {
            self.must_not_be_idle(stream)?;
            self.consumed += flow_bytes;
            return match self.resets.contains(&stream) {
                // It was on its way when the stream was reset.
                true => Ok(()),
                false => Err(Fatal(ErrorCode::STREAM_CLOSED, "DATA for a stream that is closed")),
            };
        };
        let side = &mut self.streams[at].side;
        if side.client_ended {
            self.consumed += flow_bytes;
            return self.take_stream_error(cx, stream, ErrorCode::STREAM_CLOSED);
        }
        side.receive_window -= i64::from(flow_bytes);
        if side.receive_window < 0 {
            self.consumed += flow_bytes;
            return self.take_stream_error(cx, stream, ErrorCode::FLOW_CONTROL_ERROR);
        }
        let padding = flow_bytes - clamp(data.len());
        if let Some(left) = &mut side.length_left {
            // RFC 9113, 8.1.1: a body of another length than the request has told is malformed.
            match left.checked_sub(data.len() as u64) {
                Some(rest) if rest == 0 || !end_stream => *left = rest,
                _ => {
                    self.consumed += flow_bytes;
                    return self.take_stream_error(cx, stream, ErrorCode::PROTOCOL_ERROR);
                }
            }
        }
        side.client_ended = end_stream;
        side.body.extend_from_slice(data);
        self.consume_body(at, padding);
        self.feed(cx, at);
        Ok(())
    }

    /// The trailers of a request end its body; their fields are dropped.
    fn take_trailers<F: FileHandle>(
        &mut self,
        cx: &mut Context<'_, F>,
        at: usize,
        is_valid: bool,
    ) -> Result<(), Fatal> {
        let side = &mut self.streams[at].side;
        let stream = side.id;
        if side.client_ended {
            return self.take_stream_error(cx, stream, ErrorCode::STREAM_CLOSED);
        }
        // RFC 9113, 8.5: a tunnel has none.
        if !is_valid || side.is_tunnel || side.length_left.is_some_and(|left| left > 0) {
            return self.take_stream_error(cx, stream, ErrorCode::PROTOCOL_ERROR);
        }
        side.client_ended = true;
        self.feed(cx, at);
        Ok(())
    }

    /// Passes as much of a stream's body to its exchange as that accepts.
    fn feed<F: FileHandle>(&mut self, cx: &mut Context<'_, F>, at: usize) {
        let id = self.streams[at].side.id;
        while let Some(at) = self.position(id) {
            let Stream { exchange, side, .. } = &mut self.streams[at];
            let wants = exchange.as_ref().is_some_and(|exchange| exchange.wants_body());
            if side.skips_body || exchange.is_none() {
                let count = mem::take(&mut side.body).len();
                return self.consume_body(at, clamp(count));
            }
            if !side.body_left || !wants || side.body.is_empty() && !side.client_ended {
                return;
            }
            let data = mem::take(&mut side.body);
            side.body_left = !side.client_ended;
            let is_last = side.client_ended;
            self.consume_body(at, clamp(data.len()));
            self.advance(cx, at, |exchange, cx, wire| exchange.take_body(cx, &data, is_last, wire));
        }
    }

    /// Bytes of a body have been consumed, so the client may send as many again.
    fn consume_body(&mut self, at: usize, count: u32) {
        self.consumed += count;
        self.streams[at].side.consumed += count;
    }

    /// Tells the client of consumed bytes, once there are enough of them.
    fn update_windows<F>(&mut self, cx: &mut Context<'_, F>) {
        let mut bytes = Vec::new();
        if i64::from(self.consumed) >= CONNECTION_WINDOW / 2 {
            let count = mem::take(&mut self.consumed);
            self.receive_window += i64::from(count);
            frame::window_update(&mut bytes, StreamId(0), count);
        }
        for Stream { side, .. } in &mut self.streams {
            if i64::from(side.consumed) >= STREAM_WINDOW / 2 && !side.client_ended {
                let count = mem::take(&mut side.consumed);
                side.receive_window += i64::from(count);
                frame::window_update(&mut bytes, side.id, count);
            }
        }
        if !bytes.is_empty() {
            self.queue_control(cx.actions, |out| out.append(&mut bytes));
        }
    }
}

/// Exchanges.
impl Session {
    /// Passes an event to a stream's exchange.
    fn advance<'c, F: FileHandle>(
        &mut self,
        cx: &mut Context<'c, F>,
        at: usize,
        take: impl FnOnce(&mut Exchange, &mut Context<'c, F>, &mut Wire<'_>) -> Progress,
    ) {
        let from = cx.actions.len();
        let Stream { exchange, side, .. } = &mut self.streams[at];
        let Some(mut running) = exchange.take() else { return };
        let mut wire = Wire { common: &mut self.common, side };
        let progress = take(&mut running, cx, &mut wire);
        self.streams[at].side.since = cx.now;
        self.unsent = self.unsent || self.streams[at].side.slot.state != SendState::Empty && self.next_lane().is_some();
        if progress == Progress::Open {
            self.streams[at].exchange = Some(running);
        }
        self.limit_lookups(cx, at, from);
        let id = self.streams[at].side.id;
        self.conclude(cx, at);
        if let Some(at) = self.position(id)
            && progress == Progress::Open
            && self.streams[at].side.has_input()
        {
            self.feed(cx, at);
        }
    }

    /// Resets a stream whose exchange has ended without a complete response.
    fn conclude<F: FileHandle>(&mut self, cx: &mut Context<'_, F>, at: usize) {
        let Stream { exchange, side, .. } = &self.streams[at];
        let is_over = exchange.is_none();
        match side.response {
            ResponseState::Complete if side.is_sent => self.end_sent(cx.now, at, cx.actions),
            ResponseState::Complete => {}
            ResponseState::Awaited | ResponseState::Open if !is_over => {}
            ResponseState::Awaited | ResponseState::Open | ResponseState::Aborted => {
                // RFC 8441, 5: the code of a connection that was reset.
                let code = if side.is_tunnel { ErrorCode::CANCEL } else { ErrorCode::INTERNAL_ERROR };
                self.reset(cx.now, at, code, cx.actions);
            }
        }
    }

    /// Defers the lookup that an exchange has just asked for, if too many are in progress.
    fn limit_lookups<F>(&mut self, cx: &mut Context<'_, F>, at: usize, from: usize) {
        let Some(found) = cx.actions[from..].iter().position(|action| matches!(action, Action::Disk(..))) else {
            return;
        };
        if self.lookups.len() < LOOKUPS_MAX {
            if let Action::Disk(ticket, _) = &cx.actions[from + found] {
                self.lookups.push(*ticket);
            }
        } else if let Action::Disk(ticket, work) = cx.actions.remove(from + found) {
            self.streams[at].deferred = Some((ticket, work));
        }
    }

    /// Asks for deferred lookups, the most urgent first.
    fn ask_deferred<F>(&mut self, cx: &mut Context<'_, F>) {
        while self.lookups.len() < LOOKUPS_MAX {
            let waiting = self.streams.iter_mut().filter(|stream| stream.deferred.is_some());
            let Some(stream) = waiting.min_by_key(|stream| stream.side.slot.priority.urgency) else { return };
            let Some((ticket, work)) = stream.deferred.take() else { return };
            self.lookups.push(ticket);
            cx.actions.push(Action::Disk(ticket, work));
        }
    }

    /// Resets a stream for a fault of the server.
    fn reset<F>(&mut self, now: Time, at: usize, code: ErrorCode, actions: &mut Vec<Action<F>>) {
        let Some(stream) = self.streams.remove(at) else { return };
        self.since = now;
        self.note_reset(stream.side.id);
        self.consumed += clamp(stream.side.body.len());
        actions.push(Action::Cancel(stream.side.lane()));
        self.queue_control(actions, |out| frame::reset(out, stream.side.id, code));
    }

    /// Ends a stream: its client does not need it any more.
    fn drop_stream<F>(&mut self, cx: &mut Context<'_, F>, at: usize) {
        let Some(Stream { exchange, side, .. }) = self.streams.remove(at) else { return };
        self.since = cx.now;
        self.consumed += clamp(side.body.len());
        if let Some(exchange) = exchange {
            exchange.cancel(cx);
        }
        cx.actions.push(Action::Cancel(side.lane()));
        // Its response may have been all that was to be sent.
        self.unsent &= self.was_full || self.control > 0 || self.next_lane().is_some();
    }

    fn drop_streams<F>(&mut self, cx: &mut Context<'_, F>) {
        while !self.streams.is_empty() {
            self.drop_stream(cx, self.streams.len() - 1);
        }
    }

    fn note_reset(&mut self, stream: StreamId) {
        if self.resets.len() == RESETS_KEPT {
            self.resets.pop_front();
        }
        self.resets.push_back(stream);
    }

    /// The position of a stream; streams are in the order of their numbers.
    fn position(&self, stream: StreamId) -> Option<usize> {
        self.streams.binary_search_by_key(&stream, |open| open.side.id).ok()
    }

    fn find(&self, condition: impl Fn(&Exchange) -> bool) -> Option<usize> {
        self.streams.iter().position(|stream| stream.exchange.as_deref().is_some_and(&condition))
    }

    fn waiting(&self, ticket: Ticket) -> Option<usize> {
        self.find(|exchange| exchange.waits_for(ticket))
    }
}

/// The end of a connection.
impl Session {
    /// Closes the connection for an error (RFC 9113, 5.4.1).
    fn fail<F: FileHandle>(&mut self, cx: &mut Context<'_, F>, Fatal(code, why): Fatal) {
        match code {
            ErrorCode::NO_ERROR => {}
            ErrorCode::ENHANCE_YOUR_CALM => cx.shared.counts.http2.floods += 1,
            _ => cx.shared.counts.http2.connection_errors += 1,
        }
        self.drop_streams(cx);
        self.say_end(cx, self.last_accepted, code, why);
        (self.block, self.pending) = (None, Vec::new());
        self.state = State::Closing;
    }

    /// The client has sent something, or has received some of what was sent.
    fn note_heard(&mut self, now: Time) {
        self.heard = now;
        if self.ping_sent != Time::NEVER {
            self.ping_sent = now;
        }
    }

    fn say_end<F>(&mut self, cx: &mut Context<'_, F>, last: StreamId, code: ErrorCode, why: &str) {
        self.queue_control(cx.actions, |out| frame::go_away(out, last, code, why.as_bytes()));
    }

    /// Announces that no streams are accepted any more (RFC 9113, 6.8). Those that are on their way still are.
    fn announce_end<F: FileHandle>(&mut self, cx: &mut Context<'_, F>) {
        if !matches!(self.state, State::Preface | State::FirstSettings | State::Open) {
            return;
        }
        self.say_end(cx, StreamId(WINDOW_MAX as u32), ErrorCode::NO_ERROR, "");
        self.queue_control(cx.actions, |out| frame::ping(out, false, ANNOUNCEMENT));
        self.ping_sent = cx.now;
        self.state = State::Announced(cx.now + LAST_STREAM_AFTER);
    }

    /// Accepts no more streams.
    fn end_streams<F: FileHandle>(&mut self, cx: &mut Context<'_, F>) {
        self.say_end(cx, self.last_accepted, ErrorCode::NO_ERROR, "");
        self.state = State::Finishing;
    }

    /// The client has closed its side. It may have closed only its sending side, but no client does that: it has left.
    fn take_leave<F: FileHandle>(&mut self, cx: &mut Context<'_, F>) {
        self.common.ended = true;
        self.leave(cx);
    }

    fn all_sent<F: FileHandle>(&mut self, cx: &mut Context<'_, F>) {
        if self.state == State::Closing {
            self.state = State::Lingering(cx.now + LINGER);
            cx.actions.push(Action::HalfClose);
        }
    }

    /// What follows each event.
    fn settle<F: FileHandle>(&mut self, cx: &mut Context<'_, F>) {
        if cx.shared.is_draining && self.requests > 0 {
            self.announce_end(cx);
        }
        if self.state == State::Finishing && self.streams.is_empty() {
            self.state = State::Closing;
            if !self.unsent {
                self.all_sent(cx);
            }
        }
        if !matches!(self.state, State::Closing | State::Lingering(_) | State::Closed) {
            self.update_windows(cx);
        }
        match (self.unsent, self.credit_since == Time::NEVER) {
            (true, true) => (self.credit, self.credit_since) = (SendCredit::full(&cx.shared.limits), cx.now),
            (false, _) => self.credit_since = Time::NEVER,
            (true, false) => {}
        }
    }

    fn take_deadline<F: FileHandle>(&mut self, cx: &mut Context<'_, F>) {
        let limits = cx.shared.limits.clone();
        if cx.now < self.next_due(&limits) {
            return;
        }
        let now = cx.now;
        match self.state {
            State::Lingering(_) | State::Closing => return self.close(cx),
            State::Announced(until) if now >= until => self.end_streams(cx),
            _ => {}
        }
        if now >= self.credit_due() {
            return self.leave(cx);
        }
        if now >= self.settings_due(&limits) {
            return self.fail(cx, Fatal(ErrorCode::SETTINGS_TIMEOUT, "the settings were not acknowledged"));
        }
        if now >= self.partial_due(&limits) {
            let is_idle = self.pending.is_empty() && self.block.is_none();
            let (code, why) = match is_idle {
                true => (ErrorCode::NO_ERROR, ""),
                false => (ErrorCode::PROTOCOL_ERROR, "timed out reading a frame"),
            };
            return self.fail(cx, Fatal(code, why));
        }
        if self.streams.is_empty() {
            if now >= self.since.max(self.heard) + limits.idle_timeout {
                self.fail(cx, Fatal(ErrorCode::NO_ERROR, ""));
            }
            return;
        }
        self.end_overdue(cx, &limits);
        if !self.streams.is_empty() && now >= self.ping_due() {
            if self.ping_sent != Time::NEVER {
                return self.leave(cx);
            }
            self.queue_control(cx.actions, |out| frame::ping(out, false, PING_DATA));
            self.ping_sent = now;
        }
    }

    /// Ends the streams that are overdue.
    fn end_overdue<F: FileHandle>(&mut self, cx: &mut Context<'_, F>, limits: &Limits) {
        let window = (self.send_window, self.drawn);
        let is_overdue = |stream: &&Stream| cx.now >= stream.due(window, limits);
        let overdue: Vec<StreamId> = self.streams.iter().filter(is_overdue).map(|stream| stream.side.id).collect();
        for id in overdue {
            let Some(at) = self.position(id) else { continue };
            let is_app_overdue =
                self.streams[at].exchange.as_ref().is_some_and(|exchange| cx.now >= exchange.body_due());
            let is_sending = self.streams[at].side.slot.state != SendState::Empty && !is_app_overdue;
            if is_sending || self.streams[at].exchange.is_none() {
                let (exchange, code) = (self.streams[at].exchange.take(), ErrorCode::CANCEL);
                exchange.iter().for_each(|exchange| exchange.cancel(cx));
                self.reset(cx.now, at, code, cx.actions);
                continue;
            }
            self.streams[at].deferred = None;
            self.advance(cx, at, |exchange, cx, wire| exchange.overdue(cx, wire));
        }
    }

    /// Closes without a word: the client takes nothing.
    fn leave<F: FileHandle>(&mut self, cx: &mut Context<'_, F>) {
        self.drop_streams(cx);
        self.close(cx);
    }

    fn close<F: FileHandle>(&mut self, cx: &mut Context<'_, F>) {
        self.state = State::Closed;
        (self.block, self.pending) = (None, Vec::new());
        cx.actions.push(Action::Close);
    }
}

/// Counts a request whose head is refused. Returns its record.
fn record_refused<F>(cx: &mut Context<'_, F>, status: Status, fields: &FieldList) -> Box<Record> {
    cx.shared.counts.bad_requests += 1;
    let mut record = cx.shared.records.take();
    record.note_unreadable(fields.get(b":path").unwrap_or_default(), cx.now);
    record.set(status, Outcome::None);
    record
}

fn clamp(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

/// The limit of a header list as RFC 9113, 10.5.1 counts it: 32 bytes more for each field.
fn list_max(limits: &Limits) -> usize {
    limits.max_header_bytes.as_usize().saturating_add(limits.max_header_fields * 32)
}
