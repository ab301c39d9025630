//! Under a service manager: listeners that it hands over, and the messages that it gets. The test takes systemd's part.

use std::fs;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsRawFd, OwnedFd};
use std::process::Command;
use std::time::Duration;

use super::harness::*;

/// Starts a server that gets these listeners, as systemd passes them: from descriptor 3 on, and announced to its process
/// ID. The shell makes both true, and becomes the server.
fn handing_over(listeners: &[&TcpListener], config: &str) -> Server {
    let inherited: Vec<OwnedFd> = listeners.iter().map(|listener| inheritable(listener)).collect();
    let moves = inherited.iter().enumerate().map(|(n, listener)| format!("{}<&{}", 3 + n, listener.as_raw_fd()));
    let moves: Vec<String> = moves.collect();
    let script = format!("exec {}; LISTEN_PID=$$ exec \"$0\" \"$@\"", moves.join(" "));
    let mut command = Command::new("bash");
    command.args(["-c", &script, program().get_program().to_str().unwrap(), "serve", "--config", config]);
    command.env("LISTEN_FDS", listeners.len().to_string()).env("LISTEN_FDNAMES", "first:second");
    Server::spawn(command)
}

/// Duplicates a listener to a number that the shell does not use, for programs that this process starts.
fn inheritable(listener: &TcpListener) -> OwnedFd {
    let copy = rustix::io::fcntl_dupfd_cloexec(listener, 100).unwrap();
    rustix::io::fcntl_setfd(&copy, rustix::io::FdFlags::empty()).unwrap();
    copy
}

fn bound() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

fn site() -> Site {
    let site = Site::new();
    site.file("site/a.txt", "hello");
    site
}

/// Writes the configuration with these addresses, and returns its path.
fn configure(site: &Site, addresses: &[SocketAddr], rest: &str) -> String {
    let listen: Vec<String> = addresses.iter().map(|address| format!("\"{address}\"")).collect();
    let toml = format!("root = \"site\"\nlisten = [{}]\n{rest}", listen.join(", "));
    site.file("amped.toml", toml).to_str().unwrap().to_owned()
}

#[test]
fn listener_that_was_handed_over_is_not_bound_anew() {
    for workers in crews() {
        let site = site();
        let (listener, address) = bound();
        let config = configure(&site, &[address], &format!("workers = {workers}\n"));
        // It waits since before the server was started.
        let mut early = Client::connect(address);
        early.send_request("GET", "/a.txt", &[]);
        let mut server = handing_over(&[&listener], &config);
        assert_eq!(server.address, address);
        for _ in 0..20 {
            assert_eq!(server.get("/a.txt").text(), "hello");
        }
        assert_eq!(early.response("GET").text(), "hello");
        drop(early);
        let sockets = |server: &Server| {
            let open = server.descriptors();
            let name = fs::read_link(format!("/proc/self/fd/{}", listener.as_raw_fd())).unwrap();
            open.into_iter().filter(|target| *target == name).count()
        };
        assert!(sockets(&server) > 0, "another socket listens");
        assert!(!server.said().contains("the configuration does not"), "{}", server.said());

        // The service manager still listens after the end of the server, so a connection waits for the next one.
        server.signal("TERM");
        assert_eq!(server.wait().code(), Some(0), "{}", server.said());
        let mut waiting = Client::connect(address);
        waiting.send_request("GET", "/a.txt", &[]);
        let server = handing_over(&[&listener], &config);
        assert_eq!(waiting.response("GET").text(), "hello");
        drop(server);
    }
}

