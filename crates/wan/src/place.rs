//! Creates a router's devices: network namespaces with one device each, and their settings.
//!
//! Nothing here outlives the program. A TUN device disappears with its descriptor, together with its addresses and
//! routes; a namespace without a name disappears when no process is in it or holds it. Hence even SIGKILL leaves
//! nothing behind except programs that ran in such a namespace and started others: these are found by the mark of their
//! namespace ([`Mark`]) and killed, at the end or by the next run ([`Mark::end_orphans`]).

use std::fmt::Write as _;
use std::fs;
use std::io::{self, Write as _};
use std::net::{IpAddr, Ipv6Addr};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use amped_measure::Failure;
use amped_sys::netns::{self, NetNs};
use amped_sys::process;
use amped_sys::tun::{self, Tun};
use ipnet::IpNet;

use crate::router::{Port, Statistics};

/// The settings of a namespace's device and its TCP.
#[derive(Clone, Debug)]
pub struct DeviceSettings {
    /// The name, at most 15 bytes.
    pub name: String,
    /// The largest packet, in bytes at layer 3.
    pub mtu: u32,
    /// Addresses of the device.
    pub addresses: Vec<IpAddr>,
    /// The destinations reachable through it.
    pub routes: Vec<IpNet>,
    /// TCP's congestion control on these routes.
    pub congestion_control: String,
}

/// Length of a device's queue, in packets, until the router reads them. An ordinary thread may not run for 12 ms
/// (measured), in which 10 Gbit/s bring 10,000 packets of 1500 bytes.
const DEVICE_QUEUE_PACKETS: u32 = 10_000;

/// Creates a device in the namespace of the calling thread, and brings it up.
///
/// # Errors
/// When permission is missing, an address or a route is in use, or `ip` is missing; the text says what to do.
pub fn make_device(settings: &DeviceSettings) -> Result<Port, Failure> {
    let DeviceSettings { name, mtu, addresses, routes, congestion_control } = settings;
    let tun = Tun::create(name).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => Failure::failed(
            "cannot open /dev/net/tun: it does not exist; load the module (modprobe tun), or in a container pass the \
             device (--device /dev/net/tun)",
        ),
        // Root of a namespace only gets this error too.
        io::ErrorKind::PermissionDenied if tun::is_file_refused(&error) => Failure::failed(
            "cannot open /dev/net/tun: permission denied; use sudo, or let root permit it to all users (chmod 666 \
             /dev/net/tun)",
        ),
        io::ErrorKind::PermissionDenied => Failure::failed(NEEDS_ROOT),
        _ => Failure::failed(format!("cannot create the network device {name}: {error}")),
    })?;
    let statistics = Statistics::open(name).map_err(Failure::io("read /proc/net/dev"))?;
    let mut batch = format!(
        "link set dev {name} mtu {mtu} txqueuelen {DEVICE_QUEUE_PACKETS} addrgenmode none\nlink set dev {name} up\n"
    );
    for address in addresses {
        // The address is unique here, so duplicate address detection is unnecessary (RFC 4862, 5.4).
        let nodad = if address.is_ipv6() { " nodad" } else { "" };
        let _ = writeln!(batch, "addr add {} dev {name}{nodad}", IpNet::from(*address));
    }
    for route in routes {
        // A metric of the route (ip-route(8), `congctl`), not `net.ipv4.tcp_congestion_control`: the host's setting
        // must not change, and in other namespaces the kernel refuses every algorithm that was never the host's
        // default, for example cubic if that is bbr (Linux, `tcp_set_default_congestion_control`).
        let source = addresses.iter().find(|address| address.is_ipv6() == route.addr().is_ipv6());
        let source = source.map_or(String::new(), |address| format!(" src {address}"));
        let _ = writeln!(batch, "route add {route} dev {name}{source} congctl {congestion_control}");
    }
    ip(&batch)?;
    Ok(Port { name: name.clone(), tun, statistics })
}

/// The remedy for missing permissions.
pub const NEEDS_ROOT: &str = "changing this host's network requires root (CAP_NET_ADMIN and CAP_SYS_ADMIN): use sudo, \
     or a separate test bed (ammeter wan up), or: unshare -rn sh -c 'ip link set lo up; SERVER & ammeter wan ... -- \
     CLIENT'";

