//! Pipelines: whatever the link, the disk and the caches do, each request gets its response, in order.

use std::time::Duration;

use amped_core::cache::Budgets;
use amped_core::limits::Limits;
use amped_units::{Bytes, Time};

use crate::client;
use crate::files::Files;
use crate::oracle::{self, Asked};
use crate::seed::{Dice, RngExt, each_seed};
use crate::world::{Link, World, site};

fn random_requests(dice: &mut Dice, files: &Files, count: usize, bad_end: bool) -> Vec<Asked> {
    let mut requests: Vec<Asked> = Vec::new();
    while requests.len() < count && !requests.last().is_some_and(|request| request.ends) {
        requests.push(match dice.random_bool(0.1) {
            true => Asked::other(dice),
            false => Asked::name(dice, files),
        });
    }
    if bad_end {
        requests.push(Asked::bad(dice));
    }
    requests
}

fn joined(requests: &[Asked]) -> Vec<u8> {
    requests.iter().flat_map(|request| request.bytes.iter().copied()).collect()
}

fn heads_only(requests: &[Asked]) -> Vec<bool> {
    requests.iter().map(|request| request.head_only).collect()
}

/// Checks all responses of a connection against the history of the files, allowing for entries of age `slack`.
fn check(world: &World, n: usize, requests: &[Asked], slack: Duration) {
    let session = &world.sessions[n];
    let responses = session.responses(&heads_only(requests));
    let answered = requests.iter().position(|request| request.ends).map_or(requests.len(), |last| last + 1);
    if session.cut {
        assert!(responses.len() <= answered && (session.closed.is_some() || session.half_closed.is_some()));
    } else {
        assert_eq!(responses.len(), answered, "one response for each request");
    }
    let mut end = 0;
    for (request, response) in requests.iter().zip(&responses) {
        end += request.bytes.len();
        assert!(response.complete || session.cut);
        // A malformed head may be rejected before its end has arrived.
        let asked_at = session.read_time(if request.ends { end - request.bytes.len() + 1 } else { end });
        let from = Time::from_nanos(asked_at.as_nanos().saturating_sub(slack.as_nanos() as u64));
        request.check(response, &world.files, from, session.arrival_time(response.end), world.disk.trouble > 0.0);
        if request.ends {
            assert!(response.closes(), "the last response has Connection: close");
            assert!(session.closed.is_some() || session.half_closed.is_some());
        }
    }
}

#[test]
fn segmentation_does_not_change_responses() {
    each_seed(20, |mut dice| {
        let mut files = Files::default();
        oracle::furnish(&mut dice.clone(), &mut files);
        let requests = random_requests(&mut dice.clone(), &files, 20, dice.random_bool(0.3));
        let mut all: Vec<Vec<u8>> = Vec::new();
        let random = Link::random(&mut dice);
        let bytewise = Link { read_max: 1, write_max: usize::MAX, pause_max: Duration::ZERO };
        let slow = Link { read_max: usize::MAX, write_max: 7, pause_max: Duration::ZERO };
        for link in [Link::WHOLE, bytewise, slow, Link { pause_max: Duration::ZERO, ..random }] {
            let mut world = World::new(dice.clone());
            oracle::furnish(&mut dice.clone(), &mut world.files);
            let n = world.connect(link, joined(&requests));
            world.settle();
            check(&world, n, &requests, Duration::ZERO);
            all.push(world.sessions.remove(n).received);
        }
        assert!(all.windows(2).all(|two| two[0] == two[1]), "segmentation changed the responses");
    });
}

