//! Waiting, and hearing that it is enough: Ctrl-C and SIGTERM end a measurement, and what was measured is kept.

use std::time::Duration;

use amped_measure::Failure;
use amped_sys::signal::{Signal, Signals};

/// Hears Ctrl-C and SIGTERM, which otherwise would end the program at once.
#[derive(Debug)]
pub struct Stop(Signals);

impl Stop {
    /// From now on. Threads that are started later do not hear them; children neither, so start none.
    ///
    /// # Errors
    /// None on Linux.
    pub fn listen() -> Result<Stop, Failure> {
        Ok(Stop(Signals::block().map_err(Failure::io("wait for signals"))?))
    }

    /// Waits so long; `true`: it is enough.
    pub fn wait(&self, timeout: Duration) -> bool {
        let end = std::time::Instant::now() + timeout;
        loop {
            let left = end.saturating_duration_since(std::time::Instant::now());
            match self.0.wait_for(left) {
                Some(Signal::Interrupt | Signal::Terminate | Signal::HangUp) => return true,
                // One that means nothing here, or the time is over.
                Some(Signal::User1 | Signal::User2 | Signal::Child) => {}
                None if left.is_zero() => return false,
                None => {}
            }
        }
    }
}
