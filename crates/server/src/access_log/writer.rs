//! The one thread that writes the log.
//!
//! It may wait for a disk or fail on a full one: the loops go on, and what cannot be kept is counted and reported.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use amped_sys::process;

use crate::config::LogTarget;
use crate::say;

/// Lines on their way to the file.
#[derive(Debug, Default)]
pub(super) struct Batch {
    pub(super) text: Vec<u8>,
    pub(super) lines: u64,
}

/// Batches that may wait to be written. With the default buffer 16 MiB: a minute of a slow disk at a few thousand
/// requests a second.
const BATCHES_MAX: usize = 256;

/// The thread that writes, as the loops see it.
#[derive(Debug)]
pub struct Writer {
    state: Mutex<State>,
    wake: Condvar,
    lost: AtomicU64,
}

#[derive(Debug, Default)]
struct State {
    /// `queue.len() <= BATCHES_MAX`
    queue: VecDeque<Batch>,
    /// Buffers to be filled again.
    spare: Vec<Vec<u8>>,
    reopen: bool,
    stopping: bool,
}

/// An open log.
#[derive(Debug)]
pub enum Sink {
    /// Standard output.
    Stdout,
    /// A file, open for appending.
    File(File),
}

impl Sink {
    /// Opens the log; `None`: none is wanted. A file that is created here by root is given to `owner`, who will have to
    /// reopen it; one that was there is somebody's already.
    ///
    /// # Errors
    /// When the file cannot be opened, or not be given away.
    pub fn open(target: &LogTarget, owner: Option<(u32, u32)>) -> io::Result<Option<Sink>> {
        let path = match target {
            LogTarget::Off => return Ok(None),
            LogTarget::Stdout => return Ok(Some(Sink::Stdout)),
            LogTarget::File(path) => path,
        };
        let file = match File::options().append(true).create_new(true).open(path) {
            Ok(file) => {
                if let Some((uid, gid)) = owner {
                    process::give_to(&file, uid, gid)?;
                }
                file
            }
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => open(path)?,
            Err(error) => return Err(error),
        };
        Ok(Some(Sink::File(file)))
    }

    fn write(&mut self, text: &[u8]) -> io::Result<usize> {
        match self {
            Sink::Stdout => io::stdout().lock().write_all(text).map(|()| text.len()),
            Sink::File(file) => file.write(text),
        }
    }
}

fn open(path: &Path) -> io::Result<File> {
    File::options().append(true).create(true).open(path)
}

