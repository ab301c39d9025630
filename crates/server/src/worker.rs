//! Stop 2 of 10: a loop's connections, and the turn of each. Every architecture does this alike.
//!
//! A worker owns its connections, its caches and its timers, and takes one connection at a time through its turn: receive
//! once, let `core` decide, do what it says, send. When to call it, and how the disk is asked, is the architecture's
//! business ([`crate::arch`]), which lends it a [`DiskSide`].
//!
//! Turns are short, so that everybody gets one: a turn receives one buffer, answers a bounded batch, sends a bounded
//! number of windows. Connections that are not finished then are requeued, behind the others.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use amped_core::app::Output;
use amped_core::auth::Verdict;
use amped_core::cache::{Caches, Change};
use amped_core::deadline::Wheel;
use amped_core::desk::Desk;
use amped_core::event::{Action, Answer, Brief, Delay, Event, Ticket, Trouble, Work};
use amped_core::file::Content;
use amped_core::http1::Conn;
use amped_sys::epoll::{Epoll, Interest, Ready};
use amped_sys::{clock, file, socket};
use amped_units::Time;

use crate::access_log::{AccessLog, Peer, Writer};
use crate::app::cgi::Started;
use crate::app::fills::Settled;
use crate::app::{AppSide, Ends, Exchange, Heard, spool};
use crate::clock::{Clock, wall};
use crate::config::settings::LogFormat;
use crate::config_snapshot::Generation;
use crate::counters::{MappedCounts, ModelCounts, Snapshot, WaitCounts, Waited};
use crate::helper::Done;
use crate::mailbox::Mailbox;
use crate::message::{Forget, Message, Preload};
use crate::metrics::{Meter, Phase, Scope, Seat, Timing};
use crate::notes::Notes;
use crate::open_file::OpenFile;
use crate::passwords::ledger::Client;
use crate::passwords::verifier::{self, Asker, Verified};
use crate::say;
use crate::send::{Outbox, Probes, Progress, Sender, Teller};
use crate::token::{APP_BIT, Token};

/// How an architecture has the disk asked.
pub trait DiskSide {
    /// Whether a window of a file that is not in memory is to be fetched by [`warm`](DiskSide::warm), rather than waited
    /// for while it is sent.
    const PROBES: bool;

    /// A connection's question.
    fn ask(&mut self, now: Time, asker: Token, ticket: Ticket, work: &Work, desk: &mut Desk<OpenFile>) -> Asked;

    /// Whoever asked this last does not wait for the answer.
    fn withdraw(&mut self, asker: Token, ticket: Ticket, work: &Work);

    /// Bring this range of a file into memory, and say so by [`Worker::warmed`]. `false`: that cannot be had now. Never
    /// called without [`PROBES`](DiskSide::PROBES).
    fn warm(&mut self, asker: Token, content: Arc<Content<OpenFile>>, range: Range<u64>) -> bool;

    /// Has what is not heard of by the mailbox waited for in the loop, under this number.
    ///
    /// # Errors
    /// As [`Epoll::add`].
    fn register(&mut self, _: &Epoll, _token: u64) -> io::Result<()> {
        Ok(())
    }

    /// What was registered has something to say.
    fn ready(&mut self, _now: Time, _: &mut Worker) {}

    /// Names are forgotten: what this side knows of them in common with others is to go too.
    fn forget(&mut self, _: &Forget, _: &Desk<OpenFile>) {}

    /// A helper has done something.
    fn done(&mut self, _: Done, _now: Time, _: &mut Worker) {}

    /// When [`take_due`](DiskSide::take_due) has something to do.
    fn next_due(&self) -> Time {
        Time::NEVER
    }

    /// Does what was put off until now.
    fn take_due(&mut self, _now: Time, _: &mut Worker) {}

    /// Another configuration comes into force.
    fn renew(&mut self, generation: &Generation);

    /// Adds what only the disk side knows to how things stand.
    fn complete(&self, snapshot: Snapshot) -> Snapshot {
        snapshot
    }
}

/// What became of a question.
pub enum Asked {
    /// The answer is there.
    Answered(Answer<OpenFile>),
    /// It will come by [`Worker::answer`].
    Later(Delay),
    /// Too much work is waiting already.
    Refused,
}

/// One client's connection and its socket.
struct Connection {
    conn: Conn,
    socket: OwnedFd,
    peer: Peer,
    /// `None` when nothing is to be sent.
    outbox: Option<Box<Outbox>>,
    /// The earliest moment at which the wheel will name this connection.
    armed: Time,
    /// Bytes that were sent and not acknowledged when the socket was last found full.
    unacknowledged: u64,
    /// There may be something to read.
    readable: bool,
    /// The client's side has come to an end: read on until that is seen.
    ending: bool,
    /// There may be room to send.
    writable: bool,
    /// Since when a helper has been fetching what is to be sent next; [`Time::NEVER`]: none is.
    cold: Time,
    /// How often that has been done without any of it having been sent since, and where in its file it begins.
    fetched: (u8, u64),
    /// It is in the queue of those that come again.
    queued: bool,
    /// Its request is timed.
    timing: Option<Box<Timing>>,
    /// The application that has its request.
    app: Option<Box<Exchange>>,
    /// Its addresses, once an application has been told.
    ends: Option<Arc<Ends>>,
    /// It waits for the verdict on a password, since this moment.
    asker: Option<(Time, Arc<Asker>)>,
}

