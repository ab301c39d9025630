//! A connection while an application has its request: the body goes there as it comes, the answer comes back in pieces.
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
use amped_http::cgi::{self, Answer, BadScript};
use amped_http::h1::body::BodyReader;
use amped_http::h1::request::{Expectation, Framing, Version};
use amped_http::method::Method;
use amped_http::status::Status;
use amped_units::{Bytes, Time};

use super::call::{Call, Hand};
use super::{Conn, State};
use crate::app::{self, AppTrouble, Claim, Input, Output};
use crate::cache::page::{AppPage, Lookup, PageName, UNKEPT_TIME};
use crate::decide::{self, Made, Step};
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
    pub(super) claim: Claim,
    /// Its body, and how many bytes of data may still come of it.
    pub(super) reader: BodyReader,
    pub(super) left: u64,
    pub(super) pace: Pace,
    /// Bytes of it that the application has been given, and not taken as far as we know.
    pub(super) given: usize,
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

impl Asked {
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
}

impl Conn {
    /// Has an application answer a request. Its body, unless that has been thrown away, follows.
    pub(super) fn run<F: FileHandle>(&mut self, call: &mut Call<'_, F>, hand: &Hand<'_>, claim: Claim) {
        if self.ended {
            // Nobody waits for what it would say.
            self.state = State::Closing { linger: false };
            if !self.unsent {
                self.close(call);
            }
            return;
        }
        // This application answers for itself, also where another one has named it as a file to send.
        self.beside_file = None;
        let request = &hand.request;
        let framing = if hand.unread { request.framing } else { Framing::None };
        // What comes behind a head that is refused here is its body, which nobody will read.
        let has_body = framing != Framing::None;
        if request.expectation == Expectation::Unknown {
            self.last |= has_body;
            let why = "the only expectation known is 100-continue";
            return self.take_step(call, hand, Step::Fail(Status::EXPECTATION_FAILED, why));
        }
        let Some(rule) = claim.rule(&call.desk.sites) else {
            self.last |= has_body;
            return self.take_step(call, hand, Step::Fail(Status::INTERNAL_SERVER_ERROR, "the request was lost"));
        };
        let AppRule { time, body, output, cache, .. } = *rule;
        if matches!(framing, Framing::Length(length) if length > body.0) {
            self.last = true;
            call.actions.push(Action::Log(too_long(&claim, body)));
            return self.take_step(call, hand, Step::Fail(Status::CONTENT_TOO_LARGE, BODY_TOO_LONG));
        }
        let fill = match cache.map(|time| look_for_page(call, hand, &claim, framing, time)) {
            Some(Ok(made)) => return self.give(call, hand, made),
            Some(Err(fill)) => fill,
            None => None,
        };
        let ticket = self.next_ticket();
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
        self.state = State::App(Box::new(Asked {
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
        }));
        self.since = call.now;
        call.actions.push(Action::App(ticket, input));
        if has_body && request.expectation == Expectation::Continue {
            self.unsent = true;
            call.actions.push(Action::Interim(b"HTTP/1.1 100 Continue\r\n\r\n"));
        }
    }

    fn next_ticket(&mut self) -> Ticket {
        self.last_ticket = self.last_ticket.wrapping_add(1);
        Ticket(self.last_ticket)
    }

    /// It is this request for which the page is made.
    fn begin_page<F: FileHandle>(&mut self, call: &mut Call<'_, F>) {
        let State::App(asked) = &mut self.state else {
            return;
        };
        let (head, began) = (mem::take(&mut asked.head), asked.began);
        self.take_up(call, &head, (began, false), |conn, call, hand| {
            let State::App(asked) = &conn.state else {
                return;
            };
            let Asked { ticket, claim, fill: Some(fill), .. } = &**asked else {
                return;
            };
            // Another thread may have kept it since we looked.
            if let Lookup::Kept(page) = call.desk.caches.app_page(call.now, &fill.wanted.name, hand.head)
                && fill.wanted.may_have(&page)
            {
                let made = kept(call, hand, claim, &page);
                conn.leave_app(call, "");
                return conn.give(call, hand, made);
            }
            let generation = call.desk.caches.generation();
            let work = claim.work(&call.desk.sites, generation, (&hand.request, hand.head), Framing::None, None, true);
            call.actions.push(Action::App(*ticket, Input::Start(Box::new(work))));
        });
        match &mut self.state {
            State::App(asked) => asked.head = head,
            _ => self.resume(call),
        }
    }

