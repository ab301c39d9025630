//! One ssh to a host, with the host's agent at its other end.
//!
//! All that is said to a host goes over this one connection: who it is, the program itself where it has not got the same, what is
//! to be done, the time, and the files that come back. A master of the user's (`ControlPath`) is used where there is one, and none
//! is made, as it would outlive us. The shell there first says what there is, and is then told to start it, or to take a copy into
//! a folder that it removes when the agent has ended.
//!
//! A host that is gone is known by the end of ssh (`ServerAliveInterval`), or by its silence: it is asked for the time every two
//! seconds, and answers whatever else it does.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use ammeter_load::drive::Stop;
use amped_measure::Failure;
use serde::de::DeserializeOwned;

use super::clock::Exchange;
use super::words::{self, Ask, Say};
use crate::archive::{Offset, Program};
use crate::environment::{Running, Streams, interrupted};
use crate::run::now_s;

/// How long a host may take until its shell says something.
const GREETING_WITHIN: Duration = Duration::from_secs(60);

/// How long it may be silent.
const SILENCE: Duration = Duration::from_secs(20);

/// How often it is asked for the time, so that both sides know of each other.
const BEAT: Duration = Duration::from_secs(2);

/// How long it may take to end and remove everything.
const END: Duration = Duration::from_secs(15);

/// What the first line begins with that is no greeting of the machine's.
const GREETING: &str = "ammeter-host";

/// What the shell there does, whatever shell it is: sh(1) of POSIX in quotes, so without any in it.
const SHELL: &str = "exec sh -c 'PATH=$PATH:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin; export PATH; \
    own=$(command -v ammeter); hash=$(sha256sum ${own:-/dev/null} | cut -d\" \" -f1); \
    version=$(${own:-false} --version 2>/dev/null | tr \" \" _); \
    echo ammeter-host $(uname -s) $(uname -m) ${hash:-none} ${version:-none}; read -r what bytes || exit 0; \
    if [ \"$what\" = own ]; then exec ammeter agent; fi; [ \"$what\" = copy ] || exit 0; \
    set -- $(cat /proc/$$/stat); dir=/var/tmp/ammeter-run-$$-${22}-agent; \
    trap \"rm -rf $dir\" EXIT; trap \"exit 1\" HUP INT TERM PIPE; umask 077; \
    mkdir $dir && head -c $bytes > $dir/ammeter && chmod 700 $dir/ammeter && $dir/ammeter agent'";

/// What comes from a host.
enum Event {
    /// The first line.
    Greeting(String),
    /// Its time for a question of this number, and when that came.
    Time(u64, f64, f64),
    /// What came of what it was asked for.
    Answer(Result<serde_json::Value, String>),
    /// Nothing more, and why, if that is known.
    Gone(Option<String>),
}

/// The way to a host, and what is known of it. Dropped, the agent has ended, or is told so by the end of the connection.
pub(super) struct Channel {
    /// As the user's ssh knows it.
    pub(super) name: String,
    running: Option<Running>,
    events: Receiver<Event>,
    shared: Arc<Shared>,
    /// Answers that have not come.
    awaited: usize,
    /// Why it is gone.
    gone: Option<String>,
}

/// What the threads beside it have in common.
struct Shared {
    input: Mutex<Option<ChildStdin>>,
    /// When something came last.
    heard: Mutex<Instant>,
    /// What ssh says besides.
    errors: Mutex<String>,
    /// Where files go that come from there.
    into: Mutex<Option<PathBuf>>,
    is_over: AtomicBool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    fn ask(&self, ask: &Ask) -> io::Result<()> {
        let mut input = lock(&self.input);
        words::write(input.as_mut().ok_or(io::ErrorKind::BrokenPipe)?, ask)
    }
}