#[test]
fn unused_listener_is_reported_and_used_after_reload() {
    let site = site();
    let ((first, first_address), (second, second_address)) = (bound(), bound());
    let config = configure(&site, &[first_address], "");
    let server = handing_over(&[&first, &second], &config);
    let text = format!("the service manager listens on {second_address} (second), and the configuration does not");
    server.wait_for(&text);
    assert_eq!(server.said().matches("the service manager listens on").count(), 1, "{}", server.said());
    assert_eq!(server.get("/a.txt").text(), "hello");
    let mut waiting = Client::connect(second_address);
    waiting.send_request("GET", "/a.txt", &[]);
    for addresses in [&[first_address, second_address][..], &[first_address], &[second_address, first_address]] {
        configure(&site, addresses, "");
        let before = server.said().len();
        server.signal("HUP");
        wait_until("the reload", || server.said()[before..].contains("the new configuration is in force"));
    }
    assert_eq!(waiting.response("GET").text(), "hello");
    assert_eq!(Client::connect(second_address).get("/a.txt").text(), "hello");
}

#[test]
fn other_inherited_descriptors_are_closed_beside_listeners() {
    let site = site();
    let (listener, address) = bound();
    let config = configure(&site, &[address], "");
    // Passed on as well, but not announced.
    let (other, _) = bound();
    let _other = inheritable(&other);
    let server = handing_over(&[&listener], &config);
    let name = fs::read_link(format!("/proc/self/fd/{}", other.as_raw_fd())).unwrap();
    assert!(!server.descriptors().contains(&name), "{:?}", server.descriptors());
}

#[test]
fn service_manager_is_notified_of_start_reload_and_stop() {
    let site = site();
    let config = configure(&site, &[], "");
    let listening = |rest: &str| {
        fs::write(&config, format!("root = \"site\"\nlisten = [\"127.0.0.1:0\"]\n{rest}")).unwrap();
    };
    listening("");
    let manager = ServiceManager::new();
    let mut server = manager.start(&config, &[]);
    let ready = format!("READY=1\nSTATUS=serving on {}\n", server.address);
    assert_eq!(manager.next(), ready);
    assert_eq!(server.get("/a.txt").text(), "hello");

    let monotonic_us = || {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        now.tv_sec as u64 * 1_000_000 + now.tv_nsec as u64 / 1000
    };
    for (rest, outcome) in [("", ""), ("nonsense = 1\n", "; the last reload failed, see the log"), ("", "")] {
        listening(rest);
        let before = monotonic_us();
        server.signal("HUP");
        let reloading = manager.next();
        let lines: Vec<&str> = reloading.lines().collect();
        let [begin, time, _] = lines[..] else { panic!("{reloading}") };
        assert_eq!(begin, "RELOADING=1");
        let time: u64 = time.strip_prefix("MONOTONIC_USEC=").unwrap().parse().unwrap();
        assert!((before..=monotonic_us()).contains(&time), "{time} is not between {before} and now");
        assert_eq!(manager.next(), format!("{}{outcome}\n", ready.trim_end()));
    }
    server.signal("TERM");
    assert!(manager.next().starts_with("STOPPING=1\n"));
    assert_eq!(server.wait().code(), Some(0));
    // Nothing else was sent: without WATCHDOG_USEC there is no watchdog.
    assert_eq!(manager.next_within(Duration::from_millis(1)), None);
}

#[test]
fn watchdog_is_pinged_while_server_has_nothing_to_do() {
    let site = site();
    let config = configure(&site, &[], "");
    fs::write(&config, "root = \"site\"\nlisten = [\"127.0.0.1:0\"]\n").unwrap();
    let manager = ServiceManager::new();
    let _server = manager.start(&config, &[("WATCHDOG_USEC", "200000")]);
    assert!(manager.next().starts_with("READY=1\n"));
    for _ in 0..10 {
        assert_eq!(manager.next(), "WATCHDOG=1\n");
    }
    // For another process, as a program that a supervised one has started sees it.
    let other = ServiceManager::new();
    let _server = other.start(&config, &[("WATCHDOG_USEC", "200000"), ("WATCHDOG_PID", "1")]);
    assert!(other.next().starts_with("READY=1\n"));
    assert_eq!(other.next_within(Duration::from_secs(1)), None);
}
