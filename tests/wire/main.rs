//! The real server over real sockets: each promise of SPECIFICATION.md that shows on the wire.
//!
//! A test starts a server of its own on a port that the kernel chooses, in a folder of its own, and ends it. `harness` has
//! the server and a client that reads strictly and writes whatever a test wants, right or wrong.
//!
//! What the architectures must do alike is in `suite`, and runs over each of them: `mt::messages::small_things_first`. The
//! rest runs once.
#![allow(clippy::unwrap_used, missing_docs, unreachable_pub)]
#![allow(clippy::duplicate_mod, reason = "the suite is there once for each architecture")]
#![allow(dead_code, reason = "neither the suite nor the rest uses all of the harness")]

/// A new architecture is one more word here.
macro_rules! architectures {
    ($($name:ident)*) => {
        $(#[path = "suite.rs"] mod $name;)*

        /// All of them.
        const ARCHITECTURES: &[&str] = &[$(stringify!($name)),*];
    };
}

architectures!(amped sped mt mp);

// `cargo fmt` does not look into a macro.
#[cfg(any())]
mod suite;

mod harness;

#[path = "../php.rs"]
mod php;

#[path = "../requests.rs"]
mod requests;

mod architectures;
mod config;
mod descriptors;
mod disk;
mod equivalence;
mod errors;
mod helpers;
mod hostnames;
mod optimisations;
mod preload;
mod sending;
mod shared_cache;
