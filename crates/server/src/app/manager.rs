//! The process manager: starts the applications of `command` rules, one process for each permit of their semaphore,
//! and supervises them until the server exits.
//!
//! It is a thread that lives as long as the server or, if workers are processes, a process that outlives all of
//! them. The kernel kills a program when the *thread* that started it ends (`PR_SET_PDEATHSIG`), so no loop, helper
//! or worker may start one that outlives it.
//!
//! It works like inetd. Each slot has a listening socket, in a directory that only this user can enter, and the
//! manager waits for connections at the sockets of slots without a process. The first connection starts the process,
//! which gets the socket as its standard input (FastCGI 1.0, section 2.2) and accepts the waiting connection. So a
//! loop never requests a process: it connects, and a process that dies between two requests costs none of them. A
//! process that dies right after its start is restarted with a delay that doubles; requests wait through a short
//! delay, and get a FastCGI error during a long one.
//!
//! A loop that holds a permit reports its use, and requests the end of its process, on a channel of the application.
//! The last loop to drop its end of the channel closes it, in whatever process, so the end of the channel is the end of
//! the application's rule: a reload that leaves the rule unchanged keeps the channel and the processes.
//!
//! The manager of a server that is confined (`confine`) is a process in every architecture, forked before that, and starts all
//! other programs too ([`ProcessManager::launch`]): the confined processes may not, and the programs would be confined as well. Each has
//! a *link* between the manager and the part of the server that wants it: a description and descriptors go one way, the process
//! ID and how it has ended the other. A script ends with its link.

use std::collections::HashMap;
use std::fs::{self, DirBuilder, File};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use amped_http::fastcgi;
use amped_sys::file::Patience;
use amped_sys::signal::Signals;
use amped_sys::slots::Slots;
use amped_sys::{local, poll, process, socket};
use serde::{Deserialize, Serialize};

use super::launch::{self, Launch, Life, PATH, Permitted, Stream, variable};
use super::process::{self as program, Ended, Process};
use super::semaphore::{Permit, Semaphore};
use crate::portable;
use crate::say;
use crate::say::die;

/// The server's handle of the process manager.
#[derive(Debug)]
pub struct ProcessManager {
    /// Receives applications. Closing it means that the server has ended.
    control: OwnedFd,
    runs: Mutex<Option<Runs>>,
    semaphores: Semaphores,
    next: AtomicU64,
}

#[derive(Debug)]
enum Runs {
    Thread(JoinHandle<()>),
    Process(u32),
}

/// The semaphores of applications whose manager is a thread, by the application's number.
type Semaphores = Arc<Mutex<HashMap<u64, Weak<Semaphore>>>>;

/// An application that the manager runs.
#[derive(Debug)]
pub struct Application {
    number: u64,
    folder: PathBuf,
    channel: OwnedFd,
    /// When the manager was last notified that a slot is in use, in milliseconds since `start`.
    notified_ms: Vec<AtomicU64>,
    start: Instant,
}

/// A status for a request that was not accepted, in addition to those of
/// FastCGI 1.0: the application cannot be started.
pub const CANNOT_START: u8 = 255;

/// A message to the manager from the holder of a permit.
#[derive(Serialize, Deserialize)]
enum Notice {
    /// It is in use.
    Used(usize),
    /// End its process, with all connections that it has accepted or that wait.
    End(usize),
}

/// Minimum interval between reports of the use of a slot, in milliseconds.
const NOTIFY_MS: u64 = 1000;

/// A message from the server to the manager.
#[derive(Serialize, Deserialize)]
enum Order {
    /// Run this application.
    Run(Description),
    /// Start the program that is described on the link that is sent along.
    Launch,
}

/// An application, as the server describes it to the manager.
#[derive(Serialize, Deserialize)]
struct Description {
    number: u64,
    places: usize,
    reserve: usize,
    command: Vec<String>,
    env: Vec<(Box<str>, Box<str>)>,
}

