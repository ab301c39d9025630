//! A client of HTTP/2 that writes any frames and reads strictly. Its grammar is the server's own; other clients are in
//! the tests with other programs.

use std::collections::BTreeMap;

use amped_http::h2::fields::FieldList;
use amped_http::h2::frame::{self, ErrorCode, FRAME_BYTES, Frame, PREFACE, StreamId, setting};
use amped_http::h2::hpack::{self, Decoder};

use super::harness::*;

/// The client's side of a connection.
pub struct Http2 {
    pub client: Client,
    decoder: Decoder,
    next_stream: u32,
    streams: BTreeMap<u32, Incoming>,
    /// Bytes of bodies that may be sent, on the connection and on a new stream.
    window: i64,
    initial_window: i64,
    /// Whether windows are updated.
    pub updates_windows: bool,
    /// GOAWAY frames received.
    pub goodbyes: Vec<(u32, ErrorCode)>,
    /// PING answers received.
    pub pings: usize,
    /// The first byte of each header block.
    pub begins_blocks: Vec<u8>,
    /// The streams in the order in which their responses were complete.
    pub completed: Vec<u32>,
}

/// What has arrived of a response.
#[derive(Debug, Default)]
struct Incoming {
    heads: Vec<Response>,
    is_complete: bool,
    reset: Option<ErrorCode>,
    /// Bytes of body that were sent, and added to the window.
    sent: i64,
    added: i64,
}

impl Http2 {
    /// Connects, and sends the preface and these settings.
    pub fn connect_with(server: &Server, settings: &[(u16, u32)]) -> Http2 {
        Http2::begin(server.connect().untranslated(), settings)
    }

    pub fn connect(server: &Server) -> Http2 {
        Http2::connect_with(server, &[])
    }

    /// Begins HTTP/2 on a connection.
    pub fn begin(client: Client, settings: &[(u16, u32)]) -> Http2 {
        let mut client = client;
        client.send(PREFACE);
        let mut http2 = Http2::resume(client);
        http2.send(|out| frame::settings(out, settings));
        http2
    }

    /// Continues HTTP/2 on a connection that has sent its preface.
    pub fn resume(client: Client) -> Http2 {
        let mut http2 = Http2 {
            client,
            decoder: Decoder::new(),
            next_stream: 1,
            streams: BTreeMap::new(),
            window: 65_535,
            initial_window: 65_535,
            updates_windows: true,
            goodbyes: Vec::new(),
            pings: 0,
            begins_blocks: Vec::new(),
            completed: Vec::new(),
        };
        http2.send(|out| frame::settings(out, &[]));
        http2
    }

    /// Sends what `write` appends.
    pub fn send(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        let mut bytes = Vec::new();
        write(&mut bytes);
        self.client.send(bytes);
    }

    /// A header block of these fields.
    pub fn block(fields: &[(&str, &str)]) -> Vec<u8> {
        let mut block = Vec::new();
        fields.iter().for_each(|(name, value)| hpack::write_field(&mut block, name.as_bytes(), value.as_bytes()));
        block
    }

    /// The next stream's number.
    pub fn open(&mut self) -> StreamId {
        let stream = StreamId(self.next_stream);
        self.next_stream += 2;
        self.streams.insert(stream.0, Incoming::default());
        stream
    }

    /// The HEADERS of a request with these fields in addition to the usual ones.
    pub fn head(&self, method: &str, path: &str, fields: &[(&str, &str)]) -> Vec<u8> {
        let mut all = vec![(":method", method), (":scheme", "http"), (":authority", "localhost"), (":path", path)];
        all.extend(fields);
        Http2::block(&all)
    }

    /// Sends a request without a body.
    pub fn request(&mut self, method: &str, path: &str, fields: &[(&str, &str)]) -> StreamId {
        let stream = self.open();
        let block = self.head(method, path, fields);
        self.send(|out| frame::headers(out, stream, &block, true, FRAME_BYTES));
        stream
    }

