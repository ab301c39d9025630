//! The monitor: WebMonitor (Yates, Almeida, Almeida 1997, section 2) for today's kernel, and for any server.
//!
//! ```text
//! source    what the kernel tells: texts of /proc into numbers            pure
//! server    whose they are: the processes and listeners behind a port or a pid
//! sample    all of it at one moment, again and again, within a budget     (budget: pure)
//! figure    what there is to know, each declared once: its name, kind, unit, help, and where it is shown
//! published what the server tells of itself: requests by class and phase, caches, helpers, loops
//! rates     what happened between two samples                             pure
//! store     samples to a file and back
//! show      rates as lines, CSV, a screen; samples as OpenMetrics          pure
//! endpoint  the address at which collectors ask for the last sample
//! profile   where the CPU time goes: samples of call chains, three views
//! overhead  what all this costs the server, in pairs
//! ```
//!
//! Sampling, not tracing: nothing here makes the server take another path through the kernel. What is kept are counters
//! since the start; every rate is made when it is shown, so a record can be shown anew in another way.
//!
//! Without privileges there is all that `/proc` and sock_diag(7) give to a user, and a line for each thing that is missing.
#![forbid(unsafe_code)]

mod budget;
mod endpoint;
mod figure;
pub mod overhead;
pub mod profile;
mod published;
mod rates;
mod sample;
mod server;
pub mod show;
pub mod source;
mod stop;
mod store;

pub use budget::Budget;
pub use endpoint::Endpoint;
pub use figure::{Figure, Figures};
pub use published::{Class, Module, Phase, Published};
pub use rates::{ClassRate, CpuShare, ModuleRate, Name, PhaseTime, ServerUse, Tick};
pub use sample::{Census, CensusLimits, Listener, Next, Own, Sample, Sampler, Settings, Unit};
pub use server::{Backend, Server, Target, group_of, groups_of};
pub use stop::Stop;
pub use store::{Head, Recorder, Replay, replay};
