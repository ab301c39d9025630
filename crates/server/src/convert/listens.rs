//! Addresses: `listen`, and which servers can share those of one configuration.
//!
//! A site is reached by its name at all addresses. So a server at other addresses than the rest, perhaps to restrict
//! who can reach it, must not become a site.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use serde_json::json;

use super::page::Page;
use super::tree::Directive;

/// How connections to an address begin.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
struct Start {
    tls: bool,
    proxy: bool,
}

/// Sets the addresses of all servers.
pub(super) fn listen(page: &mut Page, servers: &[&Directive]) {
    let mut all: BTreeMap<(u16, IpAddr), Start> = BTreeMap::new();
    let mut wildcards = Vec::new();
    for server in servers {
        let own: Vec<&Directive> = server.inner().iter().filter(|inner| inner.name == "listen").collect();
        if own.is_empty() {
            all.entry((80, [0, 0, 0, 0].into())).or_default();
        }
        for directive in own {
            let has = |word: &str| directive.args.iter().any(|arg| arg == word);
            let start = Start { tls: has("ssl") || has("quic"), proxy: has("proxy_protocol") };
            let Some(address) = address(directive.arg(0)) else {
                page.note(directive, "`listen` has an IP address and a port");
                continue;
            };
            if has("quic") {
                page.note(directive, "no HTTP/3");
                continue;
            }
            if address.1 == IpAddr::from([0_u16; 8]) && !has("ipv6only=off") {
                wildcards.push((address.0, directive));
            }
            if *all.entry(address).or_insert(start) != start {
                page.note(directive, "all sites at an address have TLS and the PROXY protocol, or none");
            }
        }
    }
    let both: BTreeSet<u16> = all.keys().map(|(port, _)| *port).collect();
    let [v4, v6] = [IpAddr::from([0; 4]), IpAddr::from([0_u16; 8])];
    let mut list = Vec::new();
    for port in both {
        // A wildcard includes each address.
        let has_wildcard = |all: &BTreeMap<(u16, IpAddr), Start>, ip: &IpAddr| {
            all.contains_key(&(port, v6)) || (ip.is_ipv4() && all.contains_key(&(port, v4)))
        };
        let own = all.range((port, v4)..).take_while(|((other, _), _)| *other == port).map(|((_, ip), _)| *ip);
        let included: Vec<IpAddr> = own.filter(|ip| !ip.is_unspecified() && has_wildcard(&all, ip)).collect();
        included.iter().for_each(|ip| _ = all.remove(&(port, *ip)));
        // nginx's IPv6 wildcard does not include IPv4.
        if all.contains_key(&(port, v6)) && !all.contains_key(&(port, v4)) {
            wildcards.iter().filter(|(other, _)| *other == port).for_each(|(_, directive)| {
                page.note(directive, "a wildcard includes IPv4; name the address otherwise");
            });
        }
        // Both wildcards are one socket.
        if all.contains_key(&(port, v4)) && all.get(&(port, v4)) == all.get(&(port, v6)) {
            all.remove(&(port, v4));
        }
        for ((_, ip), start) in all.range((port, v4)..).take_while(|((other, _), _)| *other == port) {
            let host = match ip {
                ip if *ip == v6 => "*".to_owned(),
                IpAddr::V6(ip) => format!("[{ip}]"),
                IpAddr::V4(ip) => ip.to_string(),
            };
            let (tls, proxy) = (if start.tls { " tls" } else { "" }, if start.proxy { " proxy" } else { "" });
            list.push(format!("{host}:{port}{tls}{proxy}"));
        }
    }
    if !list.is_empty() {
        page.top.insert("listen".to_owned(), json!(list));
    }
}

/// The address and port of a `listen`.
fn address(text: &str) -> Option<(u16, IpAddr)> {
    let any = IpAddr::from([0, 0, 0, 0]);
    if let Ok(port) = text.parse::<u16>() {
        return Some((port, any));
    }
    if let Some((ip, port)) = text.strip_prefix('[').and_then(|text| text.split_once(']')) {
        let port = if port.is_empty() { 80 } else { port.strip_prefix(':')?.parse().ok()? };
        return Some((port, IpAddr::V6(ip.parse().ok()?)));
    }
    let (host, port) = text.split_once(':').map_or((text, Some(80)), |(host, port)| (host, port.parse().ok()));
    let ip = match host {
        "*" => any,
        "localhost" => [127, 0, 0, 1].into(),
        host => host.parse().ok()?,
    };
    Some((port?, ip))
}

