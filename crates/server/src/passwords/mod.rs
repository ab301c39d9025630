//! Passwords: what the accounts of a site are, and whether a client has the one that it gives.
//!
//! 1. [`verifier`] takes the question of a loop, answers it at once if the pair is remembered, else puts it into a queue of
//!    its own; one thread verifies, one password at a time.
//! 2. [`ledger`] counts wrong passwords by address, and remembers which pairs were good, for all workers together.
//! 3. [`accounts`] reads the files of accounts, and verifies by [`crypt`].
//!
//! Verifying takes tens of milliseconds on purpose, and whoever likes can ask for it. So it has nothing in common with the
//! helpers that wait for the disk: no thread, no queue and no lock. That holds in every architecture, also where a loop does
//! the disk's work itself.

pub mod accounts;
pub mod crypt;
pub mod ledger;
pub mod verifier;
