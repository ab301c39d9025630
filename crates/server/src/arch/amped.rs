//! AMPED: the asymmetric multi-process event-driven architecture (Flash, section 3.4).
//!
//! One loop waits for the network; helpers wait for the disk. The loop first tries a lookup itself, in a way that
//! cannot block; only if that fails, a helper gets it. So content cached by the server or the kernel is served at
//! the speed of a loop without disk access, and a cold request delays no other. Helpers are threads, or processes as in
//! Flash (`helper`).
//!
//! Connections that need the same lookup while a helper works on it share the result. If a file is being written, no
//! helper waits for the writer: the loop asks again every [`STILL`], and after [`CHANGES_MAX`] takes the file as it is.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::ops::Range;
use std::sync::Arc;

use amped_core::event::{Delay, Found, Lane, Ticket, Trouble, Work};
use amped_core::file::{Content, FileVersion, Stored};
use amped_core::shared_state::SharedState;
use amped_sys::epoll::Epoll;
use amped_units::Time;

use crate::config::settings::{HelperKind, HelperSettings};
use crate::config_snapshot::ConfigSnapshot;
use crate::counters::{ProbeCounts, Snapshot, WaitCounts};
use crate::disk::{CHANGES_MAX, Disk, Effort, STILL};
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
    let of_store = HelperSettings { kind: HelperKind::Threads, max: FETCHERS_MAX, min_spare: 0, ..settings.clone() };
    let fetchers = Threads::new(of_store, Arc::clone(&start.mailbox));
    match (settings.kind, start.fork_server.take()) {
        (HelperKind::Threads, _) => {
            let helpers = Threads::new(settings.clone(), Arc::clone(&start.mailbox));
            event_loop::run(start, Helped::new(disk, helpers, fetchers))
        }
        (HelperKind::Processes, Some(fork_server)) => {
            let helpers = Processes::new(&start.generation, fork_server, start.clock)?;
            event_loop::run(start, Helped::new(disk, helpers, fetchers))
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
    /// Those that wait for an object store. It may hang, and must not delay those that wait for the disk.
    fetchers: Threads,
    /// Completed tasks, not delivered yet.
    done: Vec<Done>,
    /// Lookups that helpers work on, or that are deferred.
    waiting: HashMap<Work, Waiting>,
    /// Windows of objects that are being fetched, with those that wait for them; some are read ahead, for nobody yet.
    fetching: HashMap<(FileVersion, u64), Vec<(Token, Lane)>>,
    /// Those of files that are being written, with the time of the next attempt; oldest first.
    deferred: VecDeque<(Time, Work)>,
    probes: ProbeCounts,
    waits: WaitCounts,
}

/// A lookup that is under way.
struct Waiting {
    since: Time,
    why: Delay,
    /// May include connections that have closed. `requesters.len() <= REQUESTERS_MAX`
    requesters: Vec<(Token, Ticket)>,
}

/// Returns whether this byte of a file is in a window of an object that must be fetched first.
fn is_missing(content: &Content<OpenFile>, offset: u64) -> bool {
    matches!(&content.store, Stored::File(file) if !file.is_present(offset))
}

/// Returns the window that is fetched for this byte.
fn window_of(content: &Content<OpenFile>, offset: u64) -> (FileVersion, u64) {
    let number = if let Stored::File(file) = &content.store { file.fetched_with(offset) } else { 0 };
    (content.version, number)
}

/// Maximum helpers of a loop that wait for an object store: they hardly use the processor.
pub const FETCHERS_MAX: usize = 64;

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
        match self.dispatch(work, Effort::Defer) {
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
        match is_missing(&content, range.start) {
            true => self.fetch(Some(requester), content, range.start),
            false => self.helpers.ask(Task::Warm(requester, content, range)).is_ok(),
        }
    }

    fn read_ahead(&mut self, content: Arc<Content<OpenFile>>, offset: u64) {
        if is_missing(&content, offset) {
            self.fetch(None, content, offset);
        }
    }
}

