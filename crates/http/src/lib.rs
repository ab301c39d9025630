//! The grammar of HTTP: bytes to meaning and back, and nothing else.
//!
//! Pure: no clock, no randomness, no file, no socket; the caller passes in what these know. What a server *does* with a
//! request is decided in `amped-core`, what a client does in the load generator: both speak through this crate.
//! Rules cite their section of RFC 9110 (semantics) or RFC 9112 (HTTP/1.1) where they are obeyed.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(test)]
extern crate std;

pub mod auth;
pub mod caching;
pub mod cgi;
pub mod date;
pub mod etag;
pub mod fastcgi;
pub mod h1;
pub mod method;
pub mod negotiate;
pub mod range;
pub mod status;
pub mod text;
pub mod uri;
