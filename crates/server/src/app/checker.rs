//! Background work: resolves names of backends (`names`), and runs active health checks. A thread requests a path of each backend of a
//! rule at an interval, and those that do not respond as they should get no requests (`health`).
//!
//! Each process with loops has a thread, which checks if no other one has. No loop waits: the thread has blocking
//! connections of its own, each in another thread, with a timeout.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};

use amped_http::h1::{gateway, reply};
use amped_sys::local;
use amped_sys::shared::Outside;

use super::backend::{At, Backend};
use super::health::Health;
use super::names::Names;
use super::upstream::{Upstream, Upstreams};
use crate::backend_tls::explain;
use crate::config::settings::HealthCheck;
use crate::say;

/// Starts the thread of this process that checks the backends, if they are to be checked and none was started.
pub(super) fn start(upstreams: &Arc<Upstreams>) {
    if !upstreams.current().health().is_some_and(Health::takes_start) {
        return;
    }
    let known = Arc::downgrade(upstreams);
    let started = builder("health").spawn(move || check_always(&known));
    if let Err(error) = started {
        say!("cannot start the thread for health checks: {error}; backends are not checked");
    }
}

/// Starts the thread of this process that resolves the names of these backends, unless it was started for them.
pub(super) fn start_resolving<'a>(upstreams: impl Iterator<Item = &'a Arc<Upstreams>>) {
    let named = upstreams.filter(|upstreams| upstreams.names().is_some_and(Names::takes_start));
    let mut named: Vec<Weak<Upstreams>> = named.map(Arc::downgrade).collect();
    if named.is_empty() {
        return;
    }
    let started = builder("names").spawn(move || {
        while let Some(patience) = resolve_all(&mut named) {
            thread::sleep(patience);
        }
    });
    if let Err(error) = started {
        say!("cannot start the thread that resolves names: {error}; backends keep their addresses");
    }
}

/// Resolves the names that are due, those of several rules at a time. Returns the time until the next are; `None`: the configuration no
/// longer has them.
fn resolve_all(named: &mut Vec<Weak<Upstreams>>) -> Option<Duration> {
    named.retain(|known| known.strong_count() > 0);
    let all: Vec<Arc<Upstreams>> = named.iter().filter_map(Weak::upgrade).collect();
    for some in all.chunks(LOOKUPS_MAX) {
        thread::scope(|scope| {
            for upstreams in some.iter().filter(|own| own.names().is_some_and(|names| names.time_until_due().is_zero()))
            {
                // Without a thread it is tried again.
                let _ = builder("names").spawn_scoped(scope, || resolve_one(upstreams));
            }
        });
    }
    let due = all.iter().filter_map(|upstreams| Some(upstreams.names()?.time_until_due())).min()?;
    // Another process may be about to resolve what is due; and the configuration may change.
    Some(due.clamp(Duration::from_millis(10), Duration::from_secs(60)))
}

/// Maximum rules whose names are resolved at a time.
const LOOKUPS_MAX: usize = 16;

fn resolve_one(upstreams: &Upstreams) {
    let Some(names) = upstreams.names() else { return };
    let current = upstreams.current();
    names.resolve_if_due(|number| current.health().into_iter().for_each(|health| _ = health.forget(number)));
}

fn builder(name: &str) -> thread::Builder {
    thread::Builder::new().name(name.to_owned()).stack_size(256 * 1024)
}

/// The main loop of the thread; it ends when the configuration no longer has the rule.
fn check_always(upstreams: &Weak<Upstreams>) {
    while let Some(upstream) = upstreams.upgrade().map(|upstreams| upstreams.current()) {
        let Some(health) = upstream.health() else { return };
        let wait = match health.begin() {
            Ok(Some(wait)) => wait,
            Ok(None) => {
                check_all(upstreams, &upstream, health);
                continue;
            }
            Err(Outside) => return,
        };
        drop(upstream);
        thread::sleep(wait);
    }
}

