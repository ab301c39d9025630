//! The service manager, systemd: the listeners that it hands over (sd_listen_fds(3)), the messages that it gets
//! (sd_notify(3)), and its watchdog (sd_watchdog_enabled(3)).
//!
//! Each is a few environment variables, and a datagram for each message, which takes less code than a library's interface
//! to it would. Only the main thread is here, never a loop: it takes the listeners before anything else is opened (`main`),
//! and sends messages as the server starts, reloads and stops (`serve`).
//!
//! The watchdog gets its message only if the loops turn: a process can outlive a loop that hangs, and then nothing but
//! the watchdog would restart it.

use std::io;
use std::os::fd::OwnedFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::{Duration, Instant};

use amped_sys::{clock, process};

use crate::say;

/// Maximum listeners that are taken.
const LISTENERS_MAX: u16 = 1024;

/// Timeout of a message that is repeated, or without which the service manager learns the same: it may be busy.
const PATIENCE: Duration = Duration::from_secs(1);

/// Timeout of a message whose loss would end the service. The service manager reads none while it reloads, and its queue may be full.
const PATIENCE_FOR_STATE: Duration = Duration::from_secs(30);

/// Messages to the watchdog for each of its timeouts. A loop may miss two of three in succession, because a disk or a busy
/// processor delays it, without being taken for one that hangs.
const PINGS_PER_TIMEOUT: u32 = 4;

/// Takes the descriptors that were handed over to this process, with their names, and closes all other inherited ones except
/// the standard three. Must be called once, before anything was opened.
///
/// # Errors
/// A message with a remedy.
pub fn take_descriptors() -> Result<Vec<(String, OwnedFd)>, String> {
    let names = announced(std::process::id(), variable);
    let count = u16::try_from(names.len()).unwrap_or(LISTENERS_MAX);
    if let Err(error) = process::close_inherited(count) {
        say!("cannot close inherited descriptors: {error}");
    }
    let descriptors = process::take_inherited(count).map_err(|error| {
        format!(
            "cannot take {count} listeners from the service manager: {error}; LISTEN_FDS and LISTEN_PID must be as \
             sd_listen_fds(3) describes"
        )
    })?;
    Ok(names.into_iter().zip(descriptors).collect())
}

/// Returns an environment variable, if it is set and is text.
fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

/// Returns the names of the descriptors that the environment announces for the process `pid`, in their order.
fn announced(pid: u32, variable: impl Fn(&str) -> Option<String>) -> Vec<String> {
    let number = |name: &str| variable(name)?.parse::<u32>().ok();
    // The variables of a parent, which this process has inherited, are not for it.
    if number("LISTEN_PID") != Some(pid) {
        return Vec::new();
    }
    let count = number("LISTEN_FDS").unwrap_or(0).min(LISTENERS_MAX.into());
    let names = variable("LISTEN_FDNAMES").unwrap_or_default();
    let mut names = names.split(':').filter(|name| !name.is_empty());
    (0..count).map(|_| names.next().unwrap_or("a listener").to_owned()).collect()
}

/// Returns the timeout of the watchdog, if it is enabled for the process `pid`.
fn watchdog_timeout(pid: u32, variable: impl Fn(&str) -> Option<String>) -> Option<Duration> {
    if variable("WATCHDOG_PID").is_some_and(|owner| owner.parse::<u32>() != Ok(pid)) {
        return None;
    }
    let timeout = Duration::from_micros(variable("WATCHDOG_USEC")?.parse().ok()?);
    Some(timeout).filter(|timeout| !timeout.is_zero())
}

/// Returns the address of the socket for messages: a path, or a name without a file, which begins with `@`.
fn socket_address(name: &str) -> Option<SocketAddr> {
    match name.strip_prefix('@') {
        Some(name) => SocketAddr::from_abstract_name(name).ok(),
        None if name.starts_with('/') => SocketAddr::from_pathname(name).ok(),
        None => None,
    }
}

/// The service manager; without one, messages go nowhere.
#[derive(Debug)]
pub struct ServiceManager {
    address: Option<SocketAddr>,
    watchdog: Option<Watchdog>,
}

