//! Stop 5 of 8: what a request asks for, as far as its head tells.
//!
//! Before it, `http/h1/request` has read the head. What comes out is either a refusal or a name to look up, in the caches
//! first and on the disk if need be; `decide` does the looking, `reply` makes an answer of what was found.

use amped_http::h1::request::{Expectation, Request};
use amped_http::method::Method;
use amped_http::status::Status;
use amped_http::uri::{self, PathError, Target};

use crate::cache::uri::{Translated, UriCache};
use crate::routes::Routed;
use crate::site::{Site, Sites};

use alloc::vec::Vec;

/// What is to be done for a request.
#[derive(Debug)]
pub enum Plan<'a> {
    /// Look this name up and send what it means.
    Look(Look<'a>),
    /// Send the client elsewhere.
    Redirect {
        /// Where the rule is.
        site: &'a Site,
        /// What was asked for.
        path: &'a [u8],
        /// The answer.
        status: Status,
        /// Where to, with the query.
        location: Vec<u8>,
    },
    /// Say which methods there are.
    Options {
        /// Where.
        site: &'a Site,
        /// By which path's rules about headers.
        path: &'a [u8],
    },
    /// Refuse.
    Refuse {
        /// The answer.
        status: Status,
        /// The reason, for people.
        why: &'static str,
    },
}

/// A name to look up.
#[derive(Clone, Copy, Debug)]
pub struct Look<'a> {
    /// Where.
    pub site: &'a Site,
    /// The clean path (see [`uri::clean_path`]).
    pub path: &'a [u8],
    /// What followed the question mark.
    pub query: Option<&'a [u8]>,
}

/// Decides what a request asks for. `scratch` holds the clean path where it is not part of the head, `meant` the one that it
/// stands for, if that is another.
pub fn plan<'a>(
    request: &Request<'a>,
    sites: &'a Sites,
    uris: &mut UriCache,
    scratch: &'a mut Vec<u8>,
    meant: &'a mut Vec<u8>,
) -> Plan<'a> {
    let refuse = |status, why| Plan::Refuse { status, why };

    // RFC 9110, 15.6.2: a method that is not known at all. 15.5.6: one that is known, but not for files.
    match request.method {
        None => return refuse(Status::NOT_IMPLEMENTED, "this method is not known here"),
        Some(Method::Get | Method::Head) => {}
        Some(Method::Options) => {
            return Plan::Options { site: sites.for_host(request.host), path: rules_path(request, scratch) };
        }
        Some(_) => return refuse(Status::METHOD_NOT_ALLOWED, "files are for reading: GET, HEAD and OPTIONS"),
    }
    // RFC 9110, 10.1.1.
    if request.expectation == Expectation::Unknown {
        return refuse(Status::EXPECTATION_FAILED, "the only expectation known is 100-continue");
    }
    let (path, query) = match request.target {
        Target::Origin { path, query } | Target::Absolute { path, query, .. } => (path, query),
        Target::Asterisk | Target::Authority(_) => return refuse(Status::BAD_REQUEST, "the target names no path"),
    };
    if let Some(known) = uris.find(request.host, path)
        && let Some(site) = sites.get(known.site)
    {
        scratch.clear();
        scratch.extend_from_slice(&known.path);
        return route(Look { site, path: scratch, query }, meant);
    }
    let site = sites.for_host(request.host);
    let sent = path;
    let path = match name_of(site, path, scratch) {
        Ok(path) => path,
        Err((status, why)) => return refuse(status, why),
    };
    uris.learn(request.host, sent, || Translated { site: site.number, path: path.into() });
    route(Look { site, path, query }, meant)
}

/// What is to be looked up, if the path stands for another one.
fn route<'a>(look: Look<'a>, meant: &'a mut Vec<u8>) -> Plan<'a> {
    let Look { site, path, query } = look;
    let not_found = Plan::Refuse { status: Status::NOT_FOUND, why: NOT_FOUND };
    match site.routed(path) {
        None => Plan::Look(look),
        Some(Routed::Nowhere) => not_found,
        Some(Routed::Rewrite(other)) if !site.dotfiles && uri::hidden(&other) => not_found,
        Some(Routed::Rewrite(other)) => {
            *meant = other;
            Plan::Look(Look { path: meant, ..look })
        }
        Some(Routed::Redirect(status, mut location)) => {
            if let Some(query) = query.filter(|_| !location.contains(&b'?')) {
                location.push(b'?');
                location.extend_from_slice(query);
            }
            Plan::Redirect { site, path, status, location }
        }
    }
}

