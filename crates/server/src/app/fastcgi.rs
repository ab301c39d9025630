//! One request to an application that lives on, over a connection to it (FastCGI).
//!
//! `backend` has the connection, idle or new, and decides whether it is kept when the request is over. A connection carries
//! one request at a time.
//!
//! Nothing here waits: what may, the lookup of a script, was done before (`scripts`, `threads`).

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use amped_core::app::{AppTrouble, AppWork};
use amped_http::fastcgi::{self, RecordReader, Said};
use amped_sys::epoll::Interest;
use amped_sys::socket;

use super::backend::{At, Backend, NotBegun};
use super::cgi::{self, Place};
use super::manager::CANNOT_START;
use super::output::{Came, StderrLines};
use super::scripts::Found;
use super::semaphore::Permit;
use crate::say;

/// What is asked, and under which rules.
pub type Question = (Box<AppWork>, Place);

/// A request on a connection to an application.
#[derive(Debug)]
pub struct FastCgiRequest {
    backend: Arc<Backend>,
    /// The connection.
    pub socket: OwnedFd,
    permit: Permit,
    /// Records that are still to be written, from `out_at` on.
    out: Vec<u8>,
    out_at: usize,
    reader: RecordReader,
    /// What to ask anew, if the connection turns out to have been closed before it heard of this: it was idle.
    again: Option<Question>,
    /// It has come to its end, and whether that is one.
    end: Option<bool>,
    /// If it is none, what has gone wrong.
    trouble: AppTrouble,
    /// It was told that the body is complete.
    is_told: bool,
    /// Nothing can be written to it any more.
    is_broken: bool,
    /// Whether somebody is there is not known yet: the address, to tell of.
    connecting: Option<SocketAddr>,
}

impl FastCgiRequest {
    /// Begins a request, on this connection or on a new one, and says what it waits for then.
    ///
    /// # Errors
    /// Why not, with the request and its place.
    pub fn begin(
        backend: &Arc<Backend>,
        (work, place): Question,
        permit: Permit,
        kept: Option<OwnedFd>,
        (end, script): Found,
    ) -> Result<(Box<FastCgiRequest>, Interest), (NotBegun, Question)> {
        let is_used = kept.is_some();
        let socket = match kept.map_or_else(|| backend.connect(&permit), Ok) {
            Ok(socket) => socket,
            Err(why) => return Err((why, (work, place))),
        };
        let variables = cgi::variables(&work, &place, end, &script);
        let mut out = Vec::new();
        // Where it looks for programs is its own business.
        let variables = variables.iter().filter(|(name, _)| *name != b"PATH");
        fastcgi::begin(&mut out, backend.idle_max > 0, variables.map(|(name, value)| (*name, &value[..])));
        let has_body = work.has_body;
        if !has_body {
            fastcgi::body_end(&mut out);
        }
        let is_safe = work
            .variables
            .iter()
            .any(|(name, value)| name == b"REQUEST_METHOD" && matches!(&value[..], b"GET" | b"HEAD" | b"OPTIONS"));
        let again = (is_used && is_safe && !has_body).then_some((work, place));
        let mut request_ = Box::new(FastCgiRequest {
            backend: Arc::clone(backend),
            socket,
            permit,
            out,
            out_at: 0,
            reader: RecordReader::default(),
            again,
            end: None,
            trouble: AppTrouble::Failed,
            is_told: !has_body,
            is_broken: false,
            connecting: match backend.at {
                At::Tcp(address) if !is_used => Some(address),
                At::Tcp(_) | At::Unix(_) | At::Kept(_) => None,
            },
        });
        // Most requests are written at once, and then there is no room to wait for.
        let is_written = request_.flush() && !has_body;
        Ok((request_, if is_written { Interest::Incoming } else { Interest::Connection }))
    }

    /// Gives it part of the body.
    pub fn put(&mut self, bytes: &[u8]) {
        if self.out_at == self.out.len() {
            self.out.clear();
            self.out_at = 0;
        }
        fastcgi::body(&mut self.out, bytes);
    }

    /// Tells it, once, that the body is complete.
    pub fn put_end(&mut self) {
        if !std::mem::replace(&mut self.is_told, true) {
            fastcgi::body_end(&mut self.out);
        }
    }

    /// Whether everything so far was written.
    pub fn has_flushed(&self) -> bool {
        self.out_at == self.out.len() || self.is_broken
    }

    /// Writes what it takes: whether that is everything.
    pub fn flush(&mut self) -> bool {
        while self.out_at < self.out.len() && !self.is_broken {
            match socket::send(&self.socket, &self.out[self.out_at..], false) {
                Ok(count) => (self.out_at, self.connecting) = (self.out_at + count, None),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return false,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // What it has said before may still be read.
                Err(error) => {
                    self.is_broken = true;
                    self.note_unreached(&error);
                }
            }
        }
        true
    }

