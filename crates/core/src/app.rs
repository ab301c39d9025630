//! Applications: which request is whose, what one is asked, and what its answer comes to.
//!
//! An application is a connection's third peer, beside client and disk. A request that a rule of the site gives to one goes
//! out as [`Action::App`](crate::event::Action::App); what it says comes back as [`Event::App`](crate::event::Event::App),
//! piece by piece. Whether it is a process of its own (CGI) or one that lives on (FastCGI) nobody here knows: both are
//! asked and answer in the words of RFC 3875.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::time::Duration;

use amped_http::cgi::{self, Variables};
use amped_http::h1::request::{self, Framing, Request, Version};
use amped_http::method::Method;
use amped_http::uri::{self, Target};
use amped_units::Bytes;

use crate::cache::page::PageName;
use crate::glob::Glob;
use crate::routes::Routed;
use crate::site::{Site, Sites};

/// Paths that an application answers.
#[derive(Clone, Debug, PartialEq)]
pub struct AppRule {
    /// Which paths are its scripts: `/cgi-bin/**`, `*.php`, or `/app`. What follows a script in a path is told to it
    /// (PATH_INFO).
    pub pattern: Glob,
    /// It may do nothing for so long while it is its turn; then 504, or the end of the connection.
    pub time: Duration,
    /// Longest body of a request that it is given; a longer one is answered 413.
    pub body: Bytes,
    /// Most that it may answer; one that says more is cut off.
    pub output: Bytes,
    /// Its answers are kept where they may be ([`crate::pages`]), for so long if they do not say for how long.
    pub cache: Option<Duration>,
}

/// What an application is asked, but for what only the server knows: addresses, and where files are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AppWork {
    /// Counts the configurations that have been in force.
    pub generation: u32,
    /// The site's number.
    pub site: u16,
    /// The rule's place among those of the site.
    pub rule: u16,
    /// The clean path.
    pub path: Box<[u8]>,
    /// Where in the path the script's name may end, by the rule; never empty, in rising order. What is behind is PATH_INFO.
    pub ends: Vec<usize>,
    /// Whether a body follows.
    pub has_body: bool,
    /// The meta-variables that follow from the request's head.
    pub variables: Variables,
}

/// What goes to an application.
#[derive(Debug)]
pub enum Input {
    /// Begin.
    Start(Box<AppWork>),
    /// Part of the request's body.
    Body(Vec<u8>),
    /// The body is complete.
    End,
    /// Nobody wants its answer any more. Where that is its own doing, this is why, for whoever looks after it; else empty.
    /// It may have ended already.
    Leave(&'static str),
    /// Its answer will be kept under this name: answered by [`Output::First`] or [`Output::Follows`], before it is begun.
    Join(PageName),
    /// Its answer is not going to be kept after all: whoever waits for it need not wait any more.
    Settled,
}

/// What an application says, or does.
#[derive(Debug)]
pub enum Output<'a> {
    /// It has been begun: until now others had their turn.
    Begun,
    /// It has taken all of the body that it was given.
    Room,
    /// Part of its answer.
    Bytes(&'a [u8]),
    /// Its answer is complete.
    Ended,
    /// There is none, or no more of one.
    Failed(AppTrouble),
    /// Nobody else makes this page: others will wait for this one.
    First,
    /// Somebody else is making it.
    Follows,
    /// He has made it, or will not: look again.
    Again,
}

/// Why an application does not answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AppTrouble {
    /// Too many are waiting for one: answered 503.
    Busy,
    /// There is no such script: 404.
    Absent,
    /// There is, and it must not be run: 403.
    Forbidden,
    /// It could not be begun, or has ended before its answer was complete: 502.
    Failed,
}

/// A request that is an application's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Claim {
    pub(crate) site: u16,
    pub(crate) rule: u16,
    path: Box<[u8]>,
    ends: Vec<usize>,
}

impl Claim {
    /// The path, by which rules for headers find the reply.
    pub(crate) fn path(&self) -> &[u8] {
        &self.path
    }

    /// The rule by which it is one.
    pub(crate) fn rule<'a>(&self, sites: &'a Sites) -> Option<&'a AppRule> {
        sites.get(self.site)?.apps.get(usize::from(self.rule))
    }

    /// What the application is asked. `user`: who was found to ask, where a password is wanted. `for_others`: the answer is one
    /// for others too, so it must be whole, whatever the client has of it already.
    pub(crate) fn work(
        &self,
        generation: u32,
        (request, head): (&Request<'_>, &[u8]),
        framing: Framing,
        user: Option<&[u8]>,
        for_others: bool,
    ) -> AppWork {
        AppWork {
            generation,
            site: self.site,
            rule: self.rule,
            path: self.path.clone(),
            ends: self.ends.clone(),
            has_body: framing != Framing::None,
            variables: variables((request, head), framing, user, for_others),
        }
    }
}

