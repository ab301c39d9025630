//! A driver of connections, in the role of `server/arch`, on a clock that jumps from event to event.
//!
//! It keeps the contract of `core/event`: actions are executed in order, the disk responds in the same turn or reports
//! a delay, bytes are read only while they are wanted. Everything that may differ between machines is random: the sizes
//! of reads and writes, the latency of the disk, the order of its results, and which connections share a result. After
//! each event it checks the invariants of every connection.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use amped_core::app::{Input, Output};
use amped_core::auth::Verdict;
use amped_core::cache::Budgets;
use amped_core::cache::page::PageName;
use amped_core::event::{Action, Answer, Delay, Event, Found, Ticket, Trouble, VerifyWork, Work};
use amped_core::file::Stored;
use amped_core::http1::Conn;
use amped_core::limits::Limits;
use amped_core::record::Record;
use amped_core::reply::{Body, WallClock};
use amped_core::shared_state::SharedState;
use amped_core::site::{Site, Sites, Types};
use amped_http::negotiate::Coding;
use amped_units::Time;

use crate::application::{self, Application, Play};
use crate::client::{self, Response};
use crate::files::{FakeFile, Files, WALL_START};
use crate::seed::{Dice, RngExt};

/// A server with its disk and its clients.
pub(crate) struct World {
    pub(crate) now: Time,
    pub(crate) files: Files,
    pub(crate) shared: SharedState<FakeFile>,
    pub(crate) disk: Disk,
    pub(crate) sessions: Vec<Session>,
    pub(crate) dice: Dice,
    /// The script of each application, by the number in the query.
    pub(crate) plays: Vec<Play>,
    /// How often each was started.
    pub(crate) begun: Vec<usize>,
    /// Pages being generated.
    pub(crate) makings: Vec<Making>,
    /// Events at fixed times.
    script: Vec<(Time, Callback)>,
    /// The error log.
    pub(crate) logged: Vec<String>,
}

/// A page that an application generates, and the requests that wait for it.
#[derive(Debug)]
pub(crate) struct Making {
    name: PageName,
    /// The connection whose request it is.
    maker: (usize, Ticket),
    followers: Vec<(usize, Ticket)>,
}

type Callback = Box<dyn FnOnce(&mut World)>;

/// The behaviour of the disk.
pub(crate) struct Disk {
    /// How often a result is delayed.
    pub(crate) late: f64,
    /// Maximum delay.
    pub(crate) delay_max: Duration,
    /// How often the disk fails.
    pub(crate) trouble: f64,
    /// Whether it returns a descriptor for every file, even a small one.
    pub(crate) lazy: bool,
    /// Whether it does not respond at all; the test responds instead.
    pub(crate) silent: bool,
    /// Whether connections with equal lookups in progress share the result.
    pub(crate) shares: bool,
    /// Work done, in the order of the requests.
    pub(crate) asked: Vec<Work>,
    /// The ticket of the last request.
    pub(crate) last_ticket: Ticket,
    /// The root of each site, by generation of the configuration.
    roots: Vec<Vec<String>>,
    jobs: Vec<Job>,
}

struct Job {
    due: Time,
    work: Work,
    /// When a helper does the lookup: between request and result.
    look: Time,
    found: Option<Found<FakeFile>>,
    waiters: Vec<(usize, Ticket)>,
}

/// The behaviour of the network.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Link {
    /// Maximum bytes per read.
    pub(crate) read_max: usize,
    /// Maximum bytes per write.
    pub(crate) write_max: usize,
    /// Maximum pause between two reads or two writes.
    pub(crate) pause_max: Duration,
}

impl Link {
    /// Everything at once.
    pub(crate) const WHOLE: Link = Link { read_max: usize::MAX, write_max: usize::MAX, pause_max: Duration::ZERO };

    pub(crate) fn random(dice: &mut Dice) -> Link {
        let size = |dice: &mut Dice| 1 << dice.random_range(0..18);
        let pause_max = Duration::from_micros(dice.random_range(0..5_000));
        Link { read_max: size(dice), write_max: size(dice), pause_max }
    }
}

