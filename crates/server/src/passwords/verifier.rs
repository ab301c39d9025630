//! The password verifier: one thread of a process, with its own bounded queue.
//!
//! A remembered pair of a client is answered in the loop. Everything else is queued here, and the verdict reaches the loop through
//! its mailbox. The harm that attackers can do is bounded:
//!
//! - one password at a time is verified in the whole server, so attackers get at
//!   most one core and the memory of one hash;
//! - an address has a budget of attempts, and one of refused attempts that are still compared with remembered pairs
//!   ([`ledger`](super::ledger));
//! - the queue is served round-robin by address, and when it is full the address with the most jobs loses one: a client
//!   waits for as many others as there are addresses, not for as many as there are attempts;
//! - nothing is verified for a client that has left;
//! - in a pool, where a worker waits with its client, no more than a quarter of the workers do so.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;
use std::time::Duration;

use amped_core::auth::Verdict;
use amped_core::event::{Ticket, VerifyWork};
use amped_sys::clock::monotonic_ns;

use super::accounts::AccountFiles;
use super::ledger::{Budget, Ledger};
use crate::client_times::Client;
use crate::mailbox::Post;
use crate::say;
use crate::token::Token;

/// Maximum queue length if workers have other connections meanwhile. At 50 ms per password this is three seconds.
const QUEUE_MAX: usize = 64;

/// The thread exits after being idle for so long.
const IDLE: Duration = Duration::from_secs(10);

/// The kind of workers that wait for verdicts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waiting {
    /// Loops that have other connections.
    Loops,
    /// Threads of a pool of this size, each with its client.
    PoolOfThreads(usize),
    /// Processes of a pool of this size, each with its client.
    PoolOfProcesses(usize),
}

/// The verifier of a process and a configuration.
#[derive(Debug)]
pub struct Verifier {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    accounts: AccountFiles,
    ledger: Arc<Ledger>,
    budget: Budget,
    waiting: Waiting,
    state: Mutex<State>,
    wake: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// `queue.len() <= queue_max`
    queue: Vec<Job>,
    /// The round of the job taken last.
    round: u64,
    /// A job is in progress.
    busy: bool,
    has_thread: bool,
    /// No thread could be started; reported once.
    cannot_start: bool,
    /// The slot among the processes of a pool, while anything is queued or in progress.
    place: Option<usize>,
}

/// A password to verify.
#[derive(Debug)]
struct Job {
    work: VerifyWork,
    client: Client,
    pending: Weak<PendingVerdict>,
    /// The recipient of the verdict.
    address: (Arc<dyn Post<Verified>>, Token, Ticket),
    /// Lower rounds are served first; an address has one job in each.
    round: u64,
    /// Others were queued before it.
    has_waited: bool,
}

/// The connection that waits for a verdict: dropped when it closes.
#[derive(Debug, Default)]
pub struct PendingVerdict {
    client_closed: AtomicBool,
}

impl PendingVerdict {
    /// Records that the client has closed its side. It may still read, so it is answered if its job is next, but not if
    /// it has to wait: most clients that close have left.
    pub fn note_client_closed(&self) {
        self.client_closed.store(true, Ordering::Relaxed);
    }
}

/// The result of a request.
#[derive(Debug)]
pub enum Verification {
    /// The verdict is known.
    Answered(Verdict),
    /// It will follow as [`Verified`].
    Later(Arc<PendingVerdict>),
}

/// A verdict that was waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verified {
    /// The connection.
    pub token: Token,
    /// The ticket of its request.
    pub ticket: Ticket,
    /// `None`: the client has left.
    pub verdict: Option<Verdict>,
}

impl Verifier {
    /// Creates a verifier for these files.
    pub fn new(accounts: AccountFiles, budget: Budget, waiting: Waiting) -> Verifier {
        let ledger = Arc::clone(accounts.ledger());
        let (state, wake) = Default::default();
        Verifier { shared: Arc::new(Shared { accounts, ledger, budget, waiting, state, wake }) }
    }

    /// Returns the state that outlives a configuration.
    pub fn ledger(&self) -> &Arc<Ledger> {
        &self.shared.ledger
    }

