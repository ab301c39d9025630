//! Files rewritten in every usual way while many clients read them: each complete response is one version.
//!
//! Each block of a file contains its version and its position, so a response that mixes two versions is detected. A
//! strong entity tag must never name two sequences of bytes (RFC 9110, 8.8.1), whichever worker sends it: all responses
//! are compared.
//!
//! A writer pauses between two versions for longer than a file must be stable (`disk::STILL`). Its pauses within a
//! version are shorter. If a busy machine makes one longer, the test marks the version as *torn*, because then the file
//! itself is stable with incomplete content. If a busy server finds the file changing for a second (`disk::CHANGES_MAX`),
//! it serves the file as it is, with a weak entity tag.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, OpenOptions};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use amped_sys::stall::write_with_pause;

use crate::requests::Random;

use super::harness::{Client, PATIENCE, Response, Server, Site, need_root};

const BLOCK: usize = 512;

/// A size that is cached in memory, and a size for which the descriptor is cached.
const SIZES: [usize; 2] = [16 << 10, 128 << 10];

/// The way in which a version is written.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    /// To another file, which is renamed over it.
    Renamed,
    /// By one write that pauses 200 ms in its middle.
    Stalled,
    /// By eight writes with pauses of up to 20 ms.
    Pieces,
    /// Truncated, then written in two pieces.
    Truncated,
    /// Appended, by one write that pauses 200 ms.
    Appended,
    /// By one write, after which the old modification time is restored.
    PutBack,
}

const KINDS: [Kind; 6] = [Kind::Renamed, Kind::Stalled, Kind::Pieces, Kind::Truncated, Kind::Appended, Kind::PutBack];

/// Maximum time from the start of one write, which sets the timestamp, to the start of the next; after a longer one the
/// file may appear stable.
const GAP_MAX: Duration = Duration::from_millis(40);

/// Maximum time for a whole version; the server does not wait longer for one.
const VERSION_MAX: Duration = Duration::from_millis(800);

/// Bytes of one append.
const RECORD: usize = 16 << 10;

/// A file that has grown to this is replaced by one record, so that it is sent as one window: a response of several is
/// aborted if the file grows meanwhile, and on a busy machine it always does.
const APPENDED_MAX: u64 = 192 << 10;

struct Subject {
    kind: Kind,
    size: usize,
    path: PathBuf,
    /// Versions with a pause so long that the file appeared stable.
    torn: Mutex<BTreeSet<u64>>,
}

/// Blocks `from..` of a version.
fn blocks(version: u64, from: usize, bytes: usize) -> Vec<u8> {
    let one = |place: u64| {
        let filling = Random(version << 32 | place).next().to_le_bytes();
        [&version.to_le_bytes()[..], &place.to_le_bytes(), &filling.repeat(BLOCK / 8 - 2)].concat()
    };
    (from as u64..(from + bytes / BLOCK) as u64).flat_map(one).collect()
}

/// Returns the versions of a body's blocks in order, or `None` if a block is invalid.
fn versions_of(body: &[u8]) -> Option<Vec<u64>> {
    let check = |(place, block): (usize, &[u8])| {
        let words = block.as_chunks().0;
        let [version, at, filling] =
            [words.first()?, words.get(1)?, words.get(2)?].map(|word| u64::from_le_bytes(*word));
        let is_good = at == place as u64 && filling == Random(version << 32 | at).next();
        // Compares the block with itself, shifted by one word: all words from the third on are equal.
        (is_good && block[16..BLOCK - 8] == block[24..]).then_some(version)
    };
    body.chunks(BLOCK).enumerate().map(check).collect()
}

impl Subject {
    /// Writes another file, which is renamed over it.
    fn replace(&self, bytes: &[u8]) {
        let temporary = self.path.with_extension("new");
        fs::write(&temporary, bytes).unwrap();
        fs::rename(&temporary, &self.path).unwrap();
    }

