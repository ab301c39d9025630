//! Passwords: the accounts of a site, and whether a client's credentials match one.
//!
//! 1. [`verifier`] takes a request of a loop, answers it at once if the pair is in the ledger, and otherwise queues it;
//!    one thread verifies one password at a time.
//! 2. [`ledger`] counts wrong passwords by address, and stores verified pairs, for all workers together.
//! 3. [`accounts`] reads the password files, and verifies with [`crypt`].
//!
//! Verifying takes tens of milliseconds by design, and any client can request it. So it shares nothing with
//! the helpers that wait for the disk: no thread, no queue and no lock. That holds in every architecture,
//! also where a loop does disk work itself.

pub mod accounts;
pub mod crypt;
pub mod ledger;
pub mod verifier;
