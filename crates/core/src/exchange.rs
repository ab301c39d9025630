//! Stop 5 of 10: one request, from its head until its response is complete.
//!
//! Before it, `http1` (stop 3) has had a head parsed (stop 4). After it, `plan` (stop 6) resolves the target.
//!
//! `decide` (stop 7) determines the next step: a response, or a request to the disk, the password verifier or an
//! application. While the result is pending, the exchange keeps the parsed request and its resolved target, so that
//! neither is computed twice. A request that need not wait allocates nothing: [`Exchange::begin`] sends its response and
//! returns `None`.
//!
//! A [`Protocol`] carries requests and responses, and may have any number of exchanges side by side.

mod app_request;
mod authorization;
mod context;

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::mem;
use core::time::Duration;

use amped_http::auth::Credentials;
use amped_http::cgi::{self, BadScript};
use amped_http::h1::request::{self, Expectation, Framing, HeadLimits, OwnedRequest, Request, Version};
use amped_http::h1::response::HSTS;
use amped_http::interim::Interim;
use amped_http::method::Method;
use amped_http::status::Status;
use amped_units::Time;

use crate::app::{self, AppHead, AppTrouble, HandlerMatch, Output, RevalidateWork};
use crate::cache::page::AppPage;
use crate::cache::path::CachedEntry;
use crate::decide::{self, DiskRequest, Failure, PreparedResponse, Step};
use crate::early_hints;
use crate::event::{Action, Answer, Delay, Ticket};
use crate::exchange::app_request::{AppRequest, HeadVerdict, Stage, StartResult};
use crate::exchange::authorization::{Approval, Authorization, Denial, Fields, Ruling};
use crate::file::FileHandle;
use crate::limits::Limits;
use crate::pace::Pace;
use crate::pacer::Bandwidth;
use crate::plan::{self, Origin, Resolved};
use crate::record::{Outcome, RequestPermit};
use crate::reply::{self, ReplyHead, Response, ScriptFraming};
use crate::request_id::{self, RequestId, RequestIds};
use crate::request_limit::{Admission, RequestLimit, Requester};

pub use crate::exchange::context::{Context, Progress, Protocol};

/// A request in progress that has to wait.
#[derive(Debug)]
pub struct Exchange {
    request: OwnedRequest,
    /// When the first byte of its head arrived.
    began: Time,
    resolved: Resolved<'static>,
    detour: Detour,
    /// When it last made progress.
    since: Time,
    state: State,
}

/// The event that the exchange waits for.
#[derive(Debug)]
enum State {
    /// The time at which the limit of its client's requests permits it.
    Delayed(Time),
    /// The end of its body, which is discarded.
    Body(Unread),
    /// The disk, or the password verifier.
    Disk(Waiting),
    /// An application that decides whether the client may have what it requests.
    Authorization(Box<Authorization>),
    /// An application, which may already be responding.
    App(Box<AppRequest>),
}

#[derive(Debug)]
struct Unread {
    /// Bytes of body data still allowed: the limit minus the bytes received.
    left: u64,
    pace: Pace,
    /// The status and reason to respond with once the body is discarded, if already known.
    refusal: Option<(Status, &'static str)>,
}

#[derive(Debug)]
struct Waiting {
    ticket: Ticket,
    /// When the lookup was requested.
    requested_at: Time,
    purpose: Purpose,
    /// The cached entry of the name, for use if the result is delayed.
    stale: Option<CachedEntry>,
    /// Whether a helper is doing the work.
    late: bool,
    /// Whether the request has passed all checks, so that its client may get links meanwhile.
    may_hint: bool,
}

/// The pending disk request.
#[derive(Clone, Copy, Debug)]
enum Purpose {
    /// The request's target.
    Target,
    /// The fallback file of the target.
    Fallback,
    /// The page of an error.
    ErrorPage(Status, &'static str),
}

/// What the response depends on besides the request and its target: redirections by applications, and limits.
#[derive(Debug, Default)]
struct Detour {
    /// Number of local redirects.
    count: u8,
    /// Only some clients may have the response: a password or an application has to admit them to its path, or to one that led to
    /// it. It stays so whatever an application substitutes.
    is_restricted: bool,
    /// The fields of an application's response that go with the file sent on its behalf.
    beside_file: Option<Box<Fields>>,
    /// The response, if an application has denied access.
    denial: Option<Box<Denial>>,
    /// The fields of the responses of applications that have admitted the request, which are added to its response.
    admission_fields: Fields,
    /// When a client that exceeds a limit may try again, seconds.
    retry_after_s: Option<u64>,
    /// The request counts as one of its client's; until there is a response, which takes this over.
    permit: Option<RequestPermit>,
    /// The bandwidth of its response, if it is limited.
    bandwidth: Option<Bandwidth>,
    /// The client got the site's links for it.
    has_hints: bool,
    /// The ID of the request, if its site gives one.
    request_id: Option<RequestId>,
}

/// A request as parsed by a protocol.
pub struct Incoming<'a> {
    /// The parsed request.
    pub request: Request<'a>,
    /// The bytes it was parsed from.
    pub head: &'a [u8],
    /// When the first of these arrived.
    pub began: Time,
    /// Whether bytes after it have arrived.
    pub has_more: bool,
}

impl Exchange {
    /// Starts processing a request. `None`: its response is complete.
    pub fn begin<F: FileHandle, P: Protocol<F>>(
        cx: &mut Context<'_, F>,
        incoming: Incoming<'_>,
        protocol: &mut P,
    ) -> Option<Exchange> {
        let Incoming { request, head, began, has_more } = incoming;
        let mut resolved = resolve(&request, cx);
        let request_id = request_id_of(cx, (&request, head), &resolved);
        let mut detour = Detour { request_id, ..Detour::default() };
        let mut steps = Steps { cx, protocol, request, head, began, resolved: &mut resolved, detour: &mut detour };
        let state = match steps.admission() {
            Admission::Now => steps.begin(has_more),
            Admission::After(delay) => Some(State::Delayed(steps.cx.now + delay)),
            Admission::Refused(wait) => steps.refuse_over_limit(wait, FROM_ADDRESS),
        }?;
        let (request, since) = (OwnedRequest::new(&steps.request, head), steps.cx.now);
        Some(Exchange { request, began, resolved: resolved.keep(), detour, since, state })
    }

