//! A connection to a host, over which each remote command has a session of its own.
//!
//! ssh(1) has one connection for all of them: this program starts and stops its master (ssh_config(5), ControlMaster). It does
//! not use the user's own master, which would outlive it. Any other program (`via`) is started for each command, and must
//! pass on standard input, its end, and standard output. The shell of the first session reports the installed `ammeter`. It then starts
//! `ammeter agent session`, or receives a copy of this program into a directory that it removes when the copy has ended. All
//! others are ordinary commands: `ammeter load --slice`, `ammeter agent`, cat(1). A remote command ends at the end
//! of its standard input, which is closed however the local side ends.
//!
//! A host counts as lost when its session ends, or when it stays silent: its clock is requested every two seconds.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, Stdio};
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use ammeter_load::drive::Stop;
use amped_measure::Failure;

use super::clock::Exchange;
use super::session::{Facts, Moment, decoded};
use crate::archive::{Offset, Program};
use crate::channel::Channel;
use crate::environment::{Running, Said, Streams, interrupted};
use crate::run::now_s;

/// Timeout for quick answers from a host.
pub(super) const SOON: Duration = Duration::from_secs(60);

/// Maximum silence before a host counts as lost.
const SILENCE: Duration = Duration::from_secs(20);

/// Interval of the clock requests, which are also the heartbeat of both sides.
const BEAT: Duration = Duration::from_secs(2);

/// Timeout for a session to end and remove its files.
const END: Duration = Duration::from_secs(15);

/// Prefix of the line that the remote shell prints first. Lines before it are the machine's own greeting.
const GREETING: &str = "ammeter-host";

/// The remote bootstrap script, for sh(1) of POSIX. It is quoted for any login shell, and so contains no single quotes.
const SHELL: &str = "PATH=$PATH:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin; export PATH; \
    own=$(command -v ammeter); hash=$(sha256sum ${own:-/dev/null} | cut -d\" \" -f1); \
    version=$(${own:-false} --version 2>/dev/null | tr \" \" _); \
    echo ammeter-host $(uname -s) $(uname -m) ${hash:-none} ${version:-none}; read -r what bytes || exit 0; \
    if [ \"$what\" = own ]; then exec ammeter agent session; fi; [ \"$what\" = copy ] || exit 0; \
    set -- $(cat /proc/$$/stat); dir=/var/tmp/ammeter-run-$$-${22}-copy; \
    trap \"rm -rf $dir\" EXIT; trap \"exit 1\" HUP INT TERM PIPE; umask 077; \
    mkdir $dir && head -c $bytes > $dir/ammeter && chmod 700 $dir/ammeter && $dir/ammeter agent session";

/// Flags of every ssh command.
const FLAGS: [&str; 11] = [
    "-T",
    "-o",
    "BatchMode=yes",
    "-o",
    "RemoteCommand=none",
    "-o",
    "ConnectTimeout=10",
    "-o",
    "ServerAliveInterval=5",
    "-o",
    "ServerAliveCountMax=3",
];

/// A connection to a host. Dropping it ends it and everything started over it.
pub(super) struct Connection {
    /// The host's name.
    pub(super) name: String,
    /// What runs a command on the host.
    channel: Channel,
    /// The same as a user would try it.
    plain: String,
    session: Option<Command>,
    heard: Instant,
    facts: Option<Facts>,
    lost_why: Option<String>,
    /// The master process of ssh, which ends last.
    master: Option<Master>,
}

/// The process that holds the connection of ssh.
struct Master {
    running: Running,
    /// Its output.
    said: Said,
    /// Its socket, by which commands use the connection.
    control: PathBuf,
}

impl Connection {
    /// Starts to connect. ssh gets a master with its control socket at this path, which ends with the calling thread.
    ///
    /// # Errors
    /// If ssh is not installed.
    pub(super) fn open(name: &str, via: &str, control: &Path) -> Result<Connection, Failure> {
        let channel = Channel::new(via, name);
        let plain =
            if channel.is_ssh() { channel.with_flags(["-o", "BatchMode=yes"]) } else { channel.clone() }.shown();
        let mut connection = Connection {
            name: name.to_owned(),
            channel,
            plain,
            session: None,
            heard: Instant::now(),
            facts: None,
            lost_why: None,
            master: None,
        };
        if connection.channel.is_ssh() {
            connection.start_master(control)?;
        }
        Ok(connection)
    }

