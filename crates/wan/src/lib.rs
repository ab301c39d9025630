//! A wide-area network emulator on one machine: the delay router of Banga and Druschel (Measuring the capacity of a Web
//! server under realistic loads, 1999, section 4.4), in user space on current Linux.
//!
//! - Pure, with time as an argument and all randomness from a seed: [`link`] (latency and bandwidth), [`queue`], [`loss`],
//!   [`path`] (two links and the prefix of their clients), [`packet`], [`profile`] (named networks) and [`spec`] (the text
//!   form of links).
//! - [`router`]: one thread between TUN devices that sends packets when the links say, and measures its lateness.
//! - [`place`]: namespaces and devices, which never outlive the program; [`behind`]: one command behind one path;
//!   [`testbed`]: a server and classes of clients; [`join`]: clients on other hosts.
//! - [`capture`]: a pcapng trace of the packets. [`selftest`]: compares configured and measured paths on this machine.
//!
//! Independent of HTTP and load: it carries any IP traffic.
#![forbid(unsafe_code)]

mod agenda;
pub mod behind;
pub mod capture;
pub mod join;
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
