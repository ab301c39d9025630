//! Applications that live on (FastCGI): connections to them, and one request on one of these.
//!
//! A connection carries one request at a time. Most applications have a process for each connection, also for one that nobody
//! uses; so a connection to an application that others may need too, that is one that was here before (`fastcgi = "unix:…"`),
//! is closed after its request, and the application's own queue, the backlog of its socket, decides who is next. Only where the
//! administrator says so (`reserve`) are some kept open (FCGI_KEEP_CONN). An application that is started here (`manager`) serves
//! nobody else: its connection holds its place in the gate as long as it is open, and is used again.
//!
//! Nothing here waits: what may, the lookup of a script, was done before (`scripts`, `threads`).

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use amped_core::app::{AppTrouble, AppWork};
use amped_http::fastcgi::{self, RecordReader, Said};
use amped_sys::epoll::Interest;
use amped_sys::{file, local, socket};

use super::cgi::{self, Place};
use super::exchange::{Came, Complaints};
use super::gate::{Gate, Pass};
use super::manager::{Application, CANNOT_START};
use super::scripts::Found;
use crate::say;

/// An application, and the connections to it that nobody uses at the moment. Rules that name the same address share it.
#[derive(Debug)]
pub struct Backend {
    at: At,
    /// Idle connections that are kept open at most.
    idle_max: usize,
    /// Of an application that is started here, processes that stay when there is nothing to do.
    reserve: usize,
    idle: Mutex<Vec<Idle>>,
    /// When the name of its socket was last used with success, in milliseconds since `start`; 0: never.
    connected_ms: AtomicU64,
    start: Instant,
}

/// Where it is.
#[derive(Debug)]
pub enum At {
    /// It listens at this socket.
    Unix(PathBuf),
    /// It listens at this address.
    Tcp(SocketAddr),
    /// It is started here, with a socket for each place.
    Kept(Application),
}

#[derive(Debug)]
struct Idle {
    socket: OwnedFd,
    /// Its place, where that is a process.
    pass: Option<Pass>,
    since: Instant,
}

/// An idle process, and its connection, beyond the reserve goes after this; the default of helpers.
const IDLE_TIME: Duration = Duration::from_secs(10);

/// An idle connection to an application that others may need goes after this.
const IDLE_TIME_SHARED: Duration = Duration::from_secs(1);

/// The name of a socket that was used so recently is in the kernel's memory, so that using it does not wait for a disk.
const NAME_TIME: Duration = Duration::from_secs(10);

/// Why a request has not been begun.
#[derive(Debug)]
pub enum NotBegun {
    /// The application's queue is full, or the server is out of descriptors: the request waits.
    Waits,
    /// It is answered with this.
    Failed(AppTrouble),
}

impl Backend {
    /// The application there. Keeps so many idle connections, and so many idle processes of its own.
    pub fn new(at: At, idle_max: usize, reserve: usize) -> Backend {
        let (idle, connected_ms) = (Mutex::default(), AtomicU64::new(0));
        Backend { at, idle_max, reserve, idle, connected_ms, start: Instant::now() }
    }

