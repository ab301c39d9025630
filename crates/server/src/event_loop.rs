//! Stop 1 of 10: the loop that waits for socket events.
//!
//! Before it, the kernel reports an event; after it, `turn` (stop 2) serves the connection concerned.
//!
//! It waits in epoll for everything: listeners, connections, and the mailbox through which other threads reach it. All
//! architectures run it; they differ in the number of loops, in threads or processes, and in the [`DiskSide`] of each.
//!
//! Listeners belong to one loop, or are shared by a *pool* of loops with one connection each, as in MT and MP: then a
//! loop listens only while it has no connection, and the kernel wakes one of the listening loops (`EPOLLEXCLUSIVE`).
//! When all are busy, a loop whose client is idle closes that connection in favour of a waiting one.
//!
//! Without `pool_epoll` a loop of a pool waits in accept(2), recv(2) and send(2), as the workers of the papers did, and
//! looks into its epoll set only from time to time, for its mailbox.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use amped_sys::epoll::{Epoll, Events, Interest};
use amped_sys::socket;
use amped_units::Time;

use crate::access_log::Writer;
use crate::app::AppSide;
use crate::clock::Clock;
use crate::config_snapshot::ConfigSnapshot;
use crate::counters::Snapshot;
use crate::listen::Listener;
use crate::mailbox::Mailbox;
use crate::message::Message;
use crate::metrics::StatsSlot;
use crate::say;
use crate::token::Token;
use crate::worker::{Accepted, DiskSide, Worker};

/// Maximum events per epoll_wait.
const EVENTS: usize = 256;

/// How long listeners pause after a connection could not be accepted: until then one is likely to have closed.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// How many consecutive looks of a pool's loop must find a waiting connection before the loop accepts it
/// in place of its own idle client: a free loop would have accepted it long before. A single look may
/// find a connection that has just arrived.
const LOOKS: u32 = 20;

/// The interval between these looks.
const LOOK_PAUSE: Duration = Duration::from_millis(5);

/// Maximum time that a loop without `pool_epoll` waits in one call, and between two looks into its epoll set.
pub const BLOCKED_MAX: Duration = Duration::from_millis(100);

const MAILBOX: u64 = Token::FIRST_OTHER;
const DISK: u64 = Token::FIRST_OTHER + 1;
const APPS: u64 = AppSide::TOKEN;
const LISTENERS: u64 = Token::FIRST_OTHER + 3;

/// Everything that a loop needs to start.
pub struct Start {
    /// The current configuration.
    pub generation: Arc<ConfigSnapshot>,
    /// Its own listeners, one for each address.
    pub listeners: Vec<Listener>,
    /// Its mailbox.
    pub mailbox: Arc<Mailbox<Message>>,
    /// The log writer.
    pub log: Option<Arc<Writer>>,
    /// The clock, the same for all loops.
    pub clock: Clock,
    /// The link to the fork server, if helpers are processes (`helper::fork_server`).
    pub fork_server: Option<OwnedFd>,
    /// Where it publishes its counters, if they are published.
    pub slot: Option<StatsSlot>,
}

