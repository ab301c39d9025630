//! Where a router's devices are made: network namespaces with a device each, and what is set in them.
//!
//! Nothing here outlives the program. A TUN device is gone when its descriptor is closed, with its addresses and routes; a
//! namespace without a name when nobody is in it and nobody holds it. So there is nothing to remove after SIGKILL either,
//! but for programs that ran in such a namespace and started others: those are found by the mark in their environment
//! ([`Mark`]) and ended, at the end, or by the next who comes ([`Mark::end_orphans`]).

use std::fmt::{self, Write as _};
use std::fs;
use std::io::{self, Write as _};
use std::net::IpAddr;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc::channel;
use std::thread;

use amped_measure::Failure;
use amped_sys::netns::NetNs;
use amped_sys::process;
use amped_sys::tun::Tun;

use crate::path::Prefix;
use crate::router::{Port, Statistics};

/// How a namespace's device and its TCP are to be.
#[derive(Clone, Debug)]
pub struct DeviceSettings {
    /// The name, at most 15 bytes.
    pub name: String,
    /// The largest packet, in bytes at layer 3.
    pub mtu: u32,
    /// Whether TCP may hand over segments uncut; the models see segments either way.
    pub large_packets: bool,
    /// Addresses of the device.
    pub addresses: Vec<IpAddr>,
    /// Whom it reaches.
    pub routes: Vec<Prefix>,
    /// What TCP's senders do about congestion on these routes.
    pub congestion_control: String,
}

/// Packets that wait in a device until the router reads them. A program that is scheduled like any other may be away for
/// 12 ms (measured), in which 10 Gbit/s bring 10,000 packets of 1500 bytes.
const DEVICE_QUEUE_PACKETS: u32 = 10_000;

/// Makes a device in the namespace of the calling thread, and brings it up.
///
/// # Errors
/// When this user may not, an address or a route is taken, or there is no `ip`; in words that say the way out.
pub fn make_device(settings: &DeviceSettings) -> Result<Port, Failure> {
    let DeviceSettings { name, mtu, large_packets, addresses, routes, congestion_control } = settings;
    let tun = Tun::create(name, *large_packets).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => Failure::failed(
            "cannot open /dev/net/tun: it is not there; load the module (modprobe tun), or in a container pass the device on \
             (--device /dev/net/tun)",
        ),
        io::ErrorKind::PermissionDenied => Failure::failed(NEEDS_ROOT),
        _ => Failure::failed(format!("cannot make the network device {name}: {error}")),
    })?;
    let statistics = Statistics::open(name).map_err(Failure::io("read /proc/net/dev"))?;
    let mut batch = format!(
        "link set dev {name} mtu {mtu} txqueuelen {DEVICE_QUEUE_PACKETS} addrgenmode none\nlink set dev {name} up\n"
    );
    for address in addresses {
        // Nobody else can have it, so there is no need to ask and to wait for answers (RFC 4862, 5.4).
        let nodad = if address.is_ipv6() { " nodad" } else { "" };
        let _ = writeln!(batch, "addr add {} dev {name}{nodad}", Prefix::host(*address));
    }
    for route in routes {
        // A metric of the route (ip-route(8), `congctl`), not `net.ipv4.tcp_congestion_control`: the host's setting is not ours
        // to change, and in other namespaces the kernel refuses every algorithm that the host has not made its default once,
        // so cubic where that is bbr (Linux, `tcp_set_default_congestion_control`).
        let source = addresses.iter().find(|address| address.is_ipv6() == route.is_ipv6());
        let source = source.map_or(String::new(), |address| format!(" src {address}"));
        let _ = writeln!(batch, "route add {route} dev {name}{source} congctl {congestion_control}");
    }
    ip(&batch)?;
    Ok(Port { name: name.clone(), tun, statistics })
}

/// The way out for a user who may not.
pub const NEEDS_ROOT: &str = "a network of its own needs root (CAP_NET_ADMIN and CAP_SYS_ADMIN): use sudo; or, as a user, be \
     root of a namespace in which the server runs too: unshare -rn sh -c 'ip link set lo up; SERVER & ammeter wan ... -- CLIENT'";

/// Has `ip` (iproute2) do what these lines say, in the namespace of the calling thread.
///
/// # Errors
/// When there is no `ip`, or it does not do one of them: the line, and what it says to that.
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
    // One that ends early says why itself.
    let _ = ip.stdin.take().map(|mut stdin| stdin.write_all(batch.as_bytes()));
    let output = ip.wait_with_output().map_err(Failure::io("wait for `ip`"))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    // It ends with "Command failed -:N", N being the line.
    let number = said.rsplit(':').next().and_then(|n| n.trim().parse::<usize>().ok()).unwrap_or(1);
    let line = batch.lines().nth(number - 1).unwrap_or_default();
    let error = said.lines().next().unwrap_or_default();
    Err(Failure::failed(format!("`ip {line}` failed: {error}")))
}

/// Does `make` in a thread that is in a new namespace; returns what it made, and the namespace.
///
/// # Errors
/// Without CAP_SYS_ADMIN; those of `make`.
pub fn in_new_namespace<T: Send + 'static>(
    make: impl FnOnce() -> Result<T, Failure> + Send + 'static,
) -> Result<(T, NetNs), Failure> {
    in_thread(move || {
        unshare()?;
        let namespace = NetNs::current().map_err(Failure::io("hold a network namespace"))?;
        Ok((make()?, namespace))
    })
}

