//! One cache for a pool of processes: the results of name lookups and the bodies of small files, in shared memory.
//!
//! This is the user-level cache of Hu, Nanda and Yang (section 5.2), for processes forked from one parent, which
//! creates it first ([`SharedCache::new`]). A process that has not cached a name looks here
//! ([`find`](SharedCache::find)) before it looks on the disk, and stores the result here
//! ([`learn`](SharedCache::learn)). As in the paper there are a hash table, nodes in a table of fixed size, a budget of
//! bytes, and a maximum size of a cached body, above which only the state of the file is stored. In place of
//! LastCachedTime there is the time of the disk lookup.
//!
//! **One lock, one shard.** The paper has a lock for each hash chain but one budget for all, so that making room for an
//! entry changes the chain of another, and a process that dies meanwhile leaves two of them inconsistent. Here the
//! cache is divided into up to 64 shards by the hash of the name, and each has its own lock and everything that the
//! lock protects: chains, nodes, and its share of the bytes and of the entries. From this follow
//!
//! - no deadlock: the holder of a lock takes no second one, and accesses neither disk nor network until it is released;
//! - the budgets: all shares together do not exceed the whole, so no common count is needed;
//! - repair: when a process dies with a lock, at whatever point, the next one that takes the lock empties the shard,
//!   and nothing else was being changed. A cache may lose data; it must not return wrong data.
//!
//! The price is that a shard may be full while another is not. A keyed hash distributes the names, and a shard has room
//! for 16 of the largest bodies, so this costs a few entries, and does not depend on the kind of file.
//!
//! An entry consists of chained blocks of [`BLOCK`] bytes: its key, the outline of the answer (`portable`), its bodies.
//! Blocks and nodes return to free lists, so nothing is ever moved and nothing is fragmented. CLOCK selects the entry
//! to evict, as in `core/cache/policy`. All links are numbers, 0 is none, and new memory is zero: so an empty shard is
//! one whose header and chains are zero, memory is touched only as it is used, and the mapping may be at any address.

use std::fmt;
use std::hash::{BuildHasher, DefaultHasher, Hasher, RandomState};
use std::io;
use std::ops::Range;
use std::time::Duration;

use amped_core::cache::Budgets;
use amped_core::cache::policy::StoreCounts;
use amped_core::event::{Found, NameWork, Opened};
use amped_core::file::{FileVersion, Stored};
use amped_sys::shared::{Guard, Outside, PATIENCE, Region};
use amped_units::Time;

use crate::portable::{self, Malformed};

/// Statistics of all processes together, and what is stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SharedCounts {
    /// Lookups and changes. A refusal is an entry that is larger than a shard.
    pub store: StoreCounts,
    /// Shards that were emptied because a process died, or panicked, in the middle of a change.
    pub repairs: u64,
    /// Names stored.
    pub entries: u64,
    /// Bytes used, in whole blocks.
    pub bytes: u64,
}

impl fmt::Display for SharedCounts {
    /// A line like those of [`Snapshot`](crate::counters::Snapshot).
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let SharedCounts { store, repairs, entries, bytes } = self;
        write!(
            f,
            "shared cache: hits={} misses={} insertions={} evictions={} refusals={} repairs={repairs} entries={entries} \
             bytes={bytes}",
            store.hits, store.misses, store.insertions, store.evictions, store.refusals
        )
    }
}

/// One process's view of the cache.
#[derive(Debug)]
pub struct SharedCache {
    region: Region,
    layout: Layout,
    /// The key of the hash; without it, attackers could choose names that all fall into one chain.
    seed: u64,
}

impl SharedCache {
    /// Creates an empty cache; must be called before the fork.
    ///
    /// # Errors
    /// Those of [`Region::new`]; `InvalidInput` if the budgets do not suffice for a single entry.
    pub fn new(settings: &Budgets) -> io::Result<SharedCache> {
        let layout = Layout::of(settings)?;
        let region = Region::new(layout.shards, layout.shard_bytes())?;
        let cache = SharedCache { region, layout, seed: RandomState::new().hash_one(()) };
        cache.shard(0, |shard| {
            shard.set(SEED, cache.seed);
            Ok(())
        });
        Ok(cache)
    }

