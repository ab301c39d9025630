//! Source addresses: pairs of local address and port, in sequence.
//!
//! Left to the kernel, connect(2) searches for a free port, which takes longer the more ports are in use: 29 us at
//! 8,000 connections per second, over 400 us with 20,000 ports held; that alone put a schedule seconds behind. For a
//! server on this machine there are 253 addresses besides the server's, 14 million pairs: none is reused within the
//! minute in which the kernel keeps an old connection (TIME_WAIT). Parked connections hold their pairs for the
//! whole run, so they have a range of their own, and no other search has to skip them.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::ops::RangeInclusive;

use amped_measure::Failure;

use super::settings::Target;

/// Pairs of local address and port, in sequence.
#[derive(Clone, Debug)]
pub(super) struct Sources {
    addresses: Vec<IpAddr>,
    /// Index of the current address.
    at: usize,
    /// `low <= port <= high`, of which a lane uses each `step`-th.
    low: u32,
    high: u32,
    step: u32,
    port: u32,
}

/// The last of our addresses on the loopback network; 127.0.0.1 is the server's.
const LAST_LOOPBACK: usize = 254;

/// The port range of such an address.
const LOOPBACK_PORTS: (u32, u32) = (10_000, 65_535);

impl Sources {
    /// The pairs of a lane for this server, besides `parked` parked connections.
    pub(super) fn new(target: &Target, lane: usize, lanes: usize, parked: usize) -> Result<Sources, Failure> {
        let Target::Tcp(to) = target else { return Ok(Sources::loopback(2..=2, (0, 1))) };
        let last = LAST_LOOPBACK - parked_addresses(parked);
        if is_loopback(to) && lanes < last {
            return Ok(Sources::loopback(2..=last, (lane, lanes)));
        }
        let (low, high) = ephemeral();
        let high = high - parked_ports(to, parked)?;
        Ok(Sources::over(vec![address(to)?], low, high, (lane as u32, lanes as u32)))
    }

    /// The pairs of `parked` parked connections.
    pub(super) fn parked(target: &Target, parked: usize) -> Result<Sources, Failure> {
        let Target::Tcp(to) = target else { return Ok(Sources::loopback(2..=2, (0, 1))) };
        if is_loopback(to) {
            let first = LAST_LOOPBACK - parked_addresses(parked) + 1;
            return Ok(Sources::loopback(first.min(LAST_LOOPBACK)..=LAST_LOOPBACK, (0, 1)));
        }
        let high = ephemeral().1;
        Ok(Sources::over(vec![address(to)?], high - parked_ports(to, parked)? + 1, high, (0, 1)))
    }

    /// Loopback addresses with these last bytes, divided among the lanes.
    fn loopback(last: RangeInclusive<usize>, (lane, lanes): (usize, usize)) -> Sources {
        let addresses = last.skip(lane).step_by(lanes).map(|last| Ipv4Addr::new(127, 0, 0, last as u8).into());
        Sources::over(addresses.collect(), LOOPBACK_PORTS.0, LOOPBACK_PORTS.1, (0, 1))
    }

    fn over(addresses: Vec<IpAddr>, low: u32, high: u32, (lane, lanes): (u32, u32)) -> Sources {
        // Begins elsewhere than the last run, whose connections are still in TIME_WAIT.
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        let some = now.subsec_micros();
        let (at, low) = (some as usize % addresses.len(), low + lane);
        let port = low + some % ((high - low) / lanes).max(1) * lanes;
        Sources { addresses, at, low, high, step: lanes, port }
    }

    /// The next pair.
    pub(super) fn next(&mut self) -> SocketAddr {
        let pair = SocketAddr::new(self.addresses[self.at], self.port as u16);
        self.port += self.step;
        if self.port > self.high {
            self.port = self.low;
            self.at = (self.at + 1) % self.addresses.len();
        }
        pair
    }
}

fn is_loopback(to: &SocketAddr) -> bool {
    matches!(to.ip(), IpAddr::V4(ip) if ip.octets()[0] == 127)
}

/// The local address for connections to a server.
fn address(to: &SocketAddr) -> Result<IpAddr, Failure> {
    // Connecting a UDP socket sends nothing but selects a route.
    let any = if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    let known = UdpSocket::bind(any).and_then(|socket| {
        socket.connect(to)?;
        socket.local_addr()
    });
    known
        .map(|from| from.ip())
        .map_err(|error| Failure::failed(format!("no route to {to}: {error}; see `ip route get {}`", to.ip())))
}

/// The number of pairs with some to spare: pairs in use by other processes are skipped, and the pair of a connection
/// that the server closed may stay in TIME_WAIT.
fn with_spare(parked: usize) -> usize {
    if parked == 0 { 0 } else { parked + parked / 4 + 64 }
}

/// Number of loopback addresses reserved for parked connections.
fn parked_addresses(parked: usize) -> usize {
    let (low, high) = LOOPBACK_PORTS;
    with_spare(parked).div_ceil((high - low + 1) as usize).min(LAST_LOOPBACK - 2)
}

/// Number of ports of this machine's address reserved for them, at most half of all.
fn parked_ports(to: &SocketAddr, parked: usize) -> Result<u32, Failure> {
    let ((low, high), needed) = (ephemeral(), with_spare(parked));
    let half = (high - low) / 2;
    u32::try_from(needed).ok().filter(|needed| *needed <= half).ok_or_else(|| {
        Failure::failed(format!(
            "{parked} parked connections to {to} need {needed} ports, and at most {half} may be used, half of \
             net.ipv4.ip_local_port_range; widen it (sysctl), or lower --parked"
        ))
    })
}

/// The kernel's range of ephemeral ports (`net.ipv4.ip_local_port_range`); services listen elsewhere.
fn ephemeral() -> (u32, u32) {
    let text = fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap_or_default();
    let mut figures = text.split_whitespace().map(str::parse);
    match (figures.next(), figures.next()) {
        (Some(Ok(low)), Some(Ok(high))) if low < high && high <= 65_535 => (low, high),
        // The default of Linux.
        _ => (32_768, 60_999),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn address_pairs_are_unique_across_lanes() {
        let check = |target: &str, lanes: usize, parked: usize, each: usize| {
            let target = Target::Tcp(target.parse().unwrap());
            let mut seen = HashSet::new();
            if parked > 0 {
                let mut sources = Sources::parked(&target, parked).unwrap();
                (0..parked).for_each(|_| assert!(seen.insert(sources.next()), "a parked pair twice"));
            }
            for lane in 0..lanes {
                let mut sources = Sources::new(&target, lane, lanes, parked).unwrap();
                for _ in 0..each {
                    let pair = sources.next();
                    assert!(pair.port() >= 1024 && seen.insert(pair), "{pair} twice");
                }
            }
        };
        check("127.0.0.1:80", 1, 0, 200_000);
        check("127.0.0.1:80", 3, 0, 70_000);
        check("127.0.0.1:80", 3, 100_000, 70_000);
        check("[::1]:80", 2, 0, 5000);
        check("[::1]:80", 2, 5000, 5000);
    }

    #[test]
    fn parked_connections_using_all_ports_are_rejected_with_count() {
        let target = Target::Tcp("[::1]:80".parse().unwrap());
        let why = Sources::parked(&target, 60_000).unwrap_err().to_string();
        assert!(why.contains("need 75064 ports") && why.contains("--parked"), "{why}");
        assert_eq!(Sources::new(&target, 0, 1, 60_000).unwrap_err().to_string(), why);
    }
}