    /// Starts to revalidate a page, without a client. `None`: the configuration does not cache it any more.
    pub fn revalidate<F>(cx: &mut Context<'_, F>, work: RevalidateWork, ticket: Ticket) -> Option<Exchange> {
        let (app_request, request) = AppRequest::revalidate(cx, work, ticket)?;
        let (began, since) = (cx.now, cx.now);
        let resolved = resolve(&request.request(), cx).keep();
        // Its client's is that of another request.
        let is_given = cx.shared.sites.of(resolved.site).request_ids != RequestIds::Off;
        let request_id = is_given.then(|| cx.shared.ids.next_id());
        let detour = Detour { request_id, ..Detour::default() };
        Some(Exchange { request, began, resolved, detour, since, state: State::App(app_request) })
    }

    /// Whether it revalidates a page, and that is decided: the rest of the response is not needed.
    pub fn is_settled_revalidation(&self) -> bool {
        matches!(&self.state, State::App(app_request) if app_request.is_settled_revalidation())
    }

    /// The timeout of its application.
    pub fn app_timeout(&self) -> Duration {
        match &self.state {
            State::App(app_request) => app_request.time,
            State::Body(_) | State::Disk(_) | State::Delayed(_) | State::Authorization(_) => Duration::ZERO,
        }
    }

    /// Cancels it: the client has closed the connection or the stream.
    pub fn cancel<F>(&self, cx: &mut Context<'_, F>) {
        // The result of the disk work will be discarded.
        match &self.state {
            State::App(app_request) => app_request.leave(cx, ""),
            State::Authorization(authorization) => authorization.leave(cx, ""),
            State::Body(_) | State::Disk(_) | State::Delayed(_) => {}
        }
    }

    /// When it [times out](Exchange::overdue). `since`: the last progress of the connection that carries it.
    pub fn due(&self, since: Time, limits: &Limits) -> Time {
        let since = self.since.max(since);
        match &self.state {
            State::Delayed(until) => *until,
            State::Body(unread) => unread.pace.due(),
            State::Disk(_) => since + limits.disk_timeout,
            State::App(app_request) if app_request.waits_for_client() => app_request.pace.due(),
            State::App(app_request) => since + app_request.time,
            State::Authorization(authorization) => since + authorization.time,
        }
    }

    /// The part of the deadline that does not depend on what the client has received.
    pub fn body_due(&self) -> Time {
        match &self.state {
            State::App(app_request) if app_request.waits_for_client() => app_request.pace.due(),
            State::App(_) | State::Authorization(_) | State::Body(_) | State::Disk(_) | State::Delayed(_) => {
                Time::NEVER
            }
        }
    }

    /// Whether it waits for the limit of its client's requests, and nothing was done for it yet.
    pub fn is_delayed(&self) -> bool {
        matches!(self.state, State::Delayed(_))
    }

    /// Whether it is discarding its body.
    pub fn discards_body(&self) -> bool {
        matches!(self.state, State::Body(_))
    }

    /// Whether it accepts more of its body now.
    pub fn wants_body(&self) -> bool {
        match &self.state {
            State::Body(_) => true,
            State::Disk(_) | State::Delayed(_) | State::Authorization(_) => false,
            State::App(app_request) => app_request.wants_body(),
        }
    }

    /// Whether it was passed to an application.
    pub fn is_at_app(&self) -> bool {
        matches!(self.state, State::App(_) | State::Authorization(_))
    }

    /// Whether it is the application request with this ticket.
    pub fn has_app_ticket(&self, ticket: Ticket) -> bool {
        match &self.state {
            State::App(app_request) => app_request.ticket == ticket,
            State::Authorization(authorization) => authorization.ticket == ticket,
            State::Body(_) | State::Disk(_) | State::Delayed(_) => false,
        }
    }

    /// Whether the application's output is read before the client has received the earlier output.
    pub fn reads_ahead(&self) -> bool {
        matches!(&self.state, State::App(app_request) if app_request.reads_ahead())
    }

    /// Whether its response has begun and the body is incomplete.
    pub fn is_in_body(&self) -> bool {
        matches!(&self.state, State::App(app_request)
            if matches!(app_request.stage, Stage::Body(framing) if framing != ScriptFraming::None))
    }

    /// Whether it waits for the result with this ticket.
    pub fn waits_for(&self, ticket: Ticket) -> bool {
        matches!(&self.state, State::Disk(waiting) if waiting.ticket == ticket)
    }

    /// Returns the head of the request.
    pub fn head(&self) -> &[u8] {
        self.request.head()
    }

    /// Heap memory in bytes, in addition to the struct itself.
    pub fn heap_bytes(&self) -> usize {
        let state = match &self.state {
            State::App(app_request) => app_request.heap_bytes(),
            State::Authorization(authorization) => authorization.heap_bytes(),
            State::Body(_) | State::Disk(_) | State::Delayed(_) => 0,
        };
        self.request.head().len() + state
    }

    /// Accepts part of the body; `is_last`: the end of it.
    pub fn take_body<F: FileHandle, P: Protocol<F>>(
        &mut self,
        cx: &mut Context<'_, F>,
        data: &[u8],
        is_last: bool,
        protocol: &mut P,
    ) -> Progress {
        self.since = cx.now;
        match &mut self.state {
            State::Body(unread) => {
                let refusal = unread.refusal;
                let Some(left) = unread.left.checked_sub(data.len() as u64) else {
                    // Over the limit: respond without waiting for the rest of the body.
                    protocol.skip_body();
                    return self.step(cx, protocol, |steps| match refusal {
                        Some((status, why)) => steps.fail(status, why),
                        None => steps.refuse_body(Status::CONTENT_TOO_LARGE, app_request::BODY_TOO_LONG),
                    });
                };
                unread.left = left;
                unread.pace.note(cx.now, data.len(), &cx.shared.limits);
                if !is_last {
                    return Progress::Open;
                }
                self.step(cx, protocol, |steps| match refusal {
                    Some((status, why)) => steps.fail(status, why),
                    None => steps.answer(),
                })
            }
            State::App(app_request) => match app_request.take_body(cx, data, is_last) {
                Ok(()) => Progress::Open,
                Err((status, why)) => self.give_up_on_app(cx, status, why, protocol),
            },
            State::Disk(_) | State::Delayed(_) | State::Authorization(_) => Progress::Open,
        }
    }

