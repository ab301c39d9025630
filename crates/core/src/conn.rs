//! Stop 3 of 8: one client's connection, from its first byte to its close.
//!
//! Events go in, actions come out (see [`crate::event`]). A request runs through `http/h1/request` (what was sent), then
//! `decide` (what becomes of it), which may want the disk first; this file is the thread through them. Requests that a
//! client sends ahead are answered one behind another: as long as answers come from the caches, a whole batch is answered
//! in one call; whatever takes longer makes the rest wait.
//!
//! An idle connection holds no memory but this struct. A request that waits keeps the bytes of its head and is read again
//! when the wait is over: that costs half a microsecond beside a disk's millisecond, and saves an owned twin of
//! [`Request`].

mod asked;
mod call;

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::mem;
use core::time::Duration;

use amped_http::cgi::{self, BadScript};
use amped_http::h1::body::BodyReader;
use amped_http::h1::request::{self, Expectation, Framing, HeadLimits, Request, Version};
use amped_http::h1::response::Connection;
use amped_http::method::Method;
use amped_http::status::Status;
use amped_units::Time;

use crate::app::{self, AppTrouble, Claim, Output};
use crate::cache::path::Known;
use crate::conn::asked::{Asked, Begun, Stage, Weighed};
use crate::conn::call::{Call, Hand};
use crate::decide::{self, Failure, Made, Question, Step};
use crate::desk::Desk;
use crate::event::{Action, Answer, Delay, Event, Ticket};
use crate::file::{Content, FileHandle};
use crate::limits::Limits;
use crate::pace::Pace;
use crate::plan::Origin;
use crate::record::Outcome;
use crate::reply::{self, Reply, ScriptFraming};

/// Bytes of light replies that one batch may gather before they are sent.
const BATCH_BYTES: u64 = 256 * 1024;

/// A connection.
#[derive(Debug)]
pub struct Conn {
    state: State,
    /// Bytes that were sent and not yet looked at: part of a head, or requests sent ahead. Empty while idle.
    pending: Vec<u8>,
    /// Whether `pending` begins with part of a head whose time runs since `began`.
    partial: bool,
    /// When the first byte of the head being read came, or our side was closed.
    began: Time,
    /// When the state last changed, or something was last sent.
    since: Time,
    /// Requests read so far.
    requests: u32,
    last_ticket: u32,
    /// Replies given since everything was last sent, and their bytes.
    batched: u32,
    batched_bytes: u64,
    /// Whether one of them is heavy: what follows waits until it is out.
    heavy: bool,
    /// Whether anything given is not known to be sent.
    unsent: bool,
    /// Whether the client has closed its side.
    ended: bool,
    /// Whether the server is about to stop.
    finishing: bool,
    /// Whether the next reply is the last, since a body may follow that nobody will read.
    last: bool,
    /// How often the request in hand has been answered with another path by an application.
    detours: u8,
    /// What an application said beside the file that it has the server send for the request in hand.
    beside_file: Option<Box<BesideFile>>,
}

/// Names and values of fields.
type BesideFile = Vec<(Box<str>, Box<[u8]>)>;

#[derive(Debug)]
enum State {
    /// Between requests, or in a head.
    Reading,
    /// The head is there, and its body is being thrown away.
    Body(Box<Unread>),
    /// The disk has been asked.
    Waiting(Box<Waiting>),
    /// An application has been asked, and perhaps answers already.
    App(Box<Asked>),
    /// The last reply has been given. `linger`: the client may still be sending.
    Closing { linger: bool },
    /// Our side is closed; what still comes is dropped (RFC 9112, 9.6).
    Lingering,
    /// Nothing more happens.
    Closed,
}

#[derive(Debug)]
struct Unread {
    head: Vec<u8>,
    began: Time,
    reader: BodyReader,
    /// Bytes of data that may still come: the limit less what has come.
    left: u64,
    pace: Pace,
    /// What the request is refused with when it is gone, and why, where that is known.
    refusal: Option<(Status, &'static str)>,
}

#[derive(Debug)]
struct Waiting {
    head: Vec<u8>,
    began: Time,
    /// As in [`Hand`].
    unread: bool,
    ticket: Ticket,
    /// When the disk was asked, and under which configuration.
    asked: Time,
    generation: u32,
    purpose: Purpose,
    /// What was known of the name, should the answer take long.
    stale: Option<Known>,
    /// Whether the answer is a helper's.
    late: bool,
}

/// What the disk was asked for.
#[derive(Clone, Copy, Debug)]
enum Purpose {
    /// The request's target.
    Target,
    /// The file that serves in place of the target.
    Fallback,
    /// The page that goes with an error.
    ErrorPage(Status, &'static str),
}

impl Conn {
    /// A connection that was accepted at `now`.
    pub fn new(now: Time) -> Conn {
        Conn {
            state: State::Reading,
            pending: Vec::new(),
            partial: false,
            began: now,
            since: now,
            requests: 0,
            last_ticket: 0,
            batched: 0,
            batched_bytes: 0,
            heavy: false,
            unsent: false,
            ended: false,
            finishing: false,
            last: false,
            detours: 0,
            beside_file: None,
        }
    }

