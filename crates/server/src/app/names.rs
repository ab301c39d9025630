//! The addresses of backends that have names. They are resolved again at an interval, and kept in memory that forked processes share.
//!
//! Each process with loops has a thread; the first one to begin the round of an interval resolves for all. [`super::upstream`] looks at
//! the version before each request, and takes over a change. An address keeps its number, by which health checks know it. A name
//! that cannot be resolved keeps its addresses.

use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6, ToSocketAddrs};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use amped_sys::shared::{Guard, Outside, PATIENCE, Region};
use amped_sys::words::Words;

use crate::config::settings::{BACKENDS_MAX, BackendServer, NamedServer};
use crate::say;

/// An address of a server with a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NamedAddress {
    /// The number of the server.
    server: usize,
    address: SocketAddr,
}

/// The names of a rule, and their addresses.
#[derive(Debug)]
pub(super) struct Names {
    servers: Vec<NamedServer>,
    interval: Duration,
    /// The first number of their addresses; those below belong to backends without a name.
    first: usize,
    words: Words,
    addresses: Region,
    start: Instant,
    /// The thread of this process was started.
    is_started: AtomicBool,
}

/// Changes with the addresses.
const VERSION: usize = 0;

/// When the next round begins, milliseconds since `start`.
const DUE_MS: usize = 1;

/// Bytes of an address in the table: the number of its server and one, 0 for none; port; scope; IPv6 address, perhaps a mapped one.
const ENTRY: usize = 32;

/// Where it is noted that the table is being written.
const DIRTY: usize = ENTRY * BACKENDS_MAX;

/// The interval for names that have no address yet, at most.
const RETRY: Duration = Duration::from_secs(1);

impl Names {
    /// Creates the table, with what the configuration has found.
    ///
    /// # Errors
    /// There is no memory, or no descriptor.
    pub(super) fn new(servers: &[NamedServer], interval: Duration, first: usize) -> io::Result<Names> {
        let names = Names {
            servers: servers.to_vec(),
            interval,
            first,
            words: Words::new(2)?,
            addresses: Region::new(1, DIRTY + 8)?,
            start: Instant::now(),
            is_started: AtomicBool::new(false),
        };
        let known = servers.iter().enumerate();
        let known = known
            .flat_map(|(server, named)| named.addresses.iter().map(move |&address| NamedAddress { server, address }));
        let table: Vec<_> = known.map(Some).take(BACKENDS_MAX - first).collect();
        if let Some(guard) = names.lock() {
            write(&guard, &table).map_err(|Outside| io::ErrorKind::OutOfMemory)?;
        }
        let due = names.wait(&table);
        names.words.all()[DUE_MS].store(milliseconds(due), Ordering::Relaxed);
        Ok(names)
    }

    fn lock(&self) -> Option<Guard<'_>> {
        // A process that only read has changed nothing.
        let clear = |guard: &Guard<'_>| {
            if guard.word(DIRTY) != Ok(0) {
                let _ = guard.zero(0, DIRTY + 8);
            }
        };
        self.addresses.lock_mended(0, PATIENCE, clear)
    }

    /// Returns whether the thread of this process is to be started: one caller gets `true`.
    pub(super) fn takes_start(&self) -> bool {
        !self.is_started.swap(true, Ordering::Relaxed)
    }

    /// Returns a number that changes with the addresses.
    pub(super) fn version(&self) -> u64 {
        self.words.all()[VERSION].load(Ordering::Acquire)
    }

    /// Returns all addresses with their numbers; `None` while a stopped process has the lock.
    pub(super) fn addresses(&self) -> Option<Vec<(usize, BackendServer)>> {
        let table = read(&self.lock()?, self.servers.len()).ok()?;
        let known = (self.first..).zip(table);
        let address = |NamedAddress { server, address }| Some(self.servers.get(server)?.reached_at(address));
        Some(known.filter_map(|(number, entry)| Some((number, address(entry?)?))).collect())
    }

    /// Returns the addresses of a server, if it is one of these.
    pub(super) fn addresses_of(&self, server: &NamedServer) -> Vec<SocketAddr> {
        let Some(number) = self.servers.iter().position(|own| own == server) else { return Vec::new() };
        let table = self.lock().and_then(|guard| read(&guard, self.servers.len()).ok()).unwrap_or_default();
        table.into_iter().flatten().filter(|entry| entry.server == number).map(|entry| entry.address).collect()
    }

    /// Resolves the names, if that is due and no other process does it. `forget` is called with each number whose address changes.
    pub(super) fn resolve_if_due(&self, forget: impl Fn(usize)) {
        let due = &self.words.all()[DUE_MS];
        let (known, now) = (due.load(Ordering::Relaxed), milliseconds(self.start.elapsed()));
        let next = now.saturating_add(milliseconds(self.interval));
        if now < known || due.compare_exchange(known, next, Ordering::Relaxed, Ordering::Relaxed).is_err() {
            return;
        }
        let found: Vec<_> = self.servers.iter().map(|server| resolve(&server.at)).collect();
        let Some(guard) = self.lock() else { return };
        // It took longer than the interval, and another process has begun since.
        if due.load(Ordering::Relaxed) != next {
            return;
        }
        let Ok(old) = read(&guard, self.servers.len()) else { return };
        let table = merged(&old, &found, BACKENDS_MAX - self.first);
        due.store(milliseconds(self.start.elapsed() + self.wait(&table)), Ordering::Relaxed);
        if table == old || write(&guard, &table).is_err() {
            return;
        }
        let is_new = |number: &usize| table[*number].is_some() && table.get(*number) != old.get(*number);
        (0..table.len()).filter(is_new).for_each(|number| forget(self.first + number));
        self.words.all()[VERSION].fetch_add(1, Ordering::Release);
        drop(guard);
        self.report(&old, &table);
    }

    /// Returns the time until the next round.
    fn wait(&self, table: &[Option<NamedAddress>]) -> Duration {
        let has_one = |server: usize| table.iter().flatten().any(|entry| entry.server == server);
        if (0..self.servers.len()).all(has_one) { self.interval } else { self.interval.min(RETRY) }
    }

    /// Returns the time until the next round that this process may do.
    pub(super) fn time_until_due(&self) -> Duration {
        let due = Duration::from_millis(self.words.all()[DUE_MS].load(Ordering::Relaxed));
        due.saturating_sub(self.start.elapsed())
    }

    fn report(&self, old: &[Option<NamedAddress>], new: &[Option<NamedAddress>]) {
        let of = |table: &[Option<NamedAddress>], server: usize| {
            let mut own: Vec<SocketAddr> =
                table.iter().flatten().filter(|entry| entry.server == server).map(|entry| entry.address).collect();
            own.sort();
            own
        };
        for (number, server) in self.servers.iter().enumerate() {
            let (before, now) = (of(old, number), of(new, number));
            if before != now {
                let now: Vec<String> = now.iter().map(SocketAddr::to_string).collect();
                say!("the backend {} is now at {}", server.at, now.join(", "));
            }
        }
    }
}

