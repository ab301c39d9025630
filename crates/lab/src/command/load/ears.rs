//! The consumers of each second of a run: the log of histograms, the screen or the
//! live line, and the parts for several hosts.

use std::io::{ErrorKind, IsTerminal};
use std::net::TcpStream;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use ammeter_load::drive::{Settings, Stop, Target};
use ammeter_load::parts::Recorded;
use ammeter_load::tally::Interval;
use amped_measure::{Failure, Verdict};

use super::args::Args;
use super::setup::Setup;
use super::summary::line;
use super::{hlog, screen};
use crate::say;

/// The consumers of each second of a run.
pub(super) struct Ears {
    /// The path of the log, and its description.
    place: Option<(PathBuf, String)>,
    /// Opened at the first run, so that a run that never begins does not overwrite an existing file.
    log: Mutex<Option<Heard>>,
    screen: Option<screen::Live>,
    /// Whether to print a line per second, without a screen.
    lines: bool,
    /// Whether the first run has begun.
    has_begun: AtomicBool,
    settings: Settings,
    /// How long to wait for the server, if given.
    wait: Option<Duration>,
    stop: Stop,
    /// The clocks of each second, if they are kept.
    pub(super) kept: Option<Mutex<Vec<Recorded>>>,
}

/// An open log, and its write error.
struct Heard {
    log: hlog::Log,
    failure: Option<Failure>,
}

impl Ears {
    pub(super) fn new(args: &Args, setup: &Setup, stop: &Stop) -> Result<Ears, Failure> {
        if args.screen && !std::io::stdout().is_terminal() {
            return Err(Failure::usage("--screen requires a terminal; otherwise use --json, --hlog or the summary"));
        }
        for path in [&args.html, &args.hlog].into_iter().flatten() {
            // Now rather than after the run. An existing file is kept until there is data to write.
            let opened = std::fs::File::options().append(true).create(true).open(path);
            opened.map_err(Failure::io(format_args!("write {}", path.display())))?;
        }
        Ok(Ears {
            place: args.hlog.clone().map(|path| (path, setup.url.clone())),
            log: Mutex::new(None),
            screen: args.screen.then(|| screen::Live::begin(stop)).transpose()?,
            lines: !args.screen && !args.json && std::io::stderr().is_terminal(),
            has_begun: AtomicBool::new(false),
            settings: setup.settings.clone(),
            wait: args.wait,
            stop: stop.clone(),
            kept: args.parts.is_some().then(Mutex::default),
        })
    }

    /// Checks that the server listens, with one connection without a request; otherwise the failure would show only
    /// after a whole run. A server that does not answer may be overloaded, and is measured.
    fn find_server(&self) -> Result<(), Failure> {
        /// Interval between attempts to reach a server that is starting.
        const PAUSE: Duration = Duration::from_millis(50);
        let (Target::Tcp(address), patience) = (&self.settings.target, self.wait.unwrap_or_default()) else {
            return Ok(());
        };
        let begin = Instant::now();
        let mut is_told = false;
        loop {
            let absent = [ErrorKind::ConnectionRefused, ErrorKind::HostUnreachable, ErrorKind::NetworkUnreachable];
            let error = match TcpStream::connect_timeout(address, self.settings.connect_timeout) {
                Err(error) if absent.contains(&error.kind()) => error,
                Ok(_) | Err(_) => return Ok(()),
            };
            if self.stop.is_stopped() {
                return Err(Failure::failed(
                    "interrupted while waiting for the server to listen, before the load began",
                ));
            }
            if begin.elapsed() >= patience {
                return Err(Failure::failed(format!(
                    "no server listens at {address}: {error}; start it first, wait for it with --wait 10s, or use --wait 0s \
                     to start without checking"
                )));
            }
            if !is_told {
                let text = format!("waiting for a server at {address}: {error}");
                match &self.screen {
                    Some(screen) => screen.next_run(text, Duration::ZERO),
                    None => say::plain(&text),
                }
                is_told = true;
            }
            pause(PAUSE, &self.stop);
        }
    }

    /// Begins a run.
    pub(super) fn begin(&self, title: &str, length: Duration) -> Result<(), Failure> {
        // If the server exits before a later run, the results of the earlier ones must be kept.
        if !self.has_begun.swap(true, Ordering::Relaxed) && self.wait != Some(Duration::ZERO) {
            self.find_server()?;
        }
        if let Some(screen) = &self.screen {
            screen.next_run(title.to_owned(), length);
        } else if self.lines {
            say::plain(title);
        }
        let Some((path, about)) = &self.place else { return Ok(()) };
        let mut heard = self.log.lock().unwrap_or_else(PoisonError::into_inner);
        let heard = match &mut *heard {
            Some(heard) => heard,
            none => none.insert(Heard { log: hlog::Log::create(path, about)?, failure: None }),
        };
        heard.log.note(title)
    }

    pub(super) fn hear(&self, interval: &Interval) {
        if let Some(Heard { log, failure }) = &mut *self.log.lock().unwrap_or_else(PoisonError::into_inner)
            && failure.is_none()
        {
            *failure = log.add(interval).err();
        }
        if let Some(kept) = &self.kept {
            kept.lock().unwrap_or_else(PoisonError::into_inner).push(Recorded::of(&interval.clocks));
        }
        match &self.screen {
            Some(screen) => screen.hear(interval),
            None if self.lines => say::plain(&line(&interval.second)),
            None => {}
        }
    }

    /// Logs the verdict after the seconds of a run.
    pub(super) fn judge(&self, verdict: &Verdict) {
        if let Some(Heard { log, failure }) = &mut *self.log.lock().unwrap_or_else(PoisonError::into_inner)
            && failure.is_none()
        {
            *failure = log.note(&format!("verdict {}", verdict.to_string().replace('\n', "; "))).err();
        }
    }

    /// Ends after the last run, and restores the terminal.
    pub(super) fn end(self) -> Result<(), Failure> {
        drop(self.screen);
        let heard = self.log.into_inner().unwrap_or_else(PoisonError::into_inner);
        heard.and_then(|heard| heard.failure).map_or(Ok(()), Err)
    }
}

/// Sleeps, unless stopped.
pub(super) fn pause(time: Duration, stop: &Stop) {
    let until = Instant::now() + time;
    while !stop.is_stopped() && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(10).min(time));
    }
}