    fn idle(&self) -> std::sync::MutexGuard<'_, Vec<Idle>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A connection that was used before and is still open, with its place: that of a process, or one of this gate.
    pub fn take_idle(&self, gate: &Arc<Gate>) -> Option<(OwnedFd, Pass)> {
        if self.idle_max == 0 {
            return None;
        }
        // Where the connection has none of its own.
        let mut own = None;
        if !matches!(self.at, At::Kept(_)) {
            own = Some(gate.enter()?);
        }
        loop {
            let Idle { socket, pass, .. } = self.idle().pop()?;
            if pass.is_some() {
                gate.idle.fetch_sub(1, Ordering::Relaxed);
            }
            // Nothing is to be said on it now. Whatever it says is its end, or not meant for us.
            match socket::receive(&socket, &mut [0]) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return pass.or(own).map(|pass| (socket, pass));
                }
                Ok(_) | Err(_) => {}
            }
        }
    }

    /// Keeps a connection for the next request, if there may be one more and no request waits for what it holds.
    fn keep(&self, socket: OwnedFd, pass: Pass) {
        let mut idle = self.idle();
        if idle.len() >= self.idle_max {
            return;
        }
        let pass = match self.at {
            At::Kept(_) => {
                pass.gate().idle.fetch_add(1, Ordering::Relaxed);
                Some(pass)
            }
            At::Unix(_) | At::Tcp(_) if pass.gate().is_wanted() => return,
            At::Unix(_) | At::Tcp(_) => None,
        };
        idle.push(Idle { socket, pass, since: Instant::now() });
    }

    /// Lets go of what has been idle for long enough. Whether there is anything left that is to be looked after.
    pub fn sweep(&self) -> bool {
        let now = Instant::now();
        let mut idle = self.idle();
        let (time, kept) = match &self.at {
            At::Kept(_) => (IDLE_TIME, self.reserve),
            At::Unix(_) | At::Tcp(_) => (IDLE_TIME_SHARED, 0),
        };
        // The longest idle are in front.
        while idle.len() > kept && idle.first().is_some_and(|first| now >= first.since + time) {
            let gone = idle.remove(0);
            if let Some(pass) = &gone.pass {
                pass.gate().idle.fetch_sub(1, Ordering::Relaxed);
            }
        }
        !idle.is_empty()
    }

    /// Whether a connection to it can be made without waiting for anything.
    pub fn is_at_hand(&self) -> bool {
        match &self.at {
            At::Tcp(_) => true,
            At::Unix(_) | At::Kept(_) => match self.connected_ms.load(Ordering::Relaxed) {
                0 => false,
                used => self.start.elapsed() < Duration::from_millis(used) + NAME_TIME,
            },
        }
    }

    /// Sees to it that a connection to it can be made without waiting.
    pub fn prepare(&self, pass: &Pass) {
        let name = match &self.at {
            At::Tcp(_) => return,
            At::Unix(name) => name.clone(),
            At::Kept(application) => application.name(pass.number()),
        };
        // Only its name is to be in memory: whether it is there is found out by connecting.
        let _ = std::fs::symlink_metadata(name);
    }

    /// A new connection.
    fn connect(&self, pass: &Pass) -> Result<OwnedFd, NotBegun> {
        let connected = match &self.at {
            At::Unix(name) => local::connect_now(name).map_err(|error| (name.display().to_string(), error)),
            At::Tcp(address) => connect(*address).map_err(|error| (address.to_string(), error)),
            At::Kept(application) => {
                let name = application.name(pass.number());
                application.note_use(pass.number());
                local::connect_now(&name).map_err(|error| (name.display().to_string(), error))
            }
        };
        if connected.is_ok() && !matches!(self.at, At::Tcp(_)) {
            let now = u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX);
            self.connected_ms.store(now.max(1), Ordering::Relaxed);
        }
        connected.map_err(|(at, error)| {
            if error.kind() == io::ErrorKind::WouldBlock || file::is_exhaustion(&error) {
                return NotBegun::Waits;
            }
            say!("cannot reach the application at {at}: {error}");
            NotBegun::Failed(AppTrouble::Unreachable)
        })
    }

    /// Begins a request, on this connection or on a new one, and says what it waits for then.
    ///
    /// # Errors
    /// Why not, with the request and its place.
    pub fn begin(
        self: &Arc<Backend>,
        (work, place): Question,
        pass: Pass,
        kept: Option<OwnedFd>,
        (end, script): Found,
    ) -> Result<(Box<Talk>, Interest), (NotBegun, Question)> {
        let is_used = kept.is_some();
        let socket = match kept.map_or_else(|| self.connect(&pass), Ok) {
            Ok(socket) => socket,
            Err(why) => return Err((why, (work, place))),
        };
        let variables = cgi::variables(&work, &place, end, &script);
        let mut out = Vec::new();
        // Where it looks for programs is its own business.
        let variables = variables.iter().filter(|(name, _)| *name != b"PATH");
        fastcgi::begin(&mut out, self.idle_max > 0, variables.map(|(name, value)| (*name, &value[..])));
        let has_body = work.has_body;
        if !has_body {
            fastcgi::body_end(&mut out);
        }
        let is_safe = work
            .variables
            .iter()
            .any(|(name, value)| name == b"REQUEST_METHOD" && matches!(&value[..], b"GET" | b"HEAD" | b"OPTIONS"));
        let again = (is_used && is_safe && !has_body).then_some((work, place));
        let mut talk = Box::new(Talk {
            backend: Arc::clone(self),
            socket,
            pass,
            out,
            out_at: 0,
            reader: RecordReader::default(),
            again,
            end: None,
            trouble: AppTrouble::Failed,
            is_told: !has_body,
            is_broken: false,
            connecting: match self.at {
                At::Tcp(address) if !is_used => Some(address),
                At::Tcp(_) | At::Unix(_) | At::Kept(_) => None,
            },
        });
        // Most requests are written at once, and then there is no room to wait for.
        let is_written = talk.flush() && !has_body;
        Ok((talk, if is_written { Interest::Incoming } else { Interest::Connection }))
    }
}

