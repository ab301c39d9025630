//! Applications: how a loop runs requests of CGI and FastCGI applications, and forwards requests by HTTP.
//!
//! A connection whose request is handled by an application has an [`AppRequest`] beside its socket. Its descriptors are
//! in the loop's epoll set like the socket, never block, and are served in the connection's turn; so an application
//! that is busy, reads nothing or writes nothing delays only its own client. Buffers are bounded on both sides: `core`
//! passes only a bounded part of a body ahead, and nothing is read here for which the client has no room.
//!
//! `cgi` starts a process per request (`process`); `backend_request` sends a request to a persistent application over a
//! connection to it (`backend`, `pool`, `connection`, `codec`), of several that speak HTTP to one in service (`upstream`), and `manager`
//! starts such applications; `launch` describes a program to start. `checker` checks whether servers respond (`health`). `scripts` caches which names are scripts; steps that may block are done in a thread if the
//! loop must not block (`threads`). `request` moves the bytes, `spool` stores those for which one side is too slow, and
//! `output` is what an application writes, and `compressor` compresses it if the rule asks for that. The `semaphore` limits concurrent requests; further ones wait here, in their
//! order. Requests for a page that is being generated for another request wait for it (`single_flights`).

pub mod backend;
pub mod backend_request;
pub mod cgi;
mod checker;
mod codec;
pub mod compressor;
pub mod connection;
mod health;
pub mod launch;
pub mod manager;
pub mod names;
mod output;
mod pool;
pub mod process;
mod request;
mod scripts;
pub mod semaphore;
pub mod single_flight;
pub mod spool;
mod threads;
pub mod upstream;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::io;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use amped_core::app::{AppTrouble, AppWork, Input, Output};
use amped_core::event::Ticket;
use amped_core::site::Sites;
use amped_http::cgi::decimal;
use amped_http::h1::request::Framing;
use amped_sys::epoll::{Epoll, Events, Interest, Ready};
use amped_units::Time;

use self::backend::{At, Backend, StartError};
use self::backend_request::{Abandoned, AppCall, BackendRequest, Link, is_repeatable};
pub use self::cgi::Ends;
use self::cgi::{AppStart, Job, Place, RequestName, Running, Started};
use self::compressor::{Compressor, Encoded, Results};
use self::connection::{BackendConnection, Step, Verification};
use self::manager::ProcessManager;
use self::output::{ReadResult, StderrLines};
use self::pool::Pool;
use self::process::Process;
use self::request::Stage;
pub use self::request::{APP_MEMORY_MIN, AppRequest, Room};
use self::scripts::{Found, Scripts};
use self::semaphore::{Permit, Semaphore};
use self::single_flight::{Filling, Settled, SingleFlight};
use self::spool::{Quota, Side, Spool, Spooler};
use self::threads::{Task, Threads};
use self::upstream::Upstreams;
use crate::backend_tls;
use crate::config::settings::{AppKind, AppSettings, BackendAddress, SpoolSettings};
use crate::counters::HttpCounts;
use crate::disk::Disk;
use crate::mailbox::Post;
use crate::say;
use crate::token::Token;

/// The applications of a configuration, in the order of its sites and their rules.
#[derive(Debug, Default)]
pub struct Apps {
    sites: Vec<Vec<App>>,
    /// Created when the first application has to be started; lives as long as the server.
    manager: Option<Arc<ProcessManager>>,
    /// The process that starts all programs, if this one may not.
    launcher: Option<Arc<ProcessManager>>,
    /// Pages being generated for loops that share their caches.
    single_flights: Arc<SingleFlight>,
    /// The budget of spooled bodies.
    quota: Arc<Quota>,
}

#[derive(Clone, Debug)]
struct App {
    settings: AppSettings,
    semaphore: Arc<Semaphore>,
    env: Arc<[(Box<str>, Box<str>)]>,
    backend: Option<Arc<Backend>>,
    /// The backends of a rule that forwards requests.
    upstreams: Option<Arc<Upstreams>>,
}

impl Apps {
    /// Creates the applications of these settings. Those unchanged since `before` are kept, with their permits and
    /// processes. `processes`: loops are processes, and are limited together. `launcher`: starts all programs in place of this process.
    ///
    /// # Errors
    /// When the process manager cannot take an application, or the process is out of descriptors.
    pub fn new(
        settings: &[Vec<AppSettings>],
        spool: &SpoolSettings,
        processes: bool,
        launcher: Option<Arc<ProcessManager>>,
        before: Option<&Apps>,
    ) -> io::Result<Apps> {
        let manager = before.and_then(|before| before.manager.clone()).or_else(|| launcher.clone());
        // Requests of the previous configuration still use its quota.
        let quota = match before.filter(|before| before.quota.is_of(spool)) {
            Some(before) => Arc::clone(&before.quota),
            None => Arc::new(Quota::new(spool.clone())),
        };
        let mut created = Apps { manager, launcher, quota, ..Apps::default() };
        let mut old: Vec<&App> = before.into_iter().flat_map(|before| before.sites.iter().flatten()).collect();
        for site in settings {
            let mut apps = Vec::new();
            for settings in site {
                let is_same = |app: &&App| app.settings.is_run_alike(settings);
                apps.push(match old.iter().position(is_same) {
                    Some(at) => App { settings: settings.clone(), ..old.swap_remove(at).clone() },
                    None => created.add(settings, &apps, before, processes)?,
                });
            }
            created.sites.push(apps);
        }
        Ok(created)
    }

