//! HTTP/2 on the wire (RFC 9113): frames and header compression (RFC 7541).
//!
//! Before it, a transport has delivered bytes; after it, `core` keeps the session: streams, windows and limits.

pub mod fields;
pub mod frame;
pub mod hpack;
mod huffman;
