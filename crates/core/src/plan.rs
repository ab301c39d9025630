//! Stop 6 of 10: interprets a request, as far as its head allows.
//!
//! Before it, `exchange` (stop 5) received the parsed head; after it, `decide` (stop 7) consults the caches.
//!
//! First the target is resolved to a site and a clean path ([`Resolved`]), once per request, which keeps the result
//! while it waits. Then routes apply, then applications, then files, in the order of the specification. The result is a
//! rejection, a request to an application, or a name to look up in the caches and, on a miss, on the disk.

use amped_http::h1::request::{Expectation, Request};
use amped_http::method::Method;
use amped_http::status::Status;
use amped_http::uri::{self, PathError, Target};

use crate::app::{self, HandlerMatch};
use crate::auth::Guard;
use crate::authorize::AuthorizeRule;
use crate::cache::uri::{Translated, UriCache};
use crate::routes::{FixedResponse, QueryRule, Routed};
use crate::site::{Site, Sites};

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ops::Deref;
use core::ptr;

/// A clean path (see [`uri::clean_path`]), usually borrowed from the head of the current request.
#[derive(Clone, Debug)]
pub(crate) enum CleanPath<'a> {
    Borrowed(&'a [u8]),
    Shared(Arc<[u8]>),
}

impl CleanPath<'_> {
    /// Copies the path, so that it outlives the head.
    pub(crate) fn share(&self) -> Arc<[u8]> {
        match self {
            CleanPath::Borrowed(path) => (*path).into(),
            CleanPath::Shared(path) => Arc::clone(path),
        }
    }
}

impl Deref for CleanPath<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            CleanPath::Borrowed(path) => path,
            CleanPath::Shared(path) => path,
        }
    }
}

/// The resolved target of a request. Valid as long as the configuration that resolved it.
#[derive(Debug)]
pub(crate) struct Resolved<'a> {
    /// The number of that configuration.
    pub(crate) generation: u32,
    /// The site's number.
    pub(crate) site: u16,
    /// The requested path, to which rules apply; `/` if there is none.
    pub(crate) requested: CleanPath<'a>,
    /// The path that a route substituted for it.
    rewritten: Option<CleanPath<'a>>,
    /// Further properties of the requested path.
    form: PathForm,
    /// The plan, if it was needed [before](Resolved::plan_ahead) it can be carried out.
    planned: Option<Plan>,
    /// The number of its guards whose password was verified since the first step, or is not needed.
    pub(crate) verified: usize,
    /// A guard has admitted the client by its address.
    pub(crate) is_exempt: bool,
    /// The rules by which applications have authorised the request: their indices among those of the site.
    pub(crate) authorized: Vec<usize>,
    /// The user that these applications have named.
    pub(crate) user: Option<Box<[u8]>>,
    /// A limit that counts by user has not counted the request yet.
    pub(crate) awaits_user: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PathForm {
    /// A path that a file may have.
    Plain,
    /// A segment contains an encoded slash.
    EncodedSlash,
    /// The target has no path.
    Missing,
    /// The path is invalid.
    Bad(PathError),
}

impl<'a> Resolved<'a> {
    /// Copies the paths, for a request that has to wait.
    pub(crate) fn keep(self) -> Resolved<'static> {
        let keep = |path: CleanPath<'a>| CleanPath::Shared(path.share());
        let (requested, rewritten) = (keep(self.requested), self.rewritten.map(keep));
        Resolved { requested, rewritten, ..self }
    }

    /// The guard whose password is verified next; `None`: all that the request needs have been verified.
    pub(crate) fn next_guard<'s>(&self, site: &'s Site, request: &Request<'_>) -> Option<&'s Guard> {
        site.guards_of(&self.requested, request).nth(self.verified)
    }

    /// The rules by which applications must still authorise the request, and their indices; the first one is next.
    ///
    /// A condition of a route may depend on fields that an application has added, so rules are identified, not counted.
    pub(crate) fn pending_authorizations<'s>(
        &self,
        site: &'s Site,
        request: &Request<'_>,
    ) -> impl Iterator<Item = (usize, &'s AuthorizeRule)> {
        site.authorizations_of(&self.requested, request).filter(|(index, _)| !self.authorized.contains(index))
    }

    /// Plans the request and keeps the plan for [`plan`](Resolved::plan).
    pub(crate) fn plan_ahead(&mut self, request: &Request<'_>, origin: Origin, sites: &Sites) -> &Plan {
        let plan = plan(request, origin, self, sites);
        self.planned.insert(plan)
    }

    /// How to serve the request: as planned ahead, or planned now.
    pub(crate) fn plan(&mut self, request: &Request<'_>, origin: Origin, sites: &Sites) -> Plan {
        self.planned.take().unwrap_or_else(|| plan(request, origin, self, sites))
    }

    /// The path to look up.
    pub(crate) fn path(&self) -> &CleanPath<'a> {
        self.rewritten.as_ref().unwrap_or(&self.requested)
    }

    /// Whether the name may lead to an application: the index of a directory, a variant, or a fallback file may be a
    /// script, which only a disk lookup shows.
    pub(crate) fn may_lead_to_app(&self, site: &Site) -> bool {
        let path = self.path();
        !site.apps.is_empty()
            && (path.ends_with(b"/") || site.fallback(path).is_some() || site.negotiation(path).is_some())
    }
}