    /// The request's body is malformed.
    pub fn take_bad_body<F: FileHandle, P: Protocol<F>>(
        &mut self,
        cx: &mut Context<'_, F>,
        protocol: &mut P,
    ) -> Progress {
        let (status, why) = (Status::BAD_REQUEST, "malformed chunked body");
        protocol.skip_body();
        match self.state {
            State::App(_) => self.give_up_on_app(cx, status, why, protocol),
            State::Body(_) | State::Disk(_) | State::Delayed(_) | State::Authorization(_) => {
                self.cancel(cx);
                self.step(cx, protocol, |steps| steps.refuse_body(status, why))
            }
        }
    }

    /// Accepts the result of a disk lookup or password verification.
    pub fn take_answer<F: FileHandle, P: Protocol<F>>(
        &mut self,
        cx: &mut Context<'_, F>,
        answer: Answer<F>,
        protocol: &mut P,
    ) -> Progress {
        let State::Disk(Waiting { purpose, late, .. }) = self.state else {
            return Progress::Open;
        };
        let outcome = if late { Outcome::Helper } else { Outcome::Probe };
        // A result for another configuration may be another site's file or have
        // another media type, and its head would be cached. Repeat the lookup.
        let holds = self.resolved.generation == cx.shared.caches.generation();
        self.step(cx, protocol, |steps| match purpose {
            _ if !holds || matches!(answer, Answer::Outdated) => steps.begin(false),
            Purpose::Target => {
                let answer = (steps.origin(), answer);
                let step =
                    decide::step_after(steps.cx.now, &steps.request, answer, outcome, steps.resolved, steps.cx.shared);
                steps.take(step)
            }
            Purpose::Fallback => {
                let (now, shared) = (steps.cx.now, &mut *steps.cx.shared);
                let step = decide::fallback_after(now, &steps.request, answer, outcome, steps.resolved, shared);
                steps.take(step)
            }
            Purpose::ErrorPage(status, why) => {
                let made = decide::error_after(&steps.request, answer, (status, why), steps.resolved, steps.cx.shared);
                steps.respond(made)
            }
        })
    }

    /// The result of the disk work is delayed. Meanwhile a cached entry is served, unless it is too old.
    pub fn take_delay<F: FileHandle, P: Protocol<F>>(
        &mut self,
        cx: &mut Context<'_, F>,
        delay: Delay,
        protocol: &mut P,
    ) -> Progress {
        let State::Disk(waiting) = &mut self.state else {
            return Progress::Open;
        };
        waiting.late = true;
        let may_hint = mem::take(&mut waiting.may_hint);
        match delay {
            Delay::Disk => {}
            Delay::Change => waiting.stale = None,
        }
        let holds = self.resolved.generation == cx.shared.caches.generation();
        // Its age was computed when the lookup was requested, which may be some time ago.
        let (max_stale, since) = (cx.shared.caches.budgets.max_stale, cx.now.since(waiting.requested_at));
        let Some(known) = waiting.stale.take().filter(|known| holds && known.age + since < max_stale) else {
            if may_hint && holds {
                self.parts(cx, protocol).0.hint();
            }
            return Progress::Open;
        };
        let (mut steps, _) = self.parts(cx, protocol);
        let answer = (steps.origin(), Answer::Name(known.meaning, Vec::new()));
        match decide::step_after(steps.cx.now, &steps.request, answer, Outcome::Stale, steps.resolved, steps.cx.shared)
        {
            Step::Reply(made) => {
                steps.cx.shared.counts.stale_hits += 1;
                let _ = steps.respond(made);
                Progress::Over
            }
            _ => Progress::Open,
        }
    }

    /// A timeout has expired, or the time of a delayed request has come.
    pub fn overdue<F: FileHandle, P: Protocol<F>>(&mut self, cx: &mut Context<'_, F>, protocol: &mut P) -> Progress {
        match &self.state {
            State::Delayed(_) => self.step(cx, protocol, |steps| steps.begin(false)),
            State::Body(_) => {
                protocol.skip_body();
                let why = "timed out reading the request body";
                self.step(cx, protocol, |steps| steps.refuse_body(Status::REQUEST_TIMEOUT, why))
            }
            // A late result will be discarded.
            State::Disk(_) => {
                cx.shared.counts.shed += 1;
                let why = "timed out reading from disk; try again later";
                self.step(cx, protocol, |steps| steps.fail_plainly(Status::SERVICE_UNAVAILABLE, why))
            }
            State::Authorization(_) => self.fail_authorization(cx, "timed out waiting for the authorization", protocol),
            State::App(app_request) if app_request.follows() => self.run_alone(cx, protocol),
            State::App(app_request) if app_request.is_tunnel => {
                app_request.leave(cx, "");
                protocol.finish(cx);
                Progress::Over
            }
            State::App(app_request) => {
                let (status, why) = app_request.overdue();
                self.give_up_on_app(cx, status, why, protocol)
            }
        }
    }

    /// Takes the next step.
    fn step<'c, F: FileHandle, P: Protocol<F>>(
        &mut self,
        cx: &mut Context<'c, F>,
        protocol: &mut P,
        then: impl FnOnce(&mut Steps<'_, 'c, 'static, F, P>) -> Option<State>,
    ) -> Progress {
        self.since = cx.now;
        let (mut steps, state) = self.parts(cx, protocol);
        match then(&mut steps) {
            Some(next) => {
                *state = next;
                Progress::Open
            }
            None => Progress::Over,
        }
    }

