//! A request to a persistent application, over a FastCGI connection.
//!
//! `backend` provides the connection, idle or new, and decides whether it is kept after the request. A
//! connection carries one request at a time.
//!
//! Nothing here blocks: the step that may, the lookup of a script, has been done before (`scripts`, `threads`).

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use amped_core::app::{AppTrouble, AppWork};
use amped_http::fastcgi::{self, RecordReader, Said};
use amped_sys::epoll::Interest;
use amped_sys::socket;

use super::backend::{At, Backend, StartError};
use super::cgi::{self, Place};
use super::manager::CANNOT_START;
use super::output::{ReadResult, StderrLines};
use super::scripts::Found;
use super::semaphore::Permit;
use crate::say;

/// A request and its context.
pub type AppCall = (Box<AppWork>, Place);

/// A request on a connection to an application.
#[derive(Debug)]
pub struct FastCgiRequest {
    backend: Arc<Backend>,
    /// The connection.
    pub socket: OwnedFd,
    permit: Permit,
    /// Records to be written, from `out_at` on.
    out: Vec<u8>,
    out_at: usize,
    reader: RecordReader,
    /// The request to retry if the connection, which was idle, turns out to have been closed
    /// before the request reached the application.
    again: Option<AppCall>,
    /// The request has ended; whether successfully.
    end: Option<bool>,
    /// The error to report if it has not.
    trouble: AppTrouble,
    /// The end of the body was queued.
    body_end_queued: bool,
    /// The connection can no longer be written.
    is_broken: bool,
    /// The connection is not established yet; the address, for messages.
    connecting: Option<SocketAddr>,
}

