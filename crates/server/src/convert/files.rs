//! Directives about files and responses: roots, index pages, compression, certificates, access and header fields.

use std::collections::BTreeMap;

use amped_core::glob::Glob;
use serde_json::{Map, Value, json};

use super::guards;
use super::known;
use super::location::Location;
use super::media_types::{self, Values};
use super::page::{Page, SitePage};
use super::paths::Paths;
use super::regexes;
use super::rewrite;
use super::scope::Scope;
use super::tree::{Directive, KNOWN_FILES};

/// The root where no directive names one: that of nginx's packages.
pub(super) const DEFAULT_ROOT: &str = "/usr/share/nginx/html";

/// The location for all paths.
fn of_all_paths<'l, 'a>(locations: &'l [Location<'a>]) -> Option<&'l Location<'a>> {
    locations.iter().rfind(|location| location.paths.is_all())
}

/// Sets the keys of a site, one of whose locations is for all paths.
pub(super) fn keys(page: &mut Page, site: &mut SitePage, scope: &Scope<'_>, locations: &[Location<'_>]) {
    let root = of_all_paths(locations).map_or(scope, |location| &location.scope);
    let own_root = root.get("root").or(scope.get("root"));
    site.keys.insert("root".to_owned(), own_root.map_or(DEFAULT_ROOT, |directive| directive.arg(0)).into());
    if let Some(directive) = own_root {
        let path = directive.arg(0).to_owned();
        if path.contains('$') {
            site.keys.insert("root".to_owned(), DEFAULT_ROOT.into());
            page.note_in(site, directive, "a root has no variables; write a site for each directory");
        }
    }
    for (name, key) in [("ssl_certificate", "certificate"), ("ssl_certificate_key", "key")] {
        let all: Vec<&Directive> = scope.all(name).collect();
        if let Some(first) = all.first() {
            let files: Vec<&str> = all.iter().map(|directive| directive.arg(0)).collect();
            page.site_key(site, key, json!(files), first);
        }
    }
    let index = root.get("index").map(|directive| (directive, directive.args.clone()));
    match index {
        // The last of nginx may be a path of its own.
        Some((directive, mut names)) if names.iter().any(|name| name.starts_with('/')) => {
            names.retain(|name| !name.starts_with('/'));
            page.note_in(
                site,
                directive,
                "an index page is a file of the directory; use `[[site.fallback]]` for another",
            );
            page.site_key(site, "index", json!(names), directive);
        }
        Some((directive, mut names)) => {
            names.retain(|name| !has_other_index(locations, name));
            if names.len() < directive.args.len() {
                page.note_in(site, directive, "an index page is in its directory, but a location has it elsewhere");
            }
            page.site_key(site, "index", json!(names), directive);
        }
        None if has_other_index(locations, "index.html") => {
            site.keys.insert("index".to_owned(), json!([]));
            let other = locations.iter().find(|location| location.paths.matches("/index.html"));
            other
                .into_iter()
                .for_each(|other| page.note_in(site, other.directive, "it has the index pages, so there are none"));
        }
        None => _ = site.keys.insert("index".to_owned(), json!(["index.html"])),
    }
    listing(page, site, locations);
    // nginx follows all links, and adds no charset.
    site.keys.insert("symlinks".to_owned(), "any".into());
    let charset = root.get("charset").map_or("", |directive| directive.arg(0));
    site.keys.insert("charset".to_owned(), if charset == "off" { "" } else { charset }.into());
    match root.get("default_type") {
        Some(directive) if directive.arg(0) != "application/octet-stream" => {
            page.site_key(site, "default_type", directive.arg(0).into(), directive);
        }
        Some(_) => {}
        None => _ = site.keys.insert("default_type".to_owned(), "text/plain".into()),
    }
    compression(page, site, root);
    types(page, site, root);
    errors(page, site, scope);
    let has_tls = site.keys.contains_key("certificate");
    let verifies = scope.get("ssl_verify_client").is_some_and(|directive| directive.arg(0) != "off");
    let of_clients = known::CLIENT_CERTIFICATES.iter().filter(|_| verifies);
    for by_value in known::TLS.iter().chain(of_clients).filter(|_| has_tls) {
        for directive in scope.all(by_value.0) {
            if let Some(why) = by_value.left(directive) {
                page.note_in(site, directive, why);
            }
        }
    }
    // A log of its own, unlike that of the block around it.
    for directive in scope.own("access_log") {
        match directive.arg(0) {
            "off" => _ = page.rule(site, "unlogged", json!({ "match": "**", "errors": true }), directive),
            _ => page.note_in(site, directive, "all sites have one log, `access` in `[log]`"),
        }
    }
}

