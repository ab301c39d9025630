//! Stream sockets: listening, accepting, receiving, sending; and socket pairs, over which processes pass descriptors.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::cmsg_space;
use rustix::io::retry_on_intr;
use rustix::net::{self, AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, sockopt};

use crate::file::Patience;

/// Creates a nonblocking socket that listens on `address`.
///
/// `shared`: other sockets of this user may listen there too, and the kernel distributes connections among them
/// (`SO_REUSEPORT`), so that each loop has its own queue.
///
/// # Errors
/// Those of bind(2): the address is in use, does not belong to this machine, or its port requires root.
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
        // `[::]` means all addresses of both families, whatever net.ipv6.bindv6only says.
        sockopt::set_ipv6_v6only(&socket, false)?;
    }
    // Accepted sockets inherit it, which saves a call for each. Without it a small response after another would wait
    // for the client's delayed acknowledgement, 40 ms.
    sockopt::set_tcp_nodelay(&socket, true)?;
    net::bind(&socket, &address)?;
    net::listen(&socket, backlog)?;
    Ok(socket)
}

/// Prepares a listener that another program has created as [`listen`] prepares its own, and returns its address.
///
/// # Errors
/// [`io::ErrorKind::InvalidInput`]: it does not listen for TCP connections. Others: it is not a socket, or has no network
/// address.
pub fn adopt_listener(listener: impl AsFd) -> io::Result<SocketAddr> {
    let is_stream = sockopt::socket_type(&listener)? == SocketType::STREAM;
    if !is_stream || !sockopt::socket_acceptconn(&listener)? {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it does not listen for TCP connections"));
    }
    let address = local_address(&listener)?;
    sockopt::set_tcp_nodelay(&listener, true)?;
    rustix::io::ioctl_fionbio(&listener, true)?;
    Ok(address)
}

/// Returns whether an error means that this kernel has no IPv6, as in some containers.
pub fn is_without_ipv6(error: &io::Error) -> bool {
    error.raw_os_error() == Some(rustix::io::Errno::AFNOSUPPORT.raw_os_error())
}

/// Creates a nonblocking socket for a connection to `to`, bound to `from` if given: to its port or, if that is 0, to
/// one that the kernel chooses when it connects. Ports of closed connections in TIME_WAIT are reused.
///
/// # Errors
/// Those of bind(2): [`io::ErrorKind::AddrInUse`] if the port is taken; also when the process is out of descriptors.
pub fn outgoing(from: Option<SocketAddr>, to: SocketAddr) -> io::Result<OwnedFd> {
    let family = if to.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = net::socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, None)?;
    if let Some(from) = from {
        // Without a port there can be no conflict, and the kernel searches among those that are free for this peer.
        if from.port() == 0 {
            // An old kernel without it only searches among fewer.
            let _ = nix::sys::socket::setsockopt(&socket, nix::sys::socket::sockopt::IpBindAddressNoPort, &true);
        } else {
            sockopt::set_socket_reuseaddr(&socket, true)?;
        }
        net::bind(&socket, &from)?;
    }
    Ok(socket)
}

/// Makes the kernel send small packets at once, even if earlier ones are not acknowledged yet (`TCP_NODELAY`, tcp(7)).
///
/// # Errors
/// None for a TCP socket.
pub fn send_at_once(socket: impl AsFd) -> io::Result<()> {
    Ok(sockopt::set_tcp_nodelay(socket, true)?)
}

/// Starts connecting without waiting: the socket is writable once it is connected or has failed, see [`failed`].
///
/// # Errors
/// Those of connect(2) that are known at once.
pub fn begin_connect(socket: impl AsFd, to: SocketAddr) -> io::Result<()> {
    match net::connect(socket, &to) {
        Ok(()) | Err(rustix::io::Errno::INPROGRESS) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Returns and clears the pending error of a socket (`SO_ERROR`); `None`: there is none.
pub fn failed(socket: impl AsFd) -> Option<io::Error> {
    match sockopt::socket_error(socket) {
        Ok(Ok(())) => None,
        Ok(Err(error)) | Err(error) => Some(error.into()),
    }
}

/// Returns the address of a bound socket, with the port chosen for port 0.
///
/// # Errors
/// None for a bound TCP socket.
pub fn local_address(socket: impl AsFd) -> io::Result<SocketAddr> {
    Ok(SocketAddr::try_from(net::getsockname(socket)?)?)
}

/// Returns the peer's address.
///
/// # Errors
/// When the connection has been closed.
pub fn peer_address(socket: impl AsFd) -> io::Result<SocketAddr> {
    let address = net::getpeername(socket)?.ok_or(io::ErrorKind::NotConnected)?;
    Ok(SocketAddr::try_from(address)?)
}

/// Accepts the next connection of a listener, nonblocking, with its peer's address.
///
/// # Errors
/// [`io::ErrorKind::WouldBlock`] when there is none; otherwise those of accept(2).
pub fn accept(listener: impl AsFd) -> io::Result<(OwnedFd, Option<SocketAddr>)> {
    accept_with(listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)
}

/// Makes [`accept_blocking`] on this listener, and every call on the connections that it returns, wait for at most
/// `patience`; accepted sockets inherit the timeouts of their listener.
///
/// # Errors
/// None for a listener.
pub fn make_blocking(listener: impl AsFd, patience: Duration) -> io::Result<()> {
    for direction in [sockopt::Timeout::Recv, sockopt::Timeout::Send] {
        sockopt::set_socket_timeout(&listener, direction, Some(patience))?;
    }
    Ok(rustix::io::ioctl_fionbio(listener, false)?)
}

/// Accepts the next connection of a listener that [`make_blocking`] has prepared.
///
/// # Errors
/// [`io::ErrorKind::WouldBlock`] when none arrived in time; otherwise those of accept(2).
pub fn accept_blocking(listener: impl AsFd) -> io::Result<(OwnedFd, Option<SocketAddr>)> {
    accept_with(listener, SocketFlags::CLOEXEC)
}

fn accept_with(listener: impl AsFd, flags: SocketFlags) -> io::Result<(OwnedFd, Option<SocketAddr>)> {
    let (socket, address) = net::acceptfrom_with(listener, flags)?;
    Ok((socket, address.and_then(|address| SocketAddr::try_from(address).ok())))
}

/// Returns whether a connection waits at a listener.
pub fn has_waiting(listener: impl AsFd) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let mut polled = [PollFd::new(&listener, PollFlags::IN)];
    matches!(poll(&mut polled, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })), Ok(1..))
}

