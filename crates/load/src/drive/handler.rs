//! The thread that handles connections: sends requests on established ones, reads replies, and closes.
//!
//! One edge-triggered epoll set. A connection is added once and never modified; most requests cost one send, one
//! receive and their share of a wait, and allocate nothing. In a closed loop this thread also opens connections
//! ([`Clients`]), since there nothing must be on time.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use amped_sys::clock::{self, Clock};
use amped_sys::epoll::{Events, Ready};
use amped_sys::socket;
use amped_units::Time;

use super::lane::{Connector, Lane, Meter, PRIORITY, Pending, fault, lock};
use super::seconds::Cutter;
use super::settings::{Settings, Stop};
use crate::client::{Connection, Next, Plan};
use crate::tally::{Fault, Tally, Used};
use crate::tls::Session;

/// The result of the thread.
pub(super) struct Handled {
    pub(super) tally: Tally,
    pub(super) used: Used,
}

/// An established connection and its socket.
struct Active {
    generation: u32,
    socket: OwnedFd,
    connection: Connection,
    tls: Option<Box<Session>>,
    /// Its number in the run.
    number: u64,
    /// Its scheduled time.
    planned: Time,
    /// Deadline of the oldest outstanding reply.
    due: Time,
    /// Whether its client pauses until an instant in [`Clients::idle`].
    is_resting: bool,
    /// Bytes that the socket had no room for, and how many of them were
    /// sent: a long body takes many sends. With TLS the session keeps them.
    unsent: Vec<u8>,
    unsent_at: usize,
}

pub(super) struct Handler<'a> {
    lane: &'a Lane,
    settings: &'a Settings,
    plan: &'a Plan,
    clock: Clock,
    start: Time,
    tally: Tally,
    active: Vec<Option<Active>>,
    /// Number of open connections, and the highest slot ever used plus one.
    live: usize,
    high: usize,
    clients: Option<Clients<'a>>,
    buffer: Vec<u8>,
    out: Vec<u8>,
}

/// A closed loop: client n always has slot n.
struct Clients<'a> {
    connector: Connector<'a>,
    think: Duration,
    /// No requests begin after this instant.
    until: Time,
    /// The run's next request and connection numbers, shared by the clients of all lanes.
    next_request: &'a AtomicU64,
    next_connection: &'a AtomicU64,
    /// Idle clients, by when they resume.
    idle: BinaryHeap<Reverse<(Time, u32)>>,
    generation: u32,
}

impl Clients<'_> {
    /// Whether no more requests begin: the time is over, or the list
    /// of requests is exhausted, which ends the run for all lanes.
    fn are_done(&mut self, at: Time, plan: &Plan) -> bool {
        if plan.requests().len().is_some_and(|length| self.next_request.load(Ordering::Relaxed) >= length) {
            self.until = self.until.min(at);
        }
        at >= self.until
    }
}

/// Pause of a client that could not connect or was cut off: without
/// it a dead server would be retried as fast as this machine can.
const PAUSE: Duration = Duration::from_millis(10);

/// Maximum events per wait.
const EVENTS: usize = 256;

/// Maximum bytes per receive.
const BUFFER: usize = 128 * 1024;

