//! The key manager: opens the files of certificates and keys, and keeps a signer running that reads them.
//!
//! It never reads a key. It keeps the files open: a signer that dies is replaced by one that reads the same files, even if they were
//! opened as root, which is given up by then, or were replaced by others since. It has one thread, so that it can fork.
//!
//! It opens the files of the start with the privileges of the start. Later it opens them as the user that it has become.

use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use amped_sys::file::Patience;
use amped_sys::process::{self, Ending, Fork};
use amped_sys::signal::Signals;
use amped_sys::{poll, socket};

use super::client::{KeyProcess, is_end};
use super::signer::{self, Ends};
use super::{Found, Order, Pair, Task};
use crate::certified::{OpenPair, Unusable};
use crate::portable;
use crate::say;
use crate::say::die;

/// A signer that died sooner than this is replaced only after a delay: the same cause would kill the next one too.
const LIFE_MIN: Duration = Duration::from_secs(1);

/// How long the signer may take to read a pair.
const READ_TIME: Duration = Duration::from_secs(5);

/// Starts the key manager, which opens the files of these pairs and then calls `give_up_rights`. The caller must have one thread.
/// `yields`: loops take precedence over signatures.
///
/// # Errors
/// Those of fork(2).
pub fn start(
    pairs: Vec<Pair>,
    yields: bool,
    give_up_rights: impl FnOnce() -> Result<(), String>,
) -> io::Result<Arc<KeyProcess>> {
    let (control, its_control) = socket::packet_pair()?;
    let (door, its_door) = socket::packet_pair()?;
    // The process keeps one descriptor, and receives the other one.
    socket::send_with_descriptors(&control, &[0], &[its_door.as_fd()], Patience::Now)?;
    drop(its_door);
    // Otherwise both processes would write buffered standard output.
    io::stdout().flush()?;
    let pid = process::split_off(its_control, |control| {
        if let Ok(signals) = Signals::block() {
            signals.leave_to_parent();
        }
        process::set_name(c"key-manager");
        let ended = Manager::new(control, pairs, yields).and_then(|manager| {
            give_up_rights().map_err(io::Error::other)?;
            // A change of the user has permitted it again.
            process::keep_memory_private()?;
            manager.run()
        });
        ended.unwrap_or_else(|error| die(&format!("the key manager failed: {error}")));
    })?;
    Ok(Arc::new(KeyProcess::new(pid, control, door)))
}

struct Manager {
    /// From the main thread. Its end means that the server has ended.
    control: OwnedFd,
    door: OwnedFd,
    pairs: Vec<Opened>,
    signer: Option<SignerProcess>,
    /// When to start the signer, if there is none.
    due: Instant,
    yields: bool,
}

struct Opened {
    pair: Pair,
    files: Rc<OpenPair>,
    /// The server has asked for it since the last configuration came into force.
    is_used: bool,
}

struct SignerProcess {
    pid: u32,
    link: OwnedFd,
}

impl Manager {
    fn new(control: OwnedFd, pairs: Vec<Pair>, yields: bool) -> io::Result<Manager> {
        process::keep_memory_private()?;
        let mut door = Vec::new();
        socket::receive_with_descriptors(&control, &mut [0; 1], &mut door, Patience::Now)?;
        let door = door.pop().ok_or(io::ErrorKind::UnexpectedEof)?;
        let open = |pair: Pair| {
            let (chain, key) = pair.names();
            // If that fails, the order to read it tries again.
            let files = Rc::new(OpenPair::open(chain, key).ok()?);
            Some(Opened { pair, files, is_used: false })
        };
        let pairs = pairs.into_iter().filter_map(open).collect();
        Ok(Manager { control, door, pairs, signer: None, due: Instant::now(), yields })
    }

    /// Runs until the server has ended.
    fn run(mut self) -> io::Result<()> {
        loop {
            if self.signer.is_none() && self.due <= Instant::now() {
                self.start_signer();
            }
            let link = self.signer.as_ref().map(|signer| signer.link.as_fd());
            let patience = match link {
                Some(_) => Duration::MAX,
                None => self.due.saturating_duration_since(Instant::now()),
            };
            let awaited: Vec<_> = [self.control.as_fd()].into_iter().chain(link).collect();
            let ready = poll::wait_readable(&awaited, patience)?;
            if ready.get(1) == Some(&true) {
                self.look_after_signer();
            }
            if ready[0] && !self.execute_order() {
                return Ok(());
            }
        }
    }

