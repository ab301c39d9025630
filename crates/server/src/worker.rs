//! A worker: a loop's connections, the same for every architecture.
//!
//! A worker owns its connections, its caches and its timers, and gives turns ([`crate::turn`]) to connections whose
//! sockets are ready, whose answers have arrived, or whose deadlines have passed. The architecture ([`crate::arch`])
//! determines when it is called and how disk work is done; it provides a [`DiskSide`].

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use amped_core::app::Output;
use amped_core::cache::{Caches, Change};
use amped_core::deadline::Wheel;
use amped_core::event::{Action, Answer, Event, Lane, PreloadResult, Ticket, Trouble, Work};
use amped_core::request_id::IdSource;
use amped_core::revalidation::Revalidation;
use amped_core::shared_state::SharedState;
use amped_sys::epoll::{Epoll, Interest, Ready};
use amped_sys::{file, socket};
use amped_units::Time;

use crate::access_log::{AccessLog, Writer};
use crate::app::cgi::Started;
use crate::app::compressor::Encoded;
use crate::app::connection::Step;
use crate::app::single_flight::Settled;
use crate::app::{AppRequest, AppSide, spool};
use crate::background::{Background, Remains};
use crate::client_counts::Permit;
use crate::clock::{Clock, wall};
use crate::compress::CompressDone;
use crate::config::settings::ConnectionStart;
use crate::config_snapshot::ConfigSnapshot;
use crate::counters::{CompressionCounts, MappedCounts, ModelCounts, Snapshot, TlsCounts, WaitCounts, Waited};
use crate::handshakes::{Handshake, Handshakes};
use crate::helper::Done;
use crate::listen::Listener;
use crate::mailbox::Mailbox;
use crate::message::{Invalidation, Message, Preload};
use crate::metrics::{Meter, Scope, StatsSlot};
use crate::notes::Notes;
use crate::open_file::OpenFile;
use crate::passwords::verifier::Verified;
use crate::say;
use crate::send::Sender;
use crate::slots::Slots;
use crate::token::{APP_BIT, Token};
use crate::transport::Transport;
use crate::turn::{ASK_ANEW, BUFFER, Connection, Dead, DiskAccess, DiskAnswer, LoopContext, Proxied, Rest, Turn};

/// How an architecture starts disk work and gets its results.
pub trait DiskSide: DiskAccess {
    /// Adds descriptors that do not report through the mailbox to the loop's epoll set, under this number.
    ///
    /// # Errors
    /// Those of [`Epoll::add`].
    fn register(&mut self, _: &Epoll, _token: u64) -> io::Result<()> {
        Ok(())
    }

    /// A registered descriptor is ready.
    fn ready(&mut self, _now: Time, _: &mut Worker) {}

    /// Drops names from state that this side shares with others.
    fn invalidate(&mut self, _: &Invalidation, _: &SharedState<OpenFile>) {}

    /// A helper has completed a task.
    fn done(&mut self, _: Done, _now: Time, _: &mut Worker) {}

    /// Returns when [`take_due`](DiskSide::take_due) has something to do.
    fn next_due(&self) -> Time {
        Time::NEVER
    }

    /// Does what was deferred until now.
    fn take_due(&mut self, _now: Time, _: &mut Worker) {}

    /// Applies another configuration.
    fn renew(&mut self, generation: &ConfigSnapshot);

    /// Adds the statistics that only the disk side has.
    fn complete(&self, snapshot: Snapshot) -> Snapshot {
        snapshot
    }
}

/// The state of one loop.
pub struct Worker {
    connections: Slots<Connection>,
    /// Pages that are being revalidated.
    revalidations: Slots<Background>,
    /// State shared by turns.
    pub context: LoopContext,
    wheel: Wheel<Token>,
    expired: Vec<Token>,
    /// Unfinished connections, in the order of their next turns.
    again: VecDeque<Token>,
    /// Accepted connections that have not had a turn.
    fresh: Vec<Token>,
    actions: Vec<Action<OpenFile>>,
    /// Background lookups, and the recipients of their results.
    preloads: HashMap<u32, Preload>,
    next_preload: u32,
    accepted: u64,
    broken: u64,
    slow: u64,
    /// Connections to addresses with the PROXY protocol that were closed because of their header.
    refused_proxies: u64,
    /// Waits for windows.
    windows: Waited,
    /// Waits for passwords.
    passwords: Waited,
    /// Waits for TLS handshakes.
    handshakes: Waited,
    /// Out of descriptors; reported once, until no connection waits for one any more.
    exhausted: bool,
    /// The maximum number of connections is open and none is idle; reported once, until no connection waits any more.
    full: bool,
}

/// Maximum connections accepted from one listener in one turn.
const ACCEPTS_A_TURN: usize = 64;

