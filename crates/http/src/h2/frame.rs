//! Frames of HTTP/2 as data, in both directions (RFC 9113, 4 and 6).
//!
//! Before it come the received bytes of a connection; after it, the session in `core`. All rules about the length, the
//! stream number and the values of a frame that need no state are checked here: a session sees well-formed frames only.
//! Payloads are borrowed. A frame is parsed when it is complete, so that its receiver keeps no partial frame; since no
//! frame is longer than [`FRAME_BYTES`], one receive buffer holds it.
//! Every violation is a connection error, except those for which RFC 9113 demands a stream error: an answer to the
//! stream alone would need the frame to be skipped, and only a faulty or hostile peer sends it.

use alloc::vec::Vec;

/// The first bytes of a client (RFC 9113, 3.4).
pub const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Bytes of the head of a frame (RFC 9113, 4.1).
pub const HEAD_BYTES: usize = 9;

/// Maximum bytes of a payload: the initial value of SETTINGS_MAX_FRAME_SIZE, which we never raise (RFC 9113, 6.5.2).
pub const FRAME_BYTES: usize = 16_384;

/// The largest flow control window, and the largest stream number (RFC 9113, 5.1.1, 6.9.1).
pub const WINDOW_MAX: u32 = (1 << 31) - 1;

/// The number of a stream; 0 is the connection (RFC 9113, 5.1.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamId(pub u32);

impl StreamId {
    /// The connection as a whole.
    pub const CONNECTION: StreamId = StreamId(0);

    /// Whether clients open the streams of this number: it is odd (RFC 9113, 5.1.1).
    pub const fn is_from_client(self) -> bool {
        self.0 % 2 == 1
    }
}

/// The reason of RST_STREAM and GOAWAY (RFC 9113, 7).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ErrorCode(pub u32);

