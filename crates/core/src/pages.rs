//! Pages of applications that are kept: which answers are, for whom, and for how long.
//!
//! Where a rule says so (`AppRule::cache`) this server is a shared cache (RFC 9111) in front of its own applications. Before it,
//! `app` has found whose a request is; `exchange/asked` asks here whether a page is kept that answers it, and what of the answer
//! may be kept. The cache itself is that of contents (`cache/page`).
//!
//! In two things less is kept than RFC 9111 allows: by a rule's own time, where the application says nothing, no request with
//! cookies takes part; and what a request says of caches (5.2.1: "advisory") is not obeyed, since a client could else have an
//! application run as often as it likes.

use alloc::boxed::Box;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::time::Duration;

use amped_http::caching;
use amped_http::cgi::ScriptHead;
use amped_http::h1::request::{self, Framing, Request};
use amped_http::method::Method;
use amped_http::status::Status;
use amped_units::Time;

use crate::app::HandlerMatch;
use crate::cache::page::{AppPage, PageName};
use crate::reply::WallClock;

/// What a request may be answered with, and for whom.
#[derive(Clone, Debug)]
pub(crate) struct Wanted {
    /// The page that it asks for, whatever that depends on besides.
    pub(crate) name: PageName,
    /// It has Authorization: RFC 9111, 3.5.
    is_authorized: bool,
    /// It has cookies.
    has_cookies: bool,
}

impl Wanted {
    /// Whether this page is for whoever asks so.
    pub(crate) fn may_have(&self, page: &AppPage) -> bool {
        (!self.is_authorized || page.for_all) && (!self.has_cookies || page.with_cookies)
    }

    /// Whether nothing of who asks can be in the answer, so that others may wait for it.
    pub(crate) fn is_anybodys(&self) -> bool {
        !self.is_authorized && !self.has_cookies
    }
}

/// What a request asks for, if a page that is kept may be the answer, or the answer may be kept. Not if it is about the state
/// of what it names (RFC 9110, 13.1.1 and 13.1.4), which only the application knows.
pub(crate) fn wanted(
    generation: u32,
    handler: &HandlerMatch,
    request: &Request<'_>,
    head: &[u8],
    framing: Framing,
) -> Option<Wanted> {
    let is_safe = matches!(request.method, Some(Method::Get | Method::Head)) && framing == Framing::None;
    if !is_safe || request.if_match.is_present() || request.if_unmodified_since.is_some() {
        return None;
    }
    let has_cookies = request::fields(head).any(|(name, _)| name.eq_ignore_ascii_case(b"cookie"));
    let name = name_of(generation, handler, request, head)?;
    Some(Wanted { name, is_authorized: request.authorization.is_some(), has_cookies })
}

/// The name of what a request is about: the host, with its port, and the target as they were sent, since the application is
/// told both. Without Host the address is what it is told, which nobody here knows.
pub(crate) fn name_of(generation: u32, handler: &HandlerMatch, request: &Request<'_>, head: &[u8]) -> Option<PageName> {
    let (_, host) = request::fields(head).find(|(name, _)| name.eq_ignore_ascii_case(b"host"))?;
    // Neither holds a line end.
    let key = [&host.to_ascii_lowercase(), &b"\n"[..], request.target_text].concat();
    Some(PageName::App { generation, site: handler.site, rule: handler.rule, key: key.into() })
}

/// Statuses that are kept for a rule's own time (RFC 9110, 15.1: "heuristically cacheable"; 206, 405, 414 and 501 are about
/// more of the request than its target, and left out).
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

/// Those that are kept only for a time that the application names.
const KEPT_IF_SAID: [Status; 3] = [Status::FOUND, Status::SEE_OTHER, Status::TEMPORARY_REDIRECT];

/// Most fields that a page may depend on.
pub(crate) const VARY_MAX: usize = 8;

