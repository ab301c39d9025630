//! Cached responses of applications: the directives `proxy_cache...` and `fastcgi_cache...`.
//!
//! Both servers cache by scheme, host and request target, keep nothing with Set-Cookie, and obey Cache-Control, Expires, Vary and
//! X-Accel-Expires. A cache that distinguishes requests by anything else is left out: its pages would be sent to other clients.

use std::collections::BTreeMap;

use amped_core::site::NEVER_CACHED;
use amped_http::text;
use serde_json::{Map, Value, json};

use super::files::time;
use super::page::{Page, SitePage};
use super::rewrite::field_name;
use super::scope::{Http, Scope};
use super::tree::Directive;

/// Conditions (`when`) under which an application is asked without the cache.
pub(super) type Bypasses = Vec<Map<String, Value>>;

/// Sets the keys of the cache that is in force for an application. `kind`: how the names of its directives begin.
pub(super) fn cache(
    page: &mut Page,
    site: &mut SitePage,
    http: &Http<'_>,
    scope: &Scope<'_>,
    table: &mut Value,
    kind: &str,
) -> Bypasses {
    let directive = |name: &str| scope.get(&format!("{kind}_cache{name}"));
    let Some(from) = directive("").filter(|from| from.arg(0) != "off") else { return Vec::new() };
    if from.arg(0).contains('$') {
        page.note_here(site, from, "a cache is not chosen by variables");
        return Vec::new();
    }
    if let Some(key) = directive("_key")
        && let Some(name) = variables(key.arg(0)).find(|name| !is_in_key(name))
    {
        let why = format!(
            "pages are found by scheme, host and target, not by `${name}`, so they are not cached; if the response has \
             `Vary` for what it depends on, add `cache`"
        );
        page.note_here(site, key, &why);
        return Vec::new();
    }
    let bypasses = match bypasses(page, site, scope, kind) {
        Ok(bypasses) => bypasses,
        Err((from, name)) => {
            let why = format!(
                "no condition on `{name}` can be expressed, so responses are not cached; add `cache` with a table before it \
                 that has `when` for requests without it"
            );
            page.note_here(site, from, &why);
            return Vec::new();
        }
    };
    lifetimes(page, site, scope, table, kind);
    stale(page, site, http, scope, table, kind);
    bypasses
}

/// The names of the variables in a text.
fn variables(text: &str) -> impl Iterator<Item = &str> {
    text::variables(text).unwrap_or_default().into_iter().filter_map(|(_, name)| name)
}

/// Whether the key of amped's cache distinguishes requests at least as finely as this variable does.
fn is_in_key(variable: &str) -> bool {
    const PARTS: [&str; 15] = [
        "args",
        "document_root",
        "document_uri",
        "fastcgi_script_name",
        "host",
        "http_host",
        "https",
        "is_args",
        "proxy_host",
        "query_string",
        "request_method",
        "request_uri",
        "scheme",
        "server_name",
        "uri",
    ];
    PARTS.contains(&variable) || variable.starts_with("arg_")
}

/// Conditions for each variable of `..._cache_bypass` and `..._no_cache`, or a directive and its variable that none can express.
///
/// nginx stores what a bypass fetches, and reads what it would not store; a rule without `cache` does neither.
fn bypasses<'a>(
    page: &mut Page,
    site: &mut SitePage,
    scope: &Scope<'a>,
    kind: &str,
) -> Result<Bypasses, (&'a Directive, &'a str)> {
    let words = |name: &str| -> Vec<(&'a Directive, &'a str)> {
        let all = scope.all(name).flat_map(|from| from.args.iter().map(move |word| (from, word.as_str())));
        // No response with Set-Cookie is stored.
        all.filter(|(_, word)| *word != "$upstream_http_set_cookie" && *word != "0").collect()
    };
    let (bypassed, unstored) = (words(&format!("{kind}_cache_bypass")), words(&format!("{kind}_no_cache")));
    let both = [(&bypassed, &unstored, "is not stored"), (&unstored, &bypassed, "does not come from the cache")];
    let mut all = Vec::new();
    for (own, other, effect) in both {
        for &(from, word) in own {
            let when = condition(word).ok_or((from, word))?;
            if !other.iter().any(|(_, known)| *known == word) {
                page.note_here(site, from, &format!("a response to a request with `{word}` {effect} either"));
            }
            if !all.contains(&when) {
                all.push(when);
            }
        }
    }
    Ok(all)
}

