//! A site: the configuration of a set of host names.
//!
//! Built once from the checked configuration and then shared, read-only, by all loops. It contains no paths of the
//! machine: `server/disk` finds the root of a site by the site's number.

use alloc::boxed::Box;
use alloc::collections::BTreeSet;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::net::IpAddr;
use core::ops::RangeInclusive;
use core::time::Duration;

use amped_http::forwarded::ClientField;
use amped_http::h1::references::{LocationPrefix, Mount};
use amped_http::h1::request::Request;
use amped_http::h1::request_fields::RequestField;
use amped_http::method::Method;
use amped_http::negotiate::Coding;
use amped_http::status::Status;
use amped_units::{Bytes, Form as _};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use smart_default::SmartDefault;

use crate::access::AccessRule;
use crate::auth::{Guard, is_within};
use crate::authorize::AuthorizeRule;
use crate::condition::Condition;
use crate::cors::{CorsOrigin, CorsRule};
use crate::early_hints::EarlyHints;
use crate::forms::Suffix;
use crate::glob::Glob;
use crate::headers::HeaderRule;
use crate::network::Network;
use crate::request_id::RequestIds;
use crate::request_limit::RequestLimit;
use crate::routes::{Fallback, Route, RouteAction, Routed};

/// One site. The default one has any host, plain files, no extras, and no media types but the fallback.
///
/// Serialised are only the rules by which the disk side finds files.
#[derive(Clone, Debug, Serialize, Deserialize, SmartDefault)]
#[serde(default)]
pub struct Site {
    /// Its index in [`Sites`], by which the disk side finds its root.
    #[serde(skip)]
    pub number: u16,
    /// Host names in lower case: exact (`example.org`), with a leading `*.` for any name below, or with `.*` at the end for any
    /// name that begins so.
    #[serde(skip)]
    pub hosts: Vec<Box<str>>,
    /// Index file names of directories, in order of preference.
    #[default(Vec::from(["index.html".into()]))]
    pub index: Vec<Box<str>>,
    /// Whether a directory without an index file is listed; else it gets 403.
    #[serde(skip)]
    pub listing: bool,
    /// Whether names that begin with a dot are served; else they get 404. `/.well-known` is always served.
    pub dotfiles: bool,
    /// Codings of precompressed siblings to look for.
    pub precompressed: Vec<Coding>,
    /// Codings in which files without such a sibling are compressed on the fly.
    #[serde(skip)]
    pub compress: Vec<Coding>,
    /// The directory in a user's home that `/~user/` serves; `None` disables such paths.
    pub user_dir: Option<Box<str>>,
    /// Media types by file name extension.
    #[serde(skip)]
    #[default(Types { overrides: Vec::new(), known: |_| None, fallback: "text/plain".into(), charset: None })]
    pub types: Types,
    /// Application rules; the first match applies.
    #[serde(skip)]
    pub apps: Vec<AppRule>,
    /// Paths that are files although an application rule matches them, in the order of the rules that they precede.
    #[serde(skip)]
    pub static_rules: Vec<StaticRule>,
    /// Whether routes, header rules or applications depend on more of a request than its path. Set by [`Sites::new`].
    #[serde(skip)]
    pub has_conditions: bool,
    /// The request fields on which they depend, for `Vary`. Set by [`Sites::new`].
    #[serde(skip)]
    pub conditional_fields: Box<str>,
    /// Header rules; all matches apply in order, and a later value replaces an earlier one.
    #[serde(skip)]
    pub rules: Vec<HeaderRule>,
    /// Links that clients get before a response is known; all matches apply.
    #[serde(skip)]
    pub early_hints: Vec<EarlyHints>,
    /// Negotiation rules; the last match applies.
    #[serde(skip)]
    pub negotiations: Vec<NegotiationRule>,
    /// Password-protected directories.
    #[serde(skip)]
    pub guards: Vec<Guard>,
    /// Directories that only some addresses may access.
    #[serde(skip)]
    pub access: Vec<AccessRule>,
    /// Directories whose requests an application authorises.
    #[serde(skip)]
    pub authorizations: Vec<AuthorizeRule>,
    /// Limits of requests by client address; the first match applies.
    #[serde(skip)]
    pub limits: Vec<RequestLimit>,
    /// CORS rules; the last match applies.
    #[serde(skip)]
    pub cors: Vec<CorsRule>,
    /// Routes, applied before files and applications are looked up; the first match applies.
    #[serde(skip)]
    pub routes: Vec<Route>,
    /// Fallback files for missing names.
    #[serde(skip)]
    pub fallbacks: Vec<Fallback>,
    /// Requests that the access log omits.
    #[serde(skip)]
    pub unlogged: Vec<Unlogged>,
    /// Error pages by status or class: absolute paths within the site. The first match applies.
    #[serde(skip)]
    pub error_pages: Vec<(RangeInclusive<u16>, Box<str>)>,
    /// The form of entity tags.
    #[serde(skip)]
    pub etag: EtagForm,
    /// Which symbolic links are followed.
    pub symlinks: Symlinks,
    /// Paths that have another root; the first match applies.
    pub aliases: Vec<Alias>,
    /// Whether an object store has some of its content.
    #[serde(skip)]
    pub is_remote: bool,
    /// Absolute names of the root as applications know it, for files that they name in X-Sendfile.
    #[serde(skip)]
    pub root_names: Vec<Box<[u8]>>,
    /// The port of https to which requests without TLS are redirected; `None` serves them.
    pub https_port: Option<u16>,
    /// Who gets the IDs of requests.
    #[serde(skip)]
    pub request_ids: RequestIds,
    /// The value of Strict-Transport-Security on responses over TLS.
    #[serde(skip)]
    pub hsts: Option<Arc<str>>,
}