impl Channel {
    /// Starts ssh; it ends with the calling thread.
    ///
    /// # Errors
    /// When there is no such program.
    pub(super) fn open(name: &str, ssh: &[String]) -> Result<Channel, Failure> {
        let options = [
            "BatchMode=yes",
            "ControlMaster=no",
            "RemoteCommand=none",
            "ConnectTimeout=10",
            "ServerAliveInterval=5",
            "ServerAliveCountMax=3",
        ];
        let mut words = ssh.to_vec();
        words.push("-T".to_owned());
        words.extend(options.into_iter().flat_map(|option| ["-o".to_owned(), option.to_owned()]));
        words.extend([name.to_owned(), SHELL.to_owned()]);
        let streams = Streams { out: Stdio::piped(), err: Stdio::piped() };
        let mut running = Running::start_with("ssh", &words, streams, Stdio::piped()).map_err(|failure| {
            Failure::usage(format!(
                "{failure}; install it (apt-get install openssh-client), or name it: [hosts] ssh = ..."
            ))
        })?;
        let shared = Arc::new(Shared {
            input: Mutex::new(running.take_input()),
            heard: Mutex::new(Instant::now()),
            errors: Mutex::default(),
            into: Mutex::default(),
            is_over: AtomicBool::new(false),
        });
        let (sender, events) = channel();
        if let (Some(output), Some(errors)) = (running.take_output(), running.take_errors()) {
            let here = Arc::clone(&shared);
            thread::spawn(move || {
                for line in BufReader::new(errors).lines().map_while(Result::ok) {
                    let mut said = lock(&here.errors);
                    said.extend([line.trim_end(), "\n"]);
                    // The last lines tell.
                    while said.len() > 4096 {
                        let end = said.find('\n').map_or(said.len(), |end| end + 1);
                        said.drain(..end);
                    }
                }
            });
            let here = Arc::clone(&shared);
            thread::spawn(move || {
                let why = here.listen(&mut BufReader::new(output), &sender).err();
                let _ = sender.send(Event::Gone(why.map(|why| why.to_string())));
            });
        }
        Ok(Channel { name: name.to_owned(), running: Some(running), events, shared, awaited: 0, gone: None })
    }

    /// Has the same program run there as here, `own`, whose bytes lie at its path.
    ///
    /// # Errors
    /// When the host cannot be reached, or has no such program and cannot be given it: with the way out.
    pub(super) fn greet(&mut self, own: &Program, stop: &Stop) -> Result<(), Failure> {
        let begin = Instant::now();
        let greeting = loop {
            match self.events.recv_timeout(Duration::from_millis(50)) {
                Ok(Event::Greeting(line)) => break line,
                Ok(Event::Gone(_)) => return Err(self.unreachable()),
                Ok(Event::Time(..) | Event::Answer(_)) | Err(_) => {}
            }
            if stop.is_stopped() {
                return Err(interrupted());
            }
            if begin.elapsed() > GREETING_WITHIN {
                let name = &self.name;
                return Err(Failure::failed(format!(
                    "{name}: nothing came within {GREETING_WITHIN:?}; try: ssh {name} true"
                )));
            }
        };
        let name = &self.name;
        let fields: Vec<&str> = greeting.split(' ').collect();
        let [_, system, machine, hash, version] = fields[..] else {
            return Err(Failure::failed(format!(
                "{name}: it says {greeting:?}; is there a POSIX sh, with uname and sha256sum?"
            )));
        };
        let is_same_kind = (system, machine) == ("Linux", std::env::consts::ARCH);
        let own_version = own.version.replace(' ', "_");
        if hash == own.sha256 || (!is_same_kind && version == own_version) {
            self.send(b"own 0\n");
        } else if is_same_kind {
            let bytes = fs::read(&own.path).map_err(Failure::io(format_args!("read {}", own.path.display())))?;
            self.send(format!("copy {}\n", bytes.len()).as_bytes());
            self.send(&bytes);
        } else {
            let has = if version == "none" { "no ammeter".to_owned() } else { version.replace('_', " ") };
            return Err(Failure::failed(format!(
                "{name} is {system} on {machine} and has {has}; this machine has another processor, so that it cannot be given a \
                 copy: build {} there (cargo build --release), and put it into its PATH",
                own.version
            )));
        }
        let shared = Arc::clone(&self.shared);
        thread::spawn(move || {
            let mut asked = Instant::now();
            while !shared.is_over.load(Ordering::Relaxed) {
                thread::sleep(Duration::from_millis(100));
                if asked.elapsed() >= BEAT {
                    asked = Instant::now();
                    if shared.ask(&Ask::Time(0)).is_err() {
                        return;
                    }
                }
            }
        });
        Ok(())
    }