    fn parts<'e, 'c, F, P: Protocol<F>>(
        &'e mut self,
        cx: &'e mut Context<'c, F>,
        protocol: &'e mut P,
    ) -> (Steps<'e, 'c, 'static, F, P>, &'e mut State) {
        if self.resolved.generation != cx.shared.caches.generation() {
            let awaits_user = self.resolved.awaits_user;
            self.resolved = resolve(&self.request.request(), cx).keep();
            self.resolved.awaits_user = awaits_user;
        }
        let Exchange { request, began, resolved, detour, state, .. } = self;
        let (head, request) = (request.head(), request.request());
        (Steps { cx, protocol, request, head, began: *began, resolved, detour }, state)
    }
}

/// Output of applications.
impl Exchange {
    /// The application request with this ticket has produced output, or its state has changed.
    pub fn take_output<F: FileHandle, P: Protocol<F>>(
        &mut self,
        cx: &mut Context<'_, F>,
        (ticket, output): (Ticket, Output<'_>),
        protocol: &mut P,
    ) -> Progress {
        let app_request = match &mut self.state {
            State::App(app_request) if app_request.ticket == ticket => app_request,
            State::Authorization(authorization) if authorization.ticket == ticket => {
                self.since = cx.now;
                return self.take_authorization(cx, output, protocol);
            }
            _ => return Progress::Open,
        };
        self.since = cx.now;
        match output {
            Output::Started(backend) => (app_request.has_started, app_request.backend) = (true, backend),
            Output::First => return self.begin_page(cx, protocol),
            Output::Follows => app_request.note_followed(cx),
            // The request that this one waited for has filled the cache, or failed.
            Output::Again => return self.step(cx, protocol, |steps| steps.answer()),
            Output::Room => app_request.note_room(cx.now),
            Output::Interim(interim) => self.pass_interim(cx, &interim, protocol),
            Output::Bytes(bytes) => return self.take_output_bytes(cx, bytes, false, protocol),
            Output::Last(bytes) => match self.take_output_bytes(cx, bytes, true, protocol) {
                // It ends when it is compressed.
                Progress::Open if matches!(&self.state, State::App(app_request) if app_request.is_compressed) => {}
                Progress::Open => return self.end_app(cx, None, protocol),
                Progress::Over => return Progress::Over,
            },
            Output::Switched(head) => self.begin_tunnel(cx, head, protocol),
            Output::Ended => return self.end_app(cx, None, protocol),
            Output::Failed(trouble) => return self.end_app(cx, Some(trouble), protocol),
        }
        Progress::Open
    }

    /// The application has sent a response that precedes the final one.
    fn pass_interim<F: FileHandle, P: Protocol<F>>(
        &mut self,
        cx: &mut Context<'_, F>,
        interim: &Interim,
        protocol: &mut P,
    ) {
        let (steps, State::App(app_request)) = self.parts(cx, protocol) else { return };
        // RFC 9110, 15.2: clients of HTTP/1.0 know none.
        if steps.request.version != Version::Http10
            && let Some(interim) = app_request.interim(steps.cx, &steps.request, interim)
        {
            steps.protocol.interim(steps.cx, &interim);
        }
    }

    /// The application that authorises the request has produced output, or its state has changed.
    fn take_authorization<F: FileHandle, P: Protocol<F>>(
        &mut self,
        cx: &mut Context<'_, F>,
        output: Output<'_>,
        protocol: &mut P,
    ) -> Progress {
        let Exchange { state: State::Authorization(authorization), request, resolved, .. } = self else {
            return Progress::Open;
        };
        let holds = resolved.generation == cx.shared.caches.generation();
        let ruling = match output {
            // It was asked under another configuration.
            Output::Bytes(_) | Output::Last(_) if !holds => {
                authorization.leave(cx, "");
                return self.step(cx, protocol, |steps| steps.begin(false));
            }
            Output::Bytes(bytes) => authorization.take_output(cx, bytes, request, resolved),
            Output::Last(bytes) => authorization.take_output(cx, bytes, request, resolved).or(FAILED),
            Output::Ended | Output::Failed(_) | Output::Switched(_) => FAILED,
            _ => None,
        };
        match ruling {
            None => Progress::Open,
            Some(Ruling::Failed(why)) => self.fail_authorization(cx, why, protocol),
            Some(Ruling::Denied(denial)) => {
                authorization.leave(cx, "");
                self.detour.denial = Some(Box::new(denial));
                self.step(cx, protocol, |steps| steps.begin(false))
            }
            Some(Ruling::Admitted(Approval { request, user, fields })) => {
                authorization.leave(cx, "");
                self.resolved.authorized.push(authorization.rule);
                self.resolved.user = user.or(self.resolved.user.take());
                self.detour.admission_fields.extend(fields);
                self.request = *request;
                self.step(cx, protocol, |steps| steps.begin(false))
            }
        }
    }

    /// Nobody knows whether the client may have what it requests.
    fn fail_authorization<F: FileHandle, P: Protocol<F>>(
        &mut self,
        cx: &mut Context<'_, F>,
        why: &'static str,
        protocol: &mut P,
    ) -> Progress {
        if let State::Authorization(authorization) = &self.state {
            authorization.leave(cx, why);
        }
        self.step(cx, protocol, |steps| steps.take(Step::Fail(Status::INTERNAL_SERVER_ERROR, why)))
    }

    /// This request generates the page.
    fn begin_page<F: FileHandle, P: Protocol<F>>(&mut self, cx: &mut Context<'_, F>, protocol: &mut P) -> Progress {
        let (mut steps, State::App(app_request)) = self.parts(cx, protocol) else {
            return Progress::Open;
        };
        let head = AppHead {
            request: &steps.request,
            bytes: steps.head,
            requested: &steps.resolved.requested,
            id: steps.detour.request_id.as_ref(),
        };
        let user = decide::claimed_name(&steps.request, steps.resolved, &steps.cx.shared.sites);
        match app_request.begin_page(steps.cx, head, user.as_ref().map(Credentials::name)) {
            None => Progress::Open,
            Some(made) => {
                let _ = steps.respond(made);
                Progress::Over
            }
        }
    }

    /// The wait for another request's response has timed out: run the application for this request.
    fn run_alone<F: FileHandle, P: Protocol<F>>(&mut self, cx: &mut Context<'_, F>, protocol: &mut P) -> Progress {
        self.since = cx.now;
        let ticket = protocol.next_ticket();
        if let (steps, State::App(app_request)) = self.parts(cx, protocol) {
            let head = AppHead {
                request: &steps.request,
                bytes: steps.head,
                requested: &steps.resolved.requested,
                id: steps.detour.request_id.as_ref(),
            };
            app_request.run_alone(steps.cx, head, ticket);
        }
        Progress::Open
    }

    /// The application has switched to another protocol, with this head.
    fn begin_tunnel<F: FileHandle, P: Protocol<F>>(&mut self, cx: &mut Context<'_, F>, head: &[u8], protocol: &mut P) {
        if let (mut steps, State::App(app_request)) = self.parts(cx, protocol) {
            let made = app_request.switch(steps.cx, &steps.request, head);
            let response = steps.response_from(app_request, made);
            steps.protocol.begin_tunnel(steps.cx, response);
        }
    }

    /// The client has closed its side of a tunnel; everything before that was passed on.
    pub fn end_tunnel_input<F>(&mut self, cx: &mut Context<'_, F>) {
        if let State::App(app_request) = &mut self.state {
            app_request.end_tunnel_input(cx);
        }
    }

    /// `is_last`: the response is complete with these bytes.
    fn take_output_bytes<F: FileHandle, P: Protocol<F>>(
        &mut self,
        cx: &mut Context<'_, F>,
        bytes: &[u8],
        is_last: bool,
        protocol: &mut P,
    ) -> Progress {
        let State::App(app_request) = &mut self.state else {
            return Progress::Open;
        };
        let Some(left) = app_request.output_left.checked_sub(bytes.len() as u64) else {
            let why = "the application's response exceeds max_response_bytes";
            return self.give_up_on_app(cx, Status::BAD_GATEWAY, why, protocol);
        };
        app_request.output_left = left;
        match &mut app_request.stage {
            Stage::Rest(_) | Stage::Confirmed(_) => Progress::Open,
            Stage::Body(_) => {
                app_request.pass_body(cx, bytes, protocol);
                Progress::Open
            }
            Stage::Head(known) => {
                known.extend_from_slice(bytes);
                let received = mem::take(known);
                match cgi::parse(&received) {
                    Ok(None) => {
                        *known = received;
                        Progress::Open
                    }
                    Ok(Some((head, length))) => {
                        self.take_script_head(cx, &head, (&received[length..], is_last), protocol)
                    }
                    Err(BadScript(why)) => self.give_up_on_app(cx, Status::BAD_GATEWAY, why, protocol),
                }
            }
        }
    }

    /// The head of an application's response is complete, and is followed by `rest`. `is_last`: nothing follows.
    fn take_script_head<F: FileHandle, P: Protocol<F>>(
        &mut self,
        cx: &mut Context<'_, F>,
        script_head: &cgi::ScriptHead<'_>,
        (rest, is_last): (&[u8], bool),
        protocol: &mut P,
    ) -> Progress {
        let (mut steps, State::App(app_request)) = self.parts(cx, protocol) else {
            return Progress::Open;
        };
        let may_lead_on = steps.detour.count < DETOURS_MAX;
        match app_request.judge_head(steps.cx, (&steps.request, steps.head), script_head, may_lead_on) {
            HeadVerdict::Reply(status) if app_request.take_confirmation(steps.cx, script_head, status) => {
                Progress::Open
            }
            HeadVerdict::Reply(status) => {
                if status.0 >= 500
                    && let Some(page) = app_request.take_stale(steps.cx, status)
                {
                    app_request.leave(steps.cx, "");
                    return self.respond_with(cx, (&page, Outcome::Stale), protocol);
                }
                let length = is_last.then_some(rest.len());
                let open_ended = steps.protocol.open_ended(steps.request.version);
                let (made, framing, stream) = app_request.reply(
                    steps.cx,
                    (&steps.request, steps.head),
                    script_head,
                    (status, length, open_ended),
                );
                let response = steps.response_from(app_request, made);
                steps.protocol.begin_response(steps.cx, &steps.request, response, framing);
                match stream {
                    Some(stream) => app_request.compress(steps.cx, stream, (rest, is_last), script_head.length),
                    None => app_request.pass_body(steps.cx, rest, steps.protocol),
                }
                Progress::Open
            }
            HeadVerdict::Instead => {
                if script_head.send.is_some() {
                    steps.detour.beside_file = Some(Box::new(app::fields_beside_file(script_head)));
                }
                Progress::Open
            }
            HeadVerdict::Bad(why) => self.give_up_on_app(cx, Status::BAD_GATEWAY, why, protocol),
        }
    }

    /// The application has finished, successfully or not.
    fn end_app<F: FileHandle, P: Protocol<F>>(
        &mut self,
        cx: &mut Context<'_, F>,
        trouble: Option<AppTrouble>,
        protocol: &mut P,
    ) -> Progress {
        let State::App(app_request) = &mut self.state else {
            return Progress::Open;
        };
        // If the application stops reading the body, the rest may still arrive.
        protocol.skip_body();
        match (app_request.end(cx, self.request.head(), trouble), trouble) {
            (Stage::Head(_), trouble) => {
                let (status, why) = app_request.failure(cx, trouble);
                if let Some(page) = app_request.take_stale(cx, status) {
                    return self.respond_with(cx, (&page, Outcome::Stale), protocol);
                }
                app_request.fail_page(cx);
                self.step(cx, protocol, |steps| steps.take(Step::Fail(status, why)))
            }
            (Stage::Confirmed(page), _) => self.respond_with(cx, (&page, Outcome::App), protocol),
            (Stage::Rest(instead), _) => self.take_instead(cx, &instead, protocol),
            (Stage::Body(ScriptFraming::Length(1..)), _) => {
                // The client must be able to detect the truncation.
                app_request.leave(cx, CUT_SHORT);
                protocol.abort();
                Progress::Over
            }
            (Stage::Body(ScriptFraming::Chunked | ScriptFraming::UntilClose), Some(_)) => {
                app_request.leave(cx, CUT_SHORT);
                protocol.abort();
                Progress::Over
            }
            (Stage::Body(_), _) => {
                protocol.finish(cx);
                Progress::Over
            }
        }
    }

    /// Continues with the request that an application has substituted by a local redirect.
    fn take_instead<F: FileHandle, P: Protocol<F>>(
        &mut self,
        cx: &mut Context<'_, F>,
        head: &[u8],
        protocol: &mut P,
    ) -> Progress {
        let Request { secure, client, .. } = self.request.request();
        let Ok(request) = request::parse_own(head, &HeadLimits::unlimited(secure)) else {
            let why = "invalid local redirect by the application";
            return self.step(cx, protocol, |steps| steps.fail(Status::BAD_GATEWAY, why));
        };
        let request = Request { client, ..request };
        self.detour.count += 1;
        self.resolved = resolve(&request, cx).keep();
        self.request = OwnedRequest::new(&request, head);
        self.step(cx, protocol, |steps| steps.answer())
    }

    /// Responds with a cached page in place of what the application has sent, which has ended or was given up.
    fn respond_with<F: FileHandle, P: Protocol<F>>(
        &mut self,
        cx: &mut Context<'_, F>,
        (page, outcome): (&AppPage, Outcome),
        protocol: &mut P,
    ) -> Progress {
        protocol.skip_body();
        if let (mut steps, State::App(app_request)) = self.parts(cx, protocol)
            && !app_request.is_revalidation
        {
            let made = app_request.reply_with(steps.cx, &steps.request, (page, outcome));
            let response = steps.response_from(app_request, made);
            steps.protocol.respond(steps.cx, &steps.request, response);
        }
        Progress::Over
    }

    /// The response is missing or incomplete; stop the application.
    fn give_up_on_app<F: FileHandle, P: Protocol<F>>(
        &mut self,
        cx: &mut Context<'_, F>,
        status: Status,
        why: &'static str,
        protocol: &mut P,
    ) -> Progress {
        let State::App(app_request) = &mut self.state else {
            return Progress::Open;
        };
        let stale = match &app_request.stage {
            Stage::Head(_) => app_request.take_stale(cx, status).map(|page| (page, Outcome::Stale)),
            Stage::Confirmed(page) => Some((Arc::clone(page), Outcome::App)),
            Stage::Body(_) | Stage::Rest(_) => None,
        };
        app_request.give_up(cx, status, why);
        if let Some((page, outcome)) = stale {
            return self.respond_with(cx, (&page, outcome), protocol);
        }
        protocol.skip_body();
        match app_request.stage {
            // The body is complete; only the end of the application is missing.
            Stage::Body(ScriptFraming::None | ScriptFraming::Length(0)) => protocol.finish(cx),
            Stage::Body(_) => protocol.abort(),
            Stage::Head(_) | Stage::Rest(_) | Stage::Confirmed(_) => {
                return self.step(cx, protocol, |steps| steps.take(Step::Fail(status, why)));
            }
        }
        Progress::Over
    }
}

/// A request during its next step. Each step returns the state in which the request waits; `None` if it is complete.
struct Steps<'e, 'c, 'r, F, P> {
    cx: &'e mut Context<'c, F>,
    protocol: &'e mut P,
    request: Request<'e>,
    head: &'e [u8],
    began: Time,
    resolved: &'e mut Resolved<'r>,
    detour: &'e mut Detour,
}

impl<F: FileHandle, P: Protocol<F>> Steps<'_, '_, '_, F, P> {
    /// Whether the request is within the limits of its client, from which it is taken. A limit by user is left to
    /// [`admit_user`](Steps::admit_user), unless nothing will verify a user.
    fn admission(&mut self) -> Admission {
        let shared = &*self.cx.shared;
        if !shared.sites.have_limits() {
            return Admission::Now;
        }
        let site = shared.sites.of(self.resolved.site);
        let is_by_user = shared.sites.need_subjects()
            && site.limit(&self.resolved.requested, &self.request).is_some_and(RequestLimit::is_by_user);
        let (user, is_checked) = if is_by_user { self.user() } else { (None, true) };
        self.resolved.awaits_user = !is_checked;
        if is_checked { self.count(user.as_deref()) } else { Admission::Now }
    }

