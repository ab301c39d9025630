//! Applications: `proxy_pass`, `fastcgi_pass` and `try_files`.

use serde_json::{Value, json};

use super::backends::{app_rules, common, proxy};
use super::caching;
use super::files;
use super::guards::Guards;
use super::location::Location;
use super::page::{Page, SitePage};
use super::paths::Paths;
use super::regexes;
use super::scope::Http;
use super::tree::Directive;

/// The application of a location; returns whether it has one. `before`: the locations that precede it.
pub(super) fn app(
    page: &mut Page,
    site: &mut SitePage,
    http: &Http<'_>,
    location: &Location<'_>,
    before: &[Location<'_>],
    after: &[Location<'_>],
) -> bool {
    let mut pass = location.scope.own("fastcgi_pass");
    if let Some(directive) = pass.next() {
        refuse_below(page, site, location, &location.paths, directive);
        fastcgi(page, site, http, location, directive);
        return true;
    }
    let mut pass = location.scope.own("proxy_pass");
    let Some(directive) = pass.next() else { return false };
    let without_slash = location.paths.directory().and_then(|path| Some(path.strip_suffix('/')?.to_owned()));
    let is_denied = |other: &Location<'_>, path: &str| other.is_answered() && other.paths.matches(path);
    if let Some(path) = without_slash.filter(|path| before.iter().chain(after).any(|other| is_denied(other, path))) {
        page.note_here(site, directive, &format!("requests are refused where those for {path} are"));
    }
    let own = location.asked_at.clone().map_or_else(|| location.paths.clone(), Paths::Exact);
    refuse_below(page, site, location, &own, directive);
    proxy(page, site, http, &location.scope, directive, (own.app_pattern(), &own, location.asked_at.is_some()));
    true
}

/// Refuses the paths below that of an application, to which a rule with that path applies too. Below
/// a script they are PATH_INFO.
fn refuse_below(page: &mut Page, site: &mut SitePage, location: &Location<'_>, own: &Paths, directive: &Directive) {
    let Paths::Exact(path) = own else { return };
    if path.ends_with('/') || own.is_file() && directive.name == "fastcgi_pass" {
        return;
    }
    let below = Paths::Prefix { path: format!("{path}/"), is_final: false };
    // An application that authorises requests has one path.
    let status = if location.asked_at.is_some() { 404 } else { 503 };
    if status == 503 {
        page.note_here(site, directive, "the application of one path would get all below it, which gets 503 instead");
    }
    page.rule(site, "route", json!({ "match": below.pattern(), "deny": true, "status": status }), directive);
}

/// The paths of an application or its scripts, if the location has an application or uses that of a named location.
fn app_paths(location: &Location<'_>, named: &[Location<'_>]) -> Option<Paths> {
    let has = |target: &Location<'_>, name: &str| target.scope.own(name).next().is_some();
    let forwards = |target: &Location<'_>| has(target, "proxy_pass") && !has(target, "rewrite");
    let has_app = location.has_app() || named_target(location, named).is_some_and(forwards);
    (has_app && !location.is_answered()).then(|| match &location.paths {
        Paths::Regex { .. } => Paths::of_pattern(&script_pattern(&location.paths).replace("*.php", "~\\.php$")),
        other => other.clone(),
    })
}

/// Keeps the files of a location from the applications of later ones (`after`).
pub(super) fn keep_files(
    page: &mut Page,
    site: &mut SitePage,
    location: &Location<'_>,
    after: &[Location<'_>],
    named: &[Location<'_>],
) {
    let takes = |other: &Location<'_>| app_paths(other, named).is_some_and(|paths| location.paths.may_overlap(&paths));
    if location.has_files() && app_paths(location, named).is_none() && after.iter().any(takes) {
        page.rule(site, "app", json!({ "match": location.paths.pattern(), "static": true }), location.directive);
    }
}

/// The restrictions of the named location that a location falls back to.
pub(super) fn named_guards<'n, 'a>(location: &Location<'_>, named: &'n [Location<'a>]) -> Option<&'n Guards<'a>> {
    Some(&named_target(location, named)?.guards)
}

fn named_target<'n, 'a>(location: &Location<'_>, named: &'n [Location<'a>]) -> Option<&'n Location<'a>> {
    let last = try_files_of(location)?.args.last()?;
    named.iter().find(|other| matches!(&other.paths, Paths::Named(name) if name == last))
}

/// The `try_files` of a location; that of the server applies to all of its locations.
fn try_files_of<'a>(location: &Location<'a>) -> Option<&'a Directive> {
    let of_all = location.paths.is_all().then(|| location.scope.get("try_files")).flatten();
    location.scope.own("try_files").next().or(of_all)
}

fn fastcgi(page: &mut Page, site: &mut SitePage, http: &Http<'_>, location: &Location<'_>, directive: &Directive) {
    let scope = &location.scope;
    let pattern = match &location.paths {
        paths @ Paths::Regex { .. } => script_pattern(paths),
        paths => paths.app_pattern(),
    };
    let address = match http.upstreams.get(directive.arg(0)) {
        Some(upstream) => {
            let servers: Vec<&Directive> = upstream.inner().iter().filter(|line| line.name == "server").collect();
            if servers.len() > 1 {
                page.note_here(site, servers[1], "a FastCGI application has one address");
            }
            servers.first().map_or("", |server| server.arg(0))
        }
        None => directive.arg(0),
    };
    let address = address.replace("localhost:", "127.0.0.1:");
    let mut table = json!({ "match": pattern, "fastcgi": address });
    // The default of `files` depends on the form of the pattern.
    match &location.paths {
        // Such as the status page of PHP-FPM.
        Paths::Regex { regex, .. } if regex.ends_with('$') && !regex.contains("\\.") => table["files"] = false.into(),
        paths if paths.is_file() => table["files"] = true.into(),
        _ => {}
    }
    common(page, site, scope, &mut table, "fastcgi");
    let mut env = serde_json::Map::new();
    for param in scope.all("fastcgi_param") {
        let (name, value) = (param.arg(0), param.arg(1));
        if name == "SCRIPT_FILENAME" && !SCRIPTS.contains(&value) {
            return page.note_here(site, param, "a script is the file of its path");
        }
        match STANDARD.contains(&name) {
            true if value.contains('$') || LITERAL.contains(&value) => {}
            true => page.note_here(site, param, "the server sets this variable itself"),
            false if value.contains('$') => page.note_here(site, param, "`env` has no variables"),
            false => _ = env.insert(name.to_owned(), value.into()),
        }
    }
    if !env.is_empty() {
        table["env"] = Value::Object(env);
    }
    let bypasses = caching::cache(page, site, http, scope, &mut table, "fastcgi");
    app_rules(page, site, table, bypasses, directive);
}

/// Values of SCRIPT_FILENAME that are the file of the path.
const SCRIPTS: &[&str] = &[
    "$document_root$fastcgi_script_name",
    "$document_root/$fastcgi_script_name",
    "$realpath_root$fastcgi_script_name",
    "$realpath_root/$fastcgi_script_name",
    "$request_filename",
];

/// Values without variables that the standard variables usually have.
const LITERAL: &[&str] = &["", "200", "CGI/1.1", "nginx", "nginx/$nginx_version"];

/// The variables that the server sets itself (RFC 3875, and those of nginx's `fastcgi_params`).
const STANDARD: &[&str] = &[
    "AUTH_TYPE",
    "CONTENT_LENGTH",
    "CONTENT_TYPE",
    "DOCUMENT_ROOT",
    "DOCUMENT_URI",
    "GATEWAY_INTERFACE",
    "HTTPS",
    "HTTP_PROXY",
    "PATH_INFO",
    "PATH_TRANSLATED",
    "QUERY_STRING",
    "REDIRECT_STATUS",
    "REMOTE_ADDR",
    "REMOTE_PORT",
    "REMOTE_USER",
    "REQUEST_METHOD",
    "REQUEST_SCHEME",
    "REQUEST_URI",
    "SCRIPT_FILENAME",
    "SCRIPT_NAME",
    "SERVER_ADDR",
    "SERVER_NAME",
    "SERVER_PORT",
    "SERVER_PROTOCOL",
    "SERVER_SOFTWARE",
];

/// The pattern of scripts: without the PATH_INFO, which amped splits off itself.
fn script_pattern(paths: &Paths) -> String {
    const ENDS: [&str; 6] = ["(?:$|/)", "(?:/|$)", "(/|$)", "($|/)", "(/.*)?$", "$"];
    let Paths::Regex { regex, is_caseless, is_exact } = paths else { return paths.pattern() };
    // Without an anchor at the end, names that only begin like a script's match too.
    let Some(script) = ENDS.iter().find_map(|end| regex.strip_suffix(end)) else { return paths.pattern() };
    let any = ["\\.php", "[^/]\\.php", ".php", "^(.+\\.php)", ".+\\.php", "^/.+\\.php", "^.+\\.php"];
    if any.contains(&script) && !is_caseless {
        return "*.php".to_owned();
    }
    let regex = if regexes::has_alternatives(script) { format!("(?:{script})$") } else { format!("{script}$") };
    Paths::Regex { regex, is_caseless: *is_caseless, is_exact: *is_exact }.pattern()
}

/// `try_files` of a location without an application.
pub(super) fn try_files(
    page: &mut Page,
    site: &mut SitePage,
    http: &Http<'_>,
    location: &Location<'_>,
    locations: &[Location<'_>],
    named: &[Location<'_>],
) {
    let Location { paths, scope, .. } = location;
    let missing = scope.own("if").find_map(|directive| Some((directive, files::missing_file(directive)?)));
    if let Some((directive, target)) = missing {
        return fallback(page, site, location, locations, target, directive);
    }
    let Some(directive) = try_files_of(location) else { return };
    let Some((last, tried)) = directive.args.split_last() else { return };
    if tried.iter().any(|name| !["$uri", "$uri/", "$uri/index.html", "$uri/index.php"].contains(&name.as_str())) {
        page.note_here(site, directive, "only the path itself and index pages are tried");
    }
    if last == "$uri/" || last == "$uri" {
        return;
    }
    let (is_status, is_named) = (last.starts_with('='), last.starts_with('@'));
    if is_status && last != "=404" {
        page.note_here(site, directive, "a missing file gets 404");
    }
    let number = site.tables("fallback").count();
    if !is_status && !is_named {
        fallback(page, site, location, locations, last, directive);
    }
    let tries_directories = tried.iter().any(|name| name == "$uri/");
    if !is_named && !tries_directories {
        let is_accepted = site.tables("fallback").count() > number;
        return without_directories(page, site, location, Some(last).filter(|_| is_accepted), directive);
    }
    if !is_named {
        return;
    }
    let Some(target) = named_target(location, named) else {
        return page.note_here(site, directive, "no such location");
    };
    if let Some(rewrite) = target.scope.own("rewrite").next() {
        fallback(page, site, location, locations, rewrite.arg(1), directive);
        let is_accepted = site.tables("fallback").count() > number;
        if !tries_directories {
            without_directories(page, site, location, rewrite.args.get(1).filter(|_| is_accepted), directive);
        }
        return;
    }
    if let Some(pass) = target.scope.own("proxy_pass").next() {
        let why = "the application gets all requests of this location, for files too; it can serve them, or list their \
                   directories as locations";
        page.note_here(site, directive, why);
        refuse_below(page, site, location, paths, pass);
        return proxy(page, site, http, &target.scope, pass, (paths.app_pattern(), paths, false));
    }
    page.note_here(site, directive, "use `[[site.fallback]]`, which names a file or script of the site");
}

/// For directories, which nginx does not try here, serves a file or script instead, or nothing.
fn without_directories(
    page: &mut Page,
    site: &mut SitePage,
    location: &Location<'_>,
    target: Option<&String>,
    directive: &Directive,
) {
    if !location.paths.has_directories() {
        return;
    }
    let of_prefix = |path: &str| regexes::within(path, "/$", false).map(|within| format!("~{}", within.regex));
    let pattern = match &location.paths {
        Paths::Prefix { path, .. } => of_prefix(path).unwrap_or_else(|| location.paths.pattern()),
        Paths::Exact(_) | Paths::Regex { .. } | Paths::Named(_) => location.paths.pattern(),
    };
    let table = match target {
        Some(file) => {
            let file = file.split(['?', '$']).next().unwrap_or_default();
            json!({ "match": pattern, "rewrite": file })
        }
        None => json!({ "match": pattern, "deny": true, "status": 404 }),
    };
    page.note_here(
        site,
        directive,
        "without `$uri/` no directory is tried; but one whose slash is missing is redirected",
    );
    page.rule(site, "route", table, directive);
}

/// Serves a file or script instead of missing ones.
fn fallback(
    page: &mut Page,
    site: &mut SitePage,
    location: &Location<'_>,
    locations: &[Location<'_>],
    target: &str,
    directive: &Directive,
) {
    let paths = &location.paths;
    let (file, query) = target.split_once(['?', '$']).unwrap_or((target, ""));
    let is_known = site.has_rule("fallback", "file", file);
    let passes = [
        "",
        "args",
        "query_string",
        "is_args",
        "request_uri",
        "$args",
        "$query_string",
        "is_args$args",
        "is_args$query_string",
    ];
    if !passes.contains(&query) {
        page.note_here(site, directive, "a fallback has no query of its own; the script finds the path in REQUEST_URI");
    }
    // The access rules of the file itself are not checked.
    let other = locations.iter().find(|other| other.paths.matches(file));
    if other.is_some_and(|other| {
        !location.guards.are_as_strict_as(&other.guards) || files::has_other_place(location, other)
    }) {
        return page.note_here(
            site,
            directive,
            "the file of a fallback has another root, or other restrictions, than the paths it is for",
        );
    }
    let Some(directory) = paths.directory() else {
        if !is_known && !site.has_rule("fallback", "directory", "/") {
            page.note_here(site, directive, "a fallback is for a directory");
        }
        return;
    };
    if !file.starts_with(&directory) {
        let why = "the file of a fallback must be in its directory; use `[[site.route]]` with `rewrite`";
        return page.note_here(site, directive, why);
    }
    if site.has_rule("fallback", "directory", &directory) {
        return;
    }
    page.rule(site, "fallback", json!({ "directory": directory, "file": file }), directive);
    let is_other =
        |other: &&Location<'_>| other.has_files() && try_files_of(other).is_none() && other.paths.may_overlap(paths);
    // Locations that precede it have some of the paths in its directory.
    for other in locations.iter().take_while(|other| !std::ptr::eq(*other, location)).filter(is_other) {
        let why = format!("missing files of it get the fallback of {} too", directive.place());
        page.note_here(site, other.directive, &why);
    }
}
