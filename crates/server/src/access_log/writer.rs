//! The thread that writes the access log.
//!
//! It may wait for a disk, or fail on a full one, without delaying the loops; lost lines are counted and reported. It
//! does not wait for host names: lines that need one are held separately.

use std::collections::VecDeque;
use std::fmt;
use std::fs::File;
use std::io::{self, Seek, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use amped_sys::{file, foreign, process};
use amped_units::Time;

use super::held::{Held, SPARE_MAX};
use super::resolver::{Resolvers, Waiter};
use crate::clock::Clock;
use crate::config::log_format::LogFormat;
use crate::config::settings::{LogSettings, LogTarget};
use crate::counters::LogCounts;
use crate::say;

/// Lines to be written to the file.
#[derive(Debug, Default)]
pub(super) struct Batch {
    pub(super) text: Vec<u8>,
    pub(super) lines: u64,
    pub(super) format: LogFormat,
}

/// Maximum number of queued batches. With the default buffer this is 16 MiB: a minute of a slow
/// disk at a few thousand requests a second.
const BATCHES_MAX: usize = 256;

/// The writer thread, as the loops see it.
pub struct Writer {
    /// The thread holds the lock while it writes; if the log is not delayed, the loops do.
    open: Mutex<Option<Open>>,
    state: Mutex<State>,
    wake: Condvar,
    lost: AtomicU64,
    /// Lines received that are neither written nor lost yet.
    pending: AtomicU64,
    clock: Clock,
    resolvers: Resolvers,
}

impl fmt::Debug for Writer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Writer").field("state", &self.state).field("lost", &self.lost).finish_non_exhaustive()
    }
}

#[derive(Debug, Default)]
struct State {
    /// `queue.len() <= BATCHES_MAX`
    queue: VecDeque<Batch>,
    /// Empty buffers for reuse.
    spare: Vec<Vec<u8>>,
    /// A resolver has an answer.
    answered: bool,
    reopen: bool,
    stopping: bool,
    /// Lines lost to a full queue since the queue was last emptied.
    rejected: u64,
}

/// The destination of an open log.
#[derive(Debug)]
pub enum Sink {
    /// A file opened for appending.
    File(File),
    /// A file that other processes append to as well.
    Shared(File),
}

impl Sink {
    /// Opens the log; returns `None` if logging is disabled. `owner`: the user that this process, which is root, becomes later. A file
    /// created here is given to it, as it must be able to reopen it; an existing file keeps its owner.
    ///
    /// # Errors
    /// When the file cannot be opened, or its owner cannot be changed. As root, when a link on the way belongs to another user.
    pub fn open(target: &LogTarget, owner: Option<(u32, u32)>) -> io::Result<Option<Sink>> {
        let path = match target {
            LogTarget::Off => return Ok(None),
            LogTarget::Stdout => return Ok(Some(Sink::Shared(io::stdout().as_fd().try_clone_to_owned()?.into()))),
            LogTarget::File(path) => path,
        };
        let file = match owner {
            None => open(path)?,
            Some((uid, gid)) => {
                let (file, created) = foreign::append(path, uid)?;
                if created {
                    process::give_to(&file, uid, gid)?;
                }
                file
            }
        };
        Ok(Some(Sink::File(file)))
    }

    /// Marks the log as written by several processes.
    #[must_use]
    pub fn shared(self) -> Sink {
        match self {
            Sink::File(file) | Sink::Shared(file) => Sink::Shared(file),
        }
    }

    fn file(&self) -> &File {
        match self {
            Sink::File(file) | Sink::Shared(file) => file,
        }
    }
}

/// Whether a write may wait for the reader of a pipe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WriteMode {
    /// The log thread: it may wait.
    Wait,
    /// A loop: it must not wait.
    Now,
}

/// The most that a pipe accepts atomically (PIPE_BUF, pipe(7)).
const ATOMIC: usize = 4096;

