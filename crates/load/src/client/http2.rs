//! A connection of HTTP/2 (RFC 9113): each request has a stream, and at most `at_once` streams are open.
//!
//! A reply makes room for the next request at once, so that the number of open streams stays the same, as it does with
//! HTTP/1 on that many connections. Windows are large, so that the server's speed and not our acknowledgements bound a
//! download. Nothing is indexed in the header compression: all requests cost the server the same, as with h2load.
//! Streams are in the order of their numbers, which is that of their instants: the oldest open one is the first.

use std::collections::VecDeque;
use std::mem;

use amped_http::h2::fields::FieldList;
use amped_http::h2::frame::{self, ErrorCode, Frame, HEAD_BYTES, PREFACE, StreamId, WINDOW_MAX, setting};
use amped_http::h2::hpack::{self, Decoder};
use amped_units::Time;

use super::plan::{Next, Plan, Whole, mismatch};
use super::template::Template;
use crate::tally::{Fault, Tally};
use crate::workload::Digest;

/// Bytes that the server may send on a stream before we allow more.
const STREAM_WINDOW: u32 = 1 << 20;

/// Bytes that the server may send on all streams before we allow more.
const CONNECTION_WINDOW: u32 = 16 << 20;

/// The initial windows (RFC 9113, 6.9.2).
const INITIAL_WINDOW: u32 = 65_535;

/// Open streams until the server has stated its maximum, which should be at least this (RFC 9113, 6.5.2).
const STREAMS_BEFORE_SETTINGS: u64 = 100;

/// Maximum bytes of header fields in a reply, and their number.
const FIELDS_MAX: (usize, usize) = (64 * 1024, 256);

/// An established connection of HTTP/2.
#[derive(Debug)]
pub(super) struct Http2 {
    decoder: Decoder,
    fields: FieldList,
    /// From the oldest open one; stream `first_id + 2 * n` is `streams[n]`, and `next_id` follows the last.
    streams: VecDeque<Stream>,
    next_id: u32,
    /// Streams that are open, `open <= streams.len()`.
    open: u64,
    /// Requests sent so far, `sent <= per_connection`, and how many of them the server reported as unprocessed.
    sent: u64,
    unprocessed: u64,
    /// When the last requests were due.
    planned: Time,
    /// When the last bytes came from the server.
    heard: Time,
    /// Maximum open streams: ours, or the server's.
    streams_max: u64,
    /// Whether the server has sent its settings.
    is_settled: bool,
    /// The server takes no more requests (GOAWAY).
    is_ending: bool,
    /// Whether a stream has become free since the last request.
    has_room: bool,
    /// The beginning of a frame. Frames that arrive whole are not copied.
    partial: Vec<u8>,
    /// The beginning of a header block, which CONTINUATION frames continue.
    block: Option<Block>,
    /// Bytes that we may send on the connection, and on a new stream.
    window: i64,
    stream_window: u32,
    /// Bytes received on the connection since the last WINDOW_UPDATE.
    received: u32,
    /// Streams whose body is not sent yet.
    unsent_bodies: usize,
    output: Vec<u8>,
}

#[derive(Debug)]
struct Block {
    stream: StreamId,
    end_stream: bool,
    bytes: Vec<u8>,
}

/// A request and its reply.
#[derive(Debug)]
struct Stream {
    is_open: bool,
    /// The number of the request in the run.
    request: u64,
    planned: Time,
    /// When the head of the reply came; [`Time::NEVER`] if it has not.
    first: Time,
    /// 0 before the final head.
    status: u16,
    content_length: Option<u64>,
    length: u64,
    digest: Digest,
    /// Bytes received since the last WINDOW_UPDATE.
    received: u32,
    /// Bytes of the body that were sent, and that we may send.
    body_sent: usize,
    window: i64,
}

/// The connection cannot go on.
struct Broken;

impl Http2 {
    pub(super) fn new(planned: Time, plan: &Plan) -> Http2 {
        Http2 {
            decoder: Decoder::new(),
            fields: FieldList::new(FIELDS_MAX.0, FIELDS_MAX.1),
            streams: VecDeque::new(),
            next_id: 1,
            open: 0,
            sent: 0,
            unprocessed: 0,
            planned,
            heard: Time::START,
            streams_max: plan.at_once.min(STREAMS_BEFORE_SETTINGS),
            is_settled: false,
            is_ending: false,
            has_room: true,
            partial: Vec::new(),
            block: None,
            window: i64::from(INITIAL_WINDOW),
            stream_window: INITIAL_WINDOW,
            received: 0,
            unsent_bodies: 0,
            output: Vec::new(),
        }
    }

    pub(super) fn planned(&self) -> Time {
        self.streams.front().map_or(self.planned, |oldest| oldest.planned)
    }

    pub(super) fn is_idle(&self) -> bool {
        self.open == 0
    }

    pub(super) fn sent(&self) -> u64 {
        self.sent
    }

    pub(super) fn unprocessed(&self) -> u64 {
        self.unprocessed
    }

    pub(super) fn room(&self, plan: &Plan) -> u64 {
        if self.is_ending {
            return 0;
        }
        let ids = u64::from((WINDOW_MAX + 2 - self.next_id.min(WINDOW_MAX + 2)) / 2);
        self.streams_max.saturating_sub(self.open).min(plan.per_connection - self.sent).min(ids)
    }

