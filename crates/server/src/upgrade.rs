//! The upgrade of a running server: another process takes its place, and no connection is refused or cut.
//!
//! The *predecessor* starts the *successor*, its own program with the same arguments, which may be another version by now. It hands
//! its listeners over in the way of a service manager (sd_listen_fds(3)), under names that begin with [`PREFIX`], beside those
//! that it got itself. A socket connects the two: the successor writes [`READY`] to it once it serves, or why it cannot. Then the
//! predecessor drains its connections and ends. Until then nothing has changed for it, so a successor that fails, or takes
//! too long, leaves no trace.
//!
//! Both accept connections from the same queues for a moment. Each has its own caches, applications, fork server, buckets of
//! clients and ticket keys; the ACME process is started by the successor only after that of the predecessor has ended.

use std::env;
use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use amped_sys::poll::Awaited;
use amped_sys::signal::Signal;
use amped_sys::socket;

use crate::app::launch::{Launch, Life};
use crate::app::manager::{ProcessManager, start_program};
use crate::app::process::Process;
use crate::config::settings::ConnectionStart;
use crate::listen::{Address, HandedOver};
use crate::say;

/// The beginning of the names of descriptors that a predecessor hands over.
const PREFIX: &str = "amped-upgrade-";

/// The rest of the name of the socket between the two.
const LINK: &str = "link";

/// The rest of the name of the control socket.
const CONTROL: &str = "control";

/// What the successor writes when it serves.
const READY: &[u8] = b"ready\n";

/// Maximum descriptors that are handed over, as `service_manager` takes them.
const DESCRIPTORS_MAX: usize = 1024;

/// Variables about descriptors and watchdog of the predecessor, which do not concern the successor.
const OWN_VARIABLES: [&str; 4] = ["LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES", "WATCHDOG_PID"];

/// How long a successor that has closed its socket may take to end.
const END_TIME: Duration = Duration::from_secs(1);

/// What a process has inherited.
#[derive(Debug, Default)]
pub struct Inherited {
    /// The listeners of the service manager, whether they are in use or not.
    pub handed_over: Vec<HandedOver>,
    /// The process that it replaces.
    pub predecessor: Option<Predecessor>,
}

impl Inherited {
    /// Sorts descriptors by their names; what cannot be used is reported.
    pub fn of(descriptors: Vec<(String, OwnedFd)>) -> Inherited {
        let (mut inherited, mut link, mut addresses, mut control) = (Inherited::default(), None, Vec::new(), None);
        for (name, descriptor) in descriptors {
            let Some(rest) = name.strip_prefix(PREFIX) else {
                match HandedOver::new(name, descriptor) {
                    Ok(listener) => inherited.handed_over.push(listener),
                    Err((name, error)) => say!(
                        "cannot use {name}, which the service manager has handed over: {error}; only TCP listeners are used"
                    ),
                }
                continue;
            };
            match rest {
                LINK => link = Some(UnixStream::from(descriptor)),
                CONTROL => control = Some(UnixListener::from(descriptor)),
                rest => add_listener(&mut addresses, rest, descriptor),
            }
        }
        let addresses = addresses.into_iter().map(|(_, address)| address).collect();
        inherited.predecessor = link.map(|link| Predecessor { link, addresses, control });
        inherited
    }

    /// Takes over the address that was configured as this one by the predecessor. Port 0 may occur several times.
    pub fn take_address(&mut self, requested: SocketAddr) -> Option<Address> {
        let Predecessor { addresses, .. } = self.predecessor.as_mut()?;
        let at = addresses.iter().position(|address| address.requested == requested)?;
        Some(addresses.remove(at))
    }

    /// Takes over the control socket, if it has this path.
    pub fn take_control(&mut self, path: &Path) -> Option<UnixListener> {
        let Predecessor { control, .. } = self.predecessor.as_mut()?;
        control.take_if(|control| control.local_addr().is_ok_and(|own| own.as_pathname() == Some(path)))
    }

    /// Reports to the predecessor that this process cannot serve.
    pub fn report_failure(self, why: &str) {
        if let Some(mut predecessor) = self.predecessor {
            let _ = predecessor.link.write_all(why.as_bytes());
        }
    }

    /// Closes everything; for a forked process.
    pub fn close(&mut self) {
        *self = Inherited::default();
    }
}

/// Adds a listener of the predecessor to its address: `NUMBER-ADDRESS`, with `_` for `:`.
fn add_listener(addresses: &mut Vec<(String, Address)>, name: &str, listener: OwnedFd) {
    let requested = name.split_once('-').and_then(|(_, address)| address.replace('_', ":").parse::<SocketAddr>().ok());
    match (requested, socket::adopt_listener(&listener)) {
        (Some(requested), Ok(bound)) => match addresses.last_mut() {
            Some((last, address)) if last == name => address.listeners.push(listener),
            _ => {
                let (start, listeners) = (ConnectionStart::default(), vec![listener]);
                addresses.push((name.to_owned(), Address { requested, bound, start, listeners }));
            }
        },
        (_, adopted) => {
            let error = adopted.err().map_or("its name is unknown".to_owned(), |error| error.to_string());
            say!("cannot use the descriptor {PREFIX}{name} of the previous process: {error}");
        }
    }
}

