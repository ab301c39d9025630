//! Applications: what a loop does with them, whoever they are.
//!
//! A connection whose request is an application's has an [`Exchange`] beside its socket. Its descriptors are in the loop's
//! epoll as the socket is, never block, and have their turn with the connection; so an application that computes, or takes
//! nothing, or says nothing, keeps its client waiting and nobody else. What is gathered is bounded on both sides: `core` gives
//! no more of a body than so much ahead, and here nothing is read that the client has no room for.
//!
//! `cgi` starts a process for a request, `fastcgi` asks one that lives on, and `keeper` starts these; what of it may wait is
//! done in a thread where the loop must not (`starter`). How many there are at a
//! time is the `gate`'s to say; those beyond wait here, in their order. Requests for a page that is being made for another wait
//! for that (`fills`).

pub mod cgi;
pub mod fastcgi;
pub mod fills;
pub mod gate;
pub mod keeper;
mod starter;

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use amped_core::app::{AppTrouble, AppWork, Input, Output};
use amped_core::event::Ticket;
use amped_sys::epoll::{Epoll, Interest};
use amped_sys::process::Ending;
use amped_sys::{pipe, socket};
use amped_units::Time;

use self::cgi::{Begun, Job, Place, Process, Running, Started};
use self::fastcgi::{At, Backend, Talk};
use self::fills::{Filling, Fills, Following};
use self::gate::{Gate, Pass, Waits};
use self::keeper::Keeper;
use self::starter::Starter;
use crate::config::{AppKind, AppSettings};
use crate::mailbox::Mailbox;
use crate::say;
use crate::worker::{Generation, Token};

/// The applications of a configuration, in the order of its sites and their rules.
#[derive(Debug, Default)]
pub struct Apps {
    sites: Vec<Vec<App>>,
    /// Of loops that share their caches.
    fills: Arc<Fills>,
}

#[derive(Debug)]
struct App {
    gate: Arc<Gate>,
    env: Arc<[(Box<str>, Box<str>)]>,
    backend: Option<Arc<Backend>>,
}

impl Apps {
    /// Those of these settings. `processes`: loops are processes, and count together.
    ///
    /// # Errors
    /// When the process is out of descriptors.
    pub fn new(settings: &[Vec<AppSettings>], processes: bool) -> io::Result<Apps> {
        let app = |app: &AppSettings| {
            let gate = Arc::new(Gate::new(app.processes, app.queue, processes)?);
            let env: Arc<[_]> = app.env.clone().into();
            let at = match &app.kind {
                AppKind::Cgi => return Ok(App { gate, env, backend: None }),
                AppKind::Unix(name) => At::Unix(name.clone()),
                AppKind::Tcp(address) => At::Tcp(*address),
                AppKind::Command(command) => {
                    At::Kept(Keeper::new(command.clone(), Arc::clone(&env), app.processes, processes)?)
                }
            };
            let backend = Backend::new(at, Arc::clone(&gate), (app.files, !processes), app.reserve);
            Ok(App { gate, env, backend: Some(Arc::new(backend)) })
        };
        let sites = settings.iter().map(|site| site.iter().map(app).collect::<io::Result<Vec<_>>>());
        Ok(Apps { sites: sites.collect::<io::Result<_>>()?, fills: Arc::default() })
    }

    fn find(&self, work: &AppWork) -> Option<&App> {
        self.sites.get(usize::from(work.site))?.get(usize::from(work.rule))
    }
}