    pub(super) fn ask(&mut self, planned: Time, base: u64, plan: &Plan, out: &mut Vec<u8>) -> u64 {
        let Template::Http2 { before, after } = &plan.template else { return 0 };
        if self.next_id == 1 {
            begin(out);
        }
        self.planned = planned;
        self.has_room = false;
        let room = self.room(plan);
        let mut asked = 0;
        while asked < room
            && let Some(request) = plan.requests.get(base + asked)
        {
            let stream = StreamId(self.next_id);
            let before = &before[usize::from(request.head)];
            let mut block = Vec::with_capacity(before.len() + request.target.len() + after.len() + 4);
            block.extend_from_slice(before);
            hpack::write_field(&mut block, b":path", &request.target);
            block.extend_from_slice(after);
            frame::headers(out, stream, &block, plan.texts.body.is_empty(), frame::FRAME_BYTES);
            self.streams.push_back(Stream {
                is_open: true,
                request: base + asked,
                planned,
                first: Time::NEVER,
                status: 0,
                content_length: None,
                length: 0,
                digest: Digest::default(),
                received: 0,
                body_sent: 0,
                window: i64::from(self.stream_window),
            });
            self.next_id += 2;
            self.open += 1;
            asked += 1;
            if !plan.texts.body.is_empty() {
                self.unsent_bodies += 1;
                self.send_body(self.streams.len() - 1, plan, out);
            }
        }
        self.sent += asked;
        asked
    }

    /// Sends as much of the body of a stream as the windows allow.
    fn send_body(&mut self, at: usize, plan: &Plan, out: &mut Vec<u8>) {
        let id = self.id_of(at);
        let Some(stream) = self.streams.get_mut(at) else { return };
        while stream.is_open && stream.body_sent < plan.texts.body.len() {
            let rest = &plan.texts.body[stream.body_sent..];
            let room = usize::try_from(self.window.min(stream.window)).unwrap_or(0);
            let length = rest.len().min(frame::FRAME_BYTES).min(room);
            if length == 0 {
                return;
            }
            stream.body_sent += length;
            stream.window -= length as i64;
            self.window -= length as i64;
            out.extend_from_slice(&frame::data_head(length, id, length == rest.len()));
            out.extend_from_slice(&rest[..length]);
            self.unsent_bodies -= usize::from(length == rest.len());
        }
    }

    /// Continues bodies that waited for a window.
    fn send_bodies(&mut self, plan: &Plan) {
        if self.unsent_bodies > 0 {
            let mut out = mem::take(&mut self.output);
            (0..self.streams.len()).for_each(|at| self.send_body(at, plan, &mut out));
            self.output = out;
        }
    }

    pub(super) fn take_output(&mut self, out: &mut Vec<u8>) {
        out.append(&mut self.output);
    }

    pub(super) fn handle_bytes(&mut self, now: Time, bytes: &[u8], plan: &Plan, tally: &mut Tally) -> Next {
        tally.received += bytes.len() as u64;
        self.heard = now;
        let mut partial = mem::take(&mut self.partial);
        let handled = self.handle_frames(now, bytes, &mut partial, plan, tally);
        self.partial = partial;
        match handled {
            Ok(()) => self.next(plan),
            Err(Broken) => self.handle_fault(Fault::Malformed, plan, tally),
        }
    }

    /// Handles all whole frames in `partial`, followed by `bytes`; keeps the beginning of the next one in `partial`.
    fn handle_frames(
        &mut self,
        now: Time,
        mut bytes: &[u8],
        partial: &mut Vec<u8>,
        plan: &Plan,
        tally: &mut Tally,
    ) -> Result<(), Broken> {
        while !bytes.is_empty() {
            if partial.is_empty() {
                match frame::parse(bytes).map_err(|_| Broken)? {
                    Some((frame, length)) => {
                        bytes = &bytes[length..];
                        self.handle_frame(now, frame, plan, tally)?;
                    }
                    None => {
                        partial.extend_from_slice(bytes);
                        return Ok(());
                    }
                }
            } else {
                // Only what completes the frame is copied: first its head, then the rest.
                let lacks = frame::whole_length(partial).unwrap_or(HEAD_BYTES) - partial.len();
                let (part, rest) = bytes.split_at(lacks.min(bytes.len()));
                partial.extend_from_slice(part);
                bytes = rest;
                if let Some((frame, _)) = frame::parse(partial).map_err(|_| Broken)? {
                    self.handle_frame(now, frame, plan, tally)?;
                    partial.clear();
                }
            }
        }
        Ok(())
    }