    /// Has waited for another's answer for as long as for one of its own, and asks for that now.
    pub(super) fn run_alone<F: FileHandle>(&mut self, call: &mut Call<'_, F>) {
        self.leave_app(call, "");
        let ticket = self.next_ticket();
        let State::App(asked) = &mut self.state else {
            return;
        };
        asked.ticket = ticket;
        if let Some(fill) = &mut asked.fill {
            (fill.shared, fill.follows, fill.began) = (None, false, call.now);
        }
        self.since = call.now;
        let (head, began) = (mem::take(&mut asked.head), asked.began);
        self.take_up(call, &head, (began, false), |conn, call, hand| {
            if let State::App(asked) = &conn.state {
                let generation = call.desk.caches.generation();
                let work = asked.claim.work(
                    &call.desk.sites,
                    generation,
                    (&hand.request, hand.head),
                    Framing::None,
                    None,
                    false,
                );
                call.actions.push(Action::App(ticket, Input::Start(Box::new(work))));
            }
        });
        if let State::App(asked) = &mut self.state {
            asked.head = head;
        }
    }

    /// Who has made the page for which this one waited has done so, or gone.
    fn look_again<F: FileHandle>(&mut self, call: &mut Call<'_, F>) {
        if let State::App(asked) = mem::replace(&mut self.state, State::Reading) {
            self.take_up(call, &asked.head, (asked.began, false), |conn, call, hand| conn.answer(call, hand));
            self.resume(call);
        }
    }

