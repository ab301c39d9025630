//! What each step of an exchange is given, and what it needs of the protocol that carries it.

use alloc::vec::Vec;

use amped_http::h1::request::{Request, Version};
use amped_units::Time;

use crate::desk::Desk;
use crate::event::{Action, Ticket};
use crate::reply::{Response, ScriptFraming};

/// What all steps share that one event leads to.
pub struct Context<'a, F> {
    /// The moment.
    pub now: Time,
    /// What the loop shares.
    pub desk: &'a mut Desk<F>,
    /// What is to be done, in this order.
    pub actions: &'a mut Vec<Action<F>>,
}

/// The protocol that carries an exchange: how its response reaches the client, and what is known of that client.
///
/// A response is whole ([`respond`](Protocol::respond)), or it begins, and its body follows in pieces until it is finished.
/// An exchange that says neither, or aborts one that has begun, is over without a complete response.
pub trait Protocol<F> {
    /// The ticket of the next question: no other's of this connection.
    fn next_ticket(&mut self) -> Ticket;

    /// Whether the client has gone, as far as can be told.
    fn has_left(&self) -> bool;

    /// Whether the rest of the request's body is still to come, and is waited for.
    fn awaits_body(&self) -> bool;

    /// Nobody is going to take the rest of the request's body.
    fn forgo_body(&mut self);

    /// Asks the client for the body, which waits to be asked (RFC 9110, 10.1.1).
    fn proceed(&mut self, cx: &mut Context<'_, F>);

    /// How a client of this version is told the end of a body whose length is not known.
    fn open_ended(&self, version: Version) -> ScriptFraming;

    /// The response, with all of its body.
    fn respond(&mut self, cx: &mut Context<'_, F>, request: &Request<'_>, response: Response<F>);

    /// A response whose body, if it has one, follows in pieces.
    fn begin_response(
        &mut self,
        cx: &mut Context<'_, F>,
        request: &Request<'_>,
        response: Response<F>,
        framing: ScriptFraming,
    );

    /// More of the body of the response that has begun.
    fn piece(&mut self, cx: &mut Context<'_, F>, bytes: &[u8]);

    /// The response that has begun is complete.
    fn finish(&mut self, cx: &mut Context<'_, F>);

    /// It never will be, which the client is to see.
    fn abort(&mut self);
}

/// Whether an exchange goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Progress {
    /// It waits for something.
    Open,
    /// It is over.
    Over,
}
