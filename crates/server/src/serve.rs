//! The life of the server: opens everything, drops root, starts the loops, handles signals, stops.
//!
//! The order at the start follows from steps that are possible only early. Signals are blocked before there is a second
//! thread. The program is locked in memory while that is permitted. The fork server is forked before anything is opened
//! that it should not inherit. Ports and the log are opened with the original privileges; then the user changes; then
//! the sites' roots are opened as the user that will serve them, so that missing permissions are noticed now.
//!
//! This thread then waits for signals. It does the work that a signal requires, because blocking is harmless here, and
//! passes the result to the workers, which are threads of this process or separate processes (`processes`).

use std::io::{self, Write};
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use amped_core::event::PreloadResult;
use amped_exporter::Exporter;
use amped_sys::process::{self, OomScore, User};
use amped_sys::signal::{Signal, Signals};
use amped_sys::socket;
use amped_units::{Bytes, Time};

use crate::access_log::{Sink, Writer, end_log};
use crate::acme::{self, Acme};
use crate::admin::{AdminEndpoint, End, Workers};
use crate::app::Apps;
use crate::app::manager::ProcessManager;
use crate::arch;
use crate::arch::amped::FETCHERS_MAX;
use crate::certified::Unusable;
use crate::challenges::Challenges;
use crate::client_counts::ClientCounts;
use crate::clock::Clock;
use crate::config::settings::{ContainSettings, HelperKind, KeyHolder, Listen, LogTarget, MetricsSettings, form};
use crate::config::{self, Settings, cli};
use crate::config_snapshot::ConfigSnapshot;
use crate::confine::{Confinement, look_up_user};
use crate::control::{Control, Orders};
use crate::counters::Snapshot;
use crate::descriptors::{self, Needs, Share};
use crate::disk::{Disk, Rules};
use crate::event_loop::{BLOCKED_MAX, Start};
use crate::heartbeat::Heartbeat;
use crate::helper::fork_server::{self, ForkServer};
use crate::keys::client::{KeyProcess, KeySource};
use crate::keys::manager;
use crate::listen::{self, Address, HandedOver};
use crate::locked;
use crate::mailbox::Mailbox;
use crate::message::{Message, Preload};
use crate::metrics::{StatsSegment, StatsSlot, StatsSlots};
use crate::object_store::ObjectStore;
use crate::object_store::settings::Location;
use crate::open_file::MappedWindows;
use crate::passwords::accounts::AccountFiles;
use crate::passwords::ledger::Ledger;
use crate::passwords::verifier::{Verifier, Waiting};
use crate::processes::{Parts, Pool};
use crate::request_limits::RequestLimits;
use crate::reread::Reread;
use crate::residency::Residency;
use crate::say;
use crate::say::die;
use crate::service_manager::ServiceManager;
use crate::shared_cache::SharedCache;
use crate::tls_config::TlsConfig;
use crate::upgrade::{Inheritance, Inherited, Predecessor, Program, Successor};
use crate::watch::{self, Audience};

/// Descriptors for which the kernel's table has room from the start, if the limit allows: half a MiB of it.
const DESCRIPTORS_ROOM: u64 = 1 << 16;

/// Interval at which certificates and ticket keys are checked. A certificate is replaced once its files have not
/// changed for one interval, since a key is written a moment after its certificate.
const TLS_REFRESH: Duration = Duration::from_secs(2);

/// A running server.
struct Server {
    flags: cli::Serve,
    /// Configured workers; there may be fewer.
    configured_workers: usize,
    workers: Box<dyn Workers>,
    clock: Clock,
    /// When certificates and ticket keys are checked next.
    tls_due: Instant,
    /// Where the loops publish their counters, if they are published.
    segment: Option<Arc<StatsSegment>>,
    service_manager: ServiceManager,
    /// The listeners of the service manager.
    inherited: Inherited,
    /// What an upgrade starts.
    program: Program,
    /// The files that it may open, if that is limited; `None`: any.
    confinement: Option<Confinement>,
}

/// Workers that are threads of this process.
struct Threads {
    generation: Arc<ConfigSnapshot>,
    clock: Clock,
    addresses: Vec<Address>,
    admin: Option<AdminEndpoint>,
    /// Their answers to preload orders.
    answers: Arc<Mailbox<(u64, PreloadResult)>>,
    /// Whether they share their caches, so that one of them is enough to execute an order.
    shared_caches: bool,
    mailboxes: Vec<Arc<Mailbox<Message>>>,
    loops: Vec<JoinHandle<Snapshot>>,
    /// The fork server, if helpers are processes.
    fork_server: Option<ForkServer>,
    log: Option<(Arc<Writer>, JoinHandle<()>)>,
    heartbeat: Heartbeat,
}

/// Serves until a signal stops it, on addresses that it binds or has inherited.
pub fn serve(flags: &cli::Serve, mut inherited: Inherited) -> ExitCode {
    if flags.print_config {
        return print_or_report(config::print(flags));
    }
    let settings = match config::load(flags) {
        Ok(settings) => settings,
        Err(error) => {
            inherited.report_failure(&error.to_string());
            return print_or_report(Err(error));
        }
    };
    let server = Signals::block().map_err(|error| format!("cannot block signals: {error}")).and_then(|signals| {
        let mut server = Server::start(flags, settings, signals, &mut inherited)?;
        server.report_start();
        server.service_manager.is_ready(&server.status());
        server.replace_predecessor();
        Ok((server, signals))
    });
    match server {
        Ok((server, signals)) => server.handle_signals(&signals),
        Err(message) => {
            say!("{message}");
            inherited.report_failure(&message);
            ExitCode::FAILURE
        }
    }
}

/// Prints a page, or on standard error the errors of the configuration.
pub fn print_or_report(page: Result<String, config::Error>) -> ExitCode {
    match page {
        Ok(page) => print(&page),
        Err(error) => {
            say::plain(&error.report(io::IsTerminal::is_terminal(&io::stderr())));
            ExitCode::from(error.exit_status())
        }
    }
}

/// Prints a text; a closed output pipe is not an error.
pub fn print(text: &str) -> ExitCode {
    match io::stdout().lock().write_all(text.as_bytes()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            say!("cannot write to standard output: {error}");
            ExitCode::FAILURE
        }
        _ => ExitCode::SUCCESS,
    }
}

/// Locks the program in memory, or reports that it cannot.
fn lock_program() {
    if let Err(error) = process::lock_program() {
        say!(
            "cannot lock the program in memory ({error}): when memory is short, its code may be paged out and delay all \
             clients; raise the limit on locked memory (ulimit -l, LimitMEMLOCK=)"
        );
    }
}

