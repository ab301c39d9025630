//! Stop 7 of 10: decides how a request is answered: by a response,
//! by a lookup on the disk, or by an error and its page.
//!
//! The exchange (stop 5) calls it once before the disk lookup and once after. It calls stops 6 (`plan`) and 9
//! (`reply`), with the caches in between. It does not depend on connections.

use alloc::borrow::Cow;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::mem;

use amped_http::auth::Credentials;
use amped_http::cgi;
use amped_http::h1::request::Request;
use amped_http::method::Method;
use amped_http::negotiate;
use amped_http::range;
use amped_http::status::Status;
use amped_http::uri::Target;
use amped_units::Time;

use crate::app::{self, HandlerMatch};
use crate::auth::Verdict;
use crate::cache::Caches;
use crate::cache::content::Encoding;
use crate::cache::path::{CachedEntry, LookupResult};
use crate::event::{Answer, NameWork, Trouble, VerifyWork, Work};
use crate::file::{Content, FileHandle, NotUnpacked};
use crate::limits::Limits;
use crate::listing::{ListForm, ListOrder};
use crate::plan::{self, CleanPath, Origin, Plan, Resolved};
use crate::record::Outcome;
use crate::reply::{self, Body, Chosen, ReplyHead, WallClock};
use crate::resource::{PrecompressedOnly, Representation, Resource};
use crate::routes::{FixedResponse, Routed};
use crate::shared_state::{Counts, SharedState};
use crate::site::{Site, Sites};
use crate::variants::Negotiated;

/// A response except for the parts that depend on the connection.
pub(crate) struct PreparedResponse<F> {
    pub(crate) head: ReplyHead,
    pub(crate) body: Body<F>,
    pub(crate) outcome: Outcome,
}

impl<F> PreparedResponse<F> {
    fn new((head, body): (ReplyHead, Body<F>), outcome: Outcome) -> PreparedResponse<F> {
        PreparedResponse { head, body, outcome }
    }
}

/// A lookup on the disk, and the cached entry to use if its result is delayed.
pub(crate) struct DiskRequest {
    pub(crate) work: Work,
    pub(crate) stale: Option<CachedEntry>,
}