/// What a loop has of applications.
pub struct AppSide {
    epoll: Arc<Epoll>,
    /// For a loop that must not wait.
    starter: Option<Starter>,
    /// Those who wait for a place, in their order. Those who have gone meanwhile are among them.
    queue: VecDeque<(Token, Arc<Gate>)>,
    /// When they look again.
    look_again: Time,
    /// Processes that nobody listens to any more, and when they are ended if they have not.
    left: Vec<(Process, Time)>,
    /// Answers that have ended while their processes go on, and when that is believed.
    ending: VecDeque<(Time, Token)>,
    /// Applications that live on, and when they are looked after.
    backends: Vec<Weak<Backend>>,
    sweep_at: Time,
    /// Starts that threads have not told of.
    starting: usize,
    /// Requests so far.
    count: u64,
    mailbox: Arc<Mailbox>,
    /// Pages that are being made for this loop's own cache.
    fills: Arc<Fills>,
}

/// What a request has of an application.
pub struct Exchange {
    ticket: Ticket,
    stage: Stage,
    /// What of the body it has not taken yet, from `input_at` on.
    input: Vec<u8>,
    input_at: usize,
    /// Nothing follows that.
    input_ended: bool,
    /// The connection waits to hear that all of it was taken.
    owes_room: bool,
    /// There may be something to read.
    is_ready: bool,
    complaints: Complaints,
    /// How long it may go on when nobody listens any more.
    time: Duration,
    /// Others wait for what it answers.
    filling: Option<Filling>,
}

enum Stage {
    /// It is about to be begun, or to wait for what another is answered.
    Joins,
    /// It waits for that.
    Follows(#[expect(dead_code, reason = "dropped, it waits no more")] Following),
    /// It waits for a place.
    Queued(Box<AppWork>, Place, Waits),
    /// A process is being started.
    Starting,
    /// It runs. `ended`: its answer has, at that moment.
    Runs { running: Running, ended: Option<Time> },
    /// An application that lives on has it.
    Talks(Box<Talk>),
    /// It has ended.
    Over,
}

/// What came of looking after an exchange.
enum Came {
    /// Nothing that the connection has to know.
    Nothing,
    /// All of the body that was there has been taken.
    Room,
    /// So many bytes of the answer.
    Bytes(usize),
    /// The end of it.
    Ended,
    /// There is no more of it.
    Failed(AppTrouble),
}

/// A process whose answer has come to its end, ends itself within this; if not, it is not going to say how it ended, and the
/// answer is taken for whole.
const LAST_MOMENT: Duration = Duration::from_millis(100);

/// Those who wait for a place that may become free in another loop look again after this.
const LOOK_AGAIN: Duration = Duration::from_millis(10);

/// Applications that live on are looked after as often: whether one has died, or is needed no more.
const SWEEP: Duration = Duration::from_secs(1);

/// A place for a request, with a connection that it was used with before, if there is one.
fn enter(gate: &Arc<Gate>, place: &Place) -> Option<(Pass, Option<OwnedFd>)> {
    let kept = place.backend.as_ref().and_then(|backend| backend.take_idle());
    kept.map(|(socket, pass)| (pass, Some(socket))).or_else(|| gate.enter().map(|pass| (pass, None)))
}

impl AppSide {
    /// The number by which epoll tells of the end of processes that nobody listens to.
    pub const TOKEN: u64 = Token::FIRST_OTHER + 2;

    /// That of a loop with this epoll. `waits`: it does itself what may wait for the disk; else threads do, and tell this
    /// mailbox.
    pub fn new(epoll: Arc<Epoll>, mailbox: &Arc<Mailbox>, waits: bool) -> AppSide {
        AppSide {
            epoll,
            starter: (!waits).then(|| Starter::new(Arc::clone(mailbox))),
            queue: VecDeque::new(),
            look_again: Time::NEVER,
            left: Vec::new(),
            ending: VecDeque::new(),
            backends: Vec::new(),
            sweep_at: Time::NEVER,
            starting: 0,
            count: 0,
            mailbox: Arc::clone(mailbox),
            fills: Arc::default(),
        }
    }

