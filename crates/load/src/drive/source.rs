//! Where connections come from: addresses and ports of our own, one after the other.
//!
//! Left to the kernel, connect(2) searches for a free port, and the more are taken the longer it takes: 29 us at 8,000
//! connections a second, over 400 us with 20,000 ports held, which alone put a schedule seconds behind. For a server on this
//! machine there are 253 addresses besides its own, 14 million pairs: none is used twice within the minute in which an old
//! connection is remembered.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};

use amped_measure::Failure;

use super::Target;

/// Pairs of address and port, in turn.
#[derive(Clone, Debug)]
pub(super) struct Sources {
    addresses: Vec<IpAddr>,
    /// Which of them it is now.
    at: usize,
    /// `low <= port <= high`, where they are those of a lane: each `step`-th.
    low: u32,
    high: u32,
    step: u32,
    port: u32,
}

impl Sources {
    /// Those of a lane, towards this server.
    pub(super) fn new(target: &Target, lane: usize, lanes: usize) -> Result<Sources, Failure> {
        let Target::Tcp(to) = target else {
            return Ok(Sources::over(vec![Ipv4Addr::LOCALHOST.into()], 10_000, 65_535, (0, 1)));
        };
        let loopback = matches!(to.ip(), IpAddr::V4(ip) if ip.octets()[0] == 127);
        if loopback && lanes <= 253 {
            let addresses = (2..=254u8).skip(lane).step_by(lanes).map(|last| Ipv4Addr::new(127, 0, 0, last).into());
            return Ok(Sources::over(addresses.collect(), 10_000, 65_535, (0, 1)));
        }
        // A UDP socket that is connected sends nothing, and knows the way.
        let any = if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
        let known = UdpSocket::bind(any).and_then(|socket| {
            socket.connect(to)?;
            socket.local_addr()
        });
        let from = known.map_err(|error| {
            Failure::failed(format!("there is no way to {to}: {error}; look at `ip route get {}`", to.ip()))
        })?;
        let (low, high) = ephemeral();
        Ok(Sources::over(vec![from.ip()], low, high, (lane as u32, lanes as u32)))
    }

    fn over(addresses: Vec<IpAddr>, low: u32, high: u32, (lane, lanes): (u32, u32)) -> Sources {
        // Not where the last run began, whose connections are still remembered.
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

/// The ports that the kernel gives to connections (`net.ipv4.ip_local_port_range`); services are elsewhere.
fn ephemeral() -> (u32, u32) {
    let text = fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap_or_default();
    let mut figures = text.split_whitespace().map(str::parse);
    match (figures.next(), figures.next()) {
        (Some(Ok(low)), Some(Ok(high))) if low < high && high <= 65_535 => (low, high),
        // As Linux has it by default.
        _ => (32_768, 60_999),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn no_pair_comes_twice_and_none_is_of_two_lanes() {
        let check = |target: &str, lanes: usize, each: usize| {
            let target = Target::Tcp(target.parse().unwrap());
            let mut seen = HashSet::new();
            for lane in 0..lanes {
                let mut sources = Sources::new(&target, lane, lanes).unwrap();
                for _ in 0..each {
                    let pair = sources.next();
                    assert!(pair.port() >= 1024 && seen.insert(pair), "{pair} twice");
                }
            }
        };
        check("127.0.0.1:80", 1, 200_000);
        check("127.0.0.1:80", 3, 70_000);
        check("[::1]:80", 2, 5000);
    }
}