    /// Returns the result of a disk lookup that is less than `fresh_for` old, and its time.
    ///
    /// A file includes its content only if it is cached here and `work` does not have it already. A file that is
    /// larger than `file_max`, or was being written to, has only its state: a caller that needs the content
    /// finds it `missing`, and must get it elsewhere. A missing content that is cached is valid
    /// at any age, because it belongs to its version.
    pub fn find<F>(&self, now: Time, work: &NameWork, fresh_for: Duration) -> Option<(Found<F>, Time)> {
        self.entry(work.generation, work.site, &work.path, |shard, key| {
            let found = match shard.seek(key)? {
                Some((_, id, node)) => shard.answer(&node, now, work, fresh_for)?.map(|found| (found, id, node)),
                None => None,
            };
            let Some((found, id, node)) = found else {
                shard.add(MISSES, 1);
                return Ok(None);
            };
            if node.used == 0 {
                shard.set_node(id, &Node { used: 1, ..node })?;
            }
            shard.add(HITS, 1);
            Ok(Some((found, Time::from_nanos(node.checked))))
        })?
    }

    /// Returns the versions of files whose bodies are cached under this name, at any age: a process that looks up the
    /// name on the disk need not read them again.
    pub fn bodies_of(&self, work: &NameWork) -> Vec<FileVersion> {
        let versions = self.entry(work.generation, work.site, &work.path, |shard, key| {
            let mut versions = Vec::new();
            if let Some((_, _, node)) = shard.seek(key)? {
                shard.value::<()>(&node, |version| {
                    versions.push(*version);
                    false
                })?;
            }
            Ok(versions)
        });
        versions.unwrap_or_default()
    }

    /// Stores the disk's result of a lookup at the time `requested`. The result of a later lookup is kept;
    /// contents that the caller already had, and so did not get, stay with it. Listings and errors are not
    /// stored; open files only with their state.
    pub fn learn<F>(&self, requested: Time, work: &NameWork, found: &Found<F>) {
        let requested = requested.as_nanos();
        self.entry(work.generation, work.site, &work.path, |shard, key| {
            let old = shard.seek(key)?;
            match (found, &old) {
                (Found::Listing(_) | Found::Trouble(_), _) | (Found::Missing(_), None) => Ok(()),
                // The content of a version that the entry has already. The name itself was not looked up.
                (Found::Missing(Opened { version, content: Some(Stored::Memory(body)), .. }), Some((_, _, node))) => {
                    let mut bodies = shard.bodies(node)?;
                    bodies.push((*version, body.clone()));
                    shard.put(key, &old, node.checked, &shard.value::<()>(node, |_| false)?, &bodies)
                }
                (Found::Missing(_), Some(_)) => Ok(()),
                (_, Some((_, _, node))) if node.checked > requested => Ok(()),
                (_, Some((_, _, node))) if lacks_content(found, &[]) => {
                    shard.put(key, &old, requested, found, &shard.bodies(node)?)
                }
                _ => shard.put(key, &old, requested, found, &[]),
            }
        });
    }

    /// Drops a name. A process that began a disk lookup before this may still store the old result.
    pub fn invalidate(&self, generation: u32, site: u16, path: &[u8]) {
        let key = Key::new(self.seed, generation, site, path);
        let part = self.part(&key);
        let dropped = self.shard(part, |shard| match shard.seek(&key)? {
            Some((link, id, node)) => shard.remove(link, id, &node),
            None => Ok(()),
        });
        if dropped.is_none() {
            // The next process that locks the shard empties it.
            self.region.spoil(part);
        }
    }

    /// Drops everything; the counters continue.
    pub fn clear(&self) {
        for part in 0..self.layout.shards {
            self.shard(part, |shard| {
                shard.empty();
                Ok(())
            });
        }
    }

