//! Workers as processes: a parent that starts them, replaces those that die, and passes on what it is told.
//!
//! Parent and child talk over a pair of sockets, the *line*. The parent sends orders, the child how it stands. The end of
//! the line is the end of the other side: a child whose parent is gone ends too. The parent has one thread only, as it
//! must have to make copies of itself; what needs more, the log's writer among them, starts in the child.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::process::exit;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use amped_core::event::AnswerKind;
use amped_sys::poll;
use amped_sys::process::{self, Fork};
use amped_sys::signal::Signals;
use amped_units::Time;

use crate::access_log::{Sink, Writer, end_log};
use crate::admin::AdminEndpoint;
use crate::arch;
use crate::clock::Clock;
use crate::config_snapshot::ConfigSnapshot;
use crate::control::Orders;
use crate::counters::Snapshot;
use crate::disk::Disk;
use crate::event_loop::Start;
use crate::listen::Address;
use crate::mailbox::Mailbox;
use crate::message::{Message, Preload};
use crate::metrics::{StatsSlot, StatsSlots};
use crate::notes::Notes;
use crate::say;
use crate::say::die;
use crate::watch::{self, Audience};

/// What a child starts with.
pub struct Parts {
    /// The configuration in force.
    pub generation: Arc<ConfigSnapshot>,
    /// Where it listens. In the parent these are kept nowhere else: what a child has beside, it could not close.
    pub addresses: Vec<Address>,
    /// Opens the log: each child has its own writer on the same file.
    pub log: Option<Sink>,
    /// The time, the same for all.
    pub clock: Clock,
    /// Kept back in the parent, let go in the child.
    pub signals: Signals,
    /// Places for what the children count, if anybody is to know.
    pub slots: Option<StatsSlots>,
}

/// The children.
pub struct Pool {
    parts: Parts,
    /// What was in force before, while that may have to be restored.
    before: Option<(Arc<ConfigSnapshot>, Vec<Address>)>,
    /// The parent's alone: a client that a child held too would not see its end.
    pub admin: Option<AdminEndpoint>,
    children: Vec<Child>,
    /// Moments at which a child that died soon after its start is replaced.
    vacancies: Vec<Instant>,
    /// What those that have ended have done.
    ended: Snapshot,
    /// The number of the last report.
    report: u64,
}

struct Child {
    pid: u32,
    line: UnixStream,
    /// Where it counts.
    slot: Option<StatsSlot>,
    started: Instant,
    /// It has been told to stop.
    stopping: bool,
    /// It has said all that it will say.
    ended: bool,
    /// The last that it has said, at its end.
    last_words: Option<Snapshot>,
    /// What it has said in its last report, and the number of that.
    report: Option<(u64, Snapshot)>,
    /// What it has found for orders, and their numbers.
    found: Vec<(u64, AnswerKind)>,
    /// Orders to look a name up that it has not answered. `unanswered <= UNANSWERED_MAX`
    unanswered: usize,
}

/// A child that has so many names to look up is given no more: the line must never be full.
const UNANSWERED_MAX: usize = 4;

/// A child that lives shorter than this is replaced only after it: what kills it at once would kill the next one too.
const LIFE_MIN: Duration = Duration::from_secs(1);

/// By how much the out-of-memory killer prefers a child to the parent, in thousandths of all memory. Far less than 1000, so
/// that what uses most of the machine's memory still goes first.
const CHILD_OOM_SCORE: i32 = 100;

/// How long a child may take to say how it stands.
const ANSWER_TIME: Duration = Duration::from_secs(1);

/// An order: what, and a number that goes with it.
const ORDER_BYTES: usize = 9;
/// Finish what is under way, until this moment (nanoseconds of the common clock).
const STOP: u8 = b'S';
/// The same because others take its place.
const RETIRE: u8 = b'T';
/// Say how things stand, and that this is the answer to the report of this number.
const REPORT: u8 = b'R';
/// Open the log anew.
const REOPEN_LOG: u8 = b'L';

/// Look up a name anew, and say what it is as the answer to the order of this number. Behind it come the site's number, the
/// length of the path (4 bytes), and the path.
const PRELOAD: u8 = b'P';

/// The longest path that is passed on; the control socket takes none that is longer.
const PATH_MAX: usize = 64 * 1024;

/// The number of the report that a child makes unasked, at its end.
const LAST_WORDS: u64 = u64::MAX;

impl Pool {
    /// Starts as many children as there are workers.
    ///
    /// # Errors
    /// When one cannot be started.
    pub fn start(parts: Parts, admin: Option<AdminEndpoint>) -> io::Result<Pool> {
        let (children, vacancies) = (Vec::new(), Vec::new());
        let mut pool = Pool { parts, before: None, admin, children, vacancies, ended: Snapshot::default(), report: 0 };
        for _ in 0..pool.parts.generation.settings.workers {
            pool.add()?;
        }
        Ok(pool)
    }

