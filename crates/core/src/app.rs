//! Applications: which requests go to which application, and the requests and responses themselves.
//!
//! An application is a connection's third peer, besides client and disk. A request that matches an application rule of
//! the site goes out as [`Action::App`](crate::event::Action::App); the response comes back as
//! [`Event::App`](crate::event::Event::App), in pieces. This crate does not distinguish a process per request (CGI)
//! from a persistent one (FastCGI): both use the protocol of RFC 3875. A request to a server behind this one (HTTP) is
//! forwarded instead of being turned into variables; its response comes back in the form of RFC 3875 too.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::net::IpAddr;

use amped_http::cgi::{self, SendFile, Variables};
use amped_http::forwarded;
use amped_http::h1::gateway::{Additions, Forward};
use amped_http::h1::references::Mount;
use amped_http::h1::request::{self, Framing, OwnedRequest, Request};
use amped_http::interim::Interim;
use amped_http::status::Status;
use amped_http::uri::{self, Target};

use crate::cache::page::{PageName, StalePage};
use crate::compress::StreamWork;
use crate::condition::Condition;
use crate::request_id::{self, RequestId};
use crate::routes::Routed;
use crate::site::{AppRule, Site, Sites, StaticRule};
use crate::vary::Vary;

/// A request to an application, except for the parts that only the server has: addresses and file locations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AppWork {
    /// The number of the configuration, counted from the start.
    pub generation: u32,
    /// The site's number.
    pub site: u16,
    /// The rule's index among those of the site.
    pub rule: u16,
    /// The clean path.
    pub path: Arc<[u8]>,
    /// Offsets in the path at which the script's name may end, by
    /// the rule; never empty, ascending. The rest is PATH_INFO.
    pub ends: Vec<usize>,
    /// Whether a body follows.
    pub has_body: bool,
    /// Whether the response may be stored for other clients: then it must not depend on the client's certificate.
    pub may_be_cached: bool,
    /// The address of the client, if a proxy has named it; otherwise it is the peer of the connection.
    pub client: Option<IpAddr>,
    /// The meta-variables derived from the request's head; none if it is forwarded.
    pub variables: Variables,
    /// The head to forward, for a server that speaks HTTP.
    pub forward: Option<Box<Forward>>,
}