    /// Counts a request for the limit by user that it awaits: its user, or if checks have refused it, its address. `Err`:
    /// it has to wait, or is refused.
    fn admit_user(&mut self) -> Result<(), Option<State>> {
        if !mem::take(&mut self.resolved.awaits_user) {
            return Ok(());
        }
        let (user, _) = self.user();
        match self.count(user.as_deref()) {
            Admission::Now => Ok(()),
            Admission::After(delay) => Err(Some(State::Delayed(self.cx.now + delay))),
            Admission::Refused(wait) if user.is_some() => Err(self.refuse_over_limit(wait, FROM_USER)),
            Admission::Refused(wait) => Err(self.refuse_over_limit(wait, FROM_ADDRESS)),
        }
    }

    /// The user that passwords, an application or a client certificate have verified, and whether all passwords and
    /// applications that the path requires have admitted the request; before that there is none.
    fn user(&self) -> (Option<Box<[u8]>>, bool) {
        let Steps { cx, request, resolved, .. } = self;
        let site = cx.shared.sites.of(resolved.site);
        let is_pending = resolved.next_guard(site, request).is_some()
            || resolved.pending_authorizations(site, request).next().is_some();
        if is_pending {
            return (None, false);
        }
        let by_password = decide::claimed_name(request, resolved, &cx.shared.sites);
        // The certificate of a proxy is that of no user.
        let is_named = request.client.is_some_and(|client| client.named.is_some());
        let subject = || cx.shared.subject.as_ref().filter(|_| !is_named).map(|subject| subject.as_bytes().into());
        let user = by_password.map(|credentials| credentials.name().into());
        (user.or_else(|| resolved.user.clone()).or_else(subject), true)
    }