    /// Executes an order of the server; `false`: it has ended.
    fn execute_order(&mut self) -> bool {
        match portable::receive(&self.control, &mut Vec::new(), Patience::Wait) {
            Ok(Order::Read(number, pair)) => {
                let found = self.read(pair);
                portable::send(&self.control, &(number, found), &[], Patience::Wait).is_ok()
            }
            Ok(Order::Commit) => {
                self.commit();
                true
            }
            Err(_) => false,
        }
    }

    /// Opens a pair and has it read. If it can be used, it replaces what was known of it.
    fn read(&mut self, pair: Pair) -> Found {
        let known = self.pairs.iter().position(|known| known.pair == pair);
        let (chain, key) = pair.names();
        // Those that only root may open are open since the start.
        let open = || known.map(|n| &self.pairs[n].files).filter(|files| files.is_of(chain, key)).map(Rc::clone);
        let files = OpenPair::open(chain, key).map(Rc::new).or_else(|why| open().ok_or(why))?;
        let public = self.have_read(&pair, &files)?;
        let opened = Opened { pair, files, is_used: true };
        match known {
            Some(n) => self.pairs[n] = opened,
            None => self.pairs.push(opened),
        }
        Ok(public)
    }

    /// Has the signer read these files.
    fn have_read(&mut self, pair: &Pair, files: &OpenPair) -> Found {
        let mut asked = self.ask(pair, files);
        if asked.as_ref().is_err_and(is_end) {
            self.look_after_signer();
            asked = self.ask(pair, files);
        }
        asked.unwrap_or_else(|error| {
            let key = pair.names().1.display();
            let message = format!("cannot read the private key {key}: the key process does not answer: {error}");
            Err(Unusable::key((message, "it is started again; then reload".to_owned())))
        })
    }

    fn ask(&mut self, pair: &Pair, files: &OpenPair) -> io::Result<Found> {
        if self.signer.is_none() {
            self.start_signer();
        }
        self.signer.as_ref().ok_or_else(|| io::Error::other("it is not running"))?.have_read(pair, files)
    }

    /// Forgets the pairs that neither the new configuration nor the one before has.
    fn commit(&mut self) {
        let (used, unused): (Vec<_>, Vec<_>) = std::mem::take(&mut self.pairs).into_iter().partition(|one| one.is_used);
        self.pairs = used;
        self.pairs.iter_mut().for_each(|one| one.is_used = false);
        for Opened { pair, .. } in unused {
            if let Some(signer) = &self.signer {
                // If it has died, the next one does not get this pair.
                let _ = portable::send(&signer.link, &Task::Forget(pair), &[], Patience::Now);
            }
        }
    }

    fn start_signer(&mut self) {
        self.due = Instant::now() + LIFE_MIN;
        let Ok((ours, theirs)) = socket::packet_pair() else { return };
        match process::fork() {
            Ok(Fork::Parent(pid)) => {
                self.signer = Some(SignerProcess { pid, link: ours });
            }
            Ok(Fork::Child) => self.become_signer(theirs),
            Err(error) => say!("cannot start the key process: {error}; retrying in a second"),
        }
    }

    /// Becomes the signer, which reads what the key manager has open.
    fn become_signer(&mut self, link: OwnedFd) -> ! {
        // In place of the key manager's own end, which is closed.
        self.control = link;
        let pairs = std::mem::take(&mut self.pairs).into_iter().map(|Opened { pair, files, .. }| (pair, files));
        signer::run(Ends { link: &self.control, door: &self.door }, pairs, self.yields)
    }

    /// Takes what has arrived on the link although no order waits: the end of the signer, or an answer that is late.
    fn look_after_signer(&mut self) {
        let Some(SignerProcess { pid, link }) = &self.signer else { return };
        match portable::receive::<Found>(link, &mut Vec::new(), Patience::Now) {
            Err(error) if is_end(&error) => {}
            _ => return,
        }
        // It may have closed the link alive.
        process::kill(*pid);
        let ending = process::wait_for(*pid).unwrap_or(Ending::KILLED);
        say!("the key process {pid} {ending}; starting it again");
        self.signer = None;
    }
}

impl SignerProcess {
    fn have_read(&self, pair: &Pair, files: &OpenPair) -> io::Result<Found> {
        portable::send(&self.link, &Task::Read(pair.clone()), &files.descriptors(), Patience::Now)?;
        if poll::wait_readable(&[self.link.as_fd()], READ_TIME)? == [true] {
            return portable::receive(&self.link, &mut Vec::new(), Patience::Now);
        }
        Err(io::ErrorKind::TimedOut.into())
    }
}
