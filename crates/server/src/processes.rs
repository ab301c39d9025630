//! Workers as processes: a parent that starts them, replaces those that die, and passes messages on.
//!
//! Parent and child communicate over a socket pair, the *line*. The parent sends orders, the child its statistics. The
//! end of the line means the end of the other side: a child whose parent has ended exits too. The parent must have only
//! one thread, because it forks; everything that needs more threads, such as the log writer, starts in the child.

use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process::{ExitCode, exit};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use amped_core::event::PreloadResult;
use amped_sys::file::Patience;
use amped_sys::poll;
use amped_sys::process::{self, Fork, OomScore};
use amped_sys::signal::{Signal, Signals};
use amped_sys::socket;
use amped_units::Time;
use serde::{Deserialize, Serialize};

use crate::access_log::{Sink, Writer, end_log};
use crate::admin::{AdminEndpoint, End, Workers};
use crate::arch;
use crate::clock::Clock;
use crate::config_snapshot::ConfigSnapshot;
use crate::control::Orders;
use crate::counters::Snapshot;
use crate::event_loop::Start;
use crate::heartbeat::Heartbeat;
use crate::listen::Address;
use crate::mailbox::Mailbox;
use crate::message::{Message, Preload};
use crate::metrics::{StatsSlot, StatsSlots};
use crate::notes::Notes;
use crate::portable;
use crate::reread::Reread;
use crate::say;
use crate::say::die;
use crate::watch::{self, Audience};

/// Everything that a child starts with.
pub struct Parts {
    /// The current configuration.
    pub generation: Arc<ConfigSnapshot>,
    /// Its listeners. The parent keeps them nowhere else: a child could not close other copies.
    pub addresses: Vec<Address>,
    /// The log file: each child has its own writer on the same file.
    pub log: Option<Sink>,
    /// The clock, the same for all.
    pub clock: Clock,
    /// Blocked in the parent, unblocked in the child.
    pub signals: Signals,
    /// Slots for the children's statistics, if these are published.
    pub slots: Option<StatsSlots>,
    /// The parent's, from before it was confined.
    pub oom_score: Option<OomScore>,
}

/// The children.
pub struct Pool {
    parts: Parts,
    /// The previous configuration, while it may have to be restored.
    before: Option<(Arc<ConfigSnapshot>, Vec<Address>)>,
    /// For the parent only.
    admin: Option<AdminEndpoint>,
    children: Vec<Child>,
    /// When to replace each child that died soon after its start.
    vacancies: Vec<Instant>,
    /// The statistics of children that have ended.
    ended: Snapshot,
    /// The number of the last report.
    report: u64,
    /// The number of the last heartbeat; 0: none was ordered.
    beat: u64,
}

struct Child {
    pid: u32,
    line: OwnedFd,
    /// The slot of its statistics.
    slot: Option<StatsSlot>,
    started: Instant,
    /// Whether it has been ordered to stop.
    stopping: bool,
    /// It has closed its line.
    ended: bool,
    /// Its final statistics.
    final_report: Option<Box<Snapshot>>,
    /// Its last report, and the number of that.
    report: Option<(u64, Box<Snapshot>)>,
    /// Its results of preload orders, and their numbers.
    found: Vec<(u64, PreloadResult)>,
    /// Preload orders that it has not answered. `unanswered <= UNANSWERED_MAX`
    unanswered: usize,
    /// The number of the last heartbeat at which its loop had turned.
    beat: u64,
}

/// Maximum unanswered preload orders of a child: the line must never be full.
const UNANSWERED_MAX: usize = 4;

/// A child that died sooner than this is replaced only after a delay: the same cause would kill the next one too.
const LIFE_MIN: Duration = Duration::from_secs(1);

/// How much the out-of-memory killer prefers a child to the parent, in thousandths of all memory. Far less than 1000,
/// so that the process that uses most of the machine's memory is still killed first. Of the limit of a small container it is
/// more than what the parent has mapped and a child has not: all of the program, to test whether it can be locked.
const CHILD_OOM_SCORE: i32 = 300;