    fn handle_frame(&mut self, now: Time, frame: Frame<'_>, plan: &Plan, tally: &mut Tally) -> Result<(), Broken> {
        // RFC 9113, 6.10: nothing may come between the frames of a header block.
        if let Some(begun) = &mut self.block {
            let Frame::Continuation { stream, block, end_headers } = frame else { return Err(Broken) };
            if stream != begun.stream || begun.bytes.len() + block.len() > FIELDS_MAX.0 {
                return Err(Broken);
            }
            begun.bytes.extend_from_slice(block);
            return match self.block.take_if(|_| end_headers) {
                Some(whole) => self.handle_head(now, &whole, plan, tally),
                None => Ok(()),
            };
        }
        match frame {
            Frame::Data { stream, data, flow_bytes, end_stream } => {
                self.handle_data(now, (stream, data, end_stream), flow_bytes, plan, tally)
            }
            Frame::Headers { stream, block, end_stream, end_headers, .. } => {
                let block = Block { stream, end_stream, bytes: block.to_vec() };
                if end_headers {
                    return self.handle_head(now, &block, plan, tally);
                }
                self.block = Some(block);
                Ok(())
            }
            Frame::Reset { stream, code } => {
                let is_refused = code == ErrorCode::REFUSED_STREAM;
                self.fail(stream, if is_refused { Fault::StreamRefused } else { Fault::StreamReset }, plan, tally);
                Ok(())
            }
            Frame::Settings(settings) => {
                if !mem::replace(&mut self.is_settled, true) {
                    // RFC 9113, 6.5.2: without a setting, there is no maximum.
                    self.streams_max = plan.at_once;
                }
                settings.for_each(|(id, value)| self.set(id, value, plan));
                if self.streams_max < plan.at_once {
                    tally.limit_streams(Some(self.streams_max));
                }
                self.has_room = true;
                frame::settings_ack(&mut self.output);
                self.send_bodies(plan);
                Ok(())
            }
            Frame::GoAway { last, code, .. } => {
                self.is_ending = true;
                // From the last one on: a place changes only when the first stream is closed.
                for at in (0..self.streams.len()).rev().take_while(|at| self.id_of(*at) > last).collect::<Vec<_>>() {
                    self.drop_unprocessed(at, code, plan, tally);
                }
                Ok(())
            }
            Frame::Ping { ack: false, data } => {
                frame::ping(&mut self.output, true, data);
                Ok(())
            }
            Frame::WindowUpdate { stream: StreamId::CONNECTION, increment } => {
                self.window += i64::from(increment);
                self.send_bodies(plan);
                Ok(())
            }
            Frame::WindowUpdate { stream, increment } => {
                if let Some(at) = self.place_of(stream) {
                    self.streams[at].window += i64::from(increment);
                    self.send_bodies(plan);
                }
                Ok(())
            }
            Frame::Continuation { .. } | Frame::PushPromise => Err(Broken),
            Frame::SettingsAck
            | Frame::Ping { ack: true, .. }
            | Frame::Priority { .. }
            | Frame::PriorityUpdate { .. }
            | Frame::Unknown { .. } => Ok(()),
        }
    }

    fn set(&mut self, id: u16, value: u32, plan: &Plan) {
        match id {
            setting::MAX_CONCURRENT_STREAMS => self.streams_max = plan.at_once.min(u64::from(value)),
            setting::INITIAL_WINDOW_SIZE => {
                // RFC 9113, 6.9.2: open streams change by the difference, and may become negative.
                let difference = i64::from(value) - i64::from(self.stream_window);
                self.streams.iter_mut().for_each(|stream| stream.window += difference);
                self.stream_window = value;
            }
            _ => {}
        }
    }

    fn handle_data(
        &mut self,
        now: Time,
        (id, data, end_stream): (StreamId, &[u8], bool),
        flow_bytes: u32,
        plan: &Plan,
        tally: &mut Tally,
    ) -> Result<(), Broken> {
        self.received += flow_bytes;
        if self.received >= CONNECTION_WINDOW / 2 {
            frame::window_update(&mut self.output, StreamId::CONNECTION, mem::take(&mut self.received));
        }
        let Some(at) = self.place_of(id) else { return Ok(()) };
        let stream = &mut self.streams[at];
        if stream.status == 0 {
            return Err(Broken);
        }
        stream.length += data.len() as u64;
        let is_checked = plan.requests.get(stream.request).and_then(|request| request.expect);
        if is_checked.is_some_and(|expect| expect.content.is_some()) {
            stream.digest.update(data);
        }
        if end_stream {
            self.finish(now, at, plan, tally);
            return Ok(());
        }
        stream.received += flow_bytes;
        if stream.received >= STREAM_WINDOW / 2 {
            frame::window_update(&mut self.output, id, mem::take(&mut stream.received));
        }
        Ok(())
    }

    /// Handles the fields of a reply: those of an interim one, the final ones, or its trailers.
    fn handle_head(&mut self, now: Time, block: &Block, plan: &Plan, tally: &mut Tally) -> Result<(), Broken> {
        self.fields.clear();
        self.decoder.decode(&block.bytes, &mut self.fields).map_err(|_| Broken)?;
        let Some(at) = self.place_of(block.stream) else { return Ok(()) };
        let number =
            |name: &[u8]| self.fields.get(name).map(|text| std::str::from_utf8(text).ok()?.parse::<u64>().ok());
        let (status, content_length) = (number(b":status"), number(b"content-length"));
        let stream = &mut self.streams[at];
        if stream.first == Time::NEVER {
            stream.first = now;
        }
        match (stream.status, status) {
            (0, Some(Some(status @ 100..=999))) => {
                if status >= 200 {
                    stream.status = status as u16;
                    stream.content_length = content_length.flatten();
                } else if block.end_stream {
                    return Err(Broken);
                }
            }
            // Trailers end the stream (RFC 9113, 8.1).
            (1.., None) if block.end_stream => {}
            _ => return Err(Broken),
        }
        if block.end_stream {
            self.finish(now, at, plan, tally);
        }
        Ok(())
    }

