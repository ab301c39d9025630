//! Stream sockets: listening, accepting, receiving, sending.

use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::Duration;

use rustix::net::{self, AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, sockopt};

/// A socket that listens at `address`, not blocking.
///
/// `shared`: other sockets of this user may listen there too, and the kernel spreads connections over them
/// (`SO_REUSEPORT`), so that each loop has its own queue.
///
/// # Errors
/// As bind(2): the address is in use, is not this machine's, or its port is for root.
pub fn listen(address: SocketAddr, backlog: i32, shared: bool) -> io::Result<OwnedFd> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = net::socket_with(family, SocketType::STREAM, flags, None)?;
    // A restart must not fail because connections of the last run linger in TIME_WAIT.
    sockopt::set_socket_reuseaddr(&socket, true)?;
    if shared {
        sockopt::set_socket_reuseport(&socket, true)?;
    }
    if address.is_ipv6() {
        // `[::]` means all of both families, whatever net.ipv6.bindv6only says.
        sockopt::set_ipv6_v6only(&socket, false)?;
    }
    // Accepted sockets inherit it, which saves a call for each. Without it a small reply behind another would wait for
    // the client's delayed acknowledgement, 40 ms.
    sockopt::set_tcp_nodelay(&socket, true)?;
    net::bind(&socket, &address)?;
    net::listen(&socket, backlog)?;
    Ok(socket)
}

/// Whether an error says that this kernel has no IPv6, as in some containers.
pub fn is_without_ipv6(error: &io::Error) -> bool {
    error.raw_os_error() == Some(rustix::io::Errno::AFNOSUPPORT.raw_os_error())
}

/// Where a socket is bound: tells the port that was chosen for port 0.
///
/// # Errors
/// None for a bound TCP socket.
pub fn local_address(socket: impl AsFd) -> io::Result<SocketAddr> {
    Ok(SocketAddr::try_from(net::getsockname(socket)?)?)
}

/// The next connection of a listener, not blocking, with its peer's address.
///
/// # Errors
/// [`io::ErrorKind::WouldBlock`] when there is none; else as accept(2).
pub fn accept(listener: impl AsFd) -> io::Result<(OwnedFd, Option<SocketAddr>)> {
    let (socket, address) = net::acceptfrom_with(listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)?;
    Ok((socket, address.and_then(|address| SocketAddr::try_from(address).ok())))
}

/// Whether a connection waits at a listener.
pub fn has_waiting(listener: impl AsFd) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let mut asked = [PollFd::new(&listener, PollFlags::IN)];
    matches!(poll(&mut asked, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })), Ok(1..))
}

/// Receives into `buffer`. `Ok(0)`: the peer will send nothing more.
///
/// # Errors
/// [`io::ErrorKind::WouldBlock`] when there is nothing yet; else the connection is dead.
pub fn receive(socket: impl AsFd, buffer: &mut [u8]) -> io::Result<usize> {
    let (_, count) = net::recv(socket, buffer, RecvFlags::empty())?;
    Ok(count)
}

/// Sends `bytes`, or as many as there is room for. `more`: further bytes follow at once, so that the kernel waits for
/// them before it makes a packet of the rest.
///
/// # Errors
/// [`io::ErrorKind::WouldBlock`] when there is no room; else the connection is dead.
pub fn send(socket: impl AsFd, bytes: &[u8], more: bool) -> io::Result<usize> {
    Ok(net::send(socket, bytes, send_flags(more))?)
}

/// The same for bytes that lie in several places.
///
/// # Errors
/// As [`send`].
pub fn send_vectored(socket: impl AsFd, bytes: &[IoSlice<'_>], more: bool) -> io::Result<usize> {
    Ok(net::sendmsg(socket, bytes, &mut net::SendAncillaryBuffer::default(), send_flags(more))?)
}

fn send_flags(more: bool) -> SendFlags {
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    if more { flags | SendFlags::MORE } else { flags }
}

/// Sends nothing more; reading goes on.
///
/// # Errors
/// When the peer is gone already.
pub fn half_close(socket: impl AsFd) -> io::Result<()> {
    Ok(net::shutdown(socket, net::Shutdown::Write)?)
}

/// Makes the coming close a reset: what is still unsent is dropped, and the peer hears that the reply is not complete.
pub fn reset_on_close(socket: impl AsFd) {
    // The only error would be a socket that is none.
    let _ = sockopt::set_socket_linger(socket, Some(Duration::ZERO));
}

/// Bytes that the peer has not acknowledged yet (`SIOCOUTQ`, tcp(7)): whether it takes anything shows in how they fall.
pub fn unacknowledged(socket: impl AsFd) -> u64 {
    let mut count: libc::c_int = 0;
    // SAFETY: TIOCOUTQ, the same number as SIOCOUTQ, writes one int to its argument, which points to `count`, alive and
    // writable for the call; the descriptor is open as it is borrowed. JUSTIFICATION: rustix has no such ioctl.
    let result = unsafe { libc::ioctl(socket.as_fd().as_raw_fd(), libc::TIOCOUTQ, &raw mut count) };
    if result == 0 { u64::try_from(count).unwrap_or(0) } else { 0 }
}