impl Worker {
    /// Creates a worker without connections.
    pub fn new(
        generation: Arc<ConfigSnapshot>,
        apps: AppSide,
        mailbox: Arc<Mailbox<Message>>,
        log: Option<Arc<Writer>>,
        clock: Clock,
        slot: Option<StatsSlot>,
    ) -> Worker {
        generation.apps.start_checks();
        let settings = &generation.settings;
        let budgets = settings.cache.clone();
        let caches = match &generation.caches {
            Some(shared) => Caches::shared(shared, budgets, 0),
            None => Caches::new(budgets),
        };
        let blocks = generation.blocks();
        let mut shared = SharedState::with_caches(Arc::clone(&settings.sites), settings.limits.clone(), caches, wall());
        shared.http2 = settings.http2;
        shared.challenges = generation.http_challenges();
        shared.limiter = generation.request_limiter();
        shared.ids = IdSource::new([(); 2].map(|()| random()));
        let context = LoopContext {
            shared,
            log: AccessLog::new(&settings.log, log),
            sender: Sender::new(&generation),
            handshakes: Handshakes::new(Arc::<Mailbox<_>>::clone(&mailbox), settings.workers),
            tls: TlsCounts::default(),
            compression: CompressionCounts::default(),
            generation,
            mailbox,
            apps,
            meter: Meter::new(slot, clock),
            clock,
            wall_checked: Time::START,
            blocks,
            buffer: vec![0; BUFFER],
            retry_queue: VecDeque::new(),
            ask_anew: Time::NEVER,
            cold_windows: 0,
            limited_connections: 0,
            revalidations: Vec::new(),
        };
        Worker {
            connections: Slots::default(),
            revalidations: Slots::default(),
            context,
            wheel: Wheel::default(),
            expired: Vec::new(),
            again: VecDeque::new(),
            fresh: Vec::new(),
            actions: Vec::new(),
            preloads: HashMap::new(),
            next_preload: 0,
            accepted: 0,
            broken: 0,
            slow: 0,
            refused_proxies: 0,
            windows: Waited::default(),
            passwords: Waited::default(),
            handshakes: Waited::default(),
            exhausted: false,
            full: false,
        }
    }

    /// Reads the clock; once per iteration of the loop, since the time is used everywhere.
    pub fn tick(&mut self) -> Time {
        self.context.tick()
    }

    /// Returns how long the loop may wait for events.
    pub fn patience(&self, now: Time) -> Option<Duration> {
        if !self.again.is_empty() || self.context.handshakes.has_queued() {
            return Some(Duration::ZERO);
        }
        let due = self.wheel.next_due().unwrap_or(Time::NEVER).min(self.context.log.next_due());
        let due = due.min(self.context.ask_anew).min(self.context.meter.next_due()).min(self.context.apps.next_due());
        (due != Time::NEVER).then(|| due.since(now))
    }

    /// Returns the current configuration.
    pub fn generation(&self) -> &Arc<ConfigSnapshot> {
        &self.context.generation
    }

    /// Returns the number of open connections.
    pub fn open(&self) -> usize {
        self.connections.used()
    }

    /// Returns whether the maximum number of connections is open.
    pub fn is_full(&self) -> bool {
        self.open() >= self.context.generation.connections_max
    }

    /// Returns whether the process was out of descriptors at the last accept.
    pub fn is_exhausted(&self) -> bool {
        self.exhausted
    }

    /// Accepts connections that wait at a listener, up to a limit; the rest is accepted later. Accepted
    /// connections must be [greeted](Worker::greet).
    pub fn accept(&mut self, listener: &Listener, now: Time) -> Accepted {
        for _ in 0..ACCEPTS_A_TURN {
            let full = self.is_full();
            let idle_token = match full {
                true => self.connections.find(|other| other.conn.may_give_way(now) && !other.readable),
                false => None,
            };
            if full && idle_token.is_none() {
                // In a pool this is normal.
                if !self.context.generation.pooled() && !std::mem::replace(&mut self.full, true) {
                    say!(
                        "{} connections are open and none is idle; new ones wait until some close \
                         (limits.max_connections, or the limit on open files, allows no more)",
                        self.open()
                    );
                }
                return Accepted::Full;
            }
            let accepted =
                if self.context.blocks { socket::accept_blocking(listener) } else { socket::accept(listener) };
            match accepted {
                Ok((socket, address)) => {
                    // With the PROXY protocol, its header names the client.
                    let admitted = if listener.start.proxy { Ok(None) } else { self.context.admit(address) };
                    let Ok(permit) = admitted else { continue };
                    // Only now: if no connection waits, none has to be closed.
                    if let Some(token) = idle_token {
                        self.remove(token);
                    }
                    self.add((socket, listener.start), address, permit, now);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    // Only now: while others still wait, one free slot does not end the shortage.
                    self.full = false;
                    if std::mem::take(&mut self.exhausted) {
                        say!("file descriptors available again; resuming accept");
                    }
                    return Accepted::All;
                }
                Err(error) if file::is_exhaustion(&error) => {
                    if !std::mem::replace(&mut self.exhausted, true) {
                        say!(
                            "cannot accept connections: {error}; open connections are served, new ones wait until \
                             some close (raise the limit on open files, or lower limits.max_connections)"
                        );
                    }
                    return Accepted::Exhausted;
                }
                // The client has already disconnected, or accept(2) reported a network error of this connection.
                Err(_) => {}
            }
        }
        Accepted::Some
    }

