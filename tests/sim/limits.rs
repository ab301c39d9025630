//! Limits on clients, each tested on both sides of its edge, and no deadline before its time.

use std::time::Duration;

use amped_core::cache::Budgets;
use amped_core::limits::Limits;
use amped_units::{Bytes, Time};

use crate::seed::{Dice, RngExt, each_seed};
use crate::world::{Link, World, site};

const GET: &str = "GET /a.html HTTP/1.1\r\nHost: a\r\n\r\n";

const GET_BIG: &str = "GET /big.bin HTTP/1.1\r\nHost: a\r\n\r\n";

fn world(dice: Dice, limits: Limits) -> World {
    let mut world = World::with(dice, vec![site()], limits, Budgets::default());
    world.files.replace(world.now, "/a.html", "hello");
    world.files.replace(world.now, "/big.bin", vec![1; 1_000_000]);
    world
}

/// Seconds until this connection is closed or has a response, whichever comes first.
fn seconds(from: Time, world: &World, n: usize) -> f64 {
    let session = &world.sessions[n];
    let until = session.closed.into_iter().chain(session.half_closed).min().expect("the connection is closed");
    until.since(from).as_secs_f64()
}

#[test]
fn slow_header_times_out() {
    each_seed(5, |dice| {
        let mut world = world(dice, Limits::default());
        let n = world.connect(Link::WHOLE, "");
        for byte in GET.repeat(3).as_bytes() {
            if world.sessions[n].half_closed.is_some() {
                break;
            }
            world.send(n, [*byte]);
            world.pass(Duration::from_secs(1));
        }
        assert_eq!(world.sessions[n].statuses(), [408]);
        assert_eq!(seconds(Time::START, &world, n), 20.0);
        world.pass_until_closed();
        assert_eq!(world.sessions[n].closed, Some(Time::from_millis(22_000)));
    });
}

#[test]
fn timeout_of_later_header_starts_at_its_first_byte() {
    each_seed(5, |mut dice| {
        let mut world = world(dice.clone(), Limits::default());
        let n = world.connect(Link::WHOLE, "");
        world.ask(n, GET);
        world.pass(Duration::from_millis(dice.random_range(0..59_999)));
        let from = world.now;
        world.send(n, "GET");
        world.pass_until_closed();
        assert_eq!(world.sessions[n].statuses(), [200, 408]);
        assert_eq!(seconds(from, &world, n), 20.0);
    });
}

#[test]
fn silent_connection_is_closed_without_response() {
    each_seed(5, |dice| {
        let mut world = world(dice, Limits::default());
        let silent = world.connect(Link::WHOLE, "");
        let idle = world.connect(Link::WHOLE, GET);
        world.pass_until_closed();
        assert_eq!(seconds(Time::START, &world, silent), 20.0);
        assert_eq!(seconds(Time::START, &world, idle), 60.0);
        assert!(world.sessions[silent].received.is_empty());
        assert_eq!(world.sessions[idle].statuses(), [200]);
    });
}

#[test]
fn slow_body_times_out() {
    each_seed(5, |dice| {
        let mut world = world(dice, Limits::default());
        let n = world.connect(Link::WHOLE, "PUT /a HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\n");
        for _ in 0..29 {
            world.pass(Duration::from_secs(1));
            world.send(n, "x");
        }
        world.pass_until_closed();
        assert_eq!(world.sessions[n].statuses(), [408]);
        // A byte is worth 2 ms.
        let seconds = seconds(Time::START, &world, n);
        assert!((30.0..30.1).contains(&seconds), "after {seconds} s");
    });
}

#[test]
fn stalled_receiver_times_out() {
    each_seed(5, |dice| {
        let mut world = world(dice, Limits::default());
        let n = world.connect(Link::WHOLE, GET);
        world.sessions[n].stalled = true;
        world.pass_until_closed();
        assert_eq!(seconds(Time::START, &world, n), 60.0);
        assert!(world.sessions[n].received.is_empty());
    });
}