/// Gives an ordinary user a user namespace of their own, where the kernel allows that:
/// everything created from then on is separate from this host and belongs to the user. Does
/// nothing for a user who may configure networks anyway. Call it before starting any thread.
///
/// # Errors
/// When the kernel does not allow it.
pub fn be_allowed() -> Result<(), Failure> {
    let status = fs::read_to_string("/proc/self/status").map_err(Failure::io("read /proc/self/status"))?;
    let effective = status.lines().find_map(|line| u64::from_str_radix(line.strip_prefix("CapEff:")?.trim(), 16).ok());
    // capabilities(7): CAP_NET_ADMIN is 12, CAP_SYS_ADMIN 21.
    if effective.is_some_and(|set| set >> 12 & set >> 21 & 1 == 1) {
        return Ok(());
    }
    netns::become_root_of_new_users().map_err(|error| {
        Failure::failed(format!(
            "a network namespace requires root here, since user namespaces are not available ({error}): use sudo"
        ))
    })
}

/// Runs these lines as commands of `ip` (iproute2), in the namespace of the calling thread.
///
/// # Errors
/// When `ip` is missing or a command fails: the line, and its error message.
pub fn ip(batch: &str) -> Result<(), Failure> {
    let mut ip = Command::new("ip")
        .args(["-batch", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| {
            Failure::failed(format!("cannot start `ip`: {error}; install it (apt-get install iproute2)"))
        })?;
    // If it exits early, its error message says why.
    let _ = ip.stdin.take().map(|mut stdin| stdin.write_all(batch.as_bytes()));
    let output = ip.wait_with_output().map_err(Failure::io("wait for `ip`"))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    // The message ends with "Command failed -:N", where N is the line.
    let number = said.rsplit(':').next().and_then(|n| n.trim().parse::<usize>().ok()).unwrap_or(1);
    let line = batch.lines().nth(number - 1).unwrap_or_default();
    let error = said.lines().next().unwrap_or_default();
    Err(Failure::failed(format!("`ip {line}` failed: {error}")))
}

/// Calls `make` in a thread in a new namespace of this owner; returns its result and the namespace.
///
/// # Errors
/// Without CAP_SYS_ADMIN; errors of `make`.
pub fn in_new_namespace<T: Send + 'static>(
    mark: Mark,
    make: impl FnOnce() -> Result<T, Failure> + Send + 'static,
) -> Result<(T, NetNs), Failure> {
    in_thread(move || {
        unshare(mark)?;
        let namespace = NetNs::current().map_err(Failure::io("hold a network namespace"))?;
        Ok((make()?, namespace))
    })
}

/// Moves the calling thread into a new namespace of this owner, with the loopback device up.
///
/// # Errors
/// Without CAP_SYS_ADMIN; when `ip` is missing.
pub fn unshare(mark: Mark) -> Result<(), Failure> {
    NetNs::unshare().map_err(|error| match error.kind() {
        io::ErrorKind::PermissionDenied => Failure::failed(NEEDS_ROOT),
        _ => Failure::failed(format!("cannot create a network namespace: {error}")),
    })?;
    // Deprecated from the start, so it is never chosen as a source address (RFC 4862, 5.5.4).
    let address = mark.address();
    // With AI_ADDRCONFIG, which h2o sets, getaddrinfo(3) does not resolve 127.0.0.1 if that is the only IPv4 address
    // and there are IPv6 addresses.
    ip(&format!("link set dev lo up\naddr add {address} dev lo preferred_lft 0 nodad\naddr add 127.0.0.2/32 dev lo\n"))
}

/// Checks that this kernel has this congestion control algorithm.
///
/// # Errors
/// When it does not, with the names of the available ones.
pub fn check_congestion_control(name: &str) -> Result<(), Failure> {
    let known = fs::read_to_string("/proc/sys/net/ipv4/tcp_available_congestion_control")
        .map_err(Failure::io("read /proc/sys/net/ipv4/tcp_available_congestion_control"))?;
    if known.split_whitespace().any(|known| known == name) {
        return Ok(());
    }
    let known = known.trim();
    Err(Failure::usage(format!(
        "unknown congestion control {name:?}; this kernel has: {known} (try modprobe tcp_{name})"
    )))
}

/// Calls `work` in a thread of its own, which may leave the namespace of this program.
///
/// # Errors
/// When no thread can be started; errors of `work`.
pub fn in_thread<T: Send + 'static>(work: impl FnOnce() -> Result<T, Failure> + Send + 'static) -> Result<T, Failure> {
    let (sender, receiver) = channel();
    let thread = thread::Builder::new()
        .name("namespace".to_owned())
        .spawn(move || {
            // The caller waits for the result.
            let _ = sender.send(work());
        })
        .map_err(Failure::io("start a thread"))?;
    let done = receiver.recv();
    // The thread has ended or is about to.
    let _ = thread.join();
    done.unwrap_or_else(|_| Err(Failure::failed("the thread that created a namespace panicked")))
}

