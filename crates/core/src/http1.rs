//! Stop 3 of 10: HTTP/1 on one connection, from its first byte to its close (RFC 9112).
//!
//! Before it, `server/turn` (stop 2) received bytes; it has `h1/request` (stop 4) parse them, and begins an [`Exchange`]
//! (stop 5) for each request.
//!
//! Events go in, actions come out (see [`crate::event`]). Bytes are parsed into requests, each an [`Exchange`], and
//! responses are written in the order of the requests. Pipelined requests are processed one after another: while the
//! responses come from the caches, a whole batch is answered in one call; an exchange that waits delays the rest.
//!
//! An idle connection holds no memory beyond this struct.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::mem;
use core::time::Duration;

use amped_http::h1::body::{BodyReader, LAST_CHUNK, push_chunk};
use amped_http::h1::request::{self, Framing, Request, Version};
use amped_http::h1::response::Connection;
use amped_http::interim::Interim;
use amped_http::status::Status;
use amped_units::Time;

use crate::client;
use crate::event::{Action, Event, Lane, Ticket};
use crate::exchange::{Context, Exchange, Incoming, Progress, Protocol};
use crate::file::{Content, FileHandle};
use crate::limits::Limits;
use crate::pace::SendCredit;
use crate::record::Outcome;
use crate::reply::{self, Reply, Response, ScriptFraming};
use crate::shared_state::SharedState;

/// Maximum bytes of small responses gathered in one batch before they are sent.
const BATCH_BYTES: u64 = 256 * 1024;

/// Responses are sent in the order of their requests.
const LANE: Lane = Lane(0);

/// A connection.
#[derive(Debug)]
pub struct Conn {
    state: State,
    /// Received bytes that are not yet parsed: part of a head, or pipelined requests. Empty while idle.
    pending: Vec<u8>,
    /// Whether `pending` begins with part of a head, whose timeout runs since `began`.
    partial: bool,
    /// When the first byte of the current head arrived, or our side was closed.
    began: Time,
    wire: Wire,
}

#[derive(Debug)]
enum State {
    /// Between requests, or reading a head.
    Reading,
    /// A request is in progress.
    Busy(Box<Busy>),
    /// The last response has been queued. `linger`: the client may still be sending.
    Closing { linger: bool },
    /// Our side is closed; further input is dropped (RFC 9112, 9.6).
    Lingering,
    /// The connection is closed.
    Closed,
}

/// A request in progress, and the rest of its body.
#[derive(Debug)]
struct Busy {
    exchange: Exchange,
    body: BodyReader,
}

/// The connection as seen by an exchange.
#[derive(Debug)]
struct Wire {
    /// When the state last changed, or all output was sent; while some is unsent, since when `credit` runs down.
    since: Time,
    /// The time left to the client to receive.
    credit: SendCredit,
    /// Requests parsed so far.
    requests: usize,
    last_ticket: u32,
    /// Responses queued since the output was last empty, and their bytes.
    batched: u32,
    batched_bytes: u64,
    /// Whether one of them is large: later ones wait until it is sent.
    heavy: bool,
    /// Whether any queued output is unsent.
    unsent: bool,
    /// Whether the client has closed its side.
    ended: bool,
    /// Whether the server is stopping.
    finishing: bool,
    /// Whether the transport is encrypted (TLS).
    secure: bool,
    /// Whether the rest of a request body is still expected.
    body_left: bool,
    /// Whether the next response is the last, because an unread body may follow.
    last: bool,
    /// The response in progress.
    open: Open,
    /// What follows the exchange.
    after: After,
}

/// A response whose body is sent in pieces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Open {
    /// None, or a response without a body.
    No,
    /// The pieces are sent as they are.
    Plain,
    /// In chunks (RFC 9112, 7.1).
    Chunked,
    /// The connection carries another protocol: as they are, in both directions.
    Tunnel,
}

#[derive(Clone, Copy, Debug)]
enum After {
    /// The next request.
    Next,
    /// Close. `linger`: as in [`State::Closing`].
    Close { linger: bool },
    /// Close at once.
    Abort,
}