/// One client and the server's side of its connection.
pub(crate) struct Session {
    pub(crate) conn: Conn,
    pub(crate) link: Link,
    /// All bytes from the client, and how many of them were read.
    pub(crate) upload: Vec<u8>,
    read: usize,
    /// Whether the client closes its side after that, and whether the server has been notified.
    pub(crate) half_closes: bool,
    ended: bool,
    /// Whether the client has stopped reading.
    pub(crate) stalled: bool,
    /// Bytes per second that the client acknowledges of what a large socket buffer has taken; `None`: all at once.
    pub(crate) rate: Option<u64>,
    acknowledged: usize,
    send_queue: VecDeque<Piece>,
    /// The application that handles its request.
    pub(crate) app: Option<Application>,
    /// The ticket under which it waits for another request's response.
    follows: Option<Ticket>,
    /// The last application that ended on its own: input sent to it in the same turn is dropped.
    ended_app: Ticket,
    /// The record of the last response while its body is open; it is written with the end.
    open: Option<Box<Record>>,
    /// Whether a body was open when the connection closed, which a driver signals by a reset.
    pub(crate) broken: bool,
    /// All bytes that the client received, and when.
    pub(crate) received: Vec<u8>,
    arrivals: Vec<(usize, Time)>,
    deliveries: Vec<(usize, Time)>,
    read_at: Time,
    write_at: Time,
    pub(crate) half_closed: Option<Time>,
    pub(crate) closed: Option<Time>,
    /// Whether responses may be missing: a file shrank, the client disconnected, or the server stopped.
    pub(crate) cut: bool,
    /// Maximum heap memory that it has used, in bytes.
    pub(crate) heap_max: usize,
}

enum Piece {
    Bytes(Vec<u8>, usize),
    File(FakeFile, Range<u64>),
    Record(Box<Record>),
}

impl World {
    pub(crate) fn new(dice: Dice) -> World {
        World::with(dice, vec![site()], Limits::default(), Budgets::default())
    }

    pub(crate) fn with(dice: Dice, sites: Vec<Site>, limits: Limits, budgets: Budgets) -> World {
        let roots = vec![roots_of(&sites)];
        let sites = Arc::new(Sites::new(sites).expect("at least one"));
        World {
            now: Time::START,
            files: Files::default(),
            shared: SharedState::new(sites, limits, budgets, WallClock::at(WALL_START)),
            disk: Disk {
                late: 0.0,
                delay_max: Duration::from_millis(20),
                trouble: 0.0,
                lazy: false,
                silent: false,
                shares: true,
                asked: Vec::new(),
                last_ticket: Ticket::default(),
                roots,
                jobs: Vec::new(),
            },
            sessions: Vec::new(),
            dice,
            plays: Vec::new(),
            begun: Vec::new(),
            makings: Vec::new(),
            script: Vec::new(),
            logged: Vec::new(),
        }
    }

    /// Switches to another configuration.
    pub(crate) fn renew(&mut self, sites: Vec<Site>, limits: Limits, budgets: Budgets) {
        self.disk.roots.push(roots_of(&sites));
        self.shared.renew(Arc::new(Sites::new(sites).expect("at least one")), limits, budgets, None);
    }

    /// Connects a client that sends this.
    pub(crate) fn connect(&mut self, link: Link, upload: impl Into<Vec<u8>>) -> usize {
        self.sessions.push(Session {
            conn: Conn::new(self.now, false),
            link,
            upload: upload.into(),
            read: 0,
            half_closes: false,
            ended: false,
            stalled: false,
            rate: None,
            acknowledged: 0,
            send_queue: VecDeque::new(),
            app: None,
            follows: None,
            ended_app: Ticket::default(),
            open: None,
            broken: false,
            received: Vec::new(),
            arrivals: Vec::new(),
            deliveries: Vec::new(),
            read_at: self.now,
            write_at: self.now,
            half_closed: None,
            closed: None,
            cut: false,
            heap_max: 0,
        });
        self.sessions.len() - 1
    }

