//! The shared cache compared with a plain map, with random data in its memory, and with processes that are killed.
//!
//! The processes are real: this test program again, which [`ROLE`] makes a child, with the memory of the cache as its
//! standard input. No fork is needed, and every kill is a SIGKILL, which cannot be handled.

use std::collections::HashMap;
use std::env;
use std::io::{BufRead, BufReader};
use std::os::fd::AsFd;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Barrier, mpsc};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use amped_core::event::{Missing, Trouble};
use amped_core::listing::Listing;
use amped_http::negotiate::Coding;
use amped_units::Bytes;
use proptest::prelude::*;

use super::*;
use crate::portable::tests::opened;

const EVER: Duration = Duration::MAX;

fn budgets(content_bytes: Bytes, max_content_file_bytes: Bytes, path_entries: usize) -> Budgets {
    Budgets { content_bytes, max_content_file_bytes, path_entries, ..Budgets::default() }
}

fn cache(bytes: u64, file_max: u64, entries: usize) -> SharedCache {
    SharedCache::new(&budgets(Bytes(bytes), Bytes(file_max), entries)).expect("memory")
}

fn work(path: impl AsRef<[u8]>) -> NameWork {
    NameWork { generation: 1, path: path.as_ref().into(), ..NameWork::default() }
}

/// A file with this body; its number tells versions apart.
fn file(number: u64, body: &[u8]) -> Found<u32> {
    let version = FileVersion {
        device: 1,
        inode: number,
        size: body.len() as u64,
        mtime_ns: number as i64,
        ctime_ns: -1,
        is_changing: false,
        is_unpacked: false,
    };
    let content = Some(Stored::Memory(body.into()));
    let files = vec![Opened { coding: Coding::Identity, version, object: None, content }];
    Found::File { name: b"/name"[..].into(), files, not_unpacked: None }
}

fn file_without_content(number: u64, size: u64) -> Found<u32> {
    let Found::File { name, mut files, not_unpacked } = file(number, &[]) else { unreachable!("made so") };
    files[0].version.size = size;
    files[0].content = None;
    Found::File { name, files, not_unpacked }
}

fn at(nanos: u64) -> Time {
    Time::from_nanos(nanos)
}

/// The cache's answer as text, for comparison.
fn says(cache: &SharedCache, work: &NameWork) -> String {
    format!("{:?}", cache.find::<u32>(at(1_000), work, EVER))
}

fn expected(found: Found<u32>, checked: u64) -> String {
    format!("{:?}", Some((found, at(checked))))
}

#[test]
fn learned_entry_is_found() {
    let cache = cache(1 << 20, 1000, 1000);
    let meanings = || {
        [
            file(1, b"hello"),
            file(2, b""),
            file(3, &[7; 1000]),
            Found::NeedsSlash,
            Found::Directory(FileVersion {
                device: 1,
                inode: 2,
                size: 3,
                mtime_ns: 4,
                ctime_ns: 5,
                is_changing: false,
                is_unpacked: false,
            }),
            Found::Absent,
            Found::Forbidden,
        ]
    };
    for (n, found) in meanings().iter().enumerate() {
        cache.learn(at(5), &work(format!("/{n}")), found);
    }
    for (n, found) in meanings().into_iter().enumerate() {
        assert_eq!(says(&cache, &work(format!("/{n}"))), expected(found, 5));
    }
    assert_eq!(says(&cache, &work("/none")), "None");
    assert_eq!(says(&cache, &NameWork { site: 1, ..work("/1") }), "None");
    assert_eq!(says(&cache, &NameWork { generation: 2, ..work("/1") }), "None");
    let counts = cache.counts();
    assert_eq!((counts.entries, counts.store.insertions, counts.store.hits, counts.store.misses), (7, 7, 7, 3));
    assert_eq!((counts.bytes, counts.repairs), (6 * 512 + 3 * 512, 0), "one block each, and three for the 1000 bytes");
}

