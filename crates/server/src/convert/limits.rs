//! Limits of requests, connections and bandwidth.

use serde_json::{Value, json};

use super::location::Location;
use super::page::{Page, SitePage};
use super::scope::{Http, Scope};
use super::tree::Directive;

/// A size of nginx, such as `10m`, as one of amped.
pub(super) fn size(text: &str) -> String {
    let (number, unit) = text.split_at(text.trim_end_matches(|c: char| c.is_ascii_alphabetic()).len());
    let unit = match unit {
        "k" | "K" => "KiB",
        "m" | "M" => "MiB",
        "g" | "G" => "GiB",
        other => other,
    };
    format!("{number}{}", if unit.is_empty() { "B" } else { unit })
}

/// The directives of limits.
const LIMITS: [&str; 4] = ["limit_req", "limit_conn", "limit_rate", "limit_rate_after"];

/// Whether the innermost block of a scope has limits.
fn has_own_limits(scope: &Scope<'_>) -> bool {
    LIMITS.iter().any(|name| scope.own(name).next().is_some())
}

/// Whether any limit is in force in a scope.
fn has_limits(scope: &Scope<'_>) -> bool {
    LIMITS[..2].iter().any(|name| scope.get(name).is_some())
        || scope.get("limit_rate").is_some_and(|rate| rate.arg(0) != "0")
}

/// The limits of a location. `after`: those that it precedes.
pub(super) fn limits_of_location(
    page: &mut Page,
    site: &mut SitePage,
    http: &Http<'_>,
    location: &Location<'_>,
    after: &[Location<'_>],
) {
    let Location { paths, scope, directive, .. } = location;
    let shadow = after.iter().find(|other| has_own_limits(&other.scope) && paths.may_overlap(&other.paths));
    if !has_own_limits(scope) && shadow.is_none() {
        return;
    }
    if limits(page, site, http, scope, &paths.pattern()) {
        return;
    }
    if let Some(other) = shadow {
        let why = format!("the limits of {} apply to its paths too", other.directive.place());
        page.note_here(site, directive, &why);
    } else if let Some(from) = scope.get("limit_rate").filter(|_| has_limits(&scope.outer())) {
        page.note_here(site, from, "the limits of the site apply to its paths too");
    }
}

/// The limits in force in a scope as one table for the paths of a pattern, because the first table that matches a path
/// applies. Returns whether there is one.
pub(super) fn limits(page: &mut Page, site: &mut SitePage, http: &Http<'_>, scope: &Scope<'_>, pattern: &str) -> bool {
    let mut table = json!({ "match": pattern });
    let mut first = None;
    let is_dry = |name: &str| scope.get(name).is_some_and(|directive| directive.arg(0) == "on");
    for directive in scope.all("limit_req").filter(|_| !is_dry("limit_req_dry_run")) {
        if !table["requests"].is_null() {
            page.note_here(site, directive, "a path has one limit of requests");
        } else if requests(page, site, http, &mut table, directive) {
            first.get_or_insert(directive);
        }
    }
    for directive in scope.all("limit_conn").filter(|_| !is_dry("limit_conn_dry_run")) {
        let zone = http.connection_zones.get(directive.arg(0)).copied();
        match (zone.filter(|zone| is_by_address(zone)), directive.arg(1).parse::<u64>()) {
            (Some(_), Ok(number)) if table["concurrent"].is_null() => {
                counted(page, site, directive, directive.arg(0));
                table["concurrent"] = number.into();
                first.get_or_insert(directive);
            }
            (Some(_), Ok(_)) => page.note_here(site, directive, "a path has one limit of concurrent requests"),
            _ => page.note_here(site, directive, other_key(zone)),
        }
    }
    if let Some(directive) = scope.get("limit_rate").filter(|directive| directive.arg(0) != "0") {
        if directive.arg(0).contains('$') {
            page.note_here(site, directive, "`rate` has no variables");
        } else {
            table["rate"] = format!("{}/s", size(directive.arg(0))).into();
            first.get_or_insert(directive);
            if let Some(after) = scope.get("limit_rate_after").filter(|after| after.arg(0) != "0") {
                table["rate_after"] = size(after.arg(0)).into();
            }
        }
    }
    first.is_some_and(|from| page.rule(site, "limit", table, from))
}

/// Notes that a zone counts what another table counts already.
fn counted(page: &mut Page, site: &mut SitePage, directive: &Directive, zone: &str) {
    match page.counted.get(zone).cloned() {
        None => _ = page.counted.insert(zone.to_owned(), directive.place()),
        Some(place) => {
            let why = format!("the requests of each `[[site.limit]]` are counted apart, those of {place} too");
            page.note_here(site, directive, &why);
        }
    }
}

fn is_by_address(zone: &Directive) -> bool {
    ["$binary_remote_addr", "$remote_addr"].contains(&zone.arg(0))
}

/// Why a limit by the key of this zone is not converted. nginx counts the user that a request claims, before its password is
/// verified, and no request without one.
fn other_key(zone: Option<&Directive>) -> &'static str {
    match zone {
        Some(zone) if zone.arg(0) == "$remote_user" => {
            "`key = \"user\"` counts verified users, and requests without one by their address"
        }
        _ => "requests are counted by client address or verified user",
    }
}

/// Sets the keys of a `limit_req`; returns whether it did.
fn requests(page: &mut Page, site: &mut SitePage, http: &Http<'_>, table: &mut Value, directive: &Directive) -> bool {
    let option = |name: &str| directive.args.iter().find_map(|word| word.strip_prefix(name));
    let name = option("zone=").unwrap_or_default();
    let zone = http.zones.get(name).copied();
    let Some(zone) = zone.filter(|zone| is_by_address(zone)) else {
        page.note_here(site, directive, other_key(zone));
        return false;
    };
    let rate = zone.args.iter().find_map(|word| word.strip_prefix("rate=")).unwrap_or_default();
    let rate = rate.strip_suffix("r/s").map(|n| (n, "s")).or(rate.strip_suffix("r/m").map(|n| (n, "m")));
    let Some((number, unit)) = rate.and_then(|(number, unit)| Some((number.parse::<u64>().ok()?.max(1), unit))) else {
        page.note_here(site, zone, "a rate is a number of requests by second or minute");
        return false;
    };
    counted(page, site, directive, name);
    table["requests"] = format!("{number}/{unit}").into();
    let number_of = |name: &str| option(name).and_then(|text| text.parse::<u64>().ok()).unwrap_or(0);
    let burst = number_of("burst=");
    let has_no_delay = directive.args.iter().any(|word| word == "nodelay");
    let undelayed = if has_no_delay { burst } else { number_of("delay=").min(burst) };
    if undelayed > 0 {
        table["burst"] = (undelayed + 1).into();
    }
    if burst > undelayed {
        let period_ms = if unit == "s" { 1000 } else { 60_000 };
        table["max_delay"] = format!("{}ms", (burst - undelayed).saturating_mul(period_ms) / number).into();
    }
    true
}