/// Input to an application.
#[derive(Debug)]
pub enum Input {
    /// Start the request.
    Start(Box<AppWork>),
    /// Part of the request body.
    Body(Vec<u8>),
    /// The request body is complete.
    End,
    /// The response is no longer needed. The text is the reason for the error log if the application failed, else
    /// empty. The application may have finished already.
    Leave(&'static str),
    /// The response will be cached under this name: answered by
    /// [`Output::First`] or [`Output::Follows`] before the request starts.
    Join(PageName),
    /// The response will not be cached after all: release the requests that wait for it.
    Settled,
    /// Read the response no faster than the client accepts it.
    Unbuffered,
    /// Compress the rest of the response: what follows as its output is the compressed body, in pieces, then [`Output::Ended`].
    Compress(Box<StreamWork>),
}

/// Output and state changes of an application.
#[derive(Debug)]
pub enum Output<'a> {
    /// The request has started; until now it was queued. A forwarded one goes to this backend.
    Started(Option<Arc<str>>),
    /// The application has read all of the body that it was sent.
    Room,
    /// A response that precedes the final one.
    Interim(Interim),
    /// Part of the response.
    Bytes(&'a [u8]),
    /// The last part of the response.
    Last(&'a [u8]),
    /// The connection carries another protocol from now on: the head of this response, with status 101. What follows
    /// is passed on in both directions.
    Switched(&'a [u8]),
    /// The response is complete.
    Ended,
    /// The response failed, or was cut off.
    Failed(AppTrouble),
    /// No other request generates this page: others will wait for this one.
    First,
    /// Another request is generating this page.
    Follows,
    /// The other request has finished, with or without a page: look up the cache again.
    Again,
}

/// Why an application did not respond.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AppTrouble {
    /// The queue is full: 503.
    Busy,
    /// The script does not exist: 404.
    Absent,
    /// The script exists, but must not be run: 403.
    Forbidden,
    /// The application could not be reached or started: 502.
    Unreachable,
    /// The application accepted no connection in time: 504.
    TimedOut,
    /// The application has exited and will be restarted: 503.
    Restarting,
    /// The application exited before its response was complete: 502.
    Failed,
    /// No space left for the request body: 503.
    NoRoom,
}

/// A request whose response replaces a stale page, while its client has got that. No client waits for it.
#[derive(Debug)]
pub struct RevalidateWork {
    pub(crate) request: OwnedRequest,
    pub(crate) handler: HandlerMatch,
    pub(crate) stale: StalePage,
    /// Whether only some clients may have the response.
    pub(crate) is_restricted: bool,
    /// Its place among those of the loop.
    pub(crate) slot: Arc<()>,
}

/// Who gets a response.
#[derive(Clone, Copy)]
pub(crate) enum Audience<'a> {
    /// The client.
    Client,
    /// The client, and other clients later: the response is cached if it turns out to be cacheable.
    ClientFirst,
    /// Other clients too: it may be cached, so it must be complete, whatever this client has cached. The application may say
    /// instead that a cached page is still the response, by these conditions.
    Cache(&'a [(&'a str, &'a [u8])]),
    /// The server, which asks whether the client may have what it requests; these fields say what that is.
    Server(&'a [(&'a str, &'a [u8])]),
}

impl<'a> Audience<'a> {
    /// Whether the application gets this field of the request.
    fn is_told(self, name: &[u8]) -> bool {
        let of_one = || OF_ONE.iter().any(|known| name.eq_ignore_ascii_case(known.as_bytes()));
        !matches!(self, Audience::Cache(_)) || !of_one()
    }

    /// Whether clients other than this one may get the response.
    fn has_others(self) -> bool {
        matches!(self, Audience::ClientFirst | Audience::Cache(_))
    }

    /// Fields that the application gets too.
    fn added(self) -> &'a [(&'a str, &'a [u8])] {
        match self {
            Audience::Client | Audience::ClientFirst => &[],
            Audience::Cache(fields) | Audience::Server(fields) => fields,
        }
    }
}

/// A request head, as passed to an application.
#[derive(Clone, Copy)]
pub(crate) struct AppHead<'a> {
    pub(crate) request: &'a Request<'a>,
    /// The bytes that the request was parsed from.
    pub(crate) bytes: &'a [u8],
    /// The clean path of the request target.
    pub(crate) requested: &'a [u8],
    /// Its ID, in the place of one that the client has sent; `None`: the application gets that.
    pub(crate) id: Option<&'a RequestId>,
}

impl<'a> AppHead<'a> {
    /// The fields that the application gets.
    fn fields(self, audience: Audience<'a>) -> impl Iterator<Item = (&'a [u8], &'a [u8])> {
        let is_id = move |name: &[u8]| self.id.is_some() && name.eq_ignore_ascii_case(request_id::FIELD.as_bytes());
        let fields = fields(self.request.target, self.bytes);
        fields.filter(move |(name, _)| audience.is_told(name) && !is_id(name))
    }

    /// Fields that the application gets too.
    fn added(self, audience: Audience<'a>) -> Vec<(&'a str, &'a [u8])> {
        let id = self.id.map(|id| (request_id::FIELD, id.text()));
        audience.added().iter().copied().chain(id).collect()
    }
}

/// A request that matches an application rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HandlerMatch {
    pub(crate) site: u16,
    pub(crate) rule: u16,
    path: Arc<[u8]>,
    ends: Vec<usize>,
    /// The fields of the request by which the script was chosen among variants.
    pub(crate) chosen_by: Vary,
}

impl HandlerMatch {
    /// The path, which selects header rules for the response.
    pub(crate) fn path(&self) -> &[u8] {
        &self.path
    }

    /// The rule that matched.
    pub(crate) fn rule<'a>(&self, sites: &'a Sites) -> Option<&'a AppRule> {
        sites.get(self.site)?.apps.get(usize::from(self.rule))
    }

    /// Builds the request to the application. `user`: the authenticated user, if any.
    pub(crate) fn work(
        &self,
        sites: &Sites,
        generation: u32,
        head: AppHead<'_>,
        framing: Framing,
        user: Option<&[u8]>,
        audience: Audience<'_>,
    ) -> AppWork {
        let site = sites.of(self.site);
        let query = site.query(head.requested, head.request);
        let client = head.request.client.filter(|client| client.named.is_some());
        let named = client.and_then(|client| client.named);
        let (mut variables, mut forward) = (Variables::new(), None);
        match site.apps.get(usize::from(self.rule)).and_then(|rule| rule.http.as_ref()) {
            Some(rule) => {
                let target = forwarded_target(head, site, query, rule.mount.as_ref().map(|mount| (mount, &*self.path)));
                let proxied = named.map(|(field, count)| forwarded::chain(request::fields(head.bytes), field, count));
                let proxied = &*proxied.unwrap_or_default();
                let added = head.added(audience);
                let additions = Additions {
                    host: rule.host.as_deref(),
                    user,
                    proxied,
                    fields: &added,
                    set: &rule.request_fields,
                    mount: rule.mount.as_ref(),
                    location: &rule.map_location,
                    keeps_location: matches!(audience, Audience::Server(_)),
                };
                let mut made = Forward::new(head.request, &target, || head.fields(audience), additions);
                made.framing = framing;
                forward = Some(Box::new(made));
            }
            None => variables = variables_of(head, &self.path, framing, query, user, audience),
        }
        AppWork {
            generation,
            site: self.site,
            rule: self.rule,
            path: Arc::clone(&self.path),
            ends: self.ends.clone(),
            has_body: framing != Framing::None,
            may_be_cached: audience.has_others(),
            client: client.map(|client| client.address),
            variables,
            forward,
        }
    }
}

