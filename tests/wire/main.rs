//! End-to-end tests of the real server over real sockets: every promise of SPECIFICATION.md that is visible on the
//! wire.
//!
//! Each test starts its own server, on a port that the kernel chooses and in its own directory, and stops it at the end.
//! `harness` provides the server, and a client that reads strictly and writes any bytes, valid or not.
//!
//! `suite` holds the tests of behaviour common to all architectures and runs once for each of them:
//! `mt::messages::small_things_first`. The other tests run once.
#![allow(clippy::unwrap_used, missing_docs, unreachable_pub)]
#![allow(clippy::duplicate_mod, reason = "the suite is compiled once for each architecture")]
#![allow(dead_code, reason = "each of the two test binaries uses only part of the harness")]

/// Runs the suite for each named architecture. A new architecture is one more word here.
macro_rules! architectures {
    ($($name:ident)*) => {
        $(#[path = "suite.rs"] mod $name;)*

        /// Every architecture, by name.
        const ARCHITECTURES: &[&str] = &[$(stringify!($name)),*];
    };
}

#[cfg(not(clippy))]
architectures!(amped sped mt mp);
// The suite is the same text for each, and clippy needs to read it once only.
#[cfg(clippy)]
architectures!(amped);

// `cargo fmt` does not format inside a macro.
#[cfg(any())]
mod suite;

mod harness;

#[path = "../php.rs"]
mod php;

#[path = "../object_store.rs"]
mod object_store;

#[path = "../ports.rs"]
mod ports;

#[path = "../requests.rs"]
mod requests;

mod architectures;
mod config;
mod contain;
mod descriptors;
mod disk;
mod equivalence;
mod errors;
mod frames;
mod helpers;
mod hostnames;
mod object_store_tools;
mod optimisations;
mod preload;
mod sending;
mod shared_cache;
mod soak;
mod watchdog;