/// Errors for which a site cannot have a page: of a head or body that could not be parsed, and of conditions and ranges.
pub const BUILT_IN_ERRORS: [u16; 8] = [406, 408, 412, 413, 414, 416, 431, 505];

/// Which symbolic links are followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Symlinks {
    /// Links whose target is below the root
    #[default]
    Within,
    /// Links whose target is below the root and has the same owner
    Owner,
    /// All, including those that lead outside the root
    Any,
    /// None
    None,
}

impl Site {
    /// The guards of a request for this path, all of which must admit it. Of nested directories, the
    /// innermost guard applies; if a route substitutes another path, the guard of its directory applies too,
    /// unless it admits the same clients.
    pub fn guards_of<'s>(&'s self, path: &[u8], request: &Request<'_>) -> impl Iterator<Item = &'s Guard> + use<'s> {
        let of = |path: &[u8]| self.guard_at(path);
        let [first, second] = if self.guards.is_empty() { [None; 2] } else { self.of_both(path, request, of) };
        let second = second.filter(|guard| first.is_none_or(|first| !first.is_like(guard)));
        first.into_iter().chain(second)
    }

    /// The rules by which applications authorise a request for this path, found as [`guards`](Site::guards_of) are, and
    /// their indices; the innermost rule may require no authorization.
    pub fn authorizations_of<'s>(
        &'s self,
        path: &[u8],
        request: &Request<'_>,
    ) -> impl Iterator<Item = (usize, &'s AuthorizeRule)> + use<'s> {
        let of = |path: &[u8]| self.authorization_at(path);
        let [first, second] = if self.authorizations.is_empty() { [None; 2] } else { self.of_both(path, request, of) };
        let second = second.filter(|(index, _)| first.is_none_or(|(first, _)| first != *index));
        first.into_iter().chain(second)
    }

    fn guard_at(&self, path: &[u8]) -> Option<&Guard> {
        let covering = self.guards.iter().filter(|guard| guard.covers(path));
        covering.max_by_key(|guard| guard.directory.len())
    }

    fn authorization_at(&self, path: &[u8]) -> Option<(usize, &AuthorizeRule)> {
        let covering = self.authorizations.iter().enumerate().filter(|(_, rule)| is_within(path, &rule.directory));
        covering.max_by_key(|(_, rule)| rule.directory.len()).filter(|(_, rule)| rule.request.is_some())
    }

    /// Whether an application authorises requests for this path, unless a route rewrites it.
    pub fn needs_authorization(&self, path: &[u8]) -> bool {
        self.authorization_at(path).is_some()
    }

    /// What `of` finds for this path, and for the one that a route substitutes for it.
    fn of_both<T>(&self, path: &[u8], request: &Request<'_>, of: impl Fn(&[u8]) -> Option<T>) -> [Option<T>; 2] {
        let meant = match self.routed(path, request) {
            Some(Routed::Rewrite(meant)) => of(&meant),
            _ => None,
        };
        [of(path), meant]
    }

    /// Whether only some clients get what is at this path, if they request it by its name.
    pub fn is_protected(&self, path: &[u8]) -> bool {
        self.guard_at(path).is_some() || self.needs_authorization(path)
    }

    /// Whether a client with this address may access this path: of nested directories the innermost rule decides. If a
    /// route substitutes another path, the client must be admitted to both. An unknown address is not.
    pub fn admits(&self, path: &[u8], request: &Request<'_>) -> bool {
        let address = request.client.map(|client| client.address);
        let is_admitted = |path: &[u8]| {
            let covering = self.access.iter().filter(|rule| is_within(path, &rule.directory));
            let rule = covering.max_by_key(|rule| rule.directory.len());
            rule.is_none_or(|rule| address.is_some_and(|address| rule.admits(address)))
        };
        self.access.is_empty()
            || is_admitted(path)
                && match self.routed(path, request) {
                    Some(Routed::Rewrite(meant)) => is_admitted(&meant),
                    _ => true,
                }
    }

    /// The limit of requests for this path, or for the one that a route substitutes for it.
    pub fn limit(&self, path: &[u8], request: &Request<'_>) -> Option<&RequestLimit> {
        let of = |path: &[u8]| self.limits.iter().find(|limit| limit.covers(path, request));
        if self.limits.is_empty() {
            return None;
        }
        of(path).or_else(|| match self.routed(path, request) {
            Some(Routed::Rewrite(meant)) => of(&meant),
            _ => None,
        })
    }

    /// The CORS rule for this path.
    pub fn cors(&self, path: &[u8]) -> Option<&CorsRule> {
        self.cors.iter().rev().find(|rule| rule.pattern.matches(path))
    }

    /// That rule, if the request is a CORS preflight (Fetch, 3.2.2), which the rule answers.
    pub fn preflight(&self, path: &[u8], request: &Request<'_>) -> Option<&CorsRule> {
        let is_one = request.method == Some(Method::Options) && request.origin.is_some() && request.is_preflight;
        is_one.then(|| self.cors(path))?
    }

    /// The origin of the request in that rule.
    pub fn cors_origin(&self, path: &[u8], request: &Request<'_>) -> CorsOrigin {
        match request.origin {
            Some(_) => self.cors(path).map(|rule| rule.cors_origin(request)).unwrap_or_default(),
            None => CorsOrigin::default(),
        }
    }

    /// The result of the first matching route for this path.
    pub fn routed(&self, path: &[u8], request: &Request<'_>) -> Option<Routed> {
        self.routes.iter().find_map(|route| route.apply(path, request))
    }

    /// The query for an application at this path: the client's, unless a rewrite changes it.
    pub fn query(&self, path: &[u8], request: &Request<'_>) -> Option<Vec<u8>> {
        let sent = request.target.query();
        match self.routes.iter().find(|route| route.applies(path, request)) {
            Some(route) => route.query(path, sent),
            None => sent.map(<[u8]>::to_vec),
        }
    }

    /// The status with which a route denies this name, if any, however it was reached.
    pub fn denied(&self, name: &[u8], request: &Request<'_>) -> Option<Status> {
        match self.routes.iter().find(|route| route.applies(name, request))?.action {
            RouteAction::Deny(status) => Some(status),
            _ => None,
        }
    }

    /// Whether any route denies names.
    pub fn has_denials(&self) -> bool {
        self.routes.iter().any(|route| matches!(route.action, RouteAction::Deny(_)))
    }

    /// Where a clean path is: the number of the root, and the path below it. That is `None` for the directory of an alias
    /// without its slash.
    pub fn place<'p>(&self, path: &'p [u8]) -> (u16, Option<&'p [u8]>) {
        let whole = path.strip_prefix(b"/").unwrap_or(path);
        for Alias { pattern, root, keep_prefix } in &self.aliases {
            if pattern.matches(path) {
                let below = path.get(pattern.fixed_directory()..).unwrap_or_default();
                return (*root, Some(if *keep_prefix { whole } else { below }));
            }
            if pattern.as_str().as_bytes().strip_suffix(b"/**") == Some(path) {
                return (*root, None);
            }
        }
        (self.number, Some(whole))
    }

    /// Whether the access log omits this request, which got a response with this status.
    pub fn is_unlogged(&self, path: &[u8], request: &Request<'_>, status: Status) -> bool {
        let is_one = |Unlogged { pattern, when, errors }: &Unlogged| {
            (*errors || status.0 < 400) && pattern.matches(path) && when.as_ref().is_none_or(|when| when.holds(request))
        };
        self.unlogged.iter().any(is_one)
    }

    /// The error page for this status.
    pub fn error_page(&self, status: Status) -> Option<&str> {
        let mut pages = self.error_pages.iter().filter(|_| !BUILT_IN_ERRORS.contains(&status.0));
        pages.find(|(statuses, _)| statuses.contains(&status.0)).map(|(_, page)| &**page)
    }

    /// Whether the head of a file with this name depends on more of a request than the head cache knows.
    pub fn has_conditional_head(&self, name: &[u8]) -> bool {
        let is_rule = |rule: &HeaderRule| rule.when.is_some() && rule.pattern.matches(name);
        self.has_conditions && self.rules.iter().any(is_rule)
    }

    /// Notes whether its rules have conditions.
    fn note_conditions(&mut self) {
        let of_routes = self.routes.iter().map(|route| &route.when);
        let of_apps = self.apps.iter().map(|app| &app.when).chain(self.static_rules.iter().map(|rule| &rule.when));
        let of_others = self.rules.iter().map(|rule| &rule.when).chain(of_apps);
        let conditions: Vec<&Condition> = of_routes.chain(of_others).filter_map(Option::as_deref).collect();
        let mut names = BTreeSet::new();
        conditions.iter().for_each(|condition| condition.add_fields(&mut names));
        let fields = names.into_iter().collect::<Vec<_>>().join(", ").into();
        (self.has_conditions, self.conditional_fields) = (!conditions.is_empty(), fields);
    }

    /// The fallback file for a missing name: that of the innermost directory.
    pub fn fallback(&self, path: &[u8]) -> Option<&str> {
        let inside = self.fallbacks.iter().filter(|fallback| path.starts_with(fallback.directory.as_bytes()));
        inside.max_by_key(|fallback| fallback.directory.len()).map(|fallback| &*fallback.file)
    }

    /// The rule for variants of a name that does not exist.
    pub fn negotiation(&self, path: &[u8]) -> Option<&NegotiationRule> {
        self.negotiations.iter().rev().find(|rule| rule.pattern.matches(path))
    }
}

