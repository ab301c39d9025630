//! Applications that live on: where they listen, and the connections to them that are idle.
//!
//! A connection carries one request at a time (`fastcgi`). Most applications have a process for each connection, also for one
//! that nobody uses; so a connection to an application that others may need too, that is one that was here before
//! (`fastcgi = "unix:…"`), is closed after its request, and the application's own queue, the backlog of its socket, decides who
//! is next. Only where the administrator says so (`min_spare`) are some kept open (FCGI_KEEP_CONN). An application that is started
//! here (`manager`) serves nobody else: its connection holds its place in the semaphore as long as it is open, and is used again.

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use amped_core::app::AppTrouble;
use amped_sys::{file, local, socket};

use super::manager::Application;
use super::semaphore::{Permit, Semaphore};
use crate::say;

/// An application, and the connections to it that nobody uses at the moment. Rules that name the same address share it.
#[derive(Debug)]
pub struct Backend {
    pub(super) at: At,
    /// Idle connections that are kept open at most.
    pub(super) idle_max: usize,
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
    permit: Option<Permit>,
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

    /// A connection that was used before and is still open, with its place: that of a process, or one of this semaphore.
    pub fn take_idle(&self, semaphore: &Arc<Semaphore>) -> Option<(OwnedFd, Permit)> {
        if self.idle_max == 0 {
            return None;
        }
        // Where the connection has none of its own.
        let mut own = None;
        if !matches!(self.at, At::Kept(_)) {
            own = Some(semaphore.enter()?);
        }
        loop {
            let Idle { socket, permit, .. } = self.idle().pop()?;
            if permit.is_some() {
                semaphore.idle.fetch_sub(1, Ordering::Relaxed);
            }
            // Nothing is to be said on it now. Whatever it says is its end, or not meant for us.
            match socket::receive(&socket, &mut [0]) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return permit.or(own).map(|permit| (socket, permit));
                }
                Ok(_) | Err(_) => {}
            }
        }
    }

    /// Keeps a connection for the next request, if there may be one more and no request waits for what it holds.
    pub(super) fn keep(&self, socket: OwnedFd, permit: Permit) {
        let mut idle = self.idle();
        if idle.len() >= self.idle_max {
            return;
        }
        let permit = match self.at {
            At::Kept(_) => {
                permit.semaphore().idle.fetch_add(1, Ordering::Relaxed);
                Some(permit)
            }
            At::Unix(_) | At::Tcp(_) if permit.semaphore().is_wanted() => return,
            At::Unix(_) | At::Tcp(_) => None,
        };
        idle.push(Idle { socket, permit, since: Instant::now() });
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
            if let Some(permit) = &gone.permit {
                permit.semaphore().idle.fetch_sub(1, Ordering::Relaxed);
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
    pub fn prepare(&self, permit: &Permit) {
        let name = match &self.at {
            At::Tcp(_) => return,
            At::Unix(name) => name.clone(),
            At::Kept(application) => application.name(permit.number()),
        };
        // Only its name is to be in memory: whether it is there is found out by connecting.
        let _ = std::fs::symlink_metadata(name);
    }

    /// A new connection.
    pub(super) fn connect(&self, permit: &Permit) -> Result<OwnedFd, NotBegun> {
        let connected = match &self.at {
            At::Unix(name) => local::connect_now(name).map_err(|error| (name.display().to_string(), error)),
            At::Tcp(address) => connect(*address).map_err(|error| (address.to_string(), error)),
            At::Kept(application) => {
                let name = application.name(permit.number());
                application.note_use(permit.number());
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
}

fn connect(address: SocketAddr) -> io::Result<OwnedFd> {
    let socket = socket::outgoing(None, address)?;
    socket::begin_connect(&socket, address)?;
    Ok(socket)
}