    /// Counts a complete reply.
    fn finish(&mut self, now: Time, at: usize, plan: &Plan, tally: &mut Tally) {
        let id = self.id_of(at);
        let Stream { request, planned, first, status, content_length, length, digest, body_sent, .. } =
            self.streams[at];
        if body_sent < plan.texts.body.len() {
            // The server does not need the rest.
            frame::reset(&mut self.output, id, ErrorCode::CANCEL);
        }
        let Some(request) = plan.requests.get(request) else { return self.close(at, plan) };
        tally.count_status(status);
        // RFC 9113, 8.1.1; the reply to HEAD, and a 304, state a length without a body.
        let stated = content_length.filter(|_| !plan.is_head(request) && status != 304);
        let whole = Whole { status, length, content: digest.finish(), keep_alive: true };
        let fault = match stated {
            Some(stated) if length < stated => Some(Fault::Short),
            Some(stated) if length > stated => Some(Fault::Malformed),
            _ => mismatch(request, &whole, &plan.statuses),
        };
        match fault {
            Some(fault) => tally.fail(fault, request.class),
            None => tally.reply(request.class, planned, first, now),
        }
        self.close(at, plan);
    }

    /// Fails a request, if its stream is open.
    fn fail(&mut self, id: StreamId, fault: Fault, plan: &Plan, tally: &mut Tally) {
        let Some(at) = self.place_of(id) else { return };
        if let Some(request) = plan.requests.get(self.streams[at].request) {
            tally.fail(fault, request.class);
        }
        self.close(at, plan);
    }

    /// Handles a request that the server states not to have processed (RFC 9113, 6.8). A client repeats it on another
    /// connection (8.7), so it is a failure only if the server did not end the connection in peace.
    fn drop_unprocessed(&mut self, at: usize, code: ErrorCode, plan: &Plan, tally: &mut Tally) {
        if code != ErrorCode::NO_ERROR {
            return self.fail(self.id_of(at), Fault::StreamRefused, plan, tally);
        }
        if self.streams[at].is_open {
            self.unprocessed += 1;
            self.close(at, plan);
        }
    }

    fn close(&mut self, at: usize, plan: &Plan) {
        let stream = &mut self.streams[at];
        stream.is_open = false;
        self.unsent_bodies -= usize::from(stream.body_sent < plan.texts.body.len());
        self.open -= 1;
        self.has_room = true;
        while self.streams.front().is_some_and(|oldest| !oldest.is_open) {
            self.streams.pop_front();
        }
    }

    fn id_of(&self, at: usize) -> StreamId {
        StreamId(self.next_id - 2 * (self.streams.len() - at) as u32)
    }

    /// The place of a stream, if it is open.
    fn place_of(&self, id: StreamId) -> Option<usize> {
        let from_end = self.next_id.checked_sub(id.0)?;
        let at = self.streams.len().checked_sub(from_end as usize / 2)?;
        let is_ours = from_end.is_multiple_of(2);
        (is_ours && self.streams.get(at).is_some_and(|stream| stream.is_open)).then_some(at)
    }

    fn next(&self, plan: &Plan) -> Next {
        match self.room(plan) {
            0 if self.open > 0 => Next::Bytes,
            0 => Next::Close,
            _ if self.has_room => Next::Ask,
            _ => Next::Bytes,
        }
    }

    pub(super) fn handle_end(&mut self, plan: &Plan, tally: &mut Tally) {
        for stream in self.streams.iter().filter(|stream| stream.is_open) {
            let fault = if stream.first == Time::NEVER { Fault::Closed } else { Fault::Short };
            if let Some(request) = plan.requests.get(stream.request) {
                tally.fail(fault, request.class);
            }
        }
        self.over();
    }

    pub(super) fn handle_fault(&mut self, fault: Fault, plan: &Plan, tally: &mut Tally) -> Next {
        for stream in self.streams.iter().filter(|stream| stream.is_open) {
            if let Some(request) = plan.requests.get(stream.request) {
                tally.fail(fault, request.class);
            }
        }
        self.over();
        Next::Close
    }

    fn over(&mut self) {
        self.streams.clear();
        (self.open, self.unsent_bodies, self.is_ending) = (0, 0, true);
    }

    pub(super) fn handle_late(&mut self, late: Time, plan: &Plan, tally: &mut Tally) -> Next {
        // A server that has been silent since these requests is gone: a new connection may still reach it.
        if self.heard <= late {
            return self.handle_fault(Fault::TimedOut, plan, tally);
        }
        let is_late = |stream: &Stream| stream.is_open && stream.planned <= late;
        while let Some(at) = self.streams.iter().position(is_late) {
            let id = self.id_of(at);
            frame::reset(&mut self.output, id, ErrorCode::CANCEL);
            self.fail(id, Fault::TimedOut, plan, tally);
        }
        self.next(plan)
    }
}

