//! The fields of a request on which a response depends, as a set.
//!
//! Resources, variants and rules for other origins each add their part; `reply` writes the union as the field `Vary`, and
//! ready heads are kept under it.

use alloc::string::String;
use alloc::vec::Vec;

/// Fields of a request on which a reply depends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Vary(u8);

impl Vary {
    /// On none.
    pub const NOTHING: Vary = Vary(0);
    /// `Accept`.
    pub const ACCEPT: Vary = Vary(1);
    /// `Accept-Charset`.
    pub const CHARSET: Vary = Vary(2);
    /// `Accept-Encoding`.
    pub const ENCODING: Vary = Vary(4);
    /// `Accept-Language`.
    pub const LANGUAGE: Vary = Vary(8);
    /// `Origin`.
    pub const ORIGIN: Vary = Vary(16);

    const NAMES: [(Vary, &str); 5] = [
        (Vary::ACCEPT, "Accept"),
        (Vary::CHARSET, "Accept-Charset"),
        (Vary::ENCODING, "Accept-Encoding"),
        (Vary::LANGUAGE, "Accept-Language"),
        (Vary::ORIGIN, "Origin"),
    ];

    /// On these too.
    #[must_use]
    pub fn and(self, other: Vary) -> Vary {
        Vary(self.0 | other.0)
    }

    /// On these if something holds.
    #[must_use]
    pub fn and_if(self, other: Vary, holds: bool) -> Vary {
        if holds { self.and(other) } else { self }
    }

    /// Whether this one is among them.
    pub fn has(self, other: Vary) -> bool {
        self.0 & other.0 == other.0 && other.0 != 0
    }

    /// The value of the field `Vary` (RFC 9110, 12.5.5); empty if there is to be none.
    pub fn value(self) -> String {
        let names: Vec<&str> =
            Vary::NAMES.iter().filter(|(which, _)| self.has(*which)).map(|(_, name)| *name).collect();
        names.join(", ")
    }
}