#[derive(Debug)]
struct Watchdog {
    interval: Duration,
    due: Instant,
}

impl ServiceManager {
    /// Returns the service manager that the environment names.
    pub fn from_environment() -> ServiceManager {
        let address = variable("NOTIFY_SOCKET").as_deref().and_then(socket_address);
        let timeout = address.as_ref().and_then(|_| watchdog_timeout(std::process::id(), variable));
        let watchdog = timeout.map(|timeout| Watchdog { interval: timeout / PINGS_PER_TIMEOUT, due: Instant::now() });
        ServiceManager { address, watchdog }
    }

    /// Reports that the server serves, after its start or a reload. `status`: one line.
    pub fn is_ready(&self, status: &str) {
        self.send(&format!("READY=1\nSTATUS={status}\n"), PATIENCE_FOR_STATE);
    }

    /// Reports that a reload begins; [`is_ready`](ServiceManager::is_ready) ends it.
    pub fn is_reloading(&self) {
        // Of the clock that orders it after the request of `Type=notify-reload`.
        let now_us = clock::monotonic_ns() / 1000;
        let message = format!("RELOADING=1\nMONOTONIC_USEC={now_us}\nSTATUS=reloading the configuration\n");
        self.send(&message, PATIENCE_FOR_STATE);
    }

    /// Reports that the server stops, which also ends the watchdog.
    pub fn is_stopping(&self) {
        self.send("STOPPING=1\nSTATUS=finishing requests in progress\n", PATIENCE);
    }

    /// Reports that another process serves from now on, which then sends its own messages.
    pub fn is_replaced_by(&self, pid: u32, status: &str) {
        self.send(&format!("MAINPID={pid}\nREADY=1\nSTATUS={status}\n"), PATIENCE_FOR_STATE);
    }

    /// Pings the watchdog, if that is due and the loops turn. Returns the time until it is due again.
    pub fn watch(&mut self, loops_turn: impl FnOnce() -> bool) -> Duration {
        let now = Instant::now();
        let Some(watchdog) = &mut self.watchdog else { return Duration::MAX };
        if watchdog.due > now {
            return watchdog.due - now;
        }
        watchdog.due = now + watchdog.interval;
        let interval = watchdog.interval;
        if loops_turn() {
            self.send("WATCHDOG=1\n", PATIENCE);
        }
        interval
    }

    fn send(&self, message: &str, patience: Duration) {
        let Some(address) = &self.address else { return };
        if let Err(error) = send_to(address, message, patience) {
            say!("cannot notify the service manager: {error}");
        }
    }
}

