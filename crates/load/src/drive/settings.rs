//! The settings of a run: its target, its timeouts, and the means to stop it.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, SystemTime};

use amped_measure::Failure;
use amped_sys::signal::{Signal, Signals};

use crate::tls::Tls;

/// The address of the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// An address and a port.
    Tcp(SocketAddr),
    /// A Unix domain socket (unix(7)).
    Unix(PathBuf),
}

/// The settings that open and closed loops share.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The server.
    pub target: Target,
    /// TLS on each connection; `None` for plain text.
    pub tls: Option<Tls>,
    /// Maximum time to establish a connection, from its scheduled time (T of the paper).
    pub connect_timeout: Duration,
    /// Maximum time to complete a reply, from the scheduled time of its request, including a handshake.
    pub timeout: Duration,
    /// How long before an instant the thread polls the clock instead of sleeping.
    pub spin: Duration,
    /// S-Clients, each with its part of the schedule; in a closed loop threads, each with its part of the clients.
    pub lanes: usize,
    /// Connections that an [`IdlePool`](super::parked::IdlePool)
    /// holds beside the run, with descriptors and ports of their own.
    pub parked: usize,
    /// Called when all is ready; returns the first instant. `None` starts at once.
    pub start: Option<fn() -> Result<SystemTime, Failure>>,
}

/// Stops a run early.
#[derive(Clone, Debug, Default)]
pub struct Stop(Arc<AtomicBool>);

impl Stop {
    /// Stops all runs that share it.
    pub fn stop(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether it was stopped.
    pub fn is_stopped(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// A `Stop` triggered by SIGINT, SIGTERM and SIGHUP; the second signal ends the program with status 130, after
    /// `clean_up`. Call it before starting any thread.
    ///
    /// # Errors
    /// When no thread can be started.
    pub fn on_signals(clean_up: fn()) -> Result<Stop, Failure> {
        let signals = Signals::block().map_err(Failure::io("block signals"))?;
        let stop = Stop::default();
        let said = stop.clone();
        let wait = thread::Builder::new().name("signals".to_owned()).spawn(move || said.obey(signals, clean_up));
        wait.map_err(Failure::io("start a thread"))?;
        Ok(stop)
    }

    fn obey(&self, signals: Signals, clean_up: fn()) {
        loop {
            if matches!(signals.wait(), Signal::Interrupt | Signal::Terminate | Signal::Quit | Signal::HangUp) {
                if self.is_stopped() {
                    clean_up();
                    std::process::exit(130);
                }
                self.stop();
            }
        }
    }
}

/// Descriptors reserved for other purposes than connections.
pub(super) const RESERVE: usize = 32;
