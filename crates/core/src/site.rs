//! A site: what a set of host names serves, and with which headers.
//!
//! Built once from the checked configuration and then shared, unchanging, by all loops. It knows no paths of the
//! machine: where a site's root lies is the disk's business (`server/disk`), which finds it by the site's number.

use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec::Vec;
use core::time::Duration;

use amped_http::h1::request::Request;
use amped_http::method::Method;
use amped_http::negotiate::Coding;
use amped_http::status::Status;
use amped_units::Bytes;
use serde::{Deserialize, Serialize};

use crate::auth::Guard;
use crate::cors::{CorsOrigin, CorsRule};
use crate::glob::Glob;
use crate::routes::{Fallback, Route, RouteAction, Routed};

/// One site.
#[derive(Clone, Debug)]
pub struct Site {
    /// Its place in [`Sites`], by which the disk finds its root.
    pub number: u16,
    /// Host names it answers to, in lower case: exact (`example.org`), or with a leading `*.` for any name below.
    pub hosts: Vec<Box<str>>,
    /// Names that stand for a directory, in order of preference.
    pub index: Vec<Box<str>>,
    /// Whether a directory without one of these is listed; else it is forbidden (403).
    pub listing: bool,
    /// Whether names that begin with a dot are served; else they are not found (404). `/.well-known` always is.
    pub dotfiles: bool,
    /// Codings whose precompressed siblings are looked for beside a file.
    pub precompressed: Vec<Coding>,
    /// The folder in a user's home that `/~user/` serves; `None` switches these off.
    pub user_dir: Option<Box<str>>,
    /// How the names of files tell their media types.
    pub types: Types,
    /// Paths that applications answer; the first rule that matches counts.
    pub apps: Vec<AppRule>,
    /// Headers by pattern; all that match apply in order, a later one replaces an earlier one's value.
    pub rules: Vec<HeaderRule>,
    /// Which documents are there in variants; the last that matches applies.
    pub negotiations: Vec<NegotiationRule>,
    /// Folders that want a password.
    pub guards: Vec<Guard>,
    /// Which other origins' pages may read what; the last that matches applies.
    pub cors: Vec<CorsRule>,
    /// What becomes of paths before files and applications are looked for; the first that matches applies.
    pub routes: Vec<Route>,
    /// Files that serve in place of what is missing.
    pub fallbacks: Vec<Fallback>,
    /// Pages of this site that explain an error, by status: absolute paths within the site.
    pub error_pages: Vec<(Status, Box<str>)>,
    /// What a validator is made of.
    pub etag: EtagForm,
    /// Which symbolic links are followed.
    pub symlinks: Symlinks,
    /// Absolute names of the root as applications know it, by which they name files to send (X-Sendfile).
    pub root_names: Vec<Box<[u8]>>,
}

/// Which symbolic links are followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Symlinks {
    /// Those that end beneath the root.
    #[default]
    Within,
    /// The same, if link and target have the same owner.
    Owner,
    /// All.
    Any,
    /// None.
    None,
}

impl Default for Site {
    /// Any host, plain files, nothing extra; it knows no media types but the fallback.
    fn default() -> Site {
        Site {
            number: 0,
            hosts: Vec::new(),
            index: Vec::from(["index.html".into()]),
            listing: false,
            dotfiles: false,
            precompressed: Vec::new(),
            user_dir: None,
            types: Types { overrides: Vec::new(), known: |_| None, fallback: "text/plain".into(), charset: None },
            apps: Vec::new(),
            rules: Vec::new(),
            negotiations: Vec::new(),
            guards: Vec::new(),
            cors: Vec::new(),
            routes: Vec::new(),
            fallbacks: Vec::new(),
            error_pages: Vec::new(),
            etag: EtagForm::default(),
            symlinks: Symlinks::default(),
            root_names: Vec::new(),
        }
    }
}

