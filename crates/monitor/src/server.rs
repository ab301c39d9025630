//! The target of the monitor: the processes and listeners behind a port or a process number.
//!
//! The inode of the listening socket connects port and processes: sock_diag(7) gives the inode of
//! a listener, and `/proc/PID/fd` the processes that have it open. A server of several processes
//! is all of them; for a process number it is that process and its descendants. Only root may
//! read the descriptors of other users' processes; without them the sockets are still visible.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use amped_measure::Failure;
use amped_sys::sock_diag::{Family, Question, SockDiag, Socket, TcpState};
use serde::{Deserialize, Serialize};

use crate::source::{GROUP_FILES, Limits, group_folder_of, group_folders, stat_of};

/// The target that the user named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// The processes that listen at this TCP port, in this network namespace.
    Port(u16),
    /// A process and its descendants, in its network namespace.
    Pid(u32),
}

/// The server, as found last.
#[derive(Debug)]
pub struct Server {
    target: Target,
    diag: SockDiag,
    /// The directory of its network's counters in `/proc`.
    network: String,
    /// Ports of its listeners.
    ports: BTreeSet<u16>,
    /// Address families of its listeners: it has no connections of others.
    families: Vec<Family>,
    pids: BTreeSet<u32>,
    /// Its processes and their descendants.
    family: BTreeSet<u32>,
    missing: Vec<String>,
}

/// The process that adopts orphans; a process that it starts or adopts is not part of a server.
pub(crate) const INIT: u32 = 1;

/// A server's outgoing connections to one address.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Backend {
    /// The address, or the path of a Unix domain socket.
    pub name: String,
    /// Number of connections.
    pub connections: u32,
    /// Connections on which the server sent last, or which are not accepted
    /// yet. For a Unix domain socket only whether it is open is known.
    pub in_flight: u32,
}

impl Server {
    /// Finds the server.
    ///
    /// # Errors
    /// When there is no listener or no such process, or its network cannot be read.
    pub fn find(target: Target) -> Result<Server, Failure> {
        let (diag, network) = match target {
            Target::Port(_) => {
                (SockDiag::open().map_err(Failure::io("open a netlink socket"))?, "/proc/thread-self/net".to_owned())
            }
            Target::Pid(pid) => (diag_of(pid)?, format!("/proc/{pid}/net")),
        };
        let (ports, families, missing) = (BTreeSet::new(), Vec::new(), Vec::new());
        let (pids, family) = (BTreeSet::new(), BTreeSet::new());
        let mut server = Server { target, diag, network, ports, families, pids, family, missing };
        server.look_again()?;
        if let (Target::Port(port), true) = (target, server.ports.is_empty()) {
            return Err(Failure::failed(format!(
                "no process listens on TCP port {port} in this network namespace; `ss -ltnp` shows all listeners, and \
                 `--pid` finds a server in another namespace"
            )));
        }
        Ok(server)
    }

    /// Updates the processes of the server. Afterwards
    /// [`pids`](Server::pids) may be empty: it has ended, or cannot be seen.
    ///
    /// # Errors
    /// Those of [`find`](Server::find), when sock_diag or `/proc` fails.
    pub fn look_again(&mut self) -> Result<(), Failure> {
        let mut listeners = Vec::new();
        let port = match self.target {
            Target::Port(port) => port,
            Target::Pid(_) => 0,
        };
        for family in [Family::Ipv4, Family::Ipv6] {
            self.dump(family, port, Question::Listeners, |socket| listeners.push((family, socket)))?;
        }
        self.missing.clear();
        let mut hidden = 0;
        match self.target {
            Target::Port(port) => {
                let inodes: BTreeSet<u32> = listeners.iter().map(|(_, socket)| socket.inode).collect();
                self.pids = owners(&inodes, &mut hidden)?;
                let roots = self.pids.iter().copied().filter(|pid| *pid != INIT).collect();
                self.family = &self.pids | &descendants(roots, &parents()?);
                if self.pids.is_empty() && hidden > 0 && !inodes.is_empty() {
                    self.missing.push(format!(
                        "the owner of port {port} is unknown ({hidden} processes belong to other users), so there are \
                         no metrics of its threads and no profile; run as root, or as the server's user"
                    ));
                }
            }
            Target::Pid(pid) => {
                self.pids = descendants(BTreeSet::from([pid]), &parents()?);
                // The monitor may be a descendant of that process, but is not part of the server.
                let own = std::process::id();
                if own != pid {
                    self.pids.remove(&own);
                }
                let mut inodes = BTreeSet::new();
                for pid in &self.pids {
                    match sockets_of(*pid) {
                        Ok(found) => inodes.extend(found),
                        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => hidden += 1,
                        // It has ended meanwhile.
                        Err(_) => {}
                    }
                }
                listeners.retain(|(_, socket)| inodes.contains(&socket.inode));
                if hidden > 0 && listeners.is_empty() {
                    self.missing.push(format!(
                        "the ports of process {pid} are unknown, since it belongs to another user: no connections; run \
                         as root, or name its port with --port"
                    ));
                }
            }
        }
        match self.target {
            Target::Port(_) => _ = self.family.remove(&std::process::id()),
            Target::Pid(_) => self.family.clone_from(&self.pids),
        }
        self.ports = listeners.iter().map(|(_, socket)| socket.local.port()).collect();
        self.families = [Family::Ipv4, Family::Ipv6]
            .into_iter()
            .filter(|one| listeners.iter().any(|(family, _)| family == one))
            .collect();
        Ok(())
    }

