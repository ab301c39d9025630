//! The server of a run on another host: `ammeter subject` there, and [`RemoteServer`], which has it started from here.
//!
//! `ammeter subject` reads what to start as a line of JSON, starts it, and prints where it answers. At the line `measure` it begins
//! to count, at the line `end` it ends everything and prints what it counted; its files stay until standard input ends, which
//! ends it at any time.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use ammeter_load::drive::Stop;
use amped_measure::Failure;
use serde::{Deserialize, Serialize};

use super::session::{decoded, encoded};
use super::ssh::{Command, Connection, SOON};
use crate::archive::{Program, name};
use crate::environment::{Running, Streams, TestEnvironment, interrupted};
use crate::experiment::Settings;
use crate::run::{Side, Watched, patience};
use crate::say;
use crate::subject::Subject;

/// How long a server may take to start, with what it serves being made before.
const START: Duration = Duration::from_secs(600);

/// The files that it leaves.
const FILES: [&str; 7] =
    [name::SERVER_CONFIG, name::SERVER_LOG, "server.err", name::MONITOR, "monitor.log", name::PROFILE, "profile.log"];

/// A server to start.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Order {
    /// What it is, what it serves, and what it may have.
    pub(super) settings: Settings,
    /// From what contents are drawn.
    pub(super) seed: u64,
    /// How often the monitor looks; 0: not at all.
    pub(super) interval: Duration,
    /// The address that clients reach it by.
    pub(super) address: IpAddr,
}

/// Whether it was started.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Started {
    Ready(Ready),
    Refused(String),
}

/// A server that answers.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Ready {
    /// Where.
    pub(super) address: SocketAddr,
    /// What can be asked for.
    pub(super) target: String,
    /// The manifest of what is asked for, if it is a set: a file of that host.
    pub(super) manifest: Option<PathBuf>,
    /// The folder of its files.
    folder: PathBuf,
}

/// Runs `ammeter subject`, in the folder of the session with this process.
///
/// # Errors
/// When it is no fault of the server's.
pub(crate) fn serve(scratch: &Path, session: u32) -> Result<(), Failure> {
    // Before the first thread.
    let stop = Stop::on_signals(|| ())?;
    let mut environment = TestEnvironment::within(scratch)?;
    environment.is_shared = false;
    let (sender, lines) = channel();
    let (here, of_session) = (stop.clone(), PathBuf::from(format!("/proc/{session}")));
    thread::spawn(move || {
        let _ = io::stdin().lines().map_while(Result::ok).try_for_each(|line| sender.send(line));
        here.stop();
    });
    let here = stop.clone();
    thread::spawn(move || {
        while of_session.exists() {
            thread::sleep(Duration::from_millis(500));
        }
        here.stop();
    });
    let next = || lines.recv().map_err(|_| interrupted());
    let Order { settings, seed, interval, address } = decoded(&next()?)?;
    let site = environment.site_for(&settings, seed)?;
    let folder = environment.folder()?;
    let mut side = match Side::begin(&environment, &settings, &site, interval, Some(address), &folder.path, &stop)? {
        Ok(side) => side,
        Err(why) => return say::json(&Started::Refused(why)),
    };
    say::json(&Started::Ready(Ready {
        address: side.address(),
        target: site.target,
        manifest: site.manifest,
        folder: folder.path.clone(),
    }))?;
    while let Ok(line) = lines.recv() {
        match line.as_str() {
            "measure" => {
                side.calm(&stop)?;
                side.measure()?;
                say::json(&())?;
            }
            _ => {
                say::json(&side.end(&stop)?)?;
                // Until the files were fetched.
                let _ = lines.recv();
                break;
            }
        }
    }
    Ok(())
}

/// Prints which programs these subjects are, which come as a line of JSON: `ammeter subject --programs`.
///
/// # Errors
/// When one is not there.
pub(crate) fn print_programs() -> Result<(), Failure> {
    let mut line = String::new();
    io::stdin().read_line(&mut line).map_err(Failure::io("read the subjects"))?;
    let subjects: Vec<Subject> = decoded(&line)?;
    let programs = subjects.iter().map(|subject| Ok((subject.name.clone(), subject.identity()?)));
    say::json(&programs.collect::<Result<BTreeMap<String, Program>, Failure>>()?)
}

/// `ammeter subject` on another host. Dropped, it ends, and the server with it.
pub(super) struct RemoteServer {
    command: Command,
    pub(super) ready: Ready,
}

impl RemoteServer {
    /// Starts it; a server that cannot be run is no error, but the reason is returned.
    ///
    /// # Errors
    /// When the host is gone, or it is no fault of the server's; an interrupt.
    pub(super) fn start(
        connection: &Connection,
        order: &Order,
        stop: &Stop,
    ) -> Result<Result<RemoteServer, String>, Failure> {
        let facts = connection.facts()?;
        let (scratch, session) = (facts.scratch.display().to_string(), facts.pid.to_string());
        let words = connection.own(&["subject", "--scratch", &scratch, "--session", &session])?;
        let mut command = Command::start(&connection.name, &words)?;
        Ok(match decoded(&command.ask(&encoded(order)?, START, stop)?)? {
            Started::Ready(ready) => Ok(RemoteServer { command, ready }),
            Started::Refused(why) => Err(why),
        })
    }

    /// Begins to count.
    ///
    /// # Errors
    /// When the host is gone; an interrupt.
    pub(super) fn measure(&mut self, stop: &Stop) -> Result<(), Failure> {
        self.command.ask("measure", SOON, stop).map(drop)
    }

    /// Ends the server, and brings its files here.
    ///
    /// # Errors
    /// When the host is gone, or a file cannot be written; an interrupt.
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
            // It need not be there: a server without a configuration has none.
            if !Running::start("ssh", &words, streams)?.wait(SOON * 10, stop)?.success() {
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
            target: "/file".to_owned(),
            manifest: Some(PathBuf::from("/a/manifest.jsonl")),
            folder: PathBuf::from("/a"),
        };
        let sent = serde_json::to_string(&Started::Ready(ready.clone())).unwrap();
        let Started::Ready(found) = decoded(&sent).unwrap() else { panic!("{sent}") };
        assert_eq!((found.address, found.target, found.manifest), (ready.address, ready.target, ready.manifest));
        // No name of a file comes from there.
        assert!(FILES.iter().all(|name| Path::new(name).components().count() == 1 && !name.starts_with('.')));
    }
}