/// Appends the first bytes of a connection: the preface, our settings, and our window.
fn begin(out: &mut Vec<u8>) {
    out.extend_from_slice(PREFACE);
    frame::settings(out, &[(setting::ENABLE_PUSH, 0), (setting::INITIAL_WINDOW_SIZE, STREAM_WINDOW)]);
    frame::window_update(out, StreamId::CONNECTION, CONNECTION_WINDOW - INITIAL_WINDOW);
}

#[cfg(test)]
mod tests {
    use super::super::Connection;
    use super::*;
    use crate::workload::{Expect, Order, Request, Requests};
    use amped_http::h1::request::Version;
    use proptest::prelude::*;

    /// A plan of `per_connection` requests on `at_once` streams.
    fn plan(per_connection: u64, at_once: u64) -> Plan {
        Plan::new(Requests::same(b"/x"), Version::Http2, "h:1", "", per_connection, at_once)
    }

    /// The client's side of a connection, and what it has sent, taken apart.
    struct Client {
        connection: Connection,
        tally: Tally,
        /// Requests: their streams and fields; bodies by stream; other frames as text.
        requests: Vec<(u32, String)>,
        bodies: Vec<(u32, usize, bool)>,
        others: Vec<String>,
        base: u64,
        next: Next,
        now: Time,
        decoder: Decoder,
        begun: bool,
    }

    impl Client {
        fn new(plan: &Plan) -> Client {
            let mut client = Client {
                connection: Connection::new(Time::START, plan),
                tally: Tally::new(1),
                requests: Vec::new(),
                bodies: Vec::new(),
                others: Vec::new(),
                base: 0,
                next: Next::Ask,
                now: Time::from_millis(1),
                decoder: Decoder::new(),
                begun: false,
            };
            client.go_on(plan);
            client
        }

        /// Does what `drive/handler` does after each step.
        fn go_on(&mut self, plan: &Plan) {
            let mut out = Vec::new();
            self.connection.take_output(&mut out);
            if self.next == Next::Ask {
                let asked = self.connection.ask(self.now, self.base, plan, &mut out);
                self.base += asked;
                self.next = if asked == 0 && self.connection.is_idle() { Next::Close } else { Next::Bytes };
            }
            self.take_apart(&out);
        }

        fn take_apart(&mut self, mut out: &[u8]) {
            if !self.begun && !out.is_empty() {
                out = out.strip_prefix(PREFACE).expect("the preface comes first");
                self.begun = true;
            }
            while let Some((frame, length)) = frame::parse(out).expect("valid") {
                match frame {
                    Frame::Headers { stream, block, end_stream, end_headers: true, .. } => {
                        let mut fields = FieldList::new(usize::MAX, usize::MAX);
                        self.decoder.decode(block, &mut fields).expect("valid");
                        let line = |(name, value): (&[u8], &[u8])| {
                            format!("{}: {}|", name.escape_ascii(), value.escape_ascii())
                        };
                        let text: String = fields.iter().map(line).collect();
                        self.requests.push((stream.0, if end_stream { text } else { text + "body" }));
                    }
                    Frame::Data { stream, data, end_stream, .. } => {
                        self.bodies.push((stream.0, data.len(), end_stream))
                    }
                    other => self.others.push(format!("{other:?}")),
                }
                out = &out[length..];
            }
            assert_eq!(out, b"", "whole frames");
        }

        fn hear(&mut self, plan: &Plan, bytes: &[u8]) -> Next {
            self.next = self.connection.handle_bytes(self.now, bytes, plan, &mut self.tally);
            let next = self.next;
            self.go_on(plan);
            next
        }

        /// The requests that were not sent, once the connection is over.
        fn unsent(&mut self, plan: &Plan) -> u64 {
            self.connection.count_unsent(plan.requests_of(0), &mut self.tally);
            self.tally.unsent
        }

        fn faults(&self) -> Vec<(Fault, u64)> {
            Fault::ALL.iter().map(|fault| (*fault, self.tally.failed(*fault))).filter(|(_, count)| *count > 0).collect()
        }
    }

    fn head(out: &mut Vec<u8>, stream: u32, fields: &[(&str, &str)], end_stream: bool) {
        let mut block = Vec::new();
        fields.iter().for_each(|(name, value)| hpack::write_field(&mut block, name.as_bytes(), value.as_bytes()));
        frame::headers(out, StreamId(stream), &block, end_stream, 5);
    }

    fn data(out: &mut Vec<u8>, stream: u32, body: &[u8], end_stream: bool) {
        out.extend_from_slice(&frame::data_head(body.len(), StreamId(stream), end_stream));
        out.extend_from_slice(body);
    }

    fn reply(stream: u32) -> Vec<u8> {
        let mut out = Vec::new();
        head(&mut out, stream, &[(":status", "200"), ("content-length", "3")], false);
        data(&mut out, stream, b"ab", false);
        data(&mut out, stream, b"c", true);
        out
    }

    fn frames(write: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
        let mut out = Vec::new();
        write(&mut out);
        out
    }

