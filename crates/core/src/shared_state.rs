//! What all connections of a loop share: configuration, caches, clock, spare records, counts.
//!
//! A connection gets it lent for the length of one call, so nothing of it is ever locked in AMPED or SPED.

use alloc::sync::Arc;
use alloc::vec::Vec;

use crate::cache::{Budgets, Caches, SharedCaches};
use crate::limits::Limits;
use crate::record::Records;
use crate::reply::{ReadyErrors, WallClock};
use crate::site::Sites;

/// One loop's belongings.
pub struct SharedState<F> {
    /// The sites; shared with the other loops.
    pub sites: Arc<Sites>,
    /// What a client may cost.
    pub limits: Limits,
    /// The caches.
    pub caches: Caches<F>,
    /// The time of day, put forward by the driver once a second.
    pub wall: WallClock,
    /// Records to be used again.
    pub records: Records,
    /// What has happened.
    pub counts: Counts,
    /// When the head of a request that is timed had been read.
    pub lap: PhaseTimes,
    /// Where a path is cleaned that cannot stay as it was sent.
    pub(crate) scratch: Vec<u8>,
    /// Errors that are sent again and again.
    pub(crate) errors: ReadyErrors,
}

/// Counts since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Requests whose head was read.
    pub requests: u64,
    /// Requests that could not be read, or not in time.
    pub bad_requests: u64,
    /// Requests for which the caches were enough.
    pub hits: u64,
    /// Requests answered from an entry past its time, because asking again would have meant waiting for the disk.
    pub stale_hits: u64,
    /// Questions to the disk side. One request may ask several: its name, then a listing or the page of an error.
    pub disk_questions: u64,
    /// Requests refused with 503 because too much disk work was waiting, or the disk did not answer in time.
    pub shed: u64,
    /// Lookups of pages that are made, listings and those of applications, which found them.
    pub page_hits: u64,
    /// Those which did not.
    pub page_misses: u64,
    /// Requests that waited for a page which was being made for another.
    pub page_collapsed: u64,
}

/// The one moment in the midst of a call that somebody may want to know: when a request's head had been read. The core has
/// no clock; whoever times a request lends one for it.
#[derive(Clone, Copy, Debug, Default)]
pub struct PhaseTimes {
    /// Reads a clock, in nanoseconds since a start of its own.
    pub clock: Option<fn() -> u64>,
    /// What it showed when the first head had been read since this was last taken.
    pub head_ns: Option<u64>,
}

impl PhaseTimes {
    pub(crate) fn note_head(&mut self) {
        if let (Some(clock), None) = (self.clock, self.head_ns) {
            self.head_ns = Some(clock());
        }
    }
}

impl<F> SharedState<F> {
    /// A shared state with empty caches.
    pub fn new(sites: Arc<Sites>, limits: Limits, budgets: Budgets, wall: WallClock) -> SharedState<F> {
        SharedState::with_caches(sites, limits, Caches::new(budgets), wall)
    }

    /// A shared state with these caches.
    pub fn with_caches(sites: Arc<Sites>, limits: Limits, caches: Caches<F>, wall: WallClock) -> SharedState<F> {
        SharedState {
            sites,
            limits,
            caches,
            wall,
            records: Records::default(),
            counts: Counts::default(),
            lap: PhaseTimes::default(),
            scratch: Vec::new(),
            errors: ReadyErrors::default(),
        }
    }

    /// Another configuration comes into force. With other budgets the caches count from zero again; shared ones are those
    /// that were made for it.
    pub fn renew(&mut self, sites: Arc<Sites>, limits: Limits, budgets: Budgets, shared: Option<&SharedCaches<F>>) {
        let generation = self.caches.generation().wrapping_add(1);
        if let Some(shared) = shared {
            self.caches = Caches::shared(shared, budgets, generation);
        } else {
            if self.caches.budgets != budgets {
                self.caches = Caches::new(budgets);
            }
            self.caches.renew(generation);
        }
        self.sites = sites;
        self.limits = limits;
    }
}
