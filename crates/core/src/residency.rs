//! A model of the page cache, for systems that cannot report residency (Flash, section 5.7).
//!
//! The server runs its own CLOCK over the parts of files that it has read and sent, bounded by an estimate of the size
//! of the page cache. Parts in the model are assumed to be in memory and are sent at once; others go to a helper first.
//! Feedback corrects the estimate: the sender counts the page faults and disk reads that made it wait. A wait shrinks
//! the estimate; sending a full model's worth without a wait grows it.
//!
//! It makes no system call. A wrong guess costs a wait in the loop (estimate too large) or a needless hand-off to a
//! helper (too small), and the estimate leans to the second, which is cheaper. Reads by other programs, and pages
//! evicted by another server's files, are known only through faults.

use crate::cache::policy::Store;
use crate::file::FileVersion;

/// A part of a file in one state: part `number` of the fixed-size parts into which the sender divides files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Part {
    /// The file version.
    pub version: FileVersion,
    /// The index of the part, from 0.
    pub number: u64,
}

/// The model of the page cache.
pub struct Predictor {
    /// Weights are bytes in whole pages.
    parts: Store<Part, ()>,
    /// Estimated size of the page cache in bytes: `ESTIMATE_MIN
    /// <= estimate <= estimate_max`, if the latter is not less.
    estimate: u64,
    estimate_max: u64,
    faults: u64,
}

/// Minimum estimate: below 16 MiB, some tens of large parts, a model has no benefit.
const ESTIMATE_MIN: u64 = 16 << 20;

/// A wait shrinks the estimate to the bytes assumed to be in memory, less this fraction.
const SHRINK: u64 = 16;

/// Bytes sent from a full model without a wait grow the estimate by this fraction of themselves. At the edge of the
/// model the loop therefore waits about once per `GROW / SHRINK` = 2 caches' worth of bytes sent.
const GROW: u64 = 32;

/// Maximum parts in the model, 100 bytes each. Parts beyond it are assumed to be on disk, which is harmless.
const PARTS_MAX: usize = 1 << 18;

/// The cache counts pages of this size; where pages are larger, the faults correct the estimate.
const PAGE: u64 = 4096;

impl Predictor {
    /// Creates a model for a machine with this much memory. The estimate starts at half of it and never exceeds it.
    pub fn new(memory_bytes: u64) -> Predictor {
        let estimate = memory_bytes / 2;
        Predictor { parts: Store::new(PARTS_MAX, estimate), estimate, estimate_max: memory_bytes, faults: 0 }
    }

    /// Whether this part is assumed to be in memory. Counts as a use of it.
    pub fn is_resident(&mut self, part: &Part) -> bool {
        self.parts.get(part).is_some()
    }

    /// Records that `bytes` of this part were read or sent, and are now in memory.
    pub fn was_read(&mut self, part: Part, bytes: u64) {
        if self.parts.peek(&part).is_none() {
            self.parts.insert(part, (), bytes.next_multiple_of(PAGE));
        }
    }

    /// Records that `bytes` assumed to be in memory were sent without a wait.
    pub fn was_right(&mut self, bytes: u64) {
        // While the model is not full, no assumption was tested.
        if self.parts.weight() >= self.estimate - self.estimate / SHRINK {
            self.set(self.estimate + bytes / GROW);
        }
    }

    /// Records a wait for bytes that were assumed to be in memory.
    pub fn was_wrong(&mut self) {
        self.faults += 1;
        let believed = self.estimate.min(self.parts.weight());
        self.set(believed - believed / SHRINK);
    }

    fn set(&mut self, estimate: u64) {
        self.estimate = estimate.max(ESTIMATE_MIN).min(self.estimate_max);
        self.parts.set_weight_max(self.estimate);
    }

    /// The estimated size of the page cache, in bytes.
    pub fn estimate(&self) -> u64 {
        self.estimate
    }

    /// Bytes of files assumed to be in the page cache.
    pub fn believed(&self) -> u64 {
        self.parts.weight()
    }

