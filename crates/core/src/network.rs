//! Networks: sets of addresses with a common prefix, written as in RFC 4632 (CIDR).

use alloc::format;
use alloc::string::String;
use core::fmt;
use core::net::IpAddr;

use amped_units::written_as_text;

/// A network. An IPv4 address mapped into IPv6 counts as IPv4, in networks and in what they contain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    /// The first address.
    address: IpAddr,
    /// Bits that all its addresses share: `prefix <= 32` for IPv4, `prefix <= 128` for IPv6.
    prefix: u32,
}

impl Network {
    /// Reads `ADDRESS/PREFIX`, or an address alone.
    ///
    /// # Errors
    /// The problem and the remedy, in two lines.
    pub fn parse(text: &str) -> Result<Network, String> {
        let bad = || format!("`{}` is not an address or network\n{HELP}", text.escape_debug());
        let (address, prefix) = match text.split_once('/') {
            None => (text, None),
            Some((address, prefix)) => (address, Some(number(prefix).ok_or_else(bad)?)),
        };
        let written: IpAddr = address.parse().map_err(|_| bad())?;
        let address = written.to_canonical();
        let unmapped = match (written, address) {
            (IpAddr::V6(_), IpAddr::V4(_)) => 96,
            _ => 0,
        };
        let bits = bits(address);
        let prefix = match prefix {
            None => bits,
            Some(prefix) => prefix.checked_sub(unmapped).filter(|prefix| *prefix <= bits).ok_or_else(bad)?,
        };
        let network = Network { address: first(address, prefix), prefix };
        if network.address != address {
            return Err(format!(
                "`{text}` is an address within a network\nwrite the network, `{network}`, or the address alone"
            ));
        }
        Ok(network)
    }

    /// Whether an address belongs to the network.
    pub fn contains(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        address.is_ipv4() == self.address.is_ipv4() && first(address, self.prefix) == self.address
    }

    /// Whether it has every address of its family.
    pub fn is_everything(&self) -> bool {
        self.prefix == 0
    }
}

const HELP: &str = "write an address such as `192.0.2.1` or `2001:db8::1`, or a network such as `10.0.0.0/8`";

/// Reads a number of digits only.
fn number(text: &str) -> Option<u32> {
    (!text.is_empty() && text.len() <= 3 && text.bytes().all(|byte| byte.is_ascii_digit()))
        .then(|| text.parse().ok())?
}

/// The length of an address.
fn bits(address: IpAddr) -> u32 {
    if address.is_ipv4() { 32 } else { 128 }
}

/// The address with all bits after the prefix cleared.
fn first(address: IpAddr, prefix: u32) -> IpAddr {
    let shift = bits(address) - prefix;
    match address {
        IpAddr::V4(address) => {
            let bits = address.to_bits();
            IpAddr::V4((bits & u32::MAX.checked_shl(shift).unwrap_or(0)).into())
        }
        IpAddr::V6(address) => {
            let bits = address.to_bits();
            IpAddr::V6((bits & u128::MAX.checked_shl(shift).unwrap_or(0)).into())
        }
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.prefix == bits(self.address) {
            true => write!(f, "{}", self.address),
            false => write!(f, "{}/{}", self.address, self.prefix),
        }
    }
}

written_as_text!(Network, Network::parse, "format": "network");

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;
    use proptest::prelude::*;

    #[test]
    fn networks_contain_addresses_with_their_prefix() {
        let check = |network: &str, inside: &[&str], outside: &[&str]| {
            let network = Network::parse(network).expect("valid");
            let contains = |address: &&str| network.contains(address.parse().expect("valid"));
            assert!(inside.iter().all(contains), "{network} {inside:?}");
            assert!(!outside.iter().any(contains), "{network} {outside:?}");
        };
        check(
            "10.0.0.0/8",
            &["10.0.0.0", "10.255.255.255", "::ffff:10.1.2.3"],
            &["9.255.255.255", "11.0.0.0", "::10.0.0.1", "::1"],
        );
        check("192.0.2.128/25", &["192.0.2.128", "192.0.2.255"], &["192.0.2.127"]);
        check("192.0.2.1", &["192.0.2.1"], &["192.0.2.0", "192.0.2.2"]);
        check("0.0.0.0/0", &["0.0.0.0", "255.255.255.255", "::ffff:1.2.3.4"], &["::1", "2001:db8::"]);
        check("::/0", &["::", "2001:db8::1"], &["1.2.3.4", "::ffff:1.2.3.4"]);
        check("2001:db8::/32", &["2001:db8::", "2001:db8:ffff::1"], &["2001:db9::"]);
        check("::1", &["::1"], &["::", "::2", "0.0.0.1", "127.0.0.1"]);
        check("::ffff:10.0.0.0/104", &["10.1.2.3", "::ffff:10.1.2.3"], &["11.0.0.0"]);
    }

    #[test]
    fn malformed_networks_are_rejected_with_remedy() {
        for text in [
            "",
            "a",
            "10.0.0.0/33",
            "::/129",
            "10.0.0.0/",
            "10.0.0.0/+8",
            "10.0.0/8",
            "10.0.0.0/8/8",
            "/8",
            "::ffff:1.2.3.4/95",
            "fe80::1%1",
            "unix",
        ] {
            let error = Network::parse(text).unwrap_err();
            assert!(error.contains("is not an address or network\nwrite "), "{text}: {error}");
        }
        let error = Network::parse("10.0.0.1/8").unwrap_err();
        assert_eq!(
            error,
            "`10.0.0.1/8` is an address within a network\nwrite the network, `10.0.0.0/8`, or the address alone"
        );
    }

    proptest! {
        #[test]
        fn written_network_is_read_and_contains_exactly_its_prefix(address: u128, other: u128, is_v4: bool, prefix in 0_u32..=128) {
            let ip = |bits: u128| if is_v4 { IpAddr::V4((bits as u32).into()) } else { IpAddr::V6(bits.into()).to_canonical() };
            let (address, other) = (ip(address), ip(other));
            let prefix = prefix % (bits(address) + 1);
            let network = Network { address: first(address, prefix), prefix };
            prop_assert_eq!(Network::parse(&network.to_string()), Ok(network));
            prop_assert!(network.contains(address));
            prop_assert_eq!(network.contains(other), first(other, prefix) == first(address, prefix));
        }
    }
}