    fn add(
        &mut self,
        (socket, start): (OwnedFd, ConnectionStart),
        address: Option<SocketAddr>,
        permit: Option<Box<Permit>>,
        now: Time,
    ) {
        if start.proxy && !self.context.is_trusted(address) {
            self.refused_proxies += 1;
            return;
        }
        let tls = match (start.tls, &self.context.generation.tls) {
            (false, _) => None,
            (true, Some(config)) => match config.session() {
                Ok(session) => Some(Box::new(session)),
                Err(error) => return say!("cannot begin a TLS session: {error}"),
            },
            // The listener is about to be replaced by that of a configuration without TLS.
            (true, None) => return,
        };
        let mut connection = Connection::new(Transport::new(socket, tls, now), address, now);
        connection.permit = permit;
        connection.proxied = start.proxy.then(|| Box::new(Proxied::new()));
        let armed = connection.conn.next_due(&self.context.shared.limits);
        connection.armed = armed;
        let token = self.connections.insert(connection);
        self.accepted += 1;
        self.wheel.insert(armed, token);
        self.fresh.push(token);
    }

    /// Gives accepted connections their first turn. Only connections still open after it are added to epoll: none, if
    /// each request uses its own connection.
    pub fn greet(&mut self, epoll: &Epoll, now: Time, disk: &mut impl DiskSide) {
        let mut fresh = std::mem::take(&mut self.fresh);
        for token in fresh.drain(..) {
            self.turn(token, None, now, disk);
            if !self.context.blocks
                && let Some(connection) = self.connections.get(token)
                && epoll.add(&connection.transport, token.to_number(), Interest::Connection).is_err()
            {
                // Out of kernel memory for watches: this client is lost, the others are not.
                self.remove(token);
            }
        }
        self.fresh = fresh;
    }

    /// Returns whether a worker without its epoll has nothing to wait for but a client.
    pub fn may_block(&self) -> bool {
        !self.again.is_empty() || self.connections.iter().all(Connection::waits_for_client)
    }

    /// Waits for a connection, or for the client of the only one, in place of epoll; not if turns are due.
    pub fn block(&mut self, listener: Option<&Listener>, now: Time, disk: &mut impl DiskSide) {
        if !self.again.is_empty() {
            return;
        }
        let Some(token) = self.connections.find(|_| true) else {
            listener.into_iter().for_each(|listener| _ = self.accept(listener, now));
            return;
        };
        if let Some(connection) = self.connections.get(token) {
            // The turn waits in the call for which epoll would have waited.
            (connection.readable, connection.writable) = (!connection.has_output(), true);
            self.turn(token, None, now, disk);
        }
    }

    /// Handles an event on a connection's socket.
    pub fn ready(&mut self, ready: Ready, now: Time, disk: &mut impl DiskSide) {
        let token = Token::from_number(ready.token & !APP_BIT);
        if let Some(slot) = token.revalidation() {
            if let Some(Background { app: Some(app), .. }) = self.revalidations.get(slot) {
                app.is_ready();
            }
            return self.revalidation_turn(token, None, now);
        }
        let Some(connection) = self.connections.get(token) else {
            return;
        };
        if ready.token & APP_BIT != 0 {
            connection.apps.iter_mut().for_each(|app| app.is_ready());
        } else {
            connection.readable |= ready.readable;
            connection.ending |= ready.ended;
            if ready.ended {
                connection.pending_verdicts.iter().for_each(|(.., pending)| pending.note_client_closed());
            }
            connection.writable |= ready.writable;
        }
        // A queued connection handles this in its next turn.
        if !connection.queued {
            self.turn(token, None, now, disk);
        }
    }

    /// Handles an event on a connection to an application.
    pub fn backend_ready(&mut self, ready: Ready, now: Time, disk: &mut impl DiskSide) {
        let Some((token, ticket)) = self.context.apps.note_event(ready) else { return };
        if let Some(app) = self.app(token, ticket) {
            app.note_event(ready.ended);
            self.app_turn(token, now, disk);
        }
    }

