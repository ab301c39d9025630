//! Freshness: how long results of disk lookups are used, and what happens during revalidation.

use std::time::Duration;

use amped_core::cache::Budgets;
use amped_core::compress::{CompressWork, Compressed, Encoded};
use amped_core::event::{Answer, Delay, Event, Trouble, Work};
use amped_core::file::{FileHandle, Stored};
use amped_core::glob::Glob;
use amped_core::headers::HeaderRule;
use amped_core::limits::Limits;
use amped_core::site::Site;
use amped_http::negotiate::Coding;
use amped_units::Bytes;

use crate::seed::{Dice, RngExt, each_seed};
use crate::world::{Link, World, site};

const GET: &str = "GET /a.html HTTP/1.1\r\nHost: a\r\n\r\n";

/// A world with one file, which revalidates after one second and serves stale entries up to ten.
fn world(dice: Dice) -> World {
    let mut world = World::new(dice);
    world.files.replace(world.now, "/a.html", "old");
    world
}

#[test]
fn change_is_visible_after_revalidation() {
    each_seed(10, |mut dice| {
        for in_place in [false, true] {
            for size in [3, 100_000] {
                let mut world = world(dice.clone());
                let n = world.connect(Link::WHOLE, "");
                world.ask(n, GET);
                let text = vec![b'n'; size];
                match in_place {
                    true => world.files.change(world.now, "/a.html", |_| text.clone().into()),
                    false => world.files.replace(world.now, "/a.html", text.clone()),
                }
                world.pass(Duration::from_millis(dice.random_range(0..999)));
                assert_eq!(world.ask(n, GET).body, b"old", "an entry is used for a second");
                world.pass(Duration::from_secs(1));
                assert_eq!(world.ask(n, GET).body, text);
            }
        }
    });
}

/// Files are compressed late, some of them after they have changed.
#[test]
fn compressed_form_is_never_that_of_another_state() {
    let encode = |letter: u8| [b'z', letter];
    let mut coded = 0;
    each_seed(30, |mut dice| {
        let mut world = World::new(dice.clone());
        let compressing = Site { compress: vec![Coding::Gzip], ..site() };
        world.renew(vec![compressing], Limits::default(), Budgets::default());
        let size = if dice.random_bool(0.5) { 1500 } else { 100_000 };
        // The current state, and when each earlier one ended.
        let (mut letter, mut past) = (b'a', Vec::new());
        world.files.replace(world.now, "/a.html", vec![letter; size]);
        let n = world.connect(Link::WHOLE, "");
        let mut waiting = Vec::new();
        for _ in 0..100 {
            if letter < b'z' && dice.random_bool(0.2) {
                past.push((letter, world.now));
                letter += 1;
                let text = vec![letter; size];
                match dice.random_bool(0.5) {
                    true => world.files.change(world.now, "/a.html", |_| text.into()),
                    false => world.files.replace(world.now, "/a.html", text),
                }
            }
            let asked = world.now;
            let response = world.ask(n, "GET /a.html HTTP/1.1\r\nHost: a\r\nAccept-Encoding: gzip\r\n\r\n");
            // An entry is used for a second.
            let recent = past.iter().filter(|(_, ended)| asked.since(*ended) < Duration::from_secs(1));
            let states: Vec<u8> = recent.map(|(letter, _)| *letter).chain([letter]).collect();
            match response.field("Content-Encoding") {
                Some(_) => assert!(states.iter().any(|state| response.body == encode(*state)), "{states:?}"),
                None => assert!(states.iter().any(|state| response.body == vec![*state; size]), "{states:?}"),
            }
            coded += usize::from(response.field("Content-Encoding").is_some());
            waiting.append(&mut world.shared.caches.compressions);
            if !waiting.is_empty() && dice.random_bool(0.5) {
                let CompressWork { content, coding } = waiting.swap_remove(dice.random_range(0..waiting.len()));
                let first = match &content.store {
                    Stored::Memory(bytes) => Some(bytes[0]),
                    // As the thread does: the file may have changed in place.
                    Stored::File(file) => {
                        file.read(0..1).map(|byte| byte[0]).filter(|_| file.has_bytes_of(&content.version))
                    }
                };
                let made = |first| Encoded::new(&content.version, coding, encode(first).into());
                let result = first.map_or(Compressed::Failed, |first| Compressed::Encoded(made(first)));
                world.shared.caches.learn_encoding(&content.version, coding, result);
            }
            world.pass(Duration::from_millis(dice.random_range(0..700)));
        }
    });
    assert!(coded > 300, "{coded} responses");
}

