//! Exchanges without connections: a protocol that carries many on one
//! connection, results that arrive in any order, and cancelled requests.

use std::sync::Arc;
use std::time::Duration;

use amped_core::app::{Input, Output};
use amped_core::cache::Budgets;
use amped_core::event::{Action, Ticket, Work};
use amped_core::exchange::{Context, Exchange, Incoming, Progress, Protocol};
use amped_core::file::Stored;
use amped_core::glob::Glob;
use amped_core::limits::Limits;
use amped_core::reply::{Body, Response, ScriptFraming, WallClock};
use amped_core::shared_state::SharedState;
use amped_core::site::{AppRule, Site, Sites};
use amped_http::h1::request::{self, Framing, HeadLimits, Request, Version};
use amped_http::h1::response::Connection;
use amped_http::interim::Interim;
use amped_http::status::Status;
use amped_units::{Bytes, Time};

use crate::client;
use crate::files::{FakeFile, Files};
use crate::oracle::{self, Asked};
use crate::seed::{Dice, RngExt, each_seed};
use crate::world::site;

const LIMITS: HeadLimits = HeadLimits { request_line: 10_000, head: 10_000, fields: 100, secure: false };

/// The state of one request, as seen by a multiplexed protocol.
#[derive(Default)]
struct Stream {
    next_ticket: u32,
    body_left: bool,
    forgone: bool,
    /// Head and body of the response.
    received: Vec<u8>,
    proceeded: bool,
    has_begun: bool,
    is_over: bool,
    is_aborted: bool,
}

impl Stream {
    fn put(&mut self, cx: &mut Context<'_, FakeFile>, response: Response<FakeFile>) {
        assert!(!self.has_begun && !self.is_over, "a second response");
        response.head.get().write(&mut self.received, &cx.shared.wall.date, Connection::Persists, None, 1);
        match response.body {
            Body::Empty | Body::Open => {}
            Body::Text(text) => self.received.extend(text),
            Body::Shared(text) => self.received.extend(text.iter()),
            Body::Content(content, range) => self.received.extend(bytes_of(&content.store, range)),
            Body::Parts(content, parts, last) => {
                for (text, range) in parts {
                    self.received.extend(text);
                    self.received.extend(bytes_of(&content.store, range));
                }
                self.received.extend(last);
            }
        }
        cx.shared.records.give_back(response.record);
    }
}

fn bytes_of(store: &Stored<FakeFile>, range: std::ops::Range<u64>) -> Vec<u8> {
    match store {
        Stored::Memory(bytes) => bytes[range.start as usize..range.end as usize].to_vec(),
        Stored::File(file) => file.read(range).expect("files do not shrink in this test"),
    }
}

impl Protocol<FakeFile> for Stream {
    fn next_ticket(&mut self) -> Ticket {
        self.next_ticket += 1;
        Ticket(self.next_ticket)
    }

    fn has_left(&self) -> bool {
        false
    }

    fn awaits_body(&self) -> bool {
        self.body_left && !self.forgone
    }

    fn skip_body(&mut self) {
        self.forgone |= self.body_left;
    }

    fn interim(&mut self, _cx: &mut Context<'_, FakeFile>, interim: &Interim) {
        assert_eq!(interim.status(), Status::CONTINUE);
        assert!(!std::mem::replace(&mut self.proceeded, true), "a second 100 (Continue)");
    }

    fn open_ended(&self, _version: Version) -> ScriptFraming {
        ScriptFraming::UntilClose
    }

    fn respond(&mut self, cx: &mut Context<'_, FakeFile>, _request: &Request<'_>, response: Response<FakeFile>) {
        self.put(cx, response);
        self.is_over = true;
    }

    fn begin_response(
        &mut self,
        cx: &mut Context<'_, FakeFile>,
        _request: &Request<'_>,
        response: Response<FakeFile>,
        _framing: ScriptFraming,
    ) {
        self.put(cx, response);
        self.has_begun = true;
    }

