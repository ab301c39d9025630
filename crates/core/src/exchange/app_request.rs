//! A request passed to an application: the body goes out as it arrives, the response comes back in pieces.
//!
//! Before it, `decide` has found the application. This module keeps the state of the application's side; the exchange,
//! which calls it, decides what follows for the request.
//!
//! Nothing is buffered here: the driver stores a body that must be complete before the application
//! gets it, and output that is ahead of the client. The driver gets at most [`PENDING_BYTES_MAX`] bytes of
//! the body ahead of the application, then reading from the client stops; output is accepted only
//! once the client has received the earlier output (`wants_output`). But if other requests wait for
//! the same page while it fills the cache, it is read to its end, so that they do not wait for this
//! client. `app` and `reply` interpret the head of a response, `amped_http::cgi` parses it.

use alloc::boxed::Box;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::mem;
use core::time::Duration;

use amped_http::auth::Credentials;
use amped_http::cgi::{self, Answer};
use amped_http::h1::gateway;
use amped_http::h1::request::{self, Expectation, Framing, OwnedRequest, Request};
use amped_http::h1::response::Head;
use amped_http::interim::Interim;
use amped_http::method::Method;
use amped_http::negotiate::Coding;
use amped_http::status::Status;
use amped_units::{Bytes, Time};

use super::context::{Context, Protocol};
use crate::app::{self, AppHead, AppTrouble, Audience, HandlerMatch, Input, RevalidateWork};
use crate::app_coding;
use crate::cache::Caches;
use crate::cache::page::{AppPage, Lookup, PageName, StalePage, UNCACHEABLE_TIME};
use crate::compress::StreamWork;
use crate::decide::{self, PreparedResponse};
use crate::event::{Action, Ticket};
use crate::file::FileHandle;
use crate::headers;
use crate::pace::Pace;
use crate::pages::{self, Wanted};
use crate::plan::{self, Resolved};
use crate::record::Outcome;
use crate::reply::{self, Body, ReplyHead, ScriptFraming};
use crate::routes::{Route, RouteAction};
use crate::site::{AppRule, CacheRule, Site};

/// A request passed to an application.
#[derive(Debug)]
pub(super) struct AppRequest {
    pub(super) ticket: Ticket,
    handler: HandlerMatch,
    /// Whether its body is complete, and how many more bytes of it are allowed.
    has_body: bool,
    left: u64,
    pub(super) pace: Pace,
    /// Bytes of the body given to the application and not yet reported as read.
    pending_bytes: usize,
    /// Timeout without progress of the application.
    pub(super) time: Duration,
    /// Bytes of output still allowed.
    pub(super) output_left: u64,
    /// Whether it has left the queue and started.
    pub(super) has_started: bool,
    pub(super) stage: Stage,
    /// When the request was passed to it.
    pub(super) passed_at: Time,
    /// The backend that responds, if it is one of those that speak HTTP.
    pub(super) backend: Option<Arc<str>>,
    /// The connection carries another protocol: both sides are passed on as they are.
    pub(super) is_tunnel: bool,
    /// The body is compressed by the driver.
    pub(super) is_compressed: bool,
    /// The cache fill, if the response may be cached.
    fill: Option<Box<Fill>>,
    /// There is no client: the response only replaces a stale page.
    pub(super) is_revalidation: bool,
}

/// A response that may be cached, as received so far.
#[derive(Debug)]
struct Fill {
    wanted: Wanted,
    /// The name under which other requests wait for it, or this one waits for another's.
    shared: Option<PageName>,
    /// Another request is generating the page.
    follows: bool,
    began: Time,
    rule: CacheRule,
    /// The page that the response replaces, if one is cached.
    stale: Option<StalePage>,
    /// The application can confirm that page by a 304.
    is_conditional: bool,
    /// Maximum bytes, first of the whole page, then of its body.
    max: usize,
    /// Its head, and the request fields on which it depends, once known.
    page: Option<(AppPage, Vec<String>)>,
    body: Vec<u8>,
}

/// A response that is sent in this coding, and its place among those that may be compressed at a time.
#[derive(Debug)]
pub(super) struct Stream {
    coding: Coding,
    slot: Arc<()>,
}

/// The progress of an application's response.
#[derive(Debug)]
pub(super) enum Stage {
    /// The head, as received so far.
    Head(Vec<u8>),
    /// The body is being passed on, with this framing.
    Body(ScriptFraming),
    /// The rest of the output is discarded. Then the request with this head replaces the current one.
    Rest(Vec<u8>),
    /// The rest of the output is discarded. Then this page, which the application has confirmed, is the response.
    Confirmed(Arc<AppPage>),
}

