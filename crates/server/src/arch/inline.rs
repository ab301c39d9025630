//! The disk side of a worker that waits for the disk itself: SPED, MT and MP.
//!
//! A SPED loop has many connections, and all of them wait for the lookup of one. A worker of MT or MP has one
//! connection, so only its client waits. Each architecture defines what the workers of a pool share ([`Sharing`]).

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

use amped_core::event::{Answer, Delay, Found, Lane, Ticket, Trouble, Work};
use amped_core::file::Content;
use amped_core::shared_state::SharedState;
use amped_units::Time;

use crate::config_snapshot::ConfigSnapshot;
use crate::counters::{ProbeCounts, Snapshot};
use crate::disk::{CHANGES_MAX, Disk, Effort, STILL};
use crate::message::Invalidation;
use crate::open_file::OpenFile;
use crate::token::Token;
use crate::turn::{DiskAccess, DiskAnswer};
use crate::worker::{DiskSide, Worker};

/// State that the workers of an architecture share besides the disk: by default nothing.
pub(super) trait Sharing {
    /// Whether a worker also sleeps until a file that is being written is stable. Sleeping is not work, and a
    /// loop with other connections can serve those.
    const SLEEPS: bool;

    /// Returns an answer that needs no disk access by this worker, or not by it alone.
    fn answer(&self, _: &Disk, _now: Time, _: &Work, _: &mut SharedState<OpenFile>) -> Option<Answer<OpenFile>> {
        None
    }

    /// Returns the lookup that the disk has to perform.
    fn question<'a>(&self, work: &'a Work) -> Cow<'a, Work> {
        Cow::Borrowed(work)
    }

    /// Updates the caches with the result of this work.
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

    /// Drops names.
    fn invalidate(&self, _: &Invalidation, _: &SharedState<OpenFile>) {}

    /// Applies another configuration.
    fn renew(&mut self, _: &ConfigSnapshot) {}
}

/// Performs the work, however long it takes.
pub(super) fn perform(disk: &Disk, work: &Work) -> Found<OpenFile> {
    disk.perform(work, Effort::Wait).unwrap_or(Found::Trouble(Trouble::Failed))
}

/// The disk side of a loop that does disk work itself.
pub(super) struct Inline<S> {
    disk: Arc<Disk>,
    sharing: S,
    /// Oldest first.
    deferred: Vec<DeferredLookup>,
    probes: ProbeCounts,
}

/// A lookup of a file that was being written.
struct DeferredLookup {
    since: Time,
    until: Time,
    work: Work,
    requesters: Vec<(Token, Ticket)>,
}

impl<S: Sharing> Inline<S> {
    /// Creates the disk side, with what its workers share.
    pub(super) fn new(generation: &ConfigSnapshot, sharing: S) -> Inline<S> {
        Inline { disk: Arc::clone(&generation.disk), sharing, deferred: Vec::new(), probes: ProbeCounts::default() }
    }

    /// Performs the work, however long the disk takes, and waits for a writer if sleeping is allowed.
    ///
    /// # Errors
    /// A file is being written, and sleeping is not allowed.
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
        requester: Token,
        ticket: Ticket,
        work: &Work,
        shared: &mut SharedState<OpenFile>,
    ) -> DiskAnswer {
        if let Some(waiting) = self.deferred.iter_mut().find(|waiting| waiting.work == *work) {
            waiting.requesters.push((requester, ticket));
            return DiskAnswer::Later(Delay::Change);
        }
        if let Some(answer) = self.sharing.answer(&self.disk, now, work, shared) {
            return DiskAnswer::Answered(answer);
        }
        let question = self.sharing.question(work);
        // An answer that is available at once is cheaper this way: the waiting path starts by
        // reading the first window of a large file.
        let found = self.disk.perform(&question, Effort::Now).or_else(|why| {
            self.probes.add(work, why);
            self.try_perform(&question)
        });
        match found {
            Ok(found) => DiskAnswer::Answered(self.learn(now, work, found, shared)),
            Err(why) => {
                let requesters = vec![(requester, ticket)];
                self.deferred.push(DeferredLookup { since: now, until: now + STILL, work: work.clone(), requesters });
                DiskAnswer::Later(why)
            }
        }
    }

    fn withdraw(&mut self, _: Token, _: Ticket, _: &Work) {}

    fn warm(&mut self, _: (Token, Lane), _: Arc<Content<OpenFile>>, _: Range<u64>) -> bool {
        false
    }
}

impl<S: Sharing> DiskSide for Inline<S> {
    fn invalidate(&mut self, what: &Invalidation, shared: &SharedState<OpenFile>) {
        self.sharing.invalidate(what, shared);
    }

    fn next_due(&self) -> Time {
        self.deferred.first().map_or(Time::NEVER, |waiting| waiting.until)
    }

    fn take_due(&mut self, now: Time, worker: &mut Worker) {
        while self.next_due() <= now {
            let DeferredLookup { since, work, requesters, .. } = self.deferred.remove(0);
            let is_over = now.since(since) >= CHANGES_MAX;
            let found = match self.disk.perform(&work, if is_over { Effort::Accept } else { Effort::Defer }) {
                Ok(found) => found,
                Err(_) => {
                    self.deferred.push(DeferredLookup { since, until: now + STILL, work, requesters });
                    continue;
                }
            };
            let answer = self.learn(now, &work, found, &mut worker.context.shared);
            for (token, ticket) in requesters {
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
