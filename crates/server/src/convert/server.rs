//! A `server` block becomes a `[[site]]`.
//!
//! Rules of amped apply to paths, and the first that matches wins; locations of nginx exclude each other. So the locations come in the order
//! of nginx's precedence, and one that only serves files gets a route that changes nothing, if a later one has routes for its paths.

use serde_json::{Value, json};

use super::authorize;
use super::challenges::{self, A_CHALLENGE, CHALLENGES};
use super::files;
use super::guards::{self, Guards};
use super::known::{self, Fate};
use super::limits;
use super::location::Location;
use super::order;
use super::page::{Page, SitePage};
use super::paths::Paths;
use super::protect::{self, Covers};
use super::rewrite::{self, Place, Routes};
use super::rules::{self, Context};
use super::scope::{Http, Scope};
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
    let (mut locations, named) = order::locations(server.inner(), &scope);
    let whole = Paths::Prefix { path: "/".to_owned(), is_final: false };
    // Paths without a location have what is in force in the server.
    let has_rest = !locations.iter().any(|location| location.paths.is_all());
    let rest = has_rest.then(|| Location::new(whole.clone(), server, scope.clone()));
    locations.extend(rest);
    for location in locations.iter_mut().filter(|location| !location.is_rest(server)) {
        location.routes = routes(&location.scope, &location.paths, &literal);
    }
    for location in &mut locations {
        location.refused = rules::why_refused(location, &named);
    }
    let mut own = Guards::of(&scope);
    authorize::resolve(&mut own, &mut locations);
    page.converted.extend(authorize::set_logins(&mut own, &mut locations, &named));
    let names = protect::other_names(&locations);
    let covers = Covers::of(own, &locations, &names, server);
    for at in 0..locations.len() {
        if !locations[at].is_answered() && !covers.suffice(at, &locations) {
            locations[at].refused = Some("a table for a directory cannot restrict access to these paths alone");
        }
    }
    files::keys(page, &mut site, &scope, &locations);
    remarks(page, &mut site, server.inner());
    let challenges = redirect.and_then(|redirect| challenges::location(http, redirect));
    if let Some(location) = &challenges {
        challenges::page(page, &mut site, http, location);
    }
    let apps_of_challenges = site.tables("app").count();
    let context = Context { http, server, locations: &locations, named: &named, covers: &covers };
    for (directive, own) in routes(&scope, &whole, &literal) {
        rules::add_routes(page, &mut site, &context, directive, own, &whole);
    }
    covers.routes(page, &mut site);
    covers.redirects(page, &mut site, &locations);
    add_slashes(page, &mut site, &locations);
    if !covers.tables(page, &mut site, None) {
        page.refuse_site(&mut site, server, "its access rules cannot be expressed");
    }
    for at in 0..locations.len() {
        rules::page(page, &mut site, &context, at);
    }
    // The first limit that matches applies, so that of the server comes last.
    limits::limits(page, &mut site, http, &scope, "/**");
    let own = locations.len() - usize::from(has_rest);
    files::headers(page, &mut site, &scope, &locations[..own]);
    files::pages_of_applications(page, &mut site, &scope);
    if let Some(location) = challenges {
        leave_challenges_out(page, &mut site, &location, apps_of_challenges);
    }
    let seen = locations.iter().flat_map(|location| &location.guards.seen);
    let seen = seen.map(|directive| std::ptr::from_ref::<Directive>(directive)).collect();
    if let Some(directive) = guards::unseen(server.inner(), &seen) {
        page.refuse_site(&mut site, directive, "no table has this restriction");
    }
    site
}

/// Before all else, nginx redirects to the directory of an application if the slash is missing.
fn add_slashes(page: &mut Page, site: &mut SitePage, locations: &[Location<'_>]) {
    for location in locations.iter().filter(|location| location.has_app() && !location.is_closed()) {
        let Paths::Prefix { path, .. } = &location.paths else { continue };
        let Some(directory) = path.strip_suffix('/').filter(|directory| !directory.is_empty()) else { continue };
        let is_own = |other: &Location<'_>| match &other.paths {
            Paths::Exact(other) | Paths::Prefix { path: other, .. } => other == directory,
            Paths::Regex { .. } | Paths::Named(_) => false,
        };
        if !locations.iter().any(is_own) {
            let pattern = Paths::Exact(directory.to_owned()).pattern();
            let table = match location.guards.is_internal {
                true => json!({ "match": pattern, "internal": true }),
                false => json!({ "match": pattern, "redirect": path, "status": 301 }),
            };
            page.rule(site, "route", table, location.directive);
        }
    }
}

/// Keeps challenges, the only requests without TLS, from the routes and backends of this server.
fn leave_challenges_out(page: &mut Page, site: &mut SitePage, location: &Location<'_>, apps_of_challenges: usize) {
    let protects =
        |table: &Value| table["directory"].as_str().is_some_and(|directory| CHALLENGES.starts_with(directory));
    if ["auth", "access", "authorize"].iter().flat_map(|kind| site.tables(kind)).any(protects) {
        let why = "passwords and addresses that the server with TLS requires are required here too";
        page.note_here(site, location.directive, why);
    }
    site.require_scheme(A_CHALLENGE, "https", apps_of_challenges);
    if site.has_match("route", A_CHALLENGE) {
        let target = format!("{CHALLENGES}$1");
        let table = json!({ "match": format!("{CHALLENGES}**"), "when": { "scheme": "http" }, "rewrite": target });
        site.precede("route", table, location.directive);
    }
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
    let has_default_ports =
        scope.all("listen").all(|listen| super::listens::port(listen).is_some_and(|port| matches!(port, 80 | 443)));
    let place = Place { paths, has_default_ports, names, default_type };
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
