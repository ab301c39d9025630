//! Challenges of a CA, which are answered without TLS by a server that redirects to https.

use amped_core::glob::Glob;
use serde_json::json;

use super::backends;
use super::files;
use super::known::{self, Fate};
use super::location::Location;
use super::order;
use super::page::{Page, SitePage};
use super::paths::Paths;
use super::scope::{Http, Scope};
use super::tree::Directive;

/// The directory in which a CA looks for the answers to its challenges (RFC 8555, 8.3), which `redirect_to_https` leaves out.
pub(super) const CHALLENGES: &str = "/.well-known/acme-challenge/";

/// The path of such an answer.
pub(super) const A_CHALLENGE: &[u8] = b"/.well-known/acme-challenge/token";

/// The location that answers challenges in a server that redirects all else.
pub(super) fn location<'a>(http: &Http<'a>, redirect: &'a Directive) -> Option<Location<'a>> {
    let (locations, _) = order::locations(redirect.inner(), &Scope::of(&[http.block, redirect.inner()]));
    let has_challenges =
        |location: &Location<'_>| Glob::parse(&location.paths.pattern()).is_ok_and(|glob| glob.matches(A_CHALLENGE));
    let first = locations.into_iter().find(has_challenges)?;
    (!first.paths.is_all() && !first.is_answered() && first.guards.are_none()).then_some(first)
}

/// The application or the files that answer challenges.
pub(super) fn page(page: &mut Page, site: &mut SitePage, http: &Http<'_>, location: &Location<'_>) {
    let Location { paths, directive, scope, .. } = location;
    for inner in directive.inner() {
        if let Fate::Left(why) = known::fate(inner) {
            page.note_here(site, inner, why);
        }
    }
    if matches!(paths, Paths::Prefix { path, .. } if !path.starts_with(CHALLENGES.trim_end_matches('/'))) {
        page.note_here(site, directive, "of these requests only those for challenges are not redirected");
    }
    let pattern = format!("{CHALLENGES}**");
    if let Some(pass) = scope.own("proxy_pass").next() {
        backends::proxy(page, site, http, scope, pass, (pattern, paths, false));
        return site.require_scheme(A_CHALLENGE, "http", 0);
    }
    let table = match (scope.own("alias").next(), paths) {
        (Some(alias), Paths::Prefix { path, .. }) => {
            let below = CHALLENGES.strip_prefix(path.trim_end_matches('/')).unwrap_or_default();
            let root = format!("{}{}", alias.arg(0).trim_end_matches('/'), below.trim_end_matches('/'));
            json!({ "match": pattern, "root": root })
        }
        (Some(alias), _) => return page.note_here(site, alias, "use `[[site.alias]]` for this directory"),
        (None, _) => {
            let root = scope.get("root").map_or(files::DEFAULT_ROOT, |root| root.arg(0));
            if root.contains('$') {
                return page.note_here(site, directive, "a root has no variables");
            }
            if site.keys.get("root").is_some_and(|own| own == root) {
                return;
            }
            json!({ "match": pattern, "root": root, "keep_prefix": true })
        }
    };
    page.rule(site, "alias", table, directive);
}
