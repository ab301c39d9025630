//! An application process and its group: watches, ends and reaps it.
//!
//! The process leads its own process group, so that its children can be ended with it (`cgi`, `manager`).

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use amped_sys::{poll, process};

use super::semaphore::Permit;

/// A running process and its group. Dropping it kills the process if it has not ended.
#[derive(Debug)]
pub struct Process {
    pid: u32,
    /// Readable when the process has ended.
    pub watch: OwnedFd,
    /// Its exit status, once reaped.
    ending: Option<process::Ending>,
    _pass: Option<Permit>,
}

impl Process {
    /// Watches the child with this process ID, which leads a group and holds the permit.
    ///
    /// # Errors
    /// When it cannot be watched; it is then killed.
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

    /// Returns how the process has ended, if it has. The rest of its group is killed before it is reaped:
    /// until then the group ID cannot be reused.
    pub fn ended(&mut self) -> Option<process::Ending> {
        if self.ending.is_none()
            && poll::wait_readable(&[self.watch.as_fd()], Duration::ZERO).is_ok_and(|readable| readable[0])
        {
            process::kill_group(self.pid);
            self.ending = process::has_ended(self.pid);
        }
        self.ending
    }

    /// Kills the process and its group. It must still be reaped.
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
            // SIGKILL acts at once unless the process waits for a disk; and the server is about to exit in any case.
            let _ = process::wait_for(self.pid);
        }
    }
}