#[test]
fn listings_errors_and_large_files_are_not_cached() {
    let cache = cache(1 << 20, 1000, 1000);
    cache.learn(at(5), &work("/list/"), &Found::<u32>::Listing(Listing::new(b"a page".to_vec(), 0, None)));
    cache.learn(at(5), &work("/busy"), &Found::<u32>::Trouble(Trouble::Busy));
    assert_eq!(cache.counts().entries, 0);

    // A file above the maximum size, or one that was opened rather than read, has only its state.
    cache.learn(at(5), &work("/large"), &file(1, &[7; 1001]));
    assert_eq!(says(&cache, &work("/large")), expected(file_without_content(1, 1001), 5));
    let Found::File { name, mut files, not_unpacked } = file_without_content(2, 10) else { unreachable!("made so") };
    files[0].content = Some(Stored::File(9));
    cache.learn(at(5), &work("/opened"), &Found::File { name, files, not_unpacked });
    assert_eq!(says(&cache, &work("/opened")), expected(file_without_content(2, 10), 5));
}

#[test]
fn entry_expires_after_freshness_lifetime() {
    let cache = cache(1 << 20, 1000, 1000);
    cache.learn(at(100), &work("/"), &file(1, b"x"));
    let found = |now, fresh_for| cache.find::<u32>(at(now), &work("/"), Duration::from_nanos(fresh_for)).is_some();
    assert!(found(149, 50));
    assert!(!found(150, 50));
    assert!(found(50, 1), "another process may have started its lookup after this one read its clock");
    assert!(!found(100, 0));
}

#[test]
fn later_lookup_wins() {
    let cache = cache(1 << 20, 1000, 1000);
    cache.learn(at(10), &work("/"), &file(1, b"new"));
    cache.learn(at(9), &work("/"), &Found::<u32>::Absent);
    assert_eq!(says(&cache, &work("/")), expected(file(1, b"new"), 10));
    cache.learn(at(10), &work("/"), &file(2, b"newer"));
    assert_eq!(says(&cache, &work("/")), expected(file(2, b"newer"), 10));
    cache.learn(at(11), &work("/"), &Found::<u32>::Absent);
    assert_eq!(says(&cache, &work("/")), expected(Found::Absent, 11));
}

#[test]
fn content_known_to_requester_is_not_copied() {
    let cache = cache(1 << 20, 1000, 1000);
    let Found::File { name, mut files, not_unpacked } = file(1, &[1; 700]) else { unreachable!("made so") };
    for (number, coding) in [(2, Coding::Brotli), (3, Coding::Gzip)] {
        let Found::File { files: mut more, .. } = file(number, &[number as u8; 600]) else { unreachable!("made so") };
        more[0].coding = coding;
        files.append(&mut more);
    }
    let known = vec![files[1].version];
    cache.learn(at(5), &work("/"), &Found::File { name, files, not_unpacked });
    let Some((Found::File { files, .. }, _)) = cache.find::<u32>(at(9), &NameWork { known, ..work("/") }, EVER) else {
        panic!("the file exists")
    };
    let bodies: Vec<_> = files.iter().map(|opened| format!("{:?}", opened.content)).collect();
    let whole = |byte: u8, length| format!("{:?}", Some(Stored::<u32>::Memory(vec![byte; length].into())));
    assert_eq!(bodies, [whole(1, 700), "None".to_owned(), whole(3, 600)]);
}

/// A caller that has the version gets no content from the disk; that must not remove it for the others.
#[test]
fn content_known_to_requester_is_kept() {
    let cache = cache(1 << 20, 1000, 1000);
    cache.learn(at(5), &work("/"), &file(1, &[1; 700]));
    cache.learn(at(6), &work("/"), &file_without_content(1, 700));
    assert_eq!(says(&cache, &work("/")), expected(file(1, &[1; 700]), 6));
    // The content belongs to another version.
    cache.learn(at(7), &work("/"), &file_without_content(2, 700));
    assert_eq!(says(&cache, &work("/")), expected(file_without_content(2, 700), 7));
}

