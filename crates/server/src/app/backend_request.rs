//! A request to a persistent application, over a connection to it.
//!
//! `backend` provides the connection, idle or new, and decides whether it is kept after the request; `codec` is the
//! protocol on it, FastCGI or HTTP. A connection carries one request at a time.
//!
//! A request is sent again over another connection in three cases. It was not sent: then the application has no part of
//! it. Or the connection was an idle one, was closed before the first byte of a response, and the request may be
//! repeated (RFC 9110, 9.2.2): the application had probably closed the connection before. Otherwise the application may
//! have failed because of the request, which must not reach the next one. Or the response has a status that the operator has named
//! (`retry_statuses`), and the request may be repeated; if no other backend is left, that response is passed on.
//!
//! Nothing here blocks: the step that may, the lookup of a script, has been done before (`scripts`, `threads`).

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

use amped_core::app::{AppTrouble, AppWork};
use amped_http::fastcgi::{self, RecordReader};
use amped_http::h1::gateway::Handshake;
use amped_http::interim::Interim;
use amped_sys::epoll::Interest;
use amped_units::Time;
use aws_lc_rs::rand;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use sha1::{Digest, Sha1};

use super::backend::{At, Backend};
use super::cgi::{self, Place};
use super::codec::{Codec, Head};
use super::connection::BackendConnection;
use super::output::{ReadResult, StderrLines};
use super::scripts::Found;
use super::semaphore::Permit;
use super::upstream::InUse;
use crate::counters::HttpCounts;

/// A request and its context.
pub type AppCall = (Box<AppWork>, Place);

/// A request on a connection to an application.
#[derive(Debug)]
pub struct BackendRequest {
    backend: Arc<Backend>,
    /// The connection.
    pub connection: BackendConnection,
    permit: Permit,
    codec: Codec,
    /// Bytes to be written, from `out_at` on.
    out: Vec<u8>,
    out_at: usize,
    /// Bytes of the response that had no room in the buffer, from `ready_at` on.
    ready: Vec<u8>,
    ready_at: usize,
    /// The request, until the first byte of a response arrives.
    again: Option<AppCall>,
    /// The request, from that byte until the status of the response, which may send it to another backend.
    until_status: Option<AppCall>,
    /// The status does so.
    is_declined: bool,
    /// The connection was used before.
    is_used: bool,
    /// The request may be sent twice.
    is_repeatable: bool,
    /// A part of the request was sent.
    is_sent: bool,
    /// The response has ended; whether successfully.
    end: Option<bool>,
    /// The error to report if it has not.
    trouble: AppTrouble,
    /// The end of the body was queued.
    body_end_queued: bool,
    /// Our side of the connection is to be closed when everything was written.
    closes: bool,
    /// The connection can no longer be written.
    is_broken: bool,
    /// When establishing the connection has taken too long; `None`: it is established.
    connecting: Option<Time>,
    /// Counts it at its backend, and the backend's failures.
    in_use: Option<InUse>,
    /// Its response has brought the backend back into service.
    has_revived: bool,
    /// Responses before the final one that were not reported yet.
    interim: VecDeque<Interim>,
    /// Bytes of `ready` that are the head of a response that switches to another protocol.
    switching: usize,
}

/// A connection for a request.
pub struct Link {
    /// The connection.
    pub connection: BackendConnection,
    /// It was used before.
    pub is_used: bool,
    /// When establishing it has taken too long.
    pub due: Time,
}