macro_rules! error_codes {
    ($($(#[$doc:meta])* $name:ident = $code:literal;)*) => {
        impl ErrorCode {
            $($(#[$doc])* pub const $name: ErrorCode = ErrorCode($code);)*

            /// The name in RFC 9113, 7; empty for another code.
            pub const fn name(self) -> &'static str {
                match self.0 { $($code => stringify!($name),)* _ => "" }
            }
        }
    };
}

error_codes! {
    /// Not an error: a graceful end.
    NO_ERROR = 0x0;
    /// The peer violated the protocol.
    PROTOCOL_ERROR = 0x1;
    /// The sender failed.
    INTERNAL_ERROR = 0x2;
    /// The peer sent more than the window allowed.
    FLOW_CONTROL_ERROR = 0x3;
    /// The peer did not acknowledge SETTINGS in time.
    SETTINGS_TIMEOUT = 0x4;
    /// A frame arrived for a stream that was closed.
    STREAM_CLOSED = 0x5;
    /// A frame had an invalid length.
    FRAME_SIZE_ERROR = 0x6;
    /// The stream was refused before anything was done for it: the request may be repeated.
    REFUSED_STREAM = 0x7;
    /// The stream is no longer wanted.
    CANCEL = 0x8;
    /// A header block could not be decoded.
    COMPRESSION_ERROR = 0x9;
    /// The connection of a CONNECT request failed.
    CONNECT_ERROR = 0xa;
    /// The peer causes too much load.
    ENHANCE_YOUR_CALM = 0xb;
    /// The properties of TLS are insufficient.
    INADEQUATE_SECURITY = 0xc;
    /// The resource requires HTTP/1.1.
    HTTP_1_1_REQUIRED = 0xd;
}

/// Identifiers of settings.
pub mod setting {
    /// RFC 9113, 6.5.2.
    pub const HEADER_TABLE_SIZE: u16 = 1;
    /// RFC 9113, 6.5.2.
    pub const ENABLE_PUSH: u16 = 2;
    /// RFC 9113, 6.5.2.
    pub const MAX_CONCURRENT_STREAMS: u16 = 3;
    /// RFC 9113, 6.5.2.
    pub const INITIAL_WINDOW_SIZE: u16 = 4;
    /// RFC 9113, 6.5.2.
    pub const MAX_FRAME_SIZE: u16 = 5;
    /// RFC 9113, 6.5.2.
    pub const MAX_HEADER_LIST_SIZE: u16 = 6;
    /// RFC 8441, 3.
    pub const ENABLE_CONNECT_PROTOCOL: u16 = 8;
    /// RFC 9218, 2.1.
    pub const NO_RFC7540_PRIORITIES: u16 = 9;
}

/// A frame. All its payload is borrowed from the received bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Frame<'a> {
    /// Content of a message (RFC 9113, 6.1).
    Data {
        /// Not the connection.
        stream: StreamId,
        /// Without padding.
        data: &'a [u8],
        /// What it takes from the windows: the payload with its padding (RFC 9113, 6.9.1).
        flow_bytes: u32,
        /// END_STREAM is set.
        end_stream: bool,
    },
    /// The beginning of a header block (RFC 9113, 6.2).
    Headers {
        /// Not the connection.
        stream: StreamId,
        /// The part of the block in this frame.
        block: &'a [u8],
        /// END_STREAM is set.
        end_stream: bool,
        /// END_HEADERS is set: the block is complete.
        end_headers: bool,
        /// The deprecated dependency (RFC 9113, 5.3.2), if given.
        depends_on: Option<StreamId>,
    },
    /// A deprecated priority signal (RFC 9113, 6.3).
    Priority {
        /// Not the connection.
        stream: StreamId,
        /// The stream that it depends on.
        depends_on: StreamId,
    },
    /// RST_STREAM (RFC 9113, 6.4).
    Reset {
        /// Not the connection.
        stream: StreamId,
        /// The reason.
        code: ErrorCode,
    },
    /// SETTINGS without ACK (RFC 9113, 6.5). The values are in their ranges.
    Settings(Settings<'a>),
    /// SETTINGS with ACK.
    SettingsAck,
    /// PUSH_PROMISE (RFC 9113, 6.6): nobody that we talk to may send it.
    PushPromise,
    /// PING (RFC 9113, 6.7).
    Ping {
        /// ACK is set.
        ack: bool,
        /// Its payload.
        data: [u8; 8],
    },
    /// GOAWAY (RFC 9113, 6.8).
    GoAway {
        /// The last stream that the sender may have acted on.
        last: StreamId,
        /// The reason.
        code: ErrorCode,
        /// Text for people.
        debug: &'a [u8],
    },
    /// WINDOW_UPDATE (RFC 9113, 6.9).
    WindowUpdate {
        /// The stream, or the connection.
        stream: StreamId,
        /// Bytes to add. 0 is an error of the stream or of the connection, which the session decides.
        increment: u32,
    },
    /// CONTINUATION (RFC 9113, 6.10).
    Continuation {
        /// Not the connection.
        stream: StreamId,
        /// The part of the block in this frame.
        block: &'a [u8],
        /// END_HEADERS is set: the block is complete.
        end_headers: bool,
    },
    /// PRIORITY_UPDATE (RFC 9218, 7.1).
    PriorityUpdate {
        /// The prioritised stream; not the connection.
        stream: StreamId,
        /// The value of its Priority field.
        value: &'a [u8],
    },
    /// A frame of an unknown type, which must be ignored (RFC 9113, 4.1, 5.5).
    Unknown {
        /// Its type.
        kind: u8,
    },
}

/// The settings of a SETTINGS frame, in order; unknown ones included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings<'a> {
    payload: &'a [u8],
}

impl Settings<'_> {
    /// The number of settings.
    pub fn len(&self) -> usize {
        self.payload.len() / 6
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.payload.is_empty()
    }
}

impl Iterator for Settings<'_> {
    /// Identifier and value.
    type Item = (u16, u32);

    fn next(&mut self) -> Option<(u16, u32)> {
        let (&[id_high, id_low, a, b, c, d], rest) = self.payload.split_first_chunk()?;
        self.payload = rest;
        Some((u16::from_be_bytes([id_high, id_low]), u32::from_be_bytes([a, b, c, d])))
    }
}

