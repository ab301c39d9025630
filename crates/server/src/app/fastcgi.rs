//! Applications that live on (FastCGI): connections to them, which are used again, and one exchange on one of these.
//!
//! A connection carries one request at a time, and is kept for the next where the application leaves it open
//! (FCGI_KEEP_CONN). It holds its place in the gate as long as it is open, since an application usually has a process for
//! each connection, idle ones among them. Whether the application was here before (`fastcgi = "unix:…"`) or is started by us
//! (`keeper`), nobody but this file knows.

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use amped_core::app::{AppTrouble, AppWork};
use amped_http::cgi::Variables;
use amped_http::fastcgi::{self, RecordReader, Said};
use amped_sys::{file, local, socket};

use super::cgi::{self, Place};
use super::gate::{Gate, Pass};
use super::keeper::Keeper;
use super::{Came, Complaints};
use crate::say;

/// An application, and the connections to it that nobody uses at the moment.
#[derive(Debug)]
pub struct Backend {
    at: At,
    gate: Arc<Gate>,
    /// Scripts are files of the site; else the application knows its own.
    files: bool,
    /// Connections are used again. Where workers are processes, an idle one would keep others from the application.
    keeps: bool,
    /// So many stay open when there is nothing to do.
    reserve: usize,
    idle: Mutex<Vec<Idle>>,
}

/// Where it is.
#[derive(Debug)]
pub enum At {
    /// It listens at this socket.
    Unix(PathBuf),
    /// It listens at this address.
    Tcp(SocketAddr),
    /// It is started here.
    Kept(Keeper),
}

#[derive(Debug)]
struct Idle {
    socket: OwnedFd,
    pass: Pass,
    since: Instant,
}

/// An idle connection, or application, beyond the reserve goes after this; the default of helpers.
const IDLE_TIME: Duration = Duration::from_secs(10);

impl Backend {
    /// The application there. `keeps`: connections are used again.
    pub fn new(at: At, gate: Arc<Gate>, (files, keeps): (bool, bool), reserve: usize) -> Backend {
        Backend { at, gate, files, keeps, reserve, idle: Mutex::default() }
    }

