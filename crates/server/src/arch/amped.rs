//! AMPED: the asymmetric multi-process event-driven architecture (Flash, section 3.4).
//!
//! One loop waits for the network; helpers wait for the disk. The loop first tries a lookup itself, in a way that
//! cannot block; only if that fails, a helper gets it. So content cached by the server or the kernel is served at
//! the speed of a loop without disk access, and a cold request delays no other. Helpers are threads, or processes as in
//! Flash (`helper`).
//!
//! Connections that need the same lookup while a helper works on it share the result.

use std::collections::HashMap;
use std::io;
use std::ops::Range;
use std::sync::Arc;

use amped_core::event::{Delay, Found, Lane, Ticket, Work};
use amped_core::file::Content;
use amped_core::shared_state::SharedState;
use amped_sys::epoll::Epoll;
use amped_units::Time;

use crate::config::settings::HelperKind;
use crate::config_snapshot::ConfigSnapshot;
use crate::counters::{ProbeCounts, Snapshot, WaitCounts};
use crate::disk::{Disk, Effort};
use crate::event_loop::{self, Start};
use crate::helper::processes::Processes;
use crate::helper::threads::Threads;
use crate::helper::{Busy, Done, Helpers, Task};
use crate::open_file::OpenFile;
use crate::token::Token;
use crate::turn::{DiskAccess, DiskAnswer};
use crate::worker::{DiskSide, Worker};

/// Runs a loop of this architecture; returns its final statistics.
///
/// # Errors
/// A system call failed without which a loop cannot run.
pub fn run(mut start: Start) -> io::Result<Snapshot> {
    let settings = &start.generation.settings.helpers;
    let disk = Arc::clone(&start.generation.disk);
    match (settings.kind, start.fork_server.take()) {
        (HelperKind::Threads, _) => {
            let helpers = Threads::new(settings.clone(), Arc::clone(&start.mailbox));
            event_loop::run(start, Helped::new(disk, helpers))
        }
        (HelperKind::Processes, Some(fork_server)) => {
            let helpers = Processes::new(&start.generation, fork_server, start.clock)?;
            event_loop::run(start, Helped::new(disk, helpers))
        }
        (HelperKind::Processes, None) => {
            Err(io::Error::other("no fork server for helper processes; this is a bug in amped"))
        }
    }
}

/// The disk side of AMPED.
struct Helped<H> {
    disk: Arc<Disk>,
    helpers: H,
    /// Completed tasks, not delivered yet.
    done: Vec<Done>,
    /// Lookups that helpers work on.
    waiting: HashMap<Work, Waiting>,
    probes: ProbeCounts,
    waits: WaitCounts,
}

/// A lookup that a helper works on.
struct Waiting {
    since: Time,
    why: Delay,
    /// May include connections that have closed. `requesters.len() <= REQUESTERS_MAX`
    requesters: Vec<(Token, Ticket)>,
}

/// Maximum connections that wait for one answer. A disk may hang for hours while clients connect and disconnect.
const REQUESTERS_MAX: usize = 64 * 1024;

impl<H: Helpers> DiskAccess for Helped<H> {
    const PROBES: bool = true;

    fn ask(
        &mut self,
        now: Time,
        requester: Token,
        ticket: Ticket,
        work: &Work,
        shared: &mut SharedState<OpenFile>,
    ) -> DiskAnswer {
        if let Some(waiting) = self.waiting.get_mut(work) {
            if waiting.requesters.len() >= REQUESTERS_MAX {
                return DiskAnswer::Refused;
            }
            waiting.requesters.push((requester, ticket));
            shared.counts.page_collapsed += u64::from(matches!(work, Work::List(_)));
            return DiskAnswer::Later(waiting.why);
        }
        let why = match self.disk.perform(work, Effort::Now) {
            Ok(found) => {
                return DiskAnswer::Answered(self.disk.learn(now, work, found, shared));
            }
            Err(why) => why,
        };
        self.probes.add(work, why);
        match self.helpers.ask(Task::Work(Arc::clone(&self.disk), work.clone())) {
            Ok(()) => {
                self.waiting.insert(work.clone(), Waiting { since: now, why, requesters: vec![(requester, ticket)] });
                DiskAnswer::Later(why)
            }
            Err(Busy) => DiskAnswer::Refused,
        }
    }

    fn withdraw(&mut self, requester: Token, ticket: Ticket, work: &Work) {
        if let Some(waiting) = self.waiting.get_mut(work)
            && waiting.requesters.last() == Some(&(requester, ticket))
        {
            waiting.requesters.pop();
        }
    }

    fn warm(&mut self, requester: (Token, Lane), content: Arc<Content<OpenFile>>, range: Range<u64>) -> bool {
        self.helpers.ask(Task::Warm(requester, content, range)).is_ok()
    }
}

impl<H: Helpers> DiskSide for Helped<H> {
    fn done(&mut self, done: Done, now: Time, worker: &mut Worker) {
        match done {
            Done::Work(work, found) => self.learn(work, found, now, worker),
            Done::Warm(token) => worker.warmed(token, now, self),
            Done::Failed(token) => worker.give_up(token, now, self),
        }
    }

