//! TUN: a network device whose other end is a program, which reads the packets that the kernel sends and writes those
//! that it receives (Documentation/networking/tuntap.rst).
//!
//! Packets are IP packets, each preceded by a header of [`HEADER_BYTES`] (`struct virtio_net_hdr`,
//! linux/virtio_net.h) that says what remains to be done: segmentation, or a checksum. With that
//! header a TCP sender may pass 64 KiB at once.

use std::fs::OpenOptions;
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;

/// Length of the header before each packet.
pub const HEADER_BYTES: usize = 10;

/// The program's end of a device. Dropping it, or ending the program in any way, removes the device.
#[derive(Debug)]
pub struct Tun {
    fd: OwnedFd,
}

impl Tun {
    /// Creates a device of this name in the network namespace of the calling thread. The kernel may send TCP segments
    /// unsegmented, up to 64 KiB together.
    ///
    /// # Errors
    /// [`io::ErrorKind::NotFound`] and [`io::ErrorKind::PermissionDenied`] from opening `/dev/net/tun`; EPERM if this
    /// thread may not change the namespace's network; EBUSY for a name that is taken.
    pub fn create(name: &str) -> io::Result<Tun> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC)
            .open("/dev/net/tun")?;
        let mut ifr_name = [0; libc::IFNAMSIZ];
        // The last byte stays 0.
        if name.is_empty() || name.len() >= ifr_name.len() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "a device's name has 1 to 15 bytes"));
        }
        for (to, from) in ifr_name.iter_mut().zip(name.bytes()) {
            *to = from as libc::c_char;
        }
        let flags = (libc::IFF_TUN | libc::IFF_NO_PI | libc::IFF_VNET_HDR) as libc::c_short;
        let mut request = libc::ifreq { ifr_name, ifr_ifru: libc::__c_anonymous_ifr_ifru { ifru_flags: flags } };
        // SAFETY: TUNSETIFF reads and writes the `ifreq` that its argument points to, which is alive. JUSTIFICATION:
        // neither std nor rustix creates TUN devices.
        check(unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF, &raw mut request) })?;
        let features = libc::TUN_F_CSUM | libc::TUN_F_TSO4 | libc::TUN_F_TSO6 | libc::TUN_F_TSO_ECN;
        // SAFETY: TUNSETOFFLOAD takes a plain number.
        check(unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETOFFLOAD, libc::c_ulong::from(features)) })?;
        Ok(Tun { fd: file.into() })
    }

    /// Makes the kernel send whole packets from now on, segmented and with their checksums: their header is empty.
    ///
    /// # Errors
    /// EBADFD once the device was removed.
    pub fn without_offload(&self) -> io::Result<()> {
        // SAFETY: TUNSETOFFLOAD takes a plain number. JUSTIFICATION: as above.
        check(unsafe { libc::ioctl(self.fd.as_raw_fd(), libc::TUNSETOFFLOAD, 0 as libc::c_ulong) })
    }

    /// Reads the next packet that the kernel sends, with its header, into `buffer`; returns its length. Does not wait.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] when there is none; EBADFD once the device was removed.
    pub fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        Ok(rustix::io::read(&self.fd, buffer)?)
    }

    /// Passes a packet to the kernel, with its header, in pieces. The kernel processes
    /// it, up to a socket, before this returns.
    ///
    /// # Errors
    /// EIO while the device is down; EBADFD once it was removed; EINVAL for an invalid packet.
    pub fn write(&self, pieces: &[IoSlice<'_>]) -> io::Result<()> {
        rustix::io::writev(&self.fd, pieces)?;
        Ok(())
    }
}

impl AsFd for Tun {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Returns whether an error of [`Tun::read`] or [`Tun::write`] means that the device was removed.
pub fn is_gone(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::EBADFD)
}

/// Returns whether an error of [`Tun::create`] means that `/dev/net/tun` itself may not be opened, by its owner and
/// mode; otherwise the namespace's network may not be changed.
pub fn is_file_refused(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::EACCES)
}

fn check(result: libc::c_int) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_device_name_is_rejected() {
        for name in ["", "0123456789abcdef"] {
            assert_eq!(Tun::create(name).map(|_| ()).map_err(|error| error.kind()), Err(io::ErrorKind::InvalidInput));
        }
    }
}