/// How long a child may take to report its statistics.
const ANSWER_TIME: Duration = Duration::from_secs(1);

/// A message from the parent to a child.
#[derive(Debug, Serialize, Deserialize)]
enum Order {
    /// Finish requests in progress, until this time (nanoseconds of the common clock).
    Stop(u64),
    /// Like `Stop`, for a child that others replace.
    Retire(u64),
    /// Like `Stop`, when another server takes over.
    Drain(u64),
    /// Report the statistics, under this number.
    Report(u64),
    /// Reopen the log.
    ReopenLog,
    /// Wipe expired ticket keys, and read changed certificates.
    RefreshTls,
    /// Look up this name of this site again, and send the result under this number.
    Preload(u64, u16, Arc<[u8]>),
    /// Send this number back, if the loop has turned since the last heartbeat.
    Beat(u64),
}

/// A message from a child to its parent.
#[derive(Debug, Serialize, Deserialize)]
enum Reply {
    /// The statistics requested under this number.
    Report(u64, Box<Snapshot>),
    /// The statistics at exit.
    FinalReport(Box<Snapshot>),
    /// The result of the preload order of this number.
    Preloaded(u64, PreloadResult),
    /// The loop had turned at the heartbeat of this number.
    Turned(u64),
}

impl Pool {
    /// Starts as many children as there are workers.
    ///
    /// # Errors
    /// When one cannot be started.
    pub fn start(parts: Parts, admin: Option<AdminEndpoint>) -> io::Result<Pool> {
        let (children, vacancies) = (Vec::new(), Vec::new());
        let ended = Snapshot::default();
        let mut pool = Pool { parts, before: None, admin, children, vacancies, ended, report: 0, beat: 0 };
        for _ in 0..pool.parts.generation.settings.workers {
            pool.add()?;
        }
        Ok(pool)
    }

    fn add(&mut self) -> io::Result<()> {
        let (ours, theirs) = socket::packet_pair()?;
        let slot = self.parts.slots.as_mut().map(StatsSlots::take);
        // Otherwise both processes would write buffered output.
        io::stdout().flush()?;
        // When memory runs out, killing a child costs one client; killing the parent costs all.
        let forked = OomScore::fork(self.parts.oom_score.as_ref(), CHILD_OOM_SCORE);
        let forked = forked.inspect_err(|_| self.give_back(slot.as_ref()))?;
        match forked {
            Fork::Parent(pid) => {
                self.children.push(Child {
                    pid,
                    line: ours,
                    slot,
                    started: Instant::now(),
                    stopping: false,
                    ended: false,
                    final_report: None,
                    report: None,
                    found: Vec::new(),
                    unanswered: 0,
                    beat: 0,
                });
                Ok(())
            }
            Fork::Child => {
                // Its siblings would not notice their parent's end while this
                // child held the parent's end of their lines.
                drop(ours);
                self.children.clear();
                // An address that is given up is closed only when no process has it open.
                self.before = None;
                self.admin = None;
                self.run(theirs, slot)
            }
        }
    }

    /// Releases the slot of a child that has ended or could not be started.
    fn give_back(&mut self, slot: Option<&StatsSlot>) {
        if let (Some(slots), Some(slot)) = (&mut self.parts.slots, slot) {
            slots.give_back(slot);
        }
    }