    /// A connection has something for an application; what comes of it at once.
    pub fn take(
        &mut self,
        exchange: &mut Option<Box<Exchange>>,
        token: Token,
        (ticket, input): (Ticket, Input),
        socket: BorrowedFd<'_>,
        generation: &Generation,
    ) -> Option<Output<'static>> {
        match input {
            Input::Join(name) => {
                let fills = if generation.caches.is_some() { &generation.apps.fills } else { &self.fills };
                let (filling, stage, output) = match fills.join(name, (token, ticket), &self.mailbox) {
                    Ok(filling) => (Some(filling), Stage::Joins, Output::First),
                    Err(following) => (None, Stage::Follows(following), Output::Follows),
                };
                *exchange = Some(Box::new(Exchange { stage, filling, ..Exchange::new(ticket) }));
                Some(output)
            }
            Input::Start(work) => {
                let joined = exchange.take().filter(|exchange| exchange.ticket == ticket);
                let filling = joined.and_then(|joined| joined.filling);
                let (made, output) = self.start((token, ticket, filling), work, socket, generation);
                *exchange = made;
                Some(output?)
            }
            Input::Settled => {
                let exchange = exchange.as_mut().filter(|exchange| exchange.ticket == ticket)?;
                exchange.filling = None;
                None
            }
            Input::Body(bytes) => {
                let exchange = exchange.as_mut().filter(|exchange| exchange.ticket == ticket)?;
                exchange.put(&bytes);
                exchange.has_room().then_some(Output::Room)
            }
            Input::End => {
                let exchange = exchange.as_mut().filter(|exchange| exchange.ticket == ticket)?;
                exchange.input_ended = true;
                exchange.flush();
                None
            }
            Input::Leave(why) => {
                if let Some(mut exchange) = exchange.take_if(|exchange| exchange.ticket == ticket) {
                    exchange.complaints.note(why);
                    self.abandon(Some(exchange));
                }
                None
            }
        }
    }

    fn start(
        &mut self,
        (token, ticket, filling): (Token, Ticket, Option<Filling>),
        work: Box<AppWork>,
        socket: BorrowedFd<'_>,
        generation: &Generation,
    ) -> (Option<Box<Exchange>>, Option<Output<'static>>) {
        let rule = generation.settings.sites.get(work.site).and_then(|site| site.apps.get(usize::from(work.rule)));
        let (Some(app), Some(rule)) = (generation.apps.find(&work), rule) else {
            let over = Exchange { stage: Stage::Over, filling, ..Exchange::new(ticket) };
            return (Some(Box::new(over)), Some(Output::Failed(AppTrouble::Failed)));
        };
        self.count += 1;
        // The process, and the loop within it by where its memory lies, make it one of a kind on this machine.
        let id =
            format!("{:x}-{:x}-{:x}", std::process::id(), std::ptr::from_ref(self).addr() >> 4 & 0xffff, self.count);
        let place = Place {
            peer: socket::peer_address(socket).ok(),
            local: socket::local_address(socket).ok(),
            id,
            env: Arc::clone(&app.env),
            disk: Arc::clone(&generation.disk),
            backend: app.backend.clone(),
        };
        let mut exchange = Box::new(Exchange {
            input_ended: !work.has_body,
            complaints: Complaints::new(&place.id, cgi::shown(&work)),
            time: rule.time,
            filling,
            ..Exchange::new(ticket)
        });
        // Whoever waits already goes first.
        let others = self.queue.iter().any(|(_, gate)| Arc::ptr_eq(gate, &app.gate));
        let entered = if others { None } else { enter(&app.gate, &place) };
        let output = match entered {
            Some(entered) => self.begin(&mut exchange, token, (work, place), entered),
            None => match app.gate.queue() {
                Some(waits) => {
                    exchange.stage = Stage::Queued(work, place, waits);
                    self.queue.push_back((token, Arc::clone(&app.gate)));
                    self.look_again = Time::START;
                    None
                }
                None => Some(Output::Failed(AppTrouble::Busy)),
            },
        };
        // It stays for as long as the connection's turn, as what others wait for.
        if matches!(output, Some(Output::Failed(_))) {
            exchange.stage = Stage::Over;
        }
        (Some(exchange), output)
    }

