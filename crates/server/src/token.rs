//! Tokens: how an event loop identifies a connection to epoll and to other threads.
//!
//! Helpers, application threads and the password verifier receive the token with a request and return it with the result.
//! By then the connection may be closed and its slot in use by another, so a token also says which use of the slot it means.

/// Which connection: its place, and how often the place has been used, so that a late answer does not reach a successor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Token {
    pub(crate) index: u32,
    pub(crate) generation: u32,
}

impl Token {
    /// As a number for epoll; never as large as [`Token::FIRST_OTHER`].
    pub fn to_number(self) -> u64 {
        u64::from(self.generation) << 32 | u64::from(self.index)
    }

    /// Back from that number.
    pub fn from_number(number: u64) -> Token {
        Token { index: number as u32, generation: (number >> 32) as u32 }
    }

    /// One that is no connection's, for an errand.
    pub(crate) fn of_errand(index: u32) -> Token {
        Token { index, generation: u32::MAX }
    }

    /// As a number for epoll, for what the connection's application has open. There are never so many connections that
    /// their places need the highest bit.
    pub fn to_app_number(self) -> u64 {
        self.to_number() | APP_BIT
    }

    /// Numbers from here on are free for what is no connection.
    pub const FIRST_OTHER: u64 = (u32::MAX as u64) << 32;
}

/// Tells a connection's number and its application's apart.
pub(crate) const APP_BIT: u64 = 1 << 31;
