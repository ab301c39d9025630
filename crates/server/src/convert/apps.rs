//! Applications: `proxy_pass`, `fastcgi_pass` and `try_files`.

use serde_json::{Value, json};

use super::backends::{common, proxy};
use super::files;
use super::page::{Page, SitePage};
use super::paths::{self, Paths};
use super::scope::{Http, Location};
use super::tree::Directive;

/// The application of a location; returns whether it has one. `before`: the locations that precede it.
pub(super) fn app(
    page: &mut Page,
    site: &mut SitePage,
    http: &Http<'_>,
    location: &Location<'_>,
    before: &[Location<'_>],
) -> bool {
    let mut pass = location.scope.own("fastcgi_pass");
    if let Some(directive) = pass.next() {
        fastcgi(page, site, http, location, directive);
        return true;
    }
    let mut pass = location.scope.own("proxy_pass");
    let Some(directive) = pass.next() else {
        // They are left.
        let others = ["uwsgi_pass", "scgi_pass", "grpc_pass", "memcached_pass"];
        return others.iter().any(|name| location.scope.own(name).next().is_some());
    };
    let Some(pattern) = pattern_beside(page, site, location, before) else { return true };
    proxy(page, site, http, &location.scope, directive, (pattern, &location.paths));
    true
}

/// Locations that serve files, and precede an application that has all other paths.
fn pattern_beside(
    page: &mut Page,
    site: &mut SitePage,
    location: &Location<'_>,
    before: &[Location<'_>],
) -> Option<String> {
    let mut excluded = Vec::new();
    for other in before.iter().filter(|other| {
        !other.has_app()
            && !other.is_answered()
            && other.scope.own("stub_status").next().is_none()
            && other.paths.may_overlap(&location.paths)
    }) {
        match other.paths.first_segment().filter(|_| location.paths.is_all()) {
            Some(segment) => excluded.push(segment),
            None => {
                let why = "the application of a location around it gets these requests too; only a directory or file of \
                           the first level can be served beside an application";
                page.note_here(site, other.directive, why);
            }
        }
    }
    Some(if excluded.is_empty() { location.paths.pattern() } else { paths::all_but(&excluded) })
}

fn fastcgi(page: &mut Page, site: &mut SitePage, http: &Http<'_>, location: &Location<'_>, directive: &Directive) {
    let scope = &location.scope;
    let pattern = script_pattern(&location.paths);
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
    if matches!(location.paths, Paths::Exact(_)) {
        table["files"] = true.into();
    }
    common(page, site, scope, &mut table, "fastcgi");
    let mut env = serde_json::Map::new();
    for param in scope.all("fastcgi_param") {
        let (name, value) = (param.arg(0), param.arg(1));
        if STANDARD.contains(&name) {
            continue;
        }
        match value.contains('$') {
            true => page.note_here(site, param, "`env` has no variables"),
            false => _ = env.insert(name.to_owned(), value.into()),
        }
    }
    if !env.is_empty() {
        table["env"] = Value::Object(env);
    }
    page.rule(site, "app", table, directive);
}

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
    let Paths::Regex { regex, .. } = paths else { return paths.pattern() };
    let ends = ["(?:$|/)", "(?:/|$)", "(/|$)", "($|/)", "(/.*)?$", "$"];
    let script = ends.iter().find_map(|end| regex.strip_suffix(end)).unwrap_or(regex);
    match script {
        "\\.php" | "[^/]\\.php" | ".php" | "^(.+\\.php)(.*)" | "^(.+\\.php)" | ".+\\.php" | "^/.+\\.php"
        | "^.+\\.php" => "*.php".to_owned(),
        script => Paths::Regex { regex: format!("{script}$"), is_caseless: false, is_nested: false }.pattern(),
    }
}

/// `try_files` of a location without an application.
pub(super) fn try_files(
    page: &mut Page,
    site: &mut SitePage,
    http: &Http<'_>,
    location: &Location<'_>,
    before: &[Location<'_>],
    named: &[Location<'_>],
) {
    let Location { paths, scope, .. } = location;
    let missing = scope.own("if").find_map(|directive| Some((directive, files::missing_file(directive)?)));
    if let Some((directive, target)) = missing {
        return fallback(page, site, paths, target, directive);
    }
    // That of the server applies to all of its locations.
    let of_all = paths.is_all().then(|| scope.get("try_files")).flatten();
    let Some(directive) = scope.own("try_files").next().or(of_all) else { return };
    let Some((last, tried)) = directive.args.split_last() else { return };
    if tried.iter().any(|name| !["$uri", "$uri/", "$uri/index.html", "$uri/index.php"].contains(&name.as_str())) {
        page.note_here(site, directive, "only the path itself and index pages are tried");
    }
    if last == "=404" || last == "$uri/" || last == "$uri" {
        return;
    }
    if last.starts_with('=') {
        return page.note_here(site, directive, "a missing file gets 404");
    }
    if !last.starts_with('@') {
        return fallback(page, site, paths, last, directive);
    }
    let Some(target) = named.iter().find(|other| matches!(&other.paths, Paths::Named(name) if name == last)) else {
        return page.note_here(site, directive, "no such location");
    };
    if let Some(rewrite) = target.scope.own("rewrite").next() {
        return fallback(page, site, paths, rewrite.arg(1), directive);
    }
    if let Some(pass) = target.scope.own("proxy_pass").next() {
        let why = "the application gets all requests of this location, for files too; it can serve them, or list their \
                   directories as locations";
        page.note_here(site, directive, why);
        if let Some(pattern) = pattern_beside(page, site, location, before) {
            proxy(page, site, http, &target.scope, pass, (pattern, paths));
        }
        return;
    }
    page.note_here(site, directive, "use `[[site.fallback]]`, which names a file or script of the site");
}

/// Serves a file or script instead of missing ones.
fn fallback(page: &mut Page, site: &mut SitePage, paths: &Paths, target: &str, directive: &Directive) {
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
    if !site.has_rule("fallback", "directory", &directory) {
        page.rule(site, "fallback", json!({ "directory": directory, "file": file }), directive);
    }
}
