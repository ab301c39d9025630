//! HTTP/2 connections: streams side by side, over a link that splits bytes anywhere, with a client that keeps its windows
//! small, resets streams, and checks every frame.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use amped_core::app::{Input, Output};
use amped_core::cache::Budgets;
use amped_core::connection::Conn;
use amped_core::event::{Action, Delay, Event, Lane, Ticket, Work};
use amped_core::file::Stored;
use amped_core::glob::Glob;
use amped_core::http2::Drawn;
use amped_core::limits::Limits;
use amped_core::record::{Record, RequestPermit};
use amped_core::reply::{Body, Reply, WallClock};
use amped_core::request_limit::{Admission, ByteRate, LimitKey, RequestLimit, Requester};
use amped_core::shared_state::{RequestLimiter, SharedState};
use amped_core::site::{AppRule, Site, Sites};
use amped_http::h1::request;
use amped_http::h2::fields::FieldList;
use amped_http::h2::frame::{self, ErrorCode, FRAME_BYTES, Frame, PREFACE, StreamId, setting};
use amped_http::h2::hpack::{self, Decoder};
use amped_units::{Bytes, Time};

use crate::client::Response;
use crate::files::{FakeFile, Files, WALL_START};
use crate::oracle::{self, Asked};
use crate::seed::{Dice, RngExt, each_seed};
use crate::world::site;

/// What a lane has to send.
#[derive(Default)]
struct LaneOutput {
    head: Option<Vec<u8>>,
    body: VecDeque<u8>,
    ended: bool,
    record: Option<Box<Record>>,
}

/// A pending input of the connection.
enum Due {
    Disk(Ticket, Work, bool),
    App(Ticket),
    Room(Ticket),
    Warm(Lane),
}

/// An application that answers with its input.
#[derive(Default)]
struct App {
    given: Vec<u8>,
    said: usize,
    has_all: bool,
}

/// What the client knows of a stream.
struct Stream {
    asked: Option<Asked>,
    echo: Option<Vec<u8>>,
    status: u16,
    fields: Vec<(String, String)>,
    body: Vec<u8>,
    /// Bytes that the server may still send.
    window: i64,
    /// Bytes that the client may still send.
    send_window: i64,
    upload: VecDeque<u8>,
    has_sent_all: bool,
    is_complete: bool,
    was_reset: bool,
}

struct World {
    dice: Dice,
    now: Time,
    shared: SharedState<FakeFile>,
    files: Files,
    conn: Conn,
    lanes: BTreeMap<u32, LaneOutput>,
    control: Vec<u8>,
    apps: BTreeMap<u32, App>,
    due: Vec<Due>,
    lookups: usize,
    /// Bytes on their way to the server.
    upload: VecDeque<u8>,
    /// The client.
    decoder: Decoder,
    streams: BTreeMap<u32, Stream>,
    window: i64,
    send_window: i64,
    initial_window: i64,
    goodbyes: Vec<ErrorCode>,
    is_closed: bool,
}

fn with_app() -> Site {
    let rule = AppRule {
        when: None,
        pattern: Glob::new("/app"),
        timeout: Duration::from_secs(60),
        max_body_bytes: Bytes(1_000_000),
        max_response_bytes: None,
        cache: None,
        compress: Vec::new(),
        http: None,
    };
    Site { apps: vec![rule], ..site() }
}

/// The initial windows of the server.
const STREAM_WINDOW: i64 = 256 * 1024;
const CONNECTION_WINDOW: i64 = 1024 * 1024;

impl World {
    fn new(mut dice: Dice, initial_window: u32) -> World {
        let sites = Arc::new(Sites::new(vec![with_app()]).expect("one"));
        let wall = WallClock::at(WALL_START);
        let limits = Limits { max_body_bytes: Bytes(10_000), ..Limits::default() };
        let shared = SharedState::new(sites, limits, Budgets::default(), wall);
        let mut files = Files::default();
        oracle::furnish(&mut dice, &mut files);
        let mut upload = PREFACE.to_vec();
        frame::settings(&mut upload, &[(setting::INITIAL_WINDOW_SIZE, initial_window)]);
        World {
            dice,
            now: Time::START,
            shared,
            files,
            conn: Conn::new(Time::START, false),
            lanes: BTreeMap::new(),
            control: Vec::new(),
            apps: BTreeMap::new(),
            due: Vec::new(),
            lookups: 0,
            upload: upload.into(),
            decoder: Decoder::new(),
            streams: BTreeMap::new(),
            window: 65_535,
            send_window: 65_535,
            initial_window: i64::from(initial_window),
            goodbyes: Vec::new(),
            is_closed: false,
        }
    }

