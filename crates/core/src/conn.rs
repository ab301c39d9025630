//! Stop 3 of 8: one client's connection, from its first byte to its close.
//!
//! Events go in, actions come out (see [`crate::event`]). A request runs through `http/h1/request` (what was sent), `plan`
//! (what is asked for), the caches or else the disk, and `reply` (what is sent back); this file is the thread through
//! them. Requests that a client sends ahead are answered one behind another: as long as answers come from the caches, a
//! whole batch is answered in one call; whatever takes longer makes the rest wait.
//!
//! An idle connection holds no memory but this struct. A request that waits keeps the bytes of its head and is read again
//! when the wait is over: that costs half a microsecond beside a disk's millisecond, and saves an owned twin of
//! [`Request`].

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::mem;
use core::time::Duration;

use amped_http::h1::body::BodyReader;
use amped_http::h1::request::{self, Expectation, Framing, HeadLimits, Request, Version};
use amped_http::h1::response::Connection;
use amped_http::method::Method;
use amped_http::negotiate;
use amped_http::status::Status;
use amped_http::uri::{self, Target};
use amped_units::Time;

use crate::cache::path::{Known, Meaning};
use crate::desk::Desk;
use crate::event::{Action, Answer, Delay, Event, ListWork, Ticket, Trouble, Work};
use crate::file::{Content, FileHandle};
use crate::limits::Limits;
use crate::listing::{ListForm, ListOrder};
use crate::plan::{self, Look, Plan};
use crate::record::Outcome;
use crate::reply::{self, Body, Reply, ReplyHead};
use crate::site::Site;

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
    /// When the first byte of the head or body being read came.
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
}

#[derive(Debug)]
enum State {
    /// Between requests, or in a head.
    Reading,
    /// The head is there, and its body is being thrown away.
    Body(Box<Unread>),
    /// The disk has been asked.
    Waiting(Box<Waiting>),
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
}

#[derive(Debug)]
struct Waiting {
    head: Vec<u8>,
    began: Time,
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
    /// The page that goes with an error.
    ErrorPage(Status, &'static str),
}

/// What to do next for a request.
enum Step<F> {
    Reply(ReplyHead, Body<F>, Outcome),
    Ask(Work, Option<Known>),
    Fail(Status, &'static str),
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
        match event {
            Event::Bytes(bytes) => self.take_bytes(now, bytes, desk, actions),
            Event::Ended => {
                self.ended = true;
                match self.state {
                    State::Reading if !self.unsent && !self.blocked(&desk.limits) => self.close(actions),
                    State::Body(_) if !self.unsent => self.close(actions),
                    State::Lingering => self.close(actions),
                    State::Reading | State::Body(_) | State::Waiting(_) | State::Closing { .. } | State::Closed => {}
                }
            }
            Event::Disk(ticket, answer) => self.take_answer(now, ticket, answer, desk, actions),
            Event::Late(ticket, delay) => self.take_delay(now, ticket, delay, desk, actions),
            Event::Sent { all } => {
                self.since = now;
                if all {
                    self.all_sent(now, desk, actions);
                }
            }
            Event::Deadline => self.take_deadline(now, desk, actions),
            Event::Finish => {
                self.finishing = true;
                if matches!(self.state, State::Reading) && !self.unsent {
                    self.close(actions);
                }
            }
        }
    }

    /// The moment at which [`Event::Deadline`] is due; [`Time::NEVER`] while the server, not the client, is to act.
    pub fn next_due(&self, limits: &Limits) -> Time {
        if self.unsent {
            return self.since + limits.send_idle_time;
        }
        match self.state {
            State::Reading if self.requests == 0 => self.since + limits.head_time,
            State::Reading if self.partial => self.began + limits.head_time,
            State::Reading => self.since + limits.idle_time,
            State::Body(_) => self.began + limits.body_time,
            State::Lingering => self.since + limits.linger_time,
            State::Waiting(_) => self.since + limits.disk_time,
            State::Closing { .. } | State::Closed => Time::NEVER,
        }
    }

