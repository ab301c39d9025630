//! Residency tests: whether content is in memory, so that the loop never waits for the disk; Flash's tests and today's
//! (Flash, section 5.7; docs/decisions/0011-switches-of-the-papers.md has the table).
//!
//! | test | what the loop does |
//! |---|---|
//! | nowait | calls preadv2(RWF_NOWAIT), which reads what is in memory or fails with EAGAIN |
//! | mincore | maps the file and calls mincore(2); the kernel answers "all of it" to processes that neither own nor may write it |
//! | clock | consults a model of the page cache, [`Predictor`], which is updated by each wait |
//! | none | tests nothing and waits: AMPED without its helpers, which is SPED |
//!
//! Names are tested in all but the last, by openat2(RESOLVE_CACHED); Flash left all that it had not cached to helpers.

use std::io;
use std::ops::Range;
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, PoisonError};

use amped_core::file::FileVersion;
use amped_core::residency::{Part, Predictor};
use amped_sys::file::{self, Patience};
use amped_sys::mapping::Mapping;
use amped_sys::process;

use crate::config::settings;
use crate::counters::ModelCounts;
use crate::open_file::WINDOW;

/// The test of a configuration, shared by loops and helpers.
pub enum Residency {
    /// preadv2(RWF_NOWAIT).
    Nowait,
    /// mincore(2).
    Mincore,
    /// A prediction. One model for all loops, as there is one page cache; the lock is held for a lookup.
    Clock(Mutex<Predictor>),
    /// No test.
    None,
}

/// sendfile waits for any missing page, and the kernel evicts pages, not windows. A probe costs
/// 0.4 to 1 us; four probes for a window of 256 KiB (18 us to send) are an acceptable price. A
/// hole between two probes still causes a wait.
const PROBE_STEP: u64 = 64 * 1024;

/// Returns the offsets to probe: one in each step, another page each time. A probe counts as a use of the page, as
/// sending it does; if the same pages were probed every time, the kernel would evict them last, and they would show
/// nothing about the others.
fn places(range: &Range<u64>, look: u64) -> impl Iterator<Item = u64> {
    let page = look.wrapping_mul(PAGE);
    let range = range.clone();
    let starts = range.clone().step_by(PROBE_STEP as usize);
    starts.map(move |start| start + page % PROBE_STEP.min(range.end - start))
}

/// Size of the pages that the kernel evicts.
const PAGE: u64 = 4096;

impl Residency {
    /// Creates the configured test.
    pub fn new(test: settings::Residency) -> Residency {
        match test {
            settings::Residency::Nowait => Residency::Nowait,
            settings::Residency::Mincore => Residency::Mincore,
            settings::Residency::Clock => Residency::Clock(Mutex::new(Predictor::new(process::memory_bytes()))),
            settings::Residency::None => Residency::None,
        }
    }

    /// Returns whether a non-empty range of a file in this version is in memory. The model treats the window in which
    /// the range begins as all of it.
    ///
    /// `look` is a different number each time; `map` maps the file at least from the beginning of that window to the
    /// end of the range.
    pub fn is_resident(
        &self,
        file: impl AsFd,
        version: &FileVersion,
        range: &Range<u64>,
        look: u64,
        map: impl FnOnce() -> io::Result<Arc<Mapping>>,
    ) -> bool {
        match self {
            Residency::Nowait => places(range, look).all(|offset| file::is_resident(&file, offset)),
            Residency::Mincore => {
                let start = range.start / WINDOW * WINDOW;
                // If it cannot be mapped, the caller takes the path that may wait.
                map().is_ok_and(|mapping| {
                    mapping.is_resident((range.start - start) as usize..(range.end - start) as usize)
                })
            }
            Residency::Clock(_) => self.predict(|predictor| predictor.is_resident(&part(version, range))) == Some(true),
            Residency::None => true,
        }
    }

    /// Reads a range, as much as one call returns. With [`Patience::Now`], only if the test says that it is in
    /// memory; then the read is made as if it were.
    ///
    /// # Errors
    /// Those of [`file::read_at`]; [`io::ErrorKind::WouldBlock`] if it is not in memory.
    pub fn read(
        &self,
        file: impl AsFd,
        version: &FileVersion,
        (buffer, offset): (&mut [u8], u64),
        patience: Patience,
        map: impl FnOnce() -> io::Result<Arc<Mapping>>,
    ) -> io::Result<usize> {
        self.read_pieces(file, version, (&mut [io::IoSliceMut::new(buffer)], offset), patience, map)
    }