/// The process that this one replaces.
#[derive(Debug)]
pub struct Predecessor {
    link: UnixStream,
    /// Those of its addresses that are not in use here.
    addresses: Vec<Address>,
    control: Option<UnixListener>,
}

impl Predecessor {
    /// Closes the listeners that this process does not use.
    pub fn close_rest(&mut self) {
        self.addresses.clear();
    }

    /// Reports that this process serves. The predecessor then drains its connections.
    pub fn report_ready(mut self) {
        // It has named its control socket otherwise, or has none.
        if let Some(path) =
            self.control.and_then(|control| control.local_addr().ok()?.as_pathname().map(Path::to_owned))
        {
            let _ = std::fs::remove_file(path);
        }
        // If the predecessor has ended, this process serves alone.
        let _ = self.link.write_all(READY);
    }
}

/// The path of this program as it was started, where an upgrade finds the next version.
#[derive(Clone, Debug)]
pub struct Program {
    path: PathBuf,
    arguments: Vec<OsString>,
}

impl Program {
    /// Returns that of this process. Must be called before the directory changes.
    ///
    /// # Errors
    /// When it cannot be found.
    pub fn own() -> io::Result<Program> {
        let mut arguments = env::args_os();
        // Not /proc/self/exe, which is the file itself: a link to the current version would be ignored.
        let name = PathBuf::from(arguments.next().unwrap_or_default());
        let path = if name.components().count() > 1 {
            std::path::absolute(&name)?
        } else {
            let folders = env::var_os("PATH").unwrap_or_default();
            let found = env::split_paths(&folders).map(|folder| folder.join(&name)).find(|path| path.is_file());
            found.map_or_else(env::current_exe, Ok)?
        };
        Ok(Program { path, arguments: arguments.collect() })
    }

    /// Returns its path and arguments.
    pub fn command(&self) -> (PathBuf, Vec<OsString>) {
        (self.path.clone(), self.arguments.clone())
    }
}

/// What a server hands over.
pub struct Inheritance<'a> {
    /// The listeners of the service manager.
    pub handed_over: &'a [HandedOver],
    /// The addresses, with the metrics endpoint: as requested, and the listeners.
    pub addresses: Vec<(SocketAddr, Vec<BorrowedFd<'a>>)>,
    /// The control socket.
    pub control: Option<BorrowedFd<'a>>,
}

impl Inheritance<'_> {
    /// Returns the descriptors with their names.
    fn named(&self) -> Vec<(String, BorrowedFd<'_>)> {
        let mut all: Vec<_> = self.handed_over.iter().map(|one| (one.name.clone(), one.as_fd())).collect();
        let numbered = self.addresses.iter().enumerate().filter(|(_, (requested, _))| {
            // The service manager listens there, and the successor finds it by its address.
            !self.handed_over.iter().any(|one| one.bound == *requested)
        });
        for (number, (requested, listeners)) in numbered {
            let name = format!("{PREFIX}{number}-{}", requested.to_string().replace(':', "_"));
            all.extend(listeners.iter().map(|listener| (name.clone(), *listener)));
        }
        all.extend(self.control.map(|control| (format!("{PREFIX}{CONTROL}"), control)));
        all
    }
}

/// A successor that does not serve yet.
#[derive(Debug)]
pub struct Successor {
    process: Process,
    link: UnixStream,
    due: Instant,
    time: Duration,
    /// What it has written so far.
    said: Vec<u8>,
    /// Signals that this process got meanwhile, and that are for the successor too.
    pub missed: Vec<Signal>,
}

impl Successor {
    /// Starts the program, by this manager if this process may not; it has this time until it serves.
    ///
    /// # Errors
    /// A message with a remedy.
    pub fn start(
        program: &Program,
        inheritance: &Inheritance<'_>,
        time: Duration,
        launcher: Option<&ProcessManager>,
    ) -> Result<Successor, String> {
        let cannot_start = |error: io::Error| format!("cannot start {}: {error}", program.path.display());
        let (link, theirs) = UnixStream::pair().map_err(cannot_start)?;
        link.set_nonblocking(true).map_err(cannot_start)?;
        let mut named = inheritance.named();
        named.push((format!("{PREFIX}{LINK}"), theirs.as_fd()));
        if named.len() > DESCRIPTORS_MAX {
            return Err(format!(
                "there are {} listeners, and at most {DESCRIPTORS_MAX} can be handed over",
                named.len()
            ));
        }
        let (names, descriptors): (Vec<String>, Vec<BorrowedFd<'_>>) = named.into_iter().unzip();
        let inherited = env::vars_os().filter(|(name, _)| !OWN_VARIABLES.iter().any(|own| name == own));
        let names = (OsString::from("LISTEN_FDNAMES"), names.join(":").into());
        let mut launch = Launch::new(&program.path, Life::Successor);
        launch.arguments = program.arguments.clone();
        launch.variables = inherited.chain([names]).collect();
        let descriptors = descriptors.iter().map(|one| one.try_clone_to_owned()).collect::<io::Result<_>>();
        let process = descriptors.and_then(|descriptors| start_program(launcher, &launch, descriptors, &mut None));
        let process = process.map_err(cannot_start)?;
        Ok(Successor { process, link, due: Instant::now() + time, time, said: Vec::new(), missed: Vec::new() })
    }

    /// Returns its process ID.
    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Adds what it waits for.
    pub fn await_in<'a>(&'a self, awaited: &mut Awaited<'a>) {
        awaited.readable(self.link.as_fd());
        awaited.until(self.due);
    }