fn connect(address: SocketAddr) -> io::Result<OwnedFd> {
    let socket = socket::outgoing(None, address)?;
    socket::begin_connect(&socket, address)?;
    Ok(socket)
}

/// What is asked, and under which rules.
pub type Question = (Box<AppWork>, Place);

/// A request on a connection to an application.
#[derive(Debug)]
pub struct Talk {
    backend: Arc<Backend>,
    /// The connection.
    pub socket: OwnedFd,
    pass: Pass,
    /// Records that are still to be written, from `out_at` on.
    out: Vec<u8>,
    out_at: usize,
    reader: RecordReader,
    /// What to ask anew, if the connection turns out to have been closed before it heard of this: it was idle.
    again: Option<Question>,
    /// It has come to its end, and whether that is one.
    end: Option<bool>,
    /// If it is none, what has gone wrong.
    trouble: AppTrouble,
    /// It was told that the body is complete.
    is_told: bool,
    /// Nothing can be written to it any more.
    is_broken: bool,
    /// Whether somebody is there is not known yet: the address, to tell of.
    connecting: Option<SocketAddr>,
}

impl Talk {
    /// Gives it part of the body.
    pub fn put(&mut self, bytes: &[u8]) {
        if self.out_at == self.out.len() {
            self.out.clear();
            self.out_at = 0;
        }
        fastcgi::body(&mut self.out, bytes);
    }

    /// Tells it, once, that the body is complete.
    pub fn put_end(&mut self) {
        if !std::mem::replace(&mut self.is_told, true) {
            fastcgi::body_end(&mut self.out);
        }
    }

    /// Whether everything so far was written.
    pub fn has_flushed(&self) -> bool {
        self.out_at == self.out.len() || self.is_broken
    }

    /// Writes what it takes: whether that is everything.
    pub fn flush(&mut self) -> bool {
        while self.out_at < self.out.len() && !self.is_broken {
            match socket::send(&self.socket, &self.out[self.out_at..], false) {
                Ok(count) => (self.out_at, self.connecting) = (self.out_at + count, None),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return false,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // What it has said before may still be read.
                Err(error) => {
                    self.is_broken = true;
                    self.note_unreached(&error);
                }
            }
        }
        true
    }

    /// If it was not known yet whether somebody is there, nobody is.
    fn note_unreached(&mut self, error: &io::Error) {
        if let Some(address) = self.connecting.take() {
            self.trouble = AppTrouble::Unreachable;
            say!("cannot reach the application at {address}: {error}");
        }
    }

    /// Takes in what it says. The answer's bytes are put to the front of the buffer.
    pub(super) fn hear(&mut self, buffer: &mut [u8], complaints: &mut Complaints) -> Came {
        loop {
            if let Some(is_whole) = self.end {
                complaints.say_line();
                return if is_whole { Came::Ended } else { Came::Failed(self.trouble) };
            }
            let count = match socket::receive(&self.socket, buffer) {
                Ok(0) => 0,
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Came::Nothing,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => {
                    self.note_unreached(&error);
                    0
                }
            };
            if count == 0 {
                self.end = Some(false);
                continue;
            }
            self.again = None;
            let kept = self.take(&mut buffer[..count], complaints);
            if kept > 0 {
                return if self.end == Some(true) { Came::Last(kept) } else { Came::Bytes(kept) };
            }
        }
    }