/// The target of a forwarded request: the path as sent, with every escape, or one that a route substituted. If servers
/// may resolve the path differently (dots, empty segments), it is sent as this server has resolved it.
///
/// `mount`: where the backend has the path that led to it, which is another one after a fallback.
fn forwarded_target(head: AppHead<'_>, site: &Site, query: Option<Vec<u8>>, mount: Option<(&Mount, &[u8])>) -> Vec<u8> {
    let mut target = Vec::new();
    match (site.routed(head.requested, head.request), head.request.target) {
        (Some(Routed::Rewrite(path)), _) => uri::encode_path(&path, &mut target),
        (_, Target::Origin { path, .. } | Target::Absolute { path, .. })
            if uri::is_equivalent(path, head.requested) =>
        {
            target.extend_from_slice(path);
        }
        _ => uri::encode_path(head.requested, &mut target),
    }
    if let Some((mount, path)) = mount {
        let encoded = |path: &[u8]| {
            let mut encoded = Vec::new();
            uri::encode_path(path, &mut encoded);
            mount.inner(&encoded)
        };
        // The client may have escaped characters of the prefix that need no escape.
        let inner = mount.inner(&target).or_else(|| encoded(head.requested)).or_else(|| encoded(path));
        target = inner.unwrap_or_else(|| [mount.path.as_bytes(), b"/"].concat());
    }
    if let Some(query) = query {
        target.push(b'?');
        target.extend_from_slice(&query);
    }
    target
}

/// Finds the application for this clean path: the first rule that matches the path or a prefix of it, unless a rule for files precedes it.
///
/// A name that begins with a dot hides a script; after the script's name (in PATH_INFO) such a name is allowed.
///
/// # Errors
/// The status with which a route denies a name that may be the script; 403 for a script whose rules do not apply to the request.
pub(crate) fn handler_of(site: &Site, path: &[u8], request: &Request<'_>) -> Result<Option<HandlerMatch>, Status> {
    let (mut denials, mut is_script) = (site.has_denials(), false);
    for (rule, number) in before_files(site, path, Some(request)).zip(0..) {
        let slashes = memchr::memchr_iter(b'/', path).skip(1);
        let mut ends: Vec<usize> =
            slashes.chain([path.len()]).filter(|&end| rule.pattern.matches(&path[..end])).collect();
        if rule.pattern.as_str() == "/" {
            (ends, denials) = (Vec::from([0]), false);
        } else if !site.dotfiles {
            // The first hidden name hides everything below it.
            let open = ends.iter().take_while(|&&end| !uri::hidden(&path[..end])).count();
            ends.truncate(open);
        }
        if ends.is_empty() {
            continue;
        }
        if rule.when.as_ref().is_some_and(|when| !when.holds(request)) {
            is_script |= rule.http.is_none();
            continue;
        }
        if denials {
            // Each prefix is matched against every route.
            if ends.len() > SCRIPT_ENDS_MAX {
                return Err(Status::NOT_FOUND);
            }
            if let Some(status) = ends.iter().find_map(|&end| site.denied(&path[..end], request)) {
                return Err(status);
            }
        }
        let chosen_by = Vary::NOTHING;
        return Ok(Some(HandlerMatch { site: site.number, rule: number, path: path.into(), ends, chosen_by }));
    }
    // Its source must not be sent as a file.
    if is_script { Err(Status::FORBIDDEN) } else { Ok(None) }
}

/// Whether the site has an application for this clean path, at least for some requests.
pub fn is_handled(site: &Site, path: &[u8]) -> bool {
    let ends = || memchr::memchr_iter(b'/', path).skip(1).chain([path.len()]);
    let covers = |rule: &AppRule| rule.pattern.as_str() == "/" || ends().any(|end| rule.pattern.matches(&path[..end]));
    before_files(site, path, None).any(covers)
}

