//! Routes: actions for paths that match a pattern, applied before any file or application is looked up.
//!
//! A redirect sends the client to another URL; a rewrite changes the path internally; `deny` rejects, `respond` sends a
//! fixed response, and `internal` hides a name from clients that the site itself may use. Also here: the fallback file
//! for missing ones, for applications that route by themselves.
//!
//! `plan` applies routes once it has the clean path. Matched text is inserted unchanged, so a result with a dot segment
//! or an empty segment is rejected: a rewritten path is clean or invalid.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;

use amped_http::h1::request::Request;
use amped_http::status::Status;
use amped_http::uri;
use amped_units::Form as _;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::condition::Condition;
use crate::forms::{FilePath, FolderPath};
use crate::glob::Glob;

/// A rule for matching paths. Of a site's routes the first match applies.
#[derive(Clone, Debug)]
pub struct Route {
    /// The paths.
    pub pattern: Glob,
    /// The requests; `None`: all.
    pub when: Option<Box<Condition>>,
    /// The action.
    pub action: RouteAction,
}

/// The action of a route.
#[derive(Clone, Debug)]
pub enum RouteAction {
    /// Redirects the client. `$1` in `to` is the text matched by the first star, and so on to `$9`.
    Redirect {
        /// A path or an http URL.
        to: Box<str>,
        /// The status.
        status: Status,
        /// The fate of the client's query; `None`: it is kept unless `to` has one.
        query: Option<QueryRule>,
    },
    /// Serves another path, invisibly to the client. `$1` as in a redirect.
    Rewrite {
        /// The other path. Its query, if any, is placed before the client's for an application.
        to: Box<str>,
        /// The fate of the client's query.
        query: QueryRule,
    },
    /// Rejects with this status, however the name was reached: requested,
    /// rewritten, or as the index or script of another name.
    Deny(Status),
    /// Sends this response.
    Respond(Arc<FixedResponse>),
    /// Hidden from clients (404); a rewrite, a fallback or an application may lead to it.
    Internal,
}

/// What a redirect or rewrite does with the query of the request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum QueryRule {
    /// Append it to that of the target
    #[default]
    Keep,
    /// Remove it
    Drop,
}

/// The prepared response of a route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FixedResponse {
    /// The status.
    pub status: Status,
    /// The body; empty if the status forbids one.
    pub body: Arc<Vec<u8>>,
    /// Fields other than Content-Length; Content-Type among them if there is a body.
    pub fields: Vec<(Box<str>, Box<str>)>,
}

/// The result of applying a route to a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Routed {
    /// Redirect with this reference for `Location`, and the query of the request if that is kept.
    Redirect(Status, Vec<u8>, QueryRule),
    /// Continue with this clean path.
    Rewrite(Vec<u8>),
    /// The resulting path is invalid.
    Nowhere,
    /// Reject with this status.
    Deny(Status),
    /// Send this response.
    Respond(Arc<FixedResponse>),
    /// Hidden from clients.
    Internal,
}

impl Route {
    /// Whether the route applies to this request, by this clean path.
    pub fn applies(&self, path: &[u8], request: &Request<'_>) -> bool {
        // The cheap test first, which nearly always decides.
        self.pattern.matches(path) && self.when.as_ref().is_none_or(|when| when.holds(request))
    }

