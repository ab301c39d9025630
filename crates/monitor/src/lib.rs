//! The monitor: WebMonitor (Yates, Almeida, Almeida 1997, section 2) for today's kernel, and for any server.
//!
//! ```text
//! source    parses the kernel's files in /proc into numbers             pure
//! server    the processes and listeners behind a port or a process number
//! tasks     the server's processes and threads, and the CPU time of those that have ended
//! sample    all figures at one instant, repeatedly, within a budget      (budget: pure)
//! figure    the definition of each figure: its name, kind, unit, help, and where it is shown
//! published the server's own figures: requests by class and phase, caches, helpers, loops
//! rates     the differences between two samples                          pure
//! store     writes samples to a file and reads them
//! show      rates as lines, CSV, a screen; samples as OpenMetrics        pure
//! endpoint  the HTTP address at which collectors fetch the last sample
//! profile   where the CPU time goes: samples of call chains, three views
//! overhead  the cost of all this for the server, measured in pairs
//! ```
//!
//! Sampling, not tracing: the monitor never changes the server's path through the kernel. Stored values are counters
//! since the start; rates are computed for display, so a record can be displayed again in another way.
//!
//! Without privileges it uses everything that `/proc` and sock_diag(7)
//! give to a user, and reports a line for each missing source.
#![forbid(unsafe_code)]

mod budget;
mod endpoint;
mod figure;
#[cfg(feature = "profile")]
pub mod overhead;
#[cfg(feature = "profile")]
pub mod profile;
mod published;
mod rates;
mod sample;
mod server;
pub mod show;
pub mod source;
mod stop;
mod store;
mod tasks;

pub use budget::Budget;
pub use endpoint::Endpoint;
pub use figure::{Figure, Figures};
pub use published::{Class, Module, Phase, Published};
pub use rates::{ClassRate, CpuShare, ModuleRate, Name, PhaseTime, ServerUse, Tick};
pub use sample::{Census, CensusLimits, Listener, Next, Own, Sample, Sampler, Settings, Unit};
pub use server::{Backend, Server, Target, group_of, groups_of};
pub use stop::Stop;
pub use store::{Head, Recorder, Replay, replay};