#[test]
fn caches_do_not_change_responses() {
    each_seed(10, |mut dice| {
        let default = Budgets { revalidate: Duration::from_secs(3600), ..Budgets::default() };
        let none = Budgets {
            path_entries: 0,
            head_bytes: Bytes(0),
            content_bytes: Bytes(0),
            descriptors: 0,
            ..Budgets::default()
        };
        let tiny = Budgets {
            path_entries: 3,
            head_bytes: Bytes(700),
            content_bytes: Bytes(6000),
            descriptors: 1,
            ..Budgets::default()
        };
        let anew = Budgets { revalidate: Duration::ZERO, max_stale: Duration::ZERO, ..Budgets::default() };
        let mixed = Budgets { content_bytes: Bytes(0), descriptors: 0, ..default.clone() };
        let mut files = Files::default();
        let furniture = dice.clone();
        oracle::furnish(&mut furniture.clone(), &mut files);
        let requests: Vec<_> = (0..3).map(|_| random_requests(&mut dice, &files, 40, false)).collect();
        let mut all: Vec<Vec<Vec<u8>>> = Vec::new();
        for budgets in [default, none, tiny, anew, mixed] {
            let mut world = World::with(dice.clone(), vec![site()], Limits::default(), budgets);
            oracle::furnish(&mut furniture.clone(), &mut world.files);
            world.disk.late = 0.5;
            world.disk.delay_max = Duration::from_millis(1);
            let link = Link { pause_max: Duration::from_micros(10), ..Link::random(&mut dice) };
            for requests in &requests {
                world.connect(
                    Link { read_max: link.read_max.max(64), write_max: link.write_max.max(4096), ..link },
                    joined(requests),
                );
            }
            world.settle();
            for (n, requests) in requests.iter().enumerate() {
                check(&world, n, requests, Duration::ZERO);
            }
            assert!(world.now < Time::from_millis(1000), "the dates may differ");
            all.push(world.sessions.into_iter().map(|session| session.received).collect());
        }
        for (n, replies) in all.iter().enumerate().skip(1) {
            for (one, other) in all[0].iter().zip(replies) {
                let at = one.iter().zip(other).position(|(a, b)| a != b).unwrap_or(one.len().min(other.len()));
                let around = |bytes: &[u8]| client::text(&bytes[at.saturating_sub(200)..]);
                assert!(one == other, "budgets {n} changed byte {at}: {} became {}", around(one), around(other));
            }
        }
    });
}

/// Clients, changing files, and a slow disk that shares results, all at random.
fn muddle(dice: Dice, budgets: Budgets, shares: bool, trouble: f64, slack: Duration, interrupted: bool) {
    let mut world = World::with(dice, vec![site()], Limits::default(), budgets);
    let mut dice = world.dice.clone();
    oracle::furnish(&mut dice, &mut world.files);
    world.disk.late = dice.random_range(0.0..1.0);
    world.disk.shares = shares;
    world.disk.trouble = trouble;
    let mut all = Vec::new();
    for _ in 0..4 {
        let bad_end = dice.random_bool(0.2);
        let requests = random_requests(&mut dice, &world.files, 40, bad_end);
        let link = Link::random(&mut dice);
        let link = Link { read_max: link.read_max.max(16), write_max: link.write_max.max(4096), ..link };
        let n = world.connect(link, joined(&requests));
        world.sessions[n].half_closes = dice.random_bool(0.5);
        all.push(requests);
    }
    if interrupted {
        interrupt(&mut world, &mut dice);
    }
    for _ in 0..60 {
        let when = Time::from_millis(dice.random_range(0..3000));
        let mut dice = dice.clone();
        dice = <Dice as rand::SeedableRng>::seed_from_u64(dice.random::<u64>() ^ when.as_nanos());
        world.at(when, move |world| oracle::disturb(&mut dice, &mut world.files, world.now));
    }
    world.settle();
    for (n, requests) in all.iter().enumerate() {
        check(&world, n, requests, slack);
        if world.sessions[n].half_closes {
            assert!(world.sessions[n].closed.is_some(), "the connection is still open");
        }
    }
    world.pass_until_closed();
}

/// Events that may occur at any time: the server stops or is reconfigured, a client disconnects.
fn interrupt(world: &mut World, dice: &mut Dice) {
    for n in 0..world.sessions.len() {
        let when = Time::from_millis(dice.random_range(0..3000));
        match dice.random_range(0..4) {
            0 => world.at(when, move |world| world.stop(n)),
            1 => world.at(when, move |world| world.reset(n)),
            _ => {}
        }
    }
    for _ in 0..dice.random_range(0..4) {
        let when = Time::from_millis(dice.random_range(0..3000));
        let budgets = match dice.random_bool(0.5) {
            true => world.shared.caches.budgets.clone(),
            false => Budgets { path_entries: dice.random_range(0..8), ..world.shared.caches.budgets.clone() },
        };
        let limits = Limits { max_pipelined: dice.random_range(1..40), ..Limits::default() };
        world.at(when, move |world| world.renew(vec![site()], limits, budgets));
    }
}

