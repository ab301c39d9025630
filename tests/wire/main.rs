//! The real server over real sockets: each promise of SPECIFICATION.md that shows on the wire.
//!
//! A test starts a server of its own on a port that the kernel chooses, in a folder of its own, and ends it. `harness` has
//! the server and a client that reads strictly and writes whatever a test wants, right or wrong.
#![allow(clippy::unwrap_used, missing_docs, unreachable_pub)]

mod harness;

mod caches;
mod conditions;
mod config;
mod connections;
mod disk;
mod errors;
mod files;
mod hostnames;
mod limits;
mod log;
mod messages;
mod mirror;
mod ranges;
mod sending;
mod shared_cache;
mod stop;
mod switches;