/// Resolves a request's target. `scratch`: a buffer for a path that must be cleaned.
pub(crate) fn resolve<'a>(
    request: &Request<'a>,
    sites: &Sites,
    generation: u32,
    uris: &mut UriCache,
    scratch: &mut Vec<u8>,
) -> Resolved<'a> {
    let resolved = |site, requested, form| {
        let (rewritten, planned, verified, authorized) = (None, None, 0, Vec::new());
        let (user, awaits_user, is_exempt) = (None, false, false);
        Resolved {
            generation,
            site,
            requested,
            rewritten,
            form,
            planned,
            verified,
            is_exempt,
            authorized,
            user,
            awaits_user,
        }
    };
    let site = |sites: &Sites| sites.for_host(request.host).number;
    let (Target::Origin { path: sent, .. } | Target::Absolute { path: sent, .. }) = request.target else {
        return resolved(site(sites), CleanPath::Borrowed(b"/"), PathForm::Missing);
    };
    if let Some(Translated { site, path }) = uris.translated(request.host, sent) {
        return resolved(*site, CleanPath::Shared(Arc::clone(path)), PathForm::Plain);
    }
    let (requested, has_slash) = match uri::clean_path_with_slashes(sent, scratch) {
        // The path was clean as sent.
        Ok((path, has_slash)) if ptr::eq(path, sent) => (CleanPath::Borrowed(sent), has_slash),
        Ok((path, has_slash)) => (CleanPath::Shared(path.into()), has_slash),
        Err(error) => return resolved(site(sites), CleanPath::Borrowed(b"/"), PathForm::Bad(error)),
    };
    let site = site(sites);
    if has_slash {
        return resolved(site, requested, PathForm::EncodedSlash);
    }
    uris.learn(request.host, sent, || Translated { site, path: requested.share() });
    resolved(site, requested, PathForm::Plain)
}

/// How to serve a request.
#[derive(Debug)]
pub(crate) enum Plan {
    /// Look up [`Resolved::path`], and send the result.
    Look,
    /// Pass it to an application.
    Run(HandlerMatch),
    /// Redirect the client.
    Redirect {
        /// The status.
        status: Status,
        /// The target, with the query.
        location: Vec<u8>,
    },
    /// Send this fixed response.
    Respond(Arc<FixedResponse>),
    /// List the allowed methods.
    Options,
    /// Reject.
    Refuse {
        /// The status.
        status: Status,
        /// The human-readable reason.
        why: &'static str,
    },
}

/// Whether a file can be served to a request with this method.
pub(crate) fn is_read(method: Option<Method>) -> bool {
    matches!(method, Some(Method::Get | Method::Head))
}

/// Rejects a method that only applications accept. RFC 9110, 15.6.2: an
/// unknown method; 15.5.6: a known method that files do not support.
pub(crate) fn refuse_method(method: Option<Method>) -> (Status, &'static str) {
    match method {
        None => (Status::NOT_IMPLEMENTED, "unknown method"),
        Some(_) => (Status::METHOD_NOT_ALLOWED, "this resource allows only GET, HEAD and OPTIONS"),
    }
}