    /// Sends more from a client.
    pub(crate) fn send(&mut self, at: usize, bytes: impl AsRef<[u8]>) {
        let session = &mut self.sessions[at];
        session.upload.extend_from_slice(bytes.as_ref());
        session.read_at = session.read_at.max(self.now);
    }

    /// Tells this connection that the server is stopping.
    pub(crate) fn stop(&mut self, at: usize) {
        self.sessions[at].cut = true;
        self.handle(at, Event::Finish);
    }

    /// Disconnects a client; the driver drops its connection.
    pub(crate) fn reset(&mut self, at: usize) {
        let session = &mut self.sessions[at];
        session.cut = true;
        session.closed = session.closed.or(Some(self.now));
        session.conn = Conn::new(self.now, false);
        session.send_queue.clear();
        (session.app, session.follows, session.open) = (None, None, None);
        if let Some(Making { maker: (_, ticket), .. }) = self.makings.iter().find(|making| making.maker.0 == at) {
            self.settle_page(at, *ticket);
        }
    }

    /// Schedules an event at a fixed time.
    pub(crate) fn at(&mut self, when: Time, callback: impl FnOnce(&mut World) + 'static) {
        self.script.push((when, Box::new(callback)));
    }

    /// Sends, runs until nothing more happens without a timeout, and parses the one response.
    pub(crate) fn ask(&mut self, at: usize, request: &str) -> Response {
        let from = self.sessions[at].received.len();
        self.send(at, request);
        self.settle();
        let ended = self.sessions[at].closed.is_some();
        let head_only = [request.starts_with("HEAD ")];
        let mut responses = client::read_all(&self.sessions[at].received[from..], &head_only, ended);
        assert_eq!(responses.len(), 1, "one response to {request:?}");
        responses.remove(0)
    }

    /// Runs until nothing more happens without a timeout.
    pub(crate) fn settle(&mut self) {
        while let Some((when, next)) = self.next_event() {
            if matches!(next, Next::Deadline(_)) {
                return;
            }
            self.happen(when, next);
        }
    }

    /// Advances the time.
    pub(crate) fn pass(&mut self, duration: Duration) {
        let until = self.now + duration;
        while let Some((when, next)) = self.next_event().filter(|(when, _)| *when <= until) {
            self.happen(when, next);
        }
        self.go_to(until);
    }

    /// Advances the time until all connections are closed.
    pub(crate) fn pass_until_closed(&mut self) {
        while let Some((when, next)) = self.next_event() {
            self.happen(when, next);
        }
        for (n, session) in self.sessions.iter().enumerate() {
            assert!(session.closed.is_some(), "connection {n} waits without an event: {:?}", session.conn);
        }
    }

    fn next_event(&mut self) -> Option<(Time, Next)> {
        let mut events = Vec::new();
        for (n, session) in self.sessions.iter().enumerate().filter(|(_, session)| session.closed.is_none()) {
            let more = session.read < session.upload.len() || (session.half_closes && !session.ended);
            if more && session.conn.wants_bytes() {
                events.push((session.read_at, Next::Read(n)));
            } else if session.half_closes && !session.ended && session.app.is_some() && !session.conn.is_tunnel() {
                // The kernel reports the end before the sent bytes are read.
                events.push((session.read_at, Next::Leave(n)));
            }
            if let Some(app) = &session.app
                && app.can_act(session.conn.wants_output())
            {
                events.push((app.act_at, Next::App(n)));
            }
            if !session.send_queue.is_empty() && !session.stalled {
                events.push((session.write_at, Next::Write(n)));
            }
            let due = session.conn.next_due(&self.shared.limits);
            if due != Time::NEVER {
                events.push((due, Next::Deadline(n)));
            }
        }
        events.extend(self.disk.jobs.iter().enumerate().map(|(n, job)| (job.due.min(job.look), Next::Disk(n))));
        events.extend(self.script.iter().enumerate().map(|(n, (when, _))| (*when, Next::Callback(n))));
        // Overdue events happen now. A deadline comes after all other events of its time.
        let key = |(when, next): &(Time, Next)| ((*when).max(self.now), matches!(next, Next::Deadline(_)));
        let first = events.iter().map(key).min()?;
        events.retain(|event| key(event) == first);
        let choice = self.dice.random_range(0..events.len());
        Some((first.0, events.swap_remove(choice).1))
    }

