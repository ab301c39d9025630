//! The disk side of a worker that waits for the disk itself: of SPED, MT and MP.
//!
//! A loop of SPED has many connections, and all of them wait with the one that asked. A worker of MT or MP has one connection,
//! so its client waits alone; it may also sleep until a file that is being written holds still.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use amped_core::cache::{Change, each_spelling};
use amped_core::desk::Desk;
use amped_core::event::{Answer, Delay, Found, NameWork, Ticket, Trouble, Work};
use amped_core::file::Content;
use amped_units::Time;

use crate::config_snapshot::Generation;
use crate::counters::{ProbeCounts, Snapshot};
use crate::disk::{CHANGES_MAX, Disk, Effort, STILL};
use crate::message::Forget;
use crate::open_file::OpenFile;
use crate::shared_cache::{self, SharedCache};
use crate::token::Token;
use crate::worker::{Asked, DiskSide, Worker};

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
    probes: ProbeCounts,
}

/// A question about a file that was being written.
struct PutOff {
    since: Time,
    until: Time,
    work: Work,
    askers: Vec<(Token, Ticket)>,
}

impl Inline {
    /// That of a loop with one connection.
    pub(super) fn of_one(generation: &Generation) -> Inline {
        let (disk, shared) = (Arc::clone(&generation.disk), generation.shared.clone());
        Inline { disk, sleeps: true, shared, put_off: Vec::new(), probes: ProbeCounts::default() }
    }

    /// That of a loop with many.
    pub(super) fn of_many(generation: &Generation) -> Inline {
        Inline { sleeps: false, ..Inline::of_one(generation) }
    }

    /// Does the work, however long the disk takes, and a writer where this may sleep.
    ///
    /// # Errors
    /// A file is being written, and this may not sleep.
    fn try_perform(&self, work: &Work) -> Result<Found<OpenFile>, Delay> {
        self.disk.perform(work, if self.sleeps { Effort::Wait } else { Effort::Defer })
    }

    /// Does the work, however long it takes.
    fn perform(&self, work: &Work) -> Found<OpenFile> {
        self.disk.perform(work, Effort::Wait).unwrap_or(Found::Trouble(Trouble::Failed))
    }

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
        now: Time,
        work: &Work,
        fresh_for: Duration,
        desk: &mut Desk<OpenFile>,
    ) -> Option<Answer<OpenFile>> {
        let (shared, name) = self.shared(work)?;
        let (found, checked) = shared.find(now, name, fresh_for)?;
        if name.unpack && found.is_packed() {
            return None;
        }
        let lacks = shared_cache::lacks_content(&found, &name.known);
        let answer = self.disk.learn(checked, work, found, desk);
        // What it lacks is asked for by the name's meaning, which is only so long of use as the loop keeps it.
        (!lacks || desk.caches.holds_name(name.site, &name.path)).then_some(answer)
    }

    /// How old an answer of others may be.
    fn fresh_for(now: Time, work: &Work, desk: &mut Desk<OpenFile>) -> Duration {
        let Work::Name(name) = work else { return Duration::ZERO };
        // What was told there by who had not heard yet that the name is to be forgotten is older than that.
        desk.caches.budgets.revalidate.min(now.since(desk.caches.forgotten_at(name)))
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

    /// The caches take note of the answer to a question about this work, the common one among them.
    fn learn(&self, now: Time, work: &Work, found: Found<OpenFile>, desk: &mut Desk<OpenFile>) -> Answer<OpenFile> {
        if let Some((shared, name)) = self.shared(work) {
            shared.learn(now, name, &found);
            if shared_cache::lacks_content(&found, &name.known) {
                return match self.others_answer(now, work, Duration::MAX, desk) {
                    Some(answer) => answer,
                    // Evicted just now.
                    None => self.learn(now, work, self.perform(work), desk),
                };
            }
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
        if let Some(answer) = self.others_answer(now, work, Self::fresh_for(now, work, desk), desk) {
            return Asked::Answered(answer);
        }
        if let Work::List(list) = work
            && self.sleeps
        {
            // Other threads of the pool may be at the same.
            let (found, was_anothers) = self.disk.listings.once(list, || self.perform(work));
            desk.counts.page_collapsed += u64::from(was_anothers);
            return Asked::Answered(self.learn(now, work, found, desk));
        }
        let question = self.question(work);
        // What can be had at once is cheaper so: a helper's way begins by reading the first window of a large file.
        let found = self.disk.perform(&question, Effort::Now).or_else(|why| {
            self.probes.add(work, why);
            self.try_perform(&question)
        });
        match found {
            Ok(found) => Asked::Answered(self.learn(now, work, found, desk)),
            Err(why) => {
                let askers = vec![(asker, ticket)];
                self.put_off.push(PutOff { since: now, until: now + STILL, work: work.clone(), askers });
                Asked::Later(why)
            }
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
            let PutOff { since, work, askers, .. } = self.put_off.remove(0);
            let is_over = now.since(since) >= CHANGES_MAX;
            let found = match self.disk.perform(&work, if is_over { Effort::Accept } else { Effort::Defer }) {
                Ok(found) => found,
                Err(_) => {
                    self.put_off.push(PutOff { since, until: now + STILL, work, askers });
                    continue;
                }
            };
            let answer = self.learn(now, &work, found, &mut worker.desk);
            for (token, ticket) in askers {
                worker.answer(token, ticket, answer.clone(), now, self);
            }
        }
    }

    fn complete(&self, snapshot: Snapshot) -> Snapshot {
        Snapshot { probes: self.probes, ..snapshot }
    }

    fn renew(&mut self, generation: &Generation) {
        self.disk = Arc::clone(&generation.disk);
        self.shared.clone_from(&generation.shared);
    }
}