impl FastCgiRequest {
    /// Sends a request over this connection or a new one. Returns with it the events to wait for.
    ///
    /// # Errors
    /// Why it was not started, with the request and its permit.
    pub fn begin(
        backend: &Arc<Backend>,
        (work, place): AppCall,
        permit: Permit,
        kept: Option<OwnedFd>,
        (end, script): Found,
    ) -> Result<(Box<FastCgiRequest>, Interest), (StartError, AppCall)> {
        let is_used = kept.is_some();
        let socket = match kept.map_or_else(|| backend.connect(&permit), Ok) {
            Ok(socket) => socket,
            Err(why) => return Err((why, (work, place))),
        };
        let variables = cgi::variables(&work, &place, end, &script);
        let mut out = Vec::new();
        // The application's search path is its own business.
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
            body_end_queued: !has_body,
            is_broken: false,
            connecting: match backend.at {
                At::Tcp(address) if !is_used => Some(address),
                At::Tcp(_) | At::Unix(_) | At::Kept(_) => None,
            },
        });
        // Most requests are written at once, and then there is no need to wait for room.
        let is_written = request_.flush() && !has_body;
        Ok((request_, if is_written { Interest::Incoming } else { Interest::Connection }))
    }

    /// Queues part of the body.
    pub fn put(&mut self, bytes: &[u8]) {
        if self.out_at == self.out.len() {
            self.out.clear();
            self.out_at = 0;
        }
        fastcgi::body(&mut self.out, bytes);
    }

    /// Queues the end of the body, once.
    pub fn put_end(&mut self) {
        if !std::mem::replace(&mut self.body_end_queued, true) {
            fastcgi::body_end(&mut self.out);
        }
    }

    /// Returns whether everything queued so far was written.
    pub fn has_flushed(&self) -> bool {
        self.out_at == self.out.len() || self.is_broken
    }

    /// Writes as much as the socket accepts. Returns whether that was everything.
    pub fn flush(&mut self) -> bool {
        while self.out_at < self.out.len() && !self.is_broken {
            match socket::send(&self.socket, &self.out[self.out_at..], false) {
                Ok(count) => (self.out_at, self.connecting) = (self.out_at + count, None),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return false,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // Earlier output may still be read.
                Err(error) => {
                    self.is_broken = true;
                    self.note_unreached(&error);
                }
            }
        }
        true
    }

    /// Reports a failed connect, if the connection was not established yet.
    fn note_unreached(&mut self, error: &io::Error) {
        if let Some(address) = self.connecting.take() {
            self.trouble = AppTrouble::Unreachable;
            say!("cannot reach the application at {address}: {error}");
        }
    }

    /// Reads the application's output. The bytes of the response are moved to the front of the buffer.
    pub(super) fn read(&mut self, buffer: &mut [u8], stderr_lines: &mut StderrLines) -> ReadResult {
        loop {
            if let Some(is_whole) = self.end {
                stderr_lines.log_line();
                return if is_whole { ReadResult::Ended } else { ReadResult::Failed(self.trouble) };
            }
            let count = match socket::receive(&self.socket, buffer) {
                Ok(0) => 0,
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return ReadResult::Nothing,
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
            let kept = self.take(&mut buffer[..count], stderr_lines);
            if kept > 0 {
                return if self.end == Some(true) { ReadResult::Last(kept) } else { ReadResult::Bytes(kept) };
            }
        }
    }

    /// Parses records and moves the bytes of the response to the front. Returns their number.
    fn take(&mut self, bytes: &mut [u8], stderr_lines: &mut StderrLines) -> usize {
        let (mut at, mut kept) = (0, 0);
        while at < bytes.len() {
            if self.end.is_some() {
                // Discard everything after the end of the request.
                self.is_broken = true;
                break;
            }
            let Ok(piece) = self.reader.next(&bytes[at..]) else {
                stderr_lines.note("the application does not speak FastCGI");
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
                Said::Error(data) => stderr_lines.say(data),
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

    /// Returns the request to retry and its permit, if the connection was closed
    /// before the request reached the application.
    ///
    /// # Errors
    /// The request itself, if it cannot be retried.
    pub fn into_again(mut self: Box<FastCgiRequest>) -> Result<(AppCall, Permit), Box<FastCgiRequest>> {
        match self.again.take() {
            Some(again) => Ok((again, self.permit)),
            None => Err(self),
        }
    }

    /// Returns whether its connection may be reused.
    pub fn may_be_kept(&self) -> bool {
        self.backend.idle_max > 0 && self.end == Some(true) && self.out_at == self.out.len() && !self.is_broken
    }

    /// Finishes a complete request: keeps its connection, if it may be reused. Returns
    /// the backend if that needs sweeping then.
    pub fn finish(self) -> Option<Arc<Backend>> {
        self.may_be_kept().then(|| {
            self.backend.keep(self.socket, self.permit);
            self.backend
        })
    }

    /// Abandons the request. An application that this server started is ended, as a script would be: it may
    /// run for a long time, and no other process can use its slot. Then the rest of the request is returned,
    /// to be kept until the application has ended.
    pub fn abandon(self) -> Option<Abandoned> {
        let is_kept = matches!(self.backend.at, At::Kept(_)) && self.end.is_none();
        is_kept.then(|| Abandoned {
            backend: self.backend,
            socket: self.socket,
            permit: self.permit,
            manager_notified: false,
        })
    }
}

/// A request whose application is being ended: it holds the permit until the connection has ended.
#[derive(Debug)]
pub struct Abandoned {
    backend: Arc<Backend>,
    /// The connection.
    pub socket: OwnedFd,
    permit: Permit,
    /// The process manager was notified.
    manager_notified: bool,
}

impl Abandoned {
    /// Returns whether the application has ended. Reads and discards its output.
    pub fn is_over(&mut self) -> bool {
        let At::Kept(application) = &self.backend.at else {
            return true;
        };
        if !self.manager_notified {
            self.manager_notified = application.end(self.permit.number());
        }
        let mut buffer = [0; 4096];
        // An application with much output is ended in the middle of it; the rest is read when epoll reports its end.
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

/// Reads of abandoned output per turn.
const ABANDONED_READS: usize = 64;
