//! MP: the multi-process architecture (Flash, section 3.1).
//!
//! A pool of processes, each a loop with one connection and its own caches. Nothing is locked, because nothing is
//! shared except the listeners; each process caches only what it has served itself, unless they share a cache
//! (`shared_cache`). A parent replaces processes that die (`processes`).

use std::borrow::Cow;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use amped_core::cache::{Change, each_spelling};
use amped_core::event::{Answer, Found, NameWork, Work};
use amped_core::shared_state::SharedState;
use amped_units::Time;

use super::inline::{Inline, Sharing, perform};
use crate::config_snapshot::ConfigSnapshot;
use crate::counters::Snapshot;
use crate::disk::Disk;
use crate::event_loop::{self, Start};
use crate::message::Invalidation;
use crate::open_file::OpenFile;
use crate::shared_cache::{self, SharedCache};

/// Runs one process of the pool; returns its final statistics.
///
/// # Errors
/// A system call failed without which a loop cannot run.
pub fn run(start: Start) -> io::Result<Snapshot> {
    let processes = Processes { shared: start.generation.shared.clone() };
    let inline = Inline::new(&start.generation, processes);
    event_loop::run(start, inline)
}

/// Processes that may share a cache.
struct Processes {
    shared: Option<Arc<SharedCache>>,
}

impl Processes {
    /// Returns the cache that the processes of a pool share, and the name to look up there.
    fn shared<'a>(&'a self, work: &'a Work) -> Option<(&'a SharedCache, &'a NameWork)> {
        match (&self.shared, work) {
            (Some(shared), Work::Name(name)) => Some((shared, name)),
            _ => None,
        }
    }

    /// Returns an answer from there that is fresh enough, if it suffices for the request.
    fn shared_answer(
        &self,
        disk: &Disk,
        now: Time,
        work: &Work,
        fresh_for: Duration,
        state: &mut SharedState<OpenFile>,
    ) -> Option<Answer<OpenFile>> {
        let (shared, name) = self.shared(work)?;
        let (found, checked) = shared.find(now, name, fresh_for)?;
        if name.unpack && found.is_packed() {
            return None;
        }
        let lacks = shared_cache::lacks_content(&found, &name.known);
        let answer = disk.learn(checked, work, found, state);
        // The missing part is looked up by the name's meaning, which is useful only while the loop keeps it.
        (!lacks || state.caches.holds_name(name.site, &name.path)).then_some(answer)
    }

    /// Returns how old a shared answer may be.
    fn fresh_for(now: Time, work: &Work, state: &mut SharedState<OpenFile>) -> Duration {
        let Work::Name(name) = work else { return Duration::ZERO };
        // An answer stored by a process that had not yet dropped the name is older than that.
        state.caches.budgets.revalidate.min(now.since(state.caches.forgotten_at(name)))
    }
}

impl Sharing for Processes {
    const SLEEPS: bool = true;

    fn answer(
        &self,
        disk: &Disk,
        now: Time,
        work: &Work,
        state: &mut SharedState<OpenFile>,
    ) -> Option<Answer<OpenFile>> {
        self.shared_answer(disk, now, work, Self::fresh_for(now, work, state), state)
    }

    /// Returns the lookup that the disk has to perform. Bytes that other workers have read are not read again just
    /// because the name is looked up again: the kernel may have evicted them, since they were not accessed meanwhile.
    fn question<'a>(&self, work: &'a Work) -> Cow<'a, Work> {
        match self.shared(work) {
            Some((shared, name)) if name.missing.is_none() => {
                let known = [&name.known[..], &shared.bodies_of(name)].concat();
                Cow::Owned(Work::Name(NameWork { known, ..name.clone() }))
            }
            _ => Cow::Borrowed(work),
        }
    }

    /// Updates the caches, including the shared one.
    fn learn(
        &self,
        disk: &Disk,
        now: Time,
        work: &Work,
        found: Found<OpenFile>,
        state: &mut SharedState<OpenFile>,
    ) -> Answer<OpenFile> {
        if let Some((shared, name)) = self.shared(work) {
            shared.learn(now, name, &found);
            if shared_cache::lacks_content(&found, &name.known) {
                return match self.shared_answer(disk, now, work, Duration::MAX, state) {
                    Some(answer) => answer,
                    // It has just been evicted.
                    None => self.learn(disk, now, work, perform(disk, work), state),
                };
            }
        }
        disk.learn(now, work, found, state)
    }

    fn invalidate(&self, what: &Invalidation, state: &SharedState<OpenFile>) {
        let Some(shared) = &self.shared else { return };
        let changes = match what {
            Invalidation::Changes(changes) if changes.iter().all(|change| !change.beneath) => changes,
            Invalidation::Changes(_) | Invalidation::All => return shared.clear(),
        };
        for Change { site, path, .. } in changes {
            if let Some(site) = state.sites.get(*site) {
                each_spelling(site, path, |path| shared.invalidate(state.caches.generation(), site.number, path));
            }
        }
    }

    fn renew(&mut self, generation: &ConfigSnapshot) {
        self.shared.clone_from(&generation.shared);
    }
}