    /// Has it started; what is known of that at once.
    fn begin(
        &mut self,
        exchange: &mut Exchange,
        token: Token,
        (work, place): (Box<AppWork>, Place),
        (pass, kept): (Pass, Option<OwnedFd>),
    ) -> Option<Output<'static>> {
        if let Some(backend) = &place.backend
            && !self.backends.iter().any(|known| std::ptr::eq(known.as_ptr(), Arc::as_ptr(backend)))
        {
            self.backends.push(Arc::downgrade(backend));
            self.sweep_at = Time::START;
        }
        let job = Box::new(Job { token, ticket: exchange.ticket, work, place, pass, kept });
        exchange.stage = Stage::Starting;
        let job = match &mut self.starter {
            Some(starter) => starter.start(job).err(),
            None => Some(job),
        };
        self.starting += usize::from(job.is_none());
        // Where no thread can be had, the loop has to wait.
        job.map(|job| self.take_started(exchange, job.perform()))
    }

    /// A thread has told what came of a start.
    pub fn note_started(&mut self) {
        self.starting -= 1;
    }

    /// A process has been started, or not.
    pub fn take_started(&mut self, exchange: &mut Exchange, started: Started) -> Output<'static> {
        let begun = match started.result {
            Ok(begun) => begun,
            Err(trouble) => {
                self.look_again = Time::START;
                return Output::Failed(trouble);
            }
        };
        if self.register(&begun, started.token.to_app_number()).is_err() {
            self.end(begun);
            return Output::Failed(AppTrouble::Busy);
        }
        exchange.stage = match begun {
            Begun::Runs(running) => Stage::Runs { running, ended: None },
            Begun::Talks(talk) => Stage::Talks(talk),
        };
        exchange.is_ready = true;
        Output::Begun
    }

    fn register(&self, begun: &Begun, number: u64) -> io::Result<()> {
        let running = match begun {
            Begun::Runs(running) => running,
            Begun::Talks(talk) => return self.epoll.add(&talk.socket, number, Interest::Connection),
        };
        let pipes = [&running.stdin, &running.stdout, &running.stderr];
        for descriptor in pipes.into_iter().flatten().chain([&running.process.watch]) {
            self.epoll.add(descriptor, number, Interest::Connection)?;
        }
        Ok(())
    }

    /// Nobody wants the answer any more.
    pub fn abandon(&mut self, exchange: Option<Box<Exchange>>) {
        match exchange.map(|exchange| exchange.stage) {
            Some(Stage::Runs { running, .. }) => self.end(Begun::Runs(running)),
            Some(Stage::Talks(talk)) => self.end(Begun::Talks(talk)),
            Some(Stage::Joins | Stage::Follows(_) | Stage::Queued(..) | Stage::Starting | Stage::Over) | None => {}
        }
    }

    /// Ends what has been begun for somebody who has gone.
    pub fn end(&mut self, begun: Begun) {
        match begun {
            Begun::Runs(running) => {
                running.process.kill();
                self.leave(running.process, Time::NEVER);
            }
            Begun::Talks(talk) => {
                talk.abandon();
                self.look_again = Time::START;
            }
        }
    }

    /// Leaves a process to itself until then.
    fn leave(&mut self, mut process: Process, until: Time) {
        if process.ended().is_none() {
            // It is not told of as the connection's any more. If it cannot be told of at all, it is looked at as often as the
            // others are.
            let _ = self
                .epoll
                .change(&process.watch, AppSide::TOKEN, Interest::Readable)
                .or_else(|_| self.epoll.add(&process.watch, AppSide::TOKEN, Interest::Readable));
            self.left.push((process, until));
        }
    }

    /// One of those that were left has ended.
    pub fn reap(&mut self) {
        self.left.retain_mut(|(process, _)| process.ended().is_none());
        self.look_again = Time::START;
    }

    /// When [`take_due`](AppSide::take_due) has something to do.
    pub fn next_due(&self) -> Time {
        let left = self.left.iter().map(|(_, until)| *until).min().unwrap_or(Time::NEVER);
        let look_again = if self.queue.is_empty() { Time::NEVER } else { self.look_again };
        self.ending.front().map_or(Time::NEVER, |(when, _)| *when).min(left).min(look_again).min(self.sweep_at)
    }

    /// Ends those that were left for too long, and says whose turn it is: to look for a place, or for the end of a process.
    pub fn take_due(&mut self, now: Time) -> Vec<Token> {
        for (process, until) in self.left.iter_mut().filter(|(_, until)| *until <= now) {
            process.kill();
            *until = Time::NEVER;
        }
        if now >= self.sweep_at {
            self.sweep_at = now + SWEEP;
            // What is about to be started is not there yet, and is to be looked after then.
            let starts = self.starting > 0;
            self.backends.retain(|backend| backend.upgrade().is_some_and(|backend| backend.sweep() || starts));
            if self.backends.is_empty() {
                self.sweep_at = Time::NEVER;
            }
        }
        let mut due = Vec::new();
        while self.ending.front().is_some_and(|(when, _)| *when <= now) {
            due.extend(self.ending.pop_front().map(|(_, token)| token));
        }
        if now >= self.look_again && !self.queue.is_empty() {
            self.look_again = now + LOOK_AGAIN;
            // As many of those who wait for the same as there may be places.
            let mut places: Vec<(Arc<Gate>, usize)> = Vec::new();
            self.queue.retain(|(token, gate)| {
                let known = places.iter().position(|(known, _)| Arc::ptr_eq(known, gate));
                let at = known.unwrap_or_else(|| {
                    places.push((Arc::clone(gate), gate.free() + gate.idle.load(Ordering::Relaxed)));
                    places.len() - 1
                });
                let has_turn = places[at].1 > 0;
                if has_turn {
                    places[at].1 -= 1;
                    due.push(*token);
                }
                !has_turn
            });
        }
        due
    }

    /// Looks after an exchange: `None`, nothing has come of it. `wants_output`: what the application says is of use.
    pub fn turn<'a>(
        &mut self,
        slot: &mut Option<Box<Exchange>>,
        token: Token,
        now: Time,
        wants_output: bool,
        buffer: &'a mut [u8],
    ) -> Option<(Ticket, Output<'a>)> {
        let exchange = slot.as_mut()?;
        let ticket = exchange.ticket;
        if let Stage::Queued(..) = &exchange.stage {
            let output = self.look_for_place(exchange, token)?;
            if matches!(output, Output::Failed(_)) {
                exchange.stage = Stage::Over;
            }
            return Some((ticket, output));
        }
        let came = exchange.turn(now, wants_output, buffer, |when| self.ending.push_back((when, token)));
        // It stays for as long as the connection's turn: that may have something to say of it.
        if matches!(came, Came::Ended | Came::Failed(_)) {
            let until = now + exchange.time;
            self.look_again = Time::START;
            match std::mem::replace(&mut exchange.stage, Stage::Over) {
                Stage::Runs { running, .. } => self.leave(running.process, until),
                Stage::Talks(talk) => {
                    let _ = self.epoll.remove(&talk.socket);
                    match talk.into_again() {
                        Ok((again, pass)) => {
                            let output = self.begin(exchange, token, again, (pass, None));
                            if matches!(output, Some(Output::Failed(_))) {
                                exchange.stage = Stage::Over;
                            }
                            return output.map(|output| (ticket, output));
                        }
                        Err(talk) => talk.finish(),
                    }
                }
                Stage::Joins | Stage::Follows(_) | Stage::Queued(..) | Stage::Starting | Stage::Over => {}
            }
        }
        let output = match came {
            Came::Nothing => return None,
            Came::Room => Output::Room,
            Came::Bytes(count) => Output::Bytes(&buffer[..count]),
            Came::Ended => Output::Ended,
            Came::Failed(trouble) => Output::Failed(trouble),
        };
        Some((ticket, output))
    }

    /// One that waits for a place looks whether there is one.
    fn look_for_place(&mut self, exchange: &mut Exchange, token: Token) -> Option<Output<'static>> {
        let Stage::Queued(work, place, waits) = std::mem::replace(&mut exchange.stage, Stage::Over) else {
            return None;
        };
        if let Some(entered) = enter(waits.gate(), &place) {
            drop(waits);
            return self.begin(exchange, token, (work, place), entered);
        }
        if !self.queue.iter().any(|(waiting, _)| *waiting == token) {
            // Another loop was faster. It keeps its turn.
            self.queue.push_front((token, Arc::clone(waits.gate())));
        }
        exchange.stage = Stage::Queued(work, place, waits);
        None
    }
}

