//! Applications: whatever an application does, and whenever, its client gets a response or can detect that it is
//! truncated, and so do the requests behind it.

use std::time::Duration;

use amped_core::app::AppTrouble;
use amped_core::auth::{Guard, Verdict};
use amped_core::cache::Budgets;
use amped_core::event::{Answer, Event};
use amped_core::glob::Glob;
use amped_core::limits::Limits;
use amped_core::site::{AppRule, CacheRule, HttpRule, Site};
use amped_units::{Bytes, Time};

use crate::application::{End, Play};
use crate::seed::{Dice, RngExt, each_seed, one_of};
use crate::world::{Link, World, site};

/// Maximum request body and maximum response of an application.
const BODY_MAX: usize = 90_000;
const OUTPUT_MAX: usize = 100_000;

/// Maximum request body that is discarded.
const DROPPED_MAX: u64 = 20_000;

/// A site with applications, some of which require authentication.
fn apps() -> Site {
    let (body, output) = (Bytes(BODY_MAX as u64), Some(Bytes(OUTPUT_MAX as u64)));
    let rule = |pattern| AppRule {
        when: None,
        pattern: Glob::new(pattern),
        timeout: Duration::from_secs(60),
        max_body_bytes: body,
        max_response_bytes: output,
        cache: None,
        compress: Vec::new(),
        http: None,
    };
    let kept = AppRule {
        cache: Some(CacheRule { lifetime: Duration::from_secs(10), ..CacheRule::default() }),
        ..rule("/kept")
    };
    let [idle_timeout, tunnel_timeout] = [60, 300].map(Duration::from_secs);
    let http = Some(HttpRule { idle_timeout, tunnel_timeout, ..HttpRule::default() });
    let tunnel = AppRule { http, ..rule("/tunnel") };
    let guard = Guard { directory: "/private/".into(), realm: "x".into(), accounts: 0, exempt: Vec::new() };
    Site { apps: vec![rule("/app"), rule("/private/app"), kept, tunnel], guards: vec![guard], ..site() }
}

fn world(dice: Dice) -> World {
    let limits = Limits { max_body_bytes: Bytes(DROPPED_MAX), ..Limits::default() };
    let mut world = World::with(dice, vec![apps()], limits, Budgets::default());
    world.files.replace(world.now, "/a.html", "a file");
    world
}

/// The field with the credentials that every guard accepts.
const PASS: &str = "Authorization: Basic YTpzZWNyZXQ=\r\n";

/// A request and its expected result.
#[derive(Clone, Debug)]
struct Wanted {
    bytes: Vec<u8>,
    head_only: bool,
    /// The response has one of these statuses.
    statuses: Vec<u16>,
    /// Its body is this, or a prefix of it if it is cut.
    body: Option<Vec<u8>>,
    is_cut: bool,
    /// It ends with the connection.
    until_close: bool,
    /// The connection may close after it: part of a body was not read, or will not be.
    may_end: bool,
    /// The script that it selects.
    play: Option<usize>,
    /// How often it is started; `None`: other requests select it too.
    begun: Option<usize>,
}

/// A script's head, the body after it, and the length that it announces.
fn answer(number: usize, length: Option<usize>, body: &[u8]) -> Vec<u8> {
    let length = length.map_or(String::new(), |length| format!("Content-Length: {length}\n"));
    [format!("Content-Type: a/b\nX-App: {number}\n{length}\n").as_bytes(), body].concat()
}

/// A request body: its framing fields, the bytes sent, and the data in them.
fn body(dice: &mut Dice, length: usize) -> (String, Vec<u8>, Vec<u8>) {
    let data: Vec<u8> = "GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n".bytes().cycle().take(length).collect();
    let expect = one_of(dice, &["", "", "Expect: 100-continue\r\n"]);
    if dice.random_bool(0.5) {
        return (format!("{expect}Content-Length: {length}\r\n"), data.clone(), data);
    }
    let mut chunked = Vec::new();
    for chunk in data.chunks(1 << dice.random_range(4..17)) {
        chunked.extend_from_slice(format!("{:x}\r\n", chunk.len()).as_bytes());
        chunked.extend_from_slice(chunk);
        chunked.extend_from_slice(b"\r\n");
    }
    chunked.extend_from_slice(b"0\r\n\r\n");
    (format!("{expect}Transfer-Encoding: chunked\r\n"), chunked, data)
}