impl Server {
    fn start(
        flags: &cli::Serve,
        mut settings: Settings,
        signals: Signals,
        inherited: &mut Inherited,
    ) -> Result<Server, String> {
        let program = Program::own().map_err(|error| format!("cannot locate this program: {error}"))?;
        // While there is one thread, as both apply to a thread and those that it starts. Ports and users are not
        // affected: they need privileges that this process has, not ones that a program it starts could gain.
        if settings.contain.no_new_privs {
            process::gain_no_privileges().map_err(|error| format!("cannot drop privileges: {error}"))?;
        }
        if !settings.contain.core_dumps {
            process::forbid_core_dumps();
        }
        process::keep_files_private();
        let descriptors = process::raise_descriptor_limit();
        // While there is one thread; a loop that opens one file too many would wait.
        process::make_room_for_descriptors(descriptors.min(DESCRIPTORS_ROOM));
        let configured_workers = settings.workers;
        settings.workers = share(&settings)?.workers;
        if settings.workers < configured_workers {
            say!(
                "the limit on open files ({descriptors}) allows only {} of {configured_workers} workers; raise it \
                 (ulimit -n, LimitNOFILE=)",
                settings.workers
            );
        }
        process::make_room_for_locked_program();
        let has_children = form(settings.architecture).processes;
        if !has_children {
            lock_program();
        }
        let owner = owner(&settings)?;
        let contain = settings.contain.clone();
        let limits_itself = contain.landlock || contain.seccomp.refusal().is_some();
        let is_confined = limits_itself || script_users(&settings).next().is_some();
        let mut confinement = is_confined.then(|| Confinement::new(&settings, flags.config.as_deref(), &program));
        confinement.as_mut().map_or(Ok(()), Confinement::look_up_users)?;
        // First, since these processes must not inherit what is opened below.
        let fork_server = match settings.helpers.kind {
            HelperKind::Processes if form(settings.architecture).helpers => {
                let fork_server = fork_server::start(settings.workers, signals, || {
                    inherited.close();
                    drop_privileges(owner.as_ref(), &contain)?;
                    confinement.as_mut().map_or(Ok(Vec::new()), Confinement::enforce).map(drop)
                });
                Some(fork_server.map_err(|error| format!("cannot start the fork server: {error}"))?)
            }
            HelperKind::Processes | HelperKind::Threads => None,
        };
        let whose = owner.as_ref().map(|(_, user, gid)| (user.uid, *gid));
        // Before the key process is limited to files that are there.
        create_acme_state(&settings, whose)?;
        if settings.tls.keys == KeyHolder::Process {
            let keys = start_keys(&settings, owner.as_ref())?;
            read_certificates(&mut settings, &KeySource::Process(keys))?;
        }
        report_unused(&inherited.handed_over, &settings);
        let mut addresses: Vec<Address> = Vec::new();
        for &Listen { address, start } in &settings.listen {
            let known = inherited.take_address(address);
            let bound = bind(address, &settings, known, &inherited.handed_over, addresses.iter())?;
            addresses.push(Address { start, ..bound });
        }
        let target = &settings.log.access;
        let cannot_log = |error: io::Error| cannot_log(target, &error);
        let sink = Sink::open(target, whose).map_err(cannot_log)?;
        let control = settings.control.socket.as_ref().map(|path| match inherited.take_control(path) {
            Some(listener) => Ok(Control::on(path, listener)),
            None => Control::open(path, whose),
        });
        let control = control.transpose()?;
        let exporter = settings.metrics.listen.map(|requested| {
            let known = inherited.take_address(requested.0);
            exporter(requested.0, known, &inherited.handed_over, addresses.iter())
        });
        let exporter = exporter.transpose()?;
        let is_upgrade = inherited.predecessor.is_some();
        let segment = new_segment(&settings, is_upgrade)?.map(Arc::new);
        let launcher =
            confinement.as_ref().map(|limits| start_launcher(limits, owner.as_ref(), &contain)).transpose()?;
        drop_privileges(owner.as_ref(), &contain)?;
        if owner.is_none() && process::is_root() {
            let files = if contain.drop_capabilities { "the files of root" } else { "every file" };
            say!("serving as root, which may read {files}; set a user with --user NAME");
        }
        if has_children {
            // The children lock it, because locks are not inherited. This tests, with the privileges that they will
            // have, whether they can, and unlocks it again: if the parent held more memory than a child, the kernel
            // would kill it first when memory runs out, and all children with it.
            lock_program();
            process::unlock_program();
        }

        let oom_score = OomScore::open();
        let launcher = confine(&mut confinement, launcher)?;
        // Threads and processes start only after all privileges are dropped.
        let (generation, clock) = (Arc::new(open(settings, launcher, None)?), Clock::start());
        let mut acme = acme(&generation)?;
        if is_upgrade {
            acme.iter_mut().for_each(Acme::wait_for_predecessor);
        }
        let mut admin = AdminEndpoint::new(control, exporter, acme, &signals).map_err(cannot_receive)?;
        // There, since a forked process must close it.
        admin.predecessor = inherited.predecessor.take();
        admin.predecessor.iter_mut().for_each(Predecessor::close_rest);
        let admin = Some(admin).filter(|admin| !admin.is_empty());
        let workers: Box<dyn Workers> = if form(generation.settings.architecture).processes {
            let slots = segment.clone().map(StatsSlots::of);
            let parts = Parts { generation, addresses, log: sink, clock, signals, slots, oom_score };
            Box::new(Pool::start(parts, admin).map_err(|error| format!("cannot start a process: {error}"))?)
        } else {
            let settings = &generation.settings.log;
            let log = sink.map(|sink| Writer::start(sink, settings, clock)).transpose();
            let log = log.map_err(|error| self::cannot_log(&settings.access, &error))?;
            let answers = Mailbox::new().map_err(|error| format!("cannot create a mailbox: {error}"))?;
            let shared_caches = generation.caches.is_some();
            let (answers, mailboxes, loops) = (Arc::new(answers), Vec::new(), Vec::new());
            let mut threads = Threads {
                generation,
                clock,
                addresses,
                admin,
                answers,
                shared_caches,
                mailboxes,
                loops,
                fork_server,
                log,
                heartbeat: Heartbeat::default(),
            };
            for n in 0..threads.generation.settings.workers {
                threads.add(n, segment.as_ref().map(|segment| segment.slot(n)))?;
            }
            threads.watch();
            Box::new(threads)
        };
        let tls_due = Instant::now() + TLS_REFRESH;
        let (flags, service_manager) = (flags.clone(), ServiceManager::from_environment());
        let inherited = std::mem::take(inherited);
        Ok(Server {
            flags,
            configured_workers,
            workers,
            clock,
            tls_due,
            segment,
            service_manager,
            inherited,
            program,
            confinement,
        })
    }

    fn settings(&self) -> &Settings {
        &self.workers.generation().settings
    }

    /// Returns where it serves, in a line for the service manager.
    fn status(&self) -> String {
        let addresses: Vec<String> = self.workers.addresses().iter().map(|address| address.bound.to_string()).collect();
        format!("serving on {}", addresses.join(", "))
    }