impl ProcessManager {
    /// Starts the manager: as a process (`own_process`; the caller must be single-threaded), or as a thread.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn start(own_process: bool) -> io::Result<ProcessManager> {
        ProcessManager::run(own_process, None, || Ok(()))
    }

    /// Starts a manager that is a process, and starts nothing but this. It first calls `give_up_rights`. The caller must be
    /// single-threaded.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn start_launcher(
        permitted: Permitted,
        give_up_rights: impl FnOnce() -> Result<(), String>,
    ) -> io::Result<ProcessManager> {
        ProcessManager::run(true, Some(permitted), give_up_rights)
    }

    fn run(
        own_process: bool,
        permitted: Option<Permitted>,
        give_up_rights: impl FnOnce() -> Result<(), String>,
    ) -> io::Result<ProcessManager> {
        let (ours, theirs) = socket::packet_pair()?;
        let semaphores = Semaphores::default();
        let runs = match own_process {
            true => {
                // Otherwise both processes would write buffered standard output.
                io::stdout().flush()?;
                Runs::Process(process::split_off(theirs, |control| {
                    if let Ok(signals) = Signals::block() {
                        signals.leave_to_parent();
                    }
                    process::set_name(c"app-manager");
                    give_up_rights().unwrap_or_else(|message| die(&message));
                    run(control, None, permitted);
                })?)
            }
            false => {
                let semaphores = Arc::clone(&semaphores);
                let life = move || run(theirs, Some(semaphores), permitted);
                Runs::Thread(std::thread::Builder::new().name("app-manager".to_owned()).spawn(life)?)
            }
        };
        Ok(ProcessManager { control: ours, runs: Mutex::new(Some(runs)), semaphores, next: AtomicU64::new(0) })
    }

    /// Registers an application: program and arguments, variables, its semaphore,
    /// and the number of processes kept when idle.
    ///
    /// # Errors
    /// When the directory of the sockets cannot be created, or descriptors are short.
    pub fn add(
        &self,
        command: &[String],
        env: &[(Box<str>, Box<str>)],
        (semaphore, places): (&Arc<Semaphore>, usize),
        reserve: usize,
    ) -> io::Result<Application> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let (ours, theirs) = socket::packet_pair()?;
        let description = Description { number, places, reserve, command: command.into(), env: env.into() };
        self.semaphores.lock().unwrap_or_else(PoisonError::into_inner).insert(number, Arc::downgrade(semaphore));
        let descriptors: Vec<BorrowedFd<'_>> =
            [theirs.as_fd()].into_iter().chain(semaphore.slots().map(AsFd::as_fd)).collect();
        portable::send(&self.control, &Order::Run(description), &descriptors, Patience::Wait).map_err(too_long)?;
        let answer: Result<String, String> = portable::receive(&self.control, &mut Vec::new(), Patience::Wait)
            .map_err(|error| io::Error::other(format!("the process manager does not answer: {error}")))?;
        let folder = answer.map_err(io::Error::other)?.into();
        let notified_ms = (0..places).map(|_| AtomicU64::new(0)).collect();
        Ok(Application { number, folder, channel: ours, notified_ms, start: Instant::now() })
    }

    /// Makes the manager start a program with these descriptors. Returns its process ID, and its link. Waits until the program
    /// was read from the disk.
    ///
    /// # Errors
    /// Those of [`launch::start`].
    fn launch(&self, launch: &Launch, descriptors: &[OwnedFd]) -> io::Result<(u32, OwnedFd)> {
        let (link, theirs) = socket::packet_pair()?;
        portable::send(&self.control, &Order::Launch, &[theirs.as_fd()], Patience::Wait)?;
        drop(theirs);
        let descriptors: Vec<BorrowedFd<'_>> = descriptors.iter().map(AsFd::as_fd).collect();
        let mut parts = descriptors.chunks(socket::DESCRIPTORS_MAX);
        let first = parts.next().unwrap_or_default();
        portable::send(&link, &(launch, descriptors.len()), first, Patience::Wait).map_err(too_long)?;
        parts.try_for_each(|part| portable::send(&link, &part.len(), part, Patience::Wait))?;
        let answer: Result<u32, Option<i32>> = portable::receive(&link, &mut Vec::new(), Patience::Wait)
            .map_err(|error| io::Error::other(format!("the process manager does not answer: {error}")))?;
        match answer {
            Ok(pid) => Ok((pid, link)),
            Err(number) => Err(number.map_or_else(|| io::ErrorKind::Other.into(), io::Error::from_raw_os_error)),
        }
    }

    /// Returns how the manager has ended, if it is a process and has.
    pub fn has_ended(&self) -> Option<process::Ending> {
        match &*self.runs.lock().unwrap_or_else(PoisonError::into_inner) {
            Some(Runs::Process(pid)) => process::has_ended(*pid),
            Some(Runs::Thread(_)) | None => None,
        }
    }

    /// Returns whether this process ID is the manager's.
    pub fn is_process(&self, pid: u32) -> bool {
        let runs = self.runs.lock().unwrap_or_else(PoisonError::into_inner);
        matches!(&*runs, Some(Runs::Process(own)) if *own == pid)
    }

    /// Ends the manager and all applications, and waits until their directory is removed.
    pub fn stop(&self) {
        // It has ended already, or ends now.
        let _ = socket::half_close(&self.control);
        match self.runs.lock().unwrap_or_else(PoisonError::into_inner).take() {
            Some(Runs::Thread(thread)) => drop(thread.join()),
            Some(Runs::Process(pid)) => drop(process::wait_for(pid)),
            None => {}
        }
    }
}

