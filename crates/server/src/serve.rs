//! The life of the server: open, give up root, start the loops, obey signals, end.
//!
//! The order at the start is the order of what can only be done earlier: signals are kept back before there is a second
//! thread; ports and the log are opened while we may; then the user changes; then the sites' roots are opened, as the user
//! who will serve them, so that what he may not read is noticed now.
//!
//! This thread then waits for signals. What it does for one it prepares here, where waiting is harmless, and gives the
//! loops the finished thing.

use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use amped_sys::process::{self, User};
use amped_sys::signal::{Signal, Signals};

use crate::access_log::{Sink, Writer};
use crate::arch;
use crate::config::{self, LogTarget, Settings, cli};
use crate::counters::Snapshot;
use crate::disk::Disk;
use crate::listen::{self, Address};
use crate::mailbox::{Mailbox, Message};
use crate::say;
use crate::worker::{Clock, Generation};

/// Descriptors kept back from connections: standard streams, log, epoll, mailboxes, roots, and files that helpers have
/// open for a moment.
const DESCRIPTORS_RESERVED: usize = 64;

/// A server that runs.
struct Server {
    flags: cli::Serve,
    generation: Arc<Generation>,
    addresses: Vec<Address>,
    mailboxes: Vec<Arc<Mailbox>>,
    loops: Vec<JoinHandle<Snapshot>>,
    log: Option<(Arc<Writer>, JoinHandle<()>)>,
    clock: Clock,
}

/// Serves until a signal ends it.
pub fn serve(flags: &cli::Serve) -> ExitCode {
    let settings = match config::load(flags) {
        Ok(settings) => settings,
        Err(error) => {
            say::plain(&error.report(io::IsTerminal::is_terminal(&io::stderr())));
            return ExitCode::from(error.exit_status());
        }
    };
    if flags.print_config {
        return print(&config::print(&settings));
    }
    let server = Signals::block().map_err(|error| format!("cannot keep signals back: {error}")).and_then(|signals| {
        let server = Server::start(flags, settings)?;
        server.greet();
        Ok((server, signals))
    });
    match server {
        Ok((server, signals)) => server.obey(&signals),
        Err(message) => {
            say!("{message}");
            ExitCode::FAILURE
        }
    }
}

/// Prints a text; a reader that has gone is no error.
pub fn print(text: &str) -> ExitCode {
    match io::stdout().lock().write_all(text.as_bytes()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            say!("cannot write to standard output: {error}");
            ExitCode::FAILURE
        }
        _ => ExitCode::SUCCESS,
    }
}

impl Server {
    fn start(flags: &cli::Serve, settings: Settings) -> Result<Server, String> {
        process::raise_descriptor_limit();
        let owner = owner(&settings)?;
        let addresses: Vec<Address> =
            settings.listen.iter().map(|&asked| listen::bind(asked, settings.workers)).collect::<Result<_, _>>()?;
        let target = &settings.log.access;
        let cannot_log = |error: io::Error| cannot_log(target, &error);
        let sink = Sink::open(target, owner.as_ref().map(|(_, user, gid)| (user.uid, *gid))).map_err(cannot_log)?;
        if let Some((name, user, gid)) = &owner {
            process::become_user(name, user.uid, *gid)
                .map_err(|error| format!("cannot become the user {}: {error}", name.to_string_lossy()))?;
        } else if process::is_root() {
            say!("serving as root, who may read every file; give a user to become with --user NAME");
        }

        // Its thread starts, like all others, when there is nothing left to give up.
        let log = sink.map(|sink| Writer::start(sink, target)).transpose().map_err(cannot_log)?;

        let mut server = Server {
            flags: flags.clone(),
            generation: Arc::new(open(settings)?),
            addresses,
            mailboxes: Vec::new(),
            loops: Vec::new(),
            log,
            clock: Clock::start(),
        };
        for n in 0..server.generation.settings.workers {
            server.start_loop(n)?;
        }
        Ok(server)
    }

