//! The web server: an event loop that never waits for the disk, and what stands around it.
//!
//! A request passes `listen`, `arch`, `disk` and `send` here, and is read, planned and answered by `amped-core` in
//! between. [`config`] runs before all of them: what it hands out is checked and does not change afterwards.
#![forbid(unsafe_code)]

pub mod access_log;
pub mod app;
pub mod arch;
pub mod clock;
pub mod config;
pub mod config_snapshot;
pub mod control;
pub mod counters;
pub mod descriptors;
pub mod disk;
pub mod event_loop;
pub mod front;
pub mod helper;
pub mod listen;
pub mod listings;
pub mod locked;
pub mod mailbox;
pub mod message;
pub mod metrics;
pub mod notes;
pub mod open_file;
pub mod passwords;
pub mod portable;
pub mod preload;
pub mod processes;
pub mod residency;
pub mod say;
pub mod send;
pub mod serve;
pub mod shared_cache;
pub mod token;
pub mod unpack;
pub mod watch;
pub mod worker;