    /// Returns the counters of all processes, and what is stored. Takes one lock after the
    /// other, so it is not a consistent snapshot.
    pub fn counts(&self) -> SharedCounts {
        let mut sum = SharedCounts::default();
        for part in 0..self.layout.shards {
            self.shard(part, |shard| {
                sum.store.hits += shard.get(HITS);
                sum.store.misses += shard.get(MISSES);
                sum.store.insertions += shard.get(INSERTIONS);
                sum.store.evictions += shard.get(EVICTIONS);
                sum.store.refusals += shard.get(REFUSALS);
                sum.repairs += shard.get(REPAIRS);
                sum.entries += shard.get(ENTRIES);
                sum.bytes += shard.get(BLOCKS) * BLOCK as u64;
                Ok(())
            });
        }
        sum
    }

    /// Runs a function on the shard of a name.
    fn entry<T>(
        &self,
        generation: u32,
        site: u16,
        path: &[u8],
        act: impl FnOnce(&Shard<'_>, &Key) -> Sound<T>,
    ) -> Option<T> {
        let key = Key::new(self.seed, generation, site, path);
        self.shard(self.part(&key), |shard| act(shard, &key))
    }

    fn part(&self, key: &Key) -> usize {
        (key.hash % self.layout.shards as u64) as usize
    }

    /// Runs a function on a shard under its lock. Returns `None` if the shard is found to be corrupt, after emptying it,
    /// or if a process that was stopped has its lock: the others continue without this shard.
    fn shard<T>(&self, part: usize, act: impl FnOnce(&Shard<'_>) -> Sound<T>) -> Option<T> {
        let layout = &self.layout;
        let mend = |guard: &Guard<'_>| Shard { guard, layout }.repair();
        let guard = self.region.lock_mended(part, PATIENCE, mend)?;
        act(&Shard { guard: &guard, layout }).map_err(|Corrupt| mend(&guard)).ok()
    }
}

/// Returns whether an answer lacks a content, of another version than the known ones.
pub fn lacks_content<F>(found: &Found<F>, known: &[FileVersion]) -> bool {
    let (Found::File { files, .. } | Found::Variants { files, .. }) = found else { return false };
    files.iter().any(|opened| opened.content.is_none() && !known.contains(&opened.version))
}

/// Size of a block. An entry fills half of its last one on average, so smaller blocks waste less but take more steps.
const BLOCK: usize = 512;

/// The layout of a shard: its header, the heads of the chains, the nodes, the successor of each block, the blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Layout {
    shards: usize,
    /// In each shard: chains, nodes, blocks.
    chains: usize,
    nodes: usize,
    blocks: usize,
    file_max: usize,
}

/// Maximum shards: enough that some tens of processes on a few cores rarely contend.
const SHARDS_MAX: usize = 64;

impl Layout {
    /// Chooses the number of shards so that each has room for 16 of the largest bodies, and 16 entries.
    fn of(settings: &Budgets) -> io::Result<Layout> {
        let (bytes, file_max) = (settings.content_bytes.as_usize(), settings.max_content_file_bytes.as_usize());
        let shards =
            (bytes / file_max.max(BLOCK).saturating_mul(16)).min(settings.path_entries / 16).clamp(1, SHARDS_MAX);
        let (nodes, blocks) = (settings.path_entries / shards, bytes / shards / BLOCK);
        if nodes == 0 || blocks == 0 {
            let (bytes, entries) = (settings.content_bytes, settings.path_entries);
            let why = format!(
                "a shared cache of {bytes} and {entries} entries is too small: it needs at least {BLOCK} bytes and one \
                 entry; otherwise switch it off"
            );
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        }
        Ok(Layout { shards, chains: nodes, nodes, blocks, file_max })
    }

    /// Returns the maximum size of the bodies of one entry, so that none evicts most of its shard: a quarter, which
    /// holds a file of the maximum size and its three siblings.
    fn bodies_max(&self) -> usize {
        self.blocks * BLOCK / 4
    }

    fn nodes_at(&self) -> usize {
        (HEAD_WORDS + self.chains) * 8
    }

    fn links_at(&self) -> usize {
        self.nodes_at() + self.nodes * NODE_BYTES
    }

    fn blocks_at(&self) -> usize {
        self.links_at() + self.blocks * 8
    }

