//! An experiment on several hosts: the server on one, load from others, each reached by the user's own ssh or another program.
//!
//! ```text
//!   ammeter run --- ssh --- the server's host: ammeter agent session, ammeter agent server (with monitor and profile)
//!              \--- ssh --- each client: ammeter agent session, ammeter load --slice
//! ```
//!
//! [`Fleet`] is the counterpart of the local machine in `runner.rs`. Nothing stays on a host: a session ends with its
//! connection, other commands end with their standard input. A run that loses a host is invalid. The fleet reconnects
//! before the next run; if that fails, the experiment ends there.

pub(crate) mod clock;
mod connection;
pub(crate) mod server;
pub(crate) mod session;

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use ammeter_load::drive::Stop;
use ammeter_wan::join::Invitation;
use amped_measure::Failure;

use self::connection::{Command, Connection, SOON};
use self::server::{Order, RemoteServer};
use self::session::{decoded, encoded};
use crate::archive::{Block, Host, Hosts, Program, Step};
use crate::environment::{Site, TestEnvironment};
use crate::experiment::{Limits, Settings};
use crate::generate::{self, Clock, Generator};
use crate::run::{Watched, pinned};
use crate::subject::{self, Subject};
use crate::values::{Checked, HostName};

/// The name of the request manifest on a client.
const MANIFEST: &str = "manifest.jsonl";

/// The hosts of an experiment, all connected.
pub(crate) struct Fleet {
    spec: Hosts,
    own: Program,
    address: IpAddr,
    /// The server's connection first, then the clients' in order.
    connections: Vec<Connection>,
    server: Option<RemoteServer>,
    /// Directory for the control sockets.
    folder: PathBuf,
    /// Number of connections opened so far.
    opened: usize,
}

impl Fleet {
    /// Connects to all hosts, copies this program to those that lack it, and checks that they permit these settings.
    ///
    /// # Errors
    /// The first host that is unreachable or lacks a requirement, with the remedy; an interrupt.
    pub(crate) fn reach(
        spec: &Hosts,
        environment: &TestEnvironment,
        settings: &[Settings],
        stop: &Stop,
    ) -> Result<Fleet, Failure> {
        let mut fleet = Fleet {
            spec: spec.clone(),
            own: subject::identity(&environment.own, "--version"),
            address: IpAddr::from([0, 0, 0, 0]),
            connections: Vec::new(),
            server: None,
            folder: environment.scratch.clone(),
            opened: 0,
        };
        // Connects in parallel: an unreachable host takes ten seconds to time out.
        for name in [&spec.server].into_iter().chain(&spec.clients) {
            let connection = fleet.open(name)?;
            fleet.connections.push(connection);
        }
        for connection in &mut fleet.connections {
            connection.greet(&fleet.own, stop)?;
        }
        let paths = settings.iter().any(|settings| settings.path.is_some());
        for connection in fleet.connections.iter().filter(|_| paths) {
            if !connection.facts()?.is_root {
                let host = connection.name.rsplit('@').next().unwrap_or_default();
                return Err(Failure::usage(format!(
                    "[path] requires root on all hosts, and on {host} commands run as another user; write \"root@{host}\", or let `via` run \
                     them as root"
                )));
            }
        }
        let server = fleet.connections[0].facts()?;
        if !server.is_root && settings.iter().any(|settings| takes_root(&settings.limits)) {
            return Err(Failure::usage(format!(
                "limits on memory, disk or CPU require root, and {} logs in as another user; use root: [hosts] server \
                 = \"root@...\"",
                spec.server
            )));
        }
        fleet.address = spec.address.or(server.address).ok_or_else(|| {
            Failure::usage(format!(
                "the address of {} is unknown; set the one for clients: [hosts] address = \"...\"",
                spec.server
            ))
        })?;
        Ok(fleet)
    }

    fn open(&mut self, name: &str) -> Result<Connection, Failure> {
        self.opened += 1;
        Connection::open(name, self.spec.via(), &self.folder.join(format!("ssh-{}", self.opened)))
    }

    /// Reconnects to the hosts that were lost.
    ///
    /// # Errors
    /// Those of [`reach`](Fleet::reach).
    pub(crate) fn revive(&mut self, stop: &Stop) -> Result<(), Failure> {
        for at in 0..self.connections.len() {
            if self.connections[at].check().is_err() {
                let mut fresh = self.open(&self.connections[at].name.clone())?;
                fresh.greet(&self.own, stop)?;
                self.connections[at] = fresh;
            }
        }
        Ok(())
    }

    /// Whether any host was lost.
    pub(crate) fn has_lost(&self) -> bool {
        self.connections.iter().any(Connection::is_gone)
    }

    /// Descriptions of the machines, for the archive.
    ///
    /// # Errors
    /// If a host is lost.
    pub(crate) fn host(&self) -> Result<Host, Failure> {
        let of = |connection: &Connection| Ok::<_, Failure>(connection.facts()?.host.clone());
        let clients = self.connections[1..].iter().map(|client| Ok((client.name.clone(), of(client)?)));
        Ok(Host { clients: clients.collect::<Result<_, Failure>>()?, ..of(&self.connections[0])? })
    }