    fn start_master(&mut self, control: &Path) -> Result<(), Failure> {
        let socket = control.display().to_string();
        let flags = || ["-S", &socket].into_iter().chain(FLAGS);
        let master = ["-o", "ControlMaster=yes", "-o", "ControlPersist=no", "-N"];
        let words = self.channel.with_flags(flags().chain(master)).words();
        let streams = Streams { out: Stdio::null(), err: Stdio::piped() };
        let mut running = Running::start("ssh", &words, streams).map_err(|failure| {
            Failure::usage(format!("{failure}; install it (apt-get install openssh-client), or name it in `via`"))
        })?;
        self.channel = self.channel.with_flags(flags().chain(["-o", "ControlMaster=no"]));
        let said = Said::by(running.take_errors());
        self.master = Some(Master { running, said, control: control.to_owned() });
        Ok(())
    }

    /// Starts the session on the host, with the same program as the local `own`.
    ///
    /// # Errors
    /// If the host cannot be reached, or has no such program and cannot run a copy; with the remedy.
    pub(super) fn greet(&mut self, own: &Program, stop: &Stop) -> Result<(), Failure> {
        self.greet_within(SOON, own, stop)
    }

    fn greet_within(&mut self, patience: Duration, own: &Program, stop: &Stop) -> Result<(), Failure> {
        let begin = Instant::now();
        while let Some(master) = self.master.as_mut().filter(|master| !master.control.exists()) {
            if master.running.ended().is_some() {
                return Err(self.unreachable());
            }
            waited(&self.name, begin, patience, stop)?;
        }
        let plain = self.plain.clone();
        let late = |failure: Failure| match stop.is_stopped() {
            true => failure,
            false => Failure::failed(format!(
                "{failure}; this must end sooner, which the startup files of the shell there may prevent: {plain} true"
            )),
        };
        let words = self.channel.command(["sh", "-c", SHELL]);
        let session = self.session.insert(Command::start(&self.name, &words)?);
        let greeting = loop {
            match session.next(patience, stop).map_err(&late)? {
                Some((line, _)) if line.starts_with(GREETING) => break line,
                // Some machines print a greeting first.
                Some(_) => {}
                None => return Err(self.unreachable()),
            }
        };
        if is_copied(&self.name, &greeting, own)? {
            let bytes = fs::read(&own.path).map_err(Failure::io(format_args!("read {}", own.path.display())))?;
            session.write(format!("copy {}\n", bytes.len()).as_bytes());
            session.write(&bytes);
        } else {
            session.write(b"own 0\n");
        }
        let Some((facts, _)) = session.next(SOON, stop)? else { return Err(self.unreachable()) };
        let input = Arc::clone(&session.input);
        self.facts = Some(decoded(&facts)?);
        thread::spawn(move || {
            while lock(&input).as_mut().is_some_and(|input| writeln!(input, "0").is_ok()) {
                thread::sleep(BEAT);
            }
        });
        self.heard = Instant::now();
        Ok(())
    }

    /// How the program that connects ended, with its own message.
    fn ending(&mut self) -> String {
        match (&mut self.session, &mut self.master) {
            (Some(session), _) => ending(&mut session.running, &session.said),
            (None, Some(master)) => ending(&mut master.running, &master.said),
            (None, None) => "it was closed".to_owned(),
        }
    }

    fn unreachable(&mut self) -> Failure {
        let how = self.ending();
        let Connection { name, plain, .. } = self;
        let program = plain.split(' ').next().unwrap_or_default();
        Failure::failed(format!(
            "cannot reach {name}: {program} ended with {how}; it must work without any prompt: {plain} true"
        ))
    }

    /// Whether the host is lost.
    pub(super) fn is_gone(&self) -> bool {
        self.lost_why.is_some()
    }