/// Whether nginx has the index page of the root in another directory.
fn has_other_index(locations: &[Location<'_>], name: &str) -> bool {
    let path = format!("/{name}");
    let own = locations.iter().find(|location| location.paths.matches(&path));
    let has_backend = |own: &Location<'_>| own.scope.own("proxy_pass").next().is_some();
    own.zip(of_all_paths(locations)).is_some_and(|(own, root)| {
        !own.is_answered() && (has_other_place(own, root) || has_backend(own) && !has_backend(root))
    })
}

/// Listings are on or off for a site, so they are on if all its directories have them.
fn listing(page: &mut Page, site: &mut SitePage, locations: &[Location<'_>]) {
    let mut all = locations.iter().filter(|location| location.has_files() && location.paths.has_directories());
    let Some(directive) = locations.iter().find_map(|location| is_on(&location.scope, "autoindex")) else { return };
    match all.all(|location| is_on(&location.scope, "autoindex").is_some()) {
        true => _ = page.site_key(site, "listing", true.into(), directive),
        false => page.note_in(site, directive, "listings are on or off for a site, and off in another location"),
    }
}

/// The directive that turns something on, if it is.
fn is_on<'a>(scope: &Scope<'a>, name: &str) -> Option<&'a Directive> {
    scope.get(name).filter(|directive| directive.arg(0) == "on")
}

fn compression(page: &mut Page, site: &mut SitePage, scope: &Scope<'_>) {
    let on = [("zstd", "zstd"), ("gzip", "gzip")].map(|(name, coding)| is_on(scope, name).map(|from| (from, coding)));
    let codings: Vec<&str> = on.iter().flatten().map(|(_, coding)| *coding).collect();
    if let Some((from, _)) = on.iter().flatten().next() {
        page.site_key(site, "compress", json!(codings), from);
    }
    if let Some(directive) = is_on(scope, "brotli") {
        page.note_in(
            site,
            directive,
            "files are compressed with zstd and gzip on the fly; put a name.br beside a file",
        );
    }
}

/// Media types that the configuration adds itself. Those of the usual ones are built in.
fn types(page: &mut Page, site: &mut SitePage, scope: &Scope<'_>) {
    let mut types = BTreeMap::new();
    for block in scope.all("types").filter(|block| !KNOWN_FILES.iter().any(|name| block.file.ends_with(name))) {
        for line in block.inner() {
            types.extend(line.args.iter().map(|suffix| (suffix.clone(), line.name.clone())));
        }
        if !types.is_empty() {
            page.site_key(site, "types", json!(types), block);
        }
    }
}

fn errors(page: &mut Page, site: &mut SitePage, scope: &Scope<'_>) {
    let mut pages = Map::new();
    for directive in scope.all("error_page") {
        let Some((target, statuses)) = directive.args.split_last() else { continue };
        let (changes, statuses): (Vec<&String>, Vec<&String>) = statuses.iter().partition(|word| word.starts_with('='));
        if !changes.is_empty() {
            page.note_in(site, directive, "an error page does not change the status");
            continue;
        }
        for status in statuses {
            let mut with = pages.clone();
            with.insert(status.clone(), target.clone().into());
            if page.site_key(site, "errors", Value::Object(with.clone()), directive) {
                pages = with;
            }
        }
    }
}

