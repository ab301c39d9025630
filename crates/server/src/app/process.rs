//! A program that was started (`launch`): watches, ends and reaps it.
//!
//! It is a child of this process, or of the process manager (`manager`), which then reaps it and reports its end.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use amped_sys::file::Patience;
use amped_sys::{poll, process};
use serde::{Deserialize, Serialize};

use super::launch::Life;
use super::semaphore::Permit;
use crate::portable::{self, PortableEnding};

/// A running process. Dropping one with [`Life::Request`] kills it and its group if it has not ended.
#[derive(Debug)]
pub struct Process {
    pid: u32,
    /// Readable when the process has ended.
    pub watch: OwnedFd,
    /// The process manager has started it: `watch` is its link.
    is_remote: bool,
    life: Life,
    has_ended: bool,
    /// How it has ended; unknown if another part of the server has reaped it.
    ending: Option<process::Ending>,
    _pass: Option<Permit>,
}

/// A message of the process manager: how a program has ended.
#[derive(Serialize, Deserialize)]
pub(super) struct Ended(#[serde(with = "PortableEnding")] pub(super) process::Ending);

/// A message to the process manager about a program that it has started.
#[derive(Serialize, Deserialize)]
pub(super) enum Order {
    /// Kill it.
    Kill,
}

impl Process {
    /// Watches the child with this process ID, which holds the permit.
    ///
    /// # Errors
    /// When it cannot be watched; it is then killed.
    pub fn new(pid: u32, life: Life, permit: Option<Permit>) -> io::Result<Process> {
        match process::watch(pid) {
            Ok(watch) => {
                Ok(Process { pid, watch, is_remote: false, life, has_ended: false, ending: None, _pass: permit })
            }
            Err(error) => {
                kill(pid, life);
                let _ = process::wait_for(pid);
                Err(error)
            }
        }
    }

    /// Watches a child of the process manager.
    pub(super) fn remote(pid: u32, link: OwnedFd, life: Life, permit: Option<Permit>) -> Process {
        Process { pid, watch: link, is_remote: true, life, has_ended: false, ending: None, _pass: permit }
    }

    /// Returns its process ID.
    pub fn id(&self) -> u32 {
        self.pid
    }

    /// Returns how the process has ended, if it has and that is known. The rest of its group is killed before it is reaped:
    /// until then the group ID cannot be reused.
    pub fn ended(&mut self) -> Option<process::Ending> {
        if !self.has_ended
            && poll::wait_readable(&[self.watch.as_fd()], Duration::ZERO).is_ok_and(|readable| readable[0])
        {
            if self.is_remote {
                match portable::receive(&self.watch, &mut Vec::new(), Patience::Now) {
                    Ok(Ended(ending)) => self.ending = Some(ending),
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => return None,
                    // The manager has ended, and everything that it has started.
                    Err(_) => self.ending = Some(process::Ending::KILLED),
                }
            } else {
                if self.life == Life::Request {
                    process::kill_group(self.pid);
                }
                self.ending = process::has_ended(self.pid);
            }
            self.has_ended = true;
        }
        self.ending
    }

    /// Returns whether it has ended.
    pub fn has_ended(&mut self) -> bool {
        self.ended();
        self.has_ended
    }

    /// Kills the process, and its group if it leads one. It must still be reaped.
    pub fn kill(&self) {
        if self.has_ended {
            return;
        }
        match self.is_remote {
            // If the manager has ended, the process has too.
            true => drop(portable::send(&self.watch, &Order::Kill, &[], Patience::Now)),
            false => kill(self.pid, self.life),
        }
    }

    /// Waits until it has ended.
    pub fn wait(&mut self) {
        while !self.has_ended() {
            let _ = poll::wait_readable(&[self.watch.as_fd()], Duration::MAX);
        }
    }
}

fn kill(pid: u32, life: Life) {
    match life {
        Life::Request => process::kill_group(pid),
        Life::Server | Life::Successor => process::kill(pid),
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // The manager kills and reaps its own when their links are closed.
        if !self.has_ended && !self.is_remote && self.life == Life::Request {
            self.kill();
            // SIGKILL acts at once unless the process waits for a disk; and the server is about to exit in any case.
            let _ = process::wait_for(self.pid);
        }
    }
}