impl Conn {
    /// A connection that was accepted at `now`. `secure`: its transport is encrypted (TLS).
    pub fn new(now: Time, secure: bool) -> Conn {
        Conn {
            state: State::Reading,
            pending: Vec::new(),
            partial: false,
            began: now,
            wire: Wire {
                since: now,
                credit: SendCredit::default(),
                requests: 0,
                last_ticket: 0,
                batched: 0,
                batched_bytes: 0,
                heavy: false,
                unsent: false,
                ended: false,
                finishing: false,
                secure,
                body_left: false,
                last: false,
                open: Open::No,
                after: After::Next,
            },
        }
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
        match event {
            Event::Bytes(bytes) => self.take_bytes(cx, bytes),
            Event::NotTls(bytes) => self.refuse_plaintext(cx, bytes),
            Event::Ended => self.wire.ended = true,
            Event::Disk(ticket, answer) if self.waits_for(ticket) => {
                self.advance(cx, |exchange, cx, wire| exchange.take_answer(cx, answer, wire));
            }
            // The request was answered from a stale entry meanwhile, or has timed out.
            Event::Disk(..) => {}
            Event::Late(ticket, delay) if self.waits_for(ticket) => {
                self.advance(cx, |exchange, cx, wire| exchange.take_delay(cx, delay, wire));
            }
            Event::Late(..) => {}
            Event::App(ticket, output) => {
                self.advance(cx, |exchange, cx, wire| exchange.take_output(cx, (ticket, output), wire));
            }
            Event::Sent { all: true } => {
                self.wire.since = now;
                self.all_sent(cx);
            }
            // What the socket took, the client need not have received.
            Event::Sent { all: false } => {}
            Event::Received { bytes } => self.take_received(cx, bytes),
            Event::Resumed => self.wire.since = now,
            Event::Deadline => self.take_deadline(cx),
            Event::Finish => {
                self.wire.finishing = true;
                if matches!(self.state, State::Reading) && !self.wire.unsent {
                    self.close(cx);
                }
            }
            Event::Retire => {
                self.wire.finishing = true;
                if self.may_give_way(now) {
                    self.close(cx);
                }
            }
            Event::Drain => {}
        }
        if self.wire.ended {
            self.take_leave(cx);
        }
    }

    /// The client has closed its side: cancels work that has become useless.
    fn take_leave<F: FileHandle>(&mut self, cx: &mut Context<'_, F>) {
        match &self.state {
            State::Reading if !self.wire.unsent && !self.blocked(&cx.shared.limits) => self.close(cx),
            State::Busy(busy) if (busy.exchange.discards_body() || busy.exchange.is_delayed()) && !self.wire.unsent => {
                self.close(cx);
            }
            State::Lingering => self.close(cx),
            State::Busy(_) if self.wire.open == Open::Tunnel => self.end_tunnel_input(cx),
            // A client that waits for an application may have left, or may have closed
            // only its sending side. The two are indistinguishable, and the first is far
            // more common. Output that was already queued is sent in both cases.
            State::Busy(busy) if busy.exchange.is_at_app() => {
                let is_cut = busy.exchange.is_in_body();
                busy.exchange.cancel(cx);
                if self.wire.unsent && !is_cut {
                    self.state = State::Closing { linger: false };
                } else {
                    self.close(cx);
                }
            }
            State::Reading | State::Busy(_) | State::Closing { .. } | State::Closed => {}
        }
    }

    /// The client has closed its side of a tunnel.
    fn end_tunnel_input<F>(&mut self, cx: &mut Context<'_, F>) {
        if let State::Busy(busy) = &mut self.state
            && self.pending.is_empty()
        {
            busy.exchange.end_tunnel_input(cx);
        }
    }