    fn go_to(&mut self, when: Time) {
        self.now = self.now.max(when);
        let seconds = WALL_START + (self.now.as_millis() / 1000) as i64;
        if self.shared.wall.seconds != seconds {
            self.shared.wall = WallClock::at(seconds);
        }
    }

    fn happen(&mut self, when: Time, next: Next) {
        self.go_to(when);
        match next {
            Next::Read(n) => self.read(n),
            Next::Write(n) => self.write(n),
            Next::Deadline(n) => {
                self.acknowledge(n);
                self.handle(n, Event::Deadline);
                let session = &self.sessions[n];
                let due = session.conn.next_due(&self.shared.limits);
                assert!(session.closed.is_some() || due > self.now, "a deadline changed nothing: {:?}", session.conn);
            }
            Next::Leave(n) => {
                self.sessions[n].ended = true;
                self.handle(n, Event::Ended);
            }
            Next::App(n) => self.app_goes_on(n),
            Next::Disk(n) => self.disk_goes_on(n),
            Next::Callback(n) => (self.script.swap_remove(n).1)(self),
        }
        let World { sessions, shared, .. } = self;
        for session in sessions.iter_mut() {
            session.check(&shared.limits);
        }
    }

    /// What a driver does before a deadline: it asks how much the client has received.
    fn acknowledge(&mut self, n: usize) {
        let session = &mut self.sessions[n];
        let by_now = session.rate.map_or(usize::MAX, |rate| (self.now.as_millis() * rate / 1000) as usize);
        let acknowledged = session.received.len().min(by_now);
        let bytes = acknowledged - std::mem::replace(&mut session.acknowledged, acknowledged);
        let is_waiting = !session.send_queue.is_empty() || acknowledged < session.received.len();
        if bytes > 0 && is_waiting && session.conn.next_due(&self.shared.limits) <= self.now {
            self.handle(n, Event::Received { bytes: bytes as u64 });
        }
    }

    fn pause(&mut self, n: usize) -> Time {
        let nanos = self.sessions[n].link.pause_max.as_nanos() as u64;
        self.now + Duration::from_nanos(self.dice.random_range(0..=nanos))
    }

    fn read(&mut self, n: usize) {
        let read_at = self.pause(n);
        let session = &mut self.sessions[n];
        session.read_at = read_at;
        let left = session.upload.len() - session.read;
        if left == 0 {
            session.ended = true;
            return self.handle(n, Event::Ended);
        }
        let length = self.dice.random_range(1..=left.min(session.link.read_max));
        let length = if session.link.read_max == usize::MAX { left } else { length };
        let piece = session.upload[session.read..session.read + length].to_vec();
        session.read += length;
        session.deliveries.push((session.read, self.now));
        self.handle(n, Event::Bytes(&piece));
    }

    fn write(&mut self, n: usize) {
        let write_at = self.pause(n);
        let session = &mut self.sessions[n];
        session.write_at = write_at;
        let mut left = match session.link.write_max {
            usize::MAX => usize::MAX,
            most => self.dice.random_range(1..=most),
        };
        while let Some(piece) = session.send_queue.front_mut() {
            match piece {
                Piece::Bytes(bytes, at) => {
                    let length = left.min(bytes.len() - *at);
                    session.received.extend_from_slice(&bytes[*at..*at + length]);
                    (*at, left) = (*at + length, left - length);
                    if *at < bytes.len() {
                        break;
                    }
                }
                Piece::File(file, range) => {
                    let length = (range.end - range.start).min(left as u64);
                    let Some(bytes) = file.read(range.start..range.start + length) else {
                        // The file has shrunk: the driver closes without asking the connection.
                        session.cut = true;
                        session.closed = Some(self.now);
                        return;
                    };
                    session.received.extend_from_slice(&bytes);
                    (range.start, left) = (range.start + length, left - length as usize);
                    if range.start < range.end {
                        break;
                    }
                }
                Piece::Record(_) => {}
            }
            if let Some(Piece::Record(record)) = session.send_queue.pop_front() {
                self.shared.records.give_back(record);
            }
        }
        session.arrivals.push((session.received.len(), self.now));
        let all = session.send_queue.is_empty();
        self.handle(n, Event::Sent { all });
    }

