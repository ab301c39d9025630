//! Spools: buffer bodies between clients and applications of which one is slow, in memory first, then in a file.
//!
//! A [`Spool`] is a queue of bytes: `front`, then a part of the file, then `tail`. Bytes go to the file when the tail
//! is as long as [`MEMORY`], and are read back when the front is used up. The file is unnamed and is deleted with its
//! descriptor; it starts over when it has been read to its end.
//!
//! Writing and reading it waits for the disk. For a loop that must not block, threads do that; a spool then has at most
//! one task in progress, so that bytes keep their order, and the loop gets the result from its mailbox ([`Done`]).
//! Other loops do the task at once. Closing a large unnamed file frees its blocks, which is work for the disk as well:
//! [`Scratch`] passes it to the same threads.
//!
//! The total size of a process's files is limited, and responses may use only a part of it ([`Quota`]): slow clients
//! must not take the room that other clients need for their requests.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::Sender;

use amped_core::event::Ticket;
use amped_sys::file;

use super::threads::{Task, Threads};
use crate::config::settings::SpoolSettings;
use crate::mailbox::Post;
use crate::token::Token;

/// Bytes held in memory at either end.
pub const MEMORY: usize = 64 * 1024;

/// The directory of the files, and their total size.
#[derive(Debug, Default)]
pub struct Quota {
    settings: SpoolSettings,
    used: AtomicU64,
    /// The part of it that holds responses.
    responses: AtomicU64,
}

impl Quota {
    /// Creates an unused budget.
    pub fn new(settings: SpoolSettings) -> Quota {
        Quota { settings, ..Quota::default() }
    }

    /// Returns whether it was created with these settings.
    pub fn is_of(&self, settings: &SpoolSettings) -> bool {
        self.settings == *settings
    }

    /// Reserves this many bytes, if they are available.
    fn take(&self, side: Side, bytes: u64) -> bool {
        let max = self.settings.max_bytes.0;
        let reserve = |used: &AtomicU64, max: u64| {
            let more = |used: u64| used.checked_add(bytes).filter(|&used| used <= max);
            used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok()
        };
        if side == Side::Response && !reserve(&self.responses, max / 4) {
            return false;
        }
        let is_reserved = reserve(&self.used, max);
        if side == Side::Response && !is_reserved {
            self.responses.fetch_sub(bytes, Ordering::Relaxed);
        }
        is_reserved
    }

    fn give_back(&self, side: Side, bytes: u64) {
        self.used.fetch_sub(bytes, Ordering::Relaxed);
        if side == Side::Response {
            self.responses.fetch_sub(bytes, Ordering::Relaxed);
        }
    }

    /// Creates a file. May wait for the disk.
    fn file(&self) -> io::Result<File> {
        let named = |error: io::Error, directory: &Path| {
            io::Error::new(error.kind(), format!("{}: {error}", directory.display()))
        };
        let mut trouble = None;
        for directory in self.settings.directories() {
            match file::unnamed(&directory) {
                Ok(file) => return Ok(file),
                Err(error) => trouble = trouble.or(Some(named(error, &directory))),
            }
        }
        Err(trouble.unwrap_or_else(|| io::ErrorKind::NotFound.into()))
    }
}

/// Which body a spool holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The request body. One that does not fit fails.
    Request,
    /// The response body. One that does not fit waits for its client.
    Response,
}

/// A queue of bytes.
#[derive(Debug)]
pub struct Spool {
    side: Side,
    /// `None`: everything stays in memory.
    quota: Option<Arc<Quota>>,
    /// Bytes that are held in memory before they are written, and that are read at once.
    tail_max: usize,
    front_max: usize,
    /// Valid from `front_at` on.
    front: Vec<u8>,
    front_at: usize,
    /// Bytes `read..written` of it follow the front.
    file: Option<Arc<Scratch>>,
    read: u64,
    written: u64,
    /// The most that the file has held: bytes reserved in the budget. `written <= extent`
    extent: u64,
    tail: Vec<u8>,
    busy: Option<Busy>,
    trouble: Option<Trouble>,
    /// The file could not be written; this is not retried.
    is_full: bool,
    /// Total bytes put in.
    total: u64,
}

/// The task in progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Busy {
    Reads,
    Writes,
}

/// Why a spool failed.
#[derive(Debug)]
pub enum Trouble {
    /// It accepts nothing beyond what memory holds.
    Full(io::Error),
    /// Its contents are lost.
    Lost(io::Error),
}

