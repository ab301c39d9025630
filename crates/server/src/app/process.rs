//! A process that serves requests, and its group: how it is watched, ended and waited for.
//!
//! It leads a process group of its own, so that whatever it starts can be ended with it (`cgi`, `manager`).

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use amped_sys::{poll, process};

use super::semaphore::Permit;

/// A process that was started, and its group. Dropped before it has ended, it is ended.
#[derive(Debug)]
pub struct Process {
    pid: u32,
    /// Readable when it has ended.
    pub watch: OwnedFd,
    /// How it has ended, once it was waited for.
    ending: Option<process::Ending>,
    _pass: Option<Permit>,
}

impl Process {
    /// The process of this number, a child that leads a group, and the place that it takes.
    ///
    /// # Errors
    /// When it cannot be watched; then it is ended.
    pub fn new(pid: u32, permit: Option<Permit>) -> io::Result<Process> {
        match process::watch(pid) {
            Ok(watch) => Ok(Process { pid, watch, ending: None, _pass: permit }),
            Err(error) => {
                process::kill_group(pid);
                let _ = process::wait_for(pid);
                Err(error)
            }
        }
    }

    /// How it has ended, if it has. What it has left in its group is ended with it: as long as it was not waited for, the
    /// group is sure to be its own.
    pub fn ended(&mut self) -> Option<process::Ending> {
        if self.ending.is_none()
            && poll::wait_readable(&[self.watch.as_fd()], Duration::ZERO).is_ok_and(|readable| readable[0])
        {
            process::kill_group(self.pid);
            self.ending = process::has_ended(self.pid);
        }
        self.ending
    }

    /// Ends it, with its group, at once. It is still to be waited for.
    pub fn kill(&self) {
        if self.ending.is_none() {
            process::kill_group(self.pid);
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if self.ending.is_none() {
            self.kill();
            // SIGKILL is obeyed at once but by who waits for a disk; the server is about to end in any case.
            let _ = process::wait_for(self.pid);
        }
    }
}
