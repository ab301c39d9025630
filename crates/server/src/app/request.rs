//! An application request: moves the bytes of the request and of the response.
//!
//! `mod` schedules requests and assigns processes or connections. This file sends the request's body to the application
//! and reads its response, through two spools, so that an application need not wait for a client:
//!
//! 1. The body is buffered until it is complete (`buffer_request`); only then a permit is taken. A chunked body is
//!    always buffered for CGI: its length, which the application receives first, is not known earlier (RFC 3875, 4.1.2).
//! 2. The application gets the body as fast as it reads it.
//! 3. The response is read as fast as it arrives (`buffer_response`). What the client has room for is sent at
//!    once; the rest is stored. When the application has ended its permit is free, however much the client
//!    has still to receive ([`Stage::Drains`]).

use std::io;
use std::sync::Arc;
use std::time::Duration;

use amped_core::app::{AppTrouble, AppWork};
use amped_core::event::Ticket;
use amped_sys::pipe;
use amped_sys::process::Ending;
use amped_units::Time;

use super::backend_request::BackendRequest;
use super::cgi::{Place, RequestName, Running};
use super::compressor::{Compressor, Encoded};
use super::connection::Step;
use super::output::{ReadResult, StderrLines};
use super::semaphore::{Semaphore, Waits};
use super::single_flight::{Filling, Following};
use super::spool::{Done, MEMORY, Side, Spool, Spooler, Trouble};
use crate::token::Token;

/// What a connection has room for.
#[derive(Clone, Copy, Debug)]
pub struct Room {
    /// Bytes of output that it accepts now; 0: none.
    pub output: usize,
    /// Bytes of output that are held in memory until it accepts them.
    pub ahead: usize,
    /// Bytes of stored output that are read back; 0: none.
    pub back: usize,
}

/// Bytes of output that are read at once, whatever other streams of the connection hold.
pub const APP_MEMORY_MIN: usize = 4 * 1024;

impl Room {
    /// Room for a request that shares its connection with no other. `wants_output`: it accepts output.
    pub fn alone(wants_output: bool) -> Room {
        Room { output: if wants_output { usize::MAX } else { 0 }, ahead: MEMORY, back: MEMORY }
    }

    /// Room for the request of a stream, whose client permits this many bytes. `left`: the memory that other streams leave.
    /// What its client does not permit is stored, so that a stream that is not read leaves the memory to others.
    pub fn of_stream(wants_output: bool, window: usize, left: usize) -> Room {
        let output = if wants_output { window.min(left).max(APP_MEMORY_MIN) } else { 0 };
        let ahead = if window > 0 { left.clamp(APP_MEMORY_MIN, MEMORY) } else { APP_MEMORY_MIN };
        let back = match wants_output {
            true => output.min(MEMORY),
            false if left >= MEMORY => window.min(MEMORY),
            false => 0,
        };
        Room { output, ahead, back }
    }
}

/// The state of a request at an application.
pub struct AppRequest {
    pub(super) ticket: Ticket,
    pub(super) stage: Stage,
    /// The part of the body that the application has not read yet.
    pub(super) input: Spool,
    /// The body is complete.
    pub(super) input_ended: bool,
    /// The body is buffered until it is complete.
    pub(super) gathers: bool,
    /// The connection waits for a report that there is room for more of the body.
    pub(super) owes_room: bool,
    /// The part of the response that the client has no room for yet.
    pub(super) output: Spool,
    /// The response is read further than the client has received it.
    pub(super) reads_ahead: bool,
    /// There may be something to read.
    pub(super) is_ready: bool,
    /// The application has closed its side of the connection: reading goes on until its end, which no further event reports.
    pub(super) has_closed: bool,
    /// The response is compressed on its way from the spool to the client.
    pub(super) compressor: Option<Box<Compressor>>,
    pub(super) stderr_lines: StderrLines,
    /// How long the application may continue after its client has left.
    pub(super) time: Duration,
    /// Other requests wait for its response.
    pub(super) filling: Option<Filling>,
}

