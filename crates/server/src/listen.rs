//! Listening sockets.

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
    /// One for each loop.
    pub listeners: Vec<OwnedFd>,
}

/// A listening socket of a loop.
#[derive(Debug)]
pub struct Listener {
    /// The socket.
    pub socket: OwnedFd,
    /// How its connections begin.
    pub start: ConnectionStart,
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Returns the listeners of loop `n`, one for each address; in a pool they are shared.
///
/// # Errors
/// When the process is out of descriptors.
pub fn listeners_of(addresses: &[Address], n: usize) -> io::Result<Vec<Listener>> {
    let listener = |address: &Address| {
        let socket = address.listeners[n % address.listeners.len()].try_clone()?;
        Ok(Listener { socket, start: address.start })
    };
    addresses.iter().map(listener).collect()
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