    /// The main function of a child.
    fn run(&mut self, line: OwnedFd, slot: Option<StatsSlot>) -> ! {
        let Parts { generation, addresses, log, clock, signals, .. } = &mut self.parts;
        signals.leave_to_parent();
        generation.settings.keys.process().iter().for_each(|keys| keys.leave_to_parent());
        // The parent has already reported a failure to lock memory.
        let _ = process::lock_program();
        let mailbox = Mailbox::new().unwrap_or_else(|error| die(&format!("cannot create a mailbox: {error}")));
        let mailbox = Arc::new(mailbox);
        let log = log.take().map(|sink| Writer::start(sink.shared(), &generation.settings.log, *clock));
        let log = log.transpose().unwrap_or_else(|error| die(&format!("cannot start the log: {error}")));
        let start = Start {
            generation: Arc::clone(generation),
            listeners: std::mem::take(addresses).into_iter().flat_map(Address::into_listeners).collect(),
            mailbox: Arc::clone(&mailbox),
            log: log.as_ref().map(|(writer, _)| Arc::clone(writer)),
            clock: *clock,
            fork_server: None,
            slot,
        };
        if generation.settings.cache.watch {
            watch::start(&generation.disk, Audience::Workers(vec![Arc::clone(&mailbox)]));
        }
        let line = Arc::new(line);
        let (its_line, writer, clock) = (Arc::clone(&line), start.log.clone(), *clock);
        let its_generation = Arc::clone(generation);
        let listening = thread::Builder::new().name("line".to_owned()).stack_size(256 * 1024);
        let listening =
            listening.spawn(move || execute_orders(&its_line, &mailbox, writer.as_deref(), &its_generation, clock));
        if let Err(error) = listening {
            die(&format!("cannot start the thread for commands of the parent: {error}"));
        }
        let architecture = generation.settings.architecture;
        let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| arch::run(architecture, start)));
        let snapshot = match ended {
            Ok(Ok(snapshot)) => snapshot,
            Ok(Err(error)) => die(&format!("the event loop failed: {error}")),
            Err(_) => die("the event loop panicked; this is a bug in amped"),
        };
        let log = log.map(|log| end_log(log, clock, Time::START));
        let snapshot = snapshot.with_log(log.as_deref().map(Writer::counts));
        let snapshot = snapshot.with_watch(generation.disk.notes().map(Notes::counts));
        let snapshot = snapshot.with_store(generation.store.as_ref().map(|store| store.counts()));
        send_reply(&line, &Reply::FinalReport(Box::new(snapshot)));
        exit(0)
    }

    fn kill(&self) {
        self.children.iter().for_each(|child| process::kill(child.pid));
    }

    fn order_to<R>(&mut self, which: R, order: &Order)
    where
        R: std::slice::SliceIndex<[Child], Output = [Child]>,
    {
        for child in &mut self.children[which] {
            child.stopping |= matches!(order, Order::Stop(_) | Order::Retire(_) | Order::Drain(_));
            // If the child has died, that is noticed elsewhere. One that is stopped (SIGSTOP) must not block its parent.
            let _ = portable::send(&child.line, order, &[], Patience::Now);
        }
    }
}

impl Workers for Pool {
    fn generation(&self) -> &Arc<ConfigSnapshot> {
        &self.parts.generation
    }

    fn addresses(&self) -> &[Address] {
        &self.parts.addresses
    }

    fn admin(&mut self) -> &mut Option<AdminEndpoint> {
        &mut self.admin
    }

    fn patience(&self) -> Duration {
        let next = self.vacancies.iter().min();
        next.map_or(Duration::MAX, |due| due.saturating_duration_since(Instant::now()))
    }

    fn look_after(&mut self) {
        while let Some((pid, ending)) = process::ended_child() {
            let Some(n) = self.children.iter().position(|child| child.pid == pid) else {
                if self.parts.generation.apps.is_manager(pid) {
                    // Without it no application could be started any more; a
                    // supervisor that sees the server end restarts it.
                    die(&format!("the process manager {ending}"));
                }
                if self.parts.generation.settings.keys.process().is_some_and(|keys| keys.manager() == pid) {
                    die(&format!("the key manager {ending}"));
                }
                continue;
            };
            let mut child = self.children.swap_remove(n);
            while child.receive(Instant::now()) {}
            if let Some(last) = child.final_report.take() {
                self.ended += &last.after_the_end();
            }
            self.give_back(child.slot.take().as_ref());
            if let Some(counts) = &self.parts.generation.client_counts {
                counts.forget_process(pid);
            }
            if child.stopping {
                continue;
            }
            let wait = LIFE_MIN.saturating_sub(child.started.elapsed());
            let when = if wait.is_zero() { "replacing it" } else { "replacing it in a second" };
            say!("process {pid} {ending}; {when}");
            self.vacancies.push(Instant::now() + wait);
        }
        let now = Instant::now();
        for due in std::mem::take(&mut self.vacancies) {
            if due > now {
                self.vacancies.push(due);
            } else if let Err(error) = self.add() {
                say!("cannot start a process: {error}; retrying in a second");
                self.vacancies.push(now + LIFE_MIN);
            }
        }
    }

