//! Stop 2 of 10: one connection's turn.
//!
//! The loop (stop 1) gives a connection a turn when an event concerns it: receive once from its transport, let `core`
//! decide (stops 3 to 7), execute its actions, send (stop 10). [`Turn::take`] is all of that in order; measuring,
//! applications and cold files are called from it at named points.
//!
//! Turns are short, so that all connections are served: a turn receives one buffer, answers a bounded batch, and sends
//! a bounded number of windows. Unfinished connections are requeued behind the others.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::num::NonZeroU64;
use std::ops::Range;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use amped_core::app::{Input, Output, RevalidateWork};
use amped_core::auth::Verdict;
use amped_core::compress::Compressed;
use amped_core::connection::Conn;
use amped_core::event::{Action, Answer, Delay, Event, Lane, Ticket, Trouble, VerifyWork, Work};
use amped_core::file::Content;
use amped_core::http2::Drawn;
use amped_core::shared_state::SharedState;
use amped_http::proxy_header::{self, HEADER_MAX, ProxiedEnds};
use amped_sys::clock;
use amped_sys::socket::Acknowledged;
use amped_units::Time;

use crate::access_log::{AccessLog, Peer};
use crate::app::{APP_MEMORY_MIN, AppRequest, AppSide, Ends, Room, TurnResult};
use crate::client_counts::{CONNECTIONS, Permit};
use crate::client_times::Client;
use crate::clock::{Clock, wall};
use crate::compress;
use crate::config_snapshot::ConfigSnapshot;
use crate::counters::{CompressionCounts, TlsCounts};
use crate::few::Few;
use crate::handshakes::{Handshake, Handshakes};
use crate::mailbox::Mailbox;
use crate::message::Message;
use crate::metrics::{Meter, Phase, Timing};
use crate::open_file::OpenFile;
use crate::passwords::verifier::{self, PendingVerdict};
use crate::say;
use crate::send::frames::FrameBuffer;
use crate::send::streams::{ColdRange, GATHERED, Outbox};
use crate::send::{LogContext, NotedObjects, Probes, Progress, SendQueue, Sender};
use crate::tls_config::{SignatureTime, TlsConfig};
use crate::token::Token;
use crate::transport::tls::PARTIAL_MAX;
use crate::transport::{Received, Transport};

/// How a turn starts disk work.
pub trait DiskAccess {
    /// Whether a file window that is not in memory is fetched by [`warm`](DiskAccess::warm),
    /// rather than waited for while it is sent.
    const PROBES: bool;

    /// Starts a connection's lookup.
    fn ask(
        &mut self,
        now: Time,
        requester: Token,
        ticket: Ticket,
        work: &Work,
        shared: &mut SharedState<OpenFile>,
    ) -> DiskAnswer;

    /// Withdraws a lookup: the connection no longer waits for the result.
    fn withdraw(&mut self, requester: Token, ticket: Ticket, work: &Work);

    /// Reads this range of a file into memory, for a lane of a connection, and notifies the worker. Returns `false` if no
    /// helper is available. Never called without [`PROBES`](DiskAccess::PROBES).
    fn warm(&mut self, requester: (Token, Lane), content: Arc<Content<OpenFile>>, range: Range<u64>) -> bool;

    /// Has the window of an object fetched that has this byte, which will be needed soon, unless no helper is available.
    fn read_ahead(&mut self, _content: Arc<Content<OpenFile>>, _offset: u64) {}
}

/// The result of [`DiskAccess::ask`].
pub enum DiskAnswer {
    /// The result is available.
    Answered(Answer<OpenFile>),
    /// It will follow through [`Worker::answer`](crate::worker::Worker::answer).
    Later(Delay),
    /// Too much work is queued already.
    Refused,
}

/// A client's connection and its transport.
pub struct Connection {
    pub(crate) conn: Conn,
    pub(crate) transport: Transport,
    pub(crate) peer: Peer,
    /// `None` when there is nothing to send.
    pub(crate) send_queue: Option<Box<SendQueue>>,
    /// What it has to send in HTTP/2, in place of the send queue.
    pub(crate) outbox: Option<Box<Outbox>>,
    /// The earliest time at which the timer wheel will report this connection.
    pub(crate) armed: Time,
    /// One more than the bytes that its client had acknowledged when that was last asked,
    pub(crate) acknowledged: Option<NonZeroU64>,
    /// and whether that was since the output that is being sent began.
    pub(crate) is_measured: bool,
    /// Its client has not received all that was sent, and too little in the time that it had.
    pub(crate) lags: bool,
    /// It had not received all that was sent when that was last asked.
    is_behind: bool,
    /// There may be data to read.
    pub(crate) readable: bool,
    /// The client has closed its side: read until the end is seen.
    pub(crate) ending: bool,
    /// There may be room to send.
    pub(crate) writable: bool,
    /// Since when a helper has been fetching the next data to send; [`Time::NEVER`]: none is.
    pub(crate) cold: Time,
    /// How often they have been fetched without any of them being sent since,
    pub(crate) fetched: u8,
    /// and their offset in the file.
    pub(crate) fetched_at: u64,
    /// It is in the queue of unfinished connections.
    pub(crate) queued: bool,
    /// The times of its request, if it is sampled.
    pub(crate) timing: Option<Box<Timing>>,
    /// The applications that handle its requests; at most one in HTTP/1.
    pub(crate) apps: Few<Box<AppRequest>>,
    /// Its addresses; set when an application first needs them.
    pub(crate) ends: Option<Arc<Ends>>,
    /// What the PROXY protocol says about it; `None`: it does not begin with that.
    pub(crate) proxied: Option<Box<Proxied>>,
    /// It counts as one of its client's, if these are limited.
    pub(crate) permit: Option<Box<Permit>>,
    /// The verdicts on passwords that it waits for, and since when.
    pub(crate) pending_verdicts: Few<(Ticket, Time, Arc<PendingVerdict>)>,
}