/// One loop.
pub struct Worker {
    /// How often each slot has been used, and who is in it.
    slots: Vec<(u32, Option<Connection>)>,
    free: Vec<u32>,
    open: usize,
    /// What connections share.
    pub desk: Desk<OpenFile>,
    generation: Arc<Generation>,
    /// How verdicts reach it.
    mailbox: Arc<Mailbox<Message>>,
    /// The loop's end of the log.
    pub log: AccessLog,
    sender: Sender,
    wheel: Wheel<Token>,
    expired: Vec<Token>,
    /// Connections that have more to do, in the order in which they come again.
    again: VecDeque<Token>,
    /// Those who were accepted and have not had a turn.
    fresh: Vec<Token>,
    /// Connections that found no room in the helpers' queue for what they are to send next, and when they ask anew.
    turned_away: VecDeque<Token>,
    ask_anew: Time,
    actions: Vec<Action<OpenFile>>,
    buffer: Vec<u8>,
    clock: Clock,
    /// When the time of day was last looked up.
    wall_checked: Time,
    /// The slot that is looked at next for an idle connection to close.
    hand: usize,
    /// Questions that no connection asked, and who is told what comes of them.
    errands: HashMap<u32, Preload>,
    next_errand: u32,
    accepted: u64,
    broken: u64,
    cold_windows: u64,
    /// Windows that were waited for.
    windows: Waited,
    /// Passwords that were waited for.
    passwords: Waited,
    /// What it has of applications.
    pub apps: AppSide,
    /// What is told to whoever watches.
    pub meter: Meter,
    /// No descriptors are left: said once, until nobody waits for one any more.
    exhausted: bool,
    /// As many connections as allowed are open and none is idle: said once, until nobody waits any more.
    full: bool,
}

/// Bytes received at once; the longest head fits, and many pipelined ones.
const BUFFER: usize = 64 * 1024;

/// Batches of one turn.
const BATCHES_A_TURN: usize = 4;

/// Connections accepted from one listener in one turn.
const ACCEPTS_A_TURN: usize = 64;

impl Worker {
    /// A loop without connections.
    pub fn new(
        generation: Arc<Generation>,
        apps: AppSide,
        mailbox: Arc<Mailbox<Message>>,
        log: Option<Arc<Writer>>,
        clock: Clock,
        seat: Option<Seat>,
    ) -> Worker {
        let settings = &generation.settings;
        let budgets = settings.budgets.clone();
        let caches = match &generation.caches {
            Some(shared) => Caches::shared(shared, budgets, 0),
            None => Caches::new(budgets),
        };
        let desk = Desk::with_caches(Arc::clone(&settings.sites), settings.limits.clone(), caches, wall());
        Worker {
            slots: Vec::new(),
            free: Vec::new(),
            open: 0,
            desk,
            log: AccessLog::new(&settings.log, log),
            sender: Sender::new(&generation),
            generation,
            mailbox,
            wheel: Wheel::default(),
            expired: Vec::new(),
            again: VecDeque::new(),
            fresh: Vec::new(),
            turned_away: VecDeque::new(),
            ask_anew: Time::NEVER,
            actions: Vec::new(),
            buffer: vec![0; BUFFER],
            clock,
            wall_checked: Time::START,
            hand: 0,
            errands: HashMap::new(),
            next_errand: 0,
            accepted: 0,
            broken: 0,
            cold_windows: 0,
            windows: Waited::default(),
            passwords: Waited::default(),
            apps,
            meter: Meter::new(seat, clock),
            exhausted: false,
            full: false,
        }
    }

    /// The time; once a turn of the loop, and not more often, since it is asked for everything.
    pub fn tick(&mut self) -> Time {
        let now = self.clock.now();
        if now.since(self.wall_checked) >= WALL_STEP {
            self.wall_checked = now;
            let wall = wall();
            if wall.seconds != self.desk.wall.seconds {
                self.desk.wall = wall;
            }
        }
        now
    }

    /// How long the loop may wait for something to happen.
    pub fn patience(&self, now: Time) -> Option<Duration> {
        if !self.again.is_empty() {
            return Some(Duration::ZERO);
        }
        let due = self.wheel.next_due().unwrap_or(Time::NEVER).min(self.log.next_due());
        let due = due.min(self.ask_anew).min(self.meter.next_due()).min(self.apps.next_due());
        (due != Time::NEVER).then(|| due.since(now))
    }

    /// The configuration in force.
    pub fn generation(&self) -> &Arc<Generation> {
        &self.generation
    }

    /// Connections that are open.
    pub fn open(&self) -> usize {
        self.open
    }

    /// Whether as many are open as may be.
    pub fn is_full(&self) -> bool {
        self.open >= self.generation.connections_max
    }

    /// Whether the process was out of descriptors when a connection was to be accepted last.
    pub fn is_exhausted(&self) -> bool {
        self.exhausted
    }