impl Spool {
    /// Creates an empty spool. `quota`: the budget for what exceeds memory.
    pub fn new(side: Side, quota: Option<Arc<Quota>>) -> Spool {
        Spool {
            side,
            quota,
            tail_max: MEMORY,
            front_max: MEMORY,
            front: Vec::new(),
            front_at: 0,
            file: None,
            read: 0,
            written: 0,
            extent: 0,
            tail: Vec::new(),
            busy: None,
            trouble: None,
            is_full: false,
            total: 0,
        }
    }

    /// Sets how much is held in memory from now on: bytes before they are written, and bytes that are read at once.
    pub fn set_memory(&mut self, tail_max: usize, front_max: usize) {
        (self.tail_max, self.front_max) = (tail_max.min(MEMORY), front_max.min(MEMORY));
    }

    /// Appends bytes.
    pub fn put(&mut self, bytes: &[u8]) {
        self.tail.extend_from_slice(bytes);
        self.total += bytes.len() as u64;
    }

    /// Returns the total number of bytes put in so far.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// Returns whether more may be put in.
    pub fn has_room(&self) -> bool {
        self.tail.len() < self.tail_max && self.busy != Some(Busy::Writes)
    }

    /// Returns whether it is empty.
    pub fn is_empty(&self) -> bool {
        let is_held = self.front_at < self.front.len() || !self.tail.is_empty();
        !is_held && self.read == self.written && self.busy.is_none()
    }

    /// Returns the first bytes, as many as are in memory: none, if a task must read them first.
    pub fn front(&mut self) -> &[u8] {
        if self.front_at == self.front.len() && self.read == self.written && self.busy.is_none() {
            std::mem::swap(&mut self.front, &mut self.tail);
            self.tail.clear();
            (self.front_at, self.read, self.written) = (0, 0, 0);
        }
        &self.front[self.front_at..]
    }

    /// Removes this many bytes from the front.
    pub fn consume(&mut self, count: usize) {
        self.front_at += count;
        debug_assert!(self.front_at <= self.front.len());
        if self.is_empty() {
            (self.front, self.front_at, self.tail) = (Vec::new(), 0, Vec::new());
        }
    }

    /// Returns an error, once.
    pub fn take_trouble(&mut self) -> Option<Trouble> {
        self.trouble.take()
    }

    /// Returns the memory that it uses, bytes.
    pub fn heap_bytes(&self) -> usize {
        self.front.capacity() + self.tail.capacity()
    }

    /// Returns the next task for the disk. `reads`: the front is wanted.
    fn next_operation(&mut self, reads: bool) -> Option<Operation> {
        if self.busy.is_some() {
            return None;
        }
        if reads
            && self.front().is_empty()
            && self.read < self.written
            && let Some(file) = &self.file
        {
            self.busy = Some(Busy::Reads);
            let count = usize::try_from(self.written - self.read).unwrap_or(usize::MAX).min(self.front_max);
            let mut buffer = std::mem::take(&mut self.front);
            self.front_at = 0;
            buffer.resize(count, 0);
            return Some(Operation::Read { file: Arc::clone(file), at: self.read, buffer });
        }
        let quota = self.quota.as_ref().filter(|_| self.tail.len() >= self.tail_max && !self.is_full)?;
        let extent = self.extent.max(self.written + self.tail.len() as u64);
        if !quota.take(self.side, extent - self.extent) {
            if self.side == Side::Request {
                let error = io::Error::other(format!(
                    "stored bodies already use {} (spool.max_bytes)",
                    quota.settings.max_bytes
                ));
                (self.is_full, self.trouble) = (true, Some(Trouble::Full(error)));
            }
            return None;
        }
        self.extent = extent;
        self.busy = Some(Busy::Writes);
        let bytes = std::mem::take(&mut self.tail);
        Some(Operation::Write { file: self.file.clone(), quota: Arc::clone(quota), at: self.written, bytes })
    }

    /// Handles the result of a task.
    pub fn note_done(&mut self, done: SpoolResult) {
        self.busy = None;
        match done {
            SpoolResult::Written(file, bytes) => {
                self.written += bytes as u64;
                self.file = Some(file);
            }
            SpoolResult::Unwritten(error, mut bytes) => {
                bytes.append(&mut self.tail);
                self.tail = bytes;
                (self.is_full, self.trouble) = (true, Some(Trouble::Full(error)));
            }
            SpoolResult::Read(bytes) => {
                self.read += bytes.len() as u64;
                self.front = bytes;
            }
            SpoolResult::Unread(error) => self.trouble = Some(Trouble::Lost(error)),
        }
    }
}