/// Paths whose files are in another directory than the site's root.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Alias {
    /// The paths.
    pub pattern: Glob,
    /// The number of that directory among the roots.
    pub root: u16,
    /// Whether the whole path is looked up below it, with the directories with which the pattern begins.
    pub keep_prefix: bool,
}

/// Requests that the access log omits, by pattern
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, expecting = "a table")]
pub struct Unlogged {
    /// Requested paths that the table applies to; `**` for the whole site
    #[serde(rename = "match")]
    #[schemars(example = "/health")]
    pub pattern: Glob,
    /// Requests that the table applies to; see "Conditions" above
    #[serde(default)]
    #[schemars(extend("examples" = [{ "header": { "User-Agent": "probe/*" } }]))]
    pub when: Option<Box<Condition>>,
    /// Omit errors too; otherwise statuses below 400 only
    #[serde(default)]
    pub errors: bool,
}

/// Content negotiation by pattern: files that exist in several languages, charsets or types
///
/// The last table whose `match` matches applies.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, expecting = "a table")]
pub struct NegotiationRule {
    /// Requested paths that the rule applies to, where no file has that name
    #[serde(rename = "match")]
    #[schemars(example = "/docs/**")]
    pub pattern: Glob,
    /// Suffixes that are languages, in order of preference
    #[serde(default, deserialize_with = "Suffix::list")]
    #[schemars(extend("examples" = [["en", "de", "pt-BR"]]))]
    pub languages: Vec<Box<str>>,
    /// Suffixes that are charsets, in order of preference
    #[serde(default, deserialize_with = "Suffix::list")]
    #[schemars(extend("examples" = [["utf-8", "iso-8859-1"]]))]
    pub charsets: Vec<Box<str>>,
    /// Response if several variants are equally acceptable
    #[serde(default)]
    pub ambiguous: Ambiguous,
    /// Response if the client accepts no variant
    #[serde(default)]
    pub unacceptable: Unacceptable,
}