    fn put(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        let mut bytes = Vec::new();
        write(&mut bytes);
        self.upload.extend(bytes);
    }

    /// Opens a stream.
    fn open(&mut self, fields: &[(Vec<u8>, Vec<u8>)], stream: Stream) {
        let id = self.streams.last_key_value().map_or(1, |(id, _)| id + 2);
        let mut block = Vec::new();
        fields.iter().for_each(|(name, value)| hpack::write_field(&mut block, name, value));
        let most = self.dice.random_range(10..200);
        let end_stream = stream.has_sent_all;
        self.put(|out| frame::headers(out, StreamId(id), &block, end_stream, most));
        self.streams.insert(id, stream);
    }

    fn stream(&self) -> Stream {
        Stream {
            asked: None,
            echo: None,
            status: 0,
            fields: Vec::new(),
            body: Vec::new(),
            window: self.initial_window,
            send_window: STREAM_WINDOW,
            upload: VecDeque::new(),
            has_sent_all: true,
            is_complete: false,
            was_reset: false,
        }
    }

    fn ask(&mut self) {
        let asked = loop {
            let asked = Asked::name(&mut self.dice, &self.files);
            // Without a body, and not in the absolute form.
            let is_whole = asked.bytes.windows(4).position(|end| end == b"\r\n\r\n") == Some(asked.bytes.len() - 4);
            if is_whole && asked.bytes.windows(2).any(|pair| pair == b" /") {
                break asked;
            }
        };
        let head = &asked.bytes[request::blank_lines(&asked.bytes)..];
        let line = head.split(|&byte| byte == b'\r').next().expect("a line");
        let mut words = line.split(|&byte| byte == b' ');
        let (method, path) = (words.next().expect("a method"), words.next().expect("a target"));
        let mut fields = usual(method, path);
        let own = request::fields(head).map(|(name, value)| (name.to_ascii_lowercase(), value.to_vec()));
        fields.extend(own.filter(|(name, _)| name != b"host" && name != b"connection"));
        let stream = Stream { asked: Some(asked), ..self.stream() };
        self.open(&fields, stream);
    }

    fn post(&mut self) {
        let size = [0, 1, 500, 70_000, 400_000][self.dice.random_range(0..5)];
        let body = oracle::text_of(&mut self.dice, "body", size);
        let mut fields = usual(b"POST", b"/app");
        if self.dice.random_bool(0.5) {
            fields.push((b"content-length".to_vec(), body.len().to_string().into_bytes()));
        }
        let upload = body.iter().copied().collect();
        let stream = Stream { echo: Some(body), upload, has_sent_all: false, ..self.stream() };
        self.open(&fields, stream);
    }

    /// Sends part of a request body.
    fn send_data(&mut self) {
        let mut waiting: Vec<u32> = Vec::new();
        for (id, stream) in &self.streams {
            if !stream.has_sent_all && !stream.was_reset {
                waiting.push(*id);
            }
        }
        let Some(&id) = waiting.get(self.dice.random_range(0..waiting.len().max(1))) else { return };
        let stream = self.streams.get_mut(&id).expect("open");
        let most = stream.send_window.min(self.send_window).clamp(0, FRAME_BYTES as i64) as usize;
        let count = stream.upload.len().min(most);
        if stream.upload.is_empty() {
            return self.end_body(id);
        }
        if count == 0 {
            return;
        }
        let count = self.dice.random_range(1..=count);
        // The end may follow in a frame of its own.
        let ends = self.dice.random_bool(0.5);
        self.send_part(id, count, ends);
    }

    /// Sends this much of a request body. `ends`: with its end, if that is all of it.
    fn send_part(&mut self, id: u32, count: usize, ends: bool) {
        let stream = self.streams.get_mut(&id).expect("open");
        let part: Vec<u8> = stream.upload.drain(..count).collect();
        stream.send_window -= count as i64;
        self.send_window -= count as i64;
        stream.has_sent_all = ends && stream.upload.is_empty();
        let is_last = stream.has_sent_all;
        self.put(|out| {
            out.extend(frame::data_head(count, StreamId(id), is_last));
            out.extend(part);
        });
    }