/// A request for a file, sent after those for applications.
fn of_file() -> Wanted {
    Wanted {
        bytes: b"GET /a.html HTTP/1.1\r\nHost: a\r\n\r\n".to_vec(),
        head_only: false,
        statuses: vec![200],
        body: Some(b"a file".to_vec()),
        is_cut: false,
        until_close: false,
        may_end: false,
        play: None,
        begun: Some(0),
    }
}

/// A request to an application, with its script.
fn of_app(dice: &mut Dice, plays: &mut Vec<Play>) -> Wanted {
    let number = plays.len();
    let size = [0, 1, 100, 5_000, 40_000][dice.random_range(0..5)];
    let text: Vec<u8> = format!("part {number} ").bytes().cycle().take(size).collect();
    let has_body = dice.random_bool(0.5);
    let size = [0, 1, 300, 30_000, 80_000][dice.random_range(0..5)];
    let (fields, sent, data) = if has_body { body(dice, size) } else { (String::new(), Vec::new(), Vec::new()) };
    let is_old = dice.random_bool(0.05);
    let head_only = !has_body && dice.random_bool(0.1);
    let length = dice.random_bool(0.4).then_some(text.len());
    let pause_max = Duration::from_micros(dice.random_range(0..3_000));
    let mut play = Play { pause_max, ..Play::says(answer(number, length, &text)) };
    let mut wanted = Wanted { body: Some(text.clone()), play: Some(number), begun: Some(1), head_only, ..of_file() };
    let (mut pass, mut path) = ("", "/app");
    // As many bytes as precede the body of a response.
    let head = answer(number, length, b"").len();
    match dice.random_range(0..16) {
        0 => {
            play.refused = Some(
                [
                    AppTrouble::Busy,
                    AppTrouble::Restarting,
                    AppTrouble::Absent,
                    AppTrouble::Forbidden,
                    AppTrouble::Unreachable,
                ][dice.random_range(0..4)],
            );
            (wanted.statuses, wanted.body, wanted.may_end) = (vec![503, 404, 403, 502], None, has_body);
        }
        // It exits, or is killed, before its response is complete.
        1 => {
            let count = dice.random_range(0..play.says.len());
            play.says.truncate(count);
            play.end = [End::Whole, End::Dies, End::Stalls][dice.random_range(0..3)];
            (play.reads, wanted.may_end) = (dice.random_bool(0.5), has_body);
            if count < head {
                let status = if play.end == End::Stalls { 504 } else { 502 };
                (wanted.statuses, wanted.body) = (vec![status], None);
            } else if play.end == End::Whole && length.is_none() {
                // The truncation cannot be detected.
                wanted.body = Some(text[..count - head].to_vec());
            } else {
                wanted.is_cut = true;
            }
        }
        // It writes more than it announced, or something that is not a response.
        2 => {
            play.says = answer(number, Some(text.len()), &[&text[..], b" and more"].concat());
        }
        3 => {
            let bad =
                ["<html>\n\n", "\n", "Status: 99\n\n", "A: b\n c\n\n", "Location: /a b\n\n", "HTTP/1.1 200 OK\n\n"];
            play.says = one_of(dice, &bad).into();
            (wanted.statuses, wanted.body, wanted.may_end) = (vec![502], None, has_body);
        }
        // It reads none of the body.
        4 => {
            play.reads = false;
            wanted.may_end = has_body;
        }
        5 => {
            play.says = answer(number, None, b"");
            play.echoes = true;
            wanted.body = Some(data.clone());
        }
        // It requests a local redirect.
        6 => {
            play.says = b"Location: /a.html\n\nand more".to_vec();
            (wanted.body, wanted.may_end) = (Some(b"a file".to_vec()), has_body);
        }
        7 => {
            play.says = format!("Location: /app?{number}\n\n").into_bytes();
            (wanted.statuses, wanted.body, wanted.may_end, wanted.begun) = (vec![502], None, has_body, Some(11));
        }
        // It exceeds its output limit.
        8 => {
            let much = vec![b'm'; OUTPUT_MAX + 1];
            play.says = answer(number, None, &much);
            (wanted.body, wanted.is_cut) = (Some(much), true);
        }
        9 => {
            play.says = format!("Status: 204 None\nX-App: {number}\n\nnot for anybody").into_bytes();
            (wanted.statuses, wanted.body) = (vec![204], Some(Vec::new()));
        }
        10 if has_body => {
            let data = vec![b'b'; BODY_MAX + 1];
            let head = format!("POST /app?{number} HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n", data.len());
            plays.push(play);
            let bytes = [head.into_bytes(), data].concat();
            return Wanted { bytes, statuses: vec![413], body: None, may_end: true, begun: Some(0), ..wanted };
        }
        11 | 12 => (pass, path) = (PASS, "/private/app"),
        13 => {
            pass = one_of(dice, &["", "Authorization: Basic YTpi\r\n"]);
            path = "/private/app";
            (wanted.statuses, wanted.body, wanted.begun) = (vec![401], None, Some(0));
            wanted.may_end = data.len() as u64 > DROPPED_MAX || fields.contains("Expect");
        }
        _ => {}
    }
    if head_only {
        // Output after its head is dropped.
        wanted.is_cut = false;
        wanted.body = wanted.body.map(|_| Vec::new());
    }
    let method = if head_only { "HEAD" } else { one_of(dice, &["GET", "POST", "PUT"]) };
    let version = if is_old { "1.0" } else { "1.1" };
    // HTTP/1.0 has no chunks, and no 100 (Continue).
    let fields = if is_old && has_body { format!("Content-Length: {}\r\n", data.len()) } else { fields };
    let sent = if is_old { data } else { sent };
    wanted.may_end |= is_old;
    wanted.until_close = is_old;
    let head = format!("{method} {path}?{number} HTTP/{version}\r\nHost: a\r\n{pass}{fields}\r\n");
    wanted.bytes = [head.into_bytes(), sent].concat();
    plays.push(play);
    wanted
}

