//! The disk side of a worker that waits for the disk itself: of SPED, MT and MP.
//!
//! A loop of SPED has many connections, and all of them wait with the one that asked. A worker of MT or MP has one connection,
//! so its client waits alone. What the workers of a pool share is for each architecture to say ([`Sharing`]).

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

use amped_core::event::{Answer, Delay, Found, Ticket, Trouble, Work};
use amped_core::file::Content;
use amped_core::shared_state::SharedState;
use amped_units::Time;

use crate::config_snapshot::ConfigSnapshot;
use crate::counters::{ProbeCounts, Snapshot};
use crate::disk::{CHANGES_MAX, Disk, Effort, STILL};
use crate::message::Forget;
use crate::open_file::OpenFile;
use crate::token::Token;
use crate::turn::{Asked, DiskAccess};
use crate::worker::{DiskSide, Worker};

/// What the workers of an architecture share besides the disk: by default nothing.
pub(super) trait Sharing {
    /// Whether a worker also sleeps until a file that is being written holds still. That is no work, and a loop with other
    /// connections has something better to do.
    const SLEEPS: bool;

    /// An answer that this worker need not ask the disk for, or not alone.
    fn answer(&self, _: &Disk, _now: Time, _: &Work, _: &mut SharedState<OpenFile>) -> Option<Answer<OpenFile>> {
        None
    }

    /// What the disk is to be asked.
    fn question<'a>(&self, work: &'a Work) -> Cow<'a, Work> {
        Cow::Borrowed(work)
    }

    /// The caches take note of what the disk has answered to a question about this work.
    fn learn(
        &self,
        disk: &Disk,
        now: Time,
        work: &Work,
        found: Found<OpenFile>,
        shared: &mut SharedState<OpenFile>,
    ) -> Answer<OpenFile> {
        disk.learn(now, work, found, shared)
    }

    /// Names are forgotten.
    fn forget(&self, _: &Forget, _: &SharedState<OpenFile>) {}

    /// Another configuration comes into force.
    fn renew(&mut self, _: &ConfigSnapshot) {}
}

/// Does the work, however long it takes.
pub(super) fn perform(disk: &Disk, work: &Work) -> Found<OpenFile> {
    disk.perform(work, Effort::Wait).unwrap_or(Found::Trouble(Trouble::Failed))
}

/// The disk side of a loop that does the disk's work itself.
pub(super) struct Inline<S> {
    disk: Arc<Disk>,
    sharing: S,
    /// The oldest first.
    put_off: Vec<DeferredLookup>,
    probes: ProbeCounts,
}

/// A question about a file that was being written.
struct DeferredLookup {
    since: Time,
    until: Time,
    work: Work,
    askers: Vec<(Token, Ticket)>,
}

impl<S: Sharing> Inline<S> {
    /// With what these workers share.
    pub(super) fn new(generation: &ConfigSnapshot, sharing: S) -> Inline<S> {
        Inline { disk: Arc::clone(&generation.disk), sharing, put_off: Vec::new(), probes: ProbeCounts::default() }
    }

    /// Does the work, however long the disk takes, and a writer where this may sleep.
    ///
    /// # Errors
    /// A file is being written, and this may not sleep.
    fn try_perform(&self, work: &Work) -> Result<Found<OpenFile>, Delay> {
        self.disk.perform(work, if S::SLEEPS { Effort::Wait } else { Effort::Defer })
    }

    fn learn(
        &self,
        now: Time,
        work: &Work,
        found: Found<OpenFile>,
        shared: &mut SharedState<OpenFile>,
    ) -> Answer<OpenFile> {
        self.sharing.learn(&self.disk, now, work, found, shared)
    }
}

impl<S: Sharing> DiskAccess for Inline<S> {
    const PROBES: bool = false;

    fn ask(
        &mut self,
        now: Time,
        asker: Token,
        ticket: Ticket,
        work: &Work,
        shared: &mut SharedState<OpenFile>,
    ) -> Asked {
        if let Some(waiting) = self.put_off.iter_mut().find(|waiting| waiting.work == *work) {
            waiting.askers.push((asker, ticket));
            return Asked::Later(Delay::Change);
        }
        if let Some(answer) = self.sharing.answer(&self.disk, now, work, shared) {
            return Asked::Answered(answer);
        }
        let question = self.sharing.question(work);
        // What can be had at once is cheaper so: a helper's way begins by reading the first window of a large file.
        let found = self.disk.perform(&question, Effort::Now).or_else(|why| {
            self.probes.add(work, why);
            self.try_perform(&question)
        });
        match found {
            Ok(found) => Asked::Answered(self.learn(now, work, found, shared)),
            Err(why) => {
                let askers = vec![(asker, ticket)];
                self.put_off.push(DeferredLookup { since: now, until: now + STILL, work: work.clone(), askers });
                Asked::Later(why)
            }
        }
    }

    fn withdraw(&mut self, _: Token, _: Ticket, _: &Work) {}

    fn warm(&mut self, _: Token, _: Arc<Content<OpenFile>>, _: Range<u64>) -> bool {
        false
    }
}

impl<S: Sharing> DiskSide for Inline<S> {
    fn forget(&mut self, what: &Forget, shared: &SharedState<OpenFile>) {
        self.sharing.forget(what, shared);
    }

    fn next_due(&self) -> Time {
        self.put_off.first().map_or(Time::NEVER, |waiting| waiting.until)
    }

    fn take_due(&mut self, now: Time, worker: &mut Worker) {
        while self.next_due() <= now {
            let DeferredLookup { since, work, askers, .. } = self.put_off.remove(0);
            let is_over = now.since(since) >= CHANGES_MAX;
            let found = match self.disk.perform(&work, if is_over { Effort::Accept } else { Effort::Defer }) {
                Ok(found) => found,
                Err(_) => {
                    self.put_off.push(DeferredLookup { since, until: now + STILL, work, askers });
                    continue;
                }
            };
            let answer = self.learn(now, &work, found, &mut worker.context.shared);
            for (token, ticket) in askers {
                worker.answer(token, ticket, answer.clone(), now, self);
            }
        }
    }

    fn complete(&self, snapshot: Snapshot) -> Snapshot {
        Snapshot { probes: self.probes, ..snapshot }
    }

    fn renew(&mut self, generation: &ConfigSnapshot) {
        self.disk = Arc::clone(&generation.disk);
        self.sharing.renew(generation);
    }
}
