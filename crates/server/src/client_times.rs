//! A time for each client, or for another key, in memory that processes share.
//!
//! A table has a fixed size, in sets of a few entries. A new entry replaces the least important one of its set: that with
//! the earliest time. The users are the ledger of passwords and the limits of requests, whose times say when an allowance
//! is full again, so that an entry which is replaced is the one whose loss matters least.

use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;

use amped_sys::shared::{Guard, Outside};

/// A client: a hash of its user name, or its address, as far as it is significant here. An IPv6 client has at least 2^64
/// addresses of its own, so its /64 counts as one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Client(u128);

impl Client {
    /// Returns the client at this address; all unknown addresses count as one.
    pub fn new(address: Option<IpAddr>) -> Client {
        Client(match address.map(|address| address.to_canonical()) {
            Some(IpAddr::V4(address)) => address.to_ipv6_mapped().to_bits(),
            Some(IpAddr::V6(address)) => address.to_bits() >> 64 << 64,
            None => 0,
        })
    }

    /// Returns the client with this user name, of which these are hashes.
    ///
    /// Addresses of IPv4 begin with 64 bits that are 0, those of IPv6 end with such bits.
    pub fn of_user([high, low]: [u64; 2]) -> Client {
        Client(u128::from(high | 1 << 63) << 64 | u128::from(low >> 16 | 1))
    }

    /// Returns its key.
    pub fn key(self) -> u128 {
        self.0
    }

    /// Returns its key under a rule with this number. Bits 48 to 63 are 0 in every client.
    pub fn key_under(self, rule: u16) -> u128 {
        self.0 | u128::from(rule) << 48
    }
}

/// A table in a part of a [`Region`](amped_sys::shared::Region), at its beginning.
#[derive(Debug)]
pub struct TimeTable {
    hash: RandomState,
    sets: usize,
}

const WAYS: usize = 4;
/// A key (16 bytes) and a time (8 bytes).
const ENTRY: usize = 24;
const SET: usize = WAYS * ENTRY;

impl TimeTable {
    /// Creates a table of so many sets, for memory that is zero. It must be created before the processes that share it.
    pub fn new(sets: usize) -> TimeTable {
        TimeTable { hash: RandomState::new(), sets }
    }

    /// Returns the size of a table of so many sets, bytes.
    pub const fn bytes(sets: usize) -> usize {
        sets * SET
    }

    /// Returns which of `parts` equal parts has this key.
    pub fn part_of(&self, key: u128, parts: usize) -> usize {
        // The lower half of the hash chooses the set.
        (self.hash.hash_one(key) >> 32) as usize % parts
    }

    /// Sets the time of a key, which is 0 if the key is unknown; `None` leaves the table unchanged, and returns `false`.
    pub fn change(&self, guard: &Guard<'_>, key: u128, to: impl FnOnce(u64) -> Option<u64>) -> bool {
        let set = (self.hash.hash_one(key) & u64::from(u32::MAX)) as usize % self.sets * SET;
        let mut entries = [(0, 0); WAYS];
        for (way, entry) in entries.iter_mut().enumerate() {
            *entry = read(guard, set + way * ENTRY).unwrap_or_default();
        }
        let own = entries.iter().position(|(known, _)| *known == key);
        let least = (0..WAYS).min_by_key(|way| entries[*way].1).unwrap_or(0);
        let (way, time) = own.map_or((least, 0), |way| (way, entries[way].1));
        let Some(time) = to(time) else { return false };
        let at = set + way * ENTRY;
        let written = guard.write(at, &key.to_ne_bytes()).and_then(|()| guard.set_word(at + 16, time));
        debug_assert!(written.is_ok(), "the table has a fixed size");
        true
    }
}

fn read(guard: &Guard<'_>, at: usize) -> Result<(u128, u64), Outside> {
    let mut key = [0; 16];
    guard.read(at, &mut key)?;
    Ok((u128::from_ne_bytes(key), guard.word(at + 16)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(text: &str) -> Client {
        Client::new(Some(text.parse().unwrap()))
    }

    #[test]
    fn ipv6_clients_of_one_network_are_one() {
        assert_eq!(client("2001:db8::1"), client("2001:db8::ffff:1:2:3"));
        assert_ne!(client("2001:db8::1"), client("2001:db8:0:1::1"));
        assert_eq!(client("::ffff:192.0.2.1"), client("192.0.2.1"));
        assert_ne!(client("192.0.2.1"), client("192.0.2.2"));
    }

    #[test]
    fn keys_of_clients_and_rules_are_distinct() {
        let addresses = ["255.255.255.255", "0.0.0.1", "2001:db8::", "2001:db8:0:1::", "ffff:ffff:ffff:ffff::1"];
        let users = [[0, 0], [1, 0], [0, 1 << 17], [u64::MAX; 2]].map(Client::of_user);
        let clients = addresses.map(client).into_iter().chain([Client::new(None)]).chain(users);
        let mut keys: Vec<u128> =
            clients.flat_map(|client| [0, 1, 0x100, u16::MAX].map(|rule| client.key_under(rule))).collect();
        keys.sort_unstable();
        keys.dedup();
        assert_eq!(keys.len(), 10 * 4);
    }
}