/// Why a frame is rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameError {
    /// For RST_STREAM or GOAWAY.
    pub code: ErrorCode,
    /// The stream to reset; `None` for an error of the connection (RFC 9113, 5.4).
    pub stream: Option<StreamId>,
    /// The length of the whole frame, to skip it after an error of the stream.
    pub length: usize,
    /// The reason, for the author of the peer.
    pub why: &'static str,
}

/// Frame types (RFC 9113, 6; RFC 9218, 7.1).
mod kind {
    pub(super) const DATA: u8 = 0x0;
    pub(super) const HEADERS: u8 = 0x1;
    pub(super) const PRIORITY: u8 = 0x2;
    pub(super) const RST_STREAM: u8 = 0x3;
    pub(super) const SETTINGS: u8 = 0x4;
    pub(super) const PUSH_PROMISE: u8 = 0x5;
    pub(super) const PING: u8 = 0x6;
    pub(super) const GOAWAY: u8 = 0x7;
    pub(super) const WINDOW_UPDATE: u8 = 0x8;
    pub(super) const CONTINUATION: u8 = 0x9;
    pub(super) const PRIORITY_UPDATE: u8 = 0x10;
}

/// Flags; the same bit has another meaning in another frame type.
mod flag {
    pub(super) const ACK: u8 = 0x1;
    pub(super) const END_STREAM: u8 = 0x1;
    pub(super) const END_HEADERS: u8 = 0x4;
    pub(super) const PADDED: u8 = 0x8;
    pub(super) const PRIORITY: u8 = 0x20;
}

/// The head of a frame.
#[derive(Clone, Copy)]
struct FrameHead {
    length: usize,
    kind: u8,
    flags: u8,
    stream: StreamId,
}

impl FrameHead {
    fn parse(bytes: &[u8]) -> Option<FrameHead> {
        let &[a, b, c, kind, flags, s, t, u, v] = bytes.first_chunk()?;
        let length = u32::from_be_bytes([0, a, b, c]) as usize;
        Some(FrameHead { length, kind, flags, stream: stream_id([s, t, u, v]) })
    }

    fn write(self) -> [u8; HEAD_BYTES] {
        debug_assert!(self.length < 1 << 24 && self.stream.0 <= WINDOW_MAX);
        let [_, a, b, c] = (self.length as u32).to_be_bytes();
        let [s, t, u, v] = self.stream.0.to_be_bytes();
        [a, b, c, self.kind, self.flags, s, t, u, v]
    }