    /// Passes an event to a connection and executes its actions.
    pub(crate) fn handle(&mut self, n: usize, event: Event<'_, FakeFile>) {
        let mut actions = Vec::new();
        let session = &mut self.sessions[n];
        session.conn.handle(self.now, event, &mut self.shared, &mut actions);
        if session.closed.is_some() {
            assert!(actions.is_empty(), "after the end: {actions:?}");
        }
        let mut at = 0;
        // The list grows while it is processed: an application may respond at once.
        while at < actions.len() {
            let action = std::mem::replace(&mut actions[at], Action::Close);
            at += 1;
            let session = &mut self.sessions[n];
            assert!(session.closed.is_none(), "after closing: {action:?}");
            match action {
                Action::Send(_, reply) => {
                    assert!(session.half_closed.is_none(), "a response after the half close");
                    assert!(session.open.is_none(), "a response within another one");
                    assert_eq!(reply.record.status, reply.head.get().status().0);
                    let mut head = Vec::new();
                    reply.head.get().write(
                        &mut head,
                        &self.shared.wall.date,
                        reply.connection,
                        reply.hsts.as_deref(),
                        1,
                    );
                    session.put(self.now, Piece::Bytes(head, 0));
                    let send_queue = &mut session.send_queue;
                    match reply.body {
                        Body::Empty => {}
                        Body::Open => {
                            session.open = Some(reply.record);
                            continue;
                        }
                        Body::Text(text) => send_queue.push_back(Piece::Bytes(text, 0)),
                        Body::Shared(text) => send_queue.push_back(Piece::Bytes(text.to_vec(), 0)),
                        Body::Content(content, range) => send_queue.push_back(piece(&content.store, range)),
                        Body::Parts(content, parts, last) => {
                            for (text, range) in parts {
                                send_queue.push_back(Piece::Bytes(text, 0));
                                send_queue.push_back(piece(&content.store, range));
                            }
                            send_queue.push_back(Piece::Bytes(last, 0));
                        }
                    }
                    send_queue.push_back(Piece::Record(reply.record));
                }
                Action::Interim(bytes) => {
                    assert!(session.open.is_none(), "an interim response within another one");
                    session.put(self.now, Piece::Bytes(bytes, 0));
                }
                Action::Piece(_, bytes, framed) => {
                    assert!(session.open.is_some() && framed <= bytes.len() && !bytes.is_empty());
                    session.put(self.now, Piece::Bytes(bytes, 0));
                }
                Action::PieceEnd(_) => {
                    let record = session.open.take().expect("an open body");
                    session.put(self.now, Piece::Record(record));
                }
                Action::Control(_) | Action::Cancel(_) | Action::Unanswered(_) => panic!("an action of HTTP/2"),
                Action::Log(line) => self.logged.push(line),
                Action::HalfClose => {
                    assert!(session.send_queue.is_empty() && session.half_closed.is_none());
                    assert!(session.app.is_none() && session.open.is_none(), "an application is left behind");
                    session.half_closed = Some(self.now);
                }
                Action::Close => {
                    assert!(session.app.is_none() && session.follows.is_none(), "an application is left behind");
                    session.broken = session.open.is_some();
                    session.closed = Some(self.now);
                }
                Action::App(ticket, input) => {
                    if let Some(output) = self.tell_app(n, ticket, input) {
                        let conn = &mut self.sessions[n].conn;
                        conn.handle(self.now, Event::App(ticket, output), &mut self.shared, &mut actions);
                    }
                }
                Action::Revalidate(work) => panic!("no page is sent stale: {work:?}"),
                Action::Disk(ticket, work) => {
                    assert_eq!(at, actions.len(), "actions after a disk request");
                    self.ask_disk(n, ticket, work);
                }
                Action::Verify(ticket, work) => {
                    assert_eq!(at, actions.len(), "actions after a password verification");
                    self.verify(n, ticket, &work);
                }
            }
        }
    }

