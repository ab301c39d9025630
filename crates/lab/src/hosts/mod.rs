//! Several hosts in place of one machine: the server on one, load from others, each reached by the user's own ssh.
//!
//! ```text
//!   ammeter run --- ssh --- the server's host: ammeter session, ammeter subject (server, monitor, profile)
//!              \--- ssh --- each client: ammeter session, ammeter load --slice
//! ```
//!
//! [`Fleet`] is what `runner.rs` measures on, as it measures on this machine alone. Nothing stays on a host: a session ends with its
//! connection, and the other commands with their standard input. A host that is gone makes its run invalid; before the next it is
//! reached anew, or the experiment ends there.

pub(crate) mod clock;
pub(crate) mod server;
pub(crate) mod session;
mod ssh;

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use ammeter_load::drive::Stop;
use amped_measure::Failure;

use self::server::{Order, RemoteServer};
use self::session::{decoded, encoded};
use self::ssh::{Command, Connection, SOON};
use crate::archive::{Block, Host, Hosts, Program, Step};
use crate::environment::{Site, TestEnvironment};
use crate::experiment::{Limits, Settings};
use crate::generate::{Clock, Generator};
use crate::run::{Watched, pinned};
use crate::subject::{self, Subject};

/// The hosts of an experiment, all of them reached.
pub(crate) struct Fleet {
    spec: Hosts,
    own: Program,
    address: IpAddr,
    /// The server's first, then the clients' in their order.
    connections: Vec<Connection>,
    server: Option<RemoteServer>,
    /// Where control sockets are.
    folder: PathBuf,
    /// How many connections were opened.
    opened: usize,
}