/// A caller that has cached the name but not its content requests only the content.
#[test]
fn missing_content_is_requested_separately() {
    let cache = cache(1 << 20, 1000, 1000);
    let opened = |found| match found {
        Found::File { mut files, .. } => files.remove(0),
        other => panic!("{other:?} is not a file"),
    };
    let missing = |number, size| {
        let Opened { coding, version, .. } = opened(file_without_content(number, size));
        NameWork { missing: Some(Missing { name: b"/name"[..].into(), coding, version }), ..work("/") }
    };
    let content = |number, body: &[u8]| Found::Missing(opened(file(number, body)));

    cache.learn(at(5), &missing(1, 700), &content(1, &[1; 700]));
    assert_eq!(cache.counts().entries, 0, "a content alone does not define the name");
    cache.learn(at(5), &work("/"), &file_without_content(1, 700));
    assert_eq!(says(&cache, &missing(1, 700)), "None");
    cache.learn(at(9), &missing(1, 700), &content(1, &[1; 700]));
    assert_eq!(says(&cache, &missing(1, 700)), expected(content(1, &[1; 700]), 5));
    assert_eq!(says(&cache, &work("/")), expected(file(1, &[1; 700]), 5));
    let aged = cache.find::<u32>(at(1000), &missing(1, 700), Duration::ZERO);
    assert_eq!(format!("{aged:?}"), expected(content(1, &[1; 700]), 5), "of that version at any time");

    // The name refers to another file by now, which is the answer, as from the disk.
    assert_eq!(says(&cache, &missing(2, 700)), expected(file(1, &[1; 700]), 5));
    cache.learn(at(9), &missing(2, 700), &content(2, &[2; 700]));
    assert_eq!(says(&cache, &work("/")), expected(file(1, &[1; 700]), 5));
    let too_large = content(1, &[1; 1001]);
    cache.learn(at(10), &work("/"), &file_without_content(1, 1001));
    cache.learn(at(11), &missing(1, 1001), &too_large);
    assert_eq!(says(&cache, &missing(1, 1001)), "None");
    assert_eq!(says(&cache, &work("/")), expected(file_without_content(1, 1001), 10));
    audit(&cache);
}

#[test]
fn invalidation_removes_entries() {
    let cache = cache(1 << 20, 1000, 1000);
    for n in 0..100 {
        cache.learn(at(5), &work(format!("/{n}")), &file(n, b"x"));
    }
    cache.invalidate(1, 0, b"/50");
    cache.invalidate(1, 0, b"/none");
    assert_eq!(says(&cache, &work("/50")), "None");
    assert_eq!(cache.counts().entries, 99);
    audit(&cache);
    cache.clear();
    let counts = cache.counts();
    assert_eq!((counts.entries, counts.bytes, counts.store.insertions), (0, 0, 100));
    audit(&cache);
}

#[test]
fn least_recently_used_entry_of_shard_is_evicted() {
    let cache = cache(16 * 512, 512, 3);
    assert_eq!(cache.layout.shards, 1);
    for n in 0..3 {
        cache.learn(at(5), &work(format!("/{n}")), &Found::<u32>::Absent);
    }
    assert_ne!(says(&cache, &work("/0")), "None");
    // After another lookup on the disk it still counts as used.
    cache.learn(at(6), &work("/0"), &Found::<u32>::Absent);
    for n in 3..20 {
        cache.learn(at(5), &work(format!("/{n}")), &Found::<u32>::Absent);
        assert_ne!(says(&cache, &work("/0")), "None", "in use after {n}");
    }
    assert_eq!((cache.counts().entries, cache.counts().store.evictions), (3, 17));
}