    /// Ends a request body of which all bytes were sent, without data: by an empty frame, or by trailers.
    fn end_body(&mut self, id: u32) {
        self.streams.get_mut(&id).expect("open").has_sent_all = true;
        let mut block = Vec::new();
        hpack::write_field(&mut block, b"x-checksum", b"0");
        match self.dice.random_bool(0.5) {
            true => self.put(|out| out.extend(frame::data_head(0, StreamId(id), true))),
            false => self.put(|out| frame::headers(out, StreamId(id), &block, true, FRAME_BYTES)),
        }
    }

    fn handle(&mut self, event: Event<'_, FakeFile>) {
        let mut actions = Vec::new();
        self.conn.handle(self.now, event, &mut self.shared, &mut actions);
        self.carry_out(actions);
    }

    fn carry_out(&mut self, actions: Vec<Action<FakeFile>>) {
        for action in actions {
            match action {
                Action::Disk(ticket, work) => {
                    self.lookups += 1;
                    assert!(self.lookups <= 16, "more lookups of a connection than allowed");
                    self.due.push(Due::Disk(ticket, work, false));
                }
                Action::Send(lane, reply) => self.put_reply(lane, reply),
                Action::Piece(lane, bytes, framed) => {
                    assert_eq!(framed, 0);
                    self.lanes.get_mut(&lane.0).expect("a head before its body").body.extend(bytes);
                }
                Action::PieceEnd(lane) => self.lanes.get_mut(&lane.0).expect("a head before its end").ended = true,
                Action::Control(bytes) => self.control.extend(bytes),
                Action::Cancel(lane) => drop(self.lanes.remove(&lane.0)),
                Action::App(ticket, input) => self.take_input(ticket, input),
                Action::Close => self.is_closed = true,
                Action::Unanswered(record) => panic!("unexpected: {record:?}"),
                Action::HalfClose | Action::Log(_) => {}
                other @ (Action::Verify(..) | Action::Revalidate(_) | Action::Interim(_)) => {
                    panic!("unexpected: {other:?}")
                }
            }
        }
    }

    fn take_input(&mut self, ticket: Ticket, input: Input) {
        match input {
            Input::Start(work) => {
                self.apps.insert(ticket.0, App { has_all: !work.has_body, ..App::default() });
                self.due.push(Due::App(ticket));
            }
            Input::Body(bytes) => {
                let Some(app) = self.apps.get_mut(&ticket.0) else { return };
                app.given.extend(bytes);
                self.due.push(Due::Room(ticket));
            }
            Input::End => {
                if let Some(app) = self.apps.get_mut(&ticket.0) {
                    app.has_all = true;
                    self.due.push(Due::App(ticket));
                }
            }
            Input::Leave(_) => drop(self.apps.remove(&ticket.0)),
            Input::Unbuffered => {}
            Input::Join(_) | Input::Settled | Input::Compress(_) => panic!("this test caches no pages"),
        }
    }

    fn put_reply(&mut self, lane: Lane, reply: Reply<FakeFile>) {
        let mut output = LaneOutput::default();
        let mut block = Vec::new();
        reply.head.get().h2_block().write(&mut block, &self.shared.wall.date, reply.hsts.as_deref());
        output.head = Some(block);
        output.ended = !matches!(reply.body, Body::Open);
        match reply.body {
            Body::Empty | Body::Open => {}
            Body::Text(text) => output.body.extend(text),
            Body::Shared(text) => output.body.extend(text.iter()),
            Body::Content(content, range) => output.body.extend(bytes_of(&content.store, range)),
            Body::Parts(content, parts, last) => {
                for (text, range) in parts {
                    output.body.extend(text);
                    output.body.extend(bytes_of(&content.store, range));
                }
                output.body.extend(last);
            }
        }
        output.record = Some(reply.record);
        assert!(self.lanes.insert(lane.0, output).is_none(), "a second response on stream {}", lane.0);
    }

    /// Draws frames as the server does, and delivers them.
    fn draw(&mut self) {
        let mut out = std::mem::take(&mut self.control);
        let frames = self.dice.random_range(0..10);
        let mut is_all = false;
        let mut actions = Vec::new();
        for _ in 0..=frames {
            let Some((lane, most)) = self.conn.next_lane() else {
                is_all = true;
                break;
            };
            let is_cold = self.dice.random_bool(0.1);
            let drawn = self.draw_lane(lane, most, is_cold, &mut out);
            self.conn.drew(self.now, lane, drawn, &mut actions);
        }
        self.carry_out(actions);
        self.handle(Event::Sent { all: is_all && self.control.is_empty() });
        self.deliver(&out);
    }

