//! A stream: one exchange, its request body, and the state of its response.

use alloc::vec::Vec;
use core::mem;
use core::time::Duration;

use amped_http::h1::request::{Framing, Request, Version};
use amped_http::h1::response::Connection;
use amped_http::h2::frame::{self, StreamId};
use amped_http::h2::hpack;
use amped_http::interim::Interim;
use amped_http::priority::Priority;
use amped_http::status::Status;
use amped_units::Time;

use crate::event::{Action, Lane, Ticket, Work};
use crate::exchange::{Context, Exchange, Protocol};
use crate::http2::schedule::{SendState, Slot};
use crate::limits::Limits;
use crate::pace::SendCredit;
use crate::pacer::Pacer;
use crate::reply::{Reply, Response, ScriptFraming};

/// An open stream.
#[derive(Debug)]
pub(super) struct Stream {
    /// The request in progress; `None` once its response has been decided.
    pub(super) exchange: Option<alloc::boxed::Box<Exchange>>,
    /// A lookup that waits until fewer of the connection's are in progress.
    pub(super) deferred: Option<(Ticket, Work)>,
    pub(super) side: Side,
}

/// The stream as seen by its exchange and by the sender.
#[derive(Debug)]
pub(super) struct Side {
    pub(super) id: StreamId,
    pub(super) slot: Slot,
    /// When it last made progress.
    pub(super) since: Time,
    /// Its request body, as far as it has not been passed to the exchange.
    pub(super) body: Vec<u8>,
    /// Whether the end of the body has not been passed to the exchange yet.
    pub(super) body_left: bool,
    /// Whether the client has sent the end (END_STREAM).
    pub(super) client_ended: bool,
    /// Whether the rest of the body is discarded.
    pub(super) skips_body: bool,
    /// Bytes of body that must still arrive, if the request has told its length.
    pub(super) length_left: Option<u64>,
    /// Bytes that the client may still send.
    pub(super) receive_window: i64,
    /// Bytes received and consumed that the client has not been told of.
    pub(super) consumed: u32,
    pub(super) response: ResponseState,
    /// Whether all of it was sent.
    pub(super) is_sent: bool,
    /// Since when its window or that of the connection is used up, if it is.
    pub(super) blocked_since: Time,
    /// The time left to the client to open them, and what was sent since it was last computed: of this stream,
    pub(super) credit: SendCredit,
    pub(super) uncredited: u64,
    /// and what was sent of all streams until then.
    pub(super) credited_total: u64,
    /// The credit of its response, if that has a bandwidth.
    pub(super) pacer: Option<Pacer>,
    /// Whether it is a tunnel, or its request asks for one (RFC 8441).
    pub(super) is_tunnel: bool,
}

/// The state of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ResponseState {
    /// None yet.
    Awaited,
    /// Its head was queued; its body follows in pieces.
    Open,
    /// All of it was queued.
    Complete,
    /// It was abandoned: the stream must be reset.
    Aborted,
}

impl Side {
    pub(super) fn new(id: StreamId, priority: Priority, (send, receive): (i64, i64), now: Time) -> Side {
        Side {
            id,
            slot: Slot::new(priority, send),
            since: now,
            body: Vec::new(),
            body_left: false,
            client_ended: true,
            skips_body: false,
            length_left: None,
            receive_window: receive,
            consumed: 0,
            response: ResponseState::Awaited,
            is_sent: false,
            blocked_since: now,
            credit: SendCredit::default(),
            uncredited: 0,
            credited_total: 0,
            is_tunnel: false,
            pacer: None,
        }
    }

    /// The credit with what was sent since it was last computed. `total`: the bytes sent of all streams, which count if this one
    /// waits for the connection's window: others may have their turn first.
    pub(super) fn credit(&self, total: u64, limits: &Limits) -> SendCredit {
        let bytes = if self.slot.window <= 0 { self.uncredited } else { total - self.credited_total };
        self.credit.after(Duration::ZERO, bytes, limits)
    }