/// The result of passing a request to an application.
pub(super) enum StartResult<F> {
    /// The application has it.
    Started(Box<AppRequest>),
    /// A cached page, as the response.
    Cached(PreparedResponse<F>),
    /// Rejected, for this reason.
    Rejected(Status, &'static str),
}

/// The meaning of an application's response head.
pub(super) enum HeadVerdict {
    /// A response with this status.
    Reply(Status),
    /// Another request replaces the current one; the rest of the output is discarded.
    Instead,
    /// An invalid head, for this reason.
    Bad(&'static str),
}

impl AppRequest {
    /// Passes a request to an application; its body, if the framing has one, follows. `is_restricted`: only some clients may have
    /// the response.
    pub(super) fn begin<F: FileHandle>(
        cx: &mut Context<'_, F>,
        head: AppHead<'_>,
        resolved: &Resolved<'_>,
        (handler, ticket, framing): (HandlerMatch, Ticket, Framing),
        is_restricted: bool,
    ) -> StartResult<F> {
        let request = head.request;
        if request.expectation == Expectation::Unknown {
            return StartResult::Rejected(
                Status::EXPECTATION_FAILED,
                "unsupported expectation; only 100-continue is supported",
            );
        }
        let Some(rule) = handler.rule(&cx.shared.sites) else {
            return StartResult::Rejected(Status::INTERNAL_SERVER_ERROR, "internal error: request head missing");
        };
        let AppRule { timeout: time, max_body_bytes: body, max_response_bytes: output, .. } = *rule;
        let cache = rule.cache.clone();
        if matches!(framing, Framing::Length(length) if length > body.0) {
            cx.actions.push(Action::Log(too_long(&handler, body)));
            return StartResult::Rejected(Status::CONTENT_TOO_LARGE, BODY_TOO_LONG);
        }
        // A response that switches protocols is for one client.
        let is_upgrade = rule.http.is_some() && gateway::wants_websocket(request, request::fields(head.bytes));
        if request.is_extended_connect() && !is_upgrade {
            return StartResult::Rejected(Status::NOT_IMPLEMENTED, plan::NO_TUNNEL);
        }
        let fill = match cache
            .filter(|_| !is_upgrade)
            .filter(|_| !is_rewritten_on_condition(cx.shared.sites.of(handler.site), head.requested))
            .map(|cache| look_for_page(cx, (request, head.bytes), &handler, (framing, is_restricted), (cache, time)))
        {
            Some(Ok(made)) => return StartResult::Cached(made),
            Some(Err(fill)) => fill,
            None => None,
        };
        let input = match fill.as_ref().and_then(|fill| fill.shared.clone()) {
            Some(name) => Input::Join(name),
            None => {
                let user = decide::claimed_name(request, resolved, &cx.shared.sites);
                let user = user.as_ref().map(Credentials::name);
                let (generation, audience) = (cx.shared.caches.generation(), audience(fill.as_deref()));
                Input::Start(Box::new(handler.work(&cx.shared.sites, generation, head, framing, user, audience)))
            }
        };
        cx.actions.push(Action::App(ticket, input));
        let output_left = output.map_or(u64::MAX, |most| most.0);
        StartResult::Started(Box::new(AppRequest {
            has_body: framing == Framing::None,
            left: body.0,
            output_left,
            ..AppRequest::new(cx, ticket, handler, (time, fill))
        }))
    }

    /// A request without a body, with this timeout.
    fn new<F>(
        cx: &Context<'_, F>,
        ticket: Ticket,
        handler: HandlerMatch,
        (time, fill): (Duration, Option<Box<Fill>>),
    ) -> AppRequest {
        AppRequest {
            ticket,
            has_body: true,
            left: 0,
            pace: Pace::start(cx.now, &cx.shared.limits),
            pending_bytes: 0,
            time,
            output_left: u64::MAX,
            has_started: false,
            stage: Stage::Head(Vec::new()),
            passed_at: cx.now,
            backend: None,
            is_tunnel: false,
            is_compressed: false,
            handler,
            fill,
            is_revalidation: false,
        }
    }

    /// Revalidates a stale page without a client; `None` if the configuration does not cache it any more.
    pub(super) fn revalidate<F>(
        cx: &mut Context<'_, F>,
        work: RevalidateWork,
        ticket: Ticket,
    ) -> Option<(Box<AppRequest>, OwnedRequest)> {
        let RevalidateWork { request: owned, handler, stale, is_restricted, .. } = work;
        let request = owned.request();
        let rule = handler.rule(&cx.shared.sites)?;
        let (cache, time, coding) = (rule.cache.clone()?, rule.timeout, app_coding::coding(rule, &request));
        let is_for_one = is_restricted || rule.makes_credentials();
        let generation = cx.shared.caches.generation();
        let wanted =
            pages::wanted((generation, is_for_one), &handler, coding, (&request, owned.head()), Framing::None)?;
        let name = stale.name.clone();
        let mut fill = Fill::new(cx.now, wanted, (cache, page_bytes_max(&cx.shared.caches)));
        (fill.shared, fill.stale) = (Some(name.clone()), Some(stale));
        cx.shared.counts.page_revalidations += 1;
        cx.actions.push(Action::App(ticket, Input::Join(name)));
        let fill = Some(Box::new(fill));
        let app_request = AppRequest {
            is_revalidation: true,
            output_left: OUTPUT_MAX,
            ..AppRequest::new(cx, ticket, handler, (time, fill))
        };
        Some((Box::new(app_request), owned))
    }

