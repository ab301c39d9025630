//! Endings: Connection: close, half closes, shutdown, reconfiguration, unwanted bodies.

use std::time::Duration;

use amped_core::cache::Budgets;
use amped_core::event::{Delay, Event, Found};
use amped_core::glob::Glob;
use amped_core::http1::Conn;
use amped_core::limits::Limits;
use amped_core::site::{AppRule, Site};
use amped_units::{Bytes, Time};

use crate::seed::{RngExt, each_seed};
use crate::world::{Link, World, site};

const GET: &str = "GET /a.html HTTP/1.1\r\nHost: a\r\n\r\n";

#[test]
fn connection_closes_on_connection_close() {
    each_seed(5, |dice| {
        let check = |request: &str, stays: bool, says: Option<&str>| {
            let mut world = World::new(dice.clone());
            world.files.replace(world.now, "/a.html", "hello");
            let n = world.connect(Link::WHOLE, format!("{request}{}", if stays { "" } else { GET }));
            world.settle();
            let session = &world.sessions[n];
            let responses = session.responses(&[false; 2]);
            assert_eq!(responses.len(), 1, "{request}");
            assert_eq!(session.closed.is_none() && session.half_closed.is_none(), stays, "{request}");
            assert_eq!(responses[0].field("Connection"), says, "{request}");
        };
        check("GET /a.html HTTP/1.1\r\nHost: a\r\n\r\n", true, None);
        check("GET /a.html HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n", false, Some("close"));
        check("GET /a.html HTTP/1.1\r\nHost: a\r\nConnection: x, CLOSE\r\n\r\n", false, Some("close"));
        check("GET /a.html HTTP/1.0\r\n\r\n", false, Some("close"));
        check("GET /a.html HTTP/1.0\r\nConnection: Keep-Alive\r\n\r\n", true, Some("keep-alive"));
        check("GET /a.html HTTP/1.0\r\nConnection: keep-alive, close\r\n\r\n", false, Some("close"));
    });
}

#[test]
fn bytes_after_last_request_do_not_affect_responses() {
    each_seed(20, |mut dice| {
        for request in
            ["GET /big.bin HTTP/1.0\r\n\r\n", "GET /big.bin HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"]
        {
            let mut world = World::new(dice.clone());
            world.files.replace(world.now, "/big.bin", vec![1; 300_000]);
            // At once, or during the response: closing with unread bytes would be a reset (RFC 9112, 9.6).
            let at_once = dice.random_bool(0.5);
            let n = world.connect(Link::WHOLE, if at_once { format!("{request}{GET}") } else { request.to_owned() });
            if !at_once {
                world.pass(Duration::from_nanos(0));
                world.sessions[n].upload.extend_from_slice(GET.as_bytes());
            }
            world.settle();
            let session = &world.sessions[n];
            assert_eq!(session.statuses(), [200]);
            assert!(!at_once || session.half_closed.is_some(), "the server has not closed its side");
            // A client that sends nothing more costs no second call.
            let n = world.connect(Link::WHOLE, request);
            world.settle();
            let session = &world.sessions[n];
            assert!(session.half_closed.is_none() && session.closed.is_some());
        }
    });
}

#[test]
fn late_disk_results_of_dropped_connection_are_ignored() {
    each_seed(20, |mut dice| {
        let mut world = World::new(dice.clone());
        world.files.replace(world.now, "/a.html", "hello");
        world.disk.late = 1.0;
        let n = world.connect(Link::WHOLE, GET);
        world.pass(Duration::from_nanos(0));
        // The driver found the connection broken, and drops it; results with its tickets still arrive.
        let now = world.now;
        world.sessions[n].conn = Conn::new(now, false);
        world.sessions[n].closed = Some(now);
        world.settle();
        assert!(world.sessions[n].received.is_empty());
        let other = world.connect(Link::WHOLE, GET);
        world.disk.late = dice.random_range(0.0..1.0);
        world.settle();
        assert_eq!(world.sessions[other].statuses(), [200], "the result was not cached for others");
        let ticket = amped_core::event::Ticket(7);
        let work = world.disk.asked[0].clone();
        let sites = std::sync::Arc::clone(&world.shared.sites);
        let answer = world.shared.caches.learn(now, &work, Found::Absent, &sites);
        world.handle(other, Event::Disk(ticket, answer));
        world.handle(other, Event::Late(ticket, Delay::Disk));
        world.settle();
        assert_eq!(world.sessions[other].statuses(), [200], "a result without a request has an effect");
    });
}