    fn has(self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    fn connection_error(self, code: ErrorCode, why: &'static str) -> FrameError {
        FrameError { code, stream: None, length: HEAD_BYTES + self.length, why }
    }

    /// Checks stream number and length, which are known before the payload has arrived.
    fn check(self) -> Result<(), FrameError> {
        // RFC 9113, 4.2.
        if self.length > FRAME_BYTES {
            return Err(self.connection_error(ErrorCode::FRAME_SIZE_ERROR, "frame longer than SETTINGS_MAX_FRAME_SIZE"));
        }
        let on_stream = match self.kind {
            kind::DATA
            | kind::HEADERS
            | kind::PRIORITY
            | kind::RST_STREAM
            | kind::PUSH_PROMISE
            | kind::CONTINUATION => Some(true),
            kind::SETTINGS | kind::PING | kind::GOAWAY | kind::PRIORITY_UPDATE => Some(false),
            _ => None,
        };
        if on_stream.is_some_and(|on_stream| on_stream != (self.stream != StreamId::CONNECTION)) {
            return Err(self.connection_error(ErrorCode::PROTOCOL_ERROR, "frame type on a wrong stream"));
        }
        let is_valid = match self.kind {
            kind::RST_STREAM | kind::WINDOW_UPDATE => self.length == 4,
            kind::SETTINGS if self.has(flag::ACK) => self.length == 0,
            kind::SETTINGS => self.length.is_multiple_of(6),
            kind::PING => self.length == 8,
            kind::GOAWAY => self.length >= 8,
            kind::PRIORITY_UPDATE => self.length >= 4,
            _ => true,
        };
        match is_valid {
            true => Ok(()),
            false => Err(self.connection_error(ErrorCode::FRAME_SIZE_ERROR, "invalid frame length")),
        }
    }

    /// Removes the padding of DATA and HEADERS (RFC 9113, 6.1).
    fn unpadded(self, payload: &[u8]) -> Result<&[u8], FrameError> {
        if !self.has(flag::PADDED) {
            return Ok(payload);
        }
        let Some((&padding, rest)) = payload.split_first() else {
            return Err(self.connection_error(ErrorCode::FRAME_SIZE_ERROR, "no pad length"));
        };
        match rest.len().checked_sub(usize::from(padding)) {
            Some(length) => Ok(&rest[..length]),
            None => Err(self.connection_error(ErrorCode::PROTOCOL_ERROR, "padding longer than the frame")),
        }
    }
}

/// Drops the reserved bit, which must be ignored (RFC 9113, 4.1).
fn stream_id(bytes: [u8; 4]) -> StreamId {
    StreamId(u32::from_be_bytes(bytes) & WINDOW_MAX)
}

/// The length of the first frame in `bytes`, as soon as its head is there: how much to receive before [`parse`] succeeds.
pub fn whole_length(bytes: &[u8]) -> Option<usize> {
    FrameHead::parse(bytes).map(|head| HEAD_BYTES + head.length)
}

/// Parses one frame at the start of `bytes`: the frame and its whole length; `Ok(None)` needs more bytes.
///
/// # Errors
/// [`FrameError`] for an error of the connection, as soon as the head of the frame shows it;
/// for an error of a stream when the frame is complete, so that it can be skipped.
pub fn parse(bytes: &[u8]) -> Result<Option<(Frame<'_>, usize)>, FrameError> {
    let Some(head) = FrameHead::parse(bytes) else { return Ok(None) };
    head.check()?;
    let whole = HEAD_BYTES + head.length;
    let Some(payload) = bytes.get(HEAD_BYTES..whole) else { return Ok(None) };
    Ok(Some((parse_payload(head, payload)?, whole)))
}

fn parse_payload(head: FrameHead, payload: &[u8]) -> Result<Frame<'_>, FrameError> {
    let stream = head.stream;
    let too_short = || head.connection_error(ErrorCode::FRAME_SIZE_ERROR, "frame too short");
    let end_headers = head.has(flag::END_HEADERS);
    Ok(match head.kind {
        kind::DATA => Frame::Data {
            stream,
            data: head.unpadded(payload)?,
            flow_bytes: payload.len() as u32,
            end_stream: head.has(flag::END_STREAM),
        },
        kind::HEADERS => {
            let mut block = head.unpadded(payload)?;
            let mut depends_on = None;
            if head.has(flag::PRIORITY) {
                let (&[a, b, c, d, _weight], rest) = block.split_first_chunk().ok_or_else(too_short)?;
                (block, depends_on) = (rest, Some(stream_id([a, b, c, d])));
            }
            Frame::Headers { stream, block, end_stream: head.has(flag::END_STREAM), end_headers, depends_on }
        }
        kind::PRIORITY => {
            // RFC 9113, 6.3: the only length that is an error of the stream alone.
            let wrong_length = FrameError { stream: Some(stream), ..too_short() };
            let &[a, b, c, d, _weight] = payload.try_into().map_err(|_| wrong_length)?;
            Frame::Priority { stream, depends_on: stream_id([a, b, c, d]) }
        }
        kind::RST_STREAM => Frame::Reset { stream, code: ErrorCode(number(payload).ok_or_else(too_short)?) },
        kind::SETTINGS if head.has(flag::ACK) => Frame::SettingsAck,
        kind::SETTINGS => {
            let settings = Settings { payload };
            match settings.into_iter().find_map(out_of_range) {
                Some(code) => return Err(head.connection_error(code, "setting out of range")),
                None => Frame::Settings(settings),
            }
        }
        kind::PUSH_PROMISE => Frame::PushPromise,
        kind::PING => {
            let data = *payload.first_chunk().ok_or_else(too_short)?;
            Frame::Ping { ack: head.has(flag::ACK), data }
        }
        kind::GOAWAY => {
            let (&last, rest) = payload.split_first_chunk().ok_or_else(too_short)?;
            let code = ErrorCode(number(rest).ok_or_else(too_short)?);
            Frame::GoAway { last: stream_id(last), code, debug: rest.get(4..).unwrap_or_default() }
        }
        kind::WINDOW_UPDATE => {
            let increment = number(payload).ok_or_else(too_short)? & WINDOW_MAX;
            Frame::WindowUpdate { stream, increment }
        }
        kind::CONTINUATION => Frame::Continuation { stream, block: payload, end_headers },
        kind::PRIORITY_UPDATE => {
            let (&prioritised, value) = payload.split_first_chunk().ok_or_else(too_short)?;
            let stream = stream_id(prioritised);
            if stream == StreamId::CONNECTION {
                // RFC 9218, 7.1.
                return Err(head.connection_error(ErrorCode::PROTOCOL_ERROR, "PRIORITY_UPDATE of stream 0"));
            }
            Frame::PriorityUpdate { stream, value }
        }
        kind => Frame::Unknown { kind },
    })
}