    /// The client opens its window, or that of the connection, which is `connection` before. If it could not send, the client's
    /// time has run.
    pub(super) fn note_window(&mut self, (connection, total): (i64, u64), now: Time, limits: &Limits) {
        if self.slot.state == SendState::Body && self.slot.window.min(connection) <= 0 {
            self.credit = self.credit(total, limits).after(now.since(self.blocked_since), 0, limits);
            (self.blocked_since, self.uncredited, self.credited_total) = (now, 0, total);
        }
    }

    /// When its bandwidth permits more of a body that it could send otherwise.
    pub(super) fn paced_due(&self) -> Time {
        let is_paced = self.slot.allowance == 0 && self.slot.state == SendState::Body;
        self.pacer.filter(|_| is_paced).map_or(Time::NEVER, |pacer| pacer.due())
    }

    /// So many bytes of its body were sent; or none, and time has passed.
    pub(super) fn pace(&mut self, bytes: u64, now: Time) {
        if let Some(pacer) = &mut self.pacer {
            pacer.note(bytes, now);
            self.slot.allowance = pacer.allowance(now);
        }
    }

    /// When its connection may send again, if it shares the connection's bandwidth.
    pub(super) fn connection_due(&self) -> Option<Time> {
        self.pacer.as_ref().and_then(Pacer::connection_due)
    }

    /// Another stream has used the bandwidth of the connection until this time.
    pub(super) fn share(&mut self, due: Time, now: Time) {
        if let Some(pacer) = self.pacer.as_mut().filter(|pacer| pacer.connection_due().is_some()) {
            pacer.set_connection_due(due);
            self.slot.allowance = pacer.allowance(now);
        }
    }

    /// The request asks for a tunnel: what the client sends is kept until there is one.
    pub(super) fn expects_tunnel(&mut self) {
        self.is_tunnel = true;
    }

    /// Whether something is left to be passed to the exchange: part of the body, or its end.
    pub(super) fn has_input(&self) -> bool {
        !self.body.is_empty() || self.body_left && self.client_ended
    }

    /// The request has a body of this framing.
    pub(super) fn expects(&mut self, framing: Framing) {
        self.body_left = framing != Framing::None;
        self.length_left = match framing {
            // An empty body, whose end may still have to arrive.
            Framing::None => Some(0),
            Framing::Length(length) => Some(length),
            Framing::Chunked => None,
        };
    }

    /// The name of its output in actions.
    pub(super) fn lane(&self) -> Lane {
        Lane(self.id.0)
    }

    /// Something was queued to be sent.
    fn note_queued(&mut self, now: Time, virtual_time: u64, limits: &Limits) {
        self.since = now;
        if self.slot.state == SendState::Empty {
            self.slot.state = SendState::Unlimited;
            self.slot.join(virtual_time);
            // What was sent before adds nothing to a full credit.
            (self.blocked_since, self.credit, self.uncredited) = (now, SendCredit::full(limits), 0);
        }
    }
}

/// The parts of a connection that the exchanges of its streams use.
#[derive(Debug, Default)]
pub(super) struct Common {
    pub(super) last_ticket: u32,
    /// Whether the client has closed its side.
    pub(super) ended: bool,
    /// The bytes that the incremental stream served last had sent before (see [`Slot::join`]).
    pub(super) virtual_time: u64,
    /// Whether the next header block must begin with the size of the dynamic table.
    pub(super) owes_table_update: bool,
    /// Whether any stream so far had a bandwidth.
    pub(super) paces: bool,
    /// When the streams that share the connection's bandwidth may send again; [`Time::START`]: there was none so far.
    pub(super) connection_due: Time,
    /// Bytes of interim responses since all of them were sent.
    pub(super) interim_bytes: usize,
}

/// Maximum bytes of unsent interim responses of a connection; further ones are dropped.
const INTERIM_BYTES_MAX: usize = 64 * 1024;