/// Identifies the owner of a namespace, and thereby of the programs in it: an address of its loopback device that
/// contains the process number and start time of its creator. A process number alone would be reused. An environment
/// variable would be lost: `env -i`, sudo and start scripts of servers clear it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    owner: u32,
    born: u64,
}

/// Marks lie in fd77:a33e::/32, of the unique local addresses (RFC 4193), which no class of clients uses.
const MARKS: u128 = 0xfd77_a33e << 96;

impl Mark {
    /// The mark of this program.
    ///
    /// # Errors
    /// When `/proc` is not mounted.
    pub fn own() -> Result<Mark, Failure> {
        let owner = std::process::id();
        let born = birth(owner).ok_or_else(|| Failure::failed("cannot read /proc/self/stat; is /proc mounted?"))?;
        Ok(Mark { owner, born })
    }

    /// Kills all programs in namespaces of this owner (SIGKILL).
    pub fn end_all(self) {
        end(|mark| mark == self);
    }

    /// Kills all programs in namespaces whose owner has ended: leftovers of a killed run.
    pub fn end_orphans() {
        end(|mark| birth(mark.owner) != Some(mark.born));
    }

    fn address(self) -> Ipv6Addr {
        Ipv6Addr::from_bits(MARKS | u128::from(self.owner) << 64 | u128::from(self.born))
    }

    /// The mark of a namespace with these addresses (proc_pid_net(5), `if_inet6`: 32 digits, then more fields).
    fn among(addresses: &str) -> Option<Mark> {
        let bits = addresses.lines().find_map(|line| {
            let bits = u128::from_str_radix(line.split_whitespace().next()?, 16).ok()?;
            (bits >> 96 == MARKS >> 96).then_some(bits)
        })?;
        Some(Mark { owner: (bits >> 64) as u32, born: bits as u64 })
    }
}

/// Kills all programs with a matching mark.
fn end(is_meant: impl Fn(Mark) -> bool) {
    // A program may start another one during the scan, and a killed one takes a moment to disappear.
    for _ in 0..200 {
        let mut are_none = true;
        for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
            if let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok())
                && let Ok(addresses) = fs::read_to_string(entry.path().join("net/if_inet6"))
                && Mark::among(&addresses).is_some_and(&is_meant)
            {
                process::kill(pid);
                are_none = false;
            }
        }
        if are_none {
            return;
        }
        thread::sleep(Duration::from_millis(1));
    }
}

/// The start time of a process, in ticks since boot (proc_pid_stat(5),
/// field 22); `None` if it does not exist or is a zombie.
pub fn birth(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(Path::new("/proc").join(pid.to_string()).join("stat")).ok()?;
    // The name, in parentheses, may contain anything.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    (fields.next()? != "Z").then(|| fields.nth(18)?.parse().ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_round_trip_and_orphans_are_found() {
        let own = Mark::own().expect("/proc is mounted");
        assert_eq!(birth(own.owner), Some(own.born));
        let line = |address: Ipv6Addr| format!("{:032x} 01 80 10 80       lo\n", address.to_bits());
        let text = line(Ipv6Addr::LOCALHOST) + &line(own.address());
        assert_eq!(Mark::among(&text), Some(own));
        let most = Mark { owner: u32::MAX, born: u64::MAX };
        assert_eq!(Mark::among(&line(most.address())), Some(most));
        for bad in ["", "fd77a33e", "x 01 80 10 80 lo", &line(Ipv6Addr::LOCALHOST)] {
            assert_eq!(Mark::among(bad), None, "{bad}");
        }
    }

    /// A program in a namespace of this owner, without any mark of its own.
    fn sleeper(mark: Mark) -> std::process::Child {
        let start = || Command::new("sleep").arg("600").env_clear().spawn().map_err(Failure::io("start sleep"));
        in_new_namespace(mark, start).expect("as root").0
    }

    #[test]
    fn orphaned_program_is_killed() {
        let own = Mark::own().expect("/proc is mounted");
        // An owner that never existed.
        let mut orphan = sleeper(Mark { born: 1, ..own });
        let mut kept = sleeper(own);
        Mark::end_orphans();
        assert!(!orphan.wait().expect("waited").success());
        assert_eq!(kept.try_wait().expect("waitable"), None);
        own.end_all();
        assert!(!kept.wait().expect("waited").success());
    }
}
