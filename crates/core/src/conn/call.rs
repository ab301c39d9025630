//! What a connection hands to each step on the way of a request: the moment, what the loop shares, the list of actions; and
//! the request itself.

use alloc::vec::Vec;

use amped_http::h1::request::Request;
use amped_units::Time;

use crate::desk::Desk;
use crate::event::Action;

/// What all steps of one call of `Conn::handle` share.
pub(super) struct Call<'a, F> {
    pub(super) now: Time,
    pub(super) desk: &'a mut Desk<F>,
    pub(super) actions: &'a mut Vec<Action<F>>,
}

/// The request in hand: what it says, the bytes that say so, and when the first of them came.
pub(super) struct Hand<'a> {
    pub(super) request: Request<'a>,
    pub(super) head: &'a [u8],
    pub(super) began: Time,
    /// Its body, or the rest of it, is still to be taken from the connection.
    pub(super) unread: bool,
}