/// The response where several variants are equally good.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Ambiguous {
    /// The first of them
    #[default]
    #[serde(rename = "first")]
    First,
    /// 300 with a list of all variants
    #[serde(rename = "300")]
    List,
}

/// The response where no variant is acceptable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Unacceptable {
    /// The nearest one
    #[default]
    #[serde(rename = "first")]
    First,
    /// 406 with a list of all variants
    #[serde(rename = "406")]
    Refuse,
}

/// Paths that are files of the site, whatever later application rules match.
#[derive(Clone, Debug, PartialEq)]
pub struct StaticRule {
    /// The paths; those below a path that matches are not among them.
    pub pattern: Glob,
    /// The requests; `None`: all.
    pub when: Option<Box<Condition>>,
    /// The number of the first application rule that it precedes.
    pub before: u16,
}

/// Paths that are served by an application.
#[derive(Clone, Debug, PartialEq)]
pub struct AppRule {
    /// The paths of its scripts: `/cgi-bin/**`, `*.php`, or `/app`.
    /// The rest of a path after a script is passed as PATH_INFO.
    pub pattern: Glob,
    /// The requests; `None`: all.
    pub when: Option<Box<Condition>>,
    /// Timeout without progress while the application must act; then 504, or a closed connection.
    pub timeout: Duration,
    /// Maximum request body; beyond it 413.
    pub max_body_bytes: Bytes,
    /// Maximum response, including its head; a longer one is cut off. `None`: no limit.
    pub max_response_bytes: Option<Bytes>,
    /// Cache its responses where allowed ([`crate::pages`]).
    pub cache: Option<CacheRule>,
    /// Codings in which its responses are compressed.
    pub compress: Vec<Coding>,
    /// It is a server behind this one that speaks HTTP; `None`: it speaks CGI or FastCGI.
    pub http: Option<HttpRule>,
}