    fn draw_lane(&mut self, lane: Lane, most: usize, is_cold: bool, out: &mut Vec<u8>) -> Drawn {
        let output = self.lanes.get_mut(&lane.0).expect("a lane that may send has output");
        let stream = StreamId(lane.0);
        if is_cold && !output.body.is_empty() {
            self.due.push(Due::Warm(lane));
            return Drawn::Cold(0);
        }
        let count = output.body.len().min(most).min(FRAME_BYTES);
        let is_end = output.ended && count == output.body.len();
        if let Some(head) = output.head.take() {
            frame::headers(out, stream, &head, is_end && count == 0, FRAME_BYTES);
            if is_end && count == 0 {
                self.end_lane(lane);
                return Drawn::End(0);
            }
        }
        if count > 0 || is_end {
            out.extend(frame::data_head(count, stream, is_end));
            out.extend(output.body.drain(..count));
        }
        let is_empty = output.body.is_empty();
        if is_end {
            self.end_lane(lane);
            return Drawn::End(count);
        }
        if is_empty { Drawn::Waits(count) } else { Drawn::More(count) }
    }

    fn end_lane(&mut self, lane: Lane) {
        let record = self.lanes.remove(&lane.0).and_then(|output| output.record);
        record.into_iter().for_each(|record| self.shared.records.give_back(record));
    }