    /// Whether it revalidates a page, and that is decided: the rest of the response is not needed.
    pub(super) fn is_settled_revalidation(&self) -> bool {
        self.is_revalidation && self.fill.is_none() && !matches!(self.stage, Stage::Confirmed(_))
    }

    /// Whether the client must act next: its body is incomplete, and the application has read all that has arrived.
    pub(super) fn waits_for_client(&self) -> bool {
        !self.has_body && self.pending_bytes == 0 && !self.is_tunnel
    }

    /// Heap memory in bytes.
    pub(super) fn heap_bytes(&self) -> usize {
        let stage = match &self.stage {
            Stage::Head(bytes) | Stage::Rest(bytes) => bytes.capacity(),
            Stage::Body(_) | Stage::Confirmed(_) => 0,
        };
        let fill = self.fill.as_ref().map_or(0, |fill| size_of::<Fill>() + fill.body.capacity());
        size_of::<AppRequest>() + stage + fill
    }

    /// Whether it waits for another request's response.
    pub(super) fn follows(&self) -> bool {
        self.fill.as_ref().is_some_and(|fill| fill.follows)
    }

    /// Whether output is read before the client has received the earlier output, because other requests wait for it. It
    /// is stored in any case, up to the maximum size of a page.
    pub(super) fn reads_ahead(&self) -> bool {
        self.fill.as_ref().is_some_and(|fill| fill.shared.is_some() && fill.page.is_some())
    }

    /// Whether it accepts more of the request body now.
    pub(super) fn wants_body(&self) -> bool {
        !self.has_body && self.pending_bytes < PENDING_BYTES_MAX
    }

    /// Passes part of the request body to the application. `is_last`: the end of it.
    ///
    /// # Errors
    /// The status and reason, if no further bytes are accepted.
    pub(super) fn take_body<F>(
        &mut self,
        cx: &mut Context<'_, F>,
        data: &[u8],
        is_last: bool,
    ) -> Result<(), (Status, &'static str)> {
        let Some(left) = self.left.checked_sub(data.len() as u64) else {
            if let Some(rule) = self.handler.rule(&cx.shared.sites) {
                cx.actions.push(Action::Log(too_long(&self.handler, rule.max_body_bytes)));
            }
            return Err((Status::CONTENT_TOO_LARGE, BODY_TOO_LONG));
        };
        self.left = left;
        self.pending_bytes += data.len();
        self.pace.note(cx.now, data.len(), &cx.shared.limits);
        if !data.is_empty() {
            cx.actions.push(Action::App(self.ticket, Input::Body(data.to_vec())));
        }
        if is_last {
            self.has_body = true;
            cx.actions.push(Action::App(self.ticket, Input::End));
        }
        Ok(())
    }

    /// The application has read all of the request body that it was given.
    pub(super) fn note_room(&mut self, now: Time) {
        self.pending_bytes = 0;
        self.pace.resume(now);
    }

    /// Another request is generating the page.
    pub(super) fn note_followed<F>(&mut self, cx: &mut Context<'_, F>) {
        if self.is_revalidation {
            // It is revalidated thereby.
            self.fill = None;
            return self.leave(cx, "");
        }
        cx.shared.counts.page_collapsed += 1;
        self.fill.iter_mut().for_each(|fill| fill.follows = true);
    }

    /// Starts the application for a request without a body. `user`: the authenticated user, if any.
    fn start<F>(&self, cx: &mut Context<'_, F>, head: AppHead<'_>, user: Option<&[u8]>, audience: Audience<'_>) {
        let generation = cx.shared.caches.generation();
        let work = self.handler.work(&cx.shared.sites, generation, head, Framing::None, user, audience);
        cx.actions.push(Action::App(self.ticket, Input::Start(Box::new(work))));
    }

    /// This request generates the page. Returns the response if the page has been cached meanwhile. `user`: the
    /// authenticated user, if any.
    pub(super) fn begin_page<F: FileHandle>(
        &mut self,
        cx: &mut Context<'_, F>,
        head: AppHead<'_>,
        user: Option<&[u8]>,
    ) -> Option<PreparedResponse<F>> {
        let mut fill = self.fill.take()?;
        // Another thread may have cached it since our lookup.
        if let Lookup::Cached(page) = cx.shared.caches.app_page(cx.now, &fill.wanted.name, head.bytes)
            && fill.wanted.may_have(&page)
        {
            self.leave(cx, "");
            return (!self.is_revalidation).then(|| kept(cx, head.request, &self.handler, &page, Outcome::Page));
        }
        let stale = fill.stale.as_ref().map(|stale| Arc::clone(&stale.page));
        let conditions = stale.as_ref().map(|page| page.conditions()).unwrap_or_default();
        fill.is_conditional = !conditions.is_empty();
        self.fill = Some(fill);
        self.start(cx, head, user, Audience::Cache(&conditions));
        None
    }

    /// The wait for another request's response has timed out: start the application for this request.
    pub(super) fn run_alone<F>(&mut self, cx: &mut Context<'_, F>, head: AppHead<'_>, ticket: Ticket) {
        self.leave(cx, "");
        (self.ticket, self.passed_at) = (ticket, cx.now);
        if let Some(fill) = &mut self.fill {
            (fill.shared, fill.follows, fill.began) = (None, false, cx.now);
        }
        self.start(cx, head, None, audience(self.fill.as_deref()));
    }

