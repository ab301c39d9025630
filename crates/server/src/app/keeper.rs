//! Applications that are started here, and live on: one process for each place of the gate, begun when the place is first
//! used.
//!
//! Each listens at a socket of its own, which it finds as its standard input (FastCGI 1.0, section 2.2), in a folder that
//! only this user can enter. So a process is that of its place and of nobody else: whoever holds the place may start it, wait
//! for it, and end it. One that dies is started again when it is next needed; one that dies at once is, with a pause that
//! doubles. Where workers are processes they share the sockets, and a lock (`amped_sys::slots`) tells who has started what.

use std::ffi::OsStr;
use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use amped_core::app::AppTrouble;
use amped_sys::slots::Slots;
use amped_sys::{local, process};

use super::cgi::Process;
use super::gate::Gate;
use crate::say;

/// The processes of one application.
#[derive(Debug)]
pub struct Keeper {
    command: Vec<String>,
    env: Arc<[(Box<str>, Box<str>)]>,
    folder: Folder,
    /// Locked by who holds the place, and for a moment by who looks after all of them.
    kept: Vec<Mutex<Kept>>,
    /// Which places have a process, as other processes of the server see it.
    alive: Option<Slots>,
}

/// The process of one place.
#[derive(Debug)]
struct Kept {
    process: Option<Process>,
    /// The one before it, if that was ended by us and has not been seen to have ended.
    dying: Option<Process>,
    started: Instant,
    used: Instant,
    /// It is not started again before this,
    not_before: Instant,
    /// since it lived so shortly that there is a pause. `pause <= PAUSE_MAX`
    pause: Duration,
}

/// One that lives shorter than this died of its start.
const LIFE_MIN: Duration = Duration::from_secs(1);
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(10);

impl Keeper {
    /// For so many processes, of which none is started yet. `shared`: with other processes of the server.
    ///
    /// # Errors
    /// When the folder of the sockets cannot be made, or the process is out of descriptors.
    pub fn new(
        command: Vec<String>,
        env: Arc<[(Box<str>, Box<str>)]>,
        places: usize,
        shared: bool,
    ) -> io::Result<Keeper> {
        let now = Instant::now();
        let none =
            || Kept { process: None, dying: None, started: now, used: now, not_before: now, pause: Duration::ZERO };
        Ok(Keeper {
            command,
            env,
            folder: Folder::new()?,
            kept: (0..places).map(|_| Mutex::new(none())).collect(),
            alive: shared.then(Slots::new).transpose()?,
        })
    }

    fn kept(&self, place: usize) -> MutexGuard<'_, Kept> {
        self.kept[place].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sees to it that the process of this place runs: where it listens. Waits for its start.
    ///
    /// # Errors
    /// [`AppTrouble::Busy`] while it pauses, [`AppTrouble::Failed`] if it cannot be started.
    pub fn ensure(&self, place: usize) -> Result<PathBuf, AppTrouble> {
        let name = self.folder.path.join(place.to_string());
        let one = &mut *self.kept(place);
        // Waits until it has gone, so that nobody connects to it any more.
        one.dying = None;
        self.look_after(one, place);
        one.used = Instant::now();
        if one.process.is_some() || self.alive.as_ref().is_some_and(|alive| !alive.take(place as u32)) {
            return Ok(name);
        }
        if one.used < one.not_before {
            self.let_go(place);
            return Err(AppTrouble::Busy);
        }
        match self.start(&name) {
            Ok((process, pid)) => {
                if self.alive.is_some() {
                    // Without it the others could not end the process, and would wait for it.
                    let _ = fs::write(self.folder.path.join(format!("{place}.pid")), pid.to_string());
                }
                (one.process, one.started) = (Some(process), one.used);
                Ok(name)
            }
            Err(error) => {
                say!("cannot start {}: {error}", self.command[0]);
                one.put_off();
                self.let_go(place);
                Err(AppTrouble::Failed)
            }
        }
    }