    /// Whether it is of use to read from the client now. While requests sent ahead pile up, it is not: TCP makes the
    /// client wait.
    pub fn wants_bytes(&self) -> bool {
        // A head that is being read has a limit of its own, which may be higher.
        let room = self.partial || self.pending.len() < PENDING_MAX;
        room && !matches!(self.state, State::Closing { .. } | State::Closed)
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

    /// Whether it has said [`Action::Close`].
    pub fn is_closed(&self) -> bool {
        matches!(self.state, State::Closed)
    }

    /// Bytes of memory it holds beside itself.
    pub fn heap_bytes(&self) -> usize {
        let state = match &self.state {
            State::Body(unread) => size_of::<Unread>() + unread.head.capacity(),
            State::Waiting(waiting) => size_of::<Waiting>() + waiting.head.capacity(),
            State::Reading | State::Closing { .. } | State::Lingering | State::Closed => 0,
        };
        self.pending.capacity() + state
    }

    fn take_bytes<F: FileHandle>(&mut self, now: Time, bytes: &[u8], desk: &mut Desk<F>, actions: &mut Vec<Action<F>>) {
        if self.pending.is_empty() {
            let used = self.consume(now, bytes, desk, actions);
            if used < bytes.len() {
                self.pending = bytes[used..].to_vec();
            }
        } else {
            self.pending.extend_from_slice(bytes);
            self.resume(now, desk, actions);
        }
    }

    /// Goes on with what is pending.
    fn resume<F: FileHandle>(&mut self, now: Time, desk: &mut Desk<F>, actions: &mut Vec<Action<F>>) {
        let mut bytes = mem::take(&mut self.pending);
        let used = self.consume(now, &bytes, desk, actions);
        if used < bytes.len() {
            bytes.drain(..used);
            self.pending = bytes;
        }
    }

    /// Takes requests from the start of `bytes` until one has to wait, or no whole one is left. Returns how many bytes
    /// are done with.
    fn consume<F: FileHandle>(
        &mut self,
        now: Time,
        bytes: &[u8],
        desk: &mut Desk<F>,
        actions: &mut Vec<Action<F>>,
    ) -> usize {
        let mut at = 0;
        loop {
            match &mut self.state {
                State::Reading => {
                    if self.blocked(&desk.limits) {
                        return at;
                    }
                    at += request::blank_lines(&bytes[at..]);
                    if at == bytes.len() {
                        // What looked like part of a head was the first half of a blank line.
                        self.partial = false;
                        return at;
                    }
                    match request::parse(&bytes[at..], &head_limits(&desk.limits)) {
                        Ok(None) => {
                            if !mem::replace(&mut self.partial, true) {
                                self.began = now;
                            }
                            return at;
                        }
                        Err(bad) => {
                            self.refuse_head(now, bad.status, bad.why, &bytes[at..], desk, actions);
                            return bytes.len();
                        }
                        Ok(Some((request, length))) => {
                            let began = if mem::take(&mut self.partial) { self.began } else { now };
                            let head = &bytes[at..at + length];
                            at += length;
                            self.requests += 1;
                            desk.counts.requests += 1;
                            let more = at < bytes.len();
                            match request.framing {
                                Framing::None => self.answer(now, began, &request, head, desk, actions),
                                _ => self.begin_body(now, began, &request, head, more, desk, actions),
                            }
                        }
                    }
                }
                State::Body(unread) => {
                    match unread.reader.next(&bytes[at..]) {
                        Ok(piece) if piece.data.len() as u64 <= unread.left => {
                            unread.left -= piece.data.len() as u64;
                            at += piece.used;
                        }
                        Ok(_) => {
                            let why = "the body is longer than this server reads";
                            self.refuse_body(now, Status::CONTENT_TOO_LARGE, why, desk, actions);
                            return bytes.len();
                        }
                        Err(_) => {
                            let why = "the chunks of the body are malformed";
                            self.refuse_body(now, Status::BAD_REQUEST, why, desk, actions);
                            return bytes.len();
                        }
                    }
                    if let State::Body(unread) = &mut self.state
                        && unread.reader.is_done()
                    {
                        let (head, began) = (mem::take(&mut unread.head), unread.began);
                        self.state = State::Reading;
                        self.answer_again(now, began, &head, desk, actions, |conn, request, desk, actions| {
                            conn.answer(now, began, request, &head, desk, actions);
                        });
                    } else if at == bytes.len() {
                        return at;
                    }
                }
                State::Waiting(_) => return at,
                State::Closing { .. } | State::Lingering | State::Closed => return bytes.len(),
            }
        }
    }

    /// Whether the next request has to wait until what was given before is sent.
    fn blocked(&self, limits: &Limits) -> bool {
        self.heavy || self.batched as usize >= limits.pipelined || self.batched_bytes > BATCH_BYTES
    }

    /// A request with a body: no file takes one, so it is thrown away, within a limit, to find the next request.
    #[expect(clippy::too_many_arguments, reason = "a request's head comes with its bytes and its time")]
    fn begin_body<F: FileHandle>(
        &mut self,
        now: Time,
        began: Time,
        request: &Request<'_>,
        head: &[u8],
        more: bool,
        desk: &mut Desk<F>,
        actions: &mut Vec<Action<F>>,
    ) {
        let limit = desk.limits.body.0;
        let unread = Unread { head: head.to_vec(), began, reader: BodyReader::new(request.framing), left: limit };
        self.state = State::Body(Box::new(unread));
        self.began = now;
        if matches!(request.framing, Framing::Length(length) if length > limit) {
            let why = "the body is longer than this server reads";
            return self.refuse_body(now, Status::CONTENT_TOO_LARGE, why, desk, actions);
        }
        if request.expectation == Expectation::Continue && !more {
            // RFC 9110, 10.1.1: a client that is refused at once need not send its body, so whether one comes is not
            // known, and the connection ends with the refusal.
            if !matches!(request.method, Some(Method::Get | Method::Head | Method::Options)) {
                self.last = true;
                return self.answer(now, began, request, head, desk, actions);
            }
            self.unsent = true;
            self.since = now;
            actions.push(Action::Interim(b"HTTP/1.1 100 Continue\r\n\r\n"));
        }
    }

    /// Reads a head again that was read before, for a request that had to wait.
    fn answer_again<F: FileHandle>(
        &mut self,
        now: Time,
        began: Time,
        head: &[u8],
        desk: &mut Desk<F>,
        actions: &mut Vec<Action<F>>,
        then: impl FnOnce(&mut Conn, &Request<'_>, &mut Desk<F>, &mut Vec<Action<F>>),
    ) {
        let whole = HeadLimits { request_line: usize::MAX, head: usize::MAX, fields: request::FIELDS_MAX };
        match request::parse(head, &whole) {
            Ok(Some((request, _))) => then(self, &request, desk, actions),
            // It was read once from the same bytes.
            Ok(None) | Err(_) => {
                debug_assert!(false, "a head that was good is not good any more");
                self.began = began;
                self.refuse_head(now, Status::INTERNAL_SERVER_ERROR, "the request was lost", head, desk, actions);
            }
        }
    }

    /// Answers a request, or asks the disk first.
    fn answer<F: FileHandle>(
        &mut self,
        now: Time,
        began: Time,
        request: &Request<'_>,
        head: &[u8],
        desk: &mut Desk<F>,
        actions: &mut Vec<Action<F>>,
    ) {
        let step = first_step(now, request, desk);
        self.take_step(now, began, request, head, step, desk, actions);
    }

    #[expect(clippy::too_many_arguments, reason = "a request's head comes with its bytes and its time")]
    fn take_step<F: FileHandle>(
        &mut self,
        now: Time,
        began: Time,
        request: &Request<'_>,
        head: &[u8],
        step: Step<F>,
        desk: &mut Desk<F>,
        actions: &mut Vec<Action<F>>,
    ) {
        match step {
            Step::Reply(reply_head, body, outcome) => {
                self.give(now, began, request, reply_head, body, outcome, desk, actions);
            }
            Step::Ask(work, stale) => self.ask(now, began, head, work, stale, Purpose::Target, desk, actions),
            Step::Fail(status, why) => match failure(now, request, status, why, desk) {
                Step::Ask(work, stale) => {
                    let purpose = Purpose::ErrorPage(status, why);
                    self.ask(now, began, head, work, stale, purpose, desk, actions);
                }
                Step::Reply(reply_head, body, outcome) => {
                    self.give(now, began, request, reply_head, body, outcome, desk, actions);
                }
                Step::Fail(..) => unreachable!("a failure is told or asked about"),
            },
        }
    }

    #[expect(clippy::too_many_arguments, reason = "a request's head comes with its bytes and its time")]
    fn ask<F: FileHandle>(
        &mut self,
        now: Time,
        began: Time,
        head: &[u8],
        work: Work,
        stale: Option<Known>,
        purpose: Purpose,
        desk: &mut Desk<F>,
        actions: &mut Vec<Action<F>>,
    ) {
        self.last_ticket = self.last_ticket.wrapping_add(1);
        let ticket = Ticket(self.last_ticket);
        desk.counts.disk_questions += 1;
        let generation = work.generation();
        let (head, asked) = (head.to_vec(), now);
        let waiting = Waiting { head, began, ticket, asked, generation, purpose, stale, late: false };
        self.state = State::Waiting(Box::new(waiting));
        if !self.unsent {
            self.since = now;
        }
        actions.push(Action::Disk(ticket, work));
    }

    /// The disk has answered.
    fn take_answer<F: FileHandle>(
        &mut self,
        now: Time,
        ticket: Ticket,
        answer: Answer<F>,
        desk: &mut Desk<F>,
        actions: &mut Vec<Action<F>>,
    ) {
        // An answer that nobody waits for any more: the request was answered from what was known, or given up.
        if !matches!(&self.state, State::Waiting(waiting) if waiting.ticket == ticket) {
            return;
        }
        let State::Waiting(waiting) = mem::replace(&mut self.state, State::Reading) else {
            return;
        };
        let Waiting { head, began, generation, purpose, late, .. } = *waiting;
        let outcome = if late { Outcome::Helper } else { Outcome::Probe };
        // An answer from under another configuration may be another site's file, with another media type; and a head made
        // of it would be kept. The question is put anew.
        let holds = generation == desk.caches.generation();
        self.answer_again(now, began, &head, desk, actions, |conn, request, desk, actions| match purpose {
            _ if !holds => conn.answer(now, began, request, &head, desk, actions),
            Purpose::Target => {
                let step = step_after(request, answer, outcome, desk);
                conn.take_step(now, began, request, &head, step, desk, actions);
            }
            Purpose::ErrorPage(status, why) => {
                let (reply_head, body) = error_after(request, answer, status, why, desk);
                conn.give(now, began, request, reply_head, body, Outcome::None, desk, actions);
            }
        });
        self.resume(now, desk, actions);
    }

    /// The answer will take a while. What is known of the name, if it is not too old, serves in the meantime.
    fn take_delay<F: FileHandle>(
        &mut self,
        now: Time,
        ticket: Ticket,
        delay: Delay,
        desk: &mut Desk<F>,
        actions: &mut Vec<Action<F>>,
    ) {
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
        let holds = waiting.generation == desk.caches.generation();
        // Its age was taken with the question, which may have been some time ago.
        let (stale_max, since) = (desk.caches.budgets.stale_max, now.since(waiting.asked));
        let Some(known) = waiting.stale.take().filter(|known| holds && known.age + since < stale_max) else {
            return;
        };
        let (head, began) = (mem::take(&mut waiting.head), waiting.began);
        let mut given = false;
        self.answer_again(now, began, &head, desk, actions, |conn, request, desk, actions| {
            let answer = Answer::Name(known.meaning, Vec::new());
            if let Step::Reply(reply_head, body, _) = step_after(request, answer, Outcome::Stale, desk) {
                given = true;
                desk.counts.stale_hits += 1;
                conn.state = State::Reading;
                conn.give(now, began, request, reply_head, body, Outcome::Stale, desk, actions);
            }
        });
        if given {
            self.resume(now, desk, actions);
        } else if let State::Waiting(waiting) = &mut self.state {
            waiting.head = head;
        }
    }

    /// Gives a reply to a request.
    #[expect(clippy::too_many_arguments, reason = "a reply is its parts and the request it belongs to")]
    fn give<F: FileHandle>(
        &mut self,
        now: Time,
        began: Time,
        request: &Request<'_>,
        head: ReplyHead,
        body: Body<F>,
        outcome: Outcome,
        desk: &mut Desk<F>,
        actions: &mut Vec<Action<F>>,
    ) {
        let persists = request.keep_alive && !self.last && !self.finishing && self.requests < desk.limits.requests;
        let connection = match (persists, request.version) {
            (false, _) => Connection::Close,
            (true, Version::Http10) => Connection::KeepAlive,
            (true, Version::Http11) => Connection::Persists,
        };
        // A client that did not ask for the end may be sending more. To close on that would reset the connection and take
        // the reply away before it is read (RFC 9112, 9.6).
        let linger = request.keep_alive || self.last;
        self.state = if persists { State::Reading } else { State::Closing { linger } };
        let mut record = desk.records.take();
        record.note(request, began);
        record.set(head.get().status(), outcome);
        self.batched += 1;
        self.batched_bytes += body.len();
        self.heavy |= body.is_heavy();
        self.unsent = true;
        self.since = now;
        actions.push(Action::Send(Reply { head, connection, body, record }));
    }

    /// A head that cannot be read, or not in time: an answer, and the end.
    fn refuse_head<F: FileHandle>(
        &mut self,
        now: Time,
        status: Status,
        why: &str,
        bytes: &[u8],
        desk: &mut Desk<F>,
        actions: &mut Vec<Action<F>>,
    ) {
        desk.counts.bad_requests += 1;
        let mut record = desk.records.take();
        record.note_unreadable(bytes, if self.partial { self.began } else { now });
        record.set(status, Outcome::None);
        // RFC 9110, 9.3.2: nothing follows the head of a reply to HEAD, whatever was wrong with the rest of the request.
        let (head, body) = reply::bad_head(status, why, bytes.starts_with(b"HEAD "));
        self.end_with(now, Reply { head, connection: Connection::Close, body, record }, actions);
    }

    /// A body that cannot be read to its end.
    fn refuse_body<F: FileHandle>(
        &mut self,
        now: Time,
        status: Status,
        why: &str,
        desk: &mut Desk<F>,
        actions: &mut Vec<Action<F>>,
    ) {
        desk.counts.bad_requests += 1;
        let mut record = desk.records.take();
        let mut head_only = false;
        if let State::Body(unread) = &self.state {
            record.note_unreadable(&unread.head, unread.began);
            head_only = unread.head.starts_with(b"HEAD ");
        }
        record.set(status, Outcome::None);
        let (head, body) = reply::bad_head(status, why, head_only);
        self.end_with(now, Reply { head, connection: Connection::Close, body, record }, actions);
    }

    fn end_with<F: FileHandle>(&mut self, now: Time, reply: Reply<F>, actions: &mut Vec<Action<F>>) {
        self.state = State::Closing { linger: true };
        self.partial = false;
        self.unsent = true;
        self.since = now;
        actions.push(Action::Send(reply));
    }

    /// All that was given has been sent.
    fn all_sent<F: FileHandle>(&mut self, now: Time, desk: &mut Desk<F>, actions: &mut Vec<Action<F>>) {
        self.unsent = false;
        self.batched = 0;
        self.batched_bytes = 0;
        self.heavy = false;
        match self.state {
            State::Closing { linger } => {
                if linger && !self.ended {
                    self.state = State::Lingering;
                    self.pending = Vec::new();
                    actions.push(Action::HalfClose);
                } else {
                    self.close(actions);
                }
            }
            State::Reading => {
                if !self.pending.is_empty() {
                    self.resume(now, desk, actions);
                }
                if matches!(self.state, State::Reading) && !self.unsent {
                    if self.ended {
                        self.close(actions);
                    } else if self.finishing {
                        self.state = State::Lingering;
                        self.pending = Vec::new();
                        actions.push(Action::HalfClose);
                    }
                }
            }
            // The rest of the body will not come.
            State::Body(_) if self.ended => self.close(actions),
            State::Body(_) | State::Waiting(_) | State::Lingering | State::Closed => {}
        }
    }

    fn take_deadline<F: FileHandle>(&mut self, now: Time, desk: &mut Desk<F>, actions: &mut Vec<Action<F>>) {
        if now < self.next_due(&desk.limits) {
            return;
        }
        if self.unsent {
            return self.close(actions);
        }
        match self.state {
            // RFC 9110, 15.5.9.
            State::Reading if self.partial => {
                let head = mem::take(&mut self.pending);
                let why = "the request's head took too long to arrive";
                self.refuse_head(now, Status::REQUEST_TIMEOUT, why, &head, desk, actions);
            }
            State::Body(_) => {
                let why = "the request's body took too long to arrive";
                self.refuse_body(now, Status::REQUEST_TIMEOUT, why, desk, actions);
            }
            State::Reading | State::Lingering => self.close(actions),
            State::Waiting(_) => self.give_up_on_disk(now, desk, actions),
            State::Closing { .. } | State::Closed => {}
        }
    }

    /// The disk has not answered in time. Its answer, should it come, is nobody's any more.
    fn give_up_on_disk<F: FileHandle>(&mut self, now: Time, desk: &mut Desk<F>, actions: &mut Vec<Action<F>>) {
        let State::Waiting(waiting) = mem::replace(&mut self.state, State::Reading) else {
            return;
        };
        let Waiting { head, began, .. } = *waiting;
        desk.counts.shed += 1;
        self.answer_again(now, began, &head, desk, actions, |conn, request, desk, actions| {
            let why = "the disk does not answer; try again in a while";
            let site = desk.sites.for_host(request.host);
            let path = rules_path(request, &mut desk.scratch);
            let (head, body) = reply::error(site, request, path, Status::SERVICE_UNAVAILABLE, why);
            conn.give(now, began, request, head, body, Outcome::Helper, desk, actions);
        });
        self.resume(now, desk, actions);
    }

    fn close<F: FileHandle>(&mut self, actions: &mut Vec<Action<F>>) {
        self.state = State::Closed;
        self.pending = Vec::new();
        actions.push(Action::Close);
    }
}

/// Bytes that one client may send ahead of the replies.
const PENDING_MAX: usize = 64 * 1024;

/// The first bytes follow the connection by one round trip; a second is a long one.
const FIRST_BYTES: Duration = Duration::from_secs(1);

fn head_limits(limits: &Limits) -> HeadLimits {
    HeadLimits {
        request_line: limits.request_line.as_usize(),
        head: limits.head.as_usize(),
        fields: limits.fields.min(request::FIELDS_MAX),
    }
}

/// What a request comes to as far as the caches know.
fn first_step<F: FileHandle>(now: Time, request: &Request<'_>, desk: &mut Desk<F>) -> Step<F> {
    let Desk { sites, limits, caches, wall, counts, scratch, .. } = desk;
    let Look { site, path, query } = match plan::plan(request, sites, scratch) {
        Plan::Options(site) => {
            let (head, body) = reply::options(site);
            return Step::Reply(head, body, Outcome::None);
        }
        Plan::Refuse { status, why } => return Step::Fail(status, why),
        Plan::Look(look) => look,
    };
    let known = caches.paths.find(now, site.number, path);
    if let Some(Known { meaning, age }) = &known
        && *age < caches.budgets.revalidate
    {
        match meaning {
            Meaning::File(resource) => {
                let representation = reply::choose(request, resource);
                let verdict = reply::judge(request, representation, limits, wall.seconds);
                let content = match reply::needs_content(&verdict, request) {
                    true => caches.content(representation).map(Some),
                    false => Some(None),
                };
                if let Some(content) = content {
                    counts.hits += 1;
                    let heads = &mut caches.heads;
                    let (head, body) = reply::file(site, request, resource, representation, verdict, content, heads);
                    return Step::Reply(head, body, Outcome::Hit);
                }
            }
            other => {
                counts.hits += 1;
                return step_without_file(site, request, path, query, other, Outcome::Hit, caches.generation());
            }
        }
    }
    let work = caches.name_work(site.number, path.into(), known.as_ref());
    Step::Ask(Work::Name(work), known)
}

/// What a name that is no file comes to.
fn step_without_file<F: FileHandle>(
    site: &Site,
    request: &Request<'_>,
    path: &[u8],
    query: Option<&[u8]>,
    meaning: &Meaning,
    outcome: Outcome,
    generation: u32,
) -> Step<F> {
    match meaning {
        Meaning::NeedsSlash => {
            let (head, body) = reply::add_slash(site, request, path, query);
            Step::Reply(head, body, outcome)
        }
        Meaning::Directory if site.listing => {
            let form = list_form(request);
            let work = ListWork { generation, site: site.number, path: path.into(), order: ListOrder::of(query), form };
            Step::Ask(Work::List(work), None)
        }
        Meaning::Directory => Step::Fail(Status::FORBIDDEN, "this directory is not for listing"),
        Meaning::Forbidden => Step::Fail(Status::FORBIDDEN, "this file is not for reading"),
        Meaning::Absent | Meaning::File(_) => Step::Fail(Status::NOT_FOUND, plan::NOT_FOUND),
    }
}

fn list_form(request: &Request<'_>) -> ListForm {
    let accept: Vec<u8> = request.accept.iter().collect::<Vec<_>>().join(&b","[..]);
    let json = negotiate::prefers_json(request.accept.is_present().then_some(&accept));
    if json { ListForm::Json } else { ListForm::Html }
}

/// What a request comes to after the disk's answer.
fn step_after<F: FileHandle>(
    request: &Request<'_>,
    answer: Answer<F>,
    outcome: Outcome,
    desk: &mut Desk<F>,
) -> Step<F> {
    let Desk { sites, limits, caches, wall, counts, scratch, .. } = desk;
    // The same head under the same rules gives the same plan.
    let Look { site, path, query } = match plan::plan(request, sites, scratch) {
        Plan::Look(look) => look,
        Plan::Refuse { status, why } => return Step::Fail(status, why),
        Plan::Options(_) => return Step::Fail(Status::INTERNAL_SERVER_ERROR, "the request was lost"),
    };
    match answer {
        Answer::Name(Meaning::File(resource), brought) => {
            let representation = reply::choose(request, &resource);
            let verdict = reply::judge(request, representation, limits, wall.seconds);
            let mut content = None;
            if reply::needs_content(&verdict, request) {
                content = caches.content_among(&brought, representation);
                if content.is_none() {
                    // It was known when the question was asked, and has been evicted since: ask again, knowing nothing.
                    let work = caches.name_work(site.number, path.into(), None);
                    return Step::Ask(Work::Name(work), None);
                }
            }
            let heads = &mut caches.heads;
            let (head, body) = reply::file(site, request, &resource, representation, verdict, content, heads);
            Step::Reply(head, body, outcome)
        }
        Answer::Name(meaning, _) => {
            step_without_file(site, request, path, query, &meaning, outcome, caches.generation())
        }
        Answer::Listing(page) => {
            let (head, body) = reply::listing(site, request, path, list_form(request).media_type(), page);
            Step::Reply(head, body, outcome)
        }
        Answer::Trouble(Trouble::Busy) => {
            counts.shed += 1;
            Step::Fail(Status::SERVICE_UNAVAILABLE, "too many requests are waiting for the disk; try again in a second")
        }
        Answer::Trouble(Trouble::Exhausted) => {
            Step::Fail(Status::SERVICE_UNAVAILABLE, "the server is out of descriptors; try again in a second")
        }
        Answer::Trouble(Trouble::Failed) => Step::Fail(Status::INTERNAL_SERVER_ERROR, "the file could not be read"),
    }
}

/// An error: with the site's own page if it has one for this status, else with ours.
fn failure<F: FileHandle>(
    now: Time,
    request: &Request<'_>,
    status: Status,
    why: &'static str,
    desk: &mut Desk<F>,
) -> Step<F> {
    let Desk { sites, caches, scratch, .. } = desk;
    let site = sites.for_host(request.host);
    let path = rules_path(request, scratch);
    let Some((_, page)) = site.error_pages.iter().find(|(known, _)| *known == status) else {
        let (head, body) = reply::error(site, request, path, status, why);
        return Step::Reply(head, body, Outcome::None);
    };
    let known = caches.paths.find(now, site.number, page.as_bytes());
    if let Some(Known { meaning: Meaning::File(resource), age }) = &known
        && *age < caches.budgets.revalidate
        && let Some(content) = caches.content(&resource.representations[0])
    {
        let (head, body) = reply::error_from_page(site, request, path, status, resource, content);
        return Step::Reply(head, body, Outcome::None);
    }
    if status == Status::SERVICE_UNAVAILABLE {
        // The disk is the trouble; asking it for a page would make it worse.
        let (head, body) = reply::error(site, request, path, status, why);
        return Step::Reply(head, body, Outcome::None);
    }
    let work = caches.name_work(site.number, page.as_bytes().into(), known.as_ref());
    Step::Ask(Work::Name(work), None)
}

/// The error after the disk was asked for its page.
fn error_after<F: FileHandle>(
    request: &Request<'_>,
    answer: Answer<F>,
    status: Status,
    why: &str,
    desk: &mut Desk<F>,
) -> (ReplyHead, Body<F>) {
    let Desk { sites, caches, scratch, .. } = desk;
    let site = sites.for_host(request.host);
    let path = rules_path(request, scratch);
    if let Answer::Name(Meaning::File(resource), brought) = answer
        && let Some(content) = caches.content_among(&brought, &resource.representations[0])
    {
        return reply::error_from_page(site, request, path, status, &resource, content);
    }
    reply::error(site, request, path, status, why)
}

/// The path by which rules about headers find an error: clean, as for every other reply; `/` where there is none.
fn rules_path<'a>(request: &Request<'a>, scratch: &'a mut Vec<u8>) -> &'a [u8] {
    match request.target {
        Target::Origin { path, .. } | Target::Absolute { path, .. } => uri::clean_path(path, scratch).unwrap_or(b"/"),
        Target::Asterisk | Target::Authority(_) => b"/",
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