#[test]
fn slow_but_steady_receiver_is_not_closed() {
    each_seed(2, |dice| {
        let mut world = world(dice, Limits::default());
        // 500 B/s are 30 kB a minute, in which this client takes at least a dozen parts of 5 kB on average.
        let link = Link { write_max: 10_000, pause_max: Duration::from_secs(5), ..Link::WHOLE };
        let n = world.connect(link, format!("GET /big.bin HTTP/1.1\r\nHost: a\r\n\r\n{GET}"));
        world.pass_until_closed();
        assert_eq!(world.sessions[n].statuses(), [200; 2]);
        assert!(seconds(Time::START, &world, n) > 300.0, "{:?}", world.now);
    });
}

#[test]
fn receiver_that_trickles_is_given_up() {
    each_seed(5, |dice| {
        let mut world = world(dice.clone(), Limits::default());
        let link = Link { write_max: 100, pause_max: Duration::from_secs(2), ..Link::WHOLE };
        let n = world.connect(link, GET_BIG);
        world.pass_until_closed();
        let time = seconds(Time::START, &world, n);
        assert!((60.0..180.0).contains(&time), "{time} s");
        assert!(world.sessions[n].received.len() < 1_000_000);
        let any_rate = Limits { min_send_rate: Bytes(0), ..Limits::default() };
        let mut patient = self::world(dice, any_rate);
        let n = patient.connect(link, GET_BIG);
        patient.pass(Duration::from_secs(3600));
        assert!(patient.sessions[n].closed.is_none());
    });
}

#[test]
fn connection_is_not_idle_while_its_client_receives_from_socket_buffer() {
    each_seed(2, |dice| {
        let closes_after = |rate: u64| {
            let mut world = world(dice.clone(), Limits::default());
            let n = world.connect(Link::WHOLE, GET_BIG);
            world.sessions[n].rate = Some(rate);
            world.pass_until_closed();
            let length = world.sessions[n].received.len() as f64;
            (seconds(Time::START, &world, n), length)
        };
        // 50 kbit/s: until the client has all of it, and the idle timeout has passed.
        let (time, length) = closes_after(6250);
        assert!(time >= length / 6250.0 && time <= length / 6250.0 + 121.0, "{time} s for {length} bytes");
        assert!(length / 6250.0 > 60.0, "{length} bytes are too few");
        let (time, _) = closes_after(1);
        assert!((60.0..=181.0).contains(&time), "{time} s");
    });
}

#[test]
fn slow_disk_does_not_time_out_client() {
    each_seed(5, |dice| {
        let mut world = world(dice, Limits::default());
        world.disk.late = 1.0;
        world.disk.delay_max = Duration::from_secs(59);
        let n = world.connect(Link::WHOLE, GET);
        world.pass(Duration::from_secs(59));
        assert_eq!(world.sessions[n].statuses(), [200]);
    });
}

#[test]
fn unresponsive_disk_times_out() {
    each_seed(5, |dice| {
        let mut world = world(dice, Limits { disk_timeout: Duration::from_secs(5), ..Limits::default() });
        world.disk.silent = true;
        let n = world.connect(Link::WHOLE, format!("{GET}{GET}"));
        world.pass(Duration::from_secs(11));
        assert_eq!(world.sessions[n].statuses(), [503, 503]);
    });
}