impl BackendRequest {
    /// Sends a request over a connection. Returns with it the events to wait for.
    pub fn begin(
        backend: &Arc<Backend>,
        (mut work, place): AppCall,
        permit: Permit,
        link: Link,
        (end, script): Found,
    ) -> (Box<BackendRequest>, Interest) {
        let Link { connection, is_used, due } = link;
        let keeps = backend.idle_max > 0;
        let (mut out, has_body) = (Vec::new(), work.has_body);
        let is_repeatable = is_repeatable(&work);
        let codec = match &mut work.forward {
            Some(forward) => {
                if forward.needs_handshake {
                    forward.handshake = Some(websocket_handshake());
                }
                forward.write(&mut out, &place.ends.connection(), &backend.authority(), keeps);
                Codec::http(forward)
            }
            None => {
                let variables = cgi::variables(&work, &place, end, &script);
                // The application's search path is its own business.
                let variables = variables.iter().filter(|(name, _)| *name != b"PATH");
                fastcgi::begin(&mut out, keeps, variables.map(|(name, value)| (*name, &value[..])));
                Codec::FastCgi(RecordReader::default())
            }
        };
        if !has_body {
            codec.put_end(&mut out);
        }
        let waits_for_more = has_body || work.forward.as_ref().is_some_and(|forward| forward.upgrade);
        let in_use = place.upstream.as_ref().map(|upstream| InUse::new(upstream, place.member));
        let mut request_ = Box::new(BackendRequest {
            backend: Arc::clone(backend),
            connection,
            permit,
            codec,
            out,
            out_at: 0,
            ready: Vec::new(),
            ready_at: 0,
            again: Some((work, place)),
            until_status: None,
            is_declined: false,
            is_used,
            is_repeatable,
            is_sent: false,
            end: None,
            trouble: AppTrouble::Failed,
            body_end_queued: !has_body,
            closes: false,
            is_broken: false,
            connecting: match backend.at {
                At::Tcp(_) if !is_used => Some(due),
                At::Tcp(_) | At::Unix(_) | At::Kept(_) => None,
            },
            in_use,
            has_revived: false,
            interim: VecDeque::new(),
            switching: 0,
        });
        // Most requests are written at once, and then there is no need to wait for room.
        let is_written = request_.flush() && !waits_for_more;
        (request_, if is_written { Interest::Incoming } else { Interest::Connection })
    }

    /// Returns when establishing the connection has taken too long; [`Time::NEVER`]: it is established.
    pub fn connect_due(&self) -> Time {
        self.connecting.unwrap_or(Time::NEVER)
    }

    /// Queues part of the body.
    pub fn put(&mut self, bytes: &[u8]) {
        if self.out_at == self.out.len() {
            self.out.clear();
            self.out_at = 0;
        }
        self.codec.put(&mut self.out, bytes);
    }

    /// Queues the end of the body, once; in a tunnel, the end of this side.
    pub fn put_end(&mut self) {
        if !std::mem::replace(&mut self.body_end_queued, true) {
            self.codec.put_end(&mut self.out);
            self.closes = self.codec.is_tunnel();
        }
    }

    /// Returns whether everything queued so far was written.
    pub fn has_flushed(&self) -> bool {
        (self.out_at == self.out.len() && !self.connection.has_unsent()) || self.is_broken
    }

    /// Returns whether no part of the request was sent, or can be.
    pub fn is_unsent(&self) -> bool {
        self.is_broken && !self.is_sent
    }