    /// What cannot be sent finds ssh ended, which is told where its end is seen.
    fn send(&self, bytes: &[u8]) {
        if let Some(input) = &mut *lock(&self.shared.input) {
            let _ = input.write_all(bytes).and_then(|()| input.flush());
        }
    }

    /// How ssh ended, in its own words.
    fn ending(&mut self) -> String {
        let begin = Instant::now();
        let mut status = None;
        while let Some(running) = &mut self.running
            && status.is_none()
            && begin.elapsed() < Duration::from_secs(2)
        {
            status = running.ended();
            thread::sleep(Duration::from_millis(5));
        }
        let status = status.map_or("its streams are closed".to_owned(), |status| status.to_string());
        let said = lock(&self.shared.errors).trim().replace('\n', "; ");
        if said.is_empty() { status } else { format!("{status}: {said}") }
    }

    fn unreachable(&mut self) -> Failure {
        let how = self.ending();
        let name = &self.name;
        Failure::failed(format!(
            "{name} cannot be reached: ssh ended with {how}; no password is asked for and no new host is trusted, so this must \
             work by itself: ssh -o BatchMode=yes {name} true"
        ))
    }

    /// Asks for something.
    ///
    /// # Errors
    /// When the host is gone.
    pub(super) fn ask(&mut self, ask: &Ask) -> Result<(), Failure> {
        if self.is_gone() {
            return Err(self.is_no_more());
        }
        if self.shared.ask(ask).is_err() {
            return Err(self.lost(None));
        }
        self.awaited += usize::from(!matches!(ask, Ask::Time(_) | Ask::Abort));
        Ok(())
    }

    /// Whether it is gone.
    pub(super) fn is_gone(&self) -> bool {
        self.gone.is_some()
    }

    fn is_no_more(&self) -> Failure {
        Failure::failed(self.gone.clone().unwrap_or_default())
    }

    fn lost(&mut self, why: Option<String>) -> Failure {
        let why = why.unwrap_or_else(|| format!("ssh ended with {}", self.ending()));
        self.gone = Some(format!("{} is gone: {why}", self.name));
        self.shared.is_over.store(true, Ordering::Relaxed);
        // Whatever is left of it is ended at the other side by the end of the connection.
        lock(&self.shared.input).take();
        self.running = None;
        self.is_no_more()
    }

    /// An answer, if one has come. Does not wait.
    ///
    /// # Errors
    /// When what was asked cannot be done, or the host is gone.
    pub(super) fn poll(&mut self) -> Result<Option<serde_json::Value>, Failure> {
        if self.is_gone() {
            return Err(self.is_no_more());
        }
        loop {
            match self.events.try_recv() {
                Ok(Event::Answer(answer)) => {
                    self.awaited = self.awaited.saturating_sub(1);
                    return answer.map(Some).map_err(|why| Failure::failed(format!("{}: {why}", self.name)));
                }
                Ok(Event::Time(..) | Event::Greeting(_)) => {}
                Ok(Event::Gone(why)) => return Err(self.lost(why)),
                Err(TryRecvError::Disconnected) => return Err(self.lost(None)),
                Err(TryRecvError::Empty) => break,
            }
        }
        if lock(&self.shared.heard).elapsed() > SILENCE {
            return Err(self.lost(Some(format!("nothing came from it for {SILENCE:?}"))));
        }
        Ok(None)
    }

