//! The web server: an event loop that never waits for the disk, and what stands around it.
//!
//! A request passes `listen`, `arch`, `disk` and `send` here, and is read, planned and answered by `amped-core` in
//! between. [`config`] runs before all of them: what it hands out is checked and does not change afterwards.
#![forbid(unsafe_code)]

pub mod config;
