//! A wide-area network on one machine: the delay router of Banga and Druschel (Measuring the capacity of a Web server under
//! realistic loads, 1999, section 4.4), on today's Linux and without its kernel's help.
//!
//! - Pure, with time as an argument and all randomness from a seed: [`link`] (latency and bandwidth), [`queue`], [`loss`],
//!   [`path`] (two links, and whose they are), [`packet`], [`profile`] (networks that have a name) and [`spec`] (links as people write
//!   them).
//! - [`router`]: one thread between TUN devices that has packets leave when the links say, and measures how late they do.
//! - [`place`]: namespaces and devices, of which nothing is left whatever happens; [`behind`]: one command behind one path;
//!   [`testbed`]: a server and classes of clients.
//! - [`capture`]: what passed, as pcapng. [`selftest`]: asked against got, on this machine.
//!
//! Knows no HTTP and no load: whatever speaks IP goes through it.
#![forbid(unsafe_code)]

mod agenda;
pub mod behind;
pub mod capture;
pub mod link;
pub mod loss;
pub mod packet;
pub mod path;
pub mod place;
pub mod profile;
pub mod queue;
pub mod router;
pub mod selftest;
pub mod spec;
pub mod testbed;