fn too_long(error: io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::InvalidInput => io::Error::other("its command and variables are longer than 128 KiB"),
        _ => error,
    }
}

/// Starts a program with these descriptors, and the permit: by this manager, or as a child of this thread.
///
/// # Errors
/// Those of [`launch::start`]; the permit is still there then, unless the program cannot be watched.
pub fn start_program(
    launcher: Option<&ProcessManager>,
    launch: &Launch,
    descriptors: Vec<OwnedFd>,
    permit: &mut Option<Permit>,
) -> io::Result<Process> {
    match launcher {
        Some(manager) => {
            let (pid, link) = manager.launch(launch, &descriptors)?;
            Ok(Process::remote(pid, link, launch.life, permit.take()))
        }
        None => Process::new(launch::start(launch, descriptors, None)?, launch.life, permit.take()),
    }
}

impl Application {
    /// Returns the socket path of a slot.
    pub fn name(&self, place: usize) -> PathBuf {
        self.folder.join(format!("{}-{place}", self.number))
    }

    /// Reports that the slot is in use by the holder of its permit.
    pub fn note_use(&self, place: usize) {
        let now = u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX).max(1);
        let notified = self.notified_ms[place].load(Ordering::Relaxed);
        if notified == 0 || now >= notified + NOTIFY_MS {
            self.notified_ms[place].store(now, Ordering::Relaxed);
            self.notify(&Notice::Used(place));
        }
    }

    /// Ends the process of a slot; for the holder of its permit. Its connection then ends, and the permit must be held
    /// until then. Returns `false` if the message cannot be sent now.
    pub fn end(&self, place: usize) -> bool {
        self.notify(&Notice::End(place))
    }

    fn notify(&self, notice: &Notice) -> bool {
        // If the manager has ended, its processes have too.
        let sent = portable::send(&self.channel, notice, &[], Patience::Now);
        sent.err().is_none_or(|error| error.kind() != io::ErrorKind::WouldBlock)
    }
}

/// The manager's main loop: runs until the other end of `control` is closed. `semaphores`: it is a thread of the server.
fn run(control: OwnedFd, semaphores: Option<Semaphores>, permitted: Option<Permitted>) {
    let (kept, launched, idle_timeout) = (Vec::new(), Vec::new(), IDLE_TIMEOUT);
    let mut manager = Manager { control, semaphores, permitted, folder: None, kept, launched, idle_timeout };
    loop {
        match manager.turn() {
            Ok(true) => {}
            Ok(false) => return,
            Err(error) => die(&format!("the process manager failed: {error}")),
        }
    }
}

struct Manager {
    control: OwnedFd,
    semaphores: Option<Semaphores>,
    /// What may be started; `None`: everything.
    permitted: Option<Permitted>,
    /// Created for the first application.
    folder: Option<Folder>,
    kept: Vec<Kept>,
    launched: Vec<Launched>,
    idle_timeout: Duration,
}

/// A program that the server has requested.
struct Launched {
    /// `None`: nobody waits for it.
    link: Option<OwnedFd>,
    /// `None`: it was not started yet, or has ended.
    process: Option<Process>,
    life: Life,
}

/// An application and its processes.
struct Kept {
    command: Vec<String>,
    env: Vec<(Box<str>, Box<str>)>,
    reserve: usize,
    semaphore: Weak<Semaphore>,
    /// The semaphore, if it belongs to this process.
    _own: Option<Arc<Semaphore>>,
    channel: OwnedFd,
    places: Vec<Place>,
}

/// A slot: its socket, and its process if it has one.
struct Place {
    name: PathBuf,
    listener: UnixListener,
    process: Option<Process>,
    started: Instant,
    used: Instant,
    /// A loop has requested its end: connections that wait at the socket belong to that loop, and are dropped.
    is_unwanted: bool,
    /// It is idle and being ended; the permit is held until it has ended.
    closed: Option<Permit>,
    /// The earliest time of the next start,
    not_before: Instant,
    /// and the delay after a process that died too soon. `pause <= PAUSE_MAX`
    pause: Duration,
}

/// A process that ends sooner than this has failed to start.
const LIFE_MIN: Duration = Duration::from_secs(1);
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(10);

/// A request waits through a restart delay up to this long; with a longer one it is refused.
const HOLD: Duration = Duration::from_secs(1);

/// Time after which an unused process beyond the reserve is stopped; the default of helpers.
const IDLE_TIMEOUT: Duration = Duration::from_secs(10);

/// Interval at which idle processes are looked for.
const SWEEP: Duration = Duration::from_secs(1);

