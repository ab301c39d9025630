//! SPED: the single-process event-driven architecture (Flash, section 3.3).
//!
//! The loop does the disk's work itself, at once. As long as everything is in memory nothing is faster; when something is
//! not, all connections wait with the one that asked.

use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use amped_core::desk::Desk;
use amped_core::event::{Answer, Delay, Found, Ticket, Trouble, Work};
use amped_core::file::Content;
use amped_sys::file::Patience;
use amped_units::Time;

use super::Start;
use crate::counters::Snapshot;
use crate::disk::{Disk, OpenFile};
use crate::event_loop;
use crate::worker::{Asked, DiskSide, Generation, Token, Worker};

/// Runs a loop of this architecture; returns how things stood at its end.
///
/// # Errors
/// What the kernel refused that no loop can do without.
pub fn run(start: Start) -> io::Result<Snapshot> {
    let disk = Arc::clone(&start.generation.disk);
    event_loop::run(start, Inline { disk, sleeps: false, put_off: Vec::new() })
}

/// The disk side of a loop that does the disk's work itself.
pub(super) struct Inline {
    disk: Arc<Disk>,
    /// Whether it also sleeps until a file that is being written holds still. That is no work, and a loop with other
    /// connections has something better to do.
    sleeps: bool,
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
    pub(super) fn of_one(disk: Arc<Disk>) -> Inline {
        Inline { disk, sleeps: true, put_off: Vec::new() }
    }

    /// Does the work, however long it takes.
    fn perform(&self, now: Time, work: &Work, desk: &mut Desk<OpenFile>) -> Answer<OpenFile> {
        let found = self.disk.perform(work, Patience::Wait).unwrap_or(Found::Trouble(Trouble::Failed));
        learn(now, work, found, desk)
    }
}

fn learn(now: Time, work: &Work, found: Found<OpenFile>, desk: &mut Desk<OpenFile>) -> Answer<OpenFile> {
    let sites = Arc::clone(&desk.sites);
    desk.caches.learn(now, work, found, &sites)
}

impl DiskSide for Inline {
    const PROBES: bool = false;

    fn ask(&mut self, now: Time, asker: Token, ticket: Ticket, work: &Work, desk: &mut Desk<OpenFile>) -> Asked {
        if let Some(waiting) = self.put_off.iter_mut().find(|waiting| waiting.work == *work) {
            waiting.askers.push((asker, ticket));
            return Asked::Later(Delay::Change);
        }
        // What can be had at once is cheaper so: a helper's way begins by reading the first window of a large file.
        match self.disk.perform(work, Patience::Now) {
            Err(Delay::Change) if !self.sleeps => {
                let askers = vec![(asker, ticket)];
                self.put_off.push(PutOff { until: now + REST, work: work.clone(), askers });
                Asked::Later(Delay::Change)
            }
            Ok(found) => Asked::Answered(learn(now, work, found, desk)),
            Err(_) => Asked::Answered(self.perform(now, work, desk)),
        }
    }

    fn withdraw(&mut self, _: Token, _: Ticket, _: &Work) {}

    fn warm(&mut self, _: Token, _: Arc<Content<OpenFile>>, _: Range<u64>) -> bool {
        false
    }

    fn next_due(&self) -> Time {
        self.put_off.first().map_or(Time::NEVER, |waiting| waiting.until)
    }

    fn take_due(&mut self, now: Time, worker: &mut Worker) {
        while self.next_due() <= now {
            let PutOff { work, askers, .. } = self.put_off.remove(0);
            let answer = self.perform(now, &work, &mut worker.desk);
            for (token, ticket) in askers {
                worker.answer(token, ticket, answer.clone(), now, self);
            }
        }
    }

    fn renew(&mut self, generation: &Generation) {
        self.disk = Arc::clone(&generation.disk);
    }
}