impl Connection {
    /// Until when the bandwidth of its response permits nothing more, if it does not.
    pub(crate) fn paced(&self) -> Option<Time> {
        self.send_queue.as_ref()?.paced()
    }

    /// Creates the state of an accepted connection.
    pub(crate) fn new(transport: Transport, address: Option<SocketAddr>, now: Time) -> Connection {
        Connection {
            conn: Conn::new(now, transport.is_tls()),
            transport,
            peer: Peer::new(address),
            send_queue: None,
            outbox: None,
            armed: Time::NEVER,
            acknowledged: None,
            is_measured: false,
            lags: false,
            is_behind: false,
            // Often the request has already arrived.
            readable: true,
            ending: false,
            writable: true,
            cold: Time::NEVER,
            fetched: 0,
            fetched_at: 0,
            queued: false,
            timing: None,
            apps: Few::new(),
            ends: None,
            proxied: None,
            permit: None,
            pending_verdicts: Few::new(),
        }
    }

    /// A proxy has named the other end of the client's connection, or has said that it has none.
    fn note_proxied(&mut self, ends: Option<ProxiedEnds>, shared: &mut SharedState<OpenFile>) {
        let Some(ends) = ends else { return };
        self.peer = Peer::new(Some(ends.client));
        shared.peer = self.peer.address();
    }

    /// Notes the subject of the client's certificate, if limits count by it.
    fn note_subject(&self, shared: &mut SharedState<OpenFile>) {
        if shared.sites.need_subjects() {
            shared.subject = self.transport.negotiated().and_then(|negotiated| negotiated.subject.clone());
        }
    }

    /// Returns what it has to send in HTTP/2. From the first call on, that is its protocol.
    fn outbox(&mut self) -> &mut Outbox {
        let Connection { outbox, transport, .. } = self;
        outbox.get_or_insert_with(|| {
            transport.limit_unsent(UNSENT_MAX);
            Box::default()
        })
    }

    /// Returns whether there is something to send.
    pub(crate) fn has_output(&self) -> bool {
        self.transport.has_unsent()
            || self.send_queue.as_ref().is_some_and(|send_queue| !send_queue.is_empty())
            || self.outbox.as_ref().is_some_and(|outbox| outbox.has_unsent())
            || self.conn.next_lane().is_some()
    }

    /// Returns whether it waits for its client, and for nothing else.
    pub(crate) fn waits_for_client(&self) -> bool {
        let waits_for_app = matches!(self.conn, Conn::Http2(_)) && !self.apps.is_empty();
        !waits_for_app && self.pending_verdicts.is_empty() && (self.has_output() || self.conn.wants_bytes())
    }

    /// The socket is full: its client's progress counts from here, if that is the first time for this output.
    fn note_full(&mut self) {
        self.writable = false;
        if !self.is_measured {
            let bytes = self.transport.acknowledged().bytes;
            (self.acknowledged, self.is_measured) = (Some(NonZeroU64::MIN.saturating_add(bytes)), true);
        }
    }

    /// A timeout has passed: returns the bytes that its client has received since this was last asked, if the timeout is for
    /// the client to receive what was sent.
    pub(crate) fn note_received(&mut self) -> Option<u64> {
        let found = self.transport.acknowledged();
        let before = self.acknowledged.replace(NonZeroU64::MIN.saturating_add(found.bytes));
        self.is_measured = true;
        self.lags = !found.is_all;
        let was_behind = std::mem::replace(&mut self.is_behind, !found.is_all);
        let received = received(found, before, was_behind, (self.has_output(), self.conn.streams() > 0));
        let is_paced = received > 0 && self.paced().is_some();
        (received > 0).then_some(if is_paced { u64::MAX } else { received })
    }

    /// Returns its addresses, as an application gets them.
    fn ends(&mut self) -> Arc<Ends> {
        let Connection { transport, ends, proxied, .. } = self;
        let proxied = proxied.as_ref().and_then(|proxied| proxied.ends);
        let of = || Arc::new(Ends::of(transport.as_fd(), proxied, transport.negotiated().cloned()));
        Arc::clone(ends.get_or_insert_with(of))
    }

    /// Takes out the application request with this ticket.
    pub(crate) fn take_app(&mut self, ticket: Ticket) -> Option<Box<AppRequest>> {
        let at = self.apps.iter().position(|app| app.ticket() == ticket)?;
        Some(self.apps.swap_remove(at))
    }

    /// Returns what is left of its memory for output of applications, bytes. What each request may hold in any case does
    /// not count, so that streams whose client reads nothing leave the rest to the others.
    fn app_memory_left(&self) -> usize {
        let lanes = self.outbox.as_ref().map_or(0, |outbox| outbox.texts_beyond(2 * APP_MEMORY_MIN));
        let apps: usize = self.apps.iter().map(|app| app.held_bytes().saturating_sub(2 * APP_MEMORY_MIN)).sum();
        APP_MEMORY.saturating_sub(lanes + apps)
    }

    /// Returns whether there may be data that it takes.
    fn may_receive(&self) -> bool {
        self.readable && self.conn.wants_bytes() && !self.transport.is_away()
    }