    /// Accepts what waits at a listener, up to a bound; the rest has its turn later. Who has come is to be
    /// [greeted](Worker::greet).
    pub fn accept(&mut self, listener: impl AsFd, now: Time) -> Accepted {
        for _ in 0..ACCEPTS_A_TURN {
            let full = self.is_full();
            let gives_way = if full { self.find_an_idle_one(now) } else { None };
            if full && gives_way.is_none() {
                // In a pool that is how it is meant to be.
                if !self.generation.pooled() && !std::mem::replace(&mut self.full, true) {
                    say!(
                        "{} connections are open and none is idle; others wait until some close \
                         (limits.connections, or the limit on open files, allows no more)",
                        self.open
                    );
                }
                return Accepted::Full;
            }
            match socket::accept(&listener) {
                Ok((socket, address)) => {
                    // Not before: perhaps nobody waits, and then nobody has to go.
                    if let Some(token) = gives_way {
                        self.remove(token);
                    }
                    self.add(socket, address, now);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    // Only now: with others still waiting, one place that becomes free ends no shortage.
                    self.full = false;
                    if std::mem::take(&mut self.exhausted) {
                        say!("descriptors are to be had again; accepting connections");
                    }
                    return Accepted::All;
                }
                Err(error) if file::is_exhaustion(&error) => {
                    if !std::mem::replace(&mut self.exhausted, true) {
                        say!(
                            "cannot accept connections: {error}; those that are open go on, others wait until \
                             some close (raise the limit on open files, or lower limits.connections)"
                        );
                    }
                    return Accepted::Exhausted;
                }
                // The client has gone again, or the network has told of an error that is the connection's, accept(2).
                Err(_) => {}
            }
        }
        Accepted::Some
    }

