//! A loop's connections to applications: the request that each carries, and the idle ones to backends that speak HTTP.
//!
//! Such a connection stays in the loop's epoll set while it is idle. So the next request over it needs no call but those
//! that send it and receive the response: epoll would have reported that the backend has closed it. Events on idle
//! connections are handled before the other events of an iteration ([`Pool::begin_iteration`]), and one that has become idle
//! in this iteration is checked by a read before it is used. So is one for a request that must not be sent twice
//! (RFC 9110, 9.2.2).
//!
//! What arrives on an idle connection in the middle of an iteration, unasked, is taken for a response, as in any proxy that does not read
//! before it writes; the next iteration would have dropped the connection.
//!
//! Loops do not share idle connections, but their number: together the loops of a process keep at most `min_spare` to a backend, and
//! beyond that one each, so that a loop whose client stays need not connect for each request.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use std::time::Duration;

use amped_core::event::Ticket;
use amped_sys::epoll::{Epoll, Events, Interest, Ready};
use amped_units::Time;

use super::backend::{Backend, IdlePlace};
use super::connection::BackendConnection;
use crate::token::Token;

/// The connections of a loop.
#[derive(Debug)]
pub(super) struct Pool {
    epoll: Arc<Epoll>,
    /// The owners of connections in use, by descriptor. One may remain after its connection: its descriptor has no
    /// events then, until another connection has it.
    owners: HashMap<u32, Owner>,
    /// Idle connections by the address of their backend, those idle longest first.
    idle: HashMap<usize, Vec<Idle>>,
    /// Iterations of the loop that began with all events.
    iteration: u64,
    /// The current iteration has begun with all events.
    has_all_events: bool,
}

#[derive(Debug)]
struct Owner {
    token: Token,
    ticket: Ticket,
    /// The application has closed its side.
    has_ended: bool,
}

#[derive(Debug)]
struct Idle {
    connection: BackendConnection,
    /// It is one of the backend's idle connections until it is dropped.
    _place: IdlePlace,
    since: Time,
    iteration: u64,
}

/// An idle connection is closed after this: before the server closes it, which might happen at the moment of use.
/// Node.js, Apache and Uvicorn do so after 5 s by default.
const IDLE_TIME: Duration = Duration::from_secs(4);

impl Pool {
    /// Creates the pool of the loop with this epoll set.
    pub(super) fn new(epoll: Arc<Epoll>) -> Pool {
        Pool { epoll, owners: HashMap::new(), idle: HashMap::new(), iteration: 0, has_all_events: false }
    }

    /// Waits for events of a connection, for a request of this client.
    ///
    /// # Errors
    /// Those of [`Epoll::add`].
    pub(super) fn watch(
        &mut self,
        connection: &mut BackendConnection,
        (token, ticket): (Token, Ticket),
        interest: Interest,
    ) -> io::Result<()> {
        let descriptor = number_of(&*connection);
        let number = Token::backend_number(descriptor);
        match connection.watched.replace(interest) {
            None => self.epoll.add(&*connection, number, interest)?,
            Some(before) if before == interest => {}
            Some(_) => self.epoll.change(&*connection, number, interest)?,
        }
        self.owners.insert(descriptor, Owner { token, ticket, has_ended: false });
        Ok(())
    }

    /// Stops waiting for events of a connection, which may move to another loop.
    pub(super) fn unwatch(&mut self, connection: &mut BackendConnection) {
        if connection.watched.take().is_some() {
            self.owners.remove(&number_of(&*connection));
            let _ = self.epoll.remove(&*connection);
        }
    }

    /// Returns whose request an event on a connection belongs to. An idle one is dropped if it has ended.
    pub(super) fn note_event(&mut self, ready: Ready) -> Option<(Token, Ticket)> {
        let descriptor = Token::backend_of(ready.token)?;
        let Some(owner) = self.owners.get_mut(&descriptor) else {
            self.check_idle(descriptor);
            return None;
        };
        owner.has_ended |= ready.ended;
        Some((owner.token, owner.ticket))
    }

    /// Drops an idle connection that has ended.
    fn check_idle(&mut self, descriptor: u32) {
        let is_open = |idle: &mut Idle| number_of(&idle.connection) != descriptor || idle.connection.is_silent();
        self.idle.values_mut().for_each(|all| all.retain_mut(is_open));
    }

    /// Begins an iteration of the loop: drops idle connections that have ended. `has_waited`: the loop has asked epoll for events.
    pub(super) fn begin_iteration(&mut self, events: &Events, has_waited: bool) {
        // Others may follow those that had no room.
        self.has_all_events = has_waited && !events.is_full();
        self.iteration += u64::from(self.has_all_events);
        if self.idle.is_empty() {
            return;
        }
        for descriptor in events.iter().filter_map(|ready| Token::backend_of(ready.token)) {
            if !self.owners.contains_key(&descriptor) {
                self.check_idle(descriptor);
            }
        }
    }

    /// Returns an idle connection to a backend that is still open. `is_repeatable`: the request may be sent again.
    pub(super) fn take(&mut self, backend: &Arc<Backend>, is_repeatable: bool) -> Option<BackendConnection> {
        let all = self.idle.get_mut(&address_of(backend))?;
        loop {
            let Idle { mut connection, iteration, .. } = all.pop()?;
            let is_known = is_repeatable && self.has_all_events && iteration < self.iteration;
            if is_known || connection.is_silent() {
                return Some(connection);
            }
        }
    }

    /// Keeps the connection of a request that has ended, if the limit allows.
    pub(super) fn keep(&mut self, backend: &Arc<Backend>, mut connection: BackendConnection, now: Time) {
        let owner = self.owners.remove(&number_of(&connection));
        if owner.is_some_and(|owner| owner.has_ended) || !(connection.is_drained() || connection.is_silent()) {
            return;
        }
        let all = self.idle.entry(address_of(backend)).or_default();
        if let Some(place) = backend.idle_place(all.is_empty()) {
            all.push(Idle { connection, _place: place, since: now, iteration: self.iteration });
        }
    }

    /// Returns whether there are idle connections.
    pub(super) fn is_empty(&self) -> bool {
        self.idle.is_empty()
    }

    /// Closes connections that have been idle for too long.
    pub(super) fn sweep(&mut self, now: Time) {
        self.idle.retain(|_, all| {
            let expired = all.iter().take_while(|idle| now >= idle.since + IDLE_TIME).count();
            all.drain(..expired);
            !all.is_empty()
        });
    }
}

/// Identifies a backend as long as it exists.
fn address_of(backend: &Arc<Backend>) -> usize {
    Arc::as_ptr(backend).addr()
}

/// Returns the number of a descriptor.
fn number_of(connection: &BackendConnection) -> u32 {
    connection.as_fd().as_raw_fd().cast_unsigned()
}
