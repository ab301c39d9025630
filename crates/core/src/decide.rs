//! What becomes of a request: a reply, a question for the disk, or an error and the page that goes with it.
//!
//! `conn` has a request in hand and asks here, once before the disk has been asked and once after. Stops 5 (`plan`) and 7
//! (`reply`) are called from here, with what the caches know in between. Nothing here knows of connections.

use alloc::borrow::Cow;
use alloc::sync::Arc;
use alloc::vec::Vec;

use amped_http::h1::request::Request;
use amped_http::negotiate;
use amped_http::status::Status;
use amped_units::Time;

use crate::app::{self, Claim};
use crate::cache::path::{Known, Meaning, Resource};
use crate::desk::Desk;
use crate::event::{Answer, ListWork, Trouble, Work};
use crate::file::FileHandle;
use crate::listing::{ListForm, ListOrder};
use crate::plan::{self, Look, Plan};
use crate::record::Outcome;
use crate::reply::{self, Body, ReplyHead};
use crate::site::Site;

/// A reply but for what depends on the connection.
pub(crate) struct Made<F> {
    pub(crate) head: ReplyHead,
    pub(crate) body: Body<F>,
    pub(crate) outcome: Outcome,
}

impl<F> Made<F> {
    fn new((head, body): (ReplyHead, Body<F>), outcome: Outcome) -> Made<F> {
        Made { head, body, outcome }
    }
}

/// What to ask the disk, and what is known should its answer take long.
pub(crate) struct Question {
    pub(crate) work: Work,
    pub(crate) stale: Option<Known>,
}

/// What to do next for a request.
pub(crate) enum Step<F> {
    Reply(Made<F>),
    Ask(Question),
    Fail(Status, &'static str),
    /// An application is to answer it.
    Run(Claim),
}

/// How an error is told.
pub(crate) enum Failure<F> {
    Reply(Made<F>),
    AskForPage(Question),
}

/// What a request comes to as far as the caches know.
pub(crate) fn first_step<F: FileHandle>(now: Time, request: &Request<'_>, desk: &mut Desk<F>) -> Step<F> {
    let Desk { sites, limits, caches, wall, counts, scratch, .. } = desk;
    if let Some(claim) = app::claim(request, sites, scratch) {
        return Step::Run(claim);
    }
    let look = match plan::plan(request, sites, &mut caches.uris, scratch) {
        Plan::Options { site, path } => return Step::Reply(Made::new(reply::options(site, path), Outcome::None)),
        Plan::Refuse { status, why } => return Step::Fail(status, why),
        Plan::Look(look) => look,
    };
    let Look { site, path, .. } = look;
    let known = caches.find(now, site.number, path);
    if let Some(Known { meaning, age }) = &known
        && *age < caches.budgets.revalidate
    {
        match meaning {
            Meaning::File(resource) => {
                if let Some(claim) = index_claim(site, path, resource) {
                    return Step::Run(claim);
                }
                let resource = &*ready(resource, site, caches.budgets.ready_headers);
                let representation = reply::choose(request, resource);
                let verdict = reply::judge(request, representation, limits, wall.seconds);
                let content = match reply::needs_content(&verdict, request) {
                    true => caches.content(representation).map(Some),
                    false => Some(None),
                };
                if let Some(content) = content {
                    counts.hits += 1;
                    let reply = reply::file(site, request, resource, representation, verdict, content, caches);
                    return Step::Reply(Made::new(reply, Outcome::Hit));
                }
                let work = Work::Name(caches.content_work(site.number, path.into(), resource, representation));
                return Step::Ask(Question { work, stale: None });
            }
            no_file => {
                counts.hits += 1;
                return step_without_file(request, &look, no_file, Outcome::Hit, caches.generation());
            }
        }
    }
    let work = Work::Name(caches.name_work(site.number, path.into(), known.as_ref()));
    Step::Ask(Question { work, stale: known })
}

/// What a request comes to after the disk's answer.
pub(crate) fn step_after<F: FileHandle>(
    request: &Request<'_>,
    answer: Answer<F>,
    outcome: Outcome,
    desk: &mut Desk<F>,
) -> Step<F> {
    let Desk { sites, limits, caches, wall, counts, scratch, .. } = desk;
    // The same head under the same rules gives the same plan.
    let look = match plan::plan(request, sites, &mut caches.uris, scratch) {
        Plan::Look(look) => look,
        Plan::Refuse { status, why } => return Step::Fail(status, why),
        Plan::Options { .. } => return Step::Fail(Status::INTERNAL_SERVER_ERROR, "the request was lost"),
    };
    let Look { site, path, .. } = look;
    match answer {
        Answer::Name(Meaning::File(resource), brought) => {
            if let Some(claim) = index_claim(site, path, &resource) {
                return Step::Run(claim);
            }
            let resource = ready(&resource, site, caches.budgets.ready_headers);
            let representation = reply::choose(request, &resource);
            let verdict = reply::judge(request, representation, limits, wall.seconds);
            let mut content = None;
            if reply::needs_content(&verdict, request) {
                content = caches.content_among(&brought, representation);
                if content.is_none() {
                    // It was known when the question was asked, and has been evicted since, or nobody brought it: ask again, for
                    // it alone, or for everything if even the name is not known any more.
                    let work = match caches.holds_name(site.number, path) {
                        true => caches.content_work(site.number, path.into(), &resource, representation),
                        false => caches.name_work(site.number, path.into(), None),
                    };
                    let work = Work::Name(work);
                    return Step::Ask(Question { work, stale: None });
                }
            }
            let reply = reply::file(site, request, &resource, representation, verdict, content, caches);
            Step::Reply(Made::new(reply, outcome))
        }
        Answer::Name(no_file, _) => step_without_file(request, &look, &no_file, outcome, caches.generation()),
        Answer::Listing(page) => {
            let reply = reply::listing(site, request, path, list_form(request).media_type(), page);
            Step::Reply(Made::new(reply, outcome))
        }
        Answer::Trouble(Trouble::Busy) => {
            counts.shed += 1;
            Step::Fail(Status::SERVICE_UNAVAILABLE, "too many requests are waiting for the disk; try again in a second")
        }
        Answer::Trouble(Trouble::Exhausted) => {
            Step::Fail(Status::SERVICE_UNAVAILABLE, "the server is out of descriptors; try again in a second")
        }
        Answer::Trouble(Trouble::Failed) | Answer::Outdated => {
            Step::Fail(Status::INTERNAL_SERVER_ERROR, "the file could not be read")
        }
    }
}

/// The application that an index file is: its source is nobody's.
fn index_claim(site: &Site, path: &[u8], resource: &Resource) -> Option<Claim> {
    (!site.apps.is_empty() && *path != *resource.name).then(|| app::claim_of(site, &resource.name))?
}

/// The resource as it was kept, or, with ready headers switched off, with all that heads say of it worked out anew.
fn ready<'a>(resource: &'a Arc<Resource>, site: &Site, ready_headers: bool) -> Cow<'a, Arc<Resource>> {
    if ready_headers { Cow::Borrowed(resource) } else { Cow::Owned(Arc::new(resource.worked_out_anew(site))) }
}