    /// Takes the request from its limit: from what its user has left, or if it has none, its address.
    fn count(&mut self, user: Option<&[u8]>) -> Admission {
        let shared = &mut *self.cx.shared;
        let limit = shared.sites.of(self.resolved.site).limit(&self.resolved.requested, &self.request);
        let (Some(limit), Some(limiter)) = (limit, &shared.limiter) else { return Admission::Now };
        let address = self.request.client.map(|client| client.address);
        let client = user.map_or(Requester::Address(address), Requester::User);
        self.detour.bandwidth = limit.bandwidth();
        if let Some(max) = limit.concurrent {
            self.detour.permit = limiter.begin(limit, max, client);
        }
        let admission = match (limit.concurrent, &self.detour.permit) {
            // When another one ends is unknown.
            (Some(_), None) => Admission::Refused(Duration::from_secs(1)),
            _ => limiter.take(limit, client),
        };
        shared.counts.delayed += u64::from(matches!(admission, Admission::After(_)));
        shared.counts.limited += u64::from(matches!(admission, Admission::Refused(_)));
        admission
    }

    /// Refuses a request whose client would be within its limit after this time.
    fn refuse_over_limit(&mut self, wait: Duration, why: &'static str) -> Option<State> {
        self.detour.permit = None;
        self.detour.retry_after_s = Some(wait.as_secs() + u64::from(wait.subsec_nanos() > 0));
        self.take(Step::Fail(Status::TOO_MANY_REQUESTS, why))
    }

    /// The head is complete. `has_more`: bytes after it have arrived.
    fn begin(&mut self, has_more: bool) -> Option<State> {
        // Leave the body unread until the application is certain: a password may have to be verified first, and only
        // a disk lookup shows whether a directory's index is a script.
        let origin = self.origin();
        let is_for_files = self.protocol.awaits_body()
            && (self.detour.denial.is_some()
                || !decide::may_be_for_app(&self.request, origin, self.resolved, &self.cx.shared.sites));
        if is_for_files { self.discard_body(has_more) } else { self.answer() }
    }

