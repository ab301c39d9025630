//! Listening sockets: bound by the server, or handed over by the service manager.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use amped_sys::socket;

use crate::config::settings::ConnectionStart;

/// Maximum connections waiting to be accepted. The kernel limits it to net.core.somaxconn.
const BACKLOG: i32 = 4096;

/// An address, with a listener for each loop.
#[derive(Debug)]
pub struct Address {
    /// The configured address; port 0 stays 0.
    pub requested: SocketAddr,
    /// The actual address.
    pub bound: SocketAddr,
    /// How its connections begin.
    pub start: ConnectionStart,
    /// One for each loop, or fewer that loops share. Never empty.
    pub listeners: Vec<OwnedFd>,
}

/// A listener that the service manager has handed over.
#[derive(Debug)]
pub struct HandedOver {
    /// Its name in the service manager's configuration (`FileDescriptorName=`).
    pub name: String,
    /// Its address.
    pub bound: SocketAddr,
    socket: OwnedFd,
}

/// A listening socket of a loop.
#[derive(Debug)]
pub struct Listener {
    /// The socket.
    pub socket: OwnedFd,
    /// How its connections begin.
    pub start: ConnectionStart,
}

impl AsFd for HandedOver {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Returns the listeners of loop `n` of `loops`: one for each address, or more if there were more loops when they were bound.
/// A pool shares them.
///
/// # Errors
/// When the process is out of descriptors.
pub fn listeners_of(addresses: &[Address], n: usize, loops: usize) -> io::Result<Vec<Listener>> {
    let of_address = |address: &Address| {
        let (count, start) = (address.listeners.len(), address.start);
        // One that no loop serves would keep the connections that the kernel assigns to it.
        let numbers = (n % count..count).step_by(loops);
        numbers.map(|at| Ok(Listener { socket: address.listeners[at].try_clone()?, start })).collect::<Vec<_>>()
    };
    addresses.iter().flat_map(of_address).collect()
}

impl HandedOver {
    /// Prepares an inherited descriptor.
    ///
    /// # Errors
    /// Its name, and why it cannot be used.
    pub fn new(name: String, socket: OwnedFd) -> Result<HandedOver, (String, io::Error)> {
        match socket::adopt_listener(&socket) {
            Ok(bound) => Ok(HandedOver { name, bound, socket }),
            Err(error) => Err((name, error)),
        }
    }
}

/// Returns the address that was handed over with these listeners; `None`: it was not, and has to be bound. They are duplicated,
/// so that a later configuration can use them again: the service manager listens on them in any case.
///
/// # Errors
/// When the process is out of descriptors.
pub fn handed_over(requested: SocketAddr, all: &[HandedOver]) -> io::Result<Option<Address>> {
    let of_address = all.iter().filter(|one| one.bound == requested);
    let listeners = of_address.map(|one| one.socket.try_clone()).collect::<io::Result<Vec<_>>>()?;
    if listeners.is_empty() {
        return Ok(None);
    }
    Ok(Some(Address { requested, bound: requested, start: ConnectionStart::default(), listeners }))
}

impl Address {
    /// Returns all its listeners.
    pub fn into_listeners(self) -> impl Iterator<Item = Listener> {
        self.listeners.into_iter().map(move |socket| Listener { socket, start: self.start })
    }

    /// Duplicates the listeners for another configuration.
    ///
    /// # Errors
    /// When the process is out of descriptors.
    pub fn share(&self) -> io::Result<Address> {
        let listeners = self.listeners.iter().map(OwnedFd::try_clone).collect::<io::Result<_>>()?;
        Ok(Address { listeners, ..*self })
    }
}

/// Binds an address for this many loops, without TLS or PROXY protocol, in addition to those that this server already has.
///
/// # Errors
/// What failed, and the remedy.
pub fn bind<'a>(
    requested: SocketAddr,
    loops: usize,
    own: impl Iterator<Item = &'a Address> + Clone,
) -> Result<Address, String> {
    let explain = |error: io::Error| explain(requested, &error, own.clone());
    // Sockets that share an address (SO_REUSEPORT) also share it with another server of the same user, which would
    // silently take half of the connections. So the address is first bound exclusively.
    let first = match socket::listen(requested, BACKLOG, false) {
        // All IPv4 addresses, if the system has no IPv6.
        Err(error) if requested.ip() == Ipv6Addr::UNSPECIFIED && socket::is_without_ipv6(&error) => {
            socket::listen((Ipv4Addr::UNSPECIFIED, requested.port()).into(), BACKLOG, false)
        }
        other => other,
    }
    .map_err(explain)?;
    let bound = socket::local_address(&first).map_err(explain)?;
    if loops == 1 {
        return Ok(Address { requested, bound, start: ConnectionStart::default(), listeners: vec![first] });
    }
    drop(first);
    let listeners =
        (0..loops).map(|_| socket::listen(bound, BACKLOG, true)).collect::<Result<_, _>>().map_err(explain)?;
    Ok(Address { requested, bound, start: ConnectionStart::default(), listeners })
}