    /// Applies the route to this clean path; `None` if it does not apply.
    pub fn apply(&self, path: &[u8], request: &Request<'_>) -> Option<Routed> {
        if !self.applies(path, request) {
            return None;
        }
        Some(match &self.action {
            RouteAction::Redirect { to, status, query } => {
                let mut made = self.fill(to, path, uri::encode_path)?;
                // `//host` would lead to another host.
                let slashes = made.iter().take_while(|&&byte| byte == b'/').count();
                made.drain(..slashes.saturating_sub(1));
                let default = if to.contains('?') { QueryRule::Drop } else { QueryRule::Keep };
                Routed::Redirect(*status, made, query.unwrap_or(default))
            }
            RouteAction::Rewrite { to, .. } => {
                let to = to.split_once('?').map_or(&**to, |(to, _)| to);
                let mut made = self.fill(to, path, |star, made| made.extend_from_slice(star))?;
                made.dedup_by(|byte, before| *byte == b'/' && *before == b'/');
                let is_odd = made.split(|&byte| byte == b'/').any(|segment| matches!(segment, b"." | b".."));
                if is_odd || !made.starts_with(b"/") { Routed::Nowhere } else { Routed::Rewrite(made) }
            }
            RouteAction::Deny(status) => Routed::Deny(*status),
            RouteAction::Respond(response) => Routed::Respond(Arc::clone(response)),
            RouteAction::Internal => Routed::Internal,
        })
    }

    /// Builds the query for an application: the own one of a rewrite, then the client's, if that is kept.
    pub fn query(&self, path: &[u8], sent: Option<&[u8]>) -> Option<Vec<u8>> {
        let RouteAction::Rewrite { to, query } = &self.action else { return sent.map(<[u8]>::to_vec) };
        let sent = sent.filter(|_| *query == QueryRule::Keep);
        let Some((_, own)) = to.split_once('?') else { return sent.map(<[u8]>::to_vec) };
        let mut made = self.fill(own, path, uri::encode_query_value)?;
        if let Some(sent) = sent.filter(|sent| !sent.is_empty()) {
            if !made.is_empty() {
                made.push(b'&');
            }
            made.extend_from_slice(sent);
        }
        Some(made)
    }

    /// Substitutes the text of each star in `to`.
    fn fill(&self, to: &str, path: &[u8], put: impl Fn(&[u8], &mut Vec<u8>)) -> Option<Vec<u8>> {
        let stars = self.pattern.captures(path)?;
        let mut made = Vec::with_capacity(to.len() + path.len());
        let mut rest = to.as_bytes();
        while let Some(dollar) = rest.iter().position(|&byte| byte == b'$') {
            made.extend_from_slice(&rest[..dollar]);
            let star =
                rest.get(dollar + 1).filter(|digit| digit.is_ascii_digit()).map(|digit| usize::from(digit - b'0'));
            let star = star.and_then(|number| stars.get(number.checked_sub(1)?)).copied().unwrap_or_default();
            put(star, &mut made);
            rest = rest.get(dollar + 2..).unwrap_or_default();
        }
        made.extend_from_slice(rest);
        Some(made)
    }
}

/// File that is served instead of any missing path below a directory, for applications with client-side routes
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, expecting = "a table")]
pub struct Fallback {
    /// Directory, with a slash at both ends
    #[serde(deserialize_with = "FolderPath::text")]
    #[schemars(example = "/app/")]
    pub directory: Box<str>,
    /// File in that directory
    #[serde(deserialize_with = "FilePath::text")]
    #[schemars(example = "/app/index.html")]
    pub file: Box<str>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::condition::any_request;
    use alloc::string::String;
    use proptest::prelude::*;

    fn route(pattern: &str, to: &str, status: Option<u16>) -> Route {
        let (pattern, to) = (Glob::new(pattern), to.into());
        let action = match status {
            Some(status) => RouteAction::Redirect { to, status: Status(status), query: None },
            None => RouteAction::Rewrite { to, query: QueryRule::Keep },
        };
        Route { pattern, when: None, action }
    }