/// Decides how to serve a request. `origin`: the source of the request.
fn plan(request: &Request<'_>, origin: Origin, resolved: &mut Resolved<'_>, sites: &Sites) -> Plan {
    let plan = plan_by_rules(request, origin, resolved, sites);
    let may_succeed = match &plan {
        Plan::Look | Plan::Options => true,
        Plan::Respond(response) => response.status.0 < 300,
        // Whether it can is decided when the request is passed on.
        Plan::Run(_) | Plan::Redirect { .. } | Plan::Refuse { .. } => false,
    };
    if may_succeed && request.is_extended_connect() {
        // RFC 9110, 9.3.6: with a 2xx status, its client would take what follows for a tunnel.
        return Plan::Refuse { status: Status::NOT_IMPLEMENTED, why: NO_TUNNEL };
    }
    plan
}

/// First routes, then applications, then files.
fn plan_by_rules(request: &Request<'_>, origin: Origin, resolved: &mut Resolved<'_>, sites: &Sites) -> Plan {
    let refuse = |(status, why)| Plan::Refuse { status, why };
    let site = sites.of(resolved.site);
    resolved.rewritten = None;
    if resolved.form == PathForm::Missing {
        return match request.method {
            Some(Method::Options) => Plan::Options,
            method if is_read(method) => refuse((Status::BAD_REQUEST, "the request target has no path")),
            method => refuse(refuse_method(method)),
        };
    }
    // RFC 9110, 9.3.6 and 9.3.8: these two methods concern connections.
    if let Some(Method::Connect | Method::Trace) = request.method
        && !request.is_extended_connect()
    {
        return refuse(refuse_method(request.method));
    }
    match resolved.form {
        PathForm::Bad(_) if request.method == Some(Method::Options) => return Plan::Options,
        PathForm::Bad(error) => return refuse(refuse_path(error)),
        PathForm::Plain | PathForm::EncodedSlash | PathForm::Missing => {}
    }
    if site.preflight(&resolved.requested, request).is_some() {
        return Plan::Options;
    }
    match site.routed(&resolved.requested, request) {
        None => {}
        Some(Routed::Internal) if origin == Origin::Site => {}
        Some(Routed::Internal | Routed::Nowhere) => return refuse((Status::NOT_FOUND, NOT_FOUND)),
        Some(Routed::Deny(status)) => return refuse((status, DENIED)),
        Some(Routed::Respond(response)) => return Plan::Respond(response),
        Some(Routed::Redirect(status, mut location, rule)) => {
            if let Some(query) = request.target.query().filter(|_| rule == QueryRule::Keep) {
                location.push(if location.contains(&b'?') { b'&' } else { b'?' });
                location.extend_from_slice(query);
            }
            return Plan::Redirect { status, location };
        }
        Some(Routed::Rewrite(other)) => {
            if let Some(status) = site.denied(&other, request) {
                return refuse((status, DENIED));
            }
            resolved.rewritten = Some(CleanPath::Shared(other.into()));
        }
    }
    match app::handler_of(site, resolved.path(), request) {
        Ok(Some(handler)) => return Plan::Run(handler),
        Ok(None) => {}
        Err(status) => return refuse((status, DENIED)),
    }
    if !is_read(request.method) && !resolved.may_lead_to_app(site) {
        return match request.method {
            Some(Method::Options) => Plan::Options,
            Some(Method::Connect) => refuse((Status::NOT_IMPLEMENTED, NO_TUNNEL)),
            method => refuse(refuse_method(method)),
        };
    }
    // RFC 9110, 10.1.1. For an application, the expectation is handled when the request is passed on.
    if request.expectation == Expectation::Unknown && is_read(request.method) {
        return refuse((Status::EXPECTATION_FAILED, "unsupported expectation; only 100-continue is supported"));
    }
    if resolved.form == PathForm::EncodedSlash {
        return refuse(refuse_path(PathError::EncodedSlash));
    }
    if !site.dotfiles && uri::hidden(resolved.path()) {
        // Not 403, which would reveal that the name exists.
        return refuse((Status::NOT_FOUND, NOT_FOUND));
    }
    Plan::Look
}

/// The source of a request for a name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Origin {
    /// A client, in its request.
    #[default]
    Client,
    /// An application of the site, in its response.
    Site,
}

