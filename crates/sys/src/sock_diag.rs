//! sock_diag(7): the kernel's state of the TCP sockets at one port, without a descriptor of any of them.
//!
//! One request, one dump: the kernel walks its tables, filters by state and port, and sends the rest in a few large
//! messages, which are parsed in place. This has its own parser, since it needs three attributes and no copies. On the
//! development machine a dump of listeners takes 24 us whatever else is open, one of 1,000 connections 0.7 ms.
//!
//! `/proc/net/tcp` has less information (neither drops nor `tcp_info`) and takes four to nine times as long.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};

use rustix::net::{self, AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// The state of a TCP socket: RFC 9293, 3.3.2, with the kernel's numbers (`include/net/tcp_states.h`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum TcpState {
    /// Open in both directions.
    Established = 1,
    /// A connection request was sent, and not answered yet.
    SynSent,
    /// A client's request was answered, and the client has not confirmed it.
    SynReceived,
    /// This side closed; the peer has not acknowledged it.
    FinWait1,
    /// This side closed and the peer has acknowledged it, but not closed.
    FinWait2,
    /// This side closed first, both have closed; kept so that late segments are not taken for a new connection's.
    TimeWait,
    /// Closed.
    Close,
    /// The peer closed, and the local program has not yet.
    CloseWait,
    /// Both have closed, the peer first; the last acknowledgement is missing.
    LastAck,
    /// Waits for connections.
    Listen,
    /// Both closed at the same time.
    Closing,
}

impl TcpState {
    /// All states by the kernel's number, from 1, with their names as `ss` prints them, with underscores.
    pub const ALL: [(TcpState, &'static str); 11] = [
        (TcpState::Established, "established"),
        (TcpState::SynSent, "syn_sent"),
        (TcpState::SynReceived, "syn_received"),
        (TcpState::FinWait1, "fin_wait_1"),
        (TcpState::FinWait2, "fin_wait_2"),
        (TcpState::TimeWait, "time_wait"),
        (TcpState::Close, "close"),
        (TcpState::CloseWait, "close_wait"),
        (TcpState::LastAck, "last_ack"),
        (TcpState::Listen, "listen"),
        (TcpState::Closing, "closing"),
    ];

    /// Returns the state with the kernel's number.
    pub fn of(number: u8) -> Option<TcpState> {
        TcpState::ALL.get(usize::from(number).checked_sub(1)?).map(|(state, _)| *state)
    }
}

/// The address family of a socket. A socket of `Ipv6` may have IPv4 peers (`::ffff:a.b.c.d`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// `AF_INET`.
    Ipv4,
    /// `AF_INET6`.
    Ipv6,
}

/// Which sockets to dump.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Question {
    /// Listening sockets.
    Listeners,
    /// All others: connections, including those being opened or closed.
    Connections {
        /// With [`Limits`], which make the dump a quarter to two fifths slower.
        limits: bool,
    },
    /// Connections that are established or being established, with [`Limits`]: without the many that have ended.
    Open,
}

/// One socket of a dump.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Socket {
    /// Its state.
    pub state: TcpState,
    /// The local address.
    pub local: SocketAddr,
    /// The peer's address; all zeros for a listener.
    pub remote: SocketAddr,
    /// Listener: connections waiting to be accepted. Otherwise: bytes received and not read.
    pub receive_queue: u32,
    /// Listener: the backlog. Otherwise: bytes not acknowledged.
    pub send_queue: u32,
    /// Its inode, which `/proc/PID/fd` shows; 0 once no descriptor is left.
    pub inode: u32,
    /// Listener: connections dropped since it listens, for lack of room or memory.
    /// `None` if the kernel does not report it.
    pub drops: Option<u32>,
    /// Why it was limited, if requested.
    pub limits: Option<Limits>,
}

/// Why a connection does not send faster, since its start (`tcp_info`, `include/uapi/linux/tcp.h`): of `busy`, a part
/// is due to the peer's window, a part to the local buffer, and the rest to the network.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Microseconds with data to send or to be acknowledged.
    pub busy_us: u64,
    /// Of those, with the peer's window closed.
    pub receive_window_us: u64,
    /// Of those, with the local buffer too small.
    pub send_buffer_us: u64,
    /// Segments retransmitted.
    pub retransmitted_segments: u32,
    /// The smoothed round trip, in microseconds.
    pub round_trip_us: u32,
    /// Whether the last sample of the delivery rate was limited by the local program.
    pub by_application: bool,
    /// Milliseconds since it sent data, with the resolution of the kernel's clock.
    pub sent_ms_ago: u32,
    /// Milliseconds since it received data.
    pub received_ms_ago: u32,
}