fn requests(dice: &mut Dice, plays: &mut Vec<Play>, count: usize) -> Vec<Wanted> {
    (0..count).map(|_| if dice.random_bool(0.3) { of_file() } else { of_app(dice, plays) }).collect()
}

/// Checks the responses of a connection. `left`: its client has closed its side after the last request.
fn check(world: &World, n: usize, requests: &[Wanted], left: bool) {
    let session = &world.sessions[n];
    let heads: Vec<bool> = requests.iter().map(|wanted| wanted.head_only).collect();
    let mut responses = session.responses(&heads);
    responses.retain(|response| response.status >= 200);
    for (at, (wanted, response)) in requests.iter().zip(&responses).enumerate() {
        let request = String::from_utf8_lossy(&wanted.bytes[..wanted.bytes.len().min(200)]).into_owned();
        let play = wanted.play.map(|number| &world.plays[number]);
        let shown = || format!("request {at} {request:?} of {play:?} got {} {:?}", response.status, response.fields);
        assert!(wanted.statuses.contains(&response.status), "{}", shown());
        let ends = response.field("Content-Length").is_none() && wanted.until_close && !wanted.head_only;
        if ends && response.status == 200 {
            assert!(session.broken || !wanted.is_cut || session.cut, "what is cut looks whole: {}", shown());
            assert!(!session.broken || wanted.is_cut || session.cut || left, "{}", shown());
        } else {
            let is_left = left && wanted.play.is_some();
            assert!(response.complete || wanted.is_cut || session.cut || is_left, "{}", shown());
        }
        assert!(!(response.complete && wanted.is_cut), "what is cut looks whole: {}", shown());
        if let Some(body) = &wanted.body {
            let is_whole = response.complete || (ends && !session.broken && !session.cut);
            let held = if is_whole { *body == response.body } else { body.starts_with(&response.body) };
            assert!(held, "{} bytes instead of {}: {}", response.body.len(), body.len(), shown());
        }
    }
    if session.cut {
        return;
    }
    if let Some(missing) = requests.get(responses.len()) {
        let last = responses.len().checked_sub(1).map(|at| (&requests[at], &responses[at]));
        // A reset may overtake the head of the response that it cuts.
        let is_end = (missing.is_cut && session.broken)
            || last.is_some_and(|(wanted, response)| wanted.may_end || response.closes() || !response.complete);
        let shown = last.map(|(wanted, response)| {
            (wanted.play.map(|number| &world.plays[number]), wanted.head_only, response.status, &response.fields)
        });
        // A client that closes its side while an application is running
        // counts as disconnected, even if it reads all of the output.
        let is_app = missing.play.is_some() || last.is_some_and(|(wanted, _)| wanted.play.is_some());
        assert!(is_end || (left && is_app), "no response to request {} after {shown:?}", responses.len());
    } else if !left {
        for wanted in requests {
            let Some(number) = wanted.play else { continue };
            let begun = world.begun.get(number).copied().unwrap_or_default();
            let expected = wanted.begun.unwrap_or(begun);
            assert_eq!(begun, expected, "{:?} for {:?}", world.plays[number], wanted.statuses);
        }
    }
}

