//! Responses of HTTP/2 checked by their content, while files are replaced, streams are reset and helper processes killed.
//!
//! A few thousand by default; `AMPED_SOAK_RESPONSES=1000000` checks as many.

use std::fs;
use std::io::Write;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use amped_http::h2::frame::{self, ErrorCode, StreamId};
use rustix::process::{Pid, Signal, kill_process};

use super::frames::*;
use super::harness::*;
use super::helpers::helpers_of;
use crate::requests::Random;

const FILES: usize = 200;

/// Streams of a connection at a time.
const STREAMS: usize = 32;

/// Bytes of a file that say where they belong.
const BLOCK: usize = 512;

/// A version of a file: blocks with its number, their place, and bytes that occur nowhere else.
fn content(file: usize, version: u64) -> Vec<u8> {
    let size = [40, 500, 4000, 4100, 12_000, 30_000, 3000, 900, 60_000, 1000][file % 10] + (version % 7) as usize;
    let size = if file == 9 { 300_000 } else { size };
    let filling = Random(version << 16 | file as u64).next().to_le_bytes();
    let mut content = Vec::with_capacity(size + BLOCK);
    for place in 0..size.div_ceil(BLOCK) as u64 {
        content.extend_from_slice(
            &[&version.to_le_bytes()[..], &place.to_le_bytes(), &filling.repeat(BLOCK / 8 - 2)].concat(),
        );
    }
    content.truncate(size);
    content
}

/// The state that all threads share.
#[derive(Default)]
struct Soak {
    versions: Vec<AtomicU64>,
    /// Responses that must still be checked.
    left: AtomicUsize,
    whole: AtomicUsize,
    reset: AtomicUsize,
    failed: AtomicUsize,
    killed: AtomicUsize,
    is_over: AtomicBool,
}

impl Soak {
    /// Replaces a file by its next version, which is not in memory.
    fn replace(&self, site: &Site, file: usize) {
        let version = self.versions[file].fetch_add(1, Ordering::Relaxed) + 1;
        let new = site.path().join("new");
        let mut written = fs::File::create(&new).unwrap();
        written.write_all(&content(file, version)).unwrap();
        written.sync_data().unwrap();
        rustix::fs::fadvise(&written, 0, None, rustix::fs::Advice::DontNeed).unwrap();
        fs::rename(new, site.path().join(format!("{file}.bin"))).unwrap();
    }

    fn check(&self, file: usize, response: &Response) {
        if response.status != 200 {
            assert!(response.status >= 500, "{response:?}");
            self.failed.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let version = u64::from_le_bytes(response.body[..8].try_into().unwrap());
        assert!(version <= self.versions[file].load(Ordering::Relaxed), "{file}: a version that was not written");
        assert!(response.body == content(file, version), "{file}: version {version} has other content");
        self.whole.fetch_add(1, Ordering::Relaxed);
        let _ = self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
    }

    /// Requests files over one connection.
    fn connection(&self, server: &Server, random: &mut Random) {
        let mut http2 = Http2::connect_with(server, &[window(1 << 20)]);
        http2.updates_windows = false;
        http2.send(|out| frame::window_update(out, StreamId::CONNECTION, 1 << 30));
        let mut requests = 500 + random.below(2000);
        let mut open: Vec<(StreamId, usize)> = Vec::new();
        loop {
            while open.len() < STREAMS && requests > 0 && self.left.load(Ordering::Relaxed) > 0 {
                let file = random.below(FILES);
                open.push((http2.request("GET", &format!("/{file}.bin"), &[]), file));
                requests -= 1;
            }
            if open.is_empty() {
                return;
            }
            if random.below(50) == 0 {
                let (stream, _) = open.swap_remove(random.below(open.len()));
                http2.send(|out| frame::reset(out, stream, ErrorCode::CANCEL));
                self.reset.fetch_add(1, Ordering::Relaxed);
                continue;
            }
            assert!(http2.take_frame(), "the connection ended: {:?}", http2.goodbyes);
            open.retain(|(stream, file)| match http2.take_result(*stream) {
                None => true,
                Some(Ok(response)) => {
                    self.check(*file, &response);
                    false
                }
                Some(Err(_)) => {
                    self.failed.fetch_add(1, Ordering::Relaxed);
                    false
                }
            });
        }
    }

    /// Kills a helper that runs.
    fn kill_helper(&self, server: &Server, random: &mut Random) {
        let helpers = helpers_of(server);
        if let Some(&helper) = helpers.get(random.below(helpers.len().max(1))) {
            let pid = Pid::from_raw(i32::try_from(helper).unwrap()).unwrap();
            self.killed.fetch_add(usize::from(kill_process(pid, Signal::KILL).is_ok()), Ordering::Relaxed);
        }
    }
}

#[test]
fn responses_are_right_while_files_streams_and_helpers_come_and_go() {
    let responses = std::env::var("AMPED_SOAK_RESPONSES").map_or(3000, |count| count.parse().expect("a number"));
    let site = Site::on_disk();
    let soak = Soak { left: AtomicUsize::new(responses), ..Soak::default() };
    let soak = Soak { versions: (0..FILES).map(|_| AtomicU64::new(0)).collect(), ..soak };
    (0..FILES).for_each(|file| soak.replace(&site, file));
    let server = Server::configured(&site, "[helpers]\nkind = 'processes'\nmin_spare = 4");
    let begin = Instant::now();
    let while_running = |work: &(dyn Fn(&mut Random) + Sync), seed: u64, pause: Duration| {
        let mut random = Random(seed);
        while !soak.is_over.load(Ordering::Relaxed) {
            work(&mut random);
            thread::sleep(pause);
        }
    };
    thread::scope(|scope| {
        let replace = |random: &mut Random| soak.replace(&site, random.below(FILES));
        let kill = |random: &mut Random| soak.kill_helper(&server, random);
        let others = [
            scope.spawn(move || while_running(&replace, 1, Duration::from_millis(20))),
            scope.spawn(move || while_running(&kill, 2, Duration::from_millis(100))),
        ];
        let clients: Vec<_> = (0..2)
            .map(|seed| {
                let (soak, server) = (&soak, &server);
                scope.spawn(move || {
                    let mut random = Random(seed + 3);
                    while soak.left.load(Ordering::Relaxed) > 0 {
                        soak.connection(server, &mut random);
                    }
                })
            })
            .collect();
        let results: Vec<_> = clients.into_iter().map(|client| client.join()).collect();
        soak.is_over.store(true, Ordering::Relaxed);
        results.into_iter().for_each(|result| result.expect("a client"));
        others.into_iter().for_each(|other| other.join().unwrap());
    });
    let count = |counter: &AtomicUsize| counter.load(Ordering::Relaxed);
    let (whole, reset, failed, killed) =
        (count(&soak.whole), count(&soak.reset), count(&soak.failed), count(&soak.killed));
    let replaced: u64 = soak.versions.iter().map(|version| version.load(Ordering::Relaxed)).sum();
    println!(
        "{whole} responses whole, {failed} failed, {reset} streams reset, {replaced} versions, {killed} helpers killed, {:?}; \
         {} probe misses, {} helpers died",
        begin.elapsed(),
        server.report("probe_misses window"),
        server.report("helpers_died"),
    );
    assert!(whole >= responses && reset > 0 && killed > 0 && replaced > FILES as u64);
    // A task whose helper dies twice fails, for instance; errors are rare, and wrong content is never seen.
    assert!(failed <= whole / 100 + killed / 4, "{failed} of {whole} responses failed, {killed} helpers were killed");
    let last = server.get("/0.bin");
    assert_eq!(last.status, 200);
}