    /// Reads records, and puts the answer's bytes among them to the front: how many these are.
    fn take(&mut self, bytes: &mut [u8], complaints: &mut Complaints) -> usize {
        let (mut at, mut kept) = (0, 0);
        while at < bytes.len() {
            if self.end.is_some() {
                // Behind its end there is nothing that we have asked for.
                self.is_broken = true;
                break;
            }
            let Ok(piece) = self.reader.next(&bytes[at..]) else {
                complaints.note("the application does not speak FastCGI");
                (self.end, self.is_broken) = (Some(false), true);
                break;
            };
            at += piece.used;
            match piece.said {
                Said::Nothing => {}
                Said::Output(data) => {
                    let length = data.len();
                    bytes.copy_within(at - length..at, kept);
                    kept += length;
                }
                Said::Error(data) => complaints.say(data),
                Said::End => self.end = Some(true),
                Said::Refused(status) => {
                    let is_ours = matches!(self.backend.at, At::Kept(_));
                    (self.end, self.trouble) = match status {
                        CANNOT_START if is_ours => (Some(false), AppTrouble::Unreachable),
                        fastcgi::OVERLOADED if is_ours => (Some(false), AppTrouble::Restarting),
                        fastcgi::OVERLOADED => (Some(false), AppTrouble::Busy),
                        _ => (Some(false), AppTrouble::Failed),
                    };
                }
            }
        }
        kept
    }

    /// What to ask anew, and in which place, if the connection was closed before it heard of this.
    ///
    /// # Errors
    /// The request itself, if there is nothing to ask anew.
    pub fn into_again(mut self: Box<Talk>) -> Result<(Question, Pass), Box<Talk>> {
        match self.again.take() {
            Some(again) => Ok((again, self.pass)),
            None => Err(self),
        }
    }

    /// Whether its connection may be used again.
    pub fn may_be_kept(&self) -> bool {
        self.backend.idle_max > 0 && self.end == Some(true) && self.out_at == self.out.len() && !self.is_broken
    }

    /// It is over, and was not broken off: the connection is kept, if it may be used again. Then this has to be looked after.
    pub fn finish(self) -> Option<Arc<Backend>> {
        self.may_be_kept().then(|| {
            self.backend.keep(self.socket, self.pass);
            self.backend
        })
    }

    /// Nobody wants its answer any more. An application that was started here is ended, as a script would be: it may be at it
    /// for a long time, and is the only one in its place. Then this is what is left of the request until it has.
    pub fn abandon(self) -> Option<Abandoned> {
        let is_kept = matches!(self.backend.at, At::Kept(_)) && self.end.is_none();
        is_kept.then(|| Abandoned { backend: self.backend, socket: self.socket, pass: self.pass, is_told: false })
    }
}

/// A request whose application is being ended: it holds the place until the connection has come to its end.
#[derive(Debug)]
pub struct Abandoned {
    backend: Arc<Backend>,
    /// The connection.
    pub socket: OwnedFd,
    pass: Pass,
    /// The process manager knows.
    is_told: bool,
}

impl Abandoned {
    /// Whether it is over. Reads what comes, which is for nobody.
    pub fn is_over(&mut self) -> bool {
        let At::Kept(application) = &self.backend.at else {
            return true;
        };
        if !self.is_told {
            self.is_told = application.end(self.pass.number());
        }
        let mut buffer = [0; 4096];
        // An application that says much is ended in the midst of it; the rest is read when its end is told.
        for _ in 0..ABANDONED_READS {
            match socket::receive(&self.socket, &mut buffer) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return false,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Ok(0) | Err(_) => return true,
                Ok(_) => {}
            }
        }
        false
    }
}

/// Pieces of an abandoned answer that are read at once.
const ABANDONED_READS: usize = 64;