/// Runs the loop; returns its final statistics.
///
/// # Errors
/// A system call failed without which a loop cannot run.
pub fn run<D: DiskSide>(start: Start, mut disk: D) -> io::Result<Snapshot> {
    let Start { generation, listeners, mailbox, log, clock, slot, .. } = start;
    let epoll = Arc::new(Epoll::new()?);
    epoll.add(&*mailbox, MAILBOX, Interest::Readable)?;
    disk.register(&epoll, DISK)?;
    let mut listener_set = ListenerSet::new(listeners, generation.pooled());
    let apps = AppSide::new(Arc::clone(&epoll), &mailbox, !D::PROBES);
    let mut worker = Worker::new(generation, apps, Arc::clone(&mailbox), log, clock, slot);
    let blocks = worker.context.blocks;
    let mut events = Events::with_capacity(EVENTS);
    let mut messages = Vec::new();
    let mut stop_at = None;
    // The start of the current iteration.
    let mut woke = None;
    // When to look into epoll again, in a loop that blocks.
    let mut look_at = Time::START;

    loop {
        let now = worker.tick();
        if let Some(woke) = woke {
            worker.context.meter.loops.add(now.since(woke));
        }
        worker.publish(now, false, &disk);
        listener_set.open(&epoll, &mut worker, now)?;
        worker.greet(&epoll, now, &mut disk);
        if let Some(deadline) = stop_at
            && (worker.open() == 0 || now >= deadline)
        {
            break;
        }
        let mut patience = worker.patience(now);
        for alarm in [listener_set.next_due(), disk.next_due(), stop_at.unwrap_or(Time::NEVER)] {
            if alarm != Time::NEVER {
                patience = Some(patience.unwrap_or(Duration::MAX).min(alarm.since(now)));
            }
        }
        events.clear();
        let mut has_waited = false;
        let listener = listener_set.listeners.first();
        let may_block = blocks && worker.may_block() && (listener.is_some() || worker.open() > 0);
        if may_block && now < look_at {
            worker.block(listener, now, &mut disk);
        } else {
            look_at = now + BLOCKED_MAX;
            epoll.wait(&mut events, if may_block { Some(Duration::ZERO) } else { patience })?;
            has_waited = true;
        }

        let now = worker.tick();
        woke = (!blocks).then_some(now);
        let open = worker.open();
        let has_events = events.iter().next().is_some();
        let mut accept = Accepted::All;
        worker.context.apps.begin_iteration(&events, has_waited);
        for ready in events.iter() {
            match ready.token {
                MAILBOX => mailbox.take(&mut messages),
                DISK => disk.ready(now, &mut worker),
                APPS => worker.context.apps.reap(),
                token if token >= Token::FIRST_BACKEND => worker.backend_ready(ready, now, &mut disk),
                token if token >= LISTENERS => {
                    if let Some(listener) = listener_set.listeners.get((token - LISTENERS) as usize) {
                        match worker.accept(listener, now) {
                            Accepted::All | Accepted::Some => {}
                            no_room => accept = no_room,
                        }
                    }
                }
                _ => worker.ready(ready, now, &mut disk),
            }
        }
        worker.greet(&epoll, now, &mut disk);
        worker.take_turns(now, &mut disk);
        worker.take_handshakes(now, &mut disk);
        worker.take_deadlines(now, &mut disk);
        worker.take_apps_due(now, &mut disk);
        disk.take_due(now, &mut worker);
        let helper_is_free = messages.iter().any(|message| matches!(message, Message::Done(_)));
        for message in messages.drain(..) {
            match message {
                Message::Done(done) => disk.done(done, now, &mut worker),
                Message::Verified(verified) => worker.verified(verified, now, &mut disk),
                Message::Handshake(handshake) => worker.hello_answered(handshake, now, &mut disk),
                Message::Compressed(done) => worker.compressed(*done),
                Message::Started(started) => worker.app_started(*started, now, &mut disk),
                Message::BackendStep(step) => worker.backend_step(*step, now, &mut disk),
                Message::Spooled(done) => worker.app_spooled(*done, now, &mut disk),
                Message::Encoded(done) => worker.app_encoded(*done, now, &mut disk),
                Message::PageSettled(settled) => worker.page_settled(settled, now, &mut disk),
                Message::Renew(generation) => {
                    disk.renew(&generation);
                    worker.renew(generation);
                }
                Message::Listen(others) => listener_set.change(&epoll, others)?,
                Message::Stop(deadline) => {
                    stop_at = Some(deadline);
                    worker.finish(now, &mut disk);
                    // Closing them, here and in the main thread, refuses new connections at once.
                    listener_set.change(&epoll, Vec::new())?;
                }
                Message::Retire(deadline) => {
                    stop_at = Some(deadline);
                    listener_set.change(&epoll, Vec::new())?;
                    worker.retire(now, &mut disk);
                }
                Message::Drain(deadline) => {
                    stop_at = Some(deadline);
                    listener_set.change(&epoll, Vec::new())?;
                    worker.drain(now, &mut disk);
                }
                Message::Preload(order) => {
                    if let Some(order) = order.lock().unwrap_or_else(PoisonError::into_inner).take() {
                        worker.preload(order, now, &mut disk);
                    }
                }
                Message::Invalidate(what) => {
                    worker.invalidate(&what, now, &mut disk);
                }
                Message::Report(to) => {
                    // The recipient may have ended.
                    let _ = to.send(disk.complete(worker.snapshot()));
                }
            }
        }
        if helper_is_free {
            worker.helper_is_free(now, &mut disk);
        }
        if has_events || worker.open() != open {
            worker.context.meter.note_change(now);
        }
        // Some may have been answered and closed by now.
        if accept == Accepted::Exhausted || accept == Accepted::Full && worker.is_full() {
            listener_set.close(&epoll)?;
            listener_set.again = now + ACCEPT_PAUSE;
        }
    }
    worker.end();
    let now = worker.tick();
    worker.publish(now, true, &disk);
    Ok(disk.complete(worker.snapshot()))
}