/// The next step for a request.
pub(crate) enum Step<F> {
    Reply(PreparedResponse<F>),
    Ask(DiskRequest),
    /// Have the password verified.
    Verify(VerifyWork),
    /// Ask an application whether the client may have what it requests.
    Authorize,
    /// The name does not exist: look up the fallback file.
    AskForFallback(DiskRequest),
    Fail(Status, &'static str),
    /// Pass it to an application.
    Run(HandlerMatch),
}

/// How to send an error.
pub(crate) enum Failure<F> {
    Reply(PreparedResponse<F>),
    AskForPage(DiskRequest),
}

/// Decides the first step from the caches; authentication comes first.
pub(crate) fn first_step<F: FileHandle>(
    now: Time,
    request: &Request<'_>,
    origin: Origin,
    resolved: &mut Resolved<'_>,
    shared: &mut SharedState<F>,
) -> Step<F> {
    if let Some(response) = challenge_response(request, resolved, shared) {
        return Step::Reply(response);
    }
    let sites = &shared.sites;
    let site = sites.of(resolved.site);
    if sites.have_access_rules() && !is_admitted(request, origin, resolved, site) {
        return Step::Fail(Status::FORBIDDEN, plan::DENIED);
    }
    if let Some(port) = required_https(request, resolved, site) {
        // Before a password is requested, which must not be sent unencrypted.
        let location = https_location(request, site, port);
        return Step::Reply(PreparedResponse::new(reply::to_https(request, location.as_deref()), Outcome::None));
    }
    if !sites.have_guards() {
        return admitted_step(now, request, origin, resolved, shared);
    }
    let path = &*resolved.requested;
    if is_delegated(request, origin, site, path) {
        return open_step(now, request, origin, resolved, shared);
    }
    // Browsers send preflights without credentials (Fetch, 3.2.5); the
    // response comes from the rule and reveals nothing about what exists.
    if site.preflight(path, request).is_some() {
        return admitted_step(now, request, origin, resolved, shared);
    }
    (resolved.verified, resolved.is_exempt) = (0, false);
    verified_step(now, request, origin, resolved, shared)
}

/// Decides the next step for a request that some guards may have admitted: the next one has its password verified.
fn verified_step<F: FileHandle>(
    now: Time,
    request: &Request<'_>,
    origin: Origin,
    resolved: &mut Resolved<'_>,
    shared: &mut SharedState<F>,
) -> Step<F> {
    let SharedState { sites, caches, .. } = shared;
    let guard = loop {
        match resolved.next_guard(sites.of(resolved.site), request) {
            None => return admitted_step(now, request, origin, resolved, shared),
            Some(guard) if guard.exempts(request) => {
                resolved.verified += 1;
                resolved.is_exempt = true;
            }
            Some(guard) => break guard,
        }
    };
    let Some(credentials) = request.authorization.and_then(Credentials::parse) else {
        return Step::Fail(Status::UNAUTHORIZED, "authentication required");
    };
    let (generation, accounts) = (caches.generation(), guard.accounts);
    let client = request.client.map(|client| client.address);
    Step::Verify(VerifyWork { generation, accounts, credentials, client })
}

/// Decides the next step for a request that addresses and passwords admit.
fn admitted_step<F: FileHandle>(
    now: Time,
    request: &Request<'_>,
    origin: Origin,
    resolved: &mut Resolved<'_>,
    shared: &mut SharedState<F>,
) -> Step<F> {
    if shared.sites.have_authorizations() {
        let (site, path) = (shared.sites.of(resolved.site), &*resolved.requested);
        // Preflights as for passwords.
        let is_exempt = || is_delegated(request, origin, site, path) || site.preflight(path, request).is_some();
        if resolved.pending_authorizations(site, request).next().is_some() && !is_exempt() {
            return Step::Authorize;
        }
    }
    open_step(now, request, origin, resolved, shared)
}

/// The answer to a challenge of a CA (RFC 8555, 8.3), for which no rule of the site applies: no redirect, no password.
/// A token that is unknown may be a file of another ACME client; see [`required_https`].
fn challenge_response<F>(
    request: &Request<'_>,
    resolved: &Resolved<'_>,
    shared: &SharedState<F>,
) -> Option<PreparedResponse<F>> {
    let challenges = shared.challenges.as_ref().filter(|_| plan::is_read(request.method))?;
    let token = resolved.requested.strip_prefix(CHALLENGE_PREFIX)?;
    let body = Arc::new(challenges.key_authorization(token)?);
    let fields = [("Content-Type".into(), "application/octet-stream".into())].into();
    let response = FixedResponse { status: Status::OK, body, fields };
    let site = shared.sites.of(resolved.site);
    Some(PreparedResponse::new(reply::fixed(site, request, &resolved.requested, &response), Outcome::None))
}

const CHALLENGE_PREFIX: &[u8] = b"/.well-known/acme-challenge/";

/// Whether an application of the site names the file: it has already authorised the client.
fn is_delegated(request: &Request<'_>, origin: Origin, site: &Site, path: &[u8]) -> bool {
    origin == Origin::Site && matches!(site.routed(path, request), Some(Routed::Internal))
}

/// Whether the client's address may access the requested path.
fn is_admitted(request: &Request<'_>, origin: Origin, resolved: &Resolved<'_>, site: &Site) -> bool {
    let path = &*resolved.requested;
    site.admits(path, request) || is_delegated(request, origin, site, path)
}

/// The port of https to which the site redirects this request; `None` if it is served.
///
/// A challenge of a CA is served, for other ACME clients that write a file or are a backend. A CA would follow the
/// redirect, but it may lead to a certificate's first request. Where a password or an authorization is required, the
/// credentials must not be sent unencrypted.
fn required_https(request: &Request<'_>, resolved: &Resolved<'_>, site: &Site) -> Option<u16> {
    let port = site.https_port.filter(|_| !request.secure)?;
    let path = &*resolved.requested;
    let is_challenge = plan::is_read(request.method)
        && path.strip_prefix(CHALLENGE_PREFIX).is_some_and(|token| !token.is_empty())
        && site.guards_of(path, request).next().is_none()
        && site.authorizations_of(path, request).next().is_none();
    (!is_challenge).then_some(port)
}

/// The https URL of what is requested; `None` if it has none, or the host is unknown.
fn https_location(request: &Request<'_>, site: &Site, port: u16) -> Option<Vec<u8>> {
    let (Target::Origin { path, query } | Target::Absolute { path, query, .. }) = request.target else { return None };
    // HTTP/1.0 need not name the host.
    let first = || site.hosts.iter().find(|host| !host.contains('*'));
    let host = if request.host.is_empty() { first()?.as_bytes() } else { request.host };
    let port = if port == 443 { Vec::new() } else { [b":", &*cgi::decimal(port.into())].concat() };
    let query = query.map_or_else(Vec::new, |query| [b"?", query].concat());
    Some([b"https://", host, &*port, path, &*query].concat())
}

/// The user name in a request for a protected path, for the log; in a 401, the claimed one. A client that needs no password has
/// none: what it claims was not verified.
pub(crate) fn claimed_name(request: &Request<'_>, resolved: &Resolved<'_>, sites: &Sites) -> Option<Credentials> {
    let credentials = request.authorization.and_then(Credentials::parse)?;
    let mut guards = sites.of(resolved.site).guards_of(&resolved.requested, request);
    guards.any(|guard| !guard.exempts(request)).then_some(credentials)
}

/// Whether an application gets the request body, or may get it depending on the disk lookup. Keeps the plan in `resolved`.
pub(crate) fn may_be_for_app(
    request: &Request<'_>,
    origin: Origin,
    resolved: &mut Resolved<'_>,
    sites: &Sites,
) -> bool {
    sites.have_apps()
        && required_https(request, resolved, sites.of(resolved.site)).is_none()
        && match resolved.plan_ahead(request, origin, sites) {
            Plan::Run(_) => true,
            Plan::Look => resolved.may_lead_to_app(sites.of(resolved.site)),
            Plan::Redirect { .. } | Plan::Respond(_) | Plan::Options | Plan::Refuse { .. } => false,
        }
}

/// Decides the next step for a request that needs no further authentication.
fn open_step<F: FileHandle>(
    now: Time,
    request: &Request<'_>,
    origin: Origin,
    resolved: &mut Resolved<'_>,
    shared: &mut SharedState<F>,
) -> Step<F> {
    let SharedState { sites, caches, .. } = shared;
    let plan = resolved.plan(request, origin, sites);
    let (site, requested) = (sites.of(resolved.site), &*resolved.requested);
    match plan {
        Plan::Look => {}
        Plan::Run(handler) => return Step::Run(handler),
        Plan::Options => {
            return Step::Reply(PreparedResponse::new(reply::options(site, request, requested), Outcome::None));
        }
        Plan::Redirect { status, location } => {
            let reply = reply::redirect(site, request, requested, status, "the resource has moved", &location);
            return Step::Reply(PreparedResponse::new(reply, Outcome::None));
        }
        Plan::Respond(response) => {
            return Step::Reply(PreparedResponse::new(
                reply::fixed(site, request, requested, &response),
                Outcome::None,
            ));
        }
        Plan::Refuse { status, why } => return Step::Fail(status, why),
    }
    let path = resolved.path();
    let known = caches.find(now, site.number, path);
    match &known {
        Some(CachedEntry { meaning, age }) if *age < caches.budgets.revalidate => {
            let found = Found { meaning, contents: &[], outcome: Outcome::Hit };
            let step = step_for_name(now, request, origin, found, resolved, shared);
            shared.counts.hits += u64::from(!matches!(step, Step::Ask(_)));
            step
        }
        _ => {
            let work = beginning(site, request, caches.name_work(site, path.share(), known.as_ref()));
            Step::Ask(DiskRequest { work: Work::Name(work), stale: known })
        }
    }
}

/// Decides the next step after the result of the disk lookup.
pub(crate) fn step_after<F: FileHandle>(
    now: Time,
    request: &Request<'_>,
    (origin, answer): (Origin, Answer<F>),
    outcome: Outcome,
    resolved: &mut Resolved<'_>,
    shared: &mut SharedState<F>,
) -> Step<F> {
    match answer {
        Answer::Verified(verdict) => step_after_verdict(now, request, verdict, origin, resolved, shared),
        Answer::Trouble(trouble) => step_after_trouble(trouble, shared),
        Answer::Name(meaning, contents) => {
            let found = Found { meaning: &meaning, contents: &contents, outcome };
            step_for_name(now, request, origin, found, resolved, shared)
        }
        Answer::Listing(listing) => {
            let (site, path) = (shared.sites.of(resolved.site), resolved.path());
            let reply = reply::listing(site, request, path, list_form(request), listing, shared.wall.seconds);
            Step::Reply(PreparedResponse::new(reply, outcome))
        }
        Answer::Outdated => Step::Fail(Status::INTERNAL_SERVER_ERROR, "cannot read the file"),
    }
}

/// The resolution of a name, and its source.
struct Found<'a, F> {
    meaning: &'a LookupResult,
    /// Contents that the disk side has read with it.
    contents: &'a [Arc<Content<F>>],
    outcome: Outcome,
}

