//! Revalidation of a page in the background: an exchange without a client.
//!
//! Before it, `exchange` has answered a client with a page that is not fresh, and asked for this by
//! [`Action::Revalidate`](crate::event::Action::Revalidate). The driver runs it as it runs the application requests of a
//! connection, but not as part of one, since that may end at any time. What the application responds becomes the page; if it
//! fails, the page stays. Both are done by the exchange; its protocol, which would carry the response to a client, does nothing.

use alloc::sync::Arc;
use alloc::vec::Vec;

use amped_http::h1::request::{Request, Version};
use amped_http::interim::Interim;
use amped_units::Time;

use crate::app::{Output, RevalidateWork};
use crate::event::{Action, Ticket};
use crate::exchange::{Context, Exchange, Progress, Protocol};
use crate::file::FileHandle;
use crate::reply::{Response, ScriptFraming};
use crate::shared_state::SharedState;

/// A revalidation in progress.
#[derive(Debug)]
pub struct Revalidation {
    exchange: Exchange,
    due: Time,
    /// Its place among those of the loop.
    _slot: Arc<()>,
}

impl Revalidation {
    /// Starts a revalidation. `None`: the configuration does not cache the page any more.
    pub fn begin<F>(
        now: Time,
        mut work: RevalidateWork,
        shared: &mut SharedState<F>,
        actions: &mut Vec<Action<F>>,
    ) -> Option<Revalidation> {
        let slot = core::mem::take(&mut work.slot);
        let mut cx = Context { now, shared, actions };
        let exchange = Exchange::revalidate(&mut cx, work, Ticket::default())?;
        let due = now + exchange.app_timeout();
        Some(Revalidation { exchange, due, _slot: slot })
    }

    /// When it is [given up](Revalidation::give_up), however much of the response has arrived.
    pub fn due(&self) -> Time {
        self.due
    }

    /// Handles output of the application. Returns whether the revalidation is over.
    pub fn handle<F: FileHandle>(
        &mut self,
        now: Time,
        output: (Ticket, Output<'_>),
        shared: &mut SharedState<F>,
        actions: &mut Vec<Action<F>>,
    ) -> bool {
        let mut cx = Context { now, shared, actions };
        let progress = self.exchange.take_output(&mut cx, output, &mut NoClient);
        let is_settled = self.exchange.is_settled_revalidation();
        if is_settled {
            self.exchange.cancel(&mut cx);
        }
        is_settled || matches!(progress, Progress::Over)
    }

    /// Its time has expired.
    pub fn give_up<F: FileHandle>(&mut self, now: Time, shared: &mut SharedState<F>, actions: &mut Vec<Action<F>>) {
        let _ = self.exchange.overdue(&mut Context { now, shared, actions }, &mut NoClient);
    }
}

/// The protocol of an exchange without a client.
struct NoClient;

impl<F> Protocol<F> for NoClient {
    fn next_ticket(&mut self) -> Ticket {
        Ticket::default()
    }

    fn has_left(&self) -> bool {
        false
    }

    fn awaits_body(&self) -> bool {
        false
    }

    fn skip_body(&mut self) {}

    fn interim(&mut self, _: &mut Context<'_, F>, _: &Interim) {}

    fn open_ended(&self, _: Version) -> ScriptFraming {
        ScriptFraming::Chunked
    }

    fn respond(&mut self, _: &mut Context<'_, F>, _: &Request<'_>, _: Response<F>) {}

    fn begin_response(&mut self, _: &mut Context<'_, F>, _: &Request<'_>, _: Response<F>, _: ScriptFraming) {}

    fn begin_tunnel(&mut self, _: &mut Context<'_, F>, _: Response<F>) {}

    fn piece(&mut self, _: &mut Context<'_, F>, _: &[u8]) {}

    fn finish(&mut self, _: &mut Context<'_, F>) {}

    fn abort(&mut self) {}
}