    /// Number of wrong assumptions that cost a wait.
    pub fn faults(&self) -> u64 {
        self.faults
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::{BTreeMap, HashMap};

    const WINDOW: u64 = 256 << 10;

    fn part(file: u64) -> Part {
        let version = FileVersion {
            device: 1,
            inode: file,
            size: WINDOW,
            mtime_ns: 1,
            ctime_ns: 1,
            is_changing: false,
            is_unpacked: false,
        };
        Part { version, number: 0 }
    }

    #[test]
    fn pages_count_as_resident_until_estimate_is_full() {
        let mut predictor = Predictor::new(64 << 20);
        assert!(!predictor.is_resident(&part(1)));
        predictor.was_read(part(1), 100);
        predictor.was_read(part(1), 100);
        assert!(predictor.is_resident(&part(1)) && !predictor.is_resident(&part(2)));
        let later = Part { number: 1, ..part(1) };
        assert!(!predictor.is_resident(&later));
        assert_eq!((predictor.believed(), predictor.estimate()), (PAGE, 32 << 20));
        (0..1000).for_each(|n| predictor.was_read(part(n), WINDOW));
        assert!(predictor.believed() <= 32 << 20);
    }

    #[test]
    fn blocking_reads_shrink_estimate_and_absence_grows_it() {
        let mut predictor = Predictor::new(256 << 20);
        (0..400).for_each(|n| predictor.was_read(part(n), WINDOW));
        // Not full: the absence of waits proves nothing.
        predictor.was_right(1 << 30);
        assert_eq!(predictor.estimate(), 128 << 20);
        // Of the believed 100 MiB, some were not in memory; any other free space does not matter.
        predictor.was_wrong();
        let shrunk = (100 << 20) / 16 * 15;
        assert_eq!((predictor.estimate(), predictor.faults()), (shrunk, 1));
        assert!(predictor.believed() <= predictor.estimate());
        (0..1000).for_each(|n| predictor.was_read(part(n), WINDOW));
        predictor.was_right(32 << 20);
        assert_eq!(predictor.estimate(), shrunk + (1 << 20));
        // The estimate stays within bounds.
        (0..1000).for_each(|_| predictor.was_wrong());
        assert_eq!(predictor.estimate(), ESTIMATE_MIN);
        for n in 0..100_000 {
            predictor.was_read(part(n), WINDOW);
            predictor.was_right(1 << 20);
        }
        assert_eq!(predictor.estimate(), 256 << 20);
        assert_eq!(Predictor::new(1 << 20).estimate(), 1 << 19, "a tiny machine");
    }

    /// A page cache with LRU eviction.
    #[derive(Default)]
    struct PageCache {
        used: HashMap<u64, u64>,
        by_use: BTreeMap<u64, u64>,
        uses: u64,
    }

    impl PageCache {
        /// Reads a file; returns whether the read waited for the disk.
        fn read(&mut self, file: u64, capacity: usize) -> bool {
            self.uses += 1;
            let before = self.used.insert(file, self.uses);
            before.map(|before| self.by_use.remove(&before));
            self.by_use.insert(self.uses, file);
            while self.used.len() > capacity {
                let (_, oldest) = self.by_use.pop_first().expect("all of them");
                self.used.remove(&oldest);
            }
            before.is_none()
        }
    }

    /// Runs `requests` for files of one window each, popular ones far more often than others. Returns two shares of all
    /// requests: waits in the loop, and needless hand-offs to a helper.
    fn run(
        predictor: &mut Predictor,
        cache: &mut PageCache,
        capacity: usize,
        requests: u32,
        random: &mut u64,
    ) -> (f64, f64) {
        const FILES: f64 = 4000.0;
        let (mut waits, mut needless) = (0, 0);
        for _ in 0..requests {
            // The upper bits of an LCG (Knuth, MMIX), as a number below 1.
            *random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let uniform = (*random >> 11) as f64 / (1_u64 << 53) as f64;
            let file = (FILES * uniform * uniform * uniform) as u64;
            if predictor.is_resident(&part(file)) {
                if cache.read(file, capacity) {
                    waits += 1;
                    predictor.was_wrong();
                } else {
                    predictor.was_right(WINDOW);
                }
            } else {
                // A helper reads it, then it is sent.
                needless += u32::from(!cache.read(file, capacity));
            }
            predictor.was_read(part(file), WINDOW);
        }
        let share = |count: u32| f64::from(count) / f64::from(requests);
        (share(waits), share(needless))
    }

    #[test]
    fn lru_page_cache_is_tracked_across_size_changes() {
        // 4 GiB of memory: the initial estimate fits 8192 windows, twice as many as exist.
        let mut predictor = Predictor::new(4 << 30);
        let mut cache = PageCache::default();
        let mut random = 1;
        for capacity in [1000, 500, 2000, 250] {
            let learning = run(&mut predictor, &mut cache, capacity, 30_000, &mut random);
            let (waits, needless) = run(&mut predictor, &mut cache, capacity, 100_000, &mut random);
            std::println!(
                "{capacity}: learning {learning:?}, then {waits} {needless}, estimate {}",
                predictor.estimate()
            );
            assert!(learning.0 < 0.01, "{capacity}: waited for {} while learning", learning.0);
            assert!(waits < 0.001, "{capacity}: waited for {waits}");
            assert!(needless < 0.2, "{capacity}: {needless} went to a helper without need");
            let holds = capacity as u64 * WINDOW;
            assert!((holds / 2..holds * 5 / 4).contains(&predictor.estimate()), "{capacity}: {}", predictor.estimate());
        }
    }
}