/// The object that an event of the manager belongs to.
enum Source {
    Control,
    /// The channel of an application.
    Channel(usize),
    /// The end of the process of a slot.
    Process(usize, usize),
    /// A connection at a slot without a process.
    Listener(usize, usize),
    /// The link of a program, or its end.
    Launched(usize),
}

impl Manager {
    /// Waits for events and handles them. Returns `false` when the server has ended.
    fn turn(&mut self) -> io::Result<bool> {
        let (ready, now) = self.wait()?;
        let mut unused = Vec::new();
        for source in ready {
            match source {
                Source::Control => {
                    if !self.take_order() {
                        self.kept.clear();
                        self.launched.clear();
                        self.folder = None;
                        return Ok(false);
                    }
                }
                Source::Channel(app) => {
                    if !self.kept[app].handle_messages() {
                        unused.push(app);
                    }
                }
                Source::Process(app, place) => self.kept[app].look_after(place),
                Source::Listener(app, place) => self.kept[app].serve(place, now),
                Source::Launched(number) => self.launched[number].turn(self.permitted.as_ref()),
            }
        }
        self.launched.retain(|launched| launched.link.is_some() || launched.process.is_some());
        for app in unused.into_iter().rev() {
            // Dropping them ends their processes.
            self.kept.remove(app);
        }
        for kept in &mut self.kept {
            kept.sweep(self.idle_timeout);
        }
        Ok(true)
    }

    fn wait(&self) -> io::Result<(Vec<Source>, Instant)> {
        let now = Instant::now();
        let mut sources = vec![(Source::Control, self.control.as_fd())];
        let mut patience = Duration::MAX;
        for (number, Launched { link, process, .. }) in self.launched.iter().enumerate() {
            let process = process.iter().map(|process| process.watch.as_fd());
            let both = link.iter().map(AsFd::as_fd).chain(process);
            sources.extend(both.map(|descriptor| (Source::Launched(number), descriptor)));
        }
        for (app, kept) in self.kept.iter().enumerate() {
            sources.push((Source::Channel(app), kept.channel.as_fd()));
            if kept.alive() > kept.reserve {
                patience = patience.min(SWEEP);
            }
            for (number, place) in kept.places.iter().enumerate() {
                let pause = place.not_before.saturating_duration_since(now);
                match &place.process {
                    Some(process) => sources.push((Source::Process(app, number), process.watch.as_fd())),
                    None if pause.is_zero() || pause > HOLD => {
                        sources.push((Source::Listener(app, number), place.listener.as_fd()));
                        if !pause.is_zero() {
                            patience = patience.min(pause - HOLD);
                        }
                    }
                    None => patience = patience.min(pause),
                }
            }
        }
        let descriptors: Vec<BorrowedFd<'_>> = sources.iter().map(|(_, descriptor)| *descriptor).collect();
        let ready = poll::wait_readable(&descriptors, patience)?;
        let sources = sources.into_iter().zip(ready).filter_map(|((source, _), ready)| ready.then_some(source));
        Ok((sources.collect(), Instant::now()))
    }

    /// Receives an application, or a program to start. Returns `false` when the server has ended.
    fn take_order(&mut self) -> bool {
        let mut descriptors = Vec::new();
        let answer = match portable::receive(&self.control, &mut descriptors, Patience::Wait) {
            Ok(Order::Launch) => {
                // Without its link, as this process is out of descriptors, the server sees the end of it.
                let link = descriptors.into_iter().next();
                self.launched.extend(link.map(|link| Launched {
                    link: Some(link),
                    process: None,
                    life: Life::Request,
                }));
                return true;
            }
            Ok(Order::Run(description)) => self.add(description, descriptors).map_err(|error| error.to_string()),
            Err(error) if error.kind() == io::ErrorKind::InvalidData => Err(error.to_string()),
            Err(_) => return false,
        };
        // A server that has ended reads no answer; its end is noticed.
        let _ = portable::send(&self.control, &answer, &[], Patience::Wait);
        true
    }