/// Decides the next step for a request whose name has this resolution.
fn step_for_name<F: FileHandle>(
    now: Time,
    request: &Request<'_>,
    origin: Origin,
    Found { meaning, contents, outcome }: Found<'_, F>,
    resolved: &Resolved<'_>,
    shared: &mut SharedState<F>,
) -> Step<F> {
    let SharedState { sites, limits, caches, wall, counts, .. } = shared;
    let (site, path) = (sites.of(resolved.site), resolved.path());
    let resource = match meaning {
        LookupResult::File(resource) => resource,
        LookupResult::Variants(variants) => match caches.negotiations.choose(request, variants) {
            Negotiated::Variant(at) => &variants.list[at].resource,
            Negotiated::List | Negotiated::Refused if !plan::is_read(request.method) => {
                return step_without_app(request, site, path);
            }
            negotiated @ (Negotiated::List | Negotiated::Refused) => {
                return Step::Reply(PreparedResponse::new(
                    reply::variants(site, request, path, variants, negotiated),
                    outcome,
                ));
            }
        },
        no_file => {
            return step_without_file(now, request, (site, path), no_file, outcome, (caches, limits, wall, counts));
        }
    };
    if let Some(mut step) = step_before_file(request, origin, site, path, resource) {
        if let (Step::Run(handler), LookupResult::Variants(variants)) = (&mut step, meaning) {
            handler.chosen_by = variants.vary;
        }
        return step;
    }
    let resource = &*ready(resource, site, caches.budgets.ready_headers);
    let representation = match reply::choose(request, resource) {
        Chosen::One(representation) => representation,
        Chosen::Unpacked => return ask_to_unpack(site, path, meaning, caches),
        Chosen::NotUnpacked(why) => return step_not_unpacked(why),
    };
    match file_reply(now, request, (site, resource, representation), contents, (caches, limits, wall)) {
        Some(reply) => Step::Reply(PreparedResponse::new(reply, outcome)),
        None => ask_for_content(site, path, request, resource, representation, caches),
    }
}

