//! The server module (Yates, Almeida and Almeida 1997, section 2): how long each request took and how it was
//! answered, in fixed memory, for any reader.
//!
//! ```text
//! meter     a loop's side: counts each request, times a sample; publishes the figures
//! segment   the memory in which all loops, threads or processes, publish: one slot each, summed by the reader
//! text      the sums as OpenMetrics, for the metrics endpoint (`amped-exporter`)
//! ```
//!
//! A request costs only a few additions to words that no other loop writes; there is no lock. The clock is read for one
//! request in 64, sampled at random, since five readings for each, and two of CPU time, would take a tenth of a request
//! of 5 us. Counts are exact nevertheless: of every response, by class, and of every byte.
//!
//! Built without the feature `metrics`, [`Meter::is_on`] is a constant false and all this is compiled out;
//! `examples/metrics-cost.toml` compares the two.

mod meter;
mod segment;
mod text;

pub use meter::{Meter, Timing};
pub use segment::{
    BUCKETS, CLASSES, ClassSum, HANDLERS, KINDS, PHASES, Phase, PhaseSum, SIZES, Scope, StatsSegment, StatsSlot,
    StatsSlots, Sum,
};
pub use text::{AcmeFigures, Expiry, TlsExpiries, text};