    /// Takes in what happened at `now` and appends what is to be done to `actions`.
    pub fn handle<F: FileHandle>(
        &mut self,
        now: Time,
        event: Event<'_, F>,
        desk: &mut Desk<F>,
        actions: &mut Vec<Action<F>>,
    ) {
        let call = &mut Call { now, desk, actions };
        match event {
            Event::Bytes(bytes) => self.take_bytes(call, bytes),
            Event::Ended => self.ended = true,
            Event::Disk(ticket, answer) => self.take_answer(call, ticket, answer),
            Event::App(ticket, output) => self.take_output(call, ticket, output),
            Event::Late(ticket, delay) => self.take_delay(call, ticket, delay),
            Event::Sent { all } => {
                self.since = now;
                if all {
                    self.all_sent(call);
                }
            }
            Event::Deadline => self.take_deadline(call),
            Event::Finish => {
                self.finishing = true;
                if matches!(self.state, State::Reading) && !self.unsent {
                    self.close(call);
                }
            }
            Event::Retire => {
                self.finishing = true;
                if self.may_give_way(now) {
                    self.close(call);
                }
            }
        }
        if self.ended {
            self.take_leave(call);
        }
    }

    /// The client will send nothing more: whatever that leaves without a purpose ends.
    fn take_leave<F: FileHandle>(&mut self, call: &mut Call<'_, F>) {
        match &self.state {
            State::Reading if !self.unsent && !self.blocked(&call.desk.limits) => self.close(call),
            State::Body(_) if !self.unsent => self.close(call),
            State::Lingering => self.close(call),
            // Of two who wait for an application for minutes, one has left and one has only closed its side; they cannot be
            // told apart, and the first is the usual one. What was given before has been promised to either.
            State::App(asked) => {
                let is_cut = matches!(asked.stage, Stage::Body { framing, .. } if framing != ScriptFraming::None);
                self.leave_app(call, "");
                if self.unsent && !is_cut {
                    self.state = State::Closing { linger: false };
                } else {
                    self.close(call);
                }
            }
            State::Reading | State::Body(_) | State::Waiting(_) | State::Closing { .. } | State::Closed => {}
        }
    }

    /// The moment at which [`Event::Deadline`] is due; [`Time::NEVER`] while the server, not the client, is to act.
    pub fn next_due(&self, limits: &Limits) -> Time {
        if self.unsent {
            let due = self.since + limits.send_idle_time;
            return match &self.state {
                State::App(asked) if asked.waits_for_client() => due.min(asked.pace.due()),
                _ => due,
            };
        }
        match self.state {
            State::Reading if self.finishing && self.is_idle() => self.since + FIRST_BYTES.min(limits.head_time),
            State::Reading if self.requests == 0 => self.since + limits.head_time,
            State::Reading if self.partial => self.began + limits.head_time,
            State::Reading => self.since + limits.idle_time,
            State::Body(ref unread) => unread.pace.due(),
            State::Lingering => (self.since + limits.linger_time).min(self.began + LINGER_MAX),
            State::Waiting(_) => self.since + limits.disk_time,
            State::App(ref asked) if asked.waits_for_client() => asked.pace.due(),
            State::App(ref asked) => self.since + asked.time,
            State::Closing { .. } | State::Closed => Time::NEVER,
        }
    }

    /// Whether it is of use to read from the client now. While requests sent ahead pile up, it is not: TCP makes the
    /// client wait.
    pub fn wants_bytes(&self) -> bool {
        // A head that is being read has a limit of its own, which may be higher.
        let room = match &self.state {
            State::App(asked) if !asked.has_body() => asked.wants_body(),
            _ => self.partial || self.pending.len() < PENDING_MAX,
        };
        // Before it is closed it is good to know whether more has come: to close on that would be a reset.
        room && !matches!(self.state, State::Closing { linger: true } | State::Closed)
    }

    /// Whether no request is under way: it could be closed without loss.
    pub fn is_idle(&self) -> bool {
        matches!(self.state, State::Reading) && !self.unsent && self.pending.is_empty()
    }

    /// Whether it may be closed to make room for another: it is idle, and if it is new, its first request has had a moment
    /// to arrive. Otherwise those who come in a crowd would push each other out unheard.
    pub fn may_give_way(&self, now: Time) -> bool {
        self.is_idle() && (self.requests > 0 || now.since(self.since) >= FIRST_BYTES)
    }

    /// Whether the answer to this question would still be of use to it.
    pub fn waits_for(&self, ticket: Ticket) -> bool {
        matches!(&self.state, State::Waiting(waiting) if waiting.ticket == ticket)
    }

    /// Whether what an application says is of use to it now: all that it was given before has been sent.
    pub fn wants_output(&self) -> bool {
        matches!(&self.state, State::App(asked) if !self.unsent || asked.reads_ahead())
    }

    /// Whether it has said [`Action::Close`].
    pub fn is_closed(&self) -> bool {
        matches!(self.state, State::Closed)
    }

    /// Bytes of memory it holds beside itself.
    pub fn heap_bytes(&self) -> usize {
        let state = match &self.state {
            State::Body(unread) => size_of::<Unread>() + unread.head.capacity(),
            State::Waiting(waiting) => size_of::<Waiting>() + waiting.head.capacity(),
            State::App(asked) => asked.heap_bytes(),
            State::Reading | State::Closing { .. } | State::Lingering | State::Closed => 0,
        };
        self.pending.capacity() + state
    }