    /// The subjects' programs on the server's host, and the `ammeter` of each host.
    ///
    /// # Errors
    /// If a program is missing.
    pub(crate) fn programs(&self, settings: &[Settings], stop: &Stop) -> Result<BTreeMap<String, Program>, Failure> {
        let mut subjects: Vec<&Subject> = Vec::new();
        for Settings { subject, .. } in settings {
            if subjects.iter().all(|known| known.name != subject.name) {
                subjects.push(subject);
            }
        }
        let server = &self.connections[0];
        let mut command = Command::start(&server.name, &server.own(&["agent", "programs"])?)?;
        let printed = command.ask(&encoded(&subjects)?, SOON, stop)?;
        let mut programs: BTreeMap<String, Program> = decoded(&printed)?;
        for connection in &self.connections {
            // The path of a copy differs each time; the program is the same.
            let own = Program { path: PathBuf::from("ammeter"), ..connection.facts()?.program.clone() };
            programs.insert(format!("ammeter on {}", connection.name), own);
        }
        Ok(programs)
    }

    /// Measures all hosts at rest, without load.
    ///
    /// # Errors
    /// A lost host; an interrupt.
    pub(crate) fn look_at_rest(&mut self, stop: &Stop) -> Result<Block, Failure> {
        self.revive(stop)?;
        let looks = self.connections.iter().map(|one| Command::start(&one.name, &one.own(&["agent", "rest"])?));
        let looks = looks.collect::<Result<Vec<_>, Failure>>()?;
        let mut blocks = Vec::new();
        for (connection, look) in self.connections.iter().zip(looks) {
            let block: Block = decoded(&look.finish(SOON, stop)?)?;
            blocks.push((connection.name.clone(), block));
        }
        let hosts = blocks.iter().map(|(name, block)| (name.clone(), block.busy)).collect();
        let busiest = blocks.into_iter().max_by(|a, b| a.1.busy.total_cmp(&b.1.busy));
        let Some((name, mut block)) = busiest else { return Err(Failure::failed("there are no hosts")) };
        for (program, _) in &mut block.busiest {
            *program = format!("{name}: {program}");
        }
        Ok(Block { hosts, ..block })
    }

    /// Starts the server and waits until it answers; returns the reason if it cannot run.
    ///
    /// # Errors
    /// A lost host; an interrupt.
    pub(crate) fn start(
        &mut self,
        settings: &Settings,
        seed: u64,
        interval: Duration,
        stop: &Stop,
    ) -> Result<Result<(SocketAddr, Site), String>, Failure> {
        self.server = None;
        let session::Facts { scratch, pid, .. } = self.connections[0].facts()?.clone();
        let order = Order { scratch, session: pid, settings: settings.clone(), seed, interval, address: self.address };
        let server = match RemoteServer::start(&self.connections[0], &order, stop)? {
            Ok(server) => self.server.insert(server),
            Err(why) => return Ok(Err(why)),
        };
        let (address, target) = (server.ready.address, server.ready.target.clone());
        let mut site = Site { folder: PathBuf::new(), target, manifest: None, replies: None };
        if let Some(manifest) = server.ready.manifest.clone() {
            let manifest = manifest.display().to_string();
            let server = &self.connections[0];
            let text = Command::start(&server.name, &server.shell(&["cat", &manifest]))?.finish(SOON * 10, stop)?;
            for client in &self.connections[1..] {
                put(client, MANIFEST, text.as_bytes(), stop)?;
            }
            site.manifest = Some(PathBuf::from(manifest_of(&self.connections[1])?));
        }
        Ok(Ok((address, site)))
    }

    /// The load generators of a step, whose command line `load` makes of the program and the path of the manifest on the
    /// host; a closed loop uses at most as many hosts as it has clients.
    ///
    /// # Errors
    /// A lost host.
    pub(crate) fn generators(
        &self,
        settings: &Settings,
        step: Step,
        load: impl Fn(&[String], Option<PathBuf>) -> Vec<String>,
    ) -> Result<Vec<Generator>, Failure> {
        let count = match step {
            Step::Rate(_) => self.spec.clients.len(),
            Step::Clients(clients) => self.spec.clients.len().min(clients as usize),
        };
        let of = |client: &Connection| {
            let mut words = pinned(settings.cores.clients.as_deref());
            let program = client.facts()?.program.path.display().to_string();
            if let Some(Invitation { address, key, congestion_control }) =
                self.server.as_ref().and_then(|own| own.ready.invitation.as_ref())
            {
                let address = address.to_string();
                let join = [&program, "wan", "join", &address, "--key", key];
                let flags = ["--congestion-control", congestion_control, "--cpu", "--"];
                words.extend(join.into_iter().chain(flags).map(str::to_owned));
            }
            words.push(program);
            let words = load(&words, Some(PathBuf::from(manifest_of(client)?)));
            Ok(Generator { name: client.name.clone(), words, channel: client.channel().clone() })
        };
        self.connections[1..=count].iter().map(of).collect()
    }