    /// Reports where and how it serves.
    fn report_start(&mut self) {
        let settings = self.settings();
        let mut text = String::new();
        for address in self.workers.addresses() {
            let port = address.bound.port();
            let host = match address.bound.ip() {
                ip if ip.is_unspecified() => "localhost".to_owned(),
                std::net::IpAddr::V4(ip) => ip.to_string(),
                std::net::IpAddr::V6(ip) => format!("[{ip}]"),
            };
            let scheme = if address.start.tls { "https" } else { "http" };
            text += &format!("amped: serving on {scheme}://{host}:{port}/");
            if address.bound.ip().is_unspecified() {
                text += " and all other addresses of this machine";
            }
            text += "\n";
        }
        for root in &settings.roots {
            text += &format!("amped: root {}\n", root.display());
        }
        let form = form(settings.architecture);
        let plural = match (settings.workers, form.worker) {
            (1, _) => "",
            (_, "process") => "es",
            _ => "s",
        };
        let what = format!("{:?}, {} {}{plural}", settings.architecture, settings.workers, form.worker);
        text += &format!("amped: architecture {}", what.to_lowercase());
        if form.helpers {
            let what = match settings.helpers.kind {
                HelperKind::Threads => "helpers",
                HelperKind::Processes => "helper processes",
            };
            text += &format!(", up to {} {what} per loop", settings.helpers.max);
        }
        text += "\n";
        if let Some(AdminEndpoint { exporter: Some(exporter), .. }) = self.workers.admin() {
            text += &format!("amped: metrics on http://{}/metrics\n", exporter.address());
        }
        if self.confinement.as_ref().is_some_and(|limits| limits.limits_files) {
            text += "amped: Landlock limits this server to its own files\n";
        }
        if self.confinement.as_ref().is_some_and(|limits| limits.limits_calls.is_some()) {
            text += "amped: seccomp limits this server to the system calls that it needs\n";
        }
        // To standard error: standard output may be used for the log.
        say::plain(&text);
    }

    fn handle_signals(mut self, signals: &Signals) -> ExitCode {
        loop {
            let mut patience = self.workers.patience().min(self.refresh_tls());
            patience = patience.min(self.service_manager.watch(|| self.workers.loops_turn()));
            let admin = self.workers.admin().take();
            if let Some(admin) = &admin {
                admin.wait(&*self.workers, patience);
                patience = Duration::ZERO;
            }
            *self.workers.admin() = admin;
            match signals.wait_for(patience) {
                Some(Signal::Terminate | Signal::Interrupt) => return self.stop(signals),
                Some(Signal::HangUp) => {
                    self.note_for_successor(Signal::HangUp);
                    self.reload(signals);
                }
                Some(Signal::User1) => {
                    self.note_for_successor(Signal::User1);
                    self.workers.reopen_log();
                }
                Some(Signal::User2) => self.begin_upgrade(signals),
                Some(Signal::Quit) => say::plain(&self.report()),
                Some(Signal::Child) | None => {}
            }
            // First, since the workers reap all children.
            if let Some(pid) = self.follow_upgrade() {
                return self.give_way(pid, signals);
            }
            self.workers.look_after();
            if let Some(mut admin) = self.workers.admin().take() {
                let sites = Arc::clone(&self.settings().sites);
                admin.turn(&sites, &mut *self.workers, self.segment.as_deref());
                let wants_upgrade =
                    admin.successor.is_none() && admin.control.as_ref().is_some_and(Control::wants_upgrade);
                *self.workers.admin() = Some(admin);
                if wants_upgrade {
                    self.begin_upgrade(signals);
                }
            }
        }
    }

    /// Keeps certificates and ticket keys up to date; returns the time until it is due again.
    fn refresh_tls(&mut self) -> Duration {
        let Some(tls) = &self.workers.generation().tls else { return Duration::MAX };
        let now = Instant::now();
        if self.tls_due <= now {
            self.tls_due = now + TLS_REFRESH;
            if tls.refresh(Reread::WhenSettled) {
                self.workers.refresh_tls();
            }
        }
        self.tls_due - now
    }

    /// Reloads the configuration. If there is any error, nothing changes.
    fn reload(&mut self, signals: &Signals) {
        self.service_manager.is_reloading();
        let line = |message: String| format!("amped: {message}\n");
        let renewed = self.prepare().and_then(|(generation, addresses)| {
            let acme = acme(&generation).map_err(line)?;
            self.workers.renew(generation, addresses).map_err(line).map(|()| acme)
        });
        let outcome = match renewed {
            Err(message) => {
                say::plain(&format!("{message}amped: keeping the current configuration\n"));
                "; the last reload failed, see the log"
            }
            Ok(acme) => {
                self.settings().keys.process().iter().for_each(|keys| keys.commit());
                if let Err(error) = self.renew_acme(acme, signals) {
                    say!("{}: no certificates are obtained; reload again", cannot_receive(error));
                }
                // The loops apply it between two turns; one that waits for the disk is not waited for.
                match self.workers.report() {
                    (_, applied, of) if applied < of => say!(
                        "the new configuration is in force; {} of {of} loops are busy and will apply it",
                        of - applied
                    ),
                    _ => say!("the new configuration is in force"),
                }
                ""
            }
        };
        self.service_manager.is_ready(&(self.status() + outcome));
    }

    /// Applies what the new configuration says about certificates to obtain.
    fn renew_acme(&mut self, new: Option<Acme>, signals: &Signals) -> io::Result<()> {
        let start = self.settings().acme.as_ref().map(|acme| acme.start.clone());
        match (self.workers.admin(), start) {
            (Some(AdminEndpoint { acme: Some(acme), .. }), start) => acme.renew(start),
            (Some(admin), _) => admin.acme = new,
            (admin, Some(_)) => *admin = Some(AdminEndpoint::new(None, None, new, signals)?),
            (None, None) => {}
        }
        Ok(())
    }