    /// Gives turns to unfinished connections.
    pub fn take_turns(&mut self, now: Time, disk: &mut impl DiskSide) {
        // Only those queued now: a connection that is queued again waits for the next round.
        for _ in 0..self.again.len() {
            let Some(token) = self.again.pop_front() else {
                return;
            };
            if let Some(connection) = self.connections.get(token) {
                connection.queued = false;
            }
            self.any_turn(token, None, now, disk);
        }
    }

    /// Handles the result of a deferred lookup.
    pub fn answer(
        &mut self,
        token: Token,
        ticket: Ticket,
        answer: Answer<OpenFile>,
        now: Time,
        disk: &mut impl DiskSide,
    ) {
        if token.generation == Token::of_preload(0).generation {
            return self.end_preload(token.index, &answer);
        }
        self.turn(token, Some(Event::Disk(ticket, answer)), now, disk);
    }

    /// Handles the verdict on a password. Without a verdict its client has left, and nothing waits for it any more.
    pub fn verified(&mut self, verified: Verified, now: Time, disk: &mut impl DiskSide) {
        let Verified { token, ticket, verdict } = verified;
        let Some(connection) = self.connections.get(token) else { return };
        let pending = connection.pending_verdicts.iter().position(|(pending, ..)| *pending == ticket);
        let pending = pending.map(|at| connection.pending_verdicts.swap_remove(at));
        if !connection.conn.waits_for(ticket) {
            return;
        }
        let Some(verdict) = verdict else { return self.remove(token) };
        if let Some((_, since, _)) = pending {
            self.passwords.add(now.since(since));
        }
        self.answer(token, ticket, Answer::Verified(verdict), now, disk);
    }

    /// Answers hellos of TLS clients that waited for this iteration.
    pub fn take_handshakes(&mut self, now: Time, disk: &mut impl DiskSide) {
        while let Some(mut handshake) = self.context.handshakes.next(now) {
            handshake.session.answer_hello();
            self.take_back(handshake, now, disk);
        }
    }

    /// Takes back a TLS session whose client's hello a thread has answered.
    pub fn hello_answered(&mut self, handshake: Handshake, now: Time, disk: &mut impl DiskSide) {
        self.handshakes.add(now.since(handshake.since));
        self.take_back(handshake, now, disk);
    }

    fn take_back(&mut self, handshake: Handshake, now: Time, disk: &mut impl DiskSide) {
        let Handshake { token, session, .. } = handshake;
        let Some(connection) = self.connections.get(token) else { return };
        match connection.transport.take_back(session) {
            true => self.turn(token, None, now, disk),
            false => self.remove(token),
        }
    }

    /// Caches a file that was compressed.
    pub fn compressed(&mut self, done: CompressDone) {
        let CompressDone { version, coding, result, time } = done;
        self.context.compression.add(version.size, &result, time);
        self.context.shared.caches.learn_encoding(&version, coding, result);
    }

    /// Handles a process that was started for a request, or could not be.
    pub fn app_started(&mut self, started: Started, now: Time, disk: &mut impl DiskSide) {
        let (token, ticket) = (started.token, started.ticket);
        let app = match token.revalidation() {
            Some(slot) => self.revalidations.get(slot).and_then(|background| background.app.take()),
            None => self.connections.get(token).and_then(|connection| connection.take_app(ticket)),
        };
        let Some(mut app) = app else {
            // The connection has closed.
            if let Ok(begun) = started.result {
                self.context.apps.end(begun);
            }
            return;
        };
        let output = self.context.apps.take_started(&mut app, started, now);
        if !matches!(output, Some(Output::Failed(_))) {
            if let Some(connection) = self.connections.get(token) {
                connection.apps.push(app);
            } else if let Some(background) = token.revalidation().and_then(|slot| self.revalidations.get(slot)) {
                background.app = Some(app);
            }
        }
        if let Some(output) = output {
            self.any_turn(token, Some((ticket, output)), now, disk);
        }
    }

    /// Returns the application request with this ticket.
    fn app(&mut self, token: Token, ticket: Ticket) -> Option<&mut AppRequest> {
        let app = match token.revalidation() {
            Some(slot) => self.revalidations.get(slot)?.app.as_mut()?,
            None => self.connections.get(token)?.apps.iter_mut().find(|app| app.ticket() == ticket)?,
        };
        Some(app)
    }

    /// Gives a turn to the owner of an application request, unless it is queued and will have one.
    fn app_turn(&mut self, token: Token, now: Time, disk: &mut impl DiskSide) {
        if self.connections.get(token).is_none_or(|connection| !connection.queued) {
            self.any_turn(token, None, now, disk);
        }
    }