    /// Sends a request with this body in frames of at most this size.
    pub fn post(&mut self, path: &str, fields: &[(&str, &str)], body: &[u8], piece: usize) -> StreamId {
        let stream = self.open();
        let block = self.head("POST", path, fields);
        self.send(|out| frame::headers(out, stream, &block, false, FRAME_BYTES));
        let count = body.len().div_ceil(piece).max(1);
        for n in 0..count {
            let part = &body[n * piece..body.len().min((n + 1) * piece)];
            self.data(stream, part, n + 1 == count);
        }
        stream
    }

    /// Sends part of a body, as soon as the windows permit.
    pub fn data(&mut self, stream: StreamId, part: &[u8], is_last: bool) {
        let count = part.len() as i64;
        let fits = |http2: &Http2| {
            let known = &http2.streams[&stream.0];
            let window = http2.window.min(http2.initial_window + known.added - known.sent);
            count <= window || known.reset.is_some() || known.is_complete
        };
        self.read_until(fits);
        self.window -= count;
        self.streams.get_mut(&stream.0).unwrap().sent += count;
        self.send(|out| {
            out.extend_from_slice(&frame::data_head(part.len(), stream, is_last));
            out.extend_from_slice(part);
        });
    }

    pub fn get(&mut self, path: &str) -> Response {
        let stream = self.request("GET", path, &[]);
        self.response(stream)
    }

    /// Reads until the response of a stream is complete; panics if it is reset, or the connection ends.
    pub fn response(&mut self, stream: StreamId) -> Response {
        self.try_response(stream).unwrap_or_else(|code| panic!("stream {} is reset: {code:?}", stream.0))
    }

    /// Like `response`; `Err` if the stream is reset.
    pub fn try_response(&mut self, stream: StreamId) -> Result<Response, Option<ErrorCode>> {
        loop {
            let incoming = &self.streams[&stream.0];
            if let Some(code) = incoming.reset {
                return Err(Some(code));
            }
            if incoming.is_complete {
                return Ok(incoming.heads.last().unwrap().clone());
            }
            if !self.take_frame() {
                return Err(None);
            }
        }
    }

    /// Takes the response of a stream, or the code with which it was reset; `None` as long as there is neither.
    pub fn take_result(&mut self, stream: StreamId) -> Option<Result<Response, ErrorCode>> {
        let Incoming { is_complete, reset, .. } = &self.streams[&stream.0];
        if !is_complete && reset.is_none() {
            return None;
        }
        let Incoming { reset, mut heads, .. } = self.streams.remove(&stream.0)?;
        Some(reset.map_or_else(|| Ok(heads.pop().unwrap()), Err))
    }

    /// The body received so far of a stream.
    pub fn received(&self, stream: StreamId) -> usize {
        self.streams[&stream.0].heads.last().map_or(0, |head| head.body.len())
    }

    /// The status of a stream's response, once its head has arrived.
    pub fn status(&self, stream: StreamId) -> Option<u16> {
        self.streams[&stream.0].heads.last().map(|head| head.status)
    }

    /// Whether a stream was reset by the server.
    pub fn is_reset(&self, stream: StreamId) -> bool {
        self.streams[&stream.0].reset.is_some()
    }

    /// Takes a frame that has arrived as a whole; `false` if there is none.
    pub fn take_buffered_frame(&mut self) -> bool {
        let is_whole = matches!(frame::parse(self.client.buffered()), Ok(Some(_)));
        is_whole && self.take_frame()
    }

    /// The last head of a stream, of which there must be one.
    pub fn last_head(&self, stream: StreamId) -> &Response {
        self.streams[&stream.0].heads.last().unwrap()
    }

    /// The interim responses of a stream so far.
    pub fn interim(&self, stream: StreamId) -> Vec<u16> {
        self.streams[&stream.0].heads.iter().map(|head| head.status).filter(|status| *status < 200).collect()
    }

    /// Reads until the connection ends.
    pub fn read_to_end(&mut self) {
        while self.take_frame() {}
    }

