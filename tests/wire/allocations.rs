//! A complete loop answers cached requests without allocating: sockets, caches, sending and log included.
//!
//! The loop runs in the thread of the test, which counts its allocations from start to end. A client in another thread
//! sends 500 requests in one run and ten times as many in the next. Start, first request and end allocate the same in
//! both runs, so the difference belongs to the requests. This is a test program of its own, because the counter
//! replaces the allocator of the whole program. (`tests/sim/allocations.rs` tests the core without a kernel.)
#![allow(clippy::unwrap_used, missing_docs)]

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use amped::access_log::{Sink, Writer};
use amped::app::Apps;
use amped::arch;
use amped::client_counts::ClientCounts;
use amped::clock::Clock;
use amped::config::settings::Architecture;
use amped::config::{self, cli};
use amped::config_snapshot::ConfigSnapshot;
use amped::disk::{Disk, Rules};
use amped::event_loop::Start;
use amped::listen;
use amped::mailbox::Mailbox;
use amped::message::Message;
use amped::request_limits::RequestLimits;
use amped_units::Time;

/// Counts the allocations of a loop that answers `count` calls of `ask` after a first one.
fn allocations(architecture: Architecture, count: usize, ask: &(dyn Fn(&mut Client) + Sync)) -> u64 {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    fs::create_dir(path("site")).unwrap();
    for (name, bytes) in [("small.txt", 1 << 10), ("large.txt", 100 << 10)] {
        fs::write(path("site").join(name), vec![b'x'; bytes]).unwrap();
    }
    // Work that depends on time, such as revalidating a file, does not belong to the request.
    let text = format!(
        "listen = ['127.0.0.1:0']\ncache.revalidate = '1h'\nsend.sendfile_min_age = '0s'\nlog.access = {:?}\n\
         [[site]]\nroot = {:?}\ncompress = ['zstd']\n\
         [[site.limit]]\nmatch = '/small.txt'\nrequests = '1000000/s'\nburst = 1_000_000\nconcurrent = 1000\nrate = '1GB/s'\n",
        path("log"),
        path("site")
    );
    fs::write(path("amped.toml"), text).unwrap();
    let flags = cli::Serve { config: Some(path("amped.toml")), ..cli::Serve::default() };
    let settings = config::load(&flags).unwrap();
    let address = listen::bind(settings.listen[0].address, 1, std::iter::empty()).unwrap();
    let bound = address.bound;
    let (sites, budgets) = (Arc::clone(&settings.sites), &settings.cache);
    let rules = Rules {
        max_content_file_bytes: budgets.max_content_file_bytes.0,
        revalidate: budgets.revalidate,
        ..Rules::default()
    };
    let disk = Disk::open(sites, &settings.roots, rules, None).unwrap();
    let clock = Clock::start();
    let sink = Sink::open(&settings.log.access, None).unwrap().unwrap();
    let (log, writing) = Writer::start(sink, &settings.log, clock).unwrap();
    let mailbox = Arc::new(Mailbox::new().unwrap());
    let listeners = listen::listeners_of(&[address], 0, 1).unwrap();
    let counts = Arc::new(ClientCounts::new(false).unwrap());
    let generation = Arc::new(ConfigSnapshot {
        store: None,
        settings,
        disk: Arc::new(disk),
        verifier: None,
        limiter: Some(Arc::new(RequestLimits::new(Arc::clone(&counts)).unwrap())),
        client_counts: Some(counts),
        connections_max: 10,
        caches: None,
        shared: None,
        apps: Apps::default(),
        tls: None,
        challenges: None,
    });
    let start = Start {
        generation,
        listeners,
        mailbox: Arc::clone(&mailbox),
        log: Some(Arc::clone(&log)),
        clock,
        fork_server: None,
        slot: None,
    };

    let counted = thread::scope(|scope| {
        let asking = scope.spawn(move || {
            let mut client = Client::to(bound);
            (0..=count).for_each(|_| ask(&mut client));
            mailbox.put(Message::Stop(Time::START));
        });
        let counted = allocation_counter::measure(|| _ = arch::run(architecture, start).unwrap());
        asking.join().unwrap();
        counted
    });
    log.stop();
    writing.join().unwrap();
    counted.count_total
}

/// A client that reads a known number of bytes.
struct Client {
    stream: TcpStream,
    /// Buffer for the current response; grows to the longest.
    reply: Vec<u8>,
    /// A conditional request with the validator of the current version.
    condition: String,
}

impl Client {
    fn to(address: SocketAddr) -> Client {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_nodelay(true).unwrap();
        Client { stream, reply: Vec::new(), condition: String::new() }
    }

    /// Sends requests and reads this many responses; returns the head of the first.
    fn ask(&mut self, requests: &str, replies: usize, status: &str) -> String {
        self.stream.write_all(requests.as_bytes()).unwrap();
        self.reply.clear();
        let mut buffer = [0; 16 << 10];
        let mut first = String::new();
        let mut at = 0;
        for _ in 0..replies {
            let head = loop {
                let end = self.reply[at..].windows(4).position(|four| four == b"\r\n\r\n");
                if let Some(end) = end {
                    break String::from_utf8_lossy(&self.reply[at..at + end + 4]).into_owned();
                }
                self.read(&mut buffer);
            };
            assert!(head.starts_with(&format!("HTTP/1.1 {status} ")), "{head}");
            let length = head.lines().find_map(|line| line.strip_prefix("Content-Length: ")?.parse::<usize>().ok());
            let has_body = !requests.starts_with("HEAD") && status != "304";
            at += head.len() + if has_body { length.unwrap() } else { 0 };
            while self.reply.len() < at {
                self.read(&mut buffer);
            }
            if first.is_empty() {
                first = head;
            }
        }
        assert_eq!(self.reply.len(), at, "more data than requested");
        first
    }