fn explain<'a>(address: SocketAddr, error: &io::Error, mut own: impl Iterator<Item = &'a Address>) -> String {
    let ours = own.find(|own| own.bound.port() == address.port());
    let way_out = match (error.kind(), ours) {
        // `*:80` includes `127.0.0.1:80`.
        (io::ErrorKind::AddrInUse, Some(ours)) => format!(
            "; this server itself listens on {}, and cannot listen on both: configure one of the two, or another port; to \
             change from one to the other, restart it",
            ours.bound
        ),
        (io::ErrorKind::AddrInUse, None) => format!(
            "; another program listens there (`ss -ltnp 'sport = :{}'` shows it): stop it, or choose another port with \
             --listen",
            address.port()
        ),
        (io::ErrorKind::PermissionDenied, _) if address.port() < 1024 => {
            "; ports below 1024 require root: start as root with --user NAME, or grant CAP_NET_BIND_SERVICE".to_owned()
        }
        (io::ErrorKind::AddrNotAvailable, _) => {
            "; this machine has no such address (`ip address` lists its addresses)".to_owned()
        }
        // fe80::/10, RFC 4291, 2.5.6: the same prefix exists on every link.
        (io::ErrorKind::InvalidInput, _) if matches!(address.ip(), IpAddr::V6(ip) if ip.is_unicast_link_local()) => {
            format!(
                "; a link-local address needs the number of its interface (see `ip address`), as in `[{}%2]:{}`",
                address.ip(),
                address.port()
            )
        }
        _ => String::new(),
    };
    format!("cannot listen on {address}: {error}{way_out}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn each_listener_has_a_loop() {
        let listener = || OwnedFd::from(TcpListener::bind("127.0.0.1:0").unwrap());
        let bound = "127.0.0.1:0".parse().unwrap();
        let check = |listeners: usize, loops: usize, expected: &[usize]| {
            let listeners = (0..listeners).map(|_| listener()).collect();
            let address = [Address { requested: bound, bound, start: ConnectionStart::default(), listeners }];
            let ports = |all: &[OwnedFd]| all.iter().map(|one| socket::local_address(one).unwrap()).collect::<Vec<_>>();
            let of_loops = (0..loops).map(|n| listeners_of(&address, n, loops).unwrap());
            let of_loops: Vec<Vec<OwnedFd>> =
                of_loops.map(|all| all.into_iter().map(|one| one.socket).collect()).collect();
            assert_eq!(of_loops.iter().map(Vec::len).collect::<Vec<_>>(), expected);
            let mut served: Vec<SocketAddr> = of_loops.iter().flat_map(|all| ports(all)).collect();
            served.sort();
            served.dedup();
            assert_eq!(served.len(), address[0].listeners.len());
        };
        check(1, 1, &[1]);
        check(3, 3, &[1, 1, 1]);
        check(1, 3, &[1, 1, 1]);
        check(5, 2, &[3, 2]);
    }

    #[test]
    fn handed_over_listener_is_found_by_its_whole_address() {
        let one = TcpListener::bind("127.0.0.1:0").unwrap();
        let bound = one.local_addr().unwrap();
        let all = [HandedOver::new("http".to_owned(), one.into()).unwrap()];
        let find = |address| handed_over(address, &all).unwrap();
        // Twice: a reload may give the address up, and another one take it again.
        for _ in 0..2 {
            let found = find(bound).expect("handed over");
            assert_eq!((found.requested, found.bound, found.listeners.len()), (bound, bound, 1));
        }
        assert!(find((Ipv4Addr::new(127, 0, 0, 2), bound.port()).into()).is_none());
        assert!(find((Ipv4Addr::UNSPECIFIED, bound.port()).into()).is_none());
        assert!(find((Ipv4Addr::LOCALHOST, 0).into()).is_none());
    }
}
