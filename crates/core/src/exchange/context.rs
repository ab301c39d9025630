//! The context of each step of an exchange, and the interface of the protocol that carries it.

use alloc::vec::Vec;

use amped_http::h1::request::{Request, Version};
use amped_http::interim::Interim;
use amped_units::Time;

use crate::event::{Action, Ticket};
use crate::reply::{Response, ScriptFraming};
use crate::shared_state::SharedState;

/// The context shared by all steps that handle one event.
pub struct Context<'a, F> {
    /// The current time.
    pub now: Time,
    /// The shared state of the loop.
    pub shared: &'a mut SharedState<F>,
    /// The resulting actions, in order.
    pub actions: &'a mut Vec<Action<F>>,
}

/// The protocol that carries an exchange: how its response reaches the client, and the state of that client.
///
/// A response is sent whole ([`respond`](Protocol::respond)), or begun and followed by its body in pieces until it is
/// finished. An exchange that does neither, or aborts a response that has begun, ends without a complete response.
pub trait Protocol<F> {
    /// A new ticket, unique on this connection.
    fn next_ticket(&mut self) -> Ticket;

    /// Whether the client is known to have closed its side.
    fn has_left(&self) -> bool;

    /// Whether the rest of the request body is still expected.
    fn awaits_body(&self) -> bool;

    /// Stops reading the request body.
    fn skip_body(&mut self);

    /// Sends a response that precedes the final one, to a client of HTTP/1.1 or later (RFC 9110, 15.2).
    fn interim(&mut self, cx: &mut Context<'_, F>, interim: &Interim);

    /// The framing of a body of unknown length for a client of this version.
    fn open_ended(&self, version: Version) -> ScriptFraming;

    /// Sends a complete response.
    fn respond(&mut self, cx: &mut Context<'_, F>, request: &Request<'_>, response: Response<F>);

    /// Begins a response whose body, if any, follows in pieces.
    fn begin_response(
        &mut self,
        cx: &mut Context<'_, F>,
        request: &Request<'_>,
        response: Response<F>,
        framing: ScriptFraming,
    );

    /// Begins a response after which the connection or stream carries another protocol: what the client sends is
    /// passed to the exchange as the body of the request, and pieces are sent as they are.
    fn begin_tunnel(&mut self, cx: &mut Context<'_, F>, response: Response<F>);

    /// Sends more of the body of the response in progress.
    fn piece(&mut self, cx: &mut Context<'_, F>, bytes: &[u8]);

    /// Completes the response in progress.
    fn finish(&mut self, cx: &mut Context<'_, F>);

    /// Abandons the response in progress, so that the client can detect the truncation.
    fn abort(&mut self);
}

/// Whether an exchange continues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Progress {
    /// It waits for an event.
    Open,
    /// It is complete.
    Over,
}