    fn add(&mut self, description: Description, descriptors: Vec<OwnedFd>) -> io::Result<String> {
        let unreadable = || io::Error::other("it received an invalid message; this is a bug in amped");
        let Description { number, places, reserve, command, env } = description;
        let application = (command, env);
        if self.permitted.as_ref().is_some_and(|permitted| !permitted.applications.contains(&application)) {
            return Err(io::Error::other(format!("{} was not configured at the start", application.0.join(" "))));
        }
        let (command, env) = application;
        let mut descriptors = descriptors.into_iter();
        // Lost if this process is out of descriptors.
        let channel =
            descriptors.next().ok_or_else(|| io::Error::other("the process manager is out of descriptors"))?;
        let (semaphore, own) = match &self.semaphores {
            Some(semaphores) => {
                let semaphore = semaphores.lock().unwrap_or_else(PoisonError::into_inner).remove(&number);
                (semaphore.ok_or_else(unreadable)?, None)
            }
            None => {
                let slots = descriptors.next().ok_or_else(unreadable)?;
                let semaphore = Arc::new(Semaphore::of_slots(places, Slots::of(slots)));
                (Arc::downgrade(&semaphore), Some(semaphore))
            }
        };
        if self.folder.is_none() {
            self.folder = Some(Folder::create()?);
        }
        let folder = self.folder.as_ref().map(|folder| &folder.path).ok_or_else(unreadable)?;
        let places = (0..places).map(|place| Place::new(folder.join(format!("{number}-{place}"))));
        let places = places.collect::<io::Result<_>>()?;
        self.kept.push(Kept { command, env, reserve, semaphore, _own: own, channel, places });
        Ok(folder.display().to_string())
    }
}

impl Kept {
    fn alive(&self) -> usize {
        self.places.iter().filter(|place| place.process.is_some()).count()
    }

    /// Handles the loops' messages. Returns `false` when no loop uses the application any more.
    fn handle_messages(&mut self) -> bool {
        loop {
            let notice = match portable::receive(&self.channel, &mut Vec::new(), Patience::Now) {
                Ok(notice) => notice,
                Err(error) => return error.kind() == io::ErrorKind::WouldBlock,
            };
            let (Notice::Used(number) | Notice::End(number)) = notice;
            let Some(place) = self.places.get_mut(number) else { continue };
            place.used = Instant::now();
            if matches!(notice, Notice::End(_)) {
                match &place.process {
                    Some(process) => {
                        process.kill();
                        place.is_unwanted = true;
                    }
                    None => place.reject(None),
                }
            }
        }
    }

    /// Reaps the process of a slot if it has ended.
    fn look_after(&mut self, number: usize) {
        let place = &mut self.places[number];
        let Some(ending) = place.process.as_mut().and_then(Process::ended) else {
            return;
        };
        place.process = None;
        if place.closed.take().is_some() {
            return;
        }
        if std::mem::take(&mut place.is_unwanted) {
            return place.reject(None);
        }
        match place.started.elapsed() < LIFE_MIN {
            true => place.back_off(),
            false => place.pause = Duration::ZERO,
        }
        let when = if place.pause.is_zero() { "on demand".to_owned() } else { format!("in {:?}", place.pause) };
        say!("{} {ending}; restarting {when}", self.command[0]);
    }

    /// Starts the process of a slot at which a connection waits, or refuses the connection during a long delay.
    fn serve(&mut self, number: usize, now: Instant) {
        let place = &mut self.places[number];
        if now < place.not_before {
            return place.reject(Some(fastcgi::OVERLOADED));
        }
        let started = place.listener.try_clone().map(OwnedFd::from);
        match started.and_then(|listener| start(&self.command, &self.env, listener)) {
            Ok(process) => (place.process, place.started, place.used) = (Some(process), now, now),
            Err(error) => {
                say!("cannot start {}: {error}", self.command[0]);
                place.back_off();
                place.reject(Some(CANNOT_START));
            }
        }
    }

    /// Ends processes beyond the reserve that have been idle for so long.
    fn sweep(&mut self, idle_timeout: Duration) {
        let mut alive = self.alive();
        let Some(semaphore) = self.semaphore.upgrade() else { return };
        for (number, place) in self.places.iter_mut().enumerate().rev() {
            let is_idle = alive > self.reserve && place.used.elapsed() >= idle_timeout && place.closed.is_none();
            if let Some(process) = place.process.as_ref().filter(|_| is_idle)
                && let Some(permit) = semaphore.enter_at(number)
            {
                process.kill();
                place.closed = Some(permit);
                alive -= 1;
            }
        }
    }
}

impl Launched {
    /// Handles what has happened to it, or what the server requests.
    fn turn(&mut self, permitted: Option<&Permitted>) {
        let Some(process) = &mut self.process else { return self.begin(permitted) };
        if process.has_ended() {
            if let (Some(link), Some(ending)) = (&self.link, process.ended()) {
                // The server may not wait for it any more.
                let _ = portable::send(link, &Ended(ending), &[], Patience::Now);
            }
            (self.link, self.process) = (None, None);
            return;
        }
        let Some(link) = &self.link else { return };
        match portable::receive(link, &mut Vec::new(), Patience::Now) {
            Ok(program::Order::Kill) => process.kill(),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(_) => {
                self.link = None;
                if self.life == Life::Request {
                    process.kill();
                }
            }
        }
    }

