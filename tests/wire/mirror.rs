//! A whole tree through the server: every byte of every file, first unchanged, then while the tree changes.
//!
//! The unchanged tree is this repository: real names and real sizes, hundreds of files, some of several windows.
//!
//! In the changing tree, the contents of a file identify its version: each block of 4 KiB begins with version and
//! position, and its other bytes depend on these and on the file. Each response is compared with the recorded states of
//! the file, which a seeded mutator notes as it makes them. A response that mixes two versions, is padded or is shifted
//! matches none.
//!
//! One mix exists in the file itself: while a file is written in place, its front is new and its back is old, for every
//! reader. Such a state is valid while it lasts, and not longer.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{self, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use crate::requests::Random;

use super::harness::{Client, PATIENCE, Response, Server, SetOnDrop, Site, find, is_pool};

// The unchanged tree.

#[test]
fn every_file_of_large_tree_arrives_whole() {
    let (site, files) = sources();
    let server = Server::serve(&site);
    fetch_all(&server, site.path(), &files);
    assert_eq!(server.report("connections_broken"), 0);
}

#[test]
fn tiny_caches_change_no_byte() {
    let (site, files) = sources();
    let toml =
        "[cache]\npath_entries = 8\nhead_bytes = '4KiB'\ncontent_bytes = '40KiB'\ndescriptors = 2\nrevalidate = '0s'";
    let server = Server::configured(&site, toml);
    fetch_all(&server, site.path(), &files);
    assert!(server.report("cache_evictions body") > 100);
}

#[test]
fn every_send_method_delivers_every_byte() {
    let (site, files) = sources();
    for mode in ["copy", "mmap", "sendfile"] {
        let toml = format!("[send]\nsendfile_min_age = '0s'\ncontent = '{mode}'\nmapped_bytes = '1MiB'");
        let server = Server::configured(&site, &toml);
        fetch_all(&server, site.path(), &files);
        assert_eq!(server.report("connections_broken"), 0, "{mode}");
        assert_eq!(server.report("cache_evictions mapped") > 100, mode == "mmap");
    }
}

#[test]
fn encoded_names_of_any_bytes_are_found() {
    let site = Site::new();
    let names: [&[u8]; 9] = [
        b"a b",
        b"100%",
        b"%41",
        b"q?x=#1",
        b"\xc3\xa9t\xc3\xa9",
        b"not \xff utf-8",
        b"'\"<&>[|]",
        b"+;,@~$!*()",
        b"a\\b",
    ];
    for name in names {
        fs::write(site.path().join(OsStr::from_bytes(name)), name).unwrap();
    }
    let server = Server::serve(&site);
    let mut client = server.connect();
    for name in names {
        let target = format!("/{}", encoded(name));
        let response = client.get(&target);
        assert_eq!((response.status, &*response.body), (200, name), "{target}");
    }
}

/// Copies the sources of this workspace, so that no editor changes them during the test.
fn sources() -> (Site, Vec<PathBuf>) {
    let (root, site) = (Path::new(env!("CARGO_MANIFEST_DIR")).join("../.."), Site::new());
    for folder in ["crates", "examples", "experiments", "fuzz/fuzz_targets", "fuzz/seeds", "tests", "xtask"] {
        for file in files_below(&root.join(folder)) {
            let file = Path::new(folder).join(file);
            site.file(file.to_str().unwrap(), fs::read(root.join(&file)).unwrap());
        }
    }
    let files = files_below(site.path());
    assert!(files.len() > 500, "only {} files", files.len());
    (site, files)
}

/// All regular files, as paths relative to `root`.
fn files_below(root: &Path) -> Vec<PathBuf> {
    let mut folders = vec![root.to_owned()];
    let mut files = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let entry = entry.unwrap();
            // Hidden files are not served.
            if entry.file_name().as_bytes().starts_with(b".") {
                continue;
            }
            match entry.file_type().unwrap() {
                kind if kind.is_dir() => folders.push(entry.path()),
                kind if kind.is_file() => files.push(entry.path().strip_prefix(root).unwrap().to_owned()),
                _ => {}
            }
        }
    }
    files.sort();
    files
}