fn refuse_path(error: PathError) -> (Status, &'static str) {
    match error {
        // A file name cannot contain a slash, and this one must not be mistaken for a separator.
        PathError::EncodedSlash => (Status::NOT_FOUND, "file names cannot contain a slash"),
        PathError::BadEscape => (Status::BAD_REQUEST, "a % in the path is not followed by two hexadecimal digits"),
        PathError::Nul => (Status::BAD_REQUEST, "the path contains a NUL byte"),
        PathError::AboveRoot => (Status::BAD_REQUEST, "the path leads above the root"),
    }
}

/// Cleans a path, given as sent, and checks that the site does not hide it.
///
/// # Errors
/// The status and a human-readable reason, if the path is invalid or hidden.
pub fn name_of<'a>(site: &Site, path: &'a [u8], scratch: &'a mut Vec<u8>) -> Result<&'a [u8], (Status, &'static str)> {
    let path = uri::clean_path(path, scratch).map_err(refuse_path)?;
    if !site.dotfiles && uri::hidden(path) {
        // Not 403, which would reveal that the name exists.
        return Err((Status::NOT_FOUND, NOT_FOUND));
    }
    Ok(path)
}

/// The reason given for an extended CONNECT to what is not a server behind this one, or for another protocol.
pub(crate) const NO_TUNNEL: &str = "only WebSocket connections to an `http` application can be opened here";

/// The reason given for a name that a route denies.
pub(crate) const DENIED: &str = "access denied";