    fn start_loop(&mut self, n: usize) -> Result<(), String> {
        let mailbox = Arc::new(Mailbox::new().map_err(|error| format!("cannot make a mailbox: {error}"))?);
        let start = arch::Start {
            generation: Arc::clone(&self.generation),
            listeners: listeners_of(&self.addresses, n).map_err(|error| format!("cannot share a listener: {error}"))?,
            mailbox: Arc::clone(&mailbox),
            log: self.log.as_ref().map(|(writer, _)| Arc::clone(writer)),
            clock: self.clock,
        };
        let architecture = self.generation.settings.architecture;
        let thread = thread::Builder::new().name(format!("loop-{n}")).spawn(move || {
            // A loop that dies takes its connections with it; a supervisor that sees the process end starts it anew,
            // one that sees it live on without its loop does not.
            let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| arch::run(architecture, start)));
            match ended {
                Ok(Ok(snapshot)) => snapshot,
                Ok(Err(error)) => die(&format!("loop {n} cannot go on: {error}")),
                Err(_) => die(&format!("loop {n} has failed; this is a bug of amped's")),
            }
        });
        self.loops.push(thread.map_err(|error| format!("cannot start a loop: {error}"))?);
        self.mailboxes.push(mailbox);
        Ok(())
    }

    /// Says where it serves, and how.
    fn greet(&self) {
        let settings = &self.generation.settings;
        let loops = settings.workers;
        let mut text = String::new();
        for address in &self.addresses {
            let port = address.bound.port();
            let host = match address.bound.ip() {
                ip if ip.is_unspecified() => "localhost".to_owned(),
                std::net::IpAddr::V4(ip) => ip.to_string(),
                std::net::IpAddr::V6(ip) => format!("[{ip}]"),
            };
            text += &format!("amped: serving on http://{host}:{port}/");
            if address.bound.ip().is_unspecified() {
                text += " and every other address of this machine";
            }
            text += "\n";
        }
        for root in &settings.roots {
            text += &format!("amped: root {}\n", root.path.display());
        }
        let plural = if loops == 1 { "" } else { "s" };
        text += &format!(
            "amped: architecture {:?}, {loops} loop{plural}, up to {} helpers a loop\n",
            settings.architecture, settings.helpers.max
        )
        .to_lowercase();
        // To standard error: standard output may be the log's.
        say::plain(&text);
    }

    fn obey(mut self, signals: &Signals) -> ExitCode {
        loop {
            match signals.wait() {
                Signal::Terminate | Signal::Interrupt => return self.stop(signals),
                Signal::HangUp => self.reload(),
                Signal::User1 => {
                    if let Some((writer, _)) = &self.log {
                        writer.reopen();
                    }
                }
                Signal::User2 => say::plain(&self.report()),
            }
        }
    }

    /// Reads the configuration again. If anything is wrong with it, nothing changes.
    fn reload(&mut self) {
        match self.prepare() {
            Ok(Prepared { generation, addresses, listeners }) => {
                for (mailbox, listeners) in self.mailboxes.iter().zip(listeners) {
                    mailbox.put(Message::Renew(Arc::clone(&generation)));
                    mailbox.put(Message::Listen(listeners));
                }
                self.generation = generation;
                self.addresses = addresses;
                say!("the new configuration is in force");
            }
            Err(message) => say::plain(&format!("{message}amped: the configuration stays as it was\n")),
        }
    }

    /// Everything that a new configuration needs.
    fn prepare(&self) -> Result<Prepared, String> {
        let settings = config::load(&self.flags).map_err(|error| error.to_string())?;
        let old = &self.generation.settings;
        let mut fixed = Vec::new();
        for (name, changed) in [
            ("architecture", settings.architecture != old.architecture),
            ("workers", settings.workers != old.workers),
            ("user or group", (&settings.user, &settings.group) != (&old.user, &old.group)),
            ("log.access", settings.log.access != old.log.access),
        ] {
            if changed {
                fixed.push(name);
            }
        }
        if !fixed.is_empty() {
            return Err(format!("amped: {} cannot change while the server runs: restart it\n", fixed.join(", ")));
        }
        let workers = settings.workers;
        let line = |message: String| format!("amped: {message}\n");
        let mut addresses = Vec::new();
        // Each old one is taken once: a port of 0 may be asked for several times.
        let mut old: Vec<&Address> = self.addresses.iter().collect();
        for &asked in &settings.listen {
            let known = old.iter().position(|address| address.asked == asked).map(|n| old.remove(n));
            addresses.push(match known {
                Some(known) => known.share().map_err(|error| line(format!("cannot share a listener: {error}")))?,
                None => listen::bind(asked, workers).map_err(line)?,
            });
        }
        let generation = Arc::new(open(settings).map_err(line)?);
        let listeners = (0..workers).map(|n| listeners_of(&addresses, n)).collect::<io::Result<_>>();
        let listeners = listeners.map_err(|error| line(format!("cannot share a listener: {error}")))?;
        Ok(Prepared { generation, addresses, listeners })
    }

    /// How things stand, over all loops. One that does not answer within a second is missing from it.
    fn report(&self) -> String {
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
        format!("{}loops: answered={} of={}\n", sum_up(&snapshots, writer), snapshots.len(), self.mailboxes.len())
    }

    /// Finishes what is under way, within the deadline; a second signal does not wait for it.
    fn stop(self, signals: &Signals) -> ExitCode {
        let deadline = self.generation.settings.stop_deadline;
        say!("finishing the replies under way, for {} s at most (again to stop at once)", deadline.as_secs());
        let at = self.clock.now() + deadline;
        drop(self.addresses);
        for mailbox in &self.mailboxes {
            mailbox.put(Message::Stop(at));
        }
        thread::scope(|scope| {
            // This thread cannot both wait for the loops and for a signal; the other one ends with the process.
            let waiter = thread::Builder::new().spawn_scoped(scope, move || {
                // A loop that fails ends the process itself.
                let snapshots: Vec<_> = self.loops.into_iter().filter_map(|thread| thread.join().ok()).collect();
                let writer = self.log.map(|(writer, thread)| {
                    writer.stop();
                    // Whoever reads the log may have stopped reading. The loops may have used up all the time, so it gets one
                    // more second in any case.
                    let until = at.max(self.clock.now() + Duration::from_secs(1));
                    while !thread.is_finished() && self.clock.now() < until {
                        thread::sleep(Duration::from_millis(2));
                    }
                    if !thread.is_finished() {
                        say!("the log takes nothing any more; its last lines are lost");
                    }
                    writer
                });
                say::plain(&sum_up(&snapshots, writer.as_deref()));
                std::process::exit(0);
            });
            if waiter.is_err() {
                die("cannot start a thread to wait with");
            }
            loop {
                if matches!(signals.wait(), Signal::Terminate | Signal::Interrupt) {
                    die("stopped at once");
                }
            }
        })
    }
}