/// Receives into `buffer`. `Ok(0)`: the peer has closed its side.
///
/// # Errors
/// [`io::ErrorKind::WouldBlock`] when there is no data; otherwise the connection is dead.
pub fn receive(socket: impl AsFd, buffer: &mut [u8]) -> io::Result<usize> {
    let (_, count) = net::recv(socket, buffer, RecvFlags::empty())?;
    Ok(count)
}

/// Receives into `buffer`, and leaves the bytes to be received again. `Ok(0)`: the peer has closed its side.
///
/// # Errors
/// Those of [`receive`].
pub fn peek(socket: impl AsFd, buffer: &mut [u8]) -> io::Result<usize> {
    let (_, count) = net::recv(socket, buffer, RecvFlags::PEEK)?;
    Ok(count)
}

/// Sends `bytes`, or as many as there is room for. `more`: further bytes follow at once, so that the kernel waits
/// for them before it sends a partial packet.
///
/// # Errors
/// [`io::ErrorKind::WouldBlock`] when there is no room; otherwise the connection is dead.
pub fn send(socket: impl AsFd, bytes: &[u8], more: bool) -> io::Result<usize> {
    Ok(net::send(socket, bytes, send_flags(more))?)
}

/// Sends bytes from several buffers.
///
/// # Errors
/// Those of [`send`].
pub fn send_vectored(socket: impl AsFd, bytes: &[IoSlice<'_>], more: bool) -> io::Result<usize> {
    Ok(net::sendmsg(socket, bytes, &mut net::SendAncillaryBuffer::default(), send_flags(more))?)
}

fn send_flags(more: bool) -> SendFlags {
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    if more { flags | SendFlags::MORE } else { flags }
}

/// Closes the sending direction; receiving continues.
///
/// # Errors
/// When the peer has closed the connection.
pub fn half_close(socket: impl AsFd) -> io::Result<()> {
    Ok(net::shutdown(socket, net::Shutdown::Write)?)
}

/// Sets the size of the receive buffer, and thereby the window offered to the peer (`SO_RCVBUF`, socket(7)): the kernel
/// doubles the number, and has a minimum. Must be called before connecting.
///
/// # Errors
/// None for a socket.
pub fn set_receive_buffer(socket: impl AsFd, bytes: usize) -> io::Result<()> {
    Ok(sockopt::set_socket_recv_buffer_size(socket, bytes)?)
}

/// Sets the size of the receive buffer beyond the administrator's maximum (`net.core.rmem_max`), if permitted.
///
/// # Errors
/// None for a socket.
pub fn raise_receive_buffer(socket: impl AsFd, bytes: usize) -> io::Result<()> {
    sockopt::set_socket_recv_buffer_size_force(&socket, bytes)
        .or_else(|_| sockopt::set_socket_recv_buffer_size(&socket, bytes))?;
    Ok(())
}

/// Limits the bytes that the kernel takes ahead of those that it has sent (`TCP_NOTSENT_LOWAT`; `tcp_notsent_lowat` in the
/// kernel's `networking/ip-sysctl.rst`): beyond them the socket is full, though its buffer has room for data that are
/// sent and not acknowledged. It has room again when half of them are sent.
///
/// # Errors
/// None for a TCP socket.
pub fn limit_unsent(socket: impl AsFd, bytes: u32) -> io::Result<()> {
    let length = size_of::<u32>() as libc::socklen_t;
    // SAFETY: setsockopt reads `length` bytes from its fourth argument, which points to `bytes`, alive for the call and of
    // that size; the descriptor is open as it is borrowed. JUSTIFICATION: neither rustix nor nix has this option.
    let result = unsafe {
        libc::setsockopt(
            socket.as_fd().as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_NOTSENT_LOWAT,
            (&raw const bytes).cast(),
            length,
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Makes closing reset the connection: unsent data are dropped, and the peer can detect the incomplete response.
pub fn reset_on_close(socket: impl AsFd) {
    // The only possible error is a descriptor that is not a socket.
    let _ = sockopt::set_socket_linger(socket, Some(Duration::ZERO));
}

/// What the peer of a TCP connection has received of what was sent, as far as its system has acknowledged it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Acknowledged {
    /// Bytes since the connection began.
    pub bytes: u64,
    /// Whether that is all.
    pub is_all: bool,
}

/// Returns what the peer has acknowledged (`TCP_INFO`, tcp(7)). Of a socket that is not TCP that is all.
pub fn acknowledged(socket: impl AsFd) -> Acknowledged {
    // SAFETY: `tcp_info` consists of integers only, for which all bytes zero is a value.
    let mut info: libc::tcp_info = unsafe { std::mem::zeroed() };
    let mut length = size_of::<libc::tcp_info>() as libc::socklen_t;
    // SAFETY: getsockopt(2) writes at most `length` bytes to `info`, which is that large, and the number to `length`; both are
    // alive and writable for the call, and the descriptor is open as it is borrowed. JUSTIFICATION: rustix has no TCP_INFO.
    let result = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            (&raw mut info).cast(),
            &raw mut length,
        )
    };
    match result {
        0 => Acknowledged {
            bytes: info.tcpi_bytes_acked,
            is_all: info.tcpi_unacked == 0 && info.tcpi_notsent_bytes == 0,
        },
        _ => Acknowledged { bytes: 0, is_all: true },
    }
}

/// Creates two connected sockets (unix(7)) for a stream of bytes and descriptors. Each detects the close of the other.
///
/// # Errors
/// When the process is out of descriptors.
pub fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(net::socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?)
}