    /// When [`Event::Deadline`] is due; [`Time::NEVER`] while the server must act, not the client.
    pub fn next_due(&self, limits: &Limits) -> Time {
        let since = self.wire.since;
        if self.wire.unsent {
            let due = since + self.wire.credit.left();
            return match &self.state {
                State::Busy(busy) => due.min(busy.exchange.body_due()),
                _ => due,
            };
        }
        match self.state {
            State::Reading if self.wire.finishing && self.is_idle() => {
                since + self.wire.first_bytes().min(limits.header_timeout)
            }
            State::Reading if self.wire.requests == 0 => since + limits.header_timeout,
            State::Reading if self.partial => self.began + limits.header_timeout,
            State::Reading => since + limits.idle_timeout,
            State::Busy(ref busy) => busy.exchange.due(since, limits),
            State::Lingering => (since + limits.linger_timeout).min(self.began + LINGER_MAX),
            State::Closing { .. } | State::Closed => Time::NEVER,
        }
    }

    /// Whether its client has received too little, of what was sent too.
    pub fn is_slow(&self, now: Time) -> bool {
        let receives = self.wire.unsent || matches!(self.state, State::Reading) && self.wire.requests > 0;
        receives && now >= self.wire.since + self.wire.credit.left()
    }

    /// Whether to read from the client now. While pipelined requests
    /// pile up, reading stops, and TCP flow control stops the client.
    pub fn wants_bytes(&self) -> bool {
        // The head in progress has its own limit, which may be higher.
        let room = match &self.state {
            State::Busy(busy) if self.wire.body_left && busy.exchange.is_at_app() => busy.exchange.wants_body(),
            _ => self.partial || self.pending.len() < PENDING_MAX,
        };
        // Before a close, find out whether more data has arrived: closing with unread data would cause a reset.
        room && !matches!(self.state, State::Closing { linger: true } | State::Closed)
    }

    /// Whether it carries another protocol, in which each side closes on its own.
    pub fn is_tunnel(&self) -> bool {
        self.wire.open == Open::Tunnel
    }

    /// Whether no request is in progress, so that it could be closed without loss.
    pub fn is_idle(&self) -> bool {
        matches!(self.state, State::Reading) && !self.wire.unsent && self.pending.is_empty()
    }

    /// Whether it may be closed to make room for another: it is idle, and a new connection has had time for its first
    /// request. Otherwise connections that arrive in a burst would evict each other before they are served.
    pub fn may_give_way(&self, now: Time) -> bool {
        self.is_idle() && (self.wire.requests > 0 || now.since(self.wire.since) >= self.wire.first_bytes())
    }

    /// What has arrived of the first request, as long as nothing else has.
    pub(crate) fn beginning(&self) -> Option<&[u8]> {
        (self.wire.requests == 0 && matches!(self.state, State::Reading)).then_some(&self.pending)
    }

    /// Keeps the first bytes, which are not decided yet; the time for the first request runs.
    pub(crate) fn keep_beginning(&mut self, bytes: &[u8]) {
        self.pending.extend_from_slice(bytes);
    }

    /// Whether the transport is encrypted (TLS).
    pub(crate) fn is_secure(&self) -> bool {
        self.wire.secure
    }

    /// Whether it still needs the result with this ticket.
    pub fn waits_for(&self, ticket: Ticket) -> bool {
        matches!(&self.state, State::Busy(busy) if busy.exchange.waits_for(ticket))
    }

    /// Whether it accepts output of an application now: all earlier output has been sent.
    pub fn wants_output(&self) -> bool {
        matches!(&self.state, State::Busy(busy)
            if busy.exchange.is_at_app() && (!self.wire.unsent || busy.exchange.reads_ahead()))
    }

    /// Whether it has returned [`Action::Close`].
    pub fn is_closed(&self) -> bool {
        matches!(self.state, State::Closed)
    }

    /// Heap memory in bytes, in addition to the struct itself.
    pub fn heap_bytes(&self) -> usize {
        let state = match &self.state {
            State::Busy(busy) => size_of::<Busy>() + busy.exchange.heap_bytes(),
            State::Reading | State::Closing { .. } | State::Lingering | State::Closed => 0,
        };
        self.pending.capacity() + state
    }