#[test]
fn too_small_budget_is_rejected() {
    let settings = |bytes, entries| budgets(Bytes(bytes), Bytes::kib(32), entries);
    for (bytes, entries) in [(0, 10), (511, 10), (1 << 20, 0)] {
        let error = SharedCache::new(&settings(bytes, entries)).expect_err("too small");
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
        assert!(error.to_string().contains("switch it off"), "{error}");
    }
    assert!(SharedCache::new(&settings(u64::MAX, usize::MAX)).is_err());

    // A body that would use most of its shard is not stored, only its state; a name too long for it is refused.
    let cache = SharedCache::new(&settings(8 * 512, 10)).expect("memory");
    cache.learn(at(5), &work("/"), &file(1, &[1; 2 * 512 + 1]));
    assert_eq!(says(&cache, &work("/")), expected(file_without_content(1, 2 * 512 + 1), 5));
    cache.learn(at(6), &work("/"), &file(1, &[1; 2 * 512]));
    assert_eq!(says(&cache, &work("/")), expected(file(1, &[1; 2 * 512]), 6));
    cache.learn(at(5), &work([b'x'; 8 * 512]), &Found::<u32>::Absent);
    assert_eq!((cache.counts().store.refusals, cache.counts().entries), (1, 1));
}

#[test]
fn shards_use_whole_budget() {
    for (bytes, file_max, entries) in [(64 << 20, 32 << 10, 8192), (1 << 20, 100 << 10, 10), (1 << 30, 0, 100_000)] {
        let settings = budgets(Bytes(bytes), Bytes(file_max), entries);
        let layout = Layout::of(&settings).expect("enough");
        let Layout { shards, nodes, blocks, .. } = layout;
        assert!(shards <= SHARDS_MAX && shards * nodes <= entries && shards * blocks * BLOCK <= bytes as usize);
        assert!(shards * nodes > entries - shards && shards * blocks * BLOCK > bytes as usize - shards * 2 * BLOCK);
        assert_eq!(layout.shard_bytes(), layout.blocks_at() + blocks * BLOCK);
    }
}

/// Checks that every node and every block of every shard is in exactly one place, and that the counts are right.
fn audit(cache: &SharedCache) {
    for part in 0..cache.layout.shards {
        let sound = cache.shard(part, |shard| {
            let layout = shard.layout;
            let (mut nodes, mut blocks) = (vec![0; layout.nodes + 1], vec![0; layout.blocks + 1]);
            let chain_of_blocks = |first: u64, blocks: &mut Vec<i32>| {
                let (mut block, mut count) = (first, 0);
                while block != 0 {
                    blocks[block as usize] += 1;
                    assert_eq!(blocks[block as usize], 1, "block {block} twice");
                    block = shard.guard.word(shard.link_at(block)?)?;
                    count += 1;
                }
                Sound::Ok(count)
            };
            let (mut entries, mut used) = (0, 0);
            for chain in 0..layout.chains {
                let mut id = shard.guard.word((HEAD_WORDS + chain) * 8)?;
                while id != 0 {
                    nodes[id as usize] += 1;
                    assert_eq!(nodes[id as usize], 1, "node {id} twice");
                    let node = shard.node(id)?;
                    assert_eq!(shard.chain_at(node.hash), (HEAD_WORDS + chain) * 8);
                    let count = chain_of_blocks(node.first, &mut blocks)?;
                    assert_eq!(count, (node.key + node.outline + node.bodies).div_ceil(BLOCK as u64));
                    (entries, used, id) = (entries + 1, used + count, node.next);
                }
            }
            assert_eq!((shard.get(ENTRIES), shard.get(BLOCKS)), (entries, used));
            let mut free = shard.get(FREE_NODE);
            while free != 0 {
                nodes[free as usize] += 1;
                free = shard.node(free)?.next;
            }
            chain_of_blocks(shard.get(FREE_BLOCK), &mut blocks)?;
            for (all, fresh) in [(nodes, FRESH_NODE), (blocks, FRESH_BLOCK)] {
                let fresh = shard.get(fresh) as usize;
                assert!(all[1..=fresh].iter().all(|&count| count == 1), "missing or duplicated: {all:?}");
                assert!(all[fresh + 1..].iter().all(|&count| count == 0), "never allocated, but present: {all:?}");
            }
            Ok(())
        });
        assert!(sound.is_some(), "shard {part} is corrupt");
    }
}

