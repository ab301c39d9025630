//! Sockets that listen, and the connections that come in on them.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::OwnedFd;

use amped_sys::socket;

/// Connections that may wait to be accepted. The kernel cuts it to net.core.somaxconn.
const BACKLOG: i32 = 4096;

/// One address, with a listener for each loop.
#[derive(Debug)]
pub struct Address {
    /// As it was asked for; a port of 0 stays 0.
    pub asked: SocketAddr,
    /// As it is.
    pub bound: SocketAddr,
    /// `listeners.len()` is the number of loops.
    pub listeners: Vec<OwnedFd>,
}

/// Of each address the listener of the loop of this number; in a pool there is one for all.
///
/// # Errors
/// When the process is out of descriptors.
pub fn listeners_of(addresses: &[Address], n: usize) -> io::Result<Vec<OwnedFd>> {
    addresses.iter().map(|address| address.listeners[n % address.listeners.len()].try_clone()).collect()
}

impl Address {
    /// The same listeners once more, for another configuration.
    ///
    /// # Errors
    /// When the process is out of descriptors.
    pub fn share(&self) -> io::Result<Address> {
        let listeners = self.listeners.iter().map(OwnedFd::try_clone).collect::<io::Result<_>>()?;
        Ok(Address { asked: self.asked, bound: self.bound, listeners })
    }
}

/// Binds an address for so many loops, beside those that this server has already.
///
/// # Errors
/// What was wrong and the way out.
pub fn bind<'a>(
    asked: SocketAddr,
    loops: usize,
    own: impl Iterator<Item = &'a Address> + Clone,
) -> Result<Address, String> {
    let explain = |error: io::Error| explain(asked, &error, own.clone());
    // Sockets that share an address also share it with another server of the same user, which would take half of the
    // connections without a word. So the address is taken once for us alone first.
    let first = match socket::listen(asked, BACKLOG, false) {
        // Every address, where there are only IPv4 ones.
        Err(error) if asked.ip() == Ipv6Addr::UNSPECIFIED && socket::is_without_ipv6(&error) => {
            socket::listen((Ipv4Addr::UNSPECIFIED, asked.port()).into(), BACKLOG, false)
        }
        other => other,
    }
    .map_err(explain)?;
    let bound = socket::local_address(&first).map_err(explain)?;
    if loops == 1 {
        return Ok(Address { asked, bound, listeners: vec![first] });
    }
    drop(first);
    let listeners =
        (0..loops).map(|_| socket::listen(bound, BACKLOG, true)).collect::<Result<_, _>>().map_err(explain)?;
    Ok(Address { asked, bound, listeners })
}

fn explain<'a>(address: SocketAddr, error: &io::Error, mut own: impl Iterator<Item = &'a Address>) -> String {
    let ours = own.find(|own| own.bound.port() == address.port());
    let way_out = match (error.kind(), ours) {
        // `*:80` is `127.0.0.1:80` too.
        (io::ErrorKind::AddrInUse, Some(ours)) => format!(
            "; this server itself listens on {}, and cannot on both: give one of the two, or another port; to change from \
             one to the other, start it anew",
            ours.bound
        ),
        (io::ErrorKind::AddrInUse, None) => format!(
            "; another program listens there (`ss -ltnp 'sport = :{}'` names it): stop it, or give another port with \
             --listen",
            address.port()
        ),
        (io::ErrorKind::PermissionDenied, _) if address.port() < 1024 => {
            "; ports below 1024 are for root: start as root with --user NAME, or give the program CAP_NET_BIND_SERVICE"
                .to_owned()
        }
        (io::ErrorKind::AddrNotAvailable, _) => {
            "; this machine has no such address (`ip address` lists those it has)".to_owned()
        }
        // fe80::/10, RFC 4291, 2.5.6: it is there on every link.
        (io::ErrorKind::InvalidInput, _) if matches!(address.ip(), IpAddr::V6(ip) if ip.is_unicast_link_local()) => {
            format!(
                "; on which link? Give the number of its interface (`ip address` begins with it), as in `[{}%2]:{}`",
                address.ip(),
                address.port()
            )
        }
        _ => String::new(),
    };
    format!("cannot listen on {address}: {error}{way_out}")
}