/// The clean path that a path, as it was sent, stands for on this site.
///
/// # Errors
/// The answer, and the reason for people, if it stands for none, or for one that is hidden.
pub fn name_of<'a>(site: &Site, path: &'a [u8], scratch: &'a mut Vec<u8>) -> Result<&'a [u8], (Status, &'static str)> {
    let path = uri::clean_path(path, scratch).map_err(|error| match error {
        // A slash inside a name can be no file's, and must not be mistaken for one between names.
        PathError::EncodedSlash => (Status::NOT_FOUND, "no file has a slash in its name"),
        PathError::BadEscape => (Status::BAD_REQUEST, "a % in the path is not followed by two digits"),
        PathError::Nul => (Status::BAD_REQUEST, "no path holds a NUL"),
        PathError::AboveRoot => (Status::BAD_REQUEST, "the path leads above the root"),
    })?;
    if !site.dotfiles && uri::hidden(path) {
        // Not 403, which would tell that something is there.
        return Err((Status::NOT_FOUND, NOT_FOUND));
    }
    Ok(path)
}

/// The path by which rules for headers find a reply that is no file's: clean, as for every other; `/` where there is none.
pub fn rules_path<'a>(request: &Request<'a>, scratch: &'a mut Vec<u8>) -> &'a [u8] {
    match request.target {
        Target::Origin { path, .. } | Target::Absolute { path, .. } => uri::clean_path(path, scratch).unwrap_or(b"/"),
        Target::Asterisk | Target::Authority(_) => b"/",
    }
}

/// What is said of a name that means nothing.
pub const NOT_FOUND: &str = "there is nothing of this name here";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::glob::Glob;
    use crate::routes::Route;
    use alloc::format;
    use alloc::string::String;
    use amped_http::h1::request::{self, HeadLimits};

    #[test]
    fn what_is_asked_for() {
        let site = Site::default();
        let route = |pattern: &str, to: &str, status| Route { pattern: Glob::new(pattern), to: to.into(), status };
        let site = Site {
            routes: alloc::vec![
                route("/old/**", "/new/$1", Some(Status::FOUND)),
                route("/to/**", "/at?x=$1", Some(Status::FOUND)),
                route("/r/**", "/real/$1", None),
                route("/h/*", "/.$1", None),
            ],
            ..site
        };
        let open = Site { dotfiles: true, hosts: alloc::vec!["open".into()], ..site.clone() };
        let sites = Sites::new(alloc::vec![site, open]).expect("some");
        // As `site path ?query`, a status, or OPTIONS with the path for rules.
        let check = |request: &str, expected: &str| {
            let limits = HeadLimits { request_line: 1000, head: 1000, fields: 10 };
            let host = if request.contains("\r\n") { "" } else { "\r\nHost: a" };
            let text = request.replacen(" HTTP", &format!(" HTTP/1.1{host}"), 1) + "\r\n\r\n";
            let (request, _) = request::parse(text.as_bytes(), &limits).expect("good").expect("whole");
            let mut scratch = Vec::new();
            let (mut uris, mut meant) = (UriCache::new(0), Vec::new());
            let came_out = match plan(&request, &sites, &mut uris, &mut scratch, &mut meant) {
                Plan::Redirect { status, location, .. } => {
                    format!("{} {}", status.0, String::from_utf8_lossy(&location))
                }
                Plan::Options { path, .. } => format!("OPTIONS {}", String::from_utf8_lossy(path)),
                Plan::Refuse { status, .. } => format!("{}", status.0),
                Plan::Look(Look { site, path, query }) => {
                    let query = query.map_or(String::new(), |query| format!(" ?{}", String::from_utf8_lossy(query)));
                    format!("{} {}{query}", site.number, String::from_utf8_lossy(path))
                }
            };
            assert_eq!(came_out, expected, "{text}");
        };
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
        check("POST /old/a HTTP", "405");
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
}