#[test]
fn stopping_server_completes_active_responses() {
    each_seed(100, |mut dice| {
        let mut world = World::new(dice.clone());
        world.files.replace(world.now, "/a.html", "hello");
        world.files.replace(world.now, "/big.bin", vec![1; 90_000]);
        world.disk.late = 0.5;
        let big = "GET /big.bin HTTP/1.1\r\nHost: a\r\n\r\n";
        let post = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 30\r\n\r\n123456789012345678901234567890";
        let upload: String = (0..30).map(|_| [GET, big, post][dice.random_range(0..3)]).collect();
        let link = Link { read_max: 500, write_max: 30_000, pause_max: Duration::from_millis(1) };
        let n = world.connect(link, upload);
        let when = world.now + Duration::from_micros(dice.random_range(0..80_000));
        world.at(when, move |world| {
            let begun = world.shared.counts.requests;
            world.handle(n, Event::Finish);
            world.at(when + Duration::from_secs(100), move |world| {
                let replies = world.sessions[n].statuses().len() as u64;
                assert!((begun..=begun + 1).contains(&replies), "{begun} requests had begun, {replies} have responses");
                assert!(world.sessions[n].closed.is_some());
            });
        });
        world.pass_until_closed();
        assert!(world.sessions[n].responses(&[false; 30]).iter().all(|response| response.complete));
    });
}

#[test]
fn stop_closes_idle_connection() {
    each_seed(3, |dice| {
        let mut world = World::new(dice);
        let n = world.connect(Link::WHOLE, "");
        world.handle(n, Event::Finish);
        assert!(world.sessions[n].closed.is_some());
    });
}

#[test]
fn stop_answers_new_connections_and_partial_requests() {
    each_seed(3, |dice| {
        let mut world = World::new(dice);
        world.files.replace(world.now, "/a.html", "hello");
        let [idle, begun, new, silent] = [(); 4].map(|()| world.connect(Link::WHOLE, ""));
        world.send(idle, GET);
        world.send(begun, [GET, &GET[..9]].concat());
        world.settle();
        for n in [idle, begun, new, silent] {
            world.handle(n, Event::Retire);
        }
        let is_closed = |world: &World, n: usize| world.sessions[n].closed.is_some();
        assert_eq!([idle, begun, new, silent].map(|n| is_closed(&world, n)), [true, false, false, false]);
        world.send(begun, &GET[9..]);
        world.send(new, GET);
        let now = world.now;
        world.at(now + Duration::from_millis(900), move |world| assert!(!is_closed(world, silent), "early"));
        world.at(now + Duration::from_millis(1200), move |world| assert!(is_closed(world, silent), "late"));
        world.pass_until_closed();
        for (n, replies) in [(idle, 1), (begun, 2), (new, 1), (silent, 0)] {
            assert_eq!(world.sessions[n].statuses(), vec![200; replies]);
            assert!(is_closed(&world, n));
        }
    });
}

