//! A `server` block becomes a `[[site]]`.
//!
//! Rules of amped apply to paths, and the first that matches wins; locations of nginx exclude each other. So the locations come in the order
//! of nginx's precedence, and one that only serves files gets a route that changes nothing, if a later one has routes for its paths.

use serde_json::{Value, json};

use super::apps;
use super::challenges::{self, A_CHALLENGE, CHALLENGES};
use super::files;
use super::known::{self, Fate};
use super::limits;
use super::order;
use super::page::{Page, SitePage};
use super::paths::{self, Paths};
use super::rewrite::{self, Place, Routes};
use super::scope::{Http, Location, Scope};
use super::tree::Directive;

/// Translates a server with these names.
///
/// `redirect`: the server that redirects to it from http, if there is one.
pub(super) fn site(
    page: &mut Page,
    http: &Http<'_>,
    server: &Directive,
    names: &[String],
    redirect: Option<&Directive>,
) -> SitePage {
    let mut site = SitePage::default();
    let scope = Scope::of(&[http.block, server.inner()]);
    if !names.is_empty() {
        page.site_key(&mut site, "hosts", json!(names), server);
    }
    let literal: Vec<String> = names.iter().filter(|name| !name.contains('*')).cloned().collect();
    let mut locations = Vec::new();
    order::collect(server.inner(), &scope, None, &mut locations);
    // Names that begin with a dot are hidden already.
    locations.retain(|location| !(location.paths.is_hidden_files() && location.is_answered()));
    paths::sort(&mut locations, |location: &Location<'_>| &location.paths);
    for location in &mut locations {
        location.routes = routes(&location.scope, &location.paths, &literal);
    }
    let root = locations.iter().find(|location| location.paths.is_all()).map_or(&scope, |location| &location.scope);
    files::keys(page, &mut site, &scope, root);
    remarks(page, &mut site, server.inner());
    let challenges = redirect.and_then(|redirect| challenges::location(http, redirect));
    if let Some(location) = &challenges {
        challenges::page(page, &mut site, http, location);
    }
    let apps_of_challenges = site.tables("app").count();
    let whole = Paths::Prefix { path: "/".to_owned(), is_final: false };
    for (directive, own) in routes(&scope, &whole, &literal) {
        add_routes(page, &mut site, directive, own, &whole);
    }
    files::directory_rules(page, &mut site, &scope, &whole, true);
    let (named, locations): (Vec<_>, Vec<_>) =
        locations.into_iter().partition(|location| matches!(location.paths, Paths::Named(_)));
    for (index, location) in locations.iter().enumerate() {
        page_of_location(page, &mut site, http, location, &locations[..index], &locations[index + 1..], &named);
    }
    // The first limit that matches applies, so that of the server comes last.
    limits::limits(page, &mut site, http, &scope, "/**");
    files::headers(page, &mut site, &scope, &locations);
    files::pages_of_applications(page, &mut site, &scope);
    page.deny_fallbacks(&mut site);
    if let Some(location) = challenges {
        let protects =
            |table: &Value| table["directory"].as_str().is_some_and(|directory| CHALLENGES.starts_with(directory));
        if site.tables("auth").chain(site.tables("access")).any(protects) {
            let why = "passwords and addresses that the server with TLS requires are required here too";
            page.note_here(&mut site, location.directive, why);
        }
        // Requests without TLS are challenges, which neither routes nor backends of this server get.
        site.require_scheme(A_CHALLENGE, "https", apps_of_challenges);
        if site.has_match("route", A_CHALLENGE) {
            let target = format!("{CHALLENGES}$1");
            let table = json!({ "match": format!("{CHALLENGES}**"), "when": { "scheme": "http" }, "rewrite": target });
            site.precede("route", table, location.directive);
        }
    }
    site
}

/// Notes the directives of a block that nothing translates.
pub(super) fn remarks(page: &mut Page, site: &mut SitePage, block: &[Directive]) {
    for directive in block {
        if let Fate::Left(why) = known::fate(directive) {
            page.note_in(site, directive, why);
        }
    }
}

/// The routes of the module `rewrite` in the innermost block of a scope, in their order.
fn routes<'a>(scope: &Scope<'a>, paths: &Paths, names: &[String]) -> Vec<(&'a Directive, Routes)> {
    let default_type = scope.get("default_type").map_or("text/plain", |directive| directive.arg(0));
    let place = Place { paths, names, default_type };
    let block = scope.innermost();
    // `break` ends the module's part.
    let block = block.iter().take_while(|directive| directive.name != "break");
    let made = block.filter_map(|directive| {
        let routes = match directive.name.as_str() {
            "return" => rewrite::returned(directive, &place),
            "rewrite" => rewrite::rewritten(directive, &place),
            "if" if files::missing_file(directive).is_some() => return None,
            "if" => rewrite::conditional(directive, &place),
            _ => return None,
        };
        Some((directive, routes))
    });
    made.collect()
}

fn add_routes(page: &mut Page, site: &mut SitePage, directive: &Directive, routes: Routes, paths: &Paths) {
    match routes {
        Ok(routes) => routes.into_iter().for_each(|route| _ = page.rule(site, "route", route, directive)),
        Err(why) => {
            page.note_here(site, directive, &why);
            if directive.name == "return" {
                // Without it the files of the root would be sent.
                let status = if directive.arg(0) == "444" { 403 } else { 503 };
                page.rule(
                    site,
                    "route",
                    json!({ "match": paths.pattern(), "deny": true, "status": status }),
                    directive,
                );
            }
        }
    }
}

fn page_of_location(
    page: &mut Page,
    site: &mut SitePage,
    http: &Http<'_>,
    location: &Location<'_>,
    before: &[Location<'_>],
    after: &[Location<'_>],
    named: &[Location<'_>],
) {
    let Location { paths, directive, scope, routes } = location;
    for inner in directive.inner() {
        if let Fate::Left(why) = known::fate(inner) {
            page.note_here(site, inner, why);
        }
        if let Some((_, key)) = known::OF_ALL_PATHS.iter().find(|(name, _)| *name == inner.name) {
            page.note_here(site, inner, &format!("`{key}` applies to all sites and paths"));
        }
    }
    for (from, routes) in routes {
        add_routes(page, site, from, routes.clone(), paths);
    }
    if scope.own("internal").next().is_some() {
        page.rule(site, "route", json!({ "match": paths.pattern(), "internal": true }), directive);
    }
    if scope.denies_all() {
        page.rule(site, "route", json!({ "match": paths.pattern(), "deny": true }), directive);
    } else {
        files::directory_rules(page, site, scope, paths, false);
    }
    let has_routes = |other: &Location<'_>| !other.routes.is_empty() || other.scope.denies_all();
    let is_answered = location.is_answered() || scope.own("internal").next().is_some();
    if !is_answered && after.iter().any(|other| has_routes(other) && paths.may_overlap(&other.paths)) {
        let (pattern, target) = paths.stop();
        page.rule(site, "route", json!({ "match": pattern, "rewrite": target }), directive);
    }
    files::location_files(page, site, location);
    limits::limits_of_location(page, site, http, location, after);
    let number = site.tables("app").count();
    if !apps::app(page, site, http, location, before) {
        apps::try_files(page, site, http, location, before, named);
    } else if site.tables("app").count() == number && !location.is_answered() {
        // Without its application the files of the root, perhaps its source, would be sent.
        page.rule(site, "route", json!({ "match": paths.pattern(), "deny": true, "status": 503 }), directive);
    }
}