    /// Reads frames until this many streams have ended. All have END_STREAM (1) on their DATA (0).
    fn read_streams(&mut self, mut count: u32) {
        self.reply.clear();
        let mut buffer = [0; 16 << 10];
        let mut at = 0;
        while count > 0 {
            while self.reply.len() < at + 9 {
                self.read(&mut buffer);
            }
            let head = &self.reply[at..at + 9];
            let length = usize::from(head[1]) << 8 | usize::from(head[2]);
            assert!(matches!(head[3], 0 | 1 | 4 | 8), "frame {}", head[3]);
            count -= u32::from(head[3] == 0 && head[4] & 1 != 0);
            at += 9 + length;
        }
        while self.reply.len() < at {
            self.read(&mut buffer);
        }
        assert_eq!(self.reply.len(), at, "more data than requested");
    }

    fn read(&mut self, buffer: &mut [u8]) {
        let count = self.stream.read(buffer).unwrap();
        assert!(count > 0, "the server has closed the connection");
        self.reply.extend_from_slice(&buffer[..count]);
    }
}

/// Compares two runs; each call of `ask` sends `requests` requests.
fn check(requests: u64, ask: &(dyn Fn(&mut Client) + Sync)) {
    const TIMES: usize = 5000;
    for architecture in [Architecture::Amped, Architecture::Sped] {
        let few = allocations(architecture, 500, ask);
        let many = allocations(architecture, 500 + TIMES, ask);
        println!("{architecture:?}: {few} allocations at first, {many} with {} requests more", requests * TIMES as u64);
        // Work that happens once a second, or once per full log buffer, is a few allocations, more of them on a busy
        // machine, which needs longer. One allocation per request would be as many as there are requests.
        assert!(many.saturating_sub(few) < requests * TIMES as u64 / 10, "{architecture:?}: {few}, then {many}");
    }
}

const FIELDS: &str =
    "Host: localhost\r\nUser-Agent: test\r\nReferer: http://localhost/\r\nAccept-Encoding: gzip, br\r\n";

fn get(target: &str) -> String {
    format!("GET {target} HTTP/1.1\r\n{FIELDS}\r\n")
}

#[test]
fn small_file_response_allocates_nothing() {
    let request = get("/small.txt");
    check(1, &|client| _ = client.ask(&request, 1, "200"));
}

#[test]
fn sendfile_response_allocates_nothing() {
    let request = get("/large.txt");
    check(1, &|client| _ = client.ask(&request, 1, "200"));
}

#[test]
fn compressed_response_allocates_nothing() {
    let request = get("/large.txt").replace("gzip, br", "zstd");
    check(1, &|client| {
        while client.condition.is_empty() {
            let head = client.ask(&request, 1, "200");
            client.condition = head.lines().filter(|line| line.starts_with("Content-Encoding")).collect();
            thread::sleep(Duration::from_millis(1));
        }
        assert!(client.ask(&request, 1, "200").contains("\r\nContent-Encoding: zstd\r\n"));
    });
}

#[test]
fn head_request_allocates_nothing() {
    let request = get("/small.txt").replace("GET", "HEAD");
    check(1, &|client| _ = client.ask(&request, 1, "200"));
}

#[test]
fn pipelined_requests_allocate_nothing() {
    let requests = get("/small.txt").repeat(16);
    check(16, &|client| _ = client.ask(&requests, 16, "200"));
}

#[test]
fn not_modified_response_allocates_nothing() {
    check(1, &|client| {
        if client.condition.is_empty() {
            let head = client.ask(&get("/small.txt"), 1, "200");
            let etag = head.lines().find_map(|line| line.strip_prefix("ETag: ")).unwrap();
            client.condition = get("/small.txt").replace(FIELDS, &format!("{FIELDS}If-None-Match: {etag}\r\n"));
        }
        let request = client.condition.clone();
        client.ask(&request, 1, "304");
    });
}

/// Sixteen streams side by side, again and again on one connection.
#[test]
fn streams_of_http2_allocate_nothing() {
    const STREAMS: u32 = 16;
    // With END_HEADERS and END_STREAM: GET http://localhost/small.txt, by the static table and literals.
    let mut block = vec![0x82, 0x86, 0x04, 10];
    block.extend_from_slice(b"/small.txt");
    block.extend_from_slice(b"\x01\x09localhost");
    check(u64::from(STREAMS), &|client| {
        let is_first = client.condition.is_empty();
        let first: u32 = client.condition.parse().unwrap_or(1);
        let mut bytes = Vec::new();
        if is_first {
            bytes.extend_from_slice(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0");
            // The acknowledgement of the server's settings, for which it waits ten seconds.
            bytes.extend_from_slice(b"\0\0\0\x04\x01\0\0\0\0");
            // The windows suffice for all bodies.
            bytes.extend_from_slice(b"\0\0\x04\x08\0\0\0\0\0\x7f\0\0\0");
        }
        for n in 0..STREAMS {
            bytes.extend_from_slice(&[0, 0, block.len() as u8, 1, 5]);
            bytes.extend_from_slice(&(first + 2 * n).to_be_bytes());
            bytes.extend_from_slice(&block);
        }
        client.condition = (first + 2 * STREAMS).to_string();
        client.stream.write_all(&bytes).unwrap();
        client.read_streams(STREAMS);
    });
}

#[test]
fn not_found_response_allocates_nothing() {
    let request = get("/none.txt");
    check(1, &|client| _ = client.ask(&request, 1, "404"));
}
