//! What the page cache holds, guessed instead of asked: Flash's way for systems that cannot tell (Flash, section 5.7).
//!
//! The server runs a CLOCK of its own over the parts of files that it has read and sent, under an estimate of how much
//! the page cache holds. What is in the model is believed to be in memory, and sent at once; all else goes to a helper
//! first. Whether that was right shows afterwards: who sends counts the page faults and disk reads that it waited for
//! and says so here. A wait makes the estimate smaller; sending a full model's worth without one makes it larger again.
//!
//! Never asked: the kernel. So a wrong guess costs a wait in the loop (too large an estimate) or a needless way to a
//! helper (too small), and the estimate leans to the second, which is cheaper. The model knows nothing of what other
//! programs read, nor of pages that another server's files push out, but for what the faults tell.

use crate::cache::policy::Store;
use crate::file::FileVersion;

/// A part of a file in one state: the `number`th of those that whoever sends it cuts all files into.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Part {
    /// The file.
    pub version: FileVersion,
    /// Which part, from 0.
    pub number: u64,
}

/// The model of the page cache.
pub struct Predictor {
    /// Weight: bytes, whole pages.
    parts: Store<Part, ()>,
    /// Bytes that the page cache is thought to hold: `ESTIMATE_MIN <= estimate <= estimate_max`, if the latter is not less.
    estimate: u64,
    estimate_max: u64,
    faults: u64,
}

/// Below this, a model does not pay: 16 MiB, some tens of large parts.
const ESTIMATE_MIN: u64 = 16 << 20;

/// A wait takes this part of what was believed from the estimate.
const SHRINK: u64 = 16;

/// Bytes sent from a full model without a wait add this part of themselves. So the loop waits, where the model is at its
/// edge, about once in `GROW / SHRINK` = 2 caches' worth of bytes sent.
const GROW: u64 = 32;

/// Parts in the model at most, 100 bytes each. What does not fit is believed to be on the disk, which is harmless.
const PARTS_MAX: usize = 1 << 18;

/// The cache counts whole pages; where they are larger than 4 KiB, the faults tell.
const PAGE: u64 = 4096;

impl Predictor {
    /// A model on a machine with so much memory. It begins with half of it, and never believes in more than all.
    pub fn new(memory_bytes: u64) -> Predictor {
        let estimate = memory_bytes / 2;
        Predictor { parts: Store::new(PARTS_MAX, estimate), estimate, estimate_max: memory_bytes, faults: 0 }
    }

    /// Whether this part is thought to be in memory. Counts as a use of it.
    pub fn is_resident(&mut self, part: &Part) -> bool {
        self.parts.get(part).is_some()
    }

    /// So many bytes of this part were read or sent, so that it is in memory now.
    pub fn was_read(&mut self, part: Part, bytes: u64) {
        if self.parts.peek(&part).is_none() {
            self.parts.insert(part, (), bytes.next_multiple_of(PAGE));
        }
    }

    /// So many bytes that were thought to be in memory were, as nobody waited for them.
    pub fn was_right(&mut self, bytes: u64) {
        // While there is room in the model, nothing was tried that could have failed.
        if self.parts.weight() >= self.estimate - self.estimate / SHRINK {
            self.set(self.estimate + bytes / GROW);
        }
    }

    /// Something that was thought to be in memory had to be waited for.
    pub fn was_wrong(&mut self) {
        self.faults += 1;
        let believed = self.estimate.min(self.parts.weight());
        self.set(believed - believed / SHRINK);
    }

    fn set(&mut self, estimate: u64) {
        self.estimate = estimate.max(ESTIMATE_MIN).min(self.estimate_max);
        self.parts.set_weight_max(self.estimate);
    }

    /// Bytes that the page cache is thought to hold at most.
    pub fn estimate(&self) -> u64 {
        self.estimate
    }

    /// Bytes of files that are thought to be in it.
    pub fn believed(&self) -> u64 {
        self.parts.weight()
    }

    /// How often it was wrong to the cost of a wait.
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
        // Not full: that nobody waits tells nothing.
        predictor.was_right(1 << 30);
        assert_eq!(predictor.estimate(), 128 << 20);
        // Of 100 MiB that were believed in, not all were there; what else there may be room for is no matter.
        predictor.was_wrong();
        let shrunk = (100 << 20) / 16 * 15;
        assert_eq!((predictor.estimate(), predictor.faults()), (shrunk, 1));
        assert!(predictor.believed() <= predictor.estimate());
        (0..1000).for_each(|n| predictor.was_read(part(n), WINDOW));
        predictor.was_right(32 << 20);
        assert_eq!(predictor.estimate(), shrunk + (1 << 20));
        // Within bounds, whatever happens.
        (0..1000).for_each(|_| predictor.was_wrong());
        assert_eq!(predictor.estimate(), ESTIMATE_MIN);
        for n in 0..100_000 {
            predictor.was_read(part(n), WINDOW);
            predictor.was_right(1 << 20);
        }
        assert_eq!(predictor.estimate(), 256 << 20);
        assert_eq!(Predictor::new(1 << 20).estimate(), 1 << 19, "a tiny machine");
    }

    /// A page cache that drops what was used longest ago.
    #[derive(Default)]
    struct PageCache {
        used: HashMap<u64, u64>,
        by_use: BTreeMap<u64, u64>,
        uses: u64,
    }

    impl PageCache {
        /// Reads a file; whether the disk had to be waited for.
        fn read(&mut self, file: u64, capacity: usize) -> bool {
            self.uses += 1;
            let before = self.used.insert(file, self.uses);
            before.map(|before| self.by_use.remove(&before));
            self.by_use.insert(self.uses, file);
            while self.used.len() > capacity {
                let (_, oldest) = self.by_use.pop_first().expect("as many as there are");
                self.used.remove(&oldest);
            }
            before.is_none()
        }
    }

    /// What becomes of `requests` for files of a window each, the popular ones far more often than others.
    /// Shares of all requests: that waited in the loop; that went to a helper without need.
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
            // An LCG's upper bits (Knuth, MMIX), as a number below 1.
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
        // 4 GiB of memory: at first 8192 windows are thought to fit, twice as many as there are.
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