    /// Writes one version.
    fn write(&self, version: u64, random: &mut Random) {
        let bytes = blocks(version, 0, self.size);
        let open = || OpenOptions::new().write(true).open(&self.path).unwrap();
        let pause = || thread::sleep(Duration::from_millis(200));
        let began = Instant::now();
        let mut last = None;
        let mut gap_max = Duration::ZERO;
        // The end of a write is at least as late as its start.
        let mut timed = |write: &mut dyn FnMut()| {
            let before = Instant::now();
            write();
            gap_max = gap_max.max(last.replace(before).unwrap_or(before).elapsed());
        };
        match self.kind {
            Kind::Renamed => self.replace(&bytes),
            Kind::Stalled => assert_eq!(write_with_pause(open(), &bytes, 0, pause).unwrap(), bytes.len()),
            Kind::Pieces => {
                let file = open();
                for (n, piece) in bytes.chunks(self.size / 8).enumerate() {
                    timed(&mut || file.write_all_at(piece, (n * self.size / 8) as u64).unwrap());
                    thread::sleep(Duration::from_micros(random.below(20_000) as u64));
                }
            }
            Kind::Truncated => {
                let file = open();
                timed(&mut || file.set_len(0).unwrap());
                for (n, piece) in bytes.chunks(self.size / 2).enumerate() {
                    thread::sleep(Duration::from_micros(random.below(15_000) as u64));
                    timed(&mut || file.write_all_at(piece, (n * self.size / 2) as u64).unwrap());
                }
            }
            Kind::Appended => {
                let length = fs::metadata(&self.path).unwrap().len();
                if length >= APPENDED_MAX {
                    return self.replace(&blocks(version, 0, RECORD));
                }
                let more = blocks(version, length as usize / BLOCK, RECORD);
                assert_eq!(write_with_pause(open(), &more, length, pause).unwrap(), RECORD);
            }
            Kind::PutBack => {
                let file = open();
                file.write_all_at(&bytes, 0).unwrap();
                file.set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000)).unwrap();
            }
        }
        let is_in_pieces = matches!(self.kind, Kind::Pieces | Kind::Truncated);
        if is_in_pieces && (gap_max > GAP_MAX || began.elapsed() > VERSION_MAX) {
            self.torn.lock().unwrap().insert(version);
        }
    }

    /// Checks a complete body; returns its version, or the error.
    fn judge(&self, body: &[u8]) -> Result<u64, String> {
        let versions = versions_of(body).ok_or("content that was never written")?;
        let (Some(first), Some(last)) = (versions.first(), versions.last()) else {
            return Err("an empty body".into());
        };
        let is_good = match self.kind {
            Kind::Appended => body.len().is_multiple_of(RECORD) && versions.is_sorted(),
            _ => body.len() == self.size && first == last && versions.iter().all(|version| version == first),
        };
        if is_good { Ok(*last) } else { Err(format!("{} bytes of versions {first} to {last}", body.len())) }
    }

    /// Returns whether the file itself was stable and incomplete in one of these versions or in the one after.
    fn was_torn(&self, versions: &[u64]) -> bool {
        let torn = self.torn.lock().unwrap();
        torn.iter().any(|torn| versions.iter().all(|version| version <= torn && torn - version <= 1))
    }
}

/// Observations of all readers.
#[derive(Default)]
struct Seen {
    /// By subject: the versions received in complete responses.
    whole: BTreeMap<usize, BTreeSet<u64>>,
    /// By subject and strong tag: a digest of the body.
    tags: BTreeMap<(usize, String), u64>,
    replies: u64,
    cut: u64,
    weak: u64,
    /// By subject: the error in a body, and the versions of its blocks.
    mixed: Vec<(usize, String, Vec<u64>)>,
    wrong: Vec<String>,
}

fn note(seen: &Mutex<Seen>, subjects: &[Subject], n: usize, response: Option<Response>) {
    let Some(response) = response else {
        seen.lock().unwrap().cut += 1;
        return;
    };
    let (kind, size) = (subjects[n].kind, subjects[n].size);
    let verdict = subjects[n].judge(&response.body);
    let versions = versions_of(&response.body).unwrap_or_default();
    let mut digest = DefaultHasher::new();
    // Invalid blocks are reported separately; valid blocks are determined by their versions.
    versions.hash(&mut digest);
    let digest = digest.finish();

    let mut seen = seen.lock().unwrap();
    seen.replies += 1;
    if response.status != 200 {
        return seen.wrong.push(format!("{kind:?} of {size}: status {}", response.status));
    }
    let tag = response.field("ETag").unwrap();
    let is_weak = tag.starts_with("W/");
    match verdict {
        Ok(version) => _ = seen.whole.entry(n).or_default().insert(version),
        // A file that is replaced is complete at any time.
        Err(_) if is_weak && kind != Kind::Renamed => {}
        Err(what) => seen.mixed.push((n, format!("{kind:?} of {size}: {what}"), versions)),
    }
    if is_weak {
        seen.weak += 1;
        return;
    }
    if *seen.tags.entry((n, tag.to_owned())).or_insert(digest) != digest {
        seen.wrong.push(format!("{kind:?} of {size}: two bodies with the entity tag {tag}"));
    }
}