    fn lost(&mut self, why: Option<String>) -> Failure {
        let why = why.unwrap_or_else(|| format!("the session ended with {}", self.ending()));
        self.lost_why = Some(format!("lost the connection to {}: {why}", self.name));
        self.end();
        (self.session, self.master) = (None, None);
        Failure::failed(self.lost_why.clone().unwrap_or_default())
    }

    /// Fails if the host is lost. Does not block.
    ///
    /// # Errors
    /// The reason why the host is lost.
    pub(super) fn check(&mut self) -> Result<(), Failure> {
        if let Some(why) = &self.lost_why {
            return Err(Failure::failed(why.clone()));
        }
        loop {
            match self.session.as_ref().map_or(Err(TryRecvError::Disconnected), |session| session.lines.try_recv()) {
                Ok(_) => self.heard = Instant::now(),
                Err(TryRecvError::Disconnected) => return Err(self.lost(None)),
                Err(TryRecvError::Empty) if self.heard.elapsed() > SILENCE => {
                    return Err(self.lost(Some(format!("it has not responded for {SILENCE:?}"))));
                }
                Err(TryRecvError::Empty) => return Ok(()),
            }
        }
    }

    /// The host's description of itself.
    ///
    /// # Errors
    /// If there is none, because the host is lost.
    pub(super) fn facts(&self) -> Result<&Facts, Failure> {
        self.facts.as_ref().ok_or_else(|| Failure::failed(format!("{} was not reached", self.name)))
    }

    /// The offset of the host's clock, the longest round trip, and the CPU time used so far, in nanoseconds.
    ///
    /// # Errors
    /// If the host is lost.
    pub(super) fn clock(&mut self) -> Result<(Offset, Duration, u64), Failure> {
        const EXCHANGES: u64 = 20;
        const LONG_ENOUGH: Duration = Duration::from_secs(1);
        self.check()?;
        let (begin, mut exchanges, mut busy_ns) = (Instant::now(), Vec::new(), 0);
        for number in 1..=EXCHANGES {
            let Some(session) = &self.session else { return Err(self.lost(None)) };
            let sent_s = now_s();
            session.write(format!("{number}\n").as_bytes());
            let (moment, received_s) = loop {
                // The caller, not this loop, handles an interrupt.
                let Some((line, received_s)) = session.next(SILENCE, &Stop::default())? else {
                    return Err(self.lost(None));
                };
                let moment: Moment = decoded(&line)?;
                if moment.number == number {
                    break (moment, received_s);
                }
            };
            busy_ns = moment.busy_ns;
            exchanges.push(Exchange { sent_s, answered_s: moment.at_s, received_s });
            if begin.elapsed() > LONG_ENOUGH && exchanges.len() >= 3 {
                break;
            }
        }
        self.heard = Instant::now();
        let longest_s = exchanges.iter().map(|one| one.received_s - one.sent_s).fold(0.0, f64::max);
        let offset = Offset::of(&exchanges).ok_or_else(|| Failure::failed(format!("{} was not reached", self.name)))?;
        Ok((offset, Duration::from_secs_f64(longest_s.clamp(0.0, 60.0)), busy_ns))
    }

    /// What runs a command on the host.
    pub(super) fn channel(&self) -> &Channel {
        &self.channel
    }

    /// The command line that runs a remote command.
    pub(super) fn shell(&self, words: &[&str]) -> Vec<String> {
        self.channel.command(words.iter().copied())
    }

    /// The words that run this program on the host.
    ///
    /// # Errors
    /// If the host is lost.
    pub(super) fn own(&self, words: &[&str]) -> Result<Vec<String>, Failure> {
        let own = self.facts()?.program.path.display().to_string();
        Ok(self.shell(&[&[own.as_str()], words].concat()))
    }