    fn add(&mut self, socket: OwnedFd, address: Option<SocketAddr>, now: Time) {
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push((0, None));
            (self.slots.len() - 1) as u32
        });
        let (generation, slot) = &mut self.slots[index as usize];
        let token = Token { index, generation: *generation };
        let conn = Conn::new(now);
        let armed = conn.next_due(&self.desk.limits);
        *slot = Some(Connection {
            conn,
            socket,
            peer: Peer::new(address),
            outbox: None,
            armed,
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
        });
        self.open += 1;
        self.accepted += 1;
        self.wheel.insert(armed, token);
        self.fresh.push(token);
    }

    /// Gives those who were accepted their first turn. Only who is still there after it has to be waited for: where each
    /// request comes by a connection of its own, that is nobody, and epoll never hears of them.
    pub fn greet(&mut self, epoll: &Epoll, now: Time, disk: &mut impl DiskSide) {
        let mut fresh = std::mem::take(&mut self.fresh);
        for token in fresh.drain(..) {
            self.turn(token, None, now, disk);
            if let Some(connection) = self.get(token)
                && epoll.add(&connection.socket, token.to_number(), Interest::Connection).is_err()
            {
                // Out of kernel memory for watches: this client is lost, the others are not.
                self.remove(token);
            }
        }
        self.fresh = fresh;
    }

    /// A connection on which nothing is under way, to make room for a new one. Looks at a few at a time, going round, so
    /// that a full server does not spend its time on looking.
    fn find_an_idle_one(&mut self, now: Time) -> Option<Token> {
        for _ in 0..self.slots.len().min(256) {
            self.hand = (self.hand + 1) % self.slots.len();
            let (generation, slot) = &self.slots[self.hand];
            if matches!(slot, Some(connection) if connection.conn.may_give_way(now) && !connection.readable) {
                return Some(Token { index: self.hand as u32, generation: *generation });
            }
        }
        None
    }

    /// Something happened on a connection's socket.
    pub fn ready(&mut self, ready: Ready, now: Time, disk: &mut impl DiskSide) {
        let token = Token::from_number(ready.token & !APP_BIT);
        let Some(connection) = self.get(token) else {
            return;
        };
        if ready.token & APP_BIT != 0 {
            connection.app.iter_mut().for_each(|app| app.is_ready());
        } else {
            connection.readable |= ready.readable;
            connection.ending |= ready.ended;
            if ready.ended
                && let Some((_, asker)) = &connection.asker
            {
                asker.leaves();
            }
            connection.writable |= ready.writable;
        }
        // A connection that has its turn coming takes these news in then.
        if !connection.queued {
            self.turn(token, None, now, disk);
        }
    }

    /// Those that were not finished with their last turn.
    pub fn take_turns(&mut self, now: Time, disk: &mut impl DiskSide) {
        // As many as there are now: whoever is put in again waits for the next round.
        for _ in 0..self.again.len() {
            let Some(token) = self.again.pop_front() else {
                return;
            };
            if let Some(connection) = self.get(token) {
                connection.queued = false;
                self.turn(token, None, now, disk);
            }
        }
    }

    /// The disk's answer to a question that was put off.
    pub fn answer(
        &mut self,
        token: Token,
        ticket: Ticket,
        answer: Answer<OpenFile>,
        now: Time,
        disk: &mut impl DiskSide,
    ) {
        if token.generation == Token::of_errand(0).generation {
            return self.end_errand(token.index, &answer);
        }
        self.turn(token, Some(Event::Disk(ticket, answer)), now, disk);
    }

    /// The verdict on a password. Without one its client has left, and nothing is waited for any more.
    pub fn verified(&mut self, verified: Verified, now: Time, disk: &mut impl DiskSide) {
        let Verified { token, ticket, verdict } = verified;
        let Some(connection) = self.get(token).filter(|connection| connection.conn.waits_for(ticket)) else { return };
        let asked = connection.asker.take();
        let Some(verdict) = verdict else { return self.remove(token) };
        if let Some((since, _)) = asked {
            self.passwords.add(now.since(since));
        }
        self.answer(token, ticket, Answer::Verified(verdict), now, disk);
    }

    /// A process has been started for a request, or not.
    pub fn app_started(&mut self, started: Started, now: Time, disk: &mut impl DiskSide) {
        let (token, ticket) = (started.token, started.ticket);
        let asked = self.get(token).and_then(|connection| connection.app.take_if(|app| app.ticket() == ticket));
        let Some(mut app) = asked else {
            // Whoever asked has gone.
            if let Ok(begun) = started.result {
                self.apps.end(begun);
            }
            return;
        };
        let output = self.apps.take_started(&mut app, started);
        if !matches!(output, Some(Output::Failed(_)))
            && let Some(connection) = self.get(token)
        {
            connection.app = Some(app);
        }
        if let Some(output) = output {
            self.turn(token, Some(Event::App(ticket, output)), now, disk);
        }
    }

    /// Part of a body that is stored for an application, or its client, was written or read.
    pub fn app_spooled(&mut self, done: spool::Done, now: Time, disk: &mut impl DiskSide) {
        let (token, ticket) = (done.asker.token, done.asker.ticket);
        let Some(connection) = self.get(token) else { return };
        let Some(app) = connection.app.as_mut().filter(|app| app.ticket() == ticket) else { return };
        app.note_done(done);
        if !connection.queued {
            self.turn(token, None, now, disk);
        }
    }

    /// The page for which a request waits is kept now, or is not going to be.
    pub fn page_settled(&mut self, settled: Settled, now: Time, disk: &mut impl DiskSide) {
        let Settled { token, ticket } = settled;
        if let Some(connection) = self.get(token)
            && connection.app.take_if(|app| app.ticket() == ticket && app.follows()).is_some()
        {
            self.turn(token, Some(Event::App(ticket, Output::Again)), now, disk);
        }
    }

    /// Does for applications what is due.
    pub fn take_apps_due(&mut self, now: Time, disk: &mut impl DiskSide) {
        if now >= self.apps.next_due() {
            for token in self.apps.take_due(now) {
                self.turn(token, None, now, disk);
            }
        }
    }

    /// Forgets what names mean.
    pub fn forget(&mut self, what: &Forget, now: Time, disk: &mut impl DiskSide) {
        let sites = Arc::clone(&self.desk.sites);
        what.carry_out(now, &mut self.desk.caches, &sites);
        self.apps.forget_scripts();
        disk.forget(what, &self.desk);
    }

    /// Forgets what is known of a name, and has it looked up as for a request. Whoever ordered it is told when that is done.
    pub fn preload(&mut self, order: Preload, now: Time, disk: &mut impl DiskSide) {
        let Preload { site, path, .. } = &order;
        self.generation.disk.forget_folders();
        let change = Change { site: *site, path: Arc::clone(path), beneath: false };
        self.forget(&Forget::Changes(vec![change]), now, disk);
        let sites = Arc::clone(&self.desk.sites);
        let asked = sites.get(*site).unwrap_or(sites.first());
        let work = Work::Name(self.desk.caches.name_work(asked, Arc::clone(path), None));
        let index = self.next_errand;
        self.next_errand = index.wrapping_add(1);
        self.errands.insert(index, order);
        match disk.ask(now, Token::of_errand(index), Ticket::default(), &work, &mut self.desk) {
            Asked::Answered(answer) => self.end_errand(index, &answer),
            Asked::Later(_) => {}
            Asked::Refused => self.end_errand(index, &Answer::Trouble(Trouble::Busy)),
        }
    }

    fn end_errand(&mut self, index: u32, answer: &Answer<OpenFile>) {
        let Some(Preload { site, tell, .. }) = self.errands.remove(&index) else {
            return;
        };
        tell(Brief::of(answer, self.desk.sites.get(site).is_some_and(|site| site.listing)));
    }

    /// What was to be sent next is in memory, or as near to it as can be.
    pub fn warmed(&mut self, token: Token, now: Time, disk: &mut impl DiskSide) {
        let Some(connection) = self.get(token) else {
            return;
        };
        let waited = now.since(std::mem::replace(&mut connection.cold, Time::NEVER));
        connection.fetched.0 = connection.fetched.0.saturating_add(1);
        self.windows.add(waited);
        // The wait was ours, so the client's time starts anew.
        self.turn(token, Some(Event::Sent { all: false }), now, disk);
    }

    /// What a connection is to send next cannot be had: it was promised, so the connection is cut.
    pub fn give_up(&mut self, token: Token) {
        self.remove(token);
    }

    /// A helper has become free: those who were turned away ask again, until one finds no room.
    pub fn helper_is_free(&mut self, now: Time, disk: &mut impl DiskSide) {
        self.ask_anew = Time::NEVER;
        for _ in 0..self.turned_away.len() {
            let Some(token) = self.turned_away.pop_front() else {
                return;
            };
            let others = self.turned_away.len();
            let Some(connection) = self.get(token) else {
                continue;
            };
            let since = std::mem::replace(&mut connection.cold, Time::NEVER);
            self.turn(token, Some(Event::Sent { all: false }), now, disk);
            if let Some(connection) = self.get(token)
                && connection.cold != Time::NEVER
            {
                // Its wait goes on, and is not endless.
                connection.cold = since;
            }
            if self.turned_away.len() > others {
                break;
            }
        }
        if !self.turned_away.is_empty() {
            self.ask_anew = now + ASK_ANEW;
        }
    }

    /// Deadlines that have come, and lines of the log that are old enough.
    pub fn take_deadlines(&mut self, now: Time, disk: &mut impl DiskSide) {
        if now >= self.log.next_due() {
            self.log.flush();
        }
        if now >= self.ask_anew {
            self.helper_is_free(now, disk);
        }
        let mut expired = std::mem::take(&mut self.expired);
        self.wheel.expire(now, &mut expired);
        for token in expired.drain(..) {
            self.take_deadline(token, now, disk);
        }
        self.expired = expired;
    }

    fn take_deadline(&mut self, token: Token, now: Time, disk: &mut impl DiskSide) {
        let Some(index) = self.index(token) else {
            return;
        };
        let limits = &self.desk.limits;
        let Some(connection) = &mut self.slots[index].1 else {
            return;
        };
        if connection.armed <= now {
            connection.armed = Time::NEVER;
        }
        if connection.cold != Time::NEVER {
            // It waits for our disk, not for its client; but not for ever.
            if now >= connection.cold + limits.disk_time {
                return self.remove(token);
            }
            return self.arm(token);
        }
        let mut event = Event::Deadline;
        if connection.outbox.as_ref().is_some_and(|outbox| !outbox.is_empty())
            && connection.conn.next_due(limits) <= now
        {
            // The socket has been full all the time, but the client may be taking what is in it.
            let left = socket::unacknowledged(&connection.socket);
            if left < connection.unacknowledged {
                connection.unacknowledged = left;
                event = Event::Sent { all: false };
            }
        }
        self.turn(token, Some(event), now, disk);
    }

    /// The server is about to stop: whoever has nothing under way is closed, the others after their reply.
    pub fn finish(&mut self, now: Time, disk: &mut impl DiskSide) {
        for index in 0..self.slots.len() {
            let token = Token { index: index as u32, generation: self.slots[index].0 };
            self.turn(token, Some(Event::Finish), now, disk);
        }
    }

    /// Others take this loop's place: as [`finish`](Worker::finish), but a request that has come is answered.
    pub fn retire(&mut self, now: Time, disk: &mut impl DiskSide) {
        for index in 0..self.slots.len() {
            let token = Token { index: index as u32, generation: self.slots[index].0 };
            if let Some(connection) = self.get(token) {
                // Perhaps epoll has not told of it yet.
                connection.readable = true;
                self.turn(token, None, now, disk);
                self.turn(token, Some(Event::Retire), now, disk);
            }
        }
    }

    /// Another configuration comes into force; connections stay.
    pub fn renew(&mut self, generation: Arc<Generation>) {
        let settings = &generation.settings;
        let (sites, limits, budgets) = (Arc::clone(&settings.sites), settings.limits.clone(), settings.budgets.clone());
        self.desk.renew(sites, limits, budgets, generation.caches.as_ref());
        self.log.renew(&settings.log);
        self.sender.renew(&generation);
        self.generation = generation;
    }

    /// Closes everything that is left and hands over the last lines of the log.
    pub fn end(&mut self) {
        for index in 0..self.slots.len() {
            self.remove(Token { index: index as u32, generation: self.slots[index].0 });
        }
        self.log.flush();
    }

    /// How things stand.
    pub fn snapshot(&self) -> Snapshot {
        Snapshot { connection_bytes: self.connection_bytes(), ..self.figures() }
    }

    /// Publishes how things stand, if that is due or this is the loop's end.
    pub fn publish(&mut self, now: Time, at_the_end: bool, disk: &impl DiskSide) {
        let Some(scope) = self.meter.scope().filter(|_| at_the_end || now >= self.meter.next_due()) else {
            return;
        };
        let figures = disk.complete(self.figures());
        let figures = match scope {
            Scope::Process => {
                let watch = self.generation.disk.notes().map(Notes::counts);
                figures.with_log(self.log.writer().map(Writer::counts)).with_watch(watch)
            }
            // Of these the process is told of.
            Scope::Loop => Snapshot { mapped: MappedCounts::default(), model: ModelCounts::default(), ..figures },
        };
        let memory = self.meter.wants_memory(now, at_the_end).then(|| self.connection_bytes());
        let (generation, log) = (&self.generation, self.log.writer());
        self.meter.publish(now, figures, memory, || generation.sum_up(&[], log));
    }

    /// Bytes of our own memory that connections hold, their slots included. Looks at each.
    fn connection_bytes(&self) -> u64 {
        let connections = self.slots.iter().filter_map(|(_, slot)| slot.as_ref());
        let held = connections.map(|connection| {
            let outbox = connection.outbox.as_ref().map_or(0, |outbox| outbox.heap_bytes());
            let app = connection.app.as_ref().map_or(0, |app| app.heap_bytes());
            connection.conn.heap_bytes() + outbox + app
        });
        let slots = self.slots.capacity() * size_of::<(u32, Option<Connection>)>() + self.free.capacity() * 4;
        let timers = self.wheel.len() * size_of::<(Time, Token)>();
        (held.sum::<usize>() + slots + timers) as u64
    }

    /// How things stand, but for what takes long to find out.
    fn figures(&self) -> Snapshot {
        Snapshot {
            counts: self.desk.counts,
            accepted: self.accepted,
            connections: self.open as u64,
            broken: self.broken,
            // Shared ones are told of once for all, by whoever sums up.
            caches: match &self.generation.caches {
                Some(_) => self.desk.caches.own_figures(),
                None => self.desk.caches.figures(),
            },
            cold_windows: self.cold_windows,
            waits: WaitCounts { windows: self.windows, passwords: self.passwords, ..WaitCounts::default() },
            sent_bytes: self.meter.sent_bytes,
            spooled_bytes: self.apps.spooled(),
            loops: self.meter.loops,
            // These are the process's, too: whoever sums up several loops of it puts them right.
            mapped: self.generation.disk.mapped().counts(),
            model: self.generation.disk.residency().counts(),
            ..Snapshot::default()
        }
    }

    fn index(&self, token: Token) -> Option<usize> {
        let index = token.index as usize;
        match self.slots.get(index) {
            Some((generation, Some(_))) if *generation == token.generation => Some(index),
            _ => None,
        }
    }

    fn get(&mut self, token: Token) -> Option<&mut Connection> {
        let index = self.index(token)?;
        self.slots[index].1.as_mut()
    }

    /// One connection's turn: something that happened to it, what its client has sent, and what comes of both.
    ///
    /// The list of actions is the loop's, to be used again, but it belongs to this connection until the turn ends, and is
    /// empty then: what one connection says must never be done to another.
    fn turn<D: DiskSide>(&mut self, token: Token, event: Option<Event<'_, OpenFile>>, now: Time, disk: &mut D) {
        let Some(index) = self.index(token) else {
            return;
        };
        let mut actions = std::mem::take(&mut self.actions);
        debug_assert!(actions.is_empty(), "actions of another connection");
        let ended = self.take_turn(token, index, event, now, disk, &mut actions);
        debug_assert!(actions.is_empty() || ended.is_err(), "a turn left actions behind");
        actions.clear();
        self.actions = actions;
        match ended {
            Err(Dead) => self.remove(token),
            Ok(Rest::Nothing) => {}
            Ok(Rest::ComesAgain) => {
                if let Some(connection) = &mut self.slots[index].1
                    && !std::mem::replace(&mut connection.queued, true)
                {
                    self.again.push_back(token);
                }
            }
        }
        self.arm(token);
    }

    /// Sees to it that the wheel names a connection when something is due on it, or earlier.
    fn arm(&mut self, token: Token) {
        let Some(index) = self.index(token) else {
            return;
        };
        let limits = &self.desk.limits;
        if let Some(connection) = &mut self.slots[index].1 {
            let due = match connection.cold {
                Time::NEVER => connection.conn.next_due(limits),
                since => since + limits.disk_time,
            };
            if due < connection.armed {
                connection.armed = due;
                self.wheel.insert(due, token);
            }
        }
    }

    /// # Errors
    /// [`Dead`]: the connection is to be closed.
    fn take_turn<D: DiskSide>(
        &mut self,
        token: Token,
        index: usize,
        event: Option<Event<'_, OpenFile>>,
        now: Time,
        disk: &mut D,
        actions: &mut Vec<Action<OpenFile>>,
    ) -> Result<Rest, Dead> {
        let connection = self.slots[index].1.as_mut().ok_or(Dead)?;
        match &mut connection.timing {
            Some(timing) => timing.resume(),
            None if connection.readable && event.is_none() && connection.conn.is_idle() => {
                connection.timing = self.meter.begin(now);
            }
            None => {}
        }
        if let Some(event) = event {
            connection.conn.handle(now, event, &mut self.desk, actions);
        }
        if matches!(&connection.timing, Some(timing) if timing.phase() == Phase::Parsing) {
            self.desk.lap.clock = Some(clock::monotonic_ns);
        }
        let received = receive(connection, &mut self.buffer, now, &mut self.desk, actions);
        if let Some(timing) = &mut connection.timing {
            match std::mem::take(&mut self.desk.lap).head_ns {
                Some(head_ns) => timing.note_head(head_ns),
                // Nothing came, or blank lines: a request has not begun.
                None if connection.conn.is_idle() => connection.timing = None,
                None => {}
            }
        }
        received?;
        let mut batches = 0;
        let rest = loop {
            let connection = self.slots[index].1.as_mut().ok_or(Dead)?;
            let apps = (&mut self.apps, &*self.generation, &self.mailbox);
            carry_out(connection, (token, now), &mut self.desk, &mut self.sender, disk, apps, actions)?;
            // Before it is sent: who has an answer has been counted.
            self.meter.heard(self.desk.counts.requests);
            if let (Some(timing), Some(outbox)) = (&mut connection.timing, &connection.outbox)
                && matches!(timing.phase(), Phase::Parsing | Phase::Processing)
                && outbox.holds_reply()
            {
                timing.pass(Phase::Sending);
            }
            if batches == BATCHES_A_TURN {
                // What was said last lies in the outbox; it goes out with the next turn.
                break Rest::ComesAgain;
            }
            match self.send(token, index, now, disk, actions)? {
                Sent::All => batches += 1,
                Sent::Nothing | Sent::Waits if self.hear_app(token, index, now, actions)? => batches += 1,
                Sent::Nothing | Sent::Waits => break Rest::Nothing,
                Sent::Yields => break Rest::ComesAgain,
            }
        };
        let connection = self.slots[index].1.as_mut().ok_or(Dead)?;
        connection.app.take_if(|app| app.is_over());
        if let Some(timing) = &mut connection.timing {
            timing.rest();
        }
        match rest {
            Rest::Nothing if connection.readable && connection.conn.wants_bytes() => Ok(Rest::ComesAgain),
            rest => Ok(rest),
        }
    }

    /// Looks after a connection's application, if it has one: whether there may be more to do.
    fn hear_app(
        &mut self,
        token: Token,
        index: usize,
        now: Time,
        actions: &mut Vec<Action<OpenFile>>,
    ) -> Result<bool, Dead> {
        let connection = self.slots[index].1.as_mut().ok_or(Dead)?;
        if connection.app.is_none() {
            return Ok(false);
        }
        if connection.ending && !connection.conn.wants_bytes() {
            // The client has left, with bytes before its end that nobody would read.
            connection.conn.handle(now, Event::Ended, &mut self.desk, actions);
            return Ok(true);
        }
        let wants_output = connection.conn.wants_output();
        let (app, buffer) = (&mut connection.app, &mut self.buffer[..]);
        match self.apps.turn(app, token, now, wants_output, buffer) {
            Heard::Nothing => return Ok(false),
            Heard::Again => {}
            Heard::Said(ticket, output) => {
                connection.conn.handle(now, Event::App(ticket, output), &mut self.desk, actions);
            }
        }
        Ok(true)
    }

    /// Sends what is in a connection's outbox, and tells the connection.
    fn send<D: DiskSide>(
        &mut self,
        token: Token,
        index: usize,
        now: Time,
        disk: &mut D,
        actions: &mut Vec<Action<OpenFile>>,
    ) -> Result<Sent, Dead> {
        let connection = self.slots[index].1.as_mut().ok_or(Dead)?;
        // One that is empty waits for an application to go on.
        let Some(outbox) = connection.outbox.as_mut().filter(|outbox| !outbox.is_empty()) else {
            return Ok(Sent::Nothing);
        };
        if !connection.writable || connection.cold != Time::NEVER {
            return Ok(Sent::Waits);
        }
        let mut teller = Teller {
            // Only JSON lines say how long a request took; for these the time is asked for anew.
            now: if self.log.format() == LogFormat::Json { self.clock.now() } else { now },
            log: &mut self.log,
            peer: &connection.peer,
            records: &mut self.desk.records,
            wall: &self.desk.wall,
            meter: &mut self.meter,
            timing: &mut connection.timing,
        };
        // A window that has just been fetched is sent without asking again: it may have been evicted in the meantime, and
        // some file systems cannot tell, but a window must come forward at some time.
        let probes = if D::PROBES { Probes::All { fetched: connection.fetched.0 } } else { Probes::None };
        let progress = outbox.pump(&connection.socket, &mut self.sender, probes, &mut teller);
        match &progress {
            Progress::Cold(_, range) if range.start == connection.fetched.1 => {}
            Progress::Cold(_, range) => connection.fetched = (0, range.start),
            _ => connection.fetched.0 = 0,
        }
        let all = matches!(progress, Progress::Done);
        connection.conn.handle(now, Event::Sent { all }, &mut self.desk, actions);
        match progress {
            Progress::Done => {
                if let Some(outbox) = connection.outbox.take_if(|outbox| !outbox.is_open()) {
                    self.sender.give_back(outbox);
                }
                Ok(Sent::All)
            }
            Progress::Full => {
                connection.writable = false;
                connection.unacknowledged = socket::unacknowledged(&connection.socket);
                Ok(Sent::Waits)
            }
            Progress::Cold(content, range) => {
                self.cold_windows += 1;
                connection.cold = now;
                if !disk.warm(token, content, range) {
                    // No helper can be had. Whoever was promised a reply gets it, when the queue has become shorter.
                    self.turned_away.push_back(token);
                    self.ask_anew = self.ask_anew.min(now + ASK_ANEW);
                }
                Ok(Sent::Waits)
            }
            Progress::Yield => Ok(Sent::Yields),
            Progress::Broken => Err(Dead),
        }
    }

    /// Closes a connection. Replies that are not complete are told to the log as far as they went.
    fn remove(&mut self, token: Token) {
        let Some(index) = self.index(token) else {
            return;
        };
        let (generation, slot) = &mut self.slots[index];
        let Some(mut connection) = slot.take() else {
            return;
        };
        // Wraps long before a stale token could be believed; the largest is not used, its numbers are for others.
        *generation = (*generation + 1) % (u32::MAX - 1);
        self.free.push(index as u32);
        self.open -= 1;
        self.apps.abandon(connection.app.take());
        if let Some(outbox) = &mut connection.outbox {
            self.broken += 1;
            // The client must see that what it has is not all.
            socket::reset_on_close(&connection.socket);
            let mut teller = Teller {
                log: &mut self.log,
                peer: &connection.peer,
                records: &mut self.desk.records,
                wall: &self.desk.wall,
                now: self.clock.now(),
                meter: &mut self.meter,
                timing: &mut connection.timing,
            };
            outbox.give_up(&mut teller);
        }
    }
}

