//! A connection of HTTP/2 with a disk whose answers wait: for any input the frames that it sends are well-formed, data
//! stay within the windows of the client, each stream has at most one response, and memory is bounded.
#![no_main]

use std::collections::BTreeMap;
use std::sync::Arc;

use amped_core::cache::Budgets;
use amped_core::connection::Conn;
use amped_core::event::{Action, Delay, Event, Found, Ticket, Work};
use amped_core::file::{FileHandle, FileVersion};
use amped_core::http2::Drawn;
use amped_core::limits::Limits;
use amped_core::reply::{Body, WallClock};
use amped_core::shared_state::SharedState;
use amped_core::site::{Site, Sites};
use amped_http::h2::frame::{self, Frame, PREFACE, StreamId};
use amped_units::Time;

/// A disk without files never opens one.
enum NoFile {}

impl FileHandle for NoFile {
    fn has_bytes_of(&self, _: &FileVersion) -> bool {
        match *self {}
    }
}

/// The driver of one connection.
struct Driver {
    shared: SharedState<NoFile>,
    conn: Conn,
    /// What each stream has to send: its head, until that is sent, and its body.
    lanes: BTreeMap<u32, (Option<Vec<u8>>, Vec<u8>)>,
    control: Vec<u8>,
    lookups: Vec<(Ticket, Work)>,
    /// Streams whose head was sent.
    answered: Vec<u32>,
    is_closed: bool,
}

impl Driver {
    fn handle(&mut self, event: Event<'_, NoFile>) {
        let mut actions = Vec::new();
        self.conn.handle(Time::START, event, &mut self.shared, &mut actions);
        self.carry_out(actions);
    }

    fn carry_out(&mut self, actions: Vec<Action<NoFile>>) {
        for action in actions {
            match action {
                Action::Send(lane, reply) => {
                    let mut head = Vec::new();
                    reply.head.get().h2_block().write(&mut head, &self.shared.wall.date, None);
                    let body = if let Body::Text(text) = reply.body { text } else { Vec::new() };
                    assert!(self.lanes.insert(lane.0, (Some(head), body)).is_none(), "two responses");
                }
                Action::Control(bytes) => self.control.extend(bytes),
                Action::Cancel(lane) => drop(self.lanes.remove(&lane.0)),
                Action::Disk(ticket, work) => {
                    self.lookups.push((ticket, work));
                    assert!(self.lookups.len() <= 16, "too many lookups");
                }
                Action::Close => self.is_closed = true,
                Action::Unanswered(record) => self.shared.records.give_back(record),
                Action::HalfClose | Action::Log(_) => {}
                Action::App(..)
                | Action::Revalidate(_)
                | Action::Verify(..)
                | Action::Piece(..)
                | Action::PieceEnd(_) => {
                    panic!("no application is configured")
                }
                Action::Interim(_) => panic!("an interim response of HTTP/1"),
            }
        }
    }

    /// Answers the oldest lookup; `later`: first tells that it takes time.
    fn answer(&mut self, later: bool) {
        if self.lookups.is_empty() {
            return;
        }
        if later {
            let ticket = self.lookups[0].0;
            self.handle(Event::Late(ticket, Delay::Disk));
        }
        let (ticket, work) = self.lookups.remove(0);
        let sites = Arc::clone(&self.shared.sites);
        let answer = self.shared.caches.learn(Time::START, &work, Found::Absent, &sites);
        self.handle(Event::Disk(ticket, answer));
    }

    /// Sends all that may be sent, and checks it.
    fn draw(&mut self) {
        let mut out = std::mem::take(&mut self.control);
        let mut actions = Vec::new();
        while let Some((lane, most)) = self.conn.next_lane() {
            let stream = StreamId(lane.0);
            let (head, body) = self.lanes.get_mut(&lane.0).expect("a lane that may send has output");
            if let Some(head) = head.take() {
                assert!(!self.answered.contains(&lane.0), "two responses on a stream");
                self.answered.push(lane.0);
                frame::headers(&mut out, stream, &head, body.is_empty(), frame::FRAME_BYTES);
            } else {
                assert!(!body.is_empty());
            }
            let count = body.len().min(most).min(frame::FRAME_BYTES);
            let is_end = count == body.len();
            if count > 0 {
                out.extend(frame::data_head(count, stream, is_end));
                out.extend(body.drain(..count));
            }
            let drawn = if is_end { Drawn::End(count) } else { Drawn::More(count) };
            if is_end {
                self.lanes.remove(&lane.0);
            }
            self.conn.drew(Time::START, lane, drawn, &mut actions);
        }
        self.carry_out(actions);
        let mut rest = &out[..];
        while !rest.is_empty() {
            let (sent, length) = frame::parse(rest).expect("a good frame").expect("a whole frame");
            assert!(!matches!(sent, Frame::Unknown { .. } | Frame::PushPromise | Frame::Priority { .. }));
            rest = &rest[length..];
        }
        self.handle(Event::Sent { all: self.control.is_empty() });
    }
}

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let Some((&choice, bytes)) = bytes.split_first() else { return };
    let sites = Arc::new(Sites::new(vec![Site::default()]).expect("one"));
    let shared = SharedState::new(sites, Limits::default(), Budgets::default(), WallClock::at(0));
    let mut driver = Driver {
        shared,
        conn: Conn::new(Time::START, false),
        lanes: BTreeMap::new(),
        control: Vec::new(),
        lookups: Vec::new(),
        answered: Vec::new(),
        is_closed: false,
    };
    driver.handle(Event::Bytes(PREFACE));
    driver.handle(Event::Bytes(b"\0\0\0\x04\0\0\0\0\0"));
    let piece = 1 + usize::from(choice >> 2);
    for part in bytes.chunks(piece) {
        if driver.is_closed {
            return;
        }
        driver.handle(Event::Bytes(part));
        if choice & 1 != 0 {
            driver.answer(choice & 2 != 0);
        }
        driver.draw();
        assert!(driver.conn.heap_bytes() < 1 << 20, "{} bytes", driver.conn.heap_bytes());
    }
    while !driver.lookups.is_empty() {
        driver.answer(false);
    }
    driver.draw();
});