/// A configuration that can come into force.
struct Prepared {
    generation: Arc<Generation>,
    addresses: Vec<Address>,
    /// Those of each loop.
    listeners: Vec<Vec<OwnedFd>>,
}

fn sum_up(snapshots: &[Snapshot], log: Option<&Writer>) -> String {
    let mut sum = Snapshot::default();
    snapshots.iter().for_each(|snapshot| sum += snapshot);
    format!("{sum}\nlog: lost_lines={}\n", log.map_or(0, Writer::lost_lines))
}

fn die(message: &str) -> ! {
    say!("{message}");
    std::process::exit(1)
}

/// A loop's own descriptors for all listeners.
fn listeners_of(addresses: &[Address], n: usize) -> io::Result<Vec<OwnedFd>> {
    addresses.iter().map(|address| address.listeners[n].try_clone()).collect()
}

/// Opens what a configuration names.
fn open(mut settings: Settings) -> Result<Generation, String> {
    let limit = usize::try_from(process::raise_descriptor_limit()).unwrap_or(usize::MAX);
    let workers = settings.workers;
    // Cached descriptors get no more than a quarter where they are scarce.
    let files_max = limit / 4 / workers;
    settings.budgets.descriptors = settings.budgets.descriptors.min(files_max);
    let reserved = DESCRIPTORS_RESERVED + workers * (settings.budgets.descriptors + settings.helpers.max);
    // Where the limit is low, files and connections share it alike.
    let bearable = (limit - reserved.min(limit / 2)).max(workers);
    let connections = match settings.connections {
        // More would leave no descriptor to open a file with: each of them would be answered 503.
        Some(connections) if connections > bearable => {
            say!(
                "limits.connections is {connections}, but the limit on open files ({limit}) bears about {bearable}, and \
                 no more are taken; raise it (ulimit -n, LimitNOFILE=)"
            );
            bearable
        }
        Some(connections) => connections,
        None => bearable,
    };
    let sites = Arc::clone(&settings.sites);
    let budgets = &settings.budgets;
    let roots = &settings.roots;
    let disk = roots
        .iter()
        .try_for_each(|root| enter(&root.path))
        .and_then(|()| Disk::open(sites, roots, budgets.content_file_max.0, budgets.revalidate));
    let disk = disk.map_err(|(path, error)| cannot_open_root(&path, &error, settings.user.as_deref()))?;
    Ok(Generation { settings, disk: Arc::new(disk), connections_max: connections.div_ceil(workers) })
}