/// Returns the addresses of a name with a port.
///
/// # Errors
/// Those of getaddrinfo(3).
pub fn resolve(at: &str) -> io::Result<Vec<SocketAddr>> {
    let canonical = |address: SocketAddr| match address.ip().to_canonical() {
        ip @ IpAddr::V4(_) => SocketAddr::new(ip, address.port()),
        IpAddr::V6(_) => address,
    };
    let mut found: Vec<SocketAddr> = at.to_socket_addrs()?.map(canonical).collect();
    found.dedup();
    Ok(found)
}

/// The table after a round: known addresses keep their places, and new ones get free ones. Without room, some are left out.
fn merged(
    old: &[Option<NamedAddress>],
    found: &[io::Result<Vec<SocketAddr>>],
    places: usize,
) -> Vec<Option<NamedAddress>> {
    let is_found = |entry: &NamedAddress| match found.get(entry.server) {
        Some(Ok(addresses)) if !addresses.is_empty() => addresses.contains(&entry.address),
        _ => true,
    };
    let mut table: Vec<_> = old.iter().map(|entry| entry.filter(is_found)).collect();
    table.resize(BACKENDS_MAX, None);
    for (server, addresses) in found.iter().enumerate() {
        for &address in addresses.iter().flatten() {
            let new = Some(NamedAddress { server, address });
            if !table.contains(&new)
                && let Some(free) = table.iter_mut().take(places).find(|entry| entry.is_none())
            {
                *free = new;
            }
        }
    }
    table
}

fn write(guard: &Guard<'_>, table: &[Option<NamedAddress>]) -> Result<(), Outside> {
    guard.set_word(DIRTY, 1)?;
    guard.zero(0, DIRTY)?;
    for (number, entry) in table.iter().enumerate() {
        let Some(NamedAddress { server, address }) = entry else { continue };
        let mut bytes = [0; ENTRY];
        bytes[..8].copy_from_slice(&(*server as u64 + 1).to_ne_bytes());
        bytes[8..10].copy_from_slice(&address.port().to_ne_bytes());
        let ip = match address.ip() {
            IpAddr::V4(ip) => ip.to_ipv6_mapped(),
            IpAddr::V6(ip) => ip,
        };
        if let SocketAddr::V6(address) = address {
            bytes[12..16].copy_from_slice(&address.scope_id().to_ne_bytes());
        }
        bytes[16..].copy_from_slice(&ip.octets());
        guard.write(ENTRY * number, &bytes)?;
    }
    guard.set_word(DIRTY, 0)
}