#[derive(Clone, Debug)]
enum Step {
    Learn { name: u8, requested: u64 },
    Find { name: u8 },
    Invalidation { name: u8 },
    Clear,
}

fn steps() -> impl Strategy<Value = Vec<(Step, Vec<Opened<u32>>)>> {
    let step = prop_oneof![
        10 => (0u8..24, 0u64..50).prop_map(|(name, requested)| Step::Learn { name, requested }),
        10 => (0u8..24).prop_map(|name| Step::Find { name }),
        2 => (0u8..24).prop_map(|name| Step::Invalidation { name }),
        1 => Just(Step::Clear),
    ];
    // No larger than a quarter of the smallest shard, so that a body is omitted only because of its own size.
    prop::collection::vec((step, prop::collection::vec(opened(600), 0..3)), 0..150)
}

/// Names of up to a few blocks.
fn name(n: u8) -> NameWork {
    work([b"/".to_vec(), vec![n; 1 + usize::from(n) * 50]].concat())
}

/// The answer with these files, or "absent" without files.
fn answer(files: Vec<Opened<u32>>) -> Found<u32> {
    match files.is_empty() {
        true => Found::Absent,
        false => Found::File { name: b"/x"[..].into(), files, not_unpacked: None },
    }
}

/// The cache's expected answer: contents that can be stored, and no descriptors.
fn kept(found: &Found<u32>, file_max: usize) -> String {
    let Found::File { name, files, not_unpacked } = found else { return format!("{found:?}") };
    let keep = |opened: &Opened<u32>| {
        let content = match &opened.content {
            Some(Stored::Memory(body)) if body.len() <= file_max => Some(Stored::Memory(body.clone())),
            _ => None,
        };
        Opened { content, object: opened.object.clone(), ..*opened }
    };
    let (name, files) = (Arc::clone(name), files.iter().map(keep).collect());
    format!("{:?}", Found::File { name, files, not_unpacked: *not_unpacked })
}