/// The reason given for a name that does not exist.
pub const NOT_FOUND: &str = "the requested path does not exist";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::glob::Glob;
    use crate::routes::{Fallback, Route, RouteAction};
    use crate::site::AppRule;
    use alloc::format;
    use alloc::string::String;
    use amped_http::h1::request::{self, HeadLimits};
    use amped_units::Bytes;
    use core::time::Duration;

    fn rule(pattern: &str) -> AppRule {
        let pattern = Glob::new(pattern);
        AppRule {
            pattern,
            when: None,
            timeout: Duration::ZERO,
            max_body_bytes: Bytes(0),
            max_response_bytes: None,
            cache: None,
            compress: Vec::new(),
            http: None,
        }
    }

    fn redirect(to: &str) -> RouteAction {
        RouteAction::Redirect { to: to.into(), status: Status::FOUND, query: None }
    }

    fn rewrite(to: &str) -> RouteAction {
        RouteAction::Rewrite { to: to.into(), query: QueryRule::Keep }
    }

    /// The plan for a request: `site path ?query`, `APP path`, a status, or OPTIONS with the path for rules.
    #[track_caller]
    fn check(sites: &Sites, origin: Origin, request: &str, expected: &str) {
        let limits = HeadLimits { request_line: 1000, head: 1000, fields: 10, secure: false };
        let host = if request.contains("\r\n") { "" } else { "\r\nHost: a" };
        let text = request.replacen(" HTTP", &format!(" HTTP/1.1{host}"), 1) + "\r\n\r\n";
        let (request, _) = request::parse(text.as_bytes(), &limits).expect("good").expect("whole");
        let (mut scratch, mut uris) = (Vec::new(), UriCache::of(8));
        // The second iteration uses the cached path.
        for _ in 0..2 {
            let mut resolved = resolve(&request, sites, 0, &mut uris, &mut scratch);
            let came_out = match resolved.plan(&request, origin, sites) {
                Plan::Redirect { status, location } => {
                    format!("{} {}", status.0, String::from_utf8_lossy(&location))
                }
                Plan::Respond(response) => {
                    format!("{} {}", response.status.0, String::from_utf8_lossy(&response.body))
                }
                Plan::Options => format!("OPTIONS {}", String::from_utf8_lossy(&resolved.requested)),
                Plan::Refuse { status, .. } => format!("{}", status.0),
                Plan::Run(handler) => format!("APP {}", String::from_utf8_lossy(handler.path())),
                Plan::Look => {
                    let (site, path) = (resolved.site, resolved.path());
                    let query = request
                        .target
                        .query()
                        .map_or(String::new(), |query| format!(" ?{}", String::from_utf8_lossy(query)));
                    format!("{site} {}{query}", String::from_utf8_lossy(path))
                }
            };
            assert_eq!(came_out, expected, "{text}");
        }
    }

    fn site(routes: &[(&str, RouteAction)]) -> Site {
        let route = |(pattern, action): &(&str, RouteAction)| Route {
            pattern: Glob::new(pattern),
            when: None,
            action: action.clone(),
        };
        Site { routes: routes.iter().map(route).collect(), ..Site::default() }
    }

    #[test]
    fn plan_made_ahead_is_carried_out_once() {
        let sites = |routes: &[(&str, RouteAction)]| Sites::new(alloc::vec![site(routes)]).expect("one");
        let (before, after) = (sites(&[("/a", redirect("/b"))]), sites(&[]));
        let limits = HeadLimits { request_line: 1000, head: 1000, fields: 10, secure: false };
        let (request, _) =
            request::parse(b"GET /a HTTP/1.1\r\nHost: a\r\n\r\n", &limits).expect("good").expect("whole");
        let mut resolved = resolve(&request, &before, 0, &mut UriCache::of(8), &mut Vec::new()).keep();
        assert!(matches!(resolved.plan_ahead(&request, Origin::Client, &before), Plan::Redirect { .. }));
        assert!(matches!(resolved.plan(&request, Origin::Client, &after), Plan::Redirect { .. }));
        assert!(matches!(resolved.plan(&request, Origin::Client, &after), Plan::Look));
    }

    #[test]
    fn targets_resolve_to_plans() {
        let site = site(&[
            ("/old/**", redirect("/new/$1")),
            ("/to/**", redirect("/at?x=$1")),
            ("/r/**", rewrite("/real/$1")),
            ("/h/*", rewrite("/.$1")),
        ]);
        let open = Site { dotfiles: true, hosts: alloc::vec!["open".into()], ..site.clone() };
        let sites = Sites::new(alloc::vec![site, open]).expect("some");
        let check = |request: &str, expected: &str| check(&sites, Origin::Client, request, expected);
        check("GET / HTTP", "0 /");
        check("HEAD /a/../b?c HTTP", "0 /b ?c");
        check("GET /a%20b HTTP", "0 /a b");
        check("GET http://open/x HTTP", "1 /x");
        check("GET /x HTTP\r\nHost: Open:8080", "1 /x");
        check("GET /old/a/../b?c HTTP", "302 /new/b?c");
        check("GET /to/a%20b?c HTTP", "302 /at?x=a%20b");
        check("GET /r/a?c HTTP", "0 /real/a ?c");
        check("GET /h/git HTTP", "404");
        check("GET /h/git HTTP\r\nHost: open", "1 /.git");
        check("POST /old/a HTTP", "302 /new/a");
        check("GET /.git HTTP", "404");
        check("GET /%2egit HTTP", "404");
        check("GET /.well-known/x HTTP", "0 /.well-known/x");
        check("GET /.git HTTP\r\nHost: open", "1 /.git");
        check("GET /.. HTTP", "400");
        check("GET /%zz HTTP", "400");
        check("GET /%00 HTTP", "400");
        check("GET /a%2fb HTTP", "404");
        check("OPTIONS * HTTP", "OPTIONS /");
        check("OPTIONS //a HTTP", "OPTIONS /a");
        check("OPTIONS /%zz HTTP", "OPTIONS /");
        check("POST /a HTTP", "405");
        check("TRACE /a HTTP", "405");
        check("CONNECT a:1 HTTP", "405");
        check("get / HTTP", "501");
        check("BREW / HTTP", "501");
        check("GET / HTTP\r\nHost: a\r\nExpect: more", "417");
        check("GET / HTTP\r\nHost: a\r\nExpect: 100-continue", "0 /");
    }

    #[test]
    fn routes_precede_applications() {
        let response = FixedResponse { status: Status(410), body: Arc::new(b"gone".to_vec()), fields: Vec::new() };
        let mut site = site(&[
            ("/uploads/ok.php", rewrite("/uploads/ok.php")),
            ("/uploads/**", RouteAction::Deny(Status::FORBIDDEN)),
            ("/media/*.php", RouteAction::Deny(Status::NOT_FOUND)),
            ("/gone/**", RouteAction::Respond(Arc::new(response))),
            ("/old.php", redirect("/new.php")),
            ("/pretty/**", rewrite("/front.php")),
            ("/sly/**", rewrite("/uploads/$1")),
            ("/inner/**", RouteAction::Internal),
            ("/way/**", rewrite("/inner/$1")),
        ]);
        site.apps = alloc::vec![rule("*.php"), rule("/api")];
        let sites = Sites::new(alloc::vec![site]).expect("some");
        for method in ["GET", "HEAD", "POST", "OPTIONS", "PROPFIND", "get", "X-!"] {
            let check = |target: &str, expected: &str| {
                check(&sites, Origin::Client, &format!("{method} {target} HTTP"), expected);
            };
            check("/x.php", "APP /x.php");
            check("/x.php/a/b?c", "APP /x.php/a/b");
            check("/api/a", "APP /api/a");
            check("/old.php", "302 /new.php");
            check("/old.php?a=b", "302 /new.php?a=b");
            check("/pretty/a/b", "APP /front.php");
            check("/gone/x.php", "410 gone");
            // Denied under every spelling, as the prefix of a script path, and after a rewrite.
            check("/uploads/e.php", "403");
            check("/uploads/e.php/x", "403");
            check("/uploads/a/b/e.php/", "403");
            check("/uploads/%65.%70hp", "403");
            check("/uploads%2fe.php", "403");
            check("/%2f/uploads/%2e/e.php", "403");
            check("/x.php/../uploads/e.php", "403");
            check("/x.php/..%2fuploads/e.php", "403");
            check("/media/e.php", "404");
            check("/media/e.php/x", "404");
            check("/media/e.php/x.php", "404");
            check("/sly/e.php", "403");
            // The first matching route applies.
            check("/uploads/ok.php", "APP /uploads/ok.php");
            check("/inner/x.php", "404");
            check("/way/x.php", "APP /inner/x.php");
        }
        let get = |origin: Origin, target: &str, expected: &str| {
            check(&sites, origin, &format!("GET {target} HTTP"), expected);
        };
        get(Origin::Client, "/inner/a", "404");
        get(Origin::Site, "/inner/a", "0 /inner/a");
        get(Origin::Client, "/way/a", "0 /inner/a");
        get(Origin::Site, "/uploads/a", "403");
        let deep = "/a".repeat(100);
        get(Origin::Client, &format!("/api{deep}"), &format!("APP /api{deep}"));
    }

    #[test]
    fn path_info_may_contain_slashes_and_dots() {
        let mut site = site(&[]);
        site.apps = alloc::vec![rule("*.php"), rule("/api")];
        let sites = Sites::new(alloc::vec![site]).expect("some");
        let check = |target: &str, expected: &str| {
            check(&sites, Origin::Client, &format!("GET {target} HTTP"), expected);
        };
        check("/api/queues/%2F/x", "APP /api/queues/x");
        check("/api/@a%2fb", "APP /api/@a/b");
        check("/api/%252F", "APP /api/%2F");
        check("/x.php/.htaccess", "APP /x.php/.htaccess");
        check("/x.php/a/.b/c", "APP /x.php/a/.b/c");
        check("/.x.php", "404");
        check("/.a/x.php", "404");
        check("/a%2Fb", "404");
        check("/%2Ea/x.php", "404");
        check("/.a%2fx.php", "404");
        check("/api/..%2f..%2fx", "400");
    }

    #[test]
    fn applications_accept_any_method_and_files_only_few() {
        let mut site = site(&[]);
        site.apps = alloc::vec![rule("*.php")];
        site.fallbacks = alloc::vec![Fallback { directory: "/wp/".into(), file: "/wp/index.php".into() }];
        let sites = Sites::new(alloc::vec![site]).expect("some");
        let check = |request: &str, expected: &str| check(&sites, Origin::Client, request, expected);
        for method in ["POST", "PUT", "PATCH", "DELETE", "MKCOL", "QUERY", "!"] {
            check(&format!("{method} /x.php HTTP"), "APP /x.php");
            // Only a disk lookup shows whether an application handles these.
            check(&format!("{method} /folder/ HTTP"), "0 /folder/");
            check(&format!("{method} /wp/2024/post HTTP"), "0 /wp/2024/post");
        }
        check("OPTIONS /wp/x HTTP", "0 /wp/x");
        check("OPTIONS /x HTTP", "OPTIONS /x");
        check("POST /x HTTP", "405");
        check("MKCOL /x HTTP", "501");
        for target in ["/x.php", "/wp/x", "/folder/"] {
            check(&format!("TRACE {target} HTTP"), "405");
        }
        check("CONNECT a:1 HTTP", "405");
    }
}