/// Removes the error pages that an application would serve: it may itself have failed.
pub(super) fn pages_of_applications(page: &mut Page, site: &mut SitePage, scope: &Scope<'_>) {
    let rule = |app: &Value| Some((Glob::parse(app["match"].as_str()?).ok()?, app["static"] == true));
    let rules: Vec<(Glob, bool)> = site.tables("app").filter_map(rule).collect();
    let is_served = |path: &Value| {
        let path = path.as_str().unwrap_or_default();
        // An application has all paths of which it has the beginning.
        let starts = path.match_indices('/').skip(1).map(|(slash, _)| &path[..slash]);
        let starts: Vec<&str> = starts.chain([path]).collect();
        let applies = |(glob, is_static): &&(Glob, bool)| match is_static {
            true => glob.matches(path.as_bytes()),
            false => starts.iter().any(|start| glob.matches(start.as_bytes())),
        };
        rules.iter().find(applies).is_some_and(|(_, is_static)| !is_static)
    };
    let Some(Value::Object(pages)) = site.keys.get_mut("errors") else { return };
    let mut removed = Vec::new();
    pages.retain(|_, path| {
        !is_served(path) || {
            removed.push(path.clone());
            false
        }
    });
    for directive in scope
        .all("error_page")
        .filter(|page| page.args.last().is_some_and(|path| removed.contains(&path.as_str().into())))
    {
        page.note_in(
            site,
            directive,
            "an error page is a file; the application that would serve it may itself have failed",
        );
    }
}

/// The path that `if (!-e $request_filename) { rewrite ... }` serves instead of a missing file.
pub(super) fn missing_file(directive: &Directive) -> Option<&str> {
    let (operator, variable, rest) = rewrite::condition_words(&directive.args);
    let is_missing = ["!-e", "!-f"].contains(&operator.as_str()) && variable == "$request_filename" && rest.is_empty();
    let rewrite = directive.inner().iter().find(|inner| inner.name == "rewrite")?;
    is_missing.then(|| rewrite.arg(1))
}

/// Where a location has its files.
#[derive(PartialEq, Eq)]
enum Place<'a> {
    Root(&'a str),
    Alias(&'a str),
}

/// Whether two locations have their files in different directories.
pub(super) fn has_other_place(a: &Location<'_>, b: &Location<'_>) -> bool {
    place(&a.scope).1 != place(&b.scope).1
}

/// The directive that says where a location has its files, and the place; `None`: nginx's default.
fn place<'a>(scope: &Scope<'a>) -> (Option<&'a Directive>, Place<'a>) {
    let block = scope.nearest(&["alias", "root"]);
    match block.iter().rfind(|directive| ["alias", "root"].contains(&directive.name.as_str())) {
        Some(directive) if directive.name == "alias" => (Some(directive), Place::Alias(directive.arg(0))),
        Some(directive) => (Some(directive), Place::Root(directive.arg(0))),
        None => (None, Place::Root(DEFAULT_ROOT)),
    }
}

/// Translates the root of a location, and other directives about its files.
///
/// `after`: the locations that it precedes.
pub(super) fn location_files(
    page: &mut Page,
    site: &mut SitePage,
    location: &Location<'_>,
    after: &[Location<'_>],
    is_rest: bool,
) {
    if !is_rest {
        keys_of_location(page, site, location);
    }
    if !location.is_answered() && !has_only_backend(location) {
        location_place(page, site, location, after);
    }
}

/// Whether a backend gets all requests of a location.
fn has_only_backend(location: &Location<'_>) -> bool {
    let to_named = |directive: &Directive| directive.args.last().is_some_and(|last| last.starts_with('@'));
    location.scope.own("proxy_pass").next().is_some() || location.scope.get("try_files").is_some_and(to_named)
}

/// Notes the directives that a location of amped cannot have, and translates whether its requests are logged.
fn keys_of_location(page: &mut Page, site: &mut SitePage, location: &Location<'_>) {
    let Location { paths, scope, .. } = location;
    for directive in scope.own("access_log") {
        match directive.arg(0) {
            "off" => _ = page.rule(site, "unlogged", json!({ "match": paths.pattern(), "errors": true }), directive),
            _ => page.note_here(site, directive, "all requests have one log, `access` in `[log]`"),
        }
    }
    for (name, why) in [
        ("index", "index pages are those of the site"),
        ("default_type", "default_type is that of the site; use `types`"),
        ("charset", "the charset is that of the site"),
        ("error_page", "error pages are those of the site"),
        ("gzip", "compression is on or off for a site"),
    ] {
        let is_harmless = paths.is_all() || (name == "default_type" && location.is_answered());
        if let Some(directive) = scope.own(name).next().filter(|_| !is_harmless || name == "error_page") {
            let is_off = name == "gzip" && directive.arg(0) == "off" && !site.keys.contains_key("compress");
            if !is_off {
                page.note_here(site, directive, why);
            }
        }
    }
}

/// The directory of a location's files.
fn location_place(page: &mut Page, site: &mut SitePage, location: &Location<'_>, after: &[Location<'_>]) {
    let Location { paths, scope, .. } = location;
    let (directive, own) = place(scope);
    let directive = directive.unwrap_or(location.directive);
    let of_site = site.keys.get("root").cloned();
    let is_site =
        |place: &Place<'_>| matches!(place, Place::Root(root) if of_site.as_ref().is_some_and(|own| own == root));
    // The first alias that matches applies.
    let is_shadowed = after.iter().any(|other| {
        let (_, theirs) = place(&other.scope);
        !other.is_answered() && theirs != own && !is_site(&theirs) && paths.may_overlap(&other.paths)
    });
    match own {
        _ if is_site(&own) && !is_shadowed => {}
        // The alias of the location around it applies to its paths too.
        Place::Alias(_) if scope.own("alias").next().is_none() => {}
        Place::Alias(_) => match (alias(page, site, paths, directive), paths) {
            (Err(why), _) => page.refuse(site, &paths.pattern(), directive, why),
            (Ok(()), Paths::Prefix { path, .. }) if !path.ends_with('/') => {
                let others = format!("~^{}[^/]", regexes::escape(path));
                let why = "without a slash at the end of the location, names that only begin like the directory are looked up within it";
                page.refuse(site, &others, directive, why);
            }
            (Ok(()), _) => {}
        },
        Place::Root(root) if root.contains('$') => {
            page.refuse(site, &paths.pattern(), directive, "a root has no variables")
        }
        Place::Root(root) => {
            page.rule(site, "alias", json!({ "match": paths.pattern(), "root": root, "keep_prefix": true }), directive);
        }
    }
}