pub(super) enum Stage {
    /// It will start, or wait for another request's response.
    Joins,
    /// It waits for another request's response.
    Follows(#[expect(dead_code, reason = "dropping it ends the wait")] Following),
    /// Its body is not complete yet.
    Gathers(Box<AppWork>, Place, Arc<Semaphore>),
    /// It waits for a permit.
    Queued(Box<AppWork>, Place, Waits),
    /// Its process is being started.
    Starting,
    /// Its process runs. `ended`: when its response ended.
    Runs { running: Running, ended: Option<Time> },
    /// A persistent application handles it.
    Talks(Box<BackendRequest>),
    /// The application has ended, with this result, and is free for others; the
    /// client has not received the whole response.
    Drains(Option<AppTrouble>),
    /// It has ended.
    Over,
}

/// How long a process may take to exit after the end of its response; after that its exit status is not waited
/// for, and the response is taken as complete.
const LAST_MOMENT: Duration = Duration::from_millis(100);

impl AppRequest {
    /// Creates a request that has not been started.
    pub(super) fn new(ticket: Ticket) -> AppRequest {
        AppRequest {
            ticket,
            stage: Stage::Starting,
            input: Spool::new(Side::Request, None),
            input_ended: true,
            gathers: false,
            owes_room: false,
            output: Spool::new(Side::Response, None),
            reads_ahead: false,
            is_ready: true,
            has_closed: false,
            compressor: None,
            stderr_lines: StderrLines::new(RequestName::default(), Arc::default()),
            time: Duration::ZERO,
            filling: None,
        }
    }

    /// Returns whether it waits for another request's response.
    pub fn follows(&self) -> bool {
        matches!(self.stage, Stage::Follows(_))
    }

    /// Returns its ticket.
    pub fn ticket(&self) -> Ticket {
        self.ticket
    }

    /// Returns whether it has ended.
    pub fn is_over(&self) -> bool {
        matches!(self.stage, Stage::Over)
    }

    /// Marks that an event may concern it.
    pub fn is_ready(&mut self) {
        self.is_ready = true;
    }

    /// Handles an event on its connection. `has_closed`: the application has closed its side.
    pub fn note_event(&mut self, has_closed: bool) {
        self.is_ready = true;
        self.has_closed |= has_closed;
        if let Stage::Talks(request_) = &mut self.stage {
            request_.connection.note_event();
        }
    }

    /// Handles a step of the TLS handshake with its backend. Returns `false` if that connection was given up.
    pub fn note_step(&mut self, step: Step) -> bool {
        let Stage::Talks(request_) = &mut self.stage else { return false };
        let is_own = request_.connection.take_back(step);
        self.is_ready |= is_own;
        is_own
    }

    /// Handles the result of a spool task for one of its bodies.
    pub fn note_done(&mut self, Done { owner, result }: Done) {
        match owner.side {
            Side::Request => self.input.note_done(result),
            Side::Response => self.output.note_done(result),
        }
    }

    /// Handles a piece of the response that was compressed.
    pub fn note_encoded(&mut self, done: Encoded) {
        if let Some(compressor) = &mut self.compressor {
            compressor.note_done(done);
        }
    }

    /// Returns the memory that it uses, bytes.
    pub fn heap_bytes(&self) -> usize {
        size_of::<AppRequest>()
            + self.input.heap_bytes()
            + self.output.heap_bytes()
            + self.compressor.as_ref().map_or(0, |compressor| compressor.heap_bytes())
    }

    /// Returns the memory of its bodies, bytes.
    pub fn held_bytes(&self) -> usize {
        self.heap_bytes() - size_of::<AppRequest>()
    }

    /// Adds a part of the body; an empty part ends it.
    pub(super) fn put(&mut self, bytes: &[u8]) {
        self.input.put(bytes);
        self.owes_room = true;
    }

    /// Returns whether to report to the connection that there is room.
    pub(super) fn has_room(&mut self) -> bool {
        let is_free = match (self.gathers, &self.stage) {
            (true, _) => self.input.has_room(),
            (false, Stage::Runs { .. }) => self.input.is_empty(),
            (false, Stage::Talks(request_)) => self.input.is_empty() && request_.has_flushed(),
            (false, _) => false,
        };
        is_free && std::mem::take(&mut self.owes_room)
    }

    /// Writes as much of the body as the application accepts. Returns `false` if it might accept more.
    pub(super) fn feed(&mut self, token: Token, spooler: &mut Spooler) -> bool {
        let is_begun = matches!(self.stage, Stage::Runs { .. } | Stage::Talks(_));
        for _ in 0..ROUNDS {
            spooler.serve(&mut self.input, (token, self.ticket), is_begun);
            if !self.flush() {
                return true;
            }
        }
        false
    }

