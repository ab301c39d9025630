//! Replaces `tls.rs` if the feature `tls` is off: the same names, without values. Users of the parsers and the state
//! machine need not build a cryptography library.

use std::convert::Infallible;
use std::os::fd::OwnedFd;

use amped_units::Time;

use crate::client::{Connection, Next, Plan};
use crate::handshake::SessionCounts;
use crate::tally::Tally;

/// TLS settings of a run; never constructed.
#[derive(Clone, Debug)]
pub struct Tls {
    none: Infallible,
}

impl Tls {
    pub(crate) fn forget_sessions(&self) {
        match self.none {}
    }

    pub(crate) fn sessions(&self) -> SessionCounts {
        match self.none {}
    }
}

/// TLS on one connection; never constructed.
#[derive(Debug)]
pub(crate) struct Session {
    none: Infallible,
}

impl Session {
    pub(crate) fn new(tls: &Tls, _number: u64, _began: Time) -> Session {
        match tls.none {}
    }

    pub(crate) fn say(&mut self, _plain: &[u8]) {
        match self.none {}
    }

    pub(crate) fn say_end(&mut self) {
        match self.none {}
    }

    pub(crate) fn send(&mut self, _socket: &OwnedFd) {
        match self.none {}
    }

    pub(crate) fn handle_bytes(
        &mut self,
        _now: Time,
        _bytes: &[u8],
        _whose: (&Tls, &mut Connection),
        _plan: &Plan,
        _tally: &mut Tally,
    ) -> Next {
        match self.none {}
    }
}