    /// Returns the memory that it uses in addition to its own size, bytes.
    pub(crate) fn heap_bytes(&self) -> usize {
        let send_queue = self.send_queue.as_ref().map_or(0, |send_queue| send_queue.heap_bytes());
        self.conn.heap_bytes()
            + self.transport.heap_bytes()
            + send_queue
            + self.outbox.as_ref().map_or(0, |outbox| outbox.heap_bytes())
            + self.apps.iter().map(|app| app.heap_bytes()).sum::<usize>()
            + self.proxied.as_ref().map_or(0, |proxied| size_of::<Proxied>() + proxied.header.capacity())
    }
}

/// Bytes that a client has received since that was last asked; `u64::MAX` if it cannot have received more. `found`: what is
/// acknowledged now; `before`: one more than what was acknowledged then; `was_behind`: that was not all.
fn received(
    found: Acknowledged,
    before: Option<NonZeroU64>,
    was_behind: bool,
    (has_output, has_streams): (bool, bool),
) -> u64 {
    match (found.is_all, before) {
        // The server is slower than its client.
        (true, _) if has_output => u64::MAX,
        // It has received the last of it since then, perhaps just now, and is idle from now on.
        (true, _) if !has_streams && was_behind => u64::MAX,
        // It waits for nothing that was sent.
        (true, _) if !has_streams => 0,
        (_, Some(before)) => found.bytes.saturating_sub(before.get() - 1),
        // Of what was acknowledged, part may be older.
        (true, None) => 0,
        (false, None) => u64::MAX,
    }
}

/// The beginning of a connection from a proxy that speaks the PROXY protocol.
#[derive(Debug)]
pub(crate) struct Proxied {
    /// Whether its header is incomplete: nothing else is received.
    pub(crate) is_awaited: bool,
    /// The header, as far as it has arrived; empty once it is complete.
    header: Vec<u8>,
    /// The addresses in it.
    ends: Option<ProxiedEnds>,
}

impl Proxied {
    /// A connection whose header has not arrived.
    pub(crate) fn new() -> Proxied {
        Proxied { is_awaited: true, header: Vec::new(), ends: None }
    }

    /// Receives the rest of the header, and nothing after it: that may be the beginning of a TLS session. Returns the
    /// addresses in it.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] if more must arrive; [`io::ErrorKind::InvalidData`] if it is invalid, and
    /// [`io::ErrorKind::UnexpectedEof`] if the connection ends before it does: then it must be closed.
    fn receive(&mut self, transport: &Transport, buffer: &mut [u8]) -> io::Result<Option<ProxiedEnds>> {
        loop {
            let count = transport.peek(&mut buffer[..HEADER_MAX])?;
            if count == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            let before = self.header.len();
            self.header.extend_from_slice(&buffer[..count]);
            let parsed = proxy_header::parse(&self.header).map_err(|_| io::ErrorKind::InvalidData)?;
            let used = parsed.map_or(count, |header| header.length - before);
            transport.take_peeked(&mut buffer[..used])?;
            if let Some(header) = parsed {
                *self = Proxied { is_awaited: false, header: Vec::new(), ends: header.ends };
                return Ok(header.ends);
            }
        }
    }
}

/// State that the turns of a loop share.
pub struct LoopContext {
    /// State that connections share.
    pub shared: SharedState<OpenFile>,
    /// The current configuration.
    pub(crate) generation: Arc<ConfigSnapshot>,
    /// Receives verdicts for the loop.
    pub(crate) mailbox: Arc<Mailbox<Message>>,
    /// The loop's side of the access log.
    pub(crate) log: AccessLog,
    pub(crate) sender: Sender,
    /// The loop's TLS handshakes.
    pub(crate) handshakes: Handshakes,
    /// Their statistics.
    pub(crate) tls: TlsCounts,
    /// Its statistics of compression on the fly.
    pub(crate) compression: CompressionCounts,
    /// The loop's state of applications.
    pub apps: AppSide,
    /// The loop's metrics.
    pub meter: Meter,
    pub(crate) clock: Clock,
    /// When the wall clock was last read.
    pub(crate) wall_checked: Time,
    /// Calls on sockets wait, as in [`ConfigSnapshot::blocks`].
    pub(crate) blocks: bool,
    pub(crate) buffer: Vec<u8>,
    /// Connections for whose next data the helpers' queue had no room, and when they retry.
    pub(crate) retry_queue: VecDeque<Token>,
    pub(crate) ask_anew: Time,
    pub(crate) cold_windows: u64,
    pub(crate) limited_connections: u64,
    /// Pages to revalidate, and the addresses of their clients' connections, for the worker to take.
    pub(crate) revalidations: Vec<(Box<RevalidateWork>, Arc<Ends>)>,
}

impl LoopContext {
    /// Reads the clock, and keeps the wall clock up to date.
    pub(crate) fn tick(&mut self) -> Time {
        let now = self.clock.now();
        if now.since(self.wall_checked) >= WALL_STEP {
            self.wall_checked = now;
            let wall = wall();
            if wall.seconds != self.shared.wall.seconds {
                self.shared.wall = wall;
            }
        }
        now
    }

    /// Counts another connection of a client; one of a trusted proxy, which serves many clients, does not count.
    ///
    /// # Errors
    /// [`Dead`]: the client has too many, and this one must be closed.
    pub(crate) fn admit(&mut self, client: Option<SocketAddr>) -> Result<Option<Box<Permit>>, Dead> {
        let max = self.shared.limits.max_connections_per_client;
        let (Some(counts), Some(client)) = (self.generation.client_counts.as_ref().filter(|_| max > 0), client) else {
            return Ok(None);
        };
        if self.is_trusted(Some(client)) {
            return Ok(None);
        }
        if let Some(permit) = counts.permit(Client::new(Some(client.ip())).key_under(CONNECTIONS), max) {
            return Ok(Some(Box::new(permit)));
        }
        self.limited_connections += 1;
        if counts.may_log(clock::monotonic_ns()) {
            say!(
                "{} has {max} connections, as many as limits.max_connections_per_client allows; further ones are closed, \
                 and counted in connections_limited",
                client.ip()
            );
        }
        Err(Dead)
    }