    #[test]
    fn requests_have_pseudo_fields_first_and_large_windows() {
        let plan = Plan::new(Requests::same(b"/a?b"), Version::Http2, "h:1", "X-Y:  z \r\nA: b\r\n", 1, 1);
        let client = Client::new(&plan);
        let expected = ":method: GET|:scheme: http|:authority: h:1|:path: /a?b|x-y: z|a: b|";
        assert_eq!(client.requests, [(1, expected.to_owned())]);
        let windows = "WindowUpdate { stream: StreamId(0), increment: 16711681 }";
        assert!(client.others[0].starts_with("Settings") && client.others[1..] == [windows], "{:?}", client.others);
        let post = plan.with_method("POST", b"a=1").over_tls(true);
        let client = Client::new(&post);
        let expected = ":method: POST|:scheme: https|:authority: h:1|:path: /a?b|x-y: z|a: b|content-length: 3|body";
        assert_eq!((&client.requests[..], &client.bodies[..]), (&[(1, expected.to_owned())][..], &[(1, 3, true)][..]));
    }

    #[test]
    fn reply_makes_room_for_next_request() {
        let plan = plan(5, 2);
        let mut client = Client::new(&plan);
        let streams = |client: &Client| client.requests.iter().map(|(stream, _)| *stream).collect::<Vec<_>>();
        assert_eq!(streams(&client), [1, 3]);
        // Out of order, as their server likes.
        assert_eq!(client.hear(&plan, &reply(3)), Next::Ask);
        assert_eq!(streams(&client), [1, 3, 5]);
        assert_eq!(client.hear(&plan, &[reply(1), reply(5)].concat()), Next::Ask);
        assert_eq!(streams(&client), [1, 3, 5, 7, 9]);
        assert_eq!(client.hear(&plan, &reply(9)), Next::Bytes);
        assert_eq!(client.hear(&plan, &reply(7)), Next::Close);
        assert_eq!((client.tally.ok(), client.faults()), (5, vec![]));
    }

    #[test]
    fn clock_of_each_request_starts_when_its_stream_became_free() {
        let plan = plan(3, 2);
        let mut client = Client::new(&plan);
        client.now = Time::from_millis(10);
        client.hear(&plan, &reply(1));
        // Stream 5 was sent at 10 ms; the oldest outstanding request is that of stream 3.
        assert_eq!(client.connection.planned(), Time::from_millis(1));
        client.now = Time::from_millis(30);
        client.hear(&plan, &reply(3));
        assert_eq!(client.connection.planned(), Time::from_millis(10));
        client.hear(&plan, &reply(5));
        let latency = client.tally.cut(Default::default()).clocks.latency;
        let expected = [9, 20, 29].map(|ms| ms * 1_000_000);
        for (at, expected) in [(0.3, expected[0]), (0.5, expected[1]), (1.0, expected[2])] {
            let found = latency.value_at_quantile(at);
            assert!(found.abs_diff(expected) <= expected / 50, "{found} for {expected}");
        }
    }

    #[test]
    fn segmentation_does_not_change_results() {
        let mut server = frames(|out| frame::settings(out, &[(setting::MAX_CONCURRENT_STREAMS, 100)]));
        head(&mut server, 1, &[(":status", "103"), ("link", "x")], false);
        server.extend(reply(1));
        server.extend(frames(|out| frame::ping(out, false, *b"12345678")));
        head(&mut server, 3, &[(":status", "200")], false);
        data(&mut server, 3, b"abc", false);
        head(&mut server, 3, &[("x-trailer", "y")], true);
        head(&mut server, 5, &[(":status", "404")], true);
        let plan = plan(3, 3);
        for piece in [1, 2, 7, 20, server.len()] {
            let mut client = Client::new(&plan);
            server.chunks(piece).for_each(|piece| {
                client.hear(&plan, piece);
            });
            assert_eq!((client.tally.ok(), client.faults()), (2, vec![(Fault::Status, 1)]), "by {piece}");
            assert_eq!(
                client.others[2..],
                ["SettingsAck", "Ping { ack: true, data: [49, 50, 51, 52, 53, 54, 55, 56] }"]
            );
            assert_eq!(client.tally.received, server.len() as u64);
        }
    }