    /// Handles a step of a TLS handshake with a backend.
    pub fn backend_step(&mut self, step: Step, now: Time, disk: &mut impl DiskSide) {
        let (token, ticket) = step.owner();
        if self.app(token, ticket).is_some_and(|app| app.note_step(step)) {
            self.app_turn(token, now, disk);
        }
    }

    /// Handles a spool task that was completed for an application's request.
    pub fn app_spooled(&mut self, done: spool::Done, now: Time, disk: &mut impl DiskSide) {
        let (token, ticket) = (done.owner.token, done.owner.ticket);
        if let Some(app) = self.app(token, ticket) {
            app.note_done(done);
            self.app_turn(token, now, disk);
        }
    }

    /// Handles a piece of an application's response that was compressed.
    pub fn app_encoded(&mut self, done: Encoded, now: Time, disk: &mut impl DiskSide) {
        self.context.compression.responses.add(done.in_bytes, done.size(), done.time);
        let (token, ticket) = done.owner;
        if let Some(app) = self.app(token, ticket) {
            app.note_encoded(done);
            self.app_turn(token, now, disk);
        }
    }

    /// Handles a page that a request waits for: it is cached now, or will not be.
    pub fn page_settled(&mut self, settled: Settled, now: Time, disk: &mut impl DiskSide) {
        let Settled { token, ticket } = settled;
        let Some(connection) = self.connections.get(token) else { return };
        let others = connection.apps.len();
        connection.apps.retain(|app| app.ticket() != ticket || !app.follows());
        if connection.apps.len() < others {
            self.turn(token, Some(Event::App(ticket, Output::Again)), now, disk);
        }
    }

    /// Handles applications that are due.
    pub fn take_apps_due(&mut self, now: Time, disk: &mut impl DiskSide) {
        if now >= self.context.apps.next_due() {
            for token in self.context.apps.take_due(now) {
                self.any_turn(token, None, now, disk);
            }
        }
    }

    /// Drops names.
    pub fn invalidate(&mut self, what: &Invalidation, now: Time, disk: &mut impl DiskSide) {
        let sites = Arc::clone(&self.context.shared.sites);
        what.carry_out(now, &mut self.context.shared.caches, &sites);
        self.context.apps.forget_scripts();
        disk.invalidate(what, &self.context.shared);
    }

    /// Drops a name, and looks it up as for a request. The recipient is notified of the result.
    pub fn preload(&mut self, order: Preload, now: Time, disk: &mut impl DiskSide) {
        let Preload { site, path, .. } = &order;
        self.context.generation.disk.forget_folders();
        self.context.generation.disk.purge(*site, path);
        let change = Change { site: *site, path: Arc::clone(path), beneath: false };
        self.invalidate(&Invalidation::Changes(vec![change]), now, disk);
        let sites = Arc::clone(&self.context.shared.sites);
        let target_site = sites.get(*site).unwrap_or(sites.first());
        let work = Work::Name(self.context.shared.caches.name_work(target_site, Arc::clone(path), None));
        let index = self.next_preload;
        self.next_preload = index.wrapping_add(1);
        self.preloads.insert(index, order);
        match disk.ask(now, Token::of_preload(index), Ticket::default(), &work, &mut self.context.shared) {
            DiskAnswer::Answered(answer) => self.end_preload(index, &answer),
            DiskAnswer::Later(_) => {}
            DiskAnswer::Refused => self.end_preload(index, &Answer::Trouble(Trouble::Busy)),
        }
    }

    fn end_preload(&mut self, index: u32, answer: &Answer<OpenFile>) {
        let Some(Preload { site, report, .. }) = self.preloads.remove(&index) else {
            return;
        };
        report(PreloadResult::of(answer, self.context.shared.sites.get(site).is_some_and(|site| site.listing)));
    }

    /// The next data of a connection were read into memory, as far as possible.
    pub fn warmed(&mut self, (token, lane): (Token, Lane), now: Time, disk: &mut impl DiskSide) {
        let Some(connection) = self.connections.get(token) else {
            return;
        };
        if lane != Lane::default() {
            let (context, actions) = (&mut self.context, &mut self.actions);
            let since = Turn { token, now, connection, context, disk, actions }.warm_lane(lane);
            since.into_iter().for_each(|since| self.windows.add(now.since(since)));
            return self.turn(token, None, now, disk);
        }
        let waited = now.since(std::mem::replace(&mut connection.cold, Time::NEVER));
        connection.fetched = connection.fetched.saturating_add(1);
        self.windows.add(waited);
        self.turn(token, Some(Event::Resumed), now, disk);
    }