    /// Passes input to the application of a connection, and handles its immediate response.
    fn tell_app(&mut self, n: usize, ticket: Ticket, input: Input) -> Option<Output<'static>> {
        let has_made = match input {
            Input::Join(name) => return Some(self.join(n, ticket, name)),
            Input::Leave(_) | Input::Settled => self.settle_page(n, ticket),
            Input::Start(_) | Input::Body(_) | Input::End | Input::Unbuffered => false,
            Input::Compress(_) => unreachable!("no rule compresses responses"),
        };
        let World { sessions, plays, begun, dice, .. } = self;
        let session = &mut sessions[n];
        if let Input::Start(work) = input {
            assert!(session.app.is_none(), "two applications for one connection");
            let is_get = work.variables.iter().any(|(name, value)| name == b"REQUEST_METHOD" && value == b"GET");
            // This includes a request that has waited for the response of another one, and then could not use it.
            assert!(work.may_be_cached || !(is_get && *work.path == *b"/kept"), "an application may know this client");
            let number = application::number(&work);
            begun.resize(plays.len(), 0);
            begun[number] += 1;
            let mut app = Application::new(plays[number].clone(), ticket, self.now, work.has_body);
            if let Some(trouble) = app.play.refused
                && dice.random_bool(0.5)
            {
                session.ended_app = ticket;
                self.settle_page(n, ticket);
                return Some(Output::Failed(trouble));
            }
            app.act_at = self.now;
            session.app = Some(app);
            return None;
        }
        let Some(app) = &mut session.app else {
            let follows = session.follows.take_if(|follows| *follows == ticket).is_some();
            assert!(session.ended_app == ticket || has_made || follows, "input for another application");
            return None;
        };
        assert_eq!(app.ticket, ticket);
        match input {
            Input::Start(_) | Input::Join(_) | Input::Compress(_) => unreachable!("handled above"),
            Input::Body(bytes) => {
                assert!(!app.input_ended && !bytes.is_empty());
                app.input.extend_from_slice(&bytes);
                // The allowance ahead of the application, plus the bytes read before, or one read.
                let bound = 2 * 64 * 1024 + session.link.read_max.min(session.upload.len());
                assert!(app.input.len() <= bound, "{} bytes wait for the application", app.input.len());
                return (app.reads_at_once() && dice.random_bool(0.5)).then(|| app.take_all());
            }
            Input::End => {
                assert!(!std::mem::replace(&mut app.input_ended, true), "a second end of the body");
            }
            Input::Leave(_) => session.app = None,
            Input::Settled => assert!(has_made, "no page is being generated"),
            Input::Unbuffered => {}
        }
        None
    }

    fn app_goes_on(&mut self, n: usize) {
        let session = &mut self.sessions[n];
        let wants_output = session.conn.wants_output();
        let mut app = session.app.take().expect("an application that can act");
        let mut buffer = Vec::new();
        let output = app.act(&mut self.dice, wants_output, &mut buffer);
        let nanos = app.play.pause_max.as_nanos() as u64;
        app.act_at = self.now + Duration::from_nanos(self.dice.random_range(0..=nanos));
        let ticket = app.ticket;
        // An application that has ended is removed before its connection is notified.
        match output {
            Output::Last(_) | Output::Ended | Output::Failed(_) => session.ended_app = ticket,
            Output::Started(_) => session.app = Some(app),
            Output::Room | Output::Interim(_) | Output::Bytes(_) | Output::Switched(_) => session.app = Some(app),
            Output::First | Output::Follows | Output::Again => unreachable!("applications have no such output"),
        }
        let has_ended = self.sessions[n].app.is_none();
        self.handle(n, Event::App(ticket, output));
        if has_ended {
            self.settle_page(n, ticket);
        }
    }

    /// A request for a cacheable page: its application generates it, or the request waits for the one that does.
    fn join(&mut self, n: usize, ticket: Ticket, name: PageName) -> Output<'static> {
        let session = &mut self.sessions[n];
        assert!(session.app.is_none() && session.follows.is_none(), "two applications for one connection");
        match self.makings.iter_mut().find(|making| making.name == name) {
            Some(making) => {
                making.followers.push((n, ticket));
                session.follows = Some(ticket);
                Output::Follows
            }
            None => {
                self.makings.push(Making { name, maker: (n, ticket), followers: Vec::new() });
                Output::First
            }
        }
    }

    /// Tells the requests that wait for this one's page, some time later, to continue; `false`: it generates none.
    fn settle_page(&mut self, n: usize, ticket: Ticket) -> bool {
        let Some(at) = self.makings.iter().position(|making| making.maker == (n, ticket)) else { return false };
        for (n, ticket) in self.makings.swap_remove(at).followers {
            let when = self.now + Duration::from_micros(self.dice.random_range(0..100));
            self.at(when, move |world| {
                if world.sessions[n].follows.take_if(|follows| *follows == ticket).is_some() {
                    world.handle(n, Event::App(ticket, Output::Again));
                }
            });
        }
        true
    }

    /// Every name has the password `secret`.
    fn verify(&mut self, n: usize, ticket: Ticket, work: &VerifyWork) {
        self.disk.last_ticket = ticket;
        if self.disk.silent {
            return;
        }
        let verdict = match work.credentials.password() {
            _ if self.dice.random_bool(self.disk.trouble) => {
                [Verdict::Limited, Verdict::Busy, Verdict::Failed][self.dice.random_range(0..3)]
            }
            b"secret" => Verdict::Good,
            _ => Verdict::Wrong,
        };
        if !self.dice.random_bool(self.disk.late) {
            return self.handle(n, Event::Disk(ticket, Answer::Verified(verdict)));
        }
        let micros = self.dice.random_range(0..=self.disk.delay_max.as_micros() as u64);
        self.at(self.now + Duration::from_micros(micros), move |world| {
            world.handle(n, Event::Disk(ticket, Answer::Verified(verdict)));
        });
        self.handle(n, Event::Late(ticket, Delay::Disk));
    }

    fn ask_disk(&mut self, n: usize, ticket: Ticket, work: Work) {
        self.disk.asked.push(work.clone());
        self.disk.last_ticket = ticket;
        if self.disk.silent {
            return;
        }
        if self.dice.random_bool(self.disk.trouble) {
            let trouble = [Trouble::Busy, Trouble::Exhausted, Trouble::Failed][self.dice.random_range(0..3)];
            return self.answer(&work, Found::Trouble(trouble), &[(n, ticket)]);
        }
        if !self.dice.random_bool(self.disk.late) {
            let found = self.look(&work);
            return self.answer(&work, found, &[(n, ticket)]);
        }
        match self.disk.jobs.iter_mut().find(|job| job.work == work) {
            Some(job) if self.disk.shares => job.waiters.push((n, ticket)),
            _ => {
                let micros = self.disk.delay_max.as_micros() as u64;
                let (due, look) = (self.dice.random_range(0..=micros), self.dice.random_range(0..=micros));
                let [due, look] = [due, look.min(due)].map(|micros| self.now + Duration::from_micros(micros));
                self.disk.jobs.push(Job { due, work, look, found: None, waiters: vec![(n, ticket)] });
            }
        }
        self.handle(n, Event::Late(ticket, Delay::Disk));
    }

    fn look(&self, work: &Work) -> Found<FakeFile> {
        let site = match work {
            Work::Name(work) => work.site,
            Work::List(work) => work.site,
        };
        let root = &self.disk.roots[work.generation() as usize][usize::from(site)];
        let in_memory_max = if self.disk.lazy { 0 } else { self.shared.caches.budgets.max_content_file_bytes.0 };
        self.files.look(root, work, in_memory_max)
    }

    /// A helper does its lookup, or returns the result.
    fn disk_goes_on(&mut self, n: usize) {
        let job = &self.disk.jobs[n];
        if job.found.is_none() {
            let found = self.look(&job.work);
            let job = &mut self.disk.jobs[n];
            job.found = Some(found);
            job.look = Time::NEVER;
            return;
        }
        let job = self.disk.jobs.swap_remove(n);
        let found = job.found.expect("a completed lookup");
        self.answer(&job.work, found, &job.waiters);
    }

    fn answer(&mut self, work: &Work, found: Found<FakeFile>, waiters: &[(usize, Ticket)]) {
        let sites = Arc::clone(&self.shared.sites);
        let answer = self.shared.caches.learn(self.now, work, found, &sites);
        for (n, ticket) in waiters {
            self.handle(*n, Event::Disk(*ticket, answer.clone()));
        }
    }
}

