//! The rules of a location: its routes, access, files and application, or a refusal.

use serde_json::{Value, json};

use super::apps;
use super::files;
use super::guards::Access;
use super::known::{self, Fate};
use super::limits;
use super::location::Location;
use super::page::{Page, SitePage};
use super::paths::Paths;
use super::protect::Covers;
use super::rewrite::{self, Routes};
use super::scope::Http;
use super::tree::Directive;

/// The server around a location.
pub(super) struct Context<'c, 'a> {
    pub(super) http: &'c Http<'a>,
    pub(super) server: &'c Directive,
    /// Its locations in order.
    pub(super) locations: &'c [Location<'a>],
    pub(super) named: &'c [Location<'a>],
    pub(super) covers: &'c Covers<'a>,
}

/// Why a location cannot be translated, so that its paths have to be refused.
pub(super) fn why_refused(location: &Location<'_>, named: &[Location<'_>]) -> Option<&'static str> {
    let Location { paths, scope, guards, refused, .. } = location;
    let others = ["uwsgi_pass", "scgi_pass", "grpc_pass", "memcached_pass"];
    if refused.is_some() {
        return *refused;
    }
    if !paths.is_exact() {
        return Some("a regular expression with look-around, or within another location, cannot be expressed exactly");
    }
    if !guards.unknown.is_empty() {
        return Some("it has a restriction without equivalent");
    }
    if location.routes.iter().any(is_lost) {
        return Some("a condition that refuses requests cannot be expressed");
    }
    if others.iter().any(|name| scope.own(name).next().is_some()) {
        return Some("its application cannot be expressed");
    }
    if location.has_app() && location.routes.iter().any(|(from, _)| rewrite::leaves(from, paths)) {
        return Some("the application of a path that `break` rewrites would be that of the new path");
    }
    if location.has_files() && apps::named_guards(location, named).is_some_and(|own| !own.are_same_as(guards)) {
        return Some("the named location has other restrictions");
    }
    None
}

/// Whether a condition that refuses requests cannot be expressed. A `return` for all requests becomes a refusal itself.
fn is_lost((from, routes): &(&Directive, Routes)) -> bool {
    from.name != "return" && routes.is_err() && rewrite::may_refuse(from)
}

/// The rules of the location at this place.
pub(super) fn page(page: &mut Page, site: &mut SitePage, context: &Context<'_, '_>, at: usize) {
    let location = &context.locations[at];
    let (before, after) = (&context.locations[..at], &context.locations[at + 1..]);
    let Location { paths, directive, routes, guards, .. } = location;
    let is_rest = location.is_rest(context.server);
    if !is_rest {
        remarks(page, site, location);
    }
    // Locations within it may rely on them.
    if !context.covers.tables(page, site, Some(at)) {
        page.refuse_site(site, directive, "its restrictions cannot be expressed");
    }
    if let Some(why) = location.refused {
        for (from, why) in &guards.unknown {
            page.note_here(site, from, why);
        }
        let from = cause(location).unwrap_or(directive);
        return page.refuse(site, &paths.pattern(), from, why);
    }
    for (from, why) in &guards.stricter {
        page.note_here(site, from, why);
    }
    for (from, routes) in routes {
        add_routes(page, site, context, from, routes.clone(), paths);
    }
    if let Some(path) = location.asked_at.as_ref().filter(|path| !paths.matches(path)) {
        let pattern = Paths::Exact(path.clone()).pattern();
        page.rule(site, "route", json!({ "match": pattern, "internal": true }), directive);
    }
    if guards.is_internal {
        page.rule(site, "route", json!({ "match": paths.pattern(), "internal": true }), directive);
    }
    if guards.access == Access::None {
        page.rule(
            site,
            "route",
            json!({ "match": paths.pattern(), "deny": true }),
            guards.from[0].unwrap_or(directive),
        );
    }

    if !location.is_answered() {
        restrict(page, site, context, at);
        apps::keep_files(page, site, location, after, context.named);
    }
    let refusals = site.refusals;
    files::location_files(page, site, location, after, is_rest);
    if !is_rest {
        limits::limits_of_location(page, site, context.http, location, after);
    }
    if location.is_answered() {
        return;
    }
    let number = site.tables("app").count();
    if !apps::app(page, site, context.http, location, before, after) {
        apps::try_files(page, site, context.http, location, context.locations, context.named);
    } else if site.tables("app").count() == number {
        // Without the application, the files of the root, perhaps its source, would be sent.
        page.refuse(site, &paths.pattern(), directive, "its application cannot be expressed");
    }
    if site.refusals > refusals {
        return;
    }
    if let Some(methods) = guards.methods {
        limit_methods(page, site, location, methods);
    } else if after.iter().any(|other| other.has_routes() && paths.may_overlap(&other.paths)) {
        let (pattern, target) = paths.stop();
        page.rule(site, "route", json!({ "match": pattern, "rewrite": target }), directive);
    }
}