    /// The next data of a connection cannot be fetched from an object store. If nothing was sent of the response, it becomes an error.
    pub fn not_fetched(&mut self, (token, lane): (Token, Lane), now: Time, disk: &mut impl DiskSide) {
        let Some(connection) = self.connections.get(token) else {
            return;
        };
        let (wall, style) = (&self.context.shared.wall, self.context.sender.style());
        let is_answered = match (lane == Lane::default(), &mut connection.send_queue, &mut connection.outbox) {
            (true, Some(send_queue), _) => send_queue.fail_undecided(wall, style),
            (false, _, Some(outbox)) => outbox.fail_undecided(lane, wall, style),
            _ => false,
        };
        match is_answered {
            true => self.warmed((token, lane), now, disk),
            false => self.give_up((token, lane), now, disk),
        }
    }

    /// The next data of a connection cannot be read, and its head was sent, so the connection is reset, or the stream.
    pub fn give_up(&mut self, (token, lane): (Token, Lane), now: Time, disk: &mut impl DiskSide) {
        if lane == Lane::default() {
            return self.remove(token);
        }
        if let Some(connection) = self.connections.get(token) {
            let (context, actions) = (&mut self.context, &mut self.actions);
            Turn { token, now, connection, context, disk, actions }.fail_lane(lane);
            self.turn(token, None, now, disk);
        }
    }

    /// A helper has become free: connections that were refused try again, until one finds no room.
    pub fn helper_is_free(&mut self, now: Time, disk: &mut impl DiskSide) {
        self.context.ask_anew = Time::NEVER;
        for _ in 0..self.context.retry_queue.len() {
            let Some(token) = self.context.retry_queue.pop_front() else {
                return;
            };
            let others = self.context.retry_queue.len();
            let Some(connection) = self.connections.get(token) else {
                continue;
            };
            if connection.outbox.is_some() {
                let (context, actions) = (&mut self.context, &mut self.actions);
                Turn { token, now, connection, context, disk, actions }.retry_lanes();
                continue;
            }
            let since = std::mem::replace(&mut connection.cold, Time::NEVER);
            self.turn(token, Some(Event::Resumed), now, disk);
            if let Some(connection) = self.connections.get(token)
                && connection.cold != Time::NEVER
            {
                // Its wait continues, and is limited.
                connection.cold = since;
            }
            if self.context.retry_queue.len() > others {
                break;
            }
        }
        if !self.context.retry_queue.is_empty() {
            self.context.ask_anew = now + ASK_ANEW;
        }
    }