    /// New children start with the other configuration, the old ones finish their requests.
    fn renew(&mut self, generation: Arc<ConfigSnapshot>, addresses: Vec<Address>) -> Result<(), String> {
        let old = self.children.len();
        let stop_at = self.parts.clock.now() + self.parts.generation.settings.stop.deadline;
        let retire = Order::Retire(stop_at.as_nanos());
        self.before = Some((
            std::mem::replace(&mut self.parts.generation, generation),
            std::mem::replace(&mut self.parts.addresses, addresses),
        ));
        let started = (0..self.parts.generation.settings.workers).try_for_each(|_| self.add());
        let before = self.before.take();
        if let Err(error) = started {
            if let Some(before) = before {
                (self.parts.generation, self.parts.addresses) = before;
            }
            self.order_to(old.., &retire);
            return Err(format!("cannot start a process: {error}"));
        }
        self.vacancies.clear();
        self.order_to(..old, &retire);
        Ok(())
    }

    fn reopen_log(&mut self) {
        // For children started later. Each child reports its own errors.
        if let Ok(Some(log)) = Sink::open(&self.parts.generation.settings.log.access, None) {
            self.parts.log = Some(log);
        }
        self.order_to(.., &Order::ReopenLog);
    }

    fn refresh_tls(&mut self) {
        self.order_to(.., &Order::RefreshTls);
    }

    fn report(&mut self) -> (Snapshot, usize, usize) {
        self.report += 1;
        self.order_to(.., &Order::Report(self.report));
        let mut sum = self.ended.clone();
        let (mut answered, mut silent) = (0, 0);
        let until = Instant::now() + ANSWER_TIME;
        for child in &mut self.children {
            while child.report.as_ref().is_none_or(|(number, _)| *number != self.report) && child.receive(until) {}
            if let Some((_, snapshot)) = child.report.take_if(|(number, _)| *number == self.report) {
                sum += &snapshot;
                answered += 1;
            } else if !child.ended {
                silent += 1;
            }
        }
        (sum, answered, answered + silent)
    }

    fn loops_turn(&mut self) -> bool {
        let now = Instant::now();
        for child in &mut self.children {
            while child.receive(now) {}
        }
        let turned = self.beat == 0 || self.children.iter().any(|child| child.beat == self.beat);
        self.beat += 1;
        self.order_to(.., &Order::Beat(self.beat));
        turned
    }

    /// Children observe the deadline themselves, but one that hangs in the kernel cannot.
    fn stop(mut self: Box<Self>, at: Time, end: End, signals: &Signals) -> ExitCode {
        self.vacancies.clear();
        // Closing them refuses new connections at once.
        self.parts.addresses.clear();
        self.order_to(
            ..,
            &match end {
                End::Stop => Order::Stop(at.as_nanos()),
                End::Drain => Order::Drain(at.as_nanos()),
            },
        );
        let clock = self.parts.clock;
        // The last lines of the log get one more second.
        let latest = at.max(clock.now()) + Duration::from_secs(2);
        loop {
            self.look_after();
            let left = latest.since(clock.now());
            if self.children.is_empty() || left.is_zero() {
                break;
            }
            if let Some(Signal::Terminate | Signal::Interrupt) = signals.wait_for(left) {
                self.kill();
                die("stopped by a second signal");
            }
        }
        self.kill();
        self.parts.generation.apps.stop();
        say::plain(&self.ended.to_string());
        ExitCode::SUCCESS
    }
}

impl Orders for Pool {
    fn preload(&mut self, number: u64, site: u16, path: &Arc<[u8]>) -> usize {
        let order = Order::Preload(number, site, Arc::clone(path));
        let serving = self.children.iter_mut().filter(|child| !child.stopping);
        let mut of = 0;
        for child in serving {
            of += 1;
            // A child that has not answered the last ones would not answer this one in time.
            if child.unanswered < UNANSWERED_MAX && portable::send(&child.line, &order, &[], Patience::Now).is_ok() {
                child.unanswered += 1;
            }
        }
        of
    }

