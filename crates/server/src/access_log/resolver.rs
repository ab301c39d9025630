//! Resolvers: threads that look clients' names up in place of the log's writer.
//!
//! The C library does it (nsswitch.conf(5), resolv.conf(5)), and may take a minute over a name server that is silent. So
//! nobody waits for a resolver, neither the writer nor the end of the server. They are started when lookups are waiting and
//! none is idle, up to a few, and end when there is nothing to do.
//!
//! A name counts if it leads back to the address (Apache calls this `HostnameLookups Double`). Whoever has an address writes
//! its name, and might write another's; with the way back a name in the log says as much as the address does. It costs a
//! second question to the DNS, once for each entry of the cache.

use std::net::IpAddr;
use std::panic::catch_unwind;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use amped_core::cache::hostname::{Hostname, HostnameCache, clean};
use amped_sys::resolve;
use amped_units::Time;

use crate::config::settings::LogSettings;
use crate::say;

/// Most of them. They wait, so they cost no core; each has a socket while it does (`server/descriptors` has room for it).
/// Four that are answered within 20 ms bring 100 names a second, both questions counted.
const RESOLVERS_MAX: usize = 4;

/// One without work ends after this.
const IDLE_TIME: Duration = Duration::from_secs(10);

/// The names that are known, and those who look up more.
pub(super) struct Resolvers {
    state: Mutex<State>,
    wake: Condvar,
}

pub(super) struct State {
    /// Names are wanted.
    pub(super) wanted: bool,
    pub(super) names: HostnameCache,
    /// `idle <= threads <= RESOLVERS_MAX`
    threads: usize,
    idle: usize,
    stopping: bool,
    /// No resolver can be started at all: said once.
    cannot_start: bool,
}

/// The log's writer, which holds the resolvers and waits for their answers.
pub(super) trait Waiter: Send + Sync + 'static {
    /// Its resolvers.
    fn resolvers(&self) -> &Resolvers;

    /// The time.
    fn now(&self) -> Time;

    /// Lets it look after lines that wait for an answer.
    fn wake_up(&self);
}

impl Resolvers {
    /// None is started yet.
    pub(super) fn new(settings: &LogSettings) -> Resolvers {
        let names = HostnameCache::new(settings.hostname.clone());
        let (wanted, stopping, cannot_start) = (settings.hostnames, false, false);
        let state = State { wanted, names, threads: 0, idle: 0, stopping, cannot_start };
        Resolvers { state: Mutex::new(state), wake: Condvar::new() }
    }

    /// Never held while a name is looked up.
    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Other settings come into force.
    pub(super) fn renew(&self, settings: &LogSettings) {
        let mut state = self.lock();
        state.wanted = settings.hostnames;
        state.names.renew(settings.hostname.clone());
    }

    /// Lets them end. They are not waited for: one may hang for as long as a name server is silent.
    pub(super) fn stop(&self) {
        self.lock().stopping = true;
        self.wake.notify_all();
    }

    /// Sees to it that somebody takes the lookups that wait. `writer` is told of each answer.
    pub(super) fn see_to(&self, state: &mut State, writer: &Arc<impl Waiter>) {
        if state.names.waiting() == 0 {
            return;
        }
        while state.names.waiting() > state.idle && state.threads < RESOLVERS_MAX {
            let resolver = thread::Builder::new().name("resolver".to_owned());
            let theirs = Arc::clone(writer);
            match resolver.spawn(move || theirs.resolvers().resolve(&*theirs)) {
                Ok(_) => {
                    state.threads += 1;
                    state.idle += 1;
                }
                Err(error) => {
                    if state.threads == 0 {
                        // Nobody would ever take them.
                        while let Some((id, _)) = state.names.next_lookup(writer.now()) {
                            state.names.learn(writer.now(), id, None);
                        }
                        if !std::mem::replace(&mut state.cannot_start, true) {
                            say!("cannot look up the names of clients: {error}; the log has addresses");
                        }
                    }
                    break;
                }
            }
        }
        self.wake.notify_all();
    }

    /// A resolver's life.
    fn resolve(&self, writer: &impl Waiter) {
        let mut state = self.lock();
        // Until now it was counted as one that will take the next lookup.
        state.idle -= 1;
        while !state.stopping {
            if let Some((id, address)) = state.names.next_lookup(writer.now()) {
                drop(state);
                // Lines wait for it, also if this is a bug: a panic is told on standard error.
                let name = catch_unwind(|| look_up(address)).unwrap_or_default();
                state = self.lock();
                state.names.learn(writer.now(), id, name);
                writer.wake_up();
                continue;
            }
            state.idle += 1;
            let (guard, waited) = self.wake.wait_timeout(state, IDLE_TIME).unwrap_or_else(PoisonError::into_inner);
            state = guard;
            state.idle -= 1;
            if waited.timed_out() && state.names.waiting() == 0 {
                break;
            }
        }
        state.threads -= 1;
    }
}

/// The name of an address, if it leads back to it. That nobody answers is as good as no name: which of the two, is not
/// the log's to tell.
fn look_up(address: IpAddr) -> Hostname {
    let name = clean(&resolve::name_of(address).ok()??)?;
    let leads_back = resolve::has_address(&name, address).unwrap_or(false);
    leads_back.then(|| name.into())
}