/// The listeners, and whether the loop waits for them.
struct ListenerSet {
    listeners: Vec<Listener>,
    /// They are shared with the other loops of a pool.
    pooled: bool,
    is_open: bool,
    /// It has been open before.
    begun: bool,
    /// When to try again, if it is closed.
    again: Time,
    /// The number of consecutive looks, up to the last, that found a waiting connection.
    looks: u32,
    /// The limit on epoll watches was reached; reported once until it recovers.
    no_watches: bool,
}

impl ListenerSet {
    fn new(listeners: Vec<Listener>, pooled: bool) -> ListenerSet {
        ListenerSet { listeners, pooled, is_open: false, begun: false, again: Time::START, looks: 0, no_watches: false }
    }

    /// Returns when [`open`](ListenerSet::open) has something to do.
    fn next_due(&self) -> Time {
        if self.is_open || self.listeners.is_empty() { Time::NEVER } else { self.again }
    }

    /// Listens again, once there may be room for connections.
    fn open(&mut self, epoll: &Epoll, worker: &mut Worker, now: Time) -> io::Result<()> {
        let has_room = self.pooled && worker.open() == 0;
        if worker.context.blocks && has_room {
            // It waits in accept(2).
            return Ok(());
        }
        if self.is_open || self.listeners.is_empty() || (now < self.again && !has_room) {
            return Ok(());
        }
        if self.pooled && !has_room {
            let waits = self.listeners.iter().any(socket::has_waiting);
            self.looks = if waits { self.looks + 1 } else { 0 };
            self.again = now + if waits { LOOK_PAUSE } else { ACCEPT_PAUSE };
            if self.looks > LOOKS {
                self.looks = 0;
                self.listeners.iter().for_each(|listener| _ = worker.accept(listener, now));
            }
            return Ok(());
        }
        if worker.is_exhausted() {
            // Only accepting shows whether descriptors are available again: without a waiting
            // connection the listener would report nothing.
            for listener in &self.listeners {
                if matches!(worker.accept(listener, now), Accepted::Full | Accepted::Exhausted) {
                    self.again = now + ACCEPT_PAUSE;
                }
            }
            if now < self.again {
                return Ok(());
            }
        }
        match self.listen(epoll) {
            Ok(()) => (self.is_open, self.begun, self.no_watches) = (true, true, false),
            // At the start the operator can fix it.
            Err(error) if !self.begun => return Err(error),
            Err(error) => {
                if !std::mem::replace(&mut self.no_watches, true) {
                    say!(
                        "cannot wait for connections: {error}; open connections are served, new ones wait \
                         (raise fs.epoll.max_user_watches)"
                    );
                }
                self.again = now + ACCEPT_PAUSE;
            }
        }
        Ok(())
    }

    /// Adds all listeners to epoll, or none.
    fn listen(&self, epoll: &Epoll) -> io::Result<()> {
        let interest = if self.pooled { Interest::OneOfMany } else { Interest::Readable };
        for (n, listener) in self.listeners.iter().enumerate() {
            if let Err(error) = epoll.add(listener, LISTENERS + n as u64, interest) {
                self.listeners[..n].iter().try_for_each(|listener| epoll.remove(listener))?;
                return Err(error);
            }
        }
        Ok(())
    }

    /// Removes the listeners from epoll.
    fn close(&mut self, epoll: &Epoll) -> io::Result<()> {
        if std::mem::take(&mut self.is_open) {
            self.listeners.iter().try_for_each(|listener| epoll.remove(listener))?;
        }
        Ok(())
    }

    /// Replaces the listeners.
    fn change(&mut self, epoll: &Epoll, listeners: Vec<Listener>) -> io::Result<()> {
        self.close(epoll)?;
        self.listeners = listeners;
        Ok(())
    }
}