#[test]
fn unchanged_file_is_not_reread() {
    each_seed(3, |dice| {
        let mut world = world(dice);
        let n = world.connect(Link::WHOLE, "");
        for _ in 0..20 {
            assert_eq!(world.ask(n, GET).body, b"old");
            world.pass(Duration::from_millis(1500));
        }
        let memory = world.shared.caches.figures().bodies;
        assert_eq!((memory.insertions, world.disk.asked.len()), (1, 20));
        assert_eq!(world.shared.caches.figures().heads.insertions, 1);
    });
}

#[test]
fn cached_name_requests_only_content() {
    each_seed(10, |mut dice| {
        let mut world = world(dice.clone());
        let budgets = Budgets { content_bytes: Bytes(0), descriptors: 0, ..Budgets::default() };
        world.renew(vec![Site::default()], Limits::default(), budgets);
        let n = world.connect(Link::WHOLE, "");
        let mut replaced = false;
        for round in 0..10 {
            let body = world.ask(n, GET).body;
            assert_eq!(body, if replaced { &b"new"[..] } else { b"old" });
            let missing = |work: &Work| matches!(work, Work::Name(work) if work.missing.is_some());
            assert_eq!(world.disk.asked.last().map(missing), Some(round > 0), "{round}");
            if !replaced && dice.random_bool(0.2) {
                // The missing content no longer exists: the name is looked up instead.
                world.files.replace(world.now, "/a.html", "new");
                replaced = true;
            }
        }
    });
}

#[test]
fn stale_entry_is_served_while_helper_revalidates() {
    each_seed(10, |mut dice| {
        let mut world = world(dice.clone());
        let n = world.connect(Link::WHOLE, "");
        world.ask(n, GET);
        world.files.replace(world.now, "/a.html", "new");
        world.disk.late = 1.0;
        world.disk.delay_max = Duration::from_nanos(1);
        let age = dice.random_range(1000..9999);
        world.pass(Duration::from_millis(age));
        let response = world.ask(n, GET);
        assert_eq!((response.body.as_slice(), world.shared.counts.stale_hits), (&b"old"[..], 1));
        assert_eq!(world.ask(n, GET).body, b"new", "the helper's answer is not used for the next request");
        assert_eq!(world.shared.counts.stale_hits, 1);
    });
}

#[test]
fn entry_older_than_max_stale_is_not_served() {
    each_seed(10, |dice| {
        let mut world = world(dice);
        let n = world.connect(Link::WHOLE, "");
        world.ask(n, GET);
        world.files.replace(world.now, "/a.html", "new");
        world.disk.late = 1.0;
        world.pass(Duration::from_secs(10));
        let before = world.now;
        assert_eq!(world.ask(n, GET).body, b"new");
        assert!(world.now > before, "it waited");
        assert_eq!(world.shared.counts.stale_hits, 0);
    });
}

#[test]
fn negative_entry_lives_as_long_as_positive() {
    each_seed(10, |mut dice| {
        let mut world = world(dice.clone());
        let n = world.connect(Link::WHOLE, "");
        let get = "GET /b.txt HTTP/1.1\r\nHost: a\r\n\r\n";
        assert_eq!(world.ask(n, get).status, 404);
        world.files.replace(world.now, "/b.txt", "here");
        world.pass(Duration::from_millis(dice.random_range(0..999)));
        assert_eq!(world.ask(n, get).status, 404);
        world.pass(Duration::from_millis(1000));
        // Nor from a stale entry: a 404 for a file that exists is worse than a wait.
        world.disk.late = 1.0;
        assert_eq!(world.ask(n, get).body, b"here");
    });
}

#[test]
fn disk_error_is_not_cached() {
    each_seed(10, |dice| {
        let mut world = world(dice);
        let n = world.connect(Link::WHOLE, "");
        world.disk.trouble = 1.0;
        for _ in 0..5 {
            let response = world.ask(n, GET);
            assert!([500, 503].contains(&response.status), "{response:?}");
            assert_eq!(response.field("Retry-After"), (response.status == 503).then_some("1"));
            assert!(!response.closes());
        }
        world.disk.trouble = 0.0;
        assert_eq!(world.ask(n, GET).body, b"old");
    });
}

#[test]
fn concurrent_requests_share_one_lookup() {
    each_seed(10, |dice| {
        let budgets = Budgets { content_bytes: Bytes(0), path_entries: 0, ..Budgets::default() };
        let mut world = World::with(dice, vec![site()], Limits::default(), budgets);
        world.files.replace(world.now, "/a.html", "old");
        world.disk.late = 1.0;
        for _ in 0..50 {
            world.connect(Link::WHOLE, GET);
        }
        world.settle();
        assert!(world.sessions.iter().all(|session| session.statuses() == [200]));
        let memory = world.shared.caches.figures().bodies;
        assert_eq!(memory.refusals, 1, "not exactly one answer was offered to the cache");
    });
}