/// Connections that were turned away by the helpers ask anew when one becomes free, and after this time at the latest:
/// that none could be started at all is not followed by one becoming free.
const ASK_ANEW: Duration = Duration::from_millis(100);

/// The day's second is looked up this often; Date is late by no more.
const WALL_STEP: Duration = Duration::from_millis(20);

/// How accepting went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accepted {
    /// Nobody waits any more.
    All,
    /// There may be more.
    Some,
    /// As many connections are open as may be.
    Full,
    /// The process is out of descriptors.
    Exhausted,
}

/// What is left to do for a connection after its turn.
enum Rest {
    /// Nothing until something happens.
    Nothing,
    /// More, after the others.
    ComesAgain,
}

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

/// The connection is to be closed.
struct Dead;

/// Receives once.
fn receive(
    connection: &mut Connection,
    buffer: &mut [u8],
    now: Time,
    desk: &mut Desk<OpenFile>,
    actions: &mut Vec<Action<OpenFile>>,
) -> Result<(), Dead> {
    if !connection.readable || !connection.conn.wants_bytes() {
        return Ok(());
    }
    let event = match socket::receive(&connection.socket, buffer) {
        Ok(0) => {
            connection.readable = false;
            Event::Ended
        }
        Ok(count) => {
            // Less than there was room for: nothing is left, and epoll will tell of what comes (epoll(7), "short read").
            // Only the end does not announce itself twice.
            if count < buffer.len() && !connection.ending {
                connection.readable = false;
            }
            Event::Bytes(&buffer[..count])
        }
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
            connection.readable = false;
            return Ok(());
        }
        Err(error) if error.kind() == io::ErrorKind::Interrupted => return Ok(()),
        Err(_) => return Err(Dead),
    };
    connection.conn.handle(now, event, desk, actions);
    Ok(())
}

