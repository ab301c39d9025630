//! A request that an application has: the body goes there as it comes, the answer comes back in pieces.
//!
//! Before it, `decide` has found whose the request is. Here is what is known of the application's part in it; what comes of
//! that for the request is the exchange's business, which calls.
//!
//! Nothing is gathered here: a body that is to be whole before the application gets it, and a response that is ahead of its
//! client, are the driver's to keep. Of the body the driver is given so much ahead ([`GIVEN_MAX`]), then the client is not read
//! from; the response is taken only when the client has what came before (`wants_output`). But where others wait for the same
//! page, which is kept as it comes, it is read to its end: they do not wait for this client. What the head of a response comes
//! to is `app`'s and `reply`'s business, its grammar `amped_http::cgi`'s.

use alloc::boxed::Box;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::mem;
use core::time::Duration;

use amped_http::auth::Credentials;
use amped_http::cgi::{self, Answer};
use amped_http::h1::request::{Expectation, Framing, Request};
use amped_http::method::Method;
use amped_http::status::Status;
use amped_units::{Bytes, Time};

use super::context::{Context, Protocol};
use crate::app::{self, AppHead, AppTrouble, HandlerMatch, Input};
use crate::cache::page::{AppPage, Lookup, PageName, UNKEPT_TIME};
use crate::decide::{self, PreparedResponse};
use crate::event::{Action, Ticket};
use crate::file::FileHandle;
use crate::pace::Pace;
use crate::pages::{self, Wanted};
use crate::plan::Resolved;
use crate::record::Outcome;
use crate::reply::{self, Body, ReplyHead, ScriptFraming};
use crate::site::AppRule;

/// A request that an application has.
#[derive(Debug)]
pub(super) struct AppRequest {
    pub(super) ticket: Ticket,
    handler: HandlerMatch,
    /// Whether its body is complete, and how many bytes may still come of it.
    has_body: bool,
    left: u64,
    pub(super) pace: Pace,
    /// Bytes of it that the application has been given, and not taken as far as we know.
    given: usize,
    /// It may do nothing for so long,
    pub(super) time: Duration,
    /// and say no more than so much.
    pub(super) output_left: u64,
    /// It has had its turn: until then there were others before it.
    pub(super) begun: bool,
    pub(super) stage: Stage,
    /// Its answer is to be kept, if it may be.
    fill: Option<Box<Fill>>,
}

/// An answer that may be kept, as far as it has come.
#[derive(Debug)]
struct Fill {
    wanted: Wanted,
    /// The name under which others wait for it, or this one does for another's.
    shared: Option<PageName>,
    /// Somebody else is making it.
    follows: bool,
    began: Time,
    /// For how long it is kept if it does not say.
    time: Duration,
    /// Bytes that it may have: of all, then of its body.
    max: usize,
    /// Its head, and on which fields it depends, once that is known.
    page: Option<(AppPage, Vec<String>)>,
    body: Vec<u8>,
}

/// How far an application's answer has come.
#[derive(Debug)]
pub(super) enum Stage {
    /// This much of its head is there.
    Head(Vec<u8>),
    /// Its body is passed on, which ends like this.
    Body(ScriptFraming),
    /// What it still says is for nobody. Then the request with this head takes the place of the one that it had.
    Rest(Vec<u8>),
}