    /// How far its clock is ahead. Nothing else is to be under way.
    ///
    /// # Errors
    /// When the host is gone.
    pub(super) fn clock(&mut self) -> Result<Offset, Failure> {
        const EXCHANGES: u64 = 20;
        const LONG_ENOUGH: Duration = Duration::from_secs(1);
        let (begin, mut exchanges) = (Instant::now(), Vec::new());
        for number in 1..=EXCHANGES {
            let sent_s = now_s();
            self.ask(&Ask::Time(number))?;
            let asked = Instant::now();
            loop {
                match self.events.recv_timeout(SILENCE) {
                    Ok(Event::Time(answered, answered_s, received_s)) if answered == number => {
                        exchanges.push(Exchange { sent_s, answered_s, received_s });
                        break;
                    }
                    Ok(Event::Gone(why)) => return Err(self.lost(why)),
                    Ok(_) if asked.elapsed() < SILENCE => {}
                    Ok(_) | Err(_) => {
                        return Err(self.lost(Some(format!("it did not tell the time within {SILENCE:?}"))));
                    }
                }
            }
            if begin.elapsed() > LONG_ENOUGH && exchanges.len() >= 3 {
                break;
            }
        }
        Offset::of(&exchanges).ok_or_else(|| self.is_no_more())
    }

    /// Where files go that come from now on.
    pub(super) fn take_files(&self, into: Option<&Path>) {
        *lock(&self.shared.into) = into.map(Path::to_owned);
    }

    /// Gives up what is under way, and has all of a run removed. A host that does not do so is given up itself.
    pub(super) fn settle(&mut self) {
        self.take_files(None);
        if self.is_gone() || (self.awaited > 0 && self.ask(&Ask::Abort).is_err()) || self.ask(&Ask::Clear).is_err() {
            return;
        }
        let begin = Instant::now();
        while self.awaited > 0 && !self.is_gone() {
            // What could not be done is known already.
            if matches!(self.poll(), Ok(None)) {
                thread::sleep(Duration::from_millis(5));
            }
            if begin.elapsed() > END * 2 {
                self.lost(Some("it does not end what it was asked to".to_owned()));
            }
        }
    }