impl AppRule {
    /// Whether it makes credentials of other fields of a request.
    pub fn makes_credentials(&self) -> bool {
        self.http.as_ref().is_some_and(HttpRule::makes_credentials)
    }
}

/// How responses are cached, as far as they do not say it themselves.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CacheRule {
    /// The lifetime of those whose status is cacheable by default.
    pub lifetime: Duration,
    /// Other lifetimes, by status; the first one that has a status applies.
    pub by_status: Option<Arc<[StatusLifetime]>>,
    /// For how long after it they are used while they are revalidated (RFC 5861, 3).
    pub stale_while_revalidate: Duration,
    /// For how long after it they are used in place of an error (RFC 5861, 4).
    pub stale_if_error: Duration,
}

/// Statuses that are never cached: they depend on Range or preconditions of the request, or on its client (RFC 6585).
pub const NEVER_CACHED: [u16; 8] = [206, 304, 412, 416, 428, 429, 431, 511];

/// Statuses that a class does not include: a client could have such a page sent to all others by what it sends besides the target.
const NOT_OF_CLASSES: [u16; 6] = [400, 408, 413, 417, 421, 425];

/// The lifetime of responses with one of these statuses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StatusLifetime {
    /// The statuses.
    pub statuses: RangeInclusive<u16>,
    /// The lifetime; zero: they are not stored.
    pub lifetime: Duration,
}

impl CacheRule {
    /// Returns the lifetime that is configured for a status, if there is one and it may be cached.
    pub(crate) fn lifetime_of(&self, Status(status): Status) -> Option<Duration> {
        let is_class = |own: &StatusLifetime| own.statuses.start() != own.statuses.end();
        let is_it = |own: &&StatusLifetime| {
            own.statuses.contains(&status) && !(is_class(own) && NOT_OF_CLASSES.contains(&status))
        };
        let own = self.by_status.as_ref()?.iter().find(is_it)?;
        (!NEVER_CACHED.contains(&status)).then_some(own.lifetime)
    }
}

/// How requests are forwarded by HTTP.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HttpRule {
    /// The Host of forwarded requests; `None`: that of the client.
    pub host: Option<Box<str>>,
    /// The path of forwarded requests; `None`: that of the client.
    pub mount: Option<Mount>,
    /// Fields of forwarded requests, in place of the client's.
    pub request_fields: Vec<RequestField>,
    /// Prefixes of Location, and their replacements; empty: as `host` and `mount` require.
    pub map_location: Vec<LocationPrefix>,
    /// Timeout without progress after the head of the response.
    pub idle_timeout: Duration,
    /// Timeout without data in either direction of an upgraded connection (WebSocket).
    pub tunnel_timeout: Duration,
}