/// Opens a log, and creates it if it does not exist.
///
/// Opening a named pipe for writing blocks until it has a reader, here with signals blocked, so that not
/// even SIGTERM would end the wait. Opening it for reading at this moment avoids the wait; lines written without
/// a reader are lost, counted and reported.
fn open(path: &Path) -> io::Result<File> {
    let is_pipe = std::fs::metadata(path).is_ok_and(|state| state.file_type().is_fifo());
    let _reader = is_pipe.then(|| File::options().read(true).write(true).open(path)).transpose()?;
    // If the log is not delayed, loops write to it and must not wait for a reader that has stopped reading.
    let flags = if is_pipe { file::NONBLOCKING } else { 0 };
    File::options().append(true).create(true).custom_flags(flags).open(path)
}

/// Writes to a file, or to a pipe once it has room.
fn write_patiently(mut file: &File, bytes: &[u8]) -> io::Result<usize> {
    loop {
        match file.write(bytes) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => file::wait_for_room(file)?,
            other => return other,
        }
    }
}

/// How much longer lines may wait for a host name when the server is stopping: enough for a responsive name server, and
/// half of the time that the log gets in any case (`server/serve`, `stop`).
const STOP_WAIT: Duration = Duration::from_millis(500);

impl Writer {
    pub(super) fn new(settings: &LogSettings, clock: Clock) -> Arc<Writer> {
        let (state, wake, resolvers) = (Mutex::default(), Condvar::new(), Resolvers::new(settings));
        let (open, lost, pending) = (Mutex::default(), AtomicU64::new(0), AtomicU64::new(0));
        Arc::new(Writer { open, state, wake, lost, pending, clock, resolvers })
    }

    /// Starts the writer thread.
    ///
    /// # Errors
    /// When the thread cannot be started.
    pub fn start(sink: Sink, settings: &LogSettings, clock: Clock) -> io::Result<(Arc<Writer>, JoinHandle<()>)> {
        // The first conversion to local time reads the time zone file; here it may block.
        process::local_offset(0);
        let writer = Writer::new(settings, clock);
        let target = settings.access.clone();
        let open = Open::new(sink, target);
        writer.with_open(|slot| *slot = Some(open));
        let shared = Arc::clone(&writer);
        let thread = std::thread::Builder::new().name("log".to_owned()).spawn(move || shared.run())?;
        Ok((writer, thread))
    }

    /// Applies the settings of host name lookups; the file stays open.
    pub fn renew(&self, settings: &LogSettings) {
        self.resolvers.renew(settings);
    }

    /// Returns the number of lines lost.
    pub fn lost_lines(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }

    /// Returns the number of lines lost, and the statistics of host name lookups.
    pub fn counts(&self) -> LogCounts {
        LogCounts { lost_lines: self.lost_lines(), hostnames: self.resolvers.lock().names.counts() }
    }

    /// Reopens the file after rotation. Lines that wait for a name go to the new one.
    pub fn reopen(&self) {
        self.lock().reopen = true;
        self.wake.notify_one();
    }