proptest! {
    /// With room for everything nothing is lost; with little, a lookup returns the answer stored last, or nothing.
    #[test]
    fn cache_agrees_with_model(steps in steps(), roomy in any::<bool>()) {
        let cache = if roomy { cache(1 << 17, 400, 31) } else { cache(3 * 16 * 512, 400, 3 * 16) };
        prop_assert_eq!(cache.layout.shards, if roomy { 1 } else { 3 });
        let mut model: HashMap<u8, (u64, String)> = HashMap::new();
        for (step, files) in steps {
            match step {
                Step::Learn { name: n, requested } => {
                    let found = answer(files);
                    let before = cache.find::<u32>(at(0), &name(n), EVER).map(|(_, checked)| checked);
                    cache.learn(at(requested), &name(n), &found);
                    if before.is_none_or(|checked| checked <= at(requested)) {
                        model.insert(n, (requested, kept(&found, 400)));
                        prop_assert!(cache.find::<u32>(at(0), &name(n), EVER).is_some(), "lost at once");
                    }
                }
                Step::Find { name: n } => match cache.find::<u32>(at(0), &name(n), EVER) {
                    Some((found, checked)) => {
                        let said = (checked.as_nanos(), format!("{found:?}"));
                        prop_assert_eq!(Some(&said), model.get(&n));
                    }
                    None => prop_assert!(!roomy || !model.contains_key(&n)),
                },
                Step::Invalidation { name: n } => {
                    cache.invalidate(1, 0, &name(n).path);
                    model.remove(&n);
                }
                Step::Clear => {
                    cache.clear();
                    model.clear();
                }
            }
            audit(&cache);
        }
        prop_assert_eq!(cache.counts().repairs, 0);
    }

    /// Random data in the memory neither makes a process panic nor loop forever; and a cleared cache is like new.
    #[test]
    fn random_memory_does_not_panic_or_loop(
        steps in steps(),
        nonsense in prop::collection::vec((any::<prop::sample::Index>(), prop_oneof![0u64..20, any::<u64>()]), 1..200),
    ) {
        let cache = cache(16 * 512, 400, 8);
        let mut nonsense = nonsense.into_iter();
        for (step, files) in steps {
            match step {
                Step::Learn { name: n, requested } => cache.learn(at(requested), &name(n), &answer(files)),
                Step::Find { name: n } => drop(cache.find::<u32>(at(0), &name(n), EVER)),
                Step::Invalidation { name: n } => cache.invalidate(1, 0, &name(n).path),
                Step::Clear => cache.clear(),
            }
            if let Some((place, word)) = nonsense.next() {
                let guard = cache.region.lock_mended(0, PATIENCE, |_| ()).expect("locked");
                guard.set_word(place.index(cache.layout.blocks_at() + 512) / 8 * 8, word).expect("inside");
            }
        }
        cache.clear();
        cache.learn(at(9), &name(1), &file(1, b"again"));
        prop_assert_eq!(says(&cache, &name(1)), expected(file(1, b"again"), 9));
        audit(&cache);
    }
}

/// Marks the test program as a child, and names its role.
const ROLE: &str = "AMPED_TEST_ROLE";

/// Longer than anything here takes. A child whose parent has ended exits after it.
const PATIENCE: Duration = Duration::from_secs(60);

fn settings() -> Budgets {
    budgets(Bytes::mib(1), Bytes::kib(4), 256)
}

/// A process that ends with its test.
struct Process(Child);

impl Process {
    /// Starts this test program as a child that runs this test.
    fn start(test: &str, role: &str, cache: &SharedCache) -> Process {
        let memory = cache.region.as_fd().try_clone_to_owned().expect("descriptor");
        let mut command = Command::new(env::current_exe().expect("this program"));
        command.args(["--exact", &format!("shared_cache::tests::{test}"), "--nocapture", "--test-threads=1"]);
        command.env(ROLE, role).stdin(Stdio::from(memory)).stdout(Stdio::piped());
        Process(command.spawn().expect("a second one"))
    }

