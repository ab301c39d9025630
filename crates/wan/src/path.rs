//! A path between a client and the server: two links, and the prefix of the clients that use it.
//!
//! [`Prefixes`] finds the path of a packet by its client's address: the source upstream, the destination downstream. A
//! thousand paths cost no more than one, since there is one lookup per distinct prefix length.

use std::collections::HashMap;
use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use crate::link::LinkSettings;

/// The settings of a path.
#[derive(Clone, Debug, PartialEq)]
pub struct PathSettings {
    /// From the client to the server.
    pub up: LinkSettings,
    /// From the server to the client.
    pub down: LinkSettings,
}

/// The direction of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// To the server.
    Up,
    /// To the client.
    Down,
}

impl Direction {
    /// Both directions.
    pub const ALL: [Direction; 2] = [Direction::Up, Direction::Down];
}

impl fmt::Display for Direction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Direction::Up => "up",
            Direction::Down => "down",
        })
    }
}

/// An address prefix: `10.77.0.0/16`, `fd77::/64`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Prefix {
    address: IpAddr,
    bits: u8,
}

impl Prefix {
    /// The prefix of the first `bits` of this address; `None` if an address has fewer bits.
    pub fn new(address: IpAddr, bits: u8) -> Option<Prefix> {
        let length = if address.is_ipv4() { 32 } else { 128 };
        (bits <= length).then(|| Prefix { address: masked(address, bits), bits })
    }

    /// Whether it is an IPv6 prefix.
    pub fn is_ipv6(&self) -> bool {
        self.address.is_ipv6()
    }

    /// The prefix of this address alone.
    pub fn host(address: IpAddr) -> Prefix {
        Prefix { address, bits: if address.is_ipv4() { 32 } else { 128 } }
    }
}

impl FromStr for Prefix {
    type Err = String;

    fn from_str(text: &str) -> Result<Prefix, String> {
        let wrong = || format!("invalid address prefix {text:?}; write for example 10.77.1.0/24 or fd77:1::/64");
        let (address, bits) = text.split_once('/').map_or((text, None), |(address, bits)| (address, Some(bits)));
        let address: IpAddr = address.parse().map_err(|_| wrong())?;
        match bits {
            None => Ok(Prefix::host(address)),
            Some(bits) => bits.parse().ok().and_then(|bits| Prefix::new(address, bits)).ok_or_else(wrong),
        }
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.bits)
    }
}

fn masked(address: IpAddr, bits: u8) -> IpAddr {
    // Shifting an integer by all its bits overflows; the mask is empty then.
    match address {
        IpAddr::V4(v4) => {
            let mask = u32::MAX.checked_shl(32 - u32::from(bits)).unwrap_or(0);
            IpAddr::V4((v4.to_bits() & mask).into())
        }
        IpAddr::V6(v6) => {
            let mask = u128::MAX.checked_shl(128 - u32::from(bits)).unwrap_or(0);
            IpAddr::V6((v6.to_bits() & mask).into())
        }
    }
}

/// Prefixes with their paths; the longest prefix of an address wins.
#[derive(Clone, Debug, Default)]
pub struct Prefixes {
    paths: HashMap<Prefix, u32>,
    /// The distinct lengths, longest first, for IPv4 and for IPv6.
    lengths: [Vec<u8>; 2],
}

impl Prefixes {
    /// Maps `prefix` to `path`. Returns the previous path of this very prefix.
    pub fn insert(&mut self, prefix: Prefix, path: u32) -> Option<u32> {
        let lengths = &mut self.lengths[usize::from(prefix.address.is_ipv6())];
        if let Err(at) = lengths.binary_search_by(|bits| prefix.bits.cmp(bits)) {
            lengths.insert(at, prefix.bits);
        }
        self.paths.insert(prefix, path)
    }

    /// The path of this address; `None` if it has none.
    pub fn find(&self, address: IpAddr) -> Option<u32> {
        let lengths = &self.lengths[usize::from(address.is_ipv6())];
        lengths.iter().find_map(|&bits| self.paths.get(&Prefix { address: masked(address, bits), bits }).copied())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn prefix(text: &str) -> Prefix {
        text.parse().expect("a prefix")
    }

    #[test]
    fn valid_prefixes_parse_and_invalid_ones_fail() {
        let check = |text: &str, expected: Option<&str>| {
            assert_eq!(text.parse::<Prefix>().ok().map(|prefix| prefix.to_string()).as_deref(), expected, "{text}");
        };
        check("10.77.1.9/24", Some("10.77.1.0/24"));
        check("10.77.1.9", Some("10.77.1.9/32"));
        check("0.0.0.0/0", Some("0.0.0.0/0"));
        check("fd77:1:2::3/32", Some("fd77:1::/32"));
        check("::/0", Some("::/0"));
        for bad in ["", "10.77.1.0/33", "10.77/16", "fd77::/129", "10.0.0.0/x", "/8"] {
            check(bad, None);
        }
    }

    #[test]
    fn longest_prefix_wins() {
        let mut paths = Prefixes::default();
        for (path, text) in ["10.0.0.0/8", "10.77.0.0/16", "10.77.0.2", "fd77::/16", "0.0.0.0/0"].iter().enumerate() {
            assert_eq!(paths.insert(prefix(text), path as u32), None);
        }
        let check = |address: &str, expected: Option<u32>| {
            assert_eq!(paths.find(address.parse().expect("an address")), expected, "{address}");
        };
        check("10.1.2.3", Some(0));
        check("10.77.9.9", Some(1));
        check("10.77.0.2", Some(2));
        check("192.0.2.1", Some(4));
        check("fd77::9", Some(3));
        check("fe80::1", None);
        assert_eq!(paths.insert(prefix("10.0.0.0/8"), 9), Some(0));
    }

    proptest! {
        #[test]
        fn lookup_agrees_with_linear_search(
            all in prop::collection::vec((any::<u32>(), 0..=32u8), 0..40), asked: u32,
        ) {
            // Few distinct bits, so that prefixes nest.
            let thin = |bits: u32| IpAddr::V4((bits & 0xc0c0_c0c0).into());
            let mut paths = Prefixes::default();
            let mut plain = Vec::new();
            for (path, (address, bits)) in all.into_iter().enumerate() {
                let prefix = Prefix::new(thin(address), bits).expect("32 bits at most");
                paths.insert(prefix, path as u32);
                plain.retain(|(other, _)| *other != prefix);
                plain.push((prefix, path as u32));
            }
            let fits = plain.iter().filter(|(prefix, _)| masked(thin(asked), prefix.bits) == prefix.address);
            let longest = fits.max_by_key(|(prefix, _)| prefix.bits).map(|(_, path)| *path);
            prop_assert_eq!(paths.find(thin(asked)), longest);
        }
    }
}
