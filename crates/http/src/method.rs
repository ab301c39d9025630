//! Request methods (RFC 9110, 9).

/// A request method that this implementation recognizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Method {
    /// Transfer the representation (RFC 9110, 9.3.1).
    Get,
    /// As GET, without the content (RFC 9110, 9.3.2).
    Head,
    /// Ask for the communication options (RFC 9110, 9.3.7).
    Options,
    /// RFC 9110, 9.3.3.
    Post,
    /// RFC 9110, 9.3.4.
    Put,
    /// RFC 9110, 9.3.5.
    Delete,
    /// RFC 5789.
    Patch,
    /// RFC 9110, 9.3.8.
    Trace,
    /// RFC 9110, 9.3.6.
    Connect,
}

impl Method {
    /// Looks up a method by its name. Names are case-sensitive (RFC 9110, 9.1): `get` is unknown.
    pub fn from_token(token: &[u8]) -> Option<Method> {
        Some(match token {
            b"GET" => Method::Get,
            b"HEAD" => Method::Head,
            b"OPTIONS" => Method::Options,
            b"POST" => Method::Post,
            b"PUT" => Method::Put,
            b"DELETE" => Method::Delete,
            b"PATCH" => Method::Patch,
            b"TRACE" => Method::Trace,
            b"CONNECT" => Method::Connect,
            _ => return None,
        })
    }
}