    /// Responds to the request, or starts a lookup.
    fn answer(&mut self) -> Option<State> {
        if self.detour.denial.is_some()
            && let Err(state) = self.admit_user()
        {
            return state;
        }
        if let Some(denial) = self.detour.denial.take() {
            let made = denial.reply(self.cx, &self.request, self.resolved);
            return self.respond(made);
        }
        let step = decide::first_step(self.cx.now, &self.request, self.origin(), self.resolved, self.cx.shared);
        self.take(step)
    }

    fn take(&mut self, step: Step<F>) -> Option<State> {
        if !matches!(step, Step::Verify(_) | Step::Authorize)
            && let Err(state) = self.admit_user()
            // An error is not delayed: a wrong password would be verified again, and count twice.
            && !matches!((&step, &state), (Step::Fail(..), Some(State::Delayed(_))))
        {
            return state;
        }
        // A response that only some clients may have must not be cached, even if this one has needed no password.
        self.detour.is_restricted |= self.resolved.is_exempt;
        match step {
            // Not for an application after all: discard the body, then respond.
            Step::Reply(_) if self.protocol.awaits_body() => self.discard_body(false),
            Step::Reply(made) => self.respond(made),
            Step::Ask(question) => self.ask(question, Purpose::Target),
            Step::Verify(work) => {
                self.detour.is_restricted = true;
                let (ticket, state) = self.wait(None, Purpose::Target);
                self.cx.actions.push(Action::Verify(ticket, work));
                state
            }
            Step::Authorize => {
                self.detour.is_restricted = true;
                self.authorize()
            }
            Step::AskForFallback(question) => self.ask(question, Purpose::Fallback),
            Step::Run(handler) => self.run(handler),
            Step::Fail(status, why) if self.protocol.awaits_body() => self.fail_before_body(status, why),
            Step::Fail(status, why) => self.fail(status, why),
        }
    }

    /// Whether the path comes from the client or from an application.
    fn origin(&self) -> Origin {
        if self.detour.beside_file.is_some() { Origin::Site } else { Origin::Client }
    }

    /// A request whose body is discarded, because files accept none. `has_more`: part of it has arrived.
    fn discard_body(&mut self, has_more: bool) -> Option<State> {
        if self.has_long_body() {
            return self.refuse_body(Status::CONTENT_TOO_LARGE, app_request::BODY_TOO_LONG);
        }
        if self.request.expectation == Expectation::Continue && !has_more {
            // RFC 9110, 10.1.1: a client that gets an error at once need not send its body. Whether one follows is
            // unknown, so the connection closes after the error.
            if !matches!(self.request.method, Some(Method::Get | Method::Head | Method::Options)) {
                self.protocol.skip_body();
                return self.answer();
            }
            self.protocol.interim(self.cx, &Interim::proceed());
        }
        self.unread(None)
    }

    fn has_long_body(&self) -> bool {
        matches!(self.request.framing, Framing::Length(length) if length > self.cx.shared.limits.max_body_bytes.0)
    }

