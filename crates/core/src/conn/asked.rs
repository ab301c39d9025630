//! A request that an application has: the body goes there as it comes, the answer comes back in pieces.
//!
//! Before it, `decide` has found whose the request is. What is known of it here is the request's alone; what follows for the
//! connection, such as which reply goes out and what happens after it, is `conn`'s, which calls.
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
use amped_http::h1::body::BodyReader;
use amped_http::h1::request::{Expectation, Framing, Version};
use amped_http::method::Method;
use amped_http::status::Status;
use amped_units::{Bytes, Time};

use super::call::{Call, Hand};
use crate::app::{self, AppTrouble, Claim, Input};
use crate::cache::page::{AppPage, Lookup, PageName, UNKEPT_TIME};
use crate::decide::{self, Made};
use crate::event::{Action, Ticket};
use crate::file::FileHandle;
use crate::pace::Pace;
use crate::pages::{self, Wanted};
use crate::record::Outcome;
use crate::reply::{self, Body, ReplyHead, ScriptFraming};
use crate::site::AppRule;

/// A request that an application has.
#[derive(Debug)]
pub(super) struct Asked {
    pub(super) head: Vec<u8>,
    pub(super) began: Time,
    pub(super) ticket: Ticket,
    claim: Claim,
    /// Its body, and how many bytes of data may still come of it.
    reader: BodyReader,
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
    /// Its body is passed on. `persists`: the connection outlives it; `linger`: the client may go on sending.
    Body { framing: ScriptFraming, persists: bool, linger: bool },
    /// What it still says is for nobody. Then the request with this head takes the place of the one that it had.
    Rest(Vec<u8>),
}

/// What becomes of a request that an application is to answer.
pub(super) enum Begun<F> {
    /// The application has it.
    Asked(Box<Asked>),
    /// This page is kept, and the reply.
    Kept(Made<F>),
    /// It is refused, for this reason.
    Refused(Status, &'static str),
}

/// What the head of an application's answer comes to.
pub(super) enum Weighed {
    /// A reply of this status.
    Reply(Status),
    /// Another request takes the place of the one that it had; what it still says is for nobody.
    Instead,
    /// Nothing that could be answered, for this reason.
    Bad(&'static str),
}

impl Asked {
    /// Gives a request to an application; its body, unless that has been thrown away, follows.
    pub(super) fn begin<F: FileHandle>(
        call: &mut Call<'_, F>,
        hand: &Hand<'_>,
        claim: Claim,
        ticket: Ticket,
    ) -> Begun<F> {
        let request = &hand.request;
        let framing = if hand.unread { request.framing } else { Framing::None };
        if request.expectation == Expectation::Unknown {
            return Begun::Refused(Status::EXPECTATION_FAILED, "the only expectation known is 100-continue");
        }
        let Some(rule) = claim.rule(&call.desk.sites) else {
            return Begun::Refused(Status::INTERNAL_SERVER_ERROR, "the request was lost");
        };
        let AppRule { time, body, output, cache, .. } = *rule;
        if matches!(framing, Framing::Length(length) if length > body.0) {
            call.actions.push(Action::Log(too_long(&claim, body)));
            return Begun::Refused(Status::CONTENT_TOO_LARGE, BODY_TOO_LONG);
        }
        let fill = match cache.map(|time| look_for_page(call, hand, &claim, framing, time)) {
            Some(Ok(made)) => return Begun::Kept(made),
            Some(Err(fill)) => fill,
            None => None,
        };
        let input = match fill.as_ref().and_then(|fill| fill.shared.clone()) {
            Some(name) => Input::Join(name),
            None => {
                let user = decide::claimed_name(request, call.desk);
                let user = user.as_ref().map(Credentials::name);
                let generation = call.desk.caches.generation();
                Input::Start(Box::new(claim.work(
                    &call.desk.sites,
                    generation,
                    (request, hand.head),
                    framing,
                    user,
                    false,
                )))
            }
        };
        call.actions.push(Action::App(ticket, input));
        Begun::Asked(Box::new(Asked {
            head: hand.head.to_vec(),
            began: hand.began,
            ticket,
            reader: BodyReader::new(framing),
            left: body.0,
            pace: Pace::start(call.now, &call.desk.limits),
            given: 0,
            time,
            output_left: output.map_or(u64::MAX, |most| most.0),
            begun: false,
            stage: Stage::Head(Vec::new()),
            claim,
            fill,
        }))
    }