/// A Unix-domain socket.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UnixSocket {
    /// Its inode, which `/proc/PID/fd` shows.
    pub inode: u32,
    /// The inode of the other end; 0 without one, and until a listener has accepted it.
    pub peer: u32,
    /// Its bound name, as text; empty if it has none. An abstract name begins with `@`.
    pub name: String,
    /// Listener: the inodes of the sockets waiting to be accepted.
    pub waiting: Vec<u32>,
}

/// A netlink socket for queries. It answers for the network namespace in which it was opened.
#[derive(Debug)]
pub struct SockDiag {
    socket: OwnedFd,
    answer: Vec<u8>,
}

/// The kernel sends up to 32 KiB in one message.
const ANSWER_MAX: usize = 64 * 1024;

impl SockDiag {
    /// Opens a socket in this thread's network namespace.
    ///
    /// # Errors
    /// When the process is out of descriptors, or the kernel has no netlink.
    pub fn open() -> io::Result<SockDiag> {
        let flags = SocketFlags::CLOEXEC;
        let socket = net::socket_with(AddressFamily::NETLINK, SocketType::DGRAM, flags, Some(netlink::SOCK_DIAG))?;
        Ok(SockDiag { socket, answer: vec![0; ANSWER_MAX] })
    }

    /// Opens a socket in another network namespace, a file `/proc/PID/ns/net`. The calling thread stays in its own.
    ///
    /// # Errors
    /// Those of setns(2): EPERM without `CAP_SYS_ADMIN`.
    pub fn open_in(namespace: impl AsFd) -> io::Result<SockDiag> {
        let namespace = namespace.as_fd();
        // A temporary thread enters the namespace, as the way back might be refused.
        std::thread::scope(|scope| {
            let opened = scope.spawn(move || {
                move_into_link_name_space(namespace, Some(LinkNameSpaceType::Network))?;
                SockDiag::open()
            });
            opened.join().unwrap_or_else(|_| Err(io::Error::other("the thread that entered a namespace panicked")))
        })
    }

    /// Calls `each` for every socket of this family whose local port is `port` (0: any).
    ///
    /// # Errors
    /// ENOENT: this kernel has no `inet_diag` (module `tcp_diag`); ENOMEM.
    pub fn dump(
        &mut self,
        family: Family,
        port: u16,
        question: Question,
        mut each: impl FnMut(Socket),
    ) -> io::Result<()> {
        // A state or family that is newer than this program was not requested.
        self.ask(&request(family, port, question), |body| socket(body).into_iter().for_each(&mut each))
    }

    /// Calls `each` for every Unix-domain socket.
    ///
    /// # Errors
    /// ENOENT: this kernel has no `unix_diag`; ENOMEM.
    pub fn dump_unix(&mut self, mut each: impl FnMut(UnixSocket)) -> io::Result<()> {
        self.ask(&unix_request(), |body| unix_socket(body).into_iter().for_each(&mut each))
    }

    fn ask(&mut self, request: &[u8], mut each: impl FnMut(&[u8])) -> io::Result<()> {
        net::send(&self.socket, request, SendFlags::empty())?;
        loop {
            let received =
                rustix::io::retry_on_intr(|| net::recv(&self.socket, self.answer.as_mut_slice(), RecvFlags::TRUNC));
            let (_, length) = received?;
            let Some(messages) = self.answer.get(..length) else {
                return Err(io::Error::other("sock_diag sent a message that is too large"));
            };
            if read(messages, &mut each)? {
                return Ok(());
            }
        }
    }
}

/// `nlmsghdr` and `inet_diag_req_v2`.
fn request(family: Family, port: u16, question: Question) -> Vec<u8> {
    const LENGTH: u32 = (HEADER + 56) as u32;
    let (states, attributes): (u32, u8) = match question {
        Question::Listeners => (1 << TcpState::Listen as u8, 1 << (SKMEMINFO - 1)),
        Question::Connections { limits } => {
            let all = TcpState::ALL.iter().filter(|(state, _)| *state != TcpState::Listen);
            (all.fold(0, |states, (state, _)| states | 1 << *state as u8), u8::from(limits) << (INFO - 1))
        }
        Question::Open => (1 << TcpState::Established as u8 | 1 << TcpState::SynSent as u8, 1 << (INFO - 1)),
    };
    let (family, tcp) = match family {
        Family::Ipv4 => (libc::AF_INET as u8, libc::IPPROTO_TCP as u8),
        Family::Ipv6 => (libc::AF_INET6 as u8, libc::IPPROTO_TCP as u8),
    };
    let mut bytes = head(LENGTH);
    bytes.extend([family, tcp, attributes, 0]);
    bytes.extend(states.to_ne_bytes());
    // `inet_diag_sockid`: only the local port is specified.
    bytes.extend(port.to_be_bytes());
    bytes.resize(LENGTH as usize, 0);
    bytes
}