    /// Starts it, once it is described.
    fn begin(&mut self, permitted: Option<&Permitted>) {
        let Some(link) = &self.link else { return };
        let started = receive_launch(link).and_then(|(launch, descriptors)| {
            self.life = launch.life;
            let is_permitted = permitted.map_or(Ok(()), |permitted| permitted.permits(&launch, &descriptors));
            is_permitted.inspect_err(|error| {
                if error.kind() == io::ErrorKind::PermissionDenied {
                    say!(
                        "{} is not among the programs that this server was limited to at its start",
                        launch.program().display()
                    );
                }
            })?;
            let user = launch.user.as_ref().and_then(|user| permitted?.user(user));
            Process::new(launch::start(&launch, descriptors, user)?, launch.life, None)
        });
        let answer = match &started {
            Ok(process) => Ok(process.id()),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
            Err(error) => Err(error.raw_os_error()),
        };
        let _ = portable::send(link, &answer, &[], Patience::Now);
        self.process = started.ok();
        if self.process.is_none() {
            self.link = None;
        }
    }
}

/// Receives the description of a program, and its descriptors.
fn receive_launch(link: &OwnedFd) -> io::Result<(Launch, Vec<OwnedFd>)> {
    let mut descriptors = Vec::new();
    let (launch, count): (Launch, usize) = portable::receive(link, &mut descriptors, Patience::Now)?;
    let mut received = descriptors.len().min(socket::DESCRIPTORS_MAX);
    while received < count {
        let part: usize = portable::receive(link, &mut descriptors, Patience::Wait)?;
        received += part.max(1);
    }
    match descriptors.len() == count {
        true => Ok((launch, descriptors)),
        false => Err(io::Error::from_raw_os_error(portable::NO_DESCRIPTORS)),
    }
}

fn start(command: &[String], env: &[(Box<str>, Box<str>)], listener: OwnedFd) -> io::Result<Process> {
    let program = Path::new(&command[0]);
    let mut launch = Launch::new(program, Life::Request);
    launch.arguments = command[1..].iter().map(Into::into).collect();
    launch.variables = vec![variable(b"PATH", PATH.as_bytes())];
    launch.variables.extend(env.iter().map(|(name, value)| variable(name.as_bytes(), value.as_bytes())));
    let folder = program.parent().filter(|folder| folder.is_absolute());
    launch.folder = Some(folder.unwrap_or(Path::new("/")).into());
    // Its standard error outside of requests is the server's standard error.
    launch.streams = [Stream::Given, Stream::Null, Stream::Inherited];
    Process::new(launch::start(&launch, vec![listener], None)?, launch.life, None)
}

impl Place {
    fn new(name: PathBuf) -> io::Result<Place> {
        let listener = local::listen(&name)?;
        // The application's own accept may block.
        listener.set_nonblocking(false)?;
        let now = Instant::now();
        let (process, closed, pause) = (None, None, Duration::ZERO);
        Ok(Place {
            name,
            listener,
            process,
            started: now,
            used: now,
            is_unwanted: false,
            closed,
            not_before: now,
            pause,
        })
    }

    fn back_off(&mut self) {
        self.pause = (self.pause * 2).clamp(PAUSE_MIN, PAUSE_MAX);
        self.not_before = Instant::now() + self.pause;
    }

    /// Closes the connections that wait at the socket, after answering with `status` if there is one.
    fn reject(&self, status: Option<u8>) {
        while poll::wait_readable(&[self.listener.as_fd()], Duration::ZERO).is_ok_and(|readable| readable[0]) {
            let Ok((mut stream, _)) = self.listener.accept() else { return };
            if let Some(status) = status {
                let mut answer = Vec::new();
                fastcgi::refusal(&mut answer, status);
                // Read the request first: closing with unread data would reset the connection. None of this blocks.
                let _ = stream.set_nonblocking(true);
                let _ = stream.read(&mut vec![0; 64 * 1024]);
                let _ = stream.write(&answer);
            }
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.name);
    }
}

/// The directory of the sockets, removed when the server ends. That of a killed server is
/// removed by the next one that creates its own.
#[derive(Debug)]
struct Folder {
    path: PathBuf,
    /// Locked during the server's life.
    _lock: File,
}

/// The prefix of directory names, and the file whose content and lock show that a directory is amped's and in use.
const PREFIX: &str = "amped-";
const LOCK: &str = "lock";

impl Folder {
    /// Creates one in the service manager's runtime directory (systemd.exec(5)), or in the directory for temporary
    /// files if there is none or it is not writable: the runtime directory belongs to root if root started the server.
    fn create() -> io::Result<Folder> {
        let given = std::env::var_os("RUNTIME_DIRECTORY");
        let first = given.as_ref().and_then(|given| std::env::split_paths(given).next());
        match first.filter(|path| path.is_dir()).map(|path| Folder::new(&path)) {
            Some(Err(error)) if error.kind() == io::ErrorKind::PermissionDenied => {}
            Some(made) => return made,
            None => {}
        }
        Folder::new(&std::env::temp_dir())
    }

