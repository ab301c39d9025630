//! Backends that have a name, whose addresses change. The name is in `/etc/hosts` of the server's own mount namespace.

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use super::harness::*;
use super::http_backends::Backend;

/// A file of hosts, which is removed with its site.
fn hosts(site: &Site, text: &str) -> PathBuf {
    let path = site.path().join("hosts");
    fs::write(&path, text).unwrap();
    path
}

/// Serves a site that forwards everything to `app.test`.
fn serve(site: &Site, hosts: &Path, port: u16, keys: &str) -> Server {
    need_root("gives the server a mount namespace");
    let config = site.path().with_extension("toml");
    let toml = format!(
        "listen = ['127.0.0.1:0']\n[contain]\nseccomp = 'kill'\n[[site]]\nroot = {:?}\n[[site.app]]\nmatch = '/**'\n\
         http = 'app.test:{port}'\nresolve = '50ms'\n{keys}\n",
        site.path(),
    );
    fs::write(&config, toml).unwrap();
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", "mount --bind \"$0\" /etc/hosts && exec \"$@\""]).arg(hosts);
    command.arg(program().get_program()).args(["serve", "--config", config.to_str().unwrap()]);
    Server::spawn(command)
}

/// Listeners with the same port at these addresses.
fn same_port<const N: usize>(addresses: [&str; N]) -> [TcpListener; N] {
    for _ in 0..100 {
        let first = TcpListener::bind((addresses[0], 0)).unwrap();
        let port = first.local_addr().unwrap().port();
        let others: Vec<_> =
            addresses[1..].iter().map_while(|address| TcpListener::bind((*address, port)).ok()).collect();
        let all: Vec<TcpListener> = std::iter::once(first).chain(others).collect();
        if let Ok(all) = all.try_into() {
            return all;
        }
    }
    panic!("no port is free at {addresses:?}");
}

/// Waits until requests reach exactly these backends.
fn wait_for(client: &mut Client, expected: &[&str]) {
    wait_until(&format!("requests at {expected:?}"), || {
        let mut found: Vec<String> = (0..20).map(|_| client.get("/").text()).collect();
        found.sort();
        found.dedup();
        found == expected
    });
}

#[test]
fn requests_follow_the_name_of_a_backend() {
    let site = Site::new();
    let hosts = hosts(&site, "127.0.0.1 app.test\n");
    let [first, second] = same_port(["127.0.0.1", "127.0.0.2"]);
    let port = first.local_addr().unwrap().port();
    let (is_held, has_arrived) = (Arc::new(AtomicBool::new(true)), Arc::new(AtomicBool::new(false)));
    let (held, seen) = (Arc::clone(&is_held), Arc::clone(&has_arrived));
    let _first = Backend::at(first, move |_, peer| {
        while let Some(arrived) = peer.request() {
            seen.fetch_or(arrived.line.contains("/held"), Ordering::Relaxed);
            while arrived.line.contains("/held") && held.load(Ordering::Relaxed) {
                thread::sleep(Duration::from_millis(5));
            }
            peer.send("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nfirst");
        }
    });
    let _second = Backend::named_at(second, "second");
    let server = serve(&site, &hosts, port, "");
    let (mut client, mut other) = (server.connect(), server.connect());
    wait_for(&mut client, &["first"]);
    other.send_request("GET", "/held", &[]);
    wait_until("the request to begin", || has_arrived.load(Ordering::Relaxed));
    fs::write(&hosts, "127.0.0.2 app.test\n").unwrap();
    wait_for(&mut client, &["second"]);
    server.wait_for(&format!("the backend app.test:{port} is now at 127.0.0.2:{port}\n"));
    // A request that has begun stays where it is.
    is_held.store(false, Ordering::Relaxed);
    assert_eq!(other.response("GET").text(), "first");
    fs::write(&hosts, "127.0.0.2 app.test\n127.0.0.1 app.test\n").unwrap();
    wait_for(&mut client, &["first", "second"]);
    // The name server has failed.
    fs::write(&hosts, "\n").unwrap();
    thread::sleep(Duration::from_millis(300));
    wait_for(&mut client, &["first", "second"]);
}

#[test]
fn server_starts_before_its_backend_has_an_address() {
    let site = Site::new();
    let hosts = hosts(&site, "\n");
    let [listener] = same_port(["127.0.0.1"]);
    let port = listener.local_addr().unwrap().port();
    let _backend = Backend::named_at(listener, "found");
    let server = serve(&site, &hosts, port, "");
    let said = format!("cannot resolve the backend app.test:{port}; its requests get 502 until that succeeds\n");
    assert!(server.said().contains(&said), "{}", server.said());
    assert_eq!(server.get("/").status, 502);
    fs::write(&hosts, "127.0.0.1 app.test\n").unwrap();
    wait_for(&mut server.connect(), &["found"]);
}

#[test]
fn new_address_is_not_unhealthy_because_another_one_was() {
    let site = Site::new();
    let hosts = hosts(&site, "127.0.0.1 app.test\n127.0.0.2 app.test\n");
    let [first, second, third] = same_port(["127.0.0.1", "127.0.0.2", "127.0.0.3"]);
    let port = first.local_addr().unwrap().port();
    let checks = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&checks);
    let _sick = Backend::at(second, move |_, peer| {
        while peer.request().is_some() {
            counted.fetch_add(1, Ordering::Relaxed);
            peer.send("HTTP/1.1 500 Sick\r\nContent-Length: 4\r\n\r\nsick");
        }
    });
    let _backends = [Backend::named_at(first, "first"), Backend::named_at(third, "third")];
    let server = serve(&site, &hosts, port, "health = { path = '/', interval = '100ms', timeout = '100ms' }");
    let mut client = server.connect();
    wait_for(&mut client, &["first"]);
    fs::write(&hosts, "127.0.0.1 app.test\n127.0.0.3 app.test\n").unwrap();
    wait_for(&mut client, &["first", "third"]);
    // Nor is the old one checked any more.
    let mut before = 0;
    wait_until("the end of its checks", || {
        before = checks.load(Ordering::Relaxed);
        thread::sleep(Duration::from_millis(500));
        checks.load(Ordering::Relaxed) == before
    });
    fs::write(&hosts, "127.0.0.1 app.test\n127.0.0.2 app.test\n").unwrap();
    wait_until("the old one to be checked again", || checks.load(Ordering::Relaxed) > before);
    wait_for(&mut client, &["first"]);
}
