//! Runs one command behind one path: in a namespace of its own, with a device
//! on each side and a router between them, all of which disappear afterwards.
//!
//! From the namespace, this host is [`HOST4`] and [`HOST6`]; the command has the next free address, so that several
//! commands can run behind paths of their own. The main thread waits for signals and for the command; one thread enters
//! the namespace, starts the command there and lives as long as it; one is the router.

use std::ffi::{OsStr, OsString};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::PathBuf;
use std::process::{Command, ExitStatus};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use amped_measure::Failure;
use amped_sys::process;
use amped_sys::signal::{Signal, Signals};
use amped_units::Bytes;
use ipnet::IpNet;

use crate::path::PathSettings;
use crate::place::{DeviceSettings, Mark, check_congestion_control, ip, make_device, unshare};
use crate::router::{Plan, Port, Report, Router, RouterSettings};

/// This host, as seen from the namespace.
pub const HOST4: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);
/// This host, as seen from the namespace: a unique local address (RFC 4193).
pub const HOST6: Ipv6Addr = Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, 1);

/// The last number of the command's addresses is from 2 to this.
const CLIENTS_MAX: u16 = 254;
/// The command's device, in its namespace.
pub(crate) const DEVICE: &str = "wan0";
/// Time that a command has to exit after SIGTERM, before it is killed.
const PATIENCE: Duration = Duration::from_secs(3);

/// The settings of a run.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The command, with its arguments; not empty.
    pub command: Vec<OsString>,
    /// The path between it and this host.
    pub path: PathSettings,
    /// The seed of all random draws.
    pub seed: u64,
    /// The largest packet, in bytes at layer 3.
    pub mtu: u32,
    /// TCP's congestion control, on both sides of the path.
    pub congestion_control: String,
    /// The capture file.
    pub capture: Option<PathBuf>,
}

/// The result of a run.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Exit status of the command.
    pub status: ExitStatus,
    /// Statistics of the packets.
    pub report: Report,
}

/// Maximum bytes of packets that a router holds: 10 Gbit/s for 400 ms.
pub const HELD_MAX: Bytes = Bytes::mib(512);

/// Runs a command behind a path. Call it before starting any thread, so that all threads leave signals to this one; a
/// terminating signal ends the command, and then this returns.
///
/// # Errors
/// When permission is missing, `ip` is missing, all addresses are in use, the command cannot be started, or the router
/// ends first. Nothing is left behind then either.
pub fn run(settings: Settings) -> Result<Outcome, Failure> {
    let signals = Signals::block().map_err(Failure::io("block signals"))?;
    Mark::end_orphans();
    let mark = Mark::own()?;
    check_congestion_control(&settings.congestion_control)?;
    let (host, client) = host_side(&settings)?;
    let (ports, port) = channel();
    let (starts, start) = channel();
    let (events, ended) = channel();
    let (v4, v6) = client_addresses(client);
    let device = device(&settings, DEVICE.to_owned(), [v4, v6], [HOST4.into(), HOST6.into()]);
    let inside = Inside { command: settings.command.clone(), device, mark };
    let thread = inside.start(ports, start, events)?;
    let router = match port.recv() {
        Ok(port) => Router::start(router_settings(&settings, host, port, client))?,
        // It has sent its error before it ended.
        Err(_) => return Err(failure_of(&ended)),
    };
    // A thread that has ended is detected below.
    let _ = starts.send(());
    let result = wait(&ended, &signals, || router.has_ended());
    mark.end_all();
    let _ = thread.join();
    // One of them may have been another `ammeter wan`.
    Mark::end_orphans();
    let report = router.stop()?;
    Ok(Outcome { status: result?, report })
}

fn router_settings(settings: &Settings, host: Port, client: Port, address: u16) -> RouterSettings {
    let (v4, v6) = client_addresses(address);
    let plan = Plan {
        name: "path".to_owned(),
        prefixes: vec![v4.into(), v6.into()],
        client: 0,
        settings: settings.path.clone(),
    };
    RouterSettings {
        server: host,
        clients: vec![client],
        paths: vec![plan],
        seed: settings.seed,
        congestion_control: settings.congestion_control.clone(),
        held_max: HELD_MAX,
        capture: settings.capture.clone(),
    }
}

fn client_addresses(number: u16) -> (IpAddr, IpAddr) {
    let [a, b, c, _] = HOST4.octets();
    let v6 = Ipv6Addr::from_bits(HOST6.to_bits() - 1 + u128::from(number));
    (Ipv4Addr::new(a, b, c, number as u8).into(), v6.into())
}

fn device(settings: &Settings, name: String, addresses: [IpAddr; 2], routes: [IpAddr; 2]) -> DeviceSettings {
    DeviceSettings {
        name,
        mtu: settings.mtu,
        addresses: addresses.to_vec(),
        routes: routes.map(IpNet::from).to_vec(),
        congestion_control: settings.congestion_control.clone(),
    }
}