#[test]
fn file_truncated_during_response_cuts_it() {
    each_seed(10, |dice| {
        let mut world = world(dice);
        let text = vec![b'x'; 200_000];
        world.files.replace(world.now, "/a.html", text);
        let link = Link { write_max: 50_000, pause_max: Duration::from_millis(2), ..Link::WHOLE };
        let n = world.connect(link, GET);
        world.pass(Duration::from_millis(1));
        world.files.truncate(world.now, "/a.html", 1000);
        world.settle();
        let session = &world.sessions[n];
        assert!(session.closed.is_some(), "the connection was not closed");
        let response = &session.responses(&[false])[0];
        assert!(!response.complete && response.length() == Some(200_000));
    });
}

fn with_error_page() -> Site {
    Site { error_pages: vec![(404..=404, "/404.html".into())], ..site() }
}

#[test]
fn error_page_keeps_status() {
    each_seed(10, |mut dice| {
        let mut world = World::with(dice.clone(), vec![with_error_page()], Limits::default(), Budgets::default());
        world.files.replace(world.now, "/404.html", "nothing here");
        let n = world.connect(Link::WHOLE, "");
        for _ in 0..10 {
            let response = world.ask(n, "GET /missing HTTP/1.1\r\nHost: a\r\n\r\n");
            assert_eq!((response.status, response.body.as_slice()), (404, &b"nothing here"[..]));
            world.disk.late = dice.random_range(0.0..1.0);
            world.pass(Duration::from_millis(dice.random_range(0..5000)));
        }
    });
}

#[test]
fn missing_error_page_is_looked_up_once() {
    each_seed(3, |dice| {
        let mut world = World::with(dice, vec![with_error_page()], Limits::default(), Budgets::default());
        let n = world.connect(Link::WHOLE, "");
        for _ in 0..10 {
            assert_eq!(world.ask(n, "GET /missing HTTP/1.1\r\nHost: a\r\n\r\n").status, 404);
        }
        // The name and the page, once; and once more if a second has passed.
        let questions = world.shared.counts.disk_questions;
        assert!(questions <= 4, "{questions} questions");
    });
}

#[test]
fn error_page_for_503_is_not_read_from_disk() {
    each_seed(3, |dice| {
        let error_pages = vec![(503..=503, "/busy.html".into())];
        let site = Site { error_pages, ..site() };
        let mut world = World::with(dice, vec![site], Limits::default(), Budgets::default());
        world.files.replace(world.now, "/busy.html", "a moment, please");
        world.disk.silent = true;
        let n = world.connect(Link::WHOLE, GET);
        world.settle();
        let (ticket, asked) = (world.disk.last_ticket, world.disk.asked.len());
        world.handle(n, Event::Disk(ticket, Answer::Trouble(Trouble::Busy)));
        world.settle();
        assert_eq!(world.sessions[n].statuses(), [503]);
        assert_eq!(world.disk.asked.len(), asked);
    });
}