    /// Adds an application that is new or has changed; `siblings` are those of its site so far.
    fn add(
        &mut self,
        settings: &AppSettings,
        siblings: &[App],
        before: Option<&Apps>,
        processes: bool,
    ) -> io::Result<App> {
        // The process manager takes the permits of processes that it ends.
        let is_shared = processes || self.launcher.is_some() && matches!(settings.kind, AppKind::Command(_));
        let semaphore = Arc::new(Semaphore::new(settings.max_processes, settings.max_queue, is_shared)?);
        let env: Arc<[_]> = settings.env.clone().into();
        let mut upstreams = None;
        let at = match &settings.kind {
            AppKind::Cgi => None,
            AppKind::Http(http) => {
                let mut http = http.clone();
                let known = || before.into_iter().flat_map(Apps::upstreams).filter_map(|upstreams| upstreams.names());
                for named in http.names.iter_mut().filter(|named| named.addresses.is_empty()) {
                    // A name server that fails at a reload takes away nothing.
                    named.addresses =
                        known().map(|names| names.addresses_of(named)).find(|all| !all.is_empty()).unwrap_or_default();
                }
                let tls = http.servers.iter().filter_map(|server| match &server.address {
                    BackendAddress::Tls(address, tls) => Some((address.to_string(), tls)),
                    BackendAddress::Unix(_) | BackendAddress::Tcp(_) => None,
                });
                let named = http.names.iter().filter_map(|named| Some((named.at.to_string(), named.tls.as_ref()?)));
                if let Some((at, _)) = tls.chain(named).find(|(_, tls)| !tls.verifies) {
                    say!("{}", backend_tls::unverified(&format!("https://{at}")));
                }
                for named in http.names.iter().filter(|named| named.addresses.is_empty()) {
                    say!("cannot resolve the backend {}; its requests get 502 until that succeeds", named.at);
                }
                upstreams = Some(Arc::new(Upstreams::new(&http, settings.min_spare)?));
                None
            }
            AppKind::Unix(name) => Some(At::Unix(name.clone())),
            AppKind::Tcp(address) => Some(At::Tcp(*address)),
            AppKind::Command(command) => {
                let manager = match &self.manager {
                    Some(manager) => manager,
                    None => self.manager.insert(Arc::new(ProcessManager::start(processes)?)),
                };
                let places = settings.max_processes.unwrap_or(1);
                Some(At::Kept(manager.add(command, &env, (&semaphore, places), settings.min_spare)?))
            }
        };
        // Rules that name the same address share their idle connections.
        let all = self.sites.iter().flatten().chain(siblings);
        let mut all = all.chain(before.into_iter().flat_map(|before| before.sites.iter().flatten()));
        let is_shared = |app: &&App| {
            matches!(settings.kind, AppKind::Unix(_) | AppKind::Tcp(_))
                && (&app.settings.kind, app.settings.min_spare) == (&settings.kind, settings.min_spare)
        };
        let shared = all.find(is_shared).and_then(|app| app.backend.clone());
        let backend = shared.or_else(|| {
            // For an application that the server starts, each permit may keep a connection: an idle connection of one
            // process would keep its slot from the others.
            let (most, reserve) = match &at {
                Some(At::Kept(_)) => (settings.max_processes.unwrap_or(1), settings.min_spare),
                _ => (settings.min_spare, 0),
            };
            at.map(|at| Arc::new(Backend::new(at, if processes { 0 } else { most }, reserve)))
        });
        Ok(App { settings: settings.clone(), semaphore, env, backend, upstreams })
    }

    /// Starts to check the backends of all rules that say so, and to resolve their names. Called where loops run, which is
    /// after the last fork.
    pub fn start_checks(&self) {
        self.upstreams().for_each(checker::start);
        checker::start_resolving(self.upstreams());
    }

    /// Returns the names of backends that are checked, and whether they are healthy.
    pub fn checked_backends(&self) -> Vec<(String, bool)> {
        let mut checked = Vec::new();
        for upstream in self.upstreams().map(|upstreams| upstreams.current()) {
            let Some(health) = upstream.health() else { continue };
            let down = health.down();
            checked.extend(upstream.backends().map(|(number, _, name)| (name.to_owned(), down & 1 << number == 0)));
        }
        checked
    }

    fn upstreams(&self) -> impl Iterator<Item = &Arc<Upstreams>> {
        self.sites.iter().flatten().filter_map(|app| app.upstreams.as_ref())
    }

    /// Ends the process manager and everything that it has started; only when the server exits.
    pub fn stop(&self) {
        if let Some(manager) = &self.manager {
            manager.stop();
        }
    }