/// Encodes a path for a request line: everything except the unreserved characters (RFC 3986, 2.3), with code of its own
/// rather than the server's.
fn encoded(path: &[u8]) -> String {
    path.iter()
        .map(|&byte| match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' | b'/' => char::from(byte).to_string(),
            _ => format!("%{byte:02X}"),
        })
        .collect()
}

/// Fetches files over four persistent connections, in batches of 1 to 40 pipelined requests.
fn fetch_all(server: &Server, root: &Path, files: &[PathBuf]) {
    const CONNECTIONS: usize = 4;
    thread::scope(|scope| {
        for n in 0..CONNECTIONS {
            scope.spawn(move || {
                let mut random = Random(1 + n as u64);
                let mut client = server.connect();
                let mine: Vec<&PathBuf> = files.iter().skip(n).step_by(CONNECTIONS).collect();
                let mut rest = &mine[..];
                while !rest.is_empty() {
                    let (batch, others) = rest.split_at(random.below(40).min(rest.len() - 1) + 1);
                    rest = others;
                    let request = |file: &&PathBuf| {
                        format!("GET /{} HTTP/1.1\r\nHost: localhost\r\n\r\n", encoded(file.as_os_str().as_bytes()))
                    };
                    client.send(batch.iter().map(request).collect::<String>());
                    for file in batch {
                        let response = client.response("GET");
                        assert_eq!(response.status, 200, "{}", file.display());
                        // Not assert_eq, which would print both bodies.
                        assert!(response.body == fs::read(root.join(file)).unwrap(), "{} differs", file.display());
                    }
                }
            });
        }
    });
}

// The changing tree.

fn pause(random: &mut Random, below_us: usize) {
    thread::sleep(Duration::from_micros(random.below(below_us) as u64));
}

/// The content of a file: ranges of versions, each up to an end. `(7, 100), (9, 150)`: the first 100 bytes are from
/// version 7, the next 50 from version 9.
#[derive(Clone, Debug, PartialEq)]
struct State(Vec<(u32, usize)>);

impl State {
    fn whole(version: u32, length: usize) -> State {
        State(vec![(version, length)])
    }

    fn len(&self) -> usize {
        self.0.last().map_or(0, |(_, end)| *end)
    }

    fn truncated(&self, length: usize) -> State {
        let mut stretches: Vec<_> = self.0.iter().map(|&(version, end)| (version, end.min(length))).collect();
        stretches.dedup_by_key(|(_, end)| *end);
        State(stretches)
    }

    fn appended(&self, version: u32, length: usize) -> State {
        let mut state = self.clone();
        state.0.push((version, self.len() + length));
        state
    }

    /// Returns the end of the part of `bytes`, from `from` on, that equals this state.
    fn agreement(&self, file: usize, bytes: &[u8], from: usize) -> usize {
        let mut at = from;
        for &(version, end) in &self.0 {
            let end = end.min(bytes.len());
            while at < end {
                let block = block(file, version, at / BLOCK);
                let stop = (at / BLOCK * BLOCK + BLOCK).min(end);
                let expected = &block[at % BLOCK..at % BLOCK + stop - at];
                if bytes[at..stop] != *expected {
                    return at + bytes[at..stop].iter().zip(expected).take_while(|(a, b)| a == b).count();
                }
                at = stop;
            }
        }
        at
    }
}

/// Bytes of a file that are compared at once: test programs are not optimised, but `memcmp` is.
const BLOCK: usize = 4096;

/// Returns a block that identifies its file, version and position. The version's low byte comes first, so that a file
/// of one byte has it too; the rest comes from a position in a table of random bytes.
fn block(file: usize, version: u32, place: usize) -> [u8; BLOCK] {
    const PLACES: usize = 1 << 16;
    static TABLE: OnceLock<Vec<u8>> = OnceLock::new();
    let table = TABLE.get_or_init(|| {
        let mut random = Random(0);
        (0..(PLACES + BLOCK) / 8).flat_map(|_| random.next().to_le_bytes()).collect()
    });
    let front = u64::from(version) | (place as u64) << 32;
    let from = Random(front ^ (file as u64) << 24).next() as usize % PLACES;
    let mut block = [0; BLOCK];
    block.copy_from_slice(&table[from..from + BLOCK]);
    block[..8].copy_from_slice(&front.to_le_bytes());
    block
}