    /// Saturates; allocating that much fails later.
    fn shard_bytes(&self) -> usize {
        let nodes = self.nodes.saturating_mul(NODE_BYTES + 8);
        self.blocks.saturating_mul(BLOCK + 8).saturating_add(nodes).saturating_add(HEAD_WORDS * 8)
    }
}

/// The words of a shard's header. Those up to `BLOCKS` are zero in an empty one.
const HAND: usize = 0;
const FREE_NODE: usize = 1;
/// Nodes that have been used, `1..=FRESH_NODE`; those above are free as well.
const FRESH_NODE: usize = 2;
const FREE_BLOCK: usize = 3;
const FRESH_BLOCK: usize = 4;
const ENTRIES: usize = 5;
const BLOCKS: usize = 6;
/// In the first shard only.
const SEED: usize = 7;
const HITS: usize = 8;
const MISSES: usize = 9;
const INSERTIONS: usize = 10;
const EVICTIONS: usize = 11;
const REFUSALS: usize = 12;
const REPAIRS: usize = 13;
const HEAD_WORDS: usize = 16;

/// An entry's node, one word per field. Free nodes have no `first` block, and their `next` is the next free one.
#[derive(Clone, Copy, Debug, Default)]
struct Node {
    hash: u64,
    /// Time of the disk lookup, nanoseconds since the start.
    checked: u64,
    /// The next node of the chain.
    next: u64,
    /// The first block of the chain that contains the key, the outline and the bodies.
    first: u64,
    /// Their sizes, bytes.
    key: u64,
    outline: u64,
    bodies: u64,
    /// 1 if it was found since the CLOCK hand last passed.
    used: u64,
}

const NODE_BYTES: usize = 64;
/// The position of `next` in a node.
const NEXT: usize = 16;

/// A name to look up.
struct Key {
    hash: u64,
    bytes: Vec<u8>,
}

impl Key {
    fn new(seed: u64, generation: u32, site: u16, path: &[u8]) -> Key {
        let bytes = [&generation.to_ne_bytes(), &site.to_ne_bytes()[..], path].concat();
        // All processes run one program, so its hash is the same in all.
        let mut hasher = DefaultHasher::new();
        hasher.write_u64(seed);
        hasher.write(&bytes);
        Key { hash: hasher.finish(), bytes }
    }
}

/// A shard is inconsistent and must be emptied.
struct Corrupt;

type Sound<T> = Result<T, Corrupt>;

impl From<Outside> for Corrupt {
    fn from(_: Outside) -> Corrupt {
        Corrupt
    }
}

/// The position for further reading or writing.
struct Cursor {
    block: u64,
    within: usize,
}

/// A shard whose lock is held. Its data are validated before use; a walk ends after as
/// many steps as there are nodes or blocks.
struct Shard<'a> {
    guard: &'a Guard<'a>,
    layout: &'a Layout,
}