    /// Returns the outcome, if there is one: it serves, or has ended, and why.
    pub fn turn(&mut self) -> Option<Result<(), String>> {
        let mut piece = [0; 4096];
        loop {
            match self.link.read(&mut piece) {
                Ok(0) => break,
                Ok(count) => self.said.extend_from_slice(&piece[..count]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    if self.said == READY {
                        return Some(Ok(()));
                    }
                    return (self.due <= Instant::now()).then(|| {
                        self.end(Instant::now());
                        Err(format!("the new process did not serve within {} s", self.time.as_secs()))
                    });
                }
                Err(_) => break,
            }
        }
        if self.said == READY {
            return Some(Ok(()));
        }
        let ending = self.end(Instant::now() + END_TIME);
        let why = String::from_utf8_lossy(&self.said);
        Some(Err(if why.is_empty() { ending } else { why.trim_end().to_owned() }))
    }

    /// Ends the process, after this time if it has not ended itself. Returns how it has ended.
    pub fn end(&mut self, after: Instant) -> String {
        loop {
            if self.process.has_ended() {
                // Another part of the server may have reaped it.
                let ending = self.process.ended().map(|ending| ending.to_string());
                return format!("the new process {}", ending.unwrap_or("has ended".to_owned()));
            }
            if after <= Instant::now() {
                // The processes that it has started end with it.
                self.process.kill();
                self.process.wait();
                return "the new process has closed its link to this one".to_owned();
            }
            thread::sleep(Duration::from_millis(1));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn inheritance_is_sorted_by_its_successor() {
        let listener = || TcpListener::bind("127.0.0.1:0").unwrap();
        let (one, two, three, four, managed) = (listener(), listener(), listener(), listener(), listener());
        let any: SocketAddr = "127.0.0.1:0".parse().unwrap();
        let six: SocketAddr = "[::1]:80".parse().unwrap();
        let bound = managed.local_addr().unwrap();
        let handed_over = [HandedOver::new("http".to_owned(), managed.into()).unwrap()];
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("control");
        let control = UnixListener::bind(&path).unwrap();
        let (link, _theirs) = UnixStream::pair().unwrap();
        let fd = |listener: &TcpListener| listener.as_fd().try_clone_to_owned().unwrap();
        let listeners = [fd(&one), fd(&two), fd(&three), fd(&four)];
        let addresses = vec![
            (any, vec![listeners[0].as_fd(), listeners[1].as_fd()]),
            (any, vec![listeners[2].as_fd()]),
            (bound, vec![handed_over[0].as_fd()]),
            (six, vec![listeners[3].as_fd()]),
        ];
        let inheritance = Inheritance { handed_over: &handed_over, addresses, control: Some(control.as_fd()) };
        let mut named = inheritance.named();
        named.push((format!("{PREFIX}{LINK}"), link.as_fd()));
        assert!(named.iter().all(|(name, _)| !name.contains(':')));
        let owned = named.into_iter().map(|(name, one)| (name, one.try_clone_to_owned().unwrap())).collect();
        let mut inherited = Inherited::of(owned);
        assert_eq!(
            inherited.handed_over.iter().map(|one| (&*one.name, one.bound)).collect::<Vec<_>>(),
            [("http", bound)]
        );
        let first = inherited.take_address(any).unwrap();
        assert_eq!((first.bound, first.listeners.len()), (one.local_addr().unwrap(), 2));
        assert_eq!(inherited.take_address(any).unwrap().bound, three.local_addr().unwrap());
        assert!(inherited.take_address(any).is_none() && inherited.take_address(bound).is_none());
        assert_eq!(inherited.take_address(six).unwrap().bound, four.local_addr().unwrap());
        assert!(inherited.take_control(&folder.path().join("other")).is_none());
        assert!(inherited.take_control(&path).is_some());
    }

    #[test]
    fn descriptors_of_a_service_manager_have_no_predecessor() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let inherited = Inherited::of(vec![("a listener".to_owned(), listener.into())]);
        assert_eq!(inherited.handed_over.len(), 1);
        assert!(inherited.predecessor.is_none());
    }
}