    fn add(&mut self) -> io::Result<()> {
        let (ours, theirs) = UnixStream::pair()?;
        let slot = self.parts.slots.as_mut().map(StatsSlots::take);
        // What is on its way to standard error and output would else be written by both.
        io::stdout().flush()?;
        let forked = process::fork().inspect_err(|_| self.give_back(slot.as_ref()))?;
        match forked {
            Fork::Parent(pid) => {
                // A child that is stopped (SIGSTOP) must not stop its parent.
                ours.set_write_timeout(Some(ANSWER_TIME))?;
                self.children.push(Child {
                    pid,
                    line: ours,
                    slot,
                    started: Instant::now(),
                    stopping: false,
                    ended: false,
                    last_words: None,
                    report: None,
                    found: Vec::new(),
                    unanswered: 0,
                });
                Ok(())
            }
            Fork::Child => {
                // Its brothers would not see their parent's end as long as one of them held its end of their lines.
                drop(ours);
                self.children.clear();
                // An address that is given up is closed only when nobody has it open.
                self.before = None;
                self.admin = None;
                self.run(theirs, slot)
            }
        }
    }

    /// Whoever was to count there, or did, does not.
    fn give_back(&mut self, slot: Option<&StatsSlot>) {
        if let (Some(slots), Some(slot)) = (&mut self.parts.slots, slot) {
            slots.give_back(slot);
        }
    }