/// What becomes of a request that an application is to answer.
pub(super) enum Begun<F> {
    /// The application has it.
    Started(Box<AppRequest>),
    /// This page is kept, and the reply.
    Kept(PreparedResponse<F>),
    /// It is refused, for this reason.
    Refused(Status, &'static str),
}

/// What the head of an application's answer comes to.
pub(super) enum HeadVerdict {
    /// A reply of this status.
    Reply(Status),
    /// Another request takes the place of the one that it had; what it still says is for nobody.
    Instead,
    /// Nothing that could be answered, for this reason.
    Bad(&'static str),
}

impl AppRequest {
    /// Gives a request to an application; its body, if it has one of this framing, follows.
    pub(super) fn begin<F: FileHandle>(
        cx: &mut Context<'_, F>,
        head: AppHead<'_>,
        resolved: &Resolved<'_>,
        (handler, ticket, framing): (HandlerMatch, Ticket, Framing),
    ) -> Begun<F> {
        let request = head.request;
        if request.expectation == Expectation::Unknown {
            return Begun::Refused(
                Status::EXPECTATION_FAILED,
                "unsupported expectation; only 100-continue is supported",
            );
        }
        let Some(rule) = handler.rule(&cx.shared.sites) else {
            return Begun::Refused(Status::INTERNAL_SERVER_ERROR, "the request was lost");
        };
        let AppRule { timeout: time, max_body_bytes: body, max_response_bytes: output, cache, .. } = *rule;
        if matches!(framing, Framing::Length(length) if length > body.0) {
            cx.actions.push(Action::Log(too_long(&handler, body)));
            return Begun::Refused(Status::CONTENT_TOO_LARGE, BODY_TOO_LONG);
        }
        let fill = match cache.map(|time| look_for_page(cx, (request, head.bytes), &handler, framing, time)) {
            Some(Ok(made)) => return Begun::Kept(made),
            Some(Err(fill)) => fill,
            None => None,
        };
        let input = match fill.as_ref().and_then(|fill| fill.shared.clone()) {
            Some(name) => Input::Join(name),
            None => {
                let user = decide::claimed_name(request, resolved, &cx.shared.sites);
                let user = user.as_ref().map(Credentials::name);
                let generation = cx.shared.caches.generation();
                Input::Start(Box::new(handler.work(&cx.shared.sites, generation, head, framing, user, false)))
            }
        };
        cx.actions.push(Action::App(ticket, input));
        Begun::Started(Box::new(AppRequest {
            ticket,
            has_body: framing == Framing::None,
            left: body.0,
            pace: Pace::start(cx.now, &cx.shared.limits),
            given: 0,
            time,
            output_left: output.map_or(u64::MAX, |most| most.0),
            begun: false,
            stage: Stage::Head(Vec::new()),
            handler,
            fill,
        }))
    }

    /// Whether it is the client's turn: its body is not complete, and the application has all that has come of it.
    pub(super) fn waits_for_client(&self) -> bool {
        !self.has_body && self.given == 0
    }

    /// Bytes of memory that it is.
    pub(super) fn heap_bytes(&self) -> usize {
        let stage = match &self.stage {
            Stage::Head(bytes) | Stage::Rest(bytes) => bytes.capacity(),
            Stage::Body(_) => 0,
        };
        let fill = self.fill.as_ref().map_or(0, |fill| size_of::<Fill>() + fill.body.capacity());
        size_of::<AppRequest>() + stage + fill
    }

    /// Whether it waits for somebody else's answer.
    pub(super) fn follows(&self) -> bool {
        self.fill.as_ref().is_some_and(|fill| fill.follows)
    }

    /// Whether its answer is heard though the client has not taken what was said before: others wait for it. It is kept in
    /// any case, and not longer than a page may be.
    pub(super) fn reads_ahead(&self) -> bool {
        self.fill.as_ref().is_some_and(|fill| fill.shared.is_some() && fill.page.is_some())
    }

    /// Whether more of the request's body is taken now.
    pub(super) fn wants_body(&self) -> bool {
        !self.has_body && self.given < GIVEN_MAX
    }

    /// Gives the application what has come of the request's body. `is_last`: the end of it.
    ///
    /// # Errors
    /// Status and reason, where no more of it is taken.
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
        self.given += data.len();
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

    /// The application has taken all of the request's body that it was given.
    pub(super) fn note_room(&mut self, now: Time) {
        self.given = 0;
        self.pace.resume(now);
    }

    /// Somebody else is making the page.
    pub(super) fn note_followed<F>(&mut self, cx: &mut Context<'_, F>) {
        cx.shared.counts.page_collapsed += 1;
        self.fill.iter_mut().for_each(|fill| fill.follows = true);
    }

    /// Has the application begin, for a request without a body.
    fn start<F>(&self, cx: &mut Context<'_, F>, head: AppHead<'_>, for_others: bool) {
        let generation = cx.shared.caches.generation();
        let work = self.handler.work(&cx.shared.sites, generation, head, Framing::None, None, for_others);
        cx.actions.push(Action::App(self.ticket, Input::Start(Box::new(work))));
    }

