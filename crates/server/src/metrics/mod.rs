//! The server module (Yates, Almeida and Almeida 1997, section 2): what each request took and what came of it, in fixed
//! memory, for whoever watches.
//!
//! ```text
//! meter     a loop's own side: counts each request, times one of many; publishes what it knows
//! segment     the memory that all loops, threads or processes, publish in: one slot each, summed by who reads
//! text      the sums as OpenMetrics, for the address at which they are asked for (`amped-exporter`)
//! ```
//!
//! Nothing of it is on a request's way but a few additions to words that no other loop writes; there is no lock. The clock is
//! read for one request in 64, drawn by chance, since five readings for each, and two of CPU time, would be a tenth of a
//! request that takes 5 us. Counts are exact all the same: of each reply, by class, and of each byte.
//!
//! Built without the feature `metrics`, [`Meter::is_on`] is false for the compiler too and all this is gone; `cargo xtask
//! bench metrics` compares the two.

mod meter;
mod segment;
mod text;

pub use meter::{Meter, Timing};
pub use segment::{
    BUCKETS, CLASSES, ClassSum, HANDLERS, KINDS, PHASES, Phase, PhaseSum, SIZES, Scope, StatsSegment, StatsSlot,
    StatsSlots, Sum,
};
pub use text::text;