    #[test]
    fn route_captures_are_substituted() {
        let check = |pattern: &str, to: &str, status: Option<u16>, path: &str, expected: &str| {
            let shown = match route(pattern, to, status).apply(path.as_bytes(), &any_request()) {
                None => String::from("-"),
                Some(Routed::Nowhere) => String::from("nowhere"),
                Some(Routed::Redirect(status, to, _)) => {
                    alloc::format!("{} {}", status.0, String::from_utf8_lossy(&to))
                }
                Some(Routed::Rewrite(to)) => String::from_utf8_lossy(&to).into_owned(),
                Some(other) => alloc::format!("{other:?}"),
            };
            assert_eq!(shown, expected, "{pattern} {path}");
        };
        check("/old/**", "/new/$1", Some(301), "/old/a b/c", "301 /new/a%20b/c");
        check("/old/**", "/new/$1", Some(301), "/older", "-");
        check("/old/**", "https://b.example/$1", Some(308), "/old/x?y", "308 https://b.example/x%3Fy");
        check("*.htm", "/all/$1.html", Some(302), "/a/b.htm", "302 /all/b.html");
        check("/x**", "/$1", Some(302), "/x/evil.example", "302 /evil.example");
        check("/exact", "/other$1", Some(302), "/exact", "302 /other");
        check("/blog/*/feed", "/feeds/$1.xml", None, "/blog/cats/feed", "/feeds/cats.xml");
        check("/a/*/b/**", "/$2/$1", None, "/a/1/b/2/3", "/2/3/1");
        check("/a/**", "/b/$1", None, "/a/", "/b/");
        check("/a/**", "/b//$1", None, "/a/x", "/b/x");
        check("/a/*", "/b/.$1", None, "/a/.", "nowhere");
        check("/a/*", "/b/$1", None, "/a/%2e%2e", "/b/%2e%2e");
        check("/a/**", "$1", None, "/a/b", "nowhere");
    }

    #[test]
    fn rewrite_query_precedes_client_query() {
        let check = |to: &str, path: &str, sent: Option<&str>, expected: (&str, Option<&str>)| {
            let route = route("/s/*/**", to, None);
            let Some(Routed::Rewrite(meant)) = route.apply(path.as_bytes(), &any_request()) else {
                panic!("{to} {path}")
            };
            let query = route.query(path.as_bytes(), sent.map(str::as_bytes));
            let shown = query.map(|query| String::from_utf8(query).expect("text"));
            assert_eq!((&*String::from_utf8_lossy(&meant), shown.as_deref()), expected, "{to} {path} {sent:?}");
        };
        check("/a.php?q=$1", "/s/x/y", None, ("/a.php", Some("q=x")));
        check("/a.php?q=$1", "/s/x/y", Some("p=2"), ("/a.php", Some("q=x&p=2")));
        check("/a.php?q=$1", "/s/x/y", Some(""), ("/a.php", Some("q=x")));
        check("/$1.php?q=$2", "/s/x/y/z", Some("q=other"), ("/x.php", Some("q=y/z&q=other")));
        // Matched text stays within its value.
        check("/a.php?q=$1", "/s/a&b=c+d #?%/", None, ("/a.php", Some("q=a%26b%3Dc%2Bd%20%23%3F%25")));
        check("/a.php?", "/s/x/y", Some("p=2"), ("/a.php", Some("p=2")));
        check("/a.php", "/s/x/y", Some("p=2"), ("/a.php", Some("p=2")));
        check("/a.php", "/s/x/y", None, ("/a.php", None));
    }

    proptest! {
        /// For any request, the result is a clean path on this host.
        #[test]
        fn rewritten_path_is_normalized(
            pattern in "(/[ab*?]{0,2}(\\*\\*)?){1,3}",
            to in "/[ab./]{0,3}(\\$[1-3][.a/]?){0,3}",
            path in "(/[ab.]{1,3}){1,4}/?",
        ) {
            // A clean path has no dot segments.
            prop_assume!(path.split('/').all(|segment| segment != "." && segment != ".."));
            match route(&pattern, &to, None).apply(path.as_bytes(), &any_request()) {
                Some(Routed::Rewrite(to)) => {
                    let mut scratch = Vec::new();
                    prop_assert_eq!(uri::clean_path(&to, &mut scratch), Ok(&*to));
                }
                other => prop_assert!(!matches!(other, Some(Routed::Redirect(..)))),
            }
            if let Some(Routed::Redirect(_, to, _)) = route(&pattern, &to, Some(302)).apply(path.as_bytes(), &any_request()) {
                prop_assert!(to.starts_with(b"/") && !to.starts_with(b"//"));
            }
        }
    }
}