    fn answers(&mut self, number: u64) -> Vec<PreloadResult> {
        let mut found = Vec::new();
        for child in &mut self.children {
            while child.receive(Instant::now()) {}
            found.extend(child.found.drain(..).filter(|(of, _)| *of == number).map(|(_, found)| found));
        }
        found
    }

    fn bells(&self) -> Vec<BorrowedFd<'_>> {
        self.children.iter().filter(|child| !child.ended).map(|child| child.line.as_fd()).collect()
    }
}

/// The thread of a child that executes commands of the parent.
fn execute_orders(
    line: &Arc<OwnedFd>,
    mailbox: &Arc<Mailbox<Message>>,
    log: Option<&Writer>,
    generation: &ConfigSnapshot,
    clock: Clock,
) {
    let mut heartbeat = Heartbeat::default();
    while let Ok(order) = portable::receive(line, &mut Vec::new(), Patience::Wait) {
        match order {
            Order::Stop(at) => mailbox.put(Message::Stop(Time::from_nanos(at))),
            Order::Retire(at) => mailbox.put(Message::Retire(Time::from_nanos(at))),
            Order::Drain(at) => mailbox.put(Message::Drain(Time::from_nanos(at))),
            Order::Report(number) => {
                let (to, from) = channel();
                mailbox.put(Message::Report(to));
                // While its loop waits for the disk it does not answer.
                if let Ok(snapshot) = from.recv_timeout(ANSWER_TIME / 2) {
                    let watched = generation.disk.notes().map(Notes::counts);
                    let snapshot = snapshot.with_log(log.map(Writer::counts)).with_watch(watched);
                    let snapshot = snapshot.with_store(generation.store.as_ref().map(|store| store.counts()));
                    send_reply(line, &Reply::Report(number, Box::new(snapshot)));
                }
            }
            Order::Preload(number, site, path) => {
                let line = Arc::clone(line);
                let report = Box::new(move |found| send_reply(&line, &Reply::Preloaded(number, found)));
                mailbox.put(Message::Preload(Arc::new(Mutex::new(Some(Preload { site, path, report })))));
            }
            Order::Beat(number) => {
                if heartbeat.beat(std::slice::from_ref(mailbox), 1) {
                    send_reply(line, &Reply::Turned(number));
                }
            }
            Order::RefreshTls => {
                if let Some(tls) = &generation.tls {
                    tls.refresh(Reread::Now);
                }
            }
            Order::ReopenLog => {
                if let Some(log) = log {
                    log.reopen();
                }
            }
        }
    }
    // The parent has ended.
    mailbox.put(Message::Stop(clock.now()));
}

/// Sends a message to the parent.
fn send_reply(line: &OwnedFd, reply: &Reply) {
    // The parent may have ended.
    let _ = portable::send(line, reply, &[], Patience::Wait);
}

impl Child {
    /// Reads its next message, if it arrives in time.
    fn receive(&mut self, until: Instant) -> bool {
        let received = self.try_receive(until);
        if let Err(error) = &received {
            self.ended |= error.kind() != io::ErrorKind::WouldBlock;
        }
        received.is_ok()
    }

    fn try_receive(&mut self, until: Instant) -> io::Result<()> {
        poll::wait_readable(&[self.line.as_fd()], until.saturating_duration_since(Instant::now()))?;
        match portable::receive(&self.line, &mut Vec::new(), Patience::Now)? {
            Reply::FinalReport(snapshot) => self.final_report = Some(snapshot),
            Reply::Report(number, snapshot) => self.report = Some((number, snapshot)),
            Reply::Preloaded(number, found) => {
                self.unanswered = self.unanswered.saturating_sub(1);
                self.found.push((number, found));
            }
            Reply::Turned(number) => self.beat = number,
        }
        Ok(())
    }
}