impl Drop for Spool {
    fn drop(&mut self) {
        if let Some(quota) = &self.quota {
            quota.give_back(self.side, self.extent);
        }
    }
}

/// An unnamed file. If threads do disk work, one of them closes it.
#[derive(Debug)]
pub struct Scratch {
    file: Option<File>,
    threads: Option<Sender<SpoolTask>>,
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let (Some(file), Some(threads)) = (self.file.take(), &self.threads) {
            // If there is no thread any more, it is closed here.
            let _ = threads.send(SpoolTask { owner: None, operation: Operation::Close(file), threads: None });
        }
    }
}

/// The owner of a spool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpoolOwner {
    /// The connection.
    pub token: Token,
    /// The ticket of its request.
    pub ticket: Ticket,
    /// Which of its two bodies.
    pub side: Side,
}

/// A task for the disk.
#[derive(Debug)]
pub struct SpoolTask {
    owner: Option<SpoolOwner>,
    operation: Operation,
    /// The queue of the threads that will close a new file.
    threads: Option<Sender<SpoolTask>>,
}

#[derive(Debug)]
enum Operation {
    Write { file: Option<Arc<Scratch>>, quota: Arc<Quota>, at: u64, bytes: Vec<u8> },
    Read { file: Arc<Scratch>, at: u64, buffer: Vec<u8> },
    Close(File),
}

/// The result of a task.
#[derive(Debug)]
pub struct Done {
    /// The owner of the spool.
    pub owner: SpoolOwner,
    /// The result.
    pub result: SpoolResult,
}

/// The result of a task.
#[derive(Debug)]
pub enum SpoolResult {
    /// So many bytes were written to this file.
    Written(Arc<Scratch>, usize),
    /// These bytes could not be written.
    Unwritten(io::Error, Vec<u8>),
    /// These bytes were read.
    Read(Vec<u8>),
    /// The bytes cannot be read.
    Unread(io::Error),
}

impl SpoolTask {
    fn run(self) -> Option<SpoolResult> {
        match self.operation {
            Operation::Write { file, quota, at, bytes } => {
                let scratch = match file {
                    Some(scratch) => Ok(scratch),
                    None => quota.file().map(|file| Arc::new(Scratch { file: Some(file), threads: self.threads })),
                };
                let written = scratch.and_then(|scratch| scratch.get()?.write_all_at(&bytes, at).map(|()| scratch));
                Some(match written {
                    Ok(scratch) => SpoolResult::Written(scratch, bytes.len()),
                    Err(error) => SpoolResult::Unwritten(error, bytes),
                })
            }
            Operation::Read { file, at, mut buffer } => {
                let read = file.get().and_then(|file| file.read_exact_at(&mut buffer, at));
                Some(read.map_or_else(SpoolResult::Unread, |()| SpoolResult::Read(buffer)))
            }
            Operation::Close(file) => {
                drop(file);
                None
            }
        }
    }
}

impl Scratch {
    fn get(&self) -> io::Result<&File> {
        self.file.as_ref().ok_or_else(|| io::ErrorKind::NotFound.into())
    }
}

impl Task for SpoolTask {
    type Message = Box<Done>;

    fn perform(self) -> Option<Box<Done>> {
        let owner = self.owner;
        let result = self.run()?;
        Some(Box::new(Done { owner: owner?, result }))
    }
}

/// Runs a loop's spool tasks.
pub struct Spooler {
    threads: Option<Threads<SpoolTask>>,
    /// Total bytes written to files.
    pub written: u64,
}

impl Spooler {
    /// Creates a spooler. `waits`: the loop runs tasks itself; otherwise threads do, and report to this mailbox.
    pub fn new(mailbox: Arc<dyn Post<Box<Done>>>, waits: bool) -> Spooler {
        Spooler { threads: (!waits).then(|| Threads::new("spool", mailbox)), written: 0 }
    }

