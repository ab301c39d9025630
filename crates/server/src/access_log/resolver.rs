//! Resolver threads: look up client host names for the log writer.
//!
//! The C library resolves names (nsswitch.conf(5), resolv.conf(5)) and may block for a minute on a silent name server.
//! So nothing waits for a resolver, neither the writer nor the server's shutdown. Resolvers start when lookups wait and
//! none is idle, up to a maximum, and exit when idle.
//!
//! A name counts only if it resolves back to the address (Apache's `HostnameLookups Double`). The owner of an address
//! also controls its reverse DNS entry, and could claim any name; with the forward check, a name in the log is as
//! reliable as the address. This costs a second DNS query for each cache entry.

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

/// Maximum resolver threads. They wait, so they use no CPU; each holds a socket while it waits (`server/descriptors`
/// reserves it). With answers within 20 ms, four resolve 100 names a second, both queries included.
const RESOLVERS_MAX: usize = 4;

/// An idle resolver exits after this.
const IDLE_TIME: Duration = Duration::from_secs(10);

/// The host name cache and the resolver threads.
pub(super) struct Resolvers {
    state: Mutex<State>,
    wake: Condvar,
}

pub(super) struct State {
    /// Whether host names are enabled.
    pub(super) wanted: bool,
    pub(super) names: HostnameCache,
    /// `idle <= threads <= RESOLVERS_MAX`
    threads: usize,
    idle: usize,
    stopping: bool,
    /// No resolver could be started; reported once.
    cannot_start: bool,
}

/// The log writer, which owns the resolvers and waits for their answers.
pub(super) trait Waiter: Send + Sync + 'static {
    /// Returns its resolvers.
    fn resolvers(&self) -> &Resolvers;

    /// Returns the current time.
    fn now(&self) -> Time;

    /// Wakes it to process lines that wait for an answer.
    fn wake_up(&self);
}

impl Resolvers {
    /// Creates the state; no thread is started yet.
    pub(super) fn new(settings: &LogSettings) -> Resolvers {
        let names = HostnameCache::new(settings.hostname_limits());
        let (wanted, stopping, cannot_start) = (settings.hostnames, false, false);
        let state = State { wanted, names, threads: 0, idle: 0, stopping, cannot_start };
        Resolvers { state: Mutex::new(state), wake: Condvar::new() }
    }

    /// Locks the state. The lock is never held during a lookup.
    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Applies new settings.
    pub(super) fn renew(&self, settings: &LogSettings) {
        let mut state = self.lock();
        state.wanted = settings.hostnames;
        state.names.renew(settings.hostname_limits());
    }

    /// Makes the resolvers exit. They are not joined: one may block for as long as a name server is silent.
    pub(super) fn stop(&self) {
        self.lock().stopping = true;
        self.wake.notify_all();
    }

    /// Ensures that a resolver takes the waiting lookups. `writer` is notified of each answer.
    pub(super) fn manage(&self, state: &mut State, writer: &Arc<impl Waiter>) {
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
                        // No resolver would ever take the waiting lookups: fail them.
                        while let Some((id, _)) = state.names.next_lookup(writer.now()) {
                            state.names.learn(writer.now(), id, None);
                        }
                        if !std::mem::replace(&mut state.cannot_start, true) {
                            say!("cannot look up client host names: {error}; logging addresses instead");
                        }
                    }
                    break;
                }
            }
        }
        self.wake.notify_all();
    }

    /// The main function of a resolver thread.
    fn resolve(&self, writer: &impl Waiter) {
        let mut state = self.lock();
        // Until now it was counted as idle.
        state.idle -= 1;
        while !state.stopping {
            if let Some((id, address)) = state.names.next_lookup(writer.now()) {
                drop(state);
                // Lines wait for the answer, even after a panic, which is reported on standard error.
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

/// Returns the name of an address if the name resolves back to it. The log does not distinguish a name
/// server that is silent from a missing name.
fn look_up(address: IpAddr) -> Hostname {
    let name = clean(&resolve::name_of(address).ok()??)?;
    let leads_back = resolve::has_address(&name, address).unwrap_or(false);
    leads_back.then(|| name.into())
}
