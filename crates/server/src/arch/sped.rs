//! SPED: the single-process event-driven architecture (Flash, section 3.3).
//!
//! The loop does the disk's work itself, at once. As long as everything is in memory nothing is faster; when something is
//! not, all connections wait with the one that asked.

use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use amped_core::cache::{Change, each_spelling};
use amped_core::desk::Desk;
use amped_core::event::{Answer, Delay, Found, NameWork, Ticket, Trouble, Work};
use amped_core::file::Content;
use amped_sys::file::Patience;
use amped_units::Time;

use super::Start;
use crate::counters::Snapshot;
use crate::disk::{Disk, OpenFile};
use crate::event_loop;
use crate::mailbox::Forget;
use crate::shared_cache::SharedCache;
use crate::worker::{Asked, DiskSide, Generation, Token, Worker};

/// Runs a loop of this architecture; returns how things stood at its end.
///
/// # Errors
/// What the kernel refused that no loop can do without.
pub fn run(start: Start) -> io::Result<Snapshot> {
    let inline = Inline { sleeps: false, ..Inline::of_one(&start.generation) };
    event_loop::run(start, inline)
}

/// The disk side of a loop that does the disk's work itself.
pub(super) struct Inline {
    disk: Arc<Disk>,
    /// Whether it also sleeps until a file that is being written holds still. That is no work, and a loop with other
    /// connections has something better to do.
    sleeps: bool,
    /// What a pool of processes knows in common.
    shared: Option<Arc<SharedCache>>,
    /// The oldest first.
    put_off: Vec<PutOff>,
}

/// A question about a file that was being written.
struct PutOff {
    until: Time,
    work: Work,
    askers: Vec<(Token, Ticket)>,
}

/// By then a file that was written to once has come to rest.
const REST: Duration = Duration::from_millis(50);

impl Inline {
    /// That of a loop with one connection.
    pub(super) fn of_one(generation: &Generation) -> Inline {
        let (disk, shared) = (Arc::clone(&generation.disk), generation.shared.clone());
        Inline { disk, sleeps: true, shared, put_off: Vec::new() }
    }

    /// Does the work, however long it takes.
    fn perform(&self, work: &Work) -> Found<OpenFile> {
        self.disk.perform(work, Patience::Wait).unwrap_or(Found::Trouble(Trouble::Failed))
    }

    /// What the processes of a pool know in common.
    fn shared<'a>(&'a self, work: &'a Work) -> Option<(&'a SharedCache, &'a NameWork)> {
        match (&self.shared, work) {
            (Some(shared), Work::Name(name)) => Some((shared, name)),
            _ => None,
        }
    }

    /// An answer from there, if it is enough to answer the request with.
    fn others_answer(&self, now: Time, work: &Work, desk: &mut Desk<OpenFile>) -> Option<Answer<OpenFile>> {
        let (shared, name) = self.shared(work)?;
        // What was told there by who had not heard yet that the name is to be forgotten is older than that.
        let fresh_for = desk.caches.budgets.revalidate.min(now.since(desk.caches.forgotten_at(name)));
        let (found, checked) = shared.find(now, name, fresh_for)?;
        let lacks = matches!(&found, Found::File { files, .. }
            if files.iter().any(|file| file.content.is_none() && !name.known.contains(&file.version)));
        let answer = self.disk.learn(checked, work, found, desk);
        // What it lacks is asked for by the name's meaning, which is only so long of use as the loop keeps it.
        (!lacks || desk.caches.holds_name(name.site, &name.path)).then_some(answer)
    }

    /// The caches take note, the common one among them.
    fn learn(&self, now: Time, work: &Work, found: Found<OpenFile>, desk: &mut Desk<OpenFile>) -> Answer<OpenFile> {
        if let Some((shared, name)) = self.shared(work) {
            shared.learn(now, name, &found);
        }
        self.disk.learn(now, work, found, desk)
    }
}

impl DiskSide for Inline {
    const PROBES: bool = false;

    fn ask(&mut self, now: Time, asker: Token, ticket: Ticket, work: &Work, desk: &mut Desk<OpenFile>) -> Asked {
        if let Some(waiting) = self.put_off.iter_mut().find(|waiting| waiting.work == *work) {
            waiting.askers.push((asker, ticket));
            return Asked::Later(Delay::Change);
        }
        if let Some(answer) = self.others_answer(now, work, desk) {
            return Asked::Answered(answer);
        }
        // What can be had at once is cheaper so: a helper's way begins by reading the first window of a large file.
        match self.disk.perform(work, Patience::Now) {
            Err(Delay::Change) if !self.sleeps => {
                let askers = vec![(asker, ticket)];
                self.put_off.push(PutOff { until: now + REST, work: work.clone(), askers });
                Asked::Later(Delay::Change)
            }
            Ok(found) => Asked::Answered(self.learn(now, work, found, desk)),
            Err(_) => Asked::Answered(self.learn(now, work, self.perform(work), desk)),
        }
    }

    fn withdraw(&mut self, _: Token, _: Ticket, _: &Work) {}

    fn warm(&mut self, _: Token, _: Arc<Content<OpenFile>>, _: Range<u64>) -> bool {
        false
    }

    fn forget(&mut self, what: &Forget, desk: &Desk<OpenFile>) {
        let Some(shared) = &self.shared else { return };
        let changes = match what {
            Forget::Changes(changes) if changes.iter().all(|change| !change.beneath) => changes,
            Forget::Changes(_) | Forget::All => return shared.clear(),
        };
        for Change { site, path, .. } in changes {
            if let Some(site) = desk.sites.get(*site) {
                each_spelling(site, path, |path| shared.forget(desk.caches.generation(), site.number, path));
            }
        }
    }

    fn next_due(&self) -> Time {
        self.put_off.first().map_or(Time::NEVER, |waiting| waiting.until)
    }

    fn take_due(&mut self, now: Time, worker: &mut Worker) {
        while self.next_due() <= now {
            let PutOff { work, askers, .. } = self.put_off.remove(0);
            let answer = self.learn(now, &work, self.perform(&work), &mut worker.desk);
            for (token, ticket) in askers {
                worker.answer(token, ticket, answer.clone(), now, self);
            }
        }
    }

    fn renew(&mut self, generation: &Generation) {
        self.disk = Arc::clone(&generation.disk);
        self.shared.clone_from(&generation.shared);
    }
}