    /// Takes leave of a process that has ended.
    fn look_after(&self, one: &mut Kept, place: usize) {
        one.dying.take_if(|dying| dying.ended().is_some());
        let Some(ending) = one.process.as_mut().and_then(Process::ended) else {
            return;
        };
        one.process = None;
        self.let_go(place);
        match one.started.elapsed() < LIFE_MIN {
            true => one.put_off(),
            false => one.pause = Duration::ZERO,
        }
        let when = if one.pause.is_zero() { "when it is needed".to_owned() } else { format!("in {:?}", one.pause) };
        say!("{} {ending}; it is started again {when}", self.command[0]);
    }

    fn let_go(&self, place: usize) {
        self.alive.iter().for_each(|alive| alive.give_back(place as u32));
    }

    fn start(&self, name: &Path) -> io::Result<(Process, u32)> {
        match fs::remove_file(name) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let listener = local::listen(name)?;
        // The application's own wait for a connection is meant to wait.
        listener.set_nonblocking(false)?;
        let program = Path::new(&self.command[0]);
        let mut command = Command::new(program);
        command.args(&self.command[1..]).env_clear();
        command.env("PATH", OsStr::new("/usr/local/bin:/usr/bin:/bin"));
        command.envs(self.env.iter().map(|(name, value)| (&**name, &**value)));
        let folder = program.parent().filter(|folder| folder.is_absolute());
        command.current_dir(folder.unwrap_or(Path::new("/"))).process_group(0);
        // What it writes to standard error outside of a request goes where ours does.
        command.stdin(Stdio::from(OwnedFd::from(listener))).stdout(Stdio::null());
        process::end_with_this_thread(&mut command);
        process::keep_descriptors_from(&mut command);
        let pid = command.spawn()?.id();
        Ok((Process::new(pid, None)?, pid))
    }

    /// Ends the process of this place. For who holds the place; does not wait.
    pub fn kill(&self, place: usize) {
        let one = &mut *self.kept(place);
        one.end();
        if one.dying.is_some() {
            return self.let_go(place);
        }
        let Some(alive) = &self.alive else { return };
        if alive.take(place as u32) {
            alive.give_back(place as u32);
        } else if let Some(pid) = self.pid_of(place) {
            // Started by another process of the server, which has not waited for it: the number is still its own.
            process::kill_group(pid);
        }
    }

    fn pid_of(&self, place: usize) -> Option<u32> {
        fs::read_to_string(self.folder.path.join(format!("{place}.pid"))).ok()?.parse().ok()
    }

    /// Ends what has not been used for so long, beyond the reserve, and takes leave of what has ended. Whether there is
    /// anything left to look after.
    pub fn sweep(&self, gate: &Arc<Gate>, reserve: usize, idle_time: Duration) -> bool {
        let runs = |one: &Mutex<Kept>| one.try_lock().is_ok_and(|one| one.process.is_some());
        let mut alive = self.kept.iter().filter(|one| runs(one)).count();
        let mut is_any = false;
        for (place, one) in self.kept.iter().enumerate().rev() {
            let one = &mut *match one.try_lock() {
                Ok(one) => one,
                Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
                // It is being started.
                Err(TryLockError::WouldBlock) => {
                    is_any = true;
                    continue;
                }
            };
            self.look_after(one, place);
            if one.process.is_some() && alive > reserve && one.used.elapsed() >= idle_time {
                // Nobody uses it who does not hold its place.
                if let Some(_pass) = gate.enter_at(place) {
                    one.end();
                    self.let_go(place);
                    alive -= 1;
                }
            }
            is_any |= one.process.is_some() || one.dying.is_some();
        }
        is_any
    }
}

impl Kept {
    /// Ends it; it is waited for later.
    fn end(&mut self) {
        if let Some(process) = self.process.take() {
            process.kill();
            self.dying = Some(process);
        }
    }

    fn put_off(&mut self) {
        self.pause = (self.pause * 2).clamp(PAUSE_MIN, PAUSE_MAX);
        self.not_before = Instant::now() + self.pause;
    }
}

/// A folder of our own, which goes with us; that of a server that was killed goes with the next that makes one.
#[derive(Debug)]
struct Folder {
    path: PathBuf,
    /// Who has made it: those who were split off have it too.
    owner: u32,
    /// Locked as long as one of them lives.
    _lock: File,
}

/// What folders' names begin with, and the file by whose lock one can be told to be in use.
const PREFIX: &str = "amped-";
const LOCK: &str = "lock";