    /// Starts the measurement.
    ///
    /// # Errors
    /// A lost host; an interrupt.
    pub(crate) fn measure(&mut self, stop: &Stop) -> Result<(), Failure> {
        self.server.as_mut().map_or(Ok(()), |server| server.measure(stop))
    }

    /// Stops the server after the load, and copies its files here.
    ///
    /// # Errors
    /// A lost host; an interrupt.
    pub(crate) fn end(&mut self, settings: &Settings, into: &Path, stop: &Stop) -> Result<Watched, Failure> {
        let server = self.server.take().ok_or_else(|| Failure::failed("no server was started"))?;
        server.end(&self.connections[0], settings, into, stop)
    }

    /// Stops the server, if it runs.
    pub(crate) fn give_up(&mut self) {
        self.server = None;
    }

    /// Reads the clocks of the server's host and of the first `clients` clients.
    ///
    /// # Errors
    /// A lost host.
    pub(crate) fn clocks(&mut self, clients: usize) -> Result<Vec<Clock>, Failure> {
        self.connections[..=clients].iter_mut().map(clock_of).collect()
    }

    /// Fails if a host is lost.
    ///
    /// # Errors
    /// A lost host.
    pub(crate) fn check(&mut self) -> Result<(), Failure> {
        self.connections.iter_mut().try_for_each(Connection::check)
    }
}

/// Hosts that generate one load without an experiment.
pub(crate) struct Generators {
    connections: Vec<Connection>,
}

impl Generators {
    /// Connects to these hosts, and copies this program to those that lack it.
    ///
    /// # Errors
    /// The first host that is unreachable, with the remedy; an interrupt.
    pub(crate) fn reach(
        names: &[Checked<HostName>],
        via: &str,
        environment: &TestEnvironment,
        stop: &Stop,
    ) -> Result<Generators, Failure> {
        let own = subject::identity(&environment.own, "--version");
        let open = |(at, name): (usize, &Checked<HostName>)| {
            Connection::open(name, via, &environment.scratch.join(format!("ssh-{at}")))
        };
        let mut connections = names.iter().enumerate().map(open).collect::<Result<Vec<_>, Failure>>()?;
        connections.iter_mut().try_for_each(|connection| connection.greet(&own, stop))?;
        Ok(Generators { connections })
    }

    /// Copies a file to all hosts, and returns its path on each.
    ///
    /// # Errors
    /// A lost host; an interrupt.
    pub(crate) fn put(&self, name: &str, bytes: &[u8], stop: &Stop) -> Result<Vec<String>, Failure> {
        self.connections.iter().map(|connection| put(connection, name, bytes, stop)).collect()
    }

    /// The load generators, whose arguments `load` makes for the host of this number.
    ///
    /// # Errors
    /// A lost host.
    pub(crate) fn generators(&self, load: impl Fn(usize) -> Vec<String>) -> Result<Vec<Generator>, Failure> {
        let of = |(at, connection): (usize, &Connection)| {
            let program = connection.facts()?.program.path.display().to_string();
            let words = [program].into_iter().chain(load(at)).collect();
            Ok(Generator { name: connection.name.clone(), words, channel: connection.channel().clone() })
        };
        self.connections.iter().enumerate().map(of).collect()
    }
}

impl generate::Hosts for Generators {
    fn clocks(&mut self, generators: usize) -> Result<Vec<Clock>, Failure> {
        // The place of the server's host, which is unknown.
        let own = [Ok(Clock::own())].into_iter();
        own.chain(self.connections[..generators].iter_mut().map(clock_of)).collect()
    }

    fn check(&mut self) -> Result<(), Failure> {
        self.connections.iter_mut().try_for_each(Connection::check)
    }

    fn begin(&mut self, _: &Stop) -> Result<(), Failure> {
        Ok(())
    }
}

impl Drop for Generators {
    fn drop(&mut self) {
        self.connections.iter().for_each(Connection::end);
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        self.server = None;
        // Close all sessions before waiting for any, so that they end in parallel.
        self.connections.iter().for_each(Connection::end);
    }
}

/// Reads the clock of a host.
fn clock_of(connection: &mut Connection) -> Result<Clock, Failure> {
    let (offset, trip, busy_ns) = connection.clock()?;
    let cores = connection.facts()?.host.machine.cores;
    Ok(Clock { host: connection.name.clone(), taken: Instant::now(), offset, trip, busy_ns, cores })
}

/// Writes a file into the directory of a host's session, and returns its path.
fn put(connection: &Connection, name: &str, bytes: &[u8], stop: &Stop) -> Result<String, Failure> {
    let path = connection.facts()?.scratch.join(name).display().to_string();
    let words = connection.shell(&["sh", "-c", "cat > \"$0\"", &path]);
    let command = Command::start(&connection.name, &words)?;
    command.write(bytes);
    command.finish(SOON * 10, stop)?;
    Ok(path)
}

/// The path of the request manifest on a client.
fn manifest_of(client: &Connection) -> Result<String, Failure> {
    Ok(client.facts()?.scratch.join(MANIFEST).display().to_string())
}

/// Whether these limits require root.
fn takes_root(limits: &Limits) -> bool {
    limits.memory.is_some() || limits.disk.is_some() || limits.cpu.is_some()
}