    #[test]
    fn failures_are_counted_by_reason() {
        #[track_caller]
        fn check(server: &[u8], then: Option<Next>, ok: u64, expected: &[(Fault, u64)]) {
            let plan = plan(2, 2);
            let mut client = Client::new(&plan);
            let next = client.hear(&plan, server);
            assert!(then.is_none_or(|then| then == next), "{next:?}");
            if next != Next::Close {
                client.connection.handle_end(client.now, &plan, &mut client.tally);
            }
            assert_eq!((client.tally.ok(), &client.faults()[..]), (ok, expected));
        }
        let reset = |code| frames(|out| frame::reset(out, StreamId(1), code));
        check(
            &[reset(ErrorCode::REFUSED_STREAM), reply(3)].concat(),
            Some(Next::Close),
            1,
            &[(Fault::StreamRefused, 1)],
        );
        check(&[reset(ErrorCode::INTERNAL_ERROR), reply(3)].concat(), Some(Next::Close), 1, &[(Fault::StreamReset, 1)]);
        let away = |last| frames(|out| frame::go_away(out, StreamId(last), ErrorCode::INTERNAL_ERROR, b""));
        check(&[away(1), reply(1)].concat(), Some(Next::Close), 1, &[(Fault::StreamRefused, 1)]);
        check(&away(WINDOW_MAX), Some(Next::Bytes), 0, &[(Fault::Closed, 2)]);
        check(&away(0), Some(Next::Close), 0, &[(Fault::StreamRefused, 2)]);
        check(b"", None, 0, &[(Fault::Closed, 2)]);
        let begun = frames(|out| head(out, 1, &[(":status", "200")], false));
        check(&begun, Some(Next::Bytes), 0, &[(Fault::Closed, 1), (Fault::Short, 1)]);
        let stated = |length: &str, body: &[u8]| {
            let mut out = Vec::new();
            head(&mut out, 1, &[(":status", "200"), ("content-length", length)], false);
            data(&mut out, 1, body, true);
            [out, reply(3)].concat()
        };
        check(&stated("3", b"abc"), Some(Next::Close), 2, &[]);
        check(&stated("4", b"abc"), Some(Next::Close), 1, &[(Fault::Short, 1)]);
        check(&stated("2", b"abc"), Some(Next::Close), 1, &[(Fault::Malformed, 1)]);
        // The connection cannot go on.
        let broken = [
            b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec(),
            frames(|out| data(out, 1, b"abc", true)),
            frames(|out| head(out, 1, &[("x", "y")], true)),
            frames(|out| head(out, 1, &[(":status", "100")], true)),
            frames(|out| head(out, 1, &[(":status", "ok")], false)),
            [&begun[..], &begun].concat(),
            [&frames(|out| frame::headers(out, StreamId(1), b"12345678", false, 5))[..14], &reply(3)].concat(),
            frames(|out| frame::headers(out, StreamId(1), b"\xff\xff\xff\xff\xff\xff", true, 99)),
            b"\0\0\0\x05\x04\0\0\0\x01".to_vec(),
        ];
        broken.iter().for_each(|server| check(server, Some(Next::Close), 0, &[(Fault::Malformed, 2)]));
    }

    #[test]
    fn connection_that_goes_away_sends_no_more_requests() {
        let plan = plan(10, 2);
        let mut client = Client::new(&plan);
        client.hear(&plan, &frames(|out| frame::go_away(out, StreamId(3), ErrorCode::NO_ERROR, b"")));
        assert_eq!(client.hear(&plan, &reply(1)), Next::Bytes);
        assert_eq!(client.hear(&plan, &reply(3)), Next::Close);
        assert_eq!((client.requests.len(), client.tally.ok(), client.unsent(&plan)), (2, 2, 8));
        // A graceful end: what the server did not process is no failure.
        let mut client = Client::new(&plan);
        client.hear(&plan, &frames(|out| frame::go_away(out, StreamId(1), ErrorCode::NO_ERROR, b"")));
        assert_eq!(client.hear(&plan, &reply(1)), Next::Close);
        assert_eq!((client.tally.ok(), client.faults(), client.unsent(&plan)), (1, vec![], 9));
    }

    #[test]
    fn server_limits_streams() {
        let plan = plan(1000, 300);
        let mut client = Client::new(&plan);
        assert_eq!(client.requests.len(), 100, "before the settings of the server");
        client.hear(&plan, &frames(|out| frame::settings(out, &[])));
        assert_eq!((client.requests.len(), client.tally.streams), (300, None), "no maximum");
        let mut client = Client::new(&plan);
        client.hear(&plan, &frames(|out| frame::settings(out, &[(setting::MAX_CONCURRENT_STREAMS, 200)])));
        assert_eq!(client.requests.len(), 200);
        client.hear(&plan, &frames(|out| frame::settings(out, &[(setting::MAX_CONCURRENT_STREAMS, 199)])));
        client.hear(&plan, &reply(1));
        assert_eq!(client.requests.len(), 200);
        client.hear(&plan, &reply(3));
        assert_eq!(client.requests.len(), 201);
        assert_eq!(client.tally.streams, Some(199), "stated in the result");
    }

    #[test]
    fn bodies_wait_for_windows() {
        let body = vec![b'b'; 100_000];
        let plan = plan(2, 2).with_method("POST", &body);
        let sent = |client: &Client, stream: u32| {
            client.bodies.iter().filter(|(found, ..)| *found == stream).map(|(_, length, _)| length).sum::<usize>()
        };
        let mut client = Client::new(&plan);
        assert_eq!((sent(&client, 1), sent(&client, 3)), (65_535, 0), "the window of the connection");
        client.hear(&plan, &frames(|out| frame::window_update(out, StreamId(0), 50_000)));
        assert_eq!((sent(&client, 1), sent(&client, 3)), (65_535, 50_000), "the window of stream 1");
        client.hear(&plan, &frames(|out| frame::window_update(out, StreamId(0), 1_000_000)));
        client.hear(&plan, &frames(|out| frame::settings(out, &[(setting::INITIAL_WINDOW_SIZE, 65_534)])));
        client.hear(&plan, &frames(|out| frame::window_update(out, StreamId(1), 1)));
        assert_eq!((sent(&client, 1), sent(&client, 3)), (65_535, 65_535));
        client.hear(&plan, &frames(|out| frame::settings(out, &[(setting::INITIAL_WINDOW_SIZE, 100_000)])));
        assert_eq!((sent(&client, 1), sent(&client, 3)), (100_000, 100_000));
        assert!(client.bodies.iter().all(|(_, length, _)| *length <= frame::FRAME_BYTES));
        assert_eq!(client.bodies.iter().filter(|(_, _, end_stream)| *end_stream).count(), 2);
        // A reply before the end of the body makes the rest unnecessary.
        let mut client = Client::new(&plan);
        client.hear(&plan, &reply(1));
        assert_eq!(
            client.others.last().map(|text| &text[..]),
            Some("Reset { stream: StreamId(1), code: ErrorCode(8) }")
        );
    }