/// Builds the response for this representation of a file, or for its compressed form if that is cached; if not, has it made,
/// without waiting for it. `None` if the content is neither cached nor among these.
fn file_reply<F: FileHandle>(
    now: Time,
    request: &Request<'_>,
    (site, resource, representation): (&Site, &Resource, &Representation),
    contents: &[Arc<Content<F>>],
    (caches, limits, wall): (&mut Caches<F>, &Limits, &WallClock),
) -> Option<(ReplyHead, Body<F>)> {
    let coding = reply::compression(request, site, resource, representation);
    let encoding = coding.and_then(|coding| caches.encoding(now, &representation.version, coding));
    let encoded = match &encoding {
        Some(Encoding::Ready(encoded)) => Some(encoded),
        Some(Encoding::Pending(_) | Encoding::NotWorthIt) | None => None,
    };
    let sent = encoded.map_or(representation, |encoded| &encoded.representation);
    let verdict = reply::judge(request, resource, sent, limits, wall.seconds);
    let content = match (reply::needs_content(&verdict, request), encoded) {
        (false, _) => None,
        (true, Some(encoded)) => Some(Arc::clone(&encoded.content)),
        (true, None) => Some(caches.content_among(contents, representation)?),
    };
    if let (Some(coding), None, Some(content)) = (coding, &encoding, &content) {
        caches.want_encoding(now, content, coding);
    }
    Some(reply::file(site, request, resource, sent, verdict, content, &mut caches.heads))
}