    /// Its processes, in ascending order.
    pub fn pids(&self) -> &BTreeSet<u32> {
        &self.pids
    }

    /// Its processes and their descendants, such as the programs that it runs for a request.
    pub(crate) fn family(&self) -> &BTreeSet<u32> {
        &self.family
    }

    /// Ports that it listens at.
    pub fn ports(&self) -> &BTreeSet<u16> {
        &self.ports
    }

    /// The parts of it that cannot be seen, and what to do, one line each.
    pub fn missing(&self) -> &[String] {
        &self.missing
    }

    /// The directory of its network's counters in `/proc`.
    pub(crate) fn network(&self) -> &Path {
        Path::new(&self.network)
    }

    /// Queries the sockets at all of its ports.
    pub(crate) fn sockets(&mut self, question: Question, mut each: impl FnMut(Socket)) -> Result<(), Failure> {
        for port in self.ports.clone() {
            for family in self.families.clone() {
                self.dump(family, port, question, &mut each)?;
            }
        }
        Ok(())
    }

    /// Its outgoing connections, to other ports than its own. None
    /// for a server with too many descriptors to scan on each sample.
    pub(crate) fn backends(&mut self) -> Vec<Backend> {
        const DESCRIPTORS_MAX: usize = 4096;
        let mut own = BTreeSet::new();
        for pid in &self.pids {
            own.extend(sockets_of(*pid).unwrap_or_default());
            if own.len() > DESCRIPTORS_MAX {
                return Vec::new();
            }
        }
        let mut backends: BTreeMap<String, Backend> = BTreeMap::new();
        let mut add = |name: String, in_flight: bool| {
            let backend = backends.entry(name).or_default();
            backend.connections += 1;
            backend.in_flight += u32::from(in_flight);
        };
        let ports = self.ports.clone();
        for family in [Family::Ipv4, Family::Ipv6] {
            // Errors are ignored; the counts of clients report them.
            let _ = self.dump(family, 0, Question::Open, |socket| {
                if own.remove(&socket.inode) && !ports.contains(&socket.local.port()) {
                    let is_asking = socket.limits.is_none_or(|limits| limits.sent_ms_ago <= limits.received_ms_ago);
                    let remote = SocketAddr::new(socket.remote.ip().to_canonical(), socket.remote.port());
                    add(remote.to_string(), socket.state == TcpState::SynSent || is_asking);
                }
            });
        }
        let mut unix = Vec::new();
        if !own.is_empty() && self.diag.dump_unix(|socket| unix.push(socket)).is_ok() {
            let names: BTreeMap<u32, &str> = unix.iter().map(|socket| (socket.inode, &socket.name[..])).collect();
            let waits_at: BTreeMap<u32, &str> = unix
                .iter()
                .flat_map(|listener| listener.waiting.iter().map(|inode| (*inode, &listener.name[..])))
                .collect();
            // Its own end has no name, the other has that of the listener. Both ends of a socket pair have none.
            for socket in unix.iter().filter(|socket| own.contains(&socket.inode) && socket.name.is_empty()) {
                let name = names.get(&socket.peer).or_else(|| waits_at.get(&socket.inode)).copied().unwrap_or_default();
                if !name.is_empty() && !own.contains(&socket.peer) {
                    add(format!("unix:{name}"), true);
                }
            }
        }
        backends.into_iter().map(|(name, backend)| Backend { name, ..backend }).collect()
    }

    fn dump(&mut self, family: Family, port: u16, question: Question, each: impl FnMut(Socket)) -> Result<(), Failure> {
        match self.diag.dump(family, port, question, each) {
            // A kernel without that family has no such sockets.
            Err(error) if family == Family::Ipv6 && error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Err(Failure::failed(format!(
                "this kernel cannot list TCP sockets ({error}): load the module tcp_diag (`modprobe tcp_diag`)"
            ))),
            other => other.map_err(Failure::io("query TCP sockets (sock_diag)")),
        }
    }
}

/// The current control groups that limit a process; empty if they cannot be read.
pub fn groups_of(pid: u32) -> Vec<Limits> {
    let text = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let folders = group_folders(&text(&format!("/proc/{pid}/cgroup")), &text("/proc/mounts"));
    let read = |folder: PathBuf| {
        let mut limits = Limits::of(&folder);
        for (name, take) in GROUP_FILES {
            if let Ok(text) = fs::read_to_string(folder.join(name)) {
                take(&mut limits, &text);
            }
        }
        limits
    };
    folders.into_iter().map(read).filter(Limits::is_limited).collect()
}

