//! HTTP/2 on the wire (RFC 9113): frames.
//!
//! Before it, a transport has delivered bytes; after it, `core` keeps the session: streams, windows and limits.

pub mod frame;
