//! System calls for server and instruments; the only crate with `unsafe`.
//!
//! It contains no policy and no HTTP: each function is a system call, or a few that belong together, with its errors as
//! `io::Error`. An argument ([`file::Patience`]) says whether a call may block.

pub mod clock;
pub mod datagram;
pub mod epoll;
pub mod eventfd;
pub mod file;
pub mod foreign;
pub mod inotify;
pub mod landlock;
pub mod links;
pub mod local;
pub mod mapping;
pub mod netns;
pub mod perf;
pub mod pipe;
pub mod poll;
pub mod process;
pub mod resolve;
pub mod seccomp;
pub mod shared;
pub mod signal;
pub mod slots;
pub mod sock_diag;
pub mod socket;
pub mod stall;
pub mod tun;
pub mod words;