    fn new(parent: &Path) -> io::Result<Folder> {
        remove_stale(parent);
        loop {
            let path = parent.join(format!("{PREFIX}{:08x}", RandomState::new().build_hasher().finish() as u32));
            match DirBuilder::new().mode(0o700).create(&path) {
                Ok(()) => {
                    let mut lock = File::create_new(path.join(LOCK))?;
                    lock.try_lock().map_err(io::Error::from)?;
                    // The content is written only after locking, so that a new
                    // directory is never taken for a stale one.
                    lock.write_all(mark_of(&path)?.as_bytes())?;
                    return Ok(Folder { path, _lock: lock });
                }
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(io::Error::new(error.kind(), format!("{}: {error}", path.display()))),
            }
        }
    }
}

/// The content of a directory's lock file: it names the directory, so that a copy is not taken for the original.
fn mark_of(folder: &Path) -> io::Result<String> {
    let state = fs::symlink_metadata(folder)?;
    Ok(format!("sockets of applications of amped; folder {}:{}\n", state.dev(), state.ino()))
}

/// Removes directories of servers that were killed.
fn remove_stale(parent: &Path) {
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        if entry.file_name().to_str().is_some_and(|name| name.starts_with(PREFIX)) {
            let _ = remove_if_stale(&entry.path());
        }
    }
}

/// Removes a directory whose lock file shows that it is amped's and not in use. Only known files are removed, so a
/// directory with anything else in it stays.
fn remove_if_stale(folder: &Path) -> io::Result<()> {
    let (state, name) = (fs::symlink_metadata(folder)?, folder.join(LOCK));
    if !state.is_dir() || !process::is_user(state.uid()) || !fs::symlink_metadata(&name)?.is_file() {
        return Ok(());
    }
    let mut lock = File::open(&name)?;
    let mut mark = String::new();
    (&mut lock).take(1024).read_to_string(&mut mark)?;
    if mark != mark_of(folder)? || lock.try_lock().is_err() {
        return Ok(());
    }
    remove(folder)
}