/// The bytes of a version in a range of positions.
fn bytes_of(file: usize, version: u32, range: std::ops::Range<usize>) -> Vec<u8> {
    let (first, last) = (range.start / BLOCK, range.end.div_ceil(BLOCK));
    let mut bytes = Vec::with_capacity((last - first) * BLOCK);
    for place in first..last {
        bytes.extend_from_slice(&block(file, version, place));
    }
    bytes.truncate(range.end - first * BLOCK);
    bytes.drain(..range.start - first * BLOCK);
    bytes
}

/// A change of a file. The state `None` means that the file does not exist.
struct Change {
    began: Instant,
    ended: Option<Instant>,
    before: Option<State>,
    after: Option<State>,
    /// Whether the content changes gradually, from the front.
    gradual: bool,
}

/// All states of a file since the start.
#[derive(Default)]
struct History(Mutex<Vec<Change>>);

/// How a response matches a history.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Match {
    /// A state of the file between two changes.
    AtRest(u32),
    /// A state of the file during a write in place.
    Underway,
}

impl History {
    fn lock(&self) -> MutexGuard<'_, Vec<Change>> {
        self.0.lock().unwrap()
    }

    fn begin(&self, before: Option<State>, after: Option<State>, gradual: bool) {
        self.lock().push(Change { began: Instant::now(), ended: None, before, after, gradual });
    }

    fn end(&self) {
        self.lock().last_mut().unwrap().ended = Some(Instant::now());
    }

    /// Returns the state of the file between `from` and `to` that equals `bytes`, or begins with them unless `whole`.
    fn find(&self, file: usize, bytes: &[u8], whole: bool, from: Instant, to: Instant) -> Option<Match> {
        let changes = self.lock();
        let fits = |length: usize| if whole { length == bytes.len() } else { length >= bytes.len() };
        let mut underway = None;
        for (n, change) in changes.iter().enumerate().rev() {
            // The state is valid from the start of this change, when it may have been visible, to the end of the next.
            let next_end = changes.get(n + 1).map_or(Some(to), |next| next.ended).unwrap_or(to);
            if next_end < from {
                break;
            }
            if change.began > to {
                continue;
            }
            if let Some(after) = &change.after
                && fits(after.len())
                && after.agreement(file, bytes, 0) == bytes.len()
            {
                return Some(Match::AtRest(after.0.last().unwrap().0));
            }
            if let (Some(before), Some(after), true) = (&change.before, &change.after, change.gradual)
                && change.ended.is_none_or(|ended| ended >= from)
            {
                let new = after.agreement(file, bytes, 0);
                if new == bytes.len() && bytes.len() >= before.len()
                    || (fits(before.len()) && before.agreement(file, bytes, new) == bytes.len())
                {
                    underway = Some(Match::Underway);
                }
            }
        }
        underway
    }

    fn was_absent(&self, from: Instant, to: Instant) -> bool {
        let changes = self.lock();
        (0..changes.len()).any(|n| {
            let until = changes.get(n + 1).map_or(Some(to), |next| next.ended).unwrap_or(to);
            changes[n].after.is_none() && changes[n].began <= to && until >= from
        })
    }

    fn now(&self) -> Option<State> {
        self.lock().last().unwrap().after.clone()
    }
}

/// Sizes around the limit between memory and descriptors (32 KiB), one window (256 KiB) and many windows.
const SIZES: [usize; 6] = [0, 1, 32 << 10, (32 << 10) + 1, 300 << 10, 5 << 20];

const FILES: usize = 4 * SIZES.len();

fn size_of(file: usize) -> usize {
    SIZES[file % SIZES.len()]
}

/// The permitted ways to change a file.
#[derive(Clone, Copy)]
enum How {
    /// In any way.
    Any,
    /// By replacing and removing only, as deployments do.
    Whole,
}

