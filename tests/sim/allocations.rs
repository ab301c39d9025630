//! Counts allocations: a request served from the caches must not allocate.
//!
//! A test program of its own, because the counting allocator replaces the global one.
#![allow(clippy::unwrap_used, missing_docs)]

use std::sync::Arc;

use amped_core::access::AccessRule;
use amped_core::cache::Budgets;
use amped_core::cache::content::Encoding;
use amped_core::compress::{Compressed, Encoded};
use amped_core::event::{Action, Event, Found, Opened, Work};
use amped_core::file::{FileHandle, FileVersion, Stored};
use amped_core::glob::Glob;
use amped_core::http1::Conn;
use amped_core::limits::Limits;
use amped_core::network::Network;
use amped_core::reply::WallClock;
use amped_core::shared_state::SharedState;
use amped_core::site::{Ambiguous, NegotiationRule, Site, Sites, TrustedProxies, Unacceptable};
use amped_http::forwarded::ClientField;
use amped_http::negotiate::Coding;
use amped_units::Time;

/// All files are small here.
enum NoFile {}

impl FileHandle for NoFile {
    fn has_bytes_of(&self, _: &FileVersion) -> bool {
        match *self {}
    }
}

/// A driver in memory: heads and bodies are copied where a socket would send them.
struct Driver {
    shared: SharedState<NoFile>,
    conn: Conn,
    actions: Vec<Action<NoFile>>,
    sent: Vec<u8>,
}

impl Driver {
    fn new() -> Driver {
        Driver::behind(None)
    }

    /// With the peer 10.0.0.1, and this field, if any, for a client that only a rule by address admits.
    fn behind(field: Option<ClientField>) -> Driver {
        let network = |text| Network::parse(text).unwrap();
        let rule = NegotiationRule {
            pattern: Glob::new("/doc"),
            languages: vec!["en".into(), "fr".into()],
            charsets: Vec::new(),
            ambiguous: Ambiguous::First,
            unacceptable: Unacceptable::Refuse,
        };
        let (precompressed, compress) = (vec![Coding::Gzip], vec![Coding::Zstd]);
        let mut site = Site { precompressed, compress, negotiations: vec![rule], ..Site::default() };
        if field.is_some() {
            site.access =
                vec![AccessRule { directory: "/a/".into(), allow: vec![network("192.0.2.0/24")], deny: Vec::new() }];
        }
        site.types.known = |ending| (ending == "html").then_some("text/html");
        let proxies = field.map(|field| TrustedProxies { networks: vec![network("10.0.0.0/8")], field });
        let sites = Arc::new(Sites::new(vec![site]).unwrap().behind(proxies));
        let mut shared = SharedState::new(sites, Limits::default(), Budgets::default(), WallClock::at(0));
        shared.peer = Some([10, 0, 0, 1].into());
        Driver { shared, conn: Conn::new(Time::START, false), actions: Vec::new(), sent: Vec::new() }
    }

    fn take(&mut self, bytes: &[u8]) {
        self.conn.handle(Time::START, Event::Bytes(bytes), &mut self.shared, &mut self.actions);
        let mut at = 0;
        while at < self.actions.len() {
            match std::mem::replace(&mut self.actions[at], Action::Close) {
                Action::Send(_, reply) => {
                    reply.head.get().write(
                        &mut self.sent,
                        &self.shared.wall.date,
                        reply.connection,
                        reply.hsts.as_deref(),
                        1,
                    );
                    self.shared.records.give_back(reply.record);
                }
                Action::Disk(ticket, work) => {
                    let file = |coding, inode| {
                        let version = FileVersion {
                            device: 1,
                            inode,
                            size: 5,
                            mtime_ns: 0,
                            ctime_ns: 0,
                            is_changing: false,
                            is_unpacked: false,
                        };
                        let content = Some(Stored::Memory((*b"hello").into()));
                        Opened { coding, version, object: None, content }
                    };
                    let files = vec![file(Coding::Identity, 1), file(Coding::Gzip, 2)];
                    let version = FileVersion { inode: 3, size: 2000, ..FileVersion::default() };
                    let content = Some(Stored::Memory([b'x'; 2000].into()));
                    let large = Opened { coding: Coding::Identity, version, object: None, content };
                    let names = [&b"/doc.en.html"[..], b"/doc.fr.html"].map(Into::into).to_vec();
                    let found = match &work {
                        Work::Name(work) if *work.path == *b"/doc" => Found::Variants { names, files },
                        Work::Name(work) if *work.path == *b"/large.txt" => {
                            Found::File { name: Arc::clone(&work.path), files: vec![large], not_unpacked: None }
                        }
                        _ => Found::File { name: (*b"/a/b.txt").into(), files, not_unpacked: None },
                    };
                    let sites = Arc::clone(&self.shared.sites);
                    let answer = self.shared.caches.learn(Time::START, &work, found, &sites);
                    self.conn.handle(Time::START, Event::Disk(ticket, answer), &mut self.shared, &mut self.actions);
                }
                Action::Interim(_)
                | Action::Control(_)
                | Action::Cancel(_)
                | Action::Unanswered(_)
                | Action::HalfClose
                | Action::Close => {
                    panic!("unexpected action")
                }
                Action::App(..)
                | Action::Revalidate(_)
                | Action::Verify(..)
                | Action::Piece(..)
                | Action::PieceEnd(_)
                | Action::Log(_) => {
                    panic!("unexpected action")
                }
            }
            at += 1;
        }
        self.actions.clear();
        self.conn.handle(Time::START, Event::Sent { all: true }, &mut self.shared, &mut self.actions);
        assert!(self.sent.starts_with(b"HTTP/1.1 "));
        self.sent.clear();
    }
}