fn remove(folder: &Path) -> io::Result<()> {
    let entries = fs::read_dir(folder)?.collect::<io::Result<Vec<_>>>()?;
    let is_ours =
        |entry: &fs::DirEntry| entry.file_name() == LOCK || entry.file_type().is_ok_and(|kind| kind.is_socket());
    if entries.iter().all(is_ours) {
        entries.iter().try_for_each(|entry| fs::remove_file(entry.path()))?;
        fs::remove_dir(folder)?;
    }
    Ok(())
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = remove(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;

    /// A manager without a thread, and an application with two slots.
    struct Bench {
        manager: Manager,
        application: Application,
        semaphore: Arc<Semaphore>,
        control: OwnedFd,
        _parent: tempfile::TempDir,
    }

    fn bench(command: &[&str], reserve: usize) -> Bench {
        let parent = tempfile::tempdir().expect("a directory");
        let (ours, theirs) = socket::packet_pair().expect("made");
        let semaphore = Arc::new(Semaphore::new(Some(2), 0, false).expect("made"));
        let semaphores: Semaphores = Arc::new(Mutex::new(HashMap::from([(0, Arc::downgrade(&semaphore))])));
        let folder = Folder::new(parent.path()).expect("made");
        let path = folder.path.clone();
        let (control, semaphores) = (theirs, Some(semaphores));
        let idle_timeout = Duration::from_secs(1000);
        let (kept, launched) = (Vec::new(), Vec::new());
        let (permitted, folder) = (None, Some(folder));
        let mut manager = Manager { control, semaphores, permitted, folder, kept, launched, idle_timeout };
        let (channel, its_end) = socket::packet_pair().expect("made");
        let command = command.iter().map(|&word| word.to_owned()).collect();
        let description = Description { number: 0, places: 2, reserve, command, env: Vec::new() };
        manager.add(description, vec![its_end]).expect("taken");
        let notified_ms = [0, 0].map(AtomicU64::new).into();
        let application = Application { number: 0, folder: path, channel, notified_ms, start: Instant::now() };
        Bench { manager, application, semaphore, control: ours, _parent: parent }
    }

    impl Bench {
        fn connect(&self, place: usize) -> UnixStream {
            local::connect(&self.application.name(place), Duration::from_secs(60)).expect("a listener")
        }

        fn turn_until(&mut self, what: &str, holds: impl Fn(&Kept) -> bool) {
            let start = Instant::now();
            while !holds(&self.manager.kept[0]) {
                assert!(start.elapsed() < Duration::from_secs(60), "timed out waiting for {what}");
                self.manager.turn().expect("the manager continues");
            }
        }
    }

    fn status_of(mut stream: UnixStream) -> Option<u8> {
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).ok()?;
        match fastcgi::RecordReader::default().next(&answer).expect("a record").said {
            fastcgi::Said::Refused(status) => Some(status),
            _ => None,
        }
    }

    #[test]
    fn crash_looping_process_backs_off_and_fails_its_requests() {
        let mut bench = bench(&["/bin/false"], 0);
        let waits = bench.connect(0);
        // Connections wait through the short delays.
        bench.turn_until("a long restart delay", |kept| kept.places[0].pause > HOLD);
        bench.manager.turn().expect("the manager continues");
        assert_eq!(status_of(waits), Some(fastcgi::OVERLOADED));
        assert!(bench.manager.kept[0].places[1].pause.is_zero(), "the other slot is unaffected");
    }

    #[test]
    fn missing_program_fails_its_requests() {
        let mut bench = bench(&["/there/is/none"], 0);
        let waits = bench.connect(0);
        bench.manager.turn().expect("the manager continues");
        assert_eq!(status_of(waits), Some(CANNOT_START));
    }

    #[test]
    fn unused_processes_stop_except_reserve() {
        let mut bench = bench(&["/bin/sleep", "1000"], 1);
        let connections = [0, 1].map(|place| bench.connect(place));
        bench.turn_until("two processes", |kept| kept.alive() == 2);
        let held = bench.semaphore.enter_at(1).expect("free");
        bench.manager.idle_timeout = Duration::ZERO;
        bench.turn_until("the exit of one process", |kept| kept.alive() == 1);
        assert!(bench.manager.kept[0].places[1].process.is_some(), "a held permit keeps its process");
        assert!(bench.semaphore.enter_at(0).is_some(), "its permit is free again");
        drop((held, connections));
    }

    #[test]
    fn loop_terminates_process_with_its_waiting_requests() {
        let mut bench = bench(&["/bin/sleep", "1000"], 2);
        let waits = bench.connect(0);
        bench.turn_until("a process", |kept| kept.alive() == 1);
        assert!(bench.application.end(0));
        bench.turn_until("the exit of the process", |kept| kept.alive() == 0);
        assert_eq!(status_of(waits), None, "closed without a response");
        // No process is started for an abandoned connection.
        drop(bench.connect(1));
        bench.turn_until("a process in the other slot", |kept| kept.places[1].process.is_some());
        assert!(bench.manager.kept[0].places[0].process.is_none());
    }

    #[test]
    fn application_stops_when_dropped_and_directory_is_removed_at_exit() {
        let mut bench = bench(&["/bin/sleep", "1000"], 2);
        let _waits = bench.connect(0);
        bench.turn_until("a process", |kept| kept.alive() == 1);
        let (folder, socket) = (bench.application.folder.clone(), bench.application.name(0));
        drop(bench.application);
        while !bench.manager.kept.is_empty() {
            bench.manager.turn().expect("the manager continues");
        }
        assert!(!socket.exists() && folder.exists());
        drop(bench.control);
        assert!(!bench.manager.turn().expect("ends"));
        assert!(!folder.exists());
    }

    #[test]
    fn only_directory_of_killed_server_is_removed() {
        let parent = tempfile::tempdir().expect("a directory");
        let make = |name: &str, mark: Option<&str>| {
            let path = parent.path().join(name);
            fs::create_dir(&path).expect("made");
            let mark = mark.map_or_else(|| mark_of(&path).expect("there"), str::to_owned);
            fs::write(path.join(LOCK), mark).expect("written");
            path
        };
        let left = make("amped-1", None);
        drop(UnixListener::bind(left.join("0-0")).expect("bound"));
        let held = make("amped-2", None);
        let lock = File::open(held.join(LOCK)).expect("there");
        lock.lock().expect("locked");
        // A copy of an amped directory, a user's own one of that name, and one that contains a user's file.
        let copy = make("amped-copy", Some(&mark_of(&left).expect("there")));
        let own = make("amped-backup", Some(""));
        let filled = make("amped-3", None);
        fs::write(filled.join("notes"), "mine").expect("written");
        remove_stale(parent.path());
        assert_eq!([&left, &held, &copy, &own, &filled].map(|path| path.exists()), [false, true, true, true, true]);
        assert_eq!(fs::read_to_string(filled.join("notes")).expect("there"), "mine");
        let folder = Folder::new(parent.path()).expect("made");
        remove_stale(parent.path());
        assert!(folder.path.exists());
    }
}