    /// Verifies for a connection, or queues the job. Never waits.
    pub fn ask(
        &self,
        work: VerifyWork,
        client: Client,
        address: (Arc<dyn Post<Verified>>, Token, Ticket),
    ) -> Verification {
        let shared = &self.shared;
        let now_ns = monotonic_ns();
        if shared.ledger.may_compare(client, shared.budget, now_ns)
            && shared.accounts.remembers(work.accounts, client, &work.credentials)
        {
            return Verification::Answered(Verdict::Good);
        }
        let mut state = shared.lock();
        let pending = Arc::new(PendingVerdict::default());
        let has_waited = state.busy || !state.queue.is_empty();
        let round = state.round_of(client);
        if state.queue.len() >= shared.queue_max() && !state.make_room(round) {
            return Verification::Answered(Verdict::Busy);
        }
        if let Waiting::PoolOfProcesses(workers) = shared.waiting
            && state.place.is_none()
        {
            state.place = shared.ledger.take_place(quarter(workers), now_ns);
            if state.place.is_none() {
                return Verification::Answered(Verdict::Busy);
            }
        }
        if !shared.ledger.take(client, shared.budget, now_ns) {
            shared.leave_place(&mut state);
            return Verification::Answered(Verdict::Limited);
        }
        state.queue.push(Job { work, client, pending: Arc::downgrade(&pending), address, round, has_waited });
        if !self.has_thread(&mut state) {
            state.queue.pop();
            shared.leave_place(&mut state);
            return Verification::Answered(Verdict::Busy);
        }
        shared.wake.notify_one();
        Verification::Later(pending)
    }

    /// Starts the thread if there is none. Returns `false` if it cannot be started.
    fn has_thread(&self, state: &mut State) -> bool {
        if !state.has_thread {
            let shared = Arc::clone(&self.shared);
            let thread = thread::Builder::new().name("verifier".to_owned()).stack_size(256 * 1024);
            match thread.spawn(move || shared.work()) {
                Ok(_) => state.has_thread = true,
                Err(error) if !std::mem::replace(&mut state.cannot_start, true) => {
                    say!("cannot start the password verifier thread: {error}; requests with passwords get 503");
                }
                Err(_) => {}
            }
        }
        state.has_thread
    }
}

/// Returns the maximum workers of a pool that may wait for a password.
fn quarter(workers: usize) -> usize {
    (workers / 4).max(1)
}

impl State {
    /// Returns the round of an address's next job: after its queued ones.
    fn round_of(&self, client: Client) -> u64 {
        let last = self.queue.iter().filter(|job| job.client == client).map(|job| job.round).max();
        last.map_or(self.round, |last| last + 1)
    }

    /// Makes room for a job of this round: drops the jobs of clients that have left, or else the last job of the
    /// address with the most. Returns `false` if the others have as few as this one would have.
    fn make_room(&mut self, round: u64) -> bool {
        let before = self.queue.len();
        self.queue.retain(|job| job.pending.strong_count() > 0);
        if self.queue.len() < before {
            return true;
        }
        let Some(last) = (0..before).max_by_key(|at| self.queue[*at].round) else { return false };
        if self.queue[last].round <= round {
            return false;
        }
        self.queue.swap_remove(last).complete(Some(Verdict::Busy));
        true
    }

    /// Takes the next job: the first of the lowest round.
    fn next(&mut self) -> Option<Job> {
        let at = (0..self.queue.len()).min_by_key(|at| self.queue[*at].round)?;
        let job = self.queue.remove(at);
        self.round = job.round;
        Some(job)
    }
}

impl Job {
    /// Returns whether a verdict is still wanted.
    fn is_wanted(&self) -> bool {
        self.pending
            .upgrade()
            .is_some_and(|pending| !(self.has_waited && pending.client_closed.load(Ordering::Relaxed)))
    }