/// The application rules that precede the first rule for files that applies. Without a request no condition holds.
fn before_files<'a>(site: &'a Site, path: &[u8], request: Option<&Request<'_>>) -> impl Iterator<Item = &'a AppRule> {
    let holds = |when: &Condition| request.is_some_and(|request| when.holds(request));
    let applies = |rule: &&StaticRule| rule.pattern.matches(path) && rule.when.as_deref().is_none_or(holds);
    let end = site.static_rules.iter().find(applies).map_or(usize::MAX, |rule| usize::from(rule.before));
    site.apps.iter().take(end)
}

/// Maximum prefixes that may be the script, if routes deny any; a path with more of them is rejected.
const SCRIPT_ENDS_MAX: usize = 64;

/// The meta-variables derived from a head (RFC 3875, 4.1), and the non-standard ones that
/// applications written for Apache and nginx read. `served`: the path of script and PATH_INFO,
/// which a route, a fallback or an index may have substituted for the requested one. `passed_query`: that of a rewrite,
/// or the client's.
fn variables_of(
    head: AppHead<'_>,
    served: &[u8],
    framing: Framing,
    passed_query: Option<Vec<u8>>,
    user: Option<&[u8]>,
    audience: Audience<'_>,
) -> Variables {
    let AppHead { request, requested, .. } = head;
    let added = head.added(audience);
    let added = added.iter().map(|(name, value)| (name.as_bytes(), *value));
    let mut variables = cgi::field_variables(head.fields(audience).chain(added));
    if user.is_some() {
        // 4.1.18: the server verified the credentials and does not pass them on.
        variables.retain(|(name, _)| name != b"HTTP_AUTHORIZATION");
    }
    let query = request.target.query();
    let mut put = |name: &str, value: &[u8]| variables.push((name.into(), value.to_vec()));
    put("GATEWAY_INTERFACE", b"CGI/1.1");
    put("SERVER_SOFTWARE", b"amped");
    put("SERVER_PROTOCOL", request.version.name().as_bytes());
    put("REQUEST_METHOD", request.method_text);
    match (request.target, query) {
        // As in nginx: the routers of applications expect a path here.
        (Target::Absolute { path, .. }, None) => put("REQUEST_URI", path),
        (Target::Absolute { path, .. }, Some(query)) => put("REQUEST_URI", &[path, b"?", query].concat()),
        _ => put("REQUEST_URI", request.target_text),
    }
    if request.secure {
        put("HTTPS", b"on");
    }
    put("REQUEST_SCHEME", if request.secure { b"https" } else { b"http" });
    put("DOCUMENT_URI", served);
    // PHP's CGI program refuses to run without it: it assumes a direct request to its own URL.
    put("REDIRECT_STATUS", b"200");
    if requested != served {
        put("REDIRECT_URL", requested);
    }
    // 4.1.7: present even if empty.
    put("QUERY_STRING", &passed_query.unwrap_or_default());
    if !request.host.is_empty() {
        put("SERVER_NAME", request.host);
    }
    // 4.1.1 and 4.1.11.
    if let Some(user) = user {
        put("AUTH_TYPE", b"Basic");
        put("REMOTE_USER", user);
    }
    // 4.1.2. The length of a chunked body is known only once it is complete: the driver adds it then.
    if let Framing::Length(length) = framing {
        put("CONTENT_LENGTH", &cgi::decimal(length));
    }
    variables
}

/// The fields of a head, with Host replaced by the host of the target, if that has one. RFC 9112, 3.2.2: a server must
/// then ignore the Host field; an application that used it would see another site than the one whose rules applied.
pub(crate) fn fields<'a>(target: Target<'a>, head: &'a [u8]) -> impl Iterator<Item = (&'a [u8], &'a [u8])> {
    let named = match target {
        Target::Absolute { authority, .. } | Target::Authority(authority) => Some(authority),
        Target::Origin { .. } | Target::Asterisk => None,
    };
    let hosts = named.map(|authority| (&b"Host"[..], authority)).into_iter();
    let others = move |name: &[u8]| named.is_none() || !name.eq_ignore_ascii_case(b"host");
    hosts.chain(request::fields(head).filter(move |(name, _)| others(name)))
}

/// Fields by which a client requests less than a whole page (RFC 9110, 13.1 and 14.2).
const OF_ONE: [&str; 4] = ["if-none-match", "if-modified-since", "if-range", "range"];

