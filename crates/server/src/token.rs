//! Tokens: how an event loop identifies a connection to epoll and to other threads.
//!
//! Helpers, application threads and the password verifier receive the token with a request and return
//! it with the result. By then the connection may be closed and its slot in use by another, so a
//! token also identifies the use of the slot.

/// Identifies a connection by its slot and how often the slot has been used, so that
/// a late answer does not reach a successor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Token {
    pub(crate) index: u32,
    pub(crate) generation: u32,
}

impl Token {
    /// Converts it to a number for epoll, always below [`Token::FIRST_OTHER`].
    pub fn to_number(self) -> u64 {
        u64::from(self.generation) << 32 | u64::from(self.index)
    }

    /// Converts such a number back.
    pub fn from_number(number: u64) -> Token {
        Token { index: number as u32, generation: (number >> 32) as u32 }
    }

    /// Returns a token that belongs to no connection, for a background lookup.
    pub(crate) fn of_preload(index: u32) -> Token {
        Token { index, generation: u32::MAX }
    }

    /// Returns the token of a revalidation in this slot of their table.
    pub(crate) fn of_revalidation(self) -> Token {
        Token { index: self.index | REVALIDATION_BIT, ..self }
    }

    /// Returns the slot of the revalidation with this token; `None` if it is that of a connection.
    pub(crate) fn revalidation(self) -> Option<Token> {
        let is_one = self.index & REVALIDATION_BIT != 0;
        is_one.then_some(Token { index: self.index & !REVALIDATION_BIT, ..self })
    }

    /// Converts it to a number for epoll, for the descriptors of the connection's application. Slot numbers never need
    /// the highest two bits.
    pub fn to_app_number(self) -> u64 {
        self.to_number() | APP_BIT
    }

    /// Returns the number for epoll of a connection to an application, by its descriptor.
    pub(crate) fn backend_number(descriptor: u32) -> u64 {
        Token::FIRST_BACKEND + u64::from(descriptor)
    }

    /// Converts such a number back; `None`: it is another one.
    pub(crate) fn backend_of(number: u64) -> Option<u32> {
        u32::try_from(number.checked_sub(Token::FIRST_BACKEND)?).ok()
    }

    /// The first number of connections to applications.
    pub(crate) const FIRST_BACKEND: u64 = Token::FIRST_OTHER + APP_BIT;

    /// The first number that is free for other purposes than connections.
    pub const FIRST_OTHER: u64 = (u32::MAX as u64) << 32;
}

/// Distinguishes the tokens of connections and of revalidations, which have no connection.
const REVALIDATION_BIT: u32 = 1 << 30;

/// Distinguishes the numbers of a connection and of its application.
pub(crate) const APP_BIT: u64 = 1 << 31;