    /// Returns whether this is the address of a trusted proxy.
    pub(crate) fn is_trusted(&self, address: Option<SocketAddr>) -> bool {
        let proxies = self.shared.sites.proxies();
        proxies.zip(address).is_some_and(|(proxies, address)| proxies.are_trusted(address.ip()))
    }
}

impl LoopContext {
    /// Has files compressed that clients have just received uncompressed.
    pub(crate) fn compress(&mut self) {
        let caches = &mut self.shared.caches;
        for work in std::mem::take(&mut caches.compressions) {
            if let Err(work) = compress::submit(work, Arc::<Mailbox<_>>::clone(&self.mailbox)) {
                self.compression.refused += 1;
                caches.learn_encoding(&work.content.version, work.coding, Compressed::Failed);
            }
        }
    }

    /// Returns the sender, and what the access log needs for a connection.
    pub(crate) fn log_context<'a>(
        &'a mut self,
        (transport, peer, timing): (&Transport, &'a Peer, &'a mut Option<Box<Timing>>),
        now: Time,
    ) -> (&'a mut Sender, LogContext<'a>) {
        let log_context = LogContext {
            // If lines contain the time taken, the clock is read again.
            now: if self.log.has_duration() { self.clock.now() } else { now },
            log: &mut self.log,
            peer,
            tls: transport.negotiated().cloned(),
            records: &mut self.shared.records,
            wall: &self.shared.wall,
            meter: &mut self.meter,
            timing,
        };
        (&mut self.sender, log_context)
    }
}

/// Wall clock refresh interval; Date is late by no more.
const WALL_STEP: Duration = Duration::from_millis(20);

/// The work that remains for a connection after its turn.
pub(crate) enum Rest {
    /// Nothing until an event occurs.
    Nothing,
    /// More, after the other connections.
    ComesAgain,
}

/// The connection must be closed.
pub(crate) struct Dead;

/// The result of sending.
enum Sent {
    /// There was nothing to send.
    Nothing,
    /// Everything was sent.
    All,
    /// It waits for the client or a helper.
    Waits,
    /// There is more to do, after a turn of the other connections.
    Yields,
}

/// The result of sending gathered frames.
enum Gathered {
    /// Some were sent.
    Sent,
    /// There was nothing more to send.
    All,
    /// The socket is full.
    Full,
}

/// The lane of all responses of HTTP/1.
const HTTP1: Lane = Lane(0);

/// A connection during its turn.
pub(crate) struct Turn<'a, D> {
    pub(crate) token: Token,
    pub(crate) now: Time,
    pub(crate) connection: &'a mut Connection,
    pub(crate) context: &'a mut LoopContext,
    pub(crate) disk: &'a mut D,
    /// The connection's actions. Empty before and after the turn.
    pub(crate) actions: &'a mut Vec<Action<OpenFile>>,
}

