//! Persistent applications: their addresses, and idle connections to them.
//!
//! A connection carries one request at a time (`backend_request`). Most FastCGI applications dedicate a process to each
//! connection, even an idle one. So a connection to an application that other clients may share, one that the server
//! did not start (`fastcgi = "unix:…"`), is closed after its request, and the application's own queue, its socket's
//! backlog, decides which request is next. Idle connections to it are kept open only if the administrator says so
//! (`min_spare`; FCGI_KEEP_CONN). An application that the server starts (`manager`) serves nothing else: its
//! connection holds its permit while it is open, and is reused. Servers that speak HTTP serve many connections at little
//! cost, so each loop keeps connections to them open by default (`pool`).

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use amped_core::app::AppTrouble;
use amped_sys::{file, local, socket};

use super::connection::BackendConnection;
use super::manager::Application;
use super::semaphore::{Permit, Semaphore};
use crate::backend_tls::BackendTls;
use crate::say;

/// An application and the idle connections to it. Rules that name the same address share it.
#[derive(Debug)]
pub struct Backend {
    pub(super) at: At,
    /// Maximum idle connections.
    pub(super) idle_max: usize,
    /// For an application that the server starts: processes kept when idle.
    reserve: usize,
    /// Idle connections that loops keep for themselves (`pool`).
    idle_count: AtomicUsize,
    /// How TLS sessions with it begin, if it uses TLS.
    pub(super) tls: Option<BackendTls>,
    idle: Mutex<Vec<Idle>>,
    /// When its socket was last used successfully, in milliseconds since `start`; 0: never.
    connected_ms: AtomicU64,
    /// When it was last reported as unreachable, likewise.
    reported_ms: AtomicU64,
    start: Instant,
}

/// The address of an application.
#[derive(Debug)]
pub enum At {
    /// A Unix socket.
    Unix(PathBuf),
    /// A TCP address.
    Tcp(SocketAddr),
    /// Of an application that this server starts, with one socket per permit.
    Kept(Application),
}

#[derive(Debug)]
struct Idle {
    connection: BackendConnection,
    /// Its permit, if permits represent processes.
    permit: Option<Permit>,
    since: Instant,
}

/// Counts an idle connection of a backend until it is dropped.
#[derive(Debug)]
pub(super) struct IdlePlace(Arc<Backend>);

impl Drop for IdlePlace {
    fn drop(&mut self) {
        self.0.idle_count.fetch_sub(1, Ordering::Relaxed);
    }
}

/// An idle process beyond the reserve, and its connection, is closed after this; the default of helpers.
const IDLE_TIME: Duration = Duration::from_secs(10);

/// An idle connection to a shared application is closed after this.
const IDLE_TIME_SHARED: Duration = Duration::from_secs(1);

/// A socket name used so recently is in the kernel's dentry cache, so using it does not wait for a disk.
const NAME_TIME: Duration = Duration::from_secs(10);

/// Minimum interval between two reports that an application cannot be reached, milliseconds.
const REPORT_MS: u64 = 1000;

/// Why a request was not started.
#[derive(Debug)]
pub enum StartError {
    /// The application's queue is full, or the server is out of descriptors: the request waits.
    Waits,
    /// The request fails with this error.
    Failed(AppTrouble),
}

impl Backend {
    /// Creates the backend for an address. It keeps at most `idle_max` idle connections
    /// and `reserve` idle processes of its own.
    pub fn new(at: At, idle_max: usize, reserve: usize) -> Backend {
        let (connected_ms, reported_ms) = (AtomicU64::new(0), AtomicU64::new(0));
        let (idle, idle_count, start) = (Mutex::default(), AtomicUsize::new(0), Instant::now());
        Backend { at, idle_max, reserve, idle_count, tls: None, idle, connected_ms, reported_ms, start }
    }

    /// Returns the same backend with TLS.
    #[must_use]
    pub fn with_tls(self, tls: BackendTls) -> Backend {
        Backend { tls: Some(tls), ..self }
    }

    /// Returns its address, for messages.
    pub fn name(&self) -> String {
        match &self.at {
            At::Unix(name) => format!("unix:{}", name.display()),
            At::Tcp(address) if self.tls.is_some() => format!("https://{address}"),
            At::Tcp(address) => address.to_string(),
            At::Kept(_) => String::new(),
        }
    }

    /// Returns the Host of requests that have none.
    pub(super) fn authority(&self) -> String {
        if let At::Tcp(address) = &self.at { address.to_string() } else { "localhost".to_owned() }
    }