/// Checks all backends side by side.
fn check_all(upstreams: &Weak<Upstreams>, upstream: &Upstream, health: &Health) {
    thread::scope(|scope| {
        for (number, backend, name) in upstream.backends() {
            let check = move || {
                let result = check_one(backend, &health.check);
                let is_it = |(own, _, at): (usize, &Backend, &str)| (own, at) == (number, name);
                // Another one may have its number now.
                if !upstreams.upgrade().is_some_and(|now| now.current().backends().any(is_it)) {
                    return;
                }
                if health.note(number, result.is_ok()) == Ok(true) {
                    match result {
                        Ok(()) => say!("the backend {name} is healthy again"),
                        Err(error) => say!("the backend {name} is unhealthy and gets no requests: {error}"),
                    }
                }
            };
            // A backend that cannot be checked keeps its state.
            let _ = builder("health").spawn_scoped(scope, check);
        }
    });
}

/// Sends a request to a backend and reads the head of the response.
fn check_one(backend: &Backend, check: &HealthCheck) -> io::Result<()> {
    let until = Instant::now() + check.timeout;
    let request = gateway::health_request(&check.path, check.host.as_deref().unwrap_or(&backend.authority()));
    let response = match (&backend.at, &backend.tls) {
        (At::Unix(name), _) => exchange(local::connect(name, check.timeout)?, &request, until)?,
        (At::Tcp(address), None) => exchange(Timed::connect(address, until)?, &request, until)?,
        (At::Tcp(address), Some(tls)) => {
            let session = tls.session().map_err(io::Error::other)?;
            let stream = rustls::StreamOwned::new(session, Timed::connect(address, until)?);
            exchange(stream, &request, until).map_err(explained)?
        }
        (At::Kept(_), _) => return Ok(()),
    };
    let is_right = check.status.map_or((200..400).contains(&response), |wanted| wanted == usize::from(response));
    if is_right { Ok(()) } else { Err(io::Error::other(format!("status {response}"))) }
}

/// Maximum bytes of the head of a response, and of interim ones before it.
const HEAD_MAX: usize = 16 * 1024;

/// Sends a request and returns the status of the response.
fn exchange(mut stream: impl Read + Write, request: &[u8], until: Instant) -> io::Result<u16> {
    stream.write_all(request)?;
    let mut head = Vec::new();
    let mut buffer = [0; 4096];
    while head.len() < HEAD_MAX && Instant::now() < until {
        let count = stream.read(&mut buffer)?;
        head.extend_from_slice(&buffer[..count]);
        while let Some((found, length)) = reply::parse(&head, false).map_err(|_| invalid())? {
            if !found.is_interim() {
                return Ok(found.status);
            }
            head.drain(..length);
        }
        if count == 0 {
            return Err(invalid());
        }
    }
    Err(late())
}

fn invalid() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "its response is not HTTP")
}

fn explained(error: io::Error) -> io::Error {
    let tls = error.get_ref().and_then(|error| error.downcast_ref::<rustls::Error>());
    tls.map(|error| io::Error::other(explain(error))).unwrap_or(error)
}

/// A blocking socket whose calls end at a time.
struct Timed {
    stream: TcpStream,
    until: Instant,
}

impl Timed {
    fn connect(address: &SocketAddr, until: Instant) -> io::Result<Timed> {
        let stream = TcpStream::connect_timeout(address, left(until)?)?;
        Ok(Timed { stream, until })
    }
}

/// Returns the time that is left.
fn left(until: Instant) -> io::Result<Duration> {
    let left = until.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(late()) } else { Ok(left) }
}

fn late() -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, "it timed out")
}

/// A timeout of a socket is reported as if it did not block.
fn as_timeout(error: io::Error) -> io::Error {
    if error.kind() == io::ErrorKind::WouldBlock { late() } else { error }
}

impl Read for Timed {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.stream.set_read_timeout(Some(left(self.until)?))?;
        self.stream.read(buffer).map_err(as_timeout)
    }
}

impl Write for Timed {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.set_write_timeout(Some(left(self.until)?))?;
        self.stream.write(bytes).map_err(as_timeout)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