    /// Whether it is the client's turn: its body is not complete, and the application has all that has come of it.
    pub(super) fn waits_for_client(&self) -> bool {
        !self.reader.is_done() && self.given == 0
    }

    /// Bytes of memory that it is.
    pub(super) fn heap_bytes(&self) -> usize {
        let stage = match &self.stage {
            Stage::Head(bytes) | Stage::Rest(bytes) => bytes.capacity(),
            Stage::Body { .. } => 0,
        };
        let fill = self.fill.as_ref().map_or(0, |fill| size_of::<Fill>() + fill.body.capacity());
        size_of::<Asked>() + self.head.capacity() + stage + fill
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

    /// Whether all of the request's body has come.
    pub(super) fn has_body(&self) -> bool {
        self.reader.is_done()
    }

    /// Whether more of the request's body is taken now.
    pub(super) fn wants_body(&self) -> bool {
        !self.reader.is_done() && self.given < GIVEN_MAX
    }

    /// Gives the application what has come of the request's body. Returns how many bytes are done with.
    ///
    /// # Errors
    /// Status and reason, where no more of it is taken.
    pub(super) fn take_body<F>(
        &mut self,
        call: &mut Call<'_, F>,
        bytes: &[u8],
    ) -> Result<usize, (Status, &'static str)> {
        match self.reader.next(bytes) {
            Ok(piece) if piece.data.len() as u64 <= self.left => {
                self.left -= piece.data.len() as u64;
                self.given += piece.data.len();
                self.pace.note(call.now, piece.data.len(), &call.desk.limits);
                if !piece.data.is_empty() {
                    call.actions.push(Action::App(self.ticket, Input::Body(piece.data.to_vec())));
                }
                if self.reader.is_done() {
                    call.actions.push(Action::App(self.ticket, Input::End));
                }
                Ok(piece.used)
            }
            Ok(_) => {
                if let Some(rule) = self.claim.rule(&call.desk.sites) {
                    call.actions.push(Action::Log(too_long(&self.claim, rule.body)));
                }
                Err((Status::CONTENT_TOO_LARGE, BODY_TOO_LONG))
            }
            Err(_) => Err((Status::BAD_REQUEST, "the chunks of the body are malformed")),
        }
    }

    /// The application has taken all of the request's body that it was given.
    pub(super) fn note_room(&mut self, now: Time) {
        self.given = 0;
        self.pace.resume(now);
    }

    /// Somebody else is making the page.
    pub(super) fn note_followed<F>(&mut self, call: &mut Call<'_, F>) {
        call.desk.counts.page_collapsed += 1;
        self.fill.iter_mut().for_each(|fill| fill.follows = true);
    }

    /// Has the application begin, for a request without a body.
    fn start<F>(&self, call: &mut Call<'_, F>, hand: &Hand<'_>, for_others: bool) {
        let generation = call.desk.caches.generation();
        let request = (&hand.request, hand.head);
        let work = self.claim.work(&call.desk.sites, generation, request, Framing::None, None, for_others);
        call.actions.push(Action::App(self.ticket, Input::Start(Box::new(work))));
    }

    /// It is this request for which the page is made. Returns the reply if the page is kept by now.
    pub(super) fn begin_page<F: FileHandle>(&self, call: &mut Call<'_, F>, hand: &Hand<'_>) -> Option<Made<F>> {
        let fill = self.fill.as_ref()?;
        // Another thread may have kept it since we looked.
        if let Lookup::Kept(page) = call.desk.caches.app_page(call.now, &fill.wanted.name, hand.head)
            && fill.wanted.may_have(&page)
        {
            let made = kept(call, hand, &self.claim, &page);
            self.leave(call, "");
            return Some(made);
        }
        self.start(call, hand, true);
        None
    }

    /// Has waited for another's answer for as long as for one of its own, and asks for that now.
    pub(super) fn run_alone<F>(&mut self, call: &mut Call<'_, F>, hand: &Hand<'_>, ticket: Ticket) {
        self.leave(call, "");
        self.ticket = ticket;
        if let Some(fill) = &mut self.fill {
            (fill.shared, fill.follows, fill.began) = (None, false, call.now);
        }
        self.start(call, hand, false);
    }

    /// What the head of its answer comes to. `may_lead_on`: it may still name another path in place of an answer.
    pub(super) fn weigh<F>(
        &mut self,
        call: &mut Call<'_, F>,
        said: &cgi::ScriptHead<'_>,
        may_lead_on: bool,
    ) -> Weighed {
        let (instead, why) = match (said.send, said.answer()) {
            (Some(send), _) => {
                let site = call.desk.sites.get(self.claim.site).unwrap_or(call.desk.sites.first());
                let target = app::target_of(send, site);
                let why = "the application names a file to send that is none of the site";
                (target.and_then(|target| app::instead(&self.head, &target)), why)
            }
            (None, Answer::Instead(target)) => (app::instead(&self.head, target), "the application leads nowhere"),
            (None, Answer::Reply(status)) => return Weighed::Reply(status),
        };
        match instead.filter(|_| may_lead_on) {
            Some(instead) => {
                self.stage = Stage::Rest(instead);
                self.give_up_page(call, UNKEPT_TIME);
                Weighed::Instead
            }
            None => Weighed::Bad(why),
        }
    }

    /// The reply that begins with this head, and how the end of its body is told. `length`: that of the body, if all of it is
    /// there: then the client gets head and body in one piece.
    pub(super) fn reply<F: FileHandle>(
        &mut self,
        call: &mut Call<'_, F>,
        hand: &Hand<'_>,
        said: &cgi::ScriptHead<'_>,
        status: Status,
        length: Option<usize>,
    ) -> (Made<F>, ScriptFraming) {
        let request = &hand.request;
        let framing = match (request.method, status, said.length) {
            // RFC 9112, 6.3: none of these has a body.
            (Some(Method::Head), ..) | (_, Status::NO_CONTENT | Status::NOT_MODIFIED, _) => ScriptFraming::None,
            (_, _, Some(length)) => ScriptFraming::Length(length),
            (_, _, None) if let Some(length) = length => ScriptFraming::Length(length as u64),
            (_, _, None) if request.version == Version::Http11 => ScriptFraming::Chunked,
            (_, _, None) => ScriptFraming::UntilClose,
        };
        self.judge_page(call, hand, said, status);
        if said.unbuffered {
            call.actions.push(Action::App(self.ticket, Input::Unbuffered));
        }
        let site = call.desk.sites.get(self.claim.site).unwrap_or(call.desk.sites.first());
        let head = reply::script(site, request, self.claim.path(), status, said, framing);
        let head = ReplyHead::Made(Box::new(head));
        let body = if framing == ScriptFraming::None { Body::Empty } else { Body::Open };
        (Made { head, body, outcome: Outcome::App }, framing)
    }

    /// Whether, and how, an answer with this head is kept; and whether it ends what was kept before.
    fn judge_page<F: FileHandle>(
        &mut self,
        call: &mut Call<'_, F>,
        hand: &Hand<'_>,
        said: &cgi::ScriptHead<'_>,
        status: Status,
    ) {
        let caches = &mut call.desk.caches;
        // RFC 9111, 4.4; RFC 9110, 9.2.1: these are safe.
        let is_safe = matches!(hand.request.method, Some(Method::Get | Method::Head | Method::Options));
        if !is_safe
            && status.0 < 400
            && self.claim.rule(&call.desk.sites).is_some_and(|rule| rule.cache.is_some())
            && let Some(name) = pages::name_of(caches.generation(), &self.claim, &hand.request, hand.head)
        {
            caches.note_unkept(call.now, &name, Duration::ZERO);
        }
        let Some(fill) = &mut self.fill else {
            return;
        };
        fill.page = pages::page_of(said, status, &fill.wanted, fill.time, (call.now, &call.desk.wall));
        // What the head takes of the room is not the body's.
        let head_bytes = said.fields.iter().map(|(name, value)| name.len() + value.len()).sum();
        let room = fill.max.checked_sub(head_bytes);
        fill.max = room.unwrap_or(0);
        if fill.page.is_none() || room.is_none() || said.length.is_some_and(|length| length > fill.max as u64) {
            self.give_up_page(call, UNKEPT_TIME);
        }
    }

    /// The answer is not kept, nor are others for so long: who waits for it goes on without.
    fn give_up_page<F>(&mut self, call: &mut Call<'_, F>, time: Duration) {
        if let Some(fill) = self.fill.take()
            && let Some(name) = fill.shared
        {
            call.desk.caches.note_unkept(call.now, &name, time);
            call.actions.push(Action::App(self.ticket, Input::Settled));
        }
    }

    /// The application has come to its end; `is_whole`: so has its answer. Who waits hears of it from the driver.
    fn settle_page<F>(&mut self, call: &mut Call<'_, F>, is_whole: bool) {
        let Some(Fill { wanted, shared, began, page, mut body, .. }) = self.fill.take().map(|fill| *fill) else {
            return;
        };
        let caches = &mut call.desk.caches;
        match page.filter(|_| is_whole) {
            Some((page, vary)) => {
                body.shrink_to_fit();
                let page = AppPage { body: Arc::new(body), ..page };
                caches.keep_app_page((began, call.now), &wanted.name, (&self.head, vary), page);
            }
            None => shared.iter().for_each(|name| caches.note_unkept(call.now, name, FAILED_TIME)),
        }
    }

    /// Passes on part of the answer's body, and keeps it where all of it is to be kept. Whether there was anything to pass on.
    pub(super) fn pass_body<F>(&mut self, call: &mut Call<'_, F>, bytes: &[u8]) -> bool {
        let Asked { stage: Stage::Body { framing, .. }, fill, .. } = self else {
            return false;
        };
        let data = match *framing {
            ScriptFraming::None => &[][..],
            ScriptFraming::Length(left) => &bytes[..usize::try_from(left).unwrap_or(usize::MAX).min(bytes.len())],
            ScriptFraming::Chunked | ScriptFraming::UntilClose => bytes,
        };
        let fits = fill.as_mut().is_none_or(|fill| {
            let fits = fill.body.len() + data.len() <= fill.max;
            fill.body.extend_from_slice(if fits { data } else { &[] });
            fits
        });
        let is_any = pass_on(framing, bytes, call.actions);
        if !fits {
            self.give_up_page(call, UNKEPT_TIME);
        }
        is_any
    }

    /// The application has come to its end, well or not. Returns how far its answer has come.
    pub(super) fn end<F>(&mut self, call: &mut Call<'_, F>, trouble: Option<AppTrouble>) -> Stage {
        let stage = mem::replace(&mut self.stage, Stage::Head(Vec::new()));
        let is_whole = match &stage {
            Stage::Body { framing, .. } => trouble.is_none() && !matches!(framing, ScriptFraming::Length(1..)),
            Stage::Head(_) | Stage::Rest(_) => false,
        };
        self.settle_page(call, is_whole);
        stage
    }

    /// The error where the application has come to its end before the head of an answer.
    pub(super) fn failure<F>(&self, call: &mut Call<'_, F>, trouble: Option<AppTrouble>) -> (Status, &'static str) {
        match trouble {
            None | Some(AppTrouble::Failed) => {
                let why = "the application has ended without an answer";
                self.leave(call, why);
                (Status::BAD_GATEWAY, why)
            }
            Some(AppTrouble::Unreachable) => (Status::BAD_GATEWAY, "the application cannot be reached"),
            Some(AppTrouble::Busy) => {
                call.desk.counts.shed += 1;
                (Status::SERVICE_UNAVAILABLE, APPS_BUSY)
            }
            Some(AppTrouble::Restarting) => (Status::SERVICE_UNAVAILABLE, "the application is being restarted"),
            Some(AppTrouble::NoRoom) => {
                call.desk.counts.shed += 1;
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
    pub(super) fn give_up<F>(&mut self, call: &mut Call<'_, F>, status: Status, why: &'static str) {
        self.give_up_page(call, FAILED_TIME);
        let is_its_own = matches!(status, Status::BAD_GATEWAY | Status::GATEWAY_TIMEOUT);
        self.leave(call, if is_its_own { why } else { "" });
    }

    /// Lets the application know that nobody waits for it, and why.
    pub(super) fn leave<F>(&self, call: &mut Call<'_, F>, why: &'static str) {
        call.actions.push(Action::App(self.ticket, Input::Leave(why)));
    }
}

/// The page that is kept for a request; or, if there is none, how the application's answer is to be kept, if it may be.
/// `time`: for how long, if it does not say.
fn look_for_page<F: FileHandle>(
    call: &mut Call<'_, F>,
    hand: &Hand<'_>,
    claim: &Claim,
    framing: Framing,
    time: Duration,
) -> Result<Made<F>, Option<Box<Fill>>> {
    let caches = &mut call.desk.caches;
    let max = usize::try_from(caches.page_max()).unwrap_or(usize::MAX).min(BODY_MAX);
    if max == 0 {
        return Err(None);
    }
    let wanted = pages::wanted(caches.generation(), claim, &hand.request, hand.head, framing).ok_or(None)?;
    let shared = match caches.app_page(call.now, &wanted.name, hand.head) {
        Lookup::Kept(page) if wanted.may_have(&page) => return Ok(kept(call, hand, claim, &page)),
        Lookup::Missing(name) if wanted.is_anybodys() => Some(name),
        Lookup::Kept(_) | Lookup::Missing(_) | Lookup::Unkept => None,
    };
    call.desk.counts.page_misses += 1;
    // The answer to HEAD is no page.
    if hand.request.method != Some(Method::Get) {
        return Err(None);
    }
    let (follows, began, page, body) = (false, call.now, None, Vec::new());
    Err(Some(Box::new(Fill { wanted, shared, follows, began, time, max, page, body })))
}

/// The reply that was kept.
fn kept<F: FileHandle>(call: &mut Call<'_, F>, hand: &Hand<'_>, claim: &Claim, page: &AppPage) -> Made<F> {
    call.desk.counts.page_hits += 1;
    call.desk.counts.hits += 1;
    let site = call.desk.sites.get(claim.site).unwrap_or(call.desk.sites.first());
    let times = (call.now, call.desk.wall.seconds);
    let (head, body) = reply::kept(site, &hand.request, claim.path(), page, times);
    Made { head, body, outcome: Outcome::Page }
}

/// Passes part of a body on, as far as it has room for it. Whether there was anything to pass on.
fn pass_on<F>(framing: &mut ScriptFraming, bytes: &[u8], actions: &mut Vec<Action<F>>) -> bool {
    let (piece, framed) = match framing {
        ScriptFraming::None => return false,
        ScriptFraming::UntilClose => (bytes.to_vec(), 0),
        ScriptFraming::Length(left) => {
            // What an application says beyond the length that it has named is nothing that a client could read.
            let count = usize::try_from(*left).unwrap_or(usize::MAX).min(bytes.len());
            *left -= count as u64;
            (bytes[..count].to_vec(), 0)
        }
        // RFC 9112, 7.1; an empty chunk would be the last one.
        ScriptFraming::Chunked if bytes.is_empty() => return false,
        ScriptFraming::Chunked => {
            let size = alloc::format!("{:x}\r\n", bytes.len());
            ([size.as_bytes(), bytes, b"\r\n"].concat(), size.len() + 2)
        }
    };
    let is_any = !piece.is_empty();
    if is_any {
        actions.push(Action::Piece(piece, framed));
    }
    is_any
}

/// Bytes of a body that an application is given ahead; a client that sends faster waits for it.
const GIVEN_MAX: usize = 64 * 1024;

/// Bytes of an application's answer that are kept at most, and so held while they come.
const BODY_MAX: usize = 1 << 20;

/// After an answer that came to nothing nobody waits for another one of that name for so long: if each were to wait for the
/// one before, the last would wait for all.
const FAILED_TIME: Duration = Duration::from_secs(1);

/// RFC 9110, 15.5.14.
fn too_long(claim: &Claim, limit: Bytes) -> String {
    let path = String::from_utf8_lossy(claim.path());
    alloc::format!(
        "{}: 413, the request's body is longer than {limit} (`body` of its [[site.app]])",
        path.escape_debug()
    )
}

const BODY_TOO_LONG: &str = "the body is longer than this server reads";
const APPS_BUSY: &str = "too many requests are waiting for applications; try again in a second";
