//! Waiting that Ctrl-C and SIGTERM interrupt: they end a measurement, and the measured data is kept.

use std::time::Duration;

use amped_measure::Failure;
use amped_sys::signal::{Signal, Signals};

/// Receives Ctrl-C and SIGTERM, which otherwise would terminate the program at once.
#[derive(Debug)]
pub struct Stop(Signals);

impl Stop {
    /// Starts to receive. Threads started later do not receive these signals; children neither, so start none.
    ///
    /// # Errors
    /// None on Linux.
    pub fn listen() -> Result<Stop, Failure> {
        Ok(Stop(Signals::block().map_err(Failure::io("wait for signals"))?))
    }

    /// Waits for `timeout`; returns `true` if a signal requested the stop.
    pub fn wait(&self, timeout: Duration) -> bool {
        let end = std::time::Instant::now() + timeout;
        loop {
            let left = end.saturating_duration_since(std::time::Instant::now());
            match self.0.wait_for(left) {
                Some(Signal::Interrupt | Signal::Terminate | Signal::Quit | Signal::HangUp) => return true,
                // A signal without meaning here, or the timeout.
                Some(Signal::User1 | Signal::User2 | Signal::Child) => {}
                None if left.is_zero() => return false,
                None => {}
            }
        }
    }
}