/// Requests the content of a representation from the disk side, or
/// everything if even the resolution has been evicted meanwhile.
fn ask_for_content<F: FileHandle>(
    site: &Site,
    path: &CleanPath<'_>,
    request: &Request<'_>,
    resource: &Resource,
    representation: &Representation,
    caches: &mut Caches<F>,
) -> Step<F> {
    let work = match caches.holds_name(site.number, path) {
        true => caches.content_work(site, path.share(), resource, representation),
        false => caches.name_work(site, path.share(), None),
    };
    Step::Ask(DiskRequest { work: Work::Name(beginning(site, request, work)), stale: None })
}

/// Adds which byte of the file is needed first, if it may come from an object store: a large object is fetched in parts. For others all
/// requests of a name share one lookup.
fn beginning(site: &Site, request: &Request<'_>, work: NameWork) -> NameWork {
    let range = request.range.filter(|_| site.is_remote && request.method == Some(Method::Get));
    NameWork { from: range.and_then(range::first_byte).unwrap_or(0), ..work }
}

/// Decides the next step after password verification.
fn step_after_verdict<F: FileHandle>(
    now: Time,
    request: &Request<'_>,
    verdict: Verdict,
    origin: Origin,
    resolved: &mut Resolved<'_>,
    shared: &mut SharedState<F>,
) -> Step<F> {
    match verdict {
        Verdict::Good => {
            resolved.verified += 1;
            verified_step(now, request, origin, resolved, shared)
        }
        Verdict::Wrong => Step::Fail(Status::UNAUTHORIZED, "wrong user name or password"),
        Verdict::Limited => {
            let why = "too many wrong passwords from your address; try again in a minute";
            Step::Fail(Status::TOO_MANY_REQUESTS, why)
        }
        Verdict::Busy => {
            shared.counts.shed += 1;
            let why = "too many pending password verifications; try again in a second";
            Step::Fail(Status::SERVICE_UNAVAILABLE, why)
        }
        Verdict::Failed => Step::Fail(Status::INTERNAL_SERVER_ERROR, "cannot read the accounts"),
    }
}

/// The fallback file; `None` if its content is not cached.
fn fallback<F: FileHandle>(
    now: Time,
    site: &Site,
    request: &Request<'_>,
    resource: &Arc<Resource>,
    contents: &[Arc<Content<F>>],
    (caches, limits, wall): (&mut Caches<F>, &Limits, &WallClock),
) -> Option<(ReplyHead, Body<F>)> {
    let resource = ready(resource, site, caches.budgets.ready_headers);
    // Neither a fallback nor an error page may exist in compressed form only.
    let Chosen::One(representation) = reply::choose(request, &resource) else { return None };
    file_reply(now, request, (site, &resource, representation), contents, (caches, limits, wall))
}

