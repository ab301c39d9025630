//! Sockets that have a name in the file system and no address in a network (unix(7)).

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::Duration;

use rustix::fs::{AtFlags, CWD, Gid, Mode, Uid};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, sockopt};

/// Connections that wait to be accepted.
const BACKLOG: i32 = 16;

/// Listens under a name that nobody but its owner, and root, may connect to. Accepts without waiting.
///
/// # Errors
/// As bind(2): [`io::ErrorKind::AddrInUse`] if the name is taken, also by a socket that nobody listens at any more.
pub fn listen(name: &Path) -> io::Result<UnixListener> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    // Before it has its name, which then has this mode from its first moment (unix(7); Linux makes it of the socket's own).
    rustix::fs::fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
    rustix::net::bind(&socket, &SocketAddrUnix::new(name)?)?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(socket.into())
}

/// Gives the name of a socket to another user. The socket itself stays whose it is.
///
/// # Errors
/// As fchownat(2).
pub fn give_to(name: &Path, uid: u32, gid: u32) -> io::Result<()> {
    let (uid, gid) = (Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)));
    Ok(rustix::fs::chownat(CWD, name, uid, gid, AtFlags::SYMLINK_NOFOLLOW)?)
}

/// Connects to the socket of this name; neither that nor any later call on it waits longer than `patience`.
///
/// # Errors
/// As connect(2): [`io::ErrorKind::ConnectionRefused`] if nobody listens there, [`io::ErrorKind::WouldBlock`] if
/// somebody does and accepts nobody.
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
/// As connect(2): [`io::ErrorKind::ConnectionRefused`] if nobody listens there, [`io::ErrorKind::WouldBlock`] if
/// too many wait there already.
pub fn connect_now(name: &Path) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(name)?)?;
    Ok(socket)
}

/// The number of the user who connected.
///
/// # Errors
/// As getsockopt(2).
pub fn peer(stream: &UnixStream) -> io::Result<u32> {
    Ok(sockopt::socket_peercred(stream)?.uid.as_raw())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn socket_is_private_from_creation() {
        let folder = tempfile::tempdir().expect("a temporary folder");
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
        let refused = connect(&name, Duration::from_secs(5)).expect_err("nobody listens");
        assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
    }
}