/// How an exchange reaches its stream.
pub(super) struct Wire<'a> {
    pub(super) common: &'a mut Common,
    pub(super) side: &'a mut Side,
}

impl Wire<'_> {
    pub(super) fn send<F>(&mut self, cx: &mut Context<'_, F>, response: Response<F>, state: ResponseState) {
        let Response { head, hsts, body, record } = response;
        self.side.response = state;
        if let Some(bandwidth) = record.bandwidth {
            self.side.pacer = Some(Pacer::new(bandwidth, self.common.connection_due, cx.now));
            self.side.pace(0, cx.now);
            self.common.paces = true;
        }
        self.side.note_queued(cx.now, self.common.virtual_time, &cx.shared.limits);
        let reply = Reply { head, connection: Connection::Persists, hsts, body, record };
        cx.actions.push(Action::Send(self.side.lane(), reply));
    }
}

impl<F> Protocol<F> for Wire<'_> {
    fn next_ticket(&mut self) -> Ticket {
        self.common.last_ticket = self.common.last_ticket.wrapping_add(1);
        Ticket(self.common.last_ticket)
    }

    fn has_left(&self) -> bool {
        self.common.ended
    }

    fn awaits_body(&self) -> bool {
        self.side.body_left && !self.side.skips_body
    }

    fn skip_body(&mut self) {
        self.side.skips_body |= self.side.body_left;
    }

    fn interim(&mut self, cx: &mut Context<'_, F>, interim: &Interim) {
        // A client that reads nothing does not need them, except the one that it waits for.
        self.common.interim_bytes += interim.head().len();
        if self.common.interim_bytes > INTERIM_BYTES_MAX && interim.status() != Status::CONTINUE {
            return;
        }
        // RFC 9113, 8.1: an interim response is a head of its own. It precedes all data, as control frames do.
        let (mut block, mut bytes) = (Vec::new(), Vec::new());
        if mem::take(&mut self.common.owes_table_update) {
            block.push(hpack::NO_TABLE);
        }
        interim.write_block(&mut block);
        frame::headers(&mut bytes, self.side.id, &block, false, frame::FRAME_BYTES);
        cx.actions.push(Action::Control(bytes));
    }

    fn open_ended(&self, _: Version) -> ScriptFraming {
        ScriptFraming::UntilClose
    }

    fn respond(&mut self, cx: &mut Context<'_, F>, _: &Request<'_>, response: Response<F>) {
        Protocol::<F>::skip_body(self);
        self.send(cx, response, ResponseState::Complete);
    }

    fn begin_response(
        &mut self,
        cx: &mut Context<'_, F>,
        _: &Request<'_>,
        response: Response<F>,
        framing: ScriptFraming,
    ) {
        let state = match framing {
            ScriptFraming::None => ResponseState::Complete,
            ScriptFraming::Length(_) | ScriptFraming::Chunked | ScriptFraming::UntilClose => ResponseState::Open,
        };
        self.send(cx, response, state);
    }

    fn begin_tunnel(&mut self, cx: &mut Context<'_, F>, response: Response<F>) {
        self.side.body_left = true;
        self.send(cx, response, ResponseState::Open);
    }

    fn piece(&mut self, cx: &mut Context<'_, F>, bytes: &[u8]) {
        if self.side.response == ResponseState::Open && !bytes.is_empty() {
            self.side.note_queued(cx.now, self.common.virtual_time, &cx.shared.limits);
            cx.actions.push(Action::Piece(self.side.lane(), bytes.to_vec(), 0));
        }
    }

    fn finish(&mut self, cx: &mut Context<'_, F>) {
        if mem::replace(&mut self.side.response, ResponseState::Complete) == ResponseState::Open {
            self.side.note_queued(cx.now, self.common.virtual_time, &cx.shared.limits);
            cx.actions.push(Action::PieceEnd(self.side.lane()));
        }
    }

    fn abort(&mut self) {
        self.side.response = ResponseState::Aborted;
    }
}