    #[test]
    fn windows_are_reopened_at_half() {
        let plan = plan(2, 2);
        let mut client = Client::new(&plan);
        let mut server = frames(|out| head(out, 1, &[(":status", "200")], false));
        (0..32 * 16).for_each(|_| data(&mut server, 1, &[0; 16_384], false));
        client.hear(&plan, &server);
        let counts = [1, 0].map(|stream| {
            let start = format!("WindowUpdate {{ stream: StreamId({stream}), increment: ");
            client.others[2..].iter().filter(|text| text.starts_with(&start)).count()
        });
        assert_eq!(counts, [16, 1]);
    }

    #[test]
    fn late_requests_are_reset_unless_server_is_silent() {
        let plan = plan(5, 2);
        let mut client = Client::new(&plan);
        client.now = Time::from_millis(500);
        client.hear(&plan, &reply(3));
        client.now = Time::from_millis(1001);
        client.next = client.connection.handle_late(Time::from_millis(1), &plan, &mut client.tally);
        client.go_on(&plan);
        assert_eq!(client.faults(), [(Fault::TimedOut, 1)]);
        assert_eq!(
            client.others.last().map(|text| &text[..]),
            Some("Reset { stream: StreamId(1), code: ErrorCode(8) }")
        );
        assert_eq!(client.requests.last().map(|(stream, _)| *stream), Some(7));
        // Frames of the stream that were in flight are ignored.
        assert_ne!(client.hear(&plan, &reply(1)), Next::Close);
        assert_eq!(client.tally.ok(), 1);
        // Nothing came since these requests: the connection is given up.
        let late = client.connection.handle_late(Time::from_millis(1001), &plan, &mut client.tally);
        assert_eq!((late, client.faults()), (Next::Close, vec![(Fault::TimedOut, 3)]));
    }

    #[test]
    fn replies_are_checked() {
        let mut digest = Digest::default();
        digest.update(b"abc");
        let right = Expect { status: Some(200), length: Some(3), content: Some(digest.finish()) };
        let check = |expect, head: bool, server: &[u8], fault: Option<Fault>| {
            let request = Request { target: b"/x".as_slice().into(), expect: Some(expect), head, ..Request::default() };
            let plan = Plan::new(Requests::new(vec![request], Order::Cycle), Version::Http2, "h", "", 1, 1);
            let mut client = Client::new(&plan);
            assert_eq!(client.hear(&plan, server), Next::Close);
            assert_eq!(client.faults().first().map(|(fault, _)| *fault), fault);
        };
        check(right, false, &reply(1), None);
        check(Expect { length: Some(4), ..right }, false, &reply(1), Some(Fault::Length));
        check(Expect { status: Some(206), ..right }, false, &reply(1), Some(Fault::Status));
        let mut other = frames(|out| head(out, 1, &[(":status", "200")], false));
        data(&mut other, 1, b"abd", true);
        check(right, false, &other, Some(Fault::Content));
        let to_head = frames(|out| head(out, 1, &[(":status", "200"), ("content-length", "3")], true));
        check(Expect { length: Some(0), ..Expect::default() }, true, &to_head, None);
        check(right, false, &to_head, Some(Fault::Short));
    }

    proptest! {
        #[test]
        fn each_request_ends_once_whatever_the_server_sends(
            pieces in prop::collection::vec((0_usize..12, 0_u32..8, any::<u8>()), 0..30),
            piece in 1_usize..50,
        ) {
            let plan = plan(6, 3).with_method("POST", &[b'b'; 30_000]);
            let mut server = Vec::new();
            for (kind, stream, byte) in pieces {
                match kind {
                    0..4 => server.extend(reply(stream | 1)),
                    4 => frame::reset(&mut server, StreamId(stream.max(1)), ErrorCode(u32::from(byte) % 10)),
                    5 => frame::go_away(&mut server, StreamId(stream), ErrorCode::NO_ERROR, b""),
                    6 => frame::settings(&mut server, &[(u16::from(byte) % 8, u32::from(byte) << 7)]),
                    7 => frame::window_update(&mut server, StreamId(stream), u32::from(byte) << 10),
                    8 => head(&mut server, stream | 1, &[(":status", "200")], byte % 2 == 0),
                    9 => data(&mut server, stream | 1, &[byte; 20], byte % 2 == 0),
                    10 => server.push(byte),
                    _ => frame::ping(&mut server, byte % 2 == 0, [byte; 8]),
                }
            }
            let mut client = Client::new(&plan);
            let mut is_over = false;
            for piece in server.chunks(piece) {
                is_over = client.hear(&plan, piece) == Next::Close || client.next == Next::Close;
                if is_over {
                    break;
                }
            }
            if !is_over {
                client.connection.handle_end(client.now, &plan, &mut client.tally);
            }
            prop_assert_eq!(client.unsent(&plan) + client.tally.ok() + client.tally.all_failed(), 6);
            prop_assert!(client.connection.is_idle());
        }
    }
}
