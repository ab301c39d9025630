//! Network namespaces (network_namespaces(7)): separate networks for threads of one program.
//!
//! A namespace exists as long as a thread is in it or a descriptor refers to it, and has no name, so that nothing
//! remains after a program is killed. A thread that has left its namespace must not be used for anything else.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space};

/// A network namespace, kept alive by a descriptor.
#[derive(Debug)]
pub struct NetNs {
    fd: OwnedFd,
}

impl NetNs {
    /// Returns the namespace of the calling thread.
    ///
    /// # Errors
    /// When `/proc` is not mounted.
    pub fn current() -> io::Result<NetNs> {
        NetNs::open(Path::new("/proc/thread-self/ns/net"))
    }

    /// Opens the namespace of a link such as `/proc/PID/ns/net` or [`NetNs::path`].
    ///
    /// # Errors
    /// Those of open(2).
    pub fn open(path: &Path) -> io::Result<NetNs> {
        Ok(NetNs { fd: File::open(path)?.into() })
    }

    /// Moves only the calling thread into a new namespace. Programs that it starts begin there.
    ///
    /// # Errors
    /// EPERM without CAP_SYS_ADMIN.
    pub fn unshare() -> io::Result<()> {
        // SAFETY: a new network namespace changes nothing that threads share in memory or of descriptors, for which the
        // call must not be used (`UnshareFlags::FILES`). JUSTIFICATION: rustix has no safe form for the network.
        unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNET) }.map_err(Into::into)
    }

    /// Moves only the calling thread into this namespace.
    ///
    /// # Errors
    /// EPERM without CAP_SYS_ADMIN; EINVAL if it is not a network namespace.
    pub fn enter(&self) -> io::Result<()> {
        Ok(move_into_link_name_space(self.fd.as_fd(), Some(LinkNameSpaceType::Network))?)
    }

    /// Returns the path by which other programs find it while this process holds it.
    pub fn path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/{}/fd/{}", std::process::id(), self.fd.as_raw_fd()))
    }
}

/// Makes this process, and no other, root of a new user namespace (user_namespaces(7)): it gets all privileges over
/// networks created from there, and no additional ones over the host.
///
/// # Errors
/// EPERM, or ENOSPC, if the kernel or its administrator does not allow such a namespace;
/// EINVAL in a process with several threads.
pub fn become_root_of_new_users() -> io::Result<()> {
    let (user, group) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    // SAFETY: a new user namespace changes nothing that threads share in memory or of descriptors, and the kernel
    // refuses it if there are other threads. JUSTIFICATION: rustix has no safe form for it.
    unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWUSER) }?;
    // An ordinary user may map only itself, and its group only after setgroups is denied.
    fs::write("/proc/self/setgroups", "deny")?;
    fs::write("/proc/self/uid_map", format!("0 {user} 1"))?;
    fs::write("/proc/self/gid_map", format!("0 {group} 1"))
}

/// Moves this process into the user namespace of a link such as `/proc/PID/ns/user`, unless it is in it already.
///
/// # Errors
/// EPERM if it belongs to another user and this process is not root; EINVAL in a process with several threads.
pub fn enter_users(link: &Path) -> io::Result<()> {
    if fs::read_link(link)? == fs::read_link("/proc/self/ns/user")? {
        return Ok(());
    }
    Ok(move_into_link_name_space(File::open(link)?.as_fd(), Some(LinkNameSpaceType::User))?)
}

impl AsFd for NetNs {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