    /// If it was not known yet whether somebody is there, nobody is.
    fn note_unreached(&mut self, error: &io::Error) {
        if let Some(address) = self.connecting.take() {
            self.trouble = AppTrouble::Unreachable;
            say!("cannot reach the application at {address}: {error}");
        }
    }

    /// Takes in what it says. The answer's bytes are put to the front of the buffer.
    pub(super) fn hear(&mut self, buffer: &mut [u8], complaints: &mut StderrLines) -> Came {
        loop {
            if let Some(is_whole) = self.end {
                complaints.say_line();
                return if is_whole { Came::Ended } else { Came::Failed(self.trouble) };
            }
            let count = match socket::receive(&self.socket, buffer) {
                Ok(0) => 0,
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Came::Nothing,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => {
                    self.note_unreached(&error);
                    0
                }
            };
            if count == 0 {
                self.end = Some(false);
                continue;
            }
            self.again = None;
            let kept = self.take(&mut buffer[..count], complaints);
            if kept > 0 {
                return if self.end == Some(true) { Came::Last(kept) } else { Came::Bytes(kept) };
            }
        }
    }

    /// Reads records, and puts the answer's bytes among them to the front: how many these are.
    fn take(&mut self, bytes: &mut [u8], complaints: &mut StderrLines) -> usize {
        let (mut at, mut kept) = (0, 0);
        while at < bytes.len() {
            if self.end.is_some() {
                // Behind its end there is nothing that we have asked for.
                self.is_broken = true;
                break;
            }
            let Ok(piece) = self.reader.next(&bytes[at..]) else {
                complaints.note("the application does not speak FastCGI");
                (self.end, self.is_broken) = (Some(false), true);
                break;
            };
            at += piece.used;
            match piece.said {
                Said::Nothing => {}
                Said::Output(data) => {
                    let length = data.len();
                    bytes.copy_within(at - length..at, kept);
                    kept += length;
                }
                Said::Error(data) => complaints.say(data),
                Said::End => self.end = Some(true),
                Said::Refused(status) => {
                    let is_ours = matches!(self.backend.at, At::Kept(_));
                    (self.end, self.trouble) = match status {
                        CANNOT_START if is_ours => (Some(false), AppTrouble::Unreachable),
                        fastcgi::OVERLOADED if is_ours => (Some(false), AppTrouble::Restarting),
                        fastcgi::OVERLOADED => (Some(false), AppTrouble::Busy),
                        _ => (Some(false), AppTrouble::Failed),
                    };
                }
            }
        }
        kept
    }

    /// What to ask anew, and in which place, if the connection was closed before it heard of this.
    ///
    /// # Errors
    /// The request itself, if there is nothing to ask anew.
    pub fn into_again(mut self: Box<FastCgiRequest>) -> Result<(Question, Permit), Box<FastCgiRequest>> {
        match self.again.take() {
            Some(again) => Ok((again, self.permit)),
            None => Err(self),
        }
    }

    /// Whether its connection may be used again.
    pub fn may_be_kept(&self) -> bool {
        self.backend.idle_max > 0 && self.end == Some(true) && self.out_at == self.out.len() && !self.is_broken
    }

    /// It is over, and was not broken off: the connection is kept, if it may be used again. Then this has to be looked after.
    pub fn finish(self) -> Option<Arc<Backend>> {
        self.may_be_kept().then(|| {
            self.backend.keep(self.socket, self.permit);
            self.backend
        })
    }

    /// Nobody wants its answer any more. An application that was started here is ended, as a script would be: it may be at it
    /// for a long time, and is the only one in its place. Then this is what is left of the request until it has.
    pub fn abandon(self) -> Option<Abandoned> {
        let is_kept = matches!(self.backend.at, At::Kept(_)) && self.end.is_none();
        is_kept.then(|| Abandoned { backend: self.backend, socket: self.socket, permit: self.permit, is_told: false })
    }
}

/// A request whose application is being ended: it holds the place until the connection has come to its end.
#[derive(Debug)]
pub struct Abandoned {
    backend: Arc<Backend>,
    /// The connection.
    pub socket: OwnedFd,
    permit: Permit,
    /// The process manager knows.
    is_told: bool,
}

impl Abandoned {
    /// Whether it is over. Reads what comes, which is for nobody.
    pub fn is_over(&mut self) -> bool {
        let At::Kept(application) = &self.backend.at else {
            return true;
        };
        if !self.is_told {
            self.is_told = application.end(self.permit.number());
        }
        let mut buffer = [0; 4096];
        // An application that says much is ended in the midst of it; the rest is read when its end is told.
        for _ in 0..ABANDONED_READS {
            match socket::receive(&self.socket, &mut buffer) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return false,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Ok(0) | Err(_) => return true,
                Ok(_) => {}
            }
        }
        false
    }
}

/// Pieces of an abandoned answer that are read at once.
const ABANDONED_READS: usize = 64;
