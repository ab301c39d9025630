//! A connection to a host: one ssh, over which each command there gets a session of its own.
//!
//! The first ssh is a master (ssh_config(5), ControlMaster) that this program starts and ends; the user's own is not used, as it
//! would outlive us. The shell of the first session says what there is, and is then told to start `ammeter session`, or to
//! take a copy of this program into a folder that it removes when that has ended. Everything else is an ordinary command:
//! `ammeter load --slice`, `ammeter host --rest`, cat(1). A command there ends when its standard input does, which ssh closes
//! however this side ends.
//!
//! A host that is gone is known by the end of its session, or by its silence: it is asked for the time every two seconds.

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
use crate::environment::{Running, Said, Streams, interrupted, quoted};
use crate::run::now_s;

/// How long a host may take for what takes a moment.
pub(super) const SOON: Duration = Duration::from_secs(60);

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
    if [ \"$what\" = own ]; then exec ammeter session; fi; [ \"$what\" = copy ] || exit 0; \
    set -- $(cat /proc/$$/stat); dir=/var/tmp/ammeter-run-$$-${22}-copy; \
    trap \"rm -rf $dir\" EXIT; trap \"exit 1\" HUP INT TERM PIPE; umask 077; \
    mkdir $dir && head -c $bytes > $dir/ammeter && chmod 700 $dir/ammeter && $dir/ammeter session'";

/// The options of every ssh.
const OPTIONS: [&str; 5] =
    ["BatchMode=yes", "RemoteCommand=none", "ConnectTimeout=10", "ServerAliveInterval=5", "ServerAliveCountMax=3"];

/// A connection. Dropped, it ends, and with it all that was started over it.
pub(super) struct Connection {
    /// As the user's ssh knows the host.
    pub(super) name: String,
    /// ssh and its flags, with which commands use the master.
    ssh: Vec<String>,
    session: Option<Command>,
    heard: Instant,
    facts: Option<Facts>,
    gone: Option<String>,
    control: PathBuf,
    /// The last to end.
    master: Option<Running>,
    /// What the master prints.
    said: Said,
}

impl Connection {
    /// Starts ssh, with its control socket at this path; it ends with the calling thread.
    ///
    /// # Errors
    /// When there is no such program.
    pub(super) fn open(name: &str, ssh: &[String], control: &Path) -> Result<Connection, Failure> {
        let mut ssh = ssh.to_vec();
        ssh.extend(["-T", "-S"].map(str::to_owned));
        ssh.push(control.display().to_string());
        ssh.extend(OPTIONS.into_iter().flat_map(|option| ["-o".to_owned(), option.to_owned()]));
        let master = ["-o", "ControlMaster=yes", "-o", "ControlPersist=no", "-N", name].map(str::to_owned);
        let words: Vec<String> = ssh.iter().cloned().chain(master).collect();
        let streams = Streams { out: Stdio::null(), err: Stdio::piped() };
        let mut master = Running::start("ssh", &words, streams).map_err(|failure| {
            Failure::usage(format!(
                "{failure}; install it (apt-get install openssh-client), or name it: [hosts] ssh = ..."
            ))
        })?;
        ssh.extend(["-o", "ControlMaster=no", name].map(str::to_owned));
        Ok(Connection {
            name: name.to_owned(),
            ssh,
            said: Said::by(master.take_errors()),
            master: Some(master),
            session: None,
            heard: Instant::now(),
            facts: None,
            gone: None,
            control: control.to_owned(),
        })
    }

    /// Starts the session there, with the same program as `own` here.
    ///
    /// # Errors
    /// When the host cannot be reached, or has no such program and cannot be given it: with the way out.
    pub(super) fn greet(&mut self, own: &Program, stop: &Stop) -> Result<(), Failure> {
        let begin = Instant::now();
        while !self.control.exists() {
            if self.master.as_mut().is_none_or(|master| master.ended().is_some()) {
                return Err(self.unreachable());
            }
            waited(&self.name, begin, SOON, stop)?;
        }
        let words: Vec<String> = self.ssh.iter().cloned().chain([SHELL.to_owned()]).collect();
        let session = self.session.insert(Command::start(&self.name, &words)?);
        let greeting = loop {
            match session.next(SOON, stop)? {
                Some((line, _)) if line.starts_with(GREETING) => break line,
                // Some machines greet before.
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

    /// How ssh ended, in its own words.
    fn ending(&mut self) -> String {
        match (&mut self.session, &mut self.master) {
            (Some(session), _) => ending(&mut session.running, &session.said),
            (None, Some(master)) => ending(master, &self.said),
            (None, None) => "it was closed".to_owned(),
        }
    }

    fn unreachable(&mut self) -> Failure {
        let how = self.ending();
        let name = &self.name;
        Failure::failed(format!(
            "cannot reach {name}: ssh ended with {how}; ssh must connect without a password or a question: \
             ssh -o BatchMode=yes {name} true"
        ))
    }

    /// Whether it is gone.
    pub(super) fn is_gone(&self) -> bool {
        self.gone.is_some()
    }

    fn lost(&mut self, why: Option<String>) -> Failure {
        let why = why.unwrap_or_else(|| format!("its session ended with {}", self.ending()));
        self.gone = Some(format!("{} is gone: {why}", self.name));
        self.end();
        (self.session, self.master) = (None, None);
        Failure::failed(self.gone.clone().unwrap_or_default())
    }

    /// Fails where the host is gone. Does not wait.
    ///
    /// # Errors
    /// See there.
    pub(super) fn check(&mut self) -> Result<(), Failure> {
        if let Some(why) = &self.gone {
            return Err(Failure::failed(why.clone()));
        }
        loop {
            match self.session.as_ref().map_or(Err(TryRecvError::Disconnected), |session| session.lines.try_recv()) {
                Ok(_) => self.heard = Instant::now(),
                Err(TryRecvError::Disconnected) => return Err(self.lost(None)),
                Err(TryRecvError::Empty) if self.heard.elapsed() > SILENCE => {
                    return Err(self.lost(Some(format!("it has been silent for {SILENCE:?}"))));
                }
                Err(TryRecvError::Empty) => return Ok(()),
            }
        }
    }

    /// How the host described itself.
    ///
    /// # Errors
    /// When it has not: it is gone.
    pub(super) fn facts(&self) -> Result<&Facts, Failure> {
        self.facts.as_ref().ok_or_else(|| Failure::failed(format!("{} was not reached", self.name)))
    }

    /// How far its clock is ahead, the longest round trip seen, and the CPU time that it has used.
    ///
    /// # Errors
    /// When the host is gone.
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
                // An interrupt is seen by whoever asks for the time.
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

    /// Words before those of a command there, which is one word.
    pub(super) fn ssh(&self) -> &[String] {
        &self.ssh
    }

    /// Words that run a command there.
    pub(super) fn shell(&self, words: &[&str]) -> Vec<String> {
        self.ssh.iter().cloned().chain([quoted(words.iter().copied())]).collect()
    }

    /// Words that run this program there.
    ///
    /// # Errors
    /// When the host is gone.
    pub(super) fn own(&self, words: &[&str]) -> Result<Vec<String>, Failure> {
        let own = self.facts()?.program.path.display().to_string();
        Ok(self.shell(&[&[own.as_str()], words].concat()))
    }

    /// Begins to end; several connections are told so before any is waited for.
    pub(super) fn end(&self) {
        if let Some(session) = &self.session {
            session.close();
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        // The session removes what there is before it ends.
        self.session = None;
        if let Some(master) = self.master.take() {
            master.end(Duration::from_secs(2));
        }
    }
}

/// A command on another host, which is written to and answers in lines. Dropped, it ends.
pub(super) struct Command {
    name: String,
    running: Running,
    input: Arc<Mutex<Option<ChildStdin>>>,
    /// With the times at which they came.
    lines: Receiver<(String, f64)>,
    said: Said,
}

impl Command {
    /// Starts the ssh of a command on this host.
    ///
    /// # Errors
    /// When there is no ssh.
    pub(super) fn start(name: &str, words: &[String]) -> Result<Command, Failure> {
        let streams = Streams { out: Stdio::piped(), err: Stdio::piped() };
        let mut running = Running::start_with("ssh", words, streams, Stdio::piped())?;
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

    /// Writes to its standard input; if it has ended, its output tells.
    pub(super) fn write(&self, bytes: &[u8]) {
        if let Some(input) = &mut *lock(&self.input) {
            let _ = input.write_all(bytes).and_then(|()| input.flush());
        }
    }

    /// Ends its standard input.
    pub(super) fn close(&self) {
        lock(&self.input).take();
    }

    /// The next line that it prints, and when that came; `None` when it has ended.
    ///
    /// # Errors
    /// When none comes in this time; an interrupt.
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

    /// Writes a line, and waits for the one that answers it.
    ///
    /// # Errors
    /// When the command failed, in its own words; an interrupt.
    pub(super) fn ask(&mut self, line: &str, patience: Duration, stop: &Stop) -> Result<String, Failure> {
        self.write(format!("{line}\n").as_bytes());
        match self.next(patience, stop)? {
            Some((line, _)) => Ok(line),
            None => Err(Failure::failed(format!("{}: {}", self.name, ending(&mut self.running, &self.said)))),
        }
    }

    /// Ends its standard input, and waits for its end; what it printed.
    ///
    /// # Errors
    /// As [`ask`](Command::ask).
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

/// A thread that panicked with the lock has left plain data.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How a program ended, in its own words.
fn ending(running: &mut Running, said: &Said) -> String {
    match running.await_end(Duration::from_secs(2)) {
        None => "it was closed".to_owned(),
        Some(status) => match said.whole() {
            said if said.is_empty() => status.to_string(),
            said => format!("{} ({status})", said.replace('\n', "; ")),
        },
    }
}

/// A moment of waiting for a host.
fn waited(name: &str, begin: Instant, patience: Duration, stop: &Stop) -> Result<(), Failure> {
    if stop.is_stopped() {
        return Err(interrupted());
    }
    if begin.elapsed() > patience {
        return Err(Failure::failed(format!("{name} did not answer within {patience:?}; try: ssh {name} true")));
    }
    thread::sleep(Duration::from_millis(1));
    Ok(())
}

/// Whether a host that greets so must be given a copy of this program.
///
/// # Errors
/// When it has not got it and cannot be given it.
fn is_copied(name: &str, greeting: &str, own: &Program) -> Result<bool, Failure> {
    let fields: Vec<&str> = greeting.trim().split(' ').collect();
    let [_, system, machine, hash, version] = fields[..] else {
        return Err(Failure::failed(format!(
            "{name} printed {greeting:?}; is there a POSIX sh, with uname and sha256sum?"
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
        "{name} is {system} on {machine} and has {has}; this machine has another processor, so that it cannot be given a copy: \
         build {} there (cargo build --release), and put it into its PATH",
        own.version
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unreachable_host_is_reported_with_error_of_ssh() {
        let ssh = ["sh", "-c", "echo ssh: connect to host far port 22: No route to host >&2; exit 255"];
        let mut connection = Connection::open("far", &ssh.map(str::to_owned), Path::new("/nowhere/ssh")).unwrap();
        let why = connection.greet(&Program::default(), &Stop::default()).unwrap_err().to_string();
        for part in ["cannot reach far", "No route to host", "255"] {
            assert!(why.contains(part), "{why}");
        }
        let why = Connection::open("far", &["no-such-ssh".to_owned()], Path::new("x")).err().unwrap();
        assert!(why.exit_status() == 2 && why.to_string().contains("openssh-client"), "{why}");
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
        assert!(why.contains("sparc64") && why.contains("no ammeter") && why.contains("put it into its PATH"), "{why}");
        assert!(check("ammeter-host").unwrap_err().contains("POSIX sh"));
    }
}