impl Exchange {
    /// One that nobody has begun yet.
    fn new(ticket: Ticket) -> Exchange {
        Exchange {
            ticket,
            stage: Stage::Starting,
            input: Vec::new(),
            input_at: 0,
            input_ended: true,
            owes_room: false,
            is_ready: true,
            complaints: Complaints::new("", String::new()),
            time: Duration::ZERO,
            filling: None,
        }
    }

    /// Whether it waits for what another is answered.
    pub fn follows(&self) -> bool {
        matches!(self.stage, Stage::Follows(_))
    }

    /// Which question it answers.
    pub fn ticket(&self) -> Ticket {
        self.ticket
    }

    /// Whether it has ended.
    pub fn is_over(&self) -> bool {
        matches!(self.stage, Stage::Over)
    }

    /// Something may have happened to it.
    pub fn is_ready(&mut self) {
        self.is_ready = true;
    }

    fn put(&mut self, bytes: &[u8]) {
        if self.input_at == self.input.len() {
            self.input.clear();
            self.input_at = 0;
        }
        self.input.extend_from_slice(bytes);
        self.owes_room = true;
    }

    /// Whether the application has taken all that the connection waits for.
    fn has_room(&mut self) -> bool {
        self.flush() && std::mem::take(&mut self.owes_room)
    }

