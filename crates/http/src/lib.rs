//! The grammar of HTTP: parsing and writing, and nothing else.
//!
//! Pure: no clock, no randomness, no file, no socket; the caller passes these in. `amped-core` decides how a *server*
//! acts on a request, and the load generator how a client acts; both use this crate. Comments cite the section of RFC
//! 9110 (semantics), RFC 9112 (HTTP/1.1) or RFC 9113 (HTTP/2) where a rule is obeyed.
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
pub mod forwarded;
pub mod h1;
pub mod h2;
pub mod interim;
pub mod method;
pub mod negotiate;
pub mod priority;
pub mod proxy_header;
pub mod range;
pub mod status;
pub mod text;
pub mod uri;