impl HttpRule {
    /// Whether the operator sets this field to a value that differs from request to request.
    pub fn varies(&self, name: &str) -> bool {
        self.request_fields.iter().any(|field| field.is_variable() && field.name().eq_ignore_ascii_case(name))
    }

    /// Whether it makes credentials of other fields, so that the response may be for one client.
    pub fn makes_credentials(&self) -> bool {
        ["authorization", "cookie"].iter().any(|name| self.varies(name))
    }
}

/// The components of an entity tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum EtagForm {
    /// Size, modification and change time to the nanosecond, and inode: changes even if the old times are restored
    #[default]
    Full,
    /// Size and modification time: the same on all hosts behind a load balancer
    Portable,
}

/// Media types by file name extension.
#[derive(Clone)]
pub struct Types {
    /// Configured types, by extension in lower case without the dot. They take precedence.
    pub overrides: Vec<(Box<str>, Box<str>)>,
    /// The built-in table, passed in to keep its crate out of this one.
    pub known: fn(&str) -> Option<&'static str>,
    /// The type of all other files.
    pub fallback: Box<str>,
    /// Added to `text/*` types without a charset; `None` adds nothing.
    pub charset: Option<Box<str>>,
}

impl Types {
    /// The Content-Type of a file with this name.
    pub fn of(&self, name: &[u8]) -> String {
        let last = name.rsplit(|&b| b == b'/').next().unwrap_or(name);
        let ending = last.iter().rposition(|&b| b == b'.').map(|dot| &last[dot + 1..]);
        let ending = ending.and_then(|e| core::str::from_utf8(e).ok()).unwrap_or("").to_ascii_lowercase();
        self.with_charset(self.by_ending(&ending).unwrap_or(&self.fallback), None)
    }

    /// The media type of an extension, in lower case.
    pub fn by_ending(&self, ending: &str) -> Option<&str> {
        let overridden = self.overrides.iter().find(|(name, _)| **name == *ending).map(|(_, kind)| &**kind);
        overridden.or_else(|| (self.known)(ending))
    }

    /// Adds a charset to a media type: the given one, else the default for text types without one.
    pub fn with_charset(&self, kind: &str, charset: Option<&str>) -> String {
        let charset = charset.or_else(|| self.charset.as_deref().filter(|_| kind.starts_with("text/")));
        match charset {
            Some(charset) if !kind.contains(';') => [kind, "; charset=", charset].concat(),
            _ => String::from(kind),
        }
    }
}

impl core::fmt::Debug for Types {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Types")
            .field("overrides", &self.overrides)
            .field("charset", &self.charset)
            .finish_non_exhaustive()
    }
}

/// Proxies in front of the server that name the client of each request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrustedProxies {
    /// Their addresses.
    pub networks: Vec<Network>,
    /// The field in which they name the client.
    pub field: ClientField,
}

impl TrustedProxies {
    /// Whether a proxy with this address is trusted.
    pub fn are_trusted(&self, address: IpAddr) -> bool {
        self.networks.iter().any(|network| network.contains(address))
    }
}

/// All sites of a server; the first is the default.
#[derive(Clone, Debug)]
pub struct Sites {
    /// Never empty.
    sites: Vec<Site>,
    /// Whether any of them has applications.
    have_apps: bool,
    /// Whether any of them has password-protected directories.
    have_guards: bool,
    have_exemptions: bool,
    /// Whether any of them has directories that only some addresses may access.
    have_access_rules: bool,
    /// Whether any of them has directories whose requests an application authorises.
    have_authorizations: bool,
    /// Whether any of them limits requests.
    have_limits: bool,
    /// Whether any of them limits requests by user.
    have_limits_by_user: bool,
    /// The proxies that name clients; `None`: the client is the peer of its connection.
    proxies: Option<TrustedProxies>,
}

impl Sites {
    /// Numbers the sites in order. `None` if there are none.
    pub fn new(mut sites: Vec<Site>) -> Option<Sites> {
        for (number, site) in sites.iter_mut().enumerate() {
            site.number = u16::try_from(number).ok()?;
            site.note_conditions();
        }
        // More than 65,536 would share buckets.
        let limits = sites.iter_mut().flat_map(|site| &mut site.limits);
        limits.zip(0_usize..).for_each(|(limit, number)| limit.number = number as u16);
        let have_apps = sites.iter().any(|site| !site.apps.is_empty());
        let have_guards = sites.iter().any(|site| !site.guards.is_empty());
        let have_exemptions = sites.iter().flat_map(|site| &site.guards).any(|guard| !guard.exempt.is_empty());
        let have_access_rules = sites.iter().any(|site| !site.access.is_empty());
        let have_authorizations = sites.iter().any(|site| !site.authorizations.is_empty());
        let have_limits = sites.iter().any(|site| !site.limits.is_empty());
        let have_limits_by_user = sites.iter().flat_map(|site| &site.limits).any(RequestLimit::is_by_user);
        (!sites.is_empty()).then_some(Sites {
            sites,
            have_apps,
            have_guards,
            have_exemptions,
            have_access_rules,
            have_authorizations,
            have_limits,
            have_limits_by_user,
            proxies: None,
        })
    }