fn alias(page: &mut Page, site: &mut SitePage, paths: &Paths, directive: &Directive) -> Result<(), &'static str> {
    let target = directive.arg(0);
    let (pattern, root) = match paths {
        _ if target.contains('$') => return Err("a root has no variables"),
        // nginx appends the rest of a path to the text.
        Paths::Prefix { path, .. } if path.ends_with('/') && !target.ends_with('/') => {
            return Err("write a slash at the end of the directory, without which nginx looks up other names");
        }
        Paths::Prefix { path, .. } => {
            (Paths::Prefix { path: format!("{}/", path.trim_end_matches('/')), is_final: false }.pattern(), target)
        }
        Paths::Exact(path) => match (path.rsplit_once('/'), target.rsplit_once('/')) {
            (Some((_, name)), Some((folder, file))) if name == file => (paths.pattern(), folder),
            _ => return Err("the file must have the same name; rewrite the path to its name first"),
        },
        Paths::Regex { .. } | Paths::Named(_) => return Err("use `[[site.alias]]` for a directory, or a rewrite"),
    };
    let root = if root == "/" { root } else { root.trim_end_matches('/') };
    page.rule(site, "alias", json!({ "match": pattern, "root": root }), directive);
    Ok(())
}

/// Header rules. The last rule of amped wins, so the locations come in the reverse of their precedence.
pub(super) fn headers(page: &mut Page, site: &mut SitePage, scope: &Scope<'_>, locations: &[Location<'_>]) {
    let whole = Paths::Prefix { path: "/".to_owned(), is_final: false };
    let inherited = header_rules(page, site, scope, &whole, None);
    let has_own = |location: &Location<'_>| has_own_headers(&location.scope, &inherited);
    for (index, location) in locations.iter().enumerate().rev().filter(|(_, location)| has_own(location)) {
        // Cache-Control of a rule is for files only.
        let is_for_files = has_none(&location.scope, &["add_header", HIDING[0], HIDING[1]]);
        let is_without = |other: &&Location<'_>| {
            let is_untouched = other.is_answered() || is_for_files && other.has_app();
            !(is_untouched || has_own(other)) && other.paths.may_overlap(&location.paths)
        };
        if let Some(other) = locations[..index].iter().find(is_without) {
            let why = format!("the header rules of {} apply to its paths too", location.directive.place());
            page.note_here(site, other.directive, &why);
        }
        header_rules(page, site, &location.scope, &location.paths, Some(&inherited));
    }
}

/// Directives that remove header fields of applications.
const HIDING: [&str; 2] = ["fastcgi_hide_header", "proxy_hide_header"];