/// The target of a request for the file that an application delegates to the server; `None` if it lies outside the site.
pub(crate) fn target_of(send: SendFile<'_>, site: &Site) -> Option<Vec<u8>> {
    let mut target = Vec::new();
    match send {
        // Many applications do not escape the path: escape what a target must not contain.
        SendFile::Path(path) => {
            for &byte in path {
                if byte <= b' ' || byte == 0x7f || byte == b'#' {
                    target.extend_from_slice(alloc::format!("%{byte:02X}").as_bytes());
                } else {
                    target.push(byte);
                }
            }
        }
        SendFile::File(name) => {
            let inner = site.root_names.iter().find_map(|root| name.strip_prefix(&**root))?;
            uri::encode_path(inner, &mut target);
        }
    }
    target.starts_with(b"/").then_some(target)
}

/// The fields of an application's response that reach the client
/// with a file sent on its behalf: those that nginx keeps.
pub(crate) fn fields_beside_file(script_head: &cgi::ScriptHead<'_>) -> Vec<(Box<str>, Box<[u8]>)> {
    let is_kept = |name: &str| KEPT_BESIDE_FILE.iter().any(|kept| name.eq_ignore_ascii_case(kept));
    script_head
        .fields
        .iter()
        .filter(|(name, _)| is_kept(name))
        .map(|&(name, value)| (name.into(), value.into()))
        .collect()
}

const KEPT_BESIDE_FILE: [&str; 5] = ["Content-Type", "Content-Disposition", "Set-Cookie", "Cache-Control", "Expires"];