fn read(guard: &Guard<'_>, servers: usize) -> Result<Vec<Option<NamedAddress>>, Outside> {
    let entry = |number: usize| {
        let mut bytes = [0; ENTRY];
        guard.read(ENTRY * number, &mut bytes)?;
        let server = (guard.word(ENTRY * number)? as usize).checked_sub(1).filter(|server| *server < servers);
        let (mut port, mut scope, mut ip) = ([0; 2], [0; 4], [0; 16]);
        port.copy_from_slice(&bytes[8..10]);
        scope.copy_from_slice(&bytes[12..16]);
        ip.copy_from_slice(&bytes[16..]);
        let port = u16::from_ne_bytes(port);
        let address = match Ipv6Addr::from(ip).to_canonical() {
            IpAddr::V4(ip) => SocketAddr::from((ip, port)),
            IpAddr::V6(ip) => SocketAddrV6::new(ip, port, 0, u32::from_ne_bytes(scope)).into(),
        };
        Ok(server.map(|server| NamedAddress { server, address }))
    };
    (0..BACKENDS_MAX).map(entry).collect()
}

/// Returns a time in milliseconds, as shared memory has it.
pub(super) fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::settings::Share;
    use std::sync::atomic::AtomicUsize;

    fn address(last: u8) -> SocketAddr {
        SocketAddr::from(([10, 0, 0, last], 80))
    }

    fn servers(addresses: &[&[SocketAddr]]) -> Vec<NamedServer> {
        let server = |addresses: &&[SocketAddr]| NamedServer {
            at: "localhost:80".into(),
            tls: None,
            share: Share::default(),
            addresses: addresses.to_vec(),
        };
        addresses.iter().map(server).collect()
    }

    #[test]
    fn addresses_keep_their_numbers_and_unresolved_names_their_addresses() {
        let names = Names::new(&servers(&[&[address(1), address(2)], &[address(3)]]), RETRY, 5).unwrap();
        let shown = |names: &Names| {
            let all = names.addresses().unwrap().into_iter();
            all.map(|(number, server)| format!("{number} {:?}", server.address)).collect::<Vec<_>>()
        };
        assert_eq!(shown(&names), ["5 Tcp(10.0.0.1:80)", "6 Tcp(10.0.0.2:80)", "7 Tcp(10.0.0.3:80)"]);
        let table = read(&names.lock().unwrap(), 2).unwrap();
        let failed = || Err(io::Error::other("no answer"));
        let check = |found: [io::Result<Vec<SocketAddr>>; 2], expected: &[(usize, usize, u8)]| {
            let merged = merged(&table, &found, 4);
            let shown: Vec<_> = merged.iter().enumerate().filter_map(|(n, entry)| Some((n, (*entry)?))).collect();
            let expected: Vec<_> = expected
                .iter()
                .map(|&(n, server, last)| (n, NamedAddress { server, address: address(last) }))
                .collect();
            assert_eq!(shown, expected);
        };
        check([failed(), failed()], &[(0, 0, 1), (1, 0, 2), (2, 1, 3)]);
        check([Ok(vec![]), Ok(vec![address(3)])], &[(0, 0, 1), (1, 0, 2), (2, 1, 3)]);
        check([Ok(vec![address(2), address(1)]), failed()], &[(0, 0, 1), (1, 0, 2), (2, 1, 3)]);
        check([Ok(vec![address(9), address(2)]), failed()], &[(0, 0, 9), (1, 0, 2), (2, 1, 3)]);
        check([Ok(vec![address(9)]), Ok(vec![address(8)])], &[(0, 0, 9), (1, 1, 8)]);
        // There is room for four.
        let many = (10..20).map(address).collect();
        check([Ok(many), failed()], &[(0, 0, 10), (1, 0, 11), (2, 1, 3), (3, 0, 12)]);
    }

    #[test]
    fn every_kind_of_address_is_kept_as_it_is() {
        let all = ["10.0.0.1:80", "[2001:db8::1]:81", "[fe80::1%3]:82"].map(|text| text.parse().unwrap());
        let servers = servers(&[&all, &[address(9)]]);
        let names = Names::new(&servers, RETRY, 0).unwrap();
        assert_eq!(names.addresses_of(&servers[0]), all);
        // A process that died while it wrote.
        names.lock().unwrap().set_word(DIRTY, 1).unwrap();
        assert_eq!(names.addresses_of(&servers[0]), all);
    }

    #[test]
    fn one_round_begins_in_an_interval() {
        let names = Names::new(&servers(&[&[address(1)]]), Duration::from_millis(1), 0).unwrap();
        let before = names.version();
        std::thread::sleep(Duration::from_millis(5));
        let forgotten = AtomicUsize::new(0);
        names.resolve_if_due(|_| _ = forgotten.fetch_add(1, Ordering::Relaxed));
        assert!(forgotten.into_inner() >= 1);
        assert_eq!(names.version(), before + 1);
        assert!(
            names.addresses().unwrap().iter().all(|(_, server)| format!("{:?}", server.address) != "Tcp(10.0.0.1:80)")
        );
        let names = Names::new(&servers(&[&[address(1)]]), Duration::from_secs(3600), 0).unwrap();
        names.resolve_if_due(|_| panic!("it is not due"));
        assert!(names.version() == 0 && names.time_until_due() > Duration::from_secs(3000));
        let names = Names::new(&servers(&[&[]]), Duration::from_secs(3600), 0).unwrap();
        assert!(names.time_until_due() <= RETRY, "a name without an address is tried soon");
    }
}