fn send_to(address: &SocketAddr, message: &str, patience: Duration) -> io::Result<()> {
    // A new one each time: processes that this one forks would keep a copy.
    let socket = UnixDatagram::unbound()?;
    socket.set_write_timeout(Some(patience))?;
    socket.send_to_addr(message.as_bytes(), address)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An environment with these variables.
    fn environment<'a>(variables: &'a [(&'a str, &'a str)]) -> impl Fn(&str) -> Option<String> + 'a {
        move |name: &str| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
    }

    #[test]
    fn listeners_of_another_process_are_not_announced() {
        let check = |variables: &[(&str, &str)], expected: &[&str]| {
            assert_eq!(announced(7, environment(variables)), expected, "{variables:?}");
        };
        check(&[("LISTEN_PID", "7"), ("LISTEN_FDS", "2"), ("LISTEN_FDNAMES", "http:https")], &["http", "https"]);
        check(&[("LISTEN_PID", "7"), ("LISTEN_FDS", "2"), ("LISTEN_FDNAMES", "http")], &["http", "a listener"]);
        check(&[("LISTEN_PID", "7"), ("LISTEN_FDS", "1")], &["a listener"]);
        check(&[("LISTEN_PID", "8"), ("LISTEN_FDS", "2")], &[]);
        check(&[("LISTEN_FDS", "2")], &[]);
        check(&[("LISTEN_PID", "7"), ("LISTEN_FDS", "-2")], &[]);
        check(&[("LISTEN_PID", "7"), ("LISTEN_FDS", "")], &[]);
        check(&[], &[]);
        let many = announced(7, environment(&[("LISTEN_PID", "7"), ("LISTEN_FDS", "4000000000")]));
        assert_eq!(many.len(), usize::from(LISTENERS_MAX));
    }

    #[test]
    fn watchdog_of_another_process_is_not_pinged() {
        let check = |variables: &[(&str, &str)], expected: Option<u64>| {
            let timeout = watchdog_timeout(7, environment(variables));
            assert_eq!(timeout, expected.map(Duration::from_micros), "{variables:?}");
        };
        check(&[("WATCHDOG_USEC", "30000000"), ("WATCHDOG_PID", "7")], Some(30_000_000));
        check(&[("WATCHDOG_USEC", "30000000")], Some(30_000_000));
        check(&[("WATCHDOG_USEC", "30000000"), ("WATCHDOG_PID", "8")], None);
        check(&[("WATCHDOG_USEC", "30000000"), ("WATCHDOG_PID", "x")], None);
        check(&[("WATCHDOG_USEC", "0")], None);
        check(&[("WATCHDOG_USEC", "x")], None);
        check(&[("WATCHDOG_PID", "7")], None);
    }

    #[test]
    fn watchdog_is_pinged_only_while_loops_turn() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notify");
        let manager = UnixDatagram::bind(&path).unwrap();
        manager.set_nonblocking(true).unwrap();
        let received = || {
            let mut buffer = [0; 64];
            manager.recv(&mut buffer).ok().map(|length| String::from_utf8_lossy(&buffer[..length]).into_owned())
        };
        let interval = Duration::from_secs(3600);
        let watchdog = Watchdog { interval, due: Instant::now() };
        let mut told = ServiceManager { address: socket_address(path.to_str().unwrap()), watchdog: Some(watchdog) };
        let mut watch = |is_due: bool, turn: bool| {
            if is_due {
                told.watchdog.as_mut().unwrap().due = Instant::now();
            }
            let mut was_asked = false;
            let next = told.watch(|| {
                was_asked = true;
                turn
            });
            assert!(next <= interval);
            was_asked
        };
        assert!(watch(true, true));
        assert_eq!(received().as_deref(), Some("WATCHDOG=1\n"));
        assert!(!watch(false, true), "it is not due");
        assert!(watch(true, false));
        assert_eq!(received(), None);
        assert!(watch(true, true));
        assert_eq!(received().as_deref(), Some("WATCHDOG=1\n"));
    }

    #[test]
    fn ready_and_mainpid_wait_for_busy_service_manager() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notify");
        let manager = UnixDatagram::bind(&path).unwrap();
        manager.set_nonblocking(true).unwrap();
        let told = ServiceManager { address: socket_address(path.to_str().unwrap()), watchdog: None };
        // Its queue is full.
        let other = UnixDatagram::unbound().unwrap();
        other.set_nonblocking(true).unwrap();
        while other.send_to(b"WATCHDOG=1\n", &path).is_ok() {}
        std::thread::scope(|scope| {
            let telling = scope.spawn(|| told.is_replaced_by(7, "serving"));
            // Longer than for a message that is repeated.
            std::thread::sleep(PATIENCE + Duration::from_millis(500));
            assert!(!telling.is_finished());
            let mut last = String::new();
            while !telling.is_finished() || last.starts_with("WATCHDOG") {
                let mut buffer = [0; 64];
                if let Ok(length) = manager.recv(&mut buffer) {
                    last = String::from_utf8_lossy(&buffer[..length]).into_owned();
                }
            }
            assert_eq!(last, "MAINPID=7\nREADY=1\nSTATUS=serving\n");
        });
    }

    #[test]
    fn socket_may_have_a_path_or_an_abstract_name() {
        assert!(socket_address("/run/systemd/notify").unwrap().as_pathname().is_some());
        assert_eq!(socket_address("@notify").unwrap().as_abstract_name(), Some(&b"notify"[..]));
        assert!(socket_address("vsock:2:1").is_none() && socket_address("").is_none());
    }
}