struct Tree {
    site: Site,
    histories: Vec<History>,
}

impl Tree {
    fn new() -> Tree {
        let tree = Tree { site: Site::on_disk(), histories: (0..FILES).map(|_| History::default()).collect() };
        for file in 0..FILES {
            tree.histories[file].begin(None, Some(State::whole(0, size_of(file))), false);
            fs::write(tree.path(file), bytes_of(file, 0, 0..size_of(file))).unwrap();
            tree.histories[file].end();
        }
        tree
    }

    fn path(&self, file: usize) -> PathBuf {
        self.site.path().join(format!("{file}.bin"))
    }

    /// Changes a file once, in a random way.
    fn change(&self, file: usize, version: u32, how: How, random: &mut Random) {
        let (path, history) = (self.path(file), &self.histories[file]);
        let open = || OpenOptions::new().write(true).open(&path).unwrap();
        let choice = random.below(8);
        let before = history.now();
        let length = before.as_ref().map_or(0, State::len);
        match (before, how) {
            (Some(_), _) if choice == 0 => {
                history.begin(history.now(), None, false);
                fs::remove_file(&path).unwrap();
            }
            (Some(before), How::Any) if choice <= 2 && length > 0 => {
                let length = [0, length / 2, length - 1, random.below(length)][random.below(4)];
                let after = before.truncated(length);
                history.begin(Some(before), Some(after), false);
                open().set_len(length as u64).unwrap();
            }
            (Some(before), How::Any) if choice == 3 && length <= size_of(file) => {
                let more = 1 + random.below(50_000);
                let after = before.appended(version, more);
                let bytes = bytes_of(file, version, length..length + more);
                history.begin(Some(before), Some(after), true);
                OpenOptions::new().append(true).open(&path).unwrap().write_all(&bytes).unwrap();
            }
            (Some(before), How::Any) if choice <= 5 => {
                let bytes = bytes_of(file, version, 0..length);
                history.begin(Some(before), Some(State::whole(version, length)), true);
                let mut opened = open();
                // In one write, or in several.
                for piece in bytes.chunks(1 + length / (1 + random.below(4))) {
                    opened.write_all(piece).unwrap();
                }
            }
            (Some(before), How::Any) if choice == 6 => {
                // As `>` in a shell does.
                let bytes = bytes_of(file, version, 0..size_of(file));
                let empty = State(vec![(version, 0)]);
                history.begin(Some(before), Some(empty.clone()), false);
                let mut opened = OpenOptions::new().write(true).truncate(true).open(&path).unwrap();
                history.end();
                history.begin(Some(empty), Some(State::whole(version, bytes.len())), true);
                opened.write_all(&bytes).unwrap();
            }
            (before, _) => {
                let bytes = bytes_of(file, version, 0..size_of(file));
                let temporary = self.site.path().join(".new");
                fs::write(&temporary, &bytes).unwrap();
                history.begin(before, Some(State::whole(version, bytes.len())), false);
                fs::rename(&temporary, &path).unwrap();
            }
        }
        history.end();
    }
}

/// Counts of the outcomes of requests.
#[derive(Debug, Default)]
struct Tally {
    whole: u64,
    /// Complete responses with a version other than the first.
    changed: u64,
    underway: u64,
    absent: u64,
    cut: u64,
    /// Bytes of truncated responses.
    cut_bytes: u64,
    wrong: Vec<String>,
    /// Other statuses.
    others: BTreeMap<u16, u64>,
}

/// Maximum age of a cached response: the revalidation interval, and a margin for a busy machine.
const STALE: Duration = Duration::from_millis(500);

impl Tally {
    fn judge(&mut self, tree: &Tree, file: usize, status: u16, body: &[u8], whole: bool, sent: Instant) {
        let history = &tree.histories[file];
        let (from, to) = (sent - STALE, Instant::now());
        match status {
            200 => {
                let found = history.find(file, body, whole, from, to);
                if !whole {
                    self.cut += 1;
                    self.cut_bytes += body.len() as u64;
                }
                match found {
                    Some(Match::AtRest(version)) if whole => {
                        self.whole += 1;
                        self.changed += u64::from(version > 0);
                    }
                    Some(Match::Underway) if whole => self.underway += 1,
                    Some(_) => {}
                    None => self.wrong.push(describe(file, body, whole)),
                }
            }
            404 if history.was_absent(from, to) => self.absent += 1,
            _ => *self.others.entry(status).or_default() += 1,
        }
    }

