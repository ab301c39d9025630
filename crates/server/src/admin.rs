//! The duties of the signal thread besides signals: the control socket and the metrics endpoint.
//!
//! It never blocks on a single client. It belongs to no loop, so nothing that is measured waits for it. These duties
//! have no thread of their own because in MP this must be the only thread of its process, which forks.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use amped_core::site::Sites;
use amped_exporter::Exporter;
use amped_sys::poll::Awaited;
use amped_sys::signal::Signals;

use crate::control::{Control, Orders};
use crate::metrics::{self, StatsSegment};

/// The control socket and the metrics endpoint; at least one of them is enabled.
#[derive(Debug)]
pub struct AdminEndpoint {
    /// Readable when a signal is pending.
    bell: OwnedFd,
    /// The control socket.
    pub control: Option<Control>,
    /// The metrics endpoint.
    pub exporter: Option<Exporter>,
}

impl AdminEndpoint {
    /// Creates the endpoint; returns `None` if neither is enabled.
    ///
    /// # Errors
    /// When the process is out of descriptors.
    pub fn new(
        control: Option<Control>,
        exporter: Option<Exporter>,
        signals: &Signals,
    ) -> io::Result<Option<AdminEndpoint>> {
        if control.is_none() && exporter.is_none() {
            return Ok(None);
        }
        Ok(Some(AdminEndpoint { bell: signals.bell()?, control, exporter }))
    }

    /// Waits until a connection needs service or a signal is pending, at most for `patience`.
    pub fn wait(&self, workers: &impl Orders, patience: Duration) {
        let mut awaited = Awaited::default();
        awaited.readable(self.bell.as_fd());
        self.control.iter().for_each(|control| control.await_in(workers, &mut awaited));
        self.exporter.iter().for_each(|exporter| exporter.await_in(&mut awaited));
        awaited.wait(patience);
    }

    /// Serves what is ready, without blocking.
    pub fn turn(&mut self, sites: &Sites, workers: &mut impl Orders, segment: Option<&StatsSegment>) {
        if let Some(control) = &mut self.control {
            control.turn(sites, workers);
        }
        if let (Some(exporter), Some(segment)) = (&mut self.exporter, segment) {
            exporter.turn(|| metrics::text(&segment.sum()));
        }
    }
}