    /// The client takes frames.
    fn deliver(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let (frame, length) = frame::parse(bytes).expect("good frames").expect("whole frames");
            bytes = &bytes[length..];
            self.take_frame(frame);
        }
    }

    fn take_frame(&mut self, frame: Frame<'_>) {
        match frame {
            Frame::Headers { stream, block, end_stream, end_headers, .. } => {
                assert!(end_headers);
                let mut fields = FieldList::new(usize::MAX, usize::MAX);
                self.decoder.decode(block, &mut fields).expect("a good block");
                let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).expect("ASCII");
                let mut fields: Vec<_> = fields.iter().map(|(name, value)| (text(name), text(value))).collect();
                let (name, status) = fields.remove(0);
                assert_eq!(name, ":status");
                let known = self.streams.get_mut(&stream.0).expect("a stream that was opened");
                if known.was_reset {
                    return;
                }
                assert_eq!(known.status, 0, "a second head");
                (known.status, known.fields, known.is_complete) =
                    (status.parse().expect("a number"), fields, end_stream);
            }
            Frame::Data { stream, data, flow_bytes, end_stream } => {
                let known = self.streams.get_mut(&stream.0).expect("a stream that was opened");
                if known.was_reset {
                    self.window -= i64::from(flow_bytes);
                    return;
                }
                assert!(known.status != 0 && !known.is_complete, "data before a head, or after the end");
                known.body.extend(data);
                known.is_complete = end_stream;
                known.window -= i64::from(flow_bytes);
                self.window -= i64::from(flow_bytes);
                assert!(flow_bytes == 0 || known.window >= 0 && self.window >= 0, "over a window");
            }
            Frame::Reset { stream, code } => {
                let known = self.streams.get_mut(&stream.0).expect("a stream that was opened");
                if known.was_reset {
                    return;
                }
                assert!(known.is_complete && code == ErrorCode::NO_ERROR, "stream {} is reset: {code:?}", stream.0);
                known.was_reset = true;
            }
            Frame::WindowUpdate { stream: StreamId::CONNECTION, increment } => {
                self.send_window += i64::from(increment);
                assert!(self.send_window <= CONNECTION_WINDOW);
            }
            Frame::WindowUpdate { stream, increment } => {
                let known = self.streams.get_mut(&stream.0).expect("a stream that was opened");
                known.send_window += i64::from(increment);
                assert!(known.was_reset || known.send_window <= STREAM_WINDOW);
            }
            Frame::GoAway { code, .. } => self.goodbyes.push(code),
            Frame::Settings(_) => self.put(frame::settings_ack),
            Frame::SettingsAck => {}
            Frame::Ping { ack: false, data } => self.put(|out| frame::ping(out, true, data)),
            other => panic!("a server must not send {other:?}"),
        }
    }

    /// Enlarges windows.
    fn update_windows(&mut self) {
        let increment = self.dice.random_range(1024..100_000);
        let open: Vec<u32> = self.streams.iter().filter(|(_, stream)| !stream.is_complete).map(|(id, _)| *id).collect();
        for id in open {
            let known = self.streams.get_mut(&id).expect("known");
            if known.window < 100_000 {
                known.window += i64::from(increment);
                self.put(|out| frame::window_update(out, StreamId(id), increment));
            }
        }
        if self.window < 100_000 {
            self.window += i64::from(increment);
            self.put(|out| frame::window_update(out, StreamId::CONNECTION, increment));
        }
    }

    /// The link delivers some of the client's bytes.
    fn read(&mut self) {
        if !self.conn.wants_bytes() || self.upload.is_empty() {
            return;
        }
        let most = 1 << self.dice.random_range(0..17);
        let count = self.upload.len().min(most);
        let part: Vec<u8> = self.upload.drain(..count).collect();
        self.handle(Event::Bytes(&part));
    }

    /// Handles a pending input.
    fn take_due(&mut self) {
        if self.due.is_empty() {
            return;
        }
        let at = self.dice.random_range(0..self.due.len());
        match self.due.swap_remove(at) {
            Due::Disk(ticket, work, false) if self.dice.random_bool(0.5) => {
                self.due.push(Due::Disk(ticket, work, true));
                self.handle(Event::Late(ticket, Delay::Disk));
            }
            Due::Disk(ticket, work, _) => {
                let found = self.files.look("", &work, self.shared.caches.budgets.max_content_file_bytes.0);
                let sites = Arc::clone(&self.shared.sites);
                let answer = self.shared.caches.learn(Time::START, &work, found, &sites);
                self.lookups -= 1;
                self.handle(Event::Disk(ticket, answer));
            }
            Due::Warm(lane) => self.conn.warmed(self.now, lane),
            Due::Room(ticket) => self.handle(Event::App(ticket, Output::Room)),
            Due::App(ticket) => self.app_says_more(ticket),
        }
    }

    fn app_says_more(&mut self, ticket: Ticket) {
        let Some(app) = self.apps.get_mut(&ticket.0) else { return };
        if !app.has_all {
            return;
        }
        if !self.conn.wants_output(ticket) {
            return self.due.push(Due::App(ticket));
        }
        let whole = [&b"Content-Type: text/plain\r\n\r\n"[..], &app.given].concat();
        let rest = &whole[app.said..];
        if rest.is_empty() {
            self.apps.remove(&ticket.0);
            return self.handle(Event::App(ticket, Output::Ended));
        }
        let piece = &rest[..self.dice.random_range(1..=rest.len().min(50_000))];
        app.said += piece.len();
        self.due.push(Due::App(ticket));
        self.handle(Event::App(ticket, Output::Bytes(piece)));
    }

    fn reset_one(&mut self) {
        let open: Vec<u32> = self
            .streams
            .iter()
            .filter(|(_, stream)| !stream.is_complete && !stream.was_reset)
            .map(|(id, _)| *id)
            .collect();
        if open.is_empty() {
            return;
        }
        let id = open[self.dice.random_range(0..open.len())];
        // Frames of it may be on their way, and are not looked at.
        let stream = Stream { was_reset: true, ..self.stream() };
        self.streams.insert(id, stream);
        self.put(|out| frame::reset(out, StreamId(id), ErrorCode::CANCEL));
    }

    fn is_done(&self) -> bool {
        self.upload.is_empty()
            && self.streams.values().all(|stream| (stream.is_complete && stream.has_sent_all) || stream.was_reset)
    }

    /// Checks all responses.
    fn check(self) {
        assert!(self.goodbyes.is_empty() && !self.is_closed, "{:?}", self.goodbyes);
        assert_eq!(self.conn.streams(), 0, "{:?}", self.conn);
        for (id, stream) in self.streams {
            let Stream { asked, echo, status, fields, body, .. } = stream;
            if let Some(asked) = asked {
                let response = Response { status, fields, body, complete: true, end: 0 };
                asked.check(&response, &self.files, Time::START, Time::START, false);
            } else if let Some(echo) = echo {
                assert!(status == 200 && body == echo, "stream {id}: {status}, {} bytes", body.len());
            }
        }
    }
}