impl Fleet {
    /// Reaches all hosts, brings them this program where they have not got it, and looks whether they allow what these settings ask.
    ///
    /// # Errors
    /// The first host that cannot be reached or has not what it takes, with the way out; an interrupt.
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
        // All at once: it takes ten seconds to know that a host is not there.
        for name in [&spec.server].into_iter().chain(&spec.clients) {
            let connection = fleet.open(name)?;
            fleet.connections.push(connection);
        }
        for connection in &mut fleet.connections {
            connection.greet(&fleet.own, stop)?;
        }
        let server = fleet.connections[0].facts()?;
        if !server.is_root && settings.iter().any(|settings| takes_root(&settings.limits)) {
            return Err(Failure::usage(format!(
                "limits of memory, disk or CPU take root, and {} is another user's; name root there: [hosts] server = \"root@...\"",
                spec.server
            )));
        }
        fleet.address = spec.address.or(server.address).ok_or_else(|| {
            Failure::usage(format!(
                "ssh does not tell by which address it reaches {}; name the one for clients: [hosts] address = \"...\"",
                spec.server
            ))
        })?;
        Ok(fleet)
    }

    fn open(&mut self, name: &str) -> Result<Connection, Failure> {
        self.opened += 1;
        Connection::open(name, &self.spec.ssh, &self.folder.join(format!("ssh-{}", self.opened)))
    }

    /// Reaches again the hosts that were lost.
    ///
    /// # Errors
    /// As [`reach`](Fleet::reach).
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

    /// Whether a host was lost.
    pub(crate) fn has_lost(&self) -> bool {
        self.connections.iter().any(Connection::is_gone)
    }

    /// The machines, for the archive.
    ///
    /// # Errors
    /// When a host is gone.
    pub(crate) fn host(&self) -> Result<Host, Failure> {
        let of = |connection: &Connection| Ok::<_, Failure>(connection.facts()?.host.clone());
        let clients = self.connections[1..].iter().map(|client| Ok((client.name.clone(), of(client)?)));
        Ok(Host { clients: clients.collect::<Result<_, Failure>>()?, ..of(&self.connections[0])? })
    }

    /// The programs of the subjects, as they are on the server's host, and the `ammeter` of each host.
    ///
    /// # Errors
    /// When one is not there.
    pub(crate) fn programs(&self, settings: &[Settings], stop: &Stop) -> Result<BTreeMap<String, Program>, Failure> {
        let mut subjects: Vec<&Subject> = Vec::new();
        for Settings { subject, .. } in settings {
            if subjects.iter().all(|known| known.name != subject.name) {
                subjects.push(subject);
            }
        }
        let server = &self.connections[0];
        let mut command = Command::start(&server.name, &server.own(&["subject", "--programs"])?)?;
        let printed = command.ask(&encoded(&subjects)?, SOON, stop)?;
        let mut programs: BTreeMap<String, Program> = decoded(&printed)?;
        for connection in &self.connections {
            // A copy lies somewhere else each time, and is the same.
            let own = Program { path: PathBuf::from("ammeter"), ..connection.facts()?.program.clone() };
            programs.insert(format!("ammeter on {}", connection.name), own);
        }
        Ok(programs)
    }

    /// Looks at all hosts while nothing is asked of any of them.
    ///
    /// # Errors
    /// A host that is gone; an interrupt.
    pub(crate) fn look_at_rest(&mut self, stop: &Stop) -> Result<Block, Failure> {
        self.revive(stop)?;
        let looks =
            self.connections.iter().map(|one| Command::start(&one.name, &one.own(&["host", "--rest", "--json"])?));
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

    /// Starts the server until it answers; the reason, if it cannot be run.
    ///
    /// # Errors
    /// A host that is gone; an interrupt.
    pub(crate) fn start(
        &mut self,
        settings: &Settings,
        seed: u64,
        interval: Duration,
        stop: &Stop,
    ) -> Result<Result<(SocketAddr, Site), String>, Failure> {
        self.server = None;
        let order = Order { settings: settings.clone(), seed, interval, address: self.address };
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
                let words = client.shell(&["sh", "-c", "cat > \"$0\"", &manifest_of(client)?]);
                let command = Command::start(&client.name, &words)?;
                command.write(text.as_bytes());
                command.finish(SOON * 10, stop)?;
            }
            site.manifest = Some(PathBuf::from(manifest_of(&self.connections[1])?));
        }
        Ok(Ok((address, site)))
    }

    /// Where the load of this step comes from: in a closed loop from no more hosts than it has clients.
    ///
    /// # Errors
    /// A host that is gone.
    pub(crate) fn generators(&self, settings: &Settings, step: Step) -> Result<Vec<Generator>, Failure> {
        let count = match step {
            Step::Rate(_) => self.spec.clients.len(),
            Step::Clients(clients) => self.spec.clients.len().min(clients as usize),
        };
        let of = |client: &Connection| {
            let facts = client.facts()?;
            let mut words = pinned(settings.cores.clients.as_deref());
            words.push(facts.program.path.display().to_string());
            Ok(Generator {
                name: client.name.clone(),
                manifest: Some(PathBuf::from(manifest_of(client)?)),
                ssh: client.ssh().to_vec(),
                words,
            })
        };
        self.connections[1..=count].iter().map(of).collect()
    }

    /// Begins to count.
    ///
    /// # Errors
    /// A host that is gone; an interrupt.
    pub(crate) fn measure(&mut self, stop: &Stop) -> Result<(), Failure> {
        self.server.as_mut().map_or(Ok(()), |server| server.measure(stop))
    }

    /// The load has ended: ends the server, and brings its files here.
    ///
    /// # Errors
    /// A host that is gone; an interrupt.
    pub(crate) fn end(&mut self, settings: &Settings, into: &Path, stop: &Stop) -> Result<Watched, Failure> {
        let server = self.server.take().ok_or_else(|| Failure::failed("there is no server"))?;
        server.end(&self.connections[0], settings, into, stop)
    }

    /// Ends the server, if there is one.
    pub(crate) fn give_up(&mut self) {
        self.server = None;
    }

    /// The clocks of the server's host and of so many clients.
    ///
    /// # Errors
    /// A host that is gone.
    pub(crate) fn clocks(&mut self, clients: usize) -> Result<Vec<Clock>, Failure> {
        let of = |connection: &mut Connection| {
            let (offset, trip, busy_ns) = connection.clock()?;
            let cores = connection.facts()?.host.machine.cores;
            Ok(Clock { host: connection.name.clone(), taken: Instant::now(), offset, trip, busy_ns, cores })
        };
        self.connections[..=clients].iter_mut().map(of).collect()
    }

    /// Fails where a host is gone.
    ///
    /// # Errors
    /// See there.
    pub(crate) fn check(&mut self) -> Result<(), Failure> {
        self.connections.iter_mut().try_for_each(Connection::check)
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        self.server = None;
        // All are told before any is waited for.
        self.connections.iter().for_each(Connection::end);
    }
}

/// Where a client has the manifest of what is asked for.
fn manifest_of(client: &Connection) -> Result<String, Failure> {
    Ok(client.facts()?.scratch.join("manifest.jsonl").display().to_string())
}

/// Whether limits take root.
fn takes_root(limits: &Limits) -> bool {
    limits.memory.is_some() || limits.disk.is_some() || limits.cpu.is_some()
}
