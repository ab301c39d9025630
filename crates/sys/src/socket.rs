//! Stream sockets: listening, accepting, receiving, sending; and pairs, over which processes pass descriptors.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::cmsg_space;
use rustix::io::retry_on_intr;
use rustix::net::{self, AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, sockopt};

use crate::file::Patience;

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

/// A socket for a connection to `to`, not blocking, and bound to `from` where that is given: to its port, or, where
/// that is 0, to one that the kernel chooses when it connects. Ports of connections that are over, though not yet
/// forgotten (TIME_WAIT), are taken again.
///
/// # Errors
/// As bind(2): [`io::ErrorKind::AddrInUse`] if somebody has the port; when the process is out of descriptors.
pub fn outgoing(from: Option<SocketAddr>, to: SocketAddr) -> io::Result<OwnedFd> {
    let family = if to.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = net::socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, None)?;
    if let Some(from) = from {
        // Without a port there is nothing to be in the way of, and a search among those that are free for this peer.
        if from.port() == 0 {
            let on: libc::c_int = 1;
            // SAFETY: setsockopt(2) reads one int from `on`, alive for the call, and its length is given; the descriptor is
            // ours. JUSTIFICATION: rustix has no such option.
            unsafe {
                let length = size_of::<libc::c_int>() as libc::socklen_t;
                let option = libc::IP_BIND_ADDRESS_NO_PORT;
                libc::setsockopt(socket.as_raw_fd(), libc::IPPROTO_IP, option, (&raw const on).cast(), length);
            }
        } else {
            sockopt::set_socket_reuseaddr(&socket, true)?;
        }
        net::bind(&socket, &from)?;
    }
    Ok(socket)
}