#[test]
fn drained_connection_is_closed_after_next_response() {
    each_seed(3, |dice| {
        let mut world = World::new(dice);
        world.files.replace(world.now, "/a.html", "hello");
        let [idle, begun, new] = [(); 3].map(|()| world.connect(Link::WHOLE, ""));
        world.send(idle, GET);
        world.send(begun, [GET, &GET[..9]].concat());
        world.settle();
        world.shared.is_draining = true;
        for n in [idle, begun, new] {
            world.handle(n, Event::Drain);
            assert!(world.sessions[n].closed.is_none());
        }
        world.send(begun, &GET[9..]);
        world.send(new, GET);
        let now = world.now;
        world.at(now + Duration::from_secs(2), move |world| {
            assert!(world.sessions[idle].closed.is_none());
            world.send(idle, GET);
        });
        world.pass_until_closed();
        for (n, replies) in [(idle, 2), (begun, 2), (new, 1)] {
            assert_eq!(world.sessions[n].statuses(), vec![200; replies]);
        }
    });
}

#[test]
fn expect_100_continue_gets_100() {
    each_seed(10, |dice| {
        let mut world = World::new(dice);
        world.files.replace(world.now, "/a.html", "hello");
        let n = world.connect(Link::WHOLE, "");
        world.send(n, "GET /a.html HTTP/1.1\r\nHost: a\r\nExpect: 100-Continue\r\nContent-Length: 5\r\n\r\n");
        world.settle();
        assert_eq!(world.sessions[n].statuses(), [100]);
        world.send(n, "12345");
        world.settle();
        assert_eq!(world.sessions[n].statuses(), [100, 200]);
        // If the body has arrived already, no 100 (Continue) is needed.
        world.send(n, "GET /a.html HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n12345");
        world.settle();
        assert_eq!(world.sessions[n].statuses(), [100, 200, 200]);
        assert_eq!(world.sessions[n].conn.heap_bytes(), 0);
    });
}

#[test]
fn half_closed_connection_gets_pending_responses() {
    each_seed(50, |mut dice| {
        let mut world = World::new(dice.clone());
        world.files.replace(world.now, "/a.html", "hello");
        world.files.replace(world.now, "/big.bin", vec![1; 90_000]);
        world.disk.late = 0.5;
        let big = "GET /big.bin HTTP/1.1\r\nHost: a\r\n\r\n";
        // A client that cut its request short does not want the response.
        let rest =
            ["", "GET /a.h", "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\n123"][dice.random_range(0..3)];
        let link = Link { write_max: 30_000, pause_max: Duration::from_millis(1), ..Link::WHOLE };
        let n = world.connect(link, format!("{GET}{big}{GET}{rest}"));
        world.sessions[n].half_closes = true;
        world.settle();
        assert_eq!(world.sessions[n].statuses(), [200; 3], "before {rest:?}");
        assert!(world.sessions[n].closed.is_some());
    });
}

/// Whether a body follows an error response is unknown, so following bytes must never be parsed as a request.
#[test]
fn request_refused_before_body_gets_one_response() {
    each_seed(20, |mut dice| {
        let page = Site { error_pages: vec![(405..=405, "/405.html".into())], ..site() };
        for site in [site(), page] {
            let mut world = World::with(dice.clone(), vec![site], Limits::default(), Budgets::default());
            world.files.replace(world.now, "/405.html", "no");
            world.disk.late = dice.random_range(0.0..1.0);
            let n = world.connect(Link::WHOLE, "");
            let length = GET.len();
            world.send(
                n,
                format!("POST /a HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: {length}\r\n\r\n"),
            );
            world.settle();
            world.send(n, GET);
            world.settle();
            let session = &world.sessions[n];
            assert_eq!(session.statuses(), [405]);
            assert!(session.half_closed.is_some(), "the server does not discard further data");
            assert!(session.responses(&[false])[0].closes());
            world.pass_until_closed();
        }
    });
}

#[test]
fn connection_closed_by_server_is_drained() {
    // RFC 9112, 9.6: closing while the client is still sending resets the connection, and may lose the last response.
    each_seed(5, |dice| {
        let limits = Limits { max_requests: 2, ..Limits::default() };
        let mut world = World::with(dice, vec![site()], limits, Budgets::default());
        world.files.replace(world.now, "/a.html", "hello");
        let n = world.connect(Link { read_max: 50, ..Link::WHOLE }, GET.repeat(10));
        world.settle();
        let session = &world.sessions[n];
        assert_eq!(session.statuses(), [200; 2]);
        assert!(session.half_closed.is_some() && session.closed.is_none(), "the server does not drain the connection");
        world.pass(Duration::from_secs(2));
        assert!(world.sessions[n].closed.is_some());
    });
}