/// Whether a location has header rules: fields, or none of those that are `inherited`.
fn has_own_headers(scope: &Scope<'_>, inherited: &[String]) -> bool {
    let mut fields = scope.own("add_header");
    let replaces = fields.any(|field| !inherited.is_empty() || !guards::is_authorization_field(scope, field));
    replaces || !has_none(scope, &["expires", HIDING[0], HIDING[1]])
}

/// Whether the innermost block has no directive with one of these names.
fn has_none(scope: &Scope<'_>, names: &[&str]) -> bool {
    names.iter().all(|name| scope.own(name).next().is_none())
}

/// Rules for the fields of a scope; returns their names. `inherited`: those of the site around it, which its own replace.
fn header_rules(
    page: &mut Page,
    site: &mut SitePage,
    scope: &Scope<'_>,
    paths: &Paths,
    inherited: Option<&[String]>,
) -> Vec<String> {
    let is_replaced = scope.own("add_header").next().is_some();
    let mut rules: BTreeMap<bool, Map<String, Value>> = BTreeMap::new();
    let (mut names, mut cache, mut first) = (Vec::new(), expires(page, site, scope), None);
    let times = scope.get("expires").and_then(|time| media_types::values_for_files(scope, time.arg(0), &NO_TIME));
    let of_type = |(media_type, time): (_, String)| Some((media_type, max_age(&time)?));
    let mut caches: Values = times.into_iter().flatten().filter_map(of_type).collect();
    let mut by_type = Vec::new();
    // Those of the site apply without being repeated, except that of Cache-Control there is one value.
    let is_in_force = |field: &&Directive| inherited.is_none() || is_replaced || is_cache_control(field);
    for directive in scope.all("add_header").filter(is_in_force) {
        let (name, value, always) = (directive.arg(0), directive.arg(1), directive.arg(2) == "always");
        first.get_or_insert(directive);
        if guards::is_authorization_field(scope, directive) {
            continue;
        }
        let is_same = |known: &String| known.eq_ignore_ascii_case(name);
        if names.iter().any(is_same)
            || by_type.iter().any(|(known, ..): &(&str, _, _)| known.eq_ignore_ascii_case(name))
        {
            page.note_here(site, directive, "`set` has one value; add the other one by `append` in `[[site.headers]]`");
        } else if value.contains('$') {
            let is_cache = is_cache_control(directive);
            let values = match is_cache {
                true => media_types::values_for_files(scope, value, &[""]),
                false => media_types::values(scope, value, &[""]),
            };
            match values {
                Some(values) if !is_cache => by_type.push((name, !always, values)),
                Some(values) if caches.is_empty() => caches = values,
                Some(_) => page.note_here(
                    site,
                    directive,
                    "`expires` has a variable by media type, so `cache_control` cannot have another",
                ),
                None => page.note_here(site, directive, "a header rule has no variables"),
            }
        } else if is_cache_control(directive) {
            cache = Some(cache.map_or_else(|| value.to_owned(), |cache| format!("{cache}, {value}")));
        } else if name.eq_ignore_ascii_case("Content-Type") {
            // Of a fixed response, which has it.
        } else if !value.is_empty() {
            names.push(name.to_owned());
            rules.entry(!always).or_default().insert(name.to_owned(), value.into());
        }
    }
    let hidden: Vec<&Directive> = HIDING.iter().flat_map(|name| scope.all(name)).collect();
    let from = first.or(scope.get("expires")).or(hidden.first().copied());
    let Some(from) = from else { return names };
    let is_for_all = cache.is_some() || caches.iter().any(|(media_type, _)| media_type.is_none());
    if scope.has_app() && (is_for_all || !caches.is_empty()) {
        page.note_here(site, from, "`cache_control` is for files; applications send their own");
    }
    if inherited.is_some() && !is_for_all && sets_cache_control(&scope.outer()) {
        page.note_here(site, from, "a header rule cannot take back the Cache-Control of another");
    }
    let mut removed: Vec<String> = hidden.iter().map(|directive| directive.arg(0).to_owned()).collect();
    if is_replaced {
        removed.extend(
            inherited
                .into_iter()
                .flatten()
                .filter(|name| !names.iter().any(|own| own.eq_ignore_ascii_case(name)))
                .cloned(),
        );
    }
    if cache.is_some() || !removed.is_empty() || rules.is_empty() {
        let mut table = json!({ "match": paths.pattern() });
        if let Some(cache) = &cache {
            table["cache_control"] = cache.as_str().into();
        }
        if !removed.is_empty() {
            table["remove"] = json!(removed);
        }
        if table.as_object().is_some_and(|table| table.len() > 1) {
            page.rule(site, "headers", table, from);
        }
    }
    for (media_type, value) in caches {
        let value = cache.as_ref().map_or_else(|| value.clone(), |cache| format!("{value}, {cache}"));
        let mut table = json!({ "match": paths.pattern(), "cache_control": value });
        media_type.into_iter().for_each(|media_type| table["media_type"] = media_type.into());
        page.rule(site, "headers", table, from);
    }
    let of_all_types: Vec<String> = by_type.iter().map(|(name, ..)| (*name).to_owned()).collect();
    let of_rules = rules.into_iter().map(|(not_always, fields)| (None, not_always, fields));
    let of_types = by_type.into_iter().flat_map(|(name, not_always, values)| {
        let set = move |value: String| Map::from_iter([(name.to_owned(), Value::from(value))]);
        values.into_iter().map(move |(media_type, value)| (media_type, not_always, set(value)))
    });
    for (media_type, not_always, fields) in of_rules.chain(of_types) {
        let mut table = json!({ "match": paths.pattern(), "set": fields });
        media_type.into_iter().for_each(|media_type| table["media_type"] = media_type.into());
        if not_always {
            table["errors"] = false.into();
        }
        page.rule(site, "headers", table, from);
    }
    // Those by media type, which some responses lack, are removed where others replace them.
    names.extend(of_all_types);
    names
}