/// Decides the next step after the lookup of the fallback file.
pub(crate) fn fallback_after<F: FileHandle>(
    now: Time,
    request: &Request<'_>,
    answer: Answer<F>,
    outcome: Outcome,
    resolved: &Resolved<'_>,
    shared: &mut SharedState<F>,
) -> Step<F> {
    let SharedState { sites, limits, caches, wall, .. } = shared;
    let site = sites.of(resolved.site);
    if let Answer::Name(LookupResult::File(resource), contents) = &answer
        && resource.lone.is_none()
        && let Some(reply) = fallback(now, site, request, resource, contents, (caches, limits, wall))
    {
        return Step::Reply(PreparedResponse::new(reply, outcome));
    }
    match answer {
        Answer::Trouble(trouble) => step_after_trouble(trouble, shared),
        _ => Step::Fail(Status::NOT_FOUND, plan::NOT_FOUND),
    }
}

/// Decides the next step after a failure of the disk side.
fn step_after_trouble<F>(trouble: Trouble, shared: &mut SharedState<F>) -> Step<F> {
    match trouble {
        Trouble::Busy => {
            shared.counts.shed += 1;
            Step::Fail(Status::SERVICE_UNAVAILABLE, "disk queue full; try again in a second")
        }
        Trouble::Exhausted => Step::Fail(Status::SERVICE_UNAVAILABLE, "out of file descriptors; try again in a second"),
        Trouble::Failed => Step::Fail(Status::INTERNAL_SERVER_ERROR, "cannot read the file"),
        Trouble::Unavailable => {
            Step::Fail(Status::SERVICE_UNAVAILABLE, "the object store does not answer; try again in a second")
        }
    }
}

/// Requests the decompressed form of a file from the disk side.
fn ask_to_unpack<F: FileHandle>(
    site: &Site,
    path: &CleanPath<'_>,
    meaning: &LookupResult,
    caches: &mut Caches<F>,
) -> Step<F> {
    let work = Work::Name(caches.unpack_work(site, path.share(), meaning));
    Step::Ask(DiskRequest { work, stale: None })
}

/// The response to a client that does not accept the only coding in which a file exists.
fn step_not_unpacked<F>(why: NotUnpacked) -> Step<F> {
    match why {
        NotUnpacked::TooLarge => {
            let why = "this file exists in compressed form only and is too large to decompress; request it with \
                       Accept-Encoding: gzip";
            Step::Fail(Status::NOT_ACCEPTABLE, why)
        }
        NotUnpacked::Damaged => Step::Fail(
            Status::INTERNAL_SERVER_ERROR,
            "this file exists in compressed form only and cannot be decompressed",
        ),
    }
}

/// Checks a compressed sibling of a missing file: it is sent only if the client could request it by its
/// own name. Rules that match both names have already passed.
fn step_before_lone<F>(
    request: &Request<'_>,
    origin: Origin,
    site: &Site,
    resource: &Resource,
    lone: &PrecompressedOnly,
) -> Option<Step<F>> {
    let nothing = || Some(Step::Fail(Status::NOT_FOUND, plan::NOT_FOUND));
    let same_rule = |one: &Routed, other: &Routed| mem::discriminant(one) == mem::discriminant(other);
    match (site.routed(&lone.name, request), site.routed(&resource.name, request)) {
        (None | Some(Routed::Rewrite(_)), _) => {}
        (Some(Routed::Deny(status)), _) => return Some(Step::Fail(status, plan::DENIED)),
        (Some(Routed::Internal), _) if origin == Origin::Site => {}
        (Some(one), Some(other)) if same_rule(&one, &other) => {}
        (Some(_), _) => return nothing(),
    }
    let is_guarded_alike = site
        .guards_of(&lone.name, request)
        .all(|guard| site.guards_of(&resource.name, request).any(|passed| passed.is_like(guard)));
    let is_authorized_alike = site
        .authorizations_of(&lone.name, request)
        .all(|(rule, _)| site.authorizations_of(&resource.name, request).any(|(passed, _)| passed == rule));
    if !(is_guarded_alike && is_authorized_alike) {
        return nothing();
    }
    match (app::handler_of(site, &lone.name, request), app::handler_of(site, &resource.name, request)) {
        (Ok(None), Ok(None)) => None,
        (Err(status), _) | (_, Err(status)) => Some(Step::Fail(status, plan::DENIED)),
        // The source of an application, or a file that only the application may send.
        (Ok(_), Ok(_)) => nothing(),
    }
}