/// Begins to connect, and does not wait: the socket can be written to once it is connected or has failed, see [`failed`].
///
/// # Errors
/// As connect(2), where it is known at once.
pub fn begin_connect(socket: impl AsFd, to: SocketAddr) -> io::Result<()> {
    match net::connect(socket, &to) {
        Ok(()) | Err(rustix::io::Errno::INPROGRESS) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// What went wrong on a socket since it was last asked (`SO_ERROR`); `None`: nothing.
pub fn failed(socket: impl AsFd) -> Option<io::Error> {
    match sockopt::socket_error(socket) {
        Ok(Ok(())) => None,
        Ok(Err(error)) | Err(error) => Some(error.into()),
    }
}

/// Where a socket is bound: tells the port that was chosen for port 0.
///
/// # Errors
/// None for a bound TCP socket.
pub fn local_address(socket: impl AsFd) -> io::Result<SocketAddr> {
    Ok(SocketAddr::try_from(net::getsockname(socket)?)?)
}

/// Who is at the other end of a connection.
///
/// # Errors
/// When the connection is gone already.
pub fn peer_address(socket: impl AsFd) -> io::Result<SocketAddr> {
    let address = net::getpeername(socket)?.ok_or(io::ErrorKind::NotConnected)?;
    Ok(SocketAddr::try_from(address)?)
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

/// How many bytes the kernel holds of what the peer sends, and so how much it offers to take (`SO_RCVBUF`, socket(7)): it
/// doubles the number, and has a least. To be said before the connection is begun.
///
/// # Errors
/// None for a socket.
pub fn set_receive_buffer(socket: impl AsFd, bytes: usize) -> io::Result<()> {
    Ok(sockopt::set_socket_recv_buffer_size(socket, bytes)?)
}

/// The same, and beyond what an administrator has set as the most (`net.core.rmem_max`) if this process may.
///
/// # Errors
/// None for a socket.
pub fn raise_receive_buffer(socket: impl AsFd, bytes: usize) -> io::Result<()> {
    sockopt::set_socket_recv_buffer_size_force(&socket, bytes)
        .or_else(|_| sockopt::set_socket_recv_buffer_size(&socket, bytes))?;
    Ok(())
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

/// Two sockets that are connected to each other (unix(7)): bytes in their order, and descriptors with them. The end of
/// one is seen by the other.
///
/// # Errors
/// When the process is out of descriptors.
pub fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(net::socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?)
}

/// Two sockets that are connected to each other (unix(7)), for messages that come as they were sent, each as a whole. The end
/// of one is seen by the other.
///
/// # Errors
/// When the process is out of descriptors.
pub fn packet_pair() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?)
}

/// Most descriptors that are sent at once. The kernel takes up to 253 (`SCM_MAX_FD`).
pub const DESCRIPTORS_MAX: usize = 64;

/// Sends `bytes`, or as many as there is room for, and with the first of them these descriptors (`SCM_RIGHTS`): the
/// receiver gets descriptors of its own of the same open files, in this order. There must be a byte to go with them,
/// and no more than [`DESCRIPTORS_MAX`].
///
/// # Errors
/// [`io::ErrorKind::WouldBlock`] with [`Patience::Now`] when there is no room; when more descriptors are on their way than
/// this user may have open (`ETOOMANYREFS`); else the peer is gone. Nothing was sent then.
pub fn send_with_descriptors(
    socket: impl AsFd,
    bytes: &[u8],
    descriptors: &[BorrowedFd<'_>],
    patience: Patience,
) -> io::Result<usize> {
    let flags = match patience {
        Patience::Wait => SendFlags::NOSIGNAL,
        Patience::Now => SendFlags::NOSIGNAL | SendFlags::DONTWAIT,
    };
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut with = net::SendAncillaryBuffer::new(&mut space);
    // Padding may leave room for one more.
    let fits = descriptors.is_empty()
        || descriptors.len() <= DESCRIPTORS_MAX && with.push(net::SendAncillaryMessage::ScmRights(descriptors));
    if !fits {
        return Err(io::Error::other("too many descriptors to send at once"));
    }
    Ok(retry_on_intr(|| net::sendmsg(&socket, &[IoSlice::new(bytes)], &mut with, flags))?)
}

/// What [`receive_with_descriptors`] received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    /// Bytes; 0: the peer is gone.
    pub bytes: usize,
    /// Descriptors came with them of which some were lost, since this process can have no more (`MSG_CTRUNC`).
    pub lost_descriptors: bool,
}

/// Receives into `buffer`, and puts the descriptors that came with these bytes behind `descriptors`. They are closed on
/// exec. Never brings bytes from behind those that descriptors came with, so these are in the order of the bytes.
///
/// # Errors
/// [`io::ErrorKind::WouldBlock`] with [`Patience::Now`] when there is nothing yet; else the peer is gone.
pub fn receive_with_descriptors(
    socket: impl AsFd,
    buffer: &mut [u8],
    descriptors: &mut impl Extend<OwnedFd>,
    patience: Patience,
) -> io::Result<Received> {
    let flags = match patience {
        Patience::Wait => RecvFlags::CMSG_CLOEXEC,
        Patience::Now => RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT,
    };
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut with = net::RecvAncillaryBuffer::new(&mut space);
    let received = retry_on_intr(|| net::recvmsg(&socket, &mut [IoSliceMut::new(buffer)], &mut with, flags))?;
    for message in with.drain() {
        if let net::RecvAncillaryMessage::ScmRights(came) = message {
            descriptors.extend(came);
        }
    }
    let lost_descriptors = received.flags.contains(net::ReturnFlags::CTRUNC);
    Ok(Received { bytes: received.bytes, lost_descriptors })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::file;
    use std::fs::File;

    fn receive_now(socket: &OwnedFd, length: usize) -> io::Result<(Vec<u8>, Vec<OwnedFd>)> {
        let (mut buffer, mut descriptors) = (vec![0; length], Vec::new());
        let received = receive_with_descriptors(socket, &mut buffer, &mut descriptors, Patience::Now)?;
        assert!(!received.lost_descriptors);
        buffer.truncate(received.bytes);
        Ok((buffer, descriptors))
    }

    #[test]
    fn nonblocking_connect_reports_result() {
        let listener = listen(SocketAddr::from(([127, 0, 0, 1], 0)), 16, false).expect("listens");
        let to = local_address(&listener).expect("bound");
        let wait = |socket: &OwnedFd| {
            use rustix::event::{PollFd, PollFlags, poll};
            let timeout = rustix::event::Timespec { tv_sec: 20, tv_nsec: 0 };
            poll(&mut [PollFd::new(socket, PollFlags::OUT)], Some(&timeout)).expect("waits");
        };
        let connect = |from: Option<SocketAddr>| {
            let socket = outgoing(from, to).expect("bound");
            begin_connect(&socket, to).map(|()| socket)
        };
        for from in [None, Some(SocketAddr::from(([127, 0, 0, 7], 0)))] {
            let socket = connect(from).expect("begins");
            wait(&socket);
            assert!(failed(&socket).is_none());
            let (_, peer) = accept(&listener).expect("connected");
            assert_eq!(peer, Some(local_address(&socket).expect("bound")));
            // Closed by us first, its port waits to be forgotten, and is taken again: for another peer at once. One of the
            // usual address may in between be given to any other program.
            drop(socket);
            if from.is_some() {
                drop(outgoing(peer, to).expect("taken again"));
            }
        }
        drop(listener);
        let refused = connect(None).and_then(|socket| {
            wait(&socket);
            failed(&socket).map_or(Ok(()), Err)
        });
        assert_eq!(refused.expect_err("nobody listens").kind(), io::ErrorKind::ConnectionRefused);
    }

    #[test]
    fn descriptors_arrive_with_their_bytes() {
        let (ours, theirs) = pair().expect("made");
        let [first, second] = ["Cargo.toml", "src/lib.rs"].map(|name| File::open(name).expect("there"));
        let send = |bytes: &[u8], descriptors: &[BorrowedFd<'_>]| {
            send_with_descriptors(&ours, bytes, descriptors, Patience::Now).expect("sent")
        };
        assert_eq!(receive_now(&theirs, 100).expect_err("nothing yet").kind(), io::ErrorKind::WouldBlock);
        send(b"plain ", &[]);
        send(b"two", &[first.as_fd(), second.as_fd()]);
        send(b"one", &[first.as_fd()]);
        // What came before may be glued to it, what comes after is not.
        let (bytes, came) = receive_now(&theirs, 100).expect("received");
        assert_eq!(bytes, b"plain two");
        let inode = |file: BorrowedFd<'_>| file::status(file).expect("open").inode;
        let inodes: Vec<u64> = came.iter().map(|file| inode(file.as_fd())).collect();
        assert_eq!(inodes, [inode(first.as_fd()), inode(second.as_fd())]);
        for file in &came {
            let flags = rustix::io::fcntl_getfd(file).expect("open");
            assert!(flags.contains(rustix::io::FdFlags::CLOEXEC));
        }
        let (bytes, came) = receive_now(&theirs, 100).expect("received");
        assert_eq!((&*bytes, came.len()), (&b"one"[..], 1));
        drop(ours);
        assert_eq!(receive_now(&theirs, 100).expect("the end").0, b"");
    }

    #[test]
    fn descriptor_count_is_limited() {
        let (ours, theirs) = pair().expect("made");
        let file = File::open("Cargo.toml").expect("there");
        let many = [file.as_fd(); DESCRIPTORS_MAX + 1];
        assert!(send_with_descriptors(&ours, b"x", &many, Patience::Now).is_err());
        assert_eq!(send_with_descriptors(&ours, b"x", &many[1..], Patience::Now).expect("sent"), 1);
        assert_eq!(receive_now(&theirs, 100).expect("received").1.len(), DESCRIPTORS_MAX);
    }

    #[test]
    fn full_socket_accepts_partial_write() {
        let (ours, theirs) = pair().expect("made");
        let much = vec![1; 4 << 20];
        let sent = send_with_descriptors(&ours, &much, &[theirs.as_fd()], Patience::Now).expect("a part");
        assert!(sent > 0 && sent < much.len(), "{sent}");
        let again = send_with_descriptors(&ours, &much, &[], Patience::Now).expect_err("it is full");
        assert_eq!(again.kind(), io::ErrorKind::WouldBlock);
        let (mut came, mut descriptors) = (0, 0);
        while let Ok((bytes, with)) = receive_now(&theirs, 1 << 20) {
            (came, descriptors) = (came + bytes.len(), descriptors + with.len());
        }
        assert_eq!((came, descriptors), (sent, 1));
    }
}
