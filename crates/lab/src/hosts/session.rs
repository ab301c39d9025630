//! `ammeter agent session`: keeps a host ready for the runs of an experiment while the connection lasts.
//!
//! It first prints one line that describes the host ([`Facts`]). It then answers each number on standard input with a
//! line that holds the number, the time and the CPU time used so far ([`Moment`]). At the end of standard input, at a
//! signal, or after a minute of silence it removes its directory and ends.

use std::fs;
use std::io;
use std::net::{IpAddr, UdpSocket};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use ammeter_load::drive::Stop;
use amped_measure::{Failure, host};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::archive::{Host, Program};
use crate::environment::{self, TestEnvironment};
use crate::experiment::Cores;
use crate::run::now_s;
use crate::{say, subject};

/// Silence after which the other side counts as lost; it requests the time every two seconds.
const SILENCE: Duration = Duration::from_secs(60);

/// Timeout for the session's commands to remove their directories once their input has ended.
const REMOVED_WITHIN: Duration = Duration::from_secs(10);

/// A host's description of itself.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Facts {
    /// The machine and its kernel.
    pub(super) host: Host,
    /// Whether the session runs as root.
    pub(super) is_root: bool,
    /// The address at which ssh reached the host (ssh(1), SSH_CONNECTION), or from which the host reaches others; `None` if
    /// there is none.
    pub(super) address: Option<IpAddr>,
    /// The `ammeter` on the host.
    pub(super) program: Program,
    /// The directory for all files of the session's commands.
    pub(super) scratch: PathBuf,
    /// The process id of the session.
    pub(super) pid: u32,
}

/// A time by the host's clock.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct Moment {
    /// The number of the request.
    pub(super) number: u64,
    /// Seconds since the Unix epoch.
    pub(super) at_s: f64,
    /// CPU time that the machine has used so far, in nanoseconds.
    pub(super) busy_ns: u64,
}

/// Runs a session until its connection ends.
///
/// # Errors
/// If no directory can be created, or `/proc` is not mounted.
pub(crate) fn run() -> Result<(), Failure> {
    // Handle signals before any thread starts.
    let stop = Stop::on_signals(|| ())?;
    let mut environment = TestEnvironment::new()?;
    environment.is_shared = false;
    say::json(&facts(&environment)?)?;
    let (sender, lines) = channel();
    thread::spawn(move || io::stdin().lines().map_while(Result::ok).try_for_each(|line| sender.send(line)));
    let mut heard = Instant::now();
    while !stop.is_stopped() && heard.elapsed() < SILENCE {
        match lines.recv_timeout(Duration::from_millis(200)) {
            Ok(line) => {
                heard = Instant::now();
                let number = line.trim().parse().unwrap_or_default();
                let moment = Moment { number, at_s: now_s(), busy_ns: host::busy_ns()? };
                if say::json(&moment).is_err() {
                    break;
                }
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => break,
        }
    }
    await_removal(&environment.scratch);
    Ok(())
}

fn facts(environment: &TestEnvironment) -> Result<Facts, Failure> {
    // SSH_CONNECTION holds the client's address and port, then the server's address and port (ssh(1)).
    let connection = std::env::var("SSH_CONNECTION").unwrap_or_default();
    let address = connection.split(' ').nth(2).and_then(|address| address.parse().ok());
    Ok(Facts {
        host: environment::host(environment.words(&Cores::default()))?,
        is_root: environment.is_root,
        address: address.or_else(own_address),
        program: subject::identity(&environment.own, "--version"),
        scratch: environment.scratch.clone(),
        pid: std::process::id(),
    })
}

/// The address from which this machine sends by its default route. Sends nothing.
fn own_address() -> Option<IpAddr> {
    // An address for documentation (RFC 5737).
    let socket = UdpSocket::bind("0.0.0.0:0").ok()?;
    socket.connect("192.0.2.1:9").ok()?;
    socket.local_addr().ok().map(|address| address.ip())
}

/// Waits for the connection's other commands: they end with it too, and use the directory until then.
fn await_removal(scratch: &Path) {
    let begin = Instant::now();
    let is_used = || {
        let mut entries = fs::read_dir(scratch).into_iter().flatten().flatten();
        entries.any(|entry| entry.file_name().to_string_lossy().starts_with("run-"))
    };
    while is_used() && begin.elapsed() < REMOVED_WITHIN {
        thread::sleep(Duration::from_millis(20));
    }
}

/// Decodes a line of JSON.
pub(super) fn decoded<T: DeserializeOwned>(line: &str) -> Result<T, Failure> {
    serde_json::from_str(line).map_err(|error| {
        let begin: String = line.trim().chars().take(200).collect();
        Failure::failed(format!("cannot read {begin:?}: {error}; does it have another version of ammeter?"))
    })
}

/// Encodes a value as a line of JSON.
pub(super) fn encoded(value: &impl Serialize) -> Result<String, Failure> {
    serde_json::to_string(value).map_err(|error| Failure::failed(format!("cannot encode a line: {error}")))
}