#[test]
fn uncached_response_matches_file_during_request() {
    // Entries are always revalidated, so a response must not reflect any state from before its request.
    let budgets = Budgets { revalidate: Duration::ZERO, max_stale: Duration::ZERO, ..Budgets::default() };
    each_seed(40, |dice| muddle(dice, budgets.clone(), false, 0.0, Duration::ZERO, false));
}

#[test]
fn cached_response_is_at_most_max_stale_old() {
    // By the age of an entry, and by the time between a helper's lookup and its result, twice: once for the entry, and
    // once for a lookup that was already in progress.
    each_seed(40, |dice| {
        let budgets = Budgets {
            revalidate: Duration::from_millis(30),
            max_stale: Duration::from_millis(100),
            path_entries: 4,
            content_bytes: Bytes(40_000),
            descriptors: 1,
            ..Budgets::default()
        };
        muddle(dice, budgets, true, 0.0, Duration::from_millis(100 + 2 * 20), false);
    });
}

#[test]
fn disk_errors_return_error_statuses() {
    let budgets = Budgets { revalidate: Duration::from_millis(5), ..Budgets::default() };
    let slack = Duration::from_secs(10) + Duration::from_millis(40);
    each_seed(15, |dice| muddle(dice, budgets.clone(), true, 0.2, slack, false));
}

#[test]
fn interruptions_corrupt_no_response() {
    let budgets = Budgets { revalidate: Duration::ZERO, max_stale: Duration::ZERO, ..Budgets::default() };
    each_seed(30, |dice| muddle(dice, budgets.clone(), false, 0.0, Duration::ZERO, true));
}

#[test]
fn pipelining_client_is_throttled() {
    each_seed(1, |dice| {
        let mut world = World::new(dice);
        world.files.replace(world.now, "/a.html", "hello");
        let request = "GET /a.html HTTP/1.1\r\nHost: a\r\n\r\n";
        let count = 5_000;
        let link = Link { read_max: 4096, ..Link::WHOLE };
        let n = world.connect(link, request.repeat(count));
        world.sessions[n].stalled = true;
        world.pass(Duration::from_secs(1));
        assert!(!world.sessions[n].conn.wants_bytes(), "the server keeps reading although the client reads nothing");
        world.sessions[n].stalled = false;
        world.settle();
        assert_eq!(world.sessions[n].responses(&vec![false; count]).len(), count);
        assert!(world.sessions[n].heap_max < 160 * 1024);
    });
}

#[test]
fn batch_stops_at_max_pipelined_and_resumes() {
    each_seed(3, |dice| {
        let limits = Limits { max_pipelined: 3, ..Limits::default() };
        let mut world = World::with(dice, vec![site()], limits, Budgets::default());
        world.files.replace(world.now, "/a.html", "hello");
        let n = world.connect(Link::WHOLE, "GET /a.html HTTP/1.1\r\nHost: a\r\n\r\n".repeat(10));
        world.sessions[n].stalled = true;
        world.pass(Duration::from_millis(1));
        assert_eq!(world.shared.counts.requests, 3);
        world.sessions[n].stalled = false;
        world.settle();
        assert_eq!(world.sessions[n].statuses(), [200; 10]);
    });
}

#[test]
fn large_response_is_sent_before_next_request_is_handled() {
    each_seed(3, |dice| {
        let mut world = World::new(dice);
        world.files.replace(world.now, "/big.bin", vec![7; 100_000]);
        let n = world.connect(Link::WHOLE, "GET /big.bin HTTP/1.1\r\nHost: a\r\n\r\n".repeat(5));
        world.sessions[n].stalled = true;
        world.pass(Duration::from_millis(1));
        assert_eq!(world.shared.counts.requests, 1);
        world.sessions[n].stalled = false;
        world.settle();
        assert_eq!(world.sessions[n].statuses(), [200; 5]);
    });
}