/// The page, without its body so far, that this answer is, and on which fields of the request it depends; `None`: it is not
/// kept. `time`: for how long, where the application does not say.
pub(crate) fn page_of(
    said: &ScriptHead<'_>,
    status: Status,
    wanted: &Wanted,
    time: Duration,
    (now, wall): (Time, &WallClock),
) -> Option<(AppPage, Vec<String>)> {
    let fields = || said.fields.iter().copied();
    let caching::Said { forbids, for_all, lifetime, age, vary } = caching::read(fields(), wall.seconds);
    let is_kept = KEPT.contains(&status) || (lifetime.is_some() && KEPT_IF_SAID.contains(&status));
    // A cookie that is set is set for one. RFC 9111, 7.3 leaves it to the application to say so; not every one does.
    let sets_cookies = fields().any(|(name, _)| name.eq_ignore_ascii_case("set-cookie"));
    let vary = vary.filter(|vary| vary.len() <= VARY_MAX)?;
    let with_cookies = for_all || lifetime.is_some() || vary.iter().any(|field| field == "cookie");
    let page = AppPage {
        status,
        fields: fields()
            .filter(|(name, _)| !name.eq_ignore_ascii_case("age"))
            .map(|(name, value)| (Box::from(name), Box::from(value)))
            .collect(),
        body: Arc::default(),
        date: wall.date,
        came: now,
        age: Duration::from_secs(age),
        lifetime: lifetime.map_or(time, Duration::from_secs),
        for_all,
        with_cookies,
    };
    let is_kept = is_kept && !forbids && !sets_cookies && page.is_fresh(now) && wanted.may_have(&page);
    is_kept.then_some((page, vary))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::app;
    use crate::glob::Glob;
    use crate::site::{AppRule, Site};
    use amped_http::cgi;
    use amped_http::h1::request::HeadLimits;
    use amped_units::Bytes;

    /// What is wanted by a request of these lines.
    fn wants(lines: &str) -> Option<Wanted> {
        let rule = AppRule {
            pattern: Glob::new("/"),
            timeout: Duration::ZERO,
            max_body_bytes: Bytes(0),
            max_response_bytes: None,
            cache: Some(Duration::ZERO),
        };
        let site = Site { apps: Vec::from([rule]), ..Site::default() };
        let head = lines.replace('\n', "\r\n") + "\r\n\r\n";
        let limits = HeadLimits { request_line: 1000, head: 1000, fields: 10 };
        let (request, _) = request::parse(head.as_bytes(), &limits).expect("good").expect("whole");
        let handler = app::handler_of(&site, b"/a").expect("allowed").expect("claimed");
        wanted(0, &handler, &request, head.as_bytes(), request.framing)
    }

    #[test]
    fn requests_eligible_for_cached_page() {
        let check = |lines: &str, expected: bool| assert_eq!(wants(lines).is_some(), expected, "{lines}");
        check("GET /a HTTP/1.1\nHost: h", true);
        check("HEAD /a?b HTTP/1.1\nHost: h", true);
        check("GET /a HTTP/1.1\nHost: h\nIf-None-Match: \"x\"\nRange: bytes=0-1", true);
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
    fn lifetime_and_vary_of_cacheable_responses() {
        const NONE: Option<(u64, &[&str])> = None;
        // Of an answer with this head to a request with these fields: seconds, and on what it depends.
        let check = |fields: &str, head: &str, expected: Option<(u64, &[&str])>| {
            let wanted = wants(&["GET /a HTTP/1.1\nHost: h", fields].concat()).expect("some");
            let text = [head, "\n\n"].concat();
            let (said, _) = cgi::parse(text.as_bytes()).expect("good").expect("whole");
            let cgi::Answer::Reply(status) = said.answer() else { panic!("{head}") };
            let times = (Time::from_millis(5), &WallClock::at(784_111_777));
            let kept = page_of(&said, status, &wanted, Duration::from_secs(10), times);
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
        // 4.2.3: what it was old already.
        check("", "Cache-Control: max-age=60\nAge: 59", some(60));
        check("", "Cache-Control: max-age=60\nAge: 60", NONE);
        check("", "Set-Cookie: a=b", NONE);
        check("", "Set-Cookie: a=b\nCache-Control: public, max-age=60", NONE);
        // 4.1.
        check("", "Vary: Accept-Language, Cookie", Some((10, &["accept-language", "cookie"])));
        check("", "Vary: *", NONE);
        check("", "Vary: a,b,c,d,e,f,g,h", Some((10, &["a", "b", "c", "d", "e", "f", "g", "h"])));
        check("", "Vary: a,b,c,d,e,f,g,h,i", NONE);
        // 3.5.
        let password = "\nAuthorization: Basic eDp5";
        check(password, "X: y", NONE);
        check(password, "Cache-Control: max-age=60", NONE);
        check(password, "Cache-Control: public", some(10));
        check(password, "Cache-Control: s-maxage=60", some(60));
        check(password, "Cache-Control: max-age=60, must-revalidate", some(60));
        // Cookies, where the application says nothing.
        let cookies = "\nCookie: a=b";
        check(cookies, "X: y", NONE);
        check(cookies, "Cache-Control: max-age=60", some(60));
        check(cookies, "Cache-Control: public", some(10));
        check(cookies, "Vary: Cookie", Some((10, &["cookie"])));
    }
}
