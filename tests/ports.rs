//! Free ports of loopback for servers that cannot choose one themselves, for several test programs.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher as _;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};

/// Listens on a free port. Outgoing connections, and listeners whose port the kernel chooses, get ports from 32768 on: one of those could be
/// taken before the server of a test has it.
pub fn listen() -> TcpListener {
    let candidates = std::iter::repeat_with(|| 10_000 + (RandomState::new().hash_one(0) % 20_000) as u16);
    candidates.take(1000).find_map(|port| TcpListener::bind((Ipv4Addr::LOCALHOST, port)).ok()).unwrap()
}

/// Addresses that are free now.
pub fn free_addresses<const N: usize>() -> [SocketAddr; N] {
    let listeners = [(); N].map(|()| listen());
    listeners.each_ref().map(|listener| listener.local_addr().unwrap())
}
