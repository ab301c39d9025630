//! HTTP/2 on the wire (RFC 9113): frames, header compression (RFC 7541), and the heads of messages.
//!
//! Before it, a transport has delivered bytes; after it, `core` keeps the session: streams, windows and limits. Nothing
//! here has a state except [`hpack::Decoder`], whose table both ends of a connection must keep equal.
//! A request passes [`frame::parse`], [`hpack::Decoder::decode`] into a [`fields::FieldList`], and
//! [`head::FlatHead::fill`], which writes it as HTTP/1 would: from there on both versions are the same.
//! A response is an `h1::response::Head`, whose HTTP/2 form is a [`response::ReadyBlock`].

pub mod fields;
pub mod frame;
pub mod head;
pub mod hpack;
mod huffman;
pub mod response;

/// The fields of a connection, which HTTP/2 does not have (RFC 9113, 8.2.2).
const CONNECTION_FIELDS: [&[u8]; 5] =
    [b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade"];
