//! What the thread that takes signals does beside that: it serves the control socket and the metrics' address.
//!
//! Between signals, and without ever waiting for one client. That thread is no loop's, so nothing that is measured waits for
//! it, and a thread of their own is not for them: in MP it must be the only one of its process, which makes copies of itself.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use amped_core::site::Sites;
use amped_exporter::Exporter;
use amped_sys::poll::Awaited;
use amped_sys::signal::Signals;

use crate::control::{Control, Orders};
use crate::metrics::{self, StatsSegment};

/// Both, as far as they are wanted. One of them is.
#[derive(Debug)]
pub struct AdminEndpoint {
    /// Tells of signals.
    bell: OwnedFd,
    /// Where orders are taken.
    pub control: Option<Control>,
    /// Where the metrics are asked for.
    pub exporter: Option<Exporter>,
}

impl AdminEndpoint {
    /// These; `None` if none is wanted.
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

    /// Waits until there is something to do here, or a signal to take, and no longer than `patience`.
    pub fn wait(&self, workers: &impl Orders, patience: Duration) {
        let mut awaited = Awaited::default();
        awaited.readable(self.bell.as_fd());
        self.control.iter().for_each(|control| control.await_in(workers, &mut awaited));
        self.exporter.iter().for_each(|exporter| exporter.await_in(&mut awaited));
        awaited.wait(patience);
    }

    /// Does what there is to do; waits for nobody.
    pub fn turn(&mut self, sites: &Sites, workers: &mut impl Orders, segment: Option<&StatsSegment>) {
        if let Some(control) = &mut self.control {
            control.turn(sites, workers);
        }
        if let (Some(exporter), Some(segment)) = (&mut self.exporter, segment) {
            exporter.turn(|| metrics::text(&segment.sum()));
        }
    }
}