#[test]
fn files_rewritten_under_load_are_served_in_one_version() {
    need_root("stops a write in its middle");
    let site = Site::on_disk();
    let mut subjects = Vec::new();
    for size in SIZES {
        for kind in KINDS {
            let path = site.file(&format!("{kind:?}-{size}.bin"), blocks(0, 0, size));
            subjects.push(Subject { kind, size, path, torn: Mutex::default() });
        }
    }
    let server = Server::configured(&site, "[cache]\nrevalidate = '20ms'\nmax_stale = '20ms'");
    let (stop, seen) = (AtomicBool::new(false), Mutex::new(Seen::default()));
    let target = |n: usize| format!("/{}", subjects[n].path.file_name().unwrap().to_str().unwrap());
    thread::scope(|scope| {
        let (subjects, seen, stop, server, target) = (&subjects[..], &seen, &stop, &server, &target);
        let mut writers = Vec::new();
        for (n, subject) in subjects.iter().enumerate() {
            writers.push(scope.spawn(move || {
                let mut random = Random(1 + n as u64);
                let began = Instant::now();
                for version in 1.. {
                    let is_seen = || seen.lock().unwrap().whole.get(&n).is_some_and(|versions| versions.len() >= 3);
                    let is_enough = version > 8 && began.elapsed() > Duration::from_secs(3) && is_seen();
                    if is_enough || began.elapsed() > PATIENCE {
                        break;
                    }
                    subject.write(version, &mut random);
                    thread::sleep(Duration::from_millis(100 + random.below(100) as u64));
                }
            }));
        }
        for reader in 0..12 {
            scope.spawn(move || {
                let mut random = Random(100 + reader);
                let mut client = server.connect();
                while !stop.load(Ordering::Relaxed) {
                    let n = random.below(subjects.len());
                    let response = client.try_get(&target(n));
                    if response.is_none() {
                        client = server.connect();
                    }
                    note(seen, subjects, n, response);
                }
            });
        }
        for reader in 0..6 {
            scope.spawn(move || {
                let mut random = Random(200 + reader);
                while !stop.load(Ordering::Relaxed) {
                    let n = KINDS.len() + random.below(KINDS.len());
                    let mut client = Client::connect_narrow(server.address, 4096);
                    client.send_request("GET", &target(n), &[("Connection", "close")]);
                    thread::sleep(Duration::from_millis(random.below(500) as u64));
                    note(seen, subjects, n, client.try_response("GET").ok());
                }
            });
        }
        let ended: Vec<_> = writers.into_iter().map(|writer| writer.join()).collect();
        stop.store(true, Ordering::Relaxed);
        ended.into_iter().for_each(|ended| ended.unwrap());
    });
    let Seen { whole, tags, replies, cut, weak, mixed, mut wrong } = seen.into_inner().unwrap();
    let (torn, mixed): (Vec<_>, Vec<_>) =
        mixed.into_iter().partition(|(n, _, versions)| subjects[*n].was_torn(versions));
    println!("{replies} replies, {cut} cut, {weak} weak, {} of torn files, {} tags", torn.len(), tags.len());
    wrong.extend(mixed.into_iter().map(|(_, what, _)| what));
    assert!(wrong.is_empty(), "{} of {replies} replies: {:#?}", wrong.len(), &wrong[..wrong.len().min(20)]);
    for (n, subject) in subjects.iter().enumerate() {
        let versions = whole.get(&n).map_or(0, BTreeSet::len);
        assert!(versions >= 3, "{:?} of {}: {versions} versions were seen", subject.kind, subject.size);
    }
}