enum Next {
    Read(usize),
    Write(usize),
    Leave(usize),
    App(usize),
    Deadline(usize),
    Disk(usize),
    Callback(usize),
}

fn piece(store: &Stored<FakeFile>, range: Range<u64>) -> Piece {
    match store {
        Stored::Memory(bytes) => Piece::Bytes(bytes[range.start as usize..range.end as usize].to_vec(), 0),
        Stored::File(file) => Piece::File(file.clone(), range),
    }
}

impl Session {
    /// Appends to the output.
    fn put(&mut self, now: Time, piece: Piece) {
        if self.send_queue.is_empty() {
            self.write_at = now;
        }
        self.send_queue.push_back(piece);
    }

    /// The invariants of a connection.
    fn check(&mut self, limits: &Limits) {
        let heap = self.conn.heap_bytes();
        self.heap_max = self.heap_max.max(heap);
        if self.closed.is_some() {
            assert!(self.app.is_none(), "an application without a client");
        }
        if self.closed.is_some() && self.conn.is_closed() {
            assert_eq!(heap, 0, "a closed connection holds memory");
        }
        if self.conn.is_idle() {
            assert!(self.send_queue.is_empty() && self.open.is_none(), "idle during a response");
            assert!(self.app.is_none(), "idle while an application has its request");
            assert_eq!(heap, 0, "an idle connection holds memory: {:?}", self.conn);
        }
        // One read on top of 64 KiB less one byte, and a head; twice that, as vectors grow.
        let bound =
            2 * (64 * 1024 + self.link.read_max.min(self.upload.len()) + limits.max_header_bytes.as_usize()) + 1024;
        assert!(heap <= bound, "{heap} bytes of memory");
    }