    /// Creates everything that a new configuration needs.
    fn prepare(&self) -> Result<(Arc<ConfigSnapshot>, Vec<Address>), String> {
        let mut settings = config::load(&self.flags).map_err(|error| self.explain(error.to_string()))?;
        let old = self.settings();
        let mut fixed = Vec::new();
        for (name, changed) in [
            ("architecture", settings.architecture != old.architecture),
            ("workers", settings.workers != self.configured_workers),
            ("user or group", (&settings.user, &settings.group) != (&old.user, &old.group)),
            ("log.access", settings.log.access != old.log.access),
            ("helpers.kind", settings.helpers.kind != old.helpers.kind),
            ("send.residency", settings.send.residency != old.send.residency),
            ("send.content", settings.send.content != old.send.content),
            ("send.mapped_bytes", settings.send.mapped_bytes != old.send.mapped_bytes),
            ("tls.keys", settings.tls.keys != old.tls.keys),
            ("control.socket", settings.control != old.control),
            ("optimise.pool_epoll", settings.optimise.pool_epoll != old.optimise.pool_epoll),
            ("[contain]", settings.contain != old.contain),
            ("metrics.file", settings.metrics.file != old.metrics.file),
            ("metrics.listen", settings.metrics.listen != old.metrics.listen),
        ] {
            if changed {
                fixed.push(name);
            }
        }
        if !fixed.is_empty() {
            return Err(format!("amped: {} cannot change while the server runs: restart it\n", fixed.join(", ")));
        }
        settings.workers = old.workers;
        let line = |message: String| format!("amped: {message}\n");
        if settings.tls.keys == KeyHolder::Process {
            let read = read_certificates(&mut settings, &old.keys);
            read.map_err(|message| self.explain(line(message)))?;
        }
        if let Some(confinement) = &self.confinement {
            let new = Confinement::new(&settings, self.flags.config.as_deref(), &self.program);
            confinement.admits(&new).map_err(line)?;
        } else if let Some(user) = script_users(&settings).next() {
            return Err(line(format!("scripts cannot run as {user} from a reload on: restart the server")));
        }
        let mut addresses = Vec::new();
        // Each old one is used once: port 0 may be configured several times.
        let mut old: Vec<&Address> = self.workers.addresses().iter().collect();
        for &Listen { address: requested, start } in &settings.listen {
            let known = old.iter().position(|address| address.requested == requested).map(|n| old.remove(n));
            let address = match known {
                Some(known) => known.share().map_err(|error| line(cannot_share(error)))?,
                None => {
                    let own = self.workers.addresses().iter().chain(&addresses);
                    bind(requested, &settings, None, &self.inherited.handed_over, own).map_err(line)?
                }
            };
            addresses.push(Address { start, ..address });
        }
        create_acme_state(&settings, None).map_err(line)?;
        let current = self.workers.generation();
        let opened = open(settings, current.apps.launcher().cloned(), Some(current));
        let generation = Arc::new(opened.map_err(line).map_err(|message| self.explain(message))?);
        Ok((generation, addresses))
    }

    /// Adds to an error of a reload that the server may not open every file, if that may be its cause.
    fn explain(&self, mut message: String) -> String {
        if self.confinement.as_ref().is_some_and(|limits| limits.limits_files)
            && message.to_lowercase().contains("permission denied")
        {
            message += "amped: Landlock limits this server to the files that its configuration named at the start (`contain.landlock`); to \
                        use others, restart it, or `amped upgrade`\n";
        }
        message
    }

    /// Returns the statistics of all workers, except those that do not answer within a second.
    fn report(&mut self) -> String {
        let (sum, answered, of) = self.workers.report();
        let shared = &self.workers.generation().shared;
        let shared = shared.as_ref().map_or(String::new(), |shared| format!("{}\n", shared.counts()));
        let control = match self.workers.admin() {
            Some(AdminEndpoint { control: Some(control), .. }) => format!("control: orders={}\n", control.orders()),
            _ => String::new(),
        };
        format!("{sum}{shared}{control}loops: answered={answered} of={of}\n")
    }

    /// Finishes requests in progress, within the deadline; a second signal ends the server at once.
    fn stop(mut self, signals: &Signals) -> ExitCode {
        if let Some(AdminEndpoint { control, successor, .. }) = self.workers.admin().take() {
            control.into_iter().for_each(Control::close);
            successor.into_iter().for_each(|mut successor| drop(successor.end(Instant::now())));
        }
        self.service_manager.is_stopping();
        let deadline = self.settings().stop.deadline;
        say!("finishing requests in progress, for at most {} s (signal again to stop at once)", deadline.as_secs());
        let at = self.clock.now() + deadline;
        self.workers.stop(at, End::Stop, signals)
    }

    /// Starts the program again, which takes over once it serves.
    fn begin_upgrade(&mut self, signals: &Signals) {
        let admin = match self.workers.admin().take() {
            Some(admin) => Ok(admin),
            None => AdminEndpoint::new(None, None, None, signals),
        };
        let mut admin = match admin {
            Ok(admin) => admin,
            Err(error) => return say!("cannot upgrade: {}", cannot_receive(error)),
        };
        let started = match admin.successor {
            Some(_) => {
                say!("an upgrade is in progress already");
                Ok(())
            }
            None => self.start_successor(&admin).map(|successor| {
                say!("starting process {} in place of this one", successor.pid());
                admin.successor = Some(successor);
            }),
        };
        *self.workers.admin() = Some(admin);
        if let Err(why) = started {
            self.upgrade_failed(why);
        }
    }

    fn start_successor(&self, admin: &AdminEndpoint) -> Result<Successor, String> {
        let settings = self.settings();
        let addresses = self.workers.addresses().iter();
        let addresses = addresses.map(|one| (one.requested, one.listeners.iter().map(AsFd::as_fd).collect()));
        let exporter = admin.exporter.as_ref().zip(settings.metrics.listen);
        let exporter = exporter.map(|(exporter, requested)| (requested.0, vec![exporter.listener()]));
        let inheritance = Inheritance {
            handed_over: &self.inherited.handed_over,
            addresses: addresses.chain(exporter).collect(),
            control: admin.control.as_ref().map(Control::listener),
        };
        let launcher = self.workers.generation().apps.launcher().map(|launcher| &**launcher);
        Successor::start(&self.program, &inheritance, settings.stop.upgrade_timeout, launcher)
    }

    /// Follows an upgrade. Returns the process that serves now.
    fn follow_upgrade(&mut self) -> Option<u32> {
        let admin = self.workers.admin().as_mut()?;
        let outcome = admin.successor.as_mut()?.turn()?;
        let successor = admin.successor.take()?;
        let pid = successor.pid();
        if let Err(why) = outcome {
            if let Some(path) = &self.settings().metrics.file {
                StatsSegment::remove_draft(path, pid);
            }
            self.upgrade_failed(why);
            return None;
        }
        successor.missed.into_iter().for_each(|signal| signal.send(pid));
        if let Some(control) = &mut admin.control {
            control.end_upgrade(&Ok(format!("process {pid} serves")));
        }
        Some(pid)
    }

    fn upgrade_failed(&mut self, why: String) {
        say!("the upgrade has failed, and this process goes on: {why}");
        let admin = self.workers.admin();
        if let Some(AdminEndpoint { control: Some(control), .. }) = admin {
            control.end_upgrade(&Err(why));
        }
        admin.take_if(|admin| admin.is_empty());
        self.service_manager.is_ready(&(self.status() + "; the last upgrade failed, see the log"));
    }

    /// Notes a signal that also concerns the process that replaces this one, which may have missed its cause.
    fn note_for_successor(&mut self, signal: Signal) {
        if let Some(AdminEndpoint { successor: Some(successor), .. }) = self.workers.admin() {
            successor.missed.push(signal);
        }
    }