    /// Gives the application what it takes of the body: whether it has all that was there.
    fn flush(&mut self) -> bool {
        let running = match &mut self.stage {
            Stage::Runs { running, .. } => running,
            Stage::Talks(talk) => {
                if self.input_at < self.input.len() {
                    talk.put(&self.input[self.input_at..]);
                    self.input_at = self.input.len();
                }
                if self.input_ended {
                    talk.put_end();
                }
                return talk.flush();
            }
            Stage::Joins | Stage::Follows(_) | Stage::Queued(..) | Stage::Starting | Stage::Over => return false,
        };
        while self.input_at < self.input.len() {
            let Some(stdin) = &running.stdin else {
                // It wants no more: the rest is for nobody.
                self.input_at = self.input.len();
                break;
            };
            match pipe::write(stdin, &self.input[self.input_at..]) {
                Ok(count) => self.input_at += count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return false,
                Err(_) => running.stdin = None,
            }
        }
        if self.input_ended {
            running.stdin = None;
        }
        true
    }

    fn turn(&mut self, now: Time, wants_output: bool, buffer: &mut [u8], mut wake: impl FnMut(Time)) -> Came {
        if self.has_room() {
            return Came::Room;
        }
        let (running, ended) = match &mut self.stage {
            Stage::Runs { running, ended } => (running, ended),
            Stage::Talks(talk) if wants_output => return talk.hear(buffer, &mut self.complaints),
            Stage::Talks(_) | Stage::Joins | Stage::Follows(_) | Stage::Queued(..) | Stage::Starting | Stage::Over => {
                return Came::Nothing;
            }
        };
        if std::mem::take(&mut self.is_ready) {
            self.complaints.hear(&mut running.stderr, buffer);
        }
        if !wants_output {
            return Came::Nothing;
        }
        if let Some(stdout) = &running.stdout {
            match pipe::read(stdout, buffer) {
                Ok(0) => running.stdout = None,
                Ok(count) => return Came::Bytes(count),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Came::Nothing,
                Err(_) => running.stdout = None,
            }
        }
        // The answer is complete, unless the process was ended in the midst of it.
        match running.process.ended() {
            Some(ending) => {
                self.complaints.hear(&mut running.stderr, buffer);
                self.complaints.note_end(ending);
                match ending {
                    Ending::Status(_) => Came::Ended,
                    Ending::Signal(_) => Came::Failed(AppTrouble::Failed),
                }
            }
            None if ended.is_some_and(|ended| now >= ended + LAST_MOMENT) => Came::Ended,
            None => {
                if ended.is_none() {
                    *ended = Some(now);
                    wake(now + LAST_MOMENT);
                }
                Came::Nothing
            }
        }
    }
}