/// Notes the directives of a location that nothing translates.
fn remarks(page: &mut Page, site: &mut SitePage, location: &Location<'_>) {
    // A request for an authorization has no body.
    let is_met = |inner: &&Directive| {
        location.asked_at.is_some() && inner.name == "proxy_pass_request_body" && inner.arg(0) == "off"
    };
    for inner in location.directive.inner().iter().filter(|inner| !is_met(inner)) {
        if let Fate::Left(why) = known::fate(inner) {
            page.note_here(site, inner, why);
        }
        if let Some((_, key)) = known::OF_ALL_PATHS.iter().find(|(name, _)| *name == inner.name) {
            page.note_here(site, inner, &format!("`{key}` applies to all sites and paths"));
        }
    }
}

/// The directive for which a location is refused, if it is a single one.
fn cause<'a>(location: &Location<'a>) -> Option<&'a Directive> {
    let failed = location.routes.iter().find(|own| is_lost(own));
    location.guards.unknown.first().map(|(from, _)| *from).or(failed.map(|(from, _)| *from))
}

/// Restrictions that are neither routes nor tables of its own.
fn restrict(page: &mut Page, site: &mut SitePage, context: &Context<'_, '_>, at: usize) {
    let location = &context.locations[at];
    let Location { paths, directive, guards, .. } = location;
    if let Some(from) = context.covers.excess(at, context.locations).filter(|_| !guards.is_internal) {
        page.note_here(site, directive, &format!("`{}` applies to its paths too", from.text()));
    }
    if matches!(paths, Paths::Exact(_)) && guards.have_tables() && !paths.is_file() && !location.has_app() {
        page.note_here(site, directive, "its restrictions apply to all below it too");
    }
}

/// The routes of `limit_except`: one for the methods that are allowed, then one for all others.
fn limit_methods(page: &mut Page, site: &mut SitePage, location: &Location<'_>, methods: &Directive) {
    let paths = &location.paths;
    let mut allowed: Vec<&str> = methods.args.iter().map(String::as_str).collect();
    if allowed.contains(&"GET") && !allowed.contains(&"HEAD") {
        allowed.push("HEAD");
    }
    if !matches!(methods.inner(), [deny] if deny.name == "deny" && deny.arg(0) == "all") {
        page.note_here(site, methods, "the other methods are denied to all clients");
    }
    let (pattern, target) = paths.stop();
    let stop = json!({ "match": pattern, "when": { "methods": allowed }, "rewrite": target });
    page.rule(site, "route", stop, methods);
    page.rule(site, "route", json!({ "match": paths.pattern(), "deny": true }), methods);
}

/// Appends the routes of a directive, or a refusal in their place.
pub(super) fn add_routes(
    page: &mut Page,
    site: &mut SitePage,
    context: &Context<'_, '_>,
    directive: &Directive,
    routes: Routes,
    paths: &Paths,
) {
    let why = match routes {
        Ok(routes) => {
            for route in routes {
                match rewrite::target(&route).filter(|target| leads_to_routes(context, target)) {
                    Some(_) => {
                        let pattern = route["match"].as_str().unwrap_or("/**");
                        let why = "of the routes of another location only those with `deny` apply to a rewritten path";
                        page.refuse(site, pattern, directive, why);
                    }
                    None => {
                        let pattern = route["match"].clone();
                        if !page.rule(site, "route", route, directive) {
                            page.refuse(site, pattern.as_str().unwrap_or("/**"), directive, "no such route");
                        }
                    }
                }
            }
            if let Some(why) = rewrite::approximation(directive) {
                page.note_here(site, directive, why);
            }
            return;
        }
        Err(why) => why,
    };
    if directive.name == "return" && directive.arg(0) == "444" {
        page.note_here(site, directive, &why);
        page.rule(site, "route", json!({ "match": paths.pattern(), "deny": true }), directive);
    } else if directive.name == "return" || rewrite::may_refuse(directive) {
        page.refuse(site, &paths.pattern(), directive, &why);
    } else {
        page.note_here(site, directive, &why);
    }
}

/// Whether routes other than denials apply to these paths.
fn leads_to_routes(context: &Context<'_, '_>, target: &Paths) -> bool {
    let own = context.locations.iter().filter(|location| target.may_overlap(&location.paths));
    let is_first = |location: &&Location<'_>| match target {
        Paths::Exact(path) => !location.paths.matches(path) || std::ptr::eq(*location, first(context.locations, path)),
        _ => true,
    };
    let routes =
        own.filter(is_first).flat_map(|location| location.routes.iter().filter_map(|(_, routes)| routes.as_ref().ok()));
    let has_effect = |route: &Value| {
        let pattern = Paths::of_pattern(route["match"].as_str().unwrap_or("/**"));
        route["deny"] != true && target.may_overlap(&pattern)
    };
    routes.flatten().any(has_effect)
}

/// The location that nginx chooses for a path.
fn first<'c, 'a>(locations: &'c [Location<'a>], path: &str) -> &'c Location<'a> {
    // The last one is for all paths.
    locations.iter().find(|location| location.paths.matches(path)).unwrap_or(&locations[locations.len() - 1])
}
