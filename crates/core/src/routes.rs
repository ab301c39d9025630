//! Routes: what becomes of paths that match a pattern, before any file or application is looked for.
//!
//! A redirect tells the client another name, a rewrite does not; `deny` refuses, `respond` answers with a fixed response, and
//! `internal` keeps clients away from a name that the site itself may use. Also here: the file that serves in place of missing
//! ones, for applications that route by themselves.
//!
//! `plan` asks once it has the clean path. Matched text is put into the other name as it is, so neither a dot segment nor an
//! empty one may come of it: a rewritten path is a clean path again, or means nothing.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;

use amped_http::status::Status;
use amped_http::uri;

use crate::glob::Glob;

/// What becomes of paths that match. Of a site's routes the first that matches applies.
#[derive(Clone, Debug)]
pub struct Route {
    /// Which paths.
    pub pattern: Glob,
    /// What becomes of them.
    pub action: RouteAction,
}

/// What a route does.
#[derive(Clone, Debug)]
pub enum RouteAction {
    /// Sends the client elsewhere. `$1` in `to` is what the first star stood for, and so on to `$9`.
    Redirect {
        /// A path or an http URL.
        to: Box<str>,
        /// The status.
        status: Status,
    },
    /// Serves another path, without telling the client. `$1` as in a redirect.
    Rewrite {
        /// The other path, with the query that an application there gets in front of the client's.
        to: Box<str>,
    },
    /// Refuses, whichever way the name was reached: asked for, rewritten to, or as the index or script of another.
    Deny(Status),
    /// Answers with this.
    Respond(Arc<FixedResponse>),
    /// Does not exist for clients (404); a rewrite, a fallback or an application may lead to it.
    Internal,
}

/// A response that a route has ready.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FixedResponse {
    /// The status.
    pub status: Status,
    /// The body; empty for one that the status forbids.
    pub body: Arc<Vec<u8>>,
    /// Fields beside Content-Length; Content-Type among them where there is a body.
    pub fields: Vec<(Box<str>, Box<str>)>,
}

/// What a route makes of a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Routed {
    /// The client is to ask for this: a reference for `Location`, without the query.
    Redirect(Status, Vec<u8>),
    /// This clean path is meant.
    Rewrite(Vec<u8>),
    /// A path that can be none.
    Nowhere,
    /// Refused with this status.
    Deny(Status),
    /// This response.
    Respond(Arc<FixedResponse>),
    /// Not for clients.
    Internal,
}

impl Route {
    /// What it makes of this clean path; `None`: it does not match.
    pub fn apply(&self, path: &[u8]) -> Option<Routed> {
        // The cheap test, which nearly always decides.
        if !self.pattern.matches(path) {
            return None;
        }
        Some(match &self.action {
            RouteAction::Redirect { to, status } => {
                let mut made = self.fill(to, path, uri::encode_path)?;
                // `//host` would be another host's.
                let slashes = made.iter().take_while(|&&byte| byte == b'/').count();
                made.drain(..slashes.saturating_sub(1));
                Routed::Redirect(*status, made)
            }
            RouteAction::Rewrite { to } => {
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

    /// The query that an application gets behind a rewrite which has one of its own: that, and the client's behind it. `None`:
    /// the client's alone.
    pub fn query(&self, path: &[u8], sent: Option<&[u8]>) -> Option<Vec<u8>> {
        let RouteAction::Rewrite { to } = &self.action else { return None };
        let (_, own) = to.split_once('?')?;
        let mut made = self.fill(own, path, uri::encode_query_value)?;
        if let Some(sent) = sent.filter(|sent| !sent.is_empty()) {
            if !made.is_empty() {
                made.push(b'&');
            }
            made.extend_from_slice(sent);
        }
        Some(made)
    }

    /// `to` with the text of each star put in.
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

/// The file that serves in place of what is missing in a folder, with the status of a file that is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fallback {
    /// The folder's clean path, with its final slash.
    pub folder: Box<str>,
    /// The file's clean path.
    pub file: Box<str>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::String;
    use proptest::prelude::*;

    fn route(pattern: &str, to: &str, status: Option<u16>) -> Route {
        let (pattern, to) = (Glob::new(pattern), to.into());
        let action = match status {
            Some(status) => RouteAction::Redirect { to, status: Status(status) },
            None => RouteAction::Rewrite { to },
        };
        Route { pattern, action }
    }

    #[test]
    fn route_captures_are_substituted() {
        let check = |pattern: &str, to: &str, status: Option<u16>, path: &str, expected: &str| {
            let shown = match route(pattern, to, status).apply(path.as_bytes()) {
                None => String::from("-"),
                Some(Routed::Nowhere) => String::from("nowhere"),
                Some(Routed::Redirect(status, to)) => alloc::format!("{} {}", status.0, String::from_utf8_lossy(&to)),
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
            let Some(Routed::Rewrite(meant)) = route.apply(path.as_bytes()) else { panic!("{to} {path}") };
            let query = route.query(path.as_bytes(), sent.map(str::as_bytes));
            let shown = query.map(|query| String::from_utf8(query).expect("text"));
            assert_eq!((&*String::from_utf8_lossy(&meant), shown.as_deref()), expected, "{to} {path} {sent:?}");
        };
        check("/a.php?q=$1", "/s/x/y", None, ("/a.php", Some("q=x")));
        check("/a.php?q=$1", "/s/x/y", Some("p=2"), ("/a.php", Some("q=x&p=2")));
        check("/a.php?q=$1", "/s/x/y", Some(""), ("/a.php", Some("q=x")));
        check("/$1.php?q=$2", "/s/x/y/z", Some("q=other"), ("/x.php", Some("q=y/z&q=other")));
        // Whatever is matched stays within its value.
        check("/a.php?q=$1", "/s/a&b=c+d #?%/", None, ("/a.php", Some("q=a%26b%3Dc%2Bd%20%23%3F%25")));
        check("/a.php?", "/s/x/y", Some("p=2"), ("/a.php", Some("p=2")));
        check("/a.php", "/s/x/y", Some("p=2"), ("/a.php", None));
    }

    proptest! {
        /// Whatever is asked for, what comes out is clean, and on this host.
        #[test]
        fn rewritten_path_is_normalized(
            pattern in "(/[ab*?]{0,2}(\\*\\*)?){1,3}",
            to in "/[ab./]{0,3}(\\$[1-3][.a/]?){0,3}",
            path in "(/[ab.]{1,3}){1,4}/?",
        ) {
            // A clean path has no dot segments.
            prop_assume!(path.split('/').all(|segment| segment != "." && segment != ".."));
            match route(&pattern, &to, None).apply(path.as_bytes()) {
                Some(Routed::Rewrite(to)) => {
                    let mut scratch = Vec::new();
                    prop_assert_eq!(uri::clean_path(&to, &mut scratch), Ok(&*to));
                }
                other => prop_assert!(!matches!(other, Some(Routed::Redirect(..)))),
            }
            if let Some(Routed::Redirect(_, to)) = route(&pattern, &to, Some(302)).apply(path.as_bytes()) {
                prop_assert!(to.starts_with(b"/") && !to.starts_with(b"//"));
            }
        }
    }
}