#[test]
fn cached_request_allocates_nothing() {
    let fields = "Host: localhost\r\nUser-Agent: test\r\nReferer: http://localhost/\r\nAccept-Encoding: gzip, br\r\n";
    let get = format!("GET /a/b.txt HTTP/1.1\r\n{fields}\r\n");
    let mut driver = Driver::new();
    driver.take(get.as_bytes());
    let etag = driver.shared.caches.find(Time::START, 0, b"/a/b.txt").unwrap();
    let amped_core::cache::path::LookupResult::File(resource) = etag.meaning else { panic!("a file") };
    let conditional = format!("If-None-Match: {}\r\n", resource.representations[1].etag);
    let check_behind = |field: Option<ClientField>, what: &str, bytes: String| {
        let mut driver = Driver::behind(field);
        // Twice, so that all buffers reach their size and the cache has its entries.
        driver.take(bytes.as_bytes());
        driver.take(bytes.as_bytes());
        let counted = allocation_counter::measure(|| (0..1000).for_each(|_| driver.take(bytes.as_bytes())));
        assert_eq!(counted.count_total, 0, "{what}");
        assert_eq!(driver.shared.counts.bad_requests, 0, "{what}");
        assert!(driver.shared.counts.hits > 1000, "{what}");
    };
    let check = |what: &str, bytes: String| check_behind(None, what, bytes);
    let forwarded = [
        (ClientField::XForwardedFor, "X-Forwarded-For: 192.0.2.1, 10.0.0.2\r\nX-Forwarded-Proto: https\r\n"),
        (ClientField::Forwarded, "Forwarded: for=\"192.0.2.1:80\";proto=https, for=10.0.0.2\r\n"),
    ];
    for (field, lines) in forwarded {
        check_behind(Some(field), "a client behind proxies", get.replace("Host", &format!("{lines}Host")));
    }
    check("GET", get.clone());
    check("HEAD", get.replace("GET", "HEAD"));
    check("a query", get.replace(".txt", ".txt?x=y"));
    check("304", format!("GET /a/b.txt HTTP/1.1\r\n{fields}{conditional}\r\n"));
    check("16 pipelined", get.repeat(16));
    let wishes = "Accept: text/html, */*;q=0.8\r\nAccept-Language: fr-CH, fr;q=0.9, en;q=0.8\r\n";
    let negotiated = format!("GET /doc HTTP/1.1\r\n{fields}{wishes}\r\n");
    check("a variant", negotiated);
}

/// The first response is uncompressed, and has the file compressed once.
#[test]
fn compressed_file_is_made_once_and_allocates_nothing() {
    let get = "GET /large.txt HTTP/1.1\r\nHost: localhost\r\nAccept-Encoding: gzip, zstd\r\n\r\n".to_owned();
    let mut driver = Driver::new();
    driver.take(get.as_bytes());
    driver.take(get.as_bytes());
    let work = driver.shared.caches.compressions.pop().unwrap();
    assert!(driver.shared.caches.compressions.is_empty() && work.coding == Coding::Zstd);
    let version = work.content.version;
    let encoded = Encoded::new(&version, work.coding, (*b"compressed").into());
    driver.shared.caches.learn_encoding(&version, work.coding, Compressed::Encoded(encoded));
    let tag = match driver.shared.caches.encoding(Time::START, &version, Coding::Zstd) {
        Some(Encoding::Ready(encoded)) => encoded.representation.etag.clone(),
        _ => panic!("not cached"),
    };
    for bytes in
        [get.clone(), get.replace("GET", "HEAD"), get.replace("\r\n\r\n", &format!("\r\nIf-None-Match: {tag}\r\n\r\n"))]
    {
        driver.take(bytes.as_bytes());
        driver.take(bytes.as_bytes());
        let before = driver.shared.caches.figures().encodings.hits;
        let counted = allocation_counter::measure(|| (0..1000).for_each(|_| driver.take(bytes.as_bytes())));
        assert_eq!((counted.count_total, driver.shared.caches.figures().encodings.hits), (0, before + 1000), "{bytes}");
    }
    assert!(driver.shared.caches.compressions.is_empty());
}

#[test]
fn search_of_regular_expression_does_not_allocate() {
    let glob = Glob::new(r"~^/(?:a|b)+/uploads/.*\.php$");
    let search = || [&b"/abab/uploads/x.php"[..], b"/abab/uploads/x.txt", b"/c"].map(|path| glob.matches(path));
    assert_eq!(search(), [true, false, false]);
    assert_eq!(allocation_counter::measure(|| _ = search()).count_total, 0);
}
