//! Stop 2 of 10: one connection's turn.
//!
//! The loop (stop 1) gives a connection its turn when something has happened to it: receive once from its transport, let `core` decide (stops 3 to
//! 7), do what it says, send (stop 10). [`Turn::take`] is all of that in order. Measuring, applications and cold files hang
//! off it at named points.
//!
//! Turns are short, so that everybody gets one: a turn receives one buffer, answers a bounded batch, sends a bounded
//! number of windows. Connections that are not finished then are requeued, behind the others.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use amped_core::auth::Verdict;
use amped_core::event::{Action, Answer, Delay, Event, Ticket, Trouble, VerifyWork, Work};
use amped_core::file::Content;
use amped_core::http1::Conn;
use amped_core::shared_state::SharedState;
use amped_sys::clock;
use amped_units::Time;

use crate::access_log::{AccessLog, Peer};
use crate::app::{AppRequest, AppSide, Ends, Heard};
use crate::clock::Clock;
use crate::config::settings::LogFormat;
use crate::config_snapshot::ConfigSnapshot;
use crate::mailbox::Mailbox;
use crate::message::Message;
use crate::metrics::{Meter, Phase, Timing};
use crate::open_file::OpenFile;
use crate::passwords::ledger::Client;
use crate::passwords::verifier::{self, Asker};
use crate::say;
use crate::send::{LogContext, Probes, Progress, SendQueue, Sender};
use crate::token::Token;
use crate::transport::Transport;

/// How a turn has the disk asked.
pub trait DiskAccess {
    /// Whether a window of a file that is not in memory is to be fetched by [`warm`](DiskAccess::warm), rather than waited
    /// for while it is sent.
    const PROBES: bool;

    /// A connection's question.
    fn ask(
        &mut self,
        now: Time,
        asker: Token,
        ticket: Ticket,
        work: &Work,
        shared: &mut SharedState<OpenFile>,
    ) -> DiskAnswer;

    /// The connection no longer waits for the answer to this question.
    fn withdraw(&mut self, asker: Token, ticket: Ticket, work: &Work);

    /// Bring this range of a file into memory, and notify the worker. `false`: no helper is available. Never called without
    /// [`PROBES`](DiskAccess::PROBES).
    fn warm(&mut self, asker: Token, content: Arc<Content<OpenFile>>, range: Range<u64>) -> bool;
}

/// What became of a question.
pub enum DiskAnswer {
    /// The answer is there.
    Answered(Answer<OpenFile>),
    /// It will come by [`Worker::answer`](crate::worker::Worker::answer).
    Later(Delay),
    /// Too much work is waiting already.
    Refused,
}

/// One client's connection and its socket.
pub struct Connection {
    pub(crate) conn: Conn,
    pub(crate) transport: Transport,
    pub(crate) peer: Peer,
    /// `None` when nothing is to be sent.
    pub(crate) send_queue: Option<Box<SendQueue>>,
    /// The earliest moment at which the wheel will name this connection.
    pub(crate) armed: Time,
    /// Bytes that were sent and not acknowledged when the socket was last found full.
    pub(crate) unacknowledged: u64,
    /// There may be something to read.
    pub(crate) readable: bool,
    /// The client's side has come to an end: read on until that is seen.
    pub(crate) ending: bool,
    /// There may be room to send.
    pub(crate) writable: bool,
    /// Since when a helper has been fetching what is to be sent next; [`Time::NEVER`]: none is.
    pub(crate) cold: Time,
    /// How often that has been done without any of it having been sent since, and where in its file it begins.
    pub(crate) fetched: (u8, u64),
    /// It is in the queue of those that come again.
    pub(crate) queued: bool,
    /// Its request is timed.
    pub(crate) timing: Option<Box<Timing>>,
    /// The application that has its request.
    pub(crate) app: Option<Box<AppRequest>>,
    /// Its addresses; set when an application first needs them.
    pub(crate) ends: Option<Arc<Ends>>,
    /// It waits for the verdict on a password, since this moment.
    pub(crate) asker: Option<(Time, Arc<Asker>)>,
}