/// The application that a request is for, if it is for one, by its path or by the one that this stands for. What a rule of
/// the site answers to browsers that ask beforehand is none's.
pub(crate) fn claim(request: &Request<'_>, sites: &Sites, scratch: &mut Vec<u8>) -> Option<Claim> {
    // RFC 9110, 9.3.6 and 9.3.8: these two are about connections, and no application's business.
    if !sites.have_apps() || matches!(request.method, None | Some(Method::Connect | Method::Trace)) {
        return None;
    }
    let (Target::Origin { path, .. } | Target::Absolute { path, .. }) = request.target else {
        return None;
    };
    let site = sites.for_host(request.host);
    let path = uri::clean_path(path, scratch).ok()?;
    let is_open = |path: &[u8]| site.dotfiles || !uri::hidden(path);
    if !is_open(path) || site.preflight(path, request).is_some() {
        return None;
    }
    claim_of(site, path).or_else(|| match site.routed(path)? {
        Routed::Rewrite(meant) if is_open(&meant) => claim_of(site, &meant),
        Routed::Rewrite(_) | Routed::Redirect(..) | Routed::Nowhere => None,
    })
}

/// The application that answers this clean path on this site: by the first rule that matches it, or what it begins with.
pub(crate) fn claim_of(site: &Site, path: &[u8]) -> Option<Claim> {
    site.apps.iter().zip(0..).find_map(|(rule, number)| {
        let slashes = memchr::memchr_iter(b'/', path).skip(1);
        let ends: Vec<usize> = slashes.chain([path.len()]).filter(|&end| rule.pattern.matches(&path[..end])).collect();
        let ends = if rule.pattern.as_str() == "/" { Vec::from([0]) } else { ends };
        (!ends.is_empty()).then(|| Claim { site: site.number, rule: number, path: path.into(), ends })
    })
}