#[test]
fn header_rules_match_normalized_path() {
    each_seed(3, |dice| {
        let api = || HeaderRule { pattern: Glob::new("/api/**"), ..HeaderRule::default() };
        let on_files = HeaderRule { cache_control: Some("no-store".into()), ..api() };
        let on_all = HeaderRule { set: [("X-Api".into(), "yes".into())].into(), ..api() };
        let site = Site { rules: vec![on_files, on_all], ..site() };
        let mut world = World::with(dice, vec![site], Limits::default(), Budgets::default());
        world.files.directory(world.now, "/api");
        world.files.replace(world.now, "/api/a.txt", "here");
        let n = world.connect(Link::WHOLE, "");
        for (path, status) in [
            ("/api/a.txt", 200),
            ("/a%70i/a.txt", 200),
            ("/api/missing", 404),
            ("/%61pi/missing", 404),
            ("/x/..//api/missing", 404),
            ("/./api/.hidden", 404),
            ("/api/", 403),
            ("http://a/%61pi/", 403),
        ] {
            let response = world.ask(n, &format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n"));
            assert_eq!((response.status, response.field("X-Api")), (status, Some("yes")), "{path}");
            assert_eq!(response.field("Cache-Control"), (status == 200).then_some("no-store"), "{path}");
        }
        let response = world.ask(n, "GET /api/../missing HTTP/1.1\r\nHost: a\r\n\r\n");
        assert_eq!((response.status, response.field("X-Api")), (404, None));
    });
}

#[test]
fn small_file_may_arrive_as_descriptor() {
    each_seed(3, |dice| {
        let mut world = world(dice);
        world.disk.lazy = true;
        let n = world.connect(Link::WHOLE, "");
        for _ in 0..5 {
            assert_eq!(world.ask(n, GET).body, b"old");
        }
        assert_eq!(world.disk.asked.len(), 1, "the cached descriptor is not found");
    });
}

#[test]
fn listing_is_cached_until_directory_changes() {
    each_seed(10, |mut dice| {
        let site = Site { listing: true, ..site() };
        let mut world = World::with(dice.clone(), vec![site], Limits::default(), Budgets::default());
        world.files.directory(world.now, "/list");
        world.files.replace(world.now, "/list/a.txt", "a");
        world.disk.late = dice.random_range(0.0..1.0);
        let n = world.connect(Link::WHOLE, "");
        let html = world.ask(n, "GET /list/ HTTP/1.1\r\nHost: a\r\n\r\n");
        assert_eq!((html.status, html.field("Vary")), (200, Some("Accept")));
        assert!(String::from_utf8_lossy(&html.body).contains("href=\"./a.txt\""));
        let lists = |world: &World| world.disk.asked.iter().filter(|work| matches!(work, Work::List(_))).count();
        assert_eq!(lists(&world), 1);
        for _ in 0..3 {
            let again = world.ask(n, "GET /list/ HTTP/1.1\r\nHost: a\r\n\r\n");
            assert_eq!((again.body, again.fields), (html.body.clone(), html.fields.clone()));
        }
        let tag = html.field("ETag").expect("a tag");
        let known = world.ask(n, &format!("GET /list/ HTTP/1.1\r\nHost: a\r\nIf-None-Match: {tag}\r\n\r\n"));
        assert_eq!((known.status, known.field("ETag")), (304, Some(tag)));
        assert_eq!((lists(&world), world.shared.counts.page_hits, world.shared.counts.page_misses), (1, 4, 1));
        let json = world.ask(n, "GET /list/?sort=size HTTP/1.1\r\nHost: a\r\nAccept: application/json\r\n\r\n");
        assert_eq!(json.field("Content-Type"), Some("application/json"));
        let head = world.ask(n, "HEAD /list/ HTTP/1.1\r\nHost: a\r\n\r\n");
        assert_eq!(head.length(), Some(html.body.len() as u64));
        assert_eq!(world.ask(n, "GET /list HTTP/1.1\r\nHost: a\r\n\r\n").field("Location"), Some("/list/"));
        assert_eq!(lists(&world), 2);
        world.files.replace(world.now, "/list/b.txt", "b");
        // As for a file, a request during the lookup may get the earlier state.
        let shows = |world: &mut World| {
            world.pass(Duration::from_secs(1));
            world.ask(n, "GET /list/ HTTP/1.1\r\nHost: a\r\n\r\n");
            let more = world.ask(n, "GET /list/ HTTP/1.1\r\nHost: a\r\n\r\n");
            (more.status, String::from_utf8_lossy(&more.body).contains("href=\"./b.txt\""))
        };
        assert_eq!(shows(&mut world), (200, true));
        let made = lists(&world);
        assert!(shows(&mut world).1 && lists(&world) == made, "the file was checked and is unchanged");
        world.pass(Duration::from_secs(10));
        assert!(shows(&mut world).1 && lists(&world) == made + 1, "sizes may have changed nevertheless");
        world.files.delete(world.now, "/list");
        world.pass(Duration::from_secs(20));
        assert_eq!(world.ask(n, "GET /list/ HTTP/1.1\r\nHost: a\r\n\r\n").status, 404);
    });
}

/// A client that has requested a name whose entry is five seconds old, and a disk that does not respond.
fn waiting_with_an_entry_past_its_time(dice: Dice) -> (World, usize) {
    let mut world = world(dice);
    let n = world.connect(Link::WHOLE, "");
    world.ask(n, GET);
    world.pass(Duration::from_secs(5));
    world.disk.silent = true;
    world.send(n, GET);
    world.settle();
    (world, n)
}

#[test]
fn stale_entry_expires_while_disk_is_slow() {
    each_seed(3, |dice| {
        for (hesitates_ms, expected) in [(4_999, 2), (5_000, 1)] {
            let (mut world, n) = waiting_with_an_entry_past_its_time(dice.clone());
            world.pass(Duration::from_millis(hesitates_ms));
            world.handle(n, Event::Late(world.disk.last_ticket, Delay::Disk));
            world.settle();
            assert_eq!(world.sessions[n].statuses().len(), expected, "after {hesitates_ms} ms");
        }
    });
}

#[test]
fn changing_file_is_not_served_from_stale_entry() {
    each_seed(3, |dice| {
        for (delay, expected) in [(Delay::Disk, 2), (Delay::Change, 1)] {
            let (mut world, n) = waiting_with_an_entry_past_its_time(dice.clone());
            world.handle(n, Event::Late(world.disk.last_ticket, delay));
            world.settle();
            assert_eq!(world.sessions[n].statuses().len(), expected, "{delay:?}");
        }
    });
}
