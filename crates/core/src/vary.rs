//! The request fields on which a response depends, as a set.
//!
//! Resources, variants and CORS rules each add their fields; `reply` writes the
//! union as the `Vary` field, and the set is part of the key of cached heads.

use alloc::string::String;
use alloc::vec::Vec;

/// A set of request fields on which a response depends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Vary(u8);

impl Vary {
    /// The empty set.
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

    /// The union of both sets.
    #[must_use]
    pub fn and(self, other: Vary) -> Vary {
        Vary(self.0 | other.0)
    }

    /// The union with `other` if `holds`, else the set unchanged.
    #[must_use]
    pub fn and_if(self, other: Vary, holds: bool) -> Vary {
        if holds { self.and(other) } else { self }
    }

    /// Whether all of `other` is in the set.
    pub fn has(self, other: Vary) -> bool {
        self.0 & other.0 == other.0 && other.0 != 0
    }

    /// The value of the `Vary` field (RFC 9110, 12.5.5); empty if the response has no such field.
    pub fn value(self) -> String {
        let names: Vec<&str> =
            Vary::NAMES.iter().filter(|(which, _)| self.has(*which)).map(|(_, name)| *name).collect();
        names.join(", ")
    }
}
