//! The server of a run on another host: `ammeter agent server` there, and [`RemoteServer`], which controls it from here.
//!
//! `ammeter agent server` reads an order as a line of JSON, starts the server, and prints its address. The line `measure`
//! starts the measurement; the line `end` stops everything and prints the results. Its files remain until standard
//! input ends; the end of standard input stops it at any time.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

use ammeter_load::drive::Stop;
use ammeter_wan::join::Invitation;
use amped_measure::Failure;
use serde::{Deserialize, Serialize};

use super::connection::{Command, Connection, SOON};
use super::session::{decoded, encoded};
use crate::archive::{Program, name};
use crate::environment::{Running, Streams, TestEnvironment, interrupted};
use crate::experiment::Settings;
use crate::run::{self, Side, Watched, patience};
use crate::say;
use crate::subject::Subject;

/// Timeout for a server to start, including the generation of its content.
const START: Duration = Duration::from_secs(600);

/// The files that a run leaves.
const FILES: [&str; 7] =
    [name::SERVER_CONFIG, name::SERVER_LOG, "server.err", name::MONITOR, "monitor.log", name::PROFILE, "profile.log"];

/// An order to start a server.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Order {
    /// Scratch directory of the session.
    pub(super) scratch: PathBuf,
    /// Process id of the session; the server ends with it.
    pub(super) session: u32,
    /// The server, its content and its limits.
    pub(super) settings: Settings,
    /// Seed for the generated content.
    pub(super) seed: u64,
    /// Sampling interval of the monitor; 0 disables it.
    pub(super) interval: Duration,
    /// The address at which clients reach the server.
    pub(super) address: IpAddr,
}

/// The answer to an order.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Started {
    Ready(Ready),
    Refused(String),
}

/// A server that answers requests.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Ready {
    /// The address that it listens on.
    pub(super) address: SocketAddr,
    /// The request target.
    pub(super) target: String,
    /// How clients join the path to the server, if there is one.
    pub(super) invitation: Option<Invitation>,
    /// The manifest of a set of targets, if there is one: a path on that host.
    pub(super) manifest: Option<PathBuf>,
    /// The directory of the run's files.
    folder: PathBuf,
}

/// Runs `ammeter agent server`.
///
/// # Errors
/// Any failure that is not the server's fault.
pub(crate) fn serve() -> Result<(), Failure> {
    // Handle signals before any thread starts.
    let stop = Stop::on_signals(|| ())?;
    let (sender, lines) = channel();
    let here = stop.clone();
    thread::spawn(move || {
        let _ = io::stdin().lines().map_while(Result::ok).try_for_each(|line| sender.send(line));
        here.stop();
    });
    let order: Order = decoded(&lines.recv().map_err(|_| interrupted())?)?;
    let mut environment = TestEnvironment::within(&order.scratch)?;
    // Clients on other hosts reach the server at this host's own address.
    (environment.is_shared, environment.is_private) = (false, false);
    let (here, of_session) = (stop.clone(), PathBuf::from(format!("/proc/{}", order.session)));
    thread::spawn(move || {
        while of_session.exists() {
            thread::sleep(Duration::from_millis(500));
        }
        here.stop();
    });
    // A path moves the thread of the run into the namespace of its clients, where nothing is left afterwards.
    run::apart(&environment, &stop, move |environment, stop| obey(environment, &order, &lines, stop))
}

/// Starts the server, and does what the lines say.
fn obey(environment: &TestEnvironment, order: &Order, lines: &Receiver<String>, stop: &Stop) -> Result<(), Failure> {
    let Order { settings, seed, interval, address, .. } = order;
    let site = environment.site_for(settings, *seed)?;
    let folder = environment.folder()?;
    let mut side = match Side::begin(environment, settings, &site, *interval, Some(*address), &folder.path, stop)? {
        Ok(side) => side,
        Err(why) => return say::json(&Started::Refused(why)),
    };
    say::json(&Started::Ready(Ready {
        address: side.address(),
        invitation: side.invitation()?,
        target: site.target,
        manifest: site.manifest,
        folder: folder.path.clone(),
    }))?;
    while let Ok(line) = lines.recv() {
        match line.as_str() {
            "measure" => {
                side.calm(stop)?;
                side.measure()?;
                say::json(&())?;
            }
            _ => {
                say::json(&side.end(stop)?)?;
                // Keep the files until the other side has fetched them.
                let _ = lines.recv();
                break;
            }
        }
    }
    Ok(())
}