/// Clients with random requests of all kinds.
fn muddle(dice: Dice, interrupted: bool) {
    let mut world = world(dice);
    let mut dice = world.dice.clone();
    world.disk.late = dice.random_range(0.0..1.0);
    let mut all = Vec::new();
    for _ in 0..4 {
        let mut plays = std::mem::take(&mut world.plays);
        let requests = requests(&mut dice, &mut plays, 12);
        world.plays = plays;
        all.push(requests);
    }
    play_out(world, dice, all, interrupted);
}

/// One client per list, until all connections are closed: all responses must be as expected.
fn play_out(mut world: World, mut dice: Dice, all: Vec<Vec<Wanted>>, interrupted: bool) {
    for requests in &all {
        let link = Link::random(&mut dice);
        let link = Link { read_max: link.read_max.max(64), write_max: link.write_max.max(1024), ..link };
        let bytes: Vec<u8> = requests.iter().flat_map(|wanted| wanted.bytes.iter().copied()).collect();
        let n = world.connect(link, bytes);
        world.sessions[n].half_closes = dice.random_bool(0.3);
    }
    if interrupted {
        interrupt(&mut world, &mut dice);
    }
    world.pass_until_closed();
    for (n, requests) in all.iter().enumerate() {
        check(&world, n, requests, world.sessions[n].half_closes);
    }
    assert!(world.makings.is_empty(), "requests wait for pages that no request generates: {:?}", world.makings);
}

/// A page that many clients request, and its expected result: cacheable, or from an application that fails in some way.
fn page(dice: &mut Dice, plays: &mut Vec<Play>) -> Wanted {
    let number = plays.len();
    let text: Vec<u8> = format!("page {number} ").bytes().cycle().take(dice.random_range(100..60_000)).collect();
    let length = dice.random_bool(0.5).then_some(text.len());
    let pause_max = Duration::from_micros(dice.random_range(0..3_000));
    let mut play = Play { pause_max, ..Play::says(answer(number, length, &text)) };
    let mut wanted = Wanted { body: Some(text), play: Some(number), begun: None, ..of_file() };
    let head = answer(number, length, b"").len();
    match dice.random_range(0..8) {
        0 => {
            play.refused = Some(AppTrouble::Busy);
            (wanted.statuses, wanted.body) = (vec![503], None);
        }
        // It exits, or is killed, before its response is complete.
        1 => {
            play.says.truncate(dice.random_range(0..head));
            play.end = [End::Whole, End::Dies, End::Stalls][dice.random_range(0..3)];
            (wanted.statuses, wanted.body) = (vec![if play.end == End::Stalls { 504 } else { 502 }], None);
        }
        2 => {
            play.says.truncate(dice.random_range(head..play.says.len()));
            play.end = [End::Dies, End::Stalls][dice.random_range(0..2)];
            wanted.is_cut = true;
        }
        3 => drop(play.says.splice(0..0, *b"Cache-Control: no-store\n")),
        _ => {}
    }
    plays.push(play);
    wanted
}

