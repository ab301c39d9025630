//! The tasks of the signal thread besides signals: the control socket, the metrics endpoint, the ACME process and upgrades.
//!
//! The thread never blocks on a single client. It belongs to no loop, so it delays no request. These tasks have no
//! thread of their own because in MP this must be the only thread of its process, which forks.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use amped_core::site::Sites;
use amped_exporter::Exporter;
use amped_sys::poll::Awaited;
use amped_sys::signal::Signals;
use amped_units::Time;

use crate::acme::Acme;
use crate::config_snapshot::ConfigSnapshot;
use crate::control::{Control, Orders};
use crate::counters::Snapshot;
use crate::listen::Address;
use crate::metrics::{self, StatsSegment};
use crate::reread::Reread;
use crate::tls_config::TlsConfig;
use crate::upgrade::{Predecessor, Successor};

/// The main thread's view of the workers, threads or processes.
pub trait Workers: Orders {
    /// Returns the current configuration.
    fn generation(&self) -> &Arc<ConfigSnapshot>;

    /// Returns the addresses at which they listen.
    fn addresses(&self) -> &[Address];

    /// Returns the endpoint. It belongs to the workers because a forked process must close it: otherwise a client would
    /// not see its connection close while another process held it.
    fn admin(&mut self) -> &mut Option<AdminEndpoint>;

    /// Returns how long [`look_after`](Workers::look_after) has nothing to do, unless a child ends.
    fn patience(&self) -> Duration {
        Duration::MAX
    }

    /// Replaces processes that have ended, or ends the server if it cannot continue without one.
    fn look_after(&mut self);

    /// Applies another configuration.
    ///
    /// # Errors
    /// A message; the current configuration then continues.
    fn renew(&mut self, generation: Arc<ConfigSnapshot>, addresses: Vec<Address>) -> Result<(), String>;

    /// Reopens the log after rotation.
    fn reopen_log(&mut self);

    /// Makes workers that have copies of the certificates and ticket keys refresh them, as this process has done.
    fn refresh_tls(&mut self) {}

    /// Returns the sum of the statistics, the number of workers that answered within a second, and the number of
    /// workers.
    fn report(&mut self) -> (Snapshot, usize, usize);

    /// Returns whether the loops have turned since the last call, and asks them again, without waiting: all loops must have,
    /// or one of a pool, as the others may wait for their client or the disk. The first call returns `true`.
    fn loops_turn(&mut self) -> bool;

    /// Finishes requests in progress, until this time at the latest; a second signal ends the server at once.
    fn stop(self: Box<Self>, at: Time, end: End, signals: &Signals) -> ExitCode;
}

/// Why the workers end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The server stops: idle connections are closed at once.
    Stop,
    /// Another process takes over: idle connections wait for their next request.
    Drain,
}

/// The control socket, the metrics endpoint, the ACME process and an upgrade; at least one of them is there.
#[derive(Debug)]
pub struct AdminEndpoint {
    /// Readable when a signal is pending.
    bell: OwnedFd,
    /// The control socket.
    pub control: Option<Control>,
    /// The metrics endpoint.
    pub exporter: Option<Exporter>,
    /// The ACME process.
    pub acme: Option<Acme>,
    /// The process that replaces this one, while it starts.
    pub successor: Option<Successor>,
    /// The process that this one replaces, until this one serves.
    pub predecessor: Option<Predecessor>,
}

impl AdminEndpoint {
    /// Creates the endpoint.
    ///
    /// # Errors
    /// When the process is out of descriptors.
    pub fn new(
        control: Option<Control>,
        exporter: Option<Exporter>,
        acme: Option<Acme>,
        signals: &Signals,
    ) -> io::Result<AdminEndpoint> {
        Ok(AdminEndpoint { bell: signals.bell()?, control, exporter, acme, successor: None, predecessor: None })
    }

    /// Returns whether none of them is enabled.
    pub fn is_empty(&self) -> bool {
        self.control.is_none()
            && self.exporter.is_none()
            && self.acme.is_none()
            && self.successor.is_none()
            && self.predecessor.is_none()
    }

    /// Waits until a connection needs service or a signal is pending, at most for `patience`.
    pub fn wait(&self, workers: &dyn Workers, patience: Duration) {
        let mut awaited = Awaited::default();
        awaited.readable(self.bell.as_fd());
        self.control.iter().for_each(|control| control.await_in(workers, &mut awaited));
        self.exporter.iter().for_each(|exporter| exporter.await_in(&mut awaited));
        self.acme.iter().for_each(|acme| acme.await_in(&mut awaited));
        self.successor.iter().for_each(|successor| successor.await_in(&mut awaited));
        awaited.wait(patience);
    }

    /// Serves what is ready, without blocking.
    pub fn turn(&mut self, sites: &Sites, workers: &mut dyn Workers, segment: Option<&StatsSegment>) {
        if let Some(acme) = &mut self.acme
            && acme.turn()
            && let Some(tls) = workers.generation().tls.clone()
            && tls.refresh(Reread::Now)
        {
            workers.refresh_tls();
        }
        if let Some(control) = &mut self.control {
            control.turn(sites, workers, self.acme.as_mut());
        }
        self.acme.take_if(|acme| acme.is_over());
        if let (Some(exporter), Some(segment)) = (&mut self.exporter, segment) {
            let tls = workers.generation().tls.as_ref();
            let expiries = || tls.map(TlsConfig::expiries).unwrap_or_default();
            let acme = || self.acme.as_ref().map(Acme::figures);
            // A backend of several rules has one line.
            let backends = || {
                let mut checked = workers.generation().apps.checked_backends();
                checked.sort();
                checked.dedup_by(|one, other| one.0 == other.0);
                checked
            };
            exporter.turn(|| metrics::text(&segment.sum(), &expiries(), &backends(), acme().as_ref()));
        }
    }
}