impl Connection {
    /// One that was accepted.
    pub(crate) fn new(socket: OwnedFd, address: Option<SocketAddr>, now: Time) -> Connection {
        Connection {
            conn: Conn::new(now),
            transport: Transport::new(socket),
            peer: Peer::new(address),
            send_queue: None,
            armed: Time::NEVER,
            unacknowledged: 0,
            // Often the request has come by now.
            readable: true,
            ending: false,
            writable: true,
            cold: Time::NEVER,
            fetched: (0, 0),
            queued: false,
            timing: None,
            app: None,
            ends: None,
            asker: None,
        }
    }

    /// Bytes of memory that it holds beside itself.
    pub(crate) fn heap_bytes(&self) -> usize {
        let send_queue = self.send_queue.as_ref().map_or(0, |send_queue| send_queue.heap_bytes());
        self.conn.heap_bytes() + send_queue + self.app.as_ref().map_or(0, |app| app.heap_bytes())
    }
}

/// What the turns of a loop share.
pub struct LoopContext {
    /// What connections share.
    pub shared: SharedState<OpenFile>,
    /// The configuration in force.
    pub(crate) generation: Arc<ConfigSnapshot>,
    /// How verdicts reach the loop.
    pub(crate) mailbox: Arc<Mailbox<Message>>,
    /// The loop's end of the log.
    pub(crate) log: AccessLog,
    pub(crate) sender: Sender,
    /// What it has of applications.
    pub apps: AppSide,
    /// Metrics of the loop.
    pub meter: Meter,
    pub(crate) clock: Clock,
    pub(crate) buffer: Vec<u8>,
    /// Connections that found no room in the helpers' queue for what they are to send next, and when they ask anew.
    pub(crate) turned_away: VecDeque<Token>,
    pub(crate) ask_anew: Time,
    pub(crate) cold_windows: u64,
}

/// What is left to do for a connection after its turn.
pub(crate) enum Rest {
    /// Nothing until something happens.
    Nothing,
    /// More, after the others.
    ComesAgain,
}

/// The connection is to be closed.
pub(crate) struct Dead;

/// What came of sending.
enum Sent {
    /// There was nothing to send.
    Nothing,
    /// All of it.
    All,
    /// The client or a helper is to act.
    Waits,
    /// There is more, after the others.
    Yields,
}

/// A connection while it has its turn.
pub(crate) struct Turn<'a, D> {
    pub(crate) token: Token,
    pub(crate) now: Time,
    pub(crate) connection: &'a mut Connection,
    pub(crate) context: &'a mut LoopContext,
    pub(crate) disk: &'a mut D,
    /// The connection's actions. Empty before and after.
    pub(crate) actions: &'a mut Vec<Action<OpenFile>>,
}