    /// Writes as much as the socket accepts. Returns whether that was everything.
    pub fn flush(&mut self) -> bool {
        while !self.has_flushed() {
            let sent = match &self.out[self.out_at..] {
                [] => self.connection.flush().map(|()| 0),
                bytes => self.connection.send(bytes),
            };
            match sent {
                Ok(count) => {
                    (self.out_at, self.connecting) = (self.out_at + count, None);
                    self.is_sent |= count > 0;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return false,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // Earlier output may still be read.
                Err(error) => {
                    self.is_broken = true;
                    self.note_unreached(&error);
                }
            }
        }
        if std::mem::take(&mut self.closes) && !self.is_broken {
            self.connection.half_close();
        }
        true
    }

    /// Reports a failed connect, if the connection was not established yet, or an error of TLS.
    fn note_unreached(&mut self, error: &io::Error) {
        if self.connecting.take().is_some() {
            self.trouble = match error.kind() {
                io::ErrorKind::TimedOut => AppTrouble::TimedOut,
                _ => AppTrouble::Unreachable,
            };
        } else if error.kind() != io::ErrorKind::InvalidData {
            return;
        }
        // With TLS 1.3 a server refuses this one only after its first request.
        self.backend.report(&self.backend.name(), error);
    }

    /// Gives up connecting, if that has taken too long.
    pub(super) fn check_connecting(&mut self, now: Time) {
        if now >= self.connect_due() {
            self.note_unreached(&io::Error::new(io::ErrorKind::TimedOut, "the connection timed out"));
            (self.end, self.is_broken) = (Some(false), true);
        }
    }

    /// Reads the application's output, at most this many bytes. Those of the response are moved to the front of the
    /// buffer. The head of a response that switches protocols is not limited: it is not passed on in parts.
    pub(super) fn read(&mut self, (buffer, most): (&mut [u8], usize), stderr_lines: &mut StderrLines) -> ReadResult {
        let most = most.min(buffer.len());
        loop {
            if let Some(interim) = self.interim.pop_front() {
                return ReadResult::Interim(interim);
            }
            if let Some(result) = self.next_ready(buffer, most) {
                return result;
            }
            if let Some(is_whole) = self.end {
                stderr_lines.log_line();
                return if is_whole { ReadResult::Ended } else { ReadResult::Failed(self.trouble) };
            }
            let count = match self.connection.receive(&mut buffer[..most]) {
                Ok(0) => {
                    self.end = Some(self.codec.is_whole_at_close());
                    continue;
                }
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return ReadResult::Nothing,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => {
                    self.note_unreached(&error);
                    self.end = Some(false);
                    continue;
                }
            };
            self.until_status =
                self.again.take().filter(|call| self.may_be_declined(call)).or(self.until_status.take());
            let had_head = self.codec.has_head();
            let is_ours = matches!(self.backend.at, At::Kept(_));
            let taken = self.codec.take(&mut buffer[..count], is_ours, stderr_lines);
            self.is_broken |= taken.is_spoiled;
            self.is_declined = self.has_retry_status();
            if self.is_declined {
                self.end = Some(false);
                continue;
            }
            if self.codec.has_head() || !taken.interim.is_empty() {
                // The client gets a part of the response.
                self.until_status = None;
            }
            self.interim = taken.interim;
            match taken.end {
                Some(Ok(())) => self.end = Some(true),
                Some(Err(trouble)) => (self.end, self.trouble) = (Some(false), trouble),
                None => {}
            }
            if !had_head
                && self.codec.has_head()
                && let Some(in_use) = &self.in_use
            {
                self.has_revived |= in_use.note_response(self.codec.status());
            }
            let mut count = taken.kept;
            match taken.head {
                Some(Head::Response(head)) if self.interim.is_empty() && head.len() + count <= most => {
                    buffer.copy_within(..count, head.len());
                    buffer[..head.len()].copy_from_slice(&head);
                    count += head.len();
                }
                Some(head) => {
                    self.switching = if let Head::Switched(head) = &head { head.len() } else { 0 };
                    let (Head::Response(head) | Head::Switched(head)) = head;
                    (self.ready, self.ready_at) = ([&head, &buffer[..count]].concat(), 0);
                    continue;
                }
                None => {}
            }
            match count {
                // Others have their turn, however much arrives that is no response.
                0 if self.interim.is_empty() && self.end.is_none() => return ReadResult::Again,
                0 => {}
                _ if self.end == Some(true) => return ReadResult::Last(count),
                _ => return ReadResult::Bytes(count),
            }
        }
    }

    /// Returns whether another backend may get a request because of the status of the response.
    fn may_be_declined(&self, (_, place): &AppCall) -> bool {
        let upstream = place.upstream.as_ref();
        self.is_repeatable && upstream.is_some_and(|upstream| upstream.retries_after_status(place.tried, place.member))
    }

    /// Returns whether the backend has responded with a status after which another one gets the request.
    fn has_retry_status(&self) -> bool {
        let Some((_, Place { upstream: Some(upstream), .. })) = &self.until_status else { return false };
        self.codec.status().is_some_and(|status| upstream.settings().retries_after(status))
    }

    /// Returns whether something that was read is not reported yet.
    pub(super) fn has_read(&self) -> bool {
        self.ready_at < self.ready.len() || !self.interim.is_empty()
    }

    /// Returns bytes that had no room in the buffer before, if there are any.
    fn next_ready(&mut self, buffer: &mut [u8], most: usize) -> Option<ReadResult> {
        let rest = &self.ready[self.ready_at..];
        let switching = std::mem::take(&mut self.switching);
        let count = if switching > 0 { switching.min(buffer.len()) } else { rest.len().min(most) };
        if count == 0 {
            return None;
        }
        buffer[..count].copy_from_slice(&rest[..count]);
        self.ready_at += count;
        if switching > 0 {
            // The client's side of the tunnel follows.
            self.body_end_queued = false;
            return Some(ReadResult::Switched(count));
        }
        if self.ready_at < self.ready.len() {
            return Some(ReadResult::Bytes(count));
        }
        (self.ready, self.ready_at) = (Vec::new(), 0);
        Some(if self.end == Some(true) { ReadResult::Last(count) } else { ReadResult::Bytes(count) })
    }

    /// Returns the request to send again and its permit, if it has failed and may be sent again.
    ///
    /// # Errors
    /// The request itself, if it may not.
    pub fn into_again(
        mut self: Box<BackendRequest>,
        counts: &mut HttpCounts,
    ) -> Result<(AppCall, Permit), Box<BackendRequest>> {
        let declined = self.until_status.take().filter(|_| self.is_declined);
        let Some((work, mut place)) = declined.or_else(|| self.again.take()) else { return Err(self) };
        let is_unreached = matches!(self.trouble, AppTrouble::Unreachable | AppTrouble::TimedOut);
        let is_clients = self.codec.status().is_some_and(|status| !place.is_failure(status));
        let may = if self.is_declined && is_clients {
            place.leave(&work)
        } else if self.is_declined || is_unreached && !self.is_used {
            // It counts this failure.
            self.in_use = None;
            place.try_another(&work, counts)
        } else {
            self.is_used && (self.is_repeatable || !self.is_sent)
        };
        if !may {
            return Err(self);
        }
        counts.retries += u64::from(place.upstream.is_some());
        Ok(((work, place), self.permit))
    }

    /// Returns whether its connection may be reused.
    fn may_be_kept(&self) -> bool {
        // An application that speaks FastCGI ignores the rest of a request that it has responded to.
        let has_written = self.body_end_queued || matches!(self.codec, Codec::FastCgi(_));
        let is_reusable = has_written && self.has_flushed() && !self.is_broken;
        self.backend.idle_max > 0 && self.end == Some(true) && is_reusable && self.codec.keeps_connection()
    }

    /// Returns the name of its backend, if it is one of several or speaks HTTP.
    pub(super) fn backend_name(&self) -> Option<Arc<str>> {
        self.in_use.as_ref().map(InUse::name)
    }

    /// Returns whether it is forwarded by HTTP.
    pub(super) fn is_http(&self) -> bool {
        matches!(self.codec, Codec::Http(_))
    }

    /// Finishes a request that has ended. Returns its connection and permit, if that may be reused.
    pub fn finish(self) -> Option<(Arc<Backend>, BackendConnection, Permit)> {
        self.may_be_kept().then_some((self.backend, self.connection, self.permit))
    }

    /// Returns whether the response has ended.
    pub(super) fn has_ended(&self) -> bool {
        self.end.is_some()
    }

    /// Counts the result. `has_failed`: the application has not responded as it should.
    pub fn count(&mut self, has_failed: bool, counts: &mut HttpCounts) {
        counts.recoveries += u64::from(std::mem::take(&mut self.has_revived));
        if (has_failed || self.end == Some(false))
            && let Some(in_use) = self.in_use.take()
        {
            counts.failures += 1;
            // One that has begun to respond is reachable; only this response has failed.
            counts.outages += u64::from(!self.codec.has_head() && in_use.note_failure());
        }
    }

    /// Abandons the request. An application that this server started is ended, as a script would be: it may
    /// run for a long time, and no other process can use its slot. Then the rest of the request is returned,
    /// to be kept until the application has ended.
    pub fn abandon(self) -> Option<Abandoned> {
        let is_kept = matches!(self.backend.at, At::Kept(_)) && self.end.is_none();
        is_kept.then(|| Abandoned {
            backend: self.backend,
            connection: self.connection,
            permit: self.permit,
            manager_notified: false,
        })
    }
}

/// Returns whether a request may be sent twice: it is idempotent (RFC 9110, 9.2.2), for a script even safe, and has no body, because bodies are
/// not kept.
pub(super) fn is_repeatable(work: &AppWork) -> bool {
    let is_safe = |(name, value): &(Vec<u8>, Vec<u8>)| {
        name == b"REQUEST_METHOD" && matches!(&value[..], b"GET" | b"HEAD" | b"OPTIONS")
    };
    !work.has_body && work.forward.as_ref().map_or_else(|| work.variables.iter().any(is_safe), |it| it.is_idempotent())
}

/// Makes the handshake of a WebSocket connection whose client has none (RFC 6455, 4.1 and 4.2.2).
fn websocket_handshake() -> Handshake {
    let mut nonce = [0; 16];
    // It protects from caches that take the connection for HTTP; without randomness, the rest of the handshake does.
    let _ = rand::fill(&mut nonce);
    handshake_of(&STANDARD.encode(nonce))
}

fn handshake_of(key: &str) -> Handshake {
    const GUID: &str = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11";
    let digest = Sha1::new_with_prefix(key).chain_update(GUID).finalize();
    Handshake { key: key.into(), accept: STANDARD.encode(digest).into() }
}

/// A request whose application is being ended: it holds the permit until the connection has ended.
#[derive(Debug)]
pub struct Abandoned {
    backend: Arc<Backend>,
    /// The connection.
    pub connection: BackendConnection,
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
            match self.connection.receive(&mut buffer) {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handshake_is_that_of_rfc_6455() {
        let handshake = handshake_of("dGhlIHNhbXBsZSBub25jZQ==");
        assert_eq!(&*handshake.accept, "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
        assert!(websocket_handshake() != websocket_handshake());
    }
}