/// Moves the calling thread into a new namespace in which the loopback device is up.
///
/// # Errors
/// Without CAP_SYS_ADMIN; when there is no `ip`.
pub fn unshare() -> Result<(), Failure> {
    NetNs::unshare().map_err(|error| match error.kind() {
        io::ErrorKind::PermissionDenied => Failure::failed(NEEDS_ROOT),
        _ => Failure::failed(format!("cannot make a network namespace: {error}")),
    })?;
    ip("link set dev lo up\n")
}

/// Checks that this kernel has this congestion control.
///
/// # Errors
/// When it has not, with the names of those that it has.
pub fn check_congestion_control(name: &str) -> Result<(), Failure> {
    let known = fs::read_to_string("/proc/sys/net/ipv4/tcp_available_congestion_control")
        .map_err(Failure::io("read /proc/sys/net/ipv4/tcp_available_congestion_control"))?;
    if known.split_whitespace().any(|known| known == name) {
        return Ok(());
    }
    let known = known.trim();
    Err(Failure::usage(format!(
        "no congestion control {name:?}; this kernel has: {known} (modprobe tcp_{name} for more)"
    )))
}

/// Does `work` in a thread of its own, in which it may leave the namespace of this program.
///
/// # Errors
/// When no thread can be had; those of `work`.
pub fn in_thread<T: Send + 'static>(work: impl FnOnce() -> Result<T, Failure> + Send + 'static) -> Result<T, Failure> {
    let (sender, receiver) = channel();
    let thread = thread::Builder::new()
        .name("namespace".to_owned())
        .spawn(move || {
            // The caller waits for it.
            let _ = sender.send(work());
        })
        .map_err(Failure::io("start a thread"))?;
    let done = receiver.recv();
    // It has ended or is about to.
    let _ = thread.join();
    done.unwrap_or_else(|_| Err(Failure::failed("a thread that made a namespace has panicked")))
}

/// What tells whose a program is: a variable in its environment with the number and the birth of the process that started
/// it. A number alone would be somebody else's after a while.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mark {
    owner: u32,
    born: u64,
}

impl Mark {
    /// The name of that variable.
    pub const VARIABLE: &str = "AMMETER_WAN";

    /// This program's own.
    ///
    /// # Errors
    /// When `/proc` is not mounted.
    pub fn own() -> Result<Mark, Failure> {
        let owner = std::process::id();
        let born = birth(owner).ok_or_else(|| Failure::failed("cannot read /proc/self/stat; is /proc mounted?"))?;
        Ok(Mark { owner, born })
    }

    /// Has programs that `command` starts, and those that they start, carry it.
    pub fn put_on(&self, command: &mut Command) {
        command.env(Mark::VARIABLE, self.to_string());
    }

    /// Ends all programs that carry it (SIGKILL).
    pub fn end_all(&self) {
        marked().filter(|(_, mark)| mark == self).for_each(|(pid, _)| process::kill(pid));
    }

    /// Ends all programs whose owner is no more: what was left behind when it was killed.
    pub fn end_orphans() {
        marked().filter(|(_, mark)| birth(mark.owner) != Some(mark.born)).for_each(|(pid, _)| process::kill(pid));
    }

    fn parse(environment: &[u8]) -> Option<Mark> {
        let mut variables = environment.split(|byte| *byte == 0);
        let value = variables.find_map(|text| text.strip_prefix(Mark::VARIABLE.as_bytes())?.strip_prefix(b"="))?;
        let (owner, born) = std::str::from_utf8(value).ok()?.split_once(':')?;
        Some(Mark { owner: owner.parse().ok()?, born: born.parse().ok()? })
    }
}

impl fmt::Display for Mark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.owner, self.born)
    }
}

/// Programs that carry a mark.
fn marked() -> impl Iterator<Item = (u32, Mark)> {
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    processes.filter_map(|entry| {
        let pid = entry.file_name().to_str()?.parse().ok()?;
        Some((pid, Mark::parse(&fs::read(entry.path().join("environ")).ok()?)?))
    })
}

/// When a process was born, in ticks since the machine was (proc_pid_stat(5), field 22); `None` if there is none, or only
/// what its parent has not asked for yet.
fn birth(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(Path::new("/proc").join(pid.to_string()).join("stat")).ok()?;
    // The name, in brackets, may hold anything.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    (fields.next()? != "Z").then(|| fields.nth(18)?.parse().ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks() {
        let own = Mark::own().expect("/proc is mounted");
        assert_eq!(birth(own.owner), Some(own.born));
        let text = format!("A=b\0AMMETER_WAN={}:{}\0C=d", own.owner, own.born);
        assert_eq!(Mark::parse(text.as_bytes()), Some(own));
        for bad in [&b"AMMETER_WAN=1"[..], b"XAMMETER_WAN=1:2", b"AMMETER_WAN=:", b""] {
            assert_eq!(Mark::parse(bad), None);
        }
    }

    #[test]
    fn a_program_without_its_owner_is_ended() {
        // An owner that was never born.
        let mark = Mark { owner: std::process::id(), born: 1 };
        let mut command = Command::new("sleep");
        command.arg("600");
        mark.put_on(&mut command);
        let mut orphan = command.spawn().expect("started");
        let mut others = Command::new("sleep");
        others.arg("600");
        Mark::own().expect("/proc is mounted").put_on(&mut others);
        let mut kept = others.spawn().expect("started");
        Mark::end_orphans();
        assert!(!orphan.wait().expect("waited").success());
        assert_eq!(kept.try_wait().expect("asked"), None);
        Mark::own().expect("/proc is mounted").end_all();
        assert!(!kept.wait().expect("waited").success());
    }
}