fn number(payload: &[u8]) -> Option<u32> {
    payload.first_chunk().copied().map(u32::from_be_bytes)
}

/// The error of a setting whose value is not allowed (RFC 9113, 6.5.2; RFC 8441, 3; RFC 9218, 2.1).
fn out_of_range((id, value): (u16, u32)) -> Option<ErrorCode> {
    match id {
        setting::ENABLE_PUSH | setting::ENABLE_CONNECT_PROTOCOL | setting::NO_RFC7540_PRIORITIES => {
            (value > 1).then_some(ErrorCode::PROTOCOL_ERROR)
        }
        setting::INITIAL_WINDOW_SIZE => (value > WINDOW_MAX).then_some(ErrorCode::FLOW_CONTROL_ERROR),
        setting::MAX_FRAME_SIZE => {
            (!(FRAME_BYTES as u32..1 << 24).contains(&value)).then_some(ErrorCode::PROTOCOL_ERROR)
        }
        _ => None,
    }
}

/// The head of a DATA frame of `length` bytes without padding.
pub fn data_head(length: usize, stream: StreamId, end_stream: bool) -> [u8; HEAD_BYTES] {
    let flags = if end_stream { flag::END_STREAM } else { 0 };
    FrameHead { length, kind: kind::DATA, flags, stream }.write()
}

/// Appends a header block as HEADERS and as many CONTINUATION frames as `max_frame` bytes of payload, at least 1, require.
pub fn headers(out: &mut Vec<u8>, stream: StreamId, block: &[u8], end_stream: bool, max_frame: usize) {
    let max_frame = max_frame.max(1);
    let (mut part, mut rest) = block.split_at(block.len().min(max_frame));
    let mut kind = kind::HEADERS;
    let mut flags = if end_stream { flag::END_STREAM } else { 0 };
    loop {
        flags |= if rest.is_empty() { flag::END_HEADERS } else { 0 };
        push(out, kind, flags, stream, &[part]);
        if rest.is_empty() {
            return;
        }
        (part, rest) = rest.split_at(rest.len().min(max_frame));
        (kind, flags) = (kind::CONTINUATION, 0);
    }
}

/// Appends SETTINGS.
pub fn settings(out: &mut Vec<u8>, settings: &[(u16, u32)]) {
    let head = FrameHead { length: settings.len() * 6, kind: kind::SETTINGS, flags: 0, stream: StreamId::CONNECTION };
    out.extend_from_slice(&head.write());
    for (id, value) in settings {
        out.extend_from_slice(&id.to_be_bytes());
        out.extend_from_slice(&value.to_be_bytes());
    }
}

/// Appends the acknowledgement of SETTINGS.
pub fn settings_ack(out: &mut Vec<u8>) {
    push(out, kind::SETTINGS, flag::ACK, StreamId::CONNECTION, &[]);
}