    fn take_bytes<F: FileHandle>(&mut self, cx: &mut Context<'_, F>, bytes: &[u8]) {
        if self.pending.is_empty() {
            let used = self.consume(cx, bytes);
            if used < bytes.len() {
                self.pending = bytes[used..].to_vec();
            }
        } else {
            self.pending.extend_from_slice(bytes);
            self.resume(cx);
        }
    }

    /// Continues with pending bytes.
    fn resume<F: FileHandle>(&mut self, cx: &mut Context<'_, F>) {
        let mut bytes = mem::take(&mut self.pending);
        let used = self.consume(cx, &bytes);
        if used < bytes.len() {
            bytes.drain(..used);
            self.pending = bytes;
        }
    }

    /// Parses requests from the start of `bytes` until one has to wait, or
    /// no complete one is left. Returns the number of bytes consumed.
    fn consume<F: FileHandle>(&mut self, cx: &mut Context<'_, F>, bytes: &[u8]) -> usize {
        let mut at = 0;
        loop {
            match &mut self.state {
                State::Reading => {
                    if self.blocked(&cx.shared.limits) {
                        return at;
                    }
                    at += request::blank_lines(&bytes[at..]);
                    if at == bytes.len() {
                        // The apparent start of a head was the first half of a blank line.
                        self.partial = false;
                        return at;
                    }
                    match request::parse(&bytes[at..], &cx.shared.limits.head(self.wire.secure)) {
                        Ok(None) => {
                            if !mem::replace(&mut self.partial, true) {
                                self.began = cx.now;
                            }
                            return at;
                        }
                        Err(bad) => {
                            self.refuse_head(cx, bad.status, bad.why, &bytes[at..]);
                            return bytes.len();
                        }
                        Ok(Some((mut request, length))) => {
                            let head = &bytes[at..at + length];
                            if cx.shared.sites.need_clients()
                                && let Err(bad) = client::identify(&mut request, head, cx.shared.peer, &cx.shared.sites)
                            {
                                self.refuse_head(cx, bad.status, bad.why, head);
                                return bytes.len();
                            }
                            at += length;
                            self.begin(cx, request, head, at < bytes.len());
                        }
                    }
                }
                State::Busy(busy) => {
                    if !self.wire.body_left || !busy.exchange.wants_body() || at == bytes.len() {
                        return at;
                    }
                    if self.wire.open == Open::Tunnel {
                        let progress = busy.exchange.take_body(cx, &bytes[at..], false, &mut self.wire);
                        self.go_on(cx, progress);
                        return bytes.len();
                    }
                    let progress = match busy.body.next(&bytes[at..]) {
                        Ok(piece) => {
                            at += piece.used;
                            let is_last = busy.body.is_done();
                            self.wire.body_left = !is_last;
                            busy.exchange.take_body(cx, piece.data, is_last, &mut self.wire)
                        }
                        Err(_) => busy.exchange.take_bad_body(cx, &mut self.wire),
                    };
                    self.go_on(cx, progress);
                }
                State::Closing { linger } => {
                    *linger |= at < bytes.len();
                    return bytes.len();
                }
                State::Lingering => {
                    self.wire.since = cx.now;
                    return bytes.len();
                }
                State::Closed => return bytes.len(),
            }
        }
    }

    /// Whether the next request has to wait until earlier output is sent.
    fn blocked(&self, limits: &Limits) -> bool {
        let Wire { heavy, batched, batched_bytes, .. } = self.wire;
        heavy || batched as usize >= limits.max_pipelined || batched_bytes > BATCH_BYTES
    }