    /// As [`read`](Residency::read), into several buffers in turn.
    ///
    /// # Errors
    /// Those of [`read`](Residency::read).
    pub fn read_pieces(
        &self,
        file: impl AsFd,
        version: &FileVersion,
        (buffers, offset): (&mut [io::IoSliceMut<'_>], u64),
        patience: Patience,
        map: impl FnOnce() -> io::Result<Arc<Mapping>>,
    ) -> io::Result<usize> {
        let length: usize = buffers.iter().map(|buffer| buffer.len()).sum();
        let range = offset..offset + length as u64;
        // Here the read itself is the test.
        if matches!(self, Residency::Nowait) {
            return file::read_pieces_at(file, buffers, offset, patience);
        }
        let tested = patience == Patience::Now;
        if tested && !self.is_resident(&file, version, &range, 0, map) {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        self.watch(version, &range, tested, || file::read_pieces_at(&file, buffers, offset, Patience::Wait))
    }

    /// Performs an operation that reads or sends a range, and updates the model by its cost. `tested`: the test said
    /// that the range is in memory. Returns the number of bytes read or sent.
    ///
    /// # Errors
    /// Those of `doing`.
    pub fn watch(
        &self,
        version: &FileVersion,
        range: &Range<u64>,
        tested: bool,
        doing: impl FnOnce() -> io::Result<usize>,
    ) -> io::Result<usize> {
        if !matches!(self, Residency::Clock(_)) {
            return doing();
        }
        let before = process::disk_use();
        let done = doing();
        let after = process::disk_use();
        let read = after.major_faults > before.major_faults || after.blocks_read > before.blocks_read;
        // The kernel may read ahead without a wait; then the thread has not yielded the processor.
        let waited = read && after.waits > before.waits;
        self.predict(|predictor| match &done {
            _ if tested && waited => predictor.was_wrong(),
            Ok(count) if tested => predictor.was_right(*count as u64),
            _ => {}
        });
        if matches!(done, Ok(count) if count > 0) {
            self.was_read(version, range);
        }
        done
    }

    /// Records that a range was read, and is in memory.
    pub fn was_read(&self, version: &FileVersion, range: &Range<u64>) {
        // A window that is read in pieces becomes known with the first of them, so its whole size counts.
        let window = version.size.saturating_sub(range.start / WINDOW * WINDOW).min(WINDOW);
        let bytes = window.max(range.end - range.start);
        self.predict(|predictor| predictor.was_read(part(version, range), bytes));
    }

    /// Returns the statistics of the model.
    pub fn counts(&self) -> ModelCounts {
        let counts = |model: &mut Predictor| ModelCounts {
            estimate: model.estimate(),
            believed: model.believed(),
            faults: model.faults(),
        };
        self.predict(counts).unwrap_or_default()
    }

    /// Queries or updates the model. Returns `None` if there is none.
    fn predict<T>(&self, question: impl FnOnce(&mut Predictor) -> T) -> Option<T> {
        match self {
            Residency::Clock(predictor) => {
                Some(question(&mut predictor.lock().unwrap_or_else(PoisonError::into_inner)))
            }
            _ => None,
        }
    }
}

fn part(version: &FileVersion, range: &Range<u64>) -> Part {
    Part { version: *version, number: range.start / WINDOW }
}

impl std::fmt::Debug for Residency {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Residency::Nowait => "Nowait",
            Residency::Mincore => "Mincore",
            Residency::Clock(_) => "Clock",
            Residency::None => "None",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn successive_probes_cover_each_page_of_window() {
        let check = |range: Range<u64>, each: usize| {
            let looks = PROBE_STEP / PAGE;
            let mut pages: Vec<u64> = Vec::new();
            for look in 7..7 + looks {
                let places: Vec<u64> = places(&range, look).collect();
                assert_eq!(places.len(), each, "{range:?}");
                assert!(places.iter().all(|place| range.contains(place)), "{range:?}: {places:?}");
                pages.extend(places.iter().map(|place| place / PAGE));
            }
            pages.sort_unstable();
            pages.dedup();
            assert_eq!(pages.len() as u64, range.end.div_ceil(PAGE) - range.start / PAGE, "{range:?}");
        };
        check(0..WINDOW, 4);
        check(WINDOW..WINDOW + 3 * PROBE_STEP, 3);
        check(0..PROBE_STEP + 5 * PAGE, 2);
        check(0..1, 1);
    }
}
