//! A path between a client and the server: two links, and the prefix of the clients that use it.
//!
//! [`Prefixes`] finds the path of a packet by its client's address: the source upstream, the destination downstream. A
//! thousand paths cost no more than one, since there is one lookup per distinct prefix length.

use std::collections::HashMap;
use std::net::IpAddr;

use ipnet::IpNet;

use crate::link::LinkSettings;

/// The settings of a path.
#[derive(Clone, Debug, PartialEq)]
pub struct PathSettings {
    /// From the client to the server.
    pub up: LinkSettings,
    /// From the server to the client.
    pub down: LinkSettings,
}

/// Prefixes with their paths; the longest prefix of an address wins.
#[derive(Clone, Debug, Default)]
pub struct Prefixes {
    paths: HashMap<IpNet, u32>,
    /// The distinct lengths, longest first, for IPv4 and for IPv6.
    lengths: [Vec<u8>; 2],
}

impl Prefixes {
    /// Maps `prefix` to `path`. Returns the previous path of this very prefix.
    pub fn insert(&mut self, prefix: IpNet, path: u32) -> Option<u32> {
        let lengths = &mut self.lengths[usize::from(prefix.addr().is_ipv6())];
        if let Err(at) = lengths.binary_search_by(|bits| prefix.prefix_len().cmp(bits)) {
            lengths.insert(at, prefix.prefix_len());
        }
        self.paths.insert(prefix.trunc(), path)
    }

    /// The path of this address; `None` if it has none.
    pub fn find(&self, address: IpAddr) -> Option<u32> {
        let lengths = &self.lengths[usize::from(address.is_ipv6())];
        lengths.iter().find_map(|&bits| self.paths.get(&IpNet::new(address, bits).ok()?.trunc()).copied())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn prefix(text: &str) -> IpNet {
        text.parse().expect("a prefix")
    }

    #[test]
    fn longest_prefix_wins() {
        let mut paths = Prefixes::default();
        for (path, text) in ["10.0.0.0/8", "10.77.0.0/16", "10.77.0.2/32", "fd77::/16", "0.0.0.0/0"].iter().enumerate()
        {
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
            all in prop::collection::vec((any::<u32>(), 0..=32u8), 0..40), queried: u32,
        ) {
            // Few distinct bits, so that prefixes nest.
            let thin = |bits: u32| IpAddr::V4((bits & 0xc0c0_c0c0).into());
            let mut paths = Prefixes::default();
            let mut plain = Vec::new();
            for (path, (address, bits)) in all.into_iter().enumerate() {
                let prefix = IpNet::new(thin(address), bits).expect("32 bits at most").trunc();
                paths.insert(prefix, path as u32);
                plain.retain(|(other, _)| *other != prefix);
                plain.push((prefix, path as u32));
            }
            let fits = plain.iter().filter(|(prefix, _)| prefix.contains(&thin(queried)));
            let longest = fits.max_by_key(|(prefix, _)| prefix.prefix_len()).map(|(_, path)| *path);
            prop_assert_eq!(paths.find(thin(queried)), longest);
        }
    }
}