    /// Starts to close the session, without waiting, so that several connections close in parallel.
    pub(super) fn end(&self) {
        if let Some(session) = &self.session {
            session.close();
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        // The session removes its files before it ends.
        self.session = None;
        if let Some(master) = self.master.take() {
            master.running.end(Duration::from_secs(2));
        }
    }
}

/// A command on another host, with its input and its lines of output. Dropping it ends it.
pub(super) struct Command {
    name: String,
    running: Running,
    input: Arc<Mutex<Option<ChildStdin>>>,
    /// Output lines with their arrival times.
    lines: Receiver<(String, f64)>,
    said: Said,
}

impl Command {
    /// Starts a command line that runs a command on this host.
    ///
    /// # Errors
    /// If its program is not installed.
    pub(super) fn start(name: &str, words: &[String]) -> Result<Command, Failure> {
        let streams = Streams { out: Stdio::piped(), err: Stdio::piped() };
        let mut running = Running::start_fed(&format!("the connection to {name}"), words, streams)?;
        let (sender, lines) = channel();
        if let Some(output) = running.take_output() {
            thread::spawn(move || {
                let lines = BufReader::new(output).lines().map_while(Result::ok);
                lines.map(|line| (line, now_s())).try_for_each(|line| sender.send(line))
            });
        }
        let (input, said) = (Arc::new(Mutex::new(running.take_input())), Said::by(running.take_errors()));
        Ok(Command { name: name.to_owned(), running, input, lines, said })
    }

    /// Writes to the command's standard input. Ignores errors: if the command has ended, its output shows it.
    pub(super) fn write(&self, bytes: &[u8]) {
        if let Some(input) = &mut *lock(&self.input) {
            let _ = input.write_all(bytes).and_then(|()| input.flush());
        }
    }

    /// Closes the command's standard input.
    pub(super) fn close(&self) {
        lock(&self.input).take();
    }

    /// The next line of output with its arrival time; `None` when the command has ended.
    ///
    /// # Errors
    /// A timeout after `patience`; an interrupt.
    pub(super) fn next(&self, patience: Duration, stop: &Stop) -> Result<Option<(String, f64)>, Failure> {
        let begin = Instant::now();
        loop {
            match self.lines.try_recv() {
                Ok(line) => return Ok(Some(line)),
                Err(TryRecvError::Disconnected) => return Ok(None),
                Err(TryRecvError::Empty) => waited(&self.name, begin, patience, stop)?,
            }
        }
    }

    /// Writes a line and returns the line that answers it.
    ///
    /// # Errors
    /// If the command failed, with its own message; an interrupt.
    pub(super) fn ask(&mut self, line: &str, patience: Duration, stop: &Stop) -> Result<String, Failure> {
        self.write(format!("{line}\n").as_bytes());
        match self.next(patience, stop)? {
            Some((line, _)) => Ok(line),
            None => Err(Failure::failed(format!("{}: {}", self.name, ending(&mut self.running, &self.said)))),
        }
    }