/// Builds the head of the request for a local redirect of an application (RFC 3875, 6.2.2): without a body and its
/// fields. `None` if the target is not a path.
pub(crate) fn instead(head: &[u8], target: &[u8]) -> Option<Vec<u8>> {
    let line = head.split(|&byte| byte == b'\r').next()?;
    let method: &[u8] = if line.starts_with(b"HEAD ") { b"HEAD" } else { b"GET" };
    let version = line.rsplit(|&byte| byte == b' ').next()?;
    let requested = line.split(|&byte| byte == b' ').nth(1)?;
    let requested = Target::parse(requested, false)?;
    // It must not end the line, whatever its source.
    Target::parse(target, false)?;
    let mut made = [method, b" ", target, b" ", version, b"\r\n"].concat();
    let of_body = ["content-length", "content-type", "transfer-encoding", "expect"];
    for (name, value) in fields(requested, head) {
        if !of_body.iter().any(|known| name.eq_ignore_ascii_case(known.as_bytes())) {
            made.extend_from_slice(&[name, b": ", value, b"\r\n"].concat());
        }
    }
    made.extend_from_slice(b"\r\n");
    request::parse_own(&made, &request::HeadLimits::unlimited(false)).is_ok().then_some(made)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::condition::any_request;
    use crate::glob::Glob;
    use crate::routes::{QueryRule, Route, RouteAction};
    use crate::site::HttpRule;
    use alloc::string::String;
    use alloc::vec;
    use amped_http::h1::request_fields::ClientConnection;
    use amped_units::Bytes;
    use core::time::Duration;

    fn rule(pattern: &str) -> AppRule {
        AppRule {
            pattern: Glob::new(pattern),
            when: None,
            timeout: Duration::ZERO,
            max_body_bytes: Bytes(0),
            max_response_bytes: None,
            cache: None,
            compress: Vec::new(),
            http: None,
        }
    }

    #[test]
    fn static_rules_precede_applications_after_them() {
        let files = |pattern: &str, when, before| StaticRule { pattern: Glob::new(pattern), when, before };
        let posts = Condition { methods: vec!["POST".into()], ..Condition::default() };
        let static_rules = vec![
            files("/first/**", None, 0),
            files("*.css", None, 1),
            files("/form", Some(posts.into()), 1),
            files("/none", None, 2),
        ];
        let apps = vec![rule("*.php"), rule("/")];
        let site = Site { apps, static_rules, ..Site::default() };
        let check = |path: &str, expected: Option<u16>| {
            let found = handler_of(&site, path.as_bytes(), &any_request()).unwrap();
            assert_eq!(found.map(|handler| handler.rule), expected, "{path}");
            assert_eq!(is_handled(&site, path.as_bytes()), expected.is_some(), "{path}");
        };
        check("/first/a.php", None);
        check("/first", Some(1));
        check("/a.php", Some(0));
        check("/a.css", None);
        check("/a.php/b.css", Some(0));
        check("/a.css/b", Some(1));
        // `any_request` is a GET.
        check("/form", Some(1));
        check("/none", Some(1));
    }

    #[test]
    fn script_rules_match_paths_and_path_info() {
        let check = |patterns: &[&str], path: &str, expected: Option<(u16, &[&str])>| {
            let apps = patterns.iter().map(|pattern| rule(pattern)).collect();
            let handler = handler_of(&Site { apps, ..Site::default() }, path.as_bytes(), &any_request())
                .expect("no route denies it");
            let found =
                handler.map(|handler| (handler.rule, handler.ends.iter().map(|&end| &path[..end]).collect::<Vec<_>>()));
            assert_eq!(found, expected.map(|(rule, ends)| (rule, ends.to_vec())), "{patterns:?} {path}");
        };
        check(&["*.php"], "/a/x.php", Some((0, &["/a/x.php"])));
        check(&["*.php"], "/a/x.php/b/c", Some((0, &["/a/x.php"])));
        check(&["*.php"], "/a/x.html", None);
        check(&["*.php"], "/a.php/x.php", Some((0, &["/a.php", "/a.php/x.php"])));
        check(&["/cgi-bin/**"], "/cgi-bin/a/b", Some((0, &["/cgi-bin/a", "/cgi-bin/a/b"])));
        check(&["/cgi-bin/**"], "/cgi-bin", None);
        check(&["/app"], "/app", Some((0, &["/app"])));
        check(&["/app"], "/app/", Some((0, &["/app"])));
        check(&["/app"], "/app/users/1", Some((0, &["/app"])));
        check(&["/app"], "/apple", None);
        check(&["/"], "/any/thing", Some((0, &[""])));
        check(&["/x", "/"], "/x/y", Some((0, &["/x"])));
        check(&["/x", "/"], "/y", Some((1, &[""])));
        // A dot hides a script; after the script's name it is allowed.
        check(&["*.php"], "/x.php/.a/b", Some((0, &["/x.php"])));
        check(&["*.php"], "/.a/x.php", None);
        check(&["*.php"], "/.x.php", None);
        check(&["*.php"], "/.well-known/x.php", Some((0, &["/.well-known/x.php"])));
        check(&["/cgi-bin/**"], "/cgi-bin/a/.b/c", Some((0, &["/cgi-bin/a"])));
        check(&["/"], "/.a", Some((0, &[""])));
    }

    #[test]
    fn sendfile_targets_map_to_paths_of_site() {
        let root_names = vec![b"/srv/www".as_slice().into(), b"/data/www".as_slice().into()];
        let site = Site { root_names, ..Site::default() };
        let check = |send: SendFile<'_>, expected: Option<&str>| {
            let target = target_of(send, &site).map(|target| String::from_utf8(target).expect("ASCII"));
            assert_eq!(target.as_deref(), expected, "{send:?}");
        };
        check(SendFile::Path(b"/a%20b?c=d"), Some("/a%20b?c=d"));
        check(SendFile::Path(b"/a b#c"), Some("/a%20b%23c"));
        check(SendFile::Path(b"@named"), None);
        check(SendFile::Path(b"http://b.example/"), None);
        check(SendFile::File(b"/srv/www/a b%20"), Some("/a%20b%2520"));
        check(SendFile::File(b"/data/www/x"), Some("/x"));
        check(SendFile::File(b"/srv/www2/x"), None);
        check(SendFile::File(b"/srv/www"), None);
        check(SendFile::File(b"/etc/passwd"), None);
        check(SendFile::File(b"x"), None);
    }

    #[test]
    fn local_redirect_becomes_get_request() {
        let head = b"POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nContent-Type: b/c\r\nX-Y:  z \r\n\r\n";
        let shown = |target: &str| instead(head, target.as_bytes()).map(|made| String::from_utf8(made).expect("ASCII"));
        assert_eq!(shown("/d?e").as_deref(), Some("GET /d?e HTTP/1.1\r\nHost: a\r\nX-Y: z\r\n\r\n"));
        let of_head = instead(b"HEAD /a HTTP/1.0\r\n\r\n", b"/d").expect("a path");
        assert_eq!(of_head, b"HEAD /d HTTP/1.0\r\n\r\n");
        // A request of HTTP/2 is kept in this form.
        let of_h2 = instead(b"POST /a HTTP/2.0\r\nhost: a\r\ncontent-length: 5\r\n\r\n", b"/d").expect("a path");
        assert_eq!(of_h2, b"GET /d HTTP/2.0\r\nhost: a\r\n\r\n");
        assert_eq!(instead(b"GET /a HTTP/2.0\r\nhost: a\r\n\r\n", b"/d HTTP/2.0\r\nx: y"), None);
        for bad in ["/d e", "/d\u{7f}", "/#d"] {
            assert_eq!(shown(bad), None, "{bad:?}");
        }
    }

    fn query(request: &Request<'_>) -> Option<Vec<u8>> {
        request.target.query().map(<[u8]>::to_vec)
    }

    fn whole<'a>(request: &'a Request<'a>, bytes: &'a [u8]) -> AppHead<'a> {
        AppHead { request, bytes, requested: b"/x", id: None }
    }

    #[test]
    fn request_becomes_cgi_variables() {
        let head = b"POST /x?a=b HTTP/1.1\r\nHost: h:8080\r\nContent-Length: 7\r\nContent-Type: t/u\r\nProxy: p\r\n\
            Authorization: Basic YTpi\r\n\r\n";
        let limits = request::HeadLimits { request_line: 1000, head: 1000, fields: 10, secure: false };
        let (request, _) = request::parse(head, &limits).expect("good").expect("whole");
        let text = |(name, value): &(Vec<u8>, Vec<u8>)| {
            alloc::format!("{}={}", String::from_utf8_lossy(name), String::from_utf8_lossy(value))
        };
        let check = |user: Option<&[u8]>, own: &[&str]| {
            let expected = vec![
                "HTTP_HOST=h:8080",
                "CONTENT_TYPE=t/u",
                "GATEWAY_INTERFACE=CGI/1.1",
                "SERVER_SOFTWARE=amped",
                "SERVER_PROTOCOL=HTTP/1.1",
                "REQUEST_METHOD=POST",
                "REQUEST_URI=/x?a=b",
                "REQUEST_SCHEME=http",
                "DOCUMENT_URI=/x",
                "REDIRECT_STATUS=200",
                "QUERY_STRING=a=b",
                "SERVER_NAME=h",
                "CONTENT_LENGTH=7",
            ];
            let found =
                variables_of(whole(&request, head), b"/x", request.framing, query(&request), user, Audience::Client);
            let mut found: Vec<String> = found.iter().map(text).collect();
            found.retain(|text| !own.contains(&text.as_str()));
            assert_eq!(found, expected, "{user:?}");
        };
        let own = b"GET /x HTTP/2.0\r\nhost: h\r\ncookie: a=b; c=d\r\n\r\n";
        let of_h2 = request::parse_own(own, &limits).expect("good");
        let found = variables_of(whole(&of_h2, own), b"/x", of_h2.framing, query(&of_h2), None, Audience::Client);
        for expected in ["SERVER_PROTOCOL=HTTP/2.0", "HTTP_HOST=h", "SERVER_NAME=h", "HTTP_COOKIE=a=b; c=d"] {
            assert!(found.iter().map(text).any(|found| found == expected), "{expected}: {found:?}");
        }
        let found = variables_of(
            whole(&request, head),
            b"/index.php",
            request.framing,
            query(&request),
            None,
            Audience::Client,
        );
        assert!(found.iter().any(|(name, value)| (&name[..], &value[..]) == (b"REDIRECT_URL", b"/x")), "{found:?}");
        // The application gets the verified user without the password; without verification it gets the field itself.
        check(None, &["HTTP_AUTHORIZATION=Basic YTpi"]);
        check(Some(b"a"), &["AUTH_TYPE=Basic", "REMOTE_USER=a"]);
    }

    /// RFC 9112, 3.2.2: the target's host counts, and Host is ignored.
    #[test]
    fn absolute_target_sets_host_for_applications() {
        let head = b"GET http://one.example:81/x?y HTTP/1.1\r\nHost: two.example\r\nA: b\r\n\r\n";
        let limits = request::HeadLimits { request_line: 1000, head: 1000, fields: 10, secure: false };
        let (request, _) = request::parse(head, &limits).expect("good").expect("whole");
        let found =
            variables_of(whole(&request, head), b"/x", request.framing, query(&request), None, Audience::Client);
        let values = |wanted: &str| -> Vec<&[u8]> {
            found.iter().filter(|(name, _)| name == wanted.as_bytes()).map(|(_, value)| &**value).collect()
        };
        assert_eq!(values("HTTP_HOST"), [b"one.example:81"]);
        assert_eq!(values("SERVER_NAME"), [b"one.example"]);
        assert_eq!(values("REQUEST_URI"), [b"/x?y"]);
        let instead = instead(head, b"/z").expect("a path");
        assert_eq!(instead, b"GET /z HTTP/1.1\r\nHost: one.example:81\r\nA: b\r\n\r\n");
    }

    /// The head of the request to the only application, for a request with this target.
    fn forwarded(sites: &Sites, target: &str) -> String {
        let head = alloc::format!("GET {target} HTTP/1.1\r\nHost: h\r\n\r\n");
        let head = head.as_bytes();
        let (request, _) = request::parse(head, &request::HeadLimits::unlimited(false)).expect("good").expect("whole");
        let (Target::Origin { path, .. } | Target::Absolute { path, .. }) = request.target else { panic!("{target}") };
        let mut scratch = Vec::new();
        let (requested, _) = uri::clean_path_with_slashes(path, &mut scratch).expect("good");
        let handler = handler_of(sites.of(0), requested, &request).expect("allowed").expect("claimed");
        let head = AppHead { request: &request, bytes: head, requested, id: None };
        let work = handler.work(sites, 0, head, Framing::None, None, Audience::Client);
        assert!(work.variables.is_empty());
        let mut written = Vec::new();
        work.forward.expect("forwarded").write(&mut written, &ClientConnection::default(), "", true);
        String::from_utf8(written).expect("ASCII")
    }

    #[test]
    fn forwarded_target_is_as_sent_unless_ambiguous_or_rewritten() {
        let http = HttpRule::default();
        let apps = vec![AppRule { http: Some(http), ..rule("/") }];
        let route = |pattern: &str, to: &str| Route {
            pattern: Glob::new(pattern),
            when: None,
            action: RouteAction::Rewrite { to: to.into(), query: QueryRule::Keep },
        };
        let routes = vec![route("/old/**", "/new/$1"), route("/q", "/r?s=t")];
        let sites = Sites::new(vec![Site { apps, routes, ..Site::default() }]).expect("one");
        let check = |target: &str, expected: &str| {
            let expected = alloc::format!("GET {expected} HTTP/1.1\r\n");
            let written = forwarded(&sites, target);
            assert!(written.starts_with(&expected), "{target}: {written}");
        };
        check("/a%20b%2Fc/%7e?d=%20&e", "/a%20b%2Fc/%7e?d=%20&e");
        check("/a?", "/a?");
        check("http://h/a/?b", "/a/?b");
        check("/a/../b", "/b");
        check("/a/%2e%2e/b?c", "/b?c");
        check("/a//b/./c%20d", "/a/b/c%20d");
        check("/old/x%20y?z", "/new/x%20y?z");
        check("/q?u", "/r?s=t&u");
    }

    #[test]
    fn forwarded_path_is_that_of_the_backend() {
        let check = |prefix: &str, path: &str, target: &str, expected: &str| {
            let mount = Some(Mount { prefix: prefix.into(), path: path.into() });
            let http = HttpRule { mount, ..HttpRule::default() };
            let apps = vec![AppRule { http: Some(http), ..rule("/") }];
            let sites = Sites::new(vec![Site { apps, ..Site::default() }]).expect("one");
            let written = forwarded(&sites, target);
            assert!(written.starts_with(&alloc::format!("GET {expected} HTTP/1.1\r\n")), "{target}: {written}");
        };
        for (target, expected) in
            [("/a", "/"), ("/a/", "/"), ("/a/b%20c?d", "/b%20c?d"), ("/%61/b", "/b"), ("/x/../a/b", "/b")]
        {
            check("/a", "", target, expected);
        }
        check("/a", "/b/c", "/a/x", "/b/c/x");
        check("/a", "/b/c", "/a", "/b/c");
        check("", "/b", "/x?", "/b/x?");
        check("", "/b", "/", "/b/");
    }

    #[test]
    fn cacheable_request_omits_range_and_conditions() {
        let head = b"GET /x HTTP/1.1\r\nHost: h\r\nRange: a\r\nIf-Range: b\r\nIf-None-Match: c\r\nif-modified-since: d\r\nX: y\r\n\r\n";
        let limits = request::HeadLimits { request_line: 1000, head: 1000, fields: 10, secure: false };
        let (request, _) = request::parse(head, &limits).expect("good").expect("whole");
        let conditions = [("If-None-Match", b"ours".as_slice())];
        for (audience, expected) in [
            (Audience::Client, &["HOST", "RANGE", "IF_RANGE", "IF_NONE_MATCH", "IF_MODIFIED_SINCE", "X"][..]),
            (Audience::Cache(&[]), &["HOST", "X"]),
            (Audience::Cache(&conditions), &["HOST", "X", "IF_NONE_MATCH"]),
        ] {
            let found = variables_of(whole(&request, head), b"/x", request.framing, query(&request), None, audience);
            let names = found.iter().filter_map(|(name, _)| name.strip_prefix(b"HTTP_")).map(String::from_utf8_lossy);
            assert_eq!(names.collect::<Vec<_>>(), expected);
            let tag = found.iter().find(|(name, _)| name == b"HTTP_IF_NONE_MATCH").map(|(_, value)| &**value);
            let expected_tag = expected.last().filter(|name| **name == "IF_NONE_MATCH").map_or(tag, |_| Some(b"ours"));
            assert_eq!(tag, expected_tag);
        }
    }
}
