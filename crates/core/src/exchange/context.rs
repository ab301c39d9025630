//! What each step of an exchange is given, and what it needs of the protocol that carries it.

use alloc::vec::Vec;

use amped_http::h1::request::{Request, Version};
use amped_units::Time;

use crate::event::{Action, Ticket};
use crate::reply::{Response, ScriptFraming};
use crate::shared_state::SharedState;

/// What all steps share that one event leads to.
pub struct Context<'a, F> {
    /// The moment.
    pub now: Time,
    /// What the loop shares.
    pub shared: &'a mut SharedState<F>,
    /// What is to be done, in this order.
    pub actions: &'a mut Vec<Action<F>>,
}

/// The protocol that carries an exchange: how its response reaches the client, and what is known of that client.
///
/// A response is whole ([`respond`](Protocol::respond)), or it begins, and its body follows in pieces until it is finished.
/// An exchange that sends neither, or aborts a response that has begun, ends without a complete response.
pub trait Protocol<F> {
    /// The ticket of the next question: no other's of this connection.
    fn next_ticket(&mut self) -> Ticket;

    /// Whether the client is known to have closed its side.
    fn has_left(&self) -> bool;

    /// Whether the rest of the request's body is still to come, and is waited for.
    fn awaits_body(&self) -> bool;

    /// The rest of the request's body will not be read.
    fn forgo_body(&mut self);

    /// Asks the client for the body, which waits to be asked (RFC 9110, 10.1.1).
    fn proceed(&mut self, cx: &mut Context<'_, F>);

    /// How the end of a body of unknown length is marked for a client of this version.
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

    /// It will not be completed; the client must be able to detect that.
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