/// Runs `ammeter agent programs`: reads subjects as a line of JSON, and prints their programs.
///
/// # Errors
/// If a program is missing.
pub(crate) fn print_programs() -> Result<(), Failure> {
    let mut line = String::new();
    io::stdin().read_line(&mut line).map_err(Failure::io("read the subjects"))?;
    let subjects: Vec<Subject> = decoded(&line)?;
    let programs = subjects.iter().map(|subject| Ok((subject.name.clone(), subject.identity()?)));
    say::json(&programs.collect::<Result<BTreeMap<String, Program>, Failure>>()?)
}

/// `ammeter agent server` on another host. Dropping it stops it and the server.
pub(super) struct RemoteServer {
    command: Command,
    pub(super) ready: Ready,
}

impl RemoteServer {
    /// Starts `ammeter agent server`; returns the reason, not an error, if the server cannot run.
    ///
    /// # Errors
    /// If the host is lost, or on a failure that is not the server's fault; an interrupt.
    pub(super) fn start(
        connection: &Connection,
        order: &Order,
        stop: &Stop,
    ) -> Result<Result<RemoteServer, String>, Failure> {
        let mut command = Command::start(&connection.name, &connection.own(&["agent", "server"])?)?;
        Ok(match decoded(&command.ask(&encoded(order)?, START, stop)?)? {
            Started::Ready(ready) => Ok(RemoteServer { command, ready }),
            Started::Refused(why) => Err(why),
        })
    }

    /// Starts the measurement.
    ///
    /// # Errors
    /// If the host is lost; an interrupt.
    pub(super) fn measure(&mut self, stop: &Stop) -> Result<(), Failure> {
        self.command.ask("measure", SOON, stop).map(drop)
    }

    /// Stops the server and copies its files here.
    ///
    /// # Errors
    /// If the host is lost or a file cannot be written; an interrupt.
    pub(super) fn end(
        mut self,
        connection: &Connection,
        settings: &Settings,
        into: &Path,
        stop: &Stop,
    ) -> Result<Watched, Failure> {
        let watched = decoded(&self.command.ask("end", patience(settings, settings.load.duration), stop)?)?;
        for name in FILES {
            let path = into.join(name);
            let words = connection.shell(&["cat", &self.ready.folder.join(name).display().to_string()]);
            let file = File::create(&path).map_err(Failure::io(format_args!("write {}", path.display())))?;
            let streams = Streams { out: file.into(), err: Stdio::null() };
            // A file may be missing: a server without a configuration has none.
            if !Running::start("the copy of a file", &words, streams)?.wait(SOON * 10, stop)?.success() {
                let _ = fs::remove_file(&path);
            }
        }
        Ok(watched)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hosts::session::{Facts, Moment};
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn random_line_does_not_panic(line in "\\PC{0,80}") {
            let _ = (decoded::<Facts>(&line), decoded::<Moment>(&line), decoded::<Watched>(&line));
            if let Err(why) = decoded::<Started>(&line) {
                prop_assert!(why.to_string().contains("another version"), "{}", why);
            }
        }
    }

    #[test]
    fn messages_between_hosts_round_trip() {
        let ready = Ready {
            address: "10.0.0.1:80".parse().unwrap(),
            invitation: None,
            target: "/file".to_owned(),
            manifest: Some(PathBuf::from("/a/manifest.jsonl")),
            folder: PathBuf::from("/a"),
        };
        let sent = serde_json::to_string(&Started::Ready(ready.clone())).unwrap();
        let Started::Ready(found) = decoded(&sent).unwrap() else { panic!("{sent}") };
        assert_eq!((found.address, found.target, found.manifest), (ready.address, ready.target, ready.manifest));
        // The remote host supplies no file names.
        assert!(FILES.iter().all(|name| Path::new(name).components().count() == 1 && !name.starts_with('.')));
    }
}