    /// Kills it; it must still be running.
    fn kill(&mut self) {
        self.0.kill().expect("kill the child");
        let status = self.0.wait().expect("our child");
        assert_eq!(status.signal(), Some(9), "exited on its own: {status}; see its output above");
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A child's view of the cache.
fn inherited() -> SharedCache {
    let region = Region::open(io::stdin().as_fd().try_clone_to_owned().expect("descriptor")).expect("the memory");
    let layout = Layout::of(&settings()).expect("as its parent");
    assert_eq!((region.parts(), region.part_bytes()), (layout.shards, layout.shard_bytes()));
    let mut cache = SharedCache { region, layout, seed: 0 };
    // Read without a repair: the last child may have died in the first shard.
    let seed = |guard: &Guard<'_>| guard.word(SEED * 8).expect("inside");
    cache.seed = match cache.region.lock(0, PATIENCE) {
        Ok(guard) => seed(&guard),
        Err(why) => {
            let repaired = why.mend(|guard| Shard { guard, layout: &cache.layout }.repair());
            seed(&repaired.expect("locked"))
        }
    };
    cache
}

/// Fails if `act` takes longer than [`PATIENCE`], as it would if a lock were never released.
fn in_time<T: Send + 'static>(act: impl FnOnce() -> T + Send + 'static) -> T {
    let (to, from) = mpsc::channel();
    let acting = thread::spawn(move || to.send(act()));
    match from.recv_timeout(PATIENCE) {
        Ok(result) => result,
        Err(mpsc::RecvTimeoutError::Timeout) => panic!("timed out"),
        Err(mpsc::RecvTimeoutError::Disconnected) => match acting.join() {
            Err(panic) => std::panic::resume_unwind(panic),
            Ok(_) => unreachable!("it has sent before"),
        },
    }
}

fn part_of(cache: &SharedCache, work: &NameWork) -> usize {
    cache.part(&Key::new(cache.seed, work.generation, work.site, &work.path))
}

/// To the others, a thread that keeps the lock is the same as a process that was stopped.
#[test]
fn process_stopped_in_lock_does_not_stop_others() {
    in_time(|| {
        let cache = SharedCache::new(&settings()).expect("memory");
        let victim = work("/victim");
        let other =
            (0..).map(|n| work(format!("/{n}"))).find(|other| part_of(&cache, other) != part_of(&cache, &victim));
        let other = other.expect("there are several shards");
        cache.learn(at(1), &victim, &file(1, b"old"));
        let (held, release) = (Barrier::new(2), Barrier::new(2));
        thread::scope(|scope| {
            scope.spawn(|| {
                let _guard = cache.region.lock(part_of(&cache, &victim), PATIENCE).expect("sound");
                held.wait();
                release.wait();
            });
            held.wait();
            assert_eq!(says(&cache, &victim), "None");
            cache.learn(at(2), &other, &file(2, b"kept"));
            cache.invalidate(1, 0, &victim.path);
            release.wait();
        });
        assert_eq!(says(&cache, &victim), "None", "invalidated while its shard was locked");
        assert_eq!(says(&cache, &other), expected(file(2, b"kept"), 2));
        cache.learn(at(3), &victim, &file(3, b"again"));
        assert_eq!(says(&cache, &victim), expected(file(3, b"again"), 3));
        audit(&cache);
    });
}

#[test]
fn process_killed_in_lock_resets_only_its_shard() {
    let victim = work("/victim");
    if env::var_os(ROLE).is_some() {
        let cache = inherited();
        let guard = cache.region.lock(part_of(&cache, &victim), PATIENCE).expect("no holder has died yet");
        // The worst possible state, except for the counters.
        for at in (0..SEED * 8).chain(HEAD_WORDS * 8..cache.layout.shard_bytes() - 8).step_by(8) {
            guard.set_word(at, 0xdead_beef_dead_beef).expect("inside");
        }
        println!("inside");
        thread::sleep(PATIENCE);
        return;
    }
    in_time(move || {
        let cache = Arc::new(SharedCache::new(&settings()).expect("memory"));
        cache.learn(at(1), &victim, &file(1, b"lost"));
        let others: Vec<_> = (0..40).map(|n| work(format!("/{n}"))).collect();
        others.iter().for_each(|other| cache.learn(at(1), other, &file(2, b"kept")));
        let here = || others.iter().filter(|other| says(&cache, other) == expected(file(2, b"kept"), 1)).count();
        let with_victim = others.iter().filter(|other| part_of(&cache, other) == part_of(&cache, &victim)).count();
        assert_eq!(here(), 40);

        let mut process = Process::start("process_killed_in_lock_resets_only_its_shard", "dies", &cache);
        let said = BufReader::new(process.0.stdout.take().expect("piped")).lines();
        assert!(said.map_while(Result::ok).any(|line| line.contains("inside")), "the process never reached the lock");
        let waiting = {
            let (cache, victim) = (Arc::clone(&cache), victim.clone());
            thread::spawn(move || says(&cache, &victim))
        };
        process.kill();
        assert_eq!(waiting.join().expect("no panic"), "None");
        assert_eq!(cache.counts().repairs, 1);
        assert_eq!(here(), 40 - with_victim);
        cache.learn(at(2), &victim, &file(3, b"again"));
        assert_eq!(says(&cache, &victim), expected(file(3, b"again"), 2));
        audit(&cache);
    });
}

/// A pseudo-random sequence (SplitMix64).
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}

