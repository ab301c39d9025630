//! Random input: whatever bytes arrive, in whatever pieces, nothing
//! panics, and the connection ends with a response and a close.

use std::time::Duration;

use amped_core::cache::Budgets;
use amped_core::limits::Limits;
use amped_units::Bytes;
use proptest::prelude::*;
use rand::SeedableRng;

use crate::seed::Dice;
use crate::world::{Link, World, site};

/// All output for these bytes, read in pieces of at most `read_max`, if the client then sends no more.
fn replies(bytes: &[u8], limits: &Limits, read_max: usize, half_closes: bool) -> Vec<u8> {
    let mut world = World::with(Dice::seed_from_u64(1), vec![site()], limits.clone(), Budgets::default());
    world.files.directory(world.now, "");
    world.files.replace(world.now, "/index.html", "hello");
    let n = world.connect(Link { read_max, ..Link::WHOLE }, bytes);
    world.sessions[n].half_closes = half_closes;
    world.settle();
    // The same second for all timeouts.
    world.pass(Duration::from_secs(100));
    world.pass_until_closed();
    world.sessions.remove(n).received
}

/// Fragments of requests, so that random input gets past the first byte.
fn scraps() -> impl Strategy<Value = Vec<u8>> {
    let scrap = prop::sample::select(vec![
        "GET ",
        "HEAD ",
        "POST ",
        "OPTIONS ",
        "/",
        "*",
        "/index.html",
        "/%2e%2e/",
        "/a?b",
        "http://a/",
        " HTTP/1.1\r\n",
        " HTTP/1.0\r\n",
        " HTTP/1.2\r\n",
        "\r\n",
        "\r\n\r\n",
        "\r",
        "\n",
        "Host: a\r\n",
        "Host: a\r\n\r\n",
        "Content-Length: 5\r\n",
        "Content-Length: 0\r\n",
        "Transfer-Encoding: chunked\r\n",
        "5\r\nhello\r\n",
        "0\r\n\r\n",
        "hello",
        "Range: bytes=1-2\r\n",
        "Connection: close\r\n",
        "Connection: keep-alive\r\n",
        "If-None-Match: *\r\n",
        " ",
        "\t",
        "\0",
        "\u{e4}",
        "GET / HTTP/1.1\r\nHost: a\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: a\r\n",
    ]);
    prop::collection::vec(scrap, 0..30).prop_map(|scraps| scraps.concat().into_bytes())
}

fn check(bytes: &[u8], read_max: usize) -> Result<(), TestCaseError> {
    let tight = Limits {
        max_request_line_bytes: Bytes(60),
        max_header_bytes: Bytes(200),
        max_header_fields: 4,
        max_body_bytes: Bytes(20),
        max_requests: 5,
        max_pipelined: 2,
        ..Limits::default()
    };
    for limits in [Limits::default(), tight] {
        let whole = replies(bytes, &limits, usize::MAX, false);
        let pieces = replies(bytes, &limits, read_max, false);
        prop_assert_eq!(String::from_utf8_lossy(&whole), String::from_utf8_lossy(&pieces));
        let blank = bytes.chunks(2).all(|two| two == b"\r\n");
        prop_assert_eq!(whole.is_empty(), blank, "input and output must both be empty, or neither");
        replies(bytes, &limits, read_max, true);
    }
    Ok(())
}

proptest! {
    // A failing input is printed, and should become a test of its own.
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_bytes_do_not_panic(bytes: Vec<u8>, read_max in 1usize..20) {
        check(&bytes, read_max)?;
    }

    #[test]
    fn random_request_fragments_do_not_panic(bytes in scraps(), read_max in 1usize..40) {
        check(&bytes, read_max)?;
    }
}