    /// Sends the verdict to the loop; `None`: the client has left.
    fn complete(self, verdict: Option<Verdict>) {
        let (mailbox, token, ticket) = self.address;
        mailbox.post(Verified { token, ticket, verdict });
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn queue_max(&self) -> usize {
        match self.waiting {
            Waiting::Loops => QUEUE_MAX,
            Waiting::PoolOfThreads(workers) => quarter(workers),
            // A process has one connection; the clients of other queued jobs have left.
            Waiting::PoolOfProcesses(_) => 1,
        }
    }

    /// Releases the process's slot if nothing waits.
    fn leave_place(&self, state: &mut State) {
        if state.queue.is_empty()
            && !state.busy
            && let Some(place) = state.place.take()
        {
            self.ledger.give_place_back(place);
        }
    }

    /// The main loop of the thread.
    fn work(&self) {
        while let Some(job) = self.next_job() {
            // With processes, this may wait.
            let one_at_a_time = self.ledger.verifying();
            let verdict = job.is_wanted().then(|| self.verify(&job));
            drop(one_at_a_time);
            // Before the loop is notified: its client's next password must not wait behind this one.
            self.lock().busy = false;
            job.complete(verdict);
        }
    }

    fn verify(&self, job: &Job) -> Verdict {
        let VerifyWork { accounts, credentials, .. } = &job.work;
        // The client must get an answer, even after a bug: a panic is reported on standard error.
        match catch_unwind(AssertUnwindSafe(|| self.accounts.verify(*accounts, job.client, credentials))) {
            Ok(Ok(true)) => {
                self.ledger.give_back(job.client, self.budget);
                Verdict::Good
            }
            Ok(Ok(false)) => Verdict::Wrong,
            Ok(Err(error)) => {
                let path =
                    self.accounts.path(*accounts).map_or_else(Default::default, |path| path.display().to_string());
                say!("cannot read password file {path}: {error}");
                // An unreadable file is not the client's error.
                self.ledger.give_back(job.client, self.budget);
                Verdict::Failed
            }
            Err(_) => Verdict::Failed,
        }
    }

    /// Waits for a job. Returns `None` if none has arrived for long, and the thread should exit.
    fn next_job(&self) -> Option<Job> {
        let mut state = self.lock();
        loop {
            if let Some(job) = state.next() {
                state.busy = true;
                return Some(job);
            }
            self.leave_place(&mut state);
            let waited = self.wake.wait_timeout(state, IDLE);
            let (guard, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
            state = guard;
            if timeout.timed_out() && state.queue.is_empty() {
                state.has_thread = false;
                return None;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mailbox::Mailbox;
    use amped_http::auth::Credentials;
    use std::net::Ipv4Addr;
    use std::num::NonZeroU32;

    struct Set {
        verifier: Verifier,
        mailbox: Arc<Mailbox<Verified>>,
        _folder: tempfile::TempDir,
    }

    /// The password of `ann` is `secret`.
    fn set(waiting: Waiting, budget: u32) -> Set {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("users");
        std::fs::write(&path, format!("ann:{}\n", bcrypt::hash("secret", 4).unwrap())).unwrap();
        let ledger = Arc::new(Ledger::new().unwrap());
        let accounts = AccountFiles::new(vec![path], Duration::from_secs(3600), ledger).unwrap();
        let verifier = Verifier::new(accounts, NonZeroU32::new(budget), waiting);
        Set { verifier, mailbox: Arc::new(Mailbox::new().unwrap()), _folder: folder }
    }

    impl Set {
        /// Submits a password for client `from`; the verdict will have this number.
        fn ask(&self, number: u32, from: u8, password: &str) -> Verification {
            let credentials = Credentials::new(b"ann", password.as_bytes()).unwrap();
            let work = VerifyWork { generation: 0, accounts: 0, credentials, client: None };
            let client = Client::new(Some(Ipv4Addr::new(192, 0, 2, from).into()));
            self.verifier.ask(
                work,
                client,
                (Arc::<Mailbox<_>>::clone(&self.mailbox), Token::from_number(0), Ticket(number)),
            )
        }

        fn must_wait(&self, number: u32, from: u8, password: &str) -> Arc<PendingVerdict> {
            match self.ask(number, from, password) {
                Verification::Later(pending) => pending,
                Verification::Answered(verdict) => panic!("{number} was answered {verdict:?}"),
            }
        }

        fn answer(&self, number: u32, from: u8, password: &str) -> Option<Verdict> {
            match self.ask(number, from, password) {
                Verification::Answered(verdict) => Some(verdict),
                Verification::Later(_) => None,
            }
        }

        /// Returns this many verdicts, in the order of arrival.
        fn verdicts(&self, count: usize) -> Vec<(u32, Option<Verdict>)> {
            let (mut verdicts, mut messages) = (Vec::new(), Vec::new());
            let start = std::time::Instant::now();
            while verdicts.len() < count {
                assert!(start.elapsed() < Duration::from_secs(60), "{verdicts:?}");
                self.mailbox.take(&mut messages);
                let number = |Verified { ticket: Ticket(number), verdict, .. }| (number, verdict);
                verdicts.extend(messages.drain(..).map(number));
                thread::sleep(Duration::from_millis(1));
            }
            verdicts
        }

        /// Waits until the thread has taken a job.
        fn is_busy(&self) {
            while !self.verifier.shared.lock().busy {
                thread::sleep(Duration::from_millis(1));
            }
        }
    }

    #[test]
    fn remembered_password_bypasses_queue() {
        let set = set(Waiting::Loops, 0);
        let _asker = set.must_wait(0, 1, "secret");
        assert_eq!(set.verdicts(1), [(0, Some(Verdict::Good))]);
        let stalled = set.verifier.shared.ledger.verifying();
        let _askers: Vec<_> = (0..QUEUE_MAX).map(|n| set.ask(n as u32, 2, &n.to_string())).collect();
        assert_eq!(set.answer(100, 1, "secret"), Some(Verdict::Good));
        drop(stalled);
    }

    #[test]
    fn address_with_many_attempts_does_not_delay_another() {
        let set = set(Waiting::Loops, 0);
        let stalled = set.verifier.shared.ledger.verifying();
        let mut pendings = vec![set.must_wait(0, 1, "a")];
        set.is_busy();
        pendings.extend((1..20).map(|n| set.must_wait(n, 1, &n.to_string())));
        pendings.push(set.must_wait(99, 2, "secret"));
        drop(stalled);
        let verdicts = set.verdicts(21);
        let at = verdicts.iter().position(|verdict| *verdict == (99, Some(Verdict::Good))).unwrap();
        assert!(at <= 2, "{verdicts:?}");
        assert_eq!(verdicts.iter().filter(|(_, verdict)| *verdict == Some(Verdict::Wrong)).count(), 20);
    }

    #[test]
    fn full_queue_rejects_address_with_most_requests() {
        let set = set(Waiting::Loops, 0);
        let stalled = set.verifier.shared.ledger.verifying();
        let mut pendings = vec![set.must_wait(0, 1, "a")];
        set.is_busy();
        pendings.extend((1..=QUEUE_MAX as u32).map(|n| set.must_wait(n, 1, &n.to_string())));
        assert_eq!(set.answer(500, 1, "b"), Some(Verdict::Busy));
        pendings.push(set.must_wait(99, 2, "secret"));
        assert_eq!(set.verdicts(1), [(QUEUE_MAX as u32, Some(Verdict::Busy))]);
        // Clients that leave make room.
        pendings.truncate(10);
        assert_eq!(set.answer(501, 1, "c"), None);
        drop(stalled);
    }

    #[test]
    fn password_of_disconnected_client_is_not_verified() {
        let set = set(Waiting::Loops, 0);
        let stalled = set.verifier.shared.ledger.verifying();
        let first = set.must_wait(0, 1, "secret");
        set.is_busy();
        drop(set.must_wait(1, 2, "secret2"));
        let half = set.must_wait(2, 3, "secret3");
        half.note_client_closed();
        // Its job was next, so it is answered although it has closed its side.
        first.note_client_closed();
        drop(stalled);
        let verdicts = set.verdicts(3);
        assert_eq!(verdicts, [(0, Some(Verdict::Good)), (1, None), (2, None)]);
    }

    /// A client that has closed its side, and whose next password is submitted as soon as this one has a verdict.
    #[derive(Debug)]
    struct Pipelining {
        verifier: Verifier,
        mailbox: Arc<Mailbox<Verified>>,
        passwords: Mutex<Vec<&'static str>>,
        pendings: Mutex<Vec<Arc<PendingVerdict>>>,
    }

    impl Post<Verified> for Arc<Pipelining> {
        fn post(&self, message: Verified) {
            let (token, ticket) = (message.token, message.ticket);
            // The verdict of the next password may come before this call ends.
            self.mailbox.post(message);
            let next = self.passwords.lock().unwrap().pop();
            if let Some(password) = next {
                let credentials = Credentials::new(b"ann", password.as_bytes()).unwrap();
                let work = VerifyWork { generation: 0, accounts: 0, credentials, client: None };
                let address = (Arc::new(Arc::clone(self)) as Arc<dyn Post<_>>, token, ticket);
                match self.verifier.ask(work, Client::new(None), address) {
                    Verification::Later(pending) => {
                        pending.note_client_closed();
                        self.pendings.lock().unwrap().push(pending);
                    }
                    Verification::Answered(verdict) => panic!("{password} was answered {verdict:?}"),
                }
            }
        }
    }

    #[test]
    fn pipelining_client_is_not_blocked_by_itself() {
        let set = set(Waiting::Loops, 0);
        let client = Arc::new(Pipelining {
            verifier: Verifier { shared: Arc::clone(&set.verifier.shared) },
            mailbox: Arc::clone(&set.mailbox),
            passwords: Mutex::new(vec!["secret", "b", "a"]),
            pendings: Mutex::default(),
        });
        client.post(Verified { token: Token::from_number(0), ticket: Ticket(0), verdict: None });
        let verdicts = set.verdicts(4).into_iter().map(|(_, verdict)| verdict).collect::<Vec<_>>();
        assert_eq!(verdicts, [None, Some(Verdict::Wrong), Some(Verdict::Wrong), Some(Verdict::Good)]);
    }

    #[test]
    fn address_has_budget_of_wrong_passwords() {
        let set = set(Waiting::Loops, 3);
        let _askers: Vec<_> = (0..3).map(|n| set.must_wait(n, 1, &n.to_string())).collect();
        assert_eq!(set.answer(3, 1, "secret"), Some(Verdict::Limited));
        let pending = set.must_wait(4, 2, "secret");
        set.verdicts(4);
        drop(pending);
        assert_eq!(set.answer(5, 1, "secret"), Some(Verdict::Limited), "remembered for another address");
    }

    /// Clients behind one address: guesses of one do not lock out the other at once, but cannot go on without limit.
    #[test]
    fn remembered_pair_is_compared_with_few_refused_guesses() {
        // One attempt is regained every 30 s.
        let set = set(Waiting::Loops, 2);
        let pending = set.must_wait(0, 1, "secret");
        set.verdicts(1);
        drop(pending);
        let _askers = [1, 2].map(|n| set.must_wait(n, 1, "a"));
        set.verdicts(2);
        let answers = ["secret", "b", "secret", "c", "secret"].map(|password| set.answer(3, 1, password).unwrap());
        let [good, limited] = [Verdict::Good, Verdict::Limited];
        assert_eq!(answers, [good, limited, good, limited, limited]);
    }

    #[test]
    fn at_most_quarter_of_pool_waits() {
        let threads = set(Waiting::PoolOfThreads(8), 0);
        let stalled = threads.verifier.shared.ledger.verifying();
        let mut pendings = vec![threads.must_wait(0, 1, "a")];
        threads.is_busy();
        pendings.extend([1, 2].map(|n| threads.must_wait(n, n as u8, "b")));
        assert_eq!(threads.answer(3, 3, "c"), Some(Verdict::Busy));
        drop(stalled);

        // A process without waiting jobs releases its slot.
        let process = set(Waiting::PoolOfProcesses(8), 0);
        let ledger = &process.verifier.shared.ledger;
        let other = ledger.take_place(2, monotonic_ns()).unwrap();
        let stalled = ledger.verifying();
        let _asker = process.must_wait(0, 1, "a");
        assert_eq!(ledger.take_place(2, monotonic_ns()), None);
        drop(stalled);
        process.verdicts(1);
        let start = std::time::Instant::now();
        while ledger.take_place(2, monotonic_ns()).is_none() {
            assert!(start.elapsed() < Duration::from_secs(60), "the slot is not released");
            thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(process.answer(1, 1, "b"), Some(Verdict::Busy));
        ledger.give_place_back(other);
        assert_eq!(process.answer(2, 1, "b"), None);
    }
}