/// The file of this name in this version: both determine it completely, so that
/// a reader can check whether it is intact.
fn derived(name: u64, version: u64) -> Found<u32> {
    let mut numbers = Numbers(name << 32 ^ version);
    let length = numbers.next() % 4096;
    let body: Vec<u8> = (0..length.div_ceil(8)).flat_map(|_| numbers.next().to_ne_bytes()).collect();
    file(version, &body[..length as usize])
}

const NAMES: u64 = 600;

/// Stores and looks up in an endless loop, and checks all results.
fn hammer(cache: &SharedCache, seed: u64) {
    let mut numbers = Numbers(seed);
    let start = Instant::now();
    while start.elapsed() < PATIENCE {
        let name = numbers.next() % NAMES;
        let work = work(format!("/{name}"));
        let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_nanos() as u64;
        match numbers.next() % 20 {
            0 => cache.invalidate(1, 0, &work.path),
            1..8 => cache.learn(at(now), &work, &derived(name, numbers.next() % 1000)),
            _ => verify(name, cache.find(at(now), &work, EVER).map(|(found, _)| found)),
        }
    }
}

fn verify(name: u64, found: Option<Found<u32>>) {
    let parts = |found: Found<u32>| match found {
        Found::File { mut files, .. } if files.len() == 1 => match files.remove(0) {
            Opened { version, content: Some(Stored::Memory(body)), .. } => (version, body),
            other => panic!("stored with its body: {other:?}"),
        },
        other => panic!("stored as one file: {other:?}"),
    };
    let Some((version, body)) = found.map(parts) else { return };
    assert!((version, body) == parts(derived(name, version.inode)), "/{name} in version {version:?} is damaged");
}

#[test]
fn processes_killed_at_random_do_not_corrupt_cache() {
    const TEST: &str = "processes_killed_at_random_do_not_corrupt_cache";
    if let Ok(seed) = env::var(ROLE) {
        return hammer(&inherited(), seed.parse().expect("a number"));
    }
    let (kills, counts) = in_time(|| {
        let cache = SharedCache::new(&settings()).expect("memory");
        assert_eq!(cache.layout.shards, 16);
        let mut processes: Vec<Process> = (0..4).map(|n| Process::start(TEST, &format!("{n}"), &cache)).collect();
        const KILLS: usize = 150;
        for kill in 0..KILLS {
            // Wait until the others are in the middle of their work, and this one has made progress.
            let hits = cache.counts().store.hits;
            while cache.counts().store.hits < hits + 200 {
                for process in &mut processes {
                    let ended = process.0.try_wait().expect("our child");
                    assert!(ended.is_none(), "exited on its own: {ended:?}; see its output above");
                }
                thread::yield_now();
            }
            let oldest = &mut processes[kill % 4];
            oldest.kill();
            *oldest = Process::start(TEST, &format!("{}", kill + 4), &cache);
        }
        processes.iter_mut().for_each(Process::kill);

        // Everything left is intact, and every shard can be read and written.
        for name in 0..NAMES {
            let work = work(format!("/{name}"));
            verify(name, cache.find(Time::NEVER, &work, EVER).map(|(found, _)| found));
            cache.learn(Time::NEVER, &work, &derived(name, 7));
            verify(name, cache.find(Time::NEVER, &work, EVER).map(|(found, _)| found));
        }
        audit(&cache);
        for part in 0..cache.layout.shards {
            assert!(cache.shard(part, |shard| Ok(shard.get(ENTRIES))) > Some(0), "shard {part} is unusable");
        }
        (KILLS, cache.counts())
    });
    println!("{kills} kills: {counts:?}");
}