    fn idle(&self) -> std::sync::MutexGuard<'_, Vec<Idle>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a used connection that is still open, with its permit: that of a process, or one of this semaphore.
    pub fn take_idle(&self, semaphore: &Arc<Semaphore>) -> Option<(BackendConnection, Permit)> {
        if self.idle_max == 0 {
            return None;
        }
        // The permit, if the connection holds none itself.
        let mut own = None;
        if !matches!(self.at, At::Kept(_)) {
            own = Some(semaphore.enter()?);
        }
        loop {
            let Idle { mut connection, permit, .. } = self.idle().pop()?;
            if permit.is_some() {
                semaphore.idle.fetch_sub(1, Ordering::Relaxed);
            }
            if connection.is_silent() {
                return permit.or(own).map(|permit| (connection, permit));
            }
        }
    }

    /// Returns a place for an idle connection of a loop, if the limit allows. Beyond it, each loop has a place, its first.
    pub(super) fn idle_place(self: &Arc<Backend>, is_first: bool) -> Option<IdlePlace> {
        let place = IdlePlace(Arc::clone(self));
        let is_within = self.idle_count.fetch_add(1, Ordering::Relaxed) < self.idle_max;
        (is_within || is_first && self.idle_max > 0).then_some(place)
    }

    /// Keeps a connection for the next request, if the limit allows and no request waits for its permit.
    pub(super) fn keep(&self, connection: BackendConnection, permit: Permit) {
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
        idle.push(Idle { connection, permit, since: Instant::now() });
    }

    /// Closes connections that have been idle for too long. Returns whether any are left that need sweeping.
    pub fn sweep(&self) -> bool {
        let now = Instant::now();
        let mut idle = self.idle();
        let (time, kept) = match &self.at {
            At::Kept(_) => (IDLE_TIME, self.reserve),
            At::Unix(_) | At::Tcp(_) => (IDLE_TIME_SHARED, 0),
        };
        // Those idle longest come first.
        while idle.len() > kept && idle.first().is_some_and(|first| now >= first.since + time) {
            let expired = idle.remove(0);
            if let Some(permit) = &expired.permit {
                permit.semaphore().idle.fetch_sub(1, Ordering::Relaxed);
            }
        }
        !idle.is_empty()
    }

    /// Returns whether connecting does not block.
    pub fn is_at_hand(&self) -> bool {
        match &self.at {
            At::Tcp(_) => true,
            At::Unix(_) | At::Kept(_) => match self.connected_ms.load(Ordering::Relaxed) {
                0 => false,
                used => self.start.elapsed() < Duration::from_millis(used) + NAME_TIME,
            },
        }
    }

    /// Prepares the application so that connecting does not block.
    pub fn prepare(&self, permit: &Permit) {
        let name = match &self.at {
            At::Tcp(_) => return,
            At::Unix(name) => name.clone(),
            At::Kept(application) => application.name(permit.number()),
        };
        // Only the name must be in memory; connecting shows whether the socket exists.
        let _ = std::fs::symlink_metadata(name);
    }

    /// Opens a new connection, without TLS so far.
    pub(super) fn connect(&self, permit: &Permit) -> Result<BackendConnection, StartError> {
        let connected = match &self.at {
            At::Unix(name) => local::connect_now(name).map_err(|error| (name.display().to_string(), error)),
            At::Tcp(address) => connect(*address).map_err(|error| (self.name(), error)),
            At::Kept(application) => {
                let name = application.name(permit.number());
                application.note_use(permit.number());
                local::connect_now(&name).map_err(|error| (name.display().to_string(), error))
            }
        };
        if connected.is_ok() && !matches!(self.at, At::Tcp(_)) {
            self.connected_ms.store(self.now_ms(), Ordering::Relaxed);
        }
        connected.map(BackendConnection::new).map_err(|(at, error)| {
            if error.kind() == io::ErrorKind::WouldBlock || file::is_exhaustion(&error) {
                return StartError::Waits;
            }
            self.report(&at, &error);
            StartError::Failed(AppTrouble::Unreachable)
        })
    }

    /// Reports that it cannot be reached, at most once a second: the loop may have to wait for standard error.
    pub(super) fn report(&self, at: &str, error: &io::Error) {
        let (now, last) = (self.now_ms(), self.reported_ms.load(Ordering::Relaxed));
        if last == 0 || now >= last + REPORT_MS {
            self.reported_ms.store(now, Ordering::Relaxed);
            say!("cannot reach the application at {at}: {error}");
        }
    }

    /// Returns the time since `start`, never 0.
    fn now_ms(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX).max(1)
    }
}

fn connect(address: SocketAddr) -> io::Result<OwnedFd> {
    let socket = socket::outgoing(None, address)?;
    // The body of a request follows its head in another packet, which must not wait for the acknowledgement of the first.
    socket::send_at_once(&socket)?;
    socket::begin_connect(&socket, address)?;
    Ok(socket)
}