    /// A child's life.
    fn run(&mut self, line: UnixStream, slot: Option<StatsSlot>) -> ! {
        let Parts { generation, addresses, log, clock, signals, .. } = &mut self.parts;
        signals.leave_to_parent();
        // Where memory runs out, one child is a client's loss, the parent everybody's.
        process::offer_to_memory_killer(CHILD_OOM_SCORE);
        // That it cannot be locked the parent has said.
        let _ = process::lock_program();
        let mailbox = Mailbox::new().unwrap_or_else(|error| die(&format!("cannot make a mailbox: {error}")));
        let mailbox = Arc::new(mailbox);
        let log = log.take().map(|sink| Writer::start(sink.shared(), &generation.settings.log, *clock));
        let log = log.transpose().unwrap_or_else(|error| die(&format!("cannot start the log: {error}")));
        let start = Start {
            generation: Arc::clone(generation),
            listeners: std::mem::take(addresses).into_iter().flat_map(|address| address.listeners).collect(),
            mailbox: Arc::clone(&mailbox),
            log: log.as_ref().map(|(writer, _)| Arc::clone(writer)),
            clock: *clock,
            fork_server: None,
            slot,
        };
        if generation.settings.watch {
            watch::start(&generation.disk, Audience::Workers(vec![Arc::clone(&mailbox)]));
        }
        let orders = line.try_clone().unwrap_or_else(|error| die(&format!("cannot share a line: {error}")));
        let line = Arc::new(Mutex::new(line));
        let (answers, writer, clock) = (Arc::clone(&line), start.log.clone(), *clock);
        let disk = Arc::clone(&generation.disk);
        let listening = thread::Builder::new().name("line".to_owned()).stack_size(128 * 1024);
        let listening = listening.spawn(move || obey(orders, &answers, &mailbox, writer.as_deref(), &disk, clock));
        if let Err(error) = listening {
            die(&format!("cannot start a thread for the parent's orders: {error}"));
        }
        let architecture = generation.settings.architecture;
        let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| arch::run(architecture, start)));
        let snapshot = match ended {
            Ok(Ok(snapshot)) => snapshot,
            Ok(Err(error)) => die(&format!("cannot go on: {error}")),
            Err(_) => die("a loop has failed; this is a bug of amped's"),
        };
        let log = log.map(|log| end_log(log, clock, Time::START));
        let snapshot = snapshot.with_log(log.as_deref().map(Writer::counts));
        let snapshot = snapshot.with_watch(generation.disk.notes().map(Notes::counts));
        tell(&line, REPORT, LAST_WORDS, &snapshot.to_bytes());
        exit(0)
    }

    /// Another configuration comes into force: new children begin with it, the old ones finish what they are at.
    ///
    /// # Errors
    /// When a new one cannot be started; then the old ones go on.
    pub fn renew(&mut self, generation: Arc<ConfigSnapshot>, addresses: Vec<Address>, stop_at: Time) -> io::Result<()> {
        let old = self.children.len();
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
            self.order_to(old.., RETIRE, stop_at.as_nanos());
            return Err(error);
        }
        self.vacancies.clear();
        self.order_to(..old, RETIRE, stop_at.as_nanos());
        Ok(())
    }

    /// The configuration in force.
    pub fn generation(&self) -> &Arc<ConfigSnapshot> {
        &self.parts.generation
    }

    /// Where the children listen.
    pub fn addresses(&self) -> &[Address] {
        &self.parts.addresses
    }

    /// The log has been moved away.
    pub fn reopen_log(&mut self, log: Option<Sink>) {
        if log.is_some() {
            self.parts.log = log;
        }
        self.order_to(.., REOPEN_LOG, 0);
    }

    /// Tells all to finish what is under way, until this moment at the latest, and starts no more.
    pub fn stop(&mut self, at: Time) {
        self.vacancies.clear();
        // Closing them sends new clients elsewhere at once.
        self.parts.addresses.clear();
        self.order_to(.., STOP, at.as_nanos());
    }

    /// Whether none is left.
    pub fn is_empty(&self) -> bool {
        self.children.is_empty()
    }

    /// Ends all that are left, at once.
    pub fn kill(&self) {
        self.children.iter().for_each(|child| process::kill(child.pid));
    }

    fn order_to<R>(&mut self, which: R, what: u8, number: u64)
    where
        R: std::slice::SliceIndex<[Child], Output = [Child]>,
    {
        let mut order = [what; ORDER_BYTES];
        order[1..].copy_from_slice(&number.to_le_bytes());
        for child in &mut self.children[which] {
            child.stopping |= what == STOP || what == RETIRE;
            // One that has died is seen to have.
            let _ = child.line.write_all(&order);
        }
    }

    /// How things stand: the sum, how many have answered, and of how many.
    pub fn report(&mut self) -> (Snapshot, usize, usize) {
        self.report += 1;
        self.order_to(.., REPORT, self.report);
        let mut sum = self.ended.clone();
        let mut answered = 0;
        let until = Instant::now() + ANSWER_TIME;
        for child in &mut self.children {
            while child.report.as_ref().is_none_or(|(number, _)| *number != self.report) && child.hear(until) {}
            if let Some((_, snapshot)) = child.report.take_if(|(number, _)| *number == self.report) {
                sum += &snapshot;
                answered += 1;
            }
        }
        (sum, answered, self.children.len())
    }

    /// What those have done that have ended.
    pub fn ended(&self) -> &Snapshot {
        &self.ended
    }

    /// Takes leave of children that have ended, and replaces those that were not told to.
    pub fn look_after(&mut self) {
        while let Some((pid, ending)) = process::ended_child() {
            let Some(n) = self.children.iter().position(|child| child.pid == pid) else {
                if self.parts.generation.apps.is_manager(pid) {
                    // Without it none could be started any more; a supervisor that sees the server end starts it anew.
                    die(&format!("the process that starts applications {ending}"));
                }
                continue;
            };
            let mut child = self.children.swap_remove(n);
            while child.hear(Instant::now()) {}
            if let Some(last) = child.last_words.take() {
                self.ended += &last.after_the_end();
            }
            self.give_back(child.slot.take().as_ref());
            if child.stopping {
                continue;
            }
            let wait = LIFE_MIN.saturating_sub(child.started.elapsed());
            let when = if wait.is_zero() { "another takes its place" } else { "another is started in a second" };
            say!("process {pid} {ending}; {when}");
            self.vacancies.push(Instant::now() + wait);
        }
        let now = Instant::now();
        for due in std::mem::take(&mut self.vacancies) {
            if due > now {
                self.vacancies.push(due);
            } else if let Err(error) = self.add() {
                say!("cannot start a process: {error}; trying again in a second");
                self.vacancies.push(now + LIFE_MIN);
            }
        }
    }

    /// How long [`look_after`](Pool::look_after) has nothing to do, unless a child ends.
    pub fn patience(&self) -> Duration {
        let next = self.vacancies.iter().min();
        next.map_or(Duration::MAX, |due| due.saturating_duration_since(Instant::now()))
    }
}

impl Orders for Pool {
    fn preload(&mut self, number: u64, site: u16, path: &Arc<[u8]>) -> usize {
        let length = u32::try_from(path.len()).unwrap_or(u32::MAX).to_le_bytes();
        let order = [&[PRELOAD], &number.to_le_bytes()[..], &site.to_le_bytes(), &length, path].concat();
        let serving = self.children.iter_mut().filter(|child| !child.stopping);
        let mut of = 0;
        for child in serving {
            of += 1;
            // One that has not done the last ones is not going to do this one in time.
            if child.unanswered < UNANSWERED_MAX && child.line.write_all(&order).is_ok() {
                child.unanswered += 1;
            }
        }
        of
    }