/// The condition that this variable is neither empty nor `0`.
fn condition(word: &str) -> Option<Map<String, Value>> {
    let name = word.strip_prefix('$')?;
    let (table, key, pattern) = match (name.strip_prefix("cookie_"), name.strip_prefix("http_")) {
        (Some(cookie), _) => {
            let cookie = cookie.chars().all(|c| c.is_ascii_alphanumeric() || c == '_').then_some(cookie)?;
            ("header", "Cookie".to_owned(), format!("~(?i:(^|[;, ]){cookie} *= *([^0; ]|0[^; ]))"))
        }
        (_, Some(field)) => ("header", field_name(field), SET.to_owned()),
        _ => ("query", name.strip_prefix("arg_")?.to_owned(), SET.to_owned()),
    };
    Some(Map::from_iter([(table.to_owned(), json!({ key: pattern }))]))
}

/// What is neither empty nor `0`.
const SET: &str = "~^([^0]|0.)";

/// Statuses that `cache` is the lifetime of.
const KEPT: [&str; 8] = ["200", "203", "204", "300", "301", "308", "404", "410"];

/// Sets the lifetimes of responses that give none themselves: without `..._cache_valid` they are not stored.
fn lifetimes(page: &mut Page, site: &mut SitePage, scope: &Scope<'_>, table: &mut Value, kind: &str) {
    let mut by_status: BTreeMap<String, String> = BTreeMap::new();
    for directive in scope.all(&format!("{kind}_cache_valid")) {
        let Some((last, statuses)) = directive.args.split_last() else { continue };
        let Some(time) = time(last) else {
            page.note_here(site, directive, "no such time");
            continue;
        };
        let statuses = statuses.iter().map(String::as_str);
        let statuses = if statuses.len() == 0 { vec!["200", "301", "302"] } else { statuses.collect() };
        for status in statuses {
            let all = if status == "any" { &["2xx", "3xx", "4xx", "5xx"][..] } else { &[status] };
            // The first that has the status applies, or has any.
            if by_status.contains_key("5xx") {
                continue;
            }
            if NEVER_CACHED.iter().any(|never| never.to_string() == status) {
                let why =
                    format!("responses with {status} depend on more of a request than its target, and are not stored");
                page.note_here(site, directive, &why);
                continue;
            }
            for own in all {
                by_status.entry((*own).to_owned()).or_insert_with(|| time.clone());
            }
        }
    }
    let is_default =
        by_status.len() == KEPT.len() && KEPT.iter().all(|status| by_status.get(*status) == by_status.get("200"));
    match by_status.get("200") {
        Some(time) if is_default => table["cache"] = time.clone().into(),
        _ => {
            table["cache"] = "0s".into();
            if !by_status.is_empty() {
                table["cache_by_status"] = json!(by_status);
            }
        }
    }
}

/// When a page is used that is not fresh any more.
fn stale(page: &mut Page, site: &mut SitePage, http: &Http<'_>, scope: &Scope<'_>, table: &mut Value, kind: &str) {
    const ERRORS: [&str; 7] = ["error", "timeout", "invalid_header", "http_500", "http_502", "http_503", "http_504"];
    let directive = |name: &str| scope.get(&format!("{kind}_cache{name}"));
    let Some(from) = directive("_use_stale").filter(|from| from.arg(0) != "off") else { return };
    let zone = directive("").map_or("", |cache| cache.arg(0));
    let path = http.caches.get(&(kind, zone));
    let inactive = path.and_then(|path| path.args.iter().find_map(|word| word.strip_prefix("inactive=")));
    // nginx's default.
    let inactive = time(inactive.unwrap_or("10m")).unwrap_or_else(|| "600s".to_owned());
    if from.args.iter().any(|word| word == "updating") {
        table["stale_while_revalidate"] = inactive.clone().into();
        if directive("_background_update").is_none_or(|update| update.arg(0) != "on") {
            page.note_here(
                site,
                from,
                "a page is renewed in the background; the first client does not wait for it either",
            );
        }
    }
    let is_error = |word: &&String| ERRORS.contains(&word.as_str());
    if from.args.iter().any(|word| is_error(&word)) {
        if !ERRORS.iter().all(|error| from.args.iter().any(|word| word == error)) {
            page.note_here(
                site,
                from,
                "a stale page replaces all of 500, 502, 503 and 504, and each failure to get a response",
            );
        }
        let why = format!(
            "a stale page replaces errors for {inactive} after its lifetime; in nginx it does so as long as it is requested at \
             least that often"
        );
        page.note_here(site, from, &why);
        table["stale_if_error"] = inactive.into();
    }
    if let Some(word) = from.args.iter().find(|word| !is_error(word) && *word != "updating") {
        page.note_here(site, from, &format!("a stale page does not replace responses with `{word}`"));
    }
}