/// The port of a `listen`; `None` if it has none.
pub(super) fn port(listen: &Directive) -> Option<u16> {
    address(listen.arg(0)).map(|(port, _)| port)
}

/// Where a server is reached: an address, or `None` for all, and a port, or `None` for 80 and 443.
type Reach = BTreeSet<(Option<IpAddr>, Option<u16>)>;

fn reach(server: &Directive) -> Reach {
    let own: Vec<&Directive> = server.inner().iter().filter(|inner| inner.name == "listen").collect();
    if own.is_empty() {
        return Reach::from([(None, None)]);
    }
    let addresses = own.iter().filter_map(|directive| address(directive.arg(0)));
    let of = |(port, ip): (u16, IpAddr)| {
        ((!ip.is_unspecified()).then_some(ip), (![80, 443].contains(&port)).then_some(port))
    };
    addresses.map(of).collect()
}

/// Returns the servers at the addresses of the most reachable one, and the others.
pub(super) fn shared(servers: Vec<&Directive>) -> (Vec<&Directive>, Vec<&Directive>) {
    let all: Vec<Reach> = servers.iter().map(|server| reach(server)).collect();
    let rank = |reach: &Reach| {
        let is_local = |(ip, _): &(Option<IpAddr>, Option<u16>)| ip.is_some_and(|ip| ip.is_loopback());
        let has_wildcard = reach.iter().any(|(ip, _)| ip.is_none());
        (!reach.contains(&(None, None)), !has_wildcard, reach.iter().all(is_local))
    };
    // The first of several with the same rank.
    let Some(widest) = all.iter().min_by_key(|reach| rank(reach)).cloned() else { return (servers, Vec::new()) };
    let is_public = |reach: &Reach| reach.contains(&(None, None));
    let mut reaches = all.into_iter();
    servers
        .into_iter()
        .partition(|_| reaches.next().is_some_and(|reach| reach == widest || is_public(&reach) && is_public(&widest)))
}

/// Whether a server is reached with TLS.
pub(super) fn has_tls(server: &Directive) -> bool {
    let is_tls = |inner: &Directive| inner.name == "listen" && inner.args.iter().any(|word| word == "ssl");
    server.inner().iter().any(is_tls)
}

/// Whether a server is reached with TLS only.
pub(super) fn has_only_tls(server: &Directive) -> bool {
    let mut all = server.inner().iter().filter(|inner| inner.name == "listen");
    has_tls(server) && all.all(|inner| inner.args.iter().any(|word| word == "ssl" || word == "quic"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::convert::tree;

    #[test]
    fn servers_at_other_addresses_are_left_out() {
        let check = |listens: &[&str], expected: &[&str]| {
            let text: Vec<String> = listens.iter().map(|listen| format!("server {{ {listen} }}")).collect();
            let servers = tree::parse(&text.concat()).expect("valid");
            let (kept, _) = shared(servers.iter().collect());
            let kept: Vec<String> =
                kept.iter().map(|server| server.inner().iter().map(Directive::text).collect()).collect();
            assert_eq!(kept, expected, "{listens:?}");
        };
        check(&["listen 80;", "listen 443 ssl;", ""], &["listen 80;", "listen 443 ssl;", ""]);
        check(&["listen 127.0.0.1:80;", "listen 80;"], &["listen 80;"]);
        check(&["listen 8081;", "listen [::]:80;"], &["listen [::]:80;"]);
        check(&["listen 127.0.0.1:81;", "listen 127.0.0.1:82;"], &["listen 127.0.0.1:81;"]);
        check(&["listen 127.0.0.1:80;", "listen 192.0.2.1:80;"], &["listen 192.0.2.1:80;"]);
        check(&["listen 80; listen 8080;", "listen 443 ssl;"], &["listen 80;listen 8080;", "listen 443 ssl;"]);
    }
}