/// The pseudo-fields of a request.
fn usual(method: &[u8], path: &[u8]) -> Vec<(Vec<u8>, Vec<u8>)> {
    [(&b":method"[..], method), (b":scheme", b"http"), (b":authority", b"a"), (b":path", path)]
        .map(|(name, value)| (name.to_vec(), value.to_vec()))
        .into()
}

fn bytes_of(store: &Stored<FakeFile>, range: std::ops::Range<u64>) -> Vec<u8> {
    match store {
        Stored::Memory(bytes) => bytes[range.start as usize..range.end as usize].to_vec(),
        Stored::File(file) => file.read(range).expect("files do not shrink in this test"),
    }
}

/// The application has as much of the body as it may be ahead of, and so takes nothing more, when the end arrives.
#[test]
fn end_of_body_without_data_reaches_application_that_took_all_data() {
    each_seed(10, |dice| {
        let mut world = World::new(dice, 65_535);
        let body = vec![b'x'; 70_000];
        let stream = Stream { echo: Some(body.clone()), upload: body.into(), has_sent_all: false, ..world.stream() };
        world.open(&usual(b"POST", b"/app"), stream);
        let deliver = |world: &mut World| {
            while !world.upload.is_empty() {
                world.read()
            }
        };
        for count in [16_000; 4].into_iter().chain([6000]) {
            world.send_part(1, count, false);
            deliver(&mut world);
        }
        world.end_body(1);
        deliver(&mut world);
        assert!(
            world.apps.values().all(|app| app.given.len() == 70_000 && !app.has_all),
            "it has the data, not the end"
        );
        for _ in 0..1000 {
            world.take_due();
            world.draw();
            world.update_windows();
            world.read();
        }
        assert!(world.is_done(), "the application waits for the end of its request: {:?}", world.conn);
        world.check();
    });
}

#[test]
fn streams_are_answered_whole_within_windows() {
    each_seed(30, |mut dice| {
        let initial_window = [0, 1, 1000, 65_535, 1_000_000][dice.random_range(0..5)];
        let resets = dice.random_bool(0.5);
        let mut world = World::new(dice, initial_window);
        let mut left = 60;
        let mut turns = 0;
        while left > 0 || !world.is_done() {
            match world.dice.random_range(0..12) {
                0 if left > 0 && world.streams.values().filter(|stream| !stream.is_complete).count() < 100 => {
                    left -= 1;
                    if world.dice.random_bool(0.8) { world.ask() } else { world.post() }
                }
                1 if resets && world.dice.random_bool(0.05) => world.reset_one(),
                2 if world.dice.random_bool(0.3) => world.update_windows(),
                3 | 4 => world.send_data(),
                5 | 6 => world.draw(),
                7 | 8 => world.take_due(),
                _ => world.read(),
            }
            // Time restores the budget that window updates cost.
            world.now = world.now + Duration::from_micros(100);
            turns += 1;
            assert!(turns < 2_000_000, "no progress: {:?}", world.conn);
        }
        for _ in 0..1000 {
            world.read();
            world.take_due();
            world.draw();
        }
        world.check();
    });
}

/// Admits all requests.
#[derive(Debug)]
struct NoLimiter;

impl RequestLimiter for NoLimiter {
    fn take(&self, _: &RequestLimit, _: Requester<'_>) -> Admission {
        Admission::Now
    }

    fn begin(&self, _: &RequestLimit, _: usize, _: Requester<'_>) -> Option<RequestPermit> {
        None
    }
}

impl World {
    /// Limits the requests of these patterns to bandwidths of their connection, bytes per second.
    fn limit_connection(&mut self, limits: &[(&str, u64)]) {
        let table = |(pattern, rate): &(&str, u64)| RequestLimit {
            pattern: Glob::new(pattern),
            when: None,
            key: LimitKey::Address,
            requests: None,
            burst: 1,
            max_delay: Duration::ZERO,
            concurrent: None,
            rate: None,
            rate_after: Bytes(0),
            connection_rate: Some(ByteRate::parse(&format!("{rate}B/s")).expect("a bandwidth")),
            number: 0,
        };
        let site = Site { limits: limits.iter().map(table).collect(), ..with_app() };
        self.shared.sites = Arc::new(Sites::new(vec![site]).expect("one"));
        self.shared.limiter = Some(Arc::new(NoLimiter));
    }