    fn take_bytes<F: FileHandle>(&mut self, call: &mut Call<'_, F>, bytes: &[u8]) {
        if self.pending.is_empty() {
            let used = self.consume(call, bytes);
            if used < bytes.len() {
                self.pending = bytes[used..].to_vec();
            }
        } else {
            self.pending.extend_from_slice(bytes);
            self.resume(call);
        }
    }

    /// Goes on with what is pending.
    fn resume<F: FileHandle>(&mut self, call: &mut Call<'_, F>) {
        let mut bytes = mem::take(&mut self.pending);
        let used = self.consume(call, &bytes);
        if used < bytes.len() {
            bytes.drain(..used);
            self.pending = bytes;
        }
    }

    /// Takes requests from the start of `bytes` until one has to wait, or no whole one is left. Returns how many bytes
    /// are done with.
    fn consume<F: FileHandle>(&mut self, call: &mut Call<'_, F>, bytes: &[u8]) -> usize {
        let mut at = 0;
        loop {
            match &mut self.state {
                State::Reading => {
                    if self.blocked(&call.desk.limits) {
                        return at;
                    }
                    at += request::blank_lines(&bytes[at..]);
                    if at == bytes.len() {
                        // What looked like part of a head was the first half of a blank line.
                        self.partial = false;
                        return at;
                    }
                    match request::parse(&bytes[at..], &head_limits(&call.desk.limits)) {
                        Ok(None) => {
                            if !mem::replace(&mut self.partial, true) {
                                self.began = call.now;
                            }
                            return at;
                        }
                        Err(bad) => {
                            self.refuse_head(call, bad.status, bad.why, &bytes[at..]);
                            return bytes.len();
                        }
                        Ok(Some((request, length))) => {
                            let began = if mem::take(&mut self.partial) { self.began } else { call.now };
                            let unread = request.framing != Framing::None;
                            let hand = Hand { request, head: &bytes[at..at + length], began, unread };
                            at += length;
                            self.requests += 1;
                            self.detours = 0;
                            self.beside_file = None;
                            call.desk.counts.requests += 1;
                            call.desk.lap.note_head();
                            self.begin(call, &hand, at < bytes.len());
                        }
                    }
                }
                State::Body(unread) => {
                    match unread.reader.next(&bytes[at..]) {
                        Ok(piece) if piece.data.len() as u64 <= unread.left => {
                            unread.left -= piece.data.len() as u64;
                            unread.pace.note(call.now, piece.data.len(), &call.desk.limits);
                            at += piece.used;
                        }
                        // It is told what it was refused for, at once: so much is not waited for.
                        Ok(_) if unread.refusal.is_some() => self.last = true,
                        Ok(_) => {
                            let why = "the body is longer than this server reads";
                            self.refuse_body(call, Status::CONTENT_TOO_LARGE, why);
                            return bytes.len();
                        }
                        Err(_) => {
                            let why = "the chunks of the body are malformed";
                            self.refuse_body(call, Status::BAD_REQUEST, why);
                            return bytes.len();
                        }
                    }
                    if let State::Body(unread) = &mut self.state
                        && (unread.reader.is_done() || self.last)
                    {
                        let (head, began, refusal) = (mem::take(&mut unread.head), unread.began, unread.refusal);
                        self.state = State::Reading;
                        self.take_up(call, &head, (began, false), |conn, call, hand| match refusal {
                            Some((status, why)) => conn.fail(call, hand, status, why),
                            None => conn.answer(call, hand),
                        });
                    } else if at == bytes.len() {
                        return at;
                    }
                }
                State::App(asked) => {
                    if !asked.wants_body() || at == bytes.len() {
                        return at;
                    }
                    match asked.take_body(call, &bytes[at..]) {
                        Ok(used) => {
                            at += used;
                            if !self.unsent {
                                self.since = call.now;
                            }
                        }
                        Err((status, why)) => self.give_up_on_app(call, status, why),
                    }
                }
                State::Waiting(_) => return at,
                State::Closing { linger } => {
                    *linger |= at < bytes.len();
                    return bytes.len();
                }
                State::Lingering => {
                    self.since = call.now;
                    return bytes.len();
                }
                State::Closed => return bytes.len(),
            }
        }
    }

    /// Whether the next request has to wait until what was given before is sent.
    fn blocked(&self, limits: &Limits) -> bool {
        self.heavy || self.batched as usize >= limits.pipelined || self.batched_bytes > BATCH_BYTES
    }

    /// A request whose head is there. `more`: some of what follows it, too.
    fn begin<F: FileHandle>(&mut self, call: &mut Call<'_, F>, hand: &Hand<'_>, more: bool) {
        // An application's body stays where it is until nothing stands between the two: a password may have to be verified,
        // and whether a folder's index is a script only the disk knows.
        if hand.unread && !decide::may_be_for_app(&hand.request, call.desk) {
            self.begin_body(call, hand, more);
        } else {
            self.answer(call, hand);
        }
    }