    /// Returns the process that starts all programs, if this one may not.
    pub fn launcher(&self) -> Option<&Arc<ProcessManager>> {
        self.launcher.as_ref()
    }

    /// Returns whether this process ID is the process manager's, without which no application can be started any more.
    pub fn is_manager(&self, pid: u32) -> bool {
        self.manager.as_ref().is_some_and(|manager| manager.is_process(pid))
    }

    fn find(&self, work: &AppWork) -> Option<&App> {
        self.sites.get(usize::from(work.site))?.get(usize::from(work.rule))
    }
}

/// The parts of the current configuration that a request for an application needs.
#[derive(Clone, Copy, Debug)]
pub struct AppContext<'a> {
    /// The applications.
    pub apps: &'a Apps,
    /// The sites, with the rules that name applications.
    pub sites: &'a Sites,
    /// Where scripts are looked up.
    pub disk: &'a Arc<Disk>,
    /// Whether loops share their caches, and with them the pages being generated.
    pub shares_caches: bool,
}

/// A loop's state of applications.
pub struct AppSide {
    epoll: Arc<Epoll>,
    /// Starts requests, for a loop that must not block.
    starter: Option<Threads<Box<Job>>>,
    /// Does what takes time of TLS handshakes with backends, likewise.
    verifier: Option<Threads<Box<Step>>>,
    /// Stores bodies.
    spooler: Spooler,
    /// Requests that wait for a permit, by their number; may include requests whose client has left.
    queue: BTreeMap<u64, (Token, Arc<Semaphore>)>,
    /// When queued requests try again.
    look_again: Time,
    /// Processes that are no longer watched for a request, and when each is killed.
    left: Vec<(Process, Time)>,
    /// Abandoned requests whose applications are being ended.
    abandoned: Vec<Abandoned>,
    /// Connections to be served at a time: the response has ended while the process still runs, and is taken as complete
    /// then; or a connection to an application is given up unless it is established by then.
    timers: BinaryHeap<Reverse<(Time, u64)>>,
    /// Persistent applications with idle connections that loops share.
    backends: Vec<Weak<Backend>>,
    /// Connections to persistent applications.
    pool: Pool,
    /// When idle connections are swept.
    sweep_at: Time,
    /// Number of requests so far.
    count: u64,
    /// The process ID and loop, which make request numbers unique on this machine.
    name: Arc<str>,
    scripts: Scripts,
    /// In place of a script, for backends that have none.
    no_script: Arc<Path>,
    mailbox: Arc<dyn Post<Settled>>,
    /// Results of compressing responses.
    encoded: Results,
    /// Pages being generated for this loop's own cache.
    single_flights: Arc<SingleFlight>,
    /// Requests that were forwarded.
    pub http: HttpCounts,
}

/// Interval at which requests retry for a permit that another loop may free.
const LOOK_AGAIN: Duration = Duration::from_millis(10);

/// Interval at which persistent applications are checked: whether they have died, or are no longer needed.
const SWEEP: Duration = Duration::from_secs(1);

/// The result of a request's turn.
pub enum TurnResult<'a> {
    /// Nothing: an event must occur first.
    Nothing,
    /// There is more to do, but nothing to report to the connection.
    Again,
    /// This output, with the request's ticket.
    Output(Ticket, Output<'a>),
}

const CONTENT_LENGTH: &[u8] = b"CONTENT_LENGTH";

/// Returns whether the application can get the body before its end is known.
fn may_stream(work: &AppWork) -> bool {
    work.forward.is_some() || sends_length(work)
}

/// Returns whether the length of the body is sent to the application.
fn sends_length(work: &AppWork) -> bool {
    work.variables.iter().any(|(name, _)| name == CONTENT_LENGTH)
}

/// Sets the length of a body that is complete.
fn set_length(work: &mut AppWork, length: u64) {
    if let Some(forward) = &mut work.forward {
        forward.framing = if length == 0 { Framing::None } else { Framing::Length(length) };
    } else if !sends_length(work) {
        work.variables.push((CONTENT_LENGTH.to_vec(), decimal(length)));
    }
}

impl Task for Box<Job> {
    type Message = Box<Started>;

    fn perform(self) -> Option<Box<Started>> {
        Some(Box::new(Job::perform(*self)))
    }
}

impl AppSide {
    /// The epoll token of processes that are no longer watched for a request.
    pub const TOKEN: u64 = Token::FIRST_OTHER + 2;

