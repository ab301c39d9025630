//! HTTP/1.1 and 1.0 on the wire (RFC 9112): a request's head, a request's body, a reply's head, both ways.

pub mod body;
pub mod reply;
pub mod request;
pub mod response;
