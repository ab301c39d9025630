//! Signals, taken one by one by a thread that waits for them (sigwaitinfo(2)). There is no handler,
//! and so none of a handler's restrictions.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{FromRawFd, OwnedFd};
use std::time::Duration;

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
    /// SIGUSR2: report the statistics.
    User2,
    /// SIGCHLD: a child has ended.
    Child,
}

const KNOWN: [(libc::c_int, Signal); 6] = [
    (libc::SIGTERM, Signal::Terminate),
    (libc::SIGINT, Signal::Interrupt),
    (libc::SIGHUP, Signal::HangUp),
    (libc::SIGUSR1, Signal::User1),
    (libc::SIGUSR2, Signal::User2),
    (libc::SIGCHLD, Signal::Child),
];

/// All handled signals, blocked so that [`Signals::wait`] receives them.
#[derive(Clone, Copy, Debug)]
pub struct Signals {
    set: libc::sigset_t,
}

impl Signals {
    /// Blocks the handled signals in this thread, and in all threads that it
    /// starts from now on: call it before the first.
    ///
    /// # Errors
    /// None on Linux.
    pub fn block() -> io::Result<Signals> {
        let mut set = MaybeUninit::uninit();
        // SAFETY: sigemptyset(3) initialises the set that its argument points to, `set`, which is alive.
        // JUSTIFICATION: neither std nor rustix can change the signal mask.
        let mut set = unsafe {
            libc::sigemptyset(set.as_mut_ptr());
            set.assume_init()
        };
        for (number, _) in KNOWN {
            // SAFETY: `set` was initialised above, and `number` is a valid signal.
            unsafe { libc::sigaddset(&raw mut set, number) };
        }
        // SAFETY: pthread_sigmask(3) reads the initialised `set`; the old mask is not requested.
        let error = unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut()) };
        if error != 0 {
            return Err(io::Error::from_raw_os_error(error));
        }
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
        // SAFETY: sigtimedwait(2) reads the set, initialised by `block`, and the time; the details are not requested.
        let number = unsafe { libc::sigtimedwait(&raw const self.set, std::ptr::null_mut(), &raw const timeout) };
        KNOWN.iter().find(|(known, _)| *known == number).map(|(_, signal)| *signal)
    }

    /// Returns a descriptor that is readable while a signal is pending for [`wait_for`](Signals::wait_for), for callers
    /// that wait for other events too (signalfd(2)).
    ///
    /// # Errors
    /// When the process is out of descriptors.
    pub fn bell(&self) -> io::Result<OwnedFd> {
        // SAFETY: signalfd(2) reads the set, initialised by `block`. JUSTIFICATION: neither std nor rustix has it.
        let bell = unsafe { libc::signalfd(-1, &raw const self.set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) };
        if bell < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: it has just been created, and nothing else owns it.
        Ok(unsafe { OwnedFd::from_raw_fd(bell) })
    }

    /// Ignores signals in a supervised child: what a terminal or a supervisor sends to all processes is for
    /// the parent. SIGKILL still ends the child.
    pub fn leave_to_parent(self) {
        for (number, signal) in KNOWN {
            let disposition = match signal {
                Signal::Child => libc::SIG_DFL,
                Signal::Terminate | Signal::Interrupt | Signal::HangUp | Signal::User1 | Signal::User2 => libc::SIG_IGN,
            };
            // SAFETY: signal(2) with a valid number and one of the two dispositions that are not functions.
            unsafe { libc::signal(number, disposition) };
        }
        // SAFETY: pthread_sigmask(3) reads the set, initialised by `block`; the old mask is not requested.
        unsafe { libc::pthread_sigmask(libc::SIG_UNBLOCK, &raw const self.set, std::ptr::null_mut()) };
    }
}