impl<'a> Handler<'a> {
    pub(super) fn new(
        lane: &'a Lane,
        settings: &'a Settings,
        plan: &'a Plan,
        clock: Clock,
        start: Time,
        tally: Tally,
    ) -> Handler<'a> {
        Handler {
            lane,
            settings,
            plan,
            clock,
            start,
            tally,
            active: (0..lane.slots.len()).map(|_| None).collect(),
            live: 0,
            high: 0,
            clients: None,
            buffer: vec![0; BUFFER],
            out: Vec::with_capacity(4096),
        }
    }

    /// A closed loop with one client per slot. All lanes take request numbers from `next_request`, so that each number is
    /// used exactly once, whatever happens to a group; the same with connections.
    pub(super) fn closed(
        mut self,
        connector: Connector<'a>,
        think: Duration,
        until: Time,
        next_request: &'a AtomicU64,
        next_connection: &'a AtomicU64,
    ) -> Handler<'a> {
        let idle = (0..self.active.len() as u32).map(|slot| Reverse((self.start, slot))).collect();
        self.clients = Some(Clients { connector, think, until, next_request, next_connection, idle, generation: 0 });
        self
    }

    pub(super) fn run(mut self, mut cutter: Cutter, stop: &Stop) -> Handled {
        if self.clients.is_none() {
            clock::exact_timers();
            // The establisher reports whether this process may.
            let _ = clock::run_first(PRIORITY);
        }
        let meter = Meter::start(self.clock);
        // Deadlines are checked often enough that a timeout is at most a fiftieth late.
        let sweep = self.settings.timeout.min(self.settings.connect_timeout) / 50;
        let sweep = sweep.clamp(Duration::from_millis(1), Duration::from_millis(50));
        let mut next_sweep = self.start + sweep;
        let mut events = Events::with_capacity(EVENTS);
        let mut now = self.clock.now();
        while !stop.is_stopped() && !self.is_over(now) {
            let until = self.clients.as_ref().and_then(|clients| clients.idle.peek()).map(|Reverse((at, _))| *at);
            let wait = until.map_or(next_sweep, |until| until.min(next_sweep)) - now;
            // The set and the descriptors are ours: waiting cannot fail.
            if self.lane.poll.wait(&mut events, Some(wait)).is_err() {
                break;
            }
            // All ready data arrived before this instant, however long it takes to read.
            cutter.tick(self.clock.now(), &mut self.tally);
            for ready in events.iter() {
                self.handle(ready);
            }
            now = self.clock.now();
            self.wake(now);
            if now >= next_sweep {
                self.sweep(now);
                next_sweep = now + sweep;
            }
        }
        cutter.finish(now, &mut self.tally);
        Handled { tally: self.tally, used: meter.read() }
    }

    fn is_over(&mut self, now: Time) -> bool {
        let is_done = match &mut self.clients {
            None => self.lane.over.load(Ordering::Acquire),
            // A client due before the end begins, even if this thread ran only after it.
            Some(clients) => {
                clients.are_done(now, self.plan)
                    && clients.idle.peek().is_none_or(|Reverse((at, _))| *at >= clients.until)
            }
        };
        let is_open = self.clients.is_none();
        is_done && self.live == 0 && (is_open || self.lane.slots.iter().all(|slot| lock(slot).is_none()))
    }

    /// Handles an event on a socket.
    fn handle(&mut self, ready: Ready) {
        let (slot, generation) = (ready.token as u32, (ready.token >> 32) as u32);
        let known = self.active[slot as usize].as_ref().is_some_and(|active| active.generation == generation);
        if !known {
            // The connection is established, or it was closed while the event was in transit.
            let Some(pending) = self.lane.take(slot, generation) else { return };
            self.lane.taken.fetch_add(1, Ordering::Relaxed);
            if !self.establish(slot, pending, ready) {
                return;
            }
        }
        self.serve(slot, ready);
    }

    /// Handles a connection that was established or has failed.
    fn establish(&mut self, slot: u32, pending: Pending, ready: Ready) -> bool {
        let now = self.clock.now();
        let Pending { generation, socket, number, planned } = pending;
        if ready.ended
            && let Some(error) = socket::failed(&socket)
        {
            self.fail_connection(fault(&error), number, now);
            self.tally.ended(planned, now, false);
            drop(socket);
            self.release(slot, now, PAUSE);
            return false;
        }
        self.tally.connected(planned, now);
        let due = planned + self.settings.timeout;
        let connection = Connection::new(planned, self.plan);
        let tls = self.settings.tls.as_ref().map(|tls| Box::new(Session::new(tls, number, now)));
        let (unsent, unsent_at) = (Vec::new(), 0);
        let is_resting = false;
        let active =
            Active { generation, socket, connection, tls, number, planned, due, is_resting, unsent, unsent_at };
        self.active[slot as usize] = Some(active);
        self.live += 1;
        self.high = self.high.max(slot as usize + 1);
        self.ask(slot, planned);
        true
    }

    /// Takes the next step of a connection that stays open.
    fn go_on(&mut self, slot: u32, next: Next, now: Time) {
        let think = self.clients.as_ref().map_or(Duration::ZERO, |clients| clients.think);
        if next == Next::Ask && think.is_zero() {
            return self.ask(slot, now);
        }
        let Some(active) = &mut self.active[slot as usize] else { return };
        // A pause begins when all replies have come.
        if next == Next::Ask
            && active.connection.is_idle()
            && !active.is_resting
            && let Some(clients) = &mut self.clients
        {
            active.is_resting = true;
            clients.idle.push(Reverse((now + think, slot)));
        }
        self.out.clear();
        active.connection.take_output(&mut self.out);
        self.transmit(slot);
    }

    /// Sends the next requests on a connection; closes it if there are none, and none are outstanding.
    fn ask(&mut self, slot: u32, planned: Time) {
        let Some(active) = &mut self.active[slot as usize] else { return };
        let base = match &mut self.clients {
            Some(clients) => (!clients.are_done(planned, self.plan))
                .then(|| clients.next_request.fetch_add(active.connection.room(self.plan), Ordering::Relaxed)),
            None => Some(active.number.saturating_mul(self.plan.per_connection()) + active.connection.sent()),
        };
        active.is_resting = false;
        self.out.clear();
        active.connection.take_output(&mut self.out);
        let count = base.map_or(0, |base| active.connection.ask(planned, base, self.plan, &mut self.out));
        if count == 0 && active.connection.is_idle() {
            return self.close(slot);
        }
        self.transmit(slot);
    }

    /// Sends the bytes in `out`, after those that the socket had no room for.
    fn transmit(&mut self, slot: u32) {
        let Some(active) = &mut self.active[slot as usize] else { return };
        let is_idle = active.connection.is_idle();
        active.due = if is_idle { Time::NEVER } else { active.connection.planned() + self.settings.timeout };
        if self.out.is_empty() {
            return;
        }
        if let Some(session) = &mut active.tls {
            session.say(&self.out);
            return session.send(&active.socket);
        }
        if !active.unsent.is_empty() {
            return active.unsent.extend_from_slice(&self.out);
        }
        match socket::send(&active.socket, &self.out, false) {
            Ok(sent) if sent == self.out.len() => {}
            Ok(sent) => active.unsent.extend_from_slice(&self.out[sent..]),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => active.unsent.extend_from_slice(&self.out),
            // Data that the server sent before the reset is still readable, and the read reports the error again.
            Err(_) => {}
        }
    }

    /// Writes as much as a socket accepts, and reads what it holds.
    fn serve(&mut self, slot: u32, ready: Ready) {
        loop {
            let Some(active) = &mut self.active[slot as usize] else { return };
            match &mut active.tls {
                Some(session) if ready.writable => session.send(&active.socket),
                None if ready.writable && !active.unsent.is_empty() => {
                    if let Ok(sent) = socket::send(&active.socket, &active.unsent[active.unsent_at..], false) {
                        active.unsent_at += sent;
                    }
                    if active.unsent_at == active.unsent.len() {
                        active.unsent.clear();
                        active.unsent_at = 0;
                    }
                }
                Some(_) | None => {}
            }
            if !ready.readable {
                return;
            }
            let received = socket::receive(&active.socket, &mut self.buffer);
            let now = self.clock.now();
            let is_full = matches!(received, Ok(BUFFER));
            let next = match received {
                Ok(0) if active.tls.is_some() => active.connection.handle_cut(self.plan, &mut self.tally),
                Ok(0) => {
                    active.connection.handle_end(now, self.plan, &mut self.tally);
                    Next::Close
                }
                Ok(count) => {
                    let bytes = &self.buffer[..count];
                    match (&mut active.tls, &self.settings.tls) {
                        (Some(session), Some(tls)) => {
                            let whose = (tls, &mut active.connection);
                            let next = session.handle_bytes(now, bytes, whose, self.plan, &mut self.tally);
                            // The rest of a handshake, followed by the first requests; or an alert.
                            session.send(&active.socket);
                            next
                        }
                        _ => active.connection.handle_bytes(now, bytes, self.plan, &mut self.tally),
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) => active.connection.handle_fault(fault(&error), self.plan, &mut self.tally),
            };
            if next == Next::Close {
                return self.close(slot);
            }
            self.go_on(slot, next, now);
            // A buffer that is not full drained the socket. Later data triggers
            // a new event, but an end reported with this event does not.
            if !ready.ended && !is_full {
                return;
            }
        }
    }

    /// Closes a connection.
    fn close(&mut self, slot: u32) {
        if let Some(mut active) = self.active[slot as usize].take() {
            self.live -= 1;
            if let Some(session) = &mut active.tls {
                session.say_end();
                session.send(&active.socket);
            }
            let (planned, now) = (active.planned, self.clock.now());
            let owed = self.owed(active.number, now);
            active.connection.count_unsent(owed, &mut self.tally);
            self.tally.ended(planned, now, true);
            drop(active);
            let think = self.clients.as_ref().map_or(Duration::ZERO, |clients| clients.think);
            self.release(slot, now, think);
        }
    }

    fn fail_connection(&mut self, fault: Fault, number: u64, now: Time) {
        let owed = self.owed(number, now);
        self.tally.fail_connection(fault, owed);
    }

    /// Requests that a connection is to carry, if it ends now. A closed loop that is over owes nothing.
    fn owed(&mut self, number: u64, now: Time) -> u64 {
        match &mut self.clients {
            None => self.plan.requests_of(number),
            Some(clients) => match clients.are_done(now, self.plan) {
                true => 0,
                false => self.plan.requests_of_client(),
            },
        }
    }

    /// Frees a slot: it returns to the establisher, or its client resumes after `pause`.
    fn release(&mut self, slot: u32, now: Time, pause: Duration) {
        match &mut self.clients {
            None => lock(&self.lane.returned).push(slot),
            Some(clients) => clients.idle.push(Reverse((now + pause, slot))),
        }
    }

    /// Resumes clients whose pause is over.
    fn wake(&mut self, now: Time) {
        while let Some(clients) = &mut self.clients
            && let Some(Reverse((at, slot))) = clients.idle.peek().copied()
            && at <= now
        {
            clients.idle.pop();
            if clients.are_done(at, self.plan) {
                self.close(slot);
            } else if self.active[slot as usize].is_some() {
                self.ask(slot, at);
            } else {
                self.begin(slot, at);
            }
        }
    }

    /// A client connects.
    fn begin(&mut self, slot: u32, planned: Time) {
        let Some(clients) = &mut self.clients else { return };
        clients.generation = clients.generation.wrapping_add(1);
        let generation = clients.generation;
        let begun = clients.connector.begin(self.clock, planned, &mut self.tally).and_then(|socket| {
            // Request numbers are assigned when requests are sent, not when a connection starts.
            let number = clients.next_connection.fetch_add(1, Ordering::Relaxed);
            let pending = Pending { generation, socket, number, planned };
            self.lane.put(slot, pending).map_err(|_| {
                self.tally.ended(planned, self.clock.now(), false);
                Fault::Local
            })
        });
        if let Err(fault) = begun {
            let now = self.clock.now();
            self.fail_connection(fault, 0, now);
            self.release(slot, now, PAUSE);
        }
    }

    /// Expires overdue replies, and in a closed loop overdue connections.
    fn sweep(&mut self, now: Time) {
        for slot in 0..self.high as u32 {
            if let Some(active) = &mut self.active[slot as usize]
                && active.due <= now
            {
                let late = Time::START + now.since(Time::START).saturating_sub(self.settings.timeout);
                match active.connection.handle_late(late, self.plan, &mut self.tally) {
                    Next::Close => {
                        socket::reset_on_close(&active.socket);
                        self.close(slot);
                    }
                    next => self.go_on(slot, next, now),
                }
            }
        }
        if self.clients.is_none() {
            return;
        }
        for slot in 0..self.active.len() as u32 {
            let due = |pending: &mut Pending| pending.planned + self.settings.connect_timeout <= now;
            let late = lock(&self.lane.slots[slot as usize]).take_if(due);
            if let Some(pending) = late {
                socket::reset_on_close(&pending.socket);
                self.fail_connection(Fault::Abandoned, pending.number, now);
                self.tally.ended(pending.planned, now, false);
                self.release(slot, now, PAUSE);
            }
        }
    }
}
