//! Limits of what a client may have open at a time: connections.
//!
//! The tests are clients at several addresses of the loopback network, or those that the PROXY protocol names.

use std::fs;
use std::io::Write;
use std::net::Ipv4Addr;
use std::process::Command;

use super::harness::*;

fn site() -> Site {
    let site = Site::new();
    site.file("a.txt", "hello");
    let_files_settle();
    site
}

/// Connects from this address of the loopback network.
fn connect_from(server: &Server, last: u8) -> Client {
    Client::connect_from(server.address, Ipv4Addr::new(127, 0, 0, last))
}

/// Whether the server takes this connection.
fn is_served(client: &mut Client) -> bool {
    client.try_get("/a.txt").is_some_and(|response| response.text() == "hello")
}

#[test]
fn excess_connections_of_a_client_are_closed() {
    let site = site();
    let server = Server::configured(&site, "[limits]\nmax_connections_per_client = 3");
    let mut clients: Vec<Client> = (0..3).map(|_| connect_from(&server, 2)).collect();
    assert!(clients.iter_mut().all(is_served));
    for _ in 0..4 {
        assert!(!is_served(&mut connect_from(&server, 2)));
    }
    assert!(is_served(&mut connect_from(&server, 3)));
    assert!(clients.iter_mut().all(is_served), "they were not closed for the others");
    assert_eq!(server.report("connections_limited"), 4);
    assert_eq!(server.said().matches("127.0.0.2 has 3 connections").count(), 1, "{}", server.said());
    // A closed one makes room for another, and for one only.
    clients.pop();
    wait_until("room for a connection", || {
        let mut client = connect_from(&server, 2);
        let is_served = is_served(&mut client);
        clients.extend(is_served.then_some(client));
        is_served
    });
    assert!(!is_served(&mut connect_from(&server, 2)));
}

#[test]
fn excess_connection_does_not_displace_idle_ones_of_others() {
    if is_pool() {
        return;
    }
    let site = site();
    let server = Server::configured(&site, "[limits]\nmax_connections = 2\nmax_connections_per_client = 1");
    let (mut one, mut other) = (connect_from(&server, 2), connect_from(&server, 3));
    assert!(is_served(&mut one) && is_served(&mut other));
    assert!(!is_served(&mut connect_from(&server, 2)));
    assert!(is_served(&mut one) && is_served(&mut other));
}

#[test]
fn connections_of_killed_process_do_not_count_any_more() {
    if !has_processes() {
        return;
    }
    let site = site();
    let server = Server::configured(&site, "[limits]\nmax_connections_per_client = 2");
    let mut clients = [connect_from(&server, 2), connect_from(&server, 2)];
    assert!(clients.iter_mut().all(is_served) && !is_served(&mut connect_from(&server, 2)));
    // A process with a connection has a socket more than the others.
    let sockets =
        |pid: &u32| descriptors_of(*pid).iter().filter(|link| link.to_string_lossy().starts_with("socket:")).count();
    let holder = server.children().into_iter().max_by_key(sockets).unwrap();
    assert!(Command::new("kill").args(["-KILL", &holder.to_string()]).status().unwrap().success());
    wait_until("room for a connection", || is_served(&mut connect_from(&server, 2)));
    assert_eq!(clients.iter_mut().filter_map(|client| client.try_get("/a.txt")).count(), 1);
    // The other one still counts.
    let held = connect_from(&server, 2);
    wait_until("the second connection", || !is_served(&mut connect_from(&server, 2)));
    drop(held);
}

#[test]
fn client_is_that_of_the_proxy_protocol_and_ipv6_counts_by_64_bits() {
    let site = site();
    let root = site.path();
    let text = format!(
        "listen = ['127.0.0.1:0 proxy']\ntrusted_proxies = ['127.0.0.0/8']\n\
         [limits]\nmax_connections_per_client = 1\n[[site]]\nroot = {root:?}\n"
    );
    let config = site.path().with_extension("toml");
    fs::write(&config, text).unwrap();
    let server = Server::start(&["--config", config.to_str().unwrap()]);
    let connect = |header: &str| {
        let client = Client::connect(server.address);
        // The header precedes a TLS session.
        client.stream().write_all(header.as_bytes()).unwrap();
        client
    };
    let of = |client: &str| connect(&format!("PROXY TCP6 {client} 2001:db8::99 1 2\r\n"));
    let mut held = of("2001:db8::1");
    assert!(is_served(&mut held));
    assert!(!is_served(&mut of("2001:db8::ffff:1:2:3")));
    assert!(is_served(&mut of("2001:db8:0:1::1")));
    // Health checks of the proxy itself.
    let mut own: Vec<Client> = (0..3).map(|_| connect("PROXY UNKNOWN\r\n")).collect();
    assert!(own.iter_mut().all(is_served) && is_served(&mut held));
    assert_eq!(server.report("connections_limited"), 1);
}

#[test]
fn connections_of_trusted_proxy_are_not_limited() {
    let site = site();
    let text = "trusted_proxies = ['127.0.0.2']\n[limits]\nmax_connections_per_client = 1";
    let server = Server::configured(&site, text);
    let mut clients: Vec<Client> = (0..4).map(|_| connect_from(&server, 2)).collect();
    assert!(clients.iter_mut().all(is_served));
    let mut client = connect_from(&server, 3);
    assert!(is_served(&mut client) && !is_served(&mut connect_from(&server, 3)));
}