    /// Writes the part of the body that is in memory. Returns whether there is more.
    fn flush(&mut self) -> bool {
        match &mut self.stage {
            Stage::Runs { running, .. } => {
                let Some(stdin) = &running.stdin else {
                    // It reads no more: the rest is discarded.
                    self.input = Spool::new(Side::Request, None);
                    return false;
                };
                let bytes = self.input.front();
                if bytes.is_empty() {
                    if self.input_ended && self.input.is_empty() {
                        running.stdin = None;
                    }
                    return false;
                }
                match pipe::write(stdin, bytes) {
                    Ok(count) => self.input.consume(count),
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => return false,
                    Err(_) => running.stdin = None,
                }
                true
            }
            Stage::Talks(request_) => {
                // Of a body that may have to be sent over another connection, nothing is taken.
                if !request_.flush() || request_.is_unsent() {
                    return false;
                }
                let bytes = self.input.front();
                let count = bytes.len().min(MEMORY);
                request_.put(&bytes[..count]);
                self.input.consume(count);
                if self.input_ended && self.input.is_empty() {
                    request_.put_end();
                }
                request_.flush() && count > 0
            }
            Stage::Joins | Stage::Follows(_) | Stage::Gathers(..) | Stage::Queued(..) => false,
            Stage::Starting | Stage::Drains(_) | Stage::Over => false,
        }
    }

    /// Reports a body that cannot be stored or read back, and returns the error for the client.
    pub(super) fn trouble(&mut self) -> Option<AppTrouble> {
        let trouble = self.input.take_trouble()?;
        let (error, verb) = match &trouble {
            Trouble::Full(error) => (error, "store"),
            Trouble::Lost(error) => (error, "read"),
        };
        self.stderr_lines.note(&format!("cannot {verb} the request body: {error}"));
        Some(AppTrouble::NoRoom)
    }

    pub(super) fn turn(
        &mut self,
        now: Time,
        (token, room): (Token, Room),
        spooler: &mut Spooler,
        buffer: &mut [u8],
        wake: impl FnMut(Time),
    ) -> ReadResult {
        self.output.set_memory(room.ahead, room.back);
        let Some(compressor) = &mut self.compressor else {
            return self.turn_plain(now, (token, room), spooler, buffer, wake);
        };
        let wants_output = room.output > 0;
        let most = room.output.min(buffer.len());
        if let count @ 1.. = compressor.take(&mut buffer[..most]) {
            return ReadResult::Bytes(count);
        }
        if compressor.has_failed() {
            return ReadResult::Failed(AppTrouble::Failed);
        }
        let (wants_input, is_over) = (compressor.wants_input(), wants_output && compressor.is_over());
        let room = Room { output: if wants_input || is_over { room.ahead } else { 0 }, ..room };
        let result = self.turn_plain(now, (token, room), spooler, buffer, wake);
        self.compress(result, wants_input, buffer)
    }

    /// Passes what a turn has read to the compressor. `wants_input`: it can take more.
    fn compress(&mut self, result: ReadResult, wants_input: bool, buffer: &[u8]) -> ReadResult {
        let is_drained = matches!(self.stage, Stage::Drains(None));
        let Some(compressor) = self.compressor.as_mut().filter(|_| wants_input) else { return result };
        let taken = match result {
            // An end that came with them is reported again.
            ReadResult::Bytes(count) | ReadResult::Last(count) => compressor.put(&buffer[..count]),
            ReadResult::Ended if is_drained => compressor.finish(Vec::new()),
            ReadResult::Nothing => {
                compressor.flush();
                return ReadResult::Nothing;
            }
            other => return other,
        };
        match taken {
            Ok(()) => ReadResult::Again,
            Err(why) => {
                self.stderr_lines.note(why);
                ReadResult::Failed(AppTrouble::Failed)
            }
        }
    }

    /// A turn without compression, or what comes before it.
    fn turn_plain(
        &mut self,
        now: Time,
        (token, room): (Token, Room),
        spooler: &mut Spooler,
        buffer: &mut [u8],
        wake: impl FnMut(Time),
    ) -> ReadResult {
        let wants_output = room.output > 0;
        let is_fed = self.feed(token, spooler);
        if self.has_room() {
            return ReadResult::Room;
        }
        if let Stage::Runs { running, .. } = &mut self.stage
            && std::mem::take(&mut self.is_ready)
        {
            self.is_ready = self.stderr_lines.read_from(&mut running.stderr, buffer);
        }
        let is_done = is_fed && !(self.is_ready && matches!(self.stage, Stage::Runs { .. }));
        spooler.serve(&mut self.output, (token, self.ticket), room.back > 0);
        match self.output.take_trouble() {
            // From now on it waits for the client.
            Some(Trouble::Full(error)) => self.stderr_lines.note(&format!("cannot store the response: {error}")),
            Some(Trouble::Lost(error)) => {
                self.stderr_lines.note(&format!("cannot read the stored response: {error}"));
                self.output = Spool::new(Side::Response, None);
                return ReadResult::Failed(AppTrouble::Failed);
            }
            None => {}
        }
        if wants_output {
            let bytes = self.output.front();
            let count = bytes.len().min(buffer.len()).min(room.output);
            if count > 0 {
                buffer[..count].copy_from_slice(&bytes[..count]);
                self.output.consume(count);
                let is_last = self.output.is_empty() && matches!(self.stage, Stage::Drains(None));
                return if is_last { ReadResult::Last(count) } else { ReadResult::Bytes(count) };
            }
        }
        let is_passed_on = wants_output && self.output.is_empty();
        let may_read = is_passed_on || (self.reads_ahead && self.output.has_room());
        if !may_read {
            return if is_done { ReadResult::Nothing } else { ReadResult::Again };
        }
        let most = if is_passed_on { room.output } else { room.ahead };
        match self.read_output(now, (buffer, most), wake) {
            ReadResult::Switched(count) => {
                // From now on each side waits for the other, and what the client sends is passed on.
                (self.reads_ahead, self.input_ended) = (false, false);
                ReadResult::Switched(count)
            }
            // An end that came with them is reported again.
            ReadResult::Bytes(count) | ReadResult::Last(count) if !is_passed_on => {
                self.output.put(&buffer[..count]);
                ReadResult::Again
            }
            ReadResult::Ended | ReadResult::Failed(_) if matches!(self.stage, Stage::Drains(_)) && !is_passed_on => {
                ReadResult::Nothing
            }
            ReadResult::Nothing if !is_done => ReadResult::Again,
            result => result,
        }
    }