    /// The head of a request is complete. `has_more`: bytes after it have arrived.
    fn begin<F: FileHandle>(&mut self, cx: &mut Context<'_, F>, request: Request<'_>, head: &[u8], has_more: bool) {
        let began = if mem::take(&mut self.partial) { self.began } else { cx.now };
        let framing = request.framing;
        self.wire.requests += 1;
        self.wire.body_left = framing != Framing::None;
        // The outcome if the exchange ends without a response.
        self.wire.after = After::Close { linger: false };
        cx.shared.counts.requests += 1;
        cx.shared.lap.note_head();
        match Exchange::begin(cx, Incoming { request, head, began, has_more }, &mut self.wire) {
            None => self.go_on(cx, Progress::Over),
            Some(exchange) => self.state = State::Busy(Box::new(Busy { exchange, body: BodyReader::new(framing) })),
        }
    }

    /// Passes an event to the exchange, then continues with pending bytes: the rest of its body, or the next request.
    fn advance<'c, F: FileHandle>(
        &mut self,
        cx: &mut Context<'c, F>,
        take: impl FnOnce(&mut Exchange, &mut Context<'c, F>, &mut Wire) -> Progress,
    ) {
        let State::Busy(busy) = &mut self.state else {
            return;
        };
        let progress = take(&mut busy.exchange, cx, &mut self.wire);
        self.go_on(cx, progress);
        match progress {
            Progress::Over if !self.wire.unsent && !self.is_closed() => {
                // Its response was sent before the exchange ended.
                self.wire.since = cx.now;
                self.all_sent(cx);
            }
            Progress::Over | Progress::Open => self.resume(cx),
        }
    }

    /// Enters the next state once the exchange is over.
    fn go_on<F: FileHandle>(&mut self, cx: &mut Context<'_, F>, progress: Progress) {
        if progress == Progress::Open {
            return;
        }
        match self.wire.after {
            After::Next => self.state = State::Reading,
            After::Close { linger } => {
                self.state = State::Closing { linger };
                if !self.wire.unsent {
                    self.end(cx);
                }
            }
            After::Abort => self.close(cx),
        }
    }

    /// Responds to a malformed head or a timeout, then closes.
    fn refuse_head<F: FileHandle>(&mut self, cx: &mut Context<'_, F>, status: Status, why: &str, bytes: &[u8]) {
        cx.shared.counts.bad_requests += 1;
        let mut record = cx.shared.records.take();
        record.note_unreadable(bytes, if self.partial { self.began } else { cx.now });
        record.set(status, Outcome::None);
        // RFC 9110, 9.3.2: a response to HEAD has no body, whatever is wrong with the rest of the request.
        let (head, body) = reply::bad_head(status, why, bytes.starts_with(b"HEAD "));
        body.note_in(&mut record);
        self.state = State::Closing { linger: true };
        self.partial = false;
        self.wire.send(cx, Response { head, hsts: None, body, record }, Connection::Close);
    }

    /// Responds to a request without TLS on a port for TLS, then closes.
    fn refuse_plaintext<F: FileHandle>(&mut self, cx: &mut Context<'_, F>, bytes: &[u8]) {
        self.wire.secure = false;
        let why = "this port requires TLS, but the request was sent without it; use https";
        self.refuse_head(cx, Status::BAD_REQUEST, why, bytes);
    }

    /// All queued output has been sent.
    fn all_sent<F: FileHandle>(&mut self, cx: &mut Context<'_, F>) {
        let wire = &mut self.wire;
        (wire.unsent, wire.heavy, wire.batched, wire.batched_bytes) = (false, false, 0, 0);
        match self.state {
            State::Closing { .. } => self.end(cx),
            State::Reading => {
                if !self.pending.is_empty() {
                    self.resume(cx);
                }
                if matches!(self.state, State::Reading) && !self.wire.unsent && self.wire.finishing && !self.wire.ended
                {
                    self.half_close(cx);
                }
            }
            State::Busy(_) | State::Lingering | State::Closed => {}
        }
    }

    /// The last response has been sent.
    fn end<F: FileHandle>(&mut self, cx: &mut Context<'_, F>) {
        match self.state {
            State::Closing { linger: true } if !self.wire.ended => self.half_close(cx),
            _ => self.close(cx),
        }
    }