    /// Creates the state of a loop with this epoll set. `waits`: the loop itself does what may wait for the disk;
    /// otherwise threads do, and report to this mailbox.
    pub fn new<M>(epoll: Arc<Epoll>, mailbox: &Arc<M>, waits: bool) -> AppSide
    where
        M: Post<Box<Started>> + Post<Box<Step>> + Post<Box<spool::Done>> + Post<Settled> + Post<Box<Encoded>> + 'static,
    {
        AppSide {
            pool: Pool::new(Arc::clone(&epoll)),
            epoll,
            starter: (!waits).then(|| Threads::new("starter", Arc::<M>::clone(mailbox))),
            verifier: (!waits).then(|| Threads::new("backend-tls", Arc::<M>::clone(mailbox))),
            spooler: Spooler::new(Arc::<M>::clone(mailbox), waits),
            queue: BTreeMap::new(),
            look_again: Time::NEVER,
            left: Vec::new(),
            abandoned: Vec::new(),
            timers: BinaryHeap::new(),
            backends: Vec::new(),
            sweep_at: Time::NEVER,
            count: 0,
            // The address of the mailbox identifies the loop within the process.
            name: format!("{:x}-{:x}", std::process::id(), Arc::as_ptr(mailbox).addr() >> 4 & 0xffff).into(),
            scripts: Scripts::default(),
            no_script: Path::new("").into(),
            mailbox: Arc::<M>::clone(mailbox),
            encoded: Arc::<M>::clone(mailbox),
            single_flights: Arc::default(),
            http: HttpCounts::default(),
        }
    }