    /// Throws a body away, within a limit, to find the next request.
    fn drop_body<F>(&mut self, call: &Call<'_, F>, hand: &Hand<'_>, refusal: Option<(Status, &'static str)>) {
        let (reader, left) = (BodyReader::new(hand.request.framing), call.desk.limits.body.0);
        let (head, began) = (hand.head.to_vec(), hand.began);
        let pace = Pace::start(call.now, &call.desk.limits);
        self.state = State::Body(Box::new(Unread { head, began, reader, left, pace, refusal }));
    }

    /// A request with a body that no application gets: no file takes one. `more`: some of it is there already.
    fn begin_body<F: FileHandle>(&mut self, call: &mut Call<'_, F>, hand: &Hand<'_>, more: bool) {
        let limit = call.desk.limits.body.0;
        self.drop_body(call, hand, None);
        if matches!(hand.request.framing, Framing::Length(length) if length > limit) {
            let why = "the body is longer than this server reads";
            return self.refuse_body(call, Status::CONTENT_TOO_LARGE, why);
        }
        if hand.request.expectation == Expectation::Continue && !more {
            // RFC 9110, 10.1.1: a client that is refused at once need not send its body, so whether one comes is not
            // known, and the connection ends with the refusal.
            if !matches!(hand.request.method, Some(Method::Get | Method::Head | Method::Options)) {
                self.last = true;
                return self.answer(call, hand);
            }
            self.unsent = true;
            self.since = call.now;
            call.actions.push(Action::Interim(b"HTTP/1.1 100 Continue\r\n\r\n"));
        }
    }

    /// Takes a request up again that had to wait, by reading its head again.
    fn take_up<F: FileHandle>(
        &mut self,
        call: &mut Call<'_, F>,
        head: &[u8],
        (began, unread): (Time, bool),
        then: impl FnOnce(&mut Conn, &mut Call<'_, F>, &Hand<'_>),
    ) {
        let whole = HeadLimits { request_line: usize::MAX, head: usize::MAX, fields: request::FIELDS_MAX };
        match request::parse(head, &whole) {
            Ok(Some((request, _))) => then(self, call, &Hand { request, head, began, unread }),
            // It was read once from the same bytes.
            Ok(None) | Err(_) => {
                debug_assert!(false, "a head that was good is not good any more");
                self.refuse_head(call, Status::INTERNAL_SERVER_ERROR, "the request was lost", head);
            }
        }
    }

    /// Who asks for what the request in hand names.
    fn origin(&self) -> Origin {
        if self.beside_file.is_some() { Origin::Site } else { Origin::Client }
    }

    /// Answers a request, or asks the disk first.
    fn answer<F: FileHandle>(&mut self, call: &mut Call<'_, F>, hand: &Hand<'_>) {
        let step = decide::first_step(call.now, &hand.request, self.origin(), call.desk);
        self.take_step(call, hand, step);
    }

    fn take_step<F: FileHandle>(&mut self, call: &mut Call<'_, F>, hand: &Hand<'_>, step: Step<F>) {
        match step {
            // No application's after all: its body is thrown away first, then it is answered.
            Step::Reply(_) if hand.unread && !self.last => self.begin_body(call, hand, false),
            Step::Reply(made) => self.give(call, hand, made),
            Step::Ask(question) => self.ask(call, hand, question, Purpose::Target),
            Step::Verify(work) => {
                let ticket = self.wait(call, hand, work.generation, None, Purpose::Target);
                call.actions.push(Action::Verify(ticket, work));
            }
            Step::AskForFallback(question) => self.ask(call, hand, question, Purpose::Fallback),
            Step::Run(claim) => self.run(call, hand, claim),
            Step::Fail(status, why) if hand.unread && !self.last => self.fail_unread(call, hand, status, why),
            Step::Fail(status, why) => self.fail(call, hand, status, why),
        }
    }

    fn fail<F: FileHandle>(&mut self, call: &mut Call<'_, F>, hand: &Hand<'_>, status: Status, why: &'static str) {
        match decide::failure(call.now, &hand.request, status, why, call.desk) {
            Failure::Reply(made) => self.give(call, hand, made),
            Failure::AskForPage(question) => self.ask(call, hand, question, Purpose::ErrorPage(status, why)),
        }
    }

    /// An error in place of an application that was to get the body. A client that is sending it may not listen until it has
    /// sent it all, so it is thrown away first, as that of any other request; but one that waits to be asked for it, or is
    /// about to send more than is thrown away, is told at once.
    fn fail_unread<F: FileHandle>(
        &mut self,
        call: &mut Call<'_, F>,
        hand: &Hand<'_>,
        status: Status,
        why: &'static str,
    ) {
        let limit = call.desk.limits.body.0;
        let is_long = matches!(hand.request.framing, Framing::Length(length) if length > limit);
        if is_long || hand.request.expectation == Expectation::Continue {
            return self.fail(call, hand, status, why);
        }
        self.drop_body(call, hand, Some((status, why)));
    }

    fn ask<F: FileHandle>(&mut self, call: &mut Call<'_, F>, hand: &Hand<'_>, question: Question, purpose: Purpose) {
        let Question { work, stale } = question;
        call.desk.counts.disk_questions += 1;
        let ticket = self.wait(call, hand, work.generation(), stale, purpose);
        call.actions.push(Action::Disk(ticket, work));
    }

    /// Has a request wait for an answer.
    fn wait<F>(
        &mut self,
        call: &Call<'_, F>,
        hand: &Hand<'_>,
        generation: u32,
        stale: Option<Known>,
        purpose: Purpose,
    ) -> Ticket {
        let ticket = self.next_ticket();
        self.state = State::Waiting(Box::new(Waiting {
            head: hand.head.to_vec(),
            began: hand.began,
            unread: hand.unread,
            ticket,
            asked: call.now,
            generation,
            purpose,
            stale,
            late: false,
        }));
        if !self.unsent {
            self.since = call.now;
        }
        ticket
    }

    /// The disk has answered.
    fn take_answer<F: FileHandle>(&mut self, call: &mut Call<'_, F>, ticket: Ticket, answer: Answer<F>) {
        // An answer that nobody waits for any more: the request was answered from what was known, or given up.
        if !self.waits_for(ticket) {
            return;
        }
        let State::Waiting(waiting) = mem::replace(&mut self.state, State::Reading) else {
            return;
        };
        let Waiting { head, began, unread, generation, purpose, late, .. } = *waiting;
        let outcome = if late { Outcome::Helper } else { Outcome::Probe };
        // An answer from under another configuration may be another site's file, with another media type; and a head made
        // of it would be kept. The question is put anew.
        let holds = generation == call.desk.caches.generation();
        self.take_up(call, &head, (began, unread), |conn, call, hand| match purpose {
            _ if !holds || matches!(answer, Answer::Outdated) => conn.begin(call, hand, !conn.pending.is_empty()),
            Purpose::Target => {
                let answer = (conn.origin(), answer);
                let step = decide::step_after(call.now, &hand.request, answer, outcome, call.desk);
                conn.take_step(call, hand, step);
            }
            Purpose::Fallback => {
                let step = decide::fallback_after(&hand.request, answer, outcome, call.desk);
                conn.take_step(call, hand, step);
            }
            Purpose::ErrorPage(status, why) => {
                let made = decide::error_after(&hand.request, answer, status, why, call.desk);
                conn.give(call, hand, made);
            }
        });
        self.resume(call);
    }

    /// The answer will take a while. What is known of the name, if it is not too old, serves in the meantime.
    fn take_delay<F: FileHandle>(&mut self, call: &mut Call<'_, F>, ticket: Ticket, delay: Delay) {
        let State::Waiting(waiting) = &mut self.state else {
            return;
        };
        if waiting.ticket != ticket {
            return;
        }
        waiting.late = true;
        match delay {
            Delay::Disk => {}
            Delay::Change => waiting.stale = None,
        }
        let holds = waiting.generation == call.desk.caches.generation();
        // Its age was taken with the question, which may have been some time ago.
        let (stale_max, since) = (call.desk.caches.budgets.stale_max, call.now.since(waiting.asked));
        let Some(known) = waiting.stale.take().filter(|known| holds && known.age + since < stale_max) else {
            return;
        };
        let (head, began, unread) = (mem::take(&mut waiting.head), waiting.began, waiting.unread);
        let mut given = false;
        self.take_up(call, &head, (began, unread), |conn, call, hand| {
            let answer = (conn.origin(), Answer::Name(known.meaning, Vec::new()));
            if let Step::Reply(made) = decide::step_after(call.now, &hand.request, answer, Outcome::Stale, call.desk) {
                given = true;
                call.desk.counts.stale_hits += 1;
                conn.state = State::Reading;
                conn.give(call, hand, made);
            }
        });
        if given {
            self.resume(call);
        } else if let State::Waiting(waiting) = &mut self.state {
            waiting.head = head;
        }
    }

    fn next_ticket(&mut self) -> Ticket {
        self.last_ticket = self.last_ticket.wrapping_add(1);
        Ticket(self.last_ticket)
    }

    /// Has an application answer a request.
    fn run<F: FileHandle>(&mut self, call: &mut Call<'_, F>, hand: &Hand<'_>, claim: Claim) {
        if self.ended {
            // Nobody waits for what it would say.
            self.state = State::Closing { linger: false };
            if !self.unsent {
                self.close(call);
            }
            return;
        }
        // This application answers for itself, also where another one has named it as a file to send.
        self.beside_file = None;
        let ticket = self.next_ticket();
        match Asked::begin(call, hand, claim, ticket) {
            Begun::Asked(asked) => {
                self.state = State::App(asked);
                self.since = call.now;
                if hand.unread && hand.request.expectation == Expectation::Continue {
                    self.unsent = true;
                    call.actions.push(Action::Interim(b"HTTP/1.1 100 Continue\r\n\r\n"));
                }
            }
            Begun::Kept(made) => self.give(call, hand, made),
            Begun::Refused(status, why) => {
                // What comes behind a head that is refused here is its body, which nobody will read.
                self.last |= hand.unread;
                self.fail(call, hand, status, why);
            }
        }
    }

    /// Does something about the request that an application has, by reading its head again.
    fn with_asked<F: FileHandle>(
        &mut self,
        call: &mut Call<'_, F>,
        then: impl FnOnce(&mut Conn, &mut Call<'_, F>, &Hand<'_>),
    ) {
        let State::App(asked) = &mut self.state else {
            return;
        };
        let (head, began) = (mem::take(&mut asked.head), asked.began);
        self.take_up(call, &head, (began, false), then);
        if let State::App(asked) = &mut self.state {
            asked.head = head;
        }
    }

    /// It is this request for which the page is made.
    fn begin_page<F: FileHandle>(&mut self, call: &mut Call<'_, F>) {
        self.with_asked(call, |conn, call, hand| {
            if let State::App(asked) = &conn.state
                && let Some(made) = asked.begin_page(call, hand)
            {
                conn.give(call, hand, made);
            }
        });
        if !matches!(self.state, State::App(_)) {
            self.resume(call);
        }
    }

    /// Has waited for another's answer for as long as for one of its own, and asks for that now.
    fn run_alone<F: FileHandle>(&mut self, call: &mut Call<'_, F>) {
        let ticket = self.next_ticket();
        self.since = call.now;
        self.with_asked(call, |conn, call, hand| {
            if let State::App(asked) = &mut conn.state {
                asked.run_alone(call, hand, ticket);
            }
        });
    }

    /// Who has made the page for which this one waited has done so, or gone.
    fn look_again<F: FileHandle>(&mut self, call: &mut Call<'_, F>) {
        if let State::App(asked) = mem::replace(&mut self.state, State::Reading) {
            self.take_up(call, &asked.head, (asked.began, false), |conn, call, hand| conn.answer(call, hand));
            self.resume(call);
        }
    }

    /// The application says something.
    fn take_output<F: FileHandle>(&mut self, call: &mut Call<'_, F>, ticket: Ticket, output: Output<'_>) {
        let State::App(asked) = &mut self.state else {
            return;
        };
        if asked.ticket != ticket {
            return;
        }
        if !self.unsent {
            self.since = call.now;
        }
        match output {
            Output::Begun => asked.begun = true,
            Output::First => self.begin_page(call),
            Output::Follows => asked.note_followed(call),
            Output::Again => self.look_again(call),
            Output::Room => {
                asked.note_room(call.now);
                self.resume(call);
            }
            Output::Bytes(bytes) => self.take_output_bytes(call, bytes, false),
            Output::Last(bytes) => {
                self.take_output_bytes(call, bytes, true);
                // Unless it was given up on.
                if matches!(&self.state, State::App(asked) if asked.ticket == ticket) {
                    self.end_app(call, None);
                }
            }
            Output::Ended => self.end_app(call, None),
            Output::Failed(trouble) => self.end_app(call, Some(trouble)),
        }
    }

    /// `is_last`: its answer is complete with these.
    fn take_output_bytes<F: FileHandle>(&mut self, call: &mut Call<'_, F>, bytes: &[u8], is_last: bool) {
        let State::App(asked) = &mut self.state else {
            return;
        };
        let Some(left) = asked.output_left.checked_sub(bytes.len() as u64) else {
            return self.give_up_on_app(call, Status::BAD_GATEWAY, "the application says more than it may");
        };
        asked.output_left = left;
        match &mut asked.stage {
            Stage::Rest(_) => {}
            Stage::Body { .. } => self.unsent |= asked.pass_body(call, bytes),
            Stage::Head(known) => {
                known.extend_from_slice(bytes);
                let said = mem::take(known);
                match cgi::parse(&said) {
                    Ok(None) => *known = said,
                    Ok(Some((head, length))) => self.take_script_head(call, &head, &said[length..], is_last),
                    Err(BadScript(why)) => self.give_up_on_app(call, Status::BAD_GATEWAY, why),
                }
            }
        }
    }

    /// The head of an application's answer is there, and this is what has come behind it. `is_last`: nothing follows.
    fn take_script_head<F: FileHandle>(
        &mut self,
        call: &mut Call<'_, F>,
        said: &cgi::ScriptHead<'_>,
        rest: &[u8],
        is_last: bool,
    ) {
        let State::App(asked) = &mut self.state else {
            return;
        };
        let status = match asked.weigh(call, said, self.detours < DETOURS_MAX) {
            Weighed::Reply(status) => status,
            Weighed::Instead => {
                if said.send.is_some() {
                    self.beside_file = Some(Box::new(app::fields_beside_file(said)));
                }
                return;
            }
            Weighed::Bad(why) => return self.give_up_on_app(call, Status::BAD_GATEWAY, why),
        };
        self.with_asked(call, |conn, call, hand| {
            let State::App(asked) = &mut conn.state else {
                return;
            };
            let (made, framing) = asked.reply(call, hand, said, status, is_last.then_some(rest.len()));
            conn.last |= framing == ScriptFraming::UntilClose;
            let (persists, connection) = conn.prospect(call, &hand.request);
            conn.put_reply(call, hand, made, connection);
            if let State::App(asked) = &mut conn.state {
                asked.stage = Stage::Body { framing, persists, linger: hand.request.keep_alive };
            }
        });
        if let State::App(asked) = &mut self.state {
            self.unsent |= asked.pass_body(call, rest);
        }
    }

    /// The application has come to its end, well or not.
    fn end_app<F: FileHandle>(&mut self, call: &mut Call<'_, F>, trouble: Option<AppTrouble>) {
        let State::App(asked) = &mut self.state else {
            return;
        };
        // If it wants no more of the body, that may still be on its way.
        self.last |= !asked.has_body();
        match (asked.end(call, trouble), trouble) {
            (Stage::Head(_), trouble) => {
                let (status, why) = asked.failure(call, trouble);
                self.fail_app(call, status, why);
            }
            (Stage::Rest(instead), _) => {
                let began = asked.began;
                self.detours += 1;
                self.state = State::Reading;
                self.take_up(call, &instead, (began, false), |conn, call, hand| conn.answer(call, hand));
                self.resume(call);
            }
            // It was told without a body.
            (Stage::Body { framing: ScriptFraming::None, persists, linger }, _) => {
                self.end_answer(call, persists, linger);
            }
            (Stage::Body { framing: ScriptFraming::Length(1..), .. }, _) | (Stage::Body { .. }, Some(_)) => {
                // The client must see that what it has is not all.
                self.leave_app(call, "the application has ended before its answer was complete");
                self.close(call);
            }
            (Stage::Body { framing, persists, linger }, None) => {
                if framing == ScriptFraming::Chunked {
                    call.actions.push(Action::Piece(LAST_CHUNK.to_vec(), LAST_CHUNK.len()));
                }
                call.actions.push(Action::PieceEnd);
                self.unsent = true;
                self.end_answer(call, persists, linger);
            }
        }
    }

    /// An application's answer has been passed on as a whole.
    fn end_answer<F: FileHandle>(&mut self, call: &mut Call<'_, F>, persists: bool, linger: bool) {
        let linger = linger || self.last;
        self.state = if persists && !self.last { State::Reading } else { State::Closing { linger } };
        if self.unsent {
            self.resume(call);
        } else {
            // Also where the application was given up on: its time is over, that of the next request begins.
            self.since = call.now;
            self.all_sent(call);
        }
    }

    /// There is no answer, or no end of one, and the application is to go.
    fn give_up_on_app<F: FileHandle>(&mut self, call: &mut Call<'_, F>, status: Status, why: &'static str) {
        let State::App(asked) = &mut self.state else {
            return;
        };
        asked.give_up(call, status, why);
        self.last |= !asked.has_body();
        match asked.stage {
            Stage::Body { framing: ScriptFraming::None, persists, linger } => self.end_answer(call, persists, linger),
            Stage::Body { .. } => self.close(call),
            Stage::Head(_) | Stage::Rest(_) => self.fail_app(call, status, why),
        }
    }

    /// An error in place of an application's answer.
    fn fail_app<F: FileHandle>(&mut self, call: &mut Call<'_, F>, status: Status, why: &'static str) {
        let State::App(asked) = mem::replace(&mut self.state, State::Reading) else {
            return;
        };
        self.take_up(call, &asked.head, (asked.began, false), |conn, call, hand| {
            conn.take_step(call, hand, Step::Fail(status, why));
        });
        self.resume(call);
    }

    /// Lets the application know, if there is one, that nobody waits for it, and why.
    fn leave_app<F>(&mut self, call: &mut Call<'_, F>, why: &'static str) {
        if let State::App(asked) = &self.state {
            asked.leave(call, why);
        }
    }

    /// Gives a reply to a request.
    fn give<F: FileHandle>(&mut self, call: &mut Call<'_, F>, hand: &Hand<'_>, made: Made<F>) {
        let Made { mut head, body, outcome } = made;
        if let Some(fields) = self.beside_file.take()
            && matches!(head.get().status(), Status::OK | Status::PARTIAL_CONTENT | Status::NOT_MODIFIED)
        {
            head = reply::beside_file(&head, &fields);
        }
        let request = &hand.request;
        // What follows is its body, which nobody will read.
        self.last |= hand.unread;
        let (persists, connection) = self.prospect(call, request);
        // A client that did not ask for the end may be sending more. To close on that would reset the connection and take
        // the reply away before it is read (RFC 9112, 9.6).
        let linger = request.keep_alive || self.last;
        self.state = if persists { State::Reading } else { State::Closing { linger } };
        self.put_reply(call, hand, Made { head, body, outcome }, connection);
    }

    /// Whether the connection outlives the next reply, and what that says of it.
    fn prospect<F>(&self, call: &Call<'_, F>, request: &Request<'_>) -> (bool, Connection) {
        let requests_max = call.desk.limits.requests;
        let persists = request.keep_alive && !self.last && !self.finishing && self.requests < requests_max;
        let connection = match (persists, request.version) {
            (false, _) => Connection::Close,
            (true, Version::Http10) => Connection::KeepAlive,
            (true, Version::Http11) => Connection::Persists,
        };
        (persists, connection)
    }

    fn put_reply<F>(&mut self, call: &mut Call<'_, F>, hand: &Hand<'_>, made: Made<F>, connection: Connection) {
        let (Made { head, body, outcome }, request) = (made, &hand.request);
        let mut record = call.desk.records.take();
        record.note(request, hand.began);
        if request.authorization.is_some()
            && let Some(credentials) = decide::claimed_name(request, call.desk)
        {
            record.note_user(credentials.name());
        }
        record.set(head.get().status(), outcome);
        record.site = call.desk.sites.for_host(request.host).number;
        body.note_in(&mut record);
        self.batched += 1;
        self.batched_bytes += body.len();
        self.heavy |= body.is_heavy();
        self.unsent = true;
        self.since = call.now;
        call.actions.push(Action::Send(Reply { head, connection, body, record }));
    }

    /// A head that cannot be read, or not in time: an answer, and the end.
    fn refuse_head<F: FileHandle>(&mut self, call: &mut Call<'_, F>, status: Status, why: &str, bytes: &[u8]) {
        let began = if self.partial { self.began } else { call.now };
        self.refuse(call, status, why, bytes, began);
    }

    /// A body that cannot be read to its end, or not in time: the same.
    fn refuse_body<F: FileHandle>(&mut self, call: &mut Call<'_, F>, status: Status, why: &str) {
        let (head, began) = match &mut self.state {
            State::Body(unread) => (mem::take(&mut unread.head), unread.began),
            _ => (Vec::new(), call.now),
        };
        self.refuse(call, status, why, &head, began);
    }

    fn refuse<F: FileHandle>(&mut self, call: &mut Call<'_, F>, status: Status, why: &str, bytes: &[u8], began: Time) {
        call.desk.counts.bad_requests += 1;
        let mut record = call.desk.records.take();
        record.note_unreadable(bytes, began);
        record.set(status, Outcome::None);
        // RFC 9110, 9.3.2: nothing follows the head of a reply to HEAD, whatever was wrong with the rest of the request.
        let (head, body) = reply::bad_head(status, why, bytes.starts_with(b"HEAD "));
        body.note_in(&mut record);
        self.state = State::Closing { linger: true };
        self.partial = false;
        self.unsent = true;
        self.since = call.now;
        call.actions.push(Action::Send(Reply { head, connection: Connection::Close, body, record }));
    }

    /// All that was given has been sent.
    fn all_sent<F: FileHandle>(&mut self, call: &mut Call<'_, F>) {
        self.unsent = false;
        self.batched = 0;
        self.batched_bytes = 0;
        self.heavy = false;
        match self.state {
            State::Closing { linger: true } if !self.ended => self.half_close(call),
            State::Closing { .. } => self.close(call),
            State::Reading => {
                if !self.pending.is_empty() {
                    self.resume(call);
                }
                if matches!(self.state, State::Reading) && !self.unsent && self.finishing && !self.ended {
                    self.half_close(call);
                }
            }
            State::Body(_) | State::Waiting(_) | State::App(_) | State::Lingering | State::Closed => {}
        }
    }

    fn take_deadline<F: FileHandle>(&mut self, call: &mut Call<'_, F>) {
        if call.now < self.next_due(&call.desk.limits) {
            return;
        }
        if self.unsent {
            self.leave_app(call, "");
            return self.close(call);
        }
        match self.state {
            // RFC 9110, 15.5.9.
            State::Reading if self.partial => {
                let head = mem::take(&mut self.pending);
                let why = "the request's head took too long to arrive";
                self.refuse_head(call, Status::REQUEST_TIMEOUT, why, &head);
            }
            State::Body(_) => {
                let why = "the request's body took too long to arrive";
                self.refuse_body(call, Status::REQUEST_TIMEOUT, why);
            }
            State::Reading | State::Lingering => self.close(call),
            State::Waiting(_) => self.give_up_on_disk(call),
            State::App(ref asked) if asked.follows() => self.run_alone(call),
            State::App(ref asked) => {
                let (status, why) = asked.overdue();
                self.give_up_on_app(call, status, why);
            }
            State::Closing { .. } | State::Closed => {}
        }
    }

    /// The disk has not answered in time. Its answer, should it come, is nobody's any more.
    fn give_up_on_disk<F: FileHandle>(&mut self, call: &mut Call<'_, F>) {
        let State::Waiting(waiting) = mem::replace(&mut self.state, State::Reading) else {
            return;
        };
        let Waiting { head, began, unread, .. } = *waiting;
        call.desk.counts.shed += 1;
        self.take_up(call, &head, (began, unread), |conn, call, hand| {
            let why = "the disk does not answer; try again in a while";
            let made = decide::plain_failure(&hand.request, Status::SERVICE_UNAVAILABLE, why, call.desk);
            conn.give(call, hand, made);
        });
        self.resume(call);
    }

    fn half_close<F: FileHandle>(&mut self, call: &mut Call<'_, F>) {
        self.state = State::Lingering;
        (self.began, self.since) = (call.now, call.now);
        self.pending = Vec::new();
        call.actions.push(Action::HalfClose);
    }

    fn close<F: FileHandle>(&mut self, call: &mut Call<'_, F>) {
        self.state = State::Closed;
        self.pending = Vec::new();
        call.actions.push(Action::Close);
    }
}

/// Bytes that one client may send ahead of the replies.
const PENDING_MAX: usize = 64 * 1024;

/// Applications that may send one request on from one to the next.
const DETOURS_MAX: u8 = 10;

/// RFC 9112, 7.1.
const LAST_CHUNK: &[u8] = b"0\r\n\r\n";

/// After our side was closed a client is read from for so long at most; the default of nginx (`lingering_time`).
const LINGER_MAX: Duration = Duration::from_secs(30);

/// The first bytes follow the connection by one round trip; a second is a long one.
const FIRST_BYTES: Duration = Duration::from_secs(1);

fn head_limits(limits: &Limits) -> HeadLimits {
    HeadLimits {
        request_line: limits.request_line.as_usize(),
        head: limits.head.as_usize(),
        fields: limits.fields.min(request::FIELDS_MAX),
    }
}

/// Keeps the compiler's eye on what a connection costs: thousands of them lie idle.
const _: () = assert!(size_of::<Conn>() <= 112);

/// So that contents can be shared between loops' threads where their files can.
const _: fn() = || {
    fn is_send<T: Send>() {}
    is_send::<Conn>();
    is_send::<Arc<Content<u8>>>();
};