impl<D: DiskAccess> Turn<'_, D> {
    /// Takes the turn: handles the event, receives from the client, and executes the resulting actions.
    ///
    /// # Errors
    /// [`Dead`]: the connection must be closed.
    pub(crate) fn take(mut self, event: Option<Event<'_, OpenFile>>) -> Result<Rest, Dead> {
        self.begin_timing(event.is_none());
        if self.context.shared.sites.need_clients() {
            self.context.shared.peer = self.connection.peer.address();
        }
        self.connection.note_subject(&mut self.context.shared);
        if let Some(event) = event {
            self.handle(event);
        }
        let received = self.receive();
        self.note_received();
        received?;
        let mut batches = 0;
        let rest = loop {
            self.carry_out()?;
            self.note_answered();
            if batches == BATCHES_A_TURN {
                // The last output is in the send queue; the next turn sends it.
                break Rest::ComesAgain;
            }
            match self.send()? {
                Sent::All => batches += 1,
                Sent::Nothing | Sent::Waits if self.poll_apps() => batches += 1,
                Sent::Nothing | Sent::Waits => break Rest::Nothing,
                Sent::Yields => break Rest::ComesAgain,
            }
        };
        self.connection.apps.retain(|app| !app.is_over());
        self.end_timing();
        match rest {
            Rest::Nothing if self.connection.may_receive() => Ok(Rest::ComesAgain),
            rest => Ok(rest),
        }
    }

    /// Passes an event to the connection, which appends its actions.
    fn handle(&mut self, event: Event<'_, OpenFile>) {
        self.connection.conn.handle(self.now, event, &mut self.context.shared, self.actions);
    }

    /// Receives once.
    fn receive(&mut self) -> Result<(), Dead> {
        let Turn { connection, context, .. } = self;
        if connection.transport.is_away() && connection.ending {
            // The thread need not do the handshake of a client that has left.
            return Err(Dead);
        }
        if !connection.may_receive() {
            return Ok(());
        }
        if let Some(proxied) = &mut connection.proxied
            && proxied.is_awaited
        {
            match proxied.receive(&connection.transport, &mut context.buffer) {
                Ok(ends) => {
                    connection.permit = context.admit(ends.map(|ends| ends.client))?;
                    connection.note_proxied(ends, &mut context.shared);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    connection.readable = false;
                    return Ok(());
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => return Ok(()),
                Err(_) => return Err(Dead),
            }
        }
        let received = connection.transport.receive(&mut context.buffer, &mut context.sender.tls);
        if context.blocks {
            // The call may have waited for the client.
            self.now = context.tick();
        }
        let (event, is_drained, is_end) = match received {
            Ok(Received::Bytes { count, is_drained, is_end }) => {
                ((count > 0).then(|| Event::Bytes(&context.buffer[..count])), is_drained, is_end)
            }
            Ok(Received::NotTls { count, is_drained }) => {
                (Some(Event::NotTls(&context.buffer[..count])), is_drained, false)
            }
            Ok(Received::Hello { is_drained }) => {
                connection.readable = !is_drained;
                return self.answer_hello();
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                connection.readable = false;
                return Ok(());
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return Ok(()),
            Err(_) => return Err(Dead),
        };
        if let Some((negotiated, time)) = connection.transport.take_completed(self.now) {
            context.tls.add(negotiated, time);
            connection.note_subject(&mut context.shared);
            if connection.transport.has_chosen_http2() {
                connection.conn.speak_http2(self.now, &context.shared.limits, self.actions);
            } else if connection.transport.is_for_validation() {
                // RFC 8737, 3: no data follow the handshake. The connection is closed in any case.
                let _ = connection.transport.half_close();
                return Err(Dead);
            }
        }
        // A short read has drained the socket, and epoll will report new data (epoll(7), "short read"). The end of the
        // stream is reported only once.
        if is_end || is_drained && !connection.ending {
            connection.readable = false;
        }
        for event in event.into_iter().chain(is_end.then_some(Event::Ended)) {
            connection.conn.handle(self.now, event, &mut context.shared, self.actions);
        }
        Ok(())
    }

    /// Answers a TLS client's hello, now or later.
    fn answer_hello(&mut self) -> Result<(), Dead> {
        let Turn { connection, context, token, now, .. } = self;
        // A handshake needs both directions.
        let (false, Some((session, exists))) = (connection.ending, connection.transport.hand_over()) else {
            return Err(Dead);
        };
        let time = context.generation.tls.as_ref().map_or(SignatureTime::Long, TlsConfig::signature_time);
        match context.handshakes.submit(Handshake { token: *token, session, since: *now }, exists, time) {
            None => Ok(()),
            Some(mut session) => {
                session.answer_hello();
                if connection.transport.take_back(session) { Ok(()) } else { Err(Dead) }
            }
        }
    }

    /// Executes the connection's actions, except sending. The list is empty afterwards.
    fn carry_out(&mut self) -> Result<(), Dead> {
        let mut at = 0;
        // The list grows during the loop: an answer of the disk results in further actions.
        while at < self.actions.len() {
            match std::mem::replace(&mut self.actions[at], Action::Close) {
                Action::Send(HTTP1, reply) => {
                    let style = self.context.sender.style();
                    let send_queue = self.connection.send_queue.get_or_insert_with(|| self.context.sender.send_queue());
                    send_queue.put(reply, self.now, &self.context.shared.wall, style);
                }
                Action::Send(lane, reply) => {
                    let outbox = self.connection.outbox();
                    outbox.put(lane, reply, &mut self.context.sender, &self.context.shared.wall);
                }
                Action::Interim(bytes) => self.send_queue(HTTP1).put_interim(&bytes),
                Action::Piece(lane, bytes, framed) => self.send_queue(lane).put_piece(&bytes, framed),
                Action::PieceEnd(lane) => self.send_queue(lane).put_end(),
                Action::Control(bytes) => self.connection.outbox().put_control(&bytes),
                Action::Cancel(lane) => self.cancel(lane),
                Action::Unanswered(record) => {
                    let Turn { connection, context, now, .. } = self;
                    let Connection { transport, peer, timing, .. } = &mut **connection;
                    let (_, mut log_context) = context.log_context((transport, peer, timing), *now);
                    log_context.log_response(record, 0, false);
                }
                Action::App(ticket, input) => self.pass_to_app(ticket, input),
                Action::Revalidate(work) => {
                    let ends = self.connection.ends();
                    self.context.revalidations.push((work, ends));
                }
                Action::Verify(ticket, work) => self.verify(ticket, work),
                Action::Disk(ticket, work) => self.ask_disk(ticket, &work),
                Action::Log(line) => say!("{line}"),
                Action::HalfClose => self.connection.transport.half_close().map_err(|_| Dead)?,
                Action::Close => return Err(Dead),
            }
            at += 1;
        }
        self.actions.clear();
        Ok(())
    }

    fn send_queue(&mut self, lane: Lane) -> &mut SendQueue {
        let Turn { connection, context, .. } = self;
        match lane {
            HTTP1 => connection.send_queue.get_or_insert_with(|| context.sender.send_queue()),
            _ => connection.outbox().queue(lane, &mut context.sender),
        }
    }

    /// Drops what a lane has to send.
    fn cancel(&mut self, lane: Lane) {
        let Turn { connection, context, now, .. } = self;
        let Connection { outbox: Some(outbox), transport, peer, timing, .. } = &mut **connection else { return };
        let (sender, mut log_context) = context.log_context((transport, peer, timing), *now);
        outbox.cancel(lane, sender, &mut log_context);
    }

    /// Passes input to an application.
    fn pass_to_app(&mut self, ticket: Ticket, input: Input) {
        let Turn { connection, context, .. } = self;
        let mut app = connection.take_app(ticket);
        let config = context.generation.app_context();
        let ends = || connection.ends();
        let output = context.apps.take(&mut app, (self.token, self.now), (ticket, input), ends, &config);
        app.into_iter().for_each(|app| connection.apps.push(app));
        if let Some(output) = output {
            self.handle(Event::App(ticket, output));
        }
    }

    /// Starts disk work, or completes it at once.
    fn ask_disk(&mut self, ticket: Ticket, work: &Work) {
        match self.disk.ask(self.now, self.token, ticket, work, &mut self.context.shared) {
            DiskAnswer::Answered(answer) => self.handle(Event::Disk(ticket, answer)),
            DiskAnswer::Later(delay) => {
                self.handle(Event::Late(ticket, delay));
                if !self.connection.conn.waits_for(ticket) {
                    // A stale entry was used. If a popular name is looked up while the disk is slow,
                    // hundreds of thousands of connections that do not wait would accumulate, and
                    // notifying them all takes tens of milliseconds.
                    self.disk.withdraw(self.token, ticket, work);
                }
            }
            DiskAnswer::Refused => {
                // A stale entry may be used; the refusal is discarded then.
                self.handle(Event::Late(ticket, Delay::Disk));
                self.handle(Event::Disk(ticket, Answer::Trouble(Trouble::Busy)));
            }
        }
    }

    /// Requests the verification of a password.
    fn verify(&mut self, ticket: Ticket, work: VerifyWork) {
        let Turn { connection, context, .. } = self;
        let client = Client::new(work.client.or_else(|| connection.peer.address()));
        let verification = match &context.generation.verifier {
            Some(verifier) => {
                verifier.ask(work, client, (Arc::<Mailbox<_>>::clone(&context.mailbox), self.token, ticket))
            }
            // There was one when the site was selected.
            None => verifier::Verification::Answered(Verdict::Failed),
        };
        let event = match verification {
            verifier::Verification::Answered(verdict) => Event::Disk(ticket, Answer::Verified(verdict)),
            verifier::Verification::Later(pending) => {
                if connection.ending {
                    pending.note_client_closed();
                }
                connection.pending_verdicts.push((ticket, self.now, pending));
                Event::Late(ticket, Delay::Disk)
            }
        };
        self.handle(event);
    }

    /// Polls the connection's applications. Returns whether there may be more to do.
    fn poll_apps(&mut self) -> bool {
        if self.connection.apps.is_empty() {
            return false;
        }
        if self.connection.ending && !self.connection.conn.wants_bytes() && !self.connection.conn.is_tunnel() {
            // The client has closed the connection, with unread bytes before the end.
            self.handle(Event::Ended);
            return true;
        }
        // The list changes only by actions, which follow.
        let mut is_more = false;
        let mut left = self.connection.app_memory_left();
        for at in 0..self.connection.apps.len() {
            is_more |= self.poll_app(at, &mut left);
        }
        is_more
    }

    /// `left`: what is left of the connection's memory for output of applications.
    fn poll_app(&mut self, at: usize, left: &mut usize) -> bool {
        let Turn { connection, context, .. } = self;
        let app = &mut connection.apps[at];
        let wants_output = connection.conn.wants_output(app.ticket());
        let room = match connection.conn {
            Conn::Http1(_) => Room::alone(wants_output),
            Conn::Http2(_) => Room::of_stream(wants_output, connection.conn.output_window(app.ticket()), *left),
        };
        let before = app.held_bytes();
        let result = context.apps.turn(app, self.token, self.now, room, &mut context.buffer);
        *left = left.saturating_sub(app.held_bytes().saturating_sub(before));
        match result {
            TurnResult::Nothing => return false,
            TurnResult::Again => {}
            TurnResult::Output(ticket, output) => {
                if let Output::Bytes(bytes) | Output::Last(bytes) = &output {
                    *left = left.saturating_sub(bytes.len());
                }
                connection.conn.handle(self.now, Event::App(ticket, output), &mut context.shared, self.actions);
            }
        }
        true
    }

    /// Sends from the send queue, and notifies the connection.
    fn send(&mut self) -> Result<Sent, Dead> {
        let sent = match self.connection.conn {
            Conn::Http2(_) => self.send_streams(),
            Conn::Http1(_) => self.send_queued(),
        };
        self.note_objects();
        sent
    }

    fn send_queued(&mut self) -> Result<Sent, Dead> {
        let Turn { connection, context, now, .. } = self;
        let has_unsent = connection.transport.has_unsent();
        let is_empty = connection.send_queue.as_ref().is_none_or(|send_queue| send_queue.is_empty());
        // An empty queue waits for more output of an application.
        if is_empty && !has_unsent {
            return Ok(Sent::Nothing);
        }
        let is_paced = connection.paced().is_some_and(|until| *now < until);
        if !connection.writable || connection.cold != Time::NEVER || is_paced {
            return Ok(Sent::Waits);
        }
        let Some(send_queue) = &mut connection.send_queue else {
            // Messages of the TLS handshake.
            return match connection.transport.flush() {
                Ok(()) => Ok(Sent::Nothing),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    connection.writable = false;
                    Ok(Sent::Waits)
                }
                Err(_) => Err(Dead),
            };
        };
        let (sender, mut log_context) =
            context.log_context((&connection.transport, &connection.peer, &mut connection.timing), *now);
        // A window that has just been fetched is sent without another probe: it may have been evicted in the meantime,
        // and some file systems cannot report that, but it must make progress eventually.
        let probes = if D::PROBES { Probes::All { fetched: connection.fetched } } else { Probes::None };
        let progress = send_queue.pump(&mut connection.transport, sender, probes, &mut log_context);
        match &progress {
            Progress::Cold(_, range) if range.start == connection.fetched_at => {}
            Progress::Cold(_, range) => (connection.fetched, connection.fetched_at) = (0, range.start),
            _ => connection.fetched = 0,
        }
        let all = matches!(progress, Progress::Done);
        connection.conn.handle(*now, Event::Sent { all }, &mut context.shared, self.actions);
        match progress {
            Progress::Done => {
                connection.is_measured = false;
                if let Some(send_queue) = connection.send_queue.take_if(|send_queue| send_queue.is_spare()) {
                    context.sender.give_back(send_queue);
                }
                Ok(Sent::All)
            }
            Progress::Full => {
                connection.note_full();
                Ok(Sent::Waits)
            }
            Progress::Cold(content, range) => {
                self.fetch(content, range);
                Ok(Sent::Waits)
            }
            Progress::Paced => Ok(Sent::Waits),
            Progress::Yield => Ok(Sent::Yields),
            Progress::Broken => Err(Dead),
        }
    }

    /// Sends frames of HTTP/2, a bounded number in a turn, and notifies the connection.
    fn send_streams(&mut self) -> Result<Sent, Dead> {
        if !self.connection.has_output() {
            return Ok(Sent::Nothing);
        }
        if !self.connection.writable {
            return Ok(Sent::Waits);
        }
        for _ in 0..GATHERS_A_TURN {
            match self.send_gathered()? {
                Gathered::Sent => {}
                Gathered::All => {
                    self.connection.is_measured = false;
                    self.handle(Event::Sent { all: true });
                    return Ok(Sent::All);
                }
                Gathered::Full => {
                    self.connection.note_full();
                    self.handle(Event::Sent { all: false });
                    return Ok(Sent::Waits);
                }
            }
        }
        self.handle(Event::Sent { all: false });
        Ok(Sent::Yields)
    }

    /// Sends what the transport has not taken so far, or gathers frames and sends them.
    fn send_gathered(&mut self) -> Result<Gathered, Dead> {
        let mut gathered = std::mem::take(&mut self.context.sender.frames);
        gathered.clear();
        let result = self.fill_and_send(&mut gathered);
        self.context.sender.frames = gathered;
        let Turn { connection, context, now, .. } = self;
        let Connection { outbox, transport, peer, timing, .. } = &mut **connection;
        if let Some(outbox) = outbox {
            let is_flushed = !transport.has_unsent();
            let (_, mut log_context) = context.log_context((transport, peer, timing), *now);
            outbox.log_sent(is_flushed, &mut log_context);
        }
        match result {
            Ok(gathered) => Ok(gathered),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(Gathered::Full),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(Gathered::Sent),
            Err(_) => Err(Dead),
        }
    }

    fn fill_and_send(&mut self, gathered: &mut FrameBuffer) -> io::Result<Gathered> {
        self.connection.transport.flush()?;
        self.context.sender.set_time(self.now, self.context.shared.wall.seconds);
        if let Some(outbox) = &mut self.connection.outbox
            && !outbox.unsent().is_empty()
        {
            let unsent = [IoSlice::new(outbox.unsent())];
            let count = self.connection.transport.send(&unsent, false, &mut self.context.sender.tls)?;
            self.context.meter.sent(count as u64);
            outbox.note_taken(count);
            if outbox.unsent().is_empty() {
                self.connection.conn.control_sent();
            }
            return Ok(Gathered::Sent);
        }
        self.gather(gathered);
        if gathered.is_empty() {
            return Ok(Gathered::All);
        }
        let sent =
            self.connection.transport.send(&[IoSlice::new(gathered.frames())], false, &mut self.context.sender.tls);
        let taken = match &sent {
            Ok(count) => *count,
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => 0,
            Err(_) => return sent.map(|_| Gathered::Sent),
        };
        self.context.meter.sent(taken as u64);
        self.connection.outbox().note_sent(gathered.frames(), taken);
        if taken == gathered.len() {
            self.connection.conn.control_sent();
        }
        sent.map(|_| Gathered::Sent)
    }

    /// Gathers frames of the lanes whose turn it is.
    fn gather(&mut self, gathered: &mut FrameBuffer) {
        let Turn { connection, context, now, .. } = self;
        let Connection { conn, outbox: Some(outbox), .. } = &mut **connection else { return };
        let mut cold_ranges = Vec::new();
        loop {
            outbox.draw_control(gathered);
            if gathered.len() >= GATHERED {
                break;
            }
            let Some((lane, most)) = conn.next_lane() else { break };
            let wall = &context.shared.wall;
            let mut table_update = conn.owes_table_update();
            let (drawn, cold) =
                outbox.draw((lane, most), &mut table_update, gathered, &mut context.sender, D::PROBES, wall);
            if !table_update {
                conn.table_update_sent();
            }
            conn.drew(*now, lane, drawn, self.actions);
            cold_ranges.extend(cold.and_then(|cold| outbox.note_cold(cold, *now)));
        }
        for cold in cold_ranges {
            self.fetch_for_lane(cold);
        }
    }

    /// Has the next data of a lane read into memory, which its outbox has permitted.
    fn fetch_for_lane(&mut self, (lane, content, range): ColdRange) {
        let Turn { connection, context, token, now, disk, .. } = self;
        context.cold_windows += 1;
        if !disk.warm((*token, lane), Arc::clone(&content), range.clone()) {
            if let Some(outbox) = &mut connection.outbox {
                outbox.note_refused((lane, content, range));
            }
            context.retry_queue.push_back(*token);
            context.ask_anew = context.ask_anew.min(*now + ASK_ANEW);
        }
    }

    /// A helper has read the next data of a lane, as far as possible: it sends again, and another lane's data are fetched.
    pub(crate) fn warm_lane(&mut self, lane: Lane) -> Option<Time> {
        let Turn { connection, now, .. } = self;
        connection.conn.warmed(*now, lane);
        let (since, next) = connection.outbox.as_mut()?.note_warm(lane, *now);
        next.into_iter().for_each(|cold| self.fetch_for_lane(cold));
        since
    }

    /// Helpers died while they read the next data of a lane: its response cannot be completed.
    pub(crate) fn fail_lane(&mut self, lane: Lane) {
        let mut actions: Vec<Action<OpenFile>> = Vec::new();
        self.connection.conn.drew(self.now, lane, Drawn::Failed, &mut actions);
        for action in actions {
            match action {
                Action::Cancel(lane) => self.cancel(lane),
                Action::Control(bytes) => self.connection.outbox().put_control(&bytes),
                _ => {}
            }
        }
        // Another lane may have waited for this one.
        self.retry_lanes();
    }

    /// Has the windows of objects read ahead that will be sent next, and evicted ones closed when they are sent.
    fn note_objects(&mut self) {
        let NotedObjects { ahead, orphaned } = self.context.sender.noted();
        for version in orphaned.drain(..) {
            self.context.shared.caches.forget_content(&version);
        }
        for (content, offset) in ahead.drain(..) {
            self.disk.read_ahead(content, offset);
        }
    }

    /// Fetches data for which no helper was available.
    pub(crate) fn retry_lanes(&mut self) {
        let Turn { connection, now, .. } = self;
        let next = connection.outbox.as_mut().and_then(|outbox| outbox.next_fetch(*now));
        next.into_iter().for_each(|cold| self.fetch_for_lane(cold));
    }

    /// Has the next data to send read into memory.
    fn fetch(&mut self, content: Arc<Content<OpenFile>>, range: Range<u64>) {
        let Turn { connection, context, token, now, disk, .. } = self;
        context.cold_windows += 1;
        connection.cold = *now;
        if !disk.warm((*token, HTTP1), content, range) {
            // The helpers' queue is full. The head has been sent, so try again when the queue is shorter.
            context.retry_queue.push_back(*token);
            context.ask_anew = context.ask_anew.min(*now + ASK_ANEW);
        }
    }
}