impl<D: DiskAccess> Turn<'_, D> {
    /// Takes the turn: something that happened, what the client has sent, and what comes of both.
    ///
    /// # Errors
    /// [`Dead`]: the connection is to be closed.
    pub(crate) fn take(mut self, event: Option<Event<'_, OpenFile>>) -> Result<Rest, Dead> {
        self.begin_timing(event.is_none());
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
                // What was said last lies in the send queue; it goes out with the next turn.
                break Rest::ComesAgain;
            }
            match self.send()? {
                Sent::All => batches += 1,
                Sent::Nothing | Sent::Waits if self.hear_app() => batches += 1,
                Sent::Nothing | Sent::Waits => break Rest::Nothing,
                Sent::Yields => break Rest::ComesAgain,
            }
        };
        self.connection.app.take_if(|app| app.is_over());
        self.end_timing();
        match rest {
            Rest::Nothing if self.connection.readable && self.connection.conn.wants_bytes() => Ok(Rest::ComesAgain),
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
        if !connection.readable || !connection.conn.wants_bytes() {
            return Ok(());
        }
        let event = match connection.transport.receive(&mut context.buffer) {
            Ok(0) => {
                connection.readable = false;
                Event::Ended
            }
            Ok(count) => {
                // Less than there was room for: nothing is left, and epoll will tell of what comes (epoll(7), "short read").
                // Only the end does not announce itself twice.
                if count < context.buffer.len() && !connection.ending {
                    connection.readable = false;
                }
                Event::Bytes(&context.buffer[..count])
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                connection.readable = false;
                return Ok(());
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return Ok(()),
            Err(_) => return Err(Dead),
        };
        connection.conn.handle(self.now, event, &mut context.shared, self.actions);
        Ok(())
    }

    /// Executes the connection's actions, except sending. The list is empty afterwards.
    fn carry_out(&mut self) -> Result<(), Dead> {
        let mut at = 0;
        // The list grows while it is worked off: an answer of the disk brings further actions.
        while at < self.actions.len() {
            match std::mem::replace(&mut self.actions[at], Action::Close) {
                Action::Send(reply) => {
                    let style = self.context.sender.style();
                    let send_queue = self.connection.send_queue.get_or_insert_with(|| self.context.sender.send_queue());
                    send_queue.put(reply, self.now, &self.context.shared.wall, style);
                }
                Action::Interim(bytes) => self.send_queue().put_interim(bytes),
                Action::Piece(bytes, framed) => self.send_queue().put_piece(&bytes, framed),
                Action::PieceEnd => self.connection.send_queue.iter_mut().for_each(|send_queue| send_queue.put_end()),
                Action::App(ticket, input) => {
                    let Turn { connection, context, .. } = self;
                    let socket = (connection.transport.as_fd(), &mut connection.ends);
                    let config = context.generation.app_context();
                    let said = context.apps.take(&mut connection.app, self.token, (ticket, input), socket, &config);
                    if let Some(output) = said {
                        self.handle(Event::App(ticket, output));
                    }
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

    fn send_queue(&mut self) -> &mut SendQueue {
        self.connection.send_queue.get_or_insert_with(|| self.context.sender.send_queue())
    }

    /// A question for the disk.
    fn ask_disk(&mut self, ticket: Ticket, work: &Work) {
        match self.disk.ask(self.now, self.token, ticket, work, &mut self.context.shared) {
            DiskAnswer::Answered(answer) => self.handle(Event::Disk(ticket, answer)),
            DiskAnswer::Later(delay) => {
                self.handle(Event::Late(ticket, delay));
                if !self.connection.conn.waits_for(ticket) {
                    // What was known has served. A busy name asked for while the disk hesitates would gather hundreds of
                    // thousands who do not wait, and telling them all takes tens of milliseconds.
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

    /// A password to be verified.
    fn verify(&mut self, ticket: Ticket, work: VerifyWork) {
        let Turn { connection, context, .. } = self;
        let client = Client::new(connection.peer.address());
        let asked = match &context.generation.verifier {
            Some(verifier) => {
                verifier.ask(work, client, (Arc::<Mailbox<_>>::clone(&context.mailbox), self.token, ticket))
            }
            // There was one when the site was asked for.
            None => verifier::Verification::Answered(Verdict::Failed),
        };
        let event = match asked {
            verifier::Verification::Answered(verdict) => Event::Disk(ticket, Answer::Verified(verdict)),
            verifier::Verification::Later(asker) => {
                if connection.ending {
                    asker.leaves();
                }
                connection.asker = Some((self.now, asker));
                Event::Late(ticket, Delay::Disk)
            }
        };
        self.handle(event);
    }

    /// Polls the connection's application, if it has one: whether there may be more to do.
    fn hear_app(&mut self) -> bool {
        if self.connection.app.is_none() {
            return false;
        }
        if self.connection.ending && !self.connection.conn.wants_bytes() {
            // The client has closed the connection, with unread bytes before the end.
            self.handle(Event::Ended);
            return true;
        }
        let Turn { connection, context, .. } = self;
        let wants_output = connection.conn.wants_output();
        match context.apps.turn(&mut connection.app, self.token, self.now, wants_output, &mut context.buffer) {
            Heard::Nothing => return false,
            Heard::Again => {}
            Heard::Said(ticket, output) => {
                connection.conn.handle(self.now, Event::App(ticket, output), &mut context.shared, self.actions);
            }
        }
        true
    }

    /// Sends what is in the send queue, and notifies the connection.
    fn send(&mut self) -> Result<Sent, Dead> {
        let Turn { connection, context, now, .. } = self;
        // One that is empty waits for an application to go on.
        let Some(send_queue) = connection.send_queue.as_mut().filter(|send_queue| !send_queue.is_empty()) else {
            return Ok(Sent::Nothing);
        };
        if !connection.writable || connection.cold != Time::NEVER {
            return Ok(Sent::Waits);
        }
        let mut log_context = LogContext {
            // Only JSON lines say how long a request took; for these the time is asked for anew.
            now: if context.log.format() == LogFormat::Json { context.clock.now() } else { *now },
            log: &mut context.log,
            peer: &connection.peer,
            records: &mut context.shared.records,
            wall: &context.shared.wall,
            meter: &mut context.meter,
            timing: &mut connection.timing,
        };
        // A window that has just been fetched is sent without asking again: it may have been evicted in the meantime, and
        // some file systems cannot tell, but a window must come forward at some time.
        let probes = if D::PROBES { Probes::All { fetched: connection.fetched.0 } } else { Probes::None };
        let progress = send_queue.pump(&connection.transport, &mut context.sender, probes, &mut log_context);
        match &progress {
            Progress::Cold(_, range) if range.start == connection.fetched.1 => {}
            Progress::Cold(_, range) => connection.fetched = (0, range.start),
            _ => connection.fetched.0 = 0,
        }
        let all = matches!(progress, Progress::Done);
        connection.conn.handle(*now, Event::Sent { all }, &mut context.shared, self.actions);
        match progress {
            Progress::Done => {
                if let Some(send_queue) = connection.send_queue.take_if(|send_queue| !send_queue.is_open()) {
                    context.sender.give_back(send_queue);
                }
                Ok(Sent::All)
            }
            Progress::Full => {
                connection.writable = false;
                connection.unacknowledged = connection.transport.unacknowledged();
                Ok(Sent::Waits)
            }
            Progress::Cold(content, range) => {
                self.fetch(content, range);
                Ok(Sent::Waits)
            }
            Progress::Yield => Ok(Sent::Yields),
            Progress::Broken => Err(Dead),
        }
    }

    /// Has what is to be sent next brought into memory.
    fn fetch(&mut self, content: Arc<Content<OpenFile>>, range: Range<u64>) {
        let Turn { connection, context, token, now, disk, .. } = self;
        context.cold_windows += 1;
        connection.cold = *now;
        if !disk.warm(*token, content, range) {
            // The helpers' queue is full. The response has been promised: try again when the queue is shorter.
            context.turned_away.push_back(*token);
            context.ask_anew = context.ask_anew.min(*now + ASK_ANEW);
        }
    }
}

/// Of some requests it is measured how long each phase takes (`metrics`).
impl<D> Turn<'_, D> {
    /// `by_client`: nothing but the client's bytes is a reason for this turn.
    fn begin_timing(&mut self, by_client: bool) {
        let Turn { connection, context, .. } = self;
        match &mut connection.timing {
            Some(timing) => timing.resume(),
            None if connection.readable && by_client && connection.conn.is_idle() => {
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
                // Nothing came, or blank lines: a request has not begun.
                None if connection.conn.is_idle() => connection.timing = None,
                None => {}
            }
        }
    }

    fn note_answered(&mut self) {
        let Turn { connection, context, .. } = self;
        // Before sending, so that a request is counted when its client has the response.
        context.meter.heard(context.shared.counts.requests);
        if let (Some(timing), Some(send_queue)) = (&mut connection.timing, &connection.send_queue)
            && matches!(timing.phase(), Phase::Parsing | Phase::Processing)
            && send_queue.holds_reply()
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

/// Bytes received at once; the longest head fits, and many pipelined ones.
pub(crate) const BUFFER: usize = 64 * 1024;

/// Batches of one turn.
const BATCHES_A_TURN: usize = 4;

/// Retry interval of connections that found the helpers' queue full. They also retry when a helper becomes free, which never
/// happens if none could be started.
pub(crate) const ASK_ANEW: Duration = Duration::from_millis(100);
