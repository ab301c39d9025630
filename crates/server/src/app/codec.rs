//! The protocol on a connection to an application: FastCGI, or HTTP.
//!
//! `backend_request` owns the connection and moves the bytes; a [`Codec`] frames the body of the request and finds the
//! response in what arrives. Both give the response the form of a script's (RFC 3875, 6).

use std::collections::VecDeque;

use amped_core::app::AppTrouble;
use amped_http::fastcgi::{self, RecordReader, Said};
use amped_http::h1::body::{LAST_CHUNK, push_chunk};
use amped_http::h1::gateway::{self, Forward, ReplyReader};
use amped_http::h1::request::Framing;
use amped_http::interim::Interim;
use amped_http::status::Status;

use super::manager::CANNOT_START;
use super::output::StderrLines;

/// The protocol, and the state of one request in it.
#[derive(Debug)]
pub(super) enum Codec {
    /// The records of the response.
    FastCgi(RecordReader),
    /// A request that is forwarded.
    Http(Box<HttpCodec>),
}

/// The state of a forwarded request.
#[derive(Debug)]
pub(super) struct HttpCodec {
    reader: ReplyReader,
    /// Whether the body of the request is sent in chunks.
    is_chunked: bool,
}

/// The result of reading bytes.
#[derive(Debug, Default)]
pub(super) struct Taken {
    /// Bytes of the response, at the front of the buffer.
    pub(super) kept: usize,
    /// Responses before the final one, which precede it.
    pub(super) interim: VecDeque<Interim>,
    /// The head of the response, which precedes them.
    pub(super) head: Option<Head>,
    /// The response has ended: complete, or with this error.
    pub(super) end: Option<Result<(), AppTrouble>>,
    /// Bytes have arrived after its end, or make no sense: nothing else can be read from the connection.
    pub(super) is_spoiled: bool,
}

/// The head of a response to a forwarded request.
#[derive(Debug)]
pub(super) enum Head {
    /// As that of a script.
    Response(Vec<u8>),
    /// The connection carries another protocol now.
    Switched(Vec<u8>),
}

impl Codec {
    /// Returns the codec for a forwarded request.
    pub(super) fn http(request: &Forward) -> Codec {
        let is_chunked = request.framing == Framing::Chunked;
        Codec::Http(Box::new(HttpCodec { reader: ReplyReader::new(request), is_chunked }))
    }

    /// Appends part of the body.
    pub(super) fn put(&self, out: &mut Vec<u8>, bytes: &[u8]) {
        match self {
            Codec::FastCgi(_) => fastcgi::body(out, bytes),
            Codec::Http(http) if http.is_chunked => push_chunk(out, bytes),
            Codec::Http(_) => out.extend_from_slice(bytes),
        }
    }

    /// Appends the end of the body.
    pub(super) fn put_end(&self, out: &mut Vec<u8>) {
        match self {
            Codec::FastCgi(_) => fastcgi::body_end(out),
            Codec::Http(http) if http.is_chunked => out.extend_from_slice(LAST_CHUNK),
            Codec::Http(_) => {}
        }
    }

    /// Returns whether the head of the response has arrived; for FastCGI this is unknown, and counts as yes.
    pub(super) fn has_head(&self) -> bool {
        match self {
            Codec::FastCgi(_) => true,
            Codec::Http(http) => http.reader.has_head(),
        }
    }

    /// Returns the status of the response, if that is known.
    pub(super) fn status(&self) -> Option<Status> {
        match self {
            Codec::FastCgi(_) => None,
            Codec::Http(http) => http.reader.status(),
        }
    }

    /// Returns whether the response is complete if the application has closed the connection now.
    pub(super) fn is_whole_at_close(&self) -> bool {
        match self {
            Codec::FastCgi(_) => false,
            Codec::Http(http) => http.reader.is_whole_at_close(),
        }
    }

    /// Returns whether the connection may be used again after a complete response.
    pub(super) fn keeps_connection(&self) -> bool {
        match self {
            Codec::FastCgi(_) => true,
            Codec::Http(http) => http.reader.keeps_connection(),
        }
    }

    /// Returns whether the connection carries another protocol.
    pub(super) fn is_tunnel(&self) -> bool {
        matches!(self, Codec::Http(http) if http.reader.has_switched())
    }

    /// Parses bytes, and moves those of the response to the front. `is_ours`: the server started the application.
    pub(super) fn take(&mut self, bytes: &mut [u8], is_ours: bool, stderr_lines: &mut StderrLines) -> Taken {
        match self {
            Codec::FastCgi(reader) => take_records(reader, bytes, is_ours, stderr_lines),
            Codec::Http(http) => http.take(bytes, stderr_lines),
        }
    }
}

impl HttpCodec {
    fn take(&mut self, bytes: &mut [u8], stderr_lines: &mut StderrLines) -> Taken {
        let (mut taken, mut at) = (Taken::default(), 0);
        while at < bytes.len() && !self.reader.is_done() {
            let piece = match self.reader.next(&bytes[at..]) {
                Ok(piece) => piece,
                Err(bad) => {
                    stderr_lines.note(bad.0);
                    (taken.end, taken.is_spoiled) = (Some(Err(AppTrouble::Failed)), true);
                    return taken;
                }
            };
            at += piece.used;
            match piece.said {
                gateway::Said::Nothing => {}
                gateway::Said::Interim(interim) => taken.interim.push_back(interim),
                gateway::Said::Head(head) => taken.head = Some(Head::Response(head)),
                gateway::Said::Switched(head) => taken.head = Some(Head::Switched(head)),
                gateway::Said::Data(data) => {
                    let length = data.len();
                    bytes.copy_within(at - length..at, taken.kept);
                    taken.kept += length;
                }
            }
        }
        if self.reader.is_done() {
            (taken.end, taken.is_spoiled) = (Some(Ok(())), at < bytes.len());
        }
        taken
    }
}

fn take_records(reader: &mut RecordReader, bytes: &mut [u8], is_ours: bool, stderr_lines: &mut StderrLines) -> Taken {
    let (mut taken, mut at) = (Taken::default(), 0);
    while at < bytes.len() {
        if taken.end.is_some() {
            // Discard everything after the end of the request.
            taken.is_spoiled = true;
            break;
        }
        let Ok(piece) = reader.next(&bytes[at..]) else {
            stderr_lines.note("the application does not speak FastCGI");
            (taken.end, taken.is_spoiled) = (Some(Err(AppTrouble::Failed)), true);
            break;
        };
        at += piece.used;
        match piece.said {
            Said::Nothing => {}
            Said::Output(data) => {
                let length = data.len();
                bytes.copy_within(at - length..at, taken.kept);
                taken.kept += length;
            }
            Said::Error(data) => stderr_lines.say(data),
            Said::End => taken.end = Some(Ok(())),
            Said::Refused(status) => {
                taken.end = Some(Err(match status {
                    CANNOT_START if is_ours => AppTrouble::Unreachable,
                    fastcgi::OVERLOADED if is_ours => AppTrouble::Restarting,
                    fastcgi::OVERLOADED => AppTrouble::Busy,
                    _ => AppTrouble::Failed,
                }));
            }
        }
    }
    taken
}