/// A sample of requests is timed by phase (`metrics`).
impl<D> Turn<'_, D> {
    /// `by_client`: the turn has no other cause than data from the client.
    fn begin_timing(&mut self, by_client: bool) {
        let Turn { connection, context, .. } = self;
        match &mut connection.timing {
            Some(timing) => timing.resume(),
            // The time of a turn that waits for its client is not that of a request.
            None if connection.readable && by_client && connection.conn.is_idle() && !context.blocks => {
                connection.timing = context.meter.begin(self.now);
            }
            None => {}
        }
        if matches!(&connection.timing, Some(timing) if timing.phase() == Phase::Parsing) {
            context.shared.lap.clock = Some(clock::monotonic_ns);
        }
    }

    fn note_received(&mut self) {
        let Turn { connection, context, .. } = self;
        if let Some(timing) = &mut connection.timing {
            match std::mem::take(&mut context.shared.lap).head_ns {
                Some(head_ns) => timing.note_head(head_ns),
                // No data, or only blank lines: a request has not begun.
                None if connection.conn.is_idle() => connection.timing = None,
                None => {}
            }
        }
    }

    fn note_answered(&mut self) {
        let Turn { connection, context, .. } = self;
        // Before sending, so that a request is counted by the time its client has the response.
        context.meter.heard(context.shared.counts.requests);
        let holds_reply = connection.send_queue.as_ref().is_some_and(|send_queue| send_queue.holds_reply())
            || connection.outbox.as_ref().is_some_and(|outbox| outbox.has_responses());
        if let Some(timing) = &mut connection.timing
            && matches!(timing.phase(), Phase::Parsing | Phase::Processing)
            && holds_reply
        {
            timing.pass(Phase::Sending);
        }
    }

    fn end_timing(&mut self) {
        if let Some(timing) = &mut self.connection.timing {
            timing.rest();
        }
    }
}

