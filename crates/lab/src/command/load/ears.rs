//! Everything that receives each second of a run: the log of histograms, the screen or the live line, and the parts for a
//! fleet.

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
use super::asked::Asked;
use super::summary::line;
use super::{hlog, screen};
use crate::say;

/// Who hears of each second of a run: the log, and whoever watches.
pub(super) struct Ears {
    /// Where a log is to be, and what it is of.
    place: Option<(PathBuf, String)>,
    /// From the first run on: what was in its place is not lost to a run that never was.
    log: Mutex<Option<Heard>>,
    screen: Option<screen::Live>,
    /// A line each, if there is no screen.
    lines: bool,
    /// Whether the first run has begun.
    has_begun: AtomicBool,
    settings: Settings,
    /// How long to wait for the server, if that is said.
    wait: Option<Duration>,
    stop: Stop,
    /// The clocks of each second, where they are to be kept.
    pub(super) kept: Option<Mutex<Vec<Recorded>>>,
}

/// A log, and what became of it.
struct Heard {
    log: hlog::Log,
    failure: Option<Failure>,
}

impl Ears {
    pub(super) fn new(args: &Args, asked: &Asked, stop: &Stop) -> Result<Ears, Failure> {
        if args.screen && !std::io::stdout().is_terminal() {
            return Err(Failure::usage(
                "--screen is for a terminal; elsewhere there are --json, --hlog and the summary",
            ));
        }
        for path in [&args.html, &args.hlog].into_iter().flatten() {
            // Now rather than after the run: what is there is kept until there is something to write.
            let opened = std::fs::File::options().append(true).create(true).open(path);
            opened.map_err(Failure::io(format_args!("write {}", path.display())))?;
        }
        Ok(Ears {
            place: args.hlog.clone().map(|path| (path, asked.url.clone())),
            log: Mutex::new(None),
            screen: args.screen.then(|| screen::Live::begin(stop)).transpose()?,
            lines: !args.screen && !args.json && std::io::stderr().is_terminal(),
            has_begun: AtomicBool::new(false),
            settings: asked.settings.clone(),
            wait: args.wait,
            stop: stop.clone(),
            kept: args.parts.is_some().then(Mutex::default),
        })
    }

    /// Looks whether anybody listens, by one connection on which nothing is asked: else that would be told after a whole run. Who
    /// does not answer may be overloaded, and is measured.
    fn find_server(&self) -> Result<(), Failure> {
        /// Between two looks for a server that is to come.
        const PAUSE: Duration = Duration::from_millis(50);
        let (Target::Tcp(address), patience) = (&self.settings.target, self.wait.unwrap_or_default()) else {
            return Ok(());
        };
        let begin = Instant::now();
        let mut is_told = false;
        loop {
            let nobody = [ErrorKind::ConnectionRefused, ErrorKind::HostUnreachable, ErrorKind::NetworkUnreachable];
            let error = match TcpStream::connect_timeout(address, self.settings.connect_timeout) {
                Err(error) if nobody.contains(&error.kind()) => error,
                Ok(_) | Err(_) => return Ok(()),
            };
            if self.stop.is_stopped() {
                return Err(Failure::failed(
                    "interrupted while waiting for the server to listen: the load had not begun",
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

    /// A run begins.
    pub(super) fn begin(&self, title: &str, length: Duration) -> Result<(), Failure> {
        // Of several, whoever has gone meanwhile is no reason to lose those before.
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

    /// What a run was worth goes behind its seconds.
    pub(super) fn judge(&self, verdict: &Verdict) {
        if let Some(Heard { log, failure }) = &mut *self.log.lock().unwrap_or_else(PoisonError::into_inner)
            && failure.is_none()
        {
            *failure = log.note(&format!("verdict {}", verdict.to_string().replace('\n', "; "))).err();
        }
    }

    /// After the last run. The terminal is as it was.
    pub(super) fn end(self) -> Result<(), Failure> {
        drop(self.screen);
        let heard = self.log.into_inner().unwrap_or_else(PoisonError::into_inner);
        heard.and_then(|heard| heard.failure).map_or(Ok(()), Err)
    }
}

/// Sleeps, unless it is time to stop.
pub(super) fn pause(time: Duration, stop: &Stop) {
    let until = Instant::now() + time;
    while !stop.is_stopped() && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(10).min(time));
    }
}