    /// Trusts these proxies.
    #[must_use]
    pub fn behind(self, proxies: Option<TrustedProxies>) -> Sites {
        Sites { proxies, ..self }
    }

    /// The proxies that name clients, if any.
    pub fn proxies(&self) -> Option<&TrustedProxies> {
        self.proxies.as_ref()
    }

    /// Whether the client of a request must be known before it is answered.
    pub fn need_clients(&self) -> bool {
        self.have_access_rules || self.have_limits || self.have_exemptions || self.proxies.is_some()
    }

    /// Whether any of them has directories that only some addresses may access.
    pub fn have_access_rules(&self) -> bool {
        self.have_access_rules
    }

    /// Whether any of them has directories whose requests an application authorises.
    pub fn have_authorizations(&self) -> bool {
        self.have_authorizations
    }

    /// Whether the subjects of client certificates must be known before a request is answered.
    pub fn need_subjects(&self) -> bool {
        self.have_limits_by_user
    }

    /// Whether any of them limits requests.
    pub fn have_limits(&self) -> bool {
        self.have_limits
    }

    /// The limits of requests of all sites, in the order of their numbers.
    pub fn limits(&self) -> impl Iterator<Item = &RequestLimit> {
        self.sites.iter().flat_map(|site| &site.limits)
    }

    /// Whether any of them has password-protected directories.
    pub fn have_guards(&self) -> bool {
        self.have_guards
    }

    /// Whether any of them has applications.
    pub fn have_apps(&self) -> bool {
        self.have_apps
    }

    /// The default site.
    pub fn first(&self) -> &Site {
        &self.sites[0]
    }

    /// The site with this number.
    pub fn get(&self, number: u16) -> Option<&Site> {
        self.sites.get(usize::from(number))
    }

    /// The site with this number, which must exist.
    pub fn of(&self, number: u16) -> &Site {
        self.get(number).unwrap_or(self.first())
    }