/// Appends PING, or its acknowledgement with the data of the peer.
pub fn ping(out: &mut Vec<u8>, ack: bool, data: [u8; 8]) {
    push(out, kind::PING, if ack { flag::ACK } else { 0 }, StreamId::CONNECTION, &[&data]);
}

/// Appends RST_STREAM.
pub fn reset(out: &mut Vec<u8>, stream: StreamId, code: ErrorCode) {
    push(out, kind::RST_STREAM, 0, stream, &[&code.0.to_be_bytes()]);
}

/// Appends GOAWAY. `last` is the last stream of the peer that was or may be acted on; `debug` is text for people.
pub fn go_away(out: &mut Vec<u8>, last: StreamId, code: ErrorCode, debug: &[u8]) {
    let parts = [&last.0.to_be_bytes(), &code.0.to_be_bytes(), debug];
    push(out, kind::GOAWAY, 0, StreamId::CONNECTION, &parts);
}

/// Appends WINDOW_UPDATE of a stream or of the connection; `increment` is 1 to [`WINDOW_MAX`].
pub fn window_update(out: &mut Vec<u8>, stream: StreamId, increment: u32) {
    push(out, kind::WINDOW_UPDATE, 0, stream, &[&increment.to_be_bytes()]);
}

/// Appends PRIORITY_UPDATE, which only a client sends (RFC 9218, 7.1). `value` is that of a Priority field.
pub fn priority_update(out: &mut Vec<u8>, stream: StreamId, value: &[u8]) {
    push(out, kind::PRIORITY_UPDATE, 0, StreamId::CONNECTION, &[&stream.0.to_be_bytes(), value]);
}