impl<H: Helpers> DiskSide for Helped<H> {
    fn done(&mut self, done: Done, now: Time, worker: &mut Worker) {
        match done {
            Done::Work(work, found) => self.learn(work, found, now, worker),
            Done::Changing(work) => self.defer(work, now),
            Done::Warm(token) => worker.warmed(token, now, self),
            Done::Failed(token) => worker.give_up(token, now, self),
            Done::Fetched(content, offset, fetched) => {
                let requesters = self.fetching.remove(&window_of(&content, offset)).unwrap_or_default();
                for token in requesters {
                    match fetched {
                        Ok(()) => worker.warmed(token, now, self),
                        Err(_) => worker.not_fetched(token, now, self),
                    }
                }
            }
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
        let deferred = self.deferred.front().map_or(Time::NEVER, |(due, _)| *due);
        self.helpers.next_due().min(deferred)
    }

    fn take_due(&mut self, now: Time, worker: &mut Worker) {
        self.helpers.take_due(now);
        while let Some((_, work)) = self.deferred.pop_front_if(|(due, _)| *due <= now) {
            if let Err(Busy) = self.ask_again(&work, now) {
                self.learn(work, Found::Trouble(Trouble::Busy), now, worker);
            }
        }
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
    fn new(disk: Arc<Disk>, helpers: H, fetchers: Threads) -> Helped<H> {
        let (probes, waits) = (ProbeCounts::default(), WaitCounts::default());
        let (waiting, fetching, deferred) = Default::default();
        Helped { disk, helpers, fetchers, done: Vec::new(), waiting, fetching, deferred, probes, waits }
    }

    /// Has a window of an object fetched, unless that is being done. Returns whether it is.
    fn fetch(&mut self, requester: Option<(Token, Lane)>, content: Arc<Content<OpenFile>>, offset: u64) -> bool {
        let window = window_of(&content, offset);
        if let Some(requesters) = self.fetching.get_mut(&window) {
            requesters.extend(requester);
            return true;
        }
        let is_asked = self.fetchers.ask(Task::Fetch(content, offset)).is_ok();
        if is_asked {
            self.fetching.insert(window, requester.into_iter().collect());
        }
        is_asked
    }

    /// Gives a lookup to a helper.
    fn dispatch(&mut self, work: &Work, effort: Effort) -> Result<(), Busy> {
        let task = Task::Work(Arc::clone(&self.disk), work.clone(), effort);
        match self.disk.is_remote(work) {
            true => self.fetchers.ask(task),
            false => self.helpers.ask(task),
        }
    }

    /// Defers a lookup whose file is being written.
    fn defer(&mut self, work: Work, now: Time) {
        if let Some(waiting) = self.waiting.get_mut(&work) {
            waiting.why = Delay::Change;
            self.deferred.push_back((now + STILL, work));
        }
    }

    /// Gives a deferred lookup to a helper again.
    fn ask_again(&mut self, work: &Work, now: Time) -> Result<(), Busy> {
        let Some(waiting) = self.waiting.get(work) else { return Ok(()) };
        let is_over = now.since(waiting.since) >= CHANGES_MAX;
        let effort = if is_over { Effort::Accept } else { Effort::Defer };
        self.dispatch(work, effort)
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
    use crate::disk::Rules;
    use crate::mailbox::Mailbox;
    use amped_core::cache::Budgets;
    use amped_core::event::ListWork;
    use amped_core::limits::Limits;
    use amped_core::listing::{ListForm, ListKey, ListOrder};
    use amped_core::reply::WallClock;
    use amped_core::site::{Site, Sites};
    use std::time::Duration;

    /// Helpers that only record the efforts of lookups.
    #[derive(Default)]
    struct Recorder(Vec<Effort>);

    impl Helpers for Recorder {
        fn ask(&mut self, task: Task) -> Result<(), Busy> {
            match task {
                Task::Work(_, _, effort) => self.0.push(effort),
                Task::Warm(..) | Task::Fetch(..) => {}
            }
            Ok(())
        }

        fn renew(&mut self, _: &ConfigSnapshot) {}

        fn counts(&self) -> crate::counters::HelperCounts {
            Default::default()
        }
    }

    #[test]
    fn lookup_of_changing_file_is_repeated_by_loop_for_one_second() {
        let (disk, mut shared, _folder) = served();
        let mut helped = Helped::new(disk, Recorder::default(), threads());
        let work = listing();
        let ask = |helped: &mut Helped<Recorder>, shared: &mut _| {
            helped.ask(Time::START, Token::from_number(1), Ticket(1), &work, shared)
        };
        assert!(matches!(ask(&mut helped, &mut shared), DiskAnswer::Later(Delay::Disk)));
        let mut now = Time::START;
        for _ in 0..20 {
            helped.defer(work.clone(), now);
            assert_eq!(helped.next_due(), now + STILL);
            now = helped.deferred.pop_front().expect("one").0;
            helped.ask_again(&work, now).expect("never busy");
        }
        assert_eq!(helped.next_due(), Time::NEVER);
        let (last, others) = helped.helpers.0.split_last().expect("asked");
        assert_eq!((others.len(), *last), (20, Effort::Accept));
        assert!(others.iter().all(|effort| *effort == Effort::Defer));
        // Other requests join it, and no cached copy is served to them.
        assert!(matches!(ask(&mut helped, &mut shared), DiskAnswer::Later(Delay::Change)));
        assert_eq!(helped.helpers.0.len(), 21);
    }

    /// A disk with one directory, and a state for its requests.
    fn served() -> (Arc<Disk>, SharedState<OpenFile>, tempfile::TempDir) {
        let site = Site { listing: true, ..Site::default() };
        let sites = Arc::new(Sites::new(vec![site]).expect("one"));
        let folder = tempfile::tempdir().expect("a temporary directory");
        let root = folder.path().to_owned();
        let disk = Disk::open(Arc::clone(&sites), &[root], Rules::default(), None).expect("opened");
        let shared = SharedState::new(sites, Limits::default(), Budgets::default(), WallClock::at(0));
        (Arc::new(disk), shared, folder)
    }

    fn threads() -> Threads {
        let idle_timeout = Duration::from_secs(1);
        let settings = HelperSettings { kind: HelperKind::Threads, max: 1, min_spare: 0, max_queue: 1, idle_timeout };
        Threads::new(settings, Arc::new(Mailbox::new().expect("made")))
    }

    /// A listing, which always needs a helper.
    fn listing() -> Work {
        let order = ListOrder { key: ListKey::Name, descending: false };
        let path = Arc::from(&b"/"[..]);
        Work::List(ListWork { generation: 0, site: 0, path, edition: 0, order, form: ListForm::Html })
    }

    #[test]
    fn withdrawn_request_is_not_kept() {
        let (disk, mut shared, _folder) = served();
        let mut helped = Helped::new(disk, threads(), threads());
        // Its answer stays in the mailbox.
        let work = listing();
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