    /// Returns whether every outcome occurred that a tree with such changes must produce.
    fn has_all(&self, how: How) -> bool {
        let is_cut = self.cut > 0 && self.cut_bytes > 0;
        self.whole > 100 && self.changed > 50 && self.absent > 0 && (is_cut || matches!(how, How::Whole))
    }

    fn add(&mut self, other: Tally) {
        self.whole += other.whole;
        self.changed += other.changed;
        self.underway += other.underway;
        self.absent += other.absent;
        self.cut += other.cut;
        self.cut_bytes += other.cut_bytes;
        self.wrong.extend(other.wrong);
        for (status, count) in other.others {
            *self.others.entry(status).or_default() += count;
        }
    }
}

/// Describes the versions in a body that matches no state, with their positions.
fn describe(file: usize, body: &[u8], whole: bool) -> String {
    let mut text = format!("file {file}, {} bytes, {}:", body.len(), if whole { "complete" } else { "truncated" });
    let mut last = None;
    for (place, bytes) in body.chunks(BLOCK).enumerate() {
        let version = match bytes.len() {
            4.. => Some(u32::from_le_bytes(bytes[..4].try_into().unwrap())),
            _ => None,
        };
        let good = version.is_some_and(|version| block(file, version, place).starts_with(bytes));
        let now = if good { format!("v{}", version.unwrap()) } else { "?".to_owned() };
        if last.as_ref() != Some(&now) && text.len() < 400 {
            text += &format!(" {}:{now}", place * BLOCK);
            last = Some(now);
        }
    }
    text
}

/// Requests random files, some of them pipelined, until `stop` is set.
fn fast_reader(address: SocketAddr, tree: &Tree, stop: &AtomicBool, mut random: Random, seen: &Mutex<Tally>) {
    let mut client = Client::connect(address);
    while !stop.load(Ordering::Relaxed) {
        let mut tally = Tally::default();
        let batch: Vec<usize> = (0..1 + random.below(4)).map(|_| random.below(FILES)).collect();
        let request = |file: &usize| format!("GET /{file}.bin HTTP/1.1\r\nHost: localhost\r\n\r\n");
        let sent = Instant::now();
        client.send(batch.iter().map(request).collect::<String>());
        for (n, file) in batch.into_iter().enumerate() {
            let first = n == 0;
            match client.try_response("GET") {
                Ok(Response { status, body, .. }) => tally.judge(tree, file, status, &body, true, sent),
                Err(error) => {
                    // If the connection broke in the body, the head has already been read.
                    let rest = client.read_to_end();
                    assert!(error.kind() != std::io::ErrorKind::WouldBlock, "the server hangs");
                    // On a busy machine the free workers of a pool may be so late that an idle connection is closed for
                    // a waiting one.
                    let gave_way = is_pool() && rest.is_empty() && first;
                    if !gave_way && find(&rest, b"HTTP/1.1").is_none() {
                        tally.judge(tree, file, 200, &rest, false, sent);
                    }
                    client = Client::connect(address);
                    break;
                }
            }
        }
        seen.lock().unwrap().add(tally);
    }
}