/// Checks a file that was found: a hidden name, an application as index file or
/// variant (its source is never sent), or a method that files do not support.
fn step_before_file<F>(
    request: &Request<'_>,
    origin: Origin,
    site: &Site,
    path: &[u8],
    resource: &Resource,
) -> Option<Step<F>> {
    if let Some(lone) = &resource.lone
        && let Some(step) = step_before_lone(request, origin, site, resource, lone)
    {
        return Some(step);
    }
    if *path != *resource.name && !(site.apps.is_empty() && site.routes.is_empty()) {
        if let Some(status) = site.denied(&resource.name, request) {
            return Some(Step::Fail(status, plan::DENIED));
        }
        match app::handler_of(site, &resource.name, request) {
            Ok(Some(handler)) => return Some(Step::Run(handler)),
            Ok(None) => {}
            Err(status) => return Some(Step::Fail(status, plan::DENIED)),
        }
    }
    (!plan::is_read(request.method)).then(|| step_without_app(request, site, path))
}

/// Decides the next step for a request that only an application could answer.
fn step_without_app<F>(request: &Request<'_>, site: &Site, path: &[u8]) -> Step<F> {
    if request.method == Some(Method::Options) {
        return Step::Reply(PreparedResponse::new(reply::options(site, request, path), Outcome::None));
    }
    let (status, why) = plan::refuse_method(request.method);
    Step::Fail(status, why)
}

/// The cached resource or, if prepared heads are disabled, a freshly built one.
fn ready<'a>(resource: &'a Arc<Resource>, site: &Site, ready_headers: bool) -> Cow<'a, Arc<Resource>> {
    if ready_headers { Cow::Borrowed(resource) } else { Cow::Owned(Arc::new(resource.rebuilt(site))) }
}