    fn take_deadline<F: FileHandle>(&mut self, cx: &mut Context<'_, F>) {
        if cx.now < self.next_due(&cx.shared.limits) {
            return;
        }
        if self.wire.unsent {
            if let State::Busy(busy) = &self.state {
                busy.exchange.cancel(cx);
            }
            return self.close(cx);
        }
        match self.state {
            // RFC 9110, 15.5.9.
            State::Reading if self.partial => {
                let head = mem::take(&mut self.pending);
                let why = "timed out reading the request head";
                self.refuse_head(cx, Status::REQUEST_TIMEOUT, why, &head);
            }
            State::Reading | State::Lingering => self.close(cx),
            State::Busy(_) => self.advance(cx, Exchange::overdue),
            State::Closing { .. } | State::Closed => {}
        }
    }

    /// The client has received so much. If all was sent before, but is still on its way, the connection is not idle yet.
    fn take_received<F>(&mut self, cx: &Context<'_, F>, bytes: u64) {
        let wire = &mut self.wire;
        if wire.unsent || (matches!(self.state, State::Reading) && !self.partial && wire.requests > 0) {
            wire.credit = wire.credit.after(cx.now.since(wire.since), bytes, &cx.shared.limits);
            if wire.unsent || !wire.credit.left().is_zero() {
                wire.since = cx.now;
            }
        }
    }

    fn half_close<F: FileHandle>(&mut self, cx: &mut Context<'_, F>) {
        self.state = State::Lingering;
        (self.began, self.wire.since) = (cx.now, cx.now);
        self.pending = Vec::new();
        cx.actions.push(Action::HalfClose);
    }

    fn close<F: FileHandle>(&mut self, cx: &mut Context<'_, F>) {
        self.state = State::Closed;
        self.pending = Vec::new();
        cx.actions.push(Action::Close);
    }
}

impl Wire {
    fn send<F>(&mut self, cx: &mut Context<'_, F>, response: Response<F>, connection: Connection) {
        let Response { head, hsts, body, record } = response;
        self.batched += 1;
        self.batched_bytes += body.len();
        // Pipelined requests do not overtake their client's limit: only one of a connection is under way. They do not
        // share the bandwidth of a response either.
        self.heavy |= body.is_heavy() || record.permit.is_some() || record.bandwidth.is_some();
        self.note_given(cx);
        cx.actions.push(Action::Send(LANE, Reply { head, connection, hsts, body, record }));
    }

    /// The time that a new connection has for its first request, while others could use its place.
    fn first_bytes(&self) -> Duration {
        if self.secure { FIRST_BYTES_TLS } else { FIRST_BYTES }
    }

    /// Output is queued. If some is unsent already, the client's time runs.
    fn note_given<F>(&mut self, cx: &Context<'_, F>) {
        if !mem::replace(&mut self.unsent, true) {
            (self.since, self.credit) = (cx.now, SendCredit::full(&cx.shared.limits));
        }
    }

    /// Returns what follows the next response, and its Connection field.
    fn outlook<F>(&self, cx: &Context<'_, F>, request: &Request<'_>) -> (After, Connection) {
        let requests_max = cx.shared.limits.max_requests;
        let is_last = self.last || self.finishing || cx.shared.is_draining;
        let persists = request.keep_alive && !is_last && self.requests < requests_max;
        // A client that did not ask to close may be sending more. Closing then would reset the connection and discard
        // the response before it is read (RFC 9112, 9.6).
        let linger = request.keep_alive || self.last;
        match (persists, request.version) {
            (false, _) => (After::Close { linger }, Connection::Close),
            (true, Version::Http10) => (After::Next, Connection::KeepAlive),
            (true, Version::Http11 | Version::Http2) => (After::Next, Connection::Persists),
        }
    }
}

impl<F> Protocol<F> for Wire {
    fn next_ticket(&mut self) -> Ticket {
        self.last_ticket = self.last_ticket.wrapping_add(1);
        Ticket(self.last_ticket)
    }

    fn has_left(&self) -> bool {
        self.ended
    }

    fn awaits_body(&self) -> bool {
        self.body_left && !self.last
    }

