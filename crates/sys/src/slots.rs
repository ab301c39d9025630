//! Slots that processes share, each taken by one of them at a time: locks on the bytes of a file in memory (fcntl(2),
//! `F_SETLK`). The kernel releases all slots of a process that ends, for whatever reason.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{MemfdFlags, memfd_create};

/// Slots to take. Processes share those that they have inherited; threads of one process do not exclude each other.
#[derive(Debug)]
pub struct Slots(OwnedFd);

impl Slots {
    /// Creates a set of free slots.
    ///
    /// # Errors
    /// When the process is out of descriptors or memory.
    pub fn new() -> io::Result<Slots> {
        Ok(Slots(memfd_create(c"amped-slots", MemfdFlags::CLOEXEC)?))
    }

    /// Wraps the slots of another process, which has sent this descriptor.
    pub fn of(descriptor: OwnedFd) -> Slots {
        Slots(descriptor)
    }

    /// Takes the slot of this number, if no other process has it. Does not wait.
    pub fn take(&self, number: u32) -> bool {
        self.lock(number, libc::F_WRLCK)
    }

    /// Releases a slot.
    pub fn give_back(&self, number: u32) {
        self.lock(number, libc::F_UNLCK);
    }

    fn lock(&self, number: u32, kind: libc::c_int) -> bool {
        let lock = libc::flock {
            l_type: kind as libc::c_short,
            l_whence: libc::SEEK_SET as libc::c_short,
            l_start: number.into(),
            l_len: 1,
            l_pid: 0,
        };
        nix::fcntl::fcntl(&self.0, nix::fcntl::FcntlArg::F_SETLK(&lock)).is_ok()
    }
}

/// For sending it to a process that shares them.
impl AsFd for Slots {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::{self, Ending};

    #[test]
    fn exiting_process_releases_its_slots() {
        let slots = Slots::new().expect("made");
        assert!(slots.take(3) && slots.take(4));
        slots.give_back(4);
        // SAFETY: the child calls only fcntl(2) and _exit(2), which a forked process always may (signal-safety(7)).
        // JUSTIFICATION: `process::fork` requires a single thread, which no test has.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let is_right = !slots.take(3) && slots.take(4);
            // SAFETY: ends this process and does nothing else.
            unsafe { libc::_exit(i32::from(!is_right)) }
        }
        assert_eq!(process::wait_for(child.unsigned_abs()).expect("waited"), Ending::Status(0));
        assert!(slots.take(4), "the child held it to its end");
    }
}