impl Site {
    /// Who guards this path: of folders within each other the innermost; where another path is meant, whoever guards that
    /// goes first.
    pub fn guard(&self, path: &[u8]) -> Option<&Guard> {
        let of = |path: &[u8]| {
            let covering = self.guards.iter().filter(|guard| guard.covers(path));
            covering.max_by_key(|guard| guard.folder.len())
        };
        if self.guards.is_empty() {
            return None;
        }
        match self.routed(path) {
            Some(Routed::Rewrite(meant)) => of(&meant).or_else(|| of(path)),
            _ => of(path),
        }
    }

    /// The rule about other origins' pages for this path.
    pub fn cors(&self, path: &[u8]) -> Option<&CorsRule> {
        self.cors.iter().rev().find(|rule| rule.pattern.matches(path))
    }

    /// That rule, if the request is one that browsers ask before a page's own (Fetch, 3.2.2): it is the rule's to answer.
    pub fn preflight(&self, path: &[u8], request: &Request<'_>) -> Option<&CorsRule> {
        let is_one = request.method == Some(Method::Options) && request.origin.is_some() && request.is_preflight;
        is_one.then(|| self.cors(path))?
    }

    /// Which origin of that rule asks.
    pub fn cors_origin(&self, path: &[u8], request: &Request<'_>) -> CorsOrigin {
        match request.origin {
            Some(_) => self.cors(path).map(|rule| rule.cors_origin(request)).unwrap_or_default(),
            None => CorsOrigin::default(),
        }
    }

    /// What the first route that matches makes of this path.
    pub fn routed(&self, path: &[u8]) -> Option<Routed> {
        self.routes.iter().find_map(|route| route.apply(path))
    }

    /// The query that an application gets for this path and the query that was sent, if a rewrite has one of its own.
    pub fn rewritten_query(&self, path: &[u8], sent: Option<&[u8]>) -> Option<Vec<u8>> {
        self.routes.iter().find(|route| route.pattern.matches(path))?.query(path, sent)
    }

    /// The status with which this name is refused, if it is, whichever way it was reached.
    pub fn denied(&self, name: &[u8]) -> Option<Status> {
        match self.routes.iter().find(|route| route.pattern.matches(name))?.action {
            RouteAction::Deny(status) => Some(status),
            _ => None,
        }
    }

    /// Whether any route refuses.
    pub fn has_denials(&self) -> bool {
        self.routes.iter().any(|route| matches!(route.action, RouteAction::Deny(_)))
    }

    /// The file that serves where there is nothing of this name: that of the innermost folder.
    pub fn fallback(&self, path: &[u8]) -> Option<&str> {
        let inside = self.fallbacks.iter().filter(|fallback| path.starts_with(fallback.folder.as_bytes()));
        inside.max_by_key(|fallback| fallback.folder.len()).map(|fallback| &*fallback.file)
    }

    /// The rule by which variants of the document of this name are looked for, if it is not there itself.
    pub fn negotiation(&self, path: &[u8]) -> Option<&NegotiationRule> {
        self.negotiations.iter().rev().find(|rule| rule.pattern.matches(path))
    }
}

/// Which names stand for variants, and what is answered where clients leave the choice open.
#[derive(Clone, Debug)]
pub struct NegotiationRule {
    /// The paths that are asked for.
    pub pattern: Glob,
    /// Endings that tell a language: its tag, such as `en` or `pt-BR`. The best first.
    pub languages: Vec<Box<str>>,
    /// Endings that tell a charset: its name. The best first.
    pub charsets: Vec<Box<str>>,
    /// Whether a client to whom several variants are equally good is told all of them (300); else it gets the first.
    pub list_ties: bool,
    /// Whether a client that accepts none is told so (406); else it gets one all the same.
    pub refuse: bool,
}

/// Paths that an application answers.
#[derive(Clone, Debug, PartialEq)]
pub struct AppRule {
    /// Which paths are its scripts: `/cgi-bin/**`, `*.php`, or `/app`. What follows a script in a path is told to it
    /// (PATH_INFO).
    pub pattern: Glob,
    /// It may do nothing for so long while it is its turn; then 504, or the end of the connection.
    pub timeout: Duration,
    /// Longest body of a request that it is given; a longer one is answered 413.
    pub max_body_bytes: Bytes,
    /// Longest response, head included; one that is longer is cut off. `None`: any length.
    pub max_response_bytes: Option<Bytes>,
    /// Its answers are kept where they may be ([`crate::pages`]), for so long if they do not say for how long.
    pub cache: Option<Duration>,
}