    /// Finishes requests in progress, within the deadline, while another process serves new connections.
    fn give_way(mut self, pid: u32, signals: &Signals) -> ExitCode {
        self.service_manager.is_replaced_by(pid, &self.status());
        // The control socket keeps its name; the ACME process ends.
        drop(self.workers.admin().take());
        self.inherited.close();
        let deadline = self.settings().stop.deadline;
        say!("process {pid} serves; finishing requests in progress, for at most {} s", deadline.as_secs());
        let at = self.clock.now() + deadline;
        self.workers.stop(at, End::Drain, signals)
    }

    /// Reports to the process that this one replaces, if there is one, that this one serves.
    fn replace_predecessor(&mut self) {
        let admin = self.workers.admin();
        let Some(predecessor) = admin.as_mut().and_then(|admin| admin.predecessor.take()) else { return };
        admin.take_if(|admin| admin.is_empty());
        // Once all workers answer: a pool that is still starting closes idle connections in favour of waiting ones.
        self.workers.report();
        if let Some(path) = &self.settings().metrics.file
            && let Err(why) = StatsSegment::take_name(path)
        {
            say!("{why}");
        }
        predecessor.report_ready();
    }
}

impl Threads {
    /// Starts watching directories, if that is enabled.
    fn watch(&self) {
        if self.generation.settings.cache.watch {
            let audience = match &self.generation.caches {
                Some(shared) => Audience::Shared(shared.clone()),
                None => Audience::Workers(self.mailboxes.clone()),
            };
            watch::start(&self.generation.disk, audience);
        }
    }

    fn add(&mut self, n: usize, slot: Option<StatsSlot>) -> Result<(), String> {
        let loops = self.generation.settings.workers;
        let listeners = listen::listeners_of(&self.addresses, n, loops).map_err(cannot_share)?;
        let mailbox = Arc::new(Mailbox::new().map_err(|error| format!("cannot create a mailbox: {error}"))?);
        let start = Start {
            generation: Arc::clone(&self.generation),
            listeners,
            mailbox: Arc::clone(&mailbox),
            log: self.log.as_ref().map(|(writer, _)| Arc::clone(writer)),
            clock: self.clock,
            fork_server: self.fork_server.as_mut().and_then(|fork_server| fork_server.links.pop()),
            slot,
        };
        let architecture = self.generation.settings.architecture;
        let thread = thread::Builder::new().name(format!("loop-{n}")).spawn(move || {
            // A loop that dies loses its connections. A supervisor restarts a process that ends, but not one that
            // continues without its loop.
            let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| arch::run(architecture, start)));
            match ended {
                Ok(Ok(snapshot)) => snapshot,
                Ok(Err(error)) => die(&format!("loop {n} failed: {error}")),
                Err(_) => die(&format!("loop {n} panicked; this is a bug in amped")),
            }
        });
        self.loops.push(thread.map_err(|error| format!("cannot start a loop: {error}"))?);
        self.mailboxes.push(mailbox);
        Ok(())
    }
}

impl Orders for Threads {
    fn preload(&mut self, number: u64, site: u16, path: &Arc<[u8]>) -> usize {
        let order = || {
            let (answers, path) = (Arc::clone(&self.answers), Arc::clone(path));
            let report = Box::new(move |found| answers.put((number, found)));
            Arc::new(Mutex::new(Some(Preload { site, path, report })))
        };
        let shared = self.shared_caches.then(order);
        for mailbox in &self.mailboxes {
            mailbox.put(Message::Preload(shared.clone().unwrap_or_else(order)));
        }
        if self.shared_caches { 1 } else { self.mailboxes.len() }
    }

    fn answers(&mut self, number: u64) -> Vec<PreloadResult> {
        let mut answers = Vec::new();
        self.answers.take(&mut answers);
        // Late answers to earlier orders are dropped.
        answers.into_iter().filter(|(of, _)| *of == number).map(|(_, answer)| answer).collect()
    }

    fn bells(&self) -> Vec<BorrowedFd<'_>> {
        vec![self.answers.as_fd()]
    }
}

impl Workers for Threads {
    fn generation(&self) -> &Arc<ConfigSnapshot> {
        &self.generation
    }

    fn addresses(&self) -> &[Address] {
        &self.addresses
    }

    fn admin(&mut self) -> &mut Option<AdminEndpoint> {
        &mut self.admin
    }

    fn look_after(&mut self) {
        // Without it no helper could be started any more; a supervisor that sees the server end restarts it.
        if let Some(fork_server) = &self.fork_server
            && let Some(ending) = process::has_ended(fork_server.pid)
        {
            die(&format!("the fork server {ending}"));
        }
        if let Some(launcher) = self.generation.apps.launcher()
            && let Some(ending) = launcher.has_ended()
        {
            die(&format!("the process manager {ending}"));
        }
        if let Some(keys) = self.generation.settings.keys.process()
            && let Some(ending) = keys.has_ended()
        {
            die(&format!("the key manager {ending}"));
        }
    }

    fn renew(&mut self, generation: Arc<ConfigSnapshot>, addresses: Vec<Address>) -> Result<(), String> {
        let loops = self.mailboxes.len();
        let listeners = (0..loops).map(|n| listen::listeners_of(&addresses, n, loops));
        let listeners = listeners.collect::<io::Result<Vec<_>>>().map_err(cannot_share)?;
        for (mailbox, listeners) in self.mailboxes.iter().zip(listeners) {
            mailbox.put(Message::Renew(Arc::clone(&generation)));
            mailbox.put(Message::Listen(listeners));
        }
        if let Some((writer, _)) = &self.log {
            writer.renew(&generation.settings.log);
        }
        if let Some(notes) = self.generation.disk.notes() {
            notes.stop();
        }
        (self.generation, self.addresses) = (generation, addresses);
        self.watch();
        Ok(())
    }

    fn reopen_log(&mut self) {
        if let Some((writer, _)) = &self.log {
            writer.reopen();
        }
    }

    fn report(&mut self) -> (Snapshot, usize, usize) {
        let (to, from) = channel();
        for mailbox in &self.mailboxes {
            mailbox.put(Message::Report(to.clone()));
        }
        drop(to);
        let until = Instant::now() + Duration::from_secs(1);
        let mut snapshots = Vec::new();
        while let Ok(snapshot) = from.recv_timeout(until.saturating_duration_since(Instant::now())) {
            snapshots.push(snapshot);
        }
        let writer = self.log.as_ref().map(|(writer, _)| &**writer);
        (self.generation.sum_up(&snapshots, writer), snapshots.len(), self.mailboxes.len())
    }

    fn loops_turn(&mut self) -> bool {
        let needed = if self.generation.pooled() { 1 } else { self.mailboxes.len() };
        self.heartbeat.beat(&self.mailboxes, needed)
    }