    /// Closes standard input, waits for the command to end, and returns its output.
    ///
    /// # Errors
    /// Those of [`ask`](Command::ask).
    pub(super) fn finish(mut self, patience: Duration, stop: &Stop) -> Result<String, Failure> {
        self.close();
        let mut printed = String::new();
        while let Some((line, _)) = self.next(patience, stop)? {
            printed.extend([&line, "\n"]);
        }
        if self.running.await_end(SOON).is_some_and(|status| status.success()) {
            return Ok(printed);
        }
        Err(Failure::failed(format!("{}: {}", self.name, ending(&mut self.running, &self.said))))
    }
}

impl Drop for Command {
    fn drop(&mut self) {
        self.close();
        self.running.await_end(END);
    }
}

/// Locks a mutex, even a poisoned one: it holds plain data, which a panic cannot leave inconsistent.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How a program ended, with its own message.
fn ending(running: &mut Running, said: &Said) -> String {
    match running.await_end(Duration::from_secs(2)) {
        None => "it was closed".to_owned(),
        Some(status) => match said.whole() {
            said if said.is_empty() => status.to_string(),
            said => format!("{} ({status})", said.replace('\n', "; ")),
        },
    }
}

/// One short sleep of a wait for a host; fails after `patience` or at an interrupt.
fn waited(name: &str, begin: Instant, patience: Duration, stop: &Stop) -> Result<(), Failure> {
    if stop.is_stopped() {
        return Err(interrupted());
    }
    if begin.elapsed() > patience {
        return Err(Failure::failed(format!("{name} did not respond within {patience:?}")));
    }
    thread::sleep(Duration::from_millis(1));
    Ok(())
}

/// Whether the host with this greeting needs a copy of this program.
///
/// # Errors
/// If the host lacks the program and cannot run a copy.
fn is_copied(name: &str, greeting: &str, own: &Program) -> Result<bool, Failure> {
    let fields: Vec<&str> = greeting.trim().split(' ').collect();
    let [_, system, machine, hash, version] = fields[..] else {
        return Err(Failure::failed(format!(
            "unexpected greeting {greeting:?} from {name}; a POSIX sh, uname and sha256sum are required"
        )));
    };
    let is_same_kind = (system, machine) == ("Linux", std::env::consts::ARCH);
    if hash == own.sha256 || (!is_same_kind && version == own.version.replace(' ', "_")) {
        return Ok(false);
    }
    if is_same_kind {
        return Ok(true);
    }
    let has = if version == "none" { "no ammeter".to_owned() } else { version.replace('_', " ") };
    Err(Failure::failed(format!(
        "{name} is {system} on {machine} and has {has}; the program of this machine cannot run there: build {} there \
         (cargo build --release), and put it into PATH",
        own.version
    )))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn unreachable_host_is_reported_with_error_of_program() {
        let folder = tempfile::tempdir().unwrap();
        let script = folder.path().join("ssh");
        fs::write(&script, "#!/bin/sh\necho ssh: connect to host far port 22: No route to host >&2; exit 255\n")
            .unwrap();
        fs::set_permissions(&script, PermissionsExt::from_mode(0o755)).unwrap();
        let greet = |via: &str| {
            let mut connection = Connection::open("far", via, Path::new("/nowhere/ssh")).unwrap();
            connection.greet(&Program::default(), &Stop::default()).unwrap_err().to_string()
        };
        let why = greet(&format!("{} {{host}}", script.display()));
        for part in ["cannot reach far", "No route to host", "255", "-o BatchMode=yes far true"] {
            assert!(why.contains(part), "{why}");
        }
        let why = greet(&format!("sh {} {{host}}", script.display()));
        for part in ["cannot reach far: sh ended", "No route to host", "ssh far true"] {
            assert!(why.contains(part), "{why}");
        }
        let why = Connection::open("far", "no-such-folder/ssh {host}", Path::new("x")).err().unwrap();
        assert!(why.exit_status() == 2 && why.to_string().contains("openssh-client"), "{why}");
    }

    #[test]
    fn slow_shell_of_a_host_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let script = folder.path().join("slow");
        // It ends with its input.
        fs::write(&script, "while read -r line; do :; done\n").unwrap();
        let via = format!("sh {} {{host}}", script.display());
        let mut connection = Connection::open("far", &via, Path::new("/nowhere/ssh")).unwrap();
        let patience = Duration::from_millis(50);
        let why = connection.greet_within(patience, &Program::default(), &Stop::default()).unwrap_err().to_string();
        for part in ["far did not respond within 50ms", "startup files", "slow far true"] {
            assert!(why.contains(part), "{why}");
        }
    }

    #[test]
    fn program_is_copied_only_to_compatible_hosts() {
        let own = Program { sha256: "abc".to_owned(), version: "ammeter 1".to_owned(), ..Program::default() };
        let check = |greeting: &str| is_copied("far", greeting, &own).map_err(|why| why.to_string());
        let arch = std::env::consts::ARCH;
        assert_eq!(check(&format!("ammeter-host Linux {arch} abc ammeter_1")), Ok(false));
        assert_eq!(check(&format!("ammeter-host Linux {arch} none none")), Ok(true));
        assert_eq!(check("ammeter-host Linux sparc64 def ammeter_1"), Ok(false));
        let why = check("ammeter-host Linux sparc64 none none").unwrap_err();
        assert!(why.contains("sparc64") && why.contains("no ammeter") && why.contains("put it into PATH"), "{why}");
        assert!(check("ammeter-host").unwrap_err().contains("POSIX sh"));
    }
}