/// `nlmsghdr` and `unix_diag_req`.
fn unix_request() -> Vec<u8> {
    const LENGTH: u32 = (HEADER + 24) as u32;
    /// `UDIAG_SHOW_NAME`, `UDIAG_SHOW_PEER` and `UDIAG_SHOW_ICONS`.
    const SHOW: u32 = 1 | 4 | 8;
    let mut bytes = head(LENGTH);
    bytes.extend([libc::AF_UNIX as u8, 0, 0, 0]);
    // In all states, whatever their inode.
    bytes.extend(u32::MAX.to_ne_bytes());
    bytes.extend(0_u32.to_ne_bytes());
    bytes.extend(SHOW.to_ne_bytes());
    bytes.resize(LENGTH as usize, 0);
    bytes
}

/// `nlmsghdr` of a dump.
fn head(length: u32) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(length as usize);
    bytes.extend(length.to_ne_bytes());
    bytes.extend(BY_FAMILY.to_ne_bytes());
    bytes.extend(((libc::NLM_F_REQUEST | libc::NLM_F_DUMP) as u16).to_ne_bytes());
    // Sequence and port of netlink: nothing else uses this socket.
    bytes.extend([0; 8]);
    bytes
}

const HEADER: usize = 16;
/// `SOCK_DIAG_BY_FAMILY`.
const BY_FAMILY: u16 = 20;
/// `sizeof(struct inet_diag_msg)`.
const MESSAGE: usize = 72;
/// `INET_DIAG_INFO`.
const INFO: u16 = 2;
/// `INET_DIAG_SKMEMINFO`.
const SKMEMINFO: u16 = 7;
/// `SK_MEMINFO_DROPS`, of u32.
const DROPS: usize = 8;

/// Parses the data of one recv(2); `true`: the dump is complete.
fn read(mut messages: &[u8], each: &mut impl FnMut(&[u8])) -> io::Result<bool> {
    let broken = || io::Error::other("sock_diag sent an invalid netlink message");
    while !messages.is_empty() {
        let length = u32_at(messages, 0).ok_or_else(broken)? as usize;
        let kind = u16_at(messages, 4).ok_or_else(broken)?;
        let body = messages.get(HEADER..length).ok_or_else(broken)?;
        match libc::c_int::from(kind) {
            libc::NLMSG_DONE | libc::NLMSG_ERROR => {
                // Both begin with a number, which is negative for an error. `NLMSG_DONE` may lack it.
                return match u32_at(body, 0).unwrap_or(0).cast_signed() {
                    error @ ..0 => Err(io::Error::from_raw_os_error(error.wrapping_neg())),
                    _ => Ok(true),
                };
            }
            _ if kind == BY_FAMILY => each(body),
            _ => {}
        }
        messages = messages.get(length.next_multiple_of(4)..).unwrap_or(&[]);
    }
    Ok(false)
}

fn socket(body: &[u8]) -> Option<Socket> {
    let message = body.get(..MESSAGE)?;
    let (family, state) = (*message.first()?, TcpState::of(*message.get(1)?)?);
    let end = |port: usize, address: usize| {
        let bytes = message.get(address..address + 16)?;
        let ip = match libc::c_int::from(family) {
            libc::AF_INET => IpAddr::V4(Ipv4Addr::from(<[u8; 4]>::try_from(bytes.get(..4)?).ok()?)),
            libc::AF_INET6 => IpAddr::V6(Ipv6Addr::from(<[u8; 16]>::try_from(bytes).ok()?)),
            _ => return None,
        };
        Some(SocketAddr::new(ip, u16::from_be_bytes(message.get(port..port + 2)?.try_into().ok()?)))
    };
    let mut socket = Socket {
        state,
        local: end(4, 8)?,
        remote: end(6, 24)?,
        receive_queue: u32_at(message, 56)?,
        send_queue: u32_at(message, 60)?,
        inode: u32_at(message, 68)?,
        drops: None,
        limits: None,
    };
    let mut attributes = body.get(MESSAGE..)?;
    while let (Some(length), Some(kind)) = (u16_at(attributes, 0), u16_at(attributes, 2)) {
        let Some(value) = attributes.get(4..usize::from(length)) else { break };
        match kind {
            SKMEMINFO => socket.drops = u32_at(value, DROPS * 4),
            INFO => socket.limits = limits(value),
            _ => {}
        }
        attributes = attributes.get(usize::from(length).next_multiple_of(4)..).unwrap_or(&[]);
    }
    Some(socket)
}