    fn register(&mut self, epoll: &Epoll, token: u64) -> io::Result<()> {
        self.helpers.register(epoll, token)
    }

    fn ready(&mut self, now: Time, worker: &mut Worker) {
        let mut all = std::mem::take(&mut self.done);
        self.helpers.ready(&mut all);
        let one_is_free = !all.is_empty();
        all.drain(..).for_each(|done| self.done(done, now, worker));
        self.done = all;
        if one_is_free {
            worker.helper_is_free(now, self);
        }
    }

    fn next_due(&self) -> Time {
        self.helpers.next_due()
    }

    fn take_due(&mut self, now: Time, _: &mut Worker) {
        self.helpers.take_due(now);
    }

    fn renew(&mut self, generation: &ConfigSnapshot) {
        self.disk = Arc::clone(&generation.disk);
        self.helpers.renew(generation);
    }

    fn complete(&self, snapshot: Snapshot) -> Snapshot {
        let WaitCounts { names, lists, changes, .. } = self.waits;
        let waits = WaitCounts { names, lists, changes, ..snapshot.waits };
        Snapshot { helpers: self.helpers.counts(), probes: self.probes, waits, ..snapshot }
    }
}

impl<H: Helpers> Helped<H> {
    fn new(disk: Arc<Disk>, helpers: H) -> Helped<H> {
        let (probes, waits) = (ProbeCounts::default(), WaitCounts::default());
        Helped { disk, helpers, done: Vec::new(), waiting: HashMap::new(), probes, waits }
    }

    /// Handles the result of a helper: updates the caches, and answers all connections that wait for it.
    fn learn(&mut self, work: Work, found: Found<OpenFile>, now: Time, worker: &mut Worker) {
        let Some(Waiting { since, why, requesters }) = self.waiting.remove(&work) else {
            return;
        };
        let cause = match (&work, why) {
            (Work::List(_), _) => &mut self.waits.lists,
            (Work::Name(_), Delay::Disk) => &mut self.waits.names,
            (Work::Name(_), Delay::Change) => &mut self.waits.changes,
        };
        cause.add(now.since(since));
        // The result is as old as the request: when the helper looked is unknown.
        let answer = self.disk.learn(since, &work, found, &mut worker.context.shared);
        for (token, ticket) in requesters {
            worker.answer(token, ticket, answer.clone(), now, self);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::settings::HelperSettings;
    use crate::disk::Rules;
    use crate::mailbox::Mailbox;
    use amped_core::cache::Budgets;
    use amped_core::event::ListWork;
    use amped_core::limits::Limits;
    use amped_core::listing::{ListForm, ListKey, ListOrder};
    use amped_core::reply::WallClock;
    use amped_core::site::{Site, Sites};
    use std::time::Duration;

    #[test]
    fn withdrawn_request_is_not_kept() {
        let site = Site { listing: true, ..Site::default() };
        let sites = Arc::new(Sites::new(vec![site]).expect("one"));
        let folder = tempfile::tempdir().expect("a temporary directory");
        let root = folder.path().to_owned();
        let disk = Disk::open(Arc::clone(&sites), &[root], Rules::default()).expect("opened");
        let idle_timeout = Duration::from_secs(1);
        let settings = HelperSettings { kind: HelperKind::Threads, max: 1, min_spare: 0, max_queue: 1, idle_timeout };
        let helpers = Threads::new(settings, Arc::new(Mailbox::new().expect("made")));
        let mut helped = Helped::new(Arc::new(disk), helpers);
        let mut shared = SharedState::new(sites, Limits::default(), Budgets::default(), WallClock::at(0));
        // A listing always needs a helper; here its answer stays in the mailbox.
        let order = ListOrder { key: ListKey::Name, descending: false };
        let path = Arc::from(&b"/"[..]);
        let work = Work::List(ListWork { generation: 0, site: 0, path, edition: 0, order, form: ListForm::Html });
        let token = |n: u64| Token::from_number(n);
        let mut ask =
            |helped: &mut Helped<Threads>, n| helped.ask(Time::START, token(n), Ticket(1), &work, &mut shared);
        for n in 0..10 {
            assert!(matches!(ask(&mut helped, n), DiskAnswer::Later(_)));
            if n != 3 {
                helped.withdraw(token(n), Ticket(1), &work);
            }
        }
        // Withdrawing one of several keeps the entry.
        helped.withdraw(token(2), Ticket(1), &work);
        assert_eq!(helped.waiting[&work].requesters, [(token(3), Ticket(1))]);
        for n in 1..REQUESTERS_MAX as u64 {
            assert!(matches!(ask(&mut helped, n), DiskAnswer::Later(_)));
        }
        assert!(matches!(ask(&mut helped, 0), DiskAnswer::Refused));
        assert_eq!(helped.waiting[&work].requesters.len(), REQUESTERS_MAX);
    }
}