    fn stop(self: Box<Self>, at: Time, end: End, signals: &Signals) -> ExitCode {
        let Threads { generation, clock, addresses, mailboxes, loops, log, .. } = *self;
        drop(addresses);
        for mailbox in &mailboxes {
            mailbox.put(match end {
                End::Stop => Message::Stop(at),
                End::Drain => Message::Drain(at),
            });
        }
        thread::scope(|scope| {
            // This thread cannot wait for both the loops and a signal; the other thread ends with the process.
            let waiter = thread::Builder::new().spawn_scoped(scope, move || {
                // A loop that fails ends the process itself.
                let snapshots: Vec<_> = loops.into_iter().filter_map(|thread| thread.join().ok()).collect();
                let writer = log.map(|log| end_log(log, clock, at));
                generation.apps.stop();
                say::plain(&generation.sum_up(&snapshots, writer.as_deref()).to_string());
                std::process::exit(0);
            });
            if waiter.is_err() {
                die("cannot start the thread that waits for the loops");
            }
            loop {
                if matches!(signals.wait(), Signal::Terminate | Signal::Interrupt) {
                    die("stopped by a second signal");
                }
            }
        })
    }
}

/// Creates the directories of what the server obtains.
fn create_acme_state(settings: &Settings, owner: Option<(u32, u32)>) -> Result<(), String> {
    let Some(acme) = &settings.acme else { return Ok(()) };
    acme::create_state(&settings.tls.acme.state, owner)?;
    acme::create_state(&acme.start.state, owner)
}

/// Creates the supervisor of the ACME process, if certificates are to be obtained.
fn acme(generation: &ConfigSnapshot) -> Result<Option<Acme>, String> {
    let (Some(acme), Some(challenges)) = (&generation.settings.acme, &generation.challenges) else { return Ok(None) };
    Acme::new(acme.start.clone(), Arc::clone(challenges), generation.apps.launcher().cloned()).map(Some)
}

fn cannot_receive(error: io::Error) -> String {
    format!("cannot receive signals: {error}")
}

fn cannot_share(error: io::Error) -> String {
    format!("cannot duplicate a listener: {error}")
}

/// Reports listeners that were handed over, and that the configuration does not use.
fn report_unused(handed_over: &[HandedOver], settings: &Settings) {
    let used = settings.listen.iter().map(|listen| listen.address);
    let used: Vec<SocketAddr> = used.chain(settings.metrics.listen.map(|requested| requested.0)).collect();
    for HandedOver { name, bound, .. } in handed_over.iter().filter(|listener| !used.contains(&listener.bound)) {
        say!(
            "the service manager listens on {bound} ({name}), and the configuration does not: connections to it are not \
             accepted; add \"{bound}\" to `listen` and reload, or stop the socket unit"
        );
    }
}

/// Binds an address, with a listener for each worker or one for a whole pool, unless it is `known` or was handed over.
fn bind<'a>(
    requested: SocketAddr,
    settings: &Settings,
    known: Option<Address>,
    handed_over: &[HandedOver],
    own: impl Iterator<Item = &'a Address> + Clone,
) -> Result<Address, String> {
    let loops = if form(settings.architecture).pool { 1 } else { settings.workers };
    let known = known.map_or_else(|| listen::handed_over(requested, handed_over), |known| Ok(Some(known)));
    let address = match known.map_err(cannot_share)? {
        Some(address) => address,
        None => listen::bind(requested, loops, own)?,
    };
    if settings.blocks() {
        for listener in &address.listeners {
            socket::make_blocking(listener, BLOCKED_MAX)
                .map_err(|error| format!("cannot make the listener blocking: {error}"))?;
        }
    }
    Ok(address)
}

/// Binds the address of the metrics endpoint.
fn exporter<'a>(
    requested: SocketAddr,
    known: Option<Address>,
    handed_over: &[HandedOver],
    own: impl Iterator<Item = &'a Address> + Clone,
) -> Result<Exporter, String> {
    let known = known.map_or_else(|| listen::handed_over(requested, handed_over), |known| Ok(Some(known)));
    let listened = known.map_err(cannot_share).transpose().unwrap_or_else(|| listen::bind(requested, 1, own)).and_then(
        |mut address| {
            let listener = address.listeners.pop().ok_or("no listener")?;
            Exporter::new(listener).map_err(|error| format!("cannot listen on {requested}: {error}"))
        },
    );
    listened.map_err(|text| format!("metrics endpoint: {text}"))
}

/// Creates the memory for statistics, if they are published. If workers are processes there is room for twice as many,
/// since after a reload the old ones are still finishing their responses.
fn new_segment(settings: &Settings, is_upgrade: bool) -> Result<Option<StatsSegment>, String> {
    let MetricsSettings { file, listen, .. } = &settings.metrics;
    if file.is_none() && listen.is_none() {
        return Ok(None);
    }
    let loops = if form(settings.architecture).processes { 2 * settings.workers } else { settings.workers };
    StatsSegment::new(file.as_deref(), loops, is_upgrade).map(Some)
}

/// Returns what the limit on open files allows for a configuration.
fn share(settings: &Settings) -> Result<Share, String> {
    let form = form(settings.architecture);
    let limit = usize::try_from(process::raise_descriptor_limit()).unwrap_or(usize::MAX);
    let needs = Needs {
        pool: form.pool,
        processes: form.processes,
        workers: settings.workers,
        addresses: settings.listen.len(),
        roots: settings.roots.len(),
        helpers: if form.helpers { settings.helpers.max } else { 0 },
        helper_processes: form.helpers && settings.helpers.kind == HelperKind::Processes,
        files: settings.cache.descriptors,
        key_process: settings.tls.keys == KeyHolder::Process,
        exchanges: settings
            .apps
            .iter()
            .flatten()
            .map(|app| app.max_processes.unwrap_or(20))
            // A request to an object store needs a connection, and the files of an object.
            .chain(settings.store.iter().map(|_| FETCHERS_MAX))
            .fold(0, usize::saturating_add),
    };
    descriptors::share(limit, &needs).map_err(|least| {
        format!("the limit on open files is {limit}, and the server needs at least {least}: raise it (ulimit -n, LimitNOFILE=)")
    })
}

/// Starts the key process. Must be called while there is one thread.
fn start_keys(settings: &Settings, owner: Option<&(std::ffi::CString, User, u32)>) -> Result<Arc<KeyProcess>, String> {
    let contain = &settings.contain;
    let give_up_rights = || {
        drop_privileges(owner, contain)?;
        // The server reports what is not in force.
        Confinement::of_keys(settings).enforce().map(drop)
    };
    // In AMPED signatures yield to loops, as the thread that waits for them does.
    let yields = form(settings.architecture).helpers;
    let started = manager::start(settings.key_pairs(), yields, give_up_rights);
    started.map_err(|error| format!("cannot start the key process: {error}"))
}