    /// When the byte before this offset of the upload was read.
    pub(crate) fn read_time(&self, end: usize) -> Time {
        self.deliveries.iter().find(|(upto, _)| *upto >= end).map_or(Time::NEVER, |(_, when)| *when)
    }

    /// When the byte before this offset of the responses arrived.
    pub(crate) fn arrival_time(&self, end: usize) -> Time {
        self.arrivals.iter().find(|(upto, _)| *upto >= end).map_or(Time::NEVER, |(_, when)| *when)
    }

    /// The responses so far.
    pub(crate) fn responses(&self, head_only: &[bool]) -> Vec<Response> {
        client::read_all(&self.received, head_only, self.closed.is_some())
    }

    /// The statuses of the responses so far, none of them to HEAD.
    pub(crate) fn statuses(&self) -> Vec<u16> {
        self.responses(&[false; 1000]).iter().map(|response| response.status).collect()
    }
}

/// A site with default settings.
pub(crate) fn site() -> Site {
    Site {
        precompressed: vec![Coding::Brotli, Coding::Gzip],
        types: Types {
            overrides: Vec::new(),
            known: |ending| match ending {
                "html" => Some("text/html"),
                "txt" => Some("text/plain"),
                _ => None,
            },
            fallback: "application/octet-stream".into(),
            charset: Some("utf-8".into()),
        },
        ..Site::default()
    }
}

/// The root of a site is named after its first host; the root of a site without hosts is the whole tree.
fn roots_of(sites: &[Site]) -> Vec<String> {
    let root = |site: &Site| site.hosts.first().map_or(String::new(), |host| format!("/{host}"));
    sites.iter().map(root).collect()
}