    /// Reads until this holds; panics if the connection ends before.
    pub fn read_until(&mut self, mut holds: impl FnMut(&Http2) -> bool) {
        while !holds(self) {
            assert!(self.take_frame(), "the connection ended");
        }
    }

    /// Reads one frame; `false` at the end of the connection.
    pub fn take_frame(&mut self) -> bool {
        let bytes = self.client.buffered().to_vec();
        let (frame, length) = match frame::parse(&bytes) {
            Ok(Some(parsed)) => parsed,
            Ok(None) => return self.client.try_fill(),
            Err(error) => panic!("the server sent {error:?}"),
        };
        self.client.discard(length);
        self.note(frame);
        true
    }

    fn note(&mut self, frame: Frame<'_>) {
        match frame {
            Frame::Headers { stream, block, end_stream, end_headers, .. } => {
                assert!(end_headers, "the tests have short heads");
                self.begins_blocks.push(block[0]);
                let mut fields = FieldList::new(usize::MAX, usize::MAX);
                self.decoder.decode(block, &mut fields).unwrap();
                let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
                let mut fields: Vec<_> = fields.iter().map(|(name, value)| (text(name), text(value))).collect();
                let (name, status) = fields.remove(0);
                assert_eq!(name, ":status");
                assert!(fields.iter().all(|(name, _)| name.to_ascii_lowercase() == *name && !name.starts_with(':')));
                let incoming = self.streams.get_mut(&stream.0).expect("a stream that was opened");
                incoming.heads.push(Response { status: status.parse().unwrap(), fields, body: Vec::new() });
                self.complete(stream, end_stream);
            }
            Frame::Data { stream, data, flow_bytes, end_stream } => {
                let incoming = self.streams.get_mut(&stream.0).expect("a stream that was opened");
                incoming.heads.last_mut().expect("a head before the body").body.extend_from_slice(data);
                if self.updates_windows && flow_bytes > 0 {
                    self.send(|out| {
                        frame::window_update(out, StreamId::CONNECTION, flow_bytes);
                        if !end_stream {
                            frame::window_update(out, stream, flow_bytes);
                        }
                    });
                }
                self.complete(stream, end_stream);
            }
            Frame::Reset { stream, code } => {
                let incoming = self.streams.entry(stream.0).or_default();
                // RFC 9113, 8.1: the rest of the request is not needed.
                if !(incoming.is_complete && code == ErrorCode::NO_ERROR) {
                    incoming.reset = Some(code);
                }
            }
            Frame::Settings(settings) => {
                for (id, value) in settings {
                    if id == setting::INITIAL_WINDOW_SIZE {
                        self.initial_window = i64::from(value);
                    }
                }
                self.send(frame::settings_ack);
            }
            Frame::WindowUpdate { stream: StreamId::CONNECTION, increment } => self.window += i64::from(increment),
            Frame::WindowUpdate { stream, increment } => {
                self.streams.get_mut(&stream.0).unwrap().added += i64::from(increment);
            }
            Frame::Ping { ack: false, data } => self.send(|out| frame::ping(out, true, data)),
            Frame::Ping { ack: true, .. } => self.pings += 1,
            Frame::GoAway { last, code, .. } => self.goodbyes.push((last.0, code)),
            Frame::SettingsAck => {}
            other => panic!("a server must not send {other:?}"),
        }
    }

    fn complete(&mut self, stream: StreamId, end_stream: bool) {
        let incoming = self.streams.get_mut(&stream.0).unwrap();
        assert!(!incoming.is_complete, "a frame after the end of stream {}", stream.0);
        if !end_stream {
            return;
        }
        incoming.is_complete = true;
        self.completed.push(stream.0);
        let head = incoming.heads.last().unwrap();
        if let Some(length) = head.field("content-length").map(|length| length.parse::<usize>().unwrap()) {
            assert!(head.body.is_empty() || head.body.len() == length, "{} of {length} bytes", head.body.len());
        }
    }
}

/// A setting for the client's initial window.
pub fn window(bytes: u32) -> (u16, u32) {
    (setting::INITIAL_WINDOW_SIZE, bytes)
}