/// Decides the next step for a name that is not a file.
fn step_without_file<F: FileHandle>(
    now: Time,
    request: &Request<'_>,
    (site, path): (&Site, &CleanPath<'_>),
    meaning: &LookupResult,
    outcome: Outcome,
    (caches, limits, wall, counts): (&mut Caches<F>, &Limits, &WallClock, &mut Counts),
) -> Step<F> {
    let query = request.target.query();
    match meaning {
        LookupResult::Absent if let Some(file) = site.fallback(path) => {
            if let Some(status) = site.denied(file.as_bytes(), request) {
                return Step::Fail(status, plan::DENIED);
            }
            match app::handler_of(site, file.as_bytes(), request) {
                Ok(Some(handler)) => return Step::Run(handler),
                Ok(None) if !plan::is_read(request.method) => return step_without_app(request, site, path),
                Ok(None) => {}
                Err(status) => return Step::Fail(status, plan::DENIED),
            }
            let known = caches.find(now, site.number, file.as_bytes());
            if let Some(CachedEntry { meaning: LookupResult::File(resource), age }) = &known
                && *age < caches.budgets.revalidate
                && resource.lone.is_none()
                && let Some(reply) = fallback(now, site, request, resource, &[], (caches, limits, wall))
            {
                return Step::Reply(PreparedResponse::new(reply, outcome));
            }
            // With its content, even if cached: there is no second lookup.
            let work = Work::Name(caches.name_work(site, file.as_bytes().into(), None));
            Step::AskForFallback(DiskRequest { work, stale: None })
        }
        _ if !plan::is_read(request.method) => step_without_app(request, site, path),
        LookupResult::NeedsSlash => {
            Step::Reply(PreparedResponse::new(reply::add_slash(site, request, path, query), outcome))
        }
        LookupResult::Directory(folder) if site.listing => {
            let (order, form) = (ListOrder::of(query), list_form(request));
            let work = caches.list_work(site.number, path.share(), order, form);
            if let Some(listing) = caches.listing(now, &work, folder.as_ref()) {
                counts.page_hits += 1;
                let reply = reply::listing(site, request, path, form, listing, wall.seconds);
                return Step::Reply(PreparedResponse::new(reply, outcome));
            }
            counts.page_misses += 1;
            Step::Ask(DiskRequest { work: Work::List(work), stale: None })
        }
        LookupResult::Directory(_) => Step::Fail(Status::FORBIDDEN, "directory listing is disabled"),
        LookupResult::Forbidden => Step::Fail(Status::FORBIDDEN, "permission denied"),
        LookupResult::Absent | LookupResult::File(_) | LookupResult::Variants(_) => {
            Step::Fail(Status::NOT_FOUND, plan::NOT_FOUND)
        }
    }
}

fn list_form(request: &Request<'_>) -> ListForm {
    let accept: Vec<u8> = request.accept.iter().collect::<Vec<_>>().join(&b","[..]);
    let json = negotiate::prefers_json(request.accept.is_present().then_some(&accept));
    if json { ListForm::Json } else { ListForm::Html }
}

/// Builds an error: with the site's page for this status if it has one, else with the default page.
pub(crate) fn failure<F: FileHandle>(
    now: Time,
    request: &Request<'_>,
    (status, why): (Status, &'static str),
    resolved: &Resolved<'_>,
    shared: &mut SharedState<F>,
) -> Failure<F> {
    let SharedState { sites, caches, .. } = shared;
    let site = sites.of(resolved.site);
    let Some(page) = site.error_page(status) else {
        return Failure::Reply(plain_failure(request, (status, why), resolved, shared));
    };
    let known = caches.find(now, site.number, page.as_bytes());
    if let Some(CachedEntry { meaning: LookupResult::File(resource), age }) = &known
        && *age < caches.budgets.revalidate
        && resource.lone.is_none()
        && let Some(content) = caches.content(&resource.representations[0])
    {
        let reply = reply::error_from_page(site, request, &resolved.requested, status, resource, content);
        return Failure::Reply(PreparedResponse::new(reply, Outcome::None));
    }
    let is_missing = matches!(&known, Some(CachedEntry { meaning, age })
        if *age < caches.budgets.revalidate && !matches!(meaning, LookupResult::File(resource) if resource.lone.is_none()));
    if is_missing || status == Status::SERVICE_UNAVAILABLE {
        // A 503 means that the disk is overloaded; a lookup of its page would add to the load.
        return Failure::Reply(plain_failure(request, (status, why), resolved, shared));
    }
    let work = Work::Name(caches.name_work(site, page.as_bytes().into(), known.as_ref()));
    Failure::AskForPage(DiskRequest { work, stale: None })
}

/// Builds the error after the lookup of its page.
pub(crate) fn error_after<F: FileHandle>(
    request: &Request<'_>,
    answer: Answer<F>,
    (status, why): (Status, &'static str),
    resolved: &Resolved<'_>,
    shared: &mut SharedState<F>,
) -> PreparedResponse<F> {
    let SharedState { sites, caches, .. } = shared;
    if let Answer::Name(LookupResult::File(resource), contents) = answer
        && resource.lone.is_none()
        && let Some(content) = caches.content_among(&contents, &resource.representations[0])
    {
        let site = sites.of(resolved.site);
        let reply = reply::error_from_page(site, request, &resolved.requested, status, &resource, content);
        return PreparedResponse::new(reply, Outcome::None);
    }
    plain_failure(request, (status, why), resolved, shared)
}

/// Builds the error with the default page.
pub(crate) fn plain_failure<F>(
    request: &Request<'_>,
    (status, why): (Status, &'static str),
    resolved: &Resolved<'_>,
    shared: &mut SharedState<F>,
) -> PreparedResponse<F> {
    let SharedState { sites, caches, errors, .. } = shared;
    let site = sites.of(resolved.site);
    let reply = if site.rules.is_empty()
        && !site.has_conditions
        && site.cors.is_empty()
        && status != Status::UNAUTHORIZED
        && caches.budgets.ready_headers
    {
        errors.error(request, status, why)
    } else {
        reply::error(site, request, &resolved.requested, status, why)
    };
    PreparedResponse::new(reply, Outcome::None)
}