#[test]
fn reload_applies_from_next_response() {
    let named = |host: &str, kind: &str| {
        let mut site = Site { hosts: vec![host.into()], ..site() };
        site.types.overrides.push(("html".into(), kind.into()));
        site
    };
    each_seed(100, |mut dice| {
        let old = vec![named("a", "text/old"), named("b", "text/b-old")];
        let new = vec![named("b", "text/b-new"), named("a", "text/new")];
        let mut world = World::with(dice.clone(), old, Limits::default(), Budgets::default());
        for path in ["/a/x.html", "/b/x.html"] {
            world.files.replace(world.now, path, path);
        }
        world.disk.late = 0.7;
        let get = "GET /x.html HTTP/1.1\r\nHost: a\r\n\r\n";
        let link = Link { read_max: 200, pause_max: Duration::from_millis(5), ..Link::WHOLE };
        for _ in 0..5 {
            world.connect(link, get.repeat(20));
        }
        let when = world.now + Duration::from_micros(dice.random_range(0..60_000));
        world.at(when, move |world| world.renew(new, Limits::default(), Budgets::default()));
        world.settle();
        let mut all = Vec::new();
        for session in &world.sessions {
            for response in session.responses(&[false; 20]) {
                assert_eq!(
                    (response.status, response.body.as_slice()),
                    (200, &b"/a/x.html"[..]),
                    "another site's file"
                );
                let kind = response.field("Content-Type").expect("a type").to_owned();
                all.push((session.arrival_time(response.end), kind));
            }
        }
        for (time, kind) in all {
            let expected = if time < when { "text/old; charset=utf-8" } else { "text/new; charset=utf-8" };
            assert!(kind == expected || time == when, "at {time:?} {kind}, renewed at {when:?}");
        }
    });
}

#[test]
fn reload_during_request_body_resolves_target_again() {
    let rule = AppRule {
        when: None,
        pattern: Glob::new("/app"),
        timeout: Duration::from_secs(60),
        max_body_bytes: Bytes(100),
        max_response_bytes: None,
        cache: None,
        compress: Vec::new(),
        http: None,
    };
    let named = |host: &str, apps: &[AppRule]| Site { hosts: vec![host.into()], apps: apps.into(), ..site() };
    each_seed(1, |dice| {
        // A site with applications plans the request before its body is read.
        for apps in [vec![], vec![rule.clone()]] {
            let sites = |hosts: [&str; 2]| hosts.map(|host| named(host, &apps)).into();
            let mut world = World::with(dice.clone(), sites(["a", "b"]), Limits::default(), Budgets::default());
            for path in ["/a/x.html", "/b/x.html"] {
                world.files.replace(world.now, path, path);
            }
            let head = "GET /x.html HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n";
            let n = world.connect(Link::WHOLE, [head, "x"].concat());
            world.settle();
            world.renew(sites(["b", "a"]), Limits::default(), Budgets::default());
            world.send(n, "y");
            world.settle();
            let response = world.sessions[n].responses(&[false]).remove(0);
            assert_eq!((response.status, response.body.as_slice()), (200, &b"/a/x.html"[..]), "{apps:?}");
        }
    });
}

#[test]
fn new_connection_has_longer_for_tls_handshake() {
    let now = Time::from_millis(5_000);
    for (is_secure, seconds) in [(false, 1), (true, 4)] {
        let conn = Conn::new(now, is_secure);
        let time = Duration::from_secs(seconds);
        assert!(!conn.may_give_way(now + (time - Duration::from_millis(1))), "TLS: {is_secure}");
        assert!(conn.may_give_way(now + time), "TLS: {is_secure}");
    }
}