    /// Makes the thread write what is queued and exit.
    pub fn stop(&self) {
        self.lock().stopping = true;
        self.wake.notify_one();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn with_open<R>(&self, f: impl FnOnce(&mut Option<Open>) -> R) -> R {
        f(&mut self.open.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Writes lines that were [queued](Writer::put).
    fn write(&self, text: &[u8], lines: u64) {
        let on_done = |lines| _ = self.pending.fetch_sub(lines, Ordering::Relaxed);
        self.with_open(|open| {
            open.iter_mut().for_each(|log| log.write(text, lines, WriteMode::Wait, &self.lost, &on_done))
        });
    }

    /// Counts unwritten lines as lost, because the server exits and the log is blocked. Returns their number.
    pub fn give_up(&self) -> u64 {
        let lines = self.pending.swap(0, Ordering::Relaxed);
        self.lost.fetch_add(lines, Ordering::Relaxed);
        lines
    }

    /// Writes a line at once in the caller's thread, for the switch `delayed-log`. It does not wait for a
    /// reader: lines for which a pipe has no room are lost and counted. Returns `false` if the line must wait
    /// for a name and belongs in [`put`](Writer::put).
    pub(super) fn write_at_once(&self, line: &[u8]) -> bool {
        if self.resolvers.lock().wanted {
            return false;
        }
        self.with_open(|open| open.iter_mut().for_each(|log| log.write(line, 1, WriteMode::Now, &self.lost, &|_| {})));
        true
    }

    /// Queues a batch and returns an empty buffer. The lock is never held during a write.
    pub(super) fn put(&self, batch: Batch) -> Vec<u8> {
        let mut state = self.lock();
        if state.queue.len() == BATCHES_MAX {
            self.lost.fetch_add(batch.lines, Ordering::Relaxed);
            if state.rejected == 0 {
                say!("cannot write the access log fast enough; lines are lost until the writer catches up");
            }
            state.rejected += batch.lines;
            let mut text = batch.text;
            text.clear();
            return text;
        }
        self.pending.fetch_add(batch.lines, Ordering::Relaxed);
        state.queue.push_back(batch);
        self.wake.notify_one();
        state.spare.pop().unwrap_or_default()
    }

    fn run(self: Arc<Writer>) {
        let mut held = Held::default();
        let mut out = Vec::new();
        // When the oldest line has waited long enough; and when all of them have, because the server stops.
        let (mut due, mut end) = (Time::NEVER, Time::NEVER);
        loop {
            let mut state = self.lock();
            let is_told = |state: &State| state.reopen || state.answered || state.stopping && end == Time::NEVER;
            while state.queue.is_empty() && !is_told(&state) && self.now() < due.min(end) {
                let left = due.min(end) - self.now();
                state = self.wake.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
            }
            state.answered = false;
            let reopen = std::mem::take(&mut state.reopen);
            let stopping = state.stopping;
            // Lines gathered before a reopen belong to the old file.
            let batches = std::mem::take(&mut state.queue);
            let rejected = std::mem::take(&mut state.rejected);
            drop(state);
            if rejected > 0 {
                say!("writing the access log again; {rejected} lines were lost");
            }
            if stopping && end == Time::NEVER {
                end = self.now() + STOP_WAIT;
            }
            for mut batch in batches {
                let mut resolvers = self.resolvers.lock();
                if held.is_empty() && !resolvers.wanted {
                    drop(resolvers);
                    self.write(&batch.text, batch.lines);
                } else {
                    let wanted = resolvers.wanted;
                    let names = &mut resolvers.names;
                    let lines = held.push(&batch.text, &batch.format, wanted, names, self.now(), &mut out);
                    drop(resolvers);
                    due = self.release(&mut held, lines, end, &mut out);
                }
                batch.text.clear();
                let mut state = self.lock();
                if state.spare.len() < 4 {
                    state.spare.push(batch.text);
                }
            }
            if !held.is_empty() {
                due = self.release(&mut held, 0, end, &mut out);
            }
            if reopen {
                self.with_open(|open| open.iter_mut().for_each(Open::reopen));
            }
            if stopping && held.is_empty() && self.lock().queue.is_empty() {
                self.resolvers.stop();
                return;
            }
        }
    }

    /// Writes the lines in `out` and those that need not wait any longer. Returns when
    /// the next line will have waited long enough.
    fn release(self: &Arc<Writer>, held: &mut Held, lines: u64, end: Time, out: &mut Vec<u8>) -> Time {
        let now = self.now();
        let mut resolvers = self.resolvers.lock();
        self.resolvers.manage(&mut resolvers, self);
        let (more, due) = held.release(if now < end { now } else { Time::NEVER }, &mut resolvers.names, out);
        drop(resolvers);
        if !out.is_empty() {
            self.write(out, lines + more);
            out.clear();
            out.shrink_to(SPARE_MAX);
        }
        due
    }
}

impl Waiter for Writer {
    fn resolvers(&self) -> &Resolvers {
        &self.resolvers
    }

    fn now(&self) -> Time {
        self.clock.now()
    }

    fn wake_up(&self) {
        self.lock().answered = true;
        self.wake.notify_one();
    }
}

/// The writer's view of the open log.
struct Open {
    sink: Sink,
    /// Whether it is a regular file rather than a pipe, socket or terminal.
    is_file: bool,
    target: LogTarget,
    /// The last line is incomplete; the next must not be appended to it.
    torn: bool,
    /// Bytes written since page cache was last [released](Open::release_pages).
    held_bytes: usize,
    trouble: Trouble,
}

/// The log of a busy server grows by 20 MB a second and would evict files from the page cache, although only its
/// end is read. After this many bytes, the pages already written are released. The most recent of them are still under
/// writeback then, and are released in later rounds.
const RELEASE_STEP: usize = 1 << 20;
const RELEASE_BEHIND: u64 = 4 << 20;

impl Open {
    fn new(sink: Sink, target: LogTarget) -> Open {
        let is_file = is_file(&sink);
        Open { sink, is_file, target, torn: false, held_bytes: 0, trouble: Trouble::default() }
    }

    /// Writes lines; calls `on_done` for each written or lost line.
    fn write(&mut self, text: &[u8], lines: u64, mode: WriteMode, lost: &AtomicU64, on_done: &impl Fn(u64)) {
        let mut rest = text;
        while !rest.is_empty() {
            // Into a pipe, only whole lines that are accepted atomically, so that it is known which were written.
            let end = if self.is_file { rest.len() } else { whole_lines(rest) };
            let (piece, others) = rest.split_at(end);
            let lines = if end == text.len() { lines } else { count_lines(piece) };
            let put = |file: &File, bytes: &[u8]| match mode {
                WriteMode::Now if !self.is_file => file::write_without_waiting(file, bytes),
                WriteMode::Now => (&*file).write(bytes),
                WriteMode::Wait => write_patiently(file, bytes),
            };
            let written = write_all(&self.sink, put, piece, &mut self.torn);
            self.trouble.after(&self.target, written.map_err(|(error, kept)| (error, lines - kept)), lost);
            on_done(lines);
            rest = others;
        }
        self.held_bytes += text.len();
        if self.held_bytes >= RELEASE_STEP {
            self.held_bytes = 0;
            self.release_pages();
        }
    }

    /// Releases the page cache of what has been written.
    fn release_pages(&mut self) {
        let mut file = self.sink.file();
        if let Ok(end) = file.stream_position() {
            // A pipe has neither position nor pages; any other failure costs only memory.
            let _ = file::let_go(file, end.saturating_sub(RELEASE_BEHIND)..end);
        }
    }

    fn reopen(&mut self) {
        let LogTarget::File(path) = &self.target else { return };
        match open(path) {
            Ok(file) => {
                self.sink = if matches!(self.sink, Sink::Shared(_)) { Sink::Shared(file) } else { Sink::File(file) };
                self.is_file = is_file(&self.sink);
                self.torn = false;
            }
            Err(error) => say!("cannot reopen the log {}: {error}; still writing to the old file", path.display()),
        }
    }
}

/// Writes a batch. An error includes the number of lines that were kept nevertheless.
///
/// A failure in the middle of a line leaves a torn line, to which the next batch would be appended. It is removed; if
/// that is impossible, `torn` is set, and the line is terminated before another is written.
fn write_all(
    sink: &Sink,
    put: impl Fn(&File, &[u8]) -> io::Result<usize>,
    text: &[u8],
    torn: &mut bool,
) -> Result<(), (io::Error, u64)> {
    if *torn {
        match put(sink.file(), b"\n") {
            Ok(1..) => *torn = false,
            failed => return Err((failed.err().unwrap_or(io::ErrorKind::WriteZero.into()), 0)),
        }
    }
    let mut at = 0;
    while at < text.len() {
        match put(sink.file(), &text[at..]) {
            Ok(count) if count > 0 => at += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            failed => {
                let whole = text[..at].iter().rposition(|&byte| byte == b'\n').map_or(0, |end| end + 1);
                *torn = whole < at && !cut_off(sink, (at - whole) as u64);
                return Err((failed.err().unwrap_or(io::ErrorKind::WriteZero.into()), count_lines(&text[..whole])));
            }
        }
    }
    Ok(())
}

/// Returns whether this is a regular file.
fn is_file(sink: &Sink) -> bool {
    sink.file().metadata().is_ok_and(|state| state.is_file())
}

/// Returns the length of the leading whole lines that fit into [`ATOMIC`] bytes, or of
/// the first line if it alone does not fit.
fn whole_lines(text: &[u8]) -> usize {
    if text.len() <= ATOMIC {
        return text.len();
    }
    let end = text[..ATOMIC].iter().rposition(|&byte| byte == b'\n');
    end.or_else(|| text.iter().position(|&byte| byte == b'\n')).map_or(text.len(), |end| end + 1)
}

fn count_lines(text: &[u8]) -> u64 {
    text.iter().filter(|&&byte| byte == b'\n').count() as u64
}

/// Removes this many bytes from the end of the log. Returns `false` if it is not a regular file, or its
/// end may belong to another process by now.
fn cut_off(sink: &Sink, count: u64) -> bool {
    match sink {
        Sink::Shared(_) => false,
        Sink::File(file) => {
            let length = file.metadata().map(|state| if state.is_file() { state.len() } else { 0 });
            matches!(length, Ok(length) if length >= count && file.set_len(length - count).is_ok())
        }
    }
}

/// Reports once that the log fails, and once that it has recovered.
#[derive(Default)]
struct Trouble {
    lost: u64,
    /// Since when a reader has been too slow.
    lags_since: Option<Instant>,
}

/// A reader that is too slow still takes a line now and then; its recovery is reported no more often than this.
const LAG_REPORT_STEP: Duration = Duration::from_secs(10);

impl Trouble {
    /// Records how a batch was written, or why it failed and how many lines were lost.
    fn after(&mut self, target: &LogTarget, written: Result<(), (io::Error, u64)>, lost: &AtomicU64) {
        let name = match target {
            LogTarget::File(path) => path.display().to_string(),
            LogTarget::Stdout | LogTarget::Off => "standard output".to_owned(),
        };
        match written {
            Ok(()) if self.lags_since.is_some_and(|since| since.elapsed() < LAG_REPORT_STEP) => {}
            Ok(()) if self.lost > 0 => {
                say!("writing the log {name} again; {} lines were lost", self.lost);
                *self = Trouble::default();
            }
            Ok(()) => {}
            Err((error, lines)) => {
                if self.lost == 0 && error.kind() == io::ErrorKind::WouldBlock {
                    self.lags_since = Some(Instant::now());
                    say!(
                        "cannot write the log {name}: its reader has stopped reading; lines are lost until it resumes"
                    );
                } else if self.lost == 0 {
                    say!("cannot write the log {name}: {error}; lines are lost until writing succeeds");
                }
                self.lost += lines;
                lost.fetch_add(lines, Ordering::Relaxed);
            }
        }
    }
}

/// Waits until the log is written.
///
/// Its reader may have stopped reading, and the loops may have used up the time for stopping, so
/// the log gets one more second in any case.
pub(crate) fn end_log((writer, thread): (Arc<Writer>, JoinHandle<()>), clock: Clock, at: Time) -> Arc<Writer> {
    writer.stop();
    let until = at.max(clock.now() + Duration::from_secs(1));
    while !thread.is_finished() && clock.now() < until {
        std::thread::sleep(Duration::from_millis(2));
    }
    if !thread.is_finished() {
        say!("access log blocked: the last {} lines are lost", writer.give_up());
    }
    writer
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access_log::{AccessLog, Peer};
    use amped_core::record::Record;
    use amped_core::reply::WallClock;
    use amped_sys::mapping::Mapping;

    #[test]
    fn unwritten_lines_are_dropped_beyond_bound_and_counted() {
        let settings = LogSettings {
            access: LogTarget::Stdout,
            format: LogFormat::Common,
            buffer: amped_units::Bytes(1),
            flush: Duration::from_secs(1),
            delayed: true,
            string_caches: true,
            hostnames: false,
            ..LogSettings::default()
        };
        // A writer whose thread hangs, as on a dead disk: no batch is taken.
        let writer = Writer::new(&settings, Clock::start());
        let mut log = AccessLog::new(&settings, Some(Arc::clone(&writer)));
        let (record, peer, wall) = (Record::default(), Peer::new(None), WallClock::at(0));
        for _ in 0..BATCHES_MAX + 7 {
            log.write(&record, (&peer, None), 0, &wall, Time::START);
        }
        assert_eq!((writer.lock().queue.len(), writer.lost_lines()), (BATCHES_MAX, 7));
        // After giving up, all of them are.
        assert_eq!(writer.give_up(), BATCHES_MAX as u64);
        assert_eq!((writer.give_up(), writer.lost_lines()), (0, BATCHES_MAX as u64 + 7));
    }

    #[test]
    fn pipe_writes_end_at_whole_lines() {
        let check = |lengths: &[usize], expected: usize| {
            let text: Vec<u8> =
                lengths.iter().flat_map(|length| [vec![b'x'; length - 1], vec![b'\n']].concat()).collect();
            assert_eq!(whole_lines(&text), expected, "{lengths:?}");
        };
        check(&[10], 10);
        check(&[2000, 2000, 96, 1], 4096);
        check(&[2000, 2000, 97], 4000);
        check(&[5000, 10], 5000);
        assert_eq!(whole_lines(&[b'x'; 5000]), 5000);
    }

    #[test]
    fn written_log_is_dropped_from_page_cache() {
        let path = tempfile::NamedTempFile::new_in(".").expect("a file on a disk").into_temp_path();
        let file = open(&path).expect("opened");
        let (sink, target) = (Sink::File(file), LogTarget::File(path.to_path_buf()));
        let mut log = Open::new(sink, target);
        let (line, lost) = ([[b'x'; 1023].as_slice(), b"\n"].concat(), AtomicU64::new(0));
        let written = File::open(&path).expect("opened");
        // Uses mincore(2): a read that does not wait makes the kernel read ahead, and so brings back
        // the pages it asks about.
        let held = || {
            let pages = Mapping::new(&written, 0, 16 << 20).expect("mapped");
            (0..16_usize << 10).step_by(4).filter(|at| pages.is_resident(at << 10..(at << 10) + 1)).count()
        };
        // Written no faster than the disk allows. The kernel keeps pages that it is busy with, until a later call.
        let mut mib = 0;
        while mib < 16 || held() >= 2048 {
            assert!(mib < 256, "{} of 4096 pages; if the build directory is not on a disk, build elsewhere", held());
            (0..1024).for_each(|_| log.write(&line, 1, WriteMode::Wait, &lost, &|_| {}));
            written.sync_data().expect("synced");
            mib += 1;
        }
        assert_eq!(written.metadata().expect("its length").len(), mib << 20);
    }

    #[test]
    fn truncation_spares_lines_of_other_writers() {
        let path = tempfile::NamedTempFile::new().expect("a file").into_temp_path();
        let file = || open(&path).expect("opened");
        let sink = Sink::File(file());
        sink.file().write_all(b"whole\ntorn").expect("written");
        assert!(!cut_off(&Sink::File(file()).shared(), 4));
        assert_eq!(std::fs::read(&path).expect("read"), b"whole\ntorn");
        assert!(cut_off(&sink, 4));
        assert_eq!(std::fs::read(&path).expect("read"), b"whole\n");
    }
}