    /// Passes input from a connection to its application. Returns output that is available at once.
    pub fn take(
        &mut self,
        request: &mut Option<Box<AppRequest>>,
        (token, now): (Token, Time),
        (ticket, input): (Ticket, Input),
        ends: impl FnOnce() -> Arc<Ends>,
        context: &AppContext<'_>,
    ) -> Option<Output<'static>> {
        match input {
            Input::Join(name) => {
                let single_flights =
                    if context.shares_caches { &context.apps.single_flights } else { &self.single_flights };
                let (filling, stage, output) = match single_flights.join(name, (token, ticket), &self.mailbox) {
                    Ok(filling) => (Some(filling), Stage::Joins, Output::First),
                    Err(following) => (None, Stage::Follows(following), Output::Follows),
                };
                *request = Some(Box::new(AppRequest { stage, filling, ..AppRequest::new(ticket) }));
                Some(output)
            }
            Input::Start(work) => {
                let joined = request.take().filter(|request| request.ticket == ticket);
                let filling = joined.and_then(|joined| joined.filling);
                // A cached page must not depend on the client that requested it.
                let ends = if work.may_be_cached { Arc::new(ends().without_subject()) } else { ends() };
                let (made, output) = self.start((token, now), (ticket, filling), work, ends, context);
                *request = made;
                Some(output?)
            }
            Input::Settled => {
                let request = request.as_mut().filter(|request| request.ticket == ticket)?;
                request.filling = None;
                None
            }
            Input::Body(bytes) => {
                let request = request.as_mut().filter(|request| request.ticket == ticket)?;
                request.put(&bytes);
                request.feed(token, &mut self.spooler);
                if let Some(trouble) = request.trouble() {
                    return Some(self.give_up(request, trouble));
                }
                request.has_room().then_some(Output::Room)
            }
            Input::End => {
                let request = request.as_mut().filter(|request| request.ticket == ticket)?;
                request.input_ended = true;
                match std::mem::replace(&mut request.stage, Stage::Over) {
                    Stage::Gathers(mut work, mut place, semaphore) => {
                        // It is queued behind the requests that were complete before it.
                        self.count += 1;
                        place.id.number = self.count;
                        set_length(&mut work, request.input.total());
                        self.queue_or_start(request, (token, now), (work, place), &semaphore)
                    }
                    stage => {
                        request.stage = stage;
                        request.feed(token, &mut self.spooler);
                        None
                    }
                }
            }
            Input::Unbuffered => {
                let request = request.as_mut().filter(|request| request.ticket == ticket)?;
                request.reads_ahead = false;
                None
            }
            Input::Compress(work) => {
                let request = request.as_mut().filter(|request| request.ticket == ticket)?;
                if work.is_last {
                    // It stays until it is compressed.
                    request.stage = Stage::Drains(None);
                }
                let (compressor, result) = Compressor::new((token, ticket), *work, &self.encoded);
                request.compressor = Some(Box::new(compressor));
                result.err().map(|why| {
                    request.stderr_lines.note(why);
                    self.give_up(request, AppTrouble::Failed)
                })
            }
            Input::Leave(why) => {
                if let Some(mut request) = request.take_if(|request| request.ticket == ticket) {
                    request.stderr_lines.note(why);
                    if let Stage::Talks(request_) = &mut request.stage {
                        request_.count(!why.is_empty(), &mut self.http);
                    }
                    self.abandon(Some(request));
                }
                None
            }
        }
    }

    fn start(
        &mut self,
        at: (Token, Time),
        (ticket, filling): (Ticket, Option<Filling>),
        work: Box<AppWork>,
        ends: Arc<Ends>,
        context: &AppContext<'_>,
    ) -> (Option<Box<AppRequest>>, Option<Output<'static>>) {
        let rule = context.sites.get(work.site).and_then(|site| site.apps.get(usize::from(work.rule)));
        let (Some(app), Some(rule)) = (context.apps.find(&work), rule) else {
            let over = AppRequest { stage: Stage::Over, filling, ..AppRequest::new(ticket) };
            return (Some(Box::new(over)), Some(Output::Failed(AppTrouble::Failed)));
        };
        self.count += 1;
        let place = Place {
            ends,
            id: RequestName { of_loop: Arc::clone(&self.name), number: self.count },
            user: app.settings.user.clone(),
            env: Arc::clone(&app.env),
            disk: Arc::clone(context.disk),
            launcher: context.apps.launcher.clone(),
            backend: app.backend.clone(),
            upstream: app.upstreams.as_ref().map(|upstreams| upstreams.current()),
            member: 0,
            tried: 0,
            files: app.settings.files,
            reported: None,
        };
        let mut request = Box::new(AppRequest {
            input_ended: !work.has_body,
            // The length of a chunked body is known only when it is complete.
            gathers: work.has_body && (app.settings.buffer_request || !may_stream(&work)),
            reads_ahead: app.settings.buffer_response,
            output: Spool::new(Side::Response, Some(Arc::clone(&context.apps.quota))),
            stderr_lines: StderrLines::new(place.id.clone(), Arc::clone(&work.path)),
            time: rule.timeout,
            filling,
            ..AppRequest::new(ticket)
        });
        if request.gathers {
            request.input = Spool::new(Side::Request, Some(Arc::clone(&context.apps.quota)));
            request.stage = Stage::Gathers(work, place, Arc::clone(&app.semaphore));
            return (Some(request), None);
        }
        let output = self.queue_or_start(&mut request, at, (work, place), &app.semaphore);
        (Some(request), output)
    }

    /// Handles a complete request: it gets a permit, or is queued.
    fn queue_or_start(
        &mut self,
        request: &mut AppRequest,
        at: (Token, Time),
        (work, mut place): AppCall,
        semaphore: &Arc<Semaphore>,
    ) -> Option<Output<'static>> {
        // Requests that are already queued go first.
        let others = self.queue.values().any(|(_, other)| Arc::ptr_eq(other, semaphore));
        let entered = if others { None } else { self.enter(semaphore, &work, &mut place) };
        let output = match entered {
            Some(entered) => self.begin(request, at, (work, place), entered),
            None => self.put_off(request, at.0, (work, place), semaphore),
        };
        // It stays for the connection's turn, like a request that others wait for.
        if matches!(output, Some(Output::Failed(_))) {
            request.stage = Stage::Over;
        }
        output
    }

    /// Returns a permit for a request, with the connection it was used with before, if there is one.
    fn enter(
        &mut self,
        semaphore: &Arc<Semaphore>,
        work: &AppWork,
        place: &mut Place,
    ) -> Option<(Permit, Option<BackendConnection>)> {
        if place.upstream.is_some() {
            let permit = semaphore.enter()?;
            place.choose(work);
            let idle = place.backend.as_ref().and_then(|backend| self.pool.take(backend, is_repeatable(work)));
            return Some((permit, idle));
        }
        let kept = place.backend.as_ref().and_then(|backend| backend.take_idle(semaphore));
        kept.map(|(socket, permit)| (permit, Some(socket))).or_else(|| semaphore.enter().map(|permit| (permit, None)))
    }

    /// Gives up a request whose body is lost: no application gets its body, or the rest of it.
    fn give_up(&mut self, request: &mut AppRequest, trouble: AppTrouble) -> Output<'static> {
        let stage = std::mem::replace(&mut request.stage, Stage::Over);
        self.leave_stage(stage);
        Output::Failed(trouble)
    }

    /// Queues a request until a permit is free, or the application's own queue has room.
    fn put_off(
        &mut self,
        request: &mut AppRequest,
        token: Token,
        (work, place): AppCall,
        semaphore: &Arc<Semaphore>,
    ) -> Option<Output<'static>> {
        let Some(waits) = semaphore.queue(place.id.number) else {
            return Some(Output::Failed(AppTrouble::Busy));
        };
        self.queue.insert(place.id.number, (token, Arc::clone(semaphore)));
        if self.look_again == Time::NEVER {
            self.look_again = Time::START;
        }
        request.stage = Stage::Queued(work, place, waits);
        None
    }

    /// Starts a request. Returns output that is available at once.
    fn begin(
        &mut self,
        request: &mut AppRequest,
        (token, now): (Token, Time),
        (work, place): AppCall,
        (permit, mut kept): (Permit, Option<BackendConnection>),
    ) -> Option<Output<'static>> {
        if place.upstream.is_some() && place.backend.is_none() {
            // No name has an address. Others may wait for the permit.
            self.look_again = Time::START;
            return Some(Output::Failed(AppTrouble::Unreachable));
        }
        request.stage = Stage::Starting;
        if let Some(backend) = &place.backend
            && (kept.is_some() || backend.is_at_hand())
            && let Some(found) = self.script_of(&work, &place)
        {
            return self.ask(request, (token, now), (work, place), (permit, kept), found);
        }
        // A thread has it now, and what happens meanwhile is reported when it is watched again.
        kept.iter_mut().for_each(|kept| self.pool.unwatch(kept));
        let job = Box::new(Job { token, ticket: request.ticket, work, place, permit, kept, created: Instant::now() });
        let job = match &mut self.starter {
            Some(starter) => starter.start(job).err(),
            None => Some(job),
        };
        // If no thread can be started, the loop has to wait.
        job.and_then(|job| self.take_started(request, Job::perform(*job), now))
    }

    /// Returns the number of body bytes written to files.
    pub fn spooled(&self) -> u64 {
        self.spooler.written
    }

    /// Returns the script of a request to a persistent application, if it is known without a disk access.
    fn script_of(&self, work: &AppWork, place: &Place) -> Option<Found> {
        if place.files {
            return self.scripts.find(&place.disk, work);
        }
        let end = *work.ends.first()?;
        if work.forward.is_some() {
            return Some((end, Arc::clone(&self.no_script)));
        }
        let root = place.disk.root_of(work.site).unwrap_or(Path::new("/"));
        Some((end, root.join(cgi::relative(&work.path[..end])).into()))
    }

    /// Drops the cached scripts: names are looked up again.
    pub fn forget_scripts(&mut self) {
        self.scripts.clear();
    }

    /// Handles a started process, a script that was found, or an error.
    pub fn take_started(&mut self, request: &mut AppRequest, started: Started, now: Time) -> Option<Output<'static>> {
        let running = match started.result {
            Ok(AppStart::Runs(running)) => running,
            Ok(AppStart::Found(job, found)) => {
                let Job { token, work, place, permit, kept, created, .. } = *job;
                if place.files {
                    self.scripts.learn(&place.disk, &work, &found, created);
                }
                return self.ask(request, (token, now), (work, place), (permit, kept), found);
            }
            Err(trouble) => {
                self.look_again = Time::START;
                return Some(Output::Failed(trouble));
            }
        };
        if self.register(&running, started.token.to_app_number()).is_err() {
            self.end(AppStart::Runs(running));
            return Some(Output::Failed(AppTrouble::Busy));
        }
        request.stage = Stage::Runs { running, ended: None };
        request.is_ready = true;
        Some(Output::Started(None))
    }

    /// Sends a request to a persistent application.
    fn ask(
        &mut self,
        request: &mut AppRequest,
        (token, now): (Token, Time),
        (work, mut place): AppCall,
        (permit, kept): (Permit, Option<BackendConnection>),
        found: Found,
    ) -> Option<Output<'static>> {
        let Some(backend) = place.backend.clone() else {
            return Some(Output::Failed(AppTrouble::Failed));
        };
        let (is_used, reported, member) = (kept.is_some(), place.reported, place.member);
        let connected = kept.map_or_else(|| self.connect(&backend, &permit, (token, request.ticket)), Ok);
        let (link, patience) = match connected {
            Ok(connection) => {
                let patience = place.upstream.as_ref().map(|upstream| upstream.settings().connect_timeout);
                let due = patience.map_or(Time::NEVER, |patience| now + patience);
                (Link { connection, is_used, due }, patience)
            }
            Err(StartError::Failed(trouble)) => {
                if place.try_another(&work, &mut self.http) {
                    self.http.retries += 1;
                    return self.begin(request, (token, now), (work, place), (permit, None));
                }
                self.look_again = Time::START;
                return Some(Output::Failed(trouble));
            }
            Err(StartError::Waits) => {
                // From now on it waits for the application, so the timeout of the application runs.
                place.reported = reported.or(Some(member));
                let name = place.upstream.as_ref().map(|upstream| upstream.name(place.member));
                let refused = self.put_off(request, token, (work, place), permit.semaphore());
                return refused.or(reported.is_none().then_some(Output::Started(name)));
            }
        };
        // The next attempt may be at the backend that it waited for.
        place.reported = reported.map(|_| member);
        if patience.is_some() {
            *(if is_used { &mut self.http.reuses } else { &mut self.http.connects }) += 1;
        }
        let (mut request_, interest) = BackendRequest::begin(&backend, (work, place), permit, link, found);
        if self.pool.watch(&mut request_.connection, (token, request.ticket), interest).is_err() {
            return Some(Output::Failed(AppTrouble::Busy));
        }
        let due = request_.connect_due();
        if due != Time::NEVER {
            self.timers.push(Reverse((due, token.to_number())));
        }
        let backend = request_.backend_name();
        request.stage = Stage::Talks(request_);
        // Nothing has arrived yet; epoll will report it.
        (request.is_ready, request.has_closed) = (false, false);
        // It may have waited for another one.
        (reported != Some(member)).then_some(Output::Started(backend))
    }

    /// Opens a new connection, and begins its TLS session.
    fn connect(
        &mut self,
        backend: &Backend,
        permit: &Permit,
        (token, ticket): (Token, Ticket),
    ) -> Result<BackendConnection, StartError> {
        let mut connection = backend.connect(permit)?;
        if let Some(tls) = &backend.tls {
            let queue = self.verifier.as_mut().and_then(Threads::one);
            let verification = queue.map(|queue| Verification { queue, token, ticket });
            connection.begin_tls(tls, verification).map_err(|error| {
                backend.report(&backend.name(), &error);
                StartError::Failed(AppTrouble::Unreachable)
            })?;
        }
        Ok(connection)
    }

    fn register(&self, running: &Running, number: u64) -> io::Result<()> {
        let pipes = [&running.stdin, &running.stdout, &running.stderr];
        for descriptor in pipes.into_iter().flatten().chain([&running.process.watch]) {
            self.epoll.add(descriptor, number, Interest::Connection)?;
        }
        Ok(())
    }

    /// Abandons a request whose response is not wanted any more.
    pub fn abandon(&mut self, request: Option<Box<AppRequest>>) {
        if let Some(request) = request {
            self.leave_stage(request.stage);
        }
    }

    fn leave_stage(&mut self, stage: Stage) {
        match stage {
            Stage::Runs { running, .. } => self.end(AppStart::Runs(running)),
            Stage::Talks(request_) => {
                if let Some(mut abandoned) = request_.abandon()
                    && !abandoned.is_over()
                {
                    // If its end cannot be watched, it is polled as often as the others.
                    let _ = self.epoll.change(&abandoned.connection, AppSide::TOKEN, Interest::Connection);
                    self.abandoned.push(abandoned);
                }
                self.look_again = Time::START;
            }
            Stage::Joins | Stage::Follows(_) | Stage::Gathers(..) | Stage::Queued(..) => {}
            Stage::Starting | Stage::Drains(_) | Stage::Over => {}
        }
    }

    /// Ends a started request whose client has left.
    pub fn end(&mut self, begun: AppStart) {
        match begun {
            AppStart::Runs(running) => {
                running.process.kill();
                self.leave(running.process, Time::NEVER);
            }
            AppStart::Found(..) => self.look_again = Time::START,
        }
    }

    /// Stops watching a process for its request; it is killed if it has not ended at this time.
    fn leave(&mut self, mut process: Process, until: Time) {
        if process.ended().is_none() {
            // It is no longer watched for the connection. If it cannot be watched at
            // all, it is polled as often as the others.
            let _ = self
                .epoll
                .change(&process.watch, AppSide::TOKEN, Interest::Readable)
                .or_else(|_| self.epoll.add(&process.watch, AppSide::TOKEN, Interest::Readable));
            self.left.push((process, until));
        }
    }

    /// Reaps abandoned processes that have ended.
    pub fn reap(&mut self) {
        self.left.retain_mut(|(process, _)| process.ended().is_none());
        self.abandoned.retain_mut(|abandoned| !abandoned.is_over());
        self.look_again = Time::START;
    }

    /// Returns when [`take_due`](AppSide::take_due) has something to do.
    pub fn next_due(&self) -> Time {
        let left = self.left.iter().map(|(_, until)| *until).min().unwrap_or(Time::NEVER);
        let is_idle = self.queue.is_empty() && self.abandoned.is_empty();
        let look_again = if is_idle { Time::NEVER } else { self.look_again };
        self.timers.peek().map_or(Time::NEVER, |Reverse((when, _))| *when).min(left).min(look_again).min(self.sweep_at)
    }

    /// Kills abandoned processes that are overdue. Returns the connections to be served: to try for a permit, or to
    /// check for the end of a process or whether a connection is established.
    pub fn take_due(&mut self, now: Time) -> Vec<Token> {
        for (process, until) in self.left.iter_mut().filter(|(_, until)| *until <= now) {
            process.kill();
            *until = Time::NEVER;
        }
        if now >= self.sweep_at {
            self.sweep_at = now + SWEEP;
            self.backends.retain(|backend| backend.upgrade().is_some_and(|backend| backend.sweep()));
            self.pool.sweep(now);
            if self.backends.is_empty() && self.pool.is_empty() {
                self.sweep_at = Time::NEVER;
            }
        }
        let mut due = Vec::new();
        while self.timers.peek().is_some_and(|Reverse((when, _))| *when <= now) {
            due.extend(self.timers.pop().map(|Reverse((_, token))| Token::from_number(token)));
        }
        if now >= self.look_again && !(self.queue.is_empty() && self.abandoned.is_empty()) {
            self.look_again = now + LOOK_AGAIN;
            self.abandoned.retain_mut(|abandoned| !abandoned.is_over());
            // For each semaphore, as many queued requests as may find a permit.
            let mut places: Vec<(Arc<Semaphore>, usize)> = Vec::new();
            self.queue.retain(|_, (token, semaphore)| {
                let known = places.iter().position(|(known, _)| Arc::ptr_eq(known, semaphore));
                let at = known.unwrap_or_else(|| {
                    places.push((Arc::clone(semaphore), semaphore.free() + semaphore.idle.load(Ordering::Relaxed)));
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

    /// Begins an iteration of the loop with these events. `has_waited`: it has asked epoll for them.
    pub fn begin_iteration(&mut self, events: &Events, has_waited: bool) {
        self.pool.begin_iteration(events, has_waited);
    }

    /// Returns whose request an event on a connection to an application belongs to.
    pub fn note_event(&mut self, ready: Ready) -> Option<(Token, Ticket)> {
        self.pool.note_event(ready)
    }

    /// Serves a request, whose connection has this room.
    pub fn turn<'a>(
        &mut self,
        request: &mut AppRequest,
        token: Token,
        now: Time,
        room: Room,
        buffer: &'a mut [u8],
    ) -> TurnResult<'a> {
        let ticket = request.ticket;
        if let Some(trouble) = request.trouble() {
            return TurnResult::Output(ticket, self.give_up(request, trouble));
        }
        if let Stage::Queued(..) = &request.stage {
            let Some(output) = self.try_for_permit(request, (token, now)) else { return TurnResult::Nothing };
            if matches!(output, Output::Failed(_)) {
                request.stage = Stage::Over;
            }
            return TurnResult::Output(ticket, output);
        }
        let wake = |when| self.timers.push(Reverse((when, token.to_number())));
        let result = request.turn(now, (token, room), &mut self.spooler, buffer, wake);
        let output = match result {
            ReadResult::Nothing => return TurnResult::Nothing,
            ReadResult::Again => return TurnResult::Again,
            ReadResult::Room => Output::Room,
            ReadResult::Bytes(count) => Output::Bytes(&buffer[..count]),
            ReadResult::Interim(interim) => Output::Interim(interim),
            ReadResult::Switched(count) => {
                self.http.tunnels += 1;
                Output::Switched(&buffer[..count])
            }
            ReadResult::Last(count) => {
                request.stderr_lines.log_line();
                if let Stage::Talks(request_) = std::mem::replace(&mut request.stage, Stage::Over) {
                    self.finish(request_, now);
                }
                Output::Last(&buffer[..count])
            }
            ReadResult::Ended | ReadResult::Failed(_) => {
                let trouble = if let ReadResult::Failed(trouble) = result { Some(trouble) } else { None };
                return self.take_end(request, token, now, trouble);
            }
        };
        TurnResult::Output(ticket, output)
    }

    /// The application has ended, or the client has received the whole response.
    fn take_end(
        &mut self,
        request: &mut AppRequest,
        token: Token,
        now: Time,
        trouble: Option<AppTrouble>,
    ) -> TurnResult<'static> {
        let until = now + request.time;
        match std::mem::replace(&mut request.stage, Stage::Drains(trouble)) {
            Stage::Runs { running, .. } => self.leave(running.process, until),
            Stage::Talks(request_) => match request_.into_again(&mut self.http) {
                Ok((again, permit)) => {
                    let output = self.begin(request, (token, now), again, (permit, None));
                    if matches!(output, Some(Output::Failed(_))) {
                        request.stage = Stage::Over;
                    }
                    return output.map_or(TurnResult::Nothing, |output| TurnResult::Output(request.ticket, output));
                }
                Err(request_) => self.finish(request_, now),
            },
            // It stays for the connection's turn, which may have to report it.
            Stage::Drains(_) => {
                request.stage = Stage::Over;
                let output = trouble.map_or(Output::Ended, Output::Failed);
                return TurnResult::Output(request.ticket, output);
            }
            Stage::Joins | Stage::Follows(_) | Stage::Gathers(..) | Stage::Queued(..) => {}
            Stage::Starting | Stage::Over => {}
        }
        self.look_again = Time::START;
        TurnResult::Again
    }

    /// Finishes a request to a persistent application: its connection is kept, or its permit released.
    fn finish(&mut self, mut request_: Box<BackendRequest>, now: Time) {
        request_.count(false, &mut self.http);
        self.look_again = Time::START;
        let is_http = request_.is_http();
        let Some((backend, mut connection, permit)) = request_.finish() else { return };
        self.sweep_at = self.sweep_at.min(now + SWEEP);
        if is_http {
            return self.pool.keep(&backend, connection, now);
        }
        self.pool.unwatch(&mut connection);
        backend.keep(connection, permit);
        if !self.backends.iter().any(|known| std::ptr::eq(known.as_ptr(), Arc::as_ptr(&backend))) {
            self.backends.push(Arc::downgrade(&backend));
        }
    }

    /// Lets a queued request try for a permit.
    fn try_for_permit(&mut self, request: &mut AppRequest, at: (Token, Time)) -> Option<Output<'static>> {
        let Stage::Queued(work, mut place, waits) = std::mem::replace(&mut request.stage, Stage::Over) else {
            return None;
        };
        if let Some(entered) = self.enter(waits.semaphore(), &work, &mut place) {
            drop(waits);
            let output = self.begin(request, at, (work, place), entered);
            if !matches!(request.stage, Stage::Queued(..)) {
                // If this one got a permit, the next one may too.
                self.look_again = Time::START;
            }
            return output;
        }
        // Another loop may have been faster. The request keeps its position.
        self.queue.entry(waits.number).or_insert_with(|| (at.0, Arc::clone(waits.semaphore())));
        request.stage = Stage::Queued(work, place, waits);
        None
    }
}