    /// Reads the application's output, at most this many bytes.
    fn read_output(&mut self, now: Time, (buffer, most): (&mut [u8], usize), mut wake: impl FnMut(Time)) -> ReadResult {
        let (running, ended) = match &mut self.stage {
            Stage::Runs { running, ended } => (running, ended),
            Stage::Talks(request_) => {
                request_.check_connecting(now);
                if !self.is_ready && !request_.has_ended() {
                    return ReadResult::Nothing;
                }
                let result = request_.read((buffer, most), &mut self.stderr_lines);
                // After a read that left nothing, epoll reports what arrives.
                let is_empty = request_.connection.is_drained() && !request_.has_read() && !self.has_closed;
                self.is_ready = !(is_empty || matches!(result, ReadResult::Nothing));
                return result;
            }
            Stage::Drains(None) => return ReadResult::Ended,
            Stage::Drains(Some(trouble)) => return ReadResult::Failed(*trouble),
            Stage::Joins
            | Stage::Follows(_)
            | Stage::Gathers(..)
            | Stage::Queued(..)
            | Stage::Starting
            | Stage::Over => {
                return ReadResult::Nothing;
            }
        };
        if let Some(stdout) = &running.stdout {
            let most = most.min(buffer.len());
            match pipe::read(stdout, &mut buffer[..most]) {
                Ok(0) => running.stdout = None,
                Ok(count) => return ReadResult::Bytes(count),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return ReadResult::Nothing,
                Err(_) => running.stdout = None,
            }
        }
        // The response is complete, unless the process was killed in the middle of it.
        match running.process.ended() {
            Some(ending) => {
                self.stderr_lines.read_from(&mut running.stderr, buffer);
                self.stderr_lines.note_end(ending);
                match ending {
                    Ending::Status(_) => ReadResult::Ended,
                    Ending::Signal(_) => ReadResult::Failed(AppTrouble::Failed),
                }
            }
            None if ended.is_some_and(|ended| now >= ended + LAST_MOMENT) => ReadResult::Ended,
            None => {
                if ended.is_none() {
                    *ended = Some(now);
                    wake(now + LAST_MOMENT);
                }
                ReadResult::Nothing
            }
        }
    }
}

/// Maximum pieces of a body written in one turn, so that other connections get theirs.
const ROUNDS: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stream_has_room_for_its_window_and_what_others_leave() {
        let check = |(wants, window, left): (bool, usize, usize), expected: (usize, usize, usize)| {
            let Room { output, ahead, back } = Room::of_stream(wants, window, left);
            assert_eq!((output, ahead, back), expected, "{wants}, {window}, {left}");
        };
        check((true, 1 << 20, 1 << 19), (1 << 19, MEMORY, MEMORY));
        check((true, 10_000, 1 << 19), (10_000, MEMORY, 10_000));
        check((false, 10_000, 1 << 19), (0, MEMORY, 10_000));
        // Without a window or memory, something is read in any case: a head or an end may be in it.
        check((true, 0, 1 << 19), (APP_MEMORY_MIN, APP_MEMORY_MIN, APP_MEMORY_MIN));
        check((true, 1 << 20, 0), (APP_MEMORY_MIN, APP_MEMORY_MIN, APP_MEMORY_MIN));
        // What waits for its client is not read back.
        check((false, 0, 1 << 19), (0, APP_MEMORY_MIN, 0));
        check((false, 1 << 20, 0), (0, APP_MEMORY_MIN, 0));
    }
}