/// The page, requested by one of many clients.
fn asked_for(dice: &mut Dice, page: &Wanted) -> Wanted {
    let number = page.play.expect("an application's");
    // A response that may be private is generated for its client alone.
    let fields = one_of(dice, &["", "", "", "Cookie: a=b\r\n", PASS]);
    let head_only = dice.random_bool(0.1);
    let method = if head_only { "HEAD" } else { "GET" };
    let bytes = format!("{method} /kept?{number} HTTP/1.1\r\nHost: a\r\n{fields}\r\n").into_bytes();
    let body = if head_only { page.body.as_ref().map(|_| Vec::new()) } else { page.body.clone() };
    Wanted { bytes, head_only, body, is_cut: page.is_cut && !head_only, ..page.clone() }
}

/// Clients that request the same few pages at the same time.
fn crowd(dice: Dice, interrupted: bool) {
    let mut world = world(dice);
    let mut dice = world.dice.clone();
    let mut plays = Vec::new();
    let pages: Vec<Wanted> = (0..3).map(|_| page(&mut dice, &mut plays)).collect();
    world.plays = plays;
    let mut all = Vec::new();
    for _ in 0..6 {
        let request = |_| match dice.random_range(0..4) {
            3 => of_file(),
            which => asked_for(&mut dice, &pages[which]),
        };
        all.push((0..6).map(request).collect());
    }
    play_out(world, dice, all, interrupted);
}

#[test]
fn follower_of_page_gets_response_whatever_leader_does() {
    each_seed(60, |dice| crowd(dice, false));
}

#[test]
fn interrupted_requests_leave_no_follower_waiting() {
    each_seed(60, |dice| crowd(dice, true));
}

#[test]
fn concurrent_requests_share_one_application_request() {
    each_seed(20, |mut dice| {
        for (field, once) in [("", true), ("Cache-Control: no-store\n", false), ("Set-Cookie: a=b\n", false)] {
            let mut world = world(dice.clone());
            let text = vec![b'p'; dice.random_range(0..60_000)];
            let says = [field.as_bytes(), &answer(0, None, &text)].concat();
            world.plays = vec![Play { pause_max: Duration::from_millis(3), ..Play::says(says) }];
            let clients = 8;
            for _ in 0..clients {
                let link = Link { write_max: 1 << dice.random_range(10..18), ..Link::WHOLE };
                world.connect(link, "GET /kept?0 HTTP/1.1\r\nHost: a\r\n\r\n");
            }
            world.settle();
            for session in &world.sessions {
                let responses = session.responses(&[false]);
                assert_eq!((responses.len(), responses[0].status, responses[0].body == text), (1, 200, true));
            }
            assert_eq!(world.begun, [if once { 1 } else { clients }], "{field:?}");
        }
    });
}