/// Whether we, by now the user who serves, may look up names in this folder; opening it says nothing of that.
fn enter(folder: &Path) -> Result<(), (PathBuf, io::Error)> {
    std::fs::metadata(folder.join(".")).map(|_| ()).map_err(|error| (folder.to_owned(), error))
}

fn cannot_open_root(path: &Path, error: &io::Error, user: Option<&str>) -> String {
    let shown = path.display();
    let way_out = match error.kind() {
        io::ErrorKind::PermissionDenied => format!(
            "; {} must be able to enter it: `chmod a+x` on it and on each folder above it (`namei -l {shown}` shows them)",
            user.map_or("the user who starts the server".to_owned(), |user| format!("the user {user}"))
        ),
        _ => String::new(),
    };
    format!("cannot open the root {shown}: {error}{way_out}")
}

/// Whom to become: the user, by name and number, and the number of the group.
fn owner(settings: &Settings) -> Result<Option<(std::ffi::CString, User, u32)>, String> {
    let Some(name) = &settings.user else {
        return Ok(None);
    };
    let c_name = |name: &str| process::c_string(name).ok_or_else(|| format!("{name:?} is no name"));
    let user = process::user(&c_name(name)?).map_err(|error| format!("cannot look up the user {name}: {error}"))?;
    let user = user.ok_or_else(|| format!("there is no user {name} here (`getent passwd` lists those there are)"))?;
    let gid = match &settings.group {
        None => user.gid,
        Some(group) => process::group(&c_name(group)?)
            .map_err(|error| format!("cannot look up the group {group}: {error}"))?
            .ok_or_else(|| format!("there is no group {group} here (`getent group` lists those there are)"))?,
    };
    if !process::is_root() {
        // Who is that user already has nothing to give up.
        return match process::is_user(user.uid) {
            true => Ok(None),
            false => Err(format!("only root can become the user {name}: start as root, or leave the user out")),
        };
    }
    Ok(Some((c_name(name)?, user, gid)))
}

fn cannot_log(target: &LogTarget, error: &io::Error) -> String {
    match target {
        LogTarget::File(path) => format!("cannot open the log {}: {error}", path.display()),
        LogTarget::Stdout | LogTarget::Off => format!("cannot start the log: {error}"),
    }
}