    fn answers(&mut self, number: u64) -> Vec<AnswerKind> {
        let mut found = Vec::new();
        for child in &mut self.children {
            if poll::wait_readable(&[child.line.as_fd()], Duration::ZERO).is_ok_and(|readable| readable[0]) {
                // Each time one: what comes behind it keeps the line readable. It was written at once, so it is there.
                child.hear(Instant::now());
            }
            found.extend(child.found.drain(..).filter(|(of, _)| *of == number).map(|(_, found)| found));
        }
        found
    }

    fn bells(&self) -> Vec<BorrowedFd<'_>> {
        self.children.iter().filter(|child| !child.ended).map(|child| child.line.as_fd()).collect()
    }
}

/// A child's thread that does what the parent orders.
fn obey(
    mut orders: UnixStream,
    answers: &Arc<Mutex<UnixStream>>,
    mailbox: &Mailbox<Message>,
    log: Option<&Writer>,
    disk: &Disk,
    clock: Clock,
) {
    let mut order = [0; ORDER_BYTES];
    while orders.read_exact(&mut order).is_ok() {
        let [what, number @ ..] = order;
        let number = u64::from_le_bytes(number);
        match what {
            STOP => mailbox.put(Message::Stop(Time::from_nanos(number))),
            RETIRE => mailbox.put(Message::Retire(Time::from_nanos(number))),
            REPORT => {
                let (to, from) = channel();
                mailbox.put(Message::Report(to));
                // While its loop waits for the disk it does not answer.
                if let Ok(snapshot) = from.recv_timeout(ANSWER_TIME / 2) {
                    let snapshot =
                        snapshot.with_log(log.map(Writer::counts)).with_watch(disk.notes().map(Notes::counts));
                    tell(answers, REPORT, number, &snapshot.to_bytes());
                }
            }
            PRELOAD => {
                let Ok((site, path)) = read_name(&mut orders) else { break };
                let answers = Arc::clone(answers);
                let tell = Box::new(move |found: AnswerKind| tell(&answers, PRELOAD, number, &found.to_bytes()));
                mailbox.put(Message::Preload(Arc::new(Mutex::new(Some(Preload { site, path, tell })))));
            }
            REOPEN_LOG => {
                if let Some(log) = log {
                    log.reopen();
                }
            }
            _ => break,
        }
    }
    // The parent is gone.
    mailbox.put(Message::Stop(clock.now()));
}

/// Reads the name that is to be looked up.
fn read_name(orders: &mut UnixStream) -> io::Result<(u16, Arc<[u8]>)> {
    let (mut site, mut length) = ([0; 2], [0; 4]);
    orders.read_exact(&mut site)?;
    orders.read_exact(&mut length)?;
    let length = u32::from_le_bytes(length) as usize;
    if length > PATH_MAX {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut path = vec![0; length];
    orders.read_exact(&mut path)?;
    Ok((u16::from_le_bytes(site), path.into()))
}

/// Says something to the parent: what it is, as the answer to which number, and how long.
fn tell(line: &Mutex<UnixStream>, what: u8, number: u64, said: &[u8]) {
    let length = u16::try_from(said.len()).unwrap_or(u16::MAX).to_le_bytes();
    let bytes = [&[what], &number.to_le_bytes()[..], &length, said].concat();
    // A parent that has gone hears nothing.
    let _ = line.lock().unwrap_or_else(PoisonError::into_inner).write_all(&bytes);
}

impl Child {
    /// Takes in what it says next, if it does in time.
    fn hear(&mut self, until: Instant) -> bool {
        let heard = self.try_hear(until);
        if let Err(error) = &heard {
            self.ended |= error.kind() != io::ErrorKind::WouldBlock;
        }
        heard.is_ok()
    }

    fn try_hear(&mut self, until: Instant) -> io::Result<()> {
        // A timeout of zero would be none.
        let patience = until.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
        self.line.set_read_timeout(Some(patience))?;
        let mut head = [0; 11];
        self.line.read_exact(&mut head)?;
        let [what, number @ .., low, high] = head;
        let number = u64::from_le_bytes(number);
        let mut said = vec![0; u16::from_le_bytes([low, high]).into()];
        self.line.read_exact(&mut said)?;
        match what {
            REPORT if number == LAST_WORDS => self.last_words = Some(Snapshot::from_bytes(&said)),
            REPORT => self.report = Some((number, Snapshot::from_bytes(&said))),
            _ => {
                self.unanswered = self.unanswered.saturating_sub(1);
                self.found.extend(AnswerKind::from_bytes(&said).map(|found| (number, found)));
            }
        }
        Ok(())
    }
}
