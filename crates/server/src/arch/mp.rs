//! MP: the multi-process architecture (Flash, section 3.1).
//!
//! A pool of processes, each a loop with one connection and caches of its own: nothing is locked, because nothing is
//! shared but the listeners; and each knows only what it has served itself, unless they are given a cache in common
//! (`shared_cache`). A parent replaces those that die (`processes`).

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
use crate::message::Forget;
use crate::open_file::OpenFile;
use crate::shared_cache::{self, SharedCache};

/// Runs in one process of the pool; returns how things stood at its end.
///
/// # Errors
/// What the kernel refused that no loop can do without.
pub fn run(start: Start) -> io::Result<Snapshot> {
    let processes = Processes { shared: start.generation.shared.clone() };
    let inline = Inline::new(&start.generation, processes);
    event_loop::run(start, inline)
}

/// Processes that may have a cache in common.
struct Processes {
    shared: Option<Arc<SharedCache>>,
}

impl Processes {
    /// What the processes of a pool know in common.
    fn shared<'a>(&'a self, work: &'a Work) -> Option<(&'a SharedCache, &'a NameWork)> {
        match (&self.shared, work) {
            (Some(shared), Work::Name(name)) => Some((shared, name)),
            _ => None,
        }
    }

    /// An answer from there that is not too old, if it is enough to answer the request with.
    fn others_answer(
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
        // What it lacks is asked for by the name's meaning, which is only so long of use as the loop keeps it.
        (!lacks || state.caches.holds_name(name.site, &name.path)).then_some(answer)
    }

    /// How old an answer of others may be.
    fn fresh_for(now: Time, work: &Work, state: &mut SharedState<OpenFile>) -> Duration {
        let Work::Name(name) = work else { return Duration::ZERO };
        // What was told there by who had not heard yet that the name is to be forgotten is older than that.
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
        self.others_answer(disk, now, work, Self::fresh_for(now, work, state), state)
    }

    /// What the disk is to be asked: bytes that others have read are not read again only since the name is asked for anew.
    /// The kernel, which has not seen them used since, may have let go of them.
    fn question<'a>(&self, work: &'a Work) -> Cow<'a, Work> {
        match self.shared(work) {
            Some((shared, name)) if name.missing.is_none() => {
                let known = [&name.known[..], &shared.bodies_of(name)].concat();
                Cow::Owned(Work::Name(NameWork { known, ..name.clone() }))
            }
            _ => Cow::Borrowed(work),
        }
    }

    /// The caches take note of the answer, the common one among them.
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
                return match self.others_answer(disk, now, work, Duration::MAX, state) {
                    Some(answer) => answer,
                    // Evicted just now.
                    None => self.learn(disk, now, work, perform(disk, work), state),
                };
            }
        }
        disk.learn(now, work, found, state)
    }

    fn forget(&self, what: &Forget, state: &SharedState<OpenFile>) {
        let Some(shared) = &self.shared else { return };
        let changes = match what {
            Forget::Changes(changes) if changes.iter().all(|change| !change.beneath) => changes,
            Forget::Changes(_) | Forget::All => return shared.clear(),
        };
        for Change { site, path, .. } in changes {
            if let Some(site) = state.sites.get(*site) {
                each_spelling(site, path, |path| shared.forget(state.caches.generation(), site.number, path));
            }
        }
    }

    fn renew(&mut self, generation: &ConfigSnapshot) {
        self.shared.clone_from(&generation.shared);
    }
}