    /// It is this request for which the page is made. Returns the reply if the page is kept by now.
    pub(super) fn begin_page<F: FileHandle>(
        &self,
        cx: &mut Context<'_, F>,
        head: AppHead<'_>,
    ) -> Option<PreparedResponse<F>> {
        let fill = self.fill.as_ref()?;
        // Another thread may have kept it since we looked.
        if let Lookup::Kept(page) = cx.shared.caches.app_page(cx.now, &fill.wanted.name, head.bytes)
            && fill.wanted.may_have(&page)
        {
            let made = kept(cx, head.request, &self.handler, &page);
            self.leave(cx, "");
            return Some(made);
        }
        self.start(cx, head, true);
        None
    }

    /// Has waited for another's answer for as long as for one of its own, and asks for that now.
    pub(super) fn run_alone<F>(&mut self, cx: &mut Context<'_, F>, head: AppHead<'_>, ticket: Ticket) {
        self.leave(cx, "");
        self.ticket = ticket;
        if let Some(fill) = &mut self.fill {
            (fill.shared, fill.follows, fill.began) = (None, false, cx.now);
        }
        self.start(cx, head, false);
    }

    /// What the head of its answer comes to. `may_lead_on`: it may still name another path in place of an answer.
    pub(super) fn judge_head<F>(
        &mut self,
        cx: &mut Context<'_, F>,
        head: &[u8],
        said: &cgi::ScriptHead<'_>,
        may_lead_on: bool,
    ) -> HeadVerdict {
        let (instead, why) = match (said.send, said.answer()) {
            (Some(send), _) => {
                let site = cx.shared.sites.of(self.handler.site);
                let target = app::target_of(send, site);
                let why = "the application names a file to send that is none of the site";
                (target.and_then(|target| app::instead(head, &target)), why)
            }
            (None, Answer::Instead(target)) => (app::instead(head, target), "the application leads nowhere"),
            (None, Answer::Reply(status)) => return HeadVerdict::Reply(status),
        };
        match instead.filter(|_| may_lead_on) {
            Some(instead) => {
                self.stage = Stage::Rest(instead);
                self.give_up_page(cx, UNKEPT_TIME);
                HeadVerdict::Instead
            }
            None => HeadVerdict::Bad(why),
        }
    }