/// `struct unix_diag_msg` and what follows it.
fn unix_socket(body: &[u8]) -> Option<UnixSocket> {
    const MESSAGE: usize = 16;
    const NAME: u16 = 0;
    const PEER: u16 = 2;
    const ICONS: u16 = 3;
    let mut socket = UnixSocket { inode: u32_at(body, 4)?, ..UnixSocket::default() };
    let mut attributes = body.get(MESSAGE..)?;
    while let (Some(length), Some(kind)) = (u16_at(attributes, 0), u16_at(attributes, 2)) {
        let Some(value) = attributes.get(4..usize::from(length)) else { break };
        match kind {
            NAME => {
                let text = String::from_utf8_lossy(value).trim_end_matches('\0').to_owned();
                socket.name = if value.first() == Some(&0) { text.replacen('\0', "@", 1) } else { text };
            }
            PEER => socket.peer = u32_at(value, 0)?,
            ICONS => socket.waiting = (0..value.len() / 4).filter_map(|at| u32_at(value, at * 4)).collect(),
            _ => {}
        }
        attributes = attributes.get(usize::from(length).next_multiple_of(4)..).unwrap_or(&[]);
    }
    Some(socket)
}

/// `struct tcp_info`, which only ever grows at its end. Kernels before 4.10 have it without the times.
fn limits(info: &[u8]) -> Option<Limits> {
    Some(Limits {
        by_application: info.get(7)? & 1 == 1,
        sent_ms_ago: u32_at(info, 44)?,
        received_ms_ago: u32_at(info, 52)?,
        round_trip_us: u32_at(info, 68)?,
        retransmitted_segments: u32_at(info, 100)?,
        busy_us: u64_at(info, 168)?,
        receive_window_us: u64_at(info, 176)?,
        send_buffer_us: u64_at(info, 184)?,
    })
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_ne_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};

    fn dump(family: Family, port: u16, question: Question) -> Vec<Socket> {
        let mut sockets = Vec::new();
        SockDiag::open().expect("opened").dump(family, port, question, |socket| sockets.push(socket)).expect("dumped");
        sockets
    }

    #[test]
    fn listener_reports_pending_connections() {
        for (address, family, other) in
            [("127.0.0.1:0", Family::Ipv4, Family::Ipv6), ("[::1]:0", Family::Ipv6, Family::Ipv4)]
        {
            let listener = TcpListener::bind(address).expect("bound");
            let address = listener.local_addr().expect("bound");
            let _waiting: Vec<TcpStream> = (0..3).map(|_| TcpStream::connect(address).expect("connected")).collect();
            let listeners = dump(family, address.port(), Question::Listeners);
            assert_eq!(listeners.len(), 1, "{listeners:?}");
            let [found] = &listeners[..] else { unreachable!() };
            assert_eq!((found.local, found.receive_queue, found.drops), (address, 3, Some(0)));
            assert!(found.send_queue >= 128 && found.inode != 0, "{found:?}");
            assert!(dump(other, address.port(), Question::Listeners).is_empty());
        }
    }

    #[test]
    fn connections_are_listed_by_state_with_limits() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("bound");
        let address = listener.local_addr().expect("bound");
        let mut clients: Vec<TcpStream> = (0..5).map(|_| TcpStream::connect(address).expect("connected")).collect();
        let servers: Vec<TcpStream> = (0..5).map(|_| listener.accept().expect("accepted").0).collect();
        // The client closes: the server's side enters CLOSE_WAIT.
        drop(clients.split_off(3));
        clients[0].write_all(b"ask").expect("sent");
        let count = |state| {
            let all = dump(Family::Ipv4, address.port(), Question::Connections { limits: true });
            assert!(all.iter().all(|one| one.local.port() == address.port()), "{all:?}");
            all.into_iter().filter(|one| one.state == state).collect::<Vec<_>>()
        };
        let mut closed = 0;
        for _ in 0..10_000 {
            closed = count(TcpState::CloseWait).len();
            if closed == 2 {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        assert_eq!(closed, 2);
        let open = count(TcpState::Established);
        assert_eq!(open.len(), 3);
        assert!(open.iter().all(|one| one.limits.is_some()), "{open:?}");
        let first = open.iter().find(|one| one.remote == clients[0].local_addr().expect("bound")).expect("there");
        assert_eq!(first.receive_queue, 3);
        drop(servers);
    }

    #[test]
    fn connection_reports_last_sender() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("bound");
        let mut client = TcpStream::connect(listener.local_addr().expect("bound")).expect("connected");
        let (mut server, _) = listener.accept().expect("accepted");
        let own = client.local_addr().expect("bound").port();
        let last = || {
            let found = dump(Family::Ipv4, own, Question::Open);
            let limits = found.first().and_then(|one| one.limits).expect("an open connection");
            (limits.sent_ms_ago, limits.received_ms_ago)
        };
        let until = |holds: &dyn Fn((u32, u32)) -> bool| {
            (0..5000).any(|_| {
                std::thread::sleep(std::time::Duration::from_millis(1));
                holds(last())
            })
        };
        assert!(until(&|(sent, _)| sent >= 20));
        client.write_all(b"ask").expect("sent");
        assert!(until(&|(sent, received)| sent < received), "a request without a response");
        assert!(until(&|(sent, _)| sent >= 20));
        server.write_all(b"answer").expect("sent");
        assert!(until(&|(sent, received)| received < sent), "answered");
    }

    #[test]
    fn unix_sockets_report_peer_name_and_pending_connections() {
        use std::os::fd::AsRawFd;
        use std::os::unix::net::{UnixListener, UnixStream};
        let folder = tempfile::tempdir().expect("made");
        let path = folder.path().join("socket");
        let listener = UnixListener::bind(&path).expect("bound");
        let inode = |fd: i32| {
            let link = std::fs::read_link(format!("/proc/self/fd/{fd}")).expect("a link");
            link.to_str()
                .and_then(|text| text.strip_prefix("socket:[")?.strip_suffix(']')?.parse::<u32>().ok())
                .expect("an inode")
        };
        let (accepted, waiting) =
            (UnixStream::connect(&path).expect("connected"), UnixStream::connect(&path).expect("connected"));
        let (server, _) = listener.accept().expect("accepted");
        let mut all = Vec::new();
        SockDiag::open().expect("opened").dump_unix(|socket| all.push(socket)).expect("dumped");
        let of = |fd: i32| all.iter().find(|one| one.inode == inode(fd)).expect("there").clone();
        let (client, other) = (of(accepted.as_raw_fd()), of(server.as_raw_fd()));
        assert_eq!((client.peer, other.peer), (other.inode, client.inode));
        assert_eq!(other.name, path.to_str().expect("text"));
        assert!(client.name.is_empty(), "{client:?}");
        assert_eq!(of(waiting.as_raw_fd()).peer, 0);
        assert_eq!(of(listener.as_raw_fd()).waiting, [inode(waiting.as_raw_fd())]);
    }

    #[test]
    fn malformed_reply_is_an_error_or_ignored() {
        let check = |bytes: &[u8], expected: Result<bool, ()>| {
            let mut sockets = 0;
            let mut each = |body: &[u8]| sockets += usize::from(socket(body).is_some());
            assert_eq!(read(bytes, &mut each).map_err(|_| ()), expected, "{bytes:?}");
            assert_eq!(sockets, 0);
        };
        let message = |kind: u16, body: &[u8]| {
            let mut bytes = ((HEADER + body.len()) as u32).to_ne_bytes().to_vec();
            bytes.extend(kind.to_ne_bytes());
            bytes.extend([0; 10]);
            bytes.extend(body);
            bytes
        };
        check(&[], Ok(false));
        check(&[1, 2, 3], Err(()));
        check(&message(3, &[]), Ok(true));
        check(&message(3, &0_u32.to_ne_bytes()), Ok(true));
        check(&message(2, &(-2_i32).to_ne_bytes()), Err(()));
        check(&message(BY_FAMILY, &[2, 1]), Ok(false));
        check(&message(BY_FAMILY, &[2, 99].into_iter().chain([0; 90]).collect::<Vec<u8>>()), Ok(false));
        // A length that is too small, or beyond the end.
        check(&4_u32.to_ne_bytes().into_iter().chain([20, 0, 0, 0]).collect::<Vec<u8>>(), Err(()));
        check(&900_u32.to_ne_bytes().into_iter().chain([20, 0, 0, 0]).collect::<Vec<u8>>(), Err(()));
    }
}