    /// Draws all that may be sent now; returns how many bytes of bodies have arrived in all.
    fn draw_all(&mut self) -> usize {
        let (mut out, mut actions) = (Vec::new(), Vec::new());
        while let Some((lane, most)) = self.conn.next_lane() {
            let drawn = self.draw_lane(lane, most, false, &mut out);
            self.conn.drew(self.now, lane, drawn, &mut actions);
        }
        self.carry_out(actions);
        let control = std::mem::take(&mut self.control);
        self.handle(Event::Sent { all: true });
        self.deliver(&control);
        self.deliver(&out);
        while !self.upload.is_empty() {
            self.read();
        }
        self.streams.values().map(|stream| stream.body.len()).sum()
    }

    /// Requests these paths and lets the server have all it waits for, without time passing.
    fn request(&mut self, paths: &[&str], priority: &[u8]) {
        for path in paths {
            let mut fields = usual(b"GET", path.as_bytes());
            fields.push((b"priority".to_vec(), priority.to_vec()));
            self.open(&fields, self.stream());
        }
        while !self.upload.is_empty() || !self.due.is_empty() {
            self.read();
            self.take_due();
        }
    }
}

#[test]
fn streams_share_bandwidth_of_their_connection_to_the_byte() {
    each_seed(10, |mut dice| {
        let number = dice.random_range(1..30);
        let priority = [&b"u=3"[..], b"u=3, i"][dice.random_range(0..2)];
        let mut world = World::new(dice, 1_000_000);
        world.window = 1 << 30;
        world.put(|out| frame::window_update(out, StreamId::CONNECTION, (1 << 30) - 65_535));
        world.limit_connection(&[("/big.bin", 400_000)]);
        // Lookups are as old as the world.
        world.now = Time::from_millis(10);
        world.request(&vec!["/big.bin"; number], priority);
        let begin = world.now;
        let whole = number * 300_000;
        let mut steps = 0;
        loop {
            // An eighth of a second at 400,000 bytes a second, whatever the number of streams.
            steps += 1;
            assert_eq!(world.draw_all(), whole.min(steps * 50_000), "{number} streams, {steps} steps");
            if world.is_done() {
                break;
            }
            // Nothing happens before the next step: the connection has one timer for all of them.
            let due = world.conn.next_due(&world.shared.limits);
            assert_eq!(due, begin + Duration::from_millis(125) * steps as u32);
            world.now = Time::from_nanos(due.as_nanos() - 1);
            world.handle(Event::Resumed);
            assert_eq!(world.conn.next_lane(), None);
            world.now = due;
            world.handle(Event::Deadline);
            if steps % 10 == 0 && priority.ends_with(b"i") {
                let sent: Vec<usize> = world.streams.values().map(|stream| stream.body.len()).collect();
                let (least, most) = (sent.iter().min().expect("some"), sent.iter().max().expect("some"));
                assert!(most - least <= 2 * FRAME_BYTES, "{sent:?}");
            }
        }
        world.check();
    });
}

#[test]
fn responses_with_other_limits_share_time_and_others_are_not_delayed() {
    let mut world = World::new(<Dice as rand::SeedableRng>::seed_from_u64(1), 1_000_000);
    world.window = 1 << 30;
    world.put(|out| frame::window_update(out, StreamId::CONNECTION, (1 << 30) - 65_535));
    world.limit_connection(&[("/big.bin", 80_000), ("/big2.bin", 8000)]);
    world.now = Time::from_millis(10);
    world.request(&["/big.bin", "/big2.bin"], b"u=3");
    assert_eq!(world.draw_all(), 10_000);
    world.request(&["/a.html"], b"u=3");
    let free = world.files.bytes("/a.html").expect("a file").len();
    assert_eq!(world.draw_all(), 10_000 + free);
    let mut last = world.now;
    while !world.is_done() {
        let due = world.conn.next_due(&world.shared.limits);
        assert!(due > world.now, "a timer without effect");
        world.now = due;
        world.handle(Event::Deadline);
        world.draw_all();
        last = world.now;
    }
    // 300,000 bytes at 80,000 and 70,000 at 8,000 a second, without the last step of each.
    let seconds = last.since(Time::from_millis(10)).as_secs_f64();
    assert!((12.2..12.5).contains(&seconds), "{seconds}");
    world.check();
}
