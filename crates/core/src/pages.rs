//! Cached responses of applications: which responses are cacheable, for which requests, and for how long.
//!
//! With `AppRule::cache`, this server is a shared cache (RFC 9111) in front of its own applications. Before it, `app`
//! has found the application of a request; `exchange/app_request` uses this module to find a cached page for it, and to
//! decide which parts of a response may be cached. The pages are in the cache of contents (`cache/page`).
//!
//! A page that is not fresh any more is revalidated by its ETag and Last-Modified. Meanwhile, and if that fails, it is still sent,
//! for a time that the application or the rule permits (RFC 5861).
//!
//! It stores less than RFC 9111 allows in one case: if the application gives no lifetime and the rule's own applies,
//! requests with cookies bypass the cache. And it ignores cache directives of requests (5.2.1: "advisory"), because a
//! client could otherwise force the application to run.

use alloc::boxed::Box;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::time::Duration;

use amped_http::caching;
use amped_http::cgi::ScriptHead;
use amped_http::h1::request::{self, Framing, Request};
use amped_http::method::Method;
use amped_http::negotiate::Coding;
use amped_http::status::Status;
use amped_http::text;
use amped_units::Time;

use crate::app::HandlerMatch;
use crate::cache::page::{AppPage, PageName};
use crate::reply::WallClock;
use crate::request_id;
use crate::site::CacheRule;

/// The cached page that a request may use, and its restrictions.
#[derive(Clone, Debug)]
pub(crate) struct Wanted {
    /// The name of the page, before any `Vary`.
    pub(crate) name: PageName,
    /// The request has Authorization (RFC 9111, 3.5), or only some clients may have the response.
    is_authorized: bool,
    /// The request has cookies.
    has_cookies: bool,
}

impl Wanted {
    /// Whether the request may be answered with this page.
    pub(crate) fn may_have(&self, page: &AppPage) -> bool {
        (!self.is_authorized || page.for_all) && (!self.has_cookies || page.with_cookies)
    }

    /// Whether the response cannot depend on the client, so that other requests may wait for it.
    pub(crate) fn is_shareable(&self) -> bool {
        !self.is_authorized && !self.has_cookies
    }
}

