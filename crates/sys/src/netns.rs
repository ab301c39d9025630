//! Network namespaces (network_namespaces(7)): networks of their own for threads of one program.
//!
//! A namespace lives as long as somebody is in it or holds it, and has no name of its own, so that there is nothing to
//! remove after a program that was killed. A thread that has left its namespace is not to be used for anything else.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space};

/// A network namespace that is held.
#[derive(Debug)]
pub struct NetNs {
    fd: OwnedFd,
}

impl NetNs {
    /// The one that the calling thread is in.
    ///
    /// # Errors
    /// When `/proc` is not mounted.
    pub fn current() -> io::Result<NetNs> {
        NetNs::open(Path::new("/proc/thread-self/ns/net"))
    }

    /// The one behind such a link of `/proc`, or of [`NetNs::path`].
    ///
    /// # Errors
    /// As open(2).
    pub fn open(path: &Path) -> io::Result<NetNs> {
        Ok(NetNs { fd: File::open(path)?.into() })
    }

    /// Moves the calling thread, and it alone, into a new namespace. Programs that it starts begin there.
    ///
    /// # Errors
    /// EPERM without CAP_SYS_ADMIN.
    pub fn unshare() -> io::Result<()> {
        // SAFETY: a new network namespace changes nothing of what threads share in memory or of descriptors, which is what
        // the call may not be used for (`UnshareFlags::FILES`). JUSTIFICATION: rustix has no safe form for the network.
        unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNET) }.map_err(Into::into)
    }

    /// Moves the calling thread, and it alone, into this namespace.
    ///
    /// # Errors
    /// EPERM without CAP_SYS_ADMIN; EINVAL if it is none of the network.
    pub fn enter(&self) -> io::Result<()> {
        Ok(move_into_link_name_space(self.fd.as_fd(), Some(LinkNameSpaceType::Network))?)
    }

    /// Under which name other programs find it as long as this one holds it.
    pub fn path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/{}/fd/{}", std::process::id(), self.fd.as_raw_fd()))
    }
}

/// Makes this process, and none beside it, root of a new user namespace (user_namespaces(7)): of networks that are made from
/// there it may do everything, of the host nothing that it could not do before.
///
/// # Errors
/// EPERM, or ENOSPC, where the kernel or its administrator allows no such namespace; EINVAL in a process of several threads.
pub fn become_root_of_new_users() -> io::Result<()> {
    let (user, group) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    // SAFETY: a new user namespace changes nothing of what threads share in memory or of descriptors, and the kernel refuses
    // it where there are other threads. JUSTIFICATION: rustix has no safe form for it.
    unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWUSER) }?;
    // An ordinary user may map himself alone, and his group once nobody can drop groups.
    fs::write("/proc/self/setgroups", "deny")?;
    fs::write("/proc/self/uid_map", format!("0 {user} 1"))?;
    fs::write("/proc/self/gid_map", format!("0 {group} 1"))
}

/// Moves this process into the user namespace behind such a link of `/proc`, unless it is there already.
///
/// # Errors
/// EPERM where it is neither that of this user nor this one root; EINVAL in a process of several threads.
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
