//! Signals, taken one by one by a thread that waits for them (sigwaitinfo(2)). There is no handler,
//! and so none of a handler's restrictions.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use nix::sys::signal::{SigHandler, SigSet, Signal as Number, signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};

/// A signal that the server handles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// SIGTERM: stop.
    Terminate,
    /// SIGINT, Ctrl-C: stop.
    Interrupt,
    /// SIGHUP: reload the configuration.
    HangUp,
    /// SIGUSR1: reopen the log.
    User1,
    /// SIGUSR2: start another program in place of this one.
    User2,
    /// SIGQUIT, Ctrl-\: report the statistics.
    Quit,
    /// SIGCHLD: a child has ended.
    Child,
}

/// The handled signals.
pub(crate) const KNOWN: [(Number, Signal); 7] = [
    (Number::SIGTERM, Signal::Terminate),
    (Number::SIGINT, Signal::Interrupt),
    (Number::SIGHUP, Signal::HangUp),
    (Number::SIGUSR1, Signal::User1),
    (Number::SIGUSR2, Signal::User2),
    (Number::SIGQUIT, Signal::Quit),
    (Number::SIGCHLD, Signal::Child),
];

impl Signal {
    /// Sends it to a child. It is not an error if that has ended.
    pub fn send(self, child: u32) {
        let number = KNOWN.iter().find(|(_, signal)| *signal == self).map(|(number, _)| *number);
        if let Ok(pid) = i32::try_from(child) {
            let _ = nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), number);
        }
    }
}

/// All handled signals, blocked so that [`Signals::wait`] receives them.
#[derive(Clone, Copy, Debug)]
pub struct Signals {
    set: SigSet,
}

impl Signals {
    /// Blocks the handled signals in this thread, and in all threads that it
    /// starts from now on: call it before the first.
    ///
    /// # Errors
    /// None on Linux.
    pub fn block() -> io::Result<Signals> {
        let set = SigSet::from_iter(KNOWN.map(|(number, _)| number));
        set.thread_block()?;
        Ok(Signals { set })
    }

    /// Waits for the next signal.
    pub fn wait(&self) -> Signal {
        loop {
            if let Some(signal) = self.wait_for(Duration::MAX) {
                return signal;
            }
        }
    }

    /// Waits for the next signal, at most for this long; `None`: there was none.
    pub fn wait_for(&self, timeout: Duration) -> Option<Signal> {
        let timeout = libc::timespec {
            tv_sec: timeout.as_secs().min(i64::MAX as u64 / 2) as i64,
            tv_nsec: timeout.subsec_nanos().into(),
        };
        // SAFETY: sigtimedwait(2) reads the set and the time, both alive; the details are not requested. JUSTIFICATION:
        // nix waits only without a timeout.
        let number = unsafe { libc::sigtimedwait(self.set.as_ref(), std::ptr::null_mut(), &raw const timeout) };
        KNOWN.iter().find(|(known, _)| *known as libc::c_int == number).map(|(_, signal)| *signal)
    }

    /// Returns a descriptor that is readable while a signal is pending for [`wait_for`](Signals::wait_for), for callers
    /// that wait for other events too (signalfd(2)).
    ///
    /// # Errors
    /// When the process is out of descriptors.
    pub fn bell(&self) -> io::Result<OwnedFd> {
        Ok(SignalFd::with_flags(&self.set, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?.into())
    }

    /// Ignores signals in a supervised child: what a terminal or a supervisor sends to all processes is for
    /// the parent. SIGKILL still ends the child.
    pub fn leave_to_parent(self) {
        for (number, known) in KNOWN {
            let disposition = if known == Signal::Child { SigHandler::SigDfl } else { SigHandler::SigIgn };
            // SAFETY: neither disposition is a function. It fails only for SIGKILL and SIGSTOP.
            let _ = unsafe { signal(number, disposition) };
        }
        // It fails only for an unknown operation.
        let _ = self.set.thread_unblock();
    }
}