/// The cached page that may answer a request, or that its response may become. `None` if the request has preconditions
/// on the state of the resource (RFC 9110, 13.1.1 and 13.1.4), which only the application can evaluate; or if its
/// Connection field has fields removed on the way to the application: their values would choose a page that was made
/// without them. `is_restricted`: a password or an application had to admit its client, which counts as Authorization.
pub(crate) fn wanted(
    (generation, is_restricted): (u32, bool),
    handler: &HandlerMatch,
    coding: Coding,
    (request, head): (&Request<'_>, &[u8]),
    framing: Framing,
) -> Option<Wanted> {
    let is_safe = matches!(request.method, Some(Method::Get | Method::Head)) && framing == Framing::None;
    if !is_safe || request.if_match.is_present() || request.if_unmodified_since.is_some() {
        return None;
    }
    let mut has_cookies = false;
    for (name, value) in request::fields(head) {
        has_cookies |= name.eq_ignore_ascii_case(b"cookie");
        if name.eq_ignore_ascii_case(b"connection") && names_other_fields(value) {
            return None;
        }
    }
    let name = name_of(generation, handler, coding, request, head)?;
    Some(Wanted { name, is_authorized: request.authorization.is_some() || is_restricted, has_cookies })
}

/// Whether a Connection field names fields that a backend gets from other clients (RFC 9110, 7.6.1).
fn names_other_fields(value: &[u8]) -> bool {
    let is_usual = |option: &[u8]| USUAL_OPTIONS.iter().any(|known| option.eq_ignore_ascii_case(known.as_bytes()));
    text::list(value).any(|option| !is_usual(option))
}

/// Connection options that are not fields, or are fields that are never forwarded.
const USUAL_OPTIONS: [&str; 5] = ["close", "keep-alive", "upgrade", "te", "http2-settings"];

/// The cache key of a request: scheme, host with port, and target, as sent, since the application sees both. `None` without a
/// Host: the application would then see the local address, which this crate does not know. `coding`: that in which this client
/// gets a response that can be compressed.
pub(crate) fn name_of(
    generation: u32,
    handler: &HandlerMatch,
    coding: Coding,
    request: &Request<'_>,
    head: &[u8],
) -> Option<PageName> {
    let (_, host) = request::fields(head).find(|(name, _)| name.eq_ignore_ascii_case(b"host"))?;
    // Neither part contains a line end.
    let scheme: &[u8] = if request.secure { b"https\n" } else { b"http\n" };
    let coding = if coding == Coding::Identity { "" } else { coding.token() };
    let key = [coding.as_bytes(), scheme, &host.to_ascii_lowercase(), b"\n", request.target_text].concat();
    Some(PageName::App { generation, site: handler.site, rule: handler.rule, key: key.into() })
}

/// Statuses that may be cached for the rule's own time (RFC 9110, 15.1: "heuristically cacheable"; without 206, 405,
/// 414 and 501, which depend on more of the request than its target).
const KEPT: [Status; 8] = [
    Status::OK,
    Status(203),
    Status::NO_CONTENT,
    Status::MULTIPLE_CHOICES,
    Status::MOVED_PERMANENTLY,
    Status::PERMANENT_REDIRECT,
    Status::NOT_FOUND,
    Status(410),
];

/// Statuses that may be cached only for a time that the application gives.
const KEPT_IF_SAID: [Status; 3] = [Status::FOUND, Status::SEE_OTHER, Status::TEMPORARY_REDIRECT];

/// Maximum fields in the `Vary` of a cached page.
pub(crate) const VARY_MAX: usize = 8;

/// The page that this response head begins, still without its body, and the request fields on which it depends; `None`
/// if it is not cacheable. `sent`: the head that clients get.
pub(crate) fn page_of(
    (script_head, sent): (&ScriptHead<'_>, &ScriptHead<'_>),
    status: Status,
    wanted: &Wanted,
    rule: &CacheRule,
    (now, wall): (Time, &WallClock),
) -> Option<(AppPage, Vec<String>)> {
    let fields = || script_head.fields.iter().copied();
    let said = caching::read(fields(), wall.seconds);
    let caching::Said { forbids, for_all, lifetime, stale_while_revalidate, stale_if_error, age, vary } = said;
    let configured = rule.lifetime_of(status);
    let is_kept =
        configured.is_some() || KEPT.contains(&status) || (lifetime.is_some() && KEPT_IF_SAID.contains(&status));
    // A cookie is meant for one client. RFC 9111, 7.3 leaves it
    // to the application to say so; not every application does.
    let sets_cookies = fields().any(|(name, _)| name.eq_ignore_ascii_case("set-cookie"));
    let vary = vary.filter(|vary| vary.len() <= VARY_MAX && !vary.iter().any(|name| is_of_server(name)))?;
    let with_cookies = for_all || lifetime.is_some() || vary.iter().any(|field| field == "cookie");
    let page = AppPage {
        status,
        fields: sent
            .fields
            .iter()
            .filter(|(name, _)| !name.eq_ignore_ascii_case("age"))
            .map(|&(name, value)| (Box::from(name), Box::from(value)))
            .collect(),
        body: Arc::default(),
        date: wall.date,
        came: now,
        age: Duration::from_secs(age),
        lifetime: lifetime.map_or(configured.unwrap_or(rule.lifetime), Duration::from_secs),
        stale_while_revalidate: stale_while_revalidate.map_or(rule.stale_while_revalidate, Duration::from_secs),
        stale_if_error: stale_if_error.map_or(rule.stale_if_error, Duration::from_secs),
        for_all,
        with_cookies,
    };
    let is_kept = is_kept && !forbids && !sets_cookies && page.is_fresh(now) && wanted.may_have(&page);
    is_kept.then_some((page, vary))
}

/// Whether the server sets this request field, whose name is in lower case, to a value that is not part of the cache
/// key. Besides scheme and host, the key contains only fields as the client sent them, so it would not distinguish
/// responses that vary by this field.
fn is_of_server(name: &str) -> bool {
    let is_in_name = matches!(name, "x-forwarded-proto" | "x-forwarded-host");
    name.starts_with("x-forwarded-") && !is_in_name
        || matches!(name, "forwarded" | "x-real-ip")
        || name.eq_ignore_ascii_case(request_id::FIELD)
}

/// The page after the application has confirmed it, with the fields of this 304 (RFC 9111, 3.2 and 4.3.4), and whether it is
/// still cacheable.
pub(crate) fn renewed(
    page: &AppPage,
    script_head: &ScriptHead<'_>,
    wanted: &Wanted,
    rule: &CacheRule,
    times: (Time, &WallClock),
) -> (AppPage, bool) {
    let is_of_body = |name: &str| OF_BODY.iter().any(|known| name.eq_ignore_ascii_case(known));
    let said = || script_head.fields.iter().copied().filter(|(name, _)| !is_of_body(name));
    let kept = page.fields.iter().map(|(name, value)| (&**name, &**value));
    let kept = kept.filter(|(name, _)| !said().any(|(said, _)| name.eq_ignore_ascii_case(said)));
    let fields: Vec<_> = kept.chain(said()).collect();
    let merged = ScriptHead { fields, ..ScriptHead::default() };
    match page_of((&merged, &merged), page.status, wanted, rule, times) {
        Some((renewed, _)) => (AppPage { body: Arc::clone(&page.body), ..renewed }, true),
        // The response to this request.
        None => {
            let fields = merged.fields.iter().map(|&(name, value)| (Box::from(name), Box::from(value))).collect();
            (AppPage { fields, came: times.0, age: Duration::ZERO, date: times.1.date, ..page.clone() }, false)
        }
    }
}

/// Fields that a 304 does not change: those of the body that is cached, in its coding; and the tag, by which it was found.
const OF_BODY: [&str; 6] = ["Content-Encoding", "Content-Type", "Content-Range", "Content-Length", "ETag", "Vary"];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::app;
    use crate::glob::Glob;
    use crate::site::{AppRule, Site, StatusLifetime};
    use amped_http::cgi;
    use amped_http::h1::request::HeadLimits;
    use amped_units::Bytes;

    /// The result for a request with these field lines.
    fn wants(lines: &str) -> Option<Wanted> {
        let rule = AppRule {
            pattern: Glob::new("/"),
            when: None,
            timeout: Duration::ZERO,
            max_body_bytes: Bytes(0),
            max_response_bytes: None,
            cache: Some(CacheRule::default()),
            compress: Vec::new(),
            http: None,
        };
        let site = Site { apps: Vec::from([rule]), ..Site::default() };
        let head = lines.replace('\n', "\r\n") + "\r\n\r\n";
        let limits = HeadLimits { request_line: 1000, head: 1000, fields: 10, secure: false };
        let (request, _) = request::parse(head.as_bytes(), &limits).expect("good").expect("whole");
        let handler = app::handler_of(&site, b"/a", &request).expect("allowed").expect("claimed");
        wanted((0, false), &handler, Coding::Identity, (&request, head.as_bytes()), request.framing)
    }

    #[test]
    fn cached_page_answers_only_eligible_requests() {
        let check = |lines: &str, expected: bool| assert_eq!(wants(lines).is_some(), expected, "{lines}");
        check("GET /a HTTP/1.1\nHost: h", true);
        check("HEAD /a?b HTTP/1.1\nHost: h", true);
        check("GET /a HTTP/1.1\nHost: h\nIf-None-Match: \"x\"\nRange: bytes=0-1", true);
        check("GET /a HTTP/1.1\nHost: h\nConnection: close, TE,Keep-Alive\nConnection: Upgrade , HTTP2-Settings", true);
        check("GET /a HTTP/1.1\nHost: h\nConnection: close, Accept-Language", false);
        check("GET /a HTTP/1.1\nHost: h\nConnection: close\nCookie: a\nConnection:origin", false);
        check("GET /a HTTP/1.1\nHost: h\nCache-Control: no-cache, no-store\nPragma: no-cache", true);
        check("POST /a HTTP/1.1\nHost: h", false);
        check("GET /a HTTP/1.1\nHost: h\nContent-Length: 1", false);
        check("GET /a HTTP/1.0", false);
        check("GET /a HTTP/1.1\nHost: h\nIf-Match: \"x\"", false);
        check("GET /a HTTP/1.1\nHost: h\nIf-Unmodified-Since: x", false);
        let name = |lines: &str| wants(lines).expect("some").name;
        let one = name("GET /a?b HTTP/1.1\nHost: h");
        assert_eq!(one, name("HEAD /a?b HTTP/1.1\nhost: H\nAccept: x"));
        for other in
            ["/a?b HTTP/1.1\nHost: h:80", "/a HTTP/1.1\nHost: h", "/a?c HTTP/1.1\nHost: h", "/a?b HTTP/1.1\nHost: i"]
        {
            assert_ne!(one, name(&["GET ", other].concat()), "{other}");
        }
    }

    #[test]
    fn not_modified_renews_fields_but_not_those_of_body() {
        let wanted = wants("GET /a HTTP/1.1\nHost: h").expect("some");
        let rule = CacheRule { lifetime: Duration::from_secs(10), ..CacheRule::default() };
        let wall = WallClock::at(784_111_777);
        let text = b"ETag: W/\"x\"\nContent-Type: a/b\nCache-Control: max-age=5\nX: 1\nX: 2\nY: z\nVary: Accept\n\n";
        let (head, _) = cgi::parse(text).expect("good").expect("whole");
        let (page, _) = page_of((&head, &head), Status::OK, &wanted, &rule, (Time::START, &wall)).expect("cacheable");
        let page = AppPage { body: Arc::new(b"body".to_vec()), ..page };
        let check = |said: &str, expected: Option<u64>, fields: &str| {
            let text = ["Status: 304\n", said, "\n\n"].concat();
            let (head, _) = cgi::parse(text.as_bytes()).expect("good").expect("whole");
            let now = Time::START + Duration::from_secs(100);
            let (renewed, is_kept) = renewed(&page, &head, &wanted, &rule, (now, &wall));
            let lines = renewed
                .fields
                .iter()
                .map(|(name, value)| alloc::format!("{name}: {}|", core::str::from_utf8(value).expect("text")));
            assert_eq!(lines.collect::<String>(), fields, "{said}");
            assert_eq!(
                (is_kept.then_some(renewed.lifetime.as_secs()), renewed.age(now)),
                (expected, Duration::ZERO),
                "{said}"
            );
            assert_eq!((renewed.status, &**renewed.body), (Status::OK, b"body".as_slice()));
        };
        let of_body = "ETag: W/\"x\"|Content-Type: a/b|";
        let all = [of_body, "Cache-Control: max-age=5|X: 1|X: 2|Y: z|Vary: Accept|"].concat();
        check("Date: y", Some(5), &all);
        check("ETag: \"x\"\nContent-Type: c/d\nContent-Encoding: gzip\nVary: B", Some(5), &all);
        let rest = "Y: z|Vary: Accept|";
        let changed = [of_body, rest, "X: 3|Cache-Control: max-age=7|"].concat();
        check("X: 3\nCache-Control: max-age=7", Some(7), &changed);
        let forbidden = [of_body, "X: 1|X: 2|", rest, "Cache-Control: no-store|"].concat();
        check("Cache-Control: no-store", None, &forbidden);
        check("Set-Cookie: a=b", None, &[&*all, "Set-Cookie: a=b|"].concat());
    }

    #[test]
    fn stale_use_follows_response_then_rule() {
        let wanted = wants("GET /a HTTP/1.1\nHost: h").expect("some");
        let [lifetime, stale_while_revalidate, stale_if_error] = [10, 20, 30].map(Duration::from_secs);
        let rule = CacheRule { lifetime, by_status: None, stale_while_revalidate, stale_if_error };
        // The ages in seconds until which a page is fresh, sent before revalidation, and in place of an error.
        let check = |fields: &str, expected: [u64; 3]| {
            let text = [fields, "\n\n"].concat();
            let (head, _) = cgi::parse(text.as_bytes()).expect("good").expect("whole");
            let wall = WallClock::at(784_111_777);
            let (page, _) =
                page_of((&head, &head), Status::OK, &wanted, &rule, (Time::START, &wall)).expect("cacheable");
            let until = |holds: &dyn Fn(Time) -> bool| {
                (0..).find(|&age| !holds(Time::START + Duration::from_secs(age))).expect("it ends")
            };
            let found = [
                until(&|now| page.is_fresh(now)),
                until(&|now| page.may_be_sent_before_revalidation(now)),
                until(&|now| page.may_replace_error(now)),
            ];
            assert_eq!(found, expected, "{fields}");
        };
        check("X: y", [10, 30, 40]);
        check("Cache-Control: max-age=5", [5, 25, 35]);
        check("Cache-Control: max-age=5, stale-while-revalidate=1, stale-if-error=2", [5, 6, 7]);
        check("Cache-Control: stale-while-revalidate=0", [10, 10, 40]);
        check("Cache-Control: must-revalidate", [10, 10, 10]);
        check("Cache-Control: proxy-revalidate, stale-if-error=60", [10, 10, 10]);
        check("Cache-Control: s-maxage=5", [5, 5, 5]);
        check("Cache-Control: s-maxage=5, stale-while-revalidate=3", [5, 8, 5]);
    }

    #[test]
    fn lifetime_by_status_precedes_that_of_the_rule() {
        let wanted = wants("GET /a HTTP/1.1\nHost: h").expect("some");
        let by_status =
            [(404..=404, 1), (301..=301, 0), (400..=499, 2), (302..=302, 3), (500..=599, 4), (200..=299, 5)];
        let by_status = by_status
            .map(|(statuses, seconds)| StatusLifetime { statuses, lifetime: Duration::from_secs(seconds) })
            .into();
        let lifetime = Duration::from_secs(10);
        let rule = CacheRule { lifetime, by_status: Some(by_status), ..CacheRule::default() };
        let check = |head: &str, expected: Option<u64>| {
            let text = [head, "\n\n"].concat();
            let (head, _) = cgi::parse(text.as_bytes()).expect("good").expect("whole");
            let cgi::Answer::Reply(status) = head.answer() else { panic!("{text}") };
            let times = (Time::START, &WallClock::at(784_111_777));
            let kept = page_of((&head, &head), status, &wanted, &rule, times);
            assert_eq!(kept.map(|(page, _)| page.lifetime.as_secs()), expected, "{text}");
        };
        check("Status: 200", Some(5));
        check("Status: 308", Some(10));
        check("Status: 206", None);
        check("Status: 416", None);
        check("Status: 429", None);
        check("Status: 400", None);
        check("Status: 404", Some(1));
        check("Status: 410", Some(2));
        check("Status: 302", Some(3));
        check("Status: 503", Some(4));
        check("Status: 301", None);
        check("Status: 307", None);
        check("Status: 301\nCache-Control: max-age=5", Some(5));
        check("Status: 404\nCache-Control: max-age=5", Some(5));
        check("Status: 503\nCache-Control: no-store", None);
        check("Status: 503\nSet-Cookie: a=b", None);
    }

    #[test]
    fn cacheable_responses_have_lifetime_and_vary() {
        const NONE: Option<(u64, &[&str])> = None;
        // For a response with this head to a request with these fields: lifetime in seconds, and `Vary`.
        let check = |fields: &str, head: &str, expected: Option<(u64, &[&str])>| {
            let wanted = wants(&["GET /a HTTP/1.1\nHost: h", fields].concat()).expect("some");
            let text = [head, "\n\n"].concat();
            let (script_head, _) = cgi::parse(text.as_bytes()).expect("good").expect("whole");
            let cgi::Answer::Reply(status) = script_head.answer() else { panic!("{head}") };
            let times = (Time::from_millis(5), &WallClock::at(784_111_777));
            let rule = CacheRule { lifetime: Duration::from_secs(10), ..CacheRule::default() };
            let kept = page_of((&script_head, &script_head), status, &wanted, &rule, times);
            let kept = kept.map(|(page, vary)| (page.lifetime.as_secs(), vary));
            let expected = expected.map(|(seconds, vary)| (seconds, vary.iter().map(|&name| name.into()).collect()));
            assert_eq!(kept, expected, "{fields:?} {head}");
        };
        let some = |seconds| Some((seconds, &[][..]));
        // RFC 9111, 3 and 4.2.2.
        check("", "X: y", some(10));
        for (status, expected) in [
            (200, some(10)),
            (203, some(10)),
            (204, some(10)),
            (206, NONE),
            (301, some(10)),
            (302, NONE),
            (304, NONE),
            (404, some(10)),
            (405, NONE),
            (410, some(10)),
            (418, NONE),
            (500, NONE),
            (503, NONE),
        ] {
            check("", &alloc::format!("Status: {status}"), expected);
        }
        check("", "Status: 302\nCache-Control: max-age=5", some(5));
        check("", "Status: 500\nCache-Control: max-age=5", NONE);
        // 5.2.2 and 5.3.
        check("", "Cache-Control: max-age=60", some(60));
        check("", "Cache-Control: max-age=60, s-maxage=5", some(5));
        check("", "Cache-Control: max-age=0", NONE);
        check("", "Cache-Control: max-age=nonsense", NONE);
        check("", "Cache-Control: no-store", NONE);
        check("", "Cache-Control: private, max-age=60", NONE);
        check("", "Cache-Control: no-cache", NONE);
        check("", "Expires: Sun, 06 Nov 1994 08:49:57 GMT", some(20));
        check("", "Expires: 0", NONE);
        // 4.2.3: the age on arrival.
        check("", "Cache-Control: max-age=60\nAge: 59", some(60));
        check("", "Cache-Control: max-age=60\nAge: 60", NONE);
        check("", "Set-Cookie: a=b", NONE);
        check("", "Set-Cookie: a=b\nCache-Control: public, max-age=60", NONE);
        // 4.1.
        check("", "Vary: Accept-Language, Cookie", Some((10, &["accept-language", "cookie"])));
        check("", "Vary: *", NONE);
        check("", "Vary: a,b,c,d,e,f,g,h", Some((10, &["a", "b", "c", "d", "e", "f", "g", "h"])));
        check("", "Vary: a,b,c,d,e,f,g,h,i", NONE);
        check("", "Vary: X-Forwarded-Proto, x-forwarded-host", Some((10, &["x-forwarded-host", "x-forwarded-proto"])));
        for name in ["X-Forwarded-For", "x-forwarded-user", "Forwarded", "X-Real-IP", "X-Request-ID"] {
            check("", &["Cache-Control: public, max-age=60\nVary: Accept, ", name].concat(), NONE);
        }
        // 3.5.
        let password = "\nAuthorization: Basic eDp5";
        check(password, "X: y", NONE);
        check(password, "Cache-Control: max-age=60", NONE);
        check(password, "Cache-Control: public", some(10));
        check(password, "Cache-Control: s-maxage=60", some(60));
        check(password, "Cache-Control: max-age=60, must-revalidate", some(60));
        // Cookies, if the application gives no lifetime.
        let cookies = "\nCookie: a=b";
        check(cookies, "X: y", NONE);
        check(cookies, "Cache-Control: max-age=60", some(60));
        check(cookies, "Cache-Control: public", some(10));
        check(cookies, "Vary: Cookie", Some((10, &["cookie"])));
    }
}