/// What an application writes to standard error, on its way to ours: by lines, each with the request's number.
struct Complaints {
    name: String,
    line: Vec<u8>,
    /// Bytes that may still be said.
    left: usize,
}

/// Bytes of what one request may have said on standard error, and of a line of it.
const COMPLAINTS_MAX: usize = 64 * 1024;
const LINE_MAX: usize = 1024;

impl Complaints {
    fn new(id: &str, path: String) -> Complaints {
        Complaints { name: format!("[{id}] {path}"), line: Vec::new(), left: COMPLAINTS_MAX }
    }

    /// Reads what is there, a bounded amount of it, so that an application that says much delays nobody.
    fn hear(&mut self, stderr: &mut Option<impl AsFd>, buffer: &mut [u8]) {
        while let Some(pipe) = stderr {
            match pipe::read(pipe, buffer) {
                Ok(0) => *stderr = None,
                Ok(count) => {
                    self.say(&buffer[..count]);
                    if self.left == 0 {
                        // It is not listened to any more; who writes on gets an error.
                        *stderr = None;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(_) => *stderr = None,
            }
        }
        self.say_line();
    }

    fn say(&mut self, bytes: &[u8]) {
        let count = bytes.len().min(self.left);
        self.left -= count;
        for piece in bytes[..count].split_inclusive(|&byte| byte == b'\n') {
            self.line.extend_from_slice(piece);
            if piece.ends_with(b"\n") || self.line.len() >= LINE_MAX {
                self.say_line();
            }
        }
        if self.left == 0 {
            self.say_line();
            say!("{}: has said enough on standard error; the rest is lost", self.name);
        }
    }

    fn say_line(&mut self) {
        let line = std::mem::take(&mut self.line);
        let line = line.trim_ascii_end();
        if !line.is_empty() {
            // What it holds may have come from a client: no control character reaches a terminal.
            let text: String = String::from_utf8_lossy(line).chars().flat_map(shown).collect();
            say!("{}: {text}", self.name);
        }
    }

    /// An end that somebody should know of.
    fn note_end(&mut self, ending: Ending) {
        self.say_line();
        if ending != Ending::Status(0) {
            say!("{}: the application {ending}", self.name);
        }
    }

    /// Why its answer is of no use, if that is so.
    fn note(&mut self, why: &str) {
        if !why.is_empty() {
            self.say_line();
            say!("{}: {why}", self.name);
        }
    }
}

fn shown(c: char) -> impl Iterator<Item = char> {
    let plain = (!c.is_control() || c == '\t').then_some(c);
    plain.into_iter().chain(plain.is_none().then(|| c.escape_default()).into_iter().flatten())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_shown() {
        let text: String = "a\tb\u{1b}[31mc\u{7}é".chars().flat_map(shown).collect();
        assert_eq!(text, "a\tb\\u{1b}[31mc\\u{7}é");
    }
}
