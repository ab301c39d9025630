//! The process that obtains and renews certificates (`amped-acme`), seen from the server: starts it, starts it again when
//! it dies, publishes its challenges, and keeps what it reports.
//!
//! The signal thread serves it (`admin`). Its death affects no client: certificates are files, which the server has read.
//! It runs as the server's user, with one descriptor of the server, a socket; the end of either side is the end of the
//! socket, so that neither outlives the other.

use std::collections::{BTreeMap, VecDeque};
use std::fs::{DirBuilder, Permissions};
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use amped_acme_protocol::{Decoder, Order, Reason, Report, Start, Status, encode};
use amped_exporter::Page;
use amped_sys::foreign;
use amped_sys::poll::Awaited;

use crate::app::launch::{Launch, Life, Stream};
use crate::app::manager::{ProcessManager, start_program};
use crate::app::process;
use crate::challenges::Challenges;
use crate::metrics::{AcmeFigures, Expiry};
use crate::say;

/// The name of the program, which is in the directory of the server's own.
const PROGRAM: &str = "amped-acme";

/// Delay before a process that died is started again; it doubles each time, to the maximum.
const RESTART_MIN: Duration = Duration::from_secs(1);
const RESTART_MAX: Duration = Duration::from_secs(3600);

/// How long the process of a server that is replaced may take to end.
const PREDECESSOR_TIME: Duration = Duration::from_secs(2);

/// A process that lived longer than this is started again after the shortest delay.
const LIFE_MIN: Duration = Duration::from_secs(600);

/// Variables of the environment that the process gets: where the system's root certificates are.
const VARIABLES: [&str; 2] = ["SSL_CERT_FILE", "SSL_CERT_DIR"];

/// The process, or when it is started.
#[derive(Debug)]
pub struct Acme {
    start: Start,
    program: PathBuf,
    /// Starts the process, if this one may not.
    launcher: Option<Arc<ProcessManager>>,
    challenges: Arc<Challenges>,
    process: Option<Process>,
    /// When to start it, if there is none; `None`: no certificates are to be obtained any more.
    due: Option<Instant>,
    delay: Duration,
    /// Processes that have ended, or are about to, and must be reaped.
    ended: Vec<process::Process>,
    status: Vec<Status>,
    /// Orders, certificates obtained, and failures so far.
    orders: u64,
    obtained: u64,
    failures: BTreeMap<Reason, u64>,
    /// Commands in progress, by their numbers.
    commands: Vec<u64>,
    results: VecDeque<(u64, Result<String, String>)>,
}

/// A running process.
#[derive(Debug)]
struct Process {
    process: process::Process,
    socket: UnixStream,
    decoder: Decoder,
    /// Bytes that the socket did not take.
    unsent: Vec<u8>,
    started: Instant,
}

impl Acme {
    /// Creates it; the process is started by the first [`turn`](Acme::turn).
    ///
    /// # Errors
    /// A message with a remedy: the program is missing.
    pub fn new(
        start: Start,
        challenges: Arc<Challenges>,
        launcher: Option<Arc<ProcessManager>>,
    ) -> Result<Acme, String> {
        let program = program()?;
        Ok(Acme {
            start,
            program,
            launcher,
            challenges,
            process: None,
            due: Some(Instant::now()),
            delay: RESTART_MIN,
            ended: Vec::new(),
            status: Vec::new(),
            orders: 0,
            obtained: 0,
            failures: BTreeMap::new(),
            commands: Vec::new(),
            results: VecDeque::new(),
        })
    }

    /// Delays the start, until the process that this server replaces has ended its own.
    pub fn wait_for_predecessor(&mut self) {
        self.due = Some(Instant::now() + PREDECESSOR_TIME);
    }

    /// Applies another configuration. A process with the old one ends. `None`: no certificates are to be obtained.
    pub fn renew(&mut self, start: Option<Start>) {
        if start.as_ref() == Some(&self.start) && self.due.is_some() {
            return;
        }
        self.end("the configuration has changed");
        (self.due, self.delay) = (start.as_ref().map(|_| Instant::now()), RESTART_MIN);
        start.into_iter().for_each(|start| self.start = start);
    }

    /// Returns whether nothing is left to do.
    pub fn is_over(&self) -> bool {
        self.due.is_none() && self.ended.is_empty() && self.results.is_empty()
    }