/// Creates two connected sockets (unix(7)) for messages, which keep their boundaries. Each detects the close of the
/// other.
///
/// # Errors
/// When the process is out of descriptors.
pub fn packet_pair() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?)
}

/// Maximum descriptors sent at once. The kernel accepts up to 253 (`SCM_MAX_FD`).
pub const DESCRIPTORS_MAX: usize = 64;

/// Sends `bytes`, or as many as there is room for, and with the first of them these descriptors (`SCM_RIGHTS`):
/// the receiver gets its own descriptors of the same open files, in this order. There must be at least one byte,
/// and at most [`DESCRIPTORS_MAX`] descriptors.
///
/// # Errors
/// [`io::ErrorKind::WouldBlock`] with [`Patience::Now`] when there is no room; when more descriptors are in transit
/// than this user may have open (`ETOOMANYREFS`); otherwise the peer has closed. Nothing was sent then.
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

/// The result of [`receive_with_descriptors`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    /// Bytes; 0: the peer has closed.
    pub bytes: usize,
    /// Some descriptors were lost because this process is out of them (`MSG_CTRUNC`).
    pub lost_descriptors: bool,
}

/// Receives into `buffer`, and appends the descriptors sent with these bytes to `descriptors`. They are closed on exec.
/// Never returns bytes that follow those that descriptors were sent with, so these are in the order of the bytes.
///
/// # Errors
/// [`io::ErrorKind::WouldBlock`] with [`Patience::Now`] when there is no data; otherwise the peer has closed.
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
    fn only_tcp_listener_is_adopted() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("bound");
        assert_eq!(adopt_listener(&listener).expect("adopted"), listener.local_addr().expect("bound"));
        assert_eq!(accept(&listener).expect_err("none waits").kind(), io::ErrorKind::WouldBlock);
        let to = listener.local_addr().expect("bound");
        let connection = std::net::TcpStream::connect(to).expect("connected");
        assert_eq!(adopt_listener(&connection).expect_err("a connection").kind(), io::ErrorKind::InvalidInput);
        let datagrams = std::net::UdpSocket::bind("127.0.0.1:0").expect("bound");
        assert_eq!(adopt_listener(&datagrams).expect_err("UDP").kind(), io::ErrorKind::InvalidInput);
        let folder = tempfile::tempdir().expect("a directory");
        let local = std::os::unix::net::UnixListener::bind(folder.path().join("socket")).expect("bound");
        assert!(adopt_listener(&local).is_err(), "it has no network address");
        assert!(adopt_listener(File::open("/dev/null").expect("opened")).is_err(), "no socket");
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
            // Closed by this side first, its port is in TIME_WAIT, and is reused: for another peer at once. A port of
            // the usual address may be taken by any other program in between.
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
        assert_eq!(refused.expect_err("no listener").kind(), io::ErrorKind::ConnectionRefused);
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
        // Earlier data may be merged with it, later data is not.
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