/// Reads the certificates and has their keys read, from this source.
///
/// # Errors
/// A message with a remedy for each that cannot be used.
fn read_certificates(settings: &mut Settings, source: &KeySource) -> Result<(), String> {
    let unusable = settings.read_certificates(source);
    let lines: Vec<String> =
        unusable.into_iter().map(|Unusable { message, help, .. }| format!("{message}: {help}")).collect();
    if lines.is_empty() { Ok(()) } else { Err(lines.join("\namped: ")) }
}

/// Returns the users of scripts.
fn script_users(settings: &Settings) -> impl Iterator<Item = &str> {
    settings.apps.iter().flatten().filter_map(|app| app.user.as_deref())
}

/// Starts the process that starts programs in place of this one. It is not limited itself, and keeps the privilege to change to the
/// users of scripts if there are any. Must be called while there is one thread.
fn start_launcher(
    limits: &Confinement,
    owner: Option<&(std::ffi::CString, User, u32)>,
    contain: &ContainSettings,
) -> Result<ProcessManager, String> {
    let give_up_rights = || match limits.programs.users.is_empty() {
        true => drop_privileges(owner, contain),
        false => {
            let owner = owner.map(|(name, user, gid)| (name.as_c_str(), user.uid, *gid));
            process::keep_changing_users(owner).map_err(|error| format!("cannot drop privileges: {error}"))
        }
    };
    let launcher = ProcessManager::start_launcher(limits.programs.clone(), give_up_rights);
    launcher.map_err(|error| format!("cannot start the process manager: {error}"))
}

/// Limits this process in what is limited and the kernel can limit. Returns the launcher, if it is needed. Must be called while there is
/// one thread.
fn confine(
    confinement: &mut Option<Confinement>,
    launcher: Option<ProcessManager>,
) -> Result<Option<Arc<ProcessManager>>, String> {
    let (Some(limits), Some(launcher)) = (&mut *confinement, launcher) else { return Ok(None) };
    limits.look_again();
    limits.enforce()?.iter().for_each(|missing| say!("{missing}"));
    if limits.is_needed() {
        return Ok(Some(Arc::new(launcher)));
    }
    launcher.stop();
    *confinement = None;
    Ok(None)
}

/// Opens everything that a configuration names. `launcher` starts programs, if this process may not.
fn open(
    mut settings: Settings,
    launcher: Option<Arc<ProcessManager>>,
    old: Option<&ConfigSnapshot>,
) -> Result<ConfigSnapshot, String> {
    let form = form(settings.architecture);
    // The budgets that the processes would have together without it, and files up to the same size.
    let shared = settings.cache.clone();
    let is_shared = form.processes && shared.shared && settings.optimise.content_cache;
    let is_shared = is_shared && shared.content_bytes.0 > 0 && shared.path_entries > 0;
    settings.cache = settings.optimise.budgets(settings.cache.clone());
    if !settings.optimise.dns_cache {
        settings.log.hostname_entries = 0;
    }
    if !settings.send.content.keeps_bodies() {
        settings.cache.max_content_file_bytes = Bytes(0);
    }
    if form.processes {
        // The configured budgets apply to all together (Flash, section 6: its MP has smaller caches in each process).
        settings.cache = settings.cache.split(settings.workers);
        if is_shared {
            // The shared cache stores the bodies, once.
            settings.cache.content_bytes = Bytes(0);
        }
    }
    // Threads that share caches have a single set.
    let workers = if form.pool { 1 } else { settings.workers };
    let Share { files, connections: supported, .. } = share(&settings)?;
    settings.cache.descriptors = files;
    let connections = match settings.limits.max_connections {
        // More connections would leave no descriptors for files: their requests would get 503.
        Some(connections) if !form.pool && connections > supported => {
            let limit = process::raise_descriptor_limit();
            say!(
                "limits.max_connections is {connections}, but the limit on open files ({limit}) allows only about {supported}; raise it (ulimit -n, LimitNOFILE=)"
            );
            supported
        }
        Some(connections) => connections,
        None => supported,
    };
    let sites = Arc::clone(&settings.sites);
    let budgets = &settings.cache;
    let roots = &settings.roots;
    let rules = Rules {
        secrets: settings.secrets().into_iter().map(PathBuf::into_os_string).collect(),
        max_content_file_bytes: budgets.max_content_file_bytes.0,
        max_unpacked_file_bytes: budgets.max_unpacked_file_bytes.0,
        revalidate: budgets.revalidate,
    };
    let store = object_store(&settings, old)?;
    let open = || Disk::open(sites, roots, rules, store.as_ref());
    let disk = roots.iter().try_for_each(|root| enter(root)).and_then(|()| open());
    let disk = disk.map_err(|(path, error)| cannot_open_root(&path, &error, settings.user.as_deref()))?;
    if settings.send.residency == config::settings::Residency::Mincore
        && let Some(root) = roots.iter().find(|root| seems_foreign(root))
    {
        say!(
            "residency \"mincore\": the files in {} seem to belong to another user, and the kernel reports these as always \
             in memory (since Linux 5.2), so the loop will wait for the disk; use `nowait`",
            root.display()
        );
    }
    // The page cache and the mappings outlive a configuration.
    let (residency, mapped) = match old {
        Some(ConfigSnapshot { disk, .. }) => (Arc::clone(disk.residency()), disk.mapped().clone()),
        None => {
            let bytes = settings.send.mapped_bytes.0;
            let bytes = if form.processes { bytes / settings.workers as u64 } else { bytes * workers as u64 };
            (Arc::new(Residency::new(settings.send.residency)), MappedWindows::new(bytes))
        }
    };
    let disk = disk.with(residency, mapped);
    let caches = form.shared_caches.then(|| {
        let shared = locked::caches(&settings.cache);
        match old {
            Some(ConfigSnapshot { settings: old, caches: Some(contents), .. }) if old.cache == settings.cache => {
                shared.with_contents_of(contents)
            }
            _ => shared,
        }
    });
    let shared = is_shared.then(|| SharedCache::new(&shared)).transpose();
    let shared = shared.map_err(|error| format!("cannot create the shared cache: {error}"))?.map(Arc::new);
    let connections_max = if form.pool { 1 } else { connections.div_ceil(workers) };
    let apps = Apps::new(&settings.apps, &settings.spool, form.processes, launcher, old.map(|old| &old.apps));
    let apps = apps.map_err(|error| format!("cannot start the applications: {error}"))?;
    let verifier = verifier(&settings, old).map_err(|error| format!("cannot create the password verifier: {error}"))?;
    let cannot_limit = |error| format!("cannot create the limits of clients: {error}");
    let client_counts = client_counts(&settings, old).map_err(cannot_limit)?;
    let limiter = limiter(&settings, old, client_counts.as_ref()).map_err(cannot_limit)?;
    if settings.has_tls() && !settings.contain.core_dumps {
        // Private keys are in it from now on.
        process::keep_memory_private().map_err(|error| format!("cannot protect private keys: {error}"))?;
    }
    let challenges = match old.and_then(|old| old.challenges.clone()) {
        None if settings.acme.is_some() => {
            let new = Challenges::new().map_err(|error| format!("cannot create the memory for challenges: {error}"))?;
            Some(Arc::new(new))
        }
        known => known,
    };
    let tls = TlsConfig::new(&settings, challenges.as_ref(), old.and_then(|old| old.tls.as_ref()))?;
    let disk = Arc::new(disk);
    Ok(ConfigSnapshot {
        settings,
        disk,
        store,
        verifier,
        limiter,
        client_counts,
        connections_max,
        caches,
        shared,
        apps,
        tls,
        challenges,
    })
}