#[test]
fn tunnel_passes_everything_in_both_directions() {
    let mut tunnels = 0;
    each_seed(60, |dice| {
        let mut world = world(dice);
        let mut dice = world.dice.clone();
        let mut all = Vec::new();
        for number in 0..3 {
            let pause_max = Duration::from_micros(dice.random_range(0..3_000));
            world.plays.push(Play { switches: true, echoes: true, pause_max, ..Play::says("welcome ") });
            let size = [0, 1, 5_000, 200_000][dice.random_range(0..4)];
            let data: Vec<u8> = (0..size).map(|_| dice.random_range(0..=255)).collect();
            let head = format!(
                "GET /tunnel?{number} HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
            );
            let link = Link::random(&mut dice);
            let link = Link { read_max: link.read_max.max(64), write_max: link.write_max.max(1024), ..link };
            let n = world.connect(link, [head.as_bytes(), &data].concat());
            world.sessions[n].half_closes = dice.random_bool(0.5);
            all.push(data);
        }
        world.pass_until_closed();
        for (session, data) in world.sessions.iter().zip(&all) {
            let text = &session.received;
            // A client that closes its side before the response counts as disconnected.
            if text.is_empty() && session.half_closes {
                continue;
            }
            tunnels += 1;
            let end = text.windows(4).position(|window| window == b"\r\n\r\n").expect("a head") + 4;
            let head = String::from_utf8_lossy(&text[..end]);
            assert!(head.starts_with("HTTP/1.1 101 ") && head.contains("\r\nX-App: tunnel\r\n"), "{head}");
            let (found, expected) = (&text[end..], [b"welcome ", &data[..]].concat());
            assert!(found == expected, "{} of {} bytes", found.len(), expected.len());
            assert!(!session.broken);
        }
    });
    assert!(tunnels > 60, "{tunnels}");
}

/// Events that may occur at any time: the server stops or is reconfigured, a client disconnects or stops reading.
fn interrupt(world: &mut World, dice: &mut Dice) {
    for n in 0..world.sessions.len() {
        let when = Time::from_millis(dice.random_range(0..300));
        match dice.random_range(0..6) {
            0 => world.at(when, move |world| world.stop(n)),
            1 => world.at(when, move |world| world.reset(n)),
            2 => world.at(when, move |world| {
                world.sessions[n].stalled = true;
                world.sessions[n].cut = true;
            }),
            3 => world.at(when, move |world| {
                if world.sessions[n].closed.is_none() {
                    world.handle(n, Event::Retire);
                    world.sessions[n].cut = true;
                }
            }),
            _ => {}
        }
    }
    for _ in 0..dice.random_range(0..3) {
        let when = Time::from_millis(dice.random_range(0..300));
        let limits = Limits { max_pipelined: dice.random_range(1..40), ..world.shared.limits.clone() };
        world.at(when, move |world| world.renew(vec![apps()], limits, Budgets::default()));
    }
}

#[test]
fn each_request_gets_its_response_whatever_applications_do() {
    each_seed(60, |dice| muddle(dice, false));
}

#[test]
fn interrupted_requests_leave_no_application_running() {
    each_seed(60, |dice| muddle(dice, true));
}

/// A client that sends one byte per second, to an application that
/// reads the body as it arrives or has sent part of its response.
#[test]
fn slow_body_for_application_times_out() {
    each_seed(10, |mut dice| {
        let mut world = world(dice.clone());
        world.plays = vec![Play { echoes: true, ..Play::says(answer(0, None, b"")) }];
        let n = world.connect(Link::WHOLE, "POST /app?0 HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\n\r\n");
        world.sessions[n].stalled = dice.random_bool(0.5);
        for _ in 0..200 {
            world.pass(Duration::from_secs(1));
            world.send(n, "x");
        }
        let session = &world.sessions[n];
        let closed = session.closed.or(session.half_closed).expect("closed").since(Time::START).as_secs_f64();
        assert!((30.0..32.5).contains(&closed), "after {closed} s");
        assert!(session.app.is_none());
    });
}

#[test]
fn body_at_minimum_rate_reaches_application() {
    each_seed(5, |dice| {
        let mut world = world(dice);
        world.plays = vec![Play { echoes: true, ..Play::says(answer(0, Some(60_000), b"")) }];
        let n = world.connect(Link::WHOLE, "POST /app?0 HTTP/1.1\r\nHost: a\r\nContent-Length: 60000\r\n\r\n");
        for _ in 0..120 {
            world.send(n, [b'x'; 500]);
            world.pass(Duration::from_secs(1));
        }
        assert_eq!(world.sessions[n].statuses(), [200]);
    });
}