    /// Adds what it waits for.
    pub fn await_in<'a>(&'a self, awaited: &mut Awaited<'a>) {
        match &self.process {
            None => self.due.iter().for_each(|due| awaited.until(*due)),
            Some(process) => {
                awaited.readable(process.socket.as_fd());
                if !process.unsent.is_empty() {
                    awaited.writable(process.socket.as_fd());
                }
            }
        }
    }

    /// Does what is due, without blocking. Returns whether there are new files of certificates.
    pub fn turn(&mut self) -> bool {
        self.ended.retain_mut(|process| !process.has_ended());
        if self.process.is_none() && self.due.is_some_and(|due| due <= Instant::now()) {
            self.start_process();
        }
        let mut is_new = false;
        loop {
            match self.receive() {
                Ok(Some(report)) => is_new |= self.take(report),
                Ok(None) => return is_new,
                Err(error) => {
                    self.lose(&error);
                    return is_new;
                }
            }
        }
    }

    fn start_process(&mut self) {
        match Process::start(&self.program, &self.start, self.launcher.as_deref()) {
            Ok(process) => self.process = Some(process),
            Err(error) => {
                let retry = self.retry();
                say!("cannot start {}: {error}; {retry}", self.program.display());
            }
        }
    }

    /// Schedules the next start, and describes when it is.
    fn retry(&mut self) -> String {
        let text = format!("starting it again in {} s; certificates that are there stay in use", self.delay.as_secs());
        self.due = Some(Instant::now() + self.delay);
        self.delay = (self.delay * 2).min(RESTART_MAX);
        text
    }

    /// Returns the next report; `None`: there is none yet.
    fn receive(&mut self) -> io::Result<Option<Report>> {
        let Some(process) = &mut self.process else { return Ok(None) };
        process.flush()?;
        let mut piece = [0; 16 * 1024];
        loop {
            match process.decoder.take() {
                Ok(Some(report)) => return Ok(Some(report)),
                Ok(None) => {}
                Err(error) => return Err(io::Error::other(format!("{error}; this is a bug in amped"))),
            }
            match process.socket.read(&mut piece) {
                Ok(0) => return Err(io::Error::other("it has ended")),
                Ok(count) => process.decoder.push(&piece[..count]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Handles a report. Returns whether there is a new certificate.
    fn take(&mut self, report: Report) -> bool {
        match report {
            Report::Publish(number, challenges) => {
                if self.challenges.publish(&challenges) {
                    self.send(&Order::Published(number));
                } else {
                    say!("acme: the challenges of an order are too long");
                }
            }
            Report::Log(line) => say!("acme: {}", line.replace(char::is_control, " ")),
            Report::Ordered => self.orders += 1,
            Report::Obtained => {
                self.obtained += 1;
                return true;
            }
            Report::Failed(reason) => *self.failures.entry(reason).or_default() += 1,
            Report::Status(status) => self.status = status,
            Report::Done(number, result) => {
                self.commands.retain(|command| *command != number);
                self.results.push_back((number, result));
            }
        }
        false
    }

    fn send(&mut self, order: &Order) {
        if let Some(process) = &mut self.process {
            process.unsent.extend(encode(order));
            // An error is noticed by the next call.
            let _ = process.flush();
        }
    }

    /// The process has died, or cannot be understood.
    fn lose(&mut self, error: &io::Error) {
        let Some(process) = &mut self.process else { return };
        let pid = process.process.id();
        if process.started.elapsed() >= LIFE_MIN {
            self.delay = RESTART_MIN;
        }
        self.end("the ACME process has died");
        say!("the ACME process {pid} is lost: {error}; {}", self.retry());
    }

    /// Ends the process, by the end of its socket.
    fn end(&mut self, why: &str) {
        self.ended.extend(self.process.take().map(|process| process.process));
        self.challenges.publish(&[]);
        self.results.extend(self.commands.drain(..).map(|number| (number, Err(why.to_owned()))));
    }

    /// Begins a command: renews the certificate of this name, or revokes it. Its result follows under its number.
    ///
    /// # Errors
    /// A message: there is no process.
    pub fn command(&mut self, number: u64, name: &str, revoke: bool) -> Result<(), String> {
        if self.process.is_none() {
            return Err("the ACME process is not running; see the server's log".to_owned());
        }
        let name = name.to_owned();
        self.commands.push(number);
        self.send(&if revoke { Order::Revoke { number, name } } else { Order::Renew { number, name } });
        Ok(())
    }

    /// Takes the result of a command that is complete: its number, and a text for the operator.
    pub fn result(&mut self) -> Option<(u64, Result<String, String>)> {
        self.results.pop_front()
    }

    /// Returns the state of each certificate, as last reported.
    pub fn status(&self) -> &[Status] {
        &self.status
    }

    /// Returns the figures for `/metrics`.
    pub fn figures(&self) -> AcmeFigures {
        let failures =
            Reason::ALL.map(|reason| (reason.name(), self.failures.get(&reason).copied().unwrap_or_default()));
        let next = self.status.iter().map(|status| Expiry {
            labels: Page::labels(&[("file", &status.file.display())]),
            at: Duration::from_secs(status.next_order),
        });
        AcmeFigures {
            orders: self.orders,
            obtained: self.obtained,
            failures: failures.into(),
            next_orders: next.collect(),
        }
    }
}

impl Process {
    fn start(program: &Path, start: &Start, launcher: Option<&ProcessManager>) -> io::Result<Process> {
        let (socket, theirs) = UnixStream::pair()?;
        socket.set_nonblocking(true)?;
        let mut launch = Launch::new(program, Life::Server);
        (launch.streams[0], launch.folder) = (Stream::Given, Some("/".into()));
        launch.variables.extend(VARIABLES.iter().filter_map(|name| Some(((*name).into(), std::env::var_os(name)?))));
        let process = start_program(launcher, &launch, vec![theirs.into()], &mut None)?;
        let unsent = encode(&Order::Start(start.clone()));
        Ok(Process { process, socket, decoder: Decoder::default(), unsent, started: Instant::now() })
    }

    fn flush(&mut self) -> io::Result<()> {
        while !self.unsent.is_empty() {
            match self.socket.write(&self.unsent) {
                Ok(count) => drop(self.unsent.drain(..count)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

/// Returns the program that obtains certificates.
///
/// # Errors
/// A message with a remedy: it is missing.
pub fn program() -> Result<PathBuf, String> {
    let own = std::env::current_exe().map_err(|error| format!("cannot locate {PROGRAM}: {error}"))?;
    let program = own.with_file_name(PROGRAM);
    match program.is_file() {
        true => Ok(program),
        false => Err(format!(
            "{} is missing, which obtains certificates for sites with `acme = true`: install it there (from the sources: \
             `cargo build --release -p {PROGRAM}`)",
            program.display()
        )),
    }
}

/// Creates the state directory, for its owner only, and makes this user its owner. An existing one is kept.
///
/// # Errors
/// A message with a remedy.
pub fn create_state(state: &Path, owner: Option<(u32, u32)>) -> Result<(), String> {
    let shown = state.display();
    let failed = |error: io::Error| {
        format!(
            "cannot create the ACME state directory {shown}: {error}; create it for the server's user, or set `state` in \
             `[tls.acme]`"
        )
    };
    if !state.is_dir() {
        state.parent().map_or(Ok(()), create_parent).map_err(failed)?;
        DirBuilder::new().mode(0o700).create(state).map_err(failed)?;
        if let Some((uid, gid)) = owner {
            foreign::give_created(state, uid, gid).map_err(failed)?;
        }
    }
    let mode = state.metadata().map_err(failed)?.permissions().mode();
    if mode & 0o077 != 0 {
        return Err(format!(
            "the ACME state directory {shown} has private keys and is accessible to others than its owner: `chmod 700 {shown}`"
        ));
    }
    Ok(())
}

/// Creates a directory that everyone may enter, whatever the umask.
fn create_parent(path: &Path) -> io::Result<()> {
    if path.as_os_str().is_empty() || path.is_dir() {
        return Ok(());
    }
    path.parent().map_or(Ok(()), create_parent)?;
    std::fs::create_dir(path)?;
    std::fs::set_permissions(path, Permissions::from_mode(0o755))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn state_directory_is_private_or_refused() {
        let folder = tempfile::tempdir().unwrap();
        let state = folder.path().join("a/b/state");
        create_state(&state, None).unwrap();
        assert_eq!(state.metadata().unwrap().permissions().mode() & 0o777, 0o700);
        create_state(&state, None).unwrap();
        std::fs::set_permissions(&state, Permissions::from_mode(0o750)).unwrap();
        assert!(create_state(&state, None).unwrap_err().contains("chmod 700"));
        std::fs::write(folder.path().join("file"), "").unwrap();
        assert!(create_state(&folder.path().join("file/state"), None).unwrap_err().contains("set `state`"));
    }
}