    /// The site for `host` (any case, no port): an exact name, else the longest matching pattern with `*` at the beginning,
    /// else the longest with `*` at the end, else the first site.
    pub fn for_host(&self, host: &[u8]) -> &Site {
        if self.sites.len() > 1 {
            let exact = |site: &&Site| site.hosts.iter().any(|name| name.as_bytes().eq_ignore_ascii_case(host));
            if let Some(site) = self.sites.iter().find(exact) {
                return site;
            }
            let below = |name: &str| match name.strip_prefix('*') {
                Some(tail) if host.len() > tail.len() => {
                    host[host.len() - tail.len()..].eq_ignore_ascii_case(tail.as_bytes())
                }
                _ => false,
            };
            let begins = |name: &str| match name.strip_suffix('*') {
                Some(start) => host.len() > start.len() && host[..start.len()].eq_ignore_ascii_case(start.as_bytes()),
                None => false,
            };
            let patterns = || self.sites.iter().flat_map(|site| site.hosts.iter().map(move |name| (name, site)));
            let longest = |matches: &dyn Fn(&str) -> bool| {
                patterns().filter(|(name, _)| matches(name)).max_by_key(|(name, _)| name.len()).map(|(_, site)| site)
            };
            if let Some(site) = longest(&below).or_else(|| longest(&begins)) {
                return site;
            }
        }
        &self.sites[0]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn site(hosts: &[&str]) -> Site {
        Site { hosts: hosts.iter().map(|&host| host.into()).collect(), ..Site::default() }
    }

    fn types(charset: Option<&str>) -> Types {
        Types {
            overrides: [("log", "text/x-log"), ("html", "text/html; charset=latin1")]
                .map(|(ending, kind)| (ending.into(), kind.into()))
                .into(),
            known: |ending| match ending {
                "html" => Some("text/html"),
                "txt" => Some("text/plain"),
                "png" => Some("image/png"),
                _ => None,
            },
            fallback: "application/octet-stream".into(),
            charset: charset.map(Into::into),
        }
    }

    #[test]
    fn host_selects_site() {
        let sites = [&["first.example"][..], &["b.example", "*.b.example"], &["*.deep.b.example"], &["*"]];
        let sites = Sites::new(sites.iter().map(|hosts| site(hosts)).collect()).expect("some");
        let check = |host: &str, expected| assert_eq!(sites.for_host(host.as_bytes()).number, expected, "{host:?}");
        check("first.example", 0);
        check("FIRST.Example", 0);
        check("b.example", 1);
        check("x.b.example", 1);
        check("x.y.b.example", 1);
        check("X.B.EXAMPLE", 1);
        check("deep.b.example", 1);
        check("x.deep.b.example", 2);
        check("xb.example", 3);
        check("[::1]", 3);
        // The catch-all requires a name, and a pattern requires something in place of its star.
        check("", 0);
        check(".b.example", 3);
    }

    #[test]
    fn pattern_with_star_at_its_end_is_the_last_choice() {
        let sites = [&["first.example"][..], &["wiki.*"], &["wiki.b.*"], &["*.b.example"], &["wiki.c.example"]];
        let sites = Sites::new(sites.iter().map(|hosts| site(hosts)).collect()).expect("some");
        let check = |host: &str, expected| assert_eq!(sites.for_host(host.as_bytes()).number, expected, "{host:?}");
        check("wiki.example", 1);
        check("WIKI.x.y", 1);
        check("wiki.b.x", 2);
        check("wiki.b.example", 3);
        check("wiki.c.example", 4);
        check("wiki.", 0);
        check("wikis.example", 0);
        check("x.wiki.example", 0);
    }

    #[test]
    fn alias_maps_path_to_other_root() {
        let alias = |pattern: &str, root, keep_prefix| Alias { pattern: Glob::new(pattern), root, keep_prefix };
        let aliases = [
            alias("/static/**", 1, false),
            alias("/media/*.png", 2, false),
            alias("/kept/**", 3, true),
            alias("/static/deep/**", 4, false),
            alias("*.ico", 5, false),
        ];
        let site = Site { aliases: aliases.into(), ..Site::default() };
        let check = |path: &str, expected: (u16, Option<&str>)| {
            assert_eq!(site.place(path.as_bytes()), (expected.0, expected.1.map(str::as_bytes)), "{path}");
        };
        check("/", (0, Some("")));
        check("/a/b", (0, Some("a/b")));
        check("/static/a/b.css", (1, Some("a/b.css")));
        check("/static/", (1, Some("")));
        check("/static", (1, None));
        // The first match applies, and only to whole names of directories.
        check("/static/deep/a", (1, Some("deep/a")));
        check("/statically/a", (0, Some("statically/a")));
        check("/media/a.png", (2, Some("a.png")));
        check("/media/a/b.png", (0, Some("media/a/b.png")));
        check("/media", (0, Some("media")));
        check("/kept/a", (3, Some("kept/a")));
        check("/x/favicon.ico", (5, Some("x/favicon.ico")));
    }

    #[test]
    fn single_site_serves_every_host() {
        let sites = Sites::new(alloc::vec![site(&["a.example"])]).expect("some");
        assert_eq!(sites.for_host(b"b.example").number, 0);
        assert!(Sites::new(Vec::new()).is_none());
    }

    #[test]
    fn extension_determines_media_type() {
        let check = |name: &str, expected: &str| {
            assert_eq!(types(Some("utf-8")).of(name.as_bytes()), expected, "{name}");
        };
        check("/a.txt", "text/plain; charset=utf-8");
        check("/a.TXT", "text/plain; charset=utf-8");
        check("/a.png", "image/png");
        check("/a.tar.txt", "text/plain; charset=utf-8");
        check("/a.log", "text/x-log; charset=utf-8");
        check("/a.html", "text/html; charset=latin1");
        check("/a", "application/octet-stream");
        check("/a.", "application/octet-stream");
        check("/a.txt/b", "application/octet-stream");
        check("/a.nobody-knows", "application/octet-stream");
        assert_eq!(types(None).of(b"/a.txt"), "text/plain");
        assert_eq!(types(None).of(b"/a.\xff"), "application/octet-stream");
    }
}