    /// Handles deadlines that have passed, and writes log lines that are old enough.
    pub fn take_deadlines(&mut self, now: Time, disk: &mut impl DiskSide) {
        if now >= self.context.log.next_due() {
            self.context.log.flush();
        }
        if now >= self.context.ask_anew {
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
        if let Some(slot) = token.revalidation() {
            if let Some(mut background) = self.revalidations.remove(slot) {
                background.give_up((token, now), &mut self.context, &mut self.actions);
            }
            return;
        }
        let limits = &self.context.shared.limits;
        let Some(connection) = self.connections.get(token) else {
            return;
        };
        if connection.armed <= now {
            connection.armed = Time::NEVER;
        }
        if connection.cold != Time::NEVER {
            // It waits for the server's disk, not for its client; but not forever.
            if now >= connection.cold + limits.disk_timeout {
                return self.remove(token);
            }
            return self.arm(token);
        }
        if connection.conn.next_due(limits) <= now
            && let Some(bytes) = connection.note_received()
        {
            self.turn(token, Some(Event::Received { bytes }), now, disk);
        }
        if let Some(connection) = self.connections.get(token) {
            connection.lags &= connection.conn.is_slow(now);
        }
        self.turn(token, Some(Event::Deadline), now, disk);
        if let Some(connection) = self.connections.get(token) {
            connection.lags = false;
        }
    }

    /// The server is about to stop: closes connections without a request in
    /// progress; the others close after their response.
    pub fn finish(&mut self, now: Time, disk: &mut impl DiskSide) {
        for token in self.connections.tokens() {
            self.turn(token, Some(Event::Finish), now, disk);
        }
    }

    /// Other loops take over: as [`finish`](Worker::finish), but a request that has arrived is answered.
    pub fn retire(&mut self, now: Time, disk: &mut impl DiskSide) {
        for token in self.connections.tokens() {
            if let Some(connection) = self.connections.get(token) {
                // Perhaps epoll has not reported it yet.
                connection.readable = true;
                self.turn(token, None, now, disk);
                self.turn(token, Some(Event::Retire), now, disk);
            }
        }
    }

    /// Another process serves new connections: the open ones end after their next response.
    pub fn drain(&mut self, now: Time, disk: &mut impl DiskSide) {
        self.context.shared.is_draining = true;
        for token in self.connections.tokens() {
            self.turn(token, Some(Event::Drain), now, disk);
        }
    }

    /// Applies another configuration; connections stay.
    pub fn renew(&mut self, generation: Arc<ConfigSnapshot>) {
        // Their pages are not used any more.
        self.abandon_revalidations();
        generation.apps.start_checks();
        let settings = &generation.settings;
        let (sites, limits, budgets) = (Arc::clone(&settings.sites), settings.limits.clone(), settings.cache.clone());
        self.context.shared.renew(sites, limits, budgets, generation.caches.as_ref());
        self.context.shared.http2 = settings.http2;
        self.context.shared.challenges = generation.http_challenges();
        self.context.shared.limiter = generation.request_limiter();
        self.context.log.renew(&settings.log);
        self.context.sender.renew(&generation);
        self.context.generation = generation;
    }

    /// Closes all remaining connections and passes on the last lines of the log.
    pub fn end(&mut self) {
        for token in self.connections.tokens() {
            self.remove(token);
        }
        self.abandon_revalidations();
        self.context.log.flush();
    }

    /// Returns the statistics.
    pub fn snapshot(&self) -> Snapshot {
        Snapshot { connection_bytes: self.connection_bytes(), ..self.figures() }
    }

    /// Publishes the statistics, if that is due or this is the loop's end.
    pub fn publish(&mut self, now: Time, at_the_end: bool, disk: &impl DiskSide) {
        let Some(scope) = self.context.meter.scope().filter(|_| at_the_end || now >= self.context.meter.next_due())
        else {
            return;
        };
        let figures = disk.complete(self.figures());
        let figures = match scope {
            Scope::Process => {
                let watch = self.context.generation.disk.notes().map(Notes::counts);
                figures.with_log(self.context.log.writer().map(Writer::counts)).with_watch(watch)
            }
            // These are published for the process.
            Scope::Loop => Snapshot { mapped: MappedCounts::default(), model: ModelCounts::default(), ..figures },
        };
        let memory = self.context.meter.wants_memory(now, at_the_end).then(|| self.connection_bytes());
        let (generation, log) = (&self.context.generation, self.context.log.writer());
        self.context.meter.publish(now, figures, memory, || generation.sum_up(&[], log));
    }

    /// Returns the memory of the server that connections use, bytes, including their slots. Visits each connection.
    fn connection_bytes(&self) -> u64 {
        let held: usize = self.connections.iter().map(Connection::heap_bytes).sum();
        let timers = self.wheel.len() * size_of::<(Time, Token)>();
        (held + self.connections.heap_bytes() + timers) as u64
    }

    /// Returns the statistics, except those that are expensive to determine.
    fn figures(&self) -> Snapshot {
        Snapshot {
            counts: self.context.shared.counts,
            accepted: self.accepted,
            connections: self.open() as u64,
            broken: self.broken,
            slow: self.slow,
            refused_proxies: self.refused_proxies,
            limited_connections: self.context.limited_connections,
            // Shared caches are reported once for all loops, when these are summed.
            caches: match &self.context.generation.caches {
                Some(_) => self.context.shared.caches.own_figures(),
                None => self.context.shared.caches.figures(),
            },
            cold_windows: self.context.cold_windows,
            waits: WaitCounts {
                windows: self.windows,
                passwords: self.passwords,
                handshakes: self.handshakes,
                ..WaitCounts::default()
            },
            sent_bytes: self.context.meter.sent_bytes,
            spooled_bytes: self.context.apps.spooled(),
            http: self.context.apps.http,
            loops: self.context.meter.loops,
            tls: self.context.tls,
            compression: self.context.compression,
            // These belong to the process, too: summing several loops of it corrects them.
            mapped: self.context.generation.disk.mapped().counts(),
            model: self.context.generation.disk.residency().counts(),
            ..Snapshot::default()
        }
    }

    /// Gives a connection a turn: handles the event, receives from its client, and executes the resulting actions.
    ///
    /// The list of actions belongs to the loop, for reuse, but is used by this connection until the turn ends, and is
    /// empty then: the actions of one connection must never be executed for another.
    fn turn<D: DiskSide>(&mut self, token: Token, event: Option<Event<'_, OpenFile>>, now: Time, disk: &mut D) {
        let Some(connection) = self.connections.get(token) else {
            return;
        };
        debug_assert!(self.actions.is_empty(), "actions of another connection");
        let (context, actions) = (&mut self.context, &mut self.actions);
        let rest = Turn { token, now, connection, context, disk, actions }.take(event);
        debug_assert!(self.actions.is_empty() || rest.is_err(), "a turn left actions behind");
        self.actions.clear();
        if !self.context.shared.caches.compressions.is_empty() {
            self.context.compress();
        }
        match rest {
            Err(Dead) => self.remove(token),
            Ok(Rest::ComesAgain) if !connection.queued => {
                connection.queued = true;
                self.again.push_back(token);
            }
            Ok(Rest::ComesAgain | Rest::Nothing) => {}
        }
        self.arm(token);
        if !self.context.revalidations.is_empty() {
            self.begin_revalidations(now);
        }
    }

    /// Gives a turn to a connection or a revalidation, with this output of its application.
    fn any_turn(&mut self, token: Token, output: Option<(Ticket, Output<'_>)>, now: Time, disk: &mut impl DiskSide) {
        match token.revalidation() {
            Some(_) => self.revalidation_turn(token, output, now),
            None => self.turn(token, output.map(|(ticket, output)| Event::App(ticket, output)), now, disk),
        }
    }

    /// Starts the revalidations that a turn has asked for.
    fn begin_revalidations(&mut self, now: Time) {
        for (work, ends) in std::mem::take(&mut self.context.revalidations) {
            debug_assert!(self.actions.is_empty(), "actions of another connection");
            let begun = Revalidation::begin(now, *work, &mut self.context.shared, &mut self.actions);
            if let Some(revalidation) = begun {
                let due = revalidation.due();
                let token = self.revalidations.insert(Background::new(revalidation, ends)).of_revalidation();
                self.wheel.insert(due, token);
                self.revalidation_turn(token, None, now);
            }
        }
    }

    /// Gives a revalidation a turn.
    fn revalidation_turn(&mut self, token: Token, output: Option<(Ticket, Output<'_>)>, now: Time) {
        let slot = token.revalidation();
        let Some((slot, background)) = slot.and_then(|slot| Some((slot, self.revalidations.get(slot)?))) else {
            return;
        };
        match background.turn((token, now), output, &mut self.context, &mut self.actions) {
            Remains::Waits => {}
            Remains::More => self.again.push_back(token),
            Remains::Nothing => drop(self.revalidations.remove(slot)),
        }
    }

    fn abandon_revalidations(&mut self) {
        for token in self.revalidations.tokens() {
            let app = self.revalidations.remove(token).and_then(|background| background.app);
            self.context.apps.abandon(app);
        }
    }

    /// Ensures that the timer wheel reports a connection when something is due on it, or earlier.
    fn arm(&mut self, token: Token) {
        let limits = &self.context.shared.limits;
        if let Some(connection) = self.connections.get(token) {
            let due = match connection.cold {
                Time::NEVER => connection.conn.next_due(limits).min(connection.paced().unwrap_or(Time::NEVER)),
                since => since + limits.disk_timeout,
            };
            if due < connection.armed {
                connection.armed = due;
                self.wheel.insert(due, token);
            }
        }
    }

    /// Closes a connection. Incomplete responses are logged as far as they were sent.
    fn remove(&mut self, token: Token) {
        let Some(mut connection) = self.connections.remove(token) else {
            return;
        };
        connection.apps.take().into_iter().for_each(|app| self.context.apps.abandon(Some(app)));
        if connection.proxied.as_ref().is_some_and(|proxied| proxied.is_awaited) {
            self.refused_proxies += 1;
            return;
        }
        let (clock, timeout) = (&self.context.clock, self.context.shared.limits.header_timeout);
        if let Some(failure) = connection.transport.handshake_failure(|| clock.now(), timeout) {
            self.context.tls.add_failure(failure);
        }
        if connection.lags {
            // Otherwise the system would keep for it what is left in the socket's buffer.
            self.slow += 1;
            connection.transport.reset_on_close();
        }
        let is_incomplete = connection.outbox.as_ref().is_some_and(|outbox| outbox.has_responses());
        let send_queue = connection.send_queue.as_ref();
        if send_queue.is_none_or(|send_queue| send_queue.is_empty() && !send_queue.is_open()) && !is_incomplete {
            return connection.transport.close();
        }
        self.broken += 1;
        // The client must see that its response is incomplete.
        connection.transport.reset_on_close();
        let now = self.context.clock.now();
        let Connection { send_queue, outbox, transport, peer, timing, .. } = &mut connection;
        let (_, mut log_context) = self.context.log_context((transport, peer, timing), now);
        send_queue.iter_mut().for_each(|send_queue| send_queue.give_up(&mut log_context));
        outbox.iter_mut().for_each(|outbox| outbox.give_up(&mut log_context));
    }
}

/// Returns a random number. Processes that fork have the same state of the standard library.
fn random() -> u64 {
    RandomState::new().hash_one((std::process::id(), std::thread::current().id()))
}

/// The result of accepting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accepted {
    /// No connection waits any more.
    All,
    /// More may wait.
    Some,
    /// The maximum number of connections is open.
    Full,
    /// The process is out of descriptors.
    Exhausted,
}