/// Requests large files and reads them so slowly that most of a response waits in or behind the socket.
fn slow_reader(address: SocketAddr, tree: &Tree, stop: &AtomicBool, mut random: Random, seen: &Mutex<Tally>) {
    while !stop.load(Ordering::Relaxed) {
        let file = [4, 5][random.below(2)] + SIZES.len() * random.below(4);
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let sent = Instant::now();
        write!(stream, "GET /{file}.bin HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").unwrap();
        let mut received = Vec::new();
        let mut piece = vec![0; 16 << 10];
        // Long enough for several changes, and no longer.
        for n in 0.. {
            if n < 30 {
                pause(&mut random, 10_000);
            } else {
                piece.resize(256 << 10, 0);
            }
            match stream.read(&mut piece) {
                Ok(0) => break,
                Ok(count) => received.extend_from_slice(&piece[..count]),
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => panic!("the server hangs"),
                Err(_) => break,
            }
        }
        let Some(end) = find(&received[..received.len().min(2000)], b"\r\n\r\n") else { continue };
        let head = String::from_utf8(received[..end].to_vec()).unwrap();
        let field = |name: &str| head.lines().find_map(|line| line.strip_prefix(name));
        let status = field("HTTP/1.1 ").unwrap()[..3].parse().unwrap();
        let length: usize = field("Content-Length: ").unwrap().parse().unwrap();
        let body = &received[end + 4..];
        assert!(body.len() <= length, "the body exceeds its Content-Length");
        let mut tally = Tally::default();
        tally.judge(tree, file, status, body, body.len() == length, sent);
        seen.lock().unwrap().add(tally);
    }
}

/// Runs slow and fast readers on a changing tree until every outcome has occurred. Then the tree stays unchanged, and
/// each file must be served in its last state.
fn mirror_while_it_changes(toml: &str, how: How, seed: u64) -> Tally {
    let tree = Tree::new();
    let server = Server::configured(&tree.site, &format!("[cache]\nrevalidate = '20ms'\nmax_stale = '20ms'\n{toml}"));
    let (stop, seen) = (AtomicBool::new(false), Mutex::new(Tally::default()));
    thread::scope(|scope| {
        let (tree, stop, seen, address) = (&tree, &stop, &seen, server.address);
        scope.spawn(move || {
            let _stop = SetOnDrop(stop);
            let mut random = Random(seed);
            let begin = Instant::now();
            for version in 1.. {
                let is_enough = version > 250 && seen.lock().unwrap().has_all(how);
                if is_enough || begin.elapsed() > PATIENCE {
                    break;
                }
                tree.change(random.below(FILES), version, how, &mut random);
                pause(&mut random, 15_000);
            }
        });
        for n in 1..=3 {
            scope.spawn(move || fast_reader(address, tree, stop, Random(seed ^ n << 32), seen));
            scope.spawn(move || slow_reader(address, tree, stop, Random(seed ^ (n + 3) << 32), seen));
        }
    });
    let tally = seen.into_inner().unwrap();
    // No earlier state may stay in a cache.
    thread::sleep(Duration::from_millis(100));
    let mut client = server.connect();
    for file in 0..FILES {
        let response = client.get(&format!("/{file}.bin"));
        match fs::read(tree.path(file)) {
            Ok(bytes) => {
                assert_eq!(response.status, 200);
                assert!(response.body == bytes, "at rest: {}", describe(file, &response.body, true));
            }
            Err(_) => assert_eq!(response.status, 404),
        }
    }
    println!("seed {seed}: {tally:?}");
    tally
}

fn check_outcomes(tally: &Tally, how: How) {
    assert!(tally.wrong.is_empty(), "{tally:#?}");
    assert!(tally.others.is_empty(), "{tally:#?}");
    assert!(tally.has_all(how), "{tally:?}");
}

#[test]
fn response_is_one_version_or_visibly_truncated() {
    let tally = mirror_while_it_changes("", How::Any, 1);
    check_outcomes(&tally, How::Any);
}

#[test]
fn replacing_files_truncates_no_response() {
    for sendfile_min_age in ["60s", "0s"] {
        let tally = mirror_while_it_changes(&format!("[send]\nsendfile_min_age = '{sendfile_min_age}'"), How::Whole, 2);
        check_outcomes(&tally, How::Whole);
        assert_eq!((tally.cut, tally.underway), (0, 0), "sendfile_min_age {sendfile_min_age}: {tally:?}");
    }
}

#[test]
fn replacing_mapped_or_sendfile_files_truncates_no_response() {
    for mode in ["mmap", "sendfile"] {
        let toml = format!("[send]\nmapped_bytes = '1MiB'\nsendfile_min_age = '0s'\ncontent = '{mode}'");
        let tally = mirror_while_it_changes(&toml, How::Whole, 3);
        check_outcomes(&tally, How::Whole);
        assert_eq!((tally.cut, tally.underway), (0, 0), "{mode}: {tally:?}");
    }
}