/// Creates the host's device, and finds the command's address: the first without a route on this host.
fn host_side(settings: &Settings) -> Result<(Port, u16), Failure> {
    let host = [HOST4.into(), HOST6.into()];
    for number in 2..=CLIENTS_MAX {
        let (v4, v6) = client_addresses(number);
        // The name has the process number, for `ip link`.
        let name = format!("wan{}", std::process::id());
        match make_device(&device(settings, name, host, [v4, v6])) {
            Ok(port) => {
                // The host's memory of the previous user of the address: a round trip time, a threshold
                // (tcp_metrics(8)). There may be none.
                for address in [v4, v6] {
                    let _ = ip(&format!("tcp_metrics flush {address}\n"));
                }
                return Ok((port, number));
            }
            // EEXIST: another command has the address, behind its own path.
            Err(Failure::Failed(text)) if text.contains("route add") && text.contains("File exists") => {}
            Err(failure) => return Err(failure),
        }
    }
    Err(Failure::failed(format!(
        "all {} addresses beside {HOST4} are in use; end another `ammeter wan`",
        CLIENTS_MAX - 1
    )))
}

/// The thread in the namespace.
pub(crate) struct Inside {
    /// The command, with its arguments.
    pub(crate) command: Vec<OsString>,
    /// Its device.
    pub(crate) device: DeviceSettings,
    pub(crate) mark: Mark,
}

/// What the thread reports.
pub(crate) enum Event {
    Started(u32),
    Ended(Result<ExitStatus, Failure>),
}

impl Inside {
    /// Starts the thread: it sends the port of the device, and starts the command once it may.
    pub(crate) fn start(
        self,
        ports: Sender<Port>,
        start: Receiver<()>,
        events: Sender<Event>,
    ) -> Result<JoinHandle<()>, Failure> {
        let thread = thread::Builder::new().name("namespace".to_owned());
        thread.spawn(move || self.run(&ports, &start, &events)).map_err(Failure::io("start a thread"))
    }

    fn run(self, ports: &Sender<Port>, start: &Receiver<()>, events: &Sender<Event>) {
        // A dropped receiver means that it failed, and it reports its own error.
        let _ = events.send(Event::Ended(self.work(ports, start, events)));
    }

    fn work(&self, ports: &Sender<Port>, start: &Receiver<()>, events: &Sender<Event>) -> Result<ExitStatus, Failure> {
        unshare(self.mark)?;
        let port = make_device(&self.device)?;
        let not_started = || Failure::failed("the router could not be started");
        ports.send(port).map_err(|_| not_started())?;
        start.recv().map_err(|_| not_started())?;

        let (program, arguments) = self.command.split_first().ok_or_else(|| Failure::usage("no command"))?;
        let mut command = Command::new(program);
        command.args(arguments);
        process::end_with_this_thread(&mut command);
        let mut child = command.spawn().map_err(|error| cannot_start(program, &error))?;
        // As above.
        let _ = events.send(Event::Started(child.id()));
        child.wait().map_err(Failure::io("wait for the command"))
    }
}

/// The error for a command that cannot be started, with the exit status of env(1), timeout(1) and the shells: 127 if it
/// is not found, 126 if it cannot be executed.
pub(crate) fn cannot_start(program: &OsStr, error: &io::Error) -> Failure {
    let (status, way_out) = match error.kind() {
        io::ErrorKind::NotFound => (127, "the first word after -- must be a program in PATH, or a path to one"),
        _ => (126, "it must be a file that this user may execute"),
    };
    Failure::WithStatus(status, format!("cannot start {program:?}: {error}; {way_out}"))
}

/// The error with which the thread has ended.
pub(crate) fn failure_of(events: &Receiver<Event>) -> Failure {
    match events.recv() {
        Ok(Event::Ended(Err(failure))) => failure,
        _ => Failure::failed("the thread of the namespace has ended"),
    }
}

/// Waits until the command has ended; ends it on a signal, or when the path has ended.
pub(crate) fn wait(
    events: &Receiver<Event>,
    signals: &Signals,
    has_ended: impl Fn() -> bool,
) -> Result<ExitStatus, Failure> {
    let (mut child, mut asked): (Option<u32>, Option<Instant>) = (None, None);
    // A signal may arrive between the start of the command and its event.
    let mut is_to_end = false;
    loop {
        match events.recv_timeout(Duration::from_millis(5)) {
            Ok(Event::Started(pid)) => child = Some(pid),
            Ok(Event::Ended(result)) => return result,
            Err(_) => {}
        }
        // The end of the command is a signal too, so this does not delay it.
        let signal = signals.wait_for(Duration::from_millis(100));
        let is_end = matches!(signal, Some(Signal::Interrupt | Signal::Terminate | Signal::Quit | Signal::HangUp))
            || has_ended();
        is_to_end |= is_end;
        if let Some(pid) = child {
            match asked {
                // After Ctrl-C the terminal has signalled the command as well; a second signal does no harm.
                None if is_to_end => {
                    process::terminate(pid);
                    asked = Some(Instant::now());
                }
                Some(since) if since.elapsed() > PATIENCE || is_end && signal.is_some() => process::kill(pid),
                _ => {}
            }
        }
    }
}
