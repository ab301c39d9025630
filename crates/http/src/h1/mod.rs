//! HTTP/1.1 and 1.0 on the wire (RFC 9112): request heads, request bodies and response heads, in both directions.

pub mod body;
pub mod gateway;
pub mod references;
pub mod reply;
pub mod request;
pub mod request_fields;
pub mod response;