fn push(out: &mut Vec<u8>, kind: u8, flags: u8, stream: StreamId, parts: &[&[u8]]) {
    let length = parts.iter().map(|part| part.len()).sum();
    out.extend_from_slice(&FrameHead { length, kind, flags, stream }.write());
    parts.iter().for_each(|part| out.extend_from_slice(part));
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;
    use proptest::prelude::*;

    /// A frame as sent, with any head.
    fn raw(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        push(&mut out, kind, flags, StreamId(stream), &[payload]);
        out
    }

    #[test]
    fn written_frames_parse_to_themselves() {
        #[track_caller]
        fn check(write: impl FnOnce(&mut Vec<u8>), expected: &[Frame<'_>]) {
            let mut out = Vec::new();
            write(&mut out);
            let mut rest = &out[..];
            for frame in expected {
                for cut in 0..HEAD_BYTES.min(rest.len()) {
                    assert_eq!(parse(&rest[..cut]), Ok(None));
                }
                let (found, length) = parse(rest).expect("valid").expect("complete");
                assert_eq!((found, whole_length(rest)), (*frame, Some(length)));
                assert_eq!(parse(&rest[..length - 1]), Ok(None), "a frame without its last byte");
                rest = &rest[length..];
            }
            assert_eq!(rest, b"");
        }
        let stream = StreamId(7);
        check(settings_ack, &[Frame::SettingsAck]);
        let payload = [0, 4, 0, 1, 0, 0, 0, 99, 0, 0, 0, 7];
        check(|out| settings(out, &[(4, 65_536), (99, 7)]), &[Frame::Settings(Settings { payload: &payload })]);
        check(|out| ping(out, true, *b"12345678"), &[Frame::Ping { ack: true, data: *b"12345678" }]);
        check(|out| reset(out, stream, ErrorCode::CANCEL), &[Frame::Reset { stream, code: ErrorCode::CANCEL }]);
        let code = ErrorCode::ENHANCE_YOUR_CALM;
        check(|out| go_away(out, stream, code, b"calm"), &[Frame::GoAway { last: stream, code, debug: b"calm" }]);
        check(|out| window_update(out, stream, 9), &[Frame::WindowUpdate { stream, increment: 9 }]);
        check(|out| priority_update(out, stream, b"u=1"), &[Frame::PriorityUpdate { stream, value: b"u=1" }]);
        check(
            |out| {
                out.extend_from_slice(&data_head(3, stream, true));
                out.extend_from_slice(b"abc");
            },
            &[Frame::Data { stream, data: b"abc", flow_bytes: 3, end_stream: true }],
        );
        let first =
            |block, end_headers| Frame::Headers { stream, block, end_stream: true, end_headers, depends_on: None };
        check(|out| headers(out, stream, b"", true, 2), &[first(b"", true)]);
        check(|out| headers(out, stream, b"ab", true, 2), &[first(b"ab", true)]);
        let next = |block, end_headers| Frame::Continuation { stream, block, end_headers };
        let split = [first(b"ab", false), next(b"cd", false), next(b"e", true)];
        check(|out| headers(out, stream, b"abcde", true, 2), &split);
    }

    #[test]
    fn settings_iterate_in_order() {
        let mut out = Vec::new();
        settings(&mut out, &[(setting::MAX_FRAME_SIZE, 16_384), (0xabcd, u32::MAX), (setting::ENABLE_PUSH, 0)]);
        let Ok(Some((Frame::Settings(found), _))) = parse(&out) else { panic!("not SETTINGS") };
        assert_eq!(found.collect::<Vec<_>>(), [(5, 16_384), (0xabcd, u32::MAX), (2, 0)]);
    }

    #[test]
    fn padding_and_dependency_are_removed() {
        #[track_caller]
        fn check(bytes: &[u8], expected: Frame<'_>) {
            assert_eq!(parse(bytes), Ok(Some((expected, bytes.len()))));
        }
        let stream = StreamId(3);
        let data = |data, flow_bytes| Frame::Data { stream, data, flow_bytes, end_stream: false };
        check(&raw(kind::DATA, flag::PADDED, 3, b"\x02ab\0\0"), data(b"ab", 5));
        check(&raw(kind::DATA, flag::PADDED, 3, b"\x04\0\0\0\0"), data(b"", 5));
        check(&raw(kind::DATA, flag::PADDED, 3, b"\0"), data(b"", 1));
        let headers = |block, depends_on| Frame::Headers {
            stream,
            block,
            end_stream: false,
            end_headers: true,
            depends_on: Some(StreamId(depends_on)),
        };
        let flags = flag::PADDED | flag::PRIORITY | flag::END_HEADERS;
        check(&raw(kind::HEADERS, flags, 3, b"\x01\x80\0\0\x05\xffxy\0"), headers(b"xy", 5));
        check(&raw(kind::HEADERS, flag::PRIORITY | flag::END_HEADERS, 3, b"\0\0\0\x03\0"), headers(b"", 3));
        check(&raw(kind::PRIORITY, 0, 3, b"\x80\0\0\x01\0"), Frame::Priority { stream, depends_on: StreamId(1) });
        // RFC 9113, 4.1: the reserved bit and undefined flags are ignored.
        let mut reserved = raw(kind::WINDOW_UPDATE, 0xff, 3, b"\x80\0\0\x01");
        reserved[5] |= 0x80;
        check(&reserved, Frame::WindowUpdate { stream, increment: 1 });
        check(&raw(0xee, 0xff, 3, b"whatever"), Frame::Unknown { kind: 0xee });
        check(&raw(kind::PUSH_PROMISE, 0, 3, b""), Frame::PushPromise);
    }

    #[test]
    fn malformed_frames_have_error_of_rfc() {
        #[track_caller]
        fn check(bytes: &[u8], code: ErrorCode) {
            let error = parse(bytes).expect_err("malformed");
            assert_eq!((error.code, error.stream), (code, None), "{}", error.why);
        }
        use ErrorCode as E;
        for kind in
            [kind::DATA, kind::HEADERS, kind::PRIORITY, kind::RST_STREAM, kind::PUSH_PROMISE, kind::CONTINUATION]
        {
            check(&raw(kind, 0, 0, b"12345"), E::PROTOCOL_ERROR);
        }
        for (kind, length) in [(kind::SETTINGS, 6), (kind::PING, 8), (kind::GOAWAY, 8), (kind::PRIORITY_UPDATE, 4)] {
            check(&raw(kind, 0, 1, &vec![0; length]), E::PROTOCOL_ERROR);
        }
        check(&raw(kind::RST_STREAM, 0, 1, b"123"), E::FRAME_SIZE_ERROR);
        check(&raw(kind::WINDOW_UPDATE, 0, 1, b"12345"), E::FRAME_SIZE_ERROR);
        check(&raw(kind::SETTINGS, 0, 0, b"12345"), E::FRAME_SIZE_ERROR);
        check(&raw(kind::SETTINGS, flag::ACK, 0, b"123456"), E::FRAME_SIZE_ERROR);
        check(&raw(kind::PING, 0, 0, b"1234567"), E::FRAME_SIZE_ERROR);
        check(&raw(kind::GOAWAY, 0, 0, b"1234567"), E::FRAME_SIZE_ERROR);
        check(&raw(kind::PRIORITY_UPDATE, 0, 0, b"123"), E::FRAME_SIZE_ERROR);
        check(&raw(kind::PRIORITY_UPDATE, 0, 0, b"\x80\0\0\0u=1"), E::PROTOCOL_ERROR);
        check(&raw(kind::DATA, flag::PADDED, 1, b""), E::FRAME_SIZE_ERROR);
        check(&raw(kind::DATA, flag::PADDED, 1, b"\x01"), E::PROTOCOL_ERROR);
        check(&raw(kind::HEADERS, flag::PADDED, 1, b"\x03ab"), E::PROTOCOL_ERROR);
        check(&raw(kind::HEADERS, flag::PRIORITY, 1, b"1234"), E::FRAME_SIZE_ERROR);
        let one = |id, value| {
            let mut out = Vec::new();
            settings(&mut out, &[(1, 0), (id, value)]);
            out
        };
        check(&one(setting::ENABLE_PUSH, 2), E::PROTOCOL_ERROR);
        check(&one(setting::INITIAL_WINDOW_SIZE, 1 << 31), E::FLOW_CONTROL_ERROR);
        check(&one(setting::MAX_FRAME_SIZE, 16_383), E::PROTOCOL_ERROR);
        check(&one(setting::MAX_FRAME_SIZE, 1 << 24), E::PROTOCOL_ERROR);
        check(&one(setting::NO_RFC7540_PRIORITIES, 2), E::PROTOCOL_ERROR);
        assert!(parse(&one(setting::MAX_FRAME_SIZE, (1 << 24) - 1)).is_ok());
        // The head is enough to reject a frame that is too long.
        let long = FrameHead { length: FRAME_BYTES + 1, kind: 0xee, flags: 0, stream: StreamId(1) };
        check(&long.write(), E::FRAME_SIZE_ERROR);
        let longest = FrameHead { length: FRAME_BYTES, ..long };
        assert_eq!(parse(&longest.write()), Ok(None));
    }

    #[test]
    fn wrong_priority_length_is_stream_error() {
        for length in [0, 4, 6] {
            let bytes = raw(kind::PRIORITY, 0, 9, &vec![0; length]);
            let error = parse(&bytes).expect_err("malformed");
            let found = (error.code, error.stream, error.length);
            assert_eq!(found, (ErrorCode::FRAME_SIZE_ERROR, Some(StreamId(9)), bytes.len()));
            assert_eq!(parse(&bytes[..bytes.len() - 1]), Ok(None), "cannot be skipped yet");
        }
    }

    #[test]
    fn error_codes_have_names() {
        assert_eq!(ErrorCode::HTTP_1_1_REQUIRED.name(), "HTTP_1_1_REQUIRED");
        assert_eq!(ErrorCode(0xe).name(), "");
    }

    proptest! {
        #[test]
        fn random_bytes_do_not_panic(kind in 0_u8..20, flags: u8, stream in 0_u32..3, payload: Vec<u8>) {
            let bytes = raw(kind, flags, stream, &payload);
            match parse(&bytes) {
                Ok(Some((_, length))) => prop_assert_eq!(length, bytes.len()),
                Ok(None) => prop_assert!(false, "the frame is complete"),
                Err(error) => prop_assert_eq!(error.length, bytes.len()),
            }
        }
    }
}