    /// Runs the next task of a spool, if any. `reads`: its front is wanted.
    pub fn serve(&mut self, spool: &mut Spool, (token, ticket): (Token, Ticket), reads: bool) {
        while let Some(operation) = spool.next_operation(reads) {
            if let Operation::Write { bytes, .. } = &operation {
                self.written += bytes.len() as u64;
            }
            let owner = Some(SpoolOwner { token, ticket, side: spool.side });
            let task = match &mut self.threads {
                Some(threads) => match threads.start(SpoolTask { owner, operation, threads: Some(threads.sender()) }) {
                    Ok(()) => return,
                    Err(task) => SpoolTask { threads: None, ..task },
                },
                None => SpoolTask { owner, operation, threads: None },
            };
            if let Some(result) = task.run() {
                spool.note_done(result);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn quota(max: u64) -> Arc<Quota> {
        let directory = Some(std::env::temp_dir());
        Arc::new(Quota::new(SpoolSettings { directory, max_bytes: amped_units::Bytes(max) }))
    }

    /// An operation on a spool: bytes arrive or are used, a task is started or done.
    #[derive(Clone, Debug)]
    enum Step {
        Put(usize),
        Use(usize),
        Begin(bool),
        Finish,
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            (0..100_000_usize).prop_map(Step::Put),
            (0..100_000_usize).prop_map(Step::Use),
            any::<bool>().prop_map(Step::Begin),
            Just(Step::Finish),
        ]
    }

    proptest! {
        #[test]
        fn spooled_bytes_keep_their_order(steps in prop::collection::vec(step(), 1..200)) {
            let quota = quota(u64::MAX);
            let mut spool = Spool::new(Side::Response, Some(Arc::clone(&quota)));
            let (mut put, mut used) = (0_u64, 0_u64);
            let byte = |at: u64| (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8;
            let mut under_way = None;
            let take = |spool: &mut Spool, used: &mut u64, most: usize| {
                let front = spool.front();
                let count = front.len().min(most);
                let is_right = front[..count].iter().zip(*used..).all(|(&found, at)| found == byte(at));
                *used += count as u64;
                spool.consume(count);
                is_right
            };
            let done = |operation| SpoolTask { owner: None, operation, threads: None }.run().expect("a result");
            for step in steps {
                match step {
                    Step::Put(count) if spool.has_room() => {
                        let bytes: Vec<u8> = (put..put + count as u64).map(byte).collect();
                        spool.put(&bytes);
                        put += count as u64;
                    }
                    Step::Use(count) => prop_assert!(take(&mut spool, &mut used, count)),
                    Step::Begin(reads) if under_way.is_none() => under_way = spool.next_operation(reads),
                    Step::Finish => under_way.take().into_iter().for_each(|operation| spool.note_done(done(operation))),
                    Step::Put(_) | Step::Begin(_) => {}
                }
                prop_assert!(spool.take_trouble().is_none());
                prop_assert!(spool.heap_bytes() < 4 * (MEMORY + 100_000));
                prop_assert!(!spool.is_empty() || used == put);
            }
            under_way.take().into_iter().for_each(|operation| spool.note_done(done(operation)));
            while !spool.is_empty() {
                if let Some(operation) = spool.next_operation(true) {
                    spool.note_done(done(operation));
                }
                prop_assert!(take(&mut spool, &mut used, usize::MAX));
            }
            prop_assert_eq!((used, spool.total()), (put, put));
            drop(spool);
            prop_assert_eq!(quota.used.load(Ordering::Relaxed), 0);
        }
    }

    /// Puts blocks into a spool until it fails or has no room, and returns their number and whether it failed.
    fn fill(spool: &mut Spool, spooler: &mut Spooler) -> (usize, bool) {
        let mut count = 0;
        while spool.has_room() {
            spool.put(&[7; MEMORY]);
            count += 1;
            spooler.serve(spool, (Token::from_number(0), Ticket(0)), spool.side == Side::Response);
            if spool.take_trouble().is_some() {
                return (count, true);
            }
        }
        (count, false)
    }

    #[test]
    fn full_spool_fails_request_and_pauses_response() {
        let quota = quota(8 * MEMORY as u64);
        let mut spooler = Spooler { threads: None, written: 0 };
        let new = |side| Spool::new(side, Some(Arc::clone(&quota)));
        // Responses get a quarter of the budget together, in addition to what memory holds at both ends.
        let (mut first, mut second) = (new(Side::Response), new(Side::Response));
        assert_eq!(fill(&mut first, &mut spooler), (4, false));
        assert_eq!(fill(&mut second, &mut spooler), (2, false));
        // Requests get the rest, whatever responses use.
        let mut request = new(Side::Request);
        assert_eq!(fill(&mut request, &mut spooler), (7, true));
        for (spool, count) in [(&mut first, 4), (&mut second, 2)] {
            let mut left = count * MEMORY;
            while left > 0 {
                let length = spool.front().len();
                spool.consume(length);
                left -= length;
                spooler.serve(spool, (Token::from_number(0), Ticket(0)), true);
            }
            assert!(spool.is_empty());
        }
        drop((first, second, request));
        assert_eq!([&quota.used, &quota.responses].map(|bytes| bytes.load(Ordering::Relaxed)), [0, 0]);
    }
}