    /// Whether, and how, an answer with this head is kept; and whether it ends what was kept before.
    fn judge_page<F: FileHandle>(
        &mut self,
        call: &mut Call<'_, F>,
        hand: &Hand<'_>,
        said: &cgi::ScriptHead<'_>,
        status: Status,
    ) {
        let State::App(asked) = &mut self.state else {
            return;
        };
        let caches = &mut call.desk.caches;
        // RFC 9111, 4.4; RFC 9110, 9.2.1: these are safe.
        let is_safe = matches!(hand.request.method, Some(Method::Get | Method::Head | Method::Options));
        if !is_safe
            && status.0 < 400
            && asked.claim.rule(&call.desk.sites).is_some_and(|rule| rule.cache.is_some())
            && let Some(name) = pages::name_of(caches.generation(), &asked.claim, &hand.request, hand.head)
        {
            caches.note_unkept(call.now, &name, Duration::ZERO);
        }
        let Some(fill) = &mut asked.fill else {
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
        if let State::App(asked) = &mut self.state
            && let Some(fill) = asked.fill.take()
            && let Some(name) = fill.shared
        {
            call.desk.caches.note_unkept(call.now, &name, time);
            call.actions.push(Action::App(asked.ticket, Input::Settled));
        }
    }

    /// The application has come to its end; `is_whole`: so has its answer. Who waits hears of it from the driver.
    fn settle_page<F>(&mut self, call: &mut Call<'_, F>, is_whole: bool) {
        let State::App(asked) = &mut self.state else {
            return;
        };
        let Some(Fill { wanted, shared, began, page, mut body, .. }) = asked.fill.take().map(|fill| *fill) else {
            return;
        };
        let caches = &mut call.desk.caches;
        match page.filter(|_| is_whole) {
            Some((page, vary)) => {
                body.shrink_to_fit();
                let page = AppPage { body: Arc::new(body), ..page };
                caches.keep_app_page((began, call.now), &wanted.name, (&asked.head, vary), page);
            }
            None => shared.iter().for_each(|name| caches.note_unkept(call.now, name, FAILED_TIME)),
        }
    }

    /// Passes on part of the body, and keeps it where all of it is to be kept.
    fn pass_body<F>(&mut self, call: &mut Call<'_, F>, bytes: &[u8]) {
        let State::App(asked) = &mut self.state else {
            return;
        };
        let Asked { stage: Stage::Body { framing, .. }, fill, .. } = &mut **asked else {
            return;
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
        self.unsent |= pass_on(framing, bytes, call.actions);
        if !fits {
            self.give_up_page(call, UNKEPT_TIME);
        }
    }

    /// The application says something.
    pub(super) fn take_output<F: FileHandle>(&mut self, call: &mut Call<'_, F>, ticket: Ticket, output: Output<'_>) {
        let State::App(asked) = &mut self.state else {
            return;
        };
        if asked.ticket != ticket {
            return;
        }
        if !self.unsent {
            self.since = call.now;
        }
        match output {
            Output::Begun => asked.begun = true,
            Output::First => self.begin_page(call),
            Output::Follows => {
                call.desk.counts.page_collapsed += 1;
                asked.fill.iter_mut().for_each(|fill| fill.follows = true);
            }
            Output::Again => self.look_again(call),
            Output::Room => {
                asked.given = 0;
                asked.pace.resume(call.now);
                self.resume(call);
            }
            Output::Bytes(bytes) => self.take_output_bytes(call, bytes, false),
            Output::Last(bytes) => {
                self.take_output_bytes(call, bytes, true);
                // Unless it was given up on.
                if matches!(&self.state, State::App(asked) if asked.ticket == ticket) {
                    self.end_app(call, None);
                }
            }
            Output::Ended => self.end_app(call, None),
            Output::Failed(trouble) => self.end_app(call, Some(trouble)),
        }
    }

    /// `is_last`: its answer is complete with these.
    fn take_output_bytes<F: FileHandle>(&mut self, call: &mut Call<'_, F>, bytes: &[u8], is_last: bool) {
        let State::App(asked) = &mut self.state else {
            return;
        };
        let Some(left) = asked.output_left.checked_sub(bytes.len() as u64) else {
            return self.give_up_on_app(call, Status::BAD_GATEWAY, "the application says more than it may");
        };
        asked.output_left = left;
        match &mut asked.stage {
            Stage::Rest(_) => {}
            Stage::Body { .. } => self.pass_body(call, bytes),
            Stage::Head(known) => {
                known.extend_from_slice(bytes);
                let said = mem::take(known);
                match cgi::parse(&said) {
                    Ok(None) => *known = said,
                    Ok(Some((head, length))) => self.take_script_head(call, &head, &said[length..], is_last),
                    Err(BadScript(why)) => self.give_up_on_app(call, Status::BAD_GATEWAY, why),
                }
            }
        }
    }

    /// The head of an application's answer is there, and this is what has come behind it. `is_last`: nothing follows, so the
    /// client can be told how long the body is, and gets head and body in one piece.
    fn take_script_head<F: FileHandle>(
        &mut self,
        call: &mut Call<'_, F>,
        said: &cgi::ScriptHead<'_>,
        rest: &[u8],
        is_last: bool,
    ) {
        let State::App(asked) = &mut self.state else {
            return;
        };
        let (head, began) = (mem::take(&mut asked.head), asked.began);
        if let Some(send) = said.send {
            let site = call.desk.sites.get(asked.claim.site).unwrap_or(call.desk.sites.first());
            let target = app::target_of(send, site).filter(|_| self.detours < DETOURS_MAX);
            let instead = target.and_then(|target| app::instead(&head, &target));
            asked.head = head;
            match instead {
                Some(instead) => {
                    asked.stage = Stage::Rest(instead);
                    self.beside_file = Some(Box::new(app::fields_beside_file(said)));
                    self.give_up_page(call, UNKEPT_TIME);
                }
                None => {
                    let why = "the application names a file to send that is none of the site";
                    self.give_up_on_app(call, Status::BAD_GATEWAY, why);
                }
            }
            return;
        }
        let status = match said.answer() {
            Answer::Reply(status) => status,
            Answer::Instead(target) => {
                let instead = app::instead(&head, target).filter(|_| self.detours < DETOURS_MAX);
                asked.head = head;
                match instead {
                    Some(instead) => {
                        asked.stage = Stage::Rest(instead);
                        self.give_up_page(call, UNKEPT_TIME);
                    }
                    None => self.give_up_on_app(call, Status::BAD_GATEWAY, "the application leads nowhere"),
                }
                return;
            }
        };
        self.take_up(call, &head, (began, false), |conn, call, hand| {
            let request = &hand.request;
            let framing = match (request.method, status, said.length) {
                // RFC 9112, 6.3: none of these has a body.
                (Some(Method::Head), ..) | (_, Status::NO_CONTENT | Status::NOT_MODIFIED, _) => ScriptFraming::None,
                (_, _, Some(length)) => ScriptFraming::Length(length),
                (_, _, None) if is_last => ScriptFraming::Length(rest.len() as u64),
                (_, _, None) if request.version == Version::Http11 => ScriptFraming::Chunked,
                (_, _, None) => ScriptFraming::UntilClose,
            };
            conn.judge_page(call, hand, said, status);
            if said.unbuffered
                && let State::App(asked) = &conn.state
            {
                call.actions.push(Action::App(asked.ticket, Input::Unbuffered));
            }
            let State::App(asked) = &conn.state else {
                return;
            };
            let site = call.desk.sites.get(asked.claim.site).unwrap_or(call.desk.sites.first());
            let head = reply::script(site, request, asked.claim.path(), status, said, framing);
            let head = ReplyHead::Made(Box::new(head));
            let body = if framing == ScriptFraming::None { Body::Empty } else { Body::Open };
            conn.last |= framing == ScriptFraming::UntilClose;
            let (persists, connection) = conn.prospect(call, request);
            let linger = request.keep_alive;
            conn.put_reply(call, hand, Made { head, body, outcome: Outcome::App }, connection);
            if let State::App(asked) = &mut conn.state {
                asked.stage = Stage::Body { framing, persists, linger };
            }
        });
        if let State::App(asked) = &mut self.state {
            asked.head = head;
            self.pass_body(call, rest);
        }
    }

    /// The application has come to its end, well or not.
    fn end_app<F: FileHandle>(&mut self, call: &mut Call<'_, F>, trouble: Option<AppTrouble>) {
        let State::App(asked) = &mut self.state else {
            return;
        };
        if !asked.reader.is_done() {
            // It wants no more of the body, which may still be on its way.
            self.last = true;
        }
        let stage = mem::replace(&mut asked.stage, Stage::Head(Vec::new()));
        let is_whole = match &stage {
            Stage::Body { framing, .. } => trouble.is_none() && !matches!(framing, ScriptFraming::Length(1..)),
            Stage::Head(_) | Stage::Rest(_) => false,
        };
        self.settle_page(call, is_whole);
        let State::App(asked) = &mut self.state else {
            return;
        };
        match (stage, trouble) {
            (Stage::Head(_), None | Some(AppTrouble::Failed)) => {
                let why = "the application has ended without an answer";
                self.leave_app(call, why);
                self.fail_app(call, Status::BAD_GATEWAY, why);
            }
            (Stage::Head(_), Some(AppTrouble::Unreachable)) => {
                self.fail_app(call, Status::BAD_GATEWAY, "the application cannot be reached");
            }
            (Stage::Head(_), Some(AppTrouble::Busy)) => {
                call.desk.counts.shed += 1;
                self.fail_app(call, Status::SERVICE_UNAVAILABLE, APPS_BUSY);
            }
            (Stage::Head(_), Some(AppTrouble::Restarting)) => {
                self.fail_app(call, Status::SERVICE_UNAVAILABLE, "the application is being restarted");
            }
            (Stage::Head(_), Some(AppTrouble::NoRoom)) => {
                call.desk.counts.shed += 1;
                self.fail_app(call, Status::SERVICE_UNAVAILABLE, "there is no room for the request's body");
            }
            (Stage::Head(_), Some(AppTrouble::Absent)) => {
                self.fail_app(call, Status::NOT_FOUND, crate::plan::NOT_FOUND)
            }
            (Stage::Head(_), Some(AppTrouble::Forbidden)) => {
                self.fail_app(call, Status::FORBIDDEN, "this script is not to be run");
            }
            (Stage::Rest(instead), _) => {
                let began = asked.began;
                self.detours += 1;
                self.state = State::Reading;
                self.take_up(call, &instead, (began, false), |conn, call, hand| conn.answer(call, hand));
                self.resume(call);
            }
            // It was told without a body.
            (Stage::Body { framing: ScriptFraming::None, persists, linger }, _) => {
                self.end_answer(call, persists, linger);
            }
            (Stage::Body { framing: ScriptFraming::Length(1..), .. }, _) | (Stage::Body { .. }, Some(_)) => {
                // The client must see that what it has is not all.
                self.leave_app(call, "the application has ended before its answer was complete");
                self.close(call);
            }
            (Stage::Body { framing, persists, linger }, None) => {
                if framing == ScriptFraming::Chunked {
                    call.actions.push(Action::Piece(LAST_CHUNK.to_vec(), LAST_CHUNK.len()));
                }
                call.actions.push(Action::PieceEnd);
                self.unsent = true;
                self.end_answer(call, persists, linger);
            }
        }
    }

    /// An application's answer has been passed on as a whole.
    fn end_answer<F: FileHandle>(&mut self, call: &mut Call<'_, F>, persists: bool, linger: bool) {
        let linger = linger || self.last;
        self.state = if persists && !self.last { State::Reading } else { State::Closing { linger } };
        if self.unsent {
            self.resume(call);
        } else {
            // Also where the application was given up on: its time is over, that of the next request begins.
            self.since = call.now;
            self.all_sent(call);
        }
    }

    /// More of the body has come than the rule allows.
    pub(super) fn refuse_long_body<F: FileHandle>(&mut self, call: &mut Call<'_, F>) {
        if let State::App(asked) = &self.state
            && let Some(rule) = asked.claim.rule(&call.desk.sites)
        {
            call.actions.push(Action::Log(too_long(&asked.claim, rule.body)));
        }
        self.give_up_on_app(call, Status::CONTENT_TOO_LARGE, BODY_TOO_LONG);
    }

    /// There is no answer, or no end of one, and the application is to go.
    pub(super) fn give_up_on_app<F: FileHandle>(&mut self, call: &mut Call<'_, F>, status: Status, why: &'static str) {
        self.give_up_page(call, FAILED_TIME);
        let is_its_own = matches!(status, Status::BAD_GATEWAY | Status::GATEWAY_TIMEOUT);
        self.leave_app(call, if is_its_own { why } else { "" });
        let State::App(asked) = &mut self.state else {
            return;
        };
        self.last |= !asked.reader.is_done();
        match asked.stage {
            Stage::Body { framing: ScriptFraming::None, persists, linger } => self.end_answer(call, persists, linger),
            Stage::Body { .. } => self.close(call),
            Stage::Head(_) | Stage::Rest(_) => self.fail_app(call, status, why),
        }
    }

    /// An error in place of an application's answer.
    fn fail_app<F: FileHandle>(&mut self, call: &mut Call<'_, F>, status: Status, why: &'static str) {
        let State::App(asked) = mem::replace(&mut self.state, State::Reading) else {
            return;
        };
        self.take_up(call, &asked.head, (asked.began, false), |conn, call, hand| {
            conn.take_step(call, hand, Step::Fail(status, why));
        });
        self.resume(call);
    }

    /// Lets the application know, if there is one, that nobody waits for it, and why.
    pub(super) fn leave_app<F>(&mut self, call: &mut Call<'_, F>, why: &'static str) {
        if let State::App(asked) = &self.state {
            call.actions.push(Action::App(asked.ticket, Input::Leave(why)));
        }
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

/// RFC 9112, 7.1.
const LAST_CHUNK: &[u8] = b"0\r\n\r\n";

/// Bytes of a body that an application is given ahead; a client that sends faster waits for it.
pub(super) const GIVEN_MAX: usize = 64 * 1024;

/// Bytes of an application's answer that are kept at most, and so held while they come.
const BODY_MAX: usize = 1 << 20;

/// After an answer that came to nothing nobody waits for another one of that name for so long: if each were to wait for the
/// one before, the last would wait for all.
const FAILED_TIME: Duration = Duration::from_secs(1);

/// Applications that may send one request on from one to the next.
const DETOURS_MAX: u8 = 10;

/// RFC 9110, 15.5.14.
fn too_long(claim: &Claim, limit: Bytes) -> String {
    let path = String::from_utf8_lossy(claim.path());
    alloc::format!(
        "{}: 413, the request's body is longer than {limit} (`body` of its [[site.app]])",
        path.escape_debug()
    )
}

pub(super) const BODY_TOO_LONG: &str = "the body is longer than this server reads";
pub(super) const APPS_BUSY: &str = "too many requests are waiting for applications; try again in a second";