#[test]
fn size_limits_return_their_statuses() {
    let limits = Limits {
        max_request_line_bytes: Bytes(100),
        max_header_bytes: Bytes(300),
        max_header_fields: 5,
        max_body_bytes: Bytes(1000),
        ..Limits::default()
    };
    each_seed(5, |dice| {
        let check = |request: String, status: u16| {
            for read_max in [1, 10, usize::MAX] {
                let mut world = world(dice.clone(), limits.clone());
                let n = world.connect(Link { read_max, ..Link::WHOLE }, request.clone());
                world.settle();
                assert_eq!(world.sessions[n].statuses(), [status], "{request}, {read_max} bytes at a time");
                let ends = [400, 413, 414, 431].contains(&status);
                assert_eq!(world.sessions[n].half_closed.is_some(), ends, "{request}");
            }
        };
        // A request line of `line` bytes, a head of `head` bytes with `fields` fields.
        let request = |line: usize, head: usize, fields: usize| {
            let query = "x".repeat(line - "GET /a.html? HTTP/1.1\r\n".len());
            let fields = "A: b\r\n".repeat(fields - 2);
            let rest = format!("GET /a.html?{query} HTTP/1.1\r\nHost: a\r\n{fields}C: \r\n\r\n");
            let padding = "c".repeat(head - rest.len());
            rest.replace("C: ", &format!("C: {padding}"))
        };
        check(request(100, 200, 3), 200);
        check(request(101, 200, 3), 414);
        check(request(50, 300, 3), 200);
        check(request(50, 301, 3), 431);
        check(request(50, 200, 5), 200);
        check(request(50, 200, 6), 431);
        check(format!("GET /{}", "x".repeat(10_000)), 414);
        check(format!("GET / HTTP/1.1\r\nA: {}", "x".repeat(10_000)), 431);
        // The length limits apply whatever the line ends are.
        check(format!("GET /{}\n", "x".repeat(200)), 414);
        check(format!("GET / HTTP/1.1\r\nA: {}\n", "x".repeat(400)), 431);
        let post = |length: usize| {
            format!("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\n\r\n{}", "x".repeat(length))
        };
        check(post(1000), 405);
        check(post(1001), 413);
        let chunks = |count: usize| {
            let chunks = format!("64\r\n{}\r\n", "x".repeat(100)).repeat(count);
            format!("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n{chunks}0\r\n\r\n")
        };
        check(chunks(10), 405);
        check(chunks(11), 413);
    });
}

#[test]
fn connection_closes_after_max_requests() {
    each_seed(5, |dice| {
        let mut world = world(dice, Limits { max_requests: 3, ..Limits::default() });
        let n = world.connect(Link::WHOLE, GET.repeat(5));
        world.pass_until_closed();
        let session = &world.sessions[n];
        let closes: Vec<bool> = session.responses(&[false; 3]).iter().map(crate::client::Response::closes).collect();
        assert_eq!(closes, [false, false, true]);
    });
}

#[test]
fn blank_lines_do_not_postpone_idle_timeout() {
    each_seed(5, |dice| {
        for read_max in [1, usize::MAX] {
            let mut world = world(dice.clone(), Limits::default());
            let n = world.connect(Link { read_max, ..Link::WHOLE }, format!("{GET}\r\n\r\n"));
            world.pass_until_closed();
            assert_eq!(world.sessions[n].statuses(), [200]);
            assert_eq!(seconds(Time::START, &world, n), 60.0);
        }
    });
}

#[test]
fn timeout_of_first_header_starts_at_accept() {
    each_seed(5, |mut dice| {
        let mut world = world(dice.clone(), Limits::default());
        let n = world.connect(Link::WHOLE, "");
        world.pass(Duration::from_millis(dice.random_range(0..19_999)));
        world.send(n, "GET");
        world.settle();
        world.pass(Duration::from_secs(20));
        assert_eq!(world.sessions[n].statuses(), [408]);
        assert_eq!(seconds(Time::START, &world, n), 20.0);
    });
}

#[test]
fn header_may_exceed_read_ahead_buffer() {
    each_seed(2, |dice| {
        let limits = Limits { max_header_bytes: Bytes::kib(256), ..Limits::default() };
        let mut world = world(dice, limits);
        let cookie = "x".repeat(200_000);
        let n = world.connect(
            Link { read_max: 4096, ..Link::WHOLE },
            format!("GET /a.html HTTP/1.1\r\nHost: a\r\nCookie: {cookie}\r\n\r\n"),
        );
        world.settle();
        assert_eq!(world.sessions[n].statuses(), [200]);
    });
}

#[test]
fn refused_head_request_has_no_body() {
    each_seed(3, |dice| {
        for request in [
            "HEAD /a.html HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999\r\n\r\n",
            "HEAD /a.html HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n",
            "HEAD /a.html HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
            "HEAD /a.html HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\n",
            "HEAD /a.html HT",
            "HEAD /missing HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n",
        ] {
            let mut world = world(dice.clone(), Limits::default());
            let n = world.connect(Link::WHOLE, request);
            world.pass_until_closed();
            assert_eq!(world.sessions[n].responses(&[true]).len(), 1, "{request}");
        }
    });
}