    /// Ends the connection; whoever has others ends them all first.
    pub(super) fn end(&self) {
        self.shared.is_over.store(true, Ordering::Relaxed);
        lock(&self.shared.input).take();
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        self.end();
        let begin = Instant::now();
        // The agent ends what it has, and then itself; ssh waits for that.
        while let Some(running) = &mut self.running
            && running.ended().is_none()
            && begin.elapsed() < END
        {
            thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Shared {
    /// Hears what comes, until its end.
    fn listen(&self, from: &mut impl BufRead, to: &Sender<Event>) -> io::Result<()> {
        // Some machines greet before.
        const BEFORE_MAX: u64 = 64 << 10;
        let mut before = from.take(BEFORE_MAX);
        loop {
            let mut line = Vec::new();
            if before.read_until(b'\n', &mut line)? == 0 {
                return Ok(());
            }
            let line = String::from_utf8_lossy(&line).trim().to_owned();
            if line.starts_with(GREETING) {
                let _ = to.send(Event::Greeting(line));
                break;
            }
        }
        let from = before.into_inner();
        while let Some(said) = words::read::<Say>(from)? {
            let now = now_s();
            *lock(&self.heard) = Instant::now();
            let event = match said {
                Say::Time(number, at_s) => Event::Time(number, at_s, now),
                Say::Done(value) => Event::Answer(Ok(value)),
                Say::Failed(why) => Event::Answer(Err(why)),
                Say::File { name, bytes } => {
                    self.take(from, &name, bytes)?;
                    continue;
                }
            };
            if to.send(event).is_err() {
                break;
            }
        }
        Ok(())
    }

    /// Takes a file; where nobody wants it, its bytes alone.
    fn take(&self, from: &mut impl BufRead, name: &str, bytes: u64) -> io::Result<()> {
        if !words::is_file_sound(name, bytes) {
            return Err(io::Error::other(format!("a file {name:?} of {bytes} bytes is not taken")));
        }
        let folder = lock(&self.into).clone();
        let mut file = folder.map(|folder| File::create(folder.join(name))).transpose()?;
        let mut left = bytes;
        while left > 0 {
            let piece = from.fill_buf()?;
            let piece = &piece[..piece.len().min(usize::try_from(left).unwrap_or(usize::MAX))];
            if piece.is_empty() {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            if let Some(file) = &mut file {
                file.write_all(piece)?;
            }
            let count = piece.len();
            from.consume(count);
            left -= count as u64;
            *lock(&self.heard) = Instant::now();
        }
        Ok(())
    }
}

/// An answer as what it is to be.
///
/// # Errors
/// When it is something else.
pub(super) fn decoded<T: DeserializeOwned>(name: &str, answer: serde_json::Value) -> Result<T, Failure> {
    serde_json::from_value(answer).map_err(|error| {
        Failure::failed(format!("{name}: the answer is not as it should be: {error}; is it another version?"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a channel hears from these bytes.
    fn heard(bytes: &[u8], into: Option<&Path>) -> (Vec<Event>, io::Result<()>) {
        let shared = Shared {
            input: Mutex::default(),
            heard: Mutex::new(Instant::now()),
            errors: Mutex::default(),
            into: Mutex::new(into.map(Path::to_owned)),
            is_over: AtomicBool::new(false),
        };
        let (sender, events) = channel();
        let ended = shared.listen(&mut &bytes[..], &sender);
        drop(sender);
        (events.into_iter().collect(), ended)
    }

    #[test]
    fn answers_files_and_the_time_are_told_apart() {
        let folder = tempfile::tempdir().unwrap();
        let mut wire = b"Welcome to a machine\nammeter-host Linux x86_64 none none\n".to_vec();
        words::write(&mut wire, &Say::Time(3, 5.0)).unwrap();
        words::write(&mut wire, &Say::File { name: "a.log".to_owned(), bytes: 5 }).unwrap();
        wire.extend(b"\n{}\n\n");
        words::write(&mut wire, &Say::Failed("no".to_owned())).unwrap();
        let (events, ended) = heard(&wire, Some(folder.path()));
        assert!(ended.is_ok() && matches!(&events[0], Event::Greeting(line) if line.ends_with("none none")));
        assert!(matches!(&events[1], Event::Time(3, at_s, _) if (at_s - 5.0).abs() < 1e-9));
        assert!(matches!(&events[2], Event::Answer(Err(why)) if why == "no") && events.len() == 3);
        assert_eq!(fs::read(folder.path().join("a.log")).unwrap(), b"\n{}\n\n");
        // One that nobody waits for does no harm; one that is cut does.
        assert!(heard(&wire, None).1.is_ok());
        let mut evil = b"ammeter-host\n".to_vec();
        words::write(&mut evil, &Say::File { name: "../a".to_owned(), bytes: 1 }).unwrap();
        evil.push(b'x');
        assert!(heard(&evil, Some(folder.path())).1.unwrap_err().to_string().contains("is not taken"));
        assert!(heard(b"no greeting\n", None).0.is_empty());
    }

    #[test]
    fn who_is_not_there_is_told_in_the_words_of_ssh() {
        // A program that is no ssh, and one that says why it ends, as ssh does.
        let own = Program::default();
        let says = |script: &str| {
            let ssh = ["sh", "-c", script].map(str::to_owned);
            Channel::open("far", &ssh).unwrap().greet(&own, &Stop::default()).unwrap_err().to_string()
        };
        let why = says("echo ssh: connect to host far port 22: No route to host >&2; exit 255");
        assert!(
            why.contains("far cannot be reached") && why.contains("No route to host") && why.contains("255"),
            "{why}"
        );
        let why = says("echo ammeter-host Linux sparc64 none none; read end");
        assert!(why.contains("sparc64") && why.contains("no ammeter") && why.contains("put it into its PATH"), "{why}");
        let why = Channel::open("far", &["no-such-ssh".to_owned()]).err().unwrap();
        assert!(why.exit_status() == 2 && why.to_string().contains("openssh-client"), "{why}");
    }
}
