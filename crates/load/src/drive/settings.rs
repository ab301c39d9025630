//! Whom a run connects to and how, and what ends it before its time.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, SystemTime};

use amped_measure::Failure;
use amped_sys::signal::{Signal, Signals};

use crate::tls::Tls;

/// Where the server is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// An address and a port.
    Tcp(SocketAddr),
    /// A socket with a name in the file system (unix(7)).
    Unix(PathBuf),
}

/// What does not depend on whether the loop is open.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Whom to connect to.
    pub target: Target,
    /// TLS on each connection; `None`: there is none.
    pub tls: Option<Tls>,
    /// How long a connection may take to be established, from its planned instant (T of the paper).
    pub connect_timeout: Duration,
    /// How long a reply may take, from the planned instant of its request, a handshake before it included.
    pub timeout: Duration,
    /// How long before an instant the clock is watched in place of sleeping.
    pub spin: Duration,
    /// S-Clients, each with its part of the schedule; or threads of a closed loop, each with its part of the clients.
    pub lanes: usize,
    /// Connections that a [`IdlePool`](super::parked::IdlePool) holds beside the run: they have descriptors and ports of their own.
    pub parked: usize,
    /// Asked when all is ready: when the first instant is to be. `None`: at once.
    pub start: Option<fn() -> Result<SystemTime, Failure>>,
}

/// Ends a run before its time.
#[derive(Clone, Debug, Default)]
pub struct Stop(Arc<AtomicBool>);

impl Stop {
    /// Ends the runs that were given this one.
    pub fn stop(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether it has been said.
    pub fn is_stopped(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// One that SIGINT, SIGTERM and SIGHUP say; the second of them ends the program with status 130, after `clean_up`. Call it
    /// before any thread is started.
    ///
    /// # Errors
    /// When no thread can be started.
    pub fn on_signals(clean_up: fn()) -> Result<Stop, Failure> {
        let signals = Signals::block().map_err(Failure::io("take signals"))?;
        let stop = Stop::default();
        let said = stop.clone();
        let wait = thread::Builder::new().name("signals".to_owned()).spawn(move || said.obey(signals, clean_up));
        wait.map_err(Failure::io("start a thread"))?;
        Ok(stop)
    }

    fn obey(&self, signals: Signals, clean_up: fn()) {
        loop {
            if matches!(signals.wait(), Signal::Interrupt | Signal::Terminate | Signal::HangUp) {
                if self.is_stopped() {
                    clean_up();
                    std::process::exit(130);
                }
                self.stop();
            }
        }
    }
}

/// Descriptors that are not for connections.
pub(super) const RESERVE: usize = 32;
