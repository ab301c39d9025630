//! Free ports of loopback for servers that cannot choose one themselves, for several test programs.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher as _;
use std::mem;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr as UnixAddr, UnixListener};

/// Listens on a port that no other test gets until this process ends. Outgoing connections, and listeners whose port the kernel
/// chooses, get ports from 32768 on: one of those could be taken before the server of a test has it.
pub fn listen() -> TcpListener {
    let candidates = std::iter::repeat_with(|| 10_000 + (RandomState::new().hash_one(0) % 20_000) as u16);
    let reserved = |port: u16| {
        // The name belongs to the process that listens there.
        let name = UnixAddr::from_abstract_name(format!("amped-test-port-{port}")).ok()?;
        let own = UnixListener::bind_addr(&name).ok()?;
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).ok()?;
        mem::forget(own);
        Some(listener)
    };
    candidates.take(1000).find_map(reserved).unwrap()
}

/// Addresses that are free now.
pub fn free_addresses<const N: usize>() -> [SocketAddr; N] {
    let listeners = [(); N].map(|()| listen());
    listeners.each_ref().map(|listener| listener.local_addr().unwrap())
}
