//! The side of a host: does what it is asked for over standard input, one thing after the other, and says what came of it.
//!
//! It lives as long as the ssh that started it. When its standard input ends, when nothing is heard for a minute (whoever asks is
//! heard every two seconds), or at a signal, what is under way is given up, and server, load, groups and folders are gone before
//! it is. What it started ends with it also where it is killed; groups and folders are then removed by the next who comes
//! (`environment.rs`).

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{IpAddr, TcpStream};
use std::process::{ChildStdin, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use ammeter_load::drive::Stop;
use amped_measure::Failure;
use serde::Serialize;

use super::words::{self, Ask, Began, Begin, LoadOrder, Loaded, Programs, Say, Who};
use crate::archive;
use crate::command::load::READY;
use crate::environment::{self, Folder, Running, Streams, TestEnvironment, interrupted};
use crate::experiment::{Cores, Limits};
use crate::group::Group;
use crate::run::{Side, Snapshot, look_at_rest, now_s, pinned};
use crate::subject;

/// How long the other side may be silent.
const SILENCE: Duration = Duration::from_secs(60);

/// How long a generator may take until it is ready: it may have many connections to park.
const READY_WITHIN: Duration = Duration::from_secs(120);

/// Does what is asked for, until the other side is gone.
///
/// # Errors
/// When this host allows nothing at all: no folder, no `/proc`.
pub(crate) fn run() -> Result<(), Failure> {
    // Before the first thread.
    let signals = Stop::on_signals(|| ())?;
    let mut environment = TestEnvironment::new()?;
    environment.is_shared = false;
    let out = Arc::new(Mutex::new(io::stdout()));
    let under_way = Arc::new(Mutex::new(Stop::default()));
    let heard = Arc::new(Mutex::new(Instant::now()));
    let (sender, asks) = channel();
    {
        let (out, under_way, heard) = (Arc::clone(&out), Arc::clone(&under_way), Arc::clone(&heard));
        thread::spawn(move || {
            let mut input = BufReader::new(io::stdin());
            while let Ok(Some(ask)) = words::read::<Ask>(&mut input) {
                *lock(&heard) = Instant::now();
                match ask {
                    Ask::Time(number) => drop(words::write(&mut *lock(&out), &Say::Time(number, now_s()))),
                    Ask::Abort => lock(&under_way).stop(),
                    ask => {
                        let stop = Stop::default();
                        *lock(&under_way) = stop.clone();
                        if sender.send((ask, stop)).is_err() {
                            break;
                        }
                    }
                }
            }
            lock(&under_way).stop();
        });
    }
    {
        let (signals, under_way, heard) = (signals.clone(), Arc::clone(&under_way), Arc::clone(&heard));
        thread::spawn(move || {
            loop {
                if lock(&heard).elapsed() > SILENCE {
                    signals.stop();
                }
                if signals.is_stopped() {
                    lock(&under_way).stop();
                }
                thread::sleep(Duration::from_millis(200));
            }
        });
    }
    let mut agent = Agent { side: None, loading: None, folder: None, out, environment };
    while !signals.is_stopped() {
        let (ask, stop) = match asks.recv_timeout(Duration::from_millis(200)) {
            Ok(next) => next,
            Err(RecvTimeoutError::Timeout) => continue,
            Err(RecvTimeoutError::Disconnected) => break,
        };
        let said = agent.answer(ask, &stop).unwrap_or_else(|failure| Say::Failed(failure.to_string()));
        if words::write(&mut *lock(&agent.out), &said).is_err() {
            break;
        }
    }
    Ok(())
}

/// A thread that panicked with the lock has left plain data.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What there is on this host; from the first to the last it is dropped.
struct Agent {
    side: Option<Side>,
    loading: Option<Loading>,
    /// Of the server's side, for its files.
    folder: Option<Folder>,
    out: Arc<Mutex<io::Stdout>>,
    environment: TestEnvironment,
}

/// A generator that is ready.
struct Loading {
    running: Running,
    input: ChildStdin,
    said: Arc<Mutex<String>>,
    /// Ends with what it reads.
    reader: thread::JoinHandle<()>,
    group: Option<Group>,
    order: LoadOrder,
    folder: Folder,
}

fn done(answer: &impl Serialize) -> Result<Say, Failure> {
    let value = serde_json::to_value(answer);
    value.map(Say::Done).map_err(|error| Failure::failed(format!("cannot write an answer: {error}")))
}

impl Agent {
    fn answer(&mut self, ask: Ask, stop: &Stop) -> Result<Say, Failure> {
        match ask {
            // They are answered elsewhere.
            Ask::Time(_) | Ask::Abort => done(&()),
            Ask::Who => done(&self.who()?),
            Ask::Programs(subjects) => {
                let identities = subjects.iter().map(|subject| Ok((subject.name.clone(), subject.identity()?)));
                done(&identities.collect::<Result<Programs, Failure>>()?)
            }
            Ask::Rest(rules) => done(&look_at_rest(&rules, stop)?),
            Ask::Begin(begin) => done(&self.begin(&begin, stop)?),
            Ask::Calm => done(&self.side()?.calm(stop)?),
            Ask::Measure => done(&self.side()?.measure()?),
            Ask::End => {
                let side = self.side.take().ok_or_else(nothing)?;
                let watched = side.end(stop)?;
                self.send_files()?;
                self.folder = None;
                done(&watched)
            }
            Ask::Load(order) => {
                self.loading = None;
                self.loading = Some(self.load(*order, stop)?);
                done(&())
            }
            Ask::Go(at_s) => {
                let loading = self.loading.take().ok_or_else(nothing)?;
                done(&loading.go(at_s, stop)?)
            }
            Ask::Clear => {
                self.clear();
                done(&())
            }
        }
    }

    fn clear(&mut self) {
        self.loading = None;
        self.side = None;
        self.folder = None;
    }

    fn side(&mut self) -> Result<&mut Side, Failure> {
        self.side.as_mut().ok_or_else(nothing)
    }

    fn who(&self) -> Result<Who, Failure> {
        // ssh(1): the client's address and port, the server's address and port.
        let connection = std::env::var("SSH_CONNECTION").unwrap_or_default();
        let address: Option<IpAddr> = connection.split(' ').nth(2).and_then(|address| address.parse().ok());
        Ok(Who {
            host: environment::host(self.environment.words(&Cores::default()))?,
            is_root: self.environment.is_root,
            address,
            program: subject::identity(&self.environment.own, "--version"),
        })
    }

    fn begin(&mut self, Begin { settings, seed, interval, address }: &Begin, stop: &Stop) -> Result<Began, Failure> {
        self.clear();
        let site = self.environment.site_for(settings, *seed)?;
        let folder = self.folder.insert(self.environment.folder()?);
        let side = Side::begin(&self.environment, settings, &site, *interval, Some(*address), &folder.path, stop)?;
        let side = match side {
            Ok(side) => self.side.insert(side),
            Err(why) => return Ok(Began::Refused(why)),
        };
        let read = |path| std::fs::read_to_string(path).map_err(Failure::io("read the manifest"));
        let manifest = site.manifest.map(read).transpose()?;
        Ok(Began::Ready { address: side.address(), target: site.target, manifest })
    }

    /// Sends what the server's side has left.
    fn send_files(&self) -> Result<(), Failure> {
        let Some(folder) = &self.folder else { return Ok(()) };
        let sent = || -> io::Result<()> {
            for entry in std::fs::read_dir(&folder.path)? {
                let entry = entry?;
                let name = entry.file_name().to_string_lossy().into_owned();
                let mut file = std::fs::File::open(entry.path())?;
                let meta = file.metadata()?;
                if !meta.is_file() || !words::is_file_sound(&name, meta.len()) {
                    continue;
                }
                let mut out = lock(&self.out);
                words::write(&mut *out, &Say::File { name, bytes: meta.len() })?;
                // Of one that grows meanwhile, what was told of; one that shrinks is filled up, or what follows would be lost.
                let sent = io::copy(&mut (&mut file).take(meta.len()), &mut *out)?;
                io::copy(&mut io::repeat(0).take(meta.len() - sent), &mut *out)?;
            }
            Ok(())
        };
        sent().map_err(Failure::io("send what the run has left"))
    }

    /// Starts a generator, and waits until it could begin.
    fn load(&self, order: LoadOrder, stop: &Stop) -> Result<Loading, Failure> {
        TcpStream::connect_timeout(&order.server, Duration::from_secs(5)).map_err(|error| {
            Failure::failed(format!(
                "cannot reach the server at {}: {error}; is there a firewall between, or has the server another address for \
                 clients? name it: [hosts] address = \"...\"",
                order.server
            ))
        })?;
        let folder = self.environment.folder()?;
        let group = if self.environment.has_groups { Some(Group::counter()?) } else { None };
        let mut words = group.as_ref().map_or(Vec::new(), Group::prefix);
        words.extend(pinned(order.cores.as_deref()));
        words.push(self.environment.own.display().to_string());
        words.extend(order.words.iter().cloned());
        if let Some(manifest) = &order.manifest {
            let path = folder.path.join("manifest.jsonl");
            archive::write_bytes(&path, manifest.as_bytes())?;
            words.extend(["--workload".to_owned(), path.display().to_string()]);
        }
        words.extend(["--await-start", "--parts"].map(str::to_owned));
        words.push(folder.path.join("parts.json").display().to_string());
        let streams = Streams { out: Stdio::null(), err: Stdio::piped() };
        let mut running = Running::start_with("the load", &words, streams, Stdio::piped())?;
        let (Some(input), Some(errors)) = (running.take_input(), running.take_errors()) else { return Err(nothing()) };
        let said = Arc::new(Mutex::new(String::new()));
        let (ready, is_ready) = channel();
        let reader = {
            let said = Arc::clone(&said);
            thread::spawn(move || {
                for line in BufReader::new(errors).lines().map_while(Result::ok) {
                    if line == READY {
                        let _ = ready.send(());
                    } else {
                        lock(&said).extend([line.as_str(), "\n"]);
                    }
                }
            })
        };
        let begin = Instant::now();
        loop {
            match is_ready.recv_timeout(Duration::from_millis(20)) {
                Ok(()) => return Ok(Loading { running, input, said, reader, group, order, folder }),
                // It has said all that it will.
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(Failure::failed(format!("no load can be made: {}", lock(&said).trim())));
                }
                Err(RecvTimeoutError::Timeout) if stop.is_stopped() => return Err(interrupted()),
                Err(RecvTimeoutError::Timeout) if begin.elapsed() > READY_WITHIN => {
                    return Err(Failure::failed(format!("the load was not ready within {READY_WITHIN:?}")));
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }
}

impl Loading {
    /// Has it begin at this instant, and waits for its end.
    fn go(self, at_s: f64, stop: &Stop) -> Result<Loaded, Failure> {
        let Loading { running, mut input, said, reader, group, order, folder } = self;
        let before = Snapshot::take(None, group.as_ref())?;
        writeln!(input, "{at_s}").map_err(Failure::io("have the load begin"))?;
        drop(input);
        let status = running.wait(order.patience, stop)?;
        let spell = before.until(&Snapshot::take(None, group.as_ref())?);
        let _ = reader.join();
        let parts = std::fs::read_to_string(folder.path.join("parts.json")).ok();
        let said = match (&parts, lock(&said).trim()) {
            (None, said) => format!("the load ended with {status}: {said}"),
            (Some(_), said) => said.to_owned(),
        };
        Ok(Loaded { parts, said, spell })
    }
}

/// The other side has asked in a wrong order.
fn nothing() -> Failure {
    Failure::failed("there is nothing to be done so: is it another version that asks?")
}

/// Whether limits take root.
pub(super) fn takes_root(limits: &Limits) -> bool {
    limits.memory.is_some() || limits.disk.is_some() || limits.cpu.is_some()
}