impl Folder {
    fn new() -> io::Result<Folder> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let (owner, parent) = (std::process::id(), std::env::temp_dir());
        remove_stale(&parent);
        for _ in 0..1000 {
            let count = COUNT.fetch_add(1, Ordering::Relaxed);
            let path = parent.join(format!("{PREFIX}{owner}-{count}"));
            match DirBuilder::new().mode(0o700).create(&path) {
                Ok(()) => {
                    let lock = File::create_new(path.join(LOCK))?;
                    lock.try_lock().map_err(io::Error::from)?;
                    return Ok(Folder { path, owner, _lock: lock });
                }
                // Another's, or of one who was killed and had our number.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(io::Error::new(error.kind(), format!("{}: {error}", path.display()))),
            }
        }
        Err(io::ErrorKind::AlreadyExists.into())
    }
}

/// Removes folders of servers that were killed: ours by their owner, and with a lock that nobody holds.
fn remove_stale(parent: &Path) {
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        let path = entry.path();
        let is_named = entry.file_name().to_str().is_some_and(|name| name.starts_with(PREFIX));
        let is_ours = || fs::symlink_metadata(&path).is_ok_and(|state| state.is_dir() && process::is_user(state.uid()));
        if is_named && is_ours() && File::open(path.join(LOCK)).is_ok_and(|lock| lock.try_lock().is_ok()) {
            let _ = fs::remove_dir_all(&path);
        }
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if self.owner == std::process::id() {
            let _ = fs::remove_dir_all(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keeper(command: &[&str]) -> Keeper {
        let command = command.iter().map(|&word| word.to_owned()).collect();
        Keeper::new(command, Arc::from([]), 2, false).expect("made")
    }

    #[test]
    fn one_that_dies_at_once_is_put_off() {
        let keeper = keeper(&["/bin/false"]);
        keeper.ensure(0).expect("started");
        let start = Instant::now();
        // Until it is seen to have ended it is taken to run.
        while keeper.ensure(0).is_ok() {
            assert!(start.elapsed() < Duration::from_secs(60), "it was not put off");
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(keeper.kept(0).pause >= PAUSE_MIN);
        assert!(keeper.ensure(1).is_ok(), "another place is another process");
        while keeper.ensure(0).is_err() {
            assert!(start.elapsed() < Duration::from_secs(60), "it was not started again");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn the_folder_of_who_was_killed_goes_with_the_next() {
        let parent = tempfile::tempdir().expect("a folder");
        let [left, held, another] = ["amped-1-0", "amped-2-0", "other-1-0"].map(|name| parent.path().join(name));
        for folder in [&left, &held, &another] {
            fs::create_dir(folder).expect("made");
            File::create(folder.join(LOCK)).expect("made");
        }
        let lock = File::open(held.join(LOCK)).expect("there");
        lock.lock().expect("locked");
        remove_stale(parent.path());
        assert_eq!([&left, &held, &another].map(|folder| folder.exists()), [false, true, true]);
        let folder = Folder::new().expect("made");
        remove_stale(folder.path.parent().expect("in another"));
        assert!(folder.path.exists());
    }

    #[test]
    fn what_is_not_used_goes_but_for_the_reserve() {
        let keeper = keeper(&["/bin/sleep", "1000"]);
        let gate = Arc::new(Gate::new(2, 0, false).expect("made"));
        let folder = keeper.folder.path.clone();
        for place in 0..2 {
            assert!(keeper.ensure(place).expect("started").starts_with(&folder));
        }
        let held = gate.enter_at(1).expect("free");
        assert!(keeper.sweep(&gate, 0, Duration::from_secs(1000)));
        assert!(keeper.sweep(&gate, 1, Duration::ZERO));
        let runs = |keeper: &Keeper| [0, 1].map(|place| keeper.kept(place).process.is_some());
        assert_eq!(runs(&keeper), [false, true], "who holds a place keeps its process");
        drop(held);
        assert!(keeper.sweep(&gate, 1, Duration::ZERO));
        let start = Instant::now();
        while keeper.sweep(&gate, 0, Duration::ZERO) {
            assert!(start.elapsed() < Duration::from_secs(60), "they do not end");
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(runs(&keeper), [false, false]);
        drop(keeper);
        assert!(!folder.exists());
    }
}