    /// Discards the body, up to a limit.
    fn unread(&self, refusal: Option<(Status, &'static str)>) -> Option<State> {
        let limits = &self.cx.shared.limits;
        Some(State::Body(Unread { left: limits.max_body_bytes.0, pace: Pace::start(self.cx.now, limits), refusal }))
    }

    /// Responds without reading the rest of the body.
    fn refuse_body(&mut self, status: Status, why: &'static str) -> Option<State> {
        self.cx.shared.counts.bad_requests += 1;
        self.protocol.skip_body();
        self.fail_plainly(status, why)
    }

    /// Responds with an error instead of passing the body to the application. A client may not read before it
    /// has sent the whole body, so the body is discarded first; but a client that expects 100 (Continue), or announces
    /// a body over the limit, gets the error at once.
    fn fail_before_body(&mut self, status: Status, why: &'static str) -> Option<State> {
        if self.has_long_body() || self.request.expectation == Expectation::Continue {
            return self.fail(status, why);
        }
        self.unread(Some((status, why)))
    }

    fn fail(&mut self, status: Status, why: &'static str) -> Option<State> {
        let Steps { cx, request, resolved, .. } = self;
        match decide::failure(cx.now, request, (status, why), resolved, cx.shared) {
            Failure::Reply(made) => self.respond(made),
            Failure::AskForPage(question) => self.ask(question, Purpose::ErrorPage(status, why)),
        }
    }

    /// Responds with an error, without the site's error page.
    fn fail_plainly(&mut self, status: Status, why: &'static str) -> Option<State> {
        let made = decide::plain_failure(&self.request, (status, why), self.resolved, self.cx.shared);
        self.respond(made)
    }

    fn ask(&mut self, DiskRequest { work, stale }: DiskRequest, purpose: Purpose) -> Option<State> {
        self.cx.shared.counts.disk_questions += 1;
        let (ticket, mut state) = self.wait(stale, purpose);
        if let Some(State::Disk(waiting)) = &mut state {
            waiting.may_hint = matches!(purpose, Purpose::Target);
        }
        self.cx.actions.push(Action::Disk(ticket, work));
        state
    }

    /// Sends the site's links for a request that waits, once.
    fn hint(&mut self) {
        let Steps { cx, request, resolved, detour, .. } = self;
        if detour.has_hints {
            return;
        }
        let rules = &cx.shared.sites.of(resolved.site).early_hints;
        if let Some(hints) = early_hints::hints(rules, &resolved.requested, request) {
            detour.has_hints = true;
            self.protocol.interim(self.cx, &hints);
        }
    }

    /// The state of waiting for a result, and its ticket.
    fn wait(&mut self, stale: Option<CachedEntry>, purpose: Purpose) -> (Ticket, Option<State>) {
        let (ticket, requested_at) = (self.protocol.next_ticket(), self.cx.now);
        (ticket, Some(State::Disk(Waiting { ticket, requested_at, purpose, stale, late: false, may_hint: false })))
    }

    /// Asks an application whether the client may have what it requests.
    fn authorize(&mut self) -> Option<State> {
        if self.protocol.has_left() {
            return None;
        }
        let Steps { cx, request, head, resolved, detour, protocol, .. } = self;
        let user = decide::claimed_name(request, resolved, &cx.shared.sites);
        let user = user.as_ref().map(Credentials::name);
        let id = detour.request_id.as_ref();
        match Authorization::begin(cx, (request, head, id), resolved, user, *protocol) {
            Some(authorization) => Some(State::Authorization(Box::new(authorization))),
            None => self.take(Step::Fail(Status::INTERNAL_SERVER_ERROR, "no application authorises requests")),
        }
    }

    /// Passes the request to an application.
    fn run(&mut self, handler: HandlerMatch) -> Option<State> {
        if self.protocol.has_left() {
            // The client has closed its side: the application is not started.
            return None;
        }
        // This application makes the whole response, even if another one named it as a file to send.
        self.detour.beside_file = None;
        let ticket = self.protocol.next_ticket();
        let framing = if self.protocol.awaits_body() { self.request.framing } else { Framing::None };
        let head = AppHead {
            request: &self.request,
            bytes: self.head,
            requested: &self.resolved.requested,
            id: self.detour.request_id.as_ref(),
        };
        match AppRequest::begin(self.cx, head, self.resolved, (handler, ticket, framing), self.detour.is_restricted) {
            StartResult::Started(app_request) => {
                if framing != Framing::None && self.request.expectation == Expectation::Continue {
                    self.protocol.interim(self.cx, &Interim::proceed());
                }
                self.hint();
                Some(State::App(app_request))
            }
            StartResult::Cached(made) => self.respond(made),
            StartResult::Rejected(status, why) => {
                // The bytes that follow on the connection are the body, which will not be read.
                self.protocol.skip_body();
                self.fail(status, why)
            }
        }
    }

    /// Sends this response, which completes the request.
    fn respond(&mut self, made: PreparedResponse<F>) -> Option<State> {
        let PreparedResponse { mut head, body, outcome } = made;
        if let Some(fields) = self.detour.beside_file.take()
            && matches!(head.get().status(), Status::OK | Status::PARTIAL_CONTENT | Status::NOT_MODIFIED)
        {
            let site = self.cx.shared.sites.of(self.resolved.site);
            head = reply::beside_file(site, &self.request, &self.resolved.requested, &head, &fields);
        }
        if let Some(seconds) = self.detour.retry_after_s
            && head.get().status() == Status::TOO_MANY_REQUESTS
        {
            head = reply::retry_after(&head, seconds);
        }
        let response = self.response(PreparedResponse { head, body, outcome });
        self.protocol.respond(self.cx, &self.request, response);
        None
    }

    /// The response of an application.
    fn response_from(&mut self, app_request: &AppRequest, made: PreparedResponse<F>) -> Response<F> {
        let mut response = self.response(made);
        response.record.upstream_time = Some(self.cx.now.since(app_request.passed_at));
        if let Some(backend) = &app_request.backend {
            response.record.note_backend(backend);
        }
        response
    }

    /// Adds the record for the access log.
    fn response(&mut self, PreparedResponse { mut head, body, outcome }: PreparedResponse<F>) -> Response<F> {
        let Steps { cx, request, resolved, detour, .. } = self;
        let mut record = cx.shared.records.take();
        record.note(request, self.began);
        if let Some(id) = &detour.request_id {
            record.note_request_id(id.text());
            if cx.shared.sites.of(resolved.site).request_ids == RequestIds::All {
                head = reply::with_field(&head, request_id::FIELD, id.text());
            }
        }
        if detour.is_restricted && head.get().status() != Status::SWITCHING_PROTOCOLS {
            head = reply::restricted(head);
        }
        if !detour.admission_fields.is_empty() && head.get().status() != Status::SWITCHING_PROTOCOLS {
            head = reply::with_admission(&head, &detour.admission_fields);
        }
        if let Some(credentials) = decide::claimed_name(request, resolved, &cx.shared.sites) {
            record.note_user(credentials.name());
        }
        record.set(head.get().status(), outcome);
        record.site = resolved.site;
        record.is_unlogged =
            cx.shared.sites.of(resolved.site).is_unlogged(&resolved.requested, request, head.get().status());
        record.permit = detour.permit.take();
        record.bandwidth = detour.bandwidth;
        body.note_in(&mut record);
        let hsts = self.hsts(&head);
        Response { head, hsts, body, record }
    }

    /// The Strict-Transport-Security field of the site, unless the response comes with one of its own.
    fn hsts(&self, head: &ReplyHead) -> Option<Arc<str>> {
        let Steps { cx, request, resolved, .. } = self;
        // RFC 6797, 7.2: a response without TLS must not have it. After a reload, the number may be another site's.
        if !request.secure || resolved.generation != cx.shared.caches.generation() {
            return None;
        }
        let hsts = cx.shared.sites.of(resolved.site).hsts.as_ref()?;
        // A shared head has only fields of the server and the site, which set this field only by `hsts`.
        let has_own = matches!(head, ReplyHead::Owned(head) if head.field_starts_with(HSTS, b""));
        (!has_own).then(|| Arc::clone(hsts))
    }
}

/// The ID of a request, if its site gives one: that of a trusted proxy, or a new one.
fn request_id_of<F>(
    cx: &mut Context<'_, F>,
    (request, head): (&Request<'_>, &[u8]),
    resolved: &Resolved<'_>,
) -> Option<RequestId> {
    if cx.shared.sites.of(resolved.site).request_ids == RequestIds::Off {
        return None;
    }
    let is_trusted = request.client.is_some_and(|client| client.named.is_some());
    let sent = || request::fields(head).find(|(name, _)| name.eq_ignore_ascii_case(request_id::FIELD.as_bytes()));
    let kept = is_trusted.then(sent).flatten().and_then(|(_, id)| RequestId::parse(id));
    Some(kept.unwrap_or_else(|| cx.shared.ids.next_id()))
}

fn resolve<'a, F>(request: &Request<'a>, cx: &mut Context<'_, F>) -> Resolved<'a> {
    let shared = &mut *cx.shared;
    let generation = shared.caches.generation();
    plan::resolve(request, &shared.sites, generation, &mut shared.caches.uris, &mut shared.scratch)
}

const FROM_ADDRESS: &str = "too many requests from your address; try again later";

const FROM_USER: &str = "too many requests from your account; try again later";

/// An authorization without a complete response.
const FAILED: Option<Ruling> = Some(Ruling::Failed("the authorization failed"));

/// Maximum local redirects of one request.
const DETOURS_MAX: u8 = 10;

const CUT_SHORT: &str = "the application ended before its response was complete";