    /// The response that begins with this head, and how its body ends. `length`: that of the body, if all of it is there: then
    /// the client gets head and body in one piece. `open_ended`: how the client is told the end of one whose length is not
    /// known.
    pub(super) fn reply<F: FileHandle>(
        &mut self,
        cx: &mut Context<'_, F>,
        (request, sent_head): (&Request<'_>, &[u8]),
        said: &cgi::ScriptHead<'_>,
        (status, length, open_ended): (Status, Option<usize>, ScriptFraming),
    ) -> (PreparedResponse<F>, ScriptFraming) {
        let framing = match (request.method, status, said.length) {
            // RFC 9112, 6.3: none of these has a body.
            (Some(Method::Head), ..) | (_, Status::NO_CONTENT | Status::NOT_MODIFIED, _) => ScriptFraming::None,
            (_, _, Some(length)) => ScriptFraming::Length(length),
            (_, _, None) => length.map_or(open_ended, |length| ScriptFraming::Length(length as u64)),
        };
        self.stage = Stage::Body(framing);
        self.judge_page(cx, (request, sent_head), said, status);
        if said.unbuffered {
            cx.actions.push(Action::App(self.ticket, Input::Unbuffered));
        }
        let site = cx.shared.sites.of(self.handler.site);
        let head = reply::script(site, request, self.handler.path(), status, said, framing);
        let head = ReplyHead::PreparedResponse(Box::new(head));
        let body = if framing == ScriptFraming::None { Body::Empty } else { Body::Open };
        (PreparedResponse { head, body, outcome: Outcome::App }, framing)
    }

    /// Whether, and how, an answer with this head is kept; and whether it ends what was kept before.
    fn judge_page<F: FileHandle>(
        &mut self,
        cx: &mut Context<'_, F>,
        (request, head): (&Request<'_>, &[u8]),
        said: &cgi::ScriptHead<'_>,
        status: Status,
    ) {
        let caches = &mut cx.shared.caches;
        // RFC 9111, 4.4; RFC 9110, 9.2.1: these are safe.
        let is_safe = matches!(request.method, Some(Method::Get | Method::Head | Method::Options));
        if !is_safe
            && status.0 < 400
            && self.handler.rule(&cx.shared.sites).is_some_and(|rule| rule.cache.is_some())
            && let Some(name) = pages::name_of(caches.generation(), &self.handler, request, head)
        {
            caches.note_unkept(cx.now, &name, Duration::ZERO);
        }
        let Some(fill) = &mut self.fill else {
            return;
        };
        fill.page = pages::page_of(said, status, &fill.wanted, fill.time, (cx.now, &cx.shared.wall));
        // What the head takes of the room is not the body's.
        let head_bytes = said.fields.iter().map(|(name, value)| name.len() + value.len()).sum();
        let room = fill.max.checked_sub(head_bytes);
        fill.max = room.unwrap_or(0);
        if fill.page.is_none() || room.is_none() || said.length.is_some_and(|length| length > fill.max as u64) {
            self.give_up_page(cx, UNKEPT_TIME);
        }
    }

    /// The answer is not kept, nor are others for so long: who waits for it goes on without.
    fn give_up_page<F>(&mut self, cx: &mut Context<'_, F>, time: Duration) {
        if let Some(fill) = self.fill.take()
            && let Some(name) = fill.shared
        {
            cx.shared.caches.note_unkept(cx.now, &name, time);
            cx.actions.push(Action::App(self.ticket, Input::Settled));
        }
    }

    /// The application has come to its end; `is_whole`: so has its answer. Who waits hears of it from the driver.
    fn settle_page<F>(&mut self, cx: &mut Context<'_, F>, head: &[u8], is_whole: bool) {
        let Some(Fill { wanted, shared, began, page, mut body, .. }) = self.fill.take().map(|fill| *fill) else {
            return;
        };
        let caches = &mut cx.shared.caches;
        match page.filter(|_| is_whole) {
            Some((page, vary)) => {
                body.shrink_to_fit();
                let page = AppPage { body: Arc::new(body), ..page };
                caches.keep_app_page((began, cx.now), &wanted.name, (head, vary), page);
            }
            None => shared.iter().for_each(|name| caches.note_unkept(cx.now, name, FAILED_TIME)),
        }
    }

    /// Passes on part of the answer's body, and keeps it where all of it is to be kept.
    pub(super) fn pass_body<F>(&mut self, cx: &mut Context<'_, F>, bytes: &[u8], protocol: &mut impl Protocol<F>) {
        let AppRequest { stage: Stage::Body(framing), fill, .. } = self else {
            return;
        };
        let data = match framing {
            ScriptFraming::None => &[][..],
            ScriptFraming::Length(left) => {
                // What an application says beyond the length that it has named is nothing that a client could read.
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
            self.give_up_page(cx, UNKEPT_TIME);
        }
    }

    /// The application has come to its end, well or not. Returns how far its answer has come.
    pub(super) fn end<F>(&mut self, cx: &mut Context<'_, F>, head: &[u8], trouble: Option<AppTrouble>) -> Stage {
        let stage = mem::replace(&mut self.stage, Stage::Head(Vec::new()));
        let is_whole = match &stage {
            Stage::Body(framing) => trouble.is_none() && !matches!(framing, ScriptFraming::Length(1..)),
            Stage::Head(_) | Stage::Rest(_) => false,
        };
        self.settle_page(cx, head, is_whole);
        stage
    }

    /// The error where the application has come to its end before the head of an answer.
    pub(super) fn failure<F>(&self, cx: &mut Context<'_, F>, trouble: Option<AppTrouble>) -> (Status, &'static str) {
        match trouble {
            None | Some(AppTrouble::Failed) => {
                let why = "the application has ended without an answer";
                self.leave(cx, why);
                (Status::BAD_GATEWAY, why)
            }
            Some(AppTrouble::Unreachable) => (Status::BAD_GATEWAY, "the application cannot be reached"),
            Some(AppTrouble::Busy) => {
                cx.shared.counts.shed += 1;
                (Status::SERVICE_UNAVAILABLE, APPS_BUSY)
            }
            Some(AppTrouble::Restarting) => (Status::SERVICE_UNAVAILABLE, "the application is being restarted"),
            Some(AppTrouble::NoRoom) => {
                cx.shared.counts.shed += 1;
                (Status::SERVICE_UNAVAILABLE, "there is no room for the request's body")
            }
            Some(AppTrouble::Absent) => (Status::NOT_FOUND, crate::plan::NOT_FOUND),
            Some(AppTrouble::Forbidden) => (Status::FORBIDDEN, "this script is not to be run"),
        }
    }

    /// The error where the time for the next step is over.
    pub(super) fn overdue(&self) -> (Status, &'static str) {
        if self.waits_for_client() {
            (Status::REQUEST_TIMEOUT, "the request's body took too long to arrive")
        } else if self.begun {
            (Status::GATEWAY_TIMEOUT, "the application does not answer")
        } else {
            (Status::SERVICE_UNAVAILABLE, APPS_BUSY)
        }
    }

    /// There is no answer, or no end of one, and the application is to go.
    pub(super) fn give_up<F>(&mut self, cx: &mut Context<'_, F>, status: Status, why: &'static str) {
        self.give_up_page(cx, FAILED_TIME);
        let is_its_own = matches!(status, Status::BAD_GATEWAY | Status::GATEWAY_TIMEOUT);
        self.leave(cx, if is_its_own { why } else { "" });
    }

    /// Lets the application know that nobody waits for it, and why.
    pub(super) fn leave<F>(&self, cx: &mut Context<'_, F>, why: &'static str) {
        cx.actions.push(Action::App(self.ticket, Input::Leave(why)));
    }
}

/// The page that is kept for a request; or, if there is none, how the application's answer is to be kept, if it may be.
/// `time`: for how long, if it does not say.
fn look_for_page<F: FileHandle>(
    cx: &mut Context<'_, F>,
    (request, head): (&Request<'_>, &[u8]),
    handler: &HandlerMatch,
    framing: Framing,
    time: Duration,
) -> Result<PreparedResponse<F>, Option<Box<Fill>>> {
    let caches = &mut cx.shared.caches;
    let max = usize::try_from(caches.page_max()).unwrap_or(usize::MAX).min(BODY_MAX);
    if max == 0 {
        return Err(None);
    }
    let wanted = pages::wanted(caches.generation(), handler, request, head, framing).ok_or(None)?;
    let shared = match caches.app_page(cx.now, &wanted.name, head) {
        Lookup::Kept(page) if wanted.may_have(&page) => return Ok(kept(cx, request, handler, &page)),
        Lookup::Missing(name) if wanted.is_anybodys() => Some(name),
        Lookup::Kept(_) | Lookup::Missing(_) | Lookup::Unkept => None,
    };
    cx.shared.counts.page_misses += 1;
    // The answer to HEAD is no page.
    if request.method != Some(Method::Get) {
        return Err(None);
    }
    let (follows, began, page, body) = (false, cx.now, None, Vec::new());
    Err(Some(Box::new(Fill { wanted, shared, follows, began, time, max, page, body })))
}

/// The reply that was kept.
fn kept<F: FileHandle>(
    cx: &mut Context<'_, F>,
    request: &Request<'_>,
    handler: &HandlerMatch,
    page: &AppPage,
) -> PreparedResponse<F> {
    cx.shared.counts.page_hits += 1;
    cx.shared.counts.hits += 1;
    let site = cx.shared.sites.of(handler.site);
    let times = (cx.now, cx.shared.wall.seconds);
    let (head, body) = reply::kept(site, request, handler.path(), page, times);
    PreparedResponse { head, body, outcome: Outcome::Page }
}

/// Bytes of a body that an application is given ahead; a client that sends faster waits for it.
const GIVEN_MAX: usize = 64 * 1024;

/// Bytes of an application's answer that are kept at most, and so held while they come.
const BODY_MAX: usize = 1 << 20;

/// After an answer that came to nothing nobody waits for another one of that name for so long: if each were to wait for the
/// one before, the last would wait for all.
const FAILED_TIME: Duration = Duration::from_secs(1);

/// RFC 9110, 15.5.14.
fn too_long(handler: &HandlerMatch, limit: Bytes) -> String {
    let path = String::from_utf8_lossy(handler.path());
    alloc::format!(
        "{}: 413, the request's body is longer than {limit} (`max_body_bytes` of its [[site.app]])",
        path.escape_debug()
    )
}

pub(super) const BODY_TOO_LONG: &str = "the body is longer than this server reads";
const APPS_BUSY: &str = "too many requests are waiting for applications; try again in a second";