    fn begin_tunnel(&mut self, cx: &mut Context<'_, FakeFile>, response: Response<FakeFile>) {
        self.put(cx, response);
        (self.has_begun, self.body_left) = (true, true);
    }

    fn piece(&mut self, _cx: &mut Context<'_, FakeFile>, bytes: &[u8]) {
        assert!(self.has_begun && !self.is_over);
        self.received.extend_from_slice(bytes);
    }

    fn finish(&mut self, _cx: &mut Context<'_, FakeFile>) {
        assert!(self.has_begun && !std::mem::replace(&mut self.is_over, true));
    }

    fn abort(&mut self) {
        assert!(!std::mem::replace(&mut self.is_over, true));
        self.is_aborted = true;
    }
}

/// A pending input of an exchange.
enum Due {
    /// A result of the disk.
    Disk(Ticket, Work),
    /// More of the request body.
    Upload,
    /// An application has read its input.
    Room(Ticket),
    /// More output of an application.
    App(Ticket),
}

struct Carried {
    stream: Stream,
    exchange: Option<Exchange>,
    /// The part of the request body that was not delivered yet.
    upload: Vec<u8>,
    /// The input of the application, and its output once it has all of it.
    given: Vec<u8>,
    answer: Option<Vec<u8>>,
    has_left: bool,
    due: Vec<Due>,
}

/// All streams of one connection.
struct Streams {
    dice: Dice,
    shared: SharedState<FakeFile>,
    files: Files,
    all: Vec<Carried>,
}

impl Streams {
    fn new(mut dice: Dice, site: Site) -> Streams {
        let sites = Arc::new(Sites::new(vec![site]).expect("one"));
        let limits = Limits { max_body_bytes: Bytes(10_000), ..Limits::default() };
        let shared = SharedState::new(sites, limits, Budgets::default(), WallClock::at(784_111_777));
        let mut files = Files::default();
        oracle::furnish(&mut dice, &mut files);
        Streams { dice, shared, files, all: Vec::new() }
    }

    /// Begins an exchange; `upload` is the request body.
    fn begin(&mut self, head: &[u8], upload: Vec<u8>) -> usize {
        let (request, length) = request::parse(head, &LIMITS).expect("good").expect("whole");
        assert_eq!(length, head.len());
        let stream = Stream { body_left: request.framing != Framing::None, ..Stream::default() };
        self.all.push(Carried {
            stream,
            exchange: None,
            upload,
            given: Vec::new(),
            answer: None,
            has_left: false,
            due: Vec::new(),
        });
        let n = self.all.len() - 1;
        let incoming = Incoming { request, head, began: Time::START, has_more: false };
        let (shared, mut actions) = (&mut self.shared, Vec::new());
        let cx = &mut Context { now: Time::START, shared, actions: &mut actions };
        self.all[n].exchange = Exchange::begin(cx, incoming, &mut self.all[n].stream);
        self.after(n, actions);
        n
    }