    fn skip_body(&mut self) {
        self.last |= self.body_left;
    }

    fn interim(&mut self, cx: &mut Context<'_, F>, interim: &Interim) {
        self.note_given(cx);
        cx.actions.push(Action::Interim(interim.head().to_vec()));
    }

    fn open_ended(&self, version: Version) -> ScriptFraming {
        match version {
            Version::Http11 | Version::Http2 => ScriptFraming::Chunked,
            Version::Http10 => ScriptFraming::UntilClose,
        }
    }

    fn respond(&mut self, cx: &mut Context<'_, F>, request: &Request<'_>, response: Response<F>) {
        // The bytes that follow are the request body, which will not be read.
        self.last |= self.body_left;
        let (after, connection) = self.outlook(cx, request);
        self.after = after;
        self.send(cx, response, connection);
    }

    fn begin_response(
        &mut self,
        cx: &mut Context<'_, F>,
        request: &Request<'_>,
        response: Response<F>,
        framing: ScriptFraming,
    ) {
        self.last |= framing == ScriptFraming::UntilClose;
        let (after, connection) = self.outlook(cx, request);
        self.after = after;
        self.open = match framing {
            ScriptFraming::None => Open::No,
            ScriptFraming::Chunked => Open::Chunked,
            ScriptFraming::Length(_) | ScriptFraming::UntilClose => Open::Plain,
        };
        self.send(cx, response, connection);
    }

    fn begin_tunnel(&mut self, cx: &mut Context<'_, F>, response: Response<F>) {
        (self.open, self.body_left, self.after) = (Open::Tunnel, true, After::Close { linger: true });
        // The head has a Connection field of its own.
        self.send(cx, response, Connection::Persists);
    }

    fn piece(&mut self, cx: &mut Context<'_, F>, bytes: &[u8]) {
        let (piece, framed) = match self.open {
            Open::No => return,
            Open::Plain | Open::Tunnel => (bytes.to_vec(), 0),
            Open::Chunked => {
                let mut piece = Vec::with_capacity(bytes.len() + CHUNK_FRAMING);
                push_chunk(&mut piece, bytes);
                let framed = piece.len() - bytes.len();
                (piece, framed)
            }
        };
        self.note_given(cx);
        cx.actions.push(Action::Piece(LANE, piece, framed));
    }

    fn finish(&mut self, cx: &mut Context<'_, F>) {
        let open = mem::replace(&mut self.open, Open::No);
        if open == Open::Chunked {
            cx.actions.push(Action::Piece(LANE, LAST_CHUNK.to_vec(), LAST_CHUNK.len()));
        }
        if open != Open::No {
            cx.actions.push(Action::PieceEnd(LANE));
            self.note_given(cx);
        }
        self.after = match self.after {
            After::Next if self.last => After::Close { linger: true },
            After::Close { linger } => After::Close { linger: linger || self.last },
            after => after,
        };
    }

    fn abort(&mut self) {
        self.after = After::Abort;
    }
}

/// Bytes of a size that a piece may have, and of two line ends.
const CHUNK_FRAMING: usize = 12;

/// Maximum bytes of pipelined requests per client.
const PENDING_MAX: usize = 64 * 1024;

/// Maximum time to read from a client after our side is closed; the default of nginx (`lingering_time`).
const LINGER_MAX: Duration = Duration::from_secs(30);

/// The first bytes follow the connection by one round trip; a second is a generous allowance. A handshake of TLS takes two
/// more (TLS 1.2), and the client's time for its cryptography.
const FIRST_BYTES: Duration = Duration::from_secs(1);
const FIRST_BYTES_TLS: Duration = Duration::from_secs(4);

/// Guards the size of a connection: thousands of them are idle.
const _: () = assert!(size_of::<Conn>() <= 112);

/// Contents must be shareable between the threads of loops, if their files are.
const _: fn() = || {
    fn is_send<T: Send>() {}
    is_send::<Conn>();
    is_send::<Arc<Content<u8>>>();
};