#[test]
fn change_during_slow_download_truncates_response() {
    // More than two sockets can buffer.
    const LENGTH: usize = 16 << 20;
    type Edit<'a> = &'a dyn Fn(&fs::File);
    let [old, new] = [0, 1].map(|version| bytes_of(0, version, 0..LENGTH));
    let edits: [(&str, Edit<'_>); 5] = [
        ("emptied", &|file| file.set_len(0).unwrap()),
        ("halved", &|file| file.set_len(LENGTH as u64 / 2).unwrap()),
        ("one byte less", &|file| file.set_len(LENGTH as u64 - 1).unwrap()),
        ("one byte more", &|mut file| {
            file.seek(SeekFrom::End(0)).unwrap();
            file.write_all(b"x").unwrap();
        }),
        ("rewritten", &|mut file| file.write_all(&new).unwrap()),
    ];
    for (mode, sendfile_min_age) in
        [("mixed", "60s"), ("mixed", "0s"), ("copy", "0s"), ("mmap", "0s"), ("sendfile", "0s")]
    {
        let site = Site::on_disk();
        let server =
            Server::configured(&site, &format!("[send]\nsendfile_min_age = '{sendfile_min_age}'\ncontent = '{mode}'"));
        for (name, edit) in edits {
            let path = site.file(&format!("{name}.bin").replace(' ', "-"), &old);
            let target = format!("/{}", path.file_name().unwrap().to_str().unwrap());
            let mut client = server.connect();
            client.send_request("GET", &target, &[]);
            // The two sockets buffer far less than the file. Until they are full, the edit finds windows that are not
            // sent yet.
            client.wait_for_many_bytes(150_000);
            thread::sleep(Duration::from_millis(20));
            edit(&OpenOptions::new().write(true).open(&path).unwrap());
            let error = client.try_response("GET").expect_err("a whole reply");
            assert!(
                error.kind() != std::io::ErrorKind::WouldBlock,
                "{name}, {mode}, sendfile_min_age {sendfile_min_age}: the server hangs"
            );
            let body = client.read_to_end();
            assert!(
                body.len() > 100_000 && body.len() < LENGTH,
                "{name}, {mode}, sendfile_min_age {sendfile_min_age}: {} bytes",
                body.len()
            );
            // The server checks the file again after it copied from it.
            if sendfile_min_age == "60s" || mode == "copy" {
                let good = State::whole(0, LENGTH).agreement(0, &body, 0);
                assert_eq!(good, body.len(), "{name}: {}", describe(0, &body, false));
            }
        }
        assert_eq!(server.report("connections_broken"), edits.len() as u64);
    }
}

#[test]
fn partially_written_file_is_not_cached() {
    const LENGTH: usize = 2 << 20;
    let site = Site::on_disk();
    let path = site.file("file.bin", bytes_of(0, 0, 0..LENGTH));
    let toml = "[cache]\nrevalidate = '0s'\nmax_stale = '0s'\nmax_content_file_bytes = '2MiB'";
    let server = Server::configured(&site, toml);
    for version in 1..=20 {
        let new = bytes_of(0, version, 0..LENGTH);
        let done = AtomicBool::new(false);
        thread::scope(|scope| {
            let _stop = SetOnDrop(&done);
            // Each request makes the server revalidate the file, and read it if it has changed.
            scope.spawn(|| {
                let mut client = server.connect();
                while !done.load(Ordering::Relaxed) {
                    assert_eq!(client.request("HEAD", "/file.bin", &[]).status, 200);
                }
            });
            thread::sleep(Duration::from_millis(5));
            // In one write, so that the kernel sets the modification time once, at its beginning.
            OpenOptions::new().write(true).open(&path).unwrap().write_all(&new).unwrap();
        });
        thread::sleep(Duration::from_millis(50));
        let body = server.get("/file.bin").body;
        assert!(body == new, "version {version} was written, but the server sent {}", describe(0, &body, true));
    }
}