/// The control group of a process in the hierarchy of this controller: its root, and the group's directory; `None` if
/// there is none, or the process has ended.
pub fn group_of(pid: u32, controller: &str) -> Option<(PathBuf, PathBuf)> {
    let groups = fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
    group_folder_of(&groups, &fs::read_to_string("/proc/mounts").ok()?, controller)
}

/// Opens a sock_diag socket in the network namespace of this process.
fn diag_of(pid: u32) -> Result<SockDiag, Failure> {
    let no_process = || Failure::failed(format!("no process {pid}; `ss -ltnp` shows the server's"));
    if !Path::new(&format!("/proc/{pid}")).exists() {
        return Err(no_process());
    }
    let diag = || SockDiag::open().map_err(Failure::io("open a netlink socket"));
    let path = format!("/proc/{pid}/ns/net");
    let theirs = match fs::read_link(&path) {
        Ok(theirs) => theirs,
        // Hidden for another user's process; most are in the same namespace.
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => return diag(),
        Err(_) => return Err(no_process()),
    };
    if fs::read_link("/proc/thread-self/ns/net").is_ok_and(|ours| ours == theirs) {
        return diag();
    }
    let opened = File::open(&path).and_then(SockDiag::open_in);
    opened.map_err(|error| {
        Failure::failed(format!("cannot enter the network namespace of process {pid}: {error}; run as root"))
    })
}

/// The numbers of all processes.
fn all_pids() -> Result<Vec<u32>, Failure> {
    let unreadable =
        |error| Failure::failed(format!("cannot list /proc: {error}; is it mounted (mount -t proc proc /proc)?"));
    let entries = fs::read_dir("/proc").map_err(unreadable)?;
    Ok(entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect())
}

/// The processes that have one of these sockets open. `hidden` counts those that cannot be read.
fn owners(inodes: &BTreeSet<u32>, hidden: &mut usize) -> Result<BTreeSet<u32>, Failure> {
    let mut owners = BTreeSet::new();
    for pid in all_pids()? {
        match sockets_of(pid) {
            Ok(sockets) if sockets.iter().any(|inode| inodes.contains(inode)) => {
                owners.insert(pid);
            }
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => *hidden += 1,
            _ => {}
        }
    }
    Ok(owners)
}

/// The inodes of a process's open sockets.
fn sockets_of(pid: u32) -> io::Result<Vec<u32>> {
    let entries = fs::read_dir(format!("/proc/{pid}/fd"))?;
    let socket = |entry: io::Result<fs::DirEntry>| {
        let link = fs::read_link(entry.ok()?.path()).ok()?;
        link.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()
    };
    Ok(entries.filter_map(socket).collect())
}

/// The numbers of all processes that have not ended, and of their parents.
fn parents() -> Result<Vec<(u32, u32)>, Failure> {
    let stat_of = |pid| stat_of(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?).map(|stat| (pid, stat));
    let all = all_pids()?.into_iter().filter_map(stat_of).filter(|(_, stat)| stat.is_alive());
    Ok(all.map(|(pid, stat)| (pid, stat.parent)).collect())
}

/// Those of `roots` that exist, and their descendants.
fn descendants(roots: BTreeSet<u32>, parents: &[(u32, u32)]) -> BTreeSet<u32> {
    let mut family: BTreeSet<u32> = parents.iter().map(|(pid, _)| *pid).filter(|pid| roots.contains(pid)).collect();
    loop {
        let before = family.len();
        let children = parents.iter().filter(|(_, parent)| family.contains(parent)).map(|(pid, _)| *pid);
        let children: Vec<u32> = children.collect();
        family.extend(children);
        if family.len() == before {
            return family;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn process_family_includes_all_descendants() {
        let parents = [(1, 0), (9, 1), (3, 9), (4, 3), (5, 1), (2, 4)];
        let check = |root, expected: &[u32]| {
            assert_eq!(descendants([root].into(), &parents), expected.iter().copied().collect(), "{root}");
        };
        check(9, &[2, 3, 4, 9]);
        check(5, &[5]);
        check(7, &[]);
        // An impossible cycle, from two inconsistent reads.
        assert_eq!(descendants([1].into(), &[(1, 2), (2, 1)]).len(), 2);
        assert_eq!(descendants([5, 4, 7].into(), &parents), [2, 4, 5].into());
    }

    #[test]
    fn port_and_process_find_each_other() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let own = std::process::id();
        let server = Server::find(Target::Port(port)).unwrap();
        assert_eq!((server.pids(), server.missing()), (&BTreeSet::from([own]), &[][..]));
        let mut server = Server::find(Target::Pid(own)).unwrap();
        assert!(server.ports().contains(&port), "{server:?}");
        drop(listener);
        server.look_again().unwrap();
        assert!(!server.ports().contains(&port), "{server:?}");
        let text = Server::find(Target::Port(port)).unwrap_err().to_string();
        assert!(text.contains("no process listens on") && text.contains(&port.to_string()), "{text}");
    }

    #[test]
    fn missing_process_is_reported() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        child.wait().unwrap();
        let text = Server::find(Target::Pid(child.id())).unwrap_err().to_string();
        assert!(text.contains("no process "), "{text}");
    }
}