impl Shard<'_> {
    fn get(&self, word: usize) -> u64 {
        self.guard.word(word * 8).expect("the header is inside every shard")
    }

    fn set(&self, word: usize, value: u64) {
        self.guard.set_word(word * 8, value).expect("the header is inside every shard");
    }

    fn add(&self, word: usize, value: u64) {
        self.set(word, self.get(word).wrapping_add(value));
    }

    /// Removes everything.
    fn empty(&self) {
        self.guard.zero(0, SEED * 8).expect("the header is inside every shard");
        self.guard.zero(HEAD_WORDS * 8, self.layout.chains * 8).expect("the chains are inside every shard");
    }

    fn repair(&self) {
        self.empty();
        self.add(REPAIRS, 1);
    }

    /// Returns an entry as the result of a lookup, or `None` if it is too old, or the
    /// missing content is not cached here either.
    fn answer<F>(&self, node: &Node, now: Time, work: &NameWork, fresh_for: Duration) -> Sound<Option<Found<F>>> {
        if let Some(missing) = &work.missing
            && let Found::File { files, .. } | Found::Variants { files, .. } =
                self.value(node, |version| *version == missing.version)?
            && let Some(Opened { version, object, content, .. }) =
                files.into_iter().find(|file| file.version == missing.version)
        {
            let opened = Opened { coding: missing.coding, version, object, content };
            return Ok(opened.content.is_some().then_some(Found::Missing(opened)));
        }
        match now.since(Time::from_nanos(node.checked)) < fresh_for {
            true => self.value(node, |version| !work.known.contains(version)).map(Some),
            false => Ok(None),
        }
    }

    /// Stores an answer in place of the old entry of its key; bodies that it lacks are taken from the known ones.
    fn put<F>(
        &self,
        key: &Key,
        old: &Option<(usize, u64, Node)>,
        checked: u64,
        found: &Found<F>,
        known: &[(FileVersion, Box<[u8]>)],
    ) -> Sound<()> {
        let mut bodies: Vec<&[u8]> = Vec::new();
        let mut room = self.layout.bodies_max();
        let outline = found.outline(|Opened { version, content, .. }| {
            let body = match content {
                Some(Stored::Memory(body)) => Some(body),
                Some(Stored::File(_)) => None,
                None => known.iter().find(|(known, _)| known == version).map(|(_, body)| body),
            };
            match body.filter(|body| body.len() <= self.layout.file_max.min(room)) {
                Some(body) => {
                    room -= body.len();
                    bodies.push(body);
                    Some(Stored::Memory(Box::default()))
                }
                None => None,
            }
        });
        // A popular name is looked up on the disk now and then; that does not make it a new entry.
        let used = old.map_or(0, |(_, _, node)| node.used);
        if let Some((link, id, node)) = old {
            self.remove(*link, *id, node)?;
        }
        self.insert(key, Node { checked, used, ..Node::default() }, &portable::write(&outline), &bodies)
    }

    /// Finds the entry of this key, with its number and the position of the link that leads to it.
    fn seek(&self, key: &Key) -> Sound<Option<(usize, u64, Node)>> {
        self.follow(key.hash, |_, node| {
            let is_it = node.hash == key.hash && node.key == key.bytes.len() as u64;
            Ok(is_it && self.holds(&mut Cursor { block: node.first, within: 0 }, &key.bytes)?)
        })
    }

    /// Finds the first node in the chain of this hash for which `is_it` is true.
    fn follow(&self, hash: u64, is_it: impl Fn(u64, &Node) -> Sound<bool>) -> Sound<Option<(usize, u64, Node)>> {
        let mut link = self.chain_at(hash);
        for _ in 0..=self.layout.nodes {
            let id = self.guard.word(link)?;
            if id == 0 {
                return Ok(None);
            }
            let node = self.node(id)?;
            if is_it(id, &node)? {
                return Ok(Some((link, id, node)));
            }
            link = self.node_at(id)? + NEXT;
        }
        Err(Corrupt)
    }

    /// Reads an entry, with those of its bodies that are wanted.
    fn value<F>(&self, node: &Node, mut wanted: impl FnMut(&FileVersion) -> bool) -> Sound<Found<F>> {
        let mut cursor = Cursor { block: node.first, within: 0 };
        self.pass(&mut cursor, node.key)?;
        let outline = self.read(&mut cursor, node.outline)?;
        let mut left = node.bodies;
        let found = portable::read_outline(&outline, |version, place| match place {
            None => Ok(None),
            Some(Stored::File(())) => Err(Malformed),
            Some(Stored::Memory(_)) => {
                left = left.checked_sub(version.size).ok_or(Malformed)?;
                match wanted(version) {
                    true => self.read(&mut cursor, version.size).map(|body| Some(Stored::Memory(body.into()))),
                    false => self.pass(&mut cursor, version.size).map(|()| None),
                }
                .map_err(|Corrupt| Malformed)
            }
        });
        found.map_err(|Malformed| Corrupt)
    }

    /// Returns the bodies of an entry, each with its version.
    fn bodies(&self, node: &Node) -> Sound<Vec<(FileVersion, Box<[u8]>)>> {
        let (Found::File { files, .. } | Found::Variants { files, .. }) = self.value::<()>(node, |_| true)? else {
            return Ok(Vec::new());
        };
        let body = |opened: Opened<()>| match opened.content {
            Some(Stored::Memory(body)) => Some((opened.version, body)),
            _ => None,
        };
        Ok(files.into_iter().filter_map(body).collect())
    }

    /// Inserts an entry whose key is not present, and evicts others until it fits. One that
    /// does not fit into an empty shard is refused.
    fn insert(&self, key: &Key, node: Node, outline: &[u8], bodies: &[&[u8]]) -> Sound<()> {
        let body_bytes: usize = bodies.iter().map(|body| body.len()).sum();
        let blocks = (key.bytes.len() + outline.len() + body_bytes).div_ceil(BLOCK);
        if blocks > self.layout.blocks {
            self.add(REFUSALS, 1);
            return Ok(());
        }
        while self.get(BLOCKS) + blocks as u64 > self.layout.blocks as u64
            || self.get(ENTRIES) >= self.layout.nodes as u64
        {
            self.evict_one()?;
        }

        let first = self.take_blocks(blocks)?;
        let mut cursor = Cursor { block: first, within: 0 };
        for bytes in [&*key.bytes, outline].iter().chain(bodies) {
            self.walk(&mut cursor, bytes.len(), |at, part| Ok(self.guard.write(at, &bytes[part])?))?;
        }
        let id = self.take_node()?;
        let chain = self.chain_at(key.hash);
        let node = Node {
            hash: key.hash,
            next: self.guard.word(chain)?,
            first,
            key: key.bytes.len() as u64,
            outline: outline.len() as u64,
            bodies: body_bytes as u64,
            ..node
        };
        self.set_node(id, &node)?;
        self.guard.set_word(chain, id)?;
        self.add(ENTRIES, 1);
        self.add(INSERTIONS, 1);
        Ok(())
    }

    /// Removes the entry to which this link leads.
    fn remove(&self, link: usize, id: u64, node: &Node) -> Sound<()> {
        self.guard.set_word(link, node.next)?;
        self.free_blocks(node.first)?;
        self.set_node(id, &Node { next: self.get(FREE_NODE), ..Node::default() })?;
        self.set(FREE_NODE, id);
        self.set(ENTRIES, self.get(ENTRIES).checked_sub(1).ok_or(Corrupt)?);
        Ok(())
    }

    /// Advances the CLOCK hand to an entry that was not used since it last passed, and
    /// evicts that. After one round there is one.
    fn evict_one(&self) -> Sound<()> {
        for _ in 0..=2 * self.layout.nodes {
            let id = self.get(HAND) % self.get(FRESH_NODE).max(1) + 1;
            self.set(HAND, id);
            let node = self.node(id)?;
            if node.first == 0 {
                continue;
            }
            if node.used != 0 {
                self.set_node(id, &Node { used: 0, ..node })?;
                continue;
            }
            let (link, id, node) = self.follow(node.hash, |other, _| Ok(other == id))?.ok_or(Corrupt)?;
            self.remove(link, id, &node)?;
            self.add(EVICTIONS, 1);
            return Ok(());
        }
        Err(Corrupt)
    }

    fn take_node(&self) -> Sound<u64> {
        match self.get(FREE_NODE) {
            0 => {
                self.add(FRESH_NODE, 1);
                Ok(self.get(FRESH_NODE))
            }
            free => {
                self.set(FREE_NODE, self.node(free)?.next);
                Ok(free)
            }
        }
    }

    /// Takes this many blocks as a chain; the caller has checked that they are free.
    fn take_blocks(&self, count: usize) -> Sound<u64> {
        let mut next = 0;
        for _ in 0..count {
            let block = match self.get(FREE_BLOCK) {
                0 => {
                    self.add(FRESH_BLOCK, 1);
                    self.get(FRESH_BLOCK)
                }
                free => {
                    self.set(FREE_BLOCK, self.guard.word(self.link_at(free)?)?);
                    free
                }
            };
            self.guard.set_word(self.link_at(block)?, next)?;
            next = block;
        }
        self.add(BLOCKS, count as u64);
        Ok(next)
    }

    fn free_blocks(&self, first: u64) -> Sound<()> {
        let mut last = first;
        for count in 1..=self.layout.blocks {
            let link = self.link_at(last)?;
            match self.guard.word(link)? {
                0 => {
                    self.guard.set_word(link, self.get(FREE_BLOCK))?;
                    self.set(FREE_BLOCK, first);
                    self.set(BLOCKS, self.get(BLOCKS).checked_sub(count as u64).ok_or(Corrupt)?);
                    return Ok(());
                }
                next => last = next,
            }
        }
        Err(Corrupt)
    }

    fn read(&self, cursor: &mut Cursor, length: u64) -> Sound<Vec<u8>> {
        let mut bytes = vec![0; self.length(length)?];
        self.walk(cursor, bytes.len(), |at, part| Ok(self.guard.read(at, &mut bytes[part])?))?;
        Ok(bytes)
    }

    fn pass(&self, cursor: &mut Cursor, length: u64) -> Sound<()> {
        self.walk(cursor, self.length(length)?, |_, _| Ok(()))
    }

    /// Checks a length that will be allocated and walked: at most all blocks together.
    fn length(&self, length: u64) -> Sound<usize> {
        usize::try_from(length).ok().filter(|&length| length <= self.layout.blocks * BLOCK).ok_or(Corrupt)
    }

    fn holds(&self, cursor: &mut Cursor, bytes: &[u8]) -> Sound<bool> {
        let mut same = true;
        self.walk(cursor, bytes.len(), |at, part| {
            same = same && self.guard.holds(at, &bytes[part])?;
            Ok(())
        })?;
        Ok(same)
    }

    /// Visits the next `length` bytes of an entry, block by block: their positions in the shard and in the entry.
    fn walk(
        &self,
        cursor: &mut Cursor,
        length: usize,
        mut act: impl FnMut(usize, Range<usize>) -> Sound<()>,
    ) -> Sound<()> {
        let mut done = 0;
        while done < length {
            if cursor.within == BLOCK {
                *cursor = Cursor { block: self.guard.word(self.link_at(cursor.block)?)?, within: 0 };
            }
            let step = (BLOCK - cursor.within).min(length - done);
            act(
                self.layout.blocks_at() + self.index(cursor.block, self.layout.blocks)? * BLOCK + cursor.within,
                done..done + step,
            )?;
            cursor.within += step;
            done += step;
        }
        Ok(())
    }

    fn node(&self, id: u64) -> Sound<Node> {
        let at = self.node_at(id)?;
        let word = |n: usize| self.guard.word(at + n * 8);
        Ok(Node {
            hash: word(0)?,
            checked: word(1)?,
            next: word(2)?,
            first: word(3)?,
            key: word(4)?,
            outline: word(5)?,
            bodies: word(6)?,
            used: word(7)?,
        })
    }

    fn set_node(&self, id: u64, node: &Node) -> Sound<()> {
        let Node { hash, checked, next, first, key, outline, bodies, used } = *node;
        let at = self.node_at(id)?;
        for (n, word) in [hash, checked, next, first, key, outline, bodies, used].into_iter().enumerate() {
            self.guard.set_word(at + n * 8, word)?;
        }
        Ok(())
    }

    /// Returns the position of the first link of the chain of this hash, whose other bits selected the shard.
    fn chain_at(&self, hash: u64) -> usize {
        let chain = hash / self.layout.shards as u64 % self.layout.chains as u64;
        (HEAD_WORDS + chain as usize) * 8
    }

    fn node_at(&self, id: u64) -> Sound<usize> {
        Ok(self.layout.nodes_at() + self.index(id, self.layout.nodes)? * NODE_BYTES)
    }

    /// Returns the position of the number of a block's successor.
    fn link_at(&self, block: u64) -> Sound<usize> {
        Ok(self.layout.links_at() + self.index(block, self.layout.blocks)? * 8)
    }

    /// Returns the index of number `id` among `count`; 0 is invalid.
    fn index(&self, id: u64, count: usize) -> Sound<usize> {
        id.checked_sub(1).filter(|&index| index < count as u64).map(|index| index as usize).ok_or(Corrupt)
    }
}

#[cfg(test)]
mod tests;