fn is_cache_control(field: &Directive) -> bool {
    field.arg(0).eq_ignore_ascii_case("Cache-Control")
}

/// Whether there is a Cache-Control for some files.
fn sets_cache_control(scope: &Scope<'_>) -> bool {
    let is_time = |time: &Directive| time.arg(0).starts_with('$') || max_age(time.arg(0)).is_some();
    scope.get("expires").is_some_and(is_time) || scope.all("add_header").any(is_cache_control)
}

/// The value of Cache-Control that `expires` sets for all media types.
fn expires(page: &mut Page, site: &mut SitePage, scope: &Scope<'_>) -> Option<String> {
    let directive = scope.get("expires")?;
    let times = match media_types::values_for_files(scope, directive.arg(0), &NO_TIME) {
        Some(values) => values.into_iter().map(|(_, time)| time).collect(),
        None => vec![directive.arg(0).to_owned()],
    };
    let is_known = |time: &String| max_age(time).is_some() || NO_TIME.contains(&time.as_str());
    if !times.iter().all(is_known) {
        page.note_here(site, directive, "use `cache_control` in `[[site.headers]]`");
    }
    max_age(directive.arg(0))
}

/// Times of `expires` that set nothing.
const NO_TIME: [&str; 2] = ["off", ""];

/// The value of Cache-Control for a time of `expires`, if there is one.
fn max_age(time: &str) -> Option<String> {
    match time {
        "epoch" => Some("no-cache".to_owned()),
        "max" => Some("max-age=315360000".to_owned()),
        time if time.starts_with('-') => Some("no-cache".to_owned()),
        time if NO_TIME.contains(&time) => None,
        time => seconds(time).map(|seconds| format!("max-age={seconds}")),
    }
}

/// A time of nginx, such as `1h 30m`, in whole seconds.
pub(super) fn seconds(text: &str) -> Option<u64> {
    let mut total = 0_u64;
    let mut rest = text.trim();
    while !rest.is_empty() {
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        let (number, behind) = rest.split_at(digits);
        let letters = behind.bytes().take_while(u8::is_ascii_alphabetic).count();
        let (unit, behind) = behind.split_at(letters);
        let scale = match unit {
            "" | "s" => 1,
            "m" => 60,
            "h" => 3600,
            "d" => 86_400,
            "w" => 7 * 86_400,
            "M" => 30 * 86_400,
            "y" => 365 * 86_400,
            _ => return None,
        };
        total = total.checked_add(number.parse::<u64>().ok()?.checked_mul(scale)?)?;
        rest = behind.trim_start();
    }
    Some(total)
}

/// The same as a time of amped.
pub(super) fn time(text: &str) -> Option<String> {
    match text.strip_suffix("ms") {
        Some(number) => number.parse::<u64>().ok().map(|number| format!("{number}ms")),
        None => seconds(text).map(|seconds| format!("{seconds}s")),
    }
}
