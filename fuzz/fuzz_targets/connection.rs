//! A connection with empty caches and a disk without files: for any input it responds or needs more input, responds the
//! same however the bytes are split, and sends nothing after its close.
#![no_main]

use std::sync::Arc;

use amped_core::cache::Budgets;
use amped_core::event::{Action, Event, Found, Work};
use amped_core::file::{FileHandle, FileVersion};
use amped_core::http1::Conn;
use amped_core::limits::Limits;
use amped_core::reply::{Body, WallClock};
use amped_core::shared_state::SharedState;
use amped_core::site::{Site, Sites};
use amped_units::Time;

/// A disk without files never opens one.
enum NoFile {}

impl FileHandle for NoFile {
    fn has_bytes_of(&self, _: &FileVersion) -> bool {
        match *self {}
    }
}

/// Returns all bytes sent in response to `bytes`, split into pieces, and whether the connection has ended: at once, or
/// in stages if more input has arrived after the last request.
fn run(bytes: &[u8], piece: usize) -> (Vec<u8>, bool) {
    let sites = Arc::new(Sites::new(vec![Site::default()]).expect("one"));
    let mut shared: SharedState<NoFile> =
        SharedState::new(sites, Limits::default(), Budgets::default(), WallClock::at(0));
    let mut conn = Conn::new(Time::START, false);
    let (mut sent, mut ended, mut actions) = (Vec::new(), false, Vec::new());
    for bytes in bytes.chunks(piece) {
        let mut events = vec![Event::Bytes(bytes)];
        while let Some(event) = events.pop() {
            conn.handle(Time::START, event, &mut shared, &mut actions);
            for action in std::mem::take(&mut actions) {
                match action {
                    Action::Send(_, reply) => {
                        assert!(!ended, "a response after the end");
                        reply.head.get().write(&mut sent, &shared.wall.date, reply.connection, None, 1);
                        if let Body::Text(text) = reply.body {
                            sent.extend_from_slice(&text);
                        }
                        events.push(Event::Sent { all: true });
                    }
                    Action::Interim(text) => {
                        sent.extend_from_slice(&text);
                        events.push(Event::Sent { all: true });
                    }
                    Action::Disk(ticket, work) => {
                        assert!(matches!(work, Work::Name(_)));
                        let sites = Arc::clone(&shared.sites);
                        let answer = shared.caches.learn(Time::START, &work, Found::Absent, &sites);
                        events.push(Event::Disk(ticket, answer));
                    }
                    Action::App(..)
                    | Action::Revalidate(_)
                    | Action::Verify(..)
                    | Action::Piece(..)
                    | Action::PieceEnd(_)
                    | Action::Control(_)
                    | Action::Cancel(_)
                    | Action::Unanswered(_)
                    | Action::Log(_) => {
                        panic!("no application is configured")
                    }
                    Action::HalfClose => ended = true,
                    Action::Close => return (sent, true),
                }
            }
        }
    }
    (sent, ended)
}

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let whole = run(bytes, usize::MAX);
    // The split decides whether a client that expects a 100 has sent its body with the head, and so it decides the
    // response.
    if bytes.windows(4).any(|text| text.eq_ignore_ascii_case(b"100-")) {
        return;
    }
    assert_eq!(whole, run(bytes, 1));
    assert_eq!(whole, run(bytes, 13));
});
