//! A server's response to the load generator, in HTTP/1 and HTTP/2: never a panic; each request ends once; the result is the same however the
//! bytes are split. The first byte sets the length of the pieces.
#![no_main]

use std::cell::RefCell;

use ammeter_load::Version;
use ammeter_load::client::{Connection, Next, Plan};
use ammeter_load::tally::{Fault, Tally};
use ammeter_load::workload::{ContentCheck, Expect, Order, Request, Requests};
use amped_units::Time;

thread_local! {
    // Shared by all inputs: its histograms are large.
    static TALLY: RefCell<Tally> = RefCell::new(Tally::new(1));
}

fn counts(tally: &Tally) -> Vec<u64> {
    [tally.ok()].into_iter().chain(Fault::ALL.iter().map(|fault| tally.failed(*fault))).collect()
}

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let Some((length, bytes)) = bytes.split_first() else { return };
    let request = |head, expect| Request { target: b"/".as_slice().into(), head, expect, ..Request::default() };
    let content = Some(Expect { status: Some(200), length: Some(3), content: Some(ContentCheck(0)) });
    let table = vec![request(false, None), request(true, None), request(false, content)];
    let plan = |version| Plan::new(Requests::new(table.clone(), Order::Once), version, "host", "", 3, 3);
    let run = |plan: &Plan, length: usize, tally: &mut Tally| {
        tally.unsent = 0;
        let (mut connection, mut out, before) = (Connection::new(Time::START, plan), Vec::new(), counts(tally));
        assert_eq!(connection.ask(Time::START, 0, plan, &mut out), 3);
        let mut pieces = bytes.chunks(length);
        let is_over = pieces.any(|piece| connection.handle_bytes(Time::START, piece, plan, tally) == Next::Close);
        if !is_over {
            connection.handle_end(Time::START, plan, tally);
        }
        let found: Vec<u64> = counts(tally).iter().zip(before).map(|(now, before)| now - before).collect();
        // A graceful GOAWAY leaves those that it names.
        connection.count_unsent(3, tally);
        assert_eq!(found.iter().sum::<u64>() + tally.unsent, 3);
        found
    };
    TALLY.with_borrow_mut(|tally| {
        for plan in [plan(Version::Http11), plan(Version::Http2)] {
            let in_pieces = run(&plan, 1 + usize::from(*length), tally);
            assert_eq!(in_pieces, run(&plan, bytes.len().max(1), tally));
        }
    });
});
