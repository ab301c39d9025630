//! Unix sockets, which have a name in the file system rather than a network address (unix(7)).

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::Duration;

use rustix::fs::Mode;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, sockopt};

/// Maximum connections waiting to be accepted.
const BACKLOG: i32 = 16;

/// Listens on a name that only its owner, and root, may connect to. Accepting does not block.
///
/// # Errors
/// Those of bind(2): [`io::ErrorKind::AddrInUse`] if the name is taken, even by a socket without a listener.
pub fn listen(name: &Path) -> io::Result<UnixListener> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    // Before it has its name, which then has this mode from the start (unix(7);
    // Linux derives it from the socket's own mode).
    rustix::fs::fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
    rustix::net::bind(&socket, &SocketAddrUnix::new(name)?)?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(socket.into())
}

/// Connects to the socket of this name; neither this nor any later call on it waits longer than `patience`.
///
/// # Errors
/// Those of connect(2): [`io::ErrorKind::ConnectionRefused`] without a listener,
/// [`io::ErrorKind::WouldBlock`] if a listener accepts no connections.
pub fn connect(name: &Path, patience: Duration) -> io::Result<UnixStream> {
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    for direction in [sockopt::Timeout::Send, sockopt::Timeout::Recv] {
        sockopt::set_socket_timeout(&socket, direction, Some(patience))?;
    }
    rustix::net::connect(&socket, &SocketAddrUnix::new(name)?)?;
    Ok(socket.into())
}

/// Connects to the socket of this name, or fails, at once; later calls do not block either.
///
/// # Errors
/// Those of connect(2): [`io::ErrorKind::ConnectionRefused`] without a listener,
/// [`io::ErrorKind::WouldBlock`] if its queue is full.
pub fn connect_now(name: &Path) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(name)?)?;
    Ok(socket)
}

/// Returns the UID of the connected peer.
///
/// # Errors
/// Those of getsockopt(2).
pub fn peer(stream: &UnixStream) -> io::Result<u32> {
    Ok(sockopt::socket_peercred(stream)?.uid.as_raw())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn socket_is_private_from_creation() {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let name = folder.path().join("socket");
        let listener = listen(&name).expect("listens");
        let status = std::fs::metadata(&name).expect("there");
        assert_eq!(status.mode() & 0o777, 0o600);
        assert_eq!(listen(&name).expect_err("taken").kind(), io::ErrorKind::AddrInUse);
        let client = connect(&name, Duration::from_secs(5)).expect("connects");
        let (server, _) = listener.accept().expect("accepts");
        assert_eq!(peer(&server).expect("asked"), status.uid());
        let now = connect_now(&name).expect("connects");
        listener.accept().expect("accepts");
        drop((client, now, server, listener));
        let refused = connect(&name, Duration::from_secs(5)).expect_err("no listener");
        assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
    }
}