/// What a name that is no file comes to.
fn step_without_file<F: FileHandle>(
    request: &Request<'_>,
    look: &Look<'_>,
    meaning: &Meaning,
    outcome: Outcome,
    generation: u32,
) -> Step<F> {
    let Look { site, path, query } = *look;
    match meaning {
        Meaning::NeedsSlash => Step::Reply(Made::new(reply::add_slash(site, request, path, query), outcome)),
        Meaning::Directory if site.listing => {
            let (order, form) = (ListOrder::of(query), list_form(request));
            let work = Work::List(ListWork { generation, site: site.number, path: path.into(), order, form });
            Step::Ask(Question { work, stale: None })
        }
        Meaning::Directory => Step::Fail(Status::FORBIDDEN, "this directory is not for listing"),
        Meaning::Forbidden => Step::Fail(Status::FORBIDDEN, "this file is not for reading"),
        Meaning::Absent | Meaning::File(_) => Step::Fail(Status::NOT_FOUND, plan::NOT_FOUND),
    }
}

fn list_form(request: &Request<'_>) -> ListForm {
    let accept: Vec<u8> = request.accept.iter().collect::<Vec<_>>().join(&b","[..]);
    let json = negotiate::prefers_json(request.accept.is_present().then_some(&accept));
    if json { ListForm::Json } else { ListForm::Html }
}

/// An error: with the site's own page if it has one for this status, else with ours.
pub(crate) fn failure<F: FileHandle>(
    now: Time,
    request: &Request<'_>,
    status: Status,
    why: &'static str,
    desk: &mut Desk<F>,
) -> Failure<F> {
    let Desk { sites, caches, scratch, .. } = desk;
    let site = sites.for_host(request.host);
    let Some((_, page)) = site.error_pages.iter().find(|(known, _)| *known == status) else {
        return Failure::Reply(plain_failure(request, status, why, desk));
    };
    let known = caches.find(now, site.number, page.as_bytes());
    if let Some(Known { meaning: Meaning::File(resource), age }) = &known
        && *age < caches.budgets.revalidate
        && let Some(content) = caches.content(&resource.representations[0])
    {
        let path = plan::rules_path(request, scratch);
        let reply = reply::error_from_page(site, request, path, status, resource, content);
        return Failure::Reply(Made::new(reply, Outcome::None));
    }
    let is_missing = matches!(&known, Some(Known { meaning, age })
        if *age < caches.budgets.revalidate && !matches!(meaning, Meaning::File(_)));
    if is_missing || status == Status::SERVICE_UNAVAILABLE {
        // For 503 the disk is the trouble; asking it for a page would make it worse.
        return Failure::Reply(plain_failure(request, status, why, desk));
    }
    let work = Work::Name(caches.name_work(site.number, page.as_bytes().into(), known.as_ref()));
    Failure::AskForPage(Question { work, stale: None })
}

/// The error after the disk was asked for its page.
pub(crate) fn error_after<F: FileHandle>(
    request: &Request<'_>,
    answer: Answer<F>,
    status: Status,
    why: &'static str,
    desk: &mut Desk<F>,
) -> Made<F> {
    let Desk { sites, caches, scratch, .. } = desk;
    if let Answer::Name(Meaning::File(resource), brought) = answer
        && let Some(content) = caches.content_among(&brought, &resource.representations[0])
    {
        let site = sites.for_host(request.host);
        let path = plan::rules_path(request, scratch);
        let reply = reply::error_from_page(site, request, path, status, &resource, content);
        return Made::new(reply, Outcome::None);
    }
    plain_failure(request, status, why, desk)
}

/// The error with a page of ours.
pub(crate) fn plain_failure<F>(
    request: &Request<'_>,
    status: Status,
    why: &'static str,
    desk: &mut Desk<F>,
) -> Made<F> {
    let Desk { sites, caches, scratch, errors, .. } = desk;
    let site = sites.for_host(request.host);
    let reply = if site.rules.is_empty() && caches.budgets.ready_headers {
        errors.error(request, status, why)
    } else {
        reply::error(site, request, plan::rules_path(request, scratch), status, why)
    };
    Made::new(reply, Outcome::None)
}