    fn idle(&self) -> std::sync::MutexGuard<'_, Vec<Idle>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A connection that was used before and is still open, with its place.
    pub fn take_idle(&self) -> Option<(OwnedFd, Pass)> {
        loop {
            let Idle { socket, pass, .. } = self.idle().pop()?;
            self.gate.idle.fetch_sub(1, Ordering::Relaxed);
            // Nothing is to be said on it now. Whatever it says is its end, or not meant for us.
            match socket::receive(&socket, &mut [0]) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Some((socket, pass)),
                Ok(_) | Err(_) => {}
            }
        }
    }

    /// Keeps a connection for others.
    fn keep(&self, socket: OwnedFd, pass: Pass) {
        self.gate.idle.fetch_add(1, Ordering::Relaxed);
        self.idle().push(Idle { socket, pass, since: Instant::now() });
    }

    /// Lets go of what has been idle for long enough. Whether there is anything left that is to be looked after.
    pub fn sweep(&self) -> bool {
        let now = Instant::now();
        let mut idle = self.idle();
        // The longest idle are in front.
        while idle.len() > self.reserve && idle.first().is_some_and(|first| now >= first.since + IDLE_TIME) {
            self.gate.idle.fetch_sub(1, Ordering::Relaxed);
            drop(idle.remove(0));
        }
        let left = !idle.is_empty();
        drop(idle);
        match &self.at {
            At::Unix(_) | At::Tcp(_) => left,
            At::Kept(keeper) => keeper.sweep(&self.gate, self.reserve, IDLE_TIME) || left,
        }
    }

    /// A new connection. Waits for the start of the application, if need be, and not for the application.
    fn connect(&self, pass: &Pass) -> Result<OwnedFd, AppTrouble> {
        let connected = match &self.at {
            At::Unix(name) => local::connect_now(name).map_err(|error| (name.display().to_string(), error)),
            At::Tcp(address) => connect(*address).map_err(|error| (address.to_string(), error)),
            At::Kept(keeper) => {
                let name = keeper.ensure(pass.number())?;
                local::connect_now(&name).map_err(|error| (name.display().to_string(), error))
            }
        };
        connected.map_err(|(at, error)| {
            // One that was started here and has died a moment ago is about to be started again.
            let returns = matches!(self.at, At::Kept(_)) && error.kind() == io::ErrorKind::ConnectionRefused;
            if returns || error.kind() == io::ErrorKind::WouldBlock || file::is_exhaustion(&error) {
                return AppTrouble::Busy;
            }
            say!("cannot reach the application at {at}: {error}");
            AppTrouble::Failed
        })
    }

    /// Begins a request, on this connection or on a new one. Waits for the disk, and for the start of the application.
    pub fn begin(
        self: &Arc<Backend>,
        (work, place): (Box<AppWork>, Place),
        pass: Pass,
        kept: Option<OwnedFd>,
    ) -> Result<Talk, AppTrouble> {
        let (end, script) = match self.files {
            true => place.disk.script(work.site, &work.path, &work.ends)?,
            false => {
                let root = place.disk.root_of(work.site).unwrap_or(Path::new("/"));
                (work.ends[0], root.join(cgi::relative(&work.path[..work.ends[0]])))
            }
        };
        let variables: Variables = cgi::variables(&work, &place, end, &script);
        let is_used = kept.is_some();
        let socket = kept.map_or_else(|| self.connect(&pass), Ok)?;
        let mut out = Vec::new();
        // Where it looks for programs is its own business.
        let variables = variables.iter().filter(|(name, _)| name != b"PATH");
        fastcgi::begin(&mut out, self.keeps, variables.map(|(name, value)| (&name[..], &value[..])));
        let has_body = work.has_body;
        if !has_body {
            fastcgi::body_end(&mut out);
        }
        let is_safe = work
            .variables
            .iter()
            .any(|(name, value)| name == b"REQUEST_METHOD" && matches!(&value[..], b"GET" | b"HEAD" | b"OPTIONS"));
        let again = (is_used && is_safe && !has_body).then_some((work, place));
        Ok(Talk {
            backend: Arc::clone(self),
            socket,
            pass,
            out,
            out_at: 0,
            reader: RecordReader::default(),
            again,
            end: None,
            is_told: !has_body,
            is_broken: false,
            connecting: match self.at {
                At::Tcp(address) if !is_used => Some(address),
                At::Tcp(_) | At::Unix(_) | At::Kept(_) => None,
            },
        })
    }
}

fn connect(address: SocketAddr) -> io::Result<OwnedFd> {
    let socket = socket::outgoing(None, address)?;
    socket::begin_connect(&socket, address)?;
    Ok(socket)
}

/// What is asked, and under which rules.
type Question = (Box<AppWork>, Place);

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
                    if let Some(address) = self.connecting.take() {
                        say!("cannot reach the application at {address}: {error}");
                    }
                }
            }
        }
        true
    }

    /// Takes in what it says. The answer's bytes are put to the front of the buffer.
    pub(super) fn hear(&mut self, buffer: &mut [u8], complaints: &mut Complaints) -> Came {
        loop {
            if let Some(is_whole) = self.end {
                complaints.say_line();
                return if is_whole { Came::Ended } else { Came::Failed(AppTrouble::Failed) };
            }
            let count = match socket::receive(&self.socket, buffer) {
                Ok(0) => 0,
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Came::Nothing,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(_) => 0,
            };
            if count == 0 {
                self.end = Some(false);
                continue;
            }
            self.again = None;
            let kept = self.take(&mut buffer[..count], complaints);
            if kept > 0 {
                return Came::Bytes(kept);
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
                say!("{}: the application does not speak FastCGI", complaints.name);
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
                Said::Refused => self.end = Some(false),
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

    /// It is over, and was not broken off: the connection is kept, if it may be used again.
    pub fn finish(self) {
        let is_whole = self.end == Some(true) && self.out_at == self.out.len() && !self.is_broken;
        if is_whole && self.backend.keeps {
            self.backend.keep(self.socket, self.pass);
        }
    }

    /// Nobody wants its answer any more. An application that was started here is ended, as a script would be: it may be at it
    /// for a long time, and is the only one in its place.
    pub fn abandon(self) {
        if let At::Kept(keeper) = &self.backend.at
            && self.end.is_none()
        {
            keeper.kill(self.pass.number());
        }
    }
}