/// The response arrives while the client is still sending, and the client has time to read it. The application has not
/// written anything: the driver passes a body of unknown length on only once it is complete.
#[test]
fn oversized_body_is_refused_and_drained() {
    each_seed(20, |mut dice| {
        let mut world = world(dice.clone());
        world.plays = vec![Play::says("")];
        let is_chunked = dice.random_bool(0.5);
        let head = match is_chunked {
            true => "POST /app?0 HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3e8\r\n".to_owned(),
            false => "POST /app?0 HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000\r\n\r\n".to_owned(),
        };
        let n = world.connect(Link::WHOLE, head);
        for _ in 0..15 {
            let chunk = [&[b'x'; 1000][..], if is_chunked { b"\r\n3e8\r\n" } else { b"" }].concat();
            world.send(n, chunk.repeat(30));
            world.pass(Duration::from_secs(1));
            assert!(world.sessions[n].closed.is_none(), "a reset");
        }
        assert_eq!(world.sessions[n].statuses(), [413]);
        assert_eq!(world.logged.len(), 1);
        assert!(world.logged[0].starts_with("/app: 413, the request body exceeds 90"), "{:?}", world.logged);
        let half_closed = world.sessions[n].half_closed.expect("the server has closed its side");
        // An endless body is not read forever.
        for _ in 0..40 {
            world.send(n, "x");
            world.pass(Duration::from_secs(1));
        }
        let lingered = world.sessions[n].closed.expect("the connection is closed").since(half_closed);
        assert_eq!(lingered, Duration::from_secs(30));
    });
}

/// This client wants only the head; an application that does not end after it is killed.
#[test]
fn application_stalled_after_header_keeps_connection_open() {
    each_seed(10, |dice| {
        let mut world = world(dice);
        world.plays = vec![Play { end: End::Stalls, ..Play::says(answer(0, None, b"")) }];
        let n = world.connect(Link::WHOLE, "");
        assert_eq!(world.ask(n, "HEAD /app?0 HTTP/1.1\r\nHost: a\r\n\r\n").status, 200);
        world.pass(Duration::from_secs(61));
        assert!(world.sessions[n].app.is_none() && world.sessions[n].closed.is_none());
        assert_eq!(world.ask(n, "GET /a.html HTTP/1.1\r\nHost: a\r\n\r\n").status, 200);
    });
}

/// The password is verified first, however long that takes: meanwhile
/// no more of the body is read than a client may send ahead.
#[test]
fn body_waits_for_authentication() {
    each_seed(10, |mut dice| {
        let mut world = world(dice.clone());
        world.disk.silent = true;
        world.plays = vec![Play { echoes: true, ..Play::says(answer(0, None, b"")) }];
        let data = vec![b'x'; 80_000];
        let head = format!(
            "POST /private/app?0 HTTP/1.1\r\nHost: a\r\n{PASS}Content-Length: {}\r\n{}\r\n",
            data.len(),
            one_of(&mut dice, &["", "Expect: 100-continue\r\n"])
        );
        let link = Link { read_max: 5_000, ..Link::WHOLE };
        let n = world.connect(link, [head.as_bytes(), &data, b"GET /a.html HTTP/1.1\r\nHost: a\r\n\r\n"].concat());
        world.settle();
        assert!(world.begun.is_empty() && world.sessions[n].received.is_empty(), "a start before authentication");
        assert!(!world.sessions[n].conn.wants_bytes() && world.sessions[n].heap_max < 160 * 1024);
        world.disk.silent = false;
        let good = dice.random_bool(0.5);
        world.handle(
            n,
            Event::Disk(world.disk.last_ticket, Answer::Verified(if good { Verdict::Good } else { Verdict::Wrong })),
        );
        world.settle();
        let mut responses = world.sessions[n].responses(&[false; 2]);
        responses.retain(|response| response.status >= 200);
        let statuses: Vec<u16> = responses.iter().map(|response| response.status).collect();
        if good {
            assert_eq!((&statuses[..], &responses[0].body), (&[200, 200][..], &data));
        } else {
            // Too long to discard: the connection closes, and no part of the body is parsed as a request.
            assert_eq!(statuses, [401]);
            assert!(responses[0].closes() && world.sessions[n].half_closed.is_some());
        }
        assert_eq!(world.begun.len(), usize::from(good));
    });
}