impl Writer {
    /// Starts the thread that writes.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn start(sink: Sink, target: &LogTarget) -> io::Result<(Arc<Writer>, JoinHandle<()>)> {
        // The first question for the local time reads the zone's file. Here it may.
        process::local_offset(0);
        let writer = Arc::new(Writer { state: Mutex::default(), wake: Condvar::new(), lost: AtomicU64::new(0) });
        let (shared, target) = (Arc::clone(&writer), target.clone());
        let thread = std::thread::Builder::new().name("log".to_owned()).spawn(move || shared.run(sink, &target))?;
        Ok((writer, thread))
    }

    /// Lines that could not be kept.
    pub fn lost_lines(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }

    /// Opens the file anew: the old one has been moved away.
    pub fn reopen(&self) {
        self.lock().reopen = true;
        self.wake.notify_one();
    }

    /// Writes what is there, and ends.
    pub fn stop(&self) {
        self.lock().stopping = true;
        self.wake.notify_one();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a batch and gives an empty buffer in exchange. The lock is never held while anything is written.
    pub(super) fn put(&self, batch: Batch) -> Vec<u8> {
        let mut state = self.lock();
        if state.queue.len() == BATCHES_MAX {
            self.lost.fetch_add(batch.lines, Ordering::Relaxed);
            let mut text = batch.text;
            text.clear();
            return text;
        }
        state.queue.push_back(batch);
        self.wake.notify_one();
        state.spare.pop().unwrap_or_default()
    }

    fn run(&self, mut sink: Sink, target: &LogTarget) {
        let mut trouble = Trouble::default();
        let mut torn = false;
        loop {
            let mut state = self.lock();
            while state.queue.is_empty() && !state.reopen && !state.stopping {
                state = self.wake.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
            let reopen = std::mem::take(&mut state.reopen);
            let stopping = state.stopping;
            // What was gathered before a reopening belongs to the old file.
            let batches = std::mem::take(&mut state.queue);
            drop(state);
            for mut batch in batches {
                let written = write_all(&mut sink, &batch.text, &mut torn);
                trouble.after(target, written.map_err(|(error, kept)| (error, batch.lines - kept)), &self.lost);
                batch.text.clear();
                let mut state = self.lock();
                if state.spare.len() < 4 {
                    state.spare.push(batch.text);
                }
            }
            if reopen && let LogTarget::File(path) = target {
                match open(path) {
                    Ok(file) => {
                        sink = Sink::File(file);
                        torn = false;
                    }
                    Err(error) => {
                        say!("cannot reopen the log {}: {error}; lines go on to the old file", path.display())
                    }
                }
            }
            if stopping && self.lock().queue.is_empty() {
                return;
            }
        }
    }
}

/// Writes a batch. An error comes with the number of lines that are kept all the same.
///
/// A failure in the middle of a line leaves a torn one, right behind which the next batch would be written: it is taken out
/// again, or, where that cannot be, `torn` is set and the line is ended before another begins.
fn write_all(sink: &mut Sink, text: &[u8], torn: &mut bool) -> Result<(), (io::Error, u64)> {
    if *torn {
        match sink.write(b"\n") {
            Ok(1..) => *torn = false,
            failed => return Err((failed.err().unwrap_or(io::ErrorKind::WriteZero.into()), 0)),
        }
    }
    let mut at = 0;
    while at < text.len() {
        match sink.write(&text[at..]) {
            Ok(count) if count > 0 => at += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            failed => {
                let whole = text[..at].iter().rposition(|&byte| byte == b'\n').map_or(0, |end| end + 1);
                *torn = whole < at && !cut_off(sink, (at - whole) as u64);
                let kept = text[..whole].iter().filter(|&&byte| byte == b'\n').count() as u64;
                return Err((failed.err().unwrap_or(io::ErrorKind::WriteZero.into()), kept));
            }
        }
    }
    Ok(())
}

/// Takes so many bytes from the end of the log; `false` for one that is no regular file.
fn cut_off(sink: &Sink, count: u64) -> bool {
    match sink {
        Sink::Stdout => false,
        Sink::File(file) => {
            let length = file.metadata().map(|state| if state.is_file() { state.len() } else { 0 });
            matches!(length, Ok(length) if length >= count && file.set_len(length - count).is_ok())
        }
    }
}

/// Says once that the log fails, and once that it goes on.
#[derive(Default)]
struct Trouble {
    lost: u64,
}

impl Trouble {
    /// Takes note of how a batch was written, or why not and how many lines were lost.
    fn after(&mut self, target: &LogTarget, written: Result<(), (io::Error, u64)>, lost: &AtomicU64) {
        let name = match target {
            LogTarget::File(path) => path.display().to_string(),
            LogTarget::Stdout | LogTarget::Off => "standard output".to_owned(),
        };
        match written {
            Ok(()) if self.lost > 0 => {
                say!("the log {name} is being written again; {} lines were lost", self.lost);
                self.lost = 0;
            }
            Ok(()) => {}
            Err((error, lines)) => {
                if self.lost == 0 {
                    say!("cannot write the log {name}: {error}; lines are lost until it works again");
                }
                self.lost += lines;
                lost.fetch_add(lines, Ordering::Relaxed);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access_log::{AccessLog, Peer};
    use crate::config::{LogFormat, LogSettings};
    use amped_core::record::Record;
    use amped_core::reply::Wall;
    use amped_units::Time;
    use std::time::Duration;

    #[test]
    fn what_nobody_writes_is_lost_beyond_a_bound_and_counted() {
        // A writer whose thread hangs, as on a dead disk: nobody takes a batch away.
        let writer = Arc::new(Writer { state: Mutex::default(), wake: Condvar::new(), lost: AtomicU64::new(0) });
        let settings = LogSettings {
            access: LogTarget::Stdout,
            format: LogFormat::Common,
            buffer: amped_units::Bytes(1),
            flush: Duration::from_secs(1),
        };
        let mut log = AccessLog::new(&settings, Some(Arc::clone(&writer)));
        let (record, peer, wall) = (Record::default(), Peer::new(None), Wall::at(0));
        for _ in 0..BATCHES_MAX + 7 {
            log.write(&record, &peer, 0, &wall, Time::START);
        }
        assert_eq!((writer.lock().queue.len(), writer.lost_lines()), (BATCHES_MAX, 7));
    }
}