/// Does what a connection has said, short of sending. The list is empty afterwards.
fn carry_out<D: DiskSide>(
    connection: &mut Connection,
    (token, now): (Token, Time),
    desk: &mut Desk<OpenFile>,
    sender: &mut Sender,
    disk: &mut D,
    (apps, generation, mailbox): (&mut AppSide, &Generation, &Arc<Mailbox<Message>>),
    actions: &mut Vec<Action<OpenFile>>,
) -> Result<(), Dead> {
    let mut at = 0;
    // The list grows while it is worked off: an answer of the disk brings further actions.
    while at < actions.len() {
        match std::mem::replace(&mut actions[at], Action::Close) {
            Action::Send(reply) => {
                let style = sender.style();
                connection.outbox.get_or_insert_with(|| sender.outbox()).put(reply, now, &desk.wall, style);
            }
            Action::Interim(bytes) => connection.outbox.get_or_insert_with(|| sender.outbox()).put_interim(bytes),
            Action::Piece(bytes, framed) => {
                connection.outbox.get_or_insert_with(|| sender.outbox()).put_piece(&bytes, framed);
            }
            Action::PieceEnd => connection.outbox.iter_mut().for_each(|outbox| outbox.put_end()),
            Action::App(ticket, input) => {
                let socket = (connection.socket.as_fd(), &mut connection.ends);
                let context = generation.app_context();
                if let Some(output) = apps.take(&mut connection.app, token, (ticket, input), socket, &context) {
                    connection.conn.handle(now, Event::App(ticket, output), desk, actions);
                }
            }
            Action::Verify(ticket, work) => {
                let client = Client::new(connection.peer.address());
                let asked = match &generation.verifier {
                    Some(verifier) => verifier.ask(work, client, (Arc::<Mailbox<_>>::clone(mailbox), token, ticket)),
                    // There was one when the site was asked for.
                    None => verifier::Asked::Answered(Verdict::Failed),
                };
                let event = match asked {
                    verifier::Asked::Answered(verdict) => Event::Disk(ticket, Answer::Verified(verdict)),
                    verifier::Asked::Later(asker) => {
                        if connection.ending {
                            asker.leaves();
                        }
                        connection.asker = Some((now, asker));
                        Event::Late(ticket, Delay::Disk)
                    }
                };
                connection.conn.handle(now, event, desk, actions);
            }
            Action::Disk(ticket, work) => {
                let event = match disk.ask(now, token, ticket, &work, desk) {
                    Asked::Answered(answer) => Event::Disk(ticket, answer),
                    Asked::Later(delay) => {
                        connection.conn.handle(now, Event::Late(ticket, delay), desk, actions);
                        if !connection.conn.waits_for(ticket) {
                            // What was known has served. A busy name asked for while the disk hesitates would gather hundreds of
                            // thousands who do not wait, and telling them all takes tens of milliseconds.
                            disk.withdraw(token, ticket, &work);
                        }
                        at += 1;
                        continue;
                    }
                    Asked::Refused => {
                        // What is known of the name may serve; then the refusal finds nobody who waits for it.
                        connection.conn.handle(now, Event::Late(ticket, Delay::Disk), desk, actions);
                        Event::Disk(ticket, Answer::Trouble(Trouble::Busy))
                    }
                };
                connection.conn.handle(now, event, desk, actions);
            }
            Action::Log(line) => say!("{line}"),
            Action::HalfClose => socket::half_close(&connection.socket).map_err(|_| Dead)?,
            Action::Close => return Err(Dead),
        }
        at += 1;
    }
    actions.clear();
    Ok(())
}