/// Opens the local copies of the object store, if a root is in it. What is known of it outlives a configuration with the same one.
fn object_store(settings: &Settings, old: Option<&ConfigSnapshot>) -> Result<Option<Arc<ObjectStore>>, String> {
    let Some(store) = &settings.store else { return Ok(None) };
    let same = old.and_then(|old| old.store.as_ref()).filter(|old| old.settings() == &**store);
    if let Some(same) = same {
        return Ok(Some(Arc::clone(same)));
    }
    let opened = ObjectStore::open(Arc::clone(store)).map_err(|error| {
        let directory = store.directory.display();
        format!("cannot use the cache directory {directory}: {error}; it must belong to the user that serves (`[cache] disk`)")
    })?;
    Ok(Some(Arc::new(opened)))
}

/// Creates the password verifier, if a site needs one. Attempts under the previous configuration still count.
fn verifier(settings: &Settings, old: Option<&ConfigSnapshot>) -> io::Result<Option<Verifier>> {
    if settings.accounts.is_empty() {
        return Ok(None);
    }
    let form = form(settings.architecture);
    let waiting = match (form.pool, form.processes) {
        (false, _) => Waiting::Loops,
        (true, false) => Waiting::PoolOfThreads(settings.workers),
        (true, true) => Waiting::PoolOfProcesses(settings.workers),
    };
    let ledger = match old.and_then(|old| old.verifier.as_ref()) {
        Some(verifier) => Arc::clone(verifier.ledger()),
        None => Arc::new(Ledger::new()?),
    };
    let accounts = AccountFiles::new(settings.accounts.clone(), settings.cache.revalidate, ledger)?;
    Ok(Some(Verifier::new(accounts, NonZeroU32::new(settings.limits.max_password_attempts), waiting)))
}

/// Creates the buckets of clients, if a site limits requests. They outlive a configuration with the same limits.
fn limiter(
    settings: &Settings,
    old: Option<&ConfigSnapshot>,
    counts: Option<&Arc<ClientCounts>>,
) -> io::Result<Option<Arc<RequestLimits>>> {
    let Some(counts) = counts.filter(|_| settings.sites.have_limits()) else { return Ok(None) };
    let same = old.filter(|old| old.settings.sites.limits().eq(settings.sites.limits()));
    match same.and_then(|old| old.limiter.clone()) {
        None => RequestLimits::new(Arc::clone(counts)).map(|limits| Some(Arc::new(limits))),
        known => Ok(known),
    }
}

/// Creates the counts of what clients have open, if that is limited. They outlive a configuration.
fn client_counts(settings: &Settings, old: Option<&ConfigSnapshot>) -> io::Result<Option<Arc<ClientCounts>>> {
    if settings.limits.max_connections_per_client == 0 && !settings.sites.have_limits() {
        return Ok(None);
    }
    match old.and_then(|old| old.client_counts.clone()) {
        None => ClientCounts::new(form(settings.architecture).processes).map(|counts| Some(Arc::new(counts))),
        known => Ok(known),
    }
}

/// Returns whether mincore(2) is unreliable for files here, as far as the directory's owner shows.
fn seems_foreign(folder: &Path) -> bool {
    !process::is_root() && std::fs::metadata(folder).is_ok_and(|folder| !process::is_user(folder.uid()))
}

/// Checks that this process, which already runs as the serving user, may look up names in this
/// directory; opening it does not show that.
fn enter(folder: &Path) -> Result<(), (PathBuf, io::Error)> {
    if Location::of(folder).is_some() {
        return Ok(());
    }
    std::fs::metadata(folder.join(".")).map(|_| ()).map_err(|error| (folder.to_owned(), error))
}

fn cannot_open_root(path: &Path, error: &io::Error, user: Option<&str>) -> String {
    let shown = path.display();
    let way_out = match error.kind() {
        io::ErrorKind::PermissionDenied => format!(
            "; {} must be able to enter it: `chmod a+x` it and each directory above it (`namei -l {shown}` shows them)",
            user.map_or("the user that starts the server".to_owned(), |user| format!("the user {user}"))
        ),
        _ => String::new(),
    };
    format!("cannot open root {shown}: {error}{way_out}")
}

/// Returns the user to serve as, with name and UID, and the GID.
fn owner(settings: &Settings) -> Result<Option<(std::ffi::CString, User, u32)>, String> {
    let Some(name) = &settings.user else {
        return Ok(None);
    };
    let (c_name, user) = look_up_user(name, "")?;
    let gid = match &settings.group {
        None => user.gid,
        Some(group) => process::c_string(&**group)
            .map(|group| process::group(&group))
            .ok_or_else(|| format!("{group:?} is not a valid name"))?
            .map_err(|error| format!("cannot look up group {group}: {error}"))?
            .ok_or_else(|| format!("group {group} does not exist (`getent group` lists all groups)"))?,
    };
    if !process::is_root() {
        // A process that already runs as that user has nothing to drop.
        return match process::is_user(user.uid) {
            true => Ok(None),
            false => Err(format!("only root can change to user {name}: start as root, or omit the user")),
        };
    }
    Ok(Some((c_name, user, gid)))
}

/// Changes to the user to serve as, if one is configured, and drops all capabilities.
fn drop_privileges(owner: Option<&(std::ffi::CString, User, u32)>, contain: &ContainSettings) -> Result<(), String> {
    if let Some((name, user, gid)) = owner {
        process::become_user(name, user.uid, *gid)
            .map_err(|error| format!("cannot change to user {}: {error}", name.to_string_lossy()))?;
    }
    if contain.drop_capabilities {
        process::drop_capabilities().map_err(|error| format!("cannot drop capabilities: {error}"))?;
    }
    Ok(())
}

fn cannot_log(target: &LogTarget, error: &io::Error) -> String {
    match target {
        LogTarget::File(path) => format!("cannot open the log {}: {error}", path.display()),
        LogTarget::Stdout | LogTarget::Off => format!("cannot start the log: {error}"),
    }
}