/// Header fields for paths that match.
#[derive(Clone, Debug)]
pub struct HeaderRule {
    /// Which paths.
    pub pattern: Glob,
    /// The value of Cache-Control, on replies that carry or confirm a file (200, 206, 304) and on no error.
    pub cache_control: Option<Box<str>>,
    /// Names and values of fields on every reply, errors included.
    pub set: Vec<(Box<str>, Box<str>)>,
}

/// What an entity tag is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum EtagForm {
    /// Size, modification and change time to the nanosecond, and inode: changes with every change of the file, even one
    /// that puts its old times back.
    #[default]
    Full,
    /// Size and modification time alone: the same on every host that has the file with its times, behind a balancer.
    Portable,
}

/// File name endings and the media types they stand for.
#[derive(Clone)]
pub struct Types {
    /// The configuration's own, by ending in lower case without the dot. They go first.
    pub overrides: Vec<(Box<str>, Box<str>)>,
    /// The table that everybody knows; passed in because its crate is not this one's business.
    pub known: fn(&str) -> Option<&'static str>,
    /// The type of all other files.
    pub fallback: Box<str>,
    /// Added to `text/*` types that name no charset; `None` adds nothing.
    pub charset: Option<Box<str>>,
}

impl Types {
    /// The Content-Type of a file of this name.
    pub fn of(&self, name: &[u8]) -> String {
        let last = name.rsplit(|&b| b == b'/').next().unwrap_or(name);
        let ending = last.iter().rposition(|&b| b == b'.').map(|dot| &last[dot + 1..]);
        let ending = ending.and_then(|e| core::str::from_utf8(e).ok()).unwrap_or("").to_ascii_lowercase();
        self.with_charset(self.by_ending(&ending).unwrap_or(&self.fallback), None)
    }

    /// The media type that an ending, in lower case, stands for.
    pub fn by_ending(&self, ending: &str) -> Option<&str> {
        let overridden = self.overrides.iter().find(|(name, _)| **name == *ending).map(|(_, kind)| &**kind);
        overridden.or_else(|| (self.known)(ending))
    }

    /// A media type with a charset: the one that is given, else that of texts which name none.
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

/// All sites of a server; the first is the default.
#[derive(Clone, Debug)]
pub struct Sites {
    /// Never empty.
    sites: Vec<Site>,
    /// Whether any of them has applications.
    have_apps: bool,
    /// Whether any of them has folders for which a password is wanted.
    have_guards: bool,
}

impl Sites {
    /// Numbers the sites in their order. `None` for none.
    pub fn new(mut sites: Vec<Site>) -> Option<Sites> {
        for (number, site) in sites.iter_mut().enumerate() {
            site.number = u16::try_from(number).ok()?;
        }
        let have_apps = sites.iter().any(|site| !site.apps.is_empty());
        let have_guards = sites.iter().any(|site| !site.guards.is_empty());
        (!sites.is_empty()).then_some(Sites { sites, have_apps, have_guards })
    }

    /// Whether any of them has folders for which a password is wanted.
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

    /// The site with a number that is one of theirs.
    pub fn of(&self, number: u16) -> &Site {
        self.get(number).unwrap_or(self.first())
    }

    /// The site that answers to `host` (any case, no port): an exact name, else the longest `*.` pattern, else the first.
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
            let patterns = self.sites.iter().flat_map(|site| site.hosts.iter().map(move |name| (name, site)));
            if let Some((_, site)) = patterns.filter(|(name, _)| below(name)).max_by_key(|(name, _)| name.len()) {
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
        // The catch-all wants a name, and a pattern something in place of its star.
        check("", 0);
        check(".b.example", 3);
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