    /// An interim response as it is passed on: without the fields that rules remove. `None` after the final one.
    pub(super) fn interim<F>(&self, cx: &Context<'_, F>, request: &Request<'_>, interim: &Interim) -> Option<Interim> {
        let rules = &cx.shared.sites.of(self.handler.site).rules;
        let head = Head::new(interim.status());
        let is_removed = |name: &[u8]| {
            let name = core::str::from_utf8(name).unwrap_or_default();
            headers::is_removed(rules, self.handler.path(), request, &head, name)
        };
        let kept = interim.fields().filter(|(name, _)| !is_removed(name));
        matches!(&self.stage, Stage::Head(known) if known.is_empty()).then(|| Interim::new(interim.status(), kept))
    }

    /// Interprets the head of the response to `request`. `may_lead_on`: a local redirect is still allowed.
    pub(super) fn judge_head<F>(
        &mut self,
        cx: &mut Context<'_, F>,
        (request, head): (&Request<'_>, &[u8]),
        script_head: &cgi::ScriptHead<'_>,
        may_lead_on: bool,
    ) -> HeadVerdict {
        if request.is_extended_connect() && !is_failure(script_head) {
            // RFC 9110, 9.3.6: its client would take the response for the start of the tunnel.
            return HeadVerdict::Bad("the application did not switch to the WebSocket protocol");
        }
        let (instead, why) = match (script_head.send, script_head.answer()) {
            (Some(send), _) => {
                let site = cx.shared.sites.of(self.handler.site);
                let target = app::target_of(send, site);
                let why = "the application requested a file outside the site";
                (target.and_then(|target| app::instead(head, &target)), why)
            }
            (None, Answer::Instead(target)) => {
                (app::instead(head, target), "the application returned an invalid redirect")
            }
            (None, Answer::Reply(status)) => return HeadVerdict::Reply(status),
        };
        match instead.filter(|_| may_lead_on) {
            Some(instead) => {
                self.stage = Stage::Rest(instead);
                self.give_up_page(cx, Unkept::Uncacheable);
                HeadVerdict::Instead
            }
            None => HeadVerdict::Bad(why),
        }
    }

    /// Builds the response that begins with this head, the framing of its body, and whether to compress that. `length`: the length of the body if
    /// it is complete: then head and body are sent together. `open_ended`: the framing of a body of unknown length.
    pub(super) fn reply<F: FileHandle>(
        &mut self,
        cx: &mut Context<'_, F>,
        (request, sent_head): (&Request<'_>, &[u8]),
        script_head: &cgi::ScriptHead<'_>,
        (status, length, open_ended): (Status, Option<usize>, ScriptFraming),
    ) -> (PreparedResponse<F>, ScriptFraming, Option<Stream>) {
        // The choice of the script depends on these fields, whatever its own Vary says.
        let chosen_by = self.handler.chosen_by.value();
        let varying = (!chosen_by.is_empty()).then(|| {
            let mut head = script_head.clone();
            head.fields.push(("Vary", chosen_by.as_bytes()));
            head
        });
        let script_head = varying.as_ref().unwrap_or(script_head);
        let coding = self.coding_of(cx, request, (status, script_head));
        let tag = coding.map(|_| app_coding::weak_tag(script_head)).unwrap_or_default();
        let stream = coding
            .filter(|&coding| coding != Coding::Identity && status != Status::NOT_MODIFIED)
            .and_then(|coding| Some(Stream { coding, slot: cx.shared.take_stream()? }));
        let changed = match (&stream, coding) {
            (_, None) => None,
            (Some(stream), _) => Some(app_coding::encoded(script_head, stream.coding, &tag)),
            // The client's copy has the weak tag.
            (None, Some(coding)) if coding != Coding::Identity && status == Status::NOT_MODIFIED => {
                Some(app_coding::varying(script_head, Some(&tag)))
            }
            (None, Some(_)) => Some(app_coding::varying(script_head, None)),
        };
        let sent = changed.as_ref().unwrap_or(script_head);
        let length = length.filter(|_| stream.is_none());
        let framing = match (request.method, status, sent.length) {
            // RFC 9112, 6.3: none of these has a body.
            (Some(Method::Head), ..) | (_, Status::NO_CONTENT | Status::NOT_MODIFIED, _) => ScriptFraming::None,
            (_, _, Some(length)) => ScriptFraming::Length(length),
            (_, _, None) => length.map_or(open_ended, |length| ScriptFraming::Length(length as u64)),
        };
        self.stage = Stage::Body(framing);
        if let Some(http) = self.handler.rule(&cx.shared.sites).and_then(|rule| rule.http.as_ref()) {
            self.time = http.idle_timeout;
        }
        self.judge_page(cx, (request, sent_head), (script_head, sent), status);
        if script_head.unbuffered {
            cx.actions.push(Action::App(self.ticket, Input::Unbuffered));
        }
        let site = cx.shared.sites.of(self.handler.site);
        let head = reply::script(site, request, self.handler.path(), status, sent, framing);
        let head = ReplyHead::Owned(Box::new(head));
        let body = if framing == ScriptFraming::None { Body::Empty } else { Body::Open };
        let stream = stream.filter(|_| framing != ScriptFraming::None);
        (PreparedResponse { head, body, outcome: Outcome::App }, framing, stream)
    }

    /// The coding in which the client gets this response; `None` if no client gets it in any other than the application's.
    fn coding_of<F>(
        &self,
        cx: &Context<'_, F>,
        request: &Request<'_>,
        (status, script_head): (Status, &cgi::ScriptHead<'_>),
    ) -> Option<Coding> {
        let rule = self.handler.rule(&cx.shared.sites).filter(|rule| !rule.compress.is_empty())?;
        // Nothing in a 304 says whether the client's copy was compressed.
        let may_be = status == Status::NOT_MODIFIED || app_coding::is_compressible_response(status, script_head);
        may_be.then(|| app_coding::coding(rule, request))
    }

    /// Has the body compressed, which begins with `rest`. `is_last`: that is all of it. `length`: that of the whole body, if it is
    /// known. The driver enforces both lengths from now on, since only it sees the body.
    pub(super) fn compress<F>(
        &mut self,
        cx: &mut Context<'_, F>,
        Stream { coding, slot }: Stream,
        (rest, is_last): (&[u8], bool),
        length: Option<u64>,
    ) {
        self.is_compressed = true;
        let max_bytes = mem::replace(&mut self.output_left, u64::MAX).saturating_add(rest.len() as u64);
        let work = StreamWork { coding, first: rest.to_vec(), is_last, length, max_bytes, slot };
        cx.actions.push(Action::App(self.ticket, Input::Compress(Box::new(work))));
    }

    /// Builds the response to `request` with this head, after which both sides are passed on as they are.
    pub(super) fn switch<F: FileHandle>(
        &mut self,
        cx: &Context<'_, F>,
        request: &Request<'_>,
        head: &[u8],
    ) -> PreparedResponse<F> {
        if let Some(http) = self.handler.rule(&cx.shared.sites).and_then(|rule| rule.http.as_ref()) {
            self.time = http.tunnel_timeout;
        }
        self.stage = Stage::Body(ScriptFraming::UntilClose);
        (self.is_tunnel, self.has_body, self.left, self.output_left) = (true, false, u64::MAX, u64::MAX);
        let head = ReplyHead::Owned(Box::new(reply::switched(request, head)));
        PreparedResponse { head, body: Body::Open, outcome: Outcome::App }
    }

    /// The client has closed its side of the tunnel, after everything that was passed on.
    pub(super) fn end_tunnel_input<F>(&mut self, cx: &mut Context<'_, F>) {
        if self.is_tunnel && !mem::replace(&mut self.has_body, true) {
            cx.actions.push(Action::App(self.ticket, Input::End));
        }
    }

    /// Decides whether a response with this head is cached, and invalidates older pages if the request requires it.
    fn judge_page<F: FileHandle>(
        &mut self,
        cx: &mut Context<'_, F>,
        (request, head): (&Request<'_>, &[u8]),
        (script_head, sent): (&cgi::ScriptHead<'_>, &cgi::ScriptHead<'_>),
        status: Status,
    ) {
        let caches = &mut cx.shared.caches;
        // RFC 9111, 4.4; RFC 9110, 9.2.1: these methods are safe.
        let is_safe = matches!(request.method, Some(Method::Get | Method::Head | Method::Options));
        if !is_safe
            && status.0 < 400
            && let Some(rule) = self.handler.rule(&cx.shared.sites).filter(|rule| rule.cache.is_some())
        {
            for &coding in [Coding::Identity].iter().chain(&rule.compress) {
                if let Some(name) = pages::name_of(caches.generation(), &self.handler, coding, request, head) {
                    caches.mark_uncacheable(cx.now, &name, Duration::ZERO);
                }
            }
        }
        let Some(fill) = &mut self.fill else {
            return;
        };
        let http = self.handler.rule(&cx.shared.sites).and_then(|rule| rule.http.as_ref());
        // The cache would choose by the client's value.
        let is_set = |name: &String| http.is_some_and(|http| http.varies(name));
        let page = pages::page_of((script_head, sent), status, &fill.wanted, &fill.rule, (cx.now, &cx.shared.wall));
        fill.page = page.filter(|(_, vary)| !vary.iter().any(is_set));
        // The head takes part of the space.
        let head_bytes = script_head.fields.iter().map(|(name, value)| name.len() + value.len()).sum();
        let room = fill.max.checked_sub(head_bytes);
        fill.max = room.unwrap_or(0);
        if fill.page.is_none() || room.is_none() || script_head.length.is_some_and(|length| length > fill.max as u64) {
            self.give_up_page(cx, Unkept::Uncacheable);
        }
    }

    /// Gives up caching this response, and for a while others of its name; requests that wait for it stop waiting.
    fn give_up_page<F>(&mut self, cx: &mut Context<'_, F>, why: Unkept) {
        let Some(Fill { wanted, shared: Some(name), stale, .. }) = self.fill.take().map(|fill| *fill) else {
            return;
        };
        let (time, keeps_stale) = match why {
            Unkept::Failed => (FAILED_TIME, self.is_revalidation),
            // The response may be particular to the client whose request it was.
            Unkept::Uncacheable => (UNCACHEABLE_TIME, self.is_revalidation && !wanted.is_shareable()),
        };
        let is_error = matches!(why, Unkept::Failed);
        let caches = &mut cx.shared.caches;
        match stale {
            Some(stale) if keeps_stale || is_error && stale.page.may_replace_error(cx.now) => {
                caches.hold_after_error(&stale, cx.now + time);
            }
            _ => caches.mark_uncacheable(cx.now, &name, time),
        }
        cx.actions.push(Action::App(self.ticket, Input::Settled));
    }

    /// The application has finished; `is_whole`: its response is complete. The driver notifies the requests that wait.
    fn settle_page<F>(&mut self, cx: &mut Context<'_, F>, head: &[u8], is_whole: bool) {
        if !is_whole || self.fill.as_ref().is_some_and(|fill| fill.page.is_none()) {
            return self.give_up_page(cx, Unkept::Failed);
        }
        if let Some(Fill { wanted, began, page: Some((page, vary)), mut body, .. }) = self.fill.take().map(|fill| *fill)
        {
            body.shrink_to_fit();
            let page = AppPage { body: Arc::new(body), ..page };
            cx.shared.caches.keep_app_page((began, cx.now), &wanted.name, (head, vary), page);
        }
    }

    /// Handles a 304 by which the application confirms the stale page. Returns whether it is one.
    pub(super) fn take_confirmation<F>(
        &mut self,
        cx: &mut Context<'_, F>,
        script_head: &cgi::ScriptHead<'_>,
        status: Status,
    ) -> bool {
        let Some(fill) = self.fill.as_ref().filter(|fill| fill.is_conditional && status == Status::NOT_MODIFIED) else {
            return false;
        };
        let Some(stale) = &fill.stale else { return false };
        let times = (cx.now, &cx.shared.wall);
        let (page, is_kept) = pages::renewed(&stale.page, script_head, &fill.wanted, &fill.rule, times);
        let page = Arc::new(page);
        if is_kept {
            cx.shared.counts.pages_confirmed += 1;
            cx.shared.caches.renew_app_page(fill.began, &fill.wanted.name, stale, Arc::clone(&page));
            self.fill = None;
            cx.actions.push(Action::App(self.ticket, Input::Settled));
        } else {
            self.give_up_page(cx, Unkept::Uncacheable);
        }
        self.stage = Stage::Confirmed(page);
        true
    }

    /// Gives up an application that has failed with this status; the cached page that may replace the error, if there is
    /// one.
    pub(super) fn take_stale<F>(&mut self, cx: &mut Context<'_, F>, status: Status) -> Option<Arc<AppPage>> {
        let fill = self.fill.as_ref()?;
        let stale = fill.stale.as_ref().filter(|stale| {
            self.is_revalidation || STALE_IF.contains(&status) && stale.page.may_replace_error(cx.now)
        })?;
        let page = Arc::clone(&stale.page);
        if fill.shared.is_none() {
            // The error may be particular to this client.
            self.fill = None;
        }
        self.give_up_page(cx, Unkept::Failed);
        if !self.is_revalidation {
            cx.shared.counts.pages_stale_for_error += 1;
        }
        Some(page)
    }

    /// The application has failed before the head of a response, and no stale page replaces that.
    pub(super) fn fail_page<F>(&mut self, cx: &mut Context<'_, F>) {
        self.give_up_page(cx, Unkept::Failed);
    }

    /// The response with a page that is not fresh, or was just confirmed.
    pub(super) fn reply_with<F: FileHandle>(
        &self,
        cx: &Context<'_, F>,
        request: &Request<'_>,
        (page, outcome): (&AppPage, Outcome),
    ) -> PreparedResponse<F> {
        let site = cx.shared.sites.of(self.handler.site);
        let (head, body) = reply::kept(site, request, self.handler.path(), page, (cx.now, cx.shared.wall.seconds));
        PreparedResponse { head, body, outcome }
    }

    /// Forwards part of the response body, and stores it if the response may be cached.
    pub(super) fn pass_body<F>(&mut self, cx: &mut Context<'_, F>, bytes: &[u8], protocol: &mut impl Protocol<F>) {
        let AppRequest { stage: Stage::Body(framing), fill, .. } = self else {
            return;
        };
        let data = match framing {
            ScriptFraming::None => &[][..],
            ScriptFraming::Length(left) => {
                // Output beyond the announced length is dropped: a client could not read it.
                let count = usize::try_from(*left).unwrap_or(usize::MAX).min(bytes.len());
                *left -= count as u64;
                &bytes[..count]
            }
            ScriptFraming::Chunked | ScriptFraming::UntilClose => bytes,
        };
        if data.is_empty() {
            return;
        }
        let fits = fill.as_mut().is_none_or(|fill| {
            let fits = fill.body.len() + data.len() <= fill.max;
            fill.body.extend_from_slice(if fits { data } else { &[] });
            fits
        });
        protocol.piece(cx, data);
        if !fits {
            self.give_up_page(cx, Unkept::Uncacheable);
        }
    }

    /// The application has finished, successfully or not. Returns the progress of its response.
    pub(super) fn end<F>(&mut self, cx: &mut Context<'_, F>, head: &[u8], trouble: Option<AppTrouble>) -> Stage {
        let stage = mem::replace(&mut self.stage, Stage::Head(Vec::new()));
        match &stage {
            Stage::Body(framing) => {
                let is_whole = trouble.is_none() && !matches!(framing, ScriptFraming::Length(1..));
                self.settle_page(cx, head, is_whole);
            }
            Stage::Rest(_) => self.give_up_page(cx, Unkept::Failed),
            // The exchange looks for a stale page first.
            Stage::Head(_) | Stage::Confirmed(_) => {}
        }
        stage
    }

    /// The error for an application that finished before the head of a response.
    pub(super) fn failure<F>(&self, cx: &mut Context<'_, F>, trouble: Option<AppTrouble>) -> (Status, &'static str) {
        match trouble {
            None | Some(AppTrouble::Failed) => {
                let why = "the application ended without a response";
                self.leave(cx, why);
                (Status::BAD_GATEWAY, why)
            }
            Some(AppTrouble::Unreachable) => (Status::BAD_GATEWAY, "the application cannot be reached"),
            Some(AppTrouble::TimedOut) => (Status::GATEWAY_TIMEOUT, "timed out connecting to the application"),
            Some(AppTrouble::Busy) => {
                cx.shared.counts.shed += 1;
                (Status::SERVICE_UNAVAILABLE, APPS_BUSY)
            }
            Some(AppTrouble::Restarting) => (Status::SERVICE_UNAVAILABLE, "the application is restarting"),
            Some(AppTrouble::NoRoom) => {
                cx.shared.counts.shed += 1;
                (Status::SERVICE_UNAVAILABLE, "no space left to store the request body")
            }
            Some(AppTrouble::Absent) => (Status::NOT_FOUND, plan::NOT_FOUND),
            Some(AppTrouble::Forbidden) => (Status::FORBIDDEN, "permission denied to run this script"),
        }
    }

    /// The error for a timeout.
    pub(super) fn overdue(&self) -> (Status, &'static str) {
        if self.waits_for_client() {
            (Status::REQUEST_TIMEOUT, "timed out reading the request body")
        } else if self.has_started {
            (Status::GATEWAY_TIMEOUT, "timed out waiting for the application")
        } else {
            (Status::SERVICE_UNAVAILABLE, APPS_BUSY)
        }
    }

    /// The response is missing or incomplete; stop the application.
    pub(super) fn give_up<F>(&mut self, cx: &mut Context<'_, F>, status: Status, why: &'static str) {
        self.give_up_page(cx, Unkept::Failed);
        let is_its_own = matches!(status, Status::BAD_GATEWAY | Status::GATEWAY_TIMEOUT);
        self.leave(cx, if is_its_own { why } else { "" });
    }

    /// Notifies the driver that the response is no longer needed, with the reason.
    pub(super) fn leave<F>(&self, cx: &mut Context<'_, F>, why: &'static str) {
        cx.actions.push(Action::App(self.ticket, Input::Leave(why)));
    }
}

/// The audience of a response for which no other request waits.
fn audience(fill: Option<&Fill>) -> Audience<'static> {
    if fill.is_some() { Audience::ClientFirst } else { Audience::Client }
}

/// Whether what an application gets for this path depends on more than the target, which is the name of a cached page.
fn is_rewritten_on_condition(site: &Site, path: &[u8]) -> bool {
    let is_one = |route: &Route| {
        route.when.is_some() && matches!(route.action, RouteAction::Rewrite { .. }) && route.pattern.matches(path)
    };
    site.has_conditions && site.routes.iter().any(is_one)
}

/// Whether a response is a redirect of the client, or an error.
fn is_failure(script_head: &cgi::ScriptHead<'_>) -> bool {
    script_head.send.is_none() && matches!(script_head.answer(), Answer::Reply(status) if status.0 >= 300)
}

/// Looks up the cached page for a request; if there is none, prepares to cache the response, if that is allowed.
/// `timeout`: that of the application.
fn look_for_page<F: FileHandle>(
    cx: &mut Context<'_, F>,
    (request, head): (&Request<'_>, &[u8]),
    handler: &HandlerMatch,
    (framing, is_restricted): (Framing, bool),
    (cache, timeout): (CacheRule, Duration),
) -> Result<PreparedResponse<F>, Option<Box<Fill>>> {
    let caches = &mut cx.shared.caches;
    let max = page_bytes_max(caches);
    if max == 0 {
        return Err(None);
    }
    let rule = handler.rule(&cx.shared.sites);
    let coding = rule.map_or(Coding::Identity, |rule| app_coding::coding(rule, request));
    let is_for_one = is_restricted || rule.is_some_and(AppRule::makes_credentials);
    let generation = (caches.generation(), is_for_one);
    let wanted = pages::wanted(generation, handler, coding, (request, head), framing).ok_or(None)?;
    let (shared, stale) = match caches.app_page(cx.now, &wanted.name, head) {
        Lookup::Cached(page) if wanted.may_have(&page) => return Ok(kept(cx, request, handler, &page, Outcome::Page)),
        Lookup::Stale(stale) if wanted.may_have(&stale.page) && stale.may_be_sent(cx.now) => {
            return Ok(kept_stale(cx, (request, head, is_restricted), handler, stale, timeout));
        }
        Lookup::Stale(stale) => {
            let stale = Some(stale).filter(|stale| wanted.may_have(&stale.page));
            (stale.as_ref().map(|stale| stale.name.clone()), stale)
        }
        Lookup::Missing(name) => (Some(name), None),
        Lookup::Cached(_) | Lookup::Uncacheable => (None, None),
    };
    cx.shared.counts.page_misses += 1;
    // The response to HEAD is not a page.
    if request.method != Some(Method::Get) {
        return Err(None);
    }
    let shared = shared.filter(|_| wanted.is_shareable());
    Err(Some(Box::new(Fill { shared, stale, ..Fill::new(cx.now, wanted, (cache, max)) })))
}

impl Fill {
    /// A fill that no other request waits for. `max`: the most bytes of a page.
    fn new(began: Time, wanted: Wanted, (rule, max): (CacheRule, usize)) -> Fill {
        let (shared, stale, page, body) = (None, None, None, Vec::new());
        Fill { wanted, shared, follows: false, began, rule, stale, is_conditional: false, max, page, body }
    }
}

/// Why a response is not cached.
#[derive(Clone, Copy)]
enum Unkept {
    /// It is not complete, or there is none.
    Failed,
    /// It may not be cached, or is too large.
    Uncacheable,
}

/// Maximum bytes of a page; 0: none is cached.
fn page_bytes_max<F>(caches: &Caches<F>) -> usize {
    usize::try_from(caches.page_max()).unwrap_or(usize::MAX).min(BODY_MAX)
}

/// The response from a page that is not fresh. One request has it revalidated.
fn kept_stale<F: FileHandle>(
    cx: &mut Context<'_, F>,
    (request, head, is_restricted): (&Request<'_>, &[u8], bool),
    handler: &HandlerMatch,
    stale: StalePage,
    timeout: Duration,
) -> PreparedResponse<F> {
    let page = Arc::clone(&stale.page);
    if !page.may_be_sent_before_revalidation(cx.now) {
        cx.shared.counts.pages_stale_for_error += 1;
        return kept(cx, request, handler, &page, Outcome::Stale);
    }
    cx.shared.counts.pages_stale_before_revalidation += 1;
    // The response to HEAD is not a page.
    if request.method == Some(Method::Get)
        && cx.now >= stale.hold.until
        && let Some(slot) = cx.shared.take_revalidation()
        && cx.shared.caches.claim_revalidation(cx.now, &stale, cx.now + timeout)
    {
        let (request, handler) = (OwnedRequest::new(request, head), handler.clone());
        cx.actions.push(Action::Revalidate(Box::new(RevalidateWork { request, handler, stale, is_restricted, slot })));
    }
    kept(cx, request, handler, &page, Outcome::Stale)
}

/// The response from a cached page.
fn kept<F: FileHandle>(
    cx: &mut Context<'_, F>,
    request: &Request<'_>,
    handler: &HandlerMatch,
    page: &AppPage,
    outcome: Outcome,
) -> PreparedResponse<F> {
    cx.shared.counts.page_hits += 1;
    cx.shared.counts.hits += 1;
    let site = cx.shared.sites.of(handler.site);
    let times = (cx.now, cx.shared.wall.seconds);
    let (head, body) = reply::kept(site, request, handler.path(), page, times);
    PreparedResponse { head, body, outcome }
}

/// Maximum bytes of a body ahead of the application; a faster client has to wait for it.
const PENDING_BYTES_MAX: usize = 64 * 1024;

/// Maximum bytes of a response that is cached, and so held in memory while it arrives.
const BODY_MAX: usize = 1 << 20;

/// Maximum output of an application in a revalidation: head and body of the largest page.
const OUTPUT_MAX: u64 = 2 * BODY_MAX as u64;

/// Errors in whose place a stale page is sent (RFC 5861, 4).
const STALE_IF: [Status; 4] =
    [Status::INTERNAL_SERVER_ERROR, Status::BAD_GATEWAY, Status::SERVICE_UNAVAILABLE, Status::GATEWAY_TIMEOUT];

/// After a response that was not cached, requests for its name do not wait for each other for this long. Otherwise each
/// would wait for the one before it, and the last for all.
const FAILED_TIME: Duration = Duration::from_secs(1);

/// RFC 9110, 15.5.14.
fn too_long(handler: &HandlerMatch, limit: Bytes) -> String {
    let path = String::from_utf8_lossy(handler.path());
    alloc::format!(
        "{}: 413, the request body exceeds {limit} (`max_body_bytes` of its [[site.app]])",
        path.escape_debug()
    )
}

pub(super) const BODY_TOO_LONG: &str = "request body too large";
const APPS_BUSY: &str = "too many requests are waiting for applications; try again later";