    fn tell(
        &mut self,
        n: usize,
        what: impl FnOnce(&mut Exchange, &mut Context<'_, FakeFile>, &mut Stream) -> Progress,
    ) {
        let mut actions = Vec::new();
        let Carried { exchange, stream, .. } = &mut self.all[n];
        let cx = &mut Context { now: Time::START, shared: &mut self.shared, actions: &mut actions };
        if let Some(waiting) = exchange
            && what(waiting, cx, stream) == Progress::Over
        {
            *exchange = None;
        }
        self.after(n, actions);
    }

    /// Performs an action of an exchange, possibly later.
    fn after(&mut self, n: usize, actions: Vec<Action<FakeFile>>) {
        let carried = &mut self.all[n];
        for action in actions {
            match action {
                Action::Disk(ticket, work) => carried.due.push(Due::Disk(ticket, work)),
                Action::App(ticket, input) => match input {
                    Input::Start(work) => {
                        carried.answer = Some(Vec::new());
                        if !work.has_body {
                            carried.due.push(Due::App(ticket));
                        }
                    }
                    Input::Body(bytes) => {
                        carried.given.extend(bytes);
                        carried.due.push(Due::Room(ticket));
                    }
                    Input::End => carried.due.push(Due::App(ticket)),
                    Input::Leave(_) => carried.has_left = true,
                    Input::Join(_) | Input::Settled | Input::Unbuffered | Input::Compress(_) => {
                        panic!("this test caches and compresses no pages")
                    }
                },
                Action::Log(_) => {}
                other => panic!("an exchange must not act on connections: {other:?}"),
            }
        }
        assert_eq!(carried.exchange.is_none(), carried.stream.is_over, "an exchange is over exactly if its stream is");
        let is_fed = carried.due.iter().any(|due| matches!(due, Due::Upload));
        if carried.exchange.as_ref().is_some_and(Exchange::wants_body) && carried.stream.body_left && !is_fed {
            carried.due.push(Due::Upload);
        }
    }

    /// Delivers one pending input to one of the streams. Returns whether there was one.
    fn go_on(&mut self) -> bool {
        let ready: Vec<usize> = (0..self.all.len()).filter(|&n| !self.all[n].due.is_empty()).collect();
        if ready.is_empty() {
            return false;
        }
        let n = ready[self.dice.random_range(0..ready.len())];
        let count = self.all[n].due.len();
        let due = self.all[n].due.swap_remove(self.dice.random_range(0..count));
        match due {
            Due::Disk(ticket, work) => {
                let found = self.files.look("", &work, self.shared.caches.budgets.max_content_file_bytes.0);
                let sites = Arc::clone(&self.shared.sites);
                let answer = self.shared.caches.learn(Time::START, &work, found, &sites);
                if self.all[n].exchange.as_ref().is_some_and(|exchange| exchange.waits_for(ticket)) {
                    self.tell(n, |exchange, cx, stream| exchange.take_answer(cx, answer, stream));
                }
            }
            Due::Upload => {
                let most = self.all[n].upload.len();
                let count = if most == 0 { 0 } else { self.dice.random_range(1..=most) };
                let piece: Vec<u8> = self.all[n].upload.drain(..count).collect();
                let is_last = self.all[n].upload.is_empty();
                self.all[n].stream.body_left = !is_last;
                self.tell(n, |exchange, cx, stream| exchange.take_body(cx, &piece, is_last, stream));
            }
            Due::Room(ticket) => {
                self.tell(n, |exchange, cx, stream| exchange.take_output(cx, (ticket, Output::Room), stream));
            }
            Due::App(ticket) => self.app_says_more(n, ticket),
        }
        true
    }

    /// An application that echoes its input.
    fn app_says_more(&mut self, n: usize, ticket: Ticket) {
        let carried = &mut self.all[n];
        let whole = [&b"Content-Type: text/plain\r\n\r\n"[..], &carried.given].concat();
        let said = carried.answer.as_mut().expect("a started application");
        if said.len() == whole.len() {
            return self.tell(n, |exchange, cx, stream| exchange.take_output(cx, (ticket, Output::Ended), stream));
        }
        let count = self.dice.random_range(1..=whole.len() - said.len());
        let piece = whole[said.len()..said.len() + count].to_vec();
        said.extend(&piece);
        carried.due.push(Due::App(ticket));
        self.tell(n, |exchange, cx, stream| exchange.take_output(cx, (ticket, Output::Bytes(&piece)), stream));
    }

    /// The client cancels the request.
    fn cancel(&mut self, n: usize) {
        let mut actions = Vec::new();
        let cx = &mut Context { now: Time::START, shared: &mut self.shared, actions: &mut actions };
        let carried = &mut self.all[n];
        if let Some(exchange) = carried.exchange.take() {
            exchange.cancel(cx);
            carried.stream.is_over = true;
        }
        carried.due.clear();
        self.after(n, actions);
    }
}

fn with_app() -> Site {
    let rule = AppRule {
        when: None,
        pattern: Glob::new("/app"),
        timeout: Duration::from_secs(60),
        max_body_bytes: Bytes(100_000),
        max_response_bytes: None,
        cache: None,
        compress: Vec::new(),
        http: None,
    };
    Site { apps: vec![rule], ..site() }
}

#[test]
fn concurrent_exchanges_answer_as_if_sequential() {
    each_seed(30, |mut dice| {
        let mut streams = Streams::new(dice.clone(), with_app());
        let mut requests = Vec::new();
        for _ in 0..40 {
            if dice.random_bool(0.7) {
                let request = Asked::name(&mut dice, &streams.files);
                let (_, length) = request::parse(&request.bytes, &LIMITS).expect("good").expect("whole");
                let upload = request.bytes[length..].to_vec();
                let head = request.bytes[..length].to_vec();
                if upload.is_empty() {
                    requests.push((streams.begin(&head, upload), Some(request), Vec::new()));
                }
            } else {
                let size = [0, 1, 500, 70_000][dice.random_range(0..4)];
                let body = oracle::text_of(&mut dice, "body", size);
                let path = ["/app", "/app/x", "/a.html"][dice.random_range(0..3)];
                let head = format!("POST {path} HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n", body.len());
                let n = streams.begin(head.as_bytes(), body.clone());
                requests.push((n, None, if path == "/a.html" { Vec::new() } else { body }));
            }
        }
        let cancelled: Vec<usize> = requests.iter().map(|(n, ..)| *n).filter(|_| dice.random_bool(0.1)).collect();
        let mut to_cancel = cancelled.clone();
        while streams.go_on() {
            if dice.random_bool(0.05)
                && let Some(n) = to_cancel.pop()
            {
                streams.cancel(n);
            }
        }
        for (n, request, body) in &requests {
            let carried = &streams.all[*n];
            let is_whole = carried.stream.is_over && !carried.stream.is_aborted;
            assert!(carried.exchange.is_none() && is_whole, "stream {n}: {:?}", carried.exchange);
            if cancelled.contains(n) && !to_cancel.contains(n) {
                continue;
            }
            assert!(!carried.has_left, "an application was abandoned without a cancellation");
            let head_only = request.as_ref().is_some_and(|request| request.head_only);
            match request {
                Some(request) => {
                    let responses = client::read_all(&carried.stream.received, &[head_only], true);
                    assert_eq!(responses.len(), 1, "stream {n}");
                    request.check(&responses[0], &streams.files, Time::START, Time::START, false);
                }
                None => {
                    let text = String::from_utf8_lossy(&carried.stream.received);
                    match body.as_slice() {
                        b"" if !text.starts_with("HTTP/1.1 200") => {
                            assert!(text.starts_with("HTTP/1.1 405 ") || text.starts_with("HTTP/1.1 413 "), "{text}");
                        }
                        body => assert!(carried.stream.received.ends_with(body), "stream {n}"),
                    }
                }
            }
        }
    });
}

#[test]
fn cancelled_exchange_drops_only_its_application() {
    each_seed(10, |dice| {
        let mut streams = Streams::new(dice, with_app());
        let head = b"POST /app HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\n";
        let numbers: Vec<usize> = (0..3).map(|_| streams.begin(head, b"hello".to_vec())).collect();
        streams.cancel(numbers[1]);
        while streams.go_on() {}
        assert!(streams.all[numbers[1]].has_left && streams.all[numbers[1]].stream.received.is_empty());
        for n in [numbers[0], numbers[2]] {
            let carried = &streams.all[n];
            assert!(!carried.has_left && carried.stream.received.ends_with(b"\r\n\r\nhello"), "stream {n}");
        }
    });
}