/// The meta-variables that follow from a head (RFC 3875, 4.1), and REQUEST_URI, which is in no standard and asked for by
/// everybody.
fn variables(
    (request, head): (&Request<'_>, &[u8]),
    framing: Framing,
    user: Option<&[u8]>,
    for_others: bool,
) -> Variables {
    let is_told = |name: &[u8]| !for_others || !OF_ONE.iter().any(|known| name.eq_ignore_ascii_case(known.as_bytes()));
    let mut variables = cgi::field_variables(request::fields(head).filter(|(name, _)| is_told(name)));
    if user.is_some() {
        // 4.1.18: what the server has verified it keeps, with the password.
        variables.retain(|(name, _)| name != b"HTTP_AUTHORIZATION");
    }
    let query = match request.target {
        Target::Origin { query, .. } | Target::Absolute { query, .. } => query,
        Target::Asterisk | Target::Authority(_) => None,
    };
    let protocol = match request.version {
        Version::Http10 => "HTTP/1.0",
        Version::Http11 => "HTTP/1.1",
    };
    let mut put = |name: &str, value: &[u8]| variables.push((name.into(), value.to_vec()));
    put("GATEWAY_INTERFACE", b"CGI/1.1");
    put("SERVER_SOFTWARE", b"amped");
    put("SERVER_PROTOCOL", protocol.as_bytes());
    put("REQUEST_METHOD", request.method_text);
    put("REQUEST_URI", request.target_text);
    // 4.1.7: there even if empty.
    put("QUERY_STRING", query.unwrap_or_default());
    if !request.host.is_empty() {
        put("SERVER_NAME", request.host);
    }
    // 4.1.1 and 4.1.11.
    if let Some(user) = user {
        put("AUTH_TYPE", b"Basic");
        put("REMOTE_USER", user);
    }
    // 4.1.2: of chunks nobody knows how many there will be; such a body ends where the stream does.
    if let Framing::Length(length) = framing {
        put("CONTENT_LENGTH", &cgi::decimal(length));
    }
    variables
}

/// Fields by which a client asks for less than all of a page (RFC 9110, 13.1 and 14.2).
const OF_ONE: [&str; 4] = ["if-none-match", "if-modified-since", "if-range", "range"];

/// The head of a request for what an application has named in place of its answer (RFC 3875, 6.2.2): without a body, and
/// without the fields that were about one. `None` if that is no path.
pub(crate) fn instead(head: &[u8], target: &[u8]) -> Option<Vec<u8>> {
    let line = head.split(|&byte| byte == b'\r').next()?;
    let method: &[u8] = if line.starts_with(b"HEAD ") { b"HEAD" } else { b"GET" };
    let version = line.rsplit(|&byte| byte == b' ').next()?;
    let mut made = [method, b" ", target, b" ", version, b"\r\n"].concat();
    let of_body = ["content-length", "content-type", "transfer-encoding", "expect"];
    for (name, value) in request::fields(head) {
        if !of_body.iter().any(|known| name.eq_ignore_ascii_case(known.as_bytes())) {
            made.extend_from_slice(&[name, b": ", value, b"\r\n"].concat());
        }
    }
    made.extend_from_slice(b"\r\n");
    let whole = request::HeadLimits { request_line: usize::MAX, head: usize::MAX, fields: request::FIELDS_MAX };
    matches!(request::parse(&made, &whole), Ok(Some((_, length))) if length == made.len()).then_some(made)
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::String;
    use alloc::vec;

    fn rule(pattern: &str) -> AppRule {
        AppRule { pattern: Glob::new(pattern), time: Duration::ZERO, body: Bytes(0), output: Bytes(0), cache: None }
    }

    #[test]
    fn scripts_and_what_follows_them() {
        let check = |patterns: &[&str], path: &str, expected: Option<(u16, &[&str])>| {
            let apps = patterns.iter().map(|pattern| rule(pattern)).collect();
            let claim = claim_of(&Site { apps, ..Site::default() }, path.as_bytes());
            let found = claim.map(|claim| (claim.rule, claim.ends.iter().map(|&end| &path[..end]).collect::<Vec<_>>()));
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
    }

    #[test]
    fn what_is_asked_instead() {
        let head = b"POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nContent-Type: b/c\r\nX-Y:  z \r\n\r\n";
        let shown = |target: &str| instead(head, target.as_bytes()).map(|made| String::from_utf8(made).expect("ASCII"));
        assert_eq!(shown("/d?e").as_deref(), Some("GET /d?e HTTP/1.1\r\nHost: a\r\nX-Y: z\r\n\r\n"));
        let of_head = instead(b"HEAD /a HTTP/1.0\r\n\r\n", b"/d").expect("a path");
        assert_eq!(of_head, b"HEAD /d HTTP/1.0\r\n\r\n");
        for bad in ["/d e", "/d\u{7f}", "/#d"] {
            assert_eq!(shown(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn variables_of_a_head() {
        let head = b"POST /x?a=b HTTP/1.1\r\nHost: h:8080\r\nContent-Length: 7\r\nContent-Type: t/u\r\nProxy: p\r\n\
            Authorization: Basic YTpi\r\n\r\n";
        let limits = request::HeadLimits { request_line: 1000, head: 1000, fields: 10 };
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
                "QUERY_STRING=a=b",
                "SERVER_NAME=h",
                "CONTENT_LENGTH=7",
            ];
            let found = variables((&request, head), request.framing, user, false);
            let mut found: Vec<String> = found.iter().map(text).collect();
            found.retain(|text| !own.contains(&text.as_str()));
            assert_eq!(found, expected, "{user:?}");
        };
        // Who is verified here is told to the application, and his password is not; else that is its own business.
        check(None, &["HTTP_AUTHORIZATION=Basic YTpi"]);
        check(Some(b"a"), &["AUTH_TYPE=Basic", "REMOTE_USER=a"]);
    }

    #[test]
    fn an_answer_for_others_is_asked_for_as_a_whole() {
        let head = b"GET /x HTTP/1.1\r\nHost: h\r\nRange: a\r\nIf-Range: b\r\nIf-None-Match: c\r\nif-modified-since: d\r\nX: y\r\n\r\n";
        let limits = request::HeadLimits { request_line: 1000, head: 1000, fields: 10 };
        let (request, _) = request::parse(head, &limits).expect("good").expect("whole");
        for (for_others, expected) in [(false, 6), (true, 2)] {
            let found = variables((&request, head), request.framing, None, for_others);
            assert_eq!(found.iter().filter(|(name, _)| name.starts_with(b"HTTP_")).count(), expected);
        }
    }
}