/// Maximum bytes per receive; the longest head fits, and many pipelined ones.
pub(crate) const BUFFER: usize = 64 * 1024;

// There is room for new data besides a partial record of a TLS session.
const _: () = assert!(BUFFER >= 2 * PARTIAL_MAX);

/// Memory for output of applications that the streams of a connection share, beyond what each may hold in any case.
const APP_MEMORY: usize = 512 * 1024;

/// Maximum batches of one turn.
const BATCHES_A_TURN: usize = 4;

/// Bytes of frames that a socket has not sent with which it is full: they precede every response that is more urgent. Two
/// calls' worth, so that it does not run dry before the loop's next turn.
const UNSENT_MAX: u32 = 2 * GATHERED as u32;

/// Maximum calls in which frames are sent for one connection in a turn: as many bytes as windows of files in HTTP/1.
const GATHERS_A_TURN: usize = 16;

/// Retry interval of connections for which the helpers' queue was full. They also retry when a helper becomes free,
/// which never happens if none could be started.
pub(crate) const ASK_ANEW: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn client_that_has_just_received_all_is_idle_from_now_on() {
        let check = |(bytes, is_all), before: Option<u64>, was_behind, has, expected| {
            let before = before.map(|before| NonZeroU64::MIN.saturating_add(before));
            let found = received(Acknowledged { bytes, is_all }, before, was_behind, has);
            assert_eq!(found, expected, "{bytes} {is_all} {before:?} {was_behind} {has:?}");
        };
        let (idle, busy, sends) = ((false, false), (false, true), (true, true));
        check((100, false), Some(40), true, idle, 60);
        check((100, true), Some(40), true, idle, u64::MAX);
        check((100, true), Some(100), false, idle, 0);
        check((100, true), None, false, idle, 0);
        check((100, false), None, false, idle, u64::MAX);
        check((100, true), Some(40), true, busy, 60);
        check((100, true), None, false, busy, 0);
        check((100, true), Some(100), false, sends, u64::MAX);
        check((100, false), Some(100), false, sends, 0);
    }
}
